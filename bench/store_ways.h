/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What the files of store_ways share: a way to bring bytes into GPU memory, a point of the sweep,
 * and the meter that divides a run into windows. store_ways.c has the sweep, store_ways_plain.c
 * the ways without this library's stores, store_ways_store.c those with them.
 */
#ifndef BENCH_STORE_WAYS_H
#define BENCH_STORE_WAYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "bench.h"
#include "gpunvme/memory.h"
#include "gpunvme/storage.h"

#define WAYS_RUNS       5
#define WAYS_IN_FLIGHT  ((size_t)64 << 20) /* bytes: points with more are left out */
#define WAYS_URI_ROOM   4200
#define WAYS_WHY_ROOM   1024
#define WAYS_DEADLINE_S 20 /* of one point */

struct ways_point {
    size_t block;
    unsigned depth;
    bool random;
};

/* A place in the target memory, one block long, and what lies in it at the end of a run. */
struct ways_slot {
    uint64_t offset; /* in the store */
    bool filled;
};

/*
 * Time in windows: the first warms up, WAYS_RUNS are counted. Whoever drives the transfers asks
 * again and again whether to go on, and tells how many blocks have come so far.
 */
struct ways_meter {
    double window_ns;
    double begin_ns, first_ns, cpu_ns;
    uint64_t blocks;
    int n; /* windows that have ended, with the first; -1: not begun */
    double blocks_per_s[WAYS_RUNS];
    double cpu_ns_per_block[WAYS_RUNS];
};

static inline double ways_ns(clockid_t clock)
{
    struct timespec now;

    clock_gettime(clock, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static inline bool ways_goes_on(struct ways_meter *m, uint64_t blocks)
{
    double now = ways_ns(CLOCK_MONOTONIC), cpu;

    if (m->n < 0)
        m->first_ns = now;
    else if (now - m->first_ns > WAYS_DEADLINE_S * 1e9)
        return false;
    else if (now - m->begin_ns < m->window_ns || blocks == m->blocks)
        return true;
    cpu = ways_ns(CLOCK_PROCESS_CPUTIME_ID);
    if (m->n > 0) {
        uint64_t n = blocks - m->blocks;

        m->blocks_per_s[m->n - 1] = (double)n * 1e9 / (now - m->begin_ns);
        m->cpu_ns_per_block[m->n - 1] = (cpu - m->cpu_ns) / (double)n;
    }
    m->begin_ns = now;
    m->cpu_ns = cpu;
    m->blocks = blocks;
    return ++m->n <= WAYS_RUNS;
}

struct way;

struct way_ops {
    /* An error, with its detail, where this machine or build lacks what it takes. */
    gpunvme_err_t (*open)(struct way *way);
    /*
     * Reads blocks into `target` until the meter says that it is enough; slots[i] tells what lies
     * at i * block then. Nothing is in flight when it returns.
     */
    gpunvme_err_t (*run)(struct way *way, const struct ways_point *point, struct ways_meter *meter,
                         struct ways_slot *slots);
    void (*close)(struct way *way);
};

struct way {
    const char *name;
    const struct way_ops *ops;
    char uri[WAYS_URI_ROOM];
    uint64_t nbytes;                  /* that are read; a store that is smaller makes it less */
    const struct gpunvme_buf *target; /* GPU memory */
    bool disk;                        /* past the page cache, where there is a choice */
    bool fill;                        /* the store is to be filled with the data, first */
    bool foreign;                     /* its bytes are not ours: a drive that is only read */
    struct gpunvme_store *store;      /* NULL: a plain way */
    struct gpunvme_batch *batch;      /* of a store */
    int fd;                           /* of a plain way */
    unsigned threads;                 /* of the last run of a plain way */
    struct gpunvme_path path;         /* of a store, at the end */
    bool works;
    char why[WAYS_WHY_ROOM]; /* … not */
};

extern const struct way_ops way_pageable, way_pinned, way_store, way_cufile;

/* How many threads a plain way needs for so many blocks in flight, and how many it may have. */
#define WAYS_MAX_THREADS 64u
unsigned ways_threads(const struct way *way, unsigned depth);

/* The data: the same function of the offset for files and drives. Multiples of 8 bytes. */
void ways_data(uint64_t offset, void *out, size_t nbytes);

/* Block number i of a run, as an offset. */
static inline uint64_t ways_offset(const struct way *way, const struct ways_point *point,
                                   uint64_t i, uint64_t *random)
{
    uint64_t nblocks = way->nbytes / point->block;

    return (point->random ? bench_random(random) : i) % nblocks * point->block;
}

#endif
