/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What a driver may do wrong: each is counted, as what it is and as nothing else, and has the
 * effect that the specification gives it. That the other tests' raw_close() finds nothing shows
 * the other half: a correct driver is not accused.
 */
#include "sim/raw.h"

static void expect_event(struct raw *r, uint8_t info)
{
    assert_int_equal(raw_wait(r, &r->queue[0]), 0);
    assert_int_equal(r->queue[0].last.dw0, GPUNVME_LOG_ERROR << 16 | info << 8);
}

static void request_event(struct raw *r)
{
    raw_submit(r, &r->queue[0], (struct gpunvme_sqe){.opc = GPUNVME_ADMIN_ASYNC_EVENT});
}

static void a_doorbell_of_no_queue_is_told(void **state)
{
    struct raw r;

    (void)state;
    raw_open(&r, "sim:size=1M");
    request_event(&r);
    raw_ring(raw_sq_doorbell(&r, 5), 1);
    expect_event(&r, GPUNVME_AER_ERROR_DOORBELL_REGISTER);
    raw_close_violated(&r, GPUNVME_SIM_VIOLATION_DOORBELL_REGISTER);
    raw_open(&r, "sim:size=1M");
    raw_ring(raw_cq_doorbell(&r, 100), 1);
    raw_close_violated(&r, GPUNVME_SIM_VIOLATION_DOORBELL_REGISTER);
}

static void a_doorbell_beyond_the_last_is_told(void **state)
{
    struct raw r;

    (void)state;
    raw_open(&r, "sim:size=1M,queues=4");
    request_event(&r);
    raw_write(&r, gpunvme_sq_doorbell(5, 0), 1);
    expect_event(&r, GPUNVME_AER_ERROR_DOORBELL_REGISTER);
    gpunvme_sim_reg_write(r.sim, gpunvme_sq_doorbell(1, 0), 8, 1);
    gpunvme_sim_reg_write(r.sim, gpunvme_sq_doorbell(1, 0) + 2, 4, 1);
    assert_int_equal(raw_report(&r).nviolations, 3);
    raw_close_violated(&r, GPUNVME_SIM_VIOLATION_DOORBELL_REGISTER);
}

static void a_doorbell_of_a_deleted_queue_is_told(void **state)
{
    struct raw r;

    (void)state;
    raw_open(&r, "sim:size=1M");
    assert_int_equal(raw_delete_sq(&r, 1), 0);
    raw_ring(raw_sq_doorbell(&r, 1), 1);
    raw_close_violated(&r, GPUNVME_SIM_VIOLATION_DOORBELL_REGISTER);
}

static void a_tail_beyond_the_queue_is_told(void **state)
{
    struct raw r;
    const struct gpunvme_error_log_entry *log;

    (void)state;
    raw_open(&r, "sim:size=1M");
    request_event(&r);
    raw_ring(raw_sq_doorbell(&r, 1), 64);
    expect_event(&r, GPUNVME_AER_ERROR_DOORBELL_VALUE);
    log = raw_alloc(&r, 4096);
    assert_int_equal(raw_admin(&r, (struct gpunvme_sqe){.opc = GPUNVME_ADMIN_GET_LOG_PAGE,
                                                        .prp1 = raw_bus(&r, log),
                                                        .cdw10 = GPUNVME_LOG_ERROR | 15 << 16}),
                     0);
    assert_int_equal(log->sqid, 1);
    assert_int_equal(log->cid, GPUNVME_ERROR_LOG_NONE);
    /* The queue goes on from where it was. */
    assert_int_equal(raw_do(&r, &r.queue[1], (struct gpunvme_sqe){.nsid = 1}), 0);
    raw_close_violated(&r, GPUNVME_SIM_VIOLATION_DOORBELL_VALUE);
}

static void a_head_beyond_the_queue_is_told(void **state)
{
    struct raw r;

    (void)state;
    raw_open(&r, "sim:size=1M");
    raw_ring(raw_cq_doorbell(&r, 1), 1000);
    raw_close_violated(&r, GPUNVME_SIM_VIOLATION_DOORBELL_VALUE);
}

