/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gpunvme ops: cases of normalization: m rows of n columns, and with k = 2 a residual.
 */
#include <math.h>

#include "ops_memory.h"

/* What the matrices are. */
enum {
    X = OPS_A,
    WEIGHT = OPS_B,
    Y = OPS_C, /* backwards grad_x */
    BIAS = OPS_BIAS,
    SUM = OPS_PREACT,
    GRAD_Y = OPS_GRAD_Y,
    GRAD_WEIGHT = OPS_GRAD_WEIGHT,
    GRAD_BIAS = OPS_GRAD_BIAS,
    RESIDUAL = OPS_V, /* backwards grad_sum */
    RSTD = OPS_LSE,
    MEAN = OPS_OUT,
};

#define NORM_EPS 1e-5f

static bool is_layer(const struct ops_case *c)
{
    return c->kind == GPUNVME_NORM_LAYER;
}

static bool has_residual(const struct ops_case *c)
{
    return c->shape.k != 1;
}

static void parts(const struct ops_case *c, struct ops_part parts[OPS_NMATRICES])
{
    int64_t all = c->shape.m * c->shape.n, residual = has_residual(c) ? all : 0;
    bool backward = c->op == GPUNVME_OPS_NORM_BACKWARD;

    parts[X] = (struct ops_part){.count = all, .dtype = c->dtype};
    parts[WEIGHT] = (struct ops_part){.count = c->shape.n, .dtype = c->dtype};
    parts[Y] = (struct ops_part){.count = all, .dtype = c->dtype, .result = true};
    parts[RESIDUAL] = (struct ops_part){.count = residual, .dtype = c->dtype};
    parts[RSTD] = (struct ops_part){.count = c->shape.m, .result = !backward};
    if (is_layer(c))
        parts[MEAN] = parts[RSTD];
    if (backward) {
        parts[GRAD_Y] = parts[X];
        parts[GRAD_WEIGHT] = parts[WEIGHT];
        parts[GRAD_WEIGHT].result = true;
        if (is_layer(c))
            parts[GRAD_BIAS] = parts[GRAD_WEIGHT];
        return;
    }
    parts[SUM] = (struct ops_part){.count = residual, .dtype = c->dtype, .result = true};
    if (is_layer(c))
        parts[BIAS] = parts[WEIGHT];
}

static gpunvme_ops_status_t forward(const struct ops_case *c, const struct gpunvme_ops_exec *exec,
                                    size_t *nbytes, const char **name)
{
    int64_t n = c->shape.n;
    struct gpunvme_norm p = {.rows = c->shape.m,
                             .cols = n,
                             .x = ops_case_at(c, X),
                             .residual = ops_case_at(c, RESIDUAL),
                             .weight = ops_case_at(c, WEIGHT),
                             .bias = ops_case_at(c, BIAS),
                             .y = ops_case_at(c, Y),
                             .sum = ops_case_at(c, SUM),
                             .mean = ops_case_at(c, MEAN),
                             .rstd = ops_case_at(c, RSTD),
                             .ldx = n,
                             .ld_residual = n,
                             .ldy = n,
                             .ld_sum = n,
                             .eps = NORM_EPS,
                             .kind = c->kind,
                             .dtype = c->dtype,
                             .weight_dtype = c->dtype};

    return OPS_CALL(gpunvme_norm_forward, p);
}

static gpunvme_ops_status_t backward(const struct ops_case *c, const struct gpunvme_ops_exec *exec,
                                     size_t *nbytes, const char **name)
{
    int64_t n = c->shape.n;
    struct gpunvme_norm_grad p = {.rows = c->shape.m,
                                  .cols = n,
                                  .grad_y = ops_case_at(c, GRAD_Y),
                                  .x = ops_case_at(c, X),
                                  .weight = ops_case_at(c, WEIGHT),
                                  .mean = ops_case_at(c, MEAN),
                                  .rstd = ops_case_at(c, RSTD),
                                  .grad_sum = ops_case_at(c, RESIDUAL),
                                  .grad_x = ops_case_at(c, Y),
                                  .grad_weight = ops_case_at(c, GRAD_WEIGHT),
                                  .grad_bias = ops_case_at(c, GRAD_BIAS),
                                  .ld_grad_y = n,
                                  .ldx = n,
                                  .ld_grad_sum = n,
                                  .ld_grad_x = n,
                                  .kind = c->kind,
                                  .dtype = c->dtype,
                                  .weight_dtype = c->dtype,
                                  .grad_dtype = c->dtype};

    return OPS_CALL(gpunvme_norm_backward, p);
}

static double input(const struct ops_case *c, int64_t at)
{
    char rounded[4];

    if (!has_residual(c))
        return ops_at(c, X, c->dtype, at);
    cpu_store(rounded, 0, c->dtype,
              cpu_load(c->host[X], at, c->dtype) + cpu_load(c->host[RESIDUAL], at, c->dtype));
    return (double)cpu_load(rounded, 0, c->dtype);
}

