/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What memory.h costs: checksums where the bytes are, copies between host and GPU, and copies of
 * 4 KiB as the software controller makes them. Rates are in 10^9 bytes a second; a copy within
 * the GPU counts what it reads and what it writes. Without a GPU all of it is host memory.
 *
 *   gpu_memory [bytes]       prints JSON, and a table for people on standard error
 */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "bench.h"
#include "gpunvme/memory.h"

#define RUNS        15
#define NSMALL      2000
#define SMALL       4096
#define MAX_THREADS 16

struct bench {
    size_t nbytes;
    struct gpunvme_buf gpu, other; /* two in GPU memory */
    struct gpunvme_buf host, pinned;
};

static double now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static void check(gpunvme_err_t err)
{
    if (!err)
        return;
    fprintf(stderr, "gpu_memory: %s: %s\n", gpunvme_err_text(err), gpunvme_err_detail());
    exit(1);
}

/* A row: as JSON behind a comma, and for people. */
static void row(const char *key, const char *unit, struct bench_stat stat)
{
    printf(",\n \"%s_%s\": {\"median\": %.3f, \"min\": %.3f, \"max\": %.3f}", key, unit,
           stat.median, stat.min, stat.max);
    fprintf(stderr, "%-44s %12.3f  (%.3f to %.3f) %s\n", key, stat.median, stat.min, stat.max,
            unit);
}

/* One operation on `nbytes`, timed after one that is not. */
typedef void operation(struct bench *b, size_t nbytes);

static void time_rate(struct bench *b, const char *key, operation *run, size_t nbytes,
                      double moved_per_byte)
{
    double rates[RUNS];

    run(b, nbytes);
    for (int i = 0; i < RUNS; i++) {
        double start = now_ns();

        run(b, nbytes);
        rates[i] = moved_per_byte * (double)nbytes / (now_ns() - start);
    }
    row(key, "gb_per_s", bench_stat(rates, RUNS));
}

static void checksum_aligned(struct bench *b, size_t nbytes)
{
    uint64_t sum;

    check(gpunvme_mem_checksum(&b->gpu, 0, nbytes, &sum, NULL));
}

static void checksum_misaligned(struct bench *b, size_t nbytes)
{
    uint64_t sum;

    check(gpunvme_mem_checksum(&b->gpu, 3, nbytes - 3, &sum, NULL));
}

static void checksum_cpu(struct bench *b, size_t nbytes)
{
    uint64_t sum;

    check(gpunvme_mem_checksum(&b->host, 0, nbytes, &sum, NULL));
}

static void copy_within_gpu(struct bench *b, size_t nbytes)
{
    check(gpunvme_mem_copy(b->other.gpu, GPUNVME_MEM_GPU, b->gpu.gpu, GPUNVME_MEM_GPU, nbytes));
}

static void copy_pinned_to_gpu(struct bench *b, size_t nbytes)
{
    check(gpunvme_mem_copy(b->gpu.gpu, GPUNVME_MEM_GPU, b->pinned.cpu, GPUNVME_MEM_PINNED, nbytes));
}

static void copy_gpu_to_pinned(struct bench *b, size_t nbytes)
{
    check(gpunvme_mem_copy(b->pinned.cpu, GPUNVME_MEM_PINNED, b->gpu.gpu, GPUNVME_MEM_GPU, nbytes));
}

static void copy_host_to_gpu(struct bench *b, size_t nbytes)
{
    check(gpunvme_mem_copy(b->gpu.gpu, GPUNVME_MEM_GPU, b->host.cpu, GPUNVME_MEM_HOST, nbytes));
}

static void copy_gpu_to_host(struct bench *b, size_t nbytes)
{
    check(gpunvme_mem_copy(b->host.cpu, GPUNVME_MEM_HOST, b->gpu.gpu, GPUNVME_MEM_GPU, nbytes));
}

/* Threads that copy blocks of 4 KiB one after the other, each in its own part of the buffers. */
struct small {
    struct bench *b;
    size_t off;
    double us[NSMALL];
};

static void *copy_small(void *arg)
{
    struct small *s = arg;
    char *gpu = (char *)s->b->gpu.gpu + s->off, *host = (char *)s->b->host.cpu + s->off;

    for (int i = 0; i < NSMALL; i++) {
        double start = now_ns();

        check(gpunvme_mem_copy(gpu, GPUNVME_MEM_GPU, host, GPUNVME_MEM_HOST, SMALL));
        s->us[i] = (now_ns() - start) / 1000;
    }
    return NULL;
}

