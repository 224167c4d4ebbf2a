/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Mixture of experts, forward and backward, every variant that this machine has, against f64. The
 * reference carries the error that each step may have along with its values.
 */
#include <math.h>

#include "gpunvme/ops/moe.h"
#include "rows_test.h"

static struct base_random rng;

struct request {
    int64_t tokens, experts, top_k, dim, hidden;
    int dtype, logits_dtype, weighting, compute;
    int64_t pad;
    bool accumulate;
    int grad_dtype;
};

/* A number and how far a result may be from it. */
struct inexact {
    double value, error;
};

enum {
    X,
    LOGITS,
    W_GATE,
    W_UP,
    W_DOWN,
    Y,
    GATE,
    UP,
    GRAD_Y,
    GRAD_X,
    GRAD_LOGITS,
    GRAD_W_GATE,
    GRAD_W_UP,
    GRAD_W_DOWN,
    NMATS
};

struct layer {
    const struct request *q;
    int64_t slots;
    struct mat m[NMATS];
    int32_t *chosen;
    float *weights;
};

static double unit(void)
{
    return 2 * base_random_real(&rng) - 1;
}

static void *room(int64_t count, size_t size)
{
    void *p = calloc((size_t)(count ? count : 1), size);

    assert_non_null(p);
    return p;
}

/* The last expert is chosen by nobody if there are enough others; some logits are equal. */
static void make_logits(const struct request *q, struct mat *m)
{
    for (int64_t t = 0; t < q->tokens; t++)
        for (int64_t e = 0; e < q->experts; e++) {
            double logit = e == q->experts - 1 && q->top_k < e ? -9 : floor(unit() * 24) / 8;

            cpu_store(m->block, mat_index(m, 0, t, e), m->dtype, (float)logit);
        }
}

static struct layer layer_new(const struct request *q)
{
    struct layer x = {.q = q, .slots = q->tokens * q->top_k};
    const int64_t shapes[NMATS][3] = {
        [X] = {q->tokens, q->dim, 1},
        [LOGITS] = {q->tokens, q->experts, 1},
        [W_GATE] = {q->hidden, q->dim, q->experts},
        [W_UP] = {q->hidden, q->dim, q->experts},
        [W_DOWN] = {q->dim, q->hidden, q->experts},
        [Y] = {q->tokens, q->dim, 1},
        [GATE] = {x.slots, q->hidden, 1},
        [UP] = {x.slots, q->hidden, 1},
        [GRAD_Y] = {q->tokens, q->dim, 1},
        [GRAD_X] = {q->tokens, q->dim, 1},
        [GRAD_LOGITS] = {q->tokens, q->experts, 1},
        [GRAD_W_GATE] = {q->hidden, q->dim, q->experts},
        [GRAD_W_UP] = {q->hidden, q->dim, q->experts},
        [GRAD_W_DOWN] = {q->dim, q->hidden, q->experts},
    };

    for (int i = 0; i < NMATS; i++) {
        bool packed = i == GATE || i == UP, of_logits = i == LOGITS || i == GRAD_LOGITS;
        int dtype = of_logits ? q->logits_dtype : i >= GRAD_W_GATE ? q->grad_dtype : q->dtype;

        x.m[i] = mat_new(shapes[i][0], shapes[i][1], packed ? 0 : q->pad, shapes[i][2], dtype);
        mat_random(&x.m[i], &rng);
    }
    make_logits(q, &x.m[LOGITS]);
    x.chosen = room(x.slots, sizeof(*x.chosen));
    x.weights = room(x.slots, sizeof(*x.weights));
    return x;
}

static void layer_free(struct layer *x)
{
    for (int i = 0; i < NMATS; i++)
        mat_free(&x->m[i]);
    free(x->chosen);
    free(x->weights);
}

static double at(const struct layer *x, int m, int64_t b, int64_t i, int64_t j)
{
    return mat_get(&x->m[m], b, i, j);
}

/* ---- What the definition says ---- */

/* The choice by its definition: of those not yet chosen the highest, the first of equal ones. */
static void choose(const struct layer *x, int64_t t, int32_t *chosen, double *weights)
{
    const struct request *q = x->q;
    double sum = 0, most;

    for (int64_t i = 0; i < q->top_k; i++) {
        chosen[i] = -1;
        for (int64_t e = 0; e < q->experts; e++) {
            bool taken = false;

            for (int64_t j = 0; j < i; j++)
                taken |= chosen[j] == e;
            if (!taken &&
                (chosen[i] < 0 || at(x, LOGITS, 0, t, e) > at(x, LOGITS, 0, t, chosen[i])))
                chosen[i] = (int32_t)e;
        }
    }
    most = at(x, LOGITS, 0, t, chosen[0]);
    for (int64_t i = 0; i < (q->weighting == GPUNVME_MOE_ALL ? q->experts : q->top_k); i++)
        sum += exp(at(x, LOGITS, 0, t, q->weighting == GPUNVME_MOE_ALL ? i : chosen[i]) - most);
    for (int64_t i = 0; i < q->top_k; i++)
        weights[i] = exp(at(x, LOGITS, 0, t, chosen[i]) - most) / sum;
}

