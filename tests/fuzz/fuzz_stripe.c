/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Headers of stripe sets as a drive may give them: whatever is there, reading them stays inside
 * their bytes, what is accepted makes sense and writes back as it was read, and a set that is
 * accepted has each member once.
 */
#include <stdlib.h>

#include "fuzz/feed.h"
#include "gpunvme/memory.h"
#include "storage/stripe/header.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MAX_MEMBERS 5u

static void require(bool condition)
{
    if (!condition)
        abort();
}

/* Bytes as they come, or a good header with a few bytes changed and the checksum put right. */
static void make_bytes(struct feed *f, uint8_t *bytes)
{
    struct stripe_header h = {.index = (uint32_t)feed_between(f, 0, 4),
                              .count = (uint32_t)feed_between(f, 1, MAX_MEMBERS),
                              .unit = 4096u << feed_between(f, 0, 4),
                              .used = feed_between(f, 1, 64) << 16};
    uint64_t sum;

    memset(h.uuid, (int)feed_between(f, 0, 7) / 7, sizeof(h.uuid));
    if (feed_u8(f) % 4 == 0) {
        feed_bytes(f, bytes, STRIPE_HEADER_NBYTES);
        return;
    }
    stripe_header_write(&h, bytes);
    for (unsigned n = feed_u8(f) % 4; n; n--)
        bytes[feed_between(f, 0, 80)] = feed_u8(f);
    sum = gpunvme_mem_checksum_host(bytes, STRIPE_HEADER_NBYTES - 8);
    for (unsigned i = 0; i < 8; i++)
        bytes[STRIPE_HEADER_NBYTES - 8 + i] = (uint8_t)(sum >> 8 * i);
}

/* Exactly its size, so that a sanitizer sees a read behind it. */
static bool read_one(struct feed *f, struct stripe_header *h)
{
    uint8_t *bytes = malloc(STRIPE_HEADER_NBYTES), *again = malloc(STRIPE_HEADER_NBYTES);
    struct stripe_header same;
    bool ok;

    require(bytes && again);
    make_bytes(f, bytes);
    ok = !stripe_header_read(bytes, "m", h);
    if (ok) {
        require(h->index < h->count && h->count <= STRIPE_MAX_MEMBERS);
        require(h->unit && h->used % h->unit == 0 && h->used <= (uint64_t)INT64_MAX / h->count);
        stripe_header_write(h, again);
        require(!stripe_header_read(again, "m", &same));
        require(!memcmp(&same, h, sizeof(same)));
    }
    free(bytes);
    free(again);
    return ok;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct feed f = {.data = data, .size = size};
    struct stripe_member members[MAX_MEMBERS];
    size_t n = 0, wanted = feed_between(&f, 1, MAX_MEMBERS), order[STRIPE_MAX_MEMBERS];

    memset(members, 0, sizeof(members));
    while (n < wanted && f.size) {
        members[n].name = "m";
        members[n].nbytes = feed_between(&f, 0, 1) ? UINT64_MAX : feed_u32(&f);
        if (!read_one(&f, &members[n].header))
            wanted--;
        else
            n++;
    }
    if (!stripe_set_check(members, n, order)) {
        require(n == members[0].header.count);
        for (size_t i = 0; i < n; i++)
            require(order[i] < n && members[order[i]].header.index == i);
    }
    return 0;
}
