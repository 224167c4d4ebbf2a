/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Pieces in slots: where they lie, when their copies begin, and their end.
 */
#include <stdlib.h>

#include "base/fail.h"
#include "gpunvme/memory.h"
#include "storage/futex.h"
#include "storage/posix/worker.h"

#define LEAST_COPY_NS 20000000u /* for the GPU, whatever a store's timeout is */

void posix_end_op(struct posix_worker *w, struct posix_op *op, gpunvme_err_t err)
{
    enum gpunvme_op kind = op->piece.op;
    enum gpunvme_route route = posix_is_gpu(op) ? op->piece.store->gpu_route : GPUNVME_ROUTE_HOST;
    size_t done = err ? 0 : op->done;

    if (!err && op->error) {
        size_t nbytes = 0;
        uint64_t offset = crew_offset(&op->piece, op->done, &nbytes);

        err = base_fail_errno(op->error, "%s%zu bytes at offset %llu",
                              kind == GPUNVME_OP_FLUSH ? "flush of " : "", nbytes,
                              (unsigned long long)offset);
    }
    if (done)
        store_moved(op->piece.io, route, done);
    lane_share_give(&w->shares, op->piece.store->dev, posix_cost_of(&op->piece));
    crew_end(&op->piece, err, done);
    free(op->offsets);
    op->next = w->free;
    w->free = op;
}

/* Callers that wait learn of a copy that does not end before they give up themselves. */
static uint64_t copy_ns_of(const struct posix_op *op)
{
    uint64_t half = op->piece.store->uri.options.timeout_ns / 2;

    return half < LEAST_COPY_NS ? LEAST_COPY_NS : half;
}

static bool may_be_direct(const struct posix_op *op)
{
    return posix_of(op)->file.direct_fd >= 0 && !op->buffered;
}

/*
 * Where a piece begins in a slot of `room` bytes that is used up to `used`. With O_DIRECT it lies
 * in its page as in the file's, and ends within the slot, as pieces end at multiples of a slot's
 * size in the file. Others lie as their memory does within 16 bytes, which copies fastest, and
 * makes one copy of neighbours, if there is room.
 */
static size_t place_of(const struct posix_op *op, size_t used, size_t room)
{
    size_t aligned = used + (((uintptr_t)op->piece.ptr - used) & 15);

    if (!may_be_direct(op))
        return aligned + op->piece.nbytes <= room ? aligned : used;
    used = (used + POSIX_PAGE - 1) & ~(size_t)(POSIX_PAGE - 1);
    return used + (size_t)(op->piece.offset & (POSIX_PAGE - 1));
}

/* What is used of a slot behind a piece: with O_DIRECT the rest of its last page is read, too. */
static size_t used_behind(const struct posix_op *op, size_t place)
{
    size_t used = place + op->piece.nbytes;

    if (!may_be_direct(op))
        return used;
    return (used + POSIX_PAGE - 1) & ~(size_t)(POSIX_PAGE - 1);
}

/* For pieces like this one. */
static struct posix_slot *take_slot(struct posix_worker *w, const struct posix_op *op)
{
    dev_t dev = op->piece.store->dev;
    size_t nbytes = used_behind(op, place_of(op, 0, POSIX_MEMORY_CHUNK));
    struct posix_slot *slot = posix_ring_take(&w->engine->ring, w->lane.index, nbytes, dev,
                                              posix_is_quick(&op->piece), op->gpu);

    if (!slot)
        return NULL;
    w->nheld++;
    slot->next = NULL;
    slot->used = 0;
    slot->op = op->piece.op;
    slot->gpu = op->gpu;
    slot->copy_ns = copy_ns_of(op);
    slot->dev = dev;
    slot->quick = true;
    slot->sealed = false;
    slot->nbusy = 0;
    slot->first = NULL;
    slot->last = &slot->first;
    return slot;
}

static void end_slot(struct posix_worker *w, struct posix_slot *slot, gpunvme_err_t err)
{
    struct posix_op *next;

    for (struct posix_op *op = slot->first; op; op = next) {
        next = op->next;
        posix_end_op(w, op, err);
    }
    w->nheld--;
    if (slot->lost)
        posix_ring_lose(slot); /* the GPU may still write there, or read */
    else
        posix_ring_give(slot);
}

