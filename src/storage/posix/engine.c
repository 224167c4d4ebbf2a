/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Engines of the posix backend: the process's, and those of single stores. See engine.h.
 */
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "storage/engine.h"
#include "storage/posix/engine.h"

/* What an H200 machine of 16 cores and smaller ones were happy with; see bench/store_rate.c. */
#define LARGEST_CHUNK (16u << 20) /* that chunk= can ask for */
#define MAX_SLOTS     8u          /* of a worker */
#define MIN_SLOTS     2u          /* one is filled while the other is copied */
#define ENOUGH_NBYTES (64u << 20) /* of all slots: to pin them takes time, at first use */
#define ENOUGH_PART   (16u << 20) /* of a worker's */
#define DEPTH         128u
#define MAX_THREADS   16u /* fewer copy no faster than half of what the copy engine moves */
#define MIN_THREADS   2u
#define BLIND_THREADS 8u /* at least, where each waits for one request at a time */

static _Atomic bool uring_works; /* it has been asked for, and granted */

static unsigned threads_of(const struct gpunvme_engine_config *config,
                           const struct store_options *o, bool uring)
{
    unsigned n = MIN_THREADS;
    cpu_set_t cpus;

    if (o->threads || config->threads)
        return o->threads ? o->threads : config->threads;
    if (!sched_getaffinity(0, sizeof(cpus), &cpus))
        n = (unsigned)CPU_COUNT(&cpus);
    if (n > MAX_THREADS)
        n = MAX_THREADS;
    if (!uring && n < BLIND_THREADS)
        n = BLIND_THREADS;
    return n < MIN_THREADS ? MIN_THREADS : n;
}

/* Whether this process may have io_uring: some kernels, and the rules of
 * containers, forbid it. */
static gpunvme_err_t ask_for_uring(const struct store_options *o, struct posix_engine *engine)
{
    struct posix_uring *uring;

    if (o->uring == STORE_OFF)
        return GPUNVME_OK;
    if (!uring_works) {
        engine->uring_errno = posix_uring_create(2, &uring);
        posix_uring_destroy(uring);
        uring_works = !engine->uring_errno;
    }
    /* Without descriptors left it may well be allowed: each worker finds out for itself. */
    engine->uring = uring_works || posix_uring_may_come(engine->uring_errno);
    if (!uring_works && o->uring == STORE_ON)
        return base_fail(GPUNVME_ERR_UNSUPPORTED,
                         "the kernel refuses io_uring (%s); uring=auto does without",
                         strerror(engine->uring_errno));
    return GPUNVME_OK;
}

static gpunvme_err_t make_slots(struct posix_engine *engine, unsigned nworkers, bool fills)
{
    uint32_t largest = engine->chunk < POSIX_LEAST_SLOT ? POSIX_LEAST_SLOT : engine->chunk;
    unsigned nslots = (unsigned)(ENOUGH_NBYTES / largest / engine->threads);
    gpunvme_err_t err = GPUNVME_OK;

    if (nslots > ENOUGH_PART / largest)
        nslots = (unsigned)(ENOUGH_PART / largest);
    if (nslots > MAX_SLOTS)
        nslots = MAX_SLOTS;
    if (nslots > engine->depth)
        nslots = engine->depth;
    if (nslots < MIN_SLOTS)
        nslots = MIN_SLOTS;
    /* Two pages more: what is read past the page cache is whole blocks. */
    for (unsigned i = 0; i < (fills ? POSIX_NRINGS : POSIX_FILL_SLOTS) && !err; i++)
        err = posix_ring_create(&engine->rings[i], nworkers, nslots, largest + 2 * POSIX_PAGE,
                                i == POSIX_FILL_SLOTS);
    return err;
}

void posix_engine_destroy(struct posix_engine *engine)
{
    if (!engine)
        return;
    crew_stop(engine->crew);
    for (unsigned i = 0; i < POSIX_NRINGS; i++)
        posix_ring_destroy(&engine->rings[i]);
    free(engine);
}

static gpunvme_err_t make(const struct gpunvme_engine_config *config, const struct store_options *o,
                          bool is_shared, bool fills, struct posix_engine **out)
{
    struct posix_engine *engine = calloc(1, sizeof(*engine));
    uint64_t chunk = o->chunk_nbytes < LARGEST_CHUNK ? o->chunk_nbytes : LARGEST_CHUNK;
    struct base_failure failure;
    gpunvme_err_t err;

    if (!engine)
        return base_fail(GPUNVME_ERR_NOMEM, "an engine");
    engine->is_shared = is_shared;
    for (unsigned i = 0; i < POSIX_NRINGS; i++)
        posix_ring_init(&engine->rings[i]);
    err = ask_for_uring(o, engine);
    engine->threads = threads_of(config, o, engine->uring);
    engine->depth = o->depth ? o->depth : DEPTH;
    engine->chunk = chunk ? (uint32_t)chunk : POSIX_MEMORY_CHUNK;
    if (!err)
        err = make_slots(engine, engine->threads + is_shared, fills);
    if (!err)
        err = crew_start_shared(engine, &posix_crew_ops, engine->threads, is_shared, &engine->crew);
    if (err) {
        base_keep(&failure, err);
        posix_engine_destroy(engine);
        return base_restore(&failure);
    }
    *out = engine;
    return GPUNVME_OK;
}

gpunvme_err_t posix_engine_take(struct gpunvme_engine *of, const struct store_options *o,
                                bool fills, struct posix_engine **out)
{
    bool own = o->threads || o->depth || o->chunk_nbytes || o->uring != STORE_AUTO;
    gpunvme_err_t err = GPUNVME_OK;

    if (own)
        return make(&of->config, o, false, fills, out);
    pthread_mutex_lock(&of->lock);
    if (!of->posix)
        err = make(&of->config, o, true, true, &of->posix);
    *out = of->posix;
    pthread_mutex_unlock(&of->lock);
    return err;
}

void posix_engine_leave(struct posix_engine *engine)
{
    if (engine && !engine->is_shared)
        posix_engine_destroy(engine);
}

void posix_engine_info(const struct posix_engine *engine, struct gpunvme_engine_info *info)
{
    info->threads = engine->threads;
    for (unsigned i = 0; i < POSIX_NRINGS; i++)
        info->pinned_nbytes +=
            atomic_load(&engine->rings[i].npinned) * engine->rings[i].part_nbytes;
}
