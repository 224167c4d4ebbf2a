/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The errors of cuFile (CUfileOpError of its API reference) in words of ours, each with what to do
 * about it. Error numbers begin at 5001.
 */
#include <errno.h>
#include <string.h>

#include "base/fail.h"
#include "storage/cufile/api.h"

#define IN_JSON "in /etc/cufile.json or the file that CUFILE_ENV_PATH_JSON names"
#define SEE_LOG "cufile.log says more"

/* X(number, name, error here, what to do). */
#define CUFILE_ERRORS(X)                                                                           \
    X(5001, DRIVER_NOT_INITIALIZED, UNSUPPORTED,                                                   \
      "nvidia-fs is not loaded: modprobe nvidia-fs, or allow_compat_mode: true " IN_JSON)          \
    X(5002, DRIVER_INVALID_PROPS, INVALID, "a property is invalid: check \"properties\" " IN_JSON) \
    X(5003, DRIVER_UNSUPPORTED_LIMIT, LIMIT,                                                       \
      "a size is beyond what the driver takes: ask for less, or check \"properties\" " IN_JSON)    \
    X(5004, DRIVER_VERSION_MISMATCH, UNSUPPORTED,                                                  \
      "nvidia-fs and libcufile don't fit: install both from one CUDA release")                     \
    X(5005, DRIVER_VERSION_READ_ERROR, IO,                                                         \
      "the version of nvidia-fs can't be read: check /proc/driver/nvidia-fs/version")              \
    X(5006, DRIVER_CLOSING, CLOSED, "the driver is being closed: open the store again")            \
    X(5007, PLATFORM_NOT_SUPPORTED, UNSUPPORTED,                                                   \
      "no GPUDirect Storage on this machine: allow_compat_mode: true " IN_JSON)                    \
    X(5008, IO_NOT_SUPPORTED, UNSUPPORTED,                                                         \
      "no direct path to this file system: allow_compat_mode: true " IN_JSON ", or backend=posix") \
    X(5009, DEVICE_NOT_SUPPORTED, UNSUPPORTED,                                                     \
      "this GPU has no GPUDirect Storage: allow_compat_mode: true " IN_JSON)                       \
    X(5010, NVFS_DRIVER_ERROR, IO, "nvidia-fs refused it: dmesg says why, and " SEE_LOG)           \
    X(5011, CUDA_DRIVER_ERROR, GPU, "the CUDA driver failed: look its number up as a CUresult")    \
    X(5012, CUDA_POINTER_INVALID, INVALID, "this is no pointer to GPU memory")                     \
    X(5013, CUDA_MEMORY_TYPE_INVALID, INVALID,                                                     \
      "this kind of memory can't be used: take cudaMalloc() or pinned memory, not managed memory") \
    X(5014, CUDA_POINTER_RANGE_ERROR, INVALID, "the range ends beyond the allocation")             \
    X(5015, CUDA_CONTEXT_MISMATCH, GPU,                                                            \
      "the memory belongs to another CUDA context: use the device's primary context")              \
    X(5016, INVALID_MAPPING_SIZE, LIMIT,                                                           \
      "more than may be pinned: register less, or raise max_device_pinned_mem_size_kb " IN_JSON)   \
    X(5017, INVALID_MAPPING_RANGE, INVALID, "the transfer ends beyond the registered buffer")      \
    X(5018, INVALID_FILE_TYPE, INVALID, "not a regular file or block device: name one")            \
    X(5019, INVALID_FILE_OPEN_FLAG, INVALID,                                                       \
      "the file is open with flags that cuFile can't use: open it with O_DIRECT")                  \
    X(5020, DIO_NOT_SET, UNSUPPORTED,                                                              \
      "the file is not open with O_DIRECT: use a file system that has it, or backend=posix")       \
    X(5021, EXPECTED_FILE_MODE, INVALID, "the file's mode does not allow it: open it for both")    \
    X(5022, INVALID_VALUE, INVALID, "an argument is invalid")                                      \
    X(5023, MEMORY_ALREADY_REGISTERED, INVALID,                                                    \
      "part of this buffer is registered already: register it once, or unregister it first")       \
    X(5024, MEMORY_NOT_REGISTERED, INVALID, "this buffer is not registered: register it first")    \
    X(5025, PERMISSION_DENIED, PERMISSION,                                                         \
      "the driver or the file may not be used: check the mode of the file and of /dev/nvidia-fs*") \
    X(5026, DRIVER_ALREADY_OPEN, BUSY,                                                             \
      "cuFile is open in this process already: make its settings where it is opened first")        \
    X(5027, HANDLE_NOT_REGISTERED, INVALID, "the file is not registered")                          \
    X(5028, HANDLE_ALREADY_REGISTERED, BUSY,                                                       \
      "the file descriptor is registered already: give each user one of its own")                  \
    X(5029, DEVICE_NOT_FOUND, NO_GPU, "no GPU was found: see nvidia-smi")                          \
    X(5030, INTERNAL_ERROR, IO, "an internal error of libcufile: " SEE_LOG)                        \
    X(5031, GETNEWFD_FAILED, LIMIT,                                                                \
      "no new file descriptor: raise the limit (ulimit -n), or close files")                       \
    X(5033, NVFS_SETUP_ERROR, UNSUPPORTED,                                                         \
      "the library could not start: check the CUDA driver (nvidia-smi) and "                       \
      "/dev/nvidia-fs*; " SEE_LOG)                                                                 \
    X(5034, IO_DISABLED, UNSUPPORTED, "switched off for this file system " IN_JSON)                \
    X(5035, BATCH_SUBMIT_FAILED, IO, "the batch could not be submitted: try batch=0; " SEE_LOG)    \
    X(5036, GPU_MEMORY_PINNING_FAILED, NOMEM,                                                      \
      "GPU memory could not be pinned: register less (BAR1 space: nvidia-smi -q -d MEMORY), or "   \
      "raise max_device_pinned_mem_size_kb")                                                       \
    X(5037, BATCH_FULL, LIMIT, "the batch is full: submit fewer requests at a time, or batch=0")   \
    X(5038, ASYNC_NOT_SUPPORTED, UNSUPPORTED,                                                      \
      "no transfers on streams with this driver: install a newer one, or use tokens")              \
    X(5039, INTERNAL_BATCH_SETUP_ERROR, IO, "a batch could not be set up: retry, or batch=0")      \
    X(5040, INTERNAL_BATCH_SUBMIT_ERROR, IO, "a batch could not be submitted: retry, or batch=0")  \
    X(5041, INTERNAL_BATCH_GETSTATUS_ERROR, IO, "a batch's status is unknown: retry, or batch=0")  \
    X(5042, INTERNAL_BATCH_CANCEL_ERROR, IO, "a batch could not be cancelled: retry, or batch=0")  \
    X(5043, NOMEM_ERROR, NOMEM, "libcufile is out of memory: free some, then retry")               \
    X(5044, IO_ERROR, IO, "the transfer failed: dmesg says whether the drive did; " SEE_LOG)       \
    X(5045, INTERNAL_BUF_REGISTER_ERROR, LIMIT,                                                    \
      "the buffer could not be registered, or the table is full: unregister some")                 \
    X(5046, HASH_OPR_ERROR, IO, "an internal error of libcufile's tables: " SEE_LOG)               \
    X(5047, INVALID_CONTEXT_ERROR, GPU, "no valid CUDA context: call cudaSetDevice() first")       \
    X(5048, NVFS_INTERNAL_DRIVER_ERROR, IO, "nvidia-fs failed inside: dmesg says more")            \
    X(5049, BATCH_NOCOMPAT_ERROR, UNSUPPORTED,                                                     \
      "no batches here without compat mode: batch=0, or allow_compat_mode: true " IN_JSON)         \
    X(5050, IO_MAX_ERROR, IO, "an error of libcufile without a name: " SEE_LOG)

static const struct row {
    int number;
    gpunvme_err_t err;
    const char *name;
    const char *remedy;
} rows[] = {
#define X(number, name, err, remedy) {number, GPUNVME_ERR_##err, "CU_FILE_" #name, remedy},
    CUFILE_ERRORS(X)
#undef X
};

static const struct row *row_of(int number)
{
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (rows[i].number == number)
            return &rows[i];
    return NULL;
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
