/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Log pages and asynchronous events of the software controller.
 */
#include "sim/raw.h"

static struct gpunvme_sqe log_command(uint8_t lid, uint64_t off, uint32_t nbytes, uint64_t bus)
{
    uint32_t ndwords = nbytes / 4 - 1;

    return (struct gpunvme_sqe){
        .opc = GPUNVME_ADMIN_GET_LOG_PAGE,
        .nsid = GPUNVME_NSID_ALL,
        .prp1 = bus,
        .cdw10 = lid | ndwords << 16,
        .cdw11 = ndwords >> 16,
        .cdw12 = (uint32_t)off,
        .cdw13 = (uint32_t)(off >> 32),
    };
}

static const void *get_log(struct raw *r, uint8_t lid, uint64_t off, uint32_t nbytes)
{
    uint8_t *data = raw_alloc(r, 4096);

    memset(data, 0xee, 4096);
    assert_int_equal(raw_admin(r, log_command(lid, off, nbytes, raw_bus(r, data))), 0);
    return data;
}

static void smart_counts_what_was_done(void **state)
{
    const struct gpunvme_smart_log *log;
    struct raw r;
    uint64_t bus;

    (void)state;
    raw_open(&r, "sim:size=1M");
    bus = raw_bus(&r, raw_alloc(&r, 8192));
    for (unsigned i = 0; i < 126; i++) /* 504 KiB: the second unit is begun */
        assert_int_equal(raw_do(&r, &r.queue[1], raw_rw(GPUNVME_CMD_READ, 0, 8, bus, 0)), 0);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(raw_do(&r, &r.queue[1], raw_rw(GPUNVME_CMD_WRITE, 0, 1, bus, 0)), 0);
    log = get_log(&r, GPUNVME_LOG_SMART, 0, 512);
    assert_int_equal(log->critical_warning, 0);
    assert_int_equal(log->temperature, 310);
    assert_int_equal(log->data_units_read[0], 2);
    assert_int_equal(log->data_units_written[0], 1);
    assert_int_equal(log->host_reads[0], 126);
    assert_int_equal(log->host_writes[0], 3);
    assert_int_equal(log->power_cycles[0], 1);
    assert_int_equal(log->unsafe_shutdowns[0], 0);
    assert_int_equal(log->media_errors[0], 0);
    assert_int_equal(log->num_err_log_entries[0], 0);
    raw_close(&r);
}

static void smart_counts_power_cycles_and_errors(void **state)
{
    const struct gpunvme_smart_log *log;
    struct raw r;

    (void)state;
    raw_open(&r, "sim:size=1M,fault=status=2/81:read");
    raw_do(&r, &r.queue[1], raw_rw(GPUNVME_CMD_READ, 0, 8, raw_bus(&r, raw_alloc(&r, 4096)), 0));
    gpunvme_sim_power_cycle(r.sim);
    raw_enable(&r, RAW_CC);
    raw_write(&r, GPUNVME_REG_CC, RAW_CC | (uint32_t)GPUNVME_SET(1, CC_SHN));
    assert_true(raw_wait_csts(&r, RAW_SHST, RAW_SHST_DONE));
    gpunvme_sim_power_cycle(r.sim);
    raw_enable(&r, RAW_CC);
    log = get_log(&r, GPUNVME_LOG_SMART, 0, 512);
    assert_int_equal(log->power_cycles[0], 3);
    assert_int_equal(log->unsafe_shutdowns[0], 1);
    assert_int_equal(log->media_errors[0], 1);
    assert_int_equal(log->num_err_log_entries[0], 1);
    raw_close(&r);
}

