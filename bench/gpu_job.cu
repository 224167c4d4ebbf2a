/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The kernels of the measurements: every thread reads or writes blocks of its own choice, by one of
 * the ways. And what starts them. See gpu_job.h.
 */
#include "gpu_job.h"

#include <cuda_runtime.h>
#include <string.h>
#include <unistd.h>

#include "gpunvme/device.cuh"
#include "ways.cuh"

/* Only these have a bound: with one, the compiler saves registers by keeping some in memory. */
#define LOCKSTEP_THREADS 1024

/* --- what threads do in every way ---------------------------------------------------------------
 */

/* A thread, its drive and its place there. All lanes of a warp have the same drive. */
struct worker {
    const struct job_drive *drive;
    struct gpunvme_dev_ns ns; /* of the drive, by this warp's queue alone */
    uint32_t drive_index;
    uint32_t rank;  /* among the threads of the drive */
    uint64_t state; /* of the random numbers */
};

/*
 * Warps that follow each other go to drives that follow each other, and on each drive to its queues
 * in turn, so that few threads use all drives. False: a thread that has nothing to do.
 */
static __device__ __forceinline__ bool worker_init(struct worker *w, const struct job *job,
                                                   uint32_t thread)
{
    uint32_t warp = thread / 32;

    w->drive_index = warp % job->ndrives;
    w->drive = &job->drives[w->drive_index];
    w->ns = gpunvme_dev_on_queue(&w->drive->ns, warp / job->ndrives % w->drive->ns.nqueues);
    w->rank = warp / job->ndrives * 32 + thread % 32;
    w->state = bench_word(thread & 0xff, job->seed + thread, 0);
    return thread < job->threads;
}

/* Where the next command begins. Knuth's generator of 64 bits, its high half. */
static __device__ __forceinline__ uint64_t next_lba(struct worker *w, const struct job *job)
{
    w->state = w->state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint64_t)__umulhi((uint32_t)(w->state >> 32), job->nchoices) * job->nlb;
}

/* Byte offset of the data of a thread's i-th command in flight. */
static __device__ __forceinline__ uint64_t place(const struct worker *w, const struct job *job,
                                                 uint32_t i)
{
    return (uint64_t)(w->rank * job->inflight + i) * job->place_bytes;
}

static __device__ __forceinline__ uint64_t *words_at(const struct worker *w, uint64_t off)
{
    return (uint64_t *)(w->drive->data.data + off);
}

/* Makes the data what the blocks must hold, or what no block holds. */
static __device__ void data_fill(const struct worker *w, const struct job *job, uint64_t lba,
                                 uint64_t off, bool poison)
{
    uint32_t per_block = w->drive->ns.block_size / 8;
    uint64_t *words = words_at(w, off);

    for (uint32_t i = 0; i < job->nlb * per_block; i++)
        words[i] = poison ? ~bench_word(w->drive_index, lba + i / per_block, i % per_block)
                          : bench_word(w->drive_index, lba + i / per_block, i % per_block);
}

/* How many words are not what the blocks must hold. */
static __device__ uint32_t data_wrong(const struct worker *w, const struct job *job, uint64_t lba,
                                      uint64_t off)
{
    uint32_t per_block = w->drive->ns.block_size / 8, wrong = 0;
    volatile uint64_t *words = words_at(w, off);

    for (uint32_t i = 0; i < job->nlb * per_block; i++)
        wrong += words[i] != bench_word(w->drive_index, lba + i / per_block, i % per_block);
    return wrong;
}

struct count {
    uint32_t commands, errors, wrong;
    int last;
};

static __device__ __forceinline__ void count_command(struct count *c, int err)
{
    c->commands += !err;
    c->errors += err != 0;
    if (err)
        c->last = err;
}

static __device__ void report(const struct job *job, const struct count *c)
{
    struct job_outcome *out = job->outcome;

    atomicAdd(&out->commands, c->commands);
    if (c->errors) {
        atomicAdd(&out->errors, c->errors);
        out->last = c->last;
    }
    if (c->wrong)
        atomicAdd(&out->wrong, c->wrong);
    __syncwarp();
    if (threadIdx.x % 32 == 0 && atomicAdd(&out->finished, 1) + 1 == job->threads / 32)
        gpunvme_store_release32(&out->done, 1);
}

