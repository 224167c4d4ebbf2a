/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Windows of a file that are pinned for the GPU's copy engine; posix.h says why that is safe.
 *
 * Who makes a window: with map=on any worker that needs one, or the next ones while another makes
 * it. With map=auto one worker at a time, and only what the copying workers will not have been
 * through before it is done: a part of a long read a few windows ahead of them, where that was
 * found to pay (posix_tune.c), or one that has been read before, for an eighth of the time at most.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/cond.h"
#include "base/fail.h"
#include "gpunvme/memory.h"
#include "memory/cuda.h"
#include "storage/futex.h"
#include "storage/posix.h"

#define WINDOW      ((size_t)1 << POSIX_WINDOW_SHIFT)
#define MAX_WINDOWS ((size_t)1 << 20)
#define HUGE_PAGE   (2 << 20)    /* files of larger ones can't be mapped in windows */
#define MAPPINGS    2u           /* of a window; the process has a limit, and other uses for them */
#define AHEAD       3u           /* windows, which the others copy while one is made */
#define LOOK_AHEAD  32u          /* windows that are made early with map=on */
#define HEAT        (2 * WINDOW) /* bytes read, before a window of which nobody knew is made */
#define MAX_DROPPED 64u
#define MAX_FAILED  4u
#define MAX_BAD     4u          /* windows dropped, where none was ever good */
#define WAIT_NS     1000000000u /* for a window, where there is another way */
#define REST        7u          /* times as long nothing is pinned: it stops the copies of others */

#define PRESENT     ((uint64_t)1 << 63) /* proc(5), pagemap: in memory … */
#define OF_THE_FILE ((uint64_t)1 << 61) /* … and the file's own page, not a copy of it */

enum state { NEW, MAKING, READY, FAILED, DROPPED };

struct posix_window {
    enum state state;
    uint8_t *cpu;     /* what is pinned */
    uint8_t *witness; /* the same pages, that nothing ever touches */
    size_t nbytes;    /* whole pages, up to the end of the file as it was */
    struct gpunvme_buf buf;
    unsigned users;
    uint64_t heat;  /* bytes that were read in it */
    uint64_t since; /* when its making began */
    size_t number;
    struct posix_window *next; /* of those that are kept, or dropped */
};

static _Atomic uint64_t mapped_by_all; /* bytes, of all stores */

static void count(struct posix_map *map, int64_t nbytes)
{
    map->mapped += (uint64_t)nbytes;
    atomic_fetch_add(&mapped_by_all, (uint64_t)nbytes);
}

static _Atomic(struct posix_window *) kept; /* for as long as the process lives */

static void keep_for_ever(struct posix_window *window)
{
    window->next = atomic_load(&kept);
    while (!atomic_compare_exchange_weak(&kept, &window->next, window))
        ;
}

static bool open_pagemap(struct posix_map *map)
{
    map->pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    if (map->pagemap >= 0)
        return true;
    snprintf(map->why_not, sizeof(map->why_not), "/proc/self/pagemap: %s", strerror(errno));
    return false;
}

/* How long a window may take, before what lies in it goes another way or, with `require`, fails. */
static uint64_t patience(const struct store_options *o, bool required)
{
    if (required)
        return o->timeout_ns < INT64_MAX ? o->timeout_ns / 2 : INT64_MAX / 2;
    return o->timeout_ns / 4 < WAIT_NS ? o->timeout_ns / 4 : WAIT_NS;
}

void posix_map_init(struct gpunvme_store *store, struct posix_map *map, struct posix_file *file)
{
    const struct store_options *o = &store->uri.options;
    bool required = o->require_set && o->require == GPUNVME_ROUTE_MAPPED;
    enum store_switch wanted = o->map;
    struct statfs fs;
    uint64_t most;

    pthread_mutex_init(&map->lock, NULL);
    base_cond_init(&map->made);
    map->store = store;
    map->file = file;
    map->fd = file->fd;
    map->pagemap = -1;
    map->emulated = gpunvme_mem_gpu_is_host();
    map->eager = wanted == STORE_ON || required;
    map->patience_ns = patience(o, required);
    map->budget = posix_memory_nbytes() / 4 * (map->eager ? 3 : 1);
    most = posix_max_mappings() / 4 / MAPPINGS;
    if (map->budget / WINDOW > most)
        map->budget = most * WINDOW;
    if (wanted == STORE_OFF)
        snprintf(map->why_not, sizeof(map->why_not), "map=off");
    else if (wanted == STORE_AUTO && map->emulated)
        snprintf(map->why_not, sizeof(map->why_not), "GPU memory is host memory");
    else if (file->block_device)
        snprintf(map->why_not, sizeof(map->why_not), "a block device has no pages of a file");
    else if (!fstatfs(file->fd, &fs) && fs.f_type == HUGETLBFS_MAGIC && fs.f_bsize > HUGE_PAGE)
        snprintf(map->why_not, sizeof(map->why_not), "the file's pages are of %ld MiB",
                 (long)fs.f_bsize >> 20);
    else
        map->on = open_pagemap(map);
}

