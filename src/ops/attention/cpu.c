/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Attention on the CPU: the ladders.
 */
#include "ops/attention/cpu/cpu.h"

/* The engines' numbers are the order of speed, and so the ranks: see cpu_rank(). */
enum { NAIVE, ONLINE, TILES };

/* Of threads together. It saturates, as ops_workspace_part() does. */
static size_t times(size_t nbytes, int threads)
{
    size_t all;

    return __builtin_mul_overflow(nbytes, (size_t)threads, &all) ? SIZE_MAX / 4 : all;
}

static size_t workspace_of(const struct attention_cpu *x, const struct ops_variant *variant,
                           const struct ops_call *call)
{
    const struct cpu_engine *engine = variant->data;

    switch (engine - cpu_engines) {
    case NAIVE:
        return attention_naive_workspace(x);
    case ONLINE:
        return attention_online_workspace(x);
    default:
        return times(attention_tiles_workspace(x, engine), cpu_threads_for(engine, call->exec));
    }
}

static gpunvme_ops_status_t run(const struct attention_cpu *x, const struct ops_variant *variant,
                                const struct ops_call *call)
{
    const struct cpu_engine *engine = variant->data;
    gpunvme_ops_status_t status = attention_check_values(x);

    if (status)
        return status;
    switch (engine - cpu_engines) {
    case NAIVE:
        attention_naive(x, call->exec->workspace);
        break;
    case ONLINE:
        attention_online(x, call->exec->workspace);
        break;
    default:
        attention_tiles(x, engine, cpu_threads_for(engine, call->exec), call->exec->workspace);
    }
    return GPUNVME_OPS_OK;
}

static size_t forward_workspace(const struct ops_variant *variant, const struct ops_call *call)
{
    struct attention_cpu x = attention_cpu_of(call->descriptor);

    return workspace_of(&x, variant, call);
}

static gpunvme_ops_status_t forward_run(const struct ops_variant *variant,
                                        const struct ops_call *call)
{
    struct attention_cpu x = attention_cpu_of(call->descriptor);

    return run(&x, variant, call);
}

static struct attention_cpu paged_of(const struct gpunvme_attention_paged *p)
{
    struct attention_cpu x = attention_cpu_of(&p->attention);

    x.pages = (struct attention_pages){p->block_table, p->ld_table, p->pages, p->page_size};
    x.kv_dtype = p->cache_dtype;
    return x;
}

static size_t paged_workspace(const struct ops_variant *variant, const struct ops_call *call)
{
    struct attention_cpu x = paged_of(call->descriptor);

    return workspace_of(&x, variant, call);
}

static gpunvme_ops_status_t paged_run(const struct ops_variant *variant,
                                      const struct ops_call *call)
{
    struct attention_cpu x = paged_of(call->descriptor);

    return run(&x, variant, call);
}

static size_t append_workspace(const struct ops_variant *variant, const struct ops_call *call)
{
    (void)variant;
    return attention_append_workspace(call->descriptor);
}

static gpunvme_ops_status_t append_run(const struct ops_variant *variant,
                                       const struct ops_call *call)
{
    (void)variant;
    return attention_append(call->descriptor, call->exec->workspace);
}

/* Of the gradients of Q, K and V; and two rows for those of the sinks, which come first. */
static size_t backward_workspace(const struct ops_variant *variant, const struct ops_call *call)
{
    const struct gpunvme_attention_grad *p = call->descriptor;
    const struct cpu_engine *engine = variant->data;
    struct attention_cpu x = attention_cpu_of(&p->forward);
    size_t rows = p->grad_sinks ? ops_workspace_part(2, 1, p->forward.dim_v, sizeof(float)) : 0;
    size_t rest = 0;

    if (engine - cpu_engines == NAIVE)
        rest = attention_naive_backward_workspace(&x);
    else if (attention_wants_q(p) || attention_wants_kv(p))
        rest = times(attention_tiles_backward_workspace(&x, engine),
                     cpu_threads_for(engine, call->exec));
    return rows > rest ? rows : rest;
}

