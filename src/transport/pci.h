/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A PCI function as Linux shows it in sysfs.
 */
#ifndef TRANSPORT_PCI_H
#define TRANSPORT_PCI_H

#include <stddef.h>
#include <stdint.h>

#include "gpunvme/error.h"

#define PCI_CLASS_NVME 0x010802u /* class code: NVM Express I/O controller */

#define PCI_COMMAND          0x04 /* configuration space: the command register, 16 bits */
#define PCI_COMMAND_MEMORY   0x0002u
#define PCI_COMMAND_MASTER   0x0004u
#define PCI_COMMAND_INTX_OFF 0x0400u

struct pci_function {
    char bdf[16];    /* "0000:01:00.0" */
    char path[256];  /* its folder in sysfs */
    char driver[32]; /* that it was bound to when it was found; "" for none */
};

/* The folder of all functions; tests put another in its place. */
extern const char *pci_sysfs;

/*
 * Finds the NVMe function "0000:01:00.0" or "01:00.0". GPUNVME_ERR_URI: that is no address;
 * NOT_FOUND: no such function, or it is not an NVMe controller.
 */
gpunvme_err_t pci_find(const char *bdf, struct pci_function *out);

/* One line of the file `name` in its folder, without the newline. */
gpunvme_err_t pci_read_attr(const struct pci_function *f, const char *name, char *text,
                            size_t nbytes);

/* Opens the file `name` in its folder. */
gpunvme_err_t pci_open_attr(const struct pci_function *f, const char *name, int flags, int *fd);

/* The last part of the link `name` ("driver", "iommu_group"): "" where there is no such link. */
gpunvme_err_t pci_read_link(const struct pci_function *f, const char *name, char *text,
                            size_t nbytes);

/* Sets and clears bits of the command register. */
gpunvme_err_t pci_command(const struct pci_function *f, uint16_t set, uint16_t clear);

#endif
