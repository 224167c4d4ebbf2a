/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What gpunvme_convert() makes of a number, the same for the CPU and for the GPU.
 */
#ifndef MEMORY_SAMPLES_H
#define MEMORY_SAMPLES_H

#include <math.h>

#include "gpunvme/convert.h"
#include "memory/convert.h"

/* A call that has been checked. */
struct mem_samples {
    const uint8_t *src;
    uint8_t *dst;
    uint64_t stride, nrows, pixels; /* of a row */
    uint32_t from, to, channels, planes;
    float factor[GPUNVME_CONVERT_CHANNELS], shift[GPUNVME_CONVERT_CHANNELS];
};

GPUNVME_FN float mem_sample_float(unsigned from, const void *at)
{
    switch (from) {
    case GPUNVME_NUMBER_U8:
        return *(const uint8_t *)at;
    case GPUNVME_NUMBER_U16:
        return *(const uint16_t *)at;
    case GPUNVME_NUMBER_U32:
        return (float)*(const uint32_t *)at;
    case GPUNVME_NUMBER_I32:
        return (float)*(const int32_t *)at;
    case GPUNVME_NUMBER_F16:
        return mem_f32_of(mem_widen_f16(*(const uint16_t *)at));
    case GPUNVME_NUMBER_BF16:
        return mem_f32_of(mem_widen_bf16(*(const uint16_t *)at));
    default:
        return *(const float *)at;
    }
}

GPUNVME_FN int64_t mem_sample_whole(unsigned from, const void *at)
{
    switch (from) {
    case GPUNVME_NUMBER_U8:
        return *(const uint8_t *)at;
    case GPUNVME_NUMBER_U16:
        return *(const uint16_t *)at;
    case GPUNVME_NUMBER_U32:
        return *(const uint32_t *)at;
    default:
        return *(const int32_t *)at;
    }
}

/* Stores the number at `src` as the number at `dst`. */
GPUNVME_FN void mem_sample_convert(unsigned from, unsigned to, const void *src, void *dst,
                                   float factor, float shift)
{
    if (to == GPUNVME_NUMBER_I32) {
        *(int32_t *)dst = (int32_t)(uint32_t)mem_sample_whole(from, src);
    } else if (to == GPUNVME_NUMBER_I64) {
        *(int64_t *)dst = mem_sample_whole(from, src);
    } else {
        const uint32_t x = mem_f32_bits(fmaf(mem_sample_float(from, src), factor, shift));

        if (to == GPUNVME_NUMBER_F32)
            *(uint32_t *)dst = x;
        else
            *(uint16_t *)dst =
                (uint16_t)(to == GPUNVME_NUMBER_F16 ? mem_narrow_f16(x) : mem_narrow_bf16(x));
    }
}

#endif
