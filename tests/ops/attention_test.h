/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What the tests of attention share: tensors of any layout among poisoned memory, and attention by
 * its formulas, one element after the other. That is computed twice: in f64, and with the roundings
 * of ordinary arithmetic in the operands' type, which loses what a result may lose twice. (E4M3 has
 * two of these: f32, and what tensor cores do.)
 */
#ifndef TESTS_OPS_ATTENTION_TEST_H
#define TESTS_OPS_ATTENTION_TEST_H

#include "ops_test.h"

enum layout { BSHD, BHSD };

/* sequences x rows x heads x channels; all else in the block is NaN, and stays so. */
struct tensor {
    int64_t batch, rows, heads, dim;
    struct gpunvme_attention_strides strides;
    int dtype;
    size_t nbytes;
    void *block;
};

static inline int64_t tensor_at(const struct tensor *x, int64_t b, int64_t i, int64_t h, int64_t c)
{
    return b * x->strides.batch + i * x->strides.row + h * x->strides.head + c;
}

static inline void tensor_poison(struct tensor *x)
{
    if (x->block)
        memset(x->block, 0xff, x->nbytes);
}

/* Instead of a pad: rows of types of 16 and 8 bits begin at multiples of 16 bytes. */
#define ALIGNED (-1)

/* With `pad` elements behind each head, and more behind each row and sequence. */
static inline struct tensor tensor_new(int64_t batch, int64_t rows, int64_t heads, int64_t dim,
                                       enum layout layout, int64_t pad, int dtype)
{
    struct tensor x = {batch, rows, heads, dim, {0, 0, 0}, dtype, 0, NULL};
    bool any = batch && rows && heads && dim;
    int64_t unit = dtype == GPUNVME_OPS_E4M3 ? 16 : 8;
    int64_t width = dim + (pad == ALIGNED ? 2 * unit - dim % unit : pad);
    int64_t more = pad == ALIGNED ? unit : pad;

    if (layout == BSHD) {
        x.strides.head = width;
        x.strides.row = heads * x.strides.head + more;
        x.strides.batch = rows * x.strides.row + 3 * more;
    } else {
        x.strides.row = width;
        x.strides.head = rows * x.strides.row + more;
        x.strides.batch = heads * x.strides.head + 3 * more;
    }
    x.nbytes = any ? (size_t)(tensor_at(&x, batch - 1, rows - 1, heads - 1, dim)) *
                         gpunvme_ops_dtype_nbytes(dtype)
                   : 0;
    x.block = x.nbytes ? malloc(x.nbytes) : NULL;
    tensor_poison(&x);
    return x;
}

/* Row i of one sequence, in the same memory. */
static inline struct tensor tensor_row(const struct tensor *x, int64_t i)
{
    struct tensor row = *x;
    size_t size = gpunvme_ops_dtype_nbytes(x->dtype);

    row.rows = 1;
    row.nbytes = (size_t)tensor_at(&row, 0, 0, x->heads - 1, x->dim) * size;
    row.block = (char *)x->block + (size_t)tensor_at(x, 0, i, 0, 0) * size;
    return row;
}

static inline double tensor_get(const struct tensor *x, int64_t b, int64_t i, int64_t h, int64_t c)
{
    return (double)cpu_load(x->block, tensor_at(x, b, i, h, c), x->dtype);
}

/* A row of sequence b, of all heads. */
static inline void tensor_random_row(struct tensor *x, int64_t b, int64_t i, struct base_random *r)
{
    for (int64_t h = 0; h < x->heads; h++)
        for (int64_t c = 0; c < x->dim; c++)
            cpu_store(x->block, tensor_at(x, b, i, h, c), x->dtype,
                      (float)(2 * base_random_real(r) - 1));
}

struct request {
    int64_t batch, heads, kv_heads, dim, dim_v, q_len, k_len;
    int64_t left, right;
    float scale, softcap;
    enum layout layout;
    int dtype, out_dtype, threads;
    bool causal, window, sinks, no_lse;
    bool same_bits;                    /* GPUNVME_OPS_DETERMINISTIC */
    bool aligned;                      /* rows begin at multiples of 16 bytes */
    bool ragged;                       /* sequences behind each other, by offsets */
    bool no_descales, shared_descales; /* E4M3: factors are 1; all sequences have the same */
    bool fp8_cache;                    /* K and V, in pages, are E4M3 */
    bool lengths;                      /* of each sequence, shorter than its room */
    int rope;                          /* channels */
    int rope_first;
    bool interleaved, tables, queries_only;
    float base;
};

