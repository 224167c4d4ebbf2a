/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The controller's registers on its way up and down: found in any state, disabled, enabled, shut
 * down. Knows nothing of commands.
 *
 * Source: Base 1.4, sections 3.1 (registers), 7.3 (resets), 7.6.1 (initialization), 7.6.2
 * (shutdown); Base 2.0, section 3.1.3.12 (CRTO).
 */
#include <inttypes.h>

#include "base/fail.h"
#include "nvme/ctrl.h"

#define MS         UINT64_C(1000000)
#define HOST_SHIFT 12 /* the page size that we would like: 4 KiB */

static gpunvme_err_t read32(struct gpunvme_ctrl *ctrl, uint32_t offset, uint32_t *value)
{
    return ctrl->transport->ops->read32(ctrl->transport, offset, value);
}

static gpunvme_err_t write32(struct gpunvme_ctrl *ctrl, uint32_t offset, uint32_t value)
{
    return ctrl->transport->ops->write32(ctrl->transport, offset, value);
}

static gpunvme_err_t removed(struct gpunvme_ctrl *ctrl)
{
    return base_fail(GPUNVME_ERR_REMOVED, "%s: its registers read as ones, or as zeroes",
                     ctrl->transport->address);
}

/*
 * Where a function is gone, PCIe reads ones; some virtual machines read zeroes. That is what a
 * disabled controller's CSTS looks like as well, but never VS.
 */
gpunvme_err_t nvme_read_csts(struct gpunvme_ctrl *ctrl, uint32_t *csts)
{
    uint32_t vs = 1;
    gpunvme_err_t err = read32(ctrl, GPUNVME_REG_CSTS, csts);

    if (!err && !*csts)
        err = read32(ctrl, GPUNVME_REG_VS, &vs);
    if (!err && (*csts == UINT32_MAX || !vs || vs == UINT32_MAX))
        err = removed(ctrl);
    return err;
}

/* CAP.TO, or CRTO.CRWMT where the controller has it (Base 2.0): the longest time to RDY. */
static gpunvme_err_t find_ready_timeout(struct gpunvme_ctrl *ctrl)
{
    uint64_t units = GPUNVME_GET(ctrl->cap, CAP_TO);
    uint32_t crto = 0;
    gpunvme_err_t err = GPUNVME_OK;

    if (GPUNVME_GET(ctrl->cap, CAP_CRMS)) {
        err = read32(ctrl, GPUNVME_REG_CRTO, &crto);
        if (GPUNVME_GET(crto, CRTO_CRWMT) > units)
            units = GPUNVME_GET(crto, CRTO_CRWMT);
    }
    /* A controller that says 0 gets one unit all the same. */
    ctrl->ready_timeout_ns = (units ? units : 1) * 500 * MS;
    if (ctrl->opts.ready_timeout_ms)
        ctrl->ready_timeout_ns = ctrl->opts.ready_timeout_ms * MS;
    return err;
}

static gpunvme_err_t find_page_size(struct gpunvme_ctrl *ctrl)
{
    unsigned min = 12 + (unsigned)GPUNVME_GET(ctrl->cap, CAP_MPSMIN);
    unsigned max = 12 + (unsigned)GPUNVME_GET(ctrl->cap, CAP_MPSMAX);

    if (max < min)
        return base_fail(GPUNVME_ERR_PROTOCOL, "CAP.MPSMAX is smaller than CAP.MPSMIN");
    if (min > 16)
        return base_fail(GPUNVME_ERR_UNSUPPORTED,
                         "the controller wants memory pages of %u KiB: up to 64 are supported",
                         1u << (min - 10));
    ctrl->page_shift = min > HOST_SHIFT ? min : HOST_SHIFT;
    return GPUNVME_OK;
}

static gpunvme_err_t find_queue_size(struct gpunvme_ctrl *ctrl)
{
    uint32_t entries = (uint32_t)GPUNVME_GET(ctrl->cap, CAP_MQES) + 1;

    if (entries < 2)
        return base_fail(GPUNVME_ERR_PROTOCOL, "CAP.MQES is 0: queues have at least two entries");
    if (entries > GPUNVME_QPAIR_MAX_ENTRIES)
        entries = GPUNVME_QPAIR_MAX_ENTRIES;
    ctrl->max_entries = 1u << (31 - __builtin_clz(entries));
    return GPUNVME_OK;
}

