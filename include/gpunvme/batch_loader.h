/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Short names over loader.h, for programs that ask for batches by number. All are inline, so the
 * library does not contain these names. One batch at a time is the caller's.
 *
 *     struct batch_loader b = {.loader = loader, .batch_size = options.order.batch};
 *
 *     set_prefetch_depth(&b, 8);
 *     for (uint64_t i = 0; !load_batch_to_gpu(&b, i, &batch); i++)
 *         train(batch->ptr, batch->n);
 *
 * Threads: as loader.h says.
 */
#ifndef GPUNVME_BATCH_LOADER_H
#define GPUNVME_BATCH_LOADER_H

#include "gpunvme/loader.h"
#include "gpunvme/memory.h"

struct batch_loader {
    struct gpunvme_loader *loader; /* the caller's */
    uint64_t batch_size;           /* of the global batch: gpunvme_sampler_options.batch */
    const struct gpunvme_loader_batch *batch; /* the last one; NULL: none */
};

/*
 * Loads batch number `batch_idx` of the epoch that the loader is in, and releases the one before
 * it, which no work may use any more. Numbers in their order are read ahead; any other one drops
 * what was read ahead. Where the batch lies is the loader's `mem`. RANGE: the epoch has no such
 * batch; gpunvme_loader_set_epoch() begins another. Other errors as of gpunvme_loader_next(),
 * gpunvme_loader_release() and gpunvme_loader_set_state().
 */
static inline gpunvme_err_t load_batch_to_gpu(struct batch_loader *b, uint64_t batch_idx,
                                              const struct gpunvme_loader_batch **batch)
{
    struct gpunvme_sampler_state state;
    struct gpunvme_sampler_info info;
    gpunvme_err_t err = GPUNVME_OK;

    *batch = NULL;
    gpunvme_loader_get_info(b->loader, &info);
    if (!b->batch_size)
        return GPUNVME_ERR_INVALID;
    if (batch_idx >= info.batches)
        return GPUNVME_ERR_RANGE;
    if (b->batch)
        err = gpunvme_loader_release(b->loader, b->batch, NULL);
    if (err)
        return err;
    b->batch = NULL;
    gpunvme_loader_get_state(b->loader, &state);
    if (state.taken != batch_idx * b->batch_size) {
        state.taken = batch_idx * b->batch_size;
        err = gpunvme_loader_set_state(b->loader, &state);
    }
    if (!err)
        err = gpunvme_loader_next(b->loader, &b->batch, 0);
    *batch = b->batch;
    return err;
}

/* Starts reads for which there is room. */
static inline void prefetch_next_batch(struct batch_loader *b)
{
    gpunvme_loader_prefetch(b->loader);
}

/* The last batch in pinned host memory; NULL: there is none, or the loader's `mem` is another. */
static inline void *get_pinned_buffer(const struct batch_loader *b)
{
    return b->batch && b->batch->mem == GPUNVME_MEM_PINNED ? b->batch->ptr : NULL;
}

/* How many batches are read ahead, 1 to 64: INVALID. */
static inline gpunvme_err_t set_prefetch_depth(struct batch_loader *b, uint32_t depth)
{
    return gpunvme_loader_set_depth(b->loader, depth);
}

#endif
