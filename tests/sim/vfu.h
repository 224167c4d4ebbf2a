/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A vfio-user client for tests of the server: every byte of a message under the test's control. It
 * shares nothing with the real client and server but linux/vfio.h, so that they can't be wrong in
 * the same way. Offsets are those of the specification's tables.
 */
#ifndef TESTS_SIM_VFU_H
#define TESTS_SIM_VFU_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <linux/vfio.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "gpunvme/nvme.h"
#include "gpunvme/sim.h"
#include "patience.h"
#include "send_fds.h"

#define VFU_BUS    0x100000000ull /* of memory with a descriptor */
#define VFU_FAR    0x200000000ull /* of memory without */
#define VFU_NBYTES (4u << 20)     /* of either */
#define VFU_CLOSED 0xffff         /* instead of an errno: the server closed the connection */

enum { VERSION = 1, MAP, UNMAP, INFO, REGION, IO_FDS, IRQ, SET_IRQS, READ, WRITE, DMA_READ };
enum { DMA_WRITE = 12, RESET };

#define assert_ok(err)                                                                             \
    do {                                                                                           \
        gpunvme_err_t err_ = (err);                                                                \
        if (err_) {                                                                                \
            print_error("%s (%s)\n", gpunvme_err_name(err_), gpunvme_err_detail());                \
            _fail(__FILE__, __LINE__);                                                             \
        }                                                                                          \
    } while (0)

/* A controller that is served at a path. */
struct served {
    struct gpunvme_sim *sim;
    struct gpunvme_sim_server *server;
    char dir[32], path[64];
};

struct vfu {
    int fd;
    uint16_t id;
    uint8_t reply[2 << 20];
    size_t nbytes;     /* of the reply, header left out */
    int got_fd;        /* that came with it, or -1 */
    unsigned ndma;     /* DMA messages that came */
    uint8_t asked[16]; /* the header of the last one */
    bool deaf;         /* DMA messages are not answered */
    int memfd;
    uint8_t *memory, *far;
    volatile uint32_t *doorbells;
    size_t doorbells_nbytes;
    /* The admin queues and one pair of I/O queues, 16 entries each, by the caller's addresses. */
    struct vfu_queue {
        struct gpunvme_sqe *sq;
        volatile struct gpunvme_cqe *cq;
        uint32_t tail, head;
        uint16_t phase, cid;
    } queue[2];
};

static inline void serve(struct served *s, const char *uri)
{
    struct gpunvme_sim_config config;

    assert_ok(gpunvme_sim_config_parse(uri, &config));
    assert_ok(gpunvme_sim_create(&config, &s->sim));
    strcpy(s->dir, "/tmp/gpunvme-vfu-XXXXXX");
    assert_non_null(mkdtemp(s->dir));
    snprintf(s->path, sizeof(s->path), "%s/cntrl", s->dir);
    assert_ok(gpunvme_sim_serve_start(s->sim, s->path, 0, &s->server));
}

static inline void unserve(struct served *s)
{
    gpunvme_sim_serve_stop(s->server);
    gpunvme_sim_destroy(s->sim);
    rmdir(s->dir);
}

static inline bool vfu_expired(time_t *end)
{
    struct timespec now, pause = {.tv_nsec = 50000};

    clock_gettime(CLOCK_MONOTONIC, &now);
    if (!*end)
        *end = now.tv_sec + PATIENCE_S;
    nanosleep(&pause, NULL);
    return now.tv_sec > *end;
}

static inline void vfu_put(uint8_t *at, uint64_t value, unsigned nbytes)
{
    memcpy(at, &value, nbytes);
}

static inline uint64_t vfu_get(const uint8_t *at, unsigned nbytes)
{
    uint64_t value = 0;

    memcpy(&value, at, nbytes);
    return value;
}

static inline void vfu_send_raw(struct vfu *v, const void *data, size_t nbytes, const int *fds,
                                unsigned nfds)
{
    assert_int_equal(send_fds(v->fd, data, nbytes, fds, nfds, MSG_NOSIGNAL), nbytes);
}

