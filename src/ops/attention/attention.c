/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Attention, forward and backward: their tables, and what their arguments must be. The other
 * operators of this folder make use of the checks.
 */
#include <inttypes.h>
#include <math.h>

#include "ops/attention/attention.h"

OPS_ABI_SIZE(gpunvme_attention_strides, 24);
OPS_ABI_SIZE(gpunvme_rope, 56);
OPS_ABI_SIZE(gpunvme_attention, 408);
OPS_ABI_SIZE(gpunvme_attention_grad, 576);

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

gpunvme_ops_status_t attention_check_sizes(const struct attention_size *sizes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (sizes[i].value < sizes[i].least)
            return ops_fail(GPUNVME_OPS_ERR_SHAPE,
                            "%s is %" PRId64 ": it must be at least %" PRId64, sizes[i].name,
                            sizes[i].value, sizes[i].least);
    return GPUNVME_OPS_OK;
}

gpunvme_ops_status_t attention_check_flag(const char *name, int64_t value, int64_t most)
{
    if (value < 0 || value > most)
        return ops_fail(GPUNVME_OPS_ERR_INVALID, "%s is %" PRId64 ": %s", name, value,
                        most ? "it must be 0 or 1" : "set it to 0");
    return GPUNVME_OPS_OK;
}

gpunvme_ops_status_t attention_check_rope(const struct gpunvme_rope *r, int64_t dim,
                                          int64_t positions)
{
    bool tables = r->cos || r->sin;
    gpunvme_ops_status_t status;

    if (!r->dim)
        return GPUNVME_OPS_OK;
    if (r->dim < 0 || r->dim % 2 || r->first < 0 || (int64_t)r->first + r->dim > dim)
        return ops_fail(GPUNVME_OPS_ERR_SHAPE,
                        "rope rotates %d channels from %d on: they must be even in number, and "
                        "among the %" PRId64 " that there are",
                        r->dim, r->first, dim);
    status = attention_check_flag("rope.interleaved", r->interleaved, 1);
    if (!status)
        status = attention_check_flag("rope.queries_only", r->queries_only, 1);
    if (!status)
        status = attention_check_flag("rope.reserved", r->reserved, 0);
    if (status)
        return status;
    if (tables && (!r->cos || !r->sin))
        return ops_fail(GPUNVME_OPS_ERR_INVALID, "rope has one of the tables cos and sin: give "
                                                 "both, or neither");
    if (tables && r->rows < positions)
        return ops_fail(GPUNVME_OPS_ERR_SHAPE,
                        "rope's tables have %" PRId64 " rows: there are %" PRId64 " positions",
                        r->rows, positions);
    if (!tables && !(r->base == 0 || (r->base > 0 && isfinite(r->base))))
        return ops_fail(GPUNVME_OPS_ERR_INVALID, "rope.base is %g: it must be positive",
                        (double)r->base);
    return GPUNVME_OPS_OK;
}

static gpunvme_ops_status_t check_numbers(const struct gpunvme_attention *p)
{
    const struct attention_size sizes[] = {
        {"batch", p->batch, 0},
        {"heads", p->heads, 1},
        {"kv_heads", p->kv_heads, 1},
        {"dim", p->dim, 1},
        {"dim_v", p->dim_v, 1},
        {"q_len", p->q_len, 0},
        {"k_len", p->k_len, 0},
        {"q_rows", p->q_rows, p->q_offsets ? 0 : INT64_MIN},
        {"k_rows", p->k_rows, p->k_offsets ? 0 : INT64_MIN},
        {"window_left", p->window_left, p->window ? 0 : INT64_MIN},
        {"window_right", p->window_right, p->window ? 0 : INT64_MIN},
    };
    gpunvme_ops_status_t status = attention_check_sizes(sizes, COUNT(sizes));

    if (!status && p->heads % p->kv_heads)
        status = ops_fail(GPUNVME_OPS_ERR_SHAPE,
                          "kv_heads is %" PRId64 ": it must divide heads, which is %" PRId64,
                          p->kv_heads, p->heads);
    return status;
}

