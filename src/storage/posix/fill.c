/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Writes into files in memory by several threads at once. pwrite(2) holds the inode's lock while it
 * copies, so that all threads together write no faster than one. A mapping has no such lock, but
 * the CPU's stores into it are fatal where the file has been cut (SIGBUS). So the kernel stores for
 * us: process_vm_readv(2) of our own memory ends early instead of ending the process. What it could
 * not do is left to pwrite(2), which knows the reason.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "storage/posix/posix.h"

#define GRANULE_SHIFT 18 /* pages are asked for in so many bytes at once */

void posix_fill_init(struct posix_fill *fill, int fd)
{
    fill->fd = fd;
    pthread_mutex_init(&fill->lock, NULL);
}

void posix_fill_destroy(struct posix_fill *fill)
{
    if (fill->cpu)
        munmap(fill->cpu, (size_t)fill->nbytes);
    free(fill->there);
    pthread_mutex_destroy(&fill->lock);
}

/* Under the lock: maps all that the file has now. Where that fails, all is left to pwrite(2). */
static void map(struct posix_fill *fill, uint64_t nbytes)
{
    void *cpu = mmap(NULL, (size_t)nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fill->fd, 0);

    fill->is_tried = true;
    if (cpu == MAP_FAILED)
        return;
    fill->there = calloc((size_t)(nbytes >> GRANULE_SHIFT) + 1, sizeof(fill->there[0]));
    if (!fill->there) {
        munmap(cpu, (size_t)nbytes);
        return;
    }
    fill->cpu = cpu;
    fill->nbytes = nbytes;
}

/* Whether the first page of each granule is in the file, which may have holes. */
static bool has_pages(const struct posix_fill *fill, size_t at, size_t nbytes)
{
    size_t first = at >> GRANULE_SHIFT, last = (at + nbytes - 1) >> GRANULE_SHIFT;

    for (size_t i = first; i <= last; i++) {
        size_t begin = i << GRANULE_SHIFT;
        unsigned char in = 0;

        begin = begin > at ? begin : at & ~(size_t)(POSIX_PAGE - 1);
        if (!atomic_load_explicit(&fill->there[i], memory_order_relaxed) &&
            (mincore(fill->cpu + begin, POSIX_PAGE, &in) || !(in & 1)))
            return false;
    }
    return true;
}

/*
 * Whether the file has the range, and had it before the first of these writes. New pages are left
 * to pwrite(2): to map them costs more than it saves, and where there is no room for all of them
 * the file would end with zeroes that nobody has written.
 */
static bool is_old(struct posix_fill *fill, size_t at, size_t nbytes)
{
    uint64_t end = (uint64_t)at + nbytes;
    struct stat st;

    if (fstat(fill->fd, &st))
        return false;
    pthread_mutex_lock(&fill->lock);
    if (!fill->is_tried)
        map(fill, (uint64_t)st.st_size);
    pthread_mutex_unlock(&fill->lock);
    return end <= fill->nbytes && end <= (uint64_t)st.st_size && has_pages(fill, at, nbytes);
}

/* Many pages at once cost less than a fault for each. That it fails is found out again. */
static void have_pages(struct posix_fill *fill, size_t at, size_t nbytes)
{
    size_t first = at >> GRANULE_SHIFT, last = (at + nbytes - 1) >> GRANULE_SHIFT;

    for (size_t i = first; i <= last; i++) {
        size_t begin = i << GRANULE_SHIFT, end = begin + ((size_t)1 << GRANULE_SHIFT);

        if (atomic_load_explicit(&fill->there[i], memory_order_relaxed))
            continue;
        begin = begin > at ? begin : at & ~(size_t)(POSIX_PAGE - 1);
        end = end < at + nbytes ? end : at + nbytes;
        if (!madvise(fill->cpu + begin, end - begin, MADV_POPULATE_WRITE))
            atomic_store_explicit(&fill->there[i], true, memory_order_relaxed);
    }
}

size_t posix_fill_write(struct posix_fill *fill, const uint8_t *cpu, size_t nbytes, uint64_t offset)
{
    size_t at = (size_t)offset, done = 0;

    /* The last byte makes the file's times right. */
    if (atomic_load(&fill->is_forbidden) || !is_old(fill, at, nbytes) ||
        pwrite(fill->fd, cpu + nbytes - 1, 1, (off_t)(offset + nbytes - 1)) != 1)
        return 0;
    have_pages(fill, at, nbytes);
    while (done < nbytes) {
        const struct iovec from = {(void *)(uintptr_t)(cpu + done), nbytes - done};
        const struct iovec to = {fill->cpu + at + done, nbytes - done};
        ssize_t n = process_vm_readv(getpid(), &to, 1, &from, 1, 0);

        if (n < 0 && (errno == ENOSYS || errno == EPERM))
            atomic_store(&fill->is_forbidden, true);
        if (n <= 0)
            break;
        done += (size_t)n;
    }
    return done;
}
