/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Whether addresses are memory that a GPU has: what was asked a moment ago is remembered, so that
 * of thousands of addresses in a few allocations only the first of each costs a call of the driver.
 * A kernel that is given another address breaks all work of the process on that GPU.
 *
 * What is known holds only while nobody frees that memory: for a batch, or for what a thread has in
 * hand just now. Then it is to be forgotten. Used by one thread.
 */
#ifndef MEMORY_RANGES_H
#define MEMORY_RANGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpunvme/error.h"
#include "gpunvme/memory.h"

#define MEM_RANGES 8u

struct mem_range {
    uintptr_t begin;
    size_t nbytes;
    int gpu; /* whose it is; of pinned memory, that pinned it */
};

/* Finds a range that `ptr` lies in, of one kind throughout. False: no GPU has this address. */
typedef bool mem_range_query(const void *ptr, struct mem_range *range);

struct mem_ranges {
    mem_range_query *query; /* NULL: GPU memory is host memory, and all is well */
    unsigned n, oldest;
    struct mem_range known[MEM_RANGES];
};

/* Of this machine's GPUs. */
void mem_ranges_init(struct mem_ranges *ranges);

static inline void mem_ranges_forget(struct mem_ranges *ranges)
{
    ranges->n = 0;
}

/*
 * INVALID, with a detail, if not all `nbytes` bytes at `ptr` are memory that a GPU has; else *gpu
 * says whose the first is.
 */
gpunvme_err_t mem_ranges_check(struct mem_ranges *ranges, const void *ptr, size_t nbytes, int *gpu);

/* Whether one allocation has all of it: CUDA refuses copies that go on into the next. */
bool mem_ranges_is_one(struct mem_ranges *ranges, const void *ptr, size_t nbytes);

/* Both sides of all pieces; the detail names the first bad one. */
gpunvme_err_t mem_ranges_check_pieces(struct mem_ranges *ranges,
                                      const struct gpunvme_mem_piece *pieces, size_t n);

#endif