/* What a sum of products of that size may lose, in f32 or with factors in tf32. */
static double of_sum(const struct request *q, int64_t n, double size)
{
    double share = (double)(n + 4) * F32_EPS;

    if (q->compute == GPUNVME_OPS_COMPUTE_TF32)
        share += TF32_EPS;
    return share * size;
}

static double silu(double z)
{
    return z / (1 + exp(-z));
}

static double silu_slope(double z)
{
    double s = 1 / (1 + exp(-z));

    return s + z * s * (1 - s);
}

/* GPUs may take fewer instructions where results have 16 bits: src/ops/cuda/element.cuh. */
static double activation_share(const struct request *q)
{
    return TEST_DEVICE == GPUNVME_OPS_CUDA && q->dtype != GPUNVME_OPS_F32 ? 0x1p-16 : 0x1p-20;
}

/* Row f of an expert's w_gate or w_up times a token. */
static struct inexact inner(const struct layer *x, int m, int64_t e, int64_t t, int64_t f)
{
    struct inexact sum = {0, 0};
    double size = 0;

    for (int64_t d = 0; d < x->q->dim; d++) {
        double product = at(x, m, e, f, d) * at(x, X, 0, t, d);

        sum.value += product;
        size += fabs(product);
    }
    sum.error = of_sum(x->q, x->q->dim, size) + rounding(x->q->dtype, sum.value);
    return sum;
}

static void expect_slot(const struct layer *x, const char *variant, int64_t t, int64_t i,
                        double weight, struct inexact *y)
{
    const struct request *q = x->q;
    int64_t slot = t * q->top_k + i, e = x->chosen[slot];
    struct inexact *h = room(q->hidden, sizeof(*h));

    for (int64_t f = 0; f < q->hidden; f++) {
        struct inexact gate = inner(x, W_GATE, e, t, f), up = inner(x, W_UP, e, t, f);

        expect_close(at(x, GATE, 0, slot, f), gate.value, gate.error, "%s: gate", variant);
        expect_close(at(x, UP, 0, slot, f), up.value, up.error, "%s: up", variant);
        h[f].value = silu(gate.value) * up.value;
        h[f].error =
            1.1 * gate.error * (fabs(up.value) + up.error) + fabs(silu(gate.value)) * up.error +
            activation_share(q) * fabs(gate.value * up.value) + rounding(q->dtype, h[f].value);
    }
    for (int64_t d = 0; d < q->dim; d++) {
        double sum = 0, size = 0, error = 0;

        for (int64_t f = 0; f < q->hidden; f++) {
            double w = at(x, W_DOWN, e, d, f);

            sum += w * h[f].value;
            size += fabs(w * h[f].value);
            error += fabs(w) * h[f].error;
        }
        y[d].value += weight * sum;
        y[d].error += weight * (error + of_sum(q, q->hidden, size) + 0x1p-20 * size);
    }
    free(h);
}

static void expect_token(const struct layer *x, const char *variant, int64_t t)
{
    const struct request *q = x->q;
    struct inexact *y = room(q->dim, sizeof(*y));
    int32_t *chosen = room(q->top_k, sizeof(*chosen));
    double *weights = room(q->top_k, sizeof(*weights));

    choose(x, t, chosen, weights);
    for (int64_t i = 0; i < q->top_k; i++) {
        assert_int_equal(x->chosen[t * q->top_k + i], chosen[i]);
        expect_close((double)x->weights[t * q->top_k + i], weights[i], 0x1p-20 * weights[i],
                     "%s: weight", variant);
        expect_slot(x, variant, t, i, weights[i], y);
    }
    for (int64_t d = 0; d < q->dim; d++)
        expect_close(at(x, Y, 0, t, d), y[d].value, y[d].error + rounding(q->dtype, y[d].value),
                     "%s: y[%d][%d]", variant, (int)t, (int)d);
    free(weights);
    free(chosen);
    free(y);
}

/* ---- Forward ---- */

