/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How the engine moves bytes: the lanes of a warp do one lane's transfer after the other together,
 * 16 bytes each, with the loads of several in flight before the first store. On the CPU it is
 * memcpy() and its like. Knows nothing of commands.
 */
#ifndef SIM_ENGINE_MOVE_H
#define SIM_ENGINE_MOVE_H

#include <stdint.h>
#include <string.h>

#include "gpunvme/fn.h"
#include "gpunvme/warp.h"

#define SIM_MOVE_NOTHING 0u
#define SIM_MOVE_COPY    1u
#define SIM_MOVE_COMPARE 2u
#define SIM_MOVE_ZERO    3u /* `from` is not looked at */

#if defined(__CUDA_ARCH__)

#define SIM_MOVE_LANES  0xffffffffu
#define SIM_MOVE_FLIGHT 8  /* loads of a lane in flight */
#define SIM_MOVE_MOST   16 /* … of short pieces */
#define SIM_MOVE_FEW    4  /* … where there are no more */
#define SIM_MOVE_ROW    512u
#define SIM_MOVE_SHORT  8192u /* most bytes of a piece that is moved in rows with others */

/*
 * 16 bytes, if `on`; past the first-level cache, as no byte is used twice. Written
 * out so that the load goes where its value stays: what the compiler makes of a load under a
 * condition copies the value, and so waits for it before the next load.
 */
GPUNVME_FN uint4 sim_move_load(const uint8_t *from, int on)
{
    uint4 v = make_uint4(0, 0, 0, 0);

    asm volatile("{\n\t.reg .pred on;\n\t"
                 "setp.ne.s32 on, %5, 0;\n\t"
                 "@on ld.cg.v4.u32 {%0, %1, %2, %3}, [%4];\n\t}"
                 : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
                 : "l"(from), "r"(on));
    return v;
}

/*
 * One piece from each lane of `rest`, all at multiples of 16, in rows of 512 bytes: `flight` (a
 * constant, at most SIM_MOVE_FLIGHT) rows at a time. `end` is that of the longest piece. Loads are
 * under no condition, so that they need no register before: those too many get bytes that are read
 * anyhow.
 */
GPUNVME_FN void sim_move_rows(uint32_t rest, uint8_t *to, const uint8_t *from, uint32_t nbytes,
                              uint32_t end, const int flight)
{
    uint32_t at = gpunvme_warp_lane() * 16, row = 0, any = gpunvme_lowest_bit(rest);

    while (rest) {
        uint4 v[SIM_MOVE_FLIGHT];
        uint32_t todo = rest, first = row, on = 0;

#pragma unroll
        for (int i = 0; i < flight; i++) {
            uint32_t of = rest ? gpunvme_lowest_bit(rest) : any, where = row + at;
            const uint8_t *f =
                (const uint8_t *)gpunvme_warp_shfl64(SIM_MOVE_LANES, (uint64_t)from, of);
            uint32_t n = gpunvme_warp_shfl32(SIM_MOVE_LANES, nbytes, of);
            int mine = rest && where < n;

            on |= (mine ? 1u : 0) << i;
            v[i] = __ldcg((const uint4 *)(f + (mine ? where : 0)));
            row += SIM_MOVE_ROW;
            rest = row < end ? rest : rest & (rest - 1);
            row = row < end ? row : 0;
        }
#pragma unroll
        for (int i = 0; i < flight; i++) {
            uint32_t of = todo ? gpunvme_lowest_bit(todo) : any, where = first + at;
            uint8_t *t = (uint8_t *)gpunvme_warp_shfl64(SIM_MOVE_LANES, (uint64_t)to, of);

            if (on & 1u << i)
                *(uint4 *)(t + where) = v[i];
            first += SIM_MOVE_ROW;
            todo = first < end ? todo : todo & (todo - 1);
            first = first < end ? first : 0;
        }
    }
}

/*
 * The same for pieces of at most one row, of the first n lanes: most batches are so, and each row
 * costs half the instructions. `flight` is at most SIM_MOVE_MOST.
 */
