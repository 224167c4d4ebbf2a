/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What the files of the spdk backend share. env.c starts SPDK's environment, once, and attaches
 * controllers; guard.c gives SPDK's waits on a socket a deadline; queue.c has its queue pairs;
 * spdk.c opens stores. Lanes and slots are those of the nvme backend, for which this is another
 * driver. Nobody else includes SPDK's headers.
 */
#ifndef STORAGE_SPDK_SPDK_H
#define STORAGE_SPDK_SPDK_H

#include <spdk/env.h>
#include <spdk/nvme.h>

#include "storage/nvme/lane.h"
#include "storage/spdk/address.h"

struct gspdk_ctrlr {
    struct gspdk_address address;
    uint64_t timeout_ns; /* of attach, detach and reset over a socket */
    struct spdk_nvme_ctrlr *handle;

    /*
     * A reset holds `lock` and the locks of all queues, in this order: SPDK wants nobody else near
     * a controller then. A thread that holds the lock of a queue takes none of the others.
     */
    pthread_mutex_t lock;
    struct gspdk_queue *queues; /* under `lock` */
    unsigned nresets;           /* changes under all locks */
    _Atomic bool gone;          /* likewise: a reset failed, no command reaches it any more */
};

struct gspdk_store {
    struct nvme_store nvme; /* first: lanes and slots have it. No controller of ours */
    struct gpunvme_ns ns;   /* nvme.ns */
    bool has_flush;         /* it has a volatile write cache */
    char model[sizeof(((struct spdk_nvme_ctrlr_data *)0)->mn) + 1];
};

/* ---- env.c ----------------------------------------------------------------------------------- */

/*
 * Attaches to the controller that a target names, "spdk:" and a struct gspdk_address;
 * *out is a struct gspdk_ctrlr. The first starts the environment, in one of two ways that hold for
 * the rest of the process: with the PCI bus, if it names a PCI function, else without. What goes
 * over a vfio-user socket, now and at a reset, has `timeout_ns` for it.
 *
 * Errors: NOT_FOUND (nothing there, with what SPDK said), UNSUPPORTED, NOMEM.
 */
gpunvme_err_t gspdk_attach(const char *target, uint64_t timeout_ns, void **out);

/* No lane is left. */
void gspdk_detach(void *ctrlr);

/* What SPDK logged first in this thread since gspdk_hush(), as ": text", or "". */
const char *gspdk_said(void);
void gspdk_hush(void);

/* ---- guard.c --------------------------------------------------------------------------------- */

/*
 * From gspdk_guard() to gspdk_guard_end(): when it takes longer than the controller's timeout, its
 * socket is shut down. Nothing on the PCI bus, where SPDK's own deadlines hold. NULL is fine.
 */
struct gspdk_guard *gspdk_guard(const struct gspdk_ctrlr *ctrlr);
void gspdk_guard_end(struct gspdk_guard *guard);

/* ---- queue.c --------------------------------------------------------------------------------- */

/* The driver of lanes and slots; a controller is a struct gspdk_ctrlr. */
extern const struct nvme_driver gspdk_driver;

#endif
