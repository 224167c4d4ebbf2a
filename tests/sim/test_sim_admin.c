/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Admin commands that are about queues and commands: each status that the specification has for
 * them, and what they leave behind.
 */
#include "sim/raw.h"

static void a_shared_completion_queue_serves_both(void **state)
{
    struct raw r;
    struct raw_queue *a, *b;

    (void)state;
    raw_open(&r, "sim:size=1M");
    a = &r.queue[1];
    b = raw_queue_init(&r, 2, 8);
    assert_int_equal(raw_create_sq(&r, 2, 1, 8, raw_bus(&r, b->sq)), 0);
    raw_submit(&r, b, (struct gpunvme_sqe){.nsid = 1});
    assert_int_equal(raw_wait(&r, a), 0);
    assert_int_equal(a->last.sqid, 2);
    assert_int_equal(raw_do(&r, a, (struct gpunvme_sqe){.nsid = 1}), 0);
    assert_int_equal(raw_delete_sq(&r, 2), 0);
    assert_int_equal(raw_delete_sq(&r, 1), 0);
    assert_int_equal(raw_delete_cq(&r, 1), 0);
    raw_close(&r);
}

static void queue_identifiers_are_checked(void **state)
{
    struct raw r;
    uint64_t bus;

    (void)state;
    raw_open(&r, "sim:size=1M,queues=4");
    bus = raw_bus(&r, raw_alloc(&r, 4096));
    assert_int_equal(raw_create_cq(&r, 0, 4, bus), GPUNVME_SC_QID_INVALID);
    assert_int_equal(raw_create_cq(&r, 5, 4, bus), GPUNVME_SC_QID_INVALID);
    assert_int_equal(raw_create_sq(&r, 0, 1, 4, bus), GPUNVME_SC_QID_INVALID);
    assert_int_equal(raw_create_sq(&r, 5, 1, 4, bus), GPUNVME_SC_QID_INVALID);
    assert_int_equal(raw_create_sq(&r, 2, 0, 4, bus), GPUNVME_SC_QID_INVALID);
    assert_int_equal(raw_create_sq(&r, 2, 5, 4, bus), GPUNVME_SC_QID_INVALID);
    assert_int_equal(raw_delete_sq(&r, 0), GPUNVME_SC_QID_INVALID);
    assert_int_equal(raw_delete_sq(&r, 5), GPUNVME_SC_QID_INVALID);
    assert_int_equal(raw_delete_cq(&r, 0), GPUNVME_SC_QID_INVALID);
    assert_int_equal(raw_delete_cq(&r, 5), GPUNVME_SC_QID_INVALID);
    raw_close(&r);
}

static void queue_sizes_are_checked(void **state)
{
    struct raw r;
    uint64_t bus;

    (void)state;
    raw_open(&r, "sim:size=1M,mqes=63");
    bus = raw_bus(&r, raw_alloc(&r, 8192));
    assert_int_equal(raw_create_cq(&r, 2, 1, bus), GPUNVME_SC_QUEUE_SIZE_INVALID);
    assert_int_equal(raw_create_cq(&r, 2, 65, bus), GPUNVME_SC_QUEUE_SIZE_INVALID);
    assert_int_equal(raw_create_sq(&r, 2, 1, 1, bus), GPUNVME_SC_QUEUE_SIZE_INVALID);
    assert_int_equal(raw_create_sq(&r, 2, 1, 65, bus), GPUNVME_SC_QUEUE_SIZE_INVALID);
    assert_int_equal(raw_create_cq(&r, 2, 64, bus), 0);
    raw_close(&r);
}

static void queues_must_be_contiguous(void **state)
{
    struct gpunvme_sqe sqe = {.opc = GPUNVME_ADMIN_CREATE_CQ, .cdw10 = 2 | 3 << 16};
    struct raw r;

    (void)state;
    raw_open(&r, "sim:size=1M");
    sqe.prp1 = raw_bus(&r, raw_alloc(&r, 4096));
    assert_int_equal(raw_admin(&r, sqe), GPUNVME_SC_INVALID_FIELD);
    raw_close(&r);
}

static void interrupt_vectors_are_checked(void **state)
{
    struct gpunvme_sqe sqe = {.opc = GPUNVME_ADMIN_CREATE_CQ, .cdw10 = 2 | 3 << 16};
    struct raw r;

    (void)state;
    raw_open(&r, "sim:size=1M,queues=8");
    sqe.prp1 = raw_bus(&r, raw_alloc(&r, 4096));
    sqe.cdw11 = GPUNVME_QUEUE_PC | GPUNVME_CQ_IEN | 9u << 16;
    assert_int_equal(raw_admin(&r, sqe), GPUNVME_SC_INVALID_VECTOR);
    sqe.cdw11 = GPUNVME_QUEUE_PC | GPUNVME_CQ_IEN | 8u << 16;
    assert_int_equal(raw_admin(&r, sqe), 0);
    raw_close(&r);
}

