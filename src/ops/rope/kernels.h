/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The kernels of RoPE: a thread for each channel, or for vectors of eight of some heads.
 */
#ifndef OPS_ROPE_KERNELS_H
#define OPS_ROPE_KERNELS_H

#include "gpunvme/ops/rope.h"
#include "ops/cuda/rows.h"

#ifdef __cplusplus
extern "C" {
#endif

struct rope_work {
    struct gpunvme_rotate p;
    double rate; /* pair k turns by 2^(rate k) a position */
};

gpunvme_ops_status_t rope_rotate(const struct rope_work *x, int by_eight, void *stream);

#ifdef __cplusplus
}
#endif
#endif
