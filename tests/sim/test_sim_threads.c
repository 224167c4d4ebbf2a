/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Several controller threads, several driver threads, and everything that may happen beside them:
 * mappings that come and go, queues too, resets, removal, events, reports. Of most use under the
 * thread sanitizer.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "sim/raw.h"

#define WORKERS 4
#define ROUNDS  100

struct worker {
    struct raw *r;
    uint16_t qid;
    pthread_t thread;
    unsigned commands;
    bool late_is_fine;
};

static atomic_bool stop;

/* Writes and reads back blocks that no other worker uses. */
static void *work(void *w_)
{
    struct worker *w = w_;
    struct raw_queue *q = &w->r->queue[w->qid];
    uint8_t *data = w->r->memory + RAW_NBYTES - (w->qid + 1u) * 65536;
    uint64_t bus = raw_bus(w->r, data);

    for (unsigned round = 0; round < ROUNDS && !atomic_load(&stop); round++) {
        for (unsigned i = 0; i < 14; i++) {
            raw_fill(data + i * 512, 512, round * 100 + i);
            raw_put(q, raw_rw(GPUNVME_CMD_WRITE, w->qid * 100u + i, 1, bus + i * 512, 0));
        }
        for (unsigned opc = GPUNVME_CMD_WRITE; opc <= GPUNVME_CMD_READ; opc++) {
            raw_ring(raw_sq_doorbell(w->r, w->qid), q->tail);
            for (unsigned i = 0; i < 14; i++) {
                for (; !raw_poll(w->r, q); sched_yield())
                    if (atomic_load(&stop))
                        return NULL;
                if (q->last.status >> 1)
                    return (void *)"a command failed";
                w->commands++;
            }
            for (unsigned i = 0; i < 14 && opc == GPUNVME_CMD_WRITE; i++)
                raw_put(q, raw_rw(GPUNVME_CMD_READ, w->qid * 100u + i, 1, bus + 8192 + i * 512, 0));
        }
        if (memcmp(data, data + 8192, 14 * 512) != 0)
            return (void *)"other bytes came back";
    }
    return NULL;
}

static void start(struct raw *r, struct worker *workers)
{
    atomic_store(&stop, false);
    for (uint16_t i = 0; i < WORKERS; i++) {
        workers[i] = (struct worker){.r = r, .qid = (uint16_t)(i + 2)};
        raw_io_queue(r, workers[i].qid, 16);
    }
    for (unsigned i = 0; i < WORKERS; i++)
        assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
}

static void finish(struct worker *workers, bool all)
{
    for (unsigned i = 0; i < WORKERS; i++) {
        void *failure;

        assert_int_equal(pthread_join(workers[i].thread, &failure), 0);
        if (failure)
            print_error("%s\n", (const char *)failure);
        assert_null(failure);
        if (all)
            assert_int_equal(workers[i].commands, ROUNDS * 28);
    }
}

static void check_queues(const char *uri)
{
    struct worker workers[WORKERS];
    struct raw r;

    raw_open(&r, uri);
    start(&r, workers);
    finish(workers, true);
    assert_int_equal(raw_report(&r).commands[1], WORKERS * ROUNDS * 28);
    raw_close(&r);
}

static void queues_on_several_threads_keep_apart(void **state)
{
    (void)state;
    check_queues("sim:size=1M,threads=3");
}

static void queues_behind_a_cache_keep_apart(void **state)
{
    (void)state;
    check_queues("sim:size=1M,threads=3,vwc=1");
}

static void spinning_threads_work(void **state)
{
    (void)state;
    check_queues("sim:size=1M,threads=2,spin=1");
}

static void commands_in_any_order_keep_apart(void **state)
{
    (void)state;
    check_queues("sim:size=1M,threads=2,fault=shuffle=5:p=0.5,fault=delay=100us:p=0.1");
}

static void mappings_come_and_go_beside_commands(void **state)
{
    struct worker workers[WORKERS];
    struct gpunvme_buf buf = {.nbytes = 8192};
    struct raw r;

    (void)state;
    raw_open(&r, "sim:size=1M,threads=3,vwc=1");
    buf.cpu = raw_alloc(&r, 8192);
    start(&r, workers);
    for (unsigned i = 0; i < 500; i++) {
        assert_ok(gpunvme_sim_dma_map(r.sim, 0x10000 + i * 0x10000, 8192, &buf));
        if (i % 2)
            assert_int_equal(
                raw_do(&r, &r.queue[1], raw_rw(GPUNVME_CMD_READ, 0, 1, 0x10000 + i * 0x10000, 0)),
                0);
        assert_ok(gpunvme_sim_dma_unmap(r.sim, 0x10000 + i * 0x10000, 8192));
    }
    finish(workers, true);
    raw_close(&r);
}

