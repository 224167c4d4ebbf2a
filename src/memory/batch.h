/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How a batch of small pieces is cut for the kernel that copies them, and how a warp copies what
 * was cut. All of it is arithmetic, the same on the CPU and on the GPU: tests run it on the CPU.
 *
 * A warp stores aligned vectors of 16 bytes. Where source and destination lie differently within
 * 16 bytes, each vector is put together of two aligned ones of the source. No vector reaches
 * beyond its range: what they can't cover, fewer than 32 bytes on each side, goes byte by byte, one
 * byte a lane.
 */
#ifndef MEMORY_BATCH_H
#define MEMORY_BATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpunvme/fn.h"
#include "gpunvme/memory.h"

#ifdef __cplusplus
extern "C" {
#endif

#define MEM_BATCH_VECTOR 16u

/* What a warp copies at once: 8 vectors for each of its 32 lanes, all in flight together. */
#define MEM_BATCH_LANES        32u
#define MEM_BATCH_LANE_VECTORS 8u
#define MEM_BATCH_UNIT         (MEM_BATCH_VECTOR * MEM_BATCH_LANES * MEM_BATCH_LANE_VECTORS)

/* Larger pieces are copied by the copy engine: each costs its caller microseconds under a lock. */
#define MEM_BATCH_KERNEL_MAX ((size_t)256 << 10)

/* An entry of the table that the kernel reads: 0 < nbytes <= MEM_BATCH_UNIT. */
struct mem_batch_unit {
    uint64_t dst;
    uint64_t src;
    uint64_t nbytes;
};

/* Where a batch has been cut to. */
struct mem_batch_cursor {
    const struct gpunvme_mem_piece *pieces;
    size_t n;
    size_t piece; /* the next one */
    size_t off;   /* what is done of it */
};

/*
 * Cuts pieces of at most `max_nbytes` bytes into units, `room` of them at most, and passes over
 * larger ones. Returns the number of units: 0 at the end. `units` may be NULL: then it only counts.
 */
size_t mem_batch_cut(struct mem_batch_cursor *cursor, size_t max_nbytes,
                     struct mem_batch_unit *units, size_t room);

/*
 * The tables of launches that are not done, in a ring of `capacity` units: each table is in one
 * piece, and they end in the order in which they began.
 */
#define MEM_BATCH_RING_TABLES 64u

struct mem_batch_ring {
    size_t capacity;
    size_t next;    /* where the next table would begin */
    unsigned first; /* the oldest table */
    unsigned ntables;
    size_t begin[MEM_BATCH_RING_TABLES];
};

/* Room for a table of 0 < n <= capacity units: *begin is its first. False when there is none. */
bool mem_batch_ring_find(const struct mem_batch_ring *ring, size_t n, size_t *begin);

/* Takes the room that was found, with its n or fewer units; returns which of the tables it is. */
unsigned mem_batch_ring_push(struct mem_batch_ring *ring, size_t begin, size_t n);

/* Drops the oldest table; there must be one. */
void mem_batch_ring_pop(struct mem_batch_ring *ring);

#ifdef __cplusplus
}
#endif

/*
 * A unit as its warp sees it: `head` bytes, then vectors, then `tail` bytes. Vector i is the bytes
 * from `shift` on of two aligned vectors of the source, number i and i + 1 from `src_vectors`; with
 * shift 0 it is number i alone.
 */
struct mem_batch_layout {
    uint32_t head;
    uint32_t nvectors;
    uint32_t tail;
    uint32_t shift;
    uint64_t src_vectors; /* addresses, multiples of 16 */
    uint64_t dst_vectors;
};

GPUNVME_FN void mem_batch_lay_out(uint64_t dst, uint64_t src, uint32_t nbytes,
                                  struct mem_batch_layout *l)
{
    uint32_t head = (uint32_t)(0 - dst) & (MEM_BATCH_VECTOR - 1), behind;

    l->shift = (uint32_t)(src + head) & (MEM_BATCH_VECTOR - 1);
    /* The first aligned vector of the source must not begin before the source does. */
    if (l->shift > head)
        head += MEM_BATCH_VECTOR;
    /* The last one must not end behind it: with a shift it holds bytes that are not stored. */
    behind = l->shift ? MEM_BATCH_VECTOR - l->shift : 0;
    l->nvectors = nbytes >= head + behind ? (nbytes - head - behind) / MEM_BATCH_VECTOR : 0;
    l->head = head < nbytes ? head : nbytes;
    l->tail = nbytes - l->head - l->nvectors * MEM_BATCH_VECTOR;
    l->src_vectors = src + head - l->shift;
    l->dst_vectors = dst + head;
}

/* Sixteen bytes as two little-endian words. */
struct mem_batch_vector {
    uint64_t lo;
    uint64_t hi;
};

/* The 16 bytes from byte `shift` on, 0 < shift < 16, of `a` and, behind it, `b`. */
GPUNVME_FN struct mem_batch_vector mem_batch_join(struct mem_batch_vector a,
                                                  struct mem_batch_vector b, uint32_t shift)
{
    const int high = shift >= 8;
    const uint64_t w0 = high ? a.hi : a.lo, w1 = high ? b.lo : a.hi, w2 = high ? b.hi : b.lo;
    const uint32_t bits = (shift & 7u) * 8;
    struct mem_batch_vector v;

    /* In two steps, since a shift by 64 bits is none. */
    v.lo = w0 >> bits | (w1 << 1) << (63 - bits);
    v.hi = w1 >> bits | (w2 << 1) << (63 - bits);
    return v;
}

#endif
