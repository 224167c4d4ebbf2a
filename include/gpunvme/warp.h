/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A warp: threads that run together and can look at each other's values. On the GPU it has 32
 * lanes; on the CPU a thread is a warp of one lane, so that code written for warps is also code
 * for threads. Knows nothing of queues.
 *
 * `mask` names the lanes that take part, which all call the same function with the same mask.
 *
 * Source: CUDA C++ Programming Guide, "Warp Vote Functions", "Warp Shuffle Functions", "Warp Match
 * Functions".
 */
#ifndef GPUNVME_WARP_H
#define GPUNVME_WARP_H

#include <stdint.h>

#include "gpunvme/fn.h"

#if defined(__CUDA_ARCH__)

#define GPUNVME_WARP_LANES 32u

GPUNVME_FN uint32_t gpunvme_warp_lane(void)
{
    uint32_t lane;
    asm("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane;
}

/* The lanes that are active now: a snapshot, which may miss lanes that arrive a moment later. */
GPUNVME_FN uint32_t gpunvme_warp_active(void)
{
    return __activemask();
}

/* A bit for each lane whose `condition` holds. */
GPUNVME_FN uint32_t gpunvme_warp_ballot(uint32_t mask, int condition)
{
    return __ballot_sync(mask, condition);
}

/* The value of lane `from`, which is in the mask. */
GPUNVME_FN uint32_t gpunvme_warp_shfl32(uint32_t mask, uint32_t value, uint32_t from)
{
    return __shfl_sync(mask, value, (int)from);
}

GPUNVME_FN uint64_t gpunvme_warp_shfl64(uint32_t mask, uint64_t value, uint32_t from)
{
    return __shfl_sync(mask, (unsigned long long)value, (int)from);
}

/* The least of the lanes' values. */
GPUNVME_FN uint32_t gpunvme_warp_min32(uint32_t mask, uint32_t value)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
    uint32_t least = value;

    for (uint32_t rest = mask; rest; rest &= rest - 1) {
        uint32_t other = __shfl_sync(mask, value, __ffs((int)rest) - 1);

        least = other < least ? other : least;
    }
    return least;
#else
    return __reduce_min_sync(mask, value);
#endif
}

/* The lanes of the mask that have the same value as this one. */
GPUNVME_FN uint32_t gpunvme_warp_match64(uint32_t mask, uint64_t value)
{
    return __match_any_sync(mask, (unsigned long long)value);
}

/* Waits for all lanes of the mask; what each wrote before, the others see after. */
GPUNVME_FN void gpunvme_warp_sync(uint32_t mask)
{
    __syncwarp(mask);
}

GPUNVME_FN uint32_t gpunvme_popcount(uint32_t bits)
{
    return (uint32_t)__popc(bits);
}

/* The index of the lowest bit; bits is not 0. */
GPUNVME_FN uint32_t gpunvme_lowest_bit(uint32_t bits)
{
    return (uint32_t)__ffs((int)bits) - 1;
}

#else

#define GPUNVME_WARP_LANES 1u

GPUNVME_FN uint32_t gpunvme_warp_lane(void)
{
    return 0;
}

GPUNVME_FN uint32_t gpunvme_warp_active(void)
{
    return 1;
}

GPUNVME_FN uint32_t gpunvme_warp_ballot(uint32_t mask, int condition)
{
    return condition ? mask : 0;
}

GPUNVME_FN uint32_t gpunvme_warp_shfl32(uint32_t mask, uint32_t value, uint32_t from)
{
    (void)mask, (void)from;
    return value;
}

GPUNVME_FN uint32_t gpunvme_warp_min32(uint32_t mask, uint32_t value)
{
    (void)mask;
    return value;
}

GPUNVME_FN uint64_t gpunvme_warp_shfl64(uint32_t mask, uint64_t value, uint32_t from)
{
    (void)mask, (void)from;
    return value;
}

GPUNVME_FN uint32_t gpunvme_warp_match64(uint32_t mask, uint64_t value)
{
    (void)value;
    return mask;
}

GPUNVME_FN void gpunvme_warp_sync(uint32_t mask)
{
    (void)mask;
}

GPUNVME_FN uint32_t gpunvme_popcount(uint32_t bits)
{
    return (uint32_t)__builtin_popcount(bits);
}

GPUNVME_FN uint32_t gpunvme_lowest_bit(uint32_t bits)
{
    return (uint32_t)__builtin_ctz(bits);
}

#endif

/* The lowest lane of the mask, which does what is done once for all. */
GPUNVME_FN uint32_t gpunvme_warp_leader(uint32_t mask)
{
    return gpunvme_lowest_bit(mask);
}

/* How many lanes of the mask come before this one. */
GPUNVME_FN uint32_t gpunvme_warp_rank(uint32_t mask)
{
    return gpunvme_popcount(mask & ((UINT32_C(1) << gpunvme_warp_lane()) - 1));
}

#endif
