/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What `gpunvme ops` takes for right: results that were spoiled in one place must not pass.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>

#include "ops.h"

static struct ops_case the_case(int op)
{
    struct ops_case c = {.op = op,
                         .activation = GPUNVME_OPS_ACT_GELU,
                         .shape = {19, 23, 17},
                         .heads = {2, 4, 2, 5, true},
                         .kind = GPUNVME_NORM_LAYER,
                         .threads = 1,
                         .seed = 3};

    if (op == GPUNVME_OPS_KV_APPEND) /* all of the cache is written */
        c.shape.m = c.shape.n = 25;
    assert_true(ops_case_make(&c));
    assert_true(ops_case_poison(&c));
    assert_int_equal(ops_case_run(&c, "naive"), GPUNVME_OPS_OK);
    return c;
}

static double error_of(const struct ops_case *c, int64_t lines)
{
    struct ops_done done = ops_case_does(c);

    return ops_case_error(c, &done, lines);
}

static void right_results_pass(void **state)
{
    (void)state;
    for (int op = 0; op < GPUNVME_OPS_NOPS; op++) {
        struct ops_case c = the_case(op);

        assert_true(error_of(&c, 0) <= 1);
        assert_true(error_of(&c, 5) <= 1);
        ops_case_drop(&c);
    }
}

/* In each result: the first element, the last, and one between. */
static void spoil(int op, const int *results, int nresults, float value)
{
    for (int i = 0; i < nresults; i++) {
        struct ops_case c = the_case(op);
        float *result = c.host[results[i]];
        size_t n = c.nbytes[results[i]] / sizeof(*result);
        size_t places[] = {0, n / 2, n - 1};

        for (int place = 0; place < 3; place++) {
            float before = result[places[place]];

            result[places[place]] = value;
            assert_false(error_of(&c, 0) <= 1);
            result[places[place]] = before;
        }
        ops_case_drop(&c);
    }
}

static void spoil_all(float value)
{
    const int product[] = {OPS_C}, forward[] = {OPS_C, OPS_PREACT};
    const int attention[] = {OPS_C, OPS_LSE};
    const int append[] = {OPS_PAGES_K, OPS_PAGES_V};
    const int attention_backward[] = {OPS_C, OPS_GRAD_K, OPS_GRAD_V};
    const int backward[] = {OPS_C, OPS_GRAD_WEIGHT, OPS_GRAD_BIAS};
    const int norm[] = {OPS_C, OPS_PREACT, OPS_LSE};
    const int entropy[] = {OPS_C, OPS_BIAS, OPS_LSE};
    const int of_weight[] = {OPS_GRAD_WEIGHT}, swiglu[] = {OPS_C, OPS_GRAD_K};
    const int moe_backward[] = {OPS_C, OPS_GRAD_BIAS, OPS_GRAD_WEIGHT, OPS_GRAD_K, OPS_GRAD_V};
    const int adamw[] = {OPS_B, OPS_V, OPS_OUT}, grad_norm[] = {OPS_C, OPS_BIAS};

    spoil(GPUNVME_OPS_MATMUL, product, 1, value);
    spoil(GPUNVME_OPS_LINEAR_FORWARD, forward, 2, value);
    spoil(GPUNVME_OPS_LINEAR_BACKWARD, backward, 3, value);
    spoil(GPUNVME_OPS_ATTENTION, attention, 2, value);
    spoil(GPUNVME_OPS_ATTENTION_BACKWARD, attention_backward, 3, value);
    spoil(GPUNVME_OPS_ATTENTION_PAGED, attention, 2, value);
    spoil(GPUNVME_OPS_KV_APPEND, append, 2, value);
    spoil(GPUNVME_OPS_NORM_FORWARD, norm, 3, value);
    spoil(GPUNVME_OPS_NORM_BACKWARD, backward, 3, value);
    spoil(GPUNVME_OPS_CROSS_ENTROPY, entropy, 3, value);
    spoil(GPUNVME_OPS_ADAMW, adamw, 3, value);
    spoil(GPUNVME_OPS_GRAD_NORM, grad_norm, 2, value);
    spoil(GPUNVME_OPS_EMBEDDING_FORWARD, product, 1, value);
    spoil(GPUNVME_OPS_EMBEDDING_BACKWARD, of_weight, 1, value);
    spoil(GPUNVME_OPS_SWIGLU_FORWARD, product, 1, value);
    spoil(GPUNVME_OPS_SWIGLU_BACKWARD, swiglu, 2, value);
    spoil(GPUNVME_OPS_ROPE, product, 1, value);
    spoil(GPUNVME_OPS_MOE_FORWARD, product, 1, value);
    spoil(GPUNVME_OPS_MOE_BACKWARD, moe_backward, 5, value);
}

static void one_nan_is_wrong_wherever_it_is(void **state)
{
    (void)state;
    spoil_all(NAN);
}

static void one_wrong_element_is_wrong_wherever_it_is(void **state)
{
    (void)state;
    spoil_all(1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(right_results_pass),
        cmocka_unit_test(one_nan_is_wrong_wherever_it_is),
        cmocka_unit_test(one_wrong_element_is_wrong_wherever_it_is),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
