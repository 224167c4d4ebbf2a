/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The device's side of data pointers: walks PRP entries, PRP lists and SGLs piece by piece, and
 * moves bytes to and from what they describe. Nothing is read ahead, so a list may be as long as
 * the transfer.
 *
 * Source: NVM Express Base 1.4, sections 4.3 (PRP) and 4.4 (SGL).
 */
#include <string.h>

#include "gpunvme/memory.h"
#include "sim/sim_internal.h"

#define EMPTY_MOST 1024u /* SGL descriptors in a row that may describe nothing */

/* What comes next in a PRP transfer. */
enum { PRP_FIRST, PRP_SECOND, PRP_LIST };

/* In an SGL: the next descriptor is the one in the command, or in a segment. */
enum { SGL_COMMAND, SGL_SEGMENT, SGL_DONE };

void sim_data_begin(struct sim_cmd *cmd, uint64_t nbytes, bool to_host)
{
    struct sim_data *data = &cmd->data;
    const struct gpunvme_sqe *sqe = &cmd->sqe;

    *data = (struct sim_data){
        .left = nbytes,
        .page = cmd->thread->sim->page,
        .sgl = (sqe->flags & GPUNVME_PSDT_MASK) != GPUNVME_PSDT_PRP,
        .to_host = to_host,
        .qid = cmd->sq->qid,
        .cid = sqe->cid,
        .descriptor = sqe->sgl1,
    };
    if (!data->sgl) {
        data->prp1 = sqe->prp1;
        data->prp2 = sqe->prp2;
        if (nbytes <= data->page - (sqe->prp1 & (data->page - 1)) && sqe->prp2)
            sim_violate(cmd->thread->sim, GPUNVME_SIM_VIOLATION_RESERVED_BITS,
                        "queue %u, command id %u: PRP2 is %llxh for data in one page", data->qid,
                        data->cid, (unsigned long long)sqe->prp2);
    }
}

static uint16_t prp_offset(struct sim_thread *t, const struct sim_data *data, const char *what,
                           uint64_t value)
{
    sim_violate(t->sim, GPUNVME_SIM_VIOLATION_PRP_OFFSET, "queue %u, command id %u: %s is %llxh",
                data->qid, data->cid, what, (unsigned long long)value);
    return GPUNVME_SC_PRP_OFFSET_INVALID;
}

static uint16_t unmapped(struct sim_thread *t, const struct sim_data *data, uint64_t bus)
{
    sim_violate(t->sim, GPUNVME_SIM_VIOLATION_DMA_UNMAPPED,
                "queue %u, command id %u: bus address %llxh is not mapped", data->qid, data->cid,
                (unsigned long long)bus);
    return GPUNVME_SC_DATA_TRANSFER_ERROR;
}

/* The next entry of the list; its last one leads to the next list when more is needed. */
static uint16_t prp_list_entry(struct sim_thread *t, struct sim_data *data, uint64_t *entry)
{
    uint64_t rest = data->page - (data->next & (data->page - 1));

    if (rest == 8 && data->left > data->page) {
        if (!sim_dma_read(t, data->next, &data->next, 8))
            return unmapped(t, data, data->next);
        if (data->next & (data->page - 1))
            return prp_offset(t, data, "the pointer to the next PRP list", data->next);
    }
    if (!sim_dma_read(t, data->next, entry, 8))
        return unmapped(t, data, data->next);
    data->next += 8;
    return GPUNVME_SC_SUCCESS;
}

static uint16_t prp_second(struct sim_thread *t, struct sim_data *data, uint64_t *entry)
{
    if (data->left <= data->page) {
        *entry = data->prp2;
        return GPUNVME_SC_SUCCESS;
    }
    if (data->prp2 & 7)
        return prp_offset(t, data, "PRP2, a list pointer,", data->prp2);
    data->next = data->prp2;
    data->state = PRP_LIST;
    return prp_list_entry(t, data, entry);
}

