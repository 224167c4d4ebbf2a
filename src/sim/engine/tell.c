/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The doorbells in GPU memory, and how what the engine counted and found wrong reaches the
 * controller's report.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpunvme/memory.h"
#include "sim/command.h"
#include "sim/engine/keeper.h"

#define STRAY_NBYTES 65536u /* doorbells that are searched for strays */

static size_t doorbell_at(const struct sim_keeper *k, unsigned index)
{
    return ((size_t)index << k->sim->config.dstrd) * sizeof(uint32_t);
}

uint32_t *keeper_doorbell(const struct sim_keeper *k, unsigned index)
{
    return (uint32_t *)(void *)((uint8_t *)k->doorbells.gpu + doorbell_at(k, index));
}

/* The driver may ring meanwhile: a thread's doorbells are written as whole words. */
gpunvme_err_t keeper_clear_doorbell(const struct sim_keeper *k, unsigned index)
{
    if (!k->doorbells.cpu)
        return gpunvme_mem_fill(keeper_doorbell(k, index), GPUNVME_MEM_GPU, 0, sizeof(uint32_t));
    __atomic_store_n(keeper_doorbell(k, index), 0, __ATOMIC_RELEASE);
    return GPUNVME_OK;
}

gpunvme_err_t keeper_clear_doorbells(const struct sim_keeper *k)
{
    gpunvme_err_t err = GPUNVME_OK;

    if (!k->doorbells.cpu)
        return gpunvme_mem_fill(k->doorbells.gpu, GPUNVME_MEM_GPU, 0, k->doorbells.nbytes);
    for (unsigned i = 0; i < 2 * (k->sim->config.max_queues + 1u); i++)
        if (__atomic_load_n(keeper_doorbell(k, i), __ATOMIC_RELAXED)) /* keep pages untouched */
            err = keeper_clear_doorbell(k, i);
    return err;
}

static bool is_served(const struct sim_keeper *k, unsigned index)
{
    unsigned qid = index / 2;

    if (index % 2)
        return k->cqs[qid];
    for (unsigned i = 0; i < k->nslots; i++)
        if (k->slots[i].sq && k->queues[i].sqid == qid)
            return true;
    return false;
}

static void check_stray(struct sim_keeper *k, unsigned index, uint32_t value)
{
    if (!value || is_served(k, index))
        return;
    keeper_clear_doorbell(k, index);
    sim_violate(k->sim, GPUNVME_SIM_VIOLATION_DOORBELL_REGISTER,
                "the doorbell in GPU memory of %s queue %u, which the engine does not serve, was "
                "written with %u",
                index % 2 ? "completion" : "submission", index / 2, value);
    sim_event_raise(k->sim, GPUNVME_AER_TYPE_ERROR, GPUNVME_AER_ERROR_DOORBELL_REGISTER,
                    GPUNVME_LOG_ERROR);
}

/* Writes to doorbells of no queue; a page that is too large is not searched. */
void keeper_find_strays(struct sim_keeper *k)
{
    unsigned n = 2 * (k->sim->config.max_queues + 1u);
    uint8_t *copy;

    if (doorbell_at(k, n) > STRAY_NBYTES)
        return;
    if (k->doorbells.cpu) {
        for (unsigned i = 0; i < n; i++)
            check_stray(k, i, __atomic_load_n(keeper_doorbell(k, i), __ATOMIC_ACQUIRE));
        return;
    }
    copy = malloc(doorbell_at(k, n));
    if (copy && !gpunvme_mem_copy(copy, GPUNVME_MEM_HOST, k->doorbells.gpu, GPUNVME_MEM_GPU,
                                  doorbell_at(k, n)))
        for (unsigned i = 0; i < n; i++) {
            uint32_t value;

            memcpy(&value, copy + doorbell_at(k, i), sizeof(value));
            check_stray(k, i, value);
        }
    free(copy);
}

