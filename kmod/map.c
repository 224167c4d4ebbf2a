// SPDX-License-Identifier: GPL-2.0
/*
 * The handles of all mappings, which belong to one open file and mean nothing elsewhere; and
 * memory of the calling process, pinned and mapped for the controller.
 */
#include <linux/capability.h>
#include <linux/dma-mapping.h>
#include <linux/overflow.h>
#include <linux/sched/signal.h>
#include <linux/sched/user.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "gpunvme.h"

#define MAX_HANDLE 65536

/* --- all mappings ----------------------------------------------------------------------------- */

/* Checks a range; *npages is what the caller's array must hold. */
int gpunvme_check_range(u64 start, u64 len, u64 granule, u32 capacity, u32 *npages)
{
    u64 end;

    if (!len || len > GPUNVME_IOC_MAX_LEN || check_add_overflow(start, len, &end) ||
        ((start | len) & (granule - 1)))
        return -EINVAL;
    *npages = len / GPUNVME_IOC_PAGE;
    return *npages <= capacity ? 0 : -ENOSPC;
}

/*
 * Lists the bus address of each 4 KiB piece from `offset` on. EINVAL for memory that is not made
 * of such pieces, or that is shorter.
 */
int gpunvme_list_sgt(struct sg_table *sgt, u64 offset, u64 *pages, u32 npages)
{
    struct scatterlist *sg;
    u32 done = 0;
    int i;

    for_each_sgtable_dma_sg(sgt, sg, i) {
        u64 at = sg_dma_address(sg), len = sg_dma_len(sg);

        if ((at | len) & (GPUNVME_IOC_PAGE - 1))
            return -EINVAL;
        if (offset >= len) {
            offset -= len;
            continue;
        }
        for (; offset < len && done < npages; offset += GPUNVME_IOC_PAGE)
            pages[done++] = at + offset;
        offset = 0;
        if (done == npages)
            return 0;
    }
    return -EINVAL;
}

/* Under dev->lock. */
static void detach(struct gpunvme_map *map)
{
    struct gpunvme_dev *d = map->dev;

    map->ops->detach(map); /* after which no callback comes */
    spin_lock(&d->master);
    if (map->revoked)
        d->nrevoked--;
    map->revoked = false;
    spin_unlock(&d->master);
}

int gpunvme_publish(struct gpunvme_file *f, struct gpunvme_map *map, u64 user_pages, u32 npages,
                    u32 *handle)
{
    u64 *pages = kvmalloc_array(npages, sizeof(*pages), GFP_KERNEL_ACCOUNT);
    int err = pages ? gpunvme_lock(f) : -ENOMEM;

    if (!err) {
        err = map->ops->attach(map, pages, npages);
        if (!err)
            err = xa_alloc(&f->maps, handle, map, XA_LIMIT(1, MAX_HANDLE), GFP_KERNEL_ACCOUNT);
        if (err)
            detach(map);
        mutex_unlock(&f->dev->lock);
    }
    if (err) {
        map->ops->release(map);
    } else if (copy_to_user(u64_to_user_ptr(user_pages), pages, npages * sizeof(*pages))) {
        /* By its handle: another thread may have ended the mapping already. */
        gpunvme_unmap(f, *handle);
        err = -EFAULT;
    }
    kvfree(pages);
    return err;
}

int gpunvme_unmap(struct gpunvme_file *f, u32 handle)
{
    struct gpunvme_map *map;
    int err = gpunvme_lock(f);

    if (err)
        return err;
    map = xa_erase(&f->maps, handle);
    if (map)
        detach(map);
    mutex_unlock(&f->dev->lock);
    if (!map)
        return -ENOENT;
    map->ops->release(map);
    return 0;
}

void gpunvme_detach_all(struct gpunvme_file *f)
{
    struct gpunvme_map *map;
    unsigned long handle;

    xa_for_each(&f->maps, handle, map) {
        detach(map);
        cond_resched();
    }
}

void gpunvme_release_all(struct gpunvme_file *f)
{
    struct gpunvme_map *map;
    unsigned long handle;

    xa_for_each(&f->maps, handle, map) {
        xa_erase(&f->maps, handle);
        map->ops->release(map);
        cond_resched();
    }
}

