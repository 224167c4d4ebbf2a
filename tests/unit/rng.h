/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Random numbers for tests: the same from the same seed, everywhere.
 */
#ifndef TESTS_RNG_H
#define TESTS_RNG_H

#include <stdlib.h>

#include "base/random.h"

/* lo … hi */
static inline uint64_t rng_between(struct base_random *r, uint64_t lo, uint64_t hi)
{
    return lo + base_random_below(r, hi - lo + 1);
}

/* True once in n. */
static inline int rng_one_in(struct base_random *r, uint64_t n)
{
    return base_random_below(r, n) == 0;
}

/* A hash of x: every bit of it changes about half of the result's. */
static inline uint64_t rng_hash(uint64_t x)
{
    struct base_random r = {.state = x};

    return base_random_u64(&r);
}

/* A number from the environment, or its default. */
static inline uint64_t env_number(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);

    return text && *text ? strtoull(text, NULL, 0) : otherwise;
}

#endif