static struct gpunvme_moe forward_of(struct layer *x, struct device_set *set)
{
    const struct request *q = x->q;
    struct gpunvme_moe p = {
        .tokens = q->tokens,
        .experts = q->experts,
        .top_k = q->top_k,
        .dim = q->dim,
        .hidden = q->hidden,
        .x = set_in_mat(set, &x->m[X], false),
        .logits = set_in_mat(set, &x->m[LOGITS], false),
        .w_gate = set_in_mat(set, &x->m[W_GATE], false),
        .w_up = set_in_mat(set, &x->m[W_UP], false),
        .w_down = set_in_mat(set, &x->m[W_DOWN], false),
        .y = set_in_mat(set, &x->m[Y], true),
        .chosen = set_in(set, x->chosen, (size_t)x->slots * sizeof(int32_t), true),
        .weights = set_in(set, x->weights, (size_t)x->slots * sizeof(float), true),
        .gate = set_in_mat(set, &x->m[GATE], true),
        .up = set_in_mat(set, &x->m[UP], true),
        .ldx = x->m[X].ld,
        .ld_logits = x->m[LOGITS].ld,
        .ldy = x->m[Y].ld,
        .ld_w_gate = x->m[W_GATE].ld,
        .ld_w_up = x->m[W_UP].ld,
        .ld_w_down = x->m[W_DOWN].ld,
        .stride_w_gate = x->m[W_GATE].stride,
        .stride_w_up = x->m[W_UP].stride,
        .stride_w_down = x->m[W_DOWN].stride,
        .dtype = q->dtype,
        .logits_dtype = q->logits_dtype,
        .compute = q->compute,
        .weighting = q->weighting,
    };

    return p;
}

static void test_forward(const char *variant, void *arg)
{
    const struct request *q = arg;
    struct device_set set = {0};
    struct layer x = layer_new(q);
    struct gpunvme_moe p;

    if (!variant_takes(GPUNVME_OPS_MOE_FORWARD, variant, q->dtype, q->compute)) {
        layer_free(&x);
        return;
    }
    mat_poison(&x.m[Y]);
    mat_poison(&x.m[GATE]);
    mat_poison(&x.m[UP]);
    p = forward_of(&x, &set);
    if (takes_call(gpunvme_moe_forward, &p, variant)) {
        call_op(gpunvme_moe_forward, &p, variant, 2);
        set_out(&set);
        for (int64_t t = 0; t < q->tokens; t++)
            expect_token(&x, variant, t);
        mat_expect_padding(&x.m[Y]);
    }
    set_out(&set);
    layer_free(&x);
}

/* tokens, experts, top_k, dim, hidden: nothing a multiple of anything, and tiles that are full. */
static const int64_t shapes[][5] = {
    {1, 1, 1, 1, 1},     {7, 5, 2, 33, 19}, {13, 3, 3, 16, 40},  {40, 9, 4, 24, 17},
    {2, 40, 3, 8, 8},    {0, 4, 2, 8, 8},   {5, 4, 1, 40, 72},   {150, 3, 2, 72, 136},
    {280, 2, 1, 40, 24}, {3, 3, 3, 5, 7},   {24, 3, 2, 272, 40},
};
#define NSHAPES (sizeof(shapes) / sizeof(shapes[0]))

static void for_all(int op, void (*test)(const char *variant, void *arg))
{
    for (int dtype = 0; dtype < GPUNVME_OPS_NDTYPES; dtype++)
        for (size_t i = 0; i < NSHAPES; i++) {
            struct request q = {.tokens = shapes[i][0],
                                .experts = shapes[i][1],
                                .top_k = shapes[i][2],
                                .dim = shapes[i][3],
                                .hidden = shapes[i][4],
                                .dtype = dtype,
                                .logits_dtype = i % 2 ? GPUNVME_OPS_F32 : dtype,
                                .grad_dtype = i % 2 ? dtype : GPUNVME_OPS_F32,
                                .weighting = (int)(i / 2 % 2),
                                .accumulate = i % 4 == 1,
                                .pad = i % 3 ? 8 : (int64_t)i % 2 + 1};

            if (FEWER_CASES && q.tokens > 40)
                continue;
            for_each_variant(op, test, &q);
            if (dtype == GPUNVME_OPS_F32 && i % 2) {
                q.compute = GPUNVME_OPS_COMPUTE_TF32;
                for_each_variant(op, test, &q);
            }
        }
}

static void forward_is_right(void **state)
{
    (void)state;
    for_all(GPUNVME_OPS_MOE_FORWARD, test_forward);
}

