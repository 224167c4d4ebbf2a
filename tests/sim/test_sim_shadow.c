/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Shadow doorbells: the driver writes its tail and head to memory, and the real doorbell only
 * when that passes the event index.
 */
#include "sim/raw.h"

struct shadow {
    struct raw r;
    uint32_t *shadow, *eventidx;
    unsigned rings;
};

static uint16_t configure(struct shadow *s)
{
    if (!s->shadow)
        s->shadow = raw_alloc(&s->r, 4096);
    s->eventidx = raw_alloc(&s->r, 4096);
    return raw_admin(&s->r, (struct gpunvme_sqe){.opc = GPUNVME_ADMIN_DOORBELL_BUFFER_CONFIG,
                                                 .prp1 = raw_bus(&s->r, s->shadow),
                                                 .prp2 = raw_bus(&s->r, s->eventidx)});
}

static void shadow_open(struct shadow *s, const char *uri)
{
    memset(s, 0, sizeof(*s));
    raw_create(&s->r, uri);
    raw_enable(&s->r, RAW_CC);
    assert_int_equal(configure(s), 0);
    raw_io_queue(&s->r, 1, 16);
}

/* Stores a new index; rings where the specification asks for it. */
static void update(struct shadow *s, unsigned at, volatile uint32_t *doorbell, uint32_t value)
{
    uint16_t old = (uint16_t)s->shadow[at], event;

    __atomic_store_n(&s->shadow[at], value, __ATOMIC_SEQ_CST);
    event = (uint16_t)__atomic_load_n(&s->eventidx[at], __ATOMIC_SEQ_CST);
    if ((uint16_t)(value - event - 1) < (uint16_t)(value - old)) {
        s->rings++;
        raw_ring(doorbell, value);
    }
}

/* A completion, its head told by the shadow. */
static uint16_t shadow_wait(struct shadow *s, struct raw_queue *q)
{
    time_t end = 0;

    for (unsigned spins = 0; raw_phase(q, q->head) != q->phase; spins++)
        if (spins > 10000 && raw_expired(&end))
            return RAW_LATE;
    q->last = q->cq[q->head];
    if (++q->head == q->size) {
        q->head = 0;
        q->phase ^= 1;
    }
    update(s, 2u * q->qid + 1, raw_cq_doorbell(&s->r, q->qid), q->head);
    return q->last.status >> 1;
}

static void commands_arrive_by_the_shadow(void **state)
{
    struct shadow s;
    struct raw_queue *q;
    unsigned submitted = 0, done = 0;

    (void)state;
    shadow_open(&s, "sim:size=1M");
    q = &s.r.queue[1];
    while (done < 3000) {
        unsigned batch = submitted % 7 + 1;

        for (unsigned i = 0; i < batch && submitted - done < 15; i++, submitted++)
            raw_put(q, (struct gpunvme_sqe){.nsid = 1});
        update(&s, 2, raw_sq_doorbell(&s.r, 1), q->tail);
        while (done < submitted) {
            assert_int_equal(shadow_wait(&s, q), 0);
            done++;
        }
    }
    raw_close(&s.r);
}

static void a_sleeping_controller_is_woken(void **state)
{
    struct shadow s;

    (void)state;
    shadow_open(&s, "sim:size=1M");
    for (unsigned i = 0; i < 20; i++) {
        s.rings = 0;
        raw_put(&s.r.queue[1], (struct gpunvme_sqe){.nsid = 1});
        update(&s, 2, raw_sq_doorbell(&s.r, 1), s.r.queue[1].tail);
        assert_int_equal(shadow_wait(&s, &s.r.queue[1]), 0);
        usleep(2000);
    }
    raw_close(&s.r);
}

/* The controller does not look at the shadow until it is called: a forgotten ring shows. */
static void without_the_ring_nothing_comes(void **state)
{
    struct shadow s;

    (void)state;
    shadow_open(&s, "sim:size=1M");
    usleep(20000); /* it sleeps now */
    raw_put(&s.r.queue[1], (struct gpunvme_sqe){.nsid = 1});
    __atomic_store_n(&s.shadow[2], s.r.queue[1].tail, __ATOMIC_SEQ_CST);
    usleep(20000);
    assert_int_equal(raw_phase(&s.r.queue[1], 0), 0);
    raw_ring(raw_sq_doorbell(&s.r, 1), s.r.queue[1].tail);
    assert_int_equal(shadow_wait(&s, &s.r.queue[1]), 0);
    raw_close(&s.r);
}

/* A doorbell may be rung with the value that it had: the ring is seen all the same. */
static void a_ring_of_the_same_value_wakes(void **state)
{
    struct shadow s;

    (void)state;
    shadow_open(&s, "sim:size=1M");
    for (unsigned i = 0; i < 3 * 16; i++) {
        usleep(1000);
        raw_put(&s.r.queue[1], (struct gpunvme_sqe){.nsid = 1});
        __atomic_store_n(&s.shadow[2], s.r.queue[1].tail, __ATOMIC_SEQ_CST);
        raw_ring(raw_sq_doorbell(&s.r, 1), 3);
        assert_int_equal(shadow_wait(&s, &s.r.queue[1]), 0);
    }
    raw_close(&s.r);
}

