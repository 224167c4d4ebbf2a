/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Operators without a descriptor: it is filled in here, and a workspace allocated on the CPU.
 */
#include "gpunvme/optimized.h"

#include <stdbool.h>
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

/* Strides of rows x heads x dim without gaps. False: they do not fit 63 bits. */
static bool pack(struct gpunvme_attention_strides *strides, int64_t rows, int64_t heads,
                 int64_t dim)
{
    strides->head = dim;
    return !__builtin_mul_overflow(heads, dim, &strides->row) &&
           !__builtin_mul_overflow(rows, strides->row, &strides->batch);
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

gpunvme_ops_status_t optimized_attention(const void *q, const void *k, const void *v, void *out,
                                         int64_t batch, int64_t q_len, int64_t k_len, int64_t heads,
                                         int64_t kv_heads, int64_t dim, int causal, int dtype,
                                         const struct gpunvme_ops_exec *exec)
{
    struct gpunvme_attention p = {.batch = batch,
                                  .heads = heads,
                                  .kv_heads = kv_heads,
                                  .dim = dim,
                                  .dim_v = dim,
                                  .q_len = q_len,
                                  .k_len = k_len,
                                  .q = q,
                                  .k = k,
                                  .v = v,
                                  .out = out,
                                  .causal = causal,
                                  .dtype = dtype,
                                  .out_dtype = dtype};
    struct gpunvme_ops_exec own = exec ? *exec : (struct gpunvme_ops_exec){0};
    bool fits = pack(&p.q_strides, q_len, heads, dim) && pack(&p.k_strides, k_len, kv_heads, dim);
    gpunvme_ops_status_t status;
    size_t needed = 0;
    void *room = NULL;

    if (!fits)
        return ops_fail(GPUNVME_OPS_ERR_SHAPE, "a tensor is larger than 2^63 bytes");
    p.v_strides = p.k_strides;
    p.out_strides = p.q_strides;
    status = gpunvme_attention_workspace(&p, &own, &needed);
    if (!status)
        status = equip(&own, needed, &room);
    if (!status)
        status = gpunvme_attention(&p, &own);
    free(room);
    return status;
}

gpunvme_ops_status_t optimized_moe(const void *x, const void *logits, const void *w_gate,
                                   const void *w_up, const void *w_down, void *y, int64_t tokens,
                                   int64_t experts, int64_t top_k, int64_t dim, int64_t hidden,
                                   int dtype, const struct gpunvme_ops_exec *exec)
{
    struct gpunvme_moe p = {.tokens = tokens,
                            .experts = experts,
                            .top_k = top_k,
                            .dim = dim,
                            .hidden = hidden,
                            .x = x,
                            .logits = logits,
                            .w_gate = w_gate,
                            .w_up = w_up,
                            .w_down = w_down,
                            .y = y,
                            .ldx = dim,
                            .ld_logits = experts,
                            .ldy = dim,
                            .ld_w_gate = dim,
                            .ld_w_up = dim,
                            .ld_w_down = hidden,
                            .dtype = dtype,
                            .logits_dtype = dtype};
    struct gpunvme_ops_exec own = exec ? *exec : (struct gpunvme_ops_exec){0};
    gpunvme_ops_status_t status;
    size_t needed = 0;
    void *room = NULL;

    if (__builtin_mul_overflow(dim, hidden, &p.stride_w_gate))
        return ops_fail(GPUNVME_OPS_ERR_SHAPE, "a matrix is larger than 2^63 bytes");
    p.stride_w_up = p.stride_w_down = p.stride_w_gate;
    status = gpunvme_moe_forward_workspace(&p, &own, &needed);
    if (!status)
        status = equip(&own, needed, &room);
    if (!status)
        status = gpunvme_moe_forward(&p, &own);
    free(room);
    return status;
}
