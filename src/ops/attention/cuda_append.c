/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Appending to a cache in pages on the GPU: the ladder.
 */
#include "ops/attention/attention.h"
#include "ops/attention/cuda/append.h"

/* The call as attention sees it, without V. */
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

static struct cuda_append append_of(const struct gpunvme_kv_append *p)
{
    struct gpunvme_attention a = attention_of(p);
    struct cuda_append append = {.x = cuda_attention_of(&a)};
    struct cuda_attention *x = &append.x;
    int64_t batch = p->new_offsets ? 1 : p->batch, rows = p->new_offsets ? p->new_rows : p->new_len;

    x->k = cuda_rows_of(p->k_pages, &p->k_pages_strides, p->pages, p->page_size, p->kv_heads,
                        p->cache_dtype);
    x->v = cuda_rows_of(p->v_pages, &p->v_pages_strides, p->pages, p->page_size, p->kv_heads,
                        p->cache_dtype);
    x->table = p->block_table;
    x->ld_table = p->ld_table;
    x->page_size = (int)p->page_size;
    x->kv_dtype = p->cache_dtype;
    append.v = cuda_rows_of(p->v, &p->v_strides, batch, rows, p->kv_heads, p->dtype);
    return append;
}

static gpunvme_ops_status_t check_whole(const char *variant, const struct cuda_attention *x)
{
    int count = 16 / (int)gpunvme_ops_dtype_nbytes(x->dtype);
    int run = x->rope.interleaved ? x->rope.dim : x->rope.dim / 2;

    if (x->dim % count || x->dim_v % count)
        return ops_fail(GPUNVME_OPS_ERR_UNSUPPORTED,
                        "variant '%s' takes heads of a multiple of 16 bytes: dim is %d, dim_v %d",
                        variant, x->dim, x->dim_v);
    if (x->rope.first % count || run % count)
        return ops_fail(GPUNVME_OPS_ERR_UNSUPPORTED,
                        "variant '%s' rotates 16 bytes of pairs at a time: rope has %d channels "
                        "from %d on",
                        variant, x->rope.dim, x->rope.first);
    return GPUNVME_OPS_OK;
}

static gpunvme_ops_status_t check_vectors(const char *variant, const struct cuda_append *p)
{
    const struct cuda_attention *x = &p->x;

    if (x->q.vectors && x->k.vectors && (!x->dim_v || (p->v.vectors && x->v.vectors)))
        return GPUNVME_OPS_OK;
    return ops_fail(GPUNVME_OPS_ERR_ALIGN,
                    "variant '%s' needs all rows, of k, v and the cache, at multiples of 16 bytes",
                    variant);
}

static gpunvme_ops_status_t suits(const struct ops_variant *variant, const struct ops_call *call)
{
    struct gpunvme_attention a = attention_of(call->descriptor);

    return cuda_attention_check(variant, &a);
}

static gpunvme_ops_status_t suits_vectorized(const struct ops_variant *variant,
                                             const struct ops_call *call)
{
    gpunvme_ops_status_t status = suits(variant, call);
    struct cuda_append append;

    if (status)
        return status;
    append = append_of(call->descriptor);
    status = check_whole(variant->name, &append.x);
    return status || call->any_pointers ? status : check_vectors(variant->name, &append);
}

static int rank(const struct ops_variant *variant, const struct ops_call *call)
{
    (void)call;
    return variant->suits == suits ? 1 : 2;
}

static gpunvme_ops_status_t run_naive(const struct ops_variant *variant,
                                      const struct ops_call *call)
{
    struct cuda_append append = append_of(call->descriptor);

    (void)variant;
    return cuda_append_naive(&append, call->exec->stream);
}

static gpunvme_ops_status_t run_vectorized(const struct ops_variant *variant,
                                           const struct ops_call *call)
{
    struct cuda_append append = append_of(call->descriptor);

    (void)variant;
    return cuda_append_vectorized(&append, call->exec->stream);
}

#define VARIANT(name_, suits_, run_, changes_)                                                     \
    {                                                                                              \
        .name = name_, .needs = CUDA_SM80, .changes = changes_, .dtypes = OPS_ALL_DTYPES,          \
        .computes = OPS_ALL_COMPUTES, .min_sm = 80, .deterministic = 1, .suits = suits_,           \
        .rank = rank, .run = run_                                                                  \
    }

static const struct ops_variant variants[] = {
    VARIANT("naive", suits, run_naive, "a thread for each element, which finds its page itself"),
    VARIANT("vectorized", suits_vectorized, run_vectorized,
            "a block for each token, 16 bytes a thread, and one power of RoPE's base for those"),
};

const struct ops_ladder kv_append_cuda = OPS_LADDER(variants);
