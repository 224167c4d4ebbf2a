/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Rung 6, hopper: what sm_90a has for this and nothing before it had. (f32: hopper_tf32.cu.)
 *
 *  - The copy engine (TMA) brings tiles to shared memory, four stages ahead: one thread asks for
 *    them, no registers, no addresses, zeros beyond the edges.
 *  - wgmma multiplies 64 x 256 elements of C at once from shared memory, by 128 threads.
 *  - Roles: a warp group that only loads gives its registers to the two that multiply (setmaxnreg).
 *  - Two blocks of a cluster work below each other and read each column of B once for both, each
 *    its half (multicast).
 *  - Blocks stay (a persistent grid): while results of one tile go out, tiles of the next come in.
 *
 * Where A is a linear layer's dZ, warps that have nothing to load make it (ops/cuda/dz.h).
 *
 * A stage is full when its bytes have come, and empty when the warps of both blocks that read it
 * have said so, for both blocks write to it.
 */
#include "ops/cuda/dz.cuh"
#include "ops/matmul/hopper_epilogue.cuh"
#include "ops/matmul/hopper_pipeline.cuh"

#ifdef HAVE_HOPPER
template <int DTYPE, int MN_A, int MN_B, int COUNT>
static __device__ __forceinline__ void multiply_stage(float (&sums)[COUNT], uint32_t a, uint32_t b,
                                                      bool first)
{
    uint64_t x = hopper_tile_descriptor(a, MN_A), y = hopper_tile_descriptor(b, MN_B);

    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint64_t xi = x + i * hopper_descriptor_step(MN_A);
        uint64_t yi = y + i * hopper_descriptor_step(MN_B);
        int accumulate = i > 0 || !first;

        if (DTYPE == GPUNVME_OPS_F16)
            wgmma_f16<MN_A, MN_B>(sums, xi, yi, accumulate);
        else
            wgmma_bf16<MN_A, MN_B>(sums, xi, yi, accumulate);
    }
    wgmma_commit();
}

/* All of k for one tile, added to what was begun: while one stage is multiplied, the next is waited
 * for. */
template <int DTYPE, int MN_A, int MN_B, int COUNT>
static __device__ __forceinline__ void multiply_tile(int steps, const memory &mem, turn &t,
                                                     float (&sums)[COUNT], bool begun, int group,
                                                     uint32_t size)
{
    int before = 0;

    for (int step = 0; step < steps; step++) {
        uint32_t a = mem.stages + t.stage * hopper_stage_nbytes(COUNT * 2);

        mbarrier_wait(mem.full + t.stage * 8, t.parity);
        multiply_stage<DTYPE, MN_A, MN_B>(sums, a + group * HOPPER_BLOCK, a + HOPPER_A_NBYTES,
                                          step == 0 && !begun);
        if (step) {
            wgmma_wait<1>();
            release(mem, before, size);
        }
        before = t.stage;
        advance(t, COUNT * 2);
    }
    wgmma_wait_for(sums);
    release(mem, before, size);
}

/* One of two warp groups: multiplies and writes 64 rows of each of the block's tiles. */
template <int DTYPE, int MN_A, int MN_B, int TILE_N>
static __device__ __forceinline__ void consume(const hopper_work &work, const memory &mem,
                                               unsigned char *dynamic, int group)
{
    uint32_t rank = cluster_rank(), size = cluster_size();
    uint32_t out = mem.out + group * HOPPER_OUT_NBYTES;
    float *floats = (float *)(dynamic + (out - shared_address(dynamic)));
    /* Known to the compiler: sums that begin so only sometimes make it serialize wgmma (C7515). */
    const bool biased = !MN_A && !MN_B;
    uint32_t pairs = hopper_grid_size(&work.grid), step = gridDim.x / size;
    uint32_t i = blockIdx.x / size;
    hopper_place at = hopper_place_of(&work.grid, i);
    turn t = {0, 0};
    hopper_bias<TILE_N> bias;

    if (biased)
        ask_for_bias(bias, work, at.col);
    while (i < pairs) {
        hopper_place now = at;
        int64_t row = now.row + rank * HOPPER_TILE_M + group * 64;
        int64_t batch = now.batch;
        int steps = span_of(work, batch).count;
        float sums[TILE_N / 2];

        if (biased)
            begin_with_bias<DTYPE, TILE_N>(sums, bias);
        multiply_tile<DTYPE, MN_A, MN_B>(steps, mem, t, sums, biased, group, size);
        i += step;
        if (i < pairs) {
            at = hopper_place_of(&work.grid, i);
            if (biased)
                ask_for_bias(bias, work, at.col);
        }
        if (work.copies_out)
            copy_out_any<DTYPE, MN_A || MN_B>(work, out, sums, now.batch, (int)row, (int)now.col,
                                              group);
        else
            write_out(work, floats, sums, now.batch, row, now.col, group);
    }
    if (work.copies_out && threadIdx.x % 128 == 0)
        tensor_store_wait_read<0>();
}
#endif

