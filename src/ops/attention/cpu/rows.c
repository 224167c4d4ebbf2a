/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Attention on the CPU: where rows are, which of them there are, and how they are loaded.
 */
#include <inttypes.h>
#include <math.h>

#include "ops/attention/cpu/cpu.h"
#include "ops/cpu/rows.h"

double attention_rope_ratio(const struct gpunvme_rope *rope)
{
    double base = rope->base > 0 ? (double)rope->base : 10000;

    return rope->dim ? pow(base, -2.0 / rope->dim) : 1;
}

struct attention_cpu attention_cpu_of(const struct gpunvme_attention *p)
{
    return (struct attention_cpu){
        .p = p,
        .kv_dtype = p->dtype,
        .q_name = "q",
        .group = p->heads / p->kv_heads,
        .scale = p->scale != 0 ? p->scale : (float)(1 / sqrt((double)p->dim)),
        .rope_ratio = attention_rope_ratio(&p->rope),
    };
}

/* The rows of sequence b in a tensor, by offsets and lengths, either or neither of them. */
static struct attention_start rows_of(const int32_t *offsets, const int32_t *lengths, int64_t b,
                                      int64_t most, int64_t *len)
{
    *len = offsets ? offsets[b + 1] - offsets[b] : most;
    if (lengths)
        *len = lengths[b];
    return (struct attention_start){offsets ? 0 : b, offsets ? offsets[b] : 0};
}

struct attention_sequence attention_sequence_of(const struct attention_cpu *x, int64_t b)
{
    const struct gpunvme_attention *p = x->p;
    struct attention_sequence s = {.number = b};

    s.q = rows_of(p->q_offsets, p->q_lengths, b, p->q_len, &s.q_len);
    s.k = rows_of(p->k_offsets, p->k_lengths, b, p->k_len, &s.k_len);
    if (x->pages.size)
        s.pages = x->pages.table + b * x->pages.ld;
    return s;
}

static gpunvme_ops_status_t check_offsets(const char *name, const int32_t *offsets, int64_t batch,
                                          int64_t rows, int64_t most)
{
    for (int64_t b = 0; offsets && b <= batch; b++)
        if (offsets[b] < (b ? offsets[b - 1] : 0) || offsets[b] > rows)
            return ops_fail(GPUNVME_OPS_ERR_INVALID,
                            "%s_offsets[%" PRId64 "] is %d: it must not decrease, nor exceed the "
                            "%" PRId64 " rows",
                            name, b, (int)offsets[b], rows);
        else if (b && offsets[b] - offsets[b - 1] > most)
            return ops_fail(GPUNVME_OPS_ERR_INVALID,
                            "sequence %" PRId64 " has %d rows of %s: %s_len is %" PRId64, b - 1,
                            (int)(offsets[b] - offsets[b - 1]), name, name, most);
    return GPUNVME_OPS_OK;
}

static gpunvme_ops_status_t check_lengths(const char *name, const int32_t *offsets,
                                          const int32_t *lengths, int64_t batch, int64_t most)
{
    for (int64_t b = 0; lengths && b < batch; b++) {
        int64_t room = offsets ? offsets[b + 1] - offsets[b] : most;

        if (lengths[b] < 0 || lengths[b] > room)
            return ops_fail(GPUNVME_OPS_ERR_INVALID,
                            "%s_lengths[%" PRId64 "] is %d: there are %" PRId64 " rows", name, b,
                            (int)lengths[b], room);
    }
    return GPUNVME_OPS_OK;
}

static gpunvme_ops_status_t check_pages(const struct attention_cpu *x)
{
    for (int64_t b = 0; x->pages.size && b < x->p->batch; b++) {
        struct attention_sequence s = attention_sequence_of(x, b);

        for (int64_t j = 0; j * x->pages.size < s.k_len; j++)
            if (s.pages[j] < 0 || s.pages[j] >= x->pages.count)
                return ops_fail(GPUNVME_OPS_ERR_INVALID,
                                "page %" PRId64 " of sequence %" PRId64 " is number %d: there are "
                                "%" PRId64,
                                j, b, (int)s.pages[j], x->pages.count);
    }
    return GPUNVME_OPS_OK;
}

