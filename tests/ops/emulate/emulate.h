/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Runs kernels on the CPU, so that machines without a GPU test them: this is included before a .cu
 * file that is compiled as C++, and stands for what nvcc and src/ops/cuda/ptx.cuh bring. A thread
 * of the GPU is a fiber (emulate.cc); the blocks of a cluster run together, clusters one after
 * another. Instructions do what the PTX manual says they do, as far as results show it:
 *
 *  - cp.async copies when it is waited for, not before, so that a wait that is missing shows;
 *  - ldmatrix, stmatrix, mma and wgmma exchange fragments in the layouts of the manual, wgmma by
 *    its descriptors; the copy engine swizzles, and writes zeros for what is outside;
 *  - what f32 has beyond tf32 is rounded by the copy engine if its map says so, and cut off by
 * wgmma;
 *  - sums of fp8 are cut off behind 14 bits after each wgmma;
 *  - barriers count what arrives and what bytes come, also from another block of the cluster;
 *  - addresses that are not aligned as an instruction needs them end the program, and so does a
 * kernel that may be launched before the one before has ended, if a thread counts, waits for a
 * count, asks the copy engine or ends without having waited for that.
 *
 * What it does not show: races, whose threads here take turns; timing; in which order and how
 * exactly a matrix instruction adds up.
 */
#ifndef EMULATE_H
#define EMULATE_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include <functional>

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>
#include <vector_functions.h>

#include "ops/cpu/dtype.h"

#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __forceinline__
#undef __noinline__
#undef __launch_bounds__
#undef __grid_constant__
#undef __align__
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
/* Blocks that run together use only memory of the launch. */
#define __shared__ static

struct emulated_thread {
    uint3 thread, block;
    dim3 grid;
};

extern emulated_thread emulated;

#define threadIdx emulated.thread
#define blockIdx  emulated.block
#define gridDim   emulated.grid

#define LAUNCH(kernel, blocks, threads, stream, ...)                                               \
    emulate_launch(blocks, 1, threads, [=] { kernel(__VA_ARGS__); })

#define LAUNCH_SHARED(kernel, blocks, threads, nbytes, stream, ...)                                \
    LAUNCH(kernel, blocks, threads, stream, __VA_ARGS__)

#define LAUNCH_CLUSTERS(kernel, blocks, cluster, threads, nbytes, stream, ...)                     \
    emulate_launch(                                                                                \
        blocks, cluster, threads, [=] { kernel(__VA_ARGS__); }, true)

/* `early`: on a GPU it might be launched before the kernel before has ended. */
void emulate_launch(unsigned blocks, unsigned cluster, unsigned threads,
                    const std::function<void()> &kernel, bool early = false);

/* What threads of a warp show each other: `nbytes` of each, which all of them get. */
const unsigned char *emulate_exchange(const void *mine, size_t nbytes);

void emulate_wait_block(int id, unsigned count);   /* bar.sync */
void emulate_arrive_block(int id, unsigned count); /* bar.arrive */
void emulate_wait_cluster(void);
[[noreturn]] void emulate_fail(const char *what);
void emulate_check_waited(void); /* fails in a kernel launched early that has not waited yet */

unsigned char *emulate_shared(uint32_t address, uint32_t rank_or_self = 0xffffffff);

static inline void __syncthreads(void)
{
    emulate_wait_block(0, 0);
}

static inline void __syncwarp(void)
{
    int nothing = 0;

    emulate_exchange(&nothing, sizeof(nothing));
}

static inline float __shfl_down_sync(unsigned, float x, int offset, int width)
{
    const unsigned char *all = emulate_exchange(&x, sizeof(x));
    int lane = threadIdx.x % 32, from = lane % width + offset < width ? lane + offset : lane;
    float y;

    memcpy(&y, all + from * sizeof(y), sizeof(y));
    return y;
}

