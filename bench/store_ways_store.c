/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The ways of this library: a store of whatever backend, read by a batch from one thread, with the
 * target registered. One block in flight is gpunvme_store_read().
 *
 * A ring of twice as many transfers as are to be in flight: those at its head are submitted by one
 * call as others end. Polling asks for an eighth of them at once, as who has many in flight would.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "store_ways.h"

#define FILL_NBYTES ((size_t)1 << 20)
#define WAIT_NS     30000000000u
#define TOUCH_NS    2e9
#define ROOM        256u /* ends that one poll gives */

struct flight {
    struct way *way;
    const struct ways_point *point;
    struct ways_slot *slots;
    struct gpunvme_io *ios; /* nios of them */
    bool *busy;
    unsigned nios, head, flying;
    uint64_t next, random, blocks;
};

static gpunvme_err_t fill(struct way *way)
{
    gpunvme_err_t err = GPUNVME_OK;
    void *data = malloc(FILL_NBYTES);

    if (!data)
        return base_fail(GPUNVME_ERR_NOMEM, "data to fill a drive with");
    for (uint64_t at = 0; at < way->nbytes && !err; at += FILL_NBYTES) {
        size_t n = way->nbytes - at < FILL_NBYTES ? (size_t)(way->nbytes - at) : FILL_NBYTES;

        ways_data(at, data, n);
        err = gpunvme_store_write(way->store, at, data, GPUNVME_MEM_HOST, n, NULL);
    }
    free(data);
    return err;
}

/* All of it once, untimed: what a backend sets up at the first touch of a file is not measured. */
static gpunvme_err_t touch(struct way *way)
{
    const double end = ways_ns(CLOCK_MONOTONIC) + TOUCH_NS;
    gpunvme_err_t err = GPUNVME_OK;

    for (uint64_t at = 0; at < way->nbytes && !err && ways_ns(CLOCK_MONOTONIC) < end;) {
        size_t done;

        err = gpunvme_store_read(way->store, at, way->target->gpu, GPUNVME_MEM_GPU, WAYS_IN_FLIGHT,
                                 &done);
        at += WAYS_IN_FLIGHT;
    }
    return err;
}

static gpunvme_err_t prepare(struct way *way)
{
    uint64_t nbytes;
    gpunvme_err_t err = gpunvme_store_size(way->store, &nbytes);

    if (!err && nbytes < way->nbytes)
        way->nbytes = nbytes;
    if (!err && way->fill)
        err = fill(way);
    if (!err)
        err = gpunvme_register(NULL, way->target->gpu, way->target->nbytes, GPUNVME_MEM_GPU);
    if (!err)
        err = touch(way);
    if (!err)
        err = gpunvme_batch_create(&way->batch);
    return err;
}

static void close_store(struct way *way)
{
    if (gpunvme_close(way->store))
        fprintf(stderr, "store_ways: %s: %s\n", way->uri, gpunvme_err_detail());
    gpunvme_unregister(NULL, way->target->gpu);
    gpunvme_batch_destroy(way->batch);
    way->store = NULL;
    way->batch = NULL;
}

static gpunvme_err_t open_store(struct way *way)
{
    gpunvme_err_t err = gpunvme_open(way->uri, way->fill ? GPUNVME_OPEN_WRITE : 0, &way->store);
    struct base_failure failure;

    if (err)
        return err;
    err = prepare(way);
    if (err) {
        base_keep(&failure, err);
        close_store(way);
        return base_restore(&failure);
    }
    return GPUNVME_OK;
}

/* Some configurations of cuFile refuse files that it can't reach directly, unless asked. */
static gpunvme_err_t open_cufile(struct way *way)
{
    size_t n = strlen(way->uri);
    gpunvme_err_t err = open_store(way);
    struct base_failure failure;

    if (!err)
        return GPUNVME_OK;
    base_keep(&failure, err);
    snprintf(way->uri + n, sizeof(way->uri) - n, ",require=compat");
    err = open_store(way);
    if (!err)
        return GPUNVME_OK;
    way->uri[n] = '\0';
    return base_restore(&failure);
}

/* --- one at a time ------------------------------------------------------------------------------
 */

