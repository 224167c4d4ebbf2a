/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Rung 3, vectorized: f32 travels in vectors of four. A thread makes four neighbouring elements of
 * a row of C, so a value of A serves four multiplications, and B is read from shared memory 16
 * bytes at a time; so are both from global memory where their alignment allows it.
 */
#include "ops/matmul/finish.cuh"

#define TILE_M  32
#define TILE_N  128
#define TILE_K  32
#define THREADS 1024

/* Up to four elements in the direction that is contiguous, zeros beyond `left`. */
static __device__ __forceinline__ float4 bring4(const float *from, int64_t left, bool vectors)
{
    float4 x = make_float4(0, 0, 0, 0);

    if (vectors && left >= 4)
        return *(const float4 *)from;
    if (left > 0)
        x.x = from[0];
    if (left > 1)
        x.y = from[1];
    if (left > 2)
        x.z = from[2];
    if (left > 3)
        x.w = from[3];
    return x;
}

/*
 * tile[i * LD + j] = x(row + i, col + j) for a tile of ROWS x COLS, zeros beyond rows x cols.
 * Vectors lie along whichever direction is contiguous in memory.
 */
template <int ROWS, int COLS, int LD>
static __device__ void bring(float *tile, const cuda_operand &x, int64_t batch, int64_t row,
                             int64_t col, int64_t rows, int64_t cols)
{
    const float *from = (const float *)x.data + batch * x.stride;
    bool along_rows = x.cs == 1;
    int width = along_rows ? COLS / 4 : ROWS / 4;

    for (int v = threadIdx.x; v < ROWS * COLS / 4; v += THREADS) {
        int i = along_rows ? v / width : v % width * 4, j = along_rows ? v % width * 4 : v / width;
        bool inside = row + i < rows && col + j < cols;
        int64_t left = along_rows ? cols - col - j : rows - row - i;
        float4 value = make_float4(0, 0, 0, 0);
        int step = along_rows ? 1 : LD;
        float *to = tile + i * LD + j;

        if (inside)
            value = bring4(from + (row + i) * x.rs + (col + j) * x.cs, left, x.vectors);
        if (along_rows && LD % 4 == 0) {
            *(float4 *)to = value;
            continue;
        }
        to[0] = value.x;
        to[step] = value.y;
        to[2 * step] = value.z;
        to[3 * step] = value.w;
    }
}

static __global__ void __launch_bounds__(THREADS) multiply(const cuda_product p)
{
    __shared__ float a[TILE_M * (TILE_K + 1)];
    __shared__ __align__(16) float b[TILE_K * TILE_N];
    int64_t tiles = (p.n + TILE_N - 1) / TILE_N * ((p.m + TILE_M - 1) / TILE_M) * p.batch;
    int i = threadIdx.x / (TILE_N / 4), j = threadIdx.x % (TILE_N / 4) * 4;

    for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        tile_place at = place_of(p, tile, TILE_M, TILE_N);
        float sums[4] = {0, 0, 0, 0};

        for (int64_t k = 0; k < p.k; k += TILE_K) {
            bring<TILE_M, TILE_K, TILE_K + 1>(a, p.a, at.batch, at.row, k, p.m, p.k);
            bring<TILE_K, TILE_N, TILE_N>(b, p.b, at.batch, k, at.col, p.k, p.n);
            __syncthreads();
#pragma unroll
            for (int x = 0; x < TILE_K; x++) {
                float y = a[i * (TILE_K + 1) + x];
                float4 z = *(const float4 *)(b + x * TILE_N + j);

                sums[0] += y * z.x;
                sums[1] += y * z.y;
                sums[2] += y * z.z;
                sums[3] += y * z.w;
            }
            __syncthreads();
        }
        if (at.row + i < p.m)
            finish4(p, at.batch, at.row + i, at.col + j, sums);
    }
}

gpunvme_ops_status_t cuda_multiply_vectorized(const struct cuda_product *p, void *workspace,
                                              void *stream, struct cuda_launch *launch)
{
    static const cuda_tiling tiling = {TILE_M, TILE_N, 1, 4, THREADS, 0};

    (void)workspace;
    return cuda_launch_tiles((const void *)multiply, p, &tiling, stream, launch);
}
