/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Threads and memory near a GPU. See place.h.
 */
#include "storage/place.h"

#include <linux/mempolicy.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/fail.h"
#include "gpunvme/memory.h"
#include "memory/cuda.h"

#define LIST_ROOM 4096

/* One number, or two with a '-'. NULL: it is neither; else what follows. */
static const char *parse_range(const char *text, unsigned long *first, unsigned long *last)
{
    char *end;

    if (*text < '0' || *text > '9')
        return NULL;
    *first = *last = strtoul(text, &end, 10);
    if (*end == '-') {
        text = end + 1;
        if (*text < '0' || *text > '9')
            return NULL;
        *last = strtoul(text, &end, 10);
    }
    return *first <= *last && *last < CPU_SETSIZE ? end : NULL;
}

gpunvme_err_t place_parse(const char *list, cpu_set_t *cpus)
{
    const char *text = list;

    CPU_ZERO(cpus);
    do {
        unsigned long first, last;

        text = parse_range(text, &first, &last);
        if (!text || (*text && *text != ','))
            return base_fail(GPUNVME_ERR_INVALID, "\"%.100s\" is no list of CPUs, as \"0-7,16\"",
                             list);
        for (; first <= last; first++)
            CPU_SET(first, cpus);
    } while (*text++);
    return GPUNVME_OK;
}

/* The first line of a file; false: there is none. */
static bool read_line(const char *path, char *text, size_t room)
{
    FILE *file = fopen(path, "re");
    bool ok = file && fgets(text, (int)room, file);

    if (file)
        fclose(file);
    if (ok)
        text[strcspn(text, "\n")] = 0;
    return ok;
}

int place_find(const char *sysfs, const char *address, cpu_set_t *cpus)
{
    char path[320], text[LIST_ROOM];
    int node;

    snprintf(path, sizeof(path), "%s/devices/system/node/online", sysfs);
    if (!read_line(path, text, sizeof(text)) || !strpbrk(text, "-,"))
        return -1;
    snprintf(path, sizeof(path), "%s/bus/pci/devices/%s/numa_node", sysfs, address);
    if (!read_line(path, text, sizeof(text)) || sscanf(text, "%d", &node) != 1 || node < 0)
        return -1;
    snprintf(path, sizeof(path), "%s/devices/system/node/node%d/cpulist", sysfs, node);
    if (!read_line(path, text, sizeof(text)) || place_parse(text, cpus))
        return -1;
    return node;
}

/* Under the lock. */
static void find(struct place *place, unsigned gpu)
{
    struct gpunvme_gpu_info info;
    cpu_set_t cpus, ours;

    place->is_found = true;
    place->node = -1;
    if (!mem_cuda_present() || gpunvme_mem_gpu_info(gpu, &info))
        return;
    place->node = place_find("/sys", info.pci_address, &cpus);
    if (place->node < 0 || place->has_cpus || sched_getaffinity(0, sizeof(ours), &ours))
        return;
    CPU_AND(&cpus, &cpus, &ours);
    if (CPU_COUNT(&cpus))
        workers_move(place->workers, &cpus);
}

void place_memory(struct place *place, void *cpu, size_t nbytes, unsigned gpu)
{
    unsigned long nodes[16] = {0};
    const unsigned bits = 8 * sizeof(nodes[0]);
    int node;

    pthread_mutex_lock(&place->lock);
    if (!place->is_found)
        find(place, place->gpu >= 0 ? (unsigned)place->gpu : gpu);
    node = place->node;
    pthread_mutex_unlock(&place->lock);
    if (node < 0 || (unsigned)node >= 16 * bits)
        return;
    nodes[(unsigned)node / bits] = 1ul << (unsigned)node % bits;
    syscall(SYS_mbind, cpu, nbytes, MPOL_PREFERRED, nodes, 16ul * bits, 0u); /* a wish */
}
