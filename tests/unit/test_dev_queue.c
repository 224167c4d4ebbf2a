/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What dev_queue.h promises for each of its functions, on a warp of one lane: one queue pair, a
 * device that the test plays by hand.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>

#include "gpunvme/atomics.h"

/* What a test does between two steps of the queue: place() asks for a position, then for the
 * doorbell, by this. */
static void (*before_doorbell)(void), (*after_doorbell)(void);
static uint32_t ask_for_doorbell(uint32_t *word, uint32_t bits)
{
    void (*before)(void) = before_doorbell, (*after)(void) = after_doorbell;
    uint32_t old;

    before_doorbell = after_doorbell = NULL;
    if (before)
        before();
    old = gpunvme_fetch_or32_relaxed_gpu(word, bits);
    if (after)
        after();
    return old;
}
#define gpunvme_fetch_or32_relaxed_gpu ask_for_doorbell

/* Looks at completions. */
static unsigned nlooks;
static uint32_t look(const uint32_t *word)
{
    nlooks++;
    return gpunvme_load_acquire32(word);
}
#define gpunvme_load_acquire32 look

#include "device/orders/queue_reset.h"
#include "queue_memory.h"

#define ENTRIES 4u
#define SOON    (gpunvme_clock_ns() + 50000000u)

struct fixture {
    struct queue_memory m;
    struct gpunvme_dev_queue q;
    struct gpunvme_slot mirror[2 * ENTRIES];
    uint32_t doorbells[2];
    uint64_t posted; /* completions written by the device */
    uint32_t rings;  /* mark_next() */
};

static int setup(void **state)
{
    struct fixture *f = queue_memory_zeroed(sizeof(*f));
    struct gpunvme_qpair_config config;

    queue_memory_alloc(&f->m, ENTRIES);
    config = queue_memory_config(&f->m, ENTRIES);
    config.sq_doorbell.mmio = &f->doorbells[0];
    config.cq_doorbell.mmio = &f->doorbells[1];
    assert_int_equal(gpunvme_dev_queue_init(&f->q, &config), GPUNVME_OK);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;

    queue_memory_free(&f->m);
    free(f);
    return 0;
}

/* The lane has claimed a slot. */
static void place(struct fixture *f, struct gpunvme_dev_place *p)
{
    int err;

    assert_int_equal(gpunvme_dev_queue_place(&f->q, 1, 1, p, &err), 1);
    assert_int_equal(err, GPUNVME_OK);
}

static void reserve(struct fixture *f, struct gpunvme_dev_place *p)
{
    assert_int_equal(gpunvme_dev_slot_claim(&f->q, 1, 1, gpunvme_dev_want_any(), &p->ticket), 1);
    place(f, p);
}

static void fill(struct fixture *f, const struct gpunvme_dev_place *p, uint32_t cdw10)
{
    struct gpunvme_sqe cmd = {.cdw10 = cdw10};

    gpunvme_dev_queue_submit(&f->q, 1, p, &cmd);
}

static uint64_t submit(struct fixture *f, uint32_t cdw10)
{
    struct gpunvme_dev_place p;

    reserve(f, &p);
    fill(f, &p, cdw10);
    return p.ticket;
}

static void complete(struct fixture *f, uint64_t ticket, uint16_t status, uint64_t result)
{
    queue_memory_complete(f->m.cq, ENTRIES, f->posted++, (uint16_t)ticket, status, result, 0);
}

/* Tickets that have not ended. */
static uint32_t outstanding(struct fixture *f)
{
    uint32_t n = 0;

    for (uint32_t i = 1; i < ENTRIES; i++)
        n += f->q.slots[i].word >> 63;
    return n;
}

static uint32_t reap(struct fixture *f)
{
    return gpunvme_dev_queue_reap(&f->q, 1, 1);
}

static void waits_see_completions_in_every_lap(void **state)
{
    struct fixture *f = *state;

    for (uint32_t i = 0; i < 5 * ENTRIES; i++) {
        uint16_t status = 0;
        uint64_t ticket = submit(f, i);

        complete(f, ticket, 0, i);
        assert_int_equal(gpunvme_dev_queue_wait(&f->q, 1, ticket, SOON, &status), GPUNVME_OK);
    }
}

