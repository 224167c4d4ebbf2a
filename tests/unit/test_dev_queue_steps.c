/* SPDX-License-Identifier: BSD-3-Clause
 *
 * dev_queue.h against a model, one step at a time: threads, each a warp of one lane, that stand
 * between slot, position and entry, somebody who holds the completion queue, a device, completions
 * in any order, resets at any moment, all interleaved by a seed on one thread. After every step the
 * test knows what the queue must say, and asks it.
 *
 *   GPUNVME_MODEL_COMMANDS  commands in all (1,000,000)
 *   GPUNVME_MODEL_SEED      of the first schedule (1): a failure prints the one that failed
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "device/orders/queue_reset.h"
#include "model_device.h"

#define MAX_ENTRIES   64u
#define THREADS       6u
#define NOBODY        THREADS
#define PER_SCHEDULE  2000u /* commands of one schedule */
#define STEPS_LIMIT   (PER_SCHEDULE * 1000u)
#define STALE_TICKETS 16u
#define POSITIONS     0x7fffffffu /* what `published` and `cq_head` count modulo, less 1 */

enum where { OUTSIDE, HAS_SLOT, HAS_POSITION };

struct thread {
    enum where where;
    struct gpunvme_dev_place place;
    uint64_t count; /* of its commands */
};

enum ticket_state { IN_FLIGHT, REAPED, FAILED };

struct ticket {
    uint64_t ticket, serial;
    enum ticket_state state;
};

struct schedule {
    struct model_device device;
    struct gpunvme_dev_queue q;
    struct base_random random;
    struct thread threads[THREADS];
    uint64_t first;                     /* position after the last rewind */
    uint64_t reserved, rung;            /* positions since then */
    bool filled[MAX_ENTRIES];           /* by position modulo entries */
    unsigned holder;                    /* the thread that has the doorbell */
    struct ticket tickets[MAX_ENTRIES]; /* that have not ended */
    uint32_t ntickets;
    uint32_t claimed; /* slots of theirs, and of threads that have one */
    uint64_t reaped;  /* completions since the last rewind */
    uint64_t stale[STALE_TICKETS];
    uint32_t nstale;
    uint64_t submitted;
    bool closed, cq_held;
};

#define CHECK(s, condition) MODEL_CHECK(&(s)->device, condition)

static void show(void *arg)
{
    const struct schedule *s = arg;

    fprintf(stderr,
            "  queue: reserved %llx, published %x, CQ head %x, spurious %llu\n"
            "  model: reserved %llu, rung %llu, tickets %u, slots %u, reaped %llu, holder %u\n",
            (unsigned long long)s->q.reserved, s->q.published, s->q.cq_head,
            (unsigned long long)s->q.spurious, (unsigned long long)s->reserved,
            (unsigned long long)s->rung, s->ntickets, s->claimed, (unsigned long long)s->reaped,
            s->holder);
}

/* --- the steps of a thread in submit ---------------------------------------------------------- */

static void claim(struct schedule *s, struct thread *t)
{
    uint32_t hint = (uint32_t)base_random_u64(&s->random);
    int got = gpunvme_dev_slot_claim(&s->q, 1, hint, gpunvme_dev_want_any(), &t->place.ticket);

    CHECK(s, got == (s->claimed < s->device.entries - 1));
    if (!got)
        return;
    s->claimed++;
    t->where = HAS_SLOT;
    for (uint32_t i = 0; i < s->ntickets; i++)
        CHECK(s, (s->tickets[i].ticket ^ t->place.ticket) & 0xffff);
}

static void place(struct schedule *s, struct thread *t)
{
    int err;
    uint32_t in = gpunvme_dev_queue_place(&s->q, 1, 1, &t->place, &err);

    if (s->closed) {
        CHECK(s, !in && err == GPUNVME_ERR_CLOSED);
        s->claimed--;
        t->where = OUTSIDE;
        return;
    }
    CHECK(s, in == 1 && err == GPUNVME_OK);
    CHECK(s, t->place.pos == (uint32_t)(s->first + s->reserved));
    s->reserved++;
    t->where = HAS_POSITION;
    if (s->holder == NOBODY)
        s->holder = (unsigned)(t - s->threads);
}

/* Who has the doorbell, or finds it free, rings for everything up to the first gap. */
static void expect_doorbell(struct schedule *s, unsigned me)
{
    if (s->holder != NOBODY && s->holder != me)
        return;
    s->holder = NOBODY;
    while (s->rung < s->reserved && s->filled[s->rung % s->device.entries])
        s->filled[s->rung++ % s->device.entries] = false;
}

