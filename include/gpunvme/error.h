/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Errors are values. Every function that can fail returns a gpunvme_err_t: 0 is success, a negative
 * number is an error. Two families share the negative numbers:
 *
 *   -1 … -999             errors of this library, the GPUNVME_ERR_* below
 *   -0x8000 - status      an NVMe status from the controller; gpunvme_err_nvme_status() extracts it
 */
#ifndef GPUNVME_ERROR_H
#define GPUNVME_ERROR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef int gpunvme_err_t;

/* X(name, value, text): the text says what happened and what to do about it. */
#define GPUNVME_ERRORS(X)                                                                          \
    X(INVALID, -1, "invalid argument: see the detail for which one")                               \
    X(NOMEM, -2, "out of memory: free some, or ask for less")                                      \
    X(RANGE, -3, "beyond the end of the store, file or namespace: check offset and length")        \
    X(ALIGN, -4, "misaligned address, offset or length: align it as the detail says")              \
    X(NOT_FOUND, -5, "no such file or device: check the name")                                     \
    X(NO_NAMESPACE, -6, "no such namespace: 'gpunvme identify' lists the active ones")             \
    X(FORMAT, -7, "the namespace's format is not supported: format it without metadata")           \
    X(UNSUPPORTED, -8, "not supported here: see the detail for what is missing")                   \
    X(BUSY, -9, "in use: see the detail for what uses it")                                         \
    X(AGAIN, -10, "the queue is full: wait for a token in flight, then submit again")              \
    X(TIMEOUT, -11, "the deadline passed: the controller did not answer in time")                  \
    X(ABORTED, -12, "ended by a controller reset: submit it again")                                \
    X(REMOVED, -13, "the controller is gone: reopen it when it is back")                           \
    X(FATAL, -14, "the controller reports a fatal status (CSTS.CFS): reset it")                    \
    X(IO, -15, "the operating system reported an I/O error: see the detail")                       \
    X(NOSPC, -16, "no space left on the file system: free some, then retry")                       \
    X(READONLY, -17, "read-only: open it for writing, or write elsewhere")                         \
    X(IMAGE_SIZE, -18,                                                                             \
      "the image file does not have the size asked for: leave size= out, or "                      \
      "name another image")                                                                        \
    X(URI, -19, "malformed URI: see the detail")                                                   \
    X(URI_PARAM, -20, "unknown URI parameter: see the detail for the nearest one")                 \
    X(STALE, -21, "this token has ended already: a token is waited for once")                      \
    X(INTERRUPTED, -22, "interrupted by a signal")                                                 \
    X(NO_GPU, -23, "no usable GPU: see 'gpunvme info'")                                            \
    X(GPU, -24, "CUDA reported an error: see the detail")                                          \
    X(PROTOCOL, -25, "the controller broke the NVMe specification: see the detail")                \
    X(PERMISSION, -26, "permission denied: check the file's owner and mode")                       \
    X(VERIFY, -27, "the bytes read differ from the bytes written: do not trust this path")         \
    X(CLOSED, -28, "no longer open: open it again, or wait until its controller has been reset")   \
    X(LIMIT, -29, "a limit of the controller or of this build is exceeded: see the detail")        \
    X(CANCELED, -30, "canceled before all of it was done")                                         \
    X(EXISTS, -31, "the file is there already: name another, or open it without EXCL")

enum gpunvme_error_code {
    GPUNVME_OK = 0,
#define X(name, value, text) GPUNVME_ERR_##name = value,
    GPUNVME_ERRORS(X)
#undef X
};

/* The error that carries an NVMe status: status is CQE status >> 1, 15 bits, not 0. */
#define GPUNVME_ERR_NVME(status) (-0x8000 - (int)((status)&0x7fff))

/* The NVMe status (15 bits, CQE status >> 1) that `err` carries, 0 if it carries none. */
static inline uint16_t gpunvme_err_nvme_status(gpunvme_err_t err)
{
    return err <= -0x8000 && err > -0x10000 ? (uint16_t)(-err - 0x8000) : 0;
}

/* The name of an error, "GPUNVME_ERR_TIMEOUT" or "GPUNVME_SC_LBA_RANGE"; static, never NULL. */
const char *gpunvme_err_name(gpunvme_err_t err);

/* What happened and what to do; static, never NULL. For an NVMe status its text. */
const char *gpunvme_err_text(gpunvme_err_t err);

/*
 * Details of this thread's last failing call: "image /x: 4 GiB, asked for 8 GiB". Empty if nothing
 * more is known. Valid until this thread's next failing call. A GPUNVME_ERR_AGAIN from a submission
 * or a test does not change it.
 */
const char *gpunvme_err_detail(void);

/*
 * For code built on this library: sets this thread's gpunvme_err_detail() by a printf() format and
 * returns `err`.
 */
#ifdef __GNUC__
__attribute__((format(printf, 2, 3)))
#endif
gpunvme_err_t
gpunvme_err_set(gpunvme_err_t err, const char *format, ...);

#ifdef __cplusplus
}
#endif
#endif
