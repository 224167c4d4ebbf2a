/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The writes that a volatile write cache holds. Memory only: see write_log.h.
 *
 * The versions of a block form a chain; the newest hangs in a hash table. The writes form a ring
 * in their order, with the log as its anchor.
 */
#include <stdlib.h>

#include "sim/store/iov.h"
#include "sim/store/write_log.h"

#define NBUCKETS 16384

struct version {
    struct version *newer, *older;
    struct version *next;        /* in the bucket; only the newest of a block is there */
    struct sim_log_write *write; /* NULL once void */
};

struct link {
    struct link *next, *prev;
};

struct sim_log_write {
    struct link link; /* first */
    uint64_t seq;
    uint64_t first_block;
    uint32_t nblocks;
    uint32_t nholders; /* versions that are not void, and loops that look at them; 0 frees it */
    uint8_t *data;
    struct version versions[];
};

struct sim_log {
    struct link ring; /* next is the oldest write, prev the newest */
    uint32_t block_size;
    uint64_t seq;
    uint64_t nbytes, max_nbytes; /* of data */
    struct version *buckets[NBUCKETS];
};

struct sim_log *sim_log_create(uint32_t block_size, uint64_t max_nbytes)
{
    struct sim_log *log = calloc(1, sizeof(*log));

    if (!log)
        return NULL;
    log->ring.next = log->ring.prev = &log->ring;
    log->block_size = block_size;
    log->max_nbytes = max_nbytes;
    return log;
}

void sim_log_destroy(struct sim_log *log)
{
    if (!log)
        return;
    sim_log_forget(log, UINT64_MAX, 0, UINT64_MAX);
    free(log);
}

bool sim_log_is_empty(const struct sim_log *log)
{
    return log->ring.next == &log->ring;
}

uint64_t sim_log_seq(const struct sim_log *log)
{
    return log->seq;
}

static uint64_t block_of(const struct version *version)
{
    return version->write->first_block + (uint64_t)(version - version->write->versions);
}

/* What points to the newest version of a block, or to the NULL that ends its bucket. */
static struct version **find(const struct sim_log *log, uint64_t block)
{
    uint64_t hash = (block * 0x9e3779b97f4a7c15ULL >> 32) % NBUCKETS;
    struct version **at = (struct version **)&log->buckets[hash];

    while (*at && block_of(*at) != block)
        at = &(*at)->next;
    return at;
}

const uint8_t *sim_log_find(const struct sim_log *log, uint64_t block)
{
    const struct version *version = *find(log, block);

    if (!version)
        return NULL;
    return version->write->data + (block - version->write->first_block) * log->block_size;
}

struct sim_log_write *sim_log_prepare(uint32_t block_size, uint64_t first_block, uint32_t nblocks,
                                      const struct iovec *iov)
{
    size_t nbytes = (size_t)nblocks * block_size;
    struct sim_iov cursor = sim_iov_begin(iov);
    struct sim_log_write *write =
        malloc(sizeof(*write) + nblocks * sizeof(write->versions[0]) + nbytes);

    if (!write)
        return NULL;
    write->first_block = first_block;
    write->nblocks = write->nholders = nblocks;
    write->data = (uint8_t *)&write->versions[nblocks];
    for (uint32_t i = 0; i < nblocks; i++)
        write->versions[i].write = write;
    sim_iov_gather(&cursor, write->data, nbytes);
    return write;
}

void sim_log_discard(struct sim_log_write *write)
{
    free(write);
}

/* Makes a version the newest of its block. */
static void push(struct sim_log *log, struct version *version)
{
    struct version **at = find(log, block_of(version));

    version->older = *at;
    version->newer = NULL;
    version->next = *at ? (*at)->next : NULL;
    if (*at)
        (*at)->newer = version;
    *at = version;
}

bool sim_log_add(struct sim_log *log, struct sim_log_write *write)
{
    uint64_t nbytes = (uint64_t)write->nblocks * log->block_size;

    if (nbytes > log->max_nbytes - log->nbytes)
        return false;
    log->nbytes += nbytes;
    write->seq = ++log->seq;
    write->link.next = &log->ring;
    write->link.prev = log->ring.prev;
    write->link.prev->next = write->link.next->prev = &write->link;
    for (uint32_t i = 0; i < write->nblocks; i++)
        push(log, &write->versions[i]);
    return true;
}

