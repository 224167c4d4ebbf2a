/* SPDX-License-Identifier: BSD-3-Clause
 *
 * One I/O command: built, submitted, and its token ended.
 *
 * Source: NVM Command Set 1.0c, sections 3.2.1 (Compare) to 3.2.8 (Write Zeroes).
 */
#include <inttypes.h>
#include <string.h>

#include "base/fail.h"
#include "nvme/io_internal.h"

#define MS UINT64_C(1000000)

/* Whether blocks slba … slba + nlb - 1 may be one command's. */
static gpunvme_err_t check_blocks(const struct gpunvme_ns *ns, uint64_t slba, uint64_t nlb)
{
    if (!ns->max_blocks)
        return nvme_ns_check(ns);
    if (!nlb || nlb > ns->max_blocks)
        return base_fail(GPUNVME_ERR_INVALID, "%" PRIu64 " blocks: a command moves 1 to %u", nlb,
                         ns->max_blocks);
    if (slba >= ns->nblocks || nlb > ns->nblocks - slba)
        return base_fail(GPUNVME_ERR_RANGE,
                         "blocks %" PRIu64 " to %" PRIu64 ": namespace %u has %" PRIu64, slba,
                         slba + nlb - 1, ns->nsid, ns->nblocks);
    if (ns->boundary_blocks && slba / ns->boundary_blocks != (slba + nlb - 1) / ns->boundary_blocks)
        return base_fail(GPUNVME_ERR_INVALID, "the command crosses the boundary of %u blocks",
                         ns->boundary_blocks);
    return GPUNVME_OK;
}

gpunvme_err_t nvme_check_buffer(const struct gpunvme_buf *buf, size_t off, size_t nbytes)
{
    if (!buf || !buf->nbytes)
        return base_fail(GPUNVME_ERR_INVALID, "no buffer");
    if (!buf->bus)
        return base_fail(GPUNVME_ERR_INVALID,
                         "the buffer has no bus address: gpunvme_ctrl_map() gives it one");
    if (off > buf->nbytes || nbytes > buf->nbytes - off)
        return base_fail(GPUNVME_ERR_INVALID, "%zu bytes at %zu: the buffer has %zu", nbytes, off,
                         buf->nbytes);
    return GPUNVME_OK;
}

/* One command needs more: the controller must be able to address the data where it begins. */
static gpunvme_err_t check_command_buffer(struct gpunvme_ctrl *ctrl, const struct gpunvme_buf *buf,
                                          size_t off, size_t nbytes)
{
    gpunvme_err_t err = nvme_check_buffer(buf, off, nbytes);

    if (!err && !gpunvme_prp_is_possible(buf, off, ctrl->page_shift))
        err = base_fail(GPUNVME_ERR_ALIGN, "the data must begin at a multiple of 4 bytes");
    return err;
}

/* An SGL saves a list where PRPs need one and the memory is one run. */
static bool wants_sgl(const struct gpunvme_ctrl *ctrl, const struct gpunvme_buf *buf, size_t off,
                      size_t nbytes, size_t pages)
{
    if (ctrl->opts.data_format != GPUNVME_DATA_AUTO)
        return ctrl->opts.data_format == GPUNVME_DATA_SGL;
    return pages > 2 && ctrl->id.sgls & GPUNVME_SGLS_SUPPORT_MASK &&
           gpunvme_sgl_run(buf, off, nbytes) == nbytes;
}

static gpunvme_err_t describe_data(struct gpunvme_ctrl *ctrl, struct gpunvme_sqe *sqe,
                                   const struct gpunvme_buf *buf, size_t off, size_t nbytes,
                                   struct nvme_pool_item **item)
{
    size_t pages = gpunvme_prp_pages(gpunvme_buf_bus(buf, off), nbytes, ctrl->page_shift);
    bool sgl = wants_sgl(ctrl, buf, off, nbytes, pages);
    struct gpunvme_list *list = NULL;
    int err;

    if (sgl ? gpunvme_sgl_run(buf, off, nbytes) < nbytes : pages > 2) {
        *item = nvme_pool_get(&ctrl->lists);
        if (!*item)
            return base_fail(GPUNVME_ERR_NOMEM, "a PRP list");
        list = &(*item)->list;
    }
    err = sgl ? gpunvme_sgl_build(sqe, buf, off, nbytes, list)
              : gpunvme_prp_build(sqe, buf, off, nbytes, ctrl->page_shift, list);
    if (err)
        return base_fail(err, "the buffer is in too many pieces for one command");
    return GPUNVME_OK;
}

gpunvme_err_t nvme_submit(struct gpunvme_ioq *ioq, const struct gpunvme_sqe *sqe,
                          struct nvme_pool_item *item, struct gpunvme_token *token)
{
    int taken = gpunvme_qpair_submit(&ioq->qpair, sqe, 1, &token->ticket);

    if (taken < 0 && nvme_is_open_again(ioq->ctrl))
        taken = gpunvme_qpair_submit(&ioq->qpair, sqe, 1, &token->ticket);
    if (taken == 1) {
        token->ioq = ioq;
        token->list = item;
        return GPUNVME_OK;
    }
    if (taken == 0)
        return GPUNVME_ERR_AGAIN;
    return nvme_closed_err(ioq->ctrl);
}

