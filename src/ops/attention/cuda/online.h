/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Between the host's half of the rung "online" and its kernel.
 */
#ifndef OPS_ATTENTION_CUDA_ONLINE_H
#define OPS_ATTENTION_CUDA_ONLINE_H

#include "ops/attention/cuda/problem.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes of shared memory that a block needs: they grow with the channels. */
size_t online_shared_nbytes(const struct cuda_attention *x);

cuda_attention_run online_run;

#ifdef __cplusplus
}
#endif
#endif
