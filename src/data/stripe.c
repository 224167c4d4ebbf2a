/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Makes stripe sets, and reads what members say. Looks first at what is there (docs/SAFETY.md): a
 * member must be zero in the first MiB, which the set takes, and must have no known signature.
 * Until all members have been looked at nothing is written, and what is written before the last
 * check is put back if that fails.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/fail.h"
#include "gpunvme/signature.h"
#include "storage/internal.h"
#include "storage/stripe/header.h"

/* A set that is being made. */
struct making {
    size_t n;
    struct gpunvme_store **members;
    uint8_t (*before)[STRIPE_HEADER_NBYTES]; /* what was where the headers go; behind them, these */
    size_t nwritten;
    struct stripe_header header;
};

static gpunvme_err_t check_arguments(const char *const *uris, size_t n, uint64_t unit,
                                     unsigned flags)
{
    if (!uris || !n || n > STRIPE_MAX_MEMBERS)
        return base_fail(GPUNVME_ERR_INVALID, "%zu members: a set has 1 to %u", n,
                         STRIPE_MAX_MEMBERS);
    for (size_t i = 0; i < n; i++)
        if (!uris[i])
            return base_fail(GPUNVME_ERR_INVALID, "member %zu is NULL", i);
    if (unit < STRIPE_MIN_UNIT || unit > STRIPE_MAX_UNIT || unit & (unit - 1))
        return base_fail(GPUNVME_ERR_INVALID,
                         "units of %llu bytes: a power of two from 4 KiB to 1 GiB is possible",
                         (unsigned long long)unit);
    if (flags & ~GPUNVME_STRIPE_FORCE)
        return base_fail(GPUNVME_ERR_INVALID, "flags %xh", flags);
    return GPUNVME_OK;
}

/* A build that can't look spares what is a drive; a file is the user's own choice. */
static bool may_be_a_drive(const struct gpunvme_store *member)
{
    return !member->resizable && strcmp(member->uri.scheme, "sim") != 0;
}

/* libblkid knows no databases or archives: whatever is there, the set must not overwrite it. */
static gpunvme_err_t check_zero(struct gpunvme_store *member)
{
    uint8_t *bytes = malloc(STRIPE_DATA_OFFSET);
    size_t n = 0;
    gpunvme_err_t err;

    if (!bytes)
        return base_fail(GPUNVME_ERR_NOMEM, "the first MiB of a member");
    err = gpunvme_store_read(member, 0, bytes, GPUNVME_MEM_HOST, STRIPE_DATA_OFFSET, &n);
    if (!err && n && (bytes[0] || memcmp(bytes, bytes + 1, n - 1) != 0))
        err = base_fail(GPUNVME_ERR_INVALID,
                        "%s holds data (its first MiB is not zero): nothing was written; say "
                        "--force (GPUNVME_STRIPE_FORCE) if that is to be overwritten",
                        member->uri.text);
    if (err != GPUNVME_ERR_TIMEOUT) /* else the read goes on: its memory is left to it */
        free(bytes);
    return err;
}

static gpunvme_err_t look_at(struct gpunvme_store *member, const uint8_t *first)
{
    struct gpunvme_signature signature;
    struct base_failure failure;
    struct stripe_header header;
    gpunvme_err_t err = stripe_header_read(first, member->uri.text, &header);

    if (err != GPUNVME_ERR_INVALID)
        return base_fail(GPUNVME_ERR_INVALID,
                         "%s is a member of a stripe set%s: nothing was written; say --force "
                         "(GPUNVME_STRIPE_FORCE) if that "
                         "is to be lost",
                         member->uri.text, err ? ", damaged or of another version" : "");
    if (!gpunvme_signature_supported() && !may_be_a_drive(member))
        return check_zero(member);
    err = gpunvme_signature_find_store(member, &signature);
    if (err) {
        base_keep(&failure, err);
        return base_fail(GPUNVME_ERR_INVALID,
                         "%s: nothing was written, since what is on it could not be told (%.120s); "
                         "--force (GPUNVME_STRIPE_FORCE) writes all the same",
                         member->uri.text, failure.detail);
    }
    if (signature.kind == GPUNVME_SIGNATURE_NONE)
        return check_zero(member);
    return base_fail(GPUNVME_ERR_INVALID,
                     "%s holds %s: nothing was written; say --force (GPUNVME_STRIPE_FORCE) if that "
                     "is to be overwritten",
                     member->uri.text, signature.text);
}

