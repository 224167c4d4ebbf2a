/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Setting up permutations.
 */
#include "data/loader/permute.h"

/*
 * A round moves by one of a or b numbers, so few rounds of few numbers can't make all orders
 * equally likely: with 8 rounds the orders of 4 numbers differ by percents, with 32 by less than
 * chance in 10^7 tries.
 */
#define SMALL ((uint64_t)1024)

/* The smallest whole number whose square is at least n. */
static uint64_t sqrt_up(uint64_t n)
{
    uint64_t lo = 0, hi = (uint64_t)1 << 31;

    while (lo < hi) {
        uint64_t mid = (lo + hi) / 2;

        if (mid * mid < n)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

void permute_domain_set(struct permute_domain *domain, uint64_t n)
{
    domain->n = n;
    domain->a = sqrt_up(n);
    domain->b = (n + domain->a - 1) / domain->a;
    domain->rounds = n < SMALL ? PERMUTE_ROUNDS : 8;
}

void permute_key_set(struct permute_key *key, uint64_t seed, uint64_t salt)
{
    uint64_t x = permute_mix(seed + 0x9e3779b97f4a7c15u) ^ permute_mix(salt ^ 0xa54ff53a5f1d36f1u);

    for (unsigned i = 0; i < PERMUTE_ROUNDS; i++)
        key->rounds[i] = permute_mix(x += 0x9e3779b97f4a7c15u);
}
