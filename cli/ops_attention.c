/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gpunvme ops: attention's cases. Tensors have the layout sequence, row, head, channel, without
 * padding; values have as many channels as keys, or are the first ones of those.
 */
#include <math.h>

#include "ops.h"

bool ops_attention_is_latent(const struct ops_case *c)
{
    return c->op == GPUNVME_OPS_ATTENTION_PAGED && c->heads.values;
}

int64_t ops_attention_values(const struct ops_case *c)
{
    return ops_attention_is_latent(c) ? c->heads.values : c->shape.k;
}

int64_t ops_attention_keys(const struct ops_case *c)
{
    bool longer = c->op == GPUNVME_OPS_KV_APPEND && c->shape.m > c->shape.n;

    return longer ? c->shape.m : c->shape.n;
}

static bool is_cache(const struct ops_case *c, int matrix)
{
    bool paged = c->op == GPUNVME_OPS_ATTENTION_PAGED;

    return matrix == OPS_PAGES_K || matrix == OPS_PAGES_V ||
           (paged && (matrix == OPS_B || matrix == OPS_V));
}

int ops_attention_kv_dtype(const struct ops_case *c, int matrix)
{
    return c->heads.fp8_cache && is_cache(c, matrix) ? GPUNVME_OPS_E4M3 : c->dtype;
}

/* Of a sequence. */
static int64_t pages_of(const struct ops_case *c)
{
    return (ops_attention_keys(c) + c->heads.page - 1) / c->heads.page;
}

static void count_pages(const struct ops_case *c, int64_t counts[OPS_NMATRICES])
{
    const struct ops_heads *h = &c->heads;
    int64_t rows = h->batch * pages_of(c) * h->page * h->kv_heads;
    bool append = c->op == GPUNVME_OPS_KV_APPEND;

    counts[append ? OPS_PAGES_K : OPS_B] = rows * c->shape.k;
    counts[append ? OPS_PAGES_V : OPS_V] = ops_attention_is_latent(c) ? -1 : rows * c->shape.k;
    counts[OPS_TABLE] = h->batch * pages_of(c);
    counts[OPS_LENGTHS] = h->batch;
    if (h->fp8_cache)
        counts[OPS_SCALE_B] = counts[OPS_SCALE_V] = h->batch * h->kv_heads;
}

void ops_attention_count(const struct ops_case *c, int64_t counts[OPS_NMATRICES])
{
    const struct ops_heads *h = &c->heads;
    int64_t queries = h->batch * c->shape.m * h->heads * c->shape.k;
    int64_t keys = h->batch * c->shape.n * h->kv_heads * c->shape.k;

    if (c->op == GPUNVME_OPS_KV_APPEND) {
        counts[OPS_B] = counts[OPS_V] = h->batch * c->shape.m * h->kv_heads * c->shape.k;
        count_pages(c, counts);
        return;
    }
    counts[OPS_A] = queries;
    counts[OPS_C] = queries / c->shape.k * ops_attention_values(c);
    counts[OPS_B] = counts[OPS_V] = keys;
    counts[OPS_LSE] = queries / c->shape.k;
    if (ops_is_fp8(c->dtype))
        counts[OPS_SCALE_A] = counts[OPS_SCALE_B] = counts[OPS_SCALE_V] = h->batch * h->kv_heads;
    if (c->op == GPUNVME_OPS_ATTENTION_PAGED)
        count_pages(c, counts);
    if (c->op != GPUNVME_OPS_ATTENTION_BACKWARD)
        return;
    counts[OPS_GRAD_Y] = counts[OPS_OUT] = queries;
    counts[OPS_GRAD_K] = counts[OPS_GRAD_V] = keys;
}

bool ops_attention_is_result(const struct ops_case *c, int matrix)
{
    return matrix == OPS_GRAD_K || matrix == OPS_GRAD_V || matrix == OPS_PAGES_K ||
           matrix == OPS_PAGES_V || (matrix == OPS_LSE && c->op != GPUNVME_OPS_ATTENTION_BACKWARD);
}

static bool is_mixed(const struct ops_case *c)
{
    return c->op == GPUNVME_OPS_ATTENTION_PAGED && c->heads.shortest && c->heads.batch > 1;
}

