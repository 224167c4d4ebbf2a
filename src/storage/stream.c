/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Transfers in CUDA's order. A stream calls a function that submits them, and then waits for a word
 * in pinned memory, which the end of the last one releases. The GPU knows no deadline, so a thread
 * looks after those that make no progress.
 */
#include "storage/stream.h"

#include <stdlib.h>

#include "base/cond.h"
#include "base/fail.h"
#include "gpunvme/memory.h"
#include "memory/cuda.h"
#include "storage/batch.h"
#include "storage/futex.h"
#include "storage/internal.h"

#define NWORDS 1024u /* submissions in flight at once */

/*
 * The transfers of one submission. Its life, under the lock: waiting for the stream to come to it;
 * begun; and ended when all have ended, or before that, late, when they made no progress for too
 * long. Then their callers have been told, and the transfers' own end is all that is left.
 */
struct group {
    size_t n, running; /* transfers; those that have not ended, and one for whoever works on it */
    int word;          /* -1: nobody waits for it */
    uint32_t value;    /* that releases the stream */
    void *stream;      /* of ours; NULL: none */
    uint64_t deadline;
    struct look {
        size_t nleft; /* that have not ended */
        uint64_t progress, timeout_ns;
    } last;                   /* when the deadline was set */
    struct group *next, **at; /* of those that wait for the stream, or that have begun */
    enum { WAITS, BEGINS, HAS_BEGUN } phase;
    struct gpunvme_io *told; /* the callers': whose ends are told */
    bool *is_told;           /* by transfer; behind ours */
    struct gpunvme_io ios[]; /* ours: what the backends serve */
};

/*
 * One a process. Words, and the streams of our own, are never freed: a stream may come to its wait
 * when the transfer has long ended. A word is one group's at a time, and only grows.
 */
static struct order {
    pthread_cond_t wake;
    bool is_made;
    unsigned nforks; /* when it was made */
    pthread_t keeper;
    struct group *begun, *waiting;
    struct gpunvme_buf words;
    uint32_t values[NWORDS]; /* the last one given for each */
    unsigned free_words[NWORDS], nfree;
    void *streams[NWORDS]; /* that nobody uses now */
    unsigned nstreams;
} order;

pthread_mutex_t store_order_lock = PTHREAD_MUTEX_INITIALIZER; /* of `order` */

/* ---- The end --------------------------------------------------------------------------------- */

/* Tells the caller of one transfer. Under the lock; once. */
static void tell(struct group *group, size_t i, gpunvme_err_t err, size_t done)
{
    group->is_told[i] = true;
    store_io_end(&group->told[i], err, done);
}

/* All have been told: lets the stream go on. Under the lock. */
static void release(struct group *group)
{
    if (group->word >= 0) {
        store_io_tell();
        /* Last: what the stream does next may free what the transfers used. */
        mem_cuda_user_stream_release((uint32_t *)order.words.cpu + group->word, group->value);
        order.free_words[order.nfree++] = (unsigned)group->word;
        group->word = -1;
    }
    if (group->stream && order.nstreams < NWORDS)
        order.streams[order.nstreams++] = group->stream;
    group->stream = NULL;
}

static void leave(struct group *group)
{
    if (!group->at)
        return;
    *group->at = group->next;
    if (group->next)
        group->next->at = group->at;
    group->at = NULL;
}

/* Under the lock: one that worked on it does so no more. */
static void let_go(struct group *group)
{
    if (--group->running)
        return;
    leave(group);
    release(group);
    free(group);
}

/* One of ours has ended: its callback. */
static void ended(struct gpunvme_io *io)
{
    struct group *group = io->user;
    size_t i = (size_t)(io - group->ios);
    char text[256];

    pthread_mutex_lock(&store_order_lock);
    if (!group->is_told[i]) {
        if (io->err)
            base_fail(io->err, "%s", gpunvme_io_detail(io, text, sizeof(text)));
        group->told[i].routes = io->routes;
        tell(group, i, io->err, io->done);
    }
    io->user = NULL;
    let_go(group);
    pthread_mutex_unlock(&store_order_lock);
}

/*
 * Under the lock: how far their stores are, and the longest timeout. Of transfers that have ended
 * the store may be closed, so they are not looked at.
 */
static struct look look(const struct group *group)
{
    struct look look = {0};

    for (size_t i = 0; i < group->n; i++) {
        const struct gpunvme_io *io = &group->ios[i];
        uint64_t timeout_ns;

        if (!io->user)
            continue;
        look.nleft++;
        look.progress += store_io_progress(io, 1);
        timeout_ns = store_io_timeout(io, 1);
        if (timeout_ns > look.timeout_ns)
            look.timeout_ns = timeout_ns;
    }
    return look;
}

