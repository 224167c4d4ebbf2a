/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gpunvme ops: cases of a mixture of experts: m tokens of k numbers, eight experts of n hidden
 * numbers, two of them for each token. Backwards the choice and what was kept are random, too.
 */
#include <math.h>
#include <stdlib.h>

#include "ops_memory.h"

#define EXPERTS 8
#define TOP_K   2

/* What the matrices are. */
enum {
    X = OPS_A,
    W_GATE = OPS_B,
    W_UP = OPS_V,
    W_DOWN = OPS_OUT,
    Y = OPS_C, /* backwards grad_x */
    LOGITS = OPS_BIAS,
    CHOSEN = OPS_TABLE,
    WEIGHTS = OPS_LSE,
    GATE = OPS_PREACT,
    UP = OPS_PAGES_K,
    GRAD_Y = OPS_GRAD_Y,
    GRAD_LOGITS = OPS_GRAD_BIAS,
    GRAD_W_GATE = OPS_GRAD_WEIGHT,
    GRAD_W_UP = OPS_GRAD_K,
    GRAD_W_DOWN = OPS_GRAD_V,
};

static bool is_backward(const struct ops_case *c)
{
    return c->op == GPUNVME_OPS_MOE_BACKWARD;
}

static void parts(const struct ops_case *c, struct ops_part parts[OPS_NMATRICES])
{
    const struct ops_part rows = {.count = c->shape.m * c->shape.k, .dtype = c->dtype};
    const struct ops_part of_expert = {.count = EXPERTS * c->shape.n * c->shape.k,
                                       .dtype = c->dtype};

    parts[X] = parts[Y] = rows;
    parts[Y].result = true;
    parts[W_GATE] = parts[W_UP] = parts[W_DOWN] = of_expert;
    if (!is_backward(c)) {
        parts[LOGITS] = (struct ops_part){.count = c->shape.m * EXPERTS};
        return;
    }
    parts[CHOSEN] = parts[WEIGHTS] = (struct ops_part){.count = c->shape.m * TOP_K};
    parts[GATE] = (struct ops_part){.count = c->shape.m * TOP_K * c->shape.n, .dtype = c->dtype};
    parts[UP] = parts[GATE];
    parts[GRAD_Y] = rows;
    parts[GRAD_LOGITS] = (struct ops_part){.count = c->shape.m * EXPERTS, .result = true};
    parts[GRAD_W_GATE] = of_expert;
    parts[GRAD_W_GATE].result = true;
    parts[GRAD_W_UP] = parts[GRAD_W_DOWN] = parts[GRAD_W_GATE];
}

/* Two different experts for each token, and weights whose sum is 1. */
static void fill_choice(const struct ops_case *c, int32_t *chosen, struct base_random *r)
{
    for (int64_t t = 0; t < c->shape.m; t++) {
        int first = (int)(base_random_real(r) * EXPERTS);

        chosen[TOP_K * t] = first;
        chosen[TOP_K * t + 1] = (first + 1 + (int)(base_random_real(r) * (EXPERTS - 1))) % EXPERTS;
    }
}

static void fill_weights(const struct ops_case *c, float *weights, struct base_random *r)
{
    for (int64_t t = 0; t < c->shape.m; t++) {
        weights[TOP_K * t] = (float)base_random_real(r);
        weights[TOP_K * t + 1] = 1 - weights[TOP_K * t];
    }
}

/* The first matrices' rows are scaled, so that sums of any length are of the order of 1. */
static bool fill(const struct ops_case *c, int matrix, void *data, struct base_random *r)
{
    double scale = 2 / sqrt((double)c->shape.k);
    bool scaled = matrix == W_GATE || matrix == W_UP;

    if (matrix == CHOSEN)
        fill_choice(c, data, r);
    else if (matrix == WEIGHTS)
        fill_weights(c, data, r);
    for (int64_t i = 0; scaled && i < EXPERTS * c->shape.n * c->shape.k; i++)
        cpu_store(data, i, c->dtype, (float)(scale * (2 * base_random_real(r) - 1)));
    return scaled || matrix == CHOSEN || matrix == WEIGHTS;
}

static gpunvme_ops_status_t forward(const struct ops_case *c, const struct gpunvme_ops_exec *exec,
                                    size_t *nbytes, const char **name)
{
    int64_t n = c->shape.n, k = c->shape.k;
    struct gpunvme_moe p = {.tokens = c->shape.m,
                            .experts = EXPERTS,
                            .top_k = TOP_K,
                            .dim = k,
                            .hidden = n,
                            .x = ops_case_at(c, X),
                            .logits = ops_case_at(c, LOGITS),
                            .w_gate = ops_case_at(c, W_GATE),
                            .w_up = ops_case_at(c, W_UP),
                            .w_down = ops_case_at(c, W_DOWN),
                            .y = ops_case_at(c, Y),
                            .ldx = k,
                            .ld_logits = EXPERTS,
                            .ldy = k,
                            .ld_w_gate = k,
                            .ld_w_up = k,
                            .ld_w_down = n,
                            .stride_w_gate = n * k,
                            .stride_w_up = n * k,
                            .stride_w_down = n * k,
                            .dtype = c->dtype,
                            .compute = c->compute};

    return OPS_CALL(gpunvme_moe_forward, p);
}

