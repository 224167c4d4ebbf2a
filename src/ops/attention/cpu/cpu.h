/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Attention on the CPU: what the rungs share. Rows of Q, K and V are loaded one by one, as f32 and
 * rotated, from wherever they are; so no rung knows of layouts, offsets, pages or RoPE.
 */
#ifndef OPS_ATTENTION_CPU_H
#define OPS_ATTENTION_CPU_H

#include "ops/attention/attention.h"
#include "ops/cpu/product.h"

/* K and V in pages; size 0: they are not. */
struct attention_pages {
    const int32_t *table;
    int64_t ld, count, size;
};

/* A call. */
struct attention_cpu {
    const struct gpunvme_attention *p;
    struct attention_pages pages;
    int kv_dtype;       /* of K and V */
    const char *q_name; /* for messages: what queries are */
    int64_t group;      /* heads of Q for each of K */
    float scale;
    double rope_ratio; /* of the frequencies of neighbouring pairs */
};

/* Where a sequence begins in a tensor. */
struct attention_start {
    int64_t batch, row;
};

struct attention_sequence {
    int64_t number;
    struct attention_start q, k;
    int64_t q_len, k_len;
    const int32_t *pages; /* NULL: rows of K and V follow each other */
};

/* The keys that a query sees: first … end - 1. */
struct attention_range {
    int64_t first, end;
};

struct attention_cpu attention_cpu_of(const struct gpunvme_attention *p);

/* Whether offsets, lengths and pages are within what the descriptor says. */
gpunvme_ops_status_t attention_check_values(const struct attention_cpu *x);

struct attention_sequence attention_sequence_of(const struct attention_cpu *x, int64_t b);

struct attention_range attention_range_of(const struct gpunvme_attention *p,
                                          const struct attention_sequence *s, int64_t i);

static inline int64_t attention_at(const struct gpunvme_attention_strides *strides,
                                   const struct attention_start *start, int64_t i, int64_t head)
{
    return start->batch * strides->batch + (start->row + i) * strides->row + head * strides->head;
}

/* Row j of K or V, in pages or not. */
static inline int64_t attention_key_at(const struct attention_cpu *x,
                                       const struct attention_sequence *s,
                                       const struct gpunvme_attention_strides *strides, int64_t j,
                                       int64_t head)
{
    if (!s->pages)
        return attention_at(strides, &s->k, j, head);
    return s->pages[j / x->pages.size] * strides->batch + j % x->pages.size * strides->row +
           head * strides->head;
}

/* n elements from number `at` on, as f32; and back. */
void attention_load(const void *data, int64_t at, int dtype, int64_t n, float *row);
void attention_store(void *data, int64_t at, int dtype, int64_t n, const float *row);

/* Rows of Q and K as the products see them. `head` is one of Q, or of K. */
void attention_load_q(const struct attention_cpu *x, const struct attention_sequence *s, int64_t i,
                      int64_t head, float *row);
void attention_load_k(const struct attention_cpu *x, const struct attention_sequence *s, int64_t j,
                      int64_t head, float *row);
void attention_load_v(const struct attention_cpu *x, const struct attention_sequence *s, int64_t j,
                      int64_t head, float *row);

/* The factor of numbers of E4M3, in a sequence and head of K; 1 without factors. */
static inline float attention_descale(const struct gpunvme_attention *p,
                                      const struct attention_sequence *s, const float *factors,
                                      int64_t kv_head)
{
    return factors ? factors[s->number * p->descale_stride + kv_head] : 1;
}

/* Of a backward call. A gradient that is not wanted is not stored; rows may be turned back. */
void attention_load_grad_out(const struct gpunvme_attention_grad *p,
                             const struct attention_sequence *s, int64_t i, int64_t head,
                             float *row);
void attention_store_grad_q(const struct attention_cpu *x, const struct gpunvme_attention_grad *p,
                            const struct attention_sequence *s, int64_t i, int64_t head,
                            float *row);
void attention_store_grad_k(const struct attention_cpu *x, const struct gpunvme_attention_grad *p,
                            const struct attention_sequence *s, int64_t j, int64_t head,
                            float *row);
void attention_store_grad_v(const struct gpunvme_attention_grad *p,
                            const struct attention_sequence *s, int64_t j, int64_t head,
                            const float *row);

/* D: the sum of grad_out * out of a query's row. Both rows, of dim_v, are left loaded. */
double attention_delta(const struct gpunvme_attention_grad *p, const struct attention_sequence *s,
                       int64_t i, int64_t head, float *out, float *grad_out);

/* grad_sinks, with room for two rows of dim_v. */
void attention_grad_sinks(const struct attention_cpu *x, const struct gpunvme_attention_grad *p,
                          float *room);

/* Rotates a row of Q or K in place; `back` is the inverse turn, as gradients need it. */
void attention_rotate(const struct gpunvme_rope *rope, double ratio, int64_t position, bool back,
                      float *row);

/* Of the frequencies of neighbouring pairs: base^(-2 / dim). */
double attention_rope_ratio(const struct gpunvme_rope *rope);

/* -infinity without sinks. */
static inline float attention_sink(const struct gpunvme_attention *p, int64_t head)
{
    return p->sinks ? p->sinks[head] : -__builtin_inff();
}

/* S and its slope of a product of rows. */
static inline double attention_score(const struct attention_cpu *x, double product)
{
    double s = (double)x->scale * product, cap = (double)x->p->softcap;

    return cap > 0 ? cap * __builtin_tanh(s / cap) : s;
}

/* The rungs that take one query at a time, and their memory. */
size_t attention_naive_workspace(const struct attention_cpu *x);
void attention_naive(const struct attention_cpu *x, void *workspace);
size_t attention_online_workspace(const struct attention_cpu *x);
void attention_online(const struct attention_cpu *x, void *workspace);

/*
 * Rows of scores in vectors, by the instructions that a kernel for products uses (softmax.h). n is
 * a multiple of ATTENTION_LANES.
 */
#define ATTENTION_LANES 16

struct attention_rows {
    float (*largest)(const float *s, int64_t n, float most);
    float (*weigh)(const float *s, int64_t n, float shift, float *p);
};

extern const struct attention_rows attention_plain_rows, attention_avx2_rows, attention_avx512_rows;
const struct attention_rows *attention_rows_of(const struct cpu_kernel *kernel);

/* The rungs that take tiles, with an engine for products; one workspace for each thread. */
size_t attention_tiles_workspace(const struct attention_cpu *x, const struct cpu_engine *engine);
void attention_tiles(const struct attention_cpu *x, const struct cpu_engine *engine, int threads,
                     void *workspace);

/* Checks the values that offsets, lengths and the table have, and appends. */
size_t attention_append_workspace(const struct gpunvme_kv_append *p);
gpunvme_ops_status_t attention_append(const struct gpunvme_kv_append *p, void *workspace);

/* The same backwards, for the gradients of Q, K and V. */
size_t attention_naive_backward_workspace(const struct attention_cpu *x);
void attention_naive_backward(const struct attention_cpu *x, const struct gpunvme_attention_grad *p,
                              void *workspace);
size_t attention_tiles_backward_workspace(const struct attention_cpu *x,
                                          const struct cpu_engine *engine);
void attention_tiles_backward(const struct attention_cpu *x, const struct gpunvme_attention_grad *p,
                              const struct cpu_engine *engine, int threads, void *workspace);

#endif
