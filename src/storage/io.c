/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Transfers: what they are checked for, how their parts come together, and how their end is told.
 */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/fail.h"
#include "storage/batch.h"
#include "storage/crew.h"
#include "storage/futex.h"
#include "storage/internal.h"
#include "storage/stream.h"

/*
 * priv.state. A transfer in flight is PENDING, or WAITED once somebody sleeps on it; who ends it
 * stores ENDED with release and then touches it no more, but for the wake-up by its address.
 * COLLECTED: a batch has it, until it is polled.
 */
enum { IDLE = 0, PENDING = 1, WAITED = 2, ENDED = 3, COLLECTED = 4 };

/* Parts that stop short are rare; one lock serves all transfers. */
pthread_mutex_t store_stop_lock = PTHREAD_MUTEX_INITIALIZER;

bool store_io_is_in_flight(const struct gpunvme_io *io)
{
    uint32_t state = __atomic_load_n(&io->priv.state, __ATOMIC_ACQUIRE);

    return state == PENDING || state == WAITED || state == COLLECTED;
}

/* ---- Checks ---------------------------------------------------------------------------------- */

static gpunvme_err_t check_memory(const void *ptr, size_t nbytes, enum gpunvme_mem mem)
{
    if (mem != GPUNVME_MEM_HOST && mem != GPUNVME_MEM_PINNED && mem != GPUNVME_MEM_GPU)
        return base_fail(GPUNVME_ERR_INVALID, "memory of kind %d", (int)mem);
    if (nbytes && !ptr)
        return base_fail(GPUNVME_ERR_INVALID, "%zu bytes at NULL", nbytes);
    return GPUNVME_OK;
}

/* A range of a store. Those of fixed size refuse what does not fit before anything is written. */
static gpunvme_err_t check_range(const struct gpunvme_io *io, uint64_t offset, size_t nbytes,
                                 uint64_t store_nbytes)
{
    if (offset > INT64_MAX || nbytes > INT64_MAX - offset)
        return base_fail(GPUNVME_ERR_RANGE, "%zu bytes at offset %llu", nbytes,
                         (unsigned long long)offset);
    if (io->op == GPUNVME_OP_WRITE && (offset > store_nbytes || nbytes > store_nbytes - offset))
        return base_fail(GPUNVME_ERR_RANGE, "%zu bytes at offset %llu, of %llu", nbytes,
                         (unsigned long long)offset, (unsigned long long)store_nbytes);
    return GPUNVME_OK;
}

/* An array of so many elements can't be. */
static gpunvme_err_t check_count(size_t n, size_t nbytes_each)
{
    return n <= SIZE_MAX / nbytes_each ? GPUNVME_OK
                                       : base_fail(GPUNVME_ERR_INVALID, "%zu elements", n);
}

static gpunvme_err_t check_vector(const struct gpunvme_io *io, uint64_t store_nbytes)
{
    gpunvme_err_t err = check_count(io->n, sizeof(io->vecs[0]));
    size_t total = 0;

    if (err)
        return err;
    for (size_t k = 0; k < io->n; k++) {
        const struct gpunvme_vec *vec = &io->vecs[k];

        err = check_memory(vec->ptr, vec->nbytes, vec->mem);
        if (err)
            return err;
        if (__builtin_add_overflow(total, vec->nbytes, &total))
            return base_fail(GPUNVME_ERR_RANGE, "more than 2^64 bytes");
    }
    return check_range(io, io->offset, total, store_nbytes);
}

static gpunvme_err_t check_gather(const struct gpunvme_io *io, uint64_t store_nbytes)
{
    gpunvme_err_t err = check_memory(io->ptr, io->n ? io->nbytes : 0, io->mem);
    size_t total, place;

    if (!err)
        err = check_count(io->n, sizeof(io->offsets[0]));
    if (!err && (__builtin_mul_overflow(io->n, io->nbytes, &total) ||
                 __builtin_mul_overflow(io->n, io->stride, &place)))
        err = base_fail(GPUNVME_ERR_RANGE, "more than 2^64 bytes");
    if (!err && io->op == GPUNVME_OP_READ && io->n > 1 && io->stride < io->nbytes)
        err = base_fail(GPUNVME_ERR_INVALID, "ranges of %zu bytes at a stride of %zu overlap",
                        io->nbytes, io->stride);
    for (size_t k = 0; k < io->n && !err; k++)
        err = check_range(io, io->offsets[k], io->nbytes, store_nbytes);
    return err;
}

