/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Whole transfers: any length and offset, split at the controller's limits, many commands in
 * flight.
 *
 * A transfer is a run of pieces. A piece is one command; it moves whole blocks, either directly
 * between the namespace and the caller's buffer, or through a bounce buffer: at ends that are not
 * whole blocks, and where the caller's memory is not on a multiple of 4 bytes.
 */
#include <inttypes.h>
#include <string.h>

#include "base/fail.h"
#include "nvme/io_internal.h"

#define WINDOW       32u                 /* commands of one transfer in flight */
#define PIECE_NBYTES (UINT64_C(1) << 20) /* at most: pieces of a transfer run beside each other */

struct transfer {
    struct gpunvme_ioq *ioq;
    const struct gpunvme_ns *ns;
    const struct gpunvme_buf *buf;
    uint8_t opcode;
    uint32_t cdw12;
    uint64_t pos, end; /* bytes of the namespace not yet submitted */
    uint64_t to_buf;   /* buffer offset = namespace offset + to_buf, modulo 2^64 */
};

struct piece {
    struct gpunvme_token token;
    struct nvme_pool_item *bounce; /* NULL: direct */
    uint64_t pos;                  /* first byte of the namespace that the caller wants */
    size_t nbytes;                 /* and how many */
    size_t skip;                   /* bytes of the first block before it */
};

static gpunvme_err_t copy_to_buf(const struct transfer *t, uint64_t off, const void *src, size_t n)
{
    struct gpunvme_transport *transport = t->ioq->ctrl->transport;

    if (transport->ops->copy_to)
        return transport->ops->copy_to(transport, t->buf, off, src, n);
    memcpy((char *)t->buf->cpu + off, src, n);
    return GPUNVME_OK;
}

static gpunvme_err_t copy_from_buf(const struct transfer *t, void *dst, uint64_t off, size_t n)
{
    struct gpunvme_transport *transport = t->ioq->ctrl->transport;

    if (transport->ops->copy_from)
        return transport->ops->copy_from(transport, dst, t->buf, off, n);
    memcpy(dst, (const char *)t->buf->cpu + off, n);
    return GPUNVME_OK;
}

/* Bytes up to the next multiple of the boundary, the end of the longest command, or `limit`. */
static uint64_t longest_piece(const struct gpunvme_ns *ns, uint64_t pos, uint64_t limit)
{
    uint64_t block_start = pos & ~(uint64_t)(ns->block_size - 1);
    uint64_t max = (uint64_t)ns->max_blocks << ns->block_shift;
    uint64_t boundary = (uint64_t)ns->boundary_blocks << ns->block_shift;

    if (max > limit)
        max = limit;
    if (boundary && boundary - block_start % boundary < max)
        max = boundary - block_start % boundary;
    return max - (pos - block_start);
}

/* The next piece of a transfer. Returns whether it can go directly. */
static bool cut_piece(const struct transfer *t, struct piece *p)
{
    uint64_t mask = t->ns->block_size - 1;
    uint64_t left = t->end - t->pos;
    bool direct =
        !(t->pos & mask) && left > mask &&
        gpunvme_prp_is_possible(t->buf, (size_t)(t->pos + t->to_buf), t->ioq->ctrl->page_shift);
    uint64_t n = longest_piece(t->ns, t->pos, direct ? PIECE_NBYTES : NVME_BOUNCE_NBYTES);

    /* A bounced read ends wherever the caller's bytes end; a direct one at a block. */
    if (n > left)
        n = direct ? left & ~mask : left;
    p->bounce = NULL;
    p->pos = t->pos;
    p->nbytes = (size_t)n;
    p->skip = (size_t)(t->pos & mask);
    return direct;
}

static uint32_t blocks_of(const struct transfer *t, const struct piece *p)
{
    return (uint32_t)((p->skip + p->nbytes + t->ns->block_size - 1) >> t->ns->block_shift);
}

static gpunvme_err_t submit_piece(const struct transfer *t, struct piece *p)
{
    uint64_t slba = p->pos >> t->ns->block_shift;
    size_t buf_off = (size_t)(p->pos + t->to_buf);
    gpunvme_err_t err = GPUNVME_OK;

    if (p->bounce && t->opcode != GPUNVME_CMD_READ)
        err = copy_from_buf(t, p->bounce->buf.cpu, buf_off, p->nbytes);
    if (err)
        return err;
    return nvme_submit_rw(t->ioq, t->ns, t->opcode, slba, blocks_of(t, p),
                          p->bounce ? &p->bounce->buf : t->buf, p->bounce ? 0 : buf_off, t->cdw12,
                          &p->token);
}

