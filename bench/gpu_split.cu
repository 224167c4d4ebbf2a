/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What a thread of the GPU gains by having four commands in flight: random reads of one block by
 * blocking calls, and in split phase. Prints JSON, with reads per second and, for one thread, how
 * long each of its calls took.
 *
 *   gpu_split [uri=sim:threads=8,spin] [tier=1] [block=512] [threads=1,32,128] [runs=5] [ms=40]
 *
 *   blocking  gpunvme_dev_read(), one after the other
 *   batch     four submits, then four waits, in the order of the submits
 *   vector    one submit of four by gpunvme_dev_submit_readv(), then four waits
 *   window    a wait for the oldest, then the submit of another one: always three or four in flight
 *   lone      as batch, but each thread is a warp of its own: `threads` warps with one lane
 *
 * Every way is run once with a look at the data of each read, untimed; then `runs` times by turns.
 */
#include <cuda_runtime.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "gpu_rig.h"
#include "gpunvme/device.cuh"
#include "gpunvme/memory.h"

#define DEPTH     4
#define MAX_RUNS  64
#define MAX_STEPS 4096 /* rounds whose calls are timed */

static uint64_t tier = 1, block = 512, runs = 5, ms = 40, size = 64 << 20, queues = 1;
static struct rig_list threads_list = {3, {1, 32, 128}};
static const char *uri = "sim:threads=8,spin", *label = "";

static const struct rig_param params[] = {
    {"uri", RIG_TEXT, &uri, NULL, "of the controller"},
    {"tier", RIG_NUMBER, &tier, NULL, "placement: 1, 2, 3"},
    {"block", RIG_NUMBER, &block, NULL, "bytes of a read"},
    {"size", RIG_NUMBER, &size, NULL, "bytes of the drive"},
    {"queues", RIG_NUMBER, &queues, NULL, "queue pairs"},
    {"threads", RIG_LIST, &threads_list, NULL, "threads of the GPU"},
    {"runs", RIG_NUMBER, &runs, NULL, "runs"},
    {"ms", RIG_NUMBER, &ms, NULL, "milliseconds of a run, about"},
    {"label", RIG_TEXT, &label, NULL, "a word for the JSON"},
    {NULL, RIG_TEXT, NULL, NULL, NULL},
};

enum way { BLOCKING, BATCH, VECTOR, WINDOW, LONE, NWAYS };
static const char *const way_names[NWAYS] = {"blocking", "batch", "vector", "window", "lone"};

struct outcome {
    unsigned long long errors, wrong, full; /* full: reads that found no slot when submitted */
    uint64_t ns, cycles;                    /* of the timed calls: what a cycle is */
    uint32_t submit[DEPTH][MAX_STEPS], wait[DEPTH][MAX_STEPS];
};

/* By value to kernels. */
struct work {
    struct gpunvme_dev_ns ns;
    struct gpunvme_dev_buf buf;
    uint32_t nlb, rounds, check; /* a round: DEPTH reads */
    uint64_t seed;
    struct outcome *out;
};

/* A thread's reads: where they begin, and where their data goes. */
struct reader {
    uint64_t state, off;
    uint64_t lba[DEPTH];
    uint32_t errors, wrong, full;
    uint32_t lanes; /* of its warp */
};

static __device__ __forceinline__ void reader_init(struct reader *r, const struct work *w,
                                                   uint32_t thread)
{
    r->state = bench_word(thread & 0xff, w->seed + thread, 0);
    r->off = (uint64_t)thread * DEPTH * w->nlb * w->ns.block_size;
    r->errors = r->wrong = r->full = 0;
    r->lanes = __activemask();
}

static __device__ __forceinline__ uint64_t place(const struct reader *r, const struct work *w,
                                                 int i)
{
    return r->off + (uint64_t)i * w->nlb * w->ns.block_size;
}

static __device__ __forceinline__ void choose(struct reader *r, const struct work *w, int i)
{
    r->state = r->state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    r->lba[i] =
        (uint64_t)__umulhi((uint32_t)(r->state >> 32), (uint32_t)(w->ns.nblocks / w->nlb)) * w->nlb;
}

/* Checks what came of a read. */
static __device__ __forceinline__ void ended(struct reader *r, const struct work *w, int i, int err)
{
    r->errors += err != 0;
    if (w->check && !err)
        r->wrong +=
            *(volatile uint64_t *)(w->buf.data + place(r, w, i)) != bench_word(0, r->lba[i], 0);
}

static __device__ __forceinline__ void submit(struct reader *r, const struct work *w, int i,
                                              struct gpunvme_dev_token *token)
{
    int err;

