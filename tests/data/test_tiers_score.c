/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Scores of files: they decay, their order stays, thresholds mean what they say, and a clock that
 * is set wrong does no harm.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/random.h"
#include "data/tiers/score.h"

#define HOUR  3600.0
#define WEEK  (168 * HOUR)
#define YEAR  (8766 * HOUR)
#define NOW_S (56 * YEAR) /* since 1970 */
#define HOT   100.0
#define WARM  10.0

static void near(double value, double expected, double relative)
{
    if (!(fabs(value - expected) <= relative * fabs(expected)))
        fail_msg("%.17g is not near %.17g", value, expected);
}

static double score_after(double score, double age_s, double half_life_s)
{
    return tiers_score_of_rank(tiers_rank_of_score(score, NOW_S, half_life_s), NOW_S + age_s,
                               half_life_s);
}

/* The tier by the default thresholds, 0 being the hot one. */
static int tier_of(double rank, double t_s, double half_life_s)
{
    if (rank >= tiers_rank_of_threshold(HOT, t_s, half_life_s))
        return 0;
    return rank >= tiers_rank_of_threshold(WARM, t_s, half_life_s) ? 1 : 2;
}

/* `n` accesses one by one, which begin at start_s and take length_s together. */
static double access_evenly(double rank, unsigned n, double start_s, double length_s, double h)
{
    for (unsigned i = 0; i < n; i++)
        rank = tiers_rank_add(rank, 1, start_s + i * (length_s / n), h);
    return rank;
}

static void a_score_halves_after_each_half_life(void **state)
{
    (void)state;
    near(score_after(64, 0, WEEK), 64, 1e-9);
    near(score_after(64, WEEK, WEEK), 32, 1e-9);
    near(score_after(64, 6 * WEEK, WEEK), 1, 1e-9);
    near(score_after(64, WEEK / 2, WEEK), 64 * sqrt(0.5), 1e-9);
}

static void scores_stay_without_decay(void **state)
{
    (void)state;
    near(score_after(64, 50 * YEAR, INFINITY), 64, 1e-12);
}

static void an_access_counts_one_in_the_score(void **state)
{
    double rank = -INFINITY;

    (void)state;
    for (unsigned i = 1; i <= 1000; i++) {
        rank = tiers_rank_add(rank, 1, NOW_S, WEEK);
        near(tiers_score_of_rank(rank, NOW_S, WEEK), i, 1e-9);
    }
    rank = tiers_rank_add(rank, 1e9, NOW_S, WEEK);
    near(tiers_score_of_rank(rank, NOW_S, WEEK), 1e9 + 1000, 1e-9);
}

static void no_access_changes_nothing(void **state)
{
    (void)state;
    assert_true(tiers_rank_add(3.25, 0, NOW_S, WEEK) == 3.25);
    assert_true(tiers_rank_add(-INFINITY, 0, NOW_S, WEEK) == -INFINITY);
}

static void the_score_is_the_sum_of_decayed_accesses(void **state)
{
    struct base_random r = {7};
    double rank = -INFINITY, sum = 0, t = NOW_S;

    (void)state;
    for (unsigned i = 0; i < 10000; i++) {
        const double pause = base_random_real(&r) * HOUR, n = (double)base_random_below(&r, 9);

        t += pause;
        sum = sum * exp2(-pause / WEEK) + n;
        rank = tiers_rank_add(rank, n, t, WEEK);
    }
    near(tiers_score_of_rank(rank, t, WEEK), sum, 1e-9);
}

static void zero_and_infinity_stay(void **state)
{
    (void)state;
    assert_true(tiers_rank_of_score(0, NOW_S, WEEK) == -INFINITY);
    assert_true(score_after(0, YEAR, WEEK) == 0);
    assert_true(score_after(INFINITY, YEAR, WEEK) == INFINITY);
    assert_true(tiers_rank_add(INFINITY, 1, NOW_S, WEEK) == INFINITY);
}

static void ranks_have_the_order_of_scores_at_any_time(void **state)
{
    struct base_random r = {11};

    (void)state;
    for (unsigned i = 0; i < 1000; i++) {
        const double a = base_random_real(&r) * 1000, b = base_random_real(&r) * 1000;
        const double at_a = NOW_S + base_random_real(&r) * WEEK,
                     at_b = NOW_S + base_random_real(&r) * WEEK;
        const double rank_a = tiers_rank_of_score(a, at_a, WEEK),
                     rank_b = tiers_rank_of_score(b, at_b, WEEK);

        for (double t = NOW_S + WEEK; t < NOW_S + YEAR; t += 9 * WEEK)
            assert_int_equal(rank_a < rank_b, tiers_score_of_rank(rank_a, t, WEEK) <
                                                  tiers_score_of_rank(rank_b, t, WEEK));
    }
}

