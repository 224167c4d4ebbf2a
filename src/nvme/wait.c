/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Waiting for one command on the CPU: spins first, then pauses, looks after the controller
 * meanwhile, and when the time is up tries Abort, then a reset.
 */
#include <inttypes.h>

#include "base/fail.h"
#include "base/log.h"
#include "nvme/ctrl.h"

#define US UINT64_C(1000)
#define MS UINT64_C(1000000)

#define SPIN_NS      (50 * US)  /* how long a wait spins before it pauses */
#define LOOK_NS      (5 * MS)   /* how often it looks at CSTS */
#define BUSY_LOOK_NS (100 * MS) /* the same for all waits of a queue whose commands end at once */
#define SLICE_NS     MS         /* the longest sleep for an interrupt, see sleep_for */
#define GRACE_NS     (500 * MS) /* how long an aborted command may take to end */

/* The error that a completion stands for, with its detail. */
gpunvme_err_t nvme_completion_err(struct gpunvme_ctrl *ctrl, const struct gpunvme_completion *c)
{
    const char *address = ctrl->transport->address;

    if (!c->status)
        return GPUNVME_OK;
    if ((c->status & 0x7ff) != GPUNVME_SC_HOST_ABORTED)
        return base_fail(GPUNVME_ERR_NVME(c->status), "%s: status %04xh", address, c->status);
    /* Written by ourselves. */
    if (nvme_state(ctrl) == CTRL_REMOVED)
        return nvme_closed_err(ctrl);
    return base_fail(GPUNVME_ERR_ABORTED, "%s", address);
}

/* Why the controller's queues take no commands. */
gpunvme_err_t nvme_closed_err(struct gpunvme_ctrl *ctrl)
{
    static const char *const why[] = {[CTRL_LIVE] = "was being reset",
                                      [CTRL_RESETTING] = "is being reset",
                                      [CTRL_FAILED] = "failed and was given up",
                                      [CTRL_REMOVED] = "is gone"};
    enum ctrl_state state = nvme_state(ctrl);

    return base_fail(state == CTRL_REMOVED ? GPUNVME_ERR_REMOVED : GPUNVME_ERR_CLOSED, "%s %s",
                     ctrl->transport->address, why[state]);
}

static void pause_for(struct gpunvme_transport *t, uint64_t waited_ns)
{
    uint64_t ns = waited_ns / 8;

    t->ops->pause_ns(t, ns > 100 * US ? 100 * US : ns);
}

/*
 * Until the queue's interrupt, where it has one. The thread that the interrupt wakes first reaps
 * for all; another may look at its own word just before that, and then sleeps without reason:
 * not for long.
 */
static void sleep_for(struct gpunvme_ioq *ioq, uint64_t waited_ns, uint64_t *seen)
{
    if (ioq->ctrl->vectors)
        gpunvme_ioq_sleep(ioq, seen, SLICE_NS);
    else
        pause_for(ioq->ctrl->transport, waited_ns);
}

void gpunvme_ioq_sleep(struct gpunvme_ioq *ioq, uint64_t *seen, uint64_t timeout_ns)
{
    struct gpunvme_transport *t = ioq->ctrl->transport;

    if (!ioq->ctrl->vectors || t->ops->irq_wait(t, nvme_ioq_vector(ioq), seen, timeout_ns))
        t->ops->pause_ns(t, timeout_ns);
}

/* CSTS, for waits that must not start a reset themselves. */
static gpunvme_err_t look(struct gpunvme_ctrl *ctrl)
{
    uint32_t csts;
    gpunvme_err_t err = nvme_read_csts(ctrl, &csts);

    if (!err && (GPUNVME_GET(csts, CSTS_CFS) || !GPUNVME_GET(csts, CSTS_RDY)))
        err = base_fail(GPUNVME_ERR_FATAL, "CSTS is %08" PRIx32 "h", csts);
    return err;
}

/*
 * No wait of a busy queue may ever last until its first look. But whoever wants the function back
 * (the kernel, for another driver) waits for this process to notice, with a controller that works.
 */
static bool is_look_due(struct gpunvme_ioq *ioq, uint64_t now)
{
    uint64_t looked = __atomic_load_n(&ioq->looked_ns, __ATOMIC_RELAXED);

    if (now < looked + BUSY_LOOK_NS) /* looked may be later, another thread's */
        return false;
    __atomic_store_n(&ioq->looked_ns, now, __ATOMIC_RELAXED);
    return true;
}

static gpunvme_err_t wait_until(struct gpunvme_ioq *ioq, uint64_t ticket, uint64_t timeout_ns,
                                struct gpunvme_completion *c,
                                gpunvme_err_t (*look_after)(struct gpunvme_ctrl *ctrl))
{
    struct gpunvme_transport *t = ioq->ctrl->transport;
    uint64_t start = t->ops->now_ns(t), next_look = LOOK_NS, seen = 0;

    if (is_look_due(ioq, start)) {
        gpunvme_err_t err = look_after(ioq->ctrl);

        if (err)
            return gpunvme_qpair_test(&ioq->qpair, ticket, c) ? err : GPUNVME_OK;
    }
    for (unsigned turn = 1;; turn++) {
        gpunvme_err_t err = gpunvme_qpair_test(&ioq->qpair, ticket, c);
        uint64_t waited;
        uint32_t reaped;

        if (err != GPUNVME_ERR_AGAIN)
            return err;
        /* Completions of others must not keep this thread from its clock. */
        reaped = gpunvme_qpair_reap(&ioq->qpair);
        if (turn % 32) {
            if (!reaped)
                gpunvme_relax();
            continue;
        }
        waited = t->ops->now_ns(t) - start;
        if (waited >= next_look || waited >= timeout_ns) {
            next_look = waited + LOOK_NS;
            err = look_after(ioq->ctrl);
            /* The command may have ended by what look_after did. */
            if (err)
                return gpunvme_qpair_test(&ioq->qpair, ticket, c) ? err : GPUNVME_OK;
        }
        if (waited >= timeout_ns)
            return gpunvme_qpair_test(&ioq->qpair, ticket, c) ? GPUNVME_ERR_TIMEOUT : GPUNVME_OK;
        if (waited >= SPIN_NS && !reaped)
            sleep_for(ioq, waited, &seen);
    }
}