static void failed_commands_are_in_the_error_log(void **state)
{
    const struct gpunvme_error_log_entry *log;
    struct raw r;
    uint16_t cid;

    (void)state;
    raw_open(&r, "sim:size=1M");
    r.queue[1].cid = 700;
    cid = r.queue[1].cid;
    assert_int_equal(
        raw_do(&r, &r.queue[1],
               raw_rw(GPUNVME_CMD_READ, 0x123456789, 1, raw_bus(&r, raw_alloc(&r, 4096)), 0)),
        GPUNVME_SC_LBA_RANGE);
    raw_admin(&r, (struct gpunvme_sqe){.opc = 0xc1});
    log = get_log(&r, GPUNVME_LOG_ERROR, 0, 4096);
    assert_int_equal(log[0].error_count, 2);
    assert_int_equal(log[0].sqid, 0);
    assert_int_equal(log[0].status, GPUNVME_SC_INVALID_OPCODE << 1);
    assert_int_equal(log[1].error_count, 1);
    assert_int_equal(log[1].sqid, 1);
    assert_int_equal(log[1].cid, cid);
    assert_int_equal(log[1].status, GPUNVME_SC_LBA_RANGE << 1);
    assert_true(log[1].lba == 0x123456789);
    assert_int_equal(log[1].nsid, 1);
    assert_int_equal(log[1].param_error_location, GPUNVME_ERROR_LOG_NONE);
    assert_int_equal(log[2].error_count, 0);
    raw_close(&r);
}

static void the_error_log_keeps_the_newest(void **state)
{
    const struct gpunvme_error_log_entry *log;
    struct raw r;

    (void)state;
    raw_open(&r, "sim:size=1M");
    for (unsigned i = 0; i < 70; i++)
        raw_admin(&r, (struct gpunvme_sqe){.opc = 0xc1});
    log = get_log(&r, GPUNVME_LOG_ERROR, 0, 4096);
    assert_int_equal(log[0].error_count, 70);
    assert_int_equal(log[63].error_count, 7);
    raw_close(&r);
}

static void firmware_log_has_one_slot(void **state)
{
    const struct gpunvme_fw_slot_log *log;
    struct raw r;

    (void)state;
    raw_open(&r, "sim:size=1M");
    log = get_log(&r, GPUNVME_LOG_FW_SLOT, 0, 512);
    assert_int_equal(log->afi, 1);
    assert_memory_equal(log->frs[0], "1.0     ", 8);
    assert_int_equal(log->frs[1][0], 0);
    raw_close(&r);
}

static void effects_log_has_the_commands(void **state)
{
    const struct gpunvme_cmds_effects_log *log;
    struct raw r;

    (void)state;
    raw_open(&r, "sim:size=1M");
    log = get_log(&r, GPUNVME_LOG_CMD_EFFECTS, 0, 4096);
    assert_int_equal(log->acs[GPUNVME_ADMIN_IDENTIFY], 1);
    assert_int_equal(log->acs[GPUNVME_ADMIN_FORMAT_NVM], 0);
    assert_int_equal(log->iocs[GPUNVME_CMD_READ], 1);
    assert_int_equal(log->iocs[GPUNVME_CMD_WRITE], 3);
    assert_int_equal(log->iocs[GPUNVME_CMD_COPY], 0);
    raw_close(&r);
}

static void a_part_of_a_log_can_be_read(void **state)
{
    const uint8_t *whole, *part;
    struct raw r;

    (void)state;
    raw_open(&r, "sim:size=1M");
    whole = get_log(&r, GPUNVME_LOG_CMD_EFFECTS, 0, 4096);
    part = get_log(&r, GPUNVME_LOG_CMD_EFFECTS, 1024, 512);
    assert_memory_equal(part, whole + 1024, 512);
    assert_int_equal(part[512], 0xee);
    part = get_log(&r, GPUNVME_LOG_SMART, 508, 1024); /* beyond the end there are zeroes */
    for (unsigned i = 4; i < 1024; i++)
        assert_int_equal(part[i], 0);
    raw_close(&r);
}

