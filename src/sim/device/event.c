/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Asynchronous events: raised by any thread, delivered by thread 0 to the requests that wait. An
 * event that was delivered masks its type until its log page is read.
 *
 * Source: NVM Express Base 1.4, sections 5.2 and 5.21.1.11.
 */
#include <string.h>

#include "sim/sim_internal.h"

/* Does the Asynchronous Event Configuration let the event pass? On thread 0. */
static bool is_enabled(const struct gpunvme_sim *sim, const struct sim_event *event)
{
    static const uint32_t smart[] = {GPUNVME_SMART_CW_RELIABILITY, GPUNVME_SMART_CW_TEMPERATURE,
                                     GPUNVME_SMART_CW_SPARE};
    uint32_t enabled = sim->features.async_events;

    if (event->type == GPUNVME_AER_TYPE_SMART)
        return event->info >= sizeof(smart) / sizeof(smart[0]) || enabled & smart[event->info];
    if (event->type == GPUNVME_AER_TYPE_NOTICE)
        return event->info > GPUNVME_AER_NOTICE_EG_AGGREGATE ||
               enabled & GPUNVME_ASYNC_CONFIG_NS_ATTR << event->info;
    return true;
}

void sim_event_raise(struct gpunvme_sim *sim, uint8_t type, uint8_t info, uint8_t log_page)
{
    struct sim_event event = {.type = type & 7, .info = info, .log_page = log_page};
    bool known = false;

    pthread_mutex_lock(&sim->event_lock);
    for (unsigned i = 0; i < sim->nevents; i++)
        known |= !memcmp(&sim->events[i], &event, sizeof(event));
    if (!known && sim->nevents < SIM_EVENTS)
        sim->events[sim->nevents++] = event;
    if (event.type == GPUNVME_AER_TYPE_NOTICE && info == GPUNVME_AER_NOTICE_NS_CHANGED)
        sim->namespaces_changed = true;
    atomic_store(&sim->events_due, true);
    pthread_mutex_unlock(&sim->event_lock);
}

void gpunvme_sim_event(struct gpunvme_sim *sim, uint8_t type, uint8_t info, uint8_t log_page)
{
    sim_event_raise(sim, type, info, log_page);
}

static void end_request(struct sim_thread *t, struct sim_pending *request)
{
    struct sim_pending pending = *request;

    *request = t->sim->aers[--t->sim->naers];
    sim_complete(t, &pending);
}

/* Takes the first event that may be told now, and masks its type; drops those not wanted. */
static bool take_event(struct gpunvme_sim *sim, struct sim_event *event)
{
    bool taken = false;

    pthread_mutex_lock(&sim->event_lock);
    for (unsigned i = 0; !taken && i < sim->nevents;) {
        *event = sim->events[i];
        taken = is_enabled(sim, event) && !sim->event_masked[event->type];
        if (is_enabled(sim, event) && !taken) {
            i++;
            continue;
        }
        sim->nevents--;
        memmove(&sim->events[i], &sim->events[i + 1], (sim->nevents - i) * sizeof(*event));
    }
    if (taken)
        sim->event_masked[event->type] = event->log_page;
    pthread_mutex_unlock(&sim->event_lock);
    return taken;
}

/* On thread 0, under its lock. */
void sim_events_deliver(struct sim_thread *t)
{
    struct gpunvme_sim *sim = t->sim;
    struct sim_event event;

    atomic_store(&sim->events_due, false); /* before the look: what comes later sets it again */
    while (sim->naers && take_event(sim, &event)) {
        sim->aers[0].dw0 =
            (uint32_t)(GPUNVME_SET(event.type, AER_TYPE) | GPUNVME_SET(event.info, AER_INFO) |
                       GPUNVME_SET(event.log_page, AER_LID));
        end_request(t, &sim->aers[0]);
    }
}

/* A log page was read without RAE: the events that named it are cleared. */
void sim_events_read(struct gpunvme_sim *sim, uint8_t log_page)
{
    pthread_mutex_lock(&sim->event_lock);
    for (unsigned type = 0; type < 8; type++)
        if (sim->event_masked[type] == log_page)
            sim->event_masked[type] = 0;
    atomic_store(&sim->events_due, true);
    pthread_mutex_unlock(&sim->event_lock);
}

void sim_events_reset(struct gpunvme_sim *sim)
{
    pthread_mutex_lock(&sim->event_lock);
    sim->nevents = 0;
    memset(sim->event_masked, 0, sizeof(sim->event_masked));
    atomic_store(&sim->events_due, false);
    pthread_mutex_unlock(&sim->event_lock);
}

/* An Asynchronous Event Request: waits, and holds no entry of the completion queue meanwhile. */
void sim_event_request(struct sim_cmd *cmd)
{
    struct gpunvme_sim *sim = cmd->thread->sim;

    if (sim->naers == SIM_AERS) {
        sim_cmd_end(cmd, GPUNVME_SC_AER_LIMIT);
        return;
    }
    sim->aers[sim->naers++] = (struct sim_pending){
        .sq = cmd->sq,
        .cid = cmd->sqe.cid,
        .uncounted = true,
    };
    cmd->sq->inflight--;
    cmd->sq->cq->inflight--;
    sim_cmd_free(cmd);
    atomic_store(&sim->events_due, true);
}

bool sim_event_abort(struct sim_thread *t, uint16_t cid)
{
    for (unsigned i = 0; i < t->sim->naers; i++) {
        if (t->sim->aers[i].cid != cid)
            continue;
        t->sim->aers[i].status = GPUNVME_SC_ABORT_REQUESTED;
        end_request(t, &t->sim->aers[i]);
        return true;
    }
    return false;
}
