/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Interrupt vectors that arrive as event file descriptors, waited for by any number of threads:
 * one of them waits in the kernel, and wakes the others.
 */
#ifndef TRANSPORT_IRQ_H
#define TRANSPORT_IRQ_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "gpunvme/error.h"

struct transport_irq {
    int fd; /* an eventfd, non-blocking */
    pthread_mutex_t lock;
    pthread_cond_t woken;
    uint64_t fired; /* how often, as far as it has been read */
    bool watched;   /* a thread waits in the kernel */
    /*
     * For an interrupt that does not come by the eventfd: waits for it, and says how often it
     * fired. Called by one thread at a time. NULL: the eventfd is waited for.
     */
    uint64_t (*watch)(struct transport_irq *irq, uint64_t timeout_ns);
    void *owner; /* for watch */
};

/* Makes `count` vectors; zeroes are fine for destroy. */
gpunvme_err_t transport_irqs_create(uint32_t count, struct transport_irq **out);
void transport_irqs_destroy(struct transport_irq *irqs, uint32_t count);

/* ops->irq_wait of one vector. */
gpunvme_err_t transport_irq_wait(struct transport_irq *irq, uint64_t *seen, uint64_t timeout_ns);

#endif
