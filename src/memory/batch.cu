/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The kernel that copies many small pieces between pinned host memory and GPU memory: the copy
 * engine needs more than a microsecond for each, a warp's loads and stores do not. What it reaches
 * is a matter of bytes in flight, PCIe having a latency of a microsecond or two: each warp has all
 * the loads of its unit, 4 KiB, in flight before its first store.
 */
#include "memory/batch_cuda.h"

namespace
{
const unsigned threads = 256;
const unsigned warps = threads / MEM_BATCH_LANES;
const unsigned all = 0xffffffffu;

/* The entry that a unit is described by, read by three lanes at once. */
__device__ __forceinline__ uint64_t load_entry(const mem_batch_unit *unit, unsigned lane)
{
    return lane < 3 ? __ldcs((const unsigned long long *)unit + lane) : 0;
}

__device__ __forceinline__ mem_batch_vector load_vector(uint64_t address)
{
    const ulonglong2 v = __ldcs((const ulonglong2 *)address); /* not needed again */

    return {v.x, v.y};
}

__device__ __forceinline__ void store_vector(uint64_t address, mem_batch_vector v)
{
    __stwb((ulonglong2 *)address, make_ulonglong2(v.lo, v.hi));
}

/* `here` of the next lane; the last lane gets `wrapped` of the first one. */
__device__ __forceinline__ uint64_t from_next(uint64_t here, uint64_t wrapped, unsigned lane)
{
    return __shfl_sync(all, (unsigned long long)(lane == 0 ? wrapped : here),
                       (int)(lane + 1) % (int)MEM_BATCH_LANES);
}

/* What of the next vector belongs to this lane's k-th one. Nobody asks behind the last. */
__device__ __forceinline__ mem_batch_vector
behind(const mem_batch_vector (&v)[MEM_BATCH_LANE_VECTORS], unsigned k, unsigned lane)
{
    const mem_batch_vector next = v[k + 1 < MEM_BATCH_LANE_VECTORS ? k + 1 : k];

    return {from_next(v[k].lo, next.lo, lane), from_next(v[k].hi, next.hi, lane)};
}

__device__ void copy_unit(uint64_t dst, uint64_t src, uint32_t nbytes, unsigned lane)
{
    mem_batch_vector v[MEM_BATCH_LANE_VECTORS] = {};
    mem_batch_layout l;
    uint32_t nloads;
    uint8_t first = 0, last = 0;

    mem_batch_lay_out(dst, src, nbytes, &l);
    nloads = l.nvectors && l.shift ? l.nvectors + 1 : l.nvectors;
#pragma unroll
    for (unsigned k = 0; k < MEM_BATCH_LANE_VECTORS; k++)
        if (k * MEM_BATCH_LANES + lane < nloads)
            v[k] = load_vector(l.src_vectors + (k * MEM_BATCH_LANES + lane) * MEM_BATCH_VECTOR);
    if (lane < l.head)
        first = __ldcs((const uint8_t *)src + lane);
    if (lane < l.tail)
        last = __ldcs((const uint8_t *)src + nbytes - l.tail + lane);
#pragma unroll
    for (unsigned k = 0; k < MEM_BATCH_LANE_VECTORS; k++) {
        const uint32_t i = k * MEM_BATCH_LANES + lane;
        mem_batch_vector out = v[k];

        if (l.shift) /* the same for all lanes */
            out = mem_batch_join(v[k], behind(v, k, lane), l.shift);
        if (i < l.nvectors)
            store_vector(l.dst_vectors + i * MEM_BATCH_VECTOR, out);
    }
    if (lane < l.head)
        __stwb((uint8_t *)dst + lane, first);
    if (lane < l.tail)
        __stwb((uint8_t *)dst + nbytes - l.tail + lane, last);
}

__global__ void __launch_bounds__(threads) copy(const mem_batch_unit *units, size_t nunits)
{
    const unsigned lane = threadIdx.x % MEM_BATCH_LANES;
    const size_t step = (size_t)gridDim.x * warps;
    size_t i = (size_t)blockIdx.x * warps + threadIdx.x / MEM_BATCH_LANES;
    uint64_t entry = i < nunits ? load_entry(units + i, lane) : 0, next;

    for (; i < nunits; i += step, entry = next) {
        /* The table is in host memory, too: the next entry travels beside this one's bytes. */
        next = i + step < nunits ? load_entry(units + i + step, lane) : 0;
        copy_unit(__shfl_sync(all, (unsigned long long)entry, 0),
                  __shfl_sync(all, (unsigned long long)entry, 1),
                  (uint32_t)__shfl_sync(all, (unsigned long long)entry, 2), lane);
    }
}
} // namespace

extern "C" cudaError_t mem_batch_launch(const struct mem_batch_unit *units, size_t nunits,
                                        unsigned max_blocks, cudaStream_t stream)
{
    size_t nblocks = (nunits + warps - 1) / warps;

    if (!max_blocks)
        max_blocks = MEM_BATCH_MAX_BLOCKS;
    if (nblocks > max_blocks)
        nblocks = max_blocks;
    copy<<<(unsigned)nblocks, threads, 0, stream>>>(units, nunits);
    return cudaGetLastError();
}

extern "C" cudaError_t mem_batch_preload(void)
{
    struct cudaFuncAttributes attributes;

    return cudaFuncGetAttributes(&attributes, copy);
}
