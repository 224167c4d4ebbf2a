/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What the GPU can do at most, by kernels that do nothing else: multiply-adds in registers,
 * products by tensor cores of operands that stay in registers (mma) or in shared memory (wgmma),
 * and a copy of memory that no cache holds, or reading it alone. All on random numbers: with zeros
 * a GPU runs faster, for it draws less power. A launch takes about a millisecond.
 */
#include <cuda_runtime.h>
#include <stdio.h>
#include <string.h>

#include "ops/cuda/element.cuh"
#include "ops/cuda/ptx.cuh"
#include "ops/hopper/tile.h"
#include "ops/hopper/wgmma.cuh"

extern "C" {
#include "ops_gpu.h"
}

/* Sums are written only if they are this, which they are not; but the compiler can't know. */
#define NEVER 1.2345e33f

/* A hash of two numbers, as a number in [-1, 1) of 23 random bits. */
static __device__ __forceinline__ float noise(uint32_t a, uint32_t b)
{
    uint32_t x = a * 0x9e3779b9u ^ b * 0x85ebca6bu;

    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    x ^= x >> 16;
    return (float)(int32_t)(x & 0xffffff00u) * 0x1p-31f;
}

static __device__ __forceinline__ float sum_of(const float *sums, int n)
{
    float sum = 0;

#pragma unroll
    for (int i = 0; i < n; i++)
        sum += sums[i];
    return sum;
}

/*
 * Multiply-adds: 8 x 8 sums of a thread, as a product has them. The even and the odd registers give
 * one operand each in a cycle, and the third one must have been kept from the instruction before:
 * so one goes to and fro through the sums, and these lie where b does not. Loads and stores of four
 * registers at once, one after the other, tell the compiler; a pair's sums are exchanged.
 */
#define FMA_THREADS 256
#define FMA_BLOCKS  2 /* on a multiprocessor */
#define FMA_STEPS   8000

static __global__ __launch_bounds__(FMA_THREADS, FMA_BLOCKS) void fma_kernel(float *out)
{
    __shared__ __align__(16) float factors[16][FMA_THREADS];
    uint32_t me = blockIdx.x * blockDim.x + threadIdx.x;
    float4 ab[4];
    float a[8], b[8], sums[64];

#pragma unroll
    for (int i = 0; i < 16; i++)
        factors[i][threadIdx.x] = noise(me, i);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 4; i++)
        ab[i] = ((const float4 *)factors)[threadIdx.x + i * FMA_THREADS];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        a[4 * i] = ab[i].x, a[4 * i + 1] = ab[i].y, a[4 * i + 2] = ab[i].z;
        a[4 * i + 3] = ab[i].w;
        b[4 * i] = ab[i + 2].x, b[4 * i + 1] = ab[i + 2].y, b[4 * i + 2] = ab[i + 2].z;
        b[4 * i + 3] = ab[i + 2].w;
    }
#pragma unroll
    for (int i = 0; i < 64; i++)
        sums[i] = noise(me, i + 16);
#pragma unroll 4
    for (int step = 0; step < FMA_STEPS; step++)
#pragma unroll
        for (int i = 0; i < 64; i++) {
            int at = i / 8 % 2 ? i ^ 7 : i;

            sums[at] = fmaf(a[at / 8], b[at % 8], sums[at]);
        }
    if (!out)
        return; /* as ever: but the compiler can't know */
#pragma unroll
    for (int i = 0; i < 64; i += 4)
        ((float4 *)out)[me * 16 + i / 4] =
            make_float4(sums[i + 1], sums[i], sums[i + 3], sums[i + 2]);
}

/* Tensor cores by mma: a warp's 64 x 32 sums, with operands in registers. */
#define MMA_THREADS 256
#define MMA_BLOCKS  2
#define MMA_STEPS   4000

static __device__ __forceinline__ uint32_t fragment(uint32_t a, uint32_t b, int dtype)
{
    return dtype == GPUNVME_OPS_F32 ? to_tf32(noise(a, b))
                                    : to_pair(noise(a, b), noise(a, b + 64), dtype);
}

template <int DTYPE>
static __device__ __forceinline__ void multiply(float (&sums)[4], const uint32_t (&a)[4],
                                                const uint32_t (&b)[2])
{
    if (DTYPE == GPUNVME_OPS_F32)
        mma_tf32(sums, a, b[0], b[1]);
    else if (DTYPE == GPUNVME_OPS_F16)
        mma_f16(sums, a, b[0], b[1]);
    else
        mma_bf16(sums, a, b[0], b[1]);
}

