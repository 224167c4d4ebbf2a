/* SPDX-License-Identifier: BSD-3-Clause
 *
 * One product of two matrices as the GPU's kernels see it, and the rungs that compute it, each in a
 * file of its own. The linear layer makes products, too.
 */
#ifndef OPS_MATMUL_PRODUCT_H
#define OPS_MATMUL_PRODUCT_H

#include "gpunvme/fn.h"
#include "ops/core/operator.h"
#include "ops/core/scales.h"
#include "ops/cuda/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Element (i, j) of matrix number b is at data[b * stride + i * rs + j * cs]; rs or cs is 1. */
struct cuda_operand {
    const void *data;
    int64_t rs, cs, stride;
    int pitched; /* rows begin at multiples of 16 bytes from `data` */
    int vectors; /* and so does `data`: 16 bytes at a time may be read along them */
};

/*
 * C = alpha A B + beta C for each of the batch, then what a linear layer adds: bias, the
 * pre-activation kept, the activation. m, n and batch are at least 1. Kernels get it by value.
 */
struct cuda_product {
    int64_t m, n, k, batch;
    struct cuda_operand a, b;
    void *c;
    int64_t ldc, stride_c;
    const void *bias; /* one a column, or NULL */
    void *preact;     /* or NULL */
    int64_t ld_preact;
    float alpha, beta;
    int dtype;   /* of A, B, bias and preact */
    int dtype_b; /* of fp8: of B */
    int compute;
    int out_dtype;
    int activation;
    int vectors; /* four elements of C, preact and bias at a time may be read and written */

    /*
     * With pieces > 1, each matrix of the batch of A and B is `pieces` of C: number i is the sum
     * over k from (i % pieces) * chunk on, `chunk` of them or what there is. `batch` counts C's.
     */
    int pieces;
    int64_t chunk;
    int width;  /* of Hopper's tiles; 0: HOPPER_TILE_N */
    int height; /* of coarsened's tiles: 64, 128 or 256; 0: cuda_coarsened_height() */

    struct ops_scales scale_a, scale_b; /* of fp8 */
    int fast_sums;
};

/* Which matrices of A and B, and which k of them, matrix `batch` of C is the product of. */
struct cuda_piece {
    int64_t batch, first, k;
};

GPUNVME_FN struct cuda_piece cuda_piece_of(const struct cuda_product *p, int64_t batch)
{
    struct cuda_piece x = {batch, 0, p->k};

    if (p->pieces > 1) {
        x.batch = batch / p->pieces;
        x.first = (batch - x.batch * p->pieces) * p->chunk;
        x.k = p->k - x.first < p->chunk ? p->k - x.first : p->chunk;
    }
    return x;
}

GPUNVME_FN int cuda_is_fp8(int dtype)
{
    return dtype == GPUNVME_OPS_E4M3 || dtype == GPUNVME_OPS_E5M2;
}

/* How many matrices A and B are. */
GPUNVME_FN int64_t cuda_matrices(const struct cuda_product *p)
{
    return p->pieces > 1 ? p->batch / p->pieces : p->batch;
}

/* Enqueues the product. With `launch` it is only described. */
typedef gpunvme_ops_status_t cuda_multiply(const struct cuda_product *product, void *workspace,
                                           void *stream, struct cuda_launch *launch);

/* A rung. */
struct cuda_engine {
    cuda_multiply *multiply;
    size_t (*workspace)(const struct cuda_product *product); /* NULL: none */

    /* Can it do the product, pointers aside? And are they not aligned as it needs them? NULL: it
     * can do any. */
    int (*suits)(const struct cuda_product *product);
    int (*misaligned)(const struct cuda_product *product);
};

cuda_multiply cuda_multiply_naive, cuda_multiply_tiled, cuda_multiply_vectorized,
    cuda_multiply_coarsened, cuda_multiply_tensorcore, cuda_multiply_wgmma,
    cuda_multiply_specialized, cuda_multiply_cluster, cuda_multiply_hopper, cuda_multiply_skinny,
    cuda_multiply_shaped;
