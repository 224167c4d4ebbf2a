/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A loader: reads batches ahead in the sampler's order, gives them one by one, and takes them back.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "data/loader/batch.h"
#include "data/loader/permute.h"

#define DEPTH      8u
#define TIMEOUT_NS ((uint64_t)30000000000)
#define POLL_NS    ((uint64_t)50000000) /* between looks at whether anything moves */
#define LOOK_NS    ((uint64_t)100000)   /* … and at whether another buffer is free */

uint64_t loader_now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- Reading ahead -----------------------------------------------------------------------------
 */

/* Collects batches that transfers, or work of the caller's, have left; counts the others. */
static unsigned collect(struct gpunvme_loader *l)
{
    unsigned nleaving = 0;

    for (struct batch *b = l->batches; b; b = b->next) {
        if (b->state == BATCH_LEAVING && batch_has_left(b, 0))
            b->state = BATCH_FREE;
        nleaving += b->state == BATCH_LEAVING;
    }
    return nleaving;
}

/* One that is free, or a new one; NULL: there is no memory for it. */
static struct batch *find_batch(struct gpunvme_loader *l)
{
    struct batch *b = l->batches;

    while (b && b->state != BATCH_FREE)
        b = b->next;
    if (b)
        return b;
    b = calloc(1, sizeof(*b));
    if (!b)
        return NULL;
    b->next = l->batches;
    l->batches = b;
    return b;
}

static uint64_t ahead_nbytes(const struct gpunvme_loader *l)
{
    uint64_t nbytes = 0;

    for (unsigned i = 0; i < l->nsteps; i++) {
        const struct batch *b = l->steps[(l->first + i) % LOADER_STEPS].batch;

        nbytes += b ? b->out.nbytes : 0;
    }
    return nbytes;
}

/* A caller that is far ahead of its GPU gets no new buffers: it waits for one of those it has left.
 */
static bool has_room(const struct gpunvme_loader *l, unsigned nleaving)
{
    return l->nsteps < LOADER_STEPS && l->nahead < l->options.depth &&
           l->nahead + nleaving <= l->options.depth &&
           (!l->nahead || !l->options.depth_nbytes || ahead_nbytes(l) < l->options.depth_nbytes);
}

static gpunvme_err_t fill(struct gpunvme_loader *l)
{
    const unsigned nleaving = collect(l);

    while (has_room(l, nleaving)) {
        struct loader_step *step = &l->steps[(l->first + l->nsteps) % LOADER_STEPS];
        struct batch *b = find_batch(l);

        if (!b)
            return base_fail(GPUNVME_ERR_NOMEM, "a batch");
        step->batch = gpunvme_sampler_next(l->sampler, &b->slice) ? b : NULL;
        gpunvme_sampler_get_state(l->sampler, &step->after);
        l->nsteps++;
        if (!step->batch)
            continue;
        b->state = BATCH_AHEAD;
        batch_begin(l, b);
        l->nahead++;
    }
    return GPUNVME_OK;
}

/* What was read ahead is of no use. */
static void drop(struct gpunvme_loader *l)
{
    for (; l->nsteps; l->nsteps--) {
        struct batch *b = l->steps[l->first].batch;

        l->first = (l->first + 1) % LOADER_STEPS;
        if (!b)
            continue;
        if (b->polled)
            (void)gpunvme_batch_cancel(b->polled); /* NOMEM: it is read for nothing */
        b->nleft = 0;
        b->state = BATCH_LEAVING;
    }
    l->nahead = 0;
}

/* ---- Giving and taking back --------------------------------------------------------------------
 */

static gpunvme_err_t await(struct gpunvme_loader *l, struct batch *b, uint64_t timeout_ns)
{
    uint64_t begun, since,
        moved = 0; /* to find out takes long: not before something stands still */

    if (batch_poll(l, b, 0))
        return GPUNVME_OK;
    begun = since = loader_now_ns();
    l->stats.stalls++;
    while (!batch_poll(l, b, timeout_ns < POLL_NS ? timeout_ns : POLL_NS)) {
        const uint64_t now = loader_now_ns(), last = moved;

        moved = batch_moved(b);
        if (moved != last)
            since = now;
        if (now - since < timeout_ns)
            continue;
        l->stats.stall_ns += now - begun;
        return base_fail(GPUNVME_ERR_TIMEOUT, "nothing of batch %llu has moved for %llu ms",
                         (unsigned long long)b->slice.batch,
                         (unsigned long long)(timeout_ns / 1000000));
    }
    l->stats.stall_ns += loader_now_ns() - begun;
    return GPUNVME_OK;
}

