/* SPDX-License-Identifier: BSD-3-Clause
 *
 * f16, bf16 and fp8 to f32 and back, by integers, so that every processor gives the same bits. To
 * f32 is exact; from f32 rounds to nearest, ties to even (IEEE 754-2019, 4.3.1). NaNs stay NaNs.
 * What is too large for fp8 becomes its largest number, also infinity, as memory/convert.h has it.
 */
#ifndef OPS_CPU_DTYPE_H
#define OPS_CPU_DTYPE_H

#include <stdbool.h>
#include <string.h>

#include "gpunvme/ops/core.h"

static inline float cpu_float_of_bits(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}

static inline uint32_t cpu_bits_of_float(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

/*
 * The exponent and mantissa are put in f32's place, and a multiplication by 2^112 makes up for the
 * difference of the biases; it also makes f16's subnormal numbers normal ones.
 */
static inline float cpu_from_f16(uint16_t h)
{
    uint32_t magnitude = (uint32_t)(h & 0x7fff) << 13;
    uint32_t bits = cpu_bits_of_float(cpu_float_of_bits(magnitude) * 0x1p112f);

    if (magnitude >= 0x0f800000) /* infinity or NaN */
        bits = magnitude | 0x7f800000;
    return cpu_float_of_bits(bits | (uint32_t)(h & 0x8000) << 16);
}

static inline uint16_t cpu_to_f16(float value)
{
    uint32_t bits = cpu_bits_of_float(value);
    uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;

    if (magnitude > 0x7f800000)
        return (uint16_t)(sign | 0x7e00 | (magnitude >> 13 & 0x1ff));
    if (magnitude >= 0x477ff000) /* rounds to 2^16 or is larger */
        return (uint16_t)(sign | 0x7c00);
    if (magnitude < 0x38800000) { /* subnormal: the addition rounds to multiples of 2^-24 */
        uint32_t rounded = cpu_bits_of_float(cpu_float_of_bits(magnitude) + 0.5f);

        return (uint16_t)(sign | (rounded - 0x3f000000));
    }
    magnitude += 0xfff + (magnitude >> 13 & 1); /* half an ulp, less where the tie is even */
    return (uint16_t)(sign | ((magnitude - 0x38000000) >> 13));
}

static inline float cpu_from_bf16(uint16_t h)
{
    return cpu_float_of_bits((uint32_t)h << 16);
}

static inline uint16_t cpu_to_bf16(float value)
{
    uint32_t bits = cpu_bits_of_float(value);

    if ((bits & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static inline bool cpu_is_fp8(int dtype)
{
    return dtype == GPUNVME_OPS_E4M3 || dtype == GPUNVME_OPS_E5M2;
}

/* As cpu_from_f16(), by 2^120. */
static inline float cpu_from_e4m3(uint8_t h)
{
    uint32_t magnitude = (uint32_t)(h & 0x7f) << 20;
    uint32_t bits = cpu_bits_of_float(cpu_float_of_bits(magnitude) * 0x1p120f);

    if ((h & 0x7f) == 0x7f)
        bits = 0x7fc00000;
    return cpu_float_of_bits(bits | (uint32_t)(h & 0x80) << 24);
}

static inline float cpu_from_e5m2(uint8_t h)
{
    return cpu_from_f16((uint16_t)(h << 8));
}

/*
 * To fp8 with `mantissa` bits and an exponent whose bias is 127 - `rebias`. `least` is the least
 * normal number; below it the addition of `unit`, 2^23 times the least number of all, rounds.
 */
static inline uint8_t cpu_to_fp8(float value, int mantissa, uint32_t rebias, float least,
                                 float unit, uint8_t largest, uint8_t nan)
{
    uint32_t bits = cpu_bits_of_float(value), sign = bits >> 24 & 0x80;
    uint32_t magnitude = bits & 0x7fffffff, cut = 23 - (uint32_t)mantissa, rounded;

    if (magnitude > 0x7f800000)
        return (uint8_t)(sign | nan);
    if (cpu_float_of_bits(magnitude) < least)
        rounded = cpu_bits_of_float(cpu_float_of_bits(magnitude) + unit) - cpu_bits_of_float(unit);
    else
        rounded =
            (magnitude - (rebias << 23) + (1u << (cut - 1)) - 1 + (magnitude >> cut & 1)) >> cut;
    return (uint8_t)(sign | (rounded < largest ? rounded : largest));
}

static inline uint8_t cpu_to_e4m3(float value)
{
    return cpu_to_fp8(value, 3, 120, 0x1p-6f, 0x1p14f, 0x7e, 0x7f);
}

static inline uint8_t cpu_to_e5m2(float value)
{
    return cpu_to_fp8(value, 2, 112, 0x1p-14f, 0x1p7f, 0x7b, 0x7f);
}

/* Element number i of an array of `dtype`. */
static inline float cpu_load(const void *data, int64_t i, int dtype)
{
    switch (dtype) {
    case GPUNVME_OPS_F16:
        return cpu_from_f16(((const uint16_t *)data)[i]);
    case GPUNVME_OPS_BF16:
        return cpu_from_bf16(((const uint16_t *)data)[i]);
    case GPUNVME_OPS_E4M3:
        return cpu_from_e4m3(((const uint8_t *)data)[i]);
    case GPUNVME_OPS_E5M2:
        return cpu_from_e5m2(((const uint8_t *)data)[i]);
    default:
        return ((const float *)data)[i];
    }
}

static inline void cpu_store(void *data, int64_t i, int dtype, float value)
{
    switch (dtype) {
    case GPUNVME_OPS_F16:
        ((uint16_t *)data)[i] = cpu_to_f16(value);
        break;
    case GPUNVME_OPS_BF16:
        ((uint16_t *)data)[i] = cpu_to_bf16(value);
        break;
    case GPUNVME_OPS_E4M3:
        ((uint8_t *)data)[i] = cpu_to_e4m3(value);
        break;
    case GPUNVME_OPS_E5M2:
        ((uint8_t *)data)[i] = cpu_to_e5m2(value);
        break;
    default:
        ((float *)data)[i] = value;
    }
}

/* The address of element i. */
static inline const void *cpu_at(const void *data, int64_t i, int dtype)
{
    return (const char *)data + i * (dtype == GPUNVME_OPS_F32 ? 4 : cpu_is_fp8(dtype) ? 1 : 2);
}

#endif
