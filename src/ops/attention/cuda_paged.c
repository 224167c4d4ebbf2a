/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Attention over pages of a cache on the GPU: the ladder.
 */
#include <limits.h>

#include "ops/attention/attention.h"
#include "ops/attention/cuda/decode.h"
#include "ops/attention/cuda/flash2.h"
#include "ops/attention/cuda/hopper.h"
#include "ops/attention/cuda/mla.h"
#include "ops/attention/cuda/online.h"

static struct cuda_attention paged_of(const struct gpunvme_attention_paged *p)
{
    const struct gpunvme_attention *a = &p->attention;
    struct cuda_attention x = cuda_attention_of(a);

    x.k = cuda_rows_of(a->k, &a->k_strides, p->pages, p->page_size, a->kv_heads, p->cache_dtype);
    x.v = cuda_rows_of(a->v, &a->v_strides, p->pages, p->page_size, a->kv_heads, p->cache_dtype);
    x.table = p->block_table;
    x.ld_table = p->ld_table;
    x.pages = p->pages;
    x.page_size = (int)p->page_size;
    x.kv_dtype = p->cache_dtype;
    return x;
}

static gpunvme_ops_status_t suits(const struct ops_variant *variant, const struct ops_call *call)
{
    const struct gpunvme_attention_paged *p = call->descriptor;

    return cuda_attention_check(variant, &p->attention);
}

static size_t naive_workspace(const struct ops_variant *variant, const struct ops_call *call)
{
    struct cuda_attention x = paged_of(call->descriptor);

    (void)variant;
    return cuda_attention_turns_nbytes(&x) + cuda_attention_naive_nbytes(&x);
}

static gpunvme_ops_status_t naive_run(const struct ops_variant *variant,
                                      const struct ops_call *call)
{
    struct cuda_attention x = paged_of(call->descriptor);
    size_t turns = cuda_attention_turns_nbytes(&x);
    char *rest = turns ? (char *)call->exec->workspace + turns : call->exec->workspace;
    gpunvme_ops_status_t status =
        cuda_attention_turns(&x, call->exec->workspace, call->exec->stream);

    (void)variant;
    return status ? status : cuda_attention_naive(&x, rest, call->exec->stream);
}

static gpunvme_ops_status_t check_shared(const char *variant, size_t nbytes)
{
    struct gpunvme_ops_capability device = {.shared_nbytes = 0};
    gpunvme_ops_status_t status = ops_cuda_capability(OPS_CURRENT_DEVICE, &device);

    if (!status && (size_t)device.shared_nbytes < nbytes)
        status = ops_fail(GPUNVME_OPS_ERR_UNSUPPORTED,
                          "variant '%s' needs %zu bytes of shared memory a block for so many "
                          "channels, and this GPU has %lld",
                          variant, nbytes, (long long)device.shared_nbytes);
    return status;
}

static gpunvme_ops_status_t online_suits(const struct ops_variant *variant,
                                         const struct ops_call *call)
{
    gpunvme_ops_status_t status = suits(variant, call);
    struct cuda_attention x;

    if (status)
        return status;
    x = paged_of(call->descriptor);
    return check_shared(variant->name, online_shared_nbytes(&x));
}

static gpunvme_ops_status_t online(const struct ops_variant *variant, const struct ops_call *call)
{
    struct cuda_attention x = paged_of(call->descriptor);

    (void)variant;
    return online_run(&x, NULL, call->exec->stream);
}

/* Rungs that copy rows of K and V as they are, 16 bytes at a time, to so much shared memory. */
static gpunvme_ops_status_t check_copies(const char *variant, const struct cuda_attention *x,
                                         size_t shared_nbytes, bool any_pointers)
{
    gpunvme_ops_status_t status;

    if (x->rope.dim && !x->rope.queries_only)
        return ops_fail(GPUNVME_OPS_ERR_UNSUPPORTED,
                        "variant '%s' does not rotate K: let gpunvme_kv_append() do it, and set "
                        "rope.queries_only",
                        variant);
    status = check_shared(variant, shared_nbytes);
    if (!status && !any_pointers && !(x->k.vectors && x->v.vectors))
        status =
            ops_fail(GPUNVME_OPS_ERR_ALIGN,
                     "variant '%s' needs all rows of K and V at multiples of 16 bytes", variant);
    return status;
}

