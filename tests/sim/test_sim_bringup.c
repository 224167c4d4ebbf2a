/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The registers of the software controller, and its states.
 */
#include "sim/raw.h"

static void capabilities_are_as_configured(void **state)
{
    struct raw r;
    uint64_t cap;

    (void)state;
    raw_create(&r, "sim:size=1M,mqes=1023,dstrd=2,timeout=3500ms,mpsmax=3");
    cap = raw_read64(&r, GPUNVME_REG_CAP);
    assert_int_equal(GPUNVME_GET(cap, CAP_MQES), 1023);
    assert_int_equal(GPUNVME_GET(cap, CAP_CQR), 1);
    assert_int_equal(GPUNVME_GET(cap, CAP_TO), 7);
    assert_int_equal(GPUNVME_GET(cap, CAP_DSTRD), 2);
    assert_int_equal(GPUNVME_GET(cap, CAP_NSSRS), 1);
    assert_int_equal(GPUNVME_GET(cap, CAP_CSS), GPUNVME_CAP_CSS_NVM);
    assert_int_equal(GPUNVME_GET(cap, CAP_MPSMIN), 0);
    assert_int_equal(GPUNVME_GET(cap, CAP_MPSMAX), 3);
    assert_int_equal(raw_read(&r, GPUNVME_REG_CAP), (uint32_t)cap);
    assert_int_equal(raw_read(&r, GPUNVME_REG_CAP + 4), cap >> 32);
    raw_close(&r);
}

static void version_is_1_4(void **state)
{
    struct raw r;

    (void)state;
    raw_create(&r, "sim:size=1M");
    assert_int_equal(raw_read(&r, GPUNVME_REG_VS), 0x00010400);
    raw_close(&r);
}

static void reserved_registers_read_as_0(void **state)
{
    struct raw r;

    (void)state;
    raw_create(&r, "sim:size=1M");
    for (uint32_t offset = GPUNVME_REG_CMBLOC; offset < GPUNVME_REG_DOORBELLS; offset += 4)
        assert_int_equal(raw_read(&r, offset), 0);
    assert_int_equal(raw_read(&r, GPUNVME_REG_DOORBELLS), 0);
    raw_close(&r);
}

static void interrupt_masks_are_set_and_cleared(void **state)
{
    struct raw r;

    (void)state;
    raw_create(&r, "sim:size=1M");
    raw_write(&r, GPUNVME_REG_INTMS, 0xf0);
    raw_write(&r, GPUNVME_REG_INTMC, 0x30);
    assert_int_equal(raw_read(&r, GPUNVME_REG_INTMS), 0xc0);
    assert_int_equal(raw_read(&r, GPUNVME_REG_INTMC), 0xc0);
    raw_close(&r);
}

static void admin_queue_registers_keep_what_is_written(void **state)
{
    struct raw r;

    (void)state;
    raw_create(&r, "sim:size=1M");
    raw_write(&r, GPUNVME_REG_AQA, 0xffffffff);
    assert_int_equal(raw_read(&r, GPUNVME_REG_AQA), 0x0fff0fff);
    raw_write64(&r, GPUNVME_REG_ASQ, 0x123456789000);
    raw_write(&r, GPUNVME_REG_ACQ, 0xabcde000);
    raw_write(&r, GPUNVME_REG_ACQ + 4, 0x77);
    assert_true(raw_read64(&r, GPUNVME_REG_ASQ) == 0x123456789000);
    assert_int_equal(raw_read(&r, GPUNVME_REG_ASQ), 0x56789000);
    assert_int_equal(raw_read(&r, GPUNVME_REG_ASQ + 4), 0x1234);
    assert_true(raw_read64(&r, GPUNVME_REG_ACQ) == 0x77abcde000);
    raw_close(&r);
}

static void enable_and_disable_work(void **state)
{
    struct raw r;

    (void)state;
    raw_create(&r, "sim:size=1M");
    assert_int_equal(raw_read(&r, GPUNVME_REG_CSTS), 0);
    raw_enable(&r, RAW_CC);
    assert_int_equal(raw_read(&r, GPUNVME_REG_CC), RAW_CC);
    raw_io_queue(&r, 1, 16);
    raw_disable(&r);
    assert_int_equal(raw_read(&r, GPUNVME_REG_AQA), 31u | 31u << 16);
    raw_enable(&r, RAW_CC);
    raw_io_queue(&r, 1, 16);
    assert_int_equal(raw_do(&r, &r.queue[1], (struct gpunvme_sqe){.nsid = 1}), 0);
    raw_close(&r);
}

