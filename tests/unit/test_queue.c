/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The queue pair by value: what it writes where, and when it rings. One thread, and a device that
 * is a few lines of the test; test_queue_model.c has the threads.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "queue_memory.h"
#include "rng.h"

#define SQ_DOORBELL 0x1008u
#define CQ_DOORBELL 0x100cu
#define MAX_RINGS   256

struct rig {
    struct gpunvme_qpair q;
    struct queue_memory m;
    struct gpunvme_qpair_config config;
    uint32_t entries;
    uint64_t posted; /* completions that the device wrote */
    struct {
        uint32_t offset, value;
    } rings[MAX_RINGS];
    unsigned nrings;
    uint32_t shadow[2], event_index[2]; /* SQ, CQ */
    unsigned submit_inside; /* commands that another thread submits while the doorbell is rung */
};

static void ring(void *arg, uint32_t offset, uint32_t value)
{
    struct rig *r = arg;

    assert_in_range(r->nrings, 0, MAX_RINGS - 1);
    r->rings[r->nrings].offset = offset;
    r->rings[r->nrings++].value = value;
    if (r->submit_inside && offset == SQ_DOORBELL) {
        struct gpunvme_sqe sqe = {0};
        uint64_t ticket;

        r->submit_inside--;
        assert_int_equal(gpunvme_qpair_submit(&r->q, &sqe, 1, &ticket), 1);
    }
}

static struct rig *rig_prepare(uint32_t entries)
{
    struct rig *r = queue_memory_zeroed(sizeof(*r));

    r->entries = entries;
    queue_memory_alloc(&r->m, entries);
    r->config = queue_memory_config(&r->m, entries);
    r->config.sq_doorbell.offset = SQ_DOORBELL;
    r->config.cq_doorbell.offset = CQ_DOORBELL;
    r->config.ring = ring;
    r->config.ring_arg = r;
    return r;
}

static struct rig *rig_start(struct rig *r)
{
    assert_int_equal(gpunvme_qpair_init(&r->q, &r->config), GPUNVME_OK);
    return r;
}

static struct rig *rig_open(uint32_t entries)
{
    return rig_start(rig_prepare(entries));
}

static void rig_close(struct rig *r)
{
    queue_memory_free(&r->m);
    free(r);
}

static uint64_t submit_one(struct rig *r)
{
    struct gpunvme_sqe sqe = {.opc = 2};
    uint64_t ticket = 0;

    assert_int_equal(gpunvme_qpair_submit(&r->q, &sqe, 1, &ticket), 1);
    return ticket;
}

static int submit_many(struct rig *r, uint32_t n, uint64_t *tickets)
{
    static const struct gpunvme_sqe sqes[64];

    assert_in_range(n, 0, 64);
    return gpunvme_qpair_submit(&r->q, sqes, n, tickets);
}

static void post(struct rig *r, uint64_t ticket, uint16_t status, uint64_t result)
{
    queue_memory_complete(r->m.cq, r->entries, r->posted++, (uint16_t)ticket, status, result, 0);
}

/* The command ends well, with its ticket for a result. */
static void end_one(struct rig *r, uint64_t ticket)
{
    struct gpunvme_completion c;

    post(r, ticket, 0, ticket);
    assert_int_equal(gpunvme_qpair_reap(&r->q), 1);
    assert_int_equal(gpunvme_qpair_test(&r->q, ticket, &c), GPUNVME_OK);
    assert_int_equal(c.status, 0);
    assert_true(c.result == ticket);
}

static void assert_ends(struct rig *r, uint64_t ticket, uint16_t status, uint64_t result)
{
    struct gpunvme_completion c = {0};

    assert_int_equal(gpunvme_qpair_test(&r->q, ticket, &c), GPUNVME_OK);
    assert_int_equal(c.status, status);
    assert_true(c.result == result);
}

static int test_ticket(struct rig *r, uint64_t ticket)
{
    struct gpunvme_completion c;

    return gpunvme_qpair_test(&r->q, ticket, &c);
}

/* Exactly one ring since the last look, of this doorbell with this value. */
static void assert_rang_once(struct rig *r, uint32_t offset, uint32_t value)
{
    assert_int_equal(r->nrings, 1);
    assert_int_equal(r->rings[0].offset, offset);
    assert_int_equal(r->rings[0].value, value);
    r->nrings = 0;
}

static void assert_silent(struct rig *r)
{
    assert_int_equal(r->nrings, 0);
}

/* --- configuration ---------------------------------------------------------------------------- */

static void a_size_that_is_no_power_of_two_in_range_is_refused(void **state)
{
    static const uint32_t sizes[] = {0,     1,      3,       6,          1000,    16383,
                                     32768, 65536u, 0x30000, UINT32_MAX, 1u << 31};
    struct rig *r = rig_prepare(4);

    (void)state;
    for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        r->config.entries = sizes[i];
        assert_int_equal(gpunvme_qpair_init(&r->q, &r->config), GPUNVME_ERR_INVALID);
    }
    r->config.entries = GPUNVME_QPAIR_MAX_ENTRIES * 2;
    assert_int_equal(gpunvme_qpair_init(&r->q, &r->config), GPUNVME_ERR_INVALID);
    rig_close(r);
}

static void queue_memory_that_is_null_is_refused(void **state)
{
    struct rig *r = rig_prepare(4);
    struct gpunvme_qpair_config good = r->config;

    (void)state;
    r->config.sq = NULL;
    assert_int_equal(gpunvme_qpair_init(&r->q, &r->config), GPUNVME_ERR_INVALID);
    r->config = good;
    r->config.cq = NULL;
    assert_int_equal(gpunvme_qpair_init(&r->q, &r->config), GPUNVME_ERR_INVALID);
    r->config = good;
    r->config.slots = NULL;
    assert_int_equal(gpunvme_qpair_init(&r->q, &r->config), GPUNVME_ERR_INVALID);
    r->config = good;
    r->config.ready = NULL;
    assert_int_equal(gpunvme_qpair_init(&r->q, &r->config), GPUNVME_ERR_INVALID);
    r->config = good;
    assert_int_equal(gpunvme_qpair_init(&r->q, &r->config), GPUNVME_OK);
    rig_close(r);
}