int64_t ops_attention_length(const struct ops_case *c, int64_t b)
{
    int64_t n = ops_attention_keys(c), shortest = c->heads.shortest;

    if (!is_mixed(c))
        return n;
    return llround((double)shortest *
                   pow((double)n / (double)shortest, (double)b / (double)(c->heads.batch - 1)));
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

struct ops_seen ops_attention_seen(const struct ops_case *c, int64_t b, int64_t i)
{
    const struct ops_heads *h = &c->heads;
    int64_t n = ops_attention_length(c, b), own = i + n - c->shape.m;
    struct ops_seen seen = {0, n};

    if (h->causal)
        seen.end = smaller(seen.end, own + 1);
    if (h->window) {
        seen.first = own > h->left ? own - h->left : 0;
        seen.end = smaller(seen.end, own + h->right + 1);
    }
    if (seen.end < seen.first)
        seen.end = seen.first;
    return seen;
}

double ops_attention_unread(const struct ops_case *c)
{
    double rows = 0;

    if (c->op != GPUNVME_OPS_ATTENTION_PAGED)
        return 0;
    for (int64_t b = 0; b < c->heads.batch; b++) {
        int64_t first = ops_attention_seen(c, b, 0).first;

        rows += (double)(c->shape.n - ops_attention_seen(c, b, c->shape.m - 1).end + first);
    }
    return rows * (double)(c->heads.kv_heads * c->shape.k) * (ops_attention_is_latent(c) ? 1 : 2);
}

/* Two products, or backwards five; masked scores do not count. Appending multiplies nothing. */
double ops_attention_flops(const struct ops_case *c)
{
    double channels = (double)(c->shape.k + ops_attention_values(c)), pairs = 0;
    int64_t batch = is_mixed(c) ? c->heads.batch : 1; /* of others all sequences are alike */

    if (c->op == GPUNVME_OPS_KV_APPEND)
        return 0;
    for (int64_t b = 0; b < batch; b++)
        for (int64_t i = 0; i < c->shape.m; i++) {
            struct ops_seen seen = ops_attention_seen(c, b, i);

            pairs += (double)(seen.end - seen.first);
        }
    if (c->op == GPUNVME_OPS_ATTENTION_BACKWARD)
        channels = 5 * (double)c->shape.k;
    return 2 * channels * pairs * (double)c->heads.heads * (double)(c->heads.batch / batch);
}

/* As if all keys that a query sees had about the same score: weights are about 1 / their number. */
static void fill_lse(const struct ops_case *c, float *lse, struct base_random *r)
{
    for (int64_t b = 0; b < c->heads.batch; b++)
        for (int64_t i = 0; i < c->shape.m; i++)
            for (int64_t h = 0; h < c->heads.heads; h++) {
                struct ops_seen seen = ops_attention_seen(c, b, i);
                int64_t n = seen.end - seen.first;

                *lse++ = (float)(log(n > 0 ? (double)n : 1) + base_random_real(r));
            }
}

/* Each sequence has pages of its own, in random order. */
static void fill_table(const struct ops_case *c, int32_t *table, struct base_random *r)
{
    int64_t n = c->heads.batch * pages_of(c);

    for (int64_t i = 0; i < n; i++) {
        int64_t other = (int64_t)(base_random_real(r) * (double)(i + 1));

        table[i] = table[other];
        table[other] = (int32_t)i;
    }
}

static bool is_scale(int matrix)
{
    return matrix == OPS_SCALE_A || matrix == OPS_SCALE_B || matrix == OPS_SCALE_V;
}

bool ops_attention_fill(const struct ops_case *c, int matrix, void *data, struct base_random *r)
{
    if (matrix == OPS_LSE)
        fill_lse(c, data, r);
    if (matrix == OPS_TABLE)
        fill_table(c, data, r);
    for (int64_t b = 0; matrix == OPS_LENGTHS && b < c->heads.batch; b++)
        ((int32_t *)data)[b] = (int32_t)ops_attention_length(c, b);
    if (!ops_is_attention(c->op))
        return false;
    for (int64_t i = 0; is_scale(matrix) && i < c->heads.batch * c->heads.kv_heads; i++)
        ((float *)data)[i] = (float)(0.5 + base_random_real(r));
    return matrix == OPS_LSE || matrix == OPS_TABLE || matrix == OPS_LENGTHS || is_scale(matrix);
}

int64_t ops_attention_key_at(const struct ops_case *c, int64_t b, int64_t j, int64_t kv_head)
{
    const struct ops_heads *h = &c->heads;
    const int32_t *table = c->host[OPS_TABLE];
    int64_t row = b * c->shape.n + j;

    if (table)
        row = table[b * pages_of(c) + j / h->page] * h->page + j % h->page;
    return (row * h->kv_heads + kv_head) * c->shape.k;
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
    struct gpunvme_attention_strides out =
        strides_of(c->shape.m, h->heads, ops_attention_values(c));
    bool backward = c->op == GPUNVME_OPS_ATTENTION_BACKWARD, fp8 = ops_is_fp8(c->dtype);
    bool fp8_kv = fp8 || ops_attention_kv_dtype(c, OPS_B) == GPUNVME_OPS_E4M3;

    return (struct gpunvme_attention){
        .batch = h->batch,
        .heads = h->heads,
        .kv_heads = h->kv_heads,
        .dim = c->shape.k,
        .dim_v = ops_attention_values(c),
        .q_len = c->shape.m,
        .k_len = c->shape.n,
        .q = ops_case_at(c, OPS_A),
        .k = ops_case_at(c, OPS_B),
        .v = ops_case_at(c, ops_attention_is_latent(c) ? OPS_B : OPS_V),
        .out = ops_case_at(c, backward ? OPS_OUT : OPS_C),
        .lse = ops_case_at(c, OPS_LSE),
        .q_strides = q,
        .k_strides = k,
        .v_strides = k,
        .out_strides = out,
        .lse_strides = strides_of(c->shape.m, h->heads, 1),
        .causal = h->causal,
        .window = h->window,
        .window_left = h->left,
        .window_right = h->right,
        .softcap = (float)h->softcap,
        .dtype = c->dtype,
        .out_dtype = ops_case_out_dtype(c),
        .compute = c->compute,
        .q_descale = fp8 ? ops_case_at(c, OPS_SCALE_A) : NULL,
        .k_descale = fp8_kv ? ops_case_at(c, OPS_SCALE_B) : NULL,
        .v_descale = fp8_kv ? ops_case_at(c, OPS_SCALE_V) : NULL,
        .descale_stride = fp8_kv ? h->kv_heads : 0};
}

struct gpunvme_attention_grad ops_attention_backward_of(const struct ops_case *c)
{
    struct gpunvme_attention f = ops_attention_of(c);

    return (struct gpunvme_attention_grad){.forward = f,
                                           .grad_out = ops_case_at(c, OPS_GRAD_Y),
                                           .grad_q = ops_case_at(c, OPS_C),
                                           .grad_k = ops_case_at(c, OPS_GRAD_K),
                                           .grad_v = ops_case_at(c, OPS_GRAD_V),
                                           .grad_out_strides = f.q_strides,
                                           .grad_q_strides = f.q_strides,
                                           .grad_k_strides = f.k_strides,
                                           .grad_v_strides = f.k_strides};
}

struct gpunvme_attention_paged ops_attention_paged_of(const struct ops_case *c)
{
    struct gpunvme_attention a = ops_attention_of(c);

    a.k_strides = a.v_strides = strides_of(c->heads.page, c->heads.kv_heads, c->shape.k);
    a.k_lengths = ops_case_at(c, OPS_LENGTHS);
    return (struct gpunvme_attention_paged){.attention = a,
                                            .block_table = ops_case_at(c, OPS_TABLE),
                                            .ld_table = pages_of(c),
                                            .pages = c->heads.batch * pages_of(c),
                                            .page_size = c->heads.page,
                                            .cache_dtype = ops_attention_kv_dtype(c, OPS_B)};
}

struct gpunvme_kv_append ops_kv_append_of(const struct ops_case *c)
{
    const struct ops_heads *h = &c->heads;
    struct gpunvme_attention_strides rows = strides_of(c->shape.m, h->kv_heads, c->shape.k);
    struct gpunvme_attention_strides pages = strides_of(h->page, h->kv_heads, c->shape.k);

    return (struct gpunvme_kv_append){
        .batch = h->batch,
        .kv_heads = h->kv_heads,
        .dim = c->shape.k,
        .dim_v = c->shape.k,
        .new_len = c->shape.m,
        .k_len = ops_attention_keys(c),
        .k = ops_case_at(c, OPS_B),
        .v = ops_case_at(c, OPS_V),
        .k_pages = ops_case_at(c, OPS_PAGES_K),
        .v_pages = ops_case_at(c, OPS_PAGES_V),
        .k_strides = rows,
        .v_strides = rows,
        .k_pages_strides = pages,
        .v_pages_strides = pages,
        .k_lengths = ops_case_at(c, OPS_LENGTHS),
        .block_table = ops_case_at(c, OPS_TABLE),
        .ld_table = pages_of(c),
        .pages = h->batch * pages_of(c),
        .page_size = h->page,
        .dtype = c->dtype,
        .cache_dtype = ops_attention_kv_dtype(c, OPS_PAGES_K),
        .k_descale = h->fp8_cache ? ops_case_at(c, OPS_SCALE_B) : NULL,
        .v_descale = h->fp8_cache ? ops_case_at(c, OPS_SCALE_V) : NULL,
        .descale_stride = h->fp8_cache ? h->kv_heads : 0};
}
