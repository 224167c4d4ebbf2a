/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Tensors of raw samples: checks, and the work on the CPU.
 */
#include <math.h>

#include "base/fail.h"
#include "gpunvme/memory.h"
#include "memory/cuda.h"
#include "memory/samples.h"

static const uint8_t nbytes_of[GPUNVME_NNUMBERS] = {
    [GPUNVME_NUMBER_U8] = 1,   [GPUNVME_NUMBER_U16] = 2, [GPUNVME_NUMBER_U32] = 4,
    [GPUNVME_NUMBER_I32] = 4,  [GPUNVME_NUMBER_I64] = 8, [GPUNVME_NUMBER_F16] = 2,
    [GPUNVME_NUMBER_BF16] = 2, [GPUNVME_NUMBER_F32] = 4,
};

size_t gpunvme_number_nbytes(uint32_t number)
{
    return number < GPUNVME_NNUMBERS ? nbytes_of[number] : 0;
}

/* ---- Checks ------------------------------------------------------------------------------------
 */

static bool is_real(uint32_t number)
{
    return number == GPUNVME_NUMBER_F16 || number == GPUNVME_NUMBER_BF16 ||
           number == GPUNVME_NUMBER_F32;
}

static bool is_normalised(const struct gpunvme_convert *how)
{
    bool any = how->scale != 0;

    for (unsigned c = 0; c < GPUNVME_CONVERT_CHANNELS; c++)
        any = any || how->mean[c] != 0 || how->std[c] != 0;
    return any;
}

static gpunvme_err_t check_numbers(const struct gpunvme_convert *how)
{
    if (how->from >= GPUNVME_NNUMBERS || how->from == GPUNVME_NUMBER_I64)
        return base_fail(GPUNVME_ERR_INVALID, "from is %u", how->from);
    if (!is_real(how->to) && how->to != GPUNVME_NUMBER_I32 && how->to != GPUNVME_NUMBER_I64)
        return base_fail(GPUNVME_ERR_INVALID, "to is %u: F32, F16, BF16, I32 or I64", how->to);
    if (is_real(how->from) && !is_real(how->to))
        return base_fail(GPUNVME_ERR_INVALID, "to is a whole number, and from is not");
    if (!is_real(how->to) && is_normalised(how))
        return base_fail(GPUNVME_ERR_INVALID, "scale, mean and std are of F32, F16 and BF16 alone");
    return GPUNVME_OK;
}

static gpunvme_err_t check_shape(const struct gpunvme_convert *how)
{
    const uint32_t channels = how->channels ? how->channels : 1;
    const uint64_t size = nbytes_of[how->from];

    if (channels > GPUNVME_CONVERT_CHANNELS || how->row % channels)
        return base_fail(GPUNVME_ERR_INVALID, "channels is %u: 1 to %u, and a divisor of row, %llu",
                         channels, GPUNVME_CONVERT_CHANNELS, (unsigned long long)how->row);
    if (how->channels_first > 1 || how->reserved)
        return base_fail(GPUNVME_ERR_INVALID, "%s is %u",
                         how->reserved ? "reserved" : "channels_first",
                         how->reserved ? how->reserved : how->channels_first);
    if (how->row > INT64_MAX / 8 || how->stride > INT64_MAX / 8 ||
        (how->nrows &&
         how->nrows > INT64_MAX / 8 / (how->row > how->stride ? how->row + 1 : how->stride + 1)))
        return base_fail(GPUNVME_ERR_INVALID, "more than 2^60 bytes");
    if (how->nrows > 1 && how->stride < how->row * size)
        return base_fail(GPUNVME_ERR_INVALID, "stride is %llu: a row has %llu bytes",
                         (unsigned long long)how->stride, (unsigned long long)(how->row * size));
    return GPUNVME_OK;
}

static gpunvme_err_t check_memory(const struct gpunvme_convert *how)
{
    const uintptr_t src = (uintptr_t)how->src, dst = (uintptr_t)how->dst;
    const uint64_t size = nbytes_of[how->from], dst_size = nbytes_of[how->to];
    const uint64_t src_nbytes = (how->nrows - 1) * how->stride + how->row * size;

    if (!src || !dst)
        return base_fail(GPUNVME_ERR_INVALID, "%s is NULL", src ? "dst" : "src");
    if (src % size || (how->nrows > 1 && how->stride % size) || dst % dst_size)
        return base_fail(GPUNVME_ERR_INVALID, "%s is not aligned to its numbers",
                         src % size       ? "src"
                         : dst % dst_size ? "dst"
                                          : "stride");
    if (src < dst + how->nrows * how->row * dst_size && dst < src + src_nbytes)
        return base_fail(GPUNVME_ERR_INVALID, "src and dst overlap");
    return GPUNVME_OK;
}