/* CAP.CSS: bit 0 the NVM command set, bit 6 one or more I/O command sets, bit 7 none. */
static gpunvme_err_t check_command_sets(struct gpunvme_ctrl *ctrl)
{
    uint64_t css = GPUNVME_GET(ctrl->cap, CAP_CSS);

    if (css & (1u << 0 | 1u << 6))
        return GPUNVME_OK;
    return base_fail(GPUNVME_ERR_UNSUPPORTED,
                     "the controller has no NVM command set (CAP.CSS is %02" PRIx64 "h)", css);
}

gpunvme_err_t nvme_bringup_probe(struct gpunvme_ctrl *ctrl)
{
    gpunvme_err_t err = ctrl->transport->ops->read64(ctrl->transport, GPUNVME_REG_CAP, &ctrl->cap);

    if (!err)
        err = read32(ctrl, GPUNVME_REG_VS, &ctrl->vs);
    if (err)
        return err;
    if (ctrl->cap == UINT64_MAX || ctrl->vs == UINT32_MAX || !ctrl->vs)
        return removed(ctrl);
    err = check_command_sets(ctrl);
    if (!err)
        err = find_page_size(ctrl);
    if (!err)
        err = find_queue_size(ctrl);
    if (!err)
        err = find_ready_timeout(ctrl);
    return err;
}

/*
 * Waits until CSTS & mask is `want`. A fatal status ends the wait with GPUNVME_ERR_FATAL unless
 * `cfs_is_fine`: on the way down, a failed controller may still obey.
 */
static gpunvme_err_t wait_csts(struct gpunvme_ctrl *ctrl, uint32_t mask, uint32_t want,
                               bool cfs_is_fine, uint64_t timeout_ns, const char *step)
{
    struct gpunvme_transport *t = ctrl->transport;
    uint64_t start = t->ops->now_ns(t);

    for (;;) {
        bool late = t->ops->now_ns(t) - start >= timeout_ns;
        uint32_t csts;
        gpunvme_err_t err = nvme_read_csts(ctrl, &csts);

        if (err)
            return err;
        if (!cfs_is_fine && GPUNVME_GET(csts, CSTS_CFS))
            return base_fail(GPUNVME_ERR_FATAL, "%s: CSTS is %08" PRIx32 "h, CFS is set", step,
                             csts);
        if ((csts & mask) == want)
            return GPUNVME_OK;
        if (late)
            return base_fail(GPUNVME_ERR_TIMEOUT,
                             "%s: CSTS is still %08" PRIx32 "h after %" PRIu64 " ms", step, csts,
                             timeout_ns / MS);
        t->ops->pause_ns(t, 100000);
    }
}

static const uint32_t ready = GPUNVME_SET(1, CSTS_RDY);

/* One try at CC.EN = 0 and CSTS.RDY = 0. */
static gpunvme_err_t disable_once(struct gpunvme_ctrl *ctrl)
{
    uint32_t cc, csts;
    gpunvme_err_t err = read32(ctrl, GPUNVME_REG_CC, &cc);

    if (!err)
        err = nvme_read_csts(ctrl, &csts);
    if (err)
        return err;
    if (cc == UINT32_MAX)
        return removed(ctrl);
    if (GPUNVME_GET(cc, CC_EN)) {
        /* EN must not be cleared while a 1 is still on its way to RDY. Whether it arrives is not
         * our concern: a controller that hangs there is disabled all the same. */
        if (!(csts & ready) && !GPUNVME_GET(csts, CSTS_CFS)) {
            err = wait_csts(ctrl, ready, ready, false, ctrl->ready_timeout_ns,
                            "waiting for the enable before ours");
            if (err == GPUNVME_ERR_REMOVED)
                return err;
        }
        cc &= ~(GPUNVME_SET(1, CC_EN) | GPUNVME_SET(GPUNVME_CC_SHN_MASK, CC_SHN));
        err = write32(ctrl, GPUNVME_REG_CC, cc);
        if (err)
            return err;
    }
    return wait_csts(ctrl, ready, 0, true, ctrl->ready_timeout_ns,
                     "disabling, CC.EN = 0, waiting for CSTS.RDY = 0");
}

/* The harder ways: the transport's reset of the function, else the NVM subsystem reset. */
static gpunvme_err_t reset_harder(struct gpunvme_ctrl *ctrl)
{
    struct gpunvme_transport *t = ctrl->transport;

    if (t->ops->reset)
        return t->ops->reset(t);
    if (GPUNVME_GET(ctrl->cap, CAP_NSSRS))
        return write32(ctrl, GPUNVME_REG_NSSR, GPUNVME_NSSR_RESET);
    return GPUNVME_ERR_UNSUPPORTED;
}

