/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Controllers that stores have in common. A drive can be opened once, but it may have several
 * namespaces, each a store: stores whose URIs name the same controller share it. Knows nothing of
 * transfers.
 */
#ifndef STORAGE_NVME_SHARE_H
#define STORAGE_NVME_SHARE_H

#include "base/fail.h"
#include "gpunvme/controller.h"
#include "storage/internal.h"
#include "storage/nvme/claim.h"

struct nvme_driver;

struct nvme_share {
    const struct nvme_driver *driver; /* NULL: ours, … */
    struct gpunvme_ctrl *ctrl;        /* … whose controller this is */
    void *other;                      /* else the driver's */
    struct nvme_claimed claimed;      /* blocks of all namespaces, as if they were one */

    /* share.c's own: */
    struct nvme_share *next;
    bool is_private; /* not found by others */
    char target[STORE_TARGET_ROOM];
    unsigned users;
    unsigned nforks; /* of this process's forebears when it was opened */
    enum { SHARE_OPENING, SHARE_OPEN, SHARE_FAILED, SHARE_CLOSING } state;
    struct base_failure failure; /* of opening it */
};

/*
 * The controller that a URI without a store's options names, and a driver (NULL: ours) drives: one
 * that is open already, or a new one. "sim:" without an image is always a new one: its bytes are
 * nobody else's. `timeout_ns` is another driver's.
 */
gpunvme_err_t nvme_share_open(const struct nvme_driver *driver, const char *target,
                              uint64_t timeout_ns, struct nvme_share **out);

/* The last to leave closes the controller; the error is of that. NULL is fine. */
gpunvme_err_t nvme_share_close(struct nvme_share *share);

#endif
