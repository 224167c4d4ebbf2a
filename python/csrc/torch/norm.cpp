/* SPDX-License-Identifier: BSD-3-Clause
 *
 * torch.ops.optimized: RMSNorm and LayerNorm over the last dimension, with a residual addition,
 * forward and backward. Gradients, fake implementations and autocast are in Python
 * (gpunvme/torch/_norm.py).
 */
#include "call.h"

#include <limits>
#include <optional>
#include <string>
#include <tuple>

namespace
{

using namespace gpunvme_torch;

/* What is normalized, and how. */
struct Norm {
    const char *op;
    Tensor x;
    std::optional<Tensor> residual, weight, bias;
    double eps;
    bool is_layer;
};

/* Results for the next layer and for the gradients; NULL: not wanted. */
struct Kept {
    Tensor *sum = nullptr, *mean = nullptr, *rstd = nullptr;
};

/* The type of weight and bias, which is that of x or float32. */
int32_t parameter_dtype(const char *op, const Tensor &x, const std::optional<Tensor> &weight,
                        const std::optional<Tensor> &bias)
{
    int64_t columns = x.size(x.dim() - 1);
    int32_t dtype = dtype_of(op, weight ? *weight : bias ? *bias : x);

    for (const Tensor *t : {pointer(weight), pointer(bias)}) {
        if (!t)
            continue;
        if (t->dim() != 1 || t->size(0) != columns)
            refuse(std::string(op) + ": weight or bias " + shape_of(*t) + " for x " + shape_of(x));
        if (dtype_of(op, *t) != dtype)
            refuse(std::string(op) + ": weight and bias of different types");
    }
    return dtype;
}

std::vector<int64_t> without_columns(const Tensor &x)
{
    std::vector<int64_t> shape = sizes_of(x);

    shape.pop_back();
    return shape;
}

Tensor forward(const Norm &norm, const Kept &kept)
{
    const char *op = norm.op;
    const Tensor &x = norm.x;
    int32_t dtype = common_dtype(op, {&x, pointer(norm.residual)});

    check_memory(op, {&x, pointer(norm.weight), pointer(norm.bias)});
    if (x.dim() < 1 || (norm.residual && sizes_of(*norm.residual) != sizes_of(x)))
        refuse(std::string(op) + ": x " + shape_of(x) +
               (norm.residual ? ", residual " + shape_of(*norm.residual) : "") +
               ": it takes tensors of one shape, with a dimension at least");

    Matrix rows = rows_of(x);
    std::optional<Matrix> residual;
    if (norm.residual)
        residual = rows_of(*norm.residual);
    std::optional<Tensor> weight = contiguous(norm.weight), bias = contiguous(norm.bias);
    Tensor y = make(x, sizes_of(x));
    struct gpunvme_norm problem = {};

    problem.rows = rows.rows;
    problem.cols = problem.ldy = rows.columns;
    problem.x = rows.data();
    problem.ldx = rows.ld;
    if (residual) {
        problem.residual = residual->data();
        problem.ld_residual = residual->ld;
    }
    problem.weight = data_of(weight);
    problem.bias = data_of(bias);
    problem.y = y.mutable_data_ptr();
    if (kept.sum) {
        *kept.sum = make(x, sizes_of(x));
        problem.sum = kept.sum->mutable_data_ptr();
        problem.ld_sum = rows.columns;
    }
    if (kept.mean) {
        *kept.mean = make(x, without_columns(x), aoti_torch_dtype_float32());
        problem.mean = static_cast<float *>(kept.mean->mutable_data_ptr());
    }
    if (kept.rstd) {
        *kept.rstd = make(x, without_columns(x), aoti_torch_dtype_float32());
        problem.rstd = static_cast<float *>(kept.rstd->mutable_data_ptr());
    }
    problem.eps = static_cast<float>(norm.eps);
    problem.kind = norm.is_layer ? GPUNVME_NORM_LAYER : GPUNVME_NORM_RMS;
    problem.dtype = dtype;
    problem.weight_dtype = parameter_dtype(op, x, norm.weight, norm.bias);
    run(x, problem, gpunvme_norm_forward_workspace, gpunvme_norm_forward);
    return y;
}

/* PyTorch's default for RMSNorm, which it takes for 16-bit types as well. */
double or_default(std::optional<double> eps)
{
    return eps.value_or(std::numeric_limits<float>::epsilon());
}

Tensor rms_norm(Tensor x, std::optional<Tensor> weight, std::optional<double> eps)
{
    return forward({"rms_norm", x, {}, weight, {}, or_default(eps), false}, {});
}

Tensor layer_norm(Tensor x, std::optional<Tensor> weight, std::optional<Tensor> bias, double eps)
{
    return forward({"layer_norm", x, {}, weight, bias, eps, true}, {});
}

std::tuple<Tensor, Tensor> add_rms_norm(Tensor x, Tensor residual, std::optional<Tensor> weight,
                                        std::optional<double> eps)
{
    Tensor sum;
    Tensor y = forward({"add_rms_norm", x, residual, weight, {}, or_default(eps), false}, {&sum});

    return {y, sum};
}

std::tuple<Tensor, Tensor> add_layer_norm(Tensor x, Tensor residual, std::optional<Tensor> weight,
                                          std::optional<Tensor> bias, double eps)
{
    Tensor sum;
    Tensor y = forward({"add_layer_norm", x, residual, weight, bias, eps, true}, {&sum});

    return {y, sum};
}

/* Any of them with what the gradients need. Without a residual the sum has no elements, and without
 * `layer` the mean. */
std::tuple<Tensor, Tensor, Tensor, Tensor> norm_statistics(Tensor x, std::optional<Tensor> residual,
                                                           std::optional<Tensor> weight,
                                                           std::optional<Tensor> bias,
                                                           std::optional<double> eps, bool layer)
{
    Tensor sum, mean, rstd;
    Tensor y = forward({"norm", x, residual, weight, bias, or_default(eps), layer},
                       {residual ? &sum : nullptr, layer ? &mean : nullptr, &rstd});

    if (!residual)
        sum = make(x, {0});
    if (!layer)
        mean = make(x, {0}, aoti_torch_dtype_float32());
    return {y, sum, mean, rstd};
}

/* A statistic of the rows, as norm_statistics() made it. */
const float *statistic(const Tensor &t, const Tensor &x)
{
    if (torch_dtype(t) != aoti_torch_dtype_float32() || sizes_of(t) != without_columns(x) ||
        !t.is_contiguous())
        refuse("norm_backward: mean or rstd " + shape_of(t) + " is not norm_statistics()'s of x " +
               shape_of(x));
    return static_cast<const float *>(t.const_data_ptr());
}

/* `x` is what was normalized; it is LayerNorm if there is a mean. Gradients that nobody needs have
 * no elements. */
std::tuple<Tensor, Tensor, Tensor> norm_backward(Tensor grad_y, std::optional<Tensor> grad_sum,
                                                 Tensor x, std::optional<Tensor> weight,
                                                 std::optional<Tensor> mean, Tensor rstd,
                                                 std::optional<Tensor> bias, bool need_x,
                                                 bool need_weight, bool need_bias)
{
    const char *op = "norm_backward";
    int32_t dtype = common_dtype(op, {&grad_y, &x, pointer(grad_sum)});

    check_memory(op, {&x, pointer(weight), pointer(bias), pointer(mean), &rstd});
    if (x.dim() < 1 || sizes_of(grad_y) != sizes_of(x) ||
        (grad_sum && sizes_of(*grad_sum) != sizes_of(x)))
        refuse(std::string(op) + ": grad_y " + shape_of(grad_y) + ", x " + shape_of(x));

    Matrix grad = rows_of(grad_y), rows = rows_of(x);
    std::optional<Matrix> other;
    if (grad_sum)
        other = rows_of(*grad_sum);
    std::optional<Tensor> scale = contiguous(weight);
    Tensor none = make(x, {0});
    Tensor dx = make_if(need_x, x);
    Tensor dw = need_weight ? make_if(true, weight.value()) : none;
    Tensor db = need_bias ? make_if(true, bias.value()) : none;
    struct gpunvme_norm_grad problem = {};

    problem.rows = rows.rows;
    problem.cols = problem.ld_grad_x = rows.columns;
    problem.grad_y = grad.data();
    problem.ld_grad_y = grad.ld;
    problem.x = rows.data();
    problem.ldx = rows.ld;
    problem.weight = data_of(scale);
    problem.mean = mean ? statistic(*mean, x) : nullptr;
    problem.rstd = statistic(rstd, x);
    if (other) {
        problem.grad_sum = other->data();
        problem.ld_grad_sum = other->ld;
    }
    problem.grad_x = need_x ? dx.mutable_data_ptr() : nullptr;
    problem.grad_weight = need_weight ? dw.mutable_data_ptr() : nullptr;
    problem.grad_bias = need_bias ? db.mutable_data_ptr() : nullptr;
    problem.kind = mean ? GPUNVME_NORM_LAYER : GPUNVME_NORM_RMS;
    problem.dtype = dtype;
    problem.weight_dtype = problem.grad_dtype = parameter_dtype(op, x, weight, bias);
    run(x, problem, gpunvme_norm_backward_workspace, gpunvme_norm_backward);
    return {dx, dw, db};
}

void implement(torch::stable::detail::StableLibrary &m)
{
    m.impl("rms_norm", TORCH_BOX(&rms_norm));
    m.impl("layer_norm", TORCH_BOX(&layer_norm));
    m.impl("add_rms_norm", TORCH_BOX(&add_rms_norm));
    m.impl("add_layer_norm", TORCH_BOX(&add_layer_norm));
    m.impl("norm_statistics", TORCH_BOX(&norm_statistics));
    m.impl("norm_backward", TORCH_BOX(&norm_backward));
}

} // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(optimized, m)
{
    m.def("rms_norm(Tensor x, Tensor? weight=None, float? eps=None) -> Tensor");
    m.def("layer_norm(Tensor x, Tensor? weight=None, Tensor? bias=None, float eps=1e-05) -> "
          "Tensor");
    /* (the norm of x + residual, x + residual). */
    m.def("add_rms_norm(Tensor x, Tensor residual, Tensor? weight=None, float? eps=None) -> "
          "(Tensor, Tensor)");
    m.def("add_layer_norm(Tensor x, Tensor residual, Tensor? weight=None, Tensor? bias=None, "
          "float eps=1e-05) -> (Tensor, Tensor)");
    /* What gradients are made of: (y, x + residual, mean, rstd), and all norms' own. */
    m.def("norm_statistics(Tensor x, Tensor? residual, Tensor? weight, Tensor? bias, float? eps, "
          "bool layer) -> (Tensor, Tensor, Tensor, Tensor)");
    m.def("norm_backward(Tensor grad_y, Tensor? grad_sum, Tensor x, Tensor? weight, Tensor? mean, "
          "Tensor rstd, Tensor? bias, bool need_x, bool need_weight, bool need_bias) -> "
          "(Tensor, Tensor, Tensor)");
}

GPUNVME_TORCH_KERNELS(implement)
