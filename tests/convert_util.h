/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What conversions of memory/convert.h must give, from the values that each code of a format stands
 * for: the nearest one, found by looking at all of them.
 */
#ifndef TESTS_CONVERT_UTIL_H
#define TESTS_CONVERT_UTIL_H

#include <math.h>

#include "memory/convert.h"
#include "memory_util.h"

struct format {
    unsigned ebits, mbits;
    bool has_inf;
};

static const struct format formats[] = {
    [MEM_F16] = {5, 10, true}, [MEM_BF16] = {8, 7, true}, [MEM_F8_E4M3] = {4, 3, false}};

/* The value of a code without sign. */
static inline double value_of(const struct format *f, uint32_t code)
{
    int bias = (1 << (f->ebits - 1)) - 1;
    uint32_t e = code >> f->mbits, m = code & ((1u << f->mbits) - 1);

    return e ? ldexp((double)(m | 1u << f->mbits), (int)e - bias - (int)f->mbits)
             : ldexp((double)m, 1 - bias - (int)f->mbits);
}

/* The greatest finite code. */
static inline uint32_t last_code(const struct format *f)
{
    uint32_t all = (1u << (f->ebits + f->mbits)) - 1;

    return f->has_inf ? all - (1u << f->mbits) : all - 1;
}

static inline uint32_t expected_code(unsigned to, float x)
{
    const struct format *f = &formats[to];
    uint32_t sign = (mem_f32_bits(x) >> 31) << (f->ebits + f->mbits), low = 0, high = last_code(f);
    double a = fabs((double)x), below, above;

    if (isnan(x))
        return sign | (to == MEM_F16 ? 0x7e00 : to == MEM_BF16 ? 0x7fc0 : 0x7f);
    if (a >= value_of(f, high)) { /* half a step further the next power of two is nearer */
        double step = value_of(f, high) - value_of(f, high - 1);

        return sign | (high + (f->has_inf && a >= value_of(f, high) + step / 2));
    }
    while (high - low > 1) {
        uint32_t middle = (low + high) / 2;

        if (value_of(f, middle) <= a)
            low = middle;
        else
            high = middle;
    }
    below = a - value_of(f, low);
    above = value_of(f, high) - a;
    return sign | (below < above || (below == above && low % 2 == 0) ? low : high);
}

static inline float float_of(unsigned from, uint32_t code)
{
    const struct format *f = &formats[from];
    uint32_t magnitude = code & 0x7fff;
    float sign = code & 0x8000 ? -1.0f : 1.0f;

    if (magnitude > last_code(f) + 1)
        return copysignf(NAN, sign);
    return sign * (magnitude > last_code(f) ? INFINITY : (float)value_of(f, magnitude));
}

/* Numbers of F32 with all upper halves, and lower ones next to where rounding changes. */
static inline size_t make_f32(uint32_t *out)
{
    static const uint16_t lower[] = {0,      1,      0x0fff, 0x1000, 0x1001, 0x3000,
                                     0x7fff, 0x8000, 0x8001, 0xefff, 0xf000, 0xffff};
    enum { N = sizeof(lower) / sizeof(lower[0]) };

    for (size_t i = 0; out && i < 65536 * (size_t)N; i++)
        out[i] = (uint32_t)(i / N) << 16 | lower[i % N];
    return 65536 * (size_t)N;
}

/* A table of made numbers: all codes, or for F32 those of make_f32(); the caller frees it. */
static inline void *make_numbers(unsigned from, size_t *n)
{
    uint16_t *codes;
    uint32_t *numbers;

    *n = from == MEM_F32 ? make_f32(NULL) : 65536;
    codes = malloc(*n * mem_number_nbytes(from));
    numbers = (uint32_t *)(void *)codes;
    assert_non_null(codes);
    if (from == MEM_F32)
        make_f32(numbers);
    for (size_t i = 0; from != MEM_F32 && i < *n; i++)
        codes[i] = (uint16_t)i;
    return codes;
}

#endif
