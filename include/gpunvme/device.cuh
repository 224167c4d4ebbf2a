/* SPDX-License-Identifier: BSD-3-Clause
 *
 * I/O issued by the threads of a kernel: reads, writes and flushes of a namespace. The handles are
 * device.h's. Header-only, for CUDA, and for C and C++ on the CPU, where a thread is a warp of one
 * lane and a block of one thread. Knows nothing of how queues are made.
 *
 *     __global__ void kernel(struct gpunvme_dev_ns ns, struct gpunvme_dev_buf buf)
 *     {
 *         int err = gpunvme_dev_read(&ns, slba, 1, &buf, 0, 0);
 *
 * There are three ways to call. They may be mixed in one kernel and on one queue:
 *
 *   by itself     gpunvme_dev_read, _write, _flush, _readv, _read_bytes, …: each thread for itself,
 *                 from any branch. Lanes of a warp that call together share one reservation and one
 *                 doorbell.
 *   split phase   gpunvme_dev_submit_read, …, then gpunvme_dev_test or _wait with the token.
 *   together      gpunvme_dev_warp_… and gpunvme_dev_block_…: all threads of the warp or block call
 *                 with the same arguments, and share the work. All get the same result. A write
 *                 includes what any of them stored before the call. After a read all see the data.
 *
 * The calls return GPUNVME_OK or an error, the same as on the CPU, but without a detail:
 *
 *   GPUNVME_ERR_NVME(status)  the controller's status, all 15 bits
 *   RANGE                     beyond the end of the namespace
 *   INVALID                   beyond the end of the buffer; submit: no buffer, no blocks, or more
 *                             than one command takes
 *   ALIGN                     the bytes do not begin at a dword; or they are not whole blocks, and
 *                             the queues have no bounce blocks
 *   READONLY                  a write to a write-protected namespace
 *   LIMIT                     the queue's PRP lists are too short for the command
 *   AGAIN                     submit: the queue is full, or nearly; test: the command is in flight
 *   STALE                     the token has ended already, or nothing was submitted for it
 *   ABORTED, CLOSED           a reset ended the command; a reset has closed the queue
 *   TIMEOUT                   no completion within the deadline, or no room in the queue
 *
 * A timeout applies to each command, and a transfer may be many commands. It begins when the thread
 * first looks at its command. A wait for room in the queue has a deadline of its own. 0 means the
 * namespace's timeout, UINT64_MAX none. A wait may end some milliseconds late, because the clock is
 * read only at each 32nd turn. Lanes that call together return together, but a late command is
 * given up at once.
 *
 * After a TIMEOUT of a command the alarm is set, which asks the host to look. The buffer must then
 * be left alone until gpunvme_device_recover(): the controller may still use it. A TIMEOUT for want
 * of room sets no alarm.
 *
 * Offsets `off` into the buffer are in bytes. Do not change the buffer while a command writes from
 * it, and do not read it while a command reads into it.
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

/* An initialiser of all zeroes that neither C nor C++ warns about. */
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

/* One command in flight. It belongs to the thread that submitted it. */
struct gpunvme_dev_token {
    struct gpunvme_dev_queue *queue;
    uint64_t ticket;
    struct gpunvme_slot *slot; /* private: the ticket's slot, NULL if the queue has a mirror */
};

/* One element of a vector: `nlb` blocks from `slba` on, at byte `off` of the buffer. */
struct gpunvme_dev_vec {
    uint64_t slba;
    uint64_t off;
    uint32_t nlb;
};

/* How many commands gpunvme_dev_submit_readv() and _writev() take at once. */
#define GPUNVME_DEV_VECTOR GPUNVME_DEV_DEEP

/* --- which queue ------------------------------------------------------------------------------ */

/* The number of this warp in its grid. On the CPU a thread gets its number at its first call. */
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
 * Where this thread begins to look for a slot. Warps that share a queue begin beside each other. A
 * caller may have chosen the queue by some bits of the warp's number. So the higher bits are added:
 * otherwise warps whose numbers differ by a power of two would prefer the same slots.
 */
GPUNVME_FN uint32_t gpunvme_dev_hint(const struct gpunvme_dev_ns *ns)
{
    uint32_t warp = gpunvme_dev_warp_index(), n = ns->nqueues;

    if (!(n & (n - 1)))
        warp >>= gpunvme_popcount(n - 1);
    warp += (warp >> 5) + (warp >> 10);
    /* Warp 0 does not begin at slot 0, which is never free: its first lane would always search. */
    return (warp + 1) * GPUNVME_WARP_LANES + gpunvme_warp_lane();
}

/*
 * gpunvme_dev_hint() for threads with several commands in flight: another place at each call. The
 * last place is most likely taken by the thread's own command, and a search costs two round trips
 * to memory.
 */
