/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The errors of cuFile (CUfileOpError of its API reference) in words of ours, each with what to do
 * about it.
 */
#include <errno.h>

#include "base/fail.h"
#include "storage/cufile/api.h"

#define IN_JSON "in /etc/cufile.json or the file that CUFILE_ENV_PATH_JSON names"
#define SEE_LOG "cufile.log says more"

static const struct row {
    const char *name;
    gpunvme_err_t err;
    const char *remedy;
} rows[] = {
#define ROW(name, err, remedy)                                                                     \
    {                                                                                              \
        "CU_FILE_" #name, GPUNVME_ERR_##err, remedy                                                \
    }
    ROW(DRIVER_NOT_INITIALIZED, UNSUPPORTED,
        "nvidia-fs is not loaded: modprobe nvidia-fs, or allow_compat_mode: true " IN_JSON),
    ROW(DRIVER_INVALID_PROPS, INVALID, "a property is invalid: check \"properties\" " IN_JSON),
    ROW(DRIVER_UNSUPPORTED_LIMIT, LIMIT, "a size is too large: check \"properties\" " IN_JSON),
    ROW(DRIVER_VERSION_MISMATCH, UNSUPPORTED,
        "nvidia-fs and libcufile don't fit: install both from one CUDA release"),
    ROW(DRIVER_VERSION_READ_ERROR, IO, "check /proc/driver/nvidia-fs/version"),
    ROW(DRIVER_CLOSING, CLOSED, "the driver is being closed: open the store again"),
    ROW(PLATFORM_NOT_SUPPORTED, UNSUPPORTED,
        "no GPUDirect Storage on this machine: allow_compat_mode: true " IN_JSON),
    ROW(IO_NOT_SUPPORTED, UNSUPPORTED,
        "no direct path to this file system: allow_compat_mode: true " IN_JSON
        ", or backend=posix"),
    ROW(DEVICE_NOT_SUPPORTED, UNSUPPORTED,
        "this GPU has no GPUDirect Storage: allow_compat_mode: true " IN_JSON),
    ROW(NVFS_DRIVER_ERROR, IO, "nvidia-fs refused it: dmesg says why, and " SEE_LOG),
    ROW(CUDA_DRIVER_ERROR, GPU, "the CUDA driver failed: look its number up as a CUresult"),
    ROW(CUDA_POINTER_INVALID, INVALID, "this is no pointer to GPU memory"),
    ROW(CUDA_MEMORY_TYPE_INVALID, INVALID, "take cudaMalloc() or pinned memory, not managed"),
    ROW(CUDA_POINTER_RANGE_ERROR, INVALID, "the range ends beyond the allocation"),
    ROW(CUDA_CONTEXT_MISMATCH, GPU, "use memory of the device's primary context"),
    ROW(INVALID_MAPPING_SIZE, LIMIT,
        "register less memory, or raise max_device_pinned_mem_size_kb " IN_JSON),
    ROW(INVALID_MAPPING_RANGE, INVALID, "the transfer ends beyond the registered buffer"),
    ROW(INVALID_FILE_TYPE, INVALID, "not a regular file or block device: name one"),
    ROW(INVALID_FILE_OPEN_FLAG, INVALID, "the file is open with flags that cuFile can't use"),
    ROW(DIO_NOT_SET, UNSUPPORTED, "use a file system that has O_DIRECT, or backend=posix"),
    ROW(EXPECTED_FILE_MODE, INVALID, "the file's mode does not allow it: open it for both"),
    ROW(INVALID_VALUE, INVALID, "an argument is invalid"),
    ROW(MEMORY_ALREADY_REGISTERED, INVALID, "part of this buffer is registered already"),
    ROW(MEMORY_NOT_REGISTERED, INVALID, "this buffer is not registered: register it first"),
    ROW(PERMISSION_DENIED, PERMISSION, "check the mode of the file and of /dev/nvidia-fs*"),
    ROW(DRIVER_ALREADY_OPEN, BUSY, "make cuFile's settings where this process opens it first"),
    ROW(HANDLE_NOT_REGISTERED, INVALID, "the file is not registered"),
    ROW(HANDLE_ALREADY_REGISTERED, BUSY, "give each user a file descriptor of its own"),
    ROW(DEVICE_NOT_FOUND, NO_GPU, "no GPU was found: see nvidia-smi"),
    ROW(INTERNAL_ERROR, IO, SEE_LOG),
    ROW(GETNEWFD_FAILED, LIMIT, "raise the limit of descriptors (ulimit -n), or close files"),
    {NULL, GPUNVME_ERR_IO, NULL}, /* 5032 is not in use */
    ROW(NVFS_SETUP_ERROR, UNSUPPORTED,
        "check the CUDA driver (nvidia-smi) and /dev/nvidia-fs*; " SEE_LOG),
    ROW(IO_DISABLED, UNSUPPORTED, "switched off for this file system " IN_JSON),
    ROW(BATCH_SUBMIT_FAILED, IO, SEE_LOG),
    ROW(GPU_MEMORY_PINNING_FAILED, NOMEM,
        "register less memory (BAR1 space: nvidia-smi -q -d MEMORY), or raise "
        "max_device_pinned_mem_size_kb"),
    ROW(BATCH_FULL, LIMIT, SEE_LOG),
    ROW(ASYNC_NOT_SUPPORTED, UNSUPPORTED, "install a newer driver"),
    ROW(INTERNAL_BATCH_SETUP_ERROR, IO, SEE_LOG),
    ROW(INTERNAL_BATCH_SUBMIT_ERROR, IO, SEE_LOG),
    ROW(INTERNAL_BATCH_GETSTATUS_ERROR, IO, SEE_LOG),
    ROW(INTERNAL_BATCH_CANCEL_ERROR, IO, SEE_LOG),
    ROW(NOMEM_ERROR, NOMEM, "libcufile is out of memory: free some, then retry"),
    ROW(IO_ERROR, IO, "the transfer failed: dmesg says whether the drive did; " SEE_LOG),
    ROW(INTERNAL_BUF_REGISTER_ERROR, LIMIT, "the table of buffers may be full: unregister some"),
    ROW(HASH_OPR_ERROR, IO, SEE_LOG),
    ROW(INVALID_CONTEXT_ERROR, GPU, "no valid CUDA context: call cudaSetDevice() first"),
    ROW(NVFS_INTERNAL_DRIVER_ERROR, IO, "nvidia-fs failed inside: dmesg says more"),
    ROW(BATCH_NOCOMPAT_ERROR, UNSUPPORTED, "allow_compat_mode: true " IN_JSON),
    ROW(IO_MAX_ERROR, IO, SEE_LOG),
#undef ROW
};

