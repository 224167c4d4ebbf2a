/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A loader of samples: batches of data sets (dataset.h) in a sampler's order (sampler.h), read
 * ahead into host, pinned or GPU memory.
 *
 *     struct gpunvme_loader_source source = {.dataset = dataset};
 *     struct gpunvme_loader_options options = {
 *         .order = {.seed = 7, .batch = 512, .rank = rank, .world = world},
 *         .mem = GPUNVME_MEM_GPU,
 *     };
 *
 *     gpunvme_loader_open(&source, 1, &options, &loader);
 *     while (!gpunvme_loader_next(loader, &batch, 0) && batch) {   // an epoch
 *         train<<<…, stream>>>(batch->ptr, batch->n);
 *         gpunvme_loader_release(loader, batch, &(struct gpunvme_order){
 *             .flags = GPUNVME_AFTER_STREAM, .stream = stream});
 *     }
 *     gpunvme_loader_close(loader);
 *
 * It has no threads of its own: the engine's read, and calls of next, release and prefetch begin
 * reads. The statistics tell which way the bytes went; `require=` in the URIs of the files makes a
 * slower way an error.
 *
 * Threads: a loader is used by one thread at a time.
 */
#ifndef GPUNVME_LOADER_H
#define GPUNVME_LOADER_H

#include "gpunvme/dataset.h"
#include "gpunvme/sampler.h"

