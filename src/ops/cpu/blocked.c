/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The second rung: tiles that stay in the first cache, and the loops in the order i, k, j, so that
 * the innermost one walks along rows and the compiler makes vectors of it. A tile of A and of B is
 * copied before it is used (as f32), so that operands of every order and type are read alike.
 */
#include <string.h>

#include "ops/cpu/dtype.h"
#include "ops/cpu/product.h"

#define T CPU_BLOCK

struct tiles {
    float a[T][T], b[T][T], c[T][T];
};

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* `along`: k runs along rows, as in A. */
static void copy(const struct cpu_operand *x, const struct ops_scales *scales, int64_t i0,
                 int64_t rows, int64_t j0, int64_t cols, bool along, float tile[T][T])
{
    for (int64_t i = 0; i < rows; i++) {
        int64_t at = (i0 + i) * x->rs + j0 * x->cs;

        if (x->dtype == GPUNVME_OPS_F32)
            for (int64_t j = 0; j < cols; j++)
                tile[i][j] = ((const float *)x->data)[at + j * x->cs];
        else
            for (int64_t j = 0; j < cols; j++)
                tile[i][j] = cpu_load(x->data, at + j * x->cs, x->dtype);
        if (scales->data)
            for (int64_t j = 0; j < cols; j++)
                tile[i][j] *= along ? ops_scale_at(scales, i0 + i, j0 + j)
                                    : ops_scale_at(scales, j0 + j, i0 + i);
    }
}

/* All T columns are summed: what lies beyond the matrix is not stored, and never read. */
static void multiply(struct tiles *t, int64_t rows, int64_t depth)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t q = 0; q < depth; q++) {
            float a = t->a[i][q];

            for (int64_t j = 0; j < T; j++)
                t->c[i][j] += a * t->b[q][j];
        }
}

void cpu_multiply_blocked(const struct cpu_engine *engine, const struct cpu_product *p,
                          void *workspace)
{
    struct tiles t;

    (void)engine;
    (void)workspace;
    memset(t.b, 0, sizeof(t.b));
    for (int64_t i = 0; i < p->m; i += T)
        for (int64_t j = 0; j < p->n; j += T) {
            int64_t rows = least(T, p->m - i), cols = least(T, p->n - j);

            memset(t.c, 0, sizeof(t.c));
            for (int64_t q = 0; q < p->k; q += T) {
                int64_t depth = least(T, p->k - q);

                copy(&p->a, &p->scale_a, i, rows, q, depth, true, t.a);
                copy(&p->b, &p->scale_b, q, depth, j, cols, false, t.b);
                multiply(&t, rows, depth);
            }
            cpu_finish(p, t.c[0], T, i, rows, j, cols);
        }
}