static void wrong_requests_for_logs_are_refused(void **state)
{
    struct gpunvme_sqe sqe;
    struct raw r;
    uint64_t bus;

    (void)state;
    raw_open(&r, "sim:size=1M,mdts=1");
    bus = raw_bus(&r, raw_alloc(&r, 4096));
    assert_int_equal(raw_admin(&r, log_command(0xc5, 0, 512, bus)), GPUNVME_SC_INVALID_LOG_PAGE);
    assert_int_equal(raw_admin(&r, log_command(GPUNVME_LOG_SMART, 512, 512, bus)),
                     GPUNVME_SC_INVALID_FIELD);
    assert_int_equal(raw_admin(&r, log_command(GPUNVME_LOG_SMART, 2, 512, bus)),
                     GPUNVME_SC_INVALID_FIELD);
    assert_int_equal(raw_admin(&r, log_command(GPUNVME_LOG_SMART, 0, 16384, bus)),
                     GPUNVME_SC_INVALID_FIELD);
    sqe = log_command(GPUNVME_LOG_SMART, 0, 512, bus);
    sqe.nsid = 1;
    assert_int_equal(raw_admin(&r, sqe), GPUNVME_SC_INVALID_FIELD);
    raw_close(&r);
}

static uint16_t request_event(struct raw *r)
{
    return raw_submit(r, &r->queue[0], (struct gpunvme_sqe){.opc = GPUNVME_ADMIN_ASYNC_EVENT});
}

static void enable_events(struct raw *r, uint32_t which)
{
    assert_int_equal(raw_admin(r, (struct gpunvme_sqe){.opc = GPUNVME_ADMIN_SET_FEATURES,
                                                       .cdw10 = GPUNVME_FEAT_ASYNC_EVENT,
                                                       .cdw11 = which}),
                     0);
}

static void an_event_ends_a_request(void **state)
{
    struct raw r;
    uint16_t cid;

    (void)state;
    raw_open(&r, "sim:size=1M");
    cid = request_event(&r);
    usleep(2000);
    assert_false(raw_poll(&r, &r.queue[0]));
    gpunvme_sim_event(r.sim, GPUNVME_AER_TYPE_VENDOR, 0x42, 0xc0);
    assert_int_equal(raw_wait(&r, &r.queue[0]), 0);
    assert_int_equal(r.queue[0].last.cid, cid);
    assert_int_equal(r.queue[0].last.dw0, 0x00c04207);
    raw_close(&r);
}

static void an_event_waits_for_a_request(void **state)
{
    struct raw r;

    (void)state;
    raw_open(&r, "sim:size=1M");
    gpunvme_sim_event(r.sim, GPUNVME_AER_TYPE_ERROR, GPUNVME_AER_ERROR_DIAGNOSTIC,
                      GPUNVME_LOG_ERROR);
    gpunvme_sim_event(r.sim, GPUNVME_AER_TYPE_ERROR, GPUNVME_AER_ERROR_DIAGNOSTIC,
                      GPUNVME_LOG_ERROR); /* the same again tells nothing new */
    usleep(2000);
    request_event(&r);
    assert_int_equal(raw_wait(&r, &r.queue[0]), 0);
    assert_int_equal(r.queue[0].last.dw0, 0x00010200);
    raw_close(&r);
}

static void a_type_is_masked_until_its_log_is_read(void **state)
{
    struct raw r;

    (void)state;
    raw_open(&r, "sim:size=1M");
    request_event(&r);
    request_event(&r);
    gpunvme_sim_event(r.sim, GPUNVME_AER_TYPE_ERROR, 2, GPUNVME_LOG_ERROR);
    assert_int_equal(raw_wait(&r, &r.queue[0]), 0);
    gpunvme_sim_event(r.sim, GPUNVME_AER_TYPE_ERROR, 3, GPUNVME_LOG_ERROR);
    usleep(5000);
    assert_false(raw_poll(&r, &r.queue[0]));
    { /* with RAE the event stays */
        struct gpunvme_sqe sqe =
            log_command(GPUNVME_LOG_ERROR, 0, 64, raw_bus(&r, raw_alloc(&r, 4096)));

        sqe.cdw10 |= 1u << 15;
        assert_int_equal(raw_admin(&r, sqe), 0);
        usleep(5000);
        assert_false(raw_poll(&r, &r.queue[0]));
    }
    get_log(&r, GPUNVME_LOG_ERROR, 0, 64);
    assert_int_equal(raw_wait(&r, &r.queue[0]), 0);
    assert_int_equal(r.queue[0].last.dw0, 0x00010300);
    raw_close(&r);
}

