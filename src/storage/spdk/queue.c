/* SPDX-License-Identifier: BSD-3-Clause
 *
 * SPDK's queue pairs, with deadlines, and an end for every command. See env.h.
 *
 * SPDK calls back from within its functions, also from a reset that another thread makes. So a
 * callback only moves the command from one list of its queue to another, under the queue's lock;
 * the queue's thread takes it from there.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "storage/futex.h"
#include "storage/spdk/internal.h"

#define LOOK_EVERY_NS  5000000   /* at deadlines and at the admin queue */
#define ABORT_GRACE_NS 500000000 /* from Abort to reset */
#define POLLS_A_LOOK   32        /* polls between two looks at the clock */

struct gspdk_queue {
    struct gspdk_ctrlr *ctrlr;
    struct gspdk_queue *next; /* under the controller's lock */

    pthread_mutex_t lock; /* of all the rest; its thread has it but for resets */
    struct spdk_nvme_qpair *handle;
    struct spdk_nvme_ns *ns; /* as of reset `ns_reset`: a reset invalidates it */
    uint32_t ns_id;
    unsigned ns_reset;
    unsigned depth, ninflight;
    struct gspdk_cmd *inflight; /* in the order of submission, in a ring */
    struct gspdk_cmd *done;     /* likewise */
    unsigned npolls;
    uint64_t looked_ns;
};

static void append(struct gspdk_cmd **list, struct gspdk_cmd *cmd)
{
    if (!*list) {
        *list = cmd->next = cmd->prev = cmd;
        return;
    }
    cmd->next = *list;
    cmd->prev = (*list)->prev;
    cmd->prev->next = cmd;
    (*list)->prev = cmd;
}

static void take_out(struct gspdk_cmd **list, struct gspdk_cmd *cmd)
{
    if (cmd->next == cmd) {
        *list = NULL;
        return;
    }
    cmd->prev->next = cmd->next;
    cmd->next->prev = cmd->prev;
    if (*list == cmd)
        *list = cmd->next;
}

static void finish(struct gspdk_cmd *cmd, gpunvme_err_t err)
{
    struct gspdk_queue *queue = cmd->queue;

    cmd->err = err;
    take_out(&queue->inflight, cmd);
    append(&queue->done, cmd);
    queue->ninflight--;
}

/* A command that nobody answered has the status that SPDK made up for it. */
static gpunvme_err_t error_of(const struct gspdk_cmd *cmd, const struct spdk_nvme_cpl *cpl)
{
    if (!spdk_nvme_cpl_is_error(cpl))
        return GPUNVME_OK;
    if (cmd->aborted_ns)
        return GPUNVME_ERR_TIMEOUT;
    if (atomic_load(&cmd->queue->ctrlr->gone))
        return GPUNVME_ERR_REMOVED;
    if (cpl->status.sct == SPDK_NVME_SCT_GENERIC &&
        (cpl->status.sc == SPDK_NVME_SC_ABORTED_SQ_DELETION ||
         cpl->status.sc == SPDK_NVME_SC_ABORTED_BY_REQUEST))
        return GPUNVME_ERR_ABORTED;
    return GPUNVME_ERR_NVME(cpl->status_raw >> 1);
}

static void on_complete(void *arg, const struct spdk_nvme_cpl *cpl)
{
    struct gspdk_cmd *cmd = arg;

    finish(cmd, error_of(cmd, cpl));
}

/* ---- the address of a command: SPDK asks for it in as many parts as it likes ---- */

static void on_reset_sgl(void *arg, uint32_t offset)
{
    struct gspdk_cmd *cmd = arg;

    cmd->at = offset;
}

static int on_next_sge(void *arg, void **address, uint32_t *nbytes)
{
    struct gspdk_cmd *cmd = arg;

    *address = (char *)cmd->addr + cmd->at;
    *nbytes = cmd->nbytes - cmd->at;
    cmd->at = cmd->nbytes;
    return 0;
}

/* ---- queues ---- */

static struct spdk_nvme_qpair *new_handle(const struct gspdk_queue *queue)
{
    struct spdk_nvme_ctrlr *ctrlr = queue->ctrlr->handle;
    struct spdk_nvme_io_qpair_opts opts;

    spdk_nvme_ctrlr_get_default_io_qpair_opts(ctrlr, &opts, sizeof(opts));
    opts.io_queue_size = queue->depth + 1; /* a full ring has one free entry */
    opts.io_queue_requests = 2 * queue->depth + 2;
    opts.delay_cmd_submit = true; /* one doorbell for all that a poll finds submitted */
    return spdk_nvme_ctrlr_alloc_io_qpair(ctrlr, &opts, sizeof(opts));
}

gpunvme_err_t gspdk_queue_create(struct gspdk_ctrlr *ctrlr, unsigned depth,
                                 struct gspdk_queue **out)
{
    struct gspdk_queue *queue = calloc(1, sizeof(*queue));