GPUNVME_FN void sim_move_single_rows(uint32_t n, uint8_t *to, const uint8_t *from, uint32_t nbytes,
                                     const int flight)
{
    const uint8_t *any = (const uint8_t *)gpunvme_warp_shfl64(SIM_MOVE_LANES, (uint64_t)from, 0);
    uint32_t at = gpunvme_warp_lane() * 16;

    for (uint32_t first = 0; first < n; first += (uint32_t)flight) {
        uint4 v[SIM_MOVE_MOST];
        uint32_t on = 0;

#pragma unroll
        for (int i = 0; i < flight; i++) {
            uint32_t of = first + (uint32_t)i; /* of lanes past the last: nothing */
            const uint8_t *f =
                (const uint8_t *)gpunvme_warp_shfl64(SIM_MOVE_LANES, (uint64_t)from, of & 31);
            int mine = of < n && at < gpunvme_warp_shfl32(SIM_MOVE_LANES, nbytes, of & 31);

            on |= (mine ? 1u : 0) << i;
            v[i] = __ldcg((const uint4 *)(mine ? f + at : any));
        }
#pragma unroll
        for (int i = 0; i < flight; i++) {
            uint8_t *t = (uint8_t *)gpunvme_warp_shfl64(SIM_MOVE_LANES, (uint64_t)to,
                                                        (first + (uint32_t)i) & 31);

            if (on & 1u << i)
                *(uint4 *)(t + at) = v[i];
        }
    }
}

/* One long piece at multiples of 16. */
GPUNVME_FN void sim_move_long(uint8_t *to, const uint8_t *from, uint64_t nbytes)
{
    for (uint64_t at = gpunvme_warp_lane() * 16; at < nbytes;
         at += SIM_MOVE_FLIGHT * SIM_MOVE_ROW) {
        uint4 v[SIM_MOVE_FLIGHT];

#pragma unroll
        for (int i = 0; i < SIM_MOVE_FLIGHT; i++)
            v[i] = sim_move_load(from + at + i * SIM_MOVE_ROW, at + i * SIM_MOVE_ROW < nbytes);
#pragma unroll
        for (int i = 0; i < SIM_MOVE_FLIGHT; i++)
            if (at + i * SIM_MOVE_ROW < nbytes)
                *(uint4 *)(to + at + i * SIM_MOVE_ROW) = v[i];
    }
}

/* The same for addresses that are multiples of 4 only. */
GPUNVME_FN void sim_move_dwords(uint8_t *to, const uint8_t *from, uint64_t nbytes)
{
    for (uint64_t at = gpunvme_warp_lane() * 4; at < nbytes; at += SIM_MOVE_FLIGHT * 128) {
        uint32_t v[SIM_MOVE_FLIGHT];

#pragma unroll
        for (int i = 0; i < SIM_MOVE_FLIGHT; i++)
            if (at + i * 128 < nbytes)
                v[i] = __ldcg((const uint32_t *)(from + at + i * 128));
#pragma unroll
        for (int i = 0; i < SIM_MOVE_FLIGHT; i++)
            if (at + i * 128 < nbytes)
                *(uint32_t *)(to + at + i * 128) = v[i];
    }
}

static __host__ __device__ __noinline__ int sim_move_odd(uint32_t op, uint8_t *to,
                                                         const uint8_t *from, uint64_t nbytes)
{
    uint32_t width = ((uint64_t)to | (uint64_t)from | nbytes) & 3 ? 1 : 4;
    int differs = 0;

    if (op == SIM_MOVE_COPY && width == 4) {
        sim_move_dwords(to, from, nbytes);
        return 0;
    }
    for (uint64_t at = gpunvme_warp_lane() * width; at < nbytes; at += 32 * width) {
        if (op == SIM_MOVE_COMPARE)
            differs |= width == 4 ? __ldcg((const uint32_t *)(to + at)) !=
                                        __ldcg((const uint32_t *)(from + at))
                                  : __ldcg(to + at) != __ldcg(from + at);
        else if (width == 4)
            *(uint32_t *)(to + at) = 0;
        else
            to[at] = op == SIM_MOVE_ZERO ? 0 : __ldcg(from + at);
    }
    return gpunvme_warp_ballot(SIM_MOVE_LANES, differs) != 0;
}

