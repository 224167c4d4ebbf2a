/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A controller with engine=gpu, driven by the library and by queue pairs in GPU memory, where GPU
 * memory is host memory: what the threads and the engine have in common, who serves which queue,
 * what stops the engine, and what reaches the report. tests/gpu/test_gpu_engine_host.cu is the
 * same on a GPU.
 */
#include <pthread.h>

#include "sim/engine_queue.h"

#define QID       9u
#define UNLIMITED "sim:size=1M,engine=gpu"

static void open_device(struct device *d, const char *uri)
{
    struct gpunvme_ctrl_opts opts;

    gpunvme_ctrl_opts_init(&opts);
    opts.admin_timeout_ms = 20000;
    opts.no_recovery = true;
    device_open_with(d, uri, &opts);
}

static struct gpunvme_sim_report report_of(struct device *d)
{
    struct gpunvme_sim_report report;

    gpunvme_sim_report(d->sim, &report);
    return report;
}

/* Waits for what the controller does by itself. */
static void wait_csts(struct device *d, uint32_t mask, uint32_t value)
{
    uint64_t deadline = gpunvme_clock_ns() + PATIENCE_NS;

    while ((gpunvme_sim_reg_read(d->sim, GPUNVME_REG_CSTS, 4) & mask) != value) {
        if (gpunvme_clock_ns() > deadline)
            fail_msg("CSTS is %llx",
                     (unsigned long long)gpunvme_sim_reg_read(d->sim, GPUNVME_REG_CSTS, 4));
        usleep(100);
    }
}

/* Closes a device that is reset, failed or gone: its queue was lost with it. */
static void close_device(struct device *d)
{
    gpunvme_ctrl_free(d->ctrl, &d->buf);
    gpunvme_ioq_delete(d->ioq);
    gpunvme_ctrl_close_abrupt(d->ctrl);
}

static void close_lost(struct device *d, struct engine_queue *q)
{
    eq_free(q);
    close_device(d);
}

/* --- bytes -------------------------------------------------------------------------------------
 */

static void the_engine_reads_what_a_host_queue_wrote(void **state)
{
    struct engine_queue q;
    struct device d;

    (void)state;
    open_device(&d, UNLIMITED);
    fill_random(d.buf.cpu, 1 << 20, 1);
    assert_ok(gpunvme_write(d.ioq, d.ns, 0, 1 << 20, &d.buf, 0, 0));
    eq_open(&q, &d, QID);
    for (uint64_t lba = 0; lba < 2048; lba += 8) {
        assert_int_equal(eq_read(&q, lba, 8, 4096), 0);
        assert_memory_equal((char *)q.data.cpu + 4096, (char *)d.buf.cpu + lba * 512, 4096);
    }
    assert_int_equal(eq_read(&q, 2047, 1, 512), 0);
    assert_memory_equal((char *)q.data.cpu + 512, (char *)d.buf.cpu + 2047 * 512, 512);
    eq_close(&q);
    device_close(&d);
}

static void a_host_queue_reads_what_the_engine_wrote(void **state)
{
    struct engine_queue q;
    struct device d;

    (void)state;
    open_device(&d, UNLIMITED ",block=4096");
    eq_open(&q, &d, QID);
    fill_random(q.data.cpu, EQ_DATA_NBYTES, 2);
    for (unsigned i = 0; i < 64; i++)
        assert_int_equal(eq_write(&q, i, 1, i * 4096), 0);
    assert_ok(gpunvme_read(d.ioq, d.ns, 0, EQ_DATA_NBYTES, &d.buf, 0));
    assert_memory_equal(d.buf.cpu, q.data.cpu, EQ_DATA_NBYTES);
    eq_close(&q);
    device_close(&d);
}

static void every_namespace_is_the_engines_too(void **state)
{
    struct engine_queue q;
    struct device d;
    struct gpunvme_sqe sqe;

    (void)state;
    open_device(&d, "sim:ns=2,size=64K,ns=7,size=64K,engine=gpu");
    fill_random(d.buf.cpu, 4096, 3);
    assert_ok(gpunvme_write(d.ioq, gpunvme_ctrl_ns_at(d.ctrl, 1), 0, 4096, &d.buf, 0, 0));
    eq_open(&q, &d, QID);
    sqe = eq_rw(&q, GPUNVME_CMD_READ, 0, 8, 0);
    sqe.nsid = 7;
    assert_int_equal(eq_run(&q, &sqe), 0);
    assert_memory_equal(q.data.cpu, d.buf.cpu, 4096);
    eq_close(&q);
    device_close(&d);
}

