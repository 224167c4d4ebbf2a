/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The device object: options, the choice of a placement, opening, closing, recovery.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cond.h"
#include "base/fail.h"
#include "device/internal.h"
#include "memory/cuda.h"
#include "transport/common.h"

#define DEFAULT_ENTRIES      1024u
#define DEFAULT_MAX_TRANSFER (128u << 10)
#define SMALLEST_TRANSFER    4096u
#define FEWEST_ENTRIES       64u /* before the search for memory in one piece is given up */

#define SETTLE_NS                                                                                  \
    UINT64_C(100000000) /* how long recover waits for commands to end by themselves                \
                         */

void gpunvme_device_opts_init(struct gpunvme_device_opts *opts)
{
    *opts = (struct gpunvme_device_opts){.timeout_ms = 10000, .check_ms = 5};
}

enum gpunvme_mem device_data_mem(const struct gpunvme_device *dev)
{
    return dev->placement == GPUNVME_PLACEMENT_TIER1 ? GPUNVME_MEM_PINNED : GPUNVME_MEM_GPU;
}

gpunvme_err_t device_enter(const struct gpunvme_device *dev)
{
    return dev->has_gpu ? mem_cuda_enter(dev->gpu) : GPUNVME_OK;
}

void device_leave(const struct gpunvme_device *dev)
{
    if (dev->has_gpu)
        mem_cuda_leave();
}

/* --- options ---------------------------------------------------------------------------------- */

static gpunvme_err_t check_opts(const struct gpunvme_device_opts *o)
{
    if ((unsigned)o->placement > GPUNVME_PLACEMENT_TIER3)
        return base_fail(GPUNVME_ERR_INVALID, "placement is %d: use GPUNVME_PLACEMENT_*",
                         (int)o->placement);
    if ((unsigned)o->reaper > GPUNVME_REAPER_CPU)
        return base_fail(GPUNVME_ERR_INVALID, "reaper is %d: use GPUNVME_REAPER_*", (int)o->reaper);
    if (o->entries &&
        (o->entries < 2 || o->entries > GPUNVME_QPAIR_MAX_ENTRIES || o->entries & (o->entries - 1)))
        return base_fail(GPUNVME_ERR_INVALID, "%u entries: a power of two from 2 to %u", o->entries,
                         GPUNVME_QPAIR_MAX_ENTRIES);
    if (!o->timeout_ms || !o->check_ms)
        return base_fail(GPUNVME_ERR_INVALID, "timeout_ms or check_ms is 0: begin with "
                                              "gpunvme_device_opts_init()");
    if (o->placement == GPUNVME_PLACEMENT_TIER3 && o->reaper == GPUNVME_REAPER_CPU)
        return base_fail(GPUNVME_ERR_UNSUPPORTED,
                         "a thread of the CPU can't reap queues in GPU memory: take tier 2, or "
                         "another reaper");
    return GPUNVME_OK;
}

/* What MDTS and a PRP list of one page allow. */
static gpunvme_err_t choose_max_transfer(struct gpunvme_device *dev, uint64_t mdts)
{
    uint64_t page = UINT64_C(1) << dev->page_shift, most = page / 8 * page;
    uint32_t asked = dev->opts.max_transfer;

    if (most > mdts)
        most = mdts;
    if (asked % SMALLEST_TRANSFER)
        return base_fail(GPUNVME_ERR_INVALID, "max_transfer is %u: a multiple of %u", asked,
                         SMALLEST_TRANSFER);
    if (asked > most)
        return base_fail(GPUNVME_ERR_LIMIT,
                         "max_transfer is %u: at most %llu here (MDTS, and a PRP list of one page)",
                         asked, (unsigned long long)most);
    if (!asked)
        dev->opts.max_transfer =
            (uint32_t)(most < DEFAULT_MAX_TRANSFER ? most & ~(uint64_t)(SMALLEST_TRANSFER - 1)
                                                   : DEFAULT_MAX_TRANSFER);
    return GPUNVME_OK;
}

