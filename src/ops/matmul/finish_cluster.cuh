/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How sums that lie in the shared memory of a cluster's two blocks, each over a piece of k, become
 * elements of C: each block adds and finishes its half of the tile.
 */
#ifndef OPS_MATMUL_FINISH_CLUSTER_CUH
#define OPS_MATMUL_FINISH_CLUSTER_CUH

#include "ops/hopper/wgmma.cuh"
#include "ops/matmul/finish.cuh"

#ifdef WGMMA_BOTH
/* Four floats in shared memory, at this address in block `rank` of the cluster. */
static __device__ __forceinline__ float4 load_four_at(uint32_t address, uint32_t rank)
{
    float4 x;

    asm volatile("{\n"
                 ".reg .b32 there;\n"
                 "mapa.shared::cluster.u32 there, %4, %5;\n"
                 "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there];\n"
                 "}"
                 : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
                 : "r"(address), "r"(rank)
                 : "memory");
    return x;
}

/* Likewise cluster_sync(), by threads that have read what others wrote, and wrote nothing since. */
static __device__ __forceinline__ void cluster_leave(void)
{
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\n"
                 "barrier.cluster.wait.aligned;" ::
                     : "memory");
}
#else /* the emulation */
static inline float4 load_four_at(uint32_t address, uint32_t rank)
{
    return {load_shared_at(address, rank), load_shared_at(address + 4, rank),
            load_shared_at(address + 8, rank), load_shared_at(address + 12, rank)};
}

static inline void cluster_leave(void)
{
    cluster_sync();
}
#endif

/*
 * Thread `thread` of THREADS: its part of the first `rows` rows of a tile of COLS columns at (row,
 * col). place(i, j) is where four sums of row i from column j on are, in bytes. Sums of two times
 * four columns are added in the order of k; loads don't wait for each other.
 */
template <int COLS, int THREADS, typename PLACE>
static __device__ __forceinline__ void finish_share(const cuda_product &p, int thread, int rows,
                                                    int64_t batch, int64_t row, int64_t col,
                                                    PLACE place)
{
    const int across = COLS / 4;
    int count = rows * across, step = 2 * THREADS;

#pragma unroll 1
    for (int v = (int)cluster_rank() * THREADS + thread; v < count; v += 2 * step) {
        int both[2] = {v, v + step < count ? v + step : v};
        float4 x[2][2];

#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int j = 0; j < 2; j++)
                x[j][i] = load_four_at(place(both[j] / across, both[j] % across * 4), (uint32_t)i);
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const float sums[4] = {x[j][0].x + x[j][1].x, x[j][0].y + x[j][1].y,
                                   x[j][0].z + x[j][1].z, x[j][0].w + x[j][1].w};
            int64_t at = col + both[j] % across * 4;

            if (at < p.n && (!j || both[j] != v))
                finish4(p, batch, row + both[j] / across, at, sums);
        }
    }
}

#endif
