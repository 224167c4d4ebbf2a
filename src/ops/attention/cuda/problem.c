/* SPDX-License-Identifier: BSD-3-Clause
 *
 * From the caller's descriptor to the problem that kernels get.
 */
#include <cuda_runtime_api.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>

#include "ops/attention/attention.h"
#include "ops/attention/cuda/problem.h"

gpunvme_ops_status_t cuda_attention_check(const struct ops_variant *variant,
                                          const struct gpunvme_attention *p)
{
    const int64_t sizes[] = {p->batch, p->heads, p->dim, p->dim_v, p->q_len, p->k_len};

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        if (sizes[i] > CUDA_ATTENTION_MOST)
            return ops_fail(GPUNVME_OPS_ERR_UNSUPPORTED,
                            "variant '%s' takes lengths, heads, channels and batches up to %d: "
                            "one is %" PRId64,
                            variant->name, CUDA_ATTENTION_MOST, sizes[i]);
    return GPUNVME_OPS_OK;
}

struct cuda_rows cuda_rows_of(const void *data, const struct gpunvme_attention_strides *strides,
                              int64_t batch, int64_t rows, int64_t heads, int dtype)
{
    int64_t size = (int64_t)gpunvme_ops_dtype_nbytes(dtype);
    struct cuda_rows x = {
        .data = (void *)(uintptr_t)data,
        .batch = batch > 1 ? strides->batch : 0,
        .row = rows > 1 ? strides->row : 0,
        .head = heads > 1 ? strides->head : 0,
    };

    x.vectors = ((uint64_t)(uintptr_t)data | (uint64_t)(x.batch * size) | (uint64_t)(x.row * size) |
                 (uint64_t)(x.head * size)) %
                    16 ==
                0;
    return x;
}

static struct cuda_rope rope_of(const struct gpunvme_rope *r)
{
    double base = r->base > 0 ? (double)r->base : 10000;

    return (struct cuda_rope){
        .cos = r->cos,
        .sin = r->sin,
        .ld = r->ld,
        .rate = r->dim ? -2 * log2(base) / r->dim : 0,
        .dim = r->dim,
        .first = r->first,
        .interleaved = r->interleaved,
        .queries_only = r->queries_only,
    };
}

static int limit(int64_t keys)
{
    return keys < CUDA_ATTENTION_MOST ? (int)keys : CUDA_ATTENTION_MOST;
}

struct cuda_attention cuda_attention_of(const struct gpunvme_attention *p)
{
    int64_t q_batch = attention_batch(p, p->q_offsets), q_rows = attention_q_rows(p);
    int64_t k_batch = attention_batch(p, p->k_offsets), k_rows = attention_k_rows(p);
    int right = p->window ? limit(p->window_right) : CUDA_ATTENTION_MOST;

    return (struct cuda_attention){
        .batch = (int)p->batch,
        .heads = (int)p->heads,
        .kv_heads = (int)p->kv_heads,
        .group = (int)(p->heads / p->kv_heads),
        .dim = (int)p->dim,
        .dim_v = (int)p->dim_v,
        .q_len = (int)p->q_len,
        .k_len = (int)p->k_len,
        .q_rows = q_rows,
        .k_rows = k_rows,
        .q = cuda_rows_of(p->q, &p->q_strides, q_batch, q_rows, p->heads, p->dtype),
        .k = cuda_rows_of(p->k, &p->k_strides, k_batch, k_rows, p->kv_heads, p->dtype),
        .v = cuda_rows_of(p->v, &p->v_strides, k_batch, k_rows, p->kv_heads, p->dtype),
        .out = cuda_rows_of(p->out, &p->out_strides, q_batch, q_rows, p->heads, p->out_dtype),
        .lse = cuda_rows_of(p->lse, &p->lse_strides, q_batch, q_rows, p->heads, GPUNVME_OPS_F32),
        .q_offsets = p->q_offsets,
        .k_offsets = p->k_offsets,
        .q_lengths = p->q_lengths,
        .k_lengths = p->k_lengths,
        .sinks = p->sinks,
        .left = p->window ? limit(p->window_left) : CUDA_ATTENTION_MOST,
        .right = p->causal ? 0 : right,
        .rope = rope_of(&p->rope),
        .scale = p->scale != 0 ? p->scale : (float)(1 / sqrt((double)p->dim)),
        .softcap = p->softcap,
        .dtype = p->dtype,
        .out_dtype = p->out_dtype,
        .q_descale = p->q_descale,
        .k_descale = p->k_descale,
        .v_descale = p->v_descale,
        .descale_stride = p->descale_stride,
        .kv_dtype = p->dtype,
    };
}

int cuda_attention_width(const struct cuda_attention *x)
{
    int dim = x->dim > x->dim_v ? x->dim : x->dim_v;

    return dim <= 64 ? 64 : dim <= 128 ? 128 : 256;
}

unsigned cuda_attention_blocks(int64_t items, int each)
{
    int64_t blocks = items / each + (items % each != 0);

    return (unsigned)(blocks < INT_MAX ? blocks : INT_MAX);
}

gpunvme_ops_status_t cuda_attention_launched(void)
{
    return cuda_status(cudaGetLastError(), "launching a kernel");
}