static void host_queues_work_beside_the_engines(void **state)
{
    struct engine_queue q;
    struct device d;

    (void)state;
    open_device(&d, UNLIMITED ",threads=2");
    eq_open(&q, &d, QID);
    fill_random(q.data.cpu, 512, 4);
    for (unsigned i = 0; i < 20; i++) {
        assert_int_equal(eq_write(&q, i, 1, 0), 0);
        assert_ok(gpunvme_read(d.ioq, d.ns, i * 512, 512, &d.buf, 0));
        assert_memory_equal(d.buf.cpu, q.data.cpu, 512);
    }
    assert_ok(gpunvme_flush(d.ioq, d.ns));
    assert_ok(gpunvme_write_zeroes(d.ioq, d.ns, 0, 16, true));
    assert_int_equal(eq_read(&q, 0, 8, 4096), 0);
    for (unsigned i = 0; i < 4096; i++)
        assert_int_equal(((uint8_t *)q.data.cpu)[4096 + i], 0);
    eq_close(&q);
    device_close(&d);
}

static void wide_doorbells_work(void **state)
{
    struct engine_queue q;
    struct device d;

    (void)state;
    open_device(&d, UNLIMITED ",dstrd=3");
    eq_open(&q, &d, QID);
    for (unsigned i = 0; i < 200; i++)
        assert_int_equal(eq_read(&q, i, 1, 0), 0);
    eq_close(&q);
    device_close(&d);
}

/* --- who serves which queue --------------------------------------------------------------------
 */

static void without_the_engine_there_are_no_doorbells_in_gpu_memory(void **state)
{
    struct device d;
    size_t nbytes = 1;

    (void)state;
    open_device(&d, "sim:size=1M");
    assert_null(gpunvme_sim_gpu_doorbells(d.sim, &nbytes));
    assert_int_equal(nbytes, 0);
    assert_null(gpunvme_ctrl_transport(d.ctrl)->gpu_doorbells);
    device_close(&d);
}

static void the_doorbells_in_gpu_memory_have_the_layout_of_the_others(void **state)
{
    struct device d;
    size_t nbytes = 0, mapped = 0;

    (void)state;
    open_device(&d, UNLIMITED);
    gpunvme_sim_doorbells(d.sim, &mapped);
    assert_ptr_equal(gpunvme_sim_gpu_doorbells(d.sim, &nbytes),
                     gpunvme_ctrl_transport(d.ctrl)->gpu_doorbells);
    assert_int_equal(nbytes, mapped);
    device_close(&d);
}

/* A ring in host memory is the threads', with the mapped doorbells, whatever the other one is. */
static void a_pair_that_is_half_in_gpu_memory_is_the_threads(void **state)
{
    struct gpunvme_buf gpu_sq;
    struct engine_queue q;
    struct device d;
    volatile uint32_t *doorbells;

    (void)state;
    open_device(&d, UNLIMITED ",shadow=off");
    doorbells = gpunvme_sim_doorbells(d.sim, NULL);
    eq_alloc(&q, &d, QID);
    gpu_sq = q.sq;
    assert_ok(
        gpunvme_ctrl_alloc(d.ctrl, GPUNVME_QPAIR_SQ_NBYTES(EQ_ENTRIES), GPUNVME_MEM_HOST, &q.sq));
    eq_init(&q);
    q.pair.sq_doorbell.mmio = doorbells + 2 * QID;
    q.pair.cq_doorbell.mmio = doorbells + 2 * QID + 1;
    assert_ok(eq_create_cq(&q));
    assert_ok(eq_create_sq(&q));
    for (unsigned i = 0; i < 200; i++)
        assert_int_equal(eq_read(&q, i, 1, 0), 0);
    gpunvme_ctrl_free(d.ctrl, &gpu_sq);
    eq_close(&q);
    device_close(&d);
}

static void a_second_submission_queue_on_the_engines_completion_queue_is_refused(void **state)
{
    struct engine_queue q;
    struct device d;

    (void)state;
    open_device(&d, UNLIMITED);
    eq_open(&q, &d, QID);
    assert_err(eq_admin(&d, GPUNVME_ADMIN_CREATE_SQ, (EQ_ENTRIES - 1) << 16 | (QID + 1),
                        QID << 16 | GPUNVME_QUEUE_PC, q.sq.bus),
               GPUNVME_ERR_NVME(GPUNVME_SC_INVALID_FIELD));
    assert_int_equal(eq_read(&q, 0, 1, 0), 0);
    eq_close(&q);
    device_close(&d);
}

