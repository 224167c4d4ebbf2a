/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Makes the tree of topology.h: hwloc knows what hangs where, sysfs the rest.
 */
#include <ctype.h>
#include <errno.h>
#include <hwloc.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fail.h"
#include "topology.h"

#define CLASS_NVME    0x0108u /* mass storage, non-volatile memory */
#define CLASS_DISPLAY 0x03u   /* display controllers: VGA, 3D */

struct look {
    struct topology *out;
    hwloc_topology_t hwloc;
    const char *root;
    bool full;
};

static bool is_leaf(hwloc_obj_t obj, enum topology_kind *kind)
{
    if (obj->type != HWLOC_OBJ_PCI_DEVICE)
        return false;
    *kind = obj->attr->pcidev.class_id == CLASS_NVME ? TOPOLOGY_DRIVE : TOPOLOGY_GPU;
    return *kind == TOPOLOGY_DRIVE || obj->attr->pcidev.class_id >> 8 == CLASS_DISPLAY;
}

/* True if there is a drive or a GPU at or below the object. */
static bool leads_to_leaf(hwloc_obj_t obj)
{
    enum topology_kind kind;
    hwloc_obj_t child;

    if (is_leaf(obj, &kind))
        return true;
    for (child = obj->io_first_child; child; child = child->next_sibling)
        if (leads_to_leaf(child))
            return true;
    for (child = obj->first_child; child; child = child->next_sibling)
        if (leads_to_leaf(child))
            return true;
    return false;
}

/* The first line of a file of the device; "" if there is none. What is not printable becomes '?'.
 */
static void read_attr(const struct look *l, const char *bdf, const char *name, char *text, int n)
{
    char path[PATH_MAX];
    FILE *file;

    text[0] = 0;
    if (snprintf(path, sizeof(path), "%s/sys/bus/pci/devices/%s/%s", l->root, bdf, name) >=
        (int)sizeof(path))
        return;
    file = fopen(path, "re");
    if (!file)
        return;
    if (!fgets(text, n, file))
        text[0] = 0;
    fclose(file);
    text[strcspn(text, "\n")] = 0;
    for (unsigned char *p = (unsigned char *)text; *p; p++)
        if (!isprint(*p))
            *p = '?';
}

static void read_link(const struct look *l, const char *bdf, const char *name, char *text, int n)
{
    char path[PATH_MAX], target[PATH_MAX];
    const char *last;
    ssize_t length;

    text[0] = 0;
    if (snprintf(path, sizeof(path), "%s/sys/bus/pci/devices/%s/%s", l->root, bdf, name) >=
        (int)sizeof(path))
        return;
    length = readlink(path, target, sizeof(target) - 1);
    if (length <= 0)
        return;
    target[length] = 0;
    last = strrchr(target, '/');
    snprintf(text, (size_t)n, "%.*s", n - 1, last ? last + 1 : target);
}

static void look_at_sysfs(const struct look *l, struct topology_row *row)
{
    char text[32];

    read_link(l, row->name, "driver", row->driver, sizeof(row->driver));
    read_link(l, row->name, "iommu_group", text, sizeof(text));
    row->iommu_group = text[0] ? atoi(text) : -1;
    read_attr(l, row->name, "current_link_speed", row->speed, sizeof(row->speed));
    read_attr(l, row->name, "max_link_speed", row->max_speed, sizeof(row->max_speed));
    read_attr(l, row->name, "current_link_width", text, sizeof(text));
    row->width = (unsigned)strtoul(text, NULL, 10);
    read_attr(l, row->name, "max_link_width", text, sizeof(text));
    row->max_width = (unsigned)strtoul(text, NULL, 10);
    /* Firmware that names no node gives -1. */
    if (row->node < 0) {
        read_attr(l, row->name, "numa_node", text, sizeof(text));
        row->node = text[0] ? atoi(text) : -1;
    }
}

