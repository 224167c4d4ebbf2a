/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Attention: what its files share. It knows no device.
 */
#ifndef OPS_ATTENTION_ATTENTION_H
#define OPS_ATTENTION_ATTENTION_H

#include <stdbool.h>

#include "gpunvme/ops/attention.h"
#include "ops/core/operator.h"

extern const struct ops_operator ops_attention, ops_attention_backward, ops_attention_paged,
    ops_kv_append;
extern const struct ops_ladder attention_cpu, attention_backward_cpu, attention_paged_cpu,
    kv_append_cpu;
/* Where there is CUDA. */
extern const struct ops_ladder attention_cuda, attention_backward_cuda, attention_paged_cuda,
    kv_append_cuda;

/* The batch of a tensor whose sequences begin at offsets is one long sequence. */
static inline int64_t attention_batch(const struct gpunvme_attention *p, const int32_t *offsets)
{
    return offsets ? 1 : p->batch;
}

static inline int64_t attention_q_rows(const struct gpunvme_attention *p)
{
    return p->q_offsets ? p->q_rows : p->q_len;
}

static inline int64_t attention_k_rows(const struct gpunvme_attention *p)
{
    return p->k_offsets ? p->k_rows : p->k_len;
}

/*
 * Checks sizes, features and types, and fills in all of the call but its operands. K and V have
 * `kv_dtype`.
 */
gpunvme_ops_status_t attention_check(struct ops_call *call, const struct gpunvme_attention *p,
                                     int kv_dtype);

/* Factors are for tensors of E4M3. Of the descriptor they and its sizes are read. */
gpunvme_ops_status_t attention_check_descales(const struct gpunvme_attention *p, int kv_dtype);
void attention_describe_descales(struct ops_spans *spans, const struct gpunvme_attention *p,
                                 bool unused);

/* Of RoPE alone, for `dim` channels and so many positions. */
gpunvme_ops_status_t attention_check_rope(const struct gpunvme_rope *rope, int64_t dim,
                                          int64_t positions);

/* Is there an element of these gradients to compute? */
static inline bool attention_wants_q(const struct gpunvme_attention_grad *p)
{
    return p->grad_q && p->forward.batch && attention_q_rows(&p->forward);
}

static inline bool attention_wants_kv(const struct gpunvme_attention_grad *p)
{
    return (p->grad_k || p->grad_v) && p->forward.batch && attention_k_rows(&p->forward);
}

/* Adds operands to the call's: out and lse as results or not. */
void attention_describe_q(struct ops_spans *spans, const struct gpunvme_attention *p, bool results);
void attention_describe_k(struct ops_spans *spans, const struct gpunvme_attention *p);
void attention_describe_rope(struct ops_spans *spans, const struct gpunvme_rope *rope, bool unused);

/* A tensor, and an array of int32_t. Without elements they are unused. */
void attention_add_tensor(struct ops_spans *spans, const char *name, const void *data,
                          const int64_t sizes[4], const struct gpunvme_attention_strides *strides,
                          int dtype, int result);
void attention_add_integers(struct ops_spans *spans, const char *name, const int32_t *data,
                            int64_t rows, int64_t cols, int64_t ld);

/* Columns of a block table that may be read. */
static inline int64_t attention_table_cols(int64_t k_len, int64_t page_size)
{
    return k_len / page_size + (k_len % page_size != 0);
}

/* A size, and the least that it may be. */
struct attention_size {
    const char *name;
    int64_t value, least;
};

gpunvme_ops_status_t attention_check_sizes(const struct attention_size *sizes, size_t count);

/* Flags and what is reserved. */
gpunvme_ops_status_t attention_check_flag(const char *name, int64_t value, int64_t most);

#endif
