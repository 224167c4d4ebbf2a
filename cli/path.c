/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The path report: see path.h.
 */
#include "path.h"

#include <inttypes.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/vfs.h>

#include "base/units.h"
#include "cli.h"
#include "gpunvme/memory.h"

#define SET(field, ...) snprintf(path->field, sizeof(path->field), __VA_ARGS__)

static const char *file_system_of(const char *file)
{
    static const struct {
        long magic;
        const char *name;
    } known[] = {
        {EXT4_SUPER_MAGIC, "ext4"},
        {XFS_SUPER_MAGIC, "xfs"},
        {BTRFS_SUPER_MAGIC, "btrfs"},
        {F2FS_SUPER_MAGIC, "f2fs"},
        {OVERLAYFS_SUPER_MAGIC, "overlay"},
        {NFS_SUPER_MAGIC, "nfs"},
        {TMPFS_MAGIC, "tmpfs: in memory"},
        {V9FS_MAGIC, "9p"},
        {0x2fc12fc1, "zfs"},
        {0x65735546, "fuse"},
    };
    struct statfs st;

    if (statfs(file, &st))
        return "unknown file system";
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (known[i].magic == (long)st.f_type)
            return known[i].name;
    return "unknown file system";
}

static void describe_sim(struct cli_device *device, const struct gpunvme_ns *ns,
                         struct cli_path *path)
{
    const struct gpunvme_sim_config *config = gpunvme_sim_config_of(device->sim);
    const char *image = "";

    for (uint32_t i = 0; i < config->nnamespaces; i++)
        if (config->ns[i].nsid == ns->nsid)
            image = config->ns[i].image;
    SET(transport, "sim: the software NVMe controller, %u thread%s of this process, speed: %s",
        config->threads, config->threads == 1 ? "" : "s", config->profile);
    if (*image)
        SET(backing, "image file %s (%s)", image, file_system_of(image));
    else
        SET(backing, "%s memory: gone when the controller is closed",
            config->engine == GPUNVME_SIM_ENGINE_GPU && !gpunvme_mem_gpu_is_host() ? "GPU"
                                                                                   : "host");
}

static void describe_data(const struct cli_path_use *use, struct cli_path *path)
{
    const char *why_not = gpunvme_mem_gpu_why_not();

    path->bounced = use->bounced;
    path->tier = use->mem == GPUNVME_MEM_GPU && !gpunvme_mem_gpu_is_host() ? 2 : 1;
    if (path->tier == 2)
        SET(data, "%sGPU memory",
            use->host_writes ? "written from pinned host memory, read into " : "");
    else if (use->mem == GPUNVME_MEM_GPU)
        SET(data, "simulated: host memory stands in for the GPU's (%s)", why_not);
    else
        SET(data, "host memory");
    if (use->bounced)
        SET(dma, "through a bounce buffer in host memory, then copied%s",
            path->tier == 2 ? " to the GPU" : "");
    else
        SET(dma, "direct: the controller moves the bytes itself, no bounce buffer in the driver");
}

/* include/gpunvme/controller.h says when the driver takes an SGL; this is the same rule. */
static void describe_commands(const struct gpunvme_ctrl_info *info, const struct cli_path_use *use,
                              struct cli_path *path)
{
    char size[BASE_UNITS_TEXT];
    bool large = use->command_nbytes > 2 * (uint64_t)info->page_size;

    base_format_size(use->command_nbytes, size, sizeof(size));
    SET(commands, "%s each, %u in flight, data described by %s", size, use->depth,
        large && info->sgl ? "SGLs"
        : large            ? "PRP lists (no SGLs in this controller)"
                           : "PRPs");
}

