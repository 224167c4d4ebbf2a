/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gpunvme identify: what a controller and its namespaces say of themselves.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/units.h"
#include "cli.h"
#include "device.h"
#include "json.h"

static const struct argp_option options[] = {
    CLI_OPTION_NSID,
    CLI_OPTION_JSON,
    {0},
};

static const char doc[] =
    "Brings a controller up and shows its identify data and that of its namespaces."
    "\vExamples:\n"
    "  gpunvme identify sim:size=1G\n"
    "  gpunvme identify sim:size=1G,ns,block=4096,size=2G\n"
    "  gpunvme identify --json | jq '.namespaces[].bytes'\n\n"
    "Exit codes: 0 done, 1 failed, 2 usage, 130 interrupted.";

static error_t parse(int key, char *arg, struct argp_state *state)
{
    return cli_parse_common(key, arg, state, state->input);
}

static const struct argp argp = {options, parse, "[URI]", doc, NULL, NULL, NULL};

/* Identify data with the paddings off. */
struct names {
    char model[41], serial[21], firmware[9], subnqn[257];
    char version[16];
};

static struct names names_of(struct gpunvme_ctrl *ctrl)
{
    const struct gpunvme_id_ctrl *id = gpunvme_ctrl_id(ctrl);
    struct gpunvme_ctrl_info info;
    struct names n;

    gpunvme_ctrl_get_info(ctrl, &info);
    cli_id_string(id->mn, sizeof(id->mn), n.model);
    cli_id_string(id->sn, sizeof(id->sn), n.serial);
    cli_id_string(id->fr, sizeof(id->fr), n.firmware);
    cli_id_string(id->subnqn, strnlen(id->subnqn, sizeof(id->subnqn)), n.subnqn);
    snprintf(n.version, sizeof(n.version), "%u.%u.%u", (unsigned)GPUNVME_GET(info.vs, VS_MJR),
             (unsigned)GPUNVME_GET(info.vs, VS_MNR), (unsigned)GPUNVME_GET(info.vs, VS_TER));
    return n;
}

/* An optional command that the controller may have. */
struct ability {
    const char *name;
    bool there;
};

#define NABILITIES 9

static void abilities_of(const struct gpunvme_id_ctrl *id, struct ability out[NABILITIES])
{
    const struct ability all[NABILITIES] = {
        {"compare", id->oncs & GPUNVME_ONCS_COMPARE},
        {"write zeroes", id->oncs & GPUNVME_ONCS_WRITE_ZEROES},
        {"deallocate", id->oncs & GPUNVME_ONCS_DSM},
        {"verify", id->oncs & GPUNVME_ONCS_VERIFY},
        {"SGLs", id->sgls & GPUNVME_SGLS_SUPPORT_MASK},
        {"shadow doorbells", id->oacs & GPUNVME_OACS_DBBUF},
        {"keep alive", id->kas},
        {"namespace management", id->oacs & GPUNVME_OACS_NS_MGMT},
        {"format", id->oacs & GPUNVME_OACS_FORMAT},
    };

    memcpy(out, all, sizeof(all));
}

static void print_abilities(const struct gpunvme_id_ctrl *id)
{
    struct ability abilities[NABILITIES];
    int column = 20;

    abilities_of(id, abilities);
    printf("  %-18s", "optional");
    for (unsigned i = 0, shown = 0; i < NABILITIES; i++) {
        if (!abilities[i].there)
            continue;
        if (column + (int)strlen(abilities[i].name) > 76) {
            printf(",\n%20s", "");
            column = 20;
            shown = 0;
        }
        column += printf("%s%s", shown++ ? ", " : "", abilities[i].name);
    }
    putchar('\n');
}

static void print_limits(const struct gpunvme_ctrl_info *info)
{
    char page[BASE_UNITS_TEXT], transfer[BASE_UNITS_TEXT], memory[BASE_UNITS_TEXT];

    printf("  %-18s%u I/O queue pairs of up to %u entries\n", "queues", info->max_io_queues,
           info->max_entries);
    printf("  %-18s%s\n", "largest command",
           info->max_transfer == UINT64_MAX
               ? "no limit"
               : base_format_size(info->max_transfer, transfer, sizeof(transfer)));
    printf("  %-18s%s\n", "memory page", base_format_size(info->page_size, page, sizeof(page)));
    printf("  %-18s%s\n", "write cache", info->volatile_write_cache ? "volatile" : "none");
    printf("  %-18s%s\n", "doorbells",
           info->shadow_doorbells ? "shadow (Doorbell Buffer Config)" : "registers");
    printf("  %-18s%s\n", "driver's memory",
           base_format_size(info->host_nbytes, memory, sizeof(memory)));
}

static void print_ctrl(struct gpunvme_ctrl *ctrl)
{
    const struct gpunvme_id_ctrl *id = gpunvme_ctrl_id(ctrl);
    struct names n = names_of(ctrl);
    struct gpunvme_ctrl_info info;

    gpunvme_ctrl_get_info(ctrl, &info);
    printf("Controller %s\n", gpunvme_ctrl_transport(ctrl)->address);
    printf("  %-18s%s\n", "model", n.model);
    printf("  %-18s%s\n", "serial number", n.serial);
    printf("  %-18s%s\n", "firmware", n.firmware);
    printf("  %-18s%s\n", "subsystem", n.subnqn);
    printf("  %-18s%s\n", "NVMe version", n.version);
    printf("  %-18s%04x:%04x, controller id %u\n", "PCI vendor", id->vid, id->ssvid, id->cntlid);
    print_limits(&info);
    print_abilities(id);
}