template <int DTYPE>
static __global__ __launch_bounds__(MMA_THREADS, MMA_BLOCKS) void mma_kernel(float *out)
{
    uint32_t me = blockIdx.x * blockDim.x + threadIdx.x;
    uint32_t a[4][4], b[4][2];
    float sums[16][4];

#pragma unroll
    for (int i = 0; i < 16; i++) {
        a[i / 4][i % 4] = fragment(me, i, DTYPE);
        b[i / 4][i % 2] = fragment(me, i + 16, DTYPE);
#pragma unroll
        for (int j = 0; j < 4; j++)
            sums[i][j] = noise(me, 4 * i + j + 32);
    }
#pragma unroll 1
    for (int step = 0; step < MMA_STEPS; step++)
#pragma unroll
        for (int i = 0; i < 16; i++)
            multiply<DTYPE>(sums[i], a[i / 4], b[i % 4]);
    if (sum_of(&sums[0][0], 64) == NEVER)
        *out = NEVER;
}

/*
 * Tensor cores by wgmma: two warp groups of a block multiply 64 x 256 each from shared memory, over
 * the same 128 bytes of k again and again: A of each group and B of both, laid out as the rung
 * "hopper" has them.
 */
#define WGMMA_THREADS 256
#define WGMMA_STEPS   2000
#define WGMMA_SHARED  (2 * HOPPER_BLOCK + HOPPER_B_NBYTES + HOPPER_ALIGN)

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define WGMMA_HERE 1
#endif

#ifdef WGMMA_HERE
/* Random elements: their places do not matter. (Those of fp8 are less than 2, and so no NaNs.) */
static __device__ __forceinline__ void fill(uint32_t to, int nbytes, int dtype)
{
    for (int i = (int)threadIdx.x * 16; i < nbytes; i += WGMMA_THREADS * 16) {
        uint32_t x[4];

        for (int j = 0; j < 4; j++)
            x[j] = fragment(blockIdx.x, (uint32_t)(i + 128 * j), dtype) &
                   (dtype >= GPUNVME_OPS_E4M3 ? 0xbfbfbfbf : 0xffffffff);
        store_shared16(to + (uint32_t)i, x);
    }
    fence_async_proxy();
    __syncthreads();
}

template <int DTYPE>
static __device__ __forceinline__ void multiply_64x256(float (&sums)[128], uint64_t a, uint64_t b)
{
    if (DTYPE == GPUNVME_OPS_E4M3)
        wgmma_e4m3(sums, a, b, 1);
    else if (DTYPE == GPUNVME_OPS_E5M2)
        wgmma_e5m2(sums, a, b, 1);
    else if (DTYPE == GPUNVME_OPS_F32)
        wgmma_tf32(sums, a, b, 1);
    else if (DTYPE == GPUNVME_OPS_F16)
        wgmma_f16<0, 0>(sums, a, b, 1);
    else
        wgmma_bf16<0, 0>(sums, a, b, 1);
}
#endif

template <int DTYPE>
static __global__ __launch_bounds__(WGMMA_THREADS, 1) void wgmma_kernel(float *out)
{
#ifdef WGMMA_HERE
    uint32_t base =
        (shared_address(dynamic_shared()) + HOPPER_ALIGN - 1) / HOPPER_ALIGN * HOPPER_ALIGN;
    uint64_t a = hopper_tile_descriptor(base + threadIdx.x / 128 * HOPPER_BLOCK, 0);
    uint64_t b = hopper_tile_descriptor(base + 2 * HOPPER_BLOCK, 0);
    float sums[128];

    fill(base, 2 * HOPPER_BLOCK + HOPPER_B_NBYTES, DTYPE);
#pragma unroll
    for (int i = 0; i < 128; i++)
        sums[i] = noise(threadIdx.x, i);
#pragma unroll 1
    for (int step = 0; step < WGMMA_STEPS; step++) {
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < 4; i++)
            multiply_64x256<DTYPE>(sums, a + i * hopper_descriptor_step(0),
                                   b + i * hopper_descriptor_step(0));
        wgmma_commit();
        wgmma_wait<1>();
    }
    wgmma_wait<0>();
    if (sum_of(sums, 128) == NEVER)
        *out = NEVER;
#else
    (void)out;
#endif
}

/* Memory: a thread has four pieces of 16 bytes under way. */
#define COPY_THREADS 256
#define COPY_PIECES  4

static __global__ void noise_kernel(uint32_t *memory, size_t n)
{
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;

    for (; i < n; i += (size_t)gridDim.x * blockDim.x)
        memory[i] = __float_as_uint(noise((uint32_t)i, (uint32_t)(i >> 32)));
}

