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

double ops_rounding(int dtype, double value)
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

/*
 * What products lose beyond f32: on the GPU tf32, of which each factor may lose 2^-10 where it is
 * cut off, as another library may do it; ours are rounded, which tests/ops looks at.
 */
static double tf32_error(const struct ops_case *c)
{
    return c->device == GPUNVME_OPS_CUDA && c->dtype == GPUNVME_OPS_F32 &&
                   c->compute == GPUNVME_OPS_COMPUTE_TF32
               ? 0x1p-9
               : 0;
}

/*
 * What tensor cores lose of sums of fp8, which they cut off behind 14 bits at each 32 of k: all of
 * them, or what 128 of k add.
 */
static double fp8_error(const struct ops_case *c)
{
    if (c->device == GPUNVME_OPS_CPU || !ops_is_fp8(c->dtype))
        return 0;
    return 0x1p-13 * (c->compute == OPS_FP8_FAST ? (double)c->shape.k / 32 + 4 : 8);
}

/* The scale of element k of row (or column) `line`, of which `block` share one by block. */
static double scale_of(const struct ops_case *c, int matrix, int64_t line, int64_t k, int64_t block)
{
    const float *scales = c->host[matrix];

    if (!ops_is_fp8(c->dtype))
        return 1;
    if (c->compute == OPS_FP8_ROW)
        return (double)scales[line];
    return (double)
        scales[c->compute == OPS_FP8_BLOCK ? line / block * ((c->shape.k + 127) / 128) + k / 128
                                           : 0];
}

