/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Recovery of a device for I/O issued by a GPU (device.h): resets, lost commands, drives that go.
 */
#include "device_rig.h"

static void rig_open_small(struct rig *r, const char *uri, enum gpunvme_reaper reaper)
{
    struct gpunvme_device_opts opts;

    gpunvme_device_opts_init(&opts);
    opts.queues = 2;
    opts.entries = 16;
    opts.reaper = reaper;
    rig_open(r, uri, &opts);
}

/* Tickets that have not ended, of all queues. */
static unsigned outstanding(struct rig *r)
{
    unsigned n = 0;

    for (uint32_t i = 0; i < r->handle.nqueues; i++) {
        struct gpunvme_dev_queue *q = &r->handle.queues[i];

        for (uint32_t slot = 1; slot <= q->mask; slot++)
            n += gpunvme_load_acquire64(&q->slots[slot].word) >> 63;
    }
    return n;
}

static void assert_recovers(struct rig *r)
{
    assert_ok(gpunvme_device_recover(r->dev));
    assert_int_equal(outstanding(r), 0);
    assert_kernel_works(r);
    assert_int_equal(outstanding(r), 0);
}

static void wait_ms(unsigned ms)
{
    usleep(ms * 1000);
}

static void resets_end_every_wait(enum gpunvme_reaper reaper)
{
    struct gpunvme_device_info info;
    unsigned resets = 0;
    struct player sum;
    struct kernel k;
    struct rig r;

    rig_open_small(&r, "sim:size=1M,latency=3ms", reaper);
    kernel_start(&k, &r, 200, PATIENCE_NS);
    /* At least five, and until one has caught a command. */
    while (resets < 5 || (resets < 50 && !gpunvme_load_acquire32(&k.players[0].was_aborted))) {
        wait_ms(20);
        assert_ok(gpunvme_ctrl_reset(r.ctrl));
        resets++;
    }
    sum = kernel_end(&k);
    assert_int_equal(sum.good + sum.aborted + sum.closed, NPLAYERS * 200);
    assert_true(sum.aborted > 0);
    gpunvme_device_get_info(r.dev, &info);
    assert_int_equal(info.recoveries, resets);
    assert_recovers(&r);
    rig_close(&r);
}

static void a_reset_in_the_middle_ends_every_wait(void **state)
{
    (void)state;
    resets_end_every_wait(GPUNVME_REAPER_WAITERS);
}

static void a_reset_in_the_middle_ends_every_wait_where_the_cpu_reaps(void **state)
{
    (void)state;
    resets_end_every_wait(GPUNVME_REAPER_CPU);
}

/* One thread's command is lost; the others wait for slow ones. */
static void lost_is_answered(enum gpunvme_reaper reaper)
{
    struct gpunvme_device_info info;
    struct player sum;
    struct kernel k;
    struct rig r;

    rig_open_small(&r, "sim:size=1M,fault=lose:io:read:nth=50", reaper);
    kernel_start(&k, &r, ROUNDS, 3 * SECOND);
    sum = kernel_end(&k);
    assert_int_equal(sum.late, 1);
    assert_int_equal(sum.failed, 0);
    /* The alarm's answer may still be on its way. */
    for (unsigned i = 0; i < 1000 && outstanding(&r); i++)
        wait_ms(10);
    assert_int_equal(outstanding(&r), 0);
    gpunvme_device_get_info(r.dev, &info);
    assert_int_equal(info.recoveries, 1);
    assert_recovers(&r);
    rig_close(&r);
}

static void a_lost_command_raises_the_alarm_and_its_slot_comes_back(void **state)
{
    (void)state;
    lost_is_answered(GPUNVME_REAPER_WAITERS);
}

static void a_lost_command_comes_back_where_the_cpu_reaps(void **state)
{
    (void)state;
    lost_is_answered(GPUNVME_REAPER_CPU);
}

