/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The host's side of I/O issued by the GPU (device.h), with real kernels: blocks are read and
 * verified at tiers 1 and 2 with each reaper; a reset, a lost command and a removed drive in the
 * middle of a running kernel end every wait, and after recovery a second kernel works. The
 * software controller serves. Nothing here waits without a deadline.
 *
 * Under compute-sanitizer one kernel may have to wait for the end of another, and then those that
 * freeze queues come too late for what a reader waits for. GPUNVME_TEST_SANITIZER=1 leaves out what
 * needs two kernels at a time.
 */
#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu/gpu_test.h"
#include "gpunvme/device.h"

#define BLOCKS  2u
#define THREADS 64u
#define SECOND  UINT64_C(1000000000)

/* Every so many reads one does not end by itself, so that commands are in flight whenever the
 * controller goes; and so many of those are waited for. By then some 400 reads have ended, for the
 * queues hold 126; and when the queues are full of them, most reads are still to come. */
#define HOLD   "delay=1000s:read:every=50"
#define NHELD  10u
#define ROUNDS 200u

/* What came of the reads of a kernel, and how many threads are done. */
struct outcome {
    unsigned long long good, wrong, aborted, closed, late, failed, done;
    int last_error;
};

/* --- the kernel ------------------------------------------------------------------------------- */

/* Each thread for itself, as a warp of one lane. */
static __device__ int read_block(const struct gpunvme_dev_ns *ns, struct gpunvme_dev_queue *q,
                                 uint64_t lba, uint64_t bus, uint64_t timeout_ns)
{
    uint64_t deadline = gpunvme_clock_ns() + timeout_ns;
    uint32_t lane = UINT32_C(1) << gpunvme_warp_lane();
    struct gpunvme_dev_place place = {};
    uint16_t status = 0;
    struct gpunvme_sqe sqe = {};
    int err;

    sqe.opc = GPUNVME_CMD_READ;
    sqe.nsid = ns->nsid;
    sqe.prp1 = bus;
    sqe.cdw10 = (uint32_t)lba;
    sqe.cdw11 = (uint32_t)(lba >> 32);
    while (!gpunvme_dev_queue_reserve(q, lane, threadIdx.x, gpunvme_dev_want_any(), &place, &err)) {
        if (err != GPUNVME_ERR_AGAIN)
            return err;
        if (gpunvme_clock_ns() >= deadline)
            return GPUNVME_ERR_TIMEOUT;
        if (q->reaper == GPUNVME_REAPER_WAITERS)
            gpunvme_dev_queue_reap(q, lane, 1);
    }
    gpunvme_dev_queue_submit(q, lane, &place, &sqe);
    err = gpunvme_dev_queue_wait(q, lane, place.ticket, deadline, &status);
    if (err == GPUNVME_ERR_TIMEOUT) { /* nobody waits for it any more, and the host is told */
        if (gpunvme_dev_queue_abandon(q, place.ticket))
            err = gpunvme_dev_queue_wait(q, lane, place.ticket, deadline + SECOND, &status);
        else
            gpunvme_store_release32(ns->alarm, 1);
    }
    return err ? err : status ? GPUNVME_ERR_NVME(status) : GPUNVME_OK;
}

static __device__ void count(struct outcome *o, int err, int is_right)
{
    if (!err)
        atomicAdd(is_right ? &o->good : &o->wrong, 1ull);
    else if (err == GPUNVME_ERR_NVME(GPUNVME_SC_HOST_ABORTED))
        atomicAdd(&o->aborted, 1ull);
    else if (err == GPUNVME_ERR_CLOSED)
        atomicAdd(&o->closed, 1ull);
    else if (err == GPUNVME_ERR_TIMEOUT)
        atomicAdd(&o->late, 1ull);
    else {
        atomicAdd(&o->failed, 1ull);
        o->last_error = err;
    }
}