static void submit(struct schedule *s, struct thread *t)
{
    uint64_t serial = model_serial((unsigned)(t - s->threads), ++t->count), rung = s->rung;
    uint64_t rings = s->device.sq.rings;
    struct gpunvme_sqe sqe;

    model_command(&sqe, serial);
    gpunvme_dev_queue_submit(&s->q, 1, &t->place, &sqe);
    s->tickets[s->ntickets++] =
        (struct ticket){.ticket = t->place.ticket, .serial = serial, .state = IN_FLIGHT};
    s->filled[(t->place.pos - s->first) % s->device.entries] = true;
    s->submitted++;
    t->where = OUTSIDE;
    expect_doorbell(s, (unsigned)(t - s->threads));
    CHECK(s, s->device.sq.value == s->rung % s->device.entries);
    if (s->device.doorbells == MODEL_DB_FUNCTION && s->rung == rung)
        CHECK(s, s->device.sq.rings == rings);
}

static void thread_step(struct schedule *s)
{
    struct thread *t = &s->threads[base_random_below(&s->random, THREADS)];

    if (t->where == HAS_POSITION)
        submit(s, t);
    else if (t->where == HAS_SLOT)
        place(s, t);
    else
        claim(s, t);
}

/* --- the other steps -------------------------------------------------------------------------- */

/* Another thread is between taking the completion queue and letting it go. */
static void hold_or_let_go(struct schedule *s)
{
    uint32_t head, in_flight;

    if (s->closed)
        return;
    if (s->cq_held) {
        gpunvme_exchange32_relaxed_gpu(&s->q.cq_head, s->q.cq_head & ~GPUNVME_DEV_QUEUE_LOCKED);
    } else {
        CHECK(s, gpunvme_dev_queue_hold(&s->q, 1, &head, &in_flight));
        CHECK(s, head == (s->reaped & POSITIONS));
        CHECK(s, in_flight == ((s->reserved - s->reaped) & s->q.mask));
    }
    s->cq_held = !s->cq_held;
}

static void reap(struct schedule *s)
{
    uint64_t waiting = s->closed || s->cq_held ? 0 : s->device.cq_tail - s->reaped;

    CHECK(s, gpunvme_dev_queue_reap(&s->q, 1, 1 + (s->reaped & 3)) == waiting);
    for (; waiting; waiting--) {
        uint64_t serial = s->device.posted[s->reaped++ % s->device.entries];
        uint32_t i = 0;

        while (i < s->ntickets && s->tickets[i].serial != serial)
            i++;
        CHECK(s, i < s->ntickets && s->tickets[i].state == IN_FLIGHT);
        s->tickets[i].state = REAPED;
    }
}

static void end_ticket(struct schedule *s)
{
    uint16_t status = 0x1234;
    struct ticket *t;
    int err;

    if (!s->ntickets)
        return;
    t = &s->tickets[base_random_below(&s->random, s->ntickets)];
    err = gpunvme_dev_queue_test(&s->q, t->ticket, &status);
    if (t->state == IN_FLIGHT) {
        CHECK(s, err == GPUNVME_ERR_AGAIN);
        return;
    }
    CHECK(s, err == GPUNVME_OK);
    CHECK(s, status == (t->state == FAILED ? MODEL_FAILED : model_status(t->serial)));
    s->stale[s->nstale++ % STALE_TICKETS] = t->ticket;
    *t = s->tickets[--s->ntickets];
    s->claimed--;
}

static void test_stale_ticket(struct schedule *s)
{
    uint32_t n = s->nstale < STALE_TICKETS ? s->nstale : STALE_TICKETS;
    uint16_t status;
    uint64_t ticket;

    if (!n)
        return;
    ticket = s->stale[base_random_below(&s->random, n)];
    CHECK(s, gpunvme_dev_queue_test(&s->q, ticket, &status) == GPUNVME_ERR_STALE);
    CHECK(s, gpunvme_dev_queue_abandon(&s->q, ticket) == GPUNVME_ERR_STALE);
}

/* Whoever is inside keeps the queue from freezing, and then no longer. */
static void begin_reset(struct schedule *s)
{
    bool inside = s->holder != NOBODY;

    for (unsigned i = 0; i < THREADS; i++)
        inside |= s->threads[i].where == HAS_POSITION;
    s->closed = true;
    if (inside || s->cq_held)
        CHECK(s, queue_freeze(&s->q, 0) == (inside ? QUEUE_STUCK_SUBMIT : QUEUE_STUCK_REAP));
    for (unsigned i = 0; i < THREADS; i++) {
        if (s->threads[i].where == HAS_POSITION)
            submit(s, &s->threads[i]);
    }
    if (s->cq_held)
        s->q.cq_head &= ~GPUNVME_DEV_QUEUE_LOCKED;
    s->cq_held = false;
    CHECK(s, queue_freeze(&s->q, gpunvme_clock_ns() + UINT64_C(10000000000)) == QUEUE_FROZEN);
}

