/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The memory of queue pairs for GPU threads, their creation on the controller, and what a reset
 * does to them.
 *
 *   rings, PRP lists   memory that the controller reads and writes: pinned host memory, at tier 3
 *                      GPU memory
 *   bounce blocks      where data is
 *   words              struct gpunvme_dev_queue, slots and marks: always GPU memory, since atomics
 *                      across PCIe are none
 *   mirror             GPUNVME_REAPER_CPU: slots in pinned host memory
 */
#include <stdlib.h>

#include "base/fail.h"
#include "device/internal.h"

#define LINE ((size_t)128)

/* --- memory ----------------------------------------------------------------------------------- */

static bool is_one_piece(const struct gpunvme_buf *buf, size_t at, size_t nbytes)
{
    size_t piece = (size_t)1 << buf->bus_page_shift;

    if (!buf->bus_pages)
        return true;
    for (size_t next = (at / piece + 1) * piece; next < at + nbytes; next += piece)
        if (gpunvme_buf_bus(buf, next) != gpunvme_buf_bus(buf, at) + (next - at))
            return false;
    return true;
}

/*
 * In one piece on the bus, beginning at a page of the controller. Memory of a GPU, and any memory
 * where those pages are larger than the host's may be, has to be cut to that.
 */
gpunvme_err_t device_mem_alloc(struct gpunvme_device *dev, size_t nbytes, enum gpunvme_mem mem,
                               struct device_mem *out)
{
    struct gpunvme_transport *t = dev->transport;
    size_t page = (size_t)1 << dev->page_shift, at;
    size_t slack = mem == GPUNVME_MEM_GPU || page > 4096 ? page : 0;
    gpunvme_err_t err = t->ops->alloc(t, nbytes + slack, mem, &out->buf);

    if (err) {
        out->buf = (struct gpunvme_buf){0};
        return err;
    }
    at = (size_t)(-out->buf.bus & (page - 1));
    if (at > slack || !is_one_piece(&out->buf, at, nbytes)) {
        device_mem_free(dev, out);
        return base_fail(GPUNVME_ERR_UNSUPPORTED,
                         "%s: %zu bytes of %s memory are not in one piece on the bus; use fewer "
                         "entries, or a smaller max_transfer",
                         t->address, nbytes, mem == GPUNVME_MEM_GPU ? "GPU" : "host");
    }
    out->cpu = out->buf.cpu ? (char *)out->buf.cpu + at : NULL;
    out->gpu = out->buf.gpu ? (char *)out->buf.gpu + at : NULL;
    out->bus = gpunvme_buf_bus(&out->buf, at);
    return GPUNVME_OK;
}

void device_mem_free(struct gpunvme_device *dev, struct device_mem *mem)
{
    gpunvme_ctrl_free(dev->ctrl, &mem->buf);
    *mem = (struct device_mem){0};
}

static enum gpunvme_mem ring_mem(const struct gpunvme_device *dev)
{
    return dev->placement == GPUNVME_PLACEMENT_TIER3 ? GPUNVME_MEM_GPU : GPUNVME_MEM_PINNED;
}

/* Bounce blocks stand with the data, or in host memory where GPU memory comes in small pieces. */
static gpunvme_err_t alloc_bounces(struct device_queue *q, size_t nslots)
{
    struct gpunvme_device *dev = q->dev;
    size_t nbytes = nslots * dev->bounce_nbytes;
    gpunvme_err_t err = device_mem_alloc(dev, nbytes, device_data_mem(dev), &q->bounces);

    if (err == GPUNVME_ERR_UNSUPPORTED && device_data_mem(dev) == GPUNVME_MEM_GPU)
        err = device_mem_alloc(dev, nbytes, GPUNVME_MEM_PINNED, &q->bounces);
    return err;
}