static __device__ void read_and_verify(const struct gpunvme_dev_ns *ns,
                                       const struct gpunvme_dev_buf *buf, unsigned thread,
                                       unsigned rounds, uint64_t timeout_ns, struct outcome *o)
{
    const volatile uint64_t *words = (const volatile uint64_t *)(buf->data + thread * 512);
    uint64_t lba = thread * 7919 % ns->nblocks;

    for (unsigned i = 0; i < rounds; i++, lba = (lba * 31 + 17) % ns->nblocks) {
        int right = 1;
        int err = read_block(ns, &ns->queues[thread % ns->nqueues], lba, buf->bus + thread * 512,
                             timeout_ns);

        for (unsigned word = 0; !err && word < 64; word++)
            right &= words[word] == lba;
        count(o, err, right);
        if (err == GPUNVME_ERR_CLOSED)
            __nanosleep(100000); /* so that there is something left for when it is open again */
    }
}

/* The last block reaps, where the reaper is a warp; until all others are done. */
static __device__ void reap(const struct gpunvme_dev_ns *ns, unsigned nthreads, struct outcome *o)
{
    uint32_t mask = 0xffffffff;

    while (gpunvme_load_relaxed64((const uint64_t *)&o->done) < nthreads) {
        for (uint32_t i = 0; i < ns->nqueues; i++)
            gpunvme_dev_queue_reap(&ns->queues[i], mask, 1);
    }
}

static __global__ void reader(struct gpunvme_dev_ns ns, struct gpunvme_dev_buf buf, unsigned rounds,
                              uint64_t timeout_ns, struct outcome *o)
{
    unsigned thread = blockIdx.x * blockDim.x + threadIdx.x;

    if (blockIdx.x == BLOCKS) {
        if (threadIdx.x < 32)
            reap(&ns, BLOCKS * THREADS, o);
        return;
    }
    read_and_verify(&ns, &buf, thread, rounds, timeout_ns, o);
    atomicAdd(&o->done, 1ull);
}

/* --- the host --------------------------------------------------------------------------------- */

struct rig {
    struct gpunvme_ctrl *ctrl;
    struct gpunvme_sim *sim;
    const struct gpunvme_ns *ns;
    struct gpunvme_device *dev;
    struct gpunvme_dev_ns handle;
    struct gpunvme_buf data, out;
    struct gpunvme_dev_buf view;
    enum gpunvme_reaper reaper;
    cudaStream_t stream;
};

static void expect(int condition, const char *what, const struct outcome *o)
{
    if (condition)
        return;
    fprintf(stderr,
            "not so: %s (good %llu, wrong %llu, aborted %llu, closed %llu, late %llu, failed %llu, "
            "last error %d)\n",
            what, o->good, o->wrong, o->aborted, o->closed, o->late, o->failed, o->last_error);
    failures++;
}

static int rig_open_queues(struct rig *r, const char *uri, enum gpunvme_placement tier,
                           enum gpunvme_reaper reaper, uint32_t queues)
{
    struct gpunvme_device_opts opts;

    memset(r, 0, sizeof(*r));
    r->reaper = reaper;
    gpunvme_device_opts_init(&opts);
    opts.placement = tier;
    opts.reaper = reaper;
    opts.queues = queues;
    opts.entries = 64;
    if (check(gpunvme_ctrl_open_uri(uri, NULL, &r->ctrl), "controller") ||
        check(gpunvme_ctrl_ns(r->ctrl, 1, &r->ns), "namespace") ||
        check(number_blocks(r->ctrl, r->ns), "writing") ||
        check(gpunvme_device_open(r->ctrl, &opts, &r->dev), "device") ||
        check(gpunvme_device_ns(r->dev, r->ns, &r->handle), "handle") ||
        check(gpunvme_device_alloc(r->dev, BLOCKS * THREADS * 512, &r->data), "data") ||
        check(gpunvme_device_buf(r->dev, &r->data, &r->view), "view") ||
        check(gpunvme_mem_alloc(sizeof(struct outcome), GPUNVME_MEM_GPU, &r->out), "outcome"))
        return 1;
    r->sim = gpunvme_transport_sim(gpunvme_ctrl_transport(r->ctrl));
    return cudaStreamCreateWithFlags(&r->stream, cudaStreamNonBlocking) != cudaSuccess;
}

