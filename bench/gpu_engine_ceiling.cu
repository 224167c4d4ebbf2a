/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What the controller on the GPU can do at most: commands a second for a driver that costs as
 * little as can be. The submission queues are filled beforehand; one warp a queue writes a new
 * random block number into each entry, rings the doorbells and counts completions. No data is
 * looked at and no slot is kept: a queue of the library costs more.
 *
 *   gpu_engine_ceiling [runs]      prints JSON, and a table for people on standard error
 */
#include "../tests/gpu/engine_load.cuh"
#include "bench.h"
#include "gpunvme/memory.h"

#define SIZE       4096u /* entries of a queue */
#define DEPTH      1024u /* commands in flight: far fewer, so that no id comes again too early */
#define LANES      32u
#define LOOKS      4u /* entries that a lane looks at */
#define MAX_QUEUES 128u
#define MAX_RUNS   64u
#define PATIENCE   10000000000ull

struct tally {
    unsigned long long seen, errors;
};

static __global__ void prefill(const struct load_queue *queues, uint8_t opc, uint32_t nlb,
                               uint64_t nblocks)
{
    struct load_queue q = queues[blockIdx.x];

    for (uint32_t i = threadIdx.x; i < SIZE; i += blockDim.x) {
        struct gpunvme_sqe sqe;

        memset(&sqe, 0, sizeof(sqe));
        sqe.opc = opc;
        sqe.cid = (uint16_t)i;
        sqe.nsid = 1;
        sqe.prp1 = q.bus + i * nlb * 512ull;
        sqe.cdw10 =
            (uint32_t)(sim_engine_mix(blockIdx.x * (uint64_t)SIZE + i) % (nblocks / nlb) * nlb);
        sqe.cdw12 = nlb - 1;
        q.sq[i] = sqe;
    }
}

/* `total` more commands on each queue, whose state goes on in marks[]: the tail so far. */
static __global__ void ring(const struct load_queue *queues, uint64_t *marks, uint32_t total,
                            uint32_t nlb, uint32_t nblocks, struct tally *tally)
{
    struct load_queue q = queues[blockIdx.x];
    uint64_t base = marks[blockIdx.x], sent = base, seen = base, told = base, end = base + total;
    uint64_t deadline_ns = gpunvme_clock_ns() + PATIENCE, random = sim_engine_mix(blockIdx.x);
    uint32_t me = threadIdx.x, errors = 0, idle = 0;

    while (seen < end) {
        uint64_t room = seen + DEPTH - sent;
        uint32_t n = 0, more = (uint32_t)(room < end - sent ? room : end - sent);

        for (uint32_t i = me; i < more; i += LANES) {
            random = random * 6364136223846793005ull + me * 2 + 1;
            q.sq[(sent + i) % SIZE].cdw10 = (uint32_t)(random >> 33) % (nblocks / nlb) * nlb;
        }
        __syncwarp();
        sent += more;
        if (more && !me)
            gpunvme_store_release32(q.doorbells, (uint32_t)(sent % SIZE));
#pragma unroll
        for (uint32_t i = 0; i < LOOKS; i++) {
            uint64_t at = seen + i * LANES + me;
            uint32_t word = gpunvme_load_relaxed32((const uint32_t *)&q.cq[at % SIZE] + 3);
            uint32_t here = (word >> 16 & 1) == !(at / SIZE & 1) && at < sent;
            uint32_t all = __ballot_sync(0xffffffffu, here);

            if (n == i * LANES)
                n += all == 0xffffffffu ? LANES : __ffs((int)~all) - 1;
            errors += here && word >> 17 && i * LANES + me < n;
        }
        seen += n;
        if (!me && (seen - told > SIZE / 4 || seen == end)) {
            gpunvme_store_release32(q.doorbells + 32, (uint32_t)(seen % SIZE));
            told = seen;
        }
        told = __shfl_sync(0xffffffffu, told, 0);
        idle = n ? 0 : idle + 1;
        if (idle > 1000 && gpunvme_clock_ns() > deadline_ns)
            break;
    }
    if (!me) {
        marks[blockIdx.x] = seen;
        atomicAdd(&tally->seen, seen - base);
    }
    atomicAdd(&tally->errors, errors);
}

