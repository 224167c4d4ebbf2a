/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Softmax cross entropy and its gradient, every variant that this machine has, against f64.
 */
#include "rows_test.h"

static struct base_random rng;
static int threads = 2;

struct request {
    int64_t rows, vocab;
    int64_t pad, pad_grad;
    int dtype, reduction;
    bool ignore, in_place, no_grad, no_loss, grad_loss;
    float scale; /* of the logits; 0: 4 */
};

enum { IGNORED = -100 };

struct problem {
    struct mat logits, grad, loss, lse, grad_loss;
    int32_t *targets;
};

static struct problem make(const struct request *q)
{
    int64_t losses = q->reduction == GPUNVME_REDUCTION_NONE ? q->rows : 1;
    struct problem p = {
        mat_new(q->rows, q->vocab, q->pad, 1, q->dtype),
        mat_new(q->rows, q->vocab, q->pad_grad, 1, q->dtype),
        mat_new(1, losses, 0, 1, GPUNVME_OPS_F32),
        mat_new(1, q->rows, 0, 1, GPUNVME_OPS_F32),
        mat_new(1, losses, 0, 1, GPUNVME_OPS_F32),
        malloc((size_t)q->rows * sizeof(int32_t) + 1),
    };

    mat_random(&p.logits, &rng);
    for (int64_t i = 0; i < q->rows; i++)
        for (int64_t j = 0; j < q->vocab; j++)
            cpu_store(p.logits.block, mat_index(&p.logits, 0, i, j), q->dtype,
                      (float)mat_get(&p.logits, 0, i, j) * (q->scale > 0 ? q->scale : 4));
    mat_poison(&p.grad);
    mat_poison(&p.loss);
    mat_poison(&p.lse);
    mat_random(&p.grad_loss, &rng);
    for (int64_t i = 0; i < q->rows; i++)
        p.targets[i] = q->ignore && i % 3 == 1
                           ? IGNORED
                           : (int32_t)(base_random_real(&rng) * (double)q->vocab);
    /* The ends of a row are targets, too. */
    if (q->rows > 3)
        p.targets[0] = 0, p.targets[3] = (int32_t)q->vocab - 1;
    return p;
}

static void drop(struct problem *p)
{
    mat_free(&p->logits);
    mat_free(&p->grad);
    mat_free(&p->loss);
    mat_free(&p->lse);
    mat_free(&p->grad_loss);
    free(p->targets);
}

static bool run(const char *variant, const struct request *q, struct problem *x)
{
    struct device_set set = {0};
    struct mat *grad = q->in_place ? &x->logits : &x->grad;
    struct gpunvme_cross_entropy p = {
        .rows = q->rows,
        .vocab = q->vocab,
        .logits = set_in_mat(&set, &x->logits, false),
        .targets = set_in(&set, x->targets, (size_t)q->rows * sizeof(int32_t), false),
        .grad_loss = q->grad_loss ? set_in_mat(&set, &x->grad_loss, false) : NULL,
        .loss = q->no_loss ? NULL : set_in_mat(&set, &x->loss, true),
        .lse = set_in_mat(&set, &x->lse, true),
        .grad = q->no_grad ? NULL : set_in_mat(&set, grad, true),
        .ld_logits = x->logits.ld,
        .ld_grad = grad->ld,
        .reduction = q->reduction,
        .dtype = q->dtype,
        .ignore = q->ignore,
        .ignore_index = IGNORED,
    };
    bool takes = takes_call(gpunvme_cross_entropy, &p, variant);

    if (takes)
        call_op(gpunvme_cross_entropy, &p, variant, threads);
    set_out(&set);
    return takes;
}

static double lse_of(const struct mat *logits, int64_t i)
{
    double most = -INFINITY, sum = 0;

    for (int64_t j = 0; j < logits->cols; j++)
        most = fmax(most, mat_get(logits, 0, i, j));
    for (int64_t j = 0; j < logits->cols; j++)
        sum += exp(mat_get(logits, 0, i, j) - most);
    return most + log(sum);
}

/* A sum of positive numbers in f32, and exponents that are rounded. */
static double lse_error(const struct request *q, double lse)
{
    return ((double)q->vocab / 64 + 32) * F32_EPS + 4 * F32_EPS * (fabs(lse) + 8);
}