/* What dZ loses: on the GPU it is rounded to the type of the matrices. */
static double dz_error(const struct ops_case *c, int activation)
{
    bool rounded = c->device == GPUNVME_OPS_CUDA && c->dtype != GPUNVME_OPS_F32 &&
                   activation != GPUNVME_OPS_ACT_NONE;

    return 2 * ACT_EPS + tf32_error(c) + (rounded ? ops_rounding(c->dtype, 1) : 0);
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

double ops_worst(double so_far, double got, double expected, double allowed)
{
    double share = fabs(got - expected) / allowed;

    if (got == expected)
        share = 0;
    /* What is wrong, or a NaN, stays: a later element that is right must not hide it. */
    return share <= so_far || !(so_far <= 1) ? so_far : share;
}

/* Element (i, j) of a product before activation. */
static struct sum sum_product(const struct ops_case *c, bool bias, int64_t i, int64_t j)
{
    bool linear = c->op == GPUNVME_OPS_LINEAR_FORWARD, along = linear || ops_is_fp8(c->dtype);
    const int64_t n = c->shape.n, k = c->shape.k;
    struct sum z = {0};

    if (linear && bias)
        z.value = load(c, c->host[OPS_BIAS], j), z.size = fabs(z.value);
    for (int64_t p = 0; p < k; p++) {
        double product =
            load(c, c->host[OPS_A], i * k + p) *
            (double)cpu_load(c->host[OPS_B], along ? j * k + p : p * n + j, ops_case_dtype_b(c)) *
            scale_of(c, OPS_SCALE_A, i, p, 1) * scale_of(c, OPS_SCALE_B, j, p, 128);

        z.value += product;
        z.size += fabs(product);
    }
    return z;
}

static double error_of_product(const struct ops_case *c, const struct ops_done *done,
                               int64_t most_lines)
{
    const struct ops_lines rows = ops_lines_of(c->shape.m, most_lines);
    const struct ops_lines cols = ops_lines_of(c->shape.n, most_lines);
    bool linear = c->op == GPUNVME_OPS_LINEAR_FORWARD;
    double most = 0;

    for (int64_t r = 0; r < rows.count && most <= 1; r++)
        for (int64_t s = 0; s < cols.count; s++) {
            int64_t i = ops_line(&rows, r), j = ops_line(&cols, s), at = i * c->shape.n + j;
            struct sum z = sum_product(c, done->bias, i, j);
            double error = ((double)(c->shape.k + 5) * EPS + tf32_error(c) + fp8_error(c)) * z.size;
            double y = linear ? activate(done->activation, z.value) : z.value;

            if (linear && done->preact)
                most = ops_worst(most, load(c, c->host[OPS_PREACT], at), z.value,
                                 error + ops_rounding(c->dtype, z.value));
            /* No activation is steeper than 1.13. */
            most = ops_worst(most, (double)cpu_load(c->host[OPS_C], at, ops_case_out_dtype(c)), y,
                             1.2 * error + (ACT_EPS + done->slack) * fabs(z.value) +
                                 ops_rounding(ops_case_out_dtype(c), y));
        }
    return most;
}

/* dZ[first + p * step] for p < count. */
static void make_dz(const struct ops_case *c, int activation, double *dz, int64_t count,
                    int64_t first, int64_t step)
{
    for (int64_t p = 0; p < count; p++) {
        int64_t at = first + p * step;

        dz[p] = load(c, c->host[OPS_GRAD_Y], at);
        if (activation != GPUNVME_OPS_ACT_NONE)
            dz[p] *= slope(activation, load(c, c->host[OPS_PREACT], at));
    }
}

/* sum over p < count of dz[p] * other[at + p * stride]; other NULL is 1. grad_y is at `first`. */
static struct sum sum_dz(const struct ops_case *c, const double *dz, int64_t count, int64_t first,
                         int64_t step, const void *other, int64_t at, int64_t stride)
{
    struct sum s = {0};

    for (int64_t p = 0; p < count; p++) {
        double y = other ? load(c, other, at + p * stride) : 1;

        s.value += dz[p] * y;
        s.size += fabs(1.2 * load(c, c->host[OPS_GRAD_Y], first + p * step) * y);
    }
    return s;
}

static double worst_sum(const struct ops_case *c, const struct ops_done *done, double so_far,
                        double got, struct sum s, int64_t count)
{
    double share = (double)(count + 3) * EPS + dz_error(c, done->activation);

    return ops_worst(so_far, got, s.value, share * s.size + ops_rounding(c->dtype, s.value));
}

static double error_of_grad_x(const struct ops_case *c, const struct ops_done *done,
                              int64_t most_lines, double *dz)
{
    const int64_t n = c->shape.n, k = c->shape.k;
    const struct ops_lines rows = ops_lines_of(c->shape.m, most_lines),
                           cols = ops_lines_of(k, most_lines);
    double most = 0;

    for (int64_t r = 0; r < rows.count; r++) {
        int64_t i = ops_line(&rows, r);

        make_dz(c, done->activation, dz, n, i * n, 1);
        for (int64_t s = 0; s < cols.count; s++) {
            int64_t j = ops_line(&cols, s);

            most = worst_sum(c, done, most, load(c, c->host[OPS_C], i * k + j),
                             sum_dz(c, dz, n, i * n, 1, c->host[OPS_B], j, k), n);
        }
    }
    return most;
}

/* Of the weight, and of the bias. */
static double error_of_grad_weight(const struct ops_case *c, const struct ops_done *done,
                                   int64_t most_lines, double *dz)
{
    const int64_t m = c->shape.m, n = c->shape.n, k = c->shape.k;
    const struct ops_lines rows = ops_lines_of(n, most_lines), cols = ops_lines_of(k, most_lines);
    double most = 0;

    for (int64_t r = 0; r < rows.count; r++) {
        int64_t i = ops_line(&rows, r);

        make_dz(c, done->activation, dz, m, i, n);
        for (int64_t s = 0; s < cols.count; s++) {
            int64_t j = ops_line(&cols, s);

            most = worst_sum(c, done, most, load(c, c->host[OPS_GRAD_WEIGHT], i * k + j),
                             sum_dz(c, dz, m, i, n, c->host[OPS_A], j, k), m);
        }
        if (done->bias)
            most = worst_sum(c, done, most, load(c, c->host[OPS_GRAD_BIAS], i),
                             sum_dz(c, dz, m, i, n, NULL, 0, 0), m);
    }
    return most;
}

static double error_of_gradients(const struct ops_case *c, const struct ops_done *done,
                                 int64_t most_lines)
{
    int64_t longest = c->shape.m > c->shape.n ? c->shape.m : c->shape.n;
    double *dz = malloc((size_t)longest * sizeof(*dz)), x, weight;

    if (!dz)
        return NAN;
    x = error_of_grad_x(c, done, most_lines, dz);
    weight = error_of_grad_weight(c, done, most_lines, dz);
    free(dz);
    return x <= weight || !(weight <= 1) ? weight : x;
}

struct ops_done ops_case_does(const struct ops_case *c)
{
    return (struct ops_done){.activation = c->activation, .bias = true, .preact = !c->no_preact};
}

double ops_case_error(const struct ops_case *c, const struct ops_done *done, int64_t lines)
{
    if (ops_memory_op(c->op))
        return ops_memory_op(c->op)->error(c, lines);
    if (ops_is_attention(c->op))
        return ops_attention_error(c, lines);
    return c->op == GPUNVME_OPS_LINEAR_BACKWARD ? error_of_gradients(c, done, lines)
                                                : error_of_product(c, done, lines);
}
