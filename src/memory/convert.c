/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Conversion on the CPU, and the cutting of what the kernel does. Knows no CUDA.
 */
#include "memory/convert.h"

#include <float.h>

#define MAX_OF_E4M3 448.0f

/* Functions for one row: convert_FROM_TO(src, dst, n, scale), which the compiler vectorises. */
#define ROW(from, FROM, src_t, to, TO, dst_t)                                                      \
    static void from##_##to(const void *restrict src, void *restrict dst, size_t n, float scale)   \
    {                                                                                              \
        for (size_t i = 0; i < n; i++) {                                                           \
            src_t in;                                                                              \
            dst_t out;                                                                             \
                                                                                                   \
            memcpy(&in, (const char *)src + i * sizeof(in), sizeof(in));                           \
            out = (dst_t)mem_narrow(TO, mem_widen(FROM, in), scale);                               \
            memcpy((char *)dst + i * sizeof(out), &out, sizeof(out));                              \
        }                                                                                          \
    }
#define ROWS(from, FROM, src_t)                                                                    \
    ROW(from, FROM, src_t, f32, MEM_F32, uint32_t)                                                 \
    ROW(from, FROM, src_t, f16, MEM_F16, uint16_t)                                                 \
    ROW(from, FROM, src_t, bf16, MEM_BF16, uint16_t)                                               \
    ROW(from, FROM, src_t, f8, MEM_F8_E4M3, uint8_t)                                               \
    static uint32_t from##_max(const void *src, size_t n)                                          \
    {                                                                                              \
        uint32_t max = 0;                                                                          \
                                                                                                   \
        for (size_t i = 0; i < n; i++) {                                                           \
            uint32_t a;                                                                            \
            src_t in;                                                                              \
                                                                                                   \
            memcpy(&in, (const char *)src + i * sizeof(in), sizeof(in));                           \
            a = mem_finite(mem_widen(FROM, in));                                                   \
            max = a > max ? a : max;                                                               \
        }                                                                                          \
        return max;                                                                                \
    }
ROWS(f32, MEM_F32, uint32_t)
ROWS(f16, MEM_F16, uint16_t)
ROWS(bf16, MEM_BF16, uint16_t)

typedef void row_fn(const void *restrict src, void *restrict dst, size_t n, float scale);
typedef uint32_t max_fn(const void *src, size_t n);

static row_fn *const row_fns[][MEM_F8_E4M3 + 1] = {
    [MEM_F32] = {NULL, f32_f32, f32_f16, f32_bf16, f32_f8},
    [MEM_F16] = {NULL, f16_f32, f16_f16, f16_bf16, f16_f8},
    [MEM_BF16] = {NULL, bf16_f32, bf16_f16, bf16_bf16, bf16_f8},
};
static max_fn *const max_fns[] = {[MEM_F32] = f32_max, [MEM_F16] = f16_max, [MEM_BF16] = bf16_max};

static const void *row_of(const struct mem_convert *c, uint64_t r)
{
    return (const void *)(uintptr_t)(c->src + r * c->stride);
}

void mem_convert_host(struct mem_convert *c)
{
    uint8_t *dst = (uint8_t *)(uintptr_t)c->dst;
    size_t nbytes = (size_t)c->row * mem_number_nbytes(c->to);

    c->max = 0;
    for (uint64_t r = 0; r < c->nrows; r++, dst += nbytes) {
        if (c->to == MEM_BYTES) {
            memcpy(dst, row_of(c, r), nbytes);
        } else if (c->to == MEM_MAX) {
            uint32_t max = max_fns[c->from](row_of(c, r), (size_t)c->row);

            c->max = max > c->max ? max : c->max;
        } else {
            row_fns[c->from][c->to](row_of(c, r), dst, (size_t)c->row, c->scale);
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
