/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Mixture of experts on the GPU: the ladders, and the launches of a call. Nothing here waits for
 * the device.
 */
#include <cuda_runtime_api.h>

#include "ops/embedding/kernels.h"
#include "ops/moe/kernels.h"
#include "ops/moe/moe.h"
#include "ops/swiglu/kernels.h"

/* A rung: how it makes products. */
struct rung {
    int rank; /* 0: by name alone */
    moe_multiply *multiply;
    moe_differentiate *differentiate;
    int copies; /* of rows by expert */
};

/* Slots by expert, sorted as embedding's gradient sorts rows by id. */
struct sorted {
    int32_t *starts, *order, *hot, *padded;
    uint32_t *nhot;
};

static struct sorted lay_out_sorted(struct moe_workspace *w, int64_t slots, int64_t experts)
{
    struct sorted x;

    x.starts = moe_part(w, 1, experts + 1, sizeof(int32_t));
    x.order = moe_part(w, 1, slots, sizeof(int32_t));
    x.hot = moe_part(w, 1, slots / EMBEDDING_HOT + 1, sizeof(int32_t));
    x.nhot = moe_part(w, 1, 1, sizeof(uint32_t));
    x.padded = moe_part(w, 1, experts + 1, sizeof(int32_t));
    return x;
}

static gpunvme_ops_status_t sort(const struct sorted *x, const struct moe_slots *slots,
                                 const struct rung *rung, void *stream)
{
    struct embedding_sort sort = {
        .p = {.rows = slots->slots, .vocab = slots->experts, .ids = slots->chosen},
        .starts = x->starts,
        .order = x->order,
        .hot = x->hot,
        .nhot = x->nhot};
    gpunvme_ops_status_t status =
        cuda_status(cudaMemsetAsync(x->nhot, 0, sizeof(*x->nhot), stream), "clearing a count");

    if (!status)
        status = embedding_order(&sort, stream);
    return status || !rung->copies ? status : moe_pad(slots, x->padded, stream);
}

static struct moe_slots slots_of(const struct sorted *x, const int32_t *chosen, int64_t slots,
                                 int64_t experts)
{
    return (struct moe_slots){slots, experts, chosen, x->starts, x->order, x->padded};
}

/* ---- Forward ---- */

struct forward {
    const struct gpunvme_moe *p;
    int32_t *chosen;
    float *weights;
    struct sorted sorted;
    void *gate, *up, *hidden; /* slots x hidden */
    float *out;               /* slots x dim */
    void *copies;
};

static size_t lay_out_forward(struct forward *x, const struct gpunvme_moe *p,
                              const struct rung *rung, void *base)
{
    int64_t slots = p->tokens * p->top_k;
    size_t size = gpunvme_ops_dtype_nbytes(p->dtype);
    struct moe_workspace w = {base, 0};

    x->p = p;
    x->chosen = p->chosen ? p->chosen : moe_part(&w, 1, slots, sizeof(int32_t));
    x->weights = p->weights ? p->weights : moe_part(&w, 1, slots, sizeof(float));
    x->sorted = lay_out_sorted(&w, slots, p->experts);
    x->gate = p->gate ? p->gate : moe_part(&w, slots, p->hidden, size);
    x->up = p->up ? p->up : moe_part(&w, slots, p->hidden, size);
    x->hidden = moe_part(&w, slots, p->hidden, size);
    x->out = moe_part(&w, slots, p->dim, sizeof(float));
    x->copies = moe_part(&w, rung->copies ? slots + p->experts * MOE_STEP : 0,
                         moe_pitch(p->dim > p->hidden ? p->dim : p->hidden), size);
    return w.nbytes;
}

static size_t forward_workspace(const struct ops_variant *variant, const struct ops_call *call)
{
    struct forward x;

    return lay_out_forward(&x, call->descriptor, variant->data, NULL);
}

static int by_eight(const void *first, const void *second, int64_t cols, int dtype)
{
    return cols % 8 == 0 && rows_by_eight(first, cols, dtype) && rows_by_eight(second, cols, dtype);
}

static gpunvme_ops_status_t activate(const struct forward *x, void *stream)
{
    const struct gpunvme_moe *p = x->p;
    const struct gpunvme_swiglu swiglu = {.rows = p->tokens * p->top_k,
                                          .cols = p->hidden,
                                          .gate = x->gate,
                                          .up = x->up,
                                          .y = x->hidden,
                                          .ld_gate = p->hidden,
                                          .ld_up = p->hidden,
                                          .ldy = p->hidden,
                                          .dtype = p->dtype};

    return swiglu_forward(&swiglu, by_eight(x->gate, x->up, p->hidden, p->dtype), stream);
}

