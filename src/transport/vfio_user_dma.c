/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Memory for a vfio-user target: by descriptor where it has one, by message where it has none.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fail.h"
#include "gpunvme/atomics.h"
#include "transport/vfio_user.h"

/* What servers like best: memory that is mapped by huge pages, where it is large enough. */
#define ALIGN_LARGE ((uint64_t)2 << 20)
#define ALIGN_SMALL ((uint64_t)64 << 10) /* as ops->alloc promises */

/*
 * A controller in another process orders its accesses by its doorbells and completions, which
 * ThreadSanitizer can't see.
 */
#if defined(__SANITIZE_THREAD__)
void AnnotateIgnoreReadsBegin(const char *file, int line);
void AnnotateIgnoreReadsEnd(const char *file, int line);
void AnnotateIgnoreWritesBegin(const char *file, int line);
void AnnotateIgnoreWritesEnd(const char *file, int line);
#define DEVICE_ACCESS_BEGIN()                                                                      \
    (AnnotateIgnoreReadsBegin(__FILE__, __LINE__), AnnotateIgnoreWritesBegin(__FILE__, __LINE__))
#define DEVICE_ACCESS_END()                                                                        \
    (AnnotateIgnoreWritesEnd(__FILE__, __LINE__), AnnotateIgnoreReadsEnd(__FILE__, __LINE__))
#else
#define DEVICE_ACCESS_BEGIN() ((void)0)
#define DEVICE_ACCESS_END()   ((void)0)
#endif

/* --- maps ------------------------------------------------------------------------------------- */

/* What the target has of us already: one that allows little need not say what its limit is. */
static gpunvme_err_t say_full(const struct vfu_mapping *m, gpunvme_err_t err, uint64_t nregions,
                              uint64_t nbytes, const char *why)
{
    return base_fail(err,
                     "no %llu KiB of memory more for the target, which has %llu regions, %llu KiB "
                     "in all: %.120s",
                     (unsigned long long)(m->size >> 10), (unsigned long long)nregions,
                     (unsigned long long)(nbytes >> 10), why);
}

static gpunvme_err_t insert(struct vfu *v, struct vfu_mapping *m)
{
    uint64_t align = m->size >= ALIGN_LARGE ? ALIGN_LARGE : ALIGN_SMALL;
    gpunvme_err_t err;

    if (align < v->page)
        align = v->page;
    pthread_rwlock_wrlock(&v->map_lock);
    if (v->nmappings >= v->caps.max_dma_maps)
        err = say_full(m, GPUNVME_ERR_NOSPC, v->nmappings, v->mapped_nbytes,
                       "it allows no more regions (max_dma_maps)");
    else
        err = iova_alloc(&v->space, m->size, align, &m->iova);
    if (!err) {
        v->nmappings++;
        v->mapped_nbytes += m->size;
        m->buf.bus = m->iova + m->in_page;
        m->next = v->mappings;
        v->mappings = m;
    }
    pthread_rwlock_unlock(&v->map_lock);
    return err;
}

/* From here on the target gets nothing of it by message. `reuse`: nor by its address. */
static void remove_mapping(struct vfu *v, struct vfu_mapping *m, bool reuse)
{
    struct vfu_mapping **at = &v->mappings;

    pthread_rwlock_wrlock(&v->map_lock);
    while (*at != m)
        at = &(*at)->next;
    *at = m->next;
    v->nmappings--;
    v->mapped_nbytes -= m->size;
    if (reuse)
        iova_free(&v->space, m->iova, m->size);
    pthread_rwlock_unlock(&v->map_lock);
    free(m);
}

/*
 * The descriptor of GPU memory is a dma-buf, which the GPU's driver may let no program map. That
 * the target refuses it says that it does not reach this memory, and nothing of the connection.
 */
static gpunvme_err_t say_out_of_reach(gpunvme_err_t err)
{
    struct base_failure why;

    base_keep(&why, err);
    return base_fail(GPUNVME_ERR_UNSUPPORTED, "the target does not map memory of a GPU: %.200s",
                     why.detail);
}

