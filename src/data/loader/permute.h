/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Permutations of 0 … n - 1 by formula: a Feistel network over pairs (l, r) with l below a and r
 * below b, where a and b are about the square root of n and a * b is just above it. A result that
 * is not below n goes through the network again (cycle walking), which one number in sqrt(n) needs.
 *
 * Black and Rogaway, "Ciphers with Arbitrary Finite Domains" (2002), has both: the network over
 * Z_a × Z_b, with addition in place of XOR, and cycle walking. The round function is a mixer of
 * 64 bits and no cipher: this is for shuffling, never for secrets.
 */
#ifndef DATA_LOADER_PERMUTE_H
#define DATA_LOADER_PERMUTE_H

#include <stdint.h>

#define PERMUTE_ROUNDS 32u /* at most */

/* The domain of a permutation. */
struct permute_domain {
    uint64_t n;      /* below 2^62 */
    uint64_t a, b;   /* at most 2^31 + 1 */
    unsigned rounds; /* even; small domains need more */
};

/* Which of the permutations: independent of the domain. */
struct permute_key {
    uint64_t rounds[PERMUTE_ROUNDS];
};

/* n must not be 0. */
void permute_domain_set(struct permute_domain *domain, uint64_t n);
void permute_key_set(struct permute_key *key, uint64_t seed, uint64_t salt);

/* A good mixer: a bijection in which each bit depends on all (splitmix64's end). */
static inline uint64_t permute_mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* A number below `n`, the same for the same x and key. */
static inline uint64_t permute_round(uint64_t x, uint64_t key, uint64_t n)
{
    x = (x ^ key) * 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 32)) * 0xbf58476d1ce4e5b9u;
    return (uint64_t)(((unsigned __int128)x * n) >> 64);
}

/*
 * Where x goes, both below n. `tweak` chooses among permutations of one key without setting up
 * another: epochs, windows. It must be well mixed.
 */
static inline uint64_t permute(const struct permute_domain *d, const struct permute_key *key,
                               uint64_t tweak, uint64_t x)
{
    do {
        uint64_t l = x / d->b, r = x % d->b;

        for (unsigned i = 0; i < d->rounds; i += 2) {
            l += permute_round(r, key->rounds[i] ^ tweak, d->a);
            l -= l >= d->a ? d->a : 0;
            r += permute_round(l, key->rounds[i + 1] ^ tweak, d->b);
            r -= r >= d->b ? d->b : 0;
        }
        x = l * d->b + r;
    } while (x >= d->n);
    return x;
}

#endif
