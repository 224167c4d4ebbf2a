/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Identify: what the controller says of itself and of its namespaces. The same configuration
 * gives the same identifiers, over restarts too.
 *
 * Source: NVM Express Base 1.4, section 5.15.
 */
#include <stdio.h>
#include <string.h>

#include "sim/sim_internal.h"

/* Fills a text field of the specification: padded with spaces, no 0 at its end. */
static void text(char *field, size_t nbytes, const char *value)
{
    size_t n = strlen(value);

    memset(field, ' ', nbytes);
    memcpy(field, value, n < nbytes ? n : nbytes);
}

/* Bytes that stay the same for one seed, namespace and kind of identifier. */
static void stable_bytes(const struct gpunvme_sim *sim, uint32_t nsid, uint32_t kind, uint8_t *to,
                         unsigned n)
{
    uint64_t state = sim->config.seed + ((uint64_t)nsid << 8 | kind) * 0x9e3779b97f4a7c15ull;

    for (unsigned i = 0; i < n; i++) {
        state ^= state >> 29;
        state *= 0xbf58476d1ce4e5b9ull;
        state ^= state >> 32;
        to[i] = (uint8_t)(state >> 8);
        state += i + 1;
    }
}

static void make_uuid(const struct gpunvme_sim *sim, uint32_t nsid, uint8_t uuid[16])
{
    stable_bytes(sim, nsid, GPUNVME_NIDT_UUID, uuid, 16);
    uuid[6] = (uint8_t)((uuid[6] & 0x0f) | 0x40); /* RFC 4122: version 4, its variant */
    uuid[8] = (uint8_t)((uuid[8] & 0x3f) | 0x80);
}

