/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The order of samples: position of the stream → source → sample, all by formula. Knows nothing of
 * files.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "data/loader/permute.h"
#include "gpunvme/sampler.h"

/* Part of the fingerprint: whoever changes an order increases it, so that old states are refused.
 */
#define ORDER_VERSION 1u

#define DEFAULT_BLOCK  ((uint64_t)1024)
#define DEFAULT_BLOCKS ((uint64_t)64) /* in a window */
#define MAX_POSITION   ((uint64_t)1 << 62)
#define STEP           ((uint64_t)0x9e3779b97f4a7c15) /* odd, so multiples of it differ */

struct source {
    uint64_t n;
    uint64_t share; /* of all sources up to this one, in 2^-64; not used of the last one */
    uint64_t salt;
    struct permute_domain all;          /* SHUFFLE_EPOCH */
    struct permute_domain window, last; /* SHUFFLE_BLOCKS: the last window may be shorter */
    uint64_t nwindows, window_n;        /* whole windows, and positions of each */
    struct permute_domain blocks;       /* whole blocks; n == 0: none */
    uint64_t rest;                      /* samples of the block that is not whole */
};

struct gpunvme_sampler {
    struct gpunvme_sampler_options options; /* with defaults filled in */
    struct permute_key order_key, window_key, mix_key;
    struct permute_domain period; /* of a mixture; n is a power of two */
    unsigned period_log2;
    uint64_t fingerprint;
    uint64_t epoch, taken, batch; /* where it is */
    size_t nsources;
    struct source sources[];
};

/* ---- One source --------------------------------------------------------------------------------
 */

/* The sample at position y of the blocks' order. The short block stands anywhere in it. */
static uint64_t sample_of_blocks(const struct gpunvme_sampler *s, const struct source *source,
                                 uint64_t tweak, uint64_t y)
{
    const uint64_t block = s->options.block, whole = source->blocks.n;

    if (!whole)
        return y;
    if (source->rest) {
        uint64_t place = permute_round(tweak, s->order_key.rounds[0], whole + 1) * block;

        if (y >= place && y - place < source->rest)
            return whole * block + (y - place);
        y -= y >= place ? source->rest : 0;
    }
    return permute(&source->blocks, &s->order_key, tweak, y / block) * block + y % block;
}

/* The sample that source `source` gives as its k-th, counted through all its epochs. */
static uint64_t sample_of(const struct gpunvme_sampler *s, const struct source *source, uint64_t k)
{
    const uint64_t epoch = k / source->n, x = k % source->n;
    const uint64_t tweak = permute_mix(source->salt + epoch * STEP);
    uint64_t window, first;

    if (s->options.shuffle == GPUNVME_SHUFFLE_NONE)
        return x;
    if (s->options.shuffle == GPUNVME_SHUFFLE_EPOCH)
        return permute(&source->all, &s->order_key, tweak, x);
    window = x / source->window_n;
    first = window * source->window_n;
    return sample_of_blocks(
        s, source, tweak,
        first + permute(window < source->nwindows ? &source->window : &source->last, &s->window_key,
                        permute_mix(tweak + (window + 1) * STEP), x - first));
}

/* ---- Mixtures ----------------------------------------------------------------------------------
 *
 * Before position T * j, sources 0 … i have had floor(T * j * share_i) positions. What each gets of
 * period j follows, and a permutation of the period's positions says which ones. The first of the
 * permuted positions are the first source's, in the order of its samples, and so on.
 */

/* How many positions sources 0 … i have before position `at`, a multiple of the period. */
static uint64_t count_before(const struct gpunvme_sampler *s, size_t i, uint64_t at)
{
    if (i == s->nsources - 1)
        return at;
    return (uint64_t)(((unsigned __int128)at * s->sources[i].share) >> 64);
}

static struct gpunvme_sample sample_at(const struct gpunvme_sampler *s, uint64_t position)
{
    uint64_t begin, end, u, before = 0, before_begin = 0;
    size_t lo = 0, hi = s->nsources - 1;

    if (!hi)
        return (struct gpunvme_sample){.index = sample_of(s, &s->sources[0], position)};
    begin = position >> s->period_log2 << s->period_log2;
    end = begin + s->period.n;
    u = permute(&s->period, &s->mix_key, permute_mix(s->sources[0].salt + begin), position - begin);
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;

