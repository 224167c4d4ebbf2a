// SPDX-License-Identifier: GPL-2.0
/*
 * Memory of other drivers, a GPU's above all, by dma-buf. It is pinned where its driver can do
 * that; where the driver takes it back all the same, the controller stops first.
 */
#include <linux/dma-buf.h>
#include <linux/dma-resv.h>
#include <linux/slab.h>

#include "gpunvme.h"

#define MOVE_SECONDS_MAX 10

#ifdef GPUNVME_HAVE_RESV_USAGE /* from 5.19 */
#define compat_resv_wait(resv, ticks)                                                              \
    dma_resv_wait_timeout(resv, DMA_RESV_USAGE_KERNEL, true, ticks)
#else
#define compat_resv_wait(resv, ticks) dma_resv_wait_timeout(resv, false, true, ticks)
#endif

struct dmabuf_map {
    struct gpunvme_map map;
    struct dma_buf *dmabuf;
    u64 offset;
    struct dma_buf_attachment *attach;
    bool pinned;          /* this and sgt under the lock of the dma-buf's reservation */
    struct sg_table *sgt; /* NULL once it was taken back */
};

static struct dmabuf_map *of(struct gpunvme_map *map)
{
    return container_of(map, struct dmabuf_map, map);
}

/* The reservation is locked. */
static void unmap_locked(struct dmabuf_map *m)
{
    if (!m->sgt)
        return;
    dma_buf_unmap_attachment(m->attach, m->sgt, DMA_BIDIRECTIONAL);
    m->sgt = NULL;
    gpunvme_flush(m->map.dev);
}

/* Called with the reservation locked. */
static void taken_back(struct dma_buf_attachment *attach)
{
    struct dmabuf_map *m = attach->importer_priv;

    gpunvme_revoke(&m->map);
    unmap_locked(m);
}

static const struct dma_buf_attach_ops attach_ops = {
    .allow_peer2peer = true,
    .compat_move_notify = taken_back,
};

static void dmabuf_detach(struct gpunvme_map *map)
{
    struct dmabuf_map *m = of(map);

    if (!m->attach)
        return;
    dma_resv_lock(m->dmabuf->resv, NULL);
    unmap_locked(m);
    if (m->pinned)
        dma_buf_unpin(m->attach);
    dma_resv_unlock(m->dmabuf->resv);
    dma_buf_detach(m->dmabuf, m->attach);
    m->attach = NULL;
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

static int dmabuf_attach(struct gpunvme_map *map, u64 *pages, u32 npages)
{
    struct dmabuf_map *m = of(map);
    struct dma_buf_attachment *attach;
    int err;

    attach = dma_buf_dynamic_attach(m->dmabuf, &map->dev->pdev->dev, &attach_ops, m);
    if (IS_ERR(attach))
        return PTR_ERR(attach);
    m->attach = attach;
    dma_resv_lock(m->dmabuf->resv, NULL);
    err = map_locked(m);
    if (!err)
        err = gpunvme_list_sgt(m->sgt, m->offset, pages, npages);
    dma_resv_unlock(m->dmabuf->resv);
    return err;
}

static void dmabuf_release(struct gpunvme_map *map)
{
    struct dmabuf_map *m = of(map);

    dma_buf_put(m->dmabuf);
    kfree(m);
}

static const struct gpunvme_map_ops dmabuf_ops = {
    .attach = dmabuf_attach,
    .detach = dmabuf_detach,
    .release = dmabuf_release,
};

int gpunvme_map_dmabuf(struct gpunvme_file *f, struct gpunvme_ioc_map_dmabuf *a)
{
    struct dmabuf_map *m;
    int err;

    if (a->reserved || a->reserved2 || a->handle || a->npages)
        return -EINVAL;
    err = gpunvme_check_range(a->offset, a->len, GPUNVME_IOC_PAGE, a->capacity, &a->npages);
    if (err)
        return err;
    m = kzalloc(sizeof(*m), GFP_KERNEL_ACCOUNT);
    if (!m)
        return -ENOMEM;
    m->map.ops = &dmabuf_ops;
    m->map.dev = f->dev;
    m->offset = a->offset;
    m->dmabuf = dma_buf_get(a->fd);
    if (IS_ERR(m->dmabuf)) {
        err = PTR_ERR(m->dmabuf);
        kfree(m);
        return err;
    }
    if (a->len > m->dmabuf->size || a->offset > m->dmabuf->size - a->len) {
        dmabuf_release(&m->map);
        return -EINVAL;
    }
    return gpunvme_publish(f, &m->map, a->pages, a->npages, &a->handle);
}

COMPAT_IMPORT_NS(DMA_BUF);
