/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Rung 4, coarsened: a thread makes a tile of TM x 8 elements of C in registers, so a value that
 * comes from shared memory serves 8 or TM multiplications. Both operands lie in shared memory with
 * a row for each k, whichever way they lie in memory: cp.async puts 4 bytes wherever they belong,
 * or 16 where they are contiguous already. Three stages of k are in shared memory at once, so that
 * copies of one run while another is multiplied.
 *
 * f32 by CUDA cores: every instruction that is no FFMA takes an FFMA's place. For each k a warp
 * does TM * 8 of them for (TM + 8) / 4 loads.
 */
#include "ops/cuda/device.cuh"
#include "ops/cuda/ptx.cuh"

#define TILE_N  128
#define TILE_K  16
#define STAGES  3
#define THREADS 256
#define PAD     4 /* floats: rows of neighbouring k begin in other banks, and stay aligned */

/*
 * How one thread copies its share of an operand's tile: `x` is the direction of m or n. Element i
 * of its share is at (k + i * dk, x + i * dx), as from[i * step] in memory.
 */
struct share {
    const float *from; /* at k = 0 */
    int64_t step;      /* elements from one to the next in memory */
    int64_t step_k;    /* elements from one k to the next */
    int k, x, dk, dx;
    int to, to_step; /* bytes: where in a stage */
    int left;        /* elements of the tile in direction x that there are */
    bool vectors;
};

/* A warp reads 8 values of k of 4 rows, or 32 neighbours: its stores have a bank each. */
template <int WIDTH>
static __device__ share share_of(const cuda_operand &operand, int64_t step_x, int64_t step_k,
                                 int64_t batch, int64_t first, int64_t size)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    share s;

    s.vectors = step_x == 1 && operand.vectors;
    if (s.vectors) {
        s.k = threadIdx.x / (WIDTH / 4);
        s.x = threadIdx.x % (WIDTH / 4) * 4;
        s.dk = THREADS / (WIDTH / 4);
        s.dx = 0;
    } else if (step_x == 1) {
        s.k = threadIdx.x / WIDTH;
        s.x = threadIdx.x % WIDTH;
        s.dk = THREADS / WIDTH;
        s.dx = 0;
    } else {
        s.k = lane % 8 + warp % 2 * 8;
        s.x = lane / 8 + warp / 2 * 4;
        s.dk = 0;
        s.dx = 16;
    }
    s.step = s.dk * step_k + s.dx * step_x;
    s.step_k = step_k;
    s.from = (const float *)operand.data + batch * operand.stride + (first + s.x) * step_x +
             s.k * step_k;
    s.to = (s.k * (WIDTH + PAD) + s.x) * 4;
    s.to_step = (s.dk * (WIDTH + PAD) + s.dx) * 4;
    s.left = (int)(size - first < WIDTH ? size - first : WIDTH);
    return s;
}

/* Bytes of a copy of WIDTH elements that are inside. */
template <int COUNT> static __device__ uint32_t valid_nbytes(const share &s, int i, int k_left)
{
    int n = s.left - s.x - i * s.dx;

    n = n < 0 ? 0 : n > COUNT ? COUNT : n;
    return s.k + i * s.dk < k_left ? n * 4 : 0;
}

/* Enqueues the copies for k … k + TILE_K. What lies outside becomes 0; its address is not used. */
template <int WIDTH>
static __device__ __forceinline__ void bring(uint32_t stage, const share &s, int64_t k,
                                             int64_t k_all, const void *anywhere)
{
    const int singles = WIDTH * TILE_K / THREADS, vectors = singles / 4;
    const float *from = s.from + k * s.step_k;
    uint32_t to = stage + s.to;
    int k_left = (int)(k_all - k < TILE_K ? k_all - k : TILE_K);
    bool whole = s.left == WIDTH && k_left == TILE_K;

    if (s.vectors) {
#pragma unroll
        for (int i = 0; i < vectors; i++) {
            uint32_t n = whole ? 16 : valid_nbytes<4>(s, i, k_left);

            cp_async16(to + i * s.to_step, n ? from + i * s.step : anywhere, n);
        }
    } else if (whole) {
#pragma unroll
        for (int i = 0; i < singles; i++)
            cp_async4(to + i * s.to_step, from + i * s.step, 4);
    } else {
#pragma unroll
        for (int i = 0; i < singles; i++) {
            uint32_t n = valid_nbytes<1>(s, i, k_left);

            cp_async4(to + i * s.to_step, n ? from + i * s.step : anywhere, n);
        }
    }
}

/* `COUNT` floats of a row, in groups of four that are 64 floats apart. */
template <int COUNT>
static __device__ __forceinline__ void take(float (&values)[COUNT], const float *row)
{
#pragma unroll
    for (int i = 0; i < COUNT / 4; i++) {
        float4 x = *(const float4 *)(row + i * 64);

        values[4 * i] = x.x;
        values[4 * i + 1] = x.y;
        values[4 * i + 2] = x.z;
        values[4 * i + 3] = x.w;
    }
}

/* What one stage holds is multiplied; values for the next k are loaded while this one's are used.
 */
