/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The rungs with a micro-kernel. The loops around it are those of Goto and van de Geijn, "Anatomy
 * of High-Performance Matrix Multiplication" (ACM TOMS 34(3), 2008): nc columns of B, kc deep, are
 * packed for the last cache; mc rows of A for the second; the kernel takes a panel of each.
 *
 * C in f32 is added to in place. A C of 16 bits would be rounded at every kc: its sums are kept in
 * f32 in the workspace, for SUM_ROWS rows at a time, and rounded once.
 */
#include "ops/cpu/dtype.h"
#include "ops/cpu/product.h"

#define SUM_ROWS 960 /* a multiple of every mc */
#define MAX_TILE 384 /* of mr * nr */

struct packed {
    const struct cpu_product *p;
    const struct cpu_kernel *kernel;
    float *a, *b; /* the panels */
    float *sums;  /* NULL: C itself */
    int64_t nc;   /* the leading dimension of sums */
};

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t round_up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

/* The sizes of the three pieces, in floats. */
static void sizes(const struct cpu_kernel *kernel, const struct cpu_product *p, int64_t floats[3])
{
    int64_t kc = least(kernel->kc, p->k);
    int64_t nc = round_up(least(kernel->nc, p->n), kernel->nr);

    floats[0] = round_up(kc * round_up(least(kernel->mc, p->m), kernel->mr), 64);
    floats[1] = round_up(kc * nc, 64);
    floats[2] = p->dtype == GPUNVME_OPS_F32 ? 0 : round_up(least(SUM_ROWS, p->m) * nc, 64);
}

size_t cpu_workspace_packed(const struct cpu_engine *engine, const struct cpu_product *p)
{
    int64_t floats[3];

    sizes(engine->kernel, p, floats);
    return (size_t)(floats[0] + floats[1] + floats[2]) * sizeof(float);
}

/* A tile at the edge is computed whole, beside C, and the part that exists is added. */
static void edge(const struct packed *x, int64_t kc, const float *a, const float *b, float *c,
                 int64_t ldc, int64_t rows, int64_t cols, const float scale[2])
{
    static const float plain[2] = {1, 0};
    float tile[MAX_TILE] __attribute__((aligned(64)));

    x->kernel->run(kc, a, b, tile, x->kernel->nr, plain);
    for (int64_t i = 0; i < rows; i++, c += ldc)
        for (int64_t j = 0; j < cols; j++) {
            float sum = scale[0] * tile[i * x->kernel->nr + j];

            c[j] = scale[1] == 0 ? sum : sum + scale[1] * c[j];
        }
}

/* mc x nc of C from packed panels: one panel of B stays in the first cache for all of A's. */
static void block(const struct packed *x, int64_t mc, int64_t nc, int64_t kc, float *c, int64_t ldc,
                  const float scale[2])
{
    int mr = x->kernel->mr, nr = x->kernel->nr;

    for (int64_t j = 0; j < nc; j += nr)
        for (int64_t i = 0; i < mc; i += mr) {
            const float *a = x->a + i * kc, *b = x->b + j * kc;
            float *tile = c + i * ldc + j;

            if (mc - i >= mr && nc - j >= nr)
                x->kernel->run(kc, a, b, tile, ldc, scale);
            else
                edge(x, kc, a, b, tile, ldc, least(mr, mc - i), least(nr, nc - j), scale);
        }
}

/* Rows i0 … of C, columns j0 …, one piece of k. */
static void rows_of(const struct packed *x, int64_t i0, int64_t rows, int64_t j0, int64_t cols,
                    int64_t k0, int64_t kc)
{
    const struct cpu_product *p = x->p;
    bool first = k0 == 0, last = k0 + kc == p->k;
    const float direct[2] = {p->alpha, first ? p->beta : 1};
    const float summed[2] = {1, first ? 0 : 1};

    for (int64_t i = 0; i < rows; i += x->kernel->mc) {
        int64_t mc = least(x->kernel->mc, rows - i);

        cpu_pack(&p->a, &p->scale_a, i0 + i, mc, k0, kc, x->kernel->mr, x->a);
        if (x->sums) {
            float *sums = x->sums + i * x->nc;

            block(x, mc, cols, kc, sums, x->nc, summed);
            if (last)
                cpu_finish(p, sums, x->nc, i0 + i, mc, j0, cols);
        } else {
            block(x, mc, cols, kc, (float *)p->c + (i0 + i) * p->ldc + j0, p->ldc, direct);
            if (last)
                cpu_finish_in_place(p, i0 + i, mc, j0, cols);
        }
    }
}

/* Nothing to add: C = beta C and the epilogue. */
static void no_product(const struct cpu_product *p)
{
    static const float zeros[256];

    for (int64_t i = 0; i < p->m; i++)
        for (int64_t j = 0; j < p->n; j += 256)
            cpu_finish(p, zeros, 0, i, 1, j, least(256, p->n - j));
}

void cpu_multiply_packed(const struct cpu_engine *engine, const struct cpu_product *p,
                         void *workspace)
{
    const struct cpu_kernel *kernel = engine->kernel;
    /* Columns of B are its lines. */
    const struct cpu_operand columns = {p->b.data, p->b.cs, p->b.rs, p->b.dtype};
    struct packed x = {.p = p, .kernel = kernel, .a = workspace};
    int64_t floats[3], chunk;

    if (!p->k) {
        no_product(p);
        return;
    }
    sizes(kernel, p, floats);
    x.b = x.a + floats[0];
    x.sums = floats[2] ? x.b + floats[1] : NULL;
    x.nc = round_up(least(kernel->nc, p->n), kernel->nr);
    chunk = x.sums ? SUM_ROWS : p->m;
    for (int64_t j = 0; j < p->n; j += kernel->nc)
        for (int64_t i = 0; i < p->m; i += chunk)
            for (int64_t k0 = 0; k0 < p->k; k0 += kernel->kc) {
                int64_t nc = least(kernel->nc, p->n - j), kc = least(kernel->kc, p->k - k0);

                cpu_pack(&columns, &p->scale_b, j, nc, k0, kc, kernel->nr, x.b);
                rows_of(&x, i, least(chunk, p->m - i), j, nc, k0, kc);
            }
}
