/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Rows of a table by number, and the table's gradient. The rules of ops/core.h apply.
 */
#ifndef GPUNVME_OPS_EMBEDDING_H
#define GPUNVME_OPS_EMBEDDING_H

#include "gpunvme/ops/core.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * y[i, :] = weight[ids[i], :].
 *
 *   weight  vocab x dim, ld_weight >= dim, of type `dtype`
 *   ids     rows numbers from 0 to vocab - 1
 *   y       rows x dim, ldy >= dim, of type `dtype`
 *
 * Another id is refused on the CPU (GPUNVME_OPS_ERR_INVALID, nothing is written); on a GPU its row
 * of y is NaN.
 */
struct gpunvme_embedding {
    int64_t rows, vocab, dim;
    const void *weight;
    const int32_t *ids;
    void *y;
    int64_t ld_weight, ldy;
    int32_t dtype;
    int32_t reserved; /* 0 */
};

/* The functions of both are matmul's: see gpunvme_matmul(), …_workspace() and …_choose(). */
gpunvme_ops_status_t gpunvme_embedding_forward(const struct gpunvme_embedding *embedding,
                                               const struct gpunvme_ops_exec *exec);
gpunvme_ops_status_t gpunvme_embedding_forward_workspace(const struct gpunvme_embedding *embedding,
                                                         const struct gpunvme_ops_exec *exec,
                                                         size_t *nbytes);
gpunvme_ops_status_t gpunvme_embedding_forward_choose(const struct gpunvme_embedding *embedding,
                                                      const struct gpunvme_ops_exec *exec,
                                                      const char **name);

/*
 * Backwards: row v of grad_weight (vocab x dim, ld_grad_weight >= dim, of type grad_dtype: `dtype`
 * or F32) = the sum of the rows i of grad_y (rows x dim, ld_grad_y >= dim, of type `dtype`) whose
 * ids[i] is v, or with `accumulate` added to. Rows that no id names become zeros, or are not
 * touched. Sums are in f32; those of variants that are deterministic are in the order of rows, or
 * of a fixed number of parts of them. On a GPU another id is left out.
 */
struct gpunvme_embedding_grad {
    int64_t rows, vocab, dim;
    const void *grad_y;
    const int32_t *ids;
    void *grad_weight;
    int64_t ld_grad_y, ld_grad_weight;
    int32_t dtype;
    int32_t grad_dtype;
    int32_t accumulate; /* 0 or 1 */
    int32_t reserved;   /* 0 */
};

gpunvme_ops_status_t gpunvme_embedding_backward(const struct gpunvme_embedding_grad *grad,
                                                const struct gpunvme_ops_exec *exec);
gpunvme_ops_status_t gpunvme_embedding_backward_workspace(const struct gpunvme_embedding_grad *grad,
                                                          const struct gpunvme_ops_exec *exec,
                                                          size_t *nbytes);
gpunvme_ops_status_t gpunvme_embedding_backward_choose(const struct gpunvme_embedding_grad *grad,
                                                       const struct gpunvme_ops_exec *exec,
                                                       const char **name);

#ifdef __cplusplus
}
#endif
#endif
