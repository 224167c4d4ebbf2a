/* SPDX-License-Identifier: BSD-3-Clause
 *
 * torch.ops.optimized: the operators of libgpunvme_ops for tensors. The variant is "auto", the
 * stream PyTorch's current one, the workspace a tensor, the CPU's threads torch.get_num_threads().
 *
 * Only what has to be C++ is here: gradients, fake implementations and autocast are in Python
 * (gpunvme/torch). Errors are as in storage.cpp.
 */
#include "device.h"

#include <initializer_list>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include "gpunvme/ops.h"

namespace
{

using torch::stable::Tensor;

[[noreturn]] void refuse(const std::string &text)
{
    throw std::invalid_argument("optimized::" + text);
}

void check(gpunvme_ops_status_t status)
{
    if (!status)
        return;
    std::string detail = gpunvme_ops_detail();
    std::string text = detail + (detail.empty() ? "" : ": ") + gpunvme_ops_status_text(status) +
                       " (" + gpunvme_ops_status_name(status) + ")";

    if (status == GPUNVME_OPS_ERR_DEVICE || status == GPUNVME_OPS_ERR_CUDA ||
        status == GPUNVME_OPS_ERR_UNSUPPORTED)
        throw std::runtime_error(text);
    throw std::invalid_argument(text);
}

std::string shape_of(const Tensor &t)
{
    std::string text = "(";

    for (int64_t i = 0; i < t.dim(); i++)
        text += (i ? ", " : "") + std::to_string(t.size(i));
    return text + ")";
}

int32_t torch_dtype(const Tensor &t)
{
    int32_t dtype;

    TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(t.get(), &dtype));
    return dtype;
}

int32_t device_type(const Tensor &t)
{
    int32_t type;

    TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(t.get(), &type));
    return type;
}

/* The type of all operands; they have the same, are on the same device and have all their memory.
 */
int32_t common_dtype(const char *op, std::initializer_list<const Tensor *> operands)
{
    /* In the order of enum gpunvme_ops_dtype. */
    static const int32_t known[] = {aoti_torch_dtype_float32(), aoti_torch_dtype_float16(),
                                    aoti_torch_dtype_bfloat16()};
    const Tensor &first = **operands.begin();
    int32_t dtype = torch_dtype(first);

    for (const Tensor *t : operands) {
        if (!t)
            continue;
        if (torch_dtype(*t) != dtype)
            refuse(std::string(op) + ": operands of different types");
        if (device_type(*t) != device_type(first) ||
            t->get_device_index() != first.get_device_index())
            refuse(std::string(op) + ": operands on different devices");
        if (std::string why = gpunvme_torch::beyond_storage(*t); !why.empty())
            refuse(std::string(op) + ": " + why);
    }
    for (int32_t i = 0; i < GPUNVME_OPS_NDTYPES; i++)
        if (known[i] == dtype)
            return i;
    refuse(std::string(op) + ": takes float32, float16 and bfloat16");
}

/* An uninitialised tensor on the device of another. */
Tensor make(const Tensor &like, const std::vector<int64_t> &shape, int32_t dtype)
{
    std::vector<int64_t> strides(shape.size());
    AtenTensorHandle made;
    int64_t stride = 1;

    for (size_t i = shape.size(); i-- > 0;) {
        strides[i] = stride;
        stride *= shape[i] > 1 ? shape[i] : 1;
    }
    if (aoti_torch_empty_strided(static_cast<int64_t>(shape.size()), shape.data(), strides.data(),
                                 dtype, device_type(like), like.get_device_index(), &made))
        throw std::runtime_error("optimized: no memory for a tensor: PyTorch printed why");
    return Tensor(made);
}

Tensor make(const Tensor &like, const std::vector<int64_t> &shape)
{
    return make(like, shape, torch_dtype(like));
}

/* The last two dimensions of a tensor, which it holds. */
struct Matrix {
    Tensor tensor;
    int64_t rows, columns, ld;
    bool transposed; /* stored as columns x rows */

    const void *data() const
    {
        return tensor.const_data_ptr();
    }
};

