/* SPDX-License-Identifier: BSD-3-Clause
 *
 * SwiGLU, forward and backward, every variant that this machine has, against f64.
 */
#include "rows_test.h"

static struct base_random rng;

struct request {
    int64_t rows, cols;
    int dtype;
    bool aligned, in_place;
};

enum { GRAD_Y, GATE, UP, Y, GRAD_GATE, GRAD_UP, NMATS };

static void make(const struct request *q, struct mat m[NMATS])
{
    for (int i = 0; i < NMATS; i++) {
        m[i] = mat_new(q->rows, q->cols, q->aligned ? 8 : i % 3, 1, q->dtype);
        if (i < Y)
            mat_random(&m[i], &rng);
        else
            mat_poison(&m[i]);
    }
    /* Gates of both signs, small and large. */
    for (int64_t i = 0; i < q->rows; i++)
        for (int64_t j = 0; j < q->cols; j++)
            cpu_store(m[GATE].block, mat_index(&m[GATE], 0, i, j), q->dtype,
                      (float)mat_get(&m[GATE], 0, i, j) * (j % 5 ? 3.0f : 60.0f));
}

static void drop(struct mat m[NMATS])
{
    for (int i = 0; i < NMATS; i++)
        mat_free(&m[i]);
}

/* GPUs may take fewer instructions where results have 16 bits: src/ops/cuda/element.cuh. */
static double error_of(const struct request *q, double size)
{
    bool fast = TEST_DEVICE == GPUNVME_OPS_CUDA && q->dtype != GPUNVME_OPS_F32;

    return size * (fast ? 0x1p-17 : 0x1p-20);
}

static void test_forward(const char *variant, void *arg)
{
    const struct request *q = arg;
    struct device_set set = {0};
    struct mat m[NMATS];
    struct gpunvme_swiglu p = {.rows = q->rows, .cols = q->cols, .dtype = q->dtype};

    make(q, m);
    p.gate = set_in_mat(&set, &m[GATE], false);
    p.up = set_in_mat(&set, &m[UP], false);
    p.y = set_in_mat(&set, &m[Y], true);
    p.ld_gate = m[GATE].ld;
    p.ld_up = m[UP].ld;
    p.ldy = m[Y].ld;
    if (takes_call(gpunvme_swiglu_forward, &p, variant)) {
        call_op(gpunvme_swiglu_forward, &p, variant, 2);
        set_out(&set);
        for (int64_t i = 0; i < q->rows; i++)
            for (int64_t j = 0; j < q->cols; j++) {
                double z = mat_get(&m[GATE], 0, i, j), up = mat_get(&m[UP], 0, i, j);
                double y = z / (1 + exp(-z)) * up;

                expect_close(mat_get(&m[Y], 0, i, j), y,
                             error_of(q, fabs(z * up)) + rounding(q->dtype, y), "%s: y", variant);
            }
        mat_expect_padding(&m[Y]);
    }
    set_out(&set);
    drop(m);
}

static void test_backward(const char *variant, void *arg)
{
    const struct request *q = arg;
    struct device_set set = {0};
    struct mat m[NMATS], gate, up;
    struct mat *grad_gate = q->in_place ? &m[GATE] : &m[GRAD_GATE];
    struct mat *grad_up = q->in_place ? &m[UP] : &m[GRAD_UP];
    struct gpunvme_swiglu_grad p = {.rows = q->rows, .cols = q->cols, .dtype = q->dtype};

    make(q, m);
    gate = mat_copy(&m[GATE]);
    up = mat_copy(&m[UP]);
    p.grad_y = set_in_mat(&set, &m[GRAD_Y], false);
    p.gate = set_in_mat(&set, &m[GATE], false);
    p.up = set_in_mat(&set, &m[UP], false);
    p.grad_gate = set_in_mat(&set, grad_gate, true);
    p.grad_up = set_in_mat(&set, grad_up, true);
    p.ld_grad_y = m[GRAD_Y].ld;
    p.ld_gate = m[GATE].ld;
    p.ld_up = m[UP].ld;
    p.ld_grad_gate = grad_gate->ld;
    p.ld_grad_up = grad_up->ld;
    if (takes_call(gpunvme_swiglu_backward, &p, variant)) {
        call_op(gpunvme_swiglu_backward, &p, variant, 2);
        set_out(&set);
        for (int64_t i = 0; i < q->rows; i++)
            for (int64_t j = 0; j < q->cols; j++) {
                double z = mat_get(&gate, 0, i, j), u = mat_get(&up, 0, i, j);
                double g = mat_get(&m[GRAD_Y], 0, i, j), s = 1 / (1 + exp(-z));
                double of_gate = g * u * (s + z * s * (1 - s)), of_up = g * z * s;

                expect_close(mat_get(grad_gate, 0, i, j), of_gate,
                             error_of(q, fabs(g * u)) + rounding(q->dtype, of_gate),
                             "%s: grad_gate", variant);
                expect_close(mat_get(grad_up, 0, i, j), of_up,
                             error_of(q, fabs(g * z)) + rounding(q->dtype, of_up), "%s: grad_up",
                             variant);
            }
        mat_expect_padding(grad_gate);
        mat_expect_padding(grad_up);
    }
    set_out(&set);
    mat_free(&gate);
    mat_free(&up);
    drop(m);
}

