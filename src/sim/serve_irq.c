/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Interrupts to a vfio-user client: eventfds set by DEVICE_SET_IRQS, signalled when the controller
 * raises a vector.
 *
 * A client that has set a descriptor for any MSI-X vector is told by MSI-X, else by INTx. Masks of
 * the MSI-X table are the client's affair, as the protocol has no others; INTx is a level, so it
 * is masked when it was signalled and looked at again when the client unmasks it.
 *
 * Source: the vfio-user specification, "VFIO_USER_DEVICE_SET_IRQS"; linux/vfio.h.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fail.h"
#include "sim/serve.h"

gpunvme_err_t serve_irqs_create(struct gpunvme_sim_server *s)
{
    struct serve_irqs *irqs = &s->irqs;

    pthread_mutex_init(&irqs->lock, NULL);
    irqs->intx = irqs->err = irqs->req = -1;
    irqs->msix = malloc(s->nvectors * sizeof(int));
    if (!irqs->msix)
        return base_fail(GPUNVME_ERR_NOMEM, "%u interrupt vectors", s->nvectors);
    for (uint32_t i = 0; i < s->nvectors; i++)
        irqs->msix[i] = -1;
    irqs->nmsix = s->nvectors;
    return GPUNVME_OK;
}

/* The descriptors of an index, and how many; NULL for one that has none. */
static int *fds_of(struct serve_irqs *irqs, uint32_t index, uint32_t *count)
{
    *count = 1;
    switch (index) {
    case VFIO_PCI_INTX_IRQ_INDEX:
        return &irqs->intx;
    case VFIO_PCI_MSIX_IRQ_INDEX:
        *count = irqs->nmsix;
        return irqs->msix;
    case VFIO_PCI_ERR_IRQ_INDEX:
        return &irqs->err;
    case VFIO_PCI_REQ_IRQ_INDEX:
        return &irqs->req;
    default:
        *count = 0;
        return NULL;
    }
}

static void replace(struct serve_irqs *irqs, uint32_t index, int *slot, int fd)
{
    if (index == VFIO_PCI_MSIX_IRQ_INDEX)
        irqs->nmsix_set += (fd >= 0) - (*slot >= 0);
    if (*slot >= 0)
        close(*slot);
    *slot = fd;
}

void serve_irqs_drop(struct gpunvme_sim_server *s)
{
    struct serve_irqs *irqs = &s->irqs;

    pthread_mutex_lock(&irqs->lock);
    for (uint32_t index = 0; index < VFIO_PCI_NUM_IRQS; index++) {
        uint32_t count;
        int *fds = fds_of(irqs, index, &count);

        for (uint32_t i = 0; i < count; i++)
            replace(irqs, index, &fds[i], -1);
    }
    irqs->intx_masked = false;
    pthread_mutex_unlock(&irqs->lock);
}

void serve_irqs_destroy(struct gpunvme_sim_server *s)
{
    if (s->irqs.msix)
        serve_irqs_drop(s);
    free(s->irqs.msix);
    pthread_mutex_destroy(&s->irqs.lock);
}

/* An eventfd can't be full but by its owner's malice, and then is not waited for. */
static void signal_fd(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    uint64_t one = 1;

    if (fd >= 0 && poll(&p, 1, 0) > 0 && p.revents & POLLOUT &&
        write(fd, &one, sizeof(one)) != sizeof(one))
        return; /* whoever reads it has been told before */
}

void serve_irq_raise(void *s_, uint16_t vector)
{
    struct gpunvme_sim_server *s = s_;
    struct serve_irqs *irqs = &s->irqs;

    pthread_mutex_lock(&irqs->lock);
    if (irqs->nmsix_set) {
        if (vector < irqs->nmsix)
            signal_fd(irqs->msix[vector]);
    } else if (irqs->intx >= 0 && !irqs->intx_masked && !sim_pci_config_intx_off(&s->config)) {
        irqs->intx_masked = true;
        signal_fd(irqs->intx);
    }
    pthread_mutex_unlock(&irqs->lock);
}

int serve_irq_info(struct gpunvme_sim_server *s, const struct vfio_user_message *m,
                   struct serve_reply *r)
{
    struct vfio_irq_info info;

    if (m->nbytes < sizeof(info))
        return EINVAL;
    memcpy(&info, m->body, sizeof(info));
    if (info.argsz < sizeof(info) || info.index >= VFIO_PCI_NUM_IRQS)
        return EINVAL;
    info.argsz = sizeof(info);
    info.flags = VFIO_IRQ_INFO_EVENTFD;
    if (info.index == VFIO_PCI_INTX_IRQ_INDEX)
        info.flags |= VFIO_IRQ_INFO_MASKABLE | VFIO_IRQ_INFO_AUTOMASKED;
    else
        info.flags |= VFIO_IRQ_INFO_NORESIZE;
    fds_of(&s->irqs, info.index, &info.count);
    memcpy(r->head, &info, sizeof(info));
    r->head_nbytes = sizeof(info);
    return 0;
}