        if (u < count_before(s, mid, end) - count_before(s, mid, begin))
            hi = mid;
        else
            lo = mid + 1;
    }
    if (lo) {
        before_begin = count_before(s, lo - 1, begin);
        before = count_before(s, lo - 1, end) - before_begin;
    }
    return (struct gpunvme_sample){
        .index =
            sample_of(s, &s->sources[lo], count_before(s, lo, begin) - before_begin + (u - before)),
        .source = lo};
}

void gpunvme_sampler_list(const struct gpunvme_sampler *s, uint64_t epoch, uint64_t first, size_t n,
                          struct gpunvme_sample *samples)
{
    const uint64_t nepoch = s->options.epoch, base = epoch * nepoch;

    for (size_t i = 0; i < n; i++) {
        uint64_t x = first + i;

        samples[i] = sample_at(s, base + (x < nepoch ? x : x % nepoch));
    }
}

/* ---- Batches and ranks -------------------------------------------------------------------------
 */

/* Where rank `rank` begins in a batch of n. */
static uint64_t part(const struct gpunvme_sampler *s, uint64_t n, uint64_t rank)
{
    return (uint64_t)((unsigned __int128)n * rank / s->options.world);
}

bool gpunvme_sampler_next(struct gpunvme_sampler *s, struct gpunvme_slice *slice)
{
    const struct gpunvme_sampler_options *o = &s->options;
    const uint64_t left = o->epoch - s->taken, n = left < o->batch ? left : o->batch;
    uint64_t end, rank_end;

    memset(slice, 0, sizeof(*slice));
    if (!n || (n < o->batch && o->last == GPUNVME_LAST_DROP)) {
        s->epoch++;
        s->taken = s->batch = 0;
        return false;
    }
    slice->epoch = s->epoch;
    slice->batch = s->batch++;
    slice->batch_first = s->taken;
    slice->batch_n = o->last == GPUNVME_LAST_PAD ? o->batch : n;
    slice->first = s->taken + part(s, slice->batch_n, o->rank);
    rank_end = s->taken + part(s, slice->batch_n, (uint64_t)o->rank + 1);
    slice->n = rank_end - slice->first;
    end = slice->first > o->epoch ? slice->first : o->epoch;
    slice->npadded = rank_end > end ? rank_end - end : 0;
    s->taken += n;
    return true;
}

void gpunvme_sampler_get_info(const struct gpunvme_sampler *s, struct gpunvme_sampler_info *info)
{
    const struct gpunvme_sampler_options *o = &s->options;

    *info = (struct gpunvme_sampler_info){
        .samples = o->epoch,
        .batches = o->epoch / o->batch + (o->last != GPUNVME_LAST_DROP && o->epoch % o->batch),
        .period = s->period.n,
    };
}

/* ---- State -------------------------------------------------------------------------------------
 */

static void set_seed(struct gpunvme_sampler *s, uint64_t seed)
{
    s->options.seed = seed;
    permute_key_set(&s->order_key, seed, 1);
    permute_key_set(&s->window_key, seed, 2);
    permute_key_set(&s->mix_key, seed, 3);
    for (size_t i = 0; i < s->nsources; i++)
        s->sources[i].salt = permute_mix(permute_mix(seed) + (i + 1) * STEP);
}

void gpunvme_sampler_get_state(const struct gpunvme_sampler *s, struct gpunvme_sampler_state *state)
{
    *state = (struct gpunvme_sampler_state){.fingerprint = s->fingerprint,
                                            .seed = s->options.seed,
                                            .epoch = s->epoch,
                                            .taken = s->taken};
}

static gpunvme_err_t check_epoch(const struct gpunvme_sampler *s, uint64_t epoch)
{
    if (epoch >= MAX_POSITION / s->options.epoch)
        return base_fail(GPUNVME_ERR_LIMIT, "epoch %llu of %llu samples: there are 2^62 before it",
                         (unsigned long long)epoch, (unsigned long long)s->options.epoch);
    return GPUNVME_OK;
}