static void an_overrun_submission_queue_is_told(void **state)
{
    struct raw r;
    struct raw_queue *q;
    uint64_t bus;

    (void)state;
    raw_open(&r, "sim:size=1M,latency=1h");
    request_event(&r);
    q = &r.queue[1];
    bus = raw_bus(&r, raw_alloc(&r, 512));
    raw_put(q, (struct gpunvme_sqe){.opc = 0x7f}); /* ends at once: the tail was seen */
    for (unsigned i = 0; i < 59; i++)
        raw_put(q, raw_rw(GPUNVME_CMD_READ, 0, 1, bus, 0));
    raw_ring(raw_sq_doorbell(&r, 1), 60);
    assert_int_equal(raw_wait(&r, q), GPUNVME_SC_INVALID_OPCODE);
    assert_int_equal(q->last.sqhd, 1);
    raw_ring(raw_sq_doorbell(&r, 1), 10); /* 14 more, but only 4 are known to be free */
    expect_event(&r, GPUNVME_AER_ERROR_DOORBELL_VALUE);
    raw_close_violated(&r, GPUNVME_SIM_VIOLATION_SQ_OVERFLOW);
}

static void a_head_that_passes_the_tail_is_told(void **state)
{
    struct raw r;

    (void)state;
    raw_open(&r, "sim:size=1M");
    assert_int_equal(raw_do(&r, &r.queue[1], (struct gpunvme_sqe){.nsid = 1}), 0);
    raw_ring(raw_cq_doorbell(&r, 1), 5);
    raw_expect(&r, GPUNVME_SIM_VIOLATION_CQ_OVERRUN);
    raw_ring(raw_cq_doorbell(&r, 1), 1);
    assert_int_equal(raw_do(&r, &r.queue[1], (struct gpunvme_sqe){.nsid = 1}), 0);
    raw_close_violated(&r, GPUNVME_SIM_VIOLATION_CQ_OVERRUN);
}

static void a_command_id_in_use_is_told(void **state)
{
    struct gpunvme_sqe sqe;
    struct raw r;
    struct raw_queue *q;
    unsigned conflicts = 0;

    (void)state;
    raw_open(&r, "sim:size=1M,fault=delay=20ms:read");
    q = &r.queue[1];
    sqe = raw_rw(GPUNVME_CMD_READ, 0, 1, raw_bus(&r, raw_alloc(&r, 512)), 0);
    for (unsigned i = 0; i < 3; i++) {
        q->cid = 7;
        raw_submit(&r, q, sqe);
    }
    for (unsigned i = 0; i < 3; i++) {
        conflicts += raw_wait(&r, q) == GPUNVME_SC_CID_CONFLICT;
        assert_int_equal(q->last.cid, 7);
    }
    assert_int_equal(conflicts, 2);
    q->cid = 7; /* and then it is free */
    assert_int_equal(raw_do(&r, q, sqe), 0);
    assert_int_equal(raw_report(&r).violations[GPUNVME_SIM_VIOLATION_CID_IN_USE], 2);
    raw_close_violated(&r, GPUNVME_SIM_VIOLATION_CID_IN_USE);
}

/* On the fast path too, where a command is over before the next one is looked at. */
static void a_command_id_twice_in_a_batch_is_told(void **state)
{
    struct raw r;
    struct raw_queue *q;

    (void)state;
    raw_open(&r, "sim:size=1M");
    q = &r.queue[1];
    for (unsigned i = 0; i < 8; i++) {
        q->cid = i == 6 ? 2 : (uint16_t)i;
        raw_put(q, raw_rw(GPUNVME_CMD_READ, 0, 1, raw_bus(&r, raw_alloc(&r, 512)), 0));
    }
    raw_ring(raw_sq_doorbell(&r, 1), 8);
    for (unsigned i = 0; i < 8; i++)
        assert_int_equal(raw_wait(&r, q), i == 6 ? GPUNVME_SC_CID_CONFLICT : 0);
    raw_close_violated(&r, GPUNVME_SIM_VIOLATION_CID_IN_USE);
}

