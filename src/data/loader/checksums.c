/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Checksums of samples: computed for an index, and compared with an index's in a batch that has
 * been read. In GPU memory a kernel computes those of a whole batch.
 */
#include <stdio.h>
#include <stdlib.h>

#include "data/loader/batch.h"
#include "memory/cuda.h"

#define MOST_SAMPLES 1024u
#define MOST_NBYTES  ((uint64_t)16 << 20) /* of a batch, but one sample at least */

/* ---- Of all samples ----------------------------------------------------------------------------
 */

static gpunvme_err_t sum_batches(struct gpunvme_loader *l, uint64_t total, uint64_t *sums,
                                 bool (*progress)(void *, uint64_t, uint64_t), void *user)
{
    const struct gpunvme_loader_batch *batch = NULL;
    uint64_t done = 0;
    gpunvme_err_t err;

    while (!(err = gpunvme_loader_next(l, &batch, 0)) && batch) {
        for (uint64_t i = 0; i < batch->n; i++)
            sums[batch->samples[i].index] = gpunvme_mem_checksum_host(
                (const uint8_t *)batch->ptr + batch->offsets[i], (size_t)batch->lengths[i]);
        done += batch->nbytes;
        err = gpunvme_loader_release(l, batch, NULL);
        if (!err && progress && !progress(user, done, total))
            err = base_fail(GPUNVME_ERR_CANCELED, "checksums of samples");
        if (err)
            break;
    }
    return err;
}

gpunvme_err_t data_sum_samples(const struct gpunvme_dataset *d, uint64_t *sums,
                               bool (*progress)(void *user, uint64_t done, uint64_t total),
                               void *user)
{
    /* A loader changes nothing of it. */
    const struct gpunvme_loader_source source = {.dataset = (struct gpunvme_dataset *)d};
    struct gpunvme_loader_options options = {.order = {.shuffle = GPUNVME_SHUFFLE_NONE}};
    struct gpunvme_dataset_info info;
    struct base_failure failure;
    struct gpunvme_loader *l;
    gpunvme_err_t err;

    gpunvme_dataset_get_info(d, &info);
    if (!info.nsamples)
        return GPUNVME_OK;
    options.order.batch = info.max_nbytes ? MOST_NBYTES / info.max_nbytes : MOST_SAMPLES;
    if (options.order.batch > MOST_SAMPLES)
        options.order.batch = MOST_SAMPLES;
    if (!options.order.batch)
        options.order.batch = 1;
    err = gpunvme_loader_open(&source, 1, &options, &l);
    if (err)
        return err;
    base_keep(&failure, sum_batches(l, info.nbytes, sums, progress, user));
    err = gpunvme_loader_close(l);
    return failure.err ? base_restore(&failure) : err;
}

/* ---- Of a batch --------------------------------------------------------------------------------
 */

static gpunvme_err_t sum_by_gpu(const struct batch *b, uint64_t *sums)
{
    struct mem_checksum_range *ranges = calloc((size_t)b->out.n + 1, sizeof(*ranges));
    gpunvme_err_t err;

    if (!ranges)
        return base_fail(GPUNVME_ERR_NOMEM, "checksums of a batch");
    for (uint64_t i = 0; i < b->out.n; i++)
        ranges[i] = (struct mem_checksum_range){(const uint8_t *)b->out.ptr + b->offsets[i],
                                                (size_t)b->lengths[i]};
    err = mem_cuda_checksums(ranges, (size_t)b->out.n, sums);
    free(ranges);
    return err;
}

static gpunvme_err_t sum_batch(const struct gpunvme_loader *l, const struct batch *b,
                               uint64_t *sums)
{
    if (l->options.mem == GPUNVME_MEM_GPU && !gpunvme_mem_gpu_is_host())
        return sum_by_gpu(b, sums);
    for (uint64_t i = 0; i < b->out.n; i++)
        sums[i] = gpunvme_mem_checksum_host((const uint8_t *)b->out.ptr + b->offsets[i],
                                            (size_t)b->lengths[i]);
    return GPUNVME_OK;
}

static void compare(const struct gpunvme_loader *l, struct batch *b, struct batch_item *item,
                    uint64_t sum)
{
    const struct gpunvme_sample *s = &b->samples[item->row];
    const struct gpunvme_dataset *d = l->datasets[s->source];
    struct gpunvme_data_range where;
    uint64_t expected = 0;
    char text[80];

    (void)gpunvme_dataset_checksum(d, s->index, &expected); /* which it has */
    (void)gpunvme_dataset_at(d, s->index, &where);
    if (sum == expected || where.nbytes > item->nbytes) /* the row of PADDED has not all of it */
        return;
    snprintf(text, sizeof(text), "its checksum is %016llx, the index has %016llx",
             (unsigned long long)sum, (unsigned long long)expected);
    item->err = GPUNVME_ERR_VERIFY;
    batch_name_failure(l, b, item, text, GPUNVME_ERR_VERIFY);
}

gpunvme_err_t batch_verify(const struct gpunvme_loader *l, struct batch *b)
{
    uint64_t *sums = calloc((size_t)b->out.n + 1, sizeof(*sums));
    gpunvme_err_t err =
        sums ? sum_batch(l, b, sums) : base_fail(GPUNVME_ERR_NOMEM, "checksums of a batch");

    for (uint64_t i = 0; i < b->out.n && !err; i++)
        compare(l, b, &b->items[i], sums[b->items[i].row]);
    free(sums);
    return err;
}
