/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Opening a device for I/O issued by a GPU (device.h), and views of buffers.
 */
#include "device_rig.h"

/* --- opening ---------------------------------------------------------------------------------- */

static void a_device_opens_and_works_at_every_placement_with_every_reaper(void **state)
{
    (void)state;
    for (int tier = GPUNVME_PLACEMENT_AUTO; tier <= GPUNVME_PLACEMENT_TIER3; tier++) {
        for (int reaper = GPUNVME_REAPER_WAITERS; reaper <= GPUNVME_REAPER_CPU;
             reaper += GPUNVME_REAPER_CPU) {
            struct gpunvme_device_opts opts;
            struct gpunvme_device_info info;
            struct rig r;

            if (tier == GPUNVME_PLACEMENT_TIER3 && reaper == GPUNVME_REAPER_CPU)
                continue;
            gpunvme_device_opts_init(&opts);
            opts.placement = (enum gpunvme_placement)tier;
            opts.reaper = (enum gpunvme_reaper)reaper;
            opts.queues = 2;
            opts.entries = 64;
            rig_open(&r, "sim:size=1M", &opts);
            gpunvme_device_get_info(r.dev, &info);
            assert_int_equal(info.placement, tier ? tier : GPUNVME_PLACEMENT_TIER1);
            assert_int_equal(info.queues, 2);
            assert_int_equal(info.entries, 64);
            assert_int_equal(info.max_transfer, 128 << 10);
            assert_true(tier == GPUNVME_PLACEMENT_TIER3 ? !*info.why_not_higher
                                                        : *info.why_not_higher);
            assert_kernel_works(&r);
            rig_close(&r);
        }
    }
}

