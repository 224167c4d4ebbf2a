/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Interrupts of a vfio-user target: event descriptors that it writes to, one a vector.
 */
#include <string.h>
#include <sys/eventfd.h>

#include "base/fail.h"
#include "transport/pci.h"
#include "transport/vfio_user.h"

#define VECTORS_MAX 2048u /* of an MSI-X table */

/* PCI configuration space: the list of capabilities, and MSI-X in it (PCI 3.0, 6.7 and 6.8.2) */
#define PCI_STATUS        0x06
#define PCI_STATUS_LIST   0x0010u
#define PCI_LIST          0x34
#define CAP_MSIX          0x11
#define MSIX_ENABLE       0x8000u
#define MSIX_MASK_ALL     0x4000u
#define MSIX_ENTRY_NBYTES 16u
#define MSIX_ENTRY_MASK   12u /* offset of an entry's mask bit */
#define CAPS_MAX          48  /* as many as fit */

static gpunvme_err_t irq_info(struct vfu *v, uint32_t index, struct vfio_irq_info *info)
{
    struct vfio_irq_info request = {.argsz = sizeof(request), .index = index};
    struct iovec part = {.iov_base = &request, .iov_len = sizeof(request)};
    struct vfio_user_message reply = {0};
    gpunvme_err_t err = vfu_call(v, VFIO_USER_DEVICE_GET_IRQ_INFO, &part, 1, NULL, 0, &reply, NULL);

    if (!err && reply.nbytes < 16) /* what the protocol has of it; the kernel may have more */
        err = base_fail(GPUNVME_ERR_PROTOCOL, "%s: %zu bytes about interrupts", v->base.address,
                        reply.nbytes);
    if (!err)
        memcpy(info, reply.body, 16);
    vfio_user_message_destroy(&reply);
    return err;
}

static gpunvme_err_t set_irqs(struct vfu *v, uint32_t flags, uint32_t start, uint32_t count,
                              const int *fds, unsigned nfds)
{
    struct vfio_irq_set set = {.argsz = sizeof(set),
                               .flags = flags,
                               .index = v->irq_index,
                               .start = start,
                               .count = count};
    struct iovec part = {.iov_base = &set, .iov_len = sizeof(set)};
    struct vfio_user_message reply = {0};
    gpunvme_err_t err = vfu_call(v, VFIO_USER_DEVICE_SET_IRQS, &part, 1, fds, nfds, &reply, NULL);

    vfio_user_message_destroy(&reply);
    return err;
}

static unsigned fds_max(const struct vfu *v)
{
    return v->caps.max_msg_fds < VFIO_USER_CHANNEL_FDS ? (unsigned)v->caps.max_msg_fds
                                                       : VFIO_USER_CHANNEL_FDS;
}

/* Sends the descriptors, as many at a time as a message may have. */
static gpunvme_err_t assign(struct vfu *v)
{
    int fds[VFIO_USER_CHANNEL_FDS];
    gpunvme_err_t err = GPUNVME_OK;

    for (uint32_t start = 0, n; !err && start < v->irq_count; start += n) {
        for (n = 0; n < fds_max(v) && start + n < v->irq_count; n++)
            fds[n] = v->irqs[start + n].fd;
        err =
            set_irqs(v, VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER, start, n, fds, n);
    }
    return err;
}

static bool config_read(struct vfu *v, uint32_t offset, void *value, uint32_t nbytes)
{
    return !vfu_region_read(v, VFU_REGION_CONFIG, offset, value, nbytes, NULL);
}

/* Where the MSI-X capability is: 0 where there is none. */
static uint8_t find_msix(struct vfu *v)
{
    uint16_t status, header;
    uint8_t at;

    if (!config_read(v, PCI_STATUS, &status, 2) || !(status & PCI_STATUS_LIST) ||
        !config_read(v, PCI_LIST, &at, 1))
        return 0;
    for (unsigned i = 0; i < CAPS_MAX; i++) {
        at &= 0xfc;
        if (at < 0x40 || !config_read(v, at, &header, 2))
            return 0;
        if ((header & 0xff) == CAP_MSIX)
            return at;
        at = (uint8_t)(header >> 8);
    }
    return 0;
}

/*
 * Switches MSI-X on as a guest's kernel would. The protocol's own message is enough for most
 * targets, which may refuse this; those that are whole PCI devices look at these bits.
 */
static void enable_msix(struct vfu *v)
{
    uint8_t at = find_msix(v);
    uint32_t table, unmasked = 0;
    uint16_t control;
    gpunvme_err_t err;

    if (!at || !config_read(v, at + 2u, &control, 2) || !config_read(v, at + 4u, &table, 4))
        return;
    control = (uint16_t)((control | MSIX_ENABLE) & ~MSIX_MASK_ALL);
    err = vfu_region_write(v, VFU_REGION_CONFIG, at + 2u, &control, 2, NULL);
    for (uint32_t i = 0; !err && i < v->irq_count; i++) {
        uint64_t mask = (table & ~7u) + (uint64_t)i * MSIX_ENTRY_NBYTES + MSIX_ENTRY_MASK;

        err = vfu_region_write(v, table & 7u, mask, &unmasked, 4, NULL);
    }
}

