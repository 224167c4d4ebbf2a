/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Attention backwards on the CPU as the definition has it: each gradient's row is a sum in f64 of
 * its own, and what it is made of is computed again for each.
 */
#include <math.h>
#include <string.h>

#include "ops/attention/cpu/cpu.h"

/* Rows in memory, and sums of dim and dim_v. */
struct rows {
    const struct attention_cpu *x;
    const struct gpunvme_attention_grad *p;
    const struct attention_sequence *s;
    float *q, *k, *v, *grad_out, *spare;
    double *sums, *sums_v;
};

/* Of a query and a key whose rows are loaded. */
struct pair {
    double weight, grad; /* P, dS */
};

static double product_of(const float *x, const float *y, int64_t n)
{
    double sum = 0;

    for (int64_t c = 0; c < n; c++)
        sum += (double)x[c] * (double)y[c];
    return sum;
}

static struct pair pair_of(const struct rows *w, int64_t i, int64_t head, double delta)
{
    const struct gpunvme_attention *f = w->x->p;
    double score = attention_score(w->x, product_of(w->q, w->k, f->dim));
    double lse = (double)f->lse[attention_at(&f->lse_strides, &w->s->q, i, head)];
    double cap = (double)f->softcap;
    struct pair pair = {exp(score - lse), 0};

    pair.grad = pair.weight * (product_of(w->grad_out, w->v, f->dim_v) - delta);
    if (cap > 0)
        pair.grad *= 1 - score / cap * (score / cap);
    return pair;
}

static double load_query(const struct rows *w, int64_t i, int64_t head)
{
    double delta = attention_delta(w->p, w->s, i, head, w->spare, w->grad_out);

    attention_load_q(w->x, w->s, i, head, w->q);
    return delta;
}

static void load_key(const struct rows *w, int64_t j, int64_t kv_head)
{
    attention_load_k(w->x, w->s, j, kv_head, w->k);
    attention_load_v(w->x, w->s, j, kv_head, w->v);
}

static void clear(double *sums, int64_t n)
{
    memset(sums, 0, (size_t)n * sizeof(*sums));
}

static void add(double *sums, double weight, const float *row, int64_t n)
{
    for (int64_t c = 0; c < n; c++)
        sums[c] += weight * (double)row[c];
}

static void rounded(const struct rows *w, double scale, const double *sums, int64_t n)
{
    for (int64_t c = 0; c < n; c++)
        w->spare[c] = (float)(scale * sums[c]);
}

static void grad_of_query(const struct rows *w, int64_t i, int64_t head)
{
    const struct gpunvme_attention *f = w->x->p;
    struct attention_range range = attention_range_of(f, w->s, i);
    double delta = load_query(w, i, head);

    clear(w->sums, f->dim);
    for (int64_t j = range.first; j < range.end; j++) {
        load_key(w, j, head / w->x->group);
        add(w->sums, pair_of(w, i, head, delta).grad, w->k, f->dim);
    }
    rounded(w, (double)w->x->scale, w->sums, f->dim);
    attention_store_grad_q(w->x, w->p, w->s, i, head, w->spare);
}

static void grad_of_key(const struct rows *w, int64_t j, int64_t kv_head)
{
    const struct gpunvme_attention *f = w->x->p;

    clear(w->sums, f->dim);
    clear(w->sums_v, f->dim_v);
    load_key(w, j, kv_head);
    for (int64_t head = kv_head * w->x->group; head < (kv_head + 1) * w->x->group; head++)
        for (int64_t i = 0; i < w->s->q_len; i++) {
            struct attention_range range = attention_range_of(f, w->s, i);
            struct pair pair;
            double delta;

            if (j < range.first || j >= range.end)
                continue;
            delta = load_query(w, i, head);
            pair = pair_of(w, i, head, delta);
            add(w->sums, pair.grad, w->q, f->dim);
            add(w->sums_v, pair.weight, w->grad_out, f->dim_v);
        }
    rounded(w, (double)w->x->scale, w->sums, f->dim);
    attention_store_grad_k(w->x, w->p, w->s, j, kv_head, w->spare);
    rounded(w, 1, w->sums_v, f->dim_v);
    attention_store_grad_v(w->p, w->s, j, kv_head, w->spare);
}

static int64_t row_elements(const struct gpunvme_attention *p)
{
    return p->dim > p->dim_v ? p->dim : p->dim_v;
}

/* Five rows of f32, then two of f64. */
size_t attention_naive_backward_workspace(const struct attention_cpu *x)
{
    return 5 * ops_workspace_part(1, 1, row_elements(x->p), sizeof(float)) +
           2 * ops_workspace_part(1, 1, row_elements(x->p), sizeof(double));
}

void attention_naive_backward(const struct attention_cpu *x, const struct gpunvme_attention_grad *p,
                              void *workspace)
{
    size_t row = ops_workspace_part(1, 1, row_elements(x->p), sizeof(float)) / sizeof(float);
    float *at = workspace;
    struct rows w = {.x = x,
                     .p = p,
                     .q = at,
                     .k = at + row,
                     .v = at + 2 * row,
                     .grad_out = at + 3 * row,
                     .spare = at + 4 * row,
                     .sums = (double *)(void *)(at + 5 * row)};

    w.sums_v =
        w.sums + ops_workspace_part(1, 1, row_elements(x->p), sizeof(double)) / sizeof(double);
    for (int64_t b = 0; b < x->p->batch; b++) {
        struct attention_sequence s = attention_sequence_of(x, b);

        w.s = &s;
        for (int64_t i = 0; attention_wants_q(p) && i < s.q_len; i++)
            for (int64_t head = 0; head < x->p->heads; head++)
                grad_of_query(&w, i, head);
        for (int64_t j = 0; attention_wants_kv(p) && j < s.k_len; j++)
            for (int64_t head = 0; head < x->p->kv_heads; head++)
                grad_of_key(&w, j, head);
    }
}
