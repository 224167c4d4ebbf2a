/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The host's side of I/O issued by a GPU (device.h): threads of the CPU stand in for a kernel's,
 * and use the queues by dev_queue.h alone.
 */
#include <pthread.h>

#include "device/internal.h"
#include "driver.h"
#include "no_gpu.h"
#include "patience.h"

#define SECOND   UINT64_C(1000000000)
#define ROUNDS   200u
#define NPLAYERS 4u

/* A controller and a device on it. Blocks of 512 bytes hold their number in each word. */
struct rig {
    struct gpunvme_ctrl *ctrl;
    struct gpunvme_sim *sim;
    const struct gpunvme_ns *ns;
    struct gpunvme_device *dev;
    struct gpunvme_dev_ns handle;
    struct gpunvme_buf buf;
    struct gpunvme_dev_buf view;
};

#define BUF_NBYTES ((size_t)1 << 20)

static void number_blocks(struct rig *r)
{
    struct gpunvme_ioq *ioq;
    struct gpunvme_buf buf;

    assert_ok(gpunvme_ioq_create(r->ctrl, 64, &ioq));
    assert_ok(gpunvme_ctrl_alloc(r->ctrl, (size_t)r->ns->nbytes, GPUNVME_MEM_HOST, &buf));
    for (uint64_t word = 0; word < r->ns->nbytes / 8; word++)
        ((uint64_t *)buf.cpu)[word] = word / 64;
    assert_ok(gpunvme_write(ioq, r->ns, 0, (size_t)r->ns->nbytes, &buf, 0, 0));
    gpunvme_ctrl_free(r->ctrl, &buf);
    assert_ok(gpunvme_ioq_delete(ioq));
}

static void rig_open_ctrl_with(struct rig *r, const char *uri, const struct gpunvme_ctrl_opts *opts)
{
    memset(r, 0, sizeof(*r));
    assert_ok(gpunvme_ctrl_open_uri(uri, opts, &r->ctrl));
    r->sim = gpunvme_transport_sim(gpunvme_ctrl_transport(r->ctrl));
    r->ns = gpunvme_ctrl_ns_at(r->ctrl, 0);
    number_blocks(r);
}

static void rig_open_ctrl(struct rig *r, const char *uri)
{
    rig_open_ctrl_with(r, uri, NULL);
}

static void rig_open_device(struct rig *r, const struct gpunvme_device_opts *opts)
{
    assert_ok(gpunvme_device_open(r->ctrl, opts, &r->dev));
    assert_ok(gpunvme_device_ns(r->dev, r->ns, &r->handle));
    assert_ok(gpunvme_device_alloc(r->dev, BUF_NBYTES, &r->buf));
    assert_ok(gpunvme_device_buf(r->dev, &r->buf, &r->view));
}

static void rig_open(struct rig *r, const char *uri, const struct gpunvme_device_opts *opts)
{
    rig_open_ctrl(r, uri);
    rig_open_device(r, opts);
}

static void assert_no_violation(struct rig *r)
{
    struct gpunvme_sim_report report;

    gpunvme_sim_report(r->sim, &report);
    if (report.nviolations)
        print_error("violation: %s\n", report.first);
    assert_int_equal(report.nviolations, 0);
}

static void rig_close_unchecked(struct rig *r)
{
    gpunvme_device_free(r->dev, &r->buf);
    (void)gpunvme_device_close(r->dev);
    (void)gpunvme_ctrl_close(r->ctrl);
}

static void rig_close(struct rig *r)
{
    gpunvme_device_free(r->dev, &r->buf);
    (void)gpunvme_device_close(r->dev);
    assert_no_violation(r);
    (void)gpunvme_ctrl_close(r->ctrl);
}

/* --- a kernel, played by threads -------------------------------------------------------------- */

struct player {
    struct rig *rig;
    unsigned number;
    uint64_t timeout_ns;
    unsigned rounds;
    uint32_t was_aborted; /* atomic */
    /* what came of it */
    unsigned good, wrong, aborted, closed, late, failed;
    int last; /* of those that failed */
    pthread_t thread;
};

