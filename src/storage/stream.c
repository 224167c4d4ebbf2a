/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Transfers in the order of CUDA streams. The stream calls a function that submits the transfer,
 * and then waits for a word in pinned memory, which the transfer's end releases. The GPU knows no
 * deadline, so a thread of the store looks after those that do not end.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/cond.h"
#include "base/fail.h"
#include "gpunvme/memory.h"
#include "memory/cuda.h"
#include "storage/futex.h"
#include "storage/internal.h"
#include "storage/stream.h"

#define NWORDS 1024u /* in flight on streams at once, of one store */

static const struct store_stream_ops cuda_ops = {
    .device = mem_cuda_user_stream_device,
    .capturing = mem_cuda_user_stream_capturing,
    .call = mem_cuda_user_stream_call,
    .wait = mem_cuda_user_stream_wait,
};

const struct store_stream_ops *store_stream_ops = &cuda_ops;

/*
 * A transfer in a stream. Its life, under the lock: WAITING for the stream to come to it, BEGUN,
 * and then either the transfer ends or its time is up (LATE), which tells the caller; the
 * transfer's own end, then, is all that is left.
 */
struct visit {
    struct gpunvme_io io;    /* ours: what the backend serves */
    struct gpunvme_io *told; /* the caller's: whose end is told; NULL once it has been */
    struct store_streams *streams;
    unsigned word;
    uint32_t value; /* that releases the stream */
    uint64_t deadline;
    struct visit *next, **at; /* of those that have begun */
};

/*
 * Words that streams wait for, pinned; one is one visit's at a time, and only grows. A stream may
 * come to its wait when the transfer has long ended and the store been closed, so they are never
 * freed: another store has them next.
 */
struct words {
    struct words *next;
    struct gpunvme_buf buf;
    uint32_t values[NWORDS]; /* the last one given for each */
};

static pthread_mutex_t spare_lock = PTHREAD_MUTEX_INITIALIZER;
static struct words *spare;

struct store_streams {
    struct gpunvme_store *store;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    pthread_t keeper;
    bool stop;
    struct visit *begun;
    struct words *words;
    unsigned free_words[NWORDS], nfree;
};

/* ---- The end ----------------------------------------------------------------------------------
 */

/* Tells the caller and lets the stream go on. Under the lock; once. */
static void tell(struct visit *visit, gpunvme_err_t err, size_t done)
{
    struct store_streams *s = visit->streams;
    struct gpunvme_io *told = visit->told;

    visit->told = NULL;
    store_io_end(told, err, done);
    /* Last: what the stream does next may free what the transfer used. */
    mem_cuda_user_stream_release((uint32_t *)s->words->buf.cpu + visit->word, visit->value);
    s->free_words[s->nfree++] = visit->word;
}

static void leave(struct visit *visit)
{
    if (!visit->at)
        return;
    *visit->at = visit->next;
    if (visit->next)
        visit->next->at = visit->at;
    visit->at = NULL;
}

/* The transfer has ended: io.callback. */
static void ended(struct gpunvme_io *io)
{
    struct visit *visit = io->user;
    struct store_streams *s = visit->streams;

    pthread_mutex_lock(&s->lock);
    leave(visit);
    if (visit->told) {
        if (io->err)
            base_fail(io->err, "%s", io->detail);
        tell(visit, io->err, io->done);
    }
    pthread_mutex_unlock(&s->lock);
    free(visit);
}

/* From now on it has a deadline. */
static void enlist(struct visit *visit)
{
    struct store_streams *s = visit->streams;

    pthread_mutex_lock(&s->lock);
    visit->deadline = futex_deadline(s->store->uri.options.timeout_ns);
    visit->next = s->begun;
    visit->at = &s->begun;
    if (s->begun)
        s->begun->at = &visit->next;
    s->begun = visit;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
}

/*
 * The stream has come to it. On a thread of CUDA's, which must not call CUDA: nothing here does. A
 * store that is being closed waits for it: until it is told, and, since it may be told at any time
 * once it has begun, until this is over.
 */
