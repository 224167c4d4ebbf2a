/* SPDX-License-Identifier: BSD-3-Clause
 *
 * issue=gpu. See nvme_gpu.h.
 *
 * A worker's turn: takes pieces; claims the blocks of writes and room for what can't go straight;
 * copies in; runs the kernel; copies out; tells the ends. Pieces that can't have what they need in
 * this turn have it in a later one: what others hold is given back at the end of theirs.
 */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cond.h"
#include "base/fail.h"
#include "device/internal.h"
#include "storage/futex.h"
#include "storage/nvme_gpu_kernel.h"
#include "storage/nvme_store.h"

#define DEFAULT_DEPTH   256u /* jobs of a batch */
#define DEFAULT_WORKERS 2u   /* one copies while the other's kernel runs */
#define QUEUES          4u
#define ENTRIES         256u
#define STAGE_NBYTES    ((size_t)32 << 20) /* of a worker's own memory, at most */
#define CPU_THREADS     8u                 /* that stand in for a kernel */
#define WORK_WAIT_NS    1000000000u
#define PAUSE_NS        20000
#define STUCK_NS        1000000 /* between looks of a worker whose kernel does not end */
#define SPIN_NS         200000u /* of a kernel that runs, before the thread sleeps between looks */

struct nvme_gpu {
    struct gpunvme_device *dev;
    struct gpunvme_device_info info;
    struct gpunvme_dev_ns ns;
    _Atomic unsigned nstuck; /* workers whose kernels did not end in time */

    pthread_mutex_t lock; /* of what follows: a recovery needs that no kernel runs */
    pthread_cond_t changed;
    unsigned nkernels;
    bool recovers;

    struct gpu_worker *left; /* those that kernels may reach for still */
    struct nvme_gpu *next_left;
};

/* Kept for whoever looks for leaks. */
static pthread_mutex_t left_lock = PTHREAD_MUTEX_INITIALIZER;
static struct nvme_gpu *all_left;

/* A piece that a worker has. */
struct task {
    struct crew_piece piece;
    const struct nvme_region *region; /* NULL: it is staged */
    size_t want;
    size_t claim;     /* index */
    bool keeps_claim; /* beyond its end: the kernel did not end in time */
    int part;         /* of the staging memory; -1: none */
    struct nvme_tries tries;
    bool runs; /* in this turn */
    struct nvme_job *job;
    gpunvme_err_t err;
    struct base_failure why; /* of err, where it is not the job's */
};

struct gpu_worker {
    struct nvme_kernels *kernels;
    struct gpunvme_mem_stream *stream;
    struct gpunvme_buf jobs; /* depth of struct nvme_job, pinned */
    struct nvme_bounces stage;
    struct gpunvme_dev_buf stage_view;
    struct task *tasks; /* depth */
    struct task **list; /* the first n are in hand */
    unsigned n;
    unsigned njobs;
    bool is_stuck;  /* the kernel did not end in time: it has all that it was given … */
    uint16_t *held; /* … these parts of the staging memory among it */
    unsigned nheld;
    struct gpu_worker *next_left;
};

static void blame(struct task *t, gpunvme_err_t err)
{
    t->err = err;
    base_keep(&t->why, err);
}

/* --- staging memory ----------------------------------------------------------------------------
 */

static uint8_t *stage_at(const struct gpu_worker *w, const struct task *t)
{
    uint8_t *base = w->stage.buf.mem == GPUNVME_MEM_GPU ? w->stage.buf.gpu : w->stage.buf.cpu;

    return base + t->job->off;
}

/* Parts have room for a piece that begins where its block does, so that blocks lie at dwords. */
static size_t part_nbytes(const struct nvme_store *s)
{
    return s->chunk + s->ns->block_size;
}

static gpunvme_err_t make_stage(struct nvme_store *s, struct gpu_worker *w)
{
    size_t n = STAGE_NBYTES / part_nbytes(s);
    gpunvme_err_t err;

    n = n < 1 ? 1 : n > s->depth ? s->depth : n;
    err = gpunvme_device_alloc(s->gpu->dev, n * part_nbytes(s), &w->stage.buf);
    if (!err)
        err = gpunvme_device_buf(s->gpu->dev, &w->stage.buf, &w->stage_view);
    if (err)
        return err;
    return nvme_bounces_init(&w->stage, (unsigned)n, part_nbytes(s));
}