static gpunvme_err_t run_one(struct flight *f, struct ways_meter *meter)
{
    gpunvme_err_t err = GPUNVME_OK;

    while (!err && ways_goes_on(meter, f->blocks)) {
        uint64_t offset = ways_offset(f->way, f->point, f->next++, &f->random);

        err = gpunvme_store_read(f->way->store, offset, f->way->target->gpu, GPUNVME_MEM_GPU,
                                 f->point->block, NULL);
        f->slots[0] = (struct ways_slot){.offset = offset, .filled = !err};
        f->blocks++;
    }
    return err;
}

/* --- many ---------------------------------------------------------------------------------------
 */

static void describe(struct flight *f, unsigned i)
{
    f->ios[i] = (struct gpunvme_io){
        .store = f->way->store,
        .op = GPUNVME_OP_READ,
        .mem = GPUNVME_MEM_GPU,
        .offset = ways_offset(f->way, f->point, f->next++, &f->random),
        .ptr = (char *)f->way->target->gpu + i * f->point->block,
        .nbytes = f->point->block,
    };
    f->busy[i] = true;
}

/* As many in flight again as there shall be, or as the ring's head has free. */
static gpunvme_err_t refill(struct flight *f)
{
    gpunvme_err_t err = GPUNVME_OK;

    while (!err && f->flying < f->point->depth && !f->busy[f->head]) {
        unsigned first = f->head, n = 0;

        while (f->flying + n < f->point->depth && first + n < f->nios && !f->busy[first + n])
            describe(f, first + n++);
        err = gpunvme_io_submit(&f->ios[first], n, f->way->batch);
        if (err)
            break;
        f->flying += n;
        f->head = (first + n) % f->nios;
    }
    return err;
}

static gpunvme_err_t take_ended(struct flight *f, size_t min)
{
    struct gpunvme_io *ended[ROOM];
    gpunvme_err_t err, first = GPUNVME_OK;
    size_t n = 0;

    err = gpunvme_batch_poll(f->way->batch, min, ROOM, ended, &n, WAIT_NS);
    for (size_t k = 0; k < n; k++) {
        const struct gpunvme_io *io = ended[k];
        size_t i = (size_t)(io - f->ios);
        bool whole = !io->err && io->done == io->nbytes;

        if (!whole && !first)
            first =
                base_fail(io->err ? io->err : GPUNVME_ERR_RANGE, "%zu of %zu bytes at offset %llu",
                          io->done, io->nbytes, (unsigned long long)io->offset);
        f->slots[i] = (struct ways_slot){.offset = io->offset, .filled = whole};
        f->busy[i] = false;
    }
    f->flying -= (unsigned)n;
    f->blocks += n;
    return err ? err : first;
}

static gpunvme_err_t run_many(struct flight *f, struct ways_meter *meter)
{
    size_t min = f->point->depth >= 16 ? f->point->depth / 8 : 1;
    gpunvme_err_t err = GPUNVME_OK, first = GPUNVME_OK;
    struct base_failure failure;

    min = min < ROOM ? min : ROOM;
    while (!first && ways_goes_on(meter, f->blocks)) {
        first = refill(f);
        if (!first)
            first = take_ended(f, min);
    }
    base_keep(&failure, first);
    while (gpunvme_batch_pending(f->way->batch) && err != GPUNVME_ERR_TIMEOUT)
        err = take_ended(f, 1);
    if (err == GPUNVME_ERR_TIMEOUT)
        f->ios = NULL; /* some are in flight: they must stay */
    return first ? base_restore(&failure) : err;
}

static gpunvme_err_t run_store(struct way *way, const struct ways_point *point,
                               struct ways_meter *meter, struct ways_slot *slots)
{
    struct flight f = {.way = way,
                       .point = point,
                       .slots = slots,
                       .nios = 2 * point->depth,
                       .random = 88172645463325252u};
    gpunvme_err_t err;

    if (point->depth == 1)
        return run_one(&f, meter);
    f.ios = calloc(f.nios, sizeof(*f.ios));
    f.busy = calloc(f.nios, sizeof(*f.busy));
    err = f.ios && f.busy ? run_many(&f, meter) : base_fail(GPUNVME_ERR_NOMEM, "transfers");
    free(f.ios);
    free(f.busy);
    return err;
}

const struct way_ops way_store = {.open = open_store, .run = run_store, .close = close_store};
const struct way_ops way_cufile = {.open = open_cufile, .run = run_store, .close = close_store};
