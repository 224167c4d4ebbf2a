/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A volatile write cache. Knows nothing of what is under it but backend.h.
 *
 * A cached write is kept in memory whole, as a "write" with a version of each of its blocks, and
 * is complete at once. Versions of a block form a chain, newest first, under a hash of the block;
 * writes form a list in the order of their sequence numbers. A read takes the newest version of
 * the blocks that have one and the rest from below.
 *
 * Four ways out of the cache:
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
#include "base/random.h"
#include "sim/backend.h"
#include "sim/iov.h"

#define CACHE_NBYTES (32ULL << 20) /* of data; what does not fit goes through */
#define NBUCKETS     16384

struct write;

struct version {
    struct version *newer, *older;
    struct version *next; /* in the bucket; the newest of each block is there */
    struct write *write;  /* NULL once void */
};

/* A place in the ring of all writes. */
struct link {
    struct link *next, *prev;
};

struct write {
    struct link link; /* first */
    uint64_t seq;
    uint64_t first_block;
    uint32_t nblocks;
    uint32_t nholders; /* versions that are not void, and who looks at them; at 0 it goes */
    uint8_t *data;
    struct version versions[];
};

struct lane {
    struct op *first, **last; /* ops that wait, in order */
};

struct sim_cache {
    struct sim_backend *below;
    uint32_t block_size;
    unsigned nlanes;
    struct lane *lanes; /* each its owner's */

    pthread_mutex_t lock; /* guards the rest */
    struct base_random random;
    uint64_t seq;       /* of the last write */
    uint64_t nbytes;    /* of data */
    struct link writes; /* the ring's anchor: next is the oldest, prev the newest */
    struct version *buckets[NBUCKETS];
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

/* A run of blocks that a flush writes. */
struct part {
    struct sim_store_io io; /* first */
    struct iovec iov;
    struct op *op;
};

static struct write *oldest(struct sim_cache *cache)
{
    return (struct write *)cache->writes.next;
}

static struct write *after(struct write *write)
{
    return (struct write *)write->link.next;
}

static bool is_end(const struct sim_cache *cache, const struct write *write)
{
    return &write->link == &cache->writes;
}

/*
 * ---- Versions; all under the lock -----------------------------------------------------------
 */

static uint64_t version_block(const struct version *version)
{
    return version->write->first_block + (uint64_t)(version - version->write->versions);
}

static uint8_t *version_data(const struct sim_cache *cache, const struct version *version)
{
    return version->write->data + (size_t)(version - version->write->versions) * cache->block_size;
}

static struct version **bucket_of(struct sim_cache *cache, uint64_t block)
{
    return &cache->buckets[(block * 0x9e3779b97f4a7c15ULL >> 32) % NBUCKETS];
}

/* Where the newest version of a block hangs, or the bucket's end when it has none. */
static struct version **find(struct sim_cache *cache, uint64_t block)
{
    struct version **at = bucket_of(cache, block);

