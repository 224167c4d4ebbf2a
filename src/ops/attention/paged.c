/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Attention over pages of a cache, and appending to it: their tables, and what their arguments must
 * be.
 */
#include <inttypes.h>

#include "ops/attention/attention.h"

OPS_ABI_SIZE(gpunvme_attention_paged, 480);
OPS_ABI_SIZE(gpunvme_kv_append, 336);

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define MAX_PAGE     256

/* A cache and its block table. */
struct cache {
    int64_t batch, k_len, pages, page_size, ld_table;
    const int32_t *block_table;
    int dtype, cache_dtype;
};

static gpunvme_ops_status_t check_cache(const struct cache *c)
{
    gpunvme_ops_status_t status =
        ops_check_enum("cache_dtype", c->cache_dtype, GPUNVME_OPS_NALLDTYPES);

    if (!status)
        status = ops_check_size("pages", c->pages);
    if (status)
        return status;
    if (c->page_size < 1 || c->page_size > MAX_PAGE)
        return ops_fail(GPUNVME_OPS_ERR_SHAPE, "page_size is %" PRId64 ": it must be from 1 to %d",
                        c->page_size, MAX_PAGE);
    if (c->dtype >= GPUNVME_OPS_NDTYPES ||
        (c->cache_dtype != c->dtype && c->cache_dtype != GPUNVME_OPS_E4M3))
        return ops_fail(GPUNVME_OPS_ERR_DTYPE,
                        "the cache is %s, and the operands are %s: operands are f32, f16 or bf16, "
                        "and the cache likewise or e4m3",
                        gpunvme_ops_dtype_name(c->cache_dtype), gpunvme_ops_dtype_name(c->dtype));
    return GPUNVME_OPS_OK;
}

static void describe_table(struct ops_spans *spans, const struct cache *c)
{
    attention_add_integers(spans, "block_table", c->block_table, c->batch,
                           attention_table_cols(c->k_len, c->page_size), c->ld_table);
}

static gpunvme_ops_status_t check_reserved(int64_t one, const int64_t more[4])
{
    gpunvme_ops_status_t status = attention_check_flag("reserved", one, 0);

    for (int i = 0; i < 4 && !status; i++)
        status = attention_check_flag("reserved", more[i], 0);
    return status;
}

static void describe_paged(struct ops_spans *spans, const struct gpunvme_attention_paged *p,
                           const struct cache *c)
{
    const struct gpunvme_attention *a = &p->attention;
    bool any = a->batch && a->k_len;
    const int64_t k[] = {any ? p->pages : 0, p->page_size, a->kv_heads, a->dim};
    const int64_t v[] = {any ? p->pages : 0, p->page_size, a->kv_heads, a->dim_v};

    attention_describe_q(spans, a, true);
    attention_add_tensor(spans, "k", a->k, k, &a->k_strides, p->cache_dtype, 0);
    attention_add_tensor(spans, "v", a->v, v, &a->v_strides, p->cache_dtype, 0);
    attention_add_integers(spans, "k_lengths", a->k_lengths, 1, a->batch, 0);
    describe_table(spans, c);
    attention_describe_rope(spans, &a->rope, !any);
    attention_describe_descales(spans, a, !any);
}

static gpunvme_ops_status_t check_paged(struct ops_call *call)
{
    const struct gpunvme_attention_paged *p = call->descriptor;
    const struct gpunvme_attention *a = &p->attention;
    const struct cache c = {a->batch,    a->k_len,       p->pages, p->page_size,
                            p->ld_table, p->block_table, a->dtype, p->cache_dtype};
    gpunvme_ops_status_t status = attention_check(call, a, p->cache_dtype);

    if (!status)
        status = check_cache(&c);
    if (!status)
        status = check_reserved(p->reserved, p->reserved_more);
    if (!status && a->k_offsets)
        status = ops_fail(GPUNVME_OPS_ERR_INVALID,
                          "k_offsets is given: where pages are is in block_table");
    if (status)
        return status;
    call->empty = !a->batch || !a->q_len || !attention_q_rows(a);
    if (!call->empty)
        describe_paged(&call->spans, p, &c);
    return GPUNVME_OPS_OK;
}

const struct ops_operator ops_attention_paged = {
    "attention_paged", check_paged, {&attention_paged_cpu, OPS_CUDA(&attention_paged_cuda)}};

