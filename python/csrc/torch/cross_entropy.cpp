/* SPDX-License-Identifier: BSD-3-Clause
 *
 * torch.ops.optimized: softmax cross entropy, forward and backward. Gradients and fake
 * implementations are in Python (gpunvme/torch/_cross_entropy.py).
 */
#include "call.h"

#include <limits>
#include <string>

namespace
{

using namespace gpunvme_torch;

/* PyTorch's numbers of reductions. */
enum Reduction { NONE = 0, MEAN = 1, SUM = 2 };

std::vector<int64_t> loss_shape(const Tensor &targets, int64_t reduction)
{
    return reduction == NONE ? sizes_of(targets) : std::vector<int64_t>{};
}

/* The descriptor without results, and the tensors that it points to. */
struct Described {
    Matrix logits;
    Tensor targets;
    struct gpunvme_cross_entropy problem;
};

Described describe(const char *op, const Tensor &logits, const Tensor &targets, int64_t reduction,
                   int64_t ignore_index)
{
    const int64_t most = std::numeric_limits<int32_t>::max();
    int32_t dtype = common_dtype(op, {&logits});

    check_memory(op, {&logits, &targets});
    if (torch_dtype(targets) != aoti_torch_dtype_int32())
        refuse(std::string(op) + ": targets are not int32");
    std::vector<int64_t> lead = sizes_of(logits);
    if (!lead.empty())
        lead.pop_back();
    if (logits.dim() < 1 || sizes_of(targets) != lead)
        refuse(std::string(op) + ": logits " + shape_of(logits) + ", targets " + shape_of(targets) +
               ": it takes logits (…, classes) and targets (…)");
    if (reduction < NONE || reduction > SUM)
        refuse(std::string(op) + ": reduction " + std::to_string(reduction) +
               ": there are 0 (none), 1 (mean) and 2 (sum)");
    if (ignore_index > most || ignore_index < -most - 1)
        refuse(std::string(op) + ": ignore_index " + std::to_string(ignore_index) +
               " is no number of 32 bits");

    Described made = {rows_of(logits), torch::stable::contiguous(targets), {}};
    struct gpunvme_cross_entropy &problem = made.problem;

    problem.rows = made.logits.rows;
    problem.vocab = made.logits.columns;
    problem.logits = made.logits.data();
    problem.targets = static_cast<const int32_t *>(made.targets.const_data_ptr());
    problem.ld_logits = made.logits.ld;
    problem.reduction = reduction == NONE   ? GPUNVME_REDUCTION_NONE
                        : reduction == MEAN ? GPUNVME_REDUCTION_MEAN
                                            : GPUNVME_REDUCTION_SUM;
    problem.dtype = dtype;
    problem.ignore = 1;
    problem.ignore_index = static_cast<int32_t>(ignore_index);
    return made;
}

Tensor cross_entropy(Tensor logits, Tensor targets, int64_t reduction, int64_t ignore_index)
{
    Described call = describe("cross_entropy", logits, targets, reduction, ignore_index);
    Tensor loss = make(logits, loss_shape(targets, reduction), aoti_torch_dtype_float32());

    call.problem.loss = static_cast<float *>(loss.mutable_data_ptr());
    run(logits, call.problem, gpunvme_cross_entropy_workspace, gpunvme_cross_entropy);
    return loss;
}

/* The gradient of the logits, from that of the loss. */
Tensor cross_entropy_backward(Tensor grad_loss, Tensor logits, Tensor targets, int64_t reduction,
                              int64_t ignore_index)
{
    const char *op = "cross_entropy_backward";
    Described call = describe(op, logits, targets, reduction, ignore_index);

    check_memory(op, {&logits, &grad_loss});
    if (torch_dtype(grad_loss) != aoti_torch_dtype_float32() ||
        sizes_of(grad_loss) != loss_shape(targets, reduction))
        refuse(std::string(op) + ": grad_loss " + shape_of(grad_loss) + " is not that of float32");
    Tensor given = torch::stable::contiguous(grad_loss), grad = make(logits, sizes_of(logits));

    call.problem.grad_loss = static_cast<const float *>(given.const_data_ptr());
    call.problem.grad = grad.mutable_data_ptr();
    call.problem.ld_grad = call.logits.columns;
    run(logits, call.problem, gpunvme_cross_entropy_workspace, gpunvme_cross_entropy);
    return grad;
}

void implement(torch::stable::detail::StableLibrary &m)
{
    m.impl("cross_entropy", TORCH_BOX(&cross_entropy));
    m.impl("cross_entropy_backward", TORCH_BOX(&cross_entropy_backward));
}

} // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(optimized, m)
{
    m.def("cross_entropy(Tensor logits, Tensor targets, int reduction=1, int ignore_index=-100) -> "
          "Tensor");
    m.def("cross_entropy_backward(Tensor grad_loss, Tensor logits, Tensor targets, int reduction, "
          "int ignore_index) -> Tensor");
}

GPUNVME_TORCH_KERNELS(implement)