gpunvme_err_t gpunvme_sampler_set_state(struct gpunvme_sampler *s,
                                        const struct gpunvme_sampler_state *state)
{
    gpunvme_err_t err;

    if (!s || !state)
        return base_fail(GPUNVME_ERR_INVALID, "%s is NULL", s ? "state" : "sampler");
    if (state->fingerprint != s->fingerprint)
        return base_fail(GPUNVME_ERR_INVALID,
                         "the state is of other data, or of another order of it: its fingerprint "
                         "is %016llx, here it is %016llx",
                         (unsigned long long)state->fingerprint,
                         (unsigned long long)s->fingerprint);
    if (state->taken > s->options.epoch)
        return base_fail(GPUNVME_ERR_INVALID,
                         "the state has taken %llu samples of an epoch of %llu",
                         (unsigned long long)state->taken, (unsigned long long)s->options.epoch);
    err = check_epoch(s, state->epoch);
    if (err)
        return err;
    set_seed(s, state->seed);
    s->epoch = state->epoch;
    s->taken = state->taken;
    s->batch = 0;
    return GPUNVME_OK;
}

gpunvme_err_t gpunvme_sampler_set_epoch(struct gpunvme_sampler *s, uint64_t epoch)
{
    gpunvme_err_t err;

    if (!s)
        return base_fail(GPUNVME_ERR_INVALID, "sampler is NULL");
    err = check_epoch(s, epoch);
    if (err)
        return err;
    s->epoch = epoch;
    s->taken = s->batch = 0;
    return GPUNVME_OK;
}

/* ---- Making one --------------------------------------------------------------------------------
 */

static gpunvme_err_t check_sources(const struct gpunvme_sampler_source *sources, size_t n,
                                   uint64_t *nsamples)
{
    bool weighted = false;

    *nsamples = 0;
    if (!sources || !n || n > GPUNVME_SAMPLER_MAX_SOURCE)
        return base_fail(GPUNVME_ERR_INVALID, "%zu sources: 1 to %u", n,
                         GPUNVME_SAMPLER_MAX_SOURCE);
    for (size_t i = 0; i < n; i++) {
        if (!sources[i].nsamples || sources[i].nsamples > GPUNVME_SAMPLER_MAX)
            return base_fail(GPUNVME_ERR_INVALID, "source %zu has %llu samples: 1 to 2^48", i,
                             (unsigned long long)sources[i].nsamples);
        if (!isfinite(sources[i].weight) || sources[i].weight < 0)
            return base_fail(GPUNVME_ERR_INVALID, "the weight of source %zu is %g", i,
                             sources[i].weight);
        weighted = weighted || sources[i].weight > 0;
        *nsamples += sources[i].nsamples; /* at most 2^12 * 2^48 */
    }
    for (size_t i = 0; i < n && n > 1 && weighted; i++)
        if (!(sources[i].weight > 0))
            return base_fail(GPUNVME_ERR_INVALID, "the weight of source %zu is 0: leave it out", i);
    return GPUNVME_OK;
}

static gpunvme_err_t check_options(struct gpunvme_sampler_options *o, uint64_t nsamples)
{
    if (!o->world)
        o->world = 1;
    if (!o->block)
        o->block = DEFAULT_BLOCK;
    if (o->rank >= o->world)
        return base_fail(GPUNVME_ERR_INVALID, "rank %u of %u", o->rank, o->world);
    if (!o->batch || o->batch > GPUNVME_SAMPLER_MAX_BATCH)
        return base_fail(GPUNVME_ERR_INVALID, "a batch of %llu samples: 1 to 2^32",
                         (unsigned long long)o->batch);
    if (o->shuffle > GPUNVME_SHUFFLE_NONE || o->last > GPUNVME_LAST_PAD)
        return base_fail(GPUNVME_ERR_INVALID, "%s is %u", o->last > 2 ? "last" : "shuffle",
                         o->last > 2 ? o->last : o->shuffle);
    if (o->block > GPUNVME_SAMPLER_MAX || o->window > GPUNVME_SAMPLER_MAX)
        return base_fail(GPUNVME_ERR_INVALID, "block and window: at most 2^48 samples");
    if (!o->window)
        o->window = o->block * DEFAULT_BLOCKS;
    o->window += (o->block - o->window % o->block) % o->block;
    if (!o->epoch)
        o->epoch = nsamples;
    if (o->epoch > GPUNVME_SAMPLER_MAX)
        return base_fail(GPUNVME_ERR_INVALID, "an epoch of %llu samples: at most 2^48",
                         (unsigned long long)o->epoch);
    if (o->last == GPUNVME_LAST_DROP && o->epoch < o->batch)
        return base_fail(GPUNVME_ERR_INVALID,
                         "an epoch of %llu samples has no whole batch of %llu, and others are "
                         "dropped",
                         (unsigned long long)o->epoch, (unsigned long long)o->batch);
    return GPUNVME_OK;
}