static gpunvme_err_t check_shape(const struct gpunvme_io *io, uint64_t store_nbytes)
{
    gpunvme_err_t err;

    if (io->vecs && io->offsets)
        return base_fail(GPUNVME_ERR_INVALID, "both vecs and offsets");
    if (io->vecs)
        return check_vector(io, store_nbytes);
    if (io->offsets)
        return check_gather(io, store_nbytes);
    err = check_memory(io->ptr, io->nbytes, io->mem);
    return err ? err : check_range(io, io->offset, io->nbytes, store_nbytes);
}

static gpunvme_err_t check(const struct gpunvme_io *io)
{
    struct gpunvme_store *store = io->store;
    uint64_t store_nbytes = UINT64_MAX;
    gpunvme_err_t err;

    if (!store)
        return base_fail(GPUNVME_ERR_INVALID, "its store is NULL");
    err = store_is_ours(store);
    if (err)
        return err;
    if (io->op != GPUNVME_OP_READ && io->op != GPUNVME_OP_WRITE && io->op != GPUNVME_OP_FLUSH)
        return base_fail(GPUNVME_ERR_INVALID, "op %d", (int)io->op);
    if (store_io_is_in_flight(io))
        return base_fail(GPUNVME_ERR_INVALID, "it has not ended, or its end was not polled");
    if (atomic_load(&store->closing))
        return base_fail(GPUNVME_ERR_CLOSED, "%s is being closed", store->uri.text);
    if (io->op == GPUNVME_OP_FLUSH)
        return GPUNVME_OK;
    if (io->op == GPUNVME_OP_WRITE && !(store->flags & GPUNVME_OPEN_WRITE))
        return base_fail(GPUNVME_ERR_READONLY, "%s was opened for reading", store->uri.text);
    if (io->op == GPUNVME_OP_WRITE && !store->resizable)
        err = store->backend->size(store, &store_nbytes);
    return err ? err : check_shape(io, store_nbytes);
}

gpunvme_err_t store_io_check(const struct gpunvme_io *ios, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        gpunvme_err_t err = check(&ios[i]);
        struct base_failure why;

        if (!err)
            continue;
        base_keep(&why, err);
        return base_fail(err, "transfer %zu: %s", i, why.detail);
    }
    return GPUNVME_OK;
}

/* ---- Submission ------------------------------------------------------------------------------ */

size_t store_io_total(const struct gpunvme_io *io)
{
    size_t total = 0;

    if (io->op == GPUNVME_OP_FLUSH)
        return 0;
    if (io->offsets)
        return io->n * io->nbytes;
    if (!io->vecs)
        return io->nbytes;
    for (size_t k = 0; k < io->n; k++)
        total += io->vecs[k].nbytes;
    return total;
}

/* Of a vector each element has its own: the crew looks for them. */
static struct store_region *region_of(const struct gpunvme_io *io, const struct gpunvme_io *near)
{
    size_t nbytes = io->nbytes;

    if (io->op == GPUNVME_OP_FLUSH || io->vecs)
        return NULL;
    if (io->offsets)
        nbytes = io->n ? (io->n - 1) * io->stride + io->nbytes : 0;
    if (near && near->priv.region && near->store->engine == io->store->engine &&
        store_region_hold_too(near->priv.region, io->ptr, nbytes, io->mem))
        return near->priv.region;
    return store_regions_hold(store_engine_regions(io->store->engine), io->ptr, nbytes, io->mem);
}

/* `near`: one that is prepared and not begun; NULL: none. */
static void prepare(struct gpunvme_io *io, struct gpunvme_batch *batch,
                    const struct gpunvme_io *near)
{
    io->err = GPUNVME_OK;
    io->routes = 0;
    io->done = 0;
    io->priv.next = NULL;
    io->priv.batch = io->callback ? NULL : batch;
    io->priv.is_ordered = false;
    io->priv.region = region_of(io, near);
    io->priv.total = io->priv.left = store_io_total(io);
    io->priv.taken = io->priv.at = io->priv.in = 0;
    io->priv.stop = SIZE_MAX;
    io->priv.why = GPUNVME_OK;
    io->priv.detail = 0;
    atomic_fetch_add(&io->store->in_flight, 1);
    __atomic_store_n(&io->priv.state, PENDING, __ATOMIC_RELEASE);
}

#define AHEAD 8u

/* Other processors count in the stores what has ended. */
void store_io_begin(struct gpunvme_io *ios, size_t n, struct gpunvme_batch *batch)
{
    for (size_t i = 0; i < n; i++) {
        if (i + AHEAD < n)
            __builtin_prefetch(&ios[i + AHEAD].store->in_flight, 1);
        prepare(&ios[i], batch, i ? &ios[i - 1] : NULL);
    }
}

#define AT_ONCE 1024u

