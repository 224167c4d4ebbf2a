/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gpunvme check-p2p: tries, step by step, what tier a GPU and a drive can reach together. Writes
 * nothing to the drive's medium.
 *
 * It looks at parts that have no public face (the PCI function, the wall to CUDA), since those are
 * what it checks. The GPU touches the drive's registers only when every step before it said yes: a
 * GPU's access to a BAR that cannot answer has been seen to take machines down.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fail.h"
#include "cli.h"
#include "device.h"
#include "gpunvme/memory.h"
#include "json.h"
#include "memory/cuda.h"
#include "transport/pci.h"

#define DATA_NBYTES 65536u
#define PAGE_NBYTES 4096u /* the registers below the doorbells */
#define NSTEPS      8

enum result { STEP_NO, STEP_OK, STEP_SKIPPED };

struct step {
    const char *name;
    enum result result;
    gpunvme_err_t err; /* of a step that failed */
    char why[400];
};

struct check {
    struct cli_common common;
    const char *root;
    bool force_unsafe;

    char uri[300];
    bool is_sim;
    bool is_simulated; /* the GPU, too: there is none */
    struct pci_function function;
    struct cli_device device;
    const struct gpunvme_ns *ns;
    struct gpunvme_ioq *ioq;
    struct gpunvme_buf bar;
    void *bar_gpu;
    unsigned tier;

    unsigned nsteps;
    struct step steps[NSTEPS];
};

enum { KEY_FORCE_UNSAFE = CLI_KEY_OWN, KEY_ROOT };

static const struct argp_option options[] = {
    CLI_OPTION_NSID,
    {"force-unsafe", KEY_FORCE_UNSAFE, NULL, 0,
     "Go on even if a GPU's access to the drive may crash the machine", 1},
    {"root", KEY_ROOT, "DIR", OPTION_HIDDEN, "Put before /sys and /proc: for tests", 1},
    CLI_OPTION_JSON,
    {0},
};

static const char doc[] =
    "Tests, step by step, what the GPU and the drive can do together. It says of each step whether "
    "it works, and if not, why, and what would help. Reads from the drive and writes nothing to "
    "it. BDF is the drive's PCI address; a URI works, too."
    "\vTier 1: queues and data in host memory. Tier 2: the drive moves data into GPU memory by "
    "itself. Tier 3: the GPU also rings the drive's doorbells. docs/HARDWARE.md explains them.\n\n"
    "In a virtual machine, and with an emulated drive, it stops before the GPU touches anything: a "
    "GPU's access to registers that do not answer can crash the machine. --force-unsafe goes "
    "on.\n\n"
    "Examples:\n"
    "  gpunvme check-p2p 0000:01:00.0\n"
    "  gpunvme check-p2p sim:size=64M\n\n"
    "Exit codes: 0 every step that applies works, 1 a step does not, 2 usage.";

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct check *c = state->input;

    switch (key) {
    case KEY_FORCE_UNSAFE:
        c->force_unsafe = true;
        return 0;
    case KEY_ROOT:
        c->root = arg;
        return 0;
    default:
        return cli_parse_common(key, arg, state, &c->common);
    }
}

static const struct argp argp = {options, parse, "BDF|URI", doc, NULL, NULL, NULL};

static void add_step(struct check *c, const char *name, enum result result, gpunvme_err_t err,
                     const char *format, va_list args)
{
    struct step *step = &c->steps[c->nsteps++];

    step->name = name;
    step->result = result;
    step->err = err;
    vsnprintf(step->why, sizeof(step->why), format, args);
}

/* Notes a step that worked or was skipped; true if it worked. */
__attribute__((format(printf, 4, 5))) static bool note(struct check *c, const char *name,
                                                       enum result result, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    add_step(c, name, result, GPUNVME_OK, format, args);
    va_end(args);
    return result == STEP_OK;
}

/* Notes a step that did not work; false. */
__attribute__((format(printf, 4, 5))) static bool refuse(struct check *c, const char *name,
                                                         gpunvme_err_t err, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    add_step(c, name, STEP_NO, err, format, args);
    va_end(args);
    return false;
}

