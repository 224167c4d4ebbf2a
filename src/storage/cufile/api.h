/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The wall around libcufile, NVIDIA's library of GPUDirect Storage. It is loaded at run time, so
 * a build needs neither it nor its header: the declarations here are our own, of the ABI that the
 * "cuFile API Reference Guide" documents; layouts and numbers are those of the headers
 * of 1.14, 1.15 and 1.20 (libcufile.so.0). Knows nothing of stores.
 *
 * Behind the wall a call gives a struct cufile_error or a negative number; in front of it there
 * are gpunvme_err_t and a detail that says what to do (cufile_fail(), cufile_fail_io()).
 *
 * Environment:
 *   GPUNVME_CUFILE_LIBRARY   the library to load instead of searching for libcufile.so.0
 *   CUFILE_ENV_PATH_JSON     libcufile's own: its configuration, instead of /etc/cufile.json
 *
 * libcufile writes a file cufile.log into the current folder, unless its configuration or
 * CUFILE_LOGFILE_PATH names another place.
 */
#ifndef STORAGE_CUFILE_API_H
#define STORAGE_CUFILE_API_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "gpunvme/error.h"

#define CUFILE_LIBRARY_VARIABLE "GPUNVME_CUFILE_LIBRARY"

/* --- the ABI: CUfileError_t, CUfileDrvProps_t, … under names of ours, fields as there --- */

/* CUfileError_t, returned by value: err is 0 or one of CUFILE_ERRORS, cu_err a CUresult. */
struct cufile_error {
    int err;
    int cu_err;
};

/*
 * CUfileDrvProps_t. Libraries fill in what they know and leave the rest as it was: give zeroes.
 * There is more room than any version takes.
 */
struct cufile_props {
    struct {
        unsigned major_version; /* of the kernel module; 0.0: it is not there */
        unsigned minor_version;
        size_t poll_thresh_size; /* KiB */
        size_t max_direct_io_size;
        unsigned dstatusflags;
        unsigned dcontrolflags; /* bits: CUFILE_CONTROL_* */
    } nvfs;
    unsigned char rest[224];
};

/* CUfileDriverControlFlags, the one used here: the number of a bit. */
enum { CUFILE_CONTROL_COMPAT = 1 };

/* CUfileDescr_t */
enum { CUFILE_HANDLE_FD = 1 };
struct cufile_descr {
    int type;
    union {
        int fd;
        void *handle;
    } handle;
    const void *fs_ops;
};

/* CUFileBoolConfigParameter_t, likewise. */
enum { CUFILE_BOOL_FORCE_COMPAT = 2, CUFILE_BOOL_P2PDMA = 7 };

/* --- the library --- */

/*
 * X(field, symbol, result, arguments): the functions that every version has, and those that came
 * later. A handle is a CUfileHandle_t.
 */
#define CUFILE_REQUIRED(X)                                                                         \
    X(driver_open, cuFileDriverOpen, struct cufile_error, (void))                                  \
    X(driver_close, cuFileDriverClose, struct cufile_error, (void))                                \
    X(get_properties, cuFileDriverGetProperties, struct cufile_error,                              \
      (struct cufile_props * props))                                                               \
    X(handle_register, cuFileHandleRegister, struct cufile_error,                                  \
      (void **fh, struct cufile_descr *descr))                                                     \
    X(handle_deregister, cuFileHandleDeregister, void, (void *fh))                                 \
    X(buf_register, cuFileBufRegister, struct cufile_error,                                        \
      (const void *base, size_t nbytes, int flags))                                                \
    X(buf_deregister, cuFileBufDeregister, struct cufile_error, (const void *base))                \
    X(read, cuFileRead, ssize_t,                                                                   \
      (void *fh, void *base, size_t nbytes, off_t file_offset, off_t base_offset))                 \
    X(write, cuFileWrite, ssize_t,                                                                 \
      (void *fh, const void *base, size_t nbytes, off_t file_offset, off_t base_offset))

#define CUFILE_OPTIONAL(X)                                                                         \
    X(driver_close_v2, cuFileDriverClose_v2, struct cufile_error, (void))                          \
    X(use_count, cuFileUseCount, long, (void))                                                     \
    X(get_version, cuFileGetVersion, struct cufile_error, (int *version))                          \
    X(get_bool, cuFileGetParameterBool, struct cufile_error, (int parameter, bool *value))