GPUNVME_FN uint32_t gpunvme_dev_fresh_hint(const struct gpunvme_dev_ns *ns, uint32_t mask)
{
    return gpunvme_dev_hint(ns) + (gpunvme_noise32() >> 10) * gpunvme_popcount(mask);
}

/*
 * The queue of this warp. If the number of queues is a power of two, consecutive warps get
 * consecutive queues. Otherwise they are scattered, which avoids a division.
 */
GPUNVME_FN struct gpunvme_dev_queue *gpunvme_dev_queue_of_warp(const struct gpunvme_dev_ns *ns)
{
    uint32_t warp = gpunvme_dev_warp_index(), n = ns->nqueues;

    if (!(n & (n - 1)))
        return &ns->queues[warp & (n - 1)];
    return &ns->queues[(uint64_t)(warp * UINT32_C(0x9e3779b9)) * n >> 32];
}

/* A handle to the same namespace that uses queue `index` only; index is below ns->nqueues. */
GPUNVME_FN struct gpunvme_dev_ns gpunvme_dev_on_queue(const struct gpunvme_dev_ns *ns,
                                                      uint32_t index)
{
    struct gpunvme_dev_ns one = *ns;

    one.queues += index;
    one.nqueues = 1;
    return one;
}

/* The active lanes that use the same queue and have the same kind, 0 or 1. */
GPUNVME_FN uint32_t gpunvme_dev_companions_of_kind(const struct gpunvme_dev_queue *q, int kind)
{
    return gpunvme_warp_match64(gpunvme_warp_active(), (uint64_t)(uintptr_t)q + (kind != 0));
}

GPUNVME_FN uint32_t gpunvme_dev_companions(const struct gpunvme_dev_queue *q)
{
    return gpunvme_dev_companions_of_kind(q, 0);
}

/* --- private: one command --------------------------------------------------------------------- */

/* An operation is an opcode; a write may add GPUNVME_RW_FUA. */
GPUNVME_FN uint32_t gpunvme_dev_write_op(unsigned flags)
{
    return GPUNVME_CMD_WRITE | (flags & GPUNVME_IO_FUA ? GPUNVME_RW_FUA : 0);
}

GPUNVME_FN int gpunvme_dev_op_is_write(uint32_t op)
{
    return (op & 0xff) == GPUNVME_CMD_WRITE;
}

/* PRPs can describe a buffer in pieces only if the pieces are whole pages (prp.h). */
GPUNVME_FN int gpunvme_dev_has_whole_pages(const struct gpunvme_dev_ns *ns,
                                           const struct gpunvme_dev_buf *buf)
{
    return !buf->bus_pages || (buf->bus_page_shift >= ns->page_shift &&
                               !(buf->bus & ((UINT64_C(1) << ns->page_shift) - 1)));
}

/* Checks a transfer of any length but 0. */
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
 * Blocks from slba to the next boundary. A boundary that is not a power of two comes from NOIOB,
 * which has 16 bits. So remainders of 32 bits are enough.
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

/* How many of `left` blocks, from slba on, one command can take. */
GPUNVME_FN uint32_t gpunvme_dev_cut(const struct gpunvme_dev_ns *ns, uint64_t slba, uint64_t left)
{
    uint32_t n = left < ns->max_blocks ? (uint32_t)left : ns->max_blocks;

    if (left == 1) /* a constant 1 needs no computation */
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
 * Keeps the compiler from moving computations on `value` out of a loop that seldom turns. So their
 * results take no registers before they are needed.
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

/* Entries of a transfer's PRP list; 0 if PRP1 and PRP2 are enough. */
GPUNVME_FN uint32_t gpunvme_dev_list_entries(const struct gpunvme_dev_ns *ns, uint64_t bus,
                                             uint32_t nbytes)
{
    uint32_t shift = ns->page_shift, entries;

    gpunvme_dev_compiler_barrier32(&shift);
    entries = (((uint32_t)bus & ((UINT32_C(1) << shift) - 1)) + nbytes - 1) >> shift;
    return entries > 1 ? entries : 0;
}

/* Sets PRP1 and PRP2 to the data, or PRP2 to the list of the ticket's slot, which it fills. */
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
#pragma unroll 1 /* saves registers */
#endif
        for (uint32_t i = 0; i < entries; i++, off += page)
            list[i] = gpunvme_dev_bus(buf, off);
    }
}

