/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A slot: carries one piece of a transfer through the commands that it needs. Most need one.
 * Unaligned ends, memory that is not mapped and boundaries of the namespace make it more: then they
 * follow each other, and other slots' commands fill the time. Nothing here waits, but
 * nvme_slot_block(), for the end of a command that is late.
 */
#include <string.h>

#include "base/fail.h"
#include "gpunvme/prp.h"
#include "storage/nvme/store.h"

/* Where a few bytes are not whole blocks, one command and a copy are cheaper than three commands.
 */
#define COPY_NBYTES (32u << 10)

/*
 * How often a command is sent again that was ended by a reset, which is another command's fault.
 * One that brings the controller down each time must come to an end: after so many tries, and so
 * long that a few quick resets in a row, by others, are got over.
 */
#define TRIES    4u
#define TRIES_NS UINT64_C(2000000000)

static uint8_t *bounce_cpu(const struct nvme_slot *slot)
{
    return (uint8_t *)slot->bounces->buf.cpu + (size_t)slot->bounce * slot->bounces->part;
}

/* Gives back what the command at hand has. */
static void let_go(struct nvme_slot *slot)
{
    nvme_claim_drop(&slot->s->share->claimed, &slot->claim);
    if (slot->bounce >= 0)
        nvme_bounces_give(slot->bounces, slot->bounce);
    slot->bounce = -1;
}

static bool end(struct nvme_slot *slot, gpunvme_err_t err)
{
    let_go(slot);
    slot->err = err;
    slot->state = SLOT_ENDED;
    return true;
}

void nvme_slot_init(struct nvme_slot *slot, struct gpunvme_ioq *ioq, struct nvme_bounces *bounces)
{
    memset(slot, 0, sizeof(*slot));
    slot->ioq = ioq;
    slot->bounces = bounces;
    slot->bounce = -1;
}

void nvme_slot_begin(struct nvme_slot *slot, const struct crew_piece *piece)
{
    struct nvme_store *s = piece->store->priv;
    uint64_t size = s->ns->nbytes;

    slot->s = s;
    slot->piece = *piece;
    slot->mem = store_region_map(piece->store, piece->region);
    slot->mem_off = slot->mem ? (size_t)(piece->ptr - piece->region->ptr) : 0;
    slot->want = piece->offset >= size                  ? 0
                 : piece->nbytes > size - piece->offset ? (size_t)(size - piece->offset)
                                                        : piece->nbytes;
    slot->done = 0;
    slot->err = GPUNVME_OK;
    slot->bounce = -1;
    slot->is_copying = slot->has_blocked = false;
    slot->state = SLOT_CUT;
}

/* --- what the next command is ----------------------------------------------------------------- */

/* Bytes from the begin of the block at `pos` on that one command may move. */
static uint64_t longest(const struct nvme_slot *slot, uint64_t pos)
{
    const struct gpunvme_ns *ns = slot->s->ns;
    uint64_t block = pos & ~(uint64_t)(ns->block_size - 1), max = slot->s->chunk;
    uint64_t boundary = (uint64_t)ns->boundary_blocks << ns->block_shift;

    if (boundary && boundary - block % boundary < max)
        max = boundary - block % boundary;
    return max;
}

static bool is_mapped_at(const struct nvme_slot *slot, size_t done)
{
    return slot->mem &&
           gpunvme_prp_is_possible(slot->mem, slot->mem_off + done, slot->s->page_shift);
}

static void cut_read(struct nvme_slot *slot, size_t left, size_t max)
{
    size_t block = slot->s->ns->block_size, mask = block - 1;
    bool whole = !slot->skip && !(left & mask);

    slot->is_direct = is_mapped_at(slot, slot->done) && !slot->skip && left > mask &&
                      (whole || left > COPY_NBYTES);
    if (slot->is_direct)
        left &= ~mask;
    slot->nbytes = left < max - slot->skip ? left : max - slot->skip;
    if (slot->skip && left > COPY_NBYTES && is_mapped_at(slot, slot->done + block - slot->skip))
        slot->nbytes = block - slot->skip; /* the rest goes straight */
}

