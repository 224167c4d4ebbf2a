/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A transport: how a controller is reached. It gives access to the registers (BAR0), gives memory
 * a bus address, and has a clock. The protocol code knows nothing else of the world.
 *
 * All functions may be called from several threads at once, except close.
 */
#ifndef GPUNVME_TRANSPORT_H
#define GPUNVME_TRANSPORT_H

#include <stdbool.h>

#include "gpunvme/buf.h"
#include "gpunvme/error.h"

#ifdef __cplusplus
extern "C" {
#endif

struct gpunvme_transport;

struct gpunvme_transport_ops {
    const char *name; /* "sim", "vfio", … */

    /*
     * Registers, by byte offset into BAR0, naturally aligned. A 64-bit access may be made as two
     * 32-bit ones. They fail only when the controller can't be reached at all; a removed PCIe
     * function reads as all ones with success.
     */
    gpunvme_err_t (*read32)(struct gpunvme_transport *t, uint32_t offset, uint32_t *value);
    gpunvme_err_t (*read64)(struct gpunvme_transport *t, uint32_t offset, uint64_t *value);
    gpunvme_err_t (*write32)(struct gpunvme_transport *t, uint32_t offset, uint32_t value);
    gpunvme_err_t (*write64)(struct gpunvme_transport *t, uint32_t offset, uint64_t value);

    /*
     * Gives buf->bus (and bus_pages where it must) to memory that has a cpu or gpu address; fails
     * with GPUNVME_ERR_UNSUPPORTED for a placement that the controller can't reach. unmap takes
     * it away again: no command may use the buffer any more.
     */
    gpunvme_err_t (*map)(struct gpunvme_transport *t, struct gpunvme_buf *buf);
    void (*unmap)(struct gpunvme_transport *t, struct gpunvme_buf *buf);

    /*
     * Memory that the controller can reach: zeroed, mapped, and as map says where it is of a kind
     * that the controller can't reach. Host memory, which queues and lists are made of, is
     * contiguous on the bus up to 2 MiB, and begins there at a multiple of 64 KiB or, where it is
     * smaller than that, of its size rounded up to a power of two, 4 KiB or more. So memory that is
     * to begin at a memory page of the controller is asked for in whole ones.
     */
    gpunvme_err_t (*alloc)(struct gpunvme_transport *t, size_t nbytes, enum gpunvme_mem mem,
                           struct gpunvme_buf *buf);
    void (*free)(struct gpunvme_transport *t, struct gpunvme_buf *buf);

    /*
     * Copies between a buffer's bytes, wherever they are, and ordinary host memory: for the ends
     * of unaligned transfers. NULL: every buffer of this transport has a cpu address.
     */
    gpunvme_err_t (*copy_to)(struct gpunvme_transport *t, const struct gpunvme_buf *dst,
                             size_t offset, const void *src, size_t nbytes);
    gpunvme_err_t (*copy_from)(struct gpunvme_transport *t, void *dst,
                               const struct gpunvme_buf *src, size_t offset, size_t nbytes);

    /* Monotonic clock, and a pause of about `ns` for loops that wait. */
    uint64_t (*now_ns)(struct gpunvme_transport *t);
    void (*pause_ns)(struct gpunvme_transport *t, uint64_t ns);

    /*
     * Interrupts; both NULL where the transport has none. irq_setup asks for vectors 0 to
     * `wanted` - 1 and gets *granted of them, at least one; a transport with a single, shared
     * interrupt grants 1. irq_wait waits until the vector has fired since *seen, which it brings
     * up to date (0 at the start; a first call may return at once), or until timeout_ns is up:
     * both are GPUNVME_OK, since whoever waits must look at its queue in any case. Any number of
     * threads may wait for the same vector, and all are woken. Vectors that fire while nobody
     * waits are remembered.
     */
    gpunvme_err_t (*irq_setup)(struct gpunvme_transport *t, uint32_t wanted, uint32_t *granted);
    gpunvme_err_t (*irq_wait)(struct gpunvme_transport *t, uint32_t vector, uint64_t *seen,
                              uint64_t timeout_ns);

    /*
     * Memory of the controller's own (its memory buffer, CMB): bytes `offset` … of BAR number
     * `bir`, with a cpu address where the CPU can store to it. No bus address: the controller's
     * registers say which. `unmap` takes it back. NULL where a BAR can't be mapped.
     */
    gpunvme_err_t (*map_bar)(struct gpunvme_transport *t, unsigned bir, uint64_t offset,
                             size_t nbytes, struct gpunvme_buf *buf);

    /*
     * Takes the function's access to memory away, or gives it back: bus mastering, in PCI's command
     * register. When `off` has succeeded the controller reads and writes no memory any more,
     * whatever state it is in. NULL where the transport can't.
     */
    gpunvme_err_t (*bus_master)(struct gpunvme_transport *t, bool on);

    /* Resets the PCIe function; NULL where the transport has no such thing. */
    gpunvme_err_t (*reset)(struct gpunvme_transport *t);

    /* Lets go of the controller and frees the transport. */
    void (*close)(struct gpunvme_transport *t);
};

struct gpunvme_transport {
    const struct gpunvme_transport_ops *ops;
    /*
     * The doorbells (BAR0 + 1000h) where they can be mapped, else NULL: then a doorbell is rung
     * by write32. A queue in a GPU needs them mapped.
     */
    volatile uint32_t *doorbells;
    size_t doorbells_nbytes;
    /*
     * The doorbells for queues in GPU memory, of the same layout, as a GPU address. NULL where the
     * mapped ones serve all queues: then register those with the GPU.
     */
    volatile uint32_t *gpu_doorbells;
    /*
     * Memory that gpunvme_mem_export() has a descriptor of, that of `alloc` among it, is reached as
     * it is; all other by messages, and a copy through memory of `alloc` is faster than that.
     */
    bool prefers_export;
    char address[128]; /* the URI that was opened, for messages */
};

/*
 * Opens a transport by URI ("sim:size=1G"). On success *out is the caller's, to be given to
 * gpunvme_ctrl_open() or closed with t->ops->close(t).
 */
gpunvme_err_t gpunvme_transport_open(const char *uri, struct gpunvme_transport **out);

/*
 * For transport "sim": the software controller behind it, as struct gpunvme_sim (sim.h), for its
 * report and its faults. It lives as long as the transport. NULL for other transports.
 */
struct gpunvme_sim;
struct gpunvme_sim *gpunvme_transport_sim(struct gpunvme_transport *t);

#ifdef __cplusplus
}
#endif
#endif
