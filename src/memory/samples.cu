/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The kernel that makes tensors of raw samples. A thread takes some pixels of a row, one behind the
 * other, reads their channels, and stores those of each plane together: a warp reads one stretch of
 * memory and writes one for each plane. Each byte is read once and written once.
 */
#include "memory/samples_cuda.h"

namespace
{
const unsigned threads = 256;
const unsigned max_blocks = 132 * 16;

template <unsigned TO> struct number {
    using type = uint16_t;
};
template <> struct number<GPUNVME_NUMBER_F32> {
    using type = uint32_t;
};
template <> struct number<GPUNVME_NUMBER_I32> {
    using type = int32_t;
};
template <> struct number<GPUNVME_NUMBER_I64> {
    using type = int64_t;
};

__device__ __forceinline__ unsigned nbytes_of(unsigned from)
{
    return from == GPUNVME_NUMBER_U8 ? 1
           : from == GPUNVME_NUMBER_U16 || from == GPUNVME_NUMBER_F16 || from == GPUNVME_NUMBER_BF16
               ? 2
               : 4;
}

template <unsigned FROM, unsigned TO, unsigned N>
__global__ void __launch_bounds__(threads) convert(const mem_samples s)
{
    using out = typename number<TO>::type;
    struct alignas(sizeof(out) * N) group {
        out v[N];
    };
    const uint64_t groups = s.pixels / N, all = groups * s.nrows;
    const unsigned size = nbytes_of(FROM);

    for (uint64_t i = blockIdx.x * (uint64_t)threads + threadIdx.x; i < all;
         i += (uint64_t)gridDim.x * threads) {
        const uint64_t row = i / groups, pixel = (i - row * groups) * N;
        const uint8_t *const src = s.src + row * s.stride + pixel * s.channels * size;
        out *const dst = (out *)s.dst + row * s.pixels * s.channels;

        for (unsigned c = 0; c < s.channels; c++) {
            group g;

#pragma unroll
            for (unsigned k = 0; k < N; k++)
                mem_sample_convert(FROM, TO, src + (k * s.channels + c) * size, &g.v[k],
                                   s.factor[c], s.shift[c]);
            if (s.planes || s.channels == 1)
                *(group *)(dst + c * s.pixels + pixel) = g;
            else
#pragma unroll
                for (unsigned k = 0; k < N; k++)
                    dst[(pixel + k) * s.channels + c] = g.v[k];
        }
    }
}

template <unsigned FROM, unsigned TO, unsigned N>
cudaError_t launch(const mem_samples &s, cudaStream_t stream)
{
    const uint64_t all = s.pixels / N * s.nrows, blocks = (all + threads - 1) / threads;

    convert<FROM, TO, N>
        <<<(unsigned)(blocks < max_blocks ? blocks : max_blocks), threads, 0, stream>>>(s);
    return cudaGetLastError();
}

template <unsigned FROM, unsigned TO>
cudaError_t launch_to(const mem_samples &s, cudaStream_t stream)
{
    const unsigned nbytes = sizeof(typename number<TO>::type);
    const unsigned n = 16 / nbytes < 4 ? 16 / nbytes : 4; /* of a store */

    return s.pixels % n == 0 && (uintptr_t)s.dst % (n * nbytes) == 0
               ? launch<FROM, TO, n>(s, stream)
               : launch<FROM, TO, 1>(s, stream);
}

template <unsigned FROM> cudaError_t launch_real(const mem_samples &s, cudaStream_t stream)
{
    return s.to == GPUNVME_NUMBER_F32   ? launch_to<FROM, GPUNVME_NUMBER_F32>(s, stream)
           : s.to == GPUNVME_NUMBER_F16 ? launch_to<FROM, GPUNVME_NUMBER_F16>(s, stream)
                                        : launch_to<FROM, GPUNVME_NUMBER_BF16>(s, stream);
}

template <unsigned FROM> cudaError_t launch_whole(const mem_samples &s, cudaStream_t stream)
{
    return s.to == GPUNVME_NUMBER_I32   ? launch_to<FROM, GPUNVME_NUMBER_I32>(s, stream)
           : s.to == GPUNVME_NUMBER_I64 ? launch_to<FROM, GPUNVME_NUMBER_I64>(s, stream)
                                        : launch_real<FROM>(s, stream);
}
} // namespace

extern "C" cudaError_t mem_samples_launch(const struct mem_samples *s, cudaStream_t stream)
{
    switch (s->from) {
    case GPUNVME_NUMBER_U8:
        return launch_whole<GPUNVME_NUMBER_U8>(*s, stream);
    case GPUNVME_NUMBER_U16:
        return launch_whole<GPUNVME_NUMBER_U16>(*s, stream);
    case GPUNVME_NUMBER_U32:
        return launch_whole<GPUNVME_NUMBER_U32>(*s, stream);
    case GPUNVME_NUMBER_I32:
        return launch_whole<GPUNVME_NUMBER_I32>(*s, stream);
    case GPUNVME_NUMBER_F16:
        return launch_real<GPUNVME_NUMBER_F16>(*s, stream);
    case GPUNVME_NUMBER_BF16:
        return launch_real<GPUNVME_NUMBER_BF16>(*s, stream);
    default:
        return launch_real<GPUNVME_NUMBER_F32>(*s, stream);
    }
}
