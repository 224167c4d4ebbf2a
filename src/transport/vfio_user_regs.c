/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Regions of a vfio-user target: registers and configuration space by message, doorbells and
 * other memory of a BAR mapped where the target offers it.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fail.h"
#include "gpunvme/nvme.h"
#include "transport/pci.h"
#include "transport/vfio_user.h"

#define REPLY_FIRST   4096u /* room for a reply, at first and at most */
#define REPLY_LARGEST 65536u
#define DOORBELLS     0x1000u

#define PCI_CLASS_REVISION 0x08

/* --- what a region is ------------------------------------------------------------------------- */

gpunvme_err_t vfu_region_parse(const void *body, size_t nbytes, struct vfu_region *region)
{
    struct vfio_region_info info;

    if (nbytes < sizeof(info))
        return base_fail(GPUNVME_ERR_PROTOCOL, "vfio-user: %zu bytes about a region", nbytes);
    memcpy(&info, body, sizeof(info));
    *region = (struct vfu_region){.size = info.size, .offset = info.offset, .flags = info.flags};
    return GPUNVME_OK;
}

/* The area in a sparse-mmap capability at `at` of the reply. */
static bool area_in(const char *body, size_t nbytes, size_t at, uint64_t first, uint64_t last,
                    struct vfio_region_sparse_mmap_area *area)
{
    struct vfio_region_info_cap_sparse_mmap cap;
    size_t fits;

    if (nbytes - at < sizeof(cap))
        return false;
    memcpy(&cap, body + at, sizeof(cap));
    fits = (nbytes - at - sizeof(cap)) / sizeof(*area);
    for (size_t i = 0; i < cap.nr_areas && i < fits; i++) {
        memcpy(area, body + at + sizeof(cap) + i * sizeof(*area), sizeof(*area));
        if (area->offset <= first && area->size && last - area->offset < area->size)
            return true;
    }
    return false;
}

bool vfu_region_area(const void *body, size_t nbytes, uint64_t first, uint64_t last,
                     uint64_t *offset, uint64_t *size)
{
    struct vfio_region_sparse_mmap_area area;
    struct vfio_info_cap_header cap;
    struct vfio_region_info info;
    bool sparse = false;

    if (nbytes < sizeof(info))
        return false;
    memcpy(&info, body, sizeof(info));
    if (!(info.flags & VFIO_REGION_INFO_FLAG_MMAP) || last >= info.size || first > last)
        return false;
    if (!(info.flags & VFIO_REGION_INFO_FLAG_CAPS))
        info.cap_offset = 0;
    /* Each lies behind the one before it, or they would go round for ever. */
    for (size_t at = info.cap_offset, before = 0;
         at > before && at <= nbytes && nbytes - at >= sizeof(cap); before = at, at = cap.next) {
        memcpy(&cap, (const char *)body + at, sizeof(cap));
        if (cap.id != VFIO_REGION_INFO_CAP_SPARSE_MMAP)
            continue;
        sparse = true;
        if (area_in(body, nbytes, at, first, last, &area) && area.size <= info.size &&
            area.offset <= info.size - area.size) {
            *offset = area.offset;
            *size = area.size;
            return true;
        }
    }
    *offset = 0;
    *size = info.size;
    return !sparse;
}

static gpunvme_err_t ask(struct vfu *v, uint32_t index, uint32_t argsz,
                         struct vfio_user_message *reply, uint32_t *needed)
{
    struct vfio_region_info info = {.argsz = argsz, .index = index};
    struct iovec part = {.iov_base = &info, .iov_len = sizeof(info)};
    gpunvme_err_t err =
        vfu_call(v, VFIO_USER_DEVICE_GET_REGION_INFO, &part, 1, NULL, 0, reply, NULL);

    if (err)
        return err;
    if (reply->nbytes < sizeof(info))
        return base_fail(GPUNVME_ERR_PROTOCOL, "%s: %zu bytes about region %u", v->base.address,
                         reply->nbytes, index);
    memcpy(&info, reply->body, sizeof(info));
    *needed = info.argsz;
    return GPUNVME_OK;
}

