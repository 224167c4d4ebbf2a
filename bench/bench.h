/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What measurements share: medians with their spread, clocks, and a seeded source of random
 * numbers.
 */
#ifndef BENCH_BENCH_H
#define BENCH_BENCH_H

#include <stdint.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

struct bench_stat {
    double median, min, max;
};

static inline int bench_compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Sorts the n values. */
static inline struct bench_stat bench_stat(double *values, unsigned n)
{
    qsort(values, n, sizeof(*values), bench_compare);
    return (struct bench_stat){
        .median = n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2,
        .min = values[0],
        .max = values[n - 1],
    };
}

static inline double bench_now_s(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Of the process, system calls included. */
static inline double bench_cpu_s(void)
{
    struct rusage use;

    getrusage(RUSAGE_SELF, &use);
    return (double)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
           (double)(use.ru_utime.tv_usec + use.ru_stime.tv_usec) * 1e-6;
}

/* xorshift64*: Vigna, "An experimental exploration of Marsaglia's xorshift generators". */
static inline uint64_t bench_random(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * UINT64_C(0x2545f4914f6cdd1d);
}

#endif