/* One read of one block; the error of the queue, or of the command. */
static int play_read(struct player *p, uint64_t lba)
{
    const struct gpunvme_dev_ns *ns = &p->rig->handle;
    struct gpunvme_dev_queue *q = &ns->queues[p->number % ns->nqueues];
    uint64_t deadline = gpunvme_clock_ns() + p->timeout_ns;
    struct gpunvme_sqe sqe = {.opc = GPUNVME_CMD_READ, .nsid = ns->nsid};
    struct gpunvme_dev_place place = {0};
    uint16_t status;
    int err;

    sqe.prp1 = p->rig->view.bus + p->number * 4096;
    sqe.cdw10 = (uint32_t)lba;
    while (!gpunvme_dev_queue_reserve(q, 1, p->number, gpunvme_dev_want_any(), &place, &err)) {
        if (err != GPUNVME_ERR_AGAIN)
            return err;
        if (gpunvme_clock_ns() > deadline)
            return GPUNVME_ERR_TIMEOUT;
        if (q->reaper == GPUNVME_REAPER_WAITERS)
            gpunvme_dev_queue_reap(q, 1, 1);
    }
    gpunvme_dev_queue_submit(q, 1, &place, &sqe);
    err = gpunvme_dev_queue_wait(q, 1, place.ticket, deadline, &status);
    if (err == GPUNVME_ERR_TIMEOUT) {
        err = gpunvme_dev_queue_abandon(q, place.ticket);
        if (err == GPUNVME_ERR_STALE) /* at the last moment */
            err = gpunvme_dev_queue_wait(q, 1, place.ticket, deadline + SECOND, &status);
        else
            err = GPUNVME_ERR_TIMEOUT;
        if (err)
            gpunvme_store_release32(ns->alarm, 1);
    }
    return err ? err : status ? GPUNVME_ERR_NVME(status) : GPUNVME_OK;
}

static void *play(void *p_)
{
    struct player *p = p_;
    const uint64_t *words = (const uint64_t *)(p->rig->view.data + p->number * 4096);

    for (unsigned i = 0; i < p->rounds; i++) {
        uint64_t lba = (p->number * 7919 + i * 31) % p->rig->handle.nblocks;
        int err = play_read(p, lba);

        if (!err && words[0] == lba && words[63] == lba)
            p->good++;
        else if (!err)
            p->wrong++;
        else if (err == GPUNVME_ERR_NVME(GPUNVME_SC_HOST_ABORTED)) {
            p->aborted++;
            gpunvme_store_release32(&p->was_aborted, 1);
        } else if (err == GPUNVME_ERR_CLOSED) {
            p->closed++;
            usleep(5000); /* a reset takes its time */
        } else if (err == GPUNVME_ERR_TIMEOUT)
            p->late++;
        else
            p->failed++, p->last = err;
    }
    return NULL;
}

/* A kernel of NPLAYERS threads; started and awaited. */
struct kernel {
    struct player players[NPLAYERS];
};

static void kernel_start(struct kernel *k, struct rig *r, unsigned rounds, uint64_t timeout_ns)
{
    memset(k, 0, sizeof(*k));
    for (unsigned i = 0; i < NPLAYERS; i++) {
        k->players[i] =
            (struct player){.rig = r, .number = i, .rounds = rounds, .timeout_ns = timeout_ns};
        assert_int_equal(pthread_create(&k->players[i].thread, NULL, play, &k->players[i]), 0);
    }
}

/* The sum of what came of it. */
static struct player kernel_end(struct kernel *k)
{
    struct player sum = {0};

    for (unsigned i = 0; i < NPLAYERS; i++) {
        struct player *p = &k->players[i];

        pthread_join(p->thread, NULL);
        sum.good += p->good;
        sum.wrong += p->wrong;
        sum.aborted += p->aborted;
        sum.closed += p->closed;
        sum.late += p->late;
        sum.failed += p->failed;
        if (p->failed)
            print_error("player %u: error %s\n", i, gpunvme_err_name(p->last));
    }
    assert_int_equal(sum.wrong, 0);
    return sum;
}