static void a_fatal_status_is_recovered_from(void **state)
{
    struct player sum;
    struct kernel k;
    struct rig r;

    (void)state;
    rig_open_small(&r, "sim:size=1M,latency=3ms,fault=cfs:io:read:nth=50", GPUNVME_REAPER_WAITERS);
    kernel_start(&k, &r, 200, PATIENCE_NS);
    sum = kernel_end(&k);
    assert_true(sum.aborted > 0);
    assert_int_equal(sum.good + sum.aborted + sum.closed, NPLAYERS * 200);
    assert_recovers(&r);
    rig_close(&r);
}

static void removal_ends_every_wait(enum gpunvme_reaper reaper)
{
    struct player sum;
    struct kernel k;
    struct rig r;

    rig_open_small(&r, "sim:size=1M,latency=3ms,fault=remove:io:read:nth=50", reaper);
    kernel_start(&k, &r, 200, PATIENCE_NS);
    sum = kernel_end(&k);
    assert_true(sum.aborted > 0 && sum.closed > 0);
    assert_int_equal(sum.good + sum.aborted + sum.closed, NPLAYERS * 200);
    assert_err(gpunvme_device_recover(r.dev), GPUNVME_ERR_REMOVED);
    rig_close(&r);
}

static void a_removed_drive_ends_every_wait(void **state)
{
    (void)state;
    removal_ends_every_wait(GPUNVME_REAPER_WAITERS);
}

static void a_removed_drive_ends_every_wait_where_the_cpu_reaps(void **state)
{
    (void)state;
    removal_ends_every_wait(GPUNVME_REAPER_CPU);
}

/* Commands that a kernel leaves behind without waiting for them. */
static void leave_commands(struct rig *r, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        struct gpunvme_dev_queue *q = &r->handle.queues[i % r->handle.nqueues];
        struct gpunvme_sqe sqe = {.opc = GPUNVME_CMD_READ, .nsid = r->handle.nsid};
        struct gpunvme_dev_place place = {0};
        int err;

        sqe.prp1 = r->view.bus + i * 4096;
        assert_int_equal(gpunvme_dev_queue_reserve(q, 1, i, gpunvme_dev_want_any(), &place, &err),
                         1);
        gpunvme_dev_queue_submit(q, 1, &place, &sqe);
    }
}

static void left_behind_comes_back(const char *uri, enum gpunvme_reaper reaper, unsigned resets)
{
    struct gpunvme_device_info info;
    struct rig r;

    rig_open_small(&r, uri, reaper);
    leave_commands(&r, 20);
    assert_int_equal(outstanding(&r), 20);
    assert_recovers(&r);
    gpunvme_device_get_info(r.dev, &info);
    assert_int_equal(info.recoveries, resets);
    rig_close(&r);
}

static void recovery_takes_back_what_a_kernel_left_behind(void **state)
{
    (void)state;
    left_behind_comes_back("sim:size=1M", GPUNVME_REAPER_WAITERS, 0);
    left_behind_comes_back("sim:size=1M", GPUNVME_REAPER_CPU, 0);
}

static void recovery_resets_the_controller_for_commands_that_do_not_end(void **state)
{
    (void)state;
    left_behind_comes_back("sim:size=1M,fault=lose:io:read:nth=7", GPUNVME_REAPER_WAITERS, 1);
    left_behind_comes_back("sim:size=1M,fault=lose:io:read:nth=7", GPUNVME_REAPER_CPU, 1);
}

static void closing_with_commands_in_flight_frees_everything(void **state)
{
    struct rig r;

    (void)state;
    rig_open_small(&r, "sim:size=1M,latency=500ms", GPUNVME_REAPER_WAITERS);
    leave_commands(&r, 10);
    assert_ok(gpunvme_device_close(r.dev));
    gpunvme_ctrl_free(r.ctrl, &r.buf); /* not before: the commands use it */
    assert_no_violation(&r);
    assert_ok(gpunvme_ctrl_close(r.ctrl));
}

