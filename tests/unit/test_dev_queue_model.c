/* SPDX-License-Identifier: BSD-3-Clause
 *
 * dev_queue.h under many threads, each a warp of one lane: submitters that share one queue pair,
 * the model of a device on a thread of its own, and in some runs a thread that only reaps, a mirror
 * with the CPU's reaper, tickets that are abandoned, and resets at random moments. Each ticket must
 * end exactly once, with its own command's status and result or, after a reset, with the reset's.
 *
 *   GPUNVME_MODEL_COMMANDS  commands in all (400,000)
 *   GPUNVME_MODEL_SEED      of the random choices (1); the order of threads is the machine's
 *
 * A run in which nothing moves for a while ends the program with the seed and what it looked like.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "device/orders/queue_reset.h"
#include "model_threads.h"
#include "patience.h"

#define MAX_PENDING 64u
#define MAX_BATCH   8u

#define BIT(n) (UINT64_C(1) << (n))

struct run_config {
    const char *name;
    uint32_t entries;
    unsigned submitters;
    enum model_doorbells doorbells;
    enum gpunvme_reaper reaper;
    bool abandons, resets;
    uint64_t first_position, first_generation; /* the wraps lie in the middle of the run */
    unsigned share;                            /* of all commands, in per cent */
};

struct pending {
    uint64_t ticket, serial;
};

struct submitter {
    struct run *run;
    pthread_t thread;
    unsigned id;
    struct base_random random;
    uint64_t want, count; /* commands to submit, and submitted */
    struct pending pending[MAX_PENDING];
    uint32_t npending, keep;      /* tickets not waited for, and how many it may leave so */
    uint64_t let_go[MAX_PENDING]; /* tickets that were abandoned, and have perhaps not ended */
    uint32_t nlet_go;
    uint64_t ended, failed, abandoned, lost;
};

struct run {
    const struct run_config *config;
    struct gpunvme_dev_queue q;
    struct gpunvme_qpair cpu; /* of the CPU's reaper: completes the mirror */
    uint32_t *cpu_ready;
    struct model_device device;
    struct model_threads threads;
    struct submitter submitters[MODEL_MAX_SUBMITTERS];
    uint64_t first, resets;
};

#define CHECK(r, condition) MODEL_CHECK(&(r)->device, condition)

/* --- submitters ------------------------------------------------------------------------------- */

static void forget(struct submitter *s, uint32_t i)
{
    s->pending[i] = s->pending[--s->npending];
    __atomic_fetch_add(&s->ended, 1, __ATOMIC_RELAXED);
}

/* The ticket has ended: is the status the right one? */
static void check_end(struct submitter *s, uint32_t i, uint16_t status)
{
    struct run *r = s->run;
    struct pending p = s->pending[i];
    uint16_t again;

    if (r->config->resets && status == MODEL_FAILED)
        s->failed++;
    else
        CHECK(r, status == model_status(p.serial));
    forget(s, i);
    if (rng_one_in(&s->random, 4))
        CHECK(r, gpunvme_dev_queue_test(&r->q, p.ticket, &again) == GPUNVME_ERR_STALE);
}

/*
 * A ticket that was abandoned in the moment in which its command completed says done, and only
 * recover gives its slot back: here this does.
 */
static void find_lost(struct submitter *s)
{
    struct gpunvme_dev_queue *q = &s->run->q;

    for (uint32_t i = 0; i < s->nlet_go;) {
        uint64_t ticket = s->let_go[i];
        uint64_t word = gpunvme_load_acquire64(&q->slots[ticket & q->mask].word);
        bool is_its = !(((word & ~GPUNVME_DEV_SLOT_TAKEN) ^ ticket) >> 16);

        if (is_its && !(word & GPUNVME_SLOT_DONE)) {
            i++;
            continue;
        }
        if (is_its) {
            gpunvme_dev_slot_unclaim(q, ticket);
            s->lost++;
        }
        s->let_go[i] = s->let_go[--s->nlet_go];
    }
}

/* A command whose time is over: let go, or done after all. */
static void abandon(struct submitter *s, uint32_t i)
{
    struct run *r = s->run;
    uint64_t ticket = s->pending[i].ticket;
    uint16_t status;
    int err;

    find_lost(s);
    err = gpunvme_dev_queue_abandon(&r->q, ticket);
    if (err == GPUNVME_OK) {
        forget(s, i);
        s->abandoned++;
        s->let_go[s->nlet_go++] = ticket;
        CHECK(r, gpunvme_dev_queue_abandon(&r->q, ticket) != GPUNVME_OK);
        return;
    }
    CHECK(r, err == GPUNVME_ERR_STALE);
    CHECK(r, gpunvme_dev_queue_test(&r->q, ticket, &status) == GPUNVME_OK);
    check_end(s, i, status);
}

