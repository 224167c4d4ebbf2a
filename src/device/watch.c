/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The thread that looks after the controller while kernels use it: a removal or a fatal status ends
 * every wait on the GPU. So does the alarm, which a thread of the GPU raises when its command is
 * late: the GPU can't abort a command, and a command that never ends keeps its slot.
 */
#include <time.h>

#include "base/fail.h"
#include "device/internal.h"

#define MS        UINT64_C(1000000)
#define ALARM_NS  MS /* how soon an alarm is seen */
#define SECOND_NS 1000000000

static uint32_t *alarm_of(const struct gpunvme_device *dev)
{
    return dev->alarm.cpu;
}

/*
 * Whether a command is in flight that its thread has given up. If not, the one that the alarm was
 * raised for has ended meanwhile, by itself or by a reset: another reset would only end what others
 * have submitted since. Where it can't be known there may be one.
 */
static bool is_one_late(struct gpunvme_device *dev)
{
    for (uint32_t i = 0; i < dev->nqueues; i++) {
        struct life_order order = {.queue = dev->queues[i].words, .op = LIFE_COUNT_ABANDONED};
        struct life_result result = {0};

        if (life_run(dev->life, &order, &result) || result.in_flight)
            return true;
    }
    return false;
}

/*
 * Alarms raised before the reset, and until it is over, are answered by it. One that comes just
 * before the second store is lost: its thread does not wait any more, and recover finds its slot.
 */
static void answer_alarm(struct gpunvme_device *dev)
{
    gpunvme_store_release32(alarm_of(dev), 0);
    if (gpunvme_ctrl_check(dev->ctrl) != GPUNVME_OK || !is_one_late(dev))
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