/* As a kernel that fills the GPU, or a thread that stands still inside submit. */
static void a_queue_out_of_reach_is_left_out_of_a_reset_and_readmitted(void **state)
{
    struct gpunvme_ioq *ioq;
    struct gpunvme_buf buf;
    struct rig r;

    (void)state;
    rig_open_small(&r, "sim:size=1M", GPUNVME_REAPER_WAITERS);
    assert_ok(gpunvme_ioq_create(r.ctrl, 64, &ioq));
    assert_ok(gpunvme_ctrl_alloc(r.ctrl, 4096, GPUNVME_MEM_HOST, &buf));
    gpunvme_fetch_or32(&r.handle.queues[0].published, GPUNVME_DEV_QUEUE_LOCKED);
    assert_ok(gpunvme_ctrl_reset(r.ctrl));
    assert_ok(gpunvme_read(ioq, r.ns, 0, 4096, &buf, 0)); /* the others are as good as new */
    gpunvme_fetch_and32(&r.handle.queues[0].published, ~GPUNVME_DEV_QUEUE_LOCKED);
    assert_recovers(&r);
    gpunvme_ctrl_free(r.ctrl, &buf);
    assert_ok(gpunvme_ioq_delete(ioq));
    rig_close(&r);
}

/* A GPU that is full: what becomes of an order to the words of a queue (device/orders/orders.h). */
enum room { ROOM, NO_ROOM, ROOM_AFTER_ALL /* carried out, behind the back of who gave it up */ };

static struct {
    uint32_t room;   /* atomic: enum room */
    uint32_t thaws;  /* atomic: so many of these orders alone */
    uint32_t orders; /* atomic: that found no room */
} full_gpu;

gpunvme_err_t __real_orders_run(struct orders *orders, const struct queue_order *order,
                                struct order_result *result);
gpunvme_err_t __wrap_orders_run(struct orders *orders, const struct queue_order *order,
                                struct order_result *result);
gpunvme_err_t __wrap_orders_run(struct orders *orders, const struct queue_order *order,
                                struct order_result *result)
{
    uint32_t room = gpunvme_load_acquire32(&full_gpu.room);

    if (room && gpunvme_load_acquire32(&full_gpu.thaws)) {
        if (order->op == ORDER_THAW)
            __atomic_sub_fetch(&full_gpu.thaws, 1, __ATOMIC_ACQ_REL);
        else
            room = ROOM;
        if (!gpunvme_load_acquire32(&full_gpu.thaws))
            gpunvme_store_release32(&full_gpu.room, ROOM);
    }
    if (room != NO_ROOM) {
        gpunvme_err_t err = __real_orders_run(orders, order, result);

        if (room == ROOM)
            return err;
    }
    __atomic_add_fetch(&full_gpu.orders, 1, __ATOMIC_RELAXED);
    return GPUNVME_ERR_TIMEOUT;
}

static void lose_thaws(enum room room, uint32_t n)
{
    gpunvme_store_release32(&full_gpu.thaws, n);
    gpunvme_store_release32(&full_gpu.room, room);
}

static void raise_alarm(struct rig *r)
{
    gpunvme_store_release32(r->handle.alarm, 1);
    for (unsigned i = 0; i < 6000 && gpunvme_load_acquire32(r->handle.alarm); i++)
        wait_ms(10);
    assert_int_equal(gpunvme_load_acquire32(r->handle.alarm), 0);
}

static uint64_t recoveries(struct rig *r)
{
    struct gpunvme_device_info info;

    gpunvme_device_get_info(r->dev, &info);
    return info.recoveries;
}