static inline float __shfl_xor_sync(unsigned, float x, int mask)
{
    const unsigned char *all = emulate_exchange(&x, sizeof(x));
    float y;

    memcpy(&y, all + (threadIdx.x % 32 ^ mask) * sizeof(y), sizeof(y));
    return y;
}

static inline int __shfl_up_sync(unsigned, int x, int offset)
{
    const unsigned char *all = emulate_exchange(&x, sizeof(x));
    int lane = threadIdx.x % 32, y;

    memcpy(&y, all + (lane >= offset ? lane - offset : lane) * sizeof(y), sizeof(y));
    return y;
}

static inline unsigned __ballot_sync(unsigned, bool x)
{
    const unsigned char *all = emulate_exchange(&x, sizeof(x));
    unsigned y = 0;

    for (int lane = 0; lane < 32; lane++)
        y |= (unsigned)all[lane] << lane;
    return y;
}

static inline float sinpif(float x)
{
    return (float)sin(M_PI * (double)x);
}

static inline float cospif(float x)
{
    return (float)cos(M_PI * (double)x);
}

static inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}

static inline int __any_sync(unsigned lanes, bool x)
{
    return __ballot_sync(lanes, x) != 0;
}

static inline int __shfl_sync(unsigned, int x, int lane)
{
    const unsigned char *all = emulate_exchange(&x, sizeof(x));
    int y;

    memcpy(&y, all + lane * sizeof(y), sizeof(y));
    return y;
}

/* The lanes that show the same number. */
static inline unsigned __match_any_sync(unsigned, unsigned x)
{
    const unsigned char *all = emulate_exchange(&x, sizeof(x));
    unsigned same = 0;

    for (unsigned lane = 0; lane < 32; lane++)
        same |= (unsigned)!memcmp(all + lane * sizeof(x), &x, sizeof(x)) << lane;
    return same;
}

static inline uint32_t __shfl_xor_sync(unsigned, uint32_t x, int mask)
{
    const unsigned char *all = emulate_exchange(&x, sizeof(x));
    uint32_t y;

    memcpy(&y, all + (threadIdx.x % 32 ^ mask) * sizeof(y), sizeof(y));
    return y;
}

static inline float rsqrtf(float x)
{
    return 1 / sqrtf(x);
}

template <typename VECTOR> static inline void __stwb(VECTOR *to, VECTOR x)
{
    *to = x;
}

template <typename VECTOR> static inline VECTOR __ldcs(const VECTOR *from)
{
    return *from;
}

static inline uint32_t __byte_perm(uint32_t x, uint32_t y, uint32_t selector)
{
    uint64_t bytes = (uint64_t)y << 32 | x;
    uint32_t result = 0;

    for (int i = 0; i < 4; i++)
        result |= (uint32_t)(bytes >> (selector >> 4 * i & 7) * 8 & 0xff) << 8 * i;
    return result;
}

static inline float __uint_as_float(uint32_t bits)
{
    float x;

    memcpy(&x, &bits, sizeof(x));
    return x;
}

