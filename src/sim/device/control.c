/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The states of the controller: CC.EN and CSTS.RDY, shutdown, fatal status, resets of every kind,
 * power and removal. What takes time is done by the control step, on thread 0, outside its lock.
 *
 * Source: NVM Express Base 1.4, sections 3.1.5, 3.1.6, 7.3 and 7.6.
 */
#include "sim/engine/host.h"
#include "sim/sim_internal.h"

#define CC_FIXED                                                                                   \
    ((uint32_t)(GPUNVME_SET(GPUNVME_CC_CSS_MASK, CC_CSS) |                                         \
                GPUNVME_SET(GPUNVME_CC_MPS_MASK, CC_MPS) |                                         \
                GPUNVME_SET(GPUNVME_CC_AMS_MASK, CC_AMS)))
#define CC_ENTRY_SIZES                                                                             \
    ((uint32_t)(GPUNVME_SET(GPUNVME_CC_IOSQES_MASK, CC_IOSQES) |                                   \
                GPUNVME_SET(GPUNVME_CC_IOCQES_MASK, CC_IOCQES)))
#define CC_RESERVED                                                                                \
    (~(uint32_t)(GPUNVME_SET(1, CC_EN) | CC_FIXED | CC_ENTRY_SIZES |                               \
                 GPUNVME_SET(GPUNVME_CC_SHN_MASK, CC_SHN)))
#define CSTS_RDY  ((uint32_t)GPUNVME_SET(1, CSTS_RDY))
#define CSTS_CFS  ((uint32_t)GPUNVME_SET(1, CSTS_CFS))
#define CSTS_SHST ((uint32_t)GPUNVME_SET(GPUNVME_CSTS_SHST_MASK, CSTS_SHST))

static uint64_t make_cap(const struct gpunvme_sim_config *config)
{
    return GPUNVME_SET(config->mqes, CAP_MQES) | GPUNVME_SET(1, CAP_CQR) |
           GPUNVME_SET(config->timeout, CAP_TO) | GPUNVME_SET(config->dstrd, CAP_DSTRD) |
           GPUNVME_SET(1, CAP_NSSRS) | GPUNVME_SET(GPUNVME_CAP_CSS_NVM, CAP_CSS) |
           GPUNVME_SET(config->mpsmax, CAP_MPSMAX);
}

void sim_control_power_on(struct gpunvme_sim *sim)
{
    uint32_t cc = sim->config.initial_cc, csts = sim->config.initial_csts;
    uint64_t now_ns = sim_now_ns();

    sim->cap = make_cap(&sim->config);
    sim->cc = cc;
    sim->csts = csts;
    sim->page = 4096;
    sim->control_ns = UINT64_MAX;
    sim->power_cycles = 1;
    sim_features_reset(sim);
    if (csts & CSTS_CFS)
        sim->halt = SIM_HALT_FATAL;
    sim->phase_ns = now_ns + sim->config.ready_ns;
    if (GPUNVME_GET(cc, CC_EN)) {
        sim->firmware = true;
        sim->phase = csts & CSTS_RDY ? SIM_PHASE_ON : SIM_PHASE_STARTING;
    } else if (csts & CSTS_RDY) {
        sim->phase = SIM_PHASE_STOPPING;
    }
    if (sim->phase == SIM_PHASE_STARTING || sim->phase == SIM_PHASE_STOPPING)
        sim->control_ns = sim->phase_ns;
}

void sim_control_request(struct gpunvme_sim *sim, uint32_t halt, uint32_t request)
{
    atomic_fetch_or(&sim->halt, halt);
    sim_keeper_signal(sim);
    atomic_fetch_or(&sim->requests, request);
    atomic_store(&sim->control_ns, 0);
}

void sim_fail(struct gpunvme_sim *sim)
{
    atomic_fetch_or(&sim->halt, SIM_HALT_FATAL);
    sim_keeper_signal(sim);
    atomic_fetch_or(&sim->csts, CSTS_CFS);
}