/* Asks again, with more room, where the answer needs it. */
static gpunvme_err_t region_info(struct vfu *v, uint32_t index, struct vfio_user_message *reply,
                                 struct vfu_region *region)
{
    uint32_t needed = 0;
    gpunvme_err_t err = ask(v, index, REPLY_FIRST, reply, &needed);

    if (!err && needed > REPLY_FIRST && needed <= REPLY_LARGEST) {
        vfio_user_message_destroy(reply);
        err = ask(v, index, needed, reply, &needed);
    }
    return err ? err : vfu_region_parse(reply->body, reply->nbytes, region);
}

/* --- access by message ------------------------------------------------------------------------ */

static gpunvme_err_t access_region(struct vfu *v, uint16_t command,
                                   const struct vfio_user_region_access *access,
                                   const void *to_write, void *to_read, bool *refused)
{
    struct iovec parts[2] = {
        {.iov_base = (void *)access, .iov_len = sizeof(*access)},
        {.iov_base = (void *)to_write, .iov_len = to_write ? access->count : 0},
    };
    size_t expected = sizeof(*access) + (to_read ? access->count : 0);
    struct vfio_user_region_access got;
    struct vfio_user_message reply = {0};
    gpunvme_err_t err = vfu_call(v, command, parts, to_write ? 2 : 1, NULL, 0, &reply, refused);

    if (!err && reply.nbytes < expected)
        err = base_fail(GPUNVME_ERR_PROTOCOL,
                        "%s: %zu bytes in reply to an access to region %u; %zu are right",
                        v->base.address, reply.nbytes, access->region, expected);
    if (!err) {
        memcpy(&got, reply.body, sizeof(got));
        if (got.count != access->count)
            err = base_fail(GPUNVME_ERR_PROTOCOL, "%s: %u bytes of region %u, %u asked for",
                            v->base.address, got.count, access->region, access->count);
    }
    if (!err && to_read)
        memcpy(to_read, (char *)reply.body + sizeof(got), access->count);
    vfio_user_message_destroy(&reply);
    return err;
}

gpunvme_err_t vfu_region_read(struct vfu *v, uint32_t region, uint64_t offset, void *data,
                              uint32_t count, bool *refused)
{
    struct vfio_user_region_access access = {.offset = offset, .region = region, .count = count};

    return access_region(v, VFIO_USER_REGION_READ, &access, NULL, data, refused);
}

gpunvme_err_t vfu_region_write(struct vfu *v, uint32_t region, uint64_t offset, const void *data,
                               uint32_t count, bool *refused)
{
    struct vfio_user_region_access access = {.offset = offset, .region = region, .count = count};

    return access_region(v, VFIO_USER_REGION_WRITE, &access, data, NULL, refused);
}

/* --- registers -------------------------------------------------------------------------------- */

/* Behind a lost connection there is what a removed function shows: ones, and no errors. */
static bool is_removed(struct vfu *v, gpunvme_err_t err)
{
    return err && (err == GPUNVME_ERR_REMOVED || vfu_is_lost(v));
}

static gpunvme_err_t read_register(struct vfu *v, uint32_t offset, void *value, uint32_t nbytes,
                                   bool *refused)
{
    gpunvme_err_t err =
        vfu_region_read(v, VFIO_PCI_BAR0_REGION_INDEX, offset, value, nbytes, refused);

    if (!is_removed(v, err))
        return err;
    memset(value, 0xff, nbytes);
    return GPUNVME_OK;
}

static gpunvme_err_t write_register(struct vfu *v, uint32_t offset, const void *value,
                                    uint32_t nbytes, bool *refused)
{
    gpunvme_err_t err =
        vfu_region_write(v, VFIO_PCI_BAR0_REGION_INDEX, offset, value, nbytes, refused);

    return is_removed(v, err) ? GPUNVME_OK : err;
}

