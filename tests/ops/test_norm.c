/* SPDX-License-Identifier: BSD-3-Clause
 *
 * RMSNorm and LayerNorm, forward and backward, every variant that this machine has, against f64.
 */
#include "rows_test.h"

static struct base_random rng;
static int forward_threads = 2;

struct request {
    int64_t rows, cols;
    int kind, dtype, weight_dtype, grad_dtype;
    bool aligned, residual, sum, in_place, weight, bias, accumulate;
    int only; /* of backward's results: 1 grad_x, 2 grad_weight, 4 grad_bias; 0: all */
};

static int64_t pad(const struct request *q, int64_t odd)
{
    return q->aligned ? 8 : odd;
}

struct forward {
    struct mat x, residual, weight, bias, y, sum, mean, rstd;
};

static struct forward make_forward(const struct request *q)
{
    struct forward f = {
        mat_new(q->rows, q->cols, pad(q, 3), 1, q->dtype),
        mat_new(q->rows, q->cols, pad(q, 1), 1, q->dtype),
        mat_new(1, q->cols, 0, 1, q->weight_dtype),
        mat_new(1, q->cols, 0, 1, q->weight_dtype),
        mat_new(q->rows, q->cols, pad(q, 5), 1, q->dtype),
        mat_new(q->rows, q->cols, pad(q, 2), 1, q->dtype),
        mat_new(1, q->rows, 0, 1, GPUNVME_OPS_F32),
        mat_new(1, q->rows, 0, 1, GPUNVME_OPS_F32),
    };

    mat_random(&f.x, &rng);
    mat_random(&f.residual, &rng);
    mat_random(&f.weight, &rng);
    mat_random(&f.bias, &rng);
    mat_poison(&f.y);
    mat_poison(&f.sum);
    mat_poison(&f.mean);
    mat_poison(&f.rstd);
    return f;
}

static void drop_forward(struct forward *f)
{
    struct mat *all[] = {&f->x, &f->residual, &f->weight, &f->bias,
                         &f->y, &f->sum,      &f->mean,   &f->rstd};

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        mat_free(all[i]);
}

/* Runs it; false: the variant does not take it. */
static bool run_forward(const char *variant, const struct request *q, struct forward *f)
{
    struct device_set set = {0};
    struct mat *sum = q->in_place ? q->residual ? &f->residual : &f->x : &f->sum;
    struct gpunvme_norm p = {
        .rows = q->rows,
        .cols = q->cols,
        .x = set_in_mat(&set, &f->x, false),
        .residual = q->residual ? set_in_mat(&set, &f->residual, false) : NULL,
        .weight = q->weight ? set_in_mat(&set, &f->weight, false) : NULL,
        .bias = q->bias ? set_in_mat(&set, &f->bias, false) : NULL,
        .y = set_in_mat(&set, &f->y, true),
        .sum = q->sum ? set_in_mat(&set, sum, true) : NULL,
        .mean = set_in_mat(&set, &f->mean, true),
        .rstd = set_in_mat(&set, &f->rstd, true),
        .ldx = f->x.ld,
        .ld_residual = f->residual.ld,
        .ldy = f->y.ld,
        .ld_sum = sum->ld,
        .eps = 1e-5f,
        .kind = q->kind,
        .dtype = q->dtype,
        .weight_dtype = q->weight_dtype,
    };
    bool takes = takes_call(gpunvme_norm_forward, &p, variant);

    if (takes)
        call_op(gpunvme_norm_forward, &p, variant, forward_threads);
    set_out(&set);
    return takes;
}

/* Element j of row i of what is normalized. */
static double input(const struct request *q, const struct forward *f, int64_t i, int64_t j)
{
    float h =
        (float)mat_get(&f->x, 0, i, j) + (q->residual ? (float)mat_get(&f->residual, 0, i, j) : 0);
    char rounded[4];

    cpu_store(rounded, 0, q->dtype, h);
    return (double)cpu_load(rounded, 0, q->dtype);
}

