/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The linear layer, forward and backward, every variant that this machine has, against f64.
 */
#include "ops_test.h"

/* Activations in f32 may be wrong by a few ulps of what they are made of. */
#define ACT_EPS (16 * F32_EPS)
/* No activation is steeper than 1.13. */
#define STEEPEST 1.2

static struct base_random rng;

static double activate(int activation, double z)
{
    switch (activation) {
    case GPUNVME_OPS_ACT_RELU:
        return z > 0 ? z : 0;
    case GPUNVME_OPS_ACT_GELU:
        return z * 0.5 * (1 + erf(z / sqrt(2)));
    case GPUNVME_OPS_ACT_GELU_TANH:
        return z * 0.5 * (1 + tanh(sqrt(2 / M_PI) * (z + 0.044715 * z * z * z)));
    case GPUNVME_OPS_ACT_SILU:
        return z / (1 + exp(-z));
    default:
        return z;
    }
}

/* The derivative, by a difference that errs by some 1e-10: no formula is shared with the code. */
static double slope(int activation, double z)
{
    const double h = 1e-5;

    if (activation == GPUNVME_OPS_ACT_RELU)
        return z > 0 ? 1 : 0;
    return (activate(activation, z + h) - activate(activation, z - h)) / (2 * h);
}

struct shape {
    int64_t rows, in, out;
};

struct request {
    struct shape shape;
    int activation, dtype, grad_dtype;
    bool bias, preact, accumulate;
    bool aligned;  /* rows begin at multiples of 16 bytes */
    bool no_bias;  /* its gradient is not wanted */
    int64_t every; /* only every so many-th element of each row is looked at; 0: all */
    int threads;
};

static size_t matrix_nbytes(int64_t rows, int64_t cols, int64_t ld, int dtype)
{
    return extent_nbytes(rows, cols, ld, 1, 0, dtype);
}

static void run_forward(const char *variant, const struct request *q,
                        const struct gpunvme_linear *p)
{
    struct gpunvme_ops_exec exec = {
        .device = TEST_DEVICE, .variant = variant, .threads = q->threads};
    size_t y_nbytes = matrix_nbytes(p->rows, p->out, p->ldy, p->dtype);
    size_t z_nbytes = matrix_nbytes(p->rows, p->out, p->ld_preact, p->dtype);
    struct gpunvme_linear d = *p;
    struct workspace w;
    size_t nbytes = 77;

    d.x = device_in(p->x, matrix_nbytes(p->rows, p->in, p->ldx, p->dtype));
    d.weight = device_in(p->weight, matrix_nbytes(p->out, p->in, p->ldw, p->dtype));
    d.bias = device_in(p->bias, matrix_nbytes(1, p->out, 0, p->dtype));
    d.y = device_in(p->y, y_nbytes);
    d.preact = device_in(p->preact, z_nbytes);
    expect_ok(gpunvme_linear_forward_workspace(&d, &exec, &nbytes));
    w = workspace_new(nbytes);
    exec.workspace = w.data;
    exec.workspace_nbytes = w.nbytes;
    expect_ok(gpunvme_linear_forward(&d, &exec));
    device_out(p->y, d.y, y_nbytes);
    device_out(p->preact, d.preact, z_nbytes);
    device_out(NULL, (void *)(uintptr_t)d.x, 0);
    device_out(NULL, (void *)(uintptr_t)d.weight, 0);
    device_out(NULL, (void *)(uintptr_t)d.bias, 0);
    workspace_free(&w);
}

static void expect_near(const char *variant, const struct request *q, const char *what, int64_t i,
                        int64_t j, double got, double result, double error)
{
    if (!(fabs(got - result) <= error))
        fail_msg("%s, %s, %s, rows %lld in %lld out %lld: %s (%lld, %lld) is %.9g, not %.9g +- %g",
                 variant, gpunvme_ops_dtype_name(q->dtype),
                 gpunvme_ops_activation_name(q->activation), (long long)q->shape.rows,
                 (long long)q->shape.in, (long long)q->shape.out, what, (long long)i, (long long)j,
                 got, result, error);
}

static int64_t pad(const struct request *q, int64_t odd)
{
    return q->aligned ? 8 : odd;
}

/* GPUs may take a polynomial for GELU where results have 16 bits: src/ops/cuda/element.cuh. */
static double activation_error(const struct request *q, double z, double result)
{
    bool fast = TEST_DEVICE == GPUNVME_OPS_CUDA && q->dtype != GPUNVME_OPS_F32;

    return ACT_EPS * fabs(z) + (fast ? 0x1p-12 * fabs(result) + 4e-8 : 0);
}

