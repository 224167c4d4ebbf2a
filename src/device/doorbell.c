/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Doorbells for the GPU: the transport's mapping of the registers, made addresses of the GPU.
 * Shadow doorbells are not for it: to look at what the controller wants costs a round trip to the
 * host.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fail.h"
#include "device/internal.h"
#include "memory/cuda.h"

/* A mapping is shared by all devices of this process, and lives as long as one of them needs it. */
struct device_window {
    struct device_window *next;
    volatile char *cpu;
    size_t nbytes;
    unsigned users;
    volatile char *gpu;
    struct gpunvme_buf buf; /* memory; nbytes 0: registers of a PCIe function, mapped by io_cpu */
    void *io_cpu;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct device_window *windows;

/* Whether this is a virtual machine; also where that can't be known to be otherwise. */
static bool is_virtual(void)
{
    FILE *f = fopen("/proc/cpuinfo", "r");
    bool found = false, is_told = false; /* Arm's has no such line */
    char line[4096];

    if (!f)
        return true;
    while (!found && fgets(line, sizeof(line), f)) {
        bool is_flags = !strncmp(line, "flags", 5);

        is_told |= is_flags;
        found = is_flags && strstr(line, " hypervisor");
    }
    fclose(f);
    return found || !is_told;
}

/* Whole pages of registers. */
static gpunvme_err_t map_registers(struct device_window *w)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), first = (uintptr_t)w->cpu & ~(page - 1);
    size_t nbytes = ((uintptr_t)w->cpu + w->nbytes - first + page - 1) & ~(page - 1);
    void *gpu = NULL;
    gpunvme_err_t err = mem_cuda_map_io((void *)first, nbytes, &gpu);

    if (err)
        return base_fail(GPUNVME_ERR_UNSUPPORTED, "the doorbells can't be mapped into the GPU: %s",
                         gpunvme_err_detail());
    w->io_cpu = (void *)first;
    w->gpu = (volatile char *)gpu + ((uintptr_t)w->cpu - first);
    return GPUNVME_OK;
}

/* Memory is pinned; what can't be pinned are a device's registers. */
static gpunvme_err_t map(struct device_window *w, bool is_unsafe_allowed)
{
    gpunvme_err_t err =
        gpunvme_mem_register((void *)(uintptr_t)w->cpu, w->nbytes, GPUNVME_MEM_PINNED, &w->buf);

    if (!err) {
        w->gpu = w->buf.gpu;
        return GPUNVME_OK;
    }
    if (is_virtual() && !is_unsafe_allowed)
        return base_fail(GPUNVME_ERR_UNSUPPORTED,
                         "in a virtual machine a GPU that rings the doorbells of a drive may take "
                         "the machine down; the option unsafe_p2p goes on");
    return map_registers(w);
}

gpunvme_err_t device_window_open(volatile void *cpu, size_t nbytes, bool is_unsafe_allowed,
                                 struct device_window **out)
{
    struct device_window *w;
    gpunvme_err_t err = GPUNVME_OK;

    pthread_mutex_lock(&lock);
    for (w = windows; w && (w->cpu != cpu || w->nbytes != nbytes); w = w->next)
        ;
    if (!w) {
        w = calloc(1, sizeof(*w));
        if (!w) {
            pthread_mutex_unlock(&lock);
            return base_fail(GPUNVME_ERR_NOMEM, "a mapping");
        }
        w->cpu = cpu;
        w->nbytes = nbytes;
        err = map(w, is_unsafe_allowed);
        if (err) {
            free(w);
            w = NULL;
        } else {
            w->next = windows;
            windows = w;
        }
    }
    if (w)
        w->users++;
    *out = w;
    pthread_mutex_unlock(&lock);
    return err;
}

void device_window_close(struct device_window *w)
{
    struct device_window **at = &windows;

    if (!w)
        return;
    pthread_mutex_lock(&lock);
    if (!--w->users) {
        while (*at != w)
            at = &(*at)->next;
        *at = w->next;
        if (w->io_cpu)
            mem_cuda_unmap_io(w->io_cpu);
        else
            gpunvme_mem_unregister(&w->buf);
        free(w);
    }
    pthread_mutex_unlock(&lock);
}

volatile uint32_t *device_window_at(const struct device_window *w, const volatile void *cpu)
{
    return (volatile uint32_t *)(w->gpu + ((const volatile char *)cpu - w->cpu));
}

/* --- the doorbells of one controller ---------------------------------------------------------- */

/* Queues in GPU memory may have doorbells of their own there. */
static bool are_in_gpu(const struct gpunvme_device *dev)
{
    return dev->placement == GPUNVME_PLACEMENT_TIER3 && dev->transport->gpu_doorbells;
}

gpunvme_err_t device_doorbells_open(struct gpunvme_device *dev)
{
    struct gpunvme_transport *t = dev->transport;

    if (are_in_gpu(dev))
        return GPUNVME_OK;
    if (!t->doorbells) /* without a GPU the transport can ring them */
        return !dev->has_gpu ? GPUNVME_OK
                             : base_fail(GPUNVME_ERR_UNSUPPORTED,
                                         "%s: the transport does not map the doorbells, which a "
                                         "GPU must ring by itself",
                                         t->address);
    return device_window_open(t->doorbells, t->doorbells_nbytes, dev->opts.unsafe_p2p,
                              &dev->doorbells);
}

void device_doorbells_close(struct gpunvme_device *dev)
{
    device_window_close(dev->doorbells);
    dev->doorbells = NULL;
}

gpunvme_err_t device_doorbell(const struct gpunvme_device *dev, const struct gpunvme_doorbell *cpu,
                              struct gpunvme_doorbell *out)
{
    *out = (struct gpunvme_doorbell){.offset = cpu->offset};
    if (are_in_gpu(dev)) {
        out->mmio = dev->transport->gpu_doorbells + (cpu->offset - GPUNVME_REG_DOORBELLS) / 4;
        return GPUNVME_OK;
    }
    if (!dev->has_gpu) {
        *out = *cpu;
        return GPUNVME_OK;
    }
    if (!cpu->mmio)
        return base_fail(GPUNVME_ERR_UNSUPPORTED,
                         "%s: the doorbell at %xh of BAR0 is behind those that are mapped",
                         dev->transport->address, cpu->offset);
    out->mmio = device_window_at(dev->doorbells, cpu->mmio);
    return GPUNVME_OK;
}
