/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How a command says where its data is: PRP entries and lists, SGL descriptors and segments. For
 * the CPU and for the GPU; knows nothing of queues.
 *
 * Source: Base 1.4, section 4.3 (PRP) and 4.4 (SGL).
 */
#ifndef GPUNVME_PRP_H
#define GPUNVME_PRP_H

#include "gpunvme/atomics.h"
#include "gpunvme/buf.h"
#include "gpunvme/error.h"
#include "gpunvme/nvme.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Memory for a PRP list or for SGL segments: zeroed or not, contiguous on the bus, beginning at a
 * memory page of the controller (1 << page_shift), a whole number of them long.
 */
struct gpunvme_list {
    uint64_t *cpu;
    uint64_t bus;
    size_t nbytes;
};

/* The number of memory pages that `nbytes` at bus address `bus` touch; nbytes > 0. */
GPUNVME_FN size_t gpunvme_prp_pages(uint64_t bus, size_t nbytes, unsigned page_shift)
{
    uint64_t page = (uint64_t)1 << page_shift;

    return (size_t)(((bus & (page - 1)) + nbytes + page - 1) >> page_shift);
}

/* Bytes of list for so many pages: none for up to two; a full list page ends with a link. */
GPUNVME_FN size_t gpunvme_prp_list_nbytes(size_t pages, unsigned page_shift)
{
    size_t per_page = ((size_t)1 << page_shift) / 8;
    size_t entries = pages - 1;

    if (pages <= 2)
        return 0;
    return (entries <= per_page ? 1 : (entries - 2) / (per_page - 1) + 1) << page_shift;
}

/*
 * Whether PRPs can describe a buffer: its bus address is a multiple of 4, and its pieces, if it is
 * not contiguous on the bus, are whole memory pages.
 */
GPUNVME_FN int gpunvme_prp_is_possible(const struct gpunvme_buf *buf, size_t off,
                                       unsigned page_shift)
{
    uint64_t in_page = ((uint64_t)1 << page_shift) - 1;

    if (buf->bus_pages && (buf->bus_page_shift < page_shift || buf->bus & in_page))
        return 0;
    return !(gpunvme_buf_bus(buf, off) & 3);
}

/* Writes the entries for the pages from `off`, where a page begins, and links the list's pages. */
GPUNVME_FN void gpunvme_prp_fill_list(const struct gpunvme_buf *buf, size_t off, size_t entries,
                                      unsigned page_shift, const struct gpunvme_list *list)
{
    size_t per_page = ((size_t)1 << page_shift) / 8;
    size_t at = 0;

    for (; entries; entries--, off += (size_t)1 << page_shift) {
        /* The last entry of a list page links to the next one, unless it is the last of all. */
        if (at % per_page == per_page - 1 && entries > 1) {
            list->cpu[at] = list->bus + (at + 1) * 8;
            at++;
        }
        list->cpu[at++] = gpunvme_buf_bus(buf, off);
    }
}

/*
 * Fills in prp1, prp2 and PSDT for `nbytes` (> 0) from byte `off` of the buffer, which must satisfy
 * gpunvme_prp_is_possible() and be large enough. `list` may be NULL for up to two pages; the
 * command owns it until it has ended. GPUNVME_ERR_LIMIT: the list is too short.
 */
GPUNVME_FN int gpunvme_prp_build(struct gpunvme_sqe *sqe, const struct gpunvme_buf *buf, size_t off,
                                 size_t nbytes, unsigned page_shift,
                                 const struct gpunvme_list *list)
{
    uint64_t bus = gpunvme_buf_bus(buf, off);
    size_t pages = gpunvme_prp_pages(bus, nbytes, page_shift);
    size_t in_first = ((size_t)1 << page_shift) - (size_t)(bus & (((uint64_t)1 << page_shift) - 1));

    sqe->flags = (uint8_t)(sqe->flags & ~GPUNVME_PSDT_MASK);
    sqe->prp1 = bus;
    sqe->prp2 = 0;
    if (pages == 1)
        return GPUNVME_OK;
    if (pages == 2) {
        sqe->prp2 = gpunvme_buf_bus(buf, off + in_first);
        return GPUNVME_OK;
    }
    if (!list || list->nbytes < gpunvme_prp_list_nbytes(pages, page_shift))
        return GPUNVME_ERR_LIMIT;
    gpunvme_prp_fill_list(buf, off + in_first, pages - 1, page_shift, list);
    sqe->prp2 = list->bus;
    return GPUNVME_OK;
}

/* --- SGL ---------------------------------------------------------------------------------------
 */

/* Bytes from `off`, at most nbytes, that are contiguous on the bus. */
GPUNVME_FN size_t gpunvme_sgl_run(const struct gpunvme_buf *buf, size_t off, size_t nbytes)
{
    size_t piece, run;

    if (!buf->bus_pages)
        return nbytes;
    piece = (size_t)1 << buf->bus_page_shift;
    run = piece - (off & (piece - 1));
    while (run < nbytes && gpunvme_buf_bus(buf, off + run) == gpunvme_buf_bus(buf, off) + run)
        run += piece;
    return run < nbytes ? run : nbytes;
}

GPUNVME_FN struct gpunvme_sgl_desc gpunvme_sgl_make(uint64_t bus, uint64_t nbytes, uint8_t type)
{
    struct gpunvme_sgl_desc d;

    d.addr = bus;
    d.length = (uint32_t)nbytes;
    d.rsvd12[0] = d.rsvd12[1] = d.rsvd12[2] = 0;
    d.id = GPUNVME_SGL_ID(type, GPUNVME_SGL_SUBTYPE_ADDRESS);
    return d;
}

/*
 * Fills in sgl1 and PSDT for `nbytes` (> 0, < 4 GiB) from byte `off`: one data block if the bytes
 * are contiguous, else a last segment of data blocks in `list`. GPUNVME_ERR_LIMIT: the list is NULL
 * or too short for the number of runs.
 */
GPUNVME_FN int gpunvme_sgl_build(struct gpunvme_sqe *sqe, const struct gpunvme_buf *buf, size_t off,
                                 size_t nbytes, const struct gpunvme_list *list)
{
    size_t run = gpunvme_sgl_run(buf, off, nbytes);
    struct gpunvme_sgl_desc *desc = list ? (struct gpunvme_sgl_desc *)list->cpu : 0;
    size_t n = 0;

    sqe->flags = (uint8_t)((sqe->flags & ~GPUNVME_PSDT_MASK) | GPUNVME_PSDT_SGL_MPTR_CONTIG);
    if (run == nbytes) {
        sqe->sgl1 = gpunvme_sgl_make(gpunvme_buf_bus(buf, off), run, GPUNVME_SGL_DATA_BLOCK);
        return GPUNVME_OK;
    }
    for (; nbytes; off += run, nbytes -= run, n++) {
        if (!desc || (n + 1) * sizeof(*desc) > list->nbytes)
            return GPUNVME_ERR_LIMIT;
        run = gpunvme_sgl_run(buf, off, nbytes);
        desc[n] = gpunvme_sgl_make(gpunvme_buf_bus(buf, off), run, GPUNVME_SGL_DATA_BLOCK);
    }
    sqe->sgl1 = gpunvme_sgl_make(list->bus, n * sizeof(*desc), GPUNVME_SGL_LAST_SEGMENT);
    return GPUNVME_OK;
}

#ifdef __cplusplus
}
#endif
#endif