static const char *name_of(uint8_t opcode)
{
    return opcode == GPUNVME_CMD_READ ? "read" : opcode == GPUNVME_CMD_WRITE ? "write" : "compare";
}

/* Waits for a piece and brings a bounced read home. */
static gpunvme_err_t finish_piece(const struct transfer *t, struct piece *p)
{
    gpunvme_err_t err = gpunvme_token_wait(&p->token, 0);

    if (err)
        base_fail_blocks(err, name_of(t->opcode), p->pos >> t->ns->block_shift, blocks_of(t, p),
                         t->ns->nsid);
    if (!err && p->bounce && t->opcode == GPUNVME_CMD_READ)
        err = copy_to_buf(t, p->pos + t->to_buf, (const char *)p->bounce->buf.cpu + p->skip,
                          p->nbytes);
    nvme_pool_put(&t->ioq->ctrl->bounces, p->bounce);
    return err;
}

/* Submits the next piece. GPUNVME_ERR_AGAIN: the queue is full. */
static gpunvme_err_t start_piece(struct transfer *t, struct piece *p)
{
    struct nvme_pool *bounces = &t->ioq->ctrl->bounces;
    gpunvme_err_t err;

    if (!cut_piece(t, p)) {
        p->bounce = nvme_pool_get(bounces);
        if (!p->bounce)
            return base_fail(GPUNVME_ERR_NOMEM, "a bounce buffer");
    }
    err = submit_piece(t, p);
    if (err) {
        nvme_pool_put(bounces, p->bounce);
        return err;
    }
    t->pos += p->nbytes;
    return GPUNVME_OK;
}

static void keep_first(struct base_failure *failure, gpunvme_err_t err)
{
    if (err && !failure->err)
        base_keep(failure, err);
}

/*
 * Runs a transfer: fills the window, waits for the oldest piece, and so on. After an error no
 * more is submitted, but everything in flight is waited for: the buffer is the caller's when this
 * returns. The first error is returned.
 */
static gpunvme_err_t run_transfer(struct transfer *t)
{
    struct piece window[WINDOW];
    unsigned first = 0, n = 0; /* in flight: first … first + n - 1, modulo WINDOW */
    uint64_t deadline_ns = 0;
    struct base_failure failure;

    failure.err = GPUNVME_OK; /* its detail is not read before it is written */
    while (n || (!failure.err && t->pos < t->end)) {
        bool full = false;

        if (!failure.err && t->pos < t->end && n < WINDOW) {
            gpunvme_err_t err = start_piece(t, &window[(first + n) % WINDOW]);

            if (!err) {
                n++;
                continue;
            }
            full = err == GPUNVME_ERR_AGAIN;
            if (!full)
                keep_first(&failure, err);
        }
        if (n) {
            keep_first(&failure, finish_piece(t, &window[first]));
            first = (first + 1) % WINDOW;
            n--;
            deadline_ns = 0;
        } else if (full) {
            keep_first(&failure, nvme_wait_for_room(t->ioq, &deadline_ns));
        }
    }
    return failure.err ? base_restore(&failure) : GPUNVME_OK;
}

/* --- the public ones ---------------------------------------------------------------------------
 */

static gpunvme_err_t check_range(const struct gpunvme_ioq *ioq, const struct gpunvme_ns *ns,
                                 uint64_t offset, uint64_t nbytes)
{
    if (!ioq || !ns)
        return base_fail(GPUNVME_ERR_INVALID, "NULL argument");
    if (!ns->max_blocks)
        return nvme_ns_check(ns);
    if (offset > ns->nbytes || nbytes > ns->nbytes - offset)
        return base_fail(GPUNVME_ERR_RANGE,
                         "%" PRIu64 " bytes at %" PRIu64 ": namespace %u has %" PRIu64, nbytes,
                         offset, ns->nsid, ns->nbytes);
    return GPUNVME_OK;
}

static gpunvme_err_t transfer(struct gpunvme_ioq *ioq, const struct gpunvme_ns *ns, uint8_t opcode,
                              uint64_t offset, uint64_t nbytes, const struct gpunvme_buf *buf,
                              size_t buf_off, uint32_t cdw12)
{
    struct transfer t = {.ioq = ioq,
                         .ns = ns,
                         .buf = buf,
                         .opcode = opcode,
                         .cdw12 = cdw12,
                         .pos = offset,
                         .end = offset + nbytes,
                         .to_buf = buf_off - offset};

    return run_transfer(&t);
}

