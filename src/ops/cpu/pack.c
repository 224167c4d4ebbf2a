/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Packing: an operand is copied into panels that the micro-kernel reads from front to back. A panel
 * holds `width` rows of A (columns of B) for one k after the other, as f32, whatever the operand's
 * type, order and strides; what is missing in the last panel is 0.
 *
 * Both operands are seen as "lines" (rows of A, columns of B) along k: `rs` is from line to line,
 * `cs` from k to k.
 */
#include "ops/cpu/dtype.h"
#include "ops/cpu/product.h"

typedef float vec4 __attribute__((vector_size(16)));
typedef float vec4_any __attribute__((vector_size(16), aligned(4), may_alias));

/* out[k * width + line] for 4 lines and 4 k of lines that are contiguous: a transposition. */
static inline void transpose_4x4(const float *in, int64_t rs, float *out, int width)
{
    vec4 a = *(const vec4_any *)in, b = *(const vec4_any *)(in + rs);
    vec4 c = *(const vec4_any *)(in + 2 * rs), d = *(const vec4_any *)(in + 3 * rs);
    vec4 ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5);
    vec4 ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
    vec4 cd_low = __builtin_shufflevector(c, d, 0, 4, 1, 5);
    vec4 cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);

    *(vec4_any *)out = __builtin_shufflevector(ab_low, cd_low, 0, 1, 4, 5);
    *(vec4_any *)(out + width) = __builtin_shufflevector(ab_low, cd_low, 2, 3, 6, 7);
    *(vec4_any *)(out + 2 * width) = __builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5);
    *(vec4_any *)(out + 3 * width) = __builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7);
}

/* f32 lines that are contiguous along k: `count` of them. */
static void pack_along_k(const float *in, int64_t rs, int64_t count, int64_t k, int width,
                         float *out)
{
    int64_t line = 0, p;

    for (; line + 4 <= count; line += 4) {
        const float *from = in + line * rs;

        for (p = 0; p + 4 <= k; p += 4)
            transpose_4x4(from + p, rs, out + p * width + line, width);
        for (; p < k; p++)
            for (int64_t i = 0; i < 4; i++)
                out[p * width + line + i] = from[i * rs + p];
    }
    for (; line < count; line++)
        for (p = 0; p < k; p++)
            out[p * width + line] = in[line * rs + p];
}

/* f32 lines that lie side by side: rs is 1. */
static void pack_across_k(const float *in, int64_t cs, int64_t count, int64_t k, int width,
                          float *out)
{
    if (count == width && width % 4 == 0) {
        for (int64_t p = 0; p < k; p++, in += cs, out += width)
            for (int i = 0; i < width; i += 4)
                *(vec4_any *)(out + i) = *(const vec4_any *)(in + i);
        return;
    }
    for (int64_t p = 0; p < k; p++)
        for (int64_t i = 0; i < count; i++)
            out[p * width + i] = in[p * cs + i];
}

#define PACK_16(name, convert)                                                                     \
    static void name(const uint16_t *in, int64_t rs, int64_t cs, int64_t count, int64_t k,         \
                     int width, float *out)                                                        \
    {                                                                                              \
        if (rs == 1) {                                                                             \
            for (int64_t p = 0; p < k; p++)                                                        \
                for (int64_t i = 0; i < count; i++)                                                \
                    out[p * width + i] = convert(in[p * cs + i]);                                  \
            return;                                                                                \
        }                                                                                          \
        for (int64_t i = 0; i < count; i++)                                                        \
            for (int64_t p = 0; p < k; p++)                                                        \
                out[p * width + i] = convert(in[i * rs + p * cs]);                                 \
    }

PACK_16(pack_f16, cpu_from_f16)
PACK_16(pack_bf16, cpu_from_bf16)

/* Elements of 8 bits, `first` and k0 among their scales. */
static void pack_scaled(const struct cpu_operand *x, const struct ops_scales *scales,
                        const void *in, int64_t first, int64_t count, int64_t k0, int64_t k,
                        int width, float *out)
{
    for (int64_t i = 0; i < count; i++)
        for (int64_t p = 0; p < k; p++)
            out[p * width + i] = cpu_load(in, i * x->rs + p * x->cs, x->dtype) *
                                 ops_scale_at(scales, first + i, k0 + p);
}

static void pack_panel(const struct cpu_operand *x, const struct ops_scales *scales, const void *in,
                       int64_t first, int64_t count, int64_t k0, int64_t k, int width, float *out)
{
    if (cpu_is_fp8(x->dtype))
        pack_scaled(x, scales, in, first, count, k0, k, width, out);
    else if (x->dtype == GPUNVME_OPS_F16)
        pack_f16(in, x->rs, x->cs, count, k, width, out);
    else if (x->dtype == GPUNVME_OPS_BF16)
        pack_bf16(in, x->rs, x->cs, count, k, width, out);
    else if (x->rs == 1)
        pack_across_k(in, x->cs, count, k, width, out);
    else
        pack_along_k(in, x->rs, count, k, width, out);
    if (count < width)
        for (int64_t p = 0; p < k; p++)
            for (int64_t i = count; i < width; i++)
                out[p * width + i] = 0;
}

/* `first` is a line, `k0` the first k. One of rs and cs is 1. */
void cpu_pack(const struct cpu_operand *x, const struct ops_scales *scales, int64_t first,
              int64_t count, int64_t k0, int64_t k, int width, float *out)
{
    for (int64_t line = 0; line < count; line += width, out += width * k) {
        int64_t left = count - line;

        pack_panel(x, scales, cpu_at(x->data, (first + line) * x->rs + k0 * x->cs, x->dtype),
                   first + line, left < width ? left : width, k0, k, width, out);
    }
}