static void assert_kernel_works(struct rig *r)
{
    struct kernel k;
    struct player sum;

    kernel_start(&k, r, ROUNDS, PATIENCE_NS);
    sum = kernel_end(&k);
    assert_int_equal(sum.good, NPLAYERS * ROUNDS);
}

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

/* --- recovery --------------------------------------------------------------------------------- */

static void rig_open_small(struct rig *r, const char *uri, enum gpunvme_reaper reaper)
{
    struct gpunvme_device_opts opts;

    gpunvme_device_opts_init(&opts);
    opts.queues = 2;
    opts.entries = 16;
    opts.reaper = reaper;
    rig_open(r, uri, &opts);
}

/* Tickets that have not ended, of all queues. */
static unsigned outstanding(struct rig *r)
{
    unsigned n = 0;

    for (uint32_t i = 0; i < r->handle.nqueues; i++) {
        struct gpunvme_dev_queue *q = &r->handle.queues[i];

        for (uint32_t slot = 1; slot <= q->mask; slot++)
            n += gpunvme_load_acquire64(&q->slots[slot].word) >> 63;
    }
    return n;
}

static void assert_recovers(struct rig *r)
{
    assert_ok(gpunvme_device_recover(r->dev));
    assert_int_equal(outstanding(r), 0);
    assert_kernel_works(r);
    assert_int_equal(outstanding(r), 0);
}

static void wait_ms(unsigned ms)
{
    usleep(ms * 1000);
}

static void resets_end_every_wait(enum gpunvme_reaper reaper)
{
    struct gpunvme_device_info info;
    unsigned resets = 0;
    struct player sum;
    struct kernel k;
    struct rig r;

    rig_open_small(&r, "sim:size=1M,latency=3ms", reaper);
    kernel_start(&k, &r, 200, PATIENCE_NS);
    /* At least five, and until one has caught a command. */
    while (resets < 5 || (resets < 50 && !gpunvme_load_acquire32(&k.players[0].was_aborted))) {
        wait_ms(20);
        assert_ok(gpunvme_ctrl_reset(r.ctrl));
        resets++;
    }
    sum = kernel_end(&k);
    assert_int_equal(sum.good + sum.aborted + sum.closed, NPLAYERS * 200);
    assert_true(sum.aborted > 0);
    gpunvme_device_get_info(r.dev, &info);
    assert_int_equal(info.recoveries, resets);
    assert_recovers(&r);
    rig_close(&r);
}

static void a_reset_in_the_middle_ends_every_wait(void **state)
{
    (void)state;
    resets_end_every_wait(GPUNVME_REAPER_WAITERS);
}

static void a_reset_in_the_middle_ends_every_wait_where_the_cpu_reaps(void **state)
{
    (void)state;
    resets_end_every_wait(GPUNVME_REAPER_CPU);
}

/* One thread's command is lost; the others wait for slow ones. */
static void lost_is_answered(enum gpunvme_reaper reaper)
{
    struct gpunvme_device_info info;
    struct player sum;
    struct kernel k;
    struct rig r;

    rig_open_small(&r, "sim:size=1M,fault=lose:io:read:nth=50", reaper);
    kernel_start(&k, &r, ROUNDS, 3 * SECOND);
    sum = kernel_end(&k);
    assert_int_equal(sum.late, 1);
    assert_int_equal(sum.failed, 0);
    /* The alarm's answer may still be on its way. */
    for (unsigned i = 0; i < 1000 && outstanding(&r); i++)
        wait_ms(10);
    assert_int_equal(outstanding(&r), 0);
    gpunvme_device_get_info(r.dev, &info);
    assert_int_equal(info.recoveries, 1);
    assert_recovers(&r);
    rig_close(&r);
}

