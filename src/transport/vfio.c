/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The transport to a function that vfio-pci has: registers by a mapping of BAR0, bus addresses by
 * the IOMMU, which keeps the controller away from all memory that was not mapped for it.
 *
 * When the function goes. The kernel takes it from its driver in two cases: it was pulled out, or
 * somebody wants it for another driver. In both it signals the request interrupt and then waits,
 * for as long as it takes, until this process has closed the function. Until then the BARs stay
 * mapped: a read of a function that is no longer there is completed by the PCIe root port, with
 * ones, and a write is dropped. A fault (SIGBUS) comes only of an access while memory space is
 * switched off in the command register, which nothing here ever does; during a function reset
 * accesses wait in the kernel. So doorbells can be rung at any time, and registers read as ones
 * from the request on, whatever the hardware says, by which the driver ends everything and the
 * caller lets go.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/vfio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/fail.h"
#include "transport/transports.h"
#include "transport/vfio.h"

#define DOORBELLS 0x1000u /* NVMe over PCIe Transport 1.0 section 3.1.2: behind the properties */

/* --- registers -------------------------------------------------------------------------------- */

/* Sets and clears bits of the command register, as vfio-pci shows it. */
static gpunvme_err_t command(struct vfio_transport *v, uint16_t set, uint16_t clear)
{
    off_t at = (off_t)(v->config.offset + PCI_COMMAND);
    uint16_t value;

    if (pread(v->device, &value, 2, at) == 2) {
        value = (uint16_t)((value | set) & ~clear);
        if (pwrite(v->device, &value, 2, at) == 2)
            return GPUNVME_OK;
    }
    return base_fail_errno(errno, "%s: the command register", v->function.bdf);
}

/*
 * Whoever takes the request out of the eventfd makes the controller quiet before anybody sees the
 * ones: the driver takes them for a controller that no longer moves bytes, and ends commands whose
 * memory their owners then use again. The read that follows is answered by the function after all
 * that it has still sent (PCIe ordering), so nothing is on its way behind it.
 */
static bool is_gone(struct vfio_transport *v)
{
    uint32_t flush;
    uint64_t count;

    if (atomic_load_explicit(&v->gone, memory_order_relaxed))
        return true;
    if (v->request < 0 || read(v->request, &count, sizeof(count)) != sizeof(count))
        return false;
    pthread_mutex_lock(&v->lock);
    if (!command(v, 0, PCI_COMMAND_MASTER))
        (void)!pread(v->device, &flush, 4, (off_t)(v->config.offset + PCI_COMMAND));
    atomic_store(&v->gone, true);
    pthread_mutex_unlock(&v->lock);
    return true;
}

/* Where the register is mapped; NULL: it is reached through the device's file. */
static volatile uint32_t *mapped(const struct vfio_transport *v, uint32_t offset)
{
    for (unsigned i = 0; i < v->bar0.nareas; i++) {
        const struct vfio_area *area = &v->bar0.areas[i];

        if (offset >= area->offset && offset - area->offset <= area->nbytes - 4)
            return (volatile uint32_t *)(area->cpu + (offset - area->offset));
    }
    return NULL;
}

static gpunvme_err_t check_register(const struct vfio_transport *v, uint32_t offset)
{
    if (offset % 4 || offset + UINT64_C(4) > v->bar0.nbytes)
        return base_fail(GPUNVME_ERR_INVALID, "register %xh: BAR0 has %llu bytes", offset,
                         (unsigned long long)v->bar0.nbytes);
    return GPUNVME_OK;
}

static gpunvme_err_t read32(struct gpunvme_transport *t, uint32_t offset, uint32_t *value)
{
    struct vfio_transport *v = vfio_of(t);
    volatile uint32_t *reg = mapped(v, offset);
    gpunvme_err_t err = check_register(v, offset);

    if (err)
        return err;
    *value = UINT32_MAX;
    if (is_gone(v))
        return GPUNVME_OK;
    if (reg)
        *value = *reg;
    else if (pread(v->device, value, 4, (off_t)(v->bar0.offset + offset)) != 4)
        return base_fail_errno(errno, "%s: register %xh", t->address, offset);
    return GPUNVME_OK;
}

