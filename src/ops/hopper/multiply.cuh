/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What a warp group does with the stages of a tile: products of 64 rows, both operands from shared
 * memory (types of 16 and 8 bits), or the first one from registers (tf32).
 */
#ifndef OPS_HOPPER_MULTIPLY_CUH
#define OPS_HOPPER_MULTIPLY_CUH

#include "gpunvme/ops/core.h"
#include "ops/hopper/ring.cuh"
#include "ops/hopper/wgmma.cuh"

/* Of what DTYPE says below: A is of the first and B of the second type of fp8. */
enum { HOPPER_E4M3_E5M2 = GPUNVME_OPS_NALLDTYPES, HOPPER_E5M2_E4M3 };

#ifdef HAVE_HOPPER
template <int DTYPE, int COUNT>
static __device__ __forceinline__ void wgmma_fp8(float (&sums)[COUNT], uint64_t a, uint64_t b,
                                                 int accumulate)
{
    if (DTYPE == GPUNVME_OPS_E4M3)
        wgmma_e4m3(sums, a, b, accumulate);
    else if (DTYPE == GPUNVME_OPS_E5M2)
        wgmma_e5m2(sums, a, b, accumulate);
    else if (DTYPE == HOPPER_E4M3_E5M2)
        wgmma_e4m3_e5m2(sums, a, b, accumulate);
    else
        wgmma_e5m2_e4m3(sums, a, b, accumulate);
}

template <int DTYPE>
static __device__ __forceinline__ void wgmma_fp8_new(float (&sums)[64], uint64_t a, uint64_t b)
{
    if (DTYPE == GPUNVME_OPS_E4M3)
        wgmma_e4m3_new(sums, a, b);
    else if (DTYPE == GPUNVME_OPS_E5M2)
        wgmma_e5m2_new(sums, a, b);
    else if (DTYPE == HOPPER_E4M3_E5M2)
        wgmma_e4m3_e5m2_new(sums, a, b);
    else
        wgmma_e5m2_e4m3_new(sums, a, b);
}

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

        if constexpr (DTYPE >= GPUNVME_OPS_E4M3)
            wgmma_fp8<DTYPE>(sums, xi, yi, accumulate);
        else if (DTYPE == GPUNVME_OPS_F16)
            wgmma_f16<MN_A, MN_B>(sums, xi, yi, accumulate);
        else
            wgmma_bf16<MN_A, MN_B>(sums, xi, yi, accumulate);
    }
    wgmma_commit();
}

/* Sums are added to what was begun. While one stage is multiplied, the next is waited for. */
template <int DTYPE, int MN_A, int MN_B, int TILE_N> struct multiply_from_shared {
    enum { COLS = TILE_N };

    template <typename EPILOGUE>
    static __device__ __forceinline__ void tile(int steps, const ring &mem, turn &t,
                                                float (&sums)[TILE_N / 2], const EPILOGUE &,
                                                int group, uint32_t size)
    {
        int before = 0;

        for (int step = 0; step < steps; step++) {
            uint32_t a = mem.stages + t.stage * hopper_stage_nbytes(TILE_N);

            mbarrier_wait(mem.full + t.stage * 8, t.parity);
            multiply_stage<DTYPE, MN_A, MN_B>(sums, a + group * HOPPER_BLOCK, a + HOPPER_A_NBYTES,
                                              step == 0 && !EPILOGUE::BEGINS);
            if (step) {
                wgmma_wait<1>();
                release(mem, before, size);
            }
            before = t.stage;
            advance(t, TILE_N);
        }
        wgmma_wait_for(sums);
        release(mem, before, size);
    }
};

/*
 * fp8, 128 columns at a time: the products of a stage, which is 128 of k, are a part that the
 * tensor core sums. It is then added, times the stage's scales by block if there are such, to sums
 * in f32. The epilogue has the scales of a step: of a thread's two rows, and of each 128 columns.
 */
template <int TILE_N> struct hopper_scales {
    float row[2], col[TILE_N / 128];
};

template <int BY_BLOCK, int TILE_N>
static __device__ __forceinline__ void add_part(float (&sums)[TILE_N / 2], const float (&part)[64],
                                                int p, const hopper_scales<TILE_N> &scales)
{
    float factors[2] = {scales.row[0] * scales.col[p], scales.row[1] * scales.col[p]};

#pragma unroll
    for (int i = 0; i < 64; i++)
        if (BY_BLOCK)
            sums[p * 64 + i] += factors[i / 2 % 2] * part[i];
        else
            sums[p * 64 + i] += part[i];
}

/* NEW: the part begins by wgmma_fp8_new(). Otherwise `never` is as below. */
template <int DTYPE, int NEW>
static __device__ __forceinline__ void multiply_part(float (&part)[64], uint32_t a, uint32_t b,
                                                     int never)
{
    uint64_t x = hopper_tile_descriptor(a, 0), y = hopper_tile_descriptor(b, 0);

    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint64_t xi = x + i * hopper_descriptor_step(0), yi = y + i * hopper_descriptor_step(0);

        if (NEW && !i)
            wgmma_fp8_new<DTYPE>(part, xi, yi);
        else
            wgmma_fp8<DTYPE>(part, xi, yi, i ? 1 : never);
    }
    wgmma_commit();
}

