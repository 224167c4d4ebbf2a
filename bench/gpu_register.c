/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Mappings of files that the copy engine reads in place: at what rate pages are pinned and let go,
 * by size of the piece and number of threads; at what rate they are then copied; and the rate of
 * all three overlapped, each thread pinning its next piece while the last one is copied. Shared
 * mappings for reading, on tmpfs and of a file in the page cache.
 *
 *   gpu_register [FOLDER [MiB]]       prints JSON, and a table on standard error
 *
 * The file is made in FOLDER (".") and unlinked at once, 2048 MiB by default. Each round has a
 * mapping of its own, since page tables are part of the cost. Rates are 10^9 bytes a second.
 * Without a GPU it says so and ends with 77.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"
#include "gpunvme/memory.h"

#define ROUNDS      5
#define MAX_THREADS 8
#define MIB         ((size_t)1 << 20)
#define MAX_PIECES  4096
#define WAIT_NS     10000000000u

/* What a thread does with the pieces that it draws. */
enum job { PIN, UNPIN, WHOLE };

struct bench {
    size_t nbytes;
    int fd;
    const char *source;
    char *mapping;
    struct gpunvme_buf gpu;
    struct gpunvme_buf pieces[MAX_PIECES];
    size_t piece; /* bytes */
    size_t npieces;
    enum job job;
    atomic_size_t next;
    pthread_barrier_t start;
    double first_ns, last_ns; /* of the threads at work, under `lock` */
    pthread_mutex_t lock;
    const char *comma;
};

enum { PINNING, LETTING_GO, COPYING, ALL, NRATES };

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
    fprintf(stderr, "gpu_register: %s: %s\n", gpunvme_err_text(err), gpunvme_err_detail());
    exit(1);
}

