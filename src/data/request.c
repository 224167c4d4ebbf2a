/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Requests by kind: their table and their dictionaries. Both are libc's balanced trees.
 */
#include <search.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "data/request.h"

/* ---- Orders of the trees -----------------------------------------------------------------------
 */

static int by_id(const void *a_, const void *b_)
{
    const struct request *a = a_, *b = b_;

    return a->id < b->id ? -1 : a->id > b->id;
}

static int by_name(const void *a_, const void *b_)
{
    const struct request_kind *a = a_, *b = b_;

    return strcmp(a->name, b->name);
}

/* Overlapping kinds compare as equal. Those in a tree do not overlap, so this orders them. */
static int by_offset(const void *a_, const void *b_)
{
    const struct request_kind *a = a_, *b = b_;

    return a->end <= b->begin ? -1 : a->begin >= b->end;
}

/* The element of a tree that equals `key`; NULL: none. */
static void *find(const void *key, void *const *tree, int (*compare)(const void *, const void *))
{
    void *const *node = tfind(key, tree, compare);

    return node ? *node : NULL;
}

/* ---- The table ---------------------------------------------------------------------------------
 */

gpunvme_err_t gpunvme_requests_create(struct gpunvme_store *store, struct gpunvme_requests **out)
{
    struct gpunvme_requests *table;

    if (!store || !out)
        return base_fail(GPUNVME_ERR_INVALID, "%s is NULL", store ? "out" : "store");
    *out = NULL;
    table = calloc(1, sizeof(*table));
    if (!table)
        return base_fail(GPUNVME_ERR_NOMEM, "a table of requests");
    table->store = store;
    pthread_mutex_init(&table->lock, NULL);
    *out = table;
    return GPUNVME_OK;
}

static void keep(void *kind)
{
    (void)kind;
}

static void drop(struct gpunvme_requests *table, struct request *request)
{
    if (request->registered)
        gpunvme_unregister(gpunvme_store_engine(table->store), request->ptr);
    tdestroy(request->by_offset, keep);
    tdestroy(request->by_name, free);
    free(request);
}

/*
 * Under the lock. BUSY while parts are prepared, or while a transfer uses its memory, which would
 * then stay registered.
 */
static gpunvme_err_t release(struct gpunvme_requests *table, struct request *request)
{
    if (atomic_load(&request->prepared))
        return base_fail(GPUNVME_ERR_BUSY, "parts of request %llu are not finished",
                         (unsigned long long)request->id);
    if (request->registered &&
        gpunvme_unregister(gpunvme_store_engine(table->store), request->ptr) == GPUNVME_ERR_BUSY)
        return base_fail(GPUNVME_ERR_BUSY, "a transfer uses the memory of request %llu",
                         (unsigned long long)request->id);
    request->registered = false;
    tdelete(request, &table->by_id, by_id);
    drop(table, request);
    return GPUNVME_OK;
}

gpunvme_err_t gpunvme_requests_destroy(struct gpunvme_requests *table)
{
    gpunvme_err_t err = GPUNVME_OK;

    if (!table)
        return GPUNVME_OK;
    pthread_mutex_lock(&table->lock);
    while (table->by_id && !err)
        err = release(table, *(struct request **)table->by_id);
    pthread_mutex_unlock(&table->lock);
    if (err)
        return err;
    pthread_mutex_destroy(&table->lock);
    free(table);
    return GPUNVME_OK;
}

gpunvme_err_t request_find(struct gpunvme_requests *table, gpunvme_request_t id,
                           struct request **out)
{
    struct request key = {.id = id};

    *out = find(&key, &table->by_id, by_id);
    if (!*out)
        return base_fail(GPUNVME_ERR_NOT_FOUND, "request %llu: there is none, or it was released",
                         (unsigned long long)id);
    return GPUNVME_OK;
}

static gpunvme_err_t insert(struct gpunvme_requests *table, struct request *request)
{
    gpunvme_err_t err = GPUNVME_OK;

    pthread_mutex_lock(&table->lock);
    request->id = ++table->last_id; /* 2^64 of them do not run out */
    if (!tsearch(request, &table->by_id, by_id))
        err = base_fail(GPUNVME_ERR_NOMEM, "a request");
    pthread_mutex_unlock(&table->lock);
    return err;
}

gpunvme_err_t gpunvme_request_create(struct gpunvme_requests *table, void *ptr, size_t nbytes,
                                     enum gpunvme_mem mem, gpunvme_request_t *id)
{
    struct request *request = NULL;
    gpunvme_err_t err = GPUNVME_OK;

    if (!table || !id || (nbytes && !ptr))
        return base_fail(GPUNVME_ERR_INVALID, "%s is NULL", !table ? "table" : id ? "ptr" : "id");
    *id = 0;
    request = calloc(1, sizeof(*request));
    if (!request)
        return base_fail(GPUNVME_ERR_NOMEM, "a request");
    request->ptr = ptr;
    request->nbytes = nbytes;
    request->mem = mem;
    if (nbytes)
        err = gpunvme_register(gpunvme_store_engine(table->store), ptr, nbytes, mem);
    request->registered = nbytes && !err;
    if (!err)
        err = insert(table, request);
    if (err)
        drop(table, request);
    else
        *id = request->id;
    return err;
}

gpunvme_err_t gpunvme_request_release(struct gpunvme_requests *table, gpunvme_request_t id)
{
    struct request *request;
    gpunvme_err_t err;

    if (!table)
        return base_fail(GPUNVME_ERR_INVALID, "table is NULL");
    pthread_mutex_lock(&table->lock);
    err = request_find(table, id, &request);
    if (!err)
        err = release(table, request);
    pthread_mutex_unlock(&table->lock);
    return err;
}

