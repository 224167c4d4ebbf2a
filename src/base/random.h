/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A small seeded generator of pseudo-random numbers (splitmix64): the same seed gives the same
 * numbers on every machine. For simulations and tests, never for secrets. Not for several
 * threads at once.
 */
#ifndef BASE_RANDOM_H
#define BASE_RANDOM_H

#include <stdint.h>

struct base_random {
    uint64_t state;
};

static inline uint64_t base_random_u64(struct base_random *r)
{
    uint64_t z = r->state += 0x9e3779b97f4a7c15ULL;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
}

/* Uniform in [0, 1), in steps of 2^-53. */
static inline double base_random_real(struct base_random *r)
{
    return (double)(base_random_u64(r) >> 11) * 0x1p-53;
}

/* Uniform in [0, n), n > 0; the bias is at most n / 2^64. */
static inline uint64_t base_random_below(struct base_random *r, uint64_t n)
{
    return (uint64_t)(((unsigned __int128)base_random_u64(r) * n) >> 64);
}

#endif
