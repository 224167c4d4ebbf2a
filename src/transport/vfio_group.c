/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A function by its VFIO group, and the IOMMU by a container ("type 1"): the interface that every
 * kernel has. A group can be open once; so one process has all of its functions.
 */
#include <dirent.h>
#include <errno.h>
#include <linux/vfio.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/fail.h"
#include "transport/vfio.h"

#define INFO_NBYTES 4096 /* of VFIO_IOMMU_GET_INFO: room for some 200 ranges */

static gpunvme_err_t map(struct vfio_transport *v, const void *cpu, uint64_t nbytes, uint64_t iova)
{
    struct vfio_iommu_type1_dma_map args = {
        .argsz = sizeof(args),
        .flags = VFIO_DMA_MAP_FLAG_READ | VFIO_DMA_MAP_FLAG_WRITE,
        .vaddr = (uintptr_t)cpu,
        .iova = iova,
        .size = nbytes,
    };

    return ioctl(v->iommu, VFIO_IOMMU_MAP_DMA, &args) ? vfio_map_failed(errno, nbytes, iova)
                                                      : GPUNVME_OK;
}

static gpunvme_err_t unmap(struct vfio_transport *v, uint64_t iova, uint64_t nbytes)
{
    struct vfio_iommu_type1_dma_unmap args = {.argsz = sizeof(args), .iova = iova, .size = nbytes};

    return ioctl(v->iommu, VFIO_IOMMU_UNMAP_DMA, &args)
               ? base_fail_errno(errno, "VFIO_IOMMU_UNMAP_DMA")
               : GPUNVME_OK;
}

static const struct vfio_iommu_ops iommu_ops = {.name = "group", .map = map, .unmap = unmap};

/* --- the group -------------------------------------------------------------------------------- */

/* "" where the function has no such driver that is in the way. */
static void driver_in_the_way(const char *bdf, char *driver, size_t nbytes)
{
    struct pci_function other = {0};

    driver[0] = 0;
    snprintf(other.path, sizeof(other.path), "%s/%.15s", pci_sysfs, bdf);
    if (pci_read_link(&other, "driver", driver, nbytes))
        driver[0] = 0;
    if (!strncmp(driver, "vfio", 4) || !strcmp(driver, "pci-stub") || !strcmp(driver, "pcieport"))
        driver[0] = 0;
}

void vfio_group_others(const struct pci_function *f, char *text, size_t nbytes)
{
    char path[512], driver[32];
    size_t used = 0;
    struct dirent *entry;
    DIR *folder;

    text[0] = 0;
    snprintf(path, sizeof(path), "%s/iommu_group/devices", f->path);
    folder = opendir(path);
    while (folder && (entry = readdir(folder)) && used < nbytes) {
        if (entry->d_name[0] == '.')
            continue;
        driver_in_the_way(entry->d_name, driver, sizeof(driver));
        if (driver[0])
            used += (size_t)snprintf(text + used, nbytes - used, "%s%s (%s)", used ? ", " : "",
                                     entry->d_name, driver);
    }
    if (folder)
        closedir(folder);
}

static gpunvme_err_t check_viable(struct vfio_transport *v, const char *group)
{
    struct vfio_group_status status = {.argsz = sizeof(status)};
    char others[128];

    if (ioctl(v->group, VFIO_GROUP_GET_STATUS, &status))
        return base_fail_errno(errno, "/dev/vfio/%s", group);
    if (status.flags & VFIO_GROUP_FLAGS_VIABLE)
        return GPUNVME_OK;
    vfio_group_others(&v->function, others, sizeof(others));
    return base_fail(GPUNVME_ERR_BUSY,
                     "%s shares its IOMMU group %s with functions that other drivers have: %s; "
                     "bind these to vfio-pci too, or to no driver",
                     v->function.bdf, group, others[0] ? others : "unknown ones");
}