static gpunvme_ops_status_t flash2_suits(const struct ops_variant *variant,
                                         const struct ops_call *call)
{
    gpunvme_ops_status_t status = suits(variant, call);
    struct cuda_attention x;

    if (status)
        return status;
    x = paged_of(call->descriptor);
    if (x.kv_dtype != x.dtype || x.dim > FLASH2_DIM || x.dim_v > FLASH2_DIM)
        return ops_fail(GPUNVME_OPS_ERR_UNSUPPORTED,
                        "variant '%s' takes up to %d channels, and a cache of the type of Q",
                        variant->name, FLASH2_DIM);
    return check_copies(variant->name, &x, cuda_attention_flash2_shared(&x), call->any_pointers);
}

static size_t flash2_workspace(const struct ops_variant *variant, const struct ops_call *call)
{
    struct cuda_attention x = paged_of(call->descriptor);

    (void)variant;
    return cuda_attention_turned_queries_nbytes(&x);
}

static gpunvme_ops_status_t flash2(const struct ops_variant *variant, const struct ops_call *call)
{
    struct cuda_attention x = paged_of(call->descriptor);
    gpunvme_ops_status_t status =
        cuda_attention_turn_queries(&x, call->exec->workspace, call->exec->stream);

    (void)variant;
    return status ? status : cuda_attention_flash2(&x, NULL, call->exec->stream);
}

static gpunvme_ops_status_t hopper_suits(const struct ops_variant *variant,
                                         const struct ops_call *call)
{
    gpunvme_ops_status_t status = suits(variant, call);
    struct cuda_attention x;

    if (status)
        return status;
    x = paged_of(call->descriptor);
    return cuda_attention_hopper_suits(variant, &x, call->any_pointers);
}

static size_t hopper_workspace(const struct ops_variant *variant, const struct ops_call *call)
{
    struct cuda_attention x = paged_of(call->descriptor);

    (void)variant;
    return cuda_attention_hopper_nbytes(&x);
}

static gpunvme_ops_status_t hopper(const struct ops_variant *variant, const struct ops_call *call)
{
    struct cuda_attention x = paged_of(call->descriptor);

    (void)variant;
    return cuda_attention_hopper(&x, call->exec->workspace, call->exec->stream);
}

/* Sums of 32 sequences' tiles are of 32 bits; the end of a head may count as two. */
static gpunvme_ops_status_t check_tiles(const char *variant, const struct cuda_attention *x,
                                        int heads)
{
    int64_t tiles = x->k_len / DECODE_TILE + 3;

    if (tiles > INT_MAX / heads / 32)
        return ops_fail(GPUNVME_OPS_ERR_UNSUPPORTED,
                        "variant '%s' takes fewer keys: k_len is %d, kv_heads %d", variant,
                        x->k_len, x->kv_heads);
    return GPUNVME_OPS_OK;
}

/* Elements of the cache in 16 bytes. */
static int chunk_of(const struct cuda_attention *x)
{
    return 16 / (int)gpunvme_ops_dtype_nbytes(x->kv_dtype);
}

static gpunvme_ops_status_t decode_check_sizes(const char *variant, const struct cuda_attention *x)
{
    int chunk = chunk_of(x);

    if (decode_rows(x) > DECODE_ROWS)
        return ops_fail(GPUNVME_OPS_ERR_UNSUPPORTED,
                        "variant '%s' takes up to %d queries times heads that share one of K: "
                        "here they are %d times %d",
                        variant, DECODE_ROWS, x->q_len, x->group);
    if (x->dim > DECODE_DIM || x->dim_v > DECODE_DIM || x->dim % chunk || x->dim_v % chunk)
        return ops_fail(
            GPUNVME_OPS_ERR_UNSUPPORTED,
            "variant '%s' takes multiples of %d channels, up to %d: dim is %d, dim_v %d", variant,
            chunk, DECODE_DIM, x->dim, x->dim_v);
    return check_tiles(variant, x, x->kv_heads);
}

