/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Regions of the PCI function that a vfio-user client sees: BAR0 with the registers, and the
 * doorbells that it may map; BAR4 with the MSI-X table; configuration space.
 *
 * Source: the vfio-user specification, "VFIO_USER_DEVICE_GET_REGION_INFO", "VFIO_USER_REGION_READ"
 * and "_WRITE"; linux/vfio.h.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "sim/serve/serve.h"

struct bar0_caps {
    struct vfio_region_info info;
    struct {
        struct vfio_info_cap_header header;
        uint32_t nr_areas, reserved;
    } sparse; /* as struct vfio_region_info_cap_sparse_mmap, with its one area */
    struct vfio_region_sparse_mmap_area area;
};

static uint64_t region_size(const struct gpunvme_sim_server *s, uint32_t index)
{
    switch (index) {
    case VFIO_PCI_BAR0_REGION_INDEX:
        return s->bar0_nbytes;
    case VFIO_PCI_BAR4_REGION_INDEX:
        return s->table_nbytes;
    case VFIO_PCI_CONFIG_REGION_INDEX:
        return SIM_PCI_CONFIG_NBYTES;
    default:
        return 0;
    }
}

/*
 * The doorbells, with their file, where the client has room for it; else how much it needs. Then
 * the flag for capabilities stays off: QEMU takes it, with an offset of 0, for a broken reply.
 */
static void describe_bar0(struct gpunvme_sim_server *s, uint32_t room, struct bar0_caps *caps,
                          struct serve_reply *r)
{
    caps->info.flags |= VFIO_REGION_INFO_FLAG_MMAP;
    caps->info.argsz = sizeof(*caps);
    if (room < sizeof(*caps))
        return;
    caps->info.flags |= VFIO_REGION_INFO_FLAG_CAPS;
    caps->info.cap_offset = offsetof(struct bar0_caps, sparse);
    caps->sparse.header.id = VFIO_REGION_INFO_CAP_SPARSE_MMAP;
    caps->sparse.header.version = 1;
    caps->sparse.nr_areas = 1;
    caps->area.offset = GPUNVME_REG_DOORBELLS;
    caps->area.size = s->sim->doorbells_nbytes;
    r->head_nbytes = sizeof(*caps);
    r->fd = s->doorbells_fd;
}

int serve_region_info(struct gpunvme_sim_server *s, const struct vfio_user_message *m,
                      struct serve_reply *r)
{
    struct bar0_caps caps = {0};
    uint32_t room;

    _Static_assert(sizeof(caps) <= sizeof(r->head), "room for the capability");
    if (m->nbytes < sizeof(caps.info))
        return EINVAL;
    memcpy(&caps.info, m->body, sizeof(caps.info));
    room = caps.info.argsz;
    if (room < sizeof(caps.info) || caps.info.index >= VFIO_PCI_NUM_REGIONS)
        return EINVAL;
    caps.info = (struct vfio_region_info){.argsz = sizeof(caps.info), .index = caps.info.index};
    caps.info.size = region_size(s, caps.info.index);
    if (caps.info.size)
        caps.info.flags = VFIO_REGION_INFO_FLAG_READ | VFIO_REGION_INFO_FLAG_WRITE;
    r->head_nbytes = sizeof(caps.info);
    if (caps.info.index == VFIO_PCI_BAR0_REGION_INDEX)
        describe_bar0(s, room, &caps, r);
    memcpy(r->head, &caps, r->head_nbytes);
    return 0;
}

/* --- BAR0 ------------------------------------------------------------------------------------- */

/* Registers by dwords: each is 32 bits wide, or is 64 and may be accessed by halves. */
static int read_bar0(struct gpunvme_sim_server *s, uint64_t offset, uint8_t *to, uint32_t count)
{
    uint64_t end = GPUNVME_REG_DOORBELLS + s->sim->doorbells_nbytes;

    for (uint32_t i = 0; i < count;) {
        uint32_t at = (uint32_t)(offset + i), skip = at % 4, n = 4 - skip, value = 0;

        if (n > count - i)
            n = count - i;
        if (at < end)
            value = (uint32_t)gpunvme_sim_reg_read(s->sim, at - skip, 4);
        memcpy(to + i, (uint8_t *)&value + skip, n);
        i += n;
    }
    return 0;
}

