/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Interrupts by VFIO: MSI-X, else MSI, else the one of a pin, each vector an eventfd; and the
 * interrupt by which the kernel asks for the function.
 */
#include <errno.h>
#include <linux/vfio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/fail.h"
#include "transport/vfio.h"

unsigned vfio_irq_skip = 0;

static uint32_t count_of(const struct vfio_transport *v, uint32_t index)
{
    struct vfio_irq_info info = {.argsz = sizeof(info), .index = index};

    if (ioctl(v->device, VFIO_DEVICE_GET_IRQ_INFO, &info) || !(info.flags & VFIO_IRQ_INFO_EVENTFD))
        return 0;
    return info.count;
}

/* 0, or -1 with errno, or how many vectors could be had instead. */
static int set_eventfds(const struct vfio_transport *v, uint32_t index, const int *fds,
                        uint32_t count)
{
    size_t nbytes = sizeof(struct vfio_irq_set) + count * sizeof(int32_t);
    struct vfio_irq_set *set = calloc(1, nbytes);
    int result;

    if (!set) {
        errno = ENOMEM;
        return -1;
    }
    set->argsz = (uint32_t)nbytes;
    set->flags = VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER;
    set->index = index;
    set->count = count;
    memcpy(set->data, fds, count * sizeof(int32_t));
    result = ioctl(v->device, VFIO_DEVICE_SET_IRQS, set);
    free(set);
    return result;
}

/* An action on vector 0, or with count 0 on the whole index. */
static int act(const struct vfio_transport *v, uint32_t index, uint32_t action, uint32_t count)
{
    struct vfio_irq_set set = {.argsz = sizeof(set),
                               .flags = VFIO_IRQ_SET_DATA_NONE | action,
                               .index = index,
                               .count = count};

    return ioctl(v->device, VFIO_DEVICE_SET_IRQS, &set);
}

/* Gives the vectors of an index their eventfds: all `count` of them, or as many as there are. */
static gpunvme_err_t connect_index(struct vfio_transport *v, uint32_t index, uint32_t *count)
{
    int *fds = calloc(*count, sizeof(*fds));
    gpunvme_err_t err = GPUNVME_OK;

    if (!fds)
        return base_fail(GPUNVME_ERR_NOMEM, "%u interrupt vectors", *count);
    for (uint32_t i = 0; i < *count; i++)
        fds[i] = v->irqs[i].fd;
    for (;;) {
        int result = set_eventfds(v, index, fds, *count);

        if (result > 0 && (uint32_t)result < *count) {
            *count = (uint32_t)result;
            continue;
        }
        if (result)
            err = base_fail_errno(result < 0 ? errno : EIO, "%s: interrupts", v->function.bdf);
        break;
    }
    free(fds);
    return err;
}

static void forget(struct vfio_transport *v)
{
    transport_irqs_destroy(v->irqs, v->irqs_made);
    v->irqs = NULL;
    v->irqs_made = v->nirqs = 0;
}

void vfio_irq_release(struct vfio_transport *v)
{
    if (!v->irqs)
        return;
    (void)act(v, v->irq_index, VFIO_IRQ_SET_ACTION_TRIGGER, 0);
    forget(v);
}

static gpunvme_err_t try_index(struct vfio_transport *v, uint32_t index, uint32_t wanted)
{
    uint32_t count = count_of(v, index);
    gpunvme_err_t err;

    if (count > wanted)
        count = wanted;
    if (!count)
        return base_fail(GPUNVME_ERR_UNSUPPORTED, "%s has no interrupts", v->function.bdf);
    err = transport_irqs_create(count, &v->irqs);
    if (err)
        return err;
    v->irqs_made = count;
    err = connect_index(v, index, &count);
    if (err) {
        forget(v);
        return err;
    }
    v->nirqs = count;
    v->irq_index = index;
    return GPUNVME_OK;
}

gpunvme_err_t vfio_irq_setup(struct gpunvme_transport *t, uint32_t wanted, uint32_t *granted)
{
    static const uint32_t order[] = {VFIO_PCI_MSIX_IRQ_INDEX, VFIO_PCI_MSI_IRQ_INDEX,
                                     VFIO_PCI_INTX_IRQ_INDEX};
    struct vfio_transport *v = vfio_of(t);
    gpunvme_err_t err = base_fail(GPUNVME_ERR_UNSUPPORTED, "no interrupts");

    if (!wanted)
        return base_fail(GPUNVME_ERR_INVALID, "no interrupt vectors asked for");
    vfio_irq_release(v);
    for (size_t i = vfio_irq_skip; i < sizeof(order) / sizeof(order[0]); i++) {
        err = try_index(v, order[i], wanted);
        if (!err) {
            *granted = v->nirqs;
            return GPUNVME_OK;
        }
    }
    return err;
}

/*
 * VFIO masks the pin's interrupt as it delivers it. It is unmasked by whoever waits the next time:
 * it has emptied its queue by then, so that the pin is quiet, unless there is something new, which
 * then fires at once.
 */
gpunvme_err_t vfio_irq_wait(struct gpunvme_transport *t, uint32_t vector, uint64_t *seen,
                            uint64_t timeout_ns)
{
    struct vfio_transport *v = vfio_of(t);

    if (vector >= v->nirqs)
        return base_fail(GPUNVME_ERR_INVALID, "interrupt vector %u of %u", vector, v->nirqs);
    if (v->irq_index == VFIO_PCI_INTX_IRQ_INDEX)
        (void)act(v, VFIO_PCI_INTX_IRQ_INDEX, VFIO_IRQ_SET_ACTION_UNMASK, 1);
    return transport_irq_wait(&v->irqs[vector], seen, timeout_ns);
}

gpunvme_err_t vfio_request_setup(struct vfio_transport *v)
{
    if (!count_of(v, VFIO_PCI_REQ_IRQ_INDEX))
        return GPUNVME_OK;
    v->request = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (v->request < 0)
        return base_fail_errno(errno, "an eventfd");
    if (set_eventfds(v, VFIO_PCI_REQ_IRQ_INDEX, &v->request, 1))
        return base_fail_errno(errno, "%s: the request interrupt", v->function.bdf);
    return GPUNVME_OK;
}