struct same {
    int op, dtype;
};

/* Also with another number of threads. */
static void test_same_bits(const char *variant, void *arg)
{
    const struct same *same = arg;
    struct request q = {.rows = 90, .cols = 264, .dtype = same->dtype, .aligned = true};
    struct mat m[NMATS], again[NMATS];

    make(&q, m);
    for (int i = 0; i < NMATS; i++)
        again[i] = mat_copy(&m[i]);
    for (int run = 0; run < 2; run++) {
        struct mat *x = run ? again : m;
        struct device_set set = {0};
        struct gpunvme_swiglu p = {.rows = q.rows,
                                   .cols = q.cols,
                                   .dtype = q.dtype,
                                   .gate = set_in_mat(&set, &x[GATE], false),
                                   .up = set_in_mat(&set, &x[UP], false),
                                   .y = set_in_mat(&set, &x[Y], true),
                                   .ld_gate = x[GATE].ld,
                                   .ld_up = x[UP].ld,
                                   .ldy = x[Y].ld};
        struct gpunvme_swiglu_grad g = {.rows = q.rows,
                                        .cols = q.cols,
                                        .dtype = q.dtype,
                                        .grad_y = set_in_mat(&set, &x[GRAD_Y], false),
                                        .gate = p.gate,
                                        .up = p.up,
                                        .grad_gate = set_in_mat(&set, &x[GRAD_GATE], true),
                                        .grad_up = set_in_mat(&set, &x[GRAD_UP], true),
                                        .ld_grad_y = x[GRAD_Y].ld,
                                        .ld_gate = p.ld_gate,
                                        .ld_up = p.ld_up,
                                        .ld_grad_gate = x[GRAD_GATE].ld,
                                        .ld_grad_up = x[GRAD_UP].ld};

        if (same->op == GPUNVME_OPS_SWIGLU_FORWARD)
            call_op(gpunvme_swiglu_forward, &p, variant, run ? 3 : 1);
        else
            call_op(gpunvme_swiglu_backward, &g, variant, run ? 3 : 1);
        set_out(&set);
    }
    for (int i = Y; i < NMATS; i++)
        assert_memory_equal(m[i].block, again[i].block, m[i].nbytes);
    drop(m);
    drop(again);
}

static void results_have_the_same_bits_in_every_run(void **state)
{
    struct same same;

    (void)state;
    for (same.dtype = 0; same.dtype < GPUNVME_OPS_NDTYPES; same.dtype++)
        for (same.op = GPUNVME_OPS_SWIGLU_FORWARD; same.op <= GPUNVME_OPS_SWIGLU_BACKWARD;
             same.op++)
            for_each_variant(same.op, test_same_bits, &same);
}

static const int64_t shapes[][2] = {{1, 1}, {7, 31}, {3, 1025}, {9, 64}, {5, 1032}, {0, 8}};
#define NSHAPES (sizeof(shapes) / sizeof(shapes[0]))

static void for_all(int op, void (*test)(const char *variant, void *arg), bool in_place)
{
    for (int dtype = 0; dtype < GPUNVME_OPS_NDTYPES; dtype++)
        for (size_t i = 0; i < NSHAPES; i++) {
            struct request q = {shapes[i][0], shapes[i][1], dtype, shapes[i][1] % 8 == 0, in_place};

            for_each_variant(op, test, &q);
        }
}

static void forward_is_right(void **state)
{
    (void)state;
    for_all(GPUNVME_OPS_SWIGLU_FORWARD, test_forward, false);
}

static void backward_is_right(void **state)
{
    (void)state;
    for_all(GPUNVME_OPS_SWIGLU_BACKWARD, test_backward, false);
}

static void gradients_may_replace_what_they_are_of(void **state)
{
    (void)state;
    for_all(GPUNVME_OPS_SWIGLU_BACKWARD, test_backward, true);
}

static void bad_arguments_are_refused(void **state)
{
    static float memory[512];
    struct gpunvme_ops_exec exec = {.device = TEST_DEVICE};
    struct gpunvme_swiglu p = {.rows = 4,
                               .cols = 8,
                               .gate = memory,
                               .up = memory + 64,
                               .y = memory,
                               .ld_gate = 8,
                               .ld_up = 8,
                               .ldy = 8};

    (void)state;
    expect_status(gpunvme_swiglu_forward(&p, &exec), GPUNVME_OPS_ERR_ALIAS, "y and gate");
    p.y = memory + 128, p.up = NULL;
    expect_status(gpunvme_swiglu_forward(&p, &exec), GPUNVME_OPS_ERR_INVALID, "up is NULL");
    p.cols = -1;
    expect_status(gpunvme_swiglu_forward(&p, &exec), GPUNVME_OPS_ERR_SHAPE, "cols");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forward_is_right),
        cmocka_unit_test(backward_is_right),
        cmocka_unit_test(gradients_may_replace_what_they_are_of),
        cmocka_unit_test(results_have_the_same_bits_in_every_run),
        cmocka_unit_test(bad_arguments_are_refused),
    };

    if (no_gpu())
        return 77;
    rng.state = 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
