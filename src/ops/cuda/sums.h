/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Sums over rows in two stages, so that their bits are the same in every run.
 */
#ifndef OPS_CUDA_SUMS_H
#define OPS_CUDA_SUMS_H

#include "ops/cuda/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * total[j] of `dtype` = the sum of sums[part * out + j] over the parts, or with `accumulate` added
 * to. No parts are zeros.
 */
gpunvme_ops_status_t cuda_finish_sums(const float *sums, int64_t parts, int64_t out, void *total,
                                      int dtype, int accumulate, void *stream);

#ifdef __cplusplus
}
#endif
#endif