static void unmap(struct posix_window *window)
{
    if (window->cpu)
        munmap(window->cpu, window->nbytes);
    if (window->witness)
        munmap(window->witness, window->nbytes);
    window->cpu = window->witness = NULL;
}

static void unmake(struct posix_window *window)
{
    gpunvme_mem_unregister(&window->buf);
    unmap(window);
}

/* Takes away the pins of windows that were dropped. */
static void unmake_dropped(struct posix_window *window)
{
    while (window) {
        struct posix_window *next = window->next;

        unmake(window);
        free(window);
        window = next;
    }
}

void posix_map_destroy(struct posix_map *map)
{
    unmake_dropped(map->dropped);
    for (size_t i = 0; i < map->nwindows; i++) {
        if (map->windows[i] && map->windows[i]->users) { /* posix_map_keep() */
            keep_for_ever(map->windows[i]);
            continue;
        }
        if (map->windows[i])
            unmake(map->windows[i]);
        free(map->windows[i]);
    }
    free(map->windows);
    count(map, -(int64_t)map->mapped);
    if (map->pagemap >= 0)
        close(map->pagemap);
    pthread_cond_destroy(&map->made);
    pthread_mutex_destroy(&map->lock);
}

/* ---- Making windows ----------------------------------------------------------------------------
 */

static uint64_t file_size(const struct posix_map *map)
{
    struct stat st;

    return fstat(map->fd, &st) || st.st_size < 0 ? 0 : (uint64_t)st.st_size;
}

static gpunvme_err_t pin(struct posix_window *window, unsigned gpu)
{
    gpunvme_err_t err = mem_cuda_present() ? mem_cuda_enter(gpu) : GPUNVME_OK;

    if (err)
        return err;
    err = gpunvme_mem_register_readonly(window->cpu, window->nbytes, &window->buf);
    if (mem_cuda_present())
        mem_cuda_leave();
    return err;
}

/*
 * A second mapping, with the pages of now, for posix_map_check(). A page that is cut off leaves it
 * and can't come back: its protection forbids every touch (to mlockall(2), too), and a fault in
 * another mapping, for which Linux maps pages around, leaves it alone: one that may be read is
 * never taken for the same. It is there before the pages are pinned.
 */
static gpunvme_err_t call_witness(const struct posix_map *map, struct posix_window *window,
                                  uint64_t begin)
{
    size_t nbytes = window->nbytes;
    void *witness = mmap(NULL, nbytes, PROT_READ, MAP_SHARED | MAP_POPULATE, map->fd, (off_t)begin);

    if (witness == MAP_FAILED)
        return base_fail_errno(errno, "mapping %zu bytes of the file", nbytes);
    window->witness = witness;
    if (mprotect(witness, nbytes, PROT_NONE))
        return base_fail_errno(errno, "protecting %zu mapped bytes of the file", nbytes);
    return GPUNVME_OK;
}

/* Shared: of a private mapping Linux since 6.2 pins copies of its pages, made for that. And may do
 * so for ever where the page cache has a folio of 2 MiB: taken apart to copy a page of it, it is
 * mapped whole again by the next fault. */
static gpunvme_err_t map_and_pin(const struct posix_map *map, struct posix_window *window,
                                 uint64_t begin, unsigned gpu)
{
    void *cpu = mmap(NULL, window->nbytes, PROT_READ, MAP_SHARED, map->fd, (off_t)begin);

    if (cpu == MAP_FAILED)
        return base_fail_errno(errno, "mapping %zu bytes of the file", window->nbytes);
    window->cpu = cpu;
    return pin(window, gpu);
}

