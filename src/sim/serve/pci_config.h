/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The configuration space of the software controller, for those who reach it as a PCI function.
 * Knows nothing of NVMe but the class code. Not thread-safe: its owner has a lock.
 */
#ifndef SIM_PCI_CONFIG_H
#define SIM_PCI_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SIM_PCI_CONFIG_NBYTES 4096u
#define SIM_PCI_TABLE_BAR     4 /* where MSI-X table and pending bits are */

struct sim_pci_config {
    uint8_t bytes[SIM_PCI_CONFIG_NBYTES];
    uint8_t writable[SIM_PCI_CONFIG_NBYTES]; /* a bit that is 1 can be written */
};

/*
 * A type 0 header, both BARs 64 bits wide and of sizes that are powers of two, MSI-X with
 * `nvectors` vectors (1 … 2048), its pending bits at `pba` in the BAR.
 */
void sim_pci_config_init(struct sim_pci_config *c, uint64_t bar0_nbytes, uint64_t table_nbytes,
                         uint32_t nvectors, uint32_t pba);

/* What a reset of the function leaves: every bit that can be written is 0. */
void sim_pci_config_reset(struct sim_pci_config *c);

/* The range must lie in the space. write: true when it asks for a function level reset. */
void sim_pci_config_read(const struct sim_pci_config *c, size_t offset, void *to, size_t nbytes);
bool sim_pci_config_write(struct sim_pci_config *c, size_t offset, const void *from, size_t nbytes);

/* The command register forbids the pin. */
bool sim_pci_config_intx_off(const struct sim_pci_config *c);

#endif
