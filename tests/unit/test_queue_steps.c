/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The queue pair against a model, one step at a time: threads that stand anywhere inside submit, a
 * device, completions in any order, resets at any moment, all interleaved by a seed on one thread.
 * After every step the test knows what the queue must say, and asks it.
 *
 *   GPUNVME_MODEL_COMMANDS  commands in all (1,000,000)
 *   GPUNVME_MODEL_SEED      of the first schedule (1): a failure prints the one that failed
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "model_device.h"

#define MAX_ENTRIES   64u
#define THREADS       4u
#define PER_SCHEDULE  2000u /* commands of one schedule */
#define STEPS_LIMIT   (PER_SCHEDULE * 1000u)
#define STALE_TICKETS 16u

/* A thread inside submit: positions that it has reserved, and how many of them it has filled. */
struct thread {
    uint64_t pos;
    uint32_t reserved, filled;
    bool publishing; /* everything filled, the doorbell still to come */
    uint64_t count;  /* of its commands */
};

enum ticket_state { IN_FLIGHT, REAPED, FAILED };

struct ticket {
    uint64_t ticket, serial;
    enum ticket_state state;
};

struct schedule {
    struct model_device device;
    struct gpunvme_qpair q;
    struct base_random random;
    struct thread threads[THREADS];
    uint64_t first;                     /* position after the last rewind */
    uint64_t reserved;                  /* positions since then */
    bool filled[MAX_ENTRIES];           /* by position modulo entries */
    uint64_t rung;                      /* positions rung for since then */
    struct ticket tickets[MAX_ENTRIES]; /* that have not ended */
    uint32_t ntickets;                  /* filled ones */
    uint32_t outstanding;               /* reserved ones too */
    uint64_t reaped;                    /* completions since the last rewind */
    uint64_t stale[STALE_TICKETS];
    uint32_t nstale;
    uint64_t submitted;
    bool closed, sq_held;
};

#define CHECK(s, condition) MODEL_CHECK(&(s)->device, condition)

static void show(void *arg)
{
    const struct schedule *s = arg;

    fprintf(stderr,
            "  queue: reserved %llx, released %llx, published %llx, CQ head %llu, spurious %llu\n"
            "  model: reserved %llu, rung %llu, tickets %u of %u, reaped %llu, submitted %llu\n",
            (unsigned long long)s->q.reserved, (unsigned long long)s->q.released,
            (unsigned long long)s->q.published, (unsigned long long)s->q.cq_head,
            (unsigned long long)s->q.spurious, (unsigned long long)s->reserved,
            (unsigned long long)s->rung, s->ntickets, s->outstanding, (unsigned long long)s->reaped,
            (unsigned long long)s->submitted);
}

/* --- the steps of a thread in submit ---------------------------------------------------------- */

static void reserve(struct schedule *s, struct thread *t)
{
    uint32_t capacity = s->device.entries - 1;
    uint32_t n = (uint32_t)rng_between(&s->random, 0, s->device.entries + 1);
    uint32_t room = capacity - s->outstanding;
    uint64_t pos = 0;
    int taken = gpunvme_qpair_reserve(&s->q, n, &pos);

    if (s->closed) {
        CHECK(s, taken == GPUNVME_ERR_CLOSED);
        return;
    }
    CHECK(s, taken == (int)(n < room ? n : room));
    if (!taken)
        return;
    CHECK(s, pos == ((s->first + s->reserved) & GPUNVME_QPAIR_POSITION));
    t->pos = pos;
    t->reserved = (uint32_t)taken;
    t->filled = 0;
    s->reserved += (uint64_t)taken;
    s->outstanding += (uint32_t)taken;
}