static void queues_are_limited_to_what_was_granted(void **state)
{
    struct raw r;
    uint64_t bus;

    (void)state;
    raw_create(&r, "sim:size=1M,queues=16");
    raw_enable(&r, RAW_CC);
    bus = raw_bus(&r, raw_alloc(&r, 4096));
    assert_int_equal(raw_admin(&r, (struct gpunvme_sqe){.opc = GPUNVME_ADMIN_SET_FEATURES,
                                                        .cdw10 = GPUNVME_FEAT_NUM_QUEUES,
                                                        .cdw11 = 0x00040002}),
                     0);
    assert_int_equal(r.queue[0].last.dw0, 0x00040002);
    assert_int_equal(raw_create_cq(&r, 6, 4, bus), GPUNVME_SC_QID_INVALID);
    assert_int_equal(raw_create_cq(&r, 5, 4, bus), 0);
    assert_int_equal(raw_create_sq(&r, 4, 5, 4, bus), GPUNVME_SC_QID_INVALID);
    assert_int_equal(raw_create_sq(&r, 3, 5, 4, bus), 0);
    raw_close(&r);
}

static void all_queues_can_be_created(void **state)
{
    struct raw r;
    uint8_t *memory;

    (void)state;
    raw_create(&r, "sim:size=1M,queues=128,threads=3");
    raw_enable(&r, RAW_CC);
    memory = raw_alloc(&r, 256 * 4096);
    for (uint16_t qid = 1; qid <= 128; qid++) {
        uint64_t bus = raw_bus(&r, memory + (qid - 1) * 8192);

        assert_int_equal(raw_create_cq(&r, qid, 16, bus), 0);
        assert_int_equal(raw_create_sq(&r, qid, qid, 16, bus + 4096), 0);
    }
    for (uint16_t qid = 1; qid <= 128; qid++) {
        assert_int_equal(raw_delete_sq(&r, qid), 0);
        assert_int_equal(raw_delete_cq(&r, qid), 0);
    }
    raw_close(&r);
}

static void memory_of_a_deleted_queue_is_not_touched(void **state)
{
    struct raw r;
    struct raw_queue *q;

    (void)state;
    raw_open(&r, "sim:size=1M,latency=1s");
    q = &r.queue[1];
    for (unsigned i = 0; i < 20; i++)
        raw_put(q, raw_rw(GPUNVME_CMD_READ, 0, 1, raw_bus(&r, raw_alloc(&r, 512)), 0));
    raw_ring(raw_sq_doorbell(&r, 1), q->tail);
    assert_int_equal(raw_delete_sq(&r, 1), 0);
    assert_int_equal(raw_delete_cq(&r, 1), 0);
    memset(q->cq, 0x5a, q->size * sizeof(*q->cq));
    usleep(20000);
    for (size_t i = 0; i < q->size * sizeof(*q->cq); i++)
        assert_int_equal(((uint8_t *)q->cq)[i], 0x5a);
    raw_close(&r);
}

static void deleting_a_queue_aborts_what_is_in_flight(void **state)
{
    struct raw r;
    struct raw_queue *q;

    (void)state;
    raw_open(&r, "sim:size=1M,latency=1h");
    q = &r.queue[1];
    for (unsigned i = 0; i < 20; i++)
        raw_submit(&r, q, raw_rw(GPUNVME_CMD_READ, 0, 1, raw_bus(&r, raw_alloc(&r, 512)), 0));
    /* One that ends at once: those before it were fetched. */
    assert_int_equal(raw_do(&r, q, (struct gpunvme_sqe){.opc = 0x7f}), GPUNVME_SC_INVALID_OPCODE);
    assert_int_equal(raw_delete_sq(&r, 1), 0);
    for (unsigned i = 0; i < 20; i++)
        assert_int_equal(raw_wait(&r, q), GPUNVME_SC_ABORT_SQ_DELETED);
    raw_close(&r);
}

static void a_deleted_queue_can_be_created_again(void **state)
{
    struct raw r;

    (void)state;
    raw_open(&r, "sim:size=1M,threads=2");
    for (unsigned i = 0; i < 50; i++) {
        assert_int_equal(raw_do(&r, &r.queue[1], (struct gpunvme_sqe){.nsid = 1}), 0);
        assert_int_equal(raw_delete_sq(&r, 1), 0);
        assert_int_equal(raw_delete_cq(&r, 1), 0);
        r.used = 65536;
        raw_io_queue(&r, 1, 16);
    }
    raw_close(&r);
}

static struct gpunvme_sqe abort_of(uint16_t sqid, uint16_t cid)
{
    return (struct gpunvme_sqe){.opc = GPUNVME_ADMIN_ABORT, .cdw10 = sqid | (uint32_t)cid << 16};
}