/*
 * A target may keep its configuration space from one client to the next. One that finds MSI-X
 * enabled there signals vectors that nobody has set, and may take that for a fatal error.
 */
void vfu_msix_disable(struct vfu *v)
{
    uint8_t at = find_msix(v);
    uint16_t control;

    if (!at || !config_read(v, at + 2u, &control, 2) || !(control & MSIX_ENABLE))
        return;
    control = (uint16_t)(control & ~MSIX_ENABLE);
    (void)vfu_region_write(v, VFU_REGION_CONFIG, at + 2u, &control, 2, NULL);
}

gpunvme_err_t vfu_irq_restore(struct vfu *v)
{
    gpunvme_err_t err = GPUNVME_OK;

    pthread_mutex_lock(&v->irq_lock);
    if (v->irq_count) {
        err = assign(v);
        if (!err && v->irq_index == VFIO_PCI_MSIX_IRQ_INDEX)
            enable_msix(v);
    }
    pthread_mutex_unlock(&v->irq_lock);
    return err;
}

/* The kind that is used, and how many vectors of it. */
static gpunvme_err_t choose(struct vfu *v, uint32_t wanted, uint32_t *count)
{
    static const uint32_t kinds[] = {VFIO_PCI_MSIX_IRQ_INDEX, VFIO_PCI_INTX_IRQ_INDEX};

    for (size_t i = 0; fds_max(v) && i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        struct vfio_irq_info info = {0};

        if (kinds[i] >= v->info.num_irqs || irq_info(v, kinds[i], &info) || !info.count ||
            !(info.flags & VFIO_IRQ_INFO_EVENTFD))
            continue;
        *count = wanted < info.count ? wanted : info.count;
        if (*count > VECTORS_MAX)
            *count = VECTORS_MAX;
        if (kinds[i] == VFIO_PCI_INTX_IRQ_INDEX)
            *count = 1;
        if ((info.flags & VFIO_IRQ_INFO_NORESIZE) && *count > fds_max(v))
            *count = fds_max(v); /* they must be set at once */
        v->irq_index = kinds[i];
        v->irq_automasked = info.flags & VFIO_IRQ_INFO_AUTOMASKED;
        return GPUNVME_OK;
    }
    return base_fail(GPUNVME_ERR_UNSUPPORTED, "%s: the target offers no interrupts",
                     v->base.address);
}

static gpunvme_err_t set_up(struct vfu *v, uint32_t wanted)
{
    uint32_t count = 0;
    gpunvme_err_t err = choose(v, wanted, &count);

    if (!err)
        err = transport_irqs_create(count, &v->irqs);
    if (err)
        return err;
    v->irq_count = count;
    if (v->irq_index == VFIO_PCI_INTX_IRQ_INDEX)
        err = vfu_config_enable(v, true);
    if (!err)
        err = assign(v);
    if (!err && v->irq_index == VFIO_PCI_MSIX_IRQ_INDEX)
        enable_msix(v);
    if (err) {
        transport_irqs_destroy(v->irqs, v->irq_count);
        v->irqs = NULL;
        v->irq_count = 0;
    }
    return err;
}

gpunvme_err_t vfu_irq_setup(struct gpunvme_transport *t, uint32_t wanted, uint32_t *granted)
{
    struct vfu *v = vfu_of(t);
    gpunvme_err_t err = GPUNVME_OK;

    if (!wanted)
        return base_fail(GPUNVME_ERR_INVALID, "no interrupt vectors");
    pthread_mutex_lock(&v->irq_lock);
    if (!v->irq_count)
        err = set_up(v, wanted);
    *granted = v->irq_count < wanted ? v->irq_count : wanted;
    pthread_mutex_unlock(&v->irq_lock);
    return err;
}

gpunvme_err_t vfu_irq_wait(struct gpunvme_transport *t, uint32_t vector, uint64_t *seen,
                           uint64_t timeout_ns)
{
    struct vfu *v = vfu_of(t);
    uint64_t before = *seen;
    gpunvme_err_t err;

    if (vector >= v->irq_count)
        return base_fail(GPUNVME_ERR_INVALID, "%s has no interrupt vector %u", t->address, vector);
    err = transport_irq_wait(&v->irqs[vector], seen, timeout_ns);
    if (!err && v->irq_automasked && *seen != before && !vfu_is_lost(v)) /* else it was the last */
        (void)set_irqs(v, VFIO_IRQ_SET_DATA_NONE | VFIO_IRQ_SET_ACTION_UNMASK, vector, 1, NULL, 0);
    return err;
}

void vfu_irq_wake(struct vfu *v)
{
    pthread_mutex_lock(&v->irq_lock);
    for (uint32_t i = 0; i < v->irq_count; i++)
        (void)eventfd_write(v->irqs[i].fd, 1);
    pthread_mutex_unlock(&v->irq_lock);
}
