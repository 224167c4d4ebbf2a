/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Requests to the kernel: what is asked for next of a piece, by io_uring or at once, past the page
 * cache or through it, and what came of it.
 */
#include <errno.h>

#include "base/fail.h"
#include "storage/futex.h"
#include "storage/posix/worker.h"

#define FILL_NBYTES (64u << 10) /* less is written sooner than pages are mapped */
#define PATIENCE_NS 20000000u   /* of a direct write that wants its turn */
#define URING_DEPTH 256u

/* The file has done its part. */
static void finished(struct posix_worker *w, struct posix_op *op)
{
    struct posix_slot *slot = op->slot;

    if (!slot) {
        posix_end_op(w, op, GPUNVME_OK);
        return;
    }
    posix_slot_finished(w, slot);
}

/*
 * Straight into the caller's memory: no byte behind the end of the file is touched. The file is
 * asked where that is only behind what was seen to be its size, and not at all if its file system
 * may stop to answer: then the rest goes through the page cache.
 */
static size_t straight_nbytes(struct posix_op *op)
{
    struct posix_file *file = &posix_of(op)->file;
    size_t left = op->piece.nbytes - op->done;
    uint64_t size = atomic_load_explicit(&file->seen_nbytes, memory_order_relaxed);

    if (op->at & (file->align - 1) || (uintptr_t)op->memory & (file->memory_align - 1))
        return 0;
    if (op->at + left > size && !file->is_served) {
        if (store_fd_size(file->fd, file->block_device, &size))
            return 0;
        atomic_store_explicit(&file->seen_nbytes, size, memory_order_relaxed);
    }
    if (size <= op->at)
        return 0;
    if (left > size - op->at)
        left = (size_t)(size - op->at);
    return left & ~(size_t)(file->align - 1);
}

/* Whole pages of a write go past the page cache, what is ragged through it. */
static void plan_write(struct posix_op *op)
{
    size_t in_page = (size_t)(op->at & (POSIX_PAGE - 1));

    if (in_page) {
        if (op->asked > POSIX_PAGE - in_page)
            op->asked = POSIX_PAGE - in_page;
    } else if (op->asked >= POSIX_PAGE &&
               !((uintptr_t)op->memory & (posix_of(op)->file.memory_align - 1))) {
        op->asked &= ~(size_t)(POSIX_PAGE - 1);
        op->direct = true;
    }
}

/* Its next request. */
static void plan(struct posix_op *op)
{
    const struct posix_file *file = &posix_of(op)->file;
    const struct gpunvme_io *io = op->piece.io;
    size_t mask = file->align - 1, straight;

    op->at = crew_offset(&op->piece, op->done, &op->asked);
    op->memory = op->cpu + op->done;
    op->before = 0;
    op->direct = posix_is_served(op); /* it may write past the page cache */
    if (op->direct)
        return;
    /* Of the whole range: its last piece may be small. */
    if (op->buffered ||
        !posix_file_direct(file, op->piece.op, io->offsets ? io->nbytes : io->priv.total))
        return;
    if (!posix_is_read(op)) {
        plan_write(op);
    } else if (op->slot) {
        op->before = (size_t)(op->at & mask);
        op->memory -= op->before;
        op->at -= op->before;
        op->asked = (op->before + op->asked + mask) & ~mask;
        op->direct = true;
    } else if ((straight = straight_nbytes(op))) {
        op->asked = straight;
        op->direct = true;
    }
}

/*
 * Has other writes make way for this one; false: it has to wait, and is kept. A direct one that has
 * waited long goes through the page cache, too. Not at once: one ragged write would have all that
 * are under way with it go there, and those the next ones, to the end of the transfer.
 */
static bool enter(struct posix_worker *w, struct posix_op *op)
{
    struct posix *posix = posix_of(op);

    if (posix_is_read(op) || posix->file.in_memory ||
        (posix->file.direct_fd < 0 && !posix->serve_gpu))
        return true;
    if (op->direct && op->refused && !posix_is_served(op) &&
        futex_now() - op->refused > PATIENCE_NS)
        op->direct = false;
    op->in_gate = posix_gate_enter(&posix->gate, op->direct);
    if (op->direct && op->in_gate)
        op->refused = 0;
    else if (op->direct && !op->refused)
        op->refused = futex_now();
    if (!op->in_gate) {
        op->next_gated = w->gated;
        w->gated = op;
    }
    return op->in_gate;
}

static void leave(struct posix_op *op)
{
    if (op->in_gate)
        posix_gate_leave(&posix_of(op)->gate, op->direct);
    op->in_gate = false;
}

size_t posix_advance_gated(struct posix_worker *w)
{
    struct posix_op *next, *op = w->gated;
    size_t n = 0;

    w->gated = NULL;
    for (; op; op = next, n++) {
        next = op->next_gated;
        posix_advance(w, op);
    }
    for (op = w->gated; op; op = op->next_gated)
        n--;
    return n;
}

