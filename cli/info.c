/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gpunvme info: what this machine has, which paths work on it, and why the others do not.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/units.h"
#include "cli.h"
#include "gpunvme/memory.h"
#include "gpunvme/storage.h"
#include "json.h"
#include "kernels.h"
#include "machine.h"

#define TEXT 256

/* A way from storage to memory. */
struct way {
    const char *name, *what;
    bool works;
    char why[TEXT]; /* it works, or does not */
};

#define NWAYS 20

struct args {
    struct cli_common common;
    const char *root, *kernels;
};

enum { KEY_ROOT = CLI_KEY_OWN, KEY_KERNELS };

static const struct argp_option options[] = {
    {"kernels", KEY_KERNELS, "URI", 0,
     "Open this controller, and show where kernels that do their own I/O would keep queues and "
     "data",
     0},
    CLI_OPTION_JSON,
    {"root", KEY_ROOT, "DIR", OPTION_HIDDEN, "Look at the machine whose files are in DIR", 0},
    {0},
};

static const char doc[] =
    "Shows what this machine has, which paths from storage to memory work, and why the others do "
    "not. Changes nothing, and without --kernels opens no device."
    "\vExamples:\n"
    "  gpunvme info\n"
    "  gpunvme info --kernels nvme:0000:01:00.0\n"
    "  gpunvme info --json | jq '.paths[] | select(.works)'\n\n"
    "Exit codes: 0 done, 1 failed, 2 usage, 130 interrupted.";

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct args *args = state->input;

    switch (key) {
    case KEY_ROOT:
        args->root = arg;
        return 0;
    case KEY_KERNELS:
        args->kernels = arg;
        return 0;
    case CLI_KEY_JSON:
        args->common.json = true;
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "no argument is needed: '%s'", arg);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp argp = {options, parse, NULL, doc, NULL, NULL, NULL};

static void set_way(struct way *way, const char *name, const char *what, bool works,
                    const char *why)
{
    *way = (struct way){.name = name, .what = what, .works = works};
    snprintf(way->why, sizeof(way->why), "%s", why);
}

/* The ways of the storage API, by backend. */
static unsigned set_backends(struct way *ways, unsigned room)
{
    static struct gpunvme_backend_info info[NWAYS];
    unsigned n = 0;

    while (n < room && gpunvme_backend_at(n, &info[n])) {
        set_way(&ways[n], info[n].name, info[n].uris, info[n].works, info[n].why);
        n++;
    }
    return n;
}

/* The first drive that `driver` has ("": none has it); NULL where there is none. */
static const struct cli_drive *drive_of(const struct cli_machine *m, const char *driver)
{
    for (unsigned i = 0; i < m->ndrives; i++)
        if (!strcmp(m->drives[i].driver, driver))
            return &m->drives[i];
    return NULL;
}

/* What the machine lacks for a way; "" for nothing. */
static const char *vfio_lacks(const struct cli_machine *m)
{
    if (!m->iommu)
        return "the kernel uses no IOMMU (intel_iommu=on or amd_iommu=on)";
    if (!m->vfio)
        return "/dev/vfio/vfio is not there (modprobe vfio-pci)";
    return m->vfio_open ? "" : "/dev/vfio/vfio may not be opened by this user";
}

static const char *sysfs_lacks(const struct cli_machine *m)
{
    uint64_t free = 0;

    for (unsigned i = 0; i < m->nhugepages; i++)
        free += m->hugepages[i].free;
    if (m->iommu)
        return "an IOMMU is in use: vfio works with that";
    if (!free)
        return "no huge pages are free (sysctl vm.nr_hugepages=64)";
    return geteuid() ? "it takes root" : "";
}

