/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The host's half of the rung "hopper": tensor maps, copies of what the copy engine can't read, and
 * the launch of clusters.
 *
 * The copy engine reads rows that begin at multiples of 16 bytes, and tf32 only what is contiguous
 * along k. Operands that are not so are copied to the workspace first, which costs one read and one
 * write of them.
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

    s.copy = !x->pitched || (s.mn && dtype == GPUNVME_OPS_F32);
    s.pitch = (k + 16 / size - 1) / (16 / size) * (16 / size);
    return s;
}

static struct side side_a(const struct cuda_product *p)
{
    return side_of(&p->a, p->a.rs, p->a.cs, p->m, p->k, p->dtype);
}

static struct side side_b(const struct cuda_product *p)
{
    return side_of(&p->b, p->b.cs, p->b.rs, p->n, p->k, p->dtype);
}

static int64_t copies_of(const struct side *s, int64_t batch)
{
    return s->stride ? batch : 1;
}

static size_t copy_nbytes(const struct cuda_product *p, const struct side *s)
{
    int64_t row = s->pitch * (int64_t)gpunvme_ops_dtype_nbytes(p->dtype), rows;

    if (!s->copy)
        return 0;
    if (__builtin_mul_overflow(s->lines, copies_of(s, p->batch), &rows))
        rows = INT64_MAX;
    return cuda_workspace_part(rows, row);
}

size_t cuda_workspace_hopper(const struct cuda_product *p)
{
    struct side a = side_a(p), b = side_b(p);

    return copy_nbytes(p, &a) + copy_nbytes(p, &b);
}

int cuda_misaligned_hopper(const struct cuda_product *p)
{
    struct side a = side_a(p), b = side_b(p);

    return (!a.copy && (uintptr_t)a.data % 16) || (!b.copy && (uintptr_t)b.data % 16);
}

int cuda_suits_hopper(const struct cuda_product *p)
{
    struct hopper_grid grid;

    if (p->m > INT_MAX / 2 || p->n > INT_MAX / 2 || p->k > INT_MAX / 2 || p->batch > INT_MAX)
        return 0;
    grid = hopper_grid_of(p->m, p->n, p->batch);
    return hopper_grid_fits(&grid);
}

/* From then on the operand is its copy. */
static gpunvme_ops_status_t make_copy(const struct cuda_product *p, const struct cuda_operand *x,
                                      struct side *s, void *to, void *stream)
{
    int size = (int)gpunvme_ops_dtype_nbytes(p->dtype);
    gpunvme_ops_status_t status;