/* CC as it is when EN goes from 0 to 1: can the controller work so? */
static bool configuration_valid(struct gpunvme_sim *sim, uint32_t cc)
{
    unsigned iosqes = (unsigned)GPUNVME_GET(cc, CC_IOSQES);
    unsigned iocqes = (unsigned)GPUNVME_GET(cc, CC_IOCQES);

    return GPUNVME_GET(cc, CC_MPS) <= sim->config.mpsmax &&
           GPUNVME_GET(cc, CC_CSS) == GPUNVME_CC_CSS_NVM &&
           GPUNVME_GET(cc, CC_AMS) == GPUNVME_CC_AMS_RR &&
           (!iosqes || iosqes == GPUNVME_SQE_SHIFT) && (!iocqes || iocqes == GPUNVME_CQE_SHIFT);
}

/* The admin queues as the registers describe them. */
static bool admin_queues_valid(struct gpunvme_sim *sim, uint32_t cc)
{
    uint64_t page = 4096ull << GPUNVME_GET(cc, CC_MPS);
    uint64_t asq = sim->asq, acq = sim->acq;
    uint32_t aqa = sim->aqa;

    if (asq && acq && asq % page == 0 && acq % page == 0 && GPUNVME_GET(aqa, AQA_ASQS) &&
        GPUNVME_GET(aqa, AQA_ACQS))
        return true;
    sim_violate(sim, GPUNVME_SIM_VIOLATION_ENABLE_ORDER,
                "CC.EN set with AQA=%08xh, ASQ=%llxh, ACQ=%llxh, pages of %llu bytes", aqa,
                (unsigned long long)asq, (unsigned long long)acq, (unsigned long long)page);
    return false;
}

static void begin_start(struct gpunvme_sim *sim, uint32_t cc)
{
    /* A shutdown that came while disabled needs no other reset than this. */
    atomic_fetch_and(&sim->halt, ~(uint32_t)(SIM_HALT_RESET | SIM_HALT_SHUTDOWN));
    atomic_fetch_and(&sim->csts, ~CSTS_SHST);
    sim->shutdown_begun = false;
    sim->firmware = false;
    sim->phase = SIM_PHASE_STARTING;
    sim->phase_ns = sim_now_ns() + sim->config.ready_ns;
    sim->page = 4096u << GPUNVME_GET(cc, CC_MPS);
    if (!configuration_valid(sim, cc) || !admin_queues_valid(sim, cc)) {
        sim_fail(sim);
        return;
    }
    atomic_store(&sim->control_ns, sim->phase_ns);
}

/* Within CAP.TO of CC.EN = 1, and nothing is wrong: CSTS.RDY will follow. */
static bool is_starting(const struct gpunvme_sim *sim)
{
    uint64_t begin_ns = sim->phase_ns - sim->config.ready_ns;

    return sim->phase == SIM_PHASE_STARTING && !(sim->csts & CSTS_CFS) &&
           sim_now_ns() - begin_ns < sim->config.timeout * 500000000ull;
}

static void begin_stop(struct gpunvme_sim *sim)
{
    if (is_starting(sim))
        sim_violate(sim, GPUNVME_SIM_VIOLATION_REGISTER_ACCESS,
                    "CC.EN cleared before CSTS.RDY was set");
    sim->phase = SIM_PHASE_STOPPING;
    sim->phase_ns = sim_now_ns() + sim->config.ready_ns;
    sim->torn_down = false;
    atomic_fetch_or(&sim->halt, SIM_HALT_RESET);
    sim_keeper_signal(sim);
    atomic_store(&sim->control_ns, 0);
}

