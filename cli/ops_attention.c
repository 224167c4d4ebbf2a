/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gpunvme ops: attention's cases. Tensors have the layout sequence, row, head, channel, without
 * padding; values have as many channels as keys.
 */
#include <math.h>

#include "ops.h"

void ops_attention_count(const struct ops_case *c, int64_t counts[OPS_NMATRICES])
{
    const struct ops_heads *h = &c->heads;
    int64_t queries = h->batch * c->shape.m * h->heads, keys = h->batch * c->shape.n * h->kv_heads;

    counts[OPS_A] = counts[OPS_C] = queries * c->shape.k;
    counts[OPS_B] = counts[OPS_V] = keys * c->shape.k;
    counts[OPS_LSE] = queries;
    if (c->op != GPUNVME_OPS_ATTENTION_BACKWARD)
        return;
    counts[OPS_GRAD_Y] = counts[OPS_OUT] = queries * c->shape.k;
    counts[OPS_GRAD_K] = counts[OPS_GRAD_V] = keys * c->shape.k;
}

int64_t ops_attention_seen(const struct ops_case *c, int64_t i)
{
    int64_t seen = i + 1 + c->shape.n - c->shape.m;

    return !c->heads.causal ? c->shape.n : seen > 0 ? seen : 0;
}

/* Two products, or backwards five; masked scores do not count. */
double ops_attention_flops(const struct ops_case *c)
{
    double products = c->op == GPUNVME_OPS_ATTENTION_BACKWARD ? 5 : 2, pairs = 0;

    for (int64_t i = 0; i < c->shape.m; i++)
        pairs += (double)ops_attention_seen(c, i);
    return 2 * products * pairs * (double)c->shape.k * (double)c->heads.heads *
           (double)c->heads.batch;
}

/* As if all keys that a query sees had about the same score: weights are about 1 / their number. */
void ops_attention_fill_lse(const struct ops_case *c, float *lse, struct base_random *r)
{
    for (int64_t b = 0; b < c->heads.batch; b++)
        for (int64_t i = 0; i < c->shape.m; i++)
            for (int64_t h = 0; h < c->heads.heads; h++) {
                int64_t seen = ops_attention_seen(c, i);

                *lse++ = (float)(log(seen > 0 ? (double)seen : 1) + base_random_real(r));
            }
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
    bool backward = c->op == GPUNVME_OPS_ATTENTION_BACKWARD;

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
                                      .out = ops_case_at(c, backward ? OPS_OUT : OPS_C),
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