    while (*at && version_block(*at) != block)
        at = &(*at)->next;
    return at;
}

static void link_version(struct sim_cache *cache, struct version *version)
{
    struct version **at = find(cache, version_block(version));

    version->older = *at;
    version->newer = NULL;
    version->next = *at ? (*at)->next : NULL;
    if (*at)
        (*at)->newer = version;
    *at = version;
}

/* Lets go of a write; the last frees it. */
static void release(struct sim_cache *cache, struct write *write)
{
    if (--write->nholders)
        return;
    write->link.prev->next = write->link.next;
    write->link.next->prev = write->link.prev;
    cache->nbytes -= (uint64_t)write->nblocks * cache->block_size;
    free(write);
}

/* Makes a version void. */
static void drop(struct sim_cache *cache, struct version *version)
{
    struct write *write = version->write;

    if (version->older)
        version->older->newer = version->newer;
    if (version->newer) {
        version->newer->older = version->older;
    } else {
        struct version **at = find(cache, version_block(version));

        *at = version->older ? version->older : version->next;
        if (version->older)
            version->older->next = version->next;
    }
    version->write = NULL;
    release(cache, write);
}

/* Voids the versions of one write between two blocks, `to` excluded. */
static void drop_blocks(struct sim_cache *cache, struct write *write, uint64_t from, uint64_t to)
{
    uint64_t end = write->first_block + write->nblocks;

    write->nholders++;
    for (from = from > write->first_block ? from : write->first_block; from < to && from < end;
         from++)
        if (write->versions[from - write->first_block].write)
            drop(cache, &write->versions[from - write->first_block]);
    release(cache, write);
}

/* Voids the versions of one block up to `seq`. */
static void forget_block(struct sim_cache *cache, uint64_t seq, uint64_t block)
{
    struct version *version = *find(cache, block), *older;

    for (; version; version = older) {
        older = version->older;
        if (version->write->seq <= seq)
            drop(cache, version);
    }
}

/* Voids the versions up to `seq` of `count` blocks: by block or by write, what is less work. */
static void forget(struct sim_cache *cache, uint64_t seq, uint64_t first, uint64_t count)
{
    struct write *write, *next;

    if (count <= cache->nbytes / cache->block_size) {
        for (uint64_t i = 0; i < count; i++)
            forget_block(cache, seq, first + i);
        return;
    }
    for (write = oldest(cache); !is_end(cache, write) && write->seq <= seq; write = next) {
        next = after(write);
        drop_blocks(cache, write, first, first + count);
    }
}

/*
 * ---- Writes that stay -----------------------------------------------------------------------
 */

/* The write as the cache keeps it; NULL when it does not fit. */
static struct write *make_write(struct sim_cache *cache, const struct sim_store_io *io)
{
    uint64_t nblocks = io->nbytes / cache->block_size;
    struct sim_iov cursor = sim_iov_begin(io->iov);
    struct write *write;