static void expect_row(const char *variant, const struct request *q, const struct forward *before,
                       const struct forward *after, int64_t i)
{
    double mean = 0, size = 0, var = 0, rstd, error;

    for (int64_t j = 0; j < q->cols; j++) {
        mean += input(q, before, i, j) / (double)q->cols;
        size += fabs(input(q, before, i, j)) / (double)q->cols;
    }
    if (q->kind == GPUNVME_NORM_RMS)
        mean = 0;
    for (int64_t j = 0; j < q->cols; j++) {
        double d = input(q, before, i, j) - mean;

        var += d * d / (double)q->cols;
    }
    rstd = 1 / sqrt(var + (double)1e-5f);
    error = (double)(q->cols + 16) * F32_EPS;
    expect_close(mat_get(&after->rstd, 0, 0, i), rstd, 4 * error * rstd, "%s: rstd", variant);
    if (q->kind == GPUNVME_NORM_LAYER)
        expect_close(mat_get(&after->mean, 0, 0, i), mean, error * size, "%s: mean", variant);
    for (int64_t j = 0; j < q->cols; j++) {
        double h = input(q, before, i, j), n = (h - mean) * rstd;
        double w = q->weight ? mat_get(&before->weight, 0, 0, j) : 1;
        double b = q->bias ? mat_get(&before->bias, 0, 0, j) : 0;

        expect_close(mat_get(&after->y, 0, i, j), n * w + b,
                     error * (fabs(n) + size * rstd + 1) * (fabs(w) + fabs(b)) +
                         rounding(q->dtype, n * w + b),
                     "%s, %s, %lld x %lld: y (%lld, %lld)", variant,
                     gpunvme_ops_dtype_name(q->dtype), (long long)q->rows, (long long)q->cols,
                     (long long)i, (long long)j);
        if (q->sum && !q->in_place)
            assert_true(mat_get(&after->sum, 0, i, j) == h);
        if (q->sum && q->in_place)
            assert_true(mat_get(q->residual ? &after->residual : &after->x, 0, i, j) == h);
    }
}

static void test_forward(const char *variant, void *arg)
{
    const struct request *q = arg;
    struct forward f = make_forward(q), before = f;

    before.x = mat_copy(&f.x);
    before.residual = mat_copy(&f.residual);
    if (run_forward(variant, q, &f)) {
        for (int64_t i = 0; i < q->rows; i++)
            expect_row(variant, q, &before, &f, i);
        mat_expect_padding(&f.y);
        mat_expect_padding(&f.sum);
        mat_expect_padding(&f.residual);
    }
    mat_free(&before.x);
    mat_free(&before.residual);
    drop_forward(&f);
}

static void forward(struct request q)
{
    for_each_variant(GPUNVME_OPS_NORM_FORWARD, test_forward, &q);
}

static const int64_t shapes[][2] = {{1, 1}, {5, 7}, {3, 131}, {2, 1000}, {37, 65}};
/* One warp's share, less, of several warps, more than a block keeps; more rows than blocks stay. */
static const int64_t aligned_shapes[][2] = {{3, 8},   {9, 64},   {70, 128}, {5, 512},
                                            {4, 776}, {3, 4104}, {2, 16400}};
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static void for_all(void (*test)(struct request))
{
    for (int kind = 0; kind < GPUNVME_NORM_NKINDS; kind++)
        for (int dtype = 0; dtype < GPUNVME_OPS_NDTYPES; dtype++) {
            struct request q = {.kind = kind,
                                .dtype = dtype,
                                .weight_dtype = dtype,
                                .grad_dtype = dtype,
                                .weight = true,
                                .bias = kind == GPUNVME_NORM_LAYER,
                                .sum = true};

            for (size_t i = 0; i < COUNT(shapes); i++) {
                q.rows = shapes[i][0];
                q.cols = shapes[i][1];
                q.residual = i % 2;
                test(q);
            }
            q.aligned = true;
            for (size_t i = 0; i < COUNT(aligned_shapes); i++) {
                q.rows = aligned_shapes[i][0];
                q.cols = aligned_shapes[i][1];
                q.residual = i % 2;
                q.weight_dtype = i % 3 ? dtype : GPUNVME_OPS_F32;
                q.grad_dtype = i % 3 == 1 ? GPUNVME_OPS_F32 : dtype;
                test(q);
            }
        }
}

static void forward_is_right(void **state)
{
    (void)state;
    for_all(forward);
}

static void weight_bias_sum_and_residual_are_optional(void **state)
{
    (void)state;
    for (int i = 0; i < 32; i++)
        forward((struct request){.rows = 3,
                                 .cols = 40,
                                 .kind = i & 1,
                                 .aligned = true,
                                 .dtype = GPUNVME_OPS_BF16,
                                 .weight = i & 2,
                                 .bias = i & 4,
                                 .sum = i & 8,
                                 .residual = i & 16});
}

