/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What both groups of operators need of a tensor's memory: whether it is all there, and CUDA's
 * current stream.
 */
#ifndef GPUNVME_TORCH_DEVICE_H
#define GPUNVME_TORCH_DEVICE_H

#include <stdexcept>
#include <string>

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/tensor.h>

/* Functions of libtorch_cuda.so; NULL in a PyTorch without CUDA, where no tensor leads to a call.
 */
extern "C" {
__attribute__((weak, visibility("default"))) AOTITorchError
aoti_torch_get_current_cuda_stream(int32_t device_index, void **stream);
__attribute__((weak, visibility("default"))) AOTITorchError
torch_cuda_stream_synchronize(void *stream, int32_t device_index);
}

namespace gpunvme_torch
{

/* PyTorch's current stream on a GPU: a cudaStream_t. */
inline void *current_stream(int32_t device_index)
{
    void *stream = nullptr;

    if (!aoti_torch_get_current_cuda_stream)
        throw std::runtime_error("this PyTorch has no CUDA");
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(device_index, &stream));
    return stream;
}

/* What is wrong with a tensor that reaches beyond its storage, which UntypedStorage.resize_() made
 * smaller; "" if nothing is. */
inline std::string beyond_storage(const torch::stable::Tensor &t)
{
    int64_t last = t.storage_offset(), room;
    int32_t dtype;

    for (int64_t i = 0; i < t.dim(); i++) {
        if (!t.size(i))
            return "";
        last += (t.size(i) - 1) * t.stride(i);
    }
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(t.get(), &dtype));
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_storage_size(t.get(), &room));
    int64_t end = (last + 1) * static_cast<int64_t>(aoti_torch_dtype_element_size(dtype));
    if (end <= room)
        return "";
    return "a tensor that ends at byte " + std::to_string(end) + " of its storage, which has " +
           std::to_string(room) + " bytes: it was resized";
}

} // namespace gpunvme_torch

#endif