static gpunvme_ops_status_t check_features(const struct gpunvme_attention *p)
{
    const struct {
        const char *name;
        int64_t value, most;
    } flags[] = {
        {"causal", p->causal, 1},
        {"window", p->window, 1},
        {"reserved", p->reserved, 0},
    };

    for (size_t i = 0; i < COUNT(flags); i++) {
        gpunvme_ops_status_t status =
            attention_check_flag(flags[i].name, flags[i].value, flags[i].most);

        if (status)
            return status;
    }
    if (!isfinite(p->scale))
        return ops_fail(GPUNVME_OPS_ERR_INVALID, "scale is %g: it must be finite",
                        (double)p->scale);
    if (!(p->softcap >= 0 && isfinite(p->softcap)))
        return ops_fail(GPUNVME_OPS_ERR_INVALID,
                        "softcap is %g: it must be positive, or 0 for none", (double)p->softcap);
    return GPUNVME_OPS_OK;
}

gpunvme_ops_status_t attention_check_descales(const struct gpunvme_attention *p, int kv_dtype)
{
    bool some = p->k_descale || p->v_descale || p->descale_stride;

    if (p->q_descale && p->dtype != GPUNVME_OPS_E4M3)
        return ops_fail(GPUNVME_OPS_ERR_INVALID, "q_descale is for operands of e4m3: these are %s",
                        gpunvme_ops_dtype_name(p->dtype));
    if (some && kv_dtype != GPUNVME_OPS_E4M3)
        return ops_fail(GPUNVME_OPS_ERR_INVALID,
                        "k_descale, v_descale and descale_stride are for keys and values of e4m3: "
                        "these are %s",
                        gpunvme_ops_dtype_name(kv_dtype));
    return GPUNVME_OPS_OK;
}

static gpunvme_ops_status_t check_types(const struct gpunvme_attention *p, int kv_dtype)
{
    gpunvme_ops_status_t status = ops_check_enum("dtype", p->dtype, GPUNVME_OPS_NALLDTYPES);

    if (!status)
        status = ops_check_enum("out_dtype", p->out_dtype, GPUNVME_OPS_NDTYPES);
    if (!status)
        status = ops_check_enum("compute", p->compute, GPUNVME_OPS_NCOMPUTES);
    if (!status && p->out_dtype != GPUNVME_OPS_F32 && p->out_dtype != p->dtype &&
        p->dtype < GPUNVME_OPS_NDTYPES)
        status = ops_fail(GPUNVME_OPS_ERR_DTYPE, "out is %s: from %s it can be that, or f32",
                          gpunvme_ops_dtype_name(p->out_dtype), gpunvme_ops_dtype_name(p->dtype));
    return status ? status : attention_check_descales(p, kv_dtype);
}

gpunvme_ops_status_t attention_check(struct ops_call *call, const struct gpunvme_attention *p,
                                     int kv_dtype)
{
    int64_t positions = p->q_len > p->k_len ? p->q_len : p->k_len;
    gpunvme_ops_status_t status = check_types(p, kv_dtype);

    if (!status)
        status = check_numbers(p);
    if (!status)
        status = check_features(p);
    if (!status)
        status = attention_check_rope(&p->rope, p->dim, positions);
    if (status)
        return status;
    call->dtype = p->dtype;
    call->compute = p->compute;
    call->flops = 2 * (double)(p->dim + p->dim_v) * (double)p->heads * (double)p->k_len *
                  (double)attention_q_rows(p) * (double)attention_batch(p, p->q_offsets);
    return GPUNVME_OPS_OK;
}

void attention_add_tensor(struct ops_spans *spans, const char *name, const void *data,
                          const int64_t sizes[4], const struct gpunvme_attention_strides *strides,
                          int dtype, int result)
{
    spans->matrix[spans->count++] = (struct ops_matrix){
        .name = name,
        .data = data,
        .batch = sizes[0],
        .stride = strides->batch,
        .rows = sizes[1],
        .ld = strides->row,
        .depth = sizes[2],
        .pitch = strides->head,
        .cols = sizes[3],
        .dtype = dtype,
        .result = result,
        .unused = !sizes[0] || !sizes[1] || !sizes[2] || !sizes[3],
    };
}