static void a_doorbell_with_no_way_to_ring_it_is_refused(void **state)
{
    struct rig *r = rig_prepare(4);
    uint32_t reg = 0;

    (void)state;
    r->config.ring = NULL;
    assert_int_equal(gpunvme_qpair_init(&r->q, &r->config), GPUNVME_ERR_INVALID);
    r->config.sq_doorbell.mmio = &reg;
    assert_int_equal(gpunvme_qpair_init(&r->q, &r->config), GPUNVME_ERR_INVALID);
    r->config.sq_doorbell.mmio = NULL;
    r->config.cq_doorbell.mmio = &reg;
    assert_int_equal(gpunvme_qpair_init(&r->q, &r->config), GPUNVME_ERR_INVALID);
    r->config.sq_doorbell.mmio = &reg;
    assert_int_equal(gpunvme_qpair_init(&r->q, &r->config), GPUNVME_OK);
    rig_close(r);
}

static void a_shadow_without_an_event_index_is_refused(void **state)
{
    struct rig *r = rig_prepare(4);

    (void)state;
    r->config.sq_doorbell.shadow = &r->shadow[0];
    assert_int_equal(gpunvme_qpair_init(&r->q, &r->config), GPUNVME_ERR_INVALID);
    r->config.sq_doorbell.shadow = NULL;
    r->config.cq_doorbell.shadow = &r->shadow[1];
    assert_int_equal(gpunvme_qpair_init(&r->q, &r->config), GPUNVME_ERR_INVALID);
    r->config.cq_doorbell.event_index = &r->event_index[1];
    assert_int_equal(gpunvme_qpair_init(&r->q, &r->config), GPUNVME_OK);
    rig_close(r);
}

/* FFFFh in an error log entry means "no command" (Base 1.4, section 5.14.1.1). */
static void no_command_id_of_the_largest_queue_is_ffffh(void **state)
{
    (void)state;
    assert_true(GPUNVME_QPAIR_SLOTS(GPUNVME_QPAIR_MAX_ENTRIES) - 1 < 0xffff);
}

static void the_largest_queue_fills_up_and_empties(void **state)
{
    struct rig *r = rig_open(GPUNVME_QPAIR_MAX_ENTRIES);
    uint64_t tickets[64], ended = 0, taken = 0;
    int n;

    (void)state;
    while ((n = submit_many(r, 64, tickets)) > 0) {
        r->nrings = 0;
        taken += (uint64_t)n;
    }
    assert_true(taken == GPUNVME_QPAIR_MAX_ENTRIES - 1);
    /* In the first lap of an empty queue position and slot are the same. */
    for (uint64_t i = 0; i < taken; i++)
        post(r, i, 0, 0);
    assert_int_equal(gpunvme_qpair_reap(&r->q), taken);
    for (uint64_t i = 0; i < taken; i++)
        ended += test_ticket(r, i) == GPUNVME_OK;
    assert_true(ended == taken);
    assert_int_equal(gpunvme_qpair_outstanding(&r->q), 0);
    rig_close(r);
}

/* --- submission ------------------------------------------------------------------------------- */

static void an_entry_is_the_callers_but_for_the_command_id(void **state)
{
    struct rig *r = rig_open(8);
    struct gpunvme_sqe sqe, want;
    uint64_t ticket = 0;

    (void)state;
    for (unsigned i = 0; i < 40; i++) {
        memset(&sqe, (int)(i * 37 + 1), sizeof(sqe));
        assert_int_equal(gpunvme_qpair_submit(&r->q, &sqe, 1, &ticket), 1);
        want = sqe;
        want.cid = (uint16_t)ticket;
        assert_memory_equal(&r->m.sq[i % 8], &want, sizeof(want));
        end_one(r, ticket);
        r->nrings = 0;
    }
    rig_close(r);
}

static void the_command_id_is_the_slot_of_the_ticket(void **state)
{
    struct rig *r = rig_open(16);
    uint64_t tickets[15];
    bool used[32] = {0};

    (void)state;
    assert_int_equal(submit_many(r, 15, tickets), 15);
    for (unsigned i = 0; i < 15; i++) {
        uint16_t cid = r->m.sq[i].cid;

        assert_int_equal(cid, tickets[i] & 0xffff);
        assert_in_range(cid, 0, 31);
        assert_false(used[cid]);
        used[cid] = true;
    }
    rig_close(r);
}

static void a_batch_rings_once_with_the_new_tail(void **state)
{
    struct rig *r = rig_open(16);
    uint64_t tickets[15];

    (void)state;
    assert_int_equal(submit_many(r, 7, tickets), 7);
    assert_rang_once(r, SQ_DOORBELL, 7);
    assert_int_equal(submit_many(r, 1, tickets), 1);
    assert_rang_once(r, SQ_DOORBELL, 8);
    rig_close(r);
}

static void the_tail_wraps_to_zero(void **state)
{
    struct rig *r = rig_open(4);

    (void)state;
    for (unsigned i = 0; i < 20; i++) {
        uint64_t ticket = submit_one(r);

        assert_rang_once(r, SQ_DOORBELL, (i + 1) % 4);
        end_one(r, ticket);
        assert_rang_once(r, CQ_DOORBELL, (i + 1) % 4);
    }
    rig_close(r);
}

static void a_batch_across_the_wrap_lands_on_both_sides(void **state)
{
    struct rig *r = rig_open(8);
    struct gpunvme_sqe sqes[7] = {{0}};
    uint64_t tickets[7];

    (void)state;
    for (unsigned i = 0; i < 5; i++)
        end_one(r, submit_one(r));
    r->nrings = 0;
    for (unsigned i = 0; i < 7; i++)
        sqes[i].cdw10 = 100 + i;
    assert_int_equal(gpunvme_qpair_submit(&r->q, sqes, 7, tickets), 7);
    assert_rang_once(r, SQ_DOORBELL, 4);
    for (unsigned i = 0; i < 7; i++)
        assert_int_equal(r->m.sq[(5 + i) % 8].cdw10, 100 + i);
    rig_close(r);
}