gpunvme_err_t vfu_read32(struct gpunvme_transport *t, uint32_t offset, uint32_t *value)
{
    return read_register(vfu_of(t), offset, value, 4, NULL);
}

gpunvme_err_t vfu_write32(struct gpunvme_transport *t, uint32_t offset, uint32_t value)
{
    return write_register(vfu_of(t), offset, &value, 4, NULL);
}

gpunvme_err_t vfu_read64(struct gpunvme_transport *t, uint32_t offset, uint64_t *value)
{
    struct vfu *v = vfu_of(t);
    uint32_t half[2] = {0};
    bool refused = false;
    gpunvme_err_t err;

    if (!atomic_load(&v->no64)) {
        err = read_register(v, offset, value, 8, &refused);
        if (!refused)
            return err;
    }
    err = read_register(v, offset, &half[0], 4, NULL);
    if (!err)
        err = read_register(v, offset + 4, &half[1], 4, NULL);
    if (!err && refused) /* two halves are fine, so it is the size that is not */
        atomic_store(&v->no64, true);
    *value = (uint64_t)half[1] << 32 | half[0];
    return err;
}

gpunvme_err_t vfu_write64(struct gpunvme_transport *t, uint32_t offset, uint64_t value)
{
    struct vfu *v = vfu_of(t);
    bool refused = false;
    gpunvme_err_t err;

    if (!atomic_load(&v->no64)) {
        err = write_register(v, offset, &value, 8, &refused);
        if (!refused)
            return err;
    }
    err = vfu_write32(t, offset, (uint32_t)value);
    if (!err)
        err = vfu_write32(t, offset + 4, (uint32_t)(value >> 32));
    if (!err && refused)
        atomic_store(&v->no64, true);
    return err;
}

/* --- mapped areas ----------------------------------------------------------------------------- */

/* A file that ends before the area does would kill whoever touches what is missing. */
static bool file_holds(int fd, uint64_t end)
{
    struct stat st;

    return !fstat(fd, &st) && (!S_ISREG(st.st_mode) || (uint64_t)st.st_size >= end);
}

/* Maps the area that holds first … last; window->cpu is then the address of `first`. */
static bool map_area(struct vfio_user_message *reply, const struct vfu_region *region,
                     uint64_t first, uint64_t last, struct vfu_window *window)
{
    uint64_t offset, size, at;
    int fd;

    if (!vfu_region_area(reply->body, reply->nbytes, first, last, &offset, &size) ||
        __builtin_add_overflow(region->offset, offset, &at) || at + size < at ||
        at + size > INT64_MAX || at % (uint64_t)sysconf(_SC_PAGESIZE))
        return false;
    fd = vfio_user_message_take(reply, 0);
    if (fd < 0)
        return false;
    window->base = MAP_FAILED;
    if (file_holds(fd, at + size))
        window->base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)at);
    close(fd);
    if (window->base == MAP_FAILED)
        return false;
    window->nbytes = size;
    window->cpu = (char *)window->base + (first - offset);
    return true;
}

gpunvme_err_t vfu_regs_open(struct vfu *v)
{
    struct vfio_user_message reply = {0};
    struct vfu_region region = {0};
    gpunvme_err_t err = region_info(v, VFIO_PCI_BAR0_REGION_INDEX, &reply, &region);

    if (!err && region.size < DOORBELLS)
        err = base_fail(GPUNVME_ERR_NOT_FOUND, "%s has no registers: BAR 0 has %llu bytes",
                        v->base.address, (unsigned long long)region.size);
    if (!err) {
        v->bar0_nbytes = region.size;
        if (map_area(&reply, &region, DOORBELLS, DOORBELLS + 7, &v->doorbells)) {
            v->base.doorbells = v->doorbells.cpu;
            v->base.doorbells_nbytes = v->doorbells.nbytes - (size_t)((char *)v->doorbells.cpu -
                                                                      (char *)v->doorbells.base);
        }
    }
    vfio_user_message_destroy(&reply);
    return err;
}