static void reserved_fields_are_told(void **state)
{
    static const struct {
        bool io;
        struct gpunvme_sqe sqe;
        uint16_t status;
    } cases[] = {
        {true, {.opc = GPUNVME_CMD_FLUSH, .nsid = 1, .cdw2 = 1}, 0},
        {true, {.opc = GPUNVME_CMD_FLUSH, .nsid = 1, .cdw3 = 1}, 0},
        {true, {.opc = GPUNVME_CMD_FLUSH, .nsid = 1, .cdw10 = 1}, 0},
        {true, {.opc = GPUNVME_CMD_FLUSH, .nsid = 1, .cdw15 = 1}, 0},
        {true, {.opc = GPUNVME_CMD_FLUSH, .nsid = 1, .prp1 = 4096}, 0},
        {true, {.opc = GPUNVME_CMD_FLUSH, .nsid = 1, .prp2 = 4096}, 0},
        {true, {.opc = GPUNVME_CMD_FLUSH, .nsid = 1, .mptr = 4096}, 0},
        {true, {.opc = GPUNVME_CMD_FLUSH, .nsid = 1, .flags = 4}, GPUNVME_SC_INVALID_FIELD},
        {true, {.opc = GPUNVME_CMD_VERIFY, .nsid = 1, .cdw12 = 1 << 20}, 0},
        {true, {.opc = GPUNVME_CMD_VERIFY, .nsid = 1, .cdw13 = 1}, 0},
        {true, {.opc = GPUNVME_CMD_WRITE_ZEROES, .nsid = 1, .cdw12 = 1 << 24}, 0},
        {true,
         {.opc = GPUNVME_CMD_READ, .nsid = 1, .flags = 0xc0, .prp1 = RAW_BUS},
         GPUNVME_SC_INVALID_FIELD},
        {true, {.opc = GPUNVME_CMD_READ, .nsid = 1, .cdw12 = 1 << 16, .prp1 = RAW_BUS}, 0},
        {true, {.opc = GPUNVME_CMD_READ, .nsid = 1, .cdw13 = 1 << 8, .prp1 = RAW_BUS}, 0},
        {true, {.opc = GPUNVME_CMD_READ, .nsid = 1, .cdw2 = 1 << 8, .prp1 = RAW_BUS}, 0},
        {false, {.opc = GPUNVME_ADMIN_KEEP_ALIVE, .nsid = 1}, 0},
        {false, {.opc = GPUNVME_ADMIN_KEEP_ALIVE, .cdw14 = 1}, 0},
        {false, {.opc = GPUNVME_ADMIN_ABORT, .cdw11 = 1}, 0},
        {false, {.opc = GPUNVME_ADMIN_IDENTIFY, .cdw10 = 0x101, .prp1 = RAW_BUS}, 0},
        {false, {.opc = GPUNVME_ADMIN_IDENTIFY, .cdw10 = 1, .prp1 = RAW_BUS, .mptr = 8}, 0},
        {false, {.opc = GPUNVME_ADMIN_GET_FEATURES, .cdw10 = 1, .cdw12 = 8}, 0},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct raw r;

        raw_create(&r, "sim:size=1M");
        raw_alloc(&r, 65536); /* data goes to the arena's begin, where there are no queues */
        raw_enable(&r, RAW_CC);
        raw_io_queue(&r, 1, 16);
        assert_int_equal(raw_do(&r, &r.queue[cases[i].io], cases[i].sqe), cases[i].status);
        assert_int_equal(raw_report(&r).nviolations, 1);
        raw_close_violated(&r, GPUNVME_SIM_VIOLATION_RESERVED_BITS);
    }
}

static void deac_is_a_reserved_bit_where_dlfeat_lacks_it(void **state)
{
    struct gpunvme_sqe zero = raw_rw(GPUNVME_CMD_WRITE_ZEROES, 0, 1, 0, 0);
    struct raw r;

    (void)state;
    raw_open(&r, "sim:size=1M,deac=off");
    assert_int_equal(raw_do(&r, &r.queue[1], zero), 0);
    assert_int_equal(raw_report(&r).nviolations, 0);
    zero.cdw12 |= GPUNVME_WZ_DEAC;
    assert_int_equal(raw_do(&r, &r.queue[1], zero), 0);
    raw_close_violated(&r, GPUNVME_SIM_VIOLATION_RESERVED_BITS);
}

static void creating_a_queue_with_a_prp2_is_told(void **state)
{
    struct raw r;

    (void)state;
    raw_open(&r, "sim:size=1M");
    assert_int_equal(raw_admin(&r, (struct gpunvme_sqe){.opc = GPUNVME_ADMIN_CREATE_CQ,
                                                        .prp1 = raw_bus(&r, raw_alloc(&r, 4096)),
                                                        .prp2 = 4096,
                                                        .cdw10 = 2 | 15 << 16,
                                                        .cdw11 = GPUNVME_QUEUE_PC}),
                     0);
    raw_close_violated(&r, GPUNVME_SIM_VIOLATION_RESERVED_BITS);
}