static void a_full_queue_takes_fewer_then_none(void **state)
{
    struct rig *r = rig_open(8);
    uint64_t tickets[16];

    (void)state;
    assert_int_equal(submit_many(r, 5, tickets), 5);
    assert_int_equal(submit_many(r, 5, tickets + 5), 2);
    r->nrings = 0;
    assert_int_equal(submit_many(r, 5, tickets + 7), 0);
    assert_int_equal(submit_many(r, 1, tickets + 7), 0);
    assert_silent(r);
    assert_int_equal(gpunvme_qpair_outstanding(&r->q), 7);
    rig_close(r);
}

static void a_batch_larger_than_the_queue_is_cut(void **state)
{
    struct rig *r = rig_open(2);
    uint64_t tickets[64];

    (void)state;
    assert_int_equal(submit_many(r, 64, tickets), 1);
    assert_rang_once(r, SQ_DOORBELL, 1);
    rig_close(r);
}

static void room_returns_when_a_ticket_ends_not_when_its_command_does(void **state)
{
    struct rig *r = rig_open(4);
    uint64_t tickets[4];

    (void)state;
    assert_int_equal(submit_many(r, 3, tickets), 3);
    post(r, tickets[1], 0, 0);
    assert_int_equal(gpunvme_qpair_reap(&r->q), 1);
    assert_int_equal(submit_many(r, 1, tickets + 3), 0);
    assert_ends(r, tickets[1], 0, 0);
    assert_int_equal(submit_many(r, 2, tickets + 3), 1);
    rig_close(r);
}

static void submitting_nothing_does_nothing(void **state)
{
    struct rig *r = rig_open(4);
    uint64_t ticket;

    (void)state;
    assert_int_equal(submit_many(r, 0, &ticket), 0);
    assert_silent(r);
    assert_int_equal(gpunvme_qpair_outstanding(&r->q), 0);
    rig_close(r);
}

static void a_position_that_is_not_filled_holds_back_those_behind_it(void **state)
{
    struct rig *r = rig_open(8);
    struct gpunvme_sqe sqe = {0};
    uint64_t first = 0, second = 0;

    (void)state;
    assert_int_equal(gpunvme_qpair_reserve(&r->q, 2, &first), 2);
    assert_int_equal(gpunvme_qpair_reserve(&r->q, 1, &second), 1);
    gpunvme_qpair_fill(&r->q, second, gpunvme_qpair_claim_slot(&r->q, second), &sqe);
    gpunvme_qpair_publish(&r->q);
    assert_silent(r);
    gpunvme_qpair_fill(&r->q, first, gpunvme_qpair_claim_slot(&r->q, first), &sqe);
    gpunvme_qpair_publish(&r->q);
    assert_rang_once(r, SQ_DOORBELL, 1);
    gpunvme_qpair_fill(&r->q, first + 1, gpunvme_qpair_claim_slot(&r->q, first + 1), &sqe);
    gpunvme_qpair_publish(&r->q);
    assert_rang_once(r, SQ_DOORBELL, 3);
    rig_close(r);
}

static void a_thread_that_finds_the_doorbell_taken_leaves_it(void **state)
{
    struct rig *r = rig_open(8);
    struct gpunvme_sqe sqe = {0};
    uint64_t pos = 0;

    (void)state;
    assert_int_equal(gpunvme_qpair_reserve(&r->q, 1, &pos), 1);
    gpunvme_qpair_fill(&r->q, pos, gpunvme_qpair_claim_slot(&r->q, pos), &sqe);
    assert_int_equal(gpunvme_exchange32(&r->q.sq_lock, 1), 0);
    gpunvme_qpair_publish(&r->q);
    assert_silent(r);
    gpunvme_exchange32(&r->q.sq_lock, 0);
    gpunvme_qpair_publish(&r->q);
    assert_rang_once(r, SQ_DOORBELL, 1);
    rig_close(r);
}

static void whoever_rings_looks_again_for_those_who_came_meanwhile(void **state)
{
    struct rig *r = rig_open(8);

    (void)state;
    r->submit_inside = 3;
    submit_one(r);
    assert_int_equal(r->nrings, 4);
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(r->rings[i].value, i + 1);
    rig_close(r);
}

/* --- completion ------------------------------------------------------------------------------- */

static void completions_of_three_laps_arrive_by_their_phase(void **state)
{
    struct rig *r = rig_open(4);

    (void)state;
    for (unsigned i = 0; i < 12; i++) {
        uint64_t ticket = submit_one(r);

        /* What stands in the queue is of an earlier lap, or zero. */
        assert_int_equal(gpunvme_qpair_reap(&r->q), 0);
        assert_int_equal(test_ticket(r, ticket), GPUNVME_ERR_AGAIN);
        end_one(r, ticket);
        assert_int_equal(gpunvme_qpair_reap(&r->q), 0);
    }
    assert_int_equal(r->q.spurious, 0);
    rig_close(r);
}

static void completions_reach_their_tickets_in_any_order(void **state)
{
    static const unsigned order[] = {3, 0, 6, 1, 5, 2, 4};
    struct rig *r = rig_open(8);
    uint64_t tickets[7];

    (void)state;
    assert_int_equal(submit_many(r, 7, tickets), 7);
    for (unsigned i = 0; i < 7; i++) {
        uint64_t ticket = tickets[order[i]];

        post(r, ticket, (uint16_t)(order[i] + 1), 1000 + order[i]);
        assert_int_equal(gpunvme_qpair_reap(&r->q), 1);
        for (unsigned k = i + 1; k < 7; k++)
            assert_int_equal(test_ticket(r, tickets[order[k]]), GPUNVME_ERR_AGAIN);
        assert_ends(r, ticket, (uint16_t)(order[i] + 1), 1000 + order[i]);
    }
    rig_close(r);
}