static void describe_faster(const struct cli_device *device, struct cli_path *path)
{
    path->nfaster = 0;
    if (device->is_sim)
        SET(faster[path->nfaster++],
            "a real drive (nvme:BDF): gpunvme info tells what this machine has");
    if (path->tier == 1 && gpunvme_mem_gpu_is_host())
        SET(faster[path->nfaster++], "tier 2, data straight into GPU memory: %s",
            gpunvme_mem_gpu_why_not());
    SET(faster[path->nfaster++],
        "tier 3, I/O issued by kernels (docs/GPU.md): not by this command");
    if (device->is_sim)
        SET(faster[path->nfaster++], "files by GPUDirect Storage (cuFile): gpunvme store");
}

/* A store tells its own path. */
static void describe_store(struct cli_device *device, const struct cli_path_use *use,
                           struct cli_path *path)
{
    struct gpunvme_path own;
    char size[BASE_UNITS_TEXT];

    gpunvme_store_path(device->store, &own);
    describe_data(use, path);
    path->bounced = use->mem == GPUNVME_MEM_GPU && own.gpu_route != GPUNVME_ROUTE_P2P;
    path->tier = path->bounced ? 1 : path->tier;
    SET(transport, "storage API, backend %s", own.backend);
    SET(backing, "%.200s", device->uri);
    SET(queues, "the backend's");
    SET(doorbells, "the backend's");
    SET(dma, "%.240s", own.how);
    SET(commands, "transfers of %s each, %u in flight",
        base_format_size(use->command_nbytes, size, sizeof(size)), use->depth);
    if (own.why_not[0])
        SET(faster[path->nfaster++], "%.240s", own.why_not);
}

void cli_path_describe(struct cli_device *device, const struct gpunvme_ns *ns,
                       const struct cli_path_use *use, struct cli_path *path)
{
    struct gpunvme_ctrl_info info;

    memset(path, 0, sizeof(*path));
    if (device->store) {
        describe_store(device, use, path);
        return;
    }
    gpunvme_ctrl_get_info(device->ctrl, &info);
    if (device->is_sim) {
        describe_sim(device, ns, path);
    } else {
        SET(transport, "%s", device->transport->address);
        SET(backing, "the drive");
    }
    SET(queues, "in host memory, driven by the CPU");
    if (info.shadow_doorbells)
        SET(doorbells, "shadow doorbells in host memory (Doorbell Buffer Config)");
    else
        SET(doorbells, "registers, %s",
            device->transport->doorbells ? "mapped" : "written by the transport");
    describe_data(use, path);
    describe_commands(&info, use, path);
    describe_faster(device, path);
}

void cli_path_print(const struct cli_path *path, FILE *out)
{
    fprintf(out, "Path of the bytes: tier %u, %s\n", path->tier,
            path->tier == 1 ? "queues and data in host memory"
                            : "queues in host memory, data in GPU memory");
    cli_print_wrapped(out, 14, "transport", path->transport);
    cli_print_wrapped(out, 14, "backing", path->backing);
    cli_print_wrapped(out, 14, "queues", path->queues);
    cli_print_wrapped(out, 14, "doorbells", path->doorbells);
    cli_print_wrapped(out, 14, "data", path->data);
    cli_print_wrapped(out, 14, "DMA", path->dma);
    cli_print_wrapped(out, 14, "commands", path->commands);
    for (unsigned i = 0; i < path->nfaster; i++)
        cli_print_wrapped(out, 14, i ? "" : "faster", path->faster[i]);
}

void cli_path_json(const struct cli_path *path, struct cli_json *json)
{
    cli_json_object(json, "path");
    cli_json_u64(json, "tier", path->tier);
    cli_json_text(json, "transport", path->transport);
    cli_json_text(json, "backing", path->backing);
    cli_json_text(json, "queues", path->queues);
    cli_json_text(json, "doorbells", path->doorbells);
    cli_json_text(json, "data", path->data);
    cli_json_text(json, "dma", path->dma);
    cli_json_bool(json, "bounced", path->bounced);
    cli_json_text(json, "commands", path->commands);
    cli_json_array(json, "faster");
    for (unsigned i = 0; i < path->nfaster; i++)
        cli_json_text(json, NULL, path->faster[i]);
    cli_json_close(json);
    cli_json_close(json);
}