static void a_lost_command_raises_the_alarm_and_its_slot_comes_back(void **state)
{
    (void)state;
    lost_is_answered(GPUNVME_REAPER_WAITERS);
}

static void a_lost_command_comes_back_where_the_cpu_reaps(void **state)
{
    (void)state;
    lost_is_answered(GPUNVME_REAPER_CPU);
}

static void a_fatal_status_is_recovered_from(void **state)
{
    struct player sum;
    struct kernel k;
    struct rig r;

    (void)state;
    rig_open_small(&r, "sim:size=1M,latency=3ms,fault=cfs:io:read:nth=50", GPUNVME_REAPER_WAITERS);
    kernel_start(&k, &r, 200, PATIENCE_NS);
    sum = kernel_end(&k);
    assert_true(sum.aborted > 0);
    assert_int_equal(sum.good + sum.aborted + sum.closed, NPLAYERS * 200);
    assert_recovers(&r);
    rig_close(&r);
}

static void removal_ends_every_wait(enum gpunvme_reaper reaper)
{
    struct player sum;
    struct kernel k;
    struct rig r;

    rig_open_small(&r, "sim:size=1M,latency=3ms,fault=remove:io:read:nth=50", reaper);
    kernel_start(&k, &r, 200, PATIENCE_NS);
    sum = kernel_end(&k);
    assert_true(sum.aborted > 0 && sum.closed > 0);
    assert_int_equal(sum.good + sum.aborted + sum.closed, NPLAYERS * 200);
    assert_err(gpunvme_device_recover(r.dev), GPUNVME_ERR_REMOVED);
    rig_close(&r);
}

static void a_removed_drive_ends_every_wait(void **state)
{
    (void)state;
    removal_ends_every_wait(GPUNVME_REAPER_WAITERS);
}

static void a_removed_drive_ends_every_wait_where_the_cpu_reaps(void **state)
{
    (void)state;
    removal_ends_every_wait(GPUNVME_REAPER_CPU);
}

/* Commands that a kernel leaves behind without waiting for them. */
static void leave_commands(struct rig *r, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        struct gpunvme_dev_queue *q = &r->handle.queues[i % r->handle.nqueues];
        struct gpunvme_sqe sqe = {.opc = GPUNVME_CMD_READ, .nsid = r->handle.nsid};
        struct gpunvme_dev_place place = {0};
        int err;

        sqe.prp1 = r->view.bus + i * 4096;
        assert_int_equal(gpunvme_dev_queue_reserve(q, 1, i, gpunvme_dev_want_any(), &place, &err),
                         1);
        gpunvme_dev_queue_submit(q, 1, &place, &sqe);
    }
}

static void left_behind_comes_back(const char *uri, enum gpunvme_reaper reaper, unsigned resets)
{
    struct gpunvme_device_info info;
    struct rig r;

    rig_open_small(&r, uri, reaper);
    leave_commands(&r, 20);
    assert_int_equal(outstanding(&r), 20);
    assert_recovers(&r);
    gpunvme_device_get_info(r.dev, &info);
    assert_int_equal(info.recoveries, resets);
    rig_close(&r);
}

static void recovery_takes_back_what_a_kernel_left_behind(void **state)
{
    (void)state;
    left_behind_comes_back("sim:size=1M", GPUNVME_REAPER_WAITERS, 0);
    left_behind_comes_back("sim:size=1M", GPUNVME_REAPER_CPU, 0);
}

static void recovery_resets_the_controller_for_commands_that_do_not_end(void **state)
{
    (void)state;
    left_behind_comes_back("sim:size=1M,fault=lose:io:read:nth=7", GPUNVME_REAPER_WAITERS, 1);
    left_behind_comes_back("sim:size=1M,fault=lose:io:read:nth=7", GPUNVME_REAPER_CPU, 1);
}

