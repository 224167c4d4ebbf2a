/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Where samples are: runs of one size by formula, others as pairs of 8 bytes. Every sample is
 * checked here to lie within its file, whatever the parser did.
 */
#include <stdlib.h>
#include <string.h>

#include "data/loader/dataset.h"
#include "gpunvme/sampler.h"

gpunvme_err_t data_read(const struct data_reader *r, uint64_t offset, void *to, size_t n,
                        const char *what)
{
    if (offset > r->nbytes || n > r->nbytes - offset)
        return DATA_BAD(r, offset, "%s of %zu bytes ends behind the file, which has %llu", what, n,
                        (unsigned long long)r->nbytes);
    return n ? r->read(r, offset, to, n) : GPUNVME_OK;
}

/* Room for one more element of `nbytes`. */
static gpunvme_err_t grow(void **list, size_t n, size_t *room, size_t nbytes)
{
    size_t more = *room ? *room + *room / 2 : 16;
    void *grown;

    if (n < *room)
        return GPUNVME_OK;
    grown = reallocarray(*list, more, nbytes);
    if (!grown)
        return base_fail(GPUNVME_ERR_NOMEM, "an index of %zu samples", n);
    *list = grown;
    *room = more;
    return GPUNVME_OK;
}

static gpunvme_err_t check(const struct data_table *t, const struct data_reader *r, uint64_t base,
                           uint64_t stride, uint64_t nbytes, uint64_t count)
{
    uint64_t end;

    if (__builtin_mul_overflow(stride, count - 1, &end) ||
        __builtin_add_overflow(end, base, &end) || __builtin_add_overflow(end, nbytes, &end) ||
        end > r->nbytes)
        return DATA_BAD(
            r, base, "%llu samples of %llu bytes do not end within the file, which has %llu",
            (unsigned long long)count, (unsigned long long)nbytes, (unsigned long long)r->nbytes);
    if (count > GPUNVME_SAMPLER_MAX - t->n)
        return base_fail(GPUNVME_ERR_LIMIT, "%.80s: more than 2^48 samples", r->name);
    return GPUNVME_OK;
}

static void count_in(struct data_table *t, uint64_t nbytes, uint64_t count)
{
    uint64_t all;

    if (!t->n || nbytes < t->min_nbytes)
        t->min_nbytes = nbytes;
    if (nbytes > t->max_nbytes)
        t->max_nbytes = nbytes;
    t->n += count;
    if (__builtin_mul_overflow(nbytes, count, &all) ||
        __builtin_add_overflow(t->nbytes, all, &t->nbytes))
        t->nbytes = UINT64_MAX; /* windows that overlap much */
}

static gpunvme_err_t push(struct data_table *t, const struct data_run *run)
{
    void *runs = t->runs;
    gpunvme_err_t err = grow(&runs, t->nruns, &t->runs_room, sizeof(t->runs[0]));

    t->runs = runs;
    if (!err)
        t->runs[t->nruns++] = *run;
    return err;
}

gpunvme_err_t data_table_add_run(struct data_table *t, const struct data_reader *r, uint64_t base,
                                 uint64_t stride, uint64_t nbytes, uint64_t count)
{
    gpunvme_err_t err;

    if (!count)
        return GPUNVME_OK;
    if (!stride)
        return DATA_BAD(r, base, "samples with a stride of 0");
    err = check(t, r, base, stride, nbytes, count);
    if (!err)
        err = push(t, &(struct data_run){.first = t->n,
                                         .base = base,
                                         .stride = stride,
                                         .nbytes = nbytes,
                                         .count = count,
                                         .file = r->file});
    if (!err)
        count_in(t, nbytes, count);
    return err;
}

gpunvme_err_t data_table_add(struct data_table *t, const struct data_reader *r, uint64_t offset,
                             uint64_t nbytes)
{
    struct data_run *run = t->nruns ? &t->runs[t->nruns - 1] : NULL;
    gpunvme_err_t err = check(t, r, offset, 1, nbytes, 1);
    void *pairs = t->pairs;

    if (!err && nbytes > UINT32_MAX)
        err = base_fail(GPUNVME_ERR_LIMIT, "%.80s: byte %llu: a sample of 4 GiB or more", r->name,
                        (unsigned long long)offset);
    if (!err)
        err = grow(&pairs, t->npairs, &t->pairs_room, sizeof(t->pairs[0]));
    t->pairs = pairs;
    if (!err && (!run || run->stride || run->file != r->file || offset < run->base ||
                 offset - run->base > UINT32_MAX)) {
        err = push(t, &(struct data_run){
                          .first = t->n, .base = offset, .pairs = t->npairs, .file = r->file});
        run = err ? NULL : &t->runs[t->nruns - 1];
    }
    if (err)
        return err;
    t->pairs[t->npairs++] = (struct data_pair){(uint32_t)(offset - run->base), (uint32_t)nbytes};
    run->count++;
    count_in(t, nbytes, 1);
    return GPUNVME_OK;
}

struct gpunvme_data_range data_table_at(const struct data_table *t, uint64_t i)
{
    size_t lo = 0, hi = t->nruns - 1;
    size_t guess = t->n > hi ? (size_t)(i / (t->n / t->nruns)) : 0; /* runs of one length */
    const struct data_run *run;
    const struct data_pair *pair;

    if (guess <= hi && t->runs[guess].first <= i) {
        lo = guess;
        if (guess == hi || i < t->runs[guess + 1].first)
            hi = guess;
    }

    while (lo < hi) {
        size_t mid = (lo + hi + 1) / 2;

        if (t->runs[mid].first <= i)
            lo = mid;
        else
            hi = mid - 1;
    }
    run = &t->runs[lo];
    i -= run->first;
    if (run->stride)
        return (struct gpunvme_data_range){run->file, run->base + i * run->stride, run->nbytes};
    pair = &t->pairs[run->pairs + i];
    return (struct gpunvme_data_range){run->file, run->base + pair->at, pair->nbytes};
}

void data_table_free(struct data_table *t)
{
    free(t->runs);
    free(t->pairs);
    free(t->sums);
    memset(t, 0, sizeof(*t));
}