static void test_forward(const char *variant, void *arg)
{
    const struct request *q = arg;
    const struct shape *s = &q->shape;
    struct mat x = mat_new(s->rows, s->in, pad(q, 3), 1, q->dtype);
    struct mat w = mat_new(s->out, s->in, pad(q, 1), 1, q->dtype);
    struct mat bias = mat_new(1, s->out, 0, 1, q->dtype);
    struct mat y = mat_new(s->rows, s->out, pad(q, 5), 1, q->dtype);
    struct mat preact = mat_new(s->rows, s->out, pad(q, 2), 1, q->dtype);
    struct gpunvme_linear p = {.rows = s->rows,
                               .in = s->in,
                               .out = s->out,
                               .x = x.block,
                               .weight = w.block,
                               .y = y.block,
                               .bias = q->bias ? bias.block : NULL,
                               .preact = q->preact ? preact.block : NULL,
                               .ldx = x.ld,
                               .ldw = w.ld,
                               .ldy = y.ld,
                               .ld_preact = preact.ld,
                               .activation = q->activation,
                               .dtype = q->dtype};
    double *x_rows, *w_rows;

    mat_random(&x, &rng);
    mat_random(&w, &rng);
    mat_random(&bias, &rng);
    mat_poison(&y);
    mat_poison(&preact);
    x_rows = mat_values(&x, false);
    w_rows = mat_values(&w, false);
    run_forward(variant, q, &p);
    for (int64_t i = 0; i < s->rows; i++)
        for (int64_t j = 0; j < s->out; j++) {
            double b = q->bias ? mat_get(&bias, 0, 0, j) : 0, z, size, error, result;

            z = b + sum_of_products(x_rows + i * s->in, w_rows + j * s->in, s->in, &size);
            error = (double)(s->in + 3) * F32_EPS * (size + fabs(b));
            if (q->preact)
                expect_near(variant, q, "preact", i, j, mat_get(&preact, 0, i, j), z,
                            error + rounding(q->dtype, z));
            result = activate(q->activation, z);
            expect_near(variant, q, "y", i, j, mat_get(&y, 0, i, j), result,
                        STEEPEST * error + activation_error(q, z, result) +
                            rounding(q->dtype, result));
        }
    free(x_rows);
    free(w_rows);
    mat_expect_padding(&y);
    mat_expect_padding(&preact);
    mat_free(&x);
    mat_free(&w);
    mat_free(&bias);
    mat_free(&y);
    mat_free(&preact);
}

static void test_forward_if_taken(const char *variant, void *arg)
{
    const struct request *q = arg;

    if (variant_takes(GPUNVME_OPS_LINEAR_FORWARD, variant, q->dtype, 0))
        test_forward(variant, arg);
}

static void forward(struct request q)
{
    for_each_variant(GPUNVME_OPS_LINEAR_FORWARD, test_forward_if_taken, &q);
}

static const struct shape shapes[] = {{1, 1, 1},    {13, 33, 31}, {67, 129, 61}, {5, 400, 300},
                                      {485, 17, 3}, {2, 3, 131},  {7, 0, 5}};
#define NSHAPES (sizeof(shapes) / sizeof(shapes[0]))

static void forward_is_right_for_every_activation(void **state)
{
    (void)state;
    for (int activation = 0; activation < GPUNVME_OPS_NACTS; activation++)
        for (int dtype = 0; dtype < GPUNVME_OPS_NDTYPES; dtype++)
            for (size_t i = 0; i < NSHAPES; i++)
                forward((struct request){.shape = shapes[i],
                                         .activation = activation,
                                         .dtype = dtype,
                                         .bias = true,
                                         .preact = true});
}

/* What can be read and written in vectors, is: also by several of the GPU's tiles. */
static void forward_is_right_with_aligned_rows(void **state)
{
    (void)state;
    for (int activation = 0; activation < GPUNVME_OPS_NACTS; activation++)
        for (int dtype = 0; dtype < GPUNVME_OPS_NDTYPES; dtype++)
            for (int ragged = 0; ragged < 2; ragged++) {
                if (FEWER_CASES && (activation + dtype + ragged) % 3)
                    continue;
                forward((struct request){.shape = {136, 72, ragged ? 263 : 264},
                                         .activation = activation,
                                         .dtype = dtype,
                                         .bias = true,
                                         .preact = (activation + dtype) % 2,
                                         .aligned = true});
            }
}