static void release(struct sim_log *log, struct sim_log_write *write)
{
    if (--write->nholders)
        return;
    write->link.prev->next = write->link.next;
    write->link.next->prev = write->link.prev;
    log->nbytes -= (uint64_t)write->nblocks * log->block_size;
    free(write);
}

static void make_void(struct sim_log *log, struct version *version)
{
    struct sim_log_write *write = version->write;

    if (version->older)
        version->older->newer = version->newer;
    if (version->newer) {
        version->newer->older = version->older;
    } else {
        struct version **at = find(log, block_of(version));

        *at = version->older ? version->older : version->next;
        if (version->older)
            version->older->next = version->next;
    }
    version->write = NULL;
    release(log, write);
}

/* Voids those versions of a write that `chosen` picks, and lets the write go. */
static void void_some(struct sim_log *log, struct sim_log_write *write,
                      bool (*chosen)(void *context, uint64_t block), void *context)
{
    write->nholders++;
    for (uint32_t i = 0; i < write->nblocks; i++)
        if (write->versions[i].write && chosen(context, write->first_block + i))
            make_void(log, &write->versions[i]);
    release(log, write);
}

struct range {
    uint64_t first, count;
};

static bool in_range(void *range_, uint64_t block)
{
    const struct range *range = range_;

    return block >= range->first && block - range->first < range->count;
}

/* Voids the versions of one block up to `seq`. */
static void forget_block(struct sim_log *log, uint64_t seq, uint64_t block)
{
    struct version *version = *find(log, block), *older;

    for (; version; version = older) {
        older = version->older;
        if (version->write->seq <= seq)
            make_void(log, version);
    }
}

void sim_log_forget(struct sim_log *log, uint64_t seq, uint64_t first_block, uint64_t count)
{
    struct range range = {first_block, count};
    struct link *link, *next;

    if (count <= log->nbytes / log->block_size) { /* fewer blocks than versions */
        for (uint64_t i = 0; i < count; i++)
            forget_block(log, seq, first_block + i);
        return;
    }
    for (link = log->ring.next; link != &log->ring; link = next) {
        struct sim_log_write *write = (struct sim_log_write *)link;

        next = link->next;
        if (write->seq > seq)
            break;
        void_some(log, write, in_range, &range);
    }
}

static bool always(void *context, uint64_t block)
{
    (void)context;
    (void)block;
    return true;
}

static bool by_coin(void *random, uint64_t block)
{
    (void)block;
    return base_random_u64(random) & 1;
}

void sim_log_draw_lots(struct sim_log *log, struct base_random *random)
{
    struct link *link, *next;

    for (link = log->ring.next; link != &log->ring; link = next) {
        uint64_t lot = base_random_below(random, 3);

        next = link->next;
        if (lot == 1)
            void_some(log, (struct sim_log_write *)link, always, NULL);
        else if (lot == 2)
            void_some(log, (struct sim_log_write *)link, by_coin, random);
    }
}

static bool is_newest(const struct sim_log_write *write, uint32_t i)
{
    return i < write->nblocks && write->versions[i].write && !write->versions[i].newer;
}

/* The runs of one write. */
static unsigned write_runs(const struct sim_log *log, const struct sim_log_write *write,
                           struct sim_log_run *runs)
{
    unsigned nruns = 0;

    for (uint32_t i = 0; i < write->nblocks; i++) {
        uint32_t begin = i;

        while (is_newest(write, i))
            i++;
        if (i == begin)
            continue;
        if (runs)
            runs[nruns] =
                (struct sim_log_run){.first_block = write->first_block + begin,
                                     .nblocks = i - begin,
                                     .data = write->data + (size_t)begin * log->block_size};
        nruns++;
    }
    return nruns;
}

unsigned sim_log_runs(const struct sim_log *log, struct sim_log_run *runs)
{
    unsigned nruns = 0;

    for (struct link *link = log->ring.next; link != &log->ring; link = link->next)
        nruns += write_runs(log, (struct sim_log_write *)link, runs ? runs + nruns : NULL);
    return nruns;
}
