/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Reading by kind: ranges of kinds become transfers, as few as possible.
 */
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "data/request.h"

#define NOT_BEGUN GPUNVME_ERR_AGAIN /* err of a transfer that was never submitted */

/* One read, resolved. */
struct range {
    size_t index; /* of the caller's read */
    uint64_t offset;
    uint8_t *ptr;
    size_t nbytes;
    bool placed; /* in the request's buffer; other pointers may be of several allocations */
    size_t io;   /* the transfer that it is part of, and where in it */
    size_t at;
};

static gpunvme_err_t resolve(const struct request *request, const struct gpunvme_kind_read *read,
                             struct range *range)
{
    struct request_kind kind = {.length = 0};
    uint64_t length = read->length, skipped;
    gpunvme_err_t err = request_find_kind(request, read->kind, &kind);

    if (err)
        return err;
    if (!length && read->idx < kind.length)
        length = kind.length - read->idx;
    if (read->idx > kind.length || length > kind.length - read->idx)
        return base_fail(GPUNVME_ERR_RANGE, "kind \"%s\" has %llu elements: not %llu from %llu on",
                         kind.name, (unsigned long long)kind.length, (unsigned long long)length,
                         (unsigned long long)read->idx);
    if (!read->dst && !request->nbytes)
        return base_fail(GPUNVME_ERR_INVALID,
                         "kind \"%s\": the request has no buffer: name a pointer", kind.name);
    skipped = read->idx * kind.sector_size;
    range->offset = kind.begin + skipped;
    range->nbytes = (size_t)(length * kind.sector_size);
    range->placed = !read->dst;
    range->ptr = read->dst ? read->dst : request->ptr + kind.place + skipped;
    return GPUNVME_OK;
}

static int by_offset(const void *a_, const void *b_)
{
    const struct range *a = a_, *b = b_;

    if (a->offset != b->offset)
        return a->offset < b->offset ? -1 : 1;
    return (uintptr_t)a->ptr < (uintptr_t)b->ptr ? -1 : (uintptr_t)a->ptr > (uintptr_t)b->ptr;
}

/* Makes transfers of ranges in the order of the store; how many. */
static size_t merge(const struct gpunvme_requests *table, const struct request *request,
                    struct range *ranges, size_t n, struct gpunvme_io *ios)
{
    size_t nios = 0;

    for (size_t i = 0; i < n; i++) {
        struct range *range = &ranges[i];
        struct gpunvme_io *last = nios ? &ios[nios - 1] : NULL;

        if (!last || !range->placed || !range[-1].placed ||
            last->offset + last->nbytes != range->offset ||
            (uint8_t *)last->ptr + last->nbytes != range->ptr) {
            last = &ios[nios++];
            *last = (struct gpunvme_io){.store = table->store,
                                        .op = GPUNVME_OP_READ,
                                        .mem = request->mem,
                                        .offset = range->offset,
                                        .ptr = range->ptr,
                                        .err = NOT_BEGUN};
        }
        range->io = nios - 1;
        range->at = last->nbytes;
        last->nbytes += range->nbytes;
    }
    return nios;
}

/* What a transfer's end means for a range that is part of it. */
static gpunvme_err_t outcome(const struct range *range, const struct gpunvme_io *io)
{
    if (range->at + range->nbytes <= io->done)
        return GPUNVME_OK;
    if (io->err)
        return io->err;
    return base_fail(GPUNVME_ERR_RANGE, "the store ends at byte %llu",
                     (unsigned long long)(io->offset + io->done));
}

/* The bytes of all reads; the first that is wrong is told so, and none is good then. */
static gpunvme_err_t resolve_all(struct gpunvme_requests *table, const struct request *request,
                                 struct gpunvme_kind_read *reads, size_t n, struct range *ranges)
{
    gpunvme_err_t err = GPUNVME_OK;

    pthread_mutex_lock(&table->lock);
    for (size_t i = 0; i < n && !err; i++) {
        ranges[i].index = i;
        err = reads[i].err = resolve(request, &reads[i], &ranges[i]);
    }
    pthread_mutex_unlock(&table->lock);
    for (size_t i = 0; i < n; i++)
        if (err && !reads[i].err)
            reads[i].err = NOT_BEGUN;
    return err;
}

/* What came of each read; the first error of them. `err` is the transfers', with its detail. */
static gpunvme_err_t tell_each(struct gpunvme_kind_read *reads, const struct range *ranges,
                               const struct gpunvme_io *ios, size_t n, gpunvme_err_t err)
{
    struct base_failure failure;

    base_keep(&failure, err);
    for (size_t i = 0; i < n; i++) {
        const struct gpunvme_io *io = &ios[ranges[i].io];

        reads[ranges[i].index].err = io->err == NOT_BEGUN ? err : outcome(&ranges[i], io);
    }
    for (size_t i = 0; i < n; i++)
        if (reads[i].err)
            return reads[i].err == err ? base_restore(&failure) : reads[i].err;
    return err ? base_restore(&failure) : GPUNVME_OK;
}

static gpunvme_err_t read_all(struct gpunvme_requests *table, const struct request *request,
                              struct gpunvme_kind_read *reads, size_t n)
{
    struct range *ranges = calloc(n, sizeof(*ranges));
    struct gpunvme_io *ios = calloc(n, sizeof(*ios));
    gpunvme_err_t err = ranges && ios ? resolve_all(table, request, reads, n, ranges)
                                      : base_fail(GPUNVME_ERR_NOMEM, "%zu reads", n);

    if (!err) {
        qsort(ranges, n, sizeof(*ranges), by_offset);
        err = gpunvme_io_run(ios, merge(table, request, ranges, n, ios));
        err = tell_each(reads, ranges, ios, n, err);
    }
    free(ranges);
    free(ios);
    return err;
}

gpunvme_err_t gpunvme_request_read_kinds(struct gpunvme_requests *table, gpunvme_request_t id,
                                         struct gpunvme_kind_read *reads, size_t n)
{
    struct request *request = NULL;
    gpunvme_err_t err;

    if (n && !reads)
        return base_fail(GPUNVME_ERR_INVALID, "reads is NULL");
    err = request_hold(table, id, &request);
    if (err)
        return err;
    for (size_t i = 0; i < n; i++)
        reads[i].err = NOT_BEGUN;
    if (n)
        err = read_all(table, request, reads, n);
    request_let_go(table, request);
    return err;
}

gpunvme_err_t gpunvme_request_read(struct gpunvme_requests *table, gpunvme_request_t id,
                                   const char *kind, uint64_t idx, uint64_t length, void *dst)
{
    struct gpunvme_kind_read read = {.kind = kind, .idx = idx, .length = length, .dst = dst};

    return gpunvme_request_read_kinds(table, id, &read, 1);
}