static int rig_open(struct rig *r, const char *uri, enum gpunvme_placement tier,
                    enum gpunvme_reaper reaper)
{
    return rig_open_queues(r, uri, tier, reaper, 2);
}

static void rig_close(struct rig *r, int is_alive)
{
    gpunvme_err_t err;

    cudaStreamDestroy(r->stream);
    err = gpunvme_device_close(r->dev);
    if (is_alive)
        check(err, "closing the device");
    gpunvme_ctrl_free(r->ctrl, &r->data);
    gpunvme_mem_free(&r->out);
    check_violations(r->ctrl);
    err = gpunvme_ctrl_close(r->ctrl);
    if (is_alive)
        check(err, "closing the controller");
}

static void kernel_start(struct rig *r, unsigned rounds, uint64_t timeout_ns)
{
    unsigned blocks = r->reaper == GPUNVME_REAPER_WARP ? BLOCKS + 1 : BLOCKS;

    check(gpunvme_mem_fill(r->out.gpu, GPUNVME_MEM_GPU, 0, sizeof(struct outcome)), "fill");
    reader<<<blocks, THREADS, 0, r->stream>>>(r->handle, r->view, rounds, timeout_ns,
                                              (struct outcome *)r->out.gpu);
    if (cudaGetLastError() != cudaSuccess)
        failures++;
}

/* Waits at most a minute: a kernel that hangs is what must not be. */
static struct outcome kernel_end(struct rig *r)
{
    struct outcome o;
    cudaError_t err;

    memset(&o, 0, sizeof(o));
    for (unsigned i = 0; (err = cudaStreamQuery(r->stream)) == cudaErrorNotReady; i++) {
        if (i == 60000) {
            fprintf(stderr, "the kernel hangs\n");
            _exit(1);
        }
        usleep(1000);
    }
    if (err != cudaSuccess) {
        fprintf(stderr, "kernel: %s\n", cudaGetErrorString(err));
        failures++;
        return o;
    }
    check(gpunvme_mem_copy(&o, GPUNVME_MEM_HOST, r->out.gpu, GPUNVME_MEM_GPU, sizeof(o)), "copy");
    expect(!o.wrong, "every block read is the right one", &o);
    return o;
}

#define NREADS(rounds) (BLOCKS * THREADS * (unsigned long long)(rounds))

static void expect_kernel_works(struct rig *r, const char *when)
{
    struct outcome o;

    kernel_start(r, 20, 30 * SECOND);
    o = kernel_end(r);
    expect(o.good == NREADS(20), when, &o);
}

static void blocks_are_read(enum gpunvme_placement tier, enum gpunvme_reaper reaper)
{
    struct gpunvme_device_info info;
    struct rig r;

    printf("blocks are read at tier %d, reaper %d\n", (int)tier, (int)reaper);
    if (rig_open(&r, "sim:size=1M,threads=2", tier, reaper)) {
        failures++;
        return;
    }
    expect_kernel_works(&r, "every read is good");
    gpunvme_device_get_info(r.dev, &info);
    printf("  writes ordering %d, flush options %d, %llu bytes of GPU memory\n",
           info.gpu_writes_ordering, info.gpu_flush_options, (unsigned long long)info.gpu_nbytes);
    rig_close(&r, 1);
}

/*
 * Eight threads of the controller copy at the same time, while an event waits behind the kernel: on
 * as many streams, one of them would wait for the event, and so for the kernel that waits for it.
 */