/* One command ends too late; nothing but that happens to the others. */
static void late_is_aborted(enum gpunvme_reaper reaper, enum room room)
{
    struct player sum;
    struct kernel k;
    struct rig r;

    rig_open_small(&r, "sim:size=1M,fault=delay=1000s:io:read:nth=50", reaper);
    gpunvme_store_release32(&full_gpu.room, room);
    kernel_start(&k, &r, ROUNDS, 3 * SECOND);
    sum = kernel_end(&k);
    assert_int_equal(sum.late, 1);
    assert_int_equal(sum.good, NPLAYERS * ROUNDS - 1);
    raise_alarm(&r); /* the first has been answered when this is */
    assert_int_equal(recoveries(&r), 0);
    gpunvme_store_release32(&full_gpu.room, ROOM);
    assert_recovers(&r);
    assert_int_equal(recoveries(&r), 0);
    rig_close(&r);
}

static void a_late_command_is_aborted_without_a_reset(void **state)
{
    (void)state;
    late_is_aborted(GPUNVME_REAPER_WAITERS, ROOM);
    late_is_aborted(GPUNVME_REAPER_CPU, ROOM);
}

static void a_late_command_is_aborted_though_the_gpu_is_full(void **state)
{
    (void)state;
    late_is_aborted(GPUNVME_REAPER_WAITERS, NO_ROOM);
    late_is_aborted(GPUNVME_REAPER_CPU, NO_ROOM);
}

/* The reset has to leave the queues out, and what their threads wait for goes on being late. */
static void alarms_from_a_full_gpu_cost_one_reset(void **state)
{
    struct player sum;
    struct kernel k;
    struct rig r;

    (void)state;
    rig_open_small(&r, "sim:size=1M,fault=lose:io:read:nth=40", GPUNVME_REAPER_WAITERS);
    gpunvme_store_release32(&full_gpu.room, NO_ROOM);
    kernel_start(&k, &r, 15, SECOND); /* few: each after the reset is late */
    sum = kernel_end(&k);
    assert_true(sum.late >= 1);
    for (unsigned i = 0; i < 10; i++)
        raise_alarm(&r);
    assert_int_equal(recoveries(&r), 1);
    gpunvme_store_release32(&full_gpu.room, ROOM);
    assert_recovers(&r);
    rig_close_unchecked(&r); /* its threads have rung for queues that were left out */
}

/* By recovery, by the next reset, and whether or not the order was carried out after all. */
static void a_queue_whose_thaw_found_no_room_is_opened_later(void **state)
{
    (void)state;
    for (int way = 0; way < 8; way++) {
        struct rig r;

        rig_open_small(&r, "sim:size=1M", way & 4 ? GPUNVME_REAPER_CPU : GPUNVME_REAPER_WAITERS);
        assert_kernel_works(&r);
        lose_thaws(way & 1 ? ROOM_AFTER_ALL : NO_ROOM, 1);
        assert_ok(gpunvme_ctrl_reset(r.ctrl));
        assert_int_equal(full_gpu.room, ROOM);
        if (way & 1)
            assert_kernel_works(&r);
        if (way & 2)
            assert_ok(gpunvme_ctrl_reset(r.ctrl));
        else
            assert_ok(gpunvme_device_recover(r.dev));
        assert_kernel_works(&r);
        assert_recovers(&r);
        rig_close(&r);
    }
}

/* Its completion queue is there then, as far as anybody knows: the next try would be refused. */
static void a_queue_whose_creation_is_lost_is_readmitted_all_the_same(void **state)
{
    struct gpunvme_ctrl_opts ctrl_opts;
    struct gpunvme_device_opts opts;
    struct rig r;

    (void)state;
    gpunvme_ctrl_opts_init(&ctrl_opts);
    ctrl_opts.admin_timeout_ms = 1000;
    rig_open_ctrl_with(&r, "sim:size=1M", &ctrl_opts);
    gpunvme_device_opts_init(&opts);
    opts.queues = 2;
    opts.entries = 16;
    rig_open_device(&r, &opts);
    gpunvme_store_release32(&full_gpu.room, NO_ROOM);
    assert_ok(gpunvme_ctrl_reset(r.ctrl));
    gpunvme_store_release32(&full_gpu.room, ROOM);
    assert_ok(gpunvme_sim_fault(r.sim, "lose:create_cq:once"));
    assert_recovers(&r);
    rig_close(&r);
}

