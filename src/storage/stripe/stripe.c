/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The stripe backend: several stores as one, RAID 0. A transfer becomes a transfer for each unit
 * that it touches, all of one member submitted at once. It has no threads of its own: the members'
 * tell it their ends.
 *
 * Members are known by their headers, so their order in the URI does not matter.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "storage/futex.h"
#include "storage/stripe/stripe.h"

struct stripe {
    size_t n;
    struct gpunvme_store *members[STRIPE_MAX_MEMBERS]; /* by index; the rest NULL */
    uint64_t unit, nbytes;
    unsigned unit_shift;
};

/* ---- Where bytes are --------------------------------------------------------------------------
 */

/* A part of one unit: as much of [offset, offset + nbytes) as lies in its first unit. */
struct place {
    size_t member;
    uint64_t offset; /* in the member */
    size_t nbytes;
};

static struct place locate(const struct stripe *s, uint64_t offset, uint64_t nbytes)
{
    uint64_t number = offset >> s->unit_shift, in = offset & (s->unit - 1);
    uint64_t here = s->unit - in;

    if (s->n == 1)
        here = nbytes; /* units follow each other */
    return (struct place){
        .member = (size_t)(number % s->n),
        .offset = STRIPE_DATA_OFFSET + (number / s->n << s->unit_shift) + in,
        .nbytes = (size_t)(nbytes < here ? nbytes : here),
    };
}

/* Bytes of a transfer that are inside the set. */
static size_t inside(const struct stripe *s, const struct gpunvme_io *io)
{
    if (io->offset >= s->nbytes)
        return 0;
    return io->nbytes > s->nbytes - io->offset ? (size_t)(s->nbytes - io->offset) : io->nbytes;
}

/* ---- Transfers --------------------------------------------------------------------------------
 */

/* What one submission asks of one member. Freed by whoever ends the last of it. */
struct group {
    struct gpunvme_store *member;
    size_t left; /* atomic */
    struct part {
        struct gpunvme_io *whole;
        size_t at; /* byte of it */
    } * parts;
    size_t n;
    struct gpunvme_io ios[];
};

/* A member is never shorter than the set's part of it, unless somebody cuts it off meanwhile. */
static gpunvme_err_t check_end(struct gpunvme_store *member, const struct gpunvme_io *io)
{
    if (io->err)
        return store_tell_of(io);
    if (io->done < io->nbytes)
        return base_fail(GPUNVME_ERR_IO, "%s ends at byte %llu, inside the stripe set",
                         member->uri.text, (unsigned long long)(io->offset + io->done));
    return GPUNVME_OK;
}

static void end_part(struct group *g, size_t i, gpunvme_err_t err)
{
    const struct gpunvme_io *io = &g->ios[i];

    store_io_piece(g->parts[i].whole, g->parts[i].at, io->nbytes, err, io->done);
    if (!__atomic_sub_fetch(&g->left, 1, __ATOMIC_ACQ_REL)) {
        free(g->parts);
        free(g);
    }
}

static void part_ended(struct gpunvme_io *io)
{
    struct group *g = io->user;

    end_part(g, (size_t)(io - g->ios), check_end(g->member, io));
}

static struct group *make_group(struct gpunvme_store *member, size_t n)
{
    struct group *g = calloc(1, sizeof(*g) + n * sizeof(g->ios[0]));

    if (!g)
        return NULL;
    g->member = member;
    g->parts = calloc(n, sizeof(g->parts[0]));
    if (!g->parts) {
        free(g);
        return NULL;
    }
    return g;
}

static void add_part(struct group *g, struct gpunvme_io *whole, size_t at, const struct place *p)
{
    g->parts[g->n] = (struct part){.whole = whole, .at = at};
    g->ios[g->n] = (struct gpunvme_io){
        .store = g->member,
        .op = whole->op,
        .mem = whole->mem,
        .offset = p->offset,
        .ptr = (uint8_t *)whole->ptr + at,
        .nbytes = p->nbytes,
        .callback = part_ended,
        .user = g,
    };
    g->n++;
}

