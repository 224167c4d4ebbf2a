/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How long one thread of the GPU waits for one block, beside the least that it could: a word that
 * goes from the GPU to a CPU thread and back through pinned host memory, with nothing else. Both in
 * turns, in one run; every single wait is timed by the thread's own clock. Prints JSON.
 *
 *   gpu_latency [uri=sim:threads=1,spin] [tier=1] [block=4096] [n=2000] [runs=5] [model=0]
 * [steps=0]
 *
 * `model` is the latency in nanoseconds that the URI asks of the controller: what is left of a read
 * without it is compared with the round trip. A URI with engine=gpu and tier=3 measures the
 * controller on the GPU instead, where the round trip does not limit. `steps=1` also times the
 * steps of a read by themselves, done by hand: place in the queue, entry and doorbell, completion,
 * result.
 */
#include <cuda_runtime.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "gpu_rig.h"
#include "gpunvme/device.cuh"
#include "gpunvme/memory.h"

#define MAX_RUNS 64
#define MAX_N    100000
#define NSTEPS   4 /* reserve, submit, completion, result */

static uint64_t n = 2000, runs = 5, tier = 1, block = 4096, size = 256 << 20, model, steps;
static const char *uri = "sim:threads=1,spin", *label = "";

static const struct rig_param params[] = {
    {"uri", RIG_TEXT, &uri, NULL, "of the controller"},
    {"tier", RIG_NUMBER, &tier, NULL, "placement: 1, 2, 3"},
    {"block", RIG_NUMBER, &block, NULL, "bytes of a read"},
    {"size", RIG_NUMBER, &size, NULL, "bytes of the drive"},
    {"n", RIG_NUMBER, &n, NULL, "reads, and round trips, of each run"},
    {"runs", RIG_NUMBER, &runs, NULL, "runs"},
    {"model", RIG_NUMBER, &model, NULL, "nanoseconds that the controller waits"},
    {"steps", RIG_NUMBER, &steps, NULL, "1: the steps of a read, too"},
    {"label", RIG_TEXT, &label, NULL, "a word for the JSON"},
    {NULL, RIG_TEXT, NULL, NULL, NULL},
};

/*
 * What a kernel tells. In GPU memory: a store to the host would hold up the next command, whose
 * doorbell waits for all stores before it.
 */
struct times {
    uint64_t ns, cycles; /* of all together: what a cycle is */
    uint64_t errors;
    uint32_t each[MAX_N]; /* cycles of each wait */
    uint32_t step[NSTEPS][MAX_N];
};

struct mailbox {
    __attribute__((aligned(128))) uint32_t to_cpu;
    __attribute__((aligned(128))) uint32_t to_gpu;
};

static __global__ void round_trips(volatile struct mailbox *box, uint32_t first, uint32_t count,
                                   struct times *times)
{
    uint64_t t0 = gpunvme_clock_ns(), c0 = (uint64_t)clock64();

    for (uint32_t i = 0; i < count; i++) {
        uint64_t before = (uint64_t)clock64();

        box->to_cpu = first + i;
        while (box->to_gpu != first + i && (uint64_t)clock64() - c0 < UINT64_C(20000000000))
            ;
        times->each[i] = (uint32_t)((uint64_t)clock64() - before);
    }
    times->errors = 0;
    times->cycles = (uint64_t)clock64() - c0;
    times->ns = gpunvme_clock_ns() - t0;
}

