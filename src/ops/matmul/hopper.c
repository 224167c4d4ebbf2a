/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The host's half of the rung "hopper", and of those that lead to it (wgmma.cu and its
 * neighbours): the kernel for a product, and copies of what the copy engine can't read.
 *
 * The copy engine reads rows that begin at multiples of 16 bytes, and of two operands for tf32 one
 * must be contiguous along k, of two of fp8 both. What is not so is copied to the workspace first,
 * which costs one read and one write of it.
 */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <limits.h>

#include "ops/matmul/few.h"
#include "ops/matmul/hopper_turns.h"

/* One operand as the kernel will read it. */
struct side {
    const void *data;
    int64_t lines, k; /* m or n, and k */
    int64_t step_line, step_k, stride;
    int mn;        /* contiguous along m or n */
    int copy;      /* it must be copied */
    int64_t pitch; /* of the copy */
};

static struct side side_of(const struct cuda_operand *x, int64_t step_line, int64_t step_k,
                           int64_t lines, int64_t k, int dtype)
{
    int64_t size = (int64_t)gpunvme_ops_dtype_nbytes(dtype);
    struct side s = {x->data, lines, k, step_line, step_k, x->stride, step_k != 1, 0, 0};

    s.copy = !x->pitched || (cuda_is_fp8(dtype) && s.mn);
    s.pitch = (k + 16 / size - 1) / (16 / size) * (16 / size);
    return s;
}

static int width_of(const struct cuda_product *p)
{
    return p->width ? p->width : HOPPER_TILE_N;
}

static enum hopper_sums sums_of(const struct cuda_product *p)
{
    if (p->fast_sums)
        return HOPPER_SUMS_FAST;
    return p->scale_a.step_k || p->scale_b.step_k ? HOPPER_SUMS_BY_BLOCK : HOPPER_SUMS_F32;
}

static int64_t copies_of(const struct side *s, int64_t batch)
{
    return s->stride ? batch : 1;
}

struct sides {
    struct side a, b;
};

/* The smaller one is copied, if one must be. */
static struct sides sides_of(const struct cuda_product *p)
{
    struct sides s = {side_of(&p->a, p->a.rs, p->a.cs, p->m, p->k, p->dtype),
                      side_of(&p->b, p->b.cs, p->b.rs, p->n, p->k, p->dtype)};

    if (p->dtype == GPUNVME_OPS_F32 && s.a.mn && s.b.mn && !s.a.copy && !s.b.copy) {
        int smaller = s.a.lines * copies_of(&s.a, cuda_matrices(p)) <
                      s.b.lines * copies_of(&s.b, cuda_matrices(p));

        *(smaller ? &s.a.copy : &s.b.copy) = 1;
    }
    return s;
}

/* Does it lie along m or n, once it has been copied where it must be? */
static int lies_across(const struct side *s)
{
    return s->mn && !s->copy;
}

/* tf32 whose operands are exchanged, so that B is the first. */
static int is_exchanged(const struct cuda_product *p, const struct sides *s)
{
    return p->dtype == GPUNVME_OPS_F32 && lies_across(&s->b);
}

static size_t copy_nbytes(const struct cuda_product *p, const struct side *s)
{
    return s->copy ? ops_workspace_part(copies_of(s, cuda_matrices(p)), s->lines, s->pitch,
                                        gpunvme_ops_dtype_nbytes(p->dtype))
                   : 0;
}

size_t cuda_workspace_hopper(const struct cuda_product *p)
{
    struct sides s = sides_of(p);

    return copy_nbytes(p, &s.a) + copy_nbytes(p, &s.b);
}

int cuda_misaligned_hopper(const struct cuda_product *p)
{
    struct sides s = sides_of(p);

    return (!s.a.copy && (uintptr_t)s.a.data % 16) || (!s.b.copy && (uintptr_t)s.b.data % 16);
}