/* Goes through the units of a transfer: counts them by member, or adds them to the groups. */
static void split(const struct stripe *s, struct gpunvme_io *io, size_t *counts,
                  struct group **groups)
{
    size_t nbytes = inside(s, io);

    for (size_t at = 0; at < nbytes;) {
        struct place p = locate(s, io->offset + at, nbytes - at);

        if (counts)
            counts[p.member]++;
        else
            add_part(groups[p.member], io, at, &p);
        at += p.nbytes;
    }
}

static void submit_group(struct group *g)
{
    struct base_failure failure;
    gpunvme_err_t err;
    size_t n = g->n;

    g->left = n;
    err = gpunvme_io_submit(g->ios, n, NULL);
    if (!err)
        return; /* `g` may be gone */
    base_keep(&failure, err);
    for (size_t i = 0; i < n; i++)
        end_part(g, i, base_restore(&failure));
}

static bool make_groups(const struct stripe *s, const size_t *counts, struct group **groups)
{
    for (size_t m = 0; m < s->n; m++) {
        groups[m] = counts[m] ? make_group(s->members[m], counts[m]) : NULL;
        if (!counts[m] || groups[m])
            continue;
        while (m--) {
            if (groups[m])
                free(groups[m]->parts);
            free(groups[m]);
        }
        return false;
    }
    return true;
}

/* What lies behind the end of the set: nothing was moved, and that is no error. */
static void end_outside(const struct stripe *s, struct gpunvme_io *io)
{
    size_t nbytes = inside(s, io);

    if (nbytes < io->nbytes)
        store_io_piece(io, nbytes, io->nbytes - nbytes, GPUNVME_OK, 0);
}

static void submit_moves(const struct stripe *s, struct gpunvme_io *first)
{
    size_t counts[STRIPE_MAX_MEMBERS] = {0};
    struct group *groups[STRIPE_MAX_MEMBERS];
    struct gpunvme_io *next;

    for (struct gpunvme_io *io = first; io; io = io->priv.next)
        split(s, io, counts, NULL);
    if (!make_groups(s, counts, groups)) {
        for (; first; first = next) {
            next = first->priv.next;
            store_io_end(first, base_fail(GPUNVME_ERR_NOMEM, "parts of a transfer"), 0);
        }
        return;
    }
    for (struct gpunvme_io *io = first; io; io = next) {
        next = io->priv.next; /* it may be over and gone by the last line */
        split(s, io, NULL, groups);
        end_outside(s, io);
    }
    for (size_t m = 0; m < s->n; m++)
        if (groups[m])
            submit_group(groups[m]);
}

/* ---- Flush ------------------------------------------------------------------------------------
 */

struct flush {
    struct gpunvme_io *whole;
    struct stripe *s;
    size_t left;   /* atomic */
    size_t failed; /* atomic: the member that failed first, behind the last: none */
    struct gpunvme_io ios[];
};

static void end_flush(struct flush *f, size_t m)
{
    size_t none = f->s->n;
    gpunvme_err_t err = GPUNVME_OK;

    if (f->ios[m].err)
        __atomic_compare_exchange_n(&f->failed, &none, m, false, __ATOMIC_RELAXED,
                                    __ATOMIC_RELAXED);
    if (__atomic_sub_fetch(&f->left, 1, __ATOMIC_ACQ_REL))
        return;
    m = __atomic_load_n(&f->failed, __ATOMIC_RELAXED);
    if (m < f->s->n)
        err = store_tell_of(&f->ios[m]);
    store_io_end(f->whole, err, 0);
    free(f);
}

static void flush_ended(struct gpunvme_io *io)
{
    struct flush *f = io->user;

    end_flush(f, (size_t)(io - f->ios));
}

