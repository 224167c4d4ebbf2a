/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Random numbers by counting, and stochastic rounding by them: for the CPU and for kernels, which
 * get the same bits.
 */
#ifndef OPS_CORE_PHILOX_H
#define OPS_CORE_PHILOX_H

#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define PHILOX_FN static __host__ __device__ __forceinline__
#else
#define PHILOX_FN static inline
#endif

struct philox {
    uint32_t words[4];
};

/* Philox 4x32-10 (Salmon et al., 2011): a counter of 128 bits, encrypted by a key of 64. */
PHILOX_FN struct philox philox_of(uint64_t low, uint64_t high, uint64_t key)
{
    uint32_t a = (uint32_t)low, b = (uint32_t)(low >> 32);
    uint32_t c = (uint32_t)high, d = (uint32_t)(high >> 32);
    uint32_t k = (uint32_t)key, l = (uint32_t)(key >> 32);
    struct philox x;

    for (int round = 0; round < 10; round++) {
        uint64_t p = (uint64_t)a * 0xd2511f53u, q = (uint64_t)c * 0xcd9e8d57u;

        a = (uint32_t)(q >> 32) ^ b ^ k;
        c = (uint32_t)(p >> 32) ^ d ^ l;
        b = (uint32_t)q;
        d = (uint32_t)p;
        k += 0x9e3779b9u;
        l += 0xbb67ae85u;
    }
    x.words[0] = a;
    x.words[1] = b;
    x.words[2] = c;
    x.words[3] = d;
    return x;
}

/* Eight numbers of 16 bits: number i. */
PHILOX_FN uint32_t philox_half(const struct philox *x, int i)
{
    return x->words[i / 2] >> i % 2 * 16 & 0xffff;
}

/* bf16 above or below the value, for 16 random bits; NaN and infinity stay. */
PHILOX_FN uint16_t philox_round_bf16(float value, uint32_t random)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    if ((bits & 0x7f800000) == 0x7f800000)
        return (uint16_t)(bits >> 16 | ((bits & 0x7fffffff) > 0x7f800000 ? 0x40 : 0));
    return (uint16_t)((bits + random) >> 16);
}

#endif
