/* SPDX-License-Identifier: BSD-3-Clause
 *
 * AdamW and the norm of gradients, every variant that this machine has, against f64.
 */
#include "ops/core/philox.h"
#include "rows_test.h"

static struct base_random rng;
static int threads = 2;

/* An empty tensor among them, one of several blocks, one that ends within a vector. */
static const int64_t counts[] = {5, 0, 4096, 9000, 1, 24, 4099};
enum { NTENSORS = sizeof(counts) / sizeof(counts[0]), MANY = 600 };

struct request {
    int dtype, grad_dtype;
    bool master, weight, stochastic, grad_scale;
    int64_t step;
    bool now; /* lr and step are in memory, and nonsense in the descriptor */
};

/* One tensor of a list; the f32 arrays of all of it are in one block each. */
struct tensor {
    struct mat grad, master, weight, m, v;
};

static struct tensor make_tensor(const struct request *q, int64_t n)
{
    struct tensor t = {
        mat_new(1, n, 0, 1, q->grad_dtype),   mat_new(1, n, 0, 1, GPUNVME_OPS_F32),
        mat_new(1, n, 0, 1, q->dtype),        mat_new(1, n, 0, 1, GPUNVME_OPS_F32),
        mat_new(1, n, 0, 1, GPUNVME_OPS_F32),
    };

    mat_random(&t.grad, &rng);
    mat_random(&t.master, &rng);
    mat_random(&t.weight, &rng);
    mat_random(&t.m, &rng);
    mat_random(&t.v, &rng);
    for (int64_t i = 0; i < n; i++)
        ((float *)t.v.block)[i] = fabsf(((float *)t.v.block)[i]);
    if (q->master)
        mat_poison(&t.weight);
    return t;
}

static struct tensor copy_tensor(const struct tensor *t)
{
    return (struct tensor){mat_copy(&t->grad), mat_copy(&t->master), mat_copy(&t->weight),
                           mat_copy(&t->m), mat_copy(&t->v)};
}

static void drop_tensor(struct tensor *t)
{
    mat_free(&t->grad);
    mat_free(&t->master);
    mat_free(&t->weight);
    mat_free(&t->m);
    mat_free(&t->v);
}

static const float the_scale = 0.75f;

static struct gpunvme_adamw describe(const struct request *q)
{
    return (struct gpunvme_adamw){.step = q->step,
                                  .seed = 77,
                                  .lr = 0.01f,
                                  .beta1 = 0.9f,
                                  .beta2 = 0.95f,
                                  .eps = 1e-8f,
                                  .weight_decay = 0.1f,
                                  .dtype = q->dtype,
                                  .grad_dtype = q->grad_dtype,
                                  .stochastic = q->stochastic};
}

static void run(const char *variant, const struct request *q, struct tensor *tensors, int n)
{
    struct gpunvme_adamw_tensor list[MANY];
    struct device_set set = {0};
    struct gpunvme_adamw p = describe(q);
    const struct gpunvme_adamw_now now = {.step = p.step, .lr = p.lr};

    if (q->now) {
        p.now = set_in(&set, &now, sizeof(now), false);
        p.step = 0;
        p.lr = NAN;
    }
    p.tensors = list;
    p.ntensors = n;
    if (q->grad_scale)
        p.grad_scale = set_in(&set, &the_scale, sizeof(float), false);
    for (int k = 0; k < n; k++)
        list[k] = (struct gpunvme_adamw_tensor){
            .count = tensors[k].grad.cols,
            .grad = set_in_mat(&set, &tensors[k].grad, false),
            .master = q->master ? set_in_mat(&set, &tensors[k].master, true) : NULL,
            .weight = q->weight ? set_in_mat(&set, &tensors[k].weight, true) : NULL,
            .m = set_in_mat(&set, &tensors[k].m, true),
            .v = set_in_mat(&set, &tensors[k].v, true),
        };
    call_op(gpunvme_adamw, &p, variant, threads);
    set_out(&set);
}