void attention_add_integers(struct ops_spans *spans, const char *name, const int32_t *data,
                            int64_t rows, int64_t cols, int64_t ld)
{
    spans->matrix[spans->count++] = (struct ops_matrix){
        .name = name,
        .data = data,
        .rows = rows,
        .cols = cols,
        .ld = ld,
        .batch = 1,
        .integers = 1,
        .unused = !rows || !cols,
    };
}

static void add_floats(struct ops_spans *spans, const char *name, const float *data, int64_t rows,
                       int64_t cols, int64_t ld)
{
    attention_add_integers(spans, name, (const int32_t *)data, rows, cols, ld);
    spans->matrix[spans->count - 1].integers = 0;
    spans->matrix[spans->count - 1].dtype = GPUNVME_OPS_F32;
}

static void add_sequences(struct ops_spans *spans, const char *offsets_name, const int32_t *offsets,
                          const char *lengths_name, const int32_t *lengths, int64_t batch)
{
    if (offsets)
        attention_add_integers(spans, offsets_name, offsets, 1, batch + 1, 0);
    if (lengths)
        attention_add_integers(spans, lengths_name, lengths, 1, batch, 0);
}

void attention_describe_q(struct ops_spans *spans, const struct gpunvme_attention *p, bool results)
{
    int64_t batch = attention_batch(p, p->q_offsets), rows = attention_q_rows(p);
    bool any = p->batch && p->q_len;
    const int64_t q[] = {any ? batch : 0, rows, p->heads, p->dim};
    const int64_t out[] = {any ? batch : 0, rows, p->heads, p->dim_v};
    const int64_t lse[] = {any ? batch : 0, rows, p->heads, 1};

    attention_add_tensor(spans, "q", p->q, q, &p->q_strides, p->dtype, 0);
    attention_add_tensor(spans, "out", p->out, out, &p->out_strides, p->out_dtype, results);
    if (p->lse || !results)
        attention_add_tensor(spans, "lse", p->lse, lse, &p->lse_strides, GPUNVME_OPS_F32, results);
    add_sequences(spans, "q_offsets", p->q_offsets, "q_lengths", p->q_lengths, p->batch);
    if (p->sinks)
        add_floats(spans, "sinks", p->sinks, any ? 1 : 0, p->heads, 0);
}

void attention_describe_k(struct ops_spans *spans, const struct gpunvme_attention *p)
{
    int64_t batch = attention_batch(p, p->k_offsets), rows = attention_k_rows(p);
    bool any = p->batch && p->q_len && p->k_len;
    const int64_t k[] = {any ? batch : 0, rows, p->kv_heads, p->dim};
    const int64_t v[] = {any ? batch : 0, rows, p->kv_heads, p->dim_v};

    attention_add_tensor(spans, "k", p->k, k, &p->k_strides, p->dtype, 0);
    attention_add_tensor(spans, "v", p->v, v, &p->v_strides, p->dtype, 0);
    add_sequences(spans, "k_offsets", p->k_offsets, "k_lengths", p->k_lengths, p->batch);
}

/* With stride 0 there is one row of them. */
void attention_describe_descales(struct ops_spans *spans, const struct gpunvme_attention *p,
                                 bool unused)
{
    const struct {
        const char *name;
        const float *data;
    } all[] = {
        {"q_descale", p->q_descale}, {"k_descale", p->k_descale}, {"v_descale", p->v_descale}};
    int64_t rows = unused ? 0 : p->descale_stride ? p->batch : 1;

    for (size_t i = 0; i < COUNT(all); i++)
        if (all[i].data)
            add_floats(spans, all[i].name, all[i].data, rows, p->kv_heads, p->descale_stride);
}

void attention_describe_rope(struct ops_spans *spans, const struct gpunvme_rope *r, bool unused)
{
    int64_t rows = r->dim && !unused ? r->rows : 0;

    if (!r->cos)
        return;
    add_floats(spans, "rope.cos", r->cos, rows, r->dim / 2, r->ld);
    add_floats(spans, "rope.sin", r->sin, rows, r->dim / 2, r->ld);
}

