/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Streams that are threads, for tests of transfers in the order of streams: the linker puts them in
 * the place of CUDA's (gpunvme_thread_streams() of CMake) once streams_are_threads is set.
 */
#ifndef THREAD_STREAM_H
#define THREAD_STREAM_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fail.h"
#include "memory/cuda.h"
#include "transfer_util.h"

struct item {
    void (*fn)(void *);
    void *arg;
    const uint32_t *word; /* fn is NULL: wait for this one */
    uint32_t value;
    struct item *next;
};

struct stream {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    pthread_t thread;
    struct item *first, **last;
    bool stop, idle, capturing, no_waits, late_waits;
};

static void run_item(const struct stream *s, const struct item *item)
{
    if (item->fn) {
        item->fn(item->arg);
        return;
    }
    if (s->late_waits)
        usleep(100000);
    while ((int32_t)(__atomic_load_n(item->word, __ATOMIC_ACQUIRE) - item->value) < 0)
        usleep(10);
}

static void *run_stream(void *stream_)
{
    struct stream *s = stream_;

    pthread_mutex_lock(&s->lock);
    while (!s->stop || s->first) {
        struct item *item = s->first;

        s->idle = !item;
        pthread_cond_broadcast(&s->wake);
        if (!item) {
            pthread_cond_wait(&s->wake, &s->lock);
            continue;
        }
        s->first = item->next;
        if (!s->first)
            s->last = &s->first;
        pthread_mutex_unlock(&s->lock);
        run_item(s, item);
        free(item);
        pthread_mutex_lock(&s->lock);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

static inline void stream_open(struct stream *s)
{
    memset(s, 0, sizeof(*s));
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->wake, NULL);
    s->last = &s->first;
    assert_int_equal(pthread_create(&s->thread, NULL, run_stream, s), 0);
}

static inline void stream_sync(struct stream *s)
{
    pthread_mutex_lock(&s->lock);
    while (s->first || !s->idle)
        pthread_cond_wait(&s->wake, &s->lock);
    pthread_mutex_unlock(&s->lock);
}

static inline void stream_close(struct stream *s)
{
    pthread_mutex_lock(&s->lock);
    s->stop = true;
    pthread_cond_broadcast(&s->wake);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
}

static void put(struct stream *s, struct item what)
{
    struct item *item = malloc(sizeof(*item));

    *item = what;
    pthread_mutex_lock(&s->lock);
    *s->last = item;
    s->last = &item->next;
    s->idle = false;
    pthread_cond_broadcast(&s->wake);
    pthread_mutex_unlock(&s->lock);
}

static void stream_call(struct stream *s, void (*fn)(void *), void *arg)
{
    put(s, (struct item){.fn = fn, .arg = arg});
}

/* An event is a word: 1 when it has happened, and a stream's item when that is to come. */
static void happen(void *event)
{
    __atomic_store_n((uint32_t *)event, 1, __ATOMIC_RELEASE);
}

static void stream_wait_event(struct stream *s, uint32_t *event)
{
    put(s, (struct item){.word = event, .value = 1});
}

static bool streams_are_threads;

/* Declares what the linker calls instead of a function of CUDA's streams, and what it replaces. */
#define WRAPPED(name, ...)                                                                         \
    gpunvme_err_t __real_mem_cuda_user_stream_##name(__VA_ARGS__);                                 \
    gpunvme_err_t __wrap_mem_cuda_user_stream_##name(__VA_ARGS__);                                 \
    gpunvme_err_t __wrap_mem_cuda_user_stream_##name(__VA_ARGS__)

WRAPPED(device, void *stream, unsigned *gpu)
{
    if (!streams_are_threads)
        return __real_mem_cuda_user_stream_device(stream, gpu);
    *gpu = 0;
    return GPUNVME_OK;
}

WRAPPED(capturing, void *stream, bool *capturing)
{
    if (!streams_are_threads)
        return __real_mem_cuda_user_stream_capturing(stream, capturing);
    *capturing = ((const struct stream *)stream)->capturing;
    return GPUNVME_OK;
}

WRAPPED(call, void *stream, void (*fn)(void *), void *arg)
{
    if (!streams_are_threads)
        return __real_mem_cuda_user_stream_call(stream, fn, arg);
    stream_call(stream, fn, arg);
    return GPUNVME_OK;
}

WRAPPED(wait, void *stream, const uint32_t *word, uint32_t value)
{
    if (!streams_are_threads)
        return __real_mem_cuda_user_stream_wait(stream, word, value);
    if (((const struct stream *)stream)->no_waits)
        return base_fail(GPUNVME_ERR_UNSUPPORTED, "no waits");
    put(stream, (struct item){.word = word, .value = value});
    return GPUNVME_OK;
}

WRAPPED(wait_event, void *stream, void *event)
{
    if (!streams_are_threads)
        return __real_mem_cuda_user_stream_wait_event(stream, event);
    stream_wait_event(stream, event);
    return GPUNVME_OK;
}

WRAPPED(record, void *stream, void *event)
{
    if (!streams_are_threads)
        return __real_mem_cuda_user_stream_record(stream, event);
    stream_call(stream, happen, event);
    return GPUNVME_OK;
}

/* Streams of the library's own, which it keeps. */
static struct stream *made[64];
static unsigned nmade;

WRAPPED(create, void **stream)
{
    struct stream *s;

    if (!streams_are_threads)
        return __real_mem_cuda_user_stream_create(stream);
    s = malloc(sizeof(*s));
    assert_true(s && nmade < 64);
    stream_open(s);
    made[nmade++] = s;
    *stream = s;
    return GPUNVME_OK;
}

#undef WRAPPED

/* Reads of 4 KiB on several streams at once; each overwrites what the one before it on its stream
 * has read, and the last one stays. `content`: 64 KiB at least of what is read. */
enum { STREAMS = 4, EACH = 200 };

static inline void check_order_on_many_streams(struct gpunvme_store *store, uint8_t *memory,
                                               enum gpunvme_mem mem, const uint8_t *content)
{
    static struct gpunvme_io ios[STREAMS][EACH];
    struct stream streams[STREAMS];
    const size_t nbytes = 4096;

    for (unsigned s = 0; s < STREAMS; s++)
        stream_open(&streams[s]);
    for (unsigned i = 0; i < EACH; i++)
        for (unsigned s = 0; s < STREAMS; s++) {
            ios[s][i] = (struct gpunvme_io){.op = GPUNVME_OP_READ,
                                            .mem = mem,
                                            .offset = (i * 37u + s * 1000u) % 60000u,
                                            .ptr = memory + s * nbytes,
                                            .nbytes = nbytes};
            if (submit_on_stream(store, &ios[s][i], &streams[s]))
                fail_msg("%s", gpunvme_err_detail());
        }
    for (unsigned s = 0; s < STREAMS; s++) {
        stream_sync(&streams[s]);
        for (unsigned i = 0; i < EACH; i++)
            assert_int_equal(gpunvme_io_test(&ios[s][i]), GPUNVME_OK);
        assert_memory_equal(memory + s * nbytes, content + ios[s][EACH - 1].offset, nbytes);
        stream_close(&streams[s]);
    }
}

#endif
