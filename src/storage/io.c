/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Transfers: what they are checked for, how their parts come together, and how their end is told.
 */
#include <limits.h>

#include <stdio.h>
#include <string.h>

#include "base/fail.h"
#include "storage/batch.h"
#include "storage/futex.h"
#include "storage/internal.h"

/*
 * priv.state. A transfer in flight is PENDING, or WAITED once somebody sleeps on it; who ends it
 * stores ENDED with release and then touches it no more, but for the wake-up by its address.
 * COLLECTED: a batch has it, until it is polled.
 */
enum { IDLE = 0, PENDING = 1, WAITED = 2, ENDED = 3, COLLECTED = 4 };

/* Parts that stop short are rare; one lock serves all transfers. */
static pthread_mutex_t stop_lock = PTHREAD_MUTEX_INITIALIZER;

/* Of a batch: until it has been polled, for the batch holds it in a list. */
static bool is_in_flight(const struct gpunvme_io *io)
{
    uint32_t state = __atomic_load_n(&io->priv.state, __ATOMIC_RELAXED);

    return state == PENDING || state == WAITED || state == COLLECTED;
}

static gpunvme_err_t check(const struct gpunvme_store *store, const struct gpunvme_io *io, size_t i)
{
    gpunvme_err_t err = store_is_ours(store);

    if (err)
        return err;
    if (io->op != GPUNVME_OP_READ && io->op != GPUNVME_OP_WRITE && io->op != GPUNVME_OP_FLUSH)
        return base_fail(GPUNVME_ERR_INVALID, "transfer %zu: op %d", i, (int)io->op);
    if (is_in_flight(io))
        return base_fail(GPUNVME_ERR_INVALID,
                         "transfer %zu has not ended, or its end was not polled", i);
    if (io->op == GPUNVME_OP_FLUSH)
        return GPUNVME_OK;
    if (io->op == GPUNVME_OP_WRITE && !(store->flags & GPUNVME_OPEN_WRITE))
        return base_fail(GPUNVME_ERR_READONLY, "transfer %zu: %s was opened for reading", i,
                         store->uri.text);
    if (io->mem != GPUNVME_MEM_HOST && io->mem != GPUNVME_MEM_PINNED && io->mem != GPUNVME_MEM_GPU)
        return base_fail(GPUNVME_ERR_INVALID, "transfer %zu: memory of kind %d", i, (int)io->mem);
    if (io->nbytes && !io->ptr)
        return base_fail(GPUNVME_ERR_INVALID, "transfer %zu: %zu bytes at NULL", i, io->nbytes);
    if (io->offset > INT64_MAX || io->nbytes > INT64_MAX - io->offset)
        return base_fail(GPUNVME_ERR_RANGE, "transfer %zu: %zu bytes at offset %llu", i, io->nbytes,
                         (unsigned long long)io->offset);
    return GPUNVME_OK;
}

/* Stores of fixed size refuse what does not fit before anything is written. */
static gpunvme_err_t check_fits(struct gpunvme_store *store, const struct gpunvme_io *io, size_t i)
{
    uint64_t nbytes = 0;
    gpunvme_err_t err;

    if (store->resizable || io->op != GPUNVME_OP_WRITE)
        return GPUNVME_OK;
    err = store->backend->size(store, &nbytes);
    if (!err && (io->offset > nbytes || io->nbytes > nbytes - io->offset))
        return base_fail(GPUNVME_ERR_RANGE, "transfer %zu: %zu bytes at offset %llu, of %llu", i,
                         io->nbytes, (unsigned long long)io->offset, (unsigned long long)nbytes);
    return err;
}

gpunvme_err_t store_io_check(struct gpunvme_store *store, const struct gpunvme_io *io)
{
    gpunvme_err_t err = check(store, io, 0);

    return err ? err : check_fits(store, io, 0);
}