static void cut_write(struct nvme_slot *slot, size_t left, size_t max)
{
    size_t block = slot->s->ns->block_size, mask = block - 1;

    slot->is_part = slot->skip || left < block;
    slot->is_direct = !slot->is_part && is_mapped_at(slot, slot->done);
    if (slot->is_part)
        slot->nbytes = left < block - slot->skip ? left : block - slot->skip;
    else
        slot->nbytes = (left & ~mask) < max ? left & ~mask : max;
}

static bool cut(struct nvme_slot *slot)
{
    const struct gpunvme_ns *ns = slot->s->ns;
    uint64_t pos = slot->piece.offset + slot->done;
    size_t left = slot->want - slot->done, max = (size_t)longest(slot, pos);

    slot->is_part = slot->is_read = false;
    slot->ntries = 0;
    if (slot->piece.op == GPUNVME_OP_FLUSH) {
        slot->is_direct = true;
        slot->state = SLOT_SUBMIT;
        return true;
    }
    if (!left)
        return end(slot, GPUNVME_OK);
    slot->skip = (size_t)(pos & (ns->block_size - 1));
    slot->slba = pos >> ns->block_shift;
    if (slot->piece.op == GPUNVME_OP_READ)
        cut_read(slot, left, max);
    else
        cut_write(slot, left, max);
    slot->nlb = (uint32_t)((slot->skip + slot->nbytes + ns->block_size - 1) >> ns->block_shift);
    if (!slot->is_direct) {
        gpunvme_err_t err = store_allows(slot->piece.store, slot->piece.mem, GPUNVME_ROUTE_BOUNCE);

        if (err)
            return end(slot, err);
    }
    slot->state = slot->piece.op == GPUNVME_OP_WRITE ? SLOT_CLAIM : SLOT_BOUNCE;
    return true;
}

/* --- its steps -------------------------------------------------------------------------------- */

static bool claim(struct nvme_slot *slot)
{
    if (!nvme_claim_take(&slot->s->share->claimed, &slot->claim, slot->slba, slot->nlb,
                         slot->is_part))
        return false;
    slot->state = SLOT_BOUNCE;
    return true;
}

static bool take_bounce(struct nvme_slot *slot)
{
    if (slot->is_direct) {
        slot->state = SLOT_SUBMIT;
        return true;
    }
    slot->bounce = nvme_bounces_take(slot->bounces);
    if (slot->bounce < 0 && nvme_bounces_all_lost(slot->bounces))
        return end(slot, base_fail(GPUNVME_ERR_GPU, "copies that the GPU was given earlier do not "
                                                    "end: they hold all bounce buffers"));
    if (slot->bounce < 0)
        return false;
    slot->state = slot->piece.op == GPUNVME_OP_WRITE && !slot->is_part ? SLOT_COPY_IN : SLOT_SUBMIT;
    return true;
}

static gpunvme_err_t start_copy(struct nvme_slot *slot, bool in)
{
    uint8_t *bounce = bounce_cpu(slot) + slot->skip, *ptr = slot->piece.ptr + slot->done;
    gpunvme_err_t err = nvme_bounces_stream(slot->bounces, slot->bounce, ptr, &slot->stream);

    if (err)
        return err;
    return in ? gpunvme_mem_copy_async(bounce, slot->bounces->buf.mem, ptr, GPUNVME_MEM_GPU,
                                       slot->nbytes, slot->stream)
              : gpunvme_mem_copy_async(ptr, GPUNVME_MEM_GPU, bounce, slot->bounces->buf.mem,
                                       slot->nbytes, slot->stream);
}

/* The GPU may still do it, now or in an hour: its bounce buffer is left to it. */
static gpunvme_err_t give_up_copy(struct nvme_slot *slot)
{
    nvme_bounces_lose(slot->bounces, slot->bounce);
    slot->bounce = -1;
    slot->is_copying = false;
    return base_fail(GPUNVME_ERR_TIMEOUT,
                     "a copy of %zu bytes by the GPU is not done after %llu ms: it is busy, or "
                     "hangs; the memory is in use until the store is closed",
                     slot->nbytes, (unsigned long long)(slot->s->copy_timeout_ns / 1000000u));
}

