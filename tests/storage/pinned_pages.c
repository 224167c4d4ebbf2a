/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A copy engine without a GPU, for windows of files: it has the pages that were there when they
 * were pinned, whatever has become of the file since, as a GPU has them. (What otherwise stands in
 * for it, posix_map_copy_emulated(), goes by the page table, and never meets an old page.) Pages
 * are pinned by vmsplice(2) into pipes, 16 into each, and copied from there by tee(2) and read(2).
 * And one in four small copies is seen to go by the CPU, too, which nobody promises that a driver
 * does not do: that brings pages into the page table that are not the pinned ones.
 *
 * The linker puts this in place of three calls (--wrap). Where there is a GPU, that is used.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/fail.h"
#include "gpunvme/memory.h"
#include "storage/pinned_pages.h"
#include "storage/posix.h"

#define CHUNK ((size_t)16 * POSIX_PAGE) /* a pipe's room */

struct pinned {
    struct pinned *next;
    const uint8_t *cpu;
    size_t nbytes, npipes;
    int (*pipes)[2];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct pinned *all;

gpunvme_err_t __real_gpunvme_mem_register_readonly(const void *ptr, size_t nbytes,
                                                   struct gpunvme_buf *out);
gpunvme_err_t __wrap_gpunvme_mem_register_readonly(const void *ptr, size_t nbytes,
                                                   struct gpunvme_buf *out);
gpunvme_err_t __real_gpunvme_mem_unregister(struct gpunvme_buf *buf);
gpunvme_err_t __wrap_gpunvme_mem_unregister(struct gpunvme_buf *buf);
gpunvme_err_t __real_posix_map_copy_emulated(void *dst, const void *src, size_t nbytes);
gpunvme_err_t __wrap_posix_map_copy_emulated(void *dst, const void *src, size_t nbytes);

static void unpin(struct pinned *p)
{
    for (size_t i = 0; i < p->npipes; i++) {
        close(p->pipes[i][0]);
        close(p->pipes[i][1]);
    }
    free(p->pipes);
    free(p);
}

void (*_Atomic pinned_pages_meanwhile)(const void *cpu);

/* All pages of one pipe. */
static bool fill_pipe(const int *pipe, const uint8_t *cpu, size_t nbytes)
{
    for (size_t at = 0; at < nbytes; at += POSIX_PAGE) {
        struct iovec iov = {.iov_base = (void *)(uintptr_t)(cpu + at), .iov_len = POSIX_PAGE};
        void (*meanwhile)(const void *) = atomic_load(&pinned_pages_meanwhile);

        if (vmsplice(pipe[1], &iov, 1, SPLICE_F_NONBLOCK) != (ssize_t)POSIX_PAGE)
            return false;
        if (meanwhile)
            meanwhile(cpu + at);
    }
    return true;
}

static void allow_files(void)
{
    struct rlimit limit;

    if (!getrlimit(RLIMIT_NOFILE, &limit)) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

gpunvme_err_t __wrap_gpunvme_mem_register_readonly(const void *ptr, size_t nbytes,
                                                   struct gpunvme_buf *out)
{
    gpunvme_err_t err = __real_gpunvme_mem_register_readonly(ptr, nbytes, out);
    size_t npipes = (nbytes + CHUNK - 1) / CHUNK;
    struct pinned *p;
    int error;

    if (err || !gpunvme_mem_gpu_is_host())
        return err;
    allow_files();
    p = calloc(1, sizeof(*p));
    if (p)
        *p =
            (struct pinned){.cpu = ptr, .nbytes = nbytes, .pipes = calloc(npipes, 2 * sizeof(int))};
    for (size_t i = 0; p && p->pipes && i < npipes; i++) {
        size_t left = nbytes - i * CHUNK;

        if (pipe2(p->pipes[i], O_CLOEXEC))
            break;
        p->npipes++;
        if (!fill_pipe(p->pipes[i], (const uint8_t *)ptr + i * CHUNK, left < CHUNK ? left : CHUNK))
            break;
        if (i + 1 == npipes) {
            pthread_mutex_lock(&lock);
            p->next = all;
            all = p;
            pthread_mutex_unlock(&lock);
            return GPUNVME_OK;
        }
    }
    error = errno;
    if (p)
        unpin(p);
    __real_gpunvme_mem_unregister(out);
    if (error == EAGAIN || error == EMFILE || error == ENFILE) {
        /* What a user may have of pipes and their pages: a limit of this machine, no failure. */
        printf("SKIP: no pipes for the test's own pinned pages: %s\n", strerror(error));
        fflush(stdout);
        _exit(77);
    }
    return base_fail_errno(error, "the test's own pinned pages");
}

gpunvme_err_t __wrap_gpunvme_mem_unregister(struct gpunvme_buf *buf)
{
    struct pinned **at, *found = NULL;

    pthread_mutex_lock(&lock);
    for (at = &all; buf && buf->cpu && *at && (*at)->cpu != buf->cpu; at = &(*at)->next)
        ;
    if (buf && buf->cpu && *at) {
        found = *at;
        *at = found->next;
    }
    pthread_mutex_unlock(&lock);
    if (found)
        unpin(found);
    return __real_gpunvme_mem_unregister(buf);
}

/* The kernel reads for us, lest a file that was cut end the test. */
static void touch(const void *cpu)
{
    uint8_t byte;
    const struct iovec to = {.iov_base = &byte, .iov_len = 1};
    const struct iovec from = {.iov_base = (void *)(uintptr_t)cpu, .iov_len = 1};

    process_vm_readv(getpid(), &to, 1, &from, 1, 0);
}

/* A part of a pipe's pages, which stay in it. */
static bool copy_some(const int *from, uint8_t *dst, size_t skip, size_t nbytes)
{
    static __thread uint8_t bytes[CHUNK];
    size_t have = 0;
    int scratch[2];
    ssize_t n;

    if (pipe2(scratch, O_CLOEXEC))
        return false;
    n = tee(from[0], scratch[1], CHUNK, SPLICE_F_NONBLOCK);
    while (n > 0 && have < (size_t)n) {
        ssize_t got = read(scratch[0], bytes + have, (size_t)n - have);

        if (got <= 0)
            break;
        have += (size_t)got;
    }
    close(scratch[0]);
    close(scratch[1]);
    if (have < skip + nbytes)
        return false;
    memcpy(dst, bytes + skip, nbytes);
    return true;
}

gpunvme_err_t __wrap_posix_map_copy_emulated(void *dst, const void *src, size_t nbytes)
{
    static _Atomic unsigned ncopies;
    const uint8_t *from = src;
    uint8_t *to = dst;
    struct pinned *p;

    pthread_mutex_lock(&lock);
    for (p = all; p && (from < p->cpu || from + nbytes > p->cpu + p->nbytes); p = p->next)
        ;
    pthread_mutex_unlock(&lock);
    if (!p)
        return base_fail(GPUNVME_ERR_GPU, "%zu bytes at %p are not pinned", nbytes, src);
    if (nbytes < CHUNK && ++ncopies % 4 == 0)
        touch(src);
    while (nbytes) {
        size_t at = (size_t)(from - p->cpu), skip = at % CHUNK;
        size_t n = CHUNK - skip < nbytes ? CHUNK - skip : nbytes;

        if (!copy_some(p->pipes[at / CHUNK], to, skip, n))
            return base_fail(GPUNVME_ERR_GPU, "the test's own pinned pages can't be copied");
        from += n;
        to += n;
        nbytes -= n;
    }
    return GPUNVME_OK;
}