/* --- tasks -------------------------------------------------------------------------------------
 */

/* Whole blocks can be moved straight where they lie at dwords of memory that both reach. */
static bool goes_straight(const struct nvme_region *r, const struct store_region *region,
                          const struct crew_piece *piece)
{
    return r && r->has_view &&
           !((gpunvme_buf_bus(&r->mapping->buf, 0) + (size_t)(piece->ptr - region->ptr) -
              piece->offset) &
             3);
}

static void begin(struct nvme_store *s, struct task *t, const struct crew_piece *piece)
{
    const struct store_region *region = store_io_region(piece->io);
    const struct nvme_region *r = region ? region->priv : NULL;
    uint64_t size = s->ns->nbytes;

    t->piece = *piece;
    t->region = goes_straight(r, region, piece) ? r : NULL;
    t->want = piece->offset >= size                  ? 0
              : piece->nbytes > size - piece->offset ? (size_t)(size - piece->offset)
                                                     : piece->nbytes;
    t->part = -1;
    t->tries.n = 0;
    t->runs = false;
    t->err = t->why.err = GPUNVME_OK;
}

static bool is_flush(const struct task *t)
{
    return t->piece.io->op == GPUNVME_OP_FLUSH;
}

static bool is_write(const struct task *t)
{
    return t->piece.io->op == GPUNVME_OP_WRITE;
}

static void let_go(struct nvme_store *s, struct gpu_worker *w, struct task *t)
{
    if (!t->keeps_claim)
        nvme_claim_drop(&s->claims, t->claim);
    if (t->part >= 0)
        nvme_bounces_give(&w->stage, t->part);
    t->part = -1;
    t->runs = false;
}

/* False: they are another's. An error if that is for good. */
static bool claim_blocks(struct nvme_store *s, struct task *t)
{
    uint64_t mask = s->ns->block_size - 1, begin = t->piece.offset, end = begin + t->want;
    uint64_t first = begin >> s->ns->block_shift,
             nblocks = ((end + mask) >> s->ns->block_shift) - first;

    if (nvme_claim_take(&s->claims, t->claim, first, nblocks, (begin | end) & mask))
        return true;
    if (nvme_claim_is_lost(&s->claims, first, nblocks))
        blame(t, nvme_fail_lost(first, nblocks));
    return false;
}

/* Claims its blocks, if it is a write, and room. False: not in this turn. */
static bool take_what_it_needs(struct nvme_store *s, struct gpu_worker *w, struct task *t)
{
    bool staged = !t->region && !is_flush(t);

    if (staged) {
        t->part = nvme_bounces_take(&w->stage);
        if (t->part < 0)
            return false;
    }
    if (is_write(t) && !claim_blocks(s, t)) {
        let_go(s, w, t);
        return false;
    }
    return true;
}

static void describe_job(struct nvme_store *s, struct gpu_worker *w, struct task *t)
{
    const struct store_region *region = store_io_region(t->piece.io);

    t->job = (struct nvme_job *)w->jobs.cpu + w->njobs++;
    *t->job = (struct nvme_job){
        .offset = t->piece.offset,
        .nbytes = t->want,
        .op = is_flush(t)   ? NVME_JOB_FLUSH
              : is_write(t) ? NVME_JOB_WRITE
                            : NVME_JOB_READ,
    };
    if (is_flush(t))
        return;
    t->job->buf = t->region ? t->region->view : w->stage_view;
    t->job->off =
        t->region ? (uint64_t)(t->piece.ptr - region->ptr)
                  : (uint64_t)t->part * w->stage.part + (t->piece.offset & (s->ns->block_size - 1));
}

/* Bytes between staging memory and the caller's: started here, done when the stream is. */
static gpunvme_err_t copy(struct gpu_worker *w, const struct task *t, bool in)
{
    enum gpunvme_mem mem = t->piece.io->mem, ours = w->stage.buf.mem;

    if (in)
        return gpunvme_mem_copy_async(stage_at(w, t), ours, t->piece.ptr, mem, t->want, w->stream);
    return gpunvme_mem_copy_async(t->piece.ptr, mem, stage_at(w, t), ours, t->want, w->stream);
}