static void every_status_of_fifteen_bits_arrives(void **state)
{
    struct rig *r = rig_open(16);

    (void)state;
    for (uint32_t status = 0; status <= 0x7fff; status++) {
        uint64_t ticket = submit_one(r);

        post(r, ticket, (uint16_t)status, status * UINT64_C(0x100000001));
        assert_int_equal(gpunvme_qpair_reap(&r->q), 1);
        assert_ends(r, ticket, (uint16_t)status, status * UINT64_C(0x100000001));
        r->nrings = 0;
    }
    rig_close(r);
}

static void every_bit_of_the_result_arrives(void **state)
{
    struct rig *r = rig_open(4);

    (void)state;
    for (unsigned bit = 0; bit < 64; bit++) {
        uint64_t ticket = submit_one(r);

        post(r, ticket, 0, UINT64_C(1) << bit);
        assert_int_equal(gpunvme_qpair_reap(&r->q), 1);
        assert_ends(r, ticket, 0, UINT64_C(1) << bit);
        r->nrings = 0;
    }
    rig_close(r);
}

static void one_doorbell_acknowledges_all_that_was_reaped(void **state)
{
    struct rig *r = rig_open(8);
    uint64_t tickets[7];

    (void)state;
    for (unsigned i = 0; i < 5; i++)
        end_one(r, submit_one(r));
    assert_int_equal(submit_many(r, 7, tickets), 7);
    r->nrings = 0;
    for (unsigned i = 0; i < 7; i++)
        post(r, tickets[i], 0, 0);
    assert_int_equal(gpunvme_qpair_reap(&r->q), 7);
    assert_rang_once(r, CQ_DOORBELL, 4);
    rig_close(r);
}

static void reaping_nothing_rings_nothing(void **state)
{
    struct rig *r = rig_open(8);

    (void)state;
    assert_int_equal(gpunvme_qpair_reap(&r->q), 0);
    assert_silent(r);
    rig_close(r);
}

static void reaping_beside_another_thread_takes_nothing(void **state)
{
    struct rig *r = rig_open(8);
    uint64_t ticket = submit_one(r);

    (void)state;
    r->nrings = 0;
    post(r, ticket, 0, 0);
    assert_int_equal(gpunvme_exchange32(&r->q.cq_lock, 1), 0);
    assert_int_equal(gpunvme_qpair_reap(&r->q), 0);
    assert_int_equal(test_ticket(r, ticket), GPUNVME_ERR_AGAIN);
    assert_silent(r);
    gpunvme_exchange32(&r->q.cq_lock, 0);
    assert_int_equal(gpunvme_qpair_reap(&r->q), 1);
    rig_close(r);
}

/* A device that overruns the queue makes no thread reap for ever. */
static void one_reap_takes_at_most_a_queue_of_completions(void **state)
{
    struct rig *r = rig_open(4);

    (void)state;
    for (unsigned i = 0; i < 4; i++)
        post(r, 7, 0, 0);
    assert_int_equal(gpunvme_qpair_reap(&r->q), 4);
    assert_int_equal(gpunvme_qpair_reap(&r->q), 0);
    rig_close(r);
}

/* --- tickets ---------------------------------------------------------------------------------- */

static void a_ticket_ends_once(void **state)
{
    struct rig *r = rig_open(4);
    uint64_t ticket = submit_one(r);

    (void)state;
    assert_int_equal(test_ticket(r, ticket), GPUNVME_ERR_AGAIN);
    end_one(r, ticket);
    assert_int_equal(test_ticket(r, ticket), GPUNVME_ERR_STALE);
    assert_int_equal(test_ticket(r, ticket), GPUNVME_ERR_STALE);
    assert_int_equal(gpunvme_qpair_outstanding(&r->q), 0);
    rig_close(r);
}

static void a_ticket_is_not_mistaken_for_a_later_one_of_its_slot(void **state)
{
    struct rig *r = rig_open(2);
    uint64_t old[16];

    (void)state;
    for (unsigned i = 0; i < 16; i++) {
        old[i] = submit_one(r);
        for (unsigned k = 0; k < i; k++) {
            assert_true(old[k] != old[i]);
            assert_int_equal(test_ticket(r, old[k]), GPUNVME_ERR_STALE);
        }
        post(r, old[i], 0, 0);
        gpunvme_qpair_reap(&r->q);
        for (unsigned k = 0; k < i; k++)
            assert_int_equal(test_ticket(r, old[k]), GPUNVME_ERR_STALE);
        assert_ends(r, old[i], 0, 0);
    }
    rig_close(r);
}

static void a_ticket_that_was_never_given_is_stale(void **state)
{
    struct rig *r = rig_open(4);

    (void)state;
    assert_int_equal(test_ticket(r, 0), GPUNVME_ERR_STALE);
    assert_int_equal(test_ticket(r, UINT64_MAX), GPUNVME_ERR_STALE);
    submit_one(r);
    assert_int_equal(test_ticket(r, UINT64_C(1) << 16), GPUNVME_ERR_STALE);
    rig_close(r);
}

static void tickets_run_through_the_end_of_sixty_four_bits(void **state)
{
    struct rig *r = rig_prepare(2);
    unsigned low = 0, high = 0;
    uint64_t last = 0;

    (void)state;
    r->config.first_generation = (UINT64_C(1) << 48) - 3;
    rig_start(r);
    for (unsigned i = 0; i < 64; i++) {
        uint64_t ticket = submit_one(r);

        assert_true(!i || ticket != last);
        if (ticket >> 16 >= (UINT64_C(1) << 48) - 3)
            high++;
        else if (ticket >> 16 < 64)
            low++;
        end_one(r, ticket);
        assert_int_equal(test_ticket(r, ticket), GPUNVME_ERR_STALE);
        last = ticket;
        r->nrings = 0;
    }
    assert_int_equal(high + low, 64);
    assert_true(high >= 3 && low >= 3);
    rig_close(r);
}