static void a_used_completion_queue_is_not_used_again(void **state)
{
    struct engine_queue q;
    struct device d;

    (void)state;
    open_device(&d, UNLIMITED);
    eq_open(&q, &d, QID);
    assert_int_equal(eq_read(&q, 0, 1, 0), 0);
    assert_ok(eq_delete_sq(&q));
    assert_err(eq_create_sq(&q), GPUNVME_ERR_NVME(GPUNVME_SC_INVALID_FIELD));
    assert_ok(eq_delete_cq(&q));
    eq_init(&q);
    assert_ok(eq_create_cq(&q));
    assert_ok(eq_create_sq(&q));
    assert_int_equal(eq_read(&q, 0, 1, 0), 0);
    eq_close(&q);
    device_close(&d);
}

static void interrupts_in_gpu_memory_are_refused(void **state)
{
    struct engine_queue q;
    struct device d;

    (void)state;
    open_device(&d, UNLIMITED);
    eq_alloc(&q, &d, QID);
    assert_ok(eq_admin(&d, GPUNVME_ADMIN_CREATE_CQ, (EQ_ENTRIES - 1) << 16 | QID,
                       GPUNVME_QUEUE_PC | GPUNVME_CQ_IEN, q.cq.bus));
    assert_err(eq_create_sq(&q), GPUNVME_ERR_NVME(GPUNVME_SC_INVALID_FIELD));
    assert_ok(eq_delete_cq(&q));
    eq_free(&q);
    device_close(&d);
}

static void dataset_management_is_not_promised(void **state)
{
    struct device d;

    (void)state;
    open_device(&d, UNLIMITED);
    assert_false(gpunvme_ctrl_id(d.ctrl)->oncs & GPUNVME_ONCS_DSM);
    device_close(&d);
}

/* --- deleted, reset, gone ----------------------------------------------------------------------
 */

static void what_is_in_flight_ends_when_its_queue_is_deleted(void **state)
{
    uint64_t tickets[20];
    struct engine_queue q, other;
    struct device d;

    (void)state;
    open_device(&d, UNLIMITED);
    eq_open(&q, &d, QID);
    eq_open(&other, &d, QID + 1);
    for (unsigned i = 0; i < 100; i++) /* so that the rings have wrapped */
        assert_int_equal(eq_read(&q, i, 1, 0), 0);
    assert_ok(gpunvme_sim_fault(d.sim, "delay=1000s:read"));
    for (unsigned i = 0; i < 20; i++) {
        struct gpunvme_sqe sqe = eq_rw(&q, GPUNVME_CMD_READ, i, 1, 0);

        tickets[i] = eq_submit(&q, &sqe);
    }
    while (report_of(&d).faults < 20) /* fetched */
        usleep(1000);
    assert_ok(eq_delete_sq(&q));
    for (unsigned i = 0; i < 20; i++)
        assert_int_equal(eq_wait(&q, tickets[i], PATIENCE_NS), GPUNVME_SC_ABORT_SQ_DELETED);
    assert_int_equal(report_of(&d).nviolations, 0); /* its head was told to the right doorbell */
    assert_ok(eq_delete_cq(&q));
    eq_free(&q);
    gpunvme_sim_faults_clear(d.sim);
    assert_int_equal(eq_read(&other, 0, 1, 0), 0);
    eq_close(&other);
    device_close(&d);
}

static void others_go_on_when_a_queue_is_deleted(void **state)
{
    struct engine_queue q[3];
    struct device d;

    (void)state;
    open_device(&d, UNLIMITED);
    for (unsigned i = 0; i < 3; i++)
        eq_open(&q[i], &d, (uint16_t)(QID + i));
    for (unsigned round = 0; round < 5; round++) {
        for (unsigned i = 0; i < 3; i++)
            assert_int_equal(eq_read(&q[i], i, 1, 0), 0);
        eq_close(&q[round % 3]);
        for (unsigned i = 0; i < 3; i++)
            if (i != round % 3)
                assert_int_equal(eq_read(&q[i], i, 1, 0), 0);
        eq_open(&q[round % 3], &d, (uint16_t)(QID + round % 3));
    }
    for (unsigned i = 0; i < 3; i++)
        eq_close(&q[i]);
    device_close(&d);
}

static void a_reset_takes_the_queues_away_and_new_ones_work(void **state)
{
    uint64_t ticket;
    struct engine_queue q;
    struct gpunvme_sqe sqe;
    struct device d;

    (void)state;
    open_device(&d, UNLIMITED);
    fill_random(d.buf.cpu, 4096, 5);
    assert_ok(gpunvme_write(d.ioq, d.ns, 0, 4096, &d.buf, 0, 0));
    eq_open(&q, &d, QID);
    assert_ok(gpunvme_sim_fault(d.sim, "delay=1000s:read"));
    sqe = eq_rw(&q, GPUNVME_CMD_READ, 0, 1, 0);
    ticket = eq_submit(&q, &sqe);
    assert_ok(gpunvme_ctrl_reset(d.ctrl));
    gpunvme_sim_faults_clear(d.sim);
    assert_int_equal(eq_wait(&q, ticket, 100000000), -1);
    eq_init(&q);
    assert_ok(eq_create_cq(&q));
    assert_ok(eq_create_sq(&q));
    assert_int_equal(eq_read(&q, 0, 8, 0), 0);
    assert_memory_equal(q.data.cpu, d.buf.cpu, 4096);
    eq_close(&q);
    device_close(&d);
}

