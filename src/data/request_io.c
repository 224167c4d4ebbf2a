/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Transfers by kind: makes as few transfers as possible for the parts, and sets their results.
 */
#include <stdlib.h>

#include "base/fail.h"
#include "data/request.h"
#include "storage/internal.h"

#define NOT_BEGUN GPUNVME_ERR_AGAIN /* err of a transfer that was never submitted */

/* ---- Preparing ---------------------------------------------------------------------------------
 */

static gpunvme_err_t resolve(struct request *request, struct gpunvme_kind_io *part)
{
    const struct request_kind *kind;
    uint64_t length = part->length, skipped;
    gpunvme_err_t err = request_find_kind(request, part->kind, &kind);

    if (err)
        return err;
    if (part->op != GPUNVME_OP_READ && part->op != GPUNVME_OP_WRITE)
        return base_fail(GPUNVME_ERR_INVALID, KIND ": op %d", part->kind, (int)part->op);
    if (!length && part->idx < kind->length)
        length = kind->length - part->idx;
    if (part->idx > kind->length || length > kind->length - part->idx)
        return base_fail(GPUNVME_ERR_RANGE, KIND " has %llu elements: not %llu from %llu on",
                         part->kind, (unsigned long long)kind->length, (unsigned long long)length,
                         (unsigned long long)part->idx);
    if (!part->ptr && !request->nbytes)
        return base_fail(GPUNVME_ERR_INVALID, KIND ": the request has no buffer: name a pointer",
                         part->kind);
    skipped = part->idx * kind->sector_size;
    part->priv.request = request;
    part->priv.offset = kind->begin + skipped;
    part->priv.nbytes = (size_t)(length * kind->sector_size);
    part->priv.ptr = part->ptr ? part->ptr : request->ptr + kind->place + skipped;
    return GPUNVME_OK;
}

/* Finds the bytes of each part and holds the request. On failure the first bad part has `err`. */
static gpunvme_err_t resolve_all(struct gpunvme_requests *table, gpunvme_request_t id,
                                 struct gpunvme_kind_io *parts, size_t n, struct request **request)
{
    gpunvme_err_t err;

    pthread_mutex_lock(&table->lock);
    err = request_find(table, id, request);
    for (size_t i = 0; i < n && !err; i++) {
        err = resolve(*request, &parts[i]);
        if (err)
            parts[i].err = err;
    }
    if (!err)
        atomic_fetch_add(&(*request)->prepared, n);
    pthread_mutex_unlock(&table->lock);
    return err;
}

static int by_offset(const void *a_, const void *b_)
{
    const struct gpunvme_kind_io *a = *(struct gpunvme_kind_io *const *)a_;
    const struct gpunvme_kind_io *b = *(struct gpunvme_kind_io *const *)b_;

    if (a->priv.offset != b->priv.offset)
        return a->priv.offset < b->priv.offset ? -1 : 1;
    return (uintptr_t)a->priv.ptr < (uintptr_t)b->priv.ptr
               ? -1
               : (uintptr_t)a->priv.ptr > (uintptr_t)b->priv.ptr;
}

/* Memory outside it may be several allocations, even if their addresses are adjacent. */
static bool is_in_buffer(const struct request *request, const void *ptr, size_t nbytes)
{
    uintptr_t begin = (uintptr_t)request->ptr, at = (uintptr_t)ptr;

    return at >= begin && at - begin <= request->nbytes && nbytes <= request->nbytes - (at - begin);
}

static bool continues(const struct gpunvme_io *io, const struct request *request,
                      const struct gpunvme_kind_io *part)
{
    return io->op == part->op && io->offset + io->nbytes == part->priv.offset &&
           (uint8_t *)io->ptr + io->nbytes == part->priv.ptr &&
           is_in_buffer(request, io->ptr, io->nbytes) &&
           is_in_buffer(request, part->priv.ptr, part->priv.nbytes);
}

/* Fills in transfers for parts that are in the order of the store; returns how many. */
static size_t merge(struct gpunvme_store *store, const struct request *request,
                    struct gpunvme_kind_io *const *parts, size_t n, struct gpunvme_io *ios)
{
    size_t nios = 0;

    for (size_t i = 0; i < n; i++) {
        struct gpunvme_kind_io *part = parts[i];

        if (!nios || !continues(&ios[nios - 1], request, part))
            ios[nios++] = (struct gpunvme_io){.store = store,
                                              .op = part->op,
                                              .mem = request->mem,
                                              .offset = part->priv.offset,
                                              .ptr = part->priv.ptr,
                                              .err = NOT_BEGUN};
        part->io = &ios[nios - 1];
        part->priv.at = part->io->nbytes;
        part->io->nbytes += part->priv.nbytes;
    }
    return nios;
}

gpunvme_err_t gpunvme_request_prepare(struct gpunvme_requests *table, gpunvme_request_t id,
                                      struct gpunvme_kind_io *parts, size_t n,
                                      struct gpunvme_io *ios, size_t *nios)
{
    struct gpunvme_kind_io **order;
    struct request *request;
    gpunvme_err_t err;

