/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How a function of this library fails: it says what it knows, and returns the error.
 */
#ifndef BASE_FAIL_H
#define BASE_FAIL_H

#include "gpunvme/error.h"

/* Records the detail of a failure for gpunvme_err_detail() and returns `err`. */
gpunvme_err_t base_fail(gpunvme_err_t err, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The error that stands for an errno value: ENOSPC is GPUNVME_ERR_NOSPC, and so on. */
gpunvme_err_t base_err_from_errno(int error_number);

/* base_fail() with the errno's error, and its text behind the detail. */
gpunvme_err_t base_fail_errno(int error_number, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/*
 * Puts in front of this thread's detail which blocks the failure is about: "read of blocks 8 to 15
 * of namespace 1: …". `what` is the command's name. Returns `err`.
 */
gpunvme_err_t base_fail_blocks(gpunvme_err_t err, const char *what, uint64_t slba, uint64_t nlb,
                               uint32_t nsid);

/*
 * A failure that is kept while something is cleaned up, which may fail as well:
 * base_keep() before, and base_restore() after, returns the error with its own detail.
 */
struct base_failure {
    gpunvme_err_t err;
    char detail[256];
};

void base_keep(struct base_failure *failure, gpunvme_err_t err);
gpunvme_err_t base_restore(const struct base_failure *failure);

#endif
