/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The transport by the kernel module of kmod/: /dev/gpunvme/BDF gives the registers by mmap, bus
 * addresses for host memory and for a GPU's, and interrupts.
 *
 * Without an IOMMU, memory is as contiguous on the bus as it is in the machine. So small memory,
 * which must be contiguous, is cut from huge pages: reserved ones, or else any that the kernel
 * happens to give.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../../kmod/gpunvme_ioctl.h"
#include "base/fail.h"
#include "transport/common.h"
#include "transport/irq.h"
#include "transport/transports.h"

#define PAGE       ((uint64_t)GPUNVME_IOC_PAGE)
#define CONTIGUOUS ((size_t)2 << 20) /* alloc promises this of host memory */
#define DOORBELLS  0x1000u

struct kmod_transport {
    struct gpunvme_transport base;
    struct gpunvme_transport whole; /* whose map refuses what isn't contiguous */
    int fd;
    char path[64];
    char *regs;
    size_t regs_nbytes;
    struct transport_memory huge, lucky; /* contiguous: reserved huge pages, and other ones */
    struct transport_memory any;
    struct transport_irq *irqs;
    uint32_t nirqs;
};

/* The mapping of a buffer: its transport_private while it has a bus address. */
struct mapping {
    struct mapping *next;
    uint32_t handle;
    uint64_t pages[];
};

static struct kmod_transport *of(struct gpunvme_transport *t)
{
    return (struct kmod_transport *)t;
}

static gpunvme_err_t fail_ioctl(const struct kmod_transport *k, const char *what)
{
    int error = errno;

    if (error == ENODEV)
        return base_fail(GPUNVME_ERR_REMOVED, "%s: %s", k->path, what);
    if (error == EOPNOTSUPP || error == ENOTTY)
        return base_fail(GPUNVME_ERR_UNSUPPORTED, "%s: %s: the module or the device can't do that",
                         k->path, what);
    return base_fail_errno(error, "%s: %s", k->path, what);
}

/* --- registers -------------------------------------------------------------------------------- */

static gpunvme_err_t at(struct gpunvme_transport *t, uint32_t offset, size_t nbytes,
                        volatile void **out)
{
    struct kmod_transport *k = of(t);

    if (offset % nbytes || offset > k->regs_nbytes || nbytes > k->regs_nbytes - offset)
        return base_fail(GPUNVME_ERR_RANGE, "register %xh of %zu bytes that are mapped", offset,
                         k->regs_nbytes);
    *out = k->regs + offset;
    return GPUNVME_OK;
}

static gpunvme_err_t read32(struct gpunvme_transport *t, uint32_t offset, uint32_t *value)
{
    volatile void *reg = NULL;
    gpunvme_err_t err = at(t, offset, 4, &reg);

    if (!err)
        *value = *(volatile uint32_t *)reg;
    return err;
}

static gpunvme_err_t read64(struct gpunvme_transport *t, uint32_t offset, uint64_t *value)
{
    volatile void *reg = NULL;
    gpunvme_err_t err = at(t, offset, 8, &reg);

    if (!err)
        *value = *(volatile uint64_t *)reg;
    return err;
}

static gpunvme_err_t write32(struct gpunvme_transport *t, uint32_t offset, uint32_t value)
{
    volatile void *reg = NULL;
    gpunvme_err_t err = at(t, offset, 4, &reg);

    if (!err)
        *(volatile uint32_t *)reg = value;
    return err;
}

static gpunvme_err_t write64(struct gpunvme_transport *t, uint32_t offset, uint64_t value)
{
    volatile void *reg = NULL;
    gpunvme_err_t err = at(t, offset, 8, &reg);

    if (!err)
        *(volatile uint64_t *)reg = value;
    return err;
}

/* --- memory ----------------------------------------------------------------------------------- */

static gpunvme_err_t map_host(struct kmod_transport *k, uint64_t begin, uint64_t len,
                              struct mapping *m)
{
    struct gpunvme_ioc_map_user a = {.addr = begin,
                                     .len = len,
                                     .pages = (uintptr_t)m->pages,
                                     .capacity = (uint32_t)(len / PAGE)};