static gpunvme_err_t alloc_queue(struct device_queue *q)
{
    struct gpunvme_device *dev = q->dev;
    uint32_t entries = dev->opts.entries;
    gpunvme_err_t err =
        device_mem_alloc(dev, GPUNVME_QPAIR_SQ_NBYTES(entries), ring_mem(dev), &q->sq);

    if (!err)
        err = device_mem_alloc(dev, GPUNVME_QPAIR_CQ_NBYTES(entries), ring_mem(dev), &q->cq);
    if (!err && dev->list_nbytes)
        err = device_mem_alloc(dev, (size_t)entries * dev->list_nbytes, ring_mem(dev), &q->lists);
    if (!err && dev->bounce_nbytes)
        err = alloc_bounces(q, entries);
    q->aborted = calloc(entries, sizeof(*q->aborted));
    if (!q->aborted && !err)
        err = base_fail(GPUNVME_ERR_NOMEM, "%u entries", entries);
    if (!err && dev->opts.reaper == GPUNVME_REAPER_CPU)
        err = gpunvme_mem_alloc(GPUNVME_DEV_QUEUE_SLOTS_NBYTES(entries), GPUNVME_MEM_PINNED,
                                &q->mirror);
    return err;
}

static void free_queue(struct device_queue *q)
{
    device_mem_free(q->dev, &q->sq);
    device_mem_free(q->dev, &q->cq);
    device_mem_free(q->dev, &q->lists);
    device_mem_free(q->dev, &q->bounces);
    gpunvme_mem_free(&q->mirror);
    free(q->aborted);
}

/* --- words ------------------------------------------------------------------------------------ */

static size_t lines(size_t nbytes)
{
    return (nbytes + LINE - 1) & ~(LINE - 1);
}

/* All structures first, one behind the other as kernels index them; then each queue's arrays. */
static gpunvme_err_t alloc_words(struct gpunvme_device *dev)
{
    size_t slots = lines(GPUNVME_DEV_QUEUE_SLOTS_NBYTES(dev->opts.entries));
    size_t ready = lines(GPUNVME_QPAIR_READY_NBYTES(dev->opts.entries));
    size_t heads = lines(dev->opts.queues * sizeof(struct gpunvme_dev_queue));
    gpunvme_err_t err =
        gpunvme_mem_alloc(heads + dev->opts.queues * (slots + ready), GPUNVME_MEM_GPU, &dev->words);
    char *at = dev->words.gpu;

    if (err)
        return err;
    for (uint32_t i = 0; i < dev->opts.queues; i++) {
        dev->queues[i].dev = dev;
        dev->queues[i].words = (struct gpunvme_dev_queue *)at + i;
        dev->queues[i].slots = (struct gpunvme_slot *)(at + heads + i * (slots + ready));
        dev->queues[i].ready = (uint32_t *)(at + heads + i * (slots + ready) + slots);
    }
    return GPUNVME_OK;
}

/* Initialised in memory of the CPU's, then sent to where the GPU finds it. */
static gpunvme_err_t send_words(struct device_queue *q, struct gpunvme_dev_queue *image)
{
    uint32_t entries = q->dev->opts.entries;
    struct gpunvme_slot *slots = image->slots;
    uint32_t *ready = image->ready;
    gpunvme_err_t err;

    image->home = q->words;
    image->slots = q->slots;
    image->ready = q->ready;
    err = gpunvme_mem_copy(q->slots, GPUNVME_MEM_GPU, slots, GPUNVME_MEM_HOST,
                           GPUNVME_DEV_QUEUE_SLOTS_NBYTES(entries));
    if (!err)
        err = gpunvme_mem_copy(q->ready, GPUNVME_MEM_GPU, ready, GPUNVME_MEM_HOST,
                               GPUNVME_QPAIR_READY_NBYTES(entries));
    if (!err)
        err = gpunvme_mem_copy(q->words, GPUNVME_MEM_GPU, image, GPUNVME_MEM_HOST, sizeof(*image));
    return err;
}

