/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A warp of several lanes on the CPU: each lane is a thread, and those of a mask wait for each
 * other in each function that takes one, as on a GPU. To be included before anything of gpunvme's
 * that knows warps, in warp.h's place. What it shows: lanes that wait for each other for ever, as
 * they do that meet with different masks. What it does not: lanes that a compiler keeps waiting
 * where branches meet.
 */
#ifndef TESTS_SIM_LANES_H
#define TESTS_SIM_LANES_H
#define GPUNVME_WARP_H /* in its place */

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "gpunvme/fn.h"

#define GPUNVME_WARP_LANES 32u

#define LANES_MOST 8u /* that a test may have */

/* Where the lanes of a mask meet. */
struct lanes_meeting {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint32_t here, leaving;
    uint64_t values[GPUNVME_WARP_LANES];
};

static struct lanes_meeting lanes_meetings[1u << LANES_MOST];

/* Of the thread: its lane, and the lanes that are beside it in the call that it begins. */
static __thread uint32_t lanes_me;
static __thread uint32_t lanes_beside;

static inline void lanes_init(void)
{
    for (unsigned i = 0; i < 1u << LANES_MOST; i++) {
        pthread_mutex_init(&lanes_meetings[i].lock, NULL);
        pthread_cond_init(&lanes_meetings[i].changed, NULL);
        lanes_meetings[i].here = lanes_meetings[i].leaving = 0;
    }
}

/* All lanes of the mask give a value, and get those of all. */
static inline void lanes_meet(uint32_t mask, uint64_t value, uint64_t *values)
{
    struct lanes_meeting *m = &lanes_meetings[mask];
    uint32_t me = UINT32_C(1) << lanes_me;

    if (mask >> LANES_MOST || !(mask & me)) {
        fprintf(stderr, "lane %u waits for mask %x\n", lanes_me, mask);
        abort();
    }
    pthread_mutex_lock(&m->lock);
    while (m->leaving)
        pthread_cond_wait(&m->changed, &m->lock);
    m->values[lanes_me] = value;
    m->here |= me;
    if (m->here == mask) {
        m->here = 0;
        m->leaving = mask;
        pthread_cond_broadcast(&m->changed);
    }
    while (!(m->leaving & me))
        pthread_cond_wait(&m->changed, &m->lock);
    for (unsigned i = 0; i < GPUNVME_WARP_LANES; i++)
        values[i] = m->values[i];
    m->leaving &= ~me;
    if (!m->leaving)
        pthread_cond_broadcast(&m->changed);
    pthread_mutex_unlock(&m->lock);
}

GPUNVME_FN uint32_t gpunvme_warp_lane(void)
{
    return lanes_me;
}

/* Those that the test says, the first time; then a lane finds itself alone, as may be. */
GPUNVME_FN uint32_t gpunvme_warp_active(void)
{
    uint32_t beside = lanes_beside;

    lanes_beside = UINT32_C(1) << lanes_me;
    return beside;
}

GPUNVME_FN uint32_t gpunvme_warp_ballot(uint32_t mask, int condition)
{
    uint64_t values[GPUNVME_WARP_LANES];
    uint32_t bits = 0;

    lanes_meet(mask, condition != 0, values);
    for (unsigned i = 0; i < GPUNVME_WARP_LANES; i++)
        bits |= mask >> i & 1 && values[i] ? UINT32_C(1) << i : 0;
    return bits;
}

GPUNVME_FN uint64_t gpunvme_warp_shfl64(uint32_t mask, uint64_t value, uint32_t from)
{
    uint64_t values[GPUNVME_WARP_LANES];

    lanes_meet(mask, value, values);
    if (!(mask >> from & 1))
        abort();
    return values[from];
}

GPUNVME_FN uint32_t gpunvme_warp_shfl32(uint32_t mask, uint32_t value, uint32_t from)
{
    return (uint32_t)gpunvme_warp_shfl64(mask, value, from);
}

GPUNVME_FN uint32_t gpunvme_warp_min32(uint32_t mask, uint32_t value)
{
    uint64_t values[GPUNVME_WARP_LANES];

    lanes_meet(mask, value, values);
    for (unsigned i = 0; i < GPUNVME_WARP_LANES; i++)
        value = mask >> i & 1 && values[i] < value ? (uint32_t)values[i] : value;
    return value;
}

GPUNVME_FN uint32_t gpunvme_warp_match64(uint32_t mask, uint64_t value)
{
    uint64_t values[GPUNVME_WARP_LANES];
    uint32_t bits = 0;

    lanes_meet(mask, value, values);
    for (unsigned i = 0; i < GPUNVME_WARP_LANES; i++)
        bits |= mask >> i & 1 && values[i] == value ? UINT32_C(1) << i : 0;
    return bits;
}

GPUNVME_FN void gpunvme_warp_sync(uint32_t mask)
{
    uint64_t values[GPUNVME_WARP_LANES];

    lanes_meet(mask, 0, values);
}

GPUNVME_FN uint32_t gpunvme_popcount(uint32_t bits)
{
    return (uint32_t)__builtin_popcount(bits);
}

GPUNVME_FN uint32_t gpunvme_lowest_bit(uint32_t bits)
{
    return (uint32_t)__builtin_ctz(bits);
}

GPUNVME_FN uint32_t gpunvme_warp_leader(uint32_t mask)
{
    return gpunvme_lowest_bit(mask);
}

GPUNVME_FN uint32_t gpunvme_warp_rank(uint32_t mask)
{
    return gpunvme_popcount(mask & ((UINT32_C(1) << lanes_me) - 1));
}

#endif
