/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Batches: a list of transfers that have ended, which any thread pushes to and one takes from.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/cond.h"
#include "base/fail.h"
#include "storage/batch.h"
#include "storage/futex.h"

#define LEAST_ROOM   16u
#define MOST_PENDING ((size_t)1 << 31)
#define AHEAD        8u

/* The lists have room for twice what is pending, so that an end needs no memory. */
struct gpunvme_batch {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct gpunvme_io **submitted; /* each has the place priv.slot until it is polled; or NULL */
    struct gpunvme_io **ended;     /* a ring: `nended` from `first` on, in that order */
    size_t room;                   /* of each list: a power of two, or 0 */
    size_t next;                   /* place to look at first, modulo room */
    size_t first, nended;
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
    free(batch->submitted);
    free(batch->ended);
    free(batch);
    return GPUNVME_OK;
}

/* Under the lock. */
static gpunvme_err_t grow(struct gpunvme_batch *batch, size_t room)
{
    struct gpunvme_io **ended = calloc(room, sizeof(ended[0]));
    struct gpunvme_io **submitted =
        ended ? realloc(batch->submitted, room * sizeof(submitted[0])) : NULL;

    if (!submitted) {
        free(ended);
        return base_fail(GPUNVME_ERR_NOMEM, "a batch of %zu transfers", room);
    }
    for (size_t i = 0; i < batch->nended; i++)
        ended[i] = batch->ended[(batch->first + i) & (batch->room - 1)];
    memset(submitted + batch->room, 0, (room - batch->room) * sizeof(submitted[0]));
    free(batch->ended);
    batch->submitted = submitted;
    batch->ended = ended;
    batch->next = batch->room; /* what is behind is free */
    batch->first = 0;
    batch->room = room;
    return GPUNVME_OK;
}

/* Under the lock: room for `n` more. */
static gpunvme_err_t make_room(struct gpunvme_batch *batch, size_t n)
{
    size_t room = batch->room ? batch->room : LEAST_ROOM;

    if (n > MOST_PENDING - batch->pending)
        return base_fail(GPUNVME_ERR_LIMIT, "more than 2^31 transfers of one batch");
    while (room < 2 * (batch->pending + n))
        room *= 2;
    return room == batch->room ? GPUNVME_OK : grow(batch, room);
}

gpunvme_err_t store_batch_expect(struct gpunvme_batch *batch, struct gpunvme_io *ios, size_t n)
{
    gpunvme_err_t err;

    pthread_mutex_lock(&batch->lock);
    err = make_room(batch, n);
    for (size_t i = 0; i < n && !err; i++) {
        if (ios[i].callback)
            continue;
        while (batch->submitted[batch->next & (batch->room - 1)])
            batch->next++;
        ios[i].priv.slot = (uint32_t)(batch->next++ & (batch->room - 1));
        batch->submitted[ios[i].priv.slot] = &ios[i];
        batch->pending++;
    }
    pthread_mutex_unlock(&batch->lock);
    return err;
}

void store_batch_forget(struct gpunvme_batch *batch, struct gpunvme_io *io)
{
    pthread_mutex_lock(&batch->lock);
    batch->submitted[io->priv.slot] = NULL;
    batch->pending--;
    pthread_mutex_unlock(&batch->lock);
}

static int by_address(const void *a, const void *b)
{
    const struct gpunvme_io *x = *(struct gpunvme_io *const *)a,
                            *y = *(struct gpunvme_io *const *)b;

    return x < y ? -1 : x > y;
}

/* What they point to stays there until it is polled, which whoever cancels does not do meanwhile.
 */
gpunvme_err_t gpunvme_batch_cancel(struct gpunvme_batch *batch)
{
    struct gpunvme_io **ios;
    size_t n = 0;

    if (!batch)
        return base_fail(GPUNVME_ERR_INVALID, "batch is NULL");
    pthread_mutex_lock(&batch->lock);
    ios = malloc((batch->room + 1) * sizeof(struct gpunvme_io *));
    for (size_t i = 0; i < batch->room && ios; i++)
        if (batch->submitted[i])
            ios[n++] = batch->submitted[i];
    pthread_mutex_unlock(&batch->lock);
    if (!ios)
        return base_fail(GPUNVME_ERR_NOMEM, "a list of transfers");
    /* As they are in their queues, where each is looked for from the first on. */
    qsort(ios, n, sizeof(struct gpunvme_io *), by_address);
    for (size_t i = 0; i < n; i++)
        gpunvme_io_cancel(ios[i]);
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
        if (batch->nended)
            show(batch, true);
    }
    event = batch->event;
    pthread_mutex_unlock(&batch->lock);
    return event;
}

void store_batch_push(struct gpunvme_batch *batch, struct gpunvme_io **ios, size_t n)
{
    pthread_mutex_lock(&batch->lock);
    if (!batch->nended)
        show(batch, true);
    for (size_t i = 0; i < n; i++)
        batch->ended[(batch->first + batch->nended + i) & (batch->room - 1)] = ios[i];
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

/* Other processors had what has ended: it is fetched ahead. */
static size_t take(struct gpunvme_batch *batch, size_t room, struct gpunvme_io **ended)
{
    const size_t n = batch->nended < room ? batch->nended : room;

    for (size_t i = 0; i < n; i++)
        ended[i] = batch->ended[(batch->first + i) & (batch->room - 1)];
    for (size_t i = 0; i < n; i++) {
        if (i + AHEAD < n)
            __builtin_prefetch(&ended[i + AHEAD]->priv.state, 1);
        batch->submitted[ended[i]->priv.slot] = NULL;
        store_io_polled(ended[i]);
    }
    batch->first += n;
    batch->nended -= n;
    batch->pending -= n;
    if (n && !batch->nended)
        show(batch, false);
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
