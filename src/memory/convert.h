/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Copies that take rows out of a matrix and convert numbers on the way. What one element becomes is
 * defined here for the CPU and for the GPU, by integer arithmetic, so that both give the same bits.
 *
 * Numbers are rounded to the nearest, ties to even.
 *
 *     to F32                 exact; a NaN keeps its bits
 *     to F16, BF16           what is too large becomes infinite; a NaN becomes the quiet one of its
 *                            sign, 0x7e00 or 0x7fc0
 *     to F8_E4M3             of the value divided by the scale; what is above 448, infinities
 *                            included, becomes 448; a NaN becomes 0x7f, with its sign
 */
#ifndef MEMORY_CONVERT_H
#define MEMORY_CONVERT_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "gpunvme/fn.h"

#ifdef __cplusplus
extern "C" {
#endif

enum mem_number {
    MEM_BYTES, /* to itself: a copy; an element is a byte */
    MEM_F32,
    MEM_F16,
    MEM_BF16,
    MEM_F8_E4M3, /* no source */
    MEM_MAX,     /* no source: nothing is stored but the greatest finite absolute value */
};

/* `nrows` rows of `row` elements each, which are to lie in `dst` without gaps. */
struct mem_convert {
    uint64_t src, dst;   /* addresses; `dst` is of no use to MEM_MAX */
    uint64_t stride;     /* bytes from one row of the source to the next */
    uint64_t row, nrows; /* */
    uint64_t user;       /* the caller's own */
    float scale;         /* of F8_E4M3: > 0 */
    uint32_t max;        /* of MEM_MAX, a result: the bits of an F32 */
    uint8_t from, to;    /* enum mem_number */
};

/* Bytes of an element; 0: MEM_MAX. */
GPUNVME_FN uint32_t mem_number_nbytes(unsigned number)
{
    return number == MEM_F32 ? 4 : number == MEM_F16 || number == MEM_BF16 ? 2 : number != MEM_MAX;
}

/* Does it on the CPU, in memory that it reaches. */
void mem_convert_host(struct mem_convert *c);

/*
 * Cuts *c, from element *done on, into what a block of the kernel does at once: writes up to `room`
 * pieces, returns how many, and moves *done behind them. 0: all of it is done.
 */
size_t mem_convert_cut(const struct mem_convert *c, uint64_t *done, struct mem_convert *pieces,
                       size_t room);

#define MEM_CONVERT_UNIT 16384u /* bytes of the source that a piece has, at most */

/* The scale of F8_E4M3 for numbers of which the greatest has these bits: it becomes 448. */
float mem_convert_scale(uint32_t max);

#ifdef __cplusplus
}
#endif

/* ---- One element -------------------------------------------------------------------------------
 */

#define MEM_F32_INF 0x7f800000u

GPUNVME_FN uint32_t mem_f32_bits(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

GPUNVME_FN float mem_f32_of(uint32_t bits)
{
    float x;

    memcpy(&x, &bits, sizeof(x));
    return x;
}

/* Bits of an F32 from those of a number of another kind. */
GPUNVME_FN uint32_t mem_widen_f16(uint32_t h)
{
    uint32_t sign = (h & 0x8000u) << 16, a = h & 0x7fffu;
    uint32_t normal = (a << 13) + (a < 0x7c00u ? 112u << 23 : 224u << 23);
    uint32_t subnormal = mem_f32_bits((float)(int32_t)a * 0x1p-24f);

    return sign | (a < 0x400u ? subnormal : normal);
}

GPUNVME_FN uint32_t mem_widen_bf16(uint32_t h)
{
    return h << 16;
}

/* Drops `n` bits of a number's absolute value, rounding to the nearest, ties to even. */
GPUNVME_FN uint32_t mem_round_off(uint32_t a, unsigned n)
{
    return (a + (1u << (n - 1)) - 1 + (a >> n & 1)) >> n;
}

GPUNVME_FN uint32_t mem_narrow_bf16(uint32_t x)
{
    uint32_t sign = x >> 16 & 0x8000u, a = x & 0x7fffffffu;

    return sign | (a > MEM_F32_INF ? 0x7fc0u : mem_round_off(a, 16));
}

/*
 * Subnormal numbers are multiples of their least one: of 2^-24, and in F8_E4M3 of 2^-9. An F32 that
 * has its last bit there does the rounding: the sum with 2^-1, or 2^14.
 */
GPUNVME_FN uint32_t mem_narrow_f16(uint32_t x)
{
    uint32_t sign = x >> 16 & 0x8000u, a = x & 0x7fffffffu;
    uint32_t subnormal = mem_f32_bits(mem_f32_of(a) + 0.5f) - 0x3f000000u;
    uint32_t finite = a < 0x38800000u ? subnormal : mem_round_off(a - (112u << 23), 13);

    return sign | (a > MEM_F32_INF ? 0x7e00u : a >= 0x477ff000u ? 0x7c00u : finite);
}

GPUNVME_FN uint32_t mem_narrow_f8_e4m3(uint32_t x)
{
    uint32_t sign = x >> 24 & 0x80u, a = x & 0x7fffffffu;
    uint32_t subnormal = mem_f32_bits(mem_f32_of(a) + 16384.0f) - 0x46800000u;
    uint32_t finite = a < 0x3c800000u ? subnormal : mem_round_off(a - (120u << 23), 20);

    return sign | (a > MEM_F32_INF ? 0x7fu : a >= 0x43e00000u ? 0x7eu : finite);
}

GPUNVME_FN uint32_t mem_widen(unsigned from, uint32_t x)
{
    return from == MEM_F32 ? x : from == MEM_F16 ? mem_widen_f16(x) : mem_widen_bf16(x);
}

/* Of a NaN, a division by the GPU does not keep the sign. */
GPUNVME_FN uint32_t mem_divide(uint32_t x, float scale)
{
    return (x & 0x7fffffffu) > MEM_F32_INF ? x : mem_f32_bits(mem_f32_of(x) / scale);
}

GPUNVME_FN uint32_t mem_narrow(unsigned to, uint32_t x, float scale)
{
    return to == MEM_F32    ? x
           : to == MEM_F16  ? mem_narrow_f16(x)
           : to == MEM_BF16 ? mem_narrow_bf16(x)
                            : mem_narrow_f8_e4m3(mem_divide(x, scale));
}

/* The bits of a number's absolute value, 0 if it is not finite. */
GPUNVME_FN uint32_t mem_finite(uint32_t x)
{
    uint32_t a = x & 0x7fffffffu;

    return a & (0u - (a < MEM_F32_INF));
}

#endif