static void a_power_cycle_takes_the_queues_away_and_keeps_the_bytes(void **state)
{
    struct engine_queue q;
    struct device d;

    (void)state;
    open_device(&d, UNLIMITED);
    eq_open(&q, &d, QID);
    fill_random(q.data.cpu, 4096, 6);
    assert_int_equal(eq_write(&q, 0, 8, 0), 0);
    gpunvme_sim_power_cycle(d.sim);
    assert_ok(gpunvme_ctrl_reset(d.ctrl));
    assert_ok(gpunvme_read(d.ioq, d.ns, 0, 4096, &d.buf, 0));
    assert_memory_equal(q.data.cpu, d.buf.cpu, 4096);
    eq_free(&q);
    device_close(&d);
}

static void a_controller_that_is_shut_down_touches_nothing(void **state)
{
    struct engine_queue q;
    struct gpunvme_sqe sqe;
    uint64_t ticket;
    struct device d;

    (void)state;
    open_device(&d, UNLIMITED);
    eq_open(&q, &d, QID);
    gpunvme_sim_reg_write(d.sim, GPUNVME_REG_CC, 4,
                          gpunvme_sim_reg_read(d.sim, GPUNVME_REG_CC, 4) |
                              GPUNVME_SET(GPUNVME_CC_SHN_NORMAL, CC_SHN));
    wait_csts(&d, (uint32_t)GPUNVME_SET(GPUNVME_CSTS_SHST_MASK, CSTS_SHST),
              (uint32_t)GPUNVME_SET(GPUNVME_CSTS_SHST_COMPLETE, CSTS_SHST));
    sqe = eq_rw(&q, GPUNVME_CMD_READ, 0, 1, 0);
    ticket = eq_submit(&q, &sqe);
    assert_int_equal(eq_wait(&q, ticket, 50000000), -1);
    close_lost(&d, &q);
}

static void a_controller_closed_with_its_queues_open_ends_well(void **state)
{
    struct engine_queue q;
    struct device d;

    (void)state;
    open_device(&d, UNLIMITED);
    eq_open(&q, &d, QID);
    assert_int_equal(eq_read(&q, 0, 1, 0), 0);
    gpunvme_ctrl_free(d.ctrl, &d.buf);
    assert_ok(gpunvme_ioq_delete(d.ioq));
    assert_ok(gpunvme_ctrl_close(d.ctrl)); /* frees what the queue is made of, too */
}

/* --- faults ------------------------------------------------------------------------------------
 */

static void a_status_reaches_the_command_it_is_for(void **state)
{
    struct engine_queue q;
    struct device d;

    (void)state;
    open_device(&d, UNLIMITED ",fault=status=2/81:lba=100-107:read");
    eq_open(&q, &d, QID);
    assert_int_equal(eq_read(&q, 99, 1, 0), 0);
    assert_int_equal(eq_read(&q, 100, 1, 0), GPUNVME_SC_UNRECOVERED_READ);
    assert_int_equal(eq_write(&q, 100, 1, 0), 0);
    assert_int_equal(report_of(&d).faults, 1);
    assert_int_equal(report_of(&d).errors, 1);
    gpunvme_sim_faults_clear(d.sim);
    assert_int_equal(eq_read(&q, 100, 1, 0), 0);
    eq_close(&q);
    device_close(&d);
}

/* The report, and a new buffer, stop the engine in between. */
static void matches_are_counted_over_restarts_and_over_all_queues(void **state)
{
    struct gpunvme_buf buf;
    struct engine_queue q;
    struct device d;

    (void)state;
    open_device(&d, UNLIMITED);
    eq_open(&q, &d, QID);
    assert_ok(gpunvme_sim_fault(d.sim, "status=2/81:read:nth=6"));
    assert_int_equal(eq_read(&q, 0, 1, 0), 0);
    assert_int_equal(report_of(&d).faults, 0);
    assert_int_equal(eq_read(&q, 0, 1, 0), 0);
    assert_ok(gpunvme_read(d.ioq, d.ns, 0, 512, &d.buf, 0));
    assert_ok(gpunvme_ctrl_alloc(d.ctrl, 4096, GPUNVME_MEM_GPU, &buf));
    assert_int_equal(eq_read(&q, 0, 1, 0), 0);
    assert_ok(gpunvme_sim_fault(d.sim, "status=0/4:write:once"));
    assert_int_equal(eq_read(&q, 0, 1, 0), 0);
    assert_int_equal(report_of(&d).faults, 0);
    assert_int_equal(eq_read(&q, 0, 1, 0), GPUNVME_SC_UNRECOVERED_READ);
    assert_int_equal(eq_read(&q, 0, 1, 0), 0);
    assert_int_equal(eq_write(&q, 0, 1, 0), GPUNVME_SC_DATA_TRANSFER_ERROR);
    assert_int_equal(report_of(&d).faults, 2);
    assert_ok(gpunvme_write(d.ioq, d.ns, 0, 512, &d.buf, 0, 0)); /* once is once for all */
    gpunvme_ctrl_free(d.ctrl, &buf);
    eq_close(&q);
    device_close(&d);
}