static void ready_takes_its_time(void **state)
{
    struct raw r;
    struct raw_queue *q;

    (void)state;
    raw_create(&r, "sim:size=1M,ready=1h");
    q = raw_queue_init(&r, 0, 2);
    raw_write(&r, GPUNVME_REG_AQA, 1u | 1u << 16);
    raw_write64(&r, GPUNVME_REG_ASQ, raw_bus(&r, q->sq));
    raw_write64(&r, GPUNVME_REG_ACQ, raw_bus(&r, q->cq));
    raw_write(&r, GPUNVME_REG_CC, RAW_CC);
    usleep(20000);
    assert_int_equal(raw_read(&r, GPUNVME_REG_CSTS), 0);
    raw_close(&r);
}

static void a_larger_memory_page_works(void **state)
{
    struct raw r;
    uint8_t *data, *back;

    (void)state;
    raw_create(&r, "sim:size=1M");
    raw_enable(&r, RAW_CC | (uint32_t)GPUNVME_SET(4, CC_MPS));
    raw_io_queue(&r, 1, 16);
    data = raw_alloc(&r, 65536);
    back = raw_alloc(&r, 65536);
    raw_fill(data, 65536, 1);
    assert_int_equal(
        raw_do(&r, &r.queue[1], raw_rw(GPUNVME_CMD_WRITE, 0, 128, raw_bus(&r, data), 0)), 0);
    assert_int_equal(
        raw_do(&r, &r.queue[1], raw_rw(GPUNVME_CMD_READ, 0, 128, raw_bus(&r, back), 0)), 0);
    assert_memory_equal(data, back, 65536);
    raw_close(&r);
}

/* CC that the controller can't work with: it fails instead of getting ready. */
static void check_refused(uint32_t cc)
{
    struct raw r;
    struct raw_queue *q;

    raw_create(&r, "sim:size=1M,mpsmax=2");
    r.page = 32768;
    q = raw_queue_init(&r, 0, 32);
    raw_write(&r, GPUNVME_REG_AQA, 31u | 31u << 16);
    raw_write64(&r, GPUNVME_REG_ASQ, raw_bus(&r, q->sq));
    raw_write64(&r, GPUNVME_REG_ACQ, raw_bus(&r, q->cq));
    raw_write(&r, GPUNVME_REG_CC, cc);
    assert_true(raw_wait_csts(&r, RAW_CFS | RAW_RDY, RAW_CFS));
    raw_write(&r, GPUNVME_REG_CC, 0);
    assert_true(raw_wait_csts(&r, RAW_CFS | RAW_RDY, 0));
    r.used = 0;
    raw_enable(&r, RAW_CC);
    raw_close(&r);
}

static void an_unsupported_page_size_fails(void **state)
{
    (void)state;
    check_refused(RAW_CC | (uint32_t)GPUNVME_SET(3, CC_MPS));
}

static void an_unsupported_command_set_fails(void **state)
{
    (void)state;
    check_refused(RAW_CC | (uint32_t)GPUNVME_SET(GPUNVME_CC_CSS_ALL, CC_CSS));
}

static void an_unsupported_arbitration_fails(void **state)
{
    (void)state;
    check_refused(RAW_CC | (uint32_t)GPUNVME_SET(GPUNVME_CC_AMS_WRR, CC_AMS));
}

static void an_unsupported_entry_size_fails(void **state)
{
    (void)state;
    check_refused(1u | (uint32_t)GPUNVME_SET(7, CC_IOSQES) | (uint32_t)GPUNVME_SET(4, CC_IOCQES));
}

static void entry_sizes_may_be_set_after_enabling(void **state)
{
    struct raw r;
    struct raw_queue *q;

    (void)state;
    raw_create(&r, "sim:size=1M");
    raw_enable(&r, 1);
    q = raw_queue_init(&r, 1, 16);
    assert_int_equal(raw_create_cq(&r, 1, 16, raw_bus(&r, q->cq)), GPUNVME_SC_QUEUE_SIZE_INVALID);
    raw_write(&r, GPUNVME_REG_CC, RAW_CC);
    raw_io_queue(&r, 1, 16);
    raw_close(&r);
}

