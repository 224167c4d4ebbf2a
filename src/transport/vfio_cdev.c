/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A function by its own device file, and the IOMMU by iommufd: Linux 6.6 on, where it is built
 * with CONFIG_IOMMUFD and CONFIG_VFIO_DEVICE_CDEV. The structures are declared here, under names
 * of our own, since the headers of many systems are older than their kernels; they follow
 * include/uapi/linux/iommufd.h and vfio.h of Linux 6.13.
 */
#include <dirent.h>
#include <errno.h>
#include <linux/vfio.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/fail.h"
#include "transport/vfio.h"

#define BIND_IOMMUFD      _IO(VFIO_TYPE, VFIO_BASE + 18)
#define ATTACH_IOMMUFD_PT _IO(VFIO_TYPE, VFIO_BASE + 19)

struct bind_iommufd {
    uint32_t argsz, flags;
    int32_t iommufd;
    uint32_t out_devid;
};

struct attach_iommufd_pt {
    uint32_t argsz, flags;
    uint32_t pt_id;
};

#define IOAS_ALLOC       _IO(';', 0x81)
#define IOAS_IOVA_RANGES _IO(';', 0x84)
#define IOAS_MAP         _IO(';', 0x85)
#define IOAS_UNMAP       _IO(';', 0x86)
#define IOAS_MAP_FILE    _IO(';', 0x8f) /* Linux 6.13 on */

#define MAP_FLAGS (1u | 2u | 4u) /* at the IOVA given; writable; readable */

struct ioas_alloc {
    uint32_t size, flags;
    uint32_t out_ioas_id;
};

struct ioas_iova_ranges {
    uint32_t size, ioas_id;
    uint32_t num_iovas, reserved;
    uint64_t allowed_iovas; /* pointer to struct iova_range[] */
    uint64_t out_iova_alignment;
};

struct ioas_map {
    uint32_t size, flags;
    uint32_t ioas_id, reserved;
    uint64_t user_va, length, iova;
};

struct ioas_map_file {
    uint32_t size, flags;
    uint32_t ioas_id;
    int32_t fd;
    uint64_t start, length, iova;
};

struct ioas_unmap {
    uint32_t size, ioas_id;
    uint64_t iova, length;
};

_Static_assert(sizeof(struct iova_range) == 16, "first and last, as the kernel has them");

static gpunvme_err_t map(struct vfio_transport *v, const void *cpu, uint64_t nbytes, uint64_t iova)
{
    struct ioas_map args = {
        .size = sizeof(args),
        .flags = MAP_FLAGS,
        .ioas_id = v->ioas,
        .user_va = (uintptr_t)cpu,
        .length = nbytes,
        .iova = iova,
    };

    return ioctl(v->iommu, IOAS_MAP, &args) ? vfio_map_failed(errno, nbytes, iova) : GPUNVME_OK;
}

/*
 * MAP_FILE takes memory files, and since some kernels dma-bufs of some drivers. Whether those of
 * the GPU's driver are among them is found out by trying.
 */
static gpunvme_err_t map_fd(struct vfio_transport *v, int fd, uint64_t offset, uint64_t nbytes,
                            uint64_t iova)
{
    struct ioas_map_file args = {
        .size = sizeof(args),
        .flags = MAP_FLAGS,
        .ioas_id = v->ioas,
        .fd = fd,
        .start = offset,
        .length = nbytes,
        .iova = iova,
    };

    if (!ioctl(v->iommu, IOAS_MAP_FILE, &args))
        return GPUNVME_OK;
    if (errno == ENOMEM)
        return vfio_map_failed(errno, nbytes, iova);
    return base_fail(GPUNVME_ERR_UNSUPPORTED,
                     "this kernel's iommufd does not take GPU memory (IOMMU_IOAS_MAP_FILE of the "
                     "dma-buf: %s): use host memory, or the kernel module",
                     strerror(errno));
}

static gpunvme_err_t unmap(struct vfio_transport *v, uint64_t iova, uint64_t nbytes)
{
    struct ioas_unmap args = {
        .size = sizeof(args), .ioas_id = v->ioas, .iova = iova, .length = nbytes};

    return ioctl(v->iommu, IOAS_UNMAP, &args) ? base_fail_errno(errno, "IOMMU_IOAS_UNMAP")
                                              : GPUNVME_OK;
}

static const struct vfio_iommu_ops iommu_ops = {
    .name = "iommufd", .map = map, .map_fd = map_fd, .unmap = unmap};