/* The thread that reaps stands still in the middle of it. */
static void a_queue_whose_reaper_does_not_leave_is_left_out_and_closed(void **state)
{
    struct gpunvme_dev_place place;
    struct rig r;
    int err;

    (void)state;
    rig_open_small(&r, "sim:size=1M", GPUNVME_REAPER_CPU);
    while (gpunvme_exchange32(&r.dev->queues[0].reaped.cq_lock, 1))
        ;
    assert_ok(gpunvme_ctrl_reset(r.ctrl));
    assert_int_equal(
        gpunvme_dev_queue_reserve(&r.handle.queues[0], 1, 1, gpunvme_dev_want_any(), &place, &err),
        0);
    assert_int_equal(err, GPUNVME_ERR_CLOSED); /* not rung for: the controller has it no more */
    gpunvme_exchange32(&r.dev->queues[0].reaped.cq_lock, 0);
    assert_recovers(&r);
    rig_close(&r);
}

/* As by a thread that was kept waiting between the end of its patience and the alarm. */
static void an_alarm_for_a_command_that_has_ended_resets_nothing(void **state)
{
    struct gpunvme_device_info info;
    struct rig r;

    (void)state;
    rig_open_small(&r, "sim:size=1M", GPUNVME_REAPER_WAITERS);
    for (unsigned i = 0; i < 3; i++) {
        gpunvme_store_release32(r.handle.alarm, 1);
        for (unsigned k = 0; k < 1000 && gpunvme_load_acquire32(r.handle.alarm); k++)
            wait_ms(1);
        assert_int_equal(gpunvme_load_acquire32(r.handle.alarm), 0);
        wait_ms(10);
    }
    gpunvme_device_get_info(r.dev, &info);
    assert_int_equal(info.recoveries, 0);
    assert_kernel_works(&r);
    rig_close(&r);
}

/* The reset that recovery itself needs leaves one out: the queues are not good then. */
static void recovery_does_not_call_a_queue_good_that_was_left_out(void **state)
{
    struct rig r;

    (void)state;
    rig_open_small(&r, "sim:size=1M,fault=lose:io:read:nth=7", GPUNVME_REAPER_WAITERS);
    leave_commands(&r, 20);
    gpunvme_fetch_or32(&r.handle.queues[0].published, GPUNVME_DEV_QUEUE_LOCKED);
    assert_err(gpunvme_device_recover(r.dev), GPUNVME_ERR_TIMEOUT);
    gpunvme_fetch_and32(&r.handle.queues[0].published, ~GPUNVME_DEV_QUEUE_LOCKED);
    assert_recovers(&r);
    rig_close(&r);
}

/* It has a slot and no position while the reset goes by. */
static void a_command_that_is_not_submitted_yet_outlives_a_reset(void **state)
{
    struct gpunvme_sqe flush = {.opc = GPUNVME_CMD_FLUSH, .nsid = 1};
    struct gpunvme_dev_place place;
    uint16_t status;
    struct gpunvme_dev_queue *q;
    struct rig r;
    int err;

    (void)state;
    rig_open_small(&r, "sim:size=1M", GPUNVME_REAPER_WAITERS);
    q = r.handle.queues;
    assert_kernel_works(&r);
    assert_int_equal(gpunvme_dev_slot_claim(q, 1, 5, gpunvme_dev_want_any(), &place.ticket), 1);
    assert_ok(gpunvme_ctrl_reset(r.ctrl));
    assert_int_equal(gpunvme_dev_queue_place(q, 1, 1, &place, &err), 1);
    gpunvme_dev_queue_submit(q, 1, &place, &flush);
    err = gpunvme_dev_queue_wait(q, 1, place.ticket, gpunvme_clock_ns() + 10000000000u, &status);
    assert_int_equal(err, GPUNVME_OK);
    assert_int_equal(status, 0);
    assert_kernel_works(&r);

    /* One whose kernel is gone: recovery finds its slot. */
    assert_int_equal(gpunvme_dev_slot_claim(q, 1, 5, gpunvme_dev_want_any(), &place.ticket), 1);
    assert_ok(gpunvme_ctrl_reset(r.ctrl));
    assert_recovers(&r);
    rig_close(&r);
}

