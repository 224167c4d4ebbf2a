/* SPDX-License-Identifier: GPL-2.0
 *
 * The parts of the module gpunvme: main.c has the PCI driver and the character device, map.c the
 * mappings of host memory and their handles, dmabuf.c those of other drivers' memory,
 * irq.c the interrupts.
 *
 * Locks, in the order in which they are taken:
 *   gpunvme_dev.lock      all of struct gpunvme_dev and of its opener, but what is named below
 *   mmap_lock             of a process, by access to its memory
 *   gpunvme_dev.map_lock  `removed`, for page faults, which can't take `lock`
 *   gpunvme_dev.master    bus mastering, `nrevoked` and `event`, for callbacks, which take
 *                         neither: a spinlock
 */
#ifndef GPUNVME_H
#define GPUNVME_H

#include <linux/fs.h>
#include <linux/kref.h>
#include <linux/miscdevice.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/rwsem.h>
#include <linux/scatterlist.h>
#include <linux/spinlock.h>
#include <linux/xarray.h>

#include "compat.h"
#include "gpunvme_ioctl.h"

struct gpunvme_irq;

struct gpunvme_dev {
    struct kref ref; /* the binding's, and the opener's */
    struct pci_dev *pdev;
    struct miscdevice misc;
    char name[32], nodename[40];
    struct mutex lock;
    struct rw_semaphore map_lock;
    bool removed;
    spinlock_t master;
    bool master_wanted; /* there is an opener, and no memory was taken away since the reset */
    unsigned int nrevoked;
    struct eventfd_ctx *event;

    void __iomem *regs; /* the first page of BAR0 */
    resource_size_t bar0, bar0_len, mmap_len;

    struct gpunvme_file *file; /* the one opener, or NULL */
};

struct gpunvme_file {
    struct gpunvme_dev *dev;
    struct address_space *mapping;
    struct xarray maps; /* by handle, from 1 on */
    struct gpunvme_irq *irqs;
    unsigned int nirqs;
    struct page *ones[2]; /* what a removed function reads as: its registers, and all else */
};

/*
 * A mapping, the first member of a structure that kzalloc() gave. release takes everything back
 * but that structure, also of a mapping made by halves; after it no callback may come.
 */
struct gpunvme_map {
    struct gpunvme_dev *dev;
    void (*release)(struct gpunvme_map *map);
    bool revoked; /* under dev->master */
};

/* main.c: called from anywhere. The memory of `map` goes away: the controller stops first. */
void gpunvme_revoke(struct gpunvme_map *map);

/* main.c: after this the IOMMU remembers nothing that was unmapped, so memory may go. */
void gpunvme_flush(struct gpunvme_dev *d);

/* map.c; all under dev->lock. */
long gpunvme_map_user(struct gpunvme_file *f, void __user *arg);
long gpunvme_unmap(struct gpunvme_file *f, void __user *arg);
void gpunvme_unmap_all(struct gpunvme_file *f);
void gpunvme_drop(struct gpunvme_map *map);
int gpunvme_check_range(u64 start, u64 len, u64 granule, u32 capacity, u32 *npages);
int gpunvme_list_sgt(struct sg_table *sgt, u64 offset, u64 *pages, u32 npages);
int gpunvme_add(struct gpunvme_file *f, struct gpunvme_map *map, u32 *handle);

#ifdef CONFIG_DMA_SHARED_BUFFER
long gpunvme_map_dmabuf(struct gpunvme_file *f, void __user *arg);
#else
static inline long gpunvme_map_dmabuf(struct gpunvme_file *f, void __user *arg)
{
    return -EOPNOTSUPP;
}
#endif

/* irq.c; both under dev->lock. */
long gpunvme_irq_set(struct gpunvme_file *f, void __user *arg);
void gpunvme_irq_free(struct gpunvme_file *f);

#endif