/* The mapping itself is counted already. */
static gpunvme_err_t say_refused(struct vfu *v, const struct vfu_mapping *m, gpunvme_err_t err)
{
    struct base_failure why;
    uint64_t nregions, nbytes;

    base_keep(&why, err);
    pthread_rwlock_rdlock(&v->map_lock);
    nregions = v->nmappings - 1;
    nbytes = v->mapped_nbytes - m->size;
    pthread_rwlock_unlock(&v->map_lock);
    return say_full(m, err, nregions, nbytes, why.detail);
}

/* A descriptor of the buffer's memory, if it has one and the target takes it, else -1. */
static int descriptor_of(const struct vfu *v, const struct gpunvme_buf *buf, uint64_t *offset)
{
    int fd;

    if (v->caps.max_msg_fds && buf->memory_private &&
        gpunvme_mem_export(buf, &fd, offset) == GPUNVME_OK)
        return fd;
    *offset = 0;
    return -1;
}

/* `fd` stays the caller's; the first page that is mapped is at `offset` of it. */
static gpunvme_err_t tell_map(struct vfu *v, const struct vfu_mapping *m, int fd, uint64_t offset)
{
    struct vfio_user_dma_map map = {
        .argsz = sizeof(map),
        .flags = VFIO_USER_DMA_READABLE | VFIO_USER_DMA_WRITEABLE,
        .offset = offset,
        .address = m->iova,
        .size = m->size,
    };
    struct iovec part = {.iov_base = &map, .iov_len = sizeof(map)};
    struct vfio_user_message reply = {0};
    gpunvme_err_t err;
    bool refused;

    err = vfu_call(v, VFIO_USER_DMA_MAP, &part, 1, &fd, fd >= 0, &reply, &refused);
    vfio_user_message_destroy(&reply);
    if (!refused)
        return err;
    return fd >= 0 && m->buf.mem == GPUNVME_MEM_GPU ? say_out_of_reach(err)
                                                    : say_refused(v, m, err);
}

static gpunvme_err_t tell_unmap(struct vfu *v, const struct vfu_mapping *m)
{
    struct vfio_user_dma_unmap unmap = {
        .argsz = sizeof(unmap), .address = m->iova, .size = m->size};
    struct iovec part = {.iov_base = &unmap, .iov_len = sizeof(unmap)};
    struct vfio_user_message reply = {0};
    gpunvme_err_t err = vfu_call(v, VFIO_USER_DMA_UNMAP, &part, 1, NULL, 0, &reply, NULL);

    vfio_user_message_destroy(&reply);
    return err;
}

/* Maps whole pages: of the descriptor's file, and of bus addresses. Frees *m where it fails. */
static gpunvme_err_t map_pages(struct vfu *v, struct vfu_mapping *m)
{
    uint64_t offset;
    int fd = descriptor_of(v, &m->buf, &offset);
    gpunvme_err_t err;

    m->in_page = offset & (v->page - 1);
    m->size = (m->in_page + m->buf.nbytes + v->page - 1) & ~(v->page - 1);
    err = insert(v, m);
    if (err) {
        free(m);
    } else {
        err = tell_map(v, m, fd, offset - m->in_page);
        if (err)
            remove_mapping(v, m, true);
    }
    if (fd >= 0)
        close(fd);
    return err;
}

gpunvme_err_t vfu_map(struct gpunvme_transport *t, struct gpunvme_buf *buf)
{
    struct vfu *v = vfu_of(t);
    struct vfu_mapping *m;
    gpunvme_err_t err;

    if (buf->bus)
        return base_fail(GPUNVME_ERR_BUSY, "the buffer has a bus address already");
    if (!buf->nbytes || buf->nbytes > SIZE_MAX - 2 * v->page)
        return base_fail(GPUNVME_ERR_INVALID, "a buffer of %zu bytes", buf->nbytes);
    m = calloc(1, sizeof(*m));
    if (!m)
        return base_fail(GPUNVME_ERR_NOMEM, "a mapping");
    m->buf = *buf;
    err = map_pages(v, m);
    if (!err)
        buf->bus = m->buf.bus;
    return err;
}

