/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Mixture of experts on the CPU, backward: experts one after the other, each by products with any
 * engine. An expert's term of y is p w_down h, with h = silu(gate) * up. So with q = w_down^T
 * grad_y the gradient of p is q h, a single number, and that of h is p q.
 */
#include "ops/moe/cpu.h"

struct backward {
    const struct gpunvme_moe_grad *p;
    const struct cpu_engine *engine;
    int threads;
    struct moe_sorted sorted;
    void *x, *grad_y;     /* rows of an expert's tokens */
    float *weighted;      /* of its slots: q, then p h */
    float *gate, *up;     /* gradients of them */
    float *out;           /* of grad_x */
    float *sum;           /* tokens x dim: grad_x */
    float *grad_weights;  /* of all slots: the gradients of p */
    void *product;        /* the products' workspace */
    const int32_t *order; /* of the expert that is computed */
    int64_t rows;
};

static void gather_tokens(void *arg, int index, int count)
{
    const struct backward *x = arg;
    const struct gpunvme_moe_grad *p = x->p;
    struct moe_gather gather = {p->x, x->x, x->order, x->rows, p->dim, p->ldx, p->top_k, p->dtype};

    if (p->grad_w_gate || p->grad_w_up)
        moe_gather_rows(&gather, index, count);
    gather.from = p->grad_y;
    gather.ld = p->ld_grad_y;
    gather.to = x->grad_y;
    moe_gather_rows(&gather, index, count);
}

/* The gradients of one slot's numbers, from q. */
static void multiply_out(const struct backward *x, int64_t i)
{
    const struct gpunvme_moe_grad *p = x->p;
    int64_t slot = x->order[i], at = slot * p->hidden;
    float *q = x->weighted + i * p->hidden, *of_gate = x->gate + i * p->hidden;
    float *of_up = x->up + i * p->hidden, weight = p->weights[slot];
    double of_weight = 0;

    for (int64_t j = 0; j < p->hidden; j++) {
        float gate = cpu_load(p->gate, at + j, p->dtype), up = cpu_load(p->up, at + j, p->dtype);
        float activated = cpu_activate(GPUNVME_OPS_ACT_SILU, gate), grad = weight * q[j];

        of_weight += (double)q[j] * (double)(activated * up);
        of_gate[j] = grad * up * cpu_activate_grad(GPUNVME_OPS_ACT_SILU, gate);
        of_up[j] = grad * activated;
        q[j] = weight * activated * up;
    }
    x->grad_weights[slot] = (float)of_weight;
}

static void multiply_rows_out(void *arg, int index, int count)
{
    const struct backward *x = arg;

    for (int64_t i = index; i < x->rows; i += count)
        multiply_out(x, i);
}

static void add_up(void *arg, int index, int count)
{
    const struct backward *x = arg;
    const struct gpunvme_moe_grad *p = x->p;

    for (int64_t i = index; i < x->rows; i += count) {
        float *sum = x->sum + x->order[i] / p->top_k * p->dim;

        for (int64_t j = 0; j < p->dim; j++)
            sum[j] += x->out[i * p->dim + j];
    }
}

/* rows x n = an operand, rows x k, by an expert's matrix, k x n. */
static struct cpu_product by_matrix(const struct backward *x, int64_t rows, struct cpu_operand a,
                                    const void *weight, int64_t ld, int64_t n, int64_t k, float *c)
{
    return (struct cpu_product){
        .m = rows,
        .n = n,
        .k = k,
        .a = a,
        .b = {weight, ld, 1, x->p->dtype},
        .c = c,
        .ldc = n,
        .dtype = GPUNVME_OPS_F32,
        .alpha = 1,
    };
}

static struct cpu_product q_product(const struct backward *x, int64_t rows, int64_t e)
{
    const struct gpunvme_moe_grad *p = x->p;
    const struct cpu_operand a = {x->grad_y, p->dim, 1, p->dtype};

    return by_matrix(x, rows, a, cpu_at(p->w_down, e * p->stride_w_down, p->dtype), p->ld_w_down,
                     p->hidden, p->dim, x->weighted);
}

static struct cpu_product x_product(const struct backward *x, int64_t rows, const float *grad,
                                    const void *weight, int64_t ld)
{
    const struct cpu_operand a = {grad, x->p->hidden, 1, GPUNVME_OPS_F32};

    return by_matrix(x, rows, a, weight, ld, x->p->dim, x->p->hidden, x->out);
}