static __global__ __launch_bounds__(COPY_THREADS) void copy_kernel(uint4 *to, const uint4 *from)
{
    size_t at = (size_t)blockIdx.x * COPY_THREADS * COPY_PIECES + threadIdx.x;
    uint4 x[COPY_PIECES];

#pragma unroll
    for (int i = 0; i < COPY_PIECES; i++)
        x[i] = from[at + i * COPY_THREADS];
#pragma unroll
    for (int i = 0; i < COPY_PIECES; i++)
        to[at + i * COPY_THREADS] = x[i];
}

/* Each block reads its share of all, 8 pieces of 16 bytes a thread under way. */
#define READ_THREADS 512
#define READ_BLOCKS  4 /* on a multiprocessor */
#define READ_PIECES  8

static __global__ __launch_bounds__(READ_THREADS) void read_kernel(uint32_t *out, const uint4 *from,
                                                                   size_t n)
{
    size_t step = (size_t)gridDim.x * READ_THREADS;
    size_t at = (size_t)blockIdx.x * READ_THREADS + threadIdx.x;
    uint32_t bits = 0;

    for (; at + (READ_PIECES - 1) * step < n; at += READ_PIECES * step) {
        uint4 x[READ_PIECES];

#pragma unroll
        for (int i = 0; i < READ_PIECES; i++)
            x[i] = __ldcs(from + at + i * step);
#pragma unroll
        for (int i = 0; i < READ_PIECES; i++)
            bits |= x[i].x & x[i].y & x[i].z & x[i].w;
    }
    if (bits == 1) /* never, of so many: but the compiler can't know */
        *out = bits;
}

/* Waits by the GPU's own clock, of which a run of the program is not worth more than 10 ms. */
static __global__ void hold_kernel(unsigned long long nanoseconds)
{
    unsigned long long start, now;

    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    do
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    while (now - start < nanoseconds);
}

extern "C" bool ops_gpu_hold(double seconds)
{
    hold_kernel<<<1, 1>>>((unsigned long long)((seconds < 1e-2 ? seconds : 1e-2) * 1e9));
    return cudaGetLastError() == cudaSuccess;
}

enum {
    UNIT_FMA,
    UNIT_MMA,
    UNIT_WGMMA = UNIT_MMA + GPUNVME_OPS_NDTYPES,
    UNIT_COPY = UNIT_WGMMA + GPUNVME_OPS_NALLDTYPES,
    UNIT_READ,
    NUNITS
};

struct unit {
    const void *kernel;
    int threads, blocks; /* of a block; of a multiprocessor */
    size_t shared_nbytes;
    double work; /* floating-point operations of a thread */
    const char *by;
};

/* A warp's mma has 16 x 8 sums of 32 bytes of k, 16 of them a step; a warp group's wgmma 64 x 256.
 */
#define MMA_FLOPS(size)   (2.0 * 16 * 8 * (32 / (size)) * 16 * MMA_STEPS / 32)
#define WGMMA_FLOPS(size) (2.0 * 64 * 256 * (HOPPER_WIDTH / (size)) * WGMMA_STEPS / 128)
#define MMA_UNIT(dtype, size, by)                                                                  \
    {                                                                                              \
        (const void *)mma_kernel<dtype>, MMA_THREADS, MMA_BLOCKS, 0, MMA_FLOPS(size), by           \
    }
#define WGMMA_UNIT(dtype, size, by)                                                                \
    {                                                                                              \
        (const void *)wgmma_kernel<dtype>, WGMMA_THREADS, 1, WGMMA_SHARED, WGMMA_FLOPS(size), by   \
    }

static const struct unit units[NUNITS] = {
    {(const void *)fma_kernel, FMA_THREADS, FMA_BLOCKS, 0, 2.0 * 64 * FMA_STEPS,
     "f32 multiply-adds in registers"},
    MMA_UNIT(GPUNVME_OPS_F32, 4, "tf32 mma in registers"),
    MMA_UNIT(GPUNVME_OPS_F16, 2, "f16 mma in registers"),
    MMA_UNIT(GPUNVME_OPS_BF16, 2, "bf16 mma in registers"),
    WGMMA_UNIT(GPUNVME_OPS_F32, 4, "tf32 wgmma in shared memory"),
    WGMMA_UNIT(GPUNVME_OPS_F16, 2, "f16 wgmma in shared memory"),
    WGMMA_UNIT(GPUNVME_OPS_BF16, 2, "bf16 wgmma in shared memory"),
    WGMMA_UNIT(GPUNVME_OPS_E4M3, 1, "e4m3 wgmma in shared memory"),
    WGMMA_UNIT(GPUNVME_OPS_E5M2, 1, "e5m2 wgmma in shared memory"),
    {(const void *)copy_kernel, COPY_THREADS, 0, 0, 0, "a copy by a kernel, read and written"},
    {(const void *)read_kernel, READ_THREADS, READ_BLOCKS, 0, 0, "reads by a kernel"},
};

