/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Log pages: Error Information, SMART / Health, Firmware Slot, Changed Namespace List, Commands
 * Supported and Effects.
 *
 * Source: NVM Express Base 1.4, section 5.14.
 */
#include <string.h>

#include "sim/sim_internal.h"

#define TEMPERATURE_K 310u

/* `entry` is complete but for its count. */
void sim_log_error(struct gpunvme_sim *sim, const struct gpunvme_error_log_entry *entry)
{
    struct gpunvme_error_log_entry *slot;

    pthread_mutex_lock(&sim->log_lock);
    slot = &sim->error_log[sim->error_count % SIM_ERROR_LOG];
    *slot = *entry;
    slot->error_count = ++sim->error_count;
    pthread_mutex_unlock(&sim->log_lock);
}

/* The newest comes first. */
static void make_error_log(struct gpunvme_sim *sim, struct gpunvme_error_log_entry *log)
{
    pthread_mutex_lock(&sim->log_lock);
    for (uint64_t i = 0; i < SIM_ERROR_LOG && i < sim->error_count; i++)
        log[i] = sim->error_log[(sim->error_count - 1 - i) % SIM_ERROR_LOG];
    pthread_mutex_unlock(&sim->log_lock);
}

uint8_t sim_critical_warning(const struct gpunvme_sim *sim)
{
    const struct sim_features *features = &sim->features;

    return features->temperature_over <= TEMPERATURE_K ||
                   features->temperature_under >= TEMPERATURE_K
               ? GPUNVME_SMART_CW_TEMPERATURE
               : 0;
}

/* Bytes as the log counts them: thousands of 512 bytes, rounded up. */
static uint64_t data_units(uint64_t nbytes)
{
    return (nbytes + 511999) / 512000;
}

static void make_smart_log(struct gpunvme_sim *sim, struct gpunvme_smart_log *log)
{
    uint64_t on_ns = sim_now_ns() - sim->created_ns;

    log->critical_warning = sim_critical_warning(sim);
    log->temperature = TEMPERATURE_K;
    log->avail_spare = 100;
    log->spare_thresh = 10;
    log->data_units_read[0] =
        data_units(sim_counter_sum(sim, offsetof(struct sim_counters, bytes_read)));
    log->data_units_written[0] =
        data_units(sim_counter_sum(sim, offsetof(struct sim_counters, bytes_written)));
    log->host_reads[0] = sim_counter_sum(sim, offsetof(struct sim_counters, host_reads));
    log->host_writes[0] = sim_counter_sum(sim, offsetof(struct sim_counters, host_writes));
    log->power_cycles[0] = atomic_load(&sim->power_cycles);
    log->power_on_hours[0] = on_ns / 3600000000000ull;
    log->unsafe_shutdowns[0] = atomic_load(&sim->unsafe_shutdowns);
    log->media_errors[0] = sim_counter_sum(sim, offsetof(struct sim_counters, media_errors));
    pthread_mutex_lock(&sim->log_lock);
    log->num_err_log_entries[0] = sim->error_count;
    pthread_mutex_unlock(&sim->log_lock);
}

static void make_firmware_log(struct gpunvme_fw_slot_log *log)
{
    log->afi = 1;
    memcpy(log->frs[0], "1.0     ", sizeof(log->frs[0]));
}

/* Which namespaces changed is not known apart: all of them are told. Reading clears the list. */
static void make_changed_log(struct gpunvme_sim *sim, struct gpunvme_id_ns_list *log, bool clear)
{
    pthread_mutex_lock(&sim->event_lock);
    for (uint32_t i = 0; sim->namespaces_changed && i < sim->nns; i++)
        log->nsid[i] = sim->ns[i].nsid;
    if (clear)
        sim->namespaces_changed = false;
    pthread_mutex_unlock(&sim->event_lock);
}