    if (io->nbytes > CACHE_NBYTES)
        return NULL;
    write = malloc(sizeof(*write) + nblocks * sizeof(write->versions[0]) + io->nbytes);
    if (!write)
        return NULL;
    write->first_block = io->off / cache->block_size;
    write->nblocks = write->nholders = (uint32_t)nblocks;
    write->data = (uint8_t *)&write->versions[nblocks];
    for (uint64_t i = 0; i < nblocks; i++)
        write->versions[i].write = write;
    sim_iov_gather(&cursor, write->data, io->nbytes);
    return write;
}

/* Takes a write into the cache; false when it must go through. */
static bool cache_write(struct sim_cache *cache, const struct sim_store_io *io)
{
    struct write *write = make_write(cache, io);
    bool fits;

    if (!write)
        return false;
    pthread_mutex_lock(&cache->lock);
    fits = cache->nbytes + io->nbytes <= CACHE_NBYTES;
    if (fits) {
        cache->nbytes += io->nbytes;
        write->seq = ++cache->seq;
        write->link.next = &cache->writes;
        write->link.prev = cache->writes.prev;
        write->link.prev->next = write->link.next->prev = &write->link;
        for (uint32_t i = 0; i < write->nblocks; i++)
            link_version(cache, &write->versions[i]);
    }
    pthread_mutex_unlock(&cache->lock);
    if (!fits)
        free(write);
    return fits;
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

    for (uint64_t i = 0; cache->nbytes && i < io->nbytes / cache->block_size; i++)
        count += *find(cache, first + i) != NULL;
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
        struct version *version = *find(cache, first + i);

        if (!version)
            continue;
        op->cached[op->ncached] = i;
        memcpy(op->data + (size_t)op->ncached * cache->block_size, version_data(cache, version),
               cache->block_size);
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
        forget(cache, op->seq, io->off / cache->block_size, io->nbytes / cache->block_size);
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
    op->seq = cache->seq;
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

/* The number of runs of newest versions in one write; fills `parts` with them unless NULL. */
static unsigned each_run(struct sim_cache *cache, struct write *write, struct part *parts)
{
    unsigned nruns = 0;

    for (uint32_t i = 0; i < write->nblocks;) {
        uint32_t begin = i;

        while (i < write->nblocks && write->versions[i].write && !write->versions[i].newer)
            i++;
        if (i == begin) {
            i++;
            continue;
        }
        if (parts) {
            struct part *part = &parts[nruns];
            size_t nbytes = (size_t)(i - begin) * cache->block_size;

            part->iov.iov_base = version_data(cache, &write->versions[begin]);
            part->iov.iov_len = nbytes;
            part->io =
                (struct sim_store_io){.op = SIM_STORE_WRITE,
                                      .off = (write->first_block + begin) * cache->block_size,
                                      .nbytes = nbytes,
                                      .iov = &part->iov,
                                      .niov = 1};
        }
        nruns++;
    }
    return nruns;
}

/* The parts of a write-back of all that is cached, allocated; NULL when out of memory. */
static struct part *make_parts(struct sim_cache *cache, unsigned *nparts)
{
    struct part *parts;
    unsigned count = 0, used = 0;

    for (struct write *write = oldest(cache); !is_end(cache, write); write = after(write))
        count += each_run(cache, write, NULL);
    parts = calloc(count + 1, sizeof(*parts));
    for (struct write *write = oldest(cache); parts && !is_end(cache, write); write = after(write))
        used += each_run(cache, write, parts + used);
    *nparts = used;
    return parts;
}

static void flush_done(struct sim_store_io *io, gpunvme_err_t err)
{
    struct op *op = (struct op *)io;
    struct sim_cache *cache = op->cache;

    pthread_mutex_lock(&cache->lock);
    if (!err)
        forget(cache, op->seq, 0, UINT64_MAX);
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
        op->seq = cache->seq;
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
    if (io->op == SIM_STORE_WRITE && !io->fua && cache_write(cache, io)) {
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
        struct op *next = op->next; /* a started op may be gone */

        if (!start(op))
            break;
        lane->first = next;
        if (!next)
            lane->last = &lane->first;
        steps++;
    }
    return steps;
}

/* Does the parts at once; what fails is lost, as it would be on a failing medium. */
static void put_below(struct sim_cache *cache, struct part *parts, unsigned nparts)
{
    for (unsigned i = 0; i < nparts; i++)
        cache->below->ops->now(cache->below, &parts[i].io);
    free(parts);
}

/* Draws what becomes of each write; only kept versions stay. */
static void draw_lots(struct sim_cache *cache)
{
    struct write *write, *next;

    for (write = oldest(cache); !is_end(cache, write); write = next) {
        uint64_t lot = base_random_below(&cache->random, 3); /* kept, lost, torn */

        write->nholders++;
        for (uint32_t i = 0; i < write->nblocks; i++) {
            bool keep = lot == 2 ? base_random_u64(&cache->random) & 1 : lot == 0;

            if (!keep && write->versions[i].write)
                drop(cache, &write->versions[i]);
        }
        next = after(write);
        release(cache, write);
    }
}

void sim_cache_power_loss(struct sim_cache *cache)
{
    struct part *parts;
    unsigned nparts = 0;

    pthread_mutex_lock(&cache->lock);
    draw_lots(cache);
    parts = make_parts(cache, &nparts);
    put_below(cache, parts, nparts);
    forget(cache, UINT64_MAX, 0, UINT64_MAX);
    pthread_mutex_unlock(&cache->lock);
}

gpunvme_err_t sim_cache_create(const struct sim_store_config *config, struct sim_backend *below,
                               struct sim_cache **out)
{
    struct sim_cache *cache = calloc(1, sizeof(*cache));

    if (cache)
        cache->lanes = calloc(config->nlanes, sizeof(*cache->lanes));
    if (!cache || !cache->lanes) {
        free(cache);
        return base_fail(GPUNVME_ERR_NOMEM, "a write cache");
    }
    pthread_mutex_init(&cache->lock, NULL);
    cache->below = below;
    cache->block_size = config->block_size;
    cache->nlanes = config->nlanes;
    cache->random.state = config->seed;
    cache->writes.next = cache->writes.prev = &cache->writes;
    for (unsigned i = 0; i < config->nlanes; i++)
        cache->lanes[i].last = &cache->lanes[i].first;
    *out = cache;
    return GPUNVME_OK;
}

void sim_cache_destroy(struct sim_cache *cache)
{
    struct part *parts;
    unsigned nparts = 0;

    if (!cache)
        return;
    parts = make_parts(cache, &nparts);
    put_below(cache, parts, nparts);
    forget(cache, UINT64_MAX, 0, UINT64_MAX);
    pthread_mutex_destroy(&cache->lock);
    free(cache->lanes);
    free(cache);
}