/* A controller as firmware may leave it: after EN = 0 it comes up like any other. */
static void check_found(const char *uri, uint32_t csts)
{
    struct raw r;

    raw_create(&r, uri);
    assert_int_equal(raw_read(&r, GPUNVME_REG_CSTS), csts);
    raw_write(&r, GPUNVME_REG_CC, 0);
    assert_true(raw_wait_csts(&r, RAW_RDY | RAW_CFS, 0));
    raw_enable(&r, RAW_CC);
    raw_close(&r);
}

static void a_controller_found_enabled_comes_up(void **state)
{
    (void)state;
    check_found("sim:size=1M,initial_cc=0x460001,initial_csts=1", RAW_RDY);
}

static void a_controller_found_failed_comes_up(void **state)
{
    (void)state;
    check_found("sim:size=1M,initial_cc=0x460001,initial_csts=2", RAW_CFS);
    check_found("sim:size=1M,initial_cc=0x460001,initial_csts=3", RAW_CFS | RAW_RDY);
    check_found("sim:size=1M,initial_csts=2", RAW_CFS);
}

static void a_controller_found_in_reset_comes_up(void **state)
{
    (void)state;
    check_found("sim:size=1M,initial_csts=1,ready=20ms", RAW_RDY);
}

static void a_controller_found_starting_gets_ready(void **state)
{
    struct raw r;

    (void)state;
    raw_create(&r, "sim:size=1M,initial_cc=0x460001,ready=20ms");
    assert_int_equal(raw_read(&r, GPUNVME_REG_CSTS), 0);
    assert_true(raw_wait_csts(&r, RAW_RDY, RAW_RDY));
    raw_disable(&r);
    raw_enable(&r, RAW_CC);
    raw_close(&r);
}

static void check_shutdown(uint32_t shn)
{
    struct raw r;

    raw_open(&r, "sim:size=1M,shutdown=5ms,vwc=1");
    raw_write(&r, GPUNVME_REG_CC, RAW_CC | (uint32_t)GPUNVME_SET(shn, CC_SHN));
    assert_true(raw_read(&r, GPUNVME_REG_CSTS) & RAW_SHST);
    assert_true(raw_wait_csts(&r, RAW_SHST, RAW_SHST_DONE));
    raw_disable(&r);
    assert_int_equal(raw_read(&r, GPUNVME_REG_CSTS) & RAW_SHST, 0);
    raw_enable(&r, RAW_CC);
    raw_io_queue(&r, 1, 16);
    raw_close(&r);
}

static void normal_shutdown_completes(void **state)
{
    (void)state;
    check_shutdown(GPUNVME_CC_SHN_NORMAL);
}

static void abrupt_shutdown_completes(void **state)
{
    (void)state;
    check_shutdown(GPUNVME_CC_SHN_ABRUPT);
}

static void shutdown_of_a_disabled_controller_completes(void **state)
{
    struct raw r;

    (void)state;
    raw_create(&r, "sim:size=1M");
    raw_write(&r, GPUNVME_REG_CC, (uint32_t)GPUNVME_SET(GPUNVME_CC_SHN_NORMAL, CC_SHN));
    assert_true(raw_wait_csts(&r, RAW_SHST, RAW_SHST_DONE));
    raw_enable(&r, RAW_CC);
    raw_close(&r);
}

static void nothing_is_fetched_after_a_shutdown(void **state)
{
    struct raw r;

    (void)state;
    raw_open(&r, "sim:size=1M");
    raw_write(&r, GPUNVME_REG_CC, RAW_CC | (uint32_t)GPUNVME_SET(GPUNVME_CC_SHN_NORMAL, CC_SHN));
    assert_true(raw_wait_csts(&r, RAW_SHST, RAW_SHST_DONE));
    raw_submit(&r, &r.queue[1], (struct gpunvme_sqe){.nsid = 1});
    usleep(10000);
    assert_false(raw_poll(&r, &r.queue[1]));
    raw_close(&r);
}

/* After resets other than by CC.EN the registers are as after power-on. */
static void check_registers_reset(struct raw *r)
{
    assert_int_equal(raw_read(r, GPUNVME_REG_CC), 0);
    assert_int_equal(raw_read(r, GPUNVME_REG_AQA), 0);
    assert_true(raw_read64(r, GPUNVME_REG_ASQ) == 0);
    assert_true(raw_read64(r, GPUNVME_REG_ACQ) == 0);
    raw_enable(r, RAW_CC);
    raw_io_queue(r, 1, 16);
    raw_close(r);
}

