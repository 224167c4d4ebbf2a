/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Sleeping on a word until somebody changes it: futex(2), with deadlines of the monotonic clock.
 */
#ifndef STORAGE_FUTEX_H
#define STORAGE_FUTEX_H

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static inline uint64_t futex_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* timeout_ns from now; so long that it never comes is as good as the end of time. */
static inline uint64_t futex_deadline(uint64_t timeout_ns)
{
    uint64_t now = futex_now();

    return timeout_ns > INT64_MAX - now ? INT64_MAX : now + timeout_ns;
}

/* Sleeps while *word is `value`; false when the deadline has passed. May return for no reason. */
static inline bool futex_wait(uint32_t *word, uint32_t value, uint64_t deadline)
{
    struct timespec at = {.tv_sec = (time_t)(deadline / 1000000000u),
                          .tv_nsec = (long)(deadline % 1000000000u)};

    return !(syscall(SYS_futex, word, FUTEX_WAIT_BITSET_PRIVATE, value, &at, NULL,
                     FUTEX_BITSET_MATCH_ANY) &&
             errno == ETIMEDOUT);
}

static inline void futex_wake(uint32_t *word, int n)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

#endif
