/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Lengthens the process's table of descriptors. See descriptors.h.
 */
#include "base/descriptors.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#define DESCRIPTORS 4096 /* 32 KiB of the kernel's */

void base_lengthen_descriptors(void)
{
    int fd = eventfd(0, EFD_CLOEXEC), far = -1;
    struct rlimit limit;

    if (fd >= 0 && !getrlimit(RLIMIT_NOFILE, &limit))
        far = fcntl(fd, F_DUPFD_CLOEXEC,
                    limit.rlim_cur < DESCRIPTORS ? (int)limit.rlim_cur - 1 : DESCRIPTORS - 1);
    if (far >= 0)
        close(far);
    if (fd >= 0)
        close(fd);
}

static void *lengthen(void *unused)
{
    base_lengthen_descriptors();
    return unused;
}

void base_lengthen_descriptors_meanwhile(void)
{
    sigset_t all, before;
    pthread_t thread;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    if (!pthread_create(&thread, NULL, lengthen, NULL))
        pthread_detach(thread);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}
