/* SPDX-License-Identifier: BSD-3-Clause
 *
 * torch.ops.nvme_ops: tensors from and to stores. Each operator returns when all bytes are there,
 * so its error is the caller's: an operator that returned earlier would have nowhere to report one.
 * A tensor on a GPU is used behind the work that is on its device's current stream at the call.
 *
 * A wrong argument is std::invalid_argument, which Python sees as ValueError; anything else that
 * goes wrong is std::runtime_error, RuntimeError there.
 */
#include "device.h"

#include <cstring>
#include <optional>
#include <string>

#include <torch/csrc/stable/library.h>

#include "gpunvme/memory.h"
#include "gpunvme/onecall.h"

namespace
{

using torch::stable::Tensor;

/* A `str` argument. Not std::string: PyTorch 2.11 leaks one for each that it converts. */
class Text
{
  public:
    explicit Text(StringHandle handle) : handle_(handle)
    {
        TORCH_ERROR_CODE_CHECK(torch_string_c_str(handle, &text_));
        TORCH_ERROR_CODE_CHECK(torch_string_length(handle, &length_));
    }
    ~Text()
    {
        torch_delete_string(handle_);
    }
    Text(const Text &) = delete;
    Text &operator=(const Text &) = delete;
    const char *get() const
    {
        if (strlen(text_) != length_)
            throw std::invalid_argument("nvme_ops: a URI with a zero byte");
        return text_;
    }

  private:
    StringHandle handle_;
    const char *text_ = nullptr;
    size_t length_ = 0;
};

bool is_about_arguments(gpunvme_err_t err)
{
    switch (err) {
    case GPUNVME_ERR_INVALID:
    case GPUNVME_ERR_RANGE:
    case GPUNVME_ERR_ALIGN:
    case GPUNVME_ERR_URI:
    case GPUNVME_ERR_URI_PARAM:
        return true;
    default:
        return false;
    }
}

[[noreturn]] void fail(gpunvme_err_t err)
{
    std::string detail = gpunvme_err_detail();
    std::string text = detail + (detail.empty() ? "" : ": ") + gpunvme_err_text(err) + " (" +
                       gpunvme_err_name(err) + ")";

    if (is_about_arguments(err))
        throw std::invalid_argument(text);
    throw std::runtime_error(text);
}

struct Memory {
    size_t nbytes;
    enum gpunvme_mem mem;
};

Memory memory_of(const Tensor &t)
{
    int32_t dtype;

    if (!t.is_contiguous())
        throw std::invalid_argument(
            "nvme_ops: the tensor is not contiguous: use one that is, .contiguous() makes one");
    if (std::string why = gpunvme_torch::beyond_storage(t); !why.empty())
        throw std::invalid_argument("nvme_ops: " + why);
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(t.get(), &dtype));
    return {static_cast<size_t>(t.numel()) * aoti_torch_dtype_element_size(dtype),
            t.is_cuda() ? GPUNVME_MEM_GPU : GPUNVME_MEM_HOST};
}

/* Waits for what the current stream does with the tensor. CUDA's errors end here, too. */
void wait_for_stream(const Tensor &t)
{
    int32_t device = t.get_device_index();

    if (torch_cuda_stream_synchronize(gpunvme_torch::current_stream(device), device))
        throw std::runtime_error("nvme_ops: CUDA failed before the transfer: PyTorch printed why");
}

/* Raises what a transfer ended with. */
void end(gpunvme_err_t err, const Tensor &t)
{
    if (!err)
        return;
    /* It may still be in flight, in a store that stays open: the memory is never freed. */
    if (err == GPUNVME_ERR_TIMEOUT)
        new Tensor(t);
    fail(err);
}

uint64_t checked(int64_t offset)
{
    if (offset < 0)
        throw std::invalid_argument("nvme_ops: offset " + std::to_string(offset) + " is negative");
    return static_cast<uint64_t>(offset);
}

void transfer(bool is_write, const Tensor &t, const Text &uri, int64_t offset)
{
    Memory memory = memory_of(t);
    std::optional<torch::stable::accelerator::DeviceGuard> guard;

    if (memory.mem == GPUNVME_MEM_GPU) {
        if (gpunvme_mem_gpu_is_host())
            throw std::runtime_error(std::string("nvme_ops: gpunvme has no GPU here: ") +
                                     gpunvme_mem_gpu_why_not());
        guard.emplace(t.get_device_index());
        wait_for_stream(t);
    }
    end(is_write ? gpunvme_file_write(uri.get(), checked(offset), t.const_data_ptr(), memory.mem,
                                      memory.nbytes, nullptr)
                 : gpunvme_file_read(uri.get(), checked(offset), t.mutable_data_ptr(), memory.mem,
                                     memory.nbytes, nullptr),
        t);
}

void read_into_tensor(Tensor t, StringHandle uri, int64_t offset)
{
    transfer(false, t, Text(uri), offset);
}

void write_tensor(Tensor t, StringHandle uri, int64_t offset)
{
    transfer(true, t, Text(uri), offset);
}

void implement(torch::stable::detail::StableLibrary &m)
{
    m.impl("read_into_tensor", TORCH_BOX(&read_into_tensor));
    m.impl("write_tensor", TORCH_BOX(&write_tensor));
}

} // namespace

STABLE_TORCH_LIBRARY(nvme_ops, m)
{
    /* Its kernel is in Python (gpunvme/torch), where errors of an allocation keep their type. */
    m.def("read_tensor(str uri, int offset, int[] shape, ScalarType dtype, Device device) -> "
          "Tensor");
    m.def("read_into_tensor(Tensor(a!) t, str uri, int offset) -> ()");
    m.def("write_tensor(Tensor t, str uri, int offset) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(nvme_ops, CPU, m)
{
    implement(m);
}

STABLE_TORCH_LIBRARY_IMPL(nvme_ops, CUDA, m)
{
    implement(m);
}