static void set_domains(const struct gpunvme_sampler_options *o, struct source *source)
{
    const uint64_t n = source->n;

    permute_domain_set(&source->all, n);
    source->window_n = o->window < n ? o->window : n;
    source->nwindows = n / source->window_n;
    permute_domain_set(&source->window, source->window_n);
    if (n % source->window_n)
        permute_domain_set(&source->last, n % source->window_n);
    if (n / o->block)
        permute_domain_set(&source->blocks, n / o->block);
    source->rest = n % o->block;
}

static void set_shares(struct gpunvme_sampler *s, const struct gpunvme_sampler_source *sources)
{
    bool weighted = sources[0].weight > 0;
    double total = 0, sum = 0;

    for (size_t i = 0; i < s->nsources; i++)
        total += weighted ? sources[i].weight : (double)sources[i].nsamples;
    for (size_t i = 0; i + 1 < s->nsources; i++) {
        sum += weighted ? sources[i].weight : (double)sources[i].nsamples;
        s->sources[i].share = sum < total ? (uint64_t)(sum / total * 0x1p64) : UINT64_MAX;
    }
}

/* The smallest power of two in which each source has a position. */
static gpunvme_err_t set_period(struct gpunvme_sampler *s)
{
    uint64_t least = UINT64_MAX, before = 0;
    size_t which = 0;

    for (size_t i = 0; i < s->nsources; i++) {
        uint64_t end = i + 1 < s->nsources ? s->sources[i].share : UINT64_MAX;

        if (end - before < least) {
            least = end - before;
            which = i;
        }
        before = end;
    }
    while (s->nsources > 1 && ((unsigned __int128)least << s->period_log2) >> 64 == 0)
        if ((uint64_t)1 << ++s->period_log2 > GPUNVME_SAMPLER_MAX_PERIOD)
            return base_fail(GPUNVME_ERR_LIMIT,
                             "source %zu has less than one in %llu samples of the mixture", which,
                             (unsigned long long)GPUNVME_SAMPLER_MAX_PERIOD);
    permute_domain_set(&s->period, (uint64_t)1 << s->period_log2);
    return GPUNVME_OK;
}

static void set_fingerprint(struct gpunvme_sampler *s)
{
    const struct gpunvme_sampler_options *o = &s->options;
    const bool blocks = o->shuffle == GPUNVME_SHUFFLE_BLOCKS;
    const uint64_t facts[] = {ORDER_VERSION, o->fingerprint,        o->epoch,
                              o->shuffle,    blocks ? o->block : 0, blocks ? o->window : 0};
    uint64_t x = s->nsources;

    for (size_t i = 0; i < sizeof(facts) / sizeof(facts[0]); i++)
        x = permute_mix(x * STEP + facts[i]);
    for (size_t i = 0; i < s->nsources; i++) {
        x = permute_mix(x * STEP + s->sources[i].n);
        x = permute_mix(x * STEP + s->sources[i].share);
    }
    s->fingerprint = x;
}

gpunvme_err_t gpunvme_sampler_create(const struct gpunvme_sampler_source *sources, size_t n,
                                     const struct gpunvme_sampler_options *options,
                                     struct gpunvme_sampler **out)
{
    struct gpunvme_sampler_options filled;
    struct gpunvme_sampler *s;
    uint64_t nsamples;
    gpunvme_err_t err;

    if (!options || !out)
        return base_fail(GPUNVME_ERR_INVALID, "%s is NULL", out ? "options" : "out");
    *out = NULL;
    filled = *options;
    err = check_sources(sources, n, &nsamples);
    if (!err)
        err = check_options(&filled, nsamples);
    if (err)
        return err;
    s = calloc(1, sizeof(*s) + n * sizeof(s->sources[0]));
    if (!s)
        return base_fail(GPUNVME_ERR_NOMEM, "a sampler of %zu sources", n);
    s->options = filled;
    s->nsources = n;
    for (size_t i = 0; i < n; i++) {
        s->sources[i].n = sources[i].nsamples;
        set_domains(&filled, &s->sources[i]);
    }
    set_shares(s, sources);
    set_seed(s, filled.seed);
    set_fingerprint(s);
    err = set_period(s);
    if (err)
        free(s);
    else
        *out = s;
    return err;
}

void gpunvme_sampler_destroy(struct gpunvme_sampler *sampler)
{
    free(sampler);
}
