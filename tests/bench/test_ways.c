/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The published ways that bench/ compares with, played by threads of the CPU: what is measured must
 * at least be right.
 */
#include <pthread.h>
#include <sched.h>

#include "../no_gpu.h"
#include "../sim/driver.h"

#define __device__
#define __forceinline__ inline
#define atomicAdd(p, v) __atomic_fetch_add(p, v, __ATOMIC_ACQ_REL)
/* More threads than processors: let the others run. */
#define gpunvme_relax() sched_yield()

/* A block of threads, for lockstep. */
static struct {
    uint32_t x;
} blockDim;
static _Thread_local struct {
    uint32_t x;
} threadIdx;
static pthread_barrier_t barrier;
static uint32_t nfalse;

static void block_sync(void)
{
    pthread_barrier_wait(&barrier);
}

static bool block_and(bool mine)
{
    bool all;

    if (!mine)
        __atomic_fetch_add(&nfalse, 1, __ATOMIC_ACQ_REL);
    block_sync();
    all = !__atomic_load_n(&nfalse, __ATOMIC_ACQUIRE);
    block_sync();
    return all;
}

#define __syncthreads()      block_sync()
#define __syncthreads_and(x) block_and(x)
#include "../../bench/ways.cuh"

#define NTHREADS 8u
#define READS    100u

struct lab {
    struct gpunvme_ctrl *ctrl;
    struct gpunvme_sim *sim;
    const struct gpunvme_ns *ns;
    struct gpunvme_device *dev;
    struct gpunvme_dev_ns handle;
    struct gpunvme_buf buf;
    struct way_queue way;
    uint32_t *words;
    struct job_outcome outcome;
    uint32_t batches; /* lockstep */
};

static void number_blocks(struct lab *l)
{
    struct gpunvme_ioq *ioq;
    struct gpunvme_buf buf;

    assert_ok(gpunvme_ioq_create(l->ctrl, 64, &ioq));
    assert_ok(gpunvme_ctrl_alloc(l->ctrl, (size_t)l->ns->nbytes, GPUNVME_MEM_HOST, &buf));
    for (uint64_t word = 0; word < l->ns->nbytes / 8; word++)
        ((uint64_t *)buf.cpu)[word] = bench_word(0, word / 64, (uint32_t)(word % 64));
    assert_ok(gpunvme_write(ioq, l->ns, 0, (size_t)l->ns->nbytes, &buf, 0, 0));
    gpunvme_ctrl_free(l->ctrl, &buf);
    assert_ok(gpunvme_ioq_delete(ioq));
}

static void lab_open(struct lab *l, const char *uri, uint32_t entries)
{
    struct gpunvme_ctrl_opts ctrl_opts;
    struct gpunvme_device_opts opts;

    memset(l, 0, sizeof(*l));
    gpunvme_ctrl_opts_init(&ctrl_opts);
    ctrl_opts.no_shadow_doorbells = true;
    assert_ok(gpunvme_ctrl_open_uri(uri, &ctrl_opts, &l->ctrl));
    l->sim = gpunvme_transport_sim(gpunvme_ctrl_transport(l->ctrl));
    l->ns = gpunvme_ctrl_ns_at(l->ctrl, 0);
    number_blocks(l);
    gpunvme_device_opts_init(&opts);
    opts.queues = 1;
    opts.entries = entries;
    assert_ok(gpunvme_device_open(l->ctrl, &opts, &l->dev));
    assert_ok(gpunvme_device_ns(l->dev, l->ns, &l->handle));
    assert_ok(gpunvme_device_alloc(l->dev, NTHREADS * 512, &l->buf));
    l->words = calloc(3 * entries, sizeof(*l->words));
    assert_non_null(l->words);
    way_init(&l->way, l->handle.queues, l->words);
}

static void lab_close(struct lab *l)
{
    struct gpunvme_sim_report report;

    gpunvme_device_free(l->dev, &l->buf);
    assert_ok(gpunvme_device_close(l->dev));
    gpunvme_sim_report(l->sim, &report);
    if (report.nviolations)
        print_error("violation: %s\n", report.first);
    assert_int_equal(report.nviolations, 0);
    assert_ok(gpunvme_ctrl_close(l->ctrl));
    free(l->words);
}

struct player {
    struct lab *lab;
    uint32_t index, ended, errors, wrong;
    pthread_t thread;
};

static void *play(void *arg)
{
    struct player *p = arg;
    struct lab *l = p->lab;
    uint64_t lba = p->index;

    for (uint32_t i = 0; i < READS; i++) {
        volatile uint64_t *word = (uint64_t *)((uint8_t *)l->buf.cpu + p->index * 512) + i % 64;
        struct gpunvme_sqe sqe = {.opc = GPUNVME_CMD_READ, .nsid = l->ns->nsid};
        uint32_t status = 0;

        lba = (lba * 31 + 17) % l->ns->nblocks;
        sqe.cdw10 = (uint32_t)lba;
        sqe.prp1 = gpunvme_buf_bus(&l->buf, p->index * 512);
        *word = 0;
        if (!ticket_submit(&l->way, p->index, &sqe, &l->outcome) ||
            !ticket_complete(&l->way, p->index, &status, &l->outcome))
            break;
        p->ended++;
        p->errors += status != 0;
        p->wrong += !status && *word != bench_word(0, lba, i % 64);
    }
    return NULL;
}

/* One thread of a block in lockstep; with one batch its data is right when it has taken its turn.
 */