static gpunvme_err_t init_words(struct device_queue *q, uint32_t qid,
                                const struct nvme_foreign_bells *bells, struct gpunvme_slot *slots,
                                uint32_t *ready)
{
    struct gpunvme_device *dev = q->dev;
    struct gpunvme_dev_queue image;
    struct gpunvme_qpair_config config = {
        .qid = qid,
        .entries = dev->opts.entries,
        .sq = q->sq.gpu,
        .cq = q->cq.gpu,
        .slots = slots,
        .ready = ready,
        .ring = bells->ring,
        .ring_arg = bells->ring_arg,
    };
    gpunvme_err_t err = device_doorbell(dev, &bells->sq, &config.sq_doorbell);

    if (!err)
        err = device_doorbell(dev, &bells->cq, &config.cq_doorbell);
    if (!err)
        err = gpunvme_dev_queue_init(&image, &config);
    if (err)
        return err;
    image.reaper = (uint32_t)dev->opts.reaper;
    image.mirror = q->mirror.gpu;
    image.lists = q->lists.gpu;
    image.lists_bus = q->lists.bus;
    image.list_nbytes = dev->list_nbytes;
    image.bounces = q->bounces.gpu;
    image.bounces_bus = q->bounces.bus;
    image.bounce_nbytes = dev->bounce_nbytes;
    return send_words(q, &image);
}

gpunvme_err_t device_queue_settle(struct device_queue *q, uint64_t *in_flight)
{
    struct queue_order order = {.queue = q->words, .op = ORDER_SETTLE};
    struct order_result result = {0};
    gpunvme_err_t err = orders_run(q->dev->orders, &order, &result);

    if (in_flight)
        *in_flight = result.in_flight;
    return err;
}

gpunvme_err_t device_queue_look(struct device_queue *q)
{
    struct gpunvme_slot *seen = q->dev->seen.cpu;
    uint32_t entries = q->dev->opts.entries;

    if (q->dev->has_gpu)
        return gpunvme_mem_copy(seen, GPUNVME_MEM_PINNED, q->slots, GPUNVME_MEM_GPU,
                                GPUNVME_DEV_QUEUE_SLOTS_NBYTES(entries));
    for (uint32_t i = 0; i < entries; i++)
        seen[i].word = gpunvme_load_acquire64(&q->slots[i].word);
    return GPUNVME_OK;
}

/* --- what the controller object asks for ------------------------------------------------------ */

static gpunvme_err_t init(void *q_, uint32_t qid, const struct nvme_foreign_bells *bells)
{
    struct device_queue *q = q_;
    uint32_t entries = q->dev->opts.entries;
    struct gpunvme_slot *slots = malloc(GPUNVME_DEV_QUEUE_SLOTS_NBYTES(entries));
    uint32_t *ready = malloc(GPUNVME_QPAIR_READY_NBYTES(entries));
    gpunvme_err_t err = slots && ready ? init_words(q, qid, bells, slots, ready)
                                       : base_fail(GPUNVME_ERR_NOMEM, "queue %u", qid);

    free(slots);
    free(ready);
    if (!err && q->mirror.nbytes)
        device_mirror_init(q, bells, qid);
    return err;
}

/* Words that are open already stay so: then the order was carried out after all. */
static gpunvme_err_t thaw_words(struct device_queue *q)
{
    struct queue_order order = {.queue = q->words, .op = ORDER_THAW};
    gpunvme_err_t err = orders_run(q->dev->orders, &order, NULL);

    if (!err)
        q->state = DEVICE_WORDS_OPEN;
    return err;
}

