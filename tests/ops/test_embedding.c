/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Embedding, forward and backward, every variant that this machine has, against f64.
 */
#include "rows_test.h"

static struct base_random rng;

struct request {
    int64_t rows, vocab, dim;
    int dtype, grad_dtype;
    bool aligned, accumulate;
    int64_t frequent; /* every so many'th row has the same id; 0: none */
};

struct problem {
    struct mat weight, y, grad_y, grad_weight;
    int32_t *ids;
};

static struct problem make(const struct request *q)
{
    int64_t pad = q->aligned ? 8 : 1;
    struct problem x = {
        mat_new(q->vocab, q->dim, pad, 1, q->dtype),
        mat_new(q->rows, q->dim, pad, 1, q->dtype),
        mat_new(q->rows, q->dim, pad, 1, q->dtype),
        mat_new(q->vocab, q->dim, pad, 1, q->grad_dtype),
        malloc((size_t)q->rows * sizeof(int32_t) + 1),
    };

    mat_random(&x.weight, &rng);
    mat_poison(&x.y);
    mat_random(&x.grad_y, &rng);
    if (q->accumulate)
        mat_random(&x.grad_weight, &rng);
    else
        mat_poison(&x.grad_weight);
    for (int64_t i = 0; i < q->rows; i++)
        x.ids[i] = q->frequent && i % q->frequent
                       ? (int32_t)q->vocab - 1
                       : (int32_t)(base_random_real(&rng) * (double)q->vocab);
    return x;
}

static void drop(struct problem *x)
{
    mat_free(&x->weight);
    mat_free(&x->y);
    mat_free(&x->grad_y);
    mat_free(&x->grad_weight);
    free(x->ids);
}

static void test_forward(const char *variant, void *arg)
{
    const struct request *q = arg;
    struct device_set set = {0};
    struct problem x = make(q);
    struct gpunvme_embedding p = {
        .rows = q->rows,
        .vocab = q->vocab,
        .dim = q->dim,
        .weight = set_in_mat(&set, &x.weight, false),
        .ids = set_in(&set, x.ids, (size_t)q->rows * sizeof(int32_t), false),
        .y = set_in_mat(&set, &x.y, true),
        .ld_weight = x.weight.ld,
        .ldy = x.y.ld,
        .dtype = q->dtype,
    };

    if (takes_call(gpunvme_embedding_forward, &p, variant)) {
        call_op(gpunvme_embedding_forward, &p, variant, 2);
        set_out(&set);
        for (int64_t i = 0; i < q->rows; i++)
            for (int64_t j = 0; j < q->dim; j++)
                assert_true(mat_get(&x.y, 0, i, j) == mat_get(&x.weight, 0, x.ids[i], j));
        mat_expect_padding(&x.y);
    }
    set_out(&set);
    drop(&x);
}

/* Runs it; false: the variant does not take it. */
static bool run_backward(const char *variant, const struct request *q, struct problem *x)
{
    struct device_set set = {0};
    struct gpunvme_embedding_grad p = {
        .rows = q->rows,
        .vocab = q->vocab,
        .dim = q->dim,
        .grad_y = set_in_mat(&set, &x->grad_y, false),
        .ids = set_in(&set, x->ids, (size_t)q->rows * sizeof(int32_t), false),
        .grad_weight = set_in_mat(&set, &x->grad_weight, true),
        .ld_grad_y = x->grad_y.ld,
        .ld_grad_weight = x->grad_weight.ld,
        .dtype = q->dtype,
        .grad_dtype = q->grad_dtype,
        .accumulate = q->accumulate,
    };
    bool takes = takes_call(gpunvme_embedding_backward, &p, variant);

    if (takes)
        call_op(gpunvme_embedding_backward, &p, variant, 2);
    set_out(&set);
    return takes;
}

static void test_backward(const char *variant, void *arg)
{
    const struct request *q = arg;
    struct problem x = make(q), before = x;

    before.grad_weight = mat_copy(&x.grad_weight);
    if (run_backward(variant, q, &x)) {
        for (int64_t v = 0; v < q->vocab; v++)
            for (int64_t j = 0; j < q->dim; j++) {
                double sum = q->accumulate ? mat_get(&before.grad_weight, 0, v, j) : 0;
                double size = fabs(sum);

                for (int64_t i = 0; i < q->rows; i++)
                    if (x.ids[i] == v) {
                        sum += mat_get(&x.grad_y, 0, i, j);
                        size += fabs(mat_get(&x.grad_y, 0, i, j));
                    }
                expect_close(mat_get(&x.grad_weight, 0, v, j), sum,
                             (double)(q->rows + 2) * F32_EPS * size + rounding(q->grad_dtype, sum),
                             "%s, %s: grad (%lld, %lld)", variant, gpunvme_ops_dtype_name(q->dtype),
                             (long long)v, (long long)j);
            }
        mat_expect_padding(&x.grad_weight);
    }
    mat_free(&before.grad_weight);
    drop(&x);
}

