/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Scales of an operand with elements of 8 bits, for the CPU and for kernels. A line is a row of A
 * or a column of B.
 */
#ifndef OPS_CORE_SCALES_H
#define OPS_CORE_SCALES_H

#include <stdint.h>

#include "gpunvme/fn.h"

#define OPS_SCALE_K 128 /* elements along k, and lines, of a block that shares a scale */

/* All 0: the operand has none, and they are taken for 1. */
struct ops_scales {
    const float *data;
    int64_t step_line, step_k; /* to the next line or block of lines, and to the next 128 of k */
    int64_t stride;            /* to those of the batch's next matrix */
    int64_t first;             /* the line that the operand begins with */
    int by_block;              /* 128 lines share a scale */
};

GPUNVME_FN float ops_scale_at(const struct ops_scales *x, int64_t line, int64_t k)
{
    line += x->first;
    return x->data ? x->data[(x->by_block ? line / OPS_SCALE_K : line) * x->step_line +
                             k / OPS_SCALE_K * x->step_k]
                   : 1;
}

#endif
