/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Doorbells: how the controller notices writes to memory, what values it accepts, and shadow
 * doorbells. Knows queues, not commands.
 *
 * Source: NVM Express Base 1.4, sections 3.1 (doorbells), 4.1 (queues), 5.7 and 7.13 (shadows).
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/fail.h"
#include "sim/sim_internal.h"

#define AWAKE_NS 20000u /* how long a shadow is polled after its last change */

static volatile uint32_t *doorbell_reg(struct gpunvme_sim *sim, unsigned index)
{
    return &sim->doorbells[(size_t)index << sim->config.dstrd];
}

static void attach_shadow(struct gpunvme_sim *sim, struct sim_doorbell *doorbell, unsigned index)
{
    size_t at = (size_t)index << sim->config.dstrd;

    /* The admin queue has no shadow, nor has what lies behind the page. */
    if (!sim->shadow || doorbell->no_shadow || index < 2 || at * 4 >= sim->page)
        return;
    doorbell->shadow = sim->shadow + at;
    doorbell->eventidx = sim->eventidx + at;
    __atomic_store_n(doorbell->eventidx, doorbell->seen, __ATOMIC_SEQ_CST);
    __atomic_store_n(doorbell->reg, SIM_DOORBELL_IDLE, __ATOMIC_RELEASE);
}

/* `index` is 2 × queue id, + 1 for a completion queue. Under all thread locks. */
void sim_doorbell_init(struct gpunvme_sim *sim, struct sim_doorbell *doorbell, unsigned index)
{
    *doorbell = (struct sim_doorbell){.reg = doorbell_reg(sim, index)};
    __atomic_store_n(doorbell->reg, 0, __ATOMIC_RELEASE);
    attach_shadow(sim, doorbell, index);
}

void sim_shadow_attach(struct gpunvme_sim *sim)
{
    for (unsigned qid = 1; qid <= sim->config.max_queues; qid++) {
        if (sim->sqs[qid])
            attach_shadow(sim, &sim->sqs[qid]->doorbell, 2 * qid);
        if (sim->cqs[qid])
            attach_shadow(sim, &sim->cqs[qid]->doorbell, 2 * qid + 1);
    }
}

static void detach_shadow(struct sim_doorbell *doorbell)
{
    if (!doorbell->shadow)
        return;
    doorbell->shadow = doorbell->eventidx = NULL;
    __atomic_store_n(doorbell->reg, doorbell->seen, __ATOMIC_RELEASE);
}

void sim_doorbell_unshadow(struct sim_doorbell *doorbell)
{
    detach_shadow(doorbell);
    doorbell->no_shadow = true;
}

void sim_shadow_forget(struct gpunvme_sim *sim)
{
    sim->shadow = sim->eventidx = NULL;
    for (unsigned qid = 1; qid <= sim->config.max_queues; qid++) {
        if (sim->sqs[qid])
            detach_shadow(&sim->sqs[qid]->doorbell);
        if (sim->cqs[qid])
            detach_shadow(&sim->cqs[qid]->doorbell);
    }
}

/* Takes a write of the real doorbell away, so that the next one shows whatever its value. */
static bool take_ring(struct sim_thread *t, struct sim_doorbell *doorbell)
{
    if (__atomic_load_n(doorbell->reg, __ATOMIC_RELAXED) == SIM_DOORBELL_IDLE)
        return false;
    __atomic_exchange_n(doorbell->reg, SIM_DOORBELL_IDLE, __ATOMIC_ACQ_REL);
    sim_count(&t->counters.doorbell_writes, 1);
    return true;
}

static bool shadow_changed(struct sim_doorbell *doorbell)
{
    uint32_t value = __atomic_load_n(doorbell->shadow, __ATOMIC_SEQ_CST);

    if (value == doorbell->seen)
        return false;
    doorbell->seen = value;
    doorbell->quiet_ns = 0;
    return true;
}

/*
 * A submission queue with a shadow: while awake the shadow is polled. Before the controller goes
 * back to waiting for the real doorbell it says so by the event index and looks once more: the
 * driver stores its shadow and then loads the event index, so one of the two sees the other's
 * store (both are sequentially consistent).
 */