/* --- ours -------------------------------------------------------------------------------------
 */

/* Warps at the front of the grid reap, one for each queue; the others' numbers begin behind them.
 */
static __device__ __forceinline__ bool reaper(const struct job *job, uint32_t *thread)
{
    uint32_t warp = *thread / 32, per_drive = job->reapers / job->ndrives;

    if (warp >= job->reapers) {
        *thread -= job->reapers * 32;
        return false;
    }
    gpunvme_dev_reap(&job->drives[warp / per_drive].ns, warp % per_drive, per_drive,
                     &job->outcome->done);
    return true;
}

/* Reads or writes blocks and waits. */
static __device__ __forceinline__ int ours_io(const struct worker *w, uint32_t op, uint64_t lba,
                                              uint32_t nlb, uint64_t off)
{
    if (op == JOB_WRITE)
        return gpunvme_dev_write(&w->ns, lba, nlb, &w->drive->data, off, 0, 0);
    return gpunvme_dev_read(&w->ns, lba, nlb, &w->drive->data, off, 0);
}

static __device__ __forceinline__ void ours(const struct job *job, uint32_t op, bool check)
{
    uint32_t thread = blockIdx.x * blockDim.x + threadIdx.x;
    struct count c = {0, 0, 0, 0};
    struct worker w;
    bool works;

    if ((job->reapers && reaper(job, &thread)) || !worker_init(&w, job, thread))
        return;
    works = thread % 32 < job->lanes;
    for (uint32_t i = 0; i < job->ops; i++) {
        uint64_t lba = next_lba(&w, job), off = place(&w, job, 0);
        int err;

        if (check) {
            data_fill(&w, job, lba, off, op == JOB_READ);
            __syncwarp();
        }
        if (!works)
            continue;
        err = ours_io(&w, op, lba, job->nlb, off);
        count_command(&c, err);
        if (check && op == JOB_WRITE) {
            data_fill(&w, job, lba, off, true);
            __syncwarp();
            err |= ours_io(&w, JOB_READ, lba, job->nlb, off);
        }
        if (check && !err)
            c.wrong += data_wrong(&w, job, lba, off);
        if (err && job->outcome->stop)
            break;
    }
    report(job, &c);
}

static __global__ void kernel_ours(const __grid_constant__ struct job job)
{
    if (job.op == JOB_READ)
        ours(&job, JOB_READ, false);
    else
        ours(&job, JOB_WRITE, false);
}

static __global__ void kernel_ours_check(const __grid_constant__ struct job job)
{
    ours(&job, job.op, true);
}

/*
 * Several commands in flight: their tokens are in shared memory, since an array in registers cannot
 * be indexed. Each thread submits while it may and there is room, else waits for its oldest.
 */
struct window {
    struct gpunvme_dev_token *tokens; /* this thread's, blockDim.x apart */
    uint32_t head, tail;              /* commands waited for, and submitted */
    uint32_t head_at, tail_at;        /* the same modulo the commands in flight */
};

static __device__ __forceinline__ bool split_submit(struct window *f, const struct worker *w,
                                                    const struct job *job, uint32_t op,
                                                    uint64_t lba, bool check)
{
    uint64_t off = place(w, job, f->tail_at);
    struct gpunvme_dev_token *token = &f->tokens[f->tail_at * blockDim.x];
    int err;

    if (check)
        data_fill(w, job, lba, off, op == JOB_READ);
    if (op == JOB_WRITE)
        err = gpunvme_dev_submit_write(&w->ns, lba, job->nlb, &w->drive->data, off, 0, token);
    else
        err = gpunvme_dev_submit_read(&w->ns, lba, job->nlb, &w->drive->data, off, token);
    if (err && err != GPUNVME_ERR_AGAIN) {
        job->outcome->last = err;
        job->outcome->stop = 1;
    }
    if (err)
        return false;
    f->tail++;
    f->tail_at = f->tail_at + 1 == job->inflight ? 0 : f->tail_at + 1;
    return true;
}

static __device__ __forceinline__ int split_wait(struct window *f, const struct worker *w,
                                                 const struct job *job)
{
    int err = gpunvme_dev_wait(&w->ns, &f->tokens[f->head_at * blockDim.x], 0);

    f->head++;
    f->head_at = f->head_at + 1 == job->inflight ? 0 : f->head_at + 1;
    return err;
}

