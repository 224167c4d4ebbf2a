/* SPDX-License-Identifier: BSD-3-Clause
 *
 * I/O issued by the threads of a kernel: reads, writes and flushes of a namespace, from the handles
 * that device.h gives. Header-only; CUDA, and C or C++ on the CPU, where a thread is a warp of one
 * lane, and a block of one thread. Knows nothing of how queues are made.
 *
 *     __global__ void kernel(struct gpunvme_dev_ns ns, struct gpunvme_dev_buf buf)
 *     {
 *         int err = gpunvme_dev_read(&ns, slba, 1, &buf, 0, 0);
 *
 * Three ways to call, which may be mixed in one kernel and on one queue:
 *
 *   by itself     gpunvme_dev_read, _write, _flush, _readv, _read_bytes, …: each thread for itself,
 *                 from any branch. Lanes of a warp that call together share one reservation and one
 *                 doorbell.
 *   split phase   gpunvme_dev_submit_read, …, then gpunvme_dev_test or _wait with the token.
 *   together      gpunvme_dev_warp_… and gpunvme_dev_block_…: all threads of the warp, or block,
 *                 call with the same arguments, the work is shared out, and all get the same
 *                 result. What they wrote before is written; what was read all see.
 *
 * Results are GPUNVME_OK or an error, the same as on the CPU, but without a detail:
 *
 *   GPUNVME_ERR_NVME(status)  the status that the controller gave, all 15 bits
 *   RANGE                     beyond the end of the namespace
 *   INVALID                   beyond the end of the buffer; submit: no buffer, no blocks, or more
 *                             than one command takes
 *   ALIGN                     the bytes do not begin at a dword; an end that is not a whole block
 *                             where the queues have no bounce blocks
 *   READONLY                  a write to a namespace that is write protected
 *   LIMIT                     the queue's PRP lists are too short for the command
 *   AGAIN                     submit: the queue is full. test: in flight
 *   STALE                     the token has ended already, or nothing was submitted for it
 *   ABORTED, CLOSED           a reset ended the command; the queue is closed for one
 *   TIMEOUT                   no completion within the deadline, or no room in the queue
 *
 * Deadlines are of each command (a transfer may be many), from when it was first looked at: one for
 * room in the queue, and once there was room another one for the command. 0 is the namespace's own,
 * UINT64_MAX none. They end a wait up to some milliseconds late, because the clock is read at each
 * 32nd turn. Lanes that call together return together, but what is late is given up at once.
 * After a TIMEOUT of a command the host has been asked to look (`alarm`), and the buffer must be
 * left alone: the controller may still use it until gpunvme_device_recover(). A TIMEOUT for want of
 * room asks nobody.
 *
 * Offsets `off` into the buffer are in bytes. The buffer must not be changed while a command writes
 * from it, and not be looked at while one reads into it.
 *
 * Source: NVM Command Set 1.0c, sections 3.2.4 and 3.2.6; Base 1.4, section 4.3 (PRP).
 */
#ifndef GPUNVME_DEVICE_CUH
#define GPUNVME_DEVICE_CUH

#include "gpunvme/device.h"
#include "gpunvme/io.h" /* GPUNVME_IO_FUA */

#if !defined(__CUDA_ARCH__)
#include <sched.h>
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef uint64_t __attribute__((may_alias)) gpunvme_dev_u64;

/* What makes a structure all zeroes in both languages without a warning. */
#ifdef __cplusplus
#define GPUNVME_DEV_ZEROES                                                                         \
    {                                                                                              \
    }
#else
#define GPUNVME_DEV_ZEROES                                                                         \
    {                                                                                              \
        0                                                                                          \
    }
#endif

/* One command in flight, of the thread that submitted it. */
struct gpunvme_dev_token {
    struct gpunvme_dev_queue *queue;
    uint64_t ticket;
};

/* One element of a vector: `nlb` blocks from `slba` on, to or from byte `off` of the buffer. */
struct gpunvme_dev_vec {
    uint64_t slba;
    uint64_t off;
    uint32_t nlb;
};

/* --- which queue ------------------------------------------------------------------------------ */

/* The number of this warp in its grid. On the CPU each thread gets a number when it first asks. */
GPUNVME_FN uint32_t gpunvme_dev_warp_index(void)
{
#if defined(__CUDA_ARCH__)
    uint32_t block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    uint32_t thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    uint32_t warps =
        (blockDim.x * blockDim.y * blockDim.z + GPUNVME_WARP_LANES - 1) / GPUNVME_WARP_LANES;

    return block * warps + thread / GPUNVME_WARP_LANES;
#else
    static uint32_t threads;
    static __thread uint32_t mine;

    if (!mine)
        mine = __atomic_add_fetch(&threads, 1, __ATOMIC_RELAXED);
    return mine - 1;
#endif
}

/*
 * Where this thread begins to look for a slot: warps that share a queue begin beside each other.
 * Where the caller chose the queue itself, it may have done so by bits of the warp's number: the
 * higher ones are added, so that warps whose numbers are some power of two apart do not all hope
 * for the same slots.
 */
GPUNVME_FN uint32_t gpunvme_dev_hint(const struct gpunvme_dev_ns *ns)
{
    uint32_t warp = gpunvme_dev_warp_index(), n = ns->nqueues;

    if (!(n & (n - 1)))
        warp >>= gpunvme_popcount(n - 1);
    warp += (warp >> 5) + (warp >> 10);
    return warp * GPUNVME_WARP_LANES + gpunvme_warp_lane();
}

/*
 * The queue of this warp. Warps that follow each other get queues that follow each other where the
 * number of queues is a power of two; else they are scattered, which spares a division.
 */
GPUNVME_FN struct gpunvme_dev_queue *gpunvme_dev_queue_of_warp(const struct gpunvme_dev_ns *ns)
{
    uint32_t warp = gpunvme_dev_warp_index(), n = ns->nqueues;

    if (!(n & (n - 1)))
        return &ns->queues[warp & (n - 1)];
    return &ns->queues[(uint64_t)(warp * UINT32_C(0x9e3779b9)) * n >> 32];
}

/* The same namespace by one queue of the caller's choice, below ns->nqueues. */
GPUNVME_FN struct gpunvme_dev_ns gpunvme_dev_on_queue(const struct gpunvme_dev_ns *ns,
                                                      uint32_t index)
{
    struct gpunvme_dev_ns one = *ns;

    one.queues += index;
    one.nqueues = 1;
    return one;
}

/* The lanes that are here, use the same queue, and are of the same kind: 0 or 1. */
GPUNVME_FN uint32_t gpunvme_dev_companions_of_kind(const struct gpunvme_dev_queue *q, int kind)
{
    return gpunvme_warp_match64(gpunvme_warp_active(), (uint64_t)(uintptr_t)q + (kind != 0));
}

GPUNVME_FN uint32_t gpunvme_dev_companions(const struct gpunvme_dev_queue *q)
{
    return gpunvme_dev_companions_of_kind(q, 0);
}

/* --- private: one command --------------------------------------------------------------------- */

/* An operation is its opcode, and for a write GPUNVME_RW_FUA. */
GPUNVME_FN uint32_t gpunvme_dev_write_op(unsigned flags)
{
    return GPUNVME_CMD_WRITE | (flags & GPUNVME_IO_FUA ? GPUNVME_RW_FUA : 0);
}

GPUNVME_FN int gpunvme_dev_op_is_write(uint32_t op)
{
    return (op & 0xff) == GPUNVME_CMD_WRITE;
}

/* Pieces on the bus are described by PRPs only where they are whole pages (prp.h). */
GPUNVME_FN int gpunvme_dev_has_whole_pages(const struct gpunvme_dev_ns *ns,
                                           const struct gpunvme_dev_buf *buf)
{
    return !buf->bus_pages || (buf->bus_page_shift >= ns->page_shift &&
                               !(buf->bus & ((UINT64_C(1) << ns->page_shift) - 1)));
}

