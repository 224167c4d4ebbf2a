/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Rung 6, hopper, for f32. wgmma takes 32-bit operands that lie along m or n from registers only,
 * and only as its first. So one that does is the first, whichever it is (B is by C^T = B^T A^T). If
 * both lie along k, A is. All else is as in hopper.cu.
 */
#include "ops/hopper/loop.cuh"
#include "ops/matmul/finish.cuh"
#include "ops/matmul/hopper.h"

#ifdef HAVE_HOPPER
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

template <int MN, int EXCHANGED> struct tf32_epilogue {
    enum { BEGINS = 0 };
    const hopper_work &work;
    unsigned char *dynamic;
    uint32_t out;
    int group;

    __device__ __forceinline__ tf32_epilogue(const hopper_work &x, const ring &mem,
                                             unsigned char *memory, int of_group)
        : work(x), dynamic(memory), out(mem.out + of_group * HOPPER_OUT_NBYTES), group(of_group)
    {
    }
    __device__ __forceinline__ void expect(const hopper_place &)
    {
    }
    __device__ __forceinline__ void begin(float (&)[128])
    {
    }
    __device__ __forceinline__ void end(const float (&sums)[128], const hopper_place &at,
                                        int64_t line)
    {
        if (work.copies_out)
            copy_out<MN, EXCHANGED>(work, out, sums, (int)at.batch, (int)line, (int)at.col, group);
        else
            write_out<MN, EXCHANGED>(work, dynamic, out, sums, at.batch, line, at.col, group);
    }
    __device__ __forceinline__ void finish()
    {
        if (work.copies_out && threadIdx.x % 128 == 0)
            tensor_store_wait_read<0>();
    }
};
#endif

template <int MN, int EXCHANGED>
static __global__ void __launch_bounds__(HOPPER_THREADS, 1)
    multiply_tf32(const __grid_constant__ hopper_work work)
{
#ifdef HAVE_HOPPER
    hopper_block<hopper_raster, tensor_source<4, MN, 0, HOPPER_TILE_N>, multiply_from_registers<MN>,
                 tf32_epilogue<MN, EXCHANGED>>(work.schedule, work.operands, 0, work);
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
