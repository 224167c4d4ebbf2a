/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A buffer: memory with up to three addresses. This is the structure alone; memory.h allocates,
 * registers and frees, and a transport gives the bus address.
 */
#ifndef GPUNVME_BUF_H
#define GPUNVME_BUF_H

#include <stddef.h>
#include <stdint.h>

#include "gpunvme/fn.h"

enum gpunvme_mem {
    GPUNVME_MEM_HOST = 0,   /* ordinary host memory, page-aligned */
    GPUNVME_MEM_PINNED = 1, /* host memory pinned for, and mapped into, the GPU */
    GPUNVME_MEM_GPU = 2,    /* GPU memory; host memory where there is no GPU */
};

/*
 * An address that the buffer does not have is 0 (NULL). The three are different address spaces:
 * `cpu` is for code on a CPU, `gpu` for code on the GPU, `bus` for the controller.
 */
struct gpunvme_buf {
    void *cpu;            /* CPU virtual address */
    void *gpu;            /* GPU virtual address (device pointer) */
    uint64_t bus;         /* address that the controller uses; see bus_pages */
    size_t nbytes;        /* size */
    enum gpunvme_mem mem; /* where the bytes are */

    /*
     * Bus addresses of memory that is not contiguous on the bus, one for each piece of
     * 2^bus_page_shift bytes. The first piece begins at the buffer's first byte; `bus` is
     * bus_pages[0]. NULL if the buffer is contiguous.
     */
    const uint64_t *bus_pages;
    unsigned bus_page_shift;

    /* private: for whoever allocated or mapped the buffer */
    void *memory_private;
    void *transport_private;
};

/* The bus address of the byte at `offset`. The buffer must have one; offset < nbytes. */
GPUNVME_FN uint64_t gpunvme_buf_bus(const struct gpunvme_buf *buf, size_t offset)
{
    if (!buf->bus_pages)
        return buf->bus + offset;
    return buf->bus_pages[offset >> buf->bus_page_shift] +
           (offset & (((size_t)1 << buf->bus_page_shift) - 1));
}

#endif
