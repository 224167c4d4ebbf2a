/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What the files of the VFIO transport share. vfio.c is the transport, its registers and its
 * life; vfio_region.c maps BARs; vfio_dma.c gives bus addresses; vfio_irq.c has the interrupts.
 * Two files reach the function and its IOMMU: vfio_cdev.c by iommufd, vfio_group.c by the older
 * groups and containers. Nothing but those two knows which it was.
 */
#ifndef TRANSPORT_VFIO_H
#define TRANSPORT_VFIO_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "gpunvme/transport.h"
#include "transport/common.h"
#include "transport/iova.h"
#include "transport/irq.h"
#include "transport/pci.h"

struct vfio_info_cap_header; /* linux/vfio.h */
struct vfio_transport;

/* One way to program the IOMMU. Addresses and sizes are multiples of the page size. */
struct vfio_iommu_ops {
    const char *name;
    gpunvme_err_t (*map)(struct vfio_transport *v, const void *cpu, uint64_t nbytes, uint64_t iova);
    /* Memory behind a dma-buf; NULL where there is no way to import one. */
    gpunvme_err_t (*map_fd)(struct vfio_transport *v, int fd, uint64_t offset, uint64_t nbytes,
                            uint64_t iova);
    gpunvme_err_t (*unmap)(struct vfio_transport *v, uint64_t iova, uint64_t nbytes);
};

/* A piece of a BAR that the kernel lets us map, and where it is mapped. */
struct vfio_area {
    uint64_t offset, nbytes; /* within the BAR */
    volatile unsigned char *cpu;
};

/* What can be mapped of a region: all of it is one area; none where nothing can be. */
#define VFIO_AREAS 8

struct vfio_region {
    uint64_t offset, nbytes; /* of the region within the device's file */
    struct vfio_area areas[VFIO_AREAS];
    unsigned nareas;
};

/* Memory of the controller's that map_bar gave. */
struct vfio_bar_map {
    struct vfio_bar_map *next;
    void *start; /* of the mapping: the page that the memory begins in */
    size_t nbytes;
};

struct vfio_transport {
    struct gpunvme_transport base;
    struct pci_function function;
    int device; /* the function */
    int group;  /* by group: its file; else -1 */
    int iommu;  /* the container, or the iommufd */
    uint32_t ioas;
    const struct vfio_iommu_ops *iommu_ops;

    struct vfio_region bar0, config;
    bool can_reset;
    int request;      /* eventfd by which the kernel asks for the function; -1: none */
    atomic_bool gone; /* it has asked: registers read as ones */

    struct transport_irq *irqs;
    uint32_t irqs_made, nirqs, irq_index; /* nirqs of them are connected */

    pthread_mutex_t lock; /* of what follows, and of switching the bus on and off */
    struct iova_space iovas;
    struct vfio_bar_map *bar_maps;
    struct transport_memory memory;
    uint64_t page; /* bytes */
};

static inline struct vfio_transport *vfio_of(struct gpunvme_transport *t)
{
    return (struct vfio_transport *)t;
}

/*
 * Open the function, attach it to an address space of its own, and fill in what v->iovas may
 * give out. They leave what they opened in *v, also on failure, for vfio.c to close. The first
 * fails with UNSUPPORTED where the kernel has no such interface.
 */
gpunvme_err_t vfio_cdev_open(struct vfio_transport *v);
gpunvme_err_t vfio_group_open(struct vfio_transport *v);

/* Opens a file of /dev, and says how to get at it where that fails. */
gpunvme_err_t vfio_open_file(const char *path, int *fd);

/*
 * "0000:01:00.1 (nvme), …": the functions of this one's group that are neither vfio-pci's nor
 * without a driver, and so keep the group from being used.
 */
void vfio_group_others(const struct pci_function *f, char *text, size_t nbytes);

/* The capability `id` of an answer of `nbytes` whose capabilities begin at `at`, or NULL. */
const struct vfio_info_cap_header *vfio_find_cap(const void *info, size_t nbytes, uint32_t at,
                                                 uint16_t id);

/* Why mapping memory failed, with what to do about it. */
gpunvme_err_t vfio_map_failed(int error_number, uint64_t nbytes, uint64_t iova);

/* Regions. */
gpunvme_err_t vfio_region_get(struct vfio_transport *v, uint32_t index, struct vfio_region *region);
gpunvme_err_t vfio_region_map(struct vfio_transport *v, struct vfio_region *region);
void vfio_region_unmap(struct vfio_region *region);
gpunvme_err_t vfio_map_bar(struct gpunvme_transport *t, unsigned bir, uint64_t offset,
                           size_t nbytes, struct gpunvme_buf *buf);
/* True if the buffer was of map_bar, and has been taken back. */
bool vfio_unmap_bar(struct vfio_transport *v, struct gpunvme_buf *buf);
void vfio_unmap_bars(struct vfio_transport *v);

/* ops->map, ops->unmap. */
gpunvme_err_t vfio_map(struct gpunvme_transport *t, struct gpunvme_buf *buf);
void vfio_unmap(struct gpunvme_transport *t, struct gpunvme_buf *buf);

/* ops->irq_setup, ops->irq_wait. */
gpunvme_err_t vfio_irq_setup(struct gpunvme_transport *t, uint32_t wanted, uint32_t *granted);
gpunvme_err_t vfio_irq_wait(struct gpunvme_transport *t, uint32_t vector, uint64_t *seen,
                            uint64_t timeout_ns);

/* How many of MSI-X, MSI and the pin are passed over, in this order: for tests. */
extern unsigned vfio_irq_skip;

/* The interrupt by which the kernel asks for the function; the end of the others. */
gpunvme_err_t vfio_request_setup(struct vfio_transport *v);
void vfio_irq_release(struct vfio_transport *v);

#endif
