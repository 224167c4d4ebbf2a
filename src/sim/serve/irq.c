/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Interrupts to a vfio-user client: eventfds set by DEVICE_SET_IRQS, signalled by the notifier when
 * the controller raises a vector.
 *
 * A client that has set a descriptor for any MSI-X vector is told by MSI-X, else by INTx. Masks of
 * the MSI-X table are the client's affair, as the protocol has no others; INTx is a level, so it
 * is masked when it was signalled and looked at again when the client unmasks it.
 *
 * Source: the vfio-user specification, "VFIO_USER_DEVICE_SET_IRQS"; linux/vfio.h.
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/cond.h"
#include "base/fail.h"
#include "gpunvme/atomics.h"
#include "sim/serve/serve.h"
#include "vfio_user/descriptor.h"

#define INTX(irqs)    ((irqs)->events[(irqs)->nmsix])
#define NEVENTS(irqs) ((irqs)->nmsix + 3)

/* --- the notifier ----------------------------------------------------------------------------- */

/*
 * A full eventfd is not waited for: whoever reads it will hear. But its owner may fill it right
 * after it was looked at, and then the write waits.
 */
static void signal_fd(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    uint64_t one = 1;

    if (poll(&p, 1, 0) > 0 && p.revents & POLLOUT && write(fd, &one, sizeof(one)) != sizeof(one))
        return; /* whoever reads it has been told before */
}

/* Under the lock: the next event that is due, in turn; NULL: none. */
static struct serve_event *find_due(struct serve_irqs *irqs)
{
    for (uint32_t i = 0; i < NEVENTS(irqs); i++) {
        struct serve_event *event = &irqs->events[(irqs->next + i) % NEVENTS(irqs)];

        if (!event->due)
            continue;
        irqs->next = (uint32_t)(event - irqs->events) + 1;
        return event;
    }
    return NULL;
}

static void *notifier_main(void *irqs_)
{
    struct serve_irqs *irqs = irqs_;

    pthread_mutex_lock(&irqs->lock);
    while (!irqs->stopping) {
        struct serve_event *event = find_due(irqs);
        int fd;

        if (!event) {
            pthread_cond_wait(&irqs->changed, &irqs->lock);
            continue;
        }
        event->due = false;
        fd = irqs->writing = event->fd;
        pthread_mutex_unlock(&irqs->lock);
        signal_fd(fd);
        pthread_mutex_lock(&irqs->lock);
        if (irqs->is_orphan)
            close(fd);
        irqs->is_orphan = false;
        irqs->writing = -1;
        pthread_cond_broadcast(&irqs->changed);
    }
    pthread_mutex_unlock(&irqs->lock);
    return NULL;
}

/* Under the lock. */
static void notify(struct serve_irqs *irqs, struct serve_event *event)
{
    if (event->fd < 0 || event->due)
        return;
    event->due = true;
    pthread_cond_broadcast(&irqs->changed);
}

/* Makes room in an eventfd. Its owner may be reading too, so nothing here may wait. */
static void make_room(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    uint64_t count;
    struct iovec iov = {.iov_base = &count, .iov_len = sizeof(count)};

    if (preadv2(fd, &iov, 1, -1, RWF_NOWAIT) < 0 && errno == EOPNOTSUPP && /* Linux before 5.8 */
        poll(&p, 1, 0) > 0 && read(fd, &count, sizeof(count)) < 0)
        return;
}

/* Under the lock: waits until the notifier writes to nothing of a client that has left. */
static void free_notifier(struct serve_irqs *irqs)
{
    while (irqs->is_orphan) {
        make_room(irqs->writing);
        base_cond_wait(&irqs->changed, &irqs->lock, gpunvme_clock_ns() + 1000000);
    }
}

/* --- descriptors ------------------------------------------------------------------------------ */

gpunvme_err_t serve_irqs_create(struct gpunvme_sim_server *s)
{
    struct serve_irqs *irqs = &s->irqs;
    int error;

    pthread_mutex_init(&irqs->lock, NULL);
    base_cond_init(&irqs->changed);
    irqs->nmsix = s->nvectors;
    irqs->writing = -1;
    irqs->events = calloc(NEVENTS(irqs), sizeof(*irqs->events));
    if (!irqs->events)
        return base_fail(GPUNVME_ERR_NOMEM, "%u interrupt vectors", s->nvectors);
    for (uint32_t i = 0; i < NEVENTS(irqs); i++)
        irqs->events[i].fd = -1;
    error = pthread_create(&irqs->notifier, NULL, notifier_main, irqs);
    if (error)
        return base_fail_errno(error, "a thread of the vfio-user server");
    irqs->started = true;
    return GPUNVME_OK;
}

/* The events of an index, and how many; NULL for one that has none. */
static struct serve_event *events_of(struct serve_irqs *irqs, uint32_t index, uint32_t *count)
{
    *count = 1;
    switch (index) {
    case VFIO_PCI_INTX_IRQ_INDEX:
        return &INTX(irqs);
    case VFIO_PCI_MSIX_IRQ_INDEX:
        *count = irqs->nmsix;
        return irqs->events;
    case VFIO_PCI_ERR_IRQ_INDEX:
        return &INTX(irqs) + 1;
    case VFIO_PCI_REQ_IRQ_INDEX:
        return &INTX(irqs) + 2;
    default:
        *count = 0;
        return NULL;
    }
}

