/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Transfers that are done when the call returns: one, or a vector of them.
 */
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "storage/futex.h"
#include "storage/internal.h"

#define GROUP  1024u /* transfers that the sleeper learns of together */
#define GROUPS 8u    /* in flight at most: more would keep nobody busier */

/*
 * Transfers of a thread that sleeps, some of them at a time. Those whose time is up may still go
 * on, so they are copies, and nobody's local variables: the last to leave, the thread or the end of
 * a group, frees them.
 */
struct waited {
    uint32_t word;             /* a futex: how many groups have ended */
    uint32_t users;            /* groups in flight, and the thread */
    uint64_t timeout_ns;       /* the longest one of their stores */
    struct gpunvme_io *failed; /* the caller's first one of those that did; NULL: none */
    size_t n;                  /* of all `ios`, which are set from the first on */
    struct group {
        struct waited *of;
        size_t running; /* 0: it has ended */
        size_t first;   /* of the caller's, and how many */
        size_t n;       /* 0: none */
        struct gpunvme_io *ios;
    } groups[GROUPS];
    struct gpunvme_io ios[];
};

static void leave(struct waited *w)
{
    if (!__atomic_sub_fetch(&w->users, 1, __ATOMIC_ACQ_REL))
        free(w);
}

static void one_ended(struct gpunvme_io *io)
{
    struct group *group = io->user;
    struct waited *w = group->of;

    if (__atomic_sub_fetch(&group->running, 1, __ATOMIC_ACQ_REL))
        return;
    __atomic_fetch_add(&w->word, 1, __ATOMIC_RELEASE);
    futex_wake(&w->word, 1);
    leave(w);
}

static gpunvme_err_t too_late(const struct gpunvme_io *io, uint64_t timeout_ns)
{
    return base_fail(GPUNVME_ERR_TIMEOUT,
                     "%s: nothing has moved for %llu ms; the memory is in use until it is closed",
                     io->store->uri.text, (unsigned long long)(timeout_ns / 1000000u));
}

static struct waited *make(size_t n)
{
    size_t room = n < GROUP * GROUPS ? n : GROUP * GROUPS;
    struct waited *w = calloc(1, sizeof(*w) + room * sizeof(w->ios[0]));

    if (!w)
        return NULL;
    w->users = 1;
    return w;
}

/* Starts the caller's next transfers, which were checked, in a group that has none. */
static void start(struct waited *w, struct group *group, const struct gpunvme_io *ios, size_t first,
                  size_t n)
{
    size_t at = (size_t)(group - w->groups) * GROUP;

    *group = (struct group){.of = w, .running = n, .first = first, .n = n, .ios = &w->ios[at]};
    for (size_t i = 0; i < n; i++) {
        group->ios[i] = ios[first + i];
        group->ios[i].callback = one_ended;
        group->ios[i].user = group;
        if (w->timeout_ns < ios[first + i].store->uri.options.timeout_ns)
            w->timeout_ns = ios[first + i].store->uri.options.timeout_ns;
    }
    if (w->n < at + n)
        w->n = at + n;
    __atomic_add_fetch(&w->users, 1, __ATOMIC_RELAXED);
    store_io_start(group->ios, n, NULL);
}

/* What came of a transfer, to the caller's. False: its time was up, else nobody cancels it. */
static bool tell_end(struct waited *w, struct gpunvme_io *io, const struct gpunvme_io *its)
{
    if (its->err && (!w->failed || io < w->failed))
        w->failed = io;
    io->done = its->done;
    io->routes = its->routes;
    io->err = its->err;
    io->priv.detail = its->priv.detail;
    if (its->err != GPUNVME_ERR_CANCELED)
        return true;
    store_io_blame(io, too_late(io, w->timeout_ns));
    return false;
}

/* Tells what came of groups, and starts others in their place. False: all has ended. */
static bool go_on(struct waited *w, struct gpunvme_io *ios, size_t n, size_t *next)
{
    bool any = false;

    for (unsigned k = 0; k < GROUPS; k++) {
        struct group *group = &w->groups[k];
        size_t left = n - *next;

        if (!__atomic_load_n(&group->running, __ATOMIC_ACQUIRE)) {
            for (size_t i = 0; i < group->n; i++)
                tell_end(w, &ios[group->first + i], &group->ios[i]);
            group->n = 0;
            if (left)
                start(w, group, ios, *next, left < GROUP ? left : GROUP);
            *next += group->n;
        }
        any |= group->n > 0;
    }
    return any;
}

/* Their time is up: cancels what has not begun. OK: all had ended just then. */
static gpunvme_err_t give_up(struct waited *w, struct gpunvme_io *ios, size_t n, size_t next)
{
    bool in_time = next == n;

    for (size_t i = 0; i < w->n; i++)
        gpunvme_io_cancel(&w->ios[i]);
    for (unsigned k = 0; k < GROUPS; k++) {
        const struct group *group = &w->groups[k];

        for (size_t i = 0; i < group->n; i++) {
            struct gpunvme_io *io = &ios[group->first + i];

            if (!store_io_is_in_flight(&group->ios[i])) {
                in_time &= tell_end(w, io, &group->ios[i]);
                continue;
            }
            in_time = false;
            io->done = gpunvme_io_moved(&group->ios[i]);
            store_io_blame(io, too_late(io, w->timeout_ns));
        }
    }
    for (; next < n; next++) {
        ios[next].done = 0;
        store_io_blame(&ios[next], too_late(&ios[next], w->timeout_ns));
    }
    return in_time ? GPUNVME_OK : GPUNVME_ERR_TIMEOUT;
}

/*
 * Does them, and tells each what came of it; *failed is the first one that failed, or NULL. The
 * error is that of the submission, or TIMEOUT, which those have that did not end.
 */
static gpunvme_err_t run(struct gpunvme_io *ios, size_t n, struct gpunvme_io **failed)
{
    struct waited *w = n <= SIZE_MAX / sizeof(ios[0]) ? make(n) : NULL;
    gpunvme_err_t err;
    size_t next = 0;

    if (!w)
        return base_fail(GPUNVME_ERR_NOMEM, "%zu transfers", n);
    err = store_io_check(ios, n);
    if (err) {
        free(w);
        return err;
    }
    for (;;) {
        uint32_t word = __atomic_load_n(&w->word, __ATOMIC_ACQUIRE);

        if (!go_on(w, ios, n, &next))
            break;
        if (!store_io_sleep(&w->word, word, w->ios, w->n, w->timeout_ns)) {
            err = give_up(w, ios, n, next);
            break;
        }
    }
    *failed = w->failed;
    leave(w);
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
    struct gpunvme_io *failed;
    gpunvme_err_t err;

    if (done)
        *done = 0;
    if (!io->store)
        return base_fail(GPUNVME_ERR_INVALID, "store is NULL");
    if (store_io_run_here(io))
        return finish(io, done);
    err = run(io, 1, &failed);
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
    struct gpunvme_io *failed = NULL;
    gpunvme_err_t err = GPUNVME_OK;

    if (n && !ios)
        return base_fail(GPUNVME_ERR_INVALID, "ios is NULL");
    if (n == 1 && store_io_run_here(ios))
        failed = ios->err ? ios : NULL;
    else if (n)
        err = run(ios, n, &failed);
    return err || !failed ? err : store_tell_of(failed);
}