static __device__ __forceinline__ void split(const struct job *job, uint32_t op, bool check)
{
    extern __shared__ struct gpunvme_dev_token tokens[];
    struct window f = {tokens + threadIdx.x, 0, 0, 0, 0};
    uint32_t thread = blockIdx.x * blockDim.x + threadIdx.x;
    struct count c = {0, 0, 0, 0};
    struct worker w;
    uint64_t behind, lba; /* `behind` draws again what was drawn for the oldest in flight */

    if ((job->reapers && reaper(job, &thread)) || !worker_init(&w, job, thread))
        return;
    behind = w.state;
    lba = next_lba(&w, job);
    while (f.head < job->ops) {
        if (f.tail < job->ops && f.tail - f.head < job->inflight &&
            split_submit(&f, &w, job, op, lba, check)) {
            lba = next_lba(&w, job);
            continue;
        }
        if (f.tail == f.head) { /* no room, and nothing of one's own to wait for */
            gpunvme_relax();
            if (gpunvme_load_relaxed32(&job->outcome->stop))
                break;
            continue;
        }
        uint64_t off = place(&w, job, f.head_at);
        int err = split_wait(&f, &w, job);

        count_command(&c, err);
        if (check && op == JOB_READ) {
            struct worker then = w;

            then.state = behind;
            if (!err)
                c.wrong += data_wrong(&w, job, next_lba(&then, job), off);
            else
                next_lba(&then, job);
            behind = then.state;
        }
    }
    __syncwarp();
    report(job, &c);
}

static __global__ void kernel_split(const __grid_constant__ struct job job)
{
    if (job.op == JOB_READ)
        split(&job, JOB_READ, false);
    else
        split(&job, JOB_WRITE, false);
}

static __global__ void kernel_split_check(const __grid_constant__ struct job job)
{
    split(&job, job.op, true);
}

/* Looked at now and then: a run takes seconds at most, so one that takes a minute hangs. */
static __device__ bool late(const struct job *job, uint64_t *deadline)
{
    uint64_t now = gpunvme_clock_ns();

    *deadline = *deadline ? *deadline : now + UINT64_C(60000000000);
    if (now > *deadline)
        job->outcome->stop = 1;
    return gpunvme_load_relaxed32(&job->outcome->stop) != 0;
}

/*
 * One command in flight for each thread, and none waits for its neighbours' in the warp: in each
 * turn a lane looks whether its command is done, and then submits the next one. All that still run
 * begin a turn together (gpunvme_dev_test() says why).
 */
static __device__ __forceinline__ void apart(const struct job *job, uint32_t op, bool check)
{
    uint32_t thread = blockIdx.x * blockDim.x + threadIdx.x, lane = gpunvme_warp_lane();
    uint32_t running, idle, done = 0, turn = 0;
    struct gpunvme_dev_token token = {};
    struct count c = {0, 0, 0, 0};
    bool in_flight = false, stopped = false;
    uint64_t lba, off, deadline = 0;
    struct worker w;
    int err;

    if ((job->reapers && reaper(job, &thread)) || !worker_init(&w, job, thread))
        return;
    lba = next_lba(&w, job);
    off = place(&w, job, 0);
    running = gpunvme_warp_active();
    while ((running = gpunvme_warp_ballot(running, done < job->ops && !stopped)) >> lane & 1) {
        err = in_flight ? gpunvme_dev_test(&token) : (int)GPUNVME_ERR_AGAIN;
        if (err != GPUNVME_ERR_AGAIN) {
            count_command(&c, err);
            if (check && op == JOB_READ && !err)
                c.wrong += data_wrong(&w, job, lba, off);
            lba = next_lba(&w, job);
            in_flight = false;
            done++;
        }
        idle = gpunvme_warp_ballot(running, !in_flight && done < job->ops);
        if (idle >> lane & 1 && (gpunvme_popcount(idle) >= job->gather || turn % 4 == 0)) {
            if (check)
                data_fill(&w, job, lba, off, op == JOB_READ);
            err =
                op == JOB_WRITE
                    ? gpunvme_dev_submit_write(&w.ns, lba, job->nlb, &w.drive->data, off, 0, &token)
                    : gpunvme_dev_submit_read(&w.ns, lba, job->nlb, &w.drive->data, off, &token);
            in_flight = !err;
            if (err && err != GPUNVME_ERR_AGAIN) {
                count_command(&c, err);
                lba = next_lba(&w, job);
                done++;
            }
        }
        stopped = ++turn % 4096 == 0 && late(job, &deadline);
    }
    __syncwarp();
    report(job, &c);
}