/* One kind of work on l's first `queues`, run by run; prints a row. */
static int measure(struct load *l, uint8_t opc, uint32_t nlb, unsigned threads, unsigned runs,
                   int first)
{
    uint32_t total = l->nqueues == 1 ? 4000000 : l->nqueues <= 16 ? 1000000 : 300000;
    double rates[MAX_RUNS], gbytes;
    struct bench_stat stat;
    struct tally *tally, got;
    uint64_t *marks;
    cudaEvent_t begin, end;
    const char *op = opc == GPUNVME_CMD_READ ? "read" : "write";

    tally = (struct tally *)load_alloc(sizeof(*tally));
    marks = (uint64_t *)load_alloc(l->nqueues * sizeof(*marks));
    LOAD_CUDA(cudaEventCreate(&begin));
    LOAD_CUDA(cudaEventCreate(&end));
    l->threads = threads;
    prefill<<<l->nqueues, 256, 0, l->driver>>>(l->queues, opc, nlb, l->nbytes >> 9);
    load_start(l);
    for (unsigned i = 0; i <= runs; i++) {
        float ms;

        LOAD_CUDA(cudaEventRecord(begin, l->driver));
        ring<<<l->nqueues, LANES, 0, l->driver>>>(l->queues, marks, total, nlb,
                                                  (uint32_t)(l->nbytes >> 9), tally);
        LOAD_CUDA(cudaEventRecord(end, l->driver));
        LOAD_OK(sim_engine_wait(l->driver, gpunvme_clock_ns() + 2 * PATIENCE));
        LOAD_CUDA(cudaEventElapsedTime(&ms, begin, end));
        if (i) /* the first one warms up */
            rates[i - 1] = (double)l->nqueues * total / ms / 1000;
    }
    load_stop(l);
    LOAD_CUDA(cudaMemcpy(&got, tally, sizeof(got), cudaMemcpyDeviceToHost));
    stat = bench_stat(rates, runs);
    gbytes = stat.median * nlb * 512 / 1000;
    printf("%s\n  {\"op\": \"%s\", \"block_nbytes\": %u, \"queues\": %u, \"threads\": %u, "
           "\"m_per_s\": {\"median\": %.3f, \"min\": %.3f, \"max\": %.3f}, \"commands\": %llu, "
           "\"errors\": %llu, \"violations\": %llu}",
           first ? "" : ",", op, nlb * 512, l->nqueues, threads, stat.median, stat.min, stat.max,
           got.seen, got.errors, (unsigned long long)load_violations(l));
    fprintf(stderr, "%5s %4u B, %3u queues, %3u threads: %8.2f M/s (%.2f to %.2f), %.0f GB/s%s\n",
            op, nlb * 512, l->nqueues, threads, stat.median, stat.min, stat.max, gbytes,
            got.seen == (runs + 1ull) * l->nqueues * total && !got.errors ? "" : "  WRONG");
    LOAD_CUDA(cudaFree(tally));
    LOAD_CUDA(cudaFree(marks));
    return got.seen != (runs + 1ull) * l->nqueues * total || got.errors || load_violations(l);
}

/* The queues begin anew for each row: as they are left they would not fit the next one's marks. */
static int measure_rows(unsigned nqueues, unsigned threads, unsigned runs, int first)
{
    static const uint8_t ops[] = {GPUNVME_CMD_READ, GPUNVME_CMD_WRITE};
    int failed = 0;

    for (unsigned op = 0; op < 2; op++)
        for (uint32_t nlb = 1; nlb <= 8; nlb *= 8) {
            struct load l;

            memset(&l, 0, sizeof(l));
            l.nqueues = nqueues;
            l.threads = threads;
            l.size = SIZE;
            l.nbytes = 4ull << 30;
            l.data_nbytes = (uint64_t)SIZE * nlb * 512;
            load_make(&l);
            failed |= measure(&l, ops[op], nlb, threads, runs, first && !op && nlb == 1);
            load_free(&l);
        }
    return failed;
}

int main(int argc, char **argv)
{
    unsigned runs = argc > 1 ? (unsigned)atoi(argv[1]) : 5;
    struct cudaFuncAttributes attributes;
    struct cudaDeviceProp prop;
    int failed = 0;

    if (gpunvme_mem_gpu_is_host()) {
        printf("SKIP: no GPU: %s\n", gpunvme_mem_gpu_why_not());
        return 77;
    }
    if (!runs || runs > MAX_RUNS)
        return 2;
    LOAD_CUDA(cudaFuncGetAttributes(&attributes, ring));
    LOAD_CUDA(cudaGetDeviceProperties(&prop, 0));
    printf("{\"bench\": \"gpu_engine_ceiling\", \"gpu\": \"%s\", \"runs\": %u, \"depth\": %u, "
           "\"rows\": [",
           prop.name, runs, DEPTH);
    failed |= measure_rows(1, 256, runs, 1);
    failed |= measure_rows(1, 512, runs, 0);
    failed |= measure_rows(16, 256, runs, 0);
    failed |= measure_rows(16, 512, runs, 0);
    failed |= measure_rows(MAX_QUEUES, 128, runs, 0);
    failed |= measure_rows(MAX_QUEUES, 256, runs, 0);
    printf("\n]}\n");
    return failed;
}