static void only_enabled_events_are_sent(void **state)
{
    const struct gpunvme_id_ns_list *list;
    struct raw r;

    (void)state;
    raw_open(&r, "sim:size=1M,ns=4,size=1M");
    request_event(&r);
    gpunvme_sim_event(r.sim, GPUNVME_AER_TYPE_NOTICE, 0, GPUNVME_LOG_CHANGED_NS);
    gpunvme_sim_event(r.sim, GPUNVME_AER_TYPE_SMART, 2, GPUNVME_LOG_SMART);
    usleep(5000);
    assert_false(raw_poll(&r, &r.queue[0]));
    enable_events(&r, GPUNVME_ASYNC_CONFIG_NS_ATTR);
    gpunvme_sim_event(r.sim, GPUNVME_AER_TYPE_NOTICE, 0, GPUNVME_LOG_CHANGED_NS);
    assert_int_equal(raw_wait(&r, &r.queue[0]), 0);
    assert_int_equal(r.queue[0].last.dw0, 0x00040002);
    list = get_log(&r, GPUNVME_LOG_CHANGED_NS, 0, 4096);
    assert_int_equal(list->nsid[0], 1);
    assert_int_equal(list->nsid[1], 4);
    assert_int_equal(list->nsid[2], 0);
    list = get_log(&r, GPUNVME_LOG_CHANGED_NS, 0, 4096); /* told once */
    assert_int_equal(list->nsid[0], 0);
    raw_close(&r);
}

static void a_temperature_beyond_its_threshold_is_an_event(void **state)
{
    const struct gpunvme_smart_log *log;
    struct raw r;

    (void)state;
    raw_open(&r, "sim:size=1M");
    enable_events(&r, GPUNVME_SMART_CW_TEMPERATURE);
    request_event(&r);
    assert_int_equal(raw_admin(&r, (struct gpunvme_sqe){.opc = GPUNVME_ADMIN_SET_FEATURES,
                                                        .cdw10 = GPUNVME_FEAT_TEMP_THRESHOLD,
                                                        .cdw11 = 300}),
                     0);
    assert_int_equal(raw_wait(&r, &r.queue[0]), 0);
    assert_int_equal(r.queue[0].last.dw0, 0x00020101);
    log = get_log(&r, GPUNVME_LOG_SMART, 0, 512);
    assert_int_equal(log->critical_warning, GPUNVME_SMART_CW_TEMPERATURE);
    raw_close(&r);
}