static void expect_grad(const char *variant, const struct request *q, const struct problem *before,
                        const struct problem *after, int64_t i, double scale)
{
    bool ignored = q->ignore && before->targets[i] == IGNORED;
    double lse = lse_of(&before->logits, i), share = 4 * lse_error(q, lse);

    for (int64_t j = 0; j < q->vocab; j++) {
        double p = exp(mat_get(&before->logits, 0, i, j) - lse);
        double wanted = ignored ? 0 : (p - (j == before->targets[i])) * scale;

        expect_close(mat_get(q->in_place ? &after->logits : &after->grad, 0, i, j), wanted,
                     ignored ? 0
                             : share * (p + (j == before->targets[i])) * fabs(scale) +
                                   rounding(q->dtype, wanted) + 1e-38,
                     "%s, %s, %lld x %lld: grad (%lld, %lld)", variant,
                     gpunvme_ops_dtype_name(q->dtype), (long long)q->rows, (long long)q->vocab,
                     (long long)i, (long long)j);
    }
}

static void expect_all(const char *variant, const struct request *q, const struct problem *before,
                       const struct problem *after)
{
    bool mean = q->reduction == GPUNVME_REDUCTION_MEAN,
         none = q->reduction == GPUNVME_REDUCTION_NONE;
    double total = 0, error = 0, counted = 0;

    for (int64_t i = 0; i < q->rows; i++)
        counted += !(q->ignore && before->targets[i] == IGNORED);
    for (int64_t i = 0; i < q->rows; i++) {
        bool ignored = q->ignore && before->targets[i] == IGNORED;
        double lse = lse_of(&before->logits, i), scale = mean ? 1 / counted : 1;
        double loss = ignored ? 0 : lse - mat_get(&before->logits, 0, i, before->targets[i]);

        expect_close(mat_get(&after->lse, 0, 0, i), lse, lse_error(q, lse), "%s: lse", variant);
        if (none && !q->no_loss)
            expect_close(mat_get(&after->loss, 0, 0, i), loss, ignored ? 0 : 2 * lse_error(q, lse),
                         "%s: loss", variant);
        if (q->grad_loss)
            scale *= mat_get(&before->grad_loss, 0, 0, none ? i : 0);
        if (!q->no_grad)
            expect_grad(variant, q, before, after, i, scale);
        total += mean ? loss / counted : loss;
        error +=
            (2 * lse_error(q, lse) + (double)q->rows * F32_EPS * fabs(loss)) / (mean ? counted : 1);
    }
    if (!none && !q->no_loss)
        expect_close(mat_get(&after->loss, 0, 0, 0), total, error + fabs(total) * F32_EPS * 4,
                     "%s, %lld rows: loss", variant, (long long)q->rows);
}

static void test(const char *variant, void *arg)
{
    const struct request *q = arg;
    struct problem x = make(q), before = x;

    before.logits = mat_copy(&x.logits);
    if (run(variant, q, &x)) {
        expect_all(variant, q, &before, &x);
        mat_expect_padding(&x.logits);
        if (!q->in_place && !q->no_grad)
            mat_expect_padding(&x.grad);
    }
    mat_free(&before.logits);
    drop(&x);
}

static void check(struct request q)
{
    for_each_variant(GPUNVME_OPS_CROSS_ENTROPY, test, &q);
}

/* Less than a word, odd rows (which begin anywhere in a word), several blocks of a cluster. */
static const int64_t shapes[][2] = {{1, 1}, {5, 7}, {4, 130}, {7, 1003}, {3, 9001}, {2, 40007}};
#define NSHAPES (sizeof(shapes) / sizeof(shapes[0]))

static void loss_and_gradient_are_right(void **state)
{
    (void)state;
    for (int dtype = 0; dtype < GPUNVME_OPS_NDTYPES; dtype++)
        for (int reduction = 0; reduction < GPUNVME_NREDUCTIONS; reduction++)
            for (size_t i = 0; i < NSHAPES - (reduction ? 2 : 0); i++)
                check((struct request){.rows = shapes[i][0],
                                       .vocab = shapes[i][1],
                                       .dtype = dtype,
                                       .reduction = reduction,
                                       .ignore = i % 2,
                                       .grad_loss = reduction == 2 || i % 2});
}

/* A large vocabulary in as many rows as blocks of a cluster share: all of a cluster's sizes. */
static void rows_of_every_length_are_right(void **state)
{
    static const int64_t vocabs[] = {8192, 20000, 50257};

    (void)state;
    for (size_t i = 0; i < 3; i++)
        check((struct request){.rows = 2, .vocab = vocabs[i], .dtype = i % 3, .pad = i % 2});
}