/* The set's share of each member, by the smallest. */
static gpunvme_err_t measure(struct making *m)
{
    uint64_t unit = m->header.unit, most = (INT64_MAX - STRIPE_DATA_OFFSET) / m->n;

    m->header.used = UINT64_MAX;
    for (size_t i = 0; i < m->n; i++) {
        struct gpunvme_store *member = m->members[i];
        uint64_t nbytes;
        gpunvme_err_t err = gpunvme_store_size(member, &nbytes);

        if (err)
            return err;
        if (nbytes < STRIPE_DATA_OFFSET + unit)
            return base_fail(GPUNVME_ERR_RANGE, "%s has %llu bytes: a member needs %llu at least",
                             member->uri.text, (unsigned long long)nbytes,
                             (unsigned long long)(STRIPE_DATA_OFFSET + unit));
        if (unit % member->block_size)
            return base_fail(GPUNVME_ERR_INVALID,
                             "%s has blocks of %u bytes: units of %llu are "
                             "too small",
                             member->uri.text, member->block_size, (unsigned long long)unit);
        if (nbytes - STRIPE_DATA_OFFSET < m->header.used)
            m->header.used = nbytes - STRIPE_DATA_OFFSET;
    }
    if (m->header.used > most)
        m->header.used = most;
    m->header.used -= m->header.used % unit;
    return GPUNVME_OK;
}

static gpunvme_err_t open_and_look(struct making *m, const char *const *uris, unsigned flags)
{
    bool forced = flags & GPUNVME_STRIPE_FORCE;

    for (size_t i = 0; i < m->n; i++) {
        gpunvme_err_t err = gpunvme_open(
            uris[i], GPUNVME_OPEN_WRITE | (forced ? GPUNVME_OPEN_FORCE : 0), &m->members[i]);

        if (!err && !strcmp(m->members[i]->backend->name, "stripe"))
            err = base_fail(GPUNVME_ERR_INVALID, "%s: a set is no member of another", uris[i]);
        if (!err)
            err = gpunvme_store_read(m->members[i], 0, m->before[i], GPUNVME_MEM_HOST,
                                     STRIPE_HEADER_NBYTES, NULL);
        if (!err && !forced)
            err = look_at(m->members[i], m->before[i]);
        if (err)
            return err;
    }
    return measure(m);
}

static gpunvme_err_t choose_uuid(uint8_t uuid[16])
{
    if (getrandom(uuid, 16, 0) != 16)
        return base_fail(GPUNVME_ERR_IO, "no random bytes for the set's UUID");
    uuid[6] = (uint8_t)((uuid[6] & 0x0f) | 0x40); /* RFC 9562: version 4, variant 10b */
    uuid[8] = (uint8_t)((uuid[8] & 0x3f) | 0x80);
    return GPUNVME_OK;
}

/* Whether the next member has this set's header already: then it is one that was written before. */
static gpunvme_err_t check_new(struct making *m, size_t i)
{
    struct stripe_header h;
    gpunvme_err_t err = stripe_read_header(m->members[i], &h);

    if (!err && !memcmp(h.uuid, m->header.uuid, sizeof(h.uuid)))
        return base_fail(GPUNVME_ERR_INVALID, "%s and %s are the same store",
                         m->members[h.index]->uri.text, m->members[i]->uri.text);
    return GPUNVME_OK; /* what it has else was looked at */
}

static gpunvme_err_t write_headers(struct making *m)
{
    for (size_t i = 0; i < m->n; i++) {
        uint8_t *bytes = m->before[m->n + i];
        gpunvme_err_t err = check_new(m, i);

        if (err)
            return err;
        m->header.index = (uint32_t)i;
        stripe_header_write(&m->header, bytes);
        m->nwritten = i + 1; /* perhaps in part */
        err = gpunvme_store_write(m->members[i], 0, bytes, GPUNVME_MEM_HOST, STRIPE_HEADER_NBYTES,
                                  NULL);
        if (err)
            return err;
    }
    return GPUNVME_OK;
}

