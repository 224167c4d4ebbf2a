/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Descriptors that a peer has sent: what they are, and how they are closed.
 */
#include "vfio_user/descriptor.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "gpunvme/atomics.h"

#define CLOSING_MAX 32u
#define STUCK_NS    UINT64_C(1000000000)

static atomic_uint nclosing;
static atomic_uint_least64_t full_since_ns; /* when the last of CLOSING_MAX threads began */

bool vfio_user_is_eventfd(int fd)
{
    char path[32], target[32];
    ssize_t n;

    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    n = readlink(path, target, sizeof(target) - 1);
    if (n < 0)
        return false;
    target[n] = '\0';
    return !strcmp(target, "anon_inode:[eventfd]");
}

bool vfio_user_discards_are_stuck(void)
{
    const struct timespec nap = {.tv_nsec = 1000000};

    while (atomic_load(&nclosing) >= CLOSING_MAX) {
        if (gpunvme_clock_ns() - atomic_load(&full_since_ns) > STUCK_NS)
            return true;
        nanosleep(&nap, NULL);
    }
    return false;
}

static void *close_main(void *fd)
{
    close((int)(intptr_t)fd);
    atomic_fetch_sub(&nclosing, 1);
    return NULL;
}

/* In a thread that nobody waits for; false: there is none. */
static bool close_aside(int fd)
{
    sigset_t all, old;
    pthread_attr_t attr;
    pthread_t thread;
    int error;

    if (atomic_fetch_add(&nclosing, 1) + 1 == CLOSING_MAX)
        atomic_store(&full_since_ns, gpunvme_clock_ns());
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    sigfillset(&all); /* signals are for the program's own threads */
    pthread_sigmask(SIG_SETMASK, &all, &old);
    error = pthread_create(&thread, &attr, close_main, (void *)(intptr_t)fd);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attr);
    if (error)
        atomic_fetch_sub(&nclosing, 1);
    return !error;
}

void vfio_user_discard(int fd)
{
    /* Files in memory have seals, and they and eventfds have nobody who is asked. */
    if (fcntl(fd, F_GET_SEALS) >= 0 || vfio_user_is_eventfd(fd) || !close_aside(fd))
        close(fd);
}
