/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The controller memory buffer: found, given an address, and shared out to submission queues.
 *
 * Source: Base 1.4, sections 3.1.11 (CMBLOC), 3.1.12 (CMBSZ), 3.1.17 (CMBMSC), 3.1.18 (CMBSTS) and
 * 4.8 (Controller Memory Buffer).
 */
#include "base/fail.h"
#include "nvme/ctrl.h"

/*
 * Where the controller is to see its buffer. It keeps these addresses to itself, so they must be
 * none that memory can have: transports give out less than 2^57.
 */
#define BASE UINT64_C(0x4000000000000000)

#define MAX_NBYTES (UINT64_C(16) << 20) /* that are mapped: no more queues than this holds */

static const uint32_t show = GPUNVME_SET(1, CMBMSC_CRE);

/* The high half first: with CMSE in the low one the address becomes valid. */
static gpunvme_err_t write_control(struct gpunvme_ctrl *ctrl, uint64_t value)
{
    struct gpunvme_transport *t = ctrl->transport;
    gpunvme_err_t err = t->ops->write32(t, GPUNVME_REG_CMBMSC + 4, (uint32_t)(value >> 32));

    return err ? err : t->ops->write32(t, GPUNVME_REG_CMBMSC, (uint32_t)value);
}

/* Size, place, and what the buffer may be used for. */
static gpunvme_err_t probe(struct gpunvme_ctrl *ctrl)
{
    struct gpunvme_transport *t = ctrl->transport;
    uint32_t size = 0, location = 0;
    uint64_t unit;
    gpunvme_err_t err = write_control(ctrl, show);

    if (!err)
        err = t->ops->read32(t, GPUNVME_REG_CMBSZ, &size);
    if (!err)
        err = t->ops->read32(t, GPUNVME_REG_CMBLOC, &location);
    if (err || GPUNVME_GET(size, CMBSZ_SZU) > 6) /* 7 and above are reserved */
        return err;
    unit = UINT64_C(4096) << 4 * GPUNVME_GET(size, CMBSZ_SZU);
    ctrl->cmb_nbytes = GPUNVME_GET(size, CMBSZ_SZ) * unit;
    ctrl->cmb_bir = (unsigned)GPUNVME_GET(location, CMBLOC_BIR);
    ctrl->cmb_offset = GPUNVME_GET(location, CMBLOC_OFST) * unit;
    ctrl->cmb_takes_sqs = GPUNVME_GET(size, CMBSZ_SQS);
    return GPUNVME_OK;
}

static gpunvme_err_t map(struct gpunvme_ctrl *ctrl)
{
    struct gpunvme_transport *t = ctrl->transport;
    uint64_t nbytes = ctrl->cmb_nbytes < MAX_NBYTES ? ctrl->cmb_nbytes : MAX_NBYTES;

    if (!nbytes || !ctrl->cmb_takes_sqs)
        return base_fail(GPUNVME_ERR_UNSUPPORTED,
                         "%s has no controller memory buffer that holds submission queues",
                         t->address);
    if (!t->ops->map_bar)
        return base_fail(GPUNVME_ERR_UNSUPPORTED,
                         "%s: this transport can't map the controller memory buffer", t->address);
    return t->ops->map_bar(t, ctrl->cmb_bir, ctrl->cmb_offset, (size_t)nbytes, &ctrl->cmb);
}

/* Before CC.EN = 1, each time: how much of this a reset leaves depends on the kind of reset. */
gpunvme_err_t nvme_cmb_start(struct gpunvme_ctrl *ctrl)
{
    struct gpunvme_transport *t = ctrl->transport;
    bool exists = GPUNVME_GET(ctrl->cap, CAP_CMBS);
    uint32_t status = 0;
    gpunvme_err_t err = GPUNVME_OK;

    if (exists && !ctrl->identified)
        err = probe(ctrl);
    if (err || !ctrl->opts.cmb)
        return err;
    if (!ctrl->cmb.nbytes)
        err = map(ctrl);
    if (!err)
        err = write_control(ctrl, BASE | show | GPUNVME_SET(1, CMBMSC_CMSE));
    if (!err)
        err = t->ops->read32(t, GPUNVME_REG_CMBSTS, &status);
    if (!err && GPUNVME_GET(status, CMBSTS_CBAI))
        err = base_fail(GPUNVME_ERR_UNSUPPORTED,
                        "%s does not take an address for its controller memory buffer", t->address);
    return err;
}

/* The queue that has a part of bytes first … first + nbytes - 1, or NULL. */
static const struct gpunvme_ioq *owner(const struct gpunvme_ctrl *ctrl, uint64_t first,
                                       uint64_t nbytes)
{
    for (uint32_t i = 0; i < ctrl->max_io_queues; i++) {
        const struct gpunvme_ioq *ioq = ctrl->ioqs[i];

        if (ioq && ioq->sq_mem.bus - BASE < first + nbytes &&
            first < ioq->sq_mem.bus - BASE + ioq->sq_mem.nbytes)
            return ioq;
    }
    return NULL;
}

gpunvme_err_t nvme_cmb_alloc(struct gpunvme_ctrl *ctrl, size_t nbytes, struct gpunvme_buf *buf)
{
    uint64_t page = UINT64_C(1) << ctrl->page_shift, first = 0;
    const struct gpunvme_ioq *other;

    while (first + nbytes <= ctrl->cmb.nbytes && (other = owner(ctrl, first, nbytes)))
        first = (other->sq_mem.bus - BASE + other->sq_mem.nbytes + page - 1) & ~(page - 1);
    if (first + nbytes > ctrl->cmb.nbytes)
        return base_fail(GPUNVME_ERR_LIMIT,
                         "no room for a submission queue of %zu bytes in the controller memory "
                         "buffer of %zu",
                         nbytes, ctrl->cmb.nbytes);
    *buf = ctrl->cmb;
    buf->cpu = (char *)ctrl->cmb.cpu + first;
    buf->bus = BASE + first;
    buf->nbytes = nbytes;
    return GPUNVME_OK;
}

/* The controller is disabled, or gone. */
void nvme_cmb_free(struct gpunvme_ctrl *ctrl)
{
    struct gpunvme_transport *t = ctrl->transport;

    if (!ctrl->cmb.nbytes)
        return;
    (void)write_control(ctrl, 0);
    t->ops->unmap(t, &ctrl->cmb);
    ctrl->cmb = (struct gpunvme_buf){0};
}