static gpunvme_ops_status_t check(struct ops_call *call)
{
    const struct gpunvme_attention *p = call->descriptor;
    gpunvme_ops_status_t status = attention_check(call, p, p->dtype);

    if (status)
        return status;
    call->empty = !p->batch || !p->q_len || !attention_q_rows(p);
    attention_describe_q(&call->spans, p, true);
    attention_describe_k(&call->spans, p);
    attention_describe_rope(&call->spans, &p->rope, call->empty);
    attention_describe_descales(&call->spans, p, call->empty);
    return GPUNVME_OPS_OK;
}

const struct ops_operator ops_attention = {
    "attention", check, {&attention_cpu, OPS_CUDA(&attention_cuda)}};

OPS_FUNCTIONS(ops_attention, gpunvme_attention, struct gpunvme_attention)

static void describe_gradients(const struct gpunvme_attention_grad *p, struct ops_spans *spans)
{
    const struct gpunvme_attention *f = &p->forward;
    int64_t q_batch = f->q_len ? attention_batch(f, f->q_offsets) : 0;
    int64_t k_batch = f->k_len ? attention_batch(f, f->k_offsets) : 0;
    int64_t q_rows = f->batch ? attention_q_rows(f) : 0;
    int64_t k_rows = f->batch ? attention_k_rows(f) : 0;

    attention_add_tensor(spans, "grad_out", p->grad_out,
                         (const int64_t[]){q_batch, q_rows, f->heads, f->dim_v},
                         &p->grad_out_strides, f->out_dtype, 0);
    if (p->grad_q)
        attention_add_tensor(spans, "grad_q", p->grad_q,
                             (const int64_t[]){q_batch, q_rows, f->heads, f->dim},
                             &p->grad_q_strides, f->dtype, 1);
    if (p->grad_k)
        attention_add_tensor(spans, "grad_k", p->grad_k,
                             (const int64_t[]){k_batch, k_rows, f->kv_heads, f->dim},
                             &p->grad_k_strides, f->dtype, 1);
    if (p->grad_v)
        attention_add_tensor(spans, "grad_v", p->grad_v,
                             (const int64_t[]){k_batch, k_rows, f->kv_heads, f->dim_v},
                             &p->grad_v_strides, f->dtype, 1);
    if (p->grad_sinks) {
        add_floats(spans, "grad_sinks", p->grad_sinks, 1, f->heads, 0);
        spans->matrix[spans->count - 1].result = 1;
    }
}

static gpunvme_ops_status_t check_backward(struct ops_call *call)
{
    const struct gpunvme_attention_grad *p = call->descriptor;
    gpunvme_ops_status_t status = attention_check(call, &p->forward, p->forward.dtype);

    for (size_t i = 0; i < COUNT(p->reserved) && !status; i++)
        status = attention_check_flag("reserved", p->reserved[i], 0);
    if (status)
        return status;
    if (p->grad_sinks && !p->forward.sinks)
        return ops_fail(GPUNVME_OPS_ERR_INVALID, "grad_sinks is wanted, but sinks is NULL");
    call->flops *= 2.5; /* five products instead of two */
    call->empty = !attention_wants_q(p) && !attention_wants_kv(p) && !p->grad_sinks;
    if (call->empty)
        return GPUNVME_OPS_OK;
    attention_describe_q(&call->spans, &p->forward, false);
    attention_describe_k(&call->spans, &p->forward);
    attention_describe_rope(&call->spans, &p->forward.rope, false);
    describe_gradients(p, &call->spans);
    return GPUNVME_OPS_OK;
}

const struct ops_operator ops_attention_backward = {
    "attention_backward",
    check_backward,
    {&attention_backward_cpu, OPS_CUDA(&attention_backward_cuda)}};

OPS_FUNCTIONS(ops_attention_backward, gpunvme_attention_backward, struct gpunvme_attention_grad)