/* What is wrong with a transfer of any length, but 0. */
GPUNVME_FN int gpunvme_dev_check(const struct gpunvme_dev_ns *ns, uint32_t op, uint64_t slba,
                                 uint64_t nlb, const struct gpunvme_dev_buf *buf, uint64_t off)
{
    if (slba >= ns->nblocks || nlb > ns->nblocks - slba)
        return GPUNVME_ERR_RANGE;
    if (off > buf->nbytes || nlb << ns->block_shift > buf->nbytes - off)
        return GPUNVME_ERR_INVALID;
    if ((buf->bus + off) & 3)
        return GPUNVME_ERR_ALIGN;
    if (!gpunvme_dev_has_whole_pages(ns, buf))
        return GPUNVME_ERR_ALIGN;
    if (gpunvme_dev_op_is_write(op) && ns->readonly)
        return GPUNVME_ERR_READONLY;
    return GPUNVME_OK;
}

/*
 * Blocks from slba to the next boundary. A boundary that is not a power of two is NOIOB's, which
 * has 16 bits: so 32-bit remainders do.
 */
GPUNVME_FN uint32_t gpunvme_dev_to_boundary(uint64_t slba, uint32_t boundary)
{
    uint32_t high, rest;

    if (!(boundary & (boundary - 1)))
        return boundary - ((uint32_t)slba & (boundary - 1));
    high = (uint32_t)(slba >> 32) % boundary;
    rest = high * ((0u - boundary) % boundary) % boundary; /* 2^32 modulo boundary */
    return boundary - (rest + (uint32_t)slba % boundary) % boundary;
}

/* How many of `left` blocks one command from slba on can take. */
GPUNVME_FN uint32_t gpunvme_dev_cut(const struct gpunvme_dev_ns *ns, uint64_t slba, uint64_t left)
{
    uint32_t n = left < ns->max_blocks ? (uint32_t)left : ns->max_blocks;

    if (left == 1) /* where the caller says 1, nothing is computed */
        return 1;
    if (ns->boundary_blocks) {
        uint32_t most = gpunvme_dev_to_boundary(slba, ns->boundary_blocks);

        n = n < most ? n : most;
    }
    return n;
}

GPUNVME_FN uint64_t gpunvme_dev_bus(const struct gpunvme_dev_buf *buf, uint64_t off)
{
    if (!buf->bus_pages)
        return buf->bus + off;
    return buf->bus_pages[off >> buf->bus_page_shift] +
           (off & ((UINT64_C(1) << buf->bus_page_shift) - 1));
}

/*
 * Keeps the compiler from computing what follows from a value ahead of a loop that seldom turns:
 * it is computed where it is needed, and takes no registers meanwhile.
 */
GPUNVME_FN void gpunvme_dev_compiler_barrier(uint64_t *value)
{
#if defined(__CUDA_ARCH__)
    asm volatile("" : "+l"(*value));
#else
    (void)value;
#endif
}

GPUNVME_FN void gpunvme_dev_compiler_barrier32(uint32_t *value)
{
#if defined(__CUDA_ARCH__)
    asm volatile("" : "+r"(*value));
#else
    (void)value;
#endif
}

/* Entries of the PRP list of a transfer; 0: PRP1 and PRP2 do. */
GPUNVME_FN uint32_t gpunvme_dev_list_entries(const struct gpunvme_dev_ns *ns, uint64_t bus,
                                             uint32_t nbytes)
{
    uint32_t shift = ns->page_shift, entries;

    gpunvme_dev_compiler_barrier32(&shift);
    entries = (((uint32_t)bus & ((UINT32_C(1) << shift) - 1)) + nbytes - 1) >> shift;
    return entries > 1 ? entries : 0;
}

/* Where the data is: PRP1 and PRP2, or PRP1 and the list of the ticket's slot. */
GPUNVME_FN void gpunvme_dev_point(const struct gpunvme_dev_ns *ns, struct gpunvme_dev_queue *q,
                                  uint64_t ticket, const struct gpunvme_dev_buf *buf, uint64_t off,
                                  uint32_t nbytes, struct gpunvme_sqe *cmd)
{
    uint64_t bus = gpunvme_dev_bus(buf, off);
    uint32_t shift = ns->page_shift, page, in_first, entries;

    gpunvme_dev_compiler_barrier32(&shift);
    page = UINT32_C(1) << shift;
    in_first = page - ((uint32_t)bus & (page - 1));
    cmd->prp1 = bus;
    if (nbytes <= in_first)
        return;
    off += in_first;
    entries = gpunvme_dev_list_entries(ns, bus, nbytes);
    if (!entries) {
        cmd->prp2 = gpunvme_dev_bus(buf, off);
    } else {
        uint64_t at = (ticket & q->mask) * q->list_nbytes;
        uint64_t *list = q->lists + at / 8;

        cmd->prp2 = q->lists_bus + at;
#if defined(__CUDA_ARCH__)
#pragma unroll 1 /* registers are dearer than turns of this loop */
#endif
        for (uint32_t i = 0; i < entries; i++, off += page)
            list[i] = gpunvme_dev_bus(buf, off);
    }
}

/*
 * Submits a command for each lane of the mask, as far as there is room: GPUNVME_OK with *ticket,
 * AGAIN or an error, for each lane by itself. Without a buffer the data goes to the bounce block
 * of the slot. Never waits.
 */
GPUNVME_FN int gpunvme_dev_send(const struct gpunvme_dev_ns *ns, struct gpunvme_dev_queue *q,
                                uint32_t mask, struct gpunvme_dev_want want, uint32_t op,
                                uint64_t slba, uint32_t nlb, const struct gpunvme_dev_buf *buf,
                                uint64_t off, uint64_t *ticket)
{
    struct gpunvme_dev_place place = GPUNVME_DEV_ZEROES;
    struct gpunvme_dev_queue copy;
    uint32_t in;
    int err;

    in = gpunvme_dev_queue_reserve(q, mask, gpunvme_dev_hint(ns), want, &place, &err);
    /* From here to submit nothing waits: others' commands stand behind these. */
    if (in >> gpunvme_warp_lane() & 1) {
        struct gpunvme_sqe cmd = GPUNVME_DEV_ZEROES;

        cmd.opc = (uint8_t)op;
        cmd.nsid = ns->nsid;
        if ((op & 0xff) != GPUNVME_CMD_FLUSH) {
            cmd.cdw10 = (uint32_t)slba;
            cmd.cdw11 = (uint32_t)(slba >> 32);
            cmd.cdw12 = (nlb - 1) | (op & GPUNVME_RW_FUA);
            if (buf)
                gpunvme_dev_point(ns, q, place.ticket, buf, off, nlb << ns->block_shift, &cmd);
            else
                cmd.prp1 = q->bounces_bus + (place.ticket & q->mask) * q->bounce_nbytes;
        }
        gpunvme_dev_queue_submit(gpunvme_dev_queue_copy_constants(q, &copy), in, &place, &cmd);
        *ticket = place.ticket;
    }
    return err;
}

/* Whether the slot's list has room for the command: asked before a slot is taken. */
GPUNVME_FN int gpunvme_dev_list_fits(const struct gpunvme_dev_ns *ns,
                                     const struct gpunvme_dev_queue *q, uint32_t nlb,
                                     const struct gpunvme_dev_buf *buf, uint64_t off)
{
    /* In a buffer of pieces the place in a page is the same in both address spaces. */
    uint32_t entries = gpunvme_dev_list_entries(ns, buf->bus + off, nlb << ns->block_shift);

    return !entries || (q->lists && entries <= q->list_nbytes / 8);
}

/* The error that a status is. A reset ends commands with HOST_ABORTED (gpunvme_qpair_fail()). */
GPUNVME_FN int gpunvme_dev_result(uint16_t status)
{
    if (!status)
        return GPUNVME_OK;
    return GPUNVME_STATUS_CODE(status) == GPUNVME_SC_HOST_ABORTED ? (int)GPUNVME_ERR_ABORTED
                                                                  : GPUNVME_ERR_NVME(status);
}

/* Whether a command ended with this result by a completion: then its ticket can be ended. */
GPUNVME_FN int gpunvme_dev_is_completion(int err)
{
    return !err || err == GPUNVME_ERR_ABORTED || err <= GPUNVME_ERR_NVME(0);
}