static gpunvme_ops_status_t backward(const struct ops_case *c, const struct gpunvme_ops_exec *exec,
                                     size_t *nbytes, const char **name)
{
    int64_t n = c->shape.n, k = c->shape.k;
    struct gpunvme_moe_grad p = {.tokens = c->shape.m,
                                 .experts = EXPERTS,
                                 .top_k = TOP_K,
                                 .dim = k,
                                 .hidden = n,
                                 .grad_y = ops_case_at(c, GRAD_Y),
                                 .x = ops_case_at(c, X),
                                 .w_gate = ops_case_at(c, W_GATE),
                                 .w_up = ops_case_at(c, W_UP),
                                 .w_down = ops_case_at(c, W_DOWN),
                                 .chosen = ops_case_at(c, CHOSEN),
                                 .weights = ops_case_at(c, WEIGHTS),
                                 .gate = ops_case_at(c, GATE),
                                 .up = ops_case_at(c, UP),
                                 .grad_x = ops_case_at(c, Y),
                                 .grad_logits = ops_case_at(c, GRAD_LOGITS),
                                 .grad_w_gate = ops_case_at(c, GRAD_W_GATE),
                                 .grad_w_up = ops_case_at(c, GRAD_W_UP),
                                 .grad_w_down = ops_case_at(c, GRAD_W_DOWN),
                                 .ld_grad_y = k,
                                 .ldx = k,
                                 .ld_w_gate = k,
                                 .ld_w_up = k,
                                 .ld_w_down = n,
                                 .stride_w_gate = n * k,
                                 .stride_w_up = n * k,
                                 .stride_w_down = n * k,
                                 .ld_grad_x = k,
                                 .ld_grad_logits = EXPERTS,
                                 .ld_grad_w_gate = k,
                                 .ld_grad_w_up = k,
                                 .ld_grad_w_down = n,
                                 .stride_grad_w_gate = n * k,
                                 .stride_grad_w_up = n * k,
                                 .stride_grad_w_down = n * k,
                                 .dtype = c->dtype,
                                 .grad_dtype = c->dtype,
                                 .compute = c->compute};

    return OPS_CALL(gpunvme_moe_backward, p);
}

static double flops(const struct ops_case *c)
{
    return (is_backward(c) ? 12.0 : 6.0) * TOP_K * (double)c->shape.m * (double)c->shape.n *
           (double)c->shape.k;
}

/* ---- What is right: values in f64, with the error that each may have ---- */

struct inexact {
    double value, error;
};

static double at(const struct ops_case *c, int matrix, int64_t i)
{
    return ops_at(c, matrix, c->dtype, i);
}

/* Element (i, j) of an expert's matrix of `cols` columns. */
static double weight_at(const struct ops_case *c, int matrix, int64_t e, int64_t i, int64_t j,
                        int64_t cols)
{
    return at(c, matrix, e * c->shape.n * c->shape.k + i * cols + j);
}

static double silu(double z)
{
    return z / (1 + exp(-z));
}

/* The share that sums of n products may lose. */
static double of_sum(const struct ops_case *c, int64_t n)
{
    return (double)(n + 4) * OPS_EPS + (c->compute == GPUNVME_OPS_COMPUTE_TF32 ? 0x1p-10 : 0);
}

/* A GPU takes fewer instructions for an activation in 16 bits. */
static double of_activation(const struct ops_case *c)
{
    return c->device == GPUNVME_OPS_CUDA && c->dtype != GPUNVME_OPS_F32 ? 0x1p-16 : 0x1p-20;
}

static void add(struct inexact *sum, double share, double a, double b, double error_of_b)
{
    sum->value += a * b;
    sum->error += fabs(a) * error_of_b + share * fabs(a * b);
}

static struct inexact inner(const struct ops_case *c, int matrix, int64_t e, int64_t t, int64_t f)
{
    int64_t k = c->shape.k;
    struct inexact sum = {0, 0};

    for (int64_t d = 0; d < k; d++)
        add(&sum, of_sum(c, k), weight_at(c, matrix, e, f, d, k), at(c, X, t * k + d), 0);
    sum.error += ops_rounding(c->dtype, sum.value);
    return sum;
}

/* silu(gate) * up of a token in an expert. */
static struct inexact hidden(const struct ops_case *c, int64_t e, int64_t t, int64_t f)
{
    struct inexact gate = inner(c, W_GATE, e, t, f), up = inner(c, W_UP, e, t, f), h;