static __global__ void kernel_apart(const __grid_constant__ struct job job)
{
    if (job.op == JOB_READ)
        apart(&job, JOB_READ, false);
    else
        apart(&job, JOB_WRITE, false);
}

static __global__ void kernel_apart_check(const __grid_constant__ struct job job)
{
    apart(&job, job.op, true);
}

/* --- the published ways -----------------------------------------------------------------------
 */

static __device__ __forceinline__ void way_sqe(struct gpunvme_sqe *sqe, const struct worker *w,
                                               const struct job *job, uint32_t op, uint64_t lba,
                                               uint64_t off)
{
    *sqe = {};
    sqe->opc = op == JOB_WRITE ? GPUNVME_CMD_WRITE : GPUNVME_CMD_READ;
    sqe->nsid = w->drive->ns.nsid;
    sqe->prp1 = w->drive->data.bus + off;
    if (job->place_bytes > 4096)
        sqe->prp2 = sqe->prp1 + 4096;
    sqe->cdw10 = (uint32_t)lba;
    sqe->cdw11 = (uint32_t)(lba >> 32);
    sqe->cdw12 = job->nlb - 1;
}

/* The thread's command id: its rank among the threads of the queue, so nobody must give it one. */
static __device__ __forceinline__ int ticket_io(const struct worker *w, const struct job *job,
                                                uint32_t op, uint64_t lba, uint64_t off)
{
    uint32_t warp = w->rank / 32, n = w->drive->ns.nqueues;
    struct way_queue *q = &w->drive->ways[warp % n];
    uint32_t cid = warp / n * 32 + w->rank % 32, status = 0;
    struct gpunvme_sqe sqe;

    way_sqe(&sqe, w, job, op, lba, off);
    if (!ticket_submit(q, cid, &sqe, job->outcome) ||
        !ticket_complete(q, cid, &status, job->outcome))
        return GPUNVME_ERR_TIMEOUT;
    return status ? GPUNVME_ERR_NVME(status) : GPUNVME_OK;
}

static __device__ __forceinline__ void ticket(const struct job *job, bool check)
{
    struct count c = {0, 0, 0, 0};
    struct worker w;

    if (!worker_init(&w, job, blockIdx.x * blockDim.x + threadIdx.x))
        return;
    for (uint32_t i = 0; i < job->ops; i++) {
        uint64_t lba = next_lba(&w, job), off = place(&w, job, 0);
        int err;

        if (check)
            data_fill(&w, job, lba, off, job->op == JOB_READ);
        err = ticket_io(&w, job, job->op, lba, off);
        count_command(&c, err);
        if (check && job->op == JOB_WRITE) {
            data_fill(&w, job, lba, off, true);
            err |= ticket_io(&w, job, JOB_READ, lba, off);
        }
        if (check && !err)
            c.wrong += data_wrong(&w, job, lba, off);
        if (err && job->outcome->stop)
            break;
    }
    __syncwarp();
    report(job, &c);
}

static __global__ void kernel_ticket(const __grid_constant__ struct job job)
{
    ticket(&job, false);
}

static __global__ void kernel_ticket_check(const __grid_constant__ struct job job)
{
    ticket(&job, true);
}

/* A thread's command, if its group's turn it is; all threads take the barriers in it. */
static __device__ __forceinline__ void lockstep_send(struct lockstep *l, const struct worker *w,
                                                     const struct job *job, uint32_t turn,
                                                     uint32_t op, uint64_t lba, uint64_t off)
{
    struct gpunvme_sqe sqe;

    if (l->group == turn)
        way_sqe(&sqe, w, job, op, lba, off);
    lockstep_submit(l, turn, &sqe);
}

