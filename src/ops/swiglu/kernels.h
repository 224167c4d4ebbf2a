/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The kernels of SwiGLU: a thread for each element, or for eight.
 */
#ifndef OPS_SWIGLU_KERNELS_H
#define OPS_SWIGLU_KERNELS_H

#include "gpunvme/ops/swiglu.h"
#include "ops/cuda/rows.h"

#ifdef __cplusplus
extern "C" {
#endif

gpunvme_ops_status_t swiglu_forward(const struct gpunvme_swiglu *p, int by_eight, void *stream);
gpunvme_ops_status_t swiglu_backward(const struct gpunvme_swiglu_grad *p, int by_eight,
                                     void *stream);

#ifdef __cplusplus
}
#endif
#endif