static double next_up(double x, int direction)
{
    uint32_t bits = cpu_bits_of_float((float)x) & 0xffff0000;

    return (double)cpu_float_of_bits(bits + (direction ? 0x10000 : 0));
}

static void expect_weight(const char *variant, const struct request *q, const struct tensor *after,
                          int64_t i, double w, double error)
{
    double got = mat_get(&after->weight, 0, 0, i);

    if (!q->stochastic) {
        expect_close(got, w, error + rounding(q->dtype, w), "%s: weight", variant);
        return;
    }
    /* One of the two neighbours of the value, which is known but for the error. */
    if (!(fabs(got - next_up(w, 0)) <= error || fabs(got - next_up(w, 1)) <= error ||
          fabs(got - w) <= error))
        assert_true(fabs(got - w) <= fabs(w) * 0x1p-7 + error);
}

static void expect_tensor(const char *variant, const struct request *q, const struct tensor *before,
                          const struct tensor *after)
{
    struct gpunvme_adamw p = describe(q);
    double beta1 = (double)p.beta1, beta2 = (double)p.beta2, lr = (double)p.lr;

    for (int64_t i = 0; i < before->grad.cols; i++) {
        double g = mat_get(&before->grad, 0, 0, i) * (q->grad_scale ? (double)the_scale : 1);
        double w = mat_get(q->master ? &before->master : &before->weight, 0, 0, i);
        double m = beta1 * mat_get(&before->m, 0, 0, i) + (1 - beta1) * g;
        double v = beta2 * mat_get(&before->v, 0, 0, i) + (1 - beta2) * g * g;
        double change = lr * m / (1 - pow(beta1, (double)q->step)) /
                        (sqrt(v / (1 - pow(beta2, (double)q->step))) + (double)p.eps);
        double error = 0x1p-22 * (fabs(w) + lr + fabs(change)) + 4e-6 * lr;

        w = w - lr * (double)p.weight_decay * w - change;
        expect_close(mat_get(&after->m, 0, 0, i), m, 0x1p-22, "%s: m", variant);
        expect_close(mat_get(&after->v, 0, 0, i), v, 0x1p-22, "%s: v", variant);
        if (q->master)
            expect_close(mat_get(&after->master, 0, 0, i), w, error, "%s: master", variant);
        if (q->weight)
            expect_weight(variant, q, after, i, w, error);
    }
}

static void test(const char *variant, void *arg)
{
    const struct request *q = arg;
    struct tensor tensors[NTENSORS], before[NTENSORS];

    for (int k = 0; k < NTENSORS; k++) {
        tensors[k] = make_tensor(q, counts[k]);
        before[k] = copy_tensor(&tensors[k]);
    }
    run(variant, q, tensors, NTENSORS);
    for (int k = 0; k < NTENSORS; k++) {
        expect_tensor(variant, q, &before[k], &tensors[k]);
        drop_tensor(&tensors[k]);
        drop_tensor(&before[k]);
    }
}

static void check(struct request q)
{
    for_each_variant(GPUNVME_OPS_ADAMW, test, &q);
}

static void a_step_is_right(void **state)
{
    (void)state;
    for (int dtype = 0; dtype < GPUNVME_OPS_NDTYPES; dtype++)
        for (int step = 1; step < 1000; step += 499)
            check((struct request){.dtype = dtype,
                                   .grad_dtype = step > 1 ? dtype : GPUNVME_OPS_F32,
                                   .master = true,
                                   .weight = true,
                                   .grad_scale = step > 1,
                                   .step = step});
}