int cuda_suits_hopper(const struct cuda_product *p)
{
    struct hopper_grid grid, exchanged;

    if (p->m > INT_MAX / 2 || p->n > INT_MAX / 2 || p->k > INT_MAX / 2 || p->batch > INT_MAX)
        return 0;
    grid = hopper_grid_of(p->m, p->n, p->batch, width_of(p));
    exchanged = hopper_grid_of(p->n, p->m, p->batch, width_of(p));
    return hopper_grid_fits(&grid) && hopper_grid_fits(&exchanged);
}

static gpunvme_ops_status_t make_copy(const struct cuda_product *p, const struct cuda_operand *x,
                                      struct side *s, void *to, void *stream)
{
    int size = (int)gpunvme_ops_dtype_nbytes(p->dtype);
    gpunvme_ops_status_t status;

    if (!s->copy)
        return GPUNVME_OPS_OK;
    status = hopper_repack(x, s->step_line, s->step_k, s->lines, s->k,
                           copies_of(s, cuda_matrices(p)), s->pitch, size, to, stream);
    s->data = to;
    s->step_line = s->pitch;
    s->step_k = 1;
    s->stride = s->stride ? s->lines * s->pitch : 0;
    s->mn = s->copy = 0;
    return status;
}

/* From then on operands are their copies. */
static gpunvme_ops_status_t make_copies(const struct cuda_product *p, struct sides *s,
                                        void *workspace, void *stream)
{
    char *to_a = workspace, *to_b = workspace ? to_a + copy_nbytes(p, &s->a) : NULL;
    gpunvme_ops_status_t status = make_copy(p, &p->a, &s->a, to_a, stream);

    return status ? status : make_copy(p, &p->b, &s->b, to_b, stream);
}

/* f32 is rounded to the nearest tf32 on its way in; wgmma would cut it off. */
static const CUtensorMapDataType types_in[GPUNVME_OPS_NALLDTYPES] = {
    CU_TENSOR_MAP_DATA_TYPE_TFLOAT32, CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
    CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, CU_TENSOR_MAP_DATA_TYPE_UINT8, CU_TENSOR_MAP_DATA_TYPE_UINT8};
static const CUtensorMapDataType types_out[GPUNVME_OPS_NDTYPES] = {
    CU_TENSOR_MAP_DATA_TYPE_FLOAT32, CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
    CU_TENSOR_MAP_DATA_TYPE_BFLOAT16};

static gpunvme_ops_status_t encode_side(CUtensorMap *map, const struct cuda_product *p,
                                        const struct side *s, int load)
{
    int size = (int)gpunvme_ops_dtype_nbytes(p->dtype);
    struct hopper_tensor x = hopper_tensor_of(
        s->mn ? s->k : s->lines, s->mn ? s->lines : s->k, s->mn ? s->step_k : s->step_line,
        copies_of(s, cuda_matrices(p)), s->stride, size, hopper_box_lines(s->mn, size, load));

    return hopper_encode(map, s->data, types_in[p->dtype], &x);
}

/*
 * The copy engine can write a matrix whose rows begin at multiples of 16 bytes and end there, too:
 * it writes as many at the least, over a row's end if need be.
 */
static int can_copy_to(const struct cuda_product *p, const void *to, int64_t ld, int64_t stride)
{
    int64_t x = 16 / (int64_t)gpunvme_ops_dtype_nbytes(p->out_dtype);

    return (uintptr_t)to % 16 == 0 && p->n % x == 0 && ld % x == 0 && stride % x == 0;
}

/*
 * Results of the type that the kernel is for (of fp8 any of 16 bits) can leave so if C is only
 * written. What a linear layer adds is done on the way if operands lie as they do there and have 16
 * bits.
 */