gpunvme_err_t nvme_bringup_disable(struct gpunvme_ctrl *ctrl)
{
    uint32_t csts;
    gpunvme_err_t err = disable_once(ctrl);

    if (err && err != GPUNVME_ERR_TIMEOUT)
        return err;
    if (!err)
        err = nvme_read_csts(ctrl, &csts);
    if (!err && !GPUNVME_GET(csts, CSTS_CFS))
        return GPUNVME_OK;
    if (err == GPUNVME_ERR_REMOVED)
        return err;
    /* It does not obey, or still says that it failed. */
    if (reset_harder(ctrl) == GPUNVME_OK)
        return disable_once(ctrl);
    return err ? err : GPUNVME_OK; /* enabling may clear CFS; if not, that step says so */
}

static gpunvme_err_t bus_master(struct gpunvme_ctrl *ctrl, bool on)
{
    struct gpunvme_transport *t = ctrl->transport;
    gpunvme_err_t err = t->ops->bus_master ? t->ops->bus_master(t, on) : GPUNVME_ERR_UNSUPPORTED;

    if (!err)
        ctrl->is_cut_off = !on;
    return err;
}

gpunvme_err_t nvme_bringup_cut_off(struct gpunvme_ctrl *ctrl)
{
    return bus_master(ctrl, false);
}

static gpunvme_err_t write_admin_queues(struct gpunvme_ctrl *ctrl)
{
    struct gpunvme_transport *t = ctrl->transport;
    uint32_t size = ctrl->admin->qpair.mask; /* 0's based */
    gpunvme_err_t err =
        write32(ctrl, GPUNVME_REG_AQA, GPUNVME_SET(size, AQA_ASQS) | GPUNVME_SET(size, AQA_ACQS));

    if (!err)
        err = t->ops->write64(t, GPUNVME_REG_ASQ, ctrl->admin->sq_mem.bus);
    if (!err)
        err = t->ops->write64(t, GPUNVME_REG_ACQ, ctrl->admin->cq_mem.bus);
    return err;
}

gpunvme_err_t nvme_bringup_enable(struct gpunvme_ctrl *ctrl)
{
    /* The NVM command set alone where the controller has that (CAP.CSS bit 0): namespaces of other
     * sets then stay out of sight. Else all it has (bit 6), of which CC.CSS can't choose one. */
    uint32_t css =
        GPUNVME_GET(ctrl->cap, CAP_CSS) & 1u << 0 ? GPUNVME_CC_CSS_NVM : GPUNVME_CC_CSS_ALL;
    uint32_t cc = GPUNVME_SET(1, CC_EN) | GPUNVME_SET(css, CC_CSS) |
                  GPUNVME_SET(ctrl->page_shift - 12, CC_MPS) |
                  GPUNVME_SET(6, CC_IOSQES) | /* 2^6 bytes an entry */
                  GPUNVME_SET(4, CC_IOCQES);  /* 2^4 */
    gpunvme_err_t err = ctrl->is_cut_off ? bus_master(ctrl, true) : GPUNVME_OK;

    if (!err)
        err = write_admin_queues(ctrl);
    if (!err)
        err = write32(ctrl, GPUNVME_REG_CC, cc);
    if (err)
        return err;
    return wait_csts(ctrl, ready, ready, false, ctrl->ready_timeout_ns,
                     "enabling, CC.EN = 1, waiting for CSTS.RDY = 1");
}

gpunvme_err_t nvme_bringup_shutdown(struct gpunvme_ctrl *ctrl, uint32_t shn)
{
    uint64_t rtd3e_ns = ctrl->id.rtd3e * UINT64_C(1000); /* RTD3 Entry Latency, microseconds */
    uint64_t timeout_ns = rtd3e_ns > ctrl->ready_timeout_ns ? rtd3e_ns : ctrl->ready_timeout_ns;
    uint32_t cc;
    gpunvme_err_t err = read32(ctrl, GPUNVME_REG_CC, &cc);

    if (err)
        return err;
    if (cc == UINT32_MAX)
        return removed(ctrl);
    cc &= ~(uint32_t)GPUNVME_SET(GPUNVME_CC_SHN_MASK, CC_SHN);
    err = write32(ctrl, GPUNVME_REG_CC, cc | (uint32_t)GPUNVME_SET(shn, CC_SHN));
    if (err)
        return err;
    return wait_csts(ctrl, (uint32_t)GPUNVME_SET(GPUNVME_CSTS_SHST_MASK, CSTS_SHST),
                     (uint32_t)GPUNVME_SET(GPUNVME_CSTS_SHST_COMPLETE, CSTS_SHST), true, timeout_ns,
                     "shutting down, waiting for CSTS.SHST = complete");
}
