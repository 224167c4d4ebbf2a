/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Admin commands, one at a time for each thread: Identify Controller, features, logs, keep alive.
 *
 * Source: Base 1.4, chapter 5.
 */
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "nvme/ctrl.h"

#define MS UINT64_C(1000000)

/*
 * Gives the command a data buffer that the controller can reach. The PRP list is an item of its
 * own: a large buffer may be in pieces on the bus, and a list must not be. Bring-up, when there is
 * no pool yet, moves no more than the page that PRP1 points to.
 */
static gpunvme_err_t attach_data(struct gpunvme_ctrl *ctrl, struct gpunvme_sqe *sqe, size_t nbytes,
                                 struct nvme_admin_data *data)
{
    gpunvme_err_t err = nvme_alloc(ctrl, nbytes, &data->buf);

    if (err)
        return err;
    if (nbytes > (size_t)2 << ctrl->page_shift) {
        data->list = nvme_pool_get(&ctrl->lists);
        if (!data->list)
            return base_fail(GPUNVME_ERR_NOMEM, "a PRP list");
    }
    return gpunvme_prp_build(sqe, &data->buf, 0, nbytes, ctrl->page_shift,
                             data->list ? &data->list->list : NULL);
}

static void release_data(struct gpunvme_ctrl *ctrl, struct nvme_admin_data *data)
{
    nvme_free(ctrl, &data->buf);
    nvme_pool_put(&ctrl->lists, data->list);
    *data = (struct nvme_admin_data){0};
}

/* The command stays with the controller, and so does its data, until the reset that follows. */
static void lose(struct gpunvme_ctrl *ctrl, uint64_t ticket, struct nvme_admin_data *data)
{
    if (ctrl->nlost < NVME_MAX_LOST)
        ctrl->lost[ctrl->nlost++] = (struct nvme_lost){.ticket = ticket, .data = *data};
    *data = (struct nvme_admin_data){0};
}

/* A reset has ended what was lost. */
void nvme_admin_drop(struct gpunvme_ctrl *ctrl)
{
    struct gpunvme_completion c;

    while (ctrl->nlost) {
        struct nvme_lost *lost = &ctrl->lost[--ctrl->nlost];

        gpunvme_qpair_test(&ctrl->admin->qpair, lost->ticket, &c);
        release_data(ctrl, &lost->data);
    }
}

/* Waits while other threads' commands fill the queue. */
static gpunvme_err_t submit(struct gpunvme_ctrl *ctrl, const struct gpunvme_sqe *sqe,
                            uint64_t *ticket)
{
    struct gpunvme_transport *t = ctrl->transport;
    uint64_t start = t->ops->now_ns(t);
    int taken;

    while ((taken = gpunvme_qpair_submit(&ctrl->admin->qpair, sqe, 1, ticket)) == 0) {
        if (t->ops->now_ns(t) - start >= ctrl->opts.admin_timeout_ms * MS)
            return base_fail(GPUNVME_ERR_AGAIN, "the admin queue stays full");
        gpunvme_qpair_reap(&ctrl->admin->qpair);
        t->ops->pause_ns(t, 1000);
    }
    return taken < 0 ? nvme_closed_err(ctrl) : GPUNVME_OK;
}

static gpunvme_err_t submit_and_wait(struct gpunvme_ctrl *ctrl, const struct gpunvme_sqe *sqe,
                                     bool locked, struct nvme_admin_data *data,
                                     struct gpunvme_completion *c)
{
    uint64_t timeout = ctrl->opts.admin_timeout_ms * MS;
    uint64_t ticket = 0;
    gpunvme_err_t err = submit(ctrl, sqe, &ticket);

