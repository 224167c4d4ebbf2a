/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Matrix multiplication on the GPU: from the caller's descriptor to a rung's product, the metrics,
 * and the ladder.
 */
#include <limits.h>
#include <string.h>

#include "ops/matmul/matmul.h"
#include "ops/matmul/product.h"

/* Leading dimensions of one row and strides of one matrix may be anything: here they are not. */
static struct cuda_operand operand(const void *data, int64_t rows, int64_t cols, int transposed,
                                   int64_t ld, int64_t stride, int64_t batch)
{
    struct cuda_operand x = {.data = data, .stride = batch > 1 ? stride : 0};
    int64_t lines = transposed ? cols : rows, width = transposed ? rows : cols;

    if (lines < 2)
        ld = (width + 15) / 16 * 16;
    x.rs = transposed ? 1 : ld;
    x.cs = transposed ? ld : 1;
    return x;
}

static struct cuda_product make_product(const struct gpunvme_matmul *descriptor)
{
    struct gpunvme_matmul normal = matmul_normal_form(descriptor);
    const struct gpunvme_matmul *p = &normal;
    struct cuda_product x = {
        .m = p->m,
        .n = p->n,
        .k = p->alpha == 0 ? 0 : p->k,
        .batch = p->batch,
        .a = operand(p->a, p->m, p->k, p->transpose_a, p->lda, p->stride_a, p->batch),
        .b = operand(p->b, p->k, p->n, p->transpose_b, p->ldb, p->stride_b, p->batch),
        .c = p->c,
        .ldc = p->m > 1 ? p->ldc : (p->n + 15) / 16 * 16,
        .stride_c = p->batch > 1 ? p->stride_c : 0,
        .alpha = p->alpha,
        .beta = p->beta,
        .dtype = p->dtype,
        .dtype_b = p->dtype_b,
        .compute = p->compute,
        .out_dtype = p->out_dtype,
        .scale_a = matmul_scales_a(p),
        .scale_b = matmul_scales_b(p),
        .fast_sums = p->fast_sums,
    };

    cuda_set_vectors(&x);
    return x;
}

/* A call asks for its product several times, from the choice of the variant to its run. */
static struct cuda_product product_of(const struct ops_call *call)
{
    static _Thread_local struct {
        struct gpunvme_matmul descriptor;
        struct cuda_product product;
    } last; /* of nothing at first, which no call has */

    if (memcmp(&last.descriptor, call->descriptor, sizeof(last.descriptor)) != 0) {
        last.product = make_product(call->descriptor);
        memcpy(&last.descriptor, call->descriptor, sizeof(last.descriptor));
    }
    return last.product;
}

static size_t workspace(const struct ops_variant *variant, const struct ops_call *call)
{
    struct cuda_product x = product_of(call);

    return cuda_product_workspace(variant->data, &x);
}

static gpunvme_ops_status_t run(const struct ops_variant *variant, const struct ops_call *call)
{
    struct cuda_product x = product_of(call);

    return cuda_run_product(variant->data, &x, call->exec->workspace, call->exec->stream);
}

static double tiles(int64_t n, int tile)
{
    return (double)((n + tile - 1) / tile);
}

static int several(int blocks)
{
    return blocks > 1 ? blocks : 1;
}

/*
 * A block reads its rows of A and columns of B once (the naive rung, too: its blocks are small
 * enough for what they share to come from the multiprocessor's own cache). Blocks of a cluster
 * that are beside or below each other read once for all what they share.
 */
static void analyze(const struct ops_variant *variant, const struct ops_call *call, void *metrics)
{
    const struct cuda_engine *engine = variant->data;
    struct gpunvme_matmul_metrics *x = metrics;
    struct cuda_product p = product_of(call);
    double m = (double)p.m, n = (double)p.n, k = (double)p.k, batch = (double)p.batch;
    double in = (double)gpunvme_ops_dtype_nbytes(p.dtype);
    double out = (double)gpunvme_ops_dtype_nbytes(p.out_dtype);
    struct cuda_launch launch;
    const struct cuda_tiling *t = &launch.tiling;
    double operands;

    if (engine->multiply(&p, call->exec->workspace, call->exec->stream, &launch))
        return;
    operands = batch * in * k *
               (m * tiles(p.n, t->tile_n * several(t->pair_n)) +
                n * tiles(p.m, t->tile_m * several(t->pair_m)));
    x->global_load_nbytes = operands + (p.beta == 0 ? 0 : batch * out * m * n);
    x->global_store_nbytes = batch * out * m * n;
    if (t->part_m) {
        x->shared_store_nbytes = operands;
        x->shared_load_nbytes =
            batch * in * k * (m * tiles(p.n, t->part_n) + n * tiles(p.m, t->part_m));
    }
    x->registers = launch.registers;
    x->threads_per_block = t->threads;
    x->blocks = launch.blocks;
    x->shared_nbytes = launch.shared_nbytes;
    x->occupancy = launch.occupancy;
}

/*
 * The best one's is the highest. Those of any GPU follow, for it may not suit. The others are taken
 * only where they are the best. What has nothing to multiply is the plainest one's.
 */
