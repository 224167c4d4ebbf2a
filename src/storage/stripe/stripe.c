/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The stripe backend: several stores as one, RAID 0. A transfer becomes a transfer for each unit
 * that it touches, all submitted at once. It has no threads of its own: the members tell it their
 * ends.
 *
 * Members are known by their headers, so their order in the URI does not matter.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "storage/internal.h"
#include "storage/stripe/header.h"

struct share;

struct stripe {
    size_t n;
    struct gpunvme_store *members[STRIPE_MAX_MEMBERS]; /* by index; the rest NULL */
    uint64_t unit, nbytes;
    unsigned unit_shift;
    pthread_mutex_t lock;
    struct share *shares; /* in flight */
};

/* ---- Where bytes are ------------------------------------------------------------------------- */

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

/* How many of `nbytes` bytes from `offset` on are inside the set. */
static size_t inside(const struct stripe *s, uint64_t offset, size_t nbytes)
{
    if (offset >= s->nbytes)
        return 0;
    return nbytes > s->nbytes - offset ? (size_t)(s->nbytes - offset) : nbytes;
}

/* ---- Transfers ------------------------------------------------------------------------------- */

/* A part of a transfer of the set, which a transfer of a member stands for. */
struct part {
    struct gpunvme_io *whole;
    size_t at; /* byte of it; of a flush the member */
};

/* What one submission asks of the members. whole->priv.next is the first part of a transfer. */
struct share {
    struct gpunvme_store *store; /* which stays open meanwhile */
    struct share *next, **link;  /* of those in flight, under the stripe's lock */
    size_t running;              /* parts that have not ended, and whoever works on it; atomic */
    struct part *parts;          /* behind the transfers */
    size_t n;
    struct gpunvme_io ios[];
};

static void enlist(struct share *share)
{
    struct stripe *s = share->store->priv;

    pthread_mutex_lock(&s->lock);
    share->next = s->shares;
    share->link = &s->shares;
    if (s->shares)
        s->shares->link = &share->next;
    s->shares = share;
    pthread_mutex_unlock(&s->lock);
}

static void leave(struct share *share)
{
    struct gpunvme_store *store = share->store;
    struct stripe *s = store->priv;

    if (__atomic_sub_fetch(&share->running, 1, __ATOMIC_ACQ_REL))
        return;
    pthread_mutex_lock(&s->lock);
    *share->link = share->next;
    if (share->next)
        share->next->link = share->link;
    pthread_mutex_unlock(&s->lock);
    free(share);
    atomic_fetch_sub(&store->in_flight, 1); /* the last touch: now it may be closed */
}

/* A member is never shorter than the set's part of it, unless somebody cuts it off meanwhile. */
static gpunvme_err_t check_end(const struct gpunvme_io *io)
{
    if (io->err)
        return store_tell_of(io);
    if (io->done < io->nbytes)
        return base_fail(GPUNVME_ERR_IO, "%s ends at byte %llu, inside the stripe set",
                         io->store->uri.text, (unsigned long long)(io->offset + io->done));
    return GPUNVME_OK;
}

static void end_part(struct share *share, size_t i, gpunvme_err_t err)
{
    const struct gpunvme_io *io = &share->ios[i];
    const struct part *part = &share->parts[i];

    if (io->op != GPUNVME_OP_FLUSH) {
        store_io_add_routes(part->whole, io->routes);
        store_io_piece(part->whole, part->at, io->nbytes, err, io->done);
    } else {
        if (err)
            store_io_stop(part->whole, part->at, err);
        store_io_ended(part->whole, 1);
    }
    leave(share);
}

static void part_ended(struct gpunvme_io *io)
{
    struct share *share = io->user;

    end_part(share, (size_t)(io - share->ios), check_end(io));
}

static struct share *make_share(struct gpunvme_store *store, size_t n)
{
    struct share *share =
        calloc(1, sizeof(*share) + n * (sizeof(share->ios[0]) + sizeof(share->parts[0])));

    if (!share)
        return NULL;
    share->store = store;
    share->parts = (struct part *)&share->ios[n];
    share->running = n + 1;
    atomic_fetch_add(&store->in_flight, 1);
    return share;
}

static void add_part(struct share *share, struct gpunvme_io *whole, size_t at, struct gpunvme_io io)
{
    io.op = whole->op;
    io.callback = part_ended;
    io.user = share;
    share->parts[share->n] = (struct part){.whole = whole, .at = at};
    share->ios[share->n++] = io;
}

/*
 * Goes through the units of an element: counts them, or adds them to the share, and what lies
 * behind the end of the set to *outside. Nothing is moved there, and that is no error.
 */
