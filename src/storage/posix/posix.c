/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The posix backend: files and block devices of the kernel. posix.h has the plan of it.
 */
#include <errno.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fail.h"
#include "gpunvme/memory.h"
#include "storage/posix/posix.h"

/* What an H200 machine of 16 cores and smaller ones were happy with; see bench/store_rate.c. */
#define CHUNK         (2u << 20)  /* each copy costs the copy engine 3 us beside its bytes */
#define MEMORY_CHUNK  (4u << 20)  /* no drive has to be kept busy by many at a time */
#define LARGEST_CHUNK (16u << 20) /* that chunk= can ask for */
#define MAX_SLOTS     8u          /* of a worker */
#define MIN_SLOTS     2u          /* one is filled while the other is copied */
#define ENOUGH_NBYTES (64u << 20) /* of all slots: to pin them takes time, at first use */
#define ENOUGH_PART   (16u << 20) /* of a worker's */
#define DEPTH         128u
#define LEAST_SHARE   (256u << 10) /* smaller pieces are not made to have one for each worker */
#define MAX_THREADS   16u /* fewer copy no faster than half of what the copy engine moves */
#define MIN_THREADS   2u
#define BLIND_THREADS 8u /* at least, where each waits for one request at a time */

static unsigned threads_of(const struct gpunvme_store *store, bool uring)
{
    unsigned n = MIN_THREADS;
    cpu_set_t cpus;

    if (store->uri.options.threads)
        return store->uri.options.threads;
    if (!sched_getaffinity(0, sizeof(cpus), &cpus))
        n = (unsigned)CPU_COUNT(&cpus);
    if (n > MAX_THREADS)
        n = MAX_THREADS;
    if (!uring && n < BLIND_THREADS)
        n = BLIND_THREADS;
    return n < MIN_THREADS ? MIN_THREADS : n;
}

/* Whether this process may have io_uring: some kernels, and the rules of containers, forbid it. */
static gpunvme_err_t ask_for_uring(struct gpunvme_store *store, struct posix *posix)
{
    enum store_switch wanted = store->uri.options.uring;
    struct posix_uring *uring;

    if (wanted == STORE_OFF)
        return GPUNVME_OK;
    posix->uring_errno = posix_uring_create(&posix->file, 2, &uring);
    posix_uring_destroy(uring);
    posix->uring = !posix->uring_errno;
    if (!posix->uring && wanted == STORE_ON)
        return base_fail(GPUNVME_ERR_UNSUPPORTED,
                         "%s: the kernel refuses io_uring (%s); uring=auto does without",
                         store->uri.target, strerror(posix->uring_errno));
    return GPUNVME_OK;
}

/* Pieces, and the slots for them. */
static gpunvme_err_t set_sizes(struct gpunvme_store *store, struct posix *posix)
{
    const struct store_options *o = &store->uri.options;
    uint64_t chunk = o->chunk_nbytes < LARGEST_CHUNK ? o->chunk_nbytes : LARGEST_CHUNK;
    uint32_t largest;
    unsigned nslots;

    posix->threads = store->threads = threads_of(store, posix->uring);
    posix->depth = o->depth ? o->depth : DEPTH;
    posix->chunk = chunk ? (uint32_t)chunk : posix->file.in_memory ? MEMORY_CHUNK : CHUNK;
    store->queue.piece_nbytes = posix->chunk;
    store->queue.least_nbytes = LEAST_SHARE;
    largest = posix->chunk < POSIX_LEAST_SLOT ? POSIX_LEAST_SLOT : posix->chunk;
    nslots = (unsigned)(ENOUGH_NBYTES / largest / posix->threads);
    if (nslots > ENOUGH_PART / largest)
        nslots = (unsigned)(ENOUGH_PART / largest);
    if (nslots > MAX_SLOTS)
        nslots = MAX_SLOTS;
    if (nslots > posix->depth)
        nslots = posix->depth;
    if (nslots < MIN_SLOTS)
        nslots = MIN_SLOTS;
    /* Two pages more: what is read past the page cache is whole blocks. */
    return posix_ring_create(&posix->ring, posix->threads, nslots, largest + 2 * POSIX_PAGE,
                             posix->file.in_memory && store->flags & GPUNVME_OPEN_WRITE);
}

static gpunvme_err_t posix_close(struct gpunvme_store *store)
{
    struct posix *posix = store->priv;
    gpunvme_err_t err;

    crew_stop(posix->crew);
    posix_fill_destroy(&posix->fill);
    posix_ring_destroy(&posix->ring);
    err = posix_file_close(&posix->file);
    pthread_mutex_destroy(&posix->write_lock);
    free(posix);
    return err;
}

static gpunvme_err_t posix_open(struct gpunvme_store *store)
{
    struct posix *posix = calloc(1, sizeof(*posix));
    struct base_failure failure;
    gpunvme_err_t err;

    if (!posix)
        return base_fail(GPUNVME_ERR_NOMEM, "a store");
    store->priv = posix;
    posix->store = store;
    pthread_mutex_init(&posix->write_lock, NULL);
    posix_ring_init(&posix->ring);
    err = posix_file_open(store, &posix->file);
    posix_fill_init(&posix->fill, posix->file.fd);
    if (!err)
        err = ask_for_uring(store, posix);
    if (!err)
        err = set_sizes(store, posix);
    if (!err)
        err = crew_start(store, &posix_crew_ops, posix->threads, &posix->crew);
    if (err) {
        base_keep(&failure, err);
        posix_close(store);
        return base_restore(&failure);
    }
    store->gpu_route = GPUNVME_ROUTE_BOUNCE;
    return GPUNVME_OK;
}