/* --- memory of the calling process ------------------------------------------------------------ */

struct user_map {
    struct gpunvme_map map;
    struct user_struct *user; /* whose locked memory it counts as; NULL if nobody's */
    struct page **pages;
    unsigned long npages;
    unsigned long npinned;
    bool mapped;
    struct sg_table sgt;
};

static struct user_map *of(struct gpunvme_map *map)
{
    return container_of(map, struct user_map, map);
}

/*
 * By user, not by process: a process that forks has as many address spaces as it likes, and what
 * a child has mapped stays pinned when the child has ended.
 */
static int account(struct user_map *u)
{
    struct user_struct *user = current_user();
    unsigned long limit = rlimit(RLIMIT_MEMLOCK) >> PAGE_SHIFT;
    long old = atomic_long_read(&user->locked_vm);

    if (capable(CAP_IPC_LOCK))
        return 0;
    do {
        if (old + u->npages > limit)
            return -ENOMEM;
    } while (!atomic_long_try_cmpxchg(&user->locked_vm, &old, old + u->npages));
    u->user = get_uid(user);
    return 0;
}

static int pin(struct user_map *u, u64 addr)
{
    while (u->npinned < u->npages) {
        int nr = min_t(unsigned long, u->npages - u->npinned, 65536);
        int n = pin_user_pages_fast(addr + u->npinned * PAGE_SIZE, nr, FOLL_WRITE | FOLL_LONGTERM,
                                    u->pages + u->npinned);

        if (n <= 0)
            return n ? n : -EFAULT;
        u->npinned += n;
        if (fatal_signal_pending(current))
            return -EINTR;
    }
    return 0;
}

static int user_attach(struct gpunvme_map *map, u64 *pages, u32 npages)
{
    struct user_map *u = of(map);
    int err = dma_map_sgtable(&map->dev->pdev->dev, &u->sgt, DMA_BIDIRECTIONAL, 0);

    if (err)
        return err;
    u->mapped = true;
    return gpunvme_list_sgt(&u->sgt, 0, pages, npages);
}

static void user_detach(struct gpunvme_map *map)
{
    struct user_map *u = of(map);

    if (u->mapped) {
        dma_unmap_sgtable(&map->dev->pdev->dev, &u->sgt, DMA_BIDIRECTIONAL, 0);
        gpunvme_flush(map->dev);
    }
    u->mapped = false;
}

static void user_release(struct gpunvme_map *map)
{
    struct user_map *u = of(map);

    sg_free_table(&u->sgt);
    if (u->npinned)
        unpin_user_pages_dirty_lock(u->pages, u->npinned, true);
    if (u->user) {
        atomic_long_sub(u->npages, &u->user->locked_vm);
        free_uid(u->user);
    }
    kvfree(u->pages);
    kfree(u);
}

static const struct gpunvme_map_ops user_ops = {
    .attach = user_attach,
    .detach = user_detach,
    .release = user_release,
};

int gpunvme_map_user(struct gpunvme_file *f, struct gpunvme_ioc_map_user *a)
{
    struct user_map *u;
    int err;

    if (a->reserved || a->handle || a->npages)
        return -EINVAL;
    err = gpunvme_check_range(a->addr, a->len, PAGE_SIZE, a->capacity, &a->npages);
    if (err)
        return err;
    u = kzalloc(sizeof(*u), GFP_KERNEL_ACCOUNT);
    if (!u)
        return -ENOMEM;
    u->map.ops = &user_ops;
    u->map.dev = f->dev;
    u->npages = a->len >> PAGE_SHIFT;
    u->pages = kvmalloc_array(u->npages, sizeof(*u->pages), GFP_KERNEL_ACCOUNT);
    err = u->pages ? account(u) : -ENOMEM;
    if (!err)
        err = pin(u, a->addr);
    if (!err)
        err = sg_alloc_table_from_pages(&u->sgt, u->pages, u->npages, 0, a->len,
                                        GFP_KERNEL_ACCOUNT);
    if (err) {
        user_release(&u->map);
        return err;
    }
    return gpunvme_publish(f, &u->map, a->pages, a->npages, &a->handle);
}