static void time_small(struct bench *b, unsigned nthreads)
{
    static struct small small[MAX_THREADS];
    pthread_t threads[MAX_THREADS];
    char key[64];
    double start = now_ns(), rate;

    for (unsigned i = 0; i < nthreads; i++) {
        small[i].b = b;
        small[i].off = (size_t)i * SMALL;
        if (pthread_create(&threads[i], NULL, copy_small, &small[i]) != 0)
            check(GPUNVME_ERR_NOMEM);
    }
    for (unsigned i = 0; i < nthreads; i++)
        pthread_join(threads[i], NULL);
    rate = nthreads * NSMALL / (now_ns() - start) * 1e9;
    snprintf(key, sizeof(key), "small_copy_%u_threads", nthreads);
    row(key, "us", bench_stat(small[0].us, NSMALL));
    row(key, "per_s", bench_stat(&rate, 1));
}

/* Random bytes everywhere: nothing is measured on zeroes. */
static void fill(struct bench *b)
{
    const size_t host_nbytes = b->host.nbytes;
    uint64_t seed = 1, *words = b->host.cpu;
    size_t n;

    for (size_t i = 0; i < host_nbytes / sizeof(*words); i++)
        words[i] = bench_random(&seed);
    memcpy(b->pinned.cpu, b->host.cpu, host_nbytes);
    for (size_t off = 0; off < b->nbytes; off += host_nbytes) {
        n = b->nbytes - off < host_nbytes ? b->nbytes - off : host_nbytes;
        check(gpunvme_mem_copy((char *)b->gpu.gpu + off, GPUNVME_MEM_GPU, b->pinned.cpu,
                               GPUNVME_MEM_PINNED, n));
    }
}

static void prepare(struct bench *b, size_t nbytes)
{
    struct gpunvme_gpu_info info = {0};
    size_t host_nbytes = (size_t)1 << 30;
    unsigned index;

    if (gpunvme_mem_gpu_current(&index) == GPUNVME_OK)
        check(gpunvme_mem_gpu_info(index, &info));
    /* On a GPU long enough that starting and waiting do not count. */
    if (!nbytes)
        nbytes = info.memory_nbytes ? info.memory_nbytes / 8 : (size_t)256 << 20;
    b->nbytes = nbytes & ~(size_t)4095;
    if (host_nbytes > b->nbytes)
        host_nbytes = b->nbytes;
    check(gpunvme_mem_alloc(b->nbytes, GPUNVME_MEM_GPU, &b->gpu));
    check(gpunvme_mem_alloc(b->nbytes, GPUNVME_MEM_GPU, &b->other));
    check(gpunvme_mem_alloc(host_nbytes, GPUNVME_MEM_HOST, &b->host));
    check(gpunvme_mem_alloc(host_nbytes, GPUNVME_MEM_PINNED, &b->pinned));
    fill(b);
    printf("{\"benchmark\": \"gpu_memory\", \"gpu\": \"%s\", \"gpu_bytes\": %zu, "
           "\"host_bytes\": %zu",
           info.name, b->nbytes, host_nbytes);
    fprintf(stderr, "%s; %zu bytes there, %zu bytes in host memory\n",
            info.name[0] ? info.name : gpunvme_mem_gpu_why_not(), b->nbytes, host_nbytes);
}

static void measure(struct bench *b)
{
    const size_t host_nbytes = b->host.nbytes;

    time_rate(b, "gpu_to_gpu_read_and_written", copy_within_gpu, b->nbytes, 2);
    time_rate(b, "gpu_checksum", checksum_aligned, b->nbytes, 1);
    time_rate(b, "gpu_checksum_3_bytes_off", checksum_misaligned, b->nbytes, 1);
    time_rate(b, "host_checksum_one_thread", checksum_cpu, host_nbytes, 1);
    time_rate(b, "pinned_to_gpu", copy_pinned_to_gpu, host_nbytes, 1);
    time_rate(b, "gpu_to_pinned", copy_gpu_to_pinned, host_nbytes, 1);
    time_rate(b, "host_to_gpu", copy_host_to_gpu, host_nbytes, 1);
    time_rate(b, "gpu_to_host", copy_gpu_to_host, host_nbytes, 1);
    for (unsigned nthreads = 1; nthreads <= MAX_THREADS; nthreads *= 4)
        time_small(b, nthreads);
}

int main(int argc, char **argv)
{
    struct bench b = {0};
    size_t nbytes = argc > 1 ? strtoull(argv[1], NULL, 0) : 0;

    if (argc > 2 || (argc > 1 && nbytes < (size_t)MAX_THREADS * SMALL)) {
        fprintf(stderr, "usage: gpu_memory [bytes, at least %d]\n", MAX_THREADS * SMALL);
        return 2;
    }
    prepare(&b, nbytes);
    measure(&b);
    printf("}\n");
    check(gpunvme_mem_free(&b.gpu));
    check(gpunvme_mem_free(&b.other));
    check(gpunvme_mem_free(&b.host));
    check(gpunvme_mem_free(&b.pinned));
    return 0;
}
