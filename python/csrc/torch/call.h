/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What the operators of torch.ops.optimized share: checks of tensors, new ones, and a call of
 * libgpunvme_ops. The variant is "auto", the stream PyTorch's current one, the workspace a tensor,
 * the CPU's threads torch.get_num_threads(). Errors are as in storage.cpp.
 */
#ifndef GPUNVME_TORCH_CALL_H
#define GPUNVME_TORCH_CALL_H

#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include "device.h"
#include "gpunvme/ops.h"

namespace gpunvme_torch
{

using torch::stable::Tensor;

[[noreturn]] inline void refuse(const std::string &text)
{
    throw std::invalid_argument("optimized::" + text);
}

inline void check(gpunvme_ops_status_t status)
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

inline std::string shape_of(const Tensor &t)
{
    std::string text = "(";

    for (int64_t i = 0; i < t.dim(); i++)
        text += (i ? ", " : "") + std::to_string(t.size(i));
    return text + ")";
}

inline int32_t torch_dtype(const Tensor &t)
{
    int32_t dtype;

    TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(t.get(), &dtype));
    return dtype;
}

inline int32_t device_type(const Tensor &t)
{
    int32_t type;

    TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(t.get(), &type));
    return type;
}

/* NULL if there is no tensor. */
inline const Tensor *pointer(const std::optional<Tensor> &t)
{
    return t ? &*t : nullptr;
}

inline const void *data_of(const std::optional<Tensor> &t)
{
    return t ? t->const_data_ptr() : nullptr;
}

/* In place if it is contiguous, else a copy. */
inline std::optional<Tensor> contiguous(const std::optional<Tensor> &t)
{
    return !t || t->is_contiguous() ? t : torch::stable::contiguous(*t);
}

inline std::vector<int64_t> sizes_of(const Tensor &t)
{
    return {t.sizes().begin(), t.sizes().end()};
}

/* A tensor's type: enum gpunvme_ops_dtype. */
inline int32_t dtype_of(const char *op, const Tensor &t)
{
    static const int32_t known[] = {aoti_torch_dtype_float32(), aoti_torch_dtype_float16(),
                                    aoti_torch_dtype_bfloat16()};
    int32_t dtype = torch_dtype(t);

    for (int32_t i = 0; i < GPUNVME_OPS_NDTYPES; i++)
        if (known[i] == dtype)
            return i;
    refuse(std::string(op) + ": takes float32, float16 and bfloat16");
}

/* Refuses operands that are on different devices, or that lack some of their memory. */
inline void check_memory(const char *op, std::initializer_list<const Tensor *> operands)
{
    const Tensor &first = **operands.begin();

    for (const Tensor *t : operands) {
        if (!t)
            continue;
        if (device_type(*t) != device_type(first) ||
            t->get_device_index() != first.get_device_index())
            refuse(std::string(op) + ": operands on different devices");
        if (std::string why = beyond_storage(*t); !why.empty())
            refuse(std::string(op) + ": " + why);
    }
}

/* The type of all operands, which have the same and pass check_memory(). */
inline int32_t common_dtype(const char *op, std::initializer_list<const Tensor *> operands)
{
    int32_t dtype = torch_dtype(**operands.begin());

    for (const Tensor *t : operands)
        if (t && torch_dtype(*t) != dtype)
            refuse(std::string(op) + ": operands of different types");
    check_memory(op, operands);
    return dtype_of(op, **operands.begin());
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
inline Matrix matrix(const Tensor &t, bool may_be_transposed)
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
inline Matrix rows_of(const Tensor &t, bool may_be_transposed = false)
{
    int64_t dim = t.dim(), rows = 1;

    if (dim == 2)
        return matrix(t, may_be_transposed);
    for (int64_t i = 0; i + 1 < dim; i++)
        rows *= t.size(i);
    return matrix(torch::stable::reshape(t, {rows, t.size(dim - 1)}), may_be_transposed);
}

/* An uninitialised tensor on the device of another. */
inline Tensor make(const Tensor &like, const std::vector<int64_t> &shape, int32_t dtype)
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

inline Tensor make(const Tensor &like, const std::vector<int64_t> &shape)
{
    return make(like, shape, torch_dtype(like));
}

/* A result like another tensor, or one without elements if nobody needs it. */
inline Tensor make_if(bool is_needed, const Tensor &like)
{
    return make(like, is_needed ? sizes_of(like) : std::vector<int64_t>{0});
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
        exec.stream = current_stream(like.get_device_index());
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

} // namespace gpunvme_torch

/* Registers kernels for both devices by a function of a library. */
#define GPUNVME_TORCH_KERNELS(implement)                                                           \
    STABLE_TORCH_LIBRARY_IMPL(optimized, CPU, m)                                                   \
    {                                                                                              \
        implement(m);                                                                              \
    }                                                                                              \
    STABLE_TORCH_LIBRARY_IMPL(optimized, CUDA, m)                                                  \
    {                                                                                              \
        implement(m);                                                                              \
    }

#endif
