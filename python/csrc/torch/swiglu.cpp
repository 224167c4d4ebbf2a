/* SPDX-License-Identifier: BSD-3-Clause
 *
 * torch.ops.optimized: SwiGLU, forward and backward. Gradients and fake implementations are in
 * Python (gpunvme/torch/_swiglu.py).
 */
#include "call.h"

#include <string>
#include <tuple>

namespace
{

using namespace gpunvme_torch;

void check_shapes(const char *op, const Tensor &gate, const Tensor &other)
{
    if (gate.dim() < 1 || sizes_of(other) != sizes_of(gate))
        refuse(std::string(op) + ": " + shape_of(gate) + " and " + shape_of(other) +
               ": it takes tensors of one shape, with a dimension at least");
}

Tensor swiglu(Tensor gate, Tensor up)
{
    int32_t dtype = common_dtype("swiglu", {&gate, &up});

    check_shapes("swiglu", gate, up);
    Matrix left = rows_of(gate), right = rows_of(up);
    Tensor y = make(gate, sizes_of(gate));
    struct gpunvme_swiglu problem = {};

    problem.rows = left.rows;
    problem.cols = problem.ldy = left.columns;
    problem.gate = left.data();
    problem.up = right.data();
    problem.y = y.mutable_data_ptr();
    problem.ld_gate = left.ld;
    problem.ld_up = right.ld;
    problem.dtype = dtype;
    run(gate, problem, gpunvme_swiglu_forward_workspace, gpunvme_swiglu_forward);
    return y;
}

std::tuple<Tensor, Tensor> swiglu_backward(Tensor grad_y, Tensor gate, Tensor up)
{
    int32_t dtype = common_dtype("swiglu_backward", {&grad_y, &gate, &up});

    check_shapes("swiglu_backward", gate, up);
    check_shapes("swiglu_backward", gate, grad_y);
    Matrix grad = rows_of(grad_y), left = rows_of(gate), right = rows_of(up);
    Tensor grad_gate = make(gate, sizes_of(gate)), grad_up = make(gate, sizes_of(gate));
    struct gpunvme_swiglu_grad problem = {};

    problem.rows = left.rows;
    problem.cols = problem.ld_grad_gate = problem.ld_grad_up = left.columns;
    problem.grad_y = grad.data();
    problem.gate = left.data();
    problem.up = right.data();
    problem.grad_gate = grad_gate.mutable_data_ptr();
    problem.grad_up = grad_up.mutable_data_ptr();
    problem.ld_grad_y = grad.ld;
    problem.ld_gate = left.ld;
    problem.ld_up = right.ld;
    problem.dtype = dtype;
    run(gate, problem, gpunvme_swiglu_backward_workspace, gpunvme_swiglu_backward);
    return {grad_gate, grad_up};
}

void implement(torch::stable::detail::StableLibrary &m)
{
    m.impl("swiglu", TORCH_BOX(&swiglu));
    m.impl("swiglu_backward", TORCH_BOX(&swiglu_backward));
}

} // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(optimized, m)
{
    m.def("swiglu(Tensor gate, Tensor up) -> Tensor");
    m.def("swiglu_backward(Tensor grad_y, Tensor gate, Tensor up) -> (Tensor, Tensor)");
}

GPUNVME_TORCH_KERNELS(implement)