/* Without the lock; the window is MAKING and nobody else touches it. */
static gpunvme_err_t make(const struct posix_map *map, struct posix_window *window, unsigned gpu)
{
    uint64_t begin = (uint64_t)window->number << POSIX_WINDOW_SHIFT, size = file_size(map);
    gpunvme_err_t err;

    if (size <= begin)
        return base_fail(GPUNVME_ERR_RANGE, "the file has become shorter");
    window->nbytes = size - begin < WINDOW ? (size_t)(size - begin) : WINDOW;
    window->nbytes = (window->nbytes + POSIX_PAGE - 1) & ~(size_t)(POSIX_PAGE - 1);
    err = call_witness(map, window, begin);
    if (!err)
        err = map_and_pin(map, window, begin, gpu);
    if (err)
        unmap(window);
    return err;
}

/*
 * A store is not closed before a window is made: a call of CUDA's that does not end is to be a
 * timeout of the closing, too. Who closes says so first, and counts then.
 */
static bool keep_open(struct gpunvme_store *store)
{
    atomic_fetch_add(&store->in_flight, 1);
    if (!atomic_load(&store->closing))
        return true;
    atomic_fetch_sub(&store->in_flight, 1);
    return false;
}

/* Under the lock, which is let go of meanwhile. */
static void make_unlocked(struct posix_map *map, struct posix_window *window, unsigned gpu,
                          bool in_between)
{
    gpunvme_err_t err;

    if (in_between) /* and once more at its end: it may take several epochs */
        atomic_store(&map->in_between, true);
    window->state = MAKING;
    window->since = futex_now();
    map->makers++;
    count(map, (int64_t)WINDOW);
    pthread_mutex_unlock(&map->lock);
    err = make(map, window, gpu);
    pthread_mutex_lock(&map->lock);
    map->makers--;
    map->stuck = false;
    if (in_between)
        atomic_store(&map->in_between, true);
    map->rest_until = futex_now() + REST * (futex_now() - window->since);
    window->state = err ? FAILED : READY;
    if (err) {
        count(map, -(int64_t)WINDOW);
        if (++map->nfailed >= MAX_FAILED)
            atomic_store(&map->on, false);
        snprintf(map->why_not, sizeof(map->why_not), "%s", gpunvme_err_detail());
    }
    pthread_cond_broadcast(&map->made);
}

/* Under the lock: the entry of a window, made if there is none. NULL: no memory. */
static struct posix_window *window_at(struct posix_map *map, size_t number)
{
    if (number >= MAX_WINDOWS)
        return NULL;
    if (number >= map->nwindows) {
        size_t n = map->nwindows ? 2 * map->nwindows : 64;
        struct posix_window **list;

        while (n <= number)
            n *= 2;
        list = realloc(map->windows, n * sizeof(struct posix_window *));
        if (!list)
            return NULL;
        memset(list + map->nwindows, 0, (n - map->nwindows) * sizeof(struct posix_window *));
        map->windows = list;
        map->nwindows = n;
    }
    if (!map->windows[number]) {
        map->windows[number] = calloc(1, sizeof(struct posix_window));
        if (map->windows[number])
            map->windows[number]->number = number;
    }
    return map->windows[number];
}

/* One worker at least pins nothing: it brings what it has another way if the others never end. */
static bool may_more_pin(const struct posix_map *map)
{
    return !map->stuck && (map->store->threads < 2 || map->makers + 1 < map->store->threads);
}

static bool is_over_budget(const struct posix_map *map)
{
    return atomic_load(&mapped_by_all) + WINDOW > map->budget;
}

/*
 * Under the lock, which is let go of meanwhile: makes the window, if that may be now. `in_between`:
 * beside the copies of all, who did not ask for it.
 */
static bool try_to_make(struct posix_map *map, struct posix_window *window, unsigned gpu,
                        bool in_between)
{
    if (!window || window->state != NEW || !atomic_load(&map->on) || !may_more_pin(map))
        return false;
    if (file_size(map) <= (uint64_t)window->number << POSIX_WINDOW_SHIFT)
        return false; /* no failure of the pinning's */
    if (is_over_budget(map)) {
        map->over_budget = true;
        return false;
    }
    if (!keep_open(map->store))
        return false;
    if (store_alone_enter(map->store)) {
        make_unlocked(map, window, gpu, in_between);
        store_alone_leave(map->store);
    } else {
        map->held_back = true;
    }
    atomic_fetch_sub(&map->store->in_flight, 1);
    return window->state != NEW;
}

