/* SPDX-License-Identifier: BSD-3-Clause
 *
 * "vfio-user:/path/to/socket": a controller in another process, by the vfio-user protocol.
 */
#include "transport/vfio_user.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/fail.h"
#include "transport/transports.h"

/* Bus addresses: above 4 GiB, where no target has interrupts, in what every IOMMU translates. */
#define BUS_FIRST (UINT64_C(1) << 32)
#define BUS_LAST  ((UINT64_C(1) << 39) - 1)

#define PAGE_MAX ((uint64_t)2 << 20)

/* --- what the target is ----------------------------------------------------------------------- */

/* "If twin_socket.supported is true" the descriptor must be there, or we never hear it. */
static gpunvme_err_t start_twin(struct vfu *v, struct vfio_user_message *reply)
{
    int fd = -1;

    if (!v->caps.twin_socket)
        return GPUNVME_OK;
    if (v->caps.has_twin_socket_fd && v->caps.twin_socket_fd < reply->nfds)
        fd = vfio_user_message_take(reply, (unsigned)v->caps.twin_socket_fd);
    if (fd < 0)
        return base_fail(GPUNVME_ERR_PROTOCOL, "%s: a twin socket without its descriptor",
                         v->base.address);
    return vfu_link_start(v, &v->twin, fd);
}

/* Accepts what the target can do, or says what is missing. */
static gpunvme_err_t check_caps(struct vfu *v)
{
    v->page = v->caps.pgsizes & (~v->caps.pgsizes + 1); /* the smallest */
    if (!v->page || v->page > PAGE_MAX)
        return base_fail(GPUNVME_ERR_UNSUPPORTED, "%s: maps of pages of %llu bytes",
                         v->base.address, (unsigned long long)v->page);
    if (v->page < VFIO_USER_DEFAULT_PGSIZES)
        v->page = VFIO_USER_DEFAULT_PGSIZES;
    if (v->caps.max_data_xfer_size < 4)
        return base_fail(GPUNVME_ERR_UNSUPPORTED, "%s: accesses of at most %llu bytes",
                         v->base.address, (unsigned long long)v->caps.max_data_xfer_size);
    atomic_init(&v->no64, v->caps.max_data_xfer_size < 8);
    return GPUNVME_OK;
}

static gpunvme_err_t negotiate(struct vfu *v)
{
    struct vfio_user_version version = {.major = VFIO_USER_MAJOR, .minor = VFIO_USER_MINOR};
    struct vfio_user_message reply = {0};
    struct iovec parts[2];
    char json[160];
    gpunvme_err_t err;

    snprintf(json, sizeof(json),
             "{\"capabilities\":{\"max_msg_fds\":%d,\"max_data_xfer_size\":%u,"
             "\"twin_socket\":{\"supported\":true}}}",
             VFIO_USER_CHANNEL_FDS, VFU_DATA_MAX);
    parts[0] = (struct iovec){.iov_base = &version, .iov_len = sizeof(version)};
    parts[1] = (struct iovec){.iov_base = json, .iov_len = strlen(json) + 1};
    err = vfu_call(v, VFIO_USER_VERSION, parts, 2, NULL, 0, &reply, NULL);
    if (!err && reply.nbytes < sizeof(version))
        err = base_fail(GPUNVME_ERR_PROTOCOL, "%s: %zu bytes as its version", v->base.address,
                        reply.nbytes);
    if (!err)
        memcpy(&version, reply.body, sizeof(version));
    if (!err && (version.major != VFIO_USER_MAJOR || version.minor > VFIO_USER_MINOR))
        err = base_fail(GPUNVME_ERR_UNSUPPORTED, "%s: vfio-user %u.%u; %d.%d was offered",
                        v->base.address, version.major, version.minor, VFIO_USER_MAJOR,
                        VFIO_USER_MINOR);
    if (!err)
        err = vfio_user_caps_parse((char *)reply.body + sizeof(version),
                                   reply.nbytes - sizeof(version), &v->caps);
    if (!err)
        err = check_caps(v);
    if (!err)
        err = start_twin(v, &reply);
    vfio_user_message_destroy(&reply);
    return err;
}