/* Writing to anything else could block, or end the process by SIGPIPE. */
static bool is_eventfd(int fd)
{
    char path[32], target[32];
    ssize_t n;

    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    n = readlink(path, target, sizeof(target) - 1);
    if (n < 0)
        return false;
    target[n] = '\0';
    return !strcmp(target, "anon_inode:[eventfd]");
}

/* Descriptors for start … start + count - 1; where the message has fewer, the rest have none. */
static int set_fds(struct serve_irqs *irqs, const struct vfio_irq_set *set, int *fds,
                   struct vfio_user_message *m)
{
    if (m->nfds > set->count)
        return EINVAL;
    for (unsigned i = 0; i < m->nfds; i++)
        if (!is_eventfd(m->fds[i]))
            return EINVAL;
    for (uint32_t i = 0; i < set->count; i++)
        replace(irqs, set->index, &fds[set->start + i], vfio_user_message_take(m, i));
    return 0;
}

/* Is interrupt `i` of the range meant? */
static bool meant(const struct vfio_irq_set *set, const uint8_t *bools, uint32_t i)
{
    return !(set->flags & VFIO_IRQ_SET_DATA_BOOL) || bools[i];
}

static int trigger(struct serve_irqs *irqs, const struct vfio_irq_set *set, int *fds, uint32_t most,
                   struct vfio_user_message *m)
{
    const uint8_t *bools = (const uint8_t *)m->body + sizeof(*set);

    if (set->flags & VFIO_IRQ_SET_DATA_EVENTFD)
        return set_fds(irqs, set, fds, m);
    if (!set->count) { /* no data, none: all of them off */
        for (uint32_t i = 0; i < most; i++)
            replace(irqs, set->index, &fds[i], -1);
        return 0;
    }
    for (uint32_t i = 0; i < set->count; i++)
        if (meant(set, bools, i))
            signal_fd(fds[set->start + i]);
    return 0;
}

/* Under the lock; *again: INTx was unmasked, and may be due. */
static int obey(struct serve_irqs *irqs, const struct vfio_irq_set *set,
                struct vfio_user_message *m, bool *again)
{
    uint32_t action = set->flags & VFIO_IRQ_SET_ACTION_TYPE_MASK, most;
    int *fds = fds_of(irqs, set->index, &most);

    if (set->start > most || set->count > most - set->start)
        return EINVAL;
    if (!set->count && (set->start || !(set->flags & VFIO_IRQ_SET_DATA_NONE) ||
                        action != VFIO_IRQ_SET_ACTION_TRIGGER))
        return EINVAL;
    if (action == VFIO_IRQ_SET_ACTION_TRIGGER)
        return fds || !most ? trigger(irqs, set, fds, most, m) : EINVAL;
    if (set->index != VFIO_PCI_INTX_IRQ_INDEX || set->flags & VFIO_IRQ_SET_DATA_EVENTFD)
        return ENOTSUP;
    if (meant(set, (const uint8_t *)m->body + sizeof(*set), 0)) {
        irqs->intx_masked = action == VFIO_IRQ_SET_ACTION_MASK;
        *again = !irqs->intx_masked;
    }
    return 0;
}

int serve_irq_set(struct gpunvme_sim_server *s, struct vfio_user_message *m)
{
    struct vfio_irq_set set;
    bool again = false;
    uint32_t data, action;
    int error;

    if (m->nbytes < sizeof(set))
        return EINVAL;
    memcpy(&set, m->body, sizeof(set));
    data = set.flags & VFIO_IRQ_SET_DATA_TYPE_MASK;
    action = set.flags & VFIO_IRQ_SET_ACTION_TYPE_MASK;
    if (set.argsz < sizeof(set) || set.flags & ~(data | action) || __builtin_popcount(data) != 1 ||
        __builtin_popcount(action) != 1 || set.index >= VFIO_PCI_NUM_IRQS)
        return EINVAL;
    if (data == VFIO_IRQ_SET_DATA_BOOL && set.count > m->nbytes - sizeof(set))
        return EINVAL;
    if (data != VFIO_IRQ_SET_DATA_EVENTFD && m->nfds)
        return EINVAL;
    pthread_mutex_lock(&s->irqs.lock);
    error = obey(&s->irqs, &set, m, &again);
    pthread_mutex_unlock(&s->irqs.lock);
    if (again)
        gpunvme_sim_irq_again(s->sim);
    return error;
}