/* Fills in a command of all zeroes, except for its cid. No buffer: the slot's bounce block. */
GPUNVME_FN void gpunvme_dev_build(const struct gpunvme_dev_ns *ns, struct gpunvme_dev_queue *q,
                                  uint64_t ticket, uint32_t op, uint64_t slba, uint32_t nlb,
                                  const struct gpunvme_dev_buf *buf, uint64_t off,
                                  struct gpunvme_sqe *cmd)
{
    cmd->opc = (uint8_t)op;
    cmd->nsid = ns->nsid;
    if ((op & 0xff) == GPUNVME_CMD_FLUSH)
        return;
    cmd->cdw10 = (uint32_t)slba;
    cmd->cdw11 = (uint32_t)(slba >> 32);
    cmd->cdw12 = (nlb - 1) | (op & GPUNVME_RW_FUA);
    if (buf)
        gpunvme_dev_point(ns, q, ticket, buf, off, nlb << ns->block_shift, cmd);
    else
        cmd->prp1 = q->bounces_bus + (ticket & q->mask) * q->bounce_nbytes;
}

/*
 * Submits a command for each lane of the mask, as far as there is room. Each lane has its own
 * result: GPUNVME_OK with *ticket, AGAIN or an error. Without a buffer the data goes to the bounce
 * block of the slot. Never waits.
 */
GPUNVME_FN int gpunvme_dev_send(const struct gpunvme_dev_ns *ns, struct gpunvme_dev_queue *q,
                                uint32_t mask, uint32_t hint, struct gpunvme_dev_want want,
                                uint32_t op, uint64_t slba, uint32_t nlb,
                                const struct gpunvme_dev_buf *buf, uint64_t off, uint64_t *ticket)
{
    struct gpunvme_dev_place place = GPUNVME_DEV_ZEROES;
    struct gpunvme_dev_queue copy;
    uint32_t in;
    int err;

    in = gpunvme_dev_queue_reserve(q, mask, hint, want, &place, &err);
    /* Nothing may wait from here to the submit: other warps' commands come after these. */
    if (in >> gpunvme_warp_lane() & 1) {
        struct gpunvme_sqe cmd = GPUNVME_DEV_ZEROES;

        gpunvme_dev_build(ns, q, place.ticket, op, slba, nlb, buf, off, &cmd);
        gpunvme_dev_queue_submit(gpunvme_dev_queue_copy_constants(q, &copy), in, &place, &cmd);
        *ticket = place.ticket;
    }
    return err;
}

/* Whether a slot's list has room for the command. Checked before a slot is taken. */
GPUNVME_FN int gpunvme_dev_list_fits(const struct gpunvme_dev_ns *ns,
                                     const struct gpunvme_dev_queue *q, uint32_t nlb,
                                     const struct gpunvme_dev_buf *buf, uint64_t off)
{
    /* For a buffer in pieces, the offset in a page is the same in both address spaces. */
    uint32_t entries = gpunvme_dev_list_entries(ns, buf->bus + off, nlb << ns->block_shift);

    return !entries || (q->lists && entries <= q->list_nbytes / 8);
}

/* The error of a status. A reset ends commands with HOST_ABORTED (gpunvme_qpair_fail()). */
GPUNVME_FN int gpunvme_dev_result(uint16_t status)
{
    if (!status)
        return GPUNVME_OK;
    return GPUNVME_STATUS_CODE(status) == GPUNVME_SC_HOST_ABORTED ? (int)GPUNVME_ERR_ABORTED
                                                                  : GPUNVME_ERR_NVME(status);
}

/* Whether the result is that of a completion. If so, the ticket can be ended. */
GPUNVME_FN int gpunvme_dev_is_completion(int err)
{
    return !err || err == GPUNVME_ERR_ABORTED || err <= GPUNVME_ERR_NVME(0);
}

/* --- private: waiting ------------------------------------------------------------------------- */

struct gpunvme_dev_spin {
    uint64_t deadline; /* of this lane's command; 0 until the clock is first read */
    uint32_t turn;
    int took; /* completions, in the last turn */
};

GPUNVME_FN void gpunvme_dev_spin_init(struct gpunvme_dev_spin *s)
{
    s->deadline = 0;
    s->turn = 0;
    s->took = 0;
}

/* Rests for 32 ns, and for twice as long after each 16 turns, up to 512: warps that wait take issue
 * slots and memory bandwidth from all others. */
GPUNVME_FN void gpunvme_dev_rest(uint32_t turn)
{
#if defined(__CUDA_ARCH__)
    gpunvme_relax_for(UINT32_C(32) << (turn < 64 ? turn / 16 : 4));
#else
    (void)turn;
    gpunvme_relax();
#endif
}

/* Takes completions, or rests a moment. Returns whether this lane's deadline has passed. */
GPUNVME_FN int gpunvme_dev_turn(struct gpunvme_dev_spin *s, const struct gpunvme_dev_ns *ns,
                                struct gpunvme_dev_queue *q, uint32_t mask, uint64_t timeout_ns)
{
    uint64_t now;