/* All threads return the same: go on? */
static __device__ __forceinline__ bool lockstep_take(struct lockstep *l, const struct job *job,
                                                     uint32_t turn, struct count *c)
{
    uint32_t status = 0;
    bool there = lockstep_reap(l, turn, &status, job->outcome);

    if (l->group == turn)
        count_command(c, !there   ? GPUNVME_ERR_TIMEOUT
                         : status ? GPUNVME_ERR_NVME(status)
                                  : GPUNVME_OK);
    return there;
}

static __device__ __forceinline__ bool lockstep_init(struct lockstep *l, struct worker *w,
                                                     const struct job *job)
{
    uint32_t queue = blockIdx.x / job->ndrives;

    w->drive_index = blockIdx.x % job->ndrives;
    w->drive = &job->drives[w->drive_index];
    w->rank = queue * blockDim.x + threadIdx.x;
    w->state = bench_word(threadIdx.x & 0xff, job->seed + blockIdx.x * blockDim.x + threadIdx.x, 0);
    if (queue >= w->drive->ns.nqueues)
        return false;
    lockstep_begin(l, &w->drive->ways[queue], job->batches);
    return true;
}

/* Checks with one batch alone: with several a thread does not know when its own command is done. */
static __device__ __forceinline__ void lockstep(const struct job *job, bool check)
{
    uint32_t turns = job->ops * job->batches, turn = 0;
    uint64_t lba = 0, off;
    struct count c = {0, 0, 0, 0};
    struct lockstep l;
    struct worker w;

    if (!lockstep_init(&l, &w, job))
        return;
    off = place(&w, job, 0);
    for (uint32_t t = 0; t < turns + job->batches; t++) {
        if (t >= job->batches) {
            if (!lockstep_take(&l, job, turn, &c))
                break;
            if (check && job->op == JOB_WRITE) {
                data_fill(&w, job, lba, off, true);
                lockstep_send(&l, &w, job, turn, JOB_READ, lba, off);
                if (!lockstep_take(&l, job, turn, &c))
                    break;
            }
            if (check)
                c.wrong += data_wrong(&w, job, lba, off);
        }
        if (t < turns) {
            if (l.group == turn)
                lba = next_lba(&w, job);
            if (check)
                data_fill(&w, job, lba, off, job->op == JOB_READ);
            lockstep_send(&l, &w, job, turn, job->op, lba, off);
        }
        turn = turn + 1 == job->batches ? 0 : turn + 1;
    }
    lockstep_end(&l);
    report(job, &c);
}

static __global__ void __launch_bounds__(LOCKSTEP_THREADS)
    kernel_lockstep(const __grid_constant__ struct job job)
{
    lockstep(&job, false);
}

static __global__ void __launch_bounds__(LOCKSTEP_THREADS)
    kernel_lockstep_check(const __grid_constant__ struct job job)
{
    lockstep(&job, true);
}

/* --- numbering, and errors that must come -----------------------------------------------------
 */

/* Every warp writes stretches of its drive; its lanes fill each lane's data together. */
static __global__ void kernel_number(const __grid_constant__ struct job job)
{
    uint32_t thread = blockIdx.x * blockDim.x + threadIdx.x, per_block, per_drive;
    struct count c = {0, 0, 0, 0};
    struct worker w;

    if ((job.reapers && reaper(&job, &thread)) || !worker_init(&w, &job, thread))
        return;
    per_block = w.drive->ns.block_size / 8;
    per_drive = (job.threads / 32 - w.drive_index + job.ndrives - 1) / job.ndrives * 32;
    for (uint32_t first = w.rank & ~31u; first < job.nchoices; first += per_drive) {
        uint32_t choice = first + threadIdx.x % 32;

        for (uint32_t lane = 0; lane < 32; lane++) {
            uint64_t lba = (uint64_t)(first + lane) * job.nlb;
            uint64_t *words = words_at(&w, place(&w, &job, 0)) +
                              ((int)lane - (int)(threadIdx.x % 32)) *
                                  (int64_t)(job.inflight * job.place_bytes / 8);

            for (uint32_t i = threadIdx.x % 32; i < job.nlb * per_block; i += 32)
                words[i] = bench_word(w.drive_index, lba + i / per_block, i % per_block);
        }
        __syncwarp();
        if (choice < job.nchoices)
            count_command(&c, ours_io(&w, JOB_WRITE, (uint64_t)choice * job.nlb, job.nlb,
                                      place(&w, &job, 0)));
        __syncwarp();
    }
    report(&job, &c);
}