static void abort_ends_a_delayed_command(void **state)
{
    struct raw r;
    uint16_t cid;

    (void)state;
    raw_open(&r, "sim:size=1M,threads=2,fault=delay=1h:read");
    cid = raw_submit(&r, &r.queue[1],
                     raw_rw(GPUNVME_CMD_READ, 0, 1, raw_bus(&r, raw_alloc(&r, 512)), 0));
    do
        assert_int_equal(raw_admin(&r, abort_of(1, cid)), 0);
    while (r.queue[0].last.dw0 & GPUNVME_ABORT_NOT_ABORTED);
    assert_int_equal(raw_wait(&r, &r.queue[1]), GPUNVME_SC_ABORT_REQUESTED);
    assert_int_equal(r.queue[1].last.cid, cid);
    /* Its identifier is free again. */
    r.queue[1].cid = cid;
    assert_int_equal(raw_do(&r, &r.queue[1], (struct gpunvme_sqe){.nsid = 1}), 0);
    raw_close(&r);
}

static void abort_ends_a_command_held_for_a_shuffle(void **state)
{
    struct raw r;
    uint16_t cid;

    (void)state;
    raw_open(&r, "sim:size=1M,fault=shuffle=100:read");
    cid = raw_submit(&r, &r.queue[1],
                     raw_rw(GPUNVME_CMD_READ, 0, 1, raw_bus(&r, raw_alloc(&r, 512)), 0));
    raw_admin(&r, abort_of(1, cid));
    raw_wait(&r, &r.queue[1]); /* aborted, or let go before: either way it comes once */
    assert_int_equal(r.queue[1].last.cid, cid);
    usleep(20000);
    assert_false(raw_poll(&r, &r.queue[1]));
    raw_close(&r);
}

static void abort_of_an_unknown_command_says_so(void **state)
{
    struct raw r;

    (void)state;
    raw_open(&r, "sim:size=1M");
    assert_int_equal(raw_admin(&r, abort_of(1, 77)), 0);
    assert_int_equal(r.queue[0].last.dw0, GPUNVME_ABORT_NOT_ABORTED);
    assert_int_equal(raw_admin(&r, abort_of(7, 0)), 0);
    assert_int_equal(r.queue[0].last.dw0, GPUNVME_ABORT_NOT_ABORTED);
    assert_int_equal(raw_admin(&r, abort_of(60000, 0)), 0);
    assert_int_equal(r.queue[0].last.dw0, GPUNVME_ABORT_NOT_ABORTED);
    raw_close(&r);
}

static void unknown_opcodes_are_refused(void **state)
{
    struct raw r;

    (void)state;
    raw_open(&r, "sim:size=1M,shadow=0");
    assert_int_equal(raw_admin(&r, (struct gpunvme_sqe){.opc = GPUNVME_ADMIN_FORMAT_NVM}),
                     GPUNVME_SC_INVALID_OPCODE);
    assert_int_equal(raw_admin(&r, (struct gpunvme_sqe){.opc = 0xc0}), GPUNVME_SC_INVALID_OPCODE);
    assert_int_equal(
        raw_admin(&r, (struct gpunvme_sqe){.opc = GPUNVME_ADMIN_DOORBELL_BUFFER_CONFIG}),
        GPUNVME_SC_INVALID_OPCODE);
    assert_int_equal(raw_do(&r, &r.queue[1], (struct gpunvme_sqe){.opc = 0x7f, .nsid = 1}),
                     GPUNVME_SC_INVALID_OPCODE);
    raw_close(&r);
}

static void fused_commands_are_refused(void **state)
{
    struct raw r;

    (void)state;
    raw_open(&r, "sim:size=1M");
    assert_int_equal(
        raw_do(&r, &r.queue[1], (struct gpunvme_sqe){.flags = GPUNVME_FUSE_FIRST, .nsid = 1}),
        GPUNVME_SC_INVALID_FIELD);
    raw_close(&r);
}

static void keep_alive_keeps_alive(void **state)
{
    struct raw r;

    (void)state;
    raw_open(&r, "sim:size=1M");
    assert_int_equal(raw_admin(&r, (struct gpunvme_sqe){.opc = GPUNVME_ADMIN_KEEP_ALIVE}), 0);
    assert_int_equal(raw_admin(&r, (struct gpunvme_sqe){.opc = GPUNVME_ADMIN_SET_FEATURES,
                                                        .cdw10 = GPUNVME_FEAT_KATO,
                                                        .cdw11 = 600000}),
                     0);
    assert_int_equal(raw_admin(&r, (struct gpunvme_sqe){.opc = GPUNVME_ADMIN_KEEP_ALIVE}), 0);
    assert_int_equal(raw_read(&r, GPUNVME_REG_CSTS), RAW_RDY);
    raw_close(&r);
}