/* What is not kept changes nothing. */
static void test_not_kept(const char *variant, void *arg)
{
    const struct request *q = arg;
    struct device_set set = {0};
    struct layer x = layer_new(q);
    struct gpunvme_moe p = forward_of(&x, &set);
    struct mat kept;

    call_op(gpunvme_moe_forward, &p, variant, 1);
    set_out(&set);
    kept = mat_copy(&x.m[Y]);
    p = forward_of(&x, &set);
    p.chosen = NULL;
    p.weights = NULL;
    p.gate = p.up = NULL;
    call_op(gpunvme_moe_forward, &p, variant, 2);
    set_out(&set);
    assert_memory_equal(x.m[Y].block, kept.block, kept.nbytes);
    mat_free(&kept);
    layer_free(&x);
}

static void results_are_the_same_bits_if_nothing_is_kept(void **state)
{
    struct request q = {.tokens = 30,
                        .experts = 5,
                        .top_k = 2,
                        .dim = 40,
                        .hidden = 24,
                        .dtype = GPUNVME_OPS_BF16,
                        .pad = 8,
                        .grad_dtype = GPUNVME_OPS_BF16};

    (void)state;
    for_each_variant(GPUNVME_OPS_MOE_FORWARD, test_not_kept, &q);
}

static void test_equal_logits(const char *variant, void *arg)
{
    const struct request *q = arg;
    struct device_set set = {0};
    struct layer x = layer_new(q);
    struct gpunvme_moe p;

    for (int64_t t = 0; t < q->tokens; t++)
        for (int64_t e = 0; e < q->experts; e++)
            cpu_store(x.m[LOGITS].block, mat_index(&x.m[LOGITS], 0, t, e), q->logits_dtype,
                      e % 2 ? 0.0f : -0.0f);
    p = forward_of(&x, &set);
    call_op(gpunvme_moe_forward, &p, variant, 2);
    set_out(&set);
    for (int64_t s = 0; s < x.slots; s++) {
        assert_int_equal(x.chosen[s], s % q->top_k);
        assert_true(fabsf(x.weights[s] - 1.0f / (float)q->top_k) < 1e-6f);
    }
    layer_free(&x);
}

static void of_equal_logits_the_lower_index_is_chosen(void **state)
{
    struct request q = {.tokens = 5,
                        .experts = 70,
                        .top_k = 3,
                        .dim = 8,
                        .hidden = 8,
                        .dtype = GPUNVME_OPS_BF16,
                        .pad = 8};

    (void)state;
    for_each_variant(GPUNVME_OPS_MOE_FORWARD, test_equal_logits, &q);
}

/* Infinity would be chosen next. */
static void test_nan(const char *variant, void *arg)
{
    const struct request *q = arg;
    struct device_set set = {0};
    struct layer x = layer_new(q);
    struct mat *logits = &x.m[LOGITS];
    struct gpunvme_moe p;

    cpu_store(logits->block, mat_index(logits, 0, 1, 4), q->logits_dtype, -NAN);
    cpu_store(logits->block, mat_index(logits, 0, 1, 2), q->logits_dtype, INFINITY);
    p = forward_of(&x, &set);
    call_op(gpunvme_moe_forward, &p, variant, 2);
    set_out(&set);
    assert_int_equal(x.chosen[q->top_k], 4);
    assert_int_equal(x.chosen[q->top_k + 1], 2);
    for (int64_t d = 0; d < q->dim; d++)
        assert_true(isnan(at(&x, Y, 0, 1, d)));
    expect_token(&x, variant, 0);
    expect_token(&x, variant, 2);
    layer_free(&x);
}

static void a_logit_that_is_nan_reaches_only_its_token(void **state)
{
    struct request q = {.tokens = 3,
                        .experts = 6,
                        .top_k = 2,
                        .dim = 16,
                        .hidden = 8,
                        .dtype = GPUNVME_OPS_BF16,
                        .pad = 8};

    (void)state;
    for_each_variant(GPUNVME_OPS_MOE_FORWARD, test_nan, &q);
}

/* ---- Backward ---- */

/* The gradients as the definition has them, expert by expert. */
struct gradients {
    struct inexact *x, *logits, *w_gate, *w_up, *w_down;
};

static void add(struct inexact *sum, double a, double a_error, double b, double *size)
{
    sum->value += a * b;
    sum->error += a_error * fabs(b);
    *size += fabs(a * b);
}

/* What one slot adds; `of_weight` becomes the gradient of its weight. */
static void add_slot(const struct layer *x, struct gradients *g, int64_t t, int64_t i,
                     struct inexact *of_weight)
{
    const struct request *q = x->q;
    int64_t slot = t * q->top_k + i, e = x->chosen[slot];
    double p = (double)x->weights[slot], share = activation_share(q);

