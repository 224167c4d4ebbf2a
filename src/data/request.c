/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Requests by kind: the table of them, and their dictionaries.
 */
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "data/request.h"

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

static void drop(struct gpunvme_requests *table, struct request *request)
{
    if (request->registered)
        gpunvme_unregister(gpunvme_store_engine(table->store), request->ptr);
    free(request->kinds);
    free(request);
}

/*
 * Under the lock: BUSY while it is being read, or a transfer still has its memory, which would stay
 * registered behind its owner's back.
 */
static gpunvme_err_t let_memory_go(struct gpunvme_requests *table, struct request *request)
{
    if (request->readers)
        return base_fail(GPUNVME_ERR_BUSY, "request %llu is being read",
                         (unsigned long long)request->id);
    if (request->registered &&
        gpunvme_unregister(gpunvme_store_engine(table->store), request->ptr) == GPUNVME_ERR_BUSY)
        return base_fail(GPUNVME_ERR_BUSY, "a transfer uses the memory of request %llu",
                         (unsigned long long)request->id);
    request->registered = false;
    return GPUNVME_OK;
}

gpunvme_err_t gpunvme_requests_destroy(struct gpunvme_requests *table)
{
    gpunvme_err_t err = GPUNVME_OK;

    if (!table)
        return GPUNVME_OK;
    pthread_mutex_lock(&table->lock);
    while (table->n && !err) {
        err = let_memory_go(table, table->list[table->n - 1]);
        if (!err)
            drop(table, table->list[--table->n]);
    }
    pthread_mutex_unlock(&table->lock);
    if (err)
        return err;
    pthread_mutex_destroy(&table->lock);
    free(table->list);
    free(table);
    return GPUNVME_OK;
}

/* Under the lock. */
static size_t index_of(const struct gpunvme_requests *table, gpunvme_request_t id)
{
    size_t i = 0;

    while (i < table->n && table->list[i]->id != id)
        i++;
    return i;
}

static gpunvme_err_t unknown(gpunvme_request_t id)
{
    return base_fail(GPUNVME_ERR_NOT_FOUND, "request %llu: there is none, or it was released",
                     (unsigned long long)id);
}

gpunvme_err_t request_hold(struct gpunvme_requests *table, gpunvme_request_t id,
                           struct request **out)
{
    gpunvme_err_t err = GPUNVME_OK;
    size_t i;

    if (!table)
        return base_fail(GPUNVME_ERR_INVALID, "table is NULL");
    pthread_mutex_lock(&table->lock);
    i = index_of(table, id);
    if (i == table->n) {
        err = unknown(id);
    } else {
        *out = table->list[i];
        (*out)->readers++;
    }
    pthread_mutex_unlock(&table->lock);
    return err;
}

void request_let_go(struct gpunvme_requests *table, struct request *request)
{
    pthread_mutex_lock(&table->lock);
    request->readers--;
    pthread_mutex_unlock(&table->lock);
}

/* Under the lock. */
static gpunvme_err_t insert(struct gpunvme_requests *table, struct request *request)
{
    if (table->n == table->room) {
        size_t room = table->room ? 2 * table->room : 16;
        struct request **list = realloc(table->list, room * sizeof(struct request *));

        if (!list)
            return base_fail(GPUNVME_ERR_NOMEM, "%zu requests", room);
        table->list = list;
        table->room = room;
    }
    request->id = ++table->last_id; /* 2^64 of them do not run out */
    table->list[table->n++] = request;
    return GPUNVME_OK;
}

static gpunvme_err_t register_memory(struct gpunvme_requests *table, struct request *request)
{
    gpunvme_err_t err = GPUNVME_OK;

    if (request->nbytes)
        err = gpunvme_register(gpunvme_store_engine(table->store), request->ptr, request->nbytes,
                               request->mem);
    request->registered = request->nbytes && !err;
    return err;
}

gpunvme_err_t gpunvme_request_create(struct gpunvme_requests *table, void *ptr, size_t nbytes,
                                     enum gpunvme_mem mem, gpunvme_request_t *id)
{
    struct request *request = NULL;
    gpunvme_err_t err;

    if (!table || !id || (nbytes && !ptr))
        return base_fail(GPUNVME_ERR_INVALID, "%s is NULL", !table ? "table" : id ? "ptr" : "id");
    *id = 0;
    request = calloc(1, sizeof(*request));
    if (!request)
        return base_fail(GPUNVME_ERR_NOMEM, "a request");
    request->ptr = ptr;
    request->nbytes = nbytes;
    request->mem = mem;
    err = register_memory(table, request);
    if (!err) {
        pthread_mutex_lock(&table->lock);
        err = insert(table, request);
        *id = err ? 0 : request->id;
        pthread_mutex_unlock(&table->lock);
    }
    if (err)
        drop(table, request);
    return err;
}

gpunvme_err_t gpunvme_request_release(struct gpunvme_requests *table, gpunvme_request_t id)
{
    struct request *request = NULL;
    gpunvme_err_t err = GPUNVME_OK;
    size_t i;

    if (!table)
        return base_fail(GPUNVME_ERR_INVALID, "table is NULL");
    pthread_mutex_lock(&table->lock);
    i = index_of(table, id);
    if (i == table->n) {
        err = unknown(id);
    } else {
        err = let_memory_go(table, table->list[i]);
        if (!err) {
            request = table->list[i];
            table->list[i] = table->list[--table->n];
        }
    }
    pthread_mutex_unlock(&table->lock);
    if (request)
        drop(table, request);
    return err;
}