/* What is not said: some heads, f32, sizes that no tile has. */
static inline struct request with_defaults(struct request r)
{
    r.batch = r.batch ? r.batch : 1;
    r.heads = r.heads ? r.heads : 2;
    r.kv_heads = r.kv_heads ? r.kv_heads : r.heads;
    r.dim = r.dim ? r.dim : 17;
    r.dim_v = r.dim_v ? r.dim_v : r.dim;
    return r;
}

static inline const char *told(const struct request *r)
{
    static char text[200];

    snprintf(text, sizeof(text),
             "%s%s batch %lld heads %lld/%lld dim %lld/%lld q %lld k %lld%s%s%s%s%s rope %d",
             gpunvme_ops_dtype_name(r->dtype), r->fp8_cache ? " cache e4m3" : "",
             (long long)r->batch, (long long)r->heads, (long long)r->kv_heads, (long long)r->dim,
             (long long)r->dim_v, (long long)r->q_len, (long long)r->k_len,
             r->causal ? " causal" : "", r->window ? " window" : "", r->ragged ? " ragged" : "",
             r->lengths ? " lengths" : "", r->sinks ? " sinks" : "", r->rope);
    return text;
}

/* A request's operands and results, and what the results should be. */
struct problem {
    const struct request *r;
    struct tensor q, k, v, out, lse;
    float *sinks, *cos, *sin;
    float *descales[3]; /* of Q, K and V */
    int64_t descale_stride;
    int32_t *q_offsets, *k_offsets, *q_lengths, *k_lengths;
    double *exact, *exact_lse;   /* batch x q_len x heads x dim_v, and x 1 */
    double *plain, *plain_lse;   /* likewise, by ordinary arithmetic in the type */
    double *coarse, *coarse_lse; /* E4M3: likewise, as tensor cores compute */
};

/* Lengths of sequence b: the last is the longest, and the first may be empty. */
static inline int64_t length_of(int64_t most, int64_t b, int64_t batch)
{
    return batch < 2 ? most : most * b / (batch - 1);
}

static inline int64_t q_len_of(const struct problem *p, int64_t b)
{
    if (p->q_lengths)
        return p->q_lengths[b];
    return p->q_offsets ? p->q_offsets[b + 1] - p->q_offsets[b] : p->r->q_len;
}

static inline int64_t k_len_of(const struct problem *p, int64_t b)
{
    if (p->k_lengths)
        return p->k_lengths[b];
    return p->k_offsets ? p->k_offsets[b + 1] - p->k_offsets[b] : p->r->k_len;
}

/* Where row i of sequence b is in a tensor. */
struct place {
    int64_t b, i;
};

static inline struct place q_place(const struct problem *p, int64_t b, int64_t i)
{
    return p->q_offsets ? (struct place){0, p->q_offsets[b] + i} : (struct place){b, i};
}

static inline struct place k_place(const struct problem *p, int64_t b, int64_t j)
{
    return p->k_offsets ? (struct place){0, p->k_offsets[b] + j} : (struct place){b, j};
}

static inline int32_t *integers_new(int64_t n)
{
    int32_t *x = malloc((size_t)n * sizeof(*x));

    assert_non_null(x);
    return x;
}

static inline void make_lengths(struct problem *p)
{
    const struct request *r = p->r;

    if (r->ragged) {
        p->q_offsets = integers_new(r->batch + 1);
        p->k_offsets = integers_new(r->batch + 1);
        p->q_offsets[0] = p->k_offsets[0] = 0;
        for (int64_t b = 0; b < r->batch; b++) {
            p->q_offsets[b + 1] = p->q_offsets[b] + (int32_t)length_of(r->q_len, b, r->batch);
            p->k_offsets[b + 1] =
                p->k_offsets[b] + (int32_t)length_of(r->k_len, r->batch - 1 - b, r->batch);
        }
    }
    if (r->lengths) {
        int32_t *q = integers_new(r->batch + 1), *k = integers_new(r->batch + 1);

        for (int64_t b = 0; b < r->batch; b++) {
            q[b] = (int32_t)(q_len_of(p, b) * (b + 1) / (r->batch + 1));
            k[b] = (int32_t)(k_len_of(p, b) * (b + 2) / (r->batch + 1));
        }
        p->q_lengths = q;
        p->k_lengths = k;
    }
}

