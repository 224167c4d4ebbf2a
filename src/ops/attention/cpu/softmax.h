/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What becomes of a row of scores, once for every instruction set: a file sets
 *
 *   ROWS_TARGET   the attribute that lets the compiler use the instructions, or empty
 *   ROWS_LANES    floats of a vector, a divisor of ATTENTION_LANES
 *   ROWS(name)    names of its own
 *
 * and includes this, which gives `ROWS(rows)`.
 */
typedef float ROWS(vec) __attribute__((vector_size(ROWS_LANES * 4)));
typedef uint32_t ROWS(bits) __attribute__((vector_size(ROWS_LANES * 4)));
typedef float ROWS(any) __attribute__((vector_size(ROWS_LANES * 4), aligned(4), may_alias));

#define VEC  ROWS(vec)
#define BITS ROWS(bits)
#define ANY  ROWS(any)

/* Where a mask has all bits set x, else y. */
ROWS_TARGET static inline VEC ROWS(select)(BITS mask, VEC x, VEC y)
{
    return (VEC)((mask & (BITS)x) | (~mask & (BITS)y));
}

/*
 * exp(x) to 2 ulp: x is n ln 2 + r with |r| <= ln 2 / 2, and exp(r) its series to r^7, which is off
 * by 2^-27. Adding 1.5 * 2^23 rounds to an integer, which then is the lowest bits of the sum. It is
 * 0 below -86, before n leaves the exponents, and at most exp(88). NaNs stay NaNs.
 */
ROWS_TARGET static inline VEC ROWS(exp)(VEC x)
{
    const VEC zero = {0}, top = zero + 88.0f;
    VEC shifted, n, r, y;

    x = ROWS(select)((BITS)(x > top), top, x);
    shifted = x * 1.44269504f + 12582912.0f;
    n = shifted - 12582912.0f;
    r = x - n * 0.693359375f + n * 2.12194440e-4f;
    y = r * 1.98412698e-4f + 1.38888889e-3f;
    y = y * r + 8.33333333e-3f;
    y = y * r + 4.16666667e-2f;
    y = y * r + 1.66666667e-1f;
    y = y * r + 0.5f;
    y = y * r + 1.0f;
    y = y * r + 1.0f;
    y *= (VEC)(((BITS)shifted << 23) + (127u << 23));
    return ROWS(select)((BITS)(x < zero - 86.0f), zero, y);
}

/* The largest of n scores, and of `most`. */
ROWS_TARGET static float ROWS(largest)(const float *s, int64_t n, float most)
{
    VEC all = *(const ANY *)s;

    for (int64_t j = ROWS_LANES; j < n; j += ROWS_LANES) {
        VEC x = *(const ANY *)(s + j);

        all = ROWS(select)((BITS)(x > all), x, all);
    }
    for (int l = 0; l < ROWS_LANES; l++)
        most = all[l] > most ? all[l] : most;
    return most;
}

/* p[j] = exp(s[j] - shift); returns the sum. */
ROWS_TARGET static float ROWS(weigh)(const float *s, int64_t n, float shift, float *p)
{
    VEC sums = {0};
    float sum = 0;

    for (int64_t j = 0; j < n; j += ROWS_LANES) {
        VEC x = ROWS(exp)(*(const ANY *)(s + j) - shift);

        *(ANY *)(p + j) = x;
        sums += x;
    }
    for (int l = 0; l < ROWS_LANES; l++)
        sum += sums[l];
    return sum;
}

const struct attention_rows ROWS(rows) = {ROWS(largest), ROWS(weigh)};

#undef VEC
#undef BITS
#undef ANY
