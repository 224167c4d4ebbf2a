/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The controller's threads: what one pass does, how they rest when there is nothing to do, and
 * how others make them stand still.
 */
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include "base/fail.h"
#include "base/relax.h"
#include "sim/engine/host.h"
#include "sim/sim_internal.h"

#define SPIN_NS         30000u /* how long to look for work before sleeping */
#define SLEEP_FIRST_NS  5000u
#define SLEEP_MOST_NS   100000u
#define IDLE_NS         100000000u /* without work for so long: */
#define SLEEP_IDLE_NS   1000000u
#define SLEEP_ACTIVE_NS 10000u /* while a store works */
#define WAKE_EARLY_NS   20000u /* before a completion is due, as timers are late */
#define HOUSEKEEPING    256u   /* passes between looks at what is rare */
#define YIELD           1024u  /* passes of a thread that never sleeps between its yields */

void sim_lock(struct sim_thread *t)
{
    atomic_fetch_add(&t->wanted, 1);
    pthread_mutex_lock(&t->lock);
    atomic_fetch_sub(&t->wanted, 1);
}

void sim_unlock(struct sim_thread *t)
{
    pthread_mutex_unlock(&t->lock);
}

void sim_pause_all(struct gpunvme_sim *sim)
{
    for (unsigned i = 0; i < sim->nthreads; i++)
        sim_lock(&sim->threads[i]);
}

void sim_resume_all(struct gpunvme_sim *sim)
{
    for (unsigned i = sim->nthreads; i-- > 0;)
        sim_unlock(&sim->threads[i]);
}

uint64_t sim_random(struct sim_thread *t)
{
    t->random ^= t->random << 13;
    t->random ^= t->random >> 7;
    t->random ^= t->random << 17;
    return t->random;
}

void sim_run_ended(struct sim_thread *t)
{
    while (t->ended) {
        struct sim_cmd *cmd = t->ended;

        t->ended = cmd->next;
        if (!t->ended)
            t->ended_tail = &t->ended;
        t->nactive--;
        cmd->sq->active--;
        if (atomic_load(&t->sim->halt) & ~(uint32_t)SIM_HALT_SHUTDOWN)
            sim_cmd_free(cmd);
        else
            cmd->step(cmd);
    }
}

/* Ends what the stores are done with; true if there was any. */
static bool poll_stores(struct sim_thread *t)
{
    bool any;

    if (!t->nactive)
        return false;
    for (uint32_t i = 0; i < t->sim->nns; i++)
        sim_store_poll(t->sim->ns[i].store, t->index);
    any = t->ended != NULL;
    sim_run_ended(t);
    return any;
}

/* Fetches from each queue in turn, beginning with another one each time. */
static bool serve_queues(struct sim_thread *t)
{
    bool any = false;

    if (++t->next_sq >= t->nsqs)
        t->next_sq = 0;
    /* An admin command may change the table under the loop. */
    for (unsigned i = 0, at = t->next_sq; i < t->nsqs; i++, at++) {
        if (at >= t->nsqs)
            at = 0;
        any |= sim_fetch(t, t->sqs[at]);
    }
    return any;
}

static bool pass(struct sim_thread *t)
{
    struct gpunvme_sim *sim = t->sim;
    uint32_t halt = atomic_load(&sim->halt);
    bool busy = poll_stores(t);

    if (halt & ~(uint32_t)SIM_HALT_SHUTDOWN)
        return busy;
    if (t->waiting)
        sim_io_retry_waiting(t);
    if (t->nheap || t->nheld)
        busy |= sim_complete_due(t, sim_now_ns());
    if (t->index == 0 && atomic_load_explicit(&sim->events_due, memory_order_acquire))
        sim_events_deliver(t);
    if (!halt)
        busy |= serve_queues(t);
    sim_run_ended(t);
    return busy;
}

/* What need not be seen at once: thread 0, under its lock. */
static void housekeep(struct sim_thread *t)
{
    struct gpunvme_sim *sim = t->sim;
    uint64_t limit_ns = sim->features.kato_ms * 1000000ull;

    if (GPUNVME_GET(atomic_load(&sim->csts), CSTS_RDY) && !atomic_load(&sim->halt))
        sim_doorbell_scan(sim);
    if (!sim->keep_alive_ns || !limit_ns || sim_now_ns() - sim->keep_alive_ns < limit_ns)
        return;
    sim->keep_alive_ns = 0;
    sim_log_error(sim, &(struct gpunvme_error_log_entry){
                           .sqid = GPUNVME_ERROR_LOG_NONE,
                           .cid = GPUNVME_ERROR_LOG_NONE,
                           .status = GPUNVME_SC_KEEP_ALIVE_EXPIRED << 1,
                           .param_error_location = GPUNVME_ERROR_LOG_NONE,
                       });
    sim_fail(sim);
}

/*
 * Rests a little: spins at first, then sleeps longer and longer, but not over next_ns, when a
 * completion is due.
 */
static void rest(struct sim_thread *t, uint64_t next_ns, bool active)
{
    uint64_t now_ns = sim_now_ns(), most_ns = active ? SLEEP_ACTIVE_NS : SLEEP_MOST_NS;
    uint64_t sleep_ns;

    if (!t->idle_ns) {
        t->idle_ns = now_ns;
        t->sleep_ns = SLEEP_FIRST_NS;
    }
    if (now_ns - t->idle_ns < SPIN_NS) {
        base_relax();
        return;
    }
    if (next_ns < now_ns + WAKE_EARLY_NS) {
        base_relax();
        return;
    }
    if (!active && now_ns - t->idle_ns > IDLE_NS)
        most_ns = SLEEP_IDLE_NS;
    sleep_ns = t->sleep_ns < most_ns ? t->sleep_ns : most_ns;
    if (next_ns - WAKE_EARLY_NS - now_ns < sleep_ns)
        sleep_ns = next_ns - WAKE_EARLY_NS - now_ns;
    sim_pause_ns(sleep_ns);
    if (t->sleep_ns < most_ns)
        t->sleep_ns *= 2;
}