struct cufile_api {
    char library[256]; /* the name under which it was found */
    unsigned version;  /* 1000 × major + 10 × minor (1.14 is 1140); 0: older than 1.8 */
    bool needs_no_gpu; /* a stand-in of the tests, which works in host memory */
#define X(field, symbol, result, arguments) result(*field) arguments;
    CUFILE_REQUIRED(X)
    CUFILE_OPTIONAL(X)
#undef X
};

/*
 * Loads a library: `path`, or the usual names when that is NULL. It stays loaded until the process
 * ends, since it has threads of its own. NOT_FOUND: there is none, or it can't be loaded;
 * UNSUPPORTED: it lacks a function that all versions have. The detail has the loader's words.
 */
gpunvme_err_t cufile_api_load(const char *path, struct cufile_api *api);

/*
 * The process's library: GPUNVME_CUFILE_LIBRARY or the usual names, loaded at the first call that
 * succeeds. Thread-safe. The result stays.
 */
gpunvme_err_t cufile_api(const struct cufile_api **api);

/* --- errors --- */

/* "CU_FILE_IO_NOT_SUPPORTED"; "unknown cuFile error" for a number that is none. */
const char *cufile_error_name(int err);

/* What a failed call means for the caller: the error, with what to do as the detail. OK for 0. */
gpunvme_err_t cufile_fail(struct cufile_error error, const char *what);

/*
 * The same for a transfer that gave `result` < 0 and errno `error_number`: -1 is the errno's error,
 * any other number a negative cuFile error.
 */
gpunvme_err_t cufile_fail_io(ssize_t result, int error_number, const char *what);

/* --- driver --- */

/*
 * What the library said after the driver was opened. compat mode: the bytes go from the file to
 * host memory by pread() and from there to the GPU, and likewise back.
 */
struct cufile_mode {
    unsigned version;    /* of the library, as in struct cufile_api */
    unsigned nvfs_major; /* of the kernel module nvidia-fs; 0.0: not loaded, or not in use */
    unsigned nvfs_minor;
    bool p2pdma;         /* the kernel's P2PDMA instead, from 1.13 on, is switched on */
    bool compat_allowed; /* a transfer without a direct path goes through host memory */
    bool compat_forced;  /* every transfer does */
};

/* No transfer can be direct. */
static inline bool cufile_mode_is_compat(const struct cufile_mode *mode)
{
    return mode->compat_forced || !(mode->nvfs_major || mode->nvfs_minor || mode->p2pdma);
}

/*
 * Why it can't be said that transfers are direct; NULL: all that succeed are. cuFile does not tell
 * it transfer by transfer, so with compat mode allowed it can't be said. Static.
 */
const char *cufile_mode_why(const struct cufile_mode *mode);

/*
 * One line: "libcufile 1.14, compat mode: nvidia-fs is not loaded". Writes at most `capacity` bytes
 * and returns `text`; CUFILE_MODE_TEXT is enough.
 */
#define CUFILE_MODE_TEXT 192
char *cufile_mode_text(const struct cufile_mode *mode, char *text, size_t capacity);

/*
 * Opens the driver for one more user, as the library's configuration has it. NO_GPU without a CUDA
 * driver; GPU where a GPU gives no context; UNSUPPORTED where cuFileDriverOpen() would hang.
 * Thread-safe.
 */
gpunvme_err_t cufile_driver_acquire(const struct cufile_api *api, struct cufile_mode *mode);

/*
 * Releases it. With the last user the driver is closed, unless someone else in this process had
 * opened it before us. All handles and buffers must have been deregistered.
 */
gpunvme_err_t cufile_driver_release(const struct cufile_api *api);

/* --- buffers.c: registered memory --- */

/* The GPU whose memory is at `ptr`, -1: none (GPU memory is host memory). */
int cufile_device_of(const void *ptr);

/*
 * Registers GPU memory with cuFile, which knows each buffer once in a process: a
 * range that lies in one that is registered is counted there. `*out` is for forget.
 */
gpunvme_err_t cufile_buffer_register(const struct cufile_api *api, void *base, size_t nbytes,
                                     void **out);
void cufile_buffer_forget(const struct cufile_api *api, void *buffer);

/* Where cuFile finds memory: by the base of the registered buffer that it lies in, or by itself. */
struct cufile_place {
    uint8_t *base;
    off_t offset;
    size_t nbytes; /* so much, up to where the buffer ends, or another one begins */
};
struct cufile_place cufile_buffer_place(uint8_t *ptr, size_t nbytes);

#endif
