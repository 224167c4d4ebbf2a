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
 * A loader has no threads of its own. The engine's threads read; open, next, prefetch, set_state
 * and set_epoch begin the reads. The statistics tell which route the bytes took. With `require=` in
 * the files' URIs, a slower route is an error.
 *
 * Threads: a loader may be used by one thread at a time.
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
    struct gpunvme_dataset *dataset; /* outlives the loader; has a sample or more */
    double weight;                   /* as gpunvme_sampler_source.weight */
};

/* How samples lie in a batch. */
enum gpunvme_layout {
    GPUNVME_LAYOUT_AUTO = 0, /* ROWS if all samples have one size, else RAGGED */
    GPUNVME_LAYOUT_ROWS,     /* back to back, all of one size */
    GPUNVME_LAYOUT_RAGGED,   /* back to back, of any sizes */
    GPUNVME_LAYOUT_PADDED,   /* each in a row of row_nbytes; a longer one is cut off */
    GPUNVME_LAYOUT_PACKED,   /* as RAGGED, then padding up to whole rows of row_nbytes. Samples may
                                span rows; gpunvme_loader_cu_seqlens() tells their boundaries */
};

/* What happens when a sample can't be read, or is not what its checksum says (`verify`). */
enum gpunvme_on_error {
    GPUNVME_ON_ERROR_RAISE = 0,  /* next fails; the call after it tries the batch again */
    GPUNVME_ON_ERROR_SKIP,       /* the batch lacks the sample */
    GPUNVME_ON_ERROR_SUBSTITUTE, /* the next good sample of its data set takes its place; the first
                                    follows the last. As RAISE if 16 in a row are bad as well */
};

struct gpunvme_loader_options {
    struct gpunvme_sampler_options order; /* `fingerprint` is set by the loader */
    uint32_t layout;                      /* enum gpunvme_layout */
    uint32_t on_error;                    /* enum gpunvme_on_error */
    uint64_t row_nbytes;                  /* PADDED and PACKED */
    uint32_t pad;                         /* PADDED and PACKED: the byte of padding; 0 to 255 */
    uint32_t mem;                         /* enum gpunvme_mem of the batches */
    uint32_t gpu;                         /* GPU: its number; PINNED: the GPU that pins it */
    uint32_t depth;                       /* batches to read ahead, 1 to 64; 0: 8 */
    uint64_t depth_nbytes; /* no more batches are begun while those ahead have so many bytes; at
                              least one is; 0: no limit */
    uint64_t timeout_ns;   /* of close, and of next where it gets 0; 0: 30 s */
    /*
     * Compares each sample with its checksum (dataset.h); all data sets must have checksums. In GPU
     * memory a kernel does so. A sample that differs is read once more. If it differs again,
     * `on_error` applies, and the error is VERIFY. Samples that PADDED cuts off are not compared.
     */
    bool verify;
};

/* A batch. The loader owns it; the caller may use it from next until release. */
struct gpunvme_loader_batch {
    void *ptr;           /* the address that goes with `mem`; NULL where nbytes is 0 */
    uint32_t mem;        /* enum gpunvme_mem */
    uint32_t layout;     /* what AUTO has become */
    uint64_t nbytes;     /* at ptr */
    uint64_t n;          /* samples; 0: the batch has nothing for this rank */
    uint64_t row_nbytes; /* bytes of a row for ROWS, PADDED and PACKED; 0 for RAGGED */
    uint64_t nrows;      /* nbytes / row_nbytes; for ROWS and PADDED it is n */
    /*
     * In host memory. Sample i is lengths[i] bytes at ptr + offsets[i]. offsets[n] is the end of
     * the last sample, in PADDED of its row. Where samples lie back to back, they have the bytes
     * from offsets[i] to offsets[i + 1].
     */
    const int64_t *offsets;
    const int64_t *lengths;
    const struct gpunvme_sample *samples; /* which samples, n of them */
    uint64_t epoch, index; /* index 0: the first batch after the epoch was begun or resumed */
    uint64_t npadded;      /* LAST_PAD: samples at the end that fill a last batch */
    uint64_t nskipped, nsubstituted; /* samples, because of errors */
    uint64_t ncut;                   /* PADDED: samples that were cut off */
    uint64_t stall_ns; /* how long calls of next have waited since the previous batch was given */
};

