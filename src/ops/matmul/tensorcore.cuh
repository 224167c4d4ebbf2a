/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What kernels on tensor cores by mma have in common: a tile of 128 x 128 of eight warps, each 64 x
 * 32, whose operands come in stages of k by cp.async. Operands lie in shared memory as they do in
 * memory, with k or with m and n contiguous (MN).
 */
#ifndef OPS_MATMUL_TENSORCORE_CUH
#define OPS_MATMUL_TENSORCORE_CUH

#include "ops/cuda/element.cuh"
#include "ops/cuda/ptx.cuh"
#include "ops/matmul/tensorcore.h"

/* Vectors of 16 bytes that a thread copies of each operand for a stage. */
#define COPIES (TENSORCORE_TILE * TENSORCORE_ROW_NBYTES / 16 / TENSORCORE_THREADS)

template <int DTYPE> struct traits {
    static const int f32 = DTYPE == GPUNVME_OPS_F32;
    static const int size = f32 ? 4 : 2;
    static const int depth = TENSORCORE_ROW_NBYTES / size; /* of a stage */
    static const int chunk = 16 / size;
};

/* As gather16(), of f32. */
static __device__ __forceinline__ void gather32(uint32_t to, const unsigned char *from, int valid)
{
#pragma unroll
    for (int i = 0; i < 4; i++)
        cp_async4(to + i * 4, i < valid ? from + i * 4 : from, i < valid ? 4 : 0);
}

template <int DTYPE, int MN> static __device__ __forceinline__ uint32_t place(int row, int chunk)
{
    return traits<DTYPE>::f32 ? tensorcore_place32(MN, row, chunk * traits<DTYPE>::chunk)
                              : tensorcore_place16(MN, row, chunk);
}

/* How many rows of a stage all threads copy at once: a thread's next vector is so many below. */
template <int DTYPE, int MN> static __device__ __forceinline__ constexpr int rows_of_copy(void)
{
    return TENSORCORE_THREADS /
           ((MN ? TENSORCORE_TILE : traits<DTYPE>::depth) / traits<DTYPE>::chunk);
}

/* A's 16 x 16 elements at line `row` and 16 bytes number `chunk` of k, for mma's 16-bit types. */
template <int MN>
static __device__ __forceinline__ void take_a(uint32_t (&x)[4], uint32_t tile, int row, int chunk)
{
    int lane = threadIdx.x % 32;

    if (MN)
        load_matrices_transposed(x,
                                 tile + tensorcore_place16(1, chunk * 8 + lane % 8 + lane / 16 * 8,
                                                           row / 8 + lane / 8 % 2));
    else
        load_matrices(x, tile + tensorcore_place16(0, row + lane % 16, chunk + lane / 16));
}

/* B's 16 x 16 at column `col`: two times 16 x 8. */
template <int MN>
static __device__ __forceinline__ void take_b(uint32_t (&x)[4], uint32_t tile, int col, int chunk)
{
    int lane = threadIdx.x % 32;

    if (MN)
        load_matrices_transposed(
            x, tile + tensorcore_place16(1, chunk * 8 + lane % 8 + lane / 8 % 2 * 8,
                                         col / 8 + lane / 16));
    else
        load_matrices(
            x, tile + tensorcore_place16(0, col + lane % 8 + lane / 16 * 8, chunk + lane / 8 % 2));
}

template <int DTYPE, int MN_A, int MN_B>
static __device__ __forceinline__ void multiply_stage16(float (&sums)[4][4][4], uint32_t a,
                                                        uint32_t b, int row, int col)
{
#pragma unroll
    for (int chunk = 0; chunk < 4; chunk += 2) {
        uint32_t x[4][4], y[2][4];

#pragma unroll
        for (int i = 0; i < 4; i++)
            take_a<MN_A>(x[i], a, row + i * 16, chunk);
#pragma unroll
        for (int j = 0; j < 2; j++)
            take_b<MN_B>(y[j], b, col + j * 16, chunk);
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                if (DTYPE == GPUNVME_OPS_F16)
                    mma_f16(sums[i][j], x[i], y[j / 2][j % 2 * 2], y[j / 2][j % 2 * 2 + 1]);
                else
                    mma_bf16(sums[i][j], x[i], y[j / 2][j % 2 * 2], y[j / 2][j % 2 * 2 + 1]);
    }
}

/* Element (line, k) of a tile of f32, as tf32. */
template <int MN>
static __device__ __forceinline__ uint32_t take32(const unsigned char *tile, int line, int k)
{
    return to_tf32(*(const float *)(tile + (MN ? tensorcore_place32(1, k, line)
                                               : tensorcore_place32(0, line, k))));
}

template <int MN_A, int MN_B>
static __device__ __forceinline__ void multiply_stage32(float (&sums)[4][4][4],
                                                        const unsigned char *a,
                                                        const unsigned char *b, int row, int col)
{
    int lane = threadIdx.x % 32, line = lane / 4;

#pragma unroll
    for (int k = lane % 4; k < 16; k += 8) {
        uint32_t x[4][4], y[4][2];

#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                x[i][j] = take32<MN_A>(a, row + i * 16 + line + j % 2 * 8, k + j / 2 * 4);
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 2; j++)
                y[i][j] = take32<MN_B>(b, col + i * 8 + line, k + j * 4);
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                mma_tf32(sums[i][j], x[i], y[j][0], y[j][1]);
    }
}

/* All of a stage, whose operands begin at `a` and `b`, for a warp's rows and columns. */
template <int DTYPE, int MN_A, int MN_B>
static __device__ __forceinline__ void multiply_stage(float (&sums)[4][4][4],
                                                      const unsigned char *a,
                                                      const unsigned char *b, int row, int col)
{
    if (DTYPE == GPUNVME_OPS_F32)
        multiply_stage32<MN_A, MN_B>(sums, a, b, row, col);
    else
        multiply_stage16<DTYPE, MN_A, MN_B>(sums, shared_address(a), shared_address(b), row, col);
}

/*
 * The sums of 64 rows from `part` on, those of four of the warps, go to shared memory, with
 * TENSORCORE_OUT_LD floats from row to row, for all threads of the block.
 */
static __device__ __forceinline__ void share_sums(float *out, const float (&sums)[4][4][4],
                                                  int part, int row, int col)
{
    int lane = threadIdx.x % 32;

    static_assert(64 * TENSORCORE_OUT_LD * 4 <= TENSORCORE_STAGES * 2 * 128 * 64,
                  "results do not fit");
    __syncthreads();
    if (row == part)
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 8; j++)
                *(float2 *)(out + (i * 16 + lane / 4 + j / 4 * 8) * TENSORCORE_OUT_LD + col +
                            j % 4 * 8 + lane % 4 * 2) =
                    make_float2(sums[i][j % 4][j / 4 * 2], sums[i][j % 4][j / 4 * 2 + 1]);
    __syncthreads();
}

#endif