/* Under the lock. */
static void set_deadline(struct group *group)
{
    group->last = look(group);
    group->deadline = futex_deadline(group->last.timeout_ns);
}

/* Under the lock: since its deadline was set, nothing has moved or ended. */
static bool stands_still(const struct group *group)
{
    struct look now = look(group);

    return now.nleft == group->last.nleft && now.progress == group->last.progress;
}

/* Under the lock. */
static void enlist(struct group *group, struct group **list)
{
    leave(group);
    group->next = *list;
    group->at = list;
    if (group->next)
        group->next->at = &group->next;
    *list = group;
}

/*
 * The stream has come to it. On a thread of CUDA's, which must not call CUDA: nothing here does.
 * Those whose ends are to be told keep their stores open until they are; those that were told
 * already, for they were canceled, do not begin. From now on there is a deadline.
 */
static void begin(void *group_)
{
    struct group *group = group_;
    size_t nstarted = 0;

    pthread_mutex_lock(&store_order_lock);
    group->phase = BEGINS;
    pthread_mutex_unlock(&store_order_lock);
    for (size_t i = 0, n; i < group->n; i += n ? n : 1) {
        for (n = 0; i + n < group->n && !group->is_told[i + n];)
            n++;
        if (n)
            store_io_start(&group->ios[i], n, NULL);
        else
            group->ios[i].user = NULL;
        nstarted += n;
    }
    pthread_mutex_lock(&store_order_lock);
    group->running -= group->n - nstarted;
    group->phase = HAS_BEGUN;
    set_deadline(group);
    enlist(group, &order.begun);
    pthread_cond_signal(&order.wake);
    let_go(group);
    pthread_mutex_unlock(&store_order_lock);
}

/* ---- Cancel, and how far one is -------------------------------------------------------------- */

/*
 * Under the lock, which is let go of meanwhile: the end of what is canceled takes it. Somebody
 * works on the group.
 */
static void cancel_ours(struct group *group, size_t i)
{
    struct gpunvme_store *store = group->ios[i].store;

    if (!group->ios[i].user) /* it has ended, and its store may be closed */
        return;
    atomic_fetch_add(&store->in_flight, 1);
    pthread_mutex_unlock(&store_order_lock);
    gpunvme_io_cancel(&group->ios[i]);
    pthread_mutex_lock(&store_order_lock);
    atomic_fetch_sub(&store->in_flight, 1);
}

/* Under the lock: the group that a transfer, whose end has not been told, is the i-th of. */
static struct group *find(const struct gpunvme_io *io, size_t *i)
{
    struct group *lists[] = {order.begun, order.waiting};

    for (unsigned l = 0; l < 2; l++) {
        for (struct group *group = lists[l]; group; group = group->next) {
            if (io < group->told || io >= group->told + group->n)
                continue;
            *i = (size_t)(io - group->told);
            if (!group->is_told[*i])
                return group;
        }
    }
    return NULL;
}

void store_order_cancel(struct gpunvme_io *io)
{
    struct group *group;
    size_t i;

    pthread_mutex_lock(&store_order_lock);
    group = find(io, &i);
    if (group && group->phase == WAITS) {
        base_fail(GPUNVME_ERR_CANCELED, "before its stream came to it");
        tell(group, i, GPUNVME_ERR_CANCELED, 0);
    } else if (group && group->phase == HAS_BEGUN) {
        group->running++;
        cancel_ours(group, i);
        let_go(group);
    }
    pthread_mutex_unlock(&store_order_lock);
}

size_t store_order_moved(const struct gpunvme_io *io)
{
    const struct group *group;
    size_t i, moved;

    pthread_mutex_lock(&store_order_lock);
    group = find(io, &i);
    if (!group)
        moved = io->done; /* it has ended meanwhile */
    else
        moved = group->phase == HAS_BEGUN ? gpunvme_io_moved(&group->ios[i]) : 0;
    pthread_mutex_unlock(&store_order_lock);
    return moved;
}

/* ---- The keeper ------------------------------------------------------------------------------ */

/* Under the lock: tells those that have not ended, and whoever waits for them. */
static void tell_late(struct group *group)
{
    leave(group);
    for (size_t i = 0; i < group->n; i++) {
        if (group->is_told[i])
            continue;
        base_fail(GPUNVME_ERR_TIMEOUT, "nothing has moved for the store's timeout since its stream "
                                       "came to it; the memory is in use until it is closed");
        tell(group, i, GPUNVME_ERR_TIMEOUT, gpunvme_io_moved(&group->ios[i]));
    }
    release(group);
}