static void submit_flush(struct stripe *s, struct gpunvme_io *whole)
{
    struct flush *f = calloc(1, sizeof(*f) + s->n * sizeof(f->ios[0]));

    if (!f) {
        store_io_end(whole, base_fail(GPUNVME_ERR_NOMEM, "a flush"), 0);
        return;
    }
    f->whole = whole;
    f->s = s;
    f->left = f->failed = s->n;
    for (size_t m = 0, n = s->n; m < n; m++) { /* `f` is gone when the last has ended */
        gpunvme_err_t err;

        f->ios[m] = (struct gpunvme_io){
            .store = s->members[m], .op = GPUNVME_OP_FLUSH, .callback = flush_ended, .user = f};
        err = gpunvme_io_submit(&f->ios[m], 1, NULL);
        if (!err)
            continue;
        store_io_blame(&f->ios[m], err);
        end_flush(f, m);
    }
}

static void stripe_submit(struct gpunvme_store *store, struct gpunvme_io *first, size_t n)
{
    struct gpunvme_io *moves = NULL, **last = &moves, *next;

    (void)n;
    for (; first; first = next) {
        next = first->priv.next;
        if (first->op == GPUNVME_OP_FLUSH) {
            submit_flush(store->priv, first);
            continue;
        }
        *last = first;
        last = &first->priv.next;
    }
    *last = NULL;
    if (moves)
        submit_moves(store->priv, moves);
}

/* Parts are with the members, whose own deadlines end them. */
static void stripe_cancel(struct gpunvme_store *store, struct gpunvme_io *io)
{
    (void)store;
    (void)io;
}

static size_t stripe_prefix(struct gpunvme_store *store, const struct gpunvme_io *io)
{
    (void)store;
    (void)io;
    return 0;
}

/*
 * A transfer inside one unit is the member's, where it would have it in this thread: then nothing
 * is left of it when this returns. A member that takes longer than the set may is not asked.
 */
static bool stripe_direct(struct gpunvme_store *store, struct gpunvme_io *io)
{
    const struct stripe *s = store->priv;
    size_t nbytes = inside(s, io);
    struct gpunvme_store *member;
    struct gpunvme_io its = {.op = io->op, .mem = io->mem, .ptr = io->ptr, .nbytes = nbytes};
    struct place p;

    if (io->op == GPUNVME_OP_FLUSH || !nbytes)
        return false;
    p = locate(s, io->offset, nbytes);
    member = s->members[p.member];
    if (p.nbytes < nbytes || member->uri.options.timeout_ns > store->uri.options.timeout_ns)
        return false;
    its.store = member;
    its.offset = p.offset;
    if (!store_io_run_here(&its))
        return false;
    io->done = its.done;
    io->err = its.err ? its.err : check_end(member, &its);
    return true;
}

/* ---- Opening ----------------------------------------------------------------------------------
 */

static void decode_semicolons(char *text)
{
    char *to = text;

    for (const char *from = text; *from; to++) {
        bool coded = from[0] == '%' && from[1] == '3' && (from[2] == 'B' || from[2] == 'b');

        *to = coded ? ';' : *from;
        from += coded ? 3 : 1;
    }
    *to = 0;
}

gpunvme_err_t stripe_list(const char *text, char ***uris, size_t *n)
{
    size_t room = strlen(text) + 1;
    char **list = malloc(STRIPE_MAX_MEMBERS * sizeof(char *) + room), *at;

    *n = 0;
    if (!list)
        return base_fail(GPUNVME_ERR_NOMEM, "a list of members");
    at = (char *)&list[STRIPE_MAX_MEMBERS];
    memcpy(at, text, room);
    while (at && *n < STRIPE_MAX_MEMBERS) {
        char *next = strchr(at, ';');

        if (next)
            *next++ = 0;
        decode_semicolons(at);
        if (!*at)
            break;
        list[(*n)++] = at;
        at = next;
    }
    if (at) {
        gpunvme_err_t err =
            *at ? base_fail(GPUNVME_ERR_LIMIT, "more than %u members", STRIPE_MAX_MEMBERS)
                : base_fail(GPUNVME_ERR_URI,
                            "member %zu has no name: members are separated by one ';'", *n);

        free(list);
        return err;
    }
    *uris = list;
    return GPUNVME_OK;
}