static void *play_lockstep(void *arg)
{
    struct player *p = arg;
    struct lab *l = p->lab;
    uint64_t lba = p->index;
    struct lockstep step;
    uint32_t turn = 0, batches = l->batches;

    threadIdx.x = p->index;
    lockstep_begin(&step, &l->way, batches);
    for (uint32_t t = 0; t < (READS + 1) * batches; t++) {
        volatile uint64_t *word = (uint64_t *)((uint8_t *)l->buf.cpu + p->index * 512);
        struct gpunvme_sqe sqe = {.opc = GPUNVME_CMD_READ, .nsid = l->ns->nsid};
        uint32_t status = 0;

        if (t >= batches) {
            if (!lockstep_reap(&step, turn, &status, &l->outcome))
                break;
            p->ended += step.group == turn;
            p->errors += status != 0;
            p->wrong += batches == 1 && !status && *word != bench_word(0, lba, 0);
        }
        if (step.group == turn)
            lba = (lba * 31 + 17) % l->ns->nblocks;
        sqe.cdw10 = (uint32_t)lba;
        sqe.prp1 = gpunvme_buf_bus(&l->buf, p->index * 512);
        if (batches == 1)
            *word = 0;
        if (t < READS * batches)
            lockstep_submit(&step, turn, &sqe);
        turn = turn + 1 == batches ? 0 : turn + 1;
    }
    lockstep_end(&step);
    return NULL;
}

static void play_all(struct lab *l, void *(*play_one)(void *), struct player *sum)
{
    struct player players[NTHREADS];

    memset(sum, 0, sizeof(*sum));
    memset(players, 0, sizeof(players));
    for (uint32_t i = 0; i < NTHREADS; i++) {
        players[i].lab = l;
        players[i].index = i;
        assert_int_equal(pthread_create(&players[i].thread, NULL, play_one, &players[i]), 0);
    }
    for (uint32_t i = 0; i < NTHREADS; i++) {
        pthread_join(players[i].thread, NULL);
        sum->ended += players[i].ended;
        sum->errors += players[i].errors;
        sum->wrong += players[i].wrong;
    }
}

static void ticket_and_lock_reads_right_with_room_for_all(void **state)
{
    struct player sum;
    struct lab l;

    (void)state;
    lab_open(&l, "sim:size=1M", 64);
    play_all(&l, play, &sum);
    assert_int_equal(sum.ended, NTHREADS * READS);
    assert_int_equal(sum.errors, 0);
    assert_int_equal(sum.wrong, 0);
    lab_close(&l);
}

/* Threads wait for their entry's turn, and the tail for the head. */
static void ticket_and_lock_reads_right_with_fewer_entries_than_threads(void **state)
{
    struct player sum;
    struct lab l;

    (void)state;
    lab_open(&l, "sim:size=1M", 4);
    play_all(&l, play, &sum);
    assert_int_equal(sum.ended, NTHREADS * READS);
    assert_int_equal(sum.errors, 0);
    assert_int_equal(sum.wrong, 0);
    lab_close(&l);
}

static void ticket_and_lock_finds_completions_in_any_order(void **state)
{
    struct player sum;
    struct lab l;

    (void)state;
    lab_open(&l, "sim:size=1M,latency=20us,sigma=1", 16);
    play_all(&l, play, &sum);
    assert_int_equal(sum.ended, NTHREADS * READS);
    assert_int_equal(sum.wrong, 0);
    lab_close(&l);
}

static void ticket_and_lock_tells_errors(void **state)
{
    struct player sum;
    struct lab l;

    (void)state;
    lab_open(&l, "sim:size=1M,fault=status=2/81:read:every=10", 16);
    play_all(&l, play, &sum);
    assert_int_equal(sum.ended, NTHREADS * READS);
    assert_int_equal(sum.errors, NTHREADS * READS / 10);
    lab_close(&l);
}

/* Twice, so that the second block goes on where the first ended; READS wrap the queue often. */
static void lockstep_with(uint32_t batches, const char *uri, uint32_t errors)
{
    struct player sum;
    struct lab l;

    lab_open(&l, uri, 16);
    l.batches = batches;
    blockDim.x = NTHREADS;
    nfalse = 0;
    assert_int_equal(pthread_barrier_init(&barrier, NULL, NTHREADS), 0);
    for (unsigned i = 0; i < 2; i++) {
        play_all(&l, play_lockstep, &sum);
        assert_int_equal(sum.ended, NTHREADS * READS);
        assert_int_equal(sum.errors, errors);
        assert_int_equal(sum.wrong, 0);
    }
    pthread_barrier_destroy(&barrier);
    lab_close(&l);
}

static void lockstep_reads_right(void **state)
{
    (void)state;
    lockstep_with(1, "sim:size=1M", 0);
}

static void lockstep_takes_completions_in_any_order(void **state)
{
    (void)state;
    lockstep_with(1, "sim:size=1M,latency=20us,sigma=1", 0);
}

static void lockstep_with_groups_that_take_turns_ends_all(void **state)
{
    (void)state;
    lockstep_with(2, "sim:size=1M,latency=20us,sigma=1", 0);
}

static void lockstep_tells_errors(void **state)
{
    (void)state;
    lockstep_with(1, "sim:size=1M,fault=status=2/81:read:every=10", NTHREADS * READS / 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ticket_and_lock_reads_right_with_room_for_all),
        cmocka_unit_test(ticket_and_lock_reads_right_with_fewer_entries_than_threads),
        cmocka_unit_test(ticket_and_lock_finds_completions_in_any_order),
        cmocka_unit_test(ticket_and_lock_tells_errors),
        cmocka_unit_test(lockstep_reads_right),
        cmocka_unit_test(lockstep_takes_completions_in_any_order),
        cmocka_unit_test(lockstep_with_groups_that_take_turns_ends_all),
        cmocka_unit_test(lockstep_tells_errors),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
