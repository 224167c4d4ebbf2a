/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The host's half of the rung "skinny": which operand is the large one, and how many blocks share
 * the k of its lines.
 */
#include <limits.h>

#include "ops/matmul/skinny.h"

static struct skinny_side side_of(const struct cuda_operand *x, int64_t lines, int64_t step_line,
                                  int64_t step_k)
{
    return (struct skinny_side){x->data, lines, step_line, step_k, x->stride, x->vectors};
}

static struct skinny_work work_of(const struct cuda_product *p)
{
    struct skinny_side a = side_of(&p->a, p->m, p->a.rs, p->a.cs);
    struct skinny_side b = side_of(&p->b, p->n, p->b.cs, p->b.rs);
    struct skinny_work work = {.product = *p, .w_is_b = p->m <= p->n};

    work.w = work.w_is_b ? b : a;
    work.x = work.w_is_b ? a : b;
    return work;
}

static int64_t tiles_of(const struct skinny_work *work)
{
    int size = (int)gpunvme_ops_dtype_nbytes(work->product.dtype);
    int64_t lines = skinny_lines(work->w.step_k != 1, size);

    return (work->w.lines + lines - 1) / lines * work->product.batch;
}

/*
 * Two blocks a multiprocessor read at the speed of memory. With fewer tiles, blocks share a tile's
 * k, as long as each of their warps has some.
 */
static int cluster_of(const struct skinny_work *work)
{
    int cluster = 1;
    int size = (int)gpunvme_ops_dtype_nbytes(work->product.dtype);
    int64_t pass = SKINNY_WARPS * skinny_depth(work->w.step_k != 1, size);
    int64_t tiles = tiles_of(work), room = 2 * (int64_t)cuda_units();

    while (cluster < SKINNY_CLUSTER && tiles * cluster * 2 <= room + room / 4 &&
           pass * cluster < work->product.k)
        cluster *= 2;
    return cluster;
}

/* Kernels number scales by block with 31 bits. */
static int has_too_many(const struct ops_scales *x, int64_t lines)
{
    return x->step_k && lines > INT_MAX / x->step_line;
}

int cuda_suits_skinny(const struct cuda_product *p)
{
    struct skinny_work work = work_of(p);

    if (p->m > SKINNY_COLS && p->n > SKINNY_COLS)
        return 0;
    if (has_too_many(&p->scale_a, p->m) || has_too_many(&p->scale_b, p->n))
        return 0;
    if (p->m > INT64_MAX / 64 || p->n > INT64_MAX / 64 || p->batch > INT_MAX)
        return 0;
    return work.w.lines / 16 < INT_MAX / SKINNY_CLUSTER / (p->batch > 0 ? p->batch : 1);
}

int cuda_skinny_reads_vectors(const struct cuda_product *p)
{
    struct skinny_work work = work_of(p);

    return work.w.step_k == 1 && work.w.vectors;
}

gpunvme_ops_status_t cuda_multiply_skinny(const struct cuda_product *p, void *workspace,
                                          void *stream, struct cuda_launch *launch)
{
    struct skinny_work work = work_of(p);

    (void)workspace;
    return skinny_launch(&work, cluster_of(&work), stream, launch);
}
