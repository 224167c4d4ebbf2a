/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The texts of statuses and of the enumerations, and the detail that each thread keeps of its last
 * failure.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "ops/core/fail.h"

static _Thread_local char detail[256];

const char *gpunvme_ops_status_name(gpunvme_ops_status_t status)
{
    switch (status) {
    case GPUNVME_OPS_OK:
        return "GPUNVME_OPS_OK";
#define X(name, value, text)                                                                       \
    case GPUNVME_OPS_ERR_##name:                                                                   \
        return "GPUNVME_OPS_ERR_" #name;
        GPUNVME_OPS_STATUSES(X)
#undef X
    default:
        return "unknown status";
    }
}

const char *gpunvme_ops_status_text(gpunvme_ops_status_t status)
{
    switch (status) {
    case GPUNVME_OPS_OK:
        return "success";
#define X(name, value, text)                                                                       \
    case GPUNVME_OPS_ERR_##name:                                                                   \
        return text;
        GPUNVME_OPS_STATUSES(X)
#undef X
    default:
        return "a status that this library does not know";
    }
}

const char *gpunvme_ops_detail(void)
{
    return detail;
}

gpunvme_ops_status_t ops_fail(gpunvme_ops_status_t status, const char *format, ...)
{
    char text[sizeof(detail)]; /* the arguments may point into detail */
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    memcpy(detail, text, sizeof(text));
    return status;
}

static const char *name_of(int number, const char *const *names, int count)
{
    return number >= 0 && number < count ? names[number] : "?";
}

const char *gpunvme_ops_dtype_name(int dtype)
{
    static const char *const names[] = {"f32", "f16", "bf16", "e4m3", "e5m2"};

    return name_of(dtype, names, GPUNVME_OPS_NALLDTYPES);
}

const char *gpunvme_ops_activation_name(int activation)
{
    static const char *const names[] = {"none", "relu", "gelu", "gelu_tanh", "silu"};

    return name_of(activation, names, GPUNVME_OPS_NACTS);
}

size_t gpunvme_ops_dtype_nbytes(int dtype)
{
    static const unsigned char sizes[GPUNVME_OPS_NALLDTYPES] = {4, 2, 2, 1, 1};

    return dtype >= 0 && dtype < GPUNVME_OPS_NALLDTYPES ? sizes[dtype] : 0;
}