static gpunvme_err_t take_factors(const struct gpunvme_convert *how, struct mem_samples *s)
{
    const double scale = how->scale != 0 ? how->scale : 1;
    bool any_std = false;

    for (unsigned c = 0; c < s->channels; c++)
        any_std = any_std || how->std[c] != 0;
    for (unsigned c = 0; c < s->channels; c++) {
        const double std = any_std ? how->std[c] : 1;

        if (!isfinite(scale) || !isfinite(how->mean[c]) || !isfinite(std) || std == 0)
            return base_fail(GPUNVME_ERR_INVALID, "channel %u: scale %g, mean %g, std %g", c, scale,
                             how->mean[c], std);
        s->factor[c] = (float)(scale / std);
        s->shift[c] = (float)(-how->mean[c] / std);
    }
    return GPUNVME_OK;
}

/* ---- On the CPU --------------------------------------------------------------------------------
 */

static inline __attribute__((always_inline)) void convert_rows(const struct mem_samples *s,
                                                               unsigned from, unsigned to)
{
    const size_t size = nbytes_of[from], dst_size = nbytes_of[to];
    const size_t next = s->planes ? s->pixels * dst_size : dst_size; /* channel of a pixel */
    const size_t step = s->planes ? dst_size : s->channels * dst_size;

    for (uint64_t row = 0; row < s->nrows; row++) {
        const uint8_t *src = s->src + row * s->stride;
        uint8_t *dst = s->dst + row * s->pixels * s->channels * dst_size;

        for (uint32_t c = 0; c < s->channels; c++)
            for (uint64_t i = 0; i < s->pixels; i++)
                mem_sample_convert(from, to, src + (i * s->channels + c) * size,
                                   dst + c * next + i * step, s->factor[c], s->shift[c]);
    }
}

/* A loop of its own for each pair of numbers. */
#define REAL(from)                                                                                 \
    {                                                                                              \
        if (s->to == GPUNVME_NUMBER_F32)                                                           \
            convert_rows(s, from, GPUNVME_NUMBER_F32);                                             \
        else if (s->to == GPUNVME_NUMBER_F16)                                                      \
            convert_rows(s, from, GPUNVME_NUMBER_F16);                                             \
        else if (s->to == GPUNVME_NUMBER_BF16)                                                     \
            convert_rows(s, from, GPUNVME_NUMBER_BF16);                                            \
    }
#define WHOLE(from)                                                                                \
    {                                                                                              \
        if (s->to == GPUNVME_NUMBER_I32)                                                           \
            convert_rows(s, from, GPUNVME_NUMBER_I32);                                             \
        else if (s->to == GPUNVME_NUMBER_I64)                                                      \
            convert_rows(s, from, GPUNVME_NUMBER_I64);                                             \
        else                                                                                       \
            REAL(from)                                                                             \
    }

static void convert_on_cpu(const struct mem_samples *s)
{
    if (s->from == GPUNVME_NUMBER_U8)
        WHOLE(GPUNVME_NUMBER_U8)
    else if (s->from == GPUNVME_NUMBER_U16)
        WHOLE(GPUNVME_NUMBER_U16)
    else if (s->from == GPUNVME_NUMBER_U32)
        WHOLE(GPUNVME_NUMBER_U32)
    else if (s->from == GPUNVME_NUMBER_I32)
        WHOLE(GPUNVME_NUMBER_I32)
    else if (s->from == GPUNVME_NUMBER_F16)
        REAL(GPUNVME_NUMBER_F16)
    else if (s->from == GPUNVME_NUMBER_BF16)
        REAL(GPUNVME_NUMBER_BF16)
    else
        REAL(GPUNVME_NUMBER_F32)
}

gpunvme_err_t gpunvme_convert(const struct gpunvme_convert *how, void *stream)
{
    struct mem_samples s;
    gpunvme_err_t err;

    if (!how)
        return base_fail(GPUNVME_ERR_INVALID, "how is NULL");
    if (how->mem > GPUNVME_MEM_GPU || (how->mem != GPUNVME_MEM_GPU && stream))
        return base_fail(
            GPUNVME_ERR_INVALID,
            how->mem > GPUNVME_MEM_GPU ? "mem is %u" : "a stream, and memory of kind %u", how->mem);
    err = check_numbers(how);
    if (!err)
        err = check_shape(how);
    if (err)
        return err;
    s = (struct mem_samples){.src = how->src,
                             .dst = how->dst,
                             .stride = how->stride,
                             .nrows = how->nrows,
                             .from = how->from,
                             .to = how->to,
                             .channels = how->channels ? how->channels : 1,
                             .planes = how->channels_first};
    s.pixels = how->row / s.channels;
    err = take_factors(how, &s);
    if (err || !s.nrows || !s.pixels)
        return err;
    err = check_memory(how);
    if (err)
        return err;
    if (how->mem == GPUNVME_MEM_GPU && !gpunvme_mem_gpu_is_host())
        return mem_cuda_user_stream_convert(stream, &s);
    convert_on_cpu(&s);
    return GPUNVME_OK;
}
