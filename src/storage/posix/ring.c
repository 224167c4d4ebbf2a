/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Slots of pinned memory between files and GPU memory, and the copies between slots and GPU.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/fail.h"
#include "gpunvme/memory.h"
#include "memory/cuda.h"
#include "memory/stream.h"
#include "storage/posix/worker.h"

#define COPIES 128u /* of a batch */

static void lay_out(struct posix_ring *ring, unsigned nlarge)
{
    uint8_t *end = ring->base + ring->nbytes;

    for (unsigned i = ring->nslots; i-- > 0;) {
        struct posix_slot *slot = &ring->slots[i];

        slot->ring = ring;
        slot->nbytes = i < nlarge ? POSIX_MEMORY_CHUNK : POSIX_SMALL;
        slot->cpu = end -= slot->nbytes;
        slot->mem = GPUNVME_MEM_HOST;
        slot->home = i % ring->nlanes;
        slot->next = ring->free[slot->home];
        ring->free[slot->home] = slot;
    }
}

/* Address space; memory comes with the first touch. */
gpunvme_err_t posix_ring_create(struct posix_ring *ring, unsigned nlanes, unsigned nlarge,
                                unsigned nsmall, struct place *place)
{
    void *base;

    pthread_mutex_init(&ring->lock, NULL);
    pthread_mutex_init(&ring->free_lock, NULL);
    ring->place = place;
    ring->nlanes = nlanes;
    ring->free = calloc(nlanes, sizeof(ring->free[0]));
    ring->slots = calloc(nlarge + nsmall, sizeof(*ring->slots));
    if (!ring->free || !ring->slots)
        return base_fail(GPUNVME_ERR_NOMEM, "%u slots", nlarge + nsmall);
    ring->nbytes = (size_t)nlarge * POSIX_MEMORY_CHUNK + (size_t)nsmall * POSIX_SMALL;
    base = mmap(NULL, ring->nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED)
        return base_fail_errno(errno, "%zu bytes of memory for slots: take fewer threads",
                               ring->nbytes);
    ring->base = base;
    ring->nslots = nlarge + nsmall;
    ring->nfree = ring->nslots;
    lay_out(ring, nlarge);
    madvise(base, ring->nbytes, MADV_HUGEPAGE); /* a wish: fine without */
    return GPUNVME_OK;
}

/* What is on a stream that does not end may still reach for the slot's memory. */
static bool drop_streams(const struct posix_slot *slot)
{
    bool ended = true;

    for (unsigned gpu = 0; gpu < POSIX_MAX_GPUS; gpu++)
        if (gpunvme_mem_stream_destroy(slot->streams[gpu]) == GPUNVME_ERR_TIMEOUT)
            ended = false;
    return ended;
}

void posix_ring_destroy(struct posix_ring *ring)
{
    bool ended = true;

    for (unsigned i = 0; i < ring->nslots; i++)
        ended &= drop_streams(&ring->slots[i]);
    for (unsigned i = 0; i < ring->nslots && ended; i++)
        gpunvme_mem_unregister(&ring->slots[i].pinned);
    if (ring->base && ended)
        munmap(ring->base, ring->nbytes);
    free(ring->free);
    free(ring->slots);
    pthread_mutex_destroy(&ring->lock);
    pthread_mutex_destroy(&ring->free_lock);
}

/* ---- Pinning --------------------------------------------------------------------------------- */

static gpunvme_err_t pin(struct posix_slot *slot, unsigned gpu)
{
    gpunvme_err_t err = mem_cuda_present() ? mem_cuda_enter(gpu) : GPUNVME_OK;

    if (err)
        return err;
    err = gpunvme_mem_register(slot->cpu, slot->nbytes, GPUNVME_MEM_PINNED, &slot->pinned);
    if (mem_cuda_present())
        mem_cuda_leave();
    return err;
}

/* Under the lock. */
static void try_to_pin(struct posix_ring *ring, struct posix_slot *slot, unsigned gpu)
{
    if (!atomic_load(&ring->npinned))
        atomic_store(&ring->gpu, gpu);
    if (!pin(slot, atomic_load(&ring->gpu))) {
        slot->mem = GPUNVME_MEM_PINNED;
        atomic_fetch_add(&ring->pinned_nbytes, slot->nbytes);
        atomic_fetch_add(&ring->npinned, 1);
    } else {
        if (!atomic_load(&ring->nrefused)) /* others may read it from then on */
            snprintf(ring->why_not, sizeof(ring->why_not), "%s", gpunvme_err_detail());
        atomic_fetch_add(&ring->nrefused, 1);
    }
    atomic_store_explicit(&slot->tried, true, memory_order_release);
}