    s->took = q->reaper == GPUNVME_REAPER_WAITERS &&
              gpunvme_dev_queue_reap(q, mask, GPUNVME_DEV_LOOKS) != 0;
    if (!s->took)
        gpunvme_dev_rest(s->turn);
    if (++s->turn % 32)
        return 0;
    if (gpunvme_warp_lane() == gpunvme_warp_leader(mask))
        gpunvme_dev_queue_help(q);
#if !defined(__CUDA_ARCH__)
    sched_yield(); /* the controller's threads may need this processor */
#endif
    now = gpunvme_clock_ns();
    if (s->deadline)
        return now >= s->deadline;
    s->deadline = now + (timeout_ns ? timeout_ns : ns->timeout_ns);
    if (s->deadline < now) /* the sum has wrapped: no deadline */
        s->deadline = UINT64_MAX;
    return 0;
}

GPUNVME_FN void gpunvme_dev_raise_alarm(const struct gpunvme_dev_ns *ns)
{
    if (ns->alarm)
        gpunvme_store_release32(ns->alarm, 1);
}

/*
 * Gives up one lane's late command, which is in flight or found no room: TIMEOUT. AGAIN if it has
 * just completed; the next look finds it.
 */
GPUNVME_FN int gpunvme_dev_give_up(const struct gpunvme_dev_ns *ns, struct gpunvme_dev_queue *q,
                                   int sent, uint64_t ticket)
{
    if (!sent) /* other threads hold the slots: the host can do nothing */
        return GPUNVME_ERR_TIMEOUT;
    if (gpunvme_dev_queue_abandon(q, ticket) == GPUNVME_ERR_STALE)
        return GPUNVME_ERR_AGAIN;
    gpunvme_dev_raise_alarm(ns);
    return GPUNVME_ERR_TIMEOUT;
}

/*
 * The result of one lane's command, or AGAIN while it is in flight. Ends the ticket unless `keep`.
 * `likely`: it is done, most likely, and there is no mirror. One round trip to memory, not two.
 */
GPUNVME_FN int gpunvme_dev_finish(struct gpunvme_dev_queue *q, uint64_t ticket, int keep,
                                  int likely)
{
    struct gpunvme_dev_queue copy;
    uint16_t status;
    int err;

    q = gpunvme_dev_queue_copy_constants(q, &copy);
    err = likely ? gpunvme_dev_slot_peek(gpunvme_dev_slot(q, ticket), ticket, &status)
                 : gpunvme_dev_queue_peek(q, ticket, &status);
    if (err)
        return err;
    if (!keep)
        gpunvme_dev_queue_end(q, ticket);
    return gpunvme_dev_result(status);
}

/* The same for a token whose command is most likely done: one round trip to memory. */
GPUNVME_FN int gpunvme_dev_finish_late(const struct gpunvme_dev_token *token)
{
    uint16_t status;
    int err;

    if (!token->slot)
        return gpunvme_dev_finish(token->queue, token->ticket, 0, 0);
    err = gpunvme_dev_slot_peek(token->slot, token->ticket, &status);
    if (err)
        return err;
    gpunvme_dev_slot_end(token->slot, token->ticket);
    return gpunvme_dev_result(status);
}

/* A lane is done, wants to submit, or has a command in flight. */
enum gpunvme_dev_state { GPUNVME_DEV_IDLE, GPUNVME_DEV_READY, GPUNVME_DEV_IN_FLIGHT };

/*
 * One turn of lanes that wait together. Takes completions, then returns the result of this lane's
 * command, or AGAIN. A lane that is past its deadline gives up. An idle lane is never late and
 * raises no alarm.
 */
GPUNVME_FN int gpunvme_dev_await(const struct gpunvme_dev_ns *ns, struct gpunvme_dev_queue *q,
                                 uint32_t mask, enum gpunvme_dev_state state, uint64_t ticket,
                                 int keep, struct gpunvme_dev_spin *spin, uint64_t timeout_ns)
{
    int late = gpunvme_dev_turn(spin, ns, q, mask, timeout_ns), err = GPUNVME_ERR_AGAIN;

    if (state == GPUNVME_DEV_IN_FLIGHT)
        err = gpunvme_dev_finish(q, ticket, keep, spin->took);
    /* At once: the alarm ends the other lanes' waits, whatever their deadlines are. */
    if (late && state != GPUNVME_DEV_IDLE && err == GPUNVME_ERR_AGAIN)
        err = gpunvme_dev_give_up(ns, q, state == GPUNVME_DEV_IN_FLIGHT, ticket);
    return err;
}

/* --- private: transfers ----------------------------------------------------------------------- */

/* A part of a block, which is read into the bounce block of its ticket. */
struct gpunvme_dev_part {
    uint8_t *to;         /* copied to here; NULL: left there, and the ticket stays open */
    uint32_t in, nbytes; /* nbytes from byte `in` of the block on */
    uint64_t ticket;     /* output: the ticket that stays open, on success */
};