static uint16_t prp_next(struct sim_thread *t, struct sim_data *data)
{
    uint64_t entry = data->prp1, offset;
    uint16_t status = GPUNVME_SC_SUCCESS;

    if (data->state == PRP_FIRST) {
        if (entry & 3)
            return prp_offset(t, data, "PRP1", entry);
        data->state = PRP_SECOND;
        offset = entry & (data->page - 1);
    } else {
        if (data->state == PRP_SECOND)
            status = prp_second(t, data, &entry);
        else
            status = prp_list_entry(t, data, &entry);
        if (status)
            return status;
        offset = 0;
        if (entry & (data->page - 1))
            return prp_offset(t, data, "a PRP entry behind the first", entry);
    }
    data->bus = entry;
    data->piece = data->page - offset;
    if (data->piece > data->left)
        data->piece = data->left;
    return GPUNVME_SC_SUCCESS;
}

static uint16_t sgl_bad(struct sim_thread *t, const struct sim_data *data, const char *what,
                        uint16_t status)
{
    sim_violate(t->sim, GPUNVME_SIM_VIOLATION_SGL_INVALID, "queue %u, command id %u: %s", data->qid,
                data->cid, what);
    return status;
}

static uint16_t sgl_enter_segment(struct sim_thread *t, struct sim_data *data,
                                  const struct gpunvme_sgl_desc *desc, bool last)
{
    if (data->state == SGL_SEGMENT && data->segment)
        return sgl_bad(t, data, "a segment descriptor that is not the last of its segment",
                       GPUNVME_SC_SGL_INVALID_LAST_SEGMENT);
    if (data->last)
        return sgl_bad(t, data, "a segment descriptor in the last segment",
                       GPUNVME_SC_SGL_INVALID_LAST_SEGMENT);
    if (!desc->length || desc->length % sizeof(*desc))
        return sgl_bad(t, data, "a segment whose length is not a number of descriptors",
                       GPUNVME_SC_SGL_INVALID_LAST_SEGMENT);
    data->state = SGL_SEGMENT;
    data->next = desc->addr;
    data->segment = desc->length;
    data->last = last;
    return GPUNVME_SC_SUCCESS;
}

static uint16_t sgl_take(struct sim_thread *t, struct sim_data *data, bool bucket,
                         const struct gpunvme_sgl_desc *desc)
{
    uint64_t length = desc->length;

    if (data->state == SGL_COMMAND)
        data->state = SGL_DONE;
    else if (!data->segment && !data->last)
        return sgl_bad(t, data, "a segment that leads to no further one",
                       GPUNVME_SC_SGL_INVALID_LAST_SEGMENT);
    if (bucket && !data->to_host)
        return GPUNVME_SC_SUCCESS; /* nothing is thrown away of what goes to the device */
    if (length > data->left)
        return sgl_bad(t, data, "an SGL that is longer than the data",
                       GPUNVME_SC_SGL_INVALID_DATA_LENGTH);
    data->bus = desc->addr;
    data->piece = length;
    data->bucket = bucket;
    return GPUNVME_SC_SUCCESS;
}

static uint16_t sgl_descriptor(struct sim_thread *t, struct sim_data *data)
{
    struct gpunvme_sgl_desc desc = data->descriptor;

    if (data->state == SGL_DONE || (data->state == SGL_SEGMENT && !data->segment))
        return sgl_bad(t, data, "an SGL that is shorter than the data",
                       GPUNVME_SC_SGL_INVALID_DATA_LENGTH);
    if (data->state == SGL_SEGMENT) {
        if (!sim_dma_read(t, data->next, &desc, sizeof(desc)))
            return unmapped(t, data, data->next);
        data->next += sizeof(desc);
        data->segment -= sizeof(desc);
    }
    if (desc.rsvd12[0] | desc.rsvd12[1] | desc.rsvd12[2])
        sgl_bad(t, data, "an SGL descriptor with reserved bytes that are not 0", 0);
    switch (desc.id) {
    case GPUNVME_SGL_ID(GPUNVME_SGL_DATA_BLOCK, GPUNVME_SGL_SUBTYPE_ADDRESS):
        return sgl_take(t, data, false, &desc);
    case GPUNVME_SGL_ID(GPUNVME_SGL_BIT_BUCKET, GPUNVME_SGL_SUBTYPE_ADDRESS):
        return sgl_take(t, data, true, &desc);
    case GPUNVME_SGL_ID(GPUNVME_SGL_SEGMENT, GPUNVME_SGL_SUBTYPE_ADDRESS):
        return sgl_enter_segment(t, data, &desc, false);
    case GPUNVME_SGL_ID(GPUNVME_SGL_LAST_SEGMENT, GPUNVME_SGL_SUBTYPE_ADDRESS):
        return sgl_enter_segment(t, data, &desc, true);
    default:
        return sgl_bad(t, data, "an SGL descriptor of a type that is not supported",
                       GPUNVME_SC_SGL_INVALID_TYPE);
    }
}

