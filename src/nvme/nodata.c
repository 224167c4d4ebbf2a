/* SPDX-License-Identifier: BSD-3-Clause
 *
 * I/O commands that move no data: Flush, Write Zeroes, Dataset Management, Verify.
 *
 * Source: NVM Command Set 1.0c, sections 3.2.3 (Dataset Management), 3.2.7 (Verify), 3.2.8 (Write
 * Zeroes); Base 1.4, section 6.8 (Flush).
 */
#include <inttypes.h>
#include <string.h>

#include "base/fail.h"
#include "nvme/io_internal.h"

static gpunvme_err_t check(const struct gpunvme_ioq *ioq, const struct gpunvme_ns *ns,
                           uint64_t slba, uint64_t nlb, uint16_t oncs, const char *name)
{
    if (!ioq || !ns)
        return base_fail(GPUNVME_ERR_INVALID, "NULL argument");
    if (!ns->max_blocks)
        return nvme_ns_check(ns);
    if (oncs && !(ioq->ctrl->id.oncs & oncs))
        return base_fail(GPUNVME_ERR_UNSUPPORTED, "the controller has no %s (ONCS)", name);
    if (slba > ns->nblocks || nlb > ns->nblocks - slba)
        return base_fail(GPUNVME_ERR_RANGE,
                         "%" PRIu64 " blocks at %" PRIu64 ": namespace %u has %" PRIu64, nlb, slba,
                         ns->nsid, ns->nblocks);
    return GPUNVME_OK;
}

static gpunvme_err_t check_writable(const struct gpunvme_ns *ns)
{
    if (ns->readonly)
        return base_fail(GPUNVME_ERR_READONLY, "namespace %u is write protected", ns->nsid);
    return GPUNVME_OK;
}

/* Runs one command to its end; `item` (may be NULL) is put back. */
static gpunvme_err_t run(struct gpunvme_ioq *ioq, const struct gpunvme_sqe *sqe,
                         struct nvme_pool_item *item)
{
    struct gpunvme_token token;
    uint64_t deadline_ns = 0;
    gpunvme_err_t err;

    while ((err = nvme_submit(ioq, sqe, item, &token)) == GPUNVME_ERR_AGAIN) {
        err = nvme_wait_for_room(ioq, &deadline_ns);
        if (err)
            break;
    }
    if (err) {
        nvme_pool_put(&ioq->ctrl->lists, item);
        return err;
    }
    return gpunvme_token_wait(&token, 0);
}

gpunvme_err_t gpunvme_flush(struct gpunvme_ioq *ioq, const struct gpunvme_ns *ns)
{
    struct gpunvme_sqe sqe = {.opc = GPUNVME_CMD_FLUSH};
    gpunvme_err_t err = check(ioq, ns, 0, 0, 0, "Flush");

    if (err)
        return err;
    sqe.nsid = ns->nsid;
    return run(ioq, &sqe, NULL);
}

/*
 * One command for each max_blocks. MDTS need not apply to commands without data, but whether it
 * does depends on version and controller (WZSL, VSL): within it, all of them agree.
 */
static gpunvme_err_t over_blocks(struct gpunvme_ioq *ioq, const struct gpunvme_ns *ns,
                                 uint8_t opcode, uint64_t slba, uint64_t nlb, uint32_t cdw12)
{
    while (nlb) {
        uint64_t n = nlb < ns->max_blocks ? nlb : ns->max_blocks;
        struct gpunvme_sqe sqe = {.opc = opcode,
                                  .nsid = ns->nsid,
                                  .cdw10 = (uint32_t)slba,
                                  .cdw11 = (uint32_t)(slba >> 32),
                                  .cdw12 = cdw12 | (uint32_t)(n - 1)};
        gpunvme_err_t err = run(ioq, &sqe, NULL);

        if (err)
            return err;
        slba += n;
        nlb -= n;
    }
    return GPUNVME_OK;
}

gpunvme_err_t gpunvme_write_zeroes(struct gpunvme_ioq *ioq, const struct gpunvme_ns *ns,
                                   uint64_t slba, uint64_t nlb, bool deallocate)
{
    gpunvme_err_t err = check(ioq, ns, slba, nlb, GPUNVME_ONCS_WRITE_ZEROES, "Write Zeroes");

    if (!err)
        err = check_writable(ns);
    if (err)
        return err;
    return over_blocks(ioq, ns, GPUNVME_CMD_WRITE_ZEROES, slba, nlb,
                       deallocate && ns->id.dlfeat & GPUNVME_DLFEAT_DEAC ? GPUNVME_WZ_DEAC : 0);
}

gpunvme_err_t gpunvme_verify(struct gpunvme_ioq *ioq, const struct gpunvme_ns *ns, uint64_t slba,
                             uint64_t nlb)
{
    gpunvme_err_t err = check(ioq, ns, slba, nlb, GPUNVME_ONCS_VERIFY, "Verify");

    if (err)
        return err;
    return over_blocks(ioq, ns, GPUNVME_CMD_VERIFY, slba, nlb, 0);
}

gpunvme_err_t gpunvme_deallocate(struct gpunvme_ioq *ioq, const struct gpunvme_ns *ns,
                                 uint64_t slba, uint64_t nlb)
{
    gpunvme_err_t err = check(ioq, ns, slba, nlb, GPUNVME_ONCS_DSM, "Dataset Management");

    if (!err)
        err = check_writable(ns);
    while (!err && nlb) {
        uint32_t n = nlb < UINT32_MAX ? (uint32_t)nlb : UINT32_MAX;
        struct nvme_pool_item *item = nvme_pool_get(&ioq->ctrl->lists);
        struct gpunvme_sqe sqe = {.opc = GPUNVME_CMD_DSM, /* one range: cdw10 is 0's based */
                                  .nsid = ns->nsid,
                                  .cdw11 = GPUNVME_DSM_AD};
        struct gpunvme_dsm_range range = {.nlb = n, .slba = slba};

        if (!item)
            return base_fail(GPUNVME_ERR_NOMEM, "a range list");
        memcpy(item->buf.cpu, &range, sizeof(range));
        sqe.prp1 = item->buf.bus;
        err = run(ioq, &sqe, item);
        slba += n;
        nlb -= n;
    }
    return err;
}
