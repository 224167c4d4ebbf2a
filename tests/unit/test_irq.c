/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Waiting for an interrupt vector: nothing that fires is forgotten, and all who wait are woken.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include <cmocka.h>

#include "transport/irq.h"

#define NTHREADS 24
#define FIRINGS  300
#define MS       UINT64_C(1000000)
#define LONG     (UINT64_C(20000) * MS) /* far beyond what any of these waits takes */

static void fire(struct transport_irq *irq)
{
    uint64_t one = 1;

    assert_int_equal(write(irq->fd, &one, sizeof(one)), sizeof(one));
}

static int make_one(void **state)
{
    return transport_irqs_create(1, (struct transport_irq **)state);
}

static int destroy_one(void **state)
{
    transport_irqs_destroy(*state, 1);
    return 0;
}

static void what_fires_before_the_wait_ends_it(void **state)
{
    struct transport_irq *irq = *state;
    uint64_t seen = 0;

    fire(irq);
    fire(irq);
    assert_int_equal(transport_irq_wait(irq, &seen, LONG), 0);
    assert_int_equal(seen, 2);
}

static void a_late_waiter_sees_what_another_has_read(void **state)
{
    struct transport_irq *irq = *state;
    uint64_t first = 0, late = 0;

    fire(irq);
    assert_int_equal(transport_irq_wait(irq, &first, LONG), 0);
    assert_int_equal(transport_irq_wait(irq, &late, LONG), 0);
    assert_int_equal(late, first);
}

static void a_wait_for_nothing_ends_with_its_time(void **state)
{
    uint64_t seen = 0;

    assert_int_equal(transport_irq_wait(*state, &seen, MS), 0);
    assert_int_equal(seen, 0);
    assert_int_equal(transport_irq_wait(*state, &seen, 0), 0);
    assert_int_equal(seen, 0);
}

struct crowd {
    struct transport_irq *irq;
    atomic_uint arrived; /* how often a thread has seen one */
    atomic_uint errors;
};

/* Each thread must see each of the firings, of which the next comes when all have seen the last. */
static void *see_them_all(void *arg)
{
    struct crowd *c = arg;
    uint64_t seen = 0;

    for (unsigned i = 1; i <= FIRINGS; i++) {
        while (seen < i) {
            if (transport_irq_wait(c->irq, &seen, LONG))
                atomic_fetch_add(&c->errors, 1);
        }
        if (seen != i)
            atomic_fetch_add(&c->errors, 1);
        atomic_fetch_add(&c->arrived, 1);
    }
    return NULL;
}

static void all_of_many_threads_see_every_firing(void **state)
{
    struct crowd c = {.irq = *state};
    pthread_t threads[NTHREADS];

    for (int i = 0; i < NTHREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, see_them_all, &c), 0);
    for (unsigned i = 1; i <= FIRINGS; i++) {
        fire(c.irq);
        while (atomic_load(&c.arrived) < i * NTHREADS)
            usleep(50);
    }
    for (int i = 0; i < NTHREADS; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(atomic_load(&c.errors), 0);
}

/* The one that waits in the kernel gives up first: another must take its place. */
static void *wait_shortly(void *arg)
{
    uint64_t seen = 0;

    transport_irq_wait(arg, &seen, 20 * MS);
    return NULL;
}

static void *wait_long(void *arg)
{
    uint64_t seen = 0;

    while (!seen)
        transport_irq_wait(arg, &seen, LONG);
    return NULL;
}

static void others_wait_on_when_the_first_gives_up(void **state)
{
    pthread_t brief, patient;

    assert_int_equal(pthread_create(&brief, NULL, wait_shortly, *state), 0);
    usleep(5000);
    assert_int_equal(pthread_create(&patient, NULL, wait_long, *state), 0);
    pthread_join(brief, NULL);
    fire(*state);
    pthread_join(patient, NULL);
}

static void vectors_do_not_wake_each_other(void **state)
{
    struct transport_irq *irqs;
    uint64_t seen = 0;

    (void)state;
    assert_int_equal(transport_irqs_create(3, &irqs), 0);
    fire(&irqs[0]);
    fire(&irqs[2]);
    assert_int_equal(transport_irq_wait(&irqs[1], &seen, MS), 0);
    assert_int_equal(seen, 0);
    assert_int_equal(transport_irq_wait(&irqs[2], &seen, LONG), 0);
    assert_int_equal(seen, 1);
    transport_irqs_destroy(irqs, 3);
    transport_irqs_destroy(NULL, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_fires_before_the_wait_ends_it, make_one, destroy_one),
        cmocka_unit_test_setup_teardown(a_late_waiter_sees_what_another_has_read, make_one,
                                        destroy_one),
        cmocka_unit_test_setup_teardown(a_wait_for_nothing_ends_with_its_time, make_one,
                                        destroy_one),
        cmocka_unit_test_setup_teardown(all_of_many_threads_see_every_firing, make_one,
                                        destroy_one),
        cmocka_unit_test_setup_teardown(others_wait_on_when_the_first_gives_up, make_one,
                                        destroy_one),
        cmocka_unit_test(vectors_do_not_wake_each_other),
    };

    return cmocka_run_group_tests_name("irq", tests, NULL, NULL);
}
