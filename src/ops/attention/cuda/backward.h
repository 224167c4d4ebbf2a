/* SPDX-License-Identifier: BSD-3-Clause
 *
 * One backward call of attention as the GPU's kernels see it, what its rungs share, and the rungs.
 */
#ifndef OPS_ATTENTION_CUDA_BACKWARD_H
#define OPS_ATTENTION_CUDA_BACKWARD_H

#include "ops/attention/cuda/problem.h"

#ifdef __cplusplus
extern "C" {
#endif

/* In the workspace each sequence has a multiple of so many rows, so that tiles never share any. */
enum { CUDA_BACKWARD_ALIGN = 128 };

/* Tiles of queries, and of their sums in f32, begin at multiples of so many rows and channels. */
enum { CUDA_BACKWARD_PIECE = 64 };

enum { BACKWARD_Q, BACKWARD_K, BACKWARD_V, BACKWARD_GRAD_OUT, BACKWARD_OPERANDS };

/* Rows that tiles are loaded from: the caller's, or copies in the workspace, heads x room x width.
 */
struct cuda_backward_rows {
    struct cuda_rows rows;
    int copied;
};

/* Kernels get it by value. Gradients that are not wanted have no data. */
struct cuda_backward {
    struct cuda_attention f;
    struct cuda_rows grad_out, grad_q, grad_k, grad_v;
    float *grad_sinks;

    /* Rows of the workspace for one head, of Q's and of K's sequences: see query_room(). */
    int64_t q_room, k_room;

    /* heads x q_room: D, and lse in powers of two, +infinity where a row has no weights. */
    float *delta, *lse2;

    /* The rest is for rungs that take tiles. Channels of a tile: 64, 128 or 256. */
    int width;
    int section; /* heads of K whose tiles are made at the same time: see tile_of_block() */
    struct cuda_backward_rows operands[BACKWARD_OPERANDS];

    /* heads x q_room x width, as sum_place() has them: what grad_q is made of. NULL: not wanted. */
    float *sums;

    /* heads x q_room / 64 x width / 64: how many have added to sums. NULL: in no known order. */
    uint32_t *turns;
    uint32_t *begun; /* with turns: how many blocks have begun */

    /* kv_heads x k_room x width, if K is turned by RoPE: grad_k before it is turned back. */
    float *grad_turned;
};

struct cuda_backward cuda_backward_of(const struct gpunvme_attention_grad *p);

/* delta and lse2. */
gpunvme_ops_status_t cuda_backward_deltas(const struct cuda_backward *x, void *stream);

/* grad_sinks, from the deltas. */
gpunvme_ops_status_t cuda_backward_sinks(const struct cuda_backward *x, void *stream);

/* Copies of operands that are not loaded where they are, rotated and filled up with zeros. */
gpunvme_ops_status_t cuda_backward_copy(const struct cuda_backward *x, void *stream);

/* grad_q from its sums, and grad_k from what is turned. */
gpunvme_ops_status_t cuda_backward_finish(const struct cuda_backward *x, void *stream);

/* Gradients of Q, K and V by a rung; grad_q as sums, if it takes tiles. */
gpunvme_ops_status_t cuda_backward_naive(const struct cuda_backward *x, void *stream);
gpunvme_ops_status_t cuda_backward_tiled(const struct cuda_backward *x, void *stream);
gpunvme_ops_status_t cuda_backward_flash(const struct cuda_backward *x, void *stream);
gpunvme_ops_status_t cuda_backward_flash2(const struct cuda_backward *x, void *stream);
gpunvme_ops_status_t cuda_backward_hopper(const struct cuda_backward *x, void *stream);

#ifdef __cplusplus
}
#endif
#endif