/* In place if the library can read it so, else a copy. */
Matrix matrix(const Tensor &t, bool may_be_transposed)
{
    int64_t dim = t.dim(), rows = t.size(dim - 2), columns = t.size(dim - 1);
    int64_t down = t.stride(dim - 2), across = t.stride(dim - 1);

    if ((across == 1 || columns <= 1) && (down >= columns || rows <= 1))
        return {t, rows, columns, rows <= 1 ? columns : down, false};
    if (may_be_transposed && (down == 1 || rows <= 1) && (across >= rows || columns <= 1))
        return {t, rows, columns, columns <= 1 ? rows : across, true};
    return {torch::stable::contiguous(t), rows, columns, columns, false};
}

/* All dimensions but the last as one: rows. */
Matrix rows_of(const Tensor &t, bool may_be_transposed = false)
{
    int64_t dim = t.dim(), rows = 1;

    if (dim == 2)
        return matrix(t, may_be_transposed);
    for (int64_t i = 0; i + 1 < dim; i++)
        rows *= t.size(i);
    return matrix(torch::stable::reshape(t, {rows, t.size(dim - 1)}), may_be_transposed);
}

/* Runs an operator on the device of `like`. */
template <class Problem>
void run(const Tensor &like, const Problem &problem,
         gpunvme_ops_status_t (*workspace_of)(const Problem *, const struct gpunvme_ops_exec *,
                                              size_t *),
         gpunvme_ops_status_t (*op)(const Problem *, const struct gpunvme_ops_exec *))
{
    struct gpunvme_ops_exec exec = {};
    std::optional<torch::stable::accelerator::DeviceGuard> guard;
    std::optional<Tensor> workspace;
    size_t nbytes = 0;

    if (like.is_cuda()) {
        guard.emplace(like.get_device_index());
        exec.device = GPUNVME_OPS_CUDA;
        exec.stream = gpunvme_torch::current_stream(like.get_device_index());
    } else {
        exec.threads = static_cast<int32_t>(torch::stable::get_num_threads());
    }
    check(workspace_of(&problem, &exec, &nbytes));
    if (nbytes) {
        const uintptr_t align = GPUNVME_OPS_WORKSPACE_ALIGN;

        workspace = make(like, {static_cast<int64_t>(nbytes + align)}, aoti_torch_dtype_uint8());
        exec.workspace = reinterpret_cast<void *>(
            (reinterpret_cast<uintptr_t>(workspace->mutable_data_ptr()) + align - 1) / align *
            align);
        exec.workspace_nbytes = nbytes;
    }
    check(op(&problem, &exec));
}

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
    std::vector<int64_t> shape(a.sizes().begin(), a.sizes().end());
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
    int32_t dtype = common_dtype(op, {&x, &weight, bias ? &*bias : nullptr});

    if (x.dim() < 1 || weight.dim() != 2 || x.size(x.dim() - 1) != weight.size(1) ||
        (bias && (bias->dim() != 1 || bias->size(0) != weight.size(0))))
        refuse(std::string(op) + ": x " + shape_of(x) + ", weight " + shape_of(weight) +
               (bias ? ", bias " + shape_of(*bias) : "") +
               ": it takes x (…, in), weight (out, in) and bias (out)");

    Matrix rows = rows_of(x), matrix_w = matrix(weight, false);
    std::optional<Tensor> added;
    if (bias)
        added = bias->is_contiguous() ? *bias : torch::stable::contiguous(*bias);
    std::vector<int64_t> shape(x.sizes().begin(), x.sizes().end());
    shape.back() = matrix_w.rows;
    Tensor y = make(x, shape);
    struct gpunvme_linear problem = {};

    problem.rows = rows.rows;
    problem.in = rows.columns;
    problem.out = matrix_w.rows;
    problem.x = rows.data();
    problem.weight = matrix_w.data();
    problem.bias = added ? added->const_data_ptr() : nullptr;
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
    int32_t dtype =
        common_dtype("linear_backward", {&grad_y, &x, &weight, preact ? &*preact : nullptr});

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
    std::vector<int64_t> shape(x.sizes().begin(), x.sizes().end());
    Tensor dx = make(x, need_x ? shape : std::vector<int64_t>{0});
    Tensor dw = make(x, need_weight ? std::vector<int64_t>{dy.columns, rows.columns}
                                    : std::vector<int64_t>{0});
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

STABLE_TORCH_LIBRARY_IMPL(optimized, CPU, m)
{
    implement(m);
}

STABLE_TORCH_LIBRARY_IMPL(optimized, CUDA, m)
{
    implement(m);
}
