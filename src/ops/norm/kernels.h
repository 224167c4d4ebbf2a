/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The kernels of normalization, each by a function that launches it.
 */
#ifndef OPS_NORM_KERNELS_H
#define OPS_NORM_KERNELS_H

#include "gpunvme/ops/norm.h"
#include "ops/cuda/rows.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Columns that the threads of a block can keep in registers; backwards they keep sums, too. */
#define NORM_FORWARD_COLS  16384
#define NORM_BACKWARD_COLS 8192

/* A thread for each row; a block for each row; rows in registers. */
gpunvme_ops_status_t norm_forward_naive(const struct gpunvme_norm *p, void *stream);
gpunvme_ops_status_t norm_forward_block(const struct gpunvme_norm *p, void *stream);
gpunvme_ops_status_t norm_forward_registers(const struct gpunvme_norm *p, void *stream);

/*
 * Backwards: blocks, each of which adds up the parameters' gradients of its rows in a row of
 * weight_sums and of bias_sums (cols floats each, ld_sums apart; NULL: not wanted).
 */
struct norm_backward {
    struct gpunvme_norm_grad p;
    float *weight_sums, *bias_sums;
    int64_t ld_sums, blocks;
};

/* The naive one finishes the sums itself, and needs none of them. */
gpunvme_ops_status_t norm_backward_naive(const struct norm_backward *x, void *stream);
gpunvme_ops_status_t norm_backward_block(const struct norm_backward *x, void *stream);
gpunvme_ops_status_t norm_backward_registers(const struct norm_backward *x, void *stream);

#ifdef __cplusplus
}
#endif
#endif