static void who_has_the_completion_queue_keeps_others_out(void **state)
{
    struct fixture *f = *state;
    uint32_t head, in_flight;

    complete(f, submit(f, 0), 0, 0);
    assert_int_equal(gpunvme_dev_queue_hold(&f->q, 1, &head, &in_flight), 1);
    assert_int_equal(head, 0);
    assert_int_equal(reap(f), 0);
    f->q.cq_head &= ~GPUNVME_DEV_QUEUE_LOCKED;
    assert_int_equal(reap(f), 1);
    assert_int_equal(f->q.cq_head, 1 << 1);
}

/* Where the queue is in host memory, each look is a round trip across PCIe. */
static void a_lone_lane_looks_once_for_one_command(void **state)
{
    struct fixture *f = *state;

    complete(f, submit(f, 0), 0, 0);
    nlooks = 0;
    assert_int_equal(gpunvme_dev_queue_reap(&f->q, 1, GPUNVME_DEV_LOOKS), 1);
    assert_int_equal(nlooks, 1);
}

/* Four entries at once, and not one more. */
static void a_lone_lane_looks_for_no_more_than_are_in_flight(void **state)
{
    const uint32_t entries = 4 * GPUNVME_DEV_DEEP;
    struct gpunvme_qpair_config config;
    struct fixture f = {.posted = 0};

    (void)state;
    queue_memory_alloc(&f.m, entries);
    config = queue_memory_config(&f.m, entries);
    config.sq_doorbell.mmio = &f.doorbells[0];
    config.cq_doorbell.mmio = &f.doorbells[1];
    assert_int_equal(gpunvme_dev_queue_init(&f.q, &config), GPUNVME_OK);
    for (uint32_t i = 0; i < GPUNVME_DEV_DEEP; i++)
        queue_memory_complete(f.m.cq, entries, i, (uint16_t)submit(&f, i), 0, 0, 0);
    nlooks = 0;
    assert_int_equal(reap(&f), GPUNVME_DEV_DEEP);
    assert_int_equal(nlooks, GPUNVME_DEV_DEEP);
    queue_memory_free(&f.m);
}

static void a_lone_lane_takes_several_completions_at_once(void **state)
{
    struct fixture *f = *state;
    uint64_t tickets[3];

    for (unsigned i = 0; i < 3; i++)
        tickets[i] = submit(f, i);
    for (unsigned i = 0; i < 3; i++)
        complete(f, tickets[i], (uint16_t)i, 0);
    nlooks = 0;
    assert_int_equal(gpunvme_dev_queue_reap(&f->q, 1, GPUNVME_DEV_LOOKS), 3);
    assert_int_equal(nlooks, GPUNVME_DEV_DEEP);
    for (unsigned i = 0; i < 3; i++) {
        uint16_t status;

        assert_int_equal(gpunvme_dev_queue_test(&f->q, tickets[i], &status), GPUNVME_OK);
        assert_int_equal(status, i);
    }
}

/* What is there to be seen without the lock. */
static void news_are_seen_in_every_lap(void **state)
{
    struct fixture *f = *state;

    for (uint32_t i = 0; i < 5 * ENTRIES; i++) {
        uint16_t status;
        uint64_t ticket = submit(f, 0);

        assert_false(gpunvme_dev_queue_has_news(&f->q));
        complete(f, ticket, 0, 0);
        assert_true(gpunvme_dev_queue_has_news(&f->q));
        assert_int_equal(reap(f), 1);
        assert_int_equal(gpunvme_dev_queue_test(&f->q, ticket, &status), GPUNVME_OK);
    }
}

static void a_full_queue_takes_no_more(void **state)
{
    struct fixture *f = *state;
    struct gpunvme_dev_place p;
    int err;

    for (uint32_t i = 0; i < ENTRIES - 1; i++)
        submit(f, i);
    assert_int_equal(gpunvme_dev_queue_reserve(&f->q, 1, 7, gpunvme_dev_want_any(), &p, &err), 0);
    assert_int_equal(err, GPUNVME_ERR_AGAIN);
    assert_int_equal(f->q.reserved, ENTRIES - 1);
    assert_int_equal(f->q.published, (ENTRIES - 1) << 1);
}

static void a_closed_queue_gives_slot_and_doorbell_back(void **state)
{
    struct fixture *f = *state;
    struct gpunvme_dev_place p;
    int err;

    submit(f, 0);
    queue_close(&f->q);
    assert_int_equal(gpunvme_dev_queue_reserve(&f->q, 1, 7, gpunvme_dev_want_any(), &p, &err), 0);
    assert_int_equal(err, GPUNVME_ERR_CLOSED);
    assert_int_equal(outstanding(f), 1);
    assert_int_equal(f->q.published, 1 << 1);
    assert_int_equal(f->q.closed_at, 1);
}