    if (!s->copy)
        return GPUNVME_OPS_OK;
    status = hopper_repack(x, s->step_line, s->step_k, s->lines, s->k, copies_of(s, p->batch),
                           s->pitch, size, to, stream);
    s->data = to;
    s->step_line = s->pitch;
    s->step_k = 1;
    s->stride = s->stride ? s->lines * s->pitch : 0;
    s->mn = 0;
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

static gpunvme_ops_status_t encode(CUtensorMap *map, const void *data, int dtype,
                                   const struct hopper_tensor *x)
{
    /* f32 is rounded to the nearest tf32 on its way in; wgmma would cut it off. */
    static const CUtensorMapDataType types[GPUNVME_OPS_NDTYPES] = {
        CU_TENSOR_MAP_DATA_TYPE_TFLOAT32, CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        CU_TENSOR_MAP_DATA_TYPE_BFLOAT16};
    const cuuint32_t steps[3] = {1, 1, 1};
    cuuint64_t size[3] = {x->size[0], x->size[1], x->size[2]};
    cuuint64_t stride[2] = {x->stride[0], x->stride[1]};
    encode_fn function = find_encode();
    CUresult result;

    if (!function)
        return ops_fail(GPUNVME_OPS_ERR_CUDA, "the driver has no cuTensorMapEncodeTiled: it must "
                                              "be one for CUDA 12.0 or later");
    result = function(map, types[dtype], 3, (void *)(uintptr_t)data, size, stride, x->box, steps,
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
                                        const struct side *s)
{
    int size = (int)gpunvme_ops_dtype_nbytes(p->dtype);
    struct hopper_tensor x = hopper_tensor_of(
        s->mn ? s->k : s->lines, s->mn ? s->lines : s->k, s->mn ? s->step_k : s->step_line,
        copies_of(s, p->batch), s->stride, size, hopper_box_lines(s->mn));

    return encode(map, s->data, p->dtype, &x);
}

/*
 * The copy engine can write a matrix of 16 bits whose rows begin at multiples of 16 bytes and end
 * there, too: it writes as many at the least, over a row's end if need be.
 */
static int can_copy_to(const struct cuda_product *p, const void *to, int64_t ld, int64_t stride)
{
    return (uintptr_t)to % 16 == 0 && p->n % 8 == 0 && ld % 8 == 0 && stride % 8 == 0;
}

/* What a linear layer adds is done on the way if operands are as they are there. */
static int copies_out(const struct cuda_product *p, const struct side *a, const struct side *b)
{
    int plain = !p->bias && !p->preact && p->activation == GPUNVME_OPS_ACT_NONE;

    if (p->out_dtype == GPUNVME_OPS_F32 || p->beta != 0 ||
        !can_copy_to(p, p->c, p->ldc, p->stride_c))
        return 0;
    return plain || (!a->mn && !b->mn && p->dtype == p->out_dtype && p->alpha == 1 &&
                     p->batch == 1 && (uintptr_t)p->bias % 4 == 0 &&
                     (!p->preact || can_copy_to(p, p->preact, p->ld_preact, 0)));
}

static gpunvme_ops_status_t prepare(struct hopper_work *work, const struct cuda_product *p,
                                    const struct side *a, const struct side *b)
{
    int width = HOPPER_WIDTH / (int)gpunvme_ops_dtype_nbytes(p->dtype);
    gpunvme_ops_status_t status = encode_side(&work->a, p, a);

    work->product = *p;
    work->grid = hopper_grid_of(p->m, p->n, p->batch);
    work->steps = (int)((p->k + width - 1) / width);
    work->a_batch = a->stride != 0;
    work->b_batch = b->stride != 0;
    work->copies_out = copies_out(p, a, b);
    work->begins_with_bias = work->copies_out && p->bias;
    if (!status)
        status = encode_side(&work->b, p, b);
    if (!status && work->copies_out) {
        struct hopper_tensor c = hopper_tensor_of(p->m, p->n, p->ldc, p->batch, p->stride_c, 2, 64);

        status = encode(&work->c, p->c, p->out_dtype, &c);
    }
    if (!status && work->copies_out && p->preact) {
        struct hopper_tensor z = hopper_tensor_of(p->m, p->n, p->ld_preact, 1, 0, 2, 64);

        status = encode(&work->preact, p->preact, p->dtype, &z);
    }
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

static gpunvme_ops_status_t launch_clusters(const void *kernel, struct hopper_work *work,
                                            void *stream, struct cuda_launch *launch)
{
    static const struct cuda_tiling tiling = {HOPPER_TILE_M, HOPPER_TILE_N,  64,
                                              HOPPER_TILE_N, HOPPER_THREADS, HOPPER_SHARED_NBYTES};
    int rows = (int)work->grid.rows, clusters = 0, pairs = (int)hopper_grid_size(&work->grid);
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
    if (launch)
        return cuda_describe(kernel, &tiling, config.gridDim.x, launch);
    return cuda_status(cudaLaunchKernelExC(&config, kernel, args), "launching clusters");
}

gpunvme_ops_status_t cuda_multiply_hopper(const struct cuda_product *p, void *workspace,
                                          void *stream, struct cuda_launch *launch)
{
    struct side a = side_a(p), b = side_b(p);
    char *to_a = workspace, *to_b = workspace ? to_a + copy_nbytes(p, &a) : NULL;
    struct hopper_work work;
    gpunvme_ops_status_t status;

    if (launch) {
        work.grid = hopper_grid_of(p->m, p->n, p->batch);
        return launch_clusters(hopper_kernel(p->dtype, a.mn && !a.copy, b.mn && !b.copy), &work,
                               stream, launch);
    }
    status = make_copy(p, &p->a, &a, to_a, stream);
    if (!status)
        status = make_copy(p, &p->b, &b, to_b, stream);
    if (!status)
        status = prepare(&work, p, &a, &b);
    return status ? status
                  : launch_clusters(hopper_kernel(p->dtype, a.mn, b.mn), &work, stream, NULL);
}
