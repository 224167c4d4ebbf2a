/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Asynchronous events, interrupts and shadow doorbells of QEMU's controller.
 */
#include "nvme/ctrl.h"
#include "qemu/qtest/rig.h"

#define MIB (UINT64_C(1) << 20)

/* The next event; it may take QEMU a moment. */
static gpunvme_err_t next_event(struct rig *r, struct gpunvme_event *event)
{
    gpunvme_err_t err;

    for (unsigned i = 0; i < 5000; i++) {
        err = gpunvme_ctrl_next_event(r->ctrl, event);
        if (err != GPUNVME_ERR_AGAIN)
            return err;
        r->transport->ops->pause_ns(r->transport, 1000000);
    }
    return err;
}

static void a_health_warning_arrives_as_an_event(void **state)
{
    struct rig *r = *state;
    struct gpunvme_event event = {0};

    rig_start_disk(r, 8 * MIB, "");
    rig_open(r);
    assert_err(gpunvme_ctrl_next_event(r->ctrl, &event), GPUNVME_ERR_AGAIN);
    qmp_set_property(&r->qmp, "nvme0", "smart_critical_warning", 4);
    assert_ok(next_event(r, &event));
    assert_int_equal(event.type, GPUNVME_AER_TYPE_SMART);
    assert_int_equal(event.info, GPUNVME_AER_SMART_RELIABILITY);
    assert_int_equal(event.log_page, GPUNVME_LOG_SMART);
    rig_check_io(r, 0, MIB);
    rig_close(r);
}

/* The library has read the log page, so that the next warning comes too. */
static void events_come_again_and_again(void **state)
{
    struct rig *r = *state;
    struct gpunvme_event event;

    rig_start_disk(r, 8 * MIB, "");
    rig_open(r);
    for (unsigned i = 0; i < 8; i++) {
        qmp_set_property(&r->qmp, "nvme0", "smart_critical_warning", 1);
        assert_ok(next_event(r, &event));
        assert_int_equal(event.type, GPUNVME_AER_TYPE_SMART);
        qmp_set_property(&r->qmp, "nvme0", "smart_critical_warning", 0);
    }
    rig_close(r);
}

static void events_arrive_after_a_reset(void **state)
{
    struct rig *r = *state;
    struct gpunvme_event event;

    rig_start_disk(r, 8 * MIB, "");
    rig_open(r);
    assert_ok(gpunvme_ctrl_reset(r->ctrl));
    qmp_set_property(&r->qmp, "nvme0", "smart_critical_warning", 4);
    assert_ok(next_event(r, &event));
    assert_int_equal(event.type, GPUNVME_AER_TYPE_SMART);
    rig_close(r);
}

static void waits_sleep_until_the_interrupt(void **state)
{
    struct rig *r = *state;
    struct gpunvme_ctrl_info info;

    rig_start(r, "-blockdev driver=null-co,node-name=d,size=8388608,latency-ns=2000000"
                 " -device nvme,id=nvme0,serial=1,drive=d");
    r->opts.interrupts = true;
    rig_open(r);
    gpunvme_ctrl_get_info(r->ctrl, &info);
    assert_int_equal(info.vectors, 17);
    for (unsigned i = 0; i < 50; i++)
        assert_ok(gpunvme_read(r->ioq, r->ns, i * 4096, 4096, &r->buf, 0));
    assert_true(qtest_transport_counts(r->transport).interrupts > 0);
    rig_close(r);
}

static void io_with_interrupts_is_right(void **state)
{
    struct rig *r = *state;

    rig_start_disk(r, 8 * MIB, "");
    r->opts.interrupts = true;
    rig_open(r);
    for (unsigned i = 0; i < 30; i++)
        rig_check_io(r, i * 777, 200000);
    assert_ok(gpunvme_ctrl_reset(r->ctrl));
    rig_check_io(r, 0, MIB);
    rig_close(r);
}

static void queues_share_the_vectors_that_there_are(void **state)
{
    struct rig *r = *state;
    struct gpunvme_ctrl_info info;
    struct gpunvme_ioq *ioqs[5];

    rig_start_disk(r, 8 * MIB, ",msix_qsize=3");
    r->opts.interrupts = true;
    rig_open(r);
    gpunvme_ctrl_get_info(r->ctrl, &info);
    assert_int_equal(info.vectors, 3);
    for (unsigned i = 0; i < 5; i++)
        assert_ok(gpunvme_ioq_create(r->ctrl, 32, &ioqs[i]));
    for (unsigned i = 0; i < 20; i++) {
        r->ioq = ioqs[i % 5];
        rig_check_io(r, i * 1000, 100000);
    }
    rig_close(r);
}

/* Commands enough to go round the queue many times; returns the doorbell registers written. */
static uint64_t doorbells_of_reads(struct rig *r, unsigned reads)
{
    uint64_t before = qtest_transport_counts(r->transport).doorbells;
    struct gpunvme_token tokens[32];

    for (unsigned i = 0; i < reads; i += 32) {
        for (unsigned j = 0; j < 32; j++)
            assert_ok(gpunvme_submit_read(r->ioq, r->ns, j, 1, &r->buf, j * 512, &tokens[j]));
        for (unsigned j = 0; j < 32; j++)
            assert_ok(gpunvme_token_wait(&tokens[j], 0));
    }
    return qtest_transport_counts(r->transport).doorbells - before;
}

static void shadow_doorbells_save_register_writes(void **state)
{
    struct rig *r = *state;
    struct gpunvme_ctrl_info info;

    rig_start_disk(r, 8 * MIB, "");
    rig_open(r);
    gpunvme_ctrl_get_info(r->ctrl, &info);
    assert_true(info.shadow_doorbells);
    assert_true(doorbells_of_reads(r, 3200) < 3200);
    rig_close(r);
}

static void without_shadow_doorbells_each_submission_rings(void **state)
{
    struct rig *r = *state;

    rig_start_disk(r, 8 * MIB, "");
    r->opts.no_shadow_doorbells = true;
    rig_open(r);
    assert_true(doorbells_of_reads(r, 640) > 640); /* one each, and those of the completions */
    rig_close(r);
}

static void shadows_hold_what_the_doorbells_would(void **state)
{
    struct rig *r = *state;
    const uint32_t *shadow;
    struct gpunvme_qpair *q;

    rig_start_disk(r, 8 * MIB, "");
    rig_open(r);
    for (unsigned reset = 0; reset < 2; reset++) {
        doorbells_of_reads(r, 64 * 5 + 32);
        q = gpunvme_ioq_qpair(r->ioq);
        shadow = r->ctrl->shadow.cpu;
        assert_int_equal(shadow[2], q->published & q->mask); /* queue 1: words 2 and 3 */
        assert_int_equal(shadow[3], q->cq_head & q->mask);
        assert_int_not_equal(shadow[2], 0);
        assert_ok(gpunvme_ctrl_reset(r->ctrl));
    }
    rig_close(r);
}

static const struct CMUnitTest tests[] = {
    rig_test(a_health_warning_arrives_as_an_event),
    rig_test(events_come_again_and_again),
    rig_test(events_arrive_after_a_reset),
    rig_test(waits_sleep_until_the_interrupt),
    rig_test(io_with_interrupts_is_right),
    rig_test(queues_share_the_vectors_that_there_are),
    rig_test(shadow_doorbells_save_register_writes),
    rig_test(without_shadow_doorbells_each_submission_rings),
    rig_test(shadows_hold_what_the_doorbells_would),
};

RIG_MAIN(tests)
