/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How an operator fails: it says what it knows, and returns the status.
 */
#ifndef OPS_CORE_FAIL_H
#define OPS_CORE_FAIL_H

#include "gpunvme/ops/core.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Records the detail for gpunvme_ops_detail() and returns `status`. */
gpunvme_ops_status_t ops_fail(gpunvme_ops_status_t status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#ifdef __cplusplus
}
#endif
#endif
