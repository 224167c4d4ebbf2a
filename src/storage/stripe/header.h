/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What stands at the begin of each member of a stripe set, and whether members make a set. header.c
 * knows bytes alone, no stores.
 *
 * The first MiB of a member is the set's; the header is in the first 4 KiB of it, little-endian.
 * Then come the data: unit 0 of the set on member 0, unit 1 on member 1, … (RAID 0), as many on
 * each member as on the smallest.
 */
#ifndef STORAGE_STRIPE_HEADER_H
#define STORAGE_STRIPE_HEADER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpunvme/error.h"

#define STRIPE_HEADER_NBYTES 4096u
#define STRIPE_DATA_OFFSET   ((uint64_t)1 << 20)
#define STRIPE_VERSION       1u
#define STRIPE_MAX_MEMBERS   128u
#define STRIPE_MIN_UNIT      ((uint64_t)4096)
#define STRIPE_MAX_UNIT      ((uint64_t)1 << 30)

struct stripe_header {
    uint8_t uuid[16]; /* of the set */
    uint32_t index;   /* of the member, from 0 */
    uint32_t count;   /* of members */
    uint64_t unit;    /* bytes, a power of two */
    uint64_t used;    /* bytes of data on each member, a multiple of the unit */
};

/* The STRIPE_HEADER_NBYTES bytes that stand for `h`. */
void stripe_header_write(const struct stripe_header *h, void *bytes);

/*
 * Takes a header from STRIPE_HEADER_NBYTES bytes; `name` is the member's, for the detail. INVALID:
 * there is none. VERIFY: damaged. UNSUPPORTED: of another version.
 */
gpunvme_err_t stripe_header_read(const void *bytes, const char *name, struct stripe_header *h);

/* The header of a store, whose first bytes are read; stripe.c. */
struct gpunvme_store;
gpunvme_err_t stripe_read_header(struct gpunvme_store *member, struct stripe_header *h);

/* A member, as a set is checked. */
struct stripe_member {
    const char *name;
    uint64_t nbytes; /* of the whole store */
    struct stripe_header header;
};

/*
 * Whether these members, in any order, are a whole set: order[i] gets which of them is member i.
 * INVALID says what is wrong: members of several sets, one missing or named twice, one that has
 * become smaller.
 */
gpunvme_err_t stripe_set_check(const struct stripe_member *members, size_t n, size_t *order);

#define STRIPE_UUID_TEXT 37
void stripe_uuid_text(const uint8_t *uuid, char text[STRIPE_UUID_TEXT]);

#endif
