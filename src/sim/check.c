/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What can be said of a command by looking at it alone: its opcode, reserved fields, FUSE and
 * PSDT. Where the specification gives no status for a reserved field, it is only counted.
 *
 * Source: NVM Express Base 1.4, section 4.2 and the command dwords in sections 5 and 6.
 */
#include "sim/sim_internal.h"

enum { NO_DATA = 0, DATA = 1, ANY_NSID = 2 };

/* Reserved bits of each dword that a command may use; those not named are all reserved. */
struct rule {
    uint8_t opc;
    uint8_t flags;
    uint32_t cdw10, cdw11, cdw12, cdw13, cdw14, cdw15;
};

#define ALL 0xffffffffu

static const struct rule admin_rules[] = {
    {GPUNVME_ADMIN_DELETE_SQ, NO_DATA, 0xffff0000, ALL, ALL, ALL, ALL, ALL},
    {GPUNVME_ADMIN_CREATE_SQ, DATA, 0, 0x0000fff8, 0xffff0000, ALL, ALL, ALL},
    {GPUNVME_ADMIN_GET_LOG_PAGE, DATA | ANY_NSID, 0x7000, 0, 0, 0, 0xffffff80, ALL},
    {GPUNVME_ADMIN_DELETE_CQ, NO_DATA, 0xffff0000, ALL, ALL, ALL, ALL, ALL},
    {GPUNVME_ADMIN_CREATE_CQ, DATA, 0, 0x0000fffc, ALL, ALL, ALL, ALL},
    {GPUNVME_ADMIN_IDENTIFY, DATA | ANY_NSID, 0x0000ff00, 0xffff0000, ALL, ALL, 0xffffff80, ALL},
    {GPUNVME_ADMIN_ABORT, NO_DATA, 0, ALL, ALL, ALL, ALL, ALL},
    {GPUNVME_ADMIN_SET_FEATURES, DATA | ANY_NSID, 0x7fffff00, 0, ALL, ALL, 0xffffff80, ALL},
    {GPUNVME_ADMIN_GET_FEATURES, DATA | ANY_NSID, 0xfffff800, 0, ALL, ALL, 0xffffff80, ALL},
    {GPUNVME_ADMIN_ASYNC_EVENT, NO_DATA, ALL, ALL, ALL, ALL, ALL, ALL},
    {GPUNVME_ADMIN_KEEP_ALIVE, NO_DATA, ALL, ALL, ALL, ALL, ALL, ALL},
    {GPUNVME_ADMIN_DOORBELL_BUFFER_CONFIG, DATA, ALL, ALL, ALL, ALL, ALL, ALL},
};

static const struct rule io_rules[] = {
    {GPUNVME_CMD_FLUSH, ANY_NSID, ALL, ALL, ALL, ALL, ALL, ALL},
    {GPUNVME_CMD_WRITE, DATA | ANY_NSID, 0, 0, 0x030f0000, 0x0000ff00, 0, 0},
    {GPUNVME_CMD_READ, DATA | ANY_NSID, 0, 0, 0x03ff0000, 0xffffff00, 0, 0},
    {GPUNVME_CMD_COMPARE, DATA | ANY_NSID, 0, 0, 0x03ff0000, ALL, 0, 0},
    {GPUNVME_CMD_WRITE_ZEROES, ANY_NSID, 0, 0, 0x01ff0000, ALL, 0, 0},
    {GPUNVME_CMD_DSM, DATA | ANY_NSID, 0xffffff00, 0xfffffff8, ALL, ALL, ALL, ALL},
    {GPUNVME_CMD_VERIFY, ANY_NSID, 0, 0, 0x03ff0000, ALL, 0, 0},
};

static const struct rule *find_rule(bool admin, uint8_t opc)
{
    const struct rule *rules = admin ? admin_rules : io_rules;
    size_t n = admin ? sizeof(admin_rules) / sizeof(*rules) : sizeof(io_rules) / sizeof(*rules);

    for (size_t i = 0; i < n; i++)
        if (rules[i].opc == opc)
            return &rules[i];
    return NULL;
}