    if (ioctl(k->fd, GPUNVME_IOC_MAP_USER, &a)) {
        if (errno == ENOMEM)
            return base_fail(GPUNVME_ERR_NOMEM,
                             "%llu bytes can't be pinned: raise the limit of locked memory "
                             "(ulimit -l)",
                             (unsigned long long)len);
        return fail_ioctl(k, "mapping host memory");
    }
    m->handle = a.handle;
    return GPUNVME_OK;
}

static gpunvme_err_t map_gpu(struct kmod_transport *k, int fd, uint64_t offset, uint64_t len,
                             struct mapping *m)
{
    struct gpunvme_ioc_map_dmabuf a = {.fd = fd,
                                       .offset = offset,
                                       .len = len,
                                       .pages = (uintptr_t)m->pages,
                                       .capacity = (uint32_t)(len / PAGE)};

    if (ioctl(k->fd, GPUNVME_IOC_MAP_DMABUF, &a))
        return fail_ioctl(k, "mapping GPU memory by dma-buf");
    m->handle = a.handle;
    return GPUNVME_OK;
}

static bool is_contiguous(const struct mapping *m, uint64_t npages)
{
    for (uint64_t i = 1; i < npages; i++) {
        if (m->pages[i] != m->pages[0] + i * PAGE)
            return false;
    }
    return true;
}

/* Sets the bus addresses of a buffer that begins `within` the first of `npages` pages. */
static gpunvme_err_t describe(struct gpunvme_buf *buf, struct mapping *m, uint64_t within,
                              uint64_t npages)
{
    if (is_contiguous(m, npages)) {
        buf->bus = m->pages[0] + within;
    } else if (!within) {
        buf->bus = m->pages[0];
        buf->bus_pages = m->pages;
        buf->bus_page_shift = 12;
    } else {
        return base_fail(GPUNVME_ERR_ALIGN,
                         "memory that isn't contiguous on the bus must begin at a multiple of "
                         "4096 bytes");
    }
    m->next = buf->transport_private;
    buf->transport_private = m;
    return GPUNVME_OK;
}

static void forget(struct kmod_transport *k, struct mapping *m)
{
    struct gpunvme_ioc_unmap a = {.handle = m->handle};

    if (m->handle && k->fd >= 0)
        ioctl(k->fd, GPUNVME_IOC_UNMAP, &a); /* fails where removal has unmapped it */
    free(m);
}