/* Those that the crew or the store of the first one serves go to it together. */
static void hand_over(struct gpunvme_io *ios, size_t n, bool *is_gone)
{
    struct gpunvme_store *store = ios[0].store;
    struct gpunvme_io *first = NULL, **last = &first;
    size_t nfound = 0;

    for (size_t i = 0; i < n; i++) {
        if (is_gone[i] ||
            (ios[i].store != store && (!store->crew || ios[i].store->crew != store->crew)))
            continue;
        is_gone[i] = true;
        *last = &ios[i];
        last = &ios[i].priv.next;
        nfound++;
    }
    if (store->crew)
        crew_submit(store->crew, first, nfound);
    else
        store->backend->submit(store, first, nfound);
}

static void start_some(struct gpunvme_io *ios, size_t n, struct gpunvme_batch *batch)
{
    bool is_gone[AT_ONCE]; /* it may have ended, and be the caller's again */

    store_io_begin(ios, n, batch);
    for (size_t i = 0; i < n; i++) {
        is_gone[i] = !ios[i].priv.total && ios[i].op != GPUNVME_OP_FLUSH;
        if (is_gone[i])
            store_io_end(&ios[i], GPUNVME_OK, 0);
    }
    for (size_t i = 0; i < n; i++)
        if (!is_gone[i])
            hand_over(&ios[i], n - i, &is_gone[i]);
}

/* Threads begin with the first ones while the others are made ready. */
void store_io_start(struct gpunvme_io *ios, size_t n, struct gpunvme_batch *batch)
{
    for (size_t at = 0; at < n; at += AT_ONCE)
        start_some(&ios[at], n - at < AT_ONCE ? n - at : AT_ONCE, batch);
}

gpunvme_err_t gpunvme_io_submit(struct gpunvme_io *ios, size_t n, struct gpunvme_batch *batch)
{
    gpunvme_err_t err;

    if (n && !ios)
        return base_fail(GPUNVME_ERR_INVALID, "ios is NULL");
    err = store_io_check(ios, n);
    if (!err && batch)
        err = store_batch_expect(batch, ios, n);
    if (!err)
        store_io_start(ios, n, batch);
    return err;
}

/* ---- What went wrong ------------------------------------------------------------------------- */

#define NDETAILS    256u
#define DETAIL_ROOM 256u

pthread_mutex_t store_details_lock = PTHREAD_MUTEX_INITIALIZER;

/* Of the transfers that failed last; a transfer knows the number of its text. */
static struct {
    uint64_t last; /* numbers from 1 on */
    char texts[NDETAILS][DETAIL_ROOM];
} details;

void store_io_blame(struct gpunvme_io *io, gpunvme_err_t err)
{
    io->err = err;
    pthread_mutex_lock(&store_details_lock);
    io->priv.detail = ++details.last;
    snprintf(details.texts[details.last % NDETAILS], DETAIL_ROOM, "%s", gpunvme_err_detail());
    pthread_mutex_unlock(&store_details_lock);
}

const char *gpunvme_io_detail(const struct gpunvme_io *io, char *text, size_t room)
{
    if (!text || !room)
        return "";
    text[0] = 0;
    if (!io || !io->err || !io->priv.detail)
        return text;
    pthread_mutex_lock(&store_details_lock);
    if (details.last - io->priv.detail < NDETAILS)
        snprintf(text, room, "%s", details.texts[io->priv.detail % NDETAILS]);
    pthread_mutex_unlock(&store_details_lock);
    return text;
}

/* A long URI must not push what is said behind it out of the detail. */
#define NAME_CHARS 40

gpunvme_err_t store_tell_of(const struct gpunvme_io *io)
{
    const char *name = io->store->uri.text;
    bool is_long = strlen(name) > NAME_CHARS + 3;
    char text[DETAIL_ROOM];

    gpunvme_io_detail(io, text, sizeof(text));
    return base_fail(io->err, "%.*s%s%s%s", is_long ? NAME_CHARS : NAME_CHARS + 3, name,
                     is_long ? "..." : "", text[0] ? ": " : "", text);
}

/* ---- The end --------------------------------------------------------------------------------- */

/*
 * What this thread has ended of a batch and not told. Workers tell many small ones at a time: else
 * they would queue up for the batch's lock. Large ones are told at once, and what came before.
 */
#define TELL_AT_ONCE 64u
#define TELL_NBYTES  (64u << 10)

struct untold {
    struct gpunvme_batch *batch;
    struct gpunvme_io *ios[TELL_AT_ONCE];
    struct gpunvme_store *stores[TELL_AT_ONCE]; /* a transfer is the caller's once told */
    size_t n;
    struct gpunvme_store *counted; /* by which so many have ended that it does not know of */
    size_t ncounted;
};