/* More tiles than a GPU has multiprocessors, and so many steps of k that stages come around. */
static void forward_by_teams_that_take_turns_is_right(void **state)
{
#if defined(OPS_TEST_CUDA) && !defined(OPS_TEST_EMULATED)
    const struct shape shape = {2296, 392, 2040};
#else
    const struct shape shape = {760, 392, 248};
#endif

    (void)state;
    for (int dtype = GPUNVME_OPS_F16; dtype < GPUNVME_OPS_NDTYPES; dtype++)
        for (int i = 0; i < 2; i++)
            test_forward("auto", &(struct request){.shape = shape,
                                                   .activation = i ? GPUNVME_OPS_ACT_GELU
                                                                   : GPUNVME_OPS_ACT_RELU,
                                                   .dtype = dtype,
                                                   .bias = i,
                                                   .preact = true,
                                                   .aligned = true});
}

static void bias_and_preactivation_are_optional(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++)
        forward((struct request){.shape = shapes[1],
                                 .activation = GPUNVME_OPS_ACT_GELU,
                                 .bias = i & 1,
                                 .preact = i & 2});
}

static void no_rows_are_no_work(void **state)
{
    (void)state;
    forward((struct request){.shape = {0, 5, 7}, .bias = true, .preact = true});
    forward((struct request){.shape = {5, 7, 0}, .bias = true, .preact = true});
}

static void activations_hold_at_the_ends(void **state)
{
    static const float ends[] = {0, 30, 100, 1e30f, -30, -100, -1e30f};
    float x[7], y[7], one = 1;
    struct request q = {0};
    struct gpunvme_linear p = {
        .rows = 7, .in = 1, .out = 1, .x = x, .weight = &one, .y = y, .ldx = 1, .ldw = 1, .ldy = 1};

    (void)state;
    memcpy(x, ends, sizeof(x));
    for (p.activation = 0; p.activation < GPUNVME_OPS_NACTS; p.activation++) {
        run_forward("auto", &q, &p);
        for (int i = 0; i < 7; i++) {
            double left = p.activation == GPUNVME_OPS_ACT_NONE ? (double)x[i] : 0;

            assert_true(fabs((double)y[i] - (x[i] > 0 ? (double)x[i] : left)) <= 1e-8);
        }
    }
}

struct gradients {
    struct mat x, w, grad_y, preact, grad_x, grad_w, grad_b;
    double *dz; /* what it should be */
};

static double *turned(const double *x, int64_t rows, int64_t cols)
{
    double *y = malloc((size_t)(rows * cols + 1) * sizeof(*y));

    assert_non_null(y);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++)
            y[j * rows + i] = x[i * cols + j];
    return y;
}

static struct gradients make(const struct request *q)
{
    const struct shape *s = &q->shape;
    struct gradients g = {
        mat_new(s->rows, s->in, pad(q, 3), 1, q->dtype),
        mat_new(s->out, s->in, pad(q, 1), 1, q->dtype),
        mat_new(s->rows, s->out, pad(q, 2), 1, q->dtype),
        mat_new(s->rows, s->out, pad(q, 4), 1, q->dtype),
        mat_new(s->rows, s->in, pad(q, 5), 1, q->dtype),
        mat_new(s->out, s->in, pad(q, 7), 1, q->grad_dtype),
        mat_new(1, s->out, 0, 1, q->grad_dtype),
        malloc((size_t)(s->rows * s->out + 1) * sizeof(double)),
    };

    assert_non_null(g.dz);
    mat_random(&g.x, &rng);
    mat_random(&g.w, &rng);
    mat_random(&g.grad_y, &rng);
    mat_random(&g.preact, &rng);
    for (int64_t i = 0; i < s->rows; i++)
        for (int64_t j = 0; j < s->out; j++) {
            double grad = mat_get(&g.grad_y, 0, i, j);

            if (q->activation)
                grad *= slope(q->activation, mat_get(&g.preact, 0, i, j));
            g.dz[i * s->out + j] = grad;
        }
    mat_poison(&g.grad_x);
    if (q->accumulate) {
        mat_random(&g.grad_w, &rng);
        mat_random(&g.grad_b, &rng);
    } else {
        mat_poison(&g.grad_w);
        mat_poison(&g.grad_b);
    }
    return g;
}

static void drop(struct gradients *g)
{
    mat_free(&g->x);
    mat_free(&g->w);
    mat_free(&g->grad_y);
    mat_free(&g->preact);
    mat_free(&g->grad_x);
    mat_free(&g->grad_w);
    mat_free(&g->grad_b);
    free(g->dz);
}

