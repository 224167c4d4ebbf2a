/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Operators that pass over rows on the CPU: rows as f32, sums of them, and the ladder "naive",
 * "rows", "openmp" that these operators share.
 */
#ifndef OPS_CPU_ROWS_H
#define OPS_CPU_ROWS_H

#include <math.h>

#include "ops/cpu/dtype.h"
#include "ops/cpu/product.h"

/* Elements at … at + n - 1 as f32. A loop for each type: the compiler vectorises those. */
static inline void cpu_load_row(const void *data, int64_t at, int dtype, int64_t n, float *row)
{
    const void *from = cpu_at(data, at, dtype);

    if (dtype == GPUNVME_OPS_F32)
        memcpy(row, from, (size_t)n * sizeof(float));
    else if (dtype == GPUNVME_OPS_F16)
        for (int64_t c = 0; c < n; c++)
            row[c] = cpu_from_f16(((const uint16_t *)from)[c]);
    else if (dtype == GPUNVME_OPS_BF16)
        for (int64_t c = 0; c < n; c++)
            row[c] = cpu_from_bf16(((const uint16_t *)from)[c]);
    else
        for (int64_t c = 0; c < n; c++)
            row[c] = cpu_load(from, c, dtype);
}

static inline void cpu_store_row(void *data, int64_t at, int dtype, int64_t n, const float *row)
{
    for (int64_t c = 0; c < n; c++)
        cpu_store(data, at + c, dtype, row[c]);
}

/* So many sums at a time: the compiler makes vectors of them. */
#define CPU_SUMS 16

/* The sum of x[i] y[i], or with y NULL of x[i], always in the same order. */
static inline float cpu_sum_row(const float *x, const float *y, int64_t n)
{
    float sums[CPU_SUMS] = {0}, sum = 0;
    int64_t i = 0;

    for (; i + CPU_SUMS <= n; i += CPU_SUMS)
        for (int s = 0; s < CPU_SUMS; s++)
            sums[s] += y ? x[i + s] * y[i + s] : x[i + s];
    for (; i < n; i++)
        sums[i % CPU_SUMS] += y ? x[i] * y[i] : x[i];
    for (int s = 0; s < CPU_SUMS; s++)
        sum += sums[s];
    return sum;
}

/* The three variants' engines: "naive" is in f64, the others in f32. */
enum { CPU_ROWS_NAIVE = 0, CPU_ROWS = 2, CPU_ROWS_THREADS = 5 };

static inline int cpu_rows_naive(const struct ops_variant *variant)
{
    return variant->data == &cpu_engines[CPU_ROWS_NAIVE];
}

static inline int cpu_rows_threads(const struct ops_variant *variant, const struct ops_call *call)
{
    return cpu_threads_for(variant->data, call->exec);
}

/* total[j] of `dtype` = the sum of sums[part * n + j] over the parts, or added to it. */
static inline void cpu_finish_sums(const float *sums, int64_t parts, int64_t n, void *total,
                                   int dtype, int accumulate)
{
    for (int64_t j = 0; j < n; j++) {
        double sum = accumulate ? (double)cpu_load(total, j, dtype) : 0;

        for (int64_t part = 0; part < parts; part++)
            sum += (double)sums[part * n + j];
        cpu_store(total, j, dtype, (float)sum);
    }
}

#define CPU_ROWS_LADDER(workspace, run, naive, rows)                                               \
    {                                                                                              \
        CPU_VARIANT(CPU_ROWS_NAIVE, "naive", 0, "nothing", naive, workspace, run, NULL),           \
            CPU_VARIANT(CPU_ROWS, "rows", 0, "nothing", rows, workspace, run, NULL),               \
            CPU_VARIANT(CPU_ROWS_THREADS, "openmp", GPUNVME_OPS_CPU_OPENMP, "a build with OpenMP", \
                        "the same, split among threads", workspace, run, NULL)                     \
    }

#endif
