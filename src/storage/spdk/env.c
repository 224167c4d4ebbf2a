/* SPDX-License-Identifier: BSD-3-Clause
 *
 * SPDK's environment, and controllers attached in it. See spdk.h.
 */
#include "storage/spdk/spdk.h"

#include <errno.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <spdk/log.h>

/*
 * SPDK's heap where there are no huge pages, in MiB; queues and bounce buffers of all stores are in
 * it. It is a memory file, of which only what is used costs memory; but vfio pins all of it for
 * drives on the PCI bus.
 */
#define HEAP_MIB     1024
#define HEAP_PCI_MIB 256

/*
 * Behind an IOMMU a bus address is the CPU's address, and many IOMMUs take 39 bits of it: DPDK's
 * heap is put below that.
 */
#define LOW_ADDRESS (1ull << 37)

static struct {
    pthread_mutex_t lock; /* of everything here; SPDK attaches and detaches one at a time */
    bool started;
    bool has_pci;
    gpunvme_err_t failed; /* it could not be started, and can't be again */
} env = {.lock = PTHREAD_MUTEX_INITIALIZER};

static _Thread_local char said[200];

const char *gspdk_said(void)
{
    return said;
}

void gspdk_hush(void)
{
    said[0] = 0;
}

/* In SPDK's place on stderr: a library prints nothing, but its errors say what SPDK said. */
static void on_log(int level, const char *file, const int line, const char *func,
                   const char *format, va_list args)
{
    (void)file;
    (void)line;
    (void)func;
    if (level != SPDK_LOG_ERROR || said[0]) /* the first is the cause of the rest */
        return;
    strcpy(said, ": ");
    vsnprintf(said + 2, sizeof(said) - 2, format, args);
    said[strcspn(said, "\n")] = 0;
}

/* ---- the environment ---- */

static bool file_has(const char *path, const char *format, unsigned long *value)
{
    char line[512];
    bool found = false;
    FILE *file = fopen(path, "re");

    if (!file)
        return false;
    while (!found && fgets(line, sizeof(line), file))
        found = value ? sscanf(line, format, value) == 1 : strstr(line, format) != NULL;
    fclose(file);
    return found;
}

static bool has_huge_pages(void)
{
    unsigned long nfree = 0;

    return file_has("/proc/meminfo", "HugePages_Free: %lu", &nfree) && nfree &&
           file_has("/proc/mounts", " hugetlbfs ", NULL);
}

/*
 * DPDK pins the thread that starts it to a core, which is none of its business here: the thread
 * gets its cores back. DPDK says on stderr what SPDK's log does not get; level 1 silences it.
 */
static gpunvme_err_t start(bool pci)
{
    struct spdk_env_opts opts;
    char lcores[32], log[] = "--log-level=1 --log-level=lib.eal:1";
    cpu_set_t cpus;
    bool pinned = !pthread_getaffinity_np(pthread_self(), sizeof(cpus), &cpus);
    int ret;

    snprintf(lcores, sizeof(lcores), "--lcores=0@%d", sched_getcpu());
    memset(&opts, 0, sizeof(opts));
    opts.opts_size = sizeof(opts);
    spdk_env_opts_init(&opts);
    opts.name = "gpunvme";
    opts.core_mask = lcores;
    opts.env_context = log;
    opts.no_pci = !pci;
    opts.no_huge = !pci || !has_huge_pages();
    if (opts.no_huge)
        opts.mem_size = pci ? HEAP_PCI_MIB : HEAP_MIB;
    if (pci)
        opts.base_virtaddr = LOW_ADDRESS;
    spdk_log_open(on_log);
    gspdk_hush();
    ret = spdk_env_init(&opts);
    if (pinned)
        pthread_setaffinity_np(pthread_self(), sizeof(cpus), &cpus);
    if (ret)
        return base_fail(GPUNVME_ERR_UNSUPPORTED,
                         "SPDK's environment does not start%s (%s; %s): reserve huge pages "
                         "(vm.nr_hugepages), or turn an IOMMU on",
                         said, pci ? "with the PCI bus" : "without PCI",
                         opts.no_huge ? "no free huge pages" : "huge pages");
    return GPUNVME_OK;
}