static void an_entry_is_whole_when_the_doorbell_rings(void **state)
{
    struct fixture *f = *state;
    uint64_t ticket = submit(f, 77);

    assert_int_equal(f->doorbells[0], 1);
    assert_int_equal(f->m.sq[0].cdw10, 77);
    assert_int_equal(f->m.sq[0].cid, (uint16_t)ticket);
}

/* The first to reserve has the doorbell, and rings for those who marked theirs meanwhile. */
static void the_holder_rings_for_marks_behind_it(void **state)
{
    struct fixture *f = *state;
    struct gpunvme_dev_place p[3];

    for (unsigned i = 0; i < 3; i++)
        reserve(f, &p[i]);
    fill(f, &p[1], 1);
    assert_int_equal(f->doorbells[0], 0);
    fill(f, &p[0], 0);
    assert_int_equal(f->doorbells[0], 2);
    fill(f, &p[2], 2);
    assert_int_equal(f->doorbells[0], 3);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(f->m.sq[i].cdw10, i);
}

/* The later position waits for the earlier one, and whoever fills that one rings for both. */
static void the_doorbell_stops_at_the_first_gap(void **state)
{
    struct fixture *f = *state;
    struct gpunvme_dev_place p[2];

    f->q.published |= GPUNVME_DEV_QUEUE_LOCKED; /* by another, who lets go */
    reserve(f, &p[0]);
    f->q.published = 0;
    reserve(f, &p[1]);
    fill(f, &p[1], 0);
    assert_int_equal(f->doorbells[0], 0);
    fill(f, &p[0], 0);
    assert_int_equal(f->doorbells[0], 2);
    assert_int_equal(f->q.published, 2 << 1);
}

/* As others would that submit all the time: there is a mark behind each position that is rung for.
 */
static void mark_next(void *f_, uint32_t offset, uint32_t value)
{
    struct fixture *f = f_;
    uint32_t pos = ++f->rings;

    (void)offset;
    assert_int_equal(value, pos & f->q.mask);
    f->q.ready[pos & f->q.mask] = gpunvme_dev_queue_lap(&f->q, pos);
}

static void a_holder_leaves_endless_marks_to_who_waits(void **state)
{
    struct fixture *f = *state;

    f->q.sq_doorbell.mmio = NULL;
    f->q.ring = mark_next;
    f->q.ring_arg = f;
    submit(f, 0);
    assert_int_equal(f->rings, GPUNVME_DEV_RINGS);
    assert_false(f->q.published & GPUNVME_DEV_QUEUE_LOCKED);
    gpunvme_dev_queue_help(&f->q);
    assert_int_equal(f->rings, 2 * GPUNVME_DEV_RINGS);
}

static void a_wait_rings_for_what_was_left(void **state)
{
    struct fixture *f = *state;
    uint16_t status;
    struct gpunvme_dev_place p;

    f->q.published |= GPUNVME_DEV_QUEUE_LOCKED; /* by another, who leaves the mark behind */
    reserve(f, &p);
    fill(f, &p, 0);
    f->q.published &= ~GPUNVME_DEV_QUEUE_LOCKED;
    assert_int_equal(f->doorbells[0], 0);
    assert_int_equal(gpunvme_dev_queue_wait(&f->q, 1, p.ticket, gpunvme_clock_ns(), &status),
                     GPUNVME_ERR_TIMEOUT);
    assert_int_equal(f->doorbells[0], 1);
}

static void who_waits_rings_for_what_was_left(void **state)
{
    struct fixture *f = *state;
    struct gpunvme_dev_place p[2];

    f->q.published |= GPUNVME_DEV_QUEUE_LOCKED; /* by another, who leaves both marks behind */
    reserve(f, &p[0]);
    reserve(f, &p[1]);
    fill(f, &p[0], 0);
    fill(f, &p[1], 0);
    gpunvme_dev_queue_help(&f->q);
    assert_int_equal(f->doorbells[0], 0);
    f->q.published &= ~GPUNVME_DEV_QUEUE_LOCKED;
    gpunvme_dev_queue_help(&f->q);
    assert_int_equal(f->doorbells[0], 2);
    assert_int_equal(f->q.published, 2 << 1);
}