static gpunvme_ops_status_t backward_run(const struct ops_variant *variant,
                                         const struct ops_call *call)
{
    const struct gpunvme_attention_grad *p = call->descriptor;
    const struct cpu_engine *engine = variant->data;
    struct attention_cpu x = attention_cpu_of(&p->forward);
    gpunvme_ops_status_t status = attention_check_values(&x);

    if (status)
        return status;
    if (p->grad_sinks)
        attention_grad_sinks(&x, p, call->exec->workspace);
    if (engine - cpu_engines == NAIVE)
        attention_naive_backward(&x, p, call->exec->workspace);
    else if (attention_wants_q(p) || attention_wants_kv(p))
        attention_tiles_backward(&x, p, engine, cpu_threads_for(engine, call->exec),
                                 call->exec->workspace);
    return GPUNVME_OPS_OK;
}

#define VARIANT(dtypes, index, name, features, needs, changes, workspace, run)                     \
    CPU_VARIANT_OF(dtypes, index, name, features, needs, changes, workspace, run, NULL)

/* The rungs by tiles are the engines for products that are called so, too. */
#define TILE_VARIANTS(dtypes, workspace, run)                                                      \
    VARIANT(dtypes, 2, "packed", 0, "nothing",                                                     \
            "tiles of queries and keys: one tile of scores at a time, products by the engine "     \
            "'packed', exponentials in vectors of 4",                                              \
            workspace, run),                                                                       \
        VARIANT(dtypes, 3, "avx2", CPU_X86(GPUNVME_OPS_CPU_AVX2), "AVX2 and FMA",                  \
                "vectors of 8, multiplied and added at once", workspace, run),                     \
        VARIANT(dtypes, 4, "avx512", CPU_X86(GPUNVME_OPS_CPU_AVX512), "AVX-512F", "vectors of 16", \
                workspace, run),                                                                   \
        VARIANT(dtypes, 5, "openmp", GPUNVME_OPS_CPU_OPENMP, "a build with OpenMP",                \
                "the best of the above, tiles split among threads", workspace, run)

#define FORWARD_LADDER(dtypes, workspace, run)                                                     \
    {                                                                                              \
        VARIANT(dtypes, NAIVE, "naive", 0, "nothing",                                              \
                "one query at a time: its scores, their softmax and the sums in f64, as the "      \
                "definition has them",                                                             \
                workspace, run),                                                                   \
            VARIANT(dtypes, ONLINE, "online", 0, "nothing",                                        \
                    "one pass over the keys: sums in f32, scaled when a larger score comes, and "  \
                    "no row of scores in memory",                                                  \
                    workspace, run),                                                               \
            TILE_VARIANTS(dtypes, workspace, run)                                                  \
    }

#define WITH_E4M3 (OPS_ALL_DTYPES | 1u << GPUNVME_OPS_E4M3)

static const struct ops_variant forward[] =
    FORWARD_LADDER(WITH_E4M3, forward_workspace, forward_run);

static const struct ops_variant backward[] = {
    VARIANT(OPS_ALL_DTYPES, NAIVE, "naive", 0, "nothing",
            "each row of a gradient is a sum in f64, and scores are made again for each",
            backward_workspace, backward_run),
    TILE_VARIANTS(OPS_ALL_DTYPES, backward_workspace, backward_run),
};

static const struct ops_variant paged[] =
    FORWARD_LADDER(OPS_ALL_DTYPES, paged_workspace, paged_run);

static const struct ops_variant append[] = {
    VARIANT(OPS_ALL_DTYPES, NAIVE, "naive", 0, "nothing", "row after row", append_workspace,
            append_run),
};

const struct ops_ladder attention_cpu = OPS_LADDER(forward);
const struct ops_ladder attention_backward_cpu = OPS_LADDER(backward);
const struct ops_ladder attention_paged_cpu = OPS_LADDER(paged);
const struct ops_ladder kv_append_cpu = OPS_LADDER(append);
