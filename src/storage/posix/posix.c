/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The posix backend: files and block devices of the kernel. posix.h has the plan of it.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fail.h"
#include "gpunvme/memory.h"
#include "storage/posix/engine.h"

#define CHUNK       (2u << 20) /* not cached: more of them keep a drive busy */
#define RUN         16u
#define LEAST_SHARE (256u << 10) /* smaller pieces are not made to have one for each worker */

gpunvme_err_t posix_leave(struct posix *posix)
{
    posix_fill_destroy(&posix->fill);
    pthread_mutex_destroy(&posix->write_lock);
    return posix_file_close(&posix->file);
}

static gpunvme_err_t posix_close(struct gpunvme_store *store)
{
    return posix_leave(store->priv);
}

gpunvme_err_t posix_enter(struct gpunvme_store *store, struct posix *posix)
{
    gpunvme_err_t err;

    pthread_mutex_init(&posix->write_lock, NULL);
    err = posix_file_open(store, &posix->file, !posix->serve_gpu);
    posix_fill_init(&posix->fill, posix->file.fd);
    if (!err)
        err = posix_engine_take(store->engine, &posix->engine);
    if (err)
        return err;
    posix->uring = !posix->engine->uring_errno &&
                   (store->uri.options.uring == STORE_ON ||
                    (store->uri.options.uring != STORE_OFF && !posix->file.is_served));
    store->crew = posix->engine->crew;
    return GPUNVME_OK;
}

/* What `threads=`, `depth=`, `chunk=` and `uring=` ask for, within what the engine has. */
static gpunvme_err_t set_limits(struct gpunvme_store *store, struct posix *posix)
{
    static _Atomic unsigned turn;
    const struct store_options *o = &store->uri.options;
    size_t chunk = posix_file_seems_cached(&posix->file) ? POSIX_MEMORY_CHUNK : CHUNK;
    unsigned nlanes = crew_lanes(posix->engine->crew);

    if (o->uring == STORE_ON && posix->engine->uring_errno)
        return base_fail(GPUNVME_ERR_UNSUPPORTED,
                         "the kernel refuses io_uring (%s); uring=auto does without",
                         strerror(posix->engine->uring_errno));
    store->threads = o->threads && o->threads < nlanes ? o->threads : nlanes;
    if (store->threads < nlanes) {
        store->queue.nlanes = store->threads;
        store->queue.first_lane = atomic_fetch_add(&turn, store->threads) % nlanes;
    }
    store->queue.max_in_hand = (size_t)o->depth * store->threads;
    if (o->chunk_nbytes)
        chunk = o->chunk_nbytes < POSIX_MEMORY_CHUNK ? o->chunk_nbytes : POSIX_MEMORY_CHUNK;
    store->queue.piece_nbytes = chunk;
    store->queue.least_nbytes = LEAST_SHARE;
    store->queue.most_run = o->depth ? 0 : RUN;
    if (posix->file.in_memory)
        atomic_store(&store->queue.group_nbytes, chunk);
    return GPUNVME_OK;
}

static gpunvme_err_t posix_open(struct gpunvme_store *store)
{
    gpunvme_err_t err = posix_enter(store, store->priv);

    store->gpu_route = GPUNVME_ROUTE_BOUNCE;
    return err ? err : set_limits(store, store->priv);
}

gpunvme_err_t posix_size(struct gpunvme_store *store, uint64_t *nbytes)
{
    const struct posix *posix = store->priv;

    return store_fd_size(posix->file.fd, posix->file.block_device, nbytes);
}

gpunvme_err_t posix_resize(struct gpunvme_store *store, uint64_t nbytes)
{
    const struct posix *posix = store->priv;
    int error;

    if (nbytes > INT64_MAX)
        return base_fail(GPUNVME_ERR_RANGE, "%llu bytes", (unsigned long long)nbytes);
    do {
        error = ftruncate(posix->file.fd, (off_t)nbytes) ? errno : 0;
    } while (error == EINTR);
    return error ? base_fail_errno(error, "%s: %llu bytes", store->uri.target,
                                   (unsigned long long)nbytes)
                 : GPUNVME_OK;
}

