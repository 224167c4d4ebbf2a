/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A transport: how a controller is reached. It gives access to the registers (BAR0), gives memory a
 * bus address, and has a clock. The protocol code depends on nothing else.
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
     * 32-bit ones. They fail only if the controller can't be reached at all. Reads of a removed
     * PCIe function succeed and return all ones.
     */
    gpunvme_err_t (*read32)(struct gpunvme_transport *t, uint32_t offset, uint32_t *value);
    gpunvme_err_t (*read64)(struct gpunvme_transport *t, uint32_t offset, uint64_t *value);
    gpunvme_err_t (*write32)(struct gpunvme_transport *t, uint32_t offset, uint32_t value);
    gpunvme_err_t (*write64)(struct gpunvme_transport *t, uint32_t offset, uint64_t value);

    /*
     * Sets buf->bus (and bus_pages if needed) for memory that has a cpu or gpu address.
     * GPUNVME_ERR_UNSUPPORTED: the controller can't reach memory of this kind. unmap undoes it; no
     * command may be using the buffer.
     */
    gpunvme_err_t (*map)(struct gpunvme_transport *t, struct gpunvme_buf *buf);
    void (*unmap)(struct gpunvme_transport *t, struct gpunvme_buf *buf);

    /*
     * Allocates zeroed, mapped memory. Errors as map. Host memory (for queues and lists) is
     * contiguous on the bus up to 2 MiB. Its bus address is a multiple of 64 KiB or, for smaller
     * buffers, of the size rounded up to a power of two, at least 4 KiB. So a buffer of whole
     * memory pages of the controller begins at one.
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
     * Interrupts; both NULL if the transport has none. irq_setup requests vectors 0 to `wanted` - 1
     * and gets *granted of them, at least one; a transport with a single, shared interrupt grants
     * 1. irq_wait waits until the vector has fired since *seen, at most timeout_ns. It updates
     * *seen, which begins at 0; a first call may return at once. It returns GPUNVME_OK in either
     * case, since the caller must look at its queue anyway. Any number of threads may wait for the
     * same vector; all are woken. A vector that fires while nobody waits is remembered.
     */
    gpunvme_err_t (*irq_setup)(struct gpunvme_transport *t, uint32_t wanted, uint32_t *granted);
    gpunvme_err_t (*irq_wait)(struct gpunvme_transport *t, uint32_t vector, uint64_t *seen,
                              uint64_t timeout_ns);

    /*
     * Maps `nbytes` from byte `offset` of BAR number `bir`: the controller memory buffer (CMB). It
     * has a cpu address if the CPU can store to it, and no bus address: the controller's registers
     * give that. `unmap` undoes it. NULL if BARs can't be mapped.
     */
    gpunvme_err_t (*map_bar)(struct gpunvme_transport *t, unsigned bir, uint64_t offset,
                             size_t nbytes, struct gpunvme_buf *buf);

    /*
     * Turns the function's access to memory on or off: bus mastering, in PCI's command register.
     * Once off, the controller neither reads nor writes memory, whatever its state. NULL if the
     * transport can't.
     */
    gpunvme_err_t (*bus_master)(struct gpunvme_transport *t, bool on);

    /* Resets the PCIe function; NULL if the transport can't. */
    gpunvme_err_t (*reset)(struct gpunvme_transport *t);

    /* Releases the controller and frees the transport. */
    void (*close)(struct gpunvme_transport *t);
};

struct gpunvme_transport {
    const struct gpunvme_transport_ops *ops;
    /*
     * The doorbells (BAR0 + 1000h) if they can be mapped. NULL: a doorbell is rung by write32. GPU
     * queues need them mapped.
     */
    volatile uint32_t *doorbells;
    size_t doorbells_nbytes;
    /*
     * GPU address of the doorbells of queues in GPU memory, in the same layout. NULL: `doorbells`
     * serves all queues; register it with the GPU.
     */
    volatile uint32_t *gpu_doorbells;
    /*
     * Memory that gpunvme_mem_export() can export, that of `alloc` included, is reached directly.
     * All other memory is reached by messages; a copy through memory of `alloc` is faster.
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
