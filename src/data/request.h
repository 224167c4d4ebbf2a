/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A table of requests inside: request.c makes and finds them, request_io.c moves their bytes.
 */
#ifndef DATA_REQUEST_H
#define DATA_REQUEST_H

#include <pthread.h>
#include <stdatomic.h>

#include "gpunvme/request.h"

/* How errors name a kind: a long name must not push out what is said behind it. */
#define KIND "kind \"%.60s\""

struct request_kind {
    const char *name; /* stored behind the structure */
    uint64_t start_lba, length;
    uint32_t sector_size;
    uint64_t begin, end; /* bytes of the store */
    size_t place;        /* byte of the buffer */
};

struct request {
    gpunvme_request_t id;
    uint8_t *ptr;
    size_t nbytes, used;
    enum gpunvme_mem mem;
    bool registered;           /* by this table */
    atomic_size_t prepared;    /* parts that are not finished: while there are any, it stays */
    void *by_name, *by_offset; /* trees (search.h) of its kinds, which are only added */
};

struct gpunvme_requests {
    struct gpunvme_store *store;
    pthread_mutex_t lock; /* of all that follows */
    void *by_id;          /* tree of requests */
    uint64_t last_id;
};

/* Under the table's lock: NOT_FOUND. */
gpunvme_err_t request_find(struct gpunvme_requests *table, gpunvme_request_t id,
                           struct request **out);

/* Under the table's lock. A kind stays, as it is, as long as its request: NOT_FOUND, INVALID. */
gpunvme_err_t request_find_kind(const struct request *request, const char *name,
                                const struct request_kind **out);

#endif
