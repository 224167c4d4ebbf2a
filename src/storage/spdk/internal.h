/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What env.c, guard.c, memory.c and queue.c share.
 */
#ifndef STORAGE_SPDK_INTERNAL_H
#define STORAGE_SPDK_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include <spdk/env.h>
#include <spdk/nvme.h>

#include "storage/spdk/env.h"

struct gspdk_ctrlr {
    struct gspdk_address address;
    uint64_t timeout_ns; /* of attach, detach and reset over a socket */
    struct spdk_nvme_ctrlr *handle;
    unsigned nusers;          /* under the environment's lock */
    struct gspdk_ctrlr *next; /* likewise */

    /*
     * Who resets the controller holds `lock` and the lock of each queue: SPDK wants nobody else
     * near a controller then. In this order: lock, the queues as listed. A thread that holds the
     * lock of its queue takes none of the others.
     */
    pthread_mutex_t lock;
    struct gspdk_queue *queues; /* under `lock` */
    _Atomic unsigned nresets;   /* counts up with each reset */
    _Atomic bool gone;          /* a reset failed: no command reaches it any more */
    _Atomic uint64_t admin_ns;  /* when the admin queue was looked at last */
};

/*
 * From gspdk_guard() to gspdk_guard_end(): when it takes longer than that, the socket is shut down.
 * Nothing on the PCI bus, where SPDK's own deadlines hold. NULL is fine.
 */
struct gspdk_guard;
struct gspdk_guard *gspdk_guard(const struct gspdk_address *address, uint64_t timeout_ns);
void gspdk_guard_end(struct gspdk_guard *guard);

/* Resets the controller unless it was reset since `seen`. No lock may be held. */
void gspdk_reset(struct gspdk_ctrlr *ctrlr, unsigned seen);

/* What SPDK logged last in this thread; "" if nothing since gspdk_hush(). */
const char *gspdk_said(void);
void gspdk_hush(void);

#endif
