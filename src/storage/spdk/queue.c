/* SPDX-License-Identifier: BSD-3-Clause
 *
 * SPDK's queue pairs, and the commands of slots on them. See struct nvme_driver.
 *
 * SPDK calls back from within its functions, also from a reset that another thread makes. So a
 * callback only notes how the command ended. A reset takes seconds: it is made by a thread that may
 * block, and workers pass by the queues whose locks it holds.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "storage/spdk/spdk.h"

#define LOOK_EVERY_NS 5000000u /* at the admin queue */

/* A slot's. Under the queue's lock: */
struct command {
    struct gspdk_queue *queue;
    _Atomic bool is_back; /* SPDK does not have it */
    bool is_late;
    gpunvme_err_t err; /* how it ended */
};

struct gspdk_queue {
    struct gspdk_ctrlr *ctrlr;
    struct gspdk_queue *next; /* under the controller's lock */
    pthread_mutex_t lock;     /* of all below, and of SPDK's queue pair */
    struct spdk_nvme_qpair *handle;
    bool has_failed;         /* only a reset helps */
    struct spdk_nvme_ns *ns; /* the last one that was used; a reset invalidates it */
    uint64_t looked_ns;
    unsigned n;
    struct command commands[];
};

/* ---- Queue pairs ----------------------------------------------------------------------------- */

static bool open_handle(struct gspdk_queue *q)
{
    struct spdk_nvme_io_qpair_opts opts;

    spdk_nvme_ctrlr_get_default_io_qpair_opts(q->ctrlr->handle, &opts, sizeof(opts));
    opts.io_queue_size = q->n + 1; /* a full ring has one free entry */
    opts.io_queue_requests = 2 * q->n + 2;
    opts.delay_cmd_submit = true; /* one doorbell for all that a poll finds submitted */
    q->handle = spdk_nvme_ctrlr_alloc_io_qpair(q->ctrlr->handle, &opts, sizeof(opts));
    q->has_failed = false;
    q->ns = NULL;
    return q->handle;
}

static void back(struct command *cmd, gpunvme_err_t err)
{
    cmd->err = cmd->is_late && err ? GPUNVME_ERR_TIMEOUT : err;
    atomic_store_explicit(&cmd->is_back, true, memory_order_release);
}

/* Ends what SPDK still has. Under the lock. */
static void close_handle(struct gspdk_queue *q)
{
    if (q->handle)
        spdk_nvme_ctrlr_free_io_qpair(q->handle);
    q->handle = NULL;
    for (unsigned i = 0; i < q->n; i++)
        if (!atomic_load(&q->commands[i].is_back))
            back(&q->commands[i], GPUNVME_ERR_REMOVED);
}

/*
 * All locks are held. SPDK revives queue pairs, but ends the commands that were in flight only on
 * the PCI bus: so they are all made anew, which ends them on any transport.
 */
static void reset_all(struct gspdk_ctrlr *ctrlr)
{
    bool fine = !spdk_nvme_ctrlr_reset(ctrlr->handle);

    atomic_store(&ctrlr->gone, !fine);
    for (struct gspdk_queue *q = ctrlr->queues; q; q = q->next) {
        close_handle(q);
        fine = fine && open_handle(q);
    }
    atomic_store(&ctrlr->gone, !fine);
}

/* Resets the controller unless it was since `seen`. No lock is held. */
static void reset(struct gspdk_ctrlr *ctrlr, unsigned seen)
{
    struct gspdk_guard *guard;

    pthread_mutex_lock(&ctrlr->lock);
    if (ctrlr->nresets == seen && !atomic_load(&ctrlr->gone)) {
        for (struct gspdk_queue *q = ctrlr->queues; q; q = q->next)
            pthread_mutex_lock(&q->lock);
        guard = gspdk_guard(ctrlr);
        reset_all(ctrlr);
        gspdk_guard_end(guard);
        ctrlr->nresets++;
        for (struct gspdk_queue *q = ctrlr->queues; q; q = q->next)
            pthread_mutex_unlock(&q->lock);
    }
    pthread_mutex_unlock(&ctrlr->lock);
}

/* ---- Commands of slots ----------------------------------------------------------------------- */

