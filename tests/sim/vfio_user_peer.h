/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A vfio-user server by hand, for tests of the client: registers are memory, and every answer can
 * be made a wrong one. It runs in a thread of the test, at the other end of a socket pair.
 */
#ifndef TESTS_SIM_VFIO_USER_PEER_H
#define TESTS_SIM_VFIO_USER_PEER_H

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "gpunvme/atomics.h"
#include "vfio_user/channel.h"

#define PEER_BAR_NBYTES 0x4000u
#define PEER_IRQS       40
#define PEER_TRIGGER    0xf00u /* a write here: the peer accesses memory (see struct peer) */
#define PEER_ODD(c)     (1u << (c))

struct peer {
    struct vfio_user_channel ch, twin;
    pthread_t thread;
    int client; /* the client's end, until it is taken */

    /* How it behaves. */
    const char *json;
    atomic_uint refuse, hang, end, cut, wrong_id; /* commands, as bits PEER_ODD(command) */
    bool doorbells, whole_bar, no_descriptor, short_file, no_reset, refuse64, with_twin;
    bool loop_of_caps, needs_room, stray_command;
    uint32_t irq_flags, msix_count, class_code;
    uint16_t major;

    /* What it has seen. */
    atomic_uint count[32]; /* commands */
    uint64_t bar[PEER_BAR_NBYTES / 8];
    uint8_t config[256];
    int file; /* of BAR 0 */
    uint64_t map_address[64], map_size[64], map_offset[64];
    int map_fd[64];           /* -1: without a descriptor */
    unsigned nmaps, maps_max; /* it takes no more; 0: all */
    int irq_fd[PEER_IRQS];
    uint32_t irq_index, irq_largest; /* the most in one message */

    /* What a write to PEER_TRIGGER does before it is answered: a DMA read or write. */
    uint64_t dma_address, dma_count;
    bool dma_write;
    char dma_data[4096];
    uint32_t dma_error; /* of the client's reply */
    size_t dma_nbytes;
};

static inline uint64_t peer_deadline(void)
{
    return gpunvme_clock_ns() + UINT64_C(20000000000);
}

static inline void peer_reply(struct peer *p, const struct vfio_user_message *m, int error, void *a,
                              size_t a_nbytes, void *b, size_t b_nbytes, int *fds, unsigned nfds)
{
    struct iovec parts[2] = {{a, a_nbytes}, {b, b_nbytes}};
    struct vfio_user_header h = m->header;

    if (p->wrong_id & PEER_ODD(h.command)) {
        h.message_id ^= 0x55;
        vfio_user_reply(&p->ch, &h, 0, NULL, 0, NULL, 0, peer_deadline());
        h.message_id ^= 0x55;
    }
    if (!error && (p->cut & PEER_ODD(h.command))) {
        parts[0].iov_len = a_nbytes / 2 < 8 ? a_nbytes / 2 : 8;
        parts[1].iov_len = 0;
    }
    vfio_user_reply(&p->ch, &h, error, parts, 2, fds, nfds, peer_deadline());
}

static inline void peer_version(struct peer *p, const struct vfio_user_message *m)
{
    struct vfio_user_version v = {.major = p->major, .minor = 1};
    int pair[2] = {-1, -1};

    if (p->with_twin) {
        socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
        vfio_user_channel_init(&p->twin, pair[0], 1 << 21);
    }
    peer_reply(p, m, 0, &v, sizeof(v), (void *)p->json, strlen(p->json) + 1, &pair[1],
               p->with_twin && !p->no_descriptor);
    if (pair[1] >= 0)
        close(pair[1]);
}