static void the_sum_may_replace_an_operand(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++)
        for (int dtype = 0; dtype < GPUNVME_OPS_NDTYPES; dtype++)
            forward((struct request){.rows = 3,
                                     .cols = i & 1 ? 264 : 33,
                                     .kind = GPUNVME_NORM_LAYER,
                                     .aligned = i & 1,
                                     .dtype = dtype,
                                     .sum = true,
                                     .in_place = true,
                                     .residual = i & 2});
}

static void test_large_mean(const char *variant, void *arg)
{
    struct request q = {.rows = 2, .cols = 512, .kind = GPUNVME_NORM_LAYER, .aligned = true};
    struct forward f = make_forward(&q);
    float *x = f.x.block;

    (void)arg;
    for (int64_t j = 0; j < q.cols; j++)
        for (int64_t i = 0; i < 2; i++)
            x[i * f.x.ld + j] = 4096 + (j % 2 ? 1.0f : -1.0f);
    if (run_forward(variant, &q, &f))
        for (int64_t j = 0; j < q.cols; j++)
            expect_close(mat_get(&f.y, 0, 1, j), j % 2 ? 1 : -1, 1e-5, "%s", variant);
    drop_forward(&f);
}

static void a_large_mean_does_not_hide_the_variance(void **state)
{
    (void)state;
    for_each_variant(GPUNVME_OPS_NORM_FORWARD, test_large_mean, NULL);
}

static void test_nan(const char *variant, void *arg)
{
    struct request q = {.rows = 40, .cols = 64, .aligned = true};
    struct forward f = make_forward(&q);

    (void)arg;
    ((float *)f.x.block)[7 * f.x.ld + 3] = NAN;
    if (run_forward(variant, &q, &f))
        for (int64_t i = 0; i < q.rows; i++)
            for (int64_t j = 0; j < q.cols; j++)
                assert_true((i == 7) == isnan(mat_get(&f.y, 0, i, j)));
    drop_forward(&f);
}

static void a_nan_stays_in_its_row(void **state)
{
    (void)state;
    for_each_variant(GPUNVME_OPS_NORM_FORWARD, test_nan, NULL);
}

struct backward {
    struct mat grad_y, x, weight, mean, rstd, grad_sum, grad_x, grad_weight, grad_bias;
};

static struct backward make_backward(const struct request *q)
{
    struct backward b = {
        mat_new(q->rows, q->cols, pad(q, 3), 1, q->dtype),
        mat_new(q->rows, q->cols, pad(q, 1), 1, q->dtype),
        mat_new(1, q->cols, 0, 1, q->weight_dtype),
        mat_new(1, q->rows, 0, 1, GPUNVME_OPS_F32),
        mat_new(1, q->rows, 0, 1, GPUNVME_OPS_F32),
        mat_new(q->rows, q->cols, pad(q, 2), 1, q->dtype),
        mat_new(q->rows, q->cols, pad(q, 2), 1, q->dtype),
        mat_new(1, q->cols, 0, 1, q->grad_dtype),
        mat_new(1, q->cols, 0, 1, q->grad_dtype),
    };

    mat_random(&b.grad_y, &rng);
    mat_random(&b.x, &rng);
    mat_random(&b.weight, &rng);
    mat_random(&b.mean, &rng);
    mat_random(&b.rstd, &rng);
    mat_random(&b.grad_sum, &rng);
    mat_poison(&b.grad_x);
    mat_random(&b.grad_weight, &rng);
    mat_random(&b.grad_bias, &rng);
    if (q->in_place && b.grad_x.block)
        memcpy(b.grad_x.block, b.grad_sum.block, b.grad_x.nbytes);
    if (!q->accumulate) {
        mat_poison(&b.grad_weight);
        mat_poison(&b.grad_bias);
    }
    return b;
}

static void drop_backward(struct backward *b)
{
    struct mat *all[] = {&b->grad_y,   &b->x,      &b->weight,      &b->mean,     &b->rstd,
                         &b->grad_sum, &b->grad_x, &b->grad_weight, &b->grad_bias};

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        mat_free(all[i]);
}

static bool wants(const struct request *q, int result)
{
    return !q->only || q->only & result;
}