/* --- private: waiting ------------------------------------------------------------------------- */

struct gpunvme_dev_spin {
    uint64_t deadline; /* of this lane's command; 0: the clock has not been read yet */
    uint32_t turn;
};

GPUNVME_FN void gpunvme_dev_spin_init(struct gpunvme_dev_spin *s)
{
    s->deadline = 0;
    s->turn = 0;
}

/*
 * Does what there is to do between two looks. Returns whether this lane's deadline is over.
 */
GPUNVME_FN int gpunvme_dev_turn(struct gpunvme_dev_spin *s, const struct gpunvme_dev_ns *ns,
                                struct gpunvme_dev_queue *q, uint32_t mask, uint64_t timeout_ns)
{
    uint64_t now;

    if (q->reaper != GPUNVME_REAPER_WAITERS || !gpunvme_dev_queue_reap(q, mask, GPUNVME_DEV_LOOKS))
        gpunvme_relax();
    if (++s->turn % 32)
        return 0;
    if (gpunvme_warp_lane() == gpunvme_warp_leader(mask))
        gpunvme_dev_queue_help(q);
#if !defined(__CUDA_ARCH__)
    sched_yield(); /* there may be more threads than processors, the controller's among them */
#endif
    now = gpunvme_clock_ns();
    if (s->deadline)
        return now >= s->deadline;
    s->deadline = now + (timeout_ns ? timeout_ns : ns->timeout_ns);
    if (s->deadline < now) /* UINT64_MAX is for ever */
        s->deadline = UINT64_MAX;
    return 0;
}

GPUNVME_FN void gpunvme_dev_raise_alarm(const struct gpunvme_dev_ns *ns)
{
    if (ns->alarm)
        gpunvme_store_release32(ns->alarm, 1);
}

/*
 * One lane's command is late, in flight or without room for it: TIMEOUT; or AGAIN where it is done
 * in this very moment, as the next look finds.
 */
GPUNVME_FN int gpunvme_dev_give_up(const struct gpunvme_dev_ns *ns, struct gpunvme_dev_queue *q,
                                   int sent, uint64_t ticket)
{
    if (!sent) /* nobody's fault but of those who keep their tokens */
        return GPUNVME_ERR_TIMEOUT;
    if (gpunvme_dev_queue_abandon(q, ticket) == GPUNVME_ERR_STALE)
        return GPUNVME_ERR_AGAIN;
    gpunvme_dev_raise_alarm(ns);
    return GPUNVME_ERR_TIMEOUT;
}

/*
 * The result of one lane's command, whose ticket has then ended, unless it is kept; AGAIN while it
 * is in flight.
 */
GPUNVME_FN int gpunvme_dev_finish(struct gpunvme_dev_queue *q, uint64_t ticket, int keep)
{
    struct gpunvme_dev_queue copy;
    uint16_t status;
    int err;

    q = gpunvme_dev_queue_copy_constants(q, &copy);
    err = keep ? gpunvme_dev_queue_peek(q, ticket, &status)
               : gpunvme_dev_queue_test(q, ticket, &status);
    return err ? err : gpunvme_dev_result(status);
}

/* A lane: has nothing (more) to do, wants to submit, has a command in flight. */
enum gpunvme_dev_state { GPUNVME_DEV_IDLE, GPUNVME_DEV_READY, GPUNVME_DEV_IN_FLIGHT };

/*
 * One turn of the lanes of a mask, which wait together: takes completions, then gives the result of
 * this lane's command, or AGAIN. A lane whose deadline is over gives up, in flight or without room;
 * one that is idle is never late, and raises no alarm.
 */
GPUNVME_FN int gpunvme_dev_await(const struct gpunvme_dev_ns *ns, struct gpunvme_dev_queue *q,
                                 uint32_t mask, enum gpunvme_dev_state state, uint64_t ticket,
                                 int keep, struct gpunvme_dev_spin *spin, uint64_t timeout_ns)
{
    int late = gpunvme_dev_turn(spin, ns, q, mask, timeout_ns), err = GPUNVME_ERR_AGAIN;

    if (state == GPUNVME_DEV_IN_FLIGHT)
        err = gpunvme_dev_finish(q, ticket, keep);
    /* At once: the alarm is what ends the others' waits, whatever their deadlines are. */
    if (late && state != GPUNVME_DEV_IDLE && err == GPUNVME_ERR_AGAIN)
        err = gpunvme_dev_give_up(ns, q, state == GPUNVME_DEV_IN_FLIGHT, ticket);
    return err;
}

/* --- private: transfers ----------------------------------------------------------------------- */

/* Bytes of a block that is read into the bounce block of its ticket. */
struct gpunvme_dev_part {
    uint8_t *to;         /* where they are copied; NULL: they stay there, and the ticket open */
    uint32_t in, nbytes; /* from byte `in` of the block on */
    uint64_t ticket;     /* that stays open, if all went well */
};

/*
 * What one lane has to do: pieces, one after the other, each as many commands as it takes. The
 * pieces are every `stride`th element of a vector, or `piece` blocks at each `stride` of a range.
 */
struct gpunvme_dev_job {
    uint64_t slba, off, left; /* of the piece at hand: what has not been done */
    uint64_t at, n, stride;   /* what comes after it: from `at` on, below n */
    const struct gpunvme_dev_vec *vec;
    uint64_t range_slba, range_off; /* without a vector */
    struct gpunvme_dev_part *part;  /* one block, without a buffer; else NULL */
    uint32_t piece;
    uint32_t is_single; /* one command is all: see run() */
    uint32_t together;  /* an error of one lane ends the work of all */
};

/* Goes on to the next piece, if nothing is left of this one. Returns whether there is one. */
GPUNVME_FN int gpunvme_dev_job_next(const struct gpunvme_dev_ns *ns, struct gpunvme_dev_job *job)
{
    while (!job->left && job->at < job->n) {
        if (job->vec) {
            job->slba = job->vec[job->at].slba;
            job->off = job->vec[job->at].off;
            job->left = job->vec[job->at].nlb;
        } else {
            job->slba = job->range_slba + job->at;
            job->off = job->range_off + (job->at << ns->block_shift);
            job->left = job->n - job->at < job->piece ? job->n - job->at : job->piece;
        }
        job->at += job->stride;
    }
    return job->left != 0;
}

/* What the lanes want at their `tries`th try for room: see GPUNVME_DEV_GROUP. */
GPUNVME_FN struct gpunvme_dev_want gpunvme_dev_wants(const struct gpunvme_dev_job *job,
                                                     uint32_t tries)
{
    uint32_t halved = tries / GPUNVME_DEV_GROUP_TRIES;
    struct gpunvme_dev_want want = {halved < 31 ? GPUNVME_DEV_GROUP >> halved : 0, tries != 0};

    want.least += !want.least;
    return job->is_single ? want : gpunvme_dev_want_any();
}

/* What is wrong with the next command, before it is submitted. */
GPUNVME_FN int gpunvme_dev_job_check(const struct gpunvme_dev_ns *ns, struct gpunvme_dev_queue *q,
                                     uint32_t op, const struct gpunvme_dev_job *job,
                                     const struct gpunvme_dev_buf *buf)
{
    int err = GPUNVME_OK;

    if (job->vec)
        err = gpunvme_dev_check(ns, op, job->slba, job->left, buf, job->off);
    if (!err && buf &&
        !gpunvme_dev_list_fits(ns, q, gpunvme_dev_cut(ns, job->slba, job->left), buf, job->off))
        err = GPUNVME_ERR_LIMIT;
    return err;
}

/* Submits the next command of each lane in the mask. */
GPUNVME_FN int gpunvme_dev_job_send(const struct gpunvme_dev_ns *ns, struct gpunvme_dev_queue *q,
                                    uint32_t mask, uint32_t op, struct gpunvme_dev_job *job,
                                    const struct gpunvme_dev_buf *buf, uint32_t tries,
                                    uint64_t *ticket)
{
    gpunvme_dev_compiler_barrier(&job->slba);
    gpunvme_dev_compiler_barrier(&job->off);
    return gpunvme_dev_send(ns, q, mask, gpunvme_dev_wants(job, tries), op, job->slba,
                            gpunvme_dev_cut(ns, job->slba, job->left), buf, job->off, ticket);
}

