/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Decoding from pages: combines the parts of heads whose keys several blocks share. For each of
 * these blocks there is one here, which does it for the head that it began. Its warps share the
 * rows, and where there are few rows, the parts of each.
 */
#include "ops/attention/cuda/decode.cuh"
#include "ops/cuda/warp.cuh"

#define WARPS   16
#define THREADS (WARPS * 32)

/* A split head, and the blocks that have its parts: the first has the one that begins. */
struct parts {
    extent e;
    int kv_head, first, last;
};

/* The largest score of a row in all parts. */
static __device__ __forceinline__ float most_of(const decode_work &w, const parts &h, int r)
{
    float most = -INFINITY;

    for (int b = h.first + (int)threadIdx.x % 32; b <= h.last; b += 32)
        most = max_or_nan(most, part_of(w, b, b == h.first).most[r]);
    return warp_max(most);
}

/* Sums of every `step`th part, from `b` on: of the four channels at c, and the weights'. */
static __device__ __forceinline__ float add_parts(const decode_work &w, const parts &h, int r,
                                                  int c, float most, int b, int step, float (&z)[4])
{
    float total = 0;

#pragma unroll 8
    for (; b <= h.last; b += step) {
        part p = part_of(w, b, b == h.first);
        float weight = fast_exp2(p.most[r] - shift_of(most)), y[4];

        load4(p.sums, (int64_t)r * w.x.dim_v + c, GPUNVME_OPS_F32, y);
        total += p.total[r] * weight;
#pragma unroll
        for (int i = 0; i < 4; i++)
            z[i] += y[i] * weight;
    }
    return total;
}

/* `warps` of them have the row r; sums are 5 floats for each lane of each warp. */
static __device__ __forceinline__ void combine_channels(const decode_work &w, const parts &h, int r,
                                                        int c, int warps, bool mine, float *sums)
{
    int warp = threadIdx.x / 32;
    float z[4] = {0, 0, 0, 0}, total = 0, most = 0;

    if (mine) {
        most = most_of(w, h, r);
        if (c < w.x.dim_v)
            total = add_parts(w, h, r, c, most, h.first + warp % warps, warps, z);
#pragma unroll
        for (int i = 0; i < 4; i++)
            sums[threadIdx.x * 5 + i] = z[i];
        sums[threadIdx.x * 5 + 4] = total;
    }
    __syncthreads();
    if (mine && warp % warps == 0 && c < w.x.dim_v) {
        row_end end;

        for (int other = 1; other < warps; other++) {
            const float *from = sums + (threadIdx.x + other * 32) * 5;

#pragma unroll
            for (int i = 0; i < 4; i++)
                z[i] += from[i];
            total += from[4];
        }
        end = end_row(w.x, head_of(w.x, h.kv_head, r), most, total);
#pragma unroll
        for (int i = 0; i < 4; i++)
            store_element(w.x.out.data, out_at(w.x, h.e.s, h.kv_head, r) + c + i, w.x.out_dtype,
                          z[i] * end.factor);
        if (!c)
            store_lse(w.x, h.e.s, h.kv_head, r, end.lse);
    }
    __syncthreads();
}

static __global__ void __launch_bounds__(THREADS) combine(const __grid_constant__ decode_work w)
{
    float *sums = (float *)dynamic_shared();
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

    let_next_kernel_start();
    wait_for_kernels_before();
    split left = w.splits[blockIdx.x];
    if (left.b < 0)
        return;
    parts h = {extent_of(w.x, left.b), left.kv_head, (int)blockIdx.x, left.last};
    int warps = h.e.rows < WARPS ? WARPS / h.e.rows : 1, at_once = WARPS / warps;
    for (int first = 0; first < h.e.rows; first += at_once) {
        int r = first + warp / warps;
        bool mine = r < h.e.rows && warp / warps < at_once;

        for (int c = 0; c < w.x.dim_v; c += 128)
            combine_channels(w, h, r, c + lane * 4, warps, mine, sums);
    }
}

/* Its shared memory is as large as the other kernel's: a multiprocessor would stop to change it. */
gpunvme_ops_status_t decode_combine(const decode_work *w, void *stream)
{
    int error =
        cudaFuncSetAttribute((const void *)combine, cudaFuncAttributePreferredSharedMemoryCarveout,
                             cudaSharedmemCarveoutMaxShared);

    if (error)
        return cuda_status(error, "asking for shared memory");
    LAUNCH_CLUSTERS(combine, (unsigned)w->blocks, 1, THREADS, THREADS * 5 * sizeof(float), stream,
                    *w);
    return cuda_attention_launched();
}
