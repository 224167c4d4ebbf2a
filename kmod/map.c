// SPDX-License-Identifier: GPL-2.0
/*
 * Memory of the opener's process, pinned and mapped for the controller; and the handles of all
 * mappings, which belong to one open file and mean nothing elsewhere.
 */
#include <linux/dma-mapping.h>
#include <linux/overflow.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "gpunvme.h"

#define MAX_HANDLE 65536

struct user_map {
    struct gpunvme_map map; /* first: it is freed by this address */
    struct mm_struct *mm; /* whose locked memory it counts as */
    struct page **pages;
    unsigned long npages;
    unsigned long npinned;
    bool accounted;
    bool mapped;
    struct sg_table sgt;
};

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

int gpunvme_add(struct gpunvme_file *f, struct gpunvme_map *map, u32 *handle)
{
    return xa_alloc(&f->maps, handle, map, XA_LIMIT(1, MAX_HANDLE), GFP_KERNEL_ACCOUNT);
}

static void release(struct gpunvme_map *map)
{
    struct user_map *u = container_of(map, struct user_map, map);

    if (u->mapped) {
        dma_unmap_sgtable(&map->dev->pdev->dev, &u->sgt, DMA_BIDIRECTIONAL, 0);
        gpunvme_flush(map->dev);
    }
    sg_free_table(&u->sgt);
    if (u->npinned)
        unpin_user_pages_dirty_lock(u->pages, u->npinned, true);
    if (u->accounted)
        account_locked_vm(u->mm, u->npages, false);
    if (u->mm)
        mmdrop(u->mm);
    kvfree(u->pages);
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

/* On failure, release() takes back what was done. */
static int make(struct user_map *u, u64 addr, u64 len)
{
    int err;

    u->npages = len >> PAGE_SHIFT;
    u->pages = kvmalloc_array(u->npages, sizeof(*u->pages), GFP_KERNEL_ACCOUNT);
    if (!u->pages)
        return -ENOMEM;
    mmgrab(current->mm);
    u->mm = current->mm;
    err = account_locked_vm(u->mm, u->npages, true);
    if (err)
        return err;
    u->accounted = true;
    err = pin(u, addr);
    if (err)
        return err;
    err = sg_alloc_table_from_pages(&u->sgt, u->pages, u->npages, 0, len, GFP_KERNEL_ACCOUNT);
    if (err)
        return err;
    err = dma_map_sgtable(&u->map.dev->pdev->dev, &u->sgt, DMA_BIDIRECTIONAL, 0);
    u->mapped = !err;
    return err;
}

static int tell(struct user_map *u, const struct gpunvme_ioc_map_user *a)
{
    u64 *pages = kvmalloc_array(a->npages, sizeof(*pages), GFP_KERNEL_ACCOUNT);
    int err;

    if (!pages)
        return -ENOMEM;
    err = gpunvme_list_sgt(&u->sgt, 0, pages, a->npages);
    if (!err && copy_to_user(u64_to_user_ptr(a->pages), pages, a->npages * sizeof(*pages)))
        err = -EFAULT;
    kvfree(pages);
    return err;
}

long gpunvme_map_user(struct gpunvme_file *f, void __user *arg)
{
    struct gpunvme_ioc_map_user a;
    struct user_map *u;
    long err;

    if (copy_from_user(&a, arg, sizeof(a)))
        return -EFAULT;
    if (a.reserved || a.handle || a.npages)
        return -EINVAL;
    err = gpunvme_check_range(a.addr, a.len, PAGE_SIZE, a.capacity, &a.npages);
    if (err)
        return err;
    u = kzalloc(sizeof(*u), GFP_KERNEL_ACCOUNT);
    if (!u)
        return -ENOMEM;
    u->map.dev = f->dev;
    u->map.release = release;
    err = make(u, a.addr, a.len);
    if (!err)
        err = tell(u, &a);
    if (!err)
        err = gpunvme_add(f, &u->map, &a.handle);
    if (err) {
        gpunvme_drop(&u->map);
        return err;
    }
    if (copy_to_user(arg, &a, sizeof(a))) {
        xa_erase(&f->maps, a.handle);
        gpunvme_drop(&u->map);
        return -EFAULT;
    }
    return 0;
}

/* Ends a mapping that has no handle any more. */
void gpunvme_drop(struct gpunvme_map *map)
{
    struct gpunvme_dev *d = map->dev;

    map->release(map); /* after which no callback comes */
    spin_lock(&d->master);
    if (map->revoked)
        d->nrevoked--;
    spin_unlock(&d->master);
    kfree(map);
}

long gpunvme_unmap(struct gpunvme_file *f, void __user *arg)
{
    struct gpunvme_ioc_unmap a;
    struct gpunvme_map *map;

    if (copy_from_user(&a, arg, sizeof(a)))
        return -EFAULT;
    if (a.reserved)
        return -EINVAL;
    map = xa_erase(&f->maps, a.handle);
    if (!map)
        return -ENOENT;
    gpunvme_drop(map);
    return 0;
}

void gpunvme_unmap_all(struct gpunvme_file *f)
{
    struct gpunvme_map *map;
    unsigned long handle;

    xa_for_each(&f->maps, handle, map) {
        xa_erase(&f->maps, handle);
        gpunvme_drop(map);
        cond_resched();
    }
}