static gpunvme_err_t map(struct gpunvme_transport *t, struct gpunvme_buf *buf)
{
    struct kmod_transport *k = of(t);
    bool gpu = buf->mem == GPUNVME_MEM_GPU && !buf->cpu;
    uint64_t unit = gpu ? PAGE : (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t first = (uintptr_t)buf->cpu, begin, len;
    struct mapping *m;
    gpunvme_err_t err;
    int fd = -1;

    if (buf->bus)
        return base_fail(GPUNVME_ERR_BUSY, "the buffer has a bus address already");
    err = gpu ? gpunvme_mem_export(buf, &fd, &first) : GPUNVME_OK;
    if (err)
        return err;
    begin = first & ~(unit - 1);
    len = ((first + buf->nbytes + unit - 1) & ~(unit - 1)) - begin;
    if (len > GPUNVME_IOC_MAX_LEN)
        err = base_fail(GPUNVME_ERR_LIMIT, "a buffer of more than 16 GiB");
    m = err ? NULL : calloc(1, sizeof(*m) + len / PAGE * sizeof(m->pages[0]));
    if (!err && !m)
        err = base_fail(GPUNVME_ERR_NOMEM, "a list of bus addresses");
    if (!err)
        err = gpu ? map_gpu(k, fd, begin, len, m) : map_host(k, begin, len, m);
    if (fd >= 0)
        close(fd);
    if (!err)
        err = describe(buf, m, first - begin, len / PAGE);
    if (err && m)
        forget(k, m);
    return err;
}

static void unmap(struct gpunvme_transport *t, struct gpunvme_buf *buf)
{
    struct mapping *m = buf->transport_private;

    if (!buf->bus || !m)
        return;
    buf->transport_private = m->next;
    buf->bus = 0;
    buf->bus_pages = NULL;
    buf->bus_page_shift = 0;
    forget(of(t), m);
}

/* map and unmap of memory that must be contiguous; `t` is the member `whole`. */
static struct kmod_transport *of_whole(struct gpunvme_transport *t)
{
    return (struct kmod_transport *)((char *)t - offsetof(struct kmod_transport, whole));
}

static void unmap_whole(struct gpunvme_transport *t, struct gpunvme_buf *buf)
{
    unmap(&of_whole(t)->base, buf);
}

static gpunvme_err_t map_whole(struct gpunvme_transport *t, struct gpunvme_buf *buf)
{
    gpunvme_err_t err = map(&of_whole(t)->base, buf);

    if (err || !buf->bus_pages)
        return err;
    unmap_whole(t, buf);
    return base_fail(GPUNVME_ERR_NOMEM, "2 MiB that are contiguous on the bus: reserve huge pages "
                                        "(sysctl vm.nr_hugepages=16), or turn the IOMMU on");
}

static const struct gpunvme_transport_ops whole_ops = {
    .name = "kmod", .map = map_whole, .unmap = unmap_whole};

static gpunvme_err_t alloc(struct gpunvme_transport *t, size_t nbytes, enum gpunvme_mem mem,
                           struct gpunvme_buf *buf)
{
    struct kmod_transport *k = of(t);
    gpunvme_err_t err;

    if (mem == GPUNVME_MEM_GPU || nbytes > CONTIGUOUS)
        return transport_memory_alloc(&k->any, nbytes, mem, buf);
    err = transport_memory_alloc(&k->huge, nbytes, mem, buf);
    return err == GPUNVME_ERR_NOMEM ? transport_memory_alloc(&k->lucky, nbytes, mem, buf) : err;
}

static void free_(struct gpunvme_transport *t, struct gpunvme_buf *buf)
{
    struct kmod_transport *k = of(t);

    transport_memory_free(&k->huge, buf); /* each does nothing to a buffer of another's */
    if (buf->nbytes)
        transport_memory_free(&k->lucky, buf);
    if (buf->nbytes)
        transport_memory_free(&k->any, buf);
}

/* --- interrupts, reset, close ----------------------------------------------------------------- */

static gpunvme_err_t irq_setup(struct gpunvme_transport *t, uint32_t wanted, uint32_t *granted)
{
    struct kmod_transport *k = of(t);
    struct gpunvme_ioc_info info;
    struct gpunvme_ioc_irq a = {0};
    int32_t *fds = NULL;
    gpunvme_err_t err;

    if (k->irqs)
        return base_fail(GPUNVME_ERR_BUSY, "the interrupts are set up already");
    if (ioctl(k->fd, GPUNVME_IOC_INFO, &info))
        return fail_ioctl(k, "its description");
    a.wanted = wanted < info.nvectors ? wanted : info.nvectors;
    if (!a.wanted)
        return base_fail(GPUNVME_ERR_UNSUPPORTED, "%s: no MSI-X", k->path);
    fds = calloc(a.wanted, sizeof(*fds));
    err = fds ? transport_irqs_create(a.wanted, &k->irqs)
              : base_fail(GPUNVME_ERR_NOMEM, "%u interrupt vectors", a.wanted);
    for (uint32_t i = 0; !err && i < a.wanted; i++)
        fds[i] = k->irqs[i].fd;
    a.fds = (uintptr_t)fds;
    if (!err && ioctl(k->fd, GPUNVME_IOC_IRQ, &a)) {
        err = fail_ioctl(k, "interrupts");
        transport_irqs_destroy(k->irqs, a.wanted);
        k->irqs = NULL;
    }
    free(fds);
    if (err)
        return err;
    k->nirqs = a.wanted;
    *granted = a.granted;
    return GPUNVME_OK;
}

static gpunvme_err_t irq_wait(struct gpunvme_transport *t, uint32_t vector, uint64_t *seen,
                              uint64_t timeout_ns)
{
    struct kmod_transport *k = of(t);

    if (vector >= k->nirqs)
        return base_fail(GPUNVME_ERR_INVALID, "interrupt vector %u of %u", vector, k->nirqs);
    return transport_irq_wait(&k->irqs[vector], seen, timeout_ns);
}

static gpunvme_err_t reset(struct gpunvme_transport *t)
{
    struct kmod_transport *k = of(t);
    struct gpunvme_ioc_reset a = {0};

    return ioctl(k->fd, GPUNVME_IOC_RESET, &a) ? fail_ioctl(k, "function reset") : GPUNVME_OK;
}

/*
 * First the file is closed: the module stops the controller, which may still run, and only then
 * lets go of the memory. The registers' mapping keeps the file open as well.
 */
static void close_(struct gpunvme_transport *t)
{
    struct kmod_transport *k = of(t);

    if (k->regs)
        munmap(k->regs, k->regs_nbytes);
    if (k->fd >= 0)
        close(k->fd);
    k->fd = -1; /* there is nothing to unmap any more */
    transport_memory_destroy(&k->any);
    transport_memory_destroy(&k->lucky);
    transport_memory_destroy(&k->huge);
    transport_irqs_destroy(k->irqs, k->nirqs);
    free(k);
}

static const struct gpunvme_transport_ops ops = {
    .name = "kmod",
    .read32 = read32,
    .read64 = read64,
    .write32 = write32,
    .write64 = write64,
    .map = map,
    .unmap = unmap,
    .alloc = alloc,
    .free = free_,
    .copy_to = transport_copy_to,
    .copy_from = transport_copy_from,
    .now_ns = transport_now_ns,
    .pause_ns = transport_pause_ns,
    .irq_setup = irq_setup,
    .irq_wait = irq_wait,
    .reset = reset,
    .close = close_,
};

static gpunvme_err_t open_device(struct kmod_transport *k)
{
    struct gpunvme_ioc_info info;

    k->fd = open(k->path, O_RDWR | O_CLOEXEC);
    if (k->fd < 0 && errno == EPERM)
        return base_fail(GPUNVME_ERR_PERMISSION,
                         "%s: without an IOMMU (off, or iommu=pt) it gives access to all memory: "
                         "turn the IOMMU on, or run as root on a kernel that isn't locked down",
                         k->path);
    if (k->fd < 0)
        return base_fail_errno(errno, "%s", k->path);
    if (ioctl(k->fd, GPUNVME_IOC_INFO, &info))
        return fail_ioctl(k, "its description");
    if (info.version != GPUNVME_IOC_VERSION)
        return base_fail(GPUNVME_ERR_UNSUPPORTED,
                         "the kernel module speaks version %u, this library %u: install the "
                         "module that came with it",
                         info.version, GPUNVME_IOC_VERSION);
    k->regs = mmap(NULL, info.mmap_len, PROT_READ | PROT_WRITE, MAP_SHARED, k->fd, 0);
    if (k->regs == MAP_FAILED) {
        k->regs = NULL;
        return fail_ioctl(k, "mapping the registers");
    }
    k->regs_nbytes = info.mmap_len;
    return GPUNVME_OK;
}

gpunvme_err_t transport_kmod_open(const struct pci_function *f, struct gpunvme_transport **out)
{
    struct kmod_transport *k = calloc(1, sizeof(*k));
    gpunvme_err_t err;

    if (!k)
        return base_fail(GPUNVME_ERR_NOMEM, "a transport");
    k->base.ops = &ops;
    k->whole.ops = &whole_ops;
    transport_memory_init(&k->huge, &k->whole, GPUNVME_BACKING_HUGE);
    transport_memory_init(&k->lucky, &k->whole, GPUNVME_BACKING_ANY);
    transport_memory_init(&k->any, &k->base, GPUNVME_BACKING_ANY);
    snprintf(k->path, sizeof(k->path), "/dev/gpunvme/%s", f->bdf);
    err = open_device(k);
    if (err) {
        close_(&k->base);
        return err;
    }
    if (k->regs_nbytes > DOORBELLS) {
        k->base.doorbells = (volatile uint32_t *)(k->regs + DOORBELLS);
        k->base.doorbells_nbytes = k->regs_nbytes - DOORBELLS;
    }
    *out = &k->base;
    return GPUNVME_OK;
}
