/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The first rung: three loops, one sum at a time, as the definition has it. It reads a column of B
 * for every element of C.
 */
#include "ops/cpu/dtype.h"
#include "ops/cpu/product.h"

static float sum_f32(const struct cpu_product *p, int64_t i, int64_t j)
{
    const float *a = (const float *)p->a.data + i * p->a.rs;
    const float *b = (const float *)p->b.data + j * p->b.cs;
    float sum = 0;

    for (int64_t q = 0; q < p->k; q++)
        sum += a[q * p->a.cs] * b[q * p->b.rs];
    return sum;
}

static float sum_any(const struct cpu_product *p, int64_t i, int64_t j)
{
    float sum = 0;

    for (int64_t q = 0; q < p->k; q++)
        sum += ops_scale_at(&p->scale_a, i, q) *
               cpu_load(p->a.data, i * p->a.rs + q * p->a.cs, p->a.dtype) *
               (ops_scale_at(&p->scale_b, j, q) *
                cpu_load(p->b.data, q * p->b.rs + j * p->b.cs, p->b.dtype));
    return sum;
}

void cpu_multiply_naive(const struct cpu_engine *engine, const struct cpu_product *p,
                        void *workspace)
{
    bool f32 = p->a.dtype == GPUNVME_OPS_F32 && p->b.dtype == GPUNVME_OPS_F32;

    (void)engine;
    (void)workspace;
    for (int64_t i = 0; i < p->m; i++)
        for (int64_t j = 0; j < p->n; j++) {
            /* Where nothing is added, A and B may be NULL. */
            float sum = !p->k ? 0 : f32 ? sum_f32(p, i, j) : sum_any(p, i, j);

            cpu_finish(p, &sum, 1, i, 1, j, 1);
        }
}
