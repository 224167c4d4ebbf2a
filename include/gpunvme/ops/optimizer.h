/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Updates of parameters, many tensors at once: AdamW (Loshchilov and Hutter, "Decoupled weight
 * decay regularization", 2019) and the norm of all gradients. The rules of ops/core.h apply.
 */
#ifndef GPUNVME_OPS_OPTIMIZER_H
#define GPUNVME_OPS_OPTIMIZER_H

#include "gpunvme/ops/core.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * One tensor. All arrays have `count` elements and are contiguous; no array that is written
 * overlaps another one of any tensor (which is checked within a tensor only).
 */
struct gpunvme_adamw_tensor {
    int64_t count;
    const void *grad; /* of grad_dtype */
    float *master;    /* the weight in f32; NULL: there is only `weight`, which is read as well */
    void *weight;     /* of `dtype`: the rounded master; NULL: there is only `master` */
    float *m, *v;     /* the moments: zeros before the first step */
};

/*
 * What changes from step to step, where the tensors are, so that a captured graph can be replayed:
 * then lr and step of gpunvme_adamw are ignored. Aligned to 8 bytes.
 */
struct gpunvme_adamw_now {
    int64_t step; /* from 1 on */
    float lr;     /* not negative */
    int32_t reserved;
};

/*
 * With g = grad * grad_scale, in f32:
 *
 *   w = w - lr * weight_decay * w
 *   m = beta1 * m + (1 - beta1) * g
 *   v = beta2 * v + (1 - beta2) * g^2
 *   w = w - lr * (m / (1 - beta1^step)) / (sqrt(v / (1 - beta2^step)) + eps)
 *
 * `weight` is w rounded to the nearest, or with `stochastic` (bf16 only) to one of its two
 * neighbours, so that it is w on the average: to the one above with the probability that w is of
 * the way there. The random numbers are Philox 4x32-10 (Salmon et al., "Parallel random numbers: as
 * easy as 1, 2, 3", 2011) with `seed` as the key, counted by element, number of the tensor and
 * step. So they are the same on each device, by each variant and in each run.
 *
 * `tensors` is an array in host memory, which is read during the call alone; grad_scale (one
 * float, NULL: 1) and `now` are where the tensors are, and read as they are when it is their turn
 * on the stream. A step below 1 or an lr that is negative or not finite in `now` is refused by the
 * CPU; on a GPU it makes the weights NaN.
 */
struct gpunvme_adamw {
    const struct gpunvme_adamw_tensor *tensors;
    int64_t ntensors;
    const float *grad_scale;
    int64_t step; /* from 1 on */
    uint64_t seed;
    float lr, beta1, beta2, eps, weight_decay;
    int32_t dtype;
    int32_t grad_dtype;
    int32_t stochastic;                  /* 0 or 1 */
    const struct gpunvme_adamw_now *now; /* NULL: lr and step are those above */
};

/* The functions of both are matmul's: see gpunvme_matmul(), …_workspace() and …_choose(). */
gpunvme_ops_status_t gpunvme_adamw(const struct gpunvme_adamw *adamw,
                                   const struct gpunvme_ops_exec *exec);
gpunvme_ops_status_t gpunvme_adamw_workspace(const struct gpunvme_adamw *adamw,
                                             const struct gpunvme_ops_exec *exec, size_t *nbytes);
gpunvme_ops_status_t gpunvme_adamw_choose(const struct gpunvme_adamw *adamw,
                                          const struct gpunvme_ops_exec *exec, const char **name);

struct gpunvme_grad_tensor {
    int64_t count;
    const void *grad;
};

/*
 * norm = the root of the sum of squares of all elements of all tensors, in f32, by sums whose order
 * depends on sizes alone; scale = min(1, max_norm / (norm + 1e-6)), for gpunvme_adamw.grad_scale.
 * Either may be NULL. A NaN among the elements makes both NaN, infinity makes the norm infinity and
 * the scale 0. `tensors` is an array in host memory, which is read during the call alone; norm and
 * scale are where the tensors are.
 */
struct gpunvme_grad_norm {
    const struct gpunvme_grad_tensor *tensors;
    int64_t ntensors;
    float *norm, *scale;
    float max_norm; /* positive, if `scale` is wanted */
    int32_t dtype;
    int32_t reserved[2];
};

gpunvme_ops_status_t gpunvme_grad_norm(const struct gpunvme_grad_norm *norm,
                                       const struct gpunvme_ops_exec *exec);
gpunvme_ops_status_t gpunvme_grad_norm_workspace(const struct gpunvme_grad_norm *norm,
                                                 const struct gpunvme_ops_exec *exec,
                                                 size_t *nbytes);
gpunvme_ops_status_t gpunvme_grad_norm_choose(const struct gpunvme_grad_norm *norm,
                                              const struct gpunvme_ops_exec *exec,
                                              const char **name);

#ifdef __cplusplus
}
#endif
#endif
