/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Normalization on the CPU.
 */
#include "ops/cpu/rows.h"
#include "ops/norm/norm.h"

/* Gradients of parameters are summed over so many rows, or more, at first. */
#define PART_ROWS 16
#define MAX_PARTS 64

/* Element j of row i of h, rounded as it is stored. */
static float input(const struct gpunvme_norm *p, int64_t i, int64_t j)
{
    float h = cpu_load(p->x, i * p->ldx + j, p->dtype);
    char rounded[4];

    if (!p->residual)
        return h;
    cpu_store(rounded, 0, p->dtype, h + cpu_load(p->residual, i * p->ld_residual + j, p->dtype));
    return cpu_load(rounded, 0, p->dtype);
}

static float weight_of(const void *weight, int64_t j, int dtype)
{
    return weight ? cpu_load(weight, j, dtype) : 1;
}

static float bias_of(const struct gpunvme_norm *p, int64_t j)
{
    return p->bias ? cpu_load(p->bias, j, p->weight_dtype) : 0;
}

static void keep(const struct gpunvme_norm *p, int64_t i, double mean, double rstd)
{
    if (p->mean && p->kind == GPUNVME_NORM_LAYER)
        p->mean[i] = (float)mean;
    if (p->rstd)
        p->rstd[i] = (float)rstd;
}

/* By the definition, in f64. What replaces an operand is written last, element by element. */
static void forward_naive(const struct gpunvme_norm *p, int64_t i)
{
    double mean = 0, var = 0, rstd;

    for (int64_t j = 0; j < p->cols && p->kind == GPUNVME_NORM_LAYER; j++)
        mean += (double)input(p, i, j) / (double)p->cols;
    for (int64_t j = 0; j < p->cols; j++) {
        double d = (double)input(p, i, j) - mean;

        var += d * d / (double)p->cols;
    }
    rstd = 1 / sqrt(var + (double)p->eps);
    for (int64_t j = 0; j < p->cols; j++) {
        float h = input(p, i, j);
        double n = ((double)h - mean) * rstd;

        cpu_store(
            p->y, i * p->ldy + j, p->dtype,
            (float)(n * (double)weight_of(p->weight, j, p->weight_dtype) + (double)bias_of(p, j)));
        if (p->sum)
            cpu_store(p->sum, i * p->ld_sum + j, p->dtype, h);
    }
    keep(p, i, mean, rstd);
}

/* A row, and room for another. */
static void forward_row(const struct gpunvme_norm *p, int64_t i, float *h, float *other)
{
    float mean = 0, rstd;

    cpu_load_row(p->x, i * p->ldx, p->dtype, p->cols, h);
    if (p->residual) {
        cpu_load_row(p->residual, i * p->ld_residual, p->dtype, p->cols, other);
        for (int64_t j = 0; j < p->cols; j++)
            other[j] += h[j];
        /* y serves as room to round in, unless the sum is wanted. */
        void *rounded = p->sum ? p->sum : p->y;
        int64_t at = i * (p->sum ? p->ld_sum : p->ldy);

        cpu_store_row(rounded, at, p->dtype, p->cols, other);
        cpu_load_row(rounded, at, p->dtype, p->cols, h);
    } else if (p->sum && p->sum != p->x) {
        cpu_store_row(p->sum, i * p->ld_sum, p->dtype, p->cols, h);
    }
    if (p->kind == GPUNVME_NORM_LAYER) {
        mean = cpu_sum_row(h, NULL, p->cols) / (float)p->cols;
        for (int64_t j = 0; j < p->cols; j++)
            h[j] -= mean;
    }
    rstd = 1 / sqrtf(cpu_sum_row(h, h, p->cols) / (float)p->cols + p->eps);
    keep(p, i, (double)mean, (double)rstd);
    for (int64_t j = 0; j < p->cols; j++)
        h[j] *= rstd;
    if (p->weight) {
        cpu_load_row(p->weight, 0, p->weight_dtype, p->cols, other);
        for (int64_t j = 0; j < p->cols; j++)
            h[j] *= other[j];
    }
    if (p->bias) {
        cpu_load_row(p->bias, 0, p->weight_dtype, p->cols, other);
        for (int64_t j = 0; j < p->cols; j++)
            h[j] += other[j];
    }
    cpu_store_row(p->y, i * p->ldy, p->dtype, p->cols, h);
}

struct forward {
    const struct gpunvme_norm *p;
    float *rows; /* two for each thread; NULL: naive */
};