bool sim_command_supported(const struct gpunvme_sim *sim, bool admin, uint8_t opc)
{
    if (admin && opc == GPUNVME_ADMIN_DOORBELL_BUFFER_CONFIG)
        return sim->config.shadow;
    return find_rule(admin, opc) != NULL;
}

static void reserved(struct sim_cmd *cmd, const char *field, uint64_t bits)
{
    if (!bits)
        return;
    sim_violate(cmd->thread->sim, GPUNVME_SIM_VIOLATION_RESERVED_BITS,
                "queue %u, command id %u, opcode %02xh: reserved bits %llxh of %s are set",
                cmd->sq->qid, cmd->sqe.cid, cmd->sqe.opc, (unsigned long long)bits, field);
}

static void check_dwords(struct sim_cmd *cmd, const struct rule *rule)
{
    const struct gpunvme_sqe *sqe = &cmd->sqe;

    reserved(cmd, "CDW2", sqe->cdw2);
    reserved(cmd, "CDW3", sqe->cdw3);
    reserved(cmd, "CDW10", sqe->cdw10 & rule->cdw10);
    reserved(cmd, "CDW11", sqe->cdw11 & rule->cdw11);
    reserved(cmd, "CDW12", sqe->cdw12 & rule->cdw12);
    reserved(cmd, "CDW13", sqe->cdw13 & rule->cdw13);
    reserved(cmd, "CDW14", sqe->cdw14 & rule->cdw14);
    reserved(cmd, "CDW15", sqe->cdw15 & rule->cdw15);
    if (!(rule->flags & ANY_NSID))
        reserved(cmd, "NSID", sqe->nsid);
    if (!(rule->flags & DATA)) {
        reserved(cmd, "PRP1", sqe->prp1);
        reserved(cmd, "PRP2", sqe->prp2);
    }
    if (!cmd->sq->qid || !(rule->flags & DATA))
        reserved(cmd, "MPTR", sqe->mptr);
}

/* PRP or SGL: admin commands of a PCIe controller use PRPs only. */
static uint16_t check_psdt(struct sim_cmd *cmd)
{
    uint8_t psdt = cmd->sqe.flags & GPUNVME_PSDT_MASK;

    if (psdt == GPUNVME_PSDT_PRP)
        return GPUNVME_SC_SUCCESS;
    if (psdt == GPUNVME_PSDT_MASK) {
        reserved(cmd, "PSDT", psdt);
        return GPUNVME_SC_INVALID_FIELD;
    }
    if (cmd->sq->qid && cmd->thread->sim->config.sgl)
        return GPUNVME_SC_SUCCESS;
    sim_violate(cmd->thread->sim, GPUNVME_SIM_VIOLATION_SGL_INVALID,
                "queue %u, command id %u: an SGL where only PRPs are supported", cmd->sq->qid,
                cmd->sqe.cid);
    return GPUNVME_SC_INVALID_FIELD;
}

uint16_t sim_check_command(struct sim_cmd *cmd)
{
    uint8_t odd = cmd->sqe.flags & (uint8_t) ~(GPUNVME_FUSE_MASK | GPUNVME_PSDT_MASK);
    const struct rule *rule;

    if (!sim_command_supported(cmd->thread->sim, !cmd->sq->qid, cmd->sqe.opc))
        return GPUNVME_SC_INVALID_OPCODE;
    rule = find_rule(!cmd->sq->qid, cmd->sqe.opc);
    check_dwords(cmd, rule);
    reserved(cmd, "CDW0", (uint64_t)odd << 8);
    if (odd || cmd->sqe.flags & GPUNVME_FUSE_MASK)
        return GPUNVME_SC_INVALID_FIELD;
    return check_psdt(cmd);
}
