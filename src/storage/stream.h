/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What transfers in CUDA's order need of streams and events: CUDA's (memory/cuda.h), or those that
 * a test made.
 */
#ifndef STORAGE_STREAM_H
#define STORAGE_STREAM_H

#include <stdbool.h>
#include <stdint.h>

#include "gpunvme/transfer.h"

/* As mem_cuda_user_stream_device(), …_capturing(), and so on. */
struct store_stream_ops {
    gpunvme_err_t (*device)(void *stream, unsigned *gpu);
    gpunvme_err_t (*capturing)(void *stream, bool *capturing);
    gpunvme_err_t (*call)(void *stream, void (*fn)(void *), void *arg);
    gpunvme_err_t (*wait)(void *stream, const uint32_t *gpu_word, uint32_t value);
    gpunvme_err_t (*wait_event)(void *stream, void *event);
    gpunvme_err_t (*record)(void *stream, void *event);
    gpunvme_err_t (*create)(void **stream);
};

/* Which are used: CUDA's, but for tests. */
extern const struct store_stream_ops *store_stream_ops;

/* gpunvme_io_cancel() and gpunvme_io_moved() of a transfer in CUDA's order that is in flight. */
void store_order_cancel(struct gpunvme_io *io);
size_t store_order_moved(const struct gpunvme_io *io);

/* Around fork(2). */
void store_order_before_fork(void);
void store_order_after_fork(void);

#endif
