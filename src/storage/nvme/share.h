/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Controllers that stores have in common. A drive can be opened once, but it may have several
 * namespaces, each a store: stores whose URIs name the same controller share it. Knows nothing of
 * transfers.
 */
#ifndef STORAGE_NVME_SHARE_H
#define STORAGE_NVME_SHARE_H

#include "gpunvme/controller.h"
#include "storage/internal.h"
#include "storage/nvme/claim.h"

struct nvme_share;

/*
 * The controller that a URI without a store's options names: one that is open already, or a new
 * one. "sim:" without an image is always a new one: its bytes are nobody else's.
 */
gpunvme_err_t nvme_share_open(const char *target, struct nvme_share **out);

/* The last to leave closes the controller; the error is of that. NULL is fine. */
gpunvme_err_t nvme_share_close(struct nvme_share *share);

/*
 * Makes stores of URIs with this target use a controller that the caller has opened, until the
 * caller, after all of them, closes the share; the controller stays the caller's.
 */
gpunvme_err_t nvme_share_adopt(const char *target, struct gpunvme_ctrl *ctrl,
                               struct nvme_share **out);

struct gpunvme_ctrl *nvme_share_ctrl(struct nvme_share *share);

/* What the stores of all its namespaces have claimed, as if they were one. */
struct nvme_claimed *nvme_share_claimed(struct nvme_share *share);

/* Around fork(2). */
void nvme_share_before_fork(void);
void nvme_share_after_fork(void);

#endif
