/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Transfers that are done when the call returns: one, or a vector of them.
 */
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "storage/futex.h"
#include "storage/internal.h"

/*
 * A transfer of a thread that sleeps. One whose time is up may still go on, so it is nobody's local
 * variable: of the two, the thread and the end, the last to leave frees it.
 */
struct waited {
    size_t n, running;
    uint32_t word;
    struct gpunvme_io ios[]; /* copies of the caller's */
};

enum { WAITING, ALL_ENDED, LEFT };

static void one_ended(struct gpunvme_io *io)
{
    struct waited *w = io->user;
    uint32_t was;

    if (__atomic_sub_fetch(&w->running, 1, __ATOMIC_ACQ_REL))
        return;
    was = __atomic_exchange_n(&w->word, ALL_ENDED, __ATOMIC_ACQ_REL);
    if (was == LEFT)
        free(w);
    else
        futex_wake(&w->word, 1);
}

static gpunvme_err_t too_late(const struct gpunvme_io *io, uint64_t timeout_ns)
{
    return base_fail(GPUNVME_ERR_TIMEOUT,
                     "%s: nothing has moved for %llu ms; the memory is in use until it is closed",
                     io->store->uri.text, (unsigned long long)(timeout_ns / 1000000u));
}

/* What came of one that has ended. Only those whose time was up were canceled. */
static gpunvme_err_t tell_end(struct gpunvme_io *io, const struct gpunvme_io *its,
                              uint64_t timeout_ns)
{
    gpunvme_err_t err = GPUNVME_OK;

    io->done = its->done;
    io->routes = its->routes;
    io->err = its->err;
    io->priv.detail = its->priv.detail;
    if (its->err != GPUNVME_ERR_CANCELED)
        return GPUNVME_OK;
    err = too_late(io, timeout_ns);
    store_io_blame(io, err);
    return err;
}

/*
 * Their time is up: cancels what has not begun. TIMEOUT: some are in flight still, and `w` is not
 * the caller's any more.
 */
static gpunvme_err_t give_up(struct waited *w, struct gpunvme_io *ios, uint64_t timeout_ns)
{
    gpunvme_err_t err = GPUNVME_OK;
    uint32_t word = WAITING;

    for (size_t i = 0; i < w->n; i++)
        gpunvme_io_cancel(&w->ios[i]);
    for (size_t i = 0; i < w->n; i++) {
        if (!store_io_is_in_flight(&w->ios[i])) {
            tell_end(&ios[i], &w->ios[i], timeout_ns);
            continue;
        }
        ios[i].done = gpunvme_io_moved(&w->ios[i]);
        err = too_late(&ios[i], timeout_ns);
        store_io_blame(&ios[i], err);
    }
    return __atomic_compare_exchange_n(&w->word, &word, LEFT, false, __ATOMIC_ACQ_REL,
                                       __ATOMIC_ACQUIRE)
               ? GPUNVME_ERR_TIMEOUT
               : GPUNVME_OK;
}

static struct waited *make(const struct gpunvme_io *ios, size_t n)
{
    struct waited *w = NULL;

    if (n <= (SIZE_MAX - sizeof(*w)) / sizeof(w->ios[0]))
        w = calloc(1, sizeof(*w) + n * sizeof(w->ios[0]));
    if (!w)
        return NULL;
    w->n = w->running = n;
    for (size_t i = 0; i < n; i++) {
        w->ios[i] = ios[i];
        w->ios[i].callback = one_ended;
        w->ios[i].user = w;
    }
    return w;
}

/*
 * Does them, and tells each what came of it. The error is that of the submission, or TIMEOUT, which
 * those have that did not end.
 */
static gpunvme_err_t run(struct gpunvme_io *ios, size_t n)
{
    struct waited *w = make(ios, n);
    uint64_t timeout_ns;
    gpunvme_err_t err;

    if (!w)
        return base_fail(GPUNVME_ERR_NOMEM, "%zu transfers", n);
    err = gpunvme_io_submit(w->ios, n, NULL);
    if (err) {
        free(w);
        return err;
    }
    timeout_ns = store_io_timeout(ios, n);
    if (!store_io_sleep(&w->word, WAITING, w->ios, n, timeout_ns) && give_up(w, ios, timeout_ns))
        return GPUNVME_ERR_TIMEOUT;
    for (size_t i = 0; i < n; i++) {
        gpunvme_err_t late = tell_end(&ios[i], &w->ios[i], timeout_ns);

        if (late)
            err = late;
    }
    free(w);
    return err;
}

/* ---- One transfer ---------------------------------------------------------------------------- */

static gpunvme_err_t finish(const struct gpunvme_io *io, size_t *done)
{
    size_t nbytes = store_io_total(io);

    if (done)
        *done = io->done;
    if (io->err)
        return store_tell_of(io);
    if (!done && io->done < nbytes)
        return base_fail(GPUNVME_ERR_RANGE, "%s ends behind %zu of %zu bytes", io->store->uri.text,
                         io->done, nbytes);
    return GPUNVME_OK;
}

