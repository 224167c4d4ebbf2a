/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What happens to sums before they are stored: scaling, bias, activation, rounding.
 */
#include <math.h>

#include "ops/cpu/dtype.h"
#include "ops/cpu/product.h"

#define SQRT_HALF       0.70710678118654752440f
#define INV_SQRT_2PI    0.39894228040143267794f
#define SQRT_2_OVER_PI  0.79788456080286535588f
#define GELU_TANH_CUBIC 0.044715f

float cpu_activate(int activation, float z)
{
    switch (activation) {
    case GPUNVME_OPS_ACT_RELU:
        return z < 0 ? 0 : z; /* a NaN stays one */
    case GPUNVME_OPS_ACT_GELU:
        return 0.5f * z * erfcf(-z * SQRT_HALF); /* 1 + erf, without its cancellation */
    case GPUNVME_OPS_ACT_GELU_TANH: {
        float u = SQRT_2_OVER_PI * (z + GELU_TANH_CUBIC * z * z * z);

        /* (1 + tanh u) / 2, likewise */
        return z / (1 + expf(-2 * u));
    }
    case GPUNVME_OPS_ACT_SILU:
        return z / (1 + expf(-z));
    default:
        return z;
    }
}

/* s (1 - s) for s = 1 / (1 + exp(-x)), without overflow to NaN. */
static float sigmoid_slope(float x)
{
    float e = expf(-fabsf(x));

    return e / ((1 + e) * (1 + e));
}

float cpu_activate_grad(int activation, float z)
{
    switch (activation) {
    case GPUNVME_OPS_ACT_RELU:
        return z > 0 ? 1 : (z <= 0 ? 0 : z);
    case GPUNVME_OPS_ACT_GELU: {
        float density = INV_SQRT_2PI * expf(-0.5f * z * z);

        return 0.5f * erfcf(-z * SQRT_HALF) + (density > 0 ? z * density : 0);
    }
    case GPUNVME_OPS_ACT_GELU_TANH: {
        float u = SQRT_2_OVER_PI * (z + GELU_TANH_CUBIC * z * z * z);
        float du = SQRT_2_OVER_PI * (1 + 3 * GELU_TANH_CUBIC * z * z);
        float slope = sigmoid_slope(2 * u);

        return 1 / (1 + expf(-2 * u)) + (slope > 0 ? 2 * z * du * slope : 0);
    }
    case GPUNVME_OPS_ACT_SILU: {
        float slope = sigmoid_slope(z);

        return 1 / (1 + expf(-z)) + (slope > 0 ? z * slope : 0);
    }
    default:
        return 1;
    }
}

/* Bias and activation of one row of f32, in place; Z goes to preact. */
static void epilogue_row(const struct cpu_epilogue *e, float *row, int64_t i, int64_t col,
                         int64_t cols)
{
    if (e->bias)
        for (int64_t j = 0; j < cols; j++)
            row[j] += cpu_load(e->bias, col + j, e->dtype);
    if (e->preact)
        for (int64_t j = 0; j < cols; j++)
            cpu_store(e->preact, i * e->ld_preact + col + j, e->dtype, row[j]);
    if (e->activation != GPUNVME_OPS_ACT_NONE)
        for (int64_t j = 0; j < cols; j++)
            row[j] = cpu_activate(e->activation, row[j]);
}

void cpu_finish_in_place(const struct cpu_product *p, int64_t row, int64_t rows, int64_t col,
                         int64_t cols)
{
    if (p->epilogue)
        for (int64_t i = row; i < row + rows; i++)
            epilogue_row(p->epilogue, (float *)p->c + i * p->ldc + col, i, col, cols);
}

/* One piece of a row: short enough for the stack. */
#define PIECE 256

static void finish_piece(const struct cpu_product *p, const float *sums, int64_t i, int64_t col,
                         int64_t cols)
{
    int64_t at = i * p->ldc + col;
    float piece[PIECE];

    if (p->beta == 0)
        for (int64_t j = 0; j < cols; j++)
            piece[j] = p->alpha * sums[j];
    else
        for (int64_t j = 0; j < cols; j++)
            piece[j] = p->alpha * sums[j] + p->beta * cpu_load(p->c, at + j, p->dtype);
    if (p->epilogue)
        epilogue_row(p->epilogue, piece, i, col, cols);
    for (int64_t j = 0; j < cols; j++)
        cpu_store(p->c, at + j, p->dtype, piece[j]);
}

void cpu_finish(const struct cpu_product *p, const float *sums, int64_t ld, int64_t row,
                int64_t rows, int64_t col, int64_t cols)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j += PIECE)
            finish_piece(p, sums + i * ld + j, row + i, col + j,
                         cols - j < PIECE ? cols - j : PIECE);
}
