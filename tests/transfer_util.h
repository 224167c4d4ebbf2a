/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Transfers of one store, for tests.
 */
#ifndef TRANSFER_UTIL_H
#define TRANSFER_UTIL_H

#include "gpunvme/storage.h"

static inline struct gpunvme_io *of_store(struct gpunvme_store *store, struct gpunvme_io *ios,
                                          size_t n)
{
    for (size_t i = 0; i < n && ios; i++)
        ios[i].store = store;
    return ios;
}

static inline gpunvme_err_t submit_to(struct gpunvme_store *store, struct gpunvme_io *ios, size_t n,
                                      struct gpunvme_batch *batch)
{
    return gpunvme_io_submit(of_store(store, ios, n), n, batch);
}

static inline gpunvme_err_t run_on(struct gpunvme_store *store, struct gpunvme_io *ios, size_t n)
{
    return gpunvme_io_run(of_store(store, ios, n), n);
}

/* Behind what is on a stream, and before what comes later. */
static inline gpunvme_err_t submit_on_stream(struct gpunvme_store *store, struct gpunvme_io *io,
                                             void *stream)
{
    const struct gpunvme_order order = {.flags = GPUNVME_AFTER_STREAM | GPUNVME_BEFORE_STREAM,
                                        .stream = stream};

    return gpunvme_io_submit_ordered(of_store(store, io, 1), 1, NULL, &order);
}

/* What went wrong with a transfer; static, until the next call. */
static inline const char *detail_of(const struct gpunvme_io *io)
{
    static _Thread_local char text[256];

    return gpunvme_io_detail(io, text, sizeof(text));
}

#endif
