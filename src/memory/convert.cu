/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The kernel that takes rows out of pinned host memory, converts them, and stores them in GPU
 * memory. A block does one piece at a time. It loads straight from the host, so what it reaches is
 * a matter of bytes in flight: each thread has several vectors of 16 bytes on their way before it
 * stores the first.
 */
#include "memory/convert_cuda.h"

namespace
{
const unsigned threads = 256;
const unsigned max_blocks = 256; /* with 4 MiB in flight: many times what PCIe needs */
const unsigned unroll = 4;       /* vectors in flight for each thread */

template <typename T, unsigned N> struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) vec {
    T v[N];
};

/* Whether the rows of a piece can be loaded as vectors S of N elements, and stored as vectors D. */
template <typename S, typename D> __device__ bool fits(const mem_convert &c, unsigned n)
{
    const uint64_t rows = c.nrows > 1 ? c.stride : 0;

    return c.row % n == 0 && (c.src | rows) % alignof(S) == 0 && c.dst % alignof(D) == 0;
}

/* Calls use(i, vector i) for the vectors of all rows, `row` in each, by all threads of the block.
 */
template <typename S, typename F>
__device__ __forceinline__ void for_each(const mem_convert &c, uint32_t row, F use)
{
    const uint32_t n = (uint32_t)c.nrows * row;
    const char *const src = (const char *)c.src;

    for (uint32_t first = threadIdx.x; first < n; first += threads * unroll) {
        S in[unroll];

#pragma unroll
        for (unsigned k = 0; k < unroll; k++) {
            const uint32_t i = first + k * threads, r = n == row ? 0 : i / row;

            if (i < n)
                in[k] = *(const S *)(src + r * c.stride + (i - r * row) * sizeof(S));
        }
#pragma unroll
        for (unsigned k = 0; k < unroll; k++)
            if (first + k * threads < n)
                use(first + k * threads, in[k]);
    }
}

template <typename T> __device__ __forceinline__ bool copy_vectors(const mem_convert &c)
{
    T *const dst = (T *)c.dst;

    if (!fits<T, T>(c, sizeof(T)))
        return false;
    for_each<T>(c, (uint32_t)c.row / sizeof(T), [=](uint32_t i, const T &in) { dst[i] = in; });
    return true;
}

__device__ void copy(const mem_convert &c)
{
    if (!copy_vectors<uint4>(c) && !copy_vectors<uint32_t>(c) && !copy_vectors<uint16_t>(c))
        copy_vectors<uint8_t>(c);
}

template <unsigned FROM, unsigned TO, typename S, typename D, unsigned N>
__device__ __forceinline__ void convert_vectors(const mem_convert &c)
{
    vec<D, N> *const dst = (vec<D, N> *)c.dst;

    for_each<vec<S, N>>(c, (uint32_t)c.row / N, [=](uint32_t i, const vec<S, N> &in) {
        vec<D, N> out;

#pragma unroll
        for (unsigned k = 0; k < N; k++)
            out.v[k] = (D)mem_narrow(TO, mem_widen(FROM, in.v[k]), c.scale);
        dst[i] = out;
    });
}

template <unsigned FROM, unsigned TO, typename S, typename D, unsigned N>
__device__ __forceinline__ void convert_to(const mem_convert &c)
{
    if (fits<vec<S, N>, vec<D, N>>(c, N))
        convert_vectors<FROM, TO, S, D, N>(c);
    else
        convert_vectors<FROM, TO, S, D, 1>(c);
}

template <unsigned FROM, typename S, unsigned N>
__device__ __forceinline__ uint32_t max_of_vectors(const mem_convert &c)
{
    uint32_t max = 0;

    for_each<vec<S, N>>(c, (uint32_t)c.row / N, [&](uint32_t, const vec<S, N> &in) {
#pragma unroll
        for (unsigned k = 0; k < N; k++) {
            const uint32_t a = mem_finite(mem_widen(FROM, in.v[k]));

            max = a > max ? a : max;
        }
    });
    return max;
}

/* Stores the greatest of all threads' in the table, where the CPU finds it. */
__device__ void store_max(uint32_t max, mem_convert *to)
{
    __shared__ uint32_t all;

    if (threadIdx.x == 0)
        all = 0;
    __syncthreads();
    atomicMax(&all, max);
    __syncthreads();
    if (threadIdx.x == 0)
        to->max = all;
}

template <unsigned FROM, typename S, unsigned N>
__device__ void convert_from(const mem_convert &c, mem_convert *table)
{
    if (c.to == MEM_MAX)
        store_max(fits<vec<S, N>, uint8_t>(c, N) ? max_of_vectors<FROM, S, N>(c)
                                                 : max_of_vectors<FROM, S, 1>(c),
                  table);
    else if (c.to == MEM_F32)
        convert_to<FROM, MEM_F32, S, uint32_t, N>(c);
    else if (c.to == MEM_F16)
        convert_to<FROM, MEM_F16, S, uint16_t, N>(c);
    else if (c.to == MEM_BF16)
        convert_to<FROM, MEM_BF16, S, uint16_t, N>(c);
    else
        convert_to<FROM, MEM_F8_E4M3, S, uint8_t, N>(c);
}

__global__ void __launch_bounds__(threads, 2) convert(mem_convert *pieces, size_t n)
{
    const unsigned words = sizeof(mem_convert) / 8;
    __shared__ uint64_t entry[words];

    for (size_t i = blockIdx.x; i < n; i += gridDim.x) {
        mem_convert c;

        __syncthreads();
        if (threadIdx.x < words)
            entry[threadIdx.x] = ((const uint64_t *)(pieces + i))[threadIdx.x];
        __syncthreads();
        memcpy(&c, entry, sizeof(c));
        if (c.from == MEM_BYTES)
            copy(c);
        else if (c.from == MEM_F32)
            convert_from<MEM_F32, uint32_t, 4>(c, pieces + i);
        else if (c.from == MEM_F16)
            convert_from<MEM_F16, uint16_t, 8>(c, pieces + i);
        else
            convert_from<MEM_BF16, uint16_t, 8>(c, pieces + i);
    }
}
} // namespace

extern "C" cudaError_t mem_convert_launch(struct mem_convert *pieces, size_t n, cudaStream_t stream)
{
    const unsigned nblocks = n < max_blocks ? (unsigned)n : max_blocks;

    convert<<<nblocks, threads, 0, stream>>>(pieces, n);
    return cudaGetLastError();
}
