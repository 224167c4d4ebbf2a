/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gpunvme ops: attention's cases. Tensors have the layout sequence, row, head, channel, without
 * padding; values have as many channels as keys. How far results are from sums in f64, and what
 * sums in f32 may lose.
 */
#include <math.h>
#include <stdlib.h>

#include "ops.h"
#include "ops/cpu/dtype.h"

/* Half an ulp of f32. An exponential may be off by some of them. */
#define EPS     0x1p-24
#define EXP_EPS (16 * EPS)

void ops_attention_count(const struct ops_case *c, int64_t counts[OPS_NMATRICES])
{
    const struct ops_heads *h = &c->heads;
    int64_t queries = h->batch * c->shape.m * h->heads, keys = h->batch * c->shape.n * h->kv_heads;

    counts[OPS_A] = counts[OPS_C] = queries * c->shape.k;
    counts[OPS_B] = counts[OPS_V] = keys * c->shape.k;
    counts[OPS_LSE] = queries;
}

/* The keys that a query sees. */
static int64_t seen_by(const struct ops_case *c, int64_t i)
{
    int64_t seen = i + 1 + c->shape.n - c->shape.m;

    return !c->heads.causal ? c->shape.n : seen > 0 ? seen : 0;
}

/* Two products; masked scores do not count. */
double ops_attention_flops(const struct ops_case *c)
{
    double pairs = 0;

    for (int64_t i = 0; i < c->shape.m; i++)
        pairs += (double)seen_by(c, i);
    return 4 * pairs * (double)c->shape.k * (double)c->heads.heads * (double)c->heads.batch;
}

static struct gpunvme_attention_strides strides_of(int64_t rows, int64_t heads, int64_t dim)
{
    return (struct gpunvme_attention_strides){rows * heads * dim, heads * dim, dim};
}

struct gpunvme_attention ops_attention_of(const struct ops_case *c)
{
    const struct ops_heads *h = &c->heads;
    struct gpunvme_attention_strides q = strides_of(c->shape.m, h->heads, c->shape.k);
    struct gpunvme_attention_strides k = strides_of(c->shape.n, h->kv_heads, c->shape.k);

    return (struct gpunvme_attention){.batch = h->batch,
                                      .heads = h->heads,
                                      .kv_heads = h->kv_heads,
                                      .dim = c->shape.k,
                                      .dim_v = c->shape.k,
                                      .q_len = c->shape.m,
                                      .k_len = c->shape.n,
                                      .q = ops_case_at(c, OPS_A),
                                      .k = ops_case_at(c, OPS_B),
                                      .v = ops_case_at(c, OPS_V),
                                      .out = ops_case_at(c, OPS_C),
                                      .lse = ops_case_at(c, OPS_LSE),
                                      .q_strides = q,
                                      .k_strides = k,
                                      .v_strides = k,
                                      .out_strides = q,
                                      .lse_strides = strides_of(c->shape.m, h->heads, 1),
                                      .causal = h->causal,
                                      .dtype = c->dtype,
                                      .out_dtype = c->dtype,
                                      .compute = c->compute};
}

/* One query of a head, and where its row and its keys begin. */
struct query {
    int64_t i, head, b;
    int64_t row, keys, key_step;
};

static struct query query_of(const struct ops_case *c, int64_t b, int64_t i, int64_t head)
{
    const struct ops_heads *h = &c->heads;
    int64_t dim = c->shape.k, kv_head = head / (h->heads / h->kv_heads);

    return (struct query){
        .i = i,
        .head = head,
        .b = b,
        .row = ((b * c->shape.m + i) * h->heads + head) * dim,
        .keys = (b * c->shape.n * h->kv_heads + kv_head) * dim,
        .key_step = h->kv_heads * dim,
    };
}

static double load(const struct ops_case *c, int matrix, int64_t i)
{
    return (double)cpu_load(c->host[matrix], i, c->dtype);
}

/* Weights of the keys that the query sees; `error` is what a score in f32 may lose. */
static double weights_of(const struct ops_case *c, const struct query *q, double *weights,
                         double *error)
{
    double scale = 1 / sqrt((double)c->shape.k), most = -INFINITY, sum = 0, size = 0;
    int64_t seen = seen_by(c, q->i), dim = c->shape.k;

    for (int64_t j = 0; j < seen; j++) {
        double product = 0, sizes = 0;

        for (int64_t x = 0; x < dim; x++) {
            double one = load(c, OPS_A, q->row + x) * load(c, OPS_B, q->keys + j * q->key_step + x);

            product += one;
            sizes += fabs(one);
        }
        weights[j] = scale * product;
        most = fmax(most, weights[j]);
        size = fmax(size, scale * sizes);
    }
    for (int64_t j = 0; j < seen; j++)
        sum += weights[j] = exp(weights[j] - most);
    for (int64_t j = 0; j < seen; j++)
        weights[j] /= sum;
    *error = (double)(dim + 4) * EPS * size + EXP_EPS;
    return most + log(sum);
}

/* What sums of `seen` weights may lose, as a share: on the GPU weights have the operands' type. */
static double share_of(const struct ops_case *c, int64_t seen, double error)
{
    bool rounded = c->device == GPUNVME_OPS_CUDA && c->dtype != GPUNVME_OPS_F32;

    return 2 * error + (double)(seen + 8) * EPS + (rounded ? ops_rounding(c->dtype, 1) : 0);
}

static double error_of_query(const struct ops_case *c, const struct query *q, double *weights,
                             double most)
{
    int64_t seen = seen_by(c, q->i), dim = c->shape.k;
    double error, lse = weights_of(c, q, weights, &error), share = share_of(c, seen, error);

    most = ops_worst(most, (double)((const float *)c->host[OPS_LSE])[q->row / dim], lse,
                     error + (double)(seen + 8) * EPS + 4 * EPS * fabs(lse));
    for (int64_t x = 0; x < dim; x++) {
        double sum = 0, size = 0;

        for (int64_t j = 0; j < seen; j++) {
            double one = weights[j] * load(c, OPS_V, q->keys + j * q->key_step + x);

            sum += one;
            size += fabs(one);
        }
        most = ops_worst(most, load(c, OPS_C, q->row + x), sum,
                         share * size + ops_rounding(c->dtype, sum));
    }
    return most;
}

/* Line number `at` of `count` that are spread from the first to the last of n. */
static int64_t spread(int64_t at, int64_t count, int64_t n)
{
    return count < 2 ? 0 : (int64_t)((double)at * (double)(n - 1) / (double)(count - 1));
}

double ops_attention_error(const struct ops_case *c, int64_t lines)
{
    int64_t heads = c->heads.batch * c->heads.heads, nheads = lines && lines < heads ? 4 : heads;
    int64_t rows = lines && lines < c->shape.m ? lines : c->shape.m;
    double *weights = malloc((size_t)c->shape.n * sizeof(*weights)), most = weights ? 0 : NAN;

    nheads = nheads < heads ? nheads : heads;
    for (int64_t h = 0; h < nheads; h++)
        for (int64_t r = 0; r < rows && most <= 1; r++) {
            int64_t head = spread(h, nheads, heads);
            struct query q = query_of(c, head / c->heads.heads, spread(r, rows, c->shape.m),
                                      head % c->heads.heads);

            most = error_of_query(c, &q, weights, most);
        }
    free(weights);
    return most;
}
