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

        if constexpr (DTYPE == GPUNVME_OPS_E4M3)
            wgmma_e4m3(sums, xi, yi, accumulate);
        else if constexpr (DTYPE == GPUNVME_OPS_E5M2)
            wgmma_e5m2(sums, xi, yi, accumulate);
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
 * fp8, 128 columns at a time: the products of a stage, which is 128 of k, are summed by the tensor
 * core and then added, times the stage's factors, to sums in f32. While one warp group adds, the
 * other multiplies. The epilogue has the factors of a step, one for each 128 columns and each of a
 * thread's two rows.
 */
template <int TILE_N> struct hopper_factors {
    float x[TILE_N / 128][2];
};

/*
 * `never` is false, which the compiler must not know: it would take other registers for each part,
 * and there are not as many.
 */
template <int DTYPE>
static __device__ __forceinline__ void multiply_part(float (&part)[64], uint32_t a, uint32_t b,
                                                     int never)
{
    uint64_t x = hopper_tile_descriptor(a, 0), y = hopper_tile_descriptor(b, 0);

    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint64_t further = i * hopper_descriptor_step(0);

        if (DTYPE == GPUNVME_OPS_E4M3)
            wgmma_e4m3(part, x + further, y + further, i ? 1 : never);
        else
            wgmma_e5m2(part, x + further, y + further, i ? 1 : never);
    }
    wgmma_commit();
}

template <int DTYPE, int TILE_N> struct multiply_in_parts {
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
            hopper_factors<TILE_N> factors;

            mbarrier_wait(mem.full + t.stage * 8, t.parity);
#pragma unroll
            for (int p = 0; p < PARTS; p++) {
                multiply_part<DTYPE>(part, a + group * HOPPER_BLOCK,
                                     a + HOPPER_A_NBYTES + p * 2 * HOPPER_BLOCK, steps < 0);
                if (!p)
                    factors = epilogue.factors(step);
                wgmma_wait_for(part);
                if (p == PARTS - 1)
                    release(mem, t.stage, size);
#pragma unroll
                for (int i = 0; i < 64; i++)
                    sums[p * 64 + i] += factors.x[p][i / 2 % 2] * part[i];
            }
            advance(t, TILE_N);
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
