/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The rung "skinny" on sm_90a, for fp8 with both operands contiguous along k, and for 16-bit types
 * whose large matrix is so along its lines (few.cu has the others). For fp8 mma is made of
 * conversions to f16. So the copy engine fills a ring in shared memory, and wgmma multiplies 64
 * lines of the large matrix by 16 of the small one: four instructions for 8 KiB. A block has 64 KiB
 * of the large matrix in flight, and a multiprocessor room for two: with a third the next kernel's
 * blocks, which wait there, would be spread less evenly.
 * As in hopper_fp8.cu the sums of each 128 of k of fp8 are added in f32, times scales by block.
 *
 * Blocks of a cluster share the k of the same lines.
 */
#include "ops/hopper/wgmma_narrow.cuh"

#include "ops/hopper/multiply.cuh"
#include "ops/matmul/skinny.cuh"

enum {
    LINES = SKINNY_WGMMA_LINES,
    COLS = SKINNY_COLS,
    STAGES = 8,
    STAGE_NBYTES = (LINES + COLS) * HOPPER_WIDTH,
    LOADING = 4, /* the warp that does, behind those that multiply */
    THREADS = (LOADING + 1) * 32,
    NBYTES = HOPPER_ALIGN + STAGES * STAGE_NBYTES + LINES * COLS * sizeof(float) + 2 * STAGES * 8,
};

#ifdef HAVE_HOPPER
template <int DTYPE> static __device__ __forceinline__ constexpr bool is_fp8(void)
{
    return DTYPE >= GPUNVME_OPS_E4M3;
}

template <int DTYPE> static __device__ __forceinline__ constexpr int depth_of_step(void)
{
    return is_fp8<DTYPE>() ? HOPPER_WIDTH : HOPPER_WIDTH / 2;
}

/* Addresses in shared memory, and the steps of k that are this block's. */
struct part {
    uint32_t stages, full, empty;
    int first, count;
};

template <int DTYPE>
static __device__ __forceinline__ void load_all(const skinny_copied &work, const part &x,
                                                int64_t batch, int64_t line)
{
    int zw = (int)batch * work.operands.a_batch, zx = (int)batch * work.operands.b_batch;

    for (int i = 0; i < x.count; i++) {
        uint32_t full = x.full + i % STAGES * 8, to = x.stages + i % STAGES * STAGE_NBYTES;
        int k = (x.first + i) * depth_of_step<DTYPE>();

        mbarrier_wait(x.empty + i % STAGES * 8, (uint32_t)(i / STAGES & 1) ^ 1);
        mbarrier_arrive_expecting(full, STAGE_NBYTES);
        if (is_fp8<DTYPE>())
            tensor_load(to, &work.operands.a, k, (int)line, zw, full);
        else
            tensor_load(to, &work.operands.a, (int)line, k, zw, full);
        tensor_load(to + LINES * HOPPER_WIDTH, &work.operands.b, k, 0, zx, full);
    }
}

/* The sums of a step of fp8. */
template <int DTYPE>
static __device__ __forceinline__ void multiply_step(float (&sums)[8], uint32_t at)
{
    uint64_t w = hopper_tile_descriptor(at, 0);
    uint64_t x = hopper_tile_descriptor(at + LINES * HOPPER_WIDTH, 0);

    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4; i++)
        wgmma_fp8<DTYPE>(sums, w + i * hopper_descriptor_step(0), x + i * hopper_descriptor_step(0),
                         i > 0);
    wgmma_commit();
    wgmma_wait_for(sums);
}

/* (A lane's first line; the second is 8 further.) */
static __device__ __forceinline__ int own_line(void)
{
    return (int)threadIdx.x / 32 * 16 + (int)threadIdx.x % 32 / 4;
}

static __device__ __forceinline__ void release(const part &x, int i)
{
    if (threadIdx.x % 32 == 0)
        mbarrier_arrive(x.empty + i % STAGES * 8);
}

/* Step `i`. The tensor core adds all products of 16-bit types. */
template <int DTYPE, int BY_BLOCK>
static __device__ __forceinline__ void add_step(float (&sums)[8], const part &x, int i,
                                                const lane_scales<2> &of_w,
                                                const lane_scales<4> &of_x)
{
    uint32_t at = x.stages + i % STAGES * STAGE_NBYTES, full = x.full + i % STAGES * 8;
    uint32_t parity = (uint32_t)(i / STAGES & 1);

    if constexpr (is_fp8<DTYPE>()) {
        int64_t k = (int64_t)(x.first + i) * OPS_SCALE_K;
        float now[8] = {}, rows[2], cols[4];

#pragma unroll
        for (int j = 0; j < 2; j++)
            rows[j] = BY_BLOCK ? scale_of(of_w, j, k) : 1;
#pragma unroll
        for (int j = 0; j < 4; j++)
            cols[j] = BY_BLOCK ? scale_of(of_x, j, k) : 1;
        mbarrier_wait(full, parity);
        multiply_step<DTYPE>(now, at);
        release(x, i);
#pragma unroll
        for (int j = 0; j < 8; j++)
            sums[j] += BY_BLOCK ? rows[j / 2 % 2] * cols[j / 4 * 2 + j % 2] * now[j] : now[j];
    } else {
        mbarrier_wait(full, parity);
        multiply_stage<DTYPE, 1, 0>(sums, at, at + LINES * HOPPER_WIDTH, false);
        wgmma_wait_for(sums);
        release(x, i);
    }
}

