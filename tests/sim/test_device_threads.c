/* SPDX-License-Identifier: BSD-3-Clause
 *
 * device.cuh with many threads on the same queues: everybody gets their own bytes, status and
 * slots, whoever reaps, and nobody waits for another's command.
 */
#include <pthread.h>

#include "sim/device_fixture.h"

#define MAX_THREADS 32
#define PART        ((size_t)64 << 10) /* of the namespace and of the buffer, for each thread */

struct worker {
    struct fixture *f;
    pthread_t thread;
    unsigned index, turns;
    uint64_t seed;
    uint8_t *mine;   /* what its part of the namespace must hold */
    unsigned errors; /* of the controller's, where some are expected */
    int err;         /* what ended it */
    uint32_t done;
};

/* Somewhere between two calls, so that schedules differ. */
static void dawdle(struct worker *w)
{
    if (next_random(&w->seed) % 8 == 0)
        sched_yield();
}

static void run_workers(struct fixture *f, struct worker *workers, unsigned n, unsigned turns,
                        void *(*work)(void *))
{
    for (unsigned i = 0; i < n; i++) {
        workers[i] = (struct worker){.f = f, .index = i, .turns = turns, .seed = i * 77 + 5};
        workers[i].mine = f->image ? f->image + i * PART : NULL;
    }
    for (unsigned i = 0; i < n; i++)
        assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    for (unsigned i = 0; i < n; i++)
        pthread_join(workers[i].thread, NULL);
    for (unsigned i = 0; i < n; i++)
        assert_err(workers[i].err, GPUNVME_OK);
}

/* --- the model ----------------------------------------------------------------------------------
 */

/* What one turn does: n bytes (whole blocks but for byte ranges) at `at` of the worker's part. */
struct step {
    uint64_t at, off, n;
    uint8_t *bytes;
};

static struct step random_step(struct worker *w, bool whole)
{
    uint64_t n = 1 + next_random(&w->seed) % (next_random(&w->seed) % 4 ? 2000 : 20000);
    uint64_t unit = whole ? 512 : 1, dwords = whole ? 4 : 1;
    struct step s;

    s.n = (n + unit - 1) / unit * unit;
    s.at = next_random(&w->seed) % (PART - s.n + 1) / unit * unit;
    s.off = w->index * PART + next_random(&w->seed) % (PART - s.n + 1) / dwords * dwords;
    s.bytes = w->f->bytes + s.off;
    return s;
}

static int write_step(struct worker *w)
{
    unsigned kind = (unsigned)(next_random(&w->seed) % 5);
    const struct gpunvme_dev_ns *ns = &w->f->ns;
    const struct gpunvme_dev_buf *buf = &w->f->buf;
    struct step s = random_step(w, kind < 4);
    uint64_t at = w->index * PART + s.at, slba = at / 512, nlb = s.n / 512;
    struct gpunvme_dev_vec vec = {.slba = slba, .off = s.off, .nlb = (uint32_t)nlb};
    struct gpunvme_dev_token t;
    int err;

    fill_random(s.bytes, s.n, w->seed);
    memcpy(w->mine + s.at, s.bytes, s.n);
    switch (kind) {
    case 0:
        return gpunvme_dev_write(ns, slba, nlb, buf, s.off, 0, 0);
    case 1:
        return gpunvme_dev_warp_write(ns, slba, nlb, buf, s.off, GPUNVME_IO_FUA, 0);
    case 2:
        return gpunvme_dev_warp_writev(ns, &vec, 1, buf, 0, 0);
    case 3:
        while ((err = gpunvme_dev_submit_write(ns, slba, vec.nlb, buf, s.off, 0, &t)) ==
               GPUNVME_ERR_AGAIN)
            sched_yield();
        return err ? err : gpunvme_dev_wait(ns, &t, 0);
    default:
        return gpunvme_dev_write_bytes(ns, at, s.n, buf, s.off, 0, 0);
    }
}

