/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What this library does with streams of copies, beside what memory.h has for everyone.
 */
#ifndef MEMORY_STREAM_H
#define MEMORY_STREAM_H

#include <stdbool.h>
#include <stdint.h>

#include "gpunvme/memory.h"

/* gpunvme_mem_copy_batch() of pieces that were checked. */
gpunvme_err_t mem_copy_batch_checked(const struct gpunvme_mem_piece *pieces, size_t n,
                                     struct gpunvme_mem_stream *stream);

/*
 * Makes what the stream's first batch would make: pinned memory, and the kernel loaded. By any
 * thread, also while another copies on the stream.
 */
gpunvme_err_t mem_stream_prepare_batches(struct gpunvme_mem_stream *stream);

/*
 * Puts a mark on the stream: it is passed when all that was put there before is done. To look at a
 * mark is a load of memory, but for a query now and then, which tells of errors. Where the driver
 * has no marks, one is passed when the stream is idle. By one thread at a time.
 */
gpunvme_err_t mem_stream_mark(struct gpunvme_mem_stream *stream, uint32_t *mark);
gpunvme_err_t mem_stream_passed(struct gpunvme_mem_stream *stream, uint32_t mark, bool *passed);

#endif