/* Under the lock: another window, that will be needed soon. False: there is none. */
static bool make_a_later_one(struct posix_map *map, size_t number, uint64_t end, unsigned gpu)
{
    for (size_t i = number + 1; i <= number + LOOK_AHEAD; i++) {
        struct posix_window *window;

        if ((uint64_t)i << POSIX_WINDOW_SHIFT >= end)
            return false;
        window = window_at(map, i);
        if (try_to_make(map, window, gpu, false))
            return true;
    }
    return false;
}

/* It is being made, or will be when another one has been. */
static bool is_awaited(const struct posix_map *map, const struct posix_window *window)
{
    return window->state == MAKING ||
           (window->state == NEW && !map->stuck && !may_more_pin(map) && atomic_load(&map->on));
}

/* Under the lock, map=on: until the window is READY, will never be, or has taken too long. */
static void make_eagerly(struct posix_map *map, struct posix_window *window, uint64_t end,
                         unsigned gpu)
{
    uint64_t begin = futex_now();

    for (;;) {
        uint64_t deadline;

        try_to_make(map, window, gpu, false);
        if (!is_awaited(map, window))
            return;
        deadline = (window->state == MAKING ? window->since : begin) + map->patience_ns;
        if (futex_now() >= deadline)
            break;
        if (!make_a_later_one(map, window->number, end, gpu) && is_awaited(map, window))
            base_cond_wait(&map->made, &map->lock, deadline);
    }
    map->stuck = map->impatient = true;
}

void posix_map_ahead(struct posix_map *map, uint64_t front, uint64_t end, unsigned gpu)
{
    size_t first = (size_t)(front >> POSIX_WINDOW_SHIFT) + AHEAD;

    pthread_mutex_lock(&map->lock);
    if (!map->makers && atomic_load(&map->on))
        make_a_later_one(map, first - 1, end, gpu);
    pthread_mutex_unlock(&map->lock);
}

/* ---- Using them --------------------------------------------------------------------------------
 */

static bool covers(const struct posix_map *map, const struct posix_window *window, uint64_t offset,
                   size_t nbytes)
{
    uint64_t at = offset - ((uint64_t)window->number << POSIX_WINDOW_SHIFT);

    return window->state == READY && at + nbytes <= window->nbytes &&
           offset + nbytes <= file_size(map);
}

size_t posix_map_clip(const struct posix_map *map, uint64_t offset, size_t nbytes)
{
    uint64_t size = file_size(map);

    if (offset >= size)
        return 0;
    return nbytes < size - offset ? nbytes : (size_t)(size - offset);
}

/* Those that were dropped while that could not be done go with this one. */
void posix_map_release(struct posix_map *map, struct posix_window *window)
{
    struct posix_window *dropped = NULL;

    pthread_mutex_lock(&map->lock);
    if (!--window->users && window->state == DROPPED) {
        window->next = map->dropped;
        map->dropped = window;
        if (store_alone_enter(map->store)) {
            dropped = map->dropped;
            map->dropped = NULL;
        }
    }
    pthread_mutex_unlock(&map->lock);
    if (!dropped)
        return;
    unmake_dropped(dropped);
    store_alone_leave(map->store);
}

/* Under the lock, map=auto: it has been read before, and is in the page cache. */
static bool is_due(const struct posix_map *map, const struct posix_window *window, uint64_t offset)
{
    return window->heat > HEAT && window->state == NEW && !map->makers && !is_over_budget(map) &&
           futex_now() >= map->rest_until && posix_file_is_warm(map->file, offset);
}

const void *posix_map_hold(struct posix_map *map, uint64_t offset, size_t nbytes, uint64_t end,
                           unsigned gpu, struct posix_window **out)
{
    size_t number = (size_t)(offset >> POSIX_WINDOW_SHIFT);
    struct posix_window *window;
    const uint8_t *cpu = NULL;

    if ((offset + nbytes - 1) >> POSIX_WINDOW_SHIFT != number)
        return NULL;
    pthread_mutex_lock(&map->lock);
    window = window_at(map, number);
    if (window) {
        window->users++; /* lest it be dropped and freed while it is waited for */
        window->heat += nbytes;
        if (map->eager)
            make_eagerly(map, window, end, gpu);
        else if (is_due(map, window, offset))
            try_to_make(map, window, gpu, true);
        if (covers(map, window, offset, nbytes)) {
            *out = window;
            cpu = window->cpu + (offset & (WINDOW - 1));
        }
    }
    pthread_mutex_unlock(&map->lock);
    if (window && !cpu)
        posix_map_release(map, window);
    return cpu;
}