static void a_lost_command_never_ends_and_the_others_do(void **state)
{
    struct engine_queue q;
    struct gpunvme_sqe sqe;
    uint64_t ticket;
    struct device d;

    (void)state;
    open_device(&d, UNLIMITED);
    eq_open(&q, &d, QID);
    assert_ok(gpunvme_sim_fault(d.sim, "lose:read:nth=1"));
    sqe = eq_rw(&q, GPUNVME_CMD_READ, 0, 1, 0);
    ticket = eq_submit(&q, &sqe);
    for (unsigned i = 0; i < 100; i++)
        assert_int_equal(eq_read(&q, i, 1, 0), 0);
    assert_int_equal(eq_wait(&q, ticket, 10000000), -1);
    eq_close(&q);
    device_close(&d);
}

static void a_late_command_ends_late(void **state)
{
    struct engine_queue q;
    uint64_t begin_ns;
    struct device d;

    (void)state;
    open_device(&d, UNLIMITED ",fault=delay=30ms:read:once");
    eq_open(&q, &d, QID);
    begin_ns = gpunvme_clock_ns();
    assert_int_equal(eq_read(&q, 0, 1, 0), 0);
    assert_true(gpunvme_clock_ns() - begin_ns >= 30000000);
    eq_close(&q);
    device_close(&d);
}

static void a_fatal_fault_is_seen_in_csts(void **state)
{
    struct engine_queue q;
    struct gpunvme_sqe sqe;
    uint64_t ticket;
    struct device d;

    (void)state;
    open_device(&d, UNLIMITED);
    eq_open(&q, &d, QID);
    assert_ok(gpunvme_sim_fault(d.sim, "cfs:write:once"));
    sqe = eq_rw(&q, GPUNVME_CMD_WRITE, 0, 1, 0);
    ticket = eq_submit(&q, &sqe);
    wait_csts(&d, (uint32_t)GPUNVME_SET(1, CSTS_CFS), (uint32_t)GPUNVME_SET(1, CSTS_CFS));
    assert_int_equal(eq_wait(&q, ticket, 10000000), -1);
    assert_ok(gpunvme_ctrl_reset(d.ctrl));
    eq_init(&q);
    assert_ok(eq_create_cq(&q));
    assert_ok(eq_create_sq(&q));
    assert_int_equal(eq_write(&q, 0, 1, 0), 0);
    eq_close(&q);
    device_close(&d);
}

static void a_removed_drive_is_gone(void **state)
{
    struct engine_queue q;
    struct gpunvme_sqe sqe;
    uint64_t ticket;
    struct device d;

    (void)state;
    open_device(&d, UNLIMITED);
    eq_open(&q, &d, QID);
    assert_ok(gpunvme_sim_fault(d.sim, "remove:read:nth=3"));
    assert_int_equal(eq_read(&q, 0, 1, 0), 0);
    assert_int_equal(eq_read(&q, 0, 1, 0), 0);
    sqe = eq_rw(&q, GPUNVME_CMD_READ, 0, 1, 0);
    ticket = eq_submit(&q, &sqe);
    wait_csts(&d, UINT32_MAX, UINT32_MAX);
    assert_int_equal(eq_wait(&q, ticket, 10000000), -1);
    close_lost(&d, &q);
}

static void the_host_stops_the_engine_by_fatal_and_by_remove(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        struct engine_queue q;
        struct gpunvme_sqe sqe;
        uint64_t ticket;
        struct device d;

        open_device(&d, UNLIMITED);
        eq_open(&q, &d, QID);
        if (i)
            gpunvme_sim_remove(d.sim);
        else
            gpunvme_sim_fatal(d.sim);
        sqe = eq_rw(&q, GPUNVME_CMD_READ, 0, 1, 0);
        ticket = eq_submit(&q, &sqe);
        assert_int_equal(eq_wait(&q, ticket, 20000000), -1);
        close_lost(&d, &q);
    }
}

