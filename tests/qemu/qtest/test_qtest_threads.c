/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Several threads on QEMU's controller: each writes to blocks of its own, reads them back, and
 * compares.
 */
#include <pthread.h>
#include <sched.h>
#include <time.h>

#include "patience.h"
#include "qemu/qtest/rig.h"

#define MIB     (UINT64_C(1) << 20)
#define THREADS 8
#define PART    ((size_t)512 << 10) /* of the namespace, and of the buffer, for each thread */

struct worker {
    struct rig *rig;
    struct gpunvme_ioq *ioq;
    pthread_t thread;
    unsigned index, turns;
    bool resets; /* somebody resets the controller meanwhile: commands may end by that */
    unsigned done;
    gpunvme_err_t err;
};

static bool is_by_reset(gpunvme_err_t err)
{
    return err == GPUNVME_ERR_ABORTED || err == GPUNVME_ERR_CLOSED;
}

/* One turn: random bytes there and back. */
static gpunvme_err_t write_and_read(struct worker *w, uint64_t *seed)
{
    struct rig *r = w->rig;
    size_t n = 1 + rig_random(seed) % 20000, at = w->index * PART, half = PART / 2;
    uint64_t off = w->index * PART + (rig_random(seed) % (PART - n) & ~(uint64_t)511);
    uint8_t *bytes = r->buf.cpu;
    gpunvme_err_t err;

    n = (n + 511) & ~(size_t)511;
    rig_fill(bytes + at, n, *seed);
    err = gpunvme_write(w->ioq, r->ns, off, n, &r->buf, at, 0);
    if (!err)
        err = gpunvme_read(w->ioq, r->ns, off, n, &r->buf, at + half);
    if (!err && memcmp(bytes + at, bytes + at + half, n))
        err = GPUNVME_ERR_VERIFY;
    return err;
}

/* Until all turns are done. What a reset ends is done again; not for ever. */
static void *work(void *arg)
{
    struct worker *w = arg;
    uint64_t seed = w->index * 1000 + 1;
    time_t until = time(NULL) + PATIENCE_S;

    while (w->done < w->turns && !w->err) {
        gpunvme_err_t err = write_and_read(w, &seed);

        if (!err) {
            w->done++;
        } else if (w->resets && is_by_reset(err)) {
            w->err = time(NULL) > until ? GPUNVME_ERR_TIMEOUT : GPUNVME_OK;
            sched_yield();
        } else {
            w->err = err;
        }
    }
    return NULL;
}

/* With one queue for all, or (`queues` = THREADS) one for each. */
static void start_workers(struct rig *r, struct worker *workers, unsigned queues, unsigned turns,
                          bool resets)
{
    struct gpunvme_ioq *ioqs[THREADS] = {r->ioq};

    for (unsigned i = 1; i < queues; i++)
        assert_ok(gpunvme_ioq_create(r->ctrl, 32, &ioqs[i]));
    for (unsigned i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){
            .rig = r, .ioq = ioqs[i % queues], .index = i, .turns = turns, .resets = resets};
        assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    }
}

/* All have ended without an error, and have done all. */
static void join_workers(struct worker *workers)
{
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(workers[i].thread, NULL);
    for (unsigned i = 0; i < THREADS; i++) {
        assert_err(workers[i].err, GPUNVME_OK);
        assert_int_equal(workers[i].done, workers[i].turns);
    }
}

static void run_workers(struct rig *r, unsigned queues)
{
    struct worker workers[THREADS];

    start_workers(r, workers, queues, 150, false);
    join_workers(workers);
}

static void eight_threads_share_one_queue(void **state)
{
    struct rig *r = *state;

    rig_start_disk(r, THREADS * PART, "");
    rig_open(r);
    run_workers(r, 1);
    rig_close(r);
}

static void eight_threads_share_one_queue_of_four_entries(void **state)
{
    struct rig *r = *state;

    rig_start_disk(r, THREADS * PART, "");
    rig_open(r);
    assert_ok(gpunvme_ioq_delete(r->ioq));
    assert_ok(gpunvme_ioq_create(r->ctrl, 4, &r->ioq));
    run_workers(r, 1);
    rig_close(r);
}

static void eight_threads_share_one_queue_without_shadow_doorbells(void **state)
{
    struct rig *r = *state;

    rig_start_disk(r, THREADS * PART, "");
    r->opts.no_shadow_doorbells = true;
    rig_open(r);
    run_workers(r, 1);
    rig_close(r);
}

static void eight_threads_have_a_queue_each(void **state)
{
    struct rig *r = *state;

    rig_start_disk(r, THREADS * PART, "");
    rig_open(r);
    run_workers(r, THREADS);
    rig_close(r);
}

static void eight_threads_wait_for_interrupts(void **state)
{
    struct rig *r = *state;

    rig_start_disk(r, THREADS * PART, "");
    r->opts.interrupts = true;
    rig_open(r);
    run_workers(r, 4);
    rig_close(r);
}

