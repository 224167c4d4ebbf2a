/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Interrupt vectors that arrive as event file descriptors.
 */
#include "transport/irq.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "base/cond.h"
#include "base/fail.h"

#define SECOND UINT64_C(1000000000)

gpunvme_err_t transport_irqs_create(uint32_t count, struct transport_irq **out)
{
    struct transport_irq *irqs = calloc(count, sizeof(*irqs));

    if (!irqs)
        return base_fail(GPUNVME_ERR_NOMEM, "%u interrupt vectors", count);
    for (uint32_t i = 0; i < count; i++) {
        pthread_mutex_init(&irqs[i].lock, NULL);
        base_cond_init(&irqs[i].woken);
        irqs[i].fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (irqs[i].fd < 0) {
            gpunvme_err_t err = base_fail_errno(errno, "interrupt vector %u", i);

            transport_irqs_destroy(irqs, i + 1);
            return err;
        }
    }
    *out = irqs;
    return GPUNVME_OK;
}

void transport_irqs_destroy(struct transport_irq *irqs, uint32_t count)
{
    for (uint32_t i = 0; irqs && i < count; i++) {
        if (irqs[i].fd >= 0)
            close(irqs[i].fd);
        pthread_cond_destroy(&irqs[i].woken);
        pthread_mutex_destroy(&irqs[i].lock);
    }
    free(irqs);
}

static struct timespec after(uint64_t ns)
{
    struct timespec ts;
    uint64_t sum;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    sum = (uint64_t)ts.tv_nsec + ns % SECOND;
    ts.tv_sec += (time_t)(ns / SECOND + sum / SECOND);
    ts.tv_nsec = (long)(sum % SECOND);
    return ts;
}

/* How often the vector fired while this thread waited in the kernel. */
static uint64_t watch(const struct transport_irq *irq, uint64_t timeout_ns)
{
    struct timespec ts = {.tv_sec = (time_t)(timeout_ns / SECOND),
                          .tv_nsec = (long)(timeout_ns % SECOND)};
    struct pollfd p = {.fd = irq->fd, .events = POLLIN};
    uint64_t count;

    if (ppoll(&p, 1, &ts, NULL) <= 0 || read(irq->fd, &count, sizeof(count)) != sizeof(count))
        return 0;
    return count;
}

gpunvme_err_t transport_irq_wait(struct transport_irq *irq, uint64_t *seen, uint64_t timeout_ns)
{
    pthread_mutex_lock(&irq->lock);
    if (irq->fired == *seen && irq->watched) {
        struct timespec until = after(timeout_ns);

        pthread_cond_timedwait(&irq->woken, &irq->lock, &until);
    } else if (irq->fired == *seen) {
        uint64_t count;

        irq->watched = true;
        pthread_mutex_unlock(&irq->lock);
        count = irq->watch ? irq->watch(irq, timeout_ns) : watch(irq, timeout_ns);
        pthread_mutex_lock(&irq->lock);
        irq->watched = false;
        irq->fired += count;
        /* Whether it fired or this one's time is up: another must take its place. */
        pthread_cond_broadcast(&irq->woken);
    }
    *seen = irq->fired;
    pthread_mutex_unlock(&irq->lock);
    return GPUNVME_OK;
}