static void positions_run_through_their_wraps(void **state)
{
    static const uint64_t wraps[] = {UINT64_C(1) << 32, UINT64_C(1) << 33, UINT64_C(1) << 34,
                                     UINT64_C(1) << 48, UINT64_C(1) << 63};
    uint64_t tickets[3];

    (void)state;
    for (unsigned w = 0; w < sizeof(wraps) / sizeof(wraps[0]); w++) {
        struct rig *r = rig_prepare(4);

        r->config.first_position = wraps[w] - 10; /* rounded to a lap: - 12 */
        rig_start(r);
        for (unsigned i = 0; i < 10; i++) {
            assert_int_equal(submit_many(r, 3, tickets), 3);
            assert_rang_once(r, SQ_DOORBELL, (3 * i + 3) % 4);
            assert_int_equal(submit_many(r, 1, tickets), 0);
            for (unsigned k = 0; k < 3; k++)
                end_one(r, tickets[k]);
            assert_int_equal(gpunvme_qpair_outstanding(&r->q), 0);
            r->nrings = 0;
        }
        rig_close(r);
    }
}

static void wait_ends_a_command_that_is_done_even_past_its_deadline(void **state)
{
    struct rig *r = rig_open(4);
    struct gpunvme_completion c;
    uint64_t ticket = submit_one(r);

    (void)state;
    post(r, ticket, 5, 6);
    assert_int_equal(gpunvme_qpair_wait(&r->q, ticket, 0, &c), GPUNVME_OK);
    assert_int_equal(c.status, 5);
    assert_true(c.result == 6);
    assert_int_equal(gpunvme_qpair_wait(&r->q, ticket, 0, &c), GPUNVME_ERR_STALE);
    rig_close(r);
}

static void wait_gives_up_at_its_deadline_and_leaves_the_command_in_flight(void **state)
{
    struct rig *r = rig_open(4);
    struct gpunvme_completion c;
    uint64_t ticket = submit_one(r);

    (void)state;
    assert_int_equal(gpunvme_qpair_wait(&r->q, ticket, 0, &c), GPUNVME_ERR_TIMEOUT);
    assert_int_equal(gpunvme_qpair_wait(&r->q, ticket, gpunvme_clock_ns() + 1000000, &c),
                     GPUNVME_ERR_TIMEOUT);
    assert_int_equal(gpunvme_qpair_outstanding(&r->q), 1);
    end_one(r, ticket);
    rig_close(r);
}

/* --- completions that nobody waits for -------------------------------------------------------- */

static void completions_of_nothing_in_flight_are_counted_and_harmless(void **state)
{
    static const uint16_t cids[] = {0, 3, 7, 8, 9, 0x100, 0x7fff, 0x8000, 0xffff};
    static const unsigned n = sizeof(cids) / sizeof(cids[0]);
    struct rig *r = rig_open(4); /* slots 0 … 7 */

    (void)state;
    for (unsigned i = 0; i < n; i++) {
        post(r, cids[i], 0x123, 0);
        assert_int_equal(gpunvme_qpair_reap(&r->q), 1);
        assert_int_equal(r->q.spurious, i + 1);
    }
    r->nrings = 0;
    for (unsigned i = 0; i < 8; i++)
        end_one(r, submit_one(r));
    assert_int_equal(r->q.spurious, n);
    rig_close(r);
}

/* 4 entries, slot 1 in flight: command id 9 is slot 1 of a queue that masks ids. */
static void a_command_id_out_of_range_ends_no_command(void **state)
{
    struct rig *r = rig_open(4);
    uint64_t tickets[2];

    (void)state;
    assert_int_equal(submit_many(r, 2, tickets), 2);
    post(r, tickets[1] + 8, 0, 0);
    assert_int_equal(gpunvme_qpair_reap(&r->q), 1);
    assert_int_equal(r->q.spurious, 1);
    assert_int_equal(test_ticket(r, tickets[0]), GPUNVME_ERR_AGAIN);
    assert_int_equal(test_ticket(r, tickets[1]), GPUNVME_ERR_AGAIN);
    rig_close(r);
}

static void a_command_completed_twice_keeps_its_first_completion(void **state)
{
    struct rig *r = rig_open(4);
    uint64_t ticket = submit_one(r);

    (void)state;
    post(r, ticket, 0x11, 0x22);
    post(r, ticket, 0x33, 0x44);
    assert_int_equal(gpunvme_qpair_reap(&r->q), 2);
    assert_int_equal(r->q.spurious, 1);
    assert_ends(r, ticket, 0x11, 0x22);
    rig_close(r);
}

/* --- doorbells -------------------------------------------------------------------------------- */

static void a_mapped_doorbell_is_written_and_no_function_called(void **state)
{
    struct rig *r = rig_prepare(4);
    uint32_t sq = 99, cq = 99;
    uint64_t ticket;

    (void)state;
    r->config.sq_doorbell.mmio = &sq;
    r->config.cq_doorbell.mmio = &cq;
    rig_start(r);
    assert_int_equal(sq, 99);
    ticket = submit_one(r);
    assert_int_equal(sq, 1);
    assert_int_equal(cq, 99);
    end_one(r, ticket);
    assert_int_equal(sq, 1);
    assert_int_equal(cq, 1);
    assert_silent(r);
    rig_close(r);
}

static void one_doorbell_may_be_mapped_and_the_other_not(void **state)
{
    struct rig *r = rig_prepare(4);
    uint32_t sq = 99;

    (void)state;
    r->config.sq_doorbell.mmio = &sq;
    rig_start(r);
    end_one(r, submit_one(r));
    assert_int_equal(sq, 1);
    assert_rang_once(r, CQ_DOORBELL, 1);
    rig_close(r);
}