static void rules_that_the_engine_cannot_follow_are_refused(void **state)
{
    struct gpunvme_ctrl *ctrl;
    struct device d;

    (void)state;
    open_device(&d, UNLIMITED);
    assert_err(gpunvme_sim_fault(d.sim, "shuffle=4:read"), GPUNVME_ERR_UNSUPPORTED);
    assert_err(gpunvme_sim_fault(d.sim, "powerloss"), GPUNVME_ERR_UNSUPPORTED);
    assert_ok(gpunvme_sim_fault(d.sim, "powerloss:keep_alive"));
    device_close(&d);
    assert_err(gpunvme_ctrl_open_uri(UNLIMITED ",fault=shuffle=4", NULL, &ctrl),
               GPUNVME_ERR_UNSUPPORTED);
}

/* --- the report --------------------------------------------------------------------------------
 */

static void the_report_counts_what_the_engine_did(void **state)
{
    struct gpunvme_sim_report before, after;
    struct engine_queue q;
    struct device d;

    (void)state;
    open_device(&d, UNLIMITED);
    eq_open(&q, &d, QID);
    before = report_of(&d);
    for (unsigned i = 0; i < 10; i++)
        assert_int_equal(eq_read(&q, i, 2, 0), 0);
    for (unsigned i = 0; i < 5; i++)
        assert_int_equal(eq_write(&q, i, 1, 0), 0);
    assert_int_equal(eq_read(&q, 2048, 1, 0), GPUNVME_SC_LBA_RANGE);
    after = report_of(&d);
    assert_int_equal(after.commands[1] - before.commands[1], 16);
    assert_int_equal(after.bytes_read - before.bytes_read, 10 * 1024);
    assert_int_equal(after.bytes_written - before.bytes_written, 5 * 512);
    assert_int_equal(after.errors - before.errors, 1);
    assert_true(after.doorbell_writes > before.doorbell_writes);
    assert_int_equal(after.nviolations, 0);
    eq_close(&q);
    assert_int_equal(report_of(&d).commands[1], after.commands[1]);
    device_close(&d);
}

static void violations_are_counted_and_the_first_is_told(void **state)
{
    struct gpunvme_sim_report report;
    struct engine_queue q;
    struct gpunvme_sqe sqe;
    struct device d;
    uint64_t deadline;

    (void)state;
    open_device(&d, UNLIMITED);
    eq_open(&q, &d, QID);
    sqe = eq_rw(&q, GPUNVME_CMD_READ, 0, 1, 0);
    sqe.cdw2 = 0x77;
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(eq_run(&q, &sqe), 0);
    report = report_of(&d);
    assert_int_equal(report.nviolations, 3);
    assert_int_equal(report.violations[GPUNVME_SIM_VIOLATION_RESERVED_BITS], 3);
    assert_non_null(strstr(report.first, "queue 9, command id "));
    assert_non_null(strstr(report.first, "opcode 02h: reserved bits 77h of CDW2 are set"));
    __atomic_store_n(eq_doorbell(&d, 2 * QID), EQ_ENTRIES, __ATOMIC_RELEASE);
    deadline = gpunvme_clock_ns() + PATIENCE_NS;
    do {
        report = report_of(&d);
        assert_true(gpunvme_clock_ns() < deadline);
    } while (!report.violations[GPUNVME_SIM_VIOLATION_DOORBELL_VALUE]);
    assert_int_equal(report.nviolations, 4);
    close_lost(&d, &q);
}

static void data_that_is_not_mapped_is_a_violation_and_data_mapped_later_is_not(void **state)
{
    struct gpunvme_buf late;
    struct engine_queue q;
    struct gpunvme_sqe sqe;
    struct device d;

    (void)state;
    open_device(&d, UNLIMITED);
    eq_open(&q, &d, QID);
    assert_ok(gpunvme_ctrl_alloc(d.ctrl, 4096, GPUNVME_MEM_GPU, &late));
    sqe = eq_rw(&q, GPUNVME_CMD_READ, 0, 1, 0);
    sqe.prp1 = late.bus;
    assert_int_equal(eq_run(&q, &sqe), 0);
    assert_int_equal(report_of(&d).nviolations, 0);
    gpunvme_ctrl_free(d.ctrl, &late);
    assert_int_equal(eq_run(&q, &sqe), GPUNVME_SC_DATA_TRANSFER_ERROR);
    assert_int_equal(report_of(&d).violations[GPUNVME_SIM_VIOLATION_DMA_UNMAPPED], 1);
    close_lost(&d, &q);
}

