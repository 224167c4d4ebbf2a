/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Cuts the pieces of a batch into what a warp copies at once, and keeps the books of the ring that
 * the tables lie in. Knows no CUDA.
 */
#include "memory/batch.h"

/* Cuts of a long piece lie where its destination's lines of memory begin. */
#define LINE 128

static size_t unit_of(const struct gpunvme_mem_piece *piece, size_t off)
{
    size_t left = piece->nbytes - off;

    if (left <= MEM_BATCH_UNIT)
        return left;
    return MEM_BATCH_UNIT - (((uintptr_t)piece->dst + off) & (LINE - 1));
}

size_t mem_batch_cut(struct mem_batch_cursor *cursor, size_t max_nbytes,
                     struct mem_batch_unit *units, size_t room)
{
    size_t filled = 0, nbytes;

    while (filled < room && cursor->piece < cursor->n) {
        const struct gpunvme_mem_piece *piece = &cursor->pieces[cursor->piece];

        if (piece->nbytes > max_nbytes || cursor->off == piece->nbytes) {
            cursor->piece++;
            cursor->off = 0;
            continue;
        }
        nbytes = unit_of(piece, cursor->off);
        if (units)
            units[filled] = (struct mem_batch_unit){
                .dst = (uintptr_t)piece->dst + cursor->off,
                .src = (uintptr_t)piece->src + cursor->off,
                .nbytes = nbytes,
            };
        filled++;
        cursor->off += nbytes;
    }
    return filled;
}

bool mem_batch_ring_find(const struct mem_batch_ring *ring, size_t n, size_t *begin)
{
    size_t oldest = ring->begin[ring->first];

    *begin = 0;
    if (ring->ntables == 0)
        return n <= ring->capacity;
    if (ring->ntables == MEM_BATCH_RING_TABLES)
        return false;
    if (ring->next > oldest && ring->capacity - ring->next >= n) {
        *begin = ring->next;
        return true;
    }
    if (ring->next > oldest)
        return oldest >= n; /* at the front; full up to the oldest is next == oldest */
    *begin = ring->next;
    return oldest - ring->next >= n;
}

unsigned mem_batch_ring_push(struct mem_batch_ring *ring, size_t begin, size_t n)
{
    unsigned table = (ring->first + ring->ntables) % MEM_BATCH_RING_TABLES;

    ring->begin[table] = begin;
    ring->ntables++;
    ring->next = begin + n;
    return table;
}

void mem_batch_ring_pop(struct mem_batch_ring *ring)
{
    ring->first = (ring->first + 1) % MEM_BATCH_RING_TABLES;
    ring->ntables--;
}