static void a_subsystem_reset_resets_registers(void **state)
{
    struct raw r;

    (void)state;
    raw_open(&r, "sim:size=1M");
    raw_write(&r, GPUNVME_REG_NSSR, 0x12345678); /* not the word for it */
    assert_int_equal(raw_read(&r, GPUNVME_REG_CSTS), RAW_RDY);
    raw_write(&r, GPUNVME_REG_NSSR, GPUNVME_NSSR_RESET);
    assert_int_equal(raw_read(&r, GPUNVME_REG_CSTS), GPUNVME_SET(1, CSTS_NSSRO));
    raw_write(&r, GPUNVME_REG_CSTS, (uint32_t)GPUNVME_SET(1, CSTS_NSSRO));
    assert_int_equal(raw_read(&r, GPUNVME_REG_CSTS), 0);
    check_registers_reset(&r);
}

static void a_function_reset_resets_registers(void **state)
{
    struct raw r;

    (void)state;
    raw_open(&r, "sim:size=1M");
    gpunvme_sim_function_reset(r.sim);
    assert_int_equal(raw_read(&r, GPUNVME_REG_CSTS), 0);
    check_registers_reset(&r);
}

static void a_power_cycle_resets_registers(void **state)
{
    struct raw r;

    (void)state;
    raw_open(&r, "sim:size=1M");
    gpunvme_sim_power_cycle(r.sim);
    assert_int_equal(raw_read(&r, GPUNVME_REG_CSTS), 0);
    check_registers_reset(&r);
}

/* A driver does not see at once that the power was gone. */
static void doorbells_rung_while_it_was_off_reach_nobody(void **state)
{
    struct raw r;

    (void)state;
    raw_open(&r, "sim:size=1M,queues=4");
    gpunvme_sim_power_cycle(r.sim);
    raw_ring(raw_sq_doorbell(&r, 1), 1);
    raw_ring(raw_cq_doorbell(&r, 1), 1);
    raw_enable(&r, RAW_CC);
    for (unsigned i = 0; i < 50; i++) { /* while it looks at doorbells of no queue */
        assert_int_equal(raw_admin(&r, (struct gpunvme_sqe){.opc = GPUNVME_ADMIN_GET_FEATURES,
                                                            .cdw10 = GPUNVME_FEAT_NUM_QUEUES}),
                         0);
        usleep(1000);
    }
    raw_close(&r);
}

static void a_fatal_controller_stops_until_reset(void **state)
{
    struct raw r;

    (void)state;
    raw_open(&r, "sim:size=1M");
    gpunvme_sim_fatal(r.sim);
    assert_int_equal(raw_read(&r, GPUNVME_REG_CSTS), RAW_RDY | RAW_CFS);
    raw_submit(&r, &r.queue[1], (struct gpunvme_sqe){.nsid = 1});
    usleep(10000);
    assert_false(raw_poll(&r, &r.queue[1]));
    raw_disable(&r);
    assert_int_equal(raw_read(&r, GPUNVME_REG_CSTS), 0);
    raw_enable(&r, RAW_CC);
    raw_close(&r);
}

static void a_removed_controller_reads_as_ones(void **state)
{
    struct raw r;

    (void)state;
    raw_open(&r, "sim:size=1M");
    gpunvme_sim_remove(r.sim);
    assert_int_equal(raw_read(&r, GPUNVME_REG_CSTS), GPUNVME_REG_ALL_ONES);
    assert_true(raw_read64(&r, GPUNVME_REG_CAP) == UINT64_MAX);
    raw_write(&r, GPUNVME_REG_CC, 0);
    raw_submit(&r, &r.queue[1], (struct gpunvme_sqe){.nsid = 1});
    gpunvme_sim_function_reset(r.sim);
    gpunvme_sim_power_cycle(r.sim);
    usleep(10000);
    assert_int_equal(raw_read(&r, GPUNVME_REG_VS), GPUNVME_REG_ALL_ONES);
    assert_false(raw_poll(&r, &r.queue[1]));
    raw_close(&r);
}