    choose(r, w, i);
    err = gpunvme_dev_submit_read(&w->ns, r->lba[i], w->nlb, &w->buf, place(r, w, i), token);
    r->full += err == GPUNVME_ERR_AGAIN;
    r->errors += err && err != GPUNVME_ERR_AGAIN;
}

/*
 * Waits for a read. One that found no slot, which may happen even in a queue that is half full, is
 * made now, by itself. It may wait for a slot while its thread holds others: there is room for all.
 */
static __device__ __forceinline__ void await(struct reader *r, const struct work *w, int i,
                                             struct gpunvme_dev_token *token)
{
    int err = gpunvme_dev_wait(&w->ns, token, 0);

    if (err == GPUNVME_ERR_STALE)
        err = gpunvme_dev_read(&w->ns, r->lba[i], w->nlb, &w->buf, place(r, w, i), 0);
    ended(r, w, i, err);
    __syncwarp(r->lanes);
}

static __device__ void finish(const struct reader *r, const struct work *w)
{
    if (r->errors)
        atomicAdd(&w->out->errors, r->errors);
    if (r->wrong)
        atomicAdd(&w->out->wrong, r->wrong);
    if (r->full)
        atomicAdd(&w->out->full, r->full);
}

static __global__ void blocking(const __grid_constant__ struct work w)
{
    struct reader r;

    reader_init(&r, &w, blockIdx.x * blockDim.x + threadIdx.x);
    for (uint32_t i = 0; i < w.rounds * DEPTH; i++) {
        choose(&r, &w, 0);
        ended(&r, &w, 0, gpunvme_dev_read(&w.ns, r.lba[0], w.nlb, &w.buf, place(&r, &w, 0), 0));
    }
    finish(&r, &w);
}

static __global__ void batch(const __grid_constant__ struct work w)
{
    struct gpunvme_dev_token tokens[DEPTH];
    struct reader r;

    reader_init(&r, &w, blockIdx.x * blockDim.x + threadIdx.x);
    for (uint32_t round = 0; round < w.rounds; round++) {
#pragma unroll
        for (int i = 0; i < DEPTH; i++)
            submit(&r, &w, i, &tokens[i]);
#pragma unroll
        for (int i = 0; i < DEPTH; i++)
            await(&r, &w, i, &tokens[i]);
    }
    finish(&r, &w);
}

static __device__ __forceinline__ void submit_all(struct reader *r, const struct work *w,
                                                  struct gpunvme_dev_token tokens[DEPTH])
{
    struct gpunvme_dev_vec vec[DEPTH];
    uint32_t nsubmitted;
    int err;

#pragma unroll
    for (int i = 0; i < DEPTH; i++) {
        choose(r, w, i);
        vec[i].slba = r->lba[i];
        vec[i].off = place(r, w, i);
        vec[i].nlb = w->nlb;
    }
    err = gpunvme_dev_submit_readv(&w->ns, vec, DEPTH, &w->buf, tokens, &nsubmitted);
    r->full += DEPTH - nsubmitted;
    r->errors += err && err != GPUNVME_ERR_AGAIN;
}

static __global__ void vector(const __grid_constant__ struct work w)
{
    struct gpunvme_dev_token tokens[DEPTH];
    struct reader r;

    reader_init(&r, &w, blockIdx.x * blockDim.x + threadIdx.x);
    for (uint32_t round = 0; round < w.rounds; round++) {
        submit_all(&r, &w, tokens);
#pragma unroll
        for (int i = 0; i < DEPTH; i++)
            await(&r, &w, i, &tokens[i]);
    }
    finish(&r, &w);
}

static __global__ void window(const __grid_constant__ struct work w)
{
    struct gpunvme_dev_token tokens[DEPTH];
    struct reader r;

    reader_init(&r, &w, blockIdx.x * blockDim.x + threadIdx.x);
#pragma unroll
    for (int i = 0; i < DEPTH; i++)
        submit(&r, &w, i, &tokens[i]);
    for (uint32_t round = 1; round < w.rounds; round++) {
#pragma unroll
        for (int i = 0; i < DEPTH; i++) {
            await(&r, &w, i, &tokens[i]);
            submit(&r, &w, i, &tokens[i]);
        }
    }
#pragma unroll
    for (int i = 0; i < DEPTH; i++)
        await(&r, &w, i, &tokens[i]);
    finish(&r, &w);
}