static void a_vocabulary_of_256_k_is_right(void **state)
{
    (void)state;
    check((struct request){.rows = 4, .vocab = 262144});
    check((struct request){.rows = 4, .vocab = 262144, .pad = 8, .dtype = GPUNVME_OPS_BF16});
    check((struct request){
        .rows = 4, .vocab = 262143, .pad = 2, .dtype = GPUNVME_OPS_F16, .in_place = true});
}

static void the_gradient_may_replace_the_logits(void **state)
{
    (void)state;
    for (int dtype = 0; dtype < GPUNVME_OPS_NDTYPES; dtype++)
        for (int odd = 0; odd < 2; odd++)
            check((struct request){.rows = 6,
                                   .vocab = odd ? 2049 : 2048,
                                   .pad = odd ? 3 : 8,
                                   .dtype = dtype,
                                   .ignore = true,
                                   .in_place = true});
}

static void rows_of_logits_and_gradient_may_begin_differently(void **state)
{
    (void)state;
    check((struct request){.rows = 5, .vocab = 300, .pad = 1, .pad_grad = 4});
    check((struct request){
        .rows = 5, .vocab = 300, .pad = 8, .pad_grad = 3, .dtype = GPUNVME_OPS_BF16});
}

static void loss_and_gradient_are_optional(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++)
        check((struct request){.rows = 5,
                               .vocab = 333,
                               .no_grad = i & 1,
                               .no_loss = i & 2,
                               .reduction = i % GPUNVME_NREDUCTIONS});
}

static void large_logits_do_not_overflow(void **state)
{
    (void)state;
    check((struct request){.rows = 3, .vocab = 1000, .scale = 1000});
    check((struct request){.rows = 3, .vocab = 1000, .scale = 30000, .dtype = GPUNVME_OPS_F16});
}

static void test_infinities(const char *variant, void *arg)
{
    struct request q = {.rows = 2, .vocab = 1024, .reduction = GPUNVME_REDUCTION_NONE};
    struct problem x = make(&q);
    float *logits = x.logits.block;

    (void)arg;
    /* What is masked has no weight: also where a thread has nothing else. */
    for (int64_t j = 0; j < 1000; j++)
        logits[j] = -INFINITY;
    x.targets[0] = 1001;
    logits[x.logits.ld + 5] = NAN;
    if (run(variant, &q, &x)) {
        assert_true(isfinite(mat_get(&x.loss, 0, 0, 0)) && isnan(mat_get(&x.loss, 0, 0, 1)));
        for (int64_t j = 0; j < 1024; j++) {
            assert_true(j < 1000 ? mat_get(&x.grad, 0, 0, j) == 0
                                 : isfinite(mat_get(&x.grad, 0, 0, j)));
            assert_true(isnan(mat_get(&x.grad, 0, 1, j)));
        }
    }
    drop(&x);
}

static void masked_logits_have_no_weight_and_a_nan_stays_in_its_row(void **state)
{
    (void)state;
    for_each_variant(GPUNVME_OPS_CROSS_ENTROPY, test_infinities, NULL);
}

static void test_nothing_counts(const char *variant, void *arg)
{
    struct request q = {.rows = 3, .vocab = 64, .ignore = true};
    struct problem x = make(&q);

    (void)arg;
    for (int i = 0; i < 3; i++)
        x.targets[i] = IGNORED;
    assert_true(run(variant, &q, &x));
    assert_true(isnan(mat_get(&x.loss, 0, 0, 0)));
    for (int64_t i = 0; i < 3; i++)
        for (int64_t j = 0; j < 64; j++)
            assert_true(mat_get(&x.grad, 0, i, j) == 0);
    drop(&x);
}

static void the_mean_of_no_rows_is_nan_and_its_gradient_zero(void **state)
{
    (void)state;
    for_each_variant(GPUNVME_OPS_CROSS_ENTROPY, test_nothing_counts, NULL);
}

/* The CPU refuses what a GPU can only show. */
static void test_bad_target(const char *variant, void *arg)
{
    struct request q = {.rows = 3, .vocab = 64, .reduction = GPUNVME_REDUCTION_NONE};
    struct problem x = make(&q);
    struct gpunvme_cross_entropy p = {.rows = 3,
                                      .vocab = 64,
                                      .logits = x.logits.block,
                                      .targets = x.targets,
                                      .grad = x.grad.block,
                                      .ld_logits = 64,
                                      .ld_grad = 64,
                                      .reduction = GPUNVME_REDUCTION_SUM};
    struct gpunvme_ops_exec exec = {.variant = "naive"};

    (void)arg;
    x.targets[1] = 64;
    if (TEST_DEVICE == GPUNVME_OPS_CPU) {
        expect_status(gpunvme_cross_entropy(&p, &exec), GPUNVME_OPS_ERR_INVALID, "targets[1]");
        mat_expect_padding(&x.grad);
    } else if (run(variant, &q, &x)) {
        assert_true(isnan(mat_get(&x.loss, 0, 0, 1)) && isnan(mat_get(&x.grad, 0, 1, 0)));
        assert_true(isfinite(mat_get(&x.loss, 0, 0, 2)) && isfinite(mat_get(&x.grad, 0, 2, 0)));
    }
    drop(&x);
}