/* A command that nobody answered has the status that SPDK made up for it. */
static gpunvme_err_t error_of(const struct command *cmd, const struct spdk_nvme_cpl *cpl)
{
    if (!spdk_nvme_cpl_is_error(cpl))
        return GPUNVME_OK;
    if (atomic_load(&cmd->queue->ctrlr->gone))
        return GPUNVME_ERR_REMOVED;
    if (cpl->status.sct == SPDK_NVME_SCT_GENERIC &&
        (cpl->status.sc == SPDK_NVME_SC_ABORTED_SQ_DELETION ||
         cpl->status.sc == SPDK_NVME_SC_ABORTED_BY_REQUEST))
        return GPUNVME_ERR_ABORTED;
    return GPUNVME_ERR_NVME(cpl->status_raw >> 1);
}

static void on_complete(void *cmd, const struct spdk_nvme_cpl *cpl)
{
    back(cmd, error_of(cmd, cpl));
}

/* SPDK's 0 or negative errno; under the lock. */
static int start(const struct nvme_slot *slot, enum gpunvme_op op, void *addr)
{
    struct command *cmd = slot->command;
    struct gspdk_queue *q = cmd->queue;
    uint32_t nsid = slot->s->ns->nsid;

    if (!q->handle || q->has_failed)
        return -ENXIO;
    if (!q->ns || spdk_nvme_ns_get_id(q->ns) != nsid)
        q->ns = spdk_nvme_ctrlr_get_ns(q->ctrlr->handle, nsid);
    if (!q->ns)
        return -ENODEV;
    if (op == GPUNVME_OP_FLUSH)
        return spdk_nvme_ns_cmd_flush(q->ns, q->handle, on_complete, cmd);
    if (op == GPUNVME_OP_READ)
        return spdk_nvme_ns_cmd_read(q->ns, q->handle, addr, slot->slba, slot->nlb, on_complete,
                                     cmd, 0);
    return spdk_nvme_ns_cmd_write(q->ns, q->handle, addr, slot->slba, slot->nlb, on_complete, cmd,
                                  0);
}

static gpunvme_err_t submit(struct nvme_slot *slot, enum gpunvme_op op, void *addr)
{
    struct command *cmd = slot->command;
    struct gspdk_queue *q = cmd->queue;
    int ret = 0;

    if (pthread_mutex_trylock(&q->lock))
        return GPUNVME_ERR_AGAIN; /* after the reset */
    cmd->err = GPUNVME_OK;
    cmd->is_late = false;
    /* Without a cache, what was written is on the medium. */
    if (op != GPUNVME_OP_FLUSH || ((const struct gspdk_store *)slot->s)->has_flush) {
        atomic_store(&cmd->is_back, false); /* before: SPDK may call back at once */
        gspdk_hush();
        ret = start(slot, op, addr);
        if (ret)
            atomic_store(&cmd->is_back, true);
    }
    if (ret == -ENXIO && q->handle)
        q->has_failed = true;
    pthread_mutex_unlock(&q->lock);
    if (!ret)
        return GPUNVME_OK;
    if (ret == -ENOMEM)
        return GPUNVME_ERR_AGAIN;
    if (ret == -ENXIO)
        return GPUNVME_ERR_CLOSED; /* block() makes a reset then, or says that it is gone */
    return base_fail(GPUNVME_ERR_IO, "SPDK takes no command: %s%s", strerror(-ret), gspdk_said());
}

static gpunvme_err_t test(struct nvme_slot *slot)
{
    const struct command *cmd = slot->command;

    if (!atomic_load_explicit(&cmd->is_back, memory_order_acquire))
        return GPUNVME_ERR_AGAIN;
    return cmd->err ? base_fail(cmd->err, "%s", gpunvme_err_name(cmd->err)) : GPUNVME_OK;
}

static gpunvme_err_t block(struct nvme_slot *slot)
{
    struct command *cmd = slot->command;
    struct gspdk_queue *q = cmd->queue;
    bool is_late = slot->state == SLOT_LATE, must_reset;
    unsigned seen;

    pthread_mutex_lock(&q->lock);
    seen = q->ctrlr->nresets;
    cmd->is_late = is_late;
    must_reset = q->has_failed || !atomic_load(&cmd->is_back);
    pthread_mutex_unlock(&q->lock);
    if (must_reset)
        reset(q->ctrlr, seen);
    if (is_late)
        return test(slot);
    if (!atomic_load(&q->ctrlr->gone))
        return GPUNVME_OK;
    return base_fail(GPUNVME_ERR_REMOVED, "spdk:%s", q->ctrlr->address.where);
}

/* ---- Queues ---------------------------------------------------------------------------------- */