/* Of pair c at position t. */
static inline double angle_of(const struct request *r, double t, int64_t c)
{
    return t * pow(r->base > 0 ? (double)r->base : 10000, -2.0 * (double)c / r->rope);
}

static inline void make_tables(struct problem *p)
{
    const struct request *r = p->r;
    int64_t rows = r->q_len > r->k_len ? r->q_len : r->k_len, half = r->rope / 2;

    if (!r->tables)
        return;
    p->cos = malloc((size_t)(rows * half) * sizeof(float));
    p->sin = malloc((size_t)(rows * half) * sizeof(float));
    assert_true(p->cos && p->sin);
    for (int64_t t = 0; t < rows; t++)
        for (int64_t c = 0; c < half; c++) {
            p->cos[t * half + c] = (float)cos(angle_of(r, (double)t, c));
            p->sin[t * half + c] = (float)sin(angle_of(r, (double)t, c));
        }
}

static inline double *doubles_new(int64_t n)
{
    double *x = calloc((size_t)n + 1, sizeof(*x));

    assert_non_null(x);
    return x;
}

static inline int64_t pad_of(const struct request *r, int64_t pad)
{
    return r->aligned ? ALIGNED : pad;
}

/* Of Q (0), K or V, in that sequence and head of K. */
static inline double descale_of(const struct problem *p, int of, int64_t b, int64_t kv_head)
{
    return p->descales[of] ? (double)p->descales[of][b * p->descale_stride + kv_head] : 1;
}

static inline int kv_dtype_of(const struct request *r)
{
    return r->fp8_cache ? GPUNVME_OPS_E4M3 : r->dtype;
}

/* With a gap behind each sequence's, and no two alike. */
static inline void make_descales(struct problem *p, struct base_random *rng)
{
    const struct request *r = p->r;
    int64_t n;

    if (kv_dtype_of(r) != GPUNVME_OPS_E4M3 || r->no_descales)
        return;
    p->descale_stride = r->shared_descales ? 0 : r->kv_heads + 1;
    n = (r->batch - 1) * p->descale_stride + r->kv_heads;
    for (int of = r->dtype != GPUNVME_OPS_E4M3; of < 3; of++) {
        p->descales[of] = malloc((size_t)n * sizeof(float));
        assert_non_null(p->descales[of]);
        for (int64_t i = 0; i < n; i++)
            p->descales[of][i] = (float)(0.5 + base_random_real(rng));
    }
}