/* Requests keep no entry of the completion queue reserved, so theirs may have to wait for one. */
static void an_event_waits_for_room(void **state)
{
    struct raw r;
    struct raw_queue *q;

    (void)state;
    raw_create(&r, "sim:size=1M");
    q = raw_queue_init(&r, 0, 32);
    raw_write(&r, GPUNVME_REG_AQA, 31u | 1u << 16); /* one completion at a time */
    raw_write64(&r, GPUNVME_REG_ASQ, raw_bus(&r, q->sq));
    raw_write64(&r, GPUNVME_REG_ACQ, raw_bus(&r, q->cq));
    raw_write(&r, GPUNVME_REG_CC, RAW_CC);
    assert_true(raw_wait_csts(&r, RAW_RDY, RAW_RDY));
    for (unsigned i = 0; i < 3; i++)
        request_event(&r);
    gpunvme_sim_event(r.sim, GPUNVME_AER_TYPE_ERROR, 2, GPUNVME_LOG_ERROR);
    gpunvme_sim_event(r.sim, GPUNVME_AER_TYPE_VENDOR, 1, 0xc0);
    gpunvme_sim_event(r.sim, GPUNVME_AER_TYPE_IOCS, 1, 0x81);
    for (uint16_t i = 0; i < 3; i++) {
        raw_wait_phase(q, i % 2, i < 2);
        assert_int_equal(q->cq[i % 2].status >> 1, 0);
        usleep(2000);
        assert_int_equal(raw_phase(q, (i + 1) % 2), i > 0); /* nothing new */
        raw_ring(raw_cq_doorbell(&r, 0), (i + 1) % 2);
    }
    raw_close(&r);
}

static void requests_are_limited(void **state)
{
    struct raw r;

    (void)state;
    raw_open(&r, "sim:size=1M");
    for (unsigned i = 0; i < 4; i++)
        request_event(&r);
    assert_int_equal(raw_admin(&r, (struct gpunvme_sqe){.opc = GPUNVME_ADMIN_ASYNC_EVENT}),
                     GPUNVME_SC_AER_LIMIT);
    raw_close(&r);
}

static void a_request_can_be_aborted(void **state)
{
    struct raw r;
    uint16_t cid, abort;

    (void)state;
    raw_open(&r, "sim:size=1M");
    request_event(&r);
    cid = request_event(&r);
    abort =
        raw_submit(&r, &r.queue[0],
                   (struct gpunvme_sqe){.opc = GPUNVME_ADMIN_ABORT, .cdw10 = (uint32_t)cid << 16});
    assert_int_equal(raw_wait(&r, &r.queue[0]), GPUNVME_SC_ABORT_REQUESTED);
    assert_int_equal(r.queue[0].last.cid, cid);
    assert_int_equal(raw_wait(&r, &r.queue[0]), 0);
    assert_int_equal(r.queue[0].last.cid, abort);
    assert_int_equal(r.queue[0].last.dw0, 0);
    raw_close(&r);
}

static void a_reset_forgets_requests_and_events(void **state)
{
    struct raw r;

    (void)state;
    raw_open(&r, "sim:size=1M");
    request_event(&r);
    raw_disable(&r);
    gpunvme_sim_event(r.sim, GPUNVME_AER_TYPE_ERROR, 2, GPUNVME_LOG_ERROR);
    raw_write(&r, GPUNVME_REG_NSSR, GPUNVME_NSSR_RESET);
    raw_enable(&r, RAW_CC);
    request_event(&r);
    usleep(5000);
    assert_false(raw_poll(&r, &r.queue[0]));
    raw_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(smart_counts_what_was_done),
        cmocka_unit_test(smart_counts_power_cycles_and_errors),
        cmocka_unit_test(failed_commands_are_in_the_error_log),
        cmocka_unit_test(the_error_log_keeps_the_newest),
        cmocka_unit_test(firmware_log_has_one_slot),
        cmocka_unit_test(effects_log_has_the_commands),
        cmocka_unit_test(a_part_of_a_log_can_be_read),
        cmocka_unit_test(wrong_requests_for_logs_are_refused),
        cmocka_unit_test(an_event_ends_a_request),
        cmocka_unit_test(an_event_waits_for_a_request),
        cmocka_unit_test(a_type_is_masked_until_its_log_is_read),
        cmocka_unit_test(only_enabled_events_are_sent),
        cmocka_unit_test(a_temperature_beyond_its_threshold_is_an_event),
        cmocka_unit_test(an_event_waits_for_room),
        cmocka_unit_test(requests_are_limited),
        cmocka_unit_test(a_request_can_be_aborted),
        cmocka_unit_test(a_reset_forgets_requests_and_events),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