static inline void peer_region_info(struct peer *p, const struct vfio_user_message *m)
{
    struct {
        struct vfio_region_info info;
        struct vfio_region_info_cap_type other; /* a capability that is not looked for */
        struct {
            struct vfio_info_cap_header header;
            uint32_t nr_areas, reserved;
        } sparse; /* as struct vfio_region_info_cap_sparse_mmap */
        struct vfio_region_sparse_mmap_area areas[2];
    } r = {0};
    uint32_t room = ((const struct vfio_region_info *)m->body)->argsz;
    uint32_t index = ((const struct vfio_region_info *)m->body)->index;
    bool mapped = index == 0 && (p->doorbells || p->whole_bar);
    size_t nbytes = sizeof(r);

    r.info = (struct vfio_region_info){.argsz = sizeof(r), .index = index, .flags = 3};
    r.info.size = index == 0 ? PEER_BAR_NBYTES : index == 7 ? 256 : 0;
    if (mapped)
        r.info.flags |= VFIO_REGION_INFO_FLAG_MMAP;
    if (mapped && !p->whole_bar) {
        r.info.flags |= VFIO_REGION_INFO_FLAG_CAPS;
        r.info.cap_offset = sizeof(r.info);
        r.other.header.id = VFIO_REGION_INFO_CAP_TYPE;
        r.other.header.next = (uint32_t)((char *)&r.sparse - (char *)&r);
        r.sparse.header.id = VFIO_REGION_INFO_CAP_SPARSE_MMAP;
        r.sparse.header.next = p->loop_of_caps ? sizeof(r.info) : 0;
        r.sparse.nr_areas = 2;
        r.areas[0] = (struct vfio_region_sparse_mmap_area){0x3000, 0x1000};
        r.areas[1] = (struct vfio_region_sparse_mmap_area){0x1000, 0x1000};
        if (p->loop_of_caps)
            r.sparse.nr_areas = 0;
    }
    if (p->needs_room)
        r.info.argsz = 8000;
    if (r.info.argsz > room) { /* "the full payload is not included" */
        r.info.flags &= ~(uint32_t)VFIO_REGION_INFO_FLAG_CAPS;
        nbytes = sizeof(r.info);
    }
    peer_reply(p, m, 0, &r, nbytes, NULL, 0, &p->file, mapped && !p->no_descriptor);
}

/* Accesses the client's memory by message, and waits for its answer in between. */
static inline void peer_dma(struct peer *p)
{
    struct vfio_user_channel *ch = p->with_twin ? &p->twin : &p->ch;
    struct vfio_user_dma_access access = {p->dma_address, p->dma_count};
    struct iovec parts[2] = {{&access, sizeof(access)}, {p->dma_data, p->dma_count}};
    struct vfio_user_header h = {
        .message_id = 1, .command = p->dma_write ? VFIO_USER_DMA_WRITE : VFIO_USER_DMA_READ};
    struct vfio_user_message reply = {0};

    if (p->stray_command)
        h.command = VFIO_USER_MIG_DATA_READ;
    if (vfio_user_send(ch, &h, parts, p->dma_write ? 2 : 1, NULL, 0, peer_deadline()))
        return;
    while (!vfio_user_recv(ch, &reply, peer_deadline()) &&
           (reply.header.flags & VFIO_USER_TYPE_MASK) != VFIO_USER_TYPE_REPLY)
        ;
    p->dma_error = reply.header.flags & VFIO_USER_FLAG_ERROR ? reply.header.error : 0;
    p->dma_nbytes = reply.nbytes;
    if (!p->dma_write && reply.nbytes == sizeof(access) + p->dma_count)
        memcpy(p->dma_data, (char *)reply.body + sizeof(access), p->dma_count);
    vfio_user_message_destroy(&reply);
}

static inline void peer_access(struct peer *p, const struct vfio_user_message *m)
{
    struct vfio_user_region_access *a = m->body;
    bool write = m->header.command == VFIO_USER_REGION_WRITE;
    uint64_t size = a->region == 0 ? sizeof(p->bar) : a->region == 7 ? sizeof(p->config) : 0;
    char *at = (a->region ? (char *)p->config : (char *)p->bar) + a->offset;

    if (a->offset + a->count > size || (p->refuse64 && a->count == 8)) {
        peer_reply(p, m, EINVAL, NULL, 0, NULL, 0, NULL, 0);
        return;
    }
    if (write)
        memcpy(at, a + 1, a->count);
    if (write && a->region == 0 && a->offset == PEER_TRIGGER)
        peer_dma(p);
    peer_reply(p, m, 0, a, sizeof(*a), at, write ? 0 : a->count, NULL, 0);
}

static inline void peer_map(struct peer *p, struct vfio_user_message *m)
{
    const struct vfio_user_dma_map *map = m->body;

    if (p->maps_max && p->nmaps == p->maps_max) {
        peer_reply(p, m, EINVAL, NULL, 0, NULL, 0, NULL, 0);
        return;
    }
    p->map_address[p->nmaps] = map->address;
    p->map_offset[p->nmaps] = map->offset;
    p->map_size[p->nmaps] = map->size;
    p->map_fd[p->nmaps++] = vfio_user_message_take(m, 0);
    peer_reply(p, m, 0, NULL, 0, NULL, 0, NULL, 0);
}

static inline void peer_set_irqs(struct peer *p, struct vfio_user_message *m)
{
    const struct vfio_irq_set *set = m->body;
    int error = m->nfds && m->nfds != set->count ? EINVAL : 0;

    for (unsigned i = 0; i < m->nfds && !error && set->start + i < PEER_IRQS; i++) {
        if (p->irq_fd[set->start + i] >= 0)
            close(p->irq_fd[set->start + i]);
        p->irq_fd[set->start + i] = vfio_user_message_take(m, i);
    }
    if (m->nfds)
        p->irq_index = set->index;
    if (m->nfds > p->irq_largest)
        p->irq_largest = m->nfds;
    peer_reply(p, m, error, NULL, 0, NULL, 0, NULL, 0);
}