/*
 * Bytes of a command's PRP list: n whole pages of data at any offset touch n + 1 pages, the first
 * of which PRP1 has. None where PRP2 has the other.
 */
static uint32_t list_nbytes(const struct gpunvme_device *dev)
{
    uint32_t page = 1u << dev->page_shift, n = (dev->opts.max_transfer + page - 1) / page;
    uint32_t nbytes = 16;

    while (nbytes < 8 * n)
        nbytes *= 2;
    return n > 1 ? nbytes : 0;
}

/* The largest block of the namespaces that there is I/O for. */
static uint32_t largest_block(struct gpunvme_ctrl *ctrl)
{
    const struct gpunvme_ns *ns;
    uint32_t largest = 0;

    for (uint32_t i = 0; (ns = gpunvme_ctrl_ns_at(ctrl, i)); i++)
        if (ns->max_blocks && ns->block_size > largest)
            largest = ns->block_size;
    return largest;
}

static gpunvme_err_t set_limits(struct gpunvme_device *dev)
{
    struct gpunvme_ctrl_info info;
    gpunvme_err_t err;

    gpunvme_ctrl_get_info(dev->ctrl, &info);
    dev->resets_before = info.resets;
    dev->page_shift = (unsigned)__builtin_ctz(info.page_size);
    if (dev->opts.entries > info.max_entries)
        return base_fail(GPUNVME_ERR_LIMIT, "%u entries: this controller's queues have at most %u",
                         dev->opts.entries, info.max_entries);
    err = choose_max_transfer(dev, info.max_transfer);
    if (err)
        return err;
    dev->list_nbytes = list_nbytes(dev);
    dev->bounce_nbytes = dev->opts.no_byte_ranges ? 0 : largest_block(dev->ctrl);
    return GPUNVME_OK;
}

/* --- placement -------------------------------------------------------------------------------- */

/* A failure that another placement may not have. */
static bool is_of_placement(gpunvme_err_t err)
{
    return err == GPUNVME_ERR_UNSUPPORTED || gpunvme_err_nvme_status(err);
}

static gpunvme_err_t close_queues(struct gpunvme_device *dev, gpunvme_err_t err)
{
    struct base_failure failure;

    base_keep(&failure, err);
    (void)device_queues_close(dev);
    device_doorbells_close(dev);
    return base_restore(&failure);
}

/* Where the size of queues is left to us: as large as memory in one piece on the bus can be had. */
static gpunvme_err_t open_queues(struct gpunvme_device *dev)
{
    struct gpunvme_device_opts asked = dev->opts;
    struct gpunvme_ctrl_info info;
    gpunvme_err_t err;

    gpunvme_ctrl_get_info(dev->ctrl, &info);
    if (!asked.entries)
        dev->opts.entries = info.max_entries < DEFAULT_ENTRIES ? info.max_entries : DEFAULT_ENTRIES;
    for (;;) {
        uint32_t entries = dev->opts.entries;

        err = device_doorbells_open(dev);
        if (err)
            return close_queues(dev, err);
        err = device_queues_open(dev);
        if (!err)
            return err;
        err = close_queues(dev, err);
        dev->opts = asked;
        if (err != GPUNVME_ERR_UNSUPPORTED || asked.entries || entries <= FEWEST_ENTRIES)
            return err;
        dev->opts.entries = entries / 2;
    }
}

/* The highest tier that AUTO tries, and why not a higher one. */
static enum gpunvme_placement highest_tier(struct gpunvme_device *dev)
{
    enum gpunvme_placement tier = GPUNVME_PLACEMENT_TIER3;
    const char *why = "";

