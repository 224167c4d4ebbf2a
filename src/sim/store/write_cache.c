/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A volatile write cache. Knows nothing of what is under it but backend.h, and leaves the cached
 * writes to write_log.h.
 *
 * A cached write is complete at once. A read takes the newest version of the blocks that have one
 * and the rest from below. Four ways lead out of the cache:
 *   - a flush writes the newest version of each block, flushes what is below, then forgets every
 *     write that was there when it began;
 *   - a transfer that goes through (FUA, zeroes, and writes when the cache is full, which is how
 *     its memory is bounded) makes the older versions of its blocks void when it ends;
 *   - a power loss keeps, loses or tears each write by lot, and puts the newest of the kept
 *     versions of each block below;
 *   - a clean close writes back like a flush.
 *
 * A flush and transfers that go through must not overlap: the flush could put an older version
 * over theirs. Who finds the door closed waits in its lane and tries again at each poll; a waiting
 * flush keeps new ones from going through, so it is not starved.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "sim/store/backend.h"
#include "sim/store/iov.h"
#include "sim/store/write_log.h"

#define CACHE_NBYTES (32ULL << 20) /* of data; what does not fit goes through */

struct lane {
    struct op *first, **last; /* ops that wait, in order */
};

struct sim_cache {
    struct sim_backend *below;
    uint32_t block_size;
    struct lane *lanes; /* each its owner's */

    pthread_mutex_t lock; /* guards the rest */
    struct sim_log *log;
    struct base_random random;
    unsigned nthrough; /* transfers going through */
    unsigned nwaiting; /* flushes that wait */
    bool flushing;
};

/* A transfer that takes more than one step. */
struct op {
    struct sim_store_io io; /* first: what goes below; `done` finds the op by it */
    struct sim_cache *cache;
    struct sim_store_io *user;
    struct op *next; /* in the lane */
    unsigned lane;
    uint64_t seq;       /* writes up to it are covered */
    gpunvme_err_t err;  /* the first of its parts */
    unsigned npending;  /* flush: parts in flight */
    bool waited;        /* flush: counted in nwaiting */
    struct part *parts; /* flush */
    uint32_t ncached;   /* read: blocks that were cached when it began… */
    uint32_t *cached;   /* …by index in the transfer… */
    uint8_t *data;      /* …and what was in them */
};

/* A run of blocks that is written back. */
struct part {
    struct sim_store_io io; /* first */
    struct iovec iov;
    struct op *op;
};

/* Takes a write into the cache; false when it must go through. */
static bool keep_write(struct sim_cache *cache, const struct sim_store_io *io)
{
    struct sim_log_write *write;
    bool kept;

    if (io->nbytes > CACHE_NBYTES)
        return false;
    write = sim_log_prepare(cache->block_size, io->off / cache->block_size,
                            (uint32_t)(io->nbytes / cache->block_size), io->iov);
    if (!write)
        return false;
    pthread_mutex_lock(&cache->lock);
    kept = sim_log_add(cache->log, write);
    pthread_mutex_unlock(&cache->lock);
    if (!kept)
        sim_log_discard(write);
    return kept;
}

/*
 * ---- Ops ------------------------------------------------------------------------------------
 */

static struct op *make_op(struct sim_cache *cache, unsigned lane, struct sim_store_io *user,
                          size_t extra)
{
    struct op *op = calloc(1, sizeof(*op) + extra);

    if (!op)
        return NULL;
    op->cache = cache;
    op->lane = lane;
    op->user = user;
    op->io = *user;
    return op;
}

static void refuse(struct sim_store_io *user)
{
    user->done(user, base_fail(GPUNVME_ERR_NOMEM, "a transfer through the write cache"));
}

static void end_op(struct op *op)
{
    struct sim_store_io *user = op->user;
    gpunvme_err_t err = op->err;

    free(op->parts);
    free(op);
    user->done(user, err);
}

/*
 * ---- Reads ----------------------------------------------------------------------------------
 */

static uint32_t count_cached(struct sim_cache *cache, const struct sim_store_io *io)
{
    uint64_t first = io->off / cache->block_size;
    uint32_t count = 0;

    if (sim_log_is_empty(cache->log))
        return 0;
    for (uint64_t i = 0; i < io->nbytes / cache->block_size; i++)
        count += sim_log_find(cache->log, first + i) != NULL;
    return count;
}

/* Puts what was cached over what came from below. */
static void read_done(struct sim_store_io *io, gpunvme_err_t err)
{
    struct op *op = (struct op *)io;
    size_t block_size = op->cache->block_size;
    struct sim_iov cursor = sim_iov_begin(op->user->iov);
    uint64_t at = 0;

    for (uint32_t i = 0; !err && i < op->ncached; i++) {
        sim_iov_skip(&cursor, (op->cached[i] - at) * block_size);
        sim_iov_scatter(&cursor, op->data + i * block_size, block_size);
        at = (uint64_t)op->cached[i] + 1;
    }
    op->err = err;
    end_op(op);
}