    if (err == GPUNVME_ERR_CLOSED && !locked && nvme_is_open_again(ctrl))
        err = submit(ctrl, sqe, &ticket);
    if (err)
        return err;
    if (!locked)
        return nvme_wait(ctrl->admin, ticket, timeout, c);
    err = nvme_wait_plain(ctrl->admin, ticket, timeout, c);
    if (!err)
        return nvme_completion_err(ctrl, c);
    lose(ctrl, ticket, data);
    if (err == GPUNVME_ERR_TIMEOUT)
        base_fail(err, "admin command %s: no completion", gpunvme_admin_opcode_name(sqe->opc));
    return err;
}

static gpunvme_err_t run(struct gpunvme_ctrl *ctrl, struct gpunvme_sqe *sqe, void *data,
                         size_t nbytes, bool to_controller, bool locked, uint32_t *result)
{
    struct gpunvme_completion c = {0};
    struct nvme_admin_data own = {0};
    gpunvme_err_t err = GPUNVME_OK;

    if (nbytes)
        err = attach_data(ctrl, sqe, nbytes, &own);
    if (!err && nbytes && to_controller)
        memcpy(own.buf.cpu, data, nbytes);
    if (!err)
        err = submit_and_wait(ctrl, sqe, locked, &own, &c);
    if (!err && nbytes && !to_controller)
        memcpy(data, own.buf.cpu, nbytes);
    if (!err && result)
        *result = (uint32_t)c.result;
    release_data(ctrl, &own);
    return err;
}

gpunvme_err_t nvme_admin_locked(struct gpunvme_ctrl *ctrl, struct gpunvme_sqe *sqe, void *data,
                                size_t nbytes, bool to_controller, uint32_t *result)
{
    return run(ctrl, sqe, data, nbytes, to_controller, true, result);
}

gpunvme_err_t gpunvme_ctrl_admin(struct gpunvme_ctrl *ctrl, struct gpunvme_sqe *sqe, void *data,
                                 size_t nbytes, bool to_controller, uint32_t *result)
{
    if (!ctrl || !sqe || (nbytes && !data))
        return base_fail(GPUNVME_ERR_INVALID, "NULL argument");
    if (nbytes > ctrl->max_transfer)
        return base_fail(GPUNVME_ERR_LIMIT, "%zu bytes: a command moves at most %llu", nbytes,
                         (unsigned long long)ctrl->max_transfer);
    return run(ctrl, sqe, data, nbytes, to_controller, false, result);
}

static gpunvme_err_t check_entry_sizes(const struct gpunvme_id_ctrl *id)
{
    /* Required (bits 3:0) and maximum (7:4) sizes as powers of two: ours are 2^6 and 2^4. */
    if ((id->sqes & 0xf) > 6 || id->sqes >> 4 < 6 || (id->cqes & 0xf) > 4 || id->cqes >> 4 < 4)
        return base_fail(
            GPUNVME_ERR_UNSUPPORTED,
            "queue entries of 64 and 16 bytes are not allowed (SQES %02xh, CQES %02xh)", id->sqes,
            id->cqes);
    return GPUNVME_OK;
}

gpunvme_err_t nvme_identify_ctrl(struct gpunvme_ctrl *ctrl)
{
    struct gpunvme_sqe sqe = {.opc = GPUNVME_ADMIN_IDENTIFY, .cdw10 = GPUNVME_CNS_CTRL};
    gpunvme_err_t err = nvme_admin_locked(ctrl, &sqe, &ctrl->id, sizeof(ctrl->id), false, NULL);
    unsigned page_shift_min = 12 + (unsigned)GPUNVME_GET(ctrl->cap, CAP_MPSMIN);

    if (!err)
        err = check_entry_sizes(&ctrl->id);
    if (err)
        return err;
    /* MDTS is in units of the smallest memory page; 0 is no limit, and then ours is. */
    ctrl->max_transfer = NVME_MAX_TRANSFER;
    if (ctrl->id.mdts && ctrl->id.mdts + page_shift_min < NVME_MAX_TRANSFER_SHIFT)
        ctrl->max_transfer = UINT64_C(1) << (ctrl->id.mdts + page_shift_min);
    return GPUNVME_OK;
}