    if (!queue)
        return base_fail(GPUNVME_ERR_NOMEM, "a queue");
    queue->ctrlr = ctrlr;
    queue->depth = depth;
    gspdk_hush();
    pthread_mutex_lock(&ctrlr->lock);
    queue->handle = atomic_load(&ctrlr->gone) ? NULL : new_handle(queue);
    if (queue->handle) {
        pthread_mutex_init(&queue->lock, NULL);
        queue->next = ctrlr->queues;
        ctrlr->queues = queue;
    }
    pthread_mutex_unlock(&ctrlr->lock);
    if (!queue->handle) {
        free(queue);
        return base_fail(atomic_load(&ctrlr->gone) ? GPUNVME_ERR_REMOVED : GPUNVME_ERR_LIMIT,
                         "spdk:%s gives no queue pair of %u commands%s%s", ctrlr->address.where,
                         depth, gspdk_said()[0] ? ": " : "", gspdk_said());
    }
    *out = queue;
    return GPUNVME_OK;
}

/* Ends what SPDK still has; the lock is held. */
static void close_handle(struct gspdk_queue *queue)
{
    if (queue->handle)
        spdk_nvme_ctrlr_free_io_qpair(queue->handle);
    queue->handle = NULL;
    while (queue->inflight)
        finish(queue->inflight,
               queue->inflight->aborted_ns ? GPUNVME_ERR_TIMEOUT : GPUNVME_ERR_REMOVED);
}

void gspdk_queue_destroy(struct gspdk_queue *queue)
{
    struct gspdk_queue **link;

    if (!queue)
        return;
    link = &queue->ctrlr->queues;
    pthread_mutex_lock(&queue->ctrlr->lock);
    while (*link != queue)
        link = &(*link)->next;
    *link = queue->next;
    pthread_mutex_lock(&queue->lock);
    close_handle(queue);
    pthread_mutex_unlock(&queue->lock);
    pthread_mutex_unlock(&queue->ctrlr->lock);
    pthread_mutex_destroy(&queue->lock);
    free(queue);
}

/*
 * All locks are held. SPDK revives queue pairs, but ends the commands that were in flight only on
 * the PCI bus: so they are all made anew, which ends them on any transport.
 */
static bool reset_all(struct gspdk_ctrlr *ctrlr)
{
    if (spdk_nvme_ctrlr_reset(ctrlr->handle))
        return false;
    for (struct gspdk_queue *q = ctrlr->queues; q; q = q->next) {
        close_handle(q);
        q->handle = new_handle(q);
        if (!q->handle)
            return false;
    }
    return true;
}

void gspdk_reset(struct gspdk_ctrlr *ctrlr, unsigned seen)
{
    struct gspdk_guard *guard;

    pthread_mutex_lock(&ctrlr->lock);
    if (atomic_load(&ctrlr->nresets) != seen || atomic_load(&ctrlr->gone)) {
        pthread_mutex_unlock(&ctrlr->lock);
        return;
    }
    for (struct gspdk_queue *q = ctrlr->queues; q; q = q->next)
        pthread_mutex_lock(&q->lock);
    guard = gspdk_guard(&ctrlr->address, ctrlr->timeout_ns);
    if (!reset_all(ctrlr))
        atomic_store(&ctrlr->gone, true);
    gspdk_guard_end(guard);
    atomic_fetch_add(&ctrlr->nresets, 1);
    for (struct gspdk_queue *q = ctrlr->queues; q; q = q->next)
        pthread_mutex_unlock(&q->lock);
    pthread_mutex_unlock(&ctrlr->lock);
}

static struct spdk_nvme_ns *namespace_of(struct gspdk_queue *queue, uint32_t nsid)
{
    unsigned nresets = atomic_load(&queue->ctrlr->nresets);

    if (!queue->ns || queue->ns_id != nsid || queue->ns_reset != nresets) {
        queue->ns = spdk_nvme_ctrlr_get_ns(queue->ctrlr->handle, nsid);
        queue->ns_id = nsid;
        queue->ns_reset = nresets;
    }
    return queue->ns;
}

static int start(struct gspdk_queue *queue, struct spdk_nvme_ns *ns, struct gspdk_cmd *cmd)
{
    if (cmd->op == GSPDK_FLUSH)
        return spdk_nvme_ns_cmd_flush(ns, queue->handle, on_complete, cmd);
    if (cmd->op == GSPDK_READ)
        return spdk_nvme_ns_cmd_readv_ext(ns, queue->handle, cmd->lba, cmd->nlb, on_complete, cmd,
                                          on_reset_sgl, on_next_sge, NULL);
    return spdk_nvme_ns_cmd_writev_ext(ns, queue->handle, cmd->lba, cmd->nlb, on_complete, cmd,
                                       on_reset_sgl, on_next_sge, NULL);
}