/* "/dev/vfio/devices/vfio3", after the function's folder vfio-dev/vfio3. */
static gpunvme_err_t find_file(const struct pci_function *f, char *path, size_t nbytes)
{
    char folder_path[512];
    const struct dirent *entry;
    DIR *folder;

    snprintf(folder_path, sizeof(folder_path), "%s/vfio-dev", f->path);
    path[0] = 0;
    folder = opendir(folder_path);
    while (folder && (entry = readdir(folder))) {
        if (!strncmp(entry->d_name, "vfio", 4))
            snprintf(path, nbytes, "/dev/vfio/devices/%.40s", entry->d_name);
    }
    if (folder)
        closedir(folder);
    if (!path[0] || access(path, F_OK) || access("/dev/iommu", F_OK))
        return base_fail(GPUNVME_ERR_UNSUPPORTED, "this kernel has no iommufd for %s", f->bdf);
    return GPUNVME_OK;
}

static gpunvme_err_t attach(struct vfio_transport *v, const char *path)
{
    struct bind_iommufd bind = {.argsz = sizeof(bind), .iommufd = v->iommu};
    struct ioas_alloc alloc = {.size = sizeof(alloc)};
    struct attach_iommufd_pt attach = {.argsz = sizeof(attach)};

    if (ioctl(v->device, BIND_IOMMUFD, &bind)) {
        /* A device file opens any number of times, but is bound once: EINVAL after that. */
        if (errno == EINVAL || errno == EBUSY)
            return base_fail(GPUNVME_ERR_BUSY,
                             "%s: another process has it, or its VFIO group, open (\"fuser -v "
                             "%s\" shows which)",
                             path, path);
        return base_fail_errno(errno, "%s: VFIO_DEVICE_BIND_IOMMUFD", path);
    }
    if (ioctl(v->iommu, IOAS_ALLOC, &alloc))
        return base_fail_errno(errno, "/dev/iommu: IOMMU_IOAS_ALLOC");
    attach.pt_id = v->ioas = alloc.out_ioas_id;
    if (!ioctl(v->device, ATTACH_IOMMUFD_PT, &attach))
        return GPUNVME_OK;
    if (errno == EPERM)
        return base_fail(GPUNVME_ERR_LIMIT,
                         "%s: the IOMMU does not remap interrupts, so a function could forge "
                         "them: enable interrupt remapping, or accept that by "
                         "iommufd.allow_unsafe_interrupts=1",
                         v->function.bdf);
    return base_fail_errno(errno, "%s: VFIO_DEVICE_ATTACH_IOMMUFD_PT", path);
}

static gpunvme_err_t add_ranges(struct vfio_transport *v, const struct iova_range *ranges,
                                uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        gpunvme_err_t err = iova_add(&v->iovas, ranges[i].first, ranges[i].last);

        if (err)
            return err;
    }
    return GPUNVME_OK;
}

/* The kernel says how many ranges there are when it was given room for too few. */
static gpunvme_err_t find_ranges(struct vfio_transport *v)
{
    struct ioas_iova_ranges args = {.size = sizeof(args), .ioas_id = v->ioas, .num_iovas = 16};
    gpunvme_err_t err;
    bool is_short;

    for (int tries = 0; tries < 4; tries++) {
        struct iova_range *ranges = calloc(args.num_iovas, sizeof(*ranges));

        if (!ranges)
            return base_fail(GPUNVME_ERR_NOMEM, "%u ranges of bus addresses", args.num_iovas);
        args.allowed_iovas = (uintptr_t)ranges;
        if (!ioctl(v->iommu, IOAS_IOVA_RANGES, &args)) {
            err = add_ranges(v, ranges, args.num_iovas);
            free(ranges);
            return err;
        }
        is_short = errno == EMSGSIZE; /* and num_iovas says how many there are */
        err = base_fail_errno(errno, "IOMMU_IOAS_IOVA_RANGES");
        free(ranges);
        if (!is_short)
            break;
    }
    return err;
}

gpunvme_err_t vfio_cdev_open(struct vfio_transport *v)
{
    char path[64];
    gpunvme_err_t err = find_file(&v->function, path, sizeof(path));

    if (!err)
        err = vfio_open_file(path, &v->device);
    if (!err)
        err = vfio_open_file("/dev/iommu", &v->iommu);
    if (!err)
        err = attach(v, path);
    if (err)
        return err;
    v->iommu_ops = &iommu_ops;
    return find_ranges(v);
}