static gpunvme_err_t device_info(struct vfu *v)
{
    struct vfio_user_device_info request = {.argsz = sizeof(request)};
    struct iovec part = {.iov_base = &request, .iov_len = sizeof(request)};
    struct vfio_user_message reply = {0};
    gpunvme_err_t err = vfu_call(v, VFIO_USER_DEVICE_GET_INFO, &part, 1, NULL, 0, &reply, NULL);

    if (!err && reply.nbytes < sizeof(v->info))
        err = base_fail(GPUNVME_ERR_PROTOCOL, "%s: %zu bytes about the device", v->base.address,
                        reply.nbytes);
    if (!err)
        memcpy(&v->info, reply.body, sizeof(v->info));
    vfio_user_message_destroy(&reply);
    if (!err && (!(v->info.flags & VFIO_DEVICE_FLAGS_PCI) ||
                 v->info.num_regions <= VFIO_PCI_CONFIG_REGION_INDEX))
        err = base_fail(GPUNVME_ERR_NOT_FOUND, "%s is no PCI device", v->base.address);
    return err;
}

/* --- the transport ---------------------------------------------------------------------------- */

static gpunvme_err_t alloc(struct gpunvme_transport *t, size_t nbytes, enum gpunvme_mem mem,
                           struct gpunvme_buf *buf)
{
    return transport_memory_alloc(&vfu_of(t)->memory, nbytes, mem, buf);
}

static void free_(struct gpunvme_transport *t, struct gpunvme_buf *buf)
{
    transport_memory_free(&vfu_of(t)->memory, buf);
}

static gpunvme_err_t reset(struct gpunvme_transport *t)
{
    struct vfu *v = vfu_of(t);
    struct vfio_user_message reply = {0};
    gpunvme_err_t err;

    if (!(v->info.flags & VFIO_DEVICE_FLAGS_RESET))
        return base_fail(GPUNVME_ERR_UNSUPPORTED, "%s: the target has no reset", t->address);
    err = vfu_call(v, VFIO_USER_DEVICE_RESET, NULL, 0, NULL, 0, &reply, NULL);
    vfio_user_message_destroy(&reply);
    if (!err) /* a reset function has forgotten both */
        err = vfu_config_enable(v, v->irq_count && v->irq_index == VFIO_PCI_INTX_IRQ_INDEX);
    return err ? err : vfu_irq_restore(v);
}

static void close_(struct gpunvme_transport *t)
{
    struct vfu *v = vfu_of(t);

    if (v->irq_count && v->irq_index == VFIO_PCI_MSIX_IRQ_INDEX && !vfu_is_lost(v))
        vfu_msix_disable(v);
    transport_memory_destroy(&v->memory); /* which tells the target, if it still listens */
    vfu_link_stop(&v->twin);
    vfu_link_stop(&v->main);
    while (v->mappings) {
        struct vfu_mapping *m = v->mappings;

        v->mappings = m->next;
        free(m);
    }
    vfu_regs_close(v);
    transport_irqs_destroy(v->irqs, v->irq_count);
    iova_destroy(&v->space);
    pthread_rwlock_destroy(&v->map_lock);
    pthread_mutex_destroy(&v->irq_lock);
    pthread_mutex_destroy(&v->window_lock);
    pthread_mutex_destroy(&v->call_lock);
    free(v);
}

static const struct gpunvme_transport_ops ops = {
    .name = "vfio-user",
    .read32 = vfu_read32,
    .read64 = vfu_read64,
    .write32 = vfu_write32,
    .write64 = vfu_write64,
    .map = vfu_map,
    .unmap = vfu_unmap,
    .alloc = alloc,
    .free = free_,
    .copy_to = transport_copy_to,
    .copy_from = transport_copy_from,
    .now_ns = transport_now_ns,
    .pause_ns = transport_pause_ns,
    .irq_setup = vfu_irq_setup,
    .irq_wait = vfu_irq_wait,
    .map_bar = vfu_map_bar,
    .reset = reset,
    .close = close_,
};

