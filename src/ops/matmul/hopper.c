/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The host's half of the rung "hopper": tensor maps, copies of what the copy engine can't read, and
 * the launch of clusters.
 *
 * The copy engine reads rows that begin at multiples of 16 bytes, and of two operands for tf32 one
 * must be contiguous along k. What is not so is copied to the workspace first, which costs one read
 * and one write of it.
 */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <limits.h>

#include "ops/matmul/hopper_kernel.h"

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

    s.copy = !x->pitched;
    s.pitch = (k + 16 / size - 1) / (16 / size) * (16 / size);
    return s;
}

static int width_of(const struct cuda_product *p)
{
    return p->width ? p->width : HOPPER_TILE_N;
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
    int64_t row = s->pitch * (int64_t)gpunvme_ops_dtype_nbytes(p->dtype), rows;

    if (!s->copy)
        return 0;
    if (__builtin_mul_overflow(s->lines, copies_of(s, cuda_matrices(p)), &rows))
        rows = INT64_MAX;
    return cuda_workspace_part(rows, row);
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
    grid = hopper_grid_of_width(p->m, p->n, p->batch, width_of(p));
    exchanged = hopper_grid_of_width(p->n, p->m, p->batch, width_of(p));
    return hopper_grid_fits(&grid) && hopper_grid_fits(&exchanged);
}

/* From then on the operand is its copy. */
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

/*
 * The driver's function, which is asked for by its name: the library is not linked with the driver,
 * so that programs start without one.
 */
typedef CUresult (*encode_fn)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                              const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                              const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                              CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

static encode_fn find_encode(void)
{
    static _Atomic(encode_fn) known;
    enum cudaDriverEntryPointQueryResult result;
    encode_fn found = known;
    void *address = NULL;

    if (found)
        return found;
#if CUDART_VERSION >= 12050
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &address, 12000,
                                         cudaEnableDefault, &result))
        return NULL;
#else
    if (cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &address, cudaEnableDefault, &result))
        return NULL;
#endif
    if (result == cudaDriverEntryPointSuccess) {
        *(void **)&found = address;
        known = found;
    }
    return found;
}

/* f32 is rounded to the nearest tf32 on its way in; wgmma would cut it off. */
static const CUtensorMapDataType types_in[GPUNVME_OPS_NDTYPES] = {CU_TENSOR_MAP_DATA_TYPE_TFLOAT32,
                                                                  CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
                                                                  CU_TENSOR_MAP_DATA_TYPE_BFLOAT16};
static const CUtensorMapDataType types_out[GPUNVME_OPS_NDTYPES] = {
    CU_TENSOR_MAP_DATA_TYPE_FLOAT32, CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
    CU_TENSOR_MAP_DATA_TYPE_BFLOAT16};

static gpunvme_ops_status_t encode(CUtensorMap *map, const void *data, CUtensorMapDataType type,
                                   const struct hopper_tensor *x)
{
    const cuuint32_t steps[3] = {1, 1, 1};
    cuuint64_t size[3] = {x->size[0], x->size[1], x->size[2]};
    cuuint64_t stride[2] = {x->stride[0], x->stride[1]};
    encode_fn function = find_encode();
    CUresult result;

    if (!function)
        return ops_fail(GPUNVME_OPS_ERR_CUDA, "the driver has no cuTensorMapEncodeTiled: it must "
                                              "be one for CUDA 12.0 or later");
    result = function(map, type, 3, (void *)(uintptr_t)data, size, stride, x->box, steps,
                      CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result)
        return ops_fail(GPUNVME_OPS_ERR_CUDA,
                        "cuTensorMapEncodeTiled failed (%d) for %llu x %llu elements, %llu bytes "
                        "from row to row",
                        (int)result, (unsigned long long)size[1], (unsigned long long)size[0],
                        (unsigned long long)stride[0]);
    return GPUNVME_OPS_OK;
}

