/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The regions of a VFIO device: where they are in its file, and which parts can be mapped.
 */
#include <errno.h>
#include <linux/vfio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

#include "base/fail.h"
#include "transport/vfio.h"

/* Enough for the capabilities of a region with as many areas as are kept here. */
#define INFO_NBYTES 1024

const struct vfio_info_cap_header *vfio_find_cap(const void *info, size_t nbytes, uint32_t at,
                                                 uint16_t id)
{
    /* Each step goes forward, so that a chain that bites its tail ends. */
    for (uint32_t last = 0; at > last && at + sizeof(struct vfio_info_cap_header) <= nbytes;) {
        const struct vfio_info_cap_header *cap = (const void *)((const char *)info + at);

        if (cap->id == id)
            return cap;
        last = at;
        at = cap->next;
    }
    return NULL;
}

/* The areas that may be mapped: all of the region, or those that the kernel lists. */
static void find_areas(const struct vfio_region_info *info, struct vfio_region *region)
{
    const struct vfio_region_info_cap_sparse_mmap *sparse = NULL;

    if (!(info->flags & VFIO_REGION_INFO_FLAG_MMAP) || !info->size)
        return;
    if (info->flags & VFIO_REGION_INFO_FLAG_CAPS)
        sparse = (const void *)vfio_find_cap(info, INFO_NBYTES, info->cap_offset,
                                             VFIO_REGION_INFO_CAP_SPARSE_MMAP);
    if (!sparse) {
        region->areas[region->nareas++] = (struct vfio_area){.nbytes = info->size};
        return;
    }
    for (uint32_t i = 0; i < sparse->nr_areas && region->nareas < VFIO_AREAS; i++) {
        const struct vfio_region_sparse_mmap_area *area = &sparse->areas[i];

        if ((const char *)(area + 1) > (const char *)info + INFO_NBYTES)
            break;
        if (area->size)
            region->areas[region->nareas++] =
                (struct vfio_area){.offset = area->offset, .nbytes = area->size};
    }
}

gpunvme_err_t vfio_region_get(struct vfio_transport *v, uint32_t index, struct vfio_region *region)
{
    union {
        struct vfio_region_info info;
        char bytes[INFO_NBYTES];
    } u;

    memset(&u, 0, sizeof(u));
    u.info.argsz = sizeof(u);
    u.info.index = index;
    if (ioctl(v->device, VFIO_DEVICE_GET_REGION_INFO, &u.info))
        return base_fail_errno(errno, "%s: region %u", v->function.bdf, index);
    *region = (struct vfio_region){.offset = u.info.offset, .nbytes = u.info.size};
    if (u.info.argsz <= sizeof(u)) /* else the capabilities were left out */
        find_areas(&u.info, region);
    return GPUNVME_OK;
}

static void *map_file(struct vfio_transport *v, uint64_t offset, uint64_t nbytes)
{
    void *cpu = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, v->device, (off_t)offset);

    return cpu == MAP_FAILED ? NULL : cpu;
}

/* An area that can't be mapped after all is left out: its registers go through the file. */
gpunvme_err_t vfio_region_map(struct vfio_transport *v, struct vfio_region *region)
{
    unsigned n = 0;

    for (unsigned i = 0; i < region->nareas; i++) {
        struct vfio_area area = region->areas[i];

        area.cpu = map_file(v, region->offset + area.offset, area.nbytes);
        if (area.cpu)
            region->areas[n++] = area;
    }
    region->nareas = n;
    return GPUNVME_OK;
}

void vfio_region_unmap(struct vfio_region *region)
{
    for (unsigned i = 0; i < region->nareas; i++) {
        if (region->areas[i].cpu)
            munmap((void *)(uintptr_t)region->areas[i].cpu, region->areas[i].nbytes);
    }
    region->nareas = 0;
}

static bool is_mappable(const struct vfio_region *region, uint64_t offset, size_t nbytes)
{
    for (unsigned i = 0; i < region->nareas; i++) {
        const struct vfio_area *area = &region->areas[i];

        if (offset >= area->offset && offset - area->offset <= area->nbytes &&
            nbytes <= area->nbytes - (offset - area->offset))
            return true;
    }
    return false;
}

gpunvme_err_t vfio_map_bar(struct gpunvme_transport *t, unsigned bir, uint64_t offset,
                           size_t nbytes, struct gpunvme_buf *buf)
{
    struct vfio_transport *v = vfio_of(t);
    uint64_t in_page = offset % v->page;
    struct vfio_region region;
    struct vfio_bar_map *map;
    gpunvme_err_t err;

    if (bir > VFIO_PCI_BAR5_REGION_INDEX || !nbytes)
        return base_fail(GPUNVME_ERR_INVALID, "BAR %u, %zu bytes", bir, nbytes);
    err = vfio_region_get(v, VFIO_PCI_BAR0_REGION_INDEX + bir, &region);
    if (err)
        return err;
    if (!is_mappable(&region, offset, nbytes))
        return base_fail(GPUNVME_ERR_UNSUPPORTED, "%s: these bytes of BAR %u can't be mapped",
                         v->function.bdf, bir);
    map = calloc(1, sizeof(*map));
    if (!map)
        return base_fail(GPUNVME_ERR_NOMEM, "a mapping");
    map->nbytes = nbytes + in_page;
    map->start = map_file(v, region.offset + offset - in_page, map->nbytes);
    if (!map->start) {
        err = base_fail_errno(errno, "%s: mapping of BAR %u", v->function.bdf, bir);
        free(map);
        return err;
    }
    *buf = (struct gpunvme_buf){.cpu = (char *)map->start + in_page,
                                .nbytes = nbytes,
                                .mem = GPUNVME_MEM_HOST,
                                .transport_private = map};
    pthread_mutex_lock(&v->lock);
    map->next = v->bar_maps;
    v->bar_maps = map;
    pthread_mutex_unlock(&v->lock);
    return GPUNVME_OK;
}

bool vfio_unmap_bar(struct vfio_transport *v, struct gpunvme_buf *buf)
{
    struct vfio_bar_map **at, *map = NULL;

    if (!buf->transport_private)
        return false;
    pthread_mutex_lock(&v->lock);
    for (at = &v->bar_maps; *at; at = &(*at)->next) {
        if (*at == buf->transport_private) {
            map = *at;
            *at = map->next;
            break;
        }
    }
    pthread_mutex_unlock(&v->lock);
    if (!map)
        return false;
    munmap(map->start, map->nbytes);
    free(map);
    *buf = (struct gpunvme_buf){0};
    return true;
}

void vfio_unmap_bars(struct vfio_transport *v)
{
    while (v->bar_maps) {
        struct vfio_bar_map *map = v->bar_maps;

        v->bar_maps = map->next;
        munmap(map->start, map->nbytes);
        free(map);
    }
}