    *of_weight = (struct inexact){0, 0};
    for (int64_t f = 0; f < q->hidden; f++) {
        double gate = at(x, GATE, 0, slot, f), up = at(x, UP, 0, slot, f);
        double h = silu(gate) * up, size = 0;
        struct inexact grad = {0, 0}, of_gate, of_up, h_p;

        for (int64_t d = 0; d < q->dim; d++)
            add(&grad, at(x, W_DOWN, e, d, f), 0, at(x, GRAD_Y, 0, t, d), &size);
        grad.error += of_sum(q, q->dim, size) + rounding(q->dtype, grad.value);
        of_weight->value += grad.value * h;
        of_weight->error += fabs(h) * grad.error + fabs(grad.value) * (share * fabs(gate * up)) +
                            (double)q->hidden * F32_EPS * fabs(grad.value * h);
        of_gate.value = p * grad.value * up * silu_slope(gate);
        of_gate.error = p * grad.error * fabs(up) * 1.1 + share * fabs(p * grad.value * up) * 4 +
                        rounding(q->dtype, of_gate.value);
        of_up.value = p * grad.value * silu(gate);
        of_up.error = p * grad.error * fabs(silu(gate)) + share * fabs(p * grad.value * gate) +
                      rounding(q->dtype, of_up.value);
        h_p.value = p * h;
        h_p.error = share * fabs(p * gate * up) + rounding(q->dtype, h_p.value);
        for (int64_t d = 0; d < q->dim; d++) {
            int64_t in = (e * q->hidden + f) * q->dim + d, out = (e * q->dim + d) * q->hidden + f;
            double token = at(x, X, 0, t, d), grad_y = at(x, GRAD_Y, 0, t, d), sizes = 0;

            add(&g->x[t * q->dim + d], of_gate.value, of_gate.error, at(x, W_GATE, e, f, d),
                &sizes);
            add(&g->x[t * q->dim + d], of_up.value, of_up.error, at(x, W_UP, e, f, d), &sizes);
            g->x[t * q->dim + d].error += of_sum(q, 2 * q->hidden * q->top_k, sizes);
            sizes = 0;
            add(&g->w_gate[in], of_gate.value, of_gate.error, token, &sizes);
            g->w_gate[in].error += of_sum(q, q->tokens, sizes);
            sizes = 0;
            add(&g->w_up[in], of_up.value, of_up.error, token, &sizes);
            g->w_up[in].error += of_sum(q, q->tokens, sizes);
            sizes = 0;
            add(&g->w_down[out], h_p.value, h_p.error, grad_y, &sizes);
            g->w_down[out].error += of_sum(q, q->tokens, sizes);
        }
    }
}

/* Of one token's logits, from the gradients of its weights. */
static void add_logits(const struct layer *x, struct gradients *g, int64_t t,
                       const struct inexact *of_weight)
{
    const struct request *q = x->q;
    const int32_t *chosen = x->chosen + t * q->top_k;
    const float *weights = x->weights + t * q->top_k;
    double sum = 0, most = at(x, LOGITS, 0, t, chosen[0]);
    struct inexact dot = {0, 0};

    for (int64_t i = 0; i < q->top_k; i++) {
        double size = fabs((double)weights[i] * of_weight[i].value);

        dot.value += (double)weights[i] * of_weight[i].value;
        dot.error += (double)weights[i] * of_weight[i].error + 0x1p-20 * size;
    }
    for (int64_t e = 0; e < q->experts; e++)
        sum += exp(at(x, LOGITS, 0, t, e) - most);
    for (int64_t e = 0; e < q->experts; e++) {
        double p = exp(at(x, LOGITS, 0, t, e) - most) / sum;
        struct inexact *to = &g->logits[t * q->experts + e];

        if (q->weighting == GPUNVME_MOE_ALL)
            *to = (struct inexact){-p * dot.value, p * (dot.error + 0x1p-18 * fabs(dot.value))};
        for (int64_t i = 0; i < q->top_k; i++)
            if (chosen[i] == e) {
                double w = (double)weights[i];

                to->value = w * (of_weight[i].value - dot.value);
                to->error = w * (of_weight[i].error + dot.error +
                                 0x1p-20 * (fabs(of_weight[i].value) + fabs(dot.value)));
            }
    }
}

static struct gradients gradients_new(const struct layer *x)
{
    const struct request *q = x->q;
    int64_t of_experts = q->experts * q->hidden * q->dim;
    struct gradients g = {
        room(q->tokens * q->dim, sizeof(struct inexact)),
        room(q->tokens * q->experts, sizeof(struct inexact)),
        room(of_experts, sizeof(struct inexact)),
        room(of_experts, sizeof(struct inexact)),
        room(of_experts, sizeof(struct inexact)),
    };
    struct inexact *of_weight = room(q->top_k, sizeof(*of_weight));