/* A well mixed word, as the software controller's lbahash takes it: splitmix64's finaliser. */
static __device__ __forceinline__ uint64_t mix(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

/*
 * Reads single blocks. Whether one must fail is known by its number; one that fails must leave the
 * data alone. The first word is looked at each time: it tells drive and block.
 */
/* What one thread needs for one block: its registers are reported, it is never run. */
static __global__ void kernel_read_a_block(const __grid_constant__ struct job job)
{
    if (gpunvme_dev_read(&job.drives[0].ns, blockIdx.x, 1, &job.drives[0].data,
                         blockIdx.x * (uint64_t)job.place_bytes, 0))
        job.outcome->stop = 1;
}

static __global__ void kernel_errors(const __grid_constant__ struct job job)
{
    uint32_t thread = blockIdx.x * blockDim.x + threadIdx.x, unexpected = 0, missing = 0;
    uint32_t expected = 0;
    struct count c = {0, 0, 0, 0};
    struct worker w;

    if ((job.reapers && reaper(&job, &thread)) || !worker_init(&w, &job, thread))
        return;
    for (uint32_t i = 0; i < job.ops; i++) {
        uint64_t lba = next_lba(&w, &job), off = place(&w, &job, 0);
        uint64_t holds = bench_word(w.drive_index, lba, 0);
        volatile uint64_t *word = words_at(&w, off);
        bool fails = mix(job.fail_seed ^ mix(lba)) % job.fail_one_in == 0;
        int err;

        *word = ~holds;
        __syncwarp();
        err = ours_io(&w, JOB_READ, lba, 1, off);
        count_command(&c, err);
        expected += fails && err == GPUNVME_ERR_NVME(0x281);
        missing += fails && !err;
        unexpected += err && (!fails || err != GPUNVME_ERR_NVME(0x281));
        c.wrong += *word != (err ? ~holds : holds);
        __syncwarp();
    }
    if (expected)
        atomicAdd(&job.outcome->expected, expected);
    if (unexpected)
        atomicAdd(&job.outcome->unexpected, unexpected);
    if (missing)
        atomicAdd(&job.outcome->missing, missing);
    report(&job, &c);
}

/* --- the host's side --------------------------------------------------------------------------
 */

typedef void kernel(const struct job);

static kernel *const kernels[JOB_NKERNELS] = {
    kernel_number,         kernel_ours,   kernel_ours_check,   kernel_split,
    kernel_split_check,    kernel_apart,  kernel_apart_check,  kernel_lockstep,
    kernel_lockstep_check, kernel_ticket, kernel_ticket_check, kernel_read_a_block,
    kernel_errors,
};

const char *job_error(int error)
{
    return cudaGetErrorString((cudaError_t)error);
}

static size_t shared_bytes(enum job_kernel k, const struct job *job, unsigned block_threads)
{
    if (k != JOB_KERNEL_SPLIT && k != JOB_KERNEL_SPLIT_CHECK)
        return 0;
    return (size_t)job->inflight * block_threads * sizeof(struct gpunvme_dev_token);
}

int job_attributes(enum job_kernel k, const struct job *job, unsigned block_threads,
                   struct job_attributes *out)
{
    size_t shared = shared_bytes(k, job, block_threads);
    struct cudaFuncAttributes attributes;
    cudaError_t e = cudaFuncGetAttributes(&attributes, kernels[k]);
    int device = 0;

    memset(out, 0, sizeof(*out));
    if (!e && shared > 48 << 10)
        e = cudaFuncSetAttribute(kernels[k], cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 (int)shared);
    if (!e)
        e = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&out->blocks_per_sm, kernels[k],
                                                          (int)block_threads, shared);
    if (!e)
        e = cudaGetDevice(&device);
    if (!e)
        e = cudaDeviceGetAttribute(&out->multiprocessors, cudaDevAttrMultiProcessorCount, device);
    if (!e)
        e = cudaDeviceGetAttribute(&out->sm_threads, cudaDevAttrMaxThreadsPerMultiProcessor,
                                   device);
    out->registers = attributes.numRegs;
    out->local_bytes = (int)attributes.localSizeBytes;
    out->shared_bytes = (int)(shared + attributes.sharedSizeBytes);
    return e;
}

