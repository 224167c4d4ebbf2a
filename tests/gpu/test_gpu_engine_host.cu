/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A controller with engine=gpu on a real GPU: queues, data and namespace in its memory, a kernel of
 * this program as the driver and the engine as the controller. What tests/sim/test_engine_host.c
 * promises of a thread is asked here of a kernel, and that it gives the GPU back: others can wait
 * for the whole device, free memory, and find none lost. Where there are two GPUs, the engine also
 * runs on the second one.
 */
#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu/gpu_test.h"
#include "gpunvme/prp.h"

#define ENTRIES    256u
#define BLOCKS     2u
#define THREADS    64u
#define LANES      (BLOCKS * THREADS)
#define QID        2u
#define SECOND     1000000000ull
#define PAGE       4096u
#define RING_BYTES 32768u

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s (the last error was: %s)\n", __func__, __LINE__,            \
                    #condition, gpunvme_err_detail());                                             \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)

/* What every thread of the kernel does, `count` times. */
struct job {
    uint8_t opcode;
    unsigned count;
    uint64_t nblocks, timeout_ns;
    uint32_t cdw2;
};

struct outcome {
    unsigned good, wrong, timeouts, failed, last_status;
};

/* Each thread reads or writes blocks of its own choice; a block holds its number in every word. */
static __global__ void run_commands(struct gpunvme_qpair *q, struct gpunvme_buf data,
                                    struct job job, struct outcome *outcome)
{
    unsigned thread = blockIdx.x * blockDim.x + threadIdx.x;
    volatile uint64_t *words = (volatile uint64_t *)data.gpu + thread * 64;
    uint64_t lba = thread;

    for (unsigned i = 0; i < job.count; i++, lba = (lba + LANES) % job.nblocks) {
        uint64_t deadline = gpunvme_clock_ns() + job.timeout_ns, ticket;
        struct gpunvme_sqe sqe = {};
        struct gpunvme_completion c = {};
        int err = GPUNVME_ERR_TIMEOUT, taken = 0;

        for (unsigned word = 0; word < 64; word++)
            words[word] = job.opcode == GPUNVME_CMD_WRITE ? lba : ~lba;
        sqe.opc = job.opcode;
        sqe.nsid = 1;
        sqe.cdw2 = job.cdw2;
        sqe.cdw10 = (uint32_t)lba;
        gpunvme_prp_build(&sqe, &data, thread * 512, 512, 12, NULL);
        __threadfence_system();
        while (!(taken = gpunvme_qpair_submit(q, &sqe, 1, &ticket)) &&
               gpunvme_clock_ns() < deadline)
            gpunvme_qpair_reap(q);
        if (taken == 1)
            err = gpunvme_qpair_wait(q, ticket, deadline, &c);
        if (err) {
            atomicAdd(&outcome->timeouts, 1);
            return;
        }
        if (c.status) {
            atomicAdd(&outcome->failed, 1);
            outcome->last_status = c.status;
            continue;
        }
        atomicAdd(&outcome->good, 1);
        for (unsigned word = 0; word < 64 && job.opcode == GPUNVME_CMD_READ; word++)
            if (words[word] != lba)
                atomicAdd(&outcome->wrong, 1);
    }
}

struct rig {
    struct gpunvme_ctrl *ctrl;
    struct gpunvme_sim *sim;
    const struct gpunvme_ns *ns;
    struct gpunvme_ioq *ioq;
    struct gpunvme_buf rings, pair, slots, ready, data, outcome, host;
    uint64_t sq, cq; /* offsets in the rings, multiples of a page on the bus */
    cudaStream_t stream;
};

static gpunvme_err_t admin(struct rig *r, uint8_t opcode, uint64_t prp1, uint32_t cdw11)
{
    return queue_admin(r->ctrl, opcode, QID, ENTRIES, prp1, cdw11);
}

