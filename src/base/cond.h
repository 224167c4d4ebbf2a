/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Condition variables whose deadlines are of the monotonic clock, in nanoseconds: changing the
 * machine's time neither ends nor prolongs a wait.
 */
#ifndef BASE_COND_H
#define BASE_COND_H

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

static inline void base_cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t attr;

    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &attr);
    pthread_condattr_destroy(&attr);
}

/* Waits as pthread_cond_wait(); false when the deadline has passed. */
static inline bool base_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t deadline_ns)
{
    struct timespec at = {.tv_sec = (time_t)(deadline_ns / 1000000000u),
                          .tv_nsec = (long)(deadline_ns % 1000000000u)};

    return pthread_cond_timedwait(cond, lock, &at) != ETIMEDOUT;
}

#endif