/* ---- Kinds ------------------------------------------------------------------------------------
 */

gpunvme_err_t request_find_kind(const struct request *request, const char *name,
                                const struct request_kind **out)
{
    struct request_kind key = {.name = name};

    if (!name)
        return base_fail(GPUNVME_ERR_INVALID, "kind is NULL");
    *out = find(&key, &request->by_name, by_name);
    if (!*out)
        return base_fail(GPUNVME_ERR_NOT_FOUND, "request %llu has no " KIND,
                         (unsigned long long)request->id, name);
    return GPUNVME_OK;
}

static gpunvme_err_t describe(struct request_kind *kind)
{
    uint64_t nbytes;

    if (!kind->name || !kind->name[0])
        return base_fail(GPUNVME_ERR_INVALID, "kind is %s", kind->name ? "empty" : "NULL");
    if (!kind->length || !kind->sector_size)
        return base_fail(GPUNVME_ERR_INVALID, KIND ": %s is 0", kind->name,
                         kind->length ? "sector_size" : "length");
    if (__builtin_mul_overflow(kind->start_lba, kind->sector_size, &kind->begin) ||
        __builtin_mul_overflow(kind->length, kind->sector_size, &nbytes) ||
        __builtin_add_overflow(kind->begin, nbytes, &kind->end))
        return base_fail(GPUNVME_ERR_RANGE, KIND " ends beyond 2^64 bytes", kind->name);
    return GPUNVME_OK;
}

static gpunvme_err_t check_store(struct gpunvme_store *store, const struct request_kind *kind)
{
    uint64_t nbytes;
    gpunvme_err_t err = gpunvme_store_size(store, &nbytes);

    if (!err && kind->end > nbytes)
        return base_fail(GPUNVME_ERR_RANGE, KIND " ends at byte %llu, the store at %llu",
                         kind->name, (unsigned long long)kind->end, (unsigned long long)nbytes);
    return err;
}

/* Under the lock. */
static gpunvme_err_t check_others(const struct request *request, const struct request_kind *kind)
{
    const struct request_kind *other = find(kind, &request->by_offset, by_offset);
    uint64_t nbytes = kind->end - kind->begin;

    if (find(kind, &request->by_name, by_name))
        return base_fail(GPUNVME_ERR_INVALID, "there is a " KIND " already", kind->name);
    if (other)
        return base_fail(GPUNVME_ERR_INVALID, KIND " overlaps " KIND, kind->name, other->name);
    if (request->nbytes && nbytes > request->nbytes - request->used)
        return base_fail(GPUNVME_ERR_LIMIT,
                         KIND " has %llu bytes, and the buffer room for %zu more", kind->name,
                         (unsigned long long)nbytes, request->nbytes - request->used);
    return GPUNVME_OK;
}

/* Under the lock. */
static gpunvme_err_t insert_kind(struct request *request, const struct request_kind *kind)
{
    size_t name_nbytes = strlen(kind->name) + 1;
    struct request_kind *own = malloc(sizeof(*own) + name_nbytes);

    if (own) {
        *own = *kind;
        own->name = memcpy(own + 1, kind->name, name_nbytes);
        own->place = request->used;
    }
    if (!own || !tsearch(own, &request->by_name, by_name)) {
        free(own);
        return base_fail(GPUNVME_ERR_NOMEM, KIND, kind->name);
    }
    if (!tsearch(own, &request->by_offset, by_offset)) {
        tdelete(own, &request->by_name, by_name);
        free(own);
        return base_fail(GPUNVME_ERR_NOMEM, KIND, kind->name);
    }
    if (request->nbytes)
        request->used += (size_t)(kind->end - kind->begin);
    return GPUNVME_OK;
}

gpunvme_err_t gpunvme_request_add_kind(struct gpunvme_requests *table, gpunvme_request_t id,
                                       const char *name, uint64_t start_lba, uint64_t length,
                                       uint32_t sector_size)
{
    struct request_kind kind = {
        .name = name, .start_lba = start_lba, .length = length, .sector_size = sector_size};
    struct request *request;
    gpunvme_err_t err;

    if (!table)
        return base_fail(GPUNVME_ERR_INVALID, "table is NULL");
    err = describe(&kind);
    if (!err)
        err = check_store(table->store, &kind);
    if (err)
        return err;
    pthread_mutex_lock(&table->lock);
    err = request_find(table, id, &request);
    if (!err)
        err = check_others(request, &kind);
    if (!err)
        err = insert_kind(request, &kind);
    pthread_mutex_unlock(&table->lock);
    return err;
}

gpunvme_err_t gpunvme_request_kind(struct gpunvme_requests *table, gpunvme_request_t id,
                                   const char *name, struct gpunvme_kind *out)
{
    const struct request_kind *kind;
    struct request *request;
    gpunvme_err_t err;

    if (!table || !out)
        return base_fail(GPUNVME_ERR_INVALID, "%s is NULL", table ? "out" : "table");
    pthread_mutex_lock(&table->lock);
    err = request_find(table, id, &request);
    if (!err)
        err = request_find_kind(request, name, &kind);
    if (!err)
        *out = (struct gpunvme_kind){
            .start_lba = kind->start_lba,
            .length = kind->length,
            .sector_size = kind->sector_size,
            .place = request->nbytes ? request->ptr + kind->place : NULL,
        };
    pthread_mutex_unlock(&table->lock);
    return err;
}
