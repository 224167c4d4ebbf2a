/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Takes a fuzz target's input apart, number by number. Behind its end there are zeroes.
 */
#ifndef TESTS_FUZZ_FEED_H
#define TESTS_FUZZ_FEED_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct feed {
    const uint8_t *data;
    size_t size;
};

static inline void feed_bytes(struct feed *f, void *to, size_t n)
{
    size_t there = n < f->size ? n : f->size;

    memset(to, 0, n);
    if (there)
        memcpy(to, f->data, there);
    f->data += there;
    f->size -= there;
}

static inline uint64_t feed_u64(struct feed *f)
{
    uint64_t v;

    feed_bytes(f, &v, sizeof(v));
    return v;
}

static inline uint32_t feed_u32(struct feed *f)
{
    uint32_t v;

    feed_bytes(f, &v, sizeof(v));
    return v;
}

static inline uint8_t feed_u8(struct feed *f)
{
    uint8_t v;

    feed_bytes(f, &v, sizeof(v));
    return v;
}

/* lo … hi */
static inline uint64_t feed_between(struct feed *f, uint64_t lo, uint64_t hi)
{
    return lo + feed_u32(f) % (hi - lo + 1);
}

#endif
