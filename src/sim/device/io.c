/* SPDX-License-Identifier: BSD-3-Clause
 *
 * I/O commands. A command whose namespace is in memory is done at once; else it goes to the store
 * in parts, each of which ends with a call of the command's step. Parts lie in the host's memory
 * itself where the store can use it so, in a bounce buffer where not: GPU memory, and pieces that
 * do not add up to whole blocks.
 *
 * Source: NVM Express Base 1.4, sections 6.1.5 and 6.6 to 6.17.
 */
#include <string.h>

#include "sim/sim_internal.h"

/*
 * What went wrong in a store, as a status. A full file system under an image is Capacity Exceeded:
 * the image is sparse, so the namespace is in effect thin-provisioned.
 */
static uint16_t store_status(const struct sim_cmd *cmd)
{
    switch (cmd->io_err) {
    case GPUNVME_OK:
        return GPUNVME_SC_SUCCESS;
    case GPUNVME_ERR_NOSPC:
        return GPUNVME_SC_CAP_EXCEEDED;
    case GPUNVME_ERR_READONLY:
        return GPUNVME_SC_NS_WRITE_PROTECTED;
    default:
        break;
    }
    switch (cmd->sqe.opc) {
    case GPUNVME_CMD_READ:
    case GPUNVME_CMD_COMPARE:
    case GPUNVME_CMD_VERIFY:
        return GPUNVME_SC_UNRECOVERED_READ;
    default:
        return GPUNVME_SC_WRITE_FAULT;
    }
}

enum sim_model_op sim_io_model(const struct sim_cmd *cmd, uint64_t *nbytes)
{
    const struct sim_ns *ns = sim_ns_find(cmd->thread->sim, cmd->sqe.nsid);

    *nbytes = ns ? sim_command_nlb(&cmd->sqe) << ns->shift : 0;
    switch (cmd->sqe.opc) {
    case GPUNVME_CMD_READ:
    case GPUNVME_CMD_COMPARE:
    case GPUNVME_CMD_VERIFY:
        return SIM_MODEL_READ;
    case GPUNVME_CMD_WRITE:
        return SIM_MODEL_WRITE;
    case GPUNVME_CMD_FLUSH:
        return SIM_MODEL_FLUSH;
    default:
        return SIM_MODEL_OTHER;
    }
}

uint16_t sim_ns_check(struct gpunvme_sim *sim, uint32_t nsid, struct sim_ns **ns)
{
    *ns = sim_ns_find(sim, nsid);
    if (*ns)
        return GPUNVME_SC_SUCCESS;
    return sim_command_no_ns(nsid, sim->nns ? sim->ns[sim->nns - 1].nsid : 0);
}

static void transfer_ended(struct sim_store_io *io, gpunvme_err_t err)
{
    struct sim_cmd *cmd = (struct sim_cmd *)(void *)((char *)io - offsetof(struct sim_cmd, io));
    struct sim_thread *t = cmd->thread;

    cmd->io_err = err;
    cmd->in_store = false;
    cmd->next = NULL;
    *t->ended_tail = cmd;
    t->ended_tail = &cmd->next;
}

/* Gives a part to the store; cmd->step is called when it is done, never from here. */
static void submit(struct sim_cmd *cmd, enum sim_store_op op, unsigned niov)
{
    const struct gpunvme_sqe *sqe = &cmd->sqe;

    cmd->io.op = op;
    cmd->io.off = cmd->off;
    cmd->io.nbytes = cmd->part;
    cmd->io.iov = cmd->iov;
    cmd->io.niov = niov;
    cmd->io.fua = (op == SIM_STORE_WRITE || op == SIM_STORE_ZERO) &&
                  ((sqe->opc != GPUNVME_CMD_DSM && sqe->cdw12 & GPUNVME_RW_FUA) ||
                   atomic_load_explicit(&cmd->thread->sim->write_through, memory_order_relaxed));
    cmd->io.done = transfer_ended;
    cmd->in_store = true;
    cmd->thread->nactive++;
    cmd->sq->active++;
    sim_store_submit(cmd->ns->store, cmd->thread->index, &cmd->io);
}