static gpunvme_err_t allocate(struct rig *r)
{
    gpunvme_err_t err = gpunvme_ctrl_alloc(r->ctrl, RING_BYTES, GPUNVME_MEM_GPU, &r->rings);

    if (!err)
        err = gpunvme_ctrl_alloc(r->ctrl, (size_t)LANES * 512, GPUNVME_MEM_GPU, &r->data);
    if (!err)
        err = gpunvme_mem_alloc(sizeof(struct gpunvme_qpair), GPUNVME_MEM_GPU, &r->pair);
    if (!err)
        err = gpunvme_mem_alloc(GPUNVME_QPAIR_SLOTS_NBYTES(ENTRIES), GPUNVME_MEM_GPU, &r->slots);
    if (!err)
        err = gpunvme_mem_alloc(GPUNVME_QPAIR_READY_NBYTES(ENTRIES), GPUNVME_MEM_GPU, &r->ready);
    if (!err)
        err = gpunvme_mem_alloc(sizeof(struct outcome), GPUNVME_MEM_PINNED, &r->outcome);
    r->sq = (PAGE - r->rings.bus % PAGE) % PAGE;
    r->cq = r->sq + GPUNVME_QPAIR_SQ_NBYTES(ENTRIES);
    return err;
}

/* A new queue pair as driver and controller see it; all in GPU memory. */
static gpunvme_err_t open_queue(struct rig *r)
{
    static struct gpunvme_slot slots[GPUNVME_QPAIR_SLOTS(ENTRIES)];
    static uint32_t ready[ENTRIES];
    volatile uint32_t *doorbells = gpunvme_ctrl_transport(r->ctrl)->gpu_doorbells;
    struct gpunvme_qpair_config config;
    struct gpunvme_qpair pair;
    gpunvme_err_t err = gpunvme_mem_fill(r->rings.gpu, GPUNVME_MEM_GPU, 0, RING_BYTES);

    memset(&config, 0, sizeof(config));
    memset(slots, 0, sizeof(slots));
    memset(ready, 0, sizeof(ready));
    config.qid = QID;
    config.entries = ENTRIES;
    config.sq = (uint8_t *)r->rings.gpu + r->sq;
    config.cq = (uint8_t *)r->rings.gpu + r->cq;
    config.slots = slots;
    config.ready = ready;
    config.sq_doorbell.mmio = doorbells + 2 * QID;
    config.cq_doorbell.mmio = doorbells + 2 * QID + 1;
    if (!err)
        err = gpunvme_qpair_init(&pair, &config);
    if (err)
        return err;
    pair.slots = (struct gpunvme_slot *)r->slots.gpu;
    pair.ready = (uint32_t *)r->ready.gpu;
    if ((err = send(&r->slots, slots)) || (err = send(&r->ready, ready)) ||
        (err = send(&r->pair, &pair)))
        return err;
    err = admin(r, GPUNVME_ADMIN_CREATE_CQ, r->rings.bus + r->cq, GPUNVME_QUEUE_PC);
    return err ? err
               : admin(r, GPUNVME_ADMIN_CREATE_SQ, r->rings.bus + r->sq,
                       QID << 16 | GPUNVME_QUEUE_PC);
}

static gpunvme_err_t close_queue(struct rig *r)
{
    gpunvme_err_t err = admin(r, GPUNVME_ADMIN_DELETE_SQ, 0, 0);

    return err ? err : admin(r, GPUNVME_ADMIN_DELETE_CQ, 0, 0);
}

static int open_rig(struct rig *r, const char *uri)
{
    struct gpunvme_ctrl_opts opts;

    memset(r, 0, sizeof(*r));
    gpunvme_ctrl_opts_init(&opts);
    opts.no_recovery = true;
    CHECK(!gpunvme_ctrl_open_uri(uri, &opts, &r->ctrl));
    r->sim = gpunvme_transport_sim(gpunvme_ctrl_transport(r->ctrl));
    CHECK(gpunvme_ctrl_transport(r->ctrl)->gpu_doorbells);
    CHECK(!gpunvme_ctrl_ns(r->ctrl, 1, &r->ns));
    CHECK(!gpunvme_ioq_create(r->ctrl, 64, &r->ioq));
    CHECK(!gpunvme_ctrl_alloc(r->ctrl, r->ns->nbytes, GPUNVME_MEM_HOST, &r->host));
    CHECK(!allocate(r));
    CHECK(cudaStreamCreateWithFlags(&r->stream, cudaStreamNonBlocking) == cudaSuccess);
    fill_numbers(r->host.cpu, r->ns->nbytes);
    CHECK(!gpunvme_write(r->ioq, r->ns, 0, r->ns->nbytes, &r->host, 0, 0));
    CHECK(!open_queue(r));
    return 0;
}