/* Fills the queue, which is empty while all buffers are in use: waits for one of them. */
static gpunvme_err_t await_step(struct gpunvme_loader *l, uint64_t timeout_ns)
{
    gpunvme_err_t err = fill(l);
    const bool waited = !l->nsteps && !err;
    const uint64_t begun = waited ? loader_now_ns() : 0;

    while (!l->nsteps && !err) {
        struct batch *b = l->batches;

        if (loader_now_ns() - begun >= timeout_ns) {
            err = base_fail(GPUNVME_ERR_TIMEOUT,
                            "all buffers are in use by reads that were dropped, or by work that "
                            "batches were released behind, for %llu ms",
                            (unsigned long long)(timeout_ns / 1000000));
            break;
        }
        while (b && b->state != BATCH_LEAVING)
            b = b->next;
        if (b)
            (void)batch_has_left(b, timeout_ns < LOOK_NS ? timeout_ns : LOOK_NS);
        err = fill(l);
    }
    if (waited)
        l->stats.stall_ns += loader_now_ns() - begun;
    return l->nsteps ? GPUNVME_OK : err;
}

static void pop(struct gpunvme_loader *l)
{
    l->state = l->steps[l->first].after;
    l->first = (l->first + 1) % LOADER_STEPS;
    l->nsteps--;
}

static void give(struct gpunvme_loader *l, struct batch *b)
{
    b->state = BATCH_GIVEN;
    l->nahead--;
    l->stats.batches++;
    l->stats.samples += b->out.n;
    l->stats.nbytes += b->out.nbytes;
    l->stats.nskipped += b->out.nskipped;
    l->stats.nsubstituted += b->out.nsubstituted;
    b->out.stall_ns = l->stats.stall_ns - l->told_stall_ns;
    l->told_stall_ns = l->stats.stall_ns;
}

gpunvme_err_t gpunvme_loader_next(struct gpunvme_loader *l,
                                  const struct gpunvme_loader_batch **batch, uint64_t timeout_ns)
{
    struct batch *b;
    gpunvme_err_t err;

    if (!l || !batch)
        return base_fail(GPUNVME_ERR_INVALID, "%s is NULL", l ? "batch" : "loader");
    *batch = NULL;
    err = await_step(l, timeout_ns ? timeout_ns : l->options.timeout_ns);
    if (err)
        return err;
    b = l->steps[l->first].batch;
    if (!b) {
        pop(l);
        (void)fill(l); /* else the next call tells */
        return GPUNVME_OK;
    }
    err = await(l, b, timeout_ns ? timeout_ns : l->options.timeout_ns);
    if (err)
        return err;
    if (b->failure.err) {
        const struct base_failure failure = b->failure;

        batch_begin(l, b); /* for the next call */
        return base_restore(&failure);
    }
    pop(l);
    give(l, b);
    (void)fill(l);
    *batch = &b->out;
    return GPUNVME_OK;
}

gpunvme_err_t gpunvme_loader_release(struct gpunvme_loader *l,
                                     const struct gpunvme_loader_batch *batch,
                                     const struct gpunvme_order *after)
{
    struct batch *b = l ? l->batches : NULL;
    gpunvme_err_t err = GPUNVME_OK;

    while (b && (&b->out != batch || b->state != BATCH_GIVEN))
        b = b->next;
    if (!b)
        return base_fail(GPUNVME_ERR_INVALID, "this batch is not the caller's");
    if (after)
        err = batch_put_gate(l, b, after);
    if (err)
        return err;
    b->state = BATCH_LEAVING;
    return GPUNVME_OK;
}

gpunvme_err_t gpunvme_loader_set_depth(struct gpunvme_loader *l, uint32_t depth)
{
    if (!l || !depth || depth > GPUNVME_LOADER_MAX_DEPTH)
        return base_fail(GPUNVME_ERR_INVALID, "depth is %u: 1 to %u", depth,
                         GPUNVME_LOADER_MAX_DEPTH);
    l->options.depth = depth;
    return GPUNVME_OK;
}

