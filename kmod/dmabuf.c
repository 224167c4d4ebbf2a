// SPDX-License-Identifier: GPL-2.0
/*
 * Memory of other drivers, a GPU's above all, by dma-buf. It is pinned where its driver can do
 * that; where the driver takes it back all the same, the controller stops first.
 */
#include <linux/dma-buf.h>
#include <linux/dma-resv.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "gpunvme.h"

#define MOVE_SECONDS_MAX 10

#ifdef GPUNVME_HAVE_RESV_USAGE /* from 5.19 */
#define compat_resv_wait(resv, ticks)                                                              \
    dma_resv_wait_timeout(resv, DMA_RESV_USAGE_KERNEL, true, ticks)
#else
#define compat_resv_wait(resv, ticks) dma_resv_wait_timeout(resv, false, true, ticks)
#endif

struct dmabuf_map {
    struct gpunvme_map map; /* first: it is freed by this address */
    struct dma_buf *dmabuf;
    struct dma_buf_attachment *attach;
    bool pinned;          /* this and sgt under the lock of the dma-buf's reservation */
    struct sg_table *sgt; /* NULL once it was taken back */
};

/* Called with the reservation locked. */
static void taken_back(struct dma_buf_attachment *attach)
{
    struct dmabuf_map *m = attach->importer_priv;

    gpunvme_revoke(&m->map);
    if (!m->sgt)
        return;
    dma_buf_unmap_attachment(attach, m->sgt, DMA_BIDIRECTIONAL);
    m->sgt = NULL;
}

static const struct dma_buf_attach_ops attach_ops = {
    .allow_peer2peer = true,
    .compat_move_notify = taken_back,
};

static void release(struct gpunvme_map *map)
{
    struct dmabuf_map *m = container_of(map, struct dmabuf_map, map);

    if (m->attach) {
        dma_resv_lock(m->dmabuf->resv, NULL);
        if (m->sgt) {
            dma_buf_unmap_attachment(m->attach, m->sgt, DMA_BIDIRECTIONAL);
            gpunvme_flush(map->dev);
        }
        m->sgt = NULL;
        if (m->pinned)
            dma_buf_unpin(m->attach);
        dma_resv_unlock(m->dmabuf->resv);
        dma_buf_detach(m->dmabuf, m->attach);
    }
    dma_buf_put(m->dmabuf);
}

/* The reservation is locked. */
static int map_locked(struct dmabuf_map *m)
{
    struct sg_table *sgt;
    long left;
    int err = dma_buf_pin(m->attach);

    if (err)
        return err;
    m->pinned = true;
    sgt = dma_buf_map_attachment(m->attach, DMA_BIDIRECTIONAL);
    if (IS_ERR(sgt))
        return PTR_ERR(sgt);
    m->sgt = sgt;
    /* The driver may still be moving the memory to where it has been pinned. */
    left = compat_resv_wait(m->dmabuf->resv, MOVE_SECONDS_MAX * HZ);
    if (left < 0)
        return left;
    return left ? 0 : -ETIMEDOUT;
}

/* On failure, release() takes back what was done. */
static int make(struct dmabuf_map *m)
{
    struct dma_buf_attachment *attach;
    int err;

    attach = dma_buf_dynamic_attach(m->dmabuf, &m->map.dev->pdev->dev, &attach_ops, m);
    if (IS_ERR(attach))
        return PTR_ERR(attach);
    m->attach = attach;
    dma_resv_lock(m->dmabuf->resv, NULL);
    err = map_locked(m);
    dma_resv_unlock(m->dmabuf->resv);
    return err;
}

/* Listed under the lock, for the memory may be taken back; copied without, for that may fault. */
static int tell(struct dmabuf_map *m, const struct gpunvme_ioc_map_dmabuf *a)
{
    u64 *pages = kvmalloc_array(a->npages, sizeof(*pages), GFP_KERNEL_ACCOUNT);
    int err = -ESTALE;

    if (!pages)
        return -ENOMEM;
    dma_resv_lock(m->dmabuf->resv, NULL);
    if (m->sgt)
        err = gpunvme_list_sgt(m->sgt, a->offset, pages, a->npages);
    dma_resv_unlock(m->dmabuf->resv);
    if (!err && copy_to_user(u64_to_user_ptr(a->pages), pages, a->npages * sizeof(*pages)))
        err = -EFAULT;
    kvfree(pages);
    return err;
}

long gpunvme_map_dmabuf(struct gpunvme_file *f, void __user *arg)
{
    struct gpunvme_ioc_map_dmabuf a;
    struct dmabuf_map *m;
    long err;

    if (copy_from_user(&a, arg, sizeof(a)))
        return -EFAULT;
    if (a.reserved || a.reserved2 || a.handle || a.npages)
        return -EINVAL;
    err = gpunvme_check_range(a.offset, a.len, GPUNVME_IOC_PAGE, a.capacity, &a.npages);
    if (err)
        return err;
    m = kzalloc(sizeof(*m), GFP_KERNEL_ACCOUNT);
    if (!m)
        return -ENOMEM;
    m->map.dev = f->dev;
    m->map.release = release;
    m->dmabuf = dma_buf_get(a.fd);
    if (IS_ERR(m->dmabuf)) {
        err = PTR_ERR(m->dmabuf);
        kfree(m);
        return err;
    }
    if (a.len > m->dmabuf->size || a.offset > m->dmabuf->size - a.len)
        err = -EINVAL;
    if (!err)
        err = make(m);
    if (!err)
        err = tell(m, &a);
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

COMPAT_IMPORT_NS(DMA_BUF);