    for (int64_t t = 0; t < q->tokens; t++) {
        for (int64_t i = 0; i < q->top_k; i++)
            add_slot(x, &g, t, i, &of_weight[i]);
        add_logits(x, &g, t, of_weight);
    }
    free(of_weight);
    return g;
}

static void gradients_free(struct gradients *g)
{
    free(g->x);
    free(g->logits);
    free(g->w_gate);
    free(g->w_up);
    free(g->w_down);
}

static void expect_mat(const struct mat *m, const struct mat *before, const struct inexact *wanted,
                       const char *variant, const char *name)
{
    for (int64_t b = 0; b < m->batch; b++)
        for (int64_t i = 0; i < m->rows; i++)
            for (int64_t j = 0; j < m->cols; j++) {
                const struct inexact *w = &wanted[(b * m->rows + i) * m->cols + j];
                double more = before ? mat_get(before, b, i, j) : 0;

                expect_close(mat_get(m, b, i, j), w->value + more,
                             w->error + F32_EPS * 4 * fabs(more) +
                                 rounding(m->dtype, w->value + more),
                             "%s: %s[%d][%d][%d]", variant, name, (int)b, (int)i, (int)j);
            }
    mat_expect_padding(m);
}

static struct gpunvme_moe_grad backward_of(struct layer *x, struct device_set *set)
{
    const struct request *q = x->q;
    struct gpunvme_moe_grad p = {
        .tokens = q->tokens,
        .experts = q->experts,
        .top_k = q->top_k,
        .dim = q->dim,
        .hidden = q->hidden,
        .grad_y = set_in_mat(set, &x->m[GRAD_Y], false),
        .x = set_in_mat(set, &x->m[X], false),
        .logits = set_in_mat(set, &x->m[LOGITS], false),
        .w_gate = set_in_mat(set, &x->m[W_GATE], false),
        .w_up = set_in_mat(set, &x->m[W_UP], false),
        .w_down = set_in_mat(set, &x->m[W_DOWN], false),
        .chosen = set_in(set, x->chosen, (size_t)x->slots * sizeof(int32_t), false),
        .weights = set_in(set, x->weights, (size_t)x->slots * sizeof(float), false),
        .gate = set_in_mat(set, &x->m[GATE], false),
        .up = set_in_mat(set, &x->m[UP], false),
        .grad_x = set_in_mat(set, &x->m[GRAD_X], true),
        .grad_logits = set_in_mat(set, &x->m[GRAD_LOGITS], true),
        .grad_w_gate = set_in_mat(set, &x->m[GRAD_W_GATE], true),
        .grad_w_up = set_in_mat(set, &x->m[GRAD_W_UP], true),
        .grad_w_down = set_in_mat(set, &x->m[GRAD_W_DOWN], true),
        .ld_grad_y = x->m[GRAD_Y].ld,
        .ldx = x->m[X].ld,
        .ld_logits = x->m[LOGITS].ld,
        .ld_w_gate = x->m[W_GATE].ld,
        .ld_w_up = x->m[W_UP].ld,
        .ld_w_down = x->m[W_DOWN].ld,
        .stride_w_gate = x->m[W_GATE].stride,
        .stride_w_up = x->m[W_UP].stride,
        .stride_w_down = x->m[W_DOWN].stride,
        .ld_grad_x = x->m[GRAD_X].ld,
        .ld_grad_logits = x->m[GRAD_LOGITS].ld,
        .ld_grad_w_gate = x->m[GRAD_W_GATE].ld,
        .ld_grad_w_up = x->m[GRAD_W_UP].ld,
        .ld_grad_w_down = x->m[GRAD_W_DOWN].ld,
        .stride_grad_w_gate = x->m[GRAD_W_GATE].stride,
        .stride_grad_w_up = x->m[GRAD_W_UP].stride,
        .stride_grad_w_down = x->m[GRAD_W_DOWN].stride,
        .dtype = q->dtype,
        .logits_dtype = q->logits_dtype,
        .grad_dtype = q->grad_dtype,
        .accumulate = q->accumulate,
        .compute = q->compute,
        .weighting = q->weighting,
    };

    return p;
}

/* A layer whose choice and weights are made by the reference, in which the kept rows are random. */
static struct layer kept_layer(const struct request *q)
{
    struct layer x = layer_new(q);
    double *weights = room(q->top_k, sizeof(*weights));

    for (int64_t t = 0; t < q->tokens; t++) {
        choose(&x, t, x.chosen + t * q->top_k, weights);
        for (int64_t i = 0; i < q->top_k; i++)
            x.weights[t * q->top_k + i] = (float)weights[i];
    }
    free(weights);
    return x;
}