bool store_io_run_here(struct gpunvme_io *io)
{
    struct gpunvme_store *store = io->store;
    gpunvme_err_t before = io->err;
    bool has_run;

    if (!store || !store->backend->direct || io->vecs || io->offsets || store_io_check(io, 1))
        return false; /* submission says what is wrong */
    atomic_fetch_add(&store->in_flight, 1);
    io->routes = 0;
    has_run = store->backend->direct(store, io);
    if (!has_run)
        io->err = before;
    else if (io->err)
        store_io_blame(io, io->err);
    atomic_fetch_sub(&store->in_flight, 1);
    return has_run;
}

static gpunvme_err_t transfer(struct gpunvme_io *io, size_t *done)
{
    gpunvme_err_t err;

    if (done)
        *done = 0;
    if (!io->store)
        return base_fail(GPUNVME_ERR_INVALID, "store is NULL");
    if (store_io_run_here(io))
        return finish(io, done);
    err = run(io, 1);
    if (err && done)
        *done = io->done;
    if (err == GPUNVME_ERR_TIMEOUT)
        return too_late(io, store_io_timeout(io, 1));
    return err ? err : finish(io, done);
}

static gpunvme_err_t plain(struct gpunvme_store *store, enum gpunvme_op op, uint64_t offset,
                           const void *ptr, enum gpunvme_mem mem, size_t nbytes, size_t *done)
{
    struct gpunvme_io io = {.store = store, .op = op, .mem = mem, .offset = offset};

    io.ptr = (void *)(uintptr_t)ptr;
    io.nbytes = nbytes;
    return transfer(&io, done);
}

gpunvme_err_t gpunvme_store_read(struct gpunvme_store *store, uint64_t offset, void *ptr,
                                 enum gpunvme_mem mem, size_t nbytes, size_t *done)
{
    return plain(store, GPUNVME_OP_READ, offset, ptr, mem, nbytes, done);
}

gpunvme_err_t gpunvme_store_write(struct gpunvme_store *store, uint64_t offset, const void *ptr,
                                  enum gpunvme_mem mem, size_t nbytes, size_t *done)
{
    return plain(store, GPUNVME_OP_WRITE, offset, ptr, mem, nbytes, done);
}

gpunvme_err_t gpunvme_store_flush(struct gpunvme_store *store)
{
    return plain(store, GPUNVME_OP_FLUSH, 0, NULL, GPUNVME_MEM_HOST, 0, NULL);
}

static gpunvme_err_t vector(struct gpunvme_store *store, enum gpunvme_op op, uint64_t offset,
                            const struct gpunvme_vec *vecs, size_t n, size_t *done)
{
    struct gpunvme_io io = {.store = store, .op = op, .offset = offset, .vecs = vecs, .n = n};

    if (done)
        *done = 0;
    if (n && !vecs) /* it would be a plain transfer, as below */
        return base_fail(GPUNVME_ERR_INVALID, "%zu pieces of memory at NULL", n);
    return transfer(&io, done);
}

gpunvme_err_t gpunvme_store_readv(struct gpunvme_store *store, uint64_t offset,
                                  const struct gpunvme_vec *vecs, size_t n, size_t *done)
{
    return vector(store, GPUNVME_OP_READ, offset, vecs, n, done);
}

gpunvme_err_t gpunvme_store_writev(struct gpunvme_store *store, uint64_t offset,
                                   const struct gpunvme_vec *vecs, size_t n, size_t *done)
{
    return vector(store, GPUNVME_OP_WRITE, offset, vecs, n, done);
}

static gpunvme_err_t ranges(struct gpunvme_store *store, enum gpunvme_op op,
                            const uint64_t *offsets, size_t n, size_t nbytes, const void *ptr,
                            size_t stride, enum gpunvme_mem mem, size_t *done)
{
    struct gpunvme_io io = {.store = store, .op = op, .mem = mem, .offsets = offsets, .n = n};

    if (done)
        *done = 0;
    if (n && !offsets)
        return base_fail(GPUNVME_ERR_INVALID, "%zu offsets at NULL", n);
    io.ptr = (void *)(uintptr_t)ptr;
    io.nbytes = n ? nbytes : 0;
    io.stride = stride;
    return transfer(&io, done);
}

gpunvme_err_t gpunvme_store_gather(struct gpunvme_store *store, const uint64_t *offsets, size_t n,
                                   size_t nbytes, void *ptr, size_t stride, enum gpunvme_mem mem,
                                   size_t *done)
{
    return ranges(store, GPUNVME_OP_READ, offsets, n, nbytes, ptr, stride, mem, done);
}

gpunvme_err_t gpunvme_store_scatter(struct gpunvme_store *store, const uint64_t *offsets, size_t n,
                                    size_t nbytes, const void *ptr, size_t stride,
                                    enum gpunvme_mem mem, size_t *done)
{
    return ranges(store, GPUNVME_OP_WRITE, offsets, n, nbytes, ptr, stride, mem, done);
}

/* ---- Several --------------------------------------------------------------------------------- */

gpunvme_err_t gpunvme_io_run(struct gpunvme_io *ios, size_t n)
{
    gpunvme_err_t err;

    if (n && !ios)
        return base_fail(GPUNVME_ERR_INVALID, "ios is NULL");
    if (!n)
        return GPUNVME_OK;
    err = n == 1 && store_io_run_here(ios) ? GPUNVME_OK : run(ios, n);
    for (size_t i = 0; i < n && !err; i++)
        if (ios[i].err)
            err = store_tell_of(&ios[i]);
    return err;
}