void *posix_window_gpu(const struct posix_window *window, const void *cpu)
{
    return (uint8_t *)window->buf.gpu + ((const uint8_t *)cpu - window->cpu);
}

/* The kernel's own copy, which stops at what is not there instead of ending the process. */
gpunvme_err_t posix_map_copy_emulated(void *dst, const void *src, size_t nbytes)
{
    const struct iovec to = {.iov_base = dst, .iov_len = nbytes};
    const struct iovec from = {.iov_base = (void *)(uintptr_t)src, .iov_len = nbytes};
    ssize_t n = process_vm_readv(getpid(), &to, 1, &from, 1, 0);

    if (n == (ssize_t)nbytes)
        return GPUNVME_OK;
    return base_fail(GPUNVME_ERR_IO, "%zu bytes of a mapped file: %s", nbytes,
                     n < 0 ? strerror(errno) : "not all are there");
}

/* All pages are in the page table, and the file's. */
static bool are_there(const struct posix_map *map, const uint8_t *cpu, size_t nbytes)
{
    uintptr_t first = (uintptr_t)cpu / POSIX_PAGE;
    size_t n = ((uintptr_t)cpu + nbytes - 1) / POSIX_PAGE - first + 1;
    uint64_t entries[256];

    while (n) {
        size_t some = n < 256 ? n : 256;
        ssize_t got = pread(map->pagemap, entries, some * 8, (off_t)(first * 8));

        if (got != (ssize_t)(some * 8))
            return false;
        for (size_t i = 0; i < some; i++)
            if ((entries[i] & (PRESENT | OF_THE_FILE)) != (PRESENT | OF_THE_FILE))
                return false;
        first += some;
        n -= some;
    }
    return true;
}

/* What is pinned are the file's pages, no copies, and they have not left it. */
static bool are_the_files(const struct posix_map *map, const struct posix_window *window,
                          uint64_t offset, size_t nbytes)
{
    size_t at = (size_t)(offset & (WINDOW - 1));

    return are_there(map, window->witness + at, nbytes) &&
           are_there(map, window->cpu + at, nbytes) && offset + nbytes <= file_size(map);
}

bool posix_map_check(struct posix_map *map, struct posix_window *window, uint64_t offset,
                     size_t nbytes)
{
    if (are_the_files(map, window, offset, nbytes)) {
        if (!atomic_load_explicit(&map->works, memory_order_relaxed))
            atomic_store(&map->works, true);
        return true;
    }
    pthread_mutex_lock(&map->lock);
    if (window->state == READY) {
        window->state = DROPPED;
        map->windows[window->number] = NULL; /* its users have it alone */
        count(map, -(int64_t)WINDOW);
        if (++map->ndropped >= (atomic_load(&map->works) ? MAX_DROPPED : MAX_BAD)) {
            atomic_store(&map->on, false);
            snprintf(map->why_not, sizeof(map->why_not),
                     atomic_load(&map->works) ? "pages of the file were replaced %u times"
                                              : "what was pinned were no pages of the file, or "
                                                "replaced meanwhile, each of %u times",
                     map->ndropped);
        }
    }
    pthread_mutex_unlock(&map->lock);
    return false;
}

void posix_map_keep(struct posix_map *map, struct posix_window *window)
{
    pthread_mutex_lock(&map->lock);
    window->users++;
    pthread_mutex_unlock(&map->lock);
}

/* Under the lock. */
static const char *last_reason(const struct posix_map *map)
{
    if (!atomic_load(&map->on) || map->nfailed)
        return map->why_not;
    if (map->ndropped)
        return "what was pinned were no pages of the file, or replaced meanwhile";
    if (map->impatient)
        return "a part of the file takes too long to be pinned";
    if (map->held_back)
        return "nothing is pinned while transfers are in streams";
    if (map->over_budget)
        return "no more memory may be pinned, by all stores together";
    return "the file was changed meanwhile";
}

void posix_map_why_not(struct posix_map *map, char *text, size_t room)
{
    pthread_mutex_lock(&map->lock);
    snprintf(text, room, "%s", last_reason(map));
    pthread_mutex_unlock(&map->lock);
}
