/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A loader inside: loader.c has the queue of batches, batch.c makes the transfers of one and takes
 * their ends.
 */
#ifndef DATA_LOADER_BATCH_H
#define DATA_LOADER_BATCH_H

#include "data/loader/dataset.h"
#include "gpunvme/loader.h"
#include "gpunvme/memory.h"

/* Where a sample comes from, and where it goes in the buffer. */
struct batch_item {
    struct gpunvme_store *store;
    uint64_t offset, nbytes, at;
    uint32_t row;      /* in the batch */
    uint32_t tries;    /* samples that were tried in its place */
    gpunvme_err_t err; /* of its transfer */
};

enum batch_state {
    BATCH_FREE,
    BATCH_AHEAD,   /* in the queue */
    BATCH_GIVEN,   /* the caller's */
    BATCH_LEAVING, /* of no use any more, but transfers, or work of the caller's, may use its buffer
                    */
};

struct batch {
    struct gpunvme_loader_batch out;
    enum batch_state state;
    struct gpunvme_buf buf;
    bool registered;
    bool tainted; /* a transfer was given up: it may still write to the buffer */
    struct gpunvme_slice slice;
    struct gpunvme_sample *samples;
    struct batch_item *items; /* one for each sample, in the order of transfers */
    int64_t *offsets, *lengths;
    uint64_t *places; /* of ranges, for transfers that gather */
    struct gpunvme_vec *vecs;
    struct gpunvme_io *ios, **ended;
    uint32_t *first; /* item of each transfer */
    size_t room;     /* of all these lists */
    size_t nios, nleft;
    struct gpunvme_batch *polled;
    struct gpunvme_io gate; /* of no bytes, behind the caller's work; or a mark in its stream */
    struct mem_cuda_word *word;
    uint32_t mark;
    bool is_marked;
    bool apart;          /* each sample is read by itself, since transfers of several failed */
    bool compared_again; /* samples differed from their checksums, and were read once more */
    struct base_failure failure;
    uint32_t failed_row; /* that `failure` names */
    struct batch *next;  /* of all that there are */
};

/* What next gives: a batch, or the end of an epoch. */
struct loader_step {
    struct batch *batch;                /* NULL: the end */
    struct gpunvme_sampler_state after; /* where the caller is then */
};

#define LOADER_STEPS (2u * GPUNVME_LOADER_MAX_DEPTH)

struct gpunvme_loader {
    struct gpunvme_loader_options options;
    struct gpunvme_sampler *sampler;    /* at the end of the queue */
    struct gpunvme_sampler_state state; /* the caller's */
    struct gpunvme_engine *engine;
    const struct gpunvme_dataset **datasets;
    uint64_t *nsamples;
    size_t nsources;
    uint64_t row_nbytes;
    struct batch *batches;
    struct loader_step steps[LOADER_STEPS]; /* a queue: `nsteps` from `first` on */
    unsigned first, nsteps, nahead;
    struct gpunvme_loader_stats stats;
    uint64_t told_stall_ns; /* of stats.stall_ns, by batches that were given */
};

/* Of the process, or of the caller's. */
struct gpunvme_engine *data_engine(const struct gpunvme_dataset *dataset);

uint64_t loader_now_ns(void);

/* Lists the samples of b->slice and submits their transfers. What goes wrong is b->failure. */
void batch_begin(struct gpunvme_loader *l, struct batch *b);

/*
 * Takes what has ended, waits up to wait_ns for it, and begins again what has to be read once more.
 * True: all has ended; b->failure says how.
 */
bool batch_poll(struct gpunvme_loader *l, struct batch *b, uint64_t wait_ns);

/*
 * Keeps the failure of the batch's first sample that has one; `text` is the detail of what happened
 * to it.
 */
void batch_name_failure(const struct gpunvme_loader *l, struct batch *b,
                        const struct batch_item *item, const char *text, gpunvme_err_t err);

/*
 * Compares the samples of a batch that has been read with their checksums. A sample that differs is
 * b->failure, as one that could not be read. Returns an error if checksums can't be computed.
 */
gpunvme_err_t batch_verify(const struct gpunvme_loader *l, struct batch *b);

/* Has the batch left only when the work that `after` says is done. */
gpunvme_err_t batch_put_gate(struct gpunvme_loader *l, struct batch *b,
                             const struct gpunvme_order *after);

/* Whether nothing uses a batch any more that is BATCH_LEAVING; waits up to wait_ns. */
bool batch_has_left(struct batch *b, uint64_t wait_ns);

/* Bytes that have moved. */
uint64_t batch_moved(const struct batch *b);
void batch_free(struct gpunvme_loader *l, struct batch *b);

#endif