    h.value = silu(gate.value) * up.value;
    h.error = 1.1 * gate.error * (fabs(up.value) + up.error) + fabs(silu(gate.value)) * up.error +
              of_activation(c) * fabs(gate.value * up.value) + ops_rounding(c->dtype, h.value);
    return h;
}

/* The two highest logits of a token, and their weights. */
static void choose(const struct ops_case *c, int64_t t, int64_t chosen[TOP_K],
                   double weights[TOP_K])
{
    const float *logits = (const float *)c->host[LOGITS] + t * EXPERTS;

    for (int i = 0; i < TOP_K; i++) {
        chosen[i] = -1;
        for (int64_t e = 0; e < EXPERTS; e++)
            if (!(i && e == chosen[0]) && (chosen[i] < 0 || logits[e] > logits[chosen[i]]))
                chosen[i] = e;
    }
    weights[1] = 1 / (1 + exp((double)logits[chosen[0]] - (double)logits[chosen[1]]));
    weights[0] = 1 - weights[1];
}

/* All of a token's row. */
static double error_of_token(const struct ops_case *c, double most, int64_t t)
{
    int64_t n = c->shape.n, k = c->shape.k, chosen[TOP_K];
    struct inexact *h = malloc(2 * (size_t)n * sizeof(*h));
    double weights[TOP_K];

    if (!h)
        return NAN;
    choose(c, t, chosen, weights);
    for (int64_t i = 0; i < 2 * n; i++)
        h[i] = hidden(c, chosen[i / n], t, i % n);
    for (int64_t d = 0; d < k && most <= 1; d++) {
        struct inexact y = {0, 0};

        for (int i = 0; i < TOP_K; i++)
            for (int64_t f = 0; f < n; f++)
                add(&y, of_sum(c, n) + 0x1p-20,
                    weights[i] * weight_at(c, W_DOWN, chosen[i], d, f, n), h[i * n + f].value,
                    h[i * n + f].error);
        most = ops_worst(most, at(c, Y, t * k + d), y.value,
                         y.error + ops_rounding(c->dtype, y.value));
    }
    free(h);
    return most;
}

/* Tokens cost much: of a large layer few are looked at. */
static struct ops_lines tokens_of(const struct ops_case *c, int64_t lines)
{
    return ops_lines_of(c->shape.m, lines * c->shape.n * c->shape.k > 1 << 22 ? 3 : lines);
}

static double forward_error(const struct ops_case *c, int64_t lines)
{
    struct ops_lines tokens = tokens_of(c, lines);
    double most = 0;

    for (int64_t i = 0; i < tokens.count && most <= 1; i++)
        most = error_of_token(c, most, ops_line(&tokens, i));
    return most;
}

/* The gradients of one number of a slot: of gate and up, and p h; and of p the share. */
struct slot {
    struct inexact gate, up, weighted, of_weight;
};

static struct slot slot_of(const struct ops_case *c, int64_t slot, int64_t f)
{
    int64_t n = c->shape.n, k = c->shape.k, e = ((const int32_t *)c->host[CHOSEN])[slot];
    double p = (double)((const float *)c->host[WEIGHTS])[slot], share = of_activation(c);
    double gate = at(c, GATE, slot * n + f), up = at(c, UP, slot * n + f);
    double s = 1 / (1 + exp(-gate)), slope = s + gate * s * (1 - s);
    struct inexact q = {0, 0};
    struct slot x;

    for (int64_t d = 0; d < k; d++)
        add(&q, of_sum(c, k), weight_at(c, W_DOWN, e, d, f, n), at(c, GRAD_Y, slot / TOP_K * k + d),
            0);
    q.error += ops_rounding(c->dtype, q.value);
    x.gate.value = p * q.value * up * slope;
    x.gate.error = p * fabs(up) * (1.1 * q.error + 4 * share * fabs(q.value)) +
                   ops_rounding(c->dtype, x.gate.value);
    x.up.value = p * q.value * gate * s;
    x.up.error =
        p * fabs(gate) * (q.error + share * fabs(q.value)) + ops_rounding(c->dtype, x.up.value);
    x.weighted.value = p * gate * s * up;
    x.weighted.error = share * fabs(p * gate * up) + ops_rounding(c->dtype, x.weighted.value);
    x.of_weight.value = q.value * gate * s * up;
    x.of_weight.error = fabs(gate * up) * (q.error + share * fabs(q.value)) +
                        of_sum(c, n) * fabs(x.of_weight.value);
    return x;
}