/*
 * The cached blocks are copied before the read goes below: later, a flush could have moved them
 * there behind the read's back.
 */
static struct op *snapshot(struct sim_cache *cache, unsigned lane, struct sim_store_io *user,
                           uint32_t count)
{
    struct op *op =
        make_op(cache, lane, user, (size_t)count * (sizeof(*op->cached) + cache->block_size));
    uint64_t first = user->off / cache->block_size;

    if (!op)
        return NULL;
    op->cached = (uint32_t *)(op + 1);
    op->data = (uint8_t *)(op->cached + count);
    for (uint32_t i = 0; op->ncached < count; i++) {
        const uint8_t *data = sim_log_find(cache->log, first + i);

        if (!data)
            continue;
        op->cached[op->ncached] = i;
        memcpy(op->data + (size_t)op->ncached * cache->block_size, data, cache->block_size);
        op->ncached++;
    }
    op->io.done = read_done;
    return op;
}

static void submit_read(struct sim_cache *cache, unsigned lane, struct sim_store_io *io)
{
    struct op *op = NULL;
    uint32_t count;

    pthread_mutex_lock(&cache->lock);
    count = count_cached(cache, io);
    if (count)
        op = snapshot(cache, lane, io, count);
    pthread_mutex_unlock(&cache->lock);
    if (!count)
        cache->below->ops->submit(cache->below, lane, io);
    else if (!op)
        refuse(io);
    else if (count == io->nbytes / cache->block_size)
        read_done(&op->io, GPUNVME_OK);
    else
        cache->below->ops->submit(cache->below, lane, &op->io);
}

/*
 * ---- Going through --------------------------------------------------------------------------
 */

static void through_done(struct sim_store_io *io, gpunvme_err_t err)
{
    struct op *op = (struct op *)io;
    struct sim_cache *cache = op->cache;

    pthread_mutex_lock(&cache->lock);
    if (!err)
        sim_log_forget(cache->log, op->seq, io->off / cache->block_size,
                       io->nbytes / cache->block_size);
    cache->nthrough--;
    pthread_mutex_unlock(&cache->lock);
    op->err = err;
    end_op(op);
}

/* False when it has to wait. */
static bool start_through(struct op *op)
{
    struct sim_cache *cache = op->cache;
    bool open;

    pthread_mutex_lock(&cache->lock);
    open = !cache->flushing && !cache->nwaiting;
    if (open)
        cache->nthrough++;
    op->seq = sim_log_seq(cache->log);
    pthread_mutex_unlock(&cache->lock);
    if (open) {
        op->io.done = through_done;
        cache->below->ops->submit(cache->below, op->lane, &op->io);
    }
    return open;
}

/*
 * ---- Flushing -------------------------------------------------------------------------------
 */

/* The parts of a write-back of all that is cached, allocated; NULL when out of memory. */
static struct part *make_parts(struct sim_cache *cache, unsigned *nparts)
{
    unsigned count = sim_log_runs(cache->log, NULL);
    struct part *parts = calloc(count + 1, sizeof(*parts));
    struct sim_log_run *runs = calloc(count + 1, sizeof(*runs));

    *nparts = 0;
    if (!parts || !runs) {
        free(parts);
        free(runs);
        return NULL;
    }
    sim_log_runs(cache->log, runs);
    for (; *nparts < count; ++*nparts) {
        const struct sim_log_run *run = &runs[*nparts];
        struct part *part = &parts[*nparts];

        part->iov.iov_base = run->data;
        part->iov.iov_len = (size_t)run->nblocks * cache->block_size;
        part->io = (struct sim_store_io){.op = SIM_STORE_WRITE,
                                         .off = run->first_block * cache->block_size,
                                         .nbytes = part->iov.iov_len,
                                         .iov = &part->iov,
                                         .niov = 1};
    }
    free(runs);
    return parts;
}

static void flush_done(struct sim_store_io *io, gpunvme_err_t err)
{
    struct op *op = (struct op *)io;
    struct sim_cache *cache = op->cache;

    pthread_mutex_lock(&cache->lock);
    if (!err)
        sim_log_forget(cache->log, op->seq, 0, UINT64_MAX);
    cache->flushing = false;
    pthread_mutex_unlock(&cache->lock);
    op->err = err;
    end_op(op);
}

/* After the last part: flushes what is below, or ends with the error of a part. */
static void flush_part_ended(struct op *op, gpunvme_err_t err)
{
    if (err && !op->err)
        op->err = err;
    if (--op->npending)
        return;
    op->io.done = flush_done;
    if (op->err)
        flush_done(&op->io, op->err);
    else
        op->cache->below->ops->submit(op->cache->below, op->lane, &op->io);
}

static void part_done(struct sim_store_io *io, gpunvme_err_t err)
{
    flush_part_ended(((struct part *)io)->op, err);
}