/* By the warps that multiply: column c of line l becomes out[c * LINES + l]. */
template <int DTYPE, int BY_BLOCK>
static __device__ __forceinline__ void
multiply_all(float *out, const part &x, const lane_scales<2> &of_w, const lane_scales<4> &of_x)
{
    float sums[8] = {};

#pragma unroll 1
    for (int i = 0; i < x.count; i++)
        add_step<DTYPE, BY_BLOCK>(sums, x, i, of_w, of_x);
#pragma unroll
    for (int j = 0; j < 8; j++)
        out[(j / 4 * 8 + (int)threadIdx.x % 4 * 2 + j % 2) * LINES + own_line() + j / 2 % 2 * 8] =
            sums[j];
}
#endif

template <int DTYPE, int BY_BLOCK>
static __global__ void __launch_bounds__(THREADS, 2)
    multiply(const __grid_constant__ skinny_copied work)
{
#ifdef HAVE_HOPPER
    const skinny_work &s = work.skinny;
    const cuda_product &p = s.product;
    int rank = (int)cluster_rank(), size = (int)cluster_size();
    int64_t tile = blockIdx.x / size, across = (s.w.lines + LINES - 1) / LINES;
    int64_t batch = tile / across, first = tile % across * LINES;
    int steps = (int)((p.k + depth_of_step<DTYPE>() - 1) / depth_of_step<DTYPE>());
    unsigned char *dynamic = dynamic_shared();
    uint32_t before = (0u - shared_address(dynamic)) % HOPPER_ALIGN;
    float *sums = (float *)(dynamic + before + STAGES * STAGE_NBYTES);
    part x;

    x.stages = shared_address(dynamic) + before;
    x.full = shared_address(sums + LINES * COLS);
    x.empty = x.full + STAGES * 8;
    x.first = (int)((int64_t)steps * rank / size);
    x.count = (int)((int64_t)steps * (rank + 1) / size) - x.first;
    if (threadIdx.x == 0) {
        tensor_prefetch(&work.operands.a);
        tensor_prefetch(&work.operands.b);
        for (int i = 0; i < STAGES; i++) {
            mbarrier_init(x.full + i * 8, 1);
            mbarrier_init(x.empty + i * 8, LOADING);
        }
        mbarrier_init_fence();
    }
    __syncthreads();
    let_next_kernel_start();
    wait_for_kernels_before();
    if (threadIdx.x / 32 < LOADING) {
        const ops_scales &of_w = s.w_is_b ? p.scale_b : p.scale_a;
        const ops_scales &of_x = s.w_is_b ? p.scale_a : p.scale_b;

        multiply_all<DTYPE, BY_BLOCK>(
            sums, x, find_scales<2>(of_w, batch, first + own_line(), 0, s.w.lines - 1),
            find_scales<4>(of_x, batch, threadIdx.x % 4 * 2, 1, s.x.lines - 1));
    } else if (threadIdx.x % 32 == 0) {
        load_all<DTYPE>(work, x, batch, first);
    }
    __syncwarp(); /* barriers take warps whose threads come together */
    finish_lines<LINES, COLS, is_fp8<DTYPE>()>(s, sums, batch, first, THREADS);
#endif
}

gpunvme_ops_status_t skinny_launch_copied(const struct skinny_copied *work, int cluster,
                                          void *stream, struct cuda_launch *out)
{
#define KERNELS(dtype)                                                                             \
    {                                                                                              \
        multiply<dtype, 0>, multiply<dtype, 1>                                                     \
    }
    static void (*const kernels[2][2][2])(skinny_copied) = {
        {KERNELS(GPUNVME_OPS_E4M3), KERNELS(HOPPER_E4M3_E5M2)},
        {KERNELS(HOPPER_E5M2_E4M3), KERNELS(GPUNVME_OPS_E5M2)}};
    const skinny_work &s = work->skinny;
    const cuda_product &p = s.product;
    int by_block = p.scale_a.step_k || p.scale_b.step_k;
    int of_w = s.w_is_b ? p.dtype_b : p.dtype, of_x = s.w_is_b ? p.dtype : p.dtype_b;
    auto *kernel = p.dtype == GPUNVME_OPS_F16 ? multiply<GPUNVME_OPS_F16, 0>
                   : p.dtype == GPUNVME_OPS_BF16
                       ? multiply<GPUNVME_OPS_BF16, 0>
                       : kernels[of_w == GPUNVME_OPS_E5M2][of_x == GPUNVME_OPS_E5M2][by_block];
    int64_t blocks = (s.w.lines + LINES - 1) / LINES * p.batch * cluster;
    const cuda_tiling tiling = {s.w_is_b ? COLS : LINES,
                                s.w_is_b ? LINES : COLS,
                                s.w_is_b ? COLS : LINES,
                                s.w_is_b ? LINES : COLS,
                                THREADS,
                                NBYTES};
    gpunvme_ops_status_t status = cuda_allow_shared((const void *)kernel, NBYTES);

    if (status)
        return status;
    if (out)
        return cuda_describe((const void *)kernel, &tiling, blocks, out);
    LAUNCH_CLUSTERS(kernel, (unsigned)blocks, (unsigned)cluster, THREADS, NBYTES, stream, *work);
    return cuda_status(cudaGetLastError(), "launching a product of few rows");
}