static void memory_unmapped_under_a_queue_is_told(void **state)
{
    struct raw r;

    (void)state;
    raw_open(&r, "sim:size=1M");
    assert_ok(gpunvme_sim_dma_unmap(r.sim, RAW_BUS, RAW_NBYTES));
    assert_int_equal(raw_report(&r).violations[GPUNVME_SIM_VIOLATION_QUEUE_MEMORY], 2);
    raw_close_violated(&r, GPUNVME_SIM_VIOLATION_QUEUE_MEMORY);
}

static void memory_may_go_after_a_shutdown(void **state)
{
    struct raw r;

    (void)state;
    raw_open(&r, "sim:size=1M");
    raw_write(&r, GPUNVME_REG_CC, RAW_CC | (uint32_t)GPUNVME_SET(GPUNVME_CC_SHN_NORMAL, CC_SHN));
    assert_true(raw_wait_csts(&r, RAW_SHST, RAW_SHST_DONE));
    assert_ok(gpunvme_sim_dma_unmap(r.sim, RAW_BUS, RAW_NBYTES));
    raw_close(&r);
}

static void memory_unmapped_under_a_queue_is_not_touched(void **state)
{
    struct raw r;

    (void)state;
    raw_open(&r, "sim:size=1M");
    assert_ok(gpunvme_sim_dma_unmap(r.sim, RAW_BUS, RAW_NBYTES));
    raw_submit(&r, &r.queue[1], (struct gpunvme_sqe){.nsid = 1});
    assert_true(raw_wait_csts(&r, RAW_CFS, RAW_CFS));
    assert_false(raw_poll(&r, &r.queue[1]));
    raw_destroy(&r);
}

static void memory_of_a_disabled_controller_may_be_unmapped(void **state)
{
    struct raw r;

    (void)state;
    raw_open(&r, "sim:size=1M");
    raw_disable(&r);
    assert_ok(gpunvme_sim_dma_unmap(r.sim, RAW_BUS, RAW_NBYTES));
    raw_close(&r);
    raw_open(&r, "sim:size=1M");
    gpunvme_sim_remove(r.sim);
    assert_ok(gpunvme_sim_dma_unmap(r.sim, RAW_BUS, RAW_NBYTES));
    raw_close(&r);
    raw_open(&r, "sim:size=1M");
    gpunvme_sim_fatal(r.sim);
    assert_ok(gpunvme_sim_dma_unmap(r.sim, RAW_BUS, RAW_NBYTES));
    raw_close(&r);
}

static void a_completion_queue_that_is_not_zeroed_is_a_warning(void **state)
{
    struct raw r;
    struct raw_queue *q;

    (void)state;
    raw_open(&r, "sim:size=1M");
    q = raw_queue_init(&r, 2, 128);
    q->cq[127].status = 1;
    assert_int_equal(raw_create_cq(&r, 2, 128, raw_bus(&r, q->cq)), 0);
    assert_int_equal(raw_report(&r).nviolations, 0);
    assert_int_equal(raw_report(&r).warnings[GPUNVME_SIM_WARNING_PHASE], 1);
    assert_non_null(strstr(raw_report(&r).first_warning, "entry 127"));
    raw_destroy(&r);
}

static void wrong_register_accesses_are_told(void **state)
{
    static const struct {
        uint32_t offset;
        unsigned size;
    } reads[] = {{0x1, 4}, {0x14, 8}, {0x8, 8}, {0x0, 2}, {0x0, 16}, {0x1000000, 4}};
    struct raw r;

    (void)state;
    raw_create(&r, "sim:size=1M");
    for (size_t i = 0; i < sizeof(reads) / sizeof(reads[0]); i++) {
        gpunvme_sim_reg_read(r.sim, reads[i].offset, reads[i].size);
        assert_int_equal(raw_report(&r).nviolations, i + 1);
    }
    raw_close_violated(&r, GPUNVME_SIM_VIOLATION_REGISTER_ACCESS);
}