static int write_bar0(struct gpunvme_sim_server *s, uint64_t offset, const uint8_t *from,
                      uint32_t count)
{
    uint64_t end = GPUNVME_REG_DOORBELLS + s->sim->doorbells_nbytes;

    if (offset % 4 || count % 4)
        return EINVAL;
    for (uint32_t i = 0; i < count; i += 4) {
        uint32_t value;

        memcpy(&value, from + i, sizeof(value));
        if (offset + i < end)
            gpunvme_sim_reg_write(s->sim, (uint32_t)(offset + i), 4, value);
    }
    return 0;
}

/* --- the others ------------------------------------------------------------------------------- */

static void read_config(struct gpunvme_sim_server *s, uint64_t offset, void *to, uint32_t count)
{
    pthread_mutex_lock(&s->irqs.lock);
    sim_pci_config_read(&s->config, offset, to, count);
    pthread_mutex_unlock(&s->irqs.lock);
}

static void write_config(struct gpunvme_sim_server *s, uint64_t offset, const void *from,
                         uint32_t count)
{
    bool intx_was_off, intx_off, reset;

    pthread_mutex_lock(&s->irqs.lock);
    intx_was_off = sim_pci_config_intx_off(&s->config);
    reset = sim_pci_config_write(&s->config, offset, from, count);
    intx_off = sim_pci_config_intx_off(&s->config);
    pthread_mutex_unlock(&s->irqs.lock);
    if (reset)
        sim_server_reset(s);
    else if (intx_was_off && !intx_off)
        gpunvme_sim_irq_again(s->sim);
}

/* The client masks and pends by itself; the table is remembered for whoever reads it. */
static void write_table(struct gpunvme_sim_server *s, uint64_t offset, const uint8_t *from,
                        uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (offset + i < s->nvectors * 16ull)
            s->table[offset + i] = from[i];
}

static int read_region(struct gpunvme_sim_server *s, const struct vfio_user_region_access *a,
                       uint8_t *to)
{
    switch (a->region) {
    case VFIO_PCI_BAR0_REGION_INDEX:
        return read_bar0(s, a->offset, to, a->count);
    case VFIO_PCI_BAR4_REGION_INDEX:
        memcpy(to, s->table + a->offset, a->count);
        return 0;
    default:
        read_config(s, a->offset, to, a->count);
        return 0;
    }
}

static int write_region(struct gpunvme_sim_server *s, const struct vfio_user_region_access *a,
                        const uint8_t *from)
{
    switch (a->region) {
    case VFIO_PCI_BAR0_REGION_INDEX:
        return write_bar0(s, a->offset, from, a->count);
    case VFIO_PCI_BAR4_REGION_INDEX:
        write_table(s, a->offset, from, a->count);
        return 0;
    default:
        write_config(s, a->offset, from, a->count);
        return 0;
    }
}

int serve_region_access(struct gpunvme_sim_server *s, const struct vfio_user_message *m,
                        struct serve_reply *r, bool write)
{
    struct vfio_user_region_access a;
    uint64_t size;

    if (m->nbytes < sizeof(a))
        return EINVAL;
    memcpy(&a, m->body, sizeof(a));
    size = region_size(s, a.region);
    if (!a.count || a.count > SERVE_XFER_MAX || a.count > size || a.offset > size - a.count)
        return EINVAL;
    if (!write && a.count > s->conn->xfer_max)
        return EINVAL;
    memcpy(r->head, &a, sizeof(a));
    r->head_nbytes = sizeof(a);
    if (write)
        return m->nbytes - sizeof(a) == a.count
                   ? write_region(s, &a, (const uint8_t *)m->body + sizeof(a))
                   : EINVAL;
    r->data = malloc(a.count);
    if (!r->data)
        return ENOMEM;
    r->data_nbytes = a.count;
    return read_region(s, &a, r->data);
}