static gpunvme_err_t check_all(struct gpunvme_store *store, const struct gpunvme_io *ios, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        gpunvme_err_t err = check(store, &ios[i], i);

        if (!err)
            err = check_fits(store, &ios[i], i);
        if (err)
            return err;
    }
    return atomic_load(&store->closing)
               ? base_fail(GPUNVME_ERR_CLOSED, "%s is being closed", store->uri.text)
               : GPUNVME_OK;
}

static void prepare(struct gpunvme_store *store, struct gpunvme_io *io, struct gpunvme_batch *batch)
{
    io->err = GPUNVME_OK;
    io->done = 0;
    io->detail[0] = '\0';
    io->priv.store = store;
    io->priv.next = NULL;
    io->priv.batch = io->callback ? NULL : batch;
    io->priv.region = io->op == GPUNVME_OP_FLUSH
                          ? NULL
                          : store_regions_hold(&store->regions, io->ptr, io->nbytes, io->mem);
    io->priv.taken = 0;
    io->priv.left = io->nbytes;
    io->priv.stop = SIZE_MAX;
    io->priv.why = GPUNVME_OK;
    io->priv.scratch[0] = io->priv.scratch[1] = 0;
    __atomic_store_n(&io->priv.state, PENDING, __ATOMIC_RELAXED);
}

static void start(struct gpunvme_store *store, struct gpunvme_io *ios, size_t n,
                  struct gpunvme_batch *batch)
{
    struct gpunvme_io *first = NULL, **last = &first;
    size_t nlinked = 0, nbatched = 0;

    atomic_fetch_add(&store->in_flight, n);
    for (size_t i = 0; i < n; i++) {
        prepare(store, &ios[i], batch);
        nbatched += ios[i].priv.batch != NULL;
    }
    if (nbatched)
        store_batch_expect(batch, nbatched);
    for (size_t i = 0; i < n; i++) {
        if (!ios[i].nbytes && ios[i].op != GPUNVME_OP_FLUSH) {
            store_io_end(&ios[i], GPUNVME_OK, 0);
            continue;
        }
        *last = &ios[i];
        last = &ios[i].priv.next;
        nlinked++;
    }
    if (nlinked)
        store->backend->submit(store, first, nlinked);
}

gpunvme_err_t gpunvme_store_submit(struct gpunvme_store *store, struct gpunvme_io *ios, size_t n,
                                   struct gpunvme_batch *batch)
{
    gpunvme_err_t err;

    if (!store || (n && !ios))
        return base_fail(GPUNVME_ERR_INVALID, "%s is NULL", store ? "ios" : "store");
    err = check_all(store, ios, n);
    if (!err)
        start(store, ios, n, batch);
    return err;
}

void store_io_start(struct gpunvme_store *store, struct gpunvme_io *io)
{
    start(store, io, 1, NULL);
}

void store_io_blame(struct gpunvme_io *io, gpunvme_err_t err)
{
    io->err = err;
    snprintf(io->detail, sizeof(io->detail), "%s", gpunvme_err_detail());
}

/* A long URI must not push what is said behind it out of the detail. */
#define NAME_CHARS 40

gpunvme_err_t store_tell(const struct gpunvme_store *store, gpunvme_err_t err, const char *detail)
{
    bool is_long = strlen(store->uri.text) > NAME_CHARS + 3;

    return base_fail(err, "%.*s%s%s%s", is_long ? NAME_CHARS : NAME_CHARS + 3, store->uri.text,
                     is_long ? "..." : "", detail[0] ? ": " : "", detail);
}

static void end(struct gpunvme_io *io, gpunvme_err_t err, size_t done)
{
    struct gpunvme_store *store = io->priv.store;
    struct gpunvme_batch *batch = io->priv.batch;

    store_region_release(io->priv.region);
    io->priv.region = NULL;
    io->err = err;
    io->done = done;
    if (io->callback) {
        __atomic_store_n(&io->priv.state, IDLE, __ATOMIC_RELEASE);
        io->callback(io);
    } else if (batch) {
        __atomic_store_n(&io->priv.state, COLLECTED, __ATOMIC_RELAXED);
        store_batch_push(batch, io);
    } else if (__atomic_exchange_n(&io->priv.state, ENDED, __ATOMIC_ACQ_REL) == WAITED) {
        futex_wake(&io->priv.state, INT_MAX);
    }
    atomic_fetch_sub(&store->in_flight, 1); /* the last touch: now it may be closed */
}