static void wrong_register_writes_are_told(void **state)
{
    static const struct {
        uint32_t offset;
        unsigned size;
        uint32_t value;
    } writes[] = {
        {GPUNVME_REG_CAP, 4, 1},
        {GPUNVME_REG_VS, 4, 1},
        {GPUNVME_REG_CSTS, 4, 1},
        {GPUNVME_REG_CMBLOC, 4, 1},
        {0x800, 4, 1},
        {GPUNVME_REG_CC, 8, 0},
        {GPUNVME_REG_CC, 4, 1u << 25},
        {GPUNVME_REG_CC, 4, 3 << 14},
    };
    struct raw r;

    (void)state;
    raw_create(&r, "sim:size=1M");
    raw_write(&r, 0x800, 0); /* reserved fields are written as 0 */
    for (size_t i = 0; i < sizeof(writes) / sizeof(writes[0]); i++) {
        gpunvme_sim_reg_write(r.sim, writes[i].offset, writes[i].size, writes[i].value);
        assert_int_equal(raw_report(&r).nviolations, i + 1);
    }
    raw_close_violated(&r, GPUNVME_SIM_VIOLATION_REGISTER_ACCESS);
}

static void admin_queue_registers_are_fixed_while_enabled(void **state)
{
    struct raw r;
    uint64_t asq;

    (void)state;
    raw_open(&r, "sim:size=1M");
    asq = raw_read64(&r, GPUNVME_REG_ASQ);
    raw_write(&r, GPUNVME_REG_AQA, 0);
    raw_write(&r, GPUNVME_REG_ASQ, 0);
    assert_true(raw_read64(&r, GPUNVME_REG_ASQ) == asq);
    assert_int_equal(raw_read(&r, GPUNVME_REG_AQA), 31 | 31 << 16);
    raw_close_violated(&r, GPUNVME_SIM_VIOLATION_REGISTER_ACCESS);
}

static void enabling_too_early_is_told(void **state)
{
    struct raw r;

    (void)state;
    raw_create(&r, "sim:size=1M,ready=50ms");
    raw_enable(&r, RAW_CC);
    raw_write(&r, GPUNVME_REG_CC, RAW_CC & ~1u);
    raw_write(&r, GPUNVME_REG_CC, RAW_CC);
    raw_expect(&r, GPUNVME_SIM_VIOLATION_REGISTER_ACCESS);
    raw_close_violated(&r, GPUNVME_SIM_VIOLATION_REGISTER_ACCESS);
}

static void disabling_too_early_is_told(void **state)
{
    struct raw r;
    struct raw_queue *q;

    (void)state;
    raw_create(&r, "sim:size=1M,ready=1h");
    q = raw_queue_init(&r, 0, 32);
    raw_write(&r, GPUNVME_REG_AQA, 31u | 31u << 16);
    raw_write64(&r, GPUNVME_REG_ASQ, raw_bus(&r, q->sq));
    raw_write64(&r, GPUNVME_REG_ACQ, raw_bus(&r, q->cq));
    raw_write(&r, GPUNVME_REG_CC, RAW_CC);
    raw_write(&r, GPUNVME_REG_CC, RAW_CC & ~1u);
    raw_close_violated(&r, GPUNVME_SIM_VIOLATION_REGISTER_ACCESS);
}

static void changing_cc_while_enabled_is_told(void **state)
{
    static const uint32_t changes[] = {1u << 4, 1u << 7, 1u << 11, 1u << 16, 1u << 20};

    (void)state;
    for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
        struct raw r;

        raw_open(&r, "sim:size=1M");
        raw_write(&r, GPUNVME_REG_CC, RAW_CC ^ changes[i]);
        assert_int_equal(raw_read(&r, GPUNVME_REG_CC), RAW_CC);
        assert_int_equal(raw_do(&r, &r.queue[1], (struct gpunvme_sqe){.nsid = 1}), 0);
        raw_close_violated(&r, GPUNVME_SIM_VIOLATION_CC_CHANGE);
    }
}

