/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Appending to a cache in pages, on the CPU.
 */
#include <inttypes.h>

#include "ops/attention/cpu/cpu.h"

/*
 * The call as attention sees it: new tokens are its queries, so that their positions are those of
 * the last keys, and checks and RoPE are the same.
 */
static struct gpunvme_attention attention_of(const struct gpunvme_kv_append *p)
{
    return (struct gpunvme_attention){
        .batch = p->batch,
        .heads = p->kv_heads,
        .kv_heads = p->kv_heads,
        .dim = p->dim,
        .dim_v = p->dim_v,
        .q_len = p->new_len,
        .k_len = p->k_len,
        .q_rows = p->new_rows,
        .q = p->k,
        .q_strides = p->k_strides,
        .q_offsets = p->new_offsets,
        .q_lengths = p->new_lengths,
        .k_lengths = p->k_lengths,
        .rope = p->rope,
        .dtype = p->dtype,
        .k_descale = p->k_descale,
        .v_descale = p->v_descale,
        .descale_stride = p->descale_stride,
    };
}

static struct attention_cpu cpu_of(const struct gpunvme_kv_append *p,
                                   const struct gpunvme_attention *a)
{
    struct attention_cpu x = attention_cpu_of(a);

    x.q_name = "new";
    x.kv_dtype = p->cache_dtype;
    x.pages = (struct attention_pages){p->block_table, p->ld_table, p->pages, p->page_size};
    return x;
}

static gpunvme_ops_status_t check_room(const struct attention_cpu *x)
{
    for (int64_t b = 0; b < x->p->batch; b++) {
        struct attention_sequence s = attention_sequence_of(x, b);

        if (s.q_len > s.k_len)
            return ops_fail(GPUNVME_OPS_ERR_INVALID,
                            "k_lengths[%" PRId64 "] is %" PRId64 ", with %" PRId64 " new tokens", b,
                            s.k_len, s.q_len);
    }
    return GPUNVME_OPS_OK;
}

/* A row goes to the cache, as numbers whose elements it has. */
static void store(const struct attention_cpu *x, const struct attention_sequence *s, void *pages,
                  const struct gpunvme_attention_strides *strides, int64_t j, int64_t head,
                  const float *factors, int64_t n, float *row)
{
    float factor = attention_descale(x->p, s, factors, head);

    for (int64_t c = 0; c < n && factors; c++)
        row[c] /= factor;
    attention_store(pages, attention_key_at(x, s, strides, j, head), x->kv_dtype, n, row);
}

static void append_token(const struct gpunvme_kv_append *p, const struct attention_cpu *x,
                         const struct attention_sequence *s, int64_t i, float *row)
{
    int64_t j = s->k_len - s->q_len + i;

    for (int64_t head = 0; head < p->kv_heads; head++) {
        attention_load_q(x, s, i, head, row);
        store(x, s, p->k_pages, &p->k_pages_strides, j, head, p->k_descale, p->dim, row);
        if (!p->dim_v)
            continue;
        attention_load(p->v, attention_at(&p->v_strides, &s->q, i, head), p->dtype, p->dim_v, row);
        store(x, s, p->v_pages, &p->v_pages_strides, j, head, p->v_descale, p->dim_v, row);
    }
}

/* A row of K or V. */
size_t attention_append_workspace(const struct gpunvme_kv_append *p)
{
    return ops_workspace_part(1, 1, p->dim > p->dim_v ? p->dim : p->dim_v, sizeof(float));
}

gpunvme_ops_status_t attention_append(const struct gpunvme_kv_append *p, void *workspace)
{
    struct gpunvme_attention a = attention_of(p);
    struct attention_cpu x = cpu_of(p, &a);
    gpunvme_ops_status_t status = attention_check_values(&x);

    if (!status)
        status = check_room(&x);
    for (int64_t b = 0; b < p->batch && !status; b++) {
        struct attention_sequence s = attention_sequence_of(&x, b);

        for (int64_t i = 0; i < s.q_len; i++)
            append_token(p, &x, &s, i, workspace);
    }
    return status;
}
