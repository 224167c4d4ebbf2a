/* SPDX-License-Identifier: BSD-3-Clause
 *
 * QEMU's controller, found in any state, comes up; closed, it is left in a good one.
 */
#include "qemu/qtest/rig.h"

#define MIB (UINT64_C(1) << 20)

static void a_fresh_controller_comes_up(void **state)
{
    struct rig *r = *state;

    rig_start_disk(r, 8 * MIB, "");
    assert_int_equal(rig_reg(r, GPUNVME_REG_CC), 0);
    rig_open(r);
    rig_check_io(r, 0, MIB);
    rig_close(r);
}

/* Gives the controller an admin queue of 4 entries at 2 MiB and these bits of CC. */
static void enable_by_hand(struct rig *r, uint32_t cc)
{
    struct gpunvme_transport *t = r->transport;

    assert_ok(t->ops->write32(t, GPUNVME_REG_AQA, 3 << 16 | 3));
    assert_ok(t->ops->write64(t, GPUNVME_REG_ASQ, 2 * MIB));
    assert_ok(t->ops->write64(t, GPUNVME_REG_ACQ, 2 * MIB + 4096));
    assert_ok(t->ops->write32(t, GPUNVME_REG_CC, cc));
}

static const uint32_t cc_enabled =
    GPUNVME_SET(1, CC_EN) | GPUNVME_SET(6, CC_IOSQES) | GPUNVME_SET(4, CC_IOCQES);

static void a_controller_that_firmware_left_enabled_comes_up(void **state)
{
    struct rig *r = *state;

    rig_start_disk(r, 8 * MIB, "");
    enable_by_hand(r, cc_enabled);
    assert_true(GPUNVME_GET(rig_reg(r, GPUNVME_REG_CSTS), CSTS_RDY));
    rig_open(r);
    rig_check_io(r, 0, MIB);
    rig_close(r);
}

static void a_controller_that_failed_comes_up(void **state)
{
    struct rig *r = *state;

    rig_start_disk(r, 8 * MIB, "");
    enable_by_hand(r, cc_enabled | GPUNVME_SET(15, CC_MPS)); /* beyond CAP.MPSMAX */
    assert_true(GPUNVME_GET(rig_reg(r, GPUNVME_REG_CSTS), CSTS_CFS));
    rig_open(r);
    rig_check_io(r, 0, MIB);
    rig_close(r);
}

static void a_controller_that_was_shut_down_comes_up(void **state)
{
    struct rig *r = *state;

    rig_start_disk(r, 8 * MIB, "");
    enable_by_hand(r, cc_enabled);
    enable_by_hand(r, cc_enabled | GPUNVME_SET(GPUNVME_CC_SHN_NORMAL, CC_SHN));
    assert_int_equal(GPUNVME_GET(rig_reg(r, GPUNVME_REG_CSTS), CSTS_SHST),
                     GPUNVME_CSTS_SHST_COMPLETE);
    rig_open(r);
    rig_check_io(r, 0, MIB);
    rig_close(r);
}

static void a_controller_left_with_queues_comes_up(void **state)
{
    struct rig *r = *state;

    rig_start_disk(r, 8 * MIB, "");
    rig_open(r);
    rig_check_io(r, 0, 4096);
    rig_abandon(r);
    rig_reconnect(r);
    assert_true(GPUNVME_GET(rig_reg(r, GPUNVME_REG_CC), CC_EN));
    rig_open(r);
    rig_check_io(r, 0, MIB);
    rig_close(r);
}

static void a_controller_left_in_the_middle_of_commands_comes_up(void **state)
{
    struct rig *r = *state;
    struct gpunvme_token token;

    rig_start(r, "-blockdev driver=null-co,node-name=d,size=8388608,latency-ns=200000000"
                 " -device nvme,id=nvme0,serial=1,drive=d");
    rig_open(r);
    for (unsigned i = 0; i < 8; i++)
        assert_ok(gpunvme_submit_read(r->ioq, r->ns, i, 1, &r->buf, i * 512, &token));
    rig_abandon(r);
    rig_reconnect(r);
    rig_open(r);
    assert_ok(gpunvme_read(r->ioq, r->ns, 0, 4096, &r->buf, 0));
    rig_close(r);
}

static void a_controller_can_be_opened_ten_times(void **state)
{
    struct rig *r = *state;

    rig_start_disk(r, 8 * MIB, "");
    for (unsigned i = 0; i < 10; i++) {
        if (i)
            rig_reconnect(r);
        rig_open(r);
        rig_check_io(r, i * 70000, 65536);
        rig_close(r);
    }
}

static void bytes_survive_a_close_and_an_open(void **state)
{
    struct rig *r = *state;
    uint8_t expected[4096];

    rig_start_disk(r, 8 * MIB, "");
    rig_open(r);
    rig_fill(expected, sizeof(expected), 9);
    memcpy(r->buf.cpu, expected, sizeof(expected));
    assert_ok(gpunvme_write(r->ioq, r->ns, 12345, sizeof(expected), &r->buf, 0, 0));
    rig_close(r);
    rig_reconnect(r);
    rig_open(r);
    assert_ok(gpunvme_read(r->ioq, r->ns, 12345, sizeof(expected), &r->buf, 0));
    assert_memory_equal(r->buf.cpu, expected, sizeof(expected));
    rig_close(r);
}

static void a_closed_controller_is_disabled(void **state)
{
    struct rig *r = *state;

    rig_start_disk(r, 8 * MIB, "");
    rig_open(r);
    rig_close(r);
    rig_reconnect(r);
    assert_false(GPUNVME_GET(rig_reg(r, GPUNVME_REG_CC), CC_EN));
    assert_false(GPUNVME_GET(rig_reg(r, GPUNVME_REG_CSTS), CSTS_RDY));
}