/* Rows of a cache are found by 32 bits that count 16 bytes: some must not be beyond 64 GiB. */
static bool far_apart(const struct cuda_rows *rows, const struct gpunvme_attention_paged *p,
                      int chunk)
{
    const double most = (double)chunk * (UINT32_MAX - 1);

    return (double)rows->batch * (double)p->pages + (double)rows->row * (double)p->page_size +
               (double)rows->head * (double)p->attention.kv_heads >
           most;
}

static gpunvme_ops_status_t decode_suits(const struct ops_variant *variant,
                                         const struct ops_call *call)
{
    gpunvme_ops_status_t status = suits(variant, call);
    struct cuda_attention x;

    if (status)
        return status;
    x = paged_of(call->descriptor);
    status = decode_check_sizes(variant->name, &x);
    if (!status && (far_apart(&x.k, call->descriptor, chunk_of(&x)) ||
                    far_apart(&x.v, call->descriptor, chunk_of(&x))))
        status = ops_fail(GPUNVME_OPS_ERR_UNSUPPORTED, "variant '%s' takes caches of up to 64 GiB",
                          variant->name);
    if (!status)
        status = check_copies(variant->name, &x, decode_shared_nbytes(&x), call->any_pointers);
    return status;
}

static size_t decode_workspace(const struct ops_variant *variant, const struct ops_call *call)
{
    struct cuda_attention x = paged_of(call->descriptor);

    (void)variant;
    return decode_nbytes(&x);
}

static gpunvme_ops_status_t decode(const struct ops_variant *variant, const struct ops_call *call)
{
    struct cuda_attention x = paged_of(call->descriptor);

    (void)variant;
    return decode_run(&x, call->exec->workspace, call->exec->stream);
}

static bool same_rows(const struct cuda_rows *a, const struct cuda_rows *b)
{
    return a->data == b->data && a->batch == b->batch && a->row == b->row && a->head == b->head;
}

static gpunvme_ops_status_t mla_check_sizes(const char *variant, const struct cuda_attention *x)
{
    if (x->dim != MLA_DIM || x->dim_v != MLA_DIM_V)
        return ops_fail(GPUNVME_OPS_ERR_UNSUPPORTED,
                        "variant '%s' takes keys of %d channels, whose first %d are the value: dim "
                        "is %d, dim_v %d",
                        variant, MLA_DIM, MLA_DIM_V, x->dim, x->dim_v);
    if (!mla_group(x))
        return ops_fail(GPUNVME_OPS_ERR_UNSUPPORTED,
                        "variant '%s' takes up to %d queries of a sequence: here they are %d",
                        variant, 2 * MLA_ROWS, x->q_len);
    if (x->page_size % MLA_PIECE)
        return ops_fail(GPUNVME_OPS_ERR_UNSUPPORTED,
                        "variant '%s' takes pages of a multiple of %d rows: here they are %d",
                        variant, MLA_PIECE, x->page_size);
    return check_tiles(variant, x, x->heads / mla_group(x));
}

static gpunvme_ops_status_t mla_suits(const struct ops_variant *variant,
                                      const struct ops_call *call)
{
    const struct gpunvme_attention_paged *p = call->descriptor;
    gpunvme_ops_status_t status = suits(variant, call);
    struct cuda_attention x;

    if (status)
        return status;
    x = paged_of(p);
    status = mla_check_sizes(variant->name, &x);
    if (!status && p->cache_dtype == GPUNVME_OPS_E4M3)
        status = ops_fail(GPUNVME_OPS_ERR_UNSUPPORTED, "variant '%s' takes a cache of 16 bits",
                          variant->name);
    if (!status && (x.rope.dim || x.scale < 0))
        status = ops_fail(GPUNVME_OPS_ERR_UNSUPPORTED,
                          "variant '%s' takes a positive scale and no rope", variant->name);
    if (!status && !p->pages)
        status = ops_fail(GPUNVME_OPS_ERR_UNSUPPORTED, "variant '%s' takes a cache with pages",
                          variant->name);
    if (status || call->any_pointers)
        return status;
    if (!same_rows(&x.k, &x.v))
        return ops_fail(GPUNVME_OPS_ERR_UNSUPPORTED,
                        "variant '%s' takes V that is K, in the same memory", variant->name);
    if (!x.q.vectors || !hopper_reads(&x.k, x.page_size))
        return ops_fail(GPUNVME_OPS_ERR_ALIGN,
                        "variant '%s' needs all rows of Q and K at multiples of 16 bytes",
                        variant->name);
    return GPUNVME_OPS_OK;
}

