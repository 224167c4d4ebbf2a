/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Normalization of rows, forward and backward: RMSNorm (Zhang and Sennrich, 2019) and LayerNorm
 * (Ba, Kiros and Hinton, 2016). The rules of ops/core.h apply.
 */
#ifndef GPUNVME_OPS_NORM_H
#define GPUNVME_OPS_NORM_H

#include "gpunvme/ops/core.h"

#ifdef __cplusplus
extern "C" {
#endif

enum gpunvme_norm_kind {
    GPUNVME_NORM_RMS = 0,   /* y = h / sqrt(mean(h^2) + eps) * weight + bias */
    GPUNVME_NORM_LAYER = 1, /* y = (h - mean(h)) / sqrt(var(h) + eps) * weight + bias */
    GPUNVME_NORM_NKINDS
};

/*
 * Each row of h = x, or of h = x + residual, rounded to `dtype`, is normalized. Means and variances
 * are over the columns, in f32; var() divides by their number.
 *
 *   x           rows x cols, ldx >= cols
 *   residual    rows x cols, ld_residual >= cols; NULL: none
 *   weight      cols elements of weight_dtype; NULL: ones
 *   bias        cols elements of weight_dtype; NULL: zeros
 *   y           rows x cols, ldy >= cols
 *   sum         rows x cols, ld_sum >= cols: h, for the next residual and for backward; NULL if not
 *               wanted. It may be `residual` or `x` itself, with the same leading dimension
 *   mean, rstd  rows elements each: mean(h) (LayerNorm only), and what h is multiplied by; for
 *               backward. NULL if not wanted
 *
 * x, residual, y and sum have the type `dtype`; weight_dtype is `dtype` or F32. eps is not
 * negative; with 0 a row of zeros gives NaNs.
 */
struct gpunvme_norm {
    int64_t rows, cols;
    const void *x, *residual, *weight, *bias;
    void *y, *sum;
    float *mean, *rstd;
    int64_t ldx, ld_residual, ldy, ld_sum;
    float eps;
    int32_t kind; /* enum gpunvme_norm_kind */
    int32_t dtype;
    int32_t weight_dtype;
    int32_t reserved[2]; /* 0 */
};

/* The functions of both are matmul's: see gpunvme_matmul(), …_workspace() and …_choose(). */
gpunvme_ops_status_t gpunvme_norm_forward(const struct gpunvme_norm *norm,
                                          const struct gpunvme_ops_exec *exec);
gpunvme_ops_status_t gpunvme_norm_forward_workspace(const struct gpunvme_norm *norm,
                                                    const struct gpunvme_ops_exec *exec,
                                                    size_t *nbytes);
gpunvme_ops_status_t gpunvme_norm_forward_choose(const struct gpunvme_norm *norm,
                                                 const struct gpunvme_ops_exec *exec,
                                                 const char **name);

/*
 * Backwards. With n = (x - mean) * rstd (RMSNorm: mean = 0) and g = grad_y * weight:
 *
 *   grad_x       rows x cols, ld_grad_x >= cols: rstd * (g - n mean(g n)), for LayerNorm less
 *                rstd * mean(g); plus grad_sum
 *   grad_weight  cols elements: the sum of grad_y * n over the rows, or with `accumulate` added to
 *   grad_bias    cols elements: the sum of grad_y over the rows, likewise
 *
 * x is what was normalized: forward's x, or its `sum` if there was a residual; then grad_x is the
 * gradient of both x and residual. mean and rstd are forward's (mean: LayerNorm only). grad_sum
 * (rows x cols, ld_grad_sum >= cols; NULL: none) is the gradient that reached `sum` by the other
 * way; it may be grad_x itself, with the same leading dimension.
 *
 * Each of the three results may be NULL, and is then not computed. grad_weight and grad_bias have
 * the type grad_dtype (`dtype` or F32). They are summed in f32 in two stages, whose
 * order depends on sizes and device alone: their bits are the same in every run.
 */
struct gpunvme_norm_grad {
    int64_t rows, cols;
    const void *grad_y, *x, *weight;
    const float *mean, *rstd;
    const void *grad_sum;
    void *grad_x, *grad_weight, *grad_bias;
    int64_t ld_grad_y, ldx, ld_grad_sum, ld_grad_x;
    int32_t kind; /* enum gpunvme_norm_kind */
    int32_t dtype;
    int32_t weight_dtype;
    int32_t grad_dtype;
    int32_t accumulate; /* 0 or 1 */
    int32_t reserved;   /* 0 */
};

gpunvme_ops_status_t gpunvme_norm_backward(const struct gpunvme_norm_grad *grad,
                                           const struct gpunvme_ops_exec *exec);
gpunvme_ops_status_t gpunvme_norm_backward_workspace(const struct gpunvme_norm_grad *grad,
                                                     const struct gpunvme_ops_exec *exec,
                                                     size_t *nbytes);
gpunvme_ops_status_t gpunvme_norm_backward_choose(const struct gpunvme_norm_grad *grad,
                                                  const struct gpunvme_ops_exec *exec,
                                                  const char **name);

#ifdef __cplusplus
}
#endif
#endif
