/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Two published ways to let many GPU threads share NVMe queues, written plainly from their
 * descriptions, to measure the library's beside them on the same queues and controllers.
 *
 * Lockstep: one block owns one queue. In each turn every thread writes its entry, the block meets,
 * one thread rings for all; every thread polls one completion, the block meets, one thread rings.
 * With `batches` above 1 the block's threads form so many groups that take turns, so the queue is
 * not empty between turns. Source: xNVMe, "AiSIO: Accelerator-integrated Storage I/O",
 * device-initiated I/O.
 *
 * Ticket and lock: any thread may use any queue. A ticket from an atomic counter names an entry and
 * a turn; the thread waits until the entry's turn is its own, writes it and marks it; threads try a
 * lock until somebody has moved the tail over their mark. For completions a thread searches the
 * queue for its command's id, marks that entry, and tries the other lock until the head has moved
 * over it; who moves the head learns from the completions how far the controller has read the
 * submission queue, and gives those entries their next turn. Source: Qureshi et al.,
 * "GPU-Initiated On-Demand High-Throughput Storage Access in the BaM System Architecture", ASPLOS
 * 2023, section 3 (I/O queues).
 *
 * In favour of both: words are dense, entries are written by vector stores, scopes are no wider
 * than they must be, command ids cost nothing, and statuses are looked at as ours are.
 */
#ifndef BENCH_WAYS_CUH
#define BENCH_WAYS_CUH

#include <stdbool.h>
#include <string.h>

#include "gpu_job.h"

/* Positions count without end; an entry is the position modulo the size. */
struct way_queue {
    struct gpunvme_sqe *sq;
    const struct gpunvme_cqe *cq;
    volatile uint32_t *sq_doorbell, *cq_doorbell;
    uint32_t mask, shift;
    uint32_t *turns;    /* of each entry of the submission queue: whose lap it is */
    uint32_t *sq_marks; /* lap + 1 of an entry that is written and not yet rung for, else 0 */
    uint32_t *cq_marks; /* lap + 1 of the last completion there that was found */

    __attribute__((aligned(128))) uint64_t ticket;
    __attribute__((aligned(128))) uint32_t sq_lock;
    uint64_t sq_tail;
    __attribute__((aligned(128))) uint64_t sq_head;
    __attribute__((aligned(128))) uint32_t cq_lock;
    __attribute__((aligned(128))) uint64_t cq_head;
};

/*
 * On the CPU: one queue pair, which nobody has used since it was opened, so that its rings begin at
 * entry 0. `words` are 3 for each entry, zeroed, where the threads find them.
 */
static inline void way_init(struct way_queue *way, const struct gpunvme_dev_queue *queue,
                            uint32_t *words)
{
    uint32_t entries = queue->mask + 1;

    memset(way, 0, sizeof(*way));
    way->sq = queue->sq;
    way->cq = queue->cq;
    way->sq_doorbell = queue->sq_doorbell.mmio;
    way->cq_doorbell = queue->cq_doorbell.mmio;
    way->mask = queue->mask;
    way->shift = queue->shift;
    way->turns = words;
    way->sq_marks = words + entries;
    way->cq_marks = words + 2 * entries;
}

/* --- both ------------------------------------------------------------------------------------- */

/*
 * A word that only the GPU's threads share, looked at and set without any order on the GPU; on the
 * CPU with one, so that a thread sanitizer sees it. Fences are written where they are needed.
 */
static __device__ __forceinline__ uint32_t way_load(const uint32_t *p)
{
#if defined(__CUDA_ARCH__)
    return gpunvme_load_relaxed32(p);
#else
    return gpunvme_load_acquire32(p);
#endif
}

static __device__ __forceinline__ void way_store(uint32_t *p, uint32_t v)
{
#if defined(__CUDA_ARCH__)
    *(volatile uint32_t *)p = v;
#else
    gpunvme_store_release32(p, v);
#endif
}

/* Orders all that this thread did before with what it does after it, for the threads of the GPU. */
static __device__ __forceinline__ void way_fence(void)
{
#if defined(__CUDA_ARCH__)
    __threadfence();
#endif
}

/* A wait that looks at the clock now and then. */
struct way_wait {
    uint64_t deadline;
    uint32_t turn;
};

/* One turn of waiting. False: the time is up, or somebody else's was. */
static __device__ __forceinline__ bool way_wait(struct way_wait *w, struct job_outcome *outcome)
{
    if (++w->turn % 1024)
        return true;
    if (gpunvme_load_relaxed32(&outcome->stop))
        return false;
    if (!w->deadline)
        w->deadline = gpunvme_clock_ns() + JOB_TIMEOUT_NS;
    if (gpunvme_clock_ns() < w->deadline)
        return true;
    gpunvme_store_release32(&outcome->stop, 1);
    return false;
}