/* A command is done: what is left. */
GPUNVME_FN int gpunvme_dev_job_advance(const struct gpunvme_dev_ns *ns, struct gpunvme_dev_job *job)
{
    uint32_t nlb;

    if (job->is_single) /* which leaves the job as it was when the code was built */
        return 0;
    nlb = gpunvme_dev_cut(ns, job->slba, job->left);
    job->left -= nlb;
    job->slba += nlb;
    job->off += (uint64_t)nlb << ns->block_shift;
    return gpunvme_dev_job_next(ns, job);
}

GPUNVME_FN void gpunvme_dev_copy(uint8_t *to, const uint8_t *from, uint32_t nbytes)
{
    if (!(((uintptr_t)to | (uintptr_t)from | nbytes) & 7)) {
        for (uint32_t i = 0; i < nbytes / 8; i++)
            ((gpunvme_dev_u64 *)to)[i] = ((const gpunvme_dev_u64 *)from)[i];
        return;
    }
    for (uint32_t i = 0; i < nbytes; i++)
        to[i] = from[i];
}

/* The bounce block of a ticket's slot, as a buffer. */
GPUNVME_FN struct gpunvme_dev_buf gpunvme_dev_bounce(const struct gpunvme_dev_queue *q,
                                                     uint64_t ticket)
{
    uint64_t at = (ticket & q->mask) * q->bounce_nbytes;
    struct gpunvme_dev_buf buf = GPUNVME_DEV_ZEROES;

    buf.data = q->bounces + at;
    buf.nbytes = q->bounce_nbytes;
    buf.bus = q->bounces_bus + at;
    return buf;
}

/* A block is in the bounce block of its ticket, or the command ended otherwise. */
GPUNVME_FN void gpunvme_dev_part_end(struct gpunvme_dev_queue *q, struct gpunvme_dev_part *part,
                                     uint64_t ticket, int err)
{
    part->ticket = ticket;
    if (!err && part->to)
        gpunvme_dev_copy(part->to, gpunvme_dev_bounce(q, ticket).data + part->in, part->nbytes);
    if (gpunvme_dev_is_completion(err) && (part->to || err))
        gpunvme_dev_queue_end_read(q, ticket);
}

/*
 * Lanes that found no room sleep, longer each time, so that those who wait are not in the way of
 * those who submit and reap.
 */
GPUNVME_FN void gpunvme_dev_sleep(const struct gpunvme_dev_queue *q, uint32_t tries)
{
    uint32_t nap = UINT32_C(32) << (tries < 10 ? tries : 10),
             most = GPUNVME_DEV_SLEEP_NS * (q->mask + 1);

    gpunvme_relax_for(nap < most ? nap : most);
}

/*
 * Does the jobs of all lanes of the mask, which call together; each gets its own result. A lane has
 * one command in flight. Lanes with many commands submit the next one as soon as that is done,
 * whatever the others do. Where one command is all (`is_single`, the same for all lanes), those
 * that find no room sleep, then try again together when the commands of the others are done: these
 * may have all slots.
 */
GPUNVME_FN int gpunvme_dev_run(const struct gpunvme_dev_ns *ns, struct gpunvme_dev_queue *q,
                               uint32_t mask, uint32_t op, struct gpunvme_dev_job *job,
                               const struct gpunvme_dev_buf *buf, uint64_t timeout_ns)
{
    enum gpunvme_dev_state state = GPUNVME_DEV_IDLE;
    struct gpunvme_dev_spin spin;
    uint64_t ticket = 0;
    uint32_t tries = 0;
    int err = GPUNVME_OK;

    gpunvme_dev_spin_init(&spin);
    if (gpunvme_dev_job_next(ns, job)) {
        err = gpunvme_dev_job_check(ns, q, op, job, buf);
        state = err ? GPUNVME_DEV_IDLE : GPUNVME_DEV_READY;
    }
    for (;;) {
        uint32_t ready;

        if (job->together && gpunvme_warp_ballot(mask, err && state == GPUNVME_DEV_IDLE) &&
            state == GPUNVME_DEV_READY)
            err = GPUNVME_OK, state = GPUNVME_DEV_IDLE;
        ready = gpunvme_warp_ballot(mask, state == GPUNVME_DEV_READY);
        if (!ready &&
            (job->is_single || !gpunvme_warp_ballot(mask, state == GPUNVME_DEV_IN_FLIGHT)))
            return err;
        if (state == GPUNVME_DEV_READY) {
            err = gpunvme_dev_job_send(ns, q, ready, op, job, buf, tries, &ticket);
            if (!err)
                spin.deadline = 0; /* it was for a slot */
            if (err == GPUNVME_ERR_CLOSED)
                spin.turn = 31; /* the next turn rings for others: see reserve() */
            state = !err                       ? GPUNVME_DEV_IN_FLIGHT
                    : err == GPUNVME_ERR_AGAIN ? GPUNVME_DEV_READY
                                               : GPUNVME_DEV_IDLE;
        }
        if (job->is_single) {
            if (gpunvme_warp_ballot(mask, state == GPUNVME_DEV_IN_FLIGHT))
                tries = 0; /* there is room */
            else
                gpunvme_dev_sleep(q, tries);
            tries++;
        }
        do {
            int end =
                gpunvme_dev_await(ns, q, mask, state, ticket, job->part != NULL, &spin, timeout_ns);

            if (state != GPUNVME_DEV_IDLE && end != GPUNVME_ERR_AGAIN) {
                if (job->part && state == GPUNVME_DEV_IN_FLIGHT)
                    gpunvme_dev_part_end(q, job->part, ticket, end);
                err = end;
                spin.deadline = 0;
                state = GPUNVME_DEV_IDLE;
                if (!err && gpunvme_dev_job_advance(ns, job)) {
                    err = gpunvme_dev_job_check(ns, q, op, job, buf);
                    state = err ? GPUNVME_DEV_IDLE : GPUNVME_DEV_READY;
                }
            }
        } while (job->is_single && gpunvme_warp_ballot(mask, state == GPUNVME_DEV_IN_FLIGHT));
    }
}

/* One command of one block, or a flush, of each lane that is here. */
GPUNVME_FN int gpunvme_dev_command(const struct gpunvme_dev_ns *ns, struct gpunvme_dev_queue *q,
                                   uint32_t op, uint64_t slba, const struct gpunvme_dev_buf *buf,
                                   uint64_t off, struct gpunvme_dev_part *part, uint64_t timeout_ns)
{
    struct gpunvme_dev_job job = GPUNVME_DEV_ZEROES;

    job.slba = slba;
    job.off = off;
    job.left = 1;
    job.part = part;
    job.is_single = 1;
    return gpunvme_dev_run(ns, q, gpunvme_dev_companions_of_kind(q, 1), op, &job, buf, timeout_ns);
}

/* One thread's transfer of any length. */
GPUNVME_FN int gpunvme_dev_transfer(const struct gpunvme_dev_ns *ns, uint32_t op, uint64_t slba,
                                    uint64_t nlb, const struct gpunvme_dev_buf *buf, uint64_t off,
                                    uint64_t timeout_ns)
{
    struct gpunvme_dev_queue *q = gpunvme_dev_queue_of_warp(ns);
    struct gpunvme_dev_job job = GPUNVME_DEV_ZEROES;
    int err = gpunvme_dev_check(ns, op, slba, nlb, buf, off);

    if (!nlb)
        return GPUNVME_OK;
    if (err)
        return err;
    /* Without the loop over commands; where the caller says 1, with nothing else. */
    if (nlb == 1)
        return gpunvme_dev_command(ns, q, op, slba, buf, off, NULL, timeout_ns);
    job.slba = slba;
    job.off = off;
    job.left = nlb;
    return gpunvme_dev_run(ns, q, gpunvme_dev_companions(q), op, &job, buf, timeout_ns);
}

/* --- private: ends that are not whole blocks -------------------------------------------------- */

