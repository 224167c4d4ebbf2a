/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gpunvme ops: how far attention's results are from sums in f64, and what sums in f32 may lose.
 */
#include <math.h>
#include <stdlib.h>

#include "ops.h"
#include "ops/cpu/dtype.h"

/* Half an ulp of f32. An exponential may be off by some of them. */
#define EPS     0x1p-24
#define EXP_EPS (16 * EPS)

/* One query of a head, and where its row is. */
struct query {
    int64_t i, head, b;
    int64_t row, kv_head;
};

static struct query query_of(const struct ops_case *c, int64_t b, int64_t i, int64_t head)
{
    const struct ops_heads *h = &c->heads;

    return (struct query){
        .i = i,
        .head = head,
        .b = b,
        .row = ((b * c->shape.m + i) * h->heads + head) * c->shape.k,
        .kv_head = head / (h->heads / h->kv_heads),
    };
}

static int64_t key_at(const struct ops_case *c, const struct query *q, int64_t j)
{
    return ops_attention_key_at(c, q->b, j, q->kv_head);
}

static double load(const struct ops_case *c, int matrix, int64_t i)
{
    return (double)cpu_load(c->host[matrix], i, ops_attention_kv_dtype(c, matrix));
}

static const float *scale_at(const struct ops_case *c, int matrix, int64_t b, int64_t kv_head)
{
    const float *scales = c->host[matrix];

    return scales ? scales + b * c->heads.kv_heads + kv_head : NULL;
}

/* Of fp8: what the numbers that the query reads are multiplied by. */
static double scale_of(const struct ops_case *c, int matrix, const struct query *q)
{
    const float *scale = scale_at(c, matrix, q->b, q->kv_head);

    return scale ? (double)*scale : 1;
}

/*
 * What tensor cores lose of sums of fp8, which they cut off behind 14 bits at each 32 of k; as a
 * share of the sizes of `k` products (tests/ops looks closer).
 */
static double fp8_share(const struct ops_case *c, int64_t k)
{
    return c->device == GPUNVME_OPS_CUDA && ops_is_fp8(c->dtype) ? (double)(k / 32 + 4) * 0x1p-13
                                                                 : 0;
}

/* cap tanh(score / cap), whose tanh may be off by some EPS. */
#define CAP_EPS (8 * EPS)

static double capped(const struct ops_case *c, double score)
{
    double cap = c->heads.softcap;

    return cap > 0 ? cap * tanh(score / cap) : score;
}

/* Weights of the keys that the query sees; `error` is what a score in f32 may lose. */
static double weights_of(const struct ops_case *c, const struct query *q, struct ops_seen seen,
                         double *weights, double *error)
{
    double scale = scale_of(c, OPS_SCALE_A, q) * scale_of(c, OPS_SCALE_B, q);
    double most = -INFINITY, sum = 0, size = 0;
    int64_t dim = c->shape.k;

    scale /= sqrt((double)dim);

    for (int64_t j = seen.first; j < seen.end; j++) {
        double product = 0, sizes = 0;

        for (int64_t x = 0; x < dim; x++) {
            double one = load(c, OPS_A, q->row + x) * load(c, OPS_B, key_at(c, q, j) + x);

            product += one;
            sizes += fabs(one);
        }
        weights[j] = capped(c, scale * product);
        most = fmax(most, weights[j]);
        size = fmax(size, scale * sizes);
    }
    for (int64_t j = seen.first; j < seen.end; j++)
        sum += weights[j] = exp(weights[j] - most);
    for (int64_t j = seen.first; j < seen.end; j++)
        weights[j] /= sum;
    *error =
        ((double)(dim + 4) * EPS + fp8_share(c, dim)) * size + EXP_EPS + CAP_EPS * c->heads.softcap;
    return most + log(sum);
}

/*
 * What sums of `seen` weights may lose, as a share: on the GPU weights have the operands' type,
 * with 2^-4 of fp8. (Random operands have no weights so small that they would be subnormal.)
 */
static double share_of(const struct ops_case *c, int64_t seen, double error)
{
    bool rounded = c->device == GPUNVME_OPS_CUDA && c->dtype != GPUNVME_OPS_F32;
    double one = ops_is_fp8(c->dtype) ? 0x1p-4 : ops_rounding(c->dtype, 1);

    return 2 * error + (double)(seen + 8) * EPS + fp8_share(c, seen) + (rounded ? one : 0);
}