/* Some looks at the completion queue, as a warp that waits for nothing in particular. */
static uint32_t reap_once(struct run *r)
{
    return gpunvme_dev_queue_reap(&r->q, 1, 2);
}

/* Waits for any one of its tickets, not for long. */
static void wait_one(struct submitter *s)
{
    uint64_t deadline = gpunvme_clock_ns() + base_random_below(&s->random, 20000);
    struct run *r = s->run;
    uint16_t status;
    uint32_t i;
    int err;

    find_lost(s);
    if (!s->npending) {
        if (r->config->reaper == GPUNVME_REAPER_WAITERS)
            reap_once(r);
        sched_yield();
        return;
    }
    i = (uint32_t)base_random_below(&s->random, s->npending);
    err = gpunvme_dev_queue_wait(&r->q, 1, s->pending[i].ticket, deadline, &status);
    CHECK(r, err == GPUNVME_OK || err == GPUNVME_ERR_TIMEOUT);
    if (!err)
        check_end(s, i, status);
    else if (r->config->abandons && rng_one_in(&s->random, 4))
        abandon(s, i);
    else
        sched_yield();
}

/* A command, if there is room. What happens between the position and the entry is the machine's. */
static int submit_one(struct submitter *s)
{
    struct run *r = s->run;
    struct pending *p = &s->pending[s->npending];
    struct gpunvme_dev_place place;
    struct gpunvme_sqe sqe;
    int err;

    if (!gpunvme_dev_queue_reserve(&r->q, 1, (uint32_t)base_random_u64(&s->random),
                                   gpunvme_dev_want_any(), &place, &err)) {
        if (err == GPUNVME_ERR_CLOSED)
            gpunvme_dev_queue_help(&r->q);
        CHECK(r, err == GPUNVME_ERR_AGAIN || (err == GPUNVME_ERR_CLOSED && r->config->resets));
        return 0;
    }
    p->serial = model_serial(s->id, ++s->count);
    p->ticket = place.ticket;
    s->npending++;
    model_command(&sqe, p->serial);
    if (rng_one_in(&s->random, 64))
        sched_yield();
    gpunvme_dev_queue_submit(&r->q, 1, &place, &sqe);
    return 1;
}

static void submit_some(struct submitter *s)
{
    uint64_t n = rng_between(&s->random, 1, MAX_BATCH);

    for (; n && s->count < s->want && s->npending < MAX_PENDING; n--) {
        if (!submit_one(s)) {
            wait_one(s);
            return;
        }
    }
}

static void *submitter(void *arg)
{
    struct submitter *s = arg;
    uint16_t status;

    while (s->count < s->want || s->npending) {
        if (rng_one_in(&s->random, 50)) /* sometimes it forgets many, sometimes none */
            s->keep = (uint32_t)base_random_below(&s->random, MAX_PENDING);
        if (s->count < s->want && s->npending <= s->keep)
            submit_some(s);
        else
            wait_one(s);
        if (s->npending && rng_one_in(&s->random, 2)) {
            uint32_t i = (uint32_t)base_random_below(&s->random, s->npending);
            int err = gpunvme_dev_queue_test(&s->run->q, s->pending[i].ticket, &status);

            CHECK(s->run, err == GPUNVME_OK || err == GPUNVME_ERR_AGAIN);
            if (!err)
                check_end(s, i, status);
        }
    }
    return NULL;
}

/* --- the device, reapers, resets, the watchdog -------------------------------------------------
 */

static void *reaper(void *arg)
{
    struct run *r = arg;

    while (!model_must_stop(&r->threads)) {
        if (!(r->q.mirror ? gpunvme_qpair_reap(&r->cpu) : reap_once(r)))
            sched_yield();
    }
    return NULL;
}

static void reset_once(void *r_)
{
    struct run *r = r_;
    CHECK(r, queue_freeze(&r->q, gpunvme_clock_ns() + PATIENCE_NS) == QUEUE_FROZEN);
    if (r->q.mirror)
        CHECK(r, gpunvme_qpair_freeze(&r->cpu, gpunvme_clock_ns() + PATIENCE_NS) == GPUNVME_OK);
    pthread_mutex_lock(&r->threads.lock);
    model_reset(&r->device);
    queue_rewind_counters(&r->q);
    queue_fail(&r->q, MODEL_FAILED, 0, 1);
    if (r->q.mirror)
        gpunvme_qpair_fail(&r->cpu, MODEL_FAILED);
    sched_yield();
    if (r->q.mirror) {
        gpunvme_qpair_rewind(&r->cpu);
        gpunvme_qpair_thaw(&r->cpu);
    }
    queue_rewind_rings(&r->q, 0, 1);
    queue_thaw(&r->q);
    pthread_mutex_unlock(&r->threads.lock);
    r->resets++;
}