/* Rows of tokens by w_gate or w_up. */
static struct moe_product into(const struct forward *x, const struct moe_slots *slots,
                               const void *b, int64_t ld, int64_t stride, void *c)
{
    const struct gpunvme_moe *p = x->p;

    return (struct moe_product){.slots = *slots,
                                .n = p->hidden,
                                .k = p->dim,
                                .a = {p->x, p->ldx, p->top_k},
                                .b = b,
                                .ld_b = ld,
                                .stride_b = stride,
                                .transposed = 1,
                                .c = c,
                                .dtype = p->dtype,
                                .c_dtype = p->dtype};
}

static gpunvme_ops_status_t run_experts(const struct forward *x, const struct rung *rung,
                                        const struct moe_slots *slots, void *stream)
{
    const struct gpunvme_moe *p = x->p;
    const struct moe_product gate =
        into(x, slots, p->w_gate, p->ld_w_gate, p->stride_w_gate, x->gate);
    const struct moe_product up = into(x, slots, p->w_up, p->ld_w_up, p->stride_w_up, x->up);
    const struct moe_product down = {.slots = *slots,
                                     .n = p->dim,
                                     .k = p->hidden,
                                     .a = {x->hidden, p->hidden, 1},
                                     .b = p->w_down,
                                     .ld_b = p->ld_w_down,
                                     .stride_b = p->stride_w_down,
                                     .transposed = 1,
                                     .c = x->out,
                                     .dtype = p->dtype,
                                     .c_dtype = GPUNVME_OPS_F32};
    gpunvme_ops_status_t status = rung->multiply(&gate, x->copies, stream);

    if (!status)
        status = rung->multiply(&up, x->copies, stream);
    if (!status)
        status = activate(x, stream);
    return status ? status : rung->multiply(&down, x->copies, stream);
}

static gpunvme_ops_status_t forward_run(const struct ops_variant *variant,
                                        const struct ops_call *call)
{
    const struct gpunvme_moe *p = call->descriptor;
    int64_t slots = p->tokens * p->top_k;
    void *stream = call->exec->stream;
    gpunvme_ops_status_t status;
    struct moe_slots sorted;
    struct moe_sum sum;
    struct forward x;

    lay_out_forward(&x, p, variant->data, call->exec->workspace);
    sorted = slots_of(&x.sorted, x.chosen, slots, p->experts);
    sum = (struct moe_sum){.slots = sorted,
                           .tokens = p->tokens,
                           .top_k = p->top_k,
                           .cols = p->dim,
                           .from = x.out,
                           .weights = x.weights,
                           .y = p->y,
                           .ldy = p->ldy,
                           .dtype = p->dtype};
    status = moe_route(p, x.chosen, x.weights, stream);
    if (!status)
        status = sort(&x.sorted, &sorted, variant->data, stream);
    if (!status)
        status = run_experts(&x, variant->data, &sorted, stream);
    return status ? status : moe_add_up(&sum, stream);
}

/* ---- Backward ---- */

struct backward {
    const struct gpunvme_moe_grad *p;
    struct moe_slots slots;
    struct sorted sorted;
    float *q;                             /* slots x hidden */
    void *grad_gate, *grad_up, *weighted; /* likewise */
    float *grad_weights;
    float *out; /* slots x dim */
    void *copies;
};

static size_t lay_out_backward(struct backward *x, const struct gpunvme_moe_grad *p,
                               const struct rung *rung, void *base)
{
    int64_t slots = p->tokens * p->top_k;
    size_t size = gpunvme_ops_dtype_nbytes(p->dtype);
    struct moe_workspace w = {base, 0};

    x->p = p;
    x->sorted = lay_out_sorted(&w, slots, p->experts);
    x->slots = slots_of(&x->sorted, p->chosen, slots, p->experts);
    x->q = moe_part(&w, slots, p->hidden, sizeof(float));
    x->grad_gate = moe_part(&w, slots, p->hidden, size);
    x->grad_up = moe_part(&w, slots, p->hidden, size);
    x->weighted = moe_part(&w, slots, p->hidden, size);
    x->grad_weights = moe_part(&w, 1, slots, sizeof(float));
    x->out = moe_part(&w, p->grad_x ? slots : 0, p->dim, sizeof(float));
    x->copies = moe_part(&w, rung->copies ? slots + p->experts * MOE_STEP : 0,
                         moe_pitch(p->dim) + moe_pitch(p->hidden), size);
    return w.nbytes;
}

static size_t backward_workspace(const struct ops_variant *variant, const struct ops_call *call)
{
    struct backward x;

    return lay_out_backward(&x, call->descriptor, variant->data, NULL);
}

