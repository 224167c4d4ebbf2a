/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The micro-kernel, once for every instruction set: a file sets
 *
 *   KERNEL_TARGET   the attribute that lets the compiler use the instructions, or empty
 *   KERNEL_LANES    floats of a vector
 *   KERNEL_ROWS     ROWS_6 or ROWS_12: rows of the tile; it has two vectors of columns
 *
 * and includes this, which gives `kernel`. Sums are named one by one: they must live in registers
 * in every build, and an array does not always.
 */
typedef float vec __attribute__((vector_size(KERNEL_LANES * 4)));
/* The same at any address that a float may have, over memory of any type. */
typedef float vec_any __attribute__((vector_size(KERNEL_LANES * 4), aligned(4), may_alias));

#define ROWS_6(X)  X(0) X(1) X(2) X(3) X(4) X(5)
#define ROWS_12(X) ROWS_6(X) X(6) X(7) X(8) X(9) X(10) X(11)
#define COUNT(i)   +1

#define DECLARE(i)  vec x##i = {0}, y##i = {0};
#define PREFETCH(i) __builtin_prefetch(c + (i)*ldc, 1), __builtin_prefetch(c + (i)*ldc + NR - 1, 1);
#define MULTIPLY(i)                                                                                \
    x##i += a[i] * b0;                                                                             \
    y##i += a[i] * b1;
#define STORE(i)                                                                                   \
    *(vec_any *)(c + (i)*ldc) = alpha * x##i;                                                      \
    *(vec_any *)(c + (i)*ldc + KERNEL_LANES) = alpha * y##i;
#define ADD(i)                                                                                     \
    *(vec_any *)(c + (i)*ldc) = alpha * x##i + beta * *(vec_any *)(c + (i)*ldc);                   \
    *(vec_any *)(c + (i)*ldc + KERNEL_LANES) =                                                     \
        alpha * y##i + beta * *(vec_any *)(c + (i)*ldc + KERNEL_LANES);

#define NR (2 * KERNEL_LANES)
#define MR (KERNEL_ROWS(COUNT))

KERNEL_TARGET static void kernel(int64_t k, const float *a, const float *b, float *c, int64_t ldc,
                                 const float scale[2])
{
    float alpha, beta;
    KERNEL_ROWS(DECLARE)

    KERNEL_ROWS(PREFETCH)
    for (; k > 0; k--, a += MR, b += NR) {
        vec b0 = *(const vec *)b, b1 = *(const vec *)(b + KERNEL_LANES);

        KERNEL_ROWS(MULTIPLY)
    }
    alpha = scale[0];
    beta = scale[1];
    if (beta == 0) {
        KERNEL_ROWS(STORE)
    } else {
        KERNEL_ROWS(ADD)
    }
}