static void queues_made_before_get_shadows_too(void **state)
{
    struct shadow s = {0};

    (void)state;
    raw_open(&s.r, "sim:size=1M");
    for (unsigned i = 0; i < 5; i++)
        assert_int_equal(raw_do(&s.r, &s.r.queue[1], (struct gpunvme_sqe){.nsid = 1}), 0);
    s.shadow = raw_alloc(&s.r, 4096);
    s.shadow[2] = s.shadow[3] = 5;
    assert_int_equal(configure(&s), 0);
    for (unsigned i = 0; i < 100; i++) {
        raw_put(&s.r.queue[1], (struct gpunvme_sqe){.nsid = 1});
        update(&s, 2, raw_sq_doorbell(&s.r, 1), s.r.queue[1].tail);
        assert_int_equal(shadow_wait(&s, &s.r.queue[1]), 0);
    }
    raw_close(&s.r);
}

static void a_full_completion_queue_is_emptied_by_the_shadow(void **state)
{
    struct shadow s;
    struct raw_queue *q;

    (void)state;
    shadow_open(&s, "sim:size=1M");
    q = raw_queue_init(&s.r, 2, 64);
    q->size = 4;
    assert_int_equal(raw_create_cq(&s.r, 2, 4, raw_bus(&s.r, q->cq)), 0);
    assert_int_equal(raw_create_sq(&s.r, 2, 2, 64, raw_bus(&s.r, q->sq)), 0);
    for (uint16_t i = 0; i < 50; i++)
        q->sq[i] = (struct gpunvme_sqe){.nsid = 1, .cid = i};
    update(&s, 4, raw_sq_doorbell(&s.r, 2), 50);
    for (uint16_t i = 0; i < 50; i++) {
        assert_int_equal(shadow_wait(&s, q), 0);
        assert_int_equal(q->last.cid, i);
    }
    raw_close(&s.r);
}

static void impossible_values_are_told(void **state)
{
    struct shadow s;

    (void)state;
    shadow_open(&s, "sim:size=1M");
    __atomic_store_n(&s.shadow[2], 16, __ATOMIC_SEQ_CST);
    raw_ring(raw_sq_doorbell(&s.r, 1), 1);
    raw_expect(&s.r, GPUNVME_SIM_VIOLATION_SHADOW);
    __atomic_store_n(&s.shadow[3], 3, __ATOMIC_SEQ_CST); /* a head before any completion */
    while (raw_report(&s.r).violations[GPUNVME_SIM_VIOLATION_SHADOW] < 2)
        usleep(1000);
    raw_close_violated(&s.r, GPUNVME_SIM_VIOLATION_SHADOW);
}

static void wrong_pages_are_refused(void **state)
{
    struct gpunvme_sqe sqe = {.opc = GPUNVME_ADMIN_DOORBELL_BUFFER_CONFIG};
    struct raw r;

    (void)state;
    raw_open(&r, "sim:size=1M");
    sqe.prp1 = raw_bus(&r, raw_alloc(&r, 8192));
    assert_int_equal(raw_admin(&r, sqe), GPUNVME_SC_INVALID_FIELD);
    sqe.prp2 = sqe.prp1 + 64;
    assert_int_equal(raw_admin(&r, sqe), GPUNVME_SC_INVALID_FIELD);
    assert_int_equal(raw_report(&r).nviolations, 0);
    sqe.prp2 = 0x1000;
    assert_int_equal(raw_admin(&r, sqe), GPUNVME_SC_DATA_TRANSFER_ERROR);
    raw_close_violated(&r, GPUNVME_SIM_VIOLATION_DMA_UNMAPPED);
}

static void unmapping_the_pages_ends_the_shadows(void **state)
{
    struct gpunvme_buf buf = {.nbytes = 8192};
    struct gpunvme_sqe sqe = {
        .opc = GPUNVME_ADMIN_DOORBELL_BUFFER_CONFIG, .prp1 = 0x10000, .prp2 = 0x11000};
    struct raw r;

    (void)state;
    raw_open(&r, "sim:size=1M");
    buf.cpu = raw_alloc(&r, 8192);
    assert_ok(gpunvme_sim_dma_map(r.sim, 0x10000, 8192, &buf));
    assert_int_equal(raw_admin(&r, sqe), 0);
    assert_ok(gpunvme_sim_dma_unmap(r.sim, 0x10000, 8192));
    assert_int_equal(raw_do(&r, &r.queue[1], (struct gpunvme_sqe){.nsid = 1}), 0);
    raw_close_violated(&r, GPUNVME_SIM_VIOLATION_QUEUE_MEMORY);
}

static void a_reset_ends_the_shadows(void **state)
{
    struct shadow s;

    (void)state;
    shadow_open(&s, "sim:size=1M");
    raw_disable(&s.r);
    raw_enable(&s.r, RAW_CC);
    raw_io_queue(&s.r, 1, 16);
    assert_int_equal(raw_do(&s.r, &s.r.queue[1], (struct gpunvme_sqe){.nsid = 1}), 0);
    raw_close(&s.r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(commands_arrive_by_the_shadow),
        cmocka_unit_test(a_sleeping_controller_is_woken),
        cmocka_unit_test(without_the_ring_nothing_comes),
        cmocka_unit_test(a_ring_of_the_same_value_wakes),
        cmocka_unit_test(queues_made_before_get_shadows_too),
        cmocka_unit_test(a_full_completion_queue_is_emptied_by_the_shadow),
        cmocka_unit_test(impossible_values_are_told),
        cmocka_unit_test(wrong_pages_are_refused),
        cmocka_unit_test(unmapping_the_pages_ends_the_shadows),
        cmocka_unit_test(a_reset_ends_the_shadows),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