static void test_backward(const char *variant, void *arg)
{
    static const char *const names[] = {"grad_w_gate", "grad_w_up", "grad_w_down"};
    const struct request *q = arg;
    struct device_set set = {0};
    struct layer x = kept_layer(q);
    struct gpunvme_moe_grad p;
    struct gradients g;
    struct mat before[3];

    if (!variant_takes(GPUNVME_OPS_MOE_BACKWARD, variant, q->dtype, q->compute)) {
        layer_free(&x);
        return;
    }
    mat_poison(&x.m[GRAD_X]);
    mat_poison(&x.m[GRAD_LOGITS]);
    for (int i = 0; i < 3; i++) {
        before[i] = mat_copy(&x.m[GRAD_W_GATE + i]);
        if (!q->accumulate)
            mat_poison(&x.m[GRAD_W_GATE + i]);
    }
    p = backward_of(&x, &set);
    if (takes_call(gpunvme_moe_backward, &p, variant)) {
        const struct inexact *wanted[3];

        call_op(gpunvme_moe_backward, &p, variant, 2);
        set_out(&set);
        g = gradients_new(&x);
        wanted[0] = g.w_gate;
        wanted[1] = g.w_up;
        wanted[2] = g.w_down;
        expect_mat(&x.m[GRAD_X], NULL, g.x, variant, "grad_x");
        expect_mat(&x.m[GRAD_LOGITS], NULL, g.logits, variant, "grad_logits");
        for (int i = 0; i < 3; i++)
            expect_mat(&x.m[GRAD_W_GATE + i], q->accumulate ? &before[i] : NULL, wanted[i], variant,
                       names[i]);
        gradients_free(&g);
    }
    set_out(&set);
    for (int i = 0; i < 3; i++)
        mat_free(&before[i]);
    layer_free(&x);
}

static void backward_is_right(void **state)
{
    (void)state;
    for_all(GPUNVME_OPS_MOE_BACKWARD, test_backward);
}

/* Each alone is the same bits as all together. */
static void test_alone(const char *variant, void *arg)
{
    const struct request *q = arg;
    struct device_set set = {0};
    struct layer x = kept_layer(q);
    struct gpunvme_moe_grad p = backward_of(&x, &set), all = p;
    struct mat wanted[5];

    call_op(gpunvme_moe_backward, &p, variant, 2);
    set_out(&set);
    for (int i = 0; i < 5; i++) {
        wanted[i] = mat_copy(&x.m[GRAD_X + i]);
        mat_random(&x.m[GRAD_X + i], &rng);
    }
    for (int i = 0; i < 5; i++) {
        all = p = backward_of(&x, &set);
        p.grad_x = i == 0 ? all.grad_x : NULL;
        p.grad_logits = i == 1 ? all.grad_logits : NULL;
        p.grad_w_gate = i == 2 ? all.grad_w_gate : NULL;
        p.grad_w_up = i == 3 ? all.grad_w_up : NULL;
        p.grad_w_down = i == 4 ? all.grad_w_down : NULL;
        call_op(gpunvme_moe_backward, &p, variant, 1);
        set_out(&set);
        assert_memory_equal(x.m[GRAD_X + i].block, wanted[i].block, wanted[i].nbytes);
    }
    for (int i = 0; i < 5; i++)
        mat_free(&wanted[i]);
    layer_free(&x);
}

static void a_gradient_alone_is_the_same_bits(void **state)
{
    struct request q = {.tokens = 20,
                        .experts = 4,
                        .top_k = 2,
                        .dim = 24,
                        .hidden = 16,
                        .dtype = GPUNVME_OPS_BF16,
                        .pad = 0,
                        .grad_dtype = GPUNVME_OPS_F32};

    (void)state;
    for_each_variant(GPUNVME_OPS_MOE_BACKWARD, test_alone, &q);
}

/* ---- Arguments ---- */