static bool is_copied(const struct task *t, bool in)
{
    return t->runs && t->part >= 0 && is_write(t) == in;
}

/* The GPU may still do them: their parts and the stream are left to it. */
static void give_up_copies(struct gpu_worker *w, bool in)
{
    unsigned n = 0;

    for (unsigned i = 0; i < w->n; i++)
        if (is_copied(w->list[i], in)) {
            w->held[n++] = (uint16_t)w->list[i]->part;
            w->list[i]->part = -1;
        }
    nvme_bounces_lose(&w->stage, w->stream, w->held, n);
    w->stream = NULL;
}

/* An error of the stream is the error of each of the copies. */
static void end_copies(struct nvme_store *s, struct gpu_worker *w, bool in)
{
    gpunvme_err_t err = gpunvme_mem_stream_sync(w->stream, s->copy_timeout_ns);

    if (err == GPUNVME_ERR_TIMEOUT)
        base_fail(err,
                  "copies by the GPU are not done after %llu ms: it is busy, or hangs; the memory "
                  "is in use until the store is closed",
                  (unsigned long long)(s->copy_timeout_ns / 1000000u));
    for (unsigned i = 0; err && i < w->n; i++)
        if (is_copied(w->list[i], in))
            blame(w->list[i], err);
    if (err == GPUNVME_ERR_TIMEOUT)
        give_up_copies(w, in);
}

/* Copies for all of this turn that go that way. */
static void copy_all(struct nvme_store *s, struct gpu_worker *w, bool in)
{
    bool any = false;

    for (unsigned i = 0; i < w->n; i++) {
        struct task *t = w->list[i];
        gpunvme_err_t err = GPUNVME_OK;

        if (!is_copied(t, in) || t->err)
            continue;
        if (!w->stream)
            err = gpunvme_mem_stream_create(&w->stage.buf, &w->stream);
        if (!err)
            err = copy(w, t, in);
        if (err)
            blame(t, err);
        any = true;
    }
    if (any && w->stream)
        end_copies(s, w, in);
}

/* --- a turn ------------------------------------------------------------------------------------
 */

static void gather_one(struct gpunvme_store *store, struct gpu_worker *w, struct task *t)
{
    struct nvme_store *s = store->priv;

    t->err = t->why.err = GPUNVME_OK;
    t->job = NULL;
    t->runs = true;
    if (!t->want && !is_flush(t))
        return; /* behind the end: nothing is to be done */
    if (!t->region && !is_flush(t)) {
        gpunvme_err_t err = store_allows(store, t->piece.io->mem, GPUNVME_ROUTE_BOUNCE);

        if (!err && nvme_bounces_all_lost(&w->stage))
            err = base_fail(GPUNVME_ERR_GPU, "copies that the GPU was given earlier do not end: "
                                             "they hold all staging memory");
        if (err) {
            blame(t, err);
            return;
        }
    }
    t->runs = take_what_it_needs(s, w, t);
    if (t->runs)
        describe_job(s, w, t);
    else
        t->runs = t->err != GPUNVME_OK; /* it ends */
}

/* Makes jobs of all that can run. Those whose bytes could not be copied in do nothing. */
static void gather(struct gpunvme_store *store, struct gpu_worker *w)
{
    w->njobs = 0;
    for (unsigned i = 0; i < w->n; i++)
        gather_one(store, w, w->list[i]);
    copy_all(store->priv, w, true);
    for (unsigned i = 0; i < w->n; i++)
        if (w->list[i]->runs && w->list[i]->job && w->list[i]->err)
            w->list[i]->job->op = NVME_JOB_NOTHING;
}

struct stand_in {
    pthread_t thread;
    const struct gpunvme_dev_ns *ns;
    struct nvme_job *jobs;
    unsigned first, stride, n;
};

static void *stand_in(void *arg)
{
    const struct stand_in *in = arg;

    for (unsigned i = in->first; i < in->n; i += in->stride)
        nvme_job_do(in->ns, &in->jobs[i]);
    return NULL;
}