/* Copies between the bounce buffer and the caller's memory; AGAIN: it goes on. */
static gpunvme_err_t copy(struct nvme_slot *slot, bool in, uint64_t now)
{
    bool done = false;
    gpunvme_err_t err;

    if (slot->piece.mem != GPUNVME_MEM_GPU) {
        uint8_t *bounce = bounce_cpu(slot) + slot->skip, *ptr = slot->piece.ptr + slot->done;

        memcpy(in ? bounce : ptr, in ? ptr : bounce, slot->nbytes);
        return GPUNVME_OK;
    }
    if (!slot->is_copying) {
        err = start_copy(slot, in);
        if (err)
            return err;
        slot->is_copying = true;
        slot->copied_ns = now;
    }
    err = gpunvme_mem_stream_query(slot->stream, &done);
    if (!err && !done)
        return now - slot->copied_ns < slot->s->copy_timeout_ns ? GPUNVME_ERR_AGAIN
                                                                : give_up_copy(slot);
    slot->is_copying = false;
    return err;
}

static bool copy_in(struct nvme_slot *slot, uint64_t now)
{
    gpunvme_err_t err = copy(slot, true, now);

    if (err == GPUNVME_ERR_AGAIN)
        return false;
    if (err)
        return end(slot, err);
    slot->state = SLOT_SUBMIT;
    return true;
}

static gpunvme_err_t submit_command(struct nvme_slot *slot)
{
    const struct gpunvme_ns *ns = slot->s->ns;
    const struct gpunvme_buf *buf = slot->is_direct ? slot->mem : &slot->bounces->buf;
    size_t off =
        slot->is_direct ? slot->mem_off + slot->done : (size_t)slot->bounce * slot->bounces->part;
    enum gpunvme_op op = slot->is_part && !slot->is_read ? GPUNVME_OP_READ : slot->piece.op;

    if (slot->s->share->driver)
        return slot->s->share->driver->submit(slot, op, buf ? (uint8_t *)buf->cpu + off : NULL);
    if (op == GPUNVME_OP_FLUSH)
        return gpunvme_submit_flush(slot->ioq, ns, &slot->token);
    if (op == GPUNVME_OP_READ)
        return gpunvme_submit_read(slot->ioq, ns, slot->slba, slot->nlb, buf, off, &slot->token);
    return gpunvme_submit_write(slot->ioq, ns, slot->slba, slot->nlb, buf, off, 0, &slot->token);
}

static bool may_try_again(struct nvme_slot *slot)
{
    uint64_t now = futex_now();

    if (!slot->ntries++)
        slot->tried_ns = now;
    return slot->ntries < TRIES || now - slot->tried_ns < TRIES_NS;
}

/* A reset ended the command, or keeps it from being submitted: whose fault it was is told it. */
static bool try_again(struct nvme_slot *slot, gpunvme_err_t err)
{
    if (!may_try_again(slot))
        return end(slot, err);
    slot->state = SLOT_CHECK;
    return true;
}

static bool checked(struct nvme_slot *slot, gpunvme_err_t dead)
{
    if (dead)
        return end(slot, dead);
    slot->state = SLOT_SUBMIT;
    return true;
}

static bool submit(struct nvme_slot *slot, uint64_t *now)
{
    gpunvme_err_t err = submit_command(slot);

    if (err == GPUNVME_ERR_AGAIN)
        return false;
    if (err == GPUNVME_ERR_CLOSED)
        return try_again(slot, err);
    if (err)
        return end(slot, err);
    slot->submitted_ns = *now;
    slot->state = SLOT_FLY;
    return true;
}

