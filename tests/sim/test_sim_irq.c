/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Interrupts of the software controller: which completions raise which vector, and masks.
 */
#include <stdatomic.h>

#include "sim/raw.h"

static _Atomic unsigned fired[8];

static void count(void *arg, uint16_t vector)
{
    (void)arg;
    atomic_fetch_add(&fired[vector % 8], 1);
}

static void open_counting(struct raw *r)
{
    for (unsigned i = 0; i < 8; i++)
        atomic_store(&fired[i], 0);
    raw_create(r, "sim:size=1M,threads=2");
    gpunvme_sim_set_irq(r->sim, count, NULL);
    raw_enable(r, RAW_CC);
}

/* An I/O queue pair of 16 entries whose completion queue has this in its command dword 11. */
static struct raw_queue *make_queue(struct raw *r, uint16_t qid, uint32_t cdw11)
{
    struct raw_queue *q = raw_queue_init(r, qid, 16);
    struct gpunvme_sqe sqe = {.opc = GPUNVME_ADMIN_CREATE_CQ,
                              .prp1 = raw_bus(r, q->cq),
                              .cdw10 = qid | 15u << 16,
                              .cdw11 = GPUNVME_QUEUE_PC | cdw11};

    assert_int_equal(raw_admin(r, sqe), GPUNVME_SC_SUCCESS);
    assert_int_equal(raw_create_sq(r, qid, qid, 16, raw_bus(r, q->sq)), GPUNVME_SC_SUCCESS);
    return q;
}

static void expect_fired(unsigned vector)
{
    time_t end = 0;

    while (!atomic_load(&fired[vector]))
        assert_false(raw_expired(&end));
}

/* Long enough for an interrupt that would come: passes of the threads are far shorter. */
static void settle(void)
{
    struct timespec pause = {.tv_nsec = 20000000};

    nanosleep(&pause, NULL);
}

static struct gpunvme_sqe flush(void)
{
    return (struct gpunvme_sqe){.opc = GPUNVME_CMD_FLUSH, .nsid = 1};
}

static void an_admin_completion_raises_vector_0(void **state)
{
    struct raw r;

    (void)state;
    open_counting(&r);
    raw_admin(&r, (struct gpunvme_sqe){.opc = GPUNVME_ADMIN_KEEP_ALIVE});
    expect_fired(0);
    raw_close(&r);
}

static void a_completion_raises_the_vector_of_its_queue(void **state)
{
    struct raw r;
    struct raw_queue *q;

    (void)state;
    open_counting(&r);
    q = make_queue(&r, 1, GPUNVME_CQ_IEN | 3u << 16);
    assert_int_equal(raw_do(&r, q, flush()), GPUNVME_SC_SUCCESS);
    expect_fired(3);
    raw_close(&r);
}

static void a_read_in_one_page_raises_the_vector_of_its_queue(void **state)
{
    struct raw r;
    struct raw_queue *q;
    void *data;

    (void)state;
    open_counting(&r);
    q = make_queue(&r, 1, GPUNVME_CQ_IEN | 4u << 16);
    data = raw_alloc(&r, 4096);
    assert_int_equal(raw_do(&r, q, raw_rw(GPUNVME_CMD_READ, 0, 8, raw_bus(&r, data), 0)), 0);
    expect_fired(4);
    raw_close(&r);
}

static void a_queue_without_interrupts_raises_none(void **state)
{
    struct raw r;
    struct raw_queue *q;

    (void)state;
    open_counting(&r);
    q = make_queue(&r, 1, 5u << 16);
    assert_int_equal(raw_do(&r, q, flush()), GPUNVME_SC_SUCCESS);
    settle();
    assert_int_equal(atomic_load(&fired[5]), 0);
    raw_close(&r);
}

static void a_masked_vector_is_silent_until_it_is_unmasked(void **state)
{
    struct raw r;
    struct raw_queue *q;

    (void)state;
    open_counting(&r);
    q = make_queue(&r, 1, GPUNVME_CQ_IEN | 2u << 16);
    raw_write(&r, GPUNVME_REG_INTMS, 1u << 2);
    raw_submit(&r, q, flush());
    raw_wait_phase(q, 0, 1);
    settle();
    assert_int_equal(atomic_load(&fired[2]), 0);
    raw_write(&r, GPUNVME_REG_INTMC, 1u << 2);
    expect_fired(2);
    assert_int_equal(raw_wait(&r, q), GPUNVME_SC_SUCCESS);
    raw_close(&r);
}

static void a_vector_that_the_controller_lacks_is_refused(void **state)
{
    struct raw r;
    struct raw_queue *q;

    (void)state;
    open_counting(&r);
    q = raw_queue_init(&r, 1, 16);
    assert_int_equal(raw_admin(&r, (struct gpunvme_sqe){.opc = GPUNVME_ADMIN_CREATE_CQ,
                                                        .prp1 = raw_bus(&r, q->cq),
                                                        .cdw10 = 1 | 15u << 16,
                                                        .cdw11 = GPUNVME_QUEUE_PC | GPUNVME_CQ_IEN |
                                                                 129u << 16}),
                     GPUNVME_SC_INVALID_VECTOR);
    raw_close(&r);
}

static void nobody_is_told_any_more_once_the_callback_is_gone(void **state)
{
    struct raw r;
    unsigned before;

    (void)state;
    open_counting(&r);
    gpunvme_sim_set_irq(r.sim, NULL, NULL);
    before = atomic_load(&fired[0]);
    raw_admin(&r, (struct gpunvme_sqe){.opc = GPUNVME_ADMIN_KEEP_ALIVE});
    settle();
    assert_int_equal(atomic_load(&fired[0]), before);
    raw_close(&r);
}

static void a_queue_may_be_deleted_with_its_interrupt_on_the_way(void **state)
{
    struct raw r;

    (void)state;
    open_counting(&r);
    for (unsigned i = 0; i < 50; i++) {
        struct raw_queue *q = make_queue(&r, 1, GPUNVME_CQ_IEN | 1u << 16);

        raw_submit(&r, q, flush());
        assert_int_equal(raw_delete_sq(&r, 1), GPUNVME_SC_SUCCESS);
        assert_int_equal(raw_delete_cq(&r, 1), GPUNVME_SC_SUCCESS);
    }
    raw_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_admin_completion_raises_vector_0),
        cmocka_unit_test(a_completion_raises_the_vector_of_its_queue),
        cmocka_unit_test(a_read_in_one_page_raises_the_vector_of_its_queue),
        cmocka_unit_test(a_queue_without_interrupts_raises_none),
        cmocka_unit_test(a_masked_vector_is_silent_until_it_is_unmasked),
        cmocka_unit_test(a_vector_that_the_controller_lacks_is_refused),
        cmocka_unit_test(nobody_is_told_any_more_once_the_callback_is_gone),
        cmocka_unit_test(a_queue_may_be_deleted_with_its_interrupt_on_the_way),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
