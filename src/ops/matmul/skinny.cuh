/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What the kernels of the rung "skinny" share: scales of fp8, and how the sums of a cluster's
 * blocks become elements of C.
 */
#ifndef OPS_MATMUL_SKINNY_CUH
#define OPS_MATMUL_SKINNY_CUH

#include "ops/matmul/finish.cuh"
#include "ops/matmul/skinny.h"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
/* Where scales by block of one operand are: those of a lane's lines or columns, at k = 0. */
template <int COUNT> struct lane_scales {
    const float *data; /* NULL: they are 1 */
    int at[COUNT];
};

template <int COUNT>
static __device__ __forceinline__ float scale_of(const lane_scales<COUNT> &x, int i, int64_t k)
{
    return x.data ? x.data[x.at[i] + k / OPS_SCALE_K] : 1;
}

/* A lane has pairs of columns, 8 apart (`pairs`), or lines 8 apart. */
template <int COUNT>
static __device__ __forceinline__ lane_scales<COUNT>
find_scales(const ops_scales &all, int64_t batch, int64_t first, int pairs, int64_t last)
{
    lane_scales<COUNT> x = {all.step_k ? all.data : NULL};

    if (x.data)
        x.data += batch * all.stride;
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        int64_t line = pairs ? first + i % 2 + i / 2 * 8 : first + i * 8;

        line = line < last ? line : last;
        x.at[i] = (int)((all.by_block ? line / OPS_SCALE_K : line) * all.step_line);
    }
    return x;
}

/* Scales by tensor and row; those by block are 1 here. */
static __device__ __forceinline__ float scale_of_line(const ops_scales &x, int64_t batch,
                                                      int64_t line)
{
    return x.data && !x.step_k ? x.data[batch * x.stride + line * x.step_line] : 1;
}

/*
 * The sums that blocks of a cluster have in shared memory, line l of column c at [c * LINES + l],
 * are added in the order of blocks. Each block makes elements of C of a part of them. All threads
 * of a block call this, `threads` of them.
 */
template <int LINES, int COLS, int FP8>
static __device__ __forceinline__ void finish_lines(const skinny_work &work, const float *sums,
                                                    int64_t batch, int64_t first, int threads)
{
    const cuda_product &p = work.product;
    const ops_scales &of_w = work.w_is_b ? p.scale_b : p.scale_a;
    const ops_scales &of_x = work.w_is_b ? p.scale_a : p.scale_b;
    int rank = (int)cluster_rank(), size = (int)cluster_size();
    int part = (LINES * COLS + size - 1) / size, end = (rank + 1) * part;

    end = end < LINES * COLS ? end : LINES * COLS;
    cluster_sync();
    for (int i = rank * part + threadIdx.x; i < end; i += threads) {
        int64_t line = first + i % LINES, col = i / LINES;
        float sum = 0;

        for (int r = 0; r < size; r++)
            sum += load_shared_at(shared_address(sums + i), (uint32_t)r);
        if (line > work.w.lines - 1 || col > work.x.lines - 1)
            continue;
        if (FP8)
            sum *= scale_of_line(of_w, batch, line) * scale_of_line(of_x, batch, col);
        finish(p, batch, work.w_is_b ? col : line, work.w_is_b ? line : col, sum);
    }
    cluster_sync(); /* a block's sums are read by the others */
}
#endif

#endif
