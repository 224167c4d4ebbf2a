/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What a worker does: takes pieces, has many under way, and ends each. posix.h has the plan of it.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "base/fail.h"
#include "gpunvme/memory.h"
#include "storage/futex.h"
#include "storage/posix/worker.h"

#define WAIT_BUSY_NS  1000000u   /* for a drive, with pieces in hand: others may come meanwhile */
#define ENOUGH_NBYTES (8u << 20) /* in a worker's hands */
#define LOOK_TURNS    64u        /* of a worker that always finds work, between looks at copies */
#define NAP_GATED_NS  20000u

/* Naps while the GPU copies are short: see posix_slot_wait(). */
#define TIMER_SLACK_NS 2000ul

/* ---- Starting pieces ---------------------------------------------------------------------------
 */

/* Takes from the page cache what is there. */
static void look(struct posix_op *op)
{
    struct posix_file *file = &posix_of(op)->file;

    if (posix_file_is_warm(file, op->piece.offset))
        posix_file_look(file, op->cpu, op->piece.nbytes, op->piece.offset, &op->done, &op->end);
}

/* A read into the caller's memory that O_DIRECT does not take goes through a slot. */
static bool is_crooked(const struct posix_op *op)
{
    const struct posix_file *file = &posix_of(op)->file;

    return !op->done && !op->end && posix_file_direct(file, GPUNVME_OP_READ, op->piece.nbytes) &&
           ((op->piece.offset | op->piece.nbytes) & (file->align - 1) ||
            (uintptr_t)op->piece.ptr & (file->memory_align - 1));
}

static void start_host(struct posix_worker *w, struct posix_op *op)
{
    op->cpu = op->piece.ptr;
    if (posix_is_read(op)) {
        look(op);
        if (is_crooked(op))
            posix_put_in_slot(w, op); /* else through the page cache */
    }
    posix_advance(w, op);
}

/* Before anything is done for it: its copy may share a kernel with those of other transfers. */
static gpunvme_err_t check_memory(struct posix_worker *w, struct posix_op *op)
{
    gpunvme_err_t err;
    int gpu;

    if (!w->has_ranges) { /* looks for a GPU, which takes a while */
        mem_ranges_init(&w->ranges);
        w->has_ranges = true;
    }
    err = mem_ranges_check(&w->ranges, op->piece.ptr, op->piece.nbytes, &gpu);
    op->gpu = !err && gpu > 0 && gpu < (int)POSIX_MAX_GPUS ? (unsigned)gpu : 0;
    return err;
}

static void start_gpu(struct posix_worker *w, struct posix_op *op)
{
    struct posix_set *set = posix_set_for(w, op);
    gpunvme_err_t err = check_memory(w, op);

    if (err) {
        posix_end_op(w, op, err);
        return;
    }
    posix_ring_pin(set->ring, set->part, op->gpu);
    if (set->nlost == set->ring->nslots) {
        posix_end_op(w, op, base_fail(GPUNVME_ERR_GPU, "the GPU does not answer any more"));
        return;
    }
    if (!posix_put_in_slot(w, op)) {
        posix_append(&w->waiting, op);
        return;
    }
    if (posix_is_read(op)) {
        look(op);
        posix_advance(w, op);
    }
}

static void start(struct posix_worker *w, struct posix_op *op)
{
    if (op->piece.op == GPUNVME_OP_FLUSH)
        posix_start_flush(w, op);
    else if (posix_is_gpu(op))
        start_gpu(w, op);
    else
        start_host(w, op);
}

static struct posix_op *new_op(struct posix_worker *w, const struct crew_piece *piece)
{
    struct posix_op *op = w->free;

    w->free = op->next;
    w->nfree--;
    memset(op, 0, sizeof(*op));
    op->piece = *piece;
    w->in_hand += piece->nbytes;
    return op;
}

/* ---- The thread --------------------------------------------------------------------------------
 */

/* A fair share of what there is to do. */
static size_t take(struct posix_worker *w, bool *stop)
{
    size_t room = crew_waiting(w->crew->crew) / w->engine->threads;
    bool busy = w->nfree < w->nops;

    /* More would keep no drive busier, and others from it. */
    if (w->waiting.first || w->in_hand > ENOUGH_NBYTES)
        return 0;
    if (!room)
        room = 1;
    if (room > w->nfree)
        room = w->nfree;
    if (!room)
        return 0;
    return crew_take(w->crew, w->pieces, room, busy ? 0 : CREW_FOR_EVER, stop);
}

static size_t reap(struct posix_worker *w)
{
    void *user;
    int result;
    size_t n = 0;

    if (!w->uring)
        return 0;
    posix_uring_submit(w->uring, 0);
    for (; posix_uring_next(w->uring, &user, &result); n++)
        posix_uring_ended(w, user, result);
    return n;
}

/*
 * What came of the copies of a slot. Those that take too long are given up, however much else there
 * is to do meanwhile.
 */
static gpunvme_err_t look_at_copies(struct posix_slot *slot, bool wait, bool *done)
{
    gpunvme_err_t err = posix_slot_copied(slot, done);
    uint64_t taken;

    if (err || *done)
        return err;
    taken = futex_now() - slot->since;
    if (!wait && taken < slot->copy_ns)
        return GPUNVME_OK;
    *done = true;
    return posix_slot_wait(slot, taken < slot->copy_ns ? slot->copy_ns - taken : 0);
}