static void closing_with_commands_in_flight_frees_everything(void **state)
{
    struct rig r;

    (void)state;
    rig_open_small(&r, "sim:size=1M,latency=500ms", GPUNVME_REAPER_WAITERS);
    leave_commands(&r, 10);
    assert_ok(gpunvme_device_close(r.dev));
    gpunvme_ctrl_free(r.ctrl, &r.buf); /* not before: the commands use it */
    assert_no_violation(&r);
    assert_ok(gpunvme_ctrl_close(r.ctrl));
}

/* As a kernel that fills the GPU, or a thread that stands still inside submit. */
static void a_queue_out_of_reach_is_left_out_of_a_reset_and_readmitted(void **state)
{
    struct gpunvme_ioq *ioq;
    struct gpunvme_buf buf;
    struct rig r;

    (void)state;
    rig_open_small(&r, "sim:size=1M", GPUNVME_REAPER_WAITERS);
    assert_ok(gpunvme_ioq_create(r.ctrl, 64, &ioq));
    assert_ok(gpunvme_ctrl_alloc(r.ctrl, 4096, GPUNVME_MEM_HOST, &buf));
    gpunvme_fetch_or32(&r.handle.queues[0].published, GPUNVME_DEV_QUEUE_LOCKED);
    assert_ok(gpunvme_ctrl_reset(r.ctrl));
    assert_ok(gpunvme_read(ioq, r.ns, 0, 4096, &buf, 0)); /* the others are as good as new */
    gpunvme_fetch_and32(&r.handle.queues[0].published, ~GPUNVME_DEV_QUEUE_LOCKED);
    assert_recovers(&r);
    gpunvme_ctrl_free(r.ctrl, &buf);
    assert_ok(gpunvme_ioq_delete(ioq));
    rig_close(&r);
}

/* A GPU that is full: what becomes of an order to the words of a queue (device/orders/orders.h). */
enum room { ROOM, NO_ROOM, ROOM_AFTER_ALL /* carried out, behind the back of who gave it up */ };

static struct {
    uint32_t room;   /* atomic: enum room */
    uint32_t thaws;  /* atomic: so many of these orders alone */
    uint32_t orders; /* atomic: that found no room */
} full_gpu;

gpunvme_err_t __real_orders_run(struct orders *orders, const struct queue_order *order,
                                struct order_result *result);
gpunvme_err_t __wrap_orders_run(struct orders *orders, const struct queue_order *order,
                                struct order_result *result);
gpunvme_err_t __wrap_orders_run(struct orders *orders, const struct queue_order *order,
                                struct order_result *result)
{
    uint32_t room = gpunvme_load_acquire32(&full_gpu.room);

    if (room && gpunvme_load_acquire32(&full_gpu.thaws)) {
        if (order->op == ORDER_THAW)
            __atomic_sub_fetch(&full_gpu.thaws, 1, __ATOMIC_ACQ_REL);
        else
            room = ROOM;
        if (!gpunvme_load_acquire32(&full_gpu.thaws))
            gpunvme_store_release32(&full_gpu.room, ROOM);
    }
    if (room != NO_ROOM) {
        gpunvme_err_t err = __real_orders_run(orders, order, result);

        if (room == ROOM)
            return err;
    }
    __atomic_add_fetch(&full_gpu.orders, 1, __ATOMIC_RELAXED);
    return GPUNVME_ERR_TIMEOUT;
}

static void lose_thaws(enum room room, uint32_t n)
{
    gpunvme_store_release32(&full_gpu.thaws, n);
    gpunvme_store_release32(&full_gpu.room, room);
}

static void raise_alarm(struct rig *r)
{
    gpunvme_store_release32(r->handle.alarm, 1);
    for (unsigned i = 0; i < 6000 && gpunvme_load_acquire32(r->handle.alarm); i++)
        wait_ms(10);
    assert_int_equal(gpunvme_load_acquire32(r->handle.alarm), 0);
}

static uint64_t recoveries(struct rig *r)
{
    struct gpunvme_device_info info;

    gpunvme_device_get_info(r->dev, &info);
    return info.recoveries;
}