/* The same, where a call failed. */
static bool failed(struct check *c, const char *name, gpunvme_err_t err, const char *help)
{
    char text[1024];

    cli_describe(err, text, sizeof(text));
    return refuse(c, name, err, "%s. %s", text, help);
}

static bool is_virtual(const struct check *c)
{
    char path[300], line[4096];
    bool found = false;
    FILE *file;

    snprintf(path, sizeof(path), "%.250s/proc/cpuinfo", c->root);
    file = fopen(path, "re");
    while (file && !found && fgets(line, sizeof(line), file))
        found = !strncmp(line, "flags", 5) && strstr(line, " hypervisor");
    if (file)
        fclose(file);
    return found;
}

/* Who makes drives out of software: the PCI vendor, NULL if it is none of those. */
static const char *emulated_by(const struct check *c)
{
    static const struct {
        unsigned vendor;
        const char *name;
    } known[] = {{0x1b36, "QEMU"},       {0x1af4, "virtio"},  {0x15ad, "VMware"},
                 {0x80ee, "VirtualBox"}, {0x1414, "Hyper-V"}, {0x1ae0, "Google's cloud"}};
    char text[32];
    unsigned vendor;

    if (pci_read_attr(&c->function, "vendor", text, sizeof(text)))
        return NULL;
    vendor = (unsigned)strtoul(text, NULL, 16);
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (known[i].vendor == vendor)
            return known[i].name;
    return NULL;
}

static bool check_machine(struct check *c)
{
    static const char name[] = "machine";
    const char *by, *address = c->uri + strlen("nvme:");
    char bdf[32];
    gpunvme_err_t err;

    if (c->is_sim)
        return note(c, name, STEP_OK, "a software controller: no hardware is touched");
    snprintf(bdf, sizeof(bdf), "%.*s", (int)strcspn(address, ","), address);
    err = pci_find(bdf, &c->function);
    if (err)
        return failed(c, name, err, "Name the drive by its PCI address");
    by = emulated_by(c);
    if (c->force_unsafe)
        return note(c, name, STEP_OK, "not looked at: --force-unsafe");
    if (by)
        return refuse(c, name, GPUNVME_ERR_UNSUPPORTED,
                      "the drive is emulated by %s, and a GPU's access to its registers may take "
                      "the machine down. --force-unsafe goes on",
                      by);
    if (is_virtual(c))
        return refuse(c, name, GPUNVME_ERR_UNSUPPORTED,
                      "this is a virtual machine (the processor's flag 'hypervisor'): even if the "
                      "drive is a real one, the GPU may not reach its registers, and trying may "
                      "take the machine down. Try on the host; --force-unsafe goes on here");
    return note(c, name, STEP_OK, "no hypervisor, and the drive is not emulated");
}

static bool check_transport(struct check *c)
{
    static const char name[] = "transport";
    gpunvme_err_t err = cli_device_open(&c->device, c->uri, false, NULL);
    struct gpunvme_ctrl_info info;

    if (!err)
        err = cli_device_ns(&c->device, c->common.nsid, &c->ns);
    if (!err)
        err = cli_queue_create(&c->device, 8, &c->ioq);
    if (err)
        return failed(c, name, err, "scripts/vfio-bind.sh BDF gives a drive to programs");
    gpunvme_ctrl_get_info(c->device.ctrl, &info);
    c->tier = 1;
    return note(c, name, STEP_OK, "%s: the controller is up, NVMe %u.%u, by '%s'",
                c->device.transport->address, info.vs >> 16, info.vs >> 8 & 0xff,
                c->device.inner->name);
}