/* A message; flags as the header has them. */
static inline void vfu_send(struct vfu *v, unsigned command, unsigned flags, const void *body,
                            size_t nbytes, const int *fds, unsigned nfds)
{
    uint8_t *message = calloc(1, 16 + nbytes);

    assert_non_null(message);
    vfu_put(message, ++v->id, 2);
    vfu_put(message + 2, command, 2);
    vfu_put(message + 4, 16 + nbytes, 4);
    vfu_put(message + 8, flags, 4);
    if (nbytes)
        memcpy(message + 16, body, nbytes);
    vfu_send_raw(v, message, 16 + nbytes, fds, nfds);
    free(message);
}

/* Exactly that many bytes; false when the server has closed. */
static inline bool vfu_recv_all(struct vfu *v, uint8_t *to, size_t nbytes)
{
    while (nbytes) {
        struct pollfd p = {.fd = v->fd, .events = POLLIN};
        struct iovec iov = {.iov_base = to, .iov_len = nbytes};
        union {
            struct cmsghdr c;
            char bytes[CMSG_SPACE(8 * sizeof(int))];
        } control;
        struct msghdr msg = {.msg_iov = &iov,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof(control)};
        struct cmsghdr *c;
        ssize_t n;

        assert_int_equal(poll(&p, 1, PATIENCE_S * 1000), 1);
        n = recvmsg(v->fd, &msg, 0);
        if (n <= 0)
            return false;
        c = CMSG_FIRSTHDR(&msg);
        if (c && c->cmsg_type == SCM_RIGHTS)
            memcpy(&v->got_fd, CMSG_DATA(c), sizeof(int));
        to += n;
        nbytes -= (size_t)n;
    }
    return true;
}

/* Answers a DMA message about memory without a descriptor; the body is in v->reply. */
static inline void vfu_answer(struct vfu *v, const uint8_t *header, size_t nbytes)
{
    uint64_t at = vfu_get(v->reply, 8) - VFU_FAR, count = vfu_get(v->reply + 8, 8);
    unsigned command = (unsigned)vfu_get(header + 2, 2);
    uint8_t *message = calloc(1, 32 + VFU_NBYTES);

    assert_non_null(message);
    assert_true(at < VFU_NBYTES && count <= VFU_NBYTES - at);
    memcpy(message, header, 16);
    memcpy(message + 16, v->reply, 16);
    vfu_put(message + 8, 1, 4);
    vfu_put(message + 4, 32 + (command == DMA_READ ? count : 0), 4);
    if (command == DMA_READ) {
        assert_int_equal(nbytes, 16);
        memcpy(message + 32, v->far + at, count);
    } else {
        assert_int_equal(command, DMA_WRITE);
        assert_int_equal(nbytes, 16 + count);
        memcpy(v->far + at, v->reply + 16, count);
    }
    memcpy(v->asked, header, 16);
    v->ndma++;
    if (!v->deaf)
        vfu_send_raw(v, message, vfu_get(message + 4, 4), NULL, 0);
    free(message);
}

/* The next message into v->reply; false when closed. DMA messages are answered: *dma. */
static inline bool vfu_recv(struct vfu *v, uint8_t header[16], bool *dma)
{
    size_t nbytes;

    if (!vfu_recv_all(v, header, 16))
        return false;
    nbytes = vfu_get(header + 4, 4) - 16;
    assert_true(nbytes <= sizeof(v->reply));
    if (!vfu_recv_all(v, v->reply, nbytes))
        return false;
    v->nbytes = nbytes;
    *dma = !(vfu_get(header + 8, 4) & 0xf);
    if (*dma)
        vfu_answer(v, header, nbytes);
    return true;
}

/*
 * Waits for a DMA message that is not answered. It may have come already, before the reply to the
 * doorbell that caused it.
 */
static inline void vfu_be_asked(struct vfu *v)
{
    uint8_t header[16];
    bool dma;

    while (!v->ndma)
        assert_true(vfu_recv(v, header, &dma));
}

/* Waits for the reply to the last message: its errno, 0 or VFU_CLOSED. */
static inline int vfu_wait(struct vfu *v, unsigned command)
{
    uint8_t header[16];
    bool dma;

    v->got_fd = -1;
    do {
        if (!vfu_recv(v, header, &dma))
            return VFU_CLOSED;
    } while (dma);
    assert_int_equal(vfu_get(header, 2), v->id);
    assert_int_equal(vfu_get(header + 2, 2), command);
    assert_int_equal(vfu_get(header + 8, 4) & 0xf, 1);
    if (!(vfu_get(header + 8, 4) & 0x20))
        return 0;
    assert_int_equal(v->nbytes, 0);
    return (int)vfu_get(header + 12, 4);
}