/* Made once, so that nothing is allocated or created beside kernels that run for ever. */
struct launcher {
    cudaStream_t stream;
    cudaEvent_t begin, end;
    struct job_outcome *outcome; /* in GPU memory */
};

static cudaError_t launcher_make(struct launcher *l)
{
    cudaError_t e = cudaSuccess;

    if (l->stream)
        return e;
    e = cudaMalloc((void **)&l->outcome, sizeof(*l->outcome));
    if (!e)
        e = cudaEventCreate(&l->begin);
    if (!e)
        e = cudaEventCreate(&l->end);
    return e ? e : cudaStreamCreateWithFlags(&l->stream, cudaStreamNonBlocking);
}

/* Waits by asking, since a wait in the driver may be for everything that runs. */
static cudaError_t wait(cudaEvent_t event, double timeout_s)
{
    cudaError_t e = cudaEventQuery(event);

    for (double s = 0; e == cudaErrorNotReady && s < timeout_s; s += 1e-4) {
        usleep(100);
        e = cudaEventQuery(event);
    }
    return e == cudaErrorNotReady ? cudaErrorLaunchTimeout : e;
}

static unsigned blocks_of(enum job_kernel k, const struct job *job, unsigned block_threads)
{
    bool lockstep = k == JOB_KERNEL_LOCKSTEP || k == JOB_KERNEL_LOCKSTEP_CHECK;
    unsigned threads = job->threads + (lockstep ? 0 : job->reapers * 32);

    return (threads + block_threads - 1) / block_threads;
}

int job_run(enum job_kernel k, struct job *job, unsigned block_threads, double timeout_s, float *ms,
            struct job_outcome *outcome)
{
    static struct launcher l;
    cudaError_t e = launcher_make(&l);

    job->outcome = l.outcome;
    if (!e)
        e = cudaMemsetAsync(l.outcome, 0, sizeof(*l.outcome), l.stream);
    if (!e)
        e = cudaEventRecord(l.begin, l.stream);
    if (e)
        return e;
    kernels[k]<<<blocks_of(k, job, block_threads), block_threads,
                 shared_bytes(k, job, block_threads), l.stream>>>(*job);
    e = cudaGetLastError();
    if (!e)
        e = cudaEventRecord(l.end, l.stream);
    if (!e)
        e = wait(l.end, timeout_s);
    if (!e)
        e = cudaEventElapsedTime(ms, l.begin, l.end);
    if (!e)
        e = cudaMemcpyAsync(outcome, l.outcome, sizeof(*outcome), cudaMemcpyDeviceToHost, l.stream);
    return e ? e : cudaStreamSynchronize(l.stream);
}

/* --- queues of the published ways ---------------------------------------------------------------
 */

int job_ways_make(const struct gpunvme_dev_ns *ns, struct way_queue **out)
{
    struct gpunvme_dev_queue first;
    size_t head = ns->nqueues * sizeof(struct way_queue), words;
    struct way_queue way;
    cudaError_t e = cudaMemcpy(&first, ns->queues, sizeof(first), cudaMemcpyDeviceToHost);
    uint8_t *memory = NULL;

    words = (size_t)3 * (first.mask + 1);
    if (!e)
        e = cudaMalloc((void **)&memory, head + ns->nqueues * words * sizeof(uint32_t));
    if (!e)
        e = cudaMemset(memory, 0, head + ns->nqueues * words * sizeof(uint32_t));
    for (uint32_t i = 0; i < ns->nqueues && !e; i++) {
        e = cudaMemcpy(&first, ns->queues + i, sizeof(first), cudaMemcpyDeviceToHost);
        way_init(&way, &first, (uint32_t *)(memory + head) + i * words);
        if (!e)
            e = cudaMemcpy(memory + i * sizeof(way), &way, sizeof(way), cudaMemcpyHostToDevice);
    }
    *out = (struct way_queue *)memory;
    return e;
}

void job_ways_free(struct way_queue *ways)
{
    cudaFree(ways);
}