/* For this GPU; others reach it too. */
static void pin_slot(struct posix_ring *ring, struct posix_slot *slot, unsigned gpu)
{
    if (atomic_load_explicit(&slot->tried, memory_order_acquire))
        return;
    if (mem_cuda_present()) {
        place_memory(ring->place, slot->cpu, slot->nbytes, gpu);
        madvise(slot->cpu, slot->nbytes, MADV_POPULATE_WRITE); /* fine without, but slower */
    }
    pthread_mutex_lock(&ring->lock);
    if (!atomic_load(&slot->tried))
        try_to_pin(ring, slot, gpu);
    pthread_mutex_unlock(&ring->lock);
}

/* ---- Slots are taken and given back ---------------------------------------------------------- */

/* The first in a list that is large enough; one that holds NULL: there is none. */
static struct posix_slot **first_of(struct posix_slot **link, size_t nbytes)
{
    while (*link && (*link)->nbytes < nbytes)
        link = &(*link)->next;
    return link;
}

/* Under the lock: a slot of this lane, or of another one, pinned already if it can be; or NULL. */
static struct posix_slot **find_slot(struct posix_ring *ring, unsigned lane, size_t nbytes)
{
    struct posix_slot **link = first_of(&ring->free[lane], nbytes), **other = NULL;

    if (*link)
        return link;
    for (unsigned i = 0; i < ring->nlanes && ring->nfree; i++) {
        link = first_of(&ring->free[i], nbytes);
        if (*link && atomic_load(&(*link)->tried))
            return link;
        if (*link && !other)
            other = link;
    }
    return other;
}

struct posix_slot *posix_ring_take(struct posix_ring *ring, unsigned lane, size_t nbytes, dev_t dev,
                                   bool is_quick, unsigned gpu)
{
    struct posix_slot *slot, **link;

    pthread_mutex_lock(&ring->free_lock);
    link = find_slot(ring, lane, nbytes);
    slot = link ? *link : NULL;
    if (slot && is_quick)
        lane_share_add(&ring->shares, dev, 1);
    else if (slot && !lane_share_take(&ring->shares, dev, 1, ring->nslots))
        slot = NULL;
    if (slot) {
        *link = slot->next;
        ring->nfree--;
    }
    pthread_mutex_unlock(&ring->free_lock);
    if (slot)
        pin_slot(ring, slot, gpu);
    return slot;
}

void posix_ring_give(struct posix_slot *slot)
{
    struct posix_ring *ring = slot->ring;

    pthread_mutex_lock(&ring->free_lock);
    lane_share_give(&ring->shares, slot->dev, 1);
    slot->next = ring->free[slot->home];
    ring->free[slot->home] = slot;
    ring->nfree++;
    pthread_mutex_unlock(&ring->free_lock);
}

void posix_ring_lose(struct posix_slot *slot)
{
    struct posix_ring *ring = slot->ring;

    pthread_mutex_lock(&ring->free_lock);
    lane_share_give(&ring->shares, slot->dev, 1);
    ring->nlost++;
    pthread_mutex_unlock(&ring->free_lock);
}

bool posix_ring_is_lost(const struct posix_ring *ring)
{
    return ring->nlost > 1 && ring->nlost == ring->npinned + ring->nrefused;
}

/* ---- Copies ---------------------------------------------------------------------------------- */

/* Copies of a slot, collected. */
struct copies {
    struct posix_slot *slot;
    struct gpunvme_mem_stream *stream;
    unsigned n;
    struct gpunvme_mem_piece pieces[COPIES]; /* as the GPU sees them */
    void *hosts[COPIES];                     /* their host memory as the CPU does */
};

static gpunvme_err_t make_stream(unsigned gpu, struct gpunvme_mem_stream **out)
{
    gpunvme_err_t err = mem_cuda_present() ? mem_cuda_enter(gpu) : GPUNVME_OK;

    if (err)
        return err;
    err = gpunvme_mem_stream_create(NULL, out);
    if (mem_cuda_present())
        mem_cuda_leave();
    return err;
}

static gpunvme_err_t stream_of(struct posix_slot *slot, unsigned gpu,
                               struct gpunvme_mem_stream **out)
{
    struct posix_ring *ring = slot->ring;
    gpunvme_err_t err = GPUNVME_OK;

    *out = atomic_load_explicit(&slot->streams[gpu], memory_order_acquire);
    if (*out)
        return GPUNVME_OK;
    pthread_mutex_lock(&ring->lock);
    *out = atomic_load(&slot->streams[gpu]);
    if (!*out) {
        err = make_stream(gpu, out);
        atomic_store_explicit(&slot->streams[gpu], *out, memory_order_release);
    }
    pthread_mutex_unlock(&ring->lock);
    return err;
}