gpunvme_ops_status_t attention_check_values(const struct attention_cpu *x)
{
    const struct gpunvme_attention *p = x->p;
    gpunvme_ops_status_t status;

    status = check_offsets(x->q_name, p->q_offsets, p->batch, p->q_rows, p->q_len);
    if (!status)
        status = check_offsets("k", p->k_offsets, p->batch, p->k_rows, p->k_len);
    if (!status)
        status = check_lengths(x->q_name, p->q_offsets, p->q_lengths, p->batch, p->q_len);
    if (!status)
        status = check_lengths("k", p->k_offsets, p->k_lengths, p->batch, p->k_len);
    if (!status)
        status = check_pages(x);
    return status;
}

/* Sums stay within 64 bits, whatever the window is. */
struct attention_range attention_range_of(const struct gpunvme_attention *p,
                                          const struct attention_sequence *s, int64_t i)
{
    int64_t at = i + s->k_len - s->q_len, behind = s->k_len - 1 - at;
    int64_t right = p->causal ? 0 : p->window ? p->window_right : behind;
    struct attention_range range = {0, s->k_len};

    if (p->causal && p->window && p->window_right < right)
        right = p->window_right;
    if (right < behind)
        range.end = at + right + 1;
    if (p->window && p->window_left < at)
        range.first = at - p->window_left;
    if (range.end < range.first)
        range.end = range.first;
    return range;
}

void attention_load(const void *data, int64_t at, int dtype, int64_t n, float *row)
{
    cpu_load_row(data, at, dtype, n, row);
}

void attention_store(void *data, int64_t at, int dtype, int64_t n, const float *row)
{
    cpu_store_row(data, at, dtype, n, row);
}

/* Of pair number p at a position, in f64; `frequency` is base^(-2 p / dim). */
static void turn_of(const struct gpunvme_rope *rope, int64_t position, int64_t p, double frequency,
                    double *cosine, double *sine)
{
    int64_t row = position < 0 ? -position : position;

    if (rope->cos) {
        *cosine = (double)rope->cos[row * rope->ld + p];
        *sine = (double)rope->sin[row * rope->ld + p];
    } else {
        *cosine = cos((double)row * frequency);
        *sine = sin((double)row * frequency);
    }
    if (position < 0)
        *sine = -*sine;
}

void attention_rotate(const struct gpunvme_rope *rope, double ratio, int64_t position, bool back,
                      float *row)
{
    int64_t half = rope->dim / 2, step = rope->interleaved ? 2 : 1;
    int64_t other = rope->interleaved ? 1 : half;
    double frequency = 1;

    for (int64_t p = 0; p < half; p++, frequency *= ratio) {
        float *at = row + rope->first + p * step;
        double x = (double)at[0], y = (double)at[other], cosine, sine;

        turn_of(rope, position, p, frequency, &cosine, &sine);
        if (back)
            sine = -sine;
        at[0] = (float)(x * cosine - y * sine);
        at[other] = (float)(x * sine + y * cosine);
    }
}

/* A row of E4M3: numbers become elements by the factor of their sequence and head of K. */
static void descale(const struct attention_cpu *x, const struct attention_sequence *s,
                    const float *factors, int64_t kv_head, int64_t n, float *row)
{
    float factor = attention_descale(x->p, s, factors, kv_head);

    for (int64_t c = 0; c < n && factors; c++)
        row[c] *= factor;
}

void attention_load_q(const struct attention_cpu *x, const struct attention_sequence *s, int64_t i,
                      int64_t head, float *row)
{
    const struct gpunvme_attention *p = x->p;

    attention_load(p->q, attention_at(&p->q_strides, &s->q, i, head), p->dtype, p->dim, row);
    descale(x, s, p->q_descale, head / x->group, p->dim, row);
    if (p->rope.dim && s->k_len) /* tables may not have the angles of queries without keys */
        attention_rotate(&p->rope, x->rope_ratio, i + s->k_len - s->q_len, false, row);
}