static int copies_out(const struct cuda_product *p, const struct sides *s)
{
    int own_type =
        cuda_is_fp8(p->dtype) ? p->out_dtype != GPUNVME_OPS_F32 : p->out_dtype == p->dtype;
    int plain = !p->bias && !p->preact && p->activation == GPUNVME_OPS_ACT_NONE;

    if (!own_type || p->beta != 0 || !can_copy_to(p, p->c, p->ldc, p->stride_c))
        return 0;
    return plain || (p->dtype != GPUNVME_OPS_F32 && !s->a.mn && !s->b.mn && p->alpha == 1 &&
                     p->batch == 1 && (uintptr_t)p->bias % 4 == 0 &&
                     (!p->preact || can_copy_to(p, p->preact, p->ld_preact, 0)));
}

static gpunvme_ops_status_t encode_out(CUtensorMap *map, const struct cuda_product *p,
                                       const void *to, int64_t ld, int64_t stride)
{
    int size = (int)gpunvme_ops_dtype_nbytes(p->out_dtype);
    struct hopper_tensor x =
        hopper_tensor_of(p->m, p->n, ld, p->batch, stride, size, HOPPER_WIDTH / size);

    return hopper_encode(map, to, types_out[p->out_dtype], &x);
}

static struct hopper_grid grid_of(const struct cuda_product *p, const struct sides *s)
{
    return is_exchanged(p, s) ? hopper_grid_of(p->n, p->m, p->batch, width_of(p))
                              : hopper_grid_of(p->m, p->n, p->batch, width_of(p));
}

/* The operands are as the kernel will read them: of the first and second so many lines a load. */
static gpunvme_ops_status_t prepare(struct hopper_work *work, const struct cuda_product *p,
                                    const struct sides *s, const struct hopper_grid *grid,
                                    int load_first, int load_second)
{
    int width = HOPPER_WIDTH / (int)gpunvme_ops_dtype_nbytes(p->dtype);
    const struct side *first = is_exchanged(p, s) ? &s->b : &s->a;
    const struct side *second = is_exchanged(p, s) ? &s->a : &s->b;
    gpunvme_ops_status_t status = encode_side(&work->operands.a, p, first, load_first);

    work->product = *p;
    work->schedule.grid = *grid;
    work->schedule.all_steps = (int)((p->k + width - 1) / width);
    work->schedule.pieces = p->pieces > 1 ? p->pieces : 1;
    work->schedule.steps = p->pieces > 1 ? (int)(p->chunk / width) : work->schedule.all_steps;
    work->operands.a_batch = first->stride != 0;
    work->operands.b_batch = second->stride != 0;
    work->copies_out = copies_out(p, s);
    work->begins_with_bias = work->copies_out && p->bias;
    if (!status)
        status = encode_side(&work->operands.b, p, second, load_second);
    if (!status && work->copies_out)
        status = encode_out(&work->c, p, p->c, p->ldc, p->stride_c);
    if (!status && work->copies_out && p->preact)
        status = encode_out(&work->preact, p, p->preact, p->ld_preact, 0);
    return status;
}

static gpunvme_ops_status_t prepare_tiles(struct hopper_work *work, const struct cuda_product *p,
                                          const struct sides *s, const struct hopper_grid *grid)
{
    int width = (int)grid->width;

    return prepare(work, p, s, grid, HOPPER_TILE_M, width / hopper_parts(width));
}

gpunvme_ops_status_t hopper_prepare(struct hopper_work *work, const struct cuda_product *p)
{
    struct sides s = sides_of(p);
    struct hopper_grid grid = grid_of(p, &s);

    return prepare_tiles(work, p, &s, &grid);
}

enum { MOST_K_IN_TURNS = 1024 };

_Static_assert((int)TURNS_NBYTES <= 227 * 1024, "a block has no more");

/*
 * Do teams that take turns make it faster? Where an activation and a pre-activation to keep make
 * results take long. They write by the copy engine only.
 */
