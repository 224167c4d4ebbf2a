/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Data pointers from the device's side: follows PRP entries and lists or SGL descriptors and
 * segments, and hands out the pieces of memory that they name, in order. Written from the
 * specification (Base 1.4, sections 4.3 and 4.4), knowing nothing of how the driver builds them.
 */
#ifndef TESTS_DATA_WALK_H
#define TESTS_DATA_WALK_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "gpunvme/nvme.h"

struct walk {
    /* The CPU's view of nbytes of bus memory; NULL where there is none. For lists and segments. */
    const void *(*memory)(void *arg, uint64_t bus, size_t nbytes);
    /* The next piece of the data; false ends the walk. */
    bool (*piece)(void *arg, uint64_t bus, size_t nbytes);
    void *arg;
    unsigned page_shift;
};

static inline size_t walk_min(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* The pages that a PRP list names, from `list` on; what is wrong, or NULL. */
static inline const char *walk_prp_list(const struct walk *w, uint64_t list, size_t nbytes)
{
    size_t page = (size_t)1 << w->page_shift;

    while (nbytes) {
        const uint64_t *p = w->memory(w->arg, list, 8);
        uint64_t entry;
        /* The last entry of a list page leads on while more than one page of data is left. */
        bool last_of_page = (list & (page - 1)) == page - 8;

        if (list & 7)
            return "a PRP list that does not begin at a quadword";
        if (!p)
            return "a PRP list outside the memory for lists";
        memcpy(&entry, p, sizeof(entry));
        if (last_of_page && nbytes > page) {
            if (entry & (page - 1))
                return "a link to a PRP list that does not begin a page";
            list = entry;
            continue;
        }
        if (entry & (page - 1))
            return "a PRP entry with an offset behind the first";
        if (!w->piece(w->arg, entry, walk_min(nbytes, page)))
            return "a piece of data that is not the caller's";
        nbytes -= walk_min(nbytes, page);
        list += 8;
    }
    return NULL;
}

static inline const char *walk_prp(const struct walk *w, const struct gpunvme_sqe *sqe,
                                   size_t nbytes)
{
    size_t page = (size_t)1 << w->page_shift;
    size_t first = walk_min(nbytes, page - (size_t)(sqe->prp1 & (page - 1)));

    if (sqe->flags & GPUNVME_PSDT_MASK)
        return "a PRP command whose PSDT says SGL";
    if (sqe->prp1 & 3)
        return "PRP1 is not a multiple of 4";
    if (!w->piece(w->arg, sqe->prp1, first))
        return "a piece of data that is not the caller's";
    nbytes -= first;
    if (!nbytes)
        return NULL;
    if (nbytes > page)
        return walk_prp_list(w, sqe->prp2, nbytes);
    if (sqe->prp2 & (page - 1))
        return "PRP2 names a page and has an offset";
    if (!w->piece(w->arg, sqe->prp2, nbytes))
        return "a piece of data that is not the caller's";
    return NULL;
}

static inline const char *walk_sgl_block(const struct walk *w, const struct gpunvme_sgl_desc *d,
                                         size_t *left)
{
    if (d->id != GPUNVME_SGL_ID(GPUNVME_SGL_DATA_BLOCK, GPUNVME_SGL_SUBTYPE_ADDRESS))
        return "a descriptor that is no data block";
    if (d->rsvd12[0] || d->rsvd12[1] || d->rsvd12[2])
        return "reserved bytes of a descriptor are not 0";
    if (!d->length || d->length > *left)
        return "a data block of no bytes, or of more than the command moves";
    if (!w->piece(w->arg, d->addr, d->length))
        return "a piece of data that is not the caller's";
    *left -= d->length;
    return NULL;
}

static inline const char *walk_sgl(const struct walk *w, const struct gpunvme_sqe *sqe,
                                   size_t nbytes)
{
    const struct gpunvme_sgl_desc *d = &sqe->sgl1;
    const char *wrong = NULL;
    size_t n = 1;

    if ((sqe->flags & GPUNVME_PSDT_MASK) != GPUNVME_PSDT_SGL_MPTR_CONTIG)
        return "an SGL command whose PSDT says something else";
    if (d->id == GPUNVME_SGL_ID(GPUNVME_SGL_LAST_SEGMENT, GPUNVME_SGL_SUBTYPE_ADDRESS)) {
        if (!d->length || d->length % sizeof(*d))
            return "a segment that is not a number of descriptors";
        n = d->length / sizeof(*d);
        d = w->memory(w->arg, d->addr, d->length);
        if (!d)
            return "a segment outside the memory for lists";
    }
    for (; n && !wrong; n--, d++)
        wrong = walk_sgl_block(w, d, &nbytes);
    if (!wrong && nbytes)
        return "an SGL that ends before the data does";
    return wrong;
}

/* By what the command says of itself. */
static inline const char *walk_data(const struct walk *w, const struct gpunvme_sqe *sqe,
                                    size_t nbytes)
{
    return sqe->flags & GPUNVME_PSDT_MASK ? walk_sgl(w, sqe, nbytes) : walk_prp(w, sqe, nbytes);
}

#endif