static void what_the_controller_has_not_is_refused(void **state)
{
    struct gpunvme_device_opts opts;
    struct gpunvme_device *dev;
    struct rig r;

    (void)state;
    rig_open_ctrl(&r, "sim:size=1M,mqes=255,mdts=4,queues=4");
#define TRY(field, value, error)                                                                   \
    gpunvme_device_opts_init(&opts);                                                               \
    opts.field = (value);                                                                          \
    assert_err(gpunvme_device_open(r.ctrl, &opts, &dev), GPUNVME_ERR_##error)
    TRY(queues, 5, LIMIT);
    TRY(entries, 512, LIMIT);
    TRY(entries, 48, INVALID);
    TRY(entries, 1, INVALID);
    TRY(max_transfer, 128 << 10, LIMIT);
    TRY(max_transfer, 1000, INVALID);
    TRY(timeout_ms, 0, INVALID);
    TRY(check_ms, 0, INVALID);
    TRY(placement, (enum gpunvme_placement)7, INVALID);
    TRY(reaper, (enum gpunvme_reaper)7, INVALID);
#undef TRY
    gpunvme_device_opts_init(&opts);
    opts.placement = GPUNVME_PLACEMENT_TIER3;
    opts.reaper = GPUNVME_REAPER_CPU;
    assert_err(gpunvme_device_open(r.ctrl, &opts, &dev), GPUNVME_ERR_UNSUPPORTED);
    assert_err(gpunvme_device_open(NULL, NULL, &dev), GPUNVME_ERR_INVALID);
    assert_ok(gpunvme_device_open(r.ctrl, NULL, &r.dev)); /* nothing of all that is left */
    rig_close(&r);
}

static void the_defaults_take_what_is_free(void **state)
{
    struct gpunvme_device_info info;
    struct gpunvme_device *second;
    struct gpunvme_ioq *ioq;
    struct rig r;

    (void)state;
    rig_open_ctrl(&r, "sim:size=1M,queues=3,mqes=127,mdts=3,shadow=off");
    assert_ok(gpunvme_ioq_create(r.ctrl, 64, &ioq));
    assert_ok(gpunvme_device_open(r.ctrl, NULL, &r.dev));
    gpunvme_device_get_info(r.dev, &info);
    assert_int_equal(info.queues, 2);
    assert_int_equal(info.entries, 128);
    assert_int_equal(info.max_transfer, 32 << 10);
    assert_err(gpunvme_device_open(r.ctrl, NULL, &second), GPUNVME_ERR_LIMIT);
    assert_ok(gpunvme_ioq_delete(ioq));
    assert_ok(gpunvme_device_open(r.ctrl, NULL, &second));
    gpunvme_device_get_info(second, &info);
    assert_int_equal(info.queues, 1);
    assert_ok(gpunvme_device_close(second));
    rig_close(&r);
}

static const char *writes_lack;

/* In place of what CUDA says of the GPU: the linker puts this there (--wrap). */
const char *__wrap_mem_gpu_writes_lack(unsigned gpu);
const char *__wrap_mem_gpu_writes_lack(unsigned gpu)
{
    (void)gpu;
    return writes_lack;
}

static gpunvme_err_t open_tier2(struct gpunvme_ctrl *ctrl)
{
    struct gpunvme_device_opts opts;
    struct gpunvme_device *dev;
    gpunvme_err_t err;

    gpunvme_device_opts_init(&opts);
    opts.placement = GPUNVME_PLACEMENT_TIER2;
    err = gpunvme_device_open(ctrl, &opts, &dev);
    if (!err)
        assert_ok(gpunvme_device_close(dev));
    return err;
}

static void drives_write_only_to_gpus_that_order_what_they_write(void **state)
{
    struct gpunvme_transport_ops drive;
    struct gpunvme_transport *t;
    struct rig r;

    (void)state;
    rig_open_ctrl(&r, "sim:size=1M,shadow=off");
    writes_lack = "no order at all";
    assert_ok(open_tier2(r.ctrl)); /* the software controller is no such device */
    t = gpunvme_ctrl_transport(r.ctrl);
    drive = *t->ops;
    drive.name = "a drive";
    t->ops = &drive;
    assert_err(open_tier2(r.ctrl), GPUNVME_ERR_UNSUPPORTED);
    assert_string_equal(gpunvme_err_detail(), "no order at all: take tier 1");
    writes_lack = NULL;
    assert_ok(open_tier2(r.ctrl));
    assert_ok(gpunvme_ctrl_close(r.ctrl));
}

static void shadow_doorbells_are_given_up_unless_the_cpu_relies_on_them(void **state)
{
    struct gpunvme_ctrl_info info;
    struct gpunvme_device_info device;
    struct gpunvme_ioq *ioq;
    struct gpunvme_buf buf;
    struct rig r;

    (void)state;
    rig_open_ctrl(&r, "sim:size=1M");
    gpunvme_ctrl_get_info(r.ctrl, &info);
    assert_true(info.shadow_doorbells);
    assert_ok(gpunvme_ioq_create(r.ctrl, 64, &ioq));
    assert_err(gpunvme_device_open(r.ctrl, NULL, &r.dev), GPUNVME_ERR_UNSUPPORTED);
    assert_ok(gpunvme_ioq_delete(ioq));
    assert_ok(gpunvme_device_open(r.ctrl, NULL, &r.dev));
    gpunvme_ctrl_get_info(r.ctrl, &info);
    assert_false(info.shadow_doorbells);
    gpunvme_device_get_info(r.dev, &device);
    assert_int_equal(device.recoveries, 0); /* that reset was none */
    assert_ok(gpunvme_device_close(r.dev));

    /* Queues of the CPU's do without from now on. */
    assert_ok(gpunvme_ioq_create(r.ctrl, 64, &ioq));
    assert_ok(gpunvme_ctrl_alloc(r.ctrl, 4096, GPUNVME_MEM_HOST, &buf));
    assert_ok(gpunvme_read(ioq, r.ns, 0, 4096, &buf, 0));
    gpunvme_ctrl_free(r.ctrl, &buf);
    assert_ok(gpunvme_ioq_delete(ioq));
    assert_no_violation(&r);
    assert_ok(gpunvme_ctrl_close(r.ctrl));
}

static void every_slot_has_its_list_and_its_bounce_block(void **state)
{
    struct gpunvme_device_opts opts;
    struct gpunvme_dev_queue *q;
    struct rig r;

    (void)state;
    gpunvme_device_opts_init(&opts);
    opts.entries = 64;
    rig_open(&r, "sim:size=1M,ns=2,size=1M,block=4096,ns=3,size=1M,metadata=8", &opts);
    q = r.handle.queues;
    assert_int_equal(q->list_nbytes, 256); /* 128 KiB at an odd place: 33 pages */
    assert_int_equal(q->bounce_nbytes, 4096);
    assert_int_equal(q->lists_bus % 4096, 0);
    assert_int_equal(q->bounces_bus % 4096, 0);
    assert_non_null(q->lists);
    assert_non_null(q->bounces);
    rig_close(&r);

    opts.max_transfer = 4096; /* two pages: no list */
    opts.no_byte_ranges = true;
    rig_open(&r, "sim:size=1M", &opts);
    assert_null(r.handle.queues->lists);
    assert_null(r.handle.queues->bounces);
    assert_int_equal(r.handle.max_blocks, 8);
    rig_close(&r);

    opts.max_transfer = 2 << 20; /* the most that one page of entries describes */
    rig_open(&r, "sim:size=4M,mdts=0", &opts);
    assert_int_equal(r.handle.queues->list_nbytes, 4096);
    rig_close(&r);
}

static void a_namespace_without_io_is_refused(void **state)
{
    const struct gpunvme_ns *metadata;
    struct gpunvme_dev_ns out;
    struct rig r, other;

    (void)state;
    rig_open(&r, "sim:size=1M,ns=2,size=1M,metadata=8", NULL);
    rig_open_ctrl(&other, "sim:size=1M");
    metadata = gpunvme_ctrl_ns_at(r.ctrl, 1);
    assert_err(gpunvme_device_ns(r.dev, metadata, &out), GPUNVME_ERR_FORMAT);
    assert_err(gpunvme_device_ns(r.dev, other.ns, &out), GPUNVME_ERR_INVALID);
    assert_err(gpunvme_device_ns(r.dev, NULL, &out), GPUNVME_ERR_INVALID);
    assert_ok(gpunvme_ctrl_close(other.ctrl));
    rig_close(&r);
}

static void a_view_shows_the_buffer_and_has_its_pages(void **state)
{
    static uint8_t bytes[4 * 4096];
    uint64_t table[] = {0x7000, 0x3000, 0x9000, 0x1000};
    struct gpunvme_buf buf = {.cpu = bytes, .gpu = bytes, .bus = 0x7000, .nbytes = sizeof(bytes)};
    struct gpunvme_dev_buf view, again;
    struct rig r;

    (void)state;
    rig_open(&r, "sim:size=1M", NULL);
    assert_ptr_equal(r.view.data, r.buf.gpu);
    assert_int_equal(r.view.bus, r.buf.bus);
    assert_int_equal(r.view.nbytes, BUF_NBYTES);
    assert_null(r.view.bus_pages);

    buf.bus_pages = table;
    buf.bus_page_shift = 12;
    assert_ok(gpunvme_device_buf(r.dev, &buf, &view));
    assert_memory_equal(view.bus_pages, table, sizeof(table));
    assert_int_equal(view.bus_page_shift, 12);
    assert_ok(gpunvme_device_buf(r.dev, &buf, &again));
    assert_ptr_equal(again.bus_pages, view.bus_pages);
    table[2] = 0xa000; /* mapped anew */
    assert_ok(gpunvme_device_buf(r.dev, &buf, &again));
    assert_ptr_not_equal(again.bus_pages, view.bus_pages);

    buf.bus_page_shift = 9;
    assert_err(gpunvme_device_buf(r.dev, &buf, &view), GPUNVME_ERR_ALIGN);
    buf.bus = 0;
    assert_err(gpunvme_device_buf(r.dev, &buf, &view), GPUNVME_ERR_INVALID);
    rig_close(&r);
}

static unsigned tables_of(const struct rig *r)
{
    unsigned n = 0;

    for (const struct device_pages *p = r->dev->pages; p; p = p->next)
        n++;
    return n;
}

static void tables_of_views_that_were_released_serve_others(void **state)
{
    static uint8_t bytes[600 * 4096];
    uint64_t table[600];
    struct gpunvme_buf buf = {.cpu = bytes, .gpu = bytes, .bus_pages = table, .bus_page_shift = 12};
    struct gpunvme_dev_buf views[2];
    struct rig r;

    (void)state;
    rig_open(&r, "sim:size=1M", NULL);
    for (unsigned i = 0; i < 600; i++) { /* buffers of all lengths, two at a time */
        unsigned n = i + 1;

        for (unsigned k = 0; k < n; k++)
            table[k] = (uint64_t)(1 + i * 1000 + k * 7 % 600) << 12;
        buf.bus = table[0];
        buf.nbytes = (size_t)n << 12;
        if (i > 1)
            gpunvme_device_buf_release(r.dev, &views[i % 2]);
        assert_ok(gpunvme_device_buf(r.dev, &buf, &views[i % 2]));
        assert_memory_equal(views[i % 2].bus_pages, table, n * sizeof(table[0]));
        if (i)
            assert_ptr_not_equal(views[0].bus_pages, views[1].bus_pages);
    }
    assert_in_range(tables_of(&r), 2, 4); /* of two sizes */
    gpunvme_device_buf_release(r.dev, NULL);
    gpunvme_device_buf_release(r.dev, &r.view);
    rig_close(&r);
}

static void a_table_that_two_views_share_is_released_by_both(void **state)
{
    static uint8_t bytes[2 * 4096];
    uint64_t table[] = {0x7000, 0x3000}, other[] = {0x9000, 0x1000};
    struct gpunvme_buf buf = {.cpu = bytes,
                              .gpu = bytes,
                              .bus = 0x7000,
                              .bus_pages = table,
                              .bus_page_shift = 12,
                              .nbytes = sizeof(bytes)};
    struct gpunvme_dev_buf view, again, next;
    struct rig r;

    (void)state;
    rig_open(&r, "sim:size=1M", NULL);
    assert_ok(gpunvme_device_buf(r.dev, &buf, &view));
    assert_ok(gpunvme_device_buf(r.dev, &buf, &again));
    gpunvme_device_buf_release(r.dev, &again);
    buf.bus_pages = other;
    assert_ok(gpunvme_device_buf(r.dev, &buf, &next));
    assert_memory_equal(view.bus_pages, table, sizeof(table));
    assert_memory_equal(next.bus_pages, other, sizeof(other));
    gpunvme_device_buf_release(r.dev, &view);
    buf.bus_pages = table; /* nobody took its place */
    assert_ok(gpunvme_device_buf(r.dev, &buf, &again));
    assert_memory_equal(again.bus_pages, table, sizeof(table));
    assert_int_equal(tables_of(&r), 2);
    rig_close(&r);
}

static _Atomic bool copies_late;

gpunvme_err_t __real_gpunvme_mem_copy(void *dst, enum gpunvme_mem dst_mem, const void *src,
                                      enum gpunvme_mem src_mem, size_t nbytes);
gpunvme_err_t __wrap_gpunvme_mem_copy(void *dst, enum gpunvme_mem dst_mem, const void *src,
                                      enum gpunvme_mem src_mem, size_t nbytes);
gpunvme_err_t __wrap_gpunvme_mem_copy(void *dst, enum gpunvme_mem dst_mem, const void *src,
                                      enum gpunvme_mem src_mem, size_t nbytes)
{
    return copies_late ? GPUNVME_ERR_TIMEOUT
                       : __real_gpunvme_mem_copy(dst, dst_mem, src, src_mem, nbytes);
}

/* It may come over another view's pages. */
static void a_table_whose_copy_is_late_serves_no_other_view(void **state)
{
    static uint8_t bytes[2 * 4096];
    uint64_t table[] = {0x7000, 0x3000};
    struct gpunvme_buf buf = {.cpu = bytes,
                              .gpu = bytes,
                              .bus = 0x7000,
                              .bus_pages = table,
                              .bus_page_shift = 12,
                              .nbytes = sizeof(bytes)};
    const struct device_pages *late;
    struct gpunvme_dev_buf view;
    struct rig r;

    (void)state;
    rig_open(&r, "sim:size=1M", NULL);
    copies_late = true;
    assert_err(gpunvme_device_buf(r.dev, &buf, &view), GPUNVME_ERR_TIMEOUT);
    copies_late = false;
    late = r.dev->pages;
    assert_ok(gpunvme_device_buf(r.dev, &buf, &view));
    assert_ptr_not_equal(view.bus_pages, late->buf.gpu);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_device_opens_and_works_at_every_placement_with_every_reaper),
        cmocka_unit_test(what_the_controller_has_not_is_refused),
        cmocka_unit_test(the_defaults_take_what_is_free),
        cmocka_unit_test(drives_write_only_to_gpus_that_order_what_they_write),
        cmocka_unit_test(shadow_doorbells_are_given_up_unless_the_cpu_relies_on_them),
        cmocka_unit_test(every_slot_has_its_list_and_its_bounce_block),
        cmocka_unit_test(a_namespace_without_io_is_refused),
        cmocka_unit_test(a_view_shows_the_buffer_and_has_its_pages),
        cmocka_unit_test(tables_of_views_that_were_released_serve_others),
        cmocka_unit_test(a_table_that_two_views_share_is_released_by_both),
        cmocka_unit_test(a_table_whose_copy_is_late_serves_no_other_view),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