/* One thread, whose calls are timed one by one. */
static __global__ void steps(const __grid_constant__ struct work w)
{
    uint64_t t0 = gpunvme_clock_ns(), c0 = (uint64_t)clock64();
    struct gpunvme_dev_token tokens[DEPTH];
    struct reader r;

    reader_init(&r, &w, 0);
    for (uint32_t round = 0; round < w.rounds; round++) {
#pragma unroll
        for (int i = 0; i < DEPTH; i++) {
            uint64_t before = (uint64_t)clock64();

            submit(&r, &w, i, &tokens[i]);
            w.out->submit[i][round] = (uint32_t)((uint64_t)clock64() - before);
        }
#pragma unroll
        for (int i = 0; i < DEPTH; i++) {
            uint64_t before = (uint64_t)clock64();

            await(&r, &w, i, &tokens[i]);
            w.out->wait[i][round] = (uint32_t)((uint64_t)clock64() - before);
        }
    }
    finish(&r, &w);
    w.out->cycles = (uint64_t)clock64() - c0;
    w.out->ns = gpunvme_clock_ns() - t0;
}

static void must(cudaError_t e, const char *what)
{
    if (e)
        rig_fail("%s: %s", what, cudaGetErrorString(e));
}

struct lab {
    struct rig rig;
    struct gpunvme_buf out;
    cudaStream_t stream;
    cudaEvent_t begin, end;
    struct work work;
    uint64_t errors, wrong, full, violations;
};

static struct outcome seen; /* of the last kernel */

static void lab_open(struct lab *l)
{
    struct gpunvme_device_opts opts;
    char full[512];
    uint64_t most = 1;

    for (unsigned i = 0; i < threads_list.n; i++)
        most = threads_list.values[i] > most ? threads_list.values[i] : most;
    must(cudaStreamCreateWithFlags(&l->stream, cudaStreamNonBlocking), "a stream");
    must(cudaEventCreate(&l->begin), "an event");
    must(cudaEventCreate(&l->end), "an event");
    rig_check(gpunvme_mem_alloc(sizeof(struct outcome), GPUNVME_MEM_GPU, &l->out), "memory");
    snprintf(full, sizeof(full), "%s%ssize=%llu", uri, uri[4] ? "," : "", (unsigned long long)size);
    rig_open(&l->rig, strncmp(uri, "sim:", 4) ? uri : full, 1, 8);
    rig_number(&l->rig, (enum gpunvme_placement)tier);
    gpunvme_device_opts_init(&opts);
    opts.placement = (enum gpunvme_placement)tier;
    opts.queues = (uint32_t)queues;
    opts.no_byte_ranges = true;
    rig_check(rig_open_queues(&l->rig, 1, &opts), "queues");
    rig_check(rig_alloc(&l->rig, most * DEPTH * block), "memory for data");
    l->work.ns = l->rig.drives[0].handle;
    l->work.buf = l->rig.drives[0].view;
    l->work.nlb = (uint32_t)(block / l->rig.drives[0].ns->block_size);
    l->work.out = (struct outcome *)l->out.gpu;
    if (most * DEPTH * 2 > queues * l->rig.info.entries)
        rig_fail("threads: %llu queues of %u entries have room for fewer",
                 (unsigned long long)queues, l->rig.info.entries);
}

static void lab_close(struct lab *l)
{
    rig_close(&l->rig);
    gpunvme_mem_free(&l->out);
    cudaEventDestroy(l->begin);
    cudaEventDestroy(l->end);
    cudaStreamDestroy(l->stream);
}

static void start(struct lab *l, enum way way, uint32_t threads)
{
    uint32_t width = way == LONE ? 1 : threads < 128 ? threads : 128;
    dim3 grid(threads / width), of(width);

    if (way == BLOCKING)
        blocking<<<grid, of, 0, l->stream>>>(l->work);
    else if (way == VECTOR)
        vector<<<grid, of, 0, l->stream>>>(l->work);
    else if (way == WINDOW)
        window<<<grid, of, 0, l->stream>>>(l->work);
    else
        batch<<<grid, of, 0, l->stream>>>(l->work);
}

static void wait_for(struct lab *l)
{
    cudaError_t e;
    unsigned turns = 0;

    must(cudaGetLastError(), "launch");
    while ((e = cudaEventQuery(l->end)) == cudaErrorNotReady && turns++ < 300000)
        usleep(100);
    must(e == cudaErrorNotReady ? cudaErrorLaunchTimeout : e, "the kernel");
    rig_check(gpunvme_mem_copy(&seen, GPUNVME_MEM_HOST, l->out.gpu, GPUNVME_MEM_GPU, sizeof(seen)),
              "the outcome");
    l->errors += seen.errors;
    l->wrong += seen.wrong;
    l->full += seen.full;
}

/* Runs a way: reads per second. */
static double run(struct lab *l, enum way way, uint32_t threads, uint32_t rounds, bool check)
{
    float took;

    l->work.rounds = rounds;
    l->work.check = check;
    l->work.seed++;
    must(cudaMemsetAsync(l->work.out, 0, 3 * sizeof(unsigned long long), l->stream), "the outcome");
    must(cudaEventRecord(l->begin, l->stream), "event");
    start(l, way, threads);
    must(cudaEventRecord(l->end, l->stream), "event");
    wait_for(l);
    must(cudaEventElapsedTime(&took, l->begin, l->end), "time");
    return (double)threads * rounds * DEPTH / took * 1e3;
}