gpunvme_err_t nvme_wait_for_room(struct gpunvme_ioq *ioq, uint64_t *deadline_ns)
{
    struct gpunvme_transport *t = ioq->ctrl->transport;
    uint64_t now = t->ops->now_ns(t);

    if (!*deadline_ns)
        *deadline_ns = now + ioq->ctrl->opts.io_timeout_ms * MS;
    if (now >= *deadline_ns)
        return base_fail(GPUNVME_ERR_TIMEOUT, "queue %u stays full", ioq->qpair.qid);
    gpunvme_qpair_reap(&ioq->qpair);
    t->ops->pause_ns(t, 1000);
    return GPUNVME_OK;
}

gpunvme_err_t nvme_submit_rw(struct gpunvme_ioq *ioq, const struct gpunvme_ns *ns, uint8_t opcode,
                             uint64_t slba, uint32_t nlb, const struct gpunvme_buf *buf,
                             size_t buf_off, uint32_t cdw12, struct gpunvme_token *token)
{
    size_t nbytes = ns ? (size_t)nlb << ns->block_shift : 0;
    struct nvme_pool_item *item = NULL;
    struct gpunvme_sqe sqe = {.opc = opcode};
    gpunvme_err_t err;

    if (!ioq || !ns || !token)
        return base_fail(GPUNVME_ERR_INVALID, "NULL argument");
    err = check_blocks(ns, slba, nlb);
    if (!err)
        err = check_command_buffer(ioq->ctrl, buf, buf_off, nbytes);
    if (err)
        return err;
    sqe.nsid = ns->nsid;
    sqe.cdw10 = (uint32_t)slba;
    sqe.cdw11 = (uint32_t)(slba >> 32);
    sqe.cdw12 = cdw12 | (nlb - 1); /* 0's based */
    err = describe_data(ioq->ctrl, &sqe, buf, buf_off, nbytes, &item);
    if (!err)
        err = nvme_submit(ioq, &sqe, item, token);
    if (err)
        nvme_pool_put(&ioq->ctrl->lists, item);
    return err;
}

gpunvme_err_t gpunvme_submit_read(struct gpunvme_ioq *ioq, const struct gpunvme_ns *ns,
                                  uint64_t slba, uint32_t nlb, const struct gpunvme_buf *buf,
                                  size_t buf_off, struct gpunvme_token *token)
{
    return nvme_submit_rw(ioq, ns, GPUNVME_CMD_READ, slba, nlb, buf, buf_off, 0, token);
}

gpunvme_err_t gpunvme_submit_write(struct gpunvme_ioq *ioq, const struct gpunvme_ns *ns,
                                   uint64_t slba, uint32_t nlb, const struct gpunvme_buf *buf,
                                   size_t buf_off, unsigned flags, struct gpunvme_token *token)
{
    if (ns && ns->readonly)
        return base_fail(GPUNVME_ERR_READONLY, "namespace %u is write protected", ns->nsid);
    return nvme_submit_rw(ioq, ns, GPUNVME_CMD_WRITE, slba, nlb, buf, buf_off,
                          flags & GPUNVME_IO_FUA ? GPUNVME_RW_FUA : 0, token);
}

gpunvme_err_t gpunvme_submit_flush(struct gpunvme_ioq *ioq, const struct gpunvme_ns *ns,
                                   struct gpunvme_token *token)
{
    struct gpunvme_sqe sqe = {.opc = GPUNVME_CMD_FLUSH};

    if (!ioq || !ns || !token)
        return base_fail(GPUNVME_ERR_INVALID, "NULL argument");
    sqe.nsid = ns->nsid;
    return nvme_submit(ioq, &sqe, NULL, token);
}

/* The command is over: its list may serve another one. */
static void end(struct gpunvme_token *token)
{
    nvme_pool_put(&token->ioq->ctrl->lists, token->list);
    token->list = NULL;
}

static gpunvme_err_t stale(const struct gpunvme_token *token)
{
    return base_fail(GPUNVME_ERR_STALE, "queue %u, command %04x", token->ioq->qpair.qid,
                     (unsigned)(token->ticket & 0xffff));
}

gpunvme_err_t gpunvme_token_test(struct gpunvme_token *token)
{
    struct gpunvme_completion c;
    gpunvme_err_t err;

    if (!token || !token->ioq)
        return base_fail(GPUNVME_ERR_INVALID, "a token that was not submitted");
    err = gpunvme_qpair_test(&token->ioq->qpair, token->ticket, &c);
    if (err == GPUNVME_ERR_AGAIN && gpunvme_qpair_reap(&token->ioq->qpair))
        err = gpunvme_qpair_test(&token->ioq->qpair, token->ticket, &c);
    if (err)
        return err == GPUNVME_ERR_STALE ? stale(token) : err;
    end(token);
    return nvme_completion_err(token->ioq->ctrl, &c);
}

gpunvme_err_t gpunvme_token_wait(struct gpunvme_token *token, uint64_t timeout_ns)
{
    struct gpunvme_completion c;
    gpunvme_err_t err;

    if (!token || !token->ioq)
        return base_fail(GPUNVME_ERR_INVALID, "a token that was not submitted");
    if (!timeout_ns)
        timeout_ns = token->ioq->ctrl->opts.io_timeout_ms * MS;
    err = nvme_wait(token->ioq, token->ticket, timeout_ns, &c);
    if (err == GPUNVME_ERR_STALE)
        return stale(token);
    end(token);
    return err;
}