static uint64_t ended(void *r_)
{
    struct run *r = r_;
    uint64_t n = 0;

    for (unsigned i = 0; i < r->config->submitters; i++)
        n += __atomic_load_n(&r->submitters[i].ended, __ATOMIC_RELAXED);
    return n;
}

static void show(void *arg)
{
    struct run *r = arg;
    const struct gpunvme_dev_queue *q = &r->q;

    fprintf(stderr,
            "  queue: reserved %llx, published %x, CQ head %x, spurious %llu, resets %llu\n",
            (unsigned long long)q->reserved, q->published, q->cq_head,
            (unsigned long long)q->spurious, (unsigned long long)r->resets);
    for (uint32_t i = 0; i <= q->mask && i < 64; i++)
        fprintf(stderr, "  slot %u: %llx\n", i, (unsigned long long)q->slots[i].word);
    for (unsigned i = 0; i < r->config->submitters; i++)
        fprintf(stderr, "  submitter %u: %llu of %llu submitted, %llu ended, %u pending\n", i,
                (unsigned long long)r->submitters[i].count,
                (unsigned long long)r->submitters[i].want,
                (unsigned long long)r->submitters[i].ended, r->submitters[i].npending);
}

/* --- runs ------------------------------------------------------------------------------------- */

/* The same completion queue, but slots of the mirror. */
static void open_mirror(struct run *r, struct gpunvme_qpair_config config)
{
    uint32_t entries = r->config->entries;

    r->q.mirror = queue_memory_zeroed(GPUNVME_QPAIR_SLOTS_NBYTES(entries));
    r->cpu_ready = queue_memory_zeroed(GPUNVME_QPAIR_READY_NBYTES(entries));
    config.slots = r->q.mirror;
    config.ready = r->cpu_ready;
    assert_int_equal(gpunvme_qpair_init(&r->cpu, &config), GPUNVME_OK);
}

static struct run *run_open(const struct run_config *c, uint64_t seed, uint64_t commands)
{
    struct run *r = queue_memory_zeroed(sizeof(*r));
    struct gpunvme_qpair_config config;

    r->config = c;
    model_open(&r->device, c->name, seed, c->entries, c->doorbells);
    r->device.resets = c->resets;
    r->device.show = show;
    r->device.show_arg = r;
    r->threads =
        (struct model_threads){.device = &r->device, .ended = ended, .reset = reset_once, .arg = r};
    pthread_mutex_init(&r->threads.lock, NULL);
    config = model_config(&r->device);
    if (c->first_position)
        config.first_position = c->first_position - commands / 2;
    if (c->first_generation)
        config.first_generation = c->first_generation - commands / c->entries / 4;
    assert_int_equal(gpunvme_dev_queue_init(&r->q, &config), GPUNVME_OK);
    r->q.reaper = c->reaper;
    r->first = r->q.reserved;
    if (c->reaper == GPUNVME_REAPER_CPU)
        open_mirror(r, config);
    for (unsigned i = 0; i < c->submitters; i++) {
        r->submitters[i] = (struct submitter){.run = r, .id = i, .want = commands / c->submitters};
        r->submitters[i].random.state = rng_hash(seed * 100 + i);
    }
    return r;
}

static void run_close(struct run *r)
{
    pthread_mutex_destroy(&r->threads.lock);
    model_close(&r->device);
    free(r->q.mirror);
    free(r->cpu_ready);
    free(r);
}

static void run_threads(struct run *r)
{
    bool has_reaper = r->config->reaper != GPUNVME_REAPER_WAITERS;
    pthread_t dev, reap, reset, dog;

    model_start(&dog, model_watch, &r->threads);
    model_start(&dev, model_work, &r->threads);
    if (has_reaper)
        model_start(&reap, reaper, r);
    if (r->config->resets)
        model_start(&reset, model_reset_now_and_then, &r->threads);
    for (unsigned i = 0; i < r->config->submitters; i++)
        model_start(&r->submitters[i].thread, submitter, &r->submitters[i]);
    for (unsigned i = 0; i < r->config->submitters; i++)
        pthread_join(r->submitters[i].thread, NULL);
    __atomic_store_n(&r->threads.stop, 1, __ATOMIC_RELEASE);
    pthread_join(dev, NULL);
    if (has_reaper)
        pthread_join(reap, NULL);
    if (r->config->resets)
        pthread_join(reset, NULL);
    pthread_join(dog, NULL);
}