static void doorbells_of_no_queue_and_of_the_wrong_kind_are_violations(void **state)
{
    struct gpunvme_sim_report report;
    struct engine_queue q;
    struct device d;
    uint64_t deadline;

    (void)state;
    open_device(&d, UNLIMITED);
    eq_open(&q, &d, QID);
    __atomic_store_n(eq_doorbell(&d, 2 * (QID + 1)), 1, __ATOMIC_RELEASE);
    assert_int_equal(report_of(&d).violations[GPUNVME_SIM_VIOLATION_DOORBELL_REGISTER], 1);
    __atomic_store_n(gpunvme_sim_doorbells(d.sim, NULL) + 2 * QID, 1, __ATOMIC_RELEASE);
    deadline = gpunvme_clock_ns() + PATIENCE_NS;
    do {
        report = report_of(&d);
        assert_true(gpunvme_clock_ns() < deadline);
        usleep(1000);
    } while (report.violations[GPUNVME_SIM_VIOLATION_DOORBELL_REGISTER] < 2);
    close_lost(&d, &q);
}

static void a_stray_doorbell_is_found_while_the_engine_rests(void **state)
{
    struct device d;

    (void)state;
    open_device(&d, UNLIMITED); /* without queues it never starts */
    for (unsigned i = 1; i <= 3; i++) {
        __atomic_store_n(eq_doorbell(&d, 2 * QID), 1, __ATOMIC_RELEASE);
        assert_int_equal(report_of(&d).violations[GPUNVME_SIM_VIOLATION_DOORBELL_REGISTER], i);
    }
    close_device(&d);
}

/* --- memory and threads ------------------------------------------------------------------------
 */

static void queue_memory_that_goes_away_is_a_violation_and_is_left_alone(void **state)
{
    struct engine_queue q;
    struct gpunvme_sqe sqe;
    struct gpunvme_buf sq;
    struct device d;
    uint64_t ticket;

    (void)state;
    open_device(&d, UNLIMITED);
    eq_open(&q, &d, QID);
    assert_int_equal(eq_read(&q, 0, 1, 0), 0);
    sq = q.sq;
    assert_ok(gpunvme_sim_dma_unmap(d.sim, sq.bus, sq.nbytes));
    assert_int_equal(report_of(&d).violations[GPUNVME_SIM_VIOLATION_QUEUE_MEMORY], 1);
    sqe = eq_rw(&q, GPUNVME_CMD_READ, 0, 1, 0);
    ticket = eq_submit(&q, &sqe);
    assert_int_equal(eq_wait(&q, ticket, 20000000), -1);
    assert_ok(gpunvme_sim_dma_map(d.sim, sq.bus, sq.nbytes, &sq));
    assert_int_equal(eq_wait(&q, ticket, PATIENCE_NS), 0); /* and is back */
    close_lost(&d, &q);
}

static void more_buffers_than_the_engine_can_look_up_are_refused(void **state)
{
    static uint8_t pages[8192][4096] __attribute__((aligned(4096)));
    struct gpunvme_buf buf = {.nbytes = 4096};
    gpunvme_err_t err = GPUNVME_OK;
    struct device d;
    unsigned n = 0;

    (void)state;
    open_device(&d, UNLIMITED);
    for (; !err && n < 8192; n++) {
        buf.cpu = pages[n];
        err = gpunvme_sim_dma_map(d.sim, (n + 1) * 8192ull, 4096, &buf);
    }
    assert_err(err, GPUNVME_ERR_LIMIT);
    assert_ok(gpunvme_sim_dma_unmap(d.sim, 8192, 4096));
    assert_ok(gpunvme_sim_dma_map(d.sim, 8192, 4096, &buf));
    for (unsigned i = 1; i < n; i++)
        assert_ok(gpunvme_sim_dma_unmap(d.sim, i * 8192ull, 4096));
    device_close(&d);
}

static void *read_blocks(void *q_)
{
    struct engine_queue *q = q_;

    for (unsigned i = 0; i < 100; i++) {
        int status = eq_read(q, i, 1, 0);

        if (status) {
            print_error("read %u on queue %u: status %d\n", i, q->qid, status);
            return q;
        }
    }
    return NULL;
}

/* Restarts of every kind while threads have commands in flight. */
static void changes_disturb_nobody(void **state)
{
    static struct engine_queue q[2];
    struct gpunvme_buf buf;
    struct device d;
    pthread_t threads[4];

    (void)state;
    open_device(&d, UNLIMITED);
    for (unsigned i = 0; i < 2; i++)
        eq_open(&q[i], &d, (uint16_t)(QID + i));
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, read_blocks, &q[i % 2]), 0);
    for (unsigned i = 0; i < 20; i++) {
        assert_ok(gpunvme_ctrl_alloc(d.ctrl, 4096, GPUNVME_MEM_GPU, &buf));
        assert_ok(gpunvme_sim_fault(d.sim, "status=2/81:write"));
        assert_ok(gpunvme_read(d.ioq, d.ns, 0, 4096, &d.buf, 0));
        report_of(&d);
        gpunvme_sim_faults_clear(d.sim);
        gpunvme_ctrl_free(d.ctrl, &buf);
    }
    for (unsigned i = 0; i < 4; i++) {
        void *failed;

        pthread_join(threads[i], &failed);
        assert_null(failed);
    }
    for (unsigned i = 0; i < 2; i++)
        eq_close(&q[i]);
    assert_int_equal(report_of(&d).bytes_read, (4 * 100 * 512) + 20 * 4096);
    device_close(&d);
}