static void cancel_rest(struct group *group)
{
    for (size_t i = 0; i < group->n; i++)
        cancel_ours(group, i);
    let_go(group);
}

/* Under the lock: one that is late; *next is when to look again. */
static struct group *find_late(uint64_t *next)
{
    uint64_t now = futex_now();

    *next = now + 1000000000u;
    for (struct group *group = order.begun; group; group = group->next) {
        if (group->deadline <= now) {
            if (stands_still(group))
                return group;
            set_deadline(group);
        }
        if (group->deadline < *next)
            *next = group->deadline;
    }
    return NULL;
}

static void *keep(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&store_order_lock);
    for (;;) {
        uint64_t next;
        struct group *late = find_late(&next);

        if (late) {
            late->running++;
            tell_late(late);
            cancel_rest(late);
        } else if (order.begun) {
            base_cond_wait(&order.wake, &store_order_lock, next);
        } else {
            pthread_cond_wait(&order.wake, &store_order_lock);
        }
    }
    return NULL;
}

/* Under the lock. In a child the parent's keeper is missing, and so may be its words. */
static gpunvme_err_t make_order(void)
{
    gpunvme_err_t err;
    int error;

    if (order.is_made && order.nforks == store_nforks())
        return GPUNVME_OK;
    err = gpunvme_mem_alloc(NWORDS * sizeof(uint32_t), GPUNVME_MEM_PINNED, &order.words);
    if (err)
        return err;
    for (order.nfree = 0; order.nfree < NWORDS; order.nfree++)
        order.free_words[order.nfree] = NWORDS - 1 - order.nfree;
    for (unsigned i = 0; i < NWORDS; i++)
        order.values[i] = 0;
    order.begun = order.waiting = NULL;
    order.nstreams = 0;
    base_cond_init(&order.wake);
    error = store_start_thread(&order.keeper, keep, NULL);
    if (error) {
        gpunvme_mem_free(&order.words);
        return base_fail_errno(error, "a thread that looks after streams");
    }
    order.nforks = store_nforks();
    order.is_made = true;
    return GPUNVME_OK;
}

/* ---- Submission ------------------------------------------------------------------------------ */

static struct group *new_group(struct gpunvme_io *ios, size_t n)
{
    struct group *group = calloc(1, sizeof(*group) + n * (sizeof(group->ios[0]) + sizeof(bool)));

    if (!group)
        return NULL;
    group->n = n;
    group->running = n + 1;
    group->word = -1;
    group->told = ios;
    group->is_told = (bool *)&group->ios[n];
    for (size_t i = 0; i < n; i++) {
        group->ios[i] = ios[i];
        group->ios[i].callback = ended;
        group->ios[i].user = group;
    }
    return group;
}

/* Its word, where somebody will wait for it, and a stream of ours where none was given. */
static gpunvme_err_t equip(struct group *group, const struct gpunvme_order *o)
{
    bool is_waited = o->flags & GPUNVME_BEFORE_STREAM || o->done;
    bool own = (o->after && !(o->flags & GPUNVME_AFTER_STREAM)) ||
               (o->done && !(o->flags & GPUNVME_BEFORE_STREAM));
    gpunvme_err_t err;

    pthread_mutex_lock(&store_order_lock);
    err = make_order();
    if (!err && is_waited && !order.nfree)
        err = base_fail(GPUNVME_ERR_AGAIN, "%u submissions are in CUDA's order", NWORDS);
    if (!err && own && order.nstreams)
        group->stream = order.streams[--order.nstreams];
    else if (!err && own)
        err = mem_cuda_user_stream_create(&group->stream);
    if (!err && is_waited) {
        group->word = (int)order.free_words[--order.nfree];
        group->value = ++order.values[group->word];
    }
    pthread_mutex_unlock(&store_order_lock);
    return err;
}

/* The streams did not take it, and nobody was told. */
static void give_up(struct group *group)
{
    pthread_mutex_lock(&store_order_lock);
    leave(group);
    release(group);
    pthread_mutex_unlock(&store_order_lock);
    free(group);
}

/* What was begun for the callers is undone. */
static void untell(struct group *group, gpunvme_err_t err)
{
    struct base_failure failure;

    base_keep(&failure, err);
    for (size_t i = 0; i < group->n; i++) {
        if (group->told[i].priv.batch)
            store_batch_forget(group->told[i].priv.batch, &group->told[i]);
        group->told[i].priv.batch = NULL;
        store_io_end(&group->told[i], base_restore(&failure), 0);
        store_io_polled(&group->told[i]); /* whoever gets the error asks no more */
    }
    base_restore(&failure);
}