static struct gpunvme_linear_grad describe(const struct request *q, const struct gradients *g)
{
    return (struct gpunvme_linear_grad){
        .rows = q->shape.rows,
        .in = q->shape.in,
        .out = q->shape.out,
        .x = g->x.block,
        .weight = g->w.block,
        .grad_y = g->grad_y.block,
        .preact = q->activation ? g->preact.block : NULL,
        .grad_x = g->grad_x.block,
        .grad_weight = g->grad_w.block,
        .grad_bias = g->grad_b.block,
        .ldx = g->x.ld,
        .ldw = g->w.ld,
        .ld_grad_y = g->grad_y.ld,
        .ld_preact = g->preact.ld,
        .ld_grad_x = g->grad_x.ld,
        .ld_grad_weight = g->grad_w.ld,
        .activation = q->activation,
        .dtype = q->dtype,
        .grad_dtype = q->grad_dtype,
        .accumulate = q->accumulate,
    };
}

static size_t grad_x_nbytes(const struct gpunvme_linear_grad *p)
{
    return matrix_nbytes(p->rows, p->in, p->ld_grad_x, p->dtype);
}

static size_t grad_weight_nbytes(const struct gpunvme_linear_grad *p)
{
    return matrix_nbytes(p->out, p->in, p->ld_grad_weight, p->grad_dtype);
}

static size_t grad_bias_nbytes(const struct gpunvme_linear_grad *p)
{
    return matrix_nbytes(1, p->out, 0, p->grad_dtype);
}

/* The same on the device. */
static struct gpunvme_linear_grad put_backward(const struct gpunvme_linear_grad *p)
{
    struct gpunvme_linear_grad d = *p;

    d.x = device_in(p->x, matrix_nbytes(p->rows, p->in, p->ldx, p->dtype));
    d.weight = device_in(p->weight, matrix_nbytes(p->out, p->in, p->ldw, p->dtype));
    d.grad_y = device_in(p->grad_y, matrix_nbytes(p->rows, p->out, p->ld_grad_y, p->dtype));
    d.preact = device_in(p->preact, matrix_nbytes(p->rows, p->out, p->ld_preact, p->dtype));
    d.grad_x = device_in(p->grad_x, grad_x_nbytes(p));
    d.grad_weight = device_in(p->grad_weight, grad_weight_nbytes(p));
    d.grad_bias = device_in(p->grad_bias, grad_bias_nbytes(p));
    return d;
}

static void get_backward(const struct gpunvme_linear_grad *p, const struct gpunvme_linear_grad *d)
{
    device_out(p->grad_x, d->grad_x, grad_x_nbytes(p));
    device_out(p->grad_weight, d->grad_weight, grad_weight_nbytes(p));
    device_out(p->grad_bias, d->grad_bias, grad_bias_nbytes(p));
    device_out(NULL, (void *)(uintptr_t)d->x, 0);
    device_out(NULL, (void *)(uintptr_t)d->weight, 0);
    device_out(NULL, (void *)(uintptr_t)d->grad_y, 0);
    device_out(NULL, (void *)(uintptr_t)d->preact, 0);
}

static void run_backward(const char *variant, const struct request *q,
                         const struct gpunvme_linear_grad *p)
{
    struct gpunvme_ops_exec exec = {
        .device = TEST_DEVICE, .variant = variant, .threads = q->threads};
    struct gpunvme_linear_grad d = put_backward(p);
    struct workspace w;
    size_t nbytes = 77;

    expect_ok(gpunvme_linear_backward_workspace(&d, &exec, &nbytes));
    w = workspace_new(nbytes);
    exec.workspace = w.data;
    exec.workspace_nbytes = w.nbytes;
    expect_ok(gpunvme_linear_backward(&d, &exec));
    get_backward(p, &d);
    workspace_free(&w);
}

/* dZ is off by a few ulps of grad_y, for slopes are at most 1.13; f64's difference by 1e-9. */
#define DZ_ERROR (2 * ACT_EPS)

/* The GPU rounds dZ to the type of the matrices. */
static double dz_error(const struct request *q)
{
    bool rounded = TEST_DEVICE == GPUNVME_OPS_CUDA && q->dtype != GPUNVME_OPS_F32 && q->activation;

    return DZ_ERROR + (rounded ? rounding(q->dtype, 1) : 0);
}

/* Of a row's elements, when not all are: another in each row. */
static int64_t first_seen(const struct request *q, int64_t row)
{
    return q->every ? row * 7 % q->every : 0;
}

static void expect_grad_x(const char *variant, const struct request *q, const struct gradients *g)
{
    const struct shape *s = &q->shape;
    double *grad_y = mat_values(&g->grad_y, false), *w = mat_values(&g->w, true);

    for (int64_t i = 0; i < s->rows; i++)
        for (int64_t k = first_seen(q, i); k < s->in; k += q->every ? q->every : 1) {
            double sum, size, unused;

            sum = sum_of_products(g->dz + i * s->out, w + k * s->out, s->out, &unused);
            sum_of_products(grad_y + i * s->out, w + k * s->out, s->out, &size);
            expect_near(variant, q, "grad_x", i, k, mat_get(&g->grad_x, 0, i, k), sum,
                        ((double)(s->out + 3) * F32_EPS + dz_error(q)) * STEEPEST * size +
                            rounding(q->dtype, sum));
        }
    free(grad_y);
    free(w);
}

