/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Between the host's half of the rung "hopper" and its kernels.
 */
#ifndef OPS_MOE_HOPPER_H
#define OPS_MOE_HOPPER_H

#include "ops/hopper/launch.h"
#include "ops/moe/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The main loop's schedule, and what that of experts knows beside it. */
struct moe_schedule {
    struct hopper_schedule loop;
    struct moe_slots slots;
    int64_t down, across; /* tiles of an expert's gradient; columns of tiles of a product */
};

/* A product, or a gradient. */
struct moe_work {
    struct hopper_operands operands;
    struct moe_schedule schedule;
    struct moe_product product;
    struct moe_gradient gradient;
    int vectors; /* four elements of C at a time may be written */
};

/* The kernels of a type; `mn` says that the experts' matrices lie along n. */
const void *moe_hopper_product(int dtype, int mn);
const void *moe_hopper_gradient(int dtype);

#ifdef __cplusplus
}
#endif
#endif