gpunvme_err_t stripe_read_header(struct gpunvme_store *member, struct stripe_header *h)
{
    uint8_t *bytes = malloc(STRIPE_HEADER_NBYTES);
    gpunvme_err_t err;
    size_t done = 0;

    if (!bytes)
        return base_fail(GPUNVME_ERR_NOMEM, "a header");
    err = gpunvme_store_read(member, 0, bytes, GPUNVME_MEM_HOST, STRIPE_HEADER_NBYTES, &done);
    if (!err && done < STRIPE_HEADER_NBYTES)
        memset(bytes + done, 0, STRIPE_HEADER_NBYTES - done); /* too short: it has none */
    if (!err)
        err = stripe_header_read(bytes, member->uri.text, h);
    free(bytes);
    return err;
}

static gpunvme_err_t open_member(struct gpunvme_store *store, const char *uri,
                                 struct stripe_member *member, struct gpunvme_store **out)
{
    gpunvme_err_t err = gpunvme_open_on(
        store->engine, uri, store->flags & (GPUNVME_OPEN_WRITE | GPUNVME_OPEN_FORCE), out);

    if (err) {
        struct base_failure failure;

        base_keep(&failure, err);
        return strstr(failure.detail, uri) ? base_restore(&failure)
                                           : base_fail(err, "%s: %.200s", uri, failure.detail);
    }
    /* What the set has to keep, its members do, unless they have more to keep. */
    if (store->uri.options.require_set &&
        (!(*out)->uri.options.require_set ||
         store->uri.options.require < (*out)->uri.options.require)) {
        (*out)->uri.options.require_set = true;
        (*out)->uri.options.require = store->uri.options.require;
    }
    member->name = (*out)->uri.text;
    err = gpunvme_store_size(*out, &member->nbytes);
    if (!err)
        err = stripe_read_header(*out, &member->header);
    for (unsigned r = 0; r < GPUNVME_NROUTES; r++) /* headers are no bytes of the set's */
        atomic_store(&(*out)->moved[0][r], 0);
    return err;
}

static void describe_set(struct gpunvme_store *store, struct stripe *s,
                         const struct stripe_header *h)
{
    s->unit = h->unit;
    s->nbytes = h->used * h->count;
    while (UINT64_C(1) << s->unit_shift < s->unit)
        s->unit_shift++;
    store->resizable = false;
    store->block_size = 0;
    store->threads = 0;
    store->gpu_route = GPUNVME_ROUTE_HOST;
    for (size_t m = 0; m < s->n; m++) {
        const struct gpunvme_store *member = s->members[m];

        store->threads += member->threads;
        if (member->block_size > store->block_size)
            store->block_size = member->block_size;
        if (member->gpu_route > store->gpu_route)
            store->gpu_route = member->gpu_route;
    }
}

static gpunvme_err_t check_blocks(const struct gpunvme_store *store, const struct stripe *s)
{
    if (s->unit % store->block_size == 0)
        return GPUNVME_OK;
    return base_fail(GPUNVME_ERR_INVALID, "blocks of %u bytes do not fit into units of %llu",
                     store->block_size, (unsigned long long)s->unit);
}

static gpunvme_err_t stripe_close(struct gpunvme_store *store)
{
    struct stripe *s = store->priv;
    struct base_failure failure = {.err = GPUNVME_OK};

    for (size_t m = 0; m < STRIPE_MAX_MEMBERS; m++) {
        gpunvme_err_t err = gpunvme_close(s->members[m]);

        if (err && !failure.err)
            base_keep(&failure, err);
    }
    free(s);
    return failure.err ? base_restore(&failure) : GPUNVME_OK;
}