    if (!strcmp(dev->transport->ops->name, "sim") && !dev->transport->gpu_doorbells) {
        tier = GPUNVME_PLACEMENT_TIER1;
        why = "the software controller's threads reach GPU memory by CUDA's copies only, which are "
              "slower, and which kernels on many streams can block (SIM.md); its engine on the GPU "
              "(engine=gpu) has queues and data there";
    } else if (dev->opts.reaper == GPUNVME_REAPER_CPU) {
        tier = GPUNVME_PLACEMENT_TIER2;
        why = "a thread of the CPU can't reap queues in GPU memory";
    }
    snprintf(dev->why_not_higher, sizeof(dev->why_not_higher), "%s", why);
    return tier;
}

/* Whether the controller reaches memory of the GPU at all, and what it writes there is in order. */
static gpunvme_err_t check_gpu_memory(struct gpunvme_device *dev)
{
    const char *lacks = transport_writes_lack(dev->transport, dev->gpu);
    struct device_mem probe = {0};
    gpunvme_err_t err;

    if (lacks)
        return base_fail(GPUNVME_ERR_UNSUPPORTED, "%s: take tier 1", lacks);
    err = device_mem_alloc(dev, 4096, GPUNVME_MEM_GPU, &probe);
    device_mem_free(dev, &probe);
    return err;
}

static gpunvme_err_t try_tier(struct gpunvme_device *dev, enum gpunvme_placement tier)
{
    static const char *const what[] = {"", "", "data", "queues"};
    gpunvme_err_t err = GPUNVME_OK;

    dev->placement = tier;
    if (tier != GPUNVME_PLACEMENT_TIER1)
        err = check_gpu_memory(dev);
    if (!err)
        err = open_queues(dev);
    if (err && !*dev->why_not_higher)
        snprintf(dev->why_not_higher, sizeof(dev->why_not_higher),
                 "%s: no %s in GPU memory: %.180s", dev->transport->ops->name, what[tier],
                 gpunvme_err_detail());
    return err;
}

static gpunvme_err_t choose_placement(struct gpunvme_device *dev)
{
    enum gpunvme_placement tier;
    gpunvme_err_t err;

    if (dev->opts.placement != GPUNVME_PLACEMENT_AUTO) {
        err = try_tier(dev, dev->opts.placement);
        if (!err && dev->placement != GPUNVME_PLACEMENT_TIER3)
            snprintf(dev->why_not_higher, sizeof(dev->why_not_higher), "tier %d was asked for",
                     (int)dev->placement);
        return err;
    }
    if (!dev->has_gpu) {
        snprintf(dev->why_not_higher, sizeof(dev->why_not_higher), "no GPU: %s",
                 gpunvme_mem_gpu_why_not());
        dev->placement = GPUNVME_PLACEMENT_TIER1;
        return open_queues(dev);
    }
    tier = highest_tier(dev);
    err = try_tier(dev, tier);
    while (is_of_placement(err) && tier > GPUNVME_PLACEMENT_TIER1)
        err = try_tier(dev, --tier);
    return err;
}

/* --- opening and closing ---------------------------------------------------------------------- */

static gpunvme_err_t find_gpu(struct gpunvme_device *dev)
{
    gpunvme_err_t err;

    dev->ordering = (struct mem_ordering){-1, -1};
    dev->has_gpu = !gpunvme_mem_gpu_is_host();
    if (!dev->has_gpu)
        return GPUNVME_OK;
    err = gpunvme_mem_gpu_current(&dev->gpu);
    if (!err)
        dev->ordering = mem_cuda_ordering(dev->gpu);
    return err;
}

static gpunvme_err_t start(struct gpunvme_device *dev)
{
    gpunvme_err_t err = find_gpu(dev);

    if (!err)
        err = nvme_shadow_stop(dev->ctrl);
    if (!err)
        err = set_limits(dev);
    if (!err)
        err = orders_open(dev->has_gpu, dev->gpu, &dev->orders);
    if (!err)
        err = gpunvme_mem_alloc(sizeof(uint32_t), GPUNVME_MEM_PINNED, &dev->alarm);
    if (!err)
        err = choose_placement(dev);
    if (!err)
        err = gpunvme_mem_alloc(GPUNVME_DEV_QUEUE_SLOTS_NBYTES(dev->opts.entries),
                                GPUNVME_MEM_PINNED, &dev->seen);
    if (!err)
        err = device_reaper_start(dev);
    if (!err)
        err = device_watch_start(dev);
    return err;
}