static double error_of_query(const struct ops_case *c, const struct query *q, double *weights,
                             double most)
{
    struct ops_seen keys = ops_attention_seen(c, q->b, q->i);
    int64_t seen = keys.end - keys.first, row = q->row / c->shape.k;
    int64_t values = ops_attention_values(c);
    int v = ops_attention_is_latent(c) ? OPS_B : OPS_V, out = ops_case_out_dtype(c);
    double factor = scale_of(c, OPS_SCALE_V, q);
    double error, lse = weights_of(c, q, keys, weights, &error), share = share_of(c, seen, error);

    most = ops_worst(most, (double)((const float *)c->host[OPS_LSE])[row], lse,
                     error + (double)(seen + 8) * EPS + 4 * EPS * fabs(lse));
    for (int64_t x = 0; x < values; x++) {
        double sum = 0, size = 0;

        for (int64_t j = keys.first; j < keys.end; j++) {
            double one = weights[j] * factor * load(c, v, key_at(c, q, j) + x);

            sum += one;
            size += fabs(one);
        }
        most = ops_worst(most, (double)cpu_load(c->host[OPS_C], row * values + x, out), sum,
                         share * size + ops_rounding(out, sum));
    }
    return most;
}

/* A query and a key, backwards: P and dS, what dS is made of in size, and the share it may lose. */
struct pair {
    double weight, grad, size, share;
};

static double dot(const struct ops_case *c, int one, int64_t at, int other, int64_t other_at,
                  double *size)
{
    double sum = 0;

    *size = 0;
    for (int64_t x = 0; x < c->shape.k; x++) {
        double product = load(c, one, at + x) * load(c, other, other_at + x);

        sum += product;
        *size += fabs(product);
    }
    return sum;
}

static struct pair pair_of(const struct ops_case *c, const struct query *q, int64_t j)
{
    bool rounded = c->device == GPUNVME_OPS_CUDA && c->dtype != GPUNVME_OPS_F32;
    double scale = 1 / sqrt((double)c->shape.k), sizes, grads, deltas;
    int64_t key = key_at(c, q, j);
    double lse = (double)((const float *)c->host[OPS_LSE])[q->row / c->shape.k];
    double score = capped(c, scale * dot(c, OPS_A, q->row, OPS_B, key, &sizes));
    double grad = dot(c, OPS_GRAD_Y, q->row, OPS_V, key, &grads);
    double delta = dot(c, OPS_GRAD_Y, q->row, OPS_OUT, q->row, &deltas);
    double one = (double)(c->shape.k + 4) * EPS, cap = c->heads.softcap;
    double slope = cap > 0 ? 1 - score / cap * (score / cap) : 1;
    struct pair pair = {.weight = exp(score - lse)};

    pair.grad = pair.weight * (grad - delta) * slope;
    pair.size = pair.weight * (grads + deltas);
    pair.share = one * (scale * sizes + 2) + EXP_EPS + 2 * EPS * fabs(lse) +
                 (rounded ? 2 * ops_rounding(c->dtype, 1) : 0);
    if (cap > 0) /* the score's error once more, in the slope */
        pair.share += CAP_EPS * (cap + 2) + 2 * one * scale * sizes / cap;
    return pair;
}

/* A row of a gradient, and what each of its sums may be off. */
struct row {
    double *value, *allowed;
};

/* row += weight * channels of a matrix, of `count` products in all. */
static void add(const struct ops_case *c, struct row *row, double weight, double size, double share,
                int64_t count, int matrix, int64_t at)
{
    for (int64_t x = 0; x < c->shape.k; x++) {
        double one = load(c, matrix, at + x);

        row->value[x] += weight * one;
        row->allowed[x] += size * fabs(one) * (share + (double)(count + 8) * EPS);
    }
}

static double worst_row(const struct ops_case *c, const struct row *row, int matrix, int64_t at,
                        double most)
{
    for (int64_t x = 0; x < c->shape.k; x++)
        most = ops_worst(most, load(c, matrix, at + x), row->value[x],
                         row->allowed[x] + ops_rounding(c->dtype, row->value[x]));
    return most;
}

static void clear(const struct ops_case *c, struct row *row)
{
    for (int64_t x = 0; x < c->shape.k; x++)
        row->value[x] = row->allowed[x] = 0;
}

static double error_of_grad_q(const struct ops_case *c, const struct query *q, struct row *row,
                              double most)
{
    double scale = 1 / sqrt((double)c->shape.k);
    struct ops_seen seen = ops_attention_seen(c, q->b, q->i);

    clear(c, row);
    for (int64_t j = seen.first; j < seen.end; j++) {
        struct pair pair = pair_of(c, q, j);

        add(c, row, scale * pair.grad, scale * pair.size, pair.share, seen.end - seen.first, OPS_B,
            key_at(c, q, j));
    }
    return worst_row(c, row, OPS_C, q->row, most);
}

/* Of key j, in the head of K that q reads: over all queries of the heads that share it. */
static double error_of_grad_kv(const struct ops_case *c, const struct query *q, int64_t j,
                               struct row rows[2], double most)
{
    int64_t group = c->heads.heads / c->heads.kv_heads, first = q->head / group * group;
    double scale = 1 / sqrt((double)c->shape.k);