static gpunvme_err_t write32(struct gpunvme_transport *t, uint32_t offset, uint32_t value)
{
    struct vfio_transport *v = vfio_of(t);
    volatile uint32_t *reg = mapped(v, offset);
    gpunvme_err_t err = check_register(v, offset);

    if (err)
        return err;
    if (is_gone(v))
        return GPUNVME_OK;
    if (reg)
        *reg = value;
    else if (pwrite(v->device, &value, 4, (off_t)(v->bar0.offset + offset)) != 4)
        return base_fail_errno(errno, "%s: register %xh", t->address, offset);
    return GPUNVME_OK;
}

/* In two halves, as some controllers want it. */
static gpunvme_err_t read64(struct gpunvme_transport *t, uint32_t offset, uint64_t *value)
{
    uint32_t low, high;
    gpunvme_err_t err = read32(t, offset, &low);

    if (!err)
        err = read32(t, offset + 4, &high);
    if (!err)
        *value = (uint64_t)high << 32 | low;
    return err;
}

static gpunvme_err_t write64(struct gpunvme_transport *t, uint32_t offset, uint64_t value)
{
    gpunvme_err_t err = write32(t, offset, (uint32_t)value);

    return err ? err : write32(t, offset + 4, (uint32_t)(value >> 32));
}

/* The read is answered behind all that the function has still sent (PCIe ordering). */
static gpunvme_err_t bus_master(struct gpunvme_transport *t, bool on)
{
    struct vfio_transport *v = vfio_of(t);
    gpunvme_err_t err = GPUNVME_OK;
    uint32_t flush;

    if (is_gone(v))
        return on ? base_fail(GPUNVME_ERR_REMOVED, "%s", t->address) : GPUNVME_OK;
    pthread_mutex_lock(&v->lock); /* after is_gone() it does not get the bus back */
    if (!atomic_load(&v->gone))
        err = command(v, on ? PCI_COMMAND_MASTER : 0, on ? 0 : PCI_COMMAND_MASTER);
    pthread_mutex_unlock(&v->lock);
    if (!err && !on)
        (void)!pread(v->device, &flush, 4, (off_t)(v->config.offset + PCI_COMMAND));
    return err;
}

static gpunvme_err_t reset(struct gpunvme_transport *t)
{
    struct vfio_transport *v = vfio_of(t);
    gpunvme_err_t err = GPUNVME_OK;

    if (!v->can_reset)
        return base_fail(GPUNVME_ERR_UNSUPPORTED, "%s has no way to be reset", v->function.bdf);
    if (is_gone(v))
        return base_fail(GPUNVME_ERR_REMOVED, "%s", t->address);
    if (ioctl(v->device, VFIO_DEVICE_RESET))
        return base_fail_errno(errno, "%s: reset", v->function.bdf);
    pthread_mutex_lock(&v->lock); /* after is_gone() it does not get the bus back */
    if (!atomic_load(&v->gone))
        err = command(v, PCI_COMMAND_MEMORY | PCI_COMMAND_MASTER, 0);
    pthread_mutex_unlock(&v->lock);
    return err;
}

/* --- open and close --------------------------------------------------------------------------- */

static gpunvme_err_t alloc(struct gpunvme_transport *t, size_t nbytes, enum gpunvme_mem mem,
                           struct gpunvme_buf *buf)
{
    return transport_memory_alloc(&vfio_of(t)->memory, nbytes, mem, buf);
}

static void free_(struct gpunvme_transport *t, struct gpunvme_buf *buf)
{
    transport_memory_free(&vfio_of(t)->memory, buf);
}

static void close_file(int fd)
{
    if (fd >= 0)
        close(fd);
}

/* First the controller loses the bus, then the IOMMU forgets the memory, then that is freed. */
static void close_(struct gpunvme_transport *t)
{
    struct vfio_transport *v = vfio_of(t);

    if (v->config.nbytes)
        (void)command(v, 0, PCI_COMMAND_MASTER);
    vfio_irq_release(v);
    transport_memory_destroy(&v->memory);
    vfio_unmap_bars(v);
    vfio_region_unmap(&v->bar0);
    close_file(v->device);
    close_file(v->group);
    close_file(v->iommu);
    close_file(v->request);
    iova_destroy(&v->iovas);
    pthread_mutex_destroy(&v->lock);
    free(v);
}

static const struct gpunvme_transport_ops ops = {
    .name = "vfio",
    .read32 = read32,
    .read64 = read64,
    .write32 = write32,
    .write64 = write64,
    .map = vfio_map,
    .unmap = vfio_unmap,
    .alloc = alloc,
    .free = free_,
    .copy_to = transport_copy_to,
    .copy_from = transport_copy_from,
    .now_ns = transport_now_ns,
    .pause_ns = transport_pause_ns,
    .irq_setup = vfio_irq_setup,
    .irq_wait = vfio_irq_wait,
    .map_bar = vfio_map_bar,
    .bus_master = bus_master,
    .reset = reset,
    .close = close_,
};