static gpunvme_err_t need_env(bool pci)
{
    if (env.failed)
        return base_fail(env.failed, "SPDK's environment failed to start in this process before, "
                                     "and can't be started twice: start the process anew");
    if (!env.started) {
        gpunvme_err_t err = start(pci);

        env.failed = err;
        env.started = !err;
        env.has_pci = pci;
        return err;
    }
    if (pci && !env.has_pci)
        return base_fail(GPUNVME_ERR_UNSUPPORTED,
                         "SPDK runs without the PCI bus in this process, since a vfio-user socket "
                         "was opened first: open the PCI address first");
    return GPUNVME_OK;
}

/* ---- controllers ---- */

static gpunvme_err_t connect_ctrlr(struct gspdk_ctrlr *ctrlr)
{
    struct spdk_nvme_transport_id trid;
    struct spdk_nvme_ctrlr_opts opts;
    const struct gspdk_address *address = &ctrlr->address;
    struct gspdk_guard *guard;

    memset(&trid, 0, sizeof(trid));
    spdk_nvme_trid_populate_transport(&trid, address->vfio_user ? SPDK_NVME_TRANSPORT_VFIOUSER
                                                                : SPDK_NVME_TRANSPORT_PCIE);
    snprintf(trid.traddr, sizeof(trid.traddr), "%s", address->where);
    if (!spdk_nvme_transport_available_by_name(trid.trstring))
        return base_fail(GPUNVME_ERR_UNSUPPORTED,
                         "this SPDK was built without %s: configure it --with-vfio-user",
                         trid.trstring);
    spdk_nvme_ctrlr_get_default_ctrlr_opts(&opts, sizeof(opts));
    opts.keep_alive_timeout_ms = 0; /* nobody looks at the admin queue while nothing is read */
    opts.admin_timeout_ms = 10000;
    opts.disable_error_logging = true;
    gspdk_hush();
    guard = gspdk_guard(ctrlr);
    ctrlr->handle = spdk_nvme_connect(&trid, &opts, sizeof(opts));
    gspdk_guard_end(guard);
    if (!ctrlr->handle)
        return base_fail(
            GPUNVME_ERR_NOT_FOUND, "spdk:%s: SPDK can't attach%s%s", address->where, said,
            address->vfio_user ? "" : "; is it bound to vfio-pci (scripts/vfio-bind.sh)?");
    return GPUNVME_OK;
}

/* A path that nobody can open would only be "not found" to SPDK. */
static gpunvme_err_t check_socket(const struct gspdk_address *address)
{
    char path[sizeof(address->where) + 8];

    snprintf(path, sizeof(path), "%s/cntrl", address->where);
    if (access(path, R_OK | W_OK))
        return base_fail_errno(errno, "%s: the vfio-user socket that SPDK would connect to", path);
    return GPUNVME_OK;
}

/* Under the lock: of a controller whose address is set. */
static gpunvme_err_t attach(struct gspdk_ctrlr *ctrlr)
{
    bool vfio_user = ctrlr->address.vfio_user;
    gpunvme_err_t err = vfio_user ? check_socket(&ctrlr->address) : GPUNVME_OK;

    if (!err)
        err = need_env(!vfio_user);
    return err ? err : connect_ctrlr(ctrlr);
}

gpunvme_err_t gspdk_attach(const char *target, uint64_t timeout_ns, void **out)
{
    struct gspdk_ctrlr *ctrlr = calloc(1, sizeof(*ctrlr));
    gpunvme_err_t err;

    if (!ctrlr)
        return base_fail(GPUNVME_ERR_NOMEM, "%s", target);
    ctrlr->timeout_ns = timeout_ns;
    err = gspdk_address_parse(target + strlen("spdk:"), &ctrlr->address);
    pthread_mutex_lock(&env.lock);
    if (!err)
        err = attach(ctrlr);
    pthread_mutex_unlock(&env.lock);
    if (err) {
        free(ctrlr);
        return err;
    }
    pthread_mutex_init(&ctrlr->lock, NULL);
    *out = ctrlr;
    return GPUNVME_OK;
}

void gspdk_detach(void *ctrl)
{
    struct gspdk_ctrlr *ctrlr = ctrl;
    struct gspdk_guard *guard;

    pthread_mutex_lock(&env.lock);
    guard = gspdk_guard(ctrlr);
    spdk_nvme_detach(ctrlr->handle);
    gspdk_guard_end(guard);
    pthread_mutex_unlock(&env.lock);
    pthread_mutex_destroy(&ctrlr->lock);
    free(ctrlr);
}