/* Writes an entry so that it is there before a doorbell that is rung behind a barrier. */
static __device__ __forceinline__ void way_write(struct way_queue *q, uint64_t pos, uint32_t cid,
                                                 struct gpunvme_sqe *sqe)
{
    sqe->cid = (uint16_t)cid;
    gpunvme_store_64_bytes(&q->sq[pos & q->mask], sqe);
}

/* Whether the completion at a position is there; its last dword. Orders nothing. */
static __device__ __forceinline__ bool way_is_new(const struct way_queue *q, uint64_t pos,
                                                  uint32_t *dw3)
{
    *dw3 = way_load((const uint32_t *)&q->cq[pos & q->mask] + 3);
    return (*dw3 >> 16 & 1) != (pos >> q->shift & 1);
}

/* --- ticket and lock -------------------------------------------------------------------------- */

/* The lock is held: moves the tail over what is marked, as far as the controller has made room. */
static __device__ __forceinline__ void ticket_move_tail(struct way_queue *q)
{
    uint64_t tail = gpunvme_load_relaxed64(&q->sq_tail);
    uint64_t limit = gpunvme_load_acquire64_gpu(&q->sq_head) + q->mask, first = tail;

    while (tail < limit) {
        uint32_t *mark = &q->sq_marks[tail & q->mask];

        if (way_load(mark) != (uint32_t)(tail >> q->shift) + 1)
            break;
        way_store(mark, 0);
        tail++;
    }
    if (tail == first)
        return;
    /* Its fence makes an acquire of the marks that were seen, and orders the entries before it. */
    gpunvme_mmio_write32(q->sq_doorbell, (uint32_t)tail & q->mask);
    gpunvme_store_relaxed64(&q->sq_tail, tail);
}

/* Submits a command; returns when the doorbell has been rung for it. False: given up. */
static __device__ bool ticket_submit(struct way_queue *q, uint32_t cid, struct gpunvme_sqe *sqe,
                                     struct job_outcome *outcome)
{
    uint64_t ticket = atomicAdd((unsigned long long *)&q->ticket, 1ull);
    uint32_t entry = (uint32_t)ticket & q->mask, lap = (uint32_t)(ticket >> q->shift);
    struct way_wait wait = {0, 0};

    while (way_load(&q->turns[entry]) != lap) {
        if (!way_wait(&wait, outcome))
            return false;
        gpunvme_relax();
    }
    way_fence(); /* whoever gave the turn knew that the entry had been read */
    way_write(q, ticket, cid, sqe);
    gpunvme_store_release32_gpu(&q->sq_marks[entry], lap + 1);
    while (way_load(&q->sq_marks[entry]) == lap + 1) {
        if (!gpunvme_exchange32_gpu(&q->sq_lock, 1)) {
            ticket_move_tail(q);
            gpunvme_store_release32_gpu(&q->sq_lock, 0);
        } else {
            gpunvme_relax();
        }
        if (!way_wait(&wait, outcome))
            return false;
    }
    return true;
}

/*
 * The lock is held: moves the head over what was found, and gives the entries of the submission
 * queue that the controller has read since to whoever has their next turn.
 */
static __device__ __forceinline__ void ticket_move_head(struct way_queue *q)
{
    uint64_t head = gpunvme_load_relaxed64(&q->cq_head), first = head;
    uint64_t sq_head = gpunvme_load_relaxed64(&q->sq_head), sq_new = sq_head;
    uint32_t last = 0;

    while (head - first <= q->mask) {
        uint32_t *mark = &q->cq_marks[head & q->mask];

        if (way_load(mark) != (uint32_t)(head >> q->shift) + 1)
            break;
        last = way_load((const uint32_t *)&q->cq[head & q->mask] + 2);
        head++;
    }
    if (head == first)
        return;
    sq_new += (last - (uint32_t)sq_head) & q->mask; /* SQHD, the low half of that dword */
    way_fence(); /* what was seen by the marks comes before what others do with the room */
    gpunvme_mmio_write32_fenced(q->cq_doorbell, (uint32_t)head & q->mask);
    gpunvme_store64_relaxed_gpu(&q->cq_head, head);
    gpunvme_store64_relaxed_gpu(&q->sq_head, sq_new);
    for (; sq_head < sq_new; sq_head++)
        way_store(&q->turns[sq_head & q->mask], (uint32_t)(sq_head >> q->shift) + 1);
}