static int read_step(struct worker *w)
{
    unsigned kind = (unsigned)(next_random(&w->seed) % 5);
    const struct gpunvme_dev_ns *ns = &w->f->ns;
    const struct gpunvme_dev_buf *buf = &w->f->buf;
    struct step s = random_step(w, kind < 4);
    uint64_t at = w->index * PART + s.at, slba = at / 512, nlb = s.n / 512;
    struct gpunvme_dev_vec vec = {.slba = slba, .off = s.off, .nlb = (uint32_t)nlb};
    struct gpunvme_dev_token t;
    int err;

    memset(s.bytes, 0xee, s.n);
    switch (kind) {
    case 0:
        err = gpunvme_dev_read(ns, slba, nlb, buf, s.off, 0);
        break;
    case 1:
        err = gpunvme_dev_block_read(ns, slba, nlb, buf, s.off, 0);
        break;
    case 2:
        err = gpunvme_dev_block_readv(ns, &vec, 1, buf, 0);
        break;
    case 3:
        while ((err = gpunvme_dev_submit_read(ns, slba, vec.nlb, buf, s.off, &t)) ==
               GPUNVME_ERR_AGAIN)
            sched_yield();
        if (!err) {
            while ((err = gpunvme_dev_test(&t)) == GPUNVME_ERR_AGAIN)
                sched_yield();
        }
        break;
    default:
        err = gpunvme_dev_read_bytes(ns, at, s.n, buf, s.off, 0);
    }
    return !err && memcmp(s.bytes, w->mine + s.at, s.n) ? (int)GPUNVME_ERR_VERIFY : err;
}

static void *mixed_work(void *arg)
{
    struct worker *w = arg;

    for (unsigned i = 0; i < w->turns && !w->err; i++) {
        w->err = next_random(&w->seed) % 2 ? write_step(w) : read_step(w);
        dawdle(w);
    }
    return NULL;
}

static void check_model(const char *uri, unsigned threads, unsigned turns, uint32_t nqueues,
                        uint32_t entries)
{
    struct worker workers[MAX_THREADS];
    struct dev_rig_opts opts;
    struct fixture f;

    dev_rig_opts_init(&opts);
    opts.nqueues = nqueues;
    opts.entries = entries;
    fixture_open(&f, uri, &opts);
    image_fill(&f, 31);
    run_workers(&f, workers, threads, turns, mixed_work);
    image_assert(&f);
    for (uint32_t i = 0; i < nqueues; i++) {
        assert_int_equal(dev_rig_taken(&f.rig, i), 0);
        assert_int_equal(f.ns.queues[i].spurious, 0);
        assert_int_equal(f.ns.queues[i].holders, 0);
    }
    fixture_close(&f);
}

static void eight_threads_on_one_queue_get_their_bytes(void **state)
{
    (void)state;
    check_model("sim:size=512K", 8, 300, 1, 64);
}

static void eight_threads_on_three_queues_get_their_bytes(void **state)
{
    (void)state;
    check_model("sim:size=512K,threads=2", 8, 300, 3, 16);
}

static void more_threads_than_slots_get_on(void **state)
{
    (void)state;
    check_model("sim:size=2M", 32, 30, 1, 4);
}