static gpunvme_err_t open_all(struct gpunvme_store *store, struct stripe *s, char **uris, size_t n)
{
    struct stripe_member *members = calloc(n, sizeof(*members));
    size_t order[STRIPE_MAX_MEMBERS];
    gpunvme_err_t err = GPUNVME_OK;

    if (!members)
        return base_fail(GPUNVME_ERR_NOMEM, "%zu members", n);
    for (size_t i = 0; i < n && !err; i++)
        err = open_member(store, uris[i], &members[i], &s->members[i]);
    if (!err)
        err = stripe_set_check(members, n, order);
    if (!err) {
        struct gpunvme_store *opened[STRIPE_MAX_MEMBERS];

        memcpy(opened, s->members, sizeof(opened));
        for (size_t i = 0; i < n; i++)
            s->members[i] = opened[order[i]];
        s->n = n;
        describe_set(store, s, &members[0].header);
        err = check_blocks(store, s);
    }
    free(members);
    return err;
}

static gpunvme_err_t stripe_open(struct gpunvme_store *store)
{
    struct stripe *s = calloc(1, sizeof(*s));
    struct base_failure failure;
    char **uris;
    gpunvme_err_t err;
    size_t n;

    if (!s)
        return base_fail(GPUNVME_ERR_NOMEM, "a store");
    err = stripe_list(store->uri.target, &uris, &n);
    if (err) {
        free(s);
        return err;
    }
    store->priv = s;
    err = open_all(store, s, uris, n);
    free(uris);
    if (err) {
        base_keep(&failure, err);
        stripe_close(store);
        return base_restore(&failure);
    }
    return GPUNVME_OK;
}

/* ---- The rest ---------------------------------------------------------------------------------
 */

static gpunvme_err_t stripe_size(struct gpunvme_store *store, uint64_t *nbytes)
{
    const struct stripe *s = store->priv;

    *nbytes = s->nbytes;
    return GPUNVME_OK;
}

static gpunvme_err_t stripe_prepare(struct gpunvme_store *store, unsigned gpu)
{
    const struct stripe *s = store->priv;
    gpunvme_err_t err = GPUNVME_OK;

    for (size_t m = 0; m < s->n && !err; m++)
        if (s->members[m]->backend->prepare)
            err = s->members[m]->backend->prepare(s->members[m], gpu);
    return err;
}

/* Bytes are the members', each by its own way; so are the reasons, of which the first differs. */
static void stripe_describe(struct gpunvme_store *store, struct gpunvme_path *path)
{
    const struct stripe *s = store->priv;
    struct gpunvme_path first = {0};

    for (size_t m = 0; m < s->n; m++) {
        struct gpunvme_path its;

        gpunvme_store_path(s->members[m], &its);
        for (unsigned r = 0; r < GPUNVME_NROUTES; r++) {
            path->bytes_read[r] += its.bytes_read[r];
            path->bytes_written[r] += its.bytes_written[r];
        }
        if (!m)
            first = its;
        if (its.why_not[0] && !strstr(path->why_not, its.why_not)) {
            size_t n = strlen(path->why_not);

            snprintf(path->why_not + n, sizeof(path->why_not) - n, "%smember %zu: %s",
                     n ? "; " : "", m, its.why_not);
        }
    }
    snprintf(path->how, sizeof(path->how),
             "%zu members in units of %llu KiB; the first by %s: %.160s", s->n,
             (unsigned long long)(s->unit >> 10), first.backend, first.how);
}

static void stripe_about(struct gpunvme_backend_info *info)
{
    info->works = true;
    snprintf(info->why, sizeof(info->why), "several stores as one; gpunvme stripe makes such sets");
}

const struct store_backend store_stripe = {
    .name = "stripe",
    .option_bit = STORE_STRIPE,
    .open = stripe_open,
    .close = stripe_close,
    .size = stripe_size,
    .submit = stripe_submit,
    .cancel = stripe_cancel,
    .prefix = stripe_prefix,
    .direct = stripe_direct,
    .prepare = stripe_prepare,
    .about = stripe_about,
    .describe = stripe_describe,
};