void vfu_unmap(struct gpunvme_transport *t, struct gpunvme_buf *buf)
{
    struct vfu *v = vfu_of(t);
    struct vfu_mapping *m;

    if (vfu_unmap_bar(v, buf) || !buf->bus)
        return;
    pthread_rwlock_rdlock(&v->map_lock);
    for (m = v->mappings; m && m->buf.bus != buf->bus; m = m->next)
        ;
    pthread_rwlock_unlock(&v->map_lock);
    if (!m)
        return;
    /* Where the target did not let go of it, the address is not given out again. */
    remove_mapping(v, m, tell_unmap(v, m) == GPUNVME_OK);
    buf->bus = 0;
}

/* --- by message ------------------------------------------------------------------------------- */

/* The mapping that holds `address`, and how many bytes of its buffer there are from there on. */
static const struct vfu_mapping *find(const struct vfu *v, uint64_t address, uint64_t *left)
{
    for (const struct vfu_mapping *m = v->mappings; m; m = m->next) {
        if (address < m->buf.bus || address - m->buf.bus >= m->buf.nbytes)
            continue;
        *left = m->buf.nbytes - (address - m->buf.bus);
        return m;
    }
    return NULL;
}

/* Copies `count` bytes to or from our memory; an errno value. */
static int copy(struct vfu *v, uint64_t address, char *data, uint64_t count, bool write)
{
    int error = 0;

    pthread_rwlock_rdlock(&v->map_lock); /* the memory stays until it is done */
    while (count && !error) {
        uint64_t n;
        const struct vfu_mapping *m = find(v, address, &n);
        gpunvme_err_t err;

        if (!m) {
            error = EFAULT;
            break;
        }
        if (n > count)
            n = count;
        DEVICE_ACCESS_BEGIN();
        err = write ? transport_copy_to(&v->base, &m->buf, address - m->buf.bus, data, n)
                    : transport_copy_from(&v->base, data, &m->buf, address - m->buf.bus, n);
        DEVICE_ACCESS_END();
        if (err)
            error = EIO;
        address += n;
        data += n;
        count -= n;
    }
    pthread_rwlock_unlock(&v->map_lock);
    return error;
}

static gpunvme_err_t answer_read(struct vfu *v, struct vfio_user_channel *ch,
                                 const struct vfio_user_message *m,
                                 const struct vfio_user_dma_access *access, uint64_t deadline)
{
    char *data = malloc(access->count ? access->count : 1);
    struct iovec parts[2] = {{.iov_base = (void *)access, .iov_len = sizeof(*access)},
                             {.iov_base = data, .iov_len = access->count}};
    int error = data ? copy(v, access->address, data, access->count, false) : ENOMEM;
    gpunvme_err_t err = vfio_user_reply(ch, &m->header, error, parts, 2, NULL, 0, deadline);

    free(data);
    return err;
}

gpunvme_err_t vfu_answer(struct vfu *v, struct vfio_user_channel *ch,
                         const struct vfio_user_message *m)
{
    uint64_t deadline = gpunvme_clock_ns() + v->timeout_ns;
    struct vfio_user_dma_access access;
    struct iovec part = {.iov_base = &access, .iov_len = sizeof(access)};
    uint16_t command = m->header.command;
    int error;

    if (command != VFIO_USER_DMA_READ && command != VFIO_USER_DMA_WRITE)
        return vfio_user_reply(ch, &m->header, ENOTSUP, NULL, 0, NULL, 0, deadline);
    if (m->nbytes < sizeof(access))
        return vfio_user_reply(ch, &m->header, EINVAL, NULL, 0, NULL, 0, deadline);
    memcpy(&access, m->body, sizeof(access));
    if (access.count > VFU_DATA_MAX ||
        (command == VFIO_USER_DMA_WRITE && m->nbytes - sizeof(access) != access.count))
        return vfio_user_reply(ch, &m->header, EINVAL, NULL, 0, NULL, 0, deadline);
    if (command == VFIO_USER_DMA_READ)
        return answer_read(v, ch, m, &access, deadline);
    error = copy(v, access.address, (char *)m->body + sizeof(access), access.count, true);
    return vfio_user_reply(ch, &m->header, error, &part, 1, NULL, 0, deadline);
}