static void init_locks(struct gpunvme_device *dev)
{

    pthread_mutex_init(&dev->views, NULL);
    pthread_mutex_init(&dev->watch_lock, NULL);
    base_cond_init(&dev->watch_wake);
}

gpunvme_err_t gpunvme_device_open(struct gpunvme_ctrl *ctrl, const struct gpunvme_device_opts *opts,
                                  struct gpunvme_device **out)
{
    struct gpunvme_device *dev;
    gpunvme_err_t err;

    if (!ctrl || !out)
        return base_fail(GPUNVME_ERR_INVALID, "NULL argument");
    dev = calloc(1, sizeof(*dev));
    if (!dev)
        return base_fail(GPUNVME_ERR_NOMEM, "a device");
    dev->ctrl = ctrl;
    dev->transport = gpunvme_ctrl_transport(ctrl);
    if (opts)
        dev->opts = *opts;
    else
        gpunvme_device_opts_init(&dev->opts);
    init_locks(dev);
    err = check_opts(&dev->opts);
    if (!err)
        err = start(dev);
    if (err) {
        struct base_failure failure;

        base_keep(&failure, err);
        (void)gpunvme_device_close(dev);
        return base_restore(&failure);
    }
    *out = dev;
    return GPUNVME_OK;
}

gpunvme_err_t gpunvme_device_close(struct gpunvme_device *dev)
{
    gpunvme_err_t err, orders_err;

    if (!dev)
        return GPUNVME_OK;
    device_watch_stop(dev);
    device_reaper_stop(dev);
    err = device_queues_close(dev);
    device_doorbells_close(dev);
    device_pages_free(dev);
    orders_err = orders_close(dev->orders);
    gpunvme_mem_free(&dev->alarm);
    gpunvme_mem_free(&dev->seen);
    pthread_mutex_destroy(&dev->views);
    pthread_mutex_destroy(&dev->watch_lock);
    pthread_cond_destroy(&dev->watch_wake);
    free(dev);
    return err ? err : orders_err;
}

/* --- what it tells, and memory for data ------------------------------------------------------- */

static void add_nbytes(const struct gpunvme_buf *buf, struct gpunvme_device_info *info)
{
    if (buf->mem == GPUNVME_MEM_GPU && info->gpu >= 0)
        info->gpu_nbytes += buf->nbytes;
    else
        info->host_nbytes += buf->nbytes;
}

void gpunvme_device_get_info(struct gpunvme_device *dev, struct gpunvme_device_info *info)
{
    struct gpunvme_ctrl_info ctrl;

    gpunvme_ctrl_get_info(dev->ctrl, &ctrl);
    *info = (struct gpunvme_device_info){
        .placement = dev->placement,
        .why_not_higher = dev->placement == GPUNVME_PLACEMENT_TIER3 ? "" : dev->why_not_higher,
        .queues = dev->nqueues,
        .entries = dev->opts.entries,
        .max_transfer = dev->opts.max_transfer,
        .reaper = dev->opts.reaper,
        .recoveries = ctrl.resets - dev->resets_before,
        .gpu = dev->has_gpu ? (int)dev->gpu : -1,
        .gpu_writes_ordering = dev->ordering.writes,
        .gpu_flush_options = dev->ordering.flush_options,
    };
    add_nbytes(&dev->words, info);
    for (uint32_t i = 0; i < dev->nqueues; i++) {
        add_nbytes(&dev->queues[i].sq.buf, info);
        add_nbytes(&dev->queues[i].cq.buf, info);
        add_nbytes(&dev->queues[i].lists.buf, info);
        add_nbytes(&dev->queues[i].bounces.buf, info);
        add_nbytes(&dev->queues[i].mirror, info);
    }
}

