/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Controllers on machines without an IOMMU, by what the kernel shows of a PCI function in sysfs:
 * registers by mapping resource0, memory in huge pages, whose physical addresses are bus
 * addresses. As "sysfs" the function has no driver; as "uio" it has uio_pci_generic, which adds
 * the function's INTx interrupt.
 *
 * What this asks of the machine: root (physical addresses need CAP_SYS_ADMIN), reserved huge
 * pages, no IOMMU that translates. What it can't give: isolation. The controller can write
 * anywhere in memory, so memory that it may write to must not be freed before it is stopped, even
 * if this process is killed: guard.h. Nor can it survive a function that is removed while its
 * registers are in use: the kernel takes the mapping away (SIGBUS). vfio has neither weakness.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/fail.h"
#include "gpunvme/atomics.h"
#include "gpunvme/nvme.h"
#include "transport/common.h"
#include "transport/guard.h"
#include "transport/irq.h"
#include "transport/transports.h"

#define DOORBELLS 0x1000 /* NVMe PCIe transport specification 1.0, 3.1.2.1: SQ0TDBL */

/* /proc/PID/pagemap, an entry of 64 bits for each page: Linux, admin-guide/mm/pagemap.rst. */
#define PAGEMAP_PRESENT (UINT64_C(1) << 63)
#define PAGEMAP_FRAME   ((UINT64_C(1) << 55) - 1)

struct sysfs_transport {
    struct gpunvme_transport base;
    struct pci_function f;
    char *bar0;
    size_t bar0_nbytes;
    int config_fd, pagemap_fd;
    bool enabled; /* by us, in sysfs */
    struct guard guard;
    struct transport_memory memory;

    int uio_fd; /* -1: no driver, no interrupt */
    uint32_t uio_count;
    struct transport_irq *irq;
};

/* What a buffer's transport_private points to while it is mapped. */
struct mapping {
    void *bar; /* map_bar: the mapping that the buffer is a part of; else NULL */
    size_t bar_nbytes;
    unsigned slot;    /* of the guard */
    uint64_t pages[]; /* bus addresses, for bus_pages */
};

static struct sysfs_transport *of(struct gpunvme_transport *t)
{
    return (struct sysfs_transport *)t;
}

/* --- registers -------------------------------------------------------------------------------- */

static gpunvme_err_t outside(const struct sysfs_transport *s, uint32_t offset)
{
    return base_fail(GPUNVME_ERR_INVALID, "register %xh of %s: BAR0 has %zu bytes", offset,
                     s->f.bdf, s->bar0_nbytes);
}

static gpunvme_err_t read32(struct gpunvme_transport *t, uint32_t offset, uint32_t *value)
{
    struct sysfs_transport *s = of(t);

    if (offset > s->bar0_nbytes - 4)
        return outside(s, offset);
    *value = *(volatile uint32_t *)(void *)(s->bar0 + offset);
    return GPUNVME_OK;
}

static gpunvme_err_t read64(struct gpunvme_transport *t, uint32_t offset, uint64_t *value)
{
    struct sysfs_transport *s = of(t);

    if (offset > s->bar0_nbytes - 8)
        return outside(s, offset);
    *value = *(volatile uint64_t *)(void *)(s->bar0 + offset);
    return GPUNVME_OK;
}

static gpunvme_err_t write32(struct gpunvme_transport *t, uint32_t offset, uint32_t value)
{
    struct sysfs_transport *s = of(t);

    if (offset > s->bar0_nbytes - 4)
        return outside(s, offset);
    *(volatile uint32_t *)(void *)(s->bar0 + offset) = value;
    return GPUNVME_OK;
}

static gpunvme_err_t write64(struct gpunvme_transport *t, uint32_t offset, uint64_t value)
{
    struct sysfs_transport *s = of(t);

    if (offset > s->bar0_nbytes - 8)
        return outside(s, offset);
    *(volatile uint64_t *)(void *)(s->bar0 + offset) = value;
    return GPUNVME_OK;
}