static inline uint32_t __float_as_uint(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

static inline void atomicAdd(float *to, float x)
{
    *to += x;
}

static inline void add_four(float *to, float4 x)
{
    to[0] += x.x;
    to[1] += x.y;
    to[2] += x.z;
    to[3] += x.w;
}

static inline void __threadfence(void)
{
}

static inline void __nanosleep(unsigned)
{
}

static inline uint64_t count_and_get(uint64_t *count)
{
    emulate_check_waited();
    return (*count)++;
}

static inline uint64_t exchange_if(uint64_t *at, uint64_t known, uint64_t now)
{
    uint64_t before = *at;

    emulate_check_waited();
    if (before == known)
        *at = now;
    return before;
}

static inline unsigned atomicAdd(unsigned *to, unsigned x)
{
    unsigned before = *to;

    emulate_check_waited();
    *to += x;
    return before;
}

/* Instead of src/ops/cuda/ptx.cuh and src/ops/hopper/wgmma.cuh. */
#define OPS_CUDA_PTX_CUH
#define OPS_HOPPER_WGMMA_CUH

static inline float fast_exp2(float x)
{
    return exp2f(x);
}

static inline float fast_reciprocal(float x)
{
    return 1 / x;
}

static inline float max_or_nan(float x, float y)
{
    return isnan(x) || x > y ? x : y;
}

static inline uint32_t pack_f16(float low, float high)
{
    return (uint32_t)__half_as_ushort(__float2half_rn(high)) << 16 |
           __half_as_ushort(__float2half_rn(low));
}

static inline uint32_t pack_bf16(float low, float high)
{
    return (uint32_t)__bfloat16_as_ushort(__float2bfloat16_rn(high)) << 16 |
           __bfloat16_as_ushort(__float2bfloat16_rn(low));
}

template <typename FROM> static inline uint32_t emulate_max(uint32_t x, uint32_t y, FROM from)
{
    uint32_t z = 0;

    for (int shift = 0; shift < 32; shift += 16) {
        uint32_t a = x >> shift & 0xffff, b = y >> shift & 0xffff;
        float of_a = from((uint16_t)a), of_b = from((uint16_t)b);

        z |= (isnan(of_a) || of_b > of_a ? b : a) << shift;
    }
    return z;
}

static inline uint32_t max_f16(uint32_t x, uint32_t y)
{
    return emulate_max(x, y, [](uint16_t bits) { return __half2float(__ushort_as_half(bits)); });
}

static inline uint32_t max_bf16(uint32_t x, uint32_t y)
{
    return emulate_max(x, y,
                       [](uint16_t bits) { return __bfloat162float(__ushort_as_bfloat16(bits)); });
}

static inline uint32_t pack_e4m3(float a, float b, float c, float d)
{
    return (uint32_t)cpu_to_e4m3(d) << 24 | (uint32_t)cpu_to_e4m3(c) << 16 |
           (uint32_t)cpu_to_e4m3(b) << 8 | cpu_to_e4m3(a);
}

static inline void let_next_kernel_start(void)
{
}

/* A test may set emulate_kernels_before, which the first thread that waits calls. */
void wait_for_kernels_before(void);

unsigned char *dynamic_shared(void);
uint32_t shared_address(const void *pointer);
void cp_async4(uint32_t to, const void *from, uint32_t valid);
void cp_async16(uint32_t to, const void *from, uint32_t valid);
void cp_async_commit(void);
void emulate_cp_async_wait(int pending);
void load_matrices(uint32_t (&x)[4], uint32_t from);
void load_matrices_transposed(uint32_t (&x)[4], uint32_t from);
void store_matrices(uint32_t to, const uint32_t (&x)[4]);
void store_shared16(uint32_t to, const uint32_t (&x)[4]);
uint4 load_shared16(uint32_t from);
void store_shared4(uint32_t to, uint32_t x);
uint32_t load_shared4(uint32_t from);
void load_shared8(uint32_t &x, uint32_t &y, uint32_t from);
void store_shared8(uint32_t to, float x, float y);
void emulate_mma(int type, float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
void mbarrier_init(uint32_t barrier, int arrivals);
void mbarrier_arrive_expecting(uint32_t barrier, uint32_t nbytes);
void mbarrier_arrive_at(uint32_t barrier, uint32_t rank);
void store_shared8_at(uint32_t to, uint32_t barrier, uint32_t rank, float x, float y);
void bulk_load(uint32_t to, const void *from, uint32_t nbytes, uint32_t barrier);
void bulk_add(float *to, uint32_t from, uint32_t nbytes);
void mbarrier_wait(uint32_t barrier, uint32_t parity);
void wait_for_count(const uint32_t *count, uint32_t least);
uint32_t cluster_rank(void);
uint32_t cluster_size(void);
void tensor_load_multicast(uint32_t to, const void *map, int x, int y, int z, uint32_t barrier,
                           uint16_t ranks);
void tensor_load4(uint32_t to, const void *map, const int (&at)[4], uint32_t barrier);
void tensor_load4_multicast(uint32_t to, const void *map, const int (&at)[4], uint32_t barrier,
                            uint16_t ranks);
void tensor_store(const void *map, uint32_t from, int x, int y, int z);
/* `count` sums a thread: of 64 x 2 * count. */
void emulate_wgmma(int type, int mn_a, int mn_b, float *sums, uint32_t count, uint64_t a,
                   uint64_t b, int accumulate);

/* Of 8 bits; B may be of another type. */
void emulate_wgmma8(int type_a, int type_b, float *sums, uint32_t count, uint64_t a, uint64_t b,
                    int accumulate);

/* With A from registers, of 16 or 8 bits. */
void emulate_wgmma_by_registers(int type, int mn_b, float *sums, uint32_t count, const uint32_t *a,
                                uint64_t b, int accumulate);

struct wgmma_fragments {
    uint32_t x[16];
};

void wgmma_tf32_by_registers(float (&sums)[128], const wgmma_fragments &a, int i, uint64_t b,
                             int accumulate);

enum { EMULATE_TF32, EMULATE_F16, EMULATE_BF16, EMULATE_E4M3, EMULATE_E5M2 };

template <int PENDING> static inline void cp_async_wait(void)
{
    emulate_cp_async_wait(PENDING);
}

static inline void mma_f16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    emulate_mma(EMULATE_F16, d, a, b0, b1);
}

static inline void mma_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    emulate_mma(EMULATE_BF16, d, a, b0, b1);
}

