/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A layer of a mixture of experts, forward and backward: each token is sent to the top_k experts of
 * its highest logits, each expert is a SwiGLU network, and the results are added up by weight
 * (Shazeer et al., "Outrageously large neural networks", 2017; Jiang et al., "Mixtral of experts",
 * 2024). No expert has a capacity, so no token is dropped. The rules of ops/core.h apply.
 */
#ifndef GPUNVME_OPS_MOE_H
#define GPUNVME_OPS_MOE_H

#include "gpunvme/ops/core.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The weights of the chosen experts. */
enum gpunvme_moe_weighting {
    GPUNVME_MOE_CHOSEN = 0, /* softmax over the chosen logits: they sum to 1 */
    GPUNVME_MOE_ALL = 1,    /* softmax over all logits, not renormalized */
    GPUNVME_MOE_NWEIGHTINGS
};

/*
 * y[t] = sum over token t's chosen experts e of p[e] w_down[e] (silu(w_gate[e] x[t]) * (w_up[e]
 * x[t])), the terms added in f32.
 *
 * Choice: the top_k highest logits of a row; of equal ones the lower index. A NaN ranks above all
 * numbers, as in torch.topk: it makes the weights of its token NaN, and so that row of y, but no
 * other. p is the softmax that `weighting` names, in f32.
 *
 * Rounding: gate, up and their product silu(gate) * up are rounded to `dtype` on a GPU; the CPU
 * keeps them in f32. All variants are deterministic. On a GPU nothing waits for the host: sizes
 * that follow from the choice stay on the device, and a call may be captured in a graph.
 *
 * Sizes: 1 <= top_k <= experts; dim and hidden are at least 1; tokens may be 0; all sizes and
 * tokens * top_k are below 2^31.
 */
struct gpunvme_moe {
    int64_t tokens, experts, top_k;
    int64_t dim;        /* of a token */
    int64_t hidden;     /* of an expert's network */
    const void *x;      /* tokens x dim */
    const void *logits; /* tokens x experts, of type logits_dtype */
    const void *w_gate; /* of each expert hidden x dim */
    const void *w_up;   /* likewise */
    const void *w_down; /* of each expert dim x hidden */
    void *y;            /* tokens x dim */
    int32_t *chosen;    /* tokens x top_k, packed: the experts by falling logit; or NULL */
    float *weights;     /* tokens x top_k, packed: p of each; or NULL */
    void *gate, *up;    /* tokens * top_k x hidden, packed: w_gate[e] x[t] and w_up[e] x[t], which
                           the backward pass needs; row t * top_k + i is of chosen[t][i]. NULL: not
                           kept */
    int64_t ldx, ld_logits, ldy;
    int64_t ld_w_gate, ld_w_up, ld_w_down;             /* of one expert's matrix */
    int64_t stride_w_gate, stride_w_up, stride_w_down; /* from one expert to the next */
    int32_t dtype;        /* of x, the experts' matrices, y, gate and up */
    int32_t logits_dtype; /* dtype, or F32 */
    int32_t compute;
    int32_t weighting; /* enum gpunvme_moe_weighting */
};

/* The functions of both are matmul's: see gpunvme_matmul(), …_workspace() and …_choose(). */
gpunvme_ops_status_t gpunvme_moe_forward(const struct gpunvme_moe *moe,
                                         const struct gpunvme_ops_exec *exec);
gpunvme_ops_status_t gpunvme_moe_forward_workspace(const struct gpunvme_moe *moe,
                                                   const struct gpunvme_ops_exec *exec,
                                                   size_t *nbytes);
gpunvme_ops_status_t gpunvme_moe_forward_choose(const struct gpunvme_moe *moe,
                                                const struct gpunvme_ops_exec *exec,
                                                const char **name);

/*
 * Backwards. chosen, weights, gate and up are the forward pass's. Any gradient may be NULL: it is
 * not computed. grad_logits reaches the logits through the weights; the choice itself has no
 * gradient. Without tokens the gradients of the experts' matrices are 0.
 *
 * With `accumulate`, gradients of the experts' matrices are added to what is there. An expert that
 * no token chose has a gradient of 0.
 *
 * Errors: on the CPU, GPUNVME_OPS_ERR_INVALID if a number in `chosen` is no expert's. On a GPU such
 * numbers are left out of all gradients.
 */
struct gpunvme_moe_grad {
    int64_t tokens, experts, top_k, dim, hidden;
    const void *grad_y, *x; /* tokens x dim */
    const void *logits;     /* for GPUNVME_MOE_ALL and grad_logits only; else it may be NULL */
    const void *w_gate, *w_up, *w_down;
    const int32_t *chosen;
    const float *weights;
    const void *gate, *up;
    void *grad_x;                                /* tokens x dim, of `dtype` */
    void *grad_logits;                           /* tokens x experts, of logits_dtype */
    void *grad_w_gate, *grad_w_up, *grad_w_down; /* like the matrices, of type grad_dtype */
    int64_t ld_grad_y, ldx, ld_logits;
    int64_t ld_w_gate, ld_w_up, ld_w_down;
    int64_t stride_w_gate, stride_w_up, stride_w_down;
    int64_t ld_grad_x, ld_grad_logits;
    int64_t ld_grad_w_gate, ld_grad_w_up, ld_grad_w_down;
    int64_t stride_grad_w_gate, stride_grad_w_up, stride_grad_w_down;
    int32_t dtype, logits_dtype;
    int32_t grad_dtype; /* dtype, or F32 */
    int32_t accumulate; /* 0 or 1 */
    int32_t compute, weighting;
};

gpunvme_ops_status_t gpunvme_moe_backward(const struct gpunvme_moe_grad *grad,
                                          const struct gpunvme_ops_exec *exec);
gpunvme_ops_status_t gpunvme_moe_backward_workspace(const struct gpunvme_moe_grad *grad,
                                                    const struct gpunvme_ops_exec *exec,
                                                    size_t *nbytes);
gpunvme_ops_status_t gpunvme_moe_backward_choose(const struct gpunvme_moe_grad *grad,
                                                 const struct gpunvme_ops_exec *exec,
                                                 const char **name);

#ifdef __cplusplus
}
#endif
#endif
