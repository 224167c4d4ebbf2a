/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The transport to the software controller: registers by function call, doorbells by memory, and
 * bus addresses that are no CPU addresses, so that code which confuses the two is found out.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fail.h"
#include "gpunvme/memory.h"
#include "gpunvme/sim.h"
#include "transport/common.h"
#include "transport/irq.h"
#include "transport/transports.h"

/* Added to the CPU's or the GPU's address: beyond all that either of them can have. */
#define BUS_OFFSET UINT64_C(0x0100000000000000)

/* Memory from alloc, until free or, where that never came, close. */
struct allocation {
    struct allocation *prev, *next;
    struct gpunvme_buf buf;
};

struct sim_transport {
    struct gpunvme_transport base;
    struct gpunvme_sim *sim;
    pthread_mutex_t lock;
    struct allocation allocations; /* head of a ring */
    struct transport_irq *irqs;
    uint32_t nirqs;
};

static struct sim_transport *of(struct gpunvme_transport *t)
{
    return (struct sim_transport *)t;
}

static gpunvme_err_t read32(struct gpunvme_transport *t, uint32_t offset, uint32_t *value)
{
    *value = (uint32_t)gpunvme_sim_reg_read(of(t)->sim, offset, 4);
    return GPUNVME_OK;
}

static gpunvme_err_t read64(struct gpunvme_transport *t, uint32_t offset, uint64_t *value)
{
    *value = gpunvme_sim_reg_read(of(t)->sim, offset, 8);
    return GPUNVME_OK;
}

static gpunvme_err_t write32(struct gpunvme_transport *t, uint32_t offset, uint32_t value)
{
    gpunvme_sim_reg_write(of(t)->sim, offset, 4, value);
    return GPUNVME_OK;
}

static gpunvme_err_t write64(struct gpunvme_transport *t, uint32_t offset, uint64_t value)
{
    gpunvme_sim_reg_write(of(t)->sim, offset, 8, value);
    return GPUNVME_OK;
}

static gpunvme_err_t map(struct gpunvme_transport *t, struct gpunvme_buf *buf)
{
    const void *address = buf->mem == GPUNVME_MEM_GPU && buf->gpu ? buf->gpu : buf->cpu;
    uint64_t bus = (uint64_t)(uintptr_t)address + BUS_OFFSET;
    gpunvme_err_t err;

    if (buf->bus)
        return base_fail(GPUNVME_ERR_BUSY, "the buffer has a bus address already");
    err = gpunvme_sim_dma_map(of(t)->sim, bus, buf->nbytes, buf);
    if (!err)
        buf->bus = bus;
    return err;
}

static void unmap(struct gpunvme_transport *t, struct gpunvme_buf *buf)
{
    if (!buf->bus)
        return;
    gpunvme_sim_dma_unmap(of(t)->sim, buf->bus, buf->nbytes);
    buf->bus = 0;
}

static gpunvme_err_t alloc(struct gpunvme_transport *t, size_t nbytes, enum gpunvme_mem mem,
                           struct gpunvme_buf *buf)
{
    struct sim_transport *s = of(t);
    struct allocation *a = calloc(1, sizeof(*a));
    gpunvme_err_t err;

    if (!a)
        return base_fail(GPUNVME_ERR_NOMEM, "%zu bytes", nbytes);
    err = gpunvme_mem_alloc(nbytes, mem, &a->buf);
    if (!err) {
        err = map(t, &a->buf);
        if (err)
            gpunvme_mem_free(&a->buf);
    }
    if (err) {
        free(a);
        return err;
    }
    pthread_mutex_lock(&s->lock);
    a->next = &s->allocations;
    a->prev = s->allocations.prev;
    a->prev->next = a->next->prev = a;
    pthread_mutex_unlock(&s->lock);
    *buf = a->buf;
    buf->transport_private = a;
    return GPUNVME_OK;
}

static void release(struct sim_transport *s, struct allocation *a)
{
    a->prev->next = a->next;
    a->next->prev = a->prev;
    unmap(&s->base, &a->buf);
    gpunvme_mem_free(&a->buf);
    free(a);
}

