/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Rung 6, hopper, for f32. wgmma takes 32-bit operands that lie along m or n from registers only,
 * and only as its first. So one that does is the first, whichever it is (B is by C^T = B^T A^T),
 * and warps that multiply read it from shared memory themselves: fragments of a stage while the one
 * before is multiplied. If both lie along k, A is read so, too. All else is as in hopper.cu.
 *
 * A stage is empty when both have been read: fragments have when they are multiplied.
 */
#include "ops/matmul/hopper_pipeline.cuh"

#ifdef HAVE_HOPPER
/* This thread's fragments of a stage: two lines, and each fourth of 32 k. */
template <int MN>
static __device__ __forceinline__ void load_fragments(wgmma_fragments &x, uint32_t a)
{
    uint32_t line = hopper_fragment_line(MN, threadIdx.x % 128), k = threadIdx.x % 4;

#pragma unroll
    for (int i = 0; i < 8; i++) {
        uint32_t from = a + hopper_fragment_place(MN, line, MN ? i % 2 * 4 + k : i * 4 + k);

        if (MN) {
            load_shared8(x.x[2 * i], x.x[2 * i + 1], from + i / 2 * 8 * HOPPER_WIDTH);
        } else {
            x.x[2 * i] = load_shared4(from);
            x.x[2 * i + 1] = load_shared4(from + hopper_fragment_next(0) * HOPPER_WIDTH);
        }
    }
}

/*
 * Multiplies one stage. When the one before, of fragments `last`, has been multiplied while this
 * one's were fetched, that is empty.
 */
template <int MN>
static __device__ __forceinline__ void
multiply_stage(const memory &mem, turn &t, float (&sums)[128], wgmma_fragments &now,
               wgmma_fragments &last, int &before, int group, uint32_t size)
{
    uint32_t a = mem.stages + t.stage * HOPPER_STAGE_NBYTES;
    uint64_t y = hopper_tile_descriptor(a + HOPPER_A_NBYTES, 0);

    mbarrier_wait(mem.full + t.stage * 8, t.parity);
    load_fragments<MN>(now, a + group * HOPPER_BLOCK);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4; i++)
        wgmma_tf32_by_registers(sums, now, i, y + i * hopper_descriptor_step(0),
                                i > 0 || before >= 0);
    wgmma_commit();
    if (before >= 0) {
        wgmma_wait_keeping<1>(last);
        __syncwarp(); /* all lanes have read their fragments */
        release(mem, before, size);
    }
    before = t.stage;
    advance(t, HOPPER_TILE_N);
}

/* All of k for one tile. */
template <int MN>
static __device__ __forceinline__ void multiply_tile(int steps, const memory &mem, turn &t,
                                                     float (&sums)[128], int group, uint32_t size)
{
    wgmma_fragments x = {}, y = {};
    int before = -1;

#pragma unroll 1
    for (int step = 0; step < steps; step += 2) {
        multiply_stage<MN>(mem, t, sums, x, y, before, group, size);
        if (step + 1 < steps)
            multiply_stage<MN>(mem, t, sums, y, x, before, group, size);
    }
    wgmma_wait_for(sums);
    wgmma_wait_keeping<0>(x);
    wgmma_wait_keeping<0>(y);
    __syncwarp();
    release(mem, before, size);
}

/* One part of a group's sums, 64 lines by 32 columns, to two boxes. */
template <int MN, int EXCHANGED>
static __device__ __forceinline__ void put_part(uint32_t to, const float (&sums)[128], int part,
                                                float factor)
{
    uint32_t line = hopper_fragment_line(MN, threadIdx.x % 128), col = threadIdx.x % 4 * 2;

#pragma unroll
    for (int j = 0; j < 4; j++) {
        const float *x = &sums[part * 16 + j * 4]; /* x[2 h + i]: line h, column + i */

#pragma unroll
        for (int i = 0; i < 2; i++)
            if (EXCHANGED)
                store_shared8(to + hopper_sum_place(1, line, 8 * j + col + i), factor * x[i],
                              factor * x[2 + i]);
            else
                store_shared8(
                    to + hopper_sum_place(0, line + i * hopper_fragment_next(MN), 8 * j + col),
                    factor * x[2 * i], factor * x[2 * i + 1]);
    }
}

/* Sums of 64 lines go out by the copy engine, through two buffers. */
template <int MN, int EXCHANGED>
static __device__ __forceinline__ void copy_out(const hopper_work &work, uint32_t out,
                                                const float (&sums)[128], int batch, int line,
                                                int col, int group)
{
    float alpha = work.product.alpha;
    bool first = threadIdx.x % 128 == 0;

#pragma unroll
    for (int part = 0; part < HOPPER_TF32_PARTS; part++) {
        uint32_t buffer = out + part % 2 * HOPPER_BLOCK;
        int at = col + part * 32;

        if (first)
            tensor_store_wait_read<1>();
        barrier_128(1 + group);
        put_part<MN, EXCHANGED>(buffer, sums, part, alpha);
        fence_async_proxy();
        barrier_128(1 + group);
        if (first) {
            for (int box = 0; box < 2; box++)
                tensor_store(&work.c, buffer + box * HOPPER_TF32_BOX,
                             EXCHANGED ? line + box * 32 : at, EXCHANGED ? at : line + box * 32,
                             batch);
            tensor_store_commit();
        }
    }
}