gpunvme_err_t posix_ring_prepare(struct posix_ring *ring, unsigned gpu)
{
    struct gpunvme_mem_stream *stream;
    gpunvme_err_t err = GPUNVME_OK;

    for (unsigned i = 0; i < ring->nslots && !err; i++) {
        pin_slot(ring, &ring->slots[i], gpu);
        err = stream_of(&ring->slots[i], gpu, &stream);
        if (!err)
            err = mem_stream_prepare_batches(stream);
    }
    return err;
}

/* CUDA refuses a copy that goes from one allocation into the next; a transfer's memory is one. */
static bool is_one_memory(const struct posix_op *a, const struct posix_op *b)
{
    const struct crew_piece *x = &a->piece, *y = &b->piece;

    return (x->io == y->io && !x->io->vecs) || (x->region && x->region == y->region);
}

/* Pieces that lie one behind the other on both sides, from `op` on, are one copy. */
static size_t run_of(struct posix_op *op, struct posix_op **next)
{
    size_t nbytes = posix_op_nbytes(op);

    for (*next = op->next; *next; *next = (*next)->next) {
        if ((*next)->cpu != op->cpu + nbytes || (*next)->piece.ptr != op->piece.ptr + nbytes ||
            (*next)->piece.mem != GPUNVME_MEM_GPU || !is_one_memory(op, *next))
            break;
        nbytes += posix_op_nbytes(*next);
    }
    return nbytes;
}

/* One is left to the copy engine, several go as a batch. Copies of memory that could not be pinned
 * are CUDA's own business. */
static gpunvme_err_t start_copies(struct copies *c)
{
    enum gpunvme_mem mem = c->slot->mem;
    bool read = c->slot->op == GPUNVME_OP_READ;
    unsigned n = c->n;
    gpunvme_err_t err = GPUNVME_OK;

    c->n = 0;
    if (n > 1 && mem == GPUNVME_MEM_PINNED) {
        c->slot->has_mark = true;
        return mem_copy_batch_checked(c->pieces, n, c->stream);
    }
    for (unsigned i = 0; i < n && !err; i++) {
        const struct gpunvme_mem_piece *piece = &c->pieces[i];

        err = read ? gpunvme_mem_copy_async(piece->dst, GPUNVME_MEM_GPU, c->hosts[i], mem,
                                            piece->nbytes, c->stream)
                   : gpunvme_mem_copy_async(c->hosts[i], mem, piece->src, GPUNVME_MEM_GPU,
                                            piece->nbytes, c->stream);
    }
    return err;
}

/* The address of its host memory that a GPU has; pinned memory has the same for both on all
 * machines that this was seen on, but nobody promises it. */
static void *gpu_address(const struct posix_slot *slot, const struct posix_op *op)
{
    return slot->mem == GPUNVME_MEM_PINNED ? (uint8_t *)slot->pinned.gpu + (op->cpu - slot->cpu)
                                           : op->cpu;
}

static gpunvme_err_t add_copy(struct copies *c, const struct posix_op *op, size_t nbytes)
{
    void *host = gpu_address(c->slot, op);
    bool read = c->slot->op == GPUNVME_OP_READ;

    if (!nbytes)
        return GPUNVME_OK;
    c->hosts[c->n] = op->cpu;
    c->pieces[c->n++] = (struct gpunvme_mem_piece){
        .dst = read ? op->piece.ptr : host, .src = read ? host : op->piece.ptr, .nbytes = nbytes};
    return c->n == COPIES ? start_copies(c) : GPUNVME_OK;
}

gpunvme_err_t posix_slot_copy(struct posix_slot *slot)
{
    struct copies c = {.slot = slot};
    gpunvme_err_t err = GPUNVME_OK;

    slot->has_mark = false;
    for (struct posix_op *op = slot->first, *next; op && !err; op = next) {
        if (op->piece.mem == GPUNVME_MEM_GPU) {
            size_t nbytes = run_of(op, &next);

            if (!c.stream)
                err = stream_of(slot, slot->gpu, &c.stream);
            if (!err)
                err = add_copy(&c, op, nbytes);
        } else {
            next = op->next;
            if (slot->op == GPUNVME_OP_READ)
                memcpy(op->piece.ptr, op->cpu, posix_op_nbytes(op));
        }
    }
    if (!err && c.n)
        err = start_copies(&c);
    return err || !slot->has_mark ? err : mem_stream_mark(c.stream, &slot->mark);
}

gpunvme_err_t posix_slot_copied(const struct posix_slot *slot, bool *done)
{
    struct gpunvme_mem_stream *stream = slot->streams[slot->gpu];

    *done = true;
    if (!stream)
        return GPUNVME_OK;
    return slot->has_mark ? mem_stream_passed(stream, slot->mark, done)
                          : gpunvme_mem_stream_query(stream, done);
}
