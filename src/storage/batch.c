/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Batches: a list of transfers that have ended, which any thread pushes to and one takes from.
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/cond.h"
#include "base/fail.h"
#include "storage/batch.h"
#include "storage/futex.h"

struct gpunvme_batch {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct gpunvme_io *first, **last; /* ended, in that order, linked by priv.next */
    size_t nended;
    struct gpunvme_io *running; /* in flight, linked by priv.after */
    size_t nrunning;
    size_t pending; /* submitted and not polled */
    size_t wanted;  /* who polls sleeps until so many have ended; 0: nobody sleeps */
    int event;      /* an eventfd, readable while there are ended ones; -1: nobody asked for it */
};

gpunvme_err_t gpunvme_batch_create(struct gpunvme_batch **out)
{
    struct gpunvme_batch *batch;

    if (!out)
        return base_fail(GPUNVME_ERR_INVALID, "out is NULL");
    *out = NULL;
    batch = calloc(1, sizeof(*batch));
    if (!batch)
        return base_fail(GPUNVME_ERR_NOMEM, "a batch");
    pthread_mutex_init(&batch->lock, NULL);
    base_cond_init(&batch->wake);
    batch->last = &batch->first;
    batch->event = -1;
    *out = batch;
    return GPUNVME_OK;
}

gpunvme_err_t gpunvme_batch_destroy(struct gpunvme_batch *batch)
{
    size_t pending;

    if (!batch)
        return GPUNVME_OK;
    pthread_mutex_lock(&batch->lock); /* also: whoever pushed the last one has let go of it */
    pending = batch->pending;
    pthread_mutex_unlock(&batch->lock);
    if (pending)
        return base_fail(GPUNVME_ERR_BUSY, "%zu transfers have not been polled", pending);
    if (batch->event >= 0)
        close(batch->event);
    pthread_cond_destroy(&batch->wake);
    pthread_mutex_destroy(&batch->lock);
    free(batch);
    return GPUNVME_OK;
}

void store_batch_expect(struct gpunvme_batch *batch, struct gpunvme_io *ios, size_t n)
{
    pthread_mutex_lock(&batch->lock);
    for (size_t i = 0; i < n; i++) {
        struct gpunvme_io *io = &ios[i];

        if (io->priv.batch != batch)
            continue;
        io->priv.before = NULL;
        io->priv.after = batch->running;
        if (batch->running)
            batch->running->priv.before = io;
        batch->running = io;
        batch->nrunning++;
        batch->pending++;
    }
    pthread_mutex_unlock(&batch->lock);
}

/* Under the lock: it is in flight no more. */
static void unlink_running(struct gpunvme_batch *batch, struct gpunvme_io *io)
{
    if (io->priv.before)
        io->priv.before->priv.after = io->priv.after;
    else
        batch->running = io->priv.after;
    if (io->priv.after)
        io->priv.after->priv.before = io->priv.before;
    batch->nrunning--;
}

void store_batch_forget(struct gpunvme_batch *batch, struct gpunvme_io *io)
{
    pthread_mutex_lock(&batch->lock);
    unlink_running(batch, io);
    batch->pending--;
    pthread_mutex_unlock(&batch->lock);
}

/* What they point to stays there until it is polled, which whoever cancels does not do meanwhile.
 */
gpunvme_err_t gpunvme_batch_cancel(struct gpunvme_batch *batch)
{
    struct gpunvme_io **ios, *io;
    size_t n = 0;

    if (!batch)
        return base_fail(GPUNVME_ERR_INVALID, "batch is NULL");
    pthread_mutex_lock(&batch->lock);
    ios = malloc((batch->nrunning + 1) * sizeof(struct gpunvme_io *));
    for (io = batch->running; io && ios; io = io->priv.after)
        ios[n++] = io;
    pthread_mutex_unlock(&batch->lock);
    if (!ios)
        return base_fail(GPUNVME_ERR_NOMEM, "a list of transfers");
    while (n) /* those that were submitted first are the first in their queues */
        gpunvme_io_cancel(ios[--n]);
    free(ios);
    return GPUNVME_OK;
}

/* Under the lock: the eventfd says whether there are ended ones. */
static void show(const struct gpunvme_batch *batch, bool any)
{
    if (batch->event < 0)
        return;
    if (any)
        eventfd_write(batch->event, 1);
    else
        eventfd_read(batch->event, &(eventfd_t){0});
}

int gpunvme_batch_fd(struct gpunvme_batch *batch)
{
    int event;

    if (!batch) {
        errno = EINVAL;
        return -1;
    }
    pthread_mutex_lock(&batch->lock);
    if (batch->event < 0) {
        batch->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (batch->first)
            show(batch, true);
    }
    event = batch->event;
    pthread_mutex_unlock(&batch->lock);
    return event;
}

void store_batch_push(struct gpunvme_batch *batch, struct gpunvme_io **ios, size_t n)
{
    pthread_mutex_lock(&batch->lock);
    if (!batch->first)
        show(batch, true);
    for (size_t i = 0; i < n; i++) {
        unlink_running(batch, ios[i]);
        ios[i]->priv.next = NULL;
        *batch->last = ios[i];
        batch->last = &ios[i]->priv.next;
    }
    batch->nended += n;
    if (batch->wanted && batch->nended >= batch->wanted)
        pthread_cond_signal(&batch->wake);
    pthread_mutex_unlock(&batch->lock);
}

size_t gpunvme_batch_pending(struct gpunvme_batch *batch)
{
    size_t pending;

    if (!batch)
        return 0;
    pthread_mutex_lock(&batch->lock);
    pending = batch->pending;
    pthread_mutex_unlock(&batch->lock);
    return pending;
}

static size_t take(struct gpunvme_batch *batch, size_t room, struct gpunvme_io **ended)
{
    size_t n = 0;

    while (n < room && batch->first) {
        struct gpunvme_io *io = batch->first;

        batch->first = io->priv.next;
        store_io_polled(io);
        ended[n++] = io;
    }
    if (!batch->first) {
        batch->last = &batch->first;
        if (n)
            show(batch, false);
    }
    batch->nended -= n;
    batch->pending -= n;
    return n;
}

gpunvme_err_t gpunvme_batch_poll(struct gpunvme_batch *batch, size_t min, size_t room,
                                 struct gpunvme_io **ended, size_t *n, uint64_t timeout_ns)
{
    uint64_t deadline = futex_deadline(timeout_ns);
    gpunvme_err_t err = GPUNVME_OK;

    if (!batch || !n || (room && !ended) || min > room)
        return base_fail(GPUNVME_ERR_INVALID, "%s",
                         min > room ? "min is more than room" : "NULL argument");
    pthread_mutex_lock(&batch->lock);
    batch->wanted = min < batch->pending ? min : batch->pending;
    while (batch->nended < batch->wanted && !err)
        if (!base_cond_wait(&batch->wake, &batch->lock, deadline) && batch->nended < batch->wanted)
            err = base_fail(GPUNVME_ERR_TIMEOUT, "%zu of %zu transfers have ended", batch->nended,
                            batch->wanted);
    batch->wanted = 0;
    *n = take(batch, room, ended);
    pthread_mutex_unlock(&batch->lock);
    return err;
}