static gpunvme_err_t freeze(void *q_, uint64_t deadline_ns)
{
    struct device_queue *q = q_;
    uint64_t now = gpunvme_clock_ns();
    struct queue_order order = {.queue = q->words,
                                .op = ORDER_FREEZE,
                                .budget_ns = deadline_ns > now ? deadline_ns - now : 0};
    gpunvme_err_t err = GPUNVME_OK;

    if (q->state == DEVICE_WORDS_FROZEN)
        return GPUNVME_OK;
    if (q->state == DEVICE_WORDS_THAWING) /* it can't be told from one that a thread has locked */
        err = thaw_words(q);
    if (!err)
        err = orders_run(q->dev->orders, &order, NULL);
    if (!err && q->mirror.nbytes) {
        err = device_mirror_freeze(q, deadline_ns);
        if (err) {
            order.op = ORDER_CANCEL_FREEZE;
            (void)orders_run(q->dev->orders, &order, NULL);
        }
    }
    if (!err)
        q->state = DEVICE_WORDS_FROZEN;
    return err;
}

static gpunvme_err_t fail_and_rewind(void *q_, uint16_t status)
{
    struct device_queue *q = q_;
    struct queue_order order = {.queue = q->words, .op = ORDER_FAIL_AND_REWIND, .status = status};
    gpunvme_err_t err = orders_run(q->dev->orders, &order, NULL);

    if (!err && q->mirror.nbytes)
        device_mirror_fail_and_rewind(q, status);
    return err;
}

static gpunvme_err_t thaw(void *q_)
{
    struct device_queue *q = q_;

    if (q->mirror.nbytes && q->state == DEVICE_WORDS_FROZEN)
        device_mirror_thaw(q);
    q->state = DEVICE_WORDS_THAWING;
    return thaw_words(q);
}

static const struct nvme_foreign_ops foreign_ops = {
    .init = init, .freeze = freeze, .fail_and_rewind = fail_and_rewind, .thaw = thaw};

/* --- all queues ------------------------------------------------------------------------------- */

static gpunvme_err_t open_queue(struct device_queue *q)
{
    struct nvme_foreign_config config = {
        .entries = q->dev->opts.entries, .ops = &foreign_ops, .arg = q};
    gpunvme_err_t err = alloc_queue(q);

    config.sq_bus = q->sq.bus;
    config.cq_bus = q->cq.bus;
    if (!err)
        err = nvme_ioq_create_foreign(q->dev->ctrl, &config, &q->ioq);
    if (err)
        free_queue(q);
    return err;
}

/* As many as the options ask for, or by default as there are. */
gpunvme_err_t device_queues_open(struct gpunvme_device *dev)
{
    bool is_default = !dev->opts.queues;
    struct gpunvme_ctrl_info info;
    gpunvme_err_t err = GPUNVME_OK;

    gpunvme_ctrl_get_info(dev->ctrl, &info);
    if (is_default)
        dev->opts.queues = info.max_io_queues < 16 ? info.max_io_queues : 16;
    if (dev->opts.queues > info.max_io_queues)
        return base_fail(GPUNVME_ERR_LIMIT,
                         "%u queues: the controller has %u; ask for more as it is opened "
                         "(io_queues)",
                         dev->opts.queues, info.max_io_queues);
    dev->queues = calloc(dev->opts.queues, sizeof(*dev->queues));
    if (!dev->queues)
        return base_fail(GPUNVME_ERR_NOMEM, "%u queues", dev->opts.queues);
    err = alloc_words(dev);
    while (!err && dev->nqueues < dev->opts.queues) {
        err = open_queue(&dev->queues[dev->nqueues]);
        if (!err)
            dev->nqueues++;
    }
    if (err == GPUNVME_ERR_LIMIT && is_default && dev->nqueues)
        err = GPUNVME_OK;
    return err;
}

gpunvme_err_t device_queues_close(struct gpunvme_device *dev)
{
    gpunvme_err_t first = GPUNVME_OK;

    for (uint32_t i = 0; i < dev->nqueues; i++) {
        gpunvme_err_t err = gpunvme_ioq_delete(dev->queues[i].ioq);

        if (!first)
            first = err;
    }
    for (uint32_t i = 0; i < dev->nqueues; i++)
        free_queue(&dev->queues[i]);
    free(dev->queues);
    gpunvme_mem_free(&dev->words);
    dev->queues = NULL;
    dev->nqueues = 0;
    return first;
}