static void replace(struct serve_irqs *irqs, struct serve_event *event, int fd)
{
    if (event < &INTX(irqs))
        irqs->nmsix_set += (uint32_t)(fd >= 0) - (uint32_t)(event->fd >= 0);
    if (event->fd >= 0 && event->fd == irqs->writing)
        irqs->is_orphan = true;
    else if (event->fd >= 0)
        close(event->fd);
    *event = (struct serve_event){.fd = fd};
}

void serve_irqs_drop(struct gpunvme_sim_server *s)
{
    struct serve_irqs *irqs = &s->irqs;

    pthread_mutex_lock(&irqs->lock);
    for (uint32_t i = 0; i < NEVENTS(irqs); i++)
        replace(irqs, &irqs->events[i], -1);
    irqs->intx_masked = false;
    free_notifier(irqs);
    pthread_mutex_unlock(&irqs->lock);
}

void serve_irqs_destroy(struct gpunvme_sim_server *s)
{
    struct serve_irqs *irqs = &s->irqs;

    if (irqs->events)
        serve_irqs_drop(s);
    if (irqs->started) {
        pthread_mutex_lock(&irqs->lock);
        irqs->stopping = true;
        pthread_cond_broadcast(&irqs->changed);
        pthread_mutex_unlock(&irqs->lock);
        pthread_join(irqs->notifier, NULL);
    }
    free(irqs->events);
    pthread_cond_destroy(&irqs->changed);
    pthread_mutex_destroy(&irqs->lock);
}

void serve_irq_raise(void *s_, uint16_t vector)
{
    struct gpunvme_sim_server *s = s_;
    struct serve_irqs *irqs = &s->irqs;

    pthread_mutex_lock(&irqs->lock);
    if (irqs->nmsix_set) {
        if (vector < irqs->nmsix)
            notify(irqs, &irqs->events[vector]);
    } else if (INTX(irqs).fd >= 0 && !irqs->intx_masked && !sim_pci_config_intx_off(&s->config)) {
        irqs->intx_masked = true;
        notify(irqs, &INTX(irqs));
    }
    pthread_mutex_unlock(&irqs->lock);
}

/* --- what the client asks --------------------------------------------------------------------- */

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
    events_of(&s->irqs, info.index, &info.count);
    memcpy(r->head, &info, sizeof(info));
    r->head_nbytes = sizeof(info);
    return 0;
}

/* Descriptors for start … start + count - 1; where the message has fewer, the rest have none. */
static int set_fds(struct serve_irqs *irqs, const struct vfio_irq_set *set,
                   struct serve_event *events, struct vfio_user_message *m)
{
    if (m->nfds > set->count)
        return EINVAL;
    for (unsigned i = 0; i < m->nfds; i++)
        if (!vfio_user_is_eventfd(m->fds[i]))
            return EINVAL;
    for (uint32_t i = 0; i < set->count; i++)
        replace(irqs, &events[set->start + i], vfio_user_message_take(m, i));
    return 0;
}

/* Is interrupt `i` of the range meant? */
static bool meant(const struct vfio_irq_set *set, const uint8_t *bools, uint32_t i)
{
    return !(set->flags & VFIO_IRQ_SET_DATA_BOOL) || bools[i];
}

static int trigger(struct serve_irqs *irqs, const struct vfio_irq_set *set,
                   struct serve_event *events, uint32_t most, struct vfio_user_message *m)
{
    const uint8_t *bools = (const uint8_t *)m->body + sizeof(*set);

    if (set->flags & VFIO_IRQ_SET_DATA_EVENTFD)
        return set_fds(irqs, set, events, m);
    if (!set->count) { /* no data, none: all of them off */
        for (uint32_t i = 0; i < most; i++)
            replace(irqs, &events[i], -1);
        return 0;
    }
    for (uint32_t i = 0; i < set->count; i++)
        if (meant(set, bools, i))
            notify(irqs, &events[set->start + i]);
    return 0;
}

/* Under the lock; *again: INTx was unmasked, and may be due. */
static int obey(struct serve_irqs *irqs, const struct vfio_irq_set *set,
                struct vfio_user_message *m, bool *again)
{
    uint32_t action = set->flags & VFIO_IRQ_SET_ACTION_TYPE_MASK, most;
    struct serve_event *events = events_of(irqs, set->index, &most);

    if (set->start > most || set->count > most - set->start)
        return EINVAL;
    if (!set->count && (set->start || !(set->flags & VFIO_IRQ_SET_DATA_NONE) ||
                        action != VFIO_IRQ_SET_ACTION_TRIGGER))
        return EINVAL;
    if (action == VFIO_IRQ_SET_ACTION_TRIGGER)
        return events || !most ? trigger(irqs, set, events, most, m) : EINVAL;
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