static int rank(const struct ops_variant *variant, const struct ops_call *call)
{
    const struct cuda_engine *engine = variant->data;
    struct cuda_product product = product_of(call);

    if (engine == (product.k ? cuda_best_engine(&product, cuda_level()) : cuda_engines))
        return INT_MAX;
    return engine < &cuda_engines[CUDA_WGMMA] ? 1 + (int)(engine - cuda_engines) : 0;
}

static gpunvme_ops_status_t suits(const struct ops_variant *variant, const struct ops_call *call)
{
    struct cuda_product product = product_of(call);
    const struct cuda_engine *engine = variant->data;

    if (engine == &cuda_engines[CUDA_SKINNY] && !engine->suits(&product))
        return ops_fail(GPUNVME_OPS_ERR_UNSUPPORTED,
                        "variant '%s' takes up to 16 rows or 16 columns, and less than 2^31 blocks",
                        variant->name);
    if (engine->suits && !engine->suits(&product))
        return ops_fail(GPUNVME_OPS_ERR_UNSUPPORTED,
                        "variant '%s' takes sizes up to 2^30 and less than 2^31 tiles of C",
                        variant->name);
    return call->any_pointers ? GPUNVME_OPS_OK
                              : cuda_check_aligned(variant->name, engine, &product);
}

#define ALL     (OPS_ALL_DTYPES | OPS_FP8)
#define F32     (1u << GPUNVME_OPS_F32)
#define BITS16  (1u << GPUNVME_OPS_F16 | 1u << GPUNVME_OPS_BF16)
#define BY_TF32 (1u << GPUNVME_OPS_COMPUTE_TF32)
#define VARIANT(index, name_, needs_, min_sm_, max_sm_, dtypes_, computes_, changes_)              \
    {                                                                                              \
        .name = name_, .needs = needs_, .changes = changes_, .dtypes = dtypes_,                    \
        .computes = computes_, .min_sm = min_sm_, .max_sm = max_sm_, .deterministic = 1,           \
        .suits = suits, .rank = rank, .workspace = workspace, .run = run, .analyze = analyze,      \
        .data = &cuda_engines[index]                                                               \
    }

static const struct ops_variant variants[] = {
    VARIANT(CUDA_NAIVE, "naive", CUDA_SM80, 80, 0, ALL, OPS_ALL_COMPUTES,
            "a thread for each element of C, which reads its row and column from global memory"),
    VARIANT(CUDA_TILED, "tiled", CUDA_SM80, 80, 0, OPS_ALL_DTYPES, OPS_ALL_COMPUTES,
            "tiles of 32 x 32 in shared memory, each element read from there 32 times"),
    VARIANT(CUDA_VECTORIZED, "vectorized", CUDA_SM80, 80, 0, F32, OPS_ALL_COMPUTES,
            "vectors of four from and to memory, four elements of C a thread"),
    VARIANT(CUDA_COARSENED, "coarsened", CUDA_SM80, 80, 0, F32, OPS_ALL_COMPUTES,
            "a tile of 16 x 8 (or 8 x 8) elements of C in each thread's registers, asynchronous "
            "copies three stages deep"),
    VARIANT(CUDA_TENSORCORE, "tensorcore", CUDA_SM80, 80, 0, OPS_ALL_DTYPES, BY_TF32,
            "matrices of 16 x 8 multiplied by a warp in one instruction (mma), four stages deep"),
    VARIANT(
        CUDA_WGMMA, "wgmma", CUDA_SM90A, CUDA_ONLY_90A, CUDA_ONLY_90A, BITS16, OPS_ALL_COMPUTES,
        "64 x 128 multiplied by four warps from shared memory in one instruction (wgmma); the copy "
        "engine (TMA) loads a step's tiles, and only then the next step's"),
    VARIANT(CUDA_SPECIALIZED, "specialized", CUDA_SM90A, CUDA_ONLY_90A, CUDA_ONLY_90A, BITS16,
            OPS_ALL_COMPUTES,
            "a warp group that only loads, four stages ahead of two that multiply 64 x 256 each"),
    VARIANT(CUDA_CLUSTER, "cluster", CUDA_SM90A, CUDA_ONLY_90A, CUDA_ONLY_90A, BITS16,
            OPS_ALL_COMPUTES,
            "two blocks below each other read the columns of B once for both (multicast)"),
    VARIANT(
        CUDA_HOPPER, "hopper", CUDA_SM90A, CUDA_ONLY_90A, CUDA_ONLY_90A, ALL, BY_TF32,
        "blocks stay: results of one tile leave by the copy engine while the next one's operands "
        "come in; also tf32 and fp8"),
    VARIANT(CUDA_SKINNY, "skinny", CUDA_SM90, 90, 0, ALL, OPS_ALL_COMPUTES,
            "up to 16 rows or columns at the speed of memory: the large operand is read once, 16 "
            "bytes a lane, and k is shared by warps and the blocks of a cluster"),
    VARIANT(CUDA_SHAPED, "shaped", CUDA_SM90, 90, 0, ALL, OPS_ALL_COMPUTES,
            "narrower tiles and k in pieces, as a model of time chooses, so that few results fill "
            "the GPU; sums of pieces in f32, added in order"),
};

const struct ops_ladder matmul_cuda = OPS_LADDER(variants);