static void all_queues_work_at_once(void **state)
{
    struct rig *r = *state;
    struct gpunvme_ioq *ioqs[64];
    struct gpunvme_token tokens[64][8];

    rig_start_disk(r, 8 * MIB, ",max_ioqpairs=64");
    r->opts.io_queues = 64;
    rig_open(r);
    ioqs[0] = r->ioq;
    for (unsigned i = 1; i < 64; i++)
        assert_ok(gpunvme_ioq_create(r->ctrl, 16, &ioqs[i]));
    rig_fill(r->buf.cpu, 64 * 4096, 4);
    assert_ok(gpunvme_write(r->ioq, r->ns, 0, 64 * 4096, &r->buf, 0, 0));
    for (unsigned i = 0; i < 64; i++)
        for (unsigned j = 0; j < 8; j++)
            assert_ok(gpunvme_submit_read(ioqs[i], r->ns, i * 8 + j, 1, &r->buf,
                                          MIB + (i * 8 + j) * 512, &tokens[i][j]));
    for (unsigned i = 64; i-- > 0;)
        for (unsigned j = 0; j < 8; j++)
            assert_ok(gpunvme_token_wait(&tokens[i][j], 0));
    assert_memory_equal(r->buf.cpu, (char *)r->buf.cpu + MIB, 64 * 4096);
    rig_close(r);
}

/* The queue by itself, as a GPU's threads use it: its entries made by hand. */
static void *read_raw(void *arg)
{
    struct worker *w = arg;
    struct gpunvme_qpair *q = gpunvme_ioq_qpair(w->ioq);
    uint64_t seed = w->index;

    for (unsigned i = 0; i < w->turns && !w->err; i++) {
        size_t at = MIB + (w->index + 1) * 4096;
        uint64_t block = rig_random(&seed) % 256, ticket = 0;
        struct gpunvme_completion c = {0};
        struct gpunvme_sqe sqe = {.opc = GPUNVME_CMD_READ,
                                  .nsid = 1,
                                  .prp1 = w->rig->buf.bus + at,
                                  .cdw10 = (uint32_t)block * 8,
                                  .cdw12 = 7};

        while (gpunvme_qpair_submit(q, &sqe, 1, &ticket) == 0)
            gpunvme_qpair_reap(q);
        w->err = gpunvme_qpair_wait(q, ticket, gpunvme_clock_ns() + UINT64_C(20000000000), &c);
        if (!w->err && (c.status || memcmp((char *)w->rig->buf.cpu + at,
                                           (char *)w->rig->buf.cpu + block * 4096, 4096)))
            w->err = GPUNVME_ERR_VERIFY;
        w->done++;
    }
    return NULL;
}

static void threads_that_build_their_own_commands_share_a_queue(void **state)
{
    struct rig *r = *state;
    struct worker workers[THREADS];

    rig_start_disk(r, 8 * MIB, "");
    rig_open(r);
    rig_fill(r->buf.cpu, MIB, 4);
    assert_ok(gpunvme_write(r->ioq, r->ns, 0, MIB, &r->buf, 0, 0));
    for (unsigned i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){.rig = r, .ioq = r->ioq, .index = i, .turns = 500};
        assert_int_equal(pthread_create(&workers[i].thread, NULL, read_raw, &workers[i]), 0);
    }
    join_workers(workers);
    assert_int_equal(gpunvme_ioq_qpair(r->ioq)->spurious, 0);
    rig_close(r);
}

static void run_with_resets(struct rig *r, unsigned queues)
{
    struct worker workers[THREADS];
    struct gpunvme_ctrl_info info;

    start_workers(r, workers, queues, 400, true);
    for (unsigned i = 0; i < 6; i++) {
        r->transport->ops->pause_ns(r->transport, 20000000);
        assert_ok(gpunvme_ctrl_reset(r->ctrl));
    }
    join_workers(workers);
    gpunvme_ctrl_get_info(r->ctrl, &info);
    assert_int_equal(info.resets, 6);
    rig_check_io(r, 0, MIB);
}

static void resets_in_the_middle_of_io_lose_nothing_on_one_queue(void **state)
{
    struct rig *r = *state;

    rig_start_disk(r, THREADS * PART, "");
    rig_open(r);
    run_with_resets(r, 1);
    rig_close(r);
}

static void resets_in_the_middle_of_io_lose_nothing_on_many_queues(void **state)
{
    struct rig *r = *state;

    rig_start_disk(r, THREADS * PART, "");
    rig_open(r);
    run_with_resets(r, THREADS);
    rig_close(r);
}

static const struct CMUnitTest tests[] = {
    rig_test(eight_threads_share_one_queue),
    rig_test(eight_threads_share_one_queue_of_four_entries),
    rig_test(eight_threads_share_one_queue_without_shadow_doorbells),
    rig_test(eight_threads_have_a_queue_each),
    rig_test(eight_threads_wait_for_interrupts),
    rig_test(all_queues_work_at_once),
    rig_test(threads_that_build_their_own_commands_share_a_queue),
    rig_test(resets_in_the_middle_of_io_lose_nothing_on_one_queue),
    rig_test(resets_in_the_middle_of_io_lose_nothing_on_many_queues),
};

RIG_MAIN(tests)
