/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Mixture of experts on the CPU: what both directions share.
 */
#ifndef OPS_MOE_CPU_H
#define OPS_MOE_CPU_H

#include "ops/cpu/rows.h"
#include "ops/moe/moe.h"

/* Slots by expert, in their own order: those of expert e are order[starts[e] … starts[e + 1]). */
struct moe_sorted {
    int32_t *starts; /* experts + 2 */
    int32_t *order;
};

/* ERR_INVALID if a number is no expert's. */
gpunvme_ops_status_t moe_sort(const struct moe_sorted *sorted, const int32_t *chosen, int64_t slots,
                              int64_t experts);

/* Bytes of workspace that a product needs, however few rows an expert has. */
size_t moe_product_nbytes(const struct cpu_engine *engine, const struct cpu_product *product,
                          int threads);

/* Rows of an array for the slots of an expert, one below the other; `per_token` slots share one. */
struct moe_gather {
    const void *from;
    void *to;
    const int32_t *order; /* the expert's */
    int64_t rows, cols, ld, per_token;
    int dtype;
};

void moe_gather_rows(const struct moe_gather *x, int index, int count);

#endif
