/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The thread that looks after the controller while kernels use it: a removal or a fatal status ends
 * every wait on the GPU. So does the alarm, which a thread of the GPU raises when its command is
 * late: the GPU can't abort a command, and a command that never ends keeps its slot. The host tries
 * Abort, and if that does not help, a reset.
 */
#include <time.h>

#include "base/fail.h"
#include "device/internal.h"

#define MS        UINT64_C(1000000)
#define ALARM_NS  MS          /* how soon an alarm is seen */
#define ABORTS_NS (5000 * MS) /* after which a controller that is slow to abort is reset */
#define SECOND_NS 1000000000

static uint32_t *alarm_of(const struct gpunvme_device *dev)
{
    return dev->alarm.cpu;
}

/*
 * As seen: a command is in flight that its thread has given up. One that was aborted is not, though
 * its slot may look so until somebody takes the completion.
 */
static bool is_late(const struct device_queue *q, uint32_t slot)
{
    const struct gpunvme_slot *seen = q->dev->seen.cpu, *mirror = q->mirror.cpu;
    uint64_t word = seen[slot].word;

    return word & GPUNVME_DEV_SLOT_TAKEN && word & GPUNVME_DEV_SLOT_ABANDONED &&
           !(word & GPUNVME_SLOT_DONE) && word != q->aborted[slot] &&
           !(mirror && gpunvme_load_acquire64(&mirror[slot].word) & GPUNVME_SLOT_DONE);
}

/* Whether that is still so. Where it can't be known it may be. */
static bool is_late_still(struct device_queue *q, uint32_t slot)
{
    (void)device_queue_settle(q, NULL);
    return device_queue_look(q) != GPUNVME_OK || is_late(q, slot);
}

/*
 * Aborts one command. The slot is nobody's meanwhile, so that a command that ends in this very
 * moment may have left it to another, which is then aborted instead: that one is told, where a
 * reset would have ended them all.
 */
static bool abort_one(struct device_queue *q, uint32_t slot)
{
    const struct gpunvme_slot *seen = q->dev->seen.cpu;
    bool is_aborted;

    if (nvme_ioq_abort(q->ioq, (uint16_t)slot, &is_aborted))
        return false;
    if (is_aborted)
        q->aborted[slot] = seen[slot].word;
    return is_aborted || !is_late_still(q, slot);
}

/* Whether Abort ends every late command of a queue, in time. */
static bool abort_late(struct device_queue *q)
{
    uint64_t until = gpunvme_clock_ns() + ABORTS_NS;
    bool any = false;

    for (uint32_t slot = 1; slot < q->dev->opts.entries; slot++) {
        if (!is_late(q, slot))
            continue;
        if ((any && gpunvme_clock_ns() >= until) || !abort_one(q, slot))
            return false;
        any = true;
    }
    if (any)
        (void)device_queue_settle(q, NULL);
    return true;
}

/*
 * Whether no command is late any more, without a reset. The one that the alarm was raised for may
 * have ended meanwhile. A queue that was left out of a reset has no command in flight, whatever its
 * slots say: another reset would change nothing, and end what others have submitted since.
 */
static bool end_late_commands(struct gpunvme_device *dev)
{
    for (uint32_t i = 0; i < dev->nqueues; i++) {
        struct device_queue *q = &dev->queues[i];

        if (nvme_ioq_is_left_out(q->ioq))
            continue;
        (void)device_queue_settle(q, NULL); /* without room the slots tell all the same */
        if (device_queue_look(q) || !abort_late(q))
            return false;
    }
    return true;
}

/*
 * Alarms raised before the reset, and until it is over, are answered by it. One that comes just
 * before the second store is lost: its thread does not wait any more, and recover finds its slot.
 */
static void answer_alarm(struct gpunvme_device *dev)
{
    gpunvme_store_release32(alarm_of(dev), 0);
    if (gpunvme_ctrl_check(dev->ctrl) != GPUNVME_OK || end_late_commands(dev))
        return;
    (void)nvme_recover(dev->ctrl); /* what comes of it, waits and recover tell */
    gpunvme_store_release32(alarm_of(dev), 0);
}

/* Sleeps a moment; false when it is time to stop. */
static bool nap(struct gpunvme_device *dev, uint64_t ns)
{
    struct timespec until;
    bool is_stopping;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)((uint64_t)until.tv_nsec + ns) / SECOND_NS;
    until.tv_nsec = (long)(((uint64_t)until.tv_nsec + ns) % SECOND_NS);
    pthread_mutex_lock(&dev->watch_lock);
    if (!dev->is_stopping)
        pthread_cond_timedwait(&dev->watch_wake, &dev->watch_lock, &until);
    is_stopping = dev->is_stopping;
    pthread_mutex_unlock(&dev->watch_lock);
    return !is_stopping;
}

static void *watch(void *dev_)
{
    struct gpunvme_device *dev = dev_;
    uint64_t every = dev->opts.check_ms * MS, next = gpunvme_clock_ns() + every;

    while (nap(dev, every < ALARM_NS ? every : ALARM_NS)) {
        if (gpunvme_load_acquire32(alarm_of(dev)))
            answer_alarm(dev);
        else if (gpunvme_clock_ns() >= next)
            (void)gpunvme_ctrl_check(dev->ctrl);
        else
            continue;
        next = gpunvme_clock_ns() + every;
    }
    return NULL;
}

gpunvme_err_t device_watch_start(struct gpunvme_device *dev)
{
    int error = pthread_create(&dev->watch_thread, NULL, watch, dev);

    if (error)
        return base_fail_errno(error, "the thread that looks after the controller");
    dev->is_watched = true;
    return GPUNVME_OK;
}

void device_watch_stop(struct gpunvme_device *dev)
{
    if (!dev->is_watched)
        return;
    pthread_mutex_lock(&dev->watch_lock);
    dev->is_stopping = true;
    pthread_cond_signal(&dev->watch_wake);
    pthread_mutex_unlock(&dev->watch_lock);
    pthread_join(dev->watch_thread, NULL);
    dev->is_watched = false;
}
