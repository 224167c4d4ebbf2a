/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The host's half of the rung "skinny": which operand is the large one, and how many blocks share
 * the k of its lines.
 */
#include <limits.h>

#include "ops/matmul/few.h"
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

/*
 * `blocks` quarters of a block a multiprocessor read at the speed of memory. With fewer tiles of
 * `lines`, blocks share a tile's k, as long as each has `pass` of it.
 */
static int cluster_of(const struct skinny_work *work, int blocks, int64_t lines, int64_t pass)
{
    int cluster = 1;
    int64_t tiles = (work->w.lines + lines - 1) / lines * work->product.batch;
    int64_t room = blocks * (int64_t)cuda_units() / 4;

    while (cluster < SKINNY_CLUSTER && tiles * cluster * 2 <= room &&
           pass * cluster < work->product.k)
        cluster *= 2;
    return cluster;
}

/* Can the copy engine read both operands, and does the tensor core take them so? */
static int is_copied(const struct skinny_work *work)
{
    int fp8 = cuda_is_fp8(work->product.dtype);

    return (fp8 || gpunvme_ops_dtype_nbytes(work->product.dtype) == 2) &&
           cuda_level() == CUDA_ANY_HOPPER && (work->w.step_k == 1) == fp8 && work->w.vectors &&
           work->x.step_k == 1 && work->x.vectors && work->product.k <= INT_MAX / 2 &&
           work->w.lines <= INT_MAX / 2;
}

/* In boxes of 128 bytes of k by so many lines or, of contiguous lines, 64 of k by 64 lines. */
static gpunvme_ops_status_t encode(CUtensorMap *map, const struct skinny_side *x,
                                   const struct cuda_product *p, int box_lines)
{
    static const CUtensorMapDataType types[] = {[GPUNVME_OPS_F16] = CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
                                                [GPUNVME_OPS_BF16] =
                                                    CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                                                [GPUNVME_OPS_E4M3] = CU_TENSOR_MAP_DATA_TYPE_UINT8,
                                                [GPUNVME_OPS_E5M2] = CU_TENSOR_MAP_DATA_TYPE_UINT8};
    int size = (int)gpunvme_ops_dtype_nbytes(p->dtype), across = x->step_k != 1;
    struct hopper_tensor tensor = hopper_tensor_of(
        across ? p->k : x->lines, across ? x->lines : p->k, across ? x->step_k : x->step_line,
        x->stride ? p->batch : 1, x->stride, size, hopper_box_lines(across, size, box_lines));

    return hopper_encode(map, x->data, types[p->dtype], &tensor);
}

static gpunvme_ops_status_t multiply_copied(const struct skinny_work *work, void *stream,
                                            struct cuda_launch *launch)
{
    struct skinny_copied copied = {
        .operands = {.a_batch = work->w.stride != 0, .b_batch = work->x.stride != 0},
        .skinny = *work};
    int size = (int)gpunvme_ops_dtype_nbytes(work->product.dtype);
    int cluster = cluster_of(work, size == 1 ? 5 : 6, SKINNY_WGMMA_LINES, 4 * HOPPER_WIDTH / size);
    gpunvme_ops_status_t status = GPUNVME_OPS_OK;

    if (!launch)
        status = encode(&copied.operands.a, &work->w, &work->product, SKINNY_WGMMA_LINES);
    if (!launch && !status)
        status = encode(&copied.operands.b, &work->x, &work->product, SKINNY_COLS);
    return status ? status : skinny_launch_copied(&copied, cluster, stream, launch);
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

    int size = (int)gpunvme_ops_dtype_nbytes(p->dtype), across = work.w.step_k != 1;
    int64_t lines = skinny_lines(across, size), pass = SKINNY_WARPS * skinny_depth(across, size);
    int groups = 1;

    if (cuda_level() == CUDA_ANY_HOPPER && cuda_wants_few(p) && work.w.vectors && work.x.vectors)
        return cuda_multiply_few(p, workspace, stream, launch);
    if (is_copied(&work))
        return multiply_copied(&work, stream, launch);
    /* More tiles where a block a multiprocessor, and a quarter of them two, are not reached. */
    while (size == 4 && across && work.x.lines <= 4 && groups < SKINNY_GROUPS &&
           (work.w.lines + lines / groups - 1) / (lines / groups) * p->batch * SKINNY_CLUSTER * 4 <
               cuda_units() * 5)
        groups *= 2;
    return skinny_launch(&work, groups, cluster_of(&work, 10, lines / groups, pass * groups),
                         stream, launch);
}