gpunvme_err_t nvme_wait_plain(struct gpunvme_ioq *ioq, uint64_t ticket, uint64_t timeout_ns,
                              struct gpunvme_completion *c)
{
    return wait_until(ioq, ticket, timeout_ns, c, look);
}

static gpunvme_err_t send_abort(struct gpunvme_ioq *ioq, uint16_t cid, uint32_t *result)
{
    struct gpunvme_sqe sqe = {.opc = GPUNVME_ADMIN_ABORT,
                              .cdw10 = (uint32_t)cid << 16 | ioq->qpair.qid};

    return nvme_admin_locked(ioq->ctrl, &sqe, NULL, 0, false, result);
}

/* Asks the controller to abort a command, and gives it a moment to end. */
static gpunvme_err_t abort_command(struct gpunvme_ioq *ioq, uint64_t ticket,
                                   struct gpunvme_completion *c)
{
    gpunvme_err_t err = send_abort(ioq, (uint16_t)ticket, NULL);

    return err ? err : nvme_wait_plain(ioq, ticket, GRACE_NS, c);
}

gpunvme_err_t nvme_ioq_abort(struct gpunvme_ioq *ioq, uint16_t cid, bool *is_aborted)
{
    struct gpunvme_ctrl *ctrl = ioq->ctrl;
    gpunvme_err_t err = GPUNVME_OK;
    uint32_t result = 0;

    pthread_mutex_lock(&ctrl->lifecycle);
    if (ctrl->opts.no_recovery)
        err = base_fail(GPUNVME_ERR_UNSUPPORTED, "the options forbid recovery");
    else if (nvme_state(ctrl) == CTRL_LIVE && !ioq->is_left_out)
        err = send_abort(ioq, cid, &result);
    pthread_mutex_unlock(&ctrl->lifecycle);
    *is_aborted = !(result & GPUNVME_ABORT_NOT_ABORTED);
    return err;
}

/*
 * The time is up. Whatever happens here, the ticket has ended when it returns: by itself at the
 * last moment (its own status), by Abort, or by a reset; and the controller has no part in it any
 * more. Only where a thread stands still while it reaps does a ticket end later.
 */
static gpunvme_err_t end_late_command(struct gpunvme_ioq *ioq, uint64_t ticket,
                                      struct gpunvme_completion *c)
{
    struct gpunvme_ctrl *ctrl = ioq->ctrl;
    unsigned cid = (unsigned)(ticket & 0xffff);
    gpunvme_err_t err, reset_err = GPUNVME_OK;

    pthread_mutex_lock(&ctrl->lifecycle);
    gpunvme_qpair_reap(&ioq->qpair);
    err = gpunvme_qpair_test(&ioq->qpair, ticket, c);
    if (err && ioq != ctrl->admin && !ctrl->opts.no_recovery)
        err = abort_command(ioq, ticket, c);
    if (err) {
        reset_err = nvme_recover_locked(ctrl);
        gpunvme_qpair_test(&ioq->qpair, ticket, c); /* a reset, done or failed, ends them all */
    }
    pthread_mutex_unlock(&ctrl->lifecycle);

    base_log(BASE_LOG_WARN, "%s: queue %u, command %04x did not end in time: %s",
             ctrl->transport->address, ioq->qpair.qid, cid,
             reset_err ? "no reset was possible"
             : err     ? "the controller was reset"
                       : "aborted");
    if (!err && GPUNVME_STATUS_CODE(c->status) != GPUNVME_SC_ABORT_REQUESTED)
        return nvme_completion_err(ctrl, c); /* by itself, after all */
    if (nvme_state(ctrl) == CTRL_REMOVED)
        return nvme_closed_err(ctrl);
    if (reset_err)
        return base_fail(GPUNVME_ERR_TIMEOUT, "queue %u, command %04x: no completion; %s",
                         ioq->qpair.qid, cid, gpunvme_err_detail());
    return base_fail(GPUNVME_ERR_TIMEOUT, "queue %u, command %04x: no completion; %s",
                     ioq->qpair.qid, cid, err ? "the controller was reset" : "it was aborted");
}

gpunvme_err_t nvme_wait(struct gpunvme_ioq *ioq, uint64_t ticket, uint64_t timeout_ns,
                        struct gpunvme_completion *c)
{
    gpunvme_err_t err = wait_until(ioq, ticket, timeout_ns, c, nvme_look_after);

    if (err == GPUNVME_OK)
        return nvme_completion_err(ioq->ctrl, c);
    if (err == GPUNVME_ERR_TIMEOUT)
        return end_late_command(ioq, ticket, c);
    return err;
}