static size_t mla_workspace(const struct ops_variant *variant, const struct ops_call *call)
{
    struct cuda_attention x = paged_of(call->descriptor);

    (void)variant;
    return mla_nbytes(&x);
}

static gpunvme_ops_status_t mla(const struct ops_variant *variant, const struct ops_call *call)
{
    const struct gpunvme_attention_paged *p = call->descriptor;
    struct cuda_attention x = paged_of(p);

    (void)variant;
    return mla_run(&x, p->pages, call->exec->workspace, call->exec->stream);
}

static int rank(const struct ops_variant *variant, const struct ops_call *call)
{
    (void)call;
    return variant->run == mla      ? 6
           : variant->run == decode ? 5
           : variant->run == hopper ? 4
           : variant->run == flash2 ? 3
           : variant->run == online ? 2
                                    : 1;
}

#define BITS_16 (1u << GPUNVME_OPS_F16 | 1u << GPUNVME_OPS_BF16)
#define VARIANT(name_, dtypes_, suits_, workspace_, run_, changes_)                                \
    {                                                                                              \
        .name = name_, .needs = CUDA_SM80, .changes = changes_, .dtypes = dtypes_,                 \
        .computes = OPS_ALL_COMPUTES, .min_sm = 80, .deterministic = 1, .suits = suits_,           \
        .rank = rank, .workspace = workspace_, .run = run_                                         \
    }

static const struct ops_variant variants[] = {
    VARIANT("naive", OPS_ALL_DTYPES, suits, naive_workspace, naive_run,
            "attention's rung of that name, whose rows of K and V are found by the block table"),
    VARIANT("online", OPS_ALL_DTYPES, online_suits, NULL, online,
            "a block for each query and head, one pass over the keys, and no scores in memory"),
    VARIANT("flash2", BITS_16, flash2_suits, flash2_workspace, flash2,
            "attention's rung of that name: each row of a tile of K and V is looked up as its copy "
            "is asked for"),
    {.name = "hopper",
     .needs = CUDA_SM90A,
     .changes = "attention's rung of that name: the copy engine brings tiles of K and V by pieces "
                "of pages",
     .dtypes = BITS_16,
     .computes = OPS_ALL_COMPUTES,
     .min_sm = CUDA_ONLY_90A,
     .max_sm = CUDA_ONLY_90A,
     .deterministic = 1,
     .suits = hopper_suits,
     .rank = rank,
     .workspace = hopper_workspace,
     .run = hopper},
    VARIANT("decode", BITS_16, decode_suits, decode_workspace, decode,
            "few queries at the speed of memory: those that share a head of K are one product "
            "(mma), keys of all sequences are split evenly among blocks by lengths on the device"),
    {.name = "mla",
     .needs = CUDA_SM90A,
     .changes = "latent vectors (MLA) by wgmma: a tile in shared memory is both K and V, for two "
                "blocks; one warp group makes scores, two add up half of the channels each",
     .dtypes = BITS_16,
     .computes = OPS_ALL_COMPUTES,
     .min_sm = CUDA_ONLY_90A,
     .max_sm = CUDA_ONLY_90A,
     .deterministic = 1,
     .suits = mla_suits,
     .rank = rank,
     .workspace = mla_workspace,
     .run = mla},
};

const struct ops_ladder attention_paged_cuda = OPS_LADDER(variants);
