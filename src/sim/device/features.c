/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Get Features and Set Features. Nothing is saved over resets.
 *
 * Source: NVM Express Base 1.4, sections 5.13 and 5.21.
 */
#include <string.h>
#include <time.h>

#include "sim/sim_internal.h"

#define TEMP_TMPTH 0xffffu
#define TEMP_OVER  0u
#define TEMP_UNDER 1u

#define SUPPORTED_CHANGEABLE (1u << 2) /* dw0 of Get Features, SEL supported capabilities */
#define SUPPORTED_BY_NS      (1u << 1)

static void set_defaults(const struct gpunvme_sim *sim, struct sim_features *features)
{
    uint32_t most = sim->config.max_queues - 1u;

    *features = (struct sim_features){
        .arbitration = 7, /* burst: no limit */
        .temperature_over = 343,
        .write_cache = sim->config.vwc,
        .nqueues =
            (uint32_t)(GPUNVME_SET(most, NUM_QUEUES_NSQ) | GPUNVME_SET(most, NUM_QUEUES_NCQ)),
        .timestamp_at_ns = sim_now_ns(),
    };
}

/* As after a reset. Under all thread locks. */
void sim_features_reset(struct gpunvme_sim *sim)
{
    uint8_t *vectors = sim->features.vectors;

    set_defaults(sim, &sim->features);
    sim->features.vectors = vectors;
    memset(vectors, 0, (size_t)sim->config.max_queues + 1);
    atomic_store(&sim->write_through, false);
    sim->keep_alive_ns = 0;
}

static bool is_supported(const struct gpunvme_sim *sim, uint8_t fid)
{
    switch (fid) {
    case GPUNVME_FEAT_ARBITRATION:
    case GPUNVME_FEAT_POWER_MGMT:
    case GPUNVME_FEAT_TEMP_THRESHOLD:
    case GPUNVME_FEAT_ERROR_RECOVERY:
    case GPUNVME_FEAT_NUM_QUEUES:
    case GPUNVME_FEAT_IRQ_COALESCE:
    case GPUNVME_FEAT_IRQ_CONFIG:
    case GPUNVME_FEAT_WRITE_ATOMICITY:
    case GPUNVME_FEAT_ASYNC_EVENT:
    case GPUNVME_FEAT_TIMESTAMP:
    case GPUNVME_FEAT_KATO:
        return true;
    case GPUNVME_FEAT_VOLATILE_WC:
        return sim->config.vwc;
    default:
        return false;
    }
}

static uint16_t set_nqueues(struct sim_cmd *cmd)
{
    struct gpunvme_sim *sim = cmd->thread->sim;
    uint32_t nsq = (uint32_t)GPUNVME_GET(cmd->sqe.cdw11, NUM_QUEUES_NSQ);
    uint32_t ncq = (uint32_t)GPUNVME_GET(cmd->sqe.cdw11, NUM_QUEUES_NCQ);
    uint32_t most = sim->config.max_queues - 1u;

    if (sim->nio_queues) {
        sim_violate(sim, GPUNVME_SIM_VIOLATION_QUEUE_ORDER,
                    "command id %u: Number of Queues set while there are I/O queues", cmd->sqe.cid);
        return GPUNVME_SC_CMD_SEQUENCE;
    }
    if (nsq == 0xffff || ncq == 0xffff)
        return GPUNVME_SC_INVALID_FIELD;
    sim->features.nqueues = (uint32_t)(GPUNVME_SET(nsq < most ? nsq : most, NUM_QUEUES_NSQ) |
                                       GPUNVME_SET(ncq < most ? ncq : most, NUM_QUEUES_NCQ));
    cmd->dw0 = sim->features.nqueues;
    return GPUNVME_SC_SUCCESS;
}

/* The temperature is always the same, so a threshold that it passes is an event at once. */
static uint16_t set_temperature(struct gpunvme_sim *sim, uint32_t value)
{
    uint32_t sensor = value >> 16 & 0xf, kind = value >> 20 & 3;

    if ((sensor && sensor != 0xf) || kind > TEMP_UNDER)
        return GPUNVME_SC_INVALID_FIELD;
    if (kind == TEMP_OVER)
        sim->features.temperature_over = value & TEMP_TMPTH;
    else
        sim->features.temperature_under = value & TEMP_TMPTH;
    if (sim_critical_warning(sim) & GPUNVME_SMART_CW_TEMPERATURE)
        sim_event_raise(sim, GPUNVME_AER_TYPE_SMART, GPUNVME_AER_SMART_TEMPERATURE,
                        GPUNVME_LOG_SMART);
    return GPUNVME_SC_SUCCESS;
}

