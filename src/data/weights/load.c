/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The life of a load: its transfers are submitted at once, and whoever waits for it takes what has
 * landed, computes checksums and does the slices that need staging.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "data/weights/load.h"
#include "gpunvme/memory.h"
#include "memory/cuda.h"

#define POLL_NS ((uint64_t)50000000) /* how soon a cancel by another thread is seen */
#define NPOLLED 64
#define NGIVEN  1024 /* parts at once; their checksums are one batch */

static uint64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Keeps the error of the first part, in the order of the caller's, with the thread's detail. */
static void note_failure(struct gpunvme_weights_load *load, size_t part, gpunvme_err_t err)
{
    const struct gpunvme_tensor *t = load->parts[part].tensor;
    char detail[256];

    if (load->failure.err && load->failed <= part)
        return;
    strncpy(detail, gpunvme_err_detail(), sizeof(detail) - 1);
    detail[sizeof(detail) - 1] = 0;
    load->failed = part;
    base_keep(&load->failure, base_fail(err, "tensor \"%s\": %.170s", SHOW(t->name), detail));
}

void load_arrived(struct gpunvme_weights_load *load, size_t part, uint64_t nbytes,
                  gpunvme_err_t err)
{
    struct load_item *item = &load->items[part];

    if (err)
        note_failure(load, part, err);
    if (err && !item->err)
        item->err = err;
    item->left -= nbytes;
    atomic_fetch_add_explicit(&load->done, err ? 0 : nbytes, memory_order_relaxed);
    if (!item->left)
        load->landed[load->nlanded++] = part;
}

/* ---- Ends of transfers -------------------------------------------------------------------------
 */

/* Gives each segment of a transfer its share of the result. */
static void share_out(struct gpunvme_weights_load *load, const struct gpunvme_io *io,
                      const struct load_transfer *transfer, gpunvme_err_t err)
{
    const struct load_segment *s = &load->segments[transfer->segment];
    uint64_t begin = io->offset, end = begin + transfer->nbytes, valid = begin + io->done;

    for (uint64_t at = begin; at < end; s++) {
        uint64_t stop = s->offset + s->nbytes < end ? s->offset + s->nbytes : end;

        load_arrived(load, s->part, stop - at, stop <= valid ? GPUNVME_OK : err);
        at = stop;
    }
}

static void take_end(struct gpunvme_weights_load *load, struct gpunvme_io *io)
{
    const struct load_transfer *transfer;
    gpunvme_err_t err = io->err;

    if (io == load->gate) {
        load_staging_open(load);
        return;
    }
    if (load_staging_ended(load, io))
        return;
    transfer = &load->transfers[io - load->ios];
    if (err) {
        char text[256];

        gpunvme_err_set(err, "%s", gpunvme_io_detail(io, text, sizeof(text)));
    } else if (io->done < transfer->nbytes) {
        err = base_fail(GPUNVME_ERR_RANGE, "the file has become shorter");
    }
    if (transfer->segment == SIZE_MAX)
        load_arrived(load, transfer->part, transfer->nbytes, err);
    else
        share_out(load, io, transfer, err);
}

/* Whether something ended within `ns`. */
static bool poll_once(struct gpunvme_weights_load *load, uint64_t ns)
{
    struct gpunvme_io *ended[NPOLLED];
    size_t n = 0;

    (void)gpunvme_batch_poll(load->batch, 1, NPOLLED, ended, &n, ns);
    for (size_t i = 0; i < n; i++)
        take_end(load, ended[i]);
    return n;
}

/* Bytes that have moved, those of transfers in flight among them. */
static uint64_t count_moved(const struct gpunvme_weights_load *load)
{
    uint64_t moved = load_staging_moved(load);

    for (size_t i = 0; i < load->nios; i++)
        moved += gpunvme_io_moved(&load->ios[i]);
    return moved;
}

static void cancel_now(struct gpunvme_weights_load *load)
{
    if (load->canceled)
        return;
    load->canceled = true;
    base_fail(GPUNVME_ERR_CANCELED, "the load was canceled");
    load_staging_drop(load, GPUNVME_ERR_CANCELED);
    for (size_t i = 0; gpunvme_batch_cancel(load->batch) && i < load->nios + !!load->gate; i++)
        gpunvme_io_cancel(&load->ios[i]); /* no memory for all at once */
}

static gpunvme_err_t await(struct gpunvme_weights_load *load, uint64_t timeout_ns)
{
    uint64_t since = now_ns(), moved = 0, last = 0;

    while (load->nlanded == load->ngiven && load->ngiven < load->n) {
        uint64_t late;

        if (atomic_load(&load->cancel))
            cancel_now(load);
        if (poll_once(load, timeout_ns < POLL_NS ? timeout_ns : POLL_NS))
            since = now_ns();
        late = now_ns() - since;
        if (late < timeout_ns / 4 || load->nlanded > load->ngiven)
            continue;
        moved = count_moved(load);
        if (moved != last)
            since = now_ns();
        else if (late >= timeout_ns)
            return base_fail(GPUNVME_ERR_TIMEOUT, "nothing of the weights has moved for %llu ms",
                             (unsigned long long)(timeout_ns / 1000000));
        last = moved;
    }
    return GPUNVME_OK;
}

