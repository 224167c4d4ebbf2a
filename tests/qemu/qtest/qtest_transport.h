/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A transport for tests: QEMU's NVMe controller over the qtest socket. Registers are lines of
 * text; memory is the machine's RAM, shared with this process, where an offset is the bus address.
 */
#ifndef QTEST_TRANSPORT_H
#define QTEST_TRANSPORT_H

#include "gpunvme/transport.h"

/*
 * Finds the NVMe controller on bus 0 and sets its BARs up. The socket and the memory stay the
 * caller's, who may open another transport over them once this one is closed.
 */
gpunvme_err_t qtest_transport_open(int fd, void *ram, size_t nbytes,
                                   struct gpunvme_transport **out);

/* From now on nothing reaches the controller, as when the process dies: GPUNVME_ERR_IO. */
void qtest_transport_cut(struct gpunvme_transport *t);

/* Writes a 32-bit I/O port of the machine. */
gpunvme_err_t qtest_transport_outl(struct gpunvme_transport *t, uint16_t port, uint32_t value);

/* What went over the socket since open. */
struct qtest_counts {
    uint64_t doorbells;  /* doorbell registers written */
    uint64_t cmb_nbytes; /* bytes stored to the controller memory buffer */
    uint64_t interrupts; /* seen by irq_wait */
};
struct qtest_counts qtest_transport_counts(struct gpunvme_transport *t);

#endif