/* Reads nbytes from byte `in` of a block on. */
GPUNVME_FN int gpunvme_dev_read_part(const struct gpunvme_dev_ns *ns, struct gpunvme_dev_queue *q,
                                     uint64_t slba, uint32_t in, uint32_t nbytes, uint8_t *to,
                                     uint64_t timeout_ns)
{
    struct gpunvme_dev_part part = {to, in, nbytes, 0};

    return gpunvme_dev_command(ns, q, GPUNVME_CMD_READ, slba, NULL, 0, &part, timeout_ns);
}

/* Changes nbytes of a block: reads it, and writes it from where it was read to. */
GPUNVME_FN int gpunvme_dev_change_block(const struct gpunvme_dev_ns *ns,
                                        struct gpunvme_dev_queue *q, uint32_t op, uint64_t slba,
                                        uint32_t in, uint32_t nbytes, const uint8_t *from,
                                        uint64_t timeout_ns)
{
    struct gpunvme_dev_part part = GPUNVME_DEV_ZEROES;
    struct gpunvme_dev_job job = GPUNVME_DEV_ZEROES;
    struct gpunvme_dev_buf block;
    int err = gpunvme_dev_command(ns, q, GPUNVME_CMD_READ, slba, NULL, 0, &part, timeout_ns);

    if (err)
        return err;
    block = gpunvme_dev_bounce(q, part.ticket);
    gpunvme_dev_copy(block.data + in, from, nbytes);
    job.slba = slba;
    job.left = 1;
    err = gpunvme_dev_run(ns, q, gpunvme_dev_companions(q), op, &job, &block, timeout_ns);
    /* A late write may still take its data from the block, which stays the ticket's: the host gets
     * both back. */
    if (err != GPUNVME_ERR_TIMEOUT)
        gpunvme_dev_queue_end_read(q, part.ticket);
    return err;
}

/* Takes one of the places of those who hold a ticket while they wait for another; see holders. */
GPUNVME_FN int gpunvme_dev_may_hold(struct gpunvme_dev_queue *q)
{
    uint64_t holders = gpunvme_load_relaxed64(&q->holders);

    while (holders < q->mask / 2) {
        if (gpunvme_cas64_relaxed_gpu(&q->holders, &holders, holders + 1))
            return 1;
    }
    return 0;
}

/*
 * change_block(), as soon as there is a place. All lanes stay in the loop until all are done: who
 * left it with a place in hand might be kept waiting, where branches meet, for those without.
 */
GPUNVME_FN int gpunvme_dev_write_part(const struct gpunvme_dev_ns *ns, struct gpunvme_dev_queue *q,
                                      uint32_t op, uint64_t slba, uint32_t in, uint32_t nbytes,
                                      const uint8_t *from, uint64_t timeout_ns)
{
    uint32_t mask = gpunvme_dev_companions(q);
    struct gpunvme_dev_spin spin;
    int err = q->mask < 2 ? GPUNVME_ERR_LIMIT : GPUNVME_ERR_AGAIN;

    gpunvme_dev_spin_init(&spin);
    spin.turn = 31;
    (void)gpunvme_dev_turn(&spin, ns, q, mask, timeout_ns); /* the time for a place begins */
    while (gpunvme_warp_ballot(mask, err == GPUNVME_ERR_AGAIN)) {
        int late;

        if (err == GPUNVME_ERR_AGAIN && gpunvme_dev_may_hold(q)) {
            err = gpunvme_dev_change_block(ns, q, op, slba, in, nbytes, from, timeout_ns);
            gpunvme_fetch_add64_relaxed_gpu(&q->holders, ~UINT64_C(0));
        }
        spin.turn |= 31; /* the clock is read: a turn may have been a whole deadline of others */
        late = gpunvme_dev_turn(&spin, ns, q, mask, timeout_ns);
        if (late && err == GPUNVME_ERR_AGAIN)
            err = GPUNVME_ERR_TIMEOUT;
    }
    return err;
}

/* What is wrong with a transfer of bytes, but 0. */
GPUNVME_FN int gpunvme_dev_check_bytes(const struct gpunvme_dev_ns *ns,
                                       const struct gpunvme_dev_queue *q, uint32_t op,
                                       uint64_t offset, uint64_t nbytes,
                                       const struct gpunvme_dev_buf *buf, uint64_t off)
{
    uint64_t size = ns->nblocks << ns->block_shift;

    if (offset > size || nbytes > size - offset)
        return GPUNVME_ERR_RANGE;
    if (off > buf->nbytes || nbytes > buf->nbytes - off)
        return GPUNVME_ERR_INVALID;
    if (((offset | nbytes) & (ns->block_size - 1) || (buf->bus + off) & 3) &&
        q->bounce_nbytes < ns->block_size)
        return GPUNVME_ERR_ALIGN;
    if (!gpunvme_dev_has_whole_pages(ns, buf))
        return GPUNVME_ERR_ALIGN;
    if (gpunvme_dev_op_is_write(op) && ns->readonly)
        return GPUNVME_ERR_READONLY;
    return GPUNVME_OK;
}

/* One thread's transfer of bytes; checked. */
GPUNVME_FN int gpunvme_dev_bytes(const struct gpunvme_dev_ns *ns, struct gpunvme_dev_queue *q,
                                 uint32_t op, uint64_t offset, uint64_t nbytes,
                                 const struct gpunvme_dev_buf *buf, uint64_t off,
                                 uint64_t timeout_ns)
{
    int err = GPUNVME_OK;

    while (nbytes && !err) {
        uint32_t in = (uint32_t)offset & (ns->block_size - 1);
        uint64_t slba = offset >> ns->block_shift, n = nbytes & ~(uint64_t)(ns->block_size - 1);

        if (!in && n && !((buf->bus + off) & 3)) {
            err = gpunvme_dev_transfer(ns, op, slba, n >> ns->block_shift, buf, off, timeout_ns);
        } else {
            uint32_t part = ns->block_size - in;

            part = part < nbytes ? part : (uint32_t)nbytes;
            n = part;
            err =
                gpunvme_dev_op_is_write(op)
                    ? gpunvme_dev_write_part(ns, q, op, slba, in, part, buf->data + off, timeout_ns)
                    : gpunvme_dev_read_part(ns, q, slba, in, part, buf->data + off, timeout_ns);
        }
        offset += n;
        off += n;
        nbytes -= n;
    }
    return err;
}

/* --- private: together ------------------------------------------------------------------------ */

/* Who shares the work: this thread is the `unit`th of `units`; its warp's lanes are in `mask`. */
struct gpunvme_dev_group {
    uint32_t mask, unit, units;
    uint32_t is_block;
};

/* The whole warp, but for lanes that have left the kernel or never were. */
GPUNVME_FN struct gpunvme_dev_group gpunvme_dev_warp(void)
{
    struct gpunvme_dev_group g;

#if defined(__CUDA_ARCH__)
    g.mask = gpunvme_warp_ballot(UINT32_C(0xffffffff), 1);
#else
    g.mask = 1;
#endif
    g.unit = gpunvme_warp_rank(g.mask);
    g.units = gpunvme_popcount(g.mask);
    g.is_block = 0;
    gpunvme_warp_sync(g.mask);
    return g;
}

GPUNVME_FN struct gpunvme_dev_group gpunvme_dev_block(void)
{
    struct gpunvme_dev_group g = gpunvme_dev_warp();

    g.is_block = 1;
#if defined(__CUDA_ARCH__)
    g.unit = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    g.units = blockDim.x * blockDim.y * blockDim.z;
    __syncthreads();
#endif
    return g;
}

/* All get the same result, an error if there was one, and see what was read. */
GPUNVME_FN int gpunvme_dev_agree(const struct gpunvme_dev_group *g, int err)
{
    uint32_t bad;

#if defined(__CUDA_ARCH__)
    if (g->is_block) {
        uint32_t value = (uint32_t)-err, most = 0;

        if (!__syncthreads_or(err))
            return GPUNVME_OK;
        /* The largest of all, bit by bit: needs no memory. An NVMe status wins over the others. */
        for (uint32_t bit = UINT32_C(1) << 15; bit; bit >>= 1) {
            if (__syncthreads_or((value & bit) != 0)) {
                most |= bit;
                value = value & bit ? value : 0;
            }
        }
        return -(int)most;
    }
#endif
    bad = gpunvme_warp_ballot(g->mask, err != 0);
    if (bad)
        err = (int)gpunvme_warp_shfl32(g->mask, (uint32_t)err, gpunvme_lowest_bit(bad));
    gpunvme_warp_sync(g->mask);
    return err;
}