static const char *kmod_lacks(const struct cli_machine *m, const char *root)
{
    const struct cli_drive *drive = drive_of(m, "gpunvme");
    char path[512];

    if (!drive)
        return "";
    snprintf(path, sizeof(path), "%s/dev/gpunvme/%s", root, drive->address);
    if (access(path, R_OK | W_OK))
        return "the module's file in /dev/gpunvme may not be opened by this user";
    return !m->iommu && geteuid() ? "without an IOMMU it takes root" : "";
}

/* A way to drives that have this driver. `bind`: how they get it. */
static void set_drive_way(struct way *way, const struct cli_machine *m, const char *name,
                          const char *what, const char *driver, const char *lacks, const char *bind)
{
    const struct cli_drive *drive = drive_of(m, driver);

    *way = (struct way){.name = name, .what = what, .works = drive && !*lacks};
    if (!m->ndrives)
        snprintf(way->why, sizeof(way->why), "this machine has no NVMe drive");
    else if (*lacks)
        snprintf(way->why, sizeof(way->why), "%s", lacks);
    else if (drive)
        snprintf(way->why, sizeof(way->why), "nvme:%s", drive->address);
    else
        snprintf(way->why, sizeof(way->why), "no NVMe drive %s", bind);
}

/* How many there are. */
static unsigned find_ways(const struct cli_machine *m, const char *root, struct way ways[NWAYS])
{
    const char *no_gpu = gpunvme_mem_gpu_is_host() ? gpunvme_mem_gpu_why_not() : "";

    set_way(&ways[0], "sim", "the software NVMe controller", true,
            m->io_uring_errno ? "in memory and in image files, without io_uring"
                              : "in memory and in image files");
    set_way(&ways[1], "vfio-user", "a controller in another process, by a socket", true,
            "where a server runs, as gpunvme sim --listen PATH does: vfio-user:PATH");
    set_way(&ways[2], "tier 1", "queues and data in host memory", true, "always");
    set_way(&ways[3], "tier 2", "queues in host memory, data in GPU memory",
            !gpunvme_mem_gpu_is_host(), *no_gpu ? no_gpu : "a GPU is there");
    set_drive_way(&ways[4], m, "vfio", "a drive in user space, behind the IOMMU", "vfio-pci",
                  vfio_lacks(m), "is bound to vfio-pci (scripts/vfio-bind.sh BDF)");
    set_drive_way(&ways[5], m, "kmod", "a drive by the kernel module gpunvme", "gpunvme",
                  kmod_lacks(m, root),
                  "is bound to it (scripts/vfio-bind.sh --driver gpunvme BDF)");
    set_drive_way(
        &ways[6], m, "uio", "a drive in user space, with huge pages, as root", "uio_pci_generic",
        sysfs_lacks(m),
        "is bound to uio_pci_generic (scripts/vfio-bind.sh --driver uio_pci_generic BDF)");
    set_drive_way(&ways[7], m, "sysfs", "a drive without a driver, with huge pages, as root", "",
                  sysfs_lacks(m), "is without a driver (scripts/vfio-bind.sh --driver none BDF)");
    set_way(&ways[8], "tier 3", "queues and data in GPU memory", !gpunvme_mem_gpu_is_host(),
            *no_gpu ? no_gpu
                    : "where the controller reaches GPU memory: info --kernels URI tells for one");
    return 9 + set_backends(&ways[9], NWAYS - 9);
}

static void print_gpus(void)
{
    struct gpunvme_gpu_info info;
    char memory[BASE_UNITS_TEXT];

    if (!gpunvme_mem_gpu_count())
        cli_print_wrapped(stdout, 14, "GPU", gpunvme_mem_gpu_why_not());
    for (unsigned i = 0; i < gpunvme_mem_gpu_count(); i++) {
        if (gpunvme_mem_gpu_info(i, &info)) {
            printf("  %-12s%u: %s\n", "GPU", i, gpunvme_err_detail());
            continue;
        }
        printf("  %-12s%u: %s, %s, %u SMs, compute %u.%u, at %s\n", "GPU", i, info.name,
               base_format_size(info.memory_nbytes, memory, sizeof(memory)), info.nprocessors,
               info.cc_major, info.cc_minor, info.pci_address);
    }
}

