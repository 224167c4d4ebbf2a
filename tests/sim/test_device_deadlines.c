/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Deadlines of device.cuh in the moments that timing alone seldom hits: nobody takes completions
 * but the test, at the turn of a wait that it chooses. And how often a wait takes the completion
 * queue.
 */
#include <sched.h>

#include "gpunvme/atomics.h"

/* device.cuh rests in every turn in vain, */
static void rest(void);
#define gpunvme_relax rest

/* and yields at every 32nd turn, just before it reads the clock. */
static int yield(void);
#define sched_yield yield

/* Whoever takes completions takes this lock first. */
static uint32_t take_lock(uint32_t *word, uint32_t bits);
#define gpunvme_fetch_or32_acquire_gpu take_lock

#include "sim/device_fixture.h"

static unsigned locks_taken;

static struct {
    struct gpunvme_dev_queue *queue; /* NULL: only yields */
    unsigned turns, reap_at;         /* yields since, and the one from which on completions come */
    struct gpunvme_dev_queue *full;  /* all slots are taken; NULL: not so */
    unsigned rests, free_at;         /* rests since, and the one at which there is room */
    unsigned done_at;                /* and the one at which completions come */
} hook;

#undef sched_yield
#undef gpunvme_relax
#undef gpunvme_fetch_or32_acquire_gpu
static uint32_t take_lock(uint32_t *word, uint32_t bits)
{
    locks_taken++;
    return gpunvme_fetch_or32_acquire_gpu(word, bits);
}

/* Takes completions as soon as there are any. */
static void reap_some(struct gpunvme_dev_queue *q)
{
    uint64_t until = gpunvme_clock_ns() + PATIENCE_NS;

    while (!gpunvme_dev_queue_reap(q, 1, 1) && gpunvme_clock_ns() < until)
        sched_yield();
}

static void rest(void)
{
    if (!hook.full)
        return;
    if (++hook.rests == hook.free_at)
        gpunvme_dev_slot_unclaim(hook.full, hook.full->slots[1].word | 1);
    if (hook.rests == hook.done_at)
        reap_some(hook.full);
}

static int yield(void)
{
    if (hook.queue && ++hook.turns >= hook.reap_at)
        reap_some(hook.queue);
    return 0;
}

/* Completions are taken at the second reading of the clock of each command: it is late by then. */
static void fixture_open_late(struct fixture *f)
{
    struct dev_rig_opts opts;

    dev_rig_opts_init(&opts);
    opts.reaper = GPUNVME_REAPER_WARP;
    fixture_open(f, "sim:size=1M", &opts);
    image_fill(f, 1);
    hook.queue = &f->ns.queues[0];
    hook.turns = 0;
    hook.reap_at = 2;
}

static void fixture_close_late(struct fixture *f)
{
    hook.queue = NULL;
    assert_int_equal(dev_rig_taken(&f->rig, 0), 0);
    fixture_close(f);
}

static void a_command_that_ends_at_its_deadline_does_not_end_the_transfer(void **state)
{
    struct fixture f;

    (void)state;
    fixture_open_late(&f);
    f.ns.max_blocks = 16;
    assert_err(gpunvme_dev_warp_read(&f.ns, 0, 2048, &f.buf, 0, 1), GPUNVME_OK);
    assert_memory_equal(f.bytes, f.image, 1 << 20);
    assert_false(dev_rig_alarmed(&f.rig)); /* it would have the controller reset */
    fixture_close_late(&f);
}

/* It waits for room until the clock has been read once, and for its completion likewise. */
static void waiting_for_room_takes_nothing_from_the_commands_deadline(void **state)
{
    struct dev_rig_opts opts;
    struct fixture f;
    uint64_t ticket;

    (void)state;
    dev_rig_opts_init(&opts);
    opts.reaper = GPUNVME_REAPER_WARP;
    opts.entries = 4;
    fixture_open(&f, "sim:size=1M", &opts);
    for (uint32_t i = 1; i < 4; i++)
        assert_true(gpunvme_dev_slot_take(f.ns.queues, i, &ticket));
    hook.full = f.ns.queues;
    hook.rests = 0;
    hook.free_at = 50;
    hook.done_at = 80; /* after the 64th turn, before the 96th */
    assert_err(gpunvme_dev_read(&f.ns, 0, 1, &f.buf, 0, 1), GPUNVME_OK);
    hook.full = NULL;
    assert_false(dev_rig_alarmed(&f.rig));
    for (uint32_t i = 2; i < 4; i++)
        gpunvme_dev_slot_unclaim(f.ns.queues, f.ns.queues->slots[i].word | i);
    fixture_close(&f);
}

/* Deadlines are sums with the clock. */
static void the_longest_deadline_is_not_over_at_once(void **state)
{
    struct fixture f;

    (void)state;
    fixture_open(&f, "sim:size=1M,latency=20ms", NULL);
    assert_err(gpunvme_dev_read(&f.ns, 0, 1, &f.buf, 0, UINT64_MAX), GPUNVME_OK);
    assert_err(gpunvme_dev_warp_read(&f.ns, 0, 32, &f.buf, 0, UINT64_MAX - 1), GPUNVME_OK);
    assert_err(gpunvme_dev_write_bytes(&f.ns, 1, 1, &f.buf, 0, 0, UINT64_MAX), GPUNVME_OK);
    assert_false(dev_rig_alarmed(&f.rig));
    fixture_close(&f);
}

/* Each look at the completion queue is a round trip across PCIe. */
static void a_wait_for_a_command_that_is_done_leaves_the_completion_queue_alone(void **state)
{
    struct gpunvme_dev_token tokens[4];
    uint64_t until = gpunvme_clock_ns() + PATIENCE_NS;
    struct fixture f;
    unsigned taken = 0;

    (void)state;
    fixture_open(&f, "sim:size=1M", NULL);
    for (unsigned i = 0; i < 4; i++)
        assert_err(gpunvme_dev_submit_read(&f.ns, i, 1, &f.buf, 512 * i, &tokens[i]), GPUNVME_OK);
    while (taken < 4 && gpunvme_clock_ns() < until)
        taken += gpunvme_dev_queue_reap(f.ns.queues, 1, 1);
    assert_int_equal(taken, 4);
    locks_taken = 0;
    for (unsigned i = 0; i < 4; i++)
        assert_err(gpunvme_dev_wait(&f.ns, &tokens[i], 0), GPUNVME_OK);
    assert_int_equal(locks_taken, 0);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_wait_for_a_command_that_is_done_leaves_the_completion_queue_alone),
        cmocka_unit_test(a_command_that_ends_at_its_deadline_does_not_end_the_transfer),
        cmocka_unit_test(waiting_for_room_takes_nothing_from_the_commands_deadline),
        cmocka_unit_test(the_longest_deadline_is_not_over_at_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