/* Without a GPU: some threads share the jobs. */
static void run_here(const struct gpunvme_dev_ns *ns, struct nvme_job *jobs, unsigned n)
{
    unsigned nthreads = n < CPU_THREADS ? n : CPU_THREADS;
    struct stand_in in[CPU_THREADS];
    bool started[CPU_THREADS] = {false};

    for (unsigned i = 0; i < nthreads; i++) {
        in[i] = (struct stand_in){.ns = ns, .jobs = jobs, .first = i, .stride = nthreads, .n = n};
        started[i] = i && !pthread_create(&in[i].thread, NULL, stand_in, &in[i]);
        if (i && !started[i])
            stand_in(&in[i]);
    }
    stand_in(&in[0]);
    for (unsigned i = 0; i < nthreads; i++)
        if (started[i])
            pthread_join(in[i].thread, NULL);
}

/* --- kernels and recoveries ----------------------------------------------------------------------
 */

static gpunvme_err_t enter_kernels(struct nvme_gpu *gpu, uint64_t timeout_ns)
{
    uint64_t deadline = futex_deadline(timeout_ns);
    gpunvme_err_t err = GPUNVME_OK;

    pthread_mutex_lock(&gpu->lock);
    while (gpu->recovers && !err)
        if (!base_cond_wait(&gpu->changed, &gpu->lock, deadline) && gpu->recovers)
            err = base_fail(GPUNVME_ERR_TIMEOUT, "queues of the GPU are still being recovered");
    gpu->nkernels += !err;
    pthread_mutex_unlock(&gpu->lock);
    return err;
}

static void leave_kernels(struct nvme_gpu *gpu)
{
    pthread_mutex_lock(&gpu->lock);
    gpu->nkernels--;
    pthread_cond_broadcast(&gpu->changed);
    pthread_mutex_unlock(&gpu->lock);
}

/* Waits until no kernel runs; none begins before leave_recovery(). */
static gpunvme_err_t enter_recovery(struct nvme_gpu *gpu, uint64_t timeout_ns)
{
    uint64_t deadline = futex_deadline(timeout_ns);
    bool in_time = true;

    pthread_mutex_lock(&gpu->lock);
    while (gpu->recovers && in_time)
        in_time = base_cond_wait(&gpu->changed, &gpu->lock, deadline) || !gpu->recovers;
    if (in_time) {
        gpu->recovers = true;
        while (gpu->nkernels && in_time)
            in_time = base_cond_wait(&gpu->changed, &gpu->lock, deadline) || !gpu->nkernels;
        gpu->recovers = in_time;
        pthread_cond_broadcast(&gpu->changed);
    }
    pthread_mutex_unlock(&gpu->lock);
    return in_time ? GPUNVME_OK
                   : base_fail(GPUNVME_ERR_TIMEOUT, "queues of the GPU can't be recovered while a "
                                                    "kernel that uses them does not end");
}

static void leave_recovery(struct nvme_gpu *gpu)
{
    pthread_mutex_lock(&gpu->lock);
    gpu->recovers = false;
    pthread_cond_broadcast(&gpu->changed);
    pthread_mutex_unlock(&gpu->lock);
}

static gpunvme_err_t recover(struct nvme_store *s)
{
    struct nvme_gpu *gpu = s->gpu;
    gpunvme_err_t err = enter_recovery(gpu, s->kernel_timeout_ns);

    if (err)
        return err;
    err = gpunvme_device_recover(gpu->dev);
    leave_recovery(gpu);
    return err;
}

/*
 * A kernel ends by itself, by the deadlines of its commands. But it may have to wait for room on a
 * GPU that others fill: AGAIN, when the time is up.
 */
static gpunvme_err_t wait_for_kernel(struct gpu_worker *w, uint64_t timeout_ns)
{
    const struct timespec pause = {.tv_nsec = PAUSE_NS};
    uint64_t start = futex_now(), waited;
    gpunvme_err_t err;
    bool done;

    for (;;) {
        err = nvme_kernels_query(w->kernels, &done);
        if (err || done)
            return err;
        waited = futex_now() - start;
        if (waited >= timeout_ns)
            return GPUNVME_ERR_AGAIN;
        if (waited < SPIN_NS)
            sched_yield();
        else
            nanosleep(&pause, NULL);
    }
}