gpunvme_err_t gpunvme_device_alloc(struct gpunvme_device *dev, size_t nbytes,
                                   struct gpunvme_buf *buf)
{
    gpunvme_err_t err;

    if (!dev || !buf || !nbytes)
        return base_fail(GPUNVME_ERR_INVALID, "NULL argument, or a size of 0");
    err = device_enter(dev);
    if (err)
        return err;
    err = gpunvme_ctrl_alloc(dev->ctrl, nbytes, device_data_mem(dev), buf);
    device_leave(dev);
    return err;
}

void gpunvme_device_free(struct gpunvme_device *dev, struct gpunvme_buf *buf)
{
    if (dev)
        gpunvme_ctrl_free(dev->ctrl, buf);
}

/* --- recovery --------------------------------------------------------------------------------- */

static gpunvme_err_t count_in_flight(struct gpunvme_device *dev, uint64_t *n)
{
    *n = 0;
    for (uint32_t i = 0; i < dev->nqueues; i++) {
        struct device_queue *q = &dev->queues[i];
        gpunvme_err_t err = GPUNVME_OK;
        uint64_t in_flight;

        if (q->mirror.nbytes)
            in_flight = device_mirror_in_flight(q);
        else
            err = device_queue_settle(q, &in_flight);
        if (err)
            return err;
        *n += in_flight;
    }
    return GPUNVME_OK;
}

/* Gives commands in flight a moment to end by themselves; a reset ends those that do not. */
static gpunvme_err_t end_commands(struct gpunvme_device *dev)
{
    uint64_t until = gpunvme_clock_ns() + SETTLE_NS, n;
    const struct timespec nap = {.tv_nsec = 1000000};
    gpunvme_err_t err = count_in_flight(dev, &n);

    while (!err && n && gpunvme_clock_ns() < until) {
        nanosleep(&nap, NULL);
        err = count_in_flight(dev, &n);
    }
    return !err && n ? nvme_recover(dev->ctrl) : err;
}

/* Frees every slot of a queue that nobody uses. */
static gpunvme_err_t reclaim(struct gpunvme_device *dev, struct device_queue *q)
{
    struct queue_order order = {.queue = q->words, .op = ORDER_RECLAIM};

    return orders_run(dev->orders, &order, NULL);
}

/* The controller does not have a queue that was left out: none of its commands is in flight. */
static gpunvme_err_t readmit(struct gpunvme_device *dev, struct device_queue *q)
{
    gpunvme_err_t err = nvme_ioq_is_left_out(q->ioq) ? reclaim(dev, q) : GPUNVME_OK;

    return err ? err : nvme_ioq_readmit(q->ioq);
}

/* A controller that was given up gets one more chance, unless its options forbid resets. */
static gpunvme_err_t check(struct gpunvme_device *dev)
{
    gpunvme_err_t err = gpunvme_ctrl_check(dev->ctrl);

    if (err && err != GPUNVME_ERR_REMOVED)
        err = nvme_recover(dev->ctrl);
    for (uint32_t i = 0; !err && i < dev->nqueues; i++)
        err = readmit(dev, &dev->queues[i]);
    return err;
}

gpunvme_err_t gpunvme_device_recover(struct gpunvme_device *dev)
{
    gpunvme_err_t err;

    if (!dev)
        return base_fail(GPUNVME_ERR_INVALID, "dev is NULL");
    err = check(dev);
    if (!err)
        err = end_commands(dev);
    for (uint32_t i = 0; !err && i < dev->nqueues; i++) {
        err =
            readmit(dev, &dev->queues[i]); /* the reset that ended commands may have left it out */
        if (!err)
            err = reclaim(dev, &dev->queues[i]);
    }
    if (!err)
        gpunvme_store_release32((uint32_t *)dev->alarm.cpu, 0);
    return err;
}
