/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which block makes which tile of C, and the steps of k that a tile is the sum of. For kernels of
 * sm_90a, for the host that prepares their work, and for tests that look at it by value.
 */
#ifndef OPS_HOPPER_SCHEDULE_H
#define OPS_HOPPER_SCHEDULE_H

#include "ops/hopper/tile.h"

enum { HOPPER_GROUP = 8 };

/*
 * What there is to do, in pairs of tiles: `down` by `across` of them, `batch` times. Numbers of 32
 * bits, by which a GPU divides several times as fast as by 64: hopper_grid_fits().
 */
struct hopper_grid {
    uint32_t down, across, batch;
    uint32_t width; /* of tiles */
    uint32_t rows;  /* tiles of a pair, one for each block of the cluster: 2, or 1 */
    uint32_t group; /* pairs below each other that are made together: HOPPER_GROUP, or fewer */
};

struct hopper_place {
    int64_t batch, row, col; /* of C */
};

GPUNVME_FN uint32_t hopper_grid_size(const struct hopper_grid *grid)
{
    return grid->down * grid->across * grid->batch;
}

/* May pairs be numbered by 31 bits? */
GPUNVME_FN int hopper_grid_fits(const struct hopper_grid *grid)
{
    int64_t in_batch = (int64_t)grid->down * grid->across;

    return in_batch <= INT32_MAX && in_batch * grid->batch <= INT32_MAX;
}

/*
 * Where pair number `index` of tiles begins. Pairs that are made at about the same time should read
 * the same rows of A and columns of B, which are then in the cache: a group below each other, then
 * those to their right.
 */
GPUNVME_FN struct hopper_place hopper_place_of(const struct hopper_grid *grid, uint32_t index)
{
    uint32_t in_batch = grid->down * grid->across, in_group = grid->group * grid->across;
    uint32_t batch = index / in_batch, i = index - batch * in_batch, group = i / in_group;
    uint32_t left = grid->down - group * grid->group, j = i - group * in_group;
    uint32_t rows = left < grid->group ? left : grid->group, across = j / rows;
    uint32_t down = group * grid->group + j - across * rows;
    struct hopper_place x;

    x.batch = batch;
    x.row = (int64_t)down * HOPPER_TILE_M * grid->rows;
    x.col = (int64_t)across * grid->width;
    return x;
}

/*
 * For m, n and batch up to 2^31. A cluster of two reads each column of B once for both: worth it
 * unless much of the last is waste.
 */
GPUNVME_FN struct hopper_grid hopper_grid_of(int64_t m, int64_t n, int64_t batch, int width)
{
    int64_t tiles = (m + HOPPER_TILE_M - 1) / HOPPER_TILE_M;
    struct hopper_grid grid;

    grid.rows = hopper_parts(width) == 2 && (tiles % 2 == 0 || tiles > 15) ? 2 : 1;
    grid.down = (uint32_t)((tiles + grid.rows - 1) / grid.rows);
    grid.across = (uint32_t)((n + width - 1) / width);
    grid.batch = (uint32_t)batch;
    grid.width = (uint32_t)width;
    grid.group = HOPPER_GROUP;
    return grid;
}

/* What there is to do, and the steps of k that each tile is the sum of. */
struct hopper_schedule {
    struct hopper_grid grid;
    int steps, all_steps; /* of a piece, of all; the last piece may have fewer */
    int pieces;           /* so many matrices of C in a row share one of A and B, and k; or 1 */
};

struct hopper_span {
    int first, count;
};

/* The steps that matrix `batch` of C is the sum of; `batch` becomes that of A and B. */
GPUNVME_FN struct hopper_span hopper_span_of(const struct hopper_schedule *s, int64_t *batch)
{
    struct hopper_span x = {0, s->steps};

    if (s->pieces > 1) {
        uint32_t all = (uint32_t)*batch, matrix = all / (uint32_t)s->pieces;

        x.first = (int)(all - matrix * (uint32_t)s->pieces) * s->steps;
        if (x.count > s->all_steps - x.first)
            x.count = s->all_steps - x.first;
        *batch = matrix;
    }
    return x;
}

#endif