static void begin_shutdown(struct gpunvme_sim *sim, uint32_t cc)
{
    atomic_fetch_or(&sim->halt, SIM_HALT_SHUTDOWN);
    sim_keeper_signal(sim);
    atomic_fetch_and(&sim->csts, ~CSTS_SHST);
    atomic_fetch_or(&sim->csts, (uint32_t)GPUNVME_SET(GPUNVME_CSTS_SHST_OCCURRING, CSTS_SHST));
    sim->shutdown_begun = true;
    sim->shutdown_flushes = GPUNVME_GET(cc, CC_SHN) == GPUNVME_CC_SHN_NORMAL;
    sim->shutdown_ns = sim_now_ns() + sim->config.shutdown_ns;
    atomic_store(&sim->control_ns, 0);
}

/* Fields that may not change while EN stays 1 keep what they were; returns CC as it then is. */
static uint32_t keep_fixed(struct gpunvme_sim *sim, uint32_t old, uint32_t value)
{
    uint32_t fixed = CC_FIXED | (sim->nio_queues ? CC_ENTRY_SIZES : 0);

    if (!((old ^ value) & fixed))
        return value;
    sim_violate(sim, GPUNVME_SIM_VIOLATION_CC_CHANGE,
                "CC changed from %08xh to %08xh while enabled", old, value);
    return (value & ~fixed) | (old & fixed);
}

/* Under reg_lock. */
void sim_control_write_cc(struct gpunvme_sim *sim, uint32_t value)
{
    uint32_t old = sim->cc;
    bool was_on = GPUNVME_GET(old, CC_EN), on = GPUNVME_GET(value, CC_EN);
    uint32_t shn = (uint32_t)GPUNVME_GET(value, CC_SHN);

    if (value & CC_RESERVED || shn > GPUNVME_CC_SHN_ABRUPT)
        sim_violate(sim, GPUNVME_SIM_VIOLATION_REGISTER_ACCESS,
                    "CC written with a reserved value: %08xh", value);
    value &= ~CC_RESERVED;
    if (was_on && on) {
        sim_lock(&sim->threads[0]); /* nio_queues stands still */
        value = keep_fixed(sim, old, value);
        sim_unlock(&sim->threads[0]);
    }
    sim->cc = value;
    if (on && !was_on) {
        if (sim->csts & CSTS_RDY)
            sim_violate(sim, GPUNVME_SIM_VIOLATION_REGISTER_ACCESS,
                        "CC.EN set before CSTS.RDY was cleared");
        if (sim->phase == SIM_PHASE_OFF)
            begin_start(sim, value);
    } else if (!on && (was_on || sim->csts & CSTS_CFS)) {
        begin_stop(sim);
    }
    if ((shn == GPUNVME_CC_SHN_NORMAL || shn == GPUNVME_CC_SHN_ABRUPT) &&
        GPUNVME_GET(old, CC_SHN) != shn && !(sim->csts & CSTS_SHST))
        begin_shutdown(sim, value);
}

/* All queues gone, features at their defaults: what every reset of the controller does. */
static void tear_down(struct gpunvme_sim *sim)
{
    sim_pause_all(sim);
    sim_queues_wipe(sim);
    sim_features_reset(sim);
    sim_events_reset(sim);
    sim_doorbell_wipe(sim);
    sim->shutdown_begun = false;
    sim_resume_all(sim);
}

static void finish_stop(struct gpunvme_sim *sim)
{
    sim->phase = SIM_PHASE_OFF;
    atomic_fetch_and(&sim->halt, ~(uint32_t)(SIM_HALT_RESET | SIM_HALT_FATAL | SIM_HALT_SHUTDOWN));
    atomic_fetch_and(&sim->csts, ~(CSTS_RDY | CSTS_CFS | CSTS_SHST));
    if (GPUNVME_GET(sim->cc, CC_EN))
        begin_start(sim, sim->cc);
}