static uint32_t count_taken(struct run *r)
{
    uint32_t n = 0;

    for (uint32_t i = 1; i <= r->q.mask; i++)
        n += r->q.slots[i].word >> 63;
    return n;
}

/* What was abandoned last may still be in flight: the device ends it, or a reset does. */
static void let_the_rest_end(struct run *r)
{
    if (r->q.mirror && r->config->abandons)
        reset_once(r);
    for (unsigned i = 0; count_taken(r) && i < 1000000; i++) {
        model_step(&r->device);
        if (r->q.mirror)
            gpunvme_qpair_reap(&r->cpu);
        else
            reap_once(r);
        for (unsigned k = 0; k < r->config->submitters; k++)
            find_lost(&r->submitters[k]);
    }
    CHECK(r, count_taken(r) == 0);
}

static void check_sums(struct run *r)
{
    uint64_t submitted = 0, failed = 0, abandoned = 0;
    const struct run_config *c = r->config;

    for (unsigned i = 0; i < c->submitters; i++) {
        submitted += r->submitters[i].count;
        failed += r->submitters[i].failed;
        abandoned += r->submitters[i].abandoned;
        CHECK(r, r->submitters[i].ended == r->submitters[i].want);
    }
    CHECK(r, r->q.spurious == 0 && r->cpu.spurious == 0);
    if (c->resets)
        CHECK(r, r->resets > 0 && r->device.completed + failed + abandoned >= submitted);
    else
        CHECK(r, r->device.fetched == submitted && r->device.completed == submitted);
    if (c->first_position)
        CHECK(r, c->first_position - r->first < r->q.reserved - r->first);
}

static void every_ticket_ends_once_with_its_own_completion(void **state)
{
    const struct run_config *c = *state;
    uint64_t commands = env_number("GPUNVME_MODEL_COMMANDS", 400000) / 100 * c->share;
    struct run *r = run_open(c, env_number("GPUNVME_MODEL_SEED", 1), commands);

    run_threads(r);
    let_the_rest_end(r);
    check_sums(r);
    run_close(r);
}

#define WAITERS GPUNVME_REAPER_WAITERS
#define WARP    GPUNVME_REAPER_WARP
#define CPU     GPUNVME_REAPER_CPU

static const struct run_config configs[] = {
    {"two entries", 2, 3, MODEL_DB_POINTER, WAITERS, false, false, BIT(31), BIT(47), 4},
    {"four entries", 4, 4, MODEL_DB_FUNCTION, WAITERS, false, false, BIT(61), 0, 8},
    {"eight entries", 8, 4, MODEL_DB_POINTER, WAITERS, false, false, BIT(32), 0, 8},
    {"64 entries", 64, 4, MODEL_DB_POINTER, WAITERS, false, false, BIT(31), BIT(47), 14},
    {"1,024 entries, eight submitters", 1024, 8, MODEL_DB_POINTER, WAITERS, false, false, BIT(42),
     0, 14},
    {"a thread that reaps", 16, 4, MODEL_DB_POINTER, WARP, false, false, BIT(31), 0, 8},
    {"a mirror", 16, 4, MODEL_DB_POINTER, CPU, false, false, BIT(33), BIT(47), 8},
    {"abandoned", 8, 4, MODEL_DB_POINTER, WAITERS, true, false, BIT(31), 0, 8},
    {"abandoned, a thread that reaps", 64, 3, MODEL_DB_POINTER, WARP, true, false, 0, BIT(47), 8},
    {"two entries, resets", 2, 3, MODEL_DB_FUNCTION, WAITERS, false, true, 0, BIT(47), 4},
    {"resets", 64, 4, MODEL_DB_POINTER, WAITERS, false, true, BIT(31), 0, 8},
    {"abandoned, resets", 16, 4, MODEL_DB_FUNCTION, WAITERS, true, true, 0, 0, 4},
    {"abandoned, a mirror, resets", 16, 4, MODEL_DB_POINTER, CPU, true, true, 0, 0, 4},
};

#define RUNS (sizeof(configs) / sizeof(configs[0]))

int main(void)
{
    struct CMUnitTest tests[RUNS];

    for (unsigned i = 0; i < RUNS; i++)
        tests[i] =
            (struct CMUnitTest){configs[i].name, every_ticket_ends_once_with_its_own_completion,
                                NULL, NULL, (void *)(uintptr_t)&configs[i]};
    return cmocka_run_group_tests_name("the queue of warps under threads", tests, NULL, NULL);
}