/* A bounce buffer, or false: then the command waits for one and its step is called again. */
static bool have_stage(struct sim_cmd *cmd)
{
    struct sim_thread *t = cmd->thread;
    unsigned at;

    if (cmd->stage)
        return true;
    if (!t->stages_free) {
        cmd->next = NULL;
        *t->waiting_tail = cmd;
        t->waiting_tail = &cmd->next;
        return false;
    }
    at = (unsigned)__builtin_ctz(t->stages_free);
    t->stages_free &= ~(1u << at);
    cmd->stage = t->stages + at * (size_t)SIM_STAGE_BYTES;
    return true;
}

static struct sim_cmd *take_waiting(struct sim_thread *t, struct sim_cmd **link)
{
    struct sim_cmd *cmd = *link;

    *link = cmd->next;
    if (!*link)
        t->waiting_tail = link;
    return cmd;
}

void sim_io_retry_waiting(struct sim_thread *t)
{
    while (t->waiting && t->stages_free) {
        struct sim_cmd *cmd = take_waiting(t, &t->waiting);

        cmd->step(cmd);
    }
}

void sim_io_abort_waiting(struct sim_thread *t, struct sim_sq *sq, uint16_t status)
{
    struct sim_cmd **link = &t->waiting;

    while (*link) {
        if ((*link)->sq == sq)
            sim_cmd_end(take_waiting(t, link), status);
        else
            link = &(*link)->next;
    }
}

/*
 * Gathers the host's memory for the next part into cmd->iov. `*niov` is 0 where it can't be given
 * to a store as it is; then nothing was taken.
 */
static uint16_t gather(struct sim_cmd *cmd, unsigned *niov)
{
    struct sim_data saved = cmd->data;
    uint64_t rest, got = 0;
    struct sim_piece piece = {0};
    unsigned n = 0;

    while (got < cmd->left && n < SIM_IOVECS) {
        uint16_t status = sim_data_next(cmd->thread, &cmd->data, cmd->left - got, &piece);

        if (status)
            return status;
        if (!piece.cpu)
            break;
        if (n && (uint8_t *)cmd->iov[n - 1].iov_base + cmd->iov[n - 1].iov_len == piece.cpu)
            cmd->iov[n - 1].iov_len += piece.nbytes;
        else
            cmd->iov[n++] = (struct iovec){.iov_base = piece.cpu, .iov_len = piece.nbytes};
        got += piece.nbytes;
    }
    rest = got & ((1u << cmd->ns->shift) - 1);
    if (!piece.cpu || rest >= piece.nbytes || (got == rest)) {
        cmd->data = saved;
        *niov = 0;
        return GPUNVME_SC_SUCCESS;
    }
    /* Whole blocks only: what is left over of the last piece comes again in the next part. */
    cmd->iov[n - 1].iov_len -= rest;
    cmd->data.walk.bus -= rest;
    cmd->data.walk.piece += rest;
    cmd->data.walk.left += rest;
    cmd->part = got - rest;
    *niov = n;
    return GPUNVME_SC_SUCCESS;
}

/* Begins the next part of a read, write, compare or verify; the status is why it can't. */
static uint16_t transfer_part(struct sim_cmd *cmd)
{
    enum sim_store_op op = cmd->sqe.opc == GPUNVME_CMD_WRITE ? SIM_STORE_WRITE : SIM_STORE_READ;
    bool moves = cmd->sqe.opc == GPUNVME_CMD_READ || cmd->sqe.opc == GPUNVME_CMD_WRITE;
    uint16_t status = GPUNVME_SC_SUCCESS;
    unsigned niov = 0;

    if (moves && !cmd->stage) {
        status = gather(cmd, &niov);
        if (status)
            return status;
    }
    if (!niov) {
        if (!have_stage(cmd))
            return GPUNVME_SC_SUCCESS;
        cmd->part = cmd->left < SIM_STAGE_BYTES ? cmd->left : SIM_STAGE_BYTES;
        cmd->iov[0] = (struct iovec){.iov_base = cmd->stage, .iov_len = cmd->part};
        niov = 1;
        if (op == SIM_STORE_WRITE)
            status = sim_data_copy(cmd->thread, &cmd->data, cmd->stage, cmd->part);
        if (status)
            return status;
    }
    submit(cmd, op, niov);
    return GPUNVME_SC_SUCCESS;
}