static uint16_t set_vector(struct gpunvme_sim *sim, uint32_t value)
{
    if ((value & 0xffff) > sim->config.max_queues)
        return GPUNVME_SC_INVALID_FIELD;
    sim->features.vectors[value & 0xffff] = value >> 16 & 1;
    return GPUNVME_SC_SUCCESS;
}

/* By namespace, or all of them at once. */
static uint16_t set_error_recovery(struct sim_cmd *cmd)
{
    struct gpunvme_sim *sim = cmd->thread->sim;
    bool all = cmd->sqe.nsid == GPUNVME_NSID_ALL;
    struct sim_ns *ns = NULL;
    uint16_t status = all ? GPUNVME_SC_SUCCESS : sim_ns_check(sim, cmd->sqe.nsid, &ns);

    if (cmd->sqe.cdw11 >> 16 & 1) /* DULBE: errors for deallocated blocks are not supported */
        return GPUNVME_SC_INVALID_FIELD;
    for (uint32_t i = 0; !status && i < sim->nns; i++)
        if (all || ns == &sim->ns[i])
            sim->features.error_recovery[i] = cmd->sqe.cdw11;
    return status;
}

static uint16_t set_timestamp(struct sim_cmd *cmd)
{
    struct sim_features *features = &cmd->thread->sim->features;
    uint64_t value;
    uint16_t status = sim_data_take(cmd, &value, sizeof(value));

    if (status)
        return status;
    features->timestamp_ms = value & 0xffffffffffffull;
    features->timestamp_at_ns = sim_now_ns();
    features->timestamp_set = true;
    return GPUNVME_SC_SUCCESS;
}

static uint16_t set_kato(struct gpunvme_sim *sim, uint32_t value)
{
    sim->features.kato_ms = (value + 99) / 100 * 100; /* the granularity is KAS, 100 ms */
    if (value > UINT32_MAX - 99)
        sim->features.kato_ms = UINT32_MAX;
    sim->keep_alive_ns = value ? sim_now_ns() : 0;
    return GPUNVME_SC_SUCCESS;
}

static uint16_t set_write_cache(struct gpunvme_sim *sim, uint32_t value)
{
    sim->features.write_cache = value & GPUNVME_VOLATILE_WC_WCE;
    atomic_store(&sim->write_through, !sim->features.write_cache);
    return GPUNVME_SC_SUCCESS;
}

static uint16_t set_power(struct gpunvme_sim *sim, uint32_t value)
{
    if (value & 0x1f) /* there is one power state */
        return GPUNVME_SC_INVALID_FIELD;
    sim->features.power = value & 0xff;
    return GPUNVME_SC_SUCCESS;
}

uint16_t sim_set_features(struct sim_cmd *cmd)
{
    struct gpunvme_sim *sim = cmd->thread->sim;
    uint8_t fid = (uint8_t)GPUNVME_GET(cmd->sqe.cdw10, FEATURES_FID);
    uint32_t value = cmd->sqe.cdw11;

    if (!is_supported(sim, fid))
        return GPUNVME_SC_INVALID_FIELD;
    if (cmd->sqe.cdw10 & GPUNVME_FEATURES_SV)
        return GPUNVME_SC_FEATURE_NOT_SAVEABLE;
    if (fid != GPUNVME_FEAT_ERROR_RECOVERY && cmd->sqe.nsid && cmd->sqe.nsid != GPUNVME_NSID_ALL)
        return GPUNVME_SC_FEATURE_NOT_NS_SPECIFIC;
    switch (fid) {
    case GPUNVME_FEAT_NUM_QUEUES:
        return set_nqueues(cmd);
    case GPUNVME_FEAT_POWER_MGMT:
        return set_power(sim, value);
    case GPUNVME_FEAT_TEMP_THRESHOLD:
        return set_temperature(sim, value);
    case GPUNVME_FEAT_ERROR_RECOVERY:
        return set_error_recovery(cmd);
    case GPUNVME_FEAT_IRQ_CONFIG:
        return set_vector(sim, value);
    case GPUNVME_FEAT_VOLATILE_WC:
        return set_write_cache(sim, value);
    case GPUNVME_FEAT_TIMESTAMP:
        return set_timestamp(cmd);
    case GPUNVME_FEAT_KATO:
        return set_kato(sim, value);
    case GPUNVME_FEAT_ARBITRATION:
        sim->features.arbitration = value;
        break;
    case GPUNVME_FEAT_IRQ_COALESCE:
        sim->features.coalescing = value & 0xffff;
        break;
    case GPUNVME_FEAT_WRITE_ATOMICITY:
        sim->features.write_atomicity = value & 1;
        break;
    default: /* the asynchronous events */
        sim->features.async_events = value;
        atomic_store(&sim->events_due, true);
    }
    return GPUNVME_SC_SUCCESS;
}