/* ---- Kinds ------------------------------------------------------------------------------------
 */

gpunvme_err_t request_find_kind(const struct request *request, const char *name,
                                struct request_kind *out)
{
    for (size_t i = 0; name && i < request->nkinds; i++) {
        if (!strcmp(request->kinds[i].name, name)) {
            *out = request->kinds[i];
            return GPUNVME_OK;
        }
    }
    return base_fail(GPUNVME_ERR_NOT_FOUND, "request %llu has no kind \"%s\"",
                     (unsigned long long)request->id, name ? name : "(null)");
}

static gpunvme_err_t describe(struct request_kind *kind, const char *name, uint64_t start_lba,
                              uint64_t length, uint32_t sector_size)
{
    uint64_t nbytes;

    if (!name || !name[0] || strlen(name) >= sizeof(kind->name))
        return base_fail(GPUNVME_ERR_INVALID, "a kind's name has 1 to %zu bytes",
                         sizeof(kind->name) - 1);
    if (!length || !sector_size)
        return base_fail(GPUNVME_ERR_INVALID, "kind \"%s\": %s is 0", name,
                         length ? "sector_size" : "length");
    strcpy(kind->name, name);
    kind->start_lba = start_lba;
    kind->length = length;
    kind->sector_size = sector_size;
    if (__builtin_mul_overflow(start_lba, sector_size, &kind->begin) ||
        __builtin_mul_overflow(length, sector_size, &nbytes) ||
        __builtin_add_overflow(kind->begin, nbytes, &kind->end))
        return base_fail(GPUNVME_ERR_RANGE, "kind \"%s\" ends behind 2^64 bytes", name);
    return GPUNVME_OK;
}

static gpunvme_err_t check_fits(struct gpunvme_requests *table, const struct request_kind *kind)
{
    uint64_t nbytes;
    gpunvme_err_t err = gpunvme_store_size(table->store, &nbytes);

    if (!err && kind->end > nbytes)
        return base_fail(GPUNVME_ERR_RANGE, "kind \"%s\" ends at byte %llu, the store at %llu",
                         kind->name, (unsigned long long)kind->end, (unsigned long long)nbytes);
    return err;
}

/* Under the lock. */
static gpunvme_err_t check_others(const struct request *request, const struct request_kind *kind)
{
    uint64_t nbytes = kind->end - kind->begin;

    for (size_t i = 0; i < request->nkinds; i++) {
        const struct request_kind *other = &request->kinds[i];

        if (!strcmp(other->name, kind->name))
            return base_fail(GPUNVME_ERR_INVALID, "there is a kind \"%s\" already", kind->name);
        if (kind->begin < other->end && other->begin < kind->end)
            return base_fail(GPUNVME_ERR_INVALID, "kind \"%s\" overlaps kind \"%s\"", kind->name,
                             other->name);
    }
    if (request->nbytes && nbytes > request->nbytes - request->used)
        return base_fail(GPUNVME_ERR_LIMIT,
                         "kind \"%s\" has %llu bytes, and the buffer room for %zu more", kind->name,
                         (unsigned long long)nbytes, request->nbytes - request->used);
    return GPUNVME_OK;
}

/* Under the lock. */
static gpunvme_err_t append(struct request *request, struct request_kind *kind)
{
    if (request->nkinds == request->room) {
        size_t room = request->room ? 2 * request->room : 8;
        struct request_kind *kinds = realloc(request->kinds, room * sizeof(*kinds));

        if (!kinds)
            return base_fail(GPUNVME_ERR_NOMEM, "%zu kinds", room);
        request->kinds = kinds;
        request->room = room;
    }
    kind->place = request->used;
    if (request->nbytes)
        request->used += (size_t)(kind->end - kind->begin);
    request->kinds[request->nkinds++] = *kind;
    return GPUNVME_OK;
}

gpunvme_err_t gpunvme_request_add_kind(struct gpunvme_requests *table, gpunvme_request_t id,
                                       const char *name, uint64_t start_lba, uint64_t length,
                                       uint32_t sector_size)
{
    struct request_kind kind = {.length = 0};
    struct request *request = NULL;
    gpunvme_err_t err = request_hold(table, id, &request);

    if (err)
        return err;
    err = describe(&kind, name, start_lba, length, sector_size);
    if (!err)
        err = check_fits(table, &kind);
    pthread_mutex_lock(&table->lock);
    if (!err)
        err = check_others(request, &kind);
    if (!err)
        err = append(request, &kind);
    request->readers--;
    pthread_mutex_unlock(&table->lock);
    return err;
}

gpunvme_err_t gpunvme_request_kind(struct gpunvme_requests *table, gpunvme_request_t id,
                                   const char *name, struct gpunvme_kind *out)
{
    struct request_kind kind = {.length = 0};
    struct request *request = NULL;
    gpunvme_err_t err =
        out ? request_hold(table, id, &request) : base_fail(GPUNVME_ERR_INVALID, "out is NULL");

    if (err)
        return err;
    pthread_mutex_lock(&table->lock);
    err = request_find_kind(request, name, &kind);
    if (!err)
        *out = (struct gpunvme_kind){
            .start_lba = kind.start_lba,
            .length = kind.length,
            .sector_size = kind.sector_size,
            .place = request->nbytes ? request->ptr + kind.place : NULL,
        };
    request->readers--; /* the last touch: now it may be released */
    pthread_mutex_unlock(&table->lock);
    return err;
}