static void expect_grad_weight(const char *variant, const struct request *q,
                               const struct gradients *g, const struct mat *before)
{
    const struct shape *s = &q->shape;
    double *dz = turned(g->dz, s->rows, s->out), *grad_y = mat_values(&g->grad_y, true);
    double *x = mat_values(&g->x, true);

    for (int64_t j = 0; j < s->out; j++)
        for (int64_t k = first_seen(q, j); k < s->in; k += q->every ? q->every : 1) {
            double old = q->accumulate ? mat_get(before, 0, j, k) : 0, sum, size, unused;

            sum = old + sum_of_products(dz + j * s->rows, x + k * s->rows, s->rows, &unused);
            sum_of_products(grad_y + j * s->rows, x + k * s->rows, s->rows, &size);
            size = STEEPEST * size + fabs(old);
            expect_near(variant, q, "grad_weight", j, k, mat_get(&g->grad_w, 0, j, k), sum,
                        ((double)(s->rows + 3) * F32_EPS + dz_error(q)) * size +
                            rounding(q->grad_dtype, sum));
        }
    free(dz);
    free(grad_y);
    free(x);
}

static void expect_grad_bias(const char *variant, const struct request *q,
                             const struct gradients *g, const struct mat *before)
{
    for (int64_t j = 0; j < q->shape.out; j++) {
        double sum = q->accumulate ? mat_get(before, 0, 0, j) : 0, size = fabs(sum);

        for (int64_t i = 0; i < q->shape.rows; i++) {
            sum += g->dz[i * q->shape.out + j];
            size += fabs(STEEPEST * mat_get(&g->grad_y, 0, i, j));
        }
        expect_near(variant, q, "grad_bias", 0, j, mat_get(&g->grad_b, 0, 0, j), sum,
                    ((double)(q->shape.rows + 3) * F32_EPS + dz_error(q)) * size +
                        rounding(q->grad_dtype, sum));
    }
}

static void test_backward(const char *variant, void *arg)
{
    const struct request *q = arg;
    struct gradients g = make(q);
    struct mat weight_before = mat_copy(&g.grad_w), bias_before = mat_copy(&g.grad_b);
    struct gpunvme_linear_grad p = describe(q, &g);

    if (q->no_bias)
        p.grad_bias = NULL;
    run_backward(variant, q, &p);
    expect_grad_x(variant, q, &g);
    expect_grad_weight(variant, q, &g, &weight_before);
    if (!q->no_bias)
        expect_grad_bias(variant, q, &g, &bias_before);
    mat_expect_padding(&g.grad_x);
    mat_expect_padding(&g.grad_w);
    mat_free(&weight_before);
    mat_free(&bias_before);
    drop(&g);
}

static void test_backward_if_taken(const char *variant, void *arg)
{
    const struct request *q = arg;

    if (variant_takes(GPUNVME_OPS_LINEAR_BACKWARD, variant, q->dtype, 0))
        test_backward(variant, arg);
}

static void backward(struct request q)
{
    for_each_variant(GPUNVME_OPS_LINEAR_BACKWARD, test_backward_if_taken, &q);
}

static void backward_is_right_for_every_activation(void **state)
{
    (void)state;
    for (int activation = 0; activation < GPUNVME_OPS_NACTS; activation++)
        for (int dtype = 0; dtype < GPUNVME_OPS_NDTYPES; dtype++)
            for (size_t i = 0; i < NSHAPES - 3; i++)
                backward((struct request){
                    .shape = {shapes[i].rows % 70, shapes[i].in % 140, shapes[i].out % 70},
                    .activation = activation,
                    .dtype = dtype,
                    .grad_dtype = dtype});
}

static void backward_is_right_with_aligned_rows(void **state)
{
    (void)state;
    for (int activation = 0; activation < GPUNVME_OPS_NACTS; activation++)
        for (int dtype = 0; dtype < GPUNVME_OPS_NDTYPES; dtype++)
            backward((struct request){.shape = {FEWER_CASES ? 40 : 264, 48, 136},
                                      .activation = activation,
                                      .dtype = dtype,
                                      .grad_dtype = activation % 2 ? 0 : dtype,
                                      .accumulate = activation % 2,
                                      .aligned = true});
}