static void print_host(const struct cli_machine *m)
{
    char total[BASE_UNITS_TEXT], free[BASE_UNITS_TEXT];

    puts("Machine");
    printf("  %-12s%s\n", "kernel", m->kernel);
    printf("  %-12s%s, %u of its threads for us\n", "CPU", *m->cpu ? m->cpu : "unknown", m->ncpus);
    printf("  %-12s%s, %s of it available\n", "memory",
           base_format_size(m->memory_nbytes, total, sizeof(total)),
           base_format_size(m->memory_free_nbytes, free, sizeof(free)));
    for (unsigned i = 0; i < m->nhugepages; i++)
        printf("  %-12s%" PRIu64 " of %s, %" PRIu64 " free\n", i ? "" : "hugepages",
               m->hugepages[i].total,
               base_format_size(m->hugepages[i].nbytes, total, sizeof(total)),
               m->hugepages[i].free);
    print_gpus();
    printf("  %-12s%s\n", "IOMMU", m->iommu ? "in use" : "not in use");
    printf("  %-12s%s\n", "VFIO",
           !m->vfio       ? "no /dev/vfio/vfio"
           : m->vfio_open ? "usable"
                          : "there, but this user may not open it");
    printf("  %-12s%s%s\n", "io_uring", m->io_uring_errno ? "refused: " : "allowed",
           m->io_uring_errno ? strerror(m->io_uring_errno) : "");
}

static void print_drives(const struct cli_machine *m)
{
    if (!m->ndrives)
        printf("  %-12snone on the PCI bus\n", "NVMe drives");
    for (unsigned i = 0; i < m->ndrives; i++) {
        const struct cli_drive *d = &m->drives[i];

        printf("  %-12s%s  %04x:%04x", i ? "" : "NVMe drives", d->address, d->vendor, d->device);
        if (*d->name)
            printf("  %s, %s", d->name, d->model);
        printf("\n%14s%s%s", "", *d->driver ? "driver " : "no driver", d->driver);
        if (d->iommu_group >= 0)
            printf(", IOMMU group %d", d->iommu_group);
        else
            printf(", no IOMMU group");
        putchar('\n');
    }
    if (m->ndrives_total > m->ndrives)
        printf("%14sand %u more\n", "", m->ndrives_total - m->ndrives);
}

static void print_ways(const struct way *ways, unsigned n, bool works)
{
    char text[2 * TEXT];

    for (unsigned i = 0; i < n; i++) {
        if (ways[i].works != works)
            continue;
        snprintf(text, sizeof(text), "%s: %.*s", ways[i].what, TEXT, ways[i].why);
        cli_print_wrapped(stdout, 14, ways[i].name, text);
    }
}

static void print_all(const struct cli_machine *m, const struct way *ways, unsigned nways,
                      const struct cli_kernels *kernels)
{
    print_host(m);
    print_drives(m);
    puts("\nPaths that work here");
    print_ways(ways, nways, true);
    puts("\nPaths that do not, and why");
    print_ways(ways, nways, false);
    if (kernels->uri)
        cli_kernels_print(kernels);
}

static void json_gpus(struct cli_json *json)
{
    struct gpunvme_gpu_info info;

    cli_json_array(json, "gpus");
    for (unsigned i = 0; i < gpunvme_mem_gpu_count(); i++) {
        if (gpunvme_mem_gpu_info(i, &info))
            continue;
        cli_json_object(json, NULL);
        cli_json_text(json, "name", info.name);
        cli_json_u64(json, "memory_bytes", info.memory_nbytes);
        cli_json_u64(json, "multiprocessors", info.nprocessors);
        cli_json_u64(json, "cc_major", info.cc_major);
        cli_json_u64(json, "cc_minor", info.cc_minor);
        cli_json_text(json, "pci_address", info.pci_address);
        cli_json_u64(json, "driver_version", info.driver_version);
        cli_json_u64(json, "runtime_version", info.runtime_version);
        cli_json_close(json);
    }
    cli_json_close(json);
    cli_json_text(json, "no_gpu", gpunvme_mem_gpu_is_host() ? gpunvme_mem_gpu_why_not() : NULL);
}

