/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A deadline for what SPDK does over a vfio-user socket: it waits for each answer without one. When
 * the time is up, a thread of this file's shuts this process's end of the socket down, which ends
 * all waits.
 */
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "storage/spdk/spdk.h"

struct gspdk_guard {
    const struct gspdk_address *address;
    uint64_t deadline_ns;
    uint32_t over; /* futex word */
    pthread_t thread;
};

/* Is this descriptor a socket whose other end is bound to `path`? */
static bool leads_to(int fd, const char *path)
{
    struct sockaddr_un peer;
    socklen_t length = sizeof(peer);

    memset(&peer, 0, sizeof(peer));
    return !getpeername(fd, (struct sockaddr *)&peer, &length) && peer.sun_family == AF_UNIX &&
           !strncmp(peer.sun_path, path, sizeof(peer.sun_path));
}

static void shut_down(const struct gspdk_address *address)
{
    DIR *dir = opendir("/proc/self/fd");
    char path[sizeof(address->where) + 8];
    struct dirent *entry;

    snprintf(path, sizeof(path), "%s/cntrl", address->where);
    while (dir && (entry = readdir(dir))) {
        int fd = atoi(entry->d_name); /* "." and "..": 0, which is compared like all */

        if (leads_to(fd, path))
            shutdown(fd, SHUT_RDWR);
    }
    if (dir)
        closedir(dir);
}

static void *watch(void *guard_)
{
    struct gspdk_guard *guard = guard_;

    while (!__atomic_load_n(&guard->over, __ATOMIC_ACQUIRE)) {
        if (!futex_wait(&guard->over, 0, guard->deadline_ns)) {
            shut_down(guard->address);
            break;
        }
    }
    return NULL;
}

struct gspdk_guard *gspdk_guard(const struct gspdk_ctrlr *ctrlr)
{
    struct gspdk_guard *guard = ctrlr->address.vfio_user ? calloc(1, sizeof(*guard)) : NULL;

    if (!guard)
        return NULL;
    guard->address = &ctrlr->address;
    guard->deadline_ns = futex_deadline(ctrlr->timeout_ns);
    if (store_start_thread(&guard->thread, watch, guard)) {
        free(guard);
        return NULL;
    }
    return guard;
}

void gspdk_guard_end(struct gspdk_guard *guard)
{
    if (!guard)
        return;
    __atomic_store_n(&guard->over, 1, __ATOMIC_RELEASE);
    futex_wake(&guard->over, 1);
    pthread_join(guard->thread, NULL);
    free(guard);
}