static void the_nvm_command_set_alone_is_chosen(void **state)
{
    struct rig *r = *state;
    struct gpunvme_ctrl_info info;

    rig_start_disk(r, 8 * MIB, "");
    rig_open(r);
    gpunvme_ctrl_get_info(r->ctrl, &info);
    assert_true(GPUNVME_GET(info.cap, CAP_CSS) & 1);
    assert_int_equal(GPUNVME_GET(rig_reg(r, GPUNVME_REG_CC), CC_CSS), GPUNVME_CC_CSS_NVM);
    rig_close(r);
}

static void an_admin_queue_of_4096_entries_works(void **state)
{
    struct rig *r = *state;

    rig_start_disk(r, 8 * MIB, "");
    r->opts.admin_entries = 4096;
    rig_open(r);
    rig_check_io(r, 0, MIB);
    rig_close(r);
}

static void an_admin_queue_of_8_entries_goes_round(void **state)
{
    struct rig *r = *state;
    uint32_t value;

    rig_start_disk(r, 8 * MIB, "");
    r->opts.admin_entries = 8;
    rig_open(r);
    for (unsigned i = 0; i < 100; i++)
        assert_ok(gpunvme_ctrl_get_feature(r->ctrl, GPUNVME_FEAT_TEMP_THRESHOLD, 0, &value));
    rig_close(r);
}

static void no_more_queues_are_made_than_the_controller_has(void **state)
{
    struct rig *r = *state;
    struct gpunvme_ctrl_info info;
    struct gpunvme_ioq *more;

    rig_start_disk(r, 8 * MIB, ",max_ioqpairs=2");
    rig_open(r);
    gpunvme_ctrl_get_info(r->ctrl, &info);
    assert_int_equal(info.max_io_queues, 2);
    assert_ok(gpunvme_ioq_create(r->ctrl, 64, &more));
    assert_err(gpunvme_ioq_create(r->ctrl, 64, &more), GPUNVME_ERR_LIMIT);
    rig_check_io(r, 0, MIB);
    rig_close(r);
}

static void no_more_queues_are_made_than_were_asked_for(void **state)
{
    struct rig *r = *state;
    struct gpunvme_ctrl_info info;

    rig_start_disk(r, 8 * MIB, ",max_ioqpairs=64"); /* QEMU grants 64 to everybody */
    r->opts.io_queues = 3;
    rig_open(r);
    gpunvme_ctrl_get_info(r->ctrl, &info);
    assert_int_equal(info.max_io_queues, 3);
    rig_close(r);
}

static void the_longest_queue_works_and_a_longer_one_is_refused(void **state)
{
    struct rig *r = *state;
    struct gpunvme_ctrl_info info;
    struct gpunvme_ioq *other;

    rig_start_disk(r, 8 * MIB, "");
    rig_open(r);
    gpunvme_ctrl_get_info(r->ctrl, &info);
    assert_int_equal(info.max_entries, GPUNVME_GET(info.cap, CAP_MQES) + 1);
    assert_err(gpunvme_ioq_create(r->ctrl, 2 * info.max_entries, &other), GPUNVME_ERR_LIMIT);
    assert_ok(gpunvme_ioq_delete(r->ioq));
    assert_ok(gpunvme_ioq_create(r->ctrl, info.max_entries, &r->ioq));
    rig_check_io(r, 0, MIB);
    rig_close(r);
}

static void a_queue_of_two_entries_works(void **state)
{
    struct rig *r = *state;

    rig_start_disk(r, 8 * MIB, "");
    rig_open(r);
    assert_ok(gpunvme_ioq_delete(r->ioq));
    assert_ok(gpunvme_ioq_create(r->ctrl, 2, &r->ioq));
    rig_check_io(r, 100, 3 * MIB);
    rig_close(r);
}

static void queues_can_be_deleted_and_made_again(void **state)
{
    struct rig *r = *state;

    rig_start_disk(r, 8 * MIB, "");
    rig_open(r);
    for (unsigned i = 0; i < 20; i++) {
        rig_check_io(r, i * 4096, 40000); /* leaves doorbells and shadows somewhere */
        assert_ok(gpunvme_ioq_delete(r->ioq));
        assert_ok(gpunvme_ioq_create(r->ctrl, 2u << i % 8, &r->ioq));
    }
    rig_close(r);
}

static const struct CMUnitTest tests[] = {
    rig_test(a_fresh_controller_comes_up),
    rig_test(a_controller_that_firmware_left_enabled_comes_up),
    rig_test(a_controller_that_failed_comes_up),
    rig_test(a_controller_that_was_shut_down_comes_up),
    rig_test(a_controller_left_with_queues_comes_up),
    rig_test(a_controller_left_in_the_middle_of_commands_comes_up),
    rig_test(a_controller_can_be_opened_ten_times),
    rig_test(bytes_survive_a_close_and_an_open),
    rig_test(a_closed_controller_is_disabled),
    rig_test(the_nvm_command_set_alone_is_chosen),
    rig_test(an_admin_queue_of_4096_entries_works),
    rig_test(an_admin_queue_of_8_entries_goes_round),
    rig_test(no_more_queues_are_made_than_the_controller_has),
    rig_test(no_more_queues_are_made_than_were_asked_for),
    rig_test(the_longest_queue_works_and_a_longer_one_is_refused),
    rig_test(a_queue_of_two_entries_works),
    rig_test(queues_can_be_deleted_and_made_again),
};

RIG_MAIN(tests)