template <int TM>
static __device__ __forceinline__ void multiply_stage(float (&sums)[TM][8], const float *a,
                                                      const float *b)
{
    const int lda = TM * 16 + PAD, ldb = TILE_N + PAD;
    float x[2][TM], y[2][8];

    take(x[0], a);
    take(y[0], b);
#pragma unroll
    for (int k = 0; k < TILE_K; k++) {
        if (k + 1 < TILE_K) {
            take(x[(k + 1) % 2], a + (k + 1) * lda);
            take(y[(k + 1) % 2], b + (k + 1) * ldb);
        }
#pragma unroll
        for (int i = 0; i < TM; i++)
#pragma unroll
            for (int j = 0; j < 8; j++)
                sums[i][j] += x[k % 2][i] * y[k % 2][j];
    }
}

template <int TM> struct stage {
    float a[TILE_K][TM * 16 + PAD], b[TILE_K][TILE_N + PAD];
};

/* 64 rows at a time go through shared memory, which turns columns of threads into rows of C. */
template <int TM>
static __device__ __forceinline__ void finish_sums(const cuda_product &p, float *memory,
                                                   const tile_place &at, const float (&sums)[TM][8],
                                                   int row, int col)
{
    const int ld = TILE_N + PAD;

    static_assert(64 * ld * sizeof(float) <= STAGES * sizeof(stage<TM>), "rows do not fit");
#pragma unroll
    for (int part = 0; part < TM / 4; part++) {
        __syncthreads(); /* what was there has been read */
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 8; j += 4) {
                const float *x = &sums[part * 4 + i][j];

                *(float4 *)(memory + (row + i) * ld + col + j / 4 * 64) =
                    make_float4(x[0], x[1], x[2], x[3]);
            }
        __syncthreads();
        finish_tile<64, TILE_N, ld, THREADS>(p, memory, at.batch, at.row + part * 64, at.col);
    }
}

template <int TM>
static __device__ __forceinline__ void multiply_tile(const cuda_product &p, stage<TM> *stages,
                                                     const tile_place &at, int row, int col)
{
    const int tile_m = TM * 16;
    share a = share_of<tile_m>(p.a, p.a.rs, p.a.cs, at.batch, at.row, p.m);
    share b = share_of<TILE_N>(p.b, p.b.cs, p.b.rs, at.batch, at.col, p.n);
    int64_t steps = (p.k + TILE_K - 1) / TILE_K;
    uint32_t base = shared_address(stages);
    float sums[TM][8] = {};
    int use = 0, fill = STAGES - 1;

    for (int i = 0; i < STAGES - 1; i++) {
        if (i < steps) {
            uint32_t to = base + i * (uint32_t)sizeof(stage<TM>);

            bring<tile_m>(to, a, (int64_t)i * TILE_K, p.k, p.a.data);
            bring<TILE_N>(to + (uint32_t)sizeof(stages->a), b, (int64_t)i * TILE_K, p.k, p.b.data);
        }
        cp_async_commit();
    }
    for (int64_t step = 0; step < steps; step++) {
        /* This thread's copies of the stage have come; after the barrier everybody's have, and
         * nobody reads the stage that is filled next. */
        cp_async_wait<STAGES - 2>();
        __syncthreads();
        if (step + STAGES - 1 < steps) {
            uint32_t to = base + fill * (uint32_t)sizeof(stage<TM>);
            int64_t k = (step + STAGES - 1) * TILE_K;

            bring<tile_m>(to, a, k, p.k, p.a.data);
            bring<TILE_N>(to + (uint32_t)sizeof(stages->a), b, k, p.k, p.b.data);
        }
        cp_async_commit();
        multiply_stage<TM>(sums, &stages[use].a[0][row], &stages[use].b[0][col]);
        use = use + 1 == STAGES ? 0 : use + 1;
        fill = fill + 1 == STAGES ? 0 : fill + 1;
    }
    finish_sums<TM>(p, (float *)stages, at, sums, row, col);
}

/* A warp's threads are 4 x 8: it reads 16 neighbouring values of A, and 32 of B. */
template <int TM>
static __global__ void __launch_bounds__(THREADS, TM == 8 ? 2 : 1) multiply(const cuda_product p)
{
    stage<TM> *stages = (stage<TM> *)dynamic_shared();
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int row = (warp / 2 * 4 + lane / 8) * 4, col = (warp % 2 * 8 + lane % 8) * 4;
    int64_t tiles = (p.n + TILE_N - 1) / TILE_N * ((p.m + TM * 16 - 1) / (TM * 16)) * p.batch;

    for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        multiply_tile<TM>(p, stages, place_of(p, tile, TM * 16, TILE_N), row, col);
        __syncthreads(); /* nobody reads the stages of this tile any more */
    }
}

/* The larger tile needs fewer loads for each FFMA, but only where there is one for each SM. */
gpunvme_ops_status_t cuda_multiply_coarsened(const struct cuda_product *p, void *workspace,
                                             void *stream, struct cuda_launch *launch)
{
    static const cuda_tiling large = {256, TILE_N, 16, 8, THREADS, STAGES * sizeof(stage<16>)};
    static const cuda_tiling small = {128, TILE_N, 8, 8, THREADS, STAGES * sizeof(stage<8>)};

    (void)workspace;
    if (cuda_tiles(p, large.tile_m, large.tile_n) >= cuda_units())
        return cuda_launch_tiles((const void *)multiply<16>, p, &large, stream, launch);
    return cuda_launch_tiles((const void *)multiply<8>, p, &small, stream, launch);
}