static inline struct problem problem_new(const struct request *r, struct base_random *rng)
{
    struct problem p = {.r = r};
    int64_t batch = r->ragged ? 1 : r->batch, q_rows, k_rows, n;

    make_lengths(&p);
    make_tables(&p);
    q_rows = r->ragged ? p.q_offsets[r->batch] : r->q_len;
    k_rows = r->ragged ? p.k_offsets[r->batch] : r->k_len;
    p.q = tensor_new(batch, q_rows, r->heads, r->dim, r->layout, pad_of(r, 3), r->dtype);
    p.k = tensor_new(batch, k_rows, r->kv_heads, r->dim, r->layout, pad_of(r, 5), kv_dtype_of(r));
    p.v = tensor_new(batch, k_rows, r->kv_heads, r->dim_v, r->layout, pad_of(r, 2), kv_dtype_of(r));
    p.out = tensor_new(batch, q_rows, r->heads, r->dim_v, r->layout, pad_of(r, 1), r->out_dtype);
    p.lse = tensor_new(batch, q_rows, r->heads, 1, r->layout, r->layout == BSHD ? 0 : 2,
                       GPUNVME_OPS_F32);
    for (int64_t b = 0; b < r->batch; b++) {
        for (int64_t i = 0; i < q_len_of(&p, b); i++)
            tensor_random_row(&p.q, q_place(&p, b, i).b, q_place(&p, b, i).i, rng);
        for (int64_t j = 0; j < k_len_of(&p, b); j++) {
            tensor_random_row(&p.k, k_place(&p, b, j).b, k_place(&p, b, j).i, rng);
            tensor_random_row(&p.v, k_place(&p, b, j).b, k_place(&p, b, j).i, rng);
        }
    }
    if (r->sinks) {
        p.sinks = malloc((size_t)r->heads * sizeof(float));
        assert_non_null(p.sinks);
        for (int64_t h = 0; h < r->heads; h++)
            p.sinks[h] = (float)(3 * base_random_real(rng) - 1);
    }
    n = r->batch * r->q_len * r->heads;
    p.exact = doubles_new(n * r->dim_v);
    p.plain = doubles_new(n * r->dim_v);
    p.exact_lse = doubles_new(n);
    p.plain_lse = doubles_new(n);
    if (r->dtype == GPUNVME_OPS_E4M3) {
        p.coarse = doubles_new(n * r->dim_v);
        p.coarse_lse = doubles_new(n);
    }
    make_descales(&p, rng);
    return p;
}

static inline void problem_free(struct problem *p)
{
    void *all[] = {p->q.block,    p->k.block,   p->v.block,    p->out.block,   p->lse.block,
                   p->sinks,      p->cos,       p->sin,        p->q_offsets,   p->k_offsets,
                   p->q_lengths,  p->k_lengths, p->exact,      p->exact_lse,   p->plain,
                   p->plain_lse,  p->coarse,    p->coarse_lse, p->descales[0], p->descales[1],
                   p->descales[2]};

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        free(all[i]);
}

/*
 * What arithmetic loses: nothing, or f32's and, where a tensor is stored, the type's rounding. Or
 * that of tensor cores, of E4M3: sums have 14 bits, which each 32 products are cut off to, and
 * weights are rounded to the type, times 2^6 of the largest.
 */
struct arithmetic {
    bool exact;
    int dtype;
    bool tensor_cores;
};

static inline float cut_off(float sum)
{
    return isfinite(sum) ? cpu_float_of_bits(cpu_bits_of_float(sum) & ~0x3ffu) : sum;
}

static inline double in_f32(const struct arithmetic *a, double x)
{
    return a->exact ? x : (double)(float)x;
}

static inline double stored(const struct arithmetic *a, int dtype, double x)
{
    float one = 0;

    if (a->exact)
        return x;
    cpu_store(&one, 0, dtype, (float)x);
    return (double)cpu_load(&one, 0, dtype);
}

/* A row of Q or K, rotated. */
static inline void rotated(const struct problem *p, const struct arithmetic *a,
                           const struct tensor *x, struct place at, int64_t h, int64_t position,
                           bool rotate, double *row)
{
    const struct request *r = p->r;

    for (int64_t c = 0; c < x->dim; c++)
        row[c] = tensor_get(x, at.b, at.i, h, c);
    for (int64_t c = 0; rotate && c < r->rope / 2; c++) {
        int64_t one = r->rope_first + (r->interleaved ? 2 * c : c);
        int64_t two = one + (r->interleaved ? 1 : r->rope / 2);
        double angle = angle_of(r, (double)position, c), u = row[one], v = row[two];

        row[one] = in_f32(a, u * cos(angle) - v * sin(angle));
        row[two] = in_f32(a, u * sin(angle) + v * cos(angle));
    }
}

/* Ordinary arithmetic adds in order, and rounds each product and sum. */
UNCHECKED static inline double dot(const struct arithmetic *a, const double *x, const double *y,
                                   int64_t n)
{
    float sum = 0;
    double unused;

    if (a->exact)
        return sum_of_products(x, y, n, &unused);
    for (int64_t c = 0; c < n; c++) {
        sum += (float)(x[c] * y[c]);
        if (a->tensor_cores && (c % 32 == 31 || c == n - 1))
            sum = cut_off(sum);
    }
    return (double)sum;
}

