/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Threads beside those that submit, in tests of a queue by many threads: the device, who resets the
 * queue now and then, and a watchdog that ends the program when nothing moves. Knows no queue.
 */
#ifndef TESTS_MODEL_THREADS_H
#define TESTS_MODEL_THREADS_H

#include <pthread.h>
#include <sched.h>
#include <time.h>

#include "gpunvme/atomics.h"
#include "model_device.h"

#define MODEL_STUCK_SECONDS 30

struct model_threads {
    struct model_device *device;
    pthread_mutex_t lock;         /* who works for the device, or resets it */
    int stop;                     /* for all but those who submit */
    uint64_t (*ended)(void *arg); /* commands so far */
    void (*reset)(void *arg);
    void *arg;
};

static inline int model_must_stop(const struct model_threads *t)
{
    return __atomic_load_n(&t->stop, __ATOMIC_ACQUIRE);
}

static inline void model_sleep_ns(long ns)
{
    nanosleep(&(struct timespec){.tv_nsec = ns}, NULL);
}

static inline void model_start(pthread_t *thread, void *(*function)(void *), void *arg)
{
    assert_int_equal(pthread_create(thread, NULL, function, arg), 0);
}

static inline void *model_work(void *threads)
{
    struct model_threads *t = threads;

    while (!model_must_stop(t)) {
        bool busy;

        pthread_mutex_lock(&t->lock);
        busy = model_step(t->device);
        pthread_mutex_unlock(&t->lock);
        if (!busy)
            sched_yield();
    }
    return NULL;
}

static inline void *model_reset_now_and_then(void *threads)
{
    struct model_threads *t = threads;
    struct base_random random = {.state = t->device->seed + 77};

    while (!model_must_stop(t)) {
        model_sleep_ns((long)base_random_below(&random, 2000000));
        t->reset(t->arg);
    }
    return NULL;
}

static inline void *model_watch(void *threads)
{
    struct model_threads *t = threads;
    uint64_t last = 0, moved = gpunvme_clock_ns();

    while (!model_must_stop(t)) {
        uint64_t now = gpunvme_clock_ns(), n = t->ended(t->arg);

        if (n != last) {
            last = n;
            moved = now;
        }
        if (now - moved > MODEL_STUCK_SECONDS * UINT64_C(1000000000))
            model_die(t->device, "nothing moves any more");
        model_sleep_ns(10000000);
    }
    return NULL;
}

#endif