static inline void mma_tf32(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    emulate_mma(EMULATE_TF32, d, a, b0, b1);
}

static inline uint32_t to_tf32(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof(bits));
    return (bits & 0x7fffffff) >= 0x7f800000 ? bits : (bits + 0x1000) & ~0x1fffu;
}

static inline float load_shared_at(uint32_t address, uint32_t rank)
{
    float x;

    memcpy(&x, emulate_shared(address, rank), sizeof(x));
    return x;
}

static inline void count_up(uint32_t *count)
{
    ++*count;
}

uint32_t unpack_e4m3(uint16_t pair);

static inline void unpack_four_e4m3(uint32_t four, uint32_t &low, uint32_t &high)
{
    low = unpack_e4m3((uint16_t)four);
    high = unpack_e4m3((uint16_t)(four >> 16));
}

static inline void barrier_128(int id)
{
    emulate_wait_block(id, 128);
}

static inline void barrier_256(int id)
{
    emulate_wait_block(id, 256);
}

static inline void mbarrier_arrive(uint32_t barrier)
{
    mbarrier_arrive_at(barrier, cluster_rank());
}

static inline void barrier_wait(int id, int threads)
{
    emulate_wait_block(id, (unsigned)threads);
}

static inline void barrier_arrive(int id, int threads)
{
    emulate_arrive_block(id, (unsigned)threads);
}

static inline void tensor_load(uint32_t to, const void *map, int x, int y, int z, uint32_t barrier)
{
    tensor_load_multicast(to, map, x, y, z, barrier, (uint16_t)(1 << cluster_rank()));
}

static inline void cluster_sync(void)
{
    emulate_wait_cluster();
}

template <int MN_A, int MN_B, int COUNT>
static inline void wgmma_f16(float (&sums)[COUNT], uint64_t a, uint64_t b, int accumulate)
{
    emulate_wgmma(EMULATE_F16, MN_A, MN_B, sums, COUNT, a, b, accumulate);
}

template <int MN_A, int MN_B, int COUNT>
static inline void wgmma_bf16(float (&sums)[COUNT], uint64_t a, uint64_t b, int accumulate)
{
    emulate_wgmma(EMULATE_BF16, MN_A, MN_B, sums, COUNT, a, b, accumulate);
}