static double error_of_row(const struct ops_case *c, double most, int64_t i)
{
    int64_t n = c->shape.n;
    double mean = 0, size = 0, var = 0, rstd, share = (double)(n + 16) * OPS_EPS;

    for (int64_t j = 0; j < n; j++) {
        mean += is_layer(c) ? input(c, i * n + j) / (double)n : 0;
        size += fabs(input(c, i * n + j)) / (double)n;
    }
    for (int64_t j = 0; j < n; j++) {
        double d = input(c, i * n + j) - mean;

        var += d * d / (double)n;
    }
    rstd = 1 / sqrt(var + (double)NORM_EPS);
    most = ops_worst(most, ops_at(c, RSTD, GPUNVME_OPS_F32, i), rstd, 4 * share * rstd);
    if (is_layer(c))
        most = ops_worst(most, ops_at(c, MEAN, GPUNVME_OPS_F32, i), mean, share * size);
    for (int64_t j = 0; j < n; j++) {
        double normal = (input(c, i * n + j) - mean) * rstd, w = ops_at(c, WEIGHT, c->dtype, j);
        double b = is_layer(c) ? ops_at(c, BIAS, c->dtype, j) : 0, y = normal * w + b;

        most = ops_worst(most, ops_at(c, Y, c->dtype, i * n + j), y,
                         share * (fabs(normal) + size * rstd + 1) * (fabs(w) + fabs(b)) +
                             ops_rounding(c->dtype, y));
        if (has_residual(c))
            most = ops_worst(most, ops_at(c, SUM, c->dtype, i * n + j), input(c, i * n + j), 1e-30);
    }
    return most;
}

static double forward_error(const struct ops_case *c, int64_t lines)
{
    struct ops_lines rows = ops_lines_of(c->shape.m, lines);
    double most = 0;

    for (int64_t r = 0; r < rows.count && most <= 1; r++)
        most = error_of_row(c, most, ops_line(&rows, r));
    return most;
}

static double normalized(const struct ops_case *c, int64_t i, int64_t j)
{
    double mean = is_layer(c) ? ops_at(c, MEAN, GPUNVME_OPS_F32, i) : 0;

    return (ops_at(c, X, c->dtype, i * c->shape.n + j) - mean) *
           ops_at(c, RSTD, GPUNVME_OPS_F32, i);
}

static double grad_n(const struct ops_case *c, int64_t i, int64_t j)
{
    return ops_at(c, GRAD_Y, c->dtype, i * c->shape.n + j) * ops_at(c, WEIGHT, c->dtype, j);
}

static double error_of_grad_x(const struct ops_case *c, double most, int64_t i)
{
    double sum = 0, product = 0, sizes = 0, n = (double)c->shape.n;
    double share = (n + 16) * OPS_EPS, rstd = ops_at(c, RSTD, GPUNVME_OPS_F32, i);

    for (int64_t j = 0; j < c->shape.n; j++) {
        double g = grad_n(c, i, j), x = normalized(c, i, j);

        sum += is_layer(c) ? g / n : 0;
        product += g * x / n;
        sizes += fabs(g) * (1 + fabs(x)) / n;
    }
    for (int64_t j = 0; j < c->shape.n; j++) {
        int64_t at = i * c->shape.n + j;
        double g = grad_n(c, i, j), x = normalized(c, i, j);
        double more = has_residual(c) ? ops_at(c, RESIDUAL, c->dtype, at) : 0;
        double wanted = (g - sum - x * product) * rstd + more;

        most = ops_worst(most, ops_at(c, Y, c->dtype, at), wanted,
                         share * (fabs(rstd) * (fabs(g) + (1 + fabs(x)) * sizes) + fabs(more)) +
                             ops_rounding(c->dtype, wanted));
    }
    return most;
}

static double error_of_column(const struct ops_case *c, double most, int64_t j)
{
    double weight = 0, bias = 0, weights = 0, biases = 0;
    double share = (double)(c->shape.m + 16) * OPS_EPS;

    for (int64_t i = 0; i < c->shape.m; i++) {
        double g = ops_at(c, GRAD_Y, c->dtype, i * c->shape.n + j), x = normalized(c, i, j);

        weight += g * x;
        bias += g;
        weights += fabs(g) * (1 + fabs(x));
        biases += fabs(g);
    }
    most = ops_worst(most, ops_at(c, GRAD_WEIGHT, c->dtype, j), weight,
                     share * weights + ops_rounding(c->dtype, weight));
    if (is_layer(c))
        most = ops_worst(most, ops_at(c, GRAD_BIAS, c->dtype, j), bias,
                         share * biases + ops_rounding(c->dtype, bias));
    return most;
}

static double backward_error(const struct ops_case *c, int64_t lines)
{
    struct ops_lines rows = ops_lines_of(c->shape.m, lines);
    struct ops_lines cols = ops_lines_of(c->shape.n, lines);
    double most = 0;

    for (int64_t r = 0; r < rows.count && most <= 1; r++)
        most = error_of_grad_x(c, most, ops_line(&rows, r));
    for (int64_t s = 0; s < cols.count && most <= 1; s++)
        most = error_of_column(c, most, ops_line(&cols, s));
    return most;
}

const struct ops_memory_op ops_norm_forward_case = {
    .shape = {8192, 4096, 1}, .parts = parts, .call = forward, .error = forward_error};
const struct ops_memory_op ops_norm_backward_case = {
    .shape = {8192, 4096, 1}, .parts = parts, .call = backward, .error = backward_error};
