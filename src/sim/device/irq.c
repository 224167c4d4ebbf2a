/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Interrupts: a completion posted to a queue that has them is told to whoever asked by
 * gpunvme_sim_set_irq(). What carries them (pin, MSI-X) is that one's affair.
 *
 * A queue with news is put into its thread's list, under the thread's lock; the thread tells of
 * the whole list when its pass is through and no lock is held but irq_lock, a leaf, which keeps
 * the callback in place meanwhile.
 *
 * Source: NVM Express Base 1.4, sections 3.1.3, 3.1.4 (INTMS, INTMC), 5.3 and 7.5.
 */
#include "sim/sim_internal.h"

/* Under the thread's lock. */
void sim_irq_post(struct sim_cq *cq)
{
    struct sim_thread *t = cq->thread;

    if (cq->irq_due)
        return;
    cq->irq_due = true;
    cq->irq_next = t->irqs;
    t->irqs = cq;
}

/* Under all thread locks: a queue that goes away tells nothing any more. */
void sim_irq_forget(struct sim_cq *cq)
{
    struct sim_cq **link = &cq->thread->irqs;

    while (*link && *link != cq)
        link = &(*link)->irq_next;
    if (*link)
        *link = cq->irq_next;
}

static bool is_masked(const struct gpunvme_sim *sim, uint16_t vector)
{
    return vector < 32 && sim->intm & 1u << vector;
}

/* Under the thread's lock: takes vectors out of the list; those that are masked are forgotten. */
unsigned sim_irq_collect(struct sim_thread *t, uint16_t vectors[SIM_IRQS])
{
    unsigned n = 0;

    while (t->irqs && n < SIM_IRQS) {
        struct sim_cq *cq = t->irqs;

        t->irqs = cq->irq_next;
        cq->irq_due = false;
        if (!is_masked(t->sim, cq->vector))
            vectors[n++] = cq->vector;
    }
    return n;
}

/* Without any lock. */
void sim_irq_tell(struct gpunvme_sim *sim, const uint16_t *vectors, unsigned n)
{
    pthread_mutex_lock(&sim->irq_lock);
    for (unsigned i = 0; i < n && sim->irq; i++)
        sim->irq(sim->irq_arg, vectors[i]);
    pthread_mutex_unlock(&sim->irq_lock);
}

void gpunvme_sim_set_irq(struct gpunvme_sim *sim, void (*irq)(void *arg, uint16_t vector),
                         void *arg)
{
    pthread_mutex_lock(&sim->irq_lock);
    sim->irq = irq;
    sim->irq_arg = arg;
    pthread_mutex_unlock(&sim->irq_lock);
}

void gpunvme_sim_irq_again(struct gpunvme_sim *sim)
{
    sim_pause_all(sim);
    for (unsigned qid = 0; qid <= sim->config.max_queues; qid++) {
        struct sim_cq *cq = sim->cqs[qid];

        if (!cq || !cq->irq)
            continue;
        sim_cq_poll(cq->thread, cq);
        if (sim_cq_used(cq))
            sim_irq_post(cq);
    }
    sim_resume_all(sim);
}
