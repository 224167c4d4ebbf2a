/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The host's half of the rung "hopper": copies of rows by expert, tensor maps, and the launch.
 */
#include "ops/moe/hopper.h"

#define SIZE 2 /* of elements */

static CUtensorMapDataType type_of(int dtype)
{
    return dtype == GPUNVME_OPS_F16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                    : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
}

/* Copies an operand's rows by expert and maps them; `mn`: rows are of k. */
static gpunvme_ops_status_t bring(CUtensorMap *map, const struct moe_slots *slots,
                                  const struct moe_operand *x, int64_t cols, int dtype, int mn,
                                  int load, void *to, void *stream)
{
    const struct moe_rows rows = {*slots, *x, cols, to};
    struct hopper_tensor tensor = hopper_tensor_of(moe_padded_rows(slots), cols, moe_pitch(cols), 1,
                                                   0, SIZE, hopper_box_lines(mn, SIZE, load));
    gpunvme_ops_status_t status = moe_copy(&rows, stream);

    return status ? status : hopper_encode(map, to, type_of(dtype), &tensor);
}

static int four(const void *c, int64_t ld, int64_t stride, int dtype)
{
    return (uintptr_t)c % (4 * gpunvme_ops_dtype_nbytes(dtype)) == 0 && ld % 4 == 0 &&
           stride % 4 == 0;
}

/* So many tiles at most, by blocks that stay. */
static gpunvme_ops_status_t launch(const void *kernel, struct moe_work *work, int64_t tiles,
                                   void *stream)
{
    struct hopper_grid *grid = &work->schedule.loop.grid;
    gpunvme_ops_status_t status;
    uint32_t clusters;

    *grid = (struct hopper_grid){.down = (uint32_t)(tiles < INT32_MAX ? tiles : INT32_MAX),
                                 .across = 1,
                                 .batch = 1,
                                 .width = HOPPER_TILE_N,
                                 .rows = 1,
                                 .group = 1};
    status = hopper_clusters(kernel, grid, &clusters);
    return status ? status : hopper_launch(kernel, (int)grid->rows, clusters, work, stream);
}

static int64_t tiles_of(int64_t n, int64_t tile)
{
    return (n + tile - 1) / tile;
}

gpunvme_ops_status_t moe_multiply_hopper(const struct moe_product *x, void *copies, void *stream)
{
    const struct moe_slots *slots = &x->slots;
    int64_t lines = x->transposed ? x->n : x->k, width = x->transposed ? x->k : x->n;
    int64_t stride = slots->experts > 1 ? x->stride_b : 0;
    int64_t pitch = lines > 1 ? x->ld_b : moe_pitch(width);
    struct hopper_tensor b =
        hopper_tensor_of(lines, width, pitch, slots->experts, stride, SIZE,
                         hopper_box_lines(!x->transposed, SIZE, HOPPER_TILE_N / 2));
    struct moe_work work = {.product = *x,
                            .schedule = {.loop = {.steps = (int)tiles_of(x->k, MOE_STEP)},
                                         .slots = *slots,
                                         .across = tiles_of(x->n, HOPPER_TILE_N)},
                            .vectors = four(x->c, x->n, 0, x->c_dtype)};
    int64_t down = slots->slots / HOPPER_TILE_M +
                   (slots->experts < slots->slots ? slots->experts : slots->slots);
    gpunvme_ops_status_t status =
        bring(&work.operands.a, slots, &x->a, x->k, x->dtype, 0, HOPPER_TILE_M, copies, stream);

    work.operands.b_batch = stride != 0;
    if (!status)
        status = hopper_encode(&work.operands.b, x->b, type_of(x->dtype), &b);
    return status ? status
                  : launch(moe_hopper_product(x->dtype, !x->transposed), &work,
                           down * work.schedule.across, stream);
}

gpunvme_ops_status_t moe_differentiate_hopper(const struct moe_gradient *x, void *copies,
                                              void *stream)
{
    const struct moe_slots *slots = &x->slots;
    char *second = (char *)copies + moe_padded_rows(slots) * moe_pitch(x->m) * SIZE;
    struct moe_work work = {.gradient = *x,
                            .schedule = {.slots = *slots,
                                         .down = tiles_of(x->m, HOPPER_TILE_M),
                                         .across = tiles_of(x->n, HOPPER_TILE_N)},
                            .vectors = four(x->c, x->ldc, x->stride_c, x->c_dtype)};
    gpunvme_ops_status_t status =
        bring(&work.operands.a, slots, &x->a, x->m, x->dtype, 1, HOPPER_TILE_M, copies, stream);

    if (!status)
        status = bring(&work.operands.b, slots, &x->b, x->n, x->dtype, 1, HOPPER_TILE_N / 2, second,
                       stream);
    return status ? status
                  : launch(moe_hopper_gradient(x->dtype), &work,
                           work.schedule.down * work.schedule.across * slots->experts, stream);
}