/* All that the kernel has been given stays as it is until it has ended. */
static gpunvme_err_t get_stuck(struct nvme_store *s, struct gpu_worker *w)
{
    for (unsigned i = 0; i < w->n; i++) {
        struct task *t = w->list[i];

        if (t->runs && t->part >= 0) {
            w->held[w->nheld++] = (uint16_t)t->part;
            t->part = -1;
        }
        /* It may yet write the rest of a block as it was before others wrote it. */
        t->keeps_claim = t->runs && nvme_claim_lose(&s->claims, t->claim);
    }
    w->is_stuck = true;
    atomic_fetch_add(&s->gpu->nstuck, 1);
    return base_fail(GPUNVME_ERR_TIMEOUT,
                     "a kernel that does I/O has not ended after %llu ms: the GPU is busy, or "
                     "hangs; the memory is in use until the store is closed",
                     (unsigned long long)(s->kernel_timeout_ns / 1000000u));
}

static bool was_interrupted(gpunvme_err_t err)
{
    return err == GPUNVME_ERR_ABORTED || err == GPUNVME_ERR_CLOSED || err == GPUNVME_ERR_TIMEOUT;
}

/*
 * The kernel that did not end in time has ended after all: what it had is ours again, and queues
 * that it left in disorder are recovered. False: it has not.
 */
static bool get_unstuck(struct nvme_store *s, struct gpu_worker *w, uint64_t timeout_ns)
{
    const struct nvme_job *jobs = w->jobs.cpu;
    gpunvme_err_t err = wait_for_kernel(w, timeout_ns);
    bool failed = err != GPUNVME_OK;

    if (err == GPUNVME_ERR_AGAIN)
        return false;
    for (unsigned i = 0; i < w->njobs; i++)
        failed = failed || was_interrupted(jobs[i].err);
    while (w->nheld)
        nvme_bounces_give(&w->stage, w->held[--w->nheld]);
    for (unsigned i = 0; i < s->depth; i++)
        if (w->tasks[i].keeps_claim) {
            w->tasks[i].keeps_claim = false;
            nvme_claim_drop(&s->claims, w->tasks[i].claim);
        }
    w->is_stuck = false;
    atomic_fetch_sub(&s->gpu->nstuck, 1);
    leave_kernels(s->gpu);
    if (failed)
        (void)recover(s); /* what is still wrong then, the next jobs are told */
    return true;
}

/* *failed: the kernel has ended, and badly. */
static gpunvme_err_t run_jobs(struct nvme_store *s, struct gpu_worker *w, bool *failed)
{
    struct nvme_gpu *gpu = s->gpu;
    gpunvme_err_t err = enter_kernels(gpu, s->kernel_timeout_ns);

    *failed = false;
    if (err)
        return err;
    if (!w->kernels) {
        run_here(&gpu->ns, w->jobs.cpu, w->njobs);
    } else {
        err = nvme_kernels_start(w->kernels, &gpu->ns, w->jobs.gpu, w->njobs);
        if (!err) {
            err = wait_for_kernel(w, s->kernel_timeout_ns);
            *failed = err && err != GPUNVME_ERR_AGAIN;
        }
        if (err == GPUNVME_ERR_AGAIN)
            return get_stuck(s, w); /* and still among the kernels */
    }
    leave_kernels(gpu);
    return err;
}

/* Of jobs that a reset ended, all but those that it was made for are done once more. */
static void try_again(struct nvme_store *s, struct gpu_worker *w)
{
    for (unsigned i = 0; i < w->n; i++) {
        struct task *t = w->list[i];

        if (!t->runs || !t->job || t->why.err || !was_interrupted(t->err))
            continue;
        if (t->err != GPUNVME_ERR_TIMEOUT && nvme_may_try_again(&t->tries)) {
            t->err = GPUNVME_OK;
            let_go(s, w, t); /* and stays in hand */
        }
    }
}

/*
 * Runs the jobs, and finds out what came of each. Queues that a reset, or a kernel that failed,
 * left in disorder are made good again.
 */
