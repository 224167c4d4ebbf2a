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
 * Column j of `out`: the sum of sums[part * out + j] over the parts, or with `accumulate` added to.
 * The first columns belong to total[0], those from `first` on to total[1]; both are of `dtype`. No
 * parts are zeros.
 */
struct cuda_sums {
    const float *sums;
    int64_t parts, out, first;
    void *total[2];
    int dtype, accumulate;
};

gpunvme_ops_status_t cuda_finish_sums(const struct cuda_sums *x, void *stream);

#ifdef __cplusplus
}
#endif
#endif