gpunvme_err_t vfio_open_file(const char *path, int *fd)
{
    *fd = open(path, O_RDWR | O_CLOEXEC);
    if (*fd >= 0)
        return GPUNVME_OK;
    switch (errno) {
    case EACCES:
    case EPERM:
        return base_fail(GPUNVME_ERR_PERMISSION,
                         "%s: run this as root, or give the file to your user (chown USER %s)",
                         path, path);
    case EBUSY:
        return base_fail(GPUNVME_ERR_BUSY,
                         "%s: another process has it open (\"fuser -v %s\" shows which)", path,
                         path);
    default:
        return base_fail_errno(errno, "%s", path);
    }
}

/* By iommufd where it can be used, else by group: a user may have been given either. */
static gpunvme_err_t open_function(struct vfio_transport *v)
{
    gpunvme_err_t err = vfio_cdev_open(v);

    if (err != GPUNVME_ERR_UNSUPPORTED && err != GPUNVME_ERR_PERMISSION)
        return err;
    close_file(v->device);
    close_file(v->iommu);
    v->device = v->iommu = -1;
    return vfio_group_open(v);
}

static gpunvme_err_t look_at_function(struct vfio_transport *v)
{
    struct vfio_device_info info = {.argsz = sizeof(info)};
    gpunvme_err_t err;

    if (ioctl(v->device, VFIO_DEVICE_GET_INFO, &info))
        return base_fail_errno(errno, "%s: VFIO_DEVICE_GET_INFO", v->function.bdf);
    v->can_reset = info.flags & VFIO_DEVICE_FLAGS_RESET;
    err = vfio_region_get(v, VFIO_PCI_CONFIG_REGION_INDEX, &v->config);
    if (!err)
        err = vfio_region_get(v, VFIO_PCI_BAR0_REGION_INDEX, &v->bar0);
    if (!err && v->bar0.nbytes < DOORBELLS + 8)
        err = base_fail(GPUNVME_ERR_UNSUPPORTED, "%s: its BAR0 has no memory for the doorbells",
                        v->function.bdf);
    return err;
}

/* Doorbells as far as the area goes that holds the first of them. */
static void find_doorbells(struct vfio_transport *v)
{
    for (unsigned i = 0; i < v->bar0.nareas; i++) {
        const struct vfio_area *area = &v->bar0.areas[i];

        if (DOORBELLS < area->offset || DOORBELLS - area->offset >= area->nbytes)
            continue;
        v->base.doorbells = (volatile uint32_t *)(area->cpu + (DOORBELLS - area->offset));
        v->base.doorbells_nbytes = area->nbytes - (DOORBELLS - area->offset);
    }
}

/* Memory space first: a mapping made without it would fault. */
static gpunvme_err_t start(struct vfio_transport *v)
{
    gpunvme_err_t err = open_function(v);

    if (!err)
        err = look_at_function(v);
    if (!err)
        err = command(v, PCI_COMMAND_MEMORY, 0);
    if (!err)
        err = vfio_region_map(v, &v->bar0);
    if (!err)
        err = vfio_request_setup(v);
    if (!err)
        err = command(v, PCI_COMMAND_MASTER, 0);
    if (!err)
        find_doorbells(v);
    return err;
}

gpunvme_err_t transport_vfio_open(const struct pci_function *f, struct gpunvme_transport **out)
{
    struct vfio_transport *v = calloc(1, sizeof(*v));
    struct base_failure failure;

    if (!v)
        return base_fail(GPUNVME_ERR_NOMEM, "a transport");
    v->base.ops = &ops;
    v->function = *f;
    memcpy(v->base.address, f->bdf, sizeof(f->bdf));
    v->device = v->group = v->iommu = v->request = -1;
    v->page = (uint64_t)sysconf(_SC_PAGESIZE);
    pthread_mutex_init(&v->lock, NULL);
    iova_init(&v->iovas);
    transport_memory_init(&v->memory, &v->base, GPUNVME_BACKING_ANY);
    base_keep(&failure, start(v));
    if (failure.err) {
        close_(&v->base);
        return base_restore(&failure);
    }
    *out = &v->base;
    return GPUNVME_OK;
}