/*
 * Does what each lane wants: called by all lanes. Returns whether this lane's COMPARE found a
 * difference.
 */
static __device__ __noinline__ int sim_move(uint32_t op, uint8_t *to, const uint8_t *from,
                                            uint64_t nbytes)
{
    int plain = op == SIM_MOVE_COPY && !(((uint64_t)to | (uint64_t)from | nbytes) & 15);
    uint32_t others = gpunvme_warp_ballot(SIM_MOVE_LANES, op != SIM_MOVE_NOTHING && nbytes);
    int differs = 0;

    for (; others; others &= others - 1) {
        uint32_t of = gpunvme_lowest_bit(others);
        uint32_t how = gpunvme_warp_shfl32(SIM_MOVE_LANES, plain ? 0 : op, of);
        uint8_t *t = (uint8_t *)gpunvme_warp_shfl64(SIM_MOVE_LANES, (uint64_t)to, of);
        const uint8_t *f = (const uint8_t *)gpunvme_warp_shfl64(SIM_MOVE_LANES, (uint64_t)from, of);
        uint64_t n = gpunvme_warp_shfl64(SIM_MOVE_LANES, nbytes, of);

        if (!how) {
            sim_move_long(t, f, n);
        } else {
            int found = sim_move_odd(how, t, f, n);

            if (of == gpunvme_warp_lane())
                differs = found;
        }
    }
    return differs;
}

/* Copies what each lane wants, nbytes 0: nothing; called by all lanes. */
GPUNVME_FN void sim_move_copy(uint8_t *to, const uint8_t *from, uint64_t nbytes)
{
    int in_rows = nbytes <= SIM_MOVE_SHORT && !(((uint64_t)to | (uint64_t)from | nbytes) & 15);
    uint32_t rows = gpunvme_warp_ballot(SIM_MOVE_LANES, in_rows && nbytes), end;

    if (gpunvme_warp_ballot(SIM_MOVE_LANES, !in_rows))
        sim_move(in_rows ? SIM_MOVE_NOTHING : SIM_MOVE_COPY, to, from, nbytes);
    if (!rows)
        return;
    end = __reduce_max_sync(SIM_MOVE_LANES, in_rows ? (uint32_t)nbytes : 0);
    if (end > SIM_MOVE_ROW || rows & (rows + 1))
        sim_move_rows(rows, to, from, (uint32_t)nbytes, end, SIM_MOVE_FLIGHT);
    else if (rows >> SIM_MOVE_FLIGHT)
        sim_move_single_rows(gpunvme_popcount(rows), to, from, (uint32_t)nbytes, SIM_MOVE_MOST);
    else if (rows >> SIM_MOVE_FEW)
        sim_move_single_rows(gpunvme_popcount(rows), to, from, (uint32_t)nbytes, SIM_MOVE_FLIGHT);
    else
        sim_move_single_rows(gpunvme_popcount(rows), to, from, (uint32_t)nbytes, SIM_MOVE_FEW);
}

#else

GPUNVME_FN int sim_move(uint32_t op, uint8_t *to, const uint8_t *from, uint64_t nbytes)
{
    switch (op) {
    case SIM_MOVE_COPY:
        memcpy(to, from, nbytes);
        return 0;
    case SIM_MOVE_COMPARE:
        return memcmp(to, from, nbytes) != 0;
    case SIM_MOVE_ZERO:
        memset(to, 0, nbytes);
        return 0;
    default:
        return 0;
    }
}

GPUNVME_FN void sim_move_copy(uint8_t *to, const uint8_t *from, uint64_t nbytes)
{
    if (nbytes)
        memcpy(to, from, nbytes);
}

#endif
#endif