static double median_ns(uint32_t *each, uint32_t n)
{
    static double values[MAX_STEPS];
    double per_cycle = (double)seen.ns / (double)seen.cycles;

    for (uint32_t i = 0; i < n; i++)
        values[i] = each[i] * per_cycle;
    return rig_median(values, n);
}

static void print_steps(const char *key, uint32_t each[DEPTH][MAX_STEPS], uint32_t n)
{
    fprintf(stderr, "  %s", key);
    printf(", \"%s\": [", key);
    for (int i = 0; i < DEPTH; i++) {
        double ns = median_ns(each[i], n);

        printf("%s%.0f", i ? ", " : "", ns);
        fprintf(stderr, " %.0f", ns);
    }
    printf("]");
    fprintf(stderr, "\n");
}

/* One thread's calls in a batch, in ns: the median of each. */
static void time_steps(struct lab *l)
{
    uint32_t n = MAX_STEPS / 2;

    l->work.rounds = n;
    l->work.check = 0;
    must(cudaMemsetAsync(l->work.out, 0, 3 * sizeof(unsigned long long), l->stream), "the outcome");
    steps<<<1, 1, 0, l->stream>>>(l->work);
    must(cudaEventRecord(l->end, l->stream), "event");
    wait_for(l);
    print_steps("submit_ns", seen.submit, n);
    print_steps("wait_ns", seen.wait, n);
}

static void measure(struct lab *l, uint32_t threads, bool is_first)
{
    static double rates[NWAYS][MAX_RUNS];
    uint32_t rounds[NWAYS];
    double first;

    for (int way = 0; way < NWAYS; way++) {
        double guess = run(l, (enum way)way, threads, 64, true);

        rounds[way] = (uint32_t)(guess * (double)ms / 1e3 / threads / DEPTH);
        rounds[way] = rounds[way] < 64 ? 64 : rounds[way];
    }
    for (uint64_t i = 0; i < runs; i++)
        for (int way = 0; way < NWAYS; way++)
            rates[way][i] = run(l, (enum way)way, threads, rounds[way], false);
    printf("%s\n {\"threads\": %u", is_first ? "" : ",", threads);
    first = rig_median(rates[BLOCKING], (unsigned)runs);
    for (int way = 0; way < NWAYS; way++) {
        double median = rig_median(rates[way], (unsigned)runs);

        printf(", ");
        rig_print_stat(way_names[way], rates[way], (unsigned)runs);
        fprintf(stderr, "%5u threads, %-8s %8.3f M/s, %6.2f us a read of a thread, x %.2f\n",
                threads, way_names[way], median / 1e6, threads / median * 1e6, median / first);
    }
    if (threads == 1)
        time_steps(l);
    printf("}");
}

int main(int argc, char **argv)
{
    static struct lab l;

    rig_start("gpu_split");
    rig_args(argc, argv, params);
    if (!runs || runs > MAX_RUNS || strlen(uri) < 4)
        rig_fail("runs: 1 to %d", MAX_RUNS);
    for (unsigned i = 0; i < threads_list.n; i++)
        if (!threads_list.values[i] ||
            (threads_list.values[i] > 128 && threads_list.values[i] % 128))
            rig_fail("threads: at most 128, or a multiple of it");
    rig_need_gpu();
    lab_open(&l);
    printf("{\"benchmark\": \"gpu_split\", \"label\": \"%s\", \"uri\": \"%s\", \"tier\": %d, "
           "\"queues\": %llu, \"block\": %llu, \"in_flight\": %d, \"runs\": %llu, \"rows\": [",
           label, uri, (int)l.rig.info.placement, (unsigned long long)queues,
           (unsigned long long)block, DEPTH, (unsigned long long)runs);
    for (unsigned i = 0; i < threads_list.n; i++)
        measure(&l, (uint32_t)threads_list.values[i], !i);
    l.violations = rig_violations(&l.rig);
    printf("],\n \"full\": %llu, \"errors\": %llu, \"wrong\": %llu, \"violations\": %llu}\n",
           (unsigned long long)l.full, (unsigned long long)l.errors, (unsigned long long)l.wrong,
           (unsigned long long)l.violations);
    fprintf(stderr, "%llu found no slot at once, %llu errors, %llu wrong, %llu violations\n",
            (unsigned long long)l.full, (unsigned long long)l.errors, (unsigned long long)l.wrong,
            (unsigned long long)l.violations);
    lab_close(&l);
    return l.errors || l.wrong || l.violations;
}