/* As many at once as there is room for, and the others after those. */
static void *read_several(void *arg)
{
    struct worker *w = arg;
    struct gpunvme_dev_token tokens[4];
    struct gpunvme_dev_vec vec[4];

    for (unsigned i = 0; i < w->turns && !w->err; i++) {
        uint64_t off = w->index * PART;
        uint32_t n;
        int err;

        for (uint32_t k = 0; k < 4; k++)
            vec[k] = (struct gpunvme_dev_vec){
                .slba = (off + 2048 * (i % 32)) / 512 + k, .off = off + 512 * k, .nlb = 1};
        memset(w->f->bytes + off, 0xee, 2048);
        err = gpunvme_dev_submit_readv(&w->f->ns, vec, 4, &w->f->buf, tokens, &n);
        w->err = err == GPUNVME_ERR_AGAIN ? (int)GPUNVME_OK : err;
        for (uint32_t k = 0; k < n; k++) {
            err = gpunvme_dev_wait(&w->f->ns, &tokens[k], 0);
            w->err = w->err ? w->err : err;
        }
        if (!w->err)
            w->err = gpunvme_dev_readv(&w->f->ns, vec + n, 4 - n, &w->f->buf, 0);
        if (!w->err && memcmp(w->f->bytes + off, w->mine + 2048 * (i % 32), 2048))
            w->err = GPUNVME_ERR_VERIFY;
        dawdle(w);
    }
    return NULL;
}

static void threads_that_submit_several_commands_share_seven_slots(void **state)
{
    struct worker workers[32];
    struct dev_rig_opts opts;
    struct fixture f;

    (void)state;
    dev_rig_opts_init(&opts);
    opts.entries = 8;
    fixture_open(&f, "sim:size=2M", &opts);
    image_fill(&f, 34);
    run_workers(&f, workers, 32, 100, read_several);
    assert_int_equal(dev_rig_taken(&f.rig, 0), 0);
    fixture_close(&f);
}

/* Half of a queue of 2 entries is none: then bytes are not written, and nothing else suffers. */
static void byte_writes_need_a_queue_of_four_entries(void **state)
{
    struct dev_rig_opts opts;
    struct fixture f;

    (void)state;
    dev_rig_opts_init(&opts);
    opts.entries = 2;
    fixture_open(&f, "sim:size=1M", &opts);
    assert_err(gpunvme_dev_write_bytes(&f.ns, 1, 1, &f.buf, 0, 0, 0), GPUNVME_ERR_LIMIT);
    assert_err(gpunvme_dev_read_bytes(&f.ns, 1, 1, &f.buf, 0, 0), GPUNVME_OK);
    fixture_close(&f);
}

/* --- errors -------------------------------------------------------------------------------------
 */

/* A command that failed has moved nothing: who gets the error has no data, and the others do. */
static void *suspicious_work(void *arg)
{
    struct worker *w = arg;
    uint8_t *bytes = w->f->bytes + w->index * PART, poison[512];

    memset(poison, 0xee, sizeof(poison));
    for (unsigned i = 0; i < w->turns && !w->err; i++) {
        uint64_t lba = next_random(&w->seed) % (PART / 512);
        int err;

        memset(bytes, 0xee, 512);
        err = gpunvme_dev_read(&w->f->ns, w->index * (PART / 512) + lba, 1, &w->f->buf,
                               w->index * PART, 0);
        if (err == GPUNVME_ERR_NVME(GPUNVME_SC_UNRECOVERED_READ))
            w->errors++;
        else if (err)
            w->err = err;
        if (!w->err && memcmp(bytes, err ? poison : w->mine + lba * 512, 512))
            w->err = GPUNVME_ERR_VERIFY;
        dawdle(w);
    }
    return NULL;
}

static void errors_reach_the_thread_whose_command_failed(void **state)
{
    struct gpunvme_sim_report report;
    struct worker workers[8];
    unsigned errors = 0;
    struct fixture f;

    (void)state;
    fixture_open(&f, "sim:size=512K,threads=2,fault=shuffle=4:read:p=0.1", NULL);
    image_fill(&f, 32);
    assert_ok(gpunvme_sim_fault(f.d.sim, "status=2/81:read:p=0.01"));
    run_workers(&f, workers, 8, 500, suspicious_work);
    for (unsigned i = 0; i < 8; i++)
        errors += workers[i].errors;
    gpunvme_sim_report(f.d.sim, &report);
    assert_int_equal(errors, report.errors);
    assert_true(errors > 0);
    fixture_close(&f);
}