/*
 * Blocks of one lane's share of a range: as many as make the shares equal, but at least two pages,
 * which take no list, and at most a command.
 */
GPUNVME_FN uint32_t gpunvme_dev_piece(const struct gpunvme_dev_ns *ns, uint64_t nlb, uint32_t units)
{
    uint64_t piece = (UINT64_C(2) << ns->page_shift) >> ns->block_shift, share = nlb;

    for (; units > 1; units >>= 1)
        share = (share + 1) >> 1;
    piece = piece < share ? share : piece;
    return piece < ns->max_blocks ? (uint32_t)piece : ns->max_blocks;
}

/* The whole group's transfer of a range; its result is one for each lane. */
GPUNVME_FN int gpunvme_dev_share(const struct gpunvme_dev_ns *ns, struct gpunvme_dev_queue *q,
                                 const struct gpunvme_dev_group *g, uint32_t op, uint64_t slba,
                                 uint64_t nlb, const struct gpunvme_dev_buf *buf, uint64_t off,
                                 uint64_t timeout_ns)
{
    struct gpunvme_dev_job job = GPUNVME_DEV_ZEROES;

    job.range_slba = slba;
    job.range_off = off;
    job.n = nlb;
    job.piece = gpunvme_dev_piece(ns, nlb, g->units);
    job.at = (uint64_t)g->unit * job.piece;
    job.stride = (uint64_t)g->units * job.piece;
    job.together = 1;
    return gpunvme_dev_run(ns, q, g->mask, op, &job, buf, timeout_ns);
}

GPUNVME_FN int gpunvme_dev_group_range(const struct gpunvme_dev_ns *ns, struct gpunvme_dev_group g,
                                       uint32_t op, uint64_t slba, uint64_t nlb,
                                       const struct gpunvme_dev_buf *buf, uint64_t off,
                                       uint64_t timeout_ns)
{
    int err = gpunvme_dev_check(ns, op, slba, nlb, buf, off);

    if (nlb && !err)
        err = gpunvme_dev_share(ns, gpunvme_dev_queue_of_warp(ns), &g, op, slba, nlb, buf, off,
                                timeout_ns);
    return gpunvme_dev_agree(&g, nlb ? err : (int)GPUNVME_OK);
}

GPUNVME_FN int gpunvme_dev_group_vec(const struct gpunvme_dev_ns *ns, struct gpunvme_dev_group g,
                                     uint32_t op, const struct gpunvme_dev_vec *vec, uint64_t n,
                                     const struct gpunvme_dev_buf *buf, uint64_t timeout_ns)
{
    struct gpunvme_dev_job job = GPUNVME_DEV_ZEROES;

    job.vec = vec;
    job.at = g.unit;
    job.n = n;
    job.stride = g.units;
    job.together = 1;
    return gpunvme_dev_agree(
        &g, gpunvme_dev_run(ns, gpunvme_dev_queue_of_warp(ns), g.mask, op, &job, buf, timeout_ns));
}

/* One flush for all: what any of them has written before they call is complete by then. */
GPUNVME_FN int gpunvme_dev_group_flush(const struct gpunvme_dev_ns *ns, struct gpunvme_dev_group g,
                                       uint64_t timeout_ns)
{
    int err = GPUNVME_OK;

    if (!g.unit)
        err = gpunvme_dev_command(ns, gpunvme_dev_queue_of_warp(ns), GPUNVME_CMD_FLUSH, 0, NULL, 0,
                                  NULL, timeout_ns);
    return gpunvme_dev_agree(&g, err);
}

/*
 * Bytes: a lane takes the part of the first block, another that of the last one. What is between
 * is shared as a range, or block by block where it is not at a dword in memory.
 */
GPUNVME_FN int gpunvme_dev_group_bytes(const struct gpunvme_dev_ns *ns, struct gpunvme_dev_group g,
                                       uint32_t op, uint64_t offset, uint64_t nbytes,
                                       const struct gpunvme_dev_buf *buf, uint64_t off,
                                       uint64_t timeout_ns)
{
    struct gpunvme_dev_queue *q = gpunvme_dev_queue_of_warp(ns);
    uint64_t in_block = ns->block_size - 1;
    uint64_t head = (ns->block_size - (offset & in_block)) & in_block;
    uint64_t middle, tail, parts;
    int err = gpunvme_dev_check_bytes(ns, q, op, offset, nbytes, buf, off);

    head = head < nbytes ? head : nbytes;
    middle = (nbytes - head) & ~in_block;
    tail = nbytes - head - middle;
    parts = 2 + ((buf->bus + off + head) & 3 ? middle >> ns->block_shift : 0);
    for (uint64_t k = g.unit; k < parts && !err; k += g.units) {
        uint64_t at = !k ? 0 : k == 1 ? head + middle : head + ((k - 2) << ns->block_shift);
        uint64_t n = !k ? head : k == 1 ? tail : ns->block_size;

        err = gpunvme_dev_bytes(ns, q, op, offset + at, n, buf, off + at, timeout_ns);
    }
    err = gpunvme_dev_agree(&g, err);
    if (!err && middle && parts == 2)
        err = gpunvme_dev_agree(
            &g, gpunvme_dev_share(ns, q, &g, op, (offset + head) >> ns->block_shift,
                                  middle >> ns->block_shift, buf, off + head, timeout_ns));
    return err;
}

/* --- split phase ------------------------------------------------------------------------------ */

/* One command of one thread. */
GPUNVME_FN int gpunvme_dev_submit(const struct gpunvme_dev_ns *ns, uint32_t op, uint64_t slba,
                                  uint32_t nlb, const struct gpunvme_dev_buf *buf, uint64_t off,
                                  struct gpunvme_dev_token *token)
{
    struct gpunvme_dev_queue *q = gpunvme_dev_queue_of_warp(ns);
    uint32_t mask;
    int err;

    token->queue = q;
    token->ticket = GPUNVME_DEV_SLOT_TAKEN; /* no ticket's: STALE, if nothing is submitted */
    if ((op & 0xff) != GPUNVME_CMD_FLUSH) {
        err = buf ? gpunvme_dev_check(ns, op, slba, nlb, buf, off) : (int)GPUNVME_ERR_INVALID;
        if (err)
            return err;
        if (!nlb || gpunvme_dev_cut(ns, slba, nlb) != nlb)
            return GPUNVME_ERR_INVALID;
        if (!gpunvme_dev_list_fits(ns, q, nlb, buf, off))
            return GPUNVME_ERR_LIMIT;
    }
    mask = gpunvme_dev_companions(q);
    err = gpunvme_dev_send(ns, q, mask, gpunvme_dev_want_any(), op, slba, nlb, buf, off,
                           &token->ticket);
    if (err == GPUNVME_ERR_CLOSED && gpunvme_warp_lane() == gpunvme_warp_leader(mask))
        gpunvme_dev_queue_help(q);
    return err;
}

/*
 * Submits one command and returns at once: 1 to ns->max_blocks blocks, not across the boundary.
 * AGAIN: the queue is full of commands that have not been waited for, this thread's among them
 * perhaps, or its neighbours': end tokens, or do something else. A loop that submits until there is
 * room may wait for ever, because lanes that got out of it may be kept from ending their tokens
 * until the others are out as well. `flags`: GPUNVME_IO_FUA or 0.
 */
GPUNVME_FN int gpunvme_dev_submit_read(const struct gpunvme_dev_ns *ns, uint64_t slba, uint32_t nlb,
                                       const struct gpunvme_dev_buf *buf, uint64_t off,
                                       struct gpunvme_dev_token *token)
{
    return gpunvme_dev_submit(ns, GPUNVME_CMD_READ, slba, nlb, buf, off, token);
}

