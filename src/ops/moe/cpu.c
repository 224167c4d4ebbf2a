/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Mixture of experts on the CPU, forward: experts one after the other, each by products with any
 * engine. Their results are added to a token's sum in the order of experts.
 */
#include "ops/moe/cpu.h"
#include "ops/moe/route.h"

struct forward {
    const struct gpunvme_moe *p;
    const struct cpu_engine *engine;
    int threads;
    int32_t *chosen;
    float *weights;
    struct moe_sorted sorted;
    void *x;                /* rows of an expert's tokens */
    float *gate, *up, *out; /* of an expert's slots; silu(gate) * up replaces up */
    float *sum;             /* tokens x dim */
    void *product;          /* the products' workspace */
    const int32_t *order;   /* of the expert that is computed */
    int64_t rows;
};

gpunvme_ops_status_t moe_sort(const struct moe_sorted *x, const int32_t *chosen, int64_t slots,
                              int64_t experts)
{
    /* A place further on: where slots have been put, the starts have moved to theirs. */
    memset(x->starts, 0, (size_t)(experts + 2) * sizeof(*x->starts));
    for (int64_t s = 0; s < slots; s++) {
        if (chosen[s] < 0 || chosen[s] >= experts)
            return ops_fail(GPUNVME_OPS_ERR_INVALID,
                            "chosen has number %d, and there are %lld experts", (int)chosen[s],
                            (long long)experts);
        x->starts[chosen[s] + 2]++;
    }
    for (int64_t e = 2; e < experts + 2; e++)
        x->starts[e] += x->starts[e - 1];
    for (int64_t s = 0; s < slots; s++)
        x->order[x->starts[chosen[s] + 1]++] = (int32_t)s;
    return GPUNVME_OPS_OK;
}

/* A thread's piece is not larger than the product. */
size_t moe_product_nbytes(const struct cpu_engine *engine, const struct cpu_product *product,
                          int threads)
{
    return cpu_product_workspace(engine, product, 1) * (size_t)threads;
}

void moe_gather_rows(const struct moe_gather *x, int index, int count)
{
    size_t nbytes = (size_t)x->cols * gpunvme_ops_dtype_nbytes(x->dtype);

    for (int64_t i = index; i < x->rows; i += count)
        memcpy((char *)x->to + (size_t)i * nbytes,
               cpu_at(x->from, x->order[i] / x->per_token * x->ld, x->dtype), nbytes);
}

static float logit(const struct gpunvme_moe *p, int64_t t, int64_t e)
{
    return cpu_load(p->logits, t * p->ld_logits + e, p->logits_dtype);
}

static void route_token(const struct forward *x, int64_t t)
{
    const struct gpunvme_moe *p = x->p;
    int32_t *chosen = x->chosen + t * p->top_k;
    float *weights = x->weights + t * p->top_k, most, sum = 0;
    uint64_t last = UINT64_MAX;

    for (int64_t i = 0; i < p->top_k; i++) {
        uint64_t best = 0;

        for (int64_t e = 0; e < p->experts; e++) {
            uint64_t key = moe_key(logit(p, t, e), (uint32_t)e);

            if (key < last && key > best)
                best = key;
        }
        chosen[i] = moe_expert_of(best);
        last = best;
    }
    most = logit(p, t, chosen[0]);
    for (int64_t i = 0; i < p->top_k; i++)
        sum += weights[i] = expf(logit(p, t, chosen[i]) - most);
    if (p->weighting == GPUNVME_MOE_ALL) {
        sum = 0;
        for (int64_t e = 0; e < p->experts; e++)
            sum += expf(logit(p, t, e) - most);
    }
    for (int64_t i = 0; i < p->top_k; i++)
        weights[i] /= sum;
}

static void route_tokens(void *arg, int index, int count)
{
    const struct forward *x = arg;

    for (int64_t t = index; t < x->p->tokens; t += count)
        route_token(x, t);
}

static void gather_tokens(void *arg, int index, int count)
{
    const struct forward *x = arg;
    const struct gpunvme_moe *p = x->p;
    const struct moe_gather gather = {p->x,   x->x,   x->order, x->rows,
                                      p->dim, p->ldx, p->top_k, p->dtype};

    moe_gather_rows(&gather, index, count);
}

static void activate(void *arg, int index, int count)
{
    const struct forward *x = arg;
    const struct gpunvme_moe *p = x->p;

    for (int64_t i = index; i < x->rows; i += count) {
        float *gate = x->gate + i * p->hidden, *up = x->up + i * p->hidden;

        if (p->gate)
            cpu_store_row(p->gate, x->order[i] * p->hidden, p->dtype, p->hidden, gate);
        if (p->up)
            cpu_store_row(p->up, x->order[i] * p->hidden, p->dtype, p->hidden, up);
        for (int64_t j = 0; j < p->hidden; j++)
            up[j] *= cpu_activate(GPUNVME_OPS_ACT_SILU, gate[j]);
    }
}

/* A token has no two slots of an expert, so threads have sums of their own. */
static void add_up(void *arg, int index, int count)
{
    const struct forward *x = arg;
    const struct gpunvme_moe *p = x->p;

    for (int64_t i = index; i < x->rows; i += count) {
        float weight = x->weights[x->order[i]];
        float *sum = x->sum + x->order[i] / p->top_k * p->dim;

        for (int64_t j = 0; j < p->dim; j++)
            sum[j] += weight * x->out[i * p->dim + j];
    }
}