/* Maps bytes `offset` … of a BAR; offset is a multiple of the page size, nbytes 0 means all. */
static gpunvme_err_t map_resource(const struct pci_function *f, unsigned bir, uint64_t offset,
                                  size_t *nbytes, void **out)
{
    char name[16];
    struct stat st;
    int fd;
    gpunvme_err_t err;

    snprintf(name, sizeof(name), "resource%u", bir);
    err = pci_open_attr(f, name, O_RDWR | O_SYNC, &fd);
    if (err)
        return err;
    if (fstat(fd, &st))
        err = base_fail_errno(errno, "%s/%s", f->path, name);
    else if (*nbytes > (uint64_t)st.st_size || offset > (uint64_t)st.st_size - *nbytes)
        err = base_fail(GPUNVME_ERR_INVALID, "%zu bytes at %llu of BAR %u, which has %llu", *nbytes,
                        (unsigned long long)offset, bir, (unsigned long long)st.st_size);
    if (!err) {
        if (!*nbytes)
            *nbytes = (size_t)st.st_size;
        *out = mmap(NULL, *nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)offset);
        if (*out == MAP_FAILED)
            err = base_fail_errno(errno,
                                  "BAR %u of %s (a kernel in lockdown, as with Secure Boot, "
                                  "lets no program map it)",
                                  bir, f->bdf);
    }
    close(fd);
    return err;
}

static gpunvme_err_t map_bar(struct gpunvme_transport *t, unsigned bir, uint64_t offset,
                             size_t nbytes, struct gpunvme_buf *buf)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), lead = offset & (page - 1);
    struct mapping *m = calloc(1, sizeof(*m));
    gpunvme_err_t err;

    if (!m)
        return base_fail(GPUNVME_ERR_NOMEM, "a mapping");
    m->bar_nbytes = nbytes + lead;
    err = map_resource(&of(t)->f, bir, offset - lead, &m->bar_nbytes, &m->bar);
    if (err) {
        free(m);
        return err;
    }
    *buf = (struct gpunvme_buf){.cpu = (char *)m->bar + lead,
                                .nbytes = nbytes,
                                .mem = GPUNVME_MEM_HOST,
                                .transport_private = m};
    return GPUNVME_OK;
}

/* --- memory ----------------------------------------------------------------------------------- */

/* The physical address of a byte of this process that is in memory. */
static gpunvme_err_t physical(const struct sysfs_transport *s, const void *cpu, uint64_t *address)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)cpu, entry;

    if (pread(s->pagemap_fd, &entry, sizeof(entry), (off_t)(at / page * sizeof(entry))) !=
        sizeof(entry))
        return base_fail_errno(errno, "/proc/self/pagemap");
    if (!(entry & PAGEMAP_PRESENT))
        return base_fail(GPUNVME_ERR_UNSUPPORTED, "the page at %p is not in memory", cpu);
    if (!(entry & PAGEMAP_FRAME))
        return base_fail(GPUNVME_ERR_PERMISSION,
                         "the kernel hides physical addresses from this process: run it as root "
                         "(CAP_SYS_ADMIN), or use vfio");
    *address = (entry & PAGEMAP_FRAME) * page + at % page;
    return GPUNVME_OK;
}

/*
 * Only memory that consists of reserved huge pages and has a file: other pages may move to
 * another physical address at any time, and without a file the guard couldn't hold them.
 */
static gpunvme_err_t huge_file(const struct gpunvme_buf *buf, int *fd, size_t *page, uint64_t *lead)
{
    struct statfs fs;
    gpunvme_err_t err;

    if (!buf->cpu)
        return base_fail(GPUNVME_ERR_UNSUPPORTED, "without vfio or the kernel module no controller "
                                                  "is led to GPU memory");
    err = gpunvme_mem_export(buf, fd, lead);
    if (err == GPUNVME_OK && !fstatfs(*fd, &fs) && fs.f_type == HUGETLBFS_MAGIC) {
        *page = (size_t)fs.f_bsize;
        return GPUNVME_OK;
    }
    if (err == GPUNVME_OK)
        close(*fd);
    return base_fail(GPUNVME_ERR_UNSUPPORTED,
                     "without an IOMMU only reserved huge pages keep their physical address: "
                     "allocate the memory as GPUNVME_BACKING_HUGE, or by the transport");
}