GPUNVME_FN int gpunvme_dev_submit_write(const struct gpunvme_dev_ns *ns, uint64_t slba,
                                        uint32_t nlb, const struct gpunvme_dev_buf *buf,
                                        uint64_t off, unsigned flags,
                                        struct gpunvme_dev_token *token)
{
    return gpunvme_dev_submit(ns, gpunvme_dev_write_op(flags), slba, nlb, buf, off, token);
}

GPUNVME_FN int gpunvme_dev_submit_flush(const struct gpunvme_dev_ns *ns,
                                        struct gpunvme_dev_token *token)
{
    return gpunvme_dev_submit(ns, GPUNVME_CMD_FLUSH, 0, 1, 0, 0, token);
}

/*
 * Ends a token if its command is done: GPUNVME_OK or the error that it ended with; AGAIN while it
 * is in flight. Looks for completions once, where the waiting threads do that. Nothing ends a loop
 * of tests but the command's end, or a reset: who wants a deadline takes gpunvme_dev_wait().
 *
 * Lanes that test share the look. In a loop in which some lanes of a warp test while others submit,
 * keep them together: begin each turn with a ballot of all that still run,
 *
 *   while ((running = gpunvme_warp_ballot(running, more)) >> gpunvme_warp_lane() & 1)
 *
 * Else it is the compiler's affair whether those that test go round among themselves until the last
 * of them is done, or each lane goes on alone: right either way, but up to eight times slower.
 */
GPUNVME_FN int gpunvme_dev_test(struct gpunvme_dev_token *token)
{
    struct gpunvme_dev_queue *q = token->queue;
    uint32_t mask = gpunvme_dev_companions(q);
    int err = gpunvme_dev_finish(q, token->ticket, 0);

    if (!gpunvme_warp_ballot(mask, err == GPUNVME_ERR_AGAIN))
        return err;
    if (q->reaper == GPUNVME_REAPER_WAITERS) {
        gpunvme_dev_queue_reap(q, mask, 1);
        if (err == GPUNVME_ERR_AGAIN)
            err = gpunvme_dev_finish(q, token->ticket, 0);
    }
    /* A loop of tests is a wait: now and then, as there, for entries that nobody has rung for. */
    if (gpunvme_warp_lane() == gpunvme_warp_leader(mask) &&
        !(gpunvme_noise32() * UINT32_C(0x9e3779b9) >> 29))
        gpunvme_dev_queue_help(q);
    return err;
}

/*
 * Waits for a token of a command of `ns` and ends it. After a TIMEOUT, too, the token has ended:
 * the command is given up, see above.
 */
GPUNVME_FN int gpunvme_dev_wait(const struct gpunvme_dev_ns *ns, struct gpunvme_dev_token *token,
                                uint64_t timeout_ns)
{
    struct gpunvme_dev_queue *q = token->queue;
    uint32_t mask = gpunvme_dev_companions(q);
    struct gpunvme_dev_spin spin;
    int err;

    gpunvme_dev_spin_init(&spin);
    /* First its own slot: with several tokens, others' waits have taken most completions. */
    err = gpunvme_dev_finish(q, token->ticket, 0);
    while (gpunvme_warp_ballot(mask, err == GPUNVME_ERR_AGAIN)) {
        int is_done = err != GPUNVME_ERR_AGAIN;
        int end = gpunvme_dev_await(ns, q, mask, is_done ? GPUNVME_DEV_IDLE : GPUNVME_DEV_IN_FLIGHT,
                                    token->ticket, 0, &spin, timeout_ns);

        err = is_done ? err : end;
    }
    return err;
}

/* --- each thread for itself ------------------------------------------------------------------- */

/* Transfers of any number of blocks, split where they must be; 0 blocks are GPUNVME_OK. */
GPUNVME_FN int gpunvme_dev_read(const struct gpunvme_dev_ns *ns, uint64_t slba, uint64_t nlb,
                                const struct gpunvme_dev_buf *buf, uint64_t off,
                                uint64_t timeout_ns)
{
    return gpunvme_dev_transfer(ns, GPUNVME_CMD_READ, slba, nlb, buf, off, timeout_ns);
}

GPUNVME_FN int gpunvme_dev_write(const struct gpunvme_dev_ns *ns, uint64_t slba, uint64_t nlb,
                                 const struct gpunvme_dev_buf *buf, uint64_t off, unsigned flags,
                                 uint64_t timeout_ns)
{
    return gpunvme_dev_transfer(ns, gpunvme_dev_write_op(flags), slba, nlb, buf, off, timeout_ns);
}

/* What was written, and has completed, is on the medium when this returns GPUNVME_OK. */
GPUNVME_FN int gpunvme_dev_flush(const struct gpunvme_dev_ns *ns, uint64_t timeout_ns)
{
    return gpunvme_dev_command(ns, gpunvme_dev_queue_of_warp(ns), GPUNVME_CMD_FLUSH, 0, NULL, 0,
                               NULL, timeout_ns);
}

/* n elements of this thread's own, one after the other; the first error ends it. */
GPUNVME_FN int gpunvme_dev_vector(const struct gpunvme_dev_ns *ns, uint32_t op,
                                  const struct gpunvme_dev_vec *vec, uint64_t n,
                                  const struct gpunvme_dev_buf *buf, uint64_t timeout_ns)
{
    struct gpunvme_dev_queue *q = gpunvme_dev_queue_of_warp(ns);
    struct gpunvme_dev_job job = GPUNVME_DEV_ZEROES;

    job.vec = vec;
    job.n = n;
    job.stride = 1;
    return gpunvme_dev_run(ns, q, gpunvme_dev_companions(q), op, &job, buf, timeout_ns);
}

GPUNVME_FN int gpunvme_dev_readv(const struct gpunvme_dev_ns *ns, const struct gpunvme_dev_vec *vec,
                                 uint64_t n, const struct gpunvme_dev_buf *buf, uint64_t timeout_ns)
{
    return gpunvme_dev_vector(ns, GPUNVME_CMD_READ, vec, n, buf, timeout_ns);
}

GPUNVME_FN int gpunvme_dev_writev(const struct gpunvme_dev_ns *ns,
                                  const struct gpunvme_dev_vec *vec, uint64_t n,
                                  const struct gpunvme_dev_buf *buf, unsigned flags,
                                  uint64_t timeout_ns)
{
    return gpunvme_dev_vector(ns, gpunvme_dev_write_op(flags), vec, n, buf, timeout_ns);
}

/*
 * Any bytes of the namespace, to or from any byte of the buffer. Whole blocks go directly, where
 * they are at a dword in memory; ends that are not whole blocks go through a bounce block. A write
 * of such an end reads the block, changes it and writes it: two threads that do this to the same
 * block at once may undo each other's change.
 */
GPUNVME_FN int gpunvme_dev_read_bytes(const struct gpunvme_dev_ns *ns, uint64_t offset,
                                      uint64_t nbytes, const struct gpunvme_dev_buf *buf,
                                      uint64_t off, uint64_t timeout_ns)
{
    struct gpunvme_dev_queue *q = gpunvme_dev_queue_of_warp(ns);
    int err = gpunvme_dev_check_bytes(ns, q, GPUNVME_CMD_READ, offset, nbytes, buf, off);

    return err ? err
               : gpunvme_dev_bytes(ns, q, GPUNVME_CMD_READ, offset, nbytes, buf, off, timeout_ns);
}

GPUNVME_FN int gpunvme_dev_write_bytes(const struct gpunvme_dev_ns *ns, uint64_t offset,
                                       uint64_t nbytes, const struct gpunvme_dev_buf *buf,
                                       uint64_t off, unsigned flags, uint64_t timeout_ns)
{
    struct gpunvme_dev_queue *q = gpunvme_dev_queue_of_warp(ns);
    uint32_t op = gpunvme_dev_write_op(flags);
    int err = gpunvme_dev_check_bytes(ns, q, op, offset, nbytes, buf, off);

    return err ? err : gpunvme_dev_bytes(ns, q, op, offset, nbytes, buf, off, timeout_ns);
}

/* --- a warp together ---------------------------------------------------------------------------
 */

