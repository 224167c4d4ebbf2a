/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Requests by kind: a buffer, and a dictionary that says where on a store which kind of data lies.
 *
 *     gpunvme_requests_create(store, &table);
 *     gpunvme_request_create(table, gpu_ptr, nbytes, GPUNVME_MEM_GPU, &id);
 *     gpunvme_request_add_kind(table, id, "users", 0, 1000, 4096);
 *     gpunvme_request_add_kind(table, id, "items", 1000, 500, 4096);
 *     gpunvme_request_read(table, id, "items", 7, 3, gpu_ptr);       // items 7, 8 and 9
 *     gpunvme_request_read_kinds(table, id, reads, 2);               // several in one go
 *     gpunvme_request_release(table, id);
 *
 * A kind is `length` elements of `sector_size` bytes each, one after the other from sector
 * `start_lba` (in such sectors) of the store on. Kinds of one request do not overlap on the store,
 * and have places in its buffer one after the other, in the order in which they were added.
 *
 * Ids are never used again: one that was released stays unknown, whatever comes after it.
 *
 * Threads: all functions may be called from several threads at once, except destroy.
 */
#ifndef GPUNVME_REQUEST_H
#define GPUNVME_REQUEST_H

#include "gpunvme/storage.h"

#ifdef __cplusplus
extern "C" {
#endif

#define GPUNVME_KIND_NAME_ROOM 64 /* bytes of a kind's name, with the 0 */

/* 0 is no request. */
typedef uint64_t gpunvme_request_t;

struct gpunvme_requests;

/* A table of requests on a store, which stays the caller's and open as long as the table is. */
gpunvme_err_t gpunvme_requests_create(struct gpunvme_store *store, struct gpunvme_requests **out);

/* Releases all requests: BUSY, and some are left, where one of them can't be. NULL is fine. */
gpunvme_err_t gpunvme_requests_destroy(struct gpunvme_requests *table);

/*
 * Makes a request of `nbytes` bytes of memory at `ptr`, the caller's until it is released, and
 * registers it with the store. `ptr` may be NULL with 0 bytes: then kinds have
 * no places, and every read names its pointer. Errors: INVALID, NOMEM, LIMIT (the store's
 * registrations), GPU.
 */
gpunvme_err_t gpunvme_request_create(struct gpunvme_requests *table, void *ptr, size_t nbytes,
                                     enum gpunvme_mem mem, gpunvme_request_t *id);

/*
 * Forgets a request. NOT_FOUND: there is none of this id; BUSY: it is being read, or a transfer of
 * the store uses its memory, if only one that was given up (TIMEOUT).
 */
gpunvme_err_t gpunvme_request_release(struct gpunvme_requests *table, gpunvme_request_t id);

/*
 * Adds a kind. Errors: NOT_FOUND (the id), INVALID (a name that is empty, too long or there
 * already, a length or sector size of 0, one that overlaps another kind: the detail names it),
 * RANGE (beyond the end of the store), LIMIT (no room for it behind the others in the buffer).
 */
gpunvme_err_t gpunvme_request_add_kind(struct gpunvme_requests *table, gpunvme_request_t id,
                                       const char *kind, uint64_t start_lba, uint64_t length,
                                       uint32_t sector_size);

struct gpunvme_kind {
    uint64_t start_lba;
    uint64_t length;      /* elements */
    uint32_t sector_size; /* bytes of one */
    void *place;          /* of its first element in the buffer; NULL without a buffer */
};

/* NOT_FOUND: no such request, or no such kind in it. */
gpunvme_err_t gpunvme_request_kind(struct gpunvme_requests *table, gpunvme_request_t id,
                                   const char *kind, struct gpunvme_kind *out);

/*
 * Reads elements `idx` … `idx + length - 1` of a kind (length 0: to its end) to `dst`, memory of
 * the kind that the request was made with (which may be another than its buffer); NULL: to their
 * places in it. Returns when all bytes are there. Errors: NOT_FOUND, RANGE (more elements than the
 * kind has), INVALID (NULL without a buffer), and what gpunvme_store_read() gives; a store that has
 * become too short is RANGE.
 */
gpunvme_err_t gpunvme_request_read(struct gpunvme_requests *table, gpunvme_request_t id,
                                   const char *kind, uint64_t idx, uint64_t length, void *dst);

/* One of several reads. */
struct gpunvme_kind_read {
    const char *kind;
    uint64_t idx;
    uint64_t length;   /* 0: to the end of the kind */
    void *dst;         /* NULL: its place in the buffer */
    gpunvme_err_t err; /* what came of it */
};

/*
 * Reads several in one go. Those that follow one another on the store, and go to their places
 * in the buffer, become one transfer. If any of them is wrong none is begun: the error is that of
 * the first such one, which has it as its own `err`, and the others have GPUNVME_ERR_AGAIN; else
 * all are tried, each has its own `err`, and the first of these errors is returned.
 */
gpunvme_err_t gpunvme_request_read_kinds(struct gpunvme_requests *table, gpunvme_request_t id,
                                         struct gpunvme_kind_read *reads, size_t n);

#ifdef __cplusplus
}
#endif
#endif
