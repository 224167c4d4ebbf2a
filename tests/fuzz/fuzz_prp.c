/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Builds PRPs and SGLs for memory of any shape and follows them as a device does: they must name
 * the buffer's bytes, all of them, in order, and the list must stay within its memory.
 */
#include <stdlib.h>

#include "fuzz/feed.h"
#include "gpunvme/prp.h"
#include "unit/data_walk.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define LIST_BUS   UINT64_C(0x0300000000010000)
#define MAX_PIECES 64u
#define GUARD      UINT64_C(0x5ca1ab1e5ca1ab1e)

struct layout {
    struct gpunvme_buf buf;
    uint64_t pieces[MAX_PIECES];
    unsigned page_shift;
    size_t off, nbytes;
    struct gpunvme_list list;
    size_t walked;
};

static void require(bool condition)
{
    if (!condition)
        abort();
}

static uint64_t address_of(const struct layout *l, size_t at)
{
    unsigned shift = l->buf.bus_page_shift;

    if (!l->buf.bus_pages)
        return l->buf.bus + at;
    return l->pieces[at >> shift] + (at - (at >> shift << shift));
}

static const void *list_at(void *arg, uint64_t bus, size_t nbytes)
{
    const struct layout *l = arg;

    if (bus < LIST_BUS || nbytes > l->list.nbytes || bus - LIST_BUS > l->list.nbytes - nbytes)
        return NULL;
    return (const char *)l->list.cpu + (bus - LIST_BUS);
}

static bool piece_is_right(void *arg, uint64_t bus, size_t nbytes)
{
    struct layout *l = arg;

    if (!nbytes || nbytes > l->nbytes - l->walked)
        return false;
    for (size_t i = 0; i < nbytes; i += i + 256 < nbytes ? 256 : 1) {
        if (address_of(l, l->off + l->walked + i) != bus + i)
            return false;
    }
    l->walked += nbytes;
    return true;
}

static void follow(struct layout *l, const struct gpunvme_sqe *sqe)
{
    struct walk w = {
        .memory = list_at, .piece = piece_is_right, .arg = l, .page_shift = l->page_shift};

    l->walked = 0;
    require(!walk_data(&w, sqe, l->nbytes));
    require(l->walked == l->nbytes);
}

/* Pieces that begin anywhere, at a page, or where the last one ends. */
static void read_pieces(struct feed *f, struct layout *l)
{
    uint8_t kind = feed_u8(f);
    uint64_t at = 0;

    l->buf.bus_page_shift = (unsigned)feed_between(f, 9, 17);
    for (unsigned i = 0; i < MAX_PIECES; i++) {
        uint64_t next = feed_u64(f) >> 8;

        if (!(kind & 1))
            next &= ~((UINT64_C(1) << l->page_shift) - 1);
        at = kind & 2 && next & 0x10000 && i ? at + (UINT64_C(1) << l->buf.bus_page_shift) : next;
        l->pieces[i] = at;
    }
    l->buf.bus_pages = l->pieces;
    l->buf.bus = l->pieces[0];
    l->buf.nbytes = (size_t)MAX_PIECES << l->buf.bus_page_shift;
}

static void read_layout(struct feed *f, struct layout *l)
{
    l->page_shift = (unsigned)feed_between(f, 12, 16);
    l->off = feed_u32(f);
    l->nbytes = feed_u32(f);
    l->list.bus = LIST_BUS;
    l->list.nbytes = (size_t)feed_between(f, 0, 4) << l->page_shift;
    if (feed_u8(f) & 1) {
        read_pieces(f, l);
    } else {
        l->buf.bus = feed_u64(f) >> 1;
        l->buf.nbytes = (size_t)16 << 20;
    }
    l->off %= l->buf.nbytes;
    l->nbytes = l->nbytes % (l->buf.nbytes - l->off) + 1;
}

static void try_prp(struct layout *l)
{
    struct gpunvme_sqe sqe = {0};
    uint64_t first = gpunvme_buf_bus(&l->buf, l->off);
    size_t pages, list;
    int err;

    require(first == address_of(l, l->off));
    if (!gpunvme_prp_is_possible(&l->buf, l->off, l->page_shift))
        return;
    /* is_possible looks at the first piece; that all of them lie so is the caller's word. */
    for (unsigned i = 0; l->buf.bus_pages && i < MAX_PIECES; i++) {
        if (l->pieces[i] & ((UINT64_C(1) << l->page_shift) - 1))
            return;
    }
    pages = gpunvme_prp_pages(first, l->nbytes, l->page_shift);
    list = gpunvme_prp_list_nbytes(pages, l->page_shift);
    err = gpunvme_prp_build(&sqe, &l->buf, l->off, l->nbytes, l->page_shift, &l->list);
    require(err == (list <= l->list.nbytes ? GPUNVME_OK : GPUNVME_ERR_LIMIT));
    if (!err)
        follow(l, &sqe);
}

static void try_sgl(struct layout *l)
{
    struct gpunvme_sqe sqe = {0};
    int err = gpunvme_sgl_build(&sqe, &l->buf, l->off, l->nbytes, &l->list);

    require(err == GPUNVME_OK || err == GPUNVME_ERR_LIMIT);
    if (!err)
        follow(l, &sqe);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct feed f = {.data = data, .size = size};
    struct layout l = {0};
    uint64_t *words;

    read_layout(&f, &l);
    words = malloc(l.list.nbytes + 8);
    if (!words)
        return 0;
    words[l.list.nbytes / 8] = GUARD;
    l.list.cpu = words;
    try_prp(&l);
    try_sgl(&l);
    require(words[l.list.nbytes / 8] == GUARD);
    free(words);
    return 0;
}
