/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A transport: how a controller is reached. It gives access to the registers (BAR0), gives memory
 * a bus address, and has a clock. The protocol code knows nothing else of the world.
 *
 * All functions may be called from several threads at once, except close.
 */
#ifndef GPUNVME_TRANSPORT_H
#define GPUNVME_TRANSPORT_H

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
     * Host memory for queues and lists: zeroed, mapped, contiguous on the bus, and beginning there
     * at a multiple of the controller's smallest memory page (CAP.MPSMIN), 4 KiB or more.
     */
    gpunvme_err_t (*alloc)(struct gpunvme_transport *t, size_t nbytes, struct gpunvme_buf *buf);
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