/* The gradient of an expert's matrix, m x n: the sum over its slots of columns times rows. */
static struct cpu_product weight_product(const struct backward *x, int64_t rows,
                                         struct cpu_operand left, struct cpu_operand right,
                                         int64_t m, int64_t n, void *c, int64_t ldc)
{
    const struct gpunvme_moe_grad *p = x->p;

    return (struct cpu_product){
        .m = m,
        .n = n,
        .k = rows,
        .a = {left.data, left.cs, left.rs, left.dtype},
        .b = right,
        .c = c,
        .ldc = ldc,
        .dtype = p->grad_dtype,
        .alpha = 1,
        .beta = p->accumulate ? 1 : 0,
    };
}

enum { GATE, UP, DOWN, NMATRICES };

/* False if that gradient is not wanted. */
static bool gradient_of(const struct backward *x, int64_t rows, int64_t e, int matrix,
                        struct cpu_product *product)
{
    const struct gpunvme_moe_grad *p = x->p;
    const struct cpu_operand tokens = {x->x, p->dim, 1, p->dtype};
    const struct cpu_operand grad_y = {x->grad_y, p->dim, 1, p->dtype};
    const struct cpu_operand gate = {x->gate, p->hidden, 1, GPUNVME_OPS_F32};
    const struct cpu_operand up = {x->up, p->hidden, 1, GPUNVME_OPS_F32};
    const struct cpu_operand weighted = {x->weighted, p->hidden, 1, GPUNVME_OPS_F32};
    void *const all[NMATRICES] = {p->grad_w_gate, p->grad_w_up, p->grad_w_down};
    const int64_t stride[NMATRICES] = {p->stride_grad_w_gate, p->stride_grad_w_up,
                                       p->stride_grad_w_down};
    void *to;

    if (!all[matrix])
        return false;
    to = (void *)cpu_at(all[matrix], e * stride[matrix], p->grad_dtype);
    if (matrix == GATE)
        *product = weight_product(x, rows, gate, tokens, p->hidden, p->dim, to, p->ld_grad_w_gate);
    else if (matrix == UP)
        *product = weight_product(x, rows, up, tokens, p->hidden, p->dim, to, p->ld_grad_w_up);
    else
        *product =
            weight_product(x, rows, grad_y, weighted, p->dim, p->hidden, to, p->ld_grad_w_down);
    return true;
}

static void add_to_x(struct backward *x, int64_t e)
{
    const struct gpunvme_moe_grad *p = x->p;
    struct cpu_product product = x_product(
        x, x->rows, x->gate, cpu_at(p->w_gate, e * p->stride_w_gate, p->dtype), p->ld_w_gate);

    cpu_run_product(x->engine, &product, x->threads, x->product);
    product =
        x_product(x, x->rows, x->up, cpu_at(p->w_up, e * p->stride_w_up, p->dtype), p->ld_w_up);
    product.beta = 1;
    cpu_run_product(x->engine, &product, x->threads, x->product);
    cpu_parallel(x->threads, add_up, x);
}

static void run_expert(struct backward *x, int64_t e)
{
    const struct gpunvme_moe_grad *p = x->p;
    struct cpu_product product;

    x->order = x->sorted.order + x->sorted.starts[e];
    x->rows = x->sorted.starts[e + 1] - x->sorted.starts[e];
    if (x->rows) {
        cpu_parallel(x->threads, gather_tokens, x);
        product = q_product(x, x->rows, e);
        cpu_run_product(x->engine, &product, x->threads, x->product);
        cpu_parallel(x->threads, multiply_rows_out, x);
        if (p->grad_x)
            add_to_x(x, e);
    }
    for (int matrix = 0; matrix < NMATRICES; matrix++)
        if (gradient_of(x, x->rows, e, matrix, &product))
            cpu_run_product(x->engine, &product, x->threads, x->product);
}

/* With dot = sum of p dp over the chosen, a logit's gradient is p dp - p dot, dp 0 if not chosen.
 */
