/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What both groups of operators need of a tensor's device: CUDA's current stream.
 */
#ifndef GPUNVME_TORCH_DEVICE_H
#define GPUNVME_TORCH_DEVICE_H

#include <stdexcept>

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

} // namespace gpunvme_torch

#endif
