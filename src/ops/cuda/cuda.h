/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What the GPU's variants share: one product of two matrices as the kernels see it, and the rungs
 * of the ladder, each in a file of its own in matmul/. Read by C, CUDA and tests without either.
 */
#ifndef OPS_CUDA_H
#define OPS_CUDA_H

#include "gpunvme/fn.h"
#include "ops/variant.h"

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
    int dtype; /* of A, B, bias and preact */
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
    int width; /* of Hopper's tiles; 0: HOPPER_TILE_N */
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

/* How many matrices A and B are. */
GPUNVME_FN int64_t cuda_matrices(const struct cuda_product *p)
{
    return p->pieces > 1 ? p->batch / p->pieces : p->batch;
}

/* A kernel's tiles. A block makes tile_m x tile_n elements of C. */
struct cuda_tiling {
    int tile_m, tile_n;
    int part_m, part_n; /* that are made of what is read from shared memory at once; 0: of none */
    int threads;
    size_t shared_nbytes; /* that the launch asks for */
    int pair_m, pair_n;   /* blocks of a cluster below and beside each other; 0 is 1 */
};

/* How a rung would run a product, for the metrics. */
struct cuda_launch {
    struct cuda_tiling tiling;
    int registers;
    int64_t blocks, shared_nbytes;
    double occupancy;
};

/* A rung. */
struct cuda_engine {
    /* Enqueues the product. With `launch` it is only described. */
    gpunvme_ops_status_t (*multiply)(const struct cuda_product *product, void *workspace,
                                     void *stream, struct cuda_launch *launch);
    size_t (*workspace)(const struct cuda_product *product); /* NULL: none */

    /* Can it do the product, pointers aside? And are they not aligned as it needs them? NULL: it
     * can do any. */
    int (*suits)(const struct cuda_product *product);
    int (*misaligned)(const struct cuda_product *product);
};

gpunvme_ops_status_t cuda_multiply_naive(const struct cuda_product *, void *workspace, void *stream,
                                         struct cuda_launch *);
gpunvme_ops_status_t cuda_multiply_tiled(const struct cuda_product *, void *workspace, void *stream,
                                         struct cuda_launch *);
gpunvme_ops_status_t cuda_multiply_vectorized(const struct cuda_product *, void *workspace,
                                              void *stream, struct cuda_launch *);
gpunvme_ops_status_t cuda_multiply_coarsened(const struct cuda_product *, void *workspace,
                                             void *stream, struct cuda_launch *);
gpunvme_ops_status_t cuda_multiply_tensorcore(const struct cuda_product *, void *workspace,
                                              void *stream, struct cuda_launch *);
gpunvme_ops_status_t cuda_multiply_hopper(const struct cuda_product *, void *workspace,
                                          void *stream, struct cuda_launch *);
gpunvme_ops_status_t cuda_multiply_skinny(const struct cuda_product *, void *workspace,
                                          void *stream, struct cuda_launch *);
gpunvme_ops_status_t cuda_multiply_shaped(const struct cuda_product *, void *workspace,
                                          void *stream, struct cuda_launch *);
int cuda_suits_skinny(const struct cuda_product *);
size_t cuda_workspace_shaped(const struct cuda_product *);
int cuda_suits_shaped(const struct cuda_product *);
int cuda_misaligned_shaped(const struct cuda_product *);
size_t cuda_workspace_hopper(const struct cuda_product *);
int cuda_suits_hopper(const struct cuda_product *);
int cuda_misaligned_hopper(const struct cuda_product *);

/* A cudaError_t as a status, with what was being done. */
gpunvme_ops_status_t cuda_status(int error, const char *doing);

/*
 * Launches `kernel(product)`: as many blocks as there are tiles, but at most the grid's limit, for
 * kernels go on to further tiles by themselves. With `launch` it only tells about it.
 */
gpunvme_ops_status_t cuda_launch_tiles(const void *kernel, const struct cuda_product *product,
                                       const struct cuda_tiling *tiling, void *stream,
                                       struct cuda_launch *launch);

/* What the device makes of a kernel. */
gpunvme_ops_status_t cuda_describe(const void *kernel, const struct cuda_tiling *tiling,
                                   int64_t blocks, struct cuda_launch *launch);

/* Shared memory beyond 48 KiB must be asked for before a launch. */
gpunvme_ops_status_t cuda_allow_shared(const void *kernel, size_t nbytes);

/* Multiprocessors of the current device; 1 if it cannot tell. */
int cuda_units(void);

/* Tiles of m x n that cover C. */
static inline int64_t cuda_tiles(const struct cuda_product *p, int64_t m, int64_t n)
{
    return ((p->m + m - 1) / m) * ((p->n + n - 1) / n) * p->batch;
}

/* Bytes of a workspace's part, so that the next one is aligned; SIZE_MAX / 4, which nobody has, if
 * they are more than that. */
size_t cuda_workspace_part(int64_t rows, int64_t row_nbytes);

/* A product as a rung wants it: strides that no one looks at are made harmless. */
struct cuda_product cuda_matmul_product(const struct gpunvme_matmul *matmul);

/* Says which way an operand and C can be read and written in vectors; after all else is set. */
void cuda_set_vectors(struct cuda_product *product);

/*
 * The rung `engine` for a product; what has nothing to multiply is the plainest one's, and what is
 * not aligned as the rung needs it the one's before it.
 */
gpunvme_ops_status_t cuda_run_product(const struct cuda_engine *engine,
                                      const struct cuda_product *product, void *workspace,
                                      void *stream);
/* A rung that was named does not leave a misaligned product to another one: ERR_ALIGN. */
gpunvme_ops_status_t cuda_refuse_misaligned(const struct ops_variant *variant,
                                            const struct gpunvme_ops_exec *exec,
                                            const struct cuda_engine *engine,
                                            const struct cuda_product *product);
size_t cuda_product_workspace(const struct cuda_engine *engine, const struct cuda_product *product);

enum {
    CUDA_NAIVE,
    CUDA_TILED,
    CUDA_VECTORIZED,
    CUDA_COARSENED,
    CUDA_TENSORCORE,
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
 * How the rung "shaped" makes a product: the rung that multiplies, the width of Hopper's tiles, and
 * how many pieces k is cut into, which are summed in the workspace (plan.c has the model).
 */
struct cuda_plan {
    const struct cuda_engine *engine;
    int width, pieces;
    int64_t chunk;
    double clocks; /* what the model expects */
};

struct cuda_plan cuda_plan_of(const struct cuda_product *product, enum cuda_level level);

/* The sums of a product's pieces, in f32, become C: pieces.cu. */
gpunvme_ops_status_t cuda_add_pieces(const struct cuda_product *product, const float *sums,
                                     int64_t ld, int pieces, void *stream);

/* Matmul's functions for the table: variant->data is the engine. */
size_t cuda_matmul_workspace(const struct ops_variant *, const struct ops_problem *,
                             const struct gpunvme_ops_exec *);
gpunvme_ops_status_t cuda_matmul_run(const struct ops_variant *, const struct ops_problem *,
                                     const struct gpunvme_ops_exec *);
void cuda_matmul_analyze(const struct ops_variant *, const struct ops_problem *,
                         const struct gpunvme_ops_exec *, struct gpunvme_matmul_metrics *);

#ifdef __cplusplus
}
#endif
#endif