    if (!table || !nios || (n && (!parts || !ios)))
        return base_fail(GPUNVME_ERR_INVALID, "%s is NULL",
                         !table  ? "table"
                         : !nios ? "nios"
                         : parts ? "ios"
                                 : "parts");
    *nios = 0;
    for (size_t i = 0; i < n; i++)
        if (parts[i].io)
            return base_fail(GPUNVME_ERR_INVALID, "part %zu was prepared, and is not finished", i);
    order = calloc(n ? n : 1, sizeof(struct gpunvme_kind_io *));
    if (!order)
        return base_fail(GPUNVME_ERR_NOMEM, "%zu parts", n);
    for (size_t i = 0; i < n; i++) {
        order[i] = &parts[i];
        parts[i].err = NOT_BEGUN;
    }
    err = resolve_all(table, id, parts, n, &request);
    if (!err) {
        qsort(order, n, sizeof(struct gpunvme_kind_io *), by_offset);
        *nios = merge(table->store, request, order, n, ios);
    }
    free(order);
    return err;
}

/* ---- Finishing ---------------------------------------------------------------------------------
 */

/* The result of a part, from that of its transfer. */
static gpunvme_err_t outcome(const struct gpunvme_kind_io *part)
{
    const struct gpunvme_io *io = part->io;
    char text[160];

    if (io->err == NOT_BEGUN)
        return base_fail(NOT_BEGUN, KIND ": its transfer was not submitted", part->kind);
    if (part->priv.at + part->priv.nbytes <= io->done)
        return GPUNVME_OK;
    if (io->err)
        return base_fail(io->err, KIND ": %s", part->kind,
                         gpunvme_io_detail(io, text, sizeof(text)));
    return base_fail(GPUNVME_ERR_RANGE, KIND ": the store ends at byte %llu", part->kind,
                     (unsigned long long)(io->offset + io->done));
}

static gpunvme_err_t check_ended(const struct gpunvme_kind_io *parts, size_t n)
{
    if (n && !parts)
        return base_fail(GPUNVME_ERR_INVALID, "parts is NULL");
    for (size_t i = 0; i < n; i++) {
        if (!parts[i].io)
            return base_fail(GPUNVME_ERR_INVALID, "part %zu is not prepared, or is finished", i);
        if (store_io_is_in_flight(parts[i].io))
            return base_fail(GPUNVME_ERR_BUSY, "part %zu: its transfer is in flight", i);
    }
    return GPUNVME_OK;
}

gpunvme_err_t gpunvme_request_finish(struct gpunvme_kind_io *parts, size_t n)
{
    struct base_failure first = {.err = GPUNVME_OK};
    gpunvme_err_t err = check_ended(parts, n);

    if (err)
        return err;
    for (size_t i = 0; i < n; i++) {
        struct request *request = parts[i].priv.request;

        parts[i].err = outcome(&parts[i]);
        if (parts[i].err && !first.err)
            base_keep(&first, parts[i].err);
        parts[i].io = NULL;
        atomic_fetch_sub(&request->prepared, 1); /* the last touch: now it may be released */
    }
    return first.err ? base_restore(&first) : GPUNVME_OK;
}

/* ---- Blocking calls ----------------------------------------------------------------------------
 */

gpunvme_err_t gpunvme_request_run(struct gpunvme_requests *table, gpunvme_request_t id,
                                  struct gpunvme_kind_io *parts, size_t n)
{
    struct gpunvme_io *ios = calloc(n ? n : 1, sizeof(*ios));
    struct base_failure failure;
    gpunvme_err_t err;
    size_t nios;

    if (!ios)
        return base_fail(GPUNVME_ERR_NOMEM, "%zu parts", n);
    err = gpunvme_request_prepare(table, id, parts, n, ios, &nios);
    if (!err) {
        base_keep(&failure, gpunvme_io_run(ios, nios));
        err = gpunvme_request_finish(parts, n);
        if (err == NOT_BEGUN) { /* none was: the submission says why */
            for (size_t i = 0; i < n; i++)
                parts[i].err = failure.err;
            err = base_restore(&failure);
        }
    }
    free(ios);
    return err;
}

gpunvme_err_t gpunvme_request_read(struct gpunvme_requests *table, gpunvme_request_t id,
                                   const char *kind, uint64_t idx, uint64_t length, void *ptr)
{
    struct gpunvme_kind_io part = {
        .kind = kind, .op = GPUNVME_OP_READ, .idx = idx, .length = length, .ptr = ptr};

    return gpunvme_request_run(table, id, &part, 1);
}

gpunvme_err_t gpunvme_request_write(struct gpunvme_requests *table, gpunvme_request_t id,
                                    const char *kind, uint64_t idx, uint64_t length,
                                    const void *ptr)
{
    struct gpunvme_kind_io part = {.kind = kind,
                                   .op = GPUNVME_OP_WRITE,
                                   .idx = idx,
                                   .length = length,
                                   .ptr = (void *)(uintptr_t)ptr};

    return gpunvme_request_run(table, id, &part, 1);
}