/* Fills in the bus addresses: one, or one for each huge page where those aren't neighbours. */
static gpunvme_err_t look_up(const struct sysfs_transport *s, struct mapping *m, size_t npages,
                             size_t page, struct gpunvme_buf *buf)
{
    bool contiguous = true;
    gpunvme_err_t err = GPUNVME_OK;

    for (size_t i = 0; i < npages && !err; i++) {
        err = physical(s, (char *)buf->cpu + i * page, &m->pages[i]);
        if (!err && i && m->pages[i] != m->pages[i - 1] + page)
            contiguous = false;
    }
    if (err)
        return err;
    buf->bus = m->pages[0];
    if (!contiguous) {
        buf->bus_pages = m->pages;
        buf->bus_page_shift = (unsigned)__builtin_ctzl(page);
    }
    return GPUNVME_OK;
}

static gpunvme_err_t map_file(struct sysfs_transport *s, int fd, size_t page, uint64_t lead,
                              struct gpunvme_buf *buf)
{
    size_t npages = (buf->nbytes + page - 1) / page;
    struct mapping *m;
    gpunvme_err_t err;

    if (lead % page && lead % page + buf->nbytes > page)
        return base_fail(GPUNVME_ERR_ALIGN, "the buffer does not begin where a huge page does");
    m = calloc(1, sizeof(*m) + npages * sizeof(m->pages[0]));
    if (!m)
        return base_fail(GPUNVME_ERR_NOMEM, "a mapping of %zu pages", npages);
    err = guard_hold(&s->guard, fd, &m->slot);
    if (!err) {
        err = look_up(s, m, npages, page, buf);
        if (err)
            guard_drop(&s->guard, m->slot);
    }
    if (err)
        free(m);
    else
        buf->transport_private = m;
    return err;
}

static gpunvme_err_t map(struct gpunvme_transport *t, struct gpunvme_buf *buf)
{
    size_t page = 0;
    uint64_t lead = 0;
    int fd;
    gpunvme_err_t err;

    if (buf->bus)
        return base_fail(GPUNVME_ERR_BUSY, "the buffer has a bus address already");
    err = huge_file(buf, &fd, &page, &lead);
    if (err)
        return err;
    err = map_file(of(t), fd, page, lead, buf);
    close(fd);
    return err;
}

static void unmap(struct gpunvme_transport *t, struct gpunvme_buf *buf)
{
    struct mapping *m = buf->transport_private;

    if (!m)
        return;
    if (m->bar) {
        munmap(m->bar, m->bar_nbytes);
        buf->cpu = NULL;
    } else {
        guard_drop(&of(t)->guard, m->slot);
    }
    free(m);
    buf->bus = 0;
    buf->bus_pages = NULL;
    buf->bus_page_shift = 0;
    buf->transport_private = NULL;
}

static gpunvme_err_t alloc(struct gpunvme_transport *t, size_t nbytes, enum gpunvme_mem mem,
                           struct gpunvme_buf *buf)
{
    return transport_memory_alloc(&of(t)->memory, nbytes, mem, buf);
}

static void free_(struct gpunvme_transport *t, struct gpunvme_buf *buf)
{
    transport_memory_free(&of(t)->memory, buf);
}

/* --- the interrupt ---------------------------------------------------------------------------- */

/*
 * uio_pci_generic's handler turns INTx off in the command register, since it can't know how to
 * silence the controller; whoever waits turns it on again (Linux, driver-api/uio-howto.rst). Only
 * the high byte of the register is written, as bus mastering is in the low one.
 */