/* Registers that the group that loads keeps, and that the others have then. */
#define FEW(makes_dz)  ((makes_dz) ? 104 : 40)
#define MANY(makes_dz) ((makes_dz) ? 200 : 232)

template <int DTYPE, int MN_A, int MN_B, int MAKES_DZ, int TILE_N>
static __global__ void __launch_bounds__(HOPPER_THREADS, 1)
    multiply(const __grid_constant__ hopper_work work)
{
#ifdef HAVE_HOPPER
    unsigned char *dynamic = dynamic_shared();
    memory mem = lay_out(dynamic);

    start(work, mem);
    if (threadIdx.x < 128) {
        registers_give_back<FEW(MAKES_DZ)>();
        if (threadIdx.x == 0)
            produce<2, MN_A, MN_B, MAKES_DZ, TILE_N>(work, mem);
        if constexpr (MAKES_DZ)
            if (threadIdx.x >= 32) {
                dz_make_later<DTYPE>(work.dz);
                dz_finish_bias(work.dz);
            }
    } else {
        if constexpr (MAKES_DZ)
            dz_make_early<DTYPE>(work.dz); /* while there is nothing to multiply yet */
        registers_take<MANY(MAKES_DZ)>();
        /* One number for the warp, so that the compiler has descriptors in uniform registers. */
        consume<DTYPE, MN_A, MN_B, TILE_N>(work, mem, dynamic,
                                           __shfl_sync(0xffffffffu, (int)threadIdx.x / 128 - 1, 0));
    }
    __syncwarp();   /* the barrier takes warps whose threads come together */
    cluster_sync(); /* nobody leaves while another may write to it */
#endif
}

const void *hopper_kernel(int dtype, int mn_a, int mn_b, int width)
{
#define WIDTHS(dtype, mn_a, mn_b)                                                                  \
    {                                                                                              \
        (const void *)multiply<dtype, mn_a, mn_b, 0, 64>,                                          \
            (const void *)multiply<dtype, mn_a, mn_b, 0, 128>,                                     \
            (const void *)multiply<dtype, mn_a, mn_b, 0, 256>                                      \
    }
#define KERNELS(dtype)                                                                             \
    {                                                                                              \
        {WIDTHS(dtype, 0, 0), WIDTHS(dtype, 0, 1)},                                                \
        {                                                                                          \
            WIDTHS(dtype, 1, 0), WIDTHS(dtype, 1, 1)                                               \
        }                                                                                          \
    }
    static const void *const kernels[2][2][2][3] = {KERNELS(GPUNVME_OPS_F16),
                                                    KERNELS(GPUNVME_OPS_BF16)};

    if (dtype == GPUNVME_OPS_F32)
        return hopper_tf32_kernel(mn_a, mn_b);
    return kernels[dtype - GPUNVME_OPS_F16][mn_a][mn_b][width / 128];
}

const void *hopper_kernel_making_dz(int dtype)
{
    return dtype == GPUNVME_OPS_F16 ? (const void *)multiply<GPUNVME_OPS_F16, 0, 1, 1, 256>
                                    : (const void *)multiply<GPUNVME_OPS_BF16, 0, 1, 1, 256>;
}

