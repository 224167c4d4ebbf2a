/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What the CPU's variants share: one product of two matrices as the engines see it, the engines
 * (the rungs of the ladder), and threads.
 */
#ifndef OPS_CPU_PRODUCT_H
#define OPS_CPU_PRODUCT_H

#include <stdbool.h>

#include "ops/core/operator.h"
#include "ops/core/scales.h"

/* Element (i, j) is at data[i * rs + j * cs]. */
struct cpu_operand {
    const void *data;
    int64_t rs, cs;
    int dtype;
};

/* What happens to an element of the product before it is stored: the linear layer's share. */
struct cpu_epilogue {
    const void *bias; /* one a column, or NULL */
    void *preact;     /* or NULL */
    int64_t ld_preact;
    int activation;
    int dtype; /* of both */
};

/* C = alpha A B + beta C, then the epilogue, if there is one. m and n are at least 1. */
struct cpu_product {
    int64_t m, n, k;
    struct cpu_operand a, b;
    void *c;
    int64_t ldc;
    int dtype; /* of C */
    float alpha, beta;
    const struct cpu_epilogue *epilogue;
    struct ops_scales scale_a, scale_b; /* of 8-bit types */
};

/*
 * A micro-kernel: C = scale[0] * sum over k of a[i] b[j] + scale[1] * C for a tile of mr x nr, from
 * panels of mr and nr elements for each k. b is aligned to 64 bytes. C is not read where scale[1]
 * is 0. The scales are in memory because registers are short.
 */
struct cpu_kernel {
    int mr, nr;
    int kc;      /* a panel's length: a panel of B fits the first cache, with room for A's */
    int mc;      /* rows of A that are packed at once: they fit the second cache */
    int nc;      /* columns of B that are packed at once: they fit the last cache */
    int vectors; /* registers in use, for the metrics */
    void (*run)(int64_t k, const float *a, const float *b, float *c, int64_t ldc,
                const float scale[2]);
};

extern const struct cpu_kernel cpu_kernel_plain, cpu_kernel_avx2, cpu_kernel_avx512;

/* A rung. `kernel` is NULL for those that pack nothing. */
struct cpu_engine {
    void (*multiply)(const struct cpu_engine *engine, const struct cpu_product *product,
                     void *workspace);
    size_t (*workspace)(const struct cpu_engine *engine, const struct cpu_product *product);
    const struct cpu_kernel *kernel;
    bool threads; /* the product is split among threads, and the kernel is this processor's best */
    int tile;     /* the copies' size in engines without a kernel, for the metrics; 0: none */
};

void cpu_multiply_naive(const struct cpu_engine *, const struct cpu_product *, void *workspace);
void cpu_multiply_blocked(const struct cpu_engine *, const struct cpu_product *, void *workspace);
void cpu_multiply_packed(const struct cpu_engine *, const struct cpu_product *, void *workspace);
size_t cpu_workspace_packed(const struct cpu_engine *, const struct cpu_product *);

#define CPU_BLOCK 64 /* the tile of cpu_multiply_blocked() */

/* The best kernel of this processor. */
const struct cpu_kernel *cpu_best_kernel(void);

/* GPUNVME_OPS_CPU_* of this processor and build. */
uint64_t cpu_features(void);

/*
 * Runs a product with an engine, split among `threads` (from cpu_threads_for()) if the engine has
 * threads. The bits of the result do not depend on the number of threads.
 */
void cpu_run_product(const struct cpu_engine *engine, const struct cpu_product *product,
                     int threads, void *workspace);
size_t cpu_product_workspace(const struct cpu_engine *engine, const struct cpu_product *product,
                             int threads);

/* How many threads a call is to use: 1 for engines that have none. */
int cpu_threads_for(const struct cpu_engine *engine, const struct gpunvme_ops_exec *exec);

/* work(arg, index, count) by `count` threads at once, index 0 … count - 1; returns after all. */
void cpu_parallel(int count, void (*work)(void *arg, int index, int count), void *arg);
int cpu_max_threads(void);

/* Packs `width` rows or columns of an operand at a time into panels, as f32: see pack.c. */
void cpu_pack(const struct cpu_operand *x, const struct ops_scales *scales, int64_t first,
              int64_t count, int64_t k0, int64_t k, int width, float *out);

/* Rounds rows of f32 to C's type with scale and epilogue: see finish.c. */
void cpu_finish(const struct cpu_product *product, const float *sums, int64_t ld, int64_t row,
                int64_t rows, int64_t col, int64_t cols);

/* The epilogue on rows of C that hold alpha A B + beta C in f32. */
void cpu_finish_in_place(const struct cpu_product *product, int64_t row, int64_t rows, int64_t col,
                         int64_t cols);

/* act(z) and act'(z). */
float cpu_activate(int activation, float z);
float cpu_activate_grad(int activation, float z);

/* The rank of a variant whose data is an engine. */
int cpu_rank(const struct ops_variant *variant, const struct ops_call *call);

extern const struct cpu_engine cpu_engines[6]; /* as the ladder has them */

#if defined(__x86_64__)
#define CPU_X86(feature) (feature)
#else
#define CPU_X86(feature) (UINT64_C(1) << 63) /* which no processor has */
#endif

/* The ladder of an operator that is made of products: each variant runs them by an engine. */
#define CPU_VARIANT(...) CPU_VARIANT_OF(OPS_ALL_DTYPES, __VA_ARGS__)
#define CPU_VARIANT_OF(dtypes_, index, name_, features_, needs_, changes_, workspace_, run_,       \
                       analyze_)                                                                   \
    {                                                                                              \
        .name = name_, .needs = needs_, .changes = changes_, .dtypes = dtypes_,                    \
        .computes = OPS_ALL_COMPUTES, .deterministic = 1, .cpu_features = features_,               \
        .rank = cpu_rank, .workspace = workspace_, .run = run_, .analyze = analyze_,               \
        .data = &cpu_engines[index]                                                                \
    }

#define CPU_LADDER(...) CPU_LADDER_OF(OPS_ALL_DTYPES, __VA_ARGS__)
#define CPU_LADDER_OF(dtypes, workspace, run, analyze)                                             \
    {                                                                                              \
        CPU_VARIANT_OF(dtypes, 0, "naive", 0, "nothing",                                           \
                       "three loops as the definition has them, one sum at a time", workspace,     \
                       run, analyze),                                                              \
            CPU_VARIANT_OF(                                                                        \
                dtypes, 1, "blocked", 0, "nothing",                                                \
                "tiles of 64 x 64 that stay in the first cache, loops i k j along rows",           \
                workspace, run, analyze),                                                          \
            CPU_VARIANT_OF(                                                                        \
                dtypes, 2, "packed", 0, "nothing",                                                 \
                "operands packed into panels for three caches, a tile of C in registers, "         \
                "vectors of 4",                                                                    \
                workspace, run, analyze),                                                          \
            CPU_VARIANT_OF(dtypes, 3, "avx2", CPU_X86(GPUNVME_OPS_CPU_AVX2), "AVX2 and FMA",       \
                           "a tile of 6 x 16 in vectors of 8, multiplied and added at once",       \
                           workspace, run, analyze),                                               \
            CPU_VARIANT_OF(dtypes, 4, "avx512", CPU_X86(GPUNVME_OPS_CPU_AVX512), "AVX-512F",       \
                           "a tile of 12 x 32 in vectors of 16", workspace, run, analyze),         \
            CPU_VARIANT_OF(dtypes, 5, "openmp", GPUNVME_OPS_CPU_OPENMP, "a build with OpenMP",     \
                           "the best of the above, split among threads", workspace, run, analyze)  \
    }

#endif