/*
 * Where one kernel makes dZ and multiplies it: several of its pieces down and across, edges within
 * them, all activations, with and without each of the rest.
 */
static void dz_made_beside_the_product_is_right(void **state)
{
    static const struct shape some[] = {{300, 72, 1096}, {33, 264, 136}, {129, 80, 1024}};

    (void)state;
    for (int activation = 0; activation < GPUNVME_OPS_NACTS; activation++)
        for (int dtype = GPUNVME_OPS_F16; dtype < GPUNVME_OPS_NDTYPES; dtype++)
            for (int i = FEWER_CASES; i < 3; i++)
                test_backward("auto", &(struct request){.shape = some[i],
                                                        .activation = activation,
                                                        .dtype = dtype,
                                                        .grad_dtype = i == 1 ? 0 : dtype,
                                                        .accumulate = i == 1,
                                                        .no_bias = i == 2,
                                                        .aligned = true,
                                                        .every = 9});
}

#if defined(OPS_TEST_CUDA) && !defined(OPS_TEST_EMULATED)
/* More tiles than a GPU has room for at once, so that blocks wait for pieces made meanwhile. */
static void dz_made_while_blocks_have_several_tiles_is_right(void **state)
{
    (void)state;
    for (int dtype = GPUNVME_OPS_F16; dtype < GPUNVME_OPS_NDTYPES; dtype++)
        test_backward("auto", &(struct request){.shape = {6600, 1640, 3080},
                                                .activation = GPUNVME_OPS_ACT_GELU,
                                                .dtype = dtype,
                                                .grad_dtype = dtype,
                                                .aligned = true,
                                                .every = 1601});
}
#endif

static void gradients_of_parameters_can_be_added_to(void **state)
{
    (void)state;
    for (int dtype = 0; dtype < GPUNVME_OPS_NDTYPES; dtype++)
        for (int f32 = 0; f32 < 2; f32++)
            backward((struct request){.shape = {37, 19, 23},
                                      .activation = GPUNVME_OPS_ACT_SILU,
                                      .dtype = dtype,
                                      .grad_dtype = f32 ? 0 : dtype,
                                      .accumulate = true});
}

static void without_rows_gradients_of_parameters_are_zero(void **state)
{
    (void)state;
    backward((struct request){.shape = {0, 5, 7}, .activation = GPUNVME_OPS_ACT_GELU});
    backward((struct request){.shape = {0, 5, 7}, .accumulate = true});
    backward((struct request){.shape = {5, 0, 7}});
    backward((struct request){.shape = {5, 7, 0}});
}

static void each_gradient_is_optional(const char *variant, void *arg)
{
    struct request q = {.shape = {9, 10, 11}, .activation = GPUNVME_OPS_ACT_GELU};

    (void)arg;
    for (int wanted = 0; wanted < 8; wanted++) {
        struct gradients g = make(&q);
        struct gpunvme_linear_grad p = describe(&q, &g);

        /* What only an unwanted gradient needs may be missing. */
        if (!(wanted & 1))
            p.grad_x = NULL, p.weight = NULL;
        if (!(wanted & 2))
            p.grad_weight = NULL, p.x = NULL;
        if (!(wanted & 4))
            p.grad_bias = NULL;
        if (!wanted)
            p.grad_y = p.preact = NULL;
        run_backward(variant, &q, &p);
        if (wanted & 1)
            expect_grad_x(variant, &q, &g);
        if (wanted & 2)
            expect_grad_weight(variant, &q, &g, NULL);
        if (wanted & 4)
            expect_grad_bias(variant, &q, &g, NULL);
        drop(&g);
    }
}

static void any_of_the_gradients_can_be_left_out(void **state)
{
    (void)state;
    for_each_variant(GPUNVME_OPS_LINEAR_BACKWARD, each_gradient_is_optional, NULL);
}

static void expect_same_bits(const char *variant, void *arg)
{
    struct request q = *(const struct request *)arg;
    struct gradients g = make(&q);
    struct gpunvme_linear_grad p = describe(&q, &g);
    struct gpunvme_ops_variant v;
    struct mat x, w, b;

    if (variant_find(GPUNVME_OPS_LINEAR_BACKWARD, variant, &v) && !v.deterministic) {
        drop(&g);
        return;
    }
    run_backward(variant, &q, &p);
    x = mat_copy(&g.grad_x);
    w = mat_copy(&g.grad_w);
    b = mat_copy(&g.grad_b);
    for (q.threads = 0; q.threads < 4; q.threads++) {
        mat_poison(&g.grad_x);
        mat_poison(&g.grad_w);
        mat_poison(&g.grad_b);
        run_backward(variant, &q, &p);
        assert_memory_equal(x.block, g.grad_x.block, x.nbytes);
        assert_memory_equal(w.block, g.grad_w.block, w.nbytes);
        assert_memory_equal(b.block, g.grad_b.block, b.nbytes);
    }
    mat_free(&x);
    mat_free(&w);
    mat_free(&b);
    drop(&g);
}