static __global__ void reads(const __grid_constant__ struct gpunvme_dev_ns ns,
                             const __grid_constant__ struct gpunvme_dev_buf buf, uint32_t nlb,
                             uint32_t count, uint64_t seed, struct times *times)
{
    uint64_t t0 = gpunvme_clock_ns(), c0 = (uint64_t)clock64(), errors = 0;

    for (uint32_t i = 0; i < count; i++) {
        uint64_t lba, before;

        seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        lba = (seed >> 33) % (ns.nblocks / nlb) * nlb;
        before = (uint64_t)clock64();
        errors += gpunvme_dev_read(&ns, lba, nlb, &buf, 0, 0) != 0;
        times->each[i] = (uint32_t)((uint64_t)clock64() - before);
        errors += *(volatile uint64_t *)buf.data != bench_word(0, lba, 0);
    }
    times->errors = errors;
    times->cycles = (uint64_t)clock64() - c0;
    times->ns = gpunvme_clock_ns() - t0;
}

/* One read by the calls that gpunvme_dev_read() is made of, and how long each took. */
static __device__ __forceinline__ int read_by_steps(const struct gpunvme_dev_ns *ns,
                                                    const struct gpunvme_dev_buf *buf, uint64_t lba,
                                                    uint32_t nlb, uint32_t took[NSTEPS])
{
    struct gpunvme_dev_queue *q = gpunvme_dev_queue_of_warp(ns);
    struct gpunvme_dev_place place = {};
    uint16_t status = 0;
    struct gpunvme_sqe cmd = {};
    struct gpunvme_dev_queue copy, again; /* constants for each phase, as gpunvme_dev_read() does */
    uint64_t t[NSTEPS + 1], deadline = gpunvme_clock_ns() + UINT64_C(5000000000);
    int err;

    cmd.opc = GPUNVME_CMD_READ;
    cmd.nsid = ns->nsid;
    cmd.cdw10 = (uint32_t)lba;
    cmd.cdw11 = (uint32_t)(lba >> 32);
    cmd.cdw12 = nlb - 1;
    t[0] = (uint64_t)clock64();
    if (!gpunvme_dev_queue_reserve(q, 1, gpunvme_dev_hint(ns), gpunvme_dev_want_any(), &place,
                                   &err))
        return err;
    gpunvme_dev_point(ns, q, place.ticket, buf, 0, nlb << ns->block_shift, &cmd);
    t[1] = (uint64_t)clock64();
    gpunvme_dev_queue_submit(gpunvme_dev_queue_copy_constants(q, &copy), 1, &place, &cmd);
    t[2] = (uint64_t)clock64();
    while (!gpunvme_dev_queue_reap(q, 1, GPUNVME_DEV_LOOKS))
        if (gpunvme_clock_ns() > deadline)
            return GPUNVME_ERR_TIMEOUT;
    t[3] = (uint64_t)clock64();
    err =
        gpunvme_dev_queue_test(gpunvme_dev_queue_copy_constants(q, &again), place.ticket, &status);
    t[4] = (uint64_t)clock64();
    for (int i = 0; i < NSTEPS; i++)
        took[i] = (uint32_t)(t[i + 1] - t[i]);
    return err ? err : gpunvme_dev_result(status);
}

static __global__ void reads_by_steps(const __grid_constant__ struct gpunvme_dev_ns ns,
                                      const __grid_constant__ struct gpunvme_dev_buf buf,
                                      uint32_t nlb, uint32_t count, uint64_t seed,
                                      struct times *times)
{
    uint64_t t0 = gpunvme_clock_ns(), c0 = (uint64_t)clock64(), errors = 0;

    for (uint32_t i = 0; i < count; i++) {
        uint32_t took[NSTEPS] = {0, 0, 0, 0};

        seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        errors += read_by_steps(&ns, &buf, (seed >> 33) % (ns.nblocks / nlb) * nlb, nlb, took) != 0;
        times->each[i] = took[0] + took[1] + took[2] + took[3];
        for (int k = 0; k < NSTEPS; k++)
            times->step[k][i] = took[k];
    }
    times->errors = errors;
    times->cycles = (uint64_t)clock64() - c0;
    times->ns = gpunvme_clock_ns() - t0;
}

static struct mailbox *box;
static uint32_t stop;

