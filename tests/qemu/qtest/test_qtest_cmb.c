/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Submission queues in the memory buffer of QEMU's controller.
 */
#include "qemu/qtest/rig.h"

#define MIB (UINT64_C(1) << 20)

/* This transport carries what is stored to the buffer along with a doorbell: there must be one. */
static void demand_cmb(struct rig *r)
{
    r->opts.cmb = true;
    r->opts.no_shadow_doorbells = true;
}

static void queues_in_the_memory_buffer_work(void **state)
{
    struct rig *r = *state;
    struct gpunvme_ctrl_info info;
    uint64_t before;

    rig_start_disk(r, 8 * MIB, ",cmb_size_mb=1");
    demand_cmb(r);
    rig_open(r);
    gpunvme_ctrl_get_info(r->ctrl, &info);
    assert_true(info.cmb_in_use);
    assert_int_equal(info.cmb_nbytes, MIB);
    before = qtest_transport_counts(r->transport).cmb_nbytes;
    for (unsigned i = 0; i < 20; i++) /* goes round several times */
        rig_check_io(r, i * 5000, 300000);
    assert_true(qtest_transport_counts(r->transport).cmb_nbytes >= before + 64 * 64);
    rig_close(r);
}

static void queues_in_the_memory_buffer_survive_a_reset(void **state)
{
    struct rig *r = *state;

    rig_start_disk(r, 8 * MIB, ",cmb_size_mb=1");
    demand_cmb(r);
    rig_open(r);
    rig_check_io(r, 0, MIB);
    assert_ok(gpunvme_ctrl_reset(r->ctrl));
    rig_check_io(r, 4096, MIB);
    rig_close(r);
}

static void several_queues_share_the_memory_buffer(void **state)
{
    struct rig *r = *state;
    struct gpunvme_ioq *ioqs[8];

    rig_start_disk(r, 8 * MIB, ",cmb_size_mb=1");
    demand_cmb(r);
    rig_open(r);
    for (unsigned i = 0; i < 8; i++)
        assert_ok(gpunvme_ioq_create(r->ctrl, 16u << i % 3, &ioqs[i]));
    assert_ok(gpunvme_ioq_delete(ioqs[3])); /* a gap that the next one fits into */
    assert_ok(gpunvme_ioq_create(r->ctrl, 16, &ioqs[3]));
    for (unsigned turn = 0; turn < 24; turn++) {
        r->ioq = ioqs[turn % 8];
        rig_check_io(r, turn * 1000, 100000);
    }
    rig_close(r);
}

static void a_full_memory_buffer_is_told(void **state)
{
    struct rig *r = *state;
    struct gpunvme_ioq *ioqs[8];
    unsigned n = 0;
    gpunvme_err_t err;

    rig_start_disk(r, 8 * MIB, ",cmb_size_mb=1");
    demand_cmb(r);
    rig_open(r);
    assert_ok(gpunvme_ioq_delete(r->ioq));
    while (!(err = gpunvme_ioq_create(r->ctrl, 2048, &ioqs[n])))
        n++;
    assert_err(err, GPUNVME_ERR_LIMIT);
    assert_int_equal(n, 8); /* of 128 KiB each */
    assert_ok(gpunvme_ioq_delete(ioqs[5]));
    assert_ok(gpunvme_ioq_create(r->ctrl, 2048, &r->ioq));
    rig_check_io(r, 0, MIB);
    rig_close(r);
}

static void a_controller_without_memory_buffer_is_refused_where_it_is_demanded(void **state)
{
    struct rig *r = *state;
    struct gpunvme_ctrl *ctrl;

    rig_start_disk(r, 8 * MIB, "");
    r->opts.cmb = true;
    assert_err(gpunvme_ctrl_open(r->transport, &r->opts, &ctrl), GPUNVME_ERR_UNSUPPORTED);
    r->opts.cmb = false;
    rig_open(r);
    rig_check_io(r, 0, MIB);
    rig_close(r);
}

static void a_memory_buffer_that_is_not_asked_for_is_not_used(void **state)
{
    struct rig *r = *state;
    struct gpunvme_ctrl_info info;

    rig_start_disk(r, 8 * MIB, ",cmb_size_mb=2");
    rig_open(r);
    rig_check_io(r, 0, MIB);
    gpunvme_ctrl_get_info(r->ctrl, &info);
    assert_int_equal(info.cmb_nbytes, 2 * MIB);
    assert_false(info.cmb_in_use);
    assert_int_equal(qtest_transport_counts(r->transport).cmb_nbytes, 0);
    rig_close(r);
}

static const struct CMUnitTest tests[] = {
    rig_test(queues_in_the_memory_buffer_work),
    rig_test(queues_in_the_memory_buffer_survive_a_reset),
    rig_test(several_queues_share_the_memory_buffer),
    rig_test(a_full_memory_buffer_is_told),
    rig_test(a_controller_without_memory_buffer_is_refused_where_it_is_demanded),
    rig_test(a_memory_buffer_that_is_not_asked_for_is_not_used),
};

RIG_MAIN(tests)