static void many_controller_threads_reach_gpu_memory(void)
{
    struct gpunvme_device_info info;
    struct outcome o;
    cudaEvent_t event;
    struct rig r;

    printf("eight controller threads reach GPU memory\n");
    if (rig_open_queues(&r, "sim:size=1M,threads=8,spin", GPUNVME_PLACEMENT_TIER2,
                        GPUNVME_REAPER_WAITERS, 8) ||
        cudaEventCreate(&event) != cudaSuccess) {
        failures++;
        return;
    }
    kernel_start(&r, 200, 5 * SECOND);
    failures += cudaEventRecord(event, r.stream) != cudaSuccess;
    o = kernel_end(&r);
    expect(o.good == NREADS(200), "every read is good", &o);
    gpunvme_device_get_info(r.dev, &info);
    expect(!info.recoveries, "the controller was not reset", &o);
    cudaEventDestroy(event);
    rig_close(&r, 1);
}

static void auto_avoids_copies(void)
{
    struct gpunvme_device_info info;
    struct rig r;

    printf("AUTO gives tier 1 with the controller on CPU threads, and says why\n");
    if (rig_open(&r, "sim:size=1M", GPUNVME_PLACEMENT_AUTO, GPUNVME_REAPER_WAITERS)) {
        failures++;
        return;
    }
    gpunvme_device_get_info(r.dev, &info);
    printf("  tier %d: %s\n", (int)info.placement, info.why_not_higher);
    if (info.placement != GPUNVME_PLACEMENT_TIER1 || !*info.why_not_higher)
        failures++;
    rig_close(&r, 1);
}

static uint64_t nheld(struct rig *r)
{
    struct gpunvme_sim_report report;

    gpunvme_sim_report(r->sim, &report);
    return report.faults;
}

/* Until `n` more commands are held, or the kernel has none left to send: 1, if there are so many.
 */
static int wait_until_held(struct rig *r, uint64_t n)
{
    uint64_t before = nheld(r);

    for (unsigned i = 0; i < 20000 && nheld(r) - before < n; i++) {
        if (cudaStreamQuery(r->stream) != cudaErrorNotReady)
            break;
        usleep(1000);
    }
    return nheld(r) - before >= n;
}

/* A kernel is running, and of its commands some do not end: 1, or what is lacking was told. */
static int kernel_is_held(struct rig *r)
{
    struct outcome none = {};

    if (check(gpunvme_sim_fault(r->sim, HOLD), "fault"))
        return 0;
    kernel_start(r, ROUNDS, 30 * SECOND);
    if (wait_until_held(r, NHELD))
        return 1;
    expect(0, "the kernel sends commands", &none);
    gpunvme_sim_faults_clear(r->sim);
    kernel_end(r);
    return 0;
}

/* The last of several, from which on nothing is held any more. */
static void reset_while_held(struct rig *r)
{
    uint64_t begun;

    for (unsigned left = 3; left--;) {
        if (!left)
            gpunvme_sim_faults_clear(r->sim);
        begun = gpunvme_clock_ns();
        check(gpunvme_ctrl_reset(r->ctrl), "reset");
        printf("  a reset took %.1f ms\n", (double)(gpunvme_clock_ns() - begun) / 1e6);
        if (left)
            wait_until_held(r, 1);
    }
}

static void a_reset_ends_every_wait(enum gpunvme_reaper reaper)
{
    struct outcome o;
    struct rig r;

    printf("a reset in the middle of a kernel ends every wait, reaper %d\n", (int)reaper);
    if (rig_open(&r, "sim:size=1M", GPUNVME_PLACEMENT_TIER1, reaper)) {
        failures++;
        return;
    }
    if (kernel_is_held(&r)) {
        reset_while_held(&r);
        o = kernel_end(&r);
        expect(o.good + o.aborted + o.closed == NREADS(ROUNDS), "all reads ended", &o);
        expect(o.good && o.aborted, "some were good, some aborted", &o);
        check(gpunvme_device_recover(r.dev), "recover");
        expect_kernel_works(&r, "a second kernel works");
    }
    rig_close(&r, 1);
}