static void nothing_overflows_in_fifty_years(void **state)
{
    static const double half_lives[] = {1, HOUR, WEEK, YEAR, INFINITY};

    (void)state;
    for (unsigned i = 0; i < sizeof(half_lives) / sizeof(half_lives[0]); i++) {
        const double h = half_lives[i], later = NOW_S + 50 * YEAR;
        double rank = tiers_rank_add(-INFINITY, 1000, NOW_S, h);

        assert_true(isfinite(rank));
        assert_true(tiers_score_of_rank(rank, later, h) <= 1000.0001);
        rank = tiers_rank_add(rank, 1, later, h);
        near(tiers_score_of_rank(rank, later, h), 1 + 1000 * exp2(-50 * YEAR / h), 1e-6);
        assert_int_equal(tier_of(access_evenly(rank, 99, later, 0, h), later, h), 0);
    }
}

/* What an old catalogue holds, when the clock has been set back by fifty years. */
static void a_rank_of_the_future_is_no_overflow(void **state)
{
    double rank = tiers_rank_of_score(5, NOW_S + 50 * YEAR, HOUR);

    (void)state;
    assert_true(tiers_score_of_rank(rank, NOW_S, HOUR) == INFINITY);
    rank = tiers_rank_add(rank, 1, NOW_S, HOUR);
    near(tiers_score_of_rank(rank, NOW_S + 50 * YEAR, HOUR), 5, 1e-6);
}

static void thresholds_are_reached_by_their_number_of_accesses(void **state)
{
    static const struct {
        unsigned accesses;
        int tier;
    } cases[] = {{0, 2}, {1, 2}, {9, 2}, {10, 1}, {11, 1}, {99, 1}, {100, 0}, {101, 0}, {5000, 0}};
    static const double half_lives[] = {WEEK, YEAR, INFINITY};

    (void)state;
    for (unsigned h = 0; h < 3; h++)
        for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
            const double rank =
                access_evenly(-INFINITY, cases[i].accesses, NOW_S, HOUR, half_lives[h]);

            assert_int_equal(tier_of(rank, NOW_S + HOUR, half_lives[h]), cases[i].tier);
        }
}

/* Twenty accesses a day: the score comes to rest at 20 * 7 / ln 2 = 202. */
static void a_file_that_is_used_daily_becomes_hot_and_stays(void **state)
{
    double rank = -INFINITY;

    (void)state;
    for (unsigned day = 0; day < 365; day++) {
        const double start = NOW_S + day * 24 * HOUR;

        rank = access_evenly(rank, 20, start, 24 * HOUR, WEEK);
        if (day == 0 || day == 3)
            assert_int_equal(tier_of(rank, start + 24 * HOUR, WEEK), 1);
        if (day >= 7)
            assert_int_equal(tier_of(rank, start + 24 * HOUR, WEEK), 0);
    }
}

/* 300 in a day: hot for 1.6 half-lives, warm for 3.3 more. */
static void a_file_that_was_popular_once_goes_down(void **state)
{
    const double rank = access_evenly(-INFINITY, 300, NOW_S, 24 * HOUR, WEEK);

    (void)state;
    assert_int_equal(tier_of(rank, NOW_S + 1.4 * WEEK, WEEK), 0);
    assert_int_equal(tier_of(rank, NOW_S + 1.8 * WEEK, WEEK), 1);
    assert_int_equal(tier_of(rank, NOW_S + 4.7 * WEEK, WEEK), 1);
    assert_int_equal(tier_of(rank, NOW_S + 5.1 * WEEK, WEEK), 2);
}

static void an_epoch_a_week_does_not_make_a_file_hot(void **state)
{
    double rank = -INFINITY;

    (void)state;
    for (unsigned week = 0; week < 52; week++)
        rank = tiers_rank_add(rank, 6, NOW_S + week * WEEK, WEEK);
    assert_int_equal(tier_of(rank, NOW_S + 52 * WEEK, WEEK), 2);
    assert_int_equal(tier_of(rank, NOW_S + 51 * WEEK, WEEK), 1);
}

/* ---- The clock --------------------------------------------------------------------------------
 */