static void an_engine_that_was_idle_wakes_up(void **state)
{
    struct engine_queue q;
    struct device d;

    (void)state;
    open_device(&d, UNLIMITED);
    eq_open(&q, &d, QID);
    for (unsigned i = 0; i < 5; i++) {
        usleep(20000);
        assert_int_equal(eq_read(&q, i, 1, 0), 0);
    }
    eq_close(&q);
    device_close(&d);
}

static void a_modelled_device_is_slow(void **state)
{
    struct engine_queue q;
    uint64_t begin_ns;
    struct device d;

    (void)state;
    open_device(&d, UNLIMITED ",latency=2ms,channels=1");
    eq_open(&q, &d, QID);
    begin_ns = gpunvme_clock_ns();
    for (unsigned i = 0; i < 10; i++)
        assert_int_equal(eq_read(&q, i, 1, 0), 0);
    assert_true(gpunvme_clock_ns() - begin_ns >= 20000000);
    eq_close(&q);
    device_close(&d);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_engine_reads_what_a_host_queue_wrote),
        cmocka_unit_test(a_host_queue_reads_what_the_engine_wrote),
        cmocka_unit_test(every_namespace_is_the_engines_too),
        cmocka_unit_test(host_queues_work_beside_the_engines),
        cmocka_unit_test(wide_doorbells_work),
        cmocka_unit_test(without_the_engine_there_are_no_doorbells_in_gpu_memory),
        cmocka_unit_test(the_doorbells_in_gpu_memory_have_the_layout_of_the_others),
        cmocka_unit_test(a_pair_that_is_half_in_gpu_memory_is_the_threads),
        cmocka_unit_test(a_second_submission_queue_on_the_engines_completion_queue_is_refused),
        cmocka_unit_test(a_used_completion_queue_is_not_used_again),
        cmocka_unit_test(interrupts_in_gpu_memory_are_refused),
        cmocka_unit_test(dataset_management_is_not_promised),
        cmocka_unit_test(what_is_in_flight_ends_when_its_queue_is_deleted),
        cmocka_unit_test(others_go_on_when_a_queue_is_deleted),
        cmocka_unit_test(a_reset_takes_the_queues_away_and_new_ones_work),
        cmocka_unit_test(a_power_cycle_takes_the_queues_away_and_keeps_the_bytes),
        cmocka_unit_test(a_controller_that_is_shut_down_touches_nothing),
        cmocka_unit_test(a_controller_closed_with_its_queues_open_ends_well),
        cmocka_unit_test(a_status_reaches_the_command_it_is_for),
        cmocka_unit_test(matches_are_counted_over_restarts_and_over_all_queues),
        cmocka_unit_test(a_lost_command_never_ends_and_the_others_do),
        cmocka_unit_test(a_late_command_ends_late),
        cmocka_unit_test(a_fatal_fault_is_seen_in_csts),
        cmocka_unit_test(a_removed_drive_is_gone),
        cmocka_unit_test(the_host_stops_the_engine_by_fatal_and_by_remove),
        cmocka_unit_test(rules_that_the_engine_cannot_follow_are_refused),
        cmocka_unit_test(the_report_counts_what_the_engine_did),
        cmocka_unit_test(violations_are_counted_and_the_first_is_told),
        cmocka_unit_test(data_that_is_not_mapped_is_a_violation_and_data_mapped_later_is_not),
        cmocka_unit_test(doorbells_of_no_queue_and_of_the_wrong_kind_are_violations),
        cmocka_unit_test(a_stray_doorbell_is_found_while_the_engine_rests),
        cmocka_unit_test(queue_memory_that_goes_away_is_a_violation_and_is_left_alone),
        cmocka_unit_test(more_buffers_than_the_engine_can_look_up_are_refused),
        cmocka_unit_test(changes_disturb_nobody),
        cmocka_unit_test(an_engine_that_was_idle_wakes_up),
        cmocka_unit_test(a_modelled_device_is_slow),
    };

    if (argc > 1) /* the tests of that name */
        cmocka_set_test_filter(argv[1]);
    if (!gpunvme_mem_gpu_is_host()) {
        printf("SKIP: GPU memory is a GPU's here: test_gpu_engine_host is for that\n");
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
