/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Where the ends of transfers that were submitted with a batch are collected.
 */
#ifndef STORAGE_BATCH_H
#define STORAGE_BATCH_H

#include "storage/internal.h"

/* Those of them without a callback will be pushed, once they have begun. NOMEM or LIMIT: none. */
gpunvme_err_t store_batch_expect(struct gpunvme_batch *batch, struct gpunvme_io *ios, size_t n);

/* One of them will not. */
void store_batch_forget(struct gpunvme_batch *batch, struct gpunvme_io *io);

/* So many have ended. The batch may be destroyed as soon as its last one has been polled. */
void store_batch_push(struct gpunvme_batch *batch, struct gpunvme_io **ios, size_t n);

#endif