/* The lock is held. */
static gpunvme_err_t submit(struct gspdk_queue *queue, const struct gspdk_ns *ns,
                            struct gspdk_cmd *cmd)
{
    struct spdk_nvme_ns *handle;
    int ret;

    if (atomic_load(&queue->ctrlr->gone) || !queue->handle)
        return base_fail(GPUNVME_ERR_REMOVED, "spdk:%s", queue->ctrlr->address.where);
    if (queue->ninflight == queue->depth)
        return GPUNVME_ERR_AGAIN;
    handle = namespace_of(queue, ns->nsid);
    if (!handle)
        return base_fail(GPUNVME_ERR_NO_NAMESPACE, "namespace %u is not there any more", ns->nsid);
    cmd->queue = queue;
    cmd->nbytes = cmd->nlb * ns->block_size;
    cmd->aborted_ns = 0;
    append(&queue->inflight, cmd); /* before: SPDK may call back at once */
    queue->ninflight++;
    gspdk_hush();
    ret = start(queue, handle, cmd);
    if (!ret)
        return GPUNVME_OK;
    take_out(&queue->inflight, cmd);
    queue->ninflight--;
    if (ret == -ENOMEM)
        return GPUNVME_ERR_AGAIN;
    return base_fail(ret == -ENXIO ? GPUNVME_ERR_ABORTED : GPUNVME_ERR_IO,
                     "SPDK takes no command: %s%s%s", strerror(-ret), gspdk_said()[0] ? ": " : "",
                     gspdk_said());
}

gpunvme_err_t gspdk_submit(struct gspdk_queue *queue, const struct gspdk_ns *ns,
                           struct gspdk_cmd *cmd)
{
    gpunvme_err_t err;

    pthread_mutex_lock(&queue->lock);
    err = submit(queue, ns, cmd);
    pthread_mutex_unlock(&queue->lock);
    return err;
}

/* ---- completions and deadlines ---- */

static void on_aborted(void *arg, const struct spdk_nvme_cpl *cpl)
{
    (void)arg; /* the command itself tells; the one that aborted it may be long gone */
    (void)cpl;
}

/*
 * Aborts what is late. False when Abort has not helped, or can't be sent. SPDK finds the command by
 * its callback's argument, which its vfio-user transport does not do (it calls a NULL function).
 */
static bool see_to_late(struct gspdk_queue *queue, uint64_t now)
{
    struct gspdk_cmd *next = queue->inflight;

    for (unsigned i = queue->ninflight; i; i--) {
        struct gspdk_cmd *cmd = next;

        next = cmd->next; /* before Abort, which may end the command at once */
        if (now < cmd->deadline_ns)
            continue;
        if (cmd->aborted_ns) {
            if (now - cmd->aborted_ns > ABORT_GRACE_NS)
                return false;
            continue;
        }
        cmd->aborted_ns = now;
        if (queue->ctrlr->address.vfio_user)
            return false;
        if (spdk_nvme_ctrlr_cmd_abort_ext(queue->ctrlr->handle, queue->handle, cmd, on_aborted,
                                          NULL))
            return false;
    }
    return true;
}

/* The admin queue is looked at by whichever queue comes by first. */
static bool look_at_admin(struct gspdk_ctrlr *ctrlr, uint64_t now)
{
    uint64_t last = atomic_load(&ctrlr->admin_ns);

    if (now - last < LOOK_EVERY_NS || !atomic_compare_exchange_strong(&ctrlr->admin_ns, &last, now))
        return true;
    return spdk_nvme_ctrlr_process_admin_completions(ctrlr->handle) >= 0;
}

/* False when only a reset helps. The lock is held. */
static bool poll_handle(struct gspdk_queue *queue)
{
    uint64_t now;
    bool fine;

    if (atomic_load(&queue->ctrlr->gone)) {
        close_handle(queue);
        return true;
    }
    if (!queue->handle)
        return true;
    fine = spdk_nvme_qpair_process_completions(queue->handle, 0) >= 0;
    if (queue->npolls++ % POLLS_A_LOOK)
        return fine;
    now = futex_now();
    if (now - queue->looked_ns < LOOK_EVERY_NS)
        return fine;
    queue->looked_ns = now;
    return see_to_late(queue, now) && look_at_admin(queue->ctrlr, now) && fine;
}

struct gspdk_cmd *gspdk_poll(struct gspdk_queue *queue)
{
    struct gspdk_ctrlr *ctrlr = queue->ctrlr;
    struct gspdk_cmd *cmd;
    unsigned seen = atomic_load(&ctrlr->nresets);
    bool fine = true;

    pthread_mutex_lock(&queue->lock);
    if (!queue->done)
        fine = poll_handle(queue);
    cmd = queue->done;
    if (cmd)
        take_out(&queue->done, cmd);
    pthread_mutex_unlock(&queue->lock);
    if (!fine)
        gspdk_reset(ctrlr, seen);
    return cmd;
}
