/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Headers of stripe sets. See header.h.
 */
#include <endian.h>
#include <stdio.h>
#include <string.h>

#include "base/fail.h"
#include "gpunvme/memory.h"
#include "storage/stripe/header.h"

static const char magic[16] = "gpunvme stripe\r\n";

/* As it stands on a member: little-endian. */
struct wire {
    char magic[16];
    uint32_t version, count, index, zero;
    uint8_t uuid[16];
    uint64_t unit, data_offset, used;
    uint8_t zeroes[STRIPE_HEADER_NBYTES - 80];
    uint64_t checksum; /* of all before it: gpunvme_mem_checksum_host() */
};

_Static_assert(sizeof(struct wire) == STRIPE_HEADER_NBYTES, "a stripe header");

static uint64_t checksum_of(const struct wire *wire)
{
    return gpunvme_mem_checksum_host(wire, offsetof(struct wire, checksum));
}

void stripe_header_write(const struct stripe_header *h, void *bytes)
{
    struct wire wire = {
        .version = htole32(STRIPE_VERSION),
        .count = htole32(h->count),
        .index = htole32(h->index),
        .unit = htole64(h->unit),
        .data_offset = htole64(STRIPE_DATA_OFFSET),
        .used = htole64(h->used),
    };

    memcpy(wire.magic, magic, sizeof(magic));
    memcpy(wire.uuid, h->uuid, sizeof(h->uuid));
    wire.checksum = htole64(checksum_of(&wire));
    memcpy(bytes, &wire, sizeof(wire));
}

static bool makes_sense(const struct stripe_header *h)
{
    return h->count && h->count <= STRIPE_MAX_MEMBERS && h->index < h->count &&
           h->unit >= STRIPE_MIN_UNIT && h->unit <= STRIPE_MAX_UNIT && !(h->unit & (h->unit - 1)) &&
           h->used && h->used % h->unit == 0 &&
           h->used <= (INT64_MAX - STRIPE_DATA_OFFSET) / h->count;
}

gpunvme_err_t stripe_header_read(const void *bytes, const char *name, struct stripe_header *h)
{
    struct wire wire;
    uint32_t version;

    memset(h, 0, sizeof(*h));
    memcpy(&wire, bytes, sizeof(wire));
    version = le32toh(wire.version);
    if (memcmp(wire.magic, magic, sizeof(magic)) != 0)
        return base_fail(GPUNVME_ERR_INVALID,
                         "%s is no member of a stripe set: 'gpunvme stripe create' makes one",
                         name);
    if (checksum_of(&wire) != le64toh(wire.checksum))
        return base_fail(GPUNVME_ERR_VERIFY, "%s: its stripe header is damaged (checksum)", name);
    if (version != STRIPE_VERSION)
        return base_fail(GPUNVME_ERR_UNSUPPORTED,
                         "%s: its stripe header is of version %u, this library knows version %u",
                         name, version, STRIPE_VERSION);
    memcpy(h->uuid, wire.uuid, sizeof(h->uuid));
    h->count = le32toh(wire.count);
    h->index = le32toh(wire.index);
    h->unit = le64toh(wire.unit);
    h->used = le64toh(wire.used);
    if (!makes_sense(h) || le64toh(wire.data_offset) != STRIPE_DATA_OFFSET)
        return base_fail(GPUNVME_ERR_VERIFY, "%s: its stripe header makes no sense", name);
    return GPUNVME_OK;
}

void stripe_uuid_text(const uint8_t *uuid, char text[STRIPE_UUID_TEXT])
{
    for (unsigned i = 0; i < 16; i++) {
        bool dash = i == 4 || i == 6 || i == 8 || i == 10;

        text += snprintf(text, 4, "%s%02x", dash ? "-" : "", uuid[i]);
    }
}

/* --- sets ------------------------------------------------------------------------------------- */

static gpunvme_err_t check_alike(const struct stripe_member *a, const struct stripe_member *b)
{
    char one[STRIPE_UUID_TEXT], other[STRIPE_UUID_TEXT];

    stripe_uuid_text(a->header.uuid, one);
    stripe_uuid_text(b->header.uuid, other);
    if (memcmp(a->header.uuid, b->header.uuid, sizeof(a->header.uuid)) != 0)
        return base_fail(GPUNVME_ERR_INVALID, "%s is of set %s, %s of set %s", a->name, one,
                         b->name, other);
    if (a->header.count != b->header.count || a->header.unit != b->header.unit ||
        a->header.used != b->header.used)
        return base_fail(GPUNVME_ERR_INVALID, "the headers of %s and %s contradict each other",
                         a->name, b->name);
    return GPUNVME_OK;
}

static gpunvme_err_t check_size(const struct stripe_member *m)
{
    uint64_t needed = STRIPE_DATA_OFFSET + m->header.used;

    if (m->nbytes >= needed)
        return GPUNVME_OK;
    return base_fail(GPUNVME_ERR_INVALID,
                     "%s has become smaller: it has %llu bytes, the set needs %llu of them",
                     m->name, (unsigned long long)m->nbytes, (unsigned long long)needed);
}

gpunvme_err_t stripe_set_check(const struct stripe_member *members, size_t n, size_t *order)
{
    uint32_t count = n ? members[0].header.count : 0;
    size_t found[STRIPE_MAX_MEMBERS];

    if (!n || count > STRIPE_MAX_MEMBERS)
        return base_fail(GPUNVME_ERR_INVALID, "a set of %u members", count);
    for (uint32_t i = 0; i < count; i++)
        found[i] = n;
    for (size_t i = 0; i < n; i++) {
        const struct stripe_header *h = &members[i].header;
        gpunvme_err_t err = check_alike(&members[0], &members[i]);

        if (!err)
            err = check_size(&members[i]);
        if (err)
            return err;
        if (found[h->index] != n)
            return base_fail(GPUNVME_ERR_INVALID, "%s and %s are both member %u of %u",
                             members[found[h->index]].name, members[i].name, h->index, count);
        found[h->index] = i;
    }
    for (uint32_t i = 0; i < count; i++) {
        if (found[i] == n)
            return base_fail(GPUNVME_ERR_INVALID, "member %u of %u is missing: %zu were named", i,
                             count, n);
        order[i] = found[i];
    }
    return GPUNVME_OK;
}