/* ---- Parts that have landed --------------------------------------------------------------------
 */

static void set_checksum(struct gpunvme_weights_part *part, uint64_t checksum)
{
    part->checksum = checksum;
    part->has_checksum = 1;
}

/* Of those in GPU memory, by one batch. */
static gpunvme_err_t sum_by_gpu(struct gpunvme_weights_part **parts, size_t n)
{
    struct mem_checksum_range *ranges = calloc(n, sizeof(*ranges));
    uint64_t *sums = calloc(n, sizeof(*sums)), nbytes;
    gpunvme_err_t err = GPUNVME_OK;

    if (!ranges || !sums)
        err = base_fail(GPUNVME_ERR_NOMEM, "%zu checksums", n);
    for (size_t i = 0; i < n && !err; i++) {
        err = gpunvme_weights_part_nbytes(parts[i], &nbytes);
        if (!err)
            ranges[i] = (struct mem_checksum_range){parts[i]->ptr, (size_t)nbytes};
    }
    if (!err)
        err = mem_cuda_checksums(ranges, n, sums);
    for (size_t i = 0; i < n && !err; i++)
        set_checksum(parts[i], sums[i]);
    free(ranges);
    free(sums);
    return err;
}

/* Of those that landed well. */
static void sum_some(struct gpunvme_weights_load *load, struct gpunvme_weights_part **parts,
                     size_t n)
{
    struct gpunvme_weights_part *by_gpu[NGIVEN];
    size_t nby_gpu = 0;
    uint64_t nbytes;
    gpunvme_err_t err;

    for (size_t i = 0; i < n; i++) {
        if (parts[i]->err)
            continue;
        if (parts[i]->mem == GPUNVME_MEM_GPU && !gpunvme_mem_gpu_is_host())
            by_gpu[nby_gpu++] = parts[i];
        else if (!gpunvme_weights_part_nbytes(parts[i], &nbytes)) /* the load has computed it */
            set_checksum(parts[i], gpunvme_mem_checksum_host(parts[i]->ptr, (size_t)nbytes));
    }
    err = nby_gpu ? sum_by_gpu(by_gpu, nby_gpu) : GPUNVME_OK;
    for (size_t i = 0; i < nby_gpu && err; i++) {
        by_gpu[i]->err = err;
        note_failure(load, (size_t)(by_gpu[i] - load->parts), err);
    }
}

/* Gives up to `room` of those that have landed. */
static size_t give(struct gpunvme_weights_load *load, struct gpunvme_weights_part **landed,
                   size_t room)
{
    size_t n = 0;

    if (room > NGIVEN)
        room = NGIVEN;
    for (; n < room && load->ngiven < load->nlanded; n++) {
        size_t i = load->landed[load->ngiven++];

        landed[n] = &load->parts[i];
        landed[n]->err = load->items[i].err;
    }
    if (load->options.checksum)
        sum_some(load, landed, n);
    return n;
}

gpunvme_err_t gpunvme_weights_load_next(struct gpunvme_weights_load *load,
                                        struct gpunvme_weights_part **landed, size_t room,
                                        size_t *n, uint64_t timeout_ns)
{
    gpunvme_err_t err;

    if (!load || !n || !landed || !room)
        return base_fail(GPUNVME_ERR_INVALID, "%s is NULL or 0",
                         !load     ? "load"
                         : !n      ? "n"
                         : !landed ? "landed"
                                   : "room");
    *n = 0;
    err = await(load, timeout_ns ? timeout_ns : load->options.timeout_ns);
    if (err)
        return err;
    *n = give(load, landed, room);
    return GPUNVME_OK;
}

void gpunvme_weights_load_cancel(struct gpunvme_weights_load *load)
{
    if (load)
        atomic_store(&load->cancel, true);
}

void gpunvme_weights_load_progress(const struct gpunvme_weights_load *load, uint64_t *done,
                                   uint64_t *total)
{
    if (done)
        *done = load ? atomic_load_explicit(&load->done, memory_order_relaxed) : 0;
    if (total)
        *total = load ? load->total : 0;
}

/* ---- Beginning and end -------------------------------------------------------------------------
 */

static gpunvme_err_t free_load(struct gpunvme_weights_load *load)
{
    gpunvme_err_t err = gpunvme_batch_destroy(load->batch);

    load_staging_free(load);
    free(load->items);
    free(load->segments);
    free(load->ios);
    free(load->transfers);
    free(load->vecs);
    free(load->offsets);
    free(load->landed);
    free(load);
    return err;
}