static bool intx(const struct sysfs_transport *s, bool on)
{
    const uint8_t off = PCI_COMMAND_INTX_OFF >> 8;
    uint8_t high;

    if (pread(s->config_fd, &high, 1, PCI_COMMAND + 1) != 1)
        return false;
    high = (uint8_t)(on ? high & ~off : high | off);
    return pwrite(s->config_fd, &high, 1, PCI_COMMAND + 1) == 1;
}

/* The interrupt's level is still there if a queue has entries that nobody took: none is lost. */
static uint64_t watch(struct transport_irq *irq, uint64_t timeout_ns)
{
    struct sysfs_transport *s = irq->owner;
    struct timespec ts = {.tv_sec = (time_t)(timeout_ns / 1000000000u),
                          .tv_nsec = (long)(timeout_ns % 1000000000u)};
    struct pollfd p = {.fd = s->uio_fd, .events = POLLIN};
    uint32_t count, fired;

    intx(s, true);
    if (ppoll(&p, 1, &ts, NULL) <= 0 || read(s->uio_fd, &count, sizeof(count)) != sizeof(count))
        return 0;
    fired = count - s->uio_count;
    s->uio_count = count;
    return fired;
}

static gpunvme_err_t irq_setup(struct gpunvme_transport *t, uint32_t wanted, uint32_t *granted)
{
    struct sysfs_transport *s = of(t);

    (void)wanted;
    *granted = 1;
    if (!s->irq) {
        gpunvme_err_t err = transport_irqs_create(1, &s->irq);

        if (err)
            return err;
        s->irq->watch = watch;
        s->irq->owner = s;
    }
    return GPUNVME_OK;
}

static gpunvme_err_t irq_wait(struct gpunvme_transport *t, uint32_t vector, uint64_t *seen,
                              uint64_t timeout_ns)
{
    if (vector || !of(t)->irq)
        return base_fail(GPUNVME_ERR_INVALID, "interrupt vector %u was not set up", vector);
    return transport_irq_wait(of(t)->irq, seen, timeout_ns);
}

/* --- opening and closing ---------------------------------------------------------------------- */

static gpunvme_err_t write_attr(const struct pci_function *f, const char *name, const char *text)
{
    int fd;
    gpunvme_err_t err = pci_open_attr(f, name, O_WRONLY, &fd);

    if (err)
        return err;
    if (write(fd, text, strlen(text)) < 0)
        err = base_fail_errno(errno, "%s/%s", f->path, name);
    close(fd);
    return err;
}

/* The read is answered behind all that the function has still sent (PCIe ordering). */
static gpunvme_err_t bus_master(struct gpunvme_transport *t, bool on)
{
    struct sysfs_transport *s = of(t);
    gpunvme_err_t err =
        pci_command(&s->f, on ? PCI_COMMAND_MASTER : 0, on ? 0 : PCI_COMMAND_MASTER);
    uint32_t flush;

    if (!err && !on)
        (void)!pread(s->config_fd, &flush, sizeof(flush), PCI_COMMAND);
    return err;
}

/* The kernel keeps what configuration space says, bus mastering included. */
static gpunvme_err_t reset(struct gpunvme_transport *t)
{
    gpunvme_err_t err = write_attr(&of(t)->f, "reset", "1");

    if (err == GPUNVME_ERR_NOT_FOUND)
        return base_fail(GPUNVME_ERR_UNSUPPORTED, "%s can't be reset", of(t)->f.bdf);
    return err;
}

/* Stops the controller's access to memory before any of it is given back. */
static void close_(struct gpunvme_transport *t)
{
    struct sysfs_transport *s = of(t);

    if (s->config_fd >= 0)
        pci_command(&s->f, PCI_COMMAND_INTX_OFF, PCI_COMMAND_MASTER);
    transport_memory_destroy(&s->memory);
    guard_stop(&s->guard);
    transport_irqs_destroy(s->irq, 1);
    if (s->bar0)
        munmap(s->bar0, s->bar0_nbytes);
    if (s->enabled)
        write_attr(&s->f, "enable", "0");
    if (s->uio_fd >= 0)
        close(s->uio_fd);
    if (s->pagemap_fd >= 0)
        close(s->pagemap_fd);
    if (s->config_fd >= 0) {
        flock(s->config_fd, LOCK_UN); /* the guard may have its copy a moment longer */
        close(s->config_fd);
    }
    free(s);
}

