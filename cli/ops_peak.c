/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What the processor can do at most: multiply-adds when all that a core touches is registers, and
 * copies of memory that no cache holds, by one thread or several at once.
 */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "ops.h"

/*
 * Twelve sums that do not wait for each other: two units with a latency of four or five keep ten
 * in flight. The factor is 1, in memory that the compiler knows nothing of.
 */
#define STEPS      1000000
#define SUMS       12
#define EACH(X)    X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)
#define DECLARE(i) vec x##i = {(float)(i)};
#define STEP(i)    x##i = x##i * factor + addend;
#define ADD(i)     +x##i

#define PEAK(name, lanes, attribute)                                                               \
    attribute static float name(const volatile float *one)                                         \
    {                                                                                              \
        typedef float vec __attribute__((vector_size(lanes * 4)));                                 \
        vec factor = (vec){0} + one[0], addend = (vec){0} + one[1], sum;                           \
        EACH(DECLARE)                                                                              \
                                                                                                   \
        for (int i = 0; i < STEPS; i++) {                                                          \
            EACH(STEP)                                                                             \
        }                                                                                          \
        sum = EACH(ADD);                                                                           \
        return sum[0];                                                                             \
    }

PEAK(peak_4, 4, )
#if defined(__x86_64__)
PEAK(peak_8, 8, __attribute__((target("avx2,fma"))))
PEAK(peak_16, 16, __attribute__((target("avx512f,fma"))))
#endif

struct code {
    float (*run)(const volatile float *one);
    int lanes;
    const char *by;
};

/* As the operators choose theirs. */
static struct code code_of_this_processor(void)
{
#if defined(__x86_64__)
    struct gpunvme_ops_capability cpu;

    if (!gpunvme_ops_capability(GPUNVME_OPS_CPU, 0, &cpu)) {
        if (cpu.cpu_features & GPUNVME_OPS_CPU_AVX512)
            return (struct code){peak_16, 16, "AVX-512 multiply-adds in registers"};
        if (cpu.cpu_features & GPUNVME_OPS_CPU_AVX2)
            return (struct code){peak_8, 8, "AVX2 multiply-adds in registers"};
    }
#endif
    return (struct code){peak_4, 4, "multiply-adds of vectors of 4 in registers"};
}

bool ops_peak_arithmetic(struct ops_peak *peak, int threads)
{
    struct code code = code_of_this_processor();

    memset(peak, 0, sizeof(*peak));
    peak->threads = threads;
    peak->work = 2.0 * SUMS * code.lanes * STEPS * threads;
    snprintf(peak->by, sizeof(peak->by), "%s", code.by);
    return true;
}

/* Of what is read and what is written together: four times the last cache, 64 MiB to 1 GiB. */
static size_t copy_nbytes(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE), cache = 0;
    size_t nbytes = (size_t)64 << 20, most = (size_t)1 << 30;

#ifdef _SC_LEVEL3_CACHE_SIZE
    cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
#endif
    if (pages > 0 && page > 0 && (size_t)pages * (size_t)page / 16 < most)
        most = (size_t)pages * (size_t)page / 16;
    if (cache > 0 && 4 * (size_t)cache > nbytes)
        nbytes = 4 * (size_t)cache;
    return (nbytes < most ? nbytes : most) / 2;
}

bool ops_peak_memory_new(struct ops_peak_memory *memory)
{
    memory->nbytes = copy_nbytes() / 4096 * 4096;
    memory->from = aligned_alloc(4096, memory->nbytes);
    memory->to = aligned_alloc(4096, memory->nbytes);
    if (!memory->from || !memory->to) {
        ops_peak_memory_drop(memory);
        return false;
    }
    /* Pages must be there, and different: some systems have one page for all zeros. */
    for (size_t i = 0; i < memory->nbytes; i += 64)
        memcpy(memory->from + i, &i, sizeof(i));
    memset(memory->to, 0xff, memory->nbytes);
    return true;
}

void ops_peak_memory_drop(struct ops_peak_memory *memory)
{
    free(memory->from);
    free(memory->to);
    memset(memory, 0, sizeof(*memory));
}

bool ops_peak_copy(struct ops_peak *peak, const struct ops_peak_memory *memory, int threads)
{
    memset(peak, 0, sizeof(*peak));
    peak->threads = threads;
    peak->memory = *memory;
    peak->memory.nbytes = memory->nbytes / (size_t)threads / 4096 * 4096 * (size_t)threads;
    peak->work = 2.0 * (double)peak->memory.nbytes;
    snprintf(peak->by, sizeof(peak->by), "memcpy, read and written");
    return peak->memory.nbytes > 0;
}

/* A thread's share of a run. */
struct worker {
    const struct ops_peak *peak;
    pthread_t thread;
    int index;
    double cpu_seconds;
    bool good;
};

static double thread_cpu_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void *work(void *arg)
{
    static const volatile float one[2] = {1, 0x1p-20f};
    struct worker *w = arg;
    const struct ops_peak *p = w->peak;
    const struct ops_peak_memory *m = &p->memory;
    size_t share = m->nbytes / (size_t)p->threads, at = share * (size_t)w->index;
    double start = thread_cpu_now();

    /* The result is looked at, or the compiler would not compute it. */
    if (m->nbytes)
        memcpy(m->to + at, m->from + at, share);
    w->good = m->nbytes || !isnan(code_of_this_processor().run(one));
    w->cpu_seconds = thread_cpu_now() - start;
    return NULL;
}

double ops_peak_run(const struct ops_peak *peak, bool cpu_time)
{
    int n = peak->threads, started = 1;
    struct worker *workers = calloc((size_t)n, sizeof(*workers));
    double start = ops_now(), seconds, cpu = 0;
    bool good = workers != NULL;

    for (int i = 0; i < n && good; i++)
        workers[i] = (struct worker){.peak = peak, .index = i};
    while (good && started < n &&
           !pthread_create(&workers[started].thread, NULL, work, &workers[started]))
        started++;
    good = good && started == n;
    if (good)
        work(&workers[0]);
    for (int i = 1; workers && i < started; i++)
        pthread_join(workers[i].thread, NULL);
    seconds = ops_now() - start;
    for (int i = 0; i < n && good; i++) {
        good = workers[i].good;
        cpu += workers[i].cpu_seconds / n;
    }
    free(workers);
    return good ? (cpu_time || !peak->memory.nbytes ? cpu : seconds) : -1;
}
