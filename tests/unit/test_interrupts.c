/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Waits that sleep until the controller interrupts, on the mock transport.
 */
#include "mock_test.h"

static struct {
    uint32_t asked, grants, waits[16];
    gpunvme_err_t fail;
} irq;

static gpunvme_err_t irq_setup(struct gpunvme_transport *t, uint32_t wanted, uint32_t *granted)
{
    (void)t;
    irq.asked = wanted;
    *granted = irq.grants;
    return irq.fail;
}

/* Interrupts that come a tenth of a millisecond after they are waited for. */
static gpunvme_err_t irq_wait(struct gpunvme_transport *t, uint32_t vector, uint64_t *seen,
                              uint64_t timeout_ns)
{
    irq.waits[vector]++;
    assert_true(timeout_ns);
    t->ops->pause_ns(t, 100000);
    ++*seen;
    return GPUNVME_OK;
}

static struct mock *mock_with(uint32_t grants)
{
    struct mock *m = mock_open();

    memset(&irq, 0, sizeof(irq));
    irq.grants = grants;
    m->ops.irq_setup = irq_setup;
    m->ops.irq_wait = irq_wait;
    return m;
}

static struct gpunvme_ctrl *bring_up_interrupting(struct mock *m)
{
    struct gpunvme_ctrl_opts opts;

    gpunvme_ctrl_opts_init(&opts);
    opts.interrupts = true;
    opts.io_queues = 4;
    return bring_up_with(m, &opts);
}

static void create_queues(struct gpunvme_ctrl *ctrl, struct gpunvme_ioq **ioqs, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        assert_ok(gpunvme_ioq_create(ctrl, 16, &ioqs[i]));
}

static void a_vector_is_asked_for_each_queue(void **state)
{
    struct mock *m = mock_with(5);
    struct gpunvme_ctrl *ctrl = bring_up_interrupting(m);
    struct gpunvme_ctrl_info info;

    (void)state;
    assert_int_equal(irq.asked, 5); /* 4 and the admin queue's */
    gpunvme_ctrl_get_info(ctrl, &info);
    assert_int_equal(info.vectors, 5);
    assert_ok(gpunvme_ctrl_close(ctrl));
    mock_done(m);
}

static void io_queues_interrupt_on_vectors_of_their_own(void **state)
{
    struct mock *m = mock_with(5);
    struct gpunvme_ctrl *ctrl = bring_up_interrupting(m);
    struct gpunvme_ioq *ioqs[4];

    (void)state;
    create_queues(ctrl, ioqs, 4);
    for (unsigned qid = 1; qid <= 4; qid++) {
        assert_int_equal(m->cq[qid].vector, qid);
        assert_int_equal(m->cq[qid].flags, GPUNVME_QUEUE_PC | GPUNVME_CQ_IEN);
    }
    assert_ok(gpunvme_ctrl_close(ctrl));
    mock_done(m);
}

static void queues_share_the_vectors_that_there_are(void **state)
{
    struct mock *m = mock_with(3);
    struct gpunvme_ctrl *ctrl = bring_up_interrupting(m);
    struct gpunvme_ioq *ioqs[4];
    const unsigned expected[] = {1, 2, 1, 2};

    (void)state;
    create_queues(ctrl, ioqs, 4);
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(m->cq[i + 1].vector, expected[i]);
    assert_ok(gpunvme_ctrl_close(ctrl));
    mock_done(m);
}

static void all_queues_share_a_single_vector(void **state)
{
    struct mock *m = mock_with(1);
    struct gpunvme_ctrl *ctrl = bring_up_interrupting(m);
    struct gpunvme_ioq *ioqs[2];

    (void)state;
    create_queues(ctrl, ioqs, 2);
    assert_int_equal(m->cq[1].vector, 0);
    assert_int_equal(m->cq[2].vector, 0);
    assert_int_equal(m->cq[2].flags, GPUNVME_QUEUE_PC | GPUNVME_CQ_IEN);
    assert_ok(gpunvme_ctrl_close(ctrl));
    mock_done(m);
}

static void a_wait_for_a_slow_command_sleeps_on_its_queues_vector(void **state)
{
    struct mock *m = mock_with(5);
    struct gpunvme_ctrl *ctrl = bring_up_interrupting(m);
    const struct gpunvme_ns *ns;
    struct gpunvme_token token;
    struct gpunvme_ioq *ioqs[2];
    struct gpunvme_buf buf;

    (void)state;
    create_queues(ctrl, ioqs, 2);
    assert_ok(gpunvme_ctrl_ns(ctrl, 1, &ns));
    assert_ok(gpunvme_ctrl_alloc(ctrl, 4096, GPUNVME_MEM_HOST, &buf));
    m->latency_ns = 2000000;
    memset(irq.waits, 0, sizeof(irq.waits));
    assert_ok(gpunvme_submit_read(ioqs[1], ns, 0, 1, &buf, 0, &token));
    assert_ok(gpunvme_token_wait(&token, 0));
    assert_in_range(irq.waits[2], 1, 100);
    assert_int_equal(irq.waits[0] + irq.waits[1], 0);
    assert_ok(gpunvme_ctrl_close(ctrl));
    mock_done(m);
}

static void without_the_option_nothing_interrupts(void **state)
{
    struct mock *m = mock_with(5);
    struct gpunvme_ctrl *ctrl = bring_up(m);
    struct gpunvme_ctrl_info info;
    struct gpunvme_ioq *ioq;

    (void)state;
    create_queues(ctrl, &ioq, 1);
    assert_int_equal(irq.asked, 0);
    assert_int_equal(m->cq[1].flags, GPUNVME_QUEUE_PC);
    gpunvme_ctrl_get_info(ctrl, &info);
    assert_int_equal(info.vectors, 0);
    assert_ok(gpunvme_ctrl_close(ctrl));
    mock_done(m);
}

static void a_transport_without_interrupts_is_told(void **state)
{
    struct mock *m = mock_open();
    struct gpunvme_ctrl_opts opts;
    struct gpunvme_ctrl *ctrl;

    (void)state;
    gpunvme_ctrl_opts_init(&opts);
    opts.interrupts = true;
    assert_err(gpunvme_ctrl_open(&m->base, &opts, &ctrl), GPUNVME_ERR_UNSUPPORTED);
    assert_detail("no interrupts");
    mock_done(m);
}

static void vectors_that_cannot_be_set_up_are_told(void **state)
{
    struct mock *m = mock_with(1);
    struct gpunvme_ctrl_opts opts;
    struct gpunvme_ctrl *ctrl;

    (void)state;
    irq.fail = GPUNVME_ERR_PERMISSION;
    gpunvme_ctrl_opts_init(&opts);
    opts.interrupts = true;
    assert_err(gpunvme_ctrl_open(&m->base, &opts, &ctrl), GPUNVME_ERR_PERMISSION);
    mock_done(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_vector_is_asked_for_each_queue),
        cmocka_unit_test(io_queues_interrupt_on_vectors_of_their_own),
        cmocka_unit_test(queues_share_the_vectors_that_there_are),
        cmocka_unit_test(all_queues_share_a_single_vector),
        cmocka_unit_test(a_wait_for_a_slow_command_sleeps_on_its_queues_vector),
        cmocka_unit_test(without_the_option_nothing_interrupts),
        cmocka_unit_test(a_transport_without_interrupts_is_told),
        cmocka_unit_test(vectors_that_cannot_be_set_up_are_told),
    };

    return cmocka_run_group_tests_name("interrupts", tests, NULL, NULL);
}
