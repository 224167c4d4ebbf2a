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
    struct gpunvme_io ios[];
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

/* TIMEOUT: `w` is not the caller's any more. */
static gpunvme_err_t wait_for(struct gpunvme_store *store, struct waited *w)
{
    uint64_t deadline = futex_deadline(store->uri.options.timeout_ns);
    uint32_t word = WAITING;

    while (__atomic_load_n(&w->word, __ATOMIC_ACQUIRE) == WAITING) {
        if (futex_wait(&w->word, WAITING, deadline))
            continue;
        if (__atomic_compare_exchange_n(&w->word, &word, LEFT, false, __ATOMIC_ACQ_REL,
                                        __ATOMIC_ACQUIRE))
            return base_fail(GPUNVME_ERR_TIMEOUT,
                             "%s: not done after %llu ms; the memory is in use until it is closed",
                             store->uri.text,
                             (unsigned long long)(store->uri.options.timeout_ns / 1000000u));
    }
    return GPUNVME_OK;
}

/* The bytes of all that were moved before the first that was not; and why it was not. */
static gpunvme_err_t sum(const struct gpunvme_store *store, const struct waited *w, size_t *done)
{
    *done = 0;
    for (size_t i = 0; i < w->n; i++) {
        const struct gpunvme_io *io = &w->ios[i];

        *done += io->done;
        if (io->err)
            return store_tell(store, io->err, io->detail);
        if (io->done < io->nbytes)
            break;
    }
    return GPUNVME_OK;
}

static gpunvme_err_t finish(struct gpunvme_store *store, gpunvme_err_t err, uint64_t offset,
                            size_t nbytes, size_t moved, size_t *done)
{
    if (done)
        *done = moved;
    else if (!err && moved < nbytes)
        return base_fail(GPUNVME_ERR_RANGE,
                         "%s ends %zu bytes behind offset %llu, of %zu asked for", store->uri.text,
                         moved, (unsigned long long)offset, nbytes);
    return err;
}

static gpunvme_err_t first_error(const struct gpunvme_store *store, const struct gpunvme_io *ios,
                                 size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (ios[i].err)
            return store_tell(store, ios[i].err, ios[i].detail);
    return GPUNVME_OK;
}

static gpunvme_err_t run(struct gpunvme_store *store, struct waited *w, uint64_t offset,
                         size_t nbytes, size_t *done)
{
    gpunvme_err_t err = gpunvme_store_submit(store, w->ios, w->n, NULL);
    size_t moved = 0;

    if (err) {
        free(w);
        return err;
    }
    err = wait_for(store, w);
    if (err)
        return err;
    err = sum(store, w, &moved);
    free(w);
    return finish(store, err, offset, nbytes, moved, done);
}

static struct waited *make(size_t n)
{
    struct waited *w = NULL;

    if (n <= (SIZE_MAX - sizeof(*w)) / sizeof(w->ios[0]))
        w = calloc(1, sizeof(*w) + n * sizeof(w->ios[0]));
    if (!w)
        return NULL;
    w->n = w->running = n;
    for (size_t i = 0; i < n; i++) {
        w->ios[i].callback = one_ended;
        w->ios[i].user = w;
    }
    return w;
}

bool store_io_run_here(struct gpunvme_store *store, struct gpunvme_io *io)
{
    bool has_run;

    if (!store->backend->direct || store_io_check(store, io))
        return false; /* submission says what is wrong */
    io->priv.store = store;
    atomic_fetch_add(&store->in_flight, 1);
    has_run = store->backend->direct(store, io);
    atomic_fetch_sub(&store->in_flight, 1);
    return has_run;
}

