/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How the posix backend finds the size of pieces and the number of workers: it is told what model
 * machines moved in how much time.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "storage/posix.h"

#define EPOCH 5000000u

/* Bytes in an epoch. */
typedef uint64_t machine(const struct posix_tune *t);

static void run(struct posix_tune *t, machine *m, unsigned nepochs)
{
    while (nepochs--) {
        posix_tune_epoch(t, m(t), EPOCH);
        assert_in_range(t->chunk_shift, t->min_shift, t->max_shift);
        assert_in_range(t->active, 1, t->max_active);
    }
}

/* Until the next trial would begin: what is set is what was found best. */
static void settle(struct posix_tune *t, machine *m)
{
    run(t, m, 200);
    while (!t->rest)
        run(t, m, 1);
}

static struct posix_tune fresh(void)
{
    struct posix_tune t;

    posix_tune_init(&t, 18, 16, 20, 16);
    return t;
}

/* Fastest with pieces of 2^20 bytes and every worker. */
static uint64_t likes_large(const struct posix_tune *t)
{
    return 1000000ull * t->chunk_shift * t->active;
}

/* Fastest with pieces of 2^16 bytes, and no more than 4 workers are of use. */
static uint64_t likes_small_and_few(const struct posix_tune *t)
{
    return 1000000ull * (40 - t->chunk_shift) * (t->active < 4 ? t->active : 4);
}

/* Nothing makes a difference. */
static uint64_t does_not_care(const struct posix_tune *t)
{
    (void)t;
    return 100000000;
}

static void a_step_that_pays_is_kept(void **state)
{
    struct posix_tune t = fresh();

    (void)state;
    settle(&t, likes_large);
    assert_int_equal(t.chunk_shift, 20);
    assert_int_equal(t.active, 16);
}

static void workers_that_are_of_no_use_are_sent_home(void **state)
{
    struct posix_tune t = fresh();

    (void)state;
    settle(&t, likes_small_and_few);
    assert_int_equal(t.chunk_shift, 16);
    assert_int_equal(t.active, 4);
}

static void they_come_back_when_they_are_needed(void **state)
{
    struct posix_tune t = fresh();

    (void)state;
    settle(&t, likes_small_and_few);
    for (int i = 0; i < 20; i++)
        settle(&t, likes_large);
    assert_int_equal(t.chunk_shift, 20);
    assert_int_equal(t.active, 16);
}

static void pieces_stay_as_they_are_where_their_size_is_all_one(void **state)
{
    struct posix_tune t = fresh();

    (void)state;
    settle(&t, does_not_care);
    assert_int_equal(t.chunk_shift, 18);
}

static void what_the_user_has_set_is_not_touched(void **state)
{
    struct posix_tune t = fresh();

    (void)state;
    t.fixed_active = true;
    settle(&t, likes_small_and_few);
    assert_int_equal(t.active, 16);
    assert_int_equal(t.chunk_shift, 16);
    t = fresh();
    t.fixed_chunk = true;
    settle(&t, likes_small_and_few);
    assert_int_equal(t.active, 4);
    assert_int_equal(t.chunk_shift, 18);
}

/*
 * As an H200 machine wrote into tmpfs: 16 workers 45 GB/s, 12 41, 9 34, 7 28, 4 16. An epoch may be
 * a tenth luckier or unluckier than another.
 */
static uint64_t is_moody(const struct posix_tune *t)
{
    static const uint32_t rates[17] = {0,  4,  8,  12, 16, 20, 24, 28, 31,
                                       34, 37, 39, 41, 42, 43, 44, 45};
    static uint32_t state = 1;

    state = state * 1664525u + 1013904223u;
    return (uint64_t)rates[t->active] * (13500 + (state >> 8) % 3000);
}

static void luck_costs_little(void **state)
{
    struct posix_tune t = fresh();
    uint64_t nbytes = 0, most = UINT64_C(20000) * 45 * 15000;

    (void)state;
    t.fixed_chunk = true;
    for (int i = 0; i < 20000; i++) {
        uint64_t now = is_moody(&t);

        posix_tune_epoch(&t, now, EPOCH);
        nbytes += now;
    }
    assert_in_range(nbytes, most / 100 * 99, most);
}

/*
 * Each worker is of use, but what those that were sent home had in hand is moved in the epoch
 * after, and those that come back have nothing in hand yet.
 */