static bool check_gpu(struct check *c, struct gpunvme_gpu_info *gpu)
{
    static const char name[] = "GPU";
    unsigned index = 0;
    gpunvme_err_t err;

    memset(gpu, 0, sizeof(*gpu));
    if (c->is_simulated) {
        note(c, name, STEP_SKIPPED, "none (%s): simulated, host memory stands in for the GPU's",
             gpunvme_mem_gpu_why_not());
        return true;
    }
    err = gpunvme_mem_gpu_current(&index);
    if (!err)
        err = gpunvme_mem_gpu_info(index, gpu);
    if (err)
        return failed(c, name, err,
                      "It takes an NVIDIA GPU with its driver, and a build with CUDA");
    return note(c, name, STEP_OK, "%s at %s", gpu->name, gpu->pci_address);
}

/* How many PCI functions the ways to both have in common; -1: not even the host bridge. */
static int shared_ports(const char *a, const char *b)
{
    int shared = -1;

    while (*a && *b) {
        size_t na = strcspn(a, "/"), nb = strcspn(b, "/");

        if (na != nb || strncmp(a, b, na) != 0)
            break;
        if (!strncmp(a, "pci", 3))
            shared = 0;
        else if (shared >= 0)
            shared++;
        a += na + (a[na] != 0);
        b += nb + (b[nb] != 0);
    }
    return shared;
}

static bool check_place(struct check *c, const char *gpu)
{
    static const char name[] = "place";
    static const char far_apart[] =
        "drive and GPU are at different host bridges: what one sends to the other may get lost on "
        "the way. Move one of them to a slot of the same socket (gpunvme topology shows which)";
    char path[300], *a, *b;
    int shared;

    if (c->is_sim)
        return note(c, name, STEP_SKIPPED, "a software controller has no place on the bus");
    snprintf(path, sizeof(path), "%.250s/%.31s", pci_sysfs, gpu);
    a = realpath(c->function.path, NULL);
    b = realpath(path, NULL);
    shared = a && b ? shared_ports(a, b) : -1;
    free(a);
    free(b);
    if (shared < 0 && !c->force_unsafe)
        return refuse(c, name, GPUNVME_ERR_UNSUPPORTED, "%s; --force-unsafe goes on", far_apart);
    if (shared < 0)
        return note(c, name, STEP_OK, "%s; going on: --force-unsafe", far_apart);
    return note(c, name, STEP_OK, "%s",
                shared > 1    ? "below one switch: the best place"
                : shared == 1 ? "below one root port"
                              : "at one host bridge: most server processors pass on what the two "
                                "send each other, not all others do");
}

/* The transport's own table: the command's stands before it. */
static bool check_registers(struct check *c)
{
    static const char name[] = "registers";
    struct gpunvme_transport *t = c->device.transport;
    struct gpunvme_ctrl_info info;
    uint32_t vs;
    gpunvme_err_t err;

    if (c->is_sim)
        return note(c, name, STEP_SKIPPED,
                    "a software controller has no BAR that a GPU could map; tier 3 is tried on a "
                    "real drive");
    if (!t->ops->map_bar || !t->doorbells)
        return refuse(c, name, GPUNVME_ERR_UNSUPPORTED,
                      "this transport does not map BARs and doorbells: bind the drive to vfio-pci "
                      "or to the module gpunvme");
    err = t->ops->map_bar(t, 0, 0, PAGE_NBYTES, &c->bar);
    if (!err && !c->bar.cpu)
        err = base_fail(GPUNVME_ERR_UNSUPPORTED, "BAR0 has no CPU address");
    if (!err)
        err = mem_cuda_map_io(c->bar.cpu, PAGE_NBYTES, &c->bar_gpu);
    if (err)
        return failed(c, name, err,
                      "The GPU's driver must allow cudaHostRegisterIoMemory: run as root, turn the "
                      "IOMMU to passthrough (iommu=pt), and use a recent driver");
    gpunvme_ctrl_get_info(c->device.ctrl, &info);
    err = mem_cuda_load32((const char *)c->bar_gpu + GPUNVME_REG_VS, &vs);
    if (err)
        return failed(c, name, err, "PCIe access control (ACS) may keep the GPU from the drive");
    if (vs != info.vs)
        return refuse(c, name, GPUNVME_ERR_UNSUPPORTED,
                      "the GPU reads VS as %08" PRIx32 ", the CPU as %08" PRIx32
                      ": the GPU's loads do not reach the drive. ACS or the host bridge may be in "
                      "the way; try another slot",
                      vs, info.vs);
    return note(c, name, STEP_OK, "the GPU reads VS as %08" PRIx32 ", as the CPU does", vs);
}