void attention_load_k(const struct attention_cpu *x, const struct attention_sequence *s, int64_t j,
                      int64_t head, float *row)
{
    const struct gpunvme_attention *p = x->p;

    attention_load(p->k, attention_key_at(x, s, &p->k_strides, j, head), x->kv_dtype, p->dim, row);
    descale(x, s, p->k_descale, head, p->dim, row);
    if (p->rope.dim && !p->rope.queries_only)
        attention_rotate(&p->rope, x->rope_ratio, j, false, row);
}

void attention_load_v(const struct attention_cpu *x, const struct attention_sequence *s, int64_t j,
                      int64_t head, float *row)
{
    const struct gpunvme_attention *p = x->p;

    attention_load(p->v, attention_key_at(x, s, &p->v_strides, j, head), x->kv_dtype, p->dim_v,
                   row);
    descale(x, s, p->v_descale, head, p->dim_v, row);
}

void attention_load_grad_out(const struct gpunvme_attention_grad *p,
                             const struct attention_sequence *s, int64_t i, int64_t head,
                             float *row)
{
    attention_load(p->grad_out, attention_at(&p->grad_out_strides, &s->q, i, head),
                   p->forward.out_dtype, p->forward.dim_v, row);
}

void attention_store_grad_q(const struct attention_cpu *x, const struct gpunvme_attention_grad *p,
                            const struct attention_sequence *s, int64_t i, int64_t head, float *row)
{
    const struct gpunvme_attention *f = x->p;

    if (!p->grad_q)
        return;
    if (f->rope.dim && s->k_len)
        attention_rotate(&f->rope, x->rope_ratio, i + s->k_len - s->q_len, true, row);
    attention_store(p->grad_q, attention_at(&p->grad_q_strides, &s->q, i, head), f->dtype, f->dim,
                    row);
}

void attention_store_grad_k(const struct attention_cpu *x, const struct gpunvme_attention_grad *p,
                            const struct attention_sequence *s, int64_t j, int64_t head, float *row)
{
    const struct gpunvme_attention *f = x->p;

    if (!p->grad_k)
        return;
    if (f->rope.dim && !f->rope.queries_only)
        attention_rotate(&f->rope, x->rope_ratio, j, true, row);
    attention_store(p->grad_k, attention_at(&p->grad_k_strides, &s->k, j, head), f->dtype, f->dim,
                    row);
}

void attention_store_grad_v(const struct gpunvme_attention_grad *p,
                            const struct attention_sequence *s, int64_t j, int64_t head,
                            const float *row)
{
    if (p->grad_v)
        attention_store(p->grad_v, attention_at(&p->grad_v_strides, &s->k, j, head),
                        p->forward.dtype, p->forward.dim_v, row);
}

double attention_delta(const struct gpunvme_attention_grad *p, const struct attention_sequence *s,
                       int64_t i, int64_t head, float *out, float *grad_out)
{
    const struct gpunvme_attention *f = &p->forward;
    double sum = 0;

    attention_load(f->out, attention_at(&f->out_strides, &s->q, i, head), f->out_dtype, f->dim_v,
                   out);
    attention_load_grad_out(p, s, i, head, grad_out);
    for (int64_t c = 0; c < f->dim_v; c++)
        sum += (double)out[c] * (double)grad_out[c];
    return sum;
}

void attention_grad_sinks(const struct attention_cpu *x, const struct gpunvme_attention_grad *p,
                          float *room)
{
    const struct gpunvme_attention *f = x->p;

    for (int64_t head = 0; head < f->heads; head++) {
        double sum = 0;

        for (int64_t b = 0; b < f->batch; b++) {
            struct attention_sequence s = attention_sequence_of(x, b);

            for (int64_t i = 0; i < s.q_len; i++) {
                double lse = (double)f->lse[attention_at(&f->lse_strides, &s.q, i, head)];

                sum -= exp((double)f->sinks[head] - lse) *
                       attention_delta(p, &s, i, head, room, room + f->dim_v);
            }
        }
        p->grad_sinks[head] = (float)sum;
    }
}
