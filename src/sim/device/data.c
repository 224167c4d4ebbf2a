/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The device's side of data pointers: moves bytes to and from what PRP entries, PRP lists and SGLs
 * describe, piece by piece (the walk itself is command.h's), and words what is wrong with them.
 *
 * Source: NVM Express Base 1.4, sections 4.3 (PRP) and 4.4 (SGL).
 */
#include <string.h>

#include "gpunvme/memory.h"
#include "sim/sim_internal.h"

static void tell(struct sim_thread *t, const struct sim_data *data,
                 enum gpunvme_sim_violation violation, enum sim_what what, uint64_t value)
{
    if (what == SIM_WHAT_PRP2_UNUSED)
        sim_violate(t->sim, violation,
                    "queue %u, command id %u: PRP2 is %llxh for data in one page", data->qid,
                    data->cid, (unsigned long long)value);
    else if (violation == GPUNVME_SIM_VIOLATION_SGL_INVALID)
        sim_violate(t->sim, violation, "queue %u, command id %u: %s", data->qid, data->cid,
                    sim_what_text(what));
    else
        sim_violate(t->sim, violation, "queue %u, command id %u: %s is %llxh", data->qid, data->cid,
                    sim_what_text(what), (unsigned long long)value);
}

/* What is told but does not end the command. */
static void tell_note(struct sim_thread *t, struct sim_data *data)
{
    if (!data->walk.note)
        return;
    tell(t, data,
         data->walk.note == SIM_WHAT_PRP2_UNUSED ? GPUNVME_SIM_VIOLATION_RESERVED_BITS
                                                 : GPUNVME_SIM_VIOLATION_SGL_INVALID,
         data->walk.note, data->walk.value);
    data->walk.note = 0;
}

void sim_data_begin(struct sim_cmd *cmd, uint64_t nbytes, bool to_host)
{
    struct sim_data *data = &cmd->data;

    data->qid = cmd->sq->qid;
    data->cid = cmd->sqe.cid;
    sim_walk_begin(&data->walk, &cmd->sqe, nbytes, cmd->thread->sim->page, to_host);
    tell_note(cmd->thread, data);
}

static uint16_t unmapped(struct sim_thread *t, const struct sim_data *data, uint64_t bus)
{
    sim_violate(t->sim, GPUNVME_SIM_VIOLATION_DMA_UNMAPPED,
                "queue %u, command id %u: bus address %llxh is not mapped", data->qid, data->cid,
                (unsigned long long)bus);
    return GPUNVME_SC_DATA_TRANSFER_ERROR;
}

/* Goes on with the walk: reads what it asks for and tells what it found. */
static uint16_t advance(struct sim_thread *t, struct sim_data *data,
                        enum sim_walk_step (*step)(struct sim_walk *walk))
{
    struct sim_walk *walk = &data->walk;

    for (;;) {
        enum sim_walk_step next = step(walk);

        tell_note(t, data);
        switch (next) {
        case SIM_WALK_READ:
            if (!sim_dma_read(t, walk->want, walk->in, walk->nwant))
                return unmapped(t, data, walk->want);
            break;
        case SIM_WALK_WRONG:
            tell(t, data, walk->violation, walk->what, walk->value);
            return walk->status;
        default:
            return GPUNVME_SC_SUCCESS;
        }
    }
}

/* The next piece of at most `most` bytes; there must be bytes left. */
uint16_t sim_data_next(struct sim_thread *t, struct sim_data *data, uint64_t most,
                       struct sim_piece *piece)
{
    struct sim_walk *walk = &data->walk;
    const struct sim_range *range;
    uint64_t n, at;

    if (!walk->piece) {
        uint16_t status = advance(t, data, sim_walk_next);

        if (status)
            return status;
    }
    n = walk->piece < most ? walk->piece : most;
    *piece = (struct sim_piece){.nbytes = n};
    if (!walk->bucket) {
        range = sim_dma_find(t->sim, &t->last_data, walk->bus);
        if (!range)
            return unmapped(t, data, walk->bus);
        at = walk->bus - range->bus;
        if (n > range->nbytes - at)
            n = piece->nbytes = range->nbytes - at;
        piece->mem = range->mem;
        piece->cpu = range->cpu ? range->cpu + at : NULL;
        if (!range->cpu && range->gpu)
            piece->gpu = range->gpu + at;
        piece->far = range->move ? range : NULL;
        piece->bus = walk->bus;
    }
    walk->bus += n;
    walk->piece -= n;
    walk->left -= n;
    if (!walk->piece)
        walk->bucket = false;
    return GPUNVME_SC_SUCCESS;
}

static uint16_t copy_piece(struct sim_thread *t, const struct sim_data *data,
                           const struct sim_piece *piece, uint8_t *memory)
{
    bool done = true;

    if (piece->far && !piece->far->move(piece->far->move_arg, piece->bus, memory, piece->nbytes,
                                        data->walk.to_host))
        return GPUNVME_SC_DATA_TRANSFER_ERROR;
    if (piece->cpu && data->walk.to_host)
        memcpy(piece->cpu, memory, piece->nbytes);
    else if (piece->cpu)
        memcpy(memory, piece->cpu, piece->nbytes);
    else if (piece->gpu && data->walk.to_host)
        done = sim_mover_copy(t, piece->gpu, piece->mem, memory, GPUNVME_MEM_HOST, piece->nbytes);
    else if (piece->gpu)
        done = sim_mover_copy(t, memory, GPUNVME_MEM_HOST, piece->gpu, piece->mem, piece->nbytes);
    return done ? GPUNVME_SC_SUCCESS : GPUNVME_SC_DATA_TRANSFER_ERROR;
}

/* Moves the next nbytes between `memory` and the host, in the direction of the transfer. */
uint16_t sim_data_copy(struct sim_thread *t, struct sim_data *data, void *memory, uint64_t nbytes)
{
    uint8_t *at = memory;

    while (nbytes) {
        struct sim_piece piece;
        uint16_t status = sim_data_next(t, data, nbytes, &piece);

        if (!status)
            status = copy_piece(t, data, &piece, at);
        if (status)
            return status;
        at += piece.nbytes;
        nbytes -= piece.nbytes;
    }
    return GPUNVME_SC_SUCCESS;
}

/* Compares the next nbytes that the host has with `memory`. */
uint16_t sim_data_compare(struct sim_thread *t, struct sim_data *data, const void *memory,
                          uint64_t nbytes)
{
    const uint8_t *at = memory;
    uint8_t bounce[4096];

    while (nbytes) {
        uint64_t most = nbytes < sizeof(bounce) ? nbytes : sizeof(bounce);
        struct sim_piece piece;
        uint16_t status = sim_data_next(t, data, most, &piece);

        if (!status)
            status = copy_piece(t, data, &piece, bounce);
        if (status)
            return status;
        if (memcmp(bounce, at, piece.nbytes) != 0)
            return GPUNVME_SC_COMPARE_FAILURE;
        at += piece.nbytes;
        nbytes -= piece.nbytes;
    }
    return GPUNVME_SC_SUCCESS;
}

/* Call when all is moved: does the SGL describe no more than that? */
uint16_t sim_data_end(struct sim_thread *t, struct sim_data *data)
{
    return advance(t, data, sim_walk_end);
}

uint16_t sim_data_give(struct sim_cmd *cmd, const void *memory, uint64_t nbytes)
{
    sim_data_begin(cmd, nbytes, true);
    return sim_data_copy(cmd->thread, &cmd->data, (void *)(uintptr_t)memory, nbytes);
}

uint16_t sim_data_take(struct sim_cmd *cmd, void *memory, uint64_t nbytes)
{
    sim_data_begin(cmd, nbytes, false);
    return sim_data_copy(cmd->thread, &cmd->data, memory, nbytes);
}
