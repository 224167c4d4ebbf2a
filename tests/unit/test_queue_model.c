/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The queue pair under many threads: submitters that share one queue, a device on a thread of its
 * own, and in some runs resets at random moments. Each ticket must end exactly once, with its own
 * command's status and result, or, after a reset, with the reset's.
 *
 *   GPUNVME_MODEL_COMMANDS  commands in all (1,000,000)
 *   GPUNVME_MODEL_SEED      of the random choices (1); the order of threads is the machine's
 *
 * A run in which nothing moves for a while ends the program with the seed and what it looked like.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "model_threads.h"
#include "patience.h"

#define MAX_BATCH   48u
#define MAX_PENDING 64u

/* Where other work keeps the processors busy, a full queue of two entries can take 10 ms for each
 * command. After so long an eighth of them will do. */
#define ENOUGH_NS UINT64_C(15000000000)

#define BIT(n) (UINT64_C(1) << (n))

struct run_config {
    const char *name;
    uint32_t entries;
    unsigned submitters;
    uint32_t batch; /* at most */
    enum model_doorbells doorbells;
    unsigned devices; /* threads that work for the device, one at a time */
    bool resets;
    bool roomy; /* so few tickets are kept that the queue is never full */
    uint64_t first_position, first_generation; /* wraps, which lie in the run's first eighth */
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
    uint32_t npending, keep; /* tickets not waited for, and how many it may leave so */
    uint64_t ended, failed;
};

struct run {
    const struct run_config *config;
    struct gpunvme_qpair q;
    struct model_device device;
    struct model_threads threads;
    struct submitter submitters[MODEL_MAX_SUBMITTERS];
    uint64_t first; /* position */
    uint64_t begin_ns;
    uint64_t resets;
};

#define CHECK(r, condition) MODEL_CHECK(&(r)->device, condition)

/* --- submitters ------------------------------------------------------------------------------- */

/* The ticket has ended, with c: is it the right one? */
static void check_end(struct submitter *s, uint32_t i, const struct gpunvme_completion *c)
{
    struct run *r = s->run;
    struct pending p = s->pending[i];
    struct gpunvme_completion again;

    if (r->config->resets && c->status == MODEL_FAILED) {
        CHECK(r, c->result == 0);
        s->failed++;
    } else {
        CHECK(r, c->status == model_status(p.serial));
        CHECK(r, c->result == model_result(p.serial));
    }
    s->pending[i] = s->pending[--s->npending];
    __atomic_fetch_add(&s->ended, 1, __ATOMIC_RELAXED);
    if (rng_one_in(&s->random, 4))
        CHECK(r, gpunvme_qpair_test(&r->q, p.ticket, &again) == GPUNVME_ERR_STALE);
}

static void test_one(struct submitter *s)
{
    struct gpunvme_completion c;
    uint32_t i;
    int err;

    if (!s->npending)
        return;
    i = (uint32_t)base_random_below(&s->random, s->npending);
    err = gpunvme_qpair_test(&s->run->q, s->pending[i].ticket, &c);
    CHECK(s->run, err == GPUNVME_OK || err == GPUNVME_ERR_AGAIN);
    if (!err)
        check_end(s, i, &c);
}

/* Waits for any one of its tickets, not for long. */
static void wait_one(struct submitter *s)
{
    uint64_t deadline = gpunvme_clock_ns() + base_random_below(&s->random, 20000);
    struct gpunvme_completion c;
    uint32_t i;
    int err;

    if (!s->npending) {
        if (!gpunvme_qpair_reap(&s->run->q))
            sched_yield();
        return;
    }
    i = (uint32_t)base_random_below(&s->random, s->npending);
    err = gpunvme_qpair_wait(&s->run->q, s->pending[i].ticket, deadline, &c);
    CHECK(s->run, err == GPUNVME_OK || err == GPUNVME_ERR_TIMEOUT);
    if (err)
        sched_yield();
    else
        check_end(s, i, &c);
}

static void submit_some(struct submitter *s)
{
    struct run *r = s->run;
    struct gpunvme_sqe sqes[MAX_BATCH];
    uint64_t tickets[MAX_BATCH];
    uint64_t n = rng_between(&s->random, 1, r->config->batch);
    int taken;

    if (n > s->want - s->count)
        n = s->want - s->count;
    if (n > MAX_PENDING - s->npending)
        n = MAX_PENDING - s->npending;
    for (uint64_t i = 0; i < n; i++)
        model_command(&sqes[i], model_serial(s->id, s->count + 1 + i));
    taken = gpunvme_qpair_submit(&r->q, sqes, (uint32_t)n, tickets);
    CHECK(r, taken <= (int)n);
    CHECK(r, taken >= 0 || (taken == GPUNVME_ERR_CLOSED && r->config->resets));
    CHECK(r, taken == (int)n || !r->config->roomy);
    for (int i = 0; i < taken; i++) {
        uint64_t serial = model_serial(s->id, ++s->count);

        s->pending[s->npending++] = (struct pending){.ticket = tickets[i], .serial = serial};
    }
    if (taken <= 0)
        wait_one(s);
}