static const struct gpunvme_transport_ops sysfs_ops = {
    .name = "sysfs",
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
    .map_bar = map_bar,
    .bus_master = bus_master,
    .reset = reset,
    .close = close_,
};

static const struct gpunvme_transport_ops uio_ops = {
    .name = "uio",
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
    .map_bar = map_bar,
    .bus_master = bus_master,
    .reset = reset,
    .close = close_,
};

/* Where an IOMMU translates, a physical address is not what the controller must be given. */
static gpunvme_err_t refuse_iommu(const struct pci_function *f)
{
    char group[32], type[32];
    gpunvme_err_t err = pci_read_link(f, "iommu_group", group, sizeof(group));

    if (err || !group[0])
        return err;
    if (!pci_read_attr(f, "iommu_group/type", type, sizeof(type)) && !strcmp(type, "identity"))
        return GPUNVME_OK;
    return base_fail(GPUNVME_ERR_UNSUPPORTED,
                     "an IOMMU translates for %s (group %s): bind it to vfio-pci, which works with "
                     "that",
                     f->bdf, group);
}

/*
 * A controller that was left enabled may still have queues in memory that is somebody else's now:
 * it is disabled before it may reach memory.
 */
static gpunvme_err_t quiesce(struct sysfs_transport *s)
{
    uint64_t cap = 0, start = gpunvme_clock_ns(), limit;
    uint32_t cc = 0, csts = UINT32_MAX;

    read64(&s->base, GPUNVME_REG_CAP, &cap);
    read32(&s->base, GPUNVME_REG_CC, &cc);
    read32(&s->base, GPUNVME_REG_CSTS, &csts);
    if (csts == UINT32_MAX)
        return base_fail(GPUNVME_ERR_REMOVED, "%s does not answer", s->f.bdf);
    if (!(cc & 1) && !(csts & 1))
        return GPUNVME_OK;
    limit = (((cap >> GPUNVME_CAP_TO_SHIFT) & 0xff) + 1) *
            UINT64_C(500000000); /* CAP.TO, in units of 500 ms */
    write32(&s->base, GPUNVME_REG_CC, cc & ~1u);
    while (csts & 1) {
        if (gpunvme_clock_ns() - start > limit)
            return reset(&s->base);
        transport_pause_ns(&s->base, 1000000);
        read32(&s->base, GPUNVME_REG_CSTS, &csts);
    }
    return GPUNVME_OK;
}

/*
 * Two programs on one controller would take each other's queues and memory away. The lock is on the
 * configuration space's file, of which the guard has a copy: after a program that was killed it is
 * held until the controller reaches no memory any more.
 */
static gpunvme_err_t lock_function(struct sysfs_transport *s)
{
    gpunvme_err_t err = pci_open_attr(&s->f, "config", O_RDWR, &s->config_fd);
    int error;

    if (err || !flock(s->config_fd, LOCK_EX | LOCK_NB))
        return err;
    error = errno;
    close(s->config_fd);
    s->config_fd = -1; /* so that closing changes nothing of the other's */
    if (error == EWOULDBLOCK)
        return base_fail(GPUNVME_ERR_BUSY, "%s is in use: a program drives it through sysfs or uio",
                         s->f.bdf);
    return base_fail_errno(error, "a lock on %s/config", s->f.path);
}