/* sums += weight * row. */
UNCHECKED static inline void add_row(const struct arithmetic *a, double *sums, double weight,
                                     const double *row, int64_t n)
{
    if (a->exact)
        for (int64_t c = 0; c < n; c++)
            sums[c] += weight * row[c];
    else
        for (int64_t c = 0; c < n; c++)
            sums[c] = (double)(float)(sums[c] + (double)(float)(weight * row[c]));
}

static inline double scale_of(const struct request *r)
{
    return r->scale != 0 ? (double)r->scale : 1 / sqrt((double)r->dim);
}

static inline bool sees(const struct request *r, int64_t i, int64_t j, int64_t q_len, int64_t k_len)
{
    int64_t t = i + k_len - q_len;

    if (r->causal && j > t)
        return false;
    if (!r->window)
        return true;
    return (r->left == INT64_MAX || j >= t - r->left) &&
           (r->right == INT64_MAX || j <= t + r->right);
}

/* The rows of one head of a sequence's K, rotated, and of its V. */
struct keys {
    double *k, *v;
};

static inline struct keys keys_new(const struct problem *p, const struct arithmetic *a, int64_t b,
                                   int64_t kh)
{
    const struct request *r = p->r;
    int64_t k_len = k_len_of(p, b);
    struct keys x = {doubles_new(k_len * r->dim), doubles_new(k_len * r->dim_v)};

    for (int64_t j = 0; j < k_len; j++) {
        struct place at = k_place(p, b, j);

        rotated(p, a, &p->k, at, kh, j, r->rope && !r->queries_only, x.k + j * r->dim);
        rotated(p, a, &p->v, at, kh, 0, false, x.v + j * r->dim_v);
    }
    for (int64_t i = 0; i < k_len * r->dim; i++)
        x.k[i] = in_f32(a, x.k[i] * descale_of(p, 1, b, kh));
    for (int64_t i = 0; i < k_len * r->dim_v; i++)
        x.v[i] = in_f32(a, x.v[i] * descale_of(p, 2, b, kh));
    return x;
}

static inline void keys_free(struct keys *x)
{
    free(x->k);
    free(x->v);
}

/* S of all keys of a query; those that it does not see are -infinity. */
static inline void scores_of(const struct problem *p, const struct arithmetic *a,
                             const struct keys *keys, int64_t b, int64_t h, int64_t i,
                             double *scores)
{
    const struct request *r = p->r;
    int64_t q_len = q_len_of(p, b), k_len = k_len_of(p, b);
    double *q = doubles_new(r->dim), cap = (double)r->softcap;

    rotated(p, a, &p->q, q_place(p, b, i), h, i + k_len - q_len, r->rope, q);
    for (int64_t c = 0; c < r->dim; c++)
        q[c] = in_f32(a, q[c] * descale_of(p, 0, b, h / (r->heads / r->kv_heads)));
    for (int64_t j = 0; j < k_len; j++) {
        scores[j] = -INFINITY;
        if (!sees(r, i, j, q_len, k_len))
            continue;
        scores[j] = stored(a, a->dtype, scale_of(r) * dot(a, q, keys->k + j * r->dim, r->dim));
        if (cap > 0)
            scores[j] = stored(a, a->dtype, cap * tanh(scores[j] / cap));
    }
    free(q);
}

/* The logarithm of the sum of exponentials, with the head's sink. */
static inline double lse_of(const struct problem *p, const struct arithmetic *a, int64_t h,
                            const double *scores, int64_t n)
{
    double most = p->sinks ? (double)p->sinks[h] : -INFINITY, sum = 0;

    for (int64_t j = 0; j < n; j++)
        most = fmax(most, scores[j]);
    if (most == -INFINITY)
        return most;
    for (int64_t j = 0; j < n; j++)
        sum = in_f32(a, sum + in_f32(a, exp(in_f32(a, scores[j] - most))));
    if (p->sinks)
        sum = in_f32(a, sum + exp((double)p->sinks[h] - most));
    return in_f32(a, most + in_f32(a, log(sum)));
}

static inline int64_t exact_at(const struct request *r, int64_t b, int64_t i, int64_t h)
{
    return (b * r->q_len + i) * r->heads + h;
}