/* Also with another number of threads. */
static void test_same_step(const char *variant, void *arg)
{
    const struct request *q = arg;
    struct tensor t[NTENSORS], again[NTENSORS];

    for (int k = 0; k < NTENSORS; k++) {
        t[k] = make_tensor(q, counts[k]);
        again[k] = copy_tensor(&t[k]);
    }
    threads = 1;
    run(variant, q, t, NTENSORS);
    threads = 3;
    run(variant, q, again, NTENSORS);
    threads = 2;
    for (int k = 0; k < NTENSORS; k++) {
        if (counts[k]) {
            assert_memory_equal(t[k].master.block, again[k].master.block, t[k].master.nbytes);
            assert_memory_equal(t[k].weight.block, again[k].weight.block, t[k].weight.nbytes);
            assert_memory_equal(t[k].m.block, again[k].m.block, t[k].m.nbytes);
            assert_memory_equal(t[k].v.block, again[k].v.block, t[k].v.nbytes);
        }
        drop_tensor(&t[k]);
        drop_tensor(&again[k]);
    }
}

static void a_step_has_the_same_bits_in_every_run(void **state)
{
    (void)state;
    for (int dtype = 0; dtype < GPUNVME_OPS_NDTYPES; dtype++) {
        struct request q = {.dtype = dtype,
                            .grad_dtype = dtype,
                            .master = true,
                            .weight = true,
                            .stochastic = dtype == GPUNVME_OPS_BF16,
                            .grad_scale = true,
                            .step = 9};

        for_each_variant(GPUNVME_OPS_ADAMW, test_same_step, &q);
    }
}

static void master_or_weight_may_be_alone(void **state)
{
    (void)state;
    check((struct request){.master = true, .step = 3});
    for (int dtype = 0; dtype < GPUNVME_OPS_NDTYPES; dtype++)
        check((struct request){.dtype = dtype, .grad_dtype = dtype, .weight = true, .step = 3});
}

static void lr_and_step_may_be_in_memory(void **state)
{
    (void)state;
    for (int step = 1; step < 2000000; step = step * 37 + 1)
        check((struct request){.dtype = GPUNVME_OPS_BF16,
                               .grad_dtype = GPUNVME_OPS_BF16,
                               .master = true,
                               .weight = true,
                               .stochastic = step % 2,
                               .grad_scale = true,
                               .step = step,
                               .now = true});
}

/* The CPU looks at them, a GPU can't say so. */
static void test_bad_now(const char *variant, void *arg)
{
    struct request q = {.master = true, .step = 1};
    struct tensor t = make_tensor(&q, 9);
    struct device_set set = {0};
    struct gpunvme_ops_exec exec = {.device = TEST_DEVICE, .variant = variant};
    struct gpunvme_adamw_tensor list = {.count = 9,
                                        .grad = set_in_mat(&set, &t.grad, false),
                                        .master = set_in_mat(&set, &t.master, true),
                                        .m = set_in_mat(&set, &t.m, true),
                                        .v = set_in_mat(&set, &t.v, true)};
    struct gpunvme_adamw p = describe(&q);

    p.tensors = &list;
    p.ntensors = 1;
    p.now = set_in(&set, arg, sizeof(struct gpunvme_adamw_now), false);
    if (TEST_DEVICE == GPUNVME_OPS_CPU) {
        expect_status(gpunvme_adamw(&p, &exec), GPUNVME_OPS_ERR_INVALID, "now has step");
        set_out(&set);
    } else {
        expect_ok(gpunvme_adamw(&p, &exec));
        set_out(&set);
        for (int i = 0; i < 9; i++)
            assert_true(isnan(mat_get(&t.master, 0, 0, i)));
    }
    drop_tensor(&t);
}

static void nonsense_in_memory_is_refused_or_nan(void **state)
{
    struct gpunvme_adamw_now no_step = {.step = 0, .lr = 0.1f}, no_lr = {.step = 3, .lr = -1};

    (void)state;
    for_each_variant(GPUNVME_OPS_ADAMW, test_bad_now, &no_step);
    for_each_variant(GPUNVME_OPS_ADAMW, test_bad_now, &no_lr);
}

static void stochastic_rounding_gives_a_neighbour(void **state)
{
    (void)state;
    for (int master = 0; master < 2; master++)
        check((struct request){.dtype = GPUNVME_OPS_BF16,
                               .grad_dtype = GPUNVME_OPS_BF16,
                               .master = master,
                               .weight = true,
                               .stochastic = true,
                               .step = 9});
}

