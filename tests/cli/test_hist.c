/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The histogram of latencies, against values that are known exactly.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>

#include "hist.h"

static struct cli_hist *fresh(void **state)
{
    struct cli_hist *hist = *state;

    *hist = (struct cli_hist){0};
    return hist;
}

static int setup(void **state)
{
    *state = calloc(1, sizeof(struct cli_hist));
    return !*state;
}

static int teardown(void **state)
{
    free(*state);
    return 0;
}

static void an_empty_histogram_has_only_zeroes(void **state)
{
    struct cli_hist *h = fresh(state);

    assert_int_equal(cli_hist_at(h, 0.5), 0);
    assert_int_equal(cli_hist_at(h, 1), 0);
}

static void one_value_is_every_percentile(void **state)
{
    struct cli_hist *h = fresh(state);

    cli_hist_add(h, 123456789);
    assert_int_equal(cli_hist_at(h, 0), 123456789);
    assert_int_equal(cli_hist_at(h, 0.5), 123456789);
    assert_int_equal(cli_hist_at(h, 1), 123456789);
}

static void small_values_are_exact(void **state)
{
    struct cli_hist *h = fresh(state);

    for (uint64_t i = 1; i <= 100; i++)
        cli_hist_add(h, i);
    assert_int_equal(cli_hist_at(h, 0.5), 50);
    assert_int_equal(cli_hist_at(h, 0.9), 90);
    assert_int_equal(cli_hist_at(h, 0.99), 99);
    assert_int_equal(cli_hist_at(h, 1), 100);
}

/* A percentile is never below the true one, and at most 1/64 above it, over all magnitudes. */
static void every_magnitude_is_told_to_a_64th(void **state)
{
    for (unsigned shift = 0; shift < 64; shift++) {
        struct cli_hist *h = fresh(state);
        uint64_t value = (UINT64_C(1) << shift) + (UINT64_C(1) << shift) / 3, told;

        cli_hist_add(h, value);
        cli_hist_add(h, UINT64_MAX); /* so that the largest does not cut it off */
        told = cli_hist_at(h, 0.5);
        assert_true(told >= value);
        assert_true(told - value <= value / 64);
    }
}

static void the_ends_of_the_range_have_buckets(void **state)
{
    struct cli_hist *h = fresh(state);

    cli_hist_add(h, 0);
    cli_hist_add(h, UINT64_MAX);
    assert_int_equal(cli_hist_at(h, 0.5), 0);
    assert_true(cli_hist_at(h, 1) == UINT64_MAX);
    assert_true(h->min == 0 && h->max == UINT64_MAX);
}

static void neighbouring_buckets_do_not_overlap(void **state)
{
    for (uint64_t value = 1; value < 5000; value++) {
        struct cli_hist *h = fresh(state);

        cli_hist_add(h, value);
        cli_hist_add(h, value * 2);
        assert_true(cli_hist_at(h, 0.5) < value * 2);
        assert_true(cli_hist_at(h, 0.5) >= value);
    }
}

static void a_merge_is_the_same_as_adding_to_one(void **state)
{
    struct cli_hist *all = fresh(state), *parts = calloc(2, sizeof(*parts));

    assert_non_null(parts);
    for (uint64_t i = 0; i < 1000; i++) {
        uint64_t value = i * i * 37 + 5;

        cli_hist_add(all, value);
        cli_hist_add(&parts[i % 2], value);
    }
    cli_hist_merge(&parts[0], &parts[1]);
    assert_memory_equal(&parts[0], all, sizeof(*all));
    free(parts);
}

static void a_merge_with_nothing_changes_nothing(void **state)
{
    struct cli_hist *h = fresh(state), *empty = calloc(1, sizeof(*empty));

    assert_non_null(empty);
    cli_hist_add(h, 7);
    cli_hist_merge(h, empty);
    assert_int_equal(h->min, 7);
    cli_hist_merge(empty, h);
    assert_int_equal(empty->min, 7);
    assert_int_equal(empty->count, 1);
    free(empty);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_empty_histogram_has_only_zeroes),
        cmocka_unit_test(one_value_is_every_percentile),
        cmocka_unit_test(small_values_are_exact),
        cmocka_unit_test(every_magnitude_is_told_to_a_64th),
        cmocka_unit_test(the_ends_of_the_range_have_buckets),
        cmocka_unit_test(neighbouring_buckets_do_not_overlap),
        cmocka_unit_test(a_merge_is_the_same_as_adding_to_one),
        cmocka_unit_test(a_merge_with_nothing_changes_nothing),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