/* What came of a request: bytes, or -errno. */
static void took(struct posix_op *op, ssize_t result)
{
    struct posix_file *file = &posix_of(op)->file;
    size_t left = op->piece.nbytes - op->done, got;

    leave(op);
    if ((result == -EINTR || result == -EAGAIN || result == -ECANCELED) && !op->blocks) {
        op->blocks = true; /* once more, where it may wait */
    } else if (result < 0 && op->direct && (result == -EINVAL || result == -EOPNOTSUPP)) {
        op->buffered = true;
        if (!atomic_load_explicit(&file->direct_works, memory_order_relaxed))
            atomic_store(&file->no_direct, true);
    } else if (result < 0) {
        op->error = (int)-result;
    } else {
        got = (size_t)result > op->before ? (size_t)result - op->before : 0;
        op->done += got < left ? got : left;
        if (!got && posix_is_read(op))
            op->end = true;
        else if (!got)
            op->error = ENOSPC;
        if (op->direct && got && !atomic_load_explicit(&file->direct_works, memory_order_relaxed))
            atomic_store(&file->direct_works, true);
    }
}

/* A lane's ring is made when its first request wants one. */
static bool has_uring(struct posix_worker *w)
{
    int error;

    if (w->uring || w->blind)
        return w->uring;
    error = posix_uring_create(URING_DEPTH, &w->uring);
    if (error && !posix_uring_may_come(error)) {
        w->blind = true;
        atomic_fetch_add(&w->engine->nblind, 1);
    }
    return !error;
}

static bool ask_uring(struct posix_worker *w, struct posix_op *op)
{
    const struct posix_file *file = &posix_of(op)->file;

    if (op->blocks || posix_is_served(op) || !posix_of(op)->uring || !has_uring(w))
        return false;
    return posix_uring_move(w->uring, op->direct ? file->direct_fd : file->fd, op->piece.op,
                            op->memory, op->asked, op->at, op);
}

/* Of a file in memory. By pwrite(2) writes hinder each other. */
static ssize_t move_memory(struct posix_op *op)
{
    struct posix *posix = posix_of(op);
    ssize_t result;

    if (posix_is_read(op))
        return store_fd_move(posix->file.fd, GPUNVME_OP_READ, op->memory, op->asked, op->at);
    if (op->asked < FILL_NBYTES)
        return store_fd_move(posix->file.fd, GPUNVME_OP_WRITE, op->memory, op->asked, op->at);
    result = (ssize_t)posix_fill_write(&posix->fill, op->memory, op->asked, op->at);
    if (result)
        return result;
    pthread_mutex_lock(&posix->write_lock);
    result = store_fd_move(posix->file.fd, GPUNVME_OP_WRITE, op->memory, op->asked, op->at);
    pthread_mutex_unlock(&posix->write_lock);
    return result;
}

/* What stopped it short is noted at once: the detail is this thread's. */
static void serve(struct posix_op *op)
{
    const struct crew_piece *piece = &op->piece;
    gpunvme_err_t err = posix_of(op)->serve_gpu(piece, &op->done);

    if (err)
        store_io_stop(piece->io, piece->at + op->done, err);
    op->end = true;
}

/* In a thread of the pool. */
static void make_request(struct pool_job *job)
{
    struct posix_op *op = (struct posix_op *)job;
    const struct posix_file *file = &posix_of(op)->file;

    if (op->piece.op == GPUNVME_OP_FLUSH)
        op->result = -store_fd_flush(file->fd);
    else if (posix_is_served(op))
        serve(op);
    else
        op->result = store_fd_move(op->direct ? file->direct_fd : file->fd, op->piece.op,
                                   op->memory, op->asked, op->at);
}

static void ask_pool(struct posix_worker *w, struct posix_op *op)
{
    op->job = (struct pool_job){.run = make_request, .dev = op->piece.store->dev, .box = &w->box};
    pool_submit(w->engine->pool, &op->job);
}

void posix_advance(struct posix_worker *w, struct posix_op *op)
{
    while (!op->error && !op->end && op->done < op->piece.nbytes) {
        plan(op);
        if (posix_of(op)->file.in_memory) {
            took(op, move_memory(op));
            continue;
        }
        if (enter(w, op) && !ask_uring(w, op))
            ask_pool(w, op);
        return;
    }
    finished(w, op);
}

void posix_start_flush(struct posix_worker *w, struct posix_op *op)
{
    const struct posix_file *file = &posix_of(op)->file;

    if (file->in_memory)
        posix_request_ended(w, op, -store_fd_flush(file->fd));
    else
        ask_pool(w, op);
}

void posix_request_ended(struct posix_worker *w, struct posix_op *op, ssize_t result)
{
    if (op->piece.op == GPUNVME_OP_FLUSH) {
        op->error = result < 0 ? (int)-result : 0;
        posix_end_op(w, op, GPUNVME_OK);
    } else {
        if (posix_is_served(op))
            leave(op);
        else
            took(op, result);
        posix_advance(w, op);
    }
}