static void a_controller_that_must_not_be_reset_says_so(void **state)
{
    struct gpunvme_ctrl_opts opts;
    struct player sum;
    struct kernel k;
    struct rig r = {0};

    (void)state;
    gpunvme_ctrl_opts_init(&opts);
    opts.no_recovery = true;
    assert_ok(gpunvme_ctrl_open_uri("sim:size=1M,latency=1ms", &opts, &r.ctrl));
    r.sim = gpunvme_transport_sim(gpunvme_ctrl_transport(r.ctrl));
    r.ns = gpunvme_ctrl_ns_at(r.ctrl, 0);
    assert_ok(gpunvme_device_open(r.ctrl, NULL, &r.dev));
    assert_ok(gpunvme_device_ns(r.dev, r.ns, &r.handle));
    assert_ok(gpunvme_device_alloc(r.dev, BUF_NBYTES, &r.buf));
    assert_ok(gpunvme_device_buf(r.dev, &r.buf, &r.view));
    gpunvme_sim_fatal(r.sim);
    memset(&k, 0, sizeof(k));
    k.players[0] = (struct player){.rig = &r, .rounds = 10, .timeout_ns = 20 * SECOND};
    play(&k.players[0]);
    sum = k.players[0];
    assert_int_equal(sum.good, 0);
    assert_int_equal(sum.aborted + sum.closed, 10);
    assert_err(gpunvme_device_recover(r.dev), GPUNVME_ERR_FATAL);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_reset_in_the_middle_ends_every_wait),
        cmocka_unit_test(a_reset_in_the_middle_ends_every_wait_where_the_cpu_reaps),
        cmocka_unit_test(a_lost_command_raises_the_alarm_and_its_slot_comes_back),
        cmocka_unit_test(a_lost_command_comes_back_where_the_cpu_reaps),
        cmocka_unit_test(a_fatal_status_is_recovered_from),
        cmocka_unit_test(a_removed_drive_ends_every_wait),
        cmocka_unit_test(a_removed_drive_ends_every_wait_where_the_cpu_reaps),
        cmocka_unit_test(recovery_takes_back_what_a_kernel_left_behind),
        cmocka_unit_test(recovery_resets_the_controller_for_commands_that_do_not_end),
        cmocka_unit_test(closing_with_commands_in_flight_frees_everything),
        cmocka_unit_test(a_queue_out_of_reach_is_left_out_of_a_reset_and_readmitted),
        cmocka_unit_test(a_late_command_is_aborted_without_a_reset),
        cmocka_unit_test(a_late_command_is_aborted_though_the_gpu_is_full),
        cmocka_unit_test(alarms_from_a_full_gpu_cost_one_reset),
        cmocka_unit_test(a_queue_whose_thaw_found_no_room_is_opened_later),
        cmocka_unit_test(a_queue_whose_creation_is_lost_is_readmitted_all_the_same),
        cmocka_unit_test(a_queue_whose_reaper_does_not_leave_is_left_out_and_closed),
        cmocka_unit_test(an_alarm_for_a_command_that_has_ended_resets_nothing),
        cmocka_unit_test(recovery_does_not_call_a_queue_good_that_was_left_out),
        cmocka_unit_test(a_command_that_is_not_submitted_yet_outlives_a_reset),
        cmocka_unit_test(a_controller_that_must_not_be_reset_says_so),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