int cuda_suits_skinny(const struct cuda_product *);
int cuda_skinny_reads_vectors(const struct cuda_product *); /* of the large operand, along k */
size_t cuda_workspace_shaped(const struct cuda_product *);
int cuda_suits_shaped(const struct cuda_product *);
int cuda_misaligned_shaped(const struct cuda_product *);
size_t cuda_workspace_hopper(const struct cuda_product *);
int cuda_suits_hopper(const struct cuda_product *);
int cuda_misaligned_hopper(const struct cuda_product *);

/*
 * Launches `kernel(product)`: as many blocks as there are tiles, but at most the grid's limit, for
 * kernels go on to further tiles by themselves. With `launch` it only tells about it.
 */
gpunvme_ops_status_t cuda_launch_tiles(const void *kernel, const struct cuda_product *product,
                                       const struct cuda_tiling *tiling, void *stream,
                                       struct cuda_launch *launch);

/* Tiles of m x n that cover C. */
static inline int64_t cuda_tiles(const struct cuda_product *p, int64_t m, int64_t n)
{
    return ((p->m + m - 1) / m) * ((p->n + n - 1) / n) * p->batch;
}

/* 256, if there is a tile of 256 x 128 for each multiprocessor, or 128. */
static inline int cuda_coarsened_height(const struct cuda_product *p)
{
    return cuda_tiles(p, 256, 128) < cuda_units() ? 128 : 256;
}

/* Says which way an operand and C can be read and written in vectors; after all else is set. */
void cuda_set_vectors(struct cuda_product *product);

/* ERR_ALIGN, if the rung `engine` of the variant can't read the operands where they are. */
gpunvme_ops_status_t cuda_check_aligned(const char *variant, const struct cuda_engine *engine,
                                        const struct cuda_product *product);

/*
 * Runs a product by `engine`. Two are another rung's: one with nothing to multiply is the plainest
 * one's, and a misaligned one, as a linear layer may have on its way, the best of CUDA_PLAIN's.
 */
gpunvme_ops_status_t cuda_run_product(const struct cuda_engine *engine,
                                      const struct cuda_product *product, void *workspace,
                                      void *stream);
size_t cuda_product_workspace(const struct cuda_engine *engine, const struct cuda_product *product);

enum {
    CUDA_NAIVE,
    CUDA_TILED,
    CUDA_VECTORIZED,
    CUDA_COARSENED,
    CUDA_TENSORCORE,
    CUDA_WGMMA,
    CUDA_SPECIALIZED,
    CUDA_CLUSTER,
    CUDA_HOPPER,
    CUDA_SKINNY,
    CUDA_SHAPED,
    CUDA_NENGINES
};

extern const struct cuda_engine cuda_engines[CUDA_NENGINES]; /* as matmul's ladder has them */

/* Which rungs may be chosen. */
enum cuda_level {
    CUDA_PLAIN,     /* those of sm_80, which need no workspace and take any alignment */
    CUDA_ANY,       /* of sm_90, but not with sm_90a's instructions */
    CUDA_ANY_HOPPER /* all */
};

/* The fastest of them for a product; cuda_level() is the current device's and this build's. */
const struct cuda_engine *cuda_best_engine(const struct cuda_product *product,
                                           enum cuda_level level);
enum cuda_level cuda_level(void);

/*
 * How the rung "shaped" makes a product: the rung that multiplies, the size of its tiles, and how
 * many pieces k is cut into, which are summed in the workspace (plan.c has the model).
 */
struct cuda_plan {
    const struct cuda_engine *engine;
    int width, pieces;
    int height; /* of coarsened's tiles, or 0 */
    int64_t chunk;
    double clocks; /* what the model expects */
};

struct cuda_plan cuda_plan_of(const struct cuda_product *product, enum cuda_level level);

/* The sums of a product's pieces, in f32, become C: pieces.cu. */
gpunvme_ops_status_t cuda_add_pieces(const struct cuda_product *product, const float *sums,
                                     int64_t ld, int pieces, void *stream);

#ifdef __cplusplus
}
#endif
#endif