static void finish_reset(struct schedule *s)
{
    uint32_t mask = s->device.entries - 1;

    model_reset(&s->device);
    queue_rewind_counters(&s->q);
    queue_fail(&s->q, MODEL_FAILED, 0, 1);
    for (uint32_t i = 0; i < s->ntickets; i++) {
        if (s->tickets[i].state == IN_FLIGHT)
            s->tickets[i].state = FAILED;
    }
    if (rng_one_in(&s->random, 2))
        end_ticket(s);
    queue_rewind_rings(&s->q, 0, 1);
    s->first = (s->first + s->reserved + mask) & ~(uint64_t)mask;
    s->reserved = s->rung = s->reaped = 0;
    memset(s->filled, 0, sizeof(s->filled));
    queue_thaw(&s->q);
    s->closed = false;
}

static void step(struct schedule *s)
{
    switch (base_random_below(&s->random, 16)) {
    case 0 ... 6:
        thread_step(s);
        break;
    case 7:
        hold_or_let_go(s);
        break;
    case 8:
        reap(s);
        break;
    case 9 ... 11:
        end_ticket(s);
        break;
    case 12:
        test_stale_ticket(s);
        break;
    case 13:
        if (s->device.resets && s->closed)
            finish_reset(s);
        else if (s->device.resets && rng_one_in(&s->random, 20))
            begin_reset(s);
        break;
    default:
        model_step(&s->device);
        break;
    }
    if (!s->closed)
        CHECK(s, s->q.published == ((uint32_t)(s->first + s->rung) << 1 | (s->holder != NOBODY)));
}

/* --- schedules -------------------------------------------------------------------------------- */

/* Positions and generations that are interesting within the next thousand commands. */
static void choose_start(struct schedule *s, struct gpunvme_qpair_config *config)
{
    static const unsigned position_bits[] = {0, 0, 30, 31, 31, 32, 33, 48, 61};
    unsigned bits = position_bits[base_random_below(&s->random, 9)];

    if (bits)
        config->first_position = (UINT64_C(1) << bits) - rng_between(&s->random, 1, 1000);
    if (rng_one_in(&s->random, 2))
        config->first_generation = (UINT64_C(1) << 47) - rng_between(&s->random, 1, 100);
    s->first = config->first_position & ~(uint64_t)(s->device.entries - 1);
}

static void drain(struct schedule *s)
{
    if (s->closed)
        finish_reset(s);
    if (s->cq_held)
        hold_or_let_go(s);
    for (unsigned i = 0; i < THREADS; i++) {
        if (s->threads[i].where == HAS_SLOT)
            place(s, &s->threads[i]);
        if (s->threads[i].where == HAS_POSITION)
            submit(s, &s->threads[i]);
    }
    for (unsigned i = 0; s->ntickets && i < STEPS_LIMIT; i++) {
        model_step(&s->device);
        reap(s);
        end_ticket(s);
    }
    CHECK(s, s->claimed == 0);
    CHECK(s, s->q.spurious == 0);
    CHECK(s, s->device.resets || s->device.fetched == s->submitted);
}

static uint64_t run_schedule(const char *name, uint64_t seed, bool resets)
{
    struct schedule *s = queue_memory_zeroed(sizeof(*s));
    struct gpunvme_qpair_config config;
    uint64_t submitted;
    unsigned i;

    s->random.state = rng_hash(seed);
    s->holder = NOBODY;
    model_open(&s->device, name, seed, 1u << rng_between(&s->random, 1, 6),
               (enum model_doorbells)base_random_below(&s->random, 2));
    s->device.resets = resets;
    s->device.show = show;
    s->device.show_arg = s;
    config = model_config(&s->device);
    choose_start(s, &config);
    assert_int_equal(gpunvme_dev_queue_init(&s->q, &config), GPUNVME_OK);

    for (i = 0; s->submitted < PER_SCHEDULE && i < STEPS_LIMIT; i++)
        step(s);
    CHECK(s, i < STEPS_LIMIT);
    drain(s);
    submitted = s->submitted;
    model_close(&s->device);
    free(s);
    return submitted;
}

static void run_schedules(const char *name, bool resets)
{
    uint64_t want = env_number("GPUNVME_MODEL_COMMANDS", 1000000) / 2;
    uint64_t seed = env_number("GPUNVME_MODEL_SEED", 1);

    for (uint64_t done = 0; done < want; seed++)
        done += run_schedule(name, seed, resets);
}

static void every_step_of_any_schedule_does_what_the_model_says(void **state)
{
    (void)state;
    run_schedules("schedules", false);
}

static void resets_between_any_two_steps_end_every_ticket_once(void **state)
{
    (void)state;
    run_schedules("schedules with resets", true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_step_of_any_schedule_does_what_the_model_says),
        cmocka_unit_test(resets_between_any_two_steps_end_every_ticket_once),
    };

    return cmocka_run_group_tests_name("the queue of warps, step by step", tests, NULL, NULL);
}
