/* SPDX-License-Identifier: BSD-3-Clause
 *
 * dZ of matrices of 16 bits, eight elements of a row for each lane, as fast as memory is. It knows
 * nothing of who calls: a kernel of its own, or a product's kernel beside it.
 */
#ifndef OPS_LINEAR_DZ_CUH
#define OPS_LINEAR_DZ_CUH

#include "ops/cuda/device.cuh"
#include "ops/linear/linear.h"

enum { DZ_COLS = 32 * 8 /* of a warp */ };

static inline int dz_aligned(const void *data, int64_t ld)
{
    return (uintptr_t)data % 16 == 0 && ld % 8 == 0;
}

/* Can it be done here? Rows end with a lane's eight elements, so that there is no edge to look at.
 */
static inline int dz_suits(const struct linear_dz *x)
{
    return x->dtype != GPUNVME_OPS_F32 && x->out % 8 == 0 && dz_aligned(x->grad_y, x->ld_grad_y) &&
           (x->activation == GPUNVME_OPS_ACT_NONE ||
            (dz_aligned(x->preact, x->ld_preact) && dz_aligned(x->dz, x->ld_dz)));
}

/* Two elements, and the two of the pre-activation: their dZ, which is added to sums, too. */
template <int DTYPE, int ACTIVATION>
static __device__ __forceinline__ uint32_t dz_pair(uint32_t grad, uint32_t preact, float *sums)
{
    float low = from_bits((uint16_t)grad, DTYPE), high = from_bits((uint16_t)(grad >> 16), DTYPE);

    if (ACTIVATION != GPUNVME_OPS_ACT_NONE) {
        low *= fast_activate_grad(ACTIVATION, from_bits((uint16_t)preact, DTYPE));
        high *= fast_activate_grad(ACTIVATION, from_bits((uint16_t)(preact >> 16), DTYPE));
    }
    sums[0] += low;
    sums[1] += high;
    return to_pair(low, high, DTYPE);
}

template <int DTYPE, int ACTIVATION>
static __device__ __forceinline__ uint4 dz_eight(uint4 grad, uint4 preact, float (&sums)[8])
{
    uint4 z;

    z.x = dz_pair<DTYPE, ACTIVATION>(grad.x, preact.x, sums);
    z.y = dz_pair<DTYPE, ACTIVATION>(grad.y, preact.y, sums + 2);
    z.z = dz_pair<DTYPE, ACTIVATION>(grad.z, preact.z, sums + 4);
    z.w = dz_pair<DTYPE, ACTIVATION>(grad.w, preact.w, sums + 6);
    return z;
}

/*
 * A lane's columns j … j + 7 of rows i, i + step, … before `last`: dZ is stored, unless there is no
 * activation and it is grad_y, and added to sums. AT_ONCE rows are loaded before the first is used.
 * What is read here is read only once.
 */
template <int DTYPE, int ACTIVATION, int AT_ONCE>
static __device__ __forceinline__ void dz_rows_of_lane(const linear_dz &x, int64_t i, int64_t last,
                                                       int64_t step, int64_t j, float (&sums)[8])
{
    const uint16_t *grads = (const uint16_t *)x.grad_y + i * x.ld_grad_y + j;
    const uint16_t *preacts = (const uint16_t *)x.preact + i * x.ld_preact + j;
    uint16_t *dz = (uint16_t *)x.dz + i * x.ld_dz + j;
    int left = (int)((last - i + step - 1) / step);

#pragma unroll 1
    for (; left > 0; left -= AT_ONCE) {
        uint4 grad[AT_ONCE], preact[AT_ONCE];

#pragma unroll
        for (int r = 0; r < AT_ONCE; r++) {
            grad[r] = preact[r] = make_uint4(0, 0, 0, 0);
            if (r < left) {
                grad[r] = __ldcs((const uint4 *)(grads + r * step * x.ld_grad_y));
                if (ACTIVATION != GPUNVME_OPS_ACT_NONE)
                    preact[r] = __ldcs((const uint4 *)(preacts + r * step * x.ld_preact));
            }
        }
#pragma unroll
        for (int r = 0; r < AT_ONCE; r++) {
            uint4 z = dz_eight<DTYPE, ACTIVATION>(grad[r], preact[r], sums);

            if (ACTIVATION != GPUNVME_OPS_ACT_NONE && r < left)
                __stwb((uint4 *)(dz + r * step * x.ld_dz), z);
        }
        grads += AT_ONCE * step * x.ld_grad_y;
        preacts += AT_ONCE * step * x.ld_preact;
        dz += AT_ONCE * step * x.ld_dz;
    }
}

#endif