static void check_os(bool good, const char *what)
{
    if (good)
        return;
    fprintf(stderr, "gpu_register: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void pin(struct bench *b, size_t i)
{
    check(gpunvme_mem_register_readonly(b->mapping + i * b->piece, b->piece, &b->pieces[i]));
}

static void start_copy(struct bench *b, size_t i, struct gpunvme_mem_stream *stream)
{
    check(gpunvme_mem_copy_async((char *)b->gpu.gpu + i * b->piece, GPUNVME_MEM_GPU,
                                 b->pieces[i].cpu, GPUNVME_MEM_PINNED, b->piece, stream));
}

/* Pins one piece while the one before is being copied. */
static void whole(struct bench *b, struct gpunvme_mem_stream *const streams[2])
{
    size_t held[2], i;
    unsigned n = 0;

    while ((i = atomic_fetch_add(&b->next, 1)) < b->npieces) {
        unsigned slot = n % 2;

        if (n >= 2) {
            check(gpunvme_mem_stream_sync(streams[slot], WAIT_NS));
            check(gpunvme_mem_unregister(&b->pieces[held[slot]]));
        }
        pin(b, i);
        start_copy(b, i, streams[slot]);
        held[slot] = i;
        n++;
    }
    for (unsigned k = n < 2 ? 0 : n - 2; k < n; k++) {
        check(gpunvme_mem_stream_sync(streams[k % 2], WAIT_NS));
        check(gpunvme_mem_unregister(&b->pieces[held[k % 2]]));
    }
}

/* Threads start together and may end one by one: the time is from the first to the last. */
static void keep_times(struct bench *b, double begin, double end)
{
    pthread_mutex_lock(&b->lock);
    if (b->first_ns == 0 || begin < b->first_ns)
        b->first_ns = begin;
    if (end > b->last_ns)
        b->last_ns = end;
    pthread_mutex_unlock(&b->lock);
}

static void *work(void *arg)
{
    struct bench *b = arg;
    struct gpunvme_mem_stream *streams[2] = {0};
    double begin;
    size_t i;

    for (int k = 0; b->job == WHOLE && k < 2; k++)
        check(gpunvme_mem_stream_create(&b->gpu, &streams[k]));
    pthread_barrier_wait(&b->start);
    begin = now_ns();
    if (b->job == WHOLE)
        whole(b, streams);
    else
        while ((i = atomic_fetch_add(&b->next, 1)) < b->npieces)
            b->job == PIN ? pin(b, i) : check(gpunvme_mem_unregister(&b->pieces[i]));
    keep_times(b, begin, now_ns());
    for (int k = 0; k < 2; k++)
        check(gpunvme_mem_stream_destroy(streams[k]));
    return NULL;
}

/* The rate at which threads do a job on all pieces. */
static double run(struct bench *b, enum job job, unsigned nthreads)
{
    pthread_t threads[MAX_THREADS];

    b->job = job;
    b->first_ns = b->last_ns = 0;
    atomic_store(&b->next, 0);
    check_os(pthread_barrier_init(&b->start, NULL, nthreads) == 0, "barrier");
    for (unsigned i = 0; i < nthreads; i++)
        check_os(pthread_create(&threads[i], NULL, work, b) == 0, "thread");
    for (unsigned i = 0; i < nthreads; i++)
        pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&b->start);
    return (double)(b->npieces * b->piece) / (b->last_ns - b->first_ns);
}

static double copy_all(struct bench *b)
{
    struct gpunvme_mem_stream *stream;
    double begin, end;

    check(gpunvme_mem_stream_create(&b->gpu, &stream));
    begin = now_ns();
    for (size_t i = 0; i < b->npieces; i++)
        start_copy(b, i, stream);
    check(gpunvme_mem_stream_sync(stream, WAIT_NS));
    end = now_ns();
    check(gpunvme_mem_stream_destroy(stream));
    return (double)(b->npieces * b->piece) / (end - begin);
}

static void map(struct bench *b)
{
    b->mapping = mmap(NULL, b->nbytes, PROT_READ, MAP_SHARED, b->fd, 0);
    check_os(b->mapping != MAP_FAILED, "mmap");
}

static void round_of(struct bench *b, unsigned nthreads, double rates[NRATES])
{
    map(b);
    rates[PINNING] = run(b, PIN, nthreads);
    rates[COPYING] = copy_all(b);
    rates[LETTING_GO] = run(b, UNPIN, nthreads);
    munmap(b->mapping, b->nbytes);
    map(b);
    rates[ALL] = run(b, WHOLE, nthreads);
    munmap(b->mapping, b->nbytes);
}

static void print_rate(const char *key, struct bench_stat stat)
{
    printf(", \"%s_gb_per_s\": {\"median\": %.3f, \"min\": %.3f, \"max\": %.3f}", key, stat.median,
           stat.min, stat.max);
    fprintf(stderr, "  %s %6.1f", key, stat.median);
}

static void measure(struct bench *b, size_t piece, unsigned nthreads)
{
    static const char *const names[NRATES] = {"register", "unregister", "copy", "whole"};
    double rates[NRATES], kept[NRATES][ROUNDS];

    b->piece = piece;
    b->npieces = b->nbytes / piece;
    if (b->npieces == 0 || b->npieces > MAX_PIECES)
        return;
    for (int i = 0; i < ROUNDS; i++) {
        round_of(b, nthreads, rates);
        for (int k = 0; k < NRATES; k++)
            kept[k][i] = rates[k];
    }
    printf("%s\n  {\"source\": \"%s\", \"piece_bytes\": %zu, \"threads\": %u", b->comma, b->source,
           piece, nthreads);
    fprintf(stderr, "%-10s %4zu MiB %2u threads", b->source, piece / MIB, nthreads);
    for (int k = 0; k < NRATES; k++)
        print_rate(names[k], bench_stat(kept[k], ROUNDS));
    printf("}");
    fprintf(stderr, "\n");
    b->comma = ",";
}

/* Random bytes, and then none of them on the way to a disk any more. */
static void fill(struct bench *b)
{
    uint64_t seed = 3, *words = malloc(MIB);

    check_os(words, "memory");
    for (size_t off = 0; off < b->nbytes; off += MIB) {
        for (size_t i = 0; i < MIB / sizeof(*words); i++)
            words[i] = bench_random(&seed);
        check_os(write(b->fd, words, MIB) == (ssize_t)MIB, "write");
    }
    free(words);
    check_os(fsync(b->fd) == 0, "fsync");
}

static int make_file(const char *folder)
{
    char path[4096];
    int fd;

    snprintf(path, sizeof(path), "%s/gpu_register.XXXXXX", folder);
    fd = mkstemp(path);
    if (fd >= 0)
        unlink(path);
    return fd;
}

/* All sizes and threads; or why it can't be, as a row of the table. */
static void sweep(struct bench *b)
{
    static const size_t pieces[] = {4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB};
    struct gpunvme_buf probe;
    gpunvme_err_t err;

    check_os(b->fd >= 0, b->source);
    fill(b);
    map(b);
    err = gpunvme_mem_register_readonly(b->mapping, MIB, &probe);
    if (!err)
        check(gpunvme_mem_unregister(&probe));
    munmap(b->mapping, b->nbytes);
    if (err) {
        printf("%s\n  {\"source\": \"%s\", \"refused\": \"%s\"}", b->comma, b->source,
               gpunvme_err_detail());
        fprintf(stderr, "%-10s refused: %s\n", b->source, gpunvme_err_detail());
        b->comma = ",";
    } else {
        for (size_t i = 0; i < sizeof(pieces) / sizeof(pieces[0]); i++)
            for (unsigned nthreads = 1; nthreads <= MAX_THREADS; nthreads *= 2)
                measure(b, pieces[i], nthreads);
    }
    close(b->fd);
}

int main(int argc, char **argv)
{
    static struct bench b;
    struct gpunvme_gpu_info info = {0};
    size_t mib = argc > 2 ? strtoull(argv[2], NULL, 0) : 2048;
    unsigned index;

    if (argc > 3 || mib < 1) {
        fprintf(stderr, "usage: gpu_register [FOLDER [MiB]]\n");
        return 2;
    }
    if (gpunvme_mem_gpu_is_host()) {
        fprintf(stderr, "SKIP: no GPU: %s\n", gpunvme_mem_gpu_why_not());
        return 77;
    }
    check(gpunvme_mem_gpu_current(&index));
    check(gpunvme_mem_gpu_info(index, &info));
    b.nbytes = mib * MIB;
    b.comma = "";
    pthread_mutex_init(&b.lock, NULL);
    check(gpunvme_mem_alloc(b.nbytes, GPUNVME_MEM_GPU, &b.gpu));
    printf("{\"benchmark\": \"gpu_register\", \"gpu\": \"%s\", \"file_bytes\": %zu, "
           "\"rounds\": %d, \"points\": [",
           info.name, b.nbytes, ROUNDS);
    b.source = "tmpfs";
    b.fd = memfd_create("gpu_register", MFD_CLOEXEC);
    sweep(&b);
    b.source = "page_cache";
    b.fd = make_file(argc > 1 ? argv[1] : ".");
    sweep(&b);
    printf("\n]}\n");
    check(gpunvme_mem_free(&b.gpu));
    return 0;
}
