/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The end of commands: completions that are due later, held back, lost or aborted.
 */
#include "sim/sim_internal.h"

#define RETRY_NS     20000u    /* a full completion queue is tried again after this */
#define HELD_MOST_NS 10000000u /* a shuffle goes on without those that do not come */

struct sim_cmd *sim_cmd_alloc(struct sim_thread *t)
{
    struct sim_cmd *cmd = t->free;

    t->free = cmd->next;
    cmd->ns = NULL;
    cmd->next = NULL;
    cmd->due_ns = 0;
    cmd->dw0 = 0;
    cmd->shuffle = 0;
    cmd->lose = cmd->keep_cid = false;
    cmd->step = NULL;
    cmd->io_err = GPUNVME_OK;
    cmd->index = 0;
    return cmd;
}

void sim_cmd_free(struct sim_cmd *cmd)
{
    struct sim_thread *t = cmd->thread;

    if (cmd->stage)
        t->stages_free |= 1u << (cmd->stage - t->stages) / SIM_STAGE_BYTES;
    cmd->stage = NULL;
    cmd->next = t->free;
    t->free = cmd;
}

/* Commands that fail by themselves are logged; those that the driver aborts are not. */
static void log_error(const struct sim_cmd *cmd, uint16_t status)
{
    const struct gpunvme_sqe *sqe = &cmd->sqe;
    struct gpunvme_error_log_entry entry = {
        .sqid = cmd->sq->qid,
        .cid = sqe->cid,
        .status = (uint16_t)(status << 1),
        .param_error_location = GPUNVME_ERROR_LOG_NONE,
        .nsid = sqe->nsid,
    };

    sim_count(&cmd->thread->counters.errors, 1);
    if (GPUNVME_STATUS_SCT(status) == GPUNVME_SCT_MEDIA &&
        GPUNVME_STATUS_CODE(status) != GPUNVME_SC_COMPARE_FAILURE)
        sim_count(&cmd->thread->counters.media_errors, 1);
    if (cmd->sq->qid && sqe->opc != GPUNVME_CMD_FLUSH && sqe->opc != GPUNVME_CMD_DSM)
        entry.lba = sqe->cdw10 | (uint64_t)sqe->cdw11 << 32;
    sim_log_error(cmd->thread->sim, &entry);
}

static void hold(struct sim_thread *t, const struct sim_pending *pending, uint32_t target)
{
    if (t->nheld == SIM_HELD) {
        struct sim_pending copy = *pending;

        sim_complete(t, &copy);
        return;
    }
    t->held[t->nheld++] = *pending;
    t->held_target = target < SIM_HELD ? target : SIM_HELD;
    t->held_ns = sim_now_ns();
}

/* Ends a command and frees it. */
void sim_cmd_end(struct sim_cmd *cmd, uint16_t status)
{
    struct sim_thread *t = cmd->thread;
    struct sim_pending pending = {
        .due_ns = cmd->due_ns,
        .sq = cmd->sq,
        .dw0 = cmd->dw0,
        .cid = cmd->sqe.cid,
        .status = status,
        .keep_cid = cmd->keep_cid,
    };
    uint32_t shuffle = cmd->shuffle;
    bool lose = cmd->lose;

    if (status)
        log_error(cmd, status);
    sim_cmd_free(cmd);
    if (lose) { /* its id stays in use: the driver may not take it as done */
        pending.sq->inflight--;
        pending.sq->cq->inflight--;
    } else if (shuffle) {
        hold(t, &pending, shuffle);
    } else {
        sim_complete(t, &pending);
    }
}

static bool before(const struct sim_pending *a, const struct sim_pending *b)
{
    if (a->due_ns != b->due_ns)
        return a->due_ns < b->due_ns;
    return (int32_t)(a->order - b->order) < 0;
}