static void a_reset_between_kernels_is_not_noticed(enum gpunvme_reaper reaper)
{
    struct rig r;

    printf("a reset between kernels is not noticed, reaper %d\n", (int)reaper);
    if (rig_open(&r, "sim:size=1M", GPUNVME_PLACEMENT_TIER1, reaper)) {
        failures++;
        return;
    }
    for (unsigned i = 0; i < 3; i++) {
        expect_kernel_works(&r, "every read is good");
        check(gpunvme_ctrl_reset(r.ctrl), "reset");
    }
    expect_kernel_works(&r, "every read after the last reset is good");
    rig_close(&r, 1);
}

static void a_lost_command_is_recovered_from(enum gpunvme_reaper reaper)
{
    struct gpunvme_device_info info;
    struct outcome o;
    struct rig r;

    printf("a lost command ends by its deadline, reaper %d\n", (int)reaper);
    if (rig_open(&r, "sim:size=1M", GPUNVME_PLACEMENT_TIER1, reaper)) {
        failures++;
        return;
    }
    check(gpunvme_sim_fault(r.sim, "lose:io:read:nth=100"), "fault");
    kernel_start(&r, 20, 2 * SECOND);
    o = kernel_end(&r);
    expect(o.late == 1 && !o.failed, "one command was late", &o);
    check(gpunvme_device_recover(r.dev), "recover");
    gpunvme_device_get_info(r.dev, &info);
    if (!info.recoveries) {
        fprintf(stderr, "not so: the controller was reset\n");
        failures++;
    }
    expect_kernel_works(&r, "a second kernel works");
    rig_close(&r, 1);
}

static void a_removed_drive_ends_every_wait(enum gpunvme_reaper reaper)
{
    struct outcome o;
    struct rig r;

    printf("a removed drive ends every wait, reaper %d\n", (int)reaper);
    if (rig_open(&r, "sim:size=1M", GPUNVME_PLACEMENT_TIER1, reaper)) {
        failures++;
        return;
    }
    if (kernel_is_held(&r)) {
        gpunvme_sim_remove(r.sim);
        o = kernel_end(&r);
        expect(o.good + o.aborted + o.closed == NREADS(ROUNDS), "all reads ended", &o);
        expect(o.aborted && o.closed, "those in flight were aborted", &o);
        if (gpunvme_device_recover(r.dev) != GPUNVME_ERR_REMOVED) {
            fprintf(stderr, "not so: recover says that the drive is gone\n");
            failures++;
        }
    }
    rig_close(&r, 0);
}

static void run_all(enum gpunvme_reaper reaper, int is_sanitized)
{
    blocks_are_read(GPUNVME_PLACEMENT_TIER1, reaper);
    blocks_are_read(GPUNVME_PLACEMENT_TIER2, reaper);
    a_reset_between_kernels_is_not_noticed(reaper);
    if (is_sanitized)
        return;
    a_reset_ends_every_wait(reaper);
    a_lost_command_is_recovered_from(reaper);
    a_removed_drive_ends_every_wait(reaper);
}

int main(void)
{
    int is_sanitized = getenv("GPUNVME_TEST_SANITIZER") != NULL;

    if (gpunvme_mem_gpu_is_host()) {
        printf("SKIP: no GPU: %s\n", gpunvme_mem_gpu_why_not());
        return 77;
    }
    setvbuf(stdout, NULL, _IOLBF, 0); /* who cuts it off sees where it was */
    for (int reaper = GPUNVME_REAPER_WAITERS; reaper <= GPUNVME_REAPER_CPU; reaper++)
        run_all((enum gpunvme_reaper)reaper, is_sanitized);
    if (!is_sanitized)
        many_controller_threads_reach_gpu_memory();
    auto_avoids_copies();
    printf("%d failures\n", failures);
    return failures != 0;
}
