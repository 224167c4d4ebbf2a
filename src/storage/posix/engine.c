/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What all files of an engine share. See engine.h.
 */
#include "storage/posix/engine.h"

#include <stdlib.h>

#include "base/fail.h"
#include "storage/engine.h"
#include "storage/posix/worker.h"

/*
 * A lane fills one slot, and about four are being copied, whatever the number of lanes is. Few
 * lanes have more, so that one may have several copied while it fills another. For small pieces
 * each has two, which stay in its processor's cache.
 */
#define LANE_SLOTS   4u
#define ENOUGH_SLOTS 16u
#define COPIED_SLOTS 4u
#define SMALL_SLOTS  2u /* of a lane, large ones with them */

#define DEFAULT_PINNED ((size_t)128 << 20)

/*
 * Whether this process may have io_uring: some kernels, and the rules of containers, forbid it.
 * Without descriptors left it may well be allowed: each lane finds out for itself.
 */
static int ask_for_uring(void)
{
    struct posix_uring *uring;
    int error = posix_uring_create(2, &uring);

    posix_uring_destroy(uring);
    return posix_uring_may_come(error) ? 0 : error;
}

/* As many slots as lanes want, within what may be pinned, but at least one. */
static gpunvme_err_t make_slots(struct posix_engine *engine, struct gpunvme_engine *of,
                                unsigned nworkers)
{
    size_t most = of->config.pinned_nbytes ? of->config.pinned_nbytes : DEFAULT_PINNED;
    size_t nlarge = nworkers * LANE_SLOTS, nsmall = 0;

    if (nlarge > ENOUGH_SLOTS)
        nlarge = nworkers + COPIED_SLOTS > ENOUGH_SLOTS ? nworkers + COPIED_SLOTS : ENOUGH_SLOTS;
    if (nlarge > most / POSIX_MEMORY_CHUNK)
        nlarge = most < POSIX_MEMORY_CHUNK ? 1 : most / POSIX_MEMORY_CHUNK;
    most -= most < POSIX_MEMORY_CHUNK ? most : nlarge * POSIX_MEMORY_CHUNK;
    if (nlarge < nworkers * SMALL_SLOTS)
        nsmall = nworkers * SMALL_SLOTS - nlarge;
    if (nsmall > most / POSIX_SMALL)
        nsmall = most / POSIX_SMALL;
    return posix_ring_create(&engine->ring, nworkers, (unsigned)nlarge, (unsigned)nsmall,
                             &of->place);
}

void posix_engine_destroy(struct posix_engine *engine)
{
    if (!engine)
        return;
    crew_destroy(engine->crew);
    posix_ring_destroy(&engine->ring);
    free(engine);
}

/* Under the lock. After an error something may be there. */
static gpunvme_err_t make(struct gpunvme_engine *of)
{
    unsigned nworkers = workers_count(of->workers);
    struct posix_engine *engine = of->posix = calloc(1, sizeof(*engine));
    gpunvme_err_t err;

    if (!engine)
        return base_fail(GPUNVME_ERR_NOMEM, "slots for files");
    engine->pool = of->pool;
    engine->uring_errno = ask_for_uring();
    err = make_slots(engine, of, nworkers);
    if (!err)
        err = crew_create(of, &engine->crew);
    for (unsigned i = 0; i < nworkers && !err; i++)
        err = posix_add_lane(engine, i, workers_at(of->workers, i));
    for (unsigned gpu = 0; gpu < POSIX_MAX_GPUS && !err; gpu++)
        if (atomic_load(&of->ready_gpus) >> gpu & 1)
            err = posix_ring_prepare(&engine->ring, gpu);
    return err;
}

gpunvme_err_t posix_engine_take(struct gpunvme_engine *of, struct posix_engine **out)
{
    struct base_failure failure = {.err = GPUNVME_OK};

    pthread_mutex_lock(&of->lock);
    if (!of->posix)
        base_keep(&failure, make(of));
    if (failure.err) {
        posix_engine_destroy(of->posix);
        of->posix = NULL;
    }
    *out = of->posix;
    pthread_mutex_unlock(&of->lock);
    return failure.err ? base_restore(&failure) : GPUNVME_OK;
}

size_t posix_engine_pinned(const struct posix_engine *engine)
{
    return atomic_load(&engine->ring.pinned_nbytes);
}
