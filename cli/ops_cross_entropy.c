/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gpunvme ops: cases of cross entropy: m rows of n logits, and the gradient.
 */
#include <math.h>

#include "ops_memory.h"

/* What the matrices are. */
enum {
    LOGITS = OPS_A,
    GRAD = OPS_C,
    LOSS = OPS_BIAS,
    LSE = OPS_LSE,
    TARGETS = OPS_TABLE,
};

static void parts(const struct ops_case *c, struct ops_part parts[OPS_NMATRICES])
{
    int64_t all = c->shape.m * c->shape.n;

    parts[LOGITS] = (struct ops_part){.count = all, .dtype = c->dtype};
    parts[GRAD] = (struct ops_part){.count = all, .dtype = c->dtype, .result = true};
    parts[LOSS] = (struct ops_part){.count = 1, .result = true};
    parts[LSE] = (struct ops_part){.count = c->shape.m, .result = true};
    parts[TARGETS] = (struct ops_part){.count = c->shape.m};
}

static bool fill(const struct ops_case *c, int matrix, void *data, struct base_random *r)
{
    for (int64_t i = 0; matrix == TARGETS && i < c->shape.m; i++)
        ((int32_t *)data)[i] = (int32_t)(base_random_real(r) * (double)c->shape.n);
    return matrix == TARGETS;
}

static gpunvme_ops_status_t call(const struct ops_case *c, const struct gpunvme_ops_exec *exec,
                                 size_t *nbytes, const char **name)
{
    struct gpunvme_cross_entropy p = {.rows = c->shape.m,
                                      .vocab = c->shape.n,
                                      .logits = ops_case_at(c, LOGITS),
                                      .targets = ops_case_at(c, TARGETS),
                                      .loss = ops_case_at(c, LOSS),
                                      .lse = ops_case_at(c, LSE),
                                      .grad = ops_case_at(c, GRAD),
                                      .ld_logits = c->shape.n,
                                      .ld_grad = c->shape.n,
                                      .dtype = c->dtype};

    return OPS_CALL(gpunvme_cross_entropy, p);
}

/* A sum of positive numbers in f32, and exponents that are rounded. */
static double lse_error(const struct ops_case *c, double lse)
{
    return ((double)c->shape.n / 64 + 64 + 4 * fabs(lse)) * OPS_EPS;
}

static double error_of_row(const struct ops_case *c, double most, int64_t i)
{
    int64_t n = c->shape.n, target = ((const int32_t *)c->host[TARGETS])[i];
    double sum = 0, lse, share;

    for (int64_t j = 0; j < n; j++)
        sum += exp(ops_at(c, LOGITS, c->dtype, i * n + j));
    lse = log(sum);
    share = 4 * lse_error(c, lse);
    most = ops_worst(most, ops_at(c, LSE, GPUNVME_OPS_F32, i), lse, lse_error(c, lse));
    for (int64_t j = 0; j < n; j++) {
        double p = exp(ops_at(c, LOGITS, c->dtype, i * n + j) - lse);
        double wanted = (p - (j == target)) / (double)c->shape.m;

        most = ops_worst(most, ops_at(c, GRAD, c->dtype, i * n + j), wanted,
                         share * (p + (j == target)) / (double)c->shape.m +
                             ops_rounding(c->dtype, wanted));
    }
    return most;
}

/* The total is compared with the sums of all rows as they were computed. */
static double error_of_loss(const struct ops_case *c, double most)
{
    double total = 0, size = 0, m = (double)c->shape.m;

    for (int64_t i = 0; i < c->shape.m; i++) {
        int64_t at = i * c->shape.n + ((const int32_t *)c->host[TARGETS])[i];
        double lse = ops_at(c, LSE, GPUNVME_OPS_F32, i);

        total += (lse - ops_at(c, LOGITS, c->dtype, at)) / m;
        size += (fabs(lse) + 1) / m;
    }
    return ops_worst(most, ops_at(c, LOSS, GPUNVME_OPS_F32, 0), total, (m + 16) * OPS_EPS * size);
}

static double error(const struct ops_case *c, int64_t lines)
{
    struct ops_lines rows = ops_lines_of(c->shape.m, lines);
    double most = 0;

    for (int64_t r = 0; r < rows.count && most <= 1; r++)
        most = error_of_row(c, most, ops_line(&rows, r));
    return error_of_loss(c, most);
}

const struct ops_memory_op ops_cross_entropy_case = {
    .shape = {2048, 50304, 1}, .parts = parts, .fill = fill, .call = call, .error = error};