static void without_keep_alive_the_controller_fails(void **state)
{
    struct raw r;

    (void)state;
    raw_open(&r, "sim:size=1M");
    assert_int_equal(raw_admin(&r, (struct gpunvme_sqe){.opc = GPUNVME_ADMIN_SET_FEATURES,
                                                        .cdw10 = GPUNVME_FEAT_KATO,
                                                        .cdw11 = 1}),
                     0);
    assert_true(raw_wait_csts(&r, RAW_CFS, RAW_CFS));
    raw_close(&r);
}

static void unmapped_queue_memory_is_refused(void **state)
{
    struct raw r;

    (void)state;
    raw_open(&r, "sim:size=1M");
    assert_int_equal(raw_create_cq(&r, 2, 16, 0x1000), GPUNVME_SC_DATA_TRANSFER_ERROR);
    assert_int_equal(raw_create_sq(&r, 2, 1, 4096, RAW_BUS + RAW_NBYTES - 4096),
                     GPUNVME_SC_DATA_TRANSFER_ERROR);
    assert_int_equal(raw_create_cq(&r, 2, 4096, UINT64_MAX - 4095), GPUNVME_SC_DATA_TRANSFER_ERROR);
    raw_close_violated(&r, GPUNVME_SIM_VIOLATION_DMA_UNMAPPED);
}

static void misaligned_queue_memory_is_refused(void **state)
{
    struct raw r;

    (void)state;
    raw_open(&r, "sim:size=1M");
    assert_int_equal(raw_create_cq(&r, 2, 16, raw_bus(&r, raw_alloc(&r, 8192)) + 512),
                     GPUNVME_SC_PRP_OFFSET_INVALID);
    raw_close_violated(&r, GPUNVME_SIM_VIOLATION_PRP_OFFSET);
}

static void a_queue_twice_or_missing_is_told(void **state)
{
    struct raw r;
    uint64_t bus;

    (void)state;
    raw_open(&r, "sim:size=1M");
    bus = raw_bus(&r, raw_alloc(&r, 8192));
    assert_int_equal(raw_create_cq(&r, 1, 16, bus), GPUNVME_SC_QID_INVALID);
    assert_int_equal(raw_create_sq(&r, 1, 1, 16, bus), GPUNVME_SC_QID_INVALID);
    assert_int_equal(raw_create_sq(&r, 2, 2, 16, bus), GPUNVME_SC_CQ_INVALID);
    assert_int_equal(raw_delete_cq(&r, 1), GPUNVME_SC_INVALID_QUEUE_DELETION);
    assert_int_equal(raw_delete_sq(&r, 2), GPUNVME_SC_QID_INVALID);
    assert_int_equal(raw_delete_cq(&r, 2), GPUNVME_SC_QID_INVALID);
    assert_int_equal(raw_admin(&r, (struct gpunvme_sqe){.opc = GPUNVME_ADMIN_SET_FEATURES,
                                                        .cdw10 = GPUNVME_FEAT_NUM_QUEUES,
                                                        .cdw11 = 0x00040002}),
                     GPUNVME_SC_CMD_SEQUENCE);
    assert_int_equal(raw_report(&r).violations[GPUNVME_SIM_VIOLATION_QUEUE_ORDER], 7);
    raw_close_violated(&r, GPUNVME_SIM_VIOLATION_QUEUE_ORDER);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_shared_completion_queue_serves_both),
        cmocka_unit_test(queue_identifiers_are_checked),
        cmocka_unit_test(queue_sizes_are_checked),
        cmocka_unit_test(queues_must_be_contiguous),
        cmocka_unit_test(interrupt_vectors_are_checked),
        cmocka_unit_test(queues_are_limited_to_what_was_granted),
        cmocka_unit_test(all_queues_can_be_created),
        cmocka_unit_test(memory_of_a_deleted_queue_is_not_touched),
        cmocka_unit_test(deleting_a_queue_aborts_what_is_in_flight),
        cmocka_unit_test(a_deleted_queue_can_be_created_again),
        cmocka_unit_test(abort_ends_a_delayed_command),
        cmocka_unit_test(abort_ends_a_command_held_for_a_shuffle),
        cmocka_unit_test(abort_of_an_unknown_command_says_so),
        cmocka_unit_test(unknown_opcodes_are_refused),
        cmocka_unit_test(fused_commands_are_refused),
        cmocka_unit_test(keep_alive_keeps_alive),
        cmocka_unit_test(without_keep_alive_the_controller_fails),
        cmocka_unit_test(unmapped_queue_memory_is_refused),
        cmocka_unit_test(misaligned_queue_memory_is_refused),
        cmocka_unit_test(a_queue_twice_or_missing_is_told),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