static void free_(struct gpunvme_transport *t, struct gpunvme_buf *buf)
{
    struct sim_transport *s = of(t);

    if (!buf->transport_private) /* not from alloc: its owner frees it */
        return;
    pthread_mutex_lock(&s->lock);
    release(s, buf->transport_private);
    pthread_mutex_unlock(&s->lock);
    *buf = (struct gpunvme_buf){0};
}

/* Called by the controller's threads. */
static void interrupted(void *s_, uint16_t vector)
{
    const struct sim_transport *s = s_;
    uint64_t one = 1;

    if (vector < s->nirqs && write(s->irqs[vector].fd, &one, sizeof(one)) < 0)
        return; /* its count is full: whoever waits for it is awake already */
}

static gpunvme_err_t irq_setup(struct gpunvme_transport *t, uint32_t wanted, uint32_t *granted)
{
    struct sim_transport *s = of(t);
    uint32_t most = gpunvme_sim_config_of(s->sim)->max_queues + 1u;
    gpunvme_err_t err;

    if (s->irqs)
        return base_fail(GPUNVME_ERR_BUSY, "interrupts are set up already");
    if (wanted > most)
        wanted = most;
    err = transport_irqs_create(wanted, &s->irqs);
    if (err)
        return err;
    s->nirqs = *granted = wanted;
    gpunvme_sim_set_irq(s->sim, interrupted, s);
    return GPUNVME_OK;
}

static gpunvme_err_t irq_wait(struct gpunvme_transport *t, uint32_t vector, uint64_t *seen,
                              uint64_t timeout_ns)
{
    struct sim_transport *s = of(t);

    if (vector >= s->nirqs)
        return base_fail(GPUNVME_ERR_INVALID, "interrupt vector %u of %u", vector, s->nirqs);
    return transport_irq_wait(&s->irqs[vector], seen, timeout_ns);
}

static gpunvme_err_t reset(struct gpunvme_transport *t)
{
    gpunvme_sim_function_reset(of(t)->sim);
    return GPUNVME_OK;
}

static void close_(struct gpunvme_transport *t)
{
    struct sim_transport *s = of(t);

    while (s->allocations.next != &s->allocations)
        release(s, s->allocations.next);
    gpunvme_sim_destroy(s->sim);
    transport_irqs_destroy(s->irqs, s->nirqs);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

static const struct gpunvme_transport_ops ops = {
    .name = "sim",
    .read32 = read32,
    .read64 = read64,
    .write32 = write32,
    .write64 = write64,
    .map = map,
    .unmap = unmap,
    .alloc = alloc,
    .free = free_,
    .copy_to = transport_copy_to,
    .copy_from = transport_copy_from,
    .now_ns = transport_now_ns,
    .pause_ns = transport_pause_ns,
    .irq_setup = irq_setup,
    .irq_wait = irq_wait,
    .reset = reset,
    .close = close_,
};

gpunvme_err_t transport_sim_open(const char *uri, struct gpunvme_transport **out)
{
    struct gpunvme_sim_config *config = malloc(sizeof(*config));
    struct sim_transport *s = calloc(1, sizeof(*s));
    gpunvme_err_t err = GPUNVME_OK;

    if (!config || !s)
        err = base_fail(GPUNVME_ERR_NOMEM, "a software controller");
    if (!err)
        err = gpunvme_sim_config_parse(uri, config);
    if (!err)
        err = gpunvme_sim_create(config, &s->sim);
    free(config);
    if (err) {
        free(s);
        return err;
    }
    s->base.ops = &ops;
    s->base.doorbells = gpunvme_sim_doorbells(s->sim, &s->base.doorbells_nbytes);
    s->base.gpu_doorbells = gpunvme_sim_gpu_doorbells(s->sim, NULL);
    strncpy(s->base.address, uri, sizeof(s->base.address) - 1);
    pthread_mutex_init(&s->lock, NULL);
    s->allocations.prev = s->allocations.next = &s->allocations;
    *out = &s->base;
    return GPUNVME_OK;
}

struct gpunvme_sim *gpunvme_transport_sim(struct gpunvme_transport *t)
{
    return t->ops == &ops ? of(t)->sim : NULL;
}