/* From wherever it begins, over the end of the ring and of the positions. */
static void who_rings_goes_up_to_the_first_gap(void **state)
{
    const uint32_t starts[] = {0, 16, 24, UINT32_C(0x80000000) - 8}; /* modulo 2^31 */
    uint32_t ready[8];
    struct gpunvme_dev_queue q = {.ready = ready, .mask = 7, .shift = 3};

    (void)state;
    for (unsigned i = 0; i < 4; i++)
        for (uint32_t from = starts[i]; from < starts[i] + 8; from++)
            for (uint32_t marked = 0; marked < 8; marked++) {
                for (uint32_t k = 0; k < 8; k++) { /* the others are of the lap before */
                    uint32_t pos = from + k;

                    ready[pos & 7] = gpunvme_dev_queue_lap(&q, k < marked ? pos : pos - 8);
                }
                assert_int_equal((gpunvme_dev_queue_skip_ready(&q, 1, from) - from) << 1 >> 1,
                                 marked);
                if (marked < 6) { /* one behind the gap */
                    ready[(from + marked + 1) & 7] = gpunvme_dev_queue_lap(&q, from + marked + 1);
                    assert_int_equal((gpunvme_dev_queue_skip_ready(&q, 1, from) - from) << 1 >> 1,
                                     marked);
                }
            }
}

static void *mark_only(void *arg)
{
    void **job = arg;
    struct gpunvme_sqe cmd = {.cdw10 = 77};

    gpunvme_dev_queue_submit(job[0], 1, job[1], &cmd);
    return NULL;
}

/* Only the mark tells the holder of the doorbell of the other's entry. */
static void whoever_rings_has_the_entries_of_others(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 50; i++) {
        struct gpunvme_dev_place p[2];
        struct fixture *f;
        pthread_t other;
        void *fresh, *job[2];

        setup(&fresh);
        f = fresh;
        reserve(f, &p[0]); /* has the doorbell */
        reserve(f, &p[1]);
        job[0] = &f->q;
        job[1] = &p[1];
        assert_int_equal(pthread_create(&other, NULL, mark_only, job), 0);
        while (gpunvme_load_relaxed32(&f->q.ready[1]) != 0)
            gpunvme_relax();
        fill(f, &p[0], 0);
        assert_int_equal(f->doorbells[0], 2);
        assert_int_equal(f->m.sq[1].cdw10, 77);
        pthread_join(other, NULL);
        teardown(&fresh);
    }
}

static void a_ticket_ends_once(void **state)
{
    struct fixture *f = *state;
    uint16_t status;
    uint64_t ticket = submit(f, 0);

    assert_int_equal(gpunvme_dev_queue_test(&f->q, ticket, &status), GPUNVME_ERR_AGAIN);
    complete(f, ticket, 0x123, 99);
    assert_int_equal(reap(f), 1);
    assert_int_equal(f->doorbells[1], 1);
    assert_int_equal(gpunvme_dev_queue_test(&f->q, ticket, &status), GPUNVME_OK);
    assert_int_equal(status, 0x123);
    assert_int_equal(gpunvme_dev_queue_test(&f->q, ticket, &status), GPUNVME_ERR_STALE);
    assert_int_equal(outstanding(f), 0);
}

static void a_command_id_that_is_not_in_flight_is_counted(void **state)
{
    struct fixture *f = *state;
    uint64_t ticket = submit(f, 0);

    complete(f, ticket + 1, 0, 0);
    complete(f, 0xffff, 0, 0);
    assert_int_equal(reap(f), 1);
    assert_int_equal(reap(f), 1);
    assert_int_equal(f->q.spurious, 2);
    assert_int_equal(outstanding(f), 1);
}

static void a_wait_ends_at_its_deadline(void **state)
{
    struct fixture *f = *state;
    uint16_t status;
    uint64_t ticket = submit(f, 0);

    assert_int_equal(gpunvme_dev_queue_wait(&f->q, 1, ticket, gpunvme_clock_ns(), &status),
                     GPUNVME_ERR_TIMEOUT);
    assert_int_equal(outstanding(f), 1);
}