/* A part has come back from the store. */
static uint16_t transfer_landed(struct sim_cmd *cmd)
{
    uint16_t status = store_status(cmd);

    if (!status && cmd->stage && cmd->sqe.opc == GPUNVME_CMD_READ)
        status = sim_data_copy(cmd->thread, &cmd->data, cmd->stage, cmd->part);
    if (!status && cmd->stage && cmd->sqe.opc == GPUNVME_CMD_COMPARE)
        status = sim_data_compare(cmd->thread, &cmd->data, cmd->stage, cmd->part);
    cmd->off += cmd->part;
    cmd->left -= cmd->part;
    cmd->part = 0;
    if (!status && cmd->sq->deleting)
        status = GPUNVME_SC_ABORT_SQ_DELETED;
    return status;
}

static void transfer_end(struct sim_cmd *cmd, uint16_t status)
{
    struct sim_counters *counters = &cmd->thread->counters;
    uint64_t nbytes = sim_command_nlb(&cmd->sqe) << cmd->ns->shift;

    if (!status && cmd->sqe.opc != GPUNVME_CMD_VERIFY)
        status = sim_data_end(cmd->thread, &cmd->data);
    if (!status && cmd->sqe.opc == GPUNVME_CMD_WRITE) {
        sim_count(&counters->host_writes, 1);
        sim_count(&counters->bytes_written, nbytes);
    } else if (!status && cmd->sqe.opc == GPUNVME_CMD_READ) {
        sim_count(&counters->host_reads, 1);
        sim_count(&counters->bytes_read, nbytes);
    }
    sim_cmd_end(cmd, status);
}

static void transfer_step(struct sim_cmd *cmd)
{
    uint16_t status = cmd->part ? transfer_landed(cmd) : GPUNVME_SC_SUCCESS;

    if (!status && cmd->left) {
        status = transfer_part(cmd);
        if (!status)
            return;
    }
    transfer_end(cmd, status);
}

/* With the bytes at hand. */
static uint16_t transfer_direct(struct sim_cmd *cmd)
{
    uint8_t *bytes = cmd->ns->direct + cmd->off;

    switch (cmd->sqe.opc) {
    case GPUNVME_CMD_COMPARE:
        return sim_data_compare(cmd->thread, &cmd->data, bytes, cmd->left);
    case GPUNVME_CMD_VERIFY:
        return GPUNVME_SC_SUCCESS;
    default:
        return sim_data_copy(cmd->thread, &cmd->data, bytes, cmd->left);
    }
}

static uint16_t check_transfer(const struct sim_cmd *cmd)
{
    const struct gpunvme_sim_config *config = &cmd->thread->sim->config;

    return sim_command_transfer(&cmd->sqe, cmd->left, config->mdts ? 4096ull << config->mdts : 0,
                                cmd->ns->config->metadata_size);
}

static void transfer(struct sim_cmd *cmd)
{
    uint16_t status = check_transfer(cmd);

    if (status) {
        sim_cmd_end(cmd, status);
        return;
    }
    if (cmd->sqe.opc != GPUNVME_CMD_VERIFY)
        sim_data_begin(cmd, cmd->left, cmd->sqe.opc == GPUNVME_CMD_READ);
    cmd->step = transfer_step;
    if (cmd->ns->direct)
        transfer_end(cmd, transfer_direct(cmd));
    else
        transfer_step(cmd);
}

static void zero_step(struct sim_cmd *cmd)
{
    sim_cmd_end(cmd, store_status(cmd));
}

static void write_zeroes(struct sim_cmd *cmd)
{
    cmd->step = zero_step;
    cmd->part = cmd->left;
    submit(cmd, SIM_STORE_ZERO, 0);
}