/* A weight as it is multiplied with V; `largest` is the row's. */
static inline double stored_weight(const struct arithmetic *a, double weight, double largest)
{
    const struct arithmetic fp8 = {false, GPUNVME_OPS_E4M3, true};

    if (!a->tensor_cores)
        return stored(a, a->dtype, weight);
    return stored(&fp8, fp8.dtype, weight / largest * 64) * largest / 64;
}

static inline void reference_row(const struct problem *p, const struct arithmetic *a,
                                 const struct keys *keys, int64_t b, int64_t h, int64_t i,
                                 double *out, double *lse)
{
    const struct request *r = p->r;
    int64_t k_len = k_len_of(p, b);
    double *scores = doubles_new(k_len), most = -INFINITY;

    scores_of(p, a, keys, b, h, i, scores);
    *lse = lse_of(p, a, h, scores, k_len);
    for (int64_t j = 0; j < k_len; j++)
        most = fmax(most, scores[j]);
    for (int64_t c = 0; c < r->dim_v; c++)
        out[c] = 0;
    for (int64_t j = 0; j < k_len; j++) {
        if (scores[j] != -INFINITY)
            add_row(a, out, stored_weight(a, exp(scores[j] - *lse), exp(most - *lse)),
                    keys->v + j * r->dim_v, r->dim_v);
        for (int64_t c = 0; a->tensor_cores && j % 32 == 31 && c < r->dim_v; c++)
            out[c] = (double)cut_off((float)out[c]);
    }
    for (int64_t c = 0; c < r->dim_v; c++)
        out[c] = stored(a, r->out_dtype, out[c]);
    free(scores);
}

static inline void make_reference(const struct problem *p, const struct arithmetic *a, double *out,
                                  double *lse)
{
    const struct request *r = p->r;
    int64_t group = r->heads / r->kv_heads;

    for (int64_t b = 0; b < r->batch; b++)
        for (int64_t kh = 0; kh < r->kv_heads; kh++) {
            struct keys keys = keys_new(p, a, b, kh);

            for (int64_t i = 0; i < q_len_of(p, b); i++)
                for (int64_t h = kh * group; h < (kh + 1) * group; h++) {
                    int64_t at = exact_at(r, b, i, h);

                    reference_row(p, a, &keys, b, h, i, out + at * r->dim_v, lse + at);
                }
            keys_free(&keys);
        }
}

/* All references of all rows. */
static inline void make_references(struct problem *p)
{
    int dtype = p->coarse ? GPUNVME_OPS_F32 : p->r->dtype;
    const struct arithmetic exact = {true, dtype, false}, plain = {false, dtype, false};
    const struct arithmetic coarse = {false, dtype, true};

    make_reference(p, &exact, p->exact, p->exact_lse);
    make_reference(p, &plain, p->plain, p->plain_lse);
    if (p->coarse)
        make_reference(p, &coarse, p->coarse, p->coarse_lse);
}

/* The largest error of a result so far, of ordinary arithmetic, and the largest value. */
struct errors {
    double got, plain, value;
};

static inline void errors_add(struct errors *e, double got, double plain, double exact)
{
    double error = got == exact ? 0 : fabs(got - exact);

    if (!(error <= e->got)) /* a NaN stays */
        e->got = e->got != e->got ? e->got : error;
    if (plain != exact)
        e->plain = fmax(e->plain, fabs(plain - exact));
    if (isfinite(exact))
        e->value = fmax(e->value, fabs(exact));
}

/* Twice the error of ordinary arithmetic; and some ulps of f32 and a rounding, where that is 0. */
static inline double allowed(const struct errors *e, int dtype)
{
    return 2 * e->plain + 8 * F32_EPS * (e->value + 1) + rounding(dtype, e->value);
}