static gpunvme_ops_status_t find_slopes(const struct backward *x, const struct rung *rung,
                                        void *stream)
{
    const struct gpunvme_moe_grad *p = x->p;
    const struct moe_product q = {.slots = x->slots,
                                  .n = p->hidden,
                                  .k = p->dim,
                                  .a = {p->grad_y, p->ld_grad_y, p->top_k},
                                  .b = p->w_down,
                                  .ld_b = p->ld_w_down,
                                  .stride_b = p->stride_w_down,
                                  .c = x->q,
                                  .dtype = p->dtype,
                                  .c_dtype = GPUNVME_OPS_F32};
    const struct moe_slopes slopes = {.slots = x->slots,
                                      .hidden = p->hidden,
                                      .q = x->q,
                                      .gate = p->gate,
                                      .up = p->up,
                                      .weights = p->weights,
                                      .grad_gate = x->grad_gate,
                                      .grad_up = x->grad_up,
                                      .weighted = x->weighted,
                                      .grad_weights = x->grad_weights,
                                      .dtype = p->dtype};
    gpunvme_ops_status_t status = rung->multiply(&q, x->copies, stream);

    return status ? status : moe_find_slopes(&slopes, stream);
}

static struct moe_product out_of(const struct backward *x, const void *a, const void *b, int64_t ld,
                                 int64_t stride, int accumulate)
{
    const struct gpunvme_moe_grad *p = x->p;

    return (struct moe_product){.slots = x->slots,
                                .n = p->dim,
                                .k = p->hidden,
                                .a = {a, p->hidden, 1},
                                .b = b,
                                .ld_b = ld,
                                .stride_b = stride,
                                .c = x->out,
                                .dtype = p->dtype,
                                .c_dtype = GPUNVME_OPS_F32,
                                .accumulate = accumulate};
}

static gpunvme_ops_status_t find_grad_x(const struct backward *x, const struct rung *rung,
                                        void *stream)
{
    const struct gpunvme_moe_grad *p = x->p;
    const struct moe_product gate =
        out_of(x, x->grad_gate, p->w_gate, p->ld_w_gate, p->stride_w_gate, 0);
    const struct moe_product up = out_of(x, x->grad_up, p->w_up, p->ld_w_up, p->stride_w_up, 1);
    const struct moe_sum sum = {.slots = x->slots,
                                .tokens = p->tokens,
                                .top_k = p->top_k,
                                .cols = p->dim,
                                .from = x->out,
                                .y = p->grad_x,
                                .ldy = p->ld_grad_x,
                                .dtype = p->dtype};
    gpunvme_ops_status_t status = rung->multiply(&gate, x->copies, stream);

    if (!status)
        status = rung->multiply(&up, x->copies, stream);
    return status ? status : moe_add_up(&sum, stream);
}

/* The gradients of the experts' matrices that are wanted. */
static gpunvme_ops_status_t find_grad_w(const struct backward *x, const struct rung *rung,
                                        void *stream)
{
    const struct gpunvme_moe_grad *p = x->p;
    const struct moe_operand tokens = {p->x, p->ldx, p->top_k};
    const struct moe_operand grad_y = {p->grad_y, p->ld_grad_y, p->top_k};
    const struct {
        struct moe_operand a, b;
        int64_t m, n;
        void *c;
        int64_t ldc, stride;
    } all[] = {
        {{x->grad_gate, p->hidden, 1},
         tokens,
         p->hidden,
         p->dim,
         p->grad_w_gate,
         p->ld_grad_w_gate,
         p->stride_grad_w_gate},
        {{x->grad_up, p->hidden, 1},
         tokens,
         p->hidden,
         p->dim,
         p->grad_w_up,
         p->ld_grad_w_up,
         p->stride_grad_w_up},
        {grad_y,
         {x->weighted, p->hidden, 1},
         p->dim,
         p->hidden,
         p->grad_w_down,
         p->ld_grad_w_down,
         p->stride_grad_w_down},
    };
    gpunvme_ops_status_t status = GPUNVME_OPS_OK;

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]) && !status; i++) {
        const struct moe_gradient gradient = {.slots = x->slots,
                                              .m = all[i].m,
                                              .n = all[i].n,
                                              .a = all[i].a,
                                              .b = all[i].b,
                                              .c = all[i].c,
                                              .ldc = all[i].ldc,
                                              .stride_c = all[i].stride,
                                              .dtype = p->dtype,
                                              .c_dtype = p->grad_dtype,
                                              .accumulate = p->accumulate};

        if (gradient.c)
            status = rung->differentiate(&gradient, x->copies, stream);
    }
    return status;
}

static gpunvme_ops_status_t backward_run(const struct ops_variant *variant,
                                         const struct ops_call *call)
{
    const struct gpunvme_moe_grad *p = call->descriptor;
    const struct rung *rung = variant->data;
    void *stream = call->exec->stream;
    gpunvme_ops_status_t status;
    struct backward x;

    lay_out_backward(&x, p, rung, call->exec->workspace);
    status = sort(&x.sorted, &x.slots, rung, stream);
    if (!status && p->tokens)
        status = find_slopes(&x, rung, stream);
    if (!status && p->tokens && p->grad_x)
        status = find_grad_x(&x, rung, stream);
    if (!status && p->tokens && p->grad_logits)
        status = moe_logits(p, x.grad_weights, stream);
    return status ? status : find_grad_w(&x, rung, stream);
}

