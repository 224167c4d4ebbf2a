/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The texts of errors, and the detail that each thread keeps of its last failure.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/fail.h"
#include "base/log.h"
#include "gpunvme/nvme.h"

static _Thread_local char detail[sizeof(((struct base_failure *)0)->detail)];

const char *gpunvme_err_name(gpunvme_err_t err)
{
    uint16_t status = gpunvme_err_nvme_status(err);

    if (status)
        return gpunvme_status_name(status);
    switch (err) {
    case GPUNVME_OK:
        return "GPUNVME_OK";
#define X(name, value, text)                                                                       \
    case GPUNVME_ERR_##name:                                                                       \
        return "GPUNVME_ERR_" #name;
        GPUNVME_ERRORS(X)
#undef X
    default:
        return "unknown error";
    }
}

const char *gpunvme_err_text(gpunvme_err_t err)
{
    uint16_t status = gpunvme_err_nvme_status(err);

    if (status)
        return gpunvme_status_text(status);
    switch (err) {
    case GPUNVME_OK:
        return "success";
#define X(name, value, text)                                                                       \
    case GPUNVME_ERR_##name:                                                                       \
        return text;
        GPUNVME_ERRORS(X)
#undef X
    default:
        return "an error number that this library does not know";
    }
}

const char *gpunvme_err_detail(void)
{
    return detail;
}

static void keep(const char *format, va_list args)
{
    char text[sizeof(detail)]; /* the arguments may point into detail */

    vsnprintf(text, sizeof(text), format, args);
    memcpy(detail, text, sizeof(text));
}

gpunvme_err_t base_fail(gpunvme_err_t err, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    keep(format, args);
    va_end(args);
    if (err)
        base_log(BASE_LOG_DEBUG, "%s: %s", gpunvme_err_name(err), detail);
    return err;
}

gpunvme_err_t gpunvme_err_set(gpunvme_err_t err, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    keep(format, args);
    va_end(args);
    return err;
}

gpunvme_err_t base_err_from_errno(int error_number)
{
    switch (error_number) {
    case 0:
        return GPUNVME_OK;
    case ENOMEM:
        return GPUNVME_ERR_NOMEM;
    case ENOENT:
    case ENODEV:
    case ENXIO:
        return GPUNVME_ERR_NOT_FOUND;
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
        return GPUNVME_ERR_NOSPC;
    case EROFS:
        return GPUNVME_ERR_READONLY;
    case EACCES:
    case EPERM:
        return GPUNVME_ERR_PERMISSION;
    case EBUSY:
    case EWOULDBLOCK:
        return GPUNVME_ERR_BUSY;
    case EINVAL:
    case EFAULT:
        return GPUNVME_ERR_INVALID;
    case EINTR:
        return GPUNVME_ERR_INTERRUPTED;
    default:
        return GPUNVME_ERR_IO;
    }
}

gpunvme_err_t base_fail_errno(int error_number, const char *format, ...)
{
    char text[sizeof(detail)];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    return base_fail(base_err_from_errno(error_number), "%s: %s", text, strerror(error_number));
}

gpunvme_err_t base_fail_blocks(gpunvme_err_t err, const char *what, uint64_t slba, uint64_t nlb,
                               uint32_t nsid)
{
    char blocks[64];

    if (nlb == 1)
        snprintf(blocks, sizeof(blocks), "block %" PRIu64, slba);
    else
        snprintf(blocks, sizeof(blocks), "blocks %" PRIu64 " to %" PRIu64, slba, slba + nlb - 1);
    return base_fail(err, "%s of %s of namespace %u%s%s", what, blocks, nsid, *detail ? ": " : "",
                     detail);
}

void base_keep(struct base_failure *failure, gpunvme_err_t err)
{
    failure->err = err;
    memcpy(failure->detail, detail, sizeof(failure->detail));
}

gpunvme_err_t base_restore(const struct base_failure *failure)
{
    memcpy(detail, failure->detail, sizeof(detail));
    return failure->err;
}