static void gradients_are_the_same_bits_with_any_number_of_threads(void **state)
{
    struct request f32 = {.shape = {61, 300, 83}, .activation = GPUNVME_OPS_ACT_GELU};
    struct request bf16 = {.shape = {161, 72, 1096},
                           .activation = GPUNVME_OPS_ACT_GELU,
                           .dtype = GPUNVME_OPS_BF16,
                           .grad_dtype = GPUNVME_OPS_BF16,
                           .aligned = true};

    (void)state;
    for_each_variant(GPUNVME_OPS_LINEAR_BACKWARD, expect_same_bits, &f32);
    expect_same_bits("auto", &bf16);
}

/*
 * Two layers' gradients in turn, with one workspace and nothing between them: each must begin with
 * it when the one before has done with it, and find nothing of that.
 */
static void calls_in_a_row_can_share_a_workspace(void **state)
{
#if defined(OPS_TEST_CUDA) && !defined(OPS_TEST_EMULATED)
    const struct shape shape = {2056, 1032, 3080};
#else
    const struct shape shape = {161, 72, 1096};
#endif
    struct request q = {.shape = shape,
                        .activation = GPUNVME_OPS_ACT_GELU,
                        .dtype = GPUNVME_OPS_BF16,
                        .grad_dtype = GPUNVME_OPS_BF16,
                        .aligned = true};
    struct gpunvme_ops_exec exec = {.device = TEST_DEVICE, .variant = "auto"};
    struct gpunvme_linear_grad p[2], d[2];
    struct mat x[2], w[2], b[2];
    struct gradients g[2];
    struct workspace space;

    (void)state;
    for (int i = 0; i < 2; i++) {
        g[i] = make(&q);
        p[i] = describe(&q, &g[i]);
        run_backward("auto", &q, &p[i]);
        x[i] = mat_copy(&g[i].grad_x);
        w[i] = mat_copy(&g[i].grad_w);
        b[i] = mat_copy(&g[i].grad_b);
        mat_poison(&g[i].grad_x);
        mat_poison(&g[i].grad_w);
        mat_poison(&g[i].grad_b);
        d[i] = put_backward(&p[i]);
    }
    expect_ok(gpunvme_linear_backward_workspace(&d[0], &exec, &exec.workspace_nbytes));
    space = workspace_new(exec.workspace_nbytes);
    exec.workspace = space.data;
    for (int i = 0; i < 6; i++)
        expect_ok(gpunvme_linear_backward(&d[i % 2], &exec));
    for (int i = 0; i < 2; i++) {
        get_backward(&p[i], &d[i]);
        assert_memory_equal(x[i].block, g[i].grad_x.block, x[i].nbytes);
        assert_memory_equal(w[i].block, g[i].grad_w.block, w[i].nbytes);
        assert_memory_equal(b[i].block, g[i].grad_b.block, b[i].nbytes);
        mat_free(&x[i]);
        mat_free(&w[i]);
        mat_free(&b[i]);
        drop(&g[i]);
    }
    workspace_free(&space);
}