static void fill_device(const struct look *l, hwloc_obj_t obj, struct topology_row *row)
{
    const struct hwloc_pcidev_attr_s *pci = &obj->attr->pcidev;
    hwloc_obj_t place = hwloc_get_non_io_ancestor_obj(l->hwloc, obj);
    const char *model = hwloc_obj_get_info_by_name(obj, "PCIDevice");

    snprintf(row->name, sizeof(row->name), "%04x:%02x:%02x.%x", pci->domain, pci->bus, pci->dev,
             pci->func);
    snprintf(row->model, sizeof(row->model), "%.*s", TOPOLOGY_TEXT - 1, model ? model : "");
    row->vendor = pci->vendor_id;
    row->device = pci->device_id;
    if (place && place->nodeset && hwloc_bitmap_weight(place->nodeset) == 1)
        row->node = hwloc_bitmap_first(place->nodeset);
    look_at_sysfs(l, row);
}

static void fill_bridge(hwloc_obj_t obj, struct topology_row *row)
{
    const struct hwloc_bridge_attr_s *bridge = &obj->attr->bridge;
    const struct hwloc_pcidev_attr_s *pci = &bridge->upstream.pci;

    if (bridge->upstream_type == HWLOC_OBJ_BRIDGE_HOST) {
        row->kind = TOPOLOGY_HOST_BRIDGE;
        snprintf(row->name, sizeof(row->name), "%04x:[%02x-%02x]", bridge->downstream.pci.domain,
                 bridge->downstream.pci.secondary_bus, bridge->downstream.pci.subordinate_bus);
        return;
    }
    row->kind = obj->parent->type == HWLOC_OBJ_BRIDGE &&
                        obj->parent->attr->bridge.upstream_type == HWLOC_OBJ_BRIDGE_PCI
                    ? TOPOLOGY_SWITCH_PORT
                    : TOPOLOGY_ROOT_PORT;
    snprintf(row->name, sizeof(row->name), "%04x:%02x:%02x.%x", pci->domain, pci->bus, pci->dev,
             pci->func);
}

static void fill_other(hwloc_obj_t obj, struct topology_row *row)
{
    char type[32];

    hwloc_obj_type_snprintf(type, sizeof(type), obj, 0);
    row->kind = TOPOLOGY_MACHINE;
    row->is_package = obj->parent != NULL;
    if (obj->parent)
        snprintf(row->name, sizeof(row->name), "%s %u", type, obj->logical_index);
    else
        snprintf(row->name, sizeof(row->name), "%s", type);
}

static void add(struct look *l, hwloc_obj_t obj, int parent)
{
    struct topology_row *row = &l->out->rows[l->out->nrows];
    int index = (int)l->out->nrows;
    hwloc_obj_t child;

    if (!leads_to_leaf(obj) && obj->parent)
        return;
    if (index == TOPOLOGY_MAX_ROWS) {
        l->full = true;
        return;
    }
    *row = (struct topology_row){.parent = parent, .node = -1, .iommu_group = -1};
    row->depth = parent < 0 ? 0 : l->out->rows[parent].depth + 1;
    l->out->nrows++;
    if (is_leaf(obj, &row->kind))
        fill_device(l, obj, row);
    else if (obj->type == HWLOC_OBJ_BRIDGE)
        fill_bridge(obj, row);
    else
        fill_other(obj, row);
    for (child = obj->first_child; child; child = child->next_sibling)
        add(l, child, index);
    for (child = obj->io_first_child; child; child = child->next_sibling)
        add(l, child, index);
}

gpunvme_err_t topology_look(const char *xml, const char *root, struct topology *out)
{
    struct look l = {.out = out, .root = root};
    gpunvme_err_t err = GPUNVME_OK;

    out->nrows = 0;
    if (hwloc_topology_init(&l.hwloc))
        return base_fail_errno(errno ? errno : ENOMEM, "hwloc");
    hwloc_topology_set_io_types_filter(l.hwloc, HWLOC_TYPE_FILTER_KEEP_ALL);
    if (xml && hwloc_topology_set_xml(l.hwloc, xml))
        err = base_fail(GPUNVME_ERR_INVALID, "%s: not the XML of lstopo", xml);
    else if (hwloc_topology_load(l.hwloc))
        err = base_fail(GPUNVME_ERR_IO, "hwloc could not look at %s", xml ? xml : "this machine");
    else
        add(&l, hwloc_get_root_obj(l.hwloc), -1);
    hwloc_topology_destroy(l.hwloc);
    if (!err && l.full)
        err =
            base_fail(GPUNVME_ERR_LIMIT, "more than %u PCI functions on the way to drives and GPUs",
                      TOPOLOGY_MAX_ROWS);
    return err;
}