static void close_rig(struct rig *r)
{
    cudaStreamDestroy(r->stream);
    gpunvme_ctrl_free(r->ctrl, &r->rings);
    gpunvme_ctrl_free(r->ctrl, &r->data);
    gpunvme_ctrl_free(r->ctrl, &r->host);
    gpunvme_ioq_delete(r->ioq);
    gpunvme_ctrl_close(r->ctrl);
    gpunvme_mem_free(&r->pair);
    gpunvme_mem_free(&r->slots);
    gpunvme_mem_free(&r->ready);
    gpunvme_mem_free(&r->outcome);
}

static struct job job_of(const struct rig *r, uint8_t opcode, unsigned count)
{
    struct job job;

    memset(&job, 0, sizeof(job));
    job.opcode = opcode;
    job.count = count;
    job.nblocks = r->ns->nblocks;
    job.timeout_ns = 10 * SECOND;
    return job;
}

static void start(struct rig *r, const struct job *job)
{
    memset(r->outcome.cpu, 0, sizeof(struct outcome));
    run_commands<<<BLOCKS, THREADS, 0, r->stream>>>((struct gpunvme_qpair *)r->pair.gpu, r->data,
                                                    *job, (struct outcome *)r->outcome.gpu);
}

/* The kernel's own deadlines make it end; a minute is a hang. */
static int finish(struct rig *r, struct outcome *outcome)
{
    cudaError_t err = cudaErrorNotReady;

    for (unsigned i = 0; i < 600000 && err == cudaErrorNotReady; i++) {
        err = cudaStreamQuery(r->stream);
        usleep(100);
    }
    if (err != cudaSuccess) {
        fprintf(stderr, "kernel: %s\n", cudaGetErrorString(err));
        exit(1);
    }
    *outcome = *(struct outcome *)r->outcome.cpu;
    printf("  %u good, %u failed (last status %xh), %u timed out, %u wrong words\n", outcome->good,
           outcome->failed, outcome->last_status, outcome->timeouts, outcome->wrong);
    return 0;
}

static struct outcome run(struct rig *r, const struct job *job)
{
    struct outcome outcome;

    start(r, job);
    finish(r, &outcome);
    return outcome;
}

static struct gpunvme_sim_report report_of(struct rig *r)
{
    struct gpunvme_sim_report report;

    gpunvme_sim_report(r->sim, &report);
    return report;
}

static int reads_and_writes_meet_the_host_queues(struct rig *r)
{
    struct job reads = job_of(r, GPUNVME_CMD_READ, 2000);
    struct job writes = job_of(r, GPUNVME_CMD_WRITE, (unsigned)(r->ns->nblocks / LANES));
    struct gpunvme_sim_report before = report_of(r), after;
    struct outcome o = run(r, &reads);

    CHECK(o.good == LANES * reads.count && !o.wrong);
    CHECK(!gpunvme_write_zeroes(r->ioq, r->ns, 0, r->ns->nblocks, false));
    o = run(r, &writes);
    CHECK(o.good == LANES * writes.count);
    after = report_of(r);
    CHECK(!after.nviolations);
    CHECK(after.bytes_written - before.bytes_written == (uint64_t)LANES * writes.count * 512);
    memset(r->host.cpu, 0xff, r->ns->nbytes);
    CHECK(!gpunvme_read(r->ioq, r->ns, 0, r->ns->nbytes, &r->host, 0));
    for (uint64_t word = 0; word < (uint64_t)LANES * writes.count * 64; word++)
        CHECK(((uint64_t *)r->host.cpu)[word] == word / 64);
    return 0;
}