static void flush_step(struct sim_cmd *cmd)
{
    struct gpunvme_sim *sim = cmd->thread->sim;
    bool all = cmd->sqe.nsid == GPUNVME_NSID_ALL;
    uint16_t status = store_status(cmd);

    if (status || cmd->index == sim->nns || (!all && cmd->index)) {
        sim_cmd_end(cmd, status);
        return;
    }
    if (all)
        cmd->ns = &sim->ns[cmd->index];
    cmd->index++;
    cmd->off = cmd->part = 0;
    submit(cmd, SIM_STORE_FLUSH, 0);
}

static void flush(struct sim_cmd *cmd)
{
    cmd->step = flush_step;
    flush_step(cmd);
}

/* The ranges of a Dataset Management command lie in the command's bounce buffer. */
static uint16_t dsm_take_ranges(struct sim_cmd *cmd, uint32_t n)
{
    const struct gpunvme_dsm_range *ranges = (const void *)cmd->stage;
    uint16_t status;

    sim_data_begin(cmd, n * sizeof(*ranges), false);
    status = sim_data_copy(cmd->thread, &cmd->data, cmd->stage, n * sizeof(*ranges));
    if (!status)
        status = sim_data_end(cmd->thread, &cmd->data);
    for (uint32_t i = 0; !status && i < n; i++)
        if (ranges[i].slba > cmd->ns->nblocks || ranges[i].nlb > cmd->ns->nblocks - ranges[i].slba)
            status = GPUNVME_SC_LBA_RANGE;
    return status;
}

static void dsm_step(struct sim_cmd *cmd)
{
    uint32_t n = (uint32_t)GPUNVME_GET(cmd->sqe.cdw10, DSM_NR) + 1;
    bool first = !cmd->stage;
    const struct gpunvme_dsm_range *ranges;
    uint16_t status;

    if (!have_stage(cmd))
        return;
    ranges = (const void *)cmd->stage;
    status = first ? dsm_take_ranges(cmd, n) : store_status(cmd);
    if (!status && first && !sim_pass_faults(cmd, ranges, n))
        return;
    if (!status && cmd->sq->deleting)
        status = GPUNVME_SC_ABORT_SQ_DELETED;
    while (!status && cmd->index < n && !ranges[cmd->index].nlb)
        cmd->index++;
    if (status || cmd->index == n || !(cmd->sqe.cdw11 & GPUNVME_DSM_AD)) {
        sim_cmd_end(cmd, status);
        return;
    }
    cmd->off = ranges[cmd->index].slba << cmd->ns->shift;
    cmd->part = (uint64_t)ranges[cmd->index].nlb << cmd->ns->shift;
    cmd->index++;
    submit(cmd, SIM_STORE_ZERO, 0);
}

static void dataset_management(struct sim_cmd *cmd)
{
    cmd->step = dsm_step;
    dsm_step(cmd);
}

/* The namespace, the blocks, and whether they may be written. */
static uint16_t check_target(struct sim_cmd *cmd)
{
    const struct gpunvme_sqe *sqe = &cmd->sqe;
    uint16_t status;

    if (sqe->opc == GPUNVME_CMD_FLUSH && sqe->nsid == GPUNVME_NSID_ALL)
        return GPUNVME_SC_SUCCESS;
    status = sim_ns_check(cmd->thread->sim, sqe->nsid, &cmd->ns);
    if (status || sqe->opc == GPUNVME_CMD_FLUSH)
        return status;
    status = sim_command_blocks(sqe, cmd->ns->nblocks, cmd->ns->config->readonly);
    if (status || sqe->opc == GPUNVME_CMD_DSM)
        return status;
    cmd->off = sim_command_slba(sqe) << cmd->ns->shift;
    cmd->left = sim_command_nlb(sqe) << cmd->ns->shift;
    return GPUNVME_SC_SUCCESS;
}

void sim_io(struct sim_cmd *cmd)
{
    uint16_t status = check_target(cmd);

    cmd->part = 0;
    if (status) {
        sim_cmd_end(cmd, status);
        return;
    }
    switch (cmd->sqe.opc) {
    case GPUNVME_CMD_FLUSH:
        flush(cmd);
        break;
    case GPUNVME_CMD_WRITE_ZEROES:
        write_zeroes(cmd);
        break;
    case GPUNVME_CMD_DSM:
        dataset_management(cmd);
        break;
    default:
        transfer(cmd);
    }
}