/*
 * The oracle: the tail (or head) goes from `old` to `value` by single steps round the queue, and
 * the device wants to hear of the step that begins at `event_index`.
 */
static int passes(uint32_t entries, uint32_t event_index, uint32_t value, uint32_t old)
{
    for (uint32_t at = old; at != value; at = (at + 1) % entries) {
        if (at == event_index)
            return 1;
    }
    return 0;
}

static void a_shadow_doorbell_is_rung_when_it_passes_the_event_index(void **state)
{
    (void)state;
    for (uint32_t entries = 2; entries <= 64; entries *= 2) {
        for (uint32_t i = 0; i < entries * entries * entries; i++) {
            uint32_t event_index = i % entries;
            uint32_t value = i / entries % entries, old = i / entries / entries;

            assert_int_equal(gpunvme_doorbell_is_wanted(event_index, value, old),
                             passes(entries, event_index, value, old));
        }
    }
}

static void the_event_index_is_right_in_the_largest_queues_too(void **state)
{
    struct base_random rng = {.state = 5};

    (void)state;
    for (uint32_t entries = 1024; entries <= 65536; entries *= 4) {
        for (unsigned i = 0; i < 200; i++) {
            uint32_t old = (uint32_t)base_random_below(&rng, entries);
            uint32_t value = (old + (uint32_t)base_random_below(&rng, entries)) % entries;
            uint32_t near = rng_one_in(&rng, 2) ? old : value;
            uint32_t event_index =
                (near + entries + (uint32_t)base_random_below(&rng, 5) - 2) % entries;

            assert_int_equal(gpunvme_doorbell_is_wanted(event_index, value, old),
                             passes(entries, event_index, value, old));
        }
    }
}

static struct rig *rig_open_shadowed(uint32_t entries)
{
    struct rig *r = rig_prepare(entries);

    r->config.sq_doorbell.shadow = &r->shadow[0];
    r->config.sq_doorbell.event_index = &r->event_index[0];
    r->config.cq_doorbell.shadow = &r->shadow[1];
    r->config.cq_doorbell.event_index = &r->event_index[1];
    return rig_start(r);
}

static void a_shadowed_queue_writes_its_shadow_and_rings_on_demand(void **state)
{
    struct rig *r = rig_open_shadowed(8);

    (void)state;
    r->event_index[0] = 2; /* ring when the tail passes 2 */
    r->event_index[1] = 7; /* the head: not soon */
    for (unsigned i = 0; i < 4; i++) {
        uint64_t ticket = submit_one(r);

        assert_int_equal(r->shadow[0], i + 1);
        if (i == 2)
            assert_rang_once(r, SQ_DOORBELL, 3);
        assert_silent(r);
        end_one(r, ticket);
        assert_int_equal(r->shadow[1], i + 1);
        assert_silent(r);
    }
    rig_close(r);
}

static void a_shadowed_queue_rings_over_the_wrap(void **state)
{
    struct rig *r = rig_open_shadowed(4);
    unsigned sq_rings = 0, cq_rings = 0;

    (void)state;
    r->event_index[0] = 3;
    r->event_index[1] = 0;
    for (unsigned i = 0; i < 40; i++) {
        end_one(r, submit_one(r));
        for (unsigned k = 0; k < r->nrings; k++) {
            sq_rings += r->rings[k].offset == SQ_DOORBELL && r->rings[k].value == 0;
            cq_rings += r->rings[k].offset == CQ_DOORBELL && r->rings[k].value == 1;
        }
        assert_true(r->nrings <= 1);
        r->nrings = 0;
    }
    assert_int_equal(sq_rings, 10);
    assert_int_equal(cq_rings, 10);
    rig_close(r);
}

/* --- reset ------------------------------------------------------------------------------------ */

static uint64_t soon(void)
{
    return gpunvme_clock_ns() + UINT64_C(1000000000);
}

static void a_frozen_queue_takes_rings_and_reaps_nothing(void **state)
{
    struct rig *r = rig_open(8);
    uint64_t tickets[2];

    (void)state;
    assert_int_equal(submit_many(r, 2, tickets), 2);
    r->nrings = 0;
    assert_int_equal(gpunvme_qpair_freeze(&r->q, soon()), GPUNVME_OK);
    post(r, tickets[0], 0, 0);
    assert_int_equal(submit_many(r, 1, tickets), GPUNVME_ERR_CLOSED);
    assert_int_equal(gpunvme_qpair_reap(&r->q), 0);
    gpunvme_qpair_publish(&r->q);
    assert_silent(r);
    assert_int_equal(test_ticket(r, tickets[0]), GPUNVME_ERR_AGAIN);
    assert_int_equal(gpunvme_qpair_outstanding(&r->q), 2);
    rig_close(r);
}

static void fail_ends_what_is_in_flight_and_nothing_else(void **state)
{
    struct rig *r = rig_open(8);
    uint64_t tickets[5];

    (void)state;
    assert_int_equal(submit_many(r, 5, tickets), 5);
    post(r, tickets[3], 0x21, 77);
    assert_int_equal(gpunvme_qpair_reap(&r->q), 1);
    end_one(r, tickets[0]);
    assert_int_equal(gpunvme_qpair_freeze(&r->q, soon()), GPUNVME_OK);
    gpunvme_qpair_fail(&r->q, 0x7fff);
    assert_int_equal(test_ticket(r, tickets[0]), GPUNVME_ERR_STALE);
    assert_ends(r, tickets[1], 0x7fff, 0);
    assert_ends(r, tickets[2], 0x7fff, 0);
    assert_ends(r, tickets[3], 0x21, 77);
    assert_ends(r, tickets[4], 0x7fff, 0);
    assert_int_equal(gpunvme_qpair_outstanding(&r->q), 0);
    rig_close(r);
}