static int faults_reach_their_commands(struct rig *r)
{
    struct job job = job_of(r, GPUNVME_CMD_READ, 20);
    struct outcome o;

    CHECK(!gpunvme_sim_fault(r->sim, "status=2/81:lba=7-9:read"));
    o = run(r, &job);
    CHECK(o.failed == 3 && o.last_status == GPUNVME_SC_UNRECOVERED_READ && !o.wrong);
    gpunvme_sim_faults_clear(r->sim);
    CHECK(!gpunvme_sim_fault(r->sim, "lose:read:nth=100"));
    job.timeout_ns = SECOND;
    o = run(r, &job);
    CHECK(o.timeouts == 1 && !o.wrong);
    gpunvme_sim_faults_clear(r->sim);
    CHECK(!close_queue(r));
    CHECK(!open_queue(r));
    CHECK(!report_of(r).nviolations);
    return 0;
}

static int what_is_in_flight_ends_when_the_queue_is_deleted(struct rig *r)
{
    struct job job = job_of(r, GPUNVME_CMD_READ, 1);
    uint64_t before = report_of(r).faults;
    struct outcome o;

    CHECK(!gpunvme_sim_fault(r->sim, "delay=1000s:read"));
    start(r, &job);
    for (unsigned i = 0; i < 1000 && report_of(r).faults - before < LANES; i++)
        usleep(1000);
    CHECK(!admin(r, GPUNVME_ADMIN_DELETE_SQ, 0, 0));
    finish(r, &o);
    CHECK(o.failed == LANES && o.last_status == GPUNVME_SC_ABORT_SQ_DELETED);
    gpunvme_sim_faults_clear(r->sim);
    CHECK(!admin(r, GPUNVME_ADMIN_DELETE_CQ, 0, 0));
    CHECK(!open_queue(r));
    CHECK(!report_of(r).nviolations);
    return 0;
}

static int a_reset_in_the_middle_of_a_kernel_ends_every_wait(struct rig *r)
{
    struct job job = job_of(r, GPUNVME_CMD_READ, 100000000);
    struct outcome o;

    job.timeout_ns = SECOND;
    start(r, &job);
    usleep(100000);
    CHECK(!gpunvme_ctrl_reset(r->ctrl));
    finish(r, &o);
    CHECK(o.timeouts == LANES && o.good && !o.wrong);
    CHECK(!open_queue(r));
    job = job_of(r, GPUNVME_CMD_READ, 100);
    o = run(r, &job);
    CHECK(o.good == LANES * 100 && !o.wrong);
    return 0;
}

static int a_fatal_status_is_seen_and_recovered_from(struct rig *r)
{
    struct job job = job_of(r, GPUNVME_CMD_WRITE, 10);
    struct outcome o;

    CHECK(!gpunvme_sim_fault(r->sim, "cfs:write:nth=50"));
    job.timeout_ns = SECOND;
    o = run(r, &job);
    CHECK(o.timeouts == LANES);
    CHECK(gpunvme_sim_reg_read(r->sim, GPUNVME_REG_CSTS, 4) & GPUNVME_SET(1, CSTS_CFS));
    gpunvme_sim_faults_clear(r->sim);
    CHECK(!gpunvme_ctrl_reset(r->ctrl));
    CHECK(!open_queue(r));
    o = run(r, &job);
    CHECK(o.good == LANES * 10);
    return 0;
}

/* The doorbells of a controller that was reset by a running kernel's rings may be strays: so last.
 */
static int violations_are_counted(struct rig *r)
{
    struct job job = job_of(r, GPUNVME_CMD_READ, 3);
    uint64_t before = report_of(r).violations[GPUNVME_SIM_VIOLATION_RESERVED_BITS];

    job.cdw2 = 1;
    run(r, &job);
    CHECK(report_of(r).violations[GPUNVME_SIM_VIOLATION_RESERVED_BITS] - before == 3 * LANES);
    printf("  %s\n", report_of(r).first);
    return 0;
}

/* With queues open, and nothing or something to do. */
static int others_get_the_gpu(struct rig *r)
{
    struct job job = job_of(r, GPUNVME_CMD_READ, 100);

    for (unsigned i = 0; i < 20; i++) {
        void *memory;

        CHECK(cudaMalloc(&memory, 1 << 20) == cudaSuccess);
        start(r, &job);
        CHECK(cudaDeviceSynchronize() == cudaSuccess);
        CHECK(((struct outcome *)r->outcome.cpu)->good == LANES * 100);
        CHECK(cudaFree(memory) == cudaSuccess);
    }
    return 0;
}