/* Reads the same blocks into host memory and into GPU memory. */
static gpunvme_err_t read_both(struct check *c, struct gpunvme_buf *host, struct gpunvme_buf *gpu)
{
    size_t nbytes = c->ns->nbytes < DATA_NBYTES ? (size_t)c->ns->nbytes : DATA_NBYTES;
    void *copy = malloc(nbytes);
    gpunvme_err_t err = copy ? GPUNVME_OK : base_fail(GPUNVME_ERR_NOMEM, "%zu bytes", nbytes);

    /* Not what is on the drive, and other than what a failed read may leave. */
    if (!err)
        err = gpunvme_read(c->ioq, c->ns, 0, nbytes, host, 0);
    for (size_t i = 0; !err && i < nbytes; i++)
        ((uint8_t *)copy)[i] = (uint8_t) ~((uint8_t *)host->cpu)[i];
    if (!err)
        err = gpunvme_mem_copy(gpu->gpu, GPUNVME_MEM_GPU, copy, GPUNVME_MEM_HOST, nbytes);
    if (!err)
        err = gpunvme_read(c->ioq, c->ns, 0, nbytes, gpu, 0);
    if (!err)
        err = gpunvme_mem_copy(copy, GPUNVME_MEM_HOST, gpu->gpu, GPUNVME_MEM_GPU, nbytes);
    if (!err && memcmp(copy, host->cpu, nbytes) != 0)
        err = base_fail(GPUNVME_ERR_VERIFY, "the first %zu bytes of namespace %u", nbytes,
                        c->ns->nsid);
    free(copy);
    return err;
}

static bool check_data(struct check *c)
{
    struct gpunvme_ctrl *ctrl = c->device.ctrl;
    struct gpunvme_buf host = {0}, gpu = {0};
    bool works = false;
    gpunvme_err_t err = gpunvme_ctrl_alloc(ctrl, DATA_NBYTES, GPUNVME_MEM_GPU, &gpu);

    if (err) {
        failed(c, "bus address", err,
               "GPU memory gets a bus address by dma-buf: it takes NVIDIA's open kernel modules, a "
               "GPU that has it (documented for data centre and workstation cards, not for "
               "GeForce), and a "
               "transport that takes it: the module gpunvme, or VFIO of a kernel that imports it");
        note(c, "data", STEP_SKIPPED, "GPU memory has no bus address");
        return false;
    }
    note(c, "bus address", STEP_OK, "%s is at bus address 0x%" PRIx64,
         c->is_simulated ? "host memory in its place" : "GPU memory", gpunvme_buf_bus(&gpu, 0));
    err = gpunvme_ctrl_alloc(ctrl, DATA_NBYTES, GPUNVME_MEM_HOST, &host);
    if (!err)
        err = read_both(c, &host, &gpu);
    if (err)
        failed(c, "data", err,
               "The drive's writes do not reach the GPU: ACS, the IOMMU or the host bridge may be "
               "in the way; a slot below one switch helps");
    else
        works = note(c, "data", STEP_OK, "the drive's bytes came into %s and are the right ones",
                     c->is_simulated ? "host memory in its place" : "GPU memory");
    gpunvme_ctrl_free(ctrl, &host);
    gpunvme_ctrl_free(ctrl, &gpu);
    return works;
}

static void try_all(struct check *c)
{
    struct gpunvme_gpu_info gpu;
    bool registers, data;

    if (!check_machine(c) || !check_transport(c) || !check_gpu(c, &gpu))
        return;
    if (!check_place(c, gpu.pci_address) && !c->is_sim)
        return;
    registers = check_registers(c);
    data = check_data(c);
    if (data && !c->is_simulated)
        c->tier = registers ? 3 : 2;
}

