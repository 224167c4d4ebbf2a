/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The host's half of products of few rows: which operand is the large one, and how many of its
 * lines a block has.
 */
#include "ops/matmul/few.h"

#include <limits.h>

static int64_t up(int64_t x, int64_t to)
{
    return (x + to - 1) / to * to;
}

static int w_is_b(const struct cuda_product *p)
{
    return p->m <= p->n;
}

static int64_t rows_of(const struct cuda_product *p)
{
    return w_is_b(p) ? p->m : p->n;
}

static int64_t lines_of(const struct cuda_product *p)
{
    return w_is_b(p) ? p->n : p->m;
}

int cuda_suits_few(const struct cuda_product *p)
{
    const int64_t most = INT_MAX / 2;

    return (p->dtype == GPUNVME_OPS_F16 || p->dtype == GPUNVME_OPS_BF16) && p->a.cs == 1 &&
           p->b.rs == 1 && p->a.pitched && p->b.pitched && rows_of(p) <= FEW_ROWS &&
           lines_of(p) <= most && p->k <= most && p->batch <= INT_MAX &&
           (double)lines_of(p) * (double)p->batch <= most;
}

static int64_t tiles_of(const struct cuda_product *p, int lines)
{
    return (lines_of(p) + lines - 1) / lines * p->batch;
}

/* All of `units` have as many tiles; the last ones of few may have none. */
static int best_lines(const struct cuda_product *p, int units)
{
#define NUMBER(lines) lines,
    static const int all[] = {FEW_LINES(NUMBER)};
#undef NUMBER
    int64_t least = INT64_MAX;
    int best = 0;

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        int64_t most = (tiles_of(p, all[i]) + units - 1) / units * all[i];

        if (most <= least) {
            least = most;
            best = all[i];
        }
    }
    return best;
}

enum { WIDE = 64, SMALL_K = 1024, LARGE_K = 8192 };

int few_pieces(const struct cuda_product *p, int units)
{
    return units > 1 && p->k > SMALL_K && tiles_of(p, best_lines(p, units)) <= units ? 2 : 1;
}

int few_lines(const struct cuda_product *p, int units)
{
    return best_lines(p, few_pieces(p, units) > 1 && rows_of(p) <= 32 ? units / 2 : units);
}

int cuda_wants_few(const struct cuda_product *p)
{
    int units = cuda_units(), lines;
    int64_t wide;

    if (!cuda_suits_few(p))
        return 0;
    wide = lines = best_lines(p, units);
    if (few_pieces(p, units) > 1) {
        lines = best_lines(p, units / 2);
        wide = (tiles_of(p, lines) + units / 2 - 1) / (units / 2) * lines;
    }
    if (wide >= WIDE)
        return 1;
    return rows_of(p) > 16 ? p->k >= SMALL_K && p->k <= LARGE_K
                           : p->k <= SMALL_K && lines_of(p) * p->batch >= 16 * (int64_t)units;
}

/* More rows are worth sharing: each block reads a part of them for all. */
static int few_cluster(const struct cuda_product *p)
{
    return rows_of(p) <= 16 ? 1 : FEW_CLUSTER;
}

static gpunvme_ops_status_t encode(CUtensorMap *map, const struct cuda_product *p,
                                   const struct cuda_operand *x, int64_t lines, int64_t step,
                                   int box)
{
    struct hopper_tensor tensor =
        hopper_tensor_of(lines, p->k, step, x->stride ? p->batch : 1, x->stride, 2, box);

    return hopper_encode(map, x->data,
                         p->dtype == GPUNVME_OPS_F16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                                     : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                         &tensor);
}

static uint32_t larger(uint32_t x, uint32_t y)
{
    return x > y ? x : y;
}

/*
 * As many stages as there is room for. wgmma reads FEW_ROWS, though fewer were loaded; in the end
 * the sums lie there, padded.
 */
static void lay_out(struct few_work *work, int lines)
{
    int most = work->w_is_b ? work->count : lines;
    int stage = (work->rows + lines) * HOPPER_WIDTH, read = FEW_ROWS * HOPPER_WIDTH;
    int behind = read > stage ? read - stage : 0;
    int room = (FEW_ROOM - HOPPER_ALIGN - 2 * FEW_STAGES * 8 - behind) / stage;
    uint32_t sums = (uint32_t)(most * ((work->w_is_b ? lines : FEW_ROWS) + 4)) * sizeof(float);

    work->stages = room < FEW_STAGES ? room : FEW_STAGES;
    work->barriers = larger((uint32_t)(work->stages * stage + behind), (sums + 15) & ~15u);
}

gpunvme_ops_status_t cuda_multiply_few(const struct cuda_product *p, void *workspace, void *stream,
                                       struct cuda_launch *launch)
{
    const struct cuda_operand *x = w_is_b(p) ? &p->a : &p->b, *w = w_is_b(p) ? &p->b : &p->a;
    int lines = p->width ? p->width : few_lines(p, cuda_units());
    int pieces = p->width ? (p->pieces > 1 ? p->pieces : 1) : few_pieces(p, cuda_units());
    int sharing = pieces > 1 ? 1 : few_cluster(p), rows = (int)up(rows_of(p), 8 * sharing);
    int all = (int)((p->k + HOPPER_WIDTH / 2 - 1) / (HOPPER_WIDTH / 2));
    struct few_work work = {
        .operands = {.a_batch = x->stride != 0, .b_batch = w->stride != 0},
        .product = *p,
        .w_is_b = w_is_b(p),
        .count = (int)rows_of(p),
        .rows = rows,
        .steps = (all + pieces - 1) / pieces,
        .all_steps = all,
        .pieces = pieces,
        .tiles = (uint32_t)up((lines_of(p) + lines - 1) / lines, sharing),
    };
    gpunvme_ops_status_t status = GPUNVME_OPS_OK;

    (void)workspace;
    lay_out(&work, lines);
    if (!launch)
        status =
            encode(&work.operands.a, p, x, rows_of(p), w_is_b(p) ? x->rs : x->cs, rows / sharing);
    if (!launch && !status)
        status = encode(&work.operands.b, p, w, lines_of(p), w_is_b(p) ? w->cs : w->rs, lines);
    return status ? status : few_launch(&work, lines, pieces * sharing, stream, launch);
}
