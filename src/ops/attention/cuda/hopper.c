/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The rung "hopper", the host's half: what it takes, tensor maps, and the launch.
 */
#include "ops/attention/cuda/hopper.h"

#include <cuda_runtime_api.h>
#include <limits.h>

/* Of the L2 cache, for K and V that several blocks read. */
#define CACHE_NBYTES (24 << 20)

static bool is_fp8(const struct cuda_attention *x)
{
    return x->dtype == GPUNVME_OPS_E4M3;
}

/* Tiles for padded rows of so many channels: as large as registers and shared memory allow. */
static struct hopper_shape shape_of(const struct cuda_attention *x)
{
    int channels = x->dim > x->dim_v ? x->dim : x->dim_v;

    if (is_fp8(x))
        return (struct hopper_shape){HOPPER_FP8_CHANNELS, HOPPER_FP8_KEYS, HOPPER_FP8_GROUPS, 1};
    return (struct hopper_shape){
        .channels = channels <= 64    ? 64
                    : channels <= 128 ? 128
                                      : 256,
        .keys = channels <= 64    ? 128
                : channels <= 128 ? 176
                                  : 80,
        .groups = channels <= 64 ? 3 : 2,
        .size = 2,
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
    double span = CACHE_NBYTES / ((double)x->k_len * (x->dim + x->dim_v) * shape.size + 1);
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

static size_t count_nbytes(const struct cuda_attention *x)
{
    struct hopper_queue queue = queue_of(x, shape_of(x));

    return counted(x, &queue) ? GPUNVME_OPS_WORKSPACE_ALIGN : 0;
}

/* Tiles of keys of a sequence; of all sequences, as hopper_first_values() counts them. */
static int tiles_of(const struct cuda_attention *x, struct hopper_shape shape)
{
    return (x->k_len + shape.keys - 1) / shape.keys;
}

static size_t values_nbytes(const struct cuda_attention *x)
{
    struct hopper_shape shape = shape_of(x);
    int64_t tiles =
        x->k_offsets ? x->k_rows / shape.keys + x->batch : (int64_t)tiles_of(x, shape) * x->batch;

    return is_fp8(x)
               ? ops_workspace_part(tiles, x->kv_heads, hopper_slot_nbytes(shape), sizeof(uint8_t))
               : 0;
}

size_t cuda_attention_hopper_nbytes(const struct cuda_attention *x)
{
    return count_nbytes(x) + values_nbytes(x) + cuda_attention_turned_keys_nbytes(x) +
           cuda_attention_turned_queries_nbytes(x);
}

/* Of K and V, whose rows follow each other in a sequence or a page. */
static int64_t rows_of(const struct cuda_attention *x)
{
    return x->page_size ? x->page_size : x->k_rows;
}

static bool any_keys(const struct cuda_attention *x)
{
    return x->k_len && (x->page_size ? x->pages : x->k_rows);
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
    int most = is_fp8(x) ? 128 : 256;
    bool turns = x->rope.dim, turns_keys = turns && !x->rope.queries_only;

    if (x->kv_dtype != x->dtype || x->page_size % HOPPER_PIECE)
        return ops_fail(GPUNVME_OPS_ERR_UNSUPPORTED,
                        "variant '%s' takes a cache of the type of Q, in pages of a multiple of %d "
                        "rows",
                        variant->name, HOPPER_PIECE);
    if (x->scale < 0 || x->dim > most || x->dim_v > most)
        return ops_fail(GPUNVME_OPS_ERR_UNSUPPORTED,
                        "variant '%s' takes up to %d channels of %s, and a positive scale",
                        variant->name, most, gpunvme_ops_dtype_name(x->dtype));
    if (turns && is_fp8(x))
        return ops_fail(GPUNVME_OPS_ERR_UNSUPPORTED, "variant '%s' takes no rope with %s",
                        variant->name, gpunvme_ops_dtype_name(x->dtype));
    if (turns_keys && x->page_size)
        return ops_fail(GPUNVME_OPS_ERR_UNSUPPORTED,
                        "variant '%s' does not rotate K in pages: let gpunvme_kv_append() do it, "
                        "and set rope.queries_only",
                        variant->name);
    if (!queue_of(x, shape_of(x)).items)
        return ops_fail(GPUNVME_OPS_ERR_UNSUPPORTED,
                        "variant '%s' takes less than 2^31 tiles of queries", variant->name);
    if (any_pointers)
        return GPUNVME_OPS_OK;
    if ((!turns && !hopper_reads(&x->q, x->q_rows)) ||
        (any_keys(x) &&
         ((!turns_keys && !hopper_reads(&x->k, rows_of(x))) || !hopper_reads(&x->v, rows_of(x)))))
        return ops_fail(
            GPUNVME_OPS_ERR_ALIGN,
            "variant '%s' needs Q, K and V, and their strides, at multiples of 16 bytes",
            variant->name);
    return GPUNVME_OPS_OK;
}

gpunvme_ops_status_t hopper_encode_rows(CUtensorMap *map, const struct cuda_rows *x, int channels,
                                        int64_t rows, int heads, int64_t batch, int box, int dtype)
{
    uint64_t nbytes = gpunvme_ops_dtype_nbytes(dtype);
    uint64_t row = x->row ? (uint64_t)x->row * nbytes : 16;
    struct hopper_tensor4 t = {
        .size = {(uint64_t)channels, (uint64_t)rows, x->head ? (uint64_t)heads : 1,
                 x->batch ? (uint64_t)batch : 1},
        .stride = {row, x->head ? (uint64_t)x->head * nbytes : row,
                   x->batch ? (uint64_t)x->batch * nbytes : row},
        .box = {HOPPER_WIDTH / (uint32_t)nbytes, (uint32_t)box, 1, 1},
    };

    return hopper_encode4(map, x->data,
                          dtype == GPUNVME_OPS_E4M3  ? CU_TENSOR_MAP_DATA_TYPE_UINT8
                          : dtype == GPUNVME_OPS_F16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                                     : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                          &t);
}

/* The map of K or V: a tile is read at once, or in pieces of pages. */
static gpunvme_ops_status_t encode_keys(CUtensorMap *map, const struct cuda_attention *x,
                                        const struct cuda_rows *rows, int channels,
                                        const struct hopper_shape *shape)
{
    bool paged = x->page_size;

    return hopper_encode_rows(
        map, rows, channels, rows_of(x), x->kv_heads, paged ? x->pages : x->batch,
        paged ? hopper_piece(x->page_size, shape->keys) : shape->keys, x->dtype);
}

/* Of a problem without RoPE. */
static gpunvme_ops_status_t attend(const struct cuda_attention *x, void *workspace, void *stream)
{
    struct hopper_shape shape = shape_of(x);
    struct hopper_attention work = {
        .piece = x->page_size ? hopper_piece(x->page_size, shape.keys) : 0,
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
        .vectors = x->out.vectors && x->dim_v % 8 == 0 && x->out_dtype != GPUNVME_OPS_F32,
        .values = (uint8_t *)workspace + count_nbytes(x),
        .tiles = tiles_of(x, shape),
    };
    const void *kernel = is_fp8(x) ? hopper_attention_fp8_kernel()
                                   : hopper_attention_kernel(x->dtype, shape, x->page_size);
    unsigned units = (unsigned)cuda_units();
    unsigned blocks = work.queue.items < units ? work.queue.items : units;
    gpunvme_ops_status_t status = hopper_encode_rows(&work.q, &x->q, x->dim, x->q_rows, x->heads,
                                                     x->batch, HOPPER_ROWS, x->dtype);

    work.k = work.v = work.q; /* they are not used without keys */
    if (!status && any_keys(x))
        status = encode_keys(&work.k, x, &x->k, x->dim, &shape);
    if (!status && any_keys(x))
        status = is_fp8(x) ? hopper_transpose_values(&work, stream)
                           : encode_keys(&work.v, x, &x->v, x->dim_v, &shape);
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

gpunvme_ops_status_t cuda_attention_hopper(const struct cuda_attention *x, void *workspace,
                                           void *stream)
{
    struct cuda_attention turned = *x;
    char *keys = (char *)workspace + count_nbytes(x) + values_nbytes(x);
    char *queries = keys + cuda_attention_turned_keys_nbytes(x);
    gpunvme_ops_status_t status = cuda_attention_turn_keys(&turned, keys, stream);

    if (!status)
        status = cuda_attention_turn_queries(&turned, queries, stream);
    return status ? status : attend(&turned, workspace, stream);
}
