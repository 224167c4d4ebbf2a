/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Between the host's half of appending to a cache and its kernels.
 */
#ifndef OPS_ATTENTION_CUDA_APPEND_H
#define OPS_ATTENTION_CUDA_APPEND_H

#include "ops/attention/cuda/problem.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * New tokens are the queries of `x`, whose Q is the new K, for they are the last keys of their
 * sequences; its K and V are the cache.
 */
struct cuda_append {
    struct cuda_attention x;
    struct cuda_rows v; /* the new V */
};

typedef gpunvme_ops_status_t cuda_append_run(const struct cuda_append *p, void *stream);

cuda_append_run cuda_append_naive, cuda_append_vectorized;

#ifdef __cplusplus
}
#endif
#endif