static void run_all(struct nvme_store *s, struct gpu_worker *w)
{
    bool failed, interrupted = false;
    gpunvme_err_t ran = run_jobs(s, w, &failed), dead;

    for (unsigned i = 0; i < w->n; i++) {
        struct task *t = w->list[i];

        if (!t->runs || !t->job || t->err)
            continue;
        if (ran)
            blame(t, ran);
        else
            t->err = t->job->err;
        interrupted |= !ran && was_interrupted(t->err);
    }
    if (!failed && !interrupted)
        return;
    dead = recover(s);
    for (unsigned i = 0; dead && i < w->n; i++) {
        struct task *t = w->list[i];

        if (t->runs && t->job && !t->why.err && was_interrupted(t->err))
            blame(t, dead);
    }
    try_again(s, w);
}

static gpunvme_err_t say(const struct nvme_store *s, const struct task *t)
{
    const char *address = gpunvme_ctrl_transport(s->ctrl)->address;
    gpunvme_err_t err = t->err;

    if (t->why.err)
        return base_restore(&t->why);
    if (gpunvme_err_nvme_status(err))
        return base_fail(err, "%s: status %04xh", address, gpunvme_err_nvme_status(err));
    if (err == GPUNVME_ERR_TIMEOUT)
        return base_fail(err, "%s: no completion; the controller was reset", address);
    return base_fail(err, "%s: %s", address, gpunvme_err_text(err)); /* kernels give no detail */
}

static void tell(struct gpunvme_store *store, struct task *t)
{
    enum gpunvme_route route = GPUNVME_ROUTE_HOST;
    size_t done = t->err ? 0 : t->want;

    if (t->piece.io->mem == GPUNVME_MEM_GPU)
        route = t->region ? GPUNVME_ROUTE_P2P : GPUNVME_ROUTE_BOUNCE;
    if (done)
        store_moved(store, t->piece.io->op, route, done);
    crew_end(&t->piece, t->err ? say(store->priv, t) : GPUNVME_OK, done);
}

/* Ends what ran; the rest stays in hand, first in the list. */
static bool end_all(struct gpunvme_store *store, struct gpu_worker *w)
{
    struct nvme_store *s = store->priv;
    unsigned kept = 0;

    for (unsigned i = 0; i < w->n; i++) {
        struct task *t = w->list[i];

        if (!t->runs) {
            w->list[i] = w->list[kept];
            w->list[kept++] = t;
            continue;
        }
        let_go(s, w, t);
        tell(store, t);
    }
    if (kept == w->n)
        return false;
    w->n = kept;
    return true;
}

/* Whether anything was done. */
static bool turn(struct gpunvme_store *store, struct gpu_worker *w)
{
    struct nvme_store *s = store->priv;

    gather(store, w);
    if (w->njobs)
        run_all(s, w);
    copy_all(s, w, false);
    return end_all(store, w);
}

/* No worker can start a kernel. */
static void refuse_all(struct gpunvme_store *store, struct gpu_worker *w)
{
    for (unsigned i = 0; i < w->n; i++) {
        struct task *t = w->list[i];

        t->runs = true;
        blame(t, base_fail(GPUNVME_ERR_TIMEOUT,
                           "kernels that do I/O were started earlier and have not ended: the GPU "
                           "is busy, or hangs"));
    }
    end_all(store, w);
}

/* --- workers -----------------------------------------------------------------------------------
 */

static void take(struct crew_worker *worker, struct gpu_worker *w, uint64_t wait_ns, bool *stop)
{
    struct nvme_store *s = worker->store->priv;
    struct crew_piece pieces[64];
    size_t n;

    do {
        size_t room = s->depth - w->n < 64 ? s->depth - w->n : 64;

        if (!room)
            return;
        n = crew_take(worker, pieces, room, s->chunk, w->n ? 0 : wait_ns, stop);
        for (size_t i = 0; i < n; i++)
            begin(s, w->list[w->n++], &pieces[i]);
    } while (n == 64);
}

