/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The configuration space of the software controller.
 *
 * Source: PCI Local Bus 3.0, section 6 (header, MSI-X); PCI Power Management 1.2, section 3.2; PCI
 * Express Base 3.0, section 7.8; NVM Express Base 1.4, section 2. Offsets by linux/pci_regs.h.
 */
#include "sim/serve/pci_config.h"

#include <linux/pci_regs.h>
#include <string.h>

#include "sim/sim_internal.h"

/* Capabilities, in this order. */
#define AT_PM   0x40u
#define AT_MSIX 0x50u
#define AT_EXP  0x60u

static void put(uint8_t *at, uint32_t value, unsigned nbytes)
{
    for (unsigned i = 0; i < nbytes; i++)
        at[i] = (uint8_t)(value >> 8 * i);
}

/* A field, and which of its bits can be written. */
static void field(struct sim_pci_config *c, unsigned at, unsigned nbytes, uint32_t value,
                  uint32_t writable)
{
    put(&c->bytes[at], value, nbytes);
    put(&c->writable[at], writable, nbytes);
}

/* The address bits below the size stay 0: that is how the size is found by writing ones. */
static void bar64(struct sim_pci_config *c, unsigned index, uint64_t nbytes)
{
    uint64_t mask = ~(nbytes - 1);

    field(c, PCI_BASE_ADDRESS_0 + 4 * index, 4, PCI_BASE_ADDRESS_MEM_TYPE_64, (uint32_t)mask);
    field(c, PCI_BASE_ADDRESS_0 + 4 * index + 4, 4, 0, (uint32_t)(mask >> 32));
}

static void header(struct sim_pci_config *c)
{
    field(c, PCI_VENDOR_ID, 2, SIM_PCI_VENDOR, 0);
    field(c, PCI_DEVICE_ID, 2, SIM_PCI_DEVICE, 0);
    field(c, PCI_COMMAND, 2, 0,
          PCI_COMMAND_MEMORY | PCI_COMMAND_MASTER | PCI_COMMAND_PARITY | PCI_COMMAND_SERR |
              PCI_COMMAND_INTX_DISABLE);
    field(c, PCI_STATUS, 2, PCI_STATUS_CAP_LIST, 0);
    field(c, PCI_CLASS_REVISION, 4, 0x010802u << 8 | 1, 0);
    field(c, PCI_CACHE_LINE_SIZE, 1, 0, 0xff);
    field(c, PCI_SUBSYSTEM_VENDOR_ID, 2, SIM_PCI_VENDOR, 0);
    field(c, PCI_SUBSYSTEM_ID, 2, SIM_PCI_DEVICE, 0);
    field(c, PCI_CAPABILITY_LIST, 1, AT_PM, 0);
    field(c, PCI_INTERRUPT_LINE, 1, 0, 0xff);
    field(c, PCI_INTERRUPT_PIN, 1, 1, 0);
}

static void capability(struct sim_pci_config *c, unsigned at, uint8_t id, unsigned next)
{
    field(c, at + PCI_CAP_LIST_ID, 1, id, 0);
    field(c, at + PCI_CAP_LIST_NEXT, 1, next, 0);
}

static void capabilities(struct sim_pci_config *c, uint32_t nvectors, uint32_t pba)
{
    capability(c, AT_PM, PCI_CAP_ID_PM, AT_MSIX);
    field(c, AT_PM + PCI_PM_PMC, 2, 3, 0);
    field(c, AT_PM + PCI_PM_CTRL, 2, PCI_PM_CTRL_NO_SOFT_RESET, PCI_PM_CTRL_STATE_MASK);

    capability(c, AT_MSIX, PCI_CAP_ID_MSIX, AT_EXP);
    field(c, AT_MSIX + PCI_MSIX_FLAGS, 2, nvectors - 1,
          PCI_MSIX_FLAGS_ENABLE | PCI_MSIX_FLAGS_MASKALL);
    field(c, AT_MSIX + PCI_MSIX_TABLE, 4, SIM_PCI_TABLE_BAR, 0);
    field(c, AT_MSIX + PCI_MSIX_PBA, 4, pba | SIM_PCI_TABLE_BAR, 0);

    capability(c, AT_EXP, PCI_CAP_ID_EXP, 0);
    field(c, AT_EXP + PCI_EXP_FLAGS, 2, 2 | PCI_EXP_TYPE_ENDPOINT << 4, 0);
    field(c, AT_EXP + PCI_EXP_DEVCAP, 4, PCI_EXP_DEVCAP_RBER | PCI_EXP_DEVCAP_FLR | 1, 0);
    field(c, AT_EXP + PCI_EXP_DEVCTL, 2, 0, 0x7fff);
    field(c, AT_EXP + PCI_EXP_LNKCAP, 4, PCI_EXP_LNKCAP_SLS_8_0GB | 4u << 4, 0);
    field(c, AT_EXP + PCI_EXP_LNKSTA, 2, PCI_EXP_LNKSTA_CLS_8_0GB | 4u << 4, 0);
    field(c, AT_EXP + PCI_EXP_DEVCAP2, 4, PCI_EXP_DEVCAP2_COMP_TMOUT_DIS, 0);
    field(c, AT_EXP + PCI_EXP_DEVCTL2, 2, 0, PCI_EXP_DEVCTL2_COMP_TMOUT_DIS);
    field(c, AT_EXP + PCI_EXP_LNKCTL2, 2, 3, 0);
}

void sim_pci_config_init(struct sim_pci_config *c, uint64_t bar0_nbytes, uint64_t table_nbytes,
                         uint32_t nvectors, uint32_t pba)
{
    memset(c, 0, sizeof(*c));
    header(c);
    bar64(c, 0, bar0_nbytes);
    bar64(c, SIM_PCI_TABLE_BAR, table_nbytes);
    capabilities(c, nvectors, pba);
}

void sim_pci_config_reset(struct sim_pci_config *c)
{
    for (unsigned i = 0; i < SIM_PCI_CONFIG_NBYTES; i++)
        c->bytes[i] &= (uint8_t)~c->writable[i];
}

void sim_pci_config_read(const struct sim_pci_config *c, size_t offset, void *to, size_t nbytes)
{
    memcpy(to, &c->bytes[offset], nbytes);
}

bool sim_pci_config_write(struct sim_pci_config *c, size_t offset, const void *from_, size_t nbytes)
{
    const unsigned flr = AT_EXP + PCI_EXP_DEVCTL + 1; /* the register's high byte */
    const uint8_t *from = from_;
    bool reset = false;

    for (size_t i = 0; i < nbytes; i++) {
        size_t at = offset + i;
        uint8_t writable = c->writable[at];

        c->bytes[at] = (uint8_t)((c->bytes[at] & ~writable) | (from[i] & writable));
        reset |= at == flr && from[i] & PCI_EXP_DEVCTL_BCR_FLR >> 8;
    }
    return reset;
}

bool sim_pci_config_intx_off(const struct sim_pci_config *c)
{
    return c->bytes[PCI_COMMAND + 1] & PCI_COMMAND_INTX_DISABLE >> 8;
}