OPS_FUNCTIONS(ops_attention_paged, gpunvme_attention_paged, struct gpunvme_attention_paged)

/* What is said of factors. */
static struct gpunvme_attention factors_of(const struct gpunvme_kv_append *p)
{
    return (struct gpunvme_attention){.batch = p->batch,
                                      .kv_heads = p->kv_heads,
                                      .dtype = p->dtype,
                                      .k_descale = p->k_descale,
                                      .v_descale = p->v_descale,
                                      .descale_stride = p->descale_stride};
}

static gpunvme_ops_status_t check_append_numbers(const struct gpunvme_kv_append *p)
{
    const struct attention_size sizes[] = {
        {"batch", p->batch, 0},     {"kv_heads", p->kv_heads, 1},
        {"dim", p->dim, 1},         {"dim_v", p->dim_v, 0},
        {"new_len", p->new_len, 0}, {"new_rows", p->new_rows, p->new_offsets ? 0 : INT64_MIN},
        {"k_len", p->k_len, 0},
    };
    gpunvme_ops_status_t status = ops_check_enum("dtype", p->dtype, GPUNVME_OPS_NDTYPES);

    if (!status)
        status = attention_check_sizes(sizes, COUNT(sizes));
    if (!status)
        status = attention_check_rope(&p->rope, p->dim, p->k_len);
    if (!status && p->rope.dim)
        status = attention_check_flag("rope.queries_only", p->rope.queries_only, 0);
    if (!status)
        status = attention_check_flag("reserved", p->reserved, 0);
    return status;
}

static void describe_append(struct ops_spans *spans, const struct gpunvme_kv_append *p,
                            const struct cache *c)
{
    const struct gpunvme_attention factors = factors_of(p);
    int64_t batch = p->new_offsets ? 1 : p->batch, rows = p->new_offsets ? p->new_rows : p->new_len;
    const int64_t k[] = {batch, rows, p->kv_heads, p->dim};
    const int64_t v[] = {batch, rows, p->kv_heads, p->dim_v};
    const int64_t k_pages[] = {p->pages, p->page_size, p->kv_heads, p->dim};
    const int64_t v_pages[] = {p->pages, p->page_size, p->kv_heads, p->dim_v};

    attention_add_tensor(spans, "k", p->k, k, &p->k_strides, p->dtype, 0);
    attention_add_tensor(spans, "v", p->v, v, &p->v_strides, p->dtype, 0);
    attention_add_tensor(spans, "k_pages", p->k_pages, k_pages, &p->k_pages_strides, p->cache_dtype,
                         1);
    attention_add_tensor(spans, "v_pages", p->v_pages, v_pages, &p->v_pages_strides, p->cache_dtype,
                         1);
    if (p->new_offsets)
        attention_add_integers(spans, "new_offsets", p->new_offsets, 1, p->batch + 1, 0);
    if (p->new_lengths)
        attention_add_integers(spans, "new_lengths", p->new_lengths, 1, p->batch, 0);
    attention_add_integers(spans, "k_lengths", p->k_lengths, 1, p->batch, 0);
    describe_table(spans, c);
    attention_describe_rope(spans, &p->rope, false);
    attention_describe_descales(spans, &factors, false);
}

static gpunvme_ops_status_t check_append(struct ops_call *call)
{
    const struct gpunvme_kv_append *p = call->descriptor;
    const struct cache c = {p->batch,    p->k_len,       p->pages, p->page_size,
                            p->ld_table, p->block_table, p->dtype, p->cache_dtype};
    const struct gpunvme_attention factors = factors_of(p);
    gpunvme_ops_status_t status = check_append_numbers(p);

    if (!status)
        status = check_cache(&c);
    if (!status)
        status = attention_check_descales(&factors, p->cache_dtype);
    if (status)
        return status;
    call->dtype = p->dtype;
    call->empty = !p->batch || !p->new_len || (p->new_offsets && !p->new_rows);
    if (!call->empty)
        describe_append(&call->spans, p, &c);
    return GPUNVME_OPS_OK;
}

const struct ops_operator ops_kv_append = {
    "kv_append", check_append, {&kv_append_cpu, OPS_CUDA(&kv_append_cuda)}};

OPS_FUNCTIONS(ops_kv_append, gpunvme_kv_append, struct gpunvme_kv_append)