static void make_effects_log(const struct gpunvme_sim *sim, struct gpunvme_cmds_effects_log *log)
{
    for (unsigned opc = 0; opc < 256; opc++) {
        if (sim_command_supported(sim, true, (uint8_t)opc))
            log->acs[opc] = GPUNVME_EFFECTS_CSUPP;
        if (sim_command_supported(sim, false, (uint8_t)opc))
            log->iocs[opc] = GPUNVME_EFFECTS_CSUPP;
    }
    log->iocs[GPUNVME_CMD_WRITE] |= GPUNVME_EFFECTS_LBCC;
    log->iocs[GPUNVME_CMD_WRITE_ZEROES] |= GPUNVME_EFFECTS_LBCC;
    log->iocs[GPUNVME_CMD_DSM] |= GPUNVME_EFFECTS_LBCC;
}

/* Makes the page in `log`, which is zeroed; returns its size, 0 where there is no such page. */
static uint64_t make_log(struct gpunvme_sim *sim, uint8_t lid, bool retain, uint8_t log[4096])
{
    switch (lid) {
    case GPUNVME_LOG_ERROR:
        make_error_log(sim, (void *)log);
        return SIM_ERROR_LOG * sizeof(struct gpunvme_error_log_entry);
    case GPUNVME_LOG_SMART:
        make_smart_log(sim, (void *)log);
        return sizeof(struct gpunvme_smart_log);
    case GPUNVME_LOG_FW_SLOT:
        make_firmware_log((void *)log);
        return sizeof(struct gpunvme_fw_slot_log);
    case GPUNVME_LOG_CHANGED_NS:
        make_changed_log(sim, (void *)log, !retain);
        return sizeof(struct gpunvme_id_ns_list);
    case GPUNVME_LOG_CMD_EFFECTS:
        make_effects_log(sim, (void *)log);
        return sizeof(struct gpunvme_cmds_effects_log);
    default:
        return 0;
    }
}

/* Moves what there is of a page, and zeroes behind its end. */
static uint16_t give(struct sim_cmd *cmd, uint8_t *log, uint64_t have, uint64_t asked)
{
    uint8_t zeroes[512] = {0};
    uint64_t first = have < asked ? have : asked;
    uint16_t status;

    sim_data_begin(cmd, asked, true);
    status = sim_data_copy(cmd->thread, &cmd->data, log, first);
    for (uint64_t at = first; !status && at < asked; at += sizeof(zeroes))
        status = sim_data_copy(cmd->thread, &cmd->data, zeroes,
                               asked - at < sizeof(zeroes) ? asked - at : sizeof(zeroes));
    return status;
}

uint16_t sim_get_log(struct sim_cmd *cmd)
{
    const struct gpunvme_sqe *sqe = &cmd->sqe;
    struct gpunvme_sim *sim = cmd->thread->sim;
    uint8_t lid = (uint8_t)GPUNVME_GET(sqe->cdw10, GET_LOG_LID);
    bool retain = GPUNVME_GET(sqe->cdw10, GET_LOG_RAE);
    uint64_t ndwords =
        (GPUNVME_GET(sqe->cdw10, GET_LOG_NUMDL) | GPUNVME_GET(sqe->cdw11, GET_LOG_NUMDU) << 16) + 1;
    uint64_t off = sqe->cdw12 | (uint64_t)sqe->cdw13 << 32, size;
    _Alignas(8) uint8_t log[4096] = {0};
    uint16_t status;

    /* The pages here are of the controller: LPA says that SMART is not kept by namespace. */
    if (sqe->nsid && sqe->nsid != GPUNVME_NSID_ALL)
        return GPUNVME_SC_INVALID_FIELD;
    if (sim->config.mdts && ndwords * 4 > 4096ull << sim->config.mdts)
        return GPUNVME_SC_INVALID_FIELD;
    size = make_log(sim, lid, retain, log);
    if (!size)
        return GPUNVME_SC_INVALID_LOG_PAGE;
    if (off % 4 || off >= size)
        return GPUNVME_SC_INVALID_FIELD;
    status = give(cmd, log + off, size - off, ndwords * 4);
    if (!status && !retain)
        sim_events_read(sim, lid);
    return status;
}