/*
 * Asks for I/O queues and notes how many there are. A controller may grant more than was asked
 * for; fewer than a queue that exists already has number is a failure of the reset.
 */
gpunvme_err_t nvme_set_num_queues(struct gpunvme_ctrl *ctrl)
{
    uint32_t want = ctrl->max_io_queues ? ctrl->max_io_queues : ctrl->opts.io_queues;
    struct gpunvme_sqe sqe = {.opc = GPUNVME_ADMIN_SET_FEATURES,
                              .cdw10 = GPUNVME_FEAT_NUM_QUEUES,
                              .cdw11 = (want - 1) << 16 | (want - 1)};
    uint32_t granted = 0, pairs;
    gpunvme_err_t err = nvme_admin_locked(ctrl, &sqe, NULL, 0, false, &granted);

    if (err)
        return err;
    pairs = (granted & 0xffff) < granted >> 16 ? granted & 0xffff : granted >> 16;
    pairs = pairs + 1 < want ? pairs + 1 : want;
    if (ctrl->ioqs) {
        for (uint32_t i = pairs; i < ctrl->max_io_queues; i++) {
            if (ctrl->ioqs[i])
                return base_fail(GPUNVME_ERR_LIMIT,
                                 "after the reset the controller grants only %u queues", pairs);
        }
        return GPUNVME_OK;
    }
    ctrl->ioqs = calloc(pairs, sizeof(*ctrl->ioqs));
    if (!ctrl->ioqs)
        return base_fail(GPUNVME_ERR_NOMEM, "%u queues", pairs);
    ctrl->max_io_queues = pairs;
    return GPUNVME_OK;
}

gpunvme_err_t gpunvme_ctrl_get_log(struct gpunvme_ctrl *ctrl, uint8_t log_page, uint32_t nsid,
                                   uint64_t offset, void *data, size_t nbytes)
{
    uint32_t numd = (uint32_t)(nbytes / 4 - 1); /* dwords, 0's based */
    struct gpunvme_sqe sqe = {.opc = GPUNVME_ADMIN_GET_LOG_PAGE,
                              .nsid = nsid,
                              .cdw10 = log_page | (numd & 0xffff) << 16,
                              .cdw11 = numd >> 16,
                              .cdw12 = (uint32_t)offset,
                              .cdw13 = (uint32_t)(offset >> 32)};

    if (nbytes < 4 || nbytes % 4 || offset % 4)
        return base_fail(GPUNVME_ERR_ALIGN, "a log page is read in dwords");
    return gpunvme_ctrl_admin(ctrl, &sqe, data, nbytes, false, NULL);
}

gpunvme_err_t gpunvme_ctrl_get_feature(struct gpunvme_ctrl *ctrl, uint8_t feature, uint32_t nsid,
                                       uint32_t *value)
{
    struct gpunvme_sqe sqe = {.opc = GPUNVME_ADMIN_GET_FEATURES, .nsid = nsid, .cdw10 = feature};

    return gpunvme_ctrl_admin(ctrl, &sqe, NULL, 0, false, value);
}

gpunvme_err_t gpunvme_ctrl_set_feature(struct gpunvme_ctrl *ctrl, uint8_t feature, uint32_t nsid,
                                       uint32_t value)
{
    struct gpunvme_sqe sqe = {
        .opc = GPUNVME_ADMIN_SET_FEATURES, .nsid = nsid, .cdw10 = feature, .cdw11 = value};

    return gpunvme_ctrl_admin(ctrl, &sqe, NULL, 0, false, NULL);
}

gpunvme_err_t gpunvme_ctrl_keep_alive(struct gpunvme_ctrl *ctrl)
{
    struct gpunvme_sqe sqe = {.opc = GPUNVME_ADMIN_KEEP_ALIVE};

    return gpunvme_ctrl_admin(ctrl, &sqe, NULL, 0, false, NULL);
}