static void make_names(const struct gpunvme_sim *sim, struct gpunvme_id_ctrl *id)
{
    char value[64];
    uint8_t uuid[16];
    int n;

    snprintf(value, sizeof(value), "SIM%016llX", (unsigned long long)sim->config.seed);
    text(id->sn, sizeof(id->sn), value);
    snprintf(value, sizeof(value), "gpunvme sim %.27s", sim->config.profile);
    text(id->mn, sizeof(id->mn), value);
    text(id->fr, sizeof(id->fr), "1.0");
    make_uuid(sim, 0, uuid);
    n = snprintf(id->subnqn, sizeof(id->subnqn), "nqn.2014-08.org.nvmexpress:uuid:");
    for (unsigned i = 0; i < 16; i++)
        n += snprintf(id->subnqn + n, sizeof(id->subnqn) - (size_t)n, "%s%02x",
                      i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
}

static void make_admin_part(const struct gpunvme_sim *sim, struct gpunvme_id_ctrl *id)
{
    id->vid = id->ssvid = SIM_PCI_VENDOR;
    id->cntlid = 1;
    id->ver = GPUNVME_VS_MAKE(1, 4, 0);
    id->rab = 5;
    id->mdts = sim->config.mdts;
    id->rtd3e = (uint32_t)(sim->config.shutdown_ns / 1000);
    id->oaes = GPUNVME_ASYNC_CONFIG_NS_ATTR | GPUNVME_ASYNC_CONFIG_FW_ACTIVATE;
    id->cntrltype = GPUNVME_CNTRLTYPE_IO;
    id->oacs = sim->config.shadow ? GPUNVME_OACS_DBBUF : 0;
    id->acl = 3;
    id->aerl = SIM_AERS - 1;
    id->frmw = GPUNVME_FRMW_SLOT1_RO | (uint8_t)GPUNVME_SET(1, FRMW_NSLOTS);
    id->lpa = GPUNVME_LPA_CMD_EFFECTS | GPUNVME_LPA_EXTENDED;
    id->elpe = SIM_ERROR_LOG - 1;
    id->wctemp = 343;
    id->cctemp = 353;
    id->kas = 1;
    id->psd[0].mp = 2500;
    for (uint32_t i = 0; i < sim->nns; i++) {
        uint64_t nbytes = sim->ns[i].nblocks << sim->ns[i].shift;

        id->tnvmcap[0] += nbytes;
        id->tnvmcap[1] += id->tnvmcap[0] < nbytes;
    }
}

static void make_io_part(const struct gpunvme_sim *sim, struct gpunvme_id_ctrl *id)
{
    id->sqes = GPUNVME_SQE_SHIFT | GPUNVME_SQE_SHIFT << 4;
    id->cqes = GPUNVME_CQE_SHIFT | GPUNVME_CQE_SHIFT << 4;
    id->nn = sim->nns ? sim->ns[sim->nns - 1].nsid : 0;
    id->oncs = GPUNVME_ONCS_COMPARE | GPUNVME_ONCS_WRITE_ZEROES | GPUNVME_ONCS_SAVE_SELECT |
               GPUNVME_ONCS_TIMESTAMP | GPUNVME_ONCS_VERIFY;
    if (sim_command_supported(sim, false, GPUNVME_CMD_DSM))
        id->oncs |= GPUNVME_ONCS_DSM;
    id->vwc = (uint8_t)((sim->config.vwc ? GPUNVME_VWC_PRESENT : 0) |
                        GPUNVME_SET(GPUNVME_VWC_FLUSH_ALL, VWC_FLUSH));
    if (sim->config.sgl)
        id->sgls = GPUNVME_SGLS_SUPPORT_BYTE | GPUNVME_SGLS_BIT_BUCKET | GPUNVME_SGLS_MPTR_CONTIG |
                   GPUNVME_SGLS_MPTR_SGL;
}

static uint16_t identify_ctrl(struct sim_cmd *cmd)
{
    struct gpunvme_sim *sim = cmd->thread->sim;
    struct gpunvme_id_ctrl id = {0};

    make_names(sim, &id);
    make_admin_part(sim, &id);
    make_io_part(sim, &id);
    return sim_data_give(cmd, &id, sizeof(id));
}

static void make_ns(const struct gpunvme_sim *sim, const struct sim_ns *ns,
                    struct gpunvme_id_ns *id)
{
    id->dlfeat = (uint8_t)(GPUNVME_DLFEAT_READ_00 | (sim->config.deac ? GPUNVME_DLFEAT_DEAC : 0));
    id->lbaf[0].lbads = (uint8_t)ns->shift;
    id->lbaf[0].ms = ns->config->metadata_size;
    id->nsze = id->ncap = id->nuse = ns->nblocks;
    if (ns->config->metadata_size) {
        id->mc = GPUNVME_MC_EXTENDED;
        id->flbas = GPUNVME_FLBAS_EXTENDED;
    }
    id->noiob = sim->config.noiob;
    id->nvmcap[0] = ns->nblocks << ns->shift;
    id->nsattr = ns->config->readonly ? GPUNVME_NSATTR_WRITE_PROTECTED : 0;
    stable_bytes(sim, ns->nsid, GPUNVME_NIDT_NGUID, id->nguid, sizeof(id->nguid));
    stable_bytes(sim, ns->nsid, GPUNVME_NIDT_EUI64, id->eui64, sizeof(id->eui64));
}

static uint16_t identify_ns(struct sim_cmd *cmd)
{
    struct gpunvme_sim *sim = cmd->thread->sim;
    struct gpunvme_id_ns id = {0};
    struct sim_ns *ns;
    uint16_t status;

    /* NSID FFFFFFFFh asks for what is common to all; that takes Namespace Management. */
    status = sim_ns_check(sim, cmd->sqe.nsid, &ns);
    if (status == GPUNVME_SC_INVALID_NS)
        return status;
    if (ns) /* of an inactive one all is 0 */
        make_ns(sim, ns, &id);
    return sim_data_give(cmd, &id, sizeof(id));
}

static uint16_t identify_list(struct sim_cmd *cmd)
{
    struct gpunvme_sim *sim = cmd->thread->sim;
    struct gpunvme_id_ns_list list = {0};
    uint32_t n = 0;

    if (cmd->sqe.nsid >= GPUNVME_NSID_ALL - 1)
        return GPUNVME_SC_INVALID_NS;
    for (uint32_t i = 0; i < sim->nns; i++)
        if (sim->ns[i].nsid > cmd->sqe.nsid)
            list.nsid[n++] = sim->ns[i].nsid;
    return sim_data_give(cmd, &list, sizeof(list));
}

static uint8_t *add_descriptor(uint8_t *at, uint8_t type, const uint8_t *bytes, uint8_t n)
{
    struct gpunvme_ns_id_desc head = {.nidt = type, .nidl = n};

    memcpy(at, &head, sizeof(head));
    memcpy(at + sizeof(head), bytes, n);
    return at + sizeof(head) + n;
}

static uint16_t identify_descriptors(struct sim_cmd *cmd)
{
    struct gpunvme_sim *sim = cmd->thread->sim;
    uint8_t page[4096] = {0}, bytes[16], *at = page;
    struct sim_ns *ns;
    uint16_t status = sim_ns_check(sim, cmd->sqe.nsid, &ns);

    if (status)
        return status;
    stable_bytes(sim, ns->nsid, GPUNVME_NIDT_EUI64, bytes, 8);
    at = add_descriptor(at, GPUNVME_NIDT_EUI64, bytes, 8);
    stable_bytes(sim, ns->nsid, GPUNVME_NIDT_NGUID, bytes, 16);
    at = add_descriptor(at, GPUNVME_NIDT_NGUID, bytes, 16);
    make_uuid(sim, ns->nsid, bytes);
    add_descriptor(at, GPUNVME_NIDT_UUID, bytes, 16);
    return sim_data_give(cmd, page, sizeof(page));
}

uint16_t sim_identify(struct sim_cmd *cmd)
{
    switch (GPUNVME_GET(cmd->sqe.cdw10, IDENTIFY_CNS)) {
    case GPUNVME_CNS_NS:
        return identify_ns(cmd);
    case GPUNVME_CNS_CTRL:
        return identify_ctrl(cmd);
    case GPUNVME_CNS_ACTIVE_NS_LIST:
        return identify_list(cmd);
    case GPUNVME_CNS_NS_DESC_LIST:
        return identify_descriptors(cmd);
    default:
        return GPUNVME_SC_INVALID_FIELD;
    }
}