gpunvme_err_t gpunvme_read(struct gpunvme_ioq *ioq, const struct gpunvme_ns *ns, uint64_t offset,
                           size_t nbytes, const struct gpunvme_buf *buf, size_t buf_off)
{
    gpunvme_err_t err = check_range(ioq, ns, offset, nbytes);

    if (err || !nbytes)
        return err;
    err = nvme_check_buffer(buf, buf_off, nbytes);
    if (err)
        return err;
    return transfer(ioq, ns, GPUNVME_CMD_READ, offset, nbytes, buf, buf_off, 0);
}

/* Writes part of one block: reads it, changes it, writes it. The caller holds rmw_lock. */
static gpunvme_err_t write_part(struct gpunvme_ioq *ioq, const struct gpunvme_ns *ns,
                                uint64_t offset, size_t nbytes, const struct gpunvme_buf *buf,
                                size_t buf_off, uint32_t cdw12)
{
    struct transfer t = {.ioq = ioq, .buf = buf};
    struct nvme_pool_item *item = nvme_pool_get(&ioq->ctrl->bounces);
    uint64_t block = offset & ~(uint64_t)(ns->block_size - 1);
    gpunvme_err_t err;

    if (!item)
        return base_fail(GPUNVME_ERR_NOMEM, "a bounce buffer");
    err = transfer(ioq, ns, GPUNVME_CMD_READ, block, ns->block_size, &item->buf, 0, 0);
    if (!err)
        err = copy_from_buf(&t, (char *)item->buf.cpu + (offset - block), buf_off, nbytes);
    if (!err)
        err = transfer(ioq, ns, GPUNVME_CMD_WRITE, block, ns->block_size, &item->buf, 0, cdw12);
    nvme_pool_put(&ioq->ctrl->bounces, item);
    return err;
}

gpunvme_err_t gpunvme_write(struct gpunvme_ioq *ioq, const struct gpunvme_ns *ns, uint64_t offset,
                            size_t nbytes, const struct gpunvme_buf *buf, size_t buf_off,
                            unsigned flags)
{
    uint32_t cdw12 = flags & GPUNVME_IO_FUA ? GPUNVME_RW_FUA : 0;
    gpunvme_err_t err = check_range(ioq, ns, offset, nbytes);
    uint64_t mask, end = offset + nbytes, head, tail;

    if (!err && ns->readonly)
        err = base_fail(GPUNVME_ERR_READONLY, "namespace %u is write protected", ns->nsid);
    if (err || !nbytes)
        return err;
    err = nvme_check_buffer(buf, buf_off, nbytes);
    if (err)
        return err;

    mask = ns->block_size - 1;
    head = (offset + mask) & ~mask; /* whole blocks: head … tail - 1, when head < tail */
    tail = end & ~mask;
    if (head < tail)
        err = transfer(ioq, ns, GPUNVME_CMD_WRITE, head, tail - head, buf,
                       buf_off + (size_t)(head - offset), cdw12);
    if (err || (head == offset && tail == end))
        return err;

    pthread_mutex_lock(&ioq->ctrl->rmw_lock);
    if (head > offset) {
        uint64_t stop = head < end ? head : end;

        err = write_part(ioq, ns, offset, (size_t)(stop - offset), buf, buf_off, cdw12);
    }
    if (!err && tail < end && tail >= head)
        err = write_part(ioq, ns, tail, (size_t)(end - tail), buf,
                         buf_off + (size_t)(tail - offset), cdw12);
    pthread_mutex_unlock(&ioq->ctrl->rmw_lock);
    return err;
}

gpunvme_err_t gpunvme_compare(struct gpunvme_ioq *ioq, const struct gpunvme_ns *ns, uint64_t slba,
                              uint64_t nlb, const struct gpunvme_buf *buf, size_t buf_off)
{
    gpunvme_err_t err;

    if (!ioq || !ns || nlb > SIZE_MAX >> ns->block_shift || slba > UINT64_MAX >> ns->block_shift)
        return base_fail(GPUNVME_ERR_INVALID, "NULL argument, or too many blocks");
    if (!(ioq->ctrl->id.oncs & GPUNVME_ONCS_COMPARE))
        return base_fail(GPUNVME_ERR_UNSUPPORTED, "the controller has no Compare (ONCS bit 0)");
    err = check_range(ioq, ns, slba << ns->block_shift, nlb << ns->block_shift);
    if (!err && nlb)
        err = nvme_check_buffer(buf, buf_off, (size_t)nlb << ns->block_shift);
    if (err || !nlb)
        return err;
    return transfer(ioq, ns, GPUNVME_CMD_COMPARE, slba << ns->block_shift, nlb << ns->block_shift,
                    buf, buf_off, 0);
}