static bool run_backward(const char *variant, const struct request *q, struct backward *b,
                         int threads)
{
    struct device_set set = {0};
    struct mat *grad_sum = q->in_place ? &b->grad_x : &b->grad_sum;
    bool normalized = wants(q, 1) || wants(q, 2), layer = q->kind == GPUNVME_NORM_LAYER;
    struct gpunvme_norm_grad p = {
        .rows = q->rows,
        .cols = q->cols,
        .grad_y = set_in_mat(&set, &b->grad_y, false),
        .x = normalized ? set_in_mat(&set, &b->x, false) : NULL,
        .weight = q->weight ? set_in_mat(&set, &b->weight, false) : NULL,
        .mean = normalized && layer ? set_in_mat(&set, &b->mean, false) : NULL,
        .rstd = normalized ? set_in_mat(&set, &b->rstd, false) : NULL,
        .grad_sum = q->residual ? set_in_mat(&set, grad_sum, false) : NULL,
        .grad_x = wants(q, 1) ? set_in_mat(&set, &b->grad_x, true) : NULL,
        .grad_weight = wants(q, 2) ? set_in_mat(&set, &b->grad_weight, true) : NULL,
        .grad_bias = wants(q, 4) ? set_in_mat(&set, &b->grad_bias, true) : NULL,
        .ld_grad_y = b->grad_y.ld,
        .ldx = b->x.ld,
        .ld_grad_sum = grad_sum->ld,
        .ld_grad_x = b->grad_x.ld,
        .kind = q->kind,
        .dtype = q->dtype,
        .weight_dtype = q->weight_dtype,
        .grad_dtype = q->grad_dtype,
        .accumulate = q->accumulate,
    };
    bool takes = takes_call(gpunvme_norm_backward, &p, variant);

    if (takes)
        call_op(gpunvme_norm_backward, &p, variant, threads);
    set_out(&set);
    return takes;
}

static double normalized(const struct request *q, const struct backward *b, int64_t i, int64_t j)
{
    double mean = q->kind == GPUNVME_NORM_LAYER ? mat_get(&b->mean, 0, 0, i) : 0;

    return (mat_get(&b->x, 0, i, j) - mean) * mat_get(&b->rstd, 0, 0, i);
}

static double grad_n(const struct request *q, const struct backward *b, int64_t i, int64_t j)
{
    return mat_get(&b->grad_y, 0, i, j) * (q->weight ? mat_get(&b->weight, 0, 0, j) : 1);
}

static void expect_grad_x(const char *variant, const struct request *q, const struct backward *b,
                          int64_t i)
{
    double sum = 0, product = 0, sizes = 0, rstd = fabs(mat_get(&b->rstd, 0, 0, i));
    double share = (double)(q->cols + 16) * F32_EPS;

    for (int64_t j = 0; j < q->cols; j++) {
        double g = grad_n(q, b, i, j), n = normalized(q, b, i, j);

        if (q->kind == GPUNVME_NORM_LAYER)
            sum += g / (double)q->cols;
        product += g * n / (double)q->cols;
        sizes += (fabs(g) * (1 + fabs(n))) / (double)q->cols;
    }
    for (int64_t j = 0; j < q->cols; j++) {
        double g = grad_n(q, b, i, j), n = normalized(q, b, i, j);
        double wanted = (g - sum - n * product) * mat_get(&b->rstd, 0, 0, i);
        double more = q->residual ? mat_get(&b->grad_sum, 0, i, j) : 0;

        expect_close(mat_get(&b->grad_x, 0, i, j), wanted + more,
                     share * (rstd * (fabs(g) + (1 + fabs(n)) * sizes) + fabs(more)) +
                         rounding(q->dtype, wanted + more),
                     "%s, %s, %lld x %lld: grad_x (%lld, %lld)", variant,
                     gpunvme_ops_dtype_name(q->dtype), (long long)q->rows, (long long)q->cols,
                     (long long)i, (long long)j);
    }
}

static void expect_sums(const char *variant, const struct request *q, const struct backward *before,
                        const struct backward *after, int64_t j)
{
    double weight = q->accumulate ? mat_get(&before->grad_weight, 0, 0, j) : 0;
    double bias = q->accumulate ? mat_get(&before->grad_bias, 0, 0, j) : 0;
    double weights = fabs(weight), biases = fabs(bias);
    double share = (double)(q->rows + 16) * F32_EPS;

    for (int64_t i = 0; i < q->rows; i++) {
        double g = mat_get(&before->grad_y, 0, i, j), n = normalized(q, before, i, j);

        weight += g * n;
        weights += fabs(g) * (fabs(n) + 1);
        bias += g;
        biases += fabs(g);
    }
    if (wants(q, 2))
        expect_close(mat_get(&after->grad_weight, 0, 0, j), weight,
                     share * weights + rounding(q->grad_dtype, weight), "%s: grad_weight", variant);
    if (wants(q, 4))
        expect_close(mat_get(&after->grad_bias, 0, 0, j), bias,
                     share * biases + rounding(q->grad_dtype, bias), "%s: grad_bias", variant);
}

