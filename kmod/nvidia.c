// SPDX-License-Identifier: GPL-2.0
/*
 * Memory of an NVIDIA GPU by the driver's own interface, for drivers and kernels without dma-buf.
 * Built where nv-p2p.h is found (make NV_P2P_INCLUDE=folder). The driver looks the address up in
 * the calling process, so no other process's memory can be named.
 */
#include <linux/atomic.h>
#include <linux/completion.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include <nv-p2p.h>

#include "gpunvme.h"

#define GPU_PAGE 65536ull

enum { LIVE, TAKEN_BACK, RELEASED };

struct nvidia_map {
    struct gpunvme_map map; /* first: it is freed by this address */
    u64 gpu;
    struct nvidia_p2p_page_table *table;
    struct nvidia_p2p_dma_mapping *mapping;
    atomic_t state; /* whoever leaves LIVE frees the two */
    struct completion taken; /* taken_back() is through with all this */
};

/* The driver takes the memory back, and must not be given it by put_pages. */
static void taken_back(void *data)
{
    struct nvidia_map *m = data;

    if (atomic_cmpxchg(&m->state, LIVE, TAKEN_BACK) != LIVE)
        return;
    gpunvme_revoke(&m->map);
    if (m->mapping)
        nvidia_p2p_free_dma_mapping(m->mapping);
    nvidia_p2p_free_page_table(m->table);
    complete(&m->taken);
}

static void release(struct gpunvme_map *map)
{
    struct nvidia_map *m = container_of(map, struct nvidia_map, map);

    if (!m->table)
        return;
    if (atomic_cmpxchg(&m->state, LIVE, RELEASED) != LIVE) {
        wait_for_completion(&m->taken);
        return;
    }
    if (m->mapping)
        nvidia_p2p_dma_unmap_pages(map->dev->pdev, m->table, m->mapping);
    nvidia_p2p_put_pages(0, 0, m->gpu, m->table);
}

/* The bus address of each 4 KiB of the 64 KiB pages. */
static int tell(const struct nvidia_map *m, u64 __user *to, u32 npages)
{
    const u32 each = GPU_PAGE / GPUNVME_IOC_PAGE;
    u32 i;

    if (m->mapping->page_size_type != NVIDIA_P2P_PAGE_SIZE_64KB ||
        (u64)m->mapping->entries * each < npages)
        return -EINVAL;
    for (i = 0; i < npages; i++) {
        u64 at = m->mapping->dma_addresses[i / each] + (u64)(i % each) * GPUNVME_IOC_PAGE;

        if (put_user(at, &to[i]))
            return -EFAULT;
    }
    return 0;
}

long gpunvme_map_nvidia(struct gpunvme_file *f, void __user *arg)
{
    struct gpunvme_ioc_map_nvidia a;
    struct nvidia_map *m;
    long err;

    if (copy_from_user(&a, arg, sizeof(a)))
        return -EFAULT;
    if (a.reserved || a.handle || a.npages)
        return -EINVAL;
    err = gpunvme_check_range(a.gpu, a.len, GPU_PAGE, a.capacity, &a.npages);
    if (err)
        return err;
    m = kzalloc(sizeof(*m), GFP_KERNEL_ACCOUNT);
    if (!m)
        return -ENOMEM;
    m->map.dev = f->dev;
    m->map.release = release;
    m->gpu = a.gpu;
    init_completion(&m->taken);
    err = nvidia_p2p_get_pages(0, 0, a.gpu, a.len, &m->table, taken_back, m);
    if (err)
        m->table = NULL;
    else
        err = nvidia_p2p_dma_map_pages(f->dev->pdev, m->table, &m->mapping);
    if (!err)
        err = tell(m, u64_to_user_ptr(a.pages), a.npages);
    if (!err)
        err = gpunvme_add(f, &m->map, &a.handle);
    if (!err && copy_to_user(arg, &a, sizeof(a))) {
        xa_erase(&f->maps, a.handle);
        err = -EFAULT;
    }
    if (err)
        gpunvme_drop(&m->map);
    return err;
}