    clear(c, &rows[0]);
    clear(c, &rows[1]);
    for (int64_t head = first; head < first + group; head++)
        for (int64_t i = 0; i < c->shape.m; i++) {
            struct query other = query_of(c, q->b, i, head);
            struct ops_seen seen = ops_attention_seen(c, q->b, i);
            struct pair pair;

            if (j < seen.first || j >= seen.end)
                continue;
            pair = pair_of(c, &other, j);
            add(c, &rows[0], scale * pair.grad, scale * pair.size, pair.share, group * c->shape.m,
                OPS_A, other.row);
            add(c, &rows[1], pair.weight, pair.weight, pair.share, group * c->shape.m, OPS_GRAD_Y,
                other.row);
        }
    most = worst_row(c, &rows[0], OPS_GRAD_K, key_at(c, q, j), most);
    return worst_row(c, &rows[1], OPS_GRAD_V, key_at(c, q, j), most);
}

/* Lines from the first to the last of n. */
static int64_t spread(int64_t at, int64_t count, int64_t n)
{
    return count < 2 ? 0 : (int64_t)((double)at * (double)(n - 1) / (double)(count - 1));
}

static int64_t at_most(int64_t n, int64_t most)
{
    return most && most < n ? most : n;
}

static double error_of_head(const struct ops_case *c, int64_t b, int64_t head, int64_t lines,
                            double *room, double most)
{
    int64_t m = c->shape.m, n = c->shape.n, k = c->shape.k;
    struct row rows[2] = {{room, room + k}, {room + 2 * k, room + 3 * k}};
    bool backward = c->op == GPUNVME_OPS_ATTENTION_BACKWARD;
    bool first_of_group = head % (c->heads.heads / c->heads.kv_heads) == 0;

    for (int64_t r = 0; r < at_most(m, lines) && most <= 1; r++) {
        struct query q = query_of(c, b, spread(r, at_most(m, lines), m), head);

        most = backward ? error_of_grad_q(c, &q, rows, most) : error_of_query(c, &q, room, most);
    }
    for (int64_t r = 0; r < at_most(n, lines) && most <= 1 && backward && first_of_group; r++) {
        struct query q = query_of(c, b, 0, head);

        most = error_of_grad_kv(c, &q, spread(r, at_most(n, lines), n), rows, most);
    }
    return most;
}

/* An element as a cache has it: of E4M3 it is rounded. */
static double cached(double element, const float *scale)
{
    return scale ? (double)cpu_from_e4m3(cpu_to_e4m3((float)element / *scale)) : element;
}

/* A row of the cache: the new token's, or what it was before, which is NaN. */
static double error_of_row(const struct ops_case *c, int cache, int64_t at, int from, int64_t token,
                           double most, const float *scale)
{
    for (int64_t x = 0; x < c->shape.k; x++) {
        double got = load(c, cache, at + x);

        if (token >= 0)
            most = ops_worst(most, got, cached(load(c, from, token + x), scale), 0);
        else if (!isnan(got))
            most = INFINITY;
    }
    return most;
}

/* Copies lose nothing, and rounding is told by its bits. */
static double error_of_append(const struct ops_case *c)
{
    int64_t n = ops_attention_keys(c), old = n - c->shape.m;
    double most = 0;

    for (int64_t b = 0; b < c->heads.batch; b++)
        for (int64_t j = 0; j < n; j++)
            for (int64_t h = 0; h < c->heads.kv_heads; h++) {
                int64_t at = ops_attention_key_at(c, b, j, h), row = b * c->shape.m + j - old;
                int64_t token = j < old ? -1 : (row * c->heads.kv_heads + h) * c->shape.k;

                most = error_of_row(c, OPS_PAGES_K, at, OPS_B, token, most,
                                    scale_at(c, OPS_SCALE_B, b, h));
                most = error_of_row(c, OPS_PAGES_V, at, OPS_V, token, most,
                                    scale_at(c, OPS_SCALE_V, b, h));
            }
    return most;
}

double ops_attention_error(const struct ops_case *c, int64_t lines)
{
    int64_t heads = c->heads.batch * c->heads.heads, some = at_most(heads, lines ? 4 : 0);
    double *room = malloc((size_t)(c->shape.n + 4 * c->shape.k) * sizeof(*room));
    double most = room ? 0 : NAN;

    if (c->op == GPUNVME_OPS_KV_APPEND) {
        free(room);
        return error_of_append(c);
    }
    for (int64_t h = 0; h < some && most <= 1; h++) {
        int64_t head = spread(h, some, heads);

        most = error_of_head(c, head / c->heads.heads, head % c->heads.heads, lines, room, most);
    }
    free(room);
    return most;
}