static void json_drives(const struct cli_machine *m, struct cli_json *json)
{
    cli_json_array(json, "drives");
    for (unsigned i = 0; i < m->ndrives; i++) {
        const struct cli_drive *d = &m->drives[i];

        cli_json_object(json, NULL);
        cli_json_text(json, "pci_address", d->address);
        cli_json_u64(json, "vendor", d->vendor);
        cli_json_u64(json, "device", d->device);
        cli_json_text(json, "driver", *d->driver ? d->driver : NULL);
        cli_json_text(json, "name", *d->name ? d->name : NULL);
        cli_json_text(json, "model", *d->model ? d->model : NULL);
        if (d->iommu_group >= 0)
            cli_json_u64(json, "iommu_group", (uint64_t)d->iommu_group);
        cli_json_close(json);
    }
    cli_json_close(json);
}

static void json_all(const struct cli_machine *m, const struct way *ways, unsigned nways,
                     const struct cli_kernels *kernels)
{
    struct cli_json json;

    cli_json_begin(&json, stdout);
    cli_json_text(&json, "version", CLI_VERSION);
    cli_json_text(&json, "kernel", m->kernel);
    cli_json_text(&json, "cpu", m->cpu);
    cli_json_u64(&json, "cpus", m->ncpus);
    cli_json_u64(&json, "memory_bytes", m->memory_nbytes);
    cli_json_u64(&json, "memory_available_bytes", m->memory_free_nbytes);
    json_gpus(&json);
    json_drives(m, &json);
    cli_json_bool(&json, "iommu", m->iommu);
    cli_json_bool(&json, "vfio", m->vfio_open);
    cli_json_bool(&json, "io_uring", !m->io_uring_errno);
    cli_json_array(&json, "hugepages");
    for (unsigned i = 0; i < m->nhugepages; i++) {
        cli_json_object(&json, NULL);
        cli_json_u64(&json, "size", m->hugepages[i].nbytes);
        cli_json_u64(&json, "total", m->hugepages[i].total);
        cli_json_u64(&json, "free", m->hugepages[i].free);
        cli_json_close(&json);
    }
    cli_json_close(&json);
    cli_json_array(&json, "paths");
    for (unsigned i = 0; i < nways; i++) {
        cli_json_object(&json, NULL);
        cli_json_text(&json, "name", ways[i].name);
        cli_json_text(&json, "what", ways[i].what);
        cli_json_bool(&json, "works", ways[i].works);
        cli_json_text(&json, "why", ways[i].why);
        cli_json_close(&json);
    }
    cli_json_close(&json);
    if (kernels->uri)
        cli_kernels_json(kernels, &json);
    cli_json_end(&json);
}

int cli_info(int argc, char **argv)
{
    static struct cli_machine machine; /* has room for many drives: not for the stack */
    struct args args = {.root = ""};
    struct cli_kernels kernels = {0};
    struct way ways[NWAYS];
    unsigned nways;
    int code = CLI_OK;

    if (!cli_parse(&argp, argc, argv, &args))
        return CLI_USAGE;
    if (args.kernels)
        code = cli_kernels_look(args.kernels, &kernels);
    if (code != CLI_OK)
        return code;
    cli_machine_look(args.root, &machine);
    nways = find_ways(&machine, args.root, ways);
    if (args.common.json)
        json_all(&machine, ways, nways, &kernels);
    else
        print_all(&machine, ways, nways, &kernels);
    return CLI_OK;
}
