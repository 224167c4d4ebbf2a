/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What the software controller does when a fault rule fires, and how it keeps to its model. The
 * rules' language is tested elsewhere.
 */
#include "sim/raw.h"

static struct gpunvme_sqe read_of(struct raw *r, uint64_t slba)
{
    return raw_rw(GPUNVME_CMD_READ, slba, 1, raw_bus(r, raw_alloc(r, 512)), 0);
}

static uint64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void a_status_comes_instead_of_the_data(void **state)
{
    struct raw r;
    uint8_t *data;

    (void)state;
    raw_open(&r, "sim:size=1M,fault=status=2/81/dnr:lba=5:read");
    data = raw_alloc(&r, 512);
    data[0] = 0xee;
    assert_int_equal(raw_do(&r, &r.queue[1], raw_rw(GPUNVME_CMD_READ, 5, 1, raw_bus(&r, data), 0)),
                     GPUNVME_SC_UNRECOVERED_READ | GPUNVME_STATUS_DNR);
    assert_int_equal(data[0], 0xee);
    assert_int_equal(raw_do(&r, &r.queue[1], read_of(&r, 6)), 0);
    assert_int_equal(raw_report(&r).faults, 1);
    assert_int_equal(raw_report(&r).errors, 1);
    raw_close(&r);
}

static void admin_commands_meet_faults_too(void **state)
{
    struct raw r;

    (void)state;
    raw_open(&r, "sim:size=1M");
    assert_ok(gpunvme_sim_fault(r.sim, "status=0/6:keep_alive"));
    assert_int_equal(raw_admin(&r, (struct gpunvme_sqe){.opc = GPUNVME_ADMIN_KEEP_ALIVE}),
                     GPUNVME_SC_INTERNAL);
    gpunvme_sim_faults_clear(r.sim);
    assert_int_equal(raw_admin(&r, (struct gpunvme_sqe){.opc = GPUNVME_ADMIN_KEEP_ALIVE}), 0);
    assert_int_not_equal(gpunvme_sim_fault(r.sim, "nonsense"), GPUNVME_OK);
    raw_close(&r);
}

static void ranges_of_dsm_meet_faults(void **state)
{
    struct gpunvme_dsm_range *ranges;
    struct gpunvme_sqe sqe = {
        .opc = GPUNVME_CMD_DSM, .nsid = 1, .cdw10 = 1, .cdw11 = GPUNVME_DSM_AD};
    struct raw r;

    (void)state;
    raw_open(&r, "sim:size=1M,fault=status=2/80:lba=100");
    ranges = raw_alloc(&r, 4096);
    ranges[0] = (struct gpunvme_dsm_range){.nlb = 4, .slba = 0};
    ranges[1] = (struct gpunvme_dsm_range){.nlb = 4, .slba = 97};
    sqe.prp1 = raw_bus(&r, ranges);
    assert_int_equal(raw_do(&r, &r.queue[1], sqe), GPUNVME_SC_WRITE_FAULT);
    ranges[1].slba = 96;
    assert_int_equal(raw_do(&r, &r.queue[1], sqe), 0);
    raw_close(&r);
}

static void a_delayed_command_is_passed_by_others(void **state)
{
    struct raw r;
    uint64_t begin_ns;

    (void)state;
    raw_open(&r, "sim:size=1M,fault=delay=30ms:nth=1:read");
    begin_ns = now_ns();
    raw_put(&r.queue[1], read_of(&r, 0));
    raw_put(&r.queue[1], read_of(&r, 1));
    raw_ring(raw_sq_doorbell(&r, 1), 2);
    assert_int_equal(raw_wait(&r, &r.queue[1]), 0);
    assert_int_equal(r.queue[1].last.cid, 1);
    assert_int_equal(raw_wait(&r, &r.queue[1]), 0);
    assert_int_equal(r.queue[1].last.cid, 0);
    assert_true(now_ns() - begin_ns >= 30000000);
    raw_close(&r);
}