static gpunvme_ops_status_t encode_side(CUtensorMap *map, const struct cuda_product *p,
                                        const struct side *s, int load)
{
    int size = (int)gpunvme_ops_dtype_nbytes(p->dtype);
    struct hopper_tensor x = hopper_tensor_of(
        s->mn ? s->k : s->lines, s->mn ? s->lines : s->k, s->mn ? s->step_k : s->step_line,
        copies_of(s, cuda_matrices(p)), s->stride, size, hopper_box_lines(s->mn, size, load));

    return encode(map, s->data, types_in[p->dtype], &x);
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
 * Results of the type that the kernel is for can leave so if C is only written. What a linear layer
 * adds is done on the way if operands lie as they do there and have 16 bits.
 */
static int copies_out(const struct cuda_product *p, const struct sides *s)
{
    int plain = !p->bias && !p->preact && p->activation == GPUNVME_OPS_ACT_NONE;

    if (p->out_dtype != p->dtype || p->beta != 0 || !can_copy_to(p, p->c, p->ldc, p->stride_c))
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

    return encode(map, to, types_out[p->out_dtype], &x);
}

static struct hopper_grid grid_of(const struct cuda_product *p, const struct sides *s)
{
    return is_exchanged(p, s) ? hopper_grid_of_width(p->n, p->m, p->batch, width_of(p))
                              : hopper_grid_of_width(p->m, p->n, p->batch, width_of(p));
}

/* The operands are as the kernel will read them. */
static gpunvme_ops_status_t prepare(struct hopper_work *work, const struct cuda_product *p,
                                    const struct sides *s)
{
    int width = HOPPER_WIDTH / (int)gpunvme_ops_dtype_nbytes(p->dtype);
    const struct side *first = is_exchanged(p, s) ? &s->b : &s->a;
    const struct side *second = is_exchanged(p, s) ? &s->a : &s->b;
    gpunvme_ops_status_t status = encode_side(&work->a, p, first, HOPPER_TILE_M);

    work->product = *p;
    work->grid = grid_of(p, s);
    work->all_steps = (int)((p->k + width - 1) / width);
    work->pieces = p->pieces > 1 ? p->pieces : 1;
    work->steps = p->pieces > 1 ? (int)(p->chunk / width) : work->all_steps;
    work->a_batch = first->stride != 0;
    work->b_batch = second->stride != 0;
    work->copies_out = copies_out(p, s);
    work->begins_with_bias = work->copies_out && p->bias;
    work->dz.counters = NULL;
    if (!status)
        status = encode_side(&work->b, p, second, width_of(p) / hopper_parts(width_of(p)));
    if (!status && work->copies_out)
        status = encode_out(&work->c, p, p->c, p->ldc, p->stride_c);
    if (!status && work->copies_out && p->preact)
        status = encode_out(&work->preact, p, p->preact, p->ld_preact, 0);
    return status;
}

/* How many clusters can be on the device at once, which is asked for once. */
static gpunvme_ops_status_t resident_clusters(const void *kernel, const cudaLaunchConfig_t *config,
                                              int rows, int *clusters)
{
    static _Atomic int known[16][2];
    int device, error = cudaGetDevice(&device);

    if (!error && device < 16 && known[device][rows - 1]) {
        *clusters = known[device][rows - 1];
        return GPUNVME_OPS_OK;
    }
    if (!error)
        error = cudaOccupancyMaxActiveClusters(clusters, kernel, config);
    if (error)
        return cuda_status(error, "asking how many clusters there can be");
    if (*clusters < 1)
        return ops_fail(GPUNVME_OPS_ERR_DEVICE, "this GPU has no room for clusters of %d blocks",
                        rows);
    if (device < 16)
        known[device][rows - 1] = *clusters;
    return GPUNVME_OPS_OK;
}

/*
 * The panels of the tiles that all clusters make first, for those are needed at once. Tiles are
 * made in groups of fewer below each other than elsewhere, so that these are not many: some columns
 * of B more are read for it, from the cache.
 */
static struct dz_order order_of(const struct hopper_work *work, const struct linear_dz *dz,
                                uint32_t clusters)
{
    const struct hopper_grid *grid = &work->grid;
    uint32_t panels = (uint32_t)dz_panels(dz->rows), pairs = hopper_grid_size(grid), first = 0;

    for (uint32_t i = 0; i < clusters && i < pairs; i++) {
        struct hopper_place x = hopper_place_of(grid, i);
        uint32_t end = (uint32_t)(x.row / HOPPER_TILE_M) + grid->rows;

        first = end > first ? end : first;
    }
    return (struct dz_order){panels, (uint32_t)dz_chunks(dz->out), first < panels ? first : panels,
                             grid->group * grid->rows};
}

_Static_assert((int)DZ_PANEL == (int)HOPPER_TILE_M && DZ_CHUNK * 2 % (int)HOPPER_WIDTH == 0,
               "a tile's stages are each of one panel and chunk");

static gpunvme_ops_status_t launch_clusters(const void *kernel, struct hopper_work *work,
                                            int exchanged, void *stream, struct cuda_launch *launch)
{
    const int width = (int)work->grid.width, rows = (int)work->grid.rows;
    const struct cuda_tiling tilings[2] = {
        {HOPPER_TILE_M, width, 64, width, HOPPER_THREADS, HOPPER_SHARED_NBYTES, rows, 1},
        {width, HOPPER_TILE_M, width, 64, HOPPER_THREADS, HOPPER_SHARED_NBYTES, 1, rows}};
    int clusters = 0, pairs = (int)hopper_grid_size(&work->grid);
    cudaLaunchAttribute attributes[] = {
        {.id = cudaLaunchAttributeClusterDimension, .val.clusterDim = {(unsigned)rows, 1, 1}},
        {.id = cudaLaunchAttributeProgrammaticStreamSerialization,
         .val.programmaticStreamSerializationAllowed = 1}};
    cudaLaunchConfig_t config = {.gridDim = {(unsigned)rows, 1, 1},
                                 .blockDim = {HOPPER_THREADS, 1, 1},
                                 .dynamicSmemBytes = HOPPER_SHARED_NBYTES,
                                 .stream = stream,
                                 .attrs = attributes,
                                 .numAttrs = 2};
    void *args[] = {work};
    gpunvme_ops_status_t status = cuda_allow_shared(kernel, HOPPER_SHARED_NBYTES);

    if (!status)
        status = resident_clusters(kernel, &config, rows, &clusters);
    if (status)
        return status;
    config.gridDim.x = (unsigned)((pairs < clusters ? pairs : clusters) * rows);
    if (work->dz.counters)
        work->dz.order = order_of(work, &work->dz.dz, (uint32_t)clusters);
    if (launch)
        return cuda_describe(kernel, &tilings[exchanged], config.gridDim.x, launch);
    return cuda_status(cudaLaunchKernelExC(&config, kernel, args), "launching clusters");
}

/*
 * Makes counters 0 before the next kernel counts, and after the kernel before has ended. It uses no
 * shared memory but asks for as much as products have, since a multiprocessor that shall have more
 * or less must be empty first.
 */
static gpunvme_ops_status_t clear(void *counters, size_t nbytes, void *stream)
{
    const void *kernel = hopper_clear_kernel();
    uint32_t count = (uint32_t)(nbytes / sizeof(uint32_t));
    uint32_t blocks = (count + HOPPER_CLEAR_WORDS - 1) / HOPPER_CLEAR_WORDS;
    cudaLaunchAttribute early = {.id = cudaLaunchAttributeProgrammaticStreamSerialization,
                                 .val.programmaticStreamSerializationAllowed = 1};
    cudaLaunchConfig_t config = {
        .gridDim = {blocks < HOPPER_CLEAR_BLOCKS ? blocks : HOPPER_CLEAR_BLOCKS, 1, 1},
        .blockDim = {HOPPER_CLEAR_THREADS, 1, 1},
        .stream = stream,
        .attrs = &early,
        .numAttrs = 1};
    void *args[] = {&counters, &count};
    int error = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                     cudaSharedmemCarveoutMaxShared);

    if (!error)
        error = cudaLaunchKernelExC(&config, kernel, args);
    return cuda_status(error, "clearing counters");
}

