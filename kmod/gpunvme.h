/* SPDX-License-Identifier: GPL-2.0
 *
 * The parts of the module gpunvme: main.c has the PCI driver and the character device, map.c the
 * handles of mappings and the mappings of host memory, dmabuf.c those of other drivers' memory,
 * irq.c the interrupts.
 *
 * A fault in user memory can last for ever (FUSE, userfaultfd). So no lock is held while user
 * memory is read, written, pinned or unpinned: unbinding waits for `lock`.
 *
 * Locks, in the order in which they are taken:
 *   misc_mtx              the kernel's, held during open() by which everybody opens a misc device:
 *                         open() must not wait
 *   gpunvme_dev.lock      all of struct gpunvme_dev and of its opener, but what is named below
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

#ifndef CONFIG_64BIT
#error "addresses of user memory are taken to have 64 bits"
#endif

struct gpunvme_irqs;
struct gpunvme_map;

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
    unsigned int nvectors;

    struct gpunvme_file *file; /* the one opener, or NULL */
};

struct gpunvme_file {
    struct gpunvme_dev *dev;
    struct address_space *mapping;
    bool ready;         /* the controller was disabled for this opener */
    struct xarray maps; /* by handle, from 1 on */
    struct gpunvme_irqs *irqs;
    struct page *ones[2]; /* what a removed function reads as: its registers, and all else */
};

struct gpunvme_map_ops {
    /* Under dev->lock: maps the memory for the controller, and lists its bus addresses. */
    int (*attach)(struct gpunvme_map *map, u64 *pages, u32 npages);
    /* Under dev->lock: undoes attach, also one that failed. No callback may come afterwards. */
    void (*detach)(struct gpunvme_map *map);
    /* Without locks, after detach: lets the memory go, and frees `map`. */
    void (*release)(struct gpunvme_map *map);
};

struct gpunvme_map {
    const struct gpunvme_map_ops *ops;
    struct gpunvme_dev *dev;
    bool revoked; /* under dev->master */
};

/* main.c: takes dev->lock for a call. Fails if the function is gone or can't be disabled. */
int gpunvme_lock(struct gpunvme_file *f);

/* main.c: called from anywhere. The memory of `map` goes away: the controller stops first. */
void gpunvme_revoke(struct gpunvme_map *map);

/* main.c: after this the IOMMU remembers nothing that was unmapped, so memory may go. */
void gpunvme_flush(struct gpunvme_dev *d);

/*
 * map.c: attaches `map`, gives it a handle, and writes its bus addresses to user memory. Owns
 * `map` from the call on, whatever comes of it.
 */
int gpunvme_publish(struct gpunvme_file *f, struct gpunvme_map *map, u64 user_pages, u32 npages,
                    u32 *handle);

/* map.c: the calls; without locks. */
int gpunvme_map_user(struct gpunvme_file *f, struct gpunvme_ioc_map_user *a);
int gpunvme_unmap(struct gpunvme_file *f, u32 handle);

/* map.c: all mappings; the first under dev->lock, the second for a file that is being closed. */
void gpunvme_detach_all(struct gpunvme_file *f);
void gpunvme_release_all(struct gpunvme_file *f);

int gpunvme_check_range(u64 start, u64 len, u64 granule, u32 capacity, u32 *npages);
int gpunvme_list_sgt(struct sg_table *sgt, u64 offset, u64 *pages, u32 npages);

/* dmabuf.c; without locks. */
#ifdef CONFIG_DMA_SHARED_BUFFER
int gpunvme_map_dmabuf(struct gpunvme_file *f, struct gpunvme_ioc_map_dmabuf *a);
#else
static inline int gpunvme_map_dmabuf(struct gpunvme_file *f, struct gpunvme_ioc_map_dmabuf *a)
{
    return -EOPNOTSUPP;
}
#endif

/* irq.c: the first without locks, the second under dev->lock. */
int gpunvme_irq_set(struct gpunvme_file *f, struct gpunvme_ioc_irq *a);
void gpunvme_irq_free(struct gpunvme_file *f);

#endif