static void logits_of_token(const struct backward *x, int64_t t)
{
    const struct gpunvme_moe_grad *p = x->p;
    const int32_t *chosen = p->chosen + t * p->top_k;
    const float *weights = p->weights + t * p->top_k, *grads = x->grad_weights + t * p->top_k;
    int64_t at = t * p->ld_logits, to = t * p->ld_grad_logits;
    float dot = 0, most = 0, sum = 0;

    for (int64_t i = 0; i < p->top_k; i++)
        dot += weights[i] * grads[i];
    if (p->weighting == GPUNVME_MOE_ALL) {
        most = cpu_load(p->logits, at + chosen[0], p->logits_dtype);
        for (int64_t e = 0; e < p->experts; e++)
            sum += expf(cpu_load(p->logits, at + e, p->logits_dtype) - most);
    }
    for (int64_t e = 0; e < p->experts; e++)
        cpu_store(p->grad_logits, to + e, p->logits_dtype,
                  p->weighting == GPUNVME_MOE_ALL
                      ? -expf(cpu_load(p->logits, at + e, p->logits_dtype) - most) / sum * dot
                      : 0);
    for (int64_t i = 0; i < p->top_k; i++)
        cpu_store(p->grad_logits, to + chosen[i], p->logits_dtype, weights[i] * (grads[i] - dot));
}

static void finish_tokens(void *arg, int index, int count)
{
    const struct backward *x = arg;
    const struct gpunvme_moe_grad *p = x->p;

    for (int64_t t = index; t < p->tokens; t += count) {
        if (p->grad_x)
            cpu_store_row(p->grad_x, t * p->ld_grad_x, p->dtype, p->dim, x->sum + t * p->dim);
        if (p->grad_logits)
            logits_of_token(x, t);
    }
}

static size_t products_nbytes(const struct backward *x)
{
    const struct gpunvme_moe_grad *p = x->p;
    struct cpu_product product = q_product(x, p->tokens, 0);
    size_t most = moe_product_nbytes(x->engine, &product, x->threads), nbytes;

    product = x_product(x, p->tokens, x->gate, p->w_gate, p->ld_w_gate);
    nbytes = moe_product_nbytes(x->engine, &product, x->threads);
    most = nbytes > most ? nbytes : most;
    for (int matrix = 0; matrix < NMATRICES; matrix++)
        if (gradient_of(x, p->tokens, 0, matrix, &product)) {
            nbytes = moe_product_nbytes(x->engine, &product, x->threads);
            most = nbytes > most ? nbytes : most;
        }
    return most;
}

/* Divides the workspace, of which it returns the size. */
static size_t lay_out(struct backward *x, const struct ops_variant *variant,
                      const struct ops_call *call, void *base)
{
    const struct gpunvme_moe_grad *p = call->descriptor;
    size_t element = gpunvme_ops_dtype_nbytes(p->dtype);
    struct moe_workspace w = {base, 0};

    x->p = p;
    x->engine = variant->data;
    x->threads = cpu_threads_for(x->engine, call->exec);
    x->sorted.starts = moe_part(&w, 1, p->experts + 2, sizeof(int32_t));
    x->sorted.order = moe_part(&w, p->tokens, p->top_k, sizeof(int32_t));
    x->x = moe_part(&w, p->tokens, p->dim, element);
    x->grad_y = moe_part(&w, p->tokens, p->dim, element);
    x->weighted = moe_part(&w, p->tokens, p->hidden, sizeof(float));
    x->gate = moe_part(&w, p->tokens, p->hidden, sizeof(float));
    x->up = moe_part(&w, p->tokens, p->hidden, sizeof(float));
    x->out = moe_part(&w, p->tokens, p->dim, sizeof(float));
    x->sum = moe_part(&w, p->tokens, p->dim, sizeof(float));
    x->grad_weights = moe_part(&w, p->tokens, p->top_k, sizeof(float));
    x->product = moe_part(&w, 1, (int64_t)products_nbytes(x), 1);
    return w.nbytes;
}

static size_t workspace(const struct ops_variant *variant, const struct ops_call *call)
{
    struct backward x;

    return lay_out(&x, variant, call, NULL);
}

static gpunvme_ops_status_t run(const struct ops_variant *variant, const struct ops_call *call)
{
    const struct gpunvme_moe_grad *p = call->descriptor;
    gpunvme_ops_status_t status;
    struct backward x;

    lay_out(&x, variant, call, call->exec->workspace);
    status = moe_sort(&x.sorted, p->chosen, p->tokens * p->top_k, p->experts);
    if (status)
        return status;
    memset(x.sum, 0, (size_t)(p->tokens * p->dim) * sizeof(*x.sum));
    for (int64_t e = 0; e < p->experts; e++)
        run_expert(&x, e);
    cpu_parallel(x.threads, finish_tokens, &x);
    return GPUNVME_OPS_OK;
}

static const struct ops_variant variants[] = CPU_LADDER(workspace, run, NULL);

const struct ops_ladder moe_backward_cpu = OPS_LADDER(variants);