static bool shadow_poll(struct sim_thread *t, struct sim_doorbell *doorbell)
{
    uint64_t now_ns;

    if (take_ring(t, doorbell)) {
        doorbell->awake = true;
        doorbell->quiet_ns = 0;
    }
    if (!doorbell->awake)
        return false;
    if (shadow_changed(doorbell))
        return true;
    now_ns = sim_now_ns();
    if (!doorbell->quiet_ns)
        doorbell->quiet_ns = now_ns;
    if (now_ns - doorbell->quiet_ns < AWAKE_NS)
        return false;
    __atomic_store_n(doorbell->eventidx, doorbell->seen, __ATOMIC_SEQ_CST);
    if (shadow_changed(doorbell))
        return true;
    doorbell->awake = false;
    return false;
}

/* True when the doorbell has a new value, which is then in doorbell->seen. */
static bool doorbell_poll(struct sim_thread *t, struct sim_doorbell *doorbell)
{
    uint32_t value;

    if (doorbell->shadow)
        return shadow_poll(t, doorbell);
    value = __atomic_load_n(doorbell->reg, __ATOMIC_ACQUIRE);
    if (value == doorbell->seen)
        return false;
    doorbell->seen = value;
    sim_count(&t->counters.doorbell_writes, 1);
    return true;
}

static void report_value(struct gpunvme_sim *sim, uint16_t qid)
{
    sim_log_error(sim, &(struct gpunvme_error_log_entry){
                           .sqid = qid,
                           .cid = GPUNVME_ERROR_LOG_NONE,
                           .status = GPUNVME_SC_INVALID_FIELD << 1,
                           .param_error_location = GPUNVME_ERROR_LOG_NONE,
                       });
    sim_event_raise(sim, GPUNVME_AER_TYPE_ERROR, GPUNVME_AER_ERROR_DOORBELL_VALUE,
                    GPUNVME_LOG_ERROR);
}

static uint32_t distance(uint32_t from, uint32_t to, uint32_t size)
{
    return to >= from ? to - from : to + size - from;
}

/*
 * Looks for new entries; a value that can't be is refused. The driver learns of free entries by
 * the heads in completions only, so what counts is the head told last.
 */
bool sim_sq_poll(struct sim_thread *t, struct sim_sq *sq)
{
    bool shadow = sq->doorbell.shadow != NULL;
    uint32_t value, used, added;

    if (!doorbell_poll(t, &sq->doorbell))
        return false;
    value = sq->doorbell.seen;
    if (value >= sq->size) {
        sim_violate(
            t->sim, shadow ? GPUNVME_SIM_VIOLATION_SHADOW : GPUNVME_SIM_VIOLATION_DOORBELL_VALUE,
            "submission queue %u: tail %u of a queue of %u entries", sq->qid, value, sq->size);
        report_value(t->sim, sq->qid);
        return false;
    }
    used = distance(sq->reported, sq->tail, sq->size);
    added = distance(sq->tail, value, sq->size);
    if (used + added > sq->size - 1) {
        sim_violate(t->sim, GPUNVME_SIM_VIOLATION_SQ_OVERFLOW,
                    "submission queue %u: tail from %u to %u passes the head %u", sq->qid, sq->tail,
                    value, sq->reported);
        report_value(t->sim, sq->qid);
        return false;
    }
    sq->tail = value;
    return true;
}

/* The head of a completion queue. Its shadow is always polled: the event index only helps. */
static bool cq_changed(struct sim_thread *t, struct sim_cq *cq)
{
    bool changed;

    if (!cq->doorbell.shadow)
        return doorbell_poll(t, &cq->doorbell);
    take_ring(t, &cq->doorbell);
    changed = shadow_changed(&cq->doorbell);
    if (!changed && !sim_cq_room(cq))
        __atomic_store_n(cq->doorbell.eventidx, cq->doorbell.seen, __ATOMIC_SEQ_CST);
    return changed;
}

