/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What `gpunvme ops bench` asks of cuBLASLt, answered by one that multiplies on the CPU
 * (fake_cublaslt.c); memory of the GPU is the CPU's.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "ops_gpu.h"

static struct ops_cublas open_it(void)
{
    struct ops_cublas cublas;

    assert_true(ops_cublas_open(&cublas));
    return cublas;
}

/* Runs the case on the set that is given, and returns how far the results are off. */
static double error_of(struct ops_cublas *cublas, struct ops_case *c, unsigned set)
{
    c->set = set;
    assert_true(ops_case_poison(c));
    assert_true(ops_cublas_run(cublas));
    assert_true(ops_case_fetch(c));
    return ops_case_error(c, &cublas->done, 0);
}

static struct ops_case made(struct ops_case c)
{
    c.device = GPUNVME_OPS_CUDA;
    c.seed = 5;
    assert_true(ops_case_make(&c));
    return c;
}

/* By the host's clock. */
double ops_gpu_time(bool (*run)(void *arg), void *arg, unsigned count, double *lead)
{
    double start = ops_now();

    *lead = 0;
    for (unsigned i = 0; i < count; i++)
        if (!run(arg))
            return -1;
    return ops_now() - start;
}

static void products_are_right(struct ops_case c)
{
    struct ops_cublas cublas = open_it();

    c = made(c);
    assert_true(ops_cublas_prepare(&cublas, &c));
    assert_true(error_of(&cublas, &c, 0) <= 1);
    assert_true(error_of(&cublas, &c, c.nsets - 1) <= 1);
    ops_cublas_choose(&cublas, &c);
    assert_true(error_of(&cublas, &c, 0) <= 1);
    ops_cublas_close(&cublas);
    ops_case_drop(&c);
}

static void every_product_activation_and_type_is_right(void **state)
{
    const struct ops_shape shapes[] = {{24, 16, 40}, {5, 13, 7}, {1, 1, 1}};

    (void)state;
    for (int op = GPUNVME_OPS_MATMUL; op <= GPUNVME_OPS_LINEAR_BACKWARD; op++)
        for (int dtype = 0; dtype < GPUNVME_OPS_NDTYPES; dtype++)
            for (int activation = 0; activation < GPUNVME_OPS_NACTS; activation++)
                for (int i = 0; i < 6; i++)
                    products_are_right((struct ops_case){.op = op,
                                                         .dtype = dtype,
                                                         .activation = activation,
                                                         .no_preact = i >= 3,
                                                         .shape = shapes[i % 3]});
}

static void fp8_is_right_by_every_scaling(void **state)
{
    const struct ops_shape shapes[] = {{24, 16, 48}, {5, 300, 640}, {1, 1, 16}};

    (void)state;
    for (int way = 0; way < OPS_FP8_WAYS; way++)
        for (int i = 0; i < 3; i++)
            products_are_right((struct ops_case){.op = GPUNVME_OPS_MATMUL,
                                                 .dtype = GPUNVME_OPS_E4M3,
                                                 .compute = way,
                                                 .shape = shapes[i]});
}

static void what_it_cannot_multiply_is_told(void **state)
{
    struct ops_case c = made((struct ops_case){
        .op = GPUNVME_OPS_MATMUL, .dtype = GPUNVME_OPS_E5M2, .shape = {16, 16, 16}});
    struct ops_cublas cublas = open_it();

    (void)state;
    assert_false(ops_cublas_prepare(&cublas, &c));
    ops_cublas_close(&cublas);
    ops_case_drop(&c);
}

static void each_run_takes_the_matrices_of_its_set(void **state)
{
    struct ops_case c = made((struct ops_case){.op = GPUNVME_OPS_LINEAR_FORWARD,
                                               .activation = GPUNVME_OPS_ACT_GELU_TANH,
                                               .shape = {8, 16, 8},
                                               .cache_nbytes = 40000});
    struct ops_cublas cublas = open_it();
    float *y;

    (void)state;
    assert_true(c.nsets > 2);
    assert_true(ops_cublas_prepare(&cublas, &c));
    assert_true(cublas.done.preact);
    assert_true(error_of(&cublas, &c, 1) <= 1);
    /* Poison of the set before is where it was. */
    c.set = 0;
    y = ops_case_at(&c, OPS_C);
    assert_true(y[0] != y[0]);
    /* And a bias that is changed in one set changes its results only. */
    memset(ops_case_at(&c, OPS_BIAS), 0x7f, sizeof(float));
    assert_false(error_of(&cublas, &c, 0) <= 1);
    assert_true(error_of(&cublas, &c, 2) <= 1);
    ops_cublas_close(&cublas);
    ops_case_drop(&c);
}

static void what_it_does_of_a_layer_is_told(void **state)
{
    struct ops_case c = made((struct ops_case){
        .op = GPUNVME_OPS_LINEAR_FORWARD, .activation = GPUNVME_OPS_ACT_GELU, .shape = {8, 16, 8}});
    struct ops_cublas cublas = open_it();

    (void)state;
    assert_true(ops_cublas_prepare(&cublas, &c));
    assert_string_equal(cublas.does, "bias, gelu by tanh, pre-activation kept");
    c.activation = GPUNVME_OPS_ACT_RELU;
    assert_true(ops_cublas_prepare(&cublas, &c));
    assert_string_equal(cublas.does, "bias and relu");
    c.activation = GPUNVME_OPS_ACT_SILU;
    assert_true(ops_cublas_prepare(&cublas, &c));
    assert_string_equal(cublas.does, "bias");
    ops_cublas_close(&cublas);
    ops_case_drop(&c);
}

static void the_library_that_is_named_is_taken_and_no_other(void **state)
{
    char *named = strdup(getenv("GPUNVME_CUBLASLT"));
    struct ops_cublas cublas = open_it();

    (void)state;
    assert_string_equal(cublas.config, "cuBLASLt 130099");
    ops_cublas_close(&cublas);
    setenv("GPUNVME_CUBLASLT", "/nowhere/libcublasLt.so", 1);
    assert_false(ops_cublas_open(&cublas));
    assert_non_null(strstr(cublas.config, "/nowhere/libcublasLt.so"));
    setenv("GPUNVME_CUBLASLT", "libm.so.6", 1);
    assert_false(ops_cublas_open(&cublas));
    assert_non_null(strstr(cublas.config, "lacks functions"));
    setenv("GPUNVME_CUBLASLT", named, 1);
    free(named);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_product_activation_and_type_is_right),
        cmocka_unit_test(fp8_is_right_by_every_scaling),
        cmocka_unit_test(what_it_cannot_multiply_is_told),
        cmocka_unit_test(each_run_takes_the_matrices_of_its_set),
        cmocka_unit_test(what_it_does_of_a_layer_is_told),
        cmocka_unit_test(the_library_that_is_named_is_taken_and_no_other),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