/* --- opening ---------------------------------------------------------------------------------- */

gpunvme_err_t vfu_open_socket(int fd, const char *address, uint64_t timeout_ns,
                              struct gpunvme_transport **out)
{
    struct vfu *v = calloc(1, sizeof(*v));
    struct base_failure failure;
    gpunvme_err_t err;

    if (!v) {
        close(fd);
        return base_fail(GPUNVME_ERR_NOMEM, "a vfio-user client");
    }
    v->base.ops = &ops;
    snprintf(v->base.address, sizeof(v->base.address), "%s", address);
    v->timeout_ns = timeout_ns;
    pthread_mutex_init(&v->call_lock, NULL);
    pthread_mutex_init(&v->window_lock, NULL);
    pthread_mutex_init(&v->irq_lock, NULL);
    pthread_rwlock_init(&v->map_lock, NULL);
    transport_memory_init(&v->memory, &v->base, GPUNVME_BACKING_SHARED);
    v->memory.grows = true;
    iova_init(&v->space);
    err = iova_add(&v->space, BUS_FIRST, BUS_LAST);
    if (err)
        close(fd);
    else
        err = vfu_link_start(v, &v->main, fd);
    if (!err)
        err = negotiate(v);
    v->base.prefers_export = v->caps.max_msg_fds != 0;
    if (!err)
        err = device_info(v);
    if (!err)
        err = vfu_config_enable(v, false);
    if (!err)
        vfu_msix_disable(v);
    if (!err)
        err = vfu_regs_open(v);
    if (err) {
        base_keep(&failure, err);
        close_(&v->base);
        return base_restore(&failure);
    }
    *out = &v->base;
    return GPUNVME_OK;
}

/* The socket's path; a folder stands for the socket "cntrl" in it, as SPDK names it. */
static gpunvme_err_t socket_path(const char *uri, struct sockaddr_un *sun)
{
    const char *path = uri + strlen("vfio-user:");
    struct stat st;
    int n;

    sun->sun_family = AF_UNIX;
    if (!path[0])
        return base_fail(GPUNVME_ERR_URI, "\"%s\": no path of a socket", uri);
    n = snprintf(sun->sun_path, sizeof(sun->sun_path), "%s%s", path,
                 !stat(path, &st) && S_ISDIR(st.st_mode) ? "/cntrl" : "");
    if (n >= (int)sizeof(sun->sun_path))
        return base_fail(GPUNVME_ERR_URI, "\"%s\": a socket's path has at most %zu characters", uri,
                         sizeof(sun->sun_path) - 1);
    return GPUNVME_OK;
}

static gpunvme_err_t connect_to(const struct sockaddr_un *sun, int *fd)
{
    struct timeval timeout = {.tv_sec = VFU_DEADLINE_NS / 1000000000u};
    int error = 0;

    *fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (*fd < 0)
        return base_fail_errno(errno, "a socket");
    setsockopt(*fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
    while (connect(*fd, (const struct sockaddr *)sun, sizeof(*sun))) {
        error = errno;
        if (error != EINTR)
            break;
        error = 0;
    }
    if (!error)
        return GPUNVME_OK;
    close(*fd);
    if (error == EAGAIN)
        return base_fail(GPUNVME_ERR_TIMEOUT, "%s: the target serves another client",
                         sun->sun_path);
    if (error == ECONNREFUSED)
        return base_fail(GPUNVME_ERR_NOT_FOUND, "%s: nobody listens there", sun->sun_path);
    return base_fail_errno(error, "%s", sun->sun_path);
}

gpunvme_err_t transport_vfio_user_open(const char *uri, struct gpunvme_transport **out)
{
    struct sockaddr_un sun = {0};
    gpunvme_err_t err = socket_path(uri, &sun);
    int fd;

    if (!err)
        err = connect_to(&sun, &fd);
    return err ? err : vfu_open_socket(fd, uri, VFU_DEADLINE_NS, out);
}
