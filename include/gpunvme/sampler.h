/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The order of samples in training: a seeded shuffle of each epoch, mixtures of data sets, batches,
 * and each rank's share of them.
 *
 *     struct gpunvme_sampler_source source = {.nsamples = 1000000000};
 *     struct gpunvme_sampler_options options = {.seed = 7, .batch = 512, .rank = 3, .world = 8};
 *
 *     gpunvme_sampler_create(&source, 1, &options, &sampler);
 *     while (gpunvme_sampler_next(sampler, &slice))
 *         gpunvme_sampler_list(sampler, slice.epoch, slice.first, slice.n, samples);
 *
 * The order is computed, not stored: a sampler of 2^40 samples takes as much memory as one of ten,
 * and any position is reached at once. All ranks share one stream of positions, which is cut into
 * global batches; a rank takes a contiguous part of each. So the stream does not depend on the
 * number of ranks, and a run can go on with another number of them.
 *
 * Threads: several threads may call gpunvme_sampler_list() at once. While another function runs, no
 * other thread may use the sampler.
 */
#ifndef GPUNVME_SAMPLER_H
#define GPUNVME_SAMPLER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpunvme/error.h"

#ifdef __cplusplus
extern "C" {
#endif

struct gpunvme_sampler;

#define GPUNVME_SAMPLER_MAX        ((uint64_t)1 << 48) /* samples of a source, or of an epoch */
#define GPUNVME_SAMPLER_MAX_BATCH  ((uint64_t)1 << 32)
#define GPUNVME_SAMPLER_MAX_SOURCE 4096u
#define GPUNVME_SAMPLER_MAX_PERIOD ((uint64_t)1 << 20)

/* A data set to draw samples from. */
struct gpunvme_sampler_source {
    uint64_t nsamples; /* 1 or more */
    /*
     * Its share of a mixture, relative to the other weights. If all weights are 0, shares are
     * proportional to the numbers of samples. Not used if there is one source.
     */
    double weight;
};

enum gpunvme_shuffle {
    GPUNVME_SHUFFLE_EPOCH = 0, /* any order of the whole epoch */
    GPUNVME_SHUFFLE_BLOCKS,    /* blocks in any order, and samples within windows of positions */
    GPUNVME_SHUFFLE_NONE,      /* as they are stored */
};

/* What becomes of the samples at the end of an epoch that do not fill a batch. */
enum gpunvme_last_batch {
    GPUNVME_LAST_SHORT = 0, /* they are a batch of fewer samples */
    GPUNVME_LAST_DROP,      /* they are left out; each epoch leaves out others */
    GPUNVME_LAST_PAD,       /* the batch is filled up with the epoch's first samples */
};

struct gpunvme_sampler_options {
    uint64_t seed;
    uint64_t batch;       /* samples of a global batch, of all ranks together; 1 or more */
    uint32_t rank;        /* below `world` */
    uint32_t world;       /* number of ranks; 0: 1. May exceed the samples of a batch */
    uint32_t shuffle;     /* enum gpunvme_shuffle */
    uint32_t last;        /* enum gpunvme_last_batch */
    uint64_t block;       /* SHUFFLE_BLOCKS: samples that stay together on storage; 0: 1024 */
    uint64_t window;      /* … and positions within which samples are shuffled, rounded up to
                           * whole blocks; 0: 64 blocks */
    uint64_t epoch;       /* samples of an epoch; 0: as many as all sources have. With another
                           * number, sources have epochs of their own, as in a mixture */
    uint64_t fingerprint; /* any number that identifies the data; see the state */
};

/*
 * Makes a sampler at the beginning of epoch 0. The caller ends it by gpunvme_sampler_destroy().
 *
 * In a mixture each source has epochs of its own, each of which has each of its samples once. The
 * k-th sample taken from a source belongs to its epoch k / nsamples. Positions are grouped into
 * periods of T. After m periods a source has had its share of the m * T positions, rounded up or
 * down. In any one period it has its share, less than two samples more or fewer, so perhaps none. T
 * is a power of two for which T times the smallest share is 1 or more, at most
 * GPUNVME_SAMPLER_MAX_PERIOD. A source's next epoch may begin within a period.
 *
 * Errors: INVALID (the detail says which option), LIMIT (a weight so small that it has less than
 * one position in GPUNVME_SAMPLER_MAX_PERIOD), NOMEM.
 */
gpunvme_err_t gpunvme_sampler_create(const struct gpunvme_sampler_source *sources, size_t n,
                                     const struct gpunvme_sampler_options *options,
                                     struct gpunvme_sampler **out);
void gpunvme_sampler_destroy(struct gpunvme_sampler *sampler);

/* The rank's part of a global batch: positions `first` to `first + n - 1` of an epoch. */
struct gpunvme_slice {
    uint64_t epoch;
    uint64_t batch;                /* 0 is the first after the epoch was begun or resumed */
    uint64_t first;                /* position in the epoch's stream of all ranks */
    uint64_t n;                    /* 0: the batch has nothing for this rank */
    uint64_t npadded;              /* how many of these, at the end, pad a last batch */
    uint64_t batch_first, batch_n; /* the global batch */
};

/*
 * Gives the rank's part of the next global batch. False at the end of an epoch: the slice is zero
 * then, and the next call gives the first batch of the next epoch.
 */
bool gpunvme_sampler_next(struct gpunvme_sampler *sampler, struct gpunvme_slice *slice);

/* A sample: number `index` of source `source`. */
struct gpunvme_sample {
    uint64_t index;
    uint64_t source;
};

/*
 * Lists the samples at positions `first` to `first + n - 1` of an epoch, in this order. Positions
 * after the epoch's end, which pad a batch, begin at its first sample again.
 */
void gpunvme_sampler_list(const struct gpunvme_sampler *sampler, uint64_t epoch, uint64_t first,
                          size_t n, struct gpunvme_sample *samples);

struct gpunvme_sampler_info {
    uint64_t samples; /* of an epoch */
    uint64_t batches; /* of an epoch from its beginning */
    uint64_t period;  /* of a mixture, in positions; 1: one source */
};

void gpunvme_sampler_get_info(const struct gpunvme_sampler *sampler,
                              struct gpunvme_sampler_info *info);

/*
 * Where a sampler is: all that is needed to go on in another process, with any number of ranks and
 * any size of batches. The same on all ranks after the same number of batches.
 */
struct gpunvme_sampler_state {
    uint64_t fingerprint; /* of sources, weights, shuffle, epoch and the caller's fingerprint */
    uint64_t seed;
    uint64_t epoch;
    uint64_t taken; /* samples of the epoch that all ranks together have taken */
};

void gpunvme_sampler_get_state(const struct gpunvme_sampler *sampler,
                               struct gpunvme_sampler_state *state);

/*
 * Continues after the samples that were taken when `state` was got, with its seed. INVALID: the
 * state is of other data or of another order; or `taken` is more than an epoch has. LIMIT: as
 * gpunvme_sampler_set_epoch(). After an error the sampler is unchanged.
 */
gpunvme_err_t gpunvme_sampler_set_state(struct gpunvme_sampler *sampler,
                                        const struct gpunvme_sampler_state *state);

/* Goes to the beginning of an epoch. LIMIT: there would be 2^62 samples before it. */
gpunvme_err_t gpunvme_sampler_set_epoch(struct gpunvme_sampler *sampler, uint64_t epoch);

#ifdef __cplusplus
}
#endif
#endif