/*
 * Zeros for the kernel after this one, which counts there. cudaMemsetAsync() would break the chain
 * of programmatic dependent launches: it starts when all before it has ended, and what is after it
 * is not launched before it has.
 *
 * Why all of a stream is in order nevertheless, though each kernel waits only for the one before:
 * that one ends only after its own wait, so whoever has waited knows that all before has ended, and
 * sees what it wrote. What counts on it is that each thread waits before it touches memory:
 *
 *  - here, since the product before, a call that is still at work, may use the same workspace;
 *  - in the kernel after this one in start(), which all its threads pass, those that make dZ, those
 *    that count and wait for counts, and those that read by the copy engine;
 *  - in the product after that, which has been launched by then, maybe, there as well.
 *
 * When the next one may be launched says nothing of what it sees: that is its wait's (PTX ISA,
 * "griddepcontrol"). So the earliest moment is right. A kernel without the attribute, before or
 * after, is in order by the stream.
 *
 * A block is one warp without shared memory, for which a multiprocessor has room beside a block of
 * a product (which leaves 1024 registers and 2 KiB, of which 1 is any block's): so it is there
 * before that ends.
 */
static __global__ void __launch_bounds__(HOPPER_CLEAR_THREADS)
    clear(uint32_t *words, uint32_t count)
{
#ifdef HAVE_HOPPER
    let_next_kernel_start();
    wait_for_kernels_before();
    for (uint32_t i = blockIdx.x * HOPPER_CLEAR_THREADS + threadIdx.x; i < count;
         i += gridDim.x * HOPPER_CLEAR_THREADS)
        words[i] = 0;
#endif
}

const void *hopper_clear_kernel(void)
{
    return (const void *)clear;
}

#define TILE 32

/* Tiles of 32 x 32, read along whichever direction is contiguous and written along k. */
template <typename ELEMENT>
static __global__ void __launch_bounds__(TILE * 8)
    repack(const ELEMENT *from, int64_t stride, int64_t step_line, int64_t step_k, int64_t lines,
           int64_t k, int64_t batch, int64_t pitch, ELEMENT *to)
{
    __shared__ ELEMENT tile[TILE][TILE + 1];
    int64_t across = (k + TILE - 1) / TILE, down = (lines + TILE - 1) / TILE;
    int fast = threadIdx.x % TILE, slow = threadIdx.x / TILE;

    for (int64_t i = blockIdx.x; i < across * down * batch; i += gridDim.x) {
        int64_t col = i % across * TILE, row = i / across % down * TILE, b = i / across / down;

        for (int j = slow; j < TILE; j += 8) {
            int r = step_k == 1 ? j : fast, c = step_k == 1 ? fast : j;

            if (row + r < lines && col + c < k)
                tile[r][c] = from[b * stride + (row + r) * step_line + (col + c) * step_k];
        }
        __syncthreads();
        for (int j = slow; j < TILE; j += 8)
            if (row + j < lines && col + fast < k)
                to[(b * lines + row + j) * pitch + col + fast] = tile[j][fast];
        __syncthreads();
    }
}

gpunvme_ops_status_t hopper_repack(const struct cuda_operand *x, int64_t step_line, int64_t step_k,
                                   int64_t lines, int64_t k, int64_t batch, int64_t pitch, int size,
                                   void *to, void *stream)
{
    int64_t tiles = (lines + TILE - 1) / TILE * ((k + TILE - 1) / TILE) * batch;
    unsigned blocks = (unsigned)(tiles < 1 << 20 ? tiles : 1 << 20);

    if (size == 4)
        LAUNCH(repack<float>, blocks, TILE * 8, stream, (const float *)x->data, x->stride,
               step_line, step_k, lines, k, batch, pitch, (float *)to);
    else
        LAUNCH(repack<uint16_t>, blocks, TILE * 8, stream, (const uint16_t *)x->data, x->stride,
               step_line, step_k, lines, k, batch, pitch, (uint16_t *)to);
    return cuda_status(cudaGetLastError(), "launching a copy");
}
