/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What the files of this room share: the device object, its queues, and the steps they are made of.
 */
#ifndef DEVICE_INTERNAL_H
#define DEVICE_INTERNAL_H

#include <pthread.h>

#include "device/orders/orders.h"
#include "gpunvme/device.h"
#include "gpunvme/memory.h"
#include "memory/ordering.h"
#include "nvme/foreign.h"

/* Memory in one piece on the bus: a part of a buffer from the transport. */
struct device_mem {
    struct gpunvme_buf buf; /* nbytes 0: none */
    void *cpu, *gpu;
    uint64_t bus;
};

/* Memory of the host that others made, as the GPU sees it. */
struct device_window;

/* What the host knows of a queue's words; an order that finds no room on the GPU is in doubt. */
enum device_words {
    DEVICE_WORDS_OPEN,
    DEVICE_WORDS_FROZEN,
    DEVICE_WORDS_THAWING, /* frozen, or open: to be thawed once more */
};

struct device_queue {
    struct gpunvme_device *dev;
    struct gpunvme_ioq *ioq;
    struct gpunvme_dev_queue *words; /* address of the GPU */
    struct gpunvme_slot *slots;      /* likewise */
    uint32_t *ready;                 /* likewise */
    struct device_mem sq, cq, lists, bounces;
    enum device_words state; /* guarded by the controller's `lifecycle` */
    uint64_t *aborted;       /* by slot: its word, when the controller said to have aborted it */

    /* GPUNVME_REAPER_CPU: the completion queue as the CPU's thread has it, with the mirror. */
    struct gpunvme_buf mirror;
    struct gpunvme_qpair reaped;
};

/*
 * The page table of a buffer in GPU memory. One that nobody has is kept for the next that needs
 * one: to free GPU memory would wait for kernels, of the caller's as well.
 */
struct device_pages {
    struct device_pages *next;
    struct gpunvme_buf buf;
    unsigned users; /* views */
    size_t n, room;
    uint64_t table[]; /* the same, to know it again */
};

struct gpunvme_device {
    struct gpunvme_ctrl *ctrl;
    struct gpunvme_transport *transport;
    struct gpunvme_device_opts opts; /* with the defaults filled in */
    enum gpunvme_placement placement;
    char why_not_higher[256];
    bool has_gpu;
    unsigned gpu;                 /* CUDA's number */
    struct mem_ordering ordering; /* for the report */

    unsigned page_shift;
    uint32_t list_nbytes, bounce_nbytes; /* 0: none */
    uint32_t nqueues;
    struct device_queue *queues;
    struct gpunvme_buf words; /* of all queues */
    struct device_window *doorbells;
    struct gpunvme_buf alarm;
    struct gpunvme_buf seen; /* the watching thread's copy of one queue's slots */
    struct orders *orders;

    pthread_mutex_t views; /* guards `pages` */
    struct device_pages *pages;

    uint64_t resets_before;
    pthread_mutex_t watch_lock; /* guards `is_stopping` for the condition */
    pthread_cond_t watch_wake;
    bool is_stopping;
    bool is_watched, is_reaped; /* the threads are there */
    pthread_t watch_thread, reaper_thread;
    uint32_t reaper_stop; /* atomic */
};

/* device.c */
enum gpunvme_mem device_data_mem(const struct gpunvme_device *dev);
gpunvme_err_t device_enter(const struct gpunvme_device *dev); /* its GPU is the thread's */
void device_leave(const struct gpunvme_device *dev);

/* doorbell.c. Windows are shared: the same memory is mapped once for all who ask. */
gpunvme_err_t device_window_open(volatile void *cpu, size_t nbytes, bool is_unsafe_allowed,
                                 struct device_window **out);
void device_window_close(struct device_window *window);
volatile uint32_t *device_window_at(const struct device_window *window, const volatile void *cpu);
gpunvme_err_t device_doorbells_open(struct gpunvme_device *dev);
void device_doorbells_close(struct gpunvme_device *dev);
/* As the GPU's threads ring it. */
gpunvme_err_t device_doorbell(const struct gpunvme_device *dev, const struct gpunvme_doorbell *cpu,
                              struct gpunvme_doorbell *out);

/* queue.c */
gpunvme_err_t device_queues_open(struct gpunvme_device *dev);
gpunvme_err_t device_queues_close(struct gpunvme_device *dev);
gpunvme_err_t device_mem_alloc(struct gpunvme_device *dev, size_t nbytes, enum gpunvme_mem mem,
                               struct device_mem *out);
void device_mem_free(struct gpunvme_device *dev, struct device_mem *mem);
/*
 * Takes the completions of a queue that nobody has taken, as a kernel beside others; *in_flight may
 * be NULL. Fails where the GPU has no room.
 */
gpunvme_err_t device_queue_settle(struct device_queue *q, uint64_t *in_flight);
/* Copies the words of its slots to dev->seen, which needs no room on the GPU. */
gpunvme_err_t device_queue_look(struct device_queue *q);

/* reaper.c */
void device_mirror_init(struct device_queue *q, const struct nvme_foreign_bells *bells,
                        uint32_t qid);
gpunvme_err_t device_mirror_freeze(struct device_queue *q, uint64_t deadline_ns);
void device_mirror_fail_and_rewind(struct device_queue *q, uint16_t status);
void device_mirror_thaw(struct device_queue *q);
uint32_t device_mirror_in_flight(const struct device_queue *q);
gpunvme_err_t device_reaper_start(struct gpunvme_device *dev);
void device_reaper_stop(struct gpunvme_device *dev);

/* watch.c */
gpunvme_err_t device_watch_start(struct gpunvme_device *dev);
void device_watch_stop(struct gpunvme_device *dev);

/* view.c */
void device_pages_free(struct gpunvme_device *dev);

#endif
