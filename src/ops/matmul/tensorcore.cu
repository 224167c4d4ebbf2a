/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Rung 5, tensorcore: warps multiply matrices of 16 x 16 by 16 x 8 in one instruction (mma, which
 * every GPU since sm_80 has): f16 and bf16, and f32 rounded to tf32 with k = 8. Eight warps make
 * 64 x 32 each of a tile of 128 x 128; four stages of k are in shared memory, brought by cp.async.
 * Operands lie there as they do in memory, k or m and n contiguous; ldmatrix transposes where it
 * must, and tf32 is read element by element.
 */
#include "ops/matmul/finish.cuh"
#include "ops/matmul/tensorcore.cuh"

#define TILE    TENSORCORE_TILE
#define STAGES  TENSORCORE_STAGES
#define THREADS TENSORCORE_THREADS
#define OUT_LD  TENSORCORE_OUT_LD

/* One thread's share of an operand's tile: what doesn't change from stage to stage. */
struct share {
    const unsigned char *from;     /* the first vector of the next stage */
    int64_t next_copy, next_stage; /* bytes from it to the others */
    int k;                         /* where in the stage it begins */
    int valid[COPIES];             /* elements that there are but for the end of k */
    bool whole;                    /* all of the tile can be copied in vectors */
    uint32_t to;                   /* where it goes in a stage */
};

/* `line` is the distance of lines (of m or n), step_k that of k; one of them is 1. */
template <int DTYPE, int MN>
static __device__ __forceinline__ share share_of(const cuda_operand &x, const cuda_piece &piece,
                                                 int64_t line, int64_t step_k, int64_t first,
                                                 int64_t lines)
{
    typedef traits<DTYPE> t;
    const int rows = rows_of_copy<DTYPE, MN>();
    int row = threadIdx.x / (THREADS / rows), chunk = threadIdx.x % (THREADS / rows);
    int64_t at_line = first + (MN ? chunk * t::chunk : row);
    share s;

    s.k = MN ? row : chunk * t::chunk;
    s.from = (const unsigned char *)x.data +
             (piece.batch * x.stride + at_line * line + (piece.first + s.k) * step_k) * t::size;
    s.next_copy = rows * (MN ? step_k : line) * t::size;
    s.next_stage = t::depth * step_k * t::size;
    s.whole = x.vectors && first + TILE <= lines;
    s.to = place<DTYPE, MN>(row, chunk);
#pragma unroll
    for (int i = 0; i < COPIES; i++) {
        int64_t left = lines - at_line - (MN ? 0 : i * rows);

        s.valid[i] = left <= 0 ? 0 : MN && left < t::chunk ? (int)left : t::chunk;
    }
    return s;
}

/* Where there is an edge, or vectors are not aligned: zeros beyond the former. */
template <int DTYPE, int MN>
static __device__ __forceinline__ void bring_some(uint32_t to, const share &s,
                                                  const cuda_operand &x, int k_left, int i)
{
    typedef traits<DTYPE> t;
    int left = k_left - s.k - (MN ? i * rows_of_copy<DTYPE, MN>() : 0), valid = s.valid[i];
    const unsigned char *from = s.from + i * s.next_copy;

    if (left <= 0)
        valid = 0;
    else if (!MN && left < valid)
        valid = left;
    if (!valid)
        from = (const unsigned char *)x.data;
    if (x.vectors)
        cp_async16(to, from, valid * t::size);
    else if (t::f32)
        gather32(to, from, valid);
    else
        gather16(to, from, valid);
}

/* The next stage of one operand, for which `k_left` values of k are left. */
template <int DTYPE, int MN>
static __device__ __forceinline__ void bring(uint32_t stage, share &s, const cuda_operand &x,
                                             int k_left)
{
    const int rows = rows_of_copy<DTYPE, MN>();
    const uint32_t next = place<DTYPE, MN>(rows, 0) - place<DTYPE, MN>(0, 0);
    bool whole = s.whole && k_left == traits<DTYPE>::depth;

    static_assert(rows % 8 == 0, "rows of a thread's vectors differ in their swizzle");
#pragma unroll
    for (int i = 0; i < COPIES; i++)
        if (whole)
            cp_async16(stage + s.to + i * next, s.from + i * s.next_copy, 16);
        else
            bring_some<DTYPE, MN>(stage + s.to + i * next, s, x, k_left, i);
    s.from += s.next_stage;
}

