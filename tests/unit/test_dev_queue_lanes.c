/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What dev_queue.h promises to a warp of several lanes, each a thread (lanes.h), that takes
 * completions together. The test plays the device by hand.
 */
#include "sim/lanes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "gpunvme/atomics.h"

#define LANES   8u
#define ALL     ((UINT32_C(1) << LANES) - 1)
#define ENTRIES 64u

/* Between a look at entries and what the lanes do with them. */
static void (*behind_the_look)(void);
static unsigned nfences; /* of the first lane */
static void fence(void)
{
    uint64_t values[GPUNVME_WARP_LANES];

    if (!lanes_me) {
        nfences++;
        if (behind_the_look)
            behind_the_look();
    }
    lanes_meet(ALL, 0, values);
}
#define gpunvme_fence_sys fence

/* How many entries a lane has looked at. */
static __thread uint32_t nlooks;
static uint32_t look(const uint32_t *word)
{
    nlooks++;
    return gpunvme_load_acquire32(word);
}
#define gpunvme_load_acquire32 look

#include "gpunvme/dev_queue.h"
#include "queue_memory.h"

static struct queue_memory memory;
static struct gpunvme_dev_queue queue;
static uint32_t doorbells[2];
static uint64_t posted; /* completions written by the device */

struct lane {
    uint32_t lane, taken, nlooks;
};

static int setup(void **state)
{
    struct gpunvme_qpair_config config;

    (void)state;
    queue_memory_alloc(&memory, ENTRIES);
    config = queue_memory_config(&memory, ENTRIES);
    config.sq_doorbell.mmio = &doorbells[0];
    config.cq_doorbell.mmio = &doorbells[1];
    assert_int_equal(gpunvme_dev_queue_init(&queue, &config), GPUNVME_OK);
    for (uint32_t i = 1; i < ENTRIES; i++)
        queue.slots[i].word |= GPUNVME_DEV_SLOT_TAKEN;
    queue.reserved = ENTRIES - 1;
    behind_the_look = NULL;
    nfences = 0;
    posted = 0;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    queue_memory_free(&memory);
    return 0;
}

/* Command 1 ends first, then 2, …, each with its number as its status. */
static void post(uint32_t n)
{
    for (; n; n--, posted++)
        queue_memory_complete(memory.cq, ENTRIES, posted, (uint16_t)(posted + 1),
                              (uint16_t)(posted + 1), 0, 0);
}

static void post_twelve(void)
{
    behind_the_look = NULL;
    post(12);
}

static void *reap_main(void *arg)
{
    struct lane *l = arg;

    lanes_me = l->lane;
    nlooks = 0;
    l->taken = gpunvme_dev_queue_reap(&queue, ALL, 1);
    l->nlooks = nlooks;
    return NULL;
}

/* All lanes reap together: how many were taken, and *looks by each lane. */
static uint32_t reap(uint32_t *looks)
{
    struct lane lanes[LANES];
    pthread_t threads[LANES];

    lanes_init();
    for (uint32_t i = 0; i < LANES; i++) {
        lanes[i] = (struct lane){i, 0, 0};
        assert_int_equal(pthread_create(&threads[i], NULL, reap_main, &lanes[i]), 0);
    }
    for (uint32_t i = 0; i < LANES; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    for (uint32_t i = 1; i < LANES; i++) {
        assert_int_equal(lanes[i].taken, lanes[0].taken);
        assert_int_equal(lanes[i].nlooks, lanes[0].nlooks);
    }
    *looks = lanes[0].nlooks;
    return lanes[0].taken;
}

/* The first n commands are done, and no other. */
static void assert_done(uint32_t n)
{
    for (uint32_t i = 1; i < ENTRIES; i++) {
        uint64_t word = queue.slots[i].word;

        assert_int_equal((word & GPUNVME_SLOT_DONE) != 0, i <= n);
        assert_int_equal(word & 0x7fff, i <= n ? i : 0);
    }
    assert_int_equal(doorbells[1], n);
    assert_int_equal(queue.cq_head, n << 1);
}

static void a_warp_takes_all_completions_up_to_the_first_gap(void **state)
{
    uint32_t looks;

    (void)state;
    post(19);
    posted++;
    post(3);
    assert_int_equal(reap(&looks), 19);
    assert_done(19);
}

static void a_warp_takes_four_completions_a_lane_with_one_fence(void **state)
{
    uint32_t looks;

    (void)state;
    post(4 * LANES);
    assert_int_equal(reap(&looks), 4 * LANES);
    assert_done(4 * LANES);
    assert_int_equal(nfences, 1);
}

/* In host memory each look is a round trip across PCIe. */
static void a_warp_looks_for_no_more_than_are_in_flight(void **state)
{
    uint32_t looks;

    (void)state;
    queue.reserved = LANES;
    post(LANES);
    assert_int_equal(reap(&looks), LANES);
    assert_int_equal(looks, 1);
    assert_done(LANES);
}

/* Its own commands are as many as its lanes: the others are most likely under way. */
static void a_warp_that_found_a_part_of_its_commands_looks_once_more(void **state)
{
    uint32_t looks;

    (void)state;
    post(5);
    behind_the_look = post_twelve;
    assert_int_equal(reap(&looks), 5 + 12);
    assert_done(5 + 12);
}

static void a_warp_stops_at_a_look_that_finds_nothing_new(void **state)
{
    uint32_t looks;

    (void)state;
    assert_int_equal(reap(&looks), 0);
    assert_int_equal(looks, 1);
    post(5);
    assert_int_equal(reap(&looks), 5);
    assert_int_equal(looks, 1 + 1);
    assert_done(5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_warp_takes_all_completions_up_to_the_first_gap, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_warp_takes_four_completions_a_lane_with_one_fence, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_warp_looks_for_no_more_than_are_in_flight, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_warp_that_found_a_part_of_its_commands_looks_once_more,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(a_warp_stops_at_a_look_that_finds_nothing_new, setup,
                                        teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