/* One column, odd ones, several of a warp's; more ids than a block of the sort owns. */
static const int64_t shapes[][3] = {{1, 1, 1},    {40, 7, 33},    {200, 5, 8},
                                    {70, 3, 520}, {90, 1500, 16}, {0, 4, 8}};
#define NSHAPES (sizeof(shapes) / sizeof(shapes[0]))

static void for_all(int op, void (*test)(const char *variant, void *arg), bool accumulate)
{
    for (int dtype = 0; dtype < GPUNVME_OPS_NDTYPES; dtype++)
        for (size_t i = 0; i < NSHAPES; i++) {
            struct request q = {.rows = shapes[i][0],
                                .vocab = shapes[i][1],
                                .dim = shapes[i][2],
                                .dtype = dtype,
                                .grad_dtype = i % 2 ? dtype : GPUNVME_OPS_F32,
                                .aligned = shapes[i][2] % 8 == 0,
                                .accumulate = accumulate};

            for_each_variant(op, test, &q);
        }
}

static void forward_copies_rows(void **state)
{
    (void)state;
    for_all(GPUNVME_OPS_EMBEDDING_FORWARD, test_forward, false);
}

static void backward_is_right(void **state)
{
    (void)state;
    for_all(GPUNVME_OPS_EMBEDDING_BACKWARD, test_backward, false);
}

static void gradients_accumulate(void **state)
{
    (void)state;
    for_all(GPUNVME_OPS_EMBEDDING_BACKWARD, test_backward, true);
}

/* More rows than a block looks at at once, most of them with one id. */
static void frequent_ids_are_right(void **state)
{
    (void)state;
    for (int accumulate = 0; accumulate < 2; accumulate++) {
        struct request q = {.rows = 1500,
                            .vocab = 11,
                            .dim = 264,
                            .grad_dtype = GPUNVME_OPS_F32,
                            .dtype = GPUNVME_OPS_BF16,
                            .aligned = true,
                            .accumulate = accumulate,
                            .frequent = 4};

        for_each_variant(GPUNVME_OPS_EMBEDDING_BACKWARD, test_backward, &q);
    }
}

static void test_same_bits(const char *variant, void *arg)
{
    struct request q = {.rows = 600, .vocab = 9, .dim = 24, .aligned = true, .frequent = 2};
    struct problem x = make(&q), again = x;
    struct gpunvme_ops_variant v;

    (void)arg;
    if (!variant_find(GPUNVME_OPS_EMBEDDING_BACKWARD, variant, &v) || v.deterministic) {
        again.grad_weight = mat_copy(&x.grad_weight);
        assert_true(run_backward(variant, &q, &x));
        assert_true(run_backward(variant, &q, &again));
        assert_memory_equal(x.grad_weight.block, again.grad_weight.block, x.grad_weight.nbytes);
        mat_free(&again.grad_weight);
    }
    drop(&x);
}

static void gradients_have_the_same_bits_in_every_run(void **state)
{
    (void)state;
    for_each_variant(GPUNVME_OPS_EMBEDDING_BACKWARD, test_same_bits, NULL);
}

/* The CPU refuses what a GPU can only show, or leave out. */
static void test_bad_id(const char *variant, void *arg)
{
    struct request q = {.rows = 3, .vocab = 4, .dim = 8, .aligned = true};
    struct device_set set = {0};
    struct problem x = make(&q);
    struct gpunvme_ops_exec exec = {.device = TEST_DEVICE, .variant = variant};
    struct gpunvme_embedding p = {.rows = 3,
                                  .vocab = 4,
                                  .dim = 8,
                                  .weight = set_in_mat(&set, &x.weight, false),
                                  .y = set_in_mat(&set, &x.y, true),
                                  .ld_weight = x.weight.ld,
                                  .ldy = x.y.ld};

    (void)arg;
    x.ids[1] = -1;
    p.ids = set_in(&set, x.ids, 3 * sizeof(int32_t), false);
    if (TEST_DEVICE == GPUNVME_OPS_CPU) {
        expect_status(gpunvme_embedding_forward(&p, &exec), GPUNVME_OPS_ERR_INVALID, "ids[1]");
    } else {
        expect_ok(gpunvme_embedding_forward(&p, &exec));
        set_out(&set);
        for (int64_t j = 0; j < 8; j++)
            assert_true(isnan(mat_get(&x.y, 0, 1, j)) && !isnan(mat_get(&x.y, 0, 2, j)));
    }
    set_out(&set);
    drop(&x);
}

static void an_id_beyond_the_table_does_not_pass(void **state)
{
    (void)state;
    for_each_variant(GPUNVME_OPS_EMBEDDING_FORWARD, test_bad_id, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forward_copies_rows),
        cmocka_unit_test(backward_is_right),
        cmocka_unit_test(gradients_accumulate),
        cmocka_unit_test(frequent_ids_are_right),
        cmocka_unit_test(gradients_have_the_same_bits_in_every_run),
        cmocka_unit_test(an_id_beyond_the_table_does_not_pass),
    };

    if (no_gpu())
        return 77;
    rng.state = 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
