/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What a lane does: takes pieces, has many under way, and ends each. posix.h has the plan of it.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/fail.h"
#include "base/relax.h"
#include "gpunvme/memory.h"
#include "storage/futex.h"
#include "storage/posix/worker.h"

#define NOPS 320u /* pieces that a lane has in hand */
#define ENOUGH_SLOW                                                                                \
    (16u << 20)                   /* bytes in hand that drives are asked for; more would keep none \
                                     busier, and others from it. One device has half of it */
#define ENOUGH_QUICK (8u << 20)   /* of a device, that are copied at once */
#define CACHED_GROUP (1u << 20)   /* bytes of a gather's ranges in a piece, of what is cached */
#define LOOK_NBYTES  (256u << 10) /* read between looks at copies */
#define LOOK_TURNS   64u          /* of a lane that always finds work, between looks at copies */
#define NAP_GATED_NS 20000u
#define NAP_SLOT_NS  100000u
#define NAP_COPY_NS  20000u
#define LOOKS_COPY   8u  /* at a copy, before a nap: enough for a small one alone */
#define RELAX_COPY   32u /* pauses of the processor between them: about a microsecond */

/* ---- Starting pieces ------------------------------------------------------------------------- */

/*
 * Ranges of a gather share pieces as long as they are copied from memory: a drive has more of them
 * to do at once if each is a piece of its own.
 */
static void set_group(struct gpunvme_store *store, bool is_cached)
{
    const struct posix *posix = store->priv;
    size_t group = is_cached && !posix->serve_gpu ? CACHED_GROUP : 0;

    if (!posix->file.in_memory &&
        atomic_load_explicit(&store->queue.group_nbytes, memory_order_relaxed) != group)
        atomic_store_explicit(&store->queue.group_nbytes, group, memory_order_relaxed);
}

/*
 * Before a piece has to wait: a transfer whose time is up meanwhile is the caller's again, and so
 * are its offsets. False: no memory.
 */
static bool keep_offsets(struct posix_op *op)
{
    size_t nbytes;

    if (!op->piece.offsets || op->offsets)
        return true;
    nbytes = op->piece.nbytes / op->piece.each * sizeof(op->offsets[0]);
    op->offsets = malloc(nbytes);
    if (!op->offsets)
        return false;
    op->piece.offsets = memcpy(op->offsets, op->piece.offsets, nbytes);
    return true;
}

static size_t reap_copies(struct posix_worker *w);

/*
 * Takes from the page cache what is there. While slots of this lane are being copied it looks for
 * their end between steps: others may need them, and a whole piece takes a millisecond.
 */
static void look(struct posix_worker *w, struct posix_op *op)
{
    struct posix_file *file = &posix_of(op)->file;
    bool is_large = op->piece.nbytes > POSIX_SMALL, has_all = false;
    size_t unlooked = 0;

    if (posix_file_is_warm(file, op->piece.offset)) {
        do {
            size_t nbytes, got;
            uint64_t offset = crew_offset(&op->piece, op->done, &nbytes);

            if (is_large && w->moving && nbytes > LOOK_NBYTES)
                nbytes = LOOK_NBYTES;
            has_all = posix_file_look(file, op->cpu + op->done, nbytes, offset, &got, &op->end);
            op->done += got;
            unlooked += got;
            if (is_large && unlooked >= LOOK_NBYTES) {
                unlooked = 0;
                reap_copies(w);
            }
        } while (has_all && !op->end && op->done < op->piece.nbytes);
    }
    set_group(op->piece.store, has_all);
    if (!has_all && !keep_offsets(op))
        op->error = ENOMEM;
}

/* A read into the caller's memory that O_DIRECT does not take goes through a slot. */
static bool is_crooked(const struct posix_op *op)
{
    const struct posix_file *file = &posix_of(op)->file;

    return !op->done && !op->end && !op->buffered &&
           posix_file_direct(file, GPUNVME_OP_READ, op->piece.nbytes) &&
           ((op->piece.offset | op->piece.nbytes) & (file->align - 1) ||
            (uintptr_t)op->piece.ptr & (file->memory_align - 1));
}