/*
 * Makes a loader and begins to read. The caller closes *out by gpunvme_loader_close(). Buffers are
 * allocated as they are needed: `depth` + 1 for batches that are read ahead or have been released
 * behind work on a stream, and one for each batch that the caller has.
 *
 * Errors: INVALID (the detail says which option; a data set without samples; ROWS of samples whose
 * sizes differ; `verify` and a data set without checksums), LIMIT (a batch of 2^32 or more samples
 * for this rank), NOMEM, and those of gpunvme_sampler_create(). Errors of reads come from next.
 */
gpunvme_err_t gpunvme_loader_open(const struct gpunvme_loader_source *sources, size_t n,
                                  const struct gpunvme_loader_options *options,
                                  struct gpunvme_loader **out);

/*
 * Waits for the next batch. When the call returns, its bytes are in place, for kernels too. At the
 * end of an epoch *batch is NULL, once; the call after it gives the first batch of the next epoch,
 * which is read ahead as any other.
 *
 * Errors: TIMEOUT: nothing of the batch has moved for timeout_ns (0: the loader's). The error of a
 * sample, if `on_error` does not tolerate it: the detail names the sample, its file and its offset.
 * NOMEM and other errors of allocating or filling a buffer, or of computing checksums. No batch is
 * lost by an error: the next call tries the same one again.
 */
gpunvme_err_t gpunvme_loader_next(struct gpunvme_loader *loader,
                                  const struct gpunvme_loader_batch **batch, uint64_t timeout_ns);

/*
 * Gives a batch back, so that its buffer can be read into again. If `after` is NULL, no work may
 * use the batch any more. Otherwise the buffer stays as it is until some work has ended: with
 * AFTER_STREAM, all that is on `stream` now; and the event `after`, if it is set. The call does not
 * wait for that.
 *
 * Errors: INVALID: `done` or BEFORE_STREAM is set, or the caller does not have the batch. Others as
 * of gpunvme_io_submit_ordered(). After an error the caller still has the batch.
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

/* Begins reads for which there is room, as next does: for callers that compute long in between. */
void gpunvme_loader_prefetch(struct gpunvme_loader *loader);

/*
 * The place after the last batch that next gave, whatever was read ahead. From there a loader of
 * the same data sets continues in any process, with any number of ranks (sampler.h). All ranks have
 * the same state after the same number of batches, so one of them may save it.
 */
void gpunvme_loader_get_state(const struct gpunvme_loader *loader,
                              struct gpunvme_sampler_state *state);

/*
 * Goes to a state, or to the beginning of an epoch. What was read ahead is dropped; the caller
 * keeps the batches that it has. Errors: those of gpunvme_sampler_set_state() and
 * gpunvme_sampler_set_epoch(); INVALID: the state is of other data sets. After an error the loader
 * is unchanged.
 */
gpunvme_err_t gpunvme_loader_set_state(struct gpunvme_loader *loader,
                                       const struct gpunvme_sampler_state *state);
gpunvme_err_t gpunvme_loader_set_epoch(struct gpunvme_loader *loader, uint64_t epoch);

struct gpunvme_loader_stats {
    uint64_t batches, samples, nbytes; /* that next gave */
    uint64_t nskipped, nsubstituted;   /* samples, because of errors */
    uint64_t stall_ns;                 /* how long next has waited */
    uint64_t stalls;                   /* calls of next that found no batch ready */
    uint64_t transfers;               /* that were begun: fewer than samples if neighbours were read
                                         together */
    uint64_t routes[GPUNVME_NROUTES]; /* bytes by enum gpunvme_route; where a transfer took several,
                                         its bytes count as the last of them */
    uint32_t ahead, ready;            /* batches read ahead; how many of them are complete */
};

void gpunvme_loader_get_stats(struct gpunvme_loader *loader, struct gpunvme_loader_stats *stats);
void gpunvme_loader_get_info(const struct gpunvme_loader *loader,
                             struct gpunvme_sampler_info *info);

/*
 * Ends all reads and frees the loader with all its buffers, also those of batches that the caller
 * still has: no work may use them any more. TIMEOUT: transfers did not end within the loader's
 * timeout; call it again later, before the data sets are closed. NULL is allowed.
 */
gpunvme_err_t gpunvme_loader_close(struct gpunvme_loader *loader);

#ifdef __cplusplus
}
#endif
#endif