/* --- nobody waits for another -------------------------------------------------------------------
 */

static void *read_block_0(void *arg)
{
    struct worker *w = arg;

    w->err = gpunvme_dev_read(&w->f->ns, 0, 1, &w->f->buf, 0, 0);
    gpunvme_store_release32(&w->done, 1);
    return NULL;
}

/* What a reset does with commands that are in flight. */
static void end_all_by_hand(struct fixture *f)
{
    for (uint32_t i = 0; i < f->rig.nqueues; i++) {
        struct gpunvme_dev_queue *q = &f->ns.queues[i];

        for (uint32_t slot = 1; slot <= q->mask; slot++) {
            uint64_t word = gpunvme_load_acquire64(&q->slots[slot].word);

            if (word & GPUNVME_DEV_SLOT_TAKEN && !(word & GPUNVME_SLOT_DONE))
                gpunvme_store64_fenced_gpu(&q->slots[slot].word,
                                           word | GPUNVME_SLOT_DONE | GPUNVME_SC_HOST_ABORTED);
        }
    }
}

static void no_lock_is_held_across_io(void **state)
{
    struct worker late, workers[4];
    struct fixture f;

    (void)state;
    fixture_open(&f, "sim:size=512K", NULL);
    image_fill(&f, 33);
    assert_ok(gpunvme_sim_fault(f.d.sim, "lose:lba=0-0:read"));
    late = (struct worker){.f = &f};
    assert_int_equal(pthread_create(&late.thread, NULL, read_block_0, &late), 0);
    while (!dev_rig_taken(&f.rig, 0))
        sched_yield();
    for (unsigned i = 0; i < 4; i++)
        workers[i] = (struct worker){
            .f = &f, .index = i + 1, .turns = 40, .seed = i + 1, .mine = f.image + (i + 1) * PART};
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&workers[i].thread, NULL, suspicious_work, &workers[i]), 0);
    for (unsigned i = 0; i < 4; i++) {
        pthread_join(workers[i].thread, NULL);
        assert_err(workers[i].err, GPUNVME_OK);
    }
    assert_int_equal(gpunvme_load_acquire32(&late.done), 0);
    end_all_by_hand(&f);
    pthread_join(late.thread, NULL);
    assert_err(late.err, GPUNVME_ERR_ABORTED);
    assert_ok(gpunvme_ctrl_reset(f.d.ctrl)); /* which forgets the command that was lost */
    f.rig.nqueues = 0;
    fixture_close(&f);
}

/* A thread that never waits for its tokens costs the others room, not their progress. */
static void tokens_that_nobody_waits_for_stop_nobody(void **state)
{
    struct gpunvme_dev_token forgotten[2];
    struct worker workers[8];
    struct dev_rig_opts opts;
    struct fixture f;

    (void)state;
    dev_rig_opts_init(&opts);
    opts.entries = 4;
    fixture_open(&f, "sim:size=512K", &opts);
    image_fill(&f, 34);
    for (unsigned i = 0; i < 2; i++)
        assert_err(gpunvme_dev_submit_read(&f.ns, i, 1, &f.buf, 8 * PART, &forgotten[i]),
                   GPUNVME_OK);
    run_workers(&f, workers, 8, 50, suspicious_work);
    for (unsigned i = 0; i < 2; i++)
        assert_err(gpunvme_dev_wait(&f.ns, &forgotten[i], 0), GPUNVME_OK);
    fixture_close(&f);
}

/* --- who reaps ----------------------------------------------------------------------------------
 */

struct reaper {
    struct fixture *f;
    pthread_t thread;
    uint32_t stop;
};

static void *reap_as_a_warp(void *arg)
{
    struct reaper *r = arg;

    gpunvme_dev_reap(&r->f->ns, 0, 1, &r->stop);
    return NULL;
}

