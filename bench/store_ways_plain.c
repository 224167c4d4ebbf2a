/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The ways of programs that have no library for it, written as plainly as one would: pread() into
 * ordinary memory and a copy to the GPU that waits for its end; and pread() into one pinned buffer
 * while the other is on its way to the GPU. So many blocks in flight are so many threads, or half
 * of it with two buffers each.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/fail.h"
#include "store_ways.h"

#define WAIT_NS 10000000000u

struct run {
    struct way *way;
    const struct ways_point *point;
    struct ways_slot *slots;
    bool pinned;
    _Atomic uint64_t next; /* block, in sequence */
    _Atomic bool stop;
    _Atomic unsigned ready; /* threads that have their buffers */
    pthread_mutex_t lock;   /* of what follows */
    gpunvme_err_t err;
    char why[256];
};

/* A buffer on the host's side, and the slot that it is for. */
struct half {
    struct gpunvme_buf host;
    struct gpunvme_mem_stream *stream; /* pinned */
    uint64_t offset;
    unsigned slot;
    bool flies;
};

struct reader {
    _Alignas(128) _Atomic uint64_t blocks;
    struct run *run;
    unsigned index, nhalves;
    uint64_t random;
    struct half halves[2];
    pthread_t thread;
};

static void fail(struct run *run, gpunvme_err_t err, const char *why)
{
    pthread_mutex_lock(&run->lock);
    if (!run->err) {
        run->err = err;
        snprintf(run->why, sizeof(run->why), "%s", why);
    }
    pthread_mutex_unlock(&run->lock);
    atomic_store(&run->stop, true);
}

static bool good(struct run *run, gpunvme_err_t err)
{
    if (err)
        fail(run, err, gpunvme_err_detail());
    return !err;
}

