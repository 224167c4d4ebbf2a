/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The kernels of mixtures of experts, each by a function that launches it. How many slots an expert
 * has is known on the device alone.
 */
#ifndef OPS_MOE_KERNELS_H
#define OPS_MOE_KERNELS_H

#include "gpunvme/fn.h"
#include "gpunvme/ops/moe.h"
#include "ops/cuda/rows.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Which slots each expert has: those of e are order[starts[e]] … order[starts[e + 1] - 1]. */
struct moe_slots {
    int64_t slots, experts;
    const int32_t *chosen; /* the expert of each slot; a number that is none's is in no list */
    const int32_t *starts, *order;

    /* For products of rows that have been copied: where each expert's begin, at multiples of
     * MOE_STEP, behind which zeros fill the last one. An expert without slots has one of zeros. */
    const int32_t *padded;
};

#define MOE_STEP 64

/* As many rows as copies may have. */
GPUNVME_FN int64_t moe_padded_rows(const struct moe_slots *x)
{
    return x->slots + x->experts * MOE_STEP;
}

/* A matrix with a row for each slot, or for each token, which has `per_token` slots. */
struct moe_operand {
    const void *data;
    int64_t ld, per_token;
};

/*
 * C = A B for each slot, B being its expert's, k x n: element (k, n) is at b[k * ld_b + n], or if
 * it is transposed at b[n * ld_b + k]. C has a row for each slot, n elements apart.
 */
struct moe_product {
    struct moe_slots slots;
    int64_t n, k;
    struct moe_operand a;
    const void *b;
    int64_t ld_b, stride_b;
    int transposed;
    void *c;
    int dtype, c_dtype; /* dtype, or F32 */
    int accumulate;     /* C is added to */
};

/* C = A^T B for each expert, over its slots: m x n. */
struct moe_gradient {
    struct moe_slots slots;
    int64_t m, n;
    struct moe_operand a, b;
    void *c;
    int64_t ldc, stride_c;
    int dtype, c_dtype, accumulate;
};

/* `copies` has room for what moe_copy() makes of the operands with rows of slots. */
typedef gpunvme_ops_status_t moe_multiply(const struct moe_product *x, void *copies, void *stream);
typedef gpunvme_ops_status_t moe_differentiate(const struct moe_gradient *x, void *copies,
                                               void *stream);

/* A thread for each element of C; tiles on tensor cores by mma; and by wgmma, of copies. */
moe_multiply moe_multiply_naive, moe_multiply_grouped, moe_multiply_hopper;
moe_differentiate moe_differentiate_naive, moe_differentiate_grouped, moe_differentiate_hopper;

/* Rows by expert, of 16-bit types: `cols` elements each, moe_pitch() apart. */
struct moe_rows {
    struct moe_slots slots;
    struct moe_operand from;
    int64_t cols;
    void *to;
};

GPUNVME_FN int64_t moe_pitch(int64_t cols)
{
    return (cols + 7) / 8 * 8;
}

gpunvme_ops_status_t moe_copy(const struct moe_rows *x, void *stream);

/* From the starts. */
gpunvme_ops_status_t moe_pad(const struct moe_slots *x, int32_t *padded, void *stream);

/* The choice and the weights, to arrays of the caller. */
gpunvme_ops_status_t moe_route(const struct gpunvme_moe *p, int32_t *chosen, float *weights,
                               void *stream);

/* y of each token = the sum of its slots' rows of `from`, by weight; NULL: they are 1. */
struct moe_sum {
    struct moe_slots slots;
    int64_t tokens, top_k, cols;
    const float *from; /* slots x cols */
    const float *weights;
    void *y;
    int64_t ldy;
    int dtype;
};

gpunvme_ops_status_t moe_add_up(const struct moe_sum *x, void *stream);

/* From q, the gradients of gate and up, the weight times silu(gate) * up, and that of the weight.
 */
struct moe_slopes {
    struct moe_slots slots;
    int64_t hidden;
    const float *q; /* slots x hidden, as all here */
    const void *gate, *up;
    const float *weights;
    void *grad_gate, *grad_up, *weighted;
    float *grad_weights;
    int dtype;
};

gpunvme_ops_status_t moe_find_slopes(const struct moe_slopes *x, void *stream);

/* grad_logits of the gradients of weights. */
gpunvme_ops_status_t moe_logits(const struct gpunvme_moe_grad *p, const float *grad_weights,
                                void *stream);

#ifdef __cplusplus
}
#endif
#endif