/* NUNITS: this GPU, or this build, has none. */
static int unit_of(int dtype, int compute, int sm)
{
    if (dtype == GPUNVME_OPS_F32 && compute == GPUNVME_OPS_COMPUTE_F32)
        return UNIT_FMA;
#ifdef OPS_HAVE_SM90A
    if (sm == 90)
        return UNIT_WGMMA + dtype;
#else
    (void)sm;
#endif
    return dtype < GPUNVME_OPS_NDTYPES ? UNIT_MMA + dtype : NUNITS;
}

extern "C" bool ops_gpu_peak_arithmetic(struct ops_gpu_peak *peak, int dtype, int compute)
{
    struct gpunvme_ops_capability gpu;
    const struct unit *unit;

    memset(peak, 0, sizeof(*peak));
    if (gpunvme_ops_capability(GPUNVME_OPS_CUDA, 0, &gpu) || gpu.sm < 80)
        return false;
    peak->unit = unit_of(dtype, compute, gpu.sm);
    if (peak->unit == NUNITS)
        return false;
    unit = &units[peak->unit];
    peak->blocks = gpu.units * unit->blocks;
    peak->work = unit->work * unit->threads * peak->blocks;
    snprintf(peak->by, sizeof(peak->by), "%s", unit->by);
    if (!cudaFuncSetAttribute(unit->kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              (int)unit->shared_nbytes))
        return true;
    cudaGetLastError(); /* this build has no code for the GPU: others need not hear of it */
    return false;
}

/*
 * Half a gibibyte, or what there is, to another: but at least eight times the cache in all. A run
 * copies all of it, or a piece, each time another: no piece is in the cache when its turn comes.
 */
extern "C" bool ops_gpu_peak_memory(struct ops_gpu_peak *peak, bool read_only, double copied)
{
    const size_t piece = (size_t)COPY_THREADS * COPY_PIECES * sizeof(uint4);
    struct gpunvme_ops_capability gpu;

    memset(peak, 0, sizeof(*peak));
    if (gpunvme_ops_capability(GPUNVME_OPS_CUDA, 0, &gpu))
        return false;
    peak->unit = read_only ? UNIT_READ : UNIT_COPY;
    for (peak->nbytes = (size_t)512 << 20; !peak->memory; peak->nbytes /= 2) {
        if (peak->nbytes < 4 * (size_t)gpu.cache_nbytes || peak->nbytes < piece)
            return false;
        peak->memory = (char *)ops_gpu_new(2 * peak->nbytes);
        if (peak->memory)
            break;
    }
    peak->nbytes = peak->nbytes / piece * piece;
    peak->piece = peak->nbytes;
    if (!read_only && copied > 0 && copied < (double)peak->nbytes)
        peak->piece = ((size_t)copied + piece - 1) / piece * piece;
    peak->blocks = read_only ? gpu.units * READ_BLOCKS : (int)(peak->piece / piece);
    peak->work = 2.0 * (double)peak->piece;
    snprintf(peak->by, sizeof(peak->by), "%s", units[peak->unit].by);
    noise_kernel<<<1024, 256>>>((uint32_t *)peak->memory, peak->nbytes / 2);
    return cudaGetLastError() == cudaSuccess;
}

extern "C" bool ops_gpu_peak_run(struct ops_gpu_peak *peak)
{
    const struct unit *unit = &units[peak->unit];
    char *to = peak->memory + peak->nbytes + peak->at;
    const char *from = peak->memory + peak->at;
    float *out = NULL; /* nothing is written there */
    size_t n = 2 * peak->nbytes / sizeof(uint4);
    void *copy[] = {&to, &from}, *read[] = {&out, &from, &n}, *multiply[] = {&out};
    void **args = peak->unit == UNIT_COPY ? copy : peak->unit == UNIT_READ ? read : multiply;

    peak->at += peak->piece;
    if (peak->at + peak->piece > peak->nbytes)
        peak->at = 0;
    return !cudaLaunchKernel(unit->kernel, dim3((unsigned)peak->blocks),
                             dim3((unsigned)unit->threads), args, unit->shared_nbytes, NULL);
}

extern "C" void ops_gpu_peak_drop(struct ops_gpu_peak *peak)
{
    ops_gpu_drop(peak->memory);
    memset(peak, 0, sizeof(*peak));
}