/*
 * The work of one lane: pieces, one after the other, each of one or more commands. The pieces are
 * every `stride`th element of a vector, or `piece` blocks at each `stride` of a range.
 */
struct gpunvme_dev_job {
    uint64_t slba, off, left; /* the rest of the current piece */
    uint64_t at, n, stride;   /* the pieces after it: from `at` on, below n */
    const struct gpunvme_dev_vec *vec;
    uint64_t range_slba, range_off; /* if there is no vector */
    struct gpunvme_dev_part *part;  /* for one block without a buffer; otherwise NULL */
    uint32_t piece;
    uint32_t is_single; /* one command: see run() */
    uint32_t together;  /* one lane's error ends the work of all */
};

/* Begins the next piece if this one is done. Returns whether anything is left. */
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

/* How many slots the lanes want at try number `tries`: see GPUNVME_DEV_GROUP. */
GPUNVME_FN struct gpunvme_dev_want gpunvme_dev_wants(const struct gpunvme_dev_job *job,
                                                     uint32_t tries)
{
    uint32_t halved = tries / GPUNVME_DEV_GROUP_TRIES;
    struct gpunvme_dev_want want = {halved < 31 ? GPUNVME_DEV_GROUP >> halved : 0, tries != 0};

    want.least += !want.least;
    return job->is_single ? want : gpunvme_dev_want_any();
}

/* Checks the next command before it is submitted. */
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
    return gpunvme_dev_send(ns, q, mask, gpunvme_dev_hint(ns), gpunvme_dev_wants(job, tries), op,
                            job->slba, gpunvme_dev_cut(ns, job->slba, job->left), buf, job->off,
                            ticket);
}

/* After a command is done: goes on to the next. Returns whether there is one. */
GPUNVME_FN int gpunvme_dev_job_advance(const struct gpunvme_dev_ns *ns, struct gpunvme_dev_job *job)
{
    uint32_t nlb;

    if (job->is_single) /* so the compiler sees that the job does not change */
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

/* Takes a part out of its ticket's bounce block, if its command succeeded. */
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
 * Lanes that found no room sleep, longer each time. So they do not slow down lanes that submit and
 * reap.
 */
GPUNVME_FN void gpunvme_dev_sleep(const struct gpunvme_dev_queue *q, uint32_t tries)
{
    uint32_t nap = UINT32_C(32) << (tries < 10 ? tries : 10),
             most = GPUNVME_DEV_SLEEP_NS * (q->mask + 1);

    gpunvme_relax_for(nap < most ? nap : most);
}

/*
 * Does the jobs of all lanes of the mask, which call together. Each lane has its own result and one
 * command in flight. A lane with many commands submits the next one as soon as the last one is
 * done, whatever the others do. If each lane has one command (`is_single`, the same for all lanes),
 * lanes that find no room sleep. They try again together when the others' commands, which may hold
 * all slots, are done.
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
                spin.deadline = 0; /* that one was for a slot */
            if (err == GPUNVME_ERR_CLOSED)
                spin.turn = 31; /* so that the next turn calls help(): see reserve() */
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

/* One command of one block, or a flush, of each active lane. */
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
    /* Without the loop over commands. If nlb is the constant 1, only this is compiled. */
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

/* Changes nbytes of a block: reads it into a bounce block, and writes it from there. */
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
    /* A late write may still read the bounce block. It keeps its ticket, and the host recovers
     * both. */
    if (err != GPUNVME_ERR_TIMEOUT)
        gpunvme_dev_queue_end_read(q, part.ticket);
    return err;
}

/* Lets a thread hold a ticket while it waits for another one, if not too many do: see holders. */
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
 * Calls change_block() as soon as the thread may hold a ticket. All lanes stay in the loop until
 * all are done. Otherwise a lane that holds one could be kept waiting, where branches reconverge,
 * for lanes that wait for it.
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
    (void)gpunvme_dev_turn(&spin, ns, q, mask, timeout_ns); /* the deadline begins */
    while (gpunvme_warp_ballot(mask, err == GPUNVME_ERR_AGAIN)) {
        int late;

        if (err == GPUNVME_ERR_AGAIN && gpunvme_dev_may_hold(q)) {
            err = gpunvme_dev_change_block(ns, q, op, slba, in, nbytes, from, timeout_ns);
            gpunvme_fetch_add64_relaxed_gpu(&q->holders, ~UINT64_C(0));
        }
        spin.turn |= 31; /* read the clock: change_block() may have taken as long as a deadline */
        late = gpunvme_dev_turn(&spin, ns, q, mask, timeout_ns);
        if (late && err == GPUNVME_ERR_AGAIN)
            err = GPUNVME_ERR_TIMEOUT;
    }
    return err;
}