/* One command ends too late; nothing but that happens to the others. */
static void late_is_aborted(enum gpunvme_reaper reaper, enum room room)
{
    struct player sum;
    struct kernel k;
    struct rig r;

    rig_open_small(&r, "sim:size=1M,fault=delay=1000s:io:read:nth=50", reaper);
    gpunvme_store_release32(&full_gpu.room, room);
    kernel_start(&k, &r, ROUNDS, 3 * SECOND);
    sum = kernel_end(&k);
    assert_int_equal(sum.late, 1);
    assert_int_equal(sum.good, NPLAYERS * ROUNDS - 1);
    raise_alarm(&r); /* the first has been answered when this is */
    assert_int_equal(recoveries(&r), 0);
    gpunvme_store_release32(&full_gpu.room, ROOM);
    assert_recovers(&r);
    assert_int_equal(recoveries(&r), 0);
    rig_close(&r);
}

static void a_late_command_is_aborted_without_a_reset(void **state)
{
    (void)state;
    late_is_aborted(GPUNVME_REAPER_WAITERS, ROOM);
    late_is_aborted(GPUNVME_REAPER_CPU, ROOM);
}

static void a_late_command_is_aborted_though_the_gpu_is_full(void **state)
{
    (void)state;
    late_is_aborted(GPUNVME_REAPER_WAITERS, NO_ROOM);
    late_is_aborted(GPUNVME_REAPER_CPU, NO_ROOM);
}

/* The reset has to leave the queues out, and what their threads wait for goes on being late. */
static void alarms_from_a_full_gpu_cost_one_reset(void **state)
{
    struct player sum;
    struct kernel k;
    struct rig r;

    (void)state;
    rig_open_small(&r, "sim:size=1M,fault=lose:io:read:nth=50", GPUNVME_REAPER_WAITERS);
    gpunvme_store_release32(&full_gpu.room, NO_ROOM);
    kernel_start(&k, &r, 100, SECOND);
    sum = kernel_end(&k);
    assert_true(sum.late >= 1);
    for (unsigned i = 0; i < 10; i++)
        raise_alarm(&r);
    assert_int_equal(recoveries(&r), 1);
    gpunvme_store_release32(&full_gpu.room, ROOM);
    assert_recovers(&r);
    rig_close_unchecked(&r); /* its threads have rung for queues that were left out */
}

/* By recovery, by the next reset, and whether or not the order was carried out after all. */
static void a_queue_whose_thaw_found_no_room_is_opened_later(void **state)
{
    (void)state;
    for (int way = 0; way < 8; way++) {
        struct rig r;

        rig_open_small(&r, "sim:size=1M", way & 4 ? GPUNVME_REAPER_CPU : GPUNVME_REAPER_WAITERS);
        assert_kernel_works(&r);
        lose_thaws(way & 1 ? ROOM_AFTER_ALL : NO_ROOM, 1);
        assert_ok(gpunvme_ctrl_reset(r.ctrl));
        assert_int_equal(full_gpu.room, ROOM);
        if (way & 1)
            assert_kernel_works(&r);
        if (way & 2)
            assert_ok(gpunvme_ctrl_reset(r.ctrl));
        else
            assert_ok(gpunvme_device_recover(r.dev));
        assert_kernel_works(&r);
        assert_recovers(&r);
        rig_close(&r);
    }
}

/* Its completion queue is there then, as far as anybody knows: the next try would be refused. */
static void a_queue_whose_creation_is_lost_is_readmitted_all_the_same(void **state)
{
    struct gpunvme_ctrl_opts ctrl_opts;
    struct gpunvme_device_opts opts;
    struct rig r;

    (void)state;
    gpunvme_ctrl_opts_init(&ctrl_opts);
    ctrl_opts.admin_timeout_ms = 1000;
    rig_open_ctrl_with(&r, "sim:size=1M", &ctrl_opts);
    gpunvme_device_opts_init(&opts);
    opts.queues = 2;
    opts.entries = 16;
    rig_open_device(&r, &opts);
    gpunvme_store_release32(&full_gpu.room, NO_ROOM);
    assert_ok(gpunvme_ctrl_reset(r.ctrl));
    gpunvme_store_release32(&full_gpu.room, ROOM);
    assert_ok(gpunvme_sim_fault(r.sim, "lose:create_cq:once"));
    assert_recovers(&r);
    rig_close(&r);
}

