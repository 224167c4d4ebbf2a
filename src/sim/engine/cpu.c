/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The engine on a thread, where there is no GPU: the code of the kernel, as one block of one lane.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cond.h"
#include "base/fail.h"
#include "sim/engine/launch.h"

struct engine_thread {
    struct sim_launcher base;
    pthread_t pthread;
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t changed;
    struct sim_engine *engine; /* to be run, or running; NULL: none */
    bool closing;
};

static struct engine_thread *of(struct sim_launcher *launcher)
{
    return (struct engine_thread *)(void *)launcher;
}

static void *thread_main(void *t_)
{
    struct engine_thread *t = t_;

    pthread_mutex_lock(&t->lock);
    while (!t->closing) {
        if (!t->engine) {
            pthread_cond_wait(&t->changed, &t->lock);
            continue;
        }
        pthread_mutex_unlock(&t->lock);
        sim_engine_run(t->engine, 0, 1);
        pthread_mutex_lock(&t->lock);
        t->engine = NULL;
        pthread_cond_broadcast(&t->changed);
    }
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

static gpunvme_err_t thread_start(struct sim_launcher *launcher, struct sim_engine *engine,
                                  unsigned nqueues)
{
    struct engine_thread *t = of(launcher);

    (void)nqueues; /* one block serves them all, in turn */
    memset((char *)engine + SIM_ENGINE_REWIND_OFFSET, 0, SIM_ENGINE_REWIND_NBYTES);
    pthread_mutex_lock(&t->lock);
    t->engine = engine;
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
    return GPUNVME_OK;
}

static gpunvme_err_t thread_poll(struct sim_launcher *launcher, bool *running)
{
    struct engine_thread *t = of(launcher);

    pthread_mutex_lock(&t->lock);
    *running = t->engine != NULL;
    pthread_mutex_unlock(&t->lock);
    return GPUNVME_OK;
}

static gpunvme_err_t thread_wait(struct sim_launcher *launcher, uint64_t deadline_ns)
{
    struct engine_thread *t = of(launcher);
    bool in_time = true, running;

    pthread_mutex_lock(&t->lock);
    while (t->engine && in_time)
        in_time = base_cond_wait(&t->changed, &t->lock, deadline_ns);
    running = t->engine != NULL;
    pthread_mutex_unlock(&t->lock);
    return running ? base_fail(GPUNVME_ERR_TIMEOUT, "the engine does not stop") : GPUNVME_OK;
}

static void thread_close(struct sim_launcher *launcher)
{
    struct engine_thread *t = of(launcher);

    pthread_mutex_lock(&t->lock);
    t->closing = true;
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
    pthread_join(t->pthread, NULL);
    pthread_cond_destroy(&t->changed);
    pthread_mutex_destroy(&t->lock);
    free(t);
}

gpunvme_err_t sim_launcher_thread(struct sim_launcher **out)
{
    struct engine_thread *t = calloc(1, sizeof(*t));
    int error;

    if (!t)
        return base_fail(GPUNVME_ERR_NOMEM, "the engine's thread");
    t->base = (struct sim_launcher){
        .close = thread_close, .start = thread_start, .poll = thread_poll, .wait = thread_wait};
    pthread_mutex_init(&t->lock, NULL);
    base_cond_init(&t->changed);
    error = pthread_create(&t->pthread, NULL, thread_main, t);
    if (error) {
        pthread_cond_destroy(&t->changed);
        pthread_mutex_destroy(&t->lock);
        free(t);
        return base_fail_errno(error, "the engine's thread");
    }
    *out = &t->base;
    return GPUNVME_OK;
}