static uint16_t sgl_next(struct sim_thread *t, struct sim_data *data)
{
    for (unsigned empty = 0; empty < EMPTY_MOST; empty++) {
        uint16_t status = sgl_descriptor(t, data);

        if (status || data->piece)
            return status;
    }
    return sgl_bad(t, data, "too many descriptors that describe nothing",
                   GPUNVME_SC_SGL_INVALID_COUNT);
}

/* The next piece of at most `most` bytes; there must be bytes left. */
uint16_t sim_data_next(struct sim_thread *t, struct sim_data *data, uint64_t most,
                       struct sim_piece *piece)
{
    const struct sim_range *range;
    uint64_t n, at;

    if (!data->piece) {
        uint16_t status = data->sgl ? sgl_next(t, data) : prp_next(t, data);

        if (status)
            return status;
    }
    n = data->piece < most ? data->piece : most;
    *piece = (struct sim_piece){.nbytes = n};
    if (!data->bucket) {
        range = sim_dma_find(t->sim, &t->last_data, data->bus);
        if (!range)
            return unmapped(t, data, data->bus);
        at = data->bus - range->bus;
        if (n > range->nbytes - at)
            n = piece->nbytes = range->nbytes - at;
        piece->mem = range->mem;
        piece->cpu = range->cpu ? range->cpu + at : NULL;
        if (!range->cpu && range->gpu)
            piece->gpu = range->gpu + at;
        piece->far = range->move ? range : NULL;
        piece->bus = data->bus;
    }
    data->bus += n;
    data->piece -= n;
    data->left -= n;
    if (!data->piece)
        data->bucket = false;
    return GPUNVME_SC_SUCCESS;
}

static uint16_t copy_piece(const struct sim_data *data, const struct sim_piece *piece,
                           uint8_t *memory)
{
    gpunvme_err_t err = GPUNVME_OK;

    if (piece->far &&
        !piece->far->move(piece->far->move_arg, piece->bus, memory, piece->nbytes, data->to_host))
        return GPUNVME_SC_DATA_TRANSFER_ERROR;
    if (piece->cpu && data->to_host)
        memcpy(piece->cpu, memory, piece->nbytes);
    else if (piece->cpu)
        memcpy(memory, piece->cpu, piece->nbytes);
    else if (piece->gpu && data->to_host)
        err = gpunvme_mem_copy(piece->gpu, piece->mem, memory, GPUNVME_MEM_HOST, piece->nbytes);
    else if (piece->gpu)
        err = gpunvme_mem_copy(memory, GPUNVME_MEM_HOST, piece->gpu, piece->mem, piece->nbytes);
    return err ? GPUNVME_SC_DATA_TRANSFER_ERROR : GPUNVME_SC_SUCCESS;
}

/* Moves the next nbytes between `memory` and the host, in the direction of the transfer. */
uint16_t sim_data_copy(struct sim_thread *t, struct sim_data *data, void *memory, uint64_t nbytes)
{
    uint8_t *at = memory;

    while (nbytes) {
        struct sim_piece piece;
        uint16_t status = sim_data_next(t, data, nbytes, &piece);

        if (!status)
            status = copy_piece(data, &piece, at);
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
            status = copy_piece(data, &piece, bounce);
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
    if (!data->sgl || data->state == SGL_DONE)
        return GPUNVME_SC_SUCCESS;
    for (unsigned empty = 0; data->state == SGL_SEGMENT && data->segment && empty < EMPTY_MOST;
         empty++) {
        uint16_t status = sgl_descriptor(t, data);

        if (status)
            return status;
    }
    return GPUNVME_SC_SUCCESS;
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