static void enabling_without_admin_queues_is_told(void **state)
{
    static const struct {
        uint32_t aqa;
        uint64_t asq, acq;
    } cases[] = {
        {31 | 31 << 16, 0, RAW_BUS},
        {31 | 31 << 16, RAW_BUS, 0},
        {31 | 31 << 16, RAW_BUS + 64, RAW_BUS + 4096},
        {31 | 31 << 16, RAW_BUS, RAW_BUS + 4096 + 16},
        {31, RAW_BUS, RAW_BUS + 4096},
        {31 << 16, RAW_BUS, RAW_BUS + 4096},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct raw r;

        raw_create(&r, "sim:size=1M");
        raw_write(&r, GPUNVME_REG_AQA, cases[i].aqa);
        raw_write64(&r, GPUNVME_REG_ASQ, cases[i].asq);
        raw_write64(&r, GPUNVME_REG_ACQ, cases[i].acq);
        raw_write(&r, GPUNVME_REG_CC, RAW_CC);
        assert_true(raw_wait_csts(&r, RAW_CFS, RAW_CFS));
        raw_close_violated(&r, GPUNVME_SIM_VIOLATION_ENABLE_ORDER);
    }
}

static void admin_queues_that_are_not_mapped_are_told(void **state)
{
    struct raw r;

    (void)state;
    raw_create(&r, "sim:size=1M");
    raw_write(&r, GPUNVME_REG_AQA, 31 | 31 << 16);
    raw_write64(&r, GPUNVME_REG_ASQ, 0x1000);
    raw_write64(&r, GPUNVME_REG_ACQ, 0x2000);
    raw_write(&r, GPUNVME_REG_CC, RAW_CC);
    assert_true(raw_wait_csts(&r, RAW_CFS | RAW_RDY, RAW_CFS));
    raw_close_violated(&r, GPUNVME_SIM_VIOLATION_DMA_UNMAPPED);
}

static void the_first_violation_is_told_in_full(void **state)
{
    struct raw r;

    (void)state;
    raw_open(&r, "sim:size=1M");
    r.queue[1].cid = 123;
    raw_do(&r, &r.queue[1], (struct gpunvme_sqe){.nsid = 1, .cdw10 = 0xabc});
    raw_do(&r, &r.queue[1], (struct gpunvme_sqe){.nsid = 1, .cdw11 = 0xdef});
    assert_non_null(strstr(raw_report(&r).first, "queue 1"));
    assert_non_null(strstr(raw_report(&r).first, "command id 123"));
    assert_non_null(strstr(raw_report(&r).first, "CDW10"));
    assert_non_null(strstr(raw_report(&r).first, "abch"));
    raw_close_violated(&r, GPUNVME_SIM_VIOLATION_RESERVED_BITS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_doorbell_of_no_queue_is_told),
        cmocka_unit_test(a_doorbell_beyond_the_last_is_told),
        cmocka_unit_test(a_doorbell_of_a_deleted_queue_is_told),
        cmocka_unit_test(a_tail_beyond_the_queue_is_told),
        cmocka_unit_test(a_head_beyond_the_queue_is_told),
        cmocka_unit_test(an_overrun_submission_queue_is_told),
        cmocka_unit_test(a_head_that_passes_the_tail_is_told),
        cmocka_unit_test(a_command_id_in_use_is_told),
        cmocka_unit_test(a_command_id_twice_in_a_batch_is_told),
        cmocka_unit_test(reserved_fields_are_told),
        cmocka_unit_test(deac_is_a_reserved_bit_where_dlfeat_lacks_it),
        cmocka_unit_test(creating_a_queue_with_a_prp2_is_told),
        cmocka_unit_test(memory_unmapped_under_a_queue_is_told),
        cmocka_unit_test(memory_may_go_after_a_shutdown),
        cmocka_unit_test(memory_unmapped_under_a_queue_is_not_touched),
        cmocka_unit_test(memory_of_a_disabled_controller_may_be_unmapped),
        cmocka_unit_test(a_completion_queue_that_is_not_zeroed_is_a_warning),
        cmocka_unit_test(wrong_register_accesses_are_told),
        cmocka_unit_test(wrong_register_writes_are_told),
        cmocka_unit_test(admin_queue_registers_are_fixed_while_enabled),
        cmocka_unit_test(enabling_too_early_is_told),
        cmocka_unit_test(disabling_too_early_is_told),
        cmocka_unit_test(changing_cc_while_enabled_is_told),
        cmocka_unit_test(enabling_without_admin_queues_is_told),
        cmocka_unit_test(admin_queues_that_are_not_mapped_are_told),
        cmocka_unit_test(the_first_violation_is_told_in_full),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