static void a_lost_command_is_done_but_never_ends(void **state)
{
    struct raw r;
    uint8_t *data;

    (void)state;
    raw_open(&r, "sim:size=1M,fault=lose:write:once");
    data = raw_alloc(&r, 512);
    memset(data, 0x55, 512);
    raw_submit(&r, &r.queue[1], raw_rw(GPUNVME_CMD_WRITE, 0, 1, raw_bus(&r, data), 0));
    assert_int_equal(
        raw_do(&r, &r.queue[1], raw_rw(GPUNVME_CMD_COMPARE, 0, 1, raw_bus(&r, data), 0)), 0);
    usleep(5000);
    assert_false(raw_poll(&r, &r.queue[1]));
    /* Its identifier stays in use, and Abort does not find it. */
    assert_int_equal(raw_admin(&r, (struct gpunvme_sqe){.opc = GPUNVME_ADMIN_ABORT, .cdw10 = 1}),
                     0);
    assert_int_equal(r.queue[0].last.dw0, 1);
    r.queue[1].cid = 0;
    assert_int_equal(raw_do(&r, &r.queue[1], read_of(&r, 0)), GPUNVME_SC_CID_CONFLICT);
    raw_close_violated(&r, GPUNVME_SIM_VIOLATION_CID_IN_USE);
}

static void shuffled_commands_all_end_in_another_order(void **state)
{
    struct raw r;
    uint64_t seen = 0;
    bool other = false;

    (void)state;
    raw_open(&r, "sim:size=1M,fault=shuffle=32");
    for (unsigned i = 0; i < 40; i++) /* the last eight are let go after a while */
        raw_put(&r.queue[1], read_of(&r, i));
    raw_ring(raw_sq_doorbell(&r, 1), 40);
    for (unsigned i = 0; i < 40; i++) {
        assert_int_equal(raw_wait(&r, &r.queue[1]), 0);
        assert_false(seen >> r.queue[1].last.cid & 1);
        seen |= 1ull << r.queue[1].last.cid;
        other |= r.queue[1].last.cid != i;
    }
    assert_true(other);
    raw_close(&r);
}

static void more_are_shuffled_than_can_be_held(void **state)
{
    struct raw r;
    struct raw_queue *q;

    (void)state;
    raw_create(&r, "sim:size=1M,fault=shuffle=5000:io");
    raw_enable(&r, RAW_CC);
    q = raw_io_queue(&r, 1, 512);
    for (unsigned i = 0; i < 400; i++)
        raw_put(q, (struct gpunvme_sqe){.nsid = 1});
    raw_ring(raw_sq_doorbell(&r, 1), 400);
    for (unsigned i = 0; i < 400; i++)
        assert_int_equal(raw_wait(&r, q), 0);
    raw_close(&r);
}

static void a_command_can_be_fatal(void **state)
{
    struct raw r;

    (void)state;
    raw_open(&r, "sim:size=1M,fault=cfs:nth=3:read");
    for (unsigned i = 0; i < 8; i++)
        raw_put(&r.queue[1], read_of(&r, i));
    raw_ring(raw_sq_doorbell(&r, 1), 8);
    assert_true(raw_wait_csts(&r, RAW_CFS, RAW_CFS));
    assert_int_equal(raw_wait(&r, &r.queue[1]), 0);
    assert_int_equal(raw_wait(&r, &r.queue[1]), 0);
    usleep(2000);
    assert_false(raw_poll(&r, &r.queue[1]));
    raw_disable(&r);
    raw_enable(&r, RAW_CC);
    raw_close(&r);
}

static void a_command_can_make_the_drive_disappear(void **state)
{
    struct raw r;

    (void)state;
    raw_open(&r, "sim:size=1M,threads=2,fault=remove:nth=2:read");
    assert_int_equal(raw_do(&r, &r.queue[1], read_of(&r, 0)), 0);
    raw_submit(&r, &r.queue[1], read_of(&r, 0));
    assert_true(raw_wait_csts(&r, UINT32_MAX, GPUNVME_REG_ALL_ONES));
    usleep(2000);
    assert_false(raw_poll(&r, &r.queue[1]));
    raw_close(&r);
}