static uint64_t timestamp(const struct sim_features *features)
{
    uint64_t ms = features->timestamp_ms + (sim_now_ns() - features->timestamp_at_ns) / 1000000;
    uint64_t origin = features->timestamp_set ? 1 : 0; /* bits 3:1: set by the host, or not */

    return (ms & 0xffffffffffffull) | origin << 49;
}

static uint16_t get_temperature(const struct sim_features *features, uint32_t value, uint32_t *dw0)
{
    if ((value >> 16 & 0xf) || (value >> 20 & 3) > TEMP_UNDER)
        return GPUNVME_SC_INVALID_FIELD;
    *dw0 =
        (value >> 20 & 3) == TEMP_OVER ? features->temperature_over : features->temperature_under;
    return GPUNVME_SC_SUCCESS;
}

static uint16_t get_error_recovery(struct sim_cmd *cmd, const struct sim_features *features)
{
    struct sim_ns *ns;
    uint16_t status = sim_ns_check(cmd->thread->sim, cmd->sqe.nsid, &ns);

    if (!status)
        cmd->dw0 = features->error_recovery[ns - cmd->thread->sim->ns];
    return status;
}

static uint16_t get_vector(struct sim_cmd *cmd, const struct sim_features *features)
{
    uint32_t vector = cmd->sqe.cdw11 & 0xffff;

    if (vector > cmd->thread->sim->config.max_queues)
        return GPUNVME_SC_INVALID_FIELD;
    cmd->dw0 = vector | (uint32_t)(features->vectors ? features->vectors[vector] : 0) << 16;
    return GPUNVME_SC_SUCCESS;
}

/* The value of a feature, from the current settings or the default ones. */
static uint16_t get_value(struct sim_cmd *cmd, uint8_t fid, const struct sim_features *features)
{
    uint64_t ts;

    switch (fid) {
    case GPUNVME_FEAT_ARBITRATION:
        cmd->dw0 = features->arbitration;
        break;
    case GPUNVME_FEAT_POWER_MGMT:
        cmd->dw0 = features->power;
        break;
    case GPUNVME_FEAT_TEMP_THRESHOLD:
        return get_temperature(features, cmd->sqe.cdw11, &cmd->dw0);
    case GPUNVME_FEAT_ERROR_RECOVERY:
        return get_error_recovery(cmd, features);
    case GPUNVME_FEAT_VOLATILE_WC:
        cmd->dw0 = features->write_cache;
        break;
    case GPUNVME_FEAT_NUM_QUEUES:
        cmd->dw0 = features->nqueues;
        break;
    case GPUNVME_FEAT_IRQ_COALESCE:
        cmd->dw0 = features->coalescing;
        break;
    case GPUNVME_FEAT_IRQ_CONFIG:
        return get_vector(cmd, features);
    case GPUNVME_FEAT_WRITE_ATOMICITY:
        cmd->dw0 = features->write_atomicity;
        break;
    case GPUNVME_FEAT_ASYNC_EVENT:
        cmd->dw0 = features->async_events;
        break;
    case GPUNVME_FEAT_TIMESTAMP:
        ts = timestamp(features);
        return sim_data_give(cmd, &ts, sizeof(ts));
    default: /* KATO */
        cmd->dw0 = features->kato_ms;
    }
    return GPUNVME_SC_SUCCESS;
}

uint16_t sim_get_features(struct sim_cmd *cmd)
{
    struct gpunvme_sim *sim = cmd->thread->sim;
    uint8_t fid = (uint8_t)GPUNVME_GET(cmd->sqe.cdw10, FEATURES_FID);
    bool by_ns = fid == GPUNVME_FEAT_ERROR_RECOVERY;
    struct sim_features defaults;

    if (!is_supported(sim, fid))
        return GPUNVME_SC_INVALID_FIELD;
    switch (GPUNVME_GET(cmd->sqe.cdw10, FEATURES_SEL)) {
    case GPUNVME_FEATURES_SEL_CURRENT:
        return get_value(cmd, fid, &sim->features);
    case GPUNVME_FEATURES_SEL_DEFAULT:
    case GPUNVME_FEATURES_SEL_SAVED: /* none is saved: the defaults */
        set_defaults(sim, &defaults);
        return get_value(cmd, fid, &defaults);
    case GPUNVME_FEATURES_SEL_SUPPORTED:
        cmd->dw0 = SUPPORTED_CHANGEABLE | (by_ns ? SUPPORTED_BY_NS : 0);
        return GPUNVME_SC_SUCCESS;
    default:
        return GPUNVME_SC_INVALID_FIELD;
    }
}