/* 64 rows at a time, those of four of the warps, go through shared memory to C. */
static __device__ __forceinline__ void finish_sums(const cuda_product &p, float *out,
                                                   const tile_place &at,
                                                   const float (&sums)[4][4][4], int row, int col)
{
#pragma unroll 1
    for (int part = 0; part < TILE; part += 64) {
        share_sums(out, sums, part, row, col);
        finish_tile<64, TILE, OUT_LD, THREADS>(p, out, at.batch, at.row + part, at.col);
    }
}

template <int DTYPE, int MN_A, int MN_B>
static __device__ __forceinline__ void multiply_tile(const cuda_product &p, unsigned char *memory,
                                                     const tile_place &at)
{
    const int depth = traits<DTYPE>::depth;
    const uint32_t a_nbytes = tensorcore_nbytes(DTYPE == GPUNVME_OPS_F32, MN_A);
    const uint32_t nbytes = a_nbytes + tensorcore_nbytes(DTYPE == GPUNVME_OPS_F32, MN_B);
    int warp = threadIdx.x / 32, row = warp / 4 * 64, col = warp % 4 * 32;
    uint32_t base = shared_address(memory);
    cuda_piece piece = cuda_piece_of(&p, at.batch);
    int64_t steps = (piece.k + depth - 1) / depth;
    share a = share_of<DTYPE, MN_A>(p.a, piece, p.a.rs, p.a.cs, at.row, p.m);
    share b = share_of<DTYPE, MN_B>(p.b, piece, p.b.cs, p.b.rs, at.col, p.n);
    float sums[4][4][4] = {};

    for (int64_t step = 1 - STAGES; step < steps; step++) {
        int64_t next = step + STAGES - 1;

        if (step >= 0) {
            cp_async_wait<STAGES - 2>();
            __syncthreads();
        }
        if (next < steps) {
            uint32_t to = base + (uint32_t)(next % STAGES) * nbytes;
            int k_left = next + 1 < steps ? depth : (int)(piece.k - next * depth);

            bring<DTYPE, MN_A>(to, a, p.a, k_left);
            bring<DTYPE, MN_B>(to + a_nbytes, b, p.b, k_left);
        }
        cp_async_commit();
        if (step >= 0) {
            uint32_t from = (uint32_t)(step % STAGES) * nbytes;

            multiply_stage<DTYPE, MN_A, MN_B>(sums, memory + from, memory + from + a_nbytes, row,
                                              col);
        }
    }
    finish_sums(p, (float *)memory, at, sums, row, col);
}

template <int DTYPE, int MN_A, int MN_B>
static __global__ void __launch_bounds__(THREADS, 2) multiply(const cuda_product p)
{
    unsigned char *memory = dynamic_shared();
    int64_t tiles = (p.n + TILE - 1) / TILE * ((p.m + TILE - 1) / TILE) * p.batch;

    for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        multiply_tile<DTYPE, MN_A, MN_B>(p, memory, place_of(p, tile, TILE, TILE));
        __syncthreads(); /* nobody reads this tile's memory any more */
    }
}

gpunvme_ops_status_t cuda_multiply_tensorcore(const struct cuda_product *p, void *workspace,
                                              void *stream, struct cuda_launch *launch)
{
#define KERNELS(dtype)                                                                             \
    {                                                                                              \
        {(const void *)multiply<dtype, 0, 0>, (const void *)multiply<dtype, 0, 1>},                \
            {(const void *)multiply<dtype, 1, 0>, (const void *)multiply<dtype, 1, 1>},            \
    }
    static const void *const kernels[GPUNVME_OPS_NDTYPES][2][2] = {
        KERNELS(GPUNVME_OPS_F32), KERNELS(GPUNVME_OPS_F16), KERNELS(GPUNVME_OPS_BF16)};
    int mn_a = p->a.cs != 1, mn_b = p->b.rs != 1, f32 = p->dtype == GPUNVME_OPS_F32;
    size_t nbytes = STAGES * (tensorcore_nbytes(f32, mn_a) + tensorcore_nbytes(f32, mn_b));
    cuda_tiling tiling = {TILE, TILE, 64, 32, THREADS, nbytes};

    (void)workspace;
    return cuda_launch_tiles(kernels[p->dtype][mn_a][mn_b], p, &tiling, stream, launch);
}