static _Thread_local struct untold untold;
static _Thread_local bool tells_late;

/* The last touch of a store: now it may be closed. */
static void count(void)
{
    struct untold *u = &untold;
    size_t n = u->ncounted;

    if (!n)
        return;
    u->ncounted = 0;
    atomic_fetch_add_explicit(&u->counted->progress, n, memory_order_relaxed);
    atomic_fetch_sub(&u->counted->in_flight, n);
}

/* One has ended: workers tell a store of many at once. */
static void has_ended(struct gpunvme_store *store)
{
    struct untold *u = &untold;

    if (u->counted != store)
        count();
    u->counted = store;
    u->ncounted++;
}

static void tell_batch(void)
{
    struct untold *u = &untold;
    size_t n = u->n;

    if (!n)
        return;
    u->n = 0;
    store_batch_push(u->batch, u->ios, n);
    for (size_t i = 0; i < n; i++)
        has_ended(u->stores[i]);
}

void store_io_tell(void)
{
    tell_batch();
    count();
}

void store_io_tell_late(void)
{
    tells_late = true;
}

static void end_in_batch(struct gpunvme_io *io, struct gpunvme_batch *batch)
{
    struct untold *u = &untold;
    size_t nbytes = io->priv.total;

    __atomic_store_n(&io->priv.state, COLLECTED, __ATOMIC_RELEASE);
    if (u->n == TELL_AT_ONCE || (u->n && u->batch != batch))
        tell_batch();
    u->batch = batch;
    u->stores[u->n] = io->store;
    u->ios[u->n++] = io;
    if (!tells_late || nbytes > TELL_NBYTES)
        store_io_tell();
}

static void end(struct gpunvme_io *io, gpunvme_err_t err, size_t done)
{
    struct gpunvme_store *store = io->store;
    struct gpunvme_batch *batch = io->priv.batch;

    store_region_release(io->priv.region);
    io->priv.region = NULL;
    io->err = err;
    io->done = done;
    if (io->callback) {
        __atomic_store_n(&io->priv.state, IDLE, __ATOMIC_RELEASE);
        tell_batch(); /* the caller's code may wait for somebody who waits for these */
        io->callback(io);
    } else if (batch) {
        end_in_batch(io, batch);
        return;
    } else if (__atomic_exchange_n(&io->priv.state, ENDED, __ATOMIC_ACQ_REL) == WAITED) {
        futex_wake(&io->priv.state, INT_MAX);
    }
    has_ended(store);
    if (!tells_late)
        count();
}

void store_io_polled(struct gpunvme_io *io)
{
    __atomic_store_n(&io->priv.state, IDLE, __ATOMIC_RELEASE);
}

void store_io_end(struct gpunvme_io *io, gpunvme_err_t err, size_t done)
{
    if (err)
        store_io_blame(io, err);
    end(io, err, done);
}

/* The lowest place where a part stopped short decides; an error there, if it was one. */
void store_io_stop(struct gpunvme_io *io, size_t at, gpunvme_err_t err)
{
    pthread_mutex_lock(&store_stop_lock);
    if (at < io->priv.stop) {
        __atomic_store_n(&io->priv.stop, at, __ATOMIC_RELAXED); /* the crew looks at it */
        io->priv.why = err;
        if (err)
            store_io_blame(io, err);
    }
    pthread_mutex_unlock(&store_stop_lock);
}

void store_io_ended(struct gpunvme_io *io, size_t nbytes)
{
    if (nbytes < __atomic_load_n(&io->priv.left, __ATOMIC_RELAXED)) /* else its end counts */
        atomic_fetch_add_explicit(&io->store->progress, 1, memory_order_relaxed);
    if (__atomic_sub_fetch(&io->priv.left, nbytes, __ATOMIC_ACQ_REL))
        return;
    if (io->priv.stop == SIZE_MAX)
        end(io, GPUNVME_OK, io->priv.total);
    else
        end(io, io->priv.why, io->op == GPUNVME_OP_FLUSH ? 0 : io->priv.stop);
}

void store_io_piece(struct gpunvme_io *io, size_t at, size_t nbytes, gpunvme_err_t err, size_t done)
{
    if (err || done < nbytes)
        store_io_stop(io, at + done, err);
    store_io_ended(io, nbytes);
}

/* ---- Waiting --------------------------------------------------------------------------------- */

/* Where it begins in its store, for messages. */
static uint64_t first_of(const struct gpunvme_io *io)
{
    return io->offsets && io->n ? io->offsets[0] : io->offset;
}

