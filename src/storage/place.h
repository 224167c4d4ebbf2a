/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Where an engine's threads and pinned memory are: on the CPUs that its caller names, or on the
 * NUMA node of the GPU that is used first.
 */
#ifndef STORAGE_PLACE_H
#define STORAGE_PLACE_H

#include <sched.h>

#include "gpunvme/error.h"
#include "storage/worker.h"

struct place {
    pthread_mutex_t lock;
    struct workers *workers;
    cpu_set_t cpus; /* the caller's */
    bool has_cpus;  /* there are some */
    int gpu;        /* of the engine's configuration */
    bool is_found;  /* a GPU was met, and `node` says where it is */
    int node;       /* -1: it makes no difference */
};

/*
 * Parses a list of CPUs, as the kernel writes them: "0-7,16". INVALID: it is none, or names a CPU
 * from 1024 on.
 */
gpunvme_err_t place_parse(const char *list, cpu_set_t *cpus);

/*
 * The NUMA node of a PCI function, "0000:3b:00.0", and its CPUs, as found under `sysfs` ("/sys").
 * -1: there is one node only, or the kernel does not tell.
 */
int place_find(const char *sysfs, const char *address, cpu_set_t *cpus);

/*
 * Memory that is about to be touched for the first time, for a GPU: it comes from the node of the
 * engine's GPU, or of the first one that is met; the threads move there then, unless the caller
 * has named their CPUs.
 */
void place_memory(struct place *place, void *cpu, size_t nbytes, unsigned gpu);

#endif
