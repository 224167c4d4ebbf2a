/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What a vfio-user client may ask of the controller, and the version that they agree on.
 *
 * Source: the vfio-user specification, "VFIO_USER_VERSION", "VFIO_USER_DEVICE_GET_INFO" and
 * "VFIO_USER_DEVICE_RESET".
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim/serve/serve.h"

/*
 * The number of a capability in the client's JSON, found by its name: names of capabilities occur
 * nowhere else in it. `otherwise` where there is none.
 */
static uint64_t capability(const char *json, const char *name, uint64_t otherwise)
{
    char quoted[40];
    const char *at;
    char *end;
    uint64_t value;

    snprintf(quoted, sizeof(quoted), "\"%s\"", name);
    at = strstr(json, quoted);
    if (!at)
        return otherwise;
    at += strlen(quoted);
    at += strspn(at, " \t\r\n");
    if (*at++ != ':')
        return otherwise;
    at += strspn(at, " \t\r\n");
    if (*at < '0' || *at > '9')
        return otherwise;
    value = strtoull(at, &end, 10);
    return value;
}

static int answer_version(struct serve_reply *r, const struct vfio_user_version *version)
{
    char json[256];
    int n = snprintf(json, sizeof(json),
                     "{\"capabilities\":{\"max_msg_fds\":%u,\"max_data_xfer_size\":%u,"
                     "\"max_dma_maps\":%u,\"pgsizes\":4096}}",
                     VFIO_USER_CHANNEL_FDS, SERVE_XFER_MAX, SERVE_MAPS_MAX);

    memcpy(r->head, version, sizeof(*version));
    r->head_nbytes = sizeof(*version);
    r->data = strdup(json);
    if (!r->data)
        return ENOMEM;
    r->data_nbytes = (size_t)n + 1;
    return 0;
}

static int negotiate(struct serve_conn *conn, const struct vfio_user_message *m,
                     struct serve_reply *r)
{
    struct vfio_user_version version;
    const char *json = "";
    uint64_t xfer;

    if (m->nbytes < sizeof(version) || conn->versioned)
        return EINVAL;
    memcpy(&version, m->body, sizeof(version));
    if (version.major != VFIO_USER_MAJOR)
        return ENOTSUP;
    if (version.minor > VFIO_USER_MINOR)
        version.minor = VFIO_USER_MINOR;
    if (m->nbytes > sizeof(version)) {
        json = (const char *)m->body + sizeof(version);
        if (json[m->nbytes - sizeof(version) - 1] != '\0')
            return EINVAL;
    }
    xfer = capability(json, "max_data_xfer_size", VFIO_USER_DEFAULT_MAX_DATA_XFER_SIZE);
    if (xfer < 4)
        return EINVAL;
    atomic_store(&conn->xfer_max, (uint32_t)(xfer < SERVE_XFER_MAX ? xfer : SERVE_XFER_MAX));
    conn->versioned = true;
    return answer_version(r, &version);
}

static int device_info(const struct vfio_user_message *m, struct serve_reply *r)
{
    struct vfio_user_device_info info;

    if (m->nbytes < sizeof(info))
        return EINVAL;
    memcpy(&info, m->body, sizeof(info));
    if (info.argsz < sizeof(info))
        return EINVAL;
    info = (struct vfio_user_device_info){
        .argsz = sizeof(info),
        .flags = VFIO_DEVICE_FLAGS_PCI | VFIO_DEVICE_FLAGS_RESET,
        .num_regions = VFIO_PCI_NUM_REGIONS,
        .num_irqs = VFIO_PCI_NUM_IRQS,
    };
    memcpy(r->head, &info, sizeof(info));
    r->head_nbytes = sizeof(info);
    return 0;
}

/* No region has descriptors that stand for accesses: the doorbells are better mapped. */
static int region_io_fds(const struct vfio_user_message *m, struct serve_reply *r)
{
    uint32_t ask[4]; /* argsz, flags, index, count */

    if (m->nbytes < sizeof(ask))
        return EINVAL;
    memcpy(ask, m->body, sizeof(ask));
    if (ask[0] < sizeof(ask) || ask[1] || ask[2] >= VFIO_PCI_NUM_REGIONS)
        return EINVAL;
    ask[0] = sizeof(ask);
    ask[3] = 0;
    memcpy(r->head, ask, sizeof(ask));
    r->head_nbytes = sizeof(ask);
    return 0;
}

int serve_obey(struct gpunvme_sim_server *s, struct vfio_user_message *m, struct serve_reply *r)
{
    if (!s->conn->versioned && m->header.command != VFIO_USER_VERSION)
        return EINVAL;
    switch (m->header.command) {
    case VFIO_USER_VERSION:
        return negotiate(s->conn, m, r);
    case VFIO_USER_DMA_MAP:
        return serve_dma_map(s, m);
    case VFIO_USER_DMA_UNMAP:
        return serve_dma_unmap(s, m, r);
    case VFIO_USER_DEVICE_GET_INFO:
        return device_info(m, r);
    case VFIO_USER_DEVICE_GET_REGION_INFO:
        return serve_region_info(s, m, r);
    case VFIO_USER_DEVICE_GET_REGION_IO_FDS:
        return region_io_fds(m, r);
    case VFIO_USER_DEVICE_GET_IRQ_INFO:
        return serve_irq_info(s, m, r);
    case VFIO_USER_DEVICE_SET_IRQS:
        return serve_irq_set(s, m);
    case VFIO_USER_REGION_READ:
        return serve_region_access(s, m, r, false);
    case VFIO_USER_REGION_WRITE:
        return serve_region_access(s, m, r, true);
    case VFIO_USER_DEVICE_RESET:
        sim_server_reset(s);
        return 0;
    default:
        return ENOTSUP;
    }
}
