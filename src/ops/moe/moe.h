/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Mixture of experts: what its files share. A slot is a token's place for one of its experts: slot
 * t * top_k + i is of expert chosen[t][i].
 */
#ifndef OPS_MOE_MOE_H
#define OPS_MOE_MOE_H

#include "gpunvme/ops/moe.h"
#include "ops/core/operator.h"

extern const struct ops_operator ops_moe_forward, ops_moe_backward;
extern const struct ops_ladder moe_forward_cpu, moe_backward_cpu;
extern const struct ops_ladder moe_forward_cuda, moe_backward_cuda;

/* A workspace that is divided into parts: with `base` NULL they are only counted. */
struct moe_workspace {
    char *base;
    size_t nbytes;
};

/* The next part, for rows x cols elements of `size` bytes. */
void *moe_part(struct moe_workspace *workspace, int64_t rows, int64_t cols, size_t size);

#endif