static void begin(void *visit_)
{
    struct visit *visit = visit_;
    struct gpunvme_store *store = visit->streams->store;

    atomic_fetch_add(&store->in_flight, 1);
    enlist(visit);
    store_io_start(store, &visit->io);
    atomic_fetch_sub(&store->in_flight, 1);
}

/* ---- The keeper -------------------------------------------------------------------------------
 */

/* Tells all that are late; when the next one will be. Under the lock. */
static uint64_t tell_late(struct store_streams *s)
{
    uint64_t now = futex_now(), next = now + 1000000000u;
    struct visit *visit = s->begun;

    while (visit) {
        struct visit *after = visit->next;

        if (visit->deadline <= now) {
            leave(visit);
            base_fail(GPUNVME_ERR_TIMEOUT, "not done within the store's timeout after its stream "
                                           "came to it; the memory is in use until it is closed");
            tell(visit, GPUNVME_ERR_TIMEOUT, 0);
        } else if (visit->deadline < next) {
            next = visit->deadline;
        }
        visit = after;
    }
    return next;
}

static void *keep(void *streams_)
{
    struct store_streams *s = streams_;

    pthread_mutex_lock(&s->lock);
    while (!s->stop) {
        uint64_t next = tell_late(s);

        if (s->begun)
            base_cond_wait(&s->wake, &s->lock, next);
        else
            pthread_cond_wait(&s->wake, &s->lock);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

static void init_sync(struct store_streams *s)
{
    pthread_mutex_init(&s->lock, NULL);
    base_cond_init(&s->wake);
}

static gpunvme_err_t take_words(struct words **out)
{
    struct words *words;
    gpunvme_err_t err;

    pthread_mutex_lock(&spare_lock);
    words = spare;
    if (words)
        spare = words->next;
    pthread_mutex_unlock(&spare_lock);
    *out = words;
    if (words)
        return GPUNVME_OK;
    words = calloc(1, sizeof(*words));
    if (!words)
        return base_fail(GPUNVME_ERR_NOMEM, "transfers in streams");
    err = gpunvme_mem_alloc(NWORDS * sizeof(uint32_t), GPUNVME_MEM_PINNED, &words->buf);
    if (err)
        free(words);
    else
        *out = words;
    return err;
}

static void leave_words(struct words *words)
{
    if (!words)
        return;
    pthread_mutex_lock(&spare_lock);
    words->next = spare;
    spare = words;
    pthread_mutex_unlock(&spare_lock);
}

static void free_streams(struct store_streams *s)
{
    pthread_cond_destroy(&s->wake);
    pthread_mutex_destroy(&s->lock);
    leave_words(s->words);
    free(s);
}

void store_streams_free(struct gpunvme_store *store)
{
    struct store_streams *s = store->streams;

    if (!s)
        return;
    pthread_mutex_lock(&s->lock);
    s->stop = true;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->keeper, NULL);
    free_streams(s);
    store->streams = NULL;
}

static gpunvme_err_t make(struct gpunvme_store *store, struct store_streams **out)
{
    struct store_streams *s = calloc(1, sizeof(*s));
    gpunvme_err_t err;
    int error;

    if (!s)
        return base_fail(GPUNVME_ERR_NOMEM, "transfers in streams");
    s->store = store;
    init_sync(s);
    for (s->nfree = 0; s->nfree < NWORDS; s->nfree++)
        s->free_words[s->nfree] = NWORDS - 1 - s->nfree;
    err = take_words(&s->words);
    if (!err) {
        error = store_start_thread(&s->keeper, keep, s);
        err = error ? base_fail_errno(error, "a thread that looks after streams") : GPUNVME_OK;
    }
    if (err)
        free_streams(s);
    else
        *out = s;
    return err;
}

static gpunvme_err_t streams_of(struct gpunvme_store *store, struct store_streams **out)
{
    gpunvme_err_t err = GPUNVME_OK;

    pthread_mutex_lock(&store->streams_lock);
    if (!store->streams)
        err = make(store, &store->streams);
    *out = store->streams;
    pthread_mutex_unlock(&store->streams_lock);
    return err;
}

/* ---- Submission -------------------------------------------------------------------------------
 */

static gpunvme_err_t take_word(struct store_streams *s, struct visit *visit)
{
    gpunvme_err_t err = GPUNVME_OK;

    pthread_mutex_lock(&s->lock);
    if (s->nfree) {
        visit->word = s->free_words[--s->nfree];
        visit->value = ++s->words->values[visit->word];
    } else {
        err = base_fail(GPUNVME_ERR_AGAIN, "%u transfers are in streams", NWORDS);
    }
    pthread_mutex_unlock(&s->lock);
    return err;
}

/* The stream did not take it. */
static void give_up(struct visit *visit)
{
    struct store_streams *s = visit->streams;

    pthread_mutex_lock(&s->lock);
    s->words->values[visit->word]--; /* nobody waits for it */
    s->free_words[s->nfree++] = visit->word;
    pthread_mutex_unlock(&s->lock);
    free(visit);
}

/*
 * A wait that is over already shows whether the driver has them, before anything else is on the
 * stream.
 */
static gpunvme_err_t enqueue(struct visit *visit, void *stream)
{
    const uint32_t *word = (const uint32_t *)visit->streams->words->buf.gpu + visit->word;
    uint32_t value = visit->value; /* it may end, and be freed, as soon as the stream has it */
    gpunvme_err_t err = store_stream_ops->wait(stream, word, value - 1);

    if (err) {
        give_up(visit);
        return err;
    }
    store_io_begin(visit->streams->store, visit->told);
    err = store_stream_ops->call(stream, begin, visit);
    if (!err)
        return store_stream_ops->wait(stream, word, value);
    store_io_end(visit->told, err, 0);
    store_io_polled(visit->told); /* whoever gets the error asks no more */
    give_up(visit);
    return err;
}

/* The GPU that will move its bytes; for host memory the stream's, for others meanwhile. */
static gpunvme_err_t prepare(struct gpunvme_store *store, const struct gpunvme_io *io, void *stream)
{
    enum gpunvme_mem mem;
    unsigned of_stream = 0;
    gpunvme_err_t err;
    int gpu = -1;

    if (!store->backend->prepare)
        return GPUNVME_OK;
    if (io->mem == GPUNVME_MEM_GPU && !gpunvme_mem_kind_of(io->ptr, &mem, &gpu) && gpu >= 0)
        return store->backend->prepare(store, (unsigned)gpu);
    err = store_stream_ops->device(stream, &of_stream);
    return err ? err : store->backend->prepare(store, of_stream);
}

gpunvme_err_t gpunvme_store_submit_on_stream(struct gpunvme_store *store, struct gpunvme_io *io,
                                             void *stream)
{
    struct store_streams *streams = NULL;
    bool capturing = false;
    struct visit *visit;
    gpunvme_err_t err;

    if (!store || !io || io->callback)
        return base_fail(GPUNVME_ERR_INVALID, "%s",
                         store && io ? "a transfer in a stream has no callback" : "NULL argument");
    err = store_io_check(store, io);
    if (!err)
        err = store_stream_ops->capturing(stream, &capturing);
    if (!err && capturing)
        err = base_fail(GPUNVME_ERR_UNSUPPORTED,
                        "the stream is being captured into a graph: read before the capture");
    if (!err)
        err = prepare(store, io, stream);
    if (!err)
        err = streams_of(store, &streams);
    if (err)
        return err;
    visit = calloc(1, sizeof(*visit));
    if (!visit)
        return base_fail(GPUNVME_ERR_NOMEM, "a transfer in a stream");
    visit->io = *io;
    visit->io.callback = ended;
    visit->io.user = visit;
    visit->told = io;
    visit->streams = streams;
    err = take_word(streams, visit);
    if (!err)
        return enqueue(visit, stream);
    free(visit);
    return err;
}