static int takes_turns(const struct cuda_product *p, const struct sides *s)
{
    int64_t cols = (p->n + TURNS_TILE_N - 1) / TURNS_TILE_N * TURNS_TILE_N;
    struct hopper_grid grid;

    if (p->k > MOST_K_IN_TURNS || !p->preact || p->activation == GPUNVME_OPS_ACT_NONE ||
        (p->dtype != GPUNVME_OPS_F16 && p->dtype != GPUNVME_OPS_BF16) || s->a.mn || s->b.mn ||
        s->a.copy || s->b.copy || cols > p->n / 8 * 9 || !copies_out(p, s))
        return 0;
    grid = hopper_grid_of(p->m, p->n, p->batch, TURNS_TILE_N);
    return grid.rows == 2 && hopper_grid_size(&grid) >= (uint32_t)cuda_units();
}

static gpunvme_ops_status_t describe(const void *kernel, const struct hopper_grid *grid,
                                     int exchanged, uint32_t clusters, struct cuda_launch *launch)
{
    const int width = (int)grid->width, rows = (int)grid->rows;
    const struct cuda_tiling tilings[2] = {
        {HOPPER_TILE_M, width, 64, width, HOPPER_THREADS, HOPPER_SHARED_NBYTES, rows, 1},
        {width, HOPPER_TILE_M, width, 64, HOPPER_THREADS, HOPPER_SHARED_NBYTES, 1, rows}};

    return cuda_describe(kernel, &tilings[exchanged], (int64_t)clusters * rows, launch);
}

static gpunvme_ops_status_t launch_turns(const void *kernel, const struct hopper_grid *grid,
                                         uint32_t clusters, void *work, void *stream)
{
    cudaLaunchAttribute attributes[2] = {
        {.id = cudaLaunchAttributeClusterDimension, .val.clusterDim = {grid->rows, 1, 1}},
        {.id = cudaLaunchAttributeProgrammaticStreamSerialization,
         .val.programmaticStreamSerializationAllowed = 1}};
    cudaLaunchConfig_t config = {.gridDim = {clusters * grid->rows, 1, 1},
                                 .blockDim = {TURNS_THREADS, 1, 1},
                                 .dynamicSmemBytes = TURNS_NBYTES,
                                 .stream = stream,
                                 .attrs = attributes,
                                 .numAttrs = 2};
    void *args[] = {work};
    gpunvme_ops_status_t status = cuda_allow_shared(kernel, TURNS_NBYTES);

    return status ? status
                  : cuda_status(cudaLaunchKernelExC(&config, kernel, args), "launching clusters");
}

static gpunvme_ops_status_t multiply_in_turns(const struct cuda_product *product,
                                              const struct sides *s, void *stream,
                                              struct cuda_launch *launch)
{
    const void *kernel = hopper_turns_kernel(product->dtype);
    struct cuda_product p = *product;
    struct hopper_grid grid;
    struct hopper_work work;
    uint32_t clusters;
    gpunvme_ops_status_t status;

    p.width = TURNS_TILE_N;
    grid = grid_of(&p, s);
    status = hopper_clusters(kernel, &grid, &clusters);
    if (launch) {
        const struct cuda_tiling tiling = {
            HOPPER_TILE_M, TURNS_TILE_N,   64, TURNS_TILE_N, TURNS_THREADS,
            TURNS_NBYTES,  (int)grid.rows, 1};

        return status ? status
                      : cuda_describe(kernel, &tiling, (int64_t)clusters * grid.rows, launch);
    }
    if (!status)
        status = prepare_tiles(&work, &p, s, &grid);
    return status ? status : launch_turns(kernel, &grid, clusters, &work, stream);
}

