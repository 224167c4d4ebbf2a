/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The derivatives of activations for matrices of 16 bits (ops/cuda/element.cuh): every value of f16
 * and bf16 against f64.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

extern "C" {
#include <cmocka.h>
}

#include "ops/cuda/element.cuh"

/* s (1 - s) for s = 1 / (1 + exp(-x)) */
static double bump(double x)
{
    double e = exp(-fabs(x));

    return e / ((1 + e) * (1 + e));
}

static double slope(int activation, double z)
{
    double u = sqrt(2 / M_PI) * (z + 0.044715 * z * z * z);
    double du = sqrt(2 / M_PI) * (1 + 3 * 0.044715 * z * z);

    if (fabs(z) > 1000)
        return z > 0;
    switch (activation) {
    case GPUNVME_OPS_ACT_GELU:
        return 0.5 * erfc(-z / sqrt(2)) + z * exp(-0.5 * z * z) / sqrt(2 * M_PI);
    case GPUNVME_OPS_ACT_GELU_TANH:
        return 1 / (1 + exp(-2 * u)) + 2 * z * du * bump(2 * u);
    default:
        return 1 / (1 + exp(-z)) + z * bump(z);
    }
}

static void expect_slopes(int activation, double error, double share)
{
    for (int dtype = GPUNVME_OPS_F16; dtype <= GPUNVME_OPS_BF16; dtype++)
        for (unsigned bits = 0; bits < 65536; bits++) {
            float z = from_bits((uint16_t)bits, dtype);
            double got = fast_activate_grad(activation, z), wanted;

            if (isnan(z)) {
                assert_true(isnan(got));
                continue;
            }
            wanted = slope(activation, z);
            if (!(fabs(got - wanted) <= error) ||
                (z > -5 && z < -2 && !(fabs(got - wanted) <= share * fabs(wanted))))
                fail_msg("activation %d, dtype %d: %.9g at %.9g, not %.9g", activation, dtype, got,
                         (double)z, wanted);
        }
}

static void slopes_are_as_near_as_they_say(void **state)
{
    (void)state;
    expect_slopes(GPUNVME_OPS_ACT_GELU, 1.03e-5, 7e-4);
    expect_slopes(GPUNVME_OPS_ACT_GELU_TANH, 2e-6, 1e-5);
    expect_slopes(GPUNVME_OPS_ACT_SILU, 1e-6, 1e-5);
}

/* Two elements share a reciprocal: what one is must not show in the other. */
template <int ACTIVATION> static void expect_neighbour_unharmed(float harm)
{
    for (int place = 0; place < 2; place++) {
        float alone[2] = {1.5f, 1.5f}, pair[2] = {harm, harm};

        pair[place] = 1.5f;
        activate_pair<ACTIVATION>(alone);
        activate_pair<ACTIVATION>(pair);
        assert_true(fabsf(pair[place] - alone[place]) <= 1e-6f);
        assert_true(isnan(harm) ? isnan(pair[1 - place]) : !isnan(pair[1 - place]));
    }
}

static void a_nan_stays_where_it_is(void **state)
{
    const float harms[] = {NAN, -NAN, INFINITY, -INFINITY, 3e38f, -3e38f};

    (void)state;
    for (float harm : harms) {
        expect_neighbour_unharmed<GPUNVME_OPS_ACT_RELU>(harm);
        expect_neighbour_unharmed<GPUNVME_OPS_ACT_GELU>(harm);
        expect_neighbour_unharmed<GPUNVME_OPS_ACT_GELU_TANH>(harm);
        expect_neighbour_unharmed<GPUNVME_OPS_ACT_SILU>(harm);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slopes_are_as_near_as_they_say),
        cmocka_unit_test(a_nan_stays_where_it_is),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
