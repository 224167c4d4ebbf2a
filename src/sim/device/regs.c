/* SPDX-License-Identifier: BSD-3-Clause
 *
 * BAR0: what a register reads as and what a write to it does. What CC sets in motion is in
 * control.c.
 *
 * Source: NVM Express Base 1.4, section 3.1.
 */
#include "sim/sim_internal.h"

static bool is_wide(uint32_t offset)
{
    return offset == GPUNVME_REG_CAP || offset == GPUNVME_REG_ASQ || offset == GPUNVME_REG_ACQ ||
           offset == GPUNVME_REG_BPMBL || offset == GPUNVME_REG_CMBMSC;
}

/* Registers are accessed in their own width, or 64-bit ones as two halves. */
static bool access_valid(struct gpunvme_sim *sim, const char *what, uint32_t offset, unsigned size)
{
    if (offset % 4 == 0 && offset < GPUNVME_REG_DOORBELLS + sim->doorbells_nbytes &&
        (size == 4 || (size == 8 && is_wide(offset))))
        return true;
    sim_violate(sim, GPUNVME_SIM_VIOLATION_REGISTER_ACCESS, "a %s of %u bytes at BAR0+%xh", what,
                size, offset);
    return false;
}

/* The dword at `offset`; reserved registers read as 0. */
static uint32_t read_dword(struct gpunvme_sim *sim, uint32_t offset)
{
    switch (offset) {
    case GPUNVME_REG_CAP:
        return (uint32_t)sim->cap;
    case GPUNVME_REG_CAP + 4:
        return (uint32_t)(sim->cap >> 32);
    case GPUNVME_REG_VS:
        return GPUNVME_VS_MAKE(1, 4, 0);
    case GPUNVME_REG_INTMS:
    case GPUNVME_REG_INTMC:
        return sim->intm;
    case GPUNVME_REG_CC:
        return sim->cc;
    case GPUNVME_REG_CSTS:
        return sim->csts;
    case GPUNVME_REG_AQA:
        return sim->aqa;
    case GPUNVME_REG_ASQ:
        return (uint32_t)sim->asq;
    case GPUNVME_REG_ASQ + 4:
        return (uint32_t)(sim->asq >> 32);
    case GPUNVME_REG_ACQ:
        return (uint32_t)sim->acq;
    case GPUNVME_REG_ACQ + 4:
        return (uint32_t)(sim->acq >> 32);
    default:
        return 0;
    }
}

static bool is_removed(struct gpunvme_sim *sim)
{
    return atomic_load(&sim->halt) & SIM_HALT_REMOVED;
}

uint64_t gpunvme_sim_reg_read(struct gpunvme_sim *sim, uint32_t offset, unsigned size)
{
    uint64_t ones = size == 8 ? UINT64_MAX : UINT32_MAX;

    if (is_removed(sim))
        return ones;
    if (!access_valid(sim, "read", offset, size))
        return 0;
    if (size == 8)
        return read_dword(sim, offset) | (uint64_t)read_dword(sim, offset + 4) << 32;
    return read_dword(sim, offset);
}

static void write_doorbell(struct gpunvme_sim *sim, uint32_t offset, unsigned size, uint32_t value)
{
    uint32_t at = offset - GPUNVME_REG_DOORBELLS, stride = 4u << sim->config.dstrd;

    if (size != 4 || at % stride || at / stride / 2 > sim->config.max_queues) {
        sim_violate(sim, GPUNVME_SIM_VIOLATION_DOORBELL_REGISTER,
                    "a write of %u bytes at BAR0+%xh, which is no doorbell", size, offset);
        sim_event_raise(sim, GPUNVME_AER_TYPE_ERROR, GPUNVME_AER_ERROR_DOORBELL_REGISTER,
                        GPUNVME_LOG_ERROR);
        return;
    }
    __atomic_store_n(&sim->doorbells[at / 4], value, __ATOMIC_RELEASE);
}

/* The admin queue registers, while the controller is disabled. */
static void write_admin_queue(struct gpunvme_sim *sim, uint32_t offset, uint32_t value)
{
    bool asq = offset < GPUNVME_REG_ACQ;
    _Atomic uint64_t *reg = asq ? &sim->asq : &sim->acq;
    unsigned shift = offset % 8 ? 32 : 0;
    uint64_t old = *reg & ~(0xffffffffull << shift);

    if (GPUNVME_GET(sim->cc, CC_EN)) {
        sim_violate(sim, GPUNVME_SIM_VIOLATION_REGISTER_ACCESS,
                    "BAR0+%xh written while CC.EN is set", offset);
        return;
    }
    if (offset == GPUNVME_REG_AQA)
        sim->aqa = value & 0x0fff0fffu;
    else
        *reg = old | (uint64_t)value << shift;
}

static void write_status(struct gpunvme_sim *sim, uint32_t value)
{
    uint32_t clearable = (uint32_t)GPUNVME_SET(1, CSTS_NSSRO);

    if (value & ~clearable)
        sim_violate(sim, GPUNVME_SIM_VIOLATION_REGISTER_ACCESS,
                    "CSTS, which is read-only but for NSSRO, written with %08xh", value);
    atomic_fetch_and(&sim->csts, ~(value & clearable));
}

/* Under reg_lock. */
static void write_dword(struct gpunvme_sim *sim, uint32_t offset, uint32_t value)
{
    switch (offset) {
    case GPUNVME_REG_INTMS:
        sim->intm |= value;
        break;
    case GPUNVME_REG_INTMC:
        sim->intm &= ~value;
        gpunvme_sim_irq_again(sim);
        break;
    case GPUNVME_REG_CC:
        sim_control_write_cc(sim, value);
        break;
    case GPUNVME_REG_CSTS:
        write_status(sim, value);
        break;
    case GPUNVME_REG_NSSR:
        if (value == GPUNVME_NSSR_RESET)
            sim_control_reset(sim, NULL, false, true);
        break;
    case GPUNVME_REG_AQA:
    case GPUNVME_REG_ASQ:
    case GPUNVME_REG_ASQ + 4:
    case GPUNVME_REG_ACQ:
    case GPUNVME_REG_ACQ + 4:
        write_admin_queue(sim, offset, value);
        break;
    default:
        if (value)
            sim_violate(sim, GPUNVME_SIM_VIOLATION_REGISTER_ACCESS,
                        "BAR0+%xh, which is read-only or reserved, written with %08xh", offset,
                        value);
    }
}

void gpunvme_sim_reg_write(struct gpunvme_sim *sim, uint32_t offset, unsigned size, uint64_t value)
{
    if (is_removed(sim))
        return;
    if (offset >= GPUNVME_REG_DOORBELLS) {
        write_doorbell(sim, offset, size, (uint32_t)value);
        return;
    }
    if (!access_valid(sim, "write", offset, size))
        return;
    pthread_mutex_lock(&sim->reg_lock);
    if (!is_removed(sim)) {
        write_dword(sim, offset, (uint32_t)value);
        if (size == 8)
            write_dword(sim, offset + 4, (uint32_t)(value >> 32));
    }
    pthread_mutex_unlock(&sim->reg_lock);
}
