/* SPDX-License-Identifier: BSD-3-Clause
 *
 * From a disabled controller to one with its queues, and back there after a failure. Commands in
 * flight all end; queues keep their handles.
 *
 * Source: Base 1.4, sections 7.3.2 (controller level reset) and 7.6.1 (initialization).
 */
#include <inttypes.h>

#include "base/fail.h"
#include "base/log.h"
#include "nvme/ctrl.h"

/* How long threads may take to leave submit and reap: those of all queues, and of each at least. */
#define FREEZE_NS       UINT64_C(2000000000)
#define FREEZE_LEAST_NS UINT64_C(100000000)

/*
 * A foreign queue whose words are out of reach (a kernel that leaves no room on the GPU) does not
 * keep the others from their reset: it is left out, and readmitted when its threads are gone.
 */
static void freeze_foreign(struct gpunvme_ioq *ioq, uint64_t deadline_ns)
{
    ioq->frozen = ioq->foreign->freeze(ioq->foreign_arg, deadline_ns) == GPUNVME_OK;
    ioq->is_left_out = !ioq->frozen;
}

static gpunvme_err_t freeze(struct gpunvme_ioq *ioq, uint64_t deadline_ns)
{
    uint64_t least_ns = gpunvme_clock_ns() + FREEZE_LEAST_NS;
    gpunvme_err_t err;

    if (deadline_ns < least_ns)
        deadline_ns = least_ns;
    if (!ioq)
        return GPUNVME_OK;
    if (ioq->foreign) { /* a frozen one too: whether its last thaw was done may be in doubt */
        freeze_foreign(ioq, deadline_ns);
        return GPUNVME_OK;
    }
    if (ioq->frozen)
        return GPUNVME_OK;
    err = gpunvme_qpair_freeze(&ioq->qpair, deadline_ns);
    if (!err)
        ioq->frozen = true;
    return err;
}

static gpunvme_err_t freeze_all(struct gpunvme_ctrl *ctrl)
{
    uint64_t deadline_ns = gpunvme_clock_ns() + FREEZE_NS;
    gpunvme_err_t first = freeze(ctrl->admin, deadline_ns);

    for (uint32_t i = 0; i < ctrl->max_io_queues; i++) {
        gpunvme_err_t err = freeze(ctrl->ioqs[i], deadline_ns);

        if (!first)
            first = err;
    }
    return first;
}

static void fail_and_rewind(struct gpunvme_ioq *ioq)
{
    if (!ioq || (ioq->foreign && !ioq->frozen))
        return;
    if (!ioq->frozen) { /* a thread stands still in it: its commands at least are over */
        (void)nvme_qpair_end(&ioq->qpair, GPUNVME_SC_HOST_ABORTED);
        return;
    }
    if (ioq->foreign) {
        /* What can't be rewound can't be created again: it stays frozen. */
        ioq->is_left_out = ioq->foreign->fail_and_rewind(ioq->foreign_arg, GPUNVME_SC_HOST_ABORTED);
        return;
    }
    gpunvme_qpair_fail(&ioq->qpair, GPUNVME_SC_HOST_ABORTED);
    gpunvme_qpair_rewind(&ioq->qpair);
}

static void fail_and_rewind_all(struct gpunvme_ctrl *ctrl)
{
    fail_and_rewind(ctrl->admin);
    for (uint32_t i = 0; i < ctrl->max_io_queues; i++)
        fail_and_rewind(ctrl->ioqs[i]);
    nvme_aer_drop(ctrl);
    nvme_admin_drop(ctrl);
}

static gpunvme_err_t thaw(struct gpunvme_ioq *ioq)
{
    gpunvme_err_t err = GPUNVME_OK;

    if (!ioq || !ioq->frozen || ioq->is_left_out)
        return GPUNVME_OK;
    if (ioq->foreign)
        err = ioq->foreign->thaw(ioq->foreign_arg);
    else
        gpunvme_qpair_thaw(&ioq->qpair);
    ioq->frozen = err != GPUNVME_OK;
    return err;
}

/*
 * Ends everything for good. The queues stay frozen: submissions give GPUNVME_ERR_CLOSED, or
 * _REMOVED. The state is set before the queues freeze and the tickets end, so that whoever sees
 * either can tell why. A ticket that has ended gives its memory back, so the controller must have
 * stopped before: one that does not obey loses its access to memory.
 */
void nvme_give_up_locked(struct gpunvme_ctrl *ctrl, enum ctrl_state state)
{
    bool is_quiet = state == CTRL_REMOVED;

    nvme_set_state(ctrl, state);
    freeze_all(ctrl);
    if (!is_quiet)
        is_quiet =
            nvme_bringup_disable(ctrl) == GPUNVME_OK || nvme_bringup_cut_off(ctrl) == GPUNVME_OK;
    __atomic_store_n(&ctrl->is_unstoppable, !is_quiet, __ATOMIC_RELEASE);
    fail_and_rewind_all(ctrl);
}