gpunvme_err_t vfu_map_bar(struct gpunvme_transport *t, unsigned bir, uint64_t offset, size_t nbytes,
                          struct gpunvme_buf *buf)
{
    struct vfu *v = vfu_of(t);
    struct vfio_user_message reply = {0};
    struct vfu_region region = {0};
    struct vfu_window *w;
    gpunvme_err_t err;

    if (bir > VFIO_PCI_BAR5_REGION_INDEX || !nbytes || offset + nbytes < offset)
        return base_fail(GPUNVME_ERR_INVALID, "%s: %zu bytes of BAR %u", t->address, nbytes, bir);
    w = calloc(1, sizeof(*w));
    if (!w)
        return base_fail(GPUNVME_ERR_NOMEM, "a part of BAR %u", bir);
    err = region_info(v, bir, &reply, &region);
    if (!err && !map_area(&reply, &region, offset, offset + nbytes - 1, w))
        err = base_fail(GPUNVME_ERR_UNSUPPORTED, "%s: this part of BAR %u can't be mapped",
                        t->address, bir);
    vfio_user_message_destroy(&reply);
    if (err) {
        free(w);
        return err;
    }
    pthread_mutex_lock(&v->window_lock);
    w->next = v->windows;
    v->windows = w;
    pthread_mutex_unlock(&v->window_lock);
    *buf = (struct gpunvme_buf){
        .cpu = w->cpu, .nbytes = nbytes, .mem = GPUNVME_MEM_HOST, .transport_private = w};
    return GPUNVME_OK;
}

bool vfu_unmap_bar(struct vfu *v, struct gpunvme_buf *buf)
{
    struct vfu_window **at = &v->windows, *w;

    pthread_mutex_lock(&v->window_lock);
    while (*at && *at != buf->transport_private)
        at = &(*at)->next;
    w = *at;
    if (w)
        *at = w->next;
    pthread_mutex_unlock(&v->window_lock);
    if (!w)
        return false;
    munmap(w->base, w->nbytes);
    free(w);
    *buf = (struct gpunvme_buf){0};
    return true;
}

void vfu_regs_close(struct vfu *v)
{
    while (v->windows) {
        struct vfu_window *w = v->windows;

        v->windows = w->next;
        munmap(w->base, w->nbytes);
        free(w);
    }
    if (v->doorbells.cpu)
        munmap(v->doorbells.base, v->doorbells.nbytes);
}

/* --- configuration space ---------------------------------------------------------------------- */

/* The class code of an NVMe controller, but for its programming interface. */
static gpunvme_err_t check_class(struct vfu *v)
{
    uint32_t class = 0;
    gpunvme_err_t err = vfu_region_read(v, VFU_REGION_CONFIG, PCI_CLASS_REVISION, &class, 4, NULL);

    if (!err && class >> 16 != PCI_CLASS_NVME >> 8)
        err = base_fail(GPUNVME_ERR_NOT_FOUND, "%s is no NVMe controller: its class code is %06x",
                        v->base.address, class >> 8);
    return err;
}

gpunvme_err_t vfu_config_enable(struct vfu *v, bool intx)
{
    uint16_t command = 0;
    bool refused = false;
    gpunvme_err_t err = check_class(v);

    if (!err)
        err = vfu_region_read(v, VFU_REGION_CONFIG, PCI_COMMAND, &command, 2, NULL);
    if (err)
        return err;
    command |= PCI_COMMAND_MEMORY | PCI_COMMAND_MASTER | PCI_COMMAND_INTX_OFF;
    if (intx)
        command &= (uint16_t)~PCI_COMMAND_INTX_OFF;
    err = vfu_region_write(v, VFU_REGION_CONFIG, PCI_COMMAND, &command, 2, &refused);
    return refused ? GPUNVME_OK : err; /* a target may have these bits fixed */
}