/* ---- Ladders ---- */

static int rank(const struct ops_variant *variant, const struct ops_call *call)
{
    (void)call;
    return ((const struct rung *)variant->data)->rank;
}

/* The matrices of all experts, as the copy engine must find them, and copies numbered by 31 bits.
 */
static gpunvme_ops_status_t suits(const struct ops_variant *variant, const struct ops_call *call,
                                  int64_t slots, int64_t experts)
{
    const struct rung *rung = variant->data;
    const struct moe_slots copied = {.slots = slots, .experts = experts};

    if (rung->copies && moe_padded_rows(&copied) > INT32_MAX)
        return ops_fail(GPUNVME_OPS_ERR_UNSUPPORTED,
                        "variant '%s' copies a row for each token and each of its experts, and %d "
                        "for each expert: at most 2^31 - 1 together",
                        variant->name, MOE_STEP);
    for (unsigned i = 0; i < call->spans.count && rung->copies; i++) {
        const struct ops_matrix *x = &call->spans.matrix[i];

        if (x->rows > 1 << 30 || x->cols > 1 << 30)
            return ops_fail(GPUNVME_OPS_ERR_UNSUPPORTED, "variant '%s' takes sizes up to 2^30",
                            variant->name);
        if (x->name[0] != 'w' || x->name[1] != '_')
            continue;
        if ((x->rows > 1 && x->ld % 8) || (x->batch > 1 && x->stride % 8))
            return ops_fail(GPUNVME_OPS_ERR_UNSUPPORTED,
                            "variant '%s' takes rows of %s at multiples of 16 bytes", variant->name,
                            x->name);
        if (!call->any_pointers && (uintptr_t)x->data % 16)
            return ops_fail(GPUNVME_OPS_ERR_ALIGN,
                            "variant '%s' needs %s at a multiple of 16 bytes", variant->name,
                            x->name);
    }
    return GPUNVME_OPS_OK;
}

static gpunvme_ops_status_t forward_suits(const struct ops_variant *variant,
                                          const struct ops_call *call)
{
    const struct gpunvme_moe *p = call->descriptor;

    return suits(variant, call, p->tokens * p->top_k, p->experts);
}

static gpunvme_ops_status_t backward_suits(const struct ops_variant *variant,
                                           const struct ops_call *call)
{
    const struct gpunvme_moe_grad *p = call->descriptor;

    return suits(variant, call, p->tokens * p->top_k, p->experts);
}

static const struct rung naive = {1, moe_multiply_naive, moe_differentiate_naive, 0};
static const struct rung grouped = {2, moe_multiply_grouped, moe_differentiate_grouped, 0};
static const struct rung hopper = {3, moe_multiply_hopper, moe_differentiate_hopper, 1};

#define BITS16 (1u << GPUNVME_OPS_F16 | 1u << GPUNVME_OPS_BF16)

#define VARIANT(name_, data_, needs_, sm_, max_sm_, dtypes_, computes_, changes_, pass)            \
    {                                                                                              \
        .name = name_, .needs = needs_, .changes = changes_, .dtypes = dtypes_,                    \
        .computes = computes_, .deterministic = 1, .min_sm = sm_, .max_sm = max_sm_,               \
        .suits = pass##_suits, .rank = rank, .workspace = pass##_workspace, .run = pass##_run,     \
        .data = data_                                                                              \
    }

#define LADDER(pass)                                                                               \
    {                                                                                              \
        VARIANT("naive", &naive, CUDA_SM80, 80, 0, OPS_ALL_DTYPES, OPS_ALL_COMPUTES,               \
                "a thread for each element of the experts' products", pass),                       \
            VARIANT("grouped", &grouped, CUDA_SM80, 80, 0, OPS_ALL_DTYPES,                         \
                    1u << GPUNVME_OPS_COMPUTE_TF32,                                                \
                    "the tiles of all experts in one launch, on tensor cores by mma", pass),       \
            VARIANT("hopper", &hopper, CUDA_SM90A, CUDA_ONLY_90A, CUDA_ONLY_90A, BITS16, 0,        \
                    "rows are copied by expert, so that the copy engine brings tiles for wgmma",   \
                    pass)                                                                          \
    }

static const struct ops_variant forward[] = LADDER(forward);
static const struct ops_variant backward[] = LADDER(backward);

const struct ops_ladder moe_forward_cuda = OPS_LADDER(forward);
const struct ops_ladder moe_backward_cuda = OPS_LADDER(backward);