/* The CPU thread that answers. */
static void *answer(void *arg)
{
    uint32_t last = 0;

    while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
        uint32_t now = __atomic_load_n(&box->to_cpu, __ATOMIC_ACQUIRE);

        if (now != last)
            __atomic_store_n(&box->to_gpu, now, __ATOMIC_RELEASE);
        last = now;
    }
    return arg;
}

static void must(cudaError_t e, const char *what)
{
    if (e)
        rig_fail("%s: %s", what, cudaGetErrorString(e));
}

static void wait_for(cudaEvent_t event)
{
    cudaError_t e;
    unsigned turns = 0;

    while ((e = cudaEventQuery(event)) == cudaErrorNotReady && turns++ < 600000)
        usleep(100);
    must(e == cudaErrorNotReady ? cudaErrorLaunchTimeout : e, "the kernel");
}

/* The median of n times in cycles, in ns. */
static double median_ns(const struct times *t, const uint32_t *each)
{
    static double values[MAX_N];
    double per_cycle = (double)t->ns / (double)t->cycles;

    for (uint64_t i = 0; i < n; i++)
        values[i] = each[i] * per_cycle;
    return rig_median(values, (unsigned)n);
}

/* What both measurements use; made before anything runs. */
struct lab {
    struct rig rig;
    struct gpunvme_buf box, times;
    cudaStream_t stream;
    cudaEvent_t end;
    uint32_t nlb;
    uint64_t errors, violations;
    double round[MAX_RUNS], read[MAX_RUNS], ratio[MAX_RUNS], step[NSTEPS][MAX_RUNS];
};

static void lab_open(struct lab *l)
{
    struct gpunvme_device_opts opts;
    char full[512];

    must(cudaStreamCreateWithFlags(&l->stream, cudaStreamNonBlocking), "a stream");
    must(cudaEventCreateWithFlags(&l->end, cudaEventDisableTiming), "an event");
    rig_check(gpunvme_mem_alloc(sizeof(*box), GPUNVME_MEM_PINNED, &l->box), "memory");
    rig_check(gpunvme_mem_alloc(sizeof(struct times), GPUNVME_MEM_GPU, &l->times), "memory");
    box = (struct mailbox *)l->box.cpu;
    snprintf(full, sizeof(full), "%s%ssize=%llu", uri, uri[4] ? "," : "", (unsigned long long)size);
    rig_open(&l->rig, strncmp(uri, "sim:", 4) ? uri : full, 1, 8);
    rig_number(&l->rig, (enum gpunvme_placement)tier);
    gpunvme_device_opts_init(&opts);
    opts.placement = (enum gpunvme_placement)tier;
    opts.queues = 1;
    opts.no_byte_ranges = true;
    rig_check(rig_open_queues(&l->rig, 1, &opts), "a queue");
    rig_check(rig_alloc(&l->rig, block), "memory for data");
    l->nlb = (uint32_t)(block / l->rig.drives[0].ns->block_size);
}

static void lab_close(struct lab *l)
{
    rig_close(&l->rig);
    gpunvme_mem_free(&l->box);
    gpunvme_mem_free(&l->times);
    cudaEventDestroy(l->end);
    cudaStreamDestroy(l->stream);
}

static struct times seen; /* what the last kernel told */

/* Waits for the kernel that was started: the median of what it timed. */
static double finish(struct lab *l)
{
    must(cudaGetLastError(), "launch");
    must(cudaEventRecord(l->end, l->stream), "event");
    wait_for(l->end);
    rig_check(
        gpunvme_mem_copy(&seen, GPUNVME_MEM_HOST, l->times.gpu, GPUNVME_MEM_GPU, sizeof(seen)),
        "the times");
    l->errors += seen.errors;
    return median_ns(&seen, seen.each);
}