static void doorbells_may_be_rung_by_register_writes(void **state)
{
    struct raw r;
    struct raw_queue *q;

    (void)state;
    raw_open(&r, "sim:size=1M,dstrd=1");
    q = &r.queue[1];
    raw_put(q, (struct gpunvme_sqe){.nsid = 1});
    raw_write(&r, gpunvme_sq_doorbell(1, 1), q->tail);
    assert_int_equal(raw_wait(&r, q), 0);
    raw_close(&r);
}

static void a_wide_stride_of_doorbells_works(void **state)
{
    struct raw r;
    size_t nbytes;

    (void)state;
    raw_open(&r, "sim:size=1M,dstrd=10,queues=4");
    gpunvme_sim_doorbells(r.sim, &nbytes);
    assert_int_equal(nbytes, 5 * 2 * 4096);
    assert_int_equal(raw_do(&r, &r.queue[1], (struct gpunvme_sqe){.nsid = 1}), 0);
    raw_close(&r);
}

static void create_tells_what_is_wrong(void **state)
{
    struct gpunvme_sim_config config;
    struct gpunvme_sim *sim;

    (void)state;
    gpunvme_sim_config_init(&config);
    assert_int_equal(gpunvme_sim_create(NULL, &sim), GPUNVME_ERR_INVALID);
    assert_int_equal(gpunvme_sim_create(&config, NULL), GPUNVME_ERR_INVALID);
    config.threads = 0;
    assert_int_equal(gpunvme_sim_create(&config, &sim), GPUNVME_ERR_INVALID);
    gpunvme_sim_config_init(&config);
    config.dstrd = 15;
    config.max_queues = 60000;
    assert_int_equal(gpunvme_sim_create(&config, &sim), GPUNVME_ERR_LIMIT);
    gpunvme_sim_config_init(&config);
    strcpy(config.ns[0].image, "/no/such/folder/image");
    assert_int_not_equal(gpunvme_sim_create(&config, &sim), GPUNVME_OK);
    gpunvme_sim_destroy(NULL);
}

static void violations_have_texts(void **state)
{
    (void)state;
    for (int i = 0; i < GPUNVME_SIM_NVIOLATIONS; i++)
        assert_string_not_equal(gpunvme_sim_violation_text((enum gpunvme_sim_violation)i),
                                "unknown violation");
    assert_string_equal(gpunvme_sim_violation_text(GPUNVME_SIM_NVIOLATIONS), "unknown violation");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(capabilities_are_as_configured),
        cmocka_unit_test(version_is_1_4),
        cmocka_unit_test(reserved_registers_read_as_0),
        cmocka_unit_test(interrupt_masks_are_set_and_cleared),
        cmocka_unit_test(admin_queue_registers_keep_what_is_written),
        cmocka_unit_test(enable_and_disable_work),
        cmocka_unit_test(ready_takes_its_time),
        cmocka_unit_test(a_larger_memory_page_works),
        cmocka_unit_test(an_unsupported_page_size_fails),
        cmocka_unit_test(an_unsupported_command_set_fails),
        cmocka_unit_test(an_unsupported_arbitration_fails),
        cmocka_unit_test(an_unsupported_entry_size_fails),
        cmocka_unit_test(entry_sizes_may_be_set_after_enabling),
        cmocka_unit_test(a_controller_found_enabled_comes_up),
        cmocka_unit_test(a_controller_found_failed_comes_up),
        cmocka_unit_test(a_controller_found_in_reset_comes_up),
        cmocka_unit_test(a_controller_found_starting_gets_ready),
        cmocka_unit_test(normal_shutdown_completes),
        cmocka_unit_test(abrupt_shutdown_completes),
        cmocka_unit_test(shutdown_of_a_disabled_controller_completes),
        cmocka_unit_test(nothing_is_fetched_after_a_shutdown),
        cmocka_unit_test(a_subsystem_reset_resets_registers),
        cmocka_unit_test(a_function_reset_resets_registers),
        cmocka_unit_test(a_power_cycle_resets_registers),
        cmocka_unit_test(doorbells_rung_while_it_was_off_reach_nobody),
        cmocka_unit_test(a_fatal_controller_stops_until_reset),
        cmocka_unit_test(a_removed_controller_reads_as_ones),
        cmocka_unit_test(doorbells_may_be_rung_by_register_writes),
        cmocka_unit_test(a_wide_stride_of_doorbells_works),
        cmocka_unit_test(create_tells_what_is_wrong),
        cmocka_unit_test(violations_have_texts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
