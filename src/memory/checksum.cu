/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The checksum of checksum.h on the GPU. It reads each byte once, so its floor is the time that
 * the memory takes to deliver them.
 *
 * The words of the checksum begin at the first byte, wherever that is; the GPU loads aligned
 * vectors of 16 bytes, two aligned words. Where the two do not coincide each word of the checksum
 * is put together of two aligned ones. What vectors can't cover without reaching beyond the
 * range, a few words on each side, is gathered byte by byte.
 */
#include "memory/checksum.h"
#include "memory/checksum_cuda.h"

namespace
{
const unsigned threads = 256;           /* of a block */
const unsigned unroll = 4;              /* vectors in flight for each thread */
const unsigned blocks_per_sm = 4;       /* 64 KiB in flight on each SM: more than latency needs */
const unsigned tile = threads * unroll; /* vectors that a block takes at once */

/* How the words of a range lie. All counts are in words of 8 bytes, or vectors of two. */
struct layout {
    const uint8_t *bytes;
    size_t nbytes;
    size_t nwords;
    const ulonglong2 *vectors; /* of aligned words */
    size_t nvectors;           /* that may be used, each for two words of the checksum */
    size_t first;              /* the first word of the checksum that they hold: 0 or 1 */
    unsigned shift;            /* bits by which the words begin after the aligned ones */
    uint64_t scaled;           /* MEM_CHECKSUM_INDEX times the index of the first word */
};

__host__ __device__ layout lay_out(const void *gpu, size_t nbytes, uint64_t index)
{
    layout l;
    uintptr_t address = (uintptr_t)gpu, aligned = address & ~(uintptr_t)7;
    size_t usable; /* aligned words, from `aligned` on, that end inside the range */

    l.bytes = (const uint8_t *)gpu;
    l.scaled = index * MEM_CHECKSUM_INDEX;
    l.nbytes = nbytes;
    l.nwords = nbytes / 8 + (nbytes % 8 != 0);
    l.shift = (unsigned)(address - aligned) * 8;
    l.first = aligned & 15 ? 1 : 0;
    l.vectors = (const ulonglong2 *)(aligned + 8 * l.first);
    usable = (address - aligned + nbytes) / 8;
    /* A shifted word needs the aligned one behind it, too. */
    usable -= usable && l.shift ? 1 : 0;
    l.nvectors = usable > l.first ? (usable - l.first) / 2 : 0;
    return l;
}

template <bool SHIFTED> struct chunk {
    ulonglong2 pair;
    unsigned long long behind;

    __device__ __forceinline__ void load(const layout &l, size_t v)
    {
        if (SHIFTED) {
            /* The word behind is in a line that a neighbour loads: it comes from the cache. */
            pair = __ldg(l.vectors + v);
            behind = __ldg((const unsigned long long *)(l.vectors + v + 1));
        } else {
            pair = __ldcs(l.vectors + v); /* not needed again */
            behind = 0;
        }
    }

    __device__ __forceinline__ uint64_t mix(const layout &l, size_t v) const
    {
        uint64_t a = pair.x, b = pair.y, scaled = l.scaled + (l.first + 2 * v) * MEM_CHECKSUM_INDEX;

        if (SHIFTED) {
            a = pair.x >> l.shift | pair.y << (64 - l.shift);
            b = pair.y >> l.shift | behind << (64 - l.shift);
        }
        return mem_checksum_mix(a, scaled) + mem_checksum_mix(b, scaled + MEM_CHECKSUM_INDEX);
    }
};

/* Word k of the checksum, byte by byte, the last filled up with zeroes. */
__device__ uint64_t gather_word(const layout &l, size_t k)
{
    uint64_t word = 0;

    for (unsigned i = 0; i < 8 && 8 * k + i < l.nbytes; i++)
        word |= (uint64_t)l.bytes[8 * k + i] << (8 * i);
    return word;
}

/* The words that no vector covers, at most one before the first and four behind the last. */
__device__ uint64_t edges(const layout &l)
{
    size_t before = l.nvectors ? l.first : 0, k = threadIdx.x;

    if (k >= before)
        k += 2 * l.nvectors;
    return k < l.nwords ? mem_checksum_mix(gather_word(l, k), l.scaled + k * MEM_CHECKSUM_INDEX)
                        : 0;
}

__device__ void store_block_sum(uint64_t sum, uint64_t *partial)
{
    __shared__ unsigned long long warps[threads / 32];
    unsigned long long x = sum;

    for (unsigned distance = 16; distance; distance /= 2)
        x += __shfl_down_sync(0xffffffffu, x, distance);
    if (threadIdx.x % 32 == 0)
        warps[threadIdx.x / 32] = x;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (unsigned w = 1; w < threads / 32; w++)
            x += warps[w];
        partial[blockIdx.x] = x;
    }
}