static double time_round_trips(struct lab *l, uint32_t first)
{
    pthread_t thread;
    double ns;

    stop = 0;
    if (pthread_create(&thread, NULL, answer, NULL))
        rig_fail("pthread_create failed");
    round_trips<<<1, 1, 0, l->stream>>>((struct mailbox *)l->box.gpu, first, (uint32_t)n,
                                        (struct times *)l->times.gpu);
    ns = finish(l);
    __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
    pthread_join(thread, NULL);
    return ns;
}

static double time_reads(struct lab *l, uint64_t seed)
{
    reads<<<1, 1, 0, l->stream>>>(l->rig.drives[0].handle, l->rig.drives[0].view, l->nlb,
                                  (uint32_t)n, seed, (struct times *)l->times.gpu);
    return finish(l);
}

static void time_steps(struct lab *l, uint64_t seed, uint64_t at)
{
    reads_by_steps<<<1, 1, 0, l->stream>>>(l->rig.drives[0].handle, l->rig.drives[0].view, l->nlb,
                                           (uint32_t)n, seed, (struct times *)l->times.gpu);
    finish(l);
    for (int k = 0; k < NSTEPS; k++)
        l->step[k][at] = median_ns(&seen, seen.step[k]);
}

static void print_steps(struct lab *l)
{
    static const char *const names[NSTEPS] = {"reserve_ns", "submit_ns", "completion_ns",
                                              "result_ns"};

    for (int k = 0; k < NSTEPS; k++) {
        printf(",\n ");
        rig_print_stat(names[k], l->step[k], (unsigned)runs);
        fprintf(stderr, "  %s %.0f\n", names[k], rig_median(l->step[k], (unsigned)runs));
    }
}

static void print(struct lab *l)
{
    printf("{\"benchmark\": \"gpu_latency\", \"label\": \"%s\", \"uri\": \"%s\", \"tier\": %d, "
           "\"block\": %llu, \"n\": %llu, \"runs\": %llu, \"model_ns\": %llu, \"errors\": %llu, "
           "\"violations\": %llu,\n ",
           label, uri, (int)l->rig.info.placement, (unsigned long long)block, (unsigned long long)n,
           (unsigned long long)runs, (unsigned long long)model, (unsigned long long)l->errors,
           (unsigned long long)l->violations);
    rig_print_stat("round_trip_ns", l->round, (unsigned)runs);
    printf(",\n ");
    rig_print_stat("read_ns", l->read, (unsigned)runs);
    printf(",\n ");
    rig_print_stat("ratio", l->ratio, (unsigned)runs);
    if (steps)
        print_steps(l);
    printf("}\n");
    fprintf(stderr,
            "tier %d, %llu bytes: read %.0f ns, of which the model %llu; round trip %.0f ns; "
            "ratio %.2f; %llu errors, %llu violations\n",
            (int)l->rig.info.placement, (unsigned long long)block,
            rig_median(l->read, (unsigned)runs), (unsigned long long)model,
            rig_median(l->round, (unsigned)runs), rig_median(l->ratio, (unsigned)runs),
            (unsigned long long)l->errors, (unsigned long long)l->violations);
}

int main(int argc, char **argv)
{
    static struct lab l;

    rig_start("gpu_latency");
    rig_args(argc, argv, params);
    if (!runs || runs > MAX_RUNS || !n || n > MAX_N || strlen(uri) < 4)
        rig_fail("runs: 1 to %d, n: 1 to %d", MAX_RUNS, MAX_N);
    rig_need_gpu();
    lab_open(&l);
    for (uint64_t i = 0; i <= runs; i++) { /* the first is to warm up */
        uint64_t at = i ? i - 1 : 0;

        l.round[at] = time_round_trips(&l, (uint32_t)(i * n) + 1);
        l.read[at] = time_reads(&l, i + 1);
        l.ratio[at] = (l.read[at] - (double)model) / l.round[at];
        if (steps)
            time_steps(&l, i + 1, at);
    }
    l.violations = rig_violations(&l.rig);
    print(&l);
    lab_close(&l);
    return l.errors || l.violations;
}