static void forward_rows(void *arg, int index, int count)
{
    const struct forward *x = arg;
    float *rows = x->rows ? x->rows + 2 * index * x->p->cols : NULL;

    for (int64_t i = index; i < x->p->rows; i += count)
        if (rows)
            forward_row(x->p, i, rows, rows + x->p->cols);
        else
            forward_naive(x->p, i);
}

static size_t forward_workspace(const struct ops_variant *variant, const struct ops_call *call)
{
    const struct gpunvme_norm *p = call->descriptor;

    return cpu_rows_naive(variant)
               ? 0
               : ops_workspace_part(2, cpu_rows_threads(variant, call), p->cols, sizeof(float));
}

static gpunvme_ops_status_t forward_run(const struct ops_variant *variant,
                                        const struct ops_call *call)
{
    struct forward x = {call->descriptor, cpu_rows_naive(variant) ? NULL : call->exec->workspace};

    cpu_parallel(cpu_rows_threads(variant, call), forward_rows, &x);
    return GPUNVME_OPS_OK;
}

static const struct ops_variant forward[] = CPU_ROWS_LADDER(
    forward_workspace, forward_run, "mean, variance and result by the definition, in f64",
    "a row is converted to f32 once, and vectors of it summed");

const struct ops_ladder norm_forward_cpu = OPS_LADDER(forward);

static double normalized(const struct gpunvme_norm_grad *p, int64_t i, int64_t j)
{
    double mean = p->kind == GPUNVME_NORM_LAYER ? (double)p->mean[i] : 0;

    return ((double)cpu_load(p->x, i * p->ldx + j, p->dtype) - mean) * (double)p->rstd[i];
}

static double grad_y_of(const struct gpunvme_norm_grad *p, int64_t i, int64_t j)
{
    return (double)cpu_load(p->grad_y, i * p->ld_grad_y + j, p->dtype);
}

static double grad_n_of(const struct gpunvme_norm_grad *p, int64_t i, int64_t j)
{
    return grad_y_of(p, i, j) * (double)weight_of(p->weight, j, p->weight_dtype);
}

static void grad_x_naive(const struct gpunvme_norm_grad *p, int64_t i)
{
    double sum = 0, product = 0, cols = (double)p->cols;

    for (int64_t j = 0; j < p->cols; j++) {
        if (p->kind == GPUNVME_NORM_LAYER)
            sum += grad_n_of(p, i, j);
        product += grad_n_of(p, i, j) * normalized(p, i, j);
    }
    for (int64_t j = 0; j < p->cols; j++) {
        double g = grad_n_of(p, i, j) - sum / cols - normalized(p, i, j) * product / cols;

        g *= (double)p->rstd[i];
        if (p->grad_sum)
            g += (double)cpu_load(p->grad_sum, i * p->ld_grad_sum + j, p->dtype);
        cpu_store(p->grad_x, i * p->ld_grad_x + j, p->dtype, (float)g);
    }
}

static void add_to(void *total, int64_t j, double sum, const struct gpunvme_norm_grad *p)
{
    if (p->accumulate)
        sum += (double)cpu_load(total, j, p->grad_dtype);
    cpu_store(total, j, p->grad_dtype, (float)sum);
}

static void backward_naive(const struct gpunvme_norm_grad *p)
{
    for (int64_t i = 0; i < p->rows && p->grad_x; i++)
        grad_x_naive(p, i);
    for (int64_t j = 0; j < p->cols && norm_wants_sums(p); j++) {
        double weight = 0, bias = 0;

        for (int64_t i = 0; i < p->rows; i++) {
            if (p->grad_weight)
                weight += grad_y_of(p, i, j) * normalized(p, i, j);
            bias += grad_y_of(p, i, j);
        }
        if (p->grad_weight)
            add_to(p->grad_weight, j, weight, p);
        if (p->grad_bias)
            add_to(p->grad_bias, j, bias, p);
    }
}

struct backward {
    const struct gpunvme_norm_grad *p;
    float *rows;                    /* three for each thread */
    float *weight_sums, *bias_sums; /* a row for each part */
    int64_t parts, part_rows;
};

/* The number of parts does not depend on the threads, and so neither do the sums. */
static struct backward backward_of(const struct gpunvme_norm_grad *p, int threads, char *at)
{
    struct backward x = {.p = p, .part_rows = (p->rows + MAX_PARTS - 1) / MAX_PARTS};
    size_t rows = ops_workspace_part(3, threads, p->cols, sizeof(float)), sums;

    if (x.part_rows < PART_ROWS)
        x.part_rows = PART_ROWS;
    x.parts = (p->rows + x.part_rows - 1) / x.part_rows;
    sums = ops_workspace_part(1, x.parts, p->cols, sizeof(float));
    if (at) {
        x.rows = (float *)(void *)at;
        x.weight_sums = (float *)(void *)(at + rows);
        x.bias_sums = (float *)(void *)(at + rows + sums);
    }
    return x;
}