static gpunvme_err_t posix_size(struct gpunvme_store *store, uint64_t *nbytes)
{
    struct posix *posix = store->priv;

    return posix_file_size(&posix->file, nbytes);
}

static gpunvme_err_t posix_resize(struct gpunvme_store *store, uint64_t nbytes)
{
    struct posix *posix = store->priv;
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

/* Calls no CUDA: for transfers in streams it is CUDA that calls (stream.c). */
static void posix_submit(struct gpunvme_store *store, struct gpunvme_io *first, size_t n)
{
    const struct posix *posix = store->priv;

    crew_submit(posix->crew, first, n);
}

static gpunvme_err_t posix_prepare(struct gpunvme_store *store, unsigned gpu)
{
    struct posix *posix = store->priv;
    struct posix_ring *ring = &posix->ring;
    gpunvme_err_t err = GPUNVME_OK;

    if (gpu >= POSIX_MAX_GPUS || atomic_load(&posix->ready_gpus) >> gpu & 1)
        return GPUNVME_OK;
    for (unsigned i = 0; i < ring->nparts; i++)
        posix_ring_pin(ring, &ring->parts[i], gpu);
    for (size_t i = 0; i < (size_t)ring->nparts * ring->nslots && !err; i++)
        err = posix_slot_prepare(ring, &ring->slots[i], gpu);
    if (!err)
        atomic_fetch_or(&posix->ready_gpus, UINT64_C(1) << gpu);
    return err;
}

/* ---- What it says of itself --------------------------------------------------------------------
 */

/* Adds to a text of `room` bytes, as much as fits. */
static void say(char *text, size_t room, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void say(char *text, size_t room, const char *format, ...)
{
    size_t n = strlen(text);
    va_list args;

    va_start(args, format);
    vsnprintf(text + n, room - n, format, args);
    va_end(args);
}

static const char *direct_why_not(const struct posix_file *file)
{
    return atomic_load(&file->no_direct) ? "the kernel refused requests" : file->why_not;
}

static bool has_direct(const struct posix_file *file)
{
    return file->pays && !atomic_load(&file->no_direct);
}

/* The first thread's ring may be the last for which there was memory. */
static bool has_uring(const struct posix *posix)
{
    return posix->uring && atomic_load(&posix->nblind) < posix->threads;
}

static const char *name_of(const struct posix *posix)
{
    if (posix->file.in_memory)
        return "copies of a file in memory";
    return has_uring(posix) ? "io_uring" : "pread and pwrite";
}

static void say_how(const struct posix *posix, char *how, size_t room)
{
    const struct posix_file *file = &posix->file;

    say(how, room, "%s%s", name_of(posix), has_direct(file) ? ", O_DIRECT" : "");
    if (!file->in_memory)
        say(how, room, ", copies of what is cached");
    say(how, room, "; %u threads, pieces of %u KiB, %u a thread", posix->threads,
        posix->chunk >> 10, posix->depth);
    if (posix->uring && atomic_load(&posix->nblind))
        say(how, room, "; io_uring was refused to %u of them", atomic_load(&posix->nblind));
    if (atomic_load(&posix->ring.npinned))
        say(how, room, "; %zu MiB %s",
            atomic_load(&posix->ring.npinned) * posix->ring.part_nbytes >> 20,
            gpunvme_mem_gpu_is_host() ? "in place of what is pinned for a GPU"
                                      : "pinned for the GPU");
}

static void say_why_not(const struct posix *posix, char *text, size_t room)
{
    const struct posix_file *file = &posix->file;

    say(text, room, "p2p: a file's bytes go through the kernel's memory");
    if (!has_direct(file))
        say(text, room, "; O_DIRECT: %s", direct_why_not(file));
    if (!posix->uring)
        say(text, room, "; io_uring: %s",
            posix->uring_errno ? strerror(posix->uring_errno) : "uring=off");
    if (atomic_load(&posix->ring.nrefused))
        say(text, room, "; pinned memory: %s", posix->ring.why_not);
}

static void posix_describe(struct gpunvme_store *store, struct gpunvme_path *path)
{
    const struct posix *posix = store->priv;

    path->how[0] = path->why_not[0] = 0;
    say_how(posix, path->how, sizeof(path->how));
    say_why_not(posix, path->why_not, sizeof(path->why_not));
}

static void posix_about(struct gpunvme_backend_info *info)
{
    info->works = true;
    snprintf(info->why, sizeof(info->why), "files and block devices of the kernel");
}

const struct store_backend store_posix = {
    .name = "posix",
    .option_bit = STORE_POSIX,
    .open = posix_open,
    .close = posix_close,
    .size = posix_size,
    .resize = posix_resize,
    .submit = posix_submit,
    .direct = posix_direct,
    .prepare = posix_prepare,
    .describe = posix_describe,
    .about = posix_about,
};