static bool read_block(struct reader *r, struct half *half)
{
    struct run *run = r->run;
    size_t done = 0;
    ssize_t n;

    half->offset = ways_offset(
        run->way, run->point, run->point->random ? 0 : atomic_fetch_add(&run->next, 1), &r->random);
    while (done < run->point->block) {
        n = pread(run->way->fd, (char *)half->host.cpu + done, run->point->block - done,
                  (off_t)(half->offset + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            fail(run, GPUNVME_ERR_IO, n ? strerror(errno) : "the file is too short");
            return false;
        }
        done += (size_t)n;
    }
    return true;
}

static void *target_of(const struct run *run, const struct half *half)
{
    return (char *)run->way->target->gpu + half->slot * run->point->block;
}

static void count(struct reader *r, struct half *half)
{
    r->run->slots[half->slot] = (struct ways_slot){.offset = half->offset, .filled = true};
    atomic_fetch_add_explicit(&r->blocks, 1, memory_order_relaxed);
}

static void read_pageable(struct reader *r)
{
    struct half *half = &r->halves[0];

    while (!atomic_load_explicit(&r->run->stop, memory_order_relaxed) && read_block(r, half) &&
           good(r->run, gpunvme_mem_copy(target_of(r->run, half), GPUNVME_MEM_GPU, half->host.cpu,
                                         GPUNVME_MEM_HOST, r->run->point->block)))
        count(r, half);
}

/* Waits until the copy from this buffer has ended. */
static bool land(struct reader *r, struct half *half)
{
    if (!half->flies)
        return true;
    half->flies = false;
    if (!good(r->run, gpunvme_mem_stream_sync(half->stream, WAIT_NS)))
        return false;
    count(r, half);
    return true;
}

static void read_pinned(struct reader *r)
{
    struct half *half = &r->halves[0];

    for (unsigned i = 0; !atomic_load_explicit(&r->run->stop, memory_order_relaxed); i++) {
        half = &r->halves[i % r->nhalves];
        if (!land(r, half) || !read_block(r, half) ||
            !good(r->run,
                  gpunvme_mem_copy_async(target_of(r->run, half), GPUNVME_MEM_GPU, half->host.cpu,
                                         GPUNVME_MEM_PINNED, r->run->point->block, half->stream)))
            break;
        half->flies = true;
    }
    for (unsigned i = 0; i < r->nhalves; i++)
        land(r, &r->halves[i]);
}

static bool prepare(struct reader *r)
{
    for (unsigned i = 0; i < r->nhalves; i++) {
        struct half *half = &r->halves[i];

        half->slot = r->index * r->nhalves + i;
        if (!good(r->run, gpunvme_mem_alloc(r->run->point->block,
                                            r->run->pinned ? GPUNVME_MEM_PINNED : GPUNVME_MEM_HOST,
                                            &half->host)) ||
            (r->run->pinned &&
             !good(r->run, gpunvme_mem_stream_create(r->run->way->target, &half->stream))))
            return false;
    }
    return true;
}

static void *read_all(void *arg)
{
    struct reader *r = arg;

    if (prepare(r)) {
        atomic_fetch_add(&r->run->ready, 1);
        if (r->run->pinned)
            read_pinned(r);
        else
            read_pageable(r);
    }
    for (unsigned i = 0; i < r->nhalves; i++) {
        gpunvme_mem_stream_destroy(r->halves[i].stream);
        gpunvme_mem_free(&r->halves[i].host);
    }
    return NULL;
}

/* Looks at the clock now and then, and what the threads have done. */
static void watch(struct run *run, struct reader *readers, unsigned n, struct ways_meter *meter)
{
    const struct timespec pause = {.tv_nsec = 500000};
    uint64_t blocks;

    do {
        nanosleep(&pause, NULL);
        blocks = 0;
        for (unsigned i = 0; i < n; i++)
            blocks += atomic_load_explicit(&readers[i].blocks, memory_order_relaxed);
    } while (!atomic_load(&run->stop) &&
             (atomic_load(&run->ready) < n || ways_goes_on(meter, blocks)));
    atomic_store(&run->stop, true);
}

unsigned ways_threads(const struct way *way, unsigned depth)
{
    return way->ops == &way_pinned ? (depth + 1) / 2 : depth;
}

static gpunvme_err_t run_plain(struct way *way, const struct ways_point *point,
                               struct ways_meter *meter, struct ways_slot *slots)
{
    static struct reader readers[WAYS_MAX_THREADS];
    struct run run = {.way = way,
                      .point = point,
                      .slots = slots,
                      .pinned = way->ops == &way_pinned,
                      .lock = PTHREAD_MUTEX_INITIALIZER};
    unsigned n = ways_threads(way, point->depth), started;

    memset(readers, 0, sizeof(readers));
    if (way->disk)
        posix_fadvise(way->fd, 0, 0, POSIX_FADV_DONTNEED);
    for (started = 0; started < n; started++) {
        struct reader *r = &readers[started];

        r->run = &run;
        r->index = started;
        r->random = started + 1;
        r->nhalves = run.pinned && point->depth > 1 ? 2 : 1;
        if (pthread_create(&r->thread, NULL, read_all, r)) {
            fail(&run, GPUNVME_ERR_LIMIT, "a thread could not be started");
            break;
        }
    }
    watch(&run, readers, started, meter);
    for (unsigned i = 0; i < started; i++)
        pthread_join(readers[i].thread, NULL);
    way->threads = started;
    return run.err ? base_fail(run.err, "%s", run.why) : GPUNVME_OK;
}

static gpunvme_err_t open_plain(struct way *way)
{
    bool direct = way->disk && way->ops == &way_pinned;

    way->fd = open(way->uri, O_RDONLY | O_CLOEXEC | (direct ? O_DIRECT : 0));
    if (way->fd < 0)
        return base_fail_errno(errno, "%s%s", way->uri, direct ? " with O_DIRECT" : "");
    return GPUNVME_OK;
}

static void close_plain(struct way *way)
{
    close(way->fd);
}

const struct way_ops way_pageable = {.open = open_plain, .run = run_plain, .close = close_plain};
const struct way_ops way_pinned = {.open = open_plain, .run = run_plain, .close = close_plain};