/* The thread that reaps stands still in the middle of it. */
static void a_queue_whose_reaper_does_not_leave_is_left_out_and_closed(void **state)
{
    struct gpunvme_dev_place place;
    struct rig r;
    int err;

    (void)state;
    rig_open_small(&r, "sim:size=1M", GPUNVME_REAPER_CPU);
    while (gpunvme_exchange32(&r.dev->queues[0].reaped.cq_lock, 1))
        ;
    assert_ok(gpunvme_ctrl_reset(r.ctrl));
    assert_int_equal(
        gpunvme_dev_queue_reserve(&r.handle.queues[0], 1, 1, gpunvme_dev_want_any(), &place, &err),
        0);
    assert_int_equal(err, GPUNVME_ERR_CLOSED); /* not rung for: the controller has it no more */
    gpunvme_exchange32(&r.dev->queues[0].reaped.cq_lock, 0);
    assert_recovers(&r);
    rig_close(&r);
}

/* As by a thread that was kept waiting between the end of its patience and the alarm. */
static void an_alarm_for_a_command_that_has_ended_resets_nothing(void **state)
{
    struct gpunvme_device_info info;
    struct rig r;

    (void)state;
    rig_open_small(&r, "sim:size=1M", GPUNVME_REAPER_WAITERS);
    for (unsigned i = 0; i < 3; i++) {
        gpunvme_store_release32(r.handle.alarm, 1);
        for (unsigned k = 0; k < 1000 && gpunvme_load_acquire32(r.handle.alarm); k++)
            wait_ms(1);
        assert_int_equal(gpunvme_load_acquire32(r.handle.alarm), 0);
        wait_ms(10);
    }
    gpunvme_device_get_info(r.dev, &info);
    assert_int_equal(info.recoveries, 0);
    assert_kernel_works(&r);
    rig_close(&r);
}

/* The reset that recovery itself needs leaves one out: the queues are not good then. */
static void recovery_does_not_call_a_queue_good_that_was_left_out(void **state)
{
    struct rig r;

    (void)state;
    rig_open_small(&r, "sim:size=1M,fault=lose:io:read:nth=7", GPUNVME_REAPER_WAITERS);
    leave_commands(&r, 20);
    gpunvme_fetch_or32(&r.handle.queues[0].published, GPUNVME_DEV_QUEUE_LOCKED);
    assert_err(gpunvme_device_recover(r.dev), GPUNVME_ERR_TIMEOUT);
    gpunvme_fetch_and32(&r.handle.queues[0].published, ~GPUNVME_DEV_QUEUE_LOCKED);
    assert_recovers(&r);
    rig_close(&r);
}

/* It has a slot and no position while the reset goes by. */
static void a_command_that_is_not_submitted_yet_outlives_a_reset(void **state)
{
    struct gpunvme_sqe flush = {.opc = GPUNVME_CMD_FLUSH, .nsid = 1};
    struct gpunvme_dev_place place;
    uint16_t status;
    struct gpunvme_dev_queue *q;
    struct rig r;
    int err;

    (void)state;
    rig_open_small(&r, "sim:size=1M", GPUNVME_REAPER_WAITERS);
    q = r.handle.queues;
    assert_kernel_works(&r);
    assert_int_equal(gpunvme_dev_slot_claim(q, 1, 5, gpunvme_dev_want_any(), &place.ticket), 1);
    assert_ok(gpunvme_ctrl_reset(r.ctrl));
    assert_int_equal(gpunvme_dev_queue_place(q, 1, 1, &place, &err), 1);
    gpunvme_dev_queue_submit(q, 1, &place, &flush);
    err = gpunvme_dev_queue_wait(q, 1, place.ticket, gpunvme_clock_ns() + 10000000000u, &status);
    assert_int_equal(err, GPUNVME_OK);
    assert_int_equal(status, 0);
    assert_kernel_works(&r);

    /* One whose kernel is gone: recovery finds its slot. */
    assert_int_equal(gpunvme_dev_slot_claim(q, 1, 5, gpunvme_dev_want_any(), &place.ticket), 1);
    assert_ok(gpunvme_ctrl_reset(r.ctrl));
    assert_recovers(&r);
    rig_close(&r);
}

