/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Stages of shared memory between those that load and those that multiply, for kernels of sm_90a.
 * HAVE_HOPPER says that code for it is being compiled.
 */
#ifndef OPS_MATMUL_HOPPER_PIPELINE_CUH
#define OPS_MATMUL_HOPPER_PIPELINE_CUH

#include "ops/cuda/device.cuh"
#include "ops/cuda/ptx.cuh"
#include "ops/matmul/hopper_kernel.h"

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HAVE_HOPPER 1
#endif

#ifdef HAVE_HOPPER
/* The stage in turn, and how often all have been used, as its barriers count it. */
struct turn {
    int stage;
    uint32_t parity;
};

static __device__ __forceinline__ void advance(turn &t)
{
    if (++t.stage == HOPPER_STAGES) {
        t.stage = 0;
        t.parity ^= 1;
    }
}

/* Addresses in shared memory. */
struct memory {
    uint32_t stages, out, full, empty;
};

static __device__ __forceinline__ memory lay_out(const void *dynamic)
{
    memory x;

    x.stages = (shared_address(dynamic) + HOPPER_ALIGN - 1) & ~(uint32_t)(HOPPER_ALIGN - 1);
    x.out = x.stages + HOPPER_STAGES * HOPPER_STAGE_NBYTES;
    x.full = x.out + 2 * HOPPER_OUT_NBYTES;
    x.empty = x.full + HOPPER_STAGES * 8;
    return x;
}

/* This warp has read the stage: both blocks may write there again. */
static __device__ __forceinline__ void release(const memory &mem, int stage, uint32_t size)
{
    if (threadIdx.x % 32 < size)
        mbarrier_arrive_at(mem.empty + stage * 8, threadIdx.x % 32);
}

/*
 * Nobody uses a barrier before all blocks of the cluster know of it, nor memory before the kernels
 * before have ended.
 */
static __device__ __forceinline__ void start(const hopper_work &work, const memory &mem)
{
    if (threadIdx.x == 0) {
        tensor_prefetch(&work.a);
        tensor_prefetch(&work.b);
        for (int i = 0; i < HOPPER_STAGES; i++) {
            mbarrier_init(mem.full + i * 8, 1);
            mbarrier_init(mem.empty + i * 8, 8 * (int)cluster_size()); /* warps that multiply */
        }
        mbarrier_init_fence();
    }
    __syncthreads();
    cluster_sync();
    let_next_kernel_start();
    wait_for_kernels_before();
}
#endif

#endif