static inline void peer_command(struct peer *p, struct vfio_user_message *m)
{
    struct vfio_user_device_info info = {.argsz = 16, .num_regions = 9, .num_irqs = 5};
    struct vfio_irq_info irq = {.argsz = 16, .flags = p->irq_flags};

    info.flags = VFIO_DEVICE_FLAGS_PCI | (p->no_reset ? 0 : VFIO_DEVICE_FLAGS_RESET);
    switch (m->header.command) {
    case VFIO_USER_VERSION:
        peer_version(p, m);
        return;
    case VFIO_USER_DEVICE_GET_INFO:
        peer_reply(p, m, 0, &info, sizeof(info), NULL, 0, NULL, 0);
        return;
    case VFIO_USER_DEVICE_GET_REGION_INFO:
        peer_region_info(p, m);
        return;
    case VFIO_USER_REGION_READ:
    case VFIO_USER_REGION_WRITE:
        peer_access(p, m);
        return;
    case VFIO_USER_DMA_MAP:
        peer_map(p, m);
        return;
    case VFIO_USER_DEVICE_GET_IRQ_INFO:
        irq.index = ((const struct vfio_irq_info *)m->body)->index;
        irq.count = irq.index == VFIO_PCI_MSIX_IRQ_INDEX ? p->msix_count : irq.index == 0;
        peer_reply(p, m, 0, &irq, 16, NULL, 0, NULL, 0);
        return;
    case VFIO_USER_DEVICE_SET_IRQS:
        peer_set_irqs(p, m);
        return;
    case VFIO_USER_DEVICE_RESET:
        memset(&p->config[4], 0, 2); /* fall through */
    default:
        peer_reply(p, m, 0, m->body, m->nbytes, NULL, 0, NULL, 0);
    }
}

static inline void *peer_run(void *arg)
{
    struct peer *p = arg;
    struct vfio_user_message m = {0};

    while (!vfio_user_recv(&p->ch, &m, peer_deadline())) {
        unsigned odd = PEER_ODD(m.header.command);

        atomic_fetch_add(&p->count[m.header.command & 31], 1);
        if (p->end & odd)
            break;
        if (p->hang & odd)
            continue;
        if (p->refuse & odd)
            peer_reply(p, &m, EPERM, NULL, 0, NULL, 0, NULL, 0);
        else
            peer_command(p, &m);
    }
    vfio_user_message_destroy(&m);
    vfio_user_channel_shutdown(&p->ch);
    return NULL;
}

/* A peer that does everything right; the test changes that before peer_start(). */
static inline void peer_init(struct peer *p)
{
    memset(p, 0, sizeof(*p));
    p->json = "{\"capabilities\":{\"max_msg_fds\":8,\"max_data_xfer_size\":1048576}}";
    p->irq_flags = VFIO_IRQ_INFO_EVENTFD;
    p->msix_count = PEER_IRQS;
    p->class_code = 0x010802;
    for (unsigned i = 0; i < PEER_IRQS; i++)
        p->irq_fd[i] = -1;
    p->bar[0] = 0x0102030405060708;
}

static inline void peer_start(struct peer *p)
{
    uint32_t revision = p->class_code << 8;
    int pair[2];

    memcpy(&p->config[8], &revision, 4);
    p->file = memfd_create("bar", MFD_CLOEXEC);
    if (ftruncate(p->file, p->short_file ? 0x1800 : PEER_BAR_NBYTES) ||
        socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
        abort();
    vfio_user_channel_init(&p->ch, pair[0], 1 << 21);
    p->client = pair[1];
    pthread_create(&p->thread, NULL, peer_run, p);
}

/* After the client has closed its end. */
static inline void peer_stop(struct peer *p)
{
    vfio_user_channel_shutdown(&p->ch);
    pthread_join(p->thread, NULL);
    vfio_user_channel_destroy(&p->ch);
    if (p->with_twin)
        vfio_user_channel_destroy(&p->twin);
    close(p->file);
    for (unsigned i = 0; i < p->nmaps; i++) {
        if (p->map_fd[i] >= 0)
            close(p->map_fd[i]);
    }
    for (unsigned i = 0; i < PEER_IRQS; i++) {
        if (p->irq_fd[i] >= 0)
            close(p->irq_fd[i]);
    }
}

#endif