#define BOOT  "0a0f5a2e-8cbb-4b3a-9d39-9a4f0b8f3c11"
#define BOOT2 "7cf1b1f0-3a7a-4b2c-8a59-5b5f6f1c2d22"

static struct tiers_clock clock_at(const char *boot_id)
{
    struct tiers_clock c = {.t_s = 1000, .wall_s = NOW_S, .boot_s = 500};

    strcpy(c.boot_id, boot_id);
    return c;
}

/* The set's time after the readings have changed by so much, from 1000 on. */
static double advance(const char *from, const char *to, double wall, double boot)
{
    struct tiers_clock c = clock_at(from);

    tiers_clock_advance(&c, NOW_S + wall, 500 + boot, to, WEEK);
    assert_true(c.wall_s == NOW_S + wall && c.boot_s == 500 + boot);
    assert_string_equal(c.boot_id, to);
    return c.t_s - 1000;
}

static void the_clock_goes_with_the_wall(void **state)
{
    (void)state;
    near(advance(BOOT, BOOT, 60, 61), 60, 1e-9);
    near(advance(BOOT, BOOT, 60, 60), 60, 1e-9);
    near(advance(BOOT, BOOT, 3 * WEEK, 3 * WEEK), 3 * WEEK, 1e-9);
}

static void a_clock_set_back_does_not_go_back(void **state)
{
    struct tiers_clock c = clock_at(BOOT);

    (void)state;
    tiers_clock_advance(&c, NOW_S - YEAR, 510, BOOT, WEEK);
    assert_true(c.t_s == 1000);
    tiers_clock_advance(&c, NOW_S - YEAR + 60, 570, BOOT, WEEK);
    near(c.t_s, 1060, 1e-9);
}

static void a_clock_set_forward_goes_no_faster_than_the_machine(void **state)
{
    struct tiers_clock c = clock_at(BOOT);

    (void)state;
    tiers_clock_advance(&c, NOW_S + 30 * YEAR, 510, BOOT, WEEK);
    near(c.t_s, 1010, 1e-9);
    tiers_clock_advance(&c, NOW_S + 20, 520, BOOT, WEEK);
    tiers_clock_advance(&c, NOW_S + 30, 530, BOOT, WEEK);
    near(c.t_s, 1020, 1e-9);
}

static void another_boot_counts_the_time_between(void **state)
{
    (void)state;
    near(advance(BOOT, BOOT2, HOUR, -400), HOUR, 1e-9);
    near(advance(BOOT, BOOT2, 30 * YEAR, -400), WEEK, 1e-9);
    near(advance(BOOT, BOOT2, -HOUR, -400), 0, 1e-9);
}

static void an_unknown_boot_is_another_one(void **state)
{
    (void)state;
    near(advance("", "", HOUR, 0), HOUR, 1e-9);
    near(advance("", "", 30 * YEAR, 1), WEEK, 1e-9);
    near(advance(BOOT, "", HOUR, 0), HOUR, 1e-9);
    near(advance("", BOOT, HOUR, 0), HOUR, 1e-9);
    near(advance("", "", -HOUR, 0), 0, 1e-9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_score_halves_after_each_half_life),
        cmocka_unit_test(scores_stay_without_decay),
        cmocka_unit_test(an_access_counts_one_in_the_score),
        cmocka_unit_test(no_access_changes_nothing),
        cmocka_unit_test(the_score_is_the_sum_of_decayed_accesses),
        cmocka_unit_test(zero_and_infinity_stay),
        cmocka_unit_test(ranks_have_the_order_of_scores_at_any_time),
        cmocka_unit_test(nothing_overflows_in_fifty_years),
        cmocka_unit_test(a_rank_of_the_future_is_no_overflow),
        cmocka_unit_test(thresholds_are_reached_by_their_number_of_accesses),
        cmocka_unit_test(a_file_that_is_used_daily_becomes_hot_and_stays),
        cmocka_unit_test(a_file_that_was_popular_once_goes_down),
        cmocka_unit_test(an_epoch_a_week_does_not_make_a_file_hot),
        cmocka_unit_test(the_clock_goes_with_the_wall),
        cmocka_unit_test(a_clock_set_back_does_not_go_back),
        cmocka_unit_test(a_clock_set_forward_goes_no_faster_than_the_machine),
        cmocka_unit_test(another_boot_counts_the_time_between),
        cmocka_unit_test(an_unknown_boot_is_another_one),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