static void an_abandoned_command_frees_its_slot_when_it_completes(void **state)
{
    struct fixture *f = *state;
    uint16_t status;
    uint64_t ticket = submit(f, 0);

    assert_int_equal(gpunvme_dev_queue_abandon(&f->q, ticket), GPUNVME_OK);
    assert_int_equal(outstanding(f), 1);
    complete(f, ticket, 0, 0);
    assert_int_equal(reap(f), 1);
    assert_int_equal(outstanding(f), 0);
    assert_int_equal(f->q.spurious, 0);
    assert_int_equal(gpunvme_dev_queue_test(&f->q, ticket, &status), GPUNVME_ERR_STALE);
}

/* The completion came between the deadline and the decision. */
static void a_command_that_is_done_is_not_abandoned(void **state)
{
    struct fixture *f = *state;
    uint16_t status;
    uint64_t ticket = submit(f, 0);

    complete(f, ticket, 0, 0);
    assert_int_equal(reap(f), 1);
    assert_int_equal(gpunvme_dev_queue_abandon(&f->q, ticket), GPUNVME_ERR_STALE);
    assert_int_equal(gpunvme_dev_queue_test(&f->q, ticket, &status), GPUNVME_OK);
    assert_int_equal(gpunvme_dev_queue_abandon(&f->q, ticket), GPUNVME_ERR_STALE);
    assert_int_equal(outstanding(f), 0);
}

static void freeze(struct fixture *f)
{
    assert_int_equal(queue_freeze(&f->q, SOON), QUEUE_FROZEN);
}

static void fail_and_thaw(struct fixture *f)
{
    queue_rewind_counters(&f->q);
    queue_fail(&f->q, 0x371, 0, 1);
    queue_rewind_rings(&f->q, 0, 1);
    queue_thaw(&f->q);
    f->posted = 0;
}

static void reset(struct fixture *f)
{
    freeze(f);
    fail_and_thaw(f);
}

/* With as many as there is room for, so that one slot lost would show. */
static void a_reset_gives_abandoned_slots_back(void **state)
{
    struct fixture *f = *state;

    for (uint32_t i = 0; i < ENTRIES - 1; i++)
        assert_int_equal(gpunvme_dev_queue_abandon(&f->q, submit(f, i)), GPUNVME_OK);
    reset(f);
    assert_int_equal(outstanding(f), 0);
    for (uint32_t i = 0; i < ENTRIES - 1; i++)
        submit(f, i);
}

static void a_reset_ends_the_other_commands_with_its_status(void **state)
{
    struct fixture *f = *state;
    uint16_t status;
    uint64_t ticket = submit(f, 0);

    reset(f);
    assert_int_equal(gpunvme_dev_queue_test(&f->q, ticket, &status), GPUNVME_OK);
    assert_int_equal(status, 0x371);
    assert_int_equal(outstanding(f), 0);
}

/* A slot that has no position yet; the command that it gets is one of the queue of then. */
static void use_slot(struct fixture *f, struct gpunvme_dev_place *p)
{
    uint16_t status;

    place(f, p);
    fill(f, p, 77);
    assert_int_equal(gpunvme_dev_queue_test(&f->q, p->ticket, &status), GPUNVME_ERR_AGAIN);
    complete(f, p->ticket, 0x7f, 5);
    assert_int_equal(reap(f), 1);
    assert_int_equal(gpunvme_dev_queue_test(&f->q, p->ticket, &status), GPUNVME_OK);
    assert_int_equal(status, 0x7f);
}

static void a_slot_claimed_before_a_reset_serves_after_it(void **state)
{
    struct fixture *f = *state;
    struct gpunvme_dev_place p;

    assert_int_equal(gpunvme_dev_slot_claim(&f->q, 1, 1, gpunvme_dev_want_any(), &p.ticket), 1);
    reset(f);
    use_slot(f, &p);
    assert_int_equal(f->q.spurious, 0);
}

static void a_slot_claimed_while_frozen_serves_after_the_reset(void **state)
{
    struct fixture *f = *state;
    struct gpunvme_dev_place p;

    freeze(f);
    assert_int_equal(gpunvme_dev_slot_claim(&f->q, 1, 1, gpunvme_dev_want_any(), &p.ticket), 1);
    fail_and_thaw(f);
    use_slot(f, &p);
    assert_int_equal(f->q.spurious, 0);
}

/* A controller that completes what it was never told: all the more it must be reset. */
static void completions_of_nothing_do_not_keep_a_reset_off(void **state)
{
    struct fixture *f = *state;
    struct gpunvme_dev_place p;

    assert_int_equal(gpunvme_dev_slot_claim(&f->q, 1, 1, gpunvme_dev_want_any(), &p.ticket), 1);
    complete(f, p.ticket, 0, 0);
    assert_int_equal(reap(f), 1);
    place(f, &p);
    fill(f, &p, 77);
    reset(f);
    assert_int_equal(f->q.reserved, ENTRIES);
}

