/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Bus addresses behind an IOMMU: taken from what it can translate, given to whole pages.
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/fail.h"
#include "gpunvme/memory.h"
#include "transport/vfio.h"

/* What a bus address is a multiple of: all that alloc promises, and an IOMMU's huge pages. */
#define ALIGN_SMALL ((uint64_t)64 << 10)
#define ALIGN_LARGE ((uint64_t)2 << 20)

static gpunvme_err_t out_of_memory(uint64_t nbytes)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_MEMLOCK, &limit) || limit.rlim_cur == RLIM_INFINITY)
        return base_fail(GPUNVME_ERR_NOMEM, "%" PRIu64 " bytes can't be pinned for the controller",
                         nbytes);
    return base_fail(GPUNVME_ERR_NOMEM,
                     "%" PRIu64 " bytes can't be pinned for the controller: RLIMIT_MEMLOCK is "
                     "%" PRIu64 " bytes (raise it by \"ulimit -l\" or limits.conf)",
                     nbytes, (uint64_t)limit.rlim_cur);
}

gpunvme_err_t vfio_map_failed(int error_number, uint64_t nbytes, uint64_t iova)
{
    switch (error_number) {
    case ENOMEM:
        return out_of_memory(nbytes);
    case ENOSPC:
        return base_fail(GPUNVME_ERR_LIMIT,
                         "too many buffers are mapped (vfio_iommu_type1.dma_entry_limit): free "
                         "some, or map fewer, larger ones");
    case EFAULT:
        return base_fail(GPUNVME_ERR_INVALID,
                         "memory that the controller can't be given: it is read-only, not there, "
                         "or of a kind that can't be pinned");
    default:
        return base_fail_errno(error_number, "%" PRIu64 " bytes at bus address %" PRIx64 "h",
                               nbytes, iova);
    }
}

static gpunvme_err_t take(struct vfio_transport *v, uint64_t nbytes, uint64_t *iova)
{
    gpunvme_err_t err;

    pthread_mutex_lock(&v->lock);
    err = iova_alloc(&v->iovas, nbytes, nbytes < ALIGN_LARGE ? ALIGN_SMALL : ALIGN_LARGE, iova);
    if (err == GPUNVME_ERR_NOSPC) /* an IOMMU of few addresses: without huge pages, then */
        err = iova_alloc(&v->iovas, nbytes, v->page > ALIGN_SMALL ? v->page : ALIGN_SMALL, iova);
    pthread_mutex_unlock(&v->lock);
    return err;
}

static void give(struct vfio_transport *v, uint64_t iova, uint64_t nbytes)
{
    pthread_mutex_lock(&v->lock);
    iova_free(&v->iovas, iova, nbytes);
    pthread_mutex_unlock(&v->lock);
}

/* The whole pages that nbytes bytes lie in, the first of them in_page behind a page's begin. */
static uint64_t whole_pages(const struct vfio_transport *v, uint64_t in_page, uint64_t nbytes)
{
    return (in_page + nbytes + v->page - 1) & ~(v->page - 1);
}

static gpunvme_err_t map_host(struct vfio_transport *v, struct gpunvme_buf *buf)
{
    uint64_t in_page = (uintptr_t)buf->cpu & (v->page - 1), iova;
    uint64_t size = whole_pages(v, in_page, buf->nbytes);
    gpunvme_err_t err = take(v, size, &iova);

    if (err)
        return err;
    err = v->iommu_ops->map(v, (const char *)buf->cpu - in_page, size, iova);
    if (err)
        give(v, iova, size);
    else
        buf->bus = iova + in_page;
    return err;
}

static gpunvme_err_t map_gpu(struct vfio_transport *v, struct gpunvme_buf *buf)
{
    uint64_t offset, in_page, size, iova;
    gpunvme_err_t err;
    int fd;

    if (!v->iommu_ops->map_fd)
        return base_fail(GPUNVME_ERR_UNSUPPORTED,
                         "GPU memory by VFIO needs iommufd, and this function was opened by its "
                         "VFIO group, which takes host memory only");
    err = gpunvme_mem_export(buf, &fd, &offset);
    if (err)
        return err;
    in_page = offset & (v->page - 1);
    size = whole_pages(v, in_page, buf->nbytes);
    err = take(v, size, &iova);
    if (!err) {
        err = v->iommu_ops->map_fd(v, fd, offset - in_page, size, iova);
        if (err)
            give(v, iova, size);
        else
            buf->bus = iova + in_page;
    }
    close(fd); /* the mapping holds the memory */
    return err;
}

gpunvme_err_t vfio_map(struct gpunvme_transport *t, struct gpunvme_buf *buf)
{
    if (buf->bus)
        return base_fail(GPUNVME_ERR_BUSY, "the buffer has a bus address already");
    if (!buf->nbytes || !(buf->cpu || buf->gpu))
        return base_fail(GPUNVME_ERR_INVALID, "an empty buffer");
    return buf->cpu ? map_host(vfio_of(t), buf) : map_gpu(vfio_of(t), buf);
}

void vfio_unmap(struct gpunvme_transport *t, struct gpunvme_buf *buf)
{
    struct vfio_transport *v = vfio_of(t);
    uint64_t in_page, size;

    if (vfio_unmap_bar(v, buf) || !buf->bus)
        return;
    in_page = buf->bus & (v->page - 1);
    size = whole_pages(v, in_page, buf->nbytes);
    /* Addresses that could not be taken from the IOMMU are not given out again. */
    if (!v->iommu_ops->unmap(v, buf->bus - in_page, size))
        give(v, buf->bus - in_page, size);
    buf->bus = 0;
}