static void bad_arguments_are_refused(void **state)
{
    static float memory[4096];
    static _Alignas(GPUNVME_OPS_WORKSPACE_ALIGN) char work[1 << 16];
    struct gpunvme_ops_exec exec = {
        .device = TEST_DEVICE, .workspace = work, .workspace_nbytes = sizeof(work)};
    struct gpunvme_moe good = {.tokens = 4,
                               .experts = 3,
                               .top_k = 2,
                               .dim = 8,
                               .hidden = 8,
                               .x = memory,
                               .logits = memory + 64,
                               .w_gate = memory + 128,
                               .w_up = memory + 512,
                               .w_down = memory + 1024,
                               .y = memory + 2048,
                               .ldx = 8,
                               .ld_logits = 3,
                               .ldy = 8,
                               .ld_w_gate = 8,
                               .ld_w_up = 8,
                               .ld_w_down = 8,
                               .stride_w_gate = 64,
                               .stride_w_up = 64,
                               .stride_w_down = 64},
                       p = good;

    (void)state;
    p.top_k = 4;
    expect_status(gpunvme_moe_forward(&p, &exec), GPUNVME_OPS_ERR_SHAPE, "top_k");
    p.top_k = 0;
    expect_status(gpunvme_moe_forward(&p, &exec), GPUNVME_OPS_ERR_SHAPE, "top_k");
    p = good, p.hidden = 0;
    expect_status(gpunvme_moe_forward(&p, &exec), GPUNVME_OPS_ERR_SHAPE, "hidden");
    p = good, p.tokens = INT32_MAX;
    expect_status(gpunvme_moe_forward(&p, &exec), GPUNVME_OPS_ERR_SHAPE, "2^31");
    p = good, p.w_up = NULL;
    expect_status(gpunvme_moe_forward(&p, &exec), GPUNVME_OPS_ERR_INVALID, "w_up is NULL");
    p = good, p.y = memory + 1024;
    expect_status(gpunvme_moe_forward(&p, &exec), GPUNVME_OPS_ERR_ALIAS, "w_down");
    p = good, p.logits_dtype = GPUNVME_OPS_BF16;
    expect_status(gpunvme_moe_forward(&p, &exec), GPUNVME_OPS_ERR_DTYPE, "logits");
    p = good, p.weighting = 2;
    expect_status(gpunvme_moe_forward(&p, &exec), GPUNVME_OPS_ERR_INVALID, "weighting");
    p = good, exec.workspace_nbytes = 0;
    expect_status(gpunvme_moe_forward(&p, &exec), GPUNVME_OPS_ERR_WORKSPACE, "needs");
}

#ifdef OPS_TEST_CUDA
static void more_copied_rows_than_31_bits_number_are_refused(void **state)
{
    const struct gpunvme_ops_exec exec = {.device = TEST_DEVICE, .variant = "hopper"};
    struct gpunvme_moe p = {.tokens = 4,
                            .experts = 1 << 25,
                            .top_k = 2,
                            .dim = 8,
                            .hidden = 8,
                            .dtype = GPUNVME_OPS_BF16,
                            .ldx = 8,
                            .ld_logits = 1 << 25,
                            .ldy = 8,
                            .ld_w_gate = 8,
                            .ld_w_up = 8,
                            .ld_w_down = 8,
                            .stride_w_gate = 64,
                            .stride_w_up = 64,
                            .stride_w_down = 64};
    size_t nbytes;

    (void)state;
    if (!variant_takes(GPUNVME_OPS_MOE_FORWARD, "hopper", p.dtype, p.compute))
        skip();
    expect_status(gpunvme_moe_forward_workspace(&p, &exec, &nbytes), GPUNVME_OPS_ERR_UNSUPPORTED,
                  "64 for each expert");
    p.experts = p.ld_logits = (1 << 25) - 1;
    assert_int_equal(gpunvme_moe_forward_workspace(&p, &exec, &nbytes), GPUNVME_OPS_OK);
}
#else
static void a_choice_that_is_no_expert_is_refused(void **state)
{
    struct request q = {.tokens = 3, .experts = 4, .top_k = 2, .dim = 8, .hidden = 8, .pad = 1};
    static _Alignas(GPUNVME_OPS_WORKSPACE_ALIGN) char work[1 << 20];
    struct gpunvme_ops_exec exec = {.workspace = work, .workspace_nbytes = sizeof(work)};
    struct device_set set = {0};
    struct layer x = kept_layer(&q);
    struct gpunvme_moe_grad p = backward_of(&x, &set);

    (void)state;
    x.chosen[3] = 4;
    expect_status(gpunvme_moe_backward(&p, &exec), GPUNVME_OPS_ERR_INVALID, "number 4");
    set_out(&set);
    layer_free(&x);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forward_is_right),
        cmocka_unit_test(results_are_the_same_bits_if_nothing_is_kept),
        cmocka_unit_test(of_equal_logits_the_lower_index_is_chosen),
        cmocka_unit_test(a_logit_that_is_nan_reaches_only_its_token),
        cmocka_unit_test(backward_is_right),
        cmocka_unit_test(a_gradient_alone_is_the_same_bits),
        cmocka_unit_test(bad_arguments_are_refused),
#ifdef OPS_TEST_CUDA
        cmocka_unit_test(more_copied_rows_than_31_bits_number_are_refused),
#endif
#ifndef OPS_TEST_CUDA
        cmocka_unit_test(a_choice_that_is_no_expert_is_refused),
#endif
    };

    if (no_gpu())
        return 77;
    rng.state = 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