/*
 * A wait that is over already shows whether the driver has them, before anything else is on the
 * stream. The group may end, and be freed, as soon as a stream has it.
 */
static gpunvme_err_t enqueue(struct group *group, struct gpunvme_batch *batch,
                             const struct gpunvme_order *o)
{
    const uint32_t *word = group->word < 0 ? NULL : (const uint32_t *)order.words.gpu + group->word;
    void *first = o->flags & GPUNVME_AFTER_STREAM ? o->stream : group->stream;
    void *last = o->flags & GPUNVME_BEFORE_STREAM ? o->stream : group->stream;
    bool is_ordered = o->flags & GPUNVME_AFTER_STREAM || o->after;
    uint32_t value = group->value;
    gpunvme_err_t err = word ? mem_cuda_user_stream_wait(last, word, value - 1) : GPUNVME_OK;

    if (!err && o->after)
        err = mem_cuda_user_stream_wait_event(first, o->after);
    if (!err && batch)
        err = store_batch_expect(batch, group->told, group->n);
    if (err) {
        give_up(group);
        return err;
    }
    store_io_begin(group->told, group->n, batch);
    for (size_t i = 0; i < group->n; i++)
        group->told[i].priv.is_ordered = true;
    pthread_mutex_lock(&store_order_lock);
    enlist(group, &order.waiting);
    pthread_mutex_unlock(&store_order_lock);
    if (is_ordered)
        err = mem_cuda_user_stream_call(first, begin, group);
    if (err) {
        untell(group, err);
        give_up(group);
        return err;
    }
    if (word)
        err = mem_cuda_user_stream_wait(last, word, value);
    if (!err && o->done)
        err = mem_cuda_user_stream_record(last, o->done);
    if (!is_ordered)
        begin(group);
    return err;
}

static gpunvme_err_t check_order(const struct gpunvme_order *o)
{
    bool capturing = false;
    gpunvme_err_t err = GPUNVME_OK;

    if (o->flags & ~(GPUNVME_AFTER_STREAM | GPUNVME_BEFORE_STREAM))
        return base_fail(GPUNVME_ERR_INVALID, "flags %xh: AFTER_STREAM and BEFORE_STREAM",
                         o->flags);
    if (!o->flags && !o->after && !o->done)
        return base_fail(GPUNVME_ERR_INVALID, "no order: neither a stream nor an event");
    if (o->flags)
        err = mem_cuda_user_stream_capturing(o->stream, &capturing);
    if (!err && capturing)
        err = base_fail(GPUNVME_ERR_UNSUPPORTED,
                        "the stream is being captured into a graph: read before the capture");
    return err;
}

/* The GPU that will move its bytes; for host memory the stream's, for others meanwhile. */
static gpunvme_err_t prepare(const struct gpunvme_io *io, const struct gpunvme_order *o)
{
    struct gpunvme_engine *engine = io->store->engine;
    enum gpunvme_mem mem;
    unsigned of_stream = 0;
    gpunvme_err_t err;
    int gpu = -1;

    if (io->mem == GPUNVME_MEM_GPU && !gpunvme_mem_kind_of(io->ptr, &mem, &gpu) && gpu >= 0)
        return store_engine_prepare(engine, (unsigned)gpu);
    err = mem_cuda_user_stream_device(o->flags ? o->stream : NULL, &of_stream);
    return err ? err : store_engine_prepare(engine, of_stream);
}

gpunvme_err_t gpunvme_io_submit_ordered(struct gpunvme_io *ios, size_t n,
                                        struct gpunvme_batch *batch, const struct gpunvme_order *o)
{
    struct group *group;
    gpunvme_err_t err;

    if ((n && !ios) || !o)
        return base_fail(GPUNVME_ERR_INVALID, "%s is NULL", o ? "ios" : "order");
    for (size_t i = 0; i < n; i++)
        if (ios[i].callback)
            return base_fail(GPUNVME_ERR_INVALID,
                             "transfer %zu: one in CUDA's order has no callback", i);
    err = store_io_check(ios, n);
    if (!err)
        err = check_order(o);
    for (size_t i = 0; i < n && !err; i++)
        err = prepare(&ios[i], o);
    if (err)
        return err;
    group = new_group(ios, n);
    if (!group)
        return base_fail(GPUNVME_ERR_NOMEM, "%zu transfers in CUDA's order", n);
    err = equip(group, o);
    if (!err)
        return enqueue(group, batch, o);
    give_up(group);
    return err;
}
