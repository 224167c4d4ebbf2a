/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The driver waiting for interrupts of the software controller instead of polling.
 */
#include <pthread.h>

#include "sim/driver.h"

#define THREADS 4
#define ROUNDS  50

static void open_with_interrupts(struct device *d, const char *uri)
{
    struct gpunvme_ctrl_opts opts;

    gpunvme_ctrl_opts_init(&opts);
    opts.interrupts = true;
    device_open_with(d, uri, &opts);
}

static void bytes_are_moved_with_interrupts(void **state)
{
    struct device d;
    uint8_t *bytes;

    (void)state;
    open_with_interrupts(&d, "sim:size=8M");
    bytes = d.buf.cpu;
    fill_random(bytes, 2 << 20, 9);
    assert_ok(gpunvme_write(d.ioq, d.ns, 0, 2 << 20, &d.buf, 0, 0));
    assert_ok(gpunvme_read(d.ioq, d.ns, 0, 2 << 20, &d.buf, 2 << 20));
    assert_memory_equal(bytes, bytes + (2 << 20), 2 << 20);
    device_close(&d);
}

static void the_transport_counts_an_interrupt_for_an_admin_command(void **state)
{
    struct gpunvme_transport *t;
    struct device d;
    uint64_t seen = 0;

    (void)state;
    open_with_interrupts(&d, "sim:size=8M");
    t = gpunvme_ctrl_transport(d.ctrl);
    assert_ok(t->ops->irq_wait(t, 0, &seen, UINT64_C(10000000000)));
    assert_true(seen > 0);
    device_close(&d);
}

static void a_vector_that_was_not_granted_is_refused(void **state)
{
    struct gpunvme_transport *t;
    uint32_t granted = 0;
    uint64_t seen = 0;

    (void)state;
    assert_ok(gpunvme_transport_open("sim:size=1M,queues=3", &t));
    assert_ok(t->ops->irq_setup(t, 100, &granted));
    assert_int_equal(granted, 4);
    assert_err(t->ops->irq_wait(t, 4, &seen, 0), GPUNVME_ERR_INVALID);
    t->ops->close(t);
}

struct worker {
    struct device *d;
    unsigned index;
    pthread_t thread;
};

static void *work(void *w_)
{
    const struct worker *w = w_;
    uint64_t off = w->index * UINT64_C(65536);
    uint8_t *bytes = (uint8_t *)w->d->buf.cpu + 2 * off;

    for (unsigned i = 0; i < ROUNDS; i++) {
        fill_random(bytes, 65536, w->index * 1000 + i);
        if (gpunvme_write(w->d->ioq, w->d->ns, off, 65536, &w->d->buf, 2 * off, 0) ||
            gpunvme_read(w->d->ioq, w->d->ns, off, 65536, &w->d->buf, 2 * off + 65536))
            return (void *)"a transfer failed";
        if (memcmp(bytes, bytes + 65536, 65536) != 0)
            return (void *)"other bytes came back";
    }
    return NULL;
}

static void threads_that_share_a_queue_all_get_their_completions(void **state)
{
    struct worker workers[THREADS];
    struct device d;

    (void)state;
    open_with_interrupts(&d, "sim:size=8M,threads=2,latency=50us");
    for (unsigned i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){.d = &d, .index = i};
        assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        void *wrong;

        pthread_join(workers[i].thread, &wrong);
        if (wrong)
            print_error("%s\n", (const char *)wrong);
        assert_null(wrong);
    }
    device_close(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_are_moved_with_interrupts),
        cmocka_unit_test(the_transport_counts_an_interrupt_for_an_admin_command),
        cmocka_unit_test(a_vector_that_was_not_granted_is_refused),
        cmocka_unit_test(threads_that_share_a_queue_all_get_their_completions),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