/* What a controller reset does to the rig's device, and to the queue. */
static void reset_queue(struct rig *r, uint16_t status)
{
    assert_int_equal(gpunvme_qpair_freeze(&r->q, soon()), GPUNVME_OK);
    r->nrings = 0;
    gpunvme_qpair_fail(&r->q, status);
    gpunvme_qpair_rewind(&r->q);
    gpunvme_qpair_thaw(&r->q);
    r->posted = 0;
    assert_silent(r);
}

static void a_rewound_queue_starts_again_from_entry_zero(void **state)
{
    (void)state;
    for (unsigned before = 0; before < 20; before++) {
        struct rig *r = rig_open(8);

        for (unsigned i = 0; i < before; i++)
            end_one(r, submit_one(r));
        r->nrings = 0;
        reset_queue(r, 1);
        for (unsigned i = 0; i < 8; i++)
            assert_int_equal(r->m.cq[i].status, 0);
        /* Two laps: slots, phases and positions all fit together. */
        for (unsigned i = 0; i < 16; i++) {
            uint64_t ticket = submit_one(r);

            assert_rang_once(r, SQ_DOORBELL, (i + 1) % 8);
            assert_int_equal(r->m.sq[i % 8].cid, ticket & 0xffff);
            end_one(r, ticket);
            assert_rang_once(r, CQ_DOORBELL, (i + 1) % 8);
        }
        rig_close(r);
    }
}

static void tickets_live_on_over_a_reset(void **state)
{
    struct rig *r = rig_open(8);
    uint64_t tickets[5], later[8];

    (void)state;
    assert_int_equal(submit_many(r, 5, tickets), 5);
    post(r, tickets[2], 0x44, 9);
    assert_int_equal(gpunvme_qpair_reap(&r->q), 1);
    reset_queue(r, 0x371);
    /* They count until they have ended: 7 - 5 are left. */
    assert_int_equal(gpunvme_qpair_outstanding(&r->q), 5);
    assert_int_equal(submit_many(r, 8, later), 2);
    assert_rang_once(r, SQ_DOORBELL, 2);
    assert_ends(r, tickets[0], 0x371, 0);
    assert_ends(r, tickets[2], 0x44, 9);
    assert_int_equal(submit_many(r, 8, later + 2), 2);
    for (unsigned i = 0; i < 4; i++)
        end_one(r, later[i]);
    assert_ends(r, tickets[4], 0x371, 0);
    assert_ends(r, tickets[1], 0x371, 0);
    assert_ends(r, tickets[3], 0x371, 0);
    assert_int_equal(gpunvme_qpair_outstanding(&r->q), 0);
    assert_int_equal(r->q.spurious, 0);
    rig_close(r);
}

static void a_full_queue_is_full_after_a_reset_too(void **state)
{
    struct rig *r = rig_open(4);
    uint64_t tickets[3], more;

    (void)state;
    assert_int_equal(submit_many(r, 3, tickets), 3);
    for (unsigned i = 0; i < 5; i++) {
        reset_queue(r, 1);
        assert_int_equal(submit_many(r, 1, &more), 0);
    }
    assert_ends(r, tickets[1], 1, 0);
    assert_int_equal(submit_many(r, 2, &more), 1);
    assert_rang_once(r, SQ_DOORBELL, 1);
    rig_close(r);
}

static void a_late_completion_of_before_the_reset_is_spurious(void **state)
{
    struct rig *r = rig_open(4);
    uint64_t ticket = submit_one(r);

    (void)state;
    reset_queue(r, 1);
    post(r, ticket, 0x55, 0);
    assert_int_equal(gpunvme_qpair_reap(&r->q), 1);
    assert_int_equal(r->q.spurious, 1);
    assert_ends(r, ticket, 1, 0);
    rig_close(r);
}

static void resets_near_the_wraps_of_positions_are_as_any(void **state)
{
    static const uint64_t wraps[] = {UINT64_C(1) << 32, UINT64_C(1) << 35, UINT64_C(1) << 63};

    (void)state;
    for (unsigned w = 0; w < 3; w++) {
        struct rig *r = rig_prepare(8);
        uint64_t tickets[3];

        r->config.first_position = wraps[w] - 24;
        rig_start(r);
        for (unsigned i = 0; i < 12; i++) {
            assert_int_equal(submit_many(r, 3, tickets), 3);
            assert_rang_once(r, SQ_DOORBELL, 3);
            end_one(r, tickets[1]);
            reset_queue(r, 2);
            reset_queue(r, 3); /* with nothing submitted since */
            assert_int_equal(gpunvme_qpair_outstanding(&r->q), 2);
            assert_ends(r, tickets[0], 2, 0);
            assert_ends(r, tickets[2], 2, 0);
        }
        rig_close(r);
    }
}

static void rewinding_clears_the_shadows(void **state)
{
    struct rig *r = rig_open_shadowed(8);

    (void)state;
    for (unsigned i = 0; i < 5; i++)
        end_one(r, submit_one(r));
    assert_int_equal(r->shadow[0], 5);
    r->nrings = 0;
    reset_queue(r, 1);
    assert_int_equal(r->shadow[0], 0);
    assert_int_equal(r->shadow[1], 0);
    rig_close(r);
}

static void freezing_waits_for_a_thread_inside_submit(void **state)
{
    struct rig *r = rig_open(8);
    struct gpunvme_sqe sqe = {0};
    uint64_t pos = 0, ticket = 0;

    (void)state;
    assert_int_equal(gpunvme_qpair_reserve(&r->q, 1, &pos), 1);
    assert_int_equal(gpunvme_qpair_freeze(&r->q, gpunvme_clock_ns() + 1000), GPUNVME_ERR_TIMEOUT);
    assert_int_equal(submit_many(r, 1, &ticket), GPUNVME_ERR_CLOSED);
    ticket = gpunvme_qpair_claim_slot(&r->q, pos);
    gpunvme_qpair_fill(&r->q, pos, ticket, &sqe);
    assert_int_equal(gpunvme_qpair_freeze(&r->q, soon()), GPUNVME_OK);
    /* The thread comes to its doorbell too late; the command never reached the device. */
    gpunvme_qpair_publish(&r->q);
    assert_silent(r);
    gpunvme_qpair_fail(&r->q, 3);
    gpunvme_qpair_rewind(&r->q);
    gpunvme_qpair_thaw(&r->q);
    gpunvme_qpair_publish(&r->q);
    assert_silent(r);
    assert_ends(r, ticket, 3, 0);
    assert_int_equal(gpunvme_qpair_outstanding(&r->q), 0);
    rig_close(r);
}