static void poll_queue(void *queue)
{
    struct gspdk_queue *q = queue;
    uint64_t now = nvme_rough_now();

    if (pthread_mutex_trylock(&q->lock))
        return; /* a reset has it */
    if (q->handle && spdk_nvme_qpair_process_completions(q->handle, 0) < 0)
        q->has_failed = true;
    if (q->handle && now - q->looked_ns >= LOOK_EVERY_NS) {
        q->looked_ns = now;
        if (spdk_nvme_ctrlr_process_admin_completions(q->ctrlr->handle) < 0)
            q->has_failed = true;
    }
    pthread_mutex_unlock(&q->lock);
}

static void close_queue(void *queue)
{
    struct gspdk_queue *q = queue, **link;

    if (!q)
        return;
    pthread_mutex_lock(&q->ctrlr->lock);
    for (link = &q->ctrlr->queues; *link != q;)
        link = &(*link)->next;
    *link = q->next;
    close_handle(q);
    pthread_mutex_unlock(&q->ctrlr->lock);
    pthread_mutex_destroy(&q->lock);
    free(q);
}

/* Under the controller's lock. */
static gpunvme_err_t add(struct gspdk_ctrlr *ctrlr, struct gspdk_queue *q)
{
    gspdk_hush();
    if (atomic_load(&ctrlr->gone))
        return base_fail(GPUNVME_ERR_REMOVED, "spdk:%s", ctrlr->address.where);
    if (!open_handle(q))
        return base_fail(GPUNVME_ERR_LIMIT, "spdk:%s gives no queue pair of %u commands%s",
                         ctrlr->address.where, q->n, gspdk_said());
    q->next = ctrlr->queues;
    ctrlr->queues = q;
    return GPUNVME_OK;
}

static gpunvme_err_t open_queue(void *ctrl, struct nvme_slot *slots, unsigned n, void **out)
{
    struct gspdk_queue *q = calloc(1, sizeof(*q) + n * sizeof(q->commands[0]));
    struct gspdk_ctrlr *ctrlr = ctrl;
    gpunvme_err_t err;

    if (!q)
        return base_fail(GPUNVME_ERR_NOMEM, "a queue");
    q->ctrlr = ctrlr;
    q->n = n;
    pthread_mutex_init(&q->lock, NULL);
    for (unsigned i = 0; i < n; i++) {
        q->commands[i].queue = q;
        atomic_init(&q->commands[i].is_back, true);
        slots[i].command = &q->commands[i];
    }
    pthread_mutex_lock(&ctrlr->lock);
    err = add(ctrlr, q);
    pthread_mutex_unlock(&ctrlr->lock);
    if (err) {
        pthread_mutex_destroy(&q->lock);
        free(q);
    } else {
        *out = q;
    }
    return err;
}

/* ---- Bounce buffers, and the controller ------------------------------------------------------ */

static gpunvme_err_t alloc(size_t nbytes, struct gpunvme_buf *out)
{
    void *ptr = spdk_malloc(nbytes, 4096, NULL, SPDK_ENV_NUMA_ID_ANY, SPDK_MALLOC_DMA);

    if (!ptr)
        return base_fail(GPUNVME_ERR_NOMEM,
                         "%zu MiB of SPDK's memory for bounce buffers: ask for fewer (threads=) or "
                         "smaller ones (chunk=)",
                         nbytes >> 20);
    if (gpunvme_mem_gpu_is_host() || gpunvme_mem_register(ptr, nbytes, GPUNVME_MEM_PINNED, out))
        *out = (struct gpunvme_buf){.cpu = ptr, .nbytes = nbytes}; /* slower */
    return GPUNVME_OK;
}

static void free_buf(struct gpunvme_buf *buf)
{
    void *ptr = buf->cpu;

    if (buf->mem == GPUNVME_MEM_PINNED)
        gpunvme_mem_unregister(buf);
    spdk_free(ptr);
}

/* SPDK would give one that was removed again as it is. */
static gpunvme_err_t check(void *ctrl)
{
    struct gspdk_ctrlr *ctrlr = ctrl;

    if (!atomic_load(&ctrlr->gone))
        return GPUNVME_OK;
    return base_fail(GPUNVME_ERR_BUSY,
                     "spdk:%s was removed: close the stores that still have it open",
                     ctrlr->address.where);
}

const struct nvme_driver gspdk_driver = {.attach = gspdk_attach,
                                         .detach = gspdk_detach,
                                         .check = check,
                                         .open = open_queue,
                                         .close = close_queue,
                                         .poll = poll_queue,
                                         .alloc = alloc,
                                         .free = free_buf,
                                         .submit = submit,
                                         .test = test,
                                         .block = block};