static void *reap_as_the_cpu(void *arg)
{
    struct reaper *r = arg;

    while (!gpunvme_load_acquire32(&r->stop)) {
        uint32_t n = 0;

        for (uint32_t i = 0; i < r->f->rig.nqueues; i++)
            n += gpunvme_qpair_reap(&r->f->rig.cpu[i]);
        if (!n)
            sched_yield();
    }
    return NULL;
}

static void check_reaper(enum gpunvme_reaper who, void *(*reap)(void *))
{
    struct worker workers[8];
    struct dev_rig_opts opts;
    struct fixture f;
    struct reaper r = {.f = &f};

    dev_rig_opts_init(&opts);
    opts.nqueues = 2;
    opts.entries = 16;
    opts.reaper = who;
    fixture_open(&f, "sim:size=512K", &opts);
    image_fill(&f, 35);
    assert_int_equal(pthread_create(&r.thread, NULL, reap, &r), 0);
    run_workers(&f, workers, 8, 100, mixed_work);
    gpunvme_store_release32(&r.stop, 1);
    pthread_join(r.thread, NULL);
    image_assert(&f);
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(dev_rig_taken(&f.rig, i), 0);
    fixture_close(&f);
}

static void a_warp_of_its_own_can_reap(void **state)
{
    (void)state;
    check_reaper(GPUNVME_REAPER_WARP, reap_as_a_warp);
}

/* One look of a reaper that has been stopped already. */
static void reap_once(struct fixture *f, uint32_t first, uint32_t stride)
{
    const uint32_t stop = 1;

    gpunvme_dev_reap(&f->ns, first, stride, &stop);
}

static void a_reaper_of_one_queue_leaves_the_others_alone(void **state)
{
    uint64_t until = gpunvme_clock_ns() + PATIENCE_NS;
    struct gpunvme_dev_token token;
    struct gpunvme_dev_ns zeroth;
    struct dev_rig_opts opts;
    struct fixture f;

    (void)state;
    dev_rig_opts_init(&opts);
    opts.nqueues = 2;
    opts.reaper = GPUNVME_REAPER_WARP;
    fixture_open(&f, "sim:size=512K", &opts);
    zeroth = gpunvme_dev_on_queue(&f.ns, 0);
    assert_int_equal(gpunvme_dev_submit_read(&zeroth, 0, 1, &f.buf, 0, &token), GPUNVME_OK);
    while (!gpunvme_dev_queue_has_news(token.queue) && gpunvme_clock_ns() < until)
        sched_yield();
    reap_once(&f, 1, UINT32_MAX);
    assert_int_equal(gpunvme_dev_test(&token), GPUNVME_ERR_AGAIN);
    reap_once(&f, 0, UINT32_MAX);
    assert_int_equal(gpunvme_dev_test(&token), GPUNVME_OK);
    fixture_close(&f);
}

static void a_thread_of_the_cpu_can_reap(void **state)
{
    (void)state;
    check_reaper(GPUNVME_REAPER_CPU, reap_as_the_cpu);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(eight_threads_on_one_queue_get_their_bytes),
        cmocka_unit_test(eight_threads_on_three_queues_get_their_bytes),
        cmocka_unit_test(more_threads_than_slots_get_on),
        cmocka_unit_test(threads_that_submit_several_commands_share_seven_slots),
        cmocka_unit_test(byte_writes_need_a_queue_of_four_entries),
        cmocka_unit_test(errors_reach_the_thread_whose_command_failed),
        cmocka_unit_test(no_lock_is_held_across_io),
        cmocka_unit_test(tokens_that_nobody_waits_for_stop_nobody),
        cmocka_unit_test(a_warp_of_its_own_can_reap),
        cmocka_unit_test(a_reaper_of_one_queue_leaves_the_others_alone),
        cmocka_unit_test(a_thread_of_the_cpu_can_reap),
    };

    if (getenv("T"))
        cmocka_set_test_filter(getenv("T"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