static void freezing_waits_for_a_thread_inside_publish_or_reap(void **state)
{
    struct rig *r = rig_open(8);

    (void)state;
    gpunvme_exchange32(&r->q.sq_lock, 1);
    assert_int_equal(gpunvme_qpair_freeze(&r->q, gpunvme_clock_ns() + 1000), GPUNVME_ERR_TIMEOUT);
    gpunvme_exchange32(&r->q.sq_lock, 0);
    gpunvme_exchange32(&r->q.cq_lock, 1);
    assert_int_equal(gpunvme_qpair_freeze(&r->q, gpunvme_clock_ns() + 1000), GPUNVME_ERR_TIMEOUT);
    gpunvme_exchange32(&r->q.cq_lock, 0);
    /* Nothing that failed keeps a lock. */
    assert_int_equal(gpunvme_qpair_freeze(&r->q, soon()), GPUNVME_OK);
    gpunvme_qpair_thaw(&r->q);
    end_one(r, submit_one(r));
    rig_close(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_size_that_is_no_power_of_two_in_range_is_refused),
        cmocka_unit_test(queue_memory_that_is_null_is_refused),
        cmocka_unit_test(a_doorbell_with_no_way_to_ring_it_is_refused),
        cmocka_unit_test(a_shadow_without_an_event_index_is_refused),
        cmocka_unit_test(no_command_id_of_the_largest_queue_is_ffffh),
        cmocka_unit_test(the_largest_queue_fills_up_and_empties),
        cmocka_unit_test(an_entry_is_the_callers_but_for_the_command_id),
        cmocka_unit_test(the_command_id_is_the_slot_of_the_ticket),
        cmocka_unit_test(a_batch_rings_once_with_the_new_tail),
        cmocka_unit_test(the_tail_wraps_to_zero),
        cmocka_unit_test(a_batch_across_the_wrap_lands_on_both_sides),
        cmocka_unit_test(a_full_queue_takes_fewer_then_none),
        cmocka_unit_test(a_batch_larger_than_the_queue_is_cut),
        cmocka_unit_test(room_returns_when_a_ticket_ends_not_when_its_command_does),
        cmocka_unit_test(submitting_nothing_does_nothing),
        cmocka_unit_test(a_position_that_is_not_filled_holds_back_those_behind_it),
        cmocka_unit_test(a_thread_that_finds_the_doorbell_taken_leaves_it),
        cmocka_unit_test(whoever_rings_looks_again_for_those_who_came_meanwhile),
        cmocka_unit_test(completions_of_three_laps_arrive_by_their_phase),
        cmocka_unit_test(completions_reach_their_tickets_in_any_order),
        cmocka_unit_test(every_status_of_fifteen_bits_arrives),
        cmocka_unit_test(every_bit_of_the_result_arrives),
        cmocka_unit_test(one_doorbell_acknowledges_all_that_was_reaped),
        cmocka_unit_test(reaping_nothing_rings_nothing),
        cmocka_unit_test(reaping_beside_another_thread_takes_nothing),
        cmocka_unit_test(one_reap_takes_at_most_a_queue_of_completions),
        cmocka_unit_test(a_ticket_ends_once),
        cmocka_unit_test(a_ticket_is_not_mistaken_for_a_later_one_of_its_slot),
        cmocka_unit_test(a_ticket_that_was_never_given_is_stale),
        cmocka_unit_test(tickets_run_through_the_end_of_sixty_four_bits),
        cmocka_unit_test(positions_run_through_their_wraps),
        cmocka_unit_test(wait_ends_a_command_that_is_done_even_past_its_deadline),
        cmocka_unit_test(wait_gives_up_at_its_deadline_and_leaves_the_command_in_flight),
        cmocka_unit_test(completions_of_nothing_in_flight_are_counted_and_harmless),
        cmocka_unit_test(a_command_id_out_of_range_ends_no_command),
        cmocka_unit_test(a_command_completed_twice_keeps_its_first_completion),
        cmocka_unit_test(a_mapped_doorbell_is_written_and_no_function_called),
        cmocka_unit_test(one_doorbell_may_be_mapped_and_the_other_not),
        cmocka_unit_test(a_shadow_doorbell_is_rung_when_it_passes_the_event_index),
        cmocka_unit_test(the_event_index_is_right_in_the_largest_queues_too),
        cmocka_unit_test(a_shadowed_queue_writes_its_shadow_and_rings_on_demand),
        cmocka_unit_test(a_shadowed_queue_rings_over_the_wrap),
        cmocka_unit_test(a_frozen_queue_takes_rings_and_reaps_nothing),
        cmocka_unit_test(fail_ends_what_is_in_flight_and_nothing_else),
        cmocka_unit_test(a_rewound_queue_starts_again_from_entry_zero),
        cmocka_unit_test(tickets_live_on_over_a_reset),
        cmocka_unit_test(a_full_queue_is_full_after_a_reset_too),
        cmocka_unit_test(a_late_completion_of_before_the_reset_is_spurious),
        cmocka_unit_test(resets_near_the_wraps_of_positions_are_as_any),
        cmocka_unit_test(rewinding_clears_the_shadows),
        cmocka_unit_test(freezing_waits_for_a_thread_inside_submit),
        cmocka_unit_test(freezing_waits_for_a_thread_inside_publish_or_reap),
    };

    return cmocka_run_group_tests_name("queue", tests, NULL, NULL);
}
