/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Bytes of a store into a file, with their checksum: several pieces in flight, each read and then
 * written. Knows nothing of names and of the catalogue.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/fail.h"
#include "data/tiers/internal.h"
#include "gpunvme/memory.h"
#include "memory/checksum.h"
#include "storage/futex.h"

#define PIECE    (4u << 20)
#define DEPTH    4u
#define LAG_NS   100000000u /* that a late copy may catch up with */
#define PAUSE_NS 20000000u  /* between looks whether to stop */

struct copy {
    struct gpunvme_store *from, *to; /* `to` NULL: only the checksum */
    const char *name;
    struct tiers_rate *limit;
    const atomic_bool *stop;
    uint64_t timeout_ns;
    struct gpunvme_batch *batch;
    struct gpunvme_buf memory;
    struct gpunvme_io ios[DEPTH];
    uint64_t nbytes, begun;
    uint64_t shares; /* of the checksum */
};

/* ---- The rate -------------------------------------------------------------------------------- */

/* The time from which on nbytes more may be moved. */
static uint64_t pay(struct tiers_rate *limit, uint64_t nbytes, uint64_t now)
{
    const uint64_t rate = atomic_load(&limit->bytes_per_s);
    uint64_t free_at = atomic_load(&limit->free_at_ns), from;

    if (!rate)
        return now;
    do {
        from = free_at + LAG_NS < now ? now - LAG_NS : free_at;
    } while (!atomic_compare_exchange_weak(&limit->free_at_ns, &free_at,
                                           from + (uint64_t)((double)nbytes * 1e9 / (double)rate)));
    return from;
}

static gpunvme_err_t check_stop(const struct copy *c)
{
    if (c->stop && atomic_load(c->stop))
        return base_fail(GPUNVME_ERR_CANCELED, "%.150s: its copy was canceled", c->name);
    return GPUNVME_OK;
}

static gpunvme_err_t wait_for_turn(const struct copy *c, uint64_t nbytes)
{
    uint64_t now = futex_now(), at = c->limit ? pay(c->limit, nbytes, now) : now;
    gpunvme_err_t err = check_stop(c);

    for (; !err && now < at; now = futex_now()) {
        const struct timespec pause = {.tv_nsec =
                                           (long)(at - now < PAUSE_NS ? at - now : PAUSE_NS)};

        nanosleep(&pause, NULL);
        err = check_stop(c);
    }
    return err;
}

/* ---- Pieces ---------------------------------------------------------------------------------- */

/* Reads the next piece into the memory of `io`; does nothing at the end. */
static gpunvme_err_t read_next(struct copy *c, struct gpunvme_io *io)
{
    const uint64_t left = c->nbytes - c->begun;
    gpunvme_err_t err;

    if (!left)
        return GPUNVME_OK;
    *io = (struct gpunvme_io){
        .store = c->from,
        .op = GPUNVME_OP_READ,
        .mem = GPUNVME_MEM_HOST,
        .offset = c->begun,
        .ptr = (char *)c->memory.cpu + (size_t)(io - c->ios) * PIECE,
        .nbytes = left < PIECE ? (size_t)left : PIECE,
    };
    err = wait_for_turn(c, io->nbytes);
    if (!err)
        err = gpunvme_io_submit(io, 1, c->batch);
    if (!err)
        c->begun += io->nbytes;
    return err;
}

static gpunvme_err_t went_wrong(const struct copy *c, const struct gpunvme_io *io)
{
    char text[200];

    if (io->err)
        return base_fail(io->err, "%.100s: %s", c->name, gpunvme_io_detail(io, text, sizeof(text)));
    if (io->done < io->nbytes)
        return base_fail(GPUNVME_ERR_VERIFY, "%.150s has become shorter while it was read",
                         c->name);
    return GPUNVME_OK;
}

/* What follows the end of a transfer. */
static gpunvme_err_t go_on(struct copy *c, struct gpunvme_io *io)
{
    const bool was_read = io->op == GPUNVME_OP_READ;
    gpunvme_err_t err = went_wrong(c, io);

    if (err)
        return err;
    if (was_read)
        c->shares += mem_checksum_shares(io->ptr, io->nbytes, io->offset);
    if (was_read && c->to) {
        io->store = c->to;
        io->op = GPUNVME_OP_WRITE;
        return gpunvme_io_submit(io, 1, c->batch);
    }
    tiers_step(TIERS_STEP_COPY, c->name);
    return read_next(c, io);
}

