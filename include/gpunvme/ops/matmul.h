/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Matrix multiplication. The rules of ops/core.h apply.
 */
#ifndef GPUNVME_OPS_MATMUL_H
#define GPUNVME_OPS_MATMUL_H

#include "gpunvme/ops/core.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * What shares a scale of fp8 operands. Scales are f32, and an element means its number times its
 * scale. They lie row by row without gaps, those of a matrix of the batch behind those of the one
 * before (of one that serves the whole batch they are there once):
 *
 *             of op(A)               of op(B)
 *     TENSOR  1, for the batch       1, for the batch
 *     ROW     m, one a row           n, one a column
 *     BLOCK   m x ceil(k / 128)      ceil(n / 128) x ceil(k / 128)
 *
 * BLOCK: each 128 elements of a row of op(A) along k, and each 128 x 128 of op(B), have one. It
 * wants transpose_c = 0.
 */
enum gpunvme_matmul_scaling {
    GPUNVME_MATMUL_SCALE_TENSOR = 0,
    GPUNVME_MATMUL_SCALE_ROW = 1,
    GPUNVME_MATMUL_SCALE_BLOCK = 2,
    GPUNVME_MATMUL_NSCALINGS
};

/*
 * C = alpha op(A) op(B) + beta C, `batch` times; op(A) is m x k, op(B) k x n, C m x n.
 *
 *   a   m x k, lda >= k; transpose_a: stored k x m, lda >= m
 *   b   k x n, ldb >= n; transpose_b: stored n x k, ldb >= k
 *   c   m x n, ldc >= n; transpose_c: stored n x m, ldc >= m
 *
 * Any size may be 0: without rows or columns nothing is done; with k = 0 C becomes beta C. If beta
 * is 0, C is not read and may be uninitialised. If alpha is 0, A and B are not read. The leading
 * dimension of a matrix with fewer than two rows is ignored, and so is the stride of fewer than two
 * matrices. stride_a and stride_b may be 0: one matrix for the whole batch. The matrices of C must
 * not overlap each other; they may be interleaved within rows (attention's heads).
 */
struct gpunvme_matmul {
    int64_t m, n, k, batch; /* batch: 1 for a single product; with 0 nothing is done */
    const void *a, *b;
    void *c;
    int64_t lda, ldb, ldc;
    int64_t stride_a, stride_b, stride_c; /* from one matrix of the batch to the next, >= 0 */
    float alpha, beta;
    int32_t transpose_a, transpose_b, transpose_c; /* 0 or 1 */
    int32_t dtype;                                 /* of A, and of B unless dtype_b says else */
    int32_t out_dtype;                             /* of C: dtype, or F32; of fp8 any but fp8 */
    int32_t compute;                               /* enum gpunvme_ops_compute */

    /* fp8 (E4M3, E5M2); of other types all are 0. */
    const float *scale_a, *scale_b; /* NULL: all are 1 */
    int32_t scaling;                /* enum gpunvme_matmul_scaling */

    /*
     * 1: sums may stay in a tensor core, which keeps some 14 bits of them, for all of k; 0: for 128
     * of k at most, then they are added in f32. Not with BLOCK. The CPU always sums in f32.
     */
    int32_t fast_sums;

    /* 0: B is of dtype, too. Of fp8 B may be of the other type, as weights beside gradients. */
    int32_t dtype_b;
    int32_t reserved; /* 0 */
};

/*
 * Computes it; with CUDA, enqueues it to exec->stream. It fails, as all operators do, with
 *
 *   INVALID, SHAPE, DTYPE, ALIAS, WORKSPACE   for an argument: a pointer that is missing, a leading
 *                                             dimension that is too small, …
 *   VARIANT, DEVICE                           if the variant or what it needs is not there
 *   UNSUPPORTED, ALIGN, DTYPE                 if the variant that is named cannot do this call
 *   CUDA                                      if CUDA refuses the launch, or had failed before
 *
 * and gpunvme_ops_detail() says what is wrong with what.
 */
gpunvme_ops_status_t gpunvme_matmul(const struct gpunvme_matmul *matmul,
                                    const struct gpunvme_ops_exec *exec);

/* Bytes of workspace that gpunvme_matmul() needs, 0 if none. Pointers are ignored. */
gpunvme_ops_status_t gpunvme_matmul_workspace(const struct gpunvme_matmul *matmul,
                                              const struct gpunvme_ops_exec *exec, size_t *nbytes);

/*
 * The name of the variant that gpunvme_matmul() runs for this call: "auto" may take another one
 * where A or B is not aligned to 16 bytes. NULL counts as aligned. Fails where the call would, for
 * a variant that is named.
 */
gpunvme_ops_status_t gpunvme_matmul_choose(const struct gpunvme_matmul *matmul,
                                           const struct gpunvme_ops_exec *exec, const char **name);

/*
 * A variant's memory traffic, computed from its tiles. On a GPU `global` is the traffic that leaves
 * the multiprocessors (L2 and beyond) and `shared` that of shared memory. On the CPU `global` is
 * what is read from and written to the matrices themselves, `shared` what the innermost loop reads
 * from copies in a cache.
 */
struct gpunvme_matmul_metrics {
    double flops; /* 2 m n k batch */
    double global_load_nbytes, global_store_nbytes;
    double shared_load_nbytes, shared_store_nbytes;
    double ideal_nbytes;         /* each element of A, B and C once */
    double arithmetic_intensity; /* flops per byte of global traffic */
    double memory_efficiency;    /* ideal_nbytes / global traffic; at most 1 */
    int32_t registers;           /* GPU: of a thread; CPU: vector registers of the micro-kernel */
    int32_t threads_per_block;   /* GPU */
    int64_t blocks;              /* GPU */
    int64_t shared_nbytes;       /* GPU: of a block; CPU: of the copies in caches, by thread */
    double occupancy;            /* GPU: resident warps / warps that fit; else 0 */
};

/* Of the variant that gpunvme_matmul_choose() names. ERR_UNSUPPORTED: it does not compute them. */
gpunvme_ops_status_t gpunvme_matmul_analyze(const struct gpunvme_matmul *matmul,
                                            const struct gpunvme_ops_exec *exec,
                                            struct gpunvme_matmul_metrics *metrics);

#ifdef __cplusplus
}
#endif
#endif