/*
 * Everything after CSTS.RDY = 1 that a controller forgets in a reset, and the first time what it
 * says of itself: other threads read that at all times.
 */
static gpunvme_err_t configure(struct gpunvme_ctrl *ctrl)
{
    gpunvme_err_t err = ctrl->identified ? GPUNVME_OK : nvme_identify_ctrl(ctrl);

    if (!err)
        err = nvme_set_num_queues(ctrl);
    if (!err)
        err = nvme_shadow_start(ctrl);
    if (!err && !ctrl->identified)
        err = nvme_ns_scan(ctrl);
    if (!err)
        ctrl->identified = true;
    return err;
}

static gpunvme_err_t recreate_queues(struct gpunvme_ctrl *ctrl)
{
    for (uint32_t i = 0; i < ctrl->max_io_queues; i++) {
        gpunvme_err_t err;

        if (!ctrl->ioqs[i] || ctrl->ioqs[i]->is_left_out)
            continue;
        err = nvme_ioq_create_on_device(ctrl->ioqs[i]);
        if (err)
            return err;
    }
    return GPUNVME_OK;
}

static void thaw_ioqs(struct gpunvme_ctrl *ctrl)
{
    for (uint32_t i = 0; i < ctrl->max_io_queues; i++)
        (void)thaw(ctrl->ioqs[i]); /* one that stays closed is readmitted later */
}

/* From a disabled controller with an empty admin queue to a working one. */
gpunvme_err_t nvme_start(struct gpunvme_ctrl *ctrl)
{
    gpunvme_err_t err = nvme_cmb_start(ctrl);

    if (!err)
        err = nvme_bringup_enable(ctrl);
    if (err)
        return err;
    (void)thaw(ctrl->admin); /* the CPU's: that can't fail */
    err = configure(ctrl);
    if (!err)
        err = recreate_queues(ctrl);
    if (!err)
        err = nvme_aer_start(ctrl);
    if (!err)
        thaw_ioqs(ctrl);
    return err;
}

/* The controller is of no use any more, because of `err`. */
static void lose(struct gpunvme_ctrl *ctrl, gpunvme_err_t err)
{
    bool gone = err == GPUNVME_ERR_REMOVED;

    base_log(BASE_LOG_ERROR, "%s: %s, all its commands end (%s)", ctrl->transport->address,
             gone ? "gone" : "given up", gpunvme_err_name(err));
    nvme_give_up_locked(ctrl, gone ? CTRL_REMOVED : CTRL_FAILED);
}

/*
 * A thread that stands still in submit or reap (in a debugger, in a page fault) must leave before
 * its queue begins anew. The controller does not wait for it: it is disabled, and what is in flight
 * ends. But it is not given up: it stays CTRL_RESETTING, with GPUNVME_ERR_TIMEOUT, and whoever
 * looks after it next goes on from here.
 */
gpunvme_err_t nvme_reset_locked(struct gpunvme_ctrl *ctrl)
{
    struct base_failure stuck;
    gpunvme_err_t err;

    if (nvme_state(ctrl) == CTRL_REMOVED)
        return nvme_closed_err(ctrl);
    nvme_set_state(ctrl, CTRL_RESETTING);
    base_keep(&stuck, freeze_all(ctrl));
    err = nvme_bringup_disable(ctrl);
    if (!err) {
        __atomic_store_n(&ctrl->is_unstoppable, false, __ATOMIC_RELEASE);
        fail_and_rewind_all(ctrl);
        if (stuck.err)
            return base_restore(&stuck);
        err = nvme_start(ctrl);
    }
    if (err) {
        struct base_failure failure;

        base_keep(&failure, err);
        lose(ctrl, err);
        return base_restore(&failure);
    }
    ctrl->resets++;
    nvme_set_state(ctrl, CTRL_LIVE);
    base_log(BASE_LOG_WARN,
             "%s: reset, the commands in flight were ended (resets so far: %" PRIu64 ")",
             ctrl->transport->address, ctrl->resets);
    return GPUNVME_OK;
}

/* The controller can't be left as it is: a reset, or the end where the options forbid that. */
gpunvme_err_t nvme_recover_locked(struct gpunvme_ctrl *ctrl)
{
    uint32_t csts = 0;
    gpunvme_err_t err;

    if (!ctrl->opts.no_recovery)
        return nvme_reset_locked(ctrl);
    err = nvme_read_csts(ctrl, &csts);
    lose(ctrl, err ? err : GPUNVME_ERR_FATAL);
    return base_fail(GPUNVME_ERR_FATAL,
                     "%s: given up, since the options forbid a reset; CSTS %08" PRIx32 "h",
                     ctrl->transport->address, csts);
}

