/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gpunvme info --kernels: the placement of queues for kernels, as gpunvme_device_open() chooses it,
 * found out by doing so.
 */
#include "kernels.h"

#include <stdio.h>
#include <string.h>

#include "base/units.h"
#include "cli.h"
#include "device.h"

static gpunvme_err_t look(struct gpunvme_ctrl *ctrl, struct cli_kernels *out)
{
    struct gpunvme_device *dev;
    gpunvme_err_t err = gpunvme_device_open(ctrl, NULL, &dev);

    if (err)
        return err;
    gpunvme_device_get_info(dev, &out->info);
    snprintf(out->why_not_higher, sizeof(out->why_not_higher), "%s", out->info.why_not_higher);
    out->info.why_not_higher = out->why_not_higher;
    return gpunvme_device_close(dev);
}

int cli_kernels_look(const char *uri, struct cli_kernels *out)
{
    struct cli_device device;
    gpunvme_err_t err = cli_device_open(&device, uri, false, NULL);

    *out = (struct cli_kernels){.uri = uri};
    if (!err)
        err = look(device.ctrl, out);
    return cli_device_finish(&device, cli_device_tell(&device, err));
}

static const char *tier_text(enum gpunvme_placement tier)
{
    switch (tier) {
    case GPUNVME_PLACEMENT_TIER1:
        return "tier 1: queues and data in host memory";
    case GPUNVME_PLACEMENT_TIER2:
        return "tier 2: queues in host memory, data in GPU memory";
    case GPUNVME_PLACEMENT_TIER3:
        return "tier 3: queues and data in GPU memory";
    default:
        return "unknown";
    }
}

/* cudaGPUDirectRDMAWritesOrdering. */
static const char *ordering_text(int ordering)
{
    return ordering < 0     ? "unknown"
           : ordering == 0  ? "not ordered without a flush"
           : ordering < 200 ? "ordered for the GPU itself"
                            : "ordered for all";
}

void cli_kernels_print(const struct cli_kernels *k)
{
    const struct gpunvme_device_info *i = &k->info;
    char transfer[BASE_UNITS_TEXT], gpu[BASE_UNITS_TEXT], host[BASE_UNITS_TEXT];

    printf("\nKernels that do I/O on %s\n", k->uri);
    printf("  %-12s%s\n", "placement", tier_text(i->placement));
    if (*i->why_not_higher)
        cli_print_wrapped(stdout, 14, "not tier 3", i->why_not_higher);
    printf("  %-12s%u of %u entries, %s a command; %s of GPU memory, %s of host memory\n", "queues",
           i->queues, i->entries, base_format_size(i->max_transfer, transfer, sizeof(transfer)),
           base_format_size(i->gpu_nbytes, gpu, sizeof(gpu)),
           base_format_size(i->host_nbytes, host, sizeof(host)));
    if (i->gpu < 0)
        printf("  %-12snone: threads of the CPU stand in\n", "GPU");
    else
        printf("  %-12s%d; what devices write to its memory is %s\n", "GPU", i->gpu,
               ordering_text(i->gpu_writes_ordering));
}

void cli_kernels_json(const struct cli_kernels *k, struct cli_json *json)
{
    const struct gpunvme_device_info *i = &k->info;

    cli_json_object(json, "kernels");
    cli_json_text(json, "uri", k->uri);
    cli_json_u64(json, "placement", (uint64_t)i->placement);
    cli_json_text(json, "why_not_higher", *i->why_not_higher ? i->why_not_higher : NULL);
    cli_json_u64(json, "queues", i->queues);
    cli_json_u64(json, "entries", i->entries);
    cli_json_u64(json, "max_transfer", i->max_transfer);
    cli_json_u64(json, "gpu_bytes", i->gpu_nbytes);
    cli_json_u64(json, "host_bytes", i->host_nbytes);
    if (i->gpu >= 0)
        cli_json_u64(json, "gpu", (uint64_t)i->gpu);
    if (i->gpu_writes_ordering >= 0)
        cli_json_u64(json, "gpu_writes_ordering", (uint64_t)i->gpu_writes_ordering);
    if (i->gpu_flush_options >= 0)
        cli_json_u64(json, "gpu_flush_options", (uint64_t)i->gpu_flush_options);
    cli_json_close(json);
}