static void bad_arguments_are_refused(void **state)
{
    float x[64] = {0}, w[64] = {0}, y[64], z[64];
    struct gpunvme_linear p = {
        .rows = 4, .in = 5, .out = 6, .x = x, .weight = w, .y = y, .ldx = 5, .ldw = 5, .ldy = 6};
    struct gpunvme_linear_grad g = {.rows = 4,
                                    .in = 5,
                                    .out = 6,
                                    .grad_y = y,
                                    .weight = w,
                                    .grad_x = x,
                                    .ldw = 5,
                                    .ld_grad_y = 6,
                                    .ld_grad_x = 5};
    const struct gpunvme_linear ok = p;
    const struct gpunvme_linear_grad ok_grad = g;

    (void)state;
#define refused(change, status, text)                                                              \
    p = ok;                                                                                        \
    change;                                                                                        \
    expect_status(gpunvme_linear_forward(&p, NULL), status, text)
    refused(p.activation = 5, GPUNVME_OPS_ERR_INVALID, "activation is 5");
    refused(p.in = -1, GPUNVME_OPS_ERR_SHAPE, "in is -1");
    refused(p.ldw = 4, GPUNVME_OPS_ERR_SHAPE, "weight has rows of 5");
    refused(p.y = NULL, GPUNVME_OPS_ERR_INVALID, "y is NULL");
    refused(p.bias = y + 3, GPUNVME_OPS_ERR_ALIAS, "y and bias");
    refused((p.preact = y, p.ld_preact = 6), GPUNVME_OPS_ERR_ALIAS, "preact and y");
    refused(p.preact = z, GPUNVME_OPS_ERR_SHAPE, "preact has rows");
    refused(p.reserved = 1, GPUNVME_OPS_ERR_INVALID, "reserved");
    refused((void)0, GPUNVME_OPS_ERR_WORKSPACE, "needs");
#undef refused
#define refused(change, status, text)                                                              \
    g = ok_grad;                                                                                   \
    change;                                                                                        \
    expect_status(gpunvme_linear_backward(&g, NULL), status, text)
    refused(g.weight = NULL, GPUNVME_OPS_ERR_INVALID, "weight is NULL");
    refused(g.activation = 1, GPUNVME_OPS_ERR_SHAPE, "preact");
    refused((g.activation = 1, g.ld_preact = 6), GPUNVME_OPS_ERR_INVALID, "preact is NULL");
    refused(g.grad_y = x + 1, GPUNVME_OPS_ERR_ALIAS, "grad_x and grad_y");
    refused(g.grad_dtype = 1, GPUNVME_OPS_ERR_DTYPE, "grad_dtype is f16");
    refused(g.accumulate = 2, GPUNVME_OPS_ERR_INVALID, "accumulate is 2");
#undef refused
}

#ifdef OPS_TEST_CUDA
static gpunvme_ops_status_t choose_forward_at(uintptr_t at, int64_t rows, const char *variant,
                                              const char **name)
{
    const void *data = (const void *)at; /* which nobody reads */
    struct gpunvme_ops_exec exec = {.device = TEST_DEVICE, .variant = variant};
    struct gpunvme_linear p = {.rows = rows,
                               .in = 512,
                               .out = 768,
                               .x = data,
                               .weight = data,
                               .ldx = 512,
                               .ldw = 512,
                               .ldy = 768,
                               .dtype = GPUNVME_OPS_BF16};

    return gpunvme_linear_forward_choose(&p, &exec, name);
}

/* What needs aligned operands is refused by name, and "auto" names what takes them. */
static void a_choice_for_misaligned_operands_names_what_runs(void **state)
{
    struct gpunvme_ops_variant v;
    const char *name;

    (void)state;
    expect_ok(choose_forward_at(0x1002, 512, "auto", &name));
    expect_ok(choose_forward_at(0x1002, 512, name, &name));
    if (!variant_find(GPUNVME_OPS_LINEAR_FORWARD, "persistent", &v) || !v.available)
        return;
    assert_string_equal(name, "fused");
    expect_status(choose_forward_at(0x1002, 512, "persistent", &name), GPUNVME_OPS_ERR_ALIGN,
                  "'persistent'");
    expect_status(choose_forward_at(0x1002, 512, "shaped", &name), GPUNVME_OPS_ERR_ALIGN,
                  "'shaped'");
    expect_ok(choose_forward_at(0x1000, 512, "persistent", &name));
    /* A few rows are read at any alignment. */
    expect_ok(choose_forward_at(0x1002, 4, "auto", &name));
    assert_string_equal(name, "shaped");
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forward_is_right_for_every_activation),
        cmocka_unit_test(forward_is_right_with_aligned_rows),
        cmocka_unit_test(forward_by_teams_that_take_turns_is_right),
        cmocka_unit_test(bias_and_preactivation_are_optional),
        cmocka_unit_test(no_rows_are_no_work),
        cmocka_unit_test(activations_hold_at_the_ends),
        cmocka_unit_test(backward_is_right_for_every_activation),
        cmocka_unit_test(backward_is_right_with_aligned_rows),
        cmocka_unit_test(dz_made_beside_the_product_is_right),
#if defined(OPS_TEST_CUDA) && !defined(OPS_TEST_EMULATED)
        cmocka_unit_test(dz_made_while_blocks_have_several_tiles_is_right),
#endif
        cmocka_unit_test(gradients_of_parameters_can_be_added_to),
        cmocka_unit_test(without_rows_gradients_of_parameters_are_zero),
        cmocka_unit_test(any_of_the_gradients_can_be_left_out),
        cmocka_unit_test(gradients_are_the_same_bits_with_any_number_of_threads),
        cmocka_unit_test(calls_in_a_row_can_share_a_workspace),
        cmocka_unit_test(bad_arguments_are_refused),
#ifdef OPS_TEST_CUDA
        cmocka_unit_test(a_choice_for_misaligned_operands_names_what_runs),
#endif
    };

    if (no_gpu())
        return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