static uint64_t is_slow_to_change(const struct posix_tune *t)
{
    static uint32_t before = 16;
    uint64_t nbytes = 1000000ull * before;

    before = t->active;
    return nbytes;
}

static void the_epoch_of_a_change_is_not_counted(void **state)
{
    struct posix_tune t = fresh();

    (void)state;
    t.fixed_chunk = true;
    settle(&t, is_slow_to_change);
    assert_int_equal(t.active, 16);
}

static void a_short_transfer_meets_no_trial(void **state)
{
    struct posix_tune t = fresh();

    (void)state;
    for (int i = 0; i < 16; i++) {
        run(&t, likes_large, 1);
        assert_int_equal(t.chunk_shift, 18);
        assert_int_equal(t.active, 16);
    }
}

static void it_rests_between_trials(void **state)
{
    struct posix_tune t = fresh();
    unsigned nchanges = 0;

    (void)state;
    settle(&t, likes_large);
    for (int i = 0; i < 1000; i++) {
        struct posix_tune was = t;

        run(&t, likes_large, 1);
        nchanges += was.chunk_shift != t.chunk_shift || was.active != t.active;
    }
    assert_in_range(nchanges, 1, 100);
}

static uint64_t *begun_meanwhile;

/* Another worker ends an epoch before the lock is taken. */
int __wrap_pthread_mutex_trylock(pthread_mutex_t *mutex);
int __real_pthread_mutex_trylock(pthread_mutex_t *mutex);

int __wrap_pthread_mutex_trylock(pthread_mutex_t *mutex)
{
    if (begun_meanwhile)
        *begun_meanwhile += EPOCH;
    begun_meanwhile = NULL;
    return __real_pthread_mutex_trylock(mutex);
}

/* An epoch of a store's ends; whether the tuner was told. */
static bool is_told(struct posix *posix, uint64_t ns)
{
    uint32_t rest = posix->tune.rest;

    posix_tune_look(posix, posix->epoch + ns);
    return posix->tune.rest != rest;
}

static void an_epoch_that_says_nothing_is_left_out(void **state)
{
    static struct posix posix;

    (void)state;
    posix.tune = fresh();
    posix.epoch = 1000;
    pthread_mutex_init(&posix.tune_lock, NULL);
    assert_true(is_told(&posix, EPOCH));
    atomic_store(&posix.slack, true);
    assert_false(is_told(&posix, EPOCH));
    assert_false(is_told(&posix, 8ull * EPOCH));
    assert_false(is_told(&posix, EPOCH - 1));
    assert_true(is_told(&posix, EPOCH));
    pthread_mutex_destroy(&posix.tune_lock);
}

/* They looked at the clock, and then another worker was faster. */
static void a_worker_that_comes_late_ends_no_epoch(void **state)
{
    static struct posix posix;

    (void)state;
    posix.tune = fresh();
    posix.epoch = 10 * EPOCH;
    pthread_mutex_init(&posix.tune_lock, NULL);
    assert_false(is_told(&posix, (uint64_t)-1));
    assert_int_equal(posix.epoch, 10 * EPOCH);
    begun_meanwhile = &posix.epoch;
    assert_false(is_told(&posix, EPOCH + 1));
    assert_int_equal(posix.epoch, 11 * EPOCH);
    pthread_mutex_destroy(&posix.tune_lock);
}

static void an_epoch_of_no_time_is_survived(void **state)
{
    struct posix_tune t = fresh();

    (void)state;
    posix_tune_epoch(&t, 0, 0);
    posix_tune_epoch(&t, 0, 0);
    run(&t, likes_large, 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_that_pays_is_kept),
        cmocka_unit_test(workers_that_are_of_no_use_are_sent_home),
        cmocka_unit_test(they_come_back_when_they_are_needed),
        cmocka_unit_test(pieces_stay_as_they_are_where_their_size_is_all_one),
        cmocka_unit_test(what_the_user_has_set_is_not_touched),
        cmocka_unit_test(luck_costs_little),
        cmocka_unit_test(the_epoch_of_a_change_is_not_counted),
        cmocka_unit_test(a_short_transfer_meets_no_trial),
        cmocka_unit_test(it_rests_between_trials),
        cmocka_unit_test(an_epoch_that_says_nothing_is_left_out),
        cmocka_unit_test(a_worker_that_comes_late_ends_no_epoch),
        cmocka_unit_test(an_epoch_of_no_time_is_survived),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