void gpunvme_loader_prefetch(struct gpunvme_loader *l)
{
    if (!l)
        return;
    (void)fill(l); /* next tells what goes wrong */
    for (unsigned i = 0; i < l->nsteps; i++) {
        struct batch *b = l->steps[(l->first + i) % LOADER_STEPS].batch;

        if (b)
            (void)batch_poll(l, b, 0);
    }
}

/* ---- Where it is -------------------------------------------------------------------------------
 */

void gpunvme_loader_get_state(const struct gpunvme_loader *l, struct gpunvme_sampler_state *state)
{
    *state = l->state;
}

gpunvme_err_t gpunvme_loader_set_state(struct gpunvme_loader *l,
                                       const struct gpunvme_sampler_state *state)
{
    gpunvme_err_t err = l && state ? gpunvme_sampler_set_state(l->sampler, state)
                                   : base_fail(GPUNVME_ERR_INVALID, "loader or state is NULL");

    if (err)
        return err;
    drop(l);
    gpunvme_sampler_get_state(l->sampler, &l->state);
    (void)fill(l);
    return GPUNVME_OK;
}

gpunvme_err_t gpunvme_loader_set_epoch(struct gpunvme_loader *l, uint64_t epoch)
{
    gpunvme_err_t err = l ? gpunvme_sampler_set_epoch(l->sampler, epoch)
                          : base_fail(GPUNVME_ERR_INVALID, "loader is NULL");

    if (err)
        return err;
    drop(l);
    gpunvme_sampler_get_state(l->sampler, &l->state);
    (void)fill(l);
    return GPUNVME_OK;
}

void gpunvme_loader_get_stats(struct gpunvme_loader *l, struct gpunvme_loader_stats *stats)
{
    *stats = l->stats;
    stats->ahead = l->nahead;
    stats->ready = 0;
    for (unsigned i = 0; i < l->nsteps; i++) {
        struct batch *b = l->steps[(l->first + i) % LOADER_STEPS].batch;

        stats->ready += b && batch_poll(l, b, 0) && !b->failure.err;
    }
}

void gpunvme_loader_get_info(const struct gpunvme_loader *l, struct gpunvme_sampler_info *info)
{
    gpunvme_sampler_get_info(l->sampler, info);
}

/* ---- Beginning and end -------------------------------------------------------------------------
 */

static gpunvme_err_t check_options(const struct gpunvme_loader_options *o)
{
    const bool rows = o->layout == GPUNVME_LAYOUT_PADDED || o->layout == GPUNVME_LAYOUT_PACKED;

    if (o->layout > GPUNVME_LAYOUT_PACKED)
        return base_fail(GPUNVME_ERR_INVALID, "layout is %u", o->layout);
    if (o->on_error > GPUNVME_ON_ERROR_SUBSTITUTE)
        return base_fail(GPUNVME_ERR_INVALID, "on_error is %u", o->on_error);
    if (o->mem > GPUNVME_MEM_GPU)
        return base_fail(GPUNVME_ERR_INVALID, "mem is %u", o->mem);
    if (o->pad > 255)
        return base_fail(GPUNVME_ERR_INVALID, "pad is %u: a byte", o->pad);
    if (o->depth > GPUNVME_LOADER_MAX_DEPTH)
        return base_fail(GPUNVME_ERR_INVALID, "depth is %u: 1 to %u", o->depth,
                         GPUNVME_LOADER_MAX_DEPTH);
    if (rows && (!o->row_nbytes || o->row_nbytes > (uint64_t)1 << 48))
        return base_fail(GPUNVME_ERR_INVALID, "row_nbytes is %llu for rows of a given size",
                         (unsigned long long)o->row_nbytes);
    if (!rows && o->row_nbytes)
        return base_fail(GPUNVME_ERR_INVALID, "row_nbytes is of PADDED and PACKED alone");
    return GPUNVME_OK;
}

/* Takes the data sets, and their fingerprints. */
static gpunvme_err_t take_sources(struct gpunvme_loader *l,
                                  const struct gpunvme_loader_source *sources,
                                  struct gpunvme_sampler_source *out)
{
    uint64_t size = 0, print = 0;
    bool one_size = true;