static void release(struct check *c)
{
    struct gpunvme_transport *t = c->device.transport;

    if (c->bar_gpu)
        mem_cuda_unmap_io(c->bar.cpu);
    if (c->bar.cpu)
        t->ops->unmap(t, &c->bar);
    gpunvme_ioq_delete(c->ioq);
}

static const char *tier_text(const struct check *c)
{
    switch (c->tier) {
    case 0:
        return "nothing was reached: see the step that says no";
    case 1:
        return c->is_simulated
                   ? "tier 1; what lies above it needs a GPU: simulated, host memory stood in for "
                     "it"
                   : "tier 1: queues and data in host memory; to the GPU the CPU copies";
    case 2:
        return c->is_sim ? "tier 2, by the software controller: it puts data into GPU memory itself"
                         : "tier 2: the drive moves data into GPU memory by itself";
    default:
        return "tier 3: the GPU reaches the drive's registers, and the drive the GPU's memory";
    }
}

static void print_result(const struct check *c)
{
    static const char *const words[] = {"no", "ok", "-"};
    char label[32];

    for (unsigned i = 0; i < c->nsteps; i++) {
        snprintf(label, sizeof(label), "%-4s%s", words[c->steps[i].result], c->steps[i].name);
        cli_print_wrapped(stdout, 20, label, c->steps[i].why);
    }
    printf("\nReached: %s.\n", tier_text(c));
}

static void json_result(const struct check *c)
{
    static const char *const words[] = {"no", "ok", "skipped"};
    struct cli_json json;

    cli_json_begin(&json, stdout);
    cli_json_text(&json, "uri", c->uri);
    cli_json_u64(&json, "tier", c->tier);
    cli_json_bool(&json, "simulated_gpu", c->is_simulated);
    cli_json_text(&json, "reached", tier_text(c));
    cli_json_array(&json, "steps");
    for (unsigned i = 0; i < c->nsteps; i++) {
        cli_json_object(&json, NULL);
        cli_json_text(&json, "name", c->steps[i].name);
        cli_json_text(&json, "result", words[c->steps[i].result]);
        cli_json_text(&json, "why", c->steps[i].why);
        cli_json_close(&json);
    }
    cli_json_end(&json);
}

/* The first step that failed is the document's error; returns the exit code. */
static int tell_failure(const struct check *c)
{
    char text[500];

    for (unsigned i = 0; i < c->nsteps; i++) {
        const struct step *step = &c->steps[i];

        if (step->result != STEP_NO)
            continue;
        snprintf(text, sizeof(text), "%s: %s", step->name, step->why);
        cli_json_note_failure(gpunvme_err_name(step->err), step->err, text);
        if (c->common.json)
            cli_say("%s (%s)", text, gpunvme_err_name(step->err));
        return step->err == GPUNVME_ERR_INTERRUPTED ? CLI_INTERRUPTED : CLI_FAILED;
    }
    return CLI_OK;
}

static int run(struct check *c)
{
    static char devices[300];
    int code;

    snprintf(devices, sizeof(devices), "%.250s/sys/bus/pci/devices", c->root);
    pci_sysfs = devices;
    c->is_sim = !strncmp(c->common.uri, "sim:", 4);
    c->is_simulated = c->is_sim && gpunvme_mem_gpu_is_host();
    snprintf(c->uri, sizeof(c->uri), "%s%.280s",
             strncmp(c->common.uri, "nvme:", 5) && !c->is_sim ? "nvme:" : "", c->common.uri);
    try_all(c);
    release(c);
    code = cli_device_finish(&c->device, tell_failure(c));
    if (c->common.json)
        json_result(c);
    else
        print_result(c);
    return code;
}

int cli_check_p2p(int argc, char **argv)
{
    static struct check check = {.root = ""};

    if (!cli_parse(&argp, argc, argv, &check))
        return CLI_USAGE;
    check.common.uri = cli_uri(check.common.uri);
    if (!check.common.uri)
        return CLI_USAGE;
    return run(&check);
}