static gpunvme_err_t open_uio(struct sysfs_transport *s)
{
    char path[512];
    struct dirent *entry;
    DIR *dir;

    snprintf(path, sizeof(path), "%s/uio", s->f.path);
    dir = opendir(path);
    if (!dir)
        return base_fail_errno(errno, "%s", path);
    path[0] = 0;
    while ((entry = readdir(dir))) {
        if (!strncmp(entry->d_name, "uio", 3))
            snprintf(path, sizeof(path), "/dev/%.64s", entry->d_name);
    }
    closedir(dir);
    if (!path[0])
        return base_fail(GPUNVME_ERR_NOT_FOUND, "%s/uio is empty", s->f.path);
    s->uio_fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
    return s->uio_fd < 0 ? base_fail_errno(errno, "%s", path) : GPUNVME_OK;
}

/* A function without a driver may sleep, or not answer: "enable" wakes it. */
static gpunvme_err_t enable(struct sysfs_transport *s)
{
    char text[16];
    gpunvme_err_t err = pci_read_attr(&s->f, "enable", text, sizeof(text));

    if (!err && !strcmp(text, "0")) {
        err = write_attr(&s->f, "enable", "1");
        s->enabled = !err;
    }
    return err;
}

static gpunvme_err_t open_all(struct sysfs_transport *s, bool uio)
{
    void *bar0 = NULL;
    gpunvme_err_t err = refuse_iommu(&s->f);

    if (!err)
        err = lock_function(s);
    if (!err)
        err = uio ? open_uio(s) : enable(s);
    if (!err)
        err = pci_command(&s->f, PCI_COMMAND_MEMORY | PCI_COMMAND_INTX_OFF, PCI_COMMAND_MASTER);
    if (!err)
        err = map_resource(&s->f, 0, 0, &s->bar0_nbytes, &bar0);
    if (err)
        return err;
    s->bar0 = bar0;
    if (s->bar0_nbytes < DOORBELLS + 8)
        return base_fail(GPUNVME_ERR_PROTOCOL, "BAR0 of %s has only %zu bytes", s->f.bdf,
                         s->bar0_nbytes);
    s->pagemap_fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    if (s->pagemap_fd < 0)
        return base_fail_errno(errno, "/proc/self/pagemap");
    err = quiesce(s);
    if (!err)
        err = guard_start(&s->guard, s->config_fd);
    if (!err)
        err = pci_command(&s->f, PCI_COMMAND_MASTER, 0);
    return err;
}

static gpunvme_err_t open_(const struct pci_function *f, bool uio, struct gpunvme_transport **out)
{
    struct sysfs_transport *s = calloc(1, sizeof(*s));
    gpunvme_err_t err;

    if (!s)
        return base_fail(GPUNVME_ERR_NOMEM, "a transport");
    s->base.ops = uio ? &uio_ops : &sysfs_ops;
    s->f = *f;
    s->config_fd = s->pagemap_fd = s->uio_fd = s->guard.socket = -1;
    transport_memory_init(&s->memory, &s->base, GPUNVME_BACKING_HUGE);
    err = open_all(s, uio);
    if (err) {
        struct base_failure failure;

        base_keep(&failure, err);
        close_(&s->base);
        return base_restore(&failure);
    }
    s->base.doorbells = (volatile uint32_t *)(void *)(s->bar0 + DOORBELLS);
    s->base.doorbells_nbytes = s->bar0_nbytes - DOORBELLS;
    *out = &s->base;
    return GPUNVME_OK;
}

gpunvme_err_t transport_sysfs_open(const struct pci_function *f, struct gpunvme_transport **out)
{
    if (f->driver[0])
        return base_fail(GPUNVME_ERR_BUSY,
                         "%s is bound to %s: via=sysfs is for a function without "
                         "a driver",
                         f->bdf, f->driver);
    return open_(f, false, out);
}

gpunvme_err_t transport_uio_open(const struct pci_function *f, struct gpunvme_transport **out)
{
    if (strcmp(f->driver, "uio_pci_generic"))
        return base_fail(GPUNVME_ERR_BUSY, "%s is not bound to uio_pci_generic", f->bdf);
    return open_(f, true, out);
}