gpunvme_err_t gpunvme_ctrl_reset(struct gpunvme_ctrl *ctrl)
{
    gpunvme_err_t err;

    if (!ctrl)
        return base_fail(GPUNVME_ERR_INVALID, "ctrl is NULL");
    pthread_mutex_lock(&ctrl->lifecycle);
    err = nvme_reset_locked(ctrl);
    pthread_mutex_unlock(&ctrl->lifecycle);
    return err;
}

gpunvme_err_t nvme_recover(struct gpunvme_ctrl *ctrl)
{
    gpunvme_err_t err;

    pthread_mutex_lock(&ctrl->lifecycle);
    err = nvme_state(ctrl) == CTRL_REMOVED ? nvme_closed_err(ctrl) : nvme_recover_locked(ctrl);
    pthread_mutex_unlock(&ctrl->lifecycle);
    return err;
}

/* A queue that the controller does not have, from its words on. */
static gpunvme_err_t create_again(struct gpunvme_ioq *ioq)
{
    gpunvme_err_t err = ioq->foreign->freeze(ioq->foreign_arg, gpunvme_clock_ns() + FREEZE_NS);

    ioq->frozen = !err;
    if (!err)
        err = ioq->foreign->fail_and_rewind(ioq->foreign_arg, GPUNVME_SC_HOST_ABORTED);
    if (err)
        return err;
    err = nvme_ioq_create_on_device(ioq);
    if (gpunvme_err_nvme_status(err))
        return err;
    ioq->is_left_out = false;
    /* It may have the queue now, or not: the reset makes it anew. */
    return err ? nvme_recover_locked(ioq->ctrl) : GPUNVME_OK;
}

static gpunvme_err_t readmit_locked(struct gpunvme_ioq *ioq)
{
    gpunvme_err_t err = GPUNVME_OK;

    if (nvme_state(ioq->ctrl) != CTRL_LIVE)
        return nvme_closed_err(ioq->ctrl);
    if (ioq->is_left_out)
        err = create_again(ioq);
    return err ? err : thaw(ioq);
}

bool nvme_ioq_is_left_out(struct gpunvme_ioq *ioq)
{
    bool is_left_out;

    pthread_mutex_lock(&ioq->ctrl->lifecycle);
    is_left_out = ioq->is_left_out;
    pthread_mutex_unlock(&ioq->ctrl->lifecycle);
    return is_left_out;
}

gpunvme_err_t nvme_ioq_readmit(struct gpunvme_ioq *ioq)
{
    struct gpunvme_ctrl *ctrl = ioq->ctrl;
    gpunvme_err_t err;

    pthread_mutex_lock(&ctrl->lifecycle);
    err = readmit_locked(ioq);
    pthread_mutex_unlock(&ctrl->lifecycle);
    return err;
}

static gpunvme_err_t check_locked(struct gpunvme_ctrl *ctrl)
{
    uint32_t csts;
    gpunvme_err_t err;

    if (nvme_state(ctrl) == CTRL_REMOVED)
        return nvme_closed_err(ctrl);
    if (nvme_state(ctrl) == CTRL_RESETTING)
        return nvme_reset_locked(ctrl);
    if (nvme_state(ctrl) == CTRL_FAILED)
        return base_fail(GPUNVME_ERR_FATAL, "%s was given up", ctrl->transport->address);
    err = nvme_read_csts(ctrl, &csts);
    if (err) { /* gone, or out of reach */
        struct base_failure failure;

        base_keep(&failure, err);
        lose(ctrl, err);
        return base_restore(&failure);
    }
    /* Not ready, and nobody here disabled it: it lost power, or was reset behind our back. */
    if (!GPUNVME_GET(csts, CSTS_CFS) && GPUNVME_GET(csts, CSTS_RDY))
        return GPUNVME_OK;
    return nvme_recover_locked(ctrl);
}

gpunvme_err_t gpunvme_ctrl_check(struct gpunvme_ctrl *ctrl)
{
    gpunvme_err_t err;

    if (!ctrl)
        return base_fail(GPUNVME_ERR_INVALID, "ctrl is NULL");
    pthread_mutex_lock(&ctrl->lifecycle);
    err = check_locked(ctrl);
    pthread_mutex_unlock(&ctrl->lifecycle);
    return err;
}

gpunvme_err_t nvme_look_after(struct gpunvme_ctrl *ctrl)
{
    gpunvme_err_t err;

    if (pthread_mutex_trylock(&ctrl->lifecycle))
        return GPUNVME_OK;
    err = check_locked(ctrl);
    if (nvme_state(ctrl) == CTRL_RESETTING)
        err = GPUNVME_OK;
    pthread_mutex_unlock(&ctrl->lifecycle);
    return err;
}

bool nvme_is_open_again(struct gpunvme_ctrl *ctrl)
{
    if (nvme_state(ctrl) == CTRL_RESETTING)
        (void)nvme_look_after(ctrl);
    return nvme_state(ctrl) == CTRL_LIVE;
}