static void continue_stop(struct gpunvme_sim *sim, uint64_t now_ns)
{
    if (!sim->torn_down) {
        if (!sim_quiesce(sim, &sim->threads[0])) {
            sim_fail(sim); /* memory is still in use: the controller may not say otherwise */
            return;
        }
        tear_down(sim);
        sim->torn_down = true;
    }
    if (now_ns >= sim->phase_ns)
        finish_stop(sim);
    else
        atomic_store(&sim->control_ns, sim->phase_ns);
}

static void finish_start(struct gpunvme_sim *sim)
{
    uint32_t aqa = sim->aqa;
    uint16_t status = GPUNVME_SC_SUCCESS;

    sim_pause_all(sim);
    /* Who has not yet seen that the power was gone may have rung since: that reached nobody. */
    sim_doorbell_wipe(sim);
    sim_keeper_forget(sim);
    if (!sim->firmware)
        status = sim_cq_create(sim, 0, sim->acq, (uint32_t)GPUNVME_GET(aqa, AQA_ACQS) + 1);
    if (!sim->firmware && !status)
        sim->cqs[0]->irq = true; /* always, by vector 0 */
    if (!sim->firmware && !status)
        status =
            sim_sq_create(sim, 0, sim->asq, (uint32_t)GPUNVME_GET(aqa, AQA_ASQS) + 1, sim->cqs[0]);
    sim->keep_alive_ns = 0;
    sim_resume_all(sim);
    sim->phase = SIM_PHASE_ON;
    if (status)
        sim_fail(sim);
    else
        atomic_fetch_or(&sim->csts, CSTS_RDY);
}

/* A flush of one store, made by thread 0 on its own lane. */
struct flush {
    struct sim_store_io io;
    gpunvme_err_t err;
    bool done;
};

static void flushed(struct sim_store_io *io, gpunvme_err_t err)
{
    struct flush *flush = (struct flush *)(void *)((char *)io - offsetof(struct flush, io));

    flush->err = err;
    flush->done = true;
}

static gpunvme_err_t flush_store(struct gpunvme_sim *sim, struct sim_ns *ns)
{
    struct flush flush = {.io = {.op = SIM_STORE_FLUSH, .done = flushed}};

    sim_lock(&sim->threads[0]);
    sim_store_submit(ns->store, 0, &flush.io);
    while (!flush.done) /* a store always ends what it began */
        sim_store_poll(ns->store, 0);
    sim_unlock(&sim->threads[0]);
    return flush.err;
}

/* Commands in flight have ended: writes the cache back and says so. */
static void finish_shutdown(struct gpunvme_sim *sim)
{
    gpunvme_err_t err = sim_quiesce(sim, &sim->threads[0]) ? GPUNVME_OK : GPUNVME_ERR_TIMEOUT;

    for (uint32_t i = 0; !err && sim->shutdown_flushes && i < sim->nns; i++)
        if (!sim->ns[i].config->readonly)
            err = flush_store(sim, &sim->ns[i]);
    sim->shutdown_begun = false;
    if (err) {
        sim_fail(sim);
        return;
    }
    /* From now on nothing touches host memory until the next reset. */
    atomic_fetch_or(&sim->halt, SIM_HALT_RESET);
    sim_pause_all(sim);
    sim_resume_all(sim);
    atomic_fetch_and(&sim->csts, ~CSTS_SHST);
    atomic_fetch_or(&sim->csts, (uint32_t)GPUNVME_SET(GPUNVME_CSTS_SHST_COMPLETE, CSTS_SHST));
}

/*
 * Everything as after power-on, under reg_lock: function reset, subsystem reset, power cycle.
 * `self` is thread 0 when it calls.
 */