/* A part of the sums by all threads of a group, of C from (row, col) on. */
template <int EXCHANGED>
static __device__ __forceinline__ void finish_part(const cuda_product &p, const float *sums,
                                                   int64_t batch, int64_t row, int64_t col)
{
    const uint32_t across = EXCHANGED ? 16 : 8; /* vectors of a row */

#pragma unroll 1
    for (uint32_t v = threadIdx.x % 128; v < 64 * 32 / 4; v += 128) {
        uint32_t r = v / across, c = v % across * 4;
        const float *x =
            sums + hopper_sum_place(EXCHANGED, EXCHANGED ? c : r, EXCHANGED ? r : c) / 4;

        if (row + r < p.m && col + c < p.n)
            finish4_aligned(p, batch, row + r, col + c, x);
    }
}

/*
 * Likewise by threads, for what the copy engine can't do. (Code of which there is much is there
 * once; which part's sums it gets, is asked.)
 */
template <int MN, int EXCHANGED>
static __device__ __forceinline__ void
write_out(const hopper_work &work, unsigned char *dynamic, uint32_t out, const float (&sums)[128],
          int64_t batch, int64_t line, int64_t col, int group)
{
#pragma unroll 1
    for (int part = 0; part < HOPPER_TF32_PARTS; part++, col += 32) {
        uint32_t buffer = out + part % 2 * HOPPER_BLOCK;

#pragma unroll
        for (int i = 0; i < HOPPER_TF32_PARTS; i++)
            if (i == part)
                put_part<MN, EXCHANGED>(buffer, sums, i, 1);
        barrier_128(1 + group); /* that the part before has been read, too */
        finish_part<EXCHANGED>(work.product,
                               (const float *)(dynamic + (buffer - shared_address(dynamic))), batch,
                               EXCHANGED ? col : line, EXCHANGED ? line : col);
    }
}

/* One of two warp groups: multiplies and writes 64 lines of each of the block's tiles. */
template <int MN, int EXCHANGED>
static __device__ __forceinline__ void consume(const hopper_work &work, const memory &mem,
                                               unsigned char *dynamic, int group)
{
    uint32_t rank = cluster_rank(), size = cluster_size();
    uint32_t out = mem.out + group * HOPPER_OUT_NBYTES;
    uint32_t pairs = hopper_grid_size(&work.grid);
    turn t = {0, 0};

    for (uint32_t i = blockIdx.x / size; i < pairs; i += gridDim.x / size) {
        hopper_place at = hopper_place_of(&work.grid, i);
        int64_t line = at.row + rank * HOPPER_TILE_M + group * 64;
        int64_t batch = at.batch;
        int steps = span_of(work, batch).count;
        float sums[128];

        multiply_tile<MN>(steps, mem, t, sums, group, size);
        if (work.copies_out)
            copy_out<MN, EXCHANGED>(work, out, sums, (int)at.batch, (int)line, (int)at.col, group);
        else
            write_out<MN, EXCHANGED>(work, dynamic, out, sums, at.batch, line, at.col, group);
    }
    if (work.copies_out && threadIdx.x % 128 == 0)
        tensor_store_wait_read<0>();
}
#endif

template <int MN, int EXCHANGED>
static __global__ void __launch_bounds__(HOPPER_THREADS, 1)
    multiply_tf32(const __grid_constant__ hopper_work work)
{
#ifdef HAVE_HOPPER
    unsigned char *dynamic = dynamic_shared();
    memory mem = lay_out(dynamic);

    start(work, mem);
    if (threadIdx.x < 128) {
        registers_give_back<40>();
        if (threadIdx.x == 0)
            produce<4, MN, 0, 0, HOPPER_TILE_N>(work, mem);
    } else {
        registers_take<232>();
        /* One number for the warp, so that the compiler has descriptors in uniform registers. */
        consume<MN, EXCHANGED>(work, mem, dynamic,
                               __shfl_sync(0xffffffffu, (int)threadIdx.x / 128 - 1, 0));
    }
    __syncwarp();   /* the barrier takes warps whose threads come together */
    cluster_sync(); /* nobody leaves while another may write to it */
#endif
}

const void *hopper_tf32_kernel(int mn_a, int mn_b)
{
    if (mn_a && mn_b)
        return NULL;
    return mn_b   ? (const void *)multiply_tf32<1, 1>
           : mn_a ? (const void *)multiply_tf32<1, 0>
                  : (const void *)multiply_tf32<0, 0>;
}
