/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Asynchronous events: requests that stay with the controller until it has something to say.
 *
 * Source: Base 1.4, sections 5.2 (the command) and 5.21.1.11 (what is reported).
 */
#include "base/fail.h"
#include "nvme/ctrl.h"

/* How many requests may wait at once: AERL is 0's based. */
static unsigned max_aers(const struct gpunvme_ctrl *ctrl)
{
    return ctrl->id.aerl + 1u < NVME_MAX_AERS ? ctrl->id.aerl + 1u : NVME_MAX_AERS;
}

static gpunvme_err_t submit_aer(struct gpunvme_ctrl *ctrl)
{
    struct gpunvme_sqe sqe = {.opc = GPUNVME_ADMIN_ASYNC_EVENT};
    int taken = gpunvme_qpair_submit(&ctrl->admin->qpair, &sqe, 1, &ctrl->aers[ctrl->naers]);

    if (taken < 0)
        return taken;
    if (!taken)
        return GPUNVME_ERR_AGAIN;
    ctrl->naers++;
    return GPUNVME_OK;
}

/*
 * Sends as many requests as may wait. Where the admin queue has no room for all, some are missing
 * until the next look: each look for an event begins with this.
 */
static gpunvme_err_t send_requests(struct gpunvme_ctrl *ctrl)
{
    gpunvme_err_t err = GPUNVME_OK;

    pthread_mutex_lock(&ctrl->aer_lock);
    while (!err && ctrl->naers < max_aers(ctrl))
        err = submit_aer(ctrl);
    pthread_mutex_unlock(&ctrl->aer_lock);
    return err == GPUNVME_ERR_AGAIN ? GPUNVME_OK : err;
}

/* All health warnings, and the notices that this library could act on. */
static gpunvme_err_t configure_events(struct gpunvme_ctrl *ctrl)
{
    struct gpunvme_sqe sqe = {.opc = GPUNVME_ADMIN_SET_FEATURES,
                              .cdw10 = GPUNVME_FEAT_ASYNC_EVENT,
                              .cdw11 = 0xff | (ctrl->id.oaes & 0xff00)};
    gpunvme_err_t err = nvme_admin_locked(ctrl, &sqe, NULL, 0, false, NULL);

    /* A controller that refuses some reports what it likes to: nothing is lost. */
    return gpunvme_err_nvme_status(err) ? GPUNVME_OK : err;
}

gpunvme_err_t nvme_aer_start(struct gpunvme_ctrl *ctrl)
{
    gpunvme_err_t err = configure_events(ctrl);

    return err ? err : send_requests(ctrl);
}

/* A reset has ended the requests: their tickets are taken off the queue. */
void nvme_aer_drop(struct gpunvme_ctrl *ctrl)
{
    struct gpunvme_completion c;

    pthread_mutex_lock(&ctrl->aer_lock);
    while (ctrl->naers)
        gpunvme_qpair_test(&ctrl->admin->qpair, ctrl->aers[--ctrl->naers], &c);
    pthread_mutex_unlock(&ctrl->aer_lock);
}

/* The first request that has come back, taken off the list. */
static gpunvme_err_t take_completion(struct gpunvme_ctrl *ctrl, struct gpunvme_completion *c)
{
    gpunvme_qpair_reap(&ctrl->admin->qpair);
    for (unsigned i = 0; i < ctrl->naers; i++) {
        if (gpunvme_qpair_test(&ctrl->admin->qpair, ctrl->aers[i], c) == GPUNVME_OK) {
            ctrl->aers[i] = ctrl->aers[--ctrl->naers];
            return GPUNVME_OK;
        }
    }
    return GPUNVME_ERR_AGAIN;
}

/* Reading the log page, without Retain Asynchronous Event, lets the next one of its type come. */
static gpunvme_err_t clear_event(struct gpunvme_ctrl *ctrl, uint8_t log_page)
{
    static const size_t page_nbytes[] = {
        [GPUNVME_LOG_ERROR] = sizeof(struct gpunvme_error_log_entry),
        [GPUNVME_LOG_SMART] = sizeof(struct gpunvme_smart_log),
        [GPUNVME_LOG_FW_SLOT] = sizeof(struct gpunvme_fw_slot_log),
        [GPUNVME_LOG_CHANGED_NS] = sizeof(struct gpunvme_id_ns_list),
    };
    static const size_t n = sizeof(page_nbytes) / sizeof(page_nbytes[0]);
    uint8_t data[sizeof(struct gpunvme_id_ns_list)];
    size_t nbytes = log_page < n && page_nbytes[log_page] ? page_nbytes[log_page] : 512;

    return gpunvme_ctrl_get_log(ctrl, log_page, 0xffffffff, 0, data, nbytes);
}

gpunvme_err_t gpunvme_ctrl_next_event(struct gpunvme_ctrl *ctrl, struct gpunvme_event *event)
{
    struct gpunvme_completion c = {0};
    gpunvme_err_t err;

    if (!ctrl || !event)
        return base_fail(GPUNVME_ERR_INVALID, "NULL argument");
    (void)send_requests(ctrl);
    pthread_mutex_lock(&ctrl->aer_lock);
    err = take_completion(ctrl, &c);
    pthread_mutex_unlock(&ctrl->aer_lock);
    if (!err && GPUNVME_STATUS_CODE(c.status) == GPUNVME_SC_HOST_ABORTED)
        err = GPUNVME_ERR_AGAIN; /* ended by a reset, which sends new requests */
    if (err)
        return nvme_state(ctrl) <= CTRL_RESETTING ? err : nvme_closed_err(ctrl);
    if (c.status)
        return nvme_completion_err(ctrl, &c);
    event->type = (uint8_t)GPUNVME_GET(c.result, AER_TYPE);
    event->info = (uint8_t)GPUNVME_GET(c.result, AER_INFO);
    event->log_page = (uint8_t)GPUNVME_GET(c.result, AER_LID);
    /* The event stands whatever becomes of its log page. */
    (void)clear_event(ctrl, event->log_page);
    (void)send_requests(ctrl);
    return GPUNVME_OK;
}
