/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A ring of stages in shared memory, between the thread that loads and the warps that multiply. A
 * stage is full when its bytes have come, and empty when all warps of the cluster's blocks that
 * read it have said so, since each block writes to both. HAVE_HOPPER says that code for sm_90a is
 * being compiled.
 */
#ifndef OPS_HOPPER_RING_CUH
#define OPS_HOPPER_RING_CUH

#include "ops/cuda/ptx.cuh"
#include "ops/hopper/tile.h"

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HAVE_HOPPER 1
#endif

#ifdef HAVE_HOPPER
/* The stage in turn, and how often all have been used, as its barriers count it. */
struct turn {
    int stage;
    uint32_t parity;
};

static __device__ __forceinline__ void advance(turn &t, int width)
{
    if (++t.stage == hopper_stages(width)) {
        t.stage = 0;
        t.parity ^= 1;
    }
}

/* Addresses in shared memory, and the first of the cluster's blocks that share loads. */
struct ring {
    uint32_t stages, out, full, empty, first;
};

static __device__ __forceinline__ ring lay_out(const void *dynamic)
{
    ring x;

    x.stages = (shared_address(dynamic) + HOPPER_ALIGN - 1) & ~(uint32_t)(HOPPER_ALIGN - 1);
    x.out = x.stages + HOPPER_STAGES * HOPPER_STAGE_NBYTES;
    x.full = x.out + 2 * HOPPER_OUT_NBYTES;
    x.empty = x.full + HOPPER_MOST_STAGES * 8;
    x.first = 0;
    return x;
}

/* This warp has read the stage: blocks that share loads may write there again. */
static __device__ __forceinline__ void release(const ring &mem, int stage, uint32_t size)
{
    if (threadIdx.x % 32 < size)
        mbarrier_arrive_at(mem.empty + stage * 8, mem.first + threadIdx.x % 32);
}

/* One thread of a block; then all blocks of the cluster must learn of it. `size` share loads. */
static __device__ __forceinline__ void make_barriers(const ring &mem, uint32_t size)
{
    for (int i = 0; i < HOPPER_MOST_STAGES; i++) {
        mbarrier_init(mem.full + i * 8, 1);
        mbarrier_init(mem.empty + i * 8, 8 * (int)size); /* warps that multiply */
    }
    mbarrier_init_fence();
}
#endif

#endif