/*
 * A learning rate of 0 leaves the master; 4096 times a third of the way between two neighbours is
 * rounded up a third of the times, but for four standard deviations.
 */
static void test_average(const char *variant, void *arg)
{
    struct request q = {.dtype = GPUNVME_OPS_BF16, .master = true, .weight = true, .step = 5};
    struct tensor t = make_tensor(&q, 4096);
    struct device_set set = {0};
    struct gpunvme_adamw_tensor one;
    struct gpunvme_adamw p = describe(&q);
    int up = 0;

    (void)arg;
    for (int i = 0; i < 4096; i++)
        ((float *)t.master.block)[i] = 1 + 0x1p-7f / 3;
    p.lr = 0;
    p.stochastic = 1;
    p.tensors = &one;
    p.ntensors = 1;
    one = (struct gpunvme_adamw_tensor){4096,
                                        set_in_mat(&set, &t.grad, false),
                                        set_in_mat(&set, &t.master, true),
                                        set_in_mat(&set, &t.weight, true),
                                        set_in_mat(&set, &t.m, true),
                                        set_in_mat(&set, &t.v, true)};
    call_op(gpunvme_adamw, &p, variant, 1);
    set_out(&set);
    for (int64_t i = 0; i < 4096; i++) {
        double w = mat_get(&t.weight, 0, 0, i);
        struct philox random = philox_of((uint64_t)i / 8, 5ull << 32, 77);

        assert_true(w == 1 || w == 1 + 0x1p-7);
        assert_int_equal(((uint16_t *)t.weight.block)[i],
                         philox_round_bf16(1 + 0x1p-7f / 3, philox_half(&random, (int)(i % 8))));
        up += w > 1;
    }
    assert_true(up > 1365 - 121 && up < 1365 + 121);
    drop_tensor(&t);
}

static void stochastic_rounding_is_right_on_the_average(void **state)
{
    (void)state;
    for_each_variant(GPUNVME_OPS_ADAMW, test_average, NULL);
}

