/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What bench/python_cost.py and torch_cost.py compare Python with: the same calls by C. They
 * compile this file and call it in their own process, on the same store and memory, with the
 * library's functions, so that what slows one down slows the other down.
 */
#include <time.h>

#include "gpunvme/storage.h"

#define BLOCK 4096u

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Reads the first `nbytes` bytes `n` times, one after the other: seconds, or -1 after an error. */
double python_peer_pread(gpunvme_err_t (*read)(struct gpunvme_store *, uint64_t, void *,
                                               enum gpunvme_mem, size_t, size_t *),
                         struct gpunvme_store *store, void *memory, int mem, size_t nbytes,
                         unsigned n);

double python_peer_pread(gpunvme_err_t (*read)(struct gpunvme_store *, uint64_t, void *,
                                               enum gpunvme_mem, size_t, size_t *),
                         struct gpunvme_store *store, void *memory, int mem, size_t nbytes,
                         unsigned n)
{
    double begin = now();
    size_t done;

    while (n--)
        if (read(store, 0, memory, (enum gpunvme_mem)mem, nbytes, &done) || done != nbytes)
            return -1;
    return now() - begin;
}

/* Reads `n` blocks by one call: seconds, or -1 after an error. */
double python_peer_batch(gpunvme_err_t (*run)(struct gpunvme_io *, size_t),
                         struct gpunvme_store *store, char *memory, struct gpunvme_io *ios,
                         unsigned n, const uint64_t *offsets);

double python_peer_batch(gpunvme_err_t (*run)(struct gpunvme_io *, size_t),
                         struct gpunvme_store *store, char *memory, struct gpunvme_io *ios,
                         unsigned n, const uint64_t *offsets)
{
    double begin = now();

    for (unsigned i = 0; i < n; i++)
        ios[i] = (struct gpunvme_io){.store = store,
                                     .offset = offsets[i],
                                     .ptr = memory + (size_t)i * BLOCK,
                                     .nbytes = BLOCK};
    return run(ios, n) ? -1 : now() - begin;
}

/* Calls an operator `n` times, one after the other: seconds, or -1 after an error. */
double python_peer_operator(int (*operator)(const void *, const void *), const void *problem,
                            const void *exec, unsigned n);

double python_peer_operator(int (*operator)(const void *, const void *), const void *problem,
                            const void *exec, unsigned n)
{
    double begin = now();

    while (n--)
        if (operator(problem, exec))
            return -1;
    return now() - begin;
}