static gpunvme_err_t submit(struct gpunvme_weights_load *load)
{
    gpunvme_err_t err;

    if (load->options.order)
        return gpunvme_io_submit_ordered(load->ios, load->nios + (load->gate != NULL), load->batch,
                                         load->options.order);
    err = load->nios ? gpunvme_io_submit(load->ios, load->nios, load->batch) : GPUNVME_OK;
    if (err)
        return err;
    err = load_staging_begin(load);
    if (err) /* the load has begun: its parts tell */
        load_staging_drop(load, err);
    return GPUNVME_OK;
}

static gpunvme_err_t start(struct gpunvme_weights *weights, struct gpunvme_weights_part *parts,
                           size_t n, const struct gpunvme_weights_options *options, bool is_call,
                           struct gpunvme_weights_load **out)
{
    struct gpunvme_weights_load *load;
    struct gpunvme_store_info info;
    struct base_failure failure;
    gpunvme_err_t err;

    if (!weights || !out || (n && !parts))
        return base_fail(GPUNVME_ERR_INVALID, "%s is NULL",
                         !weights ? "weights"
                         : out    ? "parts"
                                  : "out");
    *out = NULL;
    load = calloc(1, sizeof(*load));
    if (!load)
        return base_fail(GPUNVME_ERR_NOMEM, "a load");
    load->weights = weights;
    load->parts = parts;
    load->n = n;
    load->is_call = is_call;
    if (options)
        load->options = *options;
    gpunvme_store_get_info(gpunvme_weights_store(weights, 0), &info);
    if (!load->options.timeout_ns)
        load->options.timeout_ns = info.timeout_ns;
    err = load_plan(load);
    if (!err)
        err = gpunvme_batch_create(&load->batch);
    if (!err)
        err = submit(load);
    load->options.order = NULL; /* the caller's again */
    if (!err) {
        *out = load;
        return GPUNVME_OK;
    }
    base_keep(&failure, err);
    (void)free_load(load);
    return base_restore(&failure);
}

gpunvme_err_t gpunvme_weights_load_start(struct gpunvme_weights *weights,
                                         struct gpunvme_weights_part *parts, size_t n,
                                         const struct gpunvme_weights_options *options,
                                         struct gpunvme_weights_load **out)
{
    return start(weights, parts, n, options, false, out);
}

/* Takes all that is left. TIMEOUT: it does not end. */
static gpunvme_err_t drain(struct gpunvme_weights_load *load)
{
    struct gpunvme_weights_part *landed[NGIVEN];
    gpunvme_err_t err = GPUNVME_OK;

    while (!err && load->ngiven < load->n) {
        err = await(load, load->options.timeout_ns);
        if (!err)
            (void)give(load, landed, NGIVEN);
    }
    return err;
}

/* A load that does not end belongs to its weights, which end it when they are closed. */
gpunvme_err_t gpunvme_weights_load_end(struct gpunvme_weights_load *load)
{
    struct base_failure failure;
    gpunvme_err_t err;

    if (!load)
        return GPUNVME_OK;
    err = drain(load);
    if (err && !load->canceled) {
        atomic_store(&load->cancel, true);
        err = drain(load);
    }
    if (err) {
        pthread_mutex_lock(&load->weights->lock);
        load->next = load->weights->orphans;
        load->weights->orphans = load;
        pthread_mutex_unlock(&load->weights->lock);
        return err;
    }
    failure = load->failure;
    err = free_load(load);
    return failure.err ? base_restore(&failure) : err;
}

gpunvme_err_t weights_end_orphans(struct gpunvme_weights *weights)
{
    gpunvme_err_t err = GPUNVME_OK;

    pthread_mutex_lock(&weights->lock);
    while (weights->orphans && !err) {
        struct gpunvme_weights_load *load = weights->orphans;

        err = drain(load);
        if (!err) {
            weights->orphans = load->next;
            (void)free_load(load);
        }
    }
    pthread_mutex_unlock(&weights->lock);
    return err;
}

static void tell(struct gpunvme_weights_load *load)
{
    uint64_t done, total;

    gpunvme_weights_load_progress(load, &done, &total);
    if (load->options.progress && !load->options.progress(load->options.user, done, total))
        gpunvme_weights_load_cancel(load);
}

gpunvme_err_t gpunvme_weights_load(struct gpunvme_weights *weights,
                                   struct gpunvme_weights_part *parts, size_t n,
                                   const struct gpunvme_weights_options *options)
{
    struct gpunvme_weights_part *landed[NGIVEN];
    struct gpunvme_weights_load *load;
    size_t nlanded = 0;
    gpunvme_err_t err = start(weights, parts, n, options, true, &load);

    if (err)
        return err;
    do {
        err = gpunvme_weights_load_next(load, landed, NGIVEN, &nlanded, 0);
        tell(load);
    } while (!err && nlanded);
    if (err)
        gpunvme_weights_load_cancel(load);
    return gpunvme_weights_load_end(load);
}