static void *submitter(void *arg)
{
    struct submitter *s = arg;
    const uint64_t eighth = s->want / 8;

    while (s->count < s->want || s->npending) {
        if (s->count >= eighth && s->count < s->want &&
            gpunvme_clock_ns() - s->run->begin_ns > ENOUGH_NS)
            s->want = s->count;
        if (rng_one_in(&s->random, 50)) /* sometimes it forgets many, sometimes none */
            s->keep =
                (uint32_t)base_random_below(&s->random, s->run->config->roomy ? 2 : MAX_PENDING);
        if (s->count < s->want && s->npending <= s->keep)
            submit_some(s);
        else
            wait_one(s);
        if (rng_one_in(&s->random, 2))
            test_one(s);
        if (rng_one_in(&s->random, 8))
            gpunvme_qpair_reap(&s->run->q);
    }
    return NULL;
}

/* --- the device, resets, the watchdog --------------------------------------------------------- */

static void reset_once(void *r_)
{
    struct run *r = r_;
    uint32_t sq, cq;
    uint64_t rings;

    CHECK(r, gpunvme_qpair_freeze(&r->q, gpunvme_clock_ns() + PATIENCE_NS) == GPUNVME_OK);
    /* The device works on for a while; nobody rings it any more. */
    sq = __atomic_load_n(&r->device.sq.value, __ATOMIC_ACQUIRE);
    cq = __atomic_load_n(&r->device.cq.value, __ATOMIC_ACQUIRE);
    rings = __atomic_load_n(&r->device.sq.rings, __ATOMIC_ACQUIRE);
    for (unsigned i = 0; i < 3; i++)
        sched_yield();
    pthread_mutex_lock(&r->threads.lock);
    CHECK(r, __atomic_load_n(&r->device.sq.value, __ATOMIC_ACQUIRE) == sq);
    CHECK(r, __atomic_load_n(&r->device.cq.value, __ATOMIC_ACQUIRE) == cq);
    CHECK(r, __atomic_load_n(&r->device.sq.rings, __ATOMIC_ACQUIRE) == rings);
    model_reset(&r->device);
    gpunvme_qpair_fail(&r->q, MODEL_FAILED);
    sched_yield();
    gpunvme_qpair_rewind(&r->q);
    gpunvme_qpair_thaw(&r->q);
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

    fprintf(stderr,
            "  queue: reserved %llx, released %llx, published %llx, CQ head %llu, spurious %llu, "
            "locks %u %u, resets %llu\n",
            (unsigned long long)r->q.reserved, (unsigned long long)r->q.released,
            (unsigned long long)r->q.published, (unsigned long long)r->q.cq_head,
            (unsigned long long)r->q.spurious, r->q.sq_lock, r->q.cq_lock,
            (unsigned long long)r->resets);
    for (unsigned i = 0; i < r->config->submitters; i++)
        fprintf(stderr, "  submitter %u: %llu of %llu submitted, %llu ended, %u pending\n", i,
                (unsigned long long)r->submitters[i].count,
                (unsigned long long)r->submitters[i].want,
                (unsigned long long)r->submitters[i].ended, r->submitters[i].npending);
}

/* --- runs ------------------------------------------------------------------------------------- */

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
        config.first_position = c->first_position - commands / 16;
    if (c->first_generation)
        config.first_generation = c->first_generation - commands / c->entries / 32;
    assert_int_equal(gpunvme_qpair_init(&r->q, &config), GPUNVME_OK);
    r->first = r->q.reserved;
    for (unsigned i = 0; i < c->submitters; i++) {
        r->submitters[i] = (struct submitter){.run = r, .id = i, .want = commands / c->submitters};
        r->submitters[i].random.state = rng_hash(seed * 100 + i);
    }
    return r;
}

static void run_threads(struct run *r)
{
    pthread_t devices[2], reset, dog;

    r->begin_ns = gpunvme_clock_ns();
    model_start(&dog, model_watch, &r->threads);
    for (unsigned i = 0; i < r->config->devices; i++)
        model_start(&devices[i], model_work, &r->threads);
    if (r->config->resets)
        model_start(&reset, model_reset_now_and_then, &r->threads);
    for (unsigned i = 0; i < r->config->submitters; i++)
        model_start(&r->submitters[i].thread, submitter, &r->submitters[i]);
    for (unsigned i = 0; i < r->config->submitters; i++)
        pthread_join(r->submitters[i].thread, NULL);
    __atomic_store_n(&r->threads.stop, 1, __ATOMIC_RELEASE);
    for (unsigned i = 0; i < r->config->devices; i++)
        pthread_join(devices[i], NULL);
    if (r->config->resets)
        pthread_join(reset, NULL);
    pthread_join(dog, NULL);
}