template <int MN_A, int MN_B, int COUNT>
static inline void wgmma_f16_new(float (&sums)[COUNT], uint64_t a, uint64_t b)
{
    emulate_wgmma(EMULATE_F16, MN_A, MN_B, sums, COUNT, a, b, 0);
}

template <int MN_A, int MN_B, int COUNT>
static inline void wgmma_bf16_new(float (&sums)[COUNT], uint64_t a, uint64_t b)
{
    emulate_wgmma(EMULATE_BF16, MN_A, MN_B, sums, COUNT, a, b, 0);
}

template <int MN_B, int COUNT>
static inline void wgmma_f16_by_registers(float (&sums)[COUNT], const uint32_t *a, uint64_t b,
                                          int accumulate)
{
    emulate_wgmma_by_registers(EMULATE_F16, MN_B, sums, COUNT, a, b, accumulate);
}

template <int MN_B, int COUNT>
static inline void wgmma_bf16_by_registers(float (&sums)[COUNT], const uint32_t *a, uint64_t b,
                                           int accumulate)
{
    emulate_wgmma_by_registers(EMULATE_BF16, MN_B, sums, COUNT, a, b, accumulate);
}

#define EMULATE_WGMMA8(name, a_, b_)                                                               \
    template <int COUNT>                                                                           \
    static inline void name(float(&sums)[COUNT], uint64_t a, uint64_t b, int accumulate)           \
    {                                                                                              \
        emulate_wgmma8(a_, b_, sums, COUNT, a, b, accumulate);                                     \
    }                                                                                              \
    template <int COUNT>                                                                           \
    static inline void name##_new(float(&sums)[COUNT], uint64_t a, uint64_t b)                     \
    {                                                                                              \
        emulate_wgmma8(a_, b_, sums, COUNT, a, b, 0);                                              \
    }

EMULATE_WGMMA8(wgmma_e4m3, EMULATE_E4M3, EMULATE_E4M3)
EMULATE_WGMMA8(wgmma_e5m2, EMULATE_E5M2, EMULATE_E5M2)
EMULATE_WGMMA8(wgmma_e4m3_e5m2, EMULATE_E4M3, EMULATE_E5M2)
EMULATE_WGMMA8(wgmma_e5m2_e4m3, EMULATE_E5M2, EMULATE_E4M3)

template <int COUNT>
static inline void wgmma_e4m3_by_registers(float (&sums)[COUNT], const uint32_t *a, uint64_t b,
                                           int accumulate)
{
    emulate_wgmma_by_registers(EMULATE_E4M3, 0, sums, COUNT, a, b, accumulate);
}

static inline void wgmma_tf32(float (&sums)[128], uint64_t a, uint64_t b, int accumulate)
{
    emulate_wgmma(EMULATE_TF32, 0, 0, sums, 128, a, b, accumulate);
}

/* What is done at once has nothing to wait for. */
static inline void fence_async_proxy(void)
{
}
static inline void fence_async_proxy_global(void)
{
}
static inline void mbarrier_init_fence(void)
{
}
static inline void prefetch_line(const void *at)
{
    (void)*(const volatile char *)at;
}

static inline void tensor_prefetch(const void *)
{
}
static inline void tensor_store_commit(void)
{
}
static inline void wgmma_fence(void)
{
}
static inline void wgmma_commit(void)
{
}
template <int> static inline void tensor_store_wait_read(void)
{
}
template <int> static inline void tensor_store_wait(void)
{
}
template <int> static inline void registers_give_back(void)
{
}
template <int> static inline void registers_take(void)
{
}
template <int> static inline void wgmma_wait(void)
{
}
template <int PENDING, int COUNT> static inline void wgmma_wait_leaving(float (&)[COUNT])
{
}
template <int COUNT> static inline void wgmma_wait_for(float (&)[COUNT])
{
}
template <int COUNT> static inline void wgmma_wait_for_all_but_last(float (&)[COUNT])
{
}
template <int> static inline void wgmma_wait_keeping(wgmma_fragments &)
{
}

#endif