void store_io_polled(struct gpunvme_io *io)
{
    __atomic_store_n(&io->priv.state, IDLE, __ATOMIC_RELAXED);
}

void store_io_begin(struct gpunvme_store *store, struct gpunvme_io *io)
{
    prepare(store, io, NULL);
    atomic_fetch_add(&store->in_flight, 1);
}

void store_io_end(struct gpunvme_io *io, gpunvme_err_t err, size_t done)
{
    if (err)
        store_io_blame(io, err);
    end(io, err, done);
}

/* The lowest place where a part stopped short decides; an error there, if it was one. */
static void stop_at(struct gpunvme_io *io, size_t at, gpunvme_err_t err)
{
    pthread_mutex_lock(&stop_lock);
    if (at < io->priv.stop) {
        __atomic_store_n(&io->priv.stop, at, __ATOMIC_RELAXED); /* the crew looks at it */
        io->priv.why = err;
        if (err)
            store_io_blame(io, err);
        else
            io->detail[0] = '\0';
    }
    pthread_mutex_unlock(&stop_lock);
}

void store_io_piece(struct gpunvme_io *io, size_t at, size_t nbytes, gpunvme_err_t err, size_t done)
{
    if (err || done < nbytes)
        stop_at(io, at + done, err);
    if (__atomic_sub_fetch(&io->priv.left, nbytes, __ATOMIC_ACQ_REL))
        return;
    if (io->priv.stop == SIZE_MAX)
        end(io, GPUNVME_OK, io->nbytes);
    else
        end(io, io->priv.why, io->priv.stop);
}

/* ---- Waiting ----------------------------------------------------------------------------------
 */

gpunvme_err_t gpunvme_io_test(struct gpunvme_io *io)
{
    uint32_t state;

    if (!io)
        return base_fail(GPUNVME_ERR_INVALID, "io is NULL");
    state = __atomic_load_n(&io->priv.state, __ATOMIC_ACQUIRE);
    if (state == IDLE || io->callback || io->priv.batch)
        return base_fail(GPUNVME_ERR_STALE, "it is not in flight, or its end is told elsewhere");
    if (state != ENDED)
        return GPUNVME_ERR_AGAIN;
    __atomic_store_n(&io->priv.state, IDLE, __ATOMIC_RELAXED);
    if (!io->err)
        return GPUNVME_OK;
    return base_fail(io->err, "%s%s%zu bytes at offset %llu, of which the first %zu were moved",
                     io->detail, io->detail[0] ? "; " : "", io->nbytes,
                     (unsigned long long)io->offset, io->done);
}

gpunvme_err_t gpunvme_io_wait(struct gpunvme_io *io, uint64_t timeout_ns)
{
    gpunvme_err_t err = gpunvme_io_test(io);
    uint64_t deadline;

    if (err != GPUNVME_ERR_AGAIN)
        return err;
    deadline = futex_deadline(timeout_ns ? timeout_ns : io->priv.store->uri.options.timeout_ns);
    for (;;) {
        uint32_t state = PENDING;

        __atomic_compare_exchange_n(&io->priv.state, &state, WAITED, false, __ATOMIC_ACQ_REL,
                                    __ATOMIC_ACQUIRE);
        if (state != ENDED && !futex_wait(&io->priv.state, WAITED, deadline))
            return base_fail(GPUNVME_ERR_TIMEOUT,
                             "a transfer of %zu bytes at offset %llu is still "
                             "in flight",
                             io->nbytes, (unsigned long long)io->offset);
        err = gpunvme_io_test(io);
        if (err != GPUNVME_ERR_AGAIN)
            return err;
    }
}