static gpunvme_err_t write_zeroes(struct making *m)
{
    size_t nbytes = STRIPE_DATA_OFFSET - STRIPE_HEADER_NBYTES;
    uint8_t *zeroes = calloc(1, nbytes);
    gpunvme_err_t err = GPUNVME_OK;

    if (!zeroes)
        return base_fail(GPUNVME_ERR_NOMEM, "%zu zeroes", nbytes);
    for (size_t i = 0; i < m->n && !err; i++) {
        err = gpunvme_store_write(m->members[i], STRIPE_HEADER_NBYTES, zeroes, GPUNVME_MEM_HOST,
                                  nbytes, NULL);
        if (!err)
            err = gpunvme_store_flush(m->members[i]);
    }
    if (err != GPUNVME_ERR_TIMEOUT)
        free(zeroes);
    return err;
}

static gpunvme_err_t put_back(struct making *m, gpunvme_err_t err)
{
    struct base_failure failure;

    base_keep(&failure, err);
    while (m->nwritten--)
        gpunvme_store_write(m->members[m->nwritten], 0, m->before[m->nwritten], GPUNVME_MEM_HOST,
                            STRIPE_HEADER_NBYTES, NULL);
    return base_restore(&failure);
}

static gpunvme_err_t make(struct making *m, const char *const *uris, unsigned flags)
{
    gpunvme_err_t err = open_and_look(m, uris, flags);

    if (!err)
        err = choose_uuid(m->header.uuid);
    if (err)
        return err;
    err = write_headers(m);
    if (err)
        return put_back(m, err);
    return write_zeroes(m);
}

static gpunvme_err_t close_all(struct making *m, gpunvme_err_t err)
{
    struct base_failure failure;

    base_keep(&failure, err);
    for (size_t i = 0; i < m->n; i++) {
        err = gpunvme_close(m->members[i]);
        if (err && !failure.err)
            base_keep(&failure, err);
    }
    return failure.err ? base_restore(&failure) : GPUNVME_OK;
}

gpunvme_err_t gpunvme_stripe_create(const char *const *uris, size_t n, uint64_t unit,
                                    unsigned flags)
{
    struct making m = {.n = n};
    gpunvme_err_t err;

    if (!unit)
        unit = GPUNVME_STRIPE_UNIT;
    err = check_arguments(uris, n, unit, flags);
    if (err)
        return err;
    m.header.unit = unit;
    m.header.count = (uint32_t)n;
    m.members = calloc(n, sizeof(struct gpunvme_store *));
    m.before = calloc(2 * n, STRIPE_HEADER_NBYTES);
    if (m.members && m.before)
        err = close_all(&m, make(&m, uris, flags));
    else
        err = base_fail(GPUNVME_ERR_NOMEM, "%zu members", n);
    free(m.members);
    if (err != GPUNVME_ERR_TIMEOUT)
        free(m.before);
    return err;
}

static gpunvme_err_t inspect(struct gpunvme_store *member, struct gpunvme_stripe_info *info)
{
    struct stripe_header h;
    gpunvme_err_t err = stripe_read_header(member, &h);

    if (!err)
        err = gpunvme_store_size(member, &info->member_nbytes);
    if (err)
        return err;
    stripe_uuid_text(h.uuid, info->uuid);
    info->index = h.index;
    info->count = h.count;
    info->unit = h.unit;
    info->used = h.used;
    return GPUNVME_OK;
}

gpunvme_err_t gpunvme_stripe_inspect(const char *uri, struct gpunvme_stripe_info *info)
{
    struct gpunvme_store *member;
    struct base_failure failure;
    gpunvme_err_t err;

    if (!info)
        return base_fail(GPUNVME_ERR_INVALID, "info is NULL");
    memset(info, 0, sizeof(*info));
    err = gpunvme_open(uri, 0, &member);
    if (err)
        return err;
    base_keep(&failure, inspect(member, info));
    err = gpunvme_close(member);
    return failure.err ? base_restore(&failure) : err;
}