/* The vectors of the authors' test program (Random123, kat_vectors). */
static void philox_has_the_bits_of_its_authors(void **state)
{
    static const struct {
        uint64_t low, high, key;
        uint32_t words[4];
    } known[] = {
        {0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {~0ull, ~0ull, ~0ull, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {0x85a308d3243f6a88,
         0x0370734413198a2e,
         0x299f31d0a4093822,
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        struct philox x = philox_of(known[i].low, known[i].high, known[i].key);

        assert_memory_equal(x.words, known[i].words, sizeof(x.words));
    }
}

static void rounding_leaves_nan_and_infinity(void **state)
{
    (void)state;
    assert_int_equal(philox_round_bf16(INFINITY, 0xffff), 0x7f80);
    assert_int_equal(philox_round_bf16(-INFINITY, 0xffff), 0xff80);
    assert_true(isnan(cpu_from_bf16(philox_round_bf16(NAN, 0xffff))));
    assert_true(isnan(cpu_from_bf16(philox_round_bf16(cpu_float_of_bits(0x7f800001), 0))));
}

/* More tensors than a launch has room for, in memory that is one block. */
static void test_many(const char *variant, void *arg)
{
    enum { EACH = 15 }; /* which no vector is aligned in */
    struct request q = {.master = true, .step = 2};
    struct tensor all = make_tensor(&q, MANY * EACH), before = copy_tensor(&all);
    struct gpunvme_adamw_tensor list[MANY];
    struct device_set set = {0};
    struct gpunvme_adamw p = describe(&q);
    const float *grad = set_in_mat(&set, &all.grad, false);
    float *master = set_in_mat(&set, &all.master, true), *m = set_in_mat(&set, &all.m, true);
    float *v = set_in_mat(&set, &all.v, true);

    (void)arg;
    for (int k = 0; k < MANY; k++)
        list[k] = (struct gpunvme_adamw_tensor){EACH, grad + EACH * k, master + EACH * k,
                                                NULL, m + EACH * k,    v + EACH * k};
    p.tensors = list;
    p.ntensors = MANY;
    call_op(gpunvme_adamw, &p, variant, 2);
    set_out(&set);
    expect_tensor(variant, &q, &before, &all);
    drop_tensor(&all);
    drop_tensor(&before);
}

static void lists_may_be_longer_than_a_launch(void **state)
{
    (void)state;
    for_each_variant(GPUNVME_OPS_ADAMW, test_many, NULL);
}

static void bad_tensors_are_refused(void **state)
{
    static float memory[1024];
    struct gpunvme_adamw_tensor t[2] = {
        {8, memory, memory + 64, NULL, memory + 128, memory + 192},
        {8, memory, memory + 256, NULL, memory + 320, memory + 384},
    };
    struct request q = {.step = 1};
    struct gpunvme_ops_exec exec = {.device = TEST_DEVICE};
    struct gpunvme_adamw p = describe(&q);

    (void)state;
    p.tensors = t;
    p.ntensors = 2;
    t[1].v = NULL;
    expect_status(gpunvme_adamw(&p, &exec), GPUNVME_OPS_ERR_INVALID, "tensor 1: v is NULL");
    t[1].v = t[1].m + 4;
    expect_status(gpunvme_adamw(&p, &exec), GPUNVME_OPS_ERR_ALIAS, "tensor 1");
    t[1].v = memory + 384, t[1].master = NULL;
    expect_status(gpunvme_adamw(&p, &exec), GPUNVME_OPS_ERR_INVALID, "weight is NULL");
    t[1].count = -1;
    expect_status(gpunvme_adamw(&p, &exec), GPUNVME_OPS_ERR_SHAPE, "tensor 1");
    p.ntensors = 1, p.step = 0;
    expect_status(gpunvme_adamw(&p, &exec), GPUNVME_OPS_ERR_INVALID, "step");
    p.step = 1, p.beta2 = 1;
    expect_status(gpunvme_adamw(&p, &exec), GPUNVME_OPS_ERR_INVALID, "beta2");
    p.beta2 = 0.9f, p.stochastic = 1;
    expect_status(gpunvme_adamw(&p, &exec), GPUNVME_OPS_ERR_DTYPE, "bf16");
    p.stochastic = 0, p.tensors = NULL;
    expect_status(gpunvme_adamw(&p, &exec), GPUNVME_OPS_ERR_INVALID, "tensors");
}

struct norm_request {
    int dtype;
    float max_norm;
    bool infinite, none;
};

static void test_norm(const char *variant, void *arg)
{
    static const int64_t sizes[] = {3, 16384, 40001, 0, 16392};
    const struct norm_request *q = arg;
    struct gpunvme_grad_tensor list[5];
    struct mat x[5], norm = mat_new(1, 1, 0, 1, 0), scale = mat_new(1, 1, 0, 1, 0);
    struct device_set set = {0};
    struct gpunvme_grad_norm p = {
        .tensors = list, .ntensors = q->none ? 0 : 5, .max_norm = q->max_norm, .dtype = q->dtype};
    double sum = 0, wanted;

    for (int k = 0; k < 5; k++) {
        x[k] = mat_new(1, sizes[k], 0, 1, q->dtype);
        mat_random(&x[k], &rng);
        if (q->infinite && k == 2)
            cpu_store(x[k].block, 20000, q->dtype, INFINITY);
        for (int64_t i = 0; i < sizes[k] && !q->none; i++)
            sum += mat_get(&x[k], 0, 0, i) * mat_get(&x[k], 0, 0, i);
        list[k] = (struct gpunvme_grad_tensor){sizes[k], set_in_mat(&set, &x[k], false)};
    }
    mat_poison(&norm);
    mat_poison(&scale);
    p.norm = set_in_mat(&set, &norm, true);
    p.scale = q->max_norm > 0 ? set_in_mat(&set, &scale, true) : NULL;
    call_op(gpunvme_grad_norm, &p, variant, 2);
    set_out(&set);
    if (q->infinite)
        assert_true(isinf(mat_get(&norm, 0, 0, 0)));
    else
        expect_close(mat_get(&norm, 0, 0, 0), sqrt(sum), 1e-5 * sqrt(sum), "%s: norm", variant);
    wanted = fmin(1, (double)q->max_norm / (sqrt(sum) + 1e-6));
    if (q->max_norm > 0)
        expect_close(mat_get(&scale, 0, 0, 0), wanted, 1e-5 * wanted, "%s: scale", variant);
    for (int k = 0; k < 5; k++)
        mat_free(&x[k]);
    mat_free(&norm);
    mat_free(&scale);
}

static void the_norm_is_right(void **state)
{
    (void)state;
    for (int dtype = 0; dtype < GPUNVME_OPS_NDTYPES; dtype++) {
        struct norm_request all[] = {{.dtype = dtype},
                                     {.dtype = dtype, .max_norm = 1},
                                     {.dtype = dtype, .max_norm = 1e6f},
                                     {.dtype = dtype, .max_norm = 1, .infinite = true},
                                     {.dtype = dtype, .max_norm = 1, .none = true}};

        for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
            for_each_variant(GPUNVME_OPS_GRAD_NORM, test_norm, &all[i]);
    }
}

/* Also with another number of threads: of 300,000 squares. */
static void test_same_norm(const char *variant, void *arg)
{
    struct mat x = mat_new(1, 300000, 0, 1, *(const int *)arg), norms[2];

    mat_random(&x, &rng);
    for (int run = 0; run < 2; run++) {
        struct device_set set = {0};
        struct gpunvme_grad_tensor tensor = {x.cols, set_in_mat(&set, &x, false)};
        struct gpunvme_grad_norm p = {.tensors = &tensor, .ntensors = 1, .dtype = x.dtype};

        norms[run] = mat_new(1, 1, 0, 1, GPUNVME_OPS_F32);
        mat_poison(&norms[run]);
        p.norm = set_in_mat(&set, &norms[run], true);
        call_op(gpunvme_grad_norm, &p, variant, run ? 3 : 1);
        set_out(&set);
    }
    assert_memory_equal(norms[0].block, norms[1].block, sizeof(float));
    mat_free(&norms[0]);
    mat_free(&norms[1]);
    mat_free(&x);
}

static void the_norm_has_the_same_bits_in_every_run(void **state)
{
    (void)state;
    for (int dtype = 0; dtype < GPUNVME_OPS_NDTYPES; dtype++)
        for_each_variant(GPUNVME_OPS_GRAD_NORM, test_same_norm, &dtype);
}

static void a_norm_without_limit_has_no_scale(void **state)
{
    static float memory[4];
    struct gpunvme_grad_norm p = {.norm = memory, .scale = memory + 1};
    struct gpunvme_ops_exec exec = {.device = TEST_DEVICE};

    (void)state;
    expect_status(gpunvme_grad_norm(&p, &exec), GPUNVME_OPS_ERR_INVALID, "max_norm");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_is_right),
        cmocka_unit_test(a_step_has_the_same_bits_in_every_run),
        cmocka_unit_test(master_or_weight_may_be_alone),
        cmocka_unit_test(lr_and_step_may_be_in_memory),
        cmocka_unit_test(nonsense_in_memory_is_refused_or_nan),
        cmocka_unit_test(stochastic_rounding_gives_a_neighbour),
        cmocka_unit_test(stochastic_rounding_is_right_on_the_average),
        cmocka_unit_test(philox_has_the_bits_of_its_authors),
        cmocka_unit_test(rounding_leaves_nan_and_infinity),
        cmocka_unit_test(lists_may_be_longer_than_a_launch),
        cmocka_unit_test(bad_tensors_are_refused),
        cmocka_unit_test(the_norm_is_right),
        cmocka_unit_test(the_norm_has_the_same_bits_in_every_run),
        cmocka_unit_test(a_norm_without_limit_has_no_scale),
    };

    if (no_gpu())
        return 77;
    rng.state = 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