static void add_row(float *sums, const float *x, const float *y, int64_t n)
{
    for (int64_t j = 0; j < n; j++)
        sums[j] += y ? x[j] * y[j] : x[j];
}

/* A row: grad_y, n and the product with the weight, which becomes grad_x. */
static void backward_row(const struct gpunvme_norm_grad *p, int64_t i, float *rows, float *weight,
                         float *bias)
{
    float *dy = rows, *n = rows + p->cols, *g = rows + 2 * p->cols, rstd = 0, sum = 0, product;

    cpu_load_row(p->grad_y, i * p->ld_grad_y, p->dtype, p->cols, dy);
    if (p->grad_bias)
        add_row(bias, dy, NULL, p->cols);
    if (!p->grad_x && !p->grad_weight)
        return;
    rstd = p->rstd[i];
    cpu_load_row(p->x, i * p->ldx, p->dtype, p->cols, n);
    for (int64_t j = 0; j < p->cols; j++)
        n[j] = (n[j] - (p->kind == GPUNVME_NORM_LAYER ? p->mean[i] : 0)) * rstd;
    if (p->grad_weight)
        add_row(weight, dy, n, p->cols);
    if (!p->grad_x)
        return;
    if (p->weight) {
        cpu_load_row(p->weight, 0, p->weight_dtype, p->cols, g);
        for (int64_t j = 0; j < p->cols; j++)
            dy[j] *= g[j];
    }
    if (p->kind == GPUNVME_NORM_LAYER)
        sum = cpu_sum_row(dy, NULL, p->cols) / (float)p->cols;
    product = cpu_sum_row(dy, n, p->cols) / (float)p->cols;
    for (int64_t j = 0; j < p->cols; j++)
        dy[j] = (dy[j] - sum - n[j] * product) * rstd;
    if (p->grad_sum) {
        cpu_load_row(p->grad_sum, i * p->ld_grad_sum, p->dtype, p->cols, g);
        add_row(dy, g, NULL, p->cols);
    }
    cpu_store_row(p->grad_x, i * p->ld_grad_x, p->dtype, p->cols, dy);
}

static void backward_parts(void *arg, int index, int count)
{
    const struct backward *x = arg;
    int64_t cols = x->p->cols;

    for (int64_t part = index; part < x->parts; part += count) {
        float *weight = x->weight_sums + part * cols, *bias = x->bias_sums + part * cols;
        int64_t end = (part + 1) * x->part_rows;

        memset(weight, 0, (size_t)cols * sizeof(float));
        memset(bias, 0, (size_t)cols * sizeof(float));
        for (int64_t i = part * x->part_rows; i < end && i < x->p->rows; i++)
            backward_row(x->p, i, x->rows + 3 * index * cols, weight, bias);
    }
}

static size_t backward_workspace(const struct ops_variant *variant, const struct ops_call *call)
{
    const struct gpunvme_norm_grad *p = call->descriptor;
    int threads = cpu_rows_threads(variant, call);
    struct backward x = backward_of(p, threads, NULL);

    if (cpu_rows_naive(variant))
        return 0;
    return ops_workspace_part(3, threads, p->cols, sizeof(float)) +
           2 * ops_workspace_part(1, x.parts, p->cols, sizeof(float));
}

static gpunvme_ops_status_t backward_run(const struct ops_variant *variant,
                                         const struct ops_call *call)
{
    const struct gpunvme_norm_grad *p = call->descriptor;
    int threads = cpu_rows_threads(variant, call);
    struct backward x;

    if (cpu_rows_naive(variant)) {
        backward_naive(p);
        return GPUNVME_OPS_OK;
    }
    x = backward_of(p, threads, call->exec->workspace);
    cpu_parallel(threads, backward_parts, &x);
    if (p->grad_weight)
        cpu_finish_sums(x.weight_sums, x.parts, p->cols, p->grad_weight, p->grad_dtype,
                        p->accumulate);
    if (p->grad_bias)
        cpu_finish_sums(x.bias_sums, x.parts, p->cols, p->grad_bias, p->grad_dtype, p->accumulate);
    return GPUNVME_OPS_OK;
}

static const struct ops_variant backward[] = CPU_ROWS_LADDER(
    backward_workspace, backward_run,
    "a sum in f64 for each row, and for each element of the parameters' gradients",
    "rows are converted to f32 once; parameters' gradients are summed by parts of the rows first");

const struct ops_ladder norm_backward_cpu = OPS_LADDER(backward);
