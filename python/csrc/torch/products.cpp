/* SPDX-License-Identifier: BSD-3-Clause
 *
 * torch.ops.optimized: matrix multiplication and the linear layer.
 *
 * Only what has to be C++ is here: gradients, fake implementations and autocast are in Python
 * (gpunvme/torch).
 */
#include "call.h"

#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace
{

using namespace gpunvme_torch;

/* a (…, m, k) times b (k, n), or a (batch, m, k) times b (batch, k, n). */
Tensor matmul(Tensor a, Tensor b)
{
    int32_t dtype = common_dtype("matmul", {&a, &b});
    int64_t dim = a.dim();
    bool batched = b.dim() == 3;

    if (dim < 2 || (batched ? dim != 3 || a.size(0) != b.size(0) : b.dim() != 2) ||
        a.size(dim - 1) != b.size(b.dim() - 2))
        refuse("matmul: " + shape_of(a) + " by " + shape_of(b) +
               ": it takes (…, m, k) by (k, n), or (batch, m, k) by (batch, k, n)");

    Matrix left = batched ? matrix(a, true) : rows_of(a, true);
    Matrix right = matrix(b, true);
    std::vector<int64_t> shape = sizes_of(a);
    shape.back() = right.columns;
    Tensor c = make(a, shape);
    struct gpunvme_matmul problem = {};

    problem.m = left.rows;
    problem.n = right.columns;
    problem.k = left.columns;
    problem.batch = batched ? a.size(0) : 1;
    problem.a = left.data();
    problem.b = right.data();
    problem.c = c.mutable_data_ptr();
    problem.lda = left.ld;
    problem.ldb = right.ld;
    problem.ldc = right.columns;
    if (batched) {
        problem.stride_a = left.tensor.stride(0);
        problem.stride_b = right.tensor.stride(0);
        problem.stride_c = left.rows * right.columns;
    }
    problem.alpha = 1;
    problem.transpose_a = left.transposed;
    problem.transpose_b = right.transposed;
    problem.dtype = problem.out_dtype = dtype;
    run(a, problem, gpunvme_matmul_workspace, gpunvme_matmul);
    return c;
}

/* act(x weight^T + bias), and before the activation if `preact` is not NULL. */
Tensor forward(const char *op, const Tensor &x, const Tensor &weight,
               const std::optional<Tensor> &bias, int64_t activation, Tensor *preact)
{
    int32_t dtype = common_dtype(op, {&x, &weight, pointer(bias)});

    if (x.dim() < 1 || weight.dim() != 2 || x.size(x.dim() - 1) != weight.size(1) ||
        (bias && (bias->dim() != 1 || bias->size(0) != weight.size(0))))
        refuse(std::string(op) + ": x " + shape_of(x) + ", weight " + shape_of(weight) +
               (bias ? ", bias " + shape_of(*bias) : "") +
               ": it takes x (…, in), weight (out, in) and bias (out)");

    Matrix rows = rows_of(x), matrix_w = matrix(weight, false);
    std::optional<Tensor> added = contiguous(bias);
    std::vector<int64_t> shape = sizes_of(x);
    shape.back() = matrix_w.rows;
    Tensor y = make(x, shape);
    struct gpunvme_linear problem = {};

    problem.rows = rows.rows;
    problem.in = rows.columns;
    problem.out = matrix_w.rows;
    problem.x = rows.data();
    problem.weight = matrix_w.data();
    problem.bias = data_of(added);
    problem.y = y.mutable_data_ptr();
    problem.ldx = rows.ld;
    problem.ldw = matrix_w.ld;
    problem.ldy = problem.ld_preact = matrix_w.rows;
    problem.activation = static_cast<int32_t>(activation);
    problem.dtype = dtype;
    if (preact) {
        *preact = make(x, shape);
        problem.preact = preact->mutable_data_ptr();
    }
    run(x, problem, gpunvme_linear_forward_workspace, gpunvme_linear_forward);
    return y;
}

Tensor linear(Tensor x, Tensor weight, std::optional<Tensor> bias)
{
    return forward("linear", x, weight, bias, GPUNVME_OPS_ACT_NONE, nullptr);
}

Tensor linear_gelu(Tensor x, Tensor weight, std::optional<Tensor> bias, bool tanh)
{
    return forward("linear_gelu", x, weight, bias,
                   tanh ? GPUNVME_OPS_ACT_GELU_TANH : GPUNVME_OPS_ACT_GELU, nullptr);
}

std::tuple<Tensor, Tensor> linear_gelu_preact(Tensor x, Tensor weight, std::optional<Tensor> bias,
                                              bool tanh)
{
    Tensor preact;
    Tensor y = forward("linear_gelu", x, weight, bias,
                       tanh ? GPUNVME_OPS_ACT_GELU_TANH : GPUNVME_OPS_ACT_GELU, &preact);

    return {y, preact};
}

/* The gradients of linear(), or with a preact of linear_gelu(); those not needed have no elements.
 */
std::tuple<Tensor, Tensor, Tensor> linear_backward(Tensor grad_y, Tensor x, Tensor weight,
                                                   std::optional<Tensor> preact, bool tanh,
                                                   bool need_x, bool need_weight, bool need_bias)
{
    int32_t dtype = common_dtype("linear_backward", {&grad_y, &x, &weight, pointer(preact)});

    if (grad_y.dim() < 1 || x.dim() != grad_y.dim() || weight.dim() != 2 ||
        x.size(x.dim() - 1) != weight.size(1) || grad_y.size(grad_y.dim() - 1) != weight.size(0) ||
        (preact && preact->numel() != grad_y.numel()))
        refuse("linear_backward: grad_y " + shape_of(grad_y) + ", x " + shape_of(x) + ", weight " +
               shape_of(weight));

    Matrix dy = rows_of(grad_y), rows = rows_of(x), matrix_w = matrix(weight, false);
    std::optional<Matrix> z;
    if (preact)
        z = rows_of(*preact);
    if (dy.rows != rows.rows)
        refuse("linear_backward: grad_y " + shape_of(grad_y) + ", x " + shape_of(x));
    Tensor dx = make_if(need_x, x), dw = make_if(need_weight, weight);
    Tensor db = make(x, {need_bias ? dy.columns : 0});
    struct gpunvme_linear_grad problem = {};

    problem.rows = dy.rows;
    problem.in = rows.columns;
    problem.out = dy.columns;
    problem.x = rows.data();
    problem.weight = matrix_w.data();
    problem.grad_y = dy.data();
    problem.preact = z ? z->data() : nullptr;
    problem.grad_x = need_x ? dx.mutable_data_ptr() : nullptr;
    problem.grad_weight = need_weight ? dw.mutable_data_ptr() : nullptr;
    problem.grad_bias = need_bias ? db.mutable_data_ptr() : nullptr;
    problem.ldx = rows.ld;
    problem.ldw = matrix_w.ld;
    problem.ld_grad_y = dy.ld;
    problem.ld_preact = z ? z->ld : 0;
    problem.ld_grad_x = problem.ld_grad_weight = rows.columns;
    problem.activation = !preact ? GPUNVME_OPS_ACT_NONE
                         : tanh  ? GPUNVME_OPS_ACT_GELU_TANH
                                 : GPUNVME_OPS_ACT_GELU;
    problem.dtype = problem.grad_dtype = dtype;
    run(x, problem, gpunvme_linear_backward_workspace, gpunvme_linear_backward);
    return {dx, dw, db};
}

void implement(torch::stable::detail::StableLibrary &m)
{
    m.impl("matmul", TORCH_BOX(&matmul));
    m.impl("linear", TORCH_BOX(&linear));
    m.impl("linear_gelu", TORCH_BOX(&linear_gelu));
    m.impl("linear_gelu_preact", TORCH_BOX(&linear_gelu_preact));
    m.impl("linear_backward", TORCH_BOX(&linear_backward));
}

} // namespace

STABLE_TORCH_LIBRARY(optimized, m)
{
    m.def("matmul(Tensor a, Tensor b) -> Tensor");
    m.def("linear(Tensor x, Tensor weight, Tensor? bias=None) -> Tensor");
    m.def("linear_gelu(Tensor x, Tensor weight, Tensor? bias=None, bool tanh=False) -> Tensor");
    /* What gradients are made of: (y, x weight^T + bias), and linear's own. */
    m.def("linear_gelu_preact(Tensor x, Tensor weight, Tensor? bias, bool tanh) -> "
          "(Tensor, Tensor)");
    m.def("linear_backward(Tensor grad_y, Tensor x, Tensor weight, Tensor? preact, bool tanh, "
          "bool need_x, bool need_weight, bool need_bias) -> (Tensor, Tensor, Tensor)");
}

GPUNVME_TORCH_KERNELS(implement)