/* The controller has the queue no more: neither those who come nor those who wait may ring for it.
 */
static void a_queue_whose_freeze_is_canceled_stays_closed(void **state)
{
    struct fixture *f = *state;
    struct gpunvme_dev_place p;
    int err;

    f->q.published |= GPUNVME_DEV_QUEUE_LOCKED; /* by another, who leaves the mark behind */
    submit(f, 0);
    f->q.published = 0;
    freeze(f);
    queue_cancel_freeze(&f->q);
    assert_int_equal(gpunvme_dev_queue_reserve(&f->q, 1, 2, gpunvme_dev_want_any(), &p, &err), 0);
    assert_int_equal(err, GPUNVME_ERR_CLOSED);
    gpunvme_dev_queue_help(&f->q);
    assert_int_equal(f->doorbells[0], 0);
    reset(f); /* it can be frozen again, and is as good as new */
    submit(f, 1);
    assert_int_equal(f->doorbells[0], 1);
}

/* What the reset has seen of the slot is no longer so. */
static void a_slot_abandoned_during_a_reset_is_given_back(void **state)
{
    struct fixture *f = *state;
    uint64_t ticket = submit(f, 0), word = f->q.slots[ticket & f->q.mask].word;

    freeze(f);
    assert_int_equal(gpunvme_dev_queue_abandon(&f->q, ticket), GPUNVME_OK);
    queue_fail_slot(&f->q, &f->q.slots[ticket & f->q.mask], word, 0x371);
    assert_int_equal(outstanding(f), 0);
    fail_and_thaw(f);
}

static void a_slot_given_back_during_a_reset_stays_free(void **state)
{
    struct fixture *f = *state;
    uint64_t ticket = 0, word;

    freeze(f);
    assert_int_equal(gpunvme_dev_slot_claim(&f->q, 1, 1, gpunvme_dev_want_any(), &ticket), 1);
    word = f->q.slots[ticket & f->q.mask].word;
    gpunvme_dev_slot_unclaim(&f->q, ticket);
    queue_fail_slot(&f->q, &f->q.slots[ticket & f->q.mask], word, 0x371);
    assert_int_equal(f->q.slots[ticket & f->q.mask].word, 0x10000);
}

static void who_is_inside_submit_keeps_the_queue_from_freezing(void **state)
{
    struct fixture *f = *state;
    struct gpunvme_dev_place p[2];

    reserve(f, &p[0]);
    reserve(f, &p[1]);
    assert_int_equal(queue_freeze(&f->q, 0), QUEUE_STUCK_SUBMIT); /* the doorbell is held */
    fill(f, &p[0], 0);
    assert_int_equal(queue_freeze(&f->q, 0), QUEUE_STUCK_SUBMIT); /* a mark is missing */
    fill(f, &p[1], 0);
    freeze(f);
    fail_and_thaw(f);
    assert_int_equal(f->q.closed_at, ENTRIES);
}

/* --- a CPU thread reaps ------------------------------------------------------------------------
 */

/* What the CPU's reaper does with a completion. */
static void complete_mirror(struct fixture *f, uint64_t ticket, uint16_t status, uint64_t result)
{
    struct gpunvme_cqe cqe = {.dw0 = (uint32_t)result, .dw1 = (uint32_t)(result >> 32)};
    uint32_t dw3 = (uint32_t)(ticket & 0xffff) | (uint32_t)status << 17;

    assert_int_equal(gpunvme_slot_complete(f->mirror, 2 * ENTRIES - 1, &cqe, dw3), 1);
}

static void a_mirrored_ticket_ends_once(void **state)
{
    struct fixture *f = *state;
    uint16_t status;
    uint64_t ticket;

    f->q.mirror = f->mirror;
    ticket = submit(f, 0);
    assert_int_equal(gpunvme_dev_queue_test(&f->q, ticket, &status), GPUNVME_ERR_AGAIN);
    complete_mirror(f, ticket, 0x7f, 5);
    assert_int_equal(gpunvme_dev_queue_test(&f->q, ticket, &status), GPUNVME_OK);
    assert_int_equal(status, 0x7f);
    assert_int_equal(outstanding(f), 0);
    assert_int_equal(gpunvme_dev_queue_test(&f->q, ticket, &status), GPUNVME_ERR_STALE);
    assert_int_equal(outstanding(f), 0);
}