/* Until nothing is in flight; after an error nothing new is begun. */
static gpunvme_err_t turn(struct copy *c, gpunvme_err_t err)
{
    struct gpunvme_io *io;
    struct base_failure why;
    size_t n;

    while (!err && gpunvme_batch_pending(c->batch)) {
        err = gpunvme_batch_poll(c->batch, 1, 1, &io, &n, c->timeout_ns);
        if (!err)
            err = go_on(c, io);
    }
    if (!err)
        return err;
    base_keep(&why, err);
    gpunvme_batch_cancel(c->batch);
    while (gpunvme_batch_pending(c->batch) &&
           !gpunvme_batch_poll(c->batch, 1, 1, &io, &n, c->timeout_ns))
        ;
    return base_restore(&why);
}

/* What never ended may still use the memory: then it is left to it, with `c`. */
static gpunvme_err_t run(struct copy *c)
{
    const uint64_t room = (uint64_t)PIECE * DEPTH;
    gpunvme_err_t err = GPUNVME_OK;

    if (!c->nbytes)
        return GPUNVME_OK;
    err = gpunvme_mem_alloc((size_t)(c->nbytes < room ? c->nbytes : room), GPUNVME_MEM_HOST,
                            &c->memory);
    if (!err)
        err = gpunvme_batch_create(&c->batch);
    for (unsigned i = 0; i < DEPTH && !err; i++)
        err = read_next(c, &c->ios[i]);
    return c->batch ? turn(c, err) : err;
}

static gpunvme_err_t make_longer(int fd, uint64_t nbytes, const char *name)
{
    if (!nbytes || !fallocate(fd, 0, 0, (off_t)nbytes))
        return GPUNVME_OK;
    if ((errno != EOPNOTSUPP && errno != ENOSYS) || ftruncate(fd, (off_t)nbytes))
        return base_fail_errno(errno, "%.150s: room for %llu bytes", name,
                               (unsigned long long)nbytes);
    return GPUNVME_OK;
}

static gpunvme_err_t do_it(struct gpunvme_tiers *t, struct copy *what, uint64_t *checksum)
{
    struct copy *c = malloc(sizeof(*c));
    struct base_failure why;
    gpunvme_err_t err;

    if (!c)
        return base_fail(GPUNVME_ERR_NOMEM, "a copy");
    *c = *what;
    c->timeout_ns = t->timeout_ns;
    err = run(c);
    *checksum = mem_checksum_end(c->shares, c->nbytes);
    if (c->batch && gpunvme_batch_pending(c->batch))
        return err;
    base_keep(&why, err);
    gpunvme_batch_destroy(c->batch);
    gpunvme_mem_free(&c->memory);
    free(c);
    return base_restore(&why);
}

gpunvme_err_t tiers_copy(struct gpunvme_tiers *t, struct gpunvme_store *from, uint64_t nbytes,
                         int to_fd, const char *name, struct tiers_rate *limit,
                         const atomic_bool *stop, uint64_t *checksum)
{
    struct copy c = {.from = from, .nbytes = nbytes, .name = name, .limit = limit, .stop = stop};
    struct base_failure why;
    gpunvme_err_t err = make_longer(to_fd, nbytes, name);

    if (!err)
        err = gpunvme_open_fd(t->options.engine, to_fd, name, t->copy_options, GPUNVME_OPEN_WRITE,
                              &c.to);
    if (err)
        return err;
    err = do_it(t, &c, checksum);
    base_keep(&why, err);
    if (gpunvme_close(c.to) && !err)
        return base_fail(GPUNVME_ERR_IO, "%.150s: %s", name, gpunvme_err_detail());
    return base_restore(&why);
}

gpunvme_err_t tiers_checksum(struct gpunvme_tiers *t, int fd, const char *name,
                             struct tiers_rate *limit, const atomic_bool *stop, uint64_t *nbytes,
                             uint64_t *checksum)
{
    struct copy c = {.name = name, .limit = limit, .stop = stop};
    struct base_failure why;
    gpunvme_err_t err = gpunvme_open_fd(t->options.engine, fd, name, t->copy_options, 0, &c.from);

    if (err)
        return err;
    err = gpunvme_store_size(c.from, &c.nbytes);
    *nbytes = c.nbytes;
    if (!err)
        err = do_it(t, &c, checksum);
    base_keep(&why, err);
    gpunvme_close(c.from);
    return base_restore(&why);
}