/* The share of one of `nblocks` blocks, by this thread. */
template <bool SHIFTED>
__device__ __forceinline__ uint64_t sum_share(const layout &l, unsigned block, unsigned nblocks)
{
    const size_t ntiles = l.nvectors / tile;
    uint64_t sum = block == 0 ? edges(l) : 0;
    chunk<SHIFTED> chunks[unroll];

    for (size_t t = block; t < ntiles; t += nblocks) {
        const size_t v = t * tile + threadIdx.x;

#pragma unroll
        for (unsigned i = 0; i < unroll; i++)
            chunks[i].load(l, v + i * threads);
#pragma unroll
        for (unsigned i = 0; i < unroll; i++)
            sum += chunks[i].mix(l, v + i * threads);
    }
    for (size_t v = ntiles * tile + block * threads + threadIdx.x; v < l.nvectors;
         v += nblocks * threads) {
        chunks[0].load(l, v);
        sum += chunks[0].mix(l, v);
    }
    return sum;
}

template <bool SHIFTED>
__global__ void __launch_bounds__(threads, blocks_per_sm)
    sum_words(const layout l, uint64_t *partial)
{
    store_block_sum(sum_share<SHIFTED>(l, blockIdx.x, gridDim.x), partial);
}

/* A block for each piece. */
__global__ void __launch_bounds__(threads, blocks_per_sm)
    sum_pieces(const mem_checksum_piece *pieces, uint64_t *partial)
{
    const mem_checksum_piece *const piece = pieces + blockIdx.x;
    const layout l = lay_out(piece->gpu, piece->nbytes, piece->first);

    store_block_sum(l.shift ? sum_share<true>(l, 0, 1) : sum_share<false>(l, 0, 1), partial);
}
} // namespace

extern "C" cudaError_t mem_checksum_launch_pieces(const struct mem_checksum_piece *pieces,
                                                  unsigned n, uint64_t *partial,
                                                  cudaStream_t stream)
{
    sum_pieces<<<n, threads, 0, stream>>>(pieces, partial);
    return cudaGetLastError();
}

extern "C" cudaError_t mem_checksum_launch(const void *gpu, size_t nbytes, int device,
                                           uint64_t *partial, unsigned *nblocks,
                                           cudaStream_t stream)
{
    const layout l = lay_out(gpu, nbytes, 0);
    const size_t needed = l.nvectors / tile + 1;
    int nprocessors = 0;
    cudaError_t err = cudaDeviceGetAttribute(&nprocessors, cudaDevAttrMultiProcessorCount, device);

    if (err != cudaSuccess)
        return err;
    *nblocks = (unsigned)nprocessors * blocks_per_sm;
    if (*nblocks > MEM_CHECKSUM_MAX_BLOCKS)
        *nblocks = MEM_CHECKSUM_MAX_BLOCKS;
    if (*nblocks > needed)
        *nblocks = (unsigned)needed;
    if (l.shift)
        sum_words<true><<<*nblocks, threads, 0, stream>>>(l, partial);
    else
        sum_words<false><<<*nblocks, threads, 0, stream>>>(l, partial);
    return cudaGetLastError();
}
