/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Conversion on the CPU, and the cutting of what the kernel does. Knows no CUDA.
 */
#include "memory/convert.h"

#include <float.h>

#define MAX_OF_E4M3 448.0f

typedef void row_fn(const void *restrict src, void *restrict dst, size_t n, float scale);
typedef uint32_t max_fn(const void *src, size_t n);

/* What one instruction set does rows by. */
struct rows {
    row_fn *to[MEM_BF16 + 1][MEM_F8_E4M3 + 1];
    max_fn *max[MEM_BF16 + 1];
};

/* Functions for one row, which the compiler vectorises, and for the greatest number of it. */
#define ROW(set, target, FROM, src_t, TO, dst_t)                                                   \
    target static void set##_##FROM##_##TO(const void *restrict src, void *restrict dst, size_t n, \
                                           float scale)                                            \
    {                                                                                              \
        for (size_t i = 0; i < n; i++) {                                                           \
            src_t in;                                                                              \
            dst_t out;                                                                             \
                                                                                                   \
            memcpy(&in, (const char *)src + i * sizeof(in), sizeof(in));                           \
            out = (dst_t)mem_narrow(MEM_##TO, mem_widen(MEM_##FROM, in), scale);                   \
            memcpy((char *)dst + i * sizeof(out), &out, sizeof(out));                              \
        }                                                                                          \
    }
#define ROWS_FROM(set, target, FROM, src_t)                                                        \
    ROW(set, target, FROM, src_t, F32, uint32_t)                                                   \
    ROW(set, target, FROM, src_t, F16, uint16_t)                                                   \
    ROW(set, target, FROM, src_t, BF16, uint16_t)                                                  \
    ROW(set, target, FROM, src_t, F8_E4M3, uint8_t)                                                \
    target static uint32_t set##_##FROM##_max(const void *src, size_t n)                           \
    {                                                                                              \
        uint32_t max = 0;                                                                          \
                                                                                                   \
        for (size_t i = 0; i < n; i++) {                                                           \
            uint32_t a;                                                                            \
            src_t in;                                                                              \
                                                                                                   \
            memcpy(&in, (const char *)src + i * sizeof(in), sizeof(in));                           \
            a = mem_finite(mem_widen(MEM_##FROM, in));                                             \
            max = a > max ? a : max;                                                               \
        }                                                                                          \
        return max;                                                                                \
    }
#define ROWS_TO(set, FROM)                                                                         \
    {                                                                                              \
        NULL, set##_##FROM##_F32, set##_##FROM##_F16, set##_##FROM##_BF16, set##_##FROM##_F8_E4M3  \
    }
#define ROWS(set, target)                                                                          \
    ROWS_FROM(set, target, F32, uint32_t)                                                          \
    ROWS_FROM(set, target, F16, uint16_t)                                                          \
    ROWS_FROM(set, target, BF16, uint16_t)                                                         \
    static const struct rows set##_rows = {                                                        \
        .to = {[MEM_F32] = ROWS_TO(set, F32),                                                      \
               [MEM_F16] = ROWS_TO(set, F16),                                                      \
               [MEM_BF16] = ROWS_TO(set, BF16)},                                                   \
        .max = {                                                                                   \
            [MEM_F32] = set##_F32_max, [MEM_F16] = set##_F16_max, [MEM_BF16] = set##_BF16_max}};

ROWS(plain, )
#ifdef __x86_64__
ROWS(avx2, __attribute__((target("avx2"))))
#endif

static const struct rows *best_rows(void)
{
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx2"))
        return &avx2_rows;
#endif
    return &plain_rows;
}

static const void *row_of(const struct mem_convert *c, uint64_t r)
{
    return (const void *)(uintptr_t)(c->src + r * c->stride);
}

void mem_convert_host(struct mem_convert *c)
{
    uint8_t *dst = (uint8_t *)(uintptr_t)c->dst;
    size_t nbytes = (size_t)c->row * mem_number_nbytes(c->to);
    const struct rows *rows = best_rows();

    c->max = 0;
    for (uint64_t r = 0; r < c->nrows; r++, dst += nbytes) {
        if (c->to == MEM_BYTES) {
            memcpy(dst, row_of(c, r), nbytes);
        } else if (c->to == MEM_MAX) {
            uint32_t max = rows->max[c->from](row_of(c, r), (size_t)c->row);

            c->max = max > c->max ? max : c->max;
        } else {
            rows->to[c->from][c->to](row_of(c, r), dst, (size_t)c->row, c->scale);
        }
    }
}

float mem_convert_scale(uint32_t max)
{
    float scale = mem_f32_of(max) / MAX_OF_E4M3;

    return !max ? 1.0f : scale < FLT_MIN ? FLT_MIN : scale;
}

size_t mem_convert_cut(const struct mem_convert *c, uint64_t *done, struct mem_convert *pieces,
                       size_t room)
{
    const uint64_t unit = MEM_CONVERT_UNIT / mem_number_nbytes(c->from);
    size_t n = 0;

    while (n < room && *done < c->row * c->nrows) {
        uint64_t r = *done / c->row, at = *done % c->row, nrows = c->nrows - r, row = c->row - at;
        struct mem_convert *piece = &pieces[n++];

        if (c->row > unit)
            nrows = 1;
        else if (nrows > unit / c->row)
            nrows = unit / c->row;
        *piece = *c;
        piece->src += r * c->stride + at * mem_number_nbytes(c->from);
        piece->dst += *done * mem_number_nbytes(c->to);
        piece->nrows = nrows;
        piece->row = row < unit ? row : unit;
        *done += piece->nrows * piece->row;
    }
    return n;
}