/*
 * 256 columns: registers are there for one part. While one warp group adds, the other multiplies.
 * `steps < 0` is false, which the compiler must not know: it would take other registers for each
 * part, and there are not as many.
 */
template <int DTYPE, int TILE_N, int BY_BLOCK> struct multiply_in_parts {
    enum { COLS = TILE_N, PARTS = TILE_N / 128 };

    template <typename EPILOGUE>
    static __device__ __forceinline__ void tile(int steps, const ring &mem, turn &t,
                                                float (&sums)[TILE_N / 2], const EPILOGUE &epilogue,
                                                int group, uint32_t size)
    {
        float part[64] = {};

#pragma unroll
        for (int i = 0; i < TILE_N / 2; i++)
            sums[i] = 0;
#pragma unroll 1
        for (int step = 0; step < steps; step++) {
            uint32_t a = mem.stages + t.stage * hopper_stage_nbytes(TILE_N);
            hopper_scales<TILE_N> scales = epilogue.scales(step);

            mbarrier_wait(mem.full + t.stage * 8, t.parity);
#pragma unroll
            for (int p = 0; p < PARTS; p++) {
                multiply_part<DTYPE, 0>(part, a + group * HOPPER_BLOCK,
                                        a + HOPPER_A_NBYTES + p * 2 * HOPPER_BLOCK, steps < 0);
                wgmma_wait_for(part);
                if (p == PARTS - 1)
                    release(mem, t.stage, size);
                add_part<BY_BLOCK>(sums, part, p, scales);
            }
            advance(t, TILE_N);
        }
    }
};

/* 128 columns: registers are there for two parts. One is multiplied while the other is added. */
template <int DTYPE, int BY_BLOCK> struct multiply_in_two_parts {
    enum { COLS = 128 };
    typedef hopper_scales<128> scales;

    template <typename EPILOGUE>
    static __device__ __forceinline__ void start(float (&part)[64], scales &of_part,
                                                 const ring &mem, turn &t, const EPILOGUE &epilogue,
                                                 int step, int group)
    {
        uint32_t a = mem.stages + t.stage * hopper_stage_nbytes(COLS);

        of_part = epilogue.scales(step);
        mbarrier_wait(mem.full + t.stage * 8, t.parity);
        multiply_part<DTYPE, 1>(part, a + group * HOPPER_BLOCK, a + HOPPER_A_NBYTES, 0);
        advance(t, COLS);
    }
    /* The part of stage `stage`, when at most LEFT are under way. */
    template <int LEFT>
    static __device__ __forceinline__ void add(float (&sums)[64], float (&part)[64],
                                               const scales &of_part, const ring &mem, int stage,
                                               uint32_t size)
    {
        wgmma_wait_leaving<LEFT>(part);
        release(mem, stage, size);
        add_part<BY_BLOCK>(sums, part, 0, of_part);
    }
    template <typename EPILOGUE>
    static __device__ __forceinline__ void tile(int steps, const ring &mem, turn &t,
                                                float (&sums)[64], const EPILOGUE &epilogue,
                                                int group, uint32_t size)
    {
        float x[64], y[64];
        scales of_x, of_y;
        int step = 1, stage_x = t.stage, stage_y = 0;

#pragma unroll
        for (int i = 0; i < 64; i++)
            sums[i] = 0;
        start(x, of_x, mem, t, epilogue, 0, group);
#pragma unroll 1
        for (; step + 1 < steps; step += 2) {
            stage_y = t.stage;
            start(y, of_y, mem, t, epilogue, step, group);
            add<1>(sums, x, of_x, mem, stage_x, size);
            stage_x = t.stage;
            start(x, of_x, mem, t, epilogue, step + 1, group);
            add<1>(sums, y, of_y, mem, stage_y, size);
        }
        if (step < steps) {
            stage_y = t.stage;
            start(y, of_y, mem, t, epilogue, step, group);
            add<1>(sums, x, of_x, mem, stage_x, size);
            add<0>(sums, y, of_y, mem, stage_y, size);
        } else {
            add<0>(sums, x, of_x, mem, stage_x, size);
        }
    }
};

/*
 * tf32. wgmma takes 32-bit operands that lie along m or n from registers only, and only as its
 * first. Warps that multiply read it from shared memory themselves: fragments of a stage while the
 * one before is multiplied. A stage is empty when both operands have been read: fragments have when
 * they are multiplied. A thread's fragments of a stage are two lines, and each fourth of 32 k.
 */
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
static __device__ __forceinline__ void multiply_stage(const ring &mem, turn &t, float (&sums)[128],
                                                      wgmma_fragments &now, wgmma_fragments &last,
                                                      int &before, int group, uint32_t size)
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

template <int MN> struct multiply_from_registers {
    enum { COLS = HOPPER_TILE_N };

    template <typename EPILOGUE>
    static __device__ __forceinline__ void tile(int steps, const ring &mem, turn &t,
                                                float (&sums)[128], const EPILOGUE &, int group,
                                                uint32_t size)
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
};
#endif

#endif