void sim_control_reset(struct gpunvme_sim *sim, struct sim_thread *self, bool power, bool subsystem)
{
    bool safe = GPUNVME_GET(sim->csts, CSTS_SHST) == GPUNVME_CSTS_SHST_COMPLETE;

    atomic_fetch_or(&sim->halt, SIM_HALT_POWER);
    if (!sim_quiesce(sim, self)) {
        sim_fail(sim);
        return;
    }
    tear_down(sim);
    if (power) {
        for (uint32_t i = 0; i < sim->nns; i++)
            sim_store_power_loss(sim->ns[i].store);
        atomic_fetch_add(&sim->power_cycles, 1);
        if (!safe)
            atomic_fetch_add(&sim->unsafe_shutdowns, 1);
    }
    sim->cc = sim->aqa = sim->intm = 0;
    sim->asq = sim->acq = 0;
    sim->phase = SIM_PHASE_OFF;
    sim->csts = (uint32_t)GPUNVME_SET(subsystem, CSTS_NSSRO);
    atomic_fetch_and(&sim->halt, (uint32_t)SIM_HALT_REMOVED);
}

static void answer_requests(struct gpunvme_sim *sim)
{
    uint32_t requests = atomic_exchange(&sim->requests, 0);

    if (requests & SIM_REQUEST_REMOVE && sim_quiesce(sim, &sim->threads[0]))
        tear_down(sim);
    if (requests & SIM_REQUEST_POWER_CYCLE)
        sim_control_reset(sim, &sim->threads[0], true, false);
}

static void continue_phase(struct gpunvme_sim *sim, uint64_t now_ns)
{
    if (sim->phase == SIM_PHASE_STOPPING) {
        continue_stop(sim, now_ns);
        return;
    }
    if (sim->phase == SIM_PHASE_STARTING && !(sim->csts & CSTS_CFS)) {
        if (now_ns >= sim->phase_ns)
            finish_start(sim);
        else
            atomic_store(&sim->control_ns, sim->phase_ns);
    }
    if (!sim->shutdown_begun)
        return;
    if (now_ns >= sim->shutdown_ns)
        finish_shutdown(sim);
    else if (sim->shutdown_ns < sim->control_ns)
        atomic_store(&sim->control_ns, sim->shutdown_ns);
}

/*
 * Thread 0, without its lock: does what is due; true when there was something. Whoever holds
 * reg_lock may be waiting for this thread, so it is only tried.
 */
bool sim_control_step(struct gpunvme_sim *sim)
{
    uint64_t due_ns = atomic_load_explicit(&sim->control_ns, memory_order_acquire), now_ns;

    if (due_ns == UINT64_MAX)
        return false;
    now_ns = sim_now_ns();
    if (now_ns < due_ns)
        return now_ns + 200000 > due_ns; /* soon: stay awake */
    if (pthread_mutex_trylock(&sim->reg_lock))
        return true;
    atomic_store(&sim->control_ns, UINT64_MAX);
    answer_requests(sim);
    if (!(atomic_load(&sim->halt) & SIM_HALT_REMOVED))
        continue_phase(sim, now_ns);
    pthread_mutex_unlock(&sim->reg_lock);
    return true;
}

void gpunvme_sim_function_reset(struct gpunvme_sim *sim)
{
    pthread_mutex_lock(&sim->reg_lock);
    sim_control_reset(sim, NULL, false, false);
    pthread_mutex_unlock(&sim->reg_lock);
}

void gpunvme_sim_power_cycle(struct gpunvme_sim *sim)
{
    pthread_mutex_lock(&sim->reg_lock);
    sim_control_reset(sim, NULL, true, false);
    pthread_mutex_unlock(&sim->reg_lock);
}

void gpunvme_sim_fatal(struct gpunvme_sim *sim)
{
    sim_fail(sim);
    sim_keeper_quiesce(sim);
    sim_pause_all(sim); /* when this returns every thread has seen it */
    sim_resume_all(sim);
}

void gpunvme_sim_remove(struct gpunvme_sim *sim)
{
    pthread_mutex_lock(&sim->reg_lock);
    atomic_fetch_or(&sim->halt, SIM_HALT_REMOVED);
    if (sim_quiesce(sim, NULL))
        tear_down(sim);
    pthread_mutex_unlock(&sim->reg_lock);
}
