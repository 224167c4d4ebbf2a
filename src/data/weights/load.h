/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A load inside: plan.c makes its transfers, load.c has its life, staging.c does the slices whose
 * rows are short, and what is converted.
 */
#ifndef DATA_WEIGHTS_LOAD_H
#define DATA_WEIGHTS_LOAD_H

#include <stdatomic.h>

#include "base/fail.h"
#include "data/weights/internal.h"
#include "memory/convert.h"

/*
 * Transfers end at multiples of so many bytes in a file, as the largest pieces of stores do.
 * Transfers of a store take turns, so those of several pieces would all land towards the end.
 */
#define LOAD_TRANSFER ((uint64_t)4 << 20)
#define LOAD_RANGES   ((uint64_t)4096) /* ranges of a transfer, at most */
#define LOAD_NSLOTS   8u
#define LOAD_SLOT     (GPUNVME_WEIGHTS_STAGING / LOAD_NSLOTS)

/* What is known of a part while it is loaded. */
struct load_item {
    uint64_t left; /* bytes of the file that have not arrived */
    gpunvme_err_t err;
    uint32_t max;        /* bits of the greatest number so far, for the scale */
    uint64_t unmeasured; /* bytes that have not been looked at for it */
};

/* A contiguous range of a file that goes to one piece of memory. */
struct load_segment {
    size_t part;
    uint64_t offset, nbytes;
};

/* What a transfer brings: bytes of consecutive segments, or runs of one part. */
struct load_transfer {
    size_t segment; /* the first; SIZE_MAX: runs */
    size_t part;    /* of runs */
    uint64_t nbytes;
};

/*
 * Staging: rows on their way, from which elements are taken and converted. A slot holds one range
 * of a file, and behind it a table for the kernel.
 */
#define LOAD_TABLE  1024u /* pieces in the table */
#define LOAD_ROOM   (LOAD_SLOT - LOAD_TABLE * sizeof(struct mem_convert))
#define LOAD_CHUNKS 256u
#define LOAD_GAP    ((uint64_t)64 << 10) /* bytes that nobody wants and that are read all the same */

struct load_slot {
    struct gpunvme_io io;
    struct gpunvme_buf buf;
    struct mem_convert *chunks; /* `src` from the slot's first byte, `user` is the part */
    size_t nchunks;             /* 0: the slot is idle */
};

/* One walk through a staged part. */
struct load_step {
    size_t part;
    bool measures; /* finds the greatest number, and moves nothing */
};

struct load_staging {
    size_t *parts; /* those that are staged */
    size_t nparts;
    struct load_step *steps;
    size_t n, next;
    struct weights_walk walk; /* of steps[next - 1] */
    uint64_t in;              /* bytes of this run that have been begun */
    struct load_slot slots[LOAD_NSLOTS];
    struct base_failure dropped; /* why nothing more begins */
    enum gpunvme_mem mem;
};

struct gpunvme_weights_load {
    struct gpunvme_weights *weights;
    struct gpunvme_weights_part *parts;
    size_t n;
    struct gpunvme_weights_options options;
    bool is_call; /* all has landed when the call of the library returns */
    struct load_item *items;

    struct load_segment *segments; /* by file and offset */
    size_t nsegments;
    struct gpunvme_io *ios;
    struct load_transfer *transfers; /* of each of them */
    size_t nios;
    struct gpunvme_vec *vecs;
    uint64_t *offsets;
    struct load_staging staging;
    struct gpunvme_io *gate; /* of no bytes, behind `ios`: staging begins when it has ended; NULL:
                                it has begun */
    struct gpunvme_batch *batch;

    size_t *landed; /* parts, in the order in which they landed: a queue of all */
    size_t nlanded, ngiven;
    uint64_t total;
    _Atomic uint64_t done;
    atomic_bool cancel;
    bool canceled;
    size_t failed; /* the first part, in their order, that failed */
    struct base_failure failure;
    struct gpunvme_weights_load *next; /* of the weights' orphans */
};

/* Fills in items, segments, transfers and which parts are staged. */
gpunvme_err_t load_plan(struct gpunvme_weights_load *load);

/* `nbytes` more of a part have arrived, or never will: `err`. */
void load_arrived(struct gpunvme_weights_load *load, size_t part, uint64_t nbytes,
                  gpunvme_err_t err);

/* Makes the steps for staging.parts. */
gpunvme_err_t load_staging_plan(struct gpunvme_weights_load *load);

/* Begins what there are free slots for. */
gpunvme_err_t load_staging_begin(struct gpunvme_weights_load *load);

/* If `io` is a slot's, takes out what is in it, goes on and returns true. */
bool load_staging_ended(struct gpunvme_weights_load *load, struct gpunvme_io *io);

/* The gate has ended: begins, unless that failed. */
void load_staging_open(struct gpunvme_weights_load *load);

/* Begins nothing more: what has not begun ends with `err`, as soon as all slots are idle. */
void load_staging_drop(struct gpunvme_weights_load *load, gpunvme_err_t err);
void load_staging_free(struct gpunvme_weights_load *load);

/* Bytes that have arrived of a slot's transfer. */
uint64_t load_staging_moved(const struct gpunvme_weights_load *load);

#endif
