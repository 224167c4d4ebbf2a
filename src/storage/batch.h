/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Where the ends of transfers that were submitted with a batch are collected.
 */
#ifndef STORAGE_BATCH_H
#define STORAGE_BATCH_H

#include "storage/internal.h"

/* `n` more will be pushed. */
void store_batch_expect(struct gpunvme_batch *batch, size_t n);

/* One has ended. The batch may be destroyed as soon as its last one has been polled. */
void store_batch_push(struct gpunvme_batch *batch, struct gpunvme_io *io);

#endif