static void test_backward(const char *variant, void *arg)
{
    const struct request *q = arg;
    struct backward b = make_backward(q), before = b;

    before.grad_weight = mat_copy(&b.grad_weight);
    before.grad_bias = mat_copy(&b.grad_bias);
    if (run_backward(variant, q, &b, 2)) {
        for (int64_t i = 0; i < q->rows && wants(q, 1); i++)
            expect_grad_x(variant, q, &b, i);
        for (int64_t j = 0; j < q->cols; j++)
            expect_sums(variant, q, &before, &b, j);
        mat_expect_padding(&b.grad_x);
    }
    mat_free(&before.grad_weight);
    mat_free(&before.grad_bias);
    drop_backward(&b);
}

static void backward(struct request q)
{
    for_each_variant(GPUNVME_OPS_NORM_BACKWARD, test_backward, &q);
}

static void backward_is_right(void **state)
{
    (void)state;
    for_all(backward);
}

static void each_gradient_can_be_had_alone(void **state)
{
    (void)state;
    for (int only = 1; only < 8; only++)
        for (int kind = 0; kind < GPUNVME_NORM_NKINDS; kind++)
            backward((struct request){.rows = 19,
                                      .cols = 24,
                                      .aligned = true,
                                      .kind = kind,
                                      .weight = kind,
                                      .only = only});
}

static void gradients_of_parameters_accumulate(void **state)
{
    (void)state;
    for (int dtype = 0; dtype < GPUNVME_OPS_NDTYPES; dtype++)
        backward((struct request){.rows = 33,
                                  .cols = 48,
                                  .aligned = true,
                                  .kind = GPUNVME_NORM_LAYER,
                                  .dtype = dtype,
                                  .weight = true,
                                  .accumulate = true});
}

static void grad_x_may_replace_grad_sum(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++)
        backward((struct request){.rows = 9,
                                  .cols = i ? 48 : 31,
                                  .aligned = i,
                                  .dtype = GPUNVME_OPS_BF16,
                                  .residual = true,
                                  .in_place = true});
}

static void no_rows_have_gradients_of_zero(void **state)
{
    (void)state;
    backward((struct request){.rows = 0, .cols = 16, .weight = true});
    backward((struct request){.rows = 0, .cols = 16, .weight = true, .accumulate = true});
}

/* Also with another number of threads. */
static void test_same_bits(const char *variant, void *arg)
{
    struct request q = {.rows = 200, .cols = 72, .aligned = true, .weight = true};
    struct backward b = make_backward(&q), again = b;

    (void)arg;
    again.grad_weight = mat_copy(&b.grad_weight);
    again.grad_bias = mat_copy(&b.grad_bias);
    assert_true(run_backward(variant, &q, &b, 1));
    assert_true(run_backward(variant, &q, &again, 3));
    assert_memory_equal(b.grad_weight.block, again.grad_weight.block, b.grad_weight.nbytes);
    assert_memory_equal(b.grad_bias.block, again.grad_bias.block, b.grad_bias.nbytes);
    mat_free(&again.grad_weight);
    mat_free(&again.grad_bias);
    drop_backward(&b);
}

static void gradients_have_the_same_bits_in_every_run(void **state)
{
    (void)state;
    for_each_variant(GPUNVME_OPS_NORM_BACKWARD, test_same_bits, NULL);
}

static void test_same_rows(const char *variant, void *arg)
{
    const struct request *q = arg;
    struct forward f = make_forward(q), again = f;

    again.y = mat_copy(&f.y);
    again.mean = mat_copy(&f.mean);
    again.rstd = mat_copy(&f.rstd);
    forward_threads = 1;
    assert_true(run_forward(variant, q, &f));
    forward_threads = 3;
    assert_true(run_forward(variant, q, &again));
    forward_threads = 2;
    assert_memory_equal(f.y.block, again.y.block, f.y.nbytes);
    assert_memory_equal(f.mean.block, again.mean.block, f.mean.nbytes);
    assert_memory_equal(f.rstd.block, again.rstd.block, f.rstd.nbytes);
    mat_free(&again.y);
    mat_free(&again.mean);
    mat_free(&again.rstd);
    drop_forward(&f);
}