static size_t split_span(const struct stripe *s, struct gpunvme_io *whole, size_t at,
                         const struct store_span *span, struct share *share, size_t *outside)
{
    size_t nbytes = inside(s, span->offset, span->nbytes), n = 0;

    for (size_t done = 0; done < nbytes; n++) {
        struct place p = locate(s, span->offset + done, nbytes - done);

        if (share)
            add_part(share, whole, at + done,
                     (struct gpunvme_io){.store = s->members[p.member],
                                         .mem = span->mem,
                                         .offset = p.offset,
                                         .ptr = span->ptr + done,
                                         .nbytes = p.nbytes});
        done += p.nbytes;
    }
    if (share && nbytes < span->nbytes) {
        store_io_stop(whole, at + nbytes, GPUNVME_OK);
        *outside += span->nbytes - nbytes;
    }
    return n;
}

/* Likewise of a transfer; a flush has a part for each member. */
static size_t split(const struct stripe *s, struct gpunvme_io *whole, struct share *share,
                    size_t *outside)
{
    size_t n = 0, at = 0;

    if (whole->op == GPUNVME_OP_FLUSH) {
        for (; share && n < s->n; n++)
            add_part(share, whole, n, (struct gpunvme_io){.store = s->members[n]});
        return s->n;
    }
    for (size_t k = 0; k < store_io_nspans(whole); k++) {
        struct store_span span = store_io_span(whole, k, at);

        n += split_span(s, whole, at, &span, share, outside);
        at += span.nbytes;
    }
    return n;
}

static void submit_parts(struct share *share)
{
    gpunvme_err_t err = gpunvme_io_submit(share->ios, share->n, NULL);
    struct base_failure failure;

    if (!err)
        return;
    base_keep(&failure, err);
    for (size_t i = 0; i < share->n; i++)
        end_part(share, i, base_restore(&failure));
}

static void fail_all(struct gpunvme_io *first)
{
    struct gpunvme_io *next;

    for (; first; first = next) {
        next = first->priv.next;
        store_io_end(first, base_fail(GPUNVME_ERR_NOMEM, "parts of a transfer"), 0);
    }
}

static void stripe_submit(struct gpunvme_store *store, struct gpunvme_io *first, size_t nios)
{
    struct stripe *s = store->priv;
    struct share *share;
    struct gpunvme_io *next;
    size_t n = 0;

    (void)nios;
    for (struct gpunvme_io *io = first; io; io = io->priv.next)
        n += split(s, io, NULL, NULL);
    share = make_share(store, n);
    if (!share) {
        fail_all(first);
        return;
    }
    for (struct gpunvme_io *io = first; io; io = next) {
        size_t before = share->n, outside = 0;

        next = io->priv.next; /* it may be over and gone by the last line */
        split(s, io, share, &outside);
        __atomic_store_n(&io->priv.next, &share->ios[before], __ATOMIC_RELEASE);
        if (io->op == GPUNVME_OP_FLUSH)
            io->priv.left = s->n;
        else if (outside)
            store_io_ended(io, outside);
    }
    enlist(share);
    submit_parts(share);
    leave(share);
}

