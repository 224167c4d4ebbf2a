/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Operators without a descriptor: it is filled in here, and a workspace allocated on the CPU.
 */
#include "gpunvme/optimized.h"

#include <stdlib.h>

#include "ops/core/fail.h"

/* Gives `own` a workspace of `needed` bytes, unless the caller brought one: *room is to be freed.
 */
static gpunvme_ops_status_t equip(struct gpunvme_ops_exec *own, size_t needed, void **room)
{
    size_t align = GPUNVME_OPS_WORKSPACE_ALIGN;

    *room = NULL;
    if (!needed || own->workspace || own->device != GPUNVME_OPS_CPU)
        return GPUNVME_OPS_OK;
    if (needed <= SIZE_MAX - align)
        *room = aligned_alloc(align, (needed + align - 1) / align * align);
    if (!*room)
        return ops_fail(GPUNVME_OPS_ERR_WORKSPACE, "no memory for a workspace of %zu bytes",
                        needed);
    own->workspace = *room;
    own->workspace_nbytes = needed;
    return GPUNVME_OPS_OK;
}

gpunvme_ops_status_t optimized_matmul(const void *a, const void *b, void *c, int64_t m, int64_t n,
                                      int64_t k, int dtype, const struct gpunvme_ops_exec *exec)
{
    const struct gpunvme_matmul p = {.m = m,
                                     .n = n,
                                     .k = k,
                                     .batch = 1,
                                     .a = a,
                                     .b = b,
                                     .c = c,
                                     .lda = k,
                                     .ldb = n,
                                     .ldc = n,
                                     .alpha = 1,
                                     .dtype = dtype,
                                     .out_dtype = dtype};
    struct gpunvme_ops_exec own = exec ? *exec : (struct gpunvme_ops_exec){0};
    size_t needed = 0;
    void *room = NULL;
    gpunvme_ops_status_t status = gpunvme_matmul_workspace(&p, &own, &needed);

    if (!status)
        status = equip(&own, needed, &room);
    if (!status)
        status = gpunvme_matmul(&p, &own);
    free(room);
    return status;
}

gpunvme_ops_status_t optimized_linear(const void *x, const void *weight, const void *bias, void *y,
                                      int64_t rows, int64_t in, int64_t out, int activation,
                                      int dtype, const struct gpunvme_ops_exec *exec)
{
    const struct gpunvme_linear p = {.rows = rows,
                                     .in = in,
                                     .out = out,
                                     .x = x,
                                     .weight = weight,
                                     .bias = bias,
                                     .y = y,
                                     .ldx = in,
                                     .ldw = in,
                                     .ldy = out,
                                     .activation = activation,
                                     .dtype = dtype};
    struct gpunvme_ops_exec own = exec ? *exec : (struct gpunvme_ops_exec){0};
    size_t needed = 0;
    void *room = NULL;
    gpunvme_ops_status_t status = gpunvme_linear_forward_workspace(&p, &own, &needed);

    if (!status)
        status = equip(&own, needed, &room);
    if (!status)
        status = gpunvme_linear_forward(&p, &own);
    free(room);
    return status;
}
