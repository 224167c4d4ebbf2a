/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Batches of copies between pinned host memory and GPU memory: size of a piece × pieces in a batch
 * × way (one kernel for all, the copy engine for each, CUDA's batch call), in both directions; and
 * for the kernel the number of its blocks. Pieces lie in random order at both ends, as reads from
 * random places do. From its figures come MEM_BATCH_KERNEL_MAX and MEM_BATCH_MAX_BLOCKS.
 *
 *   gpu_copy_batch [milliseconds for each point]     prints JSON, and a table on standard error
 *
 * Each point is the median of batches started back to back, at most IN_FLIGHT on the stream: rates
 * of the pipeline, not of a single batch; latency is that of a batch alone. Rates are 10^9 bytes a
 * second. Without a GPU it says so and ends with 77.
 */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "bench.h"
#include "gpunvme/memory.h"
#include "memory/cuda.h"

#define ARENA        ((size_t)1 << 30)
#define MAX_PIECES   16384u
#define ROUNDS       7
#define IN_FLIGHT    4
#define WAIT_NS      10000000000u
#define POINT_NBYTES ((size_t)512 << 20) /* no batch moves more */

struct bench {
    struct gpunvme_buf gpu, pinned;
    struct mem_cuda_stream *stream;
    struct gpunvme_mem_piece *pieces; /* ARENA in pieces of the size at hand, in random order */
    size_t npieces;                   /* of them */
    double round_ns;
    const char *comma;
};

/* A point of the sweep. */
struct point {
    const char *direction;
    bool to_gpu;
    const char *name;
    enum mem_batch_way way;
    unsigned max_blocks;
    size_t nbytes;       /* of a piece */
    size_t npieces;      /* of a batch */
    unsigned misaligned; /* bytes that the source is off; the destination is aligned */
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
    fprintf(stderr, "gpu_copy_batch: %s: %s\n", gpunvme_err_text(err), gpunvme_err_detail());
    exit(1);
}

/* Lays the arena out anew: piece i of the destination gets a piece of the source drawn at random.
 */
static void lay_out(struct bench *b, const struct point *p)
{
    const struct gpunvme_buf *dst = p->to_gpu ? &b->gpu : &b->pinned;
    const struct gpunvme_buf *src = p->to_gpu ? &b->pinned : &b->gpu;
    const size_t pitch = (p->nbytes + p->misaligned + 15) & ~(size_t)15;
    uint64_t seed = 7;
    size_t j;

    b->npieces = ARENA / pitch < 4 * MAX_PIECES ? ARENA / pitch : 4 * MAX_PIECES;
    for (size_t i = 0; i < b->npieces; i++)
        b->pieces[i] = (struct gpunvme_mem_piece){
            (char *)dst->gpu + i * pitch, (char *)src->gpu + i * pitch + p->misaligned, p->nbytes};
    for (size_t i = b->npieces - 1; i > 0; i--) {
        const void *src_i = b->pieces[i].src;

        j = bench_random(&seed) % (i + 1);
        b->pieces[i].src = b->pieces[j].src;
        b->pieces[j].src = src_i;
    }
}

static gpunvme_err_t start(struct bench *b, const struct point *p, size_t *at)
{
    if (*at + p->npieces > b->npieces)
        *at = 0;
    *at += p->npieces;
    return mem_cuda_stream_copy_batch(b->stream, b->pieces + *at - p->npieces, p->npieces, p->way,
                                      p->max_blocks);
}

/* One batch, from its start to its end. */
static gpunvme_err_t one(struct bench *b, const struct point *p, size_t *at, double *us)
{
    double begin = now_ns();
    gpunvme_err_t err = start(b, p, at);

    if (!err)
        err = mem_cuda_stream_sync(b->stream, WAIT_NS);
    *us = (now_ns() - begin) / 1000;
    return err;
}

/* Batches back to back for round_ns; *start_us is what the calls took of the CPU, each. */
static gpunvme_err_t many(struct bench *b, const struct point *p, size_t *at, double *pieces_per_s,
                          double *start_us)
{
    double begin = now_ns(), calls = 0, before;
    gpunvme_err_t err = GPUNVME_OK;
    unsigned n = 0;

    while (!err && (n < IN_FLIGHT || now_ns() - begin < b->round_ns)) {
        for (unsigned i = 0; i < IN_FLIGHT && !err; i++, n++) {
            before = now_ns();
            err = start(b, p, at);
            calls += now_ns() - before;
        }
        if (!err)
            err = mem_cuda_stream_sync(b->stream, WAIT_NS);
    }
    *pieces_per_s = n * (double)p->npieces / (now_ns() - begin) * 1e9;
    *start_us = calls / n / 1000;
    return err;
}

static void print(struct bench *b, const struct point *p, struct bench_stat rate,
                  struct bench_stat latency, struct bench_stat cpu)
{
    const double gb = (double)p->nbytes / 1e9;

    printf("%s\n  {\"direction\": \"%s\", \"way\": \"%s\", \"max_blocks\": %u, "
           "\"piece_bytes\": %zu, \"source_bytes_off\": %u, \"pieces\": %zu, "
           "\"pieces_per_s\": %.0f, \"gb_per_s\": {\"median\": %.3f, \"min\": %.3f, "
           "\"max\": %.3f}, \"latency_us\": %.2f, \"start_us\": %.2f}",
           b->comma, p->direction, p->name, p->max_blocks, p->nbytes, p->misaligned, p->npieces,
           rate.median, rate.median * gb, rate.min * gb, rate.max * gb, latency.median, cpu.median);
    fprintf(stderr, "%-14s %-7s %4u %8zu B +%-2u %6zu  %8.3f GB/s %8.3f M/s %9.1f us %9.1f us\n",
            p->direction, p->name, p->max_blocks, p->nbytes, p->misaligned, p->npieces,
            rate.median * gb, rate.median / 1e6, latency.median, cpu.median);
    b->comma = ",";
}

static void measure(struct bench *b, const struct point *p)
{
    double rates[ROUNDS], latencies[ROUNDS], cpu[ROUNDS];
    gpunvme_err_t err = GPUNVME_OK;
    size_t at = 0;

    if (p->npieces > b->npieces || p->npieces * p->nbytes > POINT_NBYTES)
        return;
    for (int i = -1; i < ROUNDS && !err; i++) { /* the first does not count */
        int k = i < 0 ? 0 : i;

        err = one(b, p, &at, &latencies[k]);
        if (!err)
            err = many(b, p, &at, &rates[k], &cpu[k]);
    }
    if (err == GPUNVME_ERR_UNSUPPORTED) {
        fprintf(stderr, "%-14s %-7s left out: %s\n", p->direction, p->name, gpunvme_err_detail());
        return;
    }
    check(err);
    print(b, p, bench_stat(rates, ROUNDS), bench_stat(latencies, ROUNDS), bench_stat(cpu, ROUNDS));
}

static void measure_ways(struct bench *b, struct point p)
{
    static const size_t npieces[] = {1, 16, 128, 1024, 8192};

    lay_out(b, &p);
    for (size_t i = 0; i < sizeof(npieces) / sizeof(npieces[0]); i++) {
        p.npieces = npieces[i];
        p.way = MEM_BATCH_KERNEL;
        p.name = "kernel";
        measure(b, &p);
        p.way = MEM_BATCH_ENGINE;
        p.name = "engine";
        measure(b, &p);
        p.way = MEM_BATCH_API;
        p.name = "api";
        measure(b, &p);
    }
}

static void measure_blocks(struct bench *b, struct point p)
{
    static const unsigned blocks[] = {4, 8, 16, 32, 64, 128, 256};

    lay_out(b, &p);
    p.way = MEM_BATCH_KERNEL;
    p.name = "kernel";
    p.npieces = 8192;
    for (size_t i = 0; i < sizeof(blocks) / sizeof(blocks[0]); i++) {
        p.max_blocks = blocks[i];
        measure(b, &p);
    }
}

static void sweep(struct bench *b)
{
    static const size_t sizes[] = {512, 4096, 16384, 32768, 65536, 131072, 262144, 1048576};

    for (int to_gpu = 1; to_gpu >= 0; to_gpu--) {
        struct point p = {.to_gpu = to_gpu,
                          .direction = to_gpu ? "pinned_to_gpu" : "gpu_to_pinned"};

        for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
            p.nbytes = sizes[i];
            measure_ways(b, p);
        }
        p.nbytes = 4096;
        measure_blocks(b, p);
        p.misaligned = 3;
        measure_blocks(b, p);
        p.misaligned = 0;
        p.nbytes = 512;
        measure_blocks(b, p);
    }
}