static void print_ns(const struct gpunvme_ns *ns)
{
    const struct gpunvme_lbaf *format = &ns->id.lbaf[gpunvme_id_ns_format(&ns->id)];
    char size[BASE_UNITS_TEXT];
    const struct gpunvme_ns *usable;

    printf("\nNamespace %u\n", ns->nsid);
    printf("  %-18s%s, %" PRIu64 " bytes\n", "size",
           base_format_size(ns->nbytes, size, sizeof(size)), ns->nbytes);
    printf("  %-18s%" PRIu64 " of %u bytes", "blocks", ns->nblocks, 1u << format->lbads);
    if (format->ms)
        printf(" and %u bytes of metadata", format->ms);
    putchar('\n');
    printf("  %-18s%u blocks\n", "largest command", ns->max_blocks);
    if (ns->boundary_blocks)
        printf("  %-18s%u blocks\n", "I/O boundary", ns->boundary_blocks);
    if (ns->readonly)
        printf("  %-18syes\n", "write protected");
    if (gpunvme_ctrl_ns(ns->ctrl, ns->nsid, &usable))
        printf("  %-18sno: %s\n", "usable", gpunvme_err_detail());
}

static void json_ns(const struct gpunvme_ns *ns, struct cli_json *json)
{
    const struct gpunvme_lbaf *format = &ns->id.lbaf[gpunvme_id_ns_format(&ns->id)];
    const struct gpunvme_ns *usable;

    cli_json_object(json, NULL);
    cli_json_u64(json, "nsid", ns->nsid);
    cli_json_u64(json, "bytes", ns->nbytes);
    cli_json_u64(json, "blocks", ns->nblocks);
    cli_json_u64(json, "block_size", ns->block_size);
    cli_json_u64(json, "metadata_size", format->ms);
    cli_json_u64(json, "max_blocks", ns->max_blocks);
    cli_json_u64(json, "boundary_blocks", ns->boundary_blocks);
    cli_json_bool(json, "readonly", ns->readonly);
    cli_json_bool(json, "usable", !gpunvme_ctrl_ns(ns->ctrl, ns->nsid, &usable));
    cli_json_close(json);
}

static void json_ctrl(struct gpunvme_ctrl *ctrl, struct cli_json *json)
{
    const struct gpunvme_id_ctrl *id = gpunvme_ctrl_id(ctrl);
    struct ability abilities[NABILITIES];
    struct names n = names_of(ctrl);
    struct gpunvme_ctrl_info info;

    gpunvme_ctrl_get_info(ctrl, &info);
    cli_json_text(json, "uri", gpunvme_ctrl_transport(ctrl)->address);
    cli_json_text(json, "model", n.model);
    cli_json_text(json, "serial", n.serial);
    cli_json_text(json, "firmware", n.firmware);
    cli_json_text(json, "subnqn", n.subnqn);
    cli_json_text(json, "version", n.version);
    cli_json_u64(json, "vid", id->vid);
    cli_json_u64(json, "ssvid", id->ssvid);
    cli_json_u64(json, "cntlid", id->cntlid);
    cli_json_u64(json, "io_queues", info.max_io_queues);
    cli_json_u64(json, "queue_entries", info.max_entries);
    if (info.max_transfer != UINT64_MAX)
        cli_json_u64(json, "max_transfer", info.max_transfer);
    cli_json_u64(json, "page_size", info.page_size);
    cli_json_bool(json, "volatile_write_cache", info.volatile_write_cache);
    cli_json_bool(json, "shadow_doorbells_used", info.shadow_doorbells);
    cli_json_array(json, "optional");
    abilities_of(id, abilities);
    for (unsigned i = 0; i < NABILITIES; i++)
        if (abilities[i].there)
            cli_json_text(json, NULL, abilities[i].name);
    cli_json_close(json);
}

/* The namespaces asked for: one, or all. */
static bool wanted(const struct cli_common *common, const struct gpunvme_ns *ns)
{
    return !common->nsid || ns->nsid == common->nsid;
}

static void show(const struct cli_common *common, struct gpunvme_ctrl *ctrl)
{
    const struct gpunvme_ns *ns;
    struct cli_json json;

    if (!common->json) {
        print_ctrl(ctrl);
        for (uint32_t i = 0; (ns = gpunvme_ctrl_ns_at(ctrl, i)); i++)
            if (wanted(common, ns))
                print_ns(ns);
        return;
    }
    cli_json_begin(&json, stdout);
    json_ctrl(ctrl, &json);
    cli_json_array(&json, "namespaces");
    for (uint32_t i = 0; (ns = gpunvme_ctrl_ns_at(ctrl, i)); i++)
        if (wanted(common, ns))
            json_ns(ns, &json);
    cli_json_end(&json);
}

int cli_identify(int argc, char **argv)
{
    struct cli_common common = {0};
    struct cli_device device;
    const struct gpunvme_ns *ns;
    gpunvme_err_t err;

    if (!cli_parse(&argp, argc, argv, &common) || !(common.uri = cli_uri(common.uri)))
        return CLI_USAGE;
    err = cli_device_open(&device, common.uri, false, NULL);
    if (!err && common.nsid) {
        err = cli_device_ns(&device, common.nsid, &ns);
        if (err == GPUNVME_ERR_FORMAT) /* one that can't be used is shown all the same */
            err = GPUNVME_OK;
    }
    if (!err)
        show(&common, device.ctrl);
    return cli_device_finish(&device, cli_device_tell(&device, err));
}
