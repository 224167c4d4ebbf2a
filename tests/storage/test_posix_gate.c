/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Writes past the page cache and through it take turns.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "storage/posix.h"

static struct posix_gate gate;

static int setup(void **state)
{
    (void)state;
    memset(&gate, 0, sizeof(gate));
    return 0;
}

static void writes_of_one_kind_go_together(void **state)
{
    (void)state;
    for (unsigned direct = 0; direct < 2; direct++) {
        for (unsigned i = 0; i < 3; i++)
            assert_true(posix_gate_enter(&gate, direct));
        assert_false(posix_gate_enter(&gate, !direct));
        for (unsigned i = 0; i < 3; i++)
            posix_gate_leave(&gate, direct);
    }
}

static void a_write_through_the_cache_has_its_turn_next(void **state)
{
    (void)state;
    assert_true(posix_gate_enter(&gate, true));
    assert_false(posix_gate_enter(&gate, false));
    assert_false(posix_gate_enter(&gate, true)); /* or direct ones would never end */
    posix_gate_leave(&gate, true);
    assert_false(posix_gate_enter(&gate, true));
    assert_true(posix_gate_enter(&gate, false));
    posix_gate_leave(&gate, false);
    assert_true(posix_gate_enter(&gate, true));
}

#define THREADS 4
#define TURNS   20000

static uint32_t inside[2], collisions;

static void *write_often(void *direct_)
{
    bool direct = direct_ != NULL;

    for (unsigned i = 0; i < TURNS; i++) {
        if (!posix_gate_enter(&gate, direct))
            continue;
        __atomic_add_fetch(&inside[direct], 1, __ATOMIC_SEQ_CST);
        if (__atomic_load_n(&inside[!direct], __ATOMIC_SEQ_CST))
            __atomic_add_fetch(&collisions, 1, __ATOMIC_SEQ_CST);
        __atomic_sub_fetch(&inside[direct], 1, __ATOMIC_SEQ_CST);
        posix_gate_leave(&gate, direct);
    }
    return NULL;
}

static void threads_never_meet_the_other_kind(void **state)
{
    pthread_t threads[THREADS];

    (void)state;
    for (unsigned i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, write_often, i % 2 ? &gate : NULL), 0);
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(collisions, 0);
    assert_int_equal(gate.writers, 0);
}

#define TEST(name) cmocka_unit_test_setup(name, setup)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(writes_of_one_kind_go_together),
        TEST(a_write_through_the_cache_has_its_turn_next),
        TEST(threads_never_meet_the_other_kind),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