static void fill(struct schedule *s, struct thread *t)
{
    uint64_t pos = (t->pos + t->filled) & GPUNVME_QPAIR_POSITION;
    uint64_t serial = model_serial((unsigned)(t - s->threads), ++t->count);
    struct gpunvme_sqe sqe;
    uint64_t ticket;

    model_command(&sqe, serial);
    ticket = gpunvme_qpair_claim_slot(&s->q, pos);
    gpunvme_qpair_fill(&s->q, pos, ticket, &sqe);
    for (uint32_t i = 0; i < s->ntickets; i++)
        CHECK(s, (s->tickets[i].ticket ^ ticket) & 0xffff);
    s->tickets[s->ntickets++] =
        (struct ticket){.ticket = ticket, .serial = serial, .state = IN_FLIGHT};
    s->filled[pos % s->device.entries] = true;
    s->submitted++;
    t->publishing = ++t->filled == t->reserved;
}

/* What the doorbell must say now: everything up to the first position that is not filled. */
static void expect_doorbell(struct schedule *s)
{
    uint64_t rings = s->device.sq.rings, rung = s->rung;

    while (rung < s->reserved && s->filled[rung % s->device.entries])
        s->filled[rung++ % s->device.entries] = false;
    gpunvme_qpair_publish(&s->q);
    if (s->device.doorbells != MODEL_DB_SHADOW)
        CHECK(s, s->device.sq.value == rung % s->device.entries);
    else
        CHECK(s, s->device.sq.shadow == rung % s->device.entries);
    if (s->device.doorbells == MODEL_DB_FUNCTION)
        CHECK(s, s->device.sq.rings - rings == (rung != s->rung));
    s->rung = rung;
}

static void publish(struct schedule *s, struct thread *t)
{
    if (s->sq_held) { /* whoever holds it looks again */
        uint32_t value = s->device.sq.value, shadow = s->device.sq.shadow;

        gpunvme_qpair_publish(&s->q);
        CHECK(s, s->device.sq.value == value && s->device.sq.shadow == shadow);
    } else {
        expect_doorbell(s);
    }
    t->publishing = false;
    t->reserved = t->filled = 0;
}

static void thread_step(struct schedule *s)
{
    struct thread *t = &s->threads[base_random_below(&s->random, THREADS)];

    if (t->publishing)
        publish(s, t);
    else if (t->filled < t->reserved)
        fill(s, t);
    else
        reserve(s, t);
}

/* Another thread is between taking the doorbell and its second look. */
static void hold_or_let_go(struct schedule *s)
{
    if (s->closed)
        return;
    CHECK(s, gpunvme_exchange32(&s->q.sq_lock, !s->sq_held) == s->sq_held);
    s->sq_held = !s->sq_held;
    if (!s->sq_held)
        expect_doorbell(s);
}

/* --- the other steps -------------------------------------------------------------------------- */

static void reap(struct schedule *s)
{
    uint64_t waiting = s->closed ? 0 : s->device.cq_tail - s->reaped;

    CHECK(s, gpunvme_qpair_reap(&s->q) == waiting);
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
    struct gpunvme_completion c = {.status = 0x1234, .result = 1};
    struct ticket *t;
    int err;

    if (!s->ntickets)
        return;
    t = &s->tickets[base_random_below(&s->random, s->ntickets)];
    err = gpunvme_qpair_test(&s->q, t->ticket, &c);
    if (t->state == IN_FLIGHT) {
        CHECK(s, err == GPUNVME_ERR_AGAIN);
        return;
    }
    CHECK(s, err == GPUNVME_OK);
    CHECK(s, c.status == (t->state == FAILED ? MODEL_FAILED : model_status(t->serial)));
    CHECK(s, c.result == (t->state == FAILED ? 0 : model_result(t->serial)));
    s->stale[s->nstale++ % STALE_TICKETS] = t->ticket;
    *t = s->tickets[--s->ntickets];
    s->outstanding--;
}

static void test_stale_ticket(struct schedule *s)
{
    uint32_t n = s->nstale < STALE_TICKETS ? s->nstale : STALE_TICKETS;
    struct gpunvme_completion c;

    if (n)
        CHECK(s, gpunvme_qpair_test(&s->q, s->stale[base_random_below(&s->random, n)], &c) ==
                     GPUNVME_ERR_STALE);
}