/* In the words of the threads, for the same kinds. */
static void word(const struct sim_engine_violation *v, char *text, size_t room)
{
    const char *what = sim_what_text((enum sim_what)v->what);
    unsigned long long value = v->value, other = v->other;

    if (v->what == SIM_WHAT_SQ_TAIL || v->what == SIM_WHAT_CQ_HEAD)
        snprintf(text, room, "queue %u: %s is %llu, which was compared with %llu", v->qid, what,
                 value, other);
    else if (v->kind == GPUNVME_SIM_VIOLATION_CID_IN_USE)
        snprintf(text, room, "queue %u: command id %u (opcode %02xh) is in use", v->qid, v->cid,
                 v->opc);
    else if (v->what == SIM_WHAT_PRP2_UNUSED)
        snprintf(text, room, "queue %u, command id %u: PRP2 is %llxh for data in one page", v->qid,
                 v->cid, value);
    else if (v->kind == GPUNVME_SIM_VIOLATION_RESERVED_BITS)
        snprintf(text, room,
                 "queue %u, command id %u, opcode %02xh: reserved bits %llxh of %s are set", v->qid,
                 v->cid, v->opc, value, what);
    else if (v->kind == GPUNVME_SIM_VIOLATION_SGL_INVALID)
        snprintf(text, room, "queue %u, command id %u: %s", v->qid, v->cid, what);
    else
        snprintf(text, room, "queue %u, command id %u: %s is %llxh", v->qid, v->cid, what, value);
}

static void tell_first(struct sim_keeper *k)
{
    const struct sim_engine_violation *first = &k->host->first;
    char text[256];

    if (!__atomic_load_n(&first->there, __ATOMIC_ACQUIRE) || first->kind >= GPUNVME_SIM_NVIOLATIONS)
        return;
    word(first, text, sizeof(text));
    sim_violate_more(k->sim, (enum gpunvme_sim_violation)first->kind, 0, "%s", text);
}

static void absorb_violations(struct sim_keeper *k, const struct sim_engine_counters *now,
                              const struct sim_engine_counters *before)
{
    for (unsigned i = 0; i < GPUNVME_SIM_NVIOLATIONS; i++) {
        uint64_t n = now->violations[i] - before->violations[i];

        if (!n)
            continue;
        tell_first(k);
        sim_violate_more(k->sim, (enum gpunvme_sim_violation)i, n, "%s, told by the engine",
                         gpunvme_sim_violation_text((enum gpunvme_sim_violation)i));
        if (i == GPUNVME_SIM_VIOLATION_DOORBELL_VALUE || i == GPUNVME_SIM_VIOLATION_SQ_OVERFLOW ||
            i == GPUNVME_SIM_VIOLATION_CQ_OVERRUN)
            sim_event_raise(k->sim, GPUNVME_AER_TYPE_ERROR, GPUNVME_AER_ERROR_DOORBELL_VALUE,
                            GPUNVME_LOG_ERROR);
    }
}

void keeper_absorb(struct sim_keeper *k, struct keeper_slot *slot,
                   const struct sim_engine_queue *queue)
{
    const struct sim_engine_counters *now = &queue->counters, *before = &slot->absorbed;

    sim_count(&k->totals.io_commands, now->commands - before->commands);
    sim_count(&k->totals.bytes_read, now->bytes_read - before->bytes_read);
    sim_count(&k->totals.bytes_written, now->bytes_written - before->bytes_written);
    sim_count(&k->totals.host_reads, now->host_reads - before->host_reads);
    sim_count(&k->totals.host_writes, now->host_writes - before->host_writes);
    sim_count(&k->totals.errors, now->errors - before->errors);
    sim_count(&k->totals.media_errors, now->media_errors - before->media_errors);
    sim_count(&k->totals.faults, now->faults - before->faults);
    sim_count(&k->totals.doorbell_writes, now->doorbell_writes - before->doorbell_writes);
    absorb_violations(k, now, before);
    slot->absorbed = *now;
}