static inline int vfu_call(struct vfu *v, unsigned command, const void *body, size_t nbytes,
                           const int *fds, unsigned nfds)
{
    vfu_send(v, command, 0, body, nbytes, fds, nfds);
    return vfu_wait(v, command);
}

/* Answers DMA messages that are here. */
static inline void vfu_pump(struct vfu *v)
{
    struct pollfd p = {.fd = v->fd, .events = POLLIN};
    uint8_t header[16];
    bool dma = false;

    while (poll(&p, 1, 0) == 1 && vfu_recv(v, header, &dma))
        assert_true(dma);
}

static inline struct vfu *vfu_connect_raw(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct vfu *v = calloc(1, sizeof(*v));

    assert_non_null(v);
    strcpy(address.sun_path, path);
    v->fd = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(connect(v->fd, (struct sockaddr *)&address, sizeof(address)), 0);
    v->memfd = -1;
    v->got_fd = -1;
    return v;
}

static inline int vfu_version(struct vfu *v, unsigned major, unsigned minor, const char *json)
{
    uint8_t body[256] = {0};
    size_t nbytes = 4;

    vfu_put(body, major, 2);
    vfu_put(body + 2, minor, 2);
    if (json) {
        strcpy((char *)body + 4, json);
        nbytes += strlen(json) + 1;
    }
    return vfu_call(v, VERSION, body, nbytes, NULL, 0);
}

static inline struct vfu *vfu_connect(const char *path)
{
    struct vfu *v = vfu_connect_raw(path);

    assert_int_equal(vfu_version(v, 0, 1, NULL), 0);
    return v;
}

static inline void vfu_close(struct vfu *v)
{
    close(v->fd);
    if (v->memory)
        munmap(v->memory, VFU_NBYTES);
    if (v->memfd >= 0)
        close(v->memfd);
    if (v->doorbells)
        munmap((void *)(uintptr_t)v->doorbells, v->doorbells_nbytes);
    free(v->far);
    free(v);
}

static inline int vfu_map(struct vfu *v, uint64_t bus, uint64_t nbytes, uint64_t offset,
                          unsigned flags, int fd)
{
    uint8_t body[32] = {0};

    vfu_put(body, 32, 4);
    vfu_put(body + 4, flags, 4);
    vfu_put(body + 8, offset, 8);
    vfu_put(body + 16, bus, 8);
    vfu_put(body + 24, nbytes, 8);
    return vfu_call(v, MAP, body, 32, &fd, fd >= 0);
}

static inline int vfu_unmap(struct vfu *v, uint64_t bus, uint64_t nbytes, unsigned flags)
{
    uint8_t body[24] = {0};

    vfu_put(body, 24, 4);
    vfu_put(body + 4, flags, 4);
    vfu_put(body + 8, bus, 8);
    vfu_put(body + 16, nbytes, 8);
    return vfu_call(v, UNMAP, body, 24, NULL, 0);
}