static void a_reset_leaves_mirrored_slots_to_who_waits(void **state)
{
    struct fixture *f = *state;
    uint16_t status;
    uint64_t ticket;

    f->q.mirror = f->mirror;
    ticket = submit(f, 0);
    freeze(f);
    complete_mirror(f, ticket, 0x371, 0); /* as the CPU's queue pair does it */
    fail_and_thaw(f);
    assert_int_equal(gpunvme_dev_queue_test(&f->q, ticket, &status), GPUNVME_OK);
    assert_int_equal(status, 0x371);
    assert_int_equal(outstanding(f), 0);
}

/* A reset ends between the position that a thread is refused and the doorbell that it gets. */
static struct fixture *interrupted;

static void end_reset(void)
{
    queue_thaw(&interrupted->q);
}

static void submit_beside(void)
{
    submit(interrupted, 7);
    assert_int_equal(interrupted->doorbells[0], 0); /* left to who has the doorbell */
}

static void who_is_refused_rings_for_those_that_came_after_the_reset(void **state)
{
    struct fixture *f = *state;
    struct gpunvme_dev_place p;
    int err;

    interrupted = f;
    assert_int_equal(queue_freeze(&f->q, SOON), QUEUE_FROZEN);
    assert_int_equal(gpunvme_dev_slot_claim(&f->q, 1, 1, gpunvme_dev_want_any(), &p.ticket), 1);
    before_doorbell = end_reset;
    after_doorbell = submit_beside;
    assert_int_equal(gpunvme_dev_queue_place(&f->q, 1, 1, &p, &err), 0);
    assert_int_equal(err, GPUNVME_ERR_CLOSED);
    gpunvme_dev_queue_help(&f->q);
    assert_int_equal(f->doorbells[0], 1);
    assert_int_equal(outstanding(f), 1);
    submit(f, 8);
    assert_int_equal(f->doorbells[0], 2);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(waits_see_completions_in_every_lap),
        TEST(who_has_the_completion_queue_keeps_others_out),
        TEST(a_lone_lane_looks_once_for_one_command),
        TEST(a_lone_lane_looks_for_no_more_than_are_in_flight),
        TEST(a_lone_lane_takes_several_completions_at_once),
        TEST(news_are_seen_in_every_lap),
        TEST(a_full_queue_takes_no_more),
        TEST(a_closed_queue_gives_slot_and_doorbell_back),
        TEST(an_entry_is_whole_when_the_doorbell_rings),
        TEST(the_holder_rings_for_marks_behind_it),
        TEST(the_doorbell_stops_at_the_first_gap),
        TEST(a_holder_leaves_endless_marks_to_who_waits),
        TEST(who_rings_goes_up_to_the_first_gap),
        TEST(a_wait_rings_for_what_was_left),
        TEST(who_waits_rings_for_what_was_left),
        cmocka_unit_test(whoever_rings_has_the_entries_of_others),
        TEST(a_ticket_ends_once),
        TEST(a_command_id_that_is_not_in_flight_is_counted),
        TEST(a_wait_ends_at_its_deadline),
        TEST(an_abandoned_command_frees_its_slot_when_it_completes),
        TEST(a_command_that_is_done_is_not_abandoned),
        TEST(a_reset_gives_abandoned_slots_back),
        TEST(a_reset_ends_the_other_commands_with_its_status),
        TEST(a_slot_claimed_before_a_reset_serves_after_it),
        TEST(a_slot_claimed_while_frozen_serves_after_the_reset),
        TEST(completions_of_nothing_do_not_keep_a_reset_off),
        TEST(a_queue_whose_freeze_is_canceled_stays_closed),
        TEST(a_slot_abandoned_during_a_reset_is_given_back),
        TEST(a_slot_given_back_during_a_reset_stays_free),
        TEST(who_is_inside_submit_keeps_the_queue_from_freezing),
        TEST(a_mirrored_ticket_ends_once),
        TEST(a_reset_leaves_mirrored_slots_to_who_waits),
        cmocka_unit_test_setup_teardown(who_is_refused_rings_for_those_that_came_after_the_reset,
                                        setup, teardown),
    };

    return cmocka_run_group_tests_name("the queue of warps", tests, NULL, NULL);
}