gpunvme_err_t posix_advise(struct gpunvme_store *store, uint64_t offset, uint64_t nbytes,
                           enum gpunvme_advice advice)
{
    static const int of_kernel[] = {
        [GPUNVME_ADVICE_NORMAL] = POSIX_FADV_NORMAL,
        [GPUNVME_ADVICE_SEQUENTIAL] = POSIX_FADV_SEQUENTIAL,
        [GPUNVME_ADVICE_RANDOM] = POSIX_FADV_RANDOM,
        [GPUNVME_ADVICE_WILL_NEED] = POSIX_FADV_WILLNEED,
        [GPUNVME_ADVICE_DONT_NEED] = POSIX_FADV_DONTNEED,
    };
    struct posix *posix = store->priv;
    int error = posix_fadvise(posix->file.fd, (off_t)offset, (off_t)nbytes, of_kernel[advice]);

    return error ? base_fail_errno(error, "%s: a hint", store->uri.text) : GPUNVME_OK;
}

/* ---- What it says of itself ------------------------------------------------------------------ */

static const char *direct_why_not(const struct posix_file *file)
{
    return atomic_load(&file->no_direct) ? "the kernel refused requests" : file->why_not;
}

static bool has_direct(const struct posix_file *file)
{
    return file->direct_fd >= 0 && !atomic_load(&file->no_direct);
}

static bool has_uring(const struct posix *posix)
{
    return posix->uring && atomic_load(&posix->engine->nblind) < crew_lanes(posix->engine->crew);
}

static const char *name_of(const struct posix *posix)
{
    if (posix->file.in_memory)
        return "copies of a file in memory";
    return has_uring(posix) ? "io_uring" : "pread and pwrite";
}

static void say_how(const struct gpunvme_store *store, struct gpunvme_path *path)
{
    const struct posix *posix = store->priv;
    const struct posix_file *file = &posix->file;
    const struct posix_engine *engine = posix->engine;
    size_t pinned = posix_engine_pinned(engine);

    STORE_SAY(path->how, "%s%s", name_of(posix), has_direct(file) ? ", O_DIRECT" : "");
    if (!file->in_memory)
        STORE_SAY(path->how, ", copies of what is cached");
    STORE_SAY(path->how, "; %u thread%s shared by all stores, pieces of %zu KiB", store->threads,
              store->threads == 1 ? "" : "s", store->queue.piece_nbytes >> 10);
    if (store->queue.max_in_hand)
        STORE_SAY(path->how, ", at most %zu at a time", store->queue.max_in_hand);
    if (posix->uring && atomic_load(&engine->nblind))
        STORE_SAY(path->how, "; io_uring was refused to %u of them", atomic_load(&engine->nblind));
    if (pinned)
        STORE_SAY(path->how, "; %zu MiB %s", pinned >> 20,
                  gpunvme_mem_gpu_is_host() ? "in place of what is pinned for a GPU"
                                            : "pinned for the GPU");
}

static void say_why_not(const struct posix *posix, struct gpunvme_path *path)
{
    const struct posix_file *file = &posix->file;
    const struct posix_engine *engine = posix->engine;

    STORE_SAY(path->why_not, "p2p: a file's bytes go through the kernel's memory");
    if (!has_direct(file))
        STORE_SAY(path->why_not, "; O_DIRECT: %s", direct_why_not(file));
    if (!posix->uring)
        STORE_SAY(path->why_not, "; io_uring: %s",
                  engine->uring_errno ? strerror(engine->uring_errno)
                  : file->is_served   ? "this file system may hold up who asks"
                                      : "uring=off");
    if (atomic_load(&engine->ring.nrefused))
        STORE_SAY(path->why_not, "; pinned memory: %s", engine->ring.why_not);
}

static void posix_describe(struct gpunvme_store *store, struct gpunvme_path *path)
{
    say_how(store, path);
    say_why_not(store->priv, path);
}

const struct store_backend store_posix = {
    .name = "posix",
    .option_bit = STORE_POSIX,
    .open = posix_open,
    .priv_nbytes = sizeof(struct posix),
    .close = posix_close,
    .size = posix_size,
    .resize = posix_resize,
    .advise = posix_advise,
    .direct = posix_direct,
    .describe = posix_describe,
    .works_with = "files and block devices of the kernel",
};
