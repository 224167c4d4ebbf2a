/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How far an operator's results are from sums in f64, and what sums in f32 may lose.
 */
#include <math.h>
#include <stdlib.h>

#include "ops.h"
#include "ops/cpu/dtype.h"

/* Half an ulp of f32, and what activations in f32 may lose: see tests/ops/test_linear.c. */
#define EPS     0x1p-24
#define ACT_EPS (16 * EPS)

static double rounding(int dtype, double value)
{
    switch (dtype) {
    case GPUNVME_OPS_F16:
        return fabs(value) * 0x1p-11 + 0x1p-25;
    case GPUNVME_OPS_BF16:
        return fabs(value) * 0x1p-8;
    default:
        return fabs(value) * EPS;
    }
}

/* What products lose beyond f32: on the GPU tf32, of which each factor may lose 2^-10. */
static double tf32_error(const struct ops_case *c)
{
    return c->device == GPUNVME_OPS_CUDA && c->dtype == GPUNVME_OPS_F32 &&
                   c->compute == GPUNVME_OPS_COMPUTE_TF32
               ? 0x1p-9
               : 0;
}

/* What dZ loses: on the GPU it is rounded to the type of the matrices. */
static double dz_error(const struct ops_case *c)
{
    bool rounded = c->device == GPUNVME_OPS_CUDA && c->dtype != GPUNVME_OPS_F32 &&
                   c->activation != GPUNVME_OPS_ACT_NONE;

    return 2 * ACT_EPS + tf32_error(c) + (rounded ? rounding(c->dtype, 1) : 0);
}

static double load(const struct ops_case *c, const void *data, int64_t i)
{
    return (double)cpu_load(data, i, c->dtype);
}

static double activate(int activation, double z)
{
    switch (activation) {
    case GPUNVME_OPS_ACT_RELU:
        return z > 0 ? z : 0;
    case GPUNVME_OPS_ACT_GELU:
        return z * 0.5 * (1 + erf(z * M_SQRT1_2));
    case GPUNVME_OPS_ACT_GELU_TANH:
        return z * 0.5 * (1 + tanh(sqrt(2 / M_PI) * (z + 0.044715 * z * z * z)));
    case GPUNVME_OPS_ACT_SILU:
        return z / (1 + exp(-z));
    default:
        return z;
    }
}

/* The derivative by a difference, off by some 1e-10. */
static double slope(int activation, double z)
{
    const double h = 1e-5;

    if (activation == GPUNVME_OPS_ACT_NONE)
        return 1;
    if (activation == GPUNVME_OPS_ACT_RELU)
        return z > 0 ? 1 : 0;
    return (activate(activation, z + h) - activate(activation, z - h)) / (2 * h);
}

/* A sum of products, and the sum of their sizes. */
struct sum {
    double value, size;
};

static double worst(double so_far, double got, double expected, double allowed)
{
    double share = fabs(got - expected) / allowed;

    if (got == expected)
        share = 0;
    /* What is wrong, or a NaN, stays: a later element that is right must not hide it. */
    return share <= so_far || !(so_far <= 1) ? so_far : share;
}

static double error_of_product(const struct ops_case *c)
{
    const struct ops_shape s = c->shape;
    bool linear = c->op == GPUNVME_OPS_LINEAR_FORWARD;
    double most = 0;

    for (int64_t i = 0; i < s.m && most <= 1; i++)
        for (int64_t j = 0; j < s.n; j++) {
            struct sum z = {0};
            double error, y;

            if (linear)
                z.value = load(c, c->host[OPS_BIAS], j), z.size = fabs(z.value);
            for (int64_t p = 0; p < s.k; p++) {
                double product = load(c, c->host[OPS_A], i * s.k + p) *
                                 load(c, c->host[OPS_B], linear ? j * s.k + p : p * s.n + j);

                z.value += product;
                z.size += fabs(product);
            }
            error = ((double)(s.k + 3) * EPS + tf32_error(c)) * z.size;
            y = linear ? activate(c->activation, z.value) : z.value;
            if (linear)
                most = worst(most, load(c, c->host[OPS_PREACT], i * s.n + j), z.value,
                             error + rounding(c->dtype, z.value));
            /* No activation is steeper than 1.13. */
            most = worst(most, load(c, c->host[OPS_C], i * s.n + j), y,
                         1.2 * error + ACT_EPS * fabs(z.value) + rounding(c->dtype, y));
        }
    return most;
}

/* sum over p < count of dz[first + p * step] * other[at + p * stride]; other NULL is 1. */
static struct sum sum_dz(const struct ops_case *c, const double *dz, int64_t count, int64_t first,
                         int64_t step, const void *other, int64_t at, int64_t stride)
{
    struct sum s = {0};

    for (int64_t p = 0; p < count; p++) {
        double y = other ? load(c, other, at + p * stride) : 1;

        s.value += dz[first + p * step] * y;
        s.size += fabs(1.2 * load(c, c->host[OPS_GRAD_Y], first + p * step) * y);
    }
    return s;
}

static double worst_sum(const struct ops_case *c, double so_far, double got, struct sum s,
                        int64_t count)
{
    return worst(so_far, got, s.value,
                 ((double)(count + 3) * EPS + dz_error(c)) * s.size + rounding(c->dtype, s.value));
}

static double error_of_gradients(const struct ops_case *c)
{
    const int64_t m = c->shape.m, n = c->shape.n, k = c->shape.k;
    double *dz = malloc((size_t)(m * n) * sizeof(*dz));
    double most = 0;

    if (!dz)
        return NAN;
    for (int64_t i = 0; i < m * n; i++)
        dz[i] =
            load(c, c->host[OPS_GRAD_Y], i) * slope(c->activation, load(c, c->host[OPS_PREACT], i));
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < k; j++)
            most = worst_sum(c, most, load(c, c->host[OPS_C], i * k + j),
                             sum_dz(c, dz, n, i * n, 1, c->host[OPS_B], j, k), n);
    for (int64_t i = 0; i < n; i++) {
        for (int64_t j = 0; j < k; j++)
            most = worst_sum(c, most, load(c, c->host[OPS_GRAD_WEIGHT], i * k + j),
                             sum_dz(c, dz, m, i, n, c->host[OPS_A], j, k), m);
        most = worst_sum(c, most, load(c, c->host[OPS_GRAD_BIAS], i),
                         sum_dz(c, dz, m, i, n, NULL, 0, 0), m);
    }
    free(dz);
    return most;
}

double ops_case_error(const struct ops_case *c)
{
    return c->op == GPUNVME_OPS_LINEAR_BACKWARD ? error_of_gradients(c) : error_of_product(c);
}