#ifdef __cplusplus
extern "C" {
#endif

struct gpunvme_loader;

#define GPUNVME_LOADER_MAX_DEPTH 64u

struct gpunvme_loader_source {
    struct gpunvme_dataset *dataset; /* must outlive the loader, and have a sample */
    double weight;                   /* as gpunvme_sampler_source.weight */
};

/* How samples lie in a batch. */
enum gpunvme_layout {
    GPUNVME_LAYOUT_AUTO = 0, /* ROWS if all samples have one size, else RAGGED */
    GPUNVME_LAYOUT_ROWS,     /* one behind the other, all of one size */
    GPUNVME_LAYOUT_RAGGED,   /* one behind the other, of any sizes */
    GPUNVME_LAYOUT_PADDED,   /* each in a row of row_nbytes: a longer one is cut off there */
    GPUNVME_LAYOUT_PACKED,   /* as RAGGED, and filled up to whole rows of row_nbytes. The batch's
                                documents are joined; what fills its last row is padding.
                                gpunvme_loader_cu_seqlens() tells their boundaries */
};

/* What happens when a sample can't be read, or is not what its checksum says (`verify`). */
enum gpunvme_on_error {
    GPUNVME_ON_ERROR_RAISE = 0,  /* next fails, and tries the batch again when it is called again */
    GPUNVME_ON_ERROR_SKIP,       /* the batch is without it */
    GPUNVME_ON_ERROR_SUBSTITUTE, /* the next one of its data set that can be read takes its place:
                                    of the 16 that follow it; else as RAISE */
};

struct gpunvme_loader_options {
    struct gpunvme_sampler_options order; /* `fingerprint` is set by the loader */
    uint32_t layout;                      /* enum gpunvme_layout */
    uint32_t on_error;                    /* enum gpunvme_on_error */
    uint64_t row_nbytes;                  /* PADDED and PACKED */
    uint32_t pad;                         /* PADDED and PACKED: the byte that fills; 0 to 255 */
    uint32_t mem;                         /* enum gpunvme_mem of the batches */
    uint32_t gpu;                         /* GPU: which one; PINNED: by way of which one */
    uint32_t depth;                       /* batches read ahead, 1 to 64; 0: 4 */
    uint64_t depth_nbytes; /* read ahead until these have so many bytes; 0: no limit */
    uint64_t timeout_ns;   /* of calls that take none; 0: 30 s */
    /*
     * Compares each sample with its checksum, which all data sets must have (dataset.h), where the
     * batch is: in GPU memory by a kernel. A sample that differs is read once more, and then
     * treated by `on_error`, with VERIFY as its error. Samples that PADDED cuts off are not
     * compared.
     */
    bool verify;
};

/* A batch. It belongs to the loader, and is the caller's from next to release. */
struct gpunvme_loader_batch {
    void *ptr;           /* the address that goes with `mem`; NULL where nbytes is 0 */
    uint32_t mem;        /* enum gpunvme_mem */
    uint32_t layout;     /* what AUTO has become */
    uint64_t nbytes;     /* at ptr */
    uint64_t n;          /* samples; 0: the batch has nothing for this rank */
    uint64_t row_nbytes; /* bytes of a row for ROWS, PADDED and PACKED; 0 for RAGGED */
    uint64_t nrows;      /* nbytes / row_nbytes; for ROWS and PADDED it is n */
    /*
     * In host memory. offsets[i] is where sample i begins at ptr and lengths[i] what it has there;
     * offsets[n] is the end of the last one. For RAGGED and PACKED, offsets are the boundaries.
     */
    const int64_t *offsets;
    const int64_t *lengths;
    const struct gpunvme_sample *samples; /* which samples, n of them */
    uint64_t epoch, index;                /* as gpunvme_slice's epoch and batch */
    uint64_t npadded;                     /* at the end of a last batch, of LAST_PAD */
    uint64_t nskipped, nsubstituted;      /* because of errors */
    uint64_t ncut;                        /* PADDED: samples that were cut off */
    uint64_t stall_ns; /* that calls of next have waited since they gave the batch before it */
};

/*
 * Makes a loader and begins to read. *out is the caller's, to be given to close. Buffers are
 * allocated as they are needed: `depth` + 1 for batches that are read ahead or have been released
 * behind work on a stream, and those that the caller has.
 *
 * Errors: INVALID (the detail says which option; a data set without samples; ROWS of samples whose
 * sizes differ; `verify` and a data set without checksums), LIMIT (a batch of 2^32 or more samples
 * for this rank), NOMEM, and those of gpunvme_sampler_create(). What goes wrong with reads is told
 * by next.
 */
gpunvme_err_t gpunvme_loader_open(const struct gpunvme_loader_source *sources, size_t n,
                                  const struct gpunvme_loader_options *options,
                                  struct gpunvme_loader **out);

/*
 * Waits for the next batch; its bytes are in place when the call returns, for kernels as well. At
 * the end of an epoch *batch is NULL, once, and the next call gives the first batch of the next
 * epoch, which is being read by then.
 *
 * Errors: TIMEOUT: nothing of the batch has moved for timeout_ns (0: the loader's). A sample that
 * can't be read, by the policy: the detail names it, its file and its place. NOMEM and the like: a
 * buffer can't be had. After any of them no batch is lost: the next call tries this one again.
 */
gpunvme_err_t gpunvme_loader_next(struct gpunvme_loader *loader,
                                  const struct gpunvme_loader_batch **batch, uint64_t timeout_ns);

/*
 * Gives a batch back: its buffer will be read into again. `after` may be NULL: all work on it has
 * ended. Else the buffer is left alone until the work that `after` says has ended: with
 * AFTER_STREAM, what is on its `stream` now; its event `after`. `done` and BEFORE_STREAM are
 * INVALID. So is a batch that the caller does not have. Other errors as of
 * gpunvme_io_submit_ordered(): the batch is still the caller's then.
 */
gpunvme_err_t gpunvme_loader_release(struct gpunvme_loader *loader,
                                     const struct gpunvme_loader_batch *batch,
                                     const struct gpunvme_order *after);

/*
 * The boundaries of a RAGGED or PACKED batch's documents in tokens, as kernels for attention over
 * sequences of different lengths take them ("cu_seqlens"), for the batch as one row of tokens: 0,
 * the end of each document, and the end of the batch; empty documents have none. In PACKED, padding
 * counts as a document of its own. With `rows`, the rows of PACKED are boundaries too, for models
 * that attend within a row.
 *
 * out[0 … *n) is in host memory; there are at most batch->n + batch->nrows + 2. *longest, which may
 * be NULL, gets the tokens of the longest sequence. Errors: INVALID (another layout; a document
 * that ends within a token; `room` is too small), LIMIT (2^31 tokens).
 */
gpunvme_err_t gpunvme_loader_cu_seqlens(const struct gpunvme_loader_batch *batch,
                                        uint32_t token_nbytes, bool rows, int32_t *out, size_t room,
                                        size_t *n, int32_t *longest);

/* Changes how many batches are read ahead, 1 to 64; what is being read already goes on. INVALID. */
gpunvme_err_t gpunvme_loader_set_depth(struct gpunvme_loader *loader, uint32_t depth);

/* Begins reads for which there is room. next does so too: this is for a caller that is busy long.
 */
void gpunvme_loader_prefetch(struct gpunvme_loader *loader);

/*
 * Where the caller is: behind the last batch that next gave, whatever was read ahead. A loader of
 * the same data sets goes on there in any process, with any number of ranks (sampler.h).
 */
void gpunvme_loader_get_state(const struct gpunvme_loader *loader,
                              struct gpunvme_sampler_state *state);

/*
 * Goes to a state, or to the beginning of an epoch. What was read ahead is dropped; batches that
 * the caller has stay its own. Errors: as gpunvme_sampler_set_state() and
 * gpunvme_sampler_set_epoch(), and the loader is as it was. INVALID: the state is of other data
 * sets.
 */
gpunvme_err_t gpunvme_loader_set_state(struct gpunvme_loader *loader,
                                       const struct gpunvme_sampler_state *state);
gpunvme_err_t gpunvme_loader_set_epoch(struct gpunvme_loader *loader, uint64_t epoch);

struct gpunvme_loader_stats {
    uint64_t batches, samples, nbytes; /* that next gave */
    uint64_t nskipped, nsubstituted;   /* samples, because of errors */
    uint64_t stall_ns;                 /* that next has waited */
    uint64_t stalls;                   /* calls of next that found no batch ready */
    uint64_t transfers;               /* that brought them: fewer than samples where neighbours were
                                         read together */
    uint64_t routes[GPUNVME_NROUTES]; /* bytes by enum gpunvme_route; where a transfer took several,
                                         its bytes count as the last of them */
    uint32_t ahead, ready;            /* batches that are read ahead; of these, there already */
};

void gpunvme_loader_get_stats(struct gpunvme_loader *loader, struct gpunvme_loader_stats *stats);
void gpunvme_loader_get_info(const struct gpunvme_loader *loader,
                             struct gpunvme_sampler_info *info);

/*
 * Ends all reads and frees the loader with its buffers, those of batches that the caller has too:
 * no work may use them any more. TIMEOUT: transfers did not end within the loader's timeout; call
 * it again later, before the data sets are closed. NULL is fine.
 */
gpunvme_err_t gpunvme_loader_close(struct gpunvme_loader *loader);

#ifdef __cplusplus
}
#endif
#endif
