/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The checksum, as one definition for the CPU and for the GPU. Bytes are taken as little-endian
 * words of 64 bits, counted from the first byte; the last is filled up with zeroes. Each word is
 * mixed with its index and the sum over all words, mod 2^64, and over the length is the checksum.
 *
 * A sum can be taken in any order, so it is the same for any number of threads. For one index
 * the mixing is a bijection of the word, so a change of one word always shows. It is not linear,
 * so words that have changed places do not cancel out.
 */
#ifndef MEMORY_CHECKSUM_H
#define MEMORY_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __CUDACC__
#define MEM_CHECKSUM_FN static __host__ __device__ __forceinline__
#else
#define MEM_CHECKSUM_FN static inline
#endif

/* Odd and without a pattern: the digits of the golden ratio and the square roots of 3 and 7. */
#define MEM_CHECKSUM_INDEX  0x9e3779b97f4a7c15u
#define MEM_CHECKSUM_WORD   0xbb67ae8584caa73bu
#define MEM_CHECKSUM_LENGTH 0xa54ff53a5f1d36f1u

/* The share of one word, given MEM_CHECKSUM_INDEX times its index (mod 2^64). */
MEM_CHECKSUM_FN uint64_t mem_checksum_mix(uint64_t word, uint64_t scaled_index)
{
    uint64_t x = word + scaled_index;

    x ^= x >> 32;
    x *= MEM_CHECKSUM_WORD;
    return x ^ (x >> 29);
}

/* The shares of bytes in host memory that begin at byte `at` of the whole, a multiple of 8. */
uint64_t mem_checksum_shares(const void *ptr, size_t nbytes, uint64_t at);

MEM_CHECKSUM_FN uint64_t mem_checksum_end(uint64_t sum, uint64_t nbytes)
{
    return sum + nbytes * MEM_CHECKSUM_LENGTH;
}

#endif