static bool finish_command(struct nvme_slot *slot)
{
    enum gpunvme_route route = GPUNVME_ROUTE_HOST;

    if (slot->piece.mem == GPUNVME_MEM_GPU)
        route = slot->is_direct ? GPUNVME_ROUTE_P2P : GPUNVME_ROUTE_BOUNCE;
    store_moved(slot->piece.io, route, slot->nbytes);
    slot->done += slot->nbytes;
    let_go(slot);
    if (slot->done == slot->want)
        return end(slot, GPUNVME_OK);
    slot->state = SLOT_CUT;
    return true;
}

static bool completed(struct nvme_slot *slot)
{
    if (slot->piece.op == GPUNVME_OP_FLUSH)
        return end(slot, GPUNVME_OK);
    if (slot->is_part && !slot->is_read) {
        slot->is_read = true;
        slot->state = SLOT_COPY_IN;
        return true;
    }
    if (slot->piece.op == GPUNVME_OP_READ && !slot->is_direct) {
        slot->state = SLOT_COPY_OUT;
        return true;
    }
    return finish_command(slot);
}

/* The command failed: says which blocks it was about. */
static bool end_command(struct nvme_slot *slot, gpunvme_err_t err)
{
    bool is_read = slot->piece.op == GPUNVME_OP_READ || (slot->is_part && !slot->is_read);

    if (slot->piece.op != GPUNVME_OP_FLUSH)
        base_fail_blocks(err, is_read ? "read" : "write", slot->slba, slot->nlb, slot->s->ns->nsid);
    return end(slot, err);
}

static bool landed(struct nvme_slot *slot, gpunvme_err_t err)
{
    if (err == GPUNVME_ERR_ABORTED)
        return try_again(slot, err);
    return err ? end_command(slot, err) : completed(slot);
}

static bool fly(struct nvme_slot *slot, uint64_t now)
{
    const struct nvme_driver *driver = slot->s->share->driver;
    gpunvme_err_t err = driver ? driver->test(slot) : gpunvme_token_test(&slot->token);

    if (err != GPUNVME_ERR_AGAIN)
        return landed(slot, err);
    if (now - slot->submitted_ns < slot->s->command_timeout_ns)
        return false;
    slot->state = SLOT_LATE;
    return true;
}

void nvme_slot_block(struct nvme_slot *slot)
{
    gpunvme_err_t err;

    if (slot->s->share->driver)
        err = slot->s->share->driver->block(slot);
    else if (slot->state == SLOT_LATE)
        err = gpunvme_token_wait(&slot->token, 1); /* abort, or reset: it has ended */
    else
        err = gpunvme_ctrl_check(slot->s->share->ctrl); /* waits for a reset under way */
    base_keep(&slot->blocked, err);
    slot->has_blocked = true;
}

static bool blocked(struct nvme_slot *slot, uint64_t *now)
{
    gpunvme_err_t err;

    if (!slot->has_blocked)
        return false;
    slot->has_blocked = false;
    *now = nvme_rough_now(); /* lest what begins next is late at once */
    err = slot->blocked.err ? base_restore(&slot->blocked) : GPUNVME_OK;
    return slot->state == SLOT_LATE ? landed(slot, err) : checked(slot, err);
}

static bool copy_out(struct nvme_slot *slot, uint64_t now)
{
    gpunvme_err_t err = copy(slot, false, now);

    if (err == GPUNVME_ERR_AGAIN)
        return false;
    return err ? end(slot, err) : finish_command(slot);
}

static bool step(struct nvme_slot *slot, uint64_t *now)
{
    switch (slot->state) {
    case SLOT_CUT:
        return cut(slot);
    case SLOT_CLAIM:
        return claim(slot);
    case SLOT_BOUNCE:
        return take_bounce(slot);
    case SLOT_COPY_IN:
        return copy_in(slot, *now);
    case SLOT_SUBMIT:
        return submit(slot, now);
    case SLOT_FLY:
        return fly(slot, *now);
    case SLOT_LATE:
    case SLOT_CHECK:
        return blocked(slot, now);
    case SLOT_COPY_OUT:
        return copy_out(slot, *now);
    default:
        return false;
    }
}

bool nvme_slot_turn(struct nvme_slot *slot, uint64_t *now)
{
    bool moved = false;

    while (step(slot, now))
        moved = true;
    return moved;
}