/* Checks a transfer of bytes, other than 0. */
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

/* One thread's transfer of bytes, which has been checked. */
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

/* The threads that share work: this is number `unit` of `units`; `mask` is its warp's lanes. */
struct gpunvme_dev_group {
    uint32_t mask, unit, units;
    uint32_t is_block;
};

/* The whole warp, without lanes that have left the kernel or never existed. */
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

/* All get the same result, an error if any has one, and see all data that was read. */
GPUNVME_FN int gpunvme_dev_agree(const struct gpunvme_dev_group *g, int err)
{
    uint32_t bad;

#if defined(__CUDA_ARCH__)
    if (g->is_block) {
        uint32_t value = (uint32_t)-err, most = 0;

        if (!__syncthreads_or(err))
            return GPUNVME_OK;
        /* The largest of all, bit by bit, without memory. An NVMe status wins over other errors. */
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
 * Blocks of one lane's share of a range. The shares are equal, but at least two pages, which need
 * no list, and at most one command.
 */
GPUNVME_FN uint32_t gpunvme_dev_piece(const struct gpunvme_dev_ns *ns, uint64_t nlb, uint32_t units)
{
    uint64_t piece = (UINT64_C(2) << ns->page_shift) >> ns->block_shift, share = nlb;

    for (; units > 1; units >>= 1)
        share = (share + 1) >> 1;
    piece = piece < share ? share : piece;
    return piece < ns->max_blocks ? (uint32_t)piece : ns->max_blocks;
}

/* The group's transfer of a range. Each lane has its own result. */
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

/* One flush for all. Their writes have completed before they call. */
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
 * Bytes: one lane takes the part of the first block, another one that of the last block. The blocks
 * between are shared as a range, or one by one if they are not at a dword in memory.
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

/* A token of no command: STALE. */
GPUNVME_FN void gpunvme_dev_token_init(struct gpunvme_dev_token *token, struct gpunvme_dev_queue *q)
{
    token->queue = q;
    token->ticket = GPUNVME_DEV_SLOT_TAKEN;
    token->slot = NULL;
}

GPUNVME_FN void gpunvme_dev_token_set(struct gpunvme_dev_token *token,
                                      const struct gpunvme_dev_queue *q, uint64_t ticket)
{
    token->ticket = ticket;
    token->slot = q->mirror ? NULL : gpunvme_dev_slot(q, ticket);
}

/* Checks one command of the split phase. */
GPUNVME_FN int gpunvme_dev_check_one(const struct gpunvme_dev_ns *ns,
                                     const struct gpunvme_dev_queue *q, uint32_t op, uint64_t slba,
                                     uint32_t nlb, const struct gpunvme_dev_buf *buf, uint64_t off)
{
    int err = buf ? gpunvme_dev_check(ns, op, slba, nlb, buf, off) : (int)GPUNVME_ERR_INVALID;

    if (err)
        return err;
    if (!nlb || gpunvme_dev_cut(ns, slba, nlb) != nlb)
        return GPUNVME_ERR_INVALID;
    return gpunvme_dev_list_fits(ns, q, nlb, buf, off) ? GPUNVME_OK : GPUNVME_ERR_LIMIT;
}

/* One command of one thread. */
GPUNVME_FN int gpunvme_dev_submit(const struct gpunvme_dev_ns *ns, uint32_t op, uint64_t slba,
                                  uint32_t nlb, const struct gpunvme_dev_buf *buf, uint64_t off,
                                  struct gpunvme_dev_token *token)
{
    struct gpunvme_dev_queue *q = gpunvme_dev_queue_of_warp(ns);
    uint64_t ticket;
    uint32_t mask;
    int err;

    gpunvme_dev_token_init(token, q);
    if ((op & 0xff) != GPUNVME_CMD_FLUSH) {
        err = gpunvme_dev_check_one(ns, q, op, slba, nlb, buf, off);
        if (err)
            return err;
    }
    mask = gpunvme_dev_companions(q);
    err = gpunvme_dev_send(ns, q, mask, gpunvme_dev_fresh_hint(ns, mask), gpunvme_dev_want_any(),
                           op, slba, nlb, buf, off, &ticket);
    if (!err)
        gpunvme_dev_token_set(token, q, ticket);
    if (err == GPUNVME_ERR_CLOSED && gpunvme_warp_lane() == gpunvme_warp_leader(mask))
        gpunvme_dev_queue_help(q);
    gpunvme_warp_sync(mask); /* together again, so that the next call is made together */
    return err;
}

/* Several commands of one thread; see gpunvme_dev_submit_readv(). */
GPUNVME_FN int gpunvme_dev_submit_vector(const struct gpunvme_dev_ns *ns, uint32_t op,
                                         const struct gpunvme_dev_vec *vec, uint32_t n,
                                         const struct gpunvme_dev_buf *buf,
                                         struct gpunvme_dev_token *tokens, uint32_t *nsubmitted)
{
    struct gpunvme_dev_queue *q = gpunvme_dev_queue_of_warp(ns), copy;
    struct gpunvme_dev_places places = GPUNVME_DEV_ZEROES;
    uint32_t mask;
    int err = n && n <= GPUNVME_DEV_VECTOR ? GPUNVME_OK : GPUNVME_ERR_INVALID;

    *nsubmitted = 0;
    for (uint32_t i = 0; i < GPUNVME_DEV_VECTOR; i++) {
        if (err || i >= n)
            continue;
        gpunvme_dev_token_init(&tokens[i], q);
        err = gpunvme_dev_check_one(ns, q, op, vec[i].slba, vec[i].nlb, buf, vec[i].off);
    }
    if (err)
        return err;
    mask = gpunvme_dev_companions(q);
    gpunvme_dev_queue_copy_constants(q, &copy);
    err = gpunvme_dev_queue_reserve_several(&copy, mask, gpunvme_dev_fresh_hint(ns, mask), n,
                                            &places);
    if (places.total) {
        for (uint32_t i = 0; i < GPUNVME_DEV_VECTOR; i++) {
            struct gpunvme_sqe cmd = GPUNVME_DEV_ZEROES;

            if (i >= places.n)
                continue;
            gpunvme_dev_build(ns, q, places.ticket[i], op, vec[i].slba, vec[i].nlb, buf, vec[i].off,
                              &cmd);
            gpunvme_dev_queue_fill_one(&copy, &places, i, &cmd);
            gpunvme_dev_token_set(&tokens[i], &copy, places.ticket[i]);
        }
        gpunvme_dev_queue_submit_several(&copy, mask, &places);
        *nsubmitted = places.n;
    }
    if (err == GPUNVME_ERR_CLOSED && gpunvme_warp_lane() == gpunvme_warp_leader(mask))
        gpunvme_dev_queue_help(q);
    gpunvme_warp_sync(mask); /* together again, so that the next call is made together */
    return err;
}

/*
 * Submits one command and returns at once. It is 1 to ns->max_blocks blocks, and does not cross a
 * multiple of ns->boundary_blocks. `flags` is GPUNVME_IO_FUA or 0.
 *
 * AGAIN means that open tokens, perhaps this thread's own, hold all slots, or so many that a short
 * search found no free one: in a queue that is half full, about once in 100,000 submits. End
 * tokens, or do something else. Do not submit in a loop until there is room: lanes that have left
 * the loop may be held where branches reconverge, and then cannot end their tokens.
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
 * Submits one command for each of `n` elements, 1 to GPUNVME_DEV_VECTOR, with one doorbell. That
 * costs a lone thread little more than one command. The elements are commands as for
 * gpunvme_dev_submit_read(). If one is wrong, nothing is submitted.
 *
 * After GPUNVME_OK the first *nsubmitted elements, at least one, are in flight, each with its
 * token. There was no room for the others, and their tokens are STALE. AGAIN means that there was
 * room for none.
 */
GPUNVME_FN int gpunvme_dev_submit_readv(const struct gpunvme_dev_ns *ns,
                                        const struct gpunvme_dev_vec *vec, uint32_t n,
                                        const struct gpunvme_dev_buf *buf,
                                        struct gpunvme_dev_token *tokens, uint32_t *nsubmitted)
{
    return gpunvme_dev_submit_vector(ns, GPUNVME_CMD_READ, vec, n, buf, tokens, nsubmitted);
}

/* The same for writes. `flags` is GPUNVME_IO_FUA or 0. */
GPUNVME_FN int gpunvme_dev_submit_writev(const struct gpunvme_dev_ns *ns,
                                         const struct gpunvme_dev_vec *vec, uint32_t n,
                                         const struct gpunvme_dev_buf *buf, unsigned flags,
                                         struct gpunvme_dev_token *tokens, uint32_t *nsubmitted)
{
    return gpunvme_dev_submit_vector(ns, gpunvme_dev_write_op(flags), vec, n, buf, tokens,
                                     nsubmitted);
}

/*
 * Ends a token if its command is done, and returns the command's result. AGAIN while it is in
 * flight. If waiting threads reap, it looks for completions once. It has no deadline: only the
 * command's end or a reset ends a loop of tests. For a deadline use gpunvme_dev_wait().
 *
 * Lanes that test together share the look. If some lanes of a warp test while others submit, keep
 * them together: begin each turn with a ballot of all lanes that still run,
 *
 *   while ((running = gpunvme_warp_ballot(running, more)) >> gpunvme_warp_lane() & 1)
 *
 * Otherwise the compiler may let the testing lanes loop until the last of them is done, or let each
 * lane run alone. The results are the same, but it is up to eight times slower.
 */
GPUNVME_FN int gpunvme_dev_test(struct gpunvme_dev_token *token)
{
    struct gpunvme_dev_queue *q = token->queue;
    uint32_t mask = gpunvme_dev_companions(q);
    int err = gpunvme_dev_finish(q, token->ticket, 0, 0);

    if (!gpunvme_warp_ballot(mask, err == GPUNVME_ERR_AGAIN))
        return err;
    if (q->reaper == GPUNVME_REAPER_WAITERS) {
        gpunvme_dev_queue_reap(q, mask, 1);
        if (err == GPUNVME_ERR_AGAIN)
            err = gpunvme_dev_finish(q, token->ticket, 0, 0);
    }
    /* A loop of tests is a wait. Like a wait, it sometimes rings for entries left behind. */
    if (gpunvme_warp_lane() == gpunvme_warp_leader(mask) &&
        !(gpunvme_noise32() * UINT32_C(0x9e3779b9) >> 29))
        gpunvme_dev_queue_help(q);
    return err;
}

/*
 * Waits for a command of `ns`, ends its token and returns the command's result. After a TIMEOUT the
 * command is given up (see the top), and the token has ended as well.
 */
GPUNVME_FN int gpunvme_dev_wait(const struct gpunvme_dev_ns *ns, struct gpunvme_dev_token *token,
                                uint64_t timeout_ns)
{
    struct gpunvme_dev_queue *q = token->queue;
    uint32_t mask = gpunvme_dev_companions(q);
    struct gpunvme_dev_spin spin;
    int err;

    gpunvme_dev_spin_init(&spin);
    /* Its own slot first: an earlier wait may have taken the completion already. */
    err = gpunvme_dev_finish_late(token);
    while (gpunvme_warp_ballot(mask, err == GPUNVME_ERR_AGAIN)) {
        int is_done = err != GPUNVME_ERR_AGAIN;
        int end = gpunvme_dev_await(ns, q, mask, is_done ? GPUNVME_DEV_IDLE : GPUNVME_DEV_IN_FLIGHT,
                                    token->ticket, 0, &spin, timeout_ns);

        err = is_done ? err : end;
    }
    return err;
}

/* --- each thread for itself ------------------------------------------------------------------- */

/* Transfers of any number of blocks, split into commands as needed. 0 blocks: GPUNVME_OK. */
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

/* When it returns GPUNVME_OK, all writes that had completed are on the medium. */
GPUNVME_FN int gpunvme_dev_flush(const struct gpunvme_dev_ns *ns, uint64_t timeout_ns)
{
    return gpunvme_dev_command(ns, gpunvme_dev_queue_of_warp(ns), GPUNVME_CMD_FLUSH, 0, NULL, 0,
                               NULL, timeout_ns);
}

/* This thread's own n elements, one after the other. The first error ends the transfer. */
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
 * Any bytes of the namespace, to or from any byte of the buffer. Whole blocks that are at a dword
 * in memory are moved directly. Everything else goes through a bounce block. To write part of a
 * block, a thread reads the block, changes it and writes it back. If two threads do that to the
 * same block at once, one change may be lost.
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
 * One range, shared among the lanes. After an error no further command is submitted, and the data
 * of the range is undefined.
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

/* n elements, which the lanes take in turn. All lanes must be able to read `vec`. */
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

/* One gpunvme_dev_flush() for the writes of all lanes. */
GPUNVME_FN int gpunvme_dev_warp_flush(const struct gpunvme_dev_ns *ns, uint64_t timeout_ns)
{
    return gpunvme_dev_group_flush(ns, gpunvme_dev_warp(), timeout_ns);
}

/* gpunvme_dev_read_bytes() and gpunvme_dev_write_bytes() by a warp. */
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

/* The same for all threads of a block. They meet at barriers, so none may have left the kernel. */
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
 * For GPUNVME_REAPER_WARP. All lanes of a warp call it, and take completions of the namespace's
 * queues first, first + stride, … until *stop is not 0. `stop` is in GPU or pinned memory. Each
 * queue needs exactly one such warp. Stop it after the threads that use the queue.
 */
GPUNVME_FN void gpunvme_dev_reap(const struct gpunvme_dev_ns *ns, uint32_t first, uint32_t stride,
                                 const uint32_t *stop)
{
    struct gpunvme_dev_group g = gpunvme_dev_warp();
    uint32_t stopped;

    stride = !stride                ? 1
             : stride < ns->nqueues ? stride
                                    : ns->nqueues; /* so that base does not wrap */
    do {
        uint32_t taken = 0;

        stopped = gpunvme_warp_ballot(g.mask, gpunvme_load_acquire32(stop) != 0);
        /* Each lane looks at one queue. All lanes together take what one of them finds. */
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