static void results_have_the_same_bits_in_every_run(void **state)
{
    (void)state;
    for (int kind = 0; kind < GPUNVME_NORM_NKINDS; kind++)
        for (int dtype = 0; dtype < GPUNVME_OPS_NDTYPES; dtype++) {
            struct request q = {.rows = 200,
                                .cols = 776,
                                .kind = kind,
                                .dtype = dtype,
                                .weight_dtype = dtype,
                                .aligned = true,
                                .weight = true};

            for_each_variant(GPUNVME_OPS_NORM_FORWARD, test_same_rows, &q);
        }
}

static void bad_arguments_are_refused(void **state)
{
    static float memory[256];
    float *x = memory, *y = memory + 64, *w = memory + 128, *other = memory + 192;
    struct gpunvme_ops_exec exec = {.device = TEST_DEVICE};
    const struct gpunvme_norm good = {
        .rows = 8, .cols = 8, .x = x, .y = y, .weight = w, .ldx = 8, .ldy = 8, .eps = 1e-5f};
    struct gpunvme_norm p = good;
    struct gpunvme_norm_grad g = {
        .rows = 8, .cols = 8, .grad_y = x, .x = x, .grad_weight = w, .ld_grad_y = 8, .ldx = 8};

    (void)state;
    p.kind = GPUNVME_NORM_NKINDS;
    expect_status(gpunvme_norm_forward(&p, &exec), GPUNVME_OPS_ERR_INVALID, "kind");
    p = good, p.eps = -1;
    expect_status(gpunvme_norm_forward(&p, &exec), GPUNVME_OPS_ERR_INVALID, "eps");
    p = good, p.weight_dtype = GPUNVME_OPS_F16;
    expect_status(gpunvme_norm_forward(&p, &exec), GPUNVME_OPS_ERR_DTYPE, "weight_dtype");
    p = good, p.y = x;
    expect_status(gpunvme_norm_forward(&p, &exec), GPUNVME_OPS_ERR_ALIAS, "y and x");
    p = good, p.residual = other - 1, p.sum = other, p.ld_residual = p.ld_sum = 8;
    expect_status(gpunvme_norm_forward(&p, &exec), GPUNVME_OPS_ERR_ALIAS, "sum and");
    p = good, p.ldx = 7;
    expect_status(gpunvme_norm_forward(&p, &exec), GPUNVME_OPS_ERR_SHAPE, "x");
    p = good, p.x = NULL;
    expect_status(gpunvme_norm_forward(&p, &exec), GPUNVME_OPS_ERR_INVALID, "x is NULL");
    expect_status(gpunvme_norm_backward(&g, &exec), GPUNVME_OPS_ERR_INVALID, "rstd is NULL");
    g.rstd = y, g.kind = GPUNVME_NORM_LAYER;
    expect_status(gpunvme_norm_backward(&g, &exec), GPUNVME_OPS_ERR_INVALID, "mean is NULL");
    g.grad_dtype = GPUNVME_OPS_BF16;
    expect_status(gpunvme_norm_backward(&g, &exec), GPUNVME_OPS_ERR_DTYPE, "grad_dtype");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forward_is_right),
        cmocka_unit_test(weight_bias_sum_and_residual_are_optional),
        cmocka_unit_test(the_sum_may_replace_an_operand),
        cmocka_unit_test(a_large_mean_does_not_hide_the_variance),
        cmocka_unit_test(a_nan_stays_in_its_row),
        cmocka_unit_test(backward_is_right),
        cmocka_unit_test(each_gradient_can_be_had_alone),
        cmocka_unit_test(gradients_of_parameters_accumulate),
        cmocka_unit_test(grad_x_may_replace_grad_sum),
        cmocka_unit_test(no_rows_have_gradients_of_zero),
        cmocka_unit_test(gradients_have_the_same_bits_in_every_run),
        cmocka_unit_test(results_have_the_same_bits_in_every_run),
        cmocka_unit_test(bad_arguments_are_refused),
    };

    if (no_gpu())
        return 77;
    rng.state = 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