void posix_slot_is_copied(struct posix_worker *w, struct posix_slot *slot, gpunvme_err_t err)
{
    struct posix_op *next;

    slot->lost = slot->lost || err == GPUNVME_ERR_TIMEOUT;
    if (err || slot->op == GPUNVME_OP_READ) {
        end_slot(w, slot, err);
    } else {
        for (struct posix_op *op = slot->first; op; op = next) {
            next = op->next; /* the last one's end frees the slot */
            posix_advance(w, op);
        }
    }
}

static void copy_slot(struct posix_worker *w, struct posix_slot *slot)
{
    gpunvme_err_t err = posix_slot_copy(slot);
    struct base_failure failure;
    bool done = false;

    /* A GPU has hardly begun; without one, or without a copy for it, it has been done. */
    if (!err && (gpunvme_mem_gpu_is_host() || !slot->streams[slot->gpu]))
        err = posix_slot_copied(slot, &done);
    if (err && slot->streams[slot->gpu]) { /* those that were started go on */
        base_keep(&failure, err);
        store_io_tell();
        slot->lost =
            gpunvme_mem_stream_sync(slot->streams[slot->gpu], slot->copy_ns) == GPUNVME_ERR_TIMEOUT;
        base_restore(&failure);
    }
    if (err || done) {
        posix_slot_is_copied(w, slot, err);
        return;
    }
    slot->since = futex_now();
    slot->next = NULL;
    *w->last_moving = slot;
    w->last_moving = &slot->next;
}

void posix_seal(struct posix_worker *w)
{
    struct posix_slot *slot = w->open;

    w->open = NULL;
    if (!slot)
        return;
    slot->sealed = true;
    if (slot->op == GPUNVME_OP_WRITE || !slot->nbusy)
        copy_slot(w, slot);
}

bool posix_is_quick(const struct crew_piece *piece)
{
    struct posix *posix = piece->store->priv;
    struct posix_file *file = &posix->file;

    if (piece->mem == GPUNVME_MEM_GPU && posix->serve_gpu)
        return false;
    return file->in_memory || (piece->op == GPUNVME_OP_READ &&
                               !atomic_load_explicit(&file->cold, memory_order_relaxed));
}

/*
 * All pieces of a slot end together. So they are of files on one device, which hang together, or
 * none of them has to be waited for.
 */
static bool may_share(const struct posix_slot *slot, const struct posix_op *op)
{
    return slot->dev == op->piece.store->dev || (slot->quick && posix_is_quick(&op->piece));
}

/* Behind others; a piece that is alone fits always. */
static bool fits(const struct posix_slot *slot, const struct posix_op *op)
{
    size_t room = op->piece.store->queue.piece_nbytes;

    if (slot->op != op->piece.op || slot->gpu != op->gpu || slot->copy_ns != copy_ns_of(op) ||
        !may_share(slot, op))
        return false;
    if (room < POSIX_LEAST_SLOT)
        room = POSIX_LEAST_SLOT;
    if (room > slot->nbytes)
        room = slot->nbytes;
    return used_behind(op, place_of(op, slot->used, slot->nbytes)) <= room;
}

bool posix_put_in_slot(struct posix_worker *w, struct posix_op *op)
{
    struct posix_slot *slot = w->open;
    size_t place;

    if (slot && !fits(slot, op)) {
        posix_seal(w);
        slot = NULL;
    }
    if (!slot) {
        slot = take_slot(w, op);
        if (!slot)
            return false;
        w->open = slot;
    }
    place = place_of(op, slot->used, slot->nbytes);
    op->cpu = slot->cpu + place;
    slot->used = used_behind(op, place);
    slot->quick = slot->quick && posix_is_quick(&op->piece);
    op->slot = slot;
    op->next = NULL;
    *slot->last = op;
    slot->last = &op->next;
    slot->nbusy++;
    return true;
}

void posix_slot_finished(struct posix_worker *w, struct posix_slot *slot)
{
    if (--slot->nbusy || !slot->sealed)
        return;
    if (slot->op == GPUNVME_OP_READ)
        copy_slot(w, slot);
    else
        end_slot(w, slot, GPUNVME_OK);
}
