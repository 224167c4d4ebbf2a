/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gpunvme topology: which drives and GPUs are near each other. topology_look.c asks the machine,
 * topology_svg.c draws.
 */
#include "topology.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "cli.h"
#include "json.h"

struct args {
    struct cli_common common;
    const char *svg, *xml, *root;
};

enum { KEY_SVG = CLI_KEY_OWN, KEY_XML, KEY_ROOT };

static const struct argp_option options[] = {
    {"svg", KEY_SVG, "FILE", 0, "Draw a picture as well", 0},
    {"xml", KEY_XML, "FILE", 0, "Show the machine that lstopo --of xml described in FILE", 0},
    {"root", KEY_ROOT, "DIR", OPTION_HIDDEN, "Put before /sys: for tests", 0},
    CLI_OPTION_JSON,
    {0},
};

static const char doc[] =
    "Shows which NVMe drives and GPUs share a switch, a root port or a socket, with their NUMA "
    "nodes, links, drivers and IOMMU groups. Opens no device."
    "\vA drive and a GPU below one switch exchange data without the processor. Below one root "
    "complex, most server processors and newer desktop ones forward it. Across sockets it is slow "
    "or does not work. 'gpunvme check-p2p' tests it. An idle GPU shows a slower link than under "
    "load.\n\n"
    "Examples:\n"
    "  gpunvme topology\n"
    "  gpunvme topology --svg topology.svg\n"
    "  gpunvme topology --json | jq '.pairs[] | select(.meet == \"switch\")'\n\n"
    "Exit codes: 0 done, 1 failed, 2 usage.";

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct args *args = state->input;

    switch (key) {
    case KEY_SVG:
        args->svg = arg;
        return 0;
    case KEY_XML:
        args->xml = arg;
        return 0;
    case KEY_ROOT:
        args->root = arg;
        return 0;
    case CLI_KEY_JSON:
        args->common.json = true;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp argp = {options, parse, NULL, doc, NULL, NULL, NULL};

const char *topology_kind_name(enum topology_kind kind)
{
    static const char *const names[] = {"",      "host bridge", "root port", "switch port",
                                        "drive", "GPU"};

    return names[kind];
}

const char *topology_meeting_name(enum topology_meeting meeting)
{
    static const char *const names[] = {"the same switch", "the same root port",
                                        "the same host bridge", "the same socket",
                                        "different sockets, or no more is known"};

    return names[meeting];
}

static const char *meeting_word(enum topology_meeting meeting)
{
    static const char *const words[] = {"switch", "root port", "host bridge", "package", "machine"};

    return words[meeting];
}

enum topology_meeting topology_meet(const struct topology *t, unsigned a, unsigned b, unsigned *at)
{
    const struct topology_row *row;

    while (a != b) {
        if (t->rows[a].depth >= t->rows[b].depth)
            a = (unsigned)t->rows[a].parent;
        else
            b = (unsigned)t->rows[b].parent;
    }
    *at = a;
    row = &t->rows[a];
    switch (row->kind) {
    case TOPOLOGY_SWITCH_PORT:
        return TOPOLOGY_MEET_SWITCH;
    case TOPOLOGY_ROOT_PORT:
        return TOPOLOGY_MEET_ROOT_PORT;
    case TOPOLOGY_HOST_BRIDGE:
        return TOPOLOGY_MEET_HOST_BRIDGE;
    default:
        return row->is_package ? TOPOLOGY_MEET_PACKAGE : TOPOLOGY_MEET_MACHINE;
    }
}

void topology_describe(const struct topology_row *row, char *text, size_t capacity)
{
    char group[32] = "no IOMMU group", node[32] = "", link[128] = "", most[80] = "";

    text[0] = 0;
    if (row->kind != TOPOLOGY_DRIVE && row->kind != TOPOLOGY_GPU)
        return;
    if (row->iommu_group >= 0)
        snprintf(group, sizeof(group), "IOMMU group %d", row->iommu_group);
    if (row->node >= 0)
        snprintf(node, sizeof(node), "node %d, ", row->node);
    if (row->width && row->max_width &&
        (row->width < row->max_width || strcmp(row->speed, row->max_speed) != 0))
        snprintf(most, sizeof(most), " (can do %s x%u)", row->max_speed, row->max_width);
    if (row->width)
        snprintf(link, sizeof(link), ", %s x%u%s", row->speed, row->width, most);
    snprintf(text, capacity, "%s%s%s, %s%s", node, row->driver[0] ? "driver " : "no driver",
             row->driver, group, link);
}

static void print_row(const struct topology_row *row)
{
    int indent = 2 * (int)row->depth;
    char text[512];

    printf("%*s%s%s%s", indent, "", topology_kind_name(row->kind),
           *topology_kind_name(row->kind) ? " " : "", row->name);
    if (row->kind == TOPOLOGY_DRIVE || row->kind == TOPOLOGY_GPU) {
        printf("  %04x:%04x%s%s\n", row->vendor, row->device, row->model[0] ? "  " : "",
               row->model);
        topology_describe(row, text, sizeof(text));
        printf("%*s%s\n", indent + 6, "", text);
    } else {
        putchar('\n');
    }
}

/* Calls `tell` for each drive with each GPU; returns how many pairs there are. */
static unsigned for_pairs(const struct topology *t,
                          void (*tell)(const struct topology *t, unsigned drive, unsigned gpu,
                                       void *context),
                          void *context)
{
    unsigned count = 0;

    for (unsigned i = 0; i < t->nrows; i++)
        for (unsigned j = 0; t->rows[i].kind == TOPOLOGY_DRIVE && j < t->nrows; j++)
            if (t->rows[j].kind == TOPOLOGY_GPU) {
                tell(t, i, j, context);
                count++;
            }
    return count;
}

static void print_pair(const struct topology *t, unsigned drive, unsigned gpu, void *context)
{
    unsigned at;
    enum topology_meeting meeting = topology_meet(t, drive, gpu, &at);

    (void)context;
    printf("  drive %s, GPU %s: %s (%s)\n", t->rows[drive].name, t->rows[gpu].name,
           topology_meeting_name(meeting), t->rows[at].name);
}

static bool has_devices(const struct topology *t)
{
    for (unsigned i = 0; i < t->nrows; i++)
        if (t->rows[i].kind == TOPOLOGY_DRIVE || t->rows[i].kind == TOPOLOGY_GPU)
            return true;
    return false;
}

static void print_all(const struct topology *t)
{
    if (!has_devices(t)) {
        puts("No NVMe drive and no GPU on the PCI bus.");
        return;
    }
    for (unsigned i = 0; i < t->nrows; i++)
        print_row(&t->rows[i]);
    puts("\nWhere drives and GPUs meet");
    if (!for_pairs(t, print_pair, NULL))
        puts("  nowhere: it takes a drive and a GPU");
}

static void json_row(const struct topology *t, const struct topology_row *row,
                     struct cli_json *json)
{
    cli_json_object(json, NULL);
    cli_json_text(json, "kind",
                  row->kind == TOPOLOGY_MACHINE ? "machine" : topology_kind_name(row->kind));
    cli_json_text(json, "name", row->name);
    cli_json_text(json, "parent", row->parent < 0 ? NULL : t->rows[row->parent].name);
    if (row->kind == TOPOLOGY_DRIVE || row->kind == TOPOLOGY_GPU) {
        cli_json_u64(json, "vendor", row->vendor);
        cli_json_u64(json, "device", row->device);
        cli_json_text(json, "model", row->model[0] ? row->model : NULL);
        cli_json_text(json, "driver", row->driver[0] ? row->driver : NULL);
        if (row->node >= 0)
            cli_json_u64(json, "node", (uint64_t)row->node);
        if (row->iommu_group >= 0)
            cli_json_u64(json, "iommu_group", (uint64_t)row->iommu_group);
        cli_json_text(json, "link_speed", row->speed[0] ? row->speed : NULL);
        cli_json_u64(json, "link_width", row->width);
        cli_json_text(json, "max_link_speed", row->max_speed[0] ? row->max_speed : NULL);
        cli_json_u64(json, "max_link_width", row->max_width);
    }
    cli_json_close(json);
}

static void json_pair(const struct topology *t, unsigned drive, unsigned gpu, void *context)
{
    struct cli_json *json = context;
    unsigned at;

    cli_json_object(json, NULL);
    cli_json_text(json, "drive", t->rows[drive].name);
    cli_json_text(json, "gpu", t->rows[gpu].name);
    cli_json_text(json, "meet", meeting_word(topology_meet(t, drive, gpu, &at)));
    cli_json_text(json, "at", t->rows[at].name);
    cli_json_close(json);
}

static void json_all(const struct topology *t)
{
    struct cli_json json;

    cli_json_begin(&json, stdout);
    cli_json_array(&json, "objects");
    for (unsigned i = 0; i < t->nrows; i++)
        json_row(t, &t->rows[i], &json);
    cli_json_close(&json);
    cli_json_array(&json, "pairs");
    for_pairs(t, json_pair, &json);
    cli_json_end(&json);
}

static gpunvme_err_t draw(const struct topology *t, const char *path)
{
    FILE *file = fopen(path, "we");
    bool bad;

    if (!file)
        return base_fail_errno(errno, "%s", path);
    topology_svg(t, file);
    bad = ferror(file);
    if (fclose(file) || bad)
        return base_fail_errno(errno, "%s", path);
    return GPUNVME_OK;
}

int cli_topology(int argc, char **argv)
{
    static struct topology topology; /* many rows: not for the stack */
    struct args args = {.root = ""};
    gpunvme_err_t err;

    if (!cli_parse(&argp, argc, argv, &args))
        return CLI_USAGE;
    err = topology_look(args.xml, args.root, &topology);
    if (!err && args.svg)
        err = draw(&topology, args.svg);
    if (err)
        return cli_fail(err);
    if (args.common.json)
        json_all(&topology);
    else
        print_all(&topology);
    return CLI_OK;
}
