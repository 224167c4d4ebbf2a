/* SPDX-License-Identifier: BSD-3-Clause
 *
 * issue=gpu: commands of the nvme backend issued by a kernel instead of the CPU.
 *
 * Workers gather pieces into batches; a kernel does a batch, a thread for each piece. Memory that
 * the kernel's threads and the controller both reach is used where it is; all else goes by memory
 * of the device's own, and copies. Without a GPU, threads of the CPU stand in for the kernel.
 */
#ifndef STORAGE_NVME_GPU_H
#define STORAGE_NVME_GPU_H

#include "gpunvme/device.h"
#include "storage/internal.h"

/* How many workers and pieces at once, by the options. */
void nvme_gpu_choose(const struct store_options *o, uint32_t *threads, uint32_t *depth);

/* Starts what serves the store's pieces; s->crew and s->gpu are set then. */
gpunvme_err_t nvme_gpu_start(struct gpunvme_store *store);

/* Ends it, before the controller is closed. Nothing if it was not started. */
void nvme_gpu_stop(struct gpunvme_store *store);

/* The view of mapped memory that kernels take; false: they can't reach it. */
bool nvme_gpu_view(struct gpunvme_store *store, const struct gpunvme_buf *buf,
                   struct gpunvme_dev_buf *view);

/* Undoes it, when no transfer uses it any more. */
void nvme_gpu_drop_view(struct gpunvme_store *store, const struct gpunvme_dev_buf *view);

void nvme_gpu_say_how(const struct gpunvme_store *store, char *text, size_t room);

#endif
