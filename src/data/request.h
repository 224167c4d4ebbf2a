/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A table of requests inside: request.c makes and finds them, request_read.c reads.
 */
#ifndef DATA_REQUEST_H
#define DATA_REQUEST_H

#include <pthread.h>

#include "gpunvme/request.h"

struct request_kind {
    char name[GPUNVME_KIND_NAME_ROOM];
    uint64_t start_lba, length;
    uint32_t sector_size;
    uint64_t begin, end; /* bytes of the store */
    size_t place;        /* byte of the buffer */
};

struct request {
    gpunvme_request_t id; /* 0: the entry is free */
    uint8_t *ptr;
    size_t nbytes, used;
    enum gpunvme_mem mem;
    bool registered; /* by this table */
    unsigned readers;
    struct request_kind *kinds;
    size_t nkinds, room;
};

struct gpunvme_requests {
    struct gpunvme_store *store;
    pthread_mutex_t lock;  /* of all that follows */
    struct request **list; /* in any order */
    size_t n, room;
    uint64_t last_id;
};

/* Finds a request and keeps it from being released: NOT_FOUND. */
gpunvme_err_t request_hold(struct gpunvme_requests *table, gpunvme_request_t id,
                           struct request **out);
void request_let_go(struct gpunvme_requests *table, struct request *request);

/* Under the table's lock, or with the request held: kinds are only added, so copy what is found. */
gpunvme_err_t request_find_kind(const struct request *request, const char *name,
                                struct request_kind *out);

#endif
