/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Requests by kind. A request is a buffer, and a table of where each kind of data is on a store.
 *
 *     gpunvme_requests_create(store, &table);
 *     gpunvme_request_create(table, gpu_ptr, nbytes, GPUNVME_MEM_GPU, &id);
 *     gpunvme_request_add_kind(table, id, "users", 0, 1000, 4096);
 *     gpunvme_request_add_kind(table, id, "items", 1000, 500, 4096);
 *     gpunvme_request_read(table, id, "items", 7, 3, gpu_ptr);       // items 7, 8 and 9
 *     gpunvme_request_run(table, id, parts, 2);                      // several in one call
 *     gpunvme_request_release(table, id);
 *
 * A kind is `length` elements of `sector_size` bytes each, stored contiguously. It begins at
 * byte start_lba * sector_size of the store: with a sector size of 1, start_lba is a byte offset
 * and indices count bytes. Kinds of one request do not overlap on the store. Each has a place in
 * the request's buffer; places are adjacent, in the order in which the kinds were added.
 *
 * Finding a request or a kind, and adding one, takes O(log n) time.
 *
 * Ids are not reused.
 *
 * Threads: all functions may be called from several threads at once, except destroy.
 */
#ifndef GPUNVME_REQUEST_H
#define GPUNVME_REQUEST_H

#include "gpunvme/storage.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The id of a request; 0 is never one. */
typedef uint64_t gpunvme_request_t;

struct gpunvme_requests;

/* Creates a table of requests on a store. The caller owns both; the store must outlive the table.
 */
gpunvme_err_t gpunvme_requests_create(struct gpunvme_store *store, struct gpunvme_requests **out);

/*
 * Releases all requests and frees the table. NULL is allowed. BUSY: a request can't be released,
 * and the table stays; other requests may have been released.
 */
gpunvme_err_t gpunvme_requests_destroy(struct gpunvme_requests *table);

/*
 * Creates a request whose buffer is `nbytes` bytes of memory at `ptr`, and registers the buffer
 * with the store's engine. The caller owns the memory, which must outlive the request. With NULL
 * and 0 bytes, kinds have no places, and each part must name a pointer. Errors: INVALID, NOMEM,
 * LIMIT (see gpunvme_register()), GPU.
 */
gpunvme_err_t gpunvme_request_create(struct gpunvme_requests *table, void *ptr, size_t nbytes,
                                     enum gpunvme_mem mem, gpunvme_request_t *id);

/*
 * Releases a request. NOT_FOUND: there is no request with this id. BUSY: parts of it are prepared
 * and not finished, or a transfer still uses its memory, also after TIMEOUT.
 */
gpunvme_err_t gpunvme_request_release(struct gpunvme_requests *table, gpunvme_request_t id);

/*
 * Adds a kind. The name is a string of any length from 1, and is copied. Errors: NOT_FOUND (no such
 * request), INVALID (the name is empty or exists, the length or sector size is 0, or the kind
 * overlaps another, which the detail names), RANGE (the kind ends beyond the store), LIMIT (the
 * buffer has no room left for it), NOMEM.
 */
gpunvme_err_t gpunvme_request_add_kind(struct gpunvme_requests *table, gpunvme_request_t id,
                                       const char *kind, uint64_t start_lba, uint64_t length,
                                       uint32_t sector_size);

struct gpunvme_kind {
    uint64_t start_lba;
    uint64_t length;      /* elements */
    uint32_t sector_size; /* bytes of an element */
    void *place;          /* address of the first element in the buffer; NULL without a buffer */
};

/* NOT_FOUND: there is no such request, or it has no such kind. */
gpunvme_err_t gpunvme_request_kind(struct gpunvme_requests *table, gpunvme_request_t id,
                                   const char *kind, struct gpunvme_kind *out);

/*
 * Reads or writes elements `idx` to `idx + length - 1` of a kind (length 0: to its end), and waits
 * until that is done. `ptr` is memory of the request's kind of memory, in its buffer or elsewhere;
 * NULL stands for the elements' places in the buffer. Errors: NOT_FOUND, RANGE (the kind has fewer
 * elements, or the store has become too short), INVALID (NULL without a buffer), and those of
 * gpunvme_store_read() and gpunvme_store_write().
 */
gpunvme_err_t gpunvme_request_read(struct gpunvme_requests *table, gpunvme_request_t id,
                                   const char *kind, uint64_t idx, uint64_t length, void *ptr);
gpunvme_err_t gpunvme_request_write(struct gpunvme_requests *table, gpunvme_request_t id,
                                    const char *kind, uint64_t idx, uint64_t length,
                                    const void *ptr);

/* ---- Several at once ---------------------------------------------------------------------------
 */

/*
 * A part: some elements of one kind. The caller sets the first group of fields, and all others to
 * zero. A finished part can be used again.
 */
struct gpunvme_kind_io {
    const char *kind;   /* unchanged until the part is finished */
    enum gpunvme_op op; /* READ or WRITE */
    uint64_t idx;
    uint64_t length; /* 0: to the end of the kind */
    void *ptr;       /* NULL: the elements' place in the buffer */

    gpunvme_err_t err;     /* the part's result */
    struct gpunvme_io *io; /* the transfer that moves it; NULL once it is finished */

    struct {
        void *request;
        uint8_t *ptr;
        uint64_t offset;
        size_t nbytes, at; /* `at`: where in the transfer */
    } priv;                /* private */
};

/*
 * Moves `n` parts, and waits until all are done. If one of them is invalid, none is begun: that one
 * gets the returned error, and the others get AGAIN. Otherwise each has its own `err`, and the
 * first error in the order of the parts is returned.
 */
gpunvme_err_t gpunvme_request_run(struct gpunvme_requests *table, gpunvme_request_t id,
                                  struct gpunvme_kind_io *parts, size_t n);

/*
 * Prepares `n` parts as transfers. The caller submits these like any others (transfer.h): together
 * with other transfers, with a batch, with callbacks or in CUDA's order.
 *
 *     gpunvme_request_prepare(table, id, parts, n, ios, &nios);
 *     gpunvme_io_submit(ios, nios, batch);
 *     // … when they have ended:
 *     gpunvme_request_finish(parts, n);
 *
 * `ios` has room for `n` transfers, and is overwritten. *nios is the number of transfers: parts
 * that are adjacent on the store and in the request's buffer become one. Set `callback` and `user`
 * after this call. Each part's `io` points to its transfer, so `parts` and `ios` must stay in place
 * until the parts are finished.
 *
 * Errors, with nothing prepared: those of gpunvme_request_run(), INVALID (a part is prepared
 * already), NOMEM.
 */
gpunvme_err_t gpunvme_request_prepare(struct gpunvme_requests *table, gpunvme_request_t id,
                                      struct gpunvme_kind_io *parts, size_t n,
                                      struct gpunvme_io *ios, size_t *nios);

/*
 * Finishes prepared parts whose transfers have ended. Sets the `err` of each, and returns the first
 * error in their order. A part within its transfer's valid prefix is OK; one whose transfer was
 * never submitted gets AGAIN. Parts may be finished all at once or in groups, also by callbacks.
 * They must be finished even if the submission failed; until then their request can't be released.
 *
 * BUSY: a transfer is in flight, or its completion was not polled. INVALID: a part is not prepared.
 * In both cases nothing is done.
 */
gpunvme_err_t gpunvme_request_finish(struct gpunvme_kind_io *parts, size_t n);

#ifdef __cplusplus
}
#endif
#endif