/* Waits for the completion of a command; returns when the head has moved over it. */
static __device__ bool ticket_complete(struct way_queue *q, uint32_t cid, uint32_t *status,
                                       struct job_outcome *outcome)
{
    struct way_wait wait = {0, 0};
    uint64_t head = gpunvme_load_acquire64_gpu(&q->cq_head), pos = head;
    uint32_t dw3;

    for (;;) {
        if (!way_is_new(q, pos, &dw3)) {
            if (!way_wait(&wait, outcome))
                return false;
            gpunvme_relax();
            pos = gpunvme_load_acquire64_gpu(&q->cq_head);
        } else if ((dw3 & 0xffff) == cid) {
            break;
        } else {
            pos++;
        }
    }
    gpunvme_fence_sys(); /* the data that came before the completion is there */
    *status = dw3 >> 17;
    /* The search may have begun laps ago; but the head cannot have passed what is not marked. */
    head = gpunvme_load_acquire64_gpu(&q->cq_head);
    pos = head + ((pos - head) & q->mask);
    gpunvme_store_release32_gpu(&q->cq_marks[pos & q->mask], (uint32_t)(pos >> q->shift) + 1);
    while (gpunvme_load_relaxed64(&q->cq_head) <= pos) {
        if (!gpunvme_exchange32_gpu(&q->cq_lock, 1)) {
            ticket_move_head(q);
            gpunvme_store_release32_gpu(&q->cq_lock, 0);
        } else {
            gpunvme_relax();
        }
        if (!way_wait(&wait, outcome))
            return false;
    }
    return true;
}

/* --- lockstep --------------------------------------------------------------------------------- */

/* A block's counts of its queue: the same in all its threads. */
struct lockstep {
    struct way_queue *q;
    uint64_t head, tail;
    uint32_t batch; /* threads that take a turn */
    uint32_t group, lane;
    uint32_t submitted; /* by this thread */
};

/* By all threads of the block; the queue goes on where lockstep_end() left it. */
static __device__ __forceinline__ void lockstep_begin(struct lockstep *l, struct way_queue *q,
                                                      uint32_t batches)
{
    l->q = q;
    l->head = q->cq_head;
    l->tail = q->sq_tail;
    l->batch = blockDim.x / batches;
    l->group = threadIdx.x / l->batch;
    l->lane = threadIdx.x % l->batch;
    l->submitted = 0;
    __syncthreads();
}

static __device__ __forceinline__ void lockstep_end(struct lockstep *l)
{
    __syncthreads();
    if (!threadIdx.x) {
        l->q->cq_head = l->head;
        l->q->sq_tail = l->tail;
    }
}

/* The group whose turn it is submits a command each; all threads take the barrier. */
static __device__ __forceinline__ void lockstep_submit(struct lockstep *l, uint32_t turn,
                                                       struct gpunvme_sqe *sqe)
{
    /* With several groups a command may end long after its thread has gone on: ids count on. */
    if (l->group == turn)
        way_write(l->q, l->tail + l->lane, (threadIdx.x + l->submitted++ * blockDim.x) & 0x7fff,
                  sqe);
    __syncthreads();
    l->tail += l->batch;
    if (!threadIdx.x)
        gpunvme_mmio_write32(l->q->sq_doorbell, (uint32_t)l->tail & l->q->mask);
}

/* One thread's part of a turn: polls for the completion at its own place behind the head. */
static __device__ __forceinline__ bool lockstep_poll(struct way_queue *q, uint64_t pos,
                                                     uint32_t *status, struct job_outcome *outcome)
{
    struct way_wait wait = {0, 0};
    uint32_t dw3;

    while (!way_is_new(q, pos, &dw3)) {
        if (!way_wait(&wait, outcome))
            return false;
    }
    gpunvme_fence_sys(); /* the data that came before the completion is there */
    *status = dw3 >> 17;
    return true;
}

/*
 * The group takes as many completions as it has threads, whosever they are. False in all threads:
 * one waited in vain.
 */
static __device__ __forceinline__ bool lockstep_reap(struct lockstep *l, uint32_t turn,
                                                     uint32_t *status, struct job_outcome *outcome)
{
    bool there = true;

    if (l->group == turn)
        there = lockstep_poll(l->q, l->head + l->lane, status, outcome);
    there = __syncthreads_and(there);
    l->head += l->batch;
    if (!threadIdx.x)
        gpunvme_mmio_write32_fenced(l->q->cq_doorbell, (uint32_t)l->head & l->q->mask);
    return there;
}

#endif