gpunvme_ops_status_t cuda_multiply_hopper(const struct cuda_product *p, void *workspace,
                                          void *stream, struct cuda_launch *launch)
{
    struct sides s = sides_of(p);
    const void *kernel =
        cuda_is_fp8(p->dtype)
            ? hopper_fp8_kernel(p->dtype, p->dtype_b, sums_of(p), width_of(p))
            : hopper_kernel(p->dtype, lies_across(&s.a), lies_across(&s.b), width_of(p));
    struct hopper_grid grid = grid_of(p, &s);
    struct hopper_work work;
    uint32_t clusters;
    gpunvme_ops_status_t status = GPUNVME_OPS_OK;

    if (takes_turns(p, &s))
        return multiply_in_turns(p, &s, stream, launch);
    status = hopper_clusters(kernel, &grid, &clusters);
    if (launch)
        return status ? status : describe(kernel, &grid, is_exchanged(p, &s), clusters, launch);
    if (!status)
        status = make_copies(p, &s, workspace, stream);
    if (!status)
        status = prepare_tiles(&work, p, &s, &grid);
    return status ? status : hopper_launch(kernel, (int)grid.rows, clusters, &work, stream);
}

int cuda_suits_split(const struct cuda_product *p)
{
    return (p->dtype == GPUNVME_OPS_F16 || p->dtype == GPUNVME_OPS_BF16) && p->m > FEW_ROWS &&
           p->m <= HOPPER_TILE_M && p->k > HOPPER_WIDTH / 2 && p->a.cs == 1 && p->b.rs == 1 &&
           p->a.pitched && p->b.pitched && cuda_suits_hopper(p);
}

gpunvme_ops_status_t cuda_multiply_split(const struct cuda_product *p, void *workspace,
                                         void *stream, struct cuda_launch *launch)
{
    const void *kernel = hopper_split_kernel(p->dtype, p->width);
    struct hopper_grid grid = hopper_grid_of(p->m, p->n, p->batch, p->width);
    struct cuda_product whole = *p;
    struct hopper_work work;
    gpunvme_ops_status_t status = cuda_allow_shared(kernel, HOPPER_SHARED_NBYTES);

    (void)workspace;
    if (status)
        return status;
    if (launch)
        return describe(kernel, &grid, 0, 2 * hopper_grid_size(&grid), launch);
    whole.pieces = 1;
    status = hopper_prepare(&work, &whole);
    work.schedule.steps = (work.schedule.all_steps + 1) / 2;
    return status ? status : hopper_launch(kernel, 2, hopper_grid_size(&grid), &work, stream);
}

gpunvme_ops_status_t hopper_multiply(const struct hopper_rung *rung, const struct cuda_product *p,
                                     void *workspace, void *stream, struct cuda_launch *launch)
{
    struct sides s = sides_of(p);
    const void *kernel =
        rung->kernels[p->dtype - GPUNVME_OPS_F16][lies_across(&s.a)][lies_across(&s.b)];
    struct hopper_grid grid = hopper_grid_of(p->m, p->n, p->batch, rung->width);
    struct hopper_work work;
    uint32_t clusters;
    gpunvme_ops_status_t status = cuda_allow_shared(kernel, rung->nbytes);

    if (!rung->pairs) {
        grid.down = (uint32_t)((p->m + HOPPER_TILE_M - 1) / HOPPER_TILE_M);
        grid.rows = 1;
    }
    clusters = hopper_grid_size(&grid);
    if (launch) {
        const struct cuda_tiling tiling = {
            HOPPER_TILE_M, rung->width,    64, rung->width, rung->threads,
            rung->nbytes,  (int)grid.rows, 1};

        return status ? status
                      : cuda_describe(kernel, &tiling, (int64_t)clusters * grid.rows, launch);
    }
    if (!status)
        status = make_copies(p, &s, workspace, stream);
    if (!status)
        status = prepare(&work, p, &s, &grid, 64, 64);
    if (status)
        return status;
    return rung->pairs ? hopper_launch(kernel, (int)grid.rows, clusters, &work, stream)
                       : hopper_launch_blocks(kernel, clusters, (unsigned)rung->threads,
                                              rung->nbytes, &work, stream);
}
