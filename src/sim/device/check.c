/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What can be said of a command by looking at it alone: its opcode, reserved fields, FUSE and
 * PSDT. Where the specification gives no status for a reserved field, it is only counted.
 *
 * Source: NVM Express Base 1.4, section 4.2 and the command dwords in sections 5 and 6.
 */
#include "sim/command.h"
#include "sim/sim_internal.h"

#define NO_DATA  SIM_RULE_NO_DATA
#define DATA     SIM_RULE_DATA
#define ANY_NSID SIM_RULE_ANY_NSID
#define ALL      SIM_RULE_ALL

static const struct sim_rule admin_rules[] = {
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

const char *sim_what_text(enum sim_what what)
{
    static const char *const texts[] = {
#define X(name, text) text,
        SIM_WHATS(X)
#undef X
    };

    return (unsigned)what < SIM_NWHATS ? texts[what] : "";
}

static bool find_rule(const struct gpunvme_sim *sim, bool admin, uint8_t opc, struct sim_rule *rule)
{
    if (!admin)
        return sim_io_rule(opc, sim->config.deac, rule);
    for (size_t i = 0; i < sizeof(admin_rules) / sizeof(*admin_rules); i++) {
        if (admin_rules[i].opc == opc) {
            *rule = admin_rules[i];
            return true;
        }
    }
    return false;
}

bool sim_command_supported(const struct gpunvme_sim *sim, bool admin, uint8_t opc)
{
    struct sim_rule rule;

    if (admin && opc == GPUNVME_ADMIN_DOORBELL_BUFFER_CONFIG)
        return sim->config.shadow;
    if (!admin && opc == GPUNVME_CMD_DSM && sim->config.engine != GPUNVME_SIM_ENGINE_CPU)
        return false; /* the engine does not have it */
    return find_rule(sim, admin, opc, &rule);
}

static void tell(struct sim_cmd *cmd, enum sim_what what, uint64_t bits)
{
    if (what == SIM_WHAT_SGL_UNSUPPORTED)
        sim_violate(cmd->thread->sim, GPUNVME_SIM_VIOLATION_SGL_INVALID,
                    "queue %u, command id %u: %s", cmd->sq->qid, cmd->sqe.cid, sim_what_text(what));
    else
        sim_violate(cmd->thread->sim, GPUNVME_SIM_VIOLATION_RESERVED_BITS,
                    "queue %u, command id %u, opcode %02xh: reserved bits %llxh of %s are set",
                    cmd->sq->qid, cmd->sqe.cid, cmd->sqe.opc, (unsigned long long)bits,
                    sim_what_text(what));
}

uint16_t sim_check_command(struct sim_cmd *cmd)
{
    bool admin = !cmd->sq->qid;
    struct sim_rule rule;
    uint32_t wrong;
    uint16_t status;

    if (!sim_command_supported(cmd->thread->sim, admin, cmd->sqe.opc))
        return GPUNVME_SC_INVALID_OPCODE;
    find_rule(cmd->thread->sim, admin, cmd->sqe.opc, &rule);
    status = sim_command_form(&cmd->sqe, &rule, admin, cmd->thread->sim->config.sgl, &wrong);
    for (; wrong; wrong &= wrong - 1) {
        enum sim_what what = (enum sim_what)__builtin_ctz(wrong);

        tell(cmd, what, sim_command_reserved(&cmd->sqe, &rule, admin, what));
    }
    return status;
}