static void a_command_can_cut_the_power(void **state)
{
    struct raw r;

    (void)state;
    raw_open(&r, "sim:size=1M,threads=2,vwc=1,fault=powerloss:nth=2:write");
    assert_int_equal(raw_do(&r, &r.queue[1],
                            raw_rw(GPUNVME_CMD_WRITE, 0, 1, raw_bus(&r, raw_alloc(&r, 512)), 0)),
                     0);
    raw_submit(&r, &r.queue[1],
               raw_rw(GPUNVME_CMD_WRITE, 0, 1, raw_bus(&r, raw_alloc(&r, 512)), 0));
    assert_true(raw_wait_csts(&r, UINT32_MAX, 0));
    assert_int_equal(raw_read(&r, GPUNVME_REG_CC), 0);
    assert_false(raw_poll(&r, &r.queue[1]));
    raw_enable(&r, RAW_CC);
    raw_io_queue(&r, 1, 16);
    raw_close(&r);
}

static void reads_take_as_long_as_the_model_says(void **state)
{
    struct raw r;
    uint64_t begin_ns;

    (void)state;
    raw_open(&r, "sim:size=1M,read_latency=5ms");
    begin_ns = now_ns();
    for (unsigned i = 0; i < 20; i++)
        raw_put(&r.queue[1], read_of(&r, i));
    raw_ring(raw_sq_doorbell(&r, 1), 20);
    for (uint16_t i = 0; i < 20; i++) { /* side by side, and in order where times are equal */
        assert_int_equal(raw_wait(&r, &r.queue[1]), 0);
        assert_int_equal(r.queue[1].last.cid, i);
        assert_true(now_ns() - begin_ns >= 5000000);
    }
    raw_close(&r);
}

static void a_model_with_a_spread_ends_everything(void **state)
{
    struct raw r;
    uint64_t bus;

    (void)state;
    raw_open(&r, "sim:size=1M,profile=consumer-pcie4");
    bus = raw_bus(&r, raw_alloc(&r, 4096));
    for (unsigned round = 0; round < 10; round++) {
        for (unsigned i = 0; i < 60; i++) {
            static const uint8_t opcodes[] = {GPUNVME_CMD_READ, GPUNVME_CMD_WRITE,
                                              GPUNVME_CMD_COMPARE, GPUNVME_CMD_FLUSH};
            uint8_t opc = opcodes[i % 4];

            raw_put(&r.queue[1], opc == GPUNVME_CMD_FLUSH ? (struct gpunvme_sqe){.nsid = 1}
                                                          : raw_rw(opc, 0, 1, bus, 0));
        }
        raw_ring(raw_sq_doorbell(&r, 1), r.queue[1].tail);
        for (unsigned i = 0; i < 60; i++)
            assert_int_equal(raw_wait(&r, &r.queue[1]), 0);
    }
    raw_close(&r);
}

static void a_reset_forgets_what_was_held(void **state)
{
    struct raw r;

    (void)state;
    raw_open(&r, "sim:size=1M,fault=delay=5ms:read,fault=shuffle=10:flush");
    for (unsigned i = 0; i < 10; i++) {
        raw_put(&r.queue[1], read_of(&r, i));
        raw_put(&r.queue[1], (struct gpunvme_sqe){.nsid = 1});
    }
    raw_ring(raw_sq_doorbell(&r, 1), 9);
    raw_disable(&r);
    memset(r.queue[1].cq, 0, 64 * sizeof(*r.queue[1].cq));
    usleep(10000);
    assert_false(raw_poll(&r, &r.queue[1]));
    raw_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_status_comes_instead_of_the_data),
        cmocka_unit_test(admin_commands_meet_faults_too),
        cmocka_unit_test(ranges_of_dsm_meet_faults),
        cmocka_unit_test(a_delayed_command_is_passed_by_others),
        cmocka_unit_test(a_lost_command_is_done_but_never_ends),
        cmocka_unit_test(shuffled_commands_all_end_in_another_order),
        cmocka_unit_test(more_are_shuffled_than_can_be_held),
        cmocka_unit_test(a_command_can_be_fatal),
        cmocka_unit_test(a_command_can_make_the_drive_disappear),
        cmocka_unit_test(a_command_can_cut_the_power),
        cmocka_unit_test(reads_take_as_long_as_the_model_says),
        cmocka_unit_test(a_model_with_a_spread_ends_everything),
        cmocka_unit_test(a_reset_forgets_what_was_held),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