/* All that is no element of a row of Q, or of K, is as it was poisoned. */
static inline void expect_padding(const struct problem *p, const struct tensor *x, bool queries)
{
    size_t size = gpunvme_ops_dtype_nbytes(x->dtype);
    unsigned char *seen = x->nbytes ? malloc(x->nbytes) : NULL;

    if (!seen)
        return;
    memcpy(seen, x->block, x->nbytes);
    for (int64_t b = 0; b < p->r->batch; b++)
        for (int64_t i = 0; i < (queries ? q_len_of(p, b) : k_len_of(p, b)); i++)
            for (int64_t h = 0; h < x->heads; h++) {
                struct place at = queries ? q_place(p, b, i) : k_place(p, b, i);

                memset(seen + (size_t)tensor_at(x, at.b, at.i, h, 0) * size, 0xff,
                       (size_t)x->dim * size);
            }
    for (size_t i = 0; i < x->nbytes; i++)
        if (seen[i] != 0xff)
            fail_msg("padding was written at byte %zu of %zu", i, x->nbytes);
    free(seen);
}

/* The host's view of a call: without padding by NULL where a tensor has no element. */
static inline struct gpunvme_attention attention_of(const struct problem *p)
{
    const struct request *r = p->r;

    return (struct gpunvme_attention){
        .batch = r->batch,
        .heads = r->heads,
        .kv_heads = r->kv_heads,
        .dim = r->dim,
        .dim_v = r->dim_v,
        .q_len = r->q_len,
        .k_len = r->k_len,
        .q_rows = p->q.rows,
        .k_rows = p->k.rows,
        .q = p->q.block,
        .k = p->k.block,
        .v = p->v.block,
        .out = p->out.block,
        .lse = r->no_lse ? NULL : p->lse.block,
        .q_strides = p->q.strides,
        .k_strides = p->k.strides,
        .v_strides = p->v.strides,
        .out_strides = p->out.strides,
        .lse_strides = p->lse.strides,
        .q_offsets = p->q_offsets,
        .k_offsets = p->k_offsets,
        .q_lengths = p->q_lengths,
        .k_lengths = p->k_lengths,
        .sinks = p->sinks,
        .window_left = r->left,
        .window_right = r->right,
        .rope = {.cos = p->cos,
                 .sin = p->sin,
                 .rows = r->q_len > r->k_len ? r->q_len : r->k_len,
                 .ld = r->rope / 2,
                 .base = r->base,
                 .dim = r->rope,
                 .first = r->rope_first,
                 .interleaved = r->interleaved,
                 .queries_only = r->queries_only},
        .scale = r->scale,
        .softcap = r->softcap,
        .causal = r->causal,
        .window = r->window,
        .dtype = r->dtype,
        .out_dtype = r->out_dtype,
        .q_descale = p->descales[0],
        .k_descale = p->descales[1],
        .v_descale = p->descales[2],
        .descale_stride = p->descale_stride,
    };
}

/* Copies of operands and results on the device under test, and what has to come back. */
struct on_device {
    struct {
        void *host, *device;
        size_t nbytes;
    } copies[24];
    unsigned count;
};

static inline void *put(struct on_device *d, const void *host, size_t nbytes, bool result)
{
    void *device = host ? device_in(host, nbytes) : NULL;

    d->copies[d->count].host = result ? (void *)(uintptr_t)host : NULL;
    d->copies[d->count].device = device;
    d->copies[d->count++].nbytes = nbytes;
    return device;
}

static inline void take_back(struct on_device *d)
{
    for (unsigned i = 0; i < d->count; i++)
        device_out(d->copies[i].host, d->copies[i].device, d->copies[i].nbytes);
    d->count = 0;
}

/* The operands of a call are copied, and its pointers changed to the copies. */
static inline void put_attention(struct on_device *d, const struct problem *p,
                                 struct gpunvme_attention *x, bool results)
{
    const struct request *r = p->r;
    size_t table = (size_t)(x->rope.rows * x->rope.ld) * sizeof(float);
    size_t numbers = (size_t)r->batch * sizeof(int32_t);
    size_t factors = (size_t)((r->batch - 1) * p->descale_stride + r->kv_heads) * sizeof(float);