gpunvme_ops_status_t hopper_multiply_making_dz(const struct cuda_product *p,
                                               const struct linear_dz *dz,
                                               const struct dz_bias *bias, void *counters,
                                               void *stream)
{
    struct sides s = sides_of(p);
    struct hopper_work work;
    gpunvme_ops_status_t status = prepare(&work, p, &s);

    work.grid.group = HOPPER_GROUP / 2;
    work.dz.dz = *dz;
    work.dz.bias = *bias;
    work.dz.counters = counters;
    if (!status)
        status = clear(counters, dz_counters_nbytes(dz->rows, dz->out), stream);
    return status ? status
                  : launch_clusters(hopper_kernel_making_dz(p->dtype), &work, 0, stream, NULL);
}

gpunvme_ops_status_t cuda_multiply_hopper(const struct cuda_product *p, void *workspace,
                                          void *stream, struct cuda_launch *launch)
{
    struct sides s = sides_of(p);
    const void *kernel = hopper_kernel(p->dtype, lies_across(&s.a), lies_across(&s.b), width_of(p));
    int exchanged = is_exchanged(p, &s);
    char *to_a = workspace, *to_b = workspace ? to_a + copy_nbytes(p, &s.a) : NULL;
    struct hopper_work work;
    gpunvme_ops_status_t status;

    if (launch) {
        work.dz.counters = NULL;
        work.grid = grid_of(p, &s);
        return launch_clusters(kernel, &work, exchanged, stream, launch);
    }
    status = make_copy(p, &p->a, &s.a, to_a, stream);
    if (!status)
        status = make_copy(p, &p->b, &s.b, to_b, stream);
    if (!status)
        status = prepare(&work, p, &s);
    return status ? status : launch_clusters(kernel, &work, exchanged, stream, NULL);
}