/*
 * One range, a share for each lane. After an error no further command is submitted; the blocks of
 * the range are then undefined.
 */
GPUNVME_FN int gpunvme_dev_warp_read(const struct gpunvme_dev_ns *ns, uint64_t slba, uint64_t nlb,
                                     const struct gpunvme_dev_buf *buf, uint64_t off,
                                     uint64_t timeout_ns)
{
    return gpunvme_dev_group_range(ns, gpunvme_dev_warp(), GPUNVME_CMD_READ, slba, nlb, buf, off,
                                   timeout_ns);
}

GPUNVME_FN int gpunvme_dev_warp_write(const struct gpunvme_dev_ns *ns, uint64_t slba, uint64_t nlb,
                                      const struct gpunvme_dev_buf *buf, uint64_t off,
                                      unsigned flags, uint64_t timeout_ns)
{
    return gpunvme_dev_group_range(ns, gpunvme_dev_warp(), gpunvme_dev_write_op(flags), slba, nlb,
                                   buf, off, timeout_ns);
}

/* n elements, which the lanes take in turns; `vec` is memory that all of them can read. */
GPUNVME_FN int gpunvme_dev_warp_readv(const struct gpunvme_dev_ns *ns,
                                      const struct gpunvme_dev_vec *vec, uint64_t n,
                                      const struct gpunvme_dev_buf *buf, uint64_t timeout_ns)
{
    return gpunvme_dev_group_vec(ns, gpunvme_dev_warp(), GPUNVME_CMD_READ, vec, n, buf, timeout_ns);
}

GPUNVME_FN int gpunvme_dev_warp_writev(const struct gpunvme_dev_ns *ns,
                                       const struct gpunvme_dev_vec *vec, uint64_t n,
                                       const struct gpunvme_dev_buf *buf, unsigned flags,
                                       uint64_t timeout_ns)
{
    return gpunvme_dev_group_vec(ns, gpunvme_dev_warp(), gpunvme_dev_write_op(flags), vec, n, buf,
                                 timeout_ns);
}

/* gpunvme_dev_flush(), once, of what all lanes have written. */
GPUNVME_FN int gpunvme_dev_warp_flush(const struct gpunvme_dev_ns *ns, uint64_t timeout_ns)
{
    return gpunvme_dev_group_flush(ns, gpunvme_dev_warp(), timeout_ns);
}

/* gpunvme_dev_read_bytes() and gpunvme_dev_write_bytes() of a warp. */
GPUNVME_FN int gpunvme_dev_warp_read_bytes(const struct gpunvme_dev_ns *ns, uint64_t offset,
                                           uint64_t nbytes, const struct gpunvme_dev_buf *buf,
                                           uint64_t off, uint64_t timeout_ns)
{
    return gpunvme_dev_group_bytes(ns, gpunvme_dev_warp(), GPUNVME_CMD_READ, offset, nbytes, buf,
                                   off, timeout_ns);
}

GPUNVME_FN int gpunvme_dev_warp_write_bytes(const struct gpunvme_dev_ns *ns, uint64_t offset,
                                            uint64_t nbytes, const struct gpunvme_dev_buf *buf,
                                            uint64_t off, unsigned flags, uint64_t timeout_ns)
{
    return gpunvme_dev_group_bytes(ns, gpunvme_dev_warp(), gpunvme_dev_write_op(flags), offset,
                                   nbytes, buf, off, timeout_ns);
}

/* --- a block together --------------------------------------------------------------------------
 */

/* The same by all threads of a block, none of which has left the kernel; they meet at barriers. */
GPUNVME_FN int gpunvme_dev_block_read(const struct gpunvme_dev_ns *ns, uint64_t slba, uint64_t nlb,
                                      const struct gpunvme_dev_buf *buf, uint64_t off,
                                      uint64_t timeout_ns)
{
    return gpunvme_dev_group_range(ns, gpunvme_dev_block(), GPUNVME_CMD_READ, slba, nlb, buf, off,
                                   timeout_ns);
}

GPUNVME_FN int gpunvme_dev_block_write(const struct gpunvme_dev_ns *ns, uint64_t slba, uint64_t nlb,
                                       const struct gpunvme_dev_buf *buf, uint64_t off,
                                       unsigned flags, uint64_t timeout_ns)
{
    return gpunvme_dev_group_range(ns, gpunvme_dev_block(), gpunvme_dev_write_op(flags), slba, nlb,
                                   buf, off, timeout_ns);
}

GPUNVME_FN int gpunvme_dev_block_readv(const struct gpunvme_dev_ns *ns,
                                       const struct gpunvme_dev_vec *vec, uint64_t n,
                                       const struct gpunvme_dev_buf *buf, uint64_t timeout_ns)
{
    return gpunvme_dev_group_vec(ns, gpunvme_dev_block(), GPUNVME_CMD_READ, vec, n, buf,
                                 timeout_ns);
}

GPUNVME_FN int gpunvme_dev_block_writev(const struct gpunvme_dev_ns *ns,
                                        const struct gpunvme_dev_vec *vec, uint64_t n,
                                        const struct gpunvme_dev_buf *buf, unsigned flags,
                                        uint64_t timeout_ns)
{
    return gpunvme_dev_group_vec(ns, gpunvme_dev_block(), gpunvme_dev_write_op(flags), vec, n, buf,
                                 timeout_ns);
}

GPUNVME_FN int gpunvme_dev_block_flush(const struct gpunvme_dev_ns *ns, uint64_t timeout_ns)
{
    return gpunvme_dev_group_flush(ns, gpunvme_dev_block(), timeout_ns);
}

GPUNVME_FN int gpunvme_dev_block_read_bytes(const struct gpunvme_dev_ns *ns, uint64_t offset,
                                            uint64_t nbytes, const struct gpunvme_dev_buf *buf,
                                            uint64_t off, uint64_t timeout_ns)
{
    return gpunvme_dev_group_bytes(ns, gpunvme_dev_block(), GPUNVME_CMD_READ, offset, nbytes, buf,
                                   off, timeout_ns);
}

GPUNVME_FN int gpunvme_dev_block_write_bytes(const struct gpunvme_dev_ns *ns, uint64_t offset,
                                             uint64_t nbytes, const struct gpunvme_dev_buf *buf,
                                             uint64_t off, unsigned flags, uint64_t timeout_ns)
{
    return gpunvme_dev_group_bytes(ns, gpunvme_dev_block(), gpunvme_dev_write_op(flags), offset,
                                   nbytes, buf, off, timeout_ns);
}

/* --- the reaper's warp --------------------------------------------------------------------------
 */

/*
 * For GPUNVME_REAPER_WARP: all lanes of a warp take completions of the queues first, first +
 * stride, … of the namespace's until *stop is not 0 (a word that all of them can read: in GPU or
 * pinned memory). Each queue has one such warp, which stops only after the threads that use the
 * queue.
 */
GPUNVME_FN void gpunvme_dev_reap(const struct gpunvme_dev_ns *ns, uint32_t first, uint32_t stride,
                                 const uint32_t *stop)
{
    struct gpunvme_dev_group g = gpunvme_dev_warp();
    uint32_t stopped;

    stride = !stride ? 1 : stride < ns->nqueues ? stride : ns->nqueues; /* base does not wrap */
    do {
        uint32_t taken = 0;

        stopped = gpunvme_warp_ballot(g.mask, gpunvme_load_acquire32(stop) != 0);
        /* A lane looks after each queue; all of them take what one finds. */
        for (uint32_t base = first; base < ns->nqueues; base += stride * g.units) {
            uint32_t index = base + stride * g.unit, news;

            news = gpunvme_warp_ballot(g.mask, index < ns->nqueues &&
                                                   gpunvme_dev_queue_has_news(&ns->queues[index]));
            for (; news; news &= news - 1) {
                uint32_t its = gpunvme_warp_shfl32(g.mask, index, gpunvme_lowest_bit(news));

                taken += gpunvme_dev_queue_reap(&ns->queues[its], g.mask, 1);
            }
        }
        if (!taken)
            gpunvme_relax();
    } while (!stopped);
}

#ifdef __cplusplus
}
#endif
#endif