    for (size_t i = 0; i < l->nsources; i++) {
        struct gpunvme_dataset_info info;

        if (!sources[i].dataset)
            return base_fail(GPUNVME_ERR_INVALID, "data set %zu is NULL", i);
        gpunvme_dataset_get_info(sources[i].dataset, &info);
        if (!info.nsamples)
            return base_fail(GPUNVME_ERR_INVALID, "data set %zu has no samples", i);
        if (l->options.verify && !info.has_checksums)
            return base_fail(GPUNVME_ERR_INVALID,
                             "verify: data set %zu has no checksums: open it by an index that was "
                             "written with checksums",
                             i);
        if (!i)
            size = info.sample_nbytes;
        one_size = one_size && size && info.sample_nbytes == size;
        print = permute_mix(print ^ info.fingerprint);
        l->datasets[i] = sources[i].dataset;
        l->nsamples[i] = info.nsamples;
        out[i] = (struct gpunvme_sampler_source){info.nsamples, sources[i].weight};
    }
    if (l->options.layout == GPUNVME_LAYOUT_ROWS && !one_size)
        return base_fail(GPUNVME_ERR_INVALID, "rows of samples whose sizes differ");
    if (l->options.layout == GPUNVME_LAYOUT_AUTO)
        l->options.layout = one_size ? GPUNVME_LAYOUT_ROWS : GPUNVME_LAYOUT_RAGGED;
    l->row_nbytes = l->options.layout == GPUNVME_LAYOUT_ROWS ? size : l->options.row_nbytes;
    l->options.order.fingerprint = print;
    l->engine = data_engine(l->datasets[0]);
    return GPUNVME_OK;
}

static void free_loader(struct gpunvme_loader *l)
{
    struct batch *next;

    for (struct batch *b = l->batches; b; b = next) {
        next = b->next;
        batch_free(l, b);
    }
    gpunvme_sampler_destroy(l->sampler);
    free(l->datasets);
    free(l->nsamples);
    free(l);
}

static gpunvme_err_t make(struct gpunvme_loader *l, const struct gpunvme_loader_source *sources,
                          size_t n)
{
    struct gpunvme_sampler_source *of = calloc(n, sizeof(*of));
    const struct gpunvme_sampler_options *o = &l->options.order;
    gpunvme_err_t err;

    l->nsources = n;
    l->datasets = calloc(n, sizeof(l->datasets[0]));
    l->nsamples = calloc(n, sizeof(l->nsamples[0]));
    err = of && l->datasets && l->nsamples ? take_sources(l, sources, of)
                                           : base_fail(GPUNVME_ERR_NOMEM, "a loader");
    if (!err)
        err = gpunvme_sampler_create(of, n, o, &l->sampler);
    free(of);
    if (!err && o->batch / (o->world ? o->world : 1) >= UINT32_MAX - 1)
        err = base_fail(GPUNVME_ERR_LIMIT, "a batch of 2^32 samples or more for one rank");
    return err;
}

gpunvme_err_t gpunvme_loader_open(const struct gpunvme_loader_source *sources, size_t n,
                                  const struct gpunvme_loader_options *options,
                                  struct gpunvme_loader **out)
{
    struct gpunvme_loader *l;
    gpunvme_err_t err;

    if (!sources || !n || !options || !out)
        return base_fail(GPUNVME_ERR_INVALID, "%s",
                         !options ? "options is NULL"
                         : !out   ? "out is NULL"
                                  : "there are no data sets");
    *out = NULL;
    err = check_options(options);
    if (err)
        return err;
    l = calloc(1, sizeof(*l));
    if (!l)
        return base_fail(GPUNVME_ERR_NOMEM, "a loader");
    l->options = *options;
    if (!l->options.depth)
        l->options.depth = DEPTH;
    if (!l->options.timeout_ns)
        l->options.timeout_ns = TIMEOUT_NS;
    err = make(l, sources, n);
    if (err) {
        struct base_failure failure;

        base_keep(&failure, err);
        free_loader(l);
        return base_restore(&failure);
    }
    gpunvme_sampler_get_state(l->sampler, &l->state);
    (void)fill(l);
    *out = l;
    return GPUNVME_OK;
}

gpunvme_err_t gpunvme_loader_close(struct gpunvme_loader *l)
{
    uint64_t end;

    if (!l)
        return GPUNVME_OK;
    drop(l);
    end = loader_now_ns() + l->options.timeout_ns;
    for (struct batch *b = l->batches; b; b = b->next) {
        const uint64_t now = loader_now_ns();

        if (b->state == BATCH_LEAVING && !batch_has_left(b, now < end ? end - now : 0))
            return base_fail(GPUNVME_ERR_TIMEOUT, "transfers do not end");
    }
    free_loader(l);
    return GPUNVME_OK;
}