gpunvme_err_t gpunvme_io_test(struct gpunvme_io *io)
{
    char text[DETAIL_ROOM];
    uint32_t state;

    if (!io)
        return base_fail(GPUNVME_ERR_INVALID, "io is NULL");
    state = __atomic_load_n(&io->priv.state, __ATOMIC_ACQUIRE);
    if (state == IDLE || io->callback || io->priv.batch)
        return base_fail(GPUNVME_ERR_STALE, "it is not in flight, or its end is told elsewhere");
    if (state != ENDED)
        return GPUNVME_ERR_AGAIN;
    __atomic_store_n(&io->priv.state, IDLE, __ATOMIC_RELEASE);
    if (!io->err)
        return GPUNVME_OK;
    gpunvme_io_detail(io, text, sizeof(text));
    return base_fail(io->err, "%s%s%zu bytes at offset %llu, of which the first %zu were moved",
                     text, text[0] ? "; " : "", io->priv.total, (unsigned long long)first_of(io),
                     io->done);
}

uint64_t store_io_progress(const struct gpunvme_io *ios, size_t n)
{
    uint64_t progress = 0;

    for (size_t i = 0; i < n; i++)
        progress += atomic_load_explicit(&ios[i].store->progress, memory_order_relaxed);
    return progress;
}

#define LOOKS 8u /* at progress while a timeout passes */

uint64_t store_io_timeout(const struct gpunvme_io *ios, size_t n)
{
    uint64_t longest = 0;

    for (size_t i = 0; i < n; i++)
        if (ios[i].store->uri.options.timeout_ns > longest)
            longest = ios[i].store->uri.options.timeout_ns;
    return longest;
}

bool store_io_sleep(uint32_t *word, uint32_t value, const struct gpunvme_io *ios, size_t n,
                    uint64_t timeout_ns)
{
    uint64_t progress = 0;

    for (unsigned still = 0; __atomic_load_n(word, __ATOMIC_ACQUIRE) == value;) {
        uint64_t now;

        if (futex_wait(word, value, futex_deadline(timeout_ns / LOOKS)))
            continue;
        now = store_io_progress(ios, n); /* not before: most need not wait so long */
        if (now != progress)
            still = 0;
        else if (++still == LOOKS)
            return false;
        progress = now;
    }
    return true;
}

gpunvme_err_t gpunvme_io_wait(struct gpunvme_io *io, uint64_t timeout_ns)
{
    gpunvme_err_t err = gpunvme_io_test(io);

    if (err != GPUNVME_ERR_AGAIN)
        return err;
    if (!timeout_ns)
        timeout_ns = store_io_timeout(io, 1);
    for (;;) {
        uint32_t state = PENDING;

        __atomic_compare_exchange_n(&io->priv.state, &state, WAITED, false, __ATOMIC_ACQ_REL,
                                    __ATOMIC_ACQUIRE);
        if (state != ENDED && !store_io_sleep(&io->priv.state, WAITED, io, 1, timeout_ns))
            return base_fail(GPUNVME_ERR_TIMEOUT,
                             "a transfer of %zu bytes at offset %llu is still in flight, and "
                             "nothing has moved for %llu ms",
                             io->priv.total, (unsigned long long)first_of(io),
                             (unsigned long long)(timeout_ns / 1000000));
        err = gpunvme_io_test(io);
        if (err != GPUNVME_ERR_AGAIN)
            return err;
    }
}

/* ---- While it is in flight ------------------------------------------------------------------- */

size_t gpunvme_io_moved(const struct gpunvme_io *io)
{
    const struct gpunvme_store *store;
    uint32_t state;
    size_t prefix, stop;

    if (!io)
        return 0;
    store = io->store;
    state = __atomic_load_n(&io->priv.state, __ATOMIC_ACQUIRE);
    if (state != PENDING && state != WAITED)
        return io->done;
    if (io->priv.is_ordered)
        return store_order_moved(io);
    prefix = store->crew ? crew_prefix(store->crew, io) : store->backend->prefix(io->store, io);
    stop = __atomic_load_n(&io->priv.stop, __ATOMIC_ACQUIRE);
    return prefix < stop ? prefix : stop;
}

void gpunvme_io_cancel(struct gpunvme_io *io)
{
    uint32_t state = io ? __atomic_load_n(&io->priv.state, __ATOMIC_ACQUIRE) : IDLE;

    if (state != PENDING && state != WAITED)
        return;
    if (io->priv.is_ordered)
        store_order_cancel(io);
    else if (io->store->crew)
        crew_cancel(io->store->crew, io);
    else
        io->store->backend->cancel(io->store, io);
}