/* A worker whose kernel does not end leaves the pieces to others, unless all are like it. */
static void look_stuck(struct crew_worker *worker, struct gpu_worker *w, bool *stop)
{
    const struct timespec pause = {.tv_nsec = STUCK_NS};
    struct nvme_store *s = worker->store->priv;

    if (get_unstuck(s, w, 0))
        return;
    if (atomic_load(&s->gpu->nstuck) == worker->store->threads) {
        take(worker, w, STUCK_NS, stop);
    } else if (!w->n) {
        crew_take(worker, NULL, 0, s->chunk, 0, stop); /* none: whether to stop */
        nanosleep(&pause, NULL);
        return;
    }
    refuse_all(worker->store, w); /* those as well that it had, and could not do in that turn */
}

static void work(struct crew_worker *worker)
{
    const struct timespec pause = {.tv_nsec = PAUSE_NS};
    struct gpu_worker *w = worker->state;
    bool stop = false;

    while (!stop) {
        if (w->is_stuck) {
            look_stuck(worker, w, &stop);
            continue;
        }
        take(worker, w, WORK_WAIT_NS, &stop);
        if (w->n && !turn(worker->store, w))
            nanosleep(&pause, NULL); /* all that it has waits for the other worker */
    }
}

/* Memory that the GPU may reach for is left to it, for good. */
static void leave_worker(struct nvme_store *s, struct gpu_worker *w)
{
    s->is_left = true;
    w->next_left = s->gpu->left;
    s->gpu->left = w;
}

static void free_worker(struct nvme_store *s, struct gpu_worker *w)
{
    if (w->is_stuck && !get_unstuck(s, w, s->is_left ? 0 : s->kernel_timeout_ns)) {
        leave_worker(s, w);
        return;
    }
    nvme_kernels_close(w->kernels);
    gpunvme_mem_stream_destroy(w->stream);
    gpunvme_mem_free(&w->jobs);
    if (!nvme_bounces_end(&w->stage, s->is_left ? 0 : s->copy_timeout_ns))
        s->is_left = true;
    else if (w->stage.buf.nbytes)
        gpunvme_device_free(s->gpu->dev, &w->stage.buf);
    free(w->held);
    free(w->tasks);
    free(w->list);
    free(w);
}

static gpunvme_err_t make_worker(struct nvme_store *s, unsigned index, struct gpu_worker *w)
{
    gpunvme_err_t err = GPUNVME_OK;

    w->tasks = calloc(s->depth, sizeof(w->tasks[0]));
    w->list = calloc(s->depth, sizeof(struct task *));
    w->held = calloc(s->depth, sizeof(w->held[0]));
    if (!w->tasks || !w->list || !w->held)
        return base_fail(GPUNVME_ERR_NOMEM, "%u tasks", s->depth);
    for (unsigned i = 0; i < s->depth; i++) {
        w->list[i] = &w->tasks[i];
        w->tasks[i].claim = (size_t)index * s->depth + i;
    }
    err = gpunvme_mem_alloc(s->depth * sizeof(struct nvme_job), GPUNVME_MEM_PINNED, &w->jobs);
    if (!err)
        err = make_stage(s, w);
    if (!err)
        err = gpunvme_mem_stream_create(NULL, &w->stream);
    if (!err && s->gpu->info.gpu >= 0)
        err = nvme_kernels_open(s->gpu->info.gpu, &w->kernels);
    return err;
}

static gpunvme_err_t prepare(struct crew_worker *worker)
{
    struct nvme_store *s = worker->store->priv;
    struct gpu_worker *w = calloc(1, sizeof(*w));
    struct base_failure failure;
    gpunvme_err_t err;

    if (!w)
        return base_fail(GPUNVME_ERR_NOMEM, "a worker");
    err = make_worker(s, worker->index, w);
    if (err) {
        base_keep(&failure, err);
        free_worker(s, w);
        return base_restore(&failure);
    }
    worker->state = w;
    return GPUNVME_OK;
}

static void release(struct crew_worker *worker)
{
    free_worker(worker->store->priv, worker->state);
}

static const struct crew_ops crew_ops = {.prepare = prepare, .release = release, .work = work};

/* --- opening -----------------------------------------------------------------------------------
 */