/* The wraps that the run was made for came about. */
static void check_wraps(struct run *r)
{
    const struct run_config *c = r->config;
    uint64_t moved = (r->q.reserved - r->first) & GPUNVME_QPAIR_POSITION;
    bool wrapped = false;

    if (c->first_position)
        CHECK(r, ((c->first_position - r->first) & GPUNVME_QPAIR_POSITION) < moved);
    for (uint32_t i = 0; i < 2 * c->entries; i++)
        wrapped |= r->device.m.slots[i].word >> 16 < BIT(47);
    if (c->first_generation)
        CHECK(r, wrapped);
}

static void check_sums(struct run *r)
{
    uint64_t submitted = 0, failed = 0;

    for (unsigned i = 0; i < r->config->submitters; i++) {
        submitted += r->submitters[i].count;
        failed += r->submitters[i].failed;
        CHECK(r, r->submitters[i].ended == r->submitters[i].want);
    }
    CHECK(r, gpunvme_qpair_outstanding(&r->q) == 0);
    CHECK(r, r->q.spurious == 0);
    if (r->config->resets) {
        CHECK(r, r->device.completed >= submitted - failed);
        CHECK(r, r->resets > 0);
    } else {
        CHECK(r, r->device.fetched == submitted && r->device.completed == submitted);
        CHECK(r, ((r->q.reserved - r->q.released) & GPUNVME_QPAIR_POSITION) == 0);
    }
}

static void every_ticket_ends_once_with_its_own_completion(void **state)
{
    const struct run_config *c = *state;
    uint64_t commands = env_number("GPUNVME_MODEL_COMMANDS", 1000000) / 100 * c->share;
    struct run *r = run_open(c, env_number("GPUNVME_MODEL_SEED", 1), commands);

    run_threads(r);
    check_sums(r);
    check_wraps(r);
    pthread_mutex_destroy(&r->threads.lock);
    model_close(&r->device);
    free(r);
}

/* The ticket's 64 bits wrap where the generation's 48 do; a position has 63 bits. */
static const struct run_config configs[] = {
    {"two entries, four submitters", 2, 4, 3, MODEL_DB_POINTER, 1, false, false, 0, 0, 4},
    {"two entries, position 2^33", 2, 2, 1, MODEL_DB_FUNCTION, 1, false, false, BIT(33), BIT(48),
     4},
    {"four entries, position 2^32", 4, 4, 4, MODEL_DB_FUNCTION, 1, false, false, BIT(32), 0, 6},
    {"four entries, position 2^63", 4, 3, 8, MODEL_DB_POINTER, 1, false, false, BIT(63), BIT(48),
     6},
    {"eight entries, two device threads", 8, 3, 5, MODEL_DB_POINTER, 2, false, false, BIT(35), 0,
     8},
    {"eight entries, shadow doorbells", 8, 4, 5, MODEL_DB_SHADOW, 1, false, false, BIT(48), 0, 10},
    {"64 entries, batches of 32", 64, 4, 32, MODEL_DB_POINTER, 1, false, false, BIT(63), 0, 12},
    {"64 entries, shadow doorbells", 64, 3, 8, MODEL_DB_SHADOW, 1, false, false, 0, BIT(48), 10},
    {"1,024 entries, six submitters", 1024, 6, 48, MODEL_DB_POINTER, 1, false, false, BIT(42), 0,
     12},
    {"64 entries, never full", 64, 6, 3, MODEL_DB_POINTER, 1, false, true, BIT(38), 0, 2},
    {"two entries, resets", 2, 3, 2, MODEL_DB_POINTER, 1, true, false, BIT(33), BIT(48), 4},
    {"eight entries, resets", 8, 4, 6, MODEL_DB_FUNCTION, 1, true, false, BIT(63), 0, 8},
    {"eight entries, resets, shadows", 8, 3, 4, MODEL_DB_SHADOW, 1, true, false, BIT(35), 0, 8},
    {"256 entries, resets", 256, 4, 24, MODEL_DB_POINTER, 2, true, false, BIT(63), BIT(48), 8},
};

#define RUNS (sizeof(configs) / sizeof(configs[0]))

int main(void)
{
    struct CMUnitTest tests[RUNS];

    for (unsigned i = 0; i < RUNS; i++)
        tests[i] =
            (struct CMUnitTest){configs[i].name, every_ticket_ends_once_with_its_own_completion,
                                NULL, NULL, (void *)(uintptr_t)&configs[i]};
    return cmocka_run_group_tests_name("queue under threads", tests, NULL, NULL);
}