static gpunvme_err_t transfer(struct gpunvme_store *store, const struct gpunvme_io *what,
                              size_t *done)
{
    struct gpunvme_io io = *what;
    struct waited *w;

    if (done)
        *done = 0;
    if (!store)
        return base_fail(GPUNVME_ERR_INVALID, "store is NULL");
    if (store_io_run_here(store, &io))
        return finish(store, io.err, io.offset, io.nbytes, io.done, done);
    w = make(1);
    if (!w)
        return base_fail(GPUNVME_ERR_NOMEM, "a transfer");
    io.callback = one_ended;
    io.user = w;
    w->ios[0] = io;
    return run(store, w, io.offset, io.nbytes, done);
}

gpunvme_err_t gpunvme_store_read(struct gpunvme_store *store, uint64_t offset, void *ptr,
                                 enum gpunvme_mem mem, size_t nbytes, size_t *done)
{
    struct gpunvme_io io = {
        .op = GPUNVME_OP_READ, .mem = mem, .offset = offset, .ptr = ptr, .nbytes = nbytes};

    return transfer(store, &io, done);
}

gpunvme_err_t gpunvme_store_write(struct gpunvme_store *store, uint64_t offset, const void *ptr,
                                  enum gpunvme_mem mem, size_t nbytes, size_t *done)
{
    struct gpunvme_io io = {.op = GPUNVME_OP_WRITE,
                            .mem = mem,
                            .offset = offset,
                            .ptr = (void *)(uintptr_t)ptr,
                            .nbytes = nbytes};

    return transfer(store, &io, done);
}

gpunvme_err_t gpunvme_store_flush(struct gpunvme_store *store)
{
    struct gpunvme_io io = {.op = GPUNVME_OP_FLUSH};

    return transfer(store, &io, NULL);
}

static gpunvme_err_t vector(struct gpunvme_store *store, enum gpunvme_op op, uint64_t offset,
                            const struct gpunvme_vec *vecs, size_t n, size_t *done)
{
    struct waited *w;
    size_t nbytes = 0;

    if (done)
        *done = 0;
    if (!store || (n && !vecs))
        return base_fail(GPUNVME_ERR_INVALID, "%s is NULL", store ? "vecs" : "store");
    if (!n)
        return GPUNVME_OK;
    w = make(n);
    if (!w)
        return base_fail(GPUNVME_ERR_NOMEM, "%zu transfers", n);
    for (size_t i = 0; i < n; i++) {
        w->ios[i].op = op;
        w->ios[i].mem = vecs[i].mem;
        w->ios[i].offset = offset + nbytes;
        w->ios[i].ptr = vecs[i].ptr;
        w->ios[i].nbytes = vecs[i].nbytes;
        if (__builtin_add_overflow(nbytes, vecs[i].nbytes, &nbytes)) {
            free(w);
            return base_fail(GPUNVME_ERR_RANGE, "more than 2^64 bytes");
        }
    }
    return run(store, w, offset, nbytes, done);
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

gpunvme_err_t gpunvme_store_transfer(struct gpunvme_store *store, struct gpunvme_io *ios, size_t n)
{
    struct waited *w;
    gpunvme_err_t err;

    if (!store || (n && !ios))
        return base_fail(GPUNVME_ERR_INVALID, "%s is NULL", store ? "ios" : "store");
    if (!n)
        return GPUNVME_OK;
    w = make(n);
    if (!w)
        return base_fail(GPUNVME_ERR_NOMEM, "%zu transfers", n);
    for (size_t i = 0; i < n; i++) {
        w->ios[i] = ios[i];
        w->ios[i].callback = one_ended;
        w->ios[i].user = w;
    }
    err = gpunvme_store_submit(store, w->ios, n, NULL);
    if (err) {
        free(w);
        return err;
    }
    err = wait_for(store, w);
    for (size_t i = 0; i < n; i++) {
        ios[i].done = err ? 0 : w->ios[i].done;
        ios[i].err = err ? err : w->ios[i].err;
        if (err)
            store_io_blame(&ios[i], err);
        else
            memcpy(ios[i].detail, w->ios[i].detail, sizeof(ios[i].detail));
    }
    if (err)
        return err;
    free(w);
    return first_error(store, ios, n);
}