void sim_cq_poll(struct sim_thread *t, struct sim_cq *cq)
{
    bool shadow = cq->doorbell.shadow != NULL;
    uint32_t value;

    if (!cq_changed(t, cq))
        return;
    value = cq->doorbell.seen;
    if (value < cq->size && distance(cq->head, value, cq->size) <= sim_cq_used(cq)) {
        cq->head = value;
        return;
    }
    sim_violate(t->sim,
                shadow              ? GPUNVME_SIM_VIOLATION_SHADOW
                : value >= cq->size ? GPUNVME_SIM_VIOLATION_DOORBELL_VALUE
                                    : GPUNVME_SIM_VIOLATION_CQ_OVERRUN,
                "completion queue %u of %u entries: head from %u to %u, tail is %u", cq->qid,
                cq->size, cq->head, value, cq->tail);
    report_value(t->sim, cq->qid);
}

/* The engine's queues have their doorbells in GPU memory, and none here. */
static void check_stray(struct gpunvme_sim *sim, unsigned index, bool engine)
{
    volatile uint32_t *reg = doorbell_reg(sim, index);
    uint32_t value = __atomic_load_n(reg, __ATOMIC_ACQUIRE);

    if (!value)
        return;
    __atomic_store_n(reg, 0, __ATOMIC_RELEASE);
    sim_violate(sim, GPUNVME_SIM_VIOLATION_DOORBELL_REGISTER,
                "the doorbell of %s queue %u, which %s, was written with %u",
                index % 2 ? "completion" : "submission", index / 2,
                engine ? "has it in GPU memory" : "does not exist", value);
    sim_event_raise(sim, GPUNVME_AER_TYPE_ERROR, GPUNVME_AER_ERROR_DOORBELL_REGISTER,
                    GPUNVME_LOG_ERROR);
}

/* Looks for writes to doorbells of no queue, at some of them at a time. On thread 0. */
void sim_doorbell_scan(struct gpunvme_sim *sim)
{
    for (unsigned i = 0; i < 64; i++) {
        unsigned qid = sim->doorbell_scan;

        const struct sim_sq *sq = sim->sqs[qid];
        const struct sim_cq *cq = sim->cqs[qid];

        if (!sq || sq->engine)
            check_stray(sim, 2 * qid, sq);
        if (!cq || cq->engine)
            check_stray(sim, 2 * qid + 1, cq);
        sim->doorbell_scan = qid == sim->config.max_queues ? 0 : qid + 1;
        if (!sim->doorbell_scan)
            break;
    }
}

void sim_doorbell_wipe(struct gpunvme_sim *sim)
{
    for (unsigned index = 0; index < 2 * (sim->config.max_queues + 1u); index++)
        if (__atomic_load_n(doorbell_reg(sim, index), __ATOMIC_RELAXED)) /* keep pages untouched */
            __atomic_store_n(doorbell_reg(sim, index), 0, __ATOMIC_RELEASE);
}

/* The file may not change its size any more: who has its pages mapped must find them there. */
static int make_file(size_t nbytes)
{
    int fd = memfd_create("gpunvme-doorbells", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (fd >= 0 && (ftruncate(fd, (off_t)nbytes) ||
                    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))) {
        int error = errno;

        close(fd);
        errno = error;
        return -1;
    }
    return fd;
}

gpunvme_err_t sim_doorbells_share(struct gpunvme_sim *sim, int *fd)
{
    void *at = (void *)(uintptr_t)sim->doorbells, *mapped;
    int file = -1;

    if (fd) {
        file = make_file(GPUNVME_REG_DOORBELLS + sim->doorbells_nbytes);
        if (file < 0)
            return base_fail_errno(errno, "doorbells to share");
    }
    sim_pause_all(sim);
    mapped = mmap(at, sim->doorbells_nbytes, PROT_READ | PROT_WRITE,
                  MAP_FIXED | MAP_NORESERVE | (fd ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS), file,
                  fd ? GPUNVME_REG_DOORBELLS : 0);
    sim_resume_all(sim);
    if (mapped == MAP_FAILED) {
        gpunvme_err_t err = base_fail_errno(errno, "doorbells to share");

        if (file >= 0)
            close(file);
        return err;
    }
    if (fd)
        *fd = file;
    return GPUNVME_OK;
}