static void *thread_main(void *t_)
{
    struct sim_thread *t = t_;
    struct gpunvme_sim *sim = t->sim;

    prctl(PR_SET_TIMERSLACK, 1000ul, 0ul, 0ul, 0ul);
    while (!atomic_load(&sim->stop)) {
        uint16_t vectors[SIM_IRQS];
        bool busy, active;
        unsigned nvectors;
        uint64_t next_ns;

        while (atomic_load(&t->wanted))
            sim_pause_ns(1000);
        pthread_mutex_lock(&t->lock);
        busy = pass(t);
        t->passes++;
        if (t->index == 0 && (t->sleep_ns >= SLEEP_MOST_NS || t->passes % HOUSEKEEPING == 0))
            housekeep(t);
        if (busy)
            t->idle_ns = t->sleep_ns = 0;
        active = t->nactive != 0;
        next_ns = sim_complete_next_ns(t);
        nvectors = t->irqs ? sim_irq_collect(t, vectors) : 0;
        pthread_mutex_unlock(&t->lock);
        if (nvectors)
            sim_irq_tell(sim, vectors, nvectors);
        if (t->index == 0)
            busy |= sim_control_step(sim);
        if (!busy && !sim->config.spin)
            rest(t, next_ns, active);
        else if (!busy && t->passes % YIELD == 0)
            sched_yield(); /* where there are fewer cores than spinning threads */
    }
    return NULL;
}

bool sim_quiesce(struct gpunvme_sim *sim, struct sim_thread *self)
{
    uint64_t end_ns = sim_now_ns() + SIM_FUSE_NS;

    if (!sim_keeper_quiesce(sim))
        return false;
    for (unsigned i = 0; i < sim->nthreads; i++) {
        struct sim_thread *t = &sim->threads[i];

        for (;;) {
            unsigned nactive;

            sim_lock(t);
            if (t == self)
                poll_stores(t);
            nactive = t->nactive;
            sim_unlock(t);
            if (!nactive)
                break;
            if (sim_now_ns() > end_ns)
                return false;
            sim_pause_ns(SLEEP_ACTIVE_NS);
        }
    }
    return true;
}

static gpunvme_err_t thread_init(struct gpunvme_sim *sim, struct sim_thread *t, unsigned index)
{
    size_t nqueues = (size_t)sim->config.max_queues + 1;

    t->sim = sim;
    t->index = index;
    t->random = sim->config.seed * 0x9e3779b97f4a7c15ull + index + 1;
    t->ended_tail = &t->ended;
    t->waiting_tail = &t->waiting;
    t->stages_free = (1u << SIM_STAGES) - 1;
    pthread_mutex_init(&t->lock, NULL);
    t->sqs = calloc(nqueues, sizeof(*t->sqs));
    t->commands = calloc(SIM_COMMANDS, sizeof(*t->commands));
    t->held = calloc(SIM_HELD, sizeof(*t->held));
    t->stages = mmap(NULL, SIM_STAGES * (size_t)SIM_STAGE_BYTES, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (t->stages == MAP_FAILED)
        t->stages = NULL;
    if (!t->sqs || !t->commands || !t->held || !t->stages)
        return base_fail(GPUNVME_ERR_NOMEM, "a controller thread");
    for (unsigned i = 0; i < SIM_COMMANDS; i++) {
        t->commands[i].thread = t;
        sim_cmd_free(&t->commands[i]);
    }
    return GPUNVME_OK;
}

gpunvme_err_t sim_threads_create(struct gpunvme_sim *sim)
{
    sim->threads = calloc(sim->nthreads, sizeof(*sim->threads));
    if (!sim->threads)
        return base_fail(GPUNVME_ERR_NOMEM, "%u controller threads", sim->nthreads);
    for (unsigned i = 0; i < sim->nthreads; i++) {
        gpunvme_err_t err = thread_init(sim, &sim->threads[i], i);

        if (err)
            return err;
    }
    for (unsigned i = 0; i < sim->nthreads; i++) {
        struct sim_thread *t = &sim->threads[i];
        int error = pthread_create(&t->pthread, NULL, thread_main, t);

        if (error)
            return base_fail_errno(error, "a controller thread");
        t->started = true;
    }
    return GPUNVME_OK;
}

void sim_threads_destroy(struct gpunvme_sim *sim)
{
    if (!sim->threads)
        return;
    atomic_fetch_or(&sim->halt, SIM_HALT_RESET);
    if (sim->threads[sim->nthreads - 1].started)
        sim_quiesce(sim, NULL);
    atomic_store(&sim->stop, true);
    for (unsigned i = 0; i < sim->nthreads; i++)
        if (sim->threads[i].started)
            pthread_join(sim->threads[i].pthread, NULL);
    sim_queues_wipe(sim);
    for (unsigned i = 0; i < sim->nthreads; i++) {
        struct sim_thread *t = &sim->threads[i];

        if (t->stages)
            munmap(t->stages, SIM_STAGES * (size_t)SIM_STAGE_BYTES);
        if (t->sim)
            pthread_mutex_destroy(&t->lock);
        free(t->sqs);
        free(t->commands);
        free(t->held);
        free(t->heap);
    }
    free(sim->threads);
    sim->threads = NULL;
}
