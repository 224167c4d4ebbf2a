/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Rows of scores in vectors, by each set of instructions that this processor has.
 */
#include "ops/attention/cpu/cpu.h"
#include "ops_test.h"

static void for_each(void (*test)(const struct attention_rows *rows))
{
    test(&attention_plain_rows);
#if defined(__x86_64__)
    if (cpu_features() & GPUNVME_OPS_CPU_AVX2)
        test(&attention_avx2_rows);
    if (cpu_features() & GPUNVME_OPS_CPU_AVX512)
        test(&attention_avx512_rows);
#endif
}

enum { N = 4 * ATTENTION_LANES };

/* From -86 to 88 in steps of some 1e-4, against exp() in f64. */
static void exponentials(const struct attention_rows *rows)
{
    float s[N], p[N];

    for (int at = 0; at < 1800000; at += N) {
        double sum = 0;

        for (int j = 0; j < N; j++)
            s[j] = fminf(-86 + (float)(at + j) * 1e-4f, 88);
        sum = (double)rows->weigh(s, N, 0, p);
        for (int j = 0; j < N; j++) {
            double want = exp((double)s[j]);

            if (!(fabs((double)p[j] - want) <= want * 2 * 0x1p-23))
                fail_msg("exp(%.9g) is %.9g, not %.9g", (double)s[j], (double)p[j], want);
            sum -= (double)p[j];
        }
        if (s[N - 1] < 80) /* beyond that the sum is infinite */
            assert_true(fabs(sum) <= N * F32_EPS * N * (double)p[N - 1]);
    }
}

static void exponentials_are_right_to_two_ulps(void **state)
{
    (void)state;
    for_each(exponentials);
}

static void ends(const struct attention_rows *rows)
{
    const float values[] = {0,     -INFINITY, -100,  88,
                            1000,  INFINITY,  NAN,   cpu_float_of_bits(UINT32_MAX),
                            -0.0f, 1,         -86.1f};
    float s[N] = {0}, p[N];

    memcpy(s, values, sizeof(values));
    rows->weigh(s, N, 0, p);
    assert_true(p[0] == 1 && p[1] == 0 && p[2] == 0 && p[8] == 1 && p[10] == 0);
    assert_true(p[4] == p[3] && p[5] == p[3] && isfinite(p[3])); /* no more than exp(88) */
    assert_true(isnan(p[6]) && isnan(p[7]));
    for (int j = 0; j < N; j++)
        s[j] = -INFINITY;
    assert_true(rows->weigh(s, N, 0, p) == 0);
}

static void infinities_are_0_and_nans_stay(void **state)
{
    (void)state;
    for_each(ends);
}

static void largest(const struct attention_rows *rows)
{
    float s[N];

    for (int at = 0; at < N; at++) {
        for (int j = 0; j < N; j++)
            s[j] = j == at ? -1 : -INFINITY;
        assert_true(rows->largest(s, N, -INFINITY) == -1);
        assert_true(rows->largest(s, N, 3) == 3);
    }
}

static void the_largest_score_is_found_wherever_it_is(void **state)
{
    (void)state;
    for_each(largest);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exponentials_are_right_to_two_ulps),
        cmocka_unit_test(infinities_are_0_and_nans_stay),
        cmocka_unit_test(the_largest_score_is_found_wherever_it_is),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