/* rows x n: an operand by the transpose of an expert's matrix. */
static struct cpu_product product_of(int64_t rows, struct cpu_operand a, const void *weight,
                                     int64_t ld, int dtype, int64_t n, int64_t k, float *c)
{
    return (struct cpu_product){
        .m = rows,
        .n = n,
        .k = k,
        .a = a,
        .b = {weight, 1, ld, dtype},
        .c = c,
        .ldc = n,
        .dtype = GPUNVME_OPS_F32,
        .alpha = 1,
    };
}

/* To the expert's networks' inner rows, by w_gate or w_up, and from them. */
static struct cpu_product into(const struct forward *x, int64_t rows, const void *weight,
                               int64_t ld, float *c)
{
    const struct gpunvme_moe *p = x->p;
    const struct cpu_operand a = {x->x, p->dim, 1, p->dtype};

    return product_of(rows, a, weight, ld, p->dtype, p->hidden, p->dim, c);
}

static struct cpu_product out_of(const struct forward *x, int64_t rows, const void *weight)
{
    const struct gpunvme_moe *p = x->p;
    const struct cpu_operand a = {x->up, p->hidden, 1, GPUNVME_OPS_F32};

    return product_of(rows, a, weight, p->ld_w_down, p->dtype, p->dim, p->hidden, x->out);
}

static void run_expert(struct forward *x, int64_t e)
{
    const struct gpunvme_moe *p = x->p;
    const void *w_gate = cpu_at(p->w_gate, e * p->stride_w_gate, p->dtype);
    const void *w_up = cpu_at(p->w_up, e * p->stride_w_up, p->dtype);
    const void *w_down = cpu_at(p->w_down, e * p->stride_w_down, p->dtype);
    struct cpu_product product;

    x->order = x->sorted.order + x->sorted.starts[e];
    x->rows = x->sorted.starts[e + 1] - x->sorted.starts[e];
    if (!x->rows)
        return;
    cpu_parallel(x->threads, gather_tokens, x);
    product = into(x, x->rows, w_gate, p->ld_w_gate, x->gate);
    cpu_run_product(x->engine, &product, x->threads, x->product);
    product = into(x, x->rows, w_up, p->ld_w_up, x->up);
    cpu_run_product(x->engine, &product, x->threads, x->product);
    cpu_parallel(x->threads, activate, x);
    product = out_of(x, x->rows, w_down);
    cpu_run_product(x->engine, &product, x->threads, x->product);
    cpu_parallel(x->threads, add_up, x);
}

static void store_sums(void *arg, int index, int count)
{
    const struct forward *x = arg;
    const struct gpunvme_moe *p = x->p;

    for (int64_t t = index; t < p->tokens; t += count)
        cpu_store_row(p->y, t * p->ldy, p->dtype, p->dim, x->sum + t * p->dim);
}

/* Divides the workspace, of which it returns the size. */
static size_t lay_out(struct forward *x, const struct ops_variant *variant,
                      const struct ops_call *call, void *base)
{
    const struct gpunvme_moe *p = call->descriptor;
    struct moe_workspace w = {base, 0};
    struct cpu_product product;
    size_t most, nbytes;

    x->p = p;
    x->engine = variant->data;
    x->threads = cpu_threads_for(x->engine, call->exec);
    x->chosen = p->chosen ? p->chosen : moe_part(&w, p->tokens, p->top_k, sizeof(int32_t));
    x->weights = p->weights ? p->weights : moe_part(&w, p->tokens, p->top_k, sizeof(float));
    x->sorted.starts = moe_part(&w, 1, p->experts + 2, sizeof(int32_t));
    x->sorted.order = moe_part(&w, p->tokens, p->top_k, sizeof(int32_t));
    x->x = moe_part(&w, p->tokens, p->dim, gpunvme_ops_dtype_nbytes(p->dtype));
    x->gate = moe_part(&w, p->tokens, p->hidden, sizeof(float));
    x->up = moe_part(&w, p->tokens, p->hidden, sizeof(float));
    x->out = moe_part(&w, p->tokens, p->dim, sizeof(float));
    x->sum = moe_part(&w, p->tokens, p->dim, sizeof(float));
    product = into(x, p->tokens, p->w_gate, p->ld_w_gate, x->gate);
    most = moe_product_nbytes(x->engine, &product, x->threads);
    product = out_of(x, p->tokens, p->w_down);
    nbytes = moe_product_nbytes(x->engine, &product, x->threads);
    x->product = moe_part(&w, 1, (int64_t)(nbytes > most ? nbytes : most), 1);
    return w.nbytes;
}

static size_t workspace(const struct ops_variant *variant, const struct ops_call *call)
{
    struct forward x;

    return lay_out(&x, variant, call, NULL);
}

static gpunvme_ops_status_t run(const struct ops_variant *variant, const struct ops_call *call)
{
    const struct gpunvme_moe *p = call->descriptor;
    gpunvme_ops_status_t status;
    struct forward x;

    lay_out(&x, variant, call, call->exec->workspace);
    cpu_parallel(x.threads, route_tokens, &x);
    status = moe_sort(&x.sorted, x.chosen, p->tokens * p->top_k, p->experts);
    memset(x.sum, 0, (size_t)(p->tokens * p->dim) * sizeof(*x.sum));
    for (int64_t e = 0; e < p->experts && !status; e++)
        run_expert(&x, e);
    if (!status)
        cpu_parallel(x.threads, store_sums, &x);
    return status;
}

static const struct ops_variant variants[] = CPU_LADDER(workspace, run, NULL);

const struct ops_ladder moe_forward_cpu = OPS_LADDER(variants);
