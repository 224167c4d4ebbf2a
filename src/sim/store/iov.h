/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A cursor over the pieces of a transfer. Knows nothing but memory.
 */
#ifndef SIM_IOV_H
#define SIM_IOV_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/uio.h>

struct sim_iov {
    const struct iovec *piece; /* the piece that the cursor is in */
    size_t at;                 /* its offset there */
};

static inline struct sim_iov sim_iov_begin(const struct iovec *iov)
{
    return (struct sim_iov){.piece = iov};
}

/* The memory at the cursor, at most nbytes of it: sets *chunk and goes on behind them. */
static inline uint8_t *sim_iov_next(struct sim_iov *cursor, size_t nbytes, size_t *chunk)
{
    uint8_t *memory;

    while (cursor->at == cursor->piece->iov_len) {
        cursor->piece++;
        cursor->at = 0;
    }
    memory = (uint8_t *)cursor->piece->iov_base + cursor->at;
    *chunk = cursor->piece->iov_len - cursor->at;
    if (*chunk > nbytes)
        *chunk = nbytes;
    cursor->at += *chunk;
    return memory;
}

/* The next nbytes of the pieces: skips, copies them out, copies into them. */
static inline void sim_iov_skip(struct sim_iov *cursor, size_t nbytes)
{
    for (size_t chunk; nbytes; nbytes -= chunk)
        sim_iov_next(cursor, nbytes, &chunk);
}

static inline void sim_iov_gather(struct sim_iov *cursor, void *to, size_t nbytes)
{
    for (size_t chunk; nbytes; nbytes -= chunk) {
        const uint8_t *from = sim_iov_next(cursor, nbytes, &chunk);

        memcpy(to, from, chunk);
        to = (uint8_t *)to + chunk;
    }
}

static inline void sim_iov_scatter(struct sim_iov *cursor, const void *from, size_t nbytes)
{
    for (size_t chunk; nbytes; nbytes -= chunk) {
        uint8_t *to = sim_iov_next(cursor, nbytes, &chunk);

        memcpy(to, from, chunk);
        from = (const uint8_t *)from + chunk;
    }
}

#endif