static void start_host(struct posix_worker *w, struct posix_op *op)
{
    op->cpu = op->piece.ptr;
    if (posix_is_read(op)) {
        look(w, op);
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
    gpunvme_err_t err = check_memory(w, op);

    if (err) {
        posix_end_op(w, op, err);
        return;
    }
    if (posix_ring_is_lost(&w->engine->ring)) {
        posix_end_op(w, op, base_fail(GPUNVME_ERR_GPU, "the GPU does not answer any more"));
        return;
    }
    if (!posix_put_in_slot(w, op)) {
        if (!keep_offsets(op)) {
            posix_end_op(w, op, base_fail(GPUNVME_ERR_NOMEM, "offsets of a gather"));
            return;
        }
        op->next = NULL;
        *w->last_waiting = op;
        w->last_waiting = &op->next;
        return;
    }
    if (posix_is_read(op)) {
        look(w, op);
        posix_advance(w, op);
    }
}

static void start(struct posix_worker *w, struct posix_op *op)
{
    if (op->piece.op == GPUNVME_OP_FLUSH)
        posix_start_flush(w, op);
    else if (posix_is_served(op))
        posix_advance(w, op);
    else if (posix_is_gpu(op))
        start_gpu(w, op);
    else
        start_host(w, op);
}

/*
 * A piece that goes through a slot waits behind others while no slot is free. If some are free,
 * those that wait are of devices that have their share.
 */
static bool would_wait(struct posix_worker *w, const struct crew_piece *piece)
{
    return w->waiting && piece->mem == GPUNVME_MEM_GPU && !w->engine->ring.nfree;
}

/* Pieces that come at once are never kept from it by those that wait for a drive. */
static bool admit(struct lane *lane, const struct crew_piece *piece)
{
    struct posix_worker *w = (struct posix_worker *)lane;
    dev_t dev = piece->store->dev;
    size_t cost = posix_cost_of(piece);

    if (would_wait(w, piece))
        return false;
    if (!posix_is_quick(piece))
        return lane_share_take(&w->shares, dev, cost, ENOUGH_SLOW);
    if (*lane_share_of(&w->shares, dev) > ENOUGH_QUICK)
        return false;
    lane_share_add(&w->shares, dev, cost);
    return true;
}

static void begin(struct lane *lane, const struct crew_piece *piece)
{
    struct posix_worker *w = (struct posix_worker *)lane;
    struct posix_op *op = w->free;

    w->free = op->next;
    memset(op, 0, sizeof(*op));
    op->piece = *piece;
    op->buffered = piece->offsets; /* O_DIRECT would read whole blocks, into neighbours' memory */
    w->nbegun++;
    start(w, op);
}

/* ---- The turn -------------------------------------------------------------------------------- */

static size_t reap(struct posix_worker *w)
{
    void *user;
    int result;
    size_t n = 0;

    if (!w->uring)
        return 0;
    posix_uring_submit(w->uring, 0);
    for (; posix_uring_next(w->uring, &user, &result); n++)
        posix_request_ended(w, user, result);
    return n;
}

static size_t reap_pool(struct posix_worker *w)
{
    struct pool_job *next, *job = pool_box_take(&w->box);
    size_t n = 0;

    for (; job; job = next, n++) {
        struct posix_op *op = (struct posix_op *)job;

        next = job->next;
        posix_request_ended(w, op, op->result);
    }
    return n;
}

/*
 * What came of the copies of a slot. Those that take too long are given up, however much else there
 * is to do meanwhile.
 */
static gpunvme_err_t look_at_copies(struct posix_slot *slot, bool *done)
{
    gpunvme_err_t err = posix_slot_copied(slot, done);

    if (err || *done || futex_now() - slot->since < slot->copy_ns)
        return err;
    *done = true;
    return base_fail(GPUNVME_ERR_TIMEOUT,
                     "a copy by the GPU is not done after %llu ms: it is busy, or hangs; the "
                     "memory may be in use as long as it does",
                     (unsigned long long)(slot->copy_ns / 1000000));
}

/* Slots whose copies are done. */
static size_t reap_copies(struct posix_worker *w)
{
    size_t n = 0;

    while (w->moving) {
        struct posix_slot *slot = w->moving;
        bool done;
        gpunvme_err_t err = look_at_copies(slot, &done);

        if (!err && !done)
            break;
        w->moving = slot->next;
        if (!w->moving)
            w->last_moving = &w->moving;
        posix_slot_is_copied(w, slot, err);
        n++;
    }
    return n;
}

static void start_waiting(struct posix_worker *w)
{
    struct posix_op *next, *op = w->waiting;

    w->waiting = NULL;
    w->last_waiting = &w->waiting;
    for (; op; op = next) {
        next = op->next;
        start(w, op);
    }
}

static bool turn(struct lane *lane)
{
    struct posix_worker *w = (struct posix_worker *)lane;
    const struct posix_ring *ring = &w->engine->ring;
    size_t n = w->nbegun, ended;

    w->nbegun = 0;
    posix_seal(w);
    ended = reap(w) + reap_pool(w);
    /* To ask about copies costs more than to ask for some. */
    if (!n || w->nheld > 1 || ++w->turns % LOOK_TURNS == 0)
        ended += reap_copies(w);
    if (w->gated)
        ended += posix_advance_gated(w);
    if (w->waiting && (ring->nfree || ring->nlost)) { /* they find one, or that they never will */
        start_waiting(w);
        posix_seal(w);
    }
    mem_ranges_forget(&w->ranges); /* those of this turn may be freed from now on */
    if (n || ended)
        w->naps = 0;
    return n || ended;
}

static void nap(uint64_t ns)
{
    const struct timespec time = {.tv_nsec = (long)ns};

    nanosleep(&time, NULL);
}

/*
 * Nobody tells when a copy is done. To ask takes a lock of the driver, which those need who start
 * copies: so it is asked a few times, and then now and then.
 */
static void wait_for_copy(struct posix_worker *w)
{
    if (w->naps++ >= LOOKS_COPY)
        nap(NAP_COPY_NS);
    else
        for (unsigned i = 0; i < RELAX_COPY; i++)
            base_relax();
}

static bool wait(struct lane *lane, uint64_t ns)
{
    struct posix_worker *w = (struct posix_worker *)lane;

    if (posix_uring_in_flight(w->uring))
        posix_uring_submit(w->uring, w->moving ? ns / 20 : ns);
    else if (w->moving)
        wait_for_copy(w);
    else if (w->gated)
        nap(NAP_GATED_NS); /* other lanes have writes under way that this one's wait for, … */
    else if (w->waiting)
        nap(NAP_SLOT_NS); /* … or slots */
    else
        return false;
    return true;
}

/* ---- Making one ------------------------------------------------------------------------------ */

static void close_lane(struct lane *lane)
{
    struct posix_worker *w = (struct posix_worker *)lane;

    posix_uring_destroy(w->uring);
    free(lane->hands);
    free(w->ops);
    free(w);
}

static const struct lane_ops lane_ops = {
    .admit = admit, .begin = begin, .turn = turn, .wait = wait, .close = close_lane};

gpunvme_err_t posix_add_lane(struct posix_engine *engine, unsigned index, struct worker *worker)
{
    struct posix_worker *w = calloc(1, sizeof(*w));
    struct posix_op *ops = calloc(NOPS, sizeof(*ops));

    if (!w || !ops || lane_make_room(&w->lane, NOPS)) {
        free(w);
        free(ops);
        return base_fail(GPUNVME_ERR_NOMEM, "a lane");
    }
    w->engine = engine;
    w->box.worker = worker;
    w->last_waiting = &w->waiting;
    w->last_moving = &w->moving;
    w->ops = ops;
    for (unsigned i = 0; i < NOPS; i++) {
        ops[i].next = w->free;
        w->free = &ops[i];
    }
    crew_add(engine->crew, &lane_ops, index, &w->lane);
    return GPUNVME_OK;
}
