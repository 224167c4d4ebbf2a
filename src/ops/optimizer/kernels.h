/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The kernels of optimizers. A launch has as many tensors as a kernel's parameters hold.
 */
#ifndef OPS_OPTIMIZER_KERNELS_H
#define OPS_OPTIMIZER_KERNELS_H

#include <cuda_runtime_api.h>

#include "ops/cuda/rows.h"
#include "ops/optimizer/optimizer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Parameters may have 32 KiB since CUDA 12.1, before that 4. */
#if CUDART_VERSION >= 12010
#define ADAMW_TENSORS 256
#else
#define ADAMW_TENSORS 48
#endif

#define ADAMW_CHUNK 4096 /* elements of a block */

/* The tensors of a launch: the chunks of number k begin at chunk `first[k]`. */
struct adamw_work {
    struct gpunvme_adamw_tensor tensors[ADAMW_TENSORS];
    int64_t first[ADAMW_TENSORS + 1];
    int64_t number; /* of the first tensor, in the whole list */
    int count;
    struct adamw_step step;
    const float *grad_scale;
    const struct gpunvme_adamw_now *now; /* if not NULL, the kernel makes `step` and `steps` */
    float weight_decay, log_beta1, log_beta2;
    int64_t steps;
    uint64_t seed;
    int dtype, grad_dtype, stochastic;
    int by_eight; /* all arrays are aligned to 16 bytes */
};

/* An element a thread; or eight at a time. */
gpunvme_ops_status_t adamw_elements(const struct adamw_work *x, void *stream);
gpunvme_ops_status_t adamw_vectors(const struct adamw_work *x, void *stream);

struct grad_norm_work {
    struct gpunvme_grad_tensor tensors[ADAMW_TENSORS];
    int64_t first[ADAMW_TENSORS + 1]; /* in the whole list of chunks */
    int count;
    int dtype;
    float *sums; /* one for each chunk */
};

/* The chunks' sums of squares; then the norm of `chunks` of them, by one block. */
gpunvme_ops_status_t grad_norm_sums(const struct grad_norm_work *x, int by_eight, void *stream);
gpunvme_ops_status_t grad_norm_finish(const float *sums, int64_t chunks, float max_norm,
                                      float *norm, float *scale, void *stream);

#ifdef __cplusplus
}
#endif
#endif