    x->q = put(d, x->q, p->q.nbytes, false);
    x->k = put(d, x->k, p->k.nbytes, false);
    x->v = put(d, x->v, p->v.nbytes, false);
    x->out = put(d, x->out, p->out.nbytes, results);
    x->lse = put(d, x->lse, p->lse.nbytes, results);
    x->q_offsets = put(d, x->q_offsets, numbers + sizeof(int32_t), false);
    x->k_offsets = put(d, x->k_offsets, numbers + sizeof(int32_t), false);
    x->q_lengths = put(d, x->q_lengths, numbers, false);
    x->k_lengths = put(d, x->k_lengths, numbers, false);
    x->sinks = put(d, x->sinks, (size_t)r->heads * sizeof(float), false);
    x->rope.cos = put(d, x->rope.cos, table, false);
    x->rope.sin = put(d, x->rope.sin, table, false);
    x->q_descale = put(d, x->q_descale, factors, false);
    x->k_descale = put(d, x->k_descale, factors, false);
    x->v_descale = put(d, x->v_descale, factors, false);
}

static inline void run_attention(const char *variant, const struct problem *p)
{
    struct gpunvme_ops_exec exec = {
        .device = TEST_DEVICE, .variant = variant, .threads = p->r->threads};
    struct gpunvme_attention x = attention_of(p);
    struct on_device d = {.count = 0};
    struct workspace w;
    size_t nbytes = 77;

    put_attention(&d, p, &x, true);
    expect_ok(gpunvme_attention_workspace(&x, &exec, &nbytes));
    w = workspace_new(nbytes);
    exec.workspace = w.data;
    exec.workspace_nbytes = w.nbytes;
    expect_ok(gpunvme_attention(&x, &exec));
    take_back(&d);
    workspace_free(&w);
}

/* out and lse with their references. */
static inline void compare_out(const char *variant, const struct problem *p)
{
    const struct request *r = p->r;
    bool coarse = p->coarse && TEST_DEVICE == GPUNVME_OPS_CUDA && strcmp(variant, "naive") != 0;
    const double *plain = coarse ? p->coarse : p->plain;
    const double *plain_lse = coarse ? p->coarse_lse : p->plain_lse;
    struct errors out = {0}, lse = {0};

    for (int64_t b = 0; b < r->batch; b++)
        for (int64_t i = 0; i < q_len_of(p, b); i++)
            for (int64_t h = 0; h < r->heads; h++) {
                struct place at = q_place(p, b, i);
                int64_t n = exact_at(r, b, i, h);

                for (int64_t c = 0; c < r->dim_v; c++)
                    errors_add(&out, tensor_get(&p->out, at.b, at.i, h, c), plain[n * r->dim_v + c],
                               p->exact[n * r->dim_v + c]);
                if (!r->no_lse)
                    errors_add(&lse, tensor_get(&p->lse, at.b, at.i, h, 0), plain_lse[n],
                               p->exact_lse[n]);
            }
    if (!(out.got <= allowed(&out, r->out_dtype)))
        fail_msg("%s, %s: out is off by %g, and may be by %g", variant, told(r), out.got,
                 allowed(&out, r->out_dtype));
    if (!(lse.got <= allowed(&lse, GPUNVME_OPS_F32)))
        fail_msg("%s, %s: lse is off by %g, and may be by %g", variant, told(r), lse.got,
                 allowed(&lse, GPUNVME_OPS_F32));
}

/* A rung may refuse a call; where this says that it takes it, a refusal fails the test. */
static inline bool forward_takes(const char *variant, const struct request *r)
{
    if (!strcmp(variant, "hopper") &&
        (!r->aligned || r->scale < 0 ||
         (r->dtype == GPUNVME_OPS_E4M3 && (r->rope || r->dim > 128 || r->dim_v > 128))))
        return false;
    return variant_takes(GPUNVME_OPS_ATTENTION, variant, r->dtype, 0);
}

static inline void test_forward(const char *variant, void *arg)
{
    struct problem *p = arg;

    if (!forward_takes(variant, p->r))
        return;
    tensor_poison(&p->out);
    tensor_poison(&p->lse);
    run_attention(variant, p);
    compare_out(variant, p);
    expect_padding(p, &p->out, true);
    expect_padding(p, &p->lse, true);
}

/* Every variant, with operands drawn from `rng`. */
static inline void test_request(struct request r, struct base_random *rng)
{
    struct problem p;

    r = with_defaults(r);
    p = problem_new(&r, rng);
    make_references(&p);
    for_each_variant(GPUNVME_OPS_ATTENTION, test_forward, &p);
    problem_free(&p);
}

#endif