static gpunvme_err_t open_group(struct vfio_transport *v)
{
    char group[32], path[64];
    gpunvme_err_t err = pci_read_link(&v->function, "iommu_group", group, sizeof(group));

    if (err)
        return err;
    if (!group[0])
        return base_fail(GPUNVME_ERR_UNSUPPORTED,
                         "%s is behind no IOMMU: enable VT-d or AMD-Vi in the firmware, and boot "
                         "with intel_iommu=on where Linux needs it",
                         v->function.bdf);
    snprintf(path, sizeof(path), "/dev/vfio/noiommu-%s", group);
    if (!access(path, F_OK))
        return base_fail(GPUNVME_ERR_UNSUPPORTED,
                         "%s is a VFIO group without an IOMMU, by which bus addresses can't be "
                         "had: use uio_pci_generic instead",
                         path);
    snprintf(path, sizeof(path), "/dev/vfio/%s", group);
    err = vfio_open_file(path, &v->group);
    return err ? err : check_viable(v, group);
}

/* --- the container ---------------------------------------------------------------------------- */

static gpunvme_err_t add_ranges(struct vfio_transport *v, const struct vfio_iommu_type1_info *info)
{
    const struct vfio_iommu_type1_info_cap_iova_range *ranges = NULL;

    if (info->flags & VFIO_IOMMU_INFO_CAPS)
        ranges = (const void *)vfio_find_cap(info, INFO_NBYTES, info->cap_offset,
                                             VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE);
    if (!ranges) /* before Linux 5.4: what every IOMMU has, but for the interrupts at FEEx_xxxxh */
        return iova_add(&v->iovas, v->page, 0xfedfffff);
    for (uint32_t i = 0; i < ranges->nr_iovas; i++) {
        gpunvme_err_t err;

        if ((const char *)&ranges->iova_ranges[i + 1] > (const char *)info + INFO_NBYTES)
            break;
        err = iova_add(&v->iovas, ranges->iova_ranges[i].start, ranges->iova_ranges[i].end);
        if (err)
            return err;
    }
    return GPUNVME_OK;
}

static gpunvme_err_t find_ranges(struct vfio_transport *v)
{
    union {
        struct vfio_iommu_type1_info info;
        char bytes[INFO_NBYTES];
    } u;

    memset(&u, 0, sizeof(u));
    u.info.argsz = sizeof(u);
    if (ioctl(v->iommu, VFIO_IOMMU_GET_INFO, &u.info))
        return base_fail_errno(errno, "VFIO_IOMMU_GET_INFO");
    return add_ranges(v, &u.info);
}

static gpunvme_err_t open_container(struct vfio_transport *v)
{
    gpunvme_err_t err = vfio_open_file("/dev/vfio/vfio", &v->iommu);

    if (err)
        return err;
    if (ioctl(v->iommu, VFIO_GET_API_VERSION) != VFIO_API_VERSION ||
        ioctl(v->iommu, VFIO_CHECK_EXTENSION, VFIO_TYPE1v2_IOMMU) != 1)
        return base_fail(GPUNVME_ERR_UNSUPPORTED,
                         "this kernel's VFIO has no IOMMU of type 1 (modprobe vfio_iommu_type1)");
    if (ioctl(v->group, VFIO_GROUP_SET_CONTAINER, &v->iommu))
        return base_fail_errno(errno, "%s: VFIO_GROUP_SET_CONTAINER", v->function.bdf);
    if (!ioctl(v->iommu, VFIO_SET_IOMMU, VFIO_TYPE1v2_IOMMU))
        return GPUNVME_OK;
    if (errno == EPERM)
        return base_fail(GPUNVME_ERR_PERMISSION,
                         "%s: the IOMMU does not remap interrupts, so a function could forge "
                         "them: enable interrupt remapping, or accept that by "
                         "vfio_iommu_type1.allow_unsafe_interrupts=1",
                         v->function.bdf);
    return base_fail_errno(errno, "%s: VFIO_SET_IOMMU", v->function.bdf);
}

gpunvme_err_t vfio_group_open(struct vfio_transport *v)
{
    gpunvme_err_t err = open_group(v);

    if (!err)
        err = open_container(v);
    if (err)
        return err;
    v->iommu_ops = &iommu_ops;
    v->device = ioctl(v->group, VFIO_GROUP_GET_DEVICE_FD, v->function.bdf);
    if (v->device < 0)
        return base_fail_errno(errno, "%s: VFIO_GROUP_GET_DEVICE_FD", v->function.bdf);
    return find_ranges(v);
}
