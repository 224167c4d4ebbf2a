/* SPDX-License-Identifier: BSD-3-Clause
 *
 * issue=gpu: commands of the nvme backend issued by a kernel instead of the CPU.
 */
#ifndef STORAGE_NVME_GPU_H
#define STORAGE_NVME_GPU_H

#include "storage/internal.h"

/* Starts what serves the store's pieces; s->crew and s->gpu are set then. */
gpunvme_err_t nvme_gpu_start(struct gpunvme_store *store);

/* Ends it, before the controller is closed. Nothing if it was not started. */
void nvme_gpu_stop(struct gpunvme_store *store);

void nvme_gpu_say_how(const struct gpunvme_store *store, char *text, size_t room);

#endif
