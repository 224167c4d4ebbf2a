/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Writes into files in memory by several threads at once. pwrite(2) holds the inode's lock while it
 * copies, so that all threads together write no faster than one. A mapping has no such lock, but
 * the CPU's stores into it are fatal where the file has been cut (SIGBUS). So the kernel stores for
 * us: the slots are a file in memory too, and a read(2) of that file, with its destination in the
 * mapping, ends early instead of ending the process. What it could not do is left to pwrite(2),
 * which knows the reason.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "storage/posix/posix.h"

#define WINDOW_SHIFT  26 /* 64 MiB */
#define WINDOW        ((size_t)1 << WINDOW_SHIFT)
#define GRANULE_SHIFT 18 /* pages are asked for in so many bytes at once */
#define NGRANULES     (WINDOW >> GRANULE_SHIFT)
#define MAX_WINDOWS   ((size_t)1 << 16)

struct posix_fill_window {
    uint8_t *cpu;
    _Atomic bool there[NGRANULES]; /* pages are mapped, or were */
};

void posix_fill_init(struct posix_fill *fill, int fd)
{
    fill->fd = fd;
    pthread_mutex_init(&fill->lock, NULL);
}

void posix_fill_destroy(struct posix_fill *fill)
{
    for (size_t i = 0; i < fill->nwindows; i++) {
        if (fill->windows[i])
            munmap(fill->windows[i]->cpu, WINDOW);
        free(fill->windows[i]);
    }
    free(fill->windows);
    pthread_mutex_destroy(&fill->lock);
}

static struct posix_fill_window *new_window(int fd, size_t number)
{
    struct posix_fill_window *window = calloc(1, sizeof(*window));
    void *cpu;

    if (!window)
        return NULL;
    cpu = mmap(NULL, WINDOW, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
               (off_t)((uint64_t)number << WINDOW_SHIFT));
    if (cpu == MAP_FAILED) {
        free(window);
        return NULL;
    }
    window->cpu = cpu;
    return window;
}

/* Under the lock. NULL: there is none. */
static struct posix_fill_window *window_at(struct posix_fill *fill, size_t number)
{
    if (number >= MAX_WINDOWS)
        return NULL;
    if (number >= fill->nwindows) {
        size_t n = fill->nwindows ? 2 * fill->nwindows : 64;
        struct posix_fill_window **list;

        while (n <= number)
            n *= 2;
        list = realloc(fill->windows, n * sizeof(struct posix_fill_window *));
        if (!list)
            return NULL;
        memset(list + fill->nwindows, 0, (n - fill->nwindows) * sizeof(struct posix_fill_window *));
        fill->windows = list;
        fill->nwindows = n;
    }
    if (!fill->windows[number])
        fill->windows[number] = new_window(fill->fd, number);
    return fill->windows[number];
}

/* Many pages at once cost less than a fault for each. That it fails is found out again. */
static void have_pages(struct posix_fill_window *window, size_t at, size_t nbytes)
{
    size_t first = at >> GRANULE_SHIFT, last = (at + nbytes - 1) >> GRANULE_SHIFT;

    for (size_t i = first; i <= last; i++) {
        size_t begin = i << GRANULE_SHIFT, end = begin + ((size_t)1 << GRANULE_SHIFT);

        if (atomic_load_explicit(&window->there[i], memory_order_relaxed))
            continue;
        begin = begin > at ? begin : at & ~(size_t)(POSIX_PAGE - 1);
        end = end < at + nbytes ? end : at + nbytes;
        if (!madvise(window->cpu + begin, end - begin, MADV_POPULATE_WRITE))
            atomic_store_explicit(&window->there[i], true, memory_order_relaxed);
    }
}

/*
 * Whether the file has the range, and had it before the first of these writes. New pages are left
 * to pwrite(2): to map them costs more than it saves, and where there is no room for all of them
 * the file would end with zeroes that nobody has written.
 */
static bool is_old(struct posix_fill *fill, uint64_t offset, size_t nbytes)
{
    struct stat st;

    if (fstat(fill->fd, &st))
        return false;
    pthread_mutex_lock(&fill->lock);
    if (!fill->has_nbytes)
        fill->nbytes = (uint64_t)st.st_size;
    fill->has_nbytes = true;
    pthread_mutex_unlock(&fill->lock);
    return offset + nbytes <= fill->nbytes && offset + nbytes <= (uint64_t)st.st_size;
}

size_t posix_fill_write(struct posix_fill *fill, int from, uint64_t from_offset,
                        const uint8_t *last, size_t nbytes, uint64_t offset)
{
    size_t at = (size_t)(offset & (WINDOW - 1)), done = 0;
    struct posix_fill_window *window;

    if (at + nbytes > WINDOW || !is_old(fill, offset, nbytes))
        return 0;
    pthread_mutex_lock(&fill->lock);
    window = window_at(fill, (size_t)(offset >> WINDOW_SHIFT));
    pthread_mutex_unlock(&fill->lock);
    /* The last byte makes the file's times right. */
    if (!window || pwrite(fill->fd, last, 1, (off_t)(offset + nbytes - 1)) != 1)
        return 0;
    have_pages(window, at, nbytes);
    while (done < nbytes) {
        ssize_t n =
            pread(from, window->cpu + at + done, nbytes - done, (off_t)(from_offset + done));

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        done += (size_t)n;
    }
    return done;
}