/* Works on a share from here on, unless nobody did any more: then it is about to be freed. */
static bool enter(struct share *share)
{
    size_t running = __atomic_load_n(&share->running, __ATOMIC_RELAXED);

    while (running && !__atomic_compare_exchange_n(&share->running, &running, running + 1, true,
                                                   __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
    return running != 0;
}

/* The share that a transfer's parts are in, held; NULL: they have ended. */
static struct share *hold(struct stripe *s, const struct gpunvme_io *whole)
{
    const struct gpunvme_io *part = __atomic_load_n(&whole->priv.next, __ATOMIC_ACQUIRE);
    struct share *share;

    pthread_mutex_lock(&s->lock);
    share = s->shares;
    while (share && !(part >= share->ios && part < share->ios + share->n))
        share = share->next;
    if (share && !enter(share))
        share = NULL;
    pthread_mutex_unlock(&s->lock);
    return share;
}

static void stripe_cancel(struct gpunvme_store *store, struct gpunvme_io *whole)
{
    struct share *share = hold(store->priv, whole);

    if (!share)
        return;
    for (size_t i = 0; i < share->n; i++)
        if (share->parts[i].whole == whole)
            gpunvme_io_cancel(&share->ios[i]);
    leave(share);
}

static size_t stripe_prefix(struct gpunvme_store *store, const struct gpunvme_io *whole)
{
    struct share *share = hold(store->priv, whole);
    size_t prefix = whole->priv.total;

    if (!share)
        return prefix;
    for (size_t i = 0; i < share->n; i++) {
        const struct gpunvme_io *io = &share->ios[i];
        size_t moved = share->parts[i].whole == whole ? gpunvme_io_moved(io) : io->nbytes;

        if (moved < io->nbytes && share->parts[i].at + moved < prefix)
            prefix = share->parts[i].at + moved;
    }
    leave(share);
    return prefix;
}

/*
 * A transfer inside one unit is the member's, where it would have it in this thread: then nothing
 * is left of it when this returns. A member that takes longer than the set may is not asked.
 */
static bool stripe_direct(struct gpunvme_store *store, struct gpunvme_io *io)
{
    const struct stripe *s = store->priv;
    size_t nbytes = inside(s, io->offset, io->nbytes);
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
    io->routes = its.routes;
    io->err = check_end(&its);
    return true;
}

/* ---- Opening --------------------------------------------------------------------------------- */

/*
 * Takes the next of the members that "URI;URI;…" names, with %3B in it decoded. What follows is
 * *text; NULL: nothing does.
 */
static void take_member(const char **text, char uri[STORE_TARGET_ROOM])
{
    const char *from = *text;

    for (; *from && *from != ';'; uri++) {
        bool coded = from[0] == '%' && from[1] == '3' && (from[2] == 'B' || from[2] == 'b');

        *uri = coded ? ';' : *from;
        from += coded ? 3 : 1;
    }
    *uri = 0;
    *text = *from ? from + 1 : NULL;
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
    if (err != GPUNVME_ERR_TIMEOUT) /* else the read goes on: its memory is left to it */
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
    pthread_mutex_destroy(&s->lock);
    return failure.err ? base_restore(&failure) : GPUNVME_OK;
}

static gpunvme_err_t count_members(const char *text, size_t *n)
{
    char uri[STORE_TARGET_ROOM];

    for (*n = 0; text; ++*n) {
        take_member(&text, uri);
        if (!uri[0])
            return base_fail(GPUNVME_ERR_URI,
                             "member %zu has no name: members are separated by one ';'", *n);
    }
    return *n <= STRIPE_MAX_MEMBERS
               ? GPUNVME_OK
               : base_fail(GPUNVME_ERR_LIMIT, "more than %u members", STRIPE_MAX_MEMBERS);
}

static gpunvme_err_t open_all(struct gpunvme_store *store, struct stripe *s,
                              struct stripe_member *members)
{
    struct gpunvme_store *opened[STRIPE_MAX_MEMBERS];
    const char *text = store->uri.target;
    char uri[STORE_TARGET_ROOM];
    size_t order[STRIPE_MAX_MEMBERS];
    gpunvme_err_t err = count_members(text, &s->n);

    for (size_t i = 0; i < s->n && !err; i++) {
        take_member(&text, uri);
        err = open_member(store, uri, &members[i], &s->members[i]);
    }
    if (!err)
        err = stripe_set_check(members, s->n, order);
    if (err)
        return err;
    memcpy(opened, s->members, sizeof(opened));
    for (size_t i = 0; i < s->n; i++)
        s->members[i] = opened[order[i]];
    describe_set(store, s, &members[0].header);
    return check_blocks(store, s);
}

static gpunvme_err_t stripe_open(struct gpunvme_store *store)
{
    struct stripe_member *members = calloc(STRIPE_MAX_MEMBERS, sizeof(*members));
    struct stripe *s = store->priv;
    gpunvme_err_t err;

    pthread_mutex_init(&s->lock, NULL);
    if (!members)
        return base_fail(GPUNVME_ERR_NOMEM, "a list of members");
    err = open_all(store, s, members);
    free(members);
    return err;
}

/* ---- The rest -------------------------------------------------------------------------------- */

static gpunvme_err_t stripe_size(struct gpunvme_store *store, uint64_t *nbytes)
{
    const struct stripe *s = store->priv;

    *nbytes = s->nbytes;
    return GPUNVME_OK;
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
        if (its.why_not[0] && !strstr(path->why_not, its.why_not))
            STORE_SAY(path->why_not, "%smember %zu: %s", path->why_not[0] ? "; " : "", m,
                      its.why_not);
    }
    snprintf(path->how, sizeof(path->how),
             "%zu members in units of %llu KiB; the first by %s: %.160s", s->n,
             (unsigned long long)(s->unit >> 10), first.backend, first.how);
}

const struct store_backend store_stripe = {
    .name = "stripe",
    .option_bit = STORE_STRIPE,
    .open = stripe_open,
    .priv_nbytes = sizeof(struct stripe),
    .close = stripe_close,
    .size = stripe_size,
    .submit = stripe_submit,
    .cancel = stripe_cancel,
    .prefix = stripe_prefix,
    .direct = stripe_direct,
    .works_with = "several stores as one; gpunvme stripe makes such sets",
    .describe = stripe_describe,
};