/* A token's rows of grad_x and grad_logits. */
static double error_of_gradients(const struct ops_case *c, double most, int64_t t)
{
    int64_t n = c->shape.n, k = c->shape.k;
    const int32_t *chosen = (const int32_t *)c->host[CHOSEN] + TOP_K * t;
    const float *weights = (const float *)c->host[WEIGHTS] + TOP_K * t;
    struct slot *slots = malloc(TOP_K * (size_t)n * sizeof(*slots));
    struct inexact of_weight[TOP_K] = {{0, 0}}, dot = {0, 0};

    if (!slots)
        return NAN;
    for (int64_t i = 0; i < TOP_K * n; i++) {
        slots[i] = slot_of(c, t * TOP_K + i / n, i % n);
        of_weight[i / n].value += slots[i].of_weight.value;
        of_weight[i / n].error += slots[i].of_weight.error;
    }
    for (int64_t d = 0; d < k && most <= 1; d++) {
        struct inexact x = {0, 0};

        for (int64_t i = 0; i < TOP_K * n; i++) {
            add(&x, of_sum(c, 4 * n), weight_at(c, W_GATE, chosen[i / n], i % n, d, k),
                slots[i].gate.value, slots[i].gate.error);
            add(&x, of_sum(c, 4 * n), weight_at(c, W_UP, chosen[i / n], i % n, d, k),
                slots[i].up.value, slots[i].up.error);
        }
        most = ops_worst(most, at(c, Y, t * k + d), x.value,
                         x.error + ops_rounding(c->dtype, x.value));
    }
    free(slots);
    for (int i = 0; i < TOP_K; i++)
        add(&dot, 0x1p-20, (double)weights[i], of_weight[i].value, of_weight[i].error);
    for (int64_t e = 0; e < EXPERTS; e++) {
        int i = e == chosen[0] ? 0 : 1;
        double p = e == chosen[i] ? (double)weights[i] : 0;

        most = ops_worst(most, (double)((const float *)c->host[GRAD_LOGITS])[t * EXPERTS + e],
                         p * (of_weight[i].value - dot.value),
                         p * (of_weight[i].error + dot.error +
                              0x1p-20 * (fabs(of_weight[i].value) + fabs(dot.value))));
    }
    return most;
}

/* Hidden number f of the gradients of an expert's three matrices. */
static double error_of_matrices(const struct ops_case *c, double most, int64_t e, int64_t f)
{
    int64_t n = c->shape.n, k = c->shape.k, slots = c->shape.m * TOP_K;
    const int32_t *chosen = c->host[CHOSEN];
    struct inexact *sums = calloc(3 * (size_t)k, sizeof(*sums));

    if (!sums)
        return NAN;
    for (int64_t slot = 0; slot < slots; slot++) {
        int64_t row = slot / TOP_K * k;
        struct slot x;

        if (chosen[slot] != e)
            continue;
        x = slot_of(c, slot, f);
        for (int64_t d = 0; d < k; d++) {
            double share = of_sum(c, c->shape.m);

            add(&sums[d], share, at(c, X, row + d), x.gate.value, x.gate.error);
            add(&sums[k + d], share, at(c, X, row + d), x.up.value, x.up.error);
            add(&sums[2 * k + d], share, at(c, GRAD_Y, row + d), x.weighted.value,
                x.weighted.error);
        }
    }
    for (int64_t i = 0; i < 3 * k && most <= 1; i++) {
        static const int matrices[] = {GRAD_W_GATE, GRAD_W_UP, GRAD_W_DOWN};
        int64_t d = i % k;
        double got = i < 2 * k ? weight_at(c, matrices[i / k], e, f, d, k)
                               : weight_at(c, GRAD_W_DOWN, e, d, f, n);

        most = ops_worst(most, got, sums[i].value,
                         sums[i].error + ops_rounding(c->dtype, sums[i].value));
    }
    free(sums);
    return most;
}

static double backward_error(const struct ops_case *c, int64_t lines)
{
    struct ops_lines tokens = tokens_of(c, lines);
    struct ops_lines numbers = ops_lines_of(EXPERTS * c->shape.n, lines);
    double most = 0;

    for (int64_t i = 0; i < tokens.count && most <= 1; i++)
        most = error_of_gradients(c, most, ops_line(&tokens, i));
    for (int64_t i = 0; i < numbers.count && most <= 1; i++) {
        int64_t at_line = ops_line(&numbers, i);

        most = error_of_matrices(c, most, at_line / c->shape.n, at_line % c->shape.n);
    }
    return most;
}

const struct ops_memory_op ops_moe_forward_case = {.shape = {4096, 14336, 4096},
                                                   .parts = parts,
                                                   .fill = fill,
                                                   .call = forward,
                                                   .error = forward_error,
                                                   .flops = flops};
const struct ops_memory_op ops_moe_backward_case = {.shape = {4096, 14336, 4096},
                                                    .parts = parts,
                                                    .fill = fill,
                                                    .call = backward,
                                                    .error = backward_error,
                                                    .flops = flops};