static gpunvme_err_t open_device(struct gpunvme_store *store, struct nvme_gpu *gpu)
{
    const struct store_options *o = &store->uri.options;
    struct nvme_store *s = store->priv;
    struct gpunvme_device_opts opts;
    struct gpunvme_ctrl_info info;
    uint64_t ms = s->command_timeout_ns / 1000000u;
    gpunvme_err_t err;

    gpunvme_ctrl_get_info(s->ctrl, &info);
    gpunvme_device_opts_init(&opts);
    opts.queues = info.max_io_queues < QUEUES ? info.max_io_queues : QUEUES;
    opts.entries = o->entries                   ? o->entries
                   : info.max_entries < ENTRIES ? info.max_entries
                                                : ENTRIES;
    opts.max_transfer = (uint32_t)(s->chunk < 4096 ? 4096 : s->chunk);
    opts.timeout_ms = ms > UINT32_MAX ? UINT32_MAX : ms ? (uint32_t)ms : 1;
    err = gpunvme_device_open(s->ctrl, &opts, &gpu->dev);
    if (err)
        return err;
    gpunvme_device_get_info(gpu->dev, &gpu->info);
    return gpunvme_device_ns(gpu->dev, s->ns, &gpu->ns);
}

gpunvme_err_t nvme_gpu_start(struct gpunvme_store *store)
{
    struct nvme_store *s = store->priv;
    struct nvme_gpu *gpu = calloc(1, sizeof(*gpu));
    gpunvme_err_t err;

    if (!gpu)
        return base_fail(GPUNVME_ERR_NOMEM, "I/O issued by the GPU");
    pthread_mutex_init(&gpu->lock, NULL);
    base_cond_init(&gpu->changed);
    s->gpu = gpu;
    err = open_device(store, gpu);
    return err ? err : crew_start(store, &crew_ops, store->threads, &s->crew);
}

static void leave_gpu(struct nvme_gpu *gpu)
{
    pthread_mutex_lock(&left_lock);
    gpu->next_left = all_left;
    all_left = gpu;
    pthread_mutex_unlock(&left_lock);
}

void nvme_gpu_stop(struct gpunvme_store *store)
{
    struct nvme_store *s = store->priv;

    if (!s->gpu)
        return;
    crew_stop(s->crew);
    s->crew = NULL;
    if (s->gpu->left) {
        device_leave_alone(s->gpu->dev);
        leave_gpu(s->gpu);
    } else {
        gpunvme_device_close(s->gpu->dev);
        pthread_cond_destroy(&s->gpu->changed);
        pthread_mutex_destroy(&s->gpu->lock);
        free(s->gpu);
    }
    s->gpu = NULL;
}

void nvme_gpu_choose(const struct store_options *o, uint32_t *threads, uint32_t *depth)
{
    *threads = o->threads ? o->threads : DEFAULT_WORKERS;
    *depth = o->depth ? o->depth : DEFAULT_DEPTH;
}

bool nvme_gpu_view(struct gpunvme_store *store, const struct gpunvme_buf *buf,
                   struct gpunvme_dev_buf *view)
{
    struct nvme_store *s = store->priv;

    return !gpunvme_device_buf(s->gpu->dev, buf, view);
}

/* A kernel that has not ended may still use views of transfers that have: they stay, till close. */
void nvme_gpu_drop_view(struct gpunvme_store *store, const struct gpunvme_dev_buf *view)
{
    struct nvme_store *s = store->priv;

    if (!atomic_load(&s->gpu->nstuck))
        gpunvme_device_buf_release(s->gpu->dev, view);
}

void nvme_gpu_say_how(const struct gpunvme_store *store, char *text, size_t room)
{
    const struct nvme_store *s = store->priv;
    const struct gpunvme_device_info *info = &s->gpu->info;

    snprintf(text, room,
             "own driver over %s, namespace %u, %u queues of %u entries in tier %d, batches of %u "
             "pieces of %zu KiB, commands issued by %s",
             gpunvme_ctrl_transport(s->ctrl)->ops->name, s->ns->nsid, info->queues, info->entries,
             (int)info->placement, s->depth, s->chunk >> 10,
             info->gpu >= 0 ? "a kernel" : "threads of the CPU in a kernel's place");
}