#define FIRST 5001

static const struct row *row_of(int number)
{
    size_t i = (size_t)(number - FIRST);

    return i < sizeof(rows) / sizeof(rows[0]) && rows[i].name ? &rows[i] : NULL;
}

const char *cufile_error_name(int number)
{
    const struct row *row = row_of(number);

    return row ? row->name : number ? "unknown cuFile error" : "CU_FILE_SUCCESS";
}

gpunvme_err_t cufile_fail(struct cufile_error error, const char *what)
{
    /* Some calls give the number with its sign changed. */
    int number = error.err < 0 ? -error.err : error.err;
    const struct row *row = row_of(number);

    if (!number)
        return GPUNVME_OK;
    if (!row)
        return base_fail(GPUNVME_ERR_IO, "%s: cuFile error %d, which this build does not know: %s",
                         what, number, SEE_LOG);
    if (row->err == GPUNVME_ERR_GPU && error.cu_err)
        return base_fail(row->err, "%s: %s (CUresult %d): %s", what, row->name, error.cu_err,
                         row->remedy);
    return base_fail(row->err, "%s: %s: %s", what, row->name, row->remedy);
}

gpunvme_err_t cufile_fail_io(ssize_t result, int error_number, const char *what)
{
    if (result >= 0)
        return GPUNVME_OK;
    if (result != -1)
        return cufile_fail((struct cufile_error){.err = (int)-result}, what);
    /* An errno of 0 would make a success of it. */
    return base_fail_errno(error_number ? error_number : EIO, "%s", what);
}
