/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The rung "hopper", the host's half: what it takes, tensor maps, and the launch.
 */
#include "ops/attention/cuda/hopper.h"

#include <cuda_runtime_api.h>
#include <limits.h>

/* Of the L2 cache, for K and V that several blocks read. */
#define CACHE_NBYTES (24 << 20)

/* Tiles for padded rows of so many channels: as large as registers and shared memory allow. */
static struct hopper_shape shape_of(const struct cuda_attention *x)
{
    int channels = x->dim > x->dim_v ? x->dim : x->dim_v;

    return (struct hopper_shape){
        .channels = channels <= 64    ? 64
                    : channels <= 128 ? 128
                                      : 256,
        .keys = channels <= 64    ? 128
                : channels <= 128 ? 176
                                  : 80,
        .groups = channels <= 64 ? 3 : 2,
    };
}

/* Do tiles of queries cost alike? */
static bool even(const struct cuda_attention *x)
{
    return x->right >= x->k_len && x->left >= x->k_len && !x->q_offsets && !x->k_offsets &&
           !x->q_lengths && !x->k_lengths;
}

static struct hopper_queue queue_of(const struct cuda_attention *x, struct hopper_shape shape)
{
    int rows = shape.groups * HOPPER_ROWS, tiles = x->q_len ? (x->q_len + rows - 1) / rows : 1;
    double items = (double)tiles * x->batch * x->heads;
    double span = CACHE_NBYTES / ((double)x->k_len * (x->dim + x->dim_v) * 2 + 1);
    struct hopper_queue q = {.tiles = (unsigned)tiles, .span = 1};

    if (items >= INT_MAX)
        return q;
    q.items = (unsigned)items;
    q.heads = (unsigned)x->batch * (unsigned)x->heads;
    if (even(x))
        return q;
    span = (span > 1 ? (double)(int64_t)span : 1) * x->group; /* which have the same K and V */
    q.span = span < q.heads ? (unsigned)span : q.heads;
    return q;
}

/* Do blocks take the next item when they are done with one, by a count in memory? */
static bool counted(const struct cuda_attention *x, const struct hopper_queue *queue)
{
    return !even(x) && queue->items > 2 * (unsigned)cuda_units();
}

size_t cuda_attention_hopper_nbytes(const struct cuda_attention *x)
{
    struct hopper_queue queue = queue_of(x, shape_of(x));

    return counted(x, &queue) ? GPUNVME_OPS_WORKSPACE_ALIGN : 0;
}

/* Strides are in bytes there, below 2^40. */
bool hopper_reads(const struct cuda_rows *x, int64_t rows)
{
    const int64_t most = INT64_C(1) << 38;

    return x->vectors && (x->row || rows < 2) && rows <= CUDA_ATTENTION_MOST && x->row < most &&
           x->head < most && x->batch < most;
}

gpunvme_ops_status_t cuda_attention_hopper_suits(const struct ops_variant *variant,
                                                 const struct cuda_attention *x, bool any_pointers)
{
    if (x->rope.dim || x->scale < 0 || x->dim > 256 || x->dim_v > 256)
        return ops_fail(GPUNVME_OPS_ERR_UNSUPPORTED,
                        "variant '%s' takes up to 256 channels, a positive scale and no rope",
                        variant->name);
    if (!queue_of(x, shape_of(x)).items)
        return ops_fail(GPUNVME_OPS_ERR_UNSUPPORTED,
                        "variant '%s' takes less than 2^31 tiles of queries", variant->name);
    if (any_pointers)
        return GPUNVME_OPS_OK;
    if (!hopper_reads(&x->q, x->q_rows) ||
        (x->k_len && x->k_rows &&
         (!hopper_reads(&x->k, x->k_rows) || !hopper_reads(&x->v, x->k_rows))))
        return ops_fail(
            GPUNVME_OPS_ERR_ALIGN,
            "variant '%s' needs Q, K and V, and their strides, at multiples of 16 bytes",
            variant->name);
    return GPUNVME_OPS_OK;
}

gpunvme_ops_status_t hopper_encode_rows(CUtensorMap *map, const struct cuda_rows *x, int channels,
                                        int64_t rows, int heads, int64_t batch, int box, int dtype)
{
    uint64_t row = x->row ? (uint64_t)x->row * 2 : 16;
    struct hopper_tensor4 t = {
        .size = {(uint64_t)channels, (uint64_t)rows, x->head ? (uint64_t)heads : 1,
                 x->batch ? (uint64_t)batch : 1},
        .stride = {row, x->head ? (uint64_t)x->head * 2 : row,
                   x->batch ? (uint64_t)x->batch * 2 : row},
        .box = {HOPPER_WIDTH / 2, (uint32_t)box, 1, 1},
    };

    return hopper_encode4(map, x->data,
                          dtype == GPUNVME_OPS_F16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                                   : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                          &t);
}

gpunvme_ops_status_t cuda_attention_hopper(const struct cuda_attention *x, void *workspace,
                                           void *stream)
{
    struct hopper_shape shape = shape_of(x);
    struct hopper_attention work = {
        .problem = *x,
        .queue = queue_of(x, shape),
        .q_head = x->q.head != 0,
        .q_batch = x->q.batch != 0,
        .k_head = x->k.head != 0,
        .k_batch = x->k.batch != 0,
        .v_head = x->v.head != 0,
        .v_batch = x->v.batch != 0,
        .rate = (x->softcap > 0 ? x->softcap : x->scale) * 1.44269504088896340736f,
        .cap_rate = x->softcap > 0 ? 2 * 1.44269504088896340736f * x->scale / x->softcap : 0,
        .padded = x->k_offsets || x->k_lengths,
        .vectors = x->out.vectors && x->dim_v % 8 == 0 && x->out_dtype == x->dtype,
    };
    const void *kernel = hopper_attention_kernel(x->dtype, shape);
    unsigned units = (unsigned)cuda_units();
    unsigned blocks = work.queue.items < units ? work.queue.items : units;
    gpunvme_ops_status_t status = hopper_encode_rows(&work.q, &x->q, x->dim, x->q_rows, x->heads,
                                                     x->batch, HOPPER_ROWS, x->dtype);

    work.k = work.v = work.q; /* they are not used without keys */
    if (!status && x->k_len && x->k_rows)
        status = hopper_encode_rows(&work.k, &x->k, x->dim, x->k_rows, x->kv_heads, x->batch,
                                    shape.keys, x->dtype);
    if (!status && x->k_len && x->k_rows)
        status = hopper_encode_rows(&work.v, &x->v, x->dim_v, x->k_rows, x->kv_heads, x->batch,
                                    shape.keys, x->dtype);
    if (!status && counted(x, &work.queue)) {
        work.taken = workspace;
        status = cuda_status(cudaMemsetAsync(workspace, 0, sizeof(uint32_t), stream),
                             "clearing a count");
    }
    if (!status)
        status = hopper_launch_blocks(kernel, blocks, 128 * ((unsigned)shape.groups + 1),
                                      (size_t)hopper_attention_nbytes(shape), &work, stream);
    return status;
}
