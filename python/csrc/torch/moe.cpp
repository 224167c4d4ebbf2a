/* SPDX-License-Identifier: BSD-3-Clause
 *
 * torch.ops.optimized: mixtures of experts, forward and backward. Gradients, fake implementations
 * and autocast are in Python (gpunvme/torch/_moe.py).
 */
#include "call.h"

#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace
{

using namespace gpunvme_torch;

/* The matrices of all experts, which it holds. */
struct Experts {
    Tensor tensor;
    int64_t ld, stride;

    const void *data() const
    {
        return tensor.const_data_ptr();
    }
};

/* In place if rows are contiguous and lie one behind the other, else a copy. */
Experts experts(const Tensor &t)
{
    int64_t rows = t.size(1), columns = t.size(2);

    if ((t.stride(2) == 1 || columns <= 1) && (t.stride(1) >= columns || rows <= 1) &&
        t.stride(0) >= 0)
        return {t, rows <= 1 ? columns : t.stride(1), t.stride(0)};
    return {torch::stable::contiguous(t), columns, rows * columns};
}

/* What both directions are given. */
struct Layer {
    Matrix x, logits;
    Experts gate, up, down;
    std::vector<int64_t> slots; /* the shape of what each token has for each of its experts */
};

/* Fills in what the descriptors have in common. */
template <class Problem>
Layer describe(const char *op, Problem &problem, const Tensor &x, const Tensor &logits,
               const Tensor &w_gate, const Tensor &w_up, const Tensor &w_down, int64_t top_k,
               bool renormalize)
{
    int32_t dtype = common_dtype(op, {&x, &w_gate, &w_up, &w_down});
    int32_t logits_dtype = common_dtype(op, {&logits});
    std::vector<int64_t> lead = sizes_of(x), shape = sizes_of(logits);

    check_memory(op, {&x, &logits});
    if (x.dim() < 1 || logits.dim() < 1 || w_gate.dim() != 3 || w_down.dim() != 3 ||
        sizes_of(w_up) != sizes_of(w_gate) || w_down.size(0) != w_gate.size(0) ||
        w_down.size(1) != w_gate.size(2) || w_down.size(2) != w_gate.size(1) ||
        lead.back() != w_gate.size(2) || shape.back() != w_gate.size(0) ||
        (lead.pop_back(), shape.pop_back(), lead != shape))
        refuse(std::string(op) + ": x " + shape_of(x) + ", logits " + shape_of(logits) +
               ", w_gate " + shape_of(w_gate) + ", w_up " + shape_of(w_up) + ", w_down " +
               shape_of(w_down) +
               ": it takes x (…, dim), logits (…, experts), w_gate and w_up "
               "(experts, hidden, dim), w_down (experts, dim, hidden)");

    Layer made = {rows_of(x),    rows_of(logits), experts(w_gate),
                  experts(w_up), experts(w_down), lead};

    made.slots.push_back(top_k);
    problem.tokens = made.x.rows;
    problem.experts = w_gate.size(0);
    problem.top_k = top_k;
    problem.dim = w_gate.size(2);
    problem.hidden = w_gate.size(1);
    problem.x = made.x.data();
    problem.logits = made.logits.data();
    problem.w_gate = made.gate.data();
    problem.w_up = made.up.data();
    problem.w_down = made.down.data();
    problem.ldx = made.x.ld;
    problem.ld_logits = made.logits.ld;
    problem.ld_w_gate = made.gate.ld;
    problem.ld_w_up = made.up.ld;
    problem.ld_w_down = made.down.ld;
    problem.stride_w_gate = made.gate.stride;
    problem.stride_w_up = made.up.stride;
    problem.stride_w_down = made.down.stride;
    problem.dtype = dtype;
    problem.logits_dtype = logits_dtype;
    problem.weighting = renormalize ? GPUNVME_MOE_CHOSEN : GPUNVME_MOE_ALL;
    return made;
}

void check_top_k(const char *op, int64_t top_k, const Tensor &w_gate)
{
    if (w_gate.dim() == 3 && (top_k < 1 || top_k > w_gate.size(0)))
        refuse(std::string(op) + ": top_k " + std::to_string(top_k) + " of " +
               std::to_string(w_gate.size(0)) + " experts");
}

Tensor moe(Tensor x, Tensor logits, Tensor w_gate, Tensor w_up, Tensor w_down, int64_t top_k,
           bool renormalize)
{
    struct gpunvme_moe problem = {};

    check_top_k("moe", top_k, w_gate);
    Layer layer = describe("moe", problem, x, logits, w_gate, w_up, w_down, top_k, renormalize);
    Tensor y = make(x, sizes_of(x));

    problem.y = y.mutable_data_ptr();
    problem.ldy = layer.x.columns;
    run(x, problem, gpunvme_moe_forward_workspace, gpunvme_moe_forward);
    return y;
}

/* The same, and what the gradients need: the choice, the weights, gate and up. */
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> moe_kept(Tensor x, Tensor logits, Tensor w_gate,
                                                            Tensor w_up, Tensor w_down,
                                                            int64_t top_k, bool renormalize)
{
    struct gpunvme_moe problem = {};

    check_top_k("moe_kept", top_k, w_gate);
    Layer layer =
        describe("moe_kept", problem, x, logits, w_gate, w_up, w_down, top_k, renormalize);
    std::vector<int64_t> rows = layer.slots;
    rows.push_back(w_gate.size(1));
    Tensor y = make(x, sizes_of(x)), gate = make(x, rows), up = make(x, rows);
    Tensor chosen = make(x, layer.slots, aoti_torch_dtype_int32());
    Tensor weights = make(x, layer.slots, aoti_torch_dtype_float32());

    problem.y = y.mutable_data_ptr();
    problem.ldy = layer.x.columns;
    problem.chosen = static_cast<int32_t *>(chosen.mutable_data_ptr());
    problem.weights = static_cast<float *>(weights.mutable_data_ptr());
    problem.gate = gate.mutable_data_ptr();
    problem.up = up.mutable_data_ptr();
    run(x, problem, gpunvme_moe_forward_workspace, gpunvme_moe_forward);
    return {y, chosen, weights, gate, up};
}

void check_kept(const Layer &layer, const Tensor &x, const Tensor &chosen, const Tensor &weights,
                const Tensor &gate, const Tensor &up, int64_t hidden)
{
    const char *op = "moe_backward";
    std::vector<int64_t> rows = layer.slots;

    rows.push_back(hidden);
    check_memory(op, {&x, &chosen, &weights});
    if (common_dtype(op, {&gate, &up, &x}) < 0 || sizes_of(chosen) != layer.slots ||
        sizes_of(weights) != layer.slots || sizes_of(gate) != rows || sizes_of(up) != rows ||
        torch_dtype(chosen) != aoti_torch_dtype_int32() ||
        torch_dtype(weights) != aoti_torch_dtype_float32())
        refuse(std::string(op) + ": chosen " + shape_of(chosen) + ", weights " + shape_of(weights) +
               ", gate " + shape_of(gate) + ", up " + shape_of(up) + " are not moe_kept's");
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>
moe_backward(Tensor grad_y, Tensor x, Tensor logits, Tensor w_gate, Tensor w_up, Tensor w_down,
             Tensor chosen, Tensor weights, Tensor gate, Tensor up, int64_t top_k, bool renormalize,
             bool need_x, bool need_logits, bool need_gate, bool need_up, bool need_down)
{
    const char *op = "moe_backward";
    struct gpunvme_moe_grad problem = {};

    check_top_k(op, top_k, w_gate);
    Layer layer = describe(op, problem, x, logits, w_gate, w_up, w_down, top_k, renormalize);
    check_kept(layer, x, chosen, weights, gate, up, problem.hidden);
    if (common_dtype(op, {&grad_y, &x}) < 0 || sizes_of(grad_y) != sizes_of(x))
        refuse(std::string(op) + ": grad_y " + shape_of(grad_y) + " for x " + shape_of(x));

    Matrix grad = rows_of(grad_y);
    Tensor kept[] = {torch::stable::contiguous(chosen), torch::stable::contiguous(weights),
                     torch::stable::contiguous(gate), torch::stable::contiguous(up)};
    Tensor grad_x = make_if(need_x, x), grad_logits = make_if(need_logits, logits);
    Tensor grad_gate = make_if(need_gate, w_gate), grad_up = make_if(need_up, w_up);
    Tensor grad_down = make_if(need_down, w_down);

    problem.grad_y = grad.data();
    problem.ld_grad_y = grad.ld;
    problem.chosen = static_cast<const int32_t *>(kept[0].const_data_ptr());
    problem.weights = static_cast<const float *>(kept[1].const_data_ptr());
    problem.gate = kept[2].const_data_ptr();
    problem.up = kept[3].const_data_ptr();
    problem.grad_x = need_x ? grad_x.mutable_data_ptr() : nullptr;
    problem.grad_logits = need_logits ? grad_logits.mutable_data_ptr() : nullptr;
    problem.grad_w_gate = need_gate ? grad_gate.mutable_data_ptr() : nullptr;
    problem.grad_w_up = need_up ? grad_up.mutable_data_ptr() : nullptr;
    problem.grad_w_down = need_down ? grad_down.mutable_data_ptr() : nullptr;
    problem.ld_grad_x = problem.ld_grad_w_gate = problem.ld_grad_w_up = problem.dim;
    problem.ld_grad_logits = problem.experts;
    problem.ld_grad_w_down = problem.hidden;
    problem.stride_grad_w_gate = problem.stride_grad_w_up = problem.stride_grad_w_down =
        problem.dim * problem.hidden;
    problem.grad_dtype = problem.dtype;
    run(x, problem, gpunvme_moe_backward_workspace, gpunvme_moe_backward);
    return {grad_x, grad_logits, grad_gate, grad_up, grad_down};
}

void implement(torch::stable::detail::StableLibrary &m)
{
    m.impl("moe", TORCH_BOX(&moe));
    m.impl("moe_kept", TORCH_BOX(&moe_kept));
    m.impl("moe_backward", TORCH_BOX(&moe_backward));
}

} // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(optimized, m)
{
    m.def("moe(Tensor x, Tensor logits, Tensor w_gate, Tensor w_up, Tensor w_down, int top_k, "
          "bool renormalize=True) -> Tensor");
    m.def("moe_kept(Tensor x, Tensor logits, Tensor w_gate, Tensor w_up, Tensor w_down, int top_k, "
          "bool renormalize) -> (Tensor, Tensor, Tensor, Tensor, Tensor)");
    m.def("moe_backward(Tensor grad_y, Tensor x, Tensor logits, Tensor w_gate, Tensor w_up, "
          "Tensor w_down, Tensor chosen, Tensor weights, Tensor gate, Tensor up, int top_k, "
          "bool renormalize, bool need_x, bool need_logits, bool need_gate, bool need_up, "
          "bool need_down) -> (Tensor, Tensor, Tensor, Tensor, Tensor)");
}

GPUNVME_TORCH_KERNELS(implement)