static void a_target_beyond_the_vocabulary_does_not_pass(void **state)
{
    (void)state;
    for_each_variant(GPUNVME_OPS_CROSS_ENTROPY, test_bad_target, NULL);
}

static void test_same_bits(const char *variant, void *arg)
{
    struct request q = {.rows = 70, .vocab = 520, .dtype = *(const int *)arg};
    struct problem x = make(&q), again = x;

    again.loss = mat_copy(&x.loss);
    again.lse = mat_copy(&x.lse);
    again.grad = mat_copy(&x.grad);
    threads = 1;
    assert_true(run(variant, &q, &x));
    threads = 3;
    assert_true(run(variant, &q, &again));
    threads = 2;
    assert_memory_equal(x.loss.block, again.loss.block, sizeof(float));
    assert_memory_equal(x.lse.block, again.lse.block, x.lse.nbytes);
    assert_memory_equal(x.grad.block, again.grad.block, x.grad.nbytes);
    mat_free(&again.loss);
    mat_free(&again.lse);
    mat_free(&again.grad);
    drop(&x);
}

static void loss_and_gradient_have_the_same_bits_in_every_run(void **state)
{
    (void)state;
    for (int dtype = 0; dtype < GPUNVME_OPS_NDTYPES; dtype++)
        for_each_variant(GPUNVME_OPS_CROSS_ENTROPY, test_same_bits, &dtype);
}

static void bad_arguments_are_refused(void **state)
{
    static float memory[1024];
    static int32_t targets[4];
    struct gpunvme_ops_exec exec = {.device = TEST_DEVICE};
    const struct gpunvme_cross_entropy good = {.rows = 4,
                                               .vocab = 8,
                                               .logits = memory,
                                               .targets = targets,
                                               .grad = memory + 64,
                                               .loss = memory + 512,
                                               .ld_logits = 8,
                                               .ld_grad = 8};
    struct gpunvme_cross_entropy p = good;

    (void)state;
    p.reduction = GPUNVME_NREDUCTIONS;
    expect_status(gpunvme_cross_entropy(&p, &exec), GPUNVME_OPS_ERR_INVALID, "reduction");
    p = good, p.vocab = 0;
    expect_status(gpunvme_cross_entropy(&p, &exec), GPUNVME_OPS_ERR_SHAPE, "vocab");
    p = good, p.targets = NULL;
    expect_status(gpunvme_cross_entropy(&p, &exec), GPUNVME_OPS_ERR_INVALID, "targets is NULL");
    p = good, p.grad = memory, p.ld_grad = 9;
    expect_status(gpunvme_cross_entropy(&p, &exec), GPUNVME_OPS_ERR_ALIAS, "grad and logits");
    p = good, p.loss = memory + 65;
    expect_status(gpunvme_cross_entropy(&p, &exec), GPUNVME_OPS_ERR_ALIAS, "overlap");
    p = good, p.ld_logits = 7;
    expect_status(gpunvme_cross_entropy(&p, &exec), GPUNVME_OPS_ERR_SHAPE, "logits");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loss_and_gradient_are_right),
        cmocka_unit_test(rows_of_every_length_are_right),
        cmocka_unit_test(a_vocabulary_of_256_k_is_right),
        cmocka_unit_test(the_gradient_may_replace_the_logits),
        cmocka_unit_test(rows_of_logits_and_gradient_may_begin_differently),
        cmocka_unit_test(loss_and_gradient_are_optional),
        cmocka_unit_test(large_logits_do_not_overflow),
        cmocka_unit_test(masked_logits_have_no_weight_and_a_nan_stays_in_its_row),
        cmocka_unit_test(the_mean_of_no_rows_is_nan_and_its_gradient_zero),
        cmocka_unit_test(a_target_beyond_the_vocabulary_does_not_pass),
        cmocka_unit_test(loss_and_gradient_have_the_same_bits_in_every_run),
        cmocka_unit_test(bad_arguments_are_refused),
    };

    if (no_gpu())
        return 77;
    rng.state = 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
