/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What kernels are given: namespaces and buffers as plain structures.
 */
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "device/internal.h"

gpunvme_err_t gpunvme_device_ns(struct gpunvme_device *dev, const struct gpunvme_ns *ns,
                                struct gpunvme_dev_ns *out)
{
    uint32_t most;

    if (!dev || !ns || !out)
        return base_fail(GPUNVME_ERR_INVALID, "NULL argument");
    if (ns->ctrl != dev->ctrl)
        return base_fail(GPUNVME_ERR_INVALID, "namespace %u is of another controller", ns->nsid);
    if (!ns->max_blocks)
        return base_fail(GPUNVME_ERR_FORMAT,
                         "namespace %u: there is no I/O in its format (%u bytes a block, metadata, "
                         "or another command set)",
                         ns->nsid, ns->block_size);
    most = dev->opts.max_transfer >> ns->block_shift;
    *out = (struct gpunvme_dev_ns){
        .nblocks = ns->nblocks,
        .block_size = ns->block_size,
        .max_blocks = most < ns->max_blocks ? most : ns->max_blocks,
        .boundary_blocks = ns->boundary_blocks,
        .nsid = ns->nsid,
        .block_shift = (uint8_t)ns->block_shift,
        .page_shift = (uint8_t)dev->page_shift,
        .readonly = ns->readonly,
        .nqueues = dev->nqueues,
        .queues = dev->queues[0].words,
        .timeout_ns = dev->opts.timeout_ms * UINT64_C(1000000),
        .alarm = dev->alarm.gpu,
    };
    return GPUNVME_OK;
}

#define LEAST_ROOM 512u /* pages: tables of most buffers can take each other's place */

static struct device_pages *find_same(struct gpunvme_device *dev, const uint64_t *table, size_t n)
{
    struct device_pages *p = dev->pages;

    while (p && (p->n != n || memcmp(p->table, table, n * sizeof(*table)) != 0))
        p = p->next;
    return p;
}

/* The smallest that nobody has and that has room. */
static struct device_pages *find_unused(struct gpunvme_device *dev, size_t n)
{
    struct device_pages *best = NULL;

    for (struct device_pages *p = dev->pages; p; p = p->next)
        if (!p->users && p->room >= n && (!best || p->room < best->room))
            best = p;
    return best;
}

static gpunvme_err_t add_pages(struct gpunvme_device *dev, size_t n, struct device_pages **out)
{
    size_t room = LEAST_ROOM;
    struct device_pages *p;
    gpunvme_err_t err;

    while (room < n)
        room *= 2;
    p = calloc(1, sizeof(*p) + room * sizeof(p->table[0]));
    if (!p)
        return base_fail(GPUNVME_ERR_NOMEM, "a table of %zu pages", n);
    err = gpunvme_mem_alloc(room * sizeof(p->table[0]), GPUNVME_MEM_GPU, &p->buf);
    if (err) {
        free(p);
        return err;
    }
    p->room = room;
    p->next = dev->pages;
    *out = dev->pages = p;
    return GPUNVME_OK;
}

/* The table in GPU memory: the one that is the same, one that nobody has, or a new one. */
static gpunvme_err_t hold_pages(struct gpunvme_device *dev, const uint64_t *table, size_t n,
                                struct device_pages **out)
{
    struct device_pages *p = find_same(dev, table, n);
    gpunvme_err_t err = GPUNVME_OK;

    if (!p) {
        p = find_unused(dev, n);
        if (!p)
            err = add_pages(dev, n, &p);
        if (err)
            return err;
        p->n = 0; /* until it is this one */
        err = gpunvme_mem_copy(p->buf.gpu, GPUNVME_MEM_GPU, table, GPUNVME_MEM_HOST,
                               n * sizeof(*table));
        if (err) {
            p->users += err == GPUNVME_ERR_TIMEOUT; /* it may arrive yet: nobody's, for good */
            return err;
        }
        memcpy(p->table, table, n * sizeof(*table));
        p->n = n;
    }
    p->users++;
    *out = p;
    return GPUNVME_OK;
}

gpunvme_err_t gpunvme_device_buf(struct gpunvme_device *dev, const struct gpunvme_buf *buf,
                                 struct gpunvme_dev_buf *out)
{
    struct device_pages *pages = NULL;
    gpunvme_err_t err;
    size_t n;

    if (!dev || !buf || !out)
        return base_fail(GPUNVME_ERR_INVALID, "NULL argument");
    if (!buf->bus)
        return base_fail(GPUNVME_ERR_INVALID,
                         "the buffer has no bus address: gpunvme_ctrl_map() gives it one");
    if (!buf->gpu && (dev->has_gpu || !buf->cpu))
        return base_fail(GPUNVME_ERR_INVALID,
                         "the buffer has no GPU address: gpunvme_device_alloc() gives one, and "
                         "gpunvme_mem_register() as PINNED");
    *out = (struct gpunvme_dev_buf){
        .data = buf->gpu ? buf->gpu : buf->cpu, .nbytes = buf->nbytes, .bus = buf->bus};
    if (!buf->bus_pages)
        return GPUNVME_OK;
    if (buf->bus_page_shift < dev->page_shift || buf->bus & ((UINT64_C(1) << dev->page_shift) - 1))
        return base_fail(GPUNVME_ERR_ALIGN,
                         "the buffer's pieces on the bus are no whole pages of the controller");
    n = (buf->nbytes - 1) >> buf->bus_page_shift;
    err = device_enter(dev);
    if (err)
        return err;
    pthread_mutex_lock(&dev->views);
    err = hold_pages(dev, buf->bus_pages, n + 1, &pages);
    pthread_mutex_unlock(&dev->views);
    device_leave(dev);
    if (err)
        return err;
    out->bus_pages = pages->buf.gpu;
    out->bus_page_shift = buf->bus_page_shift;
    return GPUNVME_OK;
}

void gpunvme_device_buf_release(struct gpunvme_device *dev, const struct gpunvme_dev_buf *view)
{
    if (!dev || !view || !view->bus_pages)
        return;
    pthread_mutex_lock(&dev->views);
    for (struct device_pages *p = dev->pages; p; p = p->next)
        if (p->buf.gpu == view->bus_pages && p->users)
            p->users--;
    pthread_mutex_unlock(&dev->views);
}

void device_pages_free(struct gpunvme_device *dev)
{
    while (dev->pages) {
        struct device_pages *p = dev->pages;

        dev->pages = p->next;
        gpunvme_mem_free(&p->buf);
        free(p);
    }
}