static int a_removed_drive_ends_every_wait(const char *uri)
{
    struct outcome o;
    struct rig r;
    struct job job;

    if (open_rig(&r, uri))
        return 1;
    job = job_of(&r, GPUNVME_CMD_READ, 1000);
    job.timeout_ns = SECOND;
    CHECK(!gpunvme_sim_fault(r.sim, "remove:read:nth=1000"));
    o = run(&r, &job);
    CHECK(o.timeouts == LANES && o.good && !o.wrong);
    CHECK(gpunvme_sim_reg_read(r.sim, GPUNVME_REG_CSTS, 4) == UINT32_MAX);
    close_rig(&r);
    return 0;
}

static int use_a_controller(const char *uri)
{
    struct rig r;
    struct job job;

    if (open_rig(&r, uri))
        return 1;
    job = job_of(&r, GPUNVME_CMD_READ, 10);
    CHECK(run(&r, &job).good == LANES * 10);
    close_rig(&r);
    return 0;
}

/* What `n` controllers have left less of; CUDA tells of the whole GPU only, other programs too. */
static int memory_lost(const char *uri, unsigned n, int64_t *lost)
{
    size_t before, after, total;

    CHECK(cudaMemGetInfo(&before, &total) == cudaSuccess);
    while (n--)
        if (use_a_controller(uri))
            return 1;
    CHECK(cudaMemGetInfo(&after, &total) == cudaSuccess);
    *lost = (int64_t)before - (int64_t)after;
    return 0;
}

/*
 * Each controller would lose some, so that more of them lose more: others that take memory at the
 * same time, or what CUDA keeps for the life of the process, do not do that every time.
 */
static int no_gpu_memory_is_lost(const char *uri)
{
    int64_t lost;

    if (memory_lost(uri, 2, &lost)) /* what is kept for the life of the process is there now */
        return 1;
    for (unsigned n = 4; n <= 16; n *= 2) {
        if (memory_lost(uri, n, &lost))
            return 1;
        printf("  %lld bytes less than %u controllers before\n", (long long)lost, n);
        if (lost <= 0)
            return 0;
    }
    fprintf(stderr, "%s: less memory is free after 4, 8 and 16 controllers\n", uri);
    return 1;
}

static int run_all(const char *uri)
{
    struct rig r;
    int failed = 0;

    printf("%s\n", uri);
    if (open_rig(&r, uri))
        return 1;
#define RUN(test)                                                                                  \
    do {                                                                                           \
        int bad = test;                                                                            \
                                                                                                   \
        printf("%s: %s\n", bad ? "FAILED" : "ok", #test);                                          \
        failed |= bad;                                                                             \
    } while (0)
    RUN(reads_and_writes_meet_the_host_queues(&r));
    RUN(faults_reach_their_commands(&r));
    RUN(what_is_in_flight_ends_when_the_queue_is_deleted(&r));
    RUN(others_get_the_gpu(&r));
    RUN(a_reset_in_the_middle_of_a_kernel_ends_every_wait(&r));
    RUN(a_fatal_status_is_seen_and_recovered_from(&r));
    RUN(violations_are_counted(&r));
    close_rig(&r);
    RUN(a_removed_drive_ends_every_wait(uri));
    RUN(no_gpu_memory_is_lost(uri));
    return failed;
}

int main(void)
{
    int failed;

    /* A module that is loaded while the engine runs would wait for it. */
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32",
           1); /* so does a stream that shares its connection */
    if (gpunvme_mem_gpu_is_host()) {
        printf("SKIP: no GPU: %s\n", gpunvme_mem_gpu_why_not());
        return 77;
    }
    failed = run_all("sim:size=4M,engine=gpu");
    if (gpunvme_mem_gpu_count() > 1)
        failed |= run_all("sim:size=4M,engine=gpu,gpu=1");
    return failed;
}
