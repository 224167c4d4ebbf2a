/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The most common operators, each as one call without a descriptor, under the names that earlier
 * projects used. Part of libgpunvme_ops. ops.h has the full interface, and its rules apply here.
 *
 * Matrices are packed and row-major, all of type `dtype` (enum gpunvme_ops_dtype). `exec` says
 * where a call runs; NULL is the CPU with its best variant. On the CPU a call allocates the
 * workspace that it needs, unless `exec` has one. With CUDA, `exec` must have a workspace of the
 * size that gpunvme_matmul_workspace(), gpunvme_linear_forward_workspace(),
 * gpunvme_attention_workspace() or gpunvme_moe_forward_workspace() gives.
 *
 * Thread safe, as ops.h says. Errors: those of gpunvme_matmul(), gpunvme_linear_forward(),
 * gpunvme_attention() and gpunvme_moe_forward(); GPUNVME_OPS_ERR_WORKSPACE if the workspace is
 * missing or can't be allocated.
 */
#ifndef GPUNVME_OPTIMIZED_H
#define GPUNVME_OPTIMIZED_H

#include <stdint.h>

#include "gpunvme/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* C = A B: a is m x k, b is k x n, c is m x n. */
gpunvme_ops_status_t optimized_matmul(const void *a, const void *b, void *c, int64_t m, int64_t n,
                                      int64_t k, int dtype, const struct gpunvme_ops_exec *exec);

/*
 * Y = act(X W^T + bias): x is rows x in, weight is out x in, bias is out elements or NULL, y is
 * rows x out. `activation` is an enum gpunvme_ops_activation.
 */
gpunvme_ops_status_t optimized_linear(const void *x, const void *weight, const void *bias, void *y,
                                      int64_t rows, int64_t in, int64_t out, int activation,
                                      int dtype, const struct gpunvme_ops_exec *exec);

/*
 * Attention, softmax(Q K^T / sqrt(dim)) V: q and out are batch x q_len x heads x dim, k and v batch
 * x k_len x kv_heads x dim, where kv_heads divides heads. `causal` is 0 or 1: the last query is
 * aligned to the last key, and none sees the keys behind it.
 */
gpunvme_ops_status_t optimized_attention(const void *q, const void *k, const void *v, void *out,
                                         int64_t batch, int64_t q_len, int64_t k_len, int64_t heads,
                                         int64_t kv_heads, int64_t dim, int causal, int dtype,
                                         const struct gpunvme_ops_exec *exec);

/*
 * A mixture of experts: x and y are tokens x dim, logits is tokens x experts. Each token goes to
 * the experts of its top_k highest logits, weighted by the softmax over those. An expert is w_down
 * (silu(w_gate x) * (w_up x)); w_gate and w_up are experts x hidden x dim, w_down is experts x dim
 * x hidden. ops/moe.h has the details.
 */
gpunvme_ops_status_t optimized_moe(const void *x, const void *logits, const void *w_gate,
                                   const void *w_up, const void *w_down, void *y, int64_t tokens,
                                   int64_t experts, int64_t top_k, int64_t dim, int64_t hidden,
                                   int dtype, const struct gpunvme_ops_exec *exec);

#ifdef __cplusplus
}
#endif
#endif
