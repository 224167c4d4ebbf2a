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
    int number;
    moe_multiply *multiply;
    moe_differentiate *differentiate;
};

/* Slots by expert, sorted as embedding's gradient sorts rows by id. */
struct sorted {
    int32_t *starts, *order, *hot;
    uint32_t *nhot;
};

static struct sorted lay_out_sorted(struct moe_workspace *w, int64_t slots, int64_t experts)
{
    struct sorted x;

    x.starts = moe_part(w, 1, experts + 1, sizeof(int32_t));
    x.order = moe_part(w, 1, slots, sizeof(int32_t));
    x.hot = moe_part(w, 1, slots / EMBEDDING_HOT + 1, sizeof(int32_t));
    x.nhot = moe_part(w, 1, 1, sizeof(uint32_t));
    return x;
}

static gpunvme_ops_status_t sort(const struct sorted *x, const int32_t *chosen, int64_t slots,
                                 int64_t experts, void *stream)
{
    struct embedding_sort sort = {.p = {.rows = slots, .vocab = experts, .ids = chosen},
                                  .starts = x->starts,
                                  .order = x->order,
                                  .hot = x->hot,
                                  .nhot = x->nhot};
    gpunvme_ops_status_t status =
        cuda_status(cudaMemsetAsync(x->nhot, 0, sizeof(*x->nhot), stream), "clearing a count");

    return status ? status : embedding_order(&sort, stream);
}

static struct moe_slots slots_of(const struct sorted *x, const int32_t *chosen, int64_t slots,
                                 int64_t experts)
{
    return (struct moe_slots){slots, experts, chosen, x->starts, x->order};
}

/* ---- Forward ---- */

struct forward {
    const struct gpunvme_moe *p;
    int32_t *chosen;
    float *weights;
    struct sorted sorted;
    void *gate, *up, *hidden; /* slots x hidden */
    float *out;               /* slots x dim */
};

static size_t lay_out_forward(struct forward *x, const struct gpunvme_moe *p, void *base)
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
    return w.nbytes;
}

static size_t forward_workspace(const struct ops_variant *variant, const struct ops_call *call)
{
    struct forward x;

    (void)variant;
    return lay_out_forward(&x, call->descriptor, NULL);
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
    gpunvme_ops_status_t status = rung->multiply(&gate, stream);

    if (!status)
        status = rung->multiply(&up, stream);
    if (!status)
        status = activate(x, stream);
    return status ? status : rung->multiply(&down, stream);
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

    lay_out_forward(&x, p, call->exec->workspace);
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
        status = sort(&x.sorted, x.chosen, slots, p->experts, stream);
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
};

static size_t lay_out_backward(struct backward *x, const struct gpunvme_moe_grad *p, void *base)
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
    return w.nbytes;
}

static size_t backward_workspace(const struct ops_variant *variant, const struct ops_call *call)
{
    struct backward x;

    (void)variant;
    return lay_out_backward(&x, call->descriptor, NULL);
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
    gpunvme_ops_status_t status = rung->multiply(&q, stream);

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
    gpunvme_ops_status_t status = rung->multiply(&gate, stream);

    if (!status)
        status = rung->multiply(&up, stream);
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
            status = rung->differentiate(&gradient, stream);
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

    lay_out_backward(&x, p, call->exec->workspace);
    status = sort(&x.sorted, p->chosen, x.slots.slots, p->experts, stream);
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
    return 1 + ((const struct rung *)variant->data)->number;
}

static const struct rung naive = {0, moe_multiply_naive, moe_differentiate_naive};
static const struct rung grouped = {1, moe_multiply_grouped, moe_differentiate_grouped};

#define VARIANT(name_, data_, computes_, changes_, workspace_, run_)                               \
    {                                                                                              \
        .name = name_, .needs = CUDA_SM80, .changes = changes_, .dtypes = OPS_ALL_DTYPES,          \
        .computes = computes_, .deterministic = 1, .min_sm = 80, .rank = rank,                     \
        .workspace = workspace_, .run = run_, .data = data_                                        \
    }

#define LADDER(workspace, run)                                                                     \
    {                                                                                              \
        VARIANT("naive", &naive, OPS_ALL_COMPUTES,                                                 \
                "a thread for each element of the experts' products", workspace, run),             \
            VARIANT("grouped", &grouped, 1u << GPUNVME_OPS_COMPUTE_TF32,                           \
                    "the tiles of all experts in one launch, on tensor cores by mma", workspace,   \
                    run)                                                                           \
    }

static const struct ops_variant forward[] = LADDER(forward_workspace, forward_run);
static const struct ops_variant backward[] = LADDER(backward_workspace, backward_run);

const struct ops_ladder moe_forward_cuda = OPS_LADDER(forward);
const struct ops_ladder moe_backward_cuda = OPS_LADDER(backward);