/* Random bytes at both ends: nothing is measured on zeroes. */
static void prepare(struct bench *b)
{
    uint64_t seed = 1, *words;

    check(gpunvme_mem_alloc(ARENA, GPUNVME_MEM_GPU, &b->gpu));
    check(gpunvme_mem_alloc(ARENA, GPUNVME_MEM_PINNED, &b->pinned));
    check(mem_cuda_stream_create(b->gpu.gpu, &b->stream));
    b->pieces = malloc(4 * MAX_PIECES * sizeof(*b->pieces));
    if (!b->pieces)
        check(GPUNVME_ERR_NOMEM);
    words = b->pinned.cpu;
    for (size_t i = 0; i < ARENA / sizeof(*words); i++)
        words[i] = bench_random(&seed);
    check(gpunvme_mem_copy(b->gpu.gpu, GPUNVME_MEM_GPU, b->pinned.cpu, GPUNVME_MEM_PINNED, ARENA));
    b->comma = "";
}

int main(int argc, char **argv)
{
    struct gpunvme_gpu_info info = {0};
    double ms = argc > 1 ? strtod(argv[1], NULL) : 5;
    struct bench b = {0};
    unsigned index;

    if (argc > 2 || !(ms > 0)) {
        fprintf(stderr, "usage: gpu_copy_batch [milliseconds for each point, default 5]\n");
        return 2;
    }
    if (gpunvme_mem_gpu_is_host()) {
        fprintf(stderr, "SKIP: no GPU: %s\n", gpunvme_mem_gpu_why_not());
        return 77;
    }
    b.round_ns = ms * 1e6;
    check(gpunvme_mem_gpu_current(&index));
    check(gpunvme_mem_gpu_info(index, &info));
    prepare(&b);
    printf("{\"benchmark\": \"gpu_copy_batch\", \"gpu\": \"%s\", \"arena_bytes\": %zu, "
           "\"batches_in_flight\": %d, \"rounds\": %d, \"ms_a_round\": %.1f, \"points\": [",
           info.name, ARENA, IN_FLIGHT, ROUNDS, ms);
    sweep(&b);
    printf("\n]}\n");
    check(mem_cuda_stream_destroy(b.stream));
    check(gpunvme_mem_free(&b.gpu));
    check(gpunvme_mem_free(&b.pinned));
    free(b.pieces);
    return 0;
}