static void heap_sift_up(struct sim_thread *t, unsigned at, const struct sim_pending *pending)
{
    while (at && before(pending, &t->heap[(at - 1) / 2])) {
        t->heap[at] = t->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    t->heap[at] = *pending;
}

static void heap_sift_down(struct sim_thread *t, unsigned at, const struct sim_pending *pending)
{
    for (;;) {
        unsigned child = 2 * at + 1;

        if (child >= t->nheap)
            break;
        if (child + 1 < t->nheap && before(&t->heap[child + 1], &t->heap[child]))
            child++;
        if (!before(&t->heap[child], pending))
            break;
        t->heap[at] = t->heap[child];
        at = child;
    }
    t->heap[at] = *pending;
}

static void heap_push(struct sim_thread *t, struct sim_pending *pending)
{
    if (t->nheap >= t->heap_room) {
        sim_fail(t->sim); /* more in flight than there are entries: can't be */
        return;
    }
    pending->order = t->order++;
    heap_sift_up(t, t->nheap++, pending);
}

static struct sim_pending heap_remove(struct sim_thread *t, unsigned at)
{
    struct sim_pending removed = t->heap[at], last = t->heap[--t->nheap];

    if (at == t->nheap)
        return removed;
    if (at && before(&last, &t->heap[(at - 1) / 2]))
        heap_sift_up(t, at, &last);
    else
        heap_sift_down(t, at, &last);
    return removed;
}

static void free_cid(struct sim_thread *t, const struct sim_pending *pending)
{
    struct sim_sq *sq = pending->sq;

    if (pending->keep_cid)
        return;
    if (sq == t->batch_sq && t->nbatch < sizeof(t->batch_cids) / sizeof(t->batch_cids[0]))
        t->batch_cids[t->nbatch++] = pending->cid;
    else
        sq->cids[pending->cid / 64] &= ~(1ull << pending->cid % 64);
}

/* Posts now; later when the queue is full. */
static void post(struct sim_thread *t, struct sim_pending *pending)
{
    if (!sim_post(t, pending)) {
        pending->due_ns = sim_now_ns() + RETRY_NS;
        heap_push(t, pending);
        return;
    }
    if (!pending->uncounted) {
        pending->sq->inflight--;
        pending->sq->cq->inflight--;
    }
    free_cid(t, pending);
}

void sim_complete(struct sim_thread *t, struct sim_pending *pending)
{
    if (pending->due_ns)
        heap_push(t, pending);
    else
        post(t, pending);
}

static void release_held(struct sim_thread *t)
{
    while (t->nheld) {
        unsigned at = (unsigned)(sim_random(t) % t->nheld);
        struct sim_pending pending = t->held[at];

        t->held[at] = t->held[--t->nheld];
        sim_complete(t, &pending);
    }
}

bool sim_complete_due(struct sim_thread *t, uint64_t now_ns)
{
    bool any = false;

    if (t->nheld && (t->nheld >= t->held_target || now_ns - t->held_ns > HELD_MOST_NS)) {
        release_held(t);
        any = true;
    }
    while (t->nheap && t->heap[0].due_ns <= now_ns) {
        struct sim_pending pending = heap_remove(t, 0);

        post(t, &pending);
        any = true;
    }
    return any;
}

uint64_t sim_complete_next_ns(const struct sim_thread *t)
{
    return t->nheap ? t->heap[0].due_ns : UINT64_MAX;
}

void sim_complete_forget(struct sim_thread *t)
{
    t->nheap = t->nheld = 0;
    while (t->waiting) {
        struct sim_cmd *cmd = t->waiting;

        t->waiting = cmd->next;
        sim_cmd_free(cmd);
    }
    t->waiting_tail = &t->waiting;
}

/* Ends a completion that waited. It has its entry reserved, so there is room for it. */
static void abort_pending(struct sim_thread *t, struct sim_pending pending, uint16_t status)
{
    pending.status = status;
    pending.dw0 = 0;
    sim_count(&t->counters.errors, 1);
    if (!sim_post(t, &pending))
        sim_fail(t->sim);
    if (!pending.uncounted) {
        pending.sq->inflight--;
        pending.sq->cq->inflight--;
    }
    free_cid(t, &pending);
}

static bool is_it(const struct sim_pending *pending, const struct sim_sq *sq, uint16_t cid)
{
    return pending->sq == sq && pending->cid == cid && !pending->keep_cid;
}

/* Aborts one command that is held here; false when it is not. Under t's lock. */
bool sim_complete_abort(struct sim_thread *t, struct sim_sq *sq, uint16_t cid)
{
    for (unsigned i = 0; i < t->nheap; i++) {
        if (is_it(&t->heap[i], sq, cid)) {
            abort_pending(t, heap_remove(t, i), GPUNVME_SC_ABORT_REQUESTED);
            return true;
        }
    }
    for (unsigned i = 0; i < t->nheld; i++) {
        if (is_it(&t->held[i], sq, cid)) {
            struct sim_pending pending = t->held[i];

            t->held[i] = t->held[--t->nheld];
            abort_pending(t, pending, GPUNVME_SC_ABORT_REQUESTED);
            return true;
        }
    }
    return false;
}

/* Aborts those of a list that are of the queue; returns how many are left. */
static unsigned abort_those_of(struct sim_thread *t, struct sim_pending *list, unsigned n,
                               const struct sim_sq *sq, uint16_t status)
{
    unsigned kept = 0;

    for (unsigned i = 0; i < n; i++) {
        if (list[i].sq == sq)
            abort_pending(t, list[i], status);
        else
            list[kept++] = list[i];
    }
    return kept;
}

/* Aborts whatever is held of a queue. Under t's lock. */
void sim_complete_abort_all(struct sim_thread *t, struct sim_sq *sq, uint16_t status)
{
    t->nheld = abort_those_of(t, t->held, t->nheld, sq, status);
    t->nheap = abort_those_of(t, t->heap, t->nheap, sq, status);
    for (unsigned i = t->nheap / 2; i-- > 0;) {
        struct sim_pending pending = t->heap[i];

        heap_sift_down(t, i, &pending);
    }
}