/* A file in memory, sealed as a server wants it, or not at all. */
static inline int vfu_memfd(size_t nbytes, int seals)
{
    int fd = memfd_create("vfu", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    assert_int_equal(ftruncate(fd, (off_t)nbytes), 0);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

/* Memory of both kinds, readable and writable. */
static inline void vfu_memory(struct vfu *v)
{
    v->memfd = vfu_memfd(VFU_NBYTES, F_SEAL_SHRINK);
    v->memory = mmap(NULL, VFU_NBYTES, PROT_READ | PROT_WRITE, MAP_SHARED, v->memfd, 0);
    assert_true(v->memory != MAP_FAILED);
    v->far = calloc(1, VFU_NBYTES);
    assert_non_null(v->far);
    assert_int_equal(vfu_map(v, VFU_BUS, VFU_NBYTES, 0, 3, v->memfd), 0);
    assert_int_equal(vfu_map(v, VFU_FAR, VFU_NBYTES, 0, 3, -1), 0);
}

/* Region information; the reply is in v->reply. */
static inline int vfu_region(struct vfu *v, unsigned index, unsigned argsz)
{
    uint8_t body[32] = {0};

    vfu_put(body, argsz, 4);
    vfu_put(body + 8, index, 4);
    return vfu_call(v, REGION, body, 32, NULL, 0);
}

static inline int vfu_read(struct vfu *v, unsigned region, uint64_t offset, unsigned nbytes)
{
    uint8_t body[16];

    vfu_put(body, offset, 8);
    vfu_put(body + 8, region, 4);
    vfu_put(body + 12, nbytes, 4);
    return vfu_call(v, READ, body, 16, NULL, 0);
}

static inline uint64_t vfu_read_value(struct vfu *v, unsigned region, uint64_t offset,
                                      unsigned nbytes)
{
    assert_int_equal(vfu_read(v, region, offset, nbytes), 0);
    assert_int_equal(v->nbytes, 16 + nbytes);
    assert_int_equal(vfu_get(v->reply + 12, 4), nbytes);
    return vfu_get(v->reply + 16, nbytes);
}

static inline int vfu_write(struct vfu *v, unsigned region, uint64_t offset, uint64_t value,
                            unsigned nbytes)
{
    uint8_t body[24];

    vfu_put(body, offset, 8);
    vfu_put(body + 8, region, 4);
    vfu_put(body + 12, nbytes, 4);
    vfu_put(body + 16, value, nbytes);
    return vfu_call(v, WRITE, body, 16 + nbytes, NULL, 0);
}

static inline int vfu_set_irqs(struct vfu *v, unsigned index, unsigned flags, unsigned start,
                               unsigned count, const int *fds, unsigned nfds)
{
    uint8_t body[20];

    vfu_put(body, 20, 4);
    vfu_put(body + 4, flags, 4);
    vfu_put(body + 8, index, 4);
    vfu_put(body + 12, start, 4);
    vfu_put(body + 16, count, 4);
    return vfu_call(v, SET_IRQS, body, 20, fds, nfds);
}

static inline void vfu_map_doorbells(struct vfu *v)
{
    assert_int_equal(vfu_region(v, VFIO_PCI_BAR0_REGION_INDEX, 4096), 0);
    assert_true(v->got_fd >= 0);
    v->doorbells_nbytes = vfu_get(v->reply + 56, 8);
    v->doorbells = mmap(NULL, v->doorbells_nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, v->got_fd,
                        (off_t)(vfu_get(v->reply + 24, 8) + vfu_get(v->reply + 48, 8)));
    assert_true(v->doorbells != MAP_FAILED);
    close(v->got_fd);
}

/* --- NVMe ------------------------------------------------------------------------------------- */

static inline void vfu_reg(struct vfu *v, uint32_t offset, uint64_t value, unsigned nbytes)
{
    assert_int_equal(vfu_write(v, VFIO_PCI_BAR0_REGION_INDEX, offset, value, nbytes), 0);
}

static inline uint32_t vfu_csts(struct vfu *v)
{
    return (uint32_t)vfu_read_value(v, VFIO_PCI_BAR0_REGION_INDEX, GPUNVME_REG_CSTS, 4);
}

/* Queue `qid` is at 8 KiB × qid, submission first. */
static inline void vfu_queue(struct vfu *v, unsigned qid, bool far)
{
    uint8_t *at = (far ? v->far : v->memory) + qid * 8192u;

    memset(at, 0, 8192);
    memset(&v->queue[qid], 0, sizeof(v->queue[qid]));
    v->queue[qid].sq = (struct gpunvme_sqe *)(void *)at;
    v->queue[qid].cq = (volatile struct gpunvme_cqe *)(void *)(at + 4096);
    v->queue[qid].phase = 1;
}

static inline void vfu_ring(struct vfu *v, unsigned index, uint32_t value)
{
    if (v->doorbells)
        __atomic_store_n(&v->doorbells[index], value, __ATOMIC_RELEASE);
    else
        vfu_reg(v, GPUNVME_REG_DOORBELLS + 4 * index, value, 4);
}

static inline void vfu_submit(struct vfu *v, unsigned qid, struct gpunvme_sqe sqe)
{
    struct vfu_queue *q = &v->queue[qid];

    sqe.cid = q->cid++;
    q->sq[q->tail] = sqe;
    q->tail = (q->tail + 1) % 16;
    vfu_ring(v, 2 * qid, q->tail);
}

/* The status of the next completion. */
static inline uint16_t vfu_complete(struct vfu *v, unsigned qid)
{
    struct vfu_queue *q = &v->queue[qid];
    volatile struct gpunvme_cqe *entry = &q->cq[q->head];
    uint16_t status;
    time_t end = 0;

    for (;;) {
        status = __atomic_load_n(&entry->status, __ATOMIC_ACQUIRE);
        if ((status & 1) == q->phase)
            break;
        vfu_pump(v);
        assert_false(vfu_expired(&end));
    }
    if (++q->head == 16) {
        q->head = 0;
        q->phase ^= 1;
    }
    vfu_ring(v, 2 * qid + 1, q->head);
    return status >> 1;
}

static inline uint16_t vfu_do(struct vfu *v, unsigned qid, struct gpunvme_sqe sqe)
{
    vfu_submit(v, qid, sqe);
    return vfu_complete(v, qid);
}

static inline void vfu_enable(struct vfu *v, bool far)
{
    uint64_t bus = far ? VFU_FAR : VFU_BUS;
    time_t end = 0;

    vfu_queue(v, 0, far);
    vfu_reg(v, GPUNVME_REG_AQA, 15u | 15u << 16, 4);
    vfu_reg(v, GPUNVME_REG_ASQ, bus, 8);
    vfu_reg(v, GPUNVME_REG_ACQ, bus + 4096, 8);
    vfu_reg(v, GPUNVME_REG_CC,
            GPUNVME_SET(1, CC_EN) | GPUNVME_SET(GPUNVME_SQE_SHIFT, CC_IOSQES) |
                GPUNVME_SET(GPUNVME_CQE_SHIFT, CC_IOCQES),
            4);
    while (!(vfu_csts(v) & 3))
        assert_false(vfu_expired(&end));
    assert_int_equal(vfu_csts(v), 1);
}

/* The I/O queues; cq_dword11 beside PC. */
static inline void vfu_io_queue(struct vfu *v, bool far, uint32_t cq_dword11)
{
    uint64_t bus = (far ? VFU_FAR : VFU_BUS) + 8192;
    struct gpunvme_sqe sqe = {.opc = GPUNVME_ADMIN_CREATE_CQ,
                              .prp1 = bus + 4096,
                              .cdw10 = 1 | 15u << 16,
                              .cdw11 = GPUNVME_QUEUE_PC | cq_dword11};

    vfu_queue(v, 1, far);
    assert_int_equal(vfu_do(v, 0, sqe), 0);
    sqe.opc = GPUNVME_ADMIN_CREATE_SQ;
    sqe.prp1 = bus;
    sqe.cdw11 = GPUNVME_QUEUE_PC | 1u << 16;
    assert_int_equal(vfu_do(v, 0, sqe), 0);
}

/* A read or write of whole 512-byte blocks, at most two pages of memory. */
static inline struct gpunvme_sqe vfu_rw(uint8_t opc, uint64_t bus, unsigned nblocks)
{
    return (struct gpunvme_sqe){.opc = opc,
                                .nsid = 1,
                                .prp1 = bus,
                                .prp2 = nblocks > 8 ? (bus | 4095) + 1 : 0,
                                .cdw12 = nblocks - 1};
}

/* Waits for the eventfd; how often it fired. */
static inline uint64_t vfu_fired(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    uint64_t count = 0;

    assert_int_equal(poll(&p, 1, PATIENCE_S * 1000), 1);
    assert_int_equal(read(fd, &count, sizeof(count)), sizeof(count));
    return count;
}

static inline bool vfu_silent(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};

    return poll(&p, 1, 20) == 0;
}

/* --- What each test has: a controller of 1 MiB, and a client of its server -------------------- */

static struct served s;
static struct vfu *v;

static inline int vfu_setup(void **state)
{
    (void)state;
    serve(&s, "sim:size=1M,queues=7");
    v = vfu_connect(s.path);
    return 0;
}

static inline int vfu_teardown(void **state)
{
    (void)state;
    vfu_close(v);
    unserve(&s);
    return 0;
}

#endif