static void write_back(struct op *op, unsigned nparts)
{
    struct sim_backend *below = op->cache->below;
    struct part *parts = op->parts;

    op->npending = nparts + 1; /* one is held until all are submitted: they may end at once */
    for (unsigned i = 0; i < nparts; i++) {
        parts[i].op = op;
        parts[i].io.done = part_done;
        below->ops->submit(below, op->lane, &parts[i].io);
    }
    flush_part_ended(op, GPUNVME_OK);
}

/* False when it has to wait. */
static bool start_flush(struct op *op)
{
    struct sim_cache *cache = op->cache;
    unsigned nparts = 0;
    bool open;

    pthread_mutex_lock(&cache->lock);
    open = !cache->flushing && !cache->nthrough;
    if (open) {
        cache->flushing = true;
        cache->nwaiting -= op->waited;
        op->seq = sim_log_seq(cache->log);
        op->parts = make_parts(cache, &nparts);
    } else if (!op->waited) {
        cache->nwaiting++;
        op->waited = true;
    }
    pthread_mutex_unlock(&cache->lock);
    if (open && op->parts)
        write_back(op, nparts);
    else if (open)
        flush_done(&op->io, base_fail(GPUNVME_ERR_NOMEM, "the write-back of a write cache"));
    return open;
}

/*
 * ---- The cache ------------------------------------------------------------------------------
 */

static bool start(struct op *op)
{
    return op->io.op == SIM_STORE_FLUSH ? start_flush(op) : start_through(op);
}

void sim_cache_submit(struct sim_cache *cache, unsigned lane_, struct sim_store_io *io)
{
    struct lane *lane = &cache->lanes[lane_];
    struct op *op;

    if (io->op != SIM_STORE_FLUSH && (io->off | io->nbytes) % cache->block_size) {
        io->done(io, base_fail(GPUNVME_ERR_ALIGN, "the write cache takes whole blocks of %u",
                               cache->block_size));
        return;
    }
    if (io->op == SIM_STORE_READ) {
        submit_read(cache, lane_, io);
        return;
    }
    if (io->op == SIM_STORE_WRITE && !io->fua && keep_write(cache, io)) {
        io->done(io, GPUNVME_OK);
        return;
    }
    op = make_op(cache, lane_, io, 0);
    if (!op) {
        refuse(io);
    } else if (lane->first || !start(op)) {
        *lane->last = op;
        lane->last = &op->next;
    }
}

unsigned sim_cache_poll(struct sim_cache *cache, unsigned lane_)
{
    struct lane *lane = &cache->lanes[lane_];
    unsigned steps = 0;
    struct op *op;

    while ((op = lane->first)) {
        /* It is taken out first: started, it may end, be freed, and `done` submit to this lane. */
        lane->first = op->next;
        if (!lane->first)
            lane->last = &lane->first;
        op->next = NULL;
        if (!start(op)) {
            op->next = lane->first;
            lane->first = op;
            if (!op->next)
                lane->last = &op->next;
            break;
        }
        steps++;
    }
    return steps;
}

/* Writes back all that is left, at once; what fails is lost, as it is on a failing medium. */
static void put_below(struct sim_cache *cache)
{
    unsigned nparts;
    struct part *parts = make_parts(cache, &nparts);

    for (unsigned i = 0; i < nparts; i++)
        cache->below->ops->now(cache->below, &parts[i].io);
    free(parts);
    sim_log_forget(cache->log, UINT64_MAX, 0, UINT64_MAX);
}

void sim_cache_power_loss(struct sim_cache *cache)
{
    pthread_mutex_lock(&cache->lock);
    sim_log_draw_lots(cache->log, &cache->random);
    put_below(cache);
    pthread_mutex_unlock(&cache->lock);
}

gpunvme_err_t sim_cache_create(const struct sim_store_config *config, struct sim_backend *below,
                               struct sim_cache **out)
{
    struct sim_cache *cache = calloc(1, sizeof(*cache));

    if (!cache)
        return base_fail(GPUNVME_ERR_NOMEM, "a write cache");
    pthread_mutex_init(&cache->lock, NULL);
    cache->below = below;
    cache->block_size = config->block_size;
    cache->random.state = config->seed;
    cache->lanes = calloc(config->nlanes, sizeof(*cache->lanes));
    cache->log = sim_log_create(config->block_size, CACHE_NBYTES);
    if (!cache->lanes || !cache->log) {
        sim_cache_destroy(cache);
        return base_fail(GPUNVME_ERR_NOMEM, "a write cache");
    }
    for (unsigned i = 0; i < config->nlanes; i++)
        cache->lanes[i].last = &cache->lanes[i].first;
    *out = cache;
    return GPUNVME_OK;
}

void sim_cache_destroy(struct sim_cache *cache)
{
    if (!cache)
        return;
    if (cache->log)
        put_below(cache);
    sim_log_destroy(cache->log);
    pthread_mutex_destroy(&cache->lock);
    free(cache->lanes);
    free(cache);
}
