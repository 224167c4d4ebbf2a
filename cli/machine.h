/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What a machine has, as its kernel tells it in /proc, /sys and /dev. Opens no device.
 */
#ifndef CLI_MACHINE_H
#define CLI_MACHINE_H

#include <stdbool.h>
#include <stdint.h>

#include "gpunvme/error.h"

#define CLI_MACHINE_MAX_DRIVES 64
#define CLI_MACHINE_MAX_PAGES  4

/* An NVMe controller on the PCI bus (class 010802h), whoever drives it. */
struct cli_drive {
    char address[32]; /* "0000:01:00.0" */
    char driver[32];  /* "nvme", "vfio-pci"; "" for none */
    char name[16];    /* the kernel's name, "nvme0"; "" where another driver has it */
    char model[48];
    int iommu_group; /* -1: none */
    unsigned vendor, device;
};

struct cli_hugepages {
    uint64_t nbytes; /* of one */
    uint64_t total, free;
};

struct cli_machine {
    char kernel[80];
    char cpu[96];
    unsigned ncpus; /* that this process may use */
    uint64_t memory_nbytes, memory_free_nbytes;

    unsigned ndrives, ndrives_total;
    struct cli_drive drives[CLI_MACHINE_MAX_DRIVES];

    bool iommu;     /* the kernel uses one */
    bool vfio;      /* /dev/vfio/vfio is there */
    bool vfio_open; /* and we may open it */
    unsigned nhugepages;
    struct cli_hugepages hugepages[CLI_MACHINE_MAX_PAGES];
    int io_uring_errno; /* 0: allowed */
};

/* `root` is put before all paths: "" for this machine. What can't be read is left empty. */
void cli_machine_look(const char *root, struct cli_machine *machine);

#endif