static void begin_reset(struct schedule *s)
{
    bool inside = false;

    if (s->sq_held)
        hold_or_let_go(s);
    for (unsigned i = 0; i < THREADS; i++)
        inside |= s->threads[i].filled < s->threads[i].reserved;
    s->closed = true;
    /* The second try comes when the last thread has filled its positions. */
    if (inside)
        CHECK(s, gpunvme_qpair_freeze(&s->q, 0) == GPUNVME_ERR_TIMEOUT);
    for (unsigned i = 0; i < THREADS; i++) {
        while (s->threads[i].filled < s->threads[i].reserved)
            fill(s, &s->threads[i]);
    }
    CHECK(s, gpunvme_qpair_freeze(&s->q, gpunvme_clock_ns() + UINT64_C(10000000000)) == GPUNVME_OK);
    s->sq_held = true;
}

static void finish_reset(struct schedule *s)
{
    uint32_t mask = s->device.entries - 1;

    model_reset(&s->device);
    gpunvme_qpair_fail(&s->q, MODEL_FAILED);
    for (uint32_t i = 0; i < s->ntickets; i++) {
        if (s->tickets[i].state == IN_FLIGHT)
            s->tickets[i].state = FAILED;
    }
    if (rng_one_in(&s->random, 2))
        end_ticket(s);
    gpunvme_qpair_rewind(&s->q);
    s->first = (s->first + s->reserved + mask) & ~(uint64_t)mask & GPUNVME_QPAIR_POSITION;
    s->reserved = s->rung = s->reaped = 0;
    memset(s->filled, 0, sizeof(s->filled));
    gpunvme_qpair_thaw(&s->q);
    s->closed = s->sq_held = false;
}

static void step(struct schedule *s)
{
    switch (base_random_below(&s->random, 16)) {
    case 0 ... 5:
        thread_step(s);
        break;
    case 6:
        hold_or_let_go(s);
        break;
    case 7 ... 8:
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
    CHECK(s, gpunvme_qpair_outstanding(&s->q) == s->outstanding);
}

/* --- schedules -------------------------------------------------------------------------------- */

/* Positions and generations that are interesting within the next thousand commands. */
static void choose_start(struct schedule *s, struct gpunvme_qpair_config *config)
{
    static const unsigned position_bits[] = {0, 0, 32, 33, 34, 35, 38, 48, 63};
    unsigned bits = position_bits[base_random_below(&s->random, 9)];

    if (bits)
        config->first_position = (UINT64_C(1) << bits) - rng_between(&s->random, 1, 1000);
    if (rng_one_in(&s->random, 2))
        config->first_generation = (UINT64_C(1) << 48) - rng_between(&s->random, 1, 100);
    s->first = config->first_position & ~(uint64_t)(s->device.entries - 1);
}

static void drain(struct schedule *s)
{
    if (s->closed)
        finish_reset(s);
    if (s->sq_held)
        hold_or_let_go(s);
    for (unsigned i = 0; i < THREADS; i++) {
        struct thread *t = &s->threads[i];

        while (t->filled < t->reserved)
            fill(s, t);
        publish(s, t);
    }
    for (unsigned i = 0; s->ntickets && i < STEPS_LIMIT; i++) {
        model_step(&s->device);
        reap(s);
        end_ticket(s);
    }
    CHECK(s, s->outstanding == 0);
    CHECK(s, gpunvme_qpair_outstanding(&s->q) == 0);
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
    model_open(&s->device, name, seed, 1u << rng_between(&s->random, 1, 6),
               (enum model_doorbells)base_random_below(&s->random, 3));
    s->device.resets = resets;
    s->device.show = show;
    s->device.show_arg = s;
    config = model_config(&s->device);
    choose_start(s, &config);
    assert_int_equal(gpunvme_qpair_init(&s->q, &config), GPUNVME_OK);

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

    return cmocka_run_group_tests_name("queue, step by step", tests, NULL, NULL);
}