/* Slots whose copies are done; the first of them is waited for, if there is nothing else to do. */
static size_t reap_copies(struct posix_worker *w, bool wait)
{
    size_t n = 0;

    while (w->moving) {
        struct posix_slot *slot = w->moving;
        bool done;
        gpunvme_err_t err = look_at_copies(slot, wait, &done);

        if (!err && !done)
            break;
        w->moving = slot->next;
        if (!w->moving)
            w->last_moving = &w->moving;
        posix_slot_is_copied(w, slot, err);
        wait = false;
        n++;
    }
    return n;
}

static void start_waiting(struct posix_worker *w)
{
    struct posix_op *next, *op = w->waiting.first;

    w->waiting.first = NULL;
    w->waiting.last = &w->waiting.first;
    for (; op; op = next) {
        next = op->next;
        start(w, op);
    }
}

/* Other workers have writes under way that this one's have to wait for. */
static void nap(void)
{
    const struct timespec time = {.tv_nsec = NAP_GATED_NS};

    nanosleep(&time, NULL);
}

/* There is a kind of which none is free. */
static bool lacks_slots(const struct posix_worker *w)
{
    for (unsigned i = 0; i < POSIX_NRINGS; i++)
        if (!w->sets[i].free && w->sets[i].ring->nslots)
            return true;
    return false;
}

/* A piece that waits for a slot may find one, or that it never will. */
static bool may_go_on(const struct posix_worker *w)
{
    for (unsigned i = 0; i < POSIX_NRINGS; i++)
        if (w->sets[i].free || w->sets[i].nlost)
            return true;
    return false;
}

static void one_turn(struct posix_worker *w, bool *stop)
{
    size_t n = take(w, stop), ended;

    mem_ranges_forget(&w->ranges); /* those of the last turn may have been freed */
    for (size_t i = 0; i < n; i++)
        start(w, new_op(w, &w->pieces[i]));
    posix_seal(w);
    ended = reap(w);
    /* To ask about copies costs more than to ask for some. */
    if (!n || lacks_slots(w) || ++w->turns % LOOK_TURNS == 0)
        ended += reap_copies(w, false);
    if (w->gated && posix_advance_gated(w) && !n && !ended && !posix_uring_in_flight(w->uring))
        nap();
    if (!n && !ended && w->nfree < w->nops) {
        if (posix_uring_in_flight(w->uring))
            posix_uring_submit(w->uring, w->moving ? WAIT_BUSY_NS / 20 : WAIT_BUSY_NS);
        else
            reap_copies(w, true);
    }
    if (w->waiting.first && may_go_on(w)) {
        start_waiting(w);
        posix_seal(w);
    }
}

static void work(struct crew_worker *crew_worker)
{
    struct posix_worker *w = crew_worker->state;
    bool stop = false;

    prctl(PR_SET_TIMERSLACK, TIMER_SLACK_NS, 0, 0, 0);
    while (!stop)
        one_turn(w, &stop);
    posix_uring_destroy(w->uring);
}

/* What is on a stream that does not end may still reach for the slot's memory. */
static void drop_streams(struct posix_ring *ring, const struct posix_slot *slot)
{
    for (unsigned gpu = 0; gpu < POSIX_MAX_GPUS; gpu++)
        if (gpunvme_mem_stream_destroy(slot->streams[gpu]) == GPUNVME_ERR_TIMEOUT)
            atomic_store(&ring->lost, true);
}

static void release(struct crew_worker *crew_worker)
{
    struct posix_worker *w = crew_worker->state;

    if (!w)
        return;
    for (unsigned k = 0; k < POSIX_NRINGS; k++)
        for (unsigned i = 0; i < w->sets[k].ring->nslots; i++)
            drop_streams(w->sets[k].ring, &w->sets[k].slots[i]);
    free(w->ops);
    free(w->pieces);
    free(w);
}

/* The part of a ring that is this worker's. A ring that nobody needs has no parts. */
static void take_part(struct posix_set *set, struct posix_ring *ring, unsigned index)
{
    set->ring = ring;
    if (!ring->nslots)
        return;
    set->part = &ring->parts[index];
    set->slots = &ring->slots[(size_t)index * ring->nslots];
    for (unsigned i = ring->nslots; i-- > 0;) {
        set->slots[i].cpu = set->part->base + ring->slot_nbytes * i;
        set->slots[i].part = set->part;
        set->slots[i].set = set;
        posix_free_slot(&set->slots[i]);
    }
}

static gpunvme_err_t prepare(struct crew_worker *crew_worker)
{
    struct posix_worker *w = crew_worker->state = calloc(1, sizeof(*w));
    struct posix_engine *engine = crew_worker->shared;

    if (!w)
        return base_fail(GPUNVME_ERR_NOMEM, "a worker");
    w->crew = crew_worker;
    w->engine = engine;
    for (unsigned i = 0; i < POSIX_NRINGS; i++)
        take_part(&w->sets[i], &engine->rings[i], crew_worker->index);
    w->nops = w->nfree = engine->depth;
    w->waiting.last = &w->waiting.first;
    w->last_moving = &w->moving;
    w->ops = calloc(w->nops, sizeof(*w->ops));
    w->pieces = calloc(w->nops, sizeof(*w->pieces));
    if (!w->ops || !w->pieces) {
        release(crew_worker);
        crew_worker->state = NULL;
        return base_fail(GPUNVME_ERR_NOMEM, "a worker with %u pieces in hand", engine->depth);
    }
    for (unsigned i = 0; i < w->nops; i++) {
        w->ops[i].next = w->free;
        w->free = &w->ops[i];
    }
    return GPUNVME_OK;
}

const struct crew_ops posix_crew_ops = {.prepare = prepare, .release = release, .work = work};
