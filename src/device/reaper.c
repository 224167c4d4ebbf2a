/* SPDX-License-Identifier: BSD-3-Clause
 *
 * GPUNVME_REAPER_CPU: a thread that takes the completions of all queues of a device, and hands each
 * to the mirror of its slot in pinned host memory, where the GPU's threads look.
 */
#include <sched.h>
#include <time.h>

#include "base/fail.h"
#include "device/internal.h"

#define SPIN_TURNS 4096u  /* without a completion, before the thread lets others work */
#define NAP_AFTER  16384u /* and before it sleeps */
#define NAP_NS     20000

/* A queue pair of which the CPU has the completion side only. */
void device_mirror_init(struct device_queue *q, const struct nvme_foreign_bells *bells,
                        uint32_t qid)
{
    uint32_t entries = q->dev->opts.entries;

    q->reaped = (struct gpunvme_qpair){
        .cq = q->cq.cpu,
        .slots = q->mirror.cpu,
        .mask = entries - 1,
        .slot_mask = entries - 1,
        .shift = (uint32_t)__builtin_ctz(entries),
        .qid = qid,
        .cq_doorbell = bells->cq,
        .ring = bells->ring,
        .ring_arg = bells->ring_arg,
    };
}

/* The GPU's threads have been kept out before, so the mirror is as they left it. */
gpunvme_err_t device_mirror_freeze(struct device_queue *q, uint64_t deadline_ns)
{
    while (gpunvme_exchange32(&q->reaped.cq_lock, 1)) {
        if (gpunvme_clock_ns() >= deadline_ns)
            return base_fail(GPUNVME_ERR_TIMEOUT, "queue %u: the reaper did not leave",
                             q->reaped.qid);
        gpunvme_relax();
    }
    return GPUNVME_OK;
}

void device_mirror_fail_and_rewind(struct device_queue *q, uint16_t status)
{
    gpunvme_qpair_fail(&q->reaped, status);
    gpunvme_store_relaxed64(&q->reaped.cq_head, 0);
}

void device_mirror_thaw(struct device_queue *q)
{
    gpunvme_exchange32(&q->reaped.cq_lock, 0);
}

uint32_t device_mirror_in_flight(const struct device_queue *q)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i <= q->reaped.slot_mask; i++)
        n += (gpunvme_load_acquire64(&q->reaped.slots[i].word) & 0xffff) == GPUNVME_SLOT_BUSY;
    return n;
}

static void rest(uint32_t idle)
{
    const struct timespec nap = {.tv_nsec = NAP_NS};

    if (idle < SPIN_TURNS)
        gpunvme_relax();
    else if (idle < NAP_AFTER)
        sched_yield();
    else
        nanosleep(&nap, NULL);
}

static void *reap(void *dev_)
{
    struct gpunvme_device *dev = dev_;
    uint32_t idle = 0;

    while (!gpunvme_load_acquire32(&dev->reaper_stop)) {
        uint32_t n = 0;

        for (uint32_t i = 0; i < dev->nqueues; i++)
            n += gpunvme_qpair_reap(&dev->queues[i].reaped);
        idle = n ? 0 : idle < NAP_AFTER ? idle + 1 : idle;
        if (idle)
            rest(idle);
    }
    return NULL;
}

gpunvme_err_t device_reaper_start(struct gpunvme_device *dev)
{
    int error;

    if (dev->opts.reaper != GPUNVME_REAPER_CPU)
        return GPUNVME_OK;
    error = pthread_create(&dev->reaper_thread, NULL, reap, dev);
    if (error)
        return base_fail_errno(error, "the thread that reaps");
    dev->is_reaped = true;
    return GPUNVME_OK;
}

/* It waits for nothing, so it ends at once. */
void device_reaper_stop(struct gpunvme_device *dev)
{
    if (!dev->is_reaped)
        return;
    gpunvme_store_release32(&dev->reaper_stop, 1);
    pthread_join(dev->reaper_thread, NULL);
    dev->is_reaped = false;
}