static void queues_come_and_go_beside_commands(void **state)
{
    struct worker workers[WORKERS];
    struct raw r;
    struct raw_queue *q;

    (void)state;
    raw_open(&r, "sim:size=1M,threads=3");
    start(&r, workers);
    for (unsigned i = 0; i < 60; i++) {
        uint16_t qid = (uint16_t)(6 + i % 3);
        size_t used = r.used;

        q = raw_io_queue(&r, qid, 16);
        for (unsigned n = 0; n < 10; n++)
            raw_put(q, (struct gpunvme_sqe){.nsid = 1});
        raw_ring(raw_sq_doorbell(&r, qid), q->tail);
        assert_int_equal(raw_delete_sq(&r, qid), 0);
        assert_int_equal(raw_delete_cq(&r, qid), 0);
        r.used = used;
    }
    finish(workers, true);
    raw_close(&r);
}

static void reports_and_events_come_beside_commands(void **state)
{
    struct worker workers[WORKERS];
    uint64_t last = 0;
    struct raw r;

    (void)state;
    raw_open(&r, "sim:size=1M,threads=3");
    start(&r, workers);
    for (unsigned i = 0; i < 200; i++) {
        uint64_t now = raw_report(&r).commands[1];

        assert_true(now >= last);
        last = now;
        gpunvme_sim_event(r.sim, (uint8_t)(i % 8), (uint8_t)(i % 3), (uint8_t)(i % 5));
        assert_ok(gpunvme_sim_fault(r.sim, "status=0/6:lba=5000"));
        gpunvme_sim_faults_clear(r.sim);
        usleep(100);
    }
    finish(workers, true);
    raw_close(&r);
}

/* After these return nothing may touch the driver's memory. */
enum ending { DISABLE, FUNCTION_RESET, POWER_CYCLE, REMOVE, SHUTDOWN };

static void check_ending(enum ending ending, const char *uri)
{
    struct worker workers[WORKERS];
    struct raw r;

    raw_open(&r, uri);
    start(&r, workers);
    usleep(5000);
    switch (ending) {
    case DISABLE:
        raw_disable(&r);
        break;
    case FUNCTION_RESET:
        gpunvme_sim_function_reset(r.sim);
        break;
    case POWER_CYCLE:
        gpunvme_sim_power_cycle(r.sim);
        break;
    case REMOVE:
        gpunvme_sim_remove(r.sim);
        break;
    case SHUTDOWN:
        raw_write(&r, GPUNVME_REG_CC, RAW_CC | (uint32_t)GPUNVME_SET(1, CC_SHN));
        assert_true(raw_wait_csts(&r, RAW_SHST, RAW_SHST_DONE));
    }
    atomic_store(&stop, true);
    finish(workers, false);
    memset(r.memory, 0x5a, RAW_NBYTES);
    usleep(2000);
    for (size_t i = 0; i < RAW_NBYTES; i += 64)
        assert_int_equal(r.memory[i], 0x5a);
    raw_destroy(&r); /* the workers' last doorbells may have come too late */
}

static void nothing_is_touched_after_an_end(void **state)
{
    (void)state;
    for (enum ending ending = DISABLE; ending <= SHUTDOWN; ending++) {
        check_ending(ending, "sim:size=1M,threads=3");
        check_ending(ending, "sim:size=1M,threads=2,vwc=1,read_latency=100us");
    }
}

static void destroy_beside_commands_in_flight_is_clean(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 10; i++) {
        struct raw r;
        struct raw_queue *q;

        raw_open(&r, i % 2 ? "sim:size=1M,latency=1h" : "sim:size=1M,vwc=1");
        q = &r.queue[1];
        for (unsigned n = 0; n < 60; n++)
            raw_put(q, raw_rw(GPUNVME_CMD_READ, 0, 8, RAW_BUS + RAW_NBYTES - 4096, 0));
        raw_ring(raw_sq_doorbell(&r, 1), q->tail);
        raw_close(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(queues_on_several_threads_keep_apart),
        cmocka_unit_test(queues_behind_a_cache_keep_apart),
        cmocka_unit_test(spinning_threads_work),
        cmocka_unit_test(commands_in_any_order_keep_apart),
        cmocka_unit_test(mappings_come_and_go_beside_commands),
        cmocka_unit_test(queues_come_and_go_beside_commands),
        cmocka_unit_test(reports_and_events_come_beside_commands),
        cmocka_unit_test(nothing_is_touched_after_an_end),
        cmocka_unit_test(destroy_beside_commands_in_flight_is_clean),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
