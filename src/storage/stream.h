/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Transfers in CUDA's order, to the rest of the room.
 */
#ifndef STORAGE_STREAM_H
#define STORAGE_STREAM_H

#include "gpunvme/transfer.h"

/* gpunvme_io_cancel() and gpunvme_io_moved() of a transfer in CUDA's order that is in flight. */
void store_order_cancel(struct gpunvme_io *io);
size_t store_order_moved(const struct gpunvme_io *io);

#endif
