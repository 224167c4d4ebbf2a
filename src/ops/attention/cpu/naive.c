/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Attention on the CPU, one query at a time: `naive`, which follows the definition and sums in f64,
 * and `online`, which passes over the keys once.
 */
#include <math.h>
#include <string.h>

#include "ops/attention/cpu/cpu.h"

/* A query: which one it is, and its rows in memory. */
struct query {
    const struct attention_sequence *s;
    int64_t i, head;
    float *q, *row; /* its row, and one of K or V */
    void *sums;     /* dim_v of f64, or of f32 */
    double *scores; /* k_len; NULL in `online` */
};

static int64_t row_elements(const struct gpunvme_attention *p)
{
    return p->dim > p->dim_v ? p->dim : p->dim_v;
}

static void store(const struct attention_cpu *x, const struct query *q, const float *out, float lse)
{
    const struct gpunvme_attention *p = x->p;

    attention_store(p->out, attention_at(&p->out_strides, &q->s->q, q->i, q->head), p->out_dtype,
                    p->dim_v, out);
    if (p->lse)
        p->lse[attention_at(&p->lse_strides, &q->s->q, q->i, q->head)] = lse;
}

/* The scores of the keys that the query sees; returns the largest. */
static double make_scores(const struct attention_cpu *x, const struct query *q,
                          const struct attention_range *range)
{
    double most = (double)attention_sink(x->p, q->head);

    for (int64_t j = range->first; j < range->end; j++) {
        double product = 0;

        attention_load_k(x, q->s, j, q->head / x->group, q->row);
        for (int64_t c = 0; c < x->p->dim; c++)
            product += (double)q->q[c] * (double)q->row[c];
        q->scores[j] = attention_score(x, product);
        most = q->scores[j] > most ? q->scores[j] : most;
    }
    return most;
}

static void naive_query(const struct attention_cpu *x, const struct query *q)
{
    const struct gpunvme_attention *p = x->p;
    struct attention_range range = attention_range_of(p, q->s, q->i);
    double most, shift, sum, *sums = q->sums;

    attention_load_q(x, q->s, q->i, q->head, q->q);
    most = make_scores(x, q, &range);
    shift = most == -INFINITY ? 0 : most; /* of infinities there is no difference */
    sum = exp((double)attention_sink(p, q->head) - shift);
    memset(sums, 0, (size_t)p->dim_v * sizeof(*sums));
    for (int64_t j = range.first; j < range.end; j++) {
        double weight = exp(q->scores[j] - shift);

        sum += weight;
        attention_load_v(x, q->s, j, q->head / x->group, q->row);
        for (int64_t c = 0; c < p->dim_v; c++)
            sums[c] += weight * (double)q->row[c];
    }
    for (int64_t c = 0; c < p->dim_v; c++)
        q->row[c] = (float)(sum == 0 ? 0 : sums[c] / sum);
    store(x, q, q->row, (float)(shift + log(sum)));
}

/* Partial sums, which the compiler keeps in vectors. */
#define LANES 16

static float product_of(const float *x, const float *y, int64_t n)
{
    float part[LANES] = {0}, sum = 0;
    int64_t c = 0;

    for (; c + LANES <= n; c += LANES)
        for (int l = 0; l < LANES; l++)
            part[l] += x[c + l] * y[c + l];
    for (; c < n; c++)
        sum += x[c] * y[c];
    for (int l = 0; l < LANES; l++)
        sum += part[l];
    return sum;
}

/*
 * Sums are kept as if the largest score so far were the largest of all, and are scaled down when a
 * larger one comes (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018).
 */
static void online_query(const struct attention_cpu *x, const struct query *q)
{
    const struct gpunvme_attention *p = x->p;
    struct attention_range range = attention_range_of(p, q->s, q->i);
    float most = attention_sink(p, q->head), sum = most == -INFINITY ? 0 : 1, *sums = q->sums;

    attention_load_q(x, q->s, q->i, q->head, q->q);
    memset(sums, 0, (size_t)p->dim_v * sizeof(*sums));
    for (int64_t j = range.first; j < range.end; j++) {
        float score, weight;

        attention_load_k(x, q->s, j, q->head / x->group, q->row);
        score = (float)attention_score(x, (double)product_of(q->q, q->row, p->dim));
        if (score > most) {
            float scale = expf(most - score);

            sum *= scale;
            for (int64_t c = 0; c < p->dim_v; c++)
                sums[c] *= scale;
            most = score;
        }
        weight = expf(score - (most == -INFINITY ? 0 : most));
        sum += weight;
        attention_load_v(x, q->s, j, q->head / x->group, q->row);
        for (int64_t c = 0; c < p->dim_v; c++)
            sums[c] += weight * q->row[c];
    }
    for (int64_t c = 0; c < p->dim_v; c++)
        sums[c] = sum == 0 ? 0 : sums[c] / sum;
    store(x, q, sums, (most == -INFINITY ? 0 : most) + logf(sum));
}

static void each_query(const struct attention_cpu *x, struct query *q,
                       void (*work)(const struct attention_cpu *x, const struct query *q))
{
    for (int64_t b = 0; b < x->p->batch; b++) {
        struct attention_sequence s = attention_sequence_of(x, b);

        q->s = &s;
        for (q->head = 0; q->head < x->p->heads; q->head++)
            for (q->i = 0; q->i < s.q_len; q->i++)
                work(x, q);
    }
}

/* Behind each other: scores, sums, a row of Q, one of K or V. */
size_t attention_naive_workspace(const struct attention_cpu *x)
{
    return ops_workspace_part(1, 1, x->p->k_len, sizeof(double)) +
           ops_workspace_part(1, 1, x->p->dim_v, sizeof(double)) +
           2 * ops_workspace_part(1, 1, row_elements(x->p), sizeof(float));
}

void attention_naive(const struct attention_cpu *x, void *workspace)
{
    size_t row = ops_workspace_part(1, 1, row_elements(x->p), sizeof(float));
    char *at = workspace;
    struct query q = {.scores = workspace};

    at += ops_workspace_part(1, 1, x->p->k_len, sizeof(double));
    q.sums = at;
    at += ops_workspace_part(1, 1, x->p->dim_v, sizeof(double));
    q.q = (float *)(void *)at;
    q.row = (float *)(void *)(at + row);
    each_query(x, &q, naive_query);
}

size_t attention_online_workspace(const struct attention_cpu *x)
{
    return 3 * ops_workspace_part(1, 1, row_elements(x->p), sizeof(float));
}

void attention_online(const struct attention_cpu *x, void *workspace)
{
    size_t row = ops_workspace_part(1, 1, row_elements(x->p), sizeof(float)) / sizeof(float);
    float *at = workspace;
    struct query q = {.q = at, .row = at + row, .sums = at + 2 * row};

    each_query(x, &q, online_query);
}