static void a_controller_that_must_not_be_reset_says_so(void **state)
{
    struct gpunvme_ctrl_opts opts;
    struct player sum;
    struct kernel k;
    struct rig r = {0};

    (void)state;
    gpunvme_ctrl_opts_init(&opts);
    opts.no_recovery = true;
    assert_ok(gpunvme_ctrl_open_uri("sim:size=1M,latency=1ms", &opts, &r.ctrl));
    r.sim = gpunvme_transport_sim(gpunvme_ctrl_transport(r.ctrl));
    r.ns = gpunvme_ctrl_ns_at(r.ctrl, 0);
    assert_ok(gpunvme_device_open(r.ctrl, NULL, &r.dev));
    assert_ok(gpunvme_device_ns(r.dev, r.ns, &r.handle));
    assert_ok(gpunvme_device_alloc(r.dev, BUF_NBYTES, &r.buf));
    assert_ok(gpunvme_device_buf(r.dev, &r.buf, &r.view));
    gpunvme_sim_fatal(r.sim);
    memset(&k, 0, sizeof(k));
    k.players[0] = (struct player){.rig = &r, .rounds = 10, .timeout_ns = 20 * SECOND};
    play(&k.players[0]);
    sum = k.players[0];
    assert_int_equal(sum.good, 0);
    assert_int_equal(sum.aborted + sum.closed, 10);
    assert_err(gpunvme_device_recover(r.dev), GPUNVME_ERR_FATAL);
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
        cmocka_unit_test(a_reset_in_the_middle_ends_every_wait),
        cmocka_unit_test(a_reset_in_the_middle_ends_every_wait_where_the_cpu_reaps),
        cmocka_unit_test(a_lost_command_raises_the_alarm_and_its_slot_comes_back),
        cmocka_unit_test(a_lost_command_comes_back_where_the_cpu_reaps),
        cmocka_unit_test(a_fatal_status_is_recovered_from),
        cmocka_unit_test(a_removed_drive_ends_every_wait),
        cmocka_unit_test(a_removed_drive_ends_every_wait_where_the_cpu_reaps),
        cmocka_unit_test(recovery_takes_back_what_a_kernel_left_behind),
        cmocka_unit_test(recovery_resets_the_controller_for_commands_that_do_not_end),
        cmocka_unit_test(closing_with_commands_in_flight_frees_everything),
        cmocka_unit_test(a_queue_out_of_reach_is_left_out_of_a_reset_and_readmitted),
        cmocka_unit_test(a_late_command_is_aborted_without_a_reset),
        cmocka_unit_test(a_late_command_is_aborted_though_the_gpu_is_full),
        cmocka_unit_test(alarms_from_a_full_gpu_cost_one_reset),
        cmocka_unit_test(a_queue_whose_thaw_found_no_room_is_opened_later),
        cmocka_unit_test(a_queue_whose_creation_is_lost_is_readmitted_all_the_same),
        cmocka_unit_test(a_queue_whose_reaper_does_not_leave_is_left_out_and_closed),
        cmocka_unit_test(an_alarm_for_a_command_that_has_ended_resets_nothing),
        cmocka_unit_test(recovery_does_not_call_a_queue_good_that_was_left_out),
        cmocka_unit_test(a_command_that_is_not_submitted_yet_outlives_a_reset),
        cmocka_unit_test(a_controller_that_must_not_be_reset_says_so),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
