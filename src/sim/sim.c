/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A controller's life: create, destroy, faults, and the report of what the driver did wrong.
 */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "base/fail.h"
#include "base/log.h"
#include "sim/config.h"
#include "sim/engine/host.h"
#include "sim/sim_internal.h"

#define DOORBELLS_MOST (1ull << 30)

uint64_t sim_now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void sim_pause_ns(uint64_t ns)
{
    struct timespec pause = {.tv_sec = (time_t)(ns / 1000000000u),
                             .tv_nsec = (long)(ns % 1000000000u)};

    nanosleep(&pause, NULL);
}

static gpunvme_err_t open_namespace(struct gpunvme_sim *sim, uint32_t i)
{
    struct gpunvme_sim_ns_config *config = &sim->config.ns[i];
    struct sim_store_config store = {
        .image = config->image,
        .nbytes = config->nbytes,
        .block_size = config->block_size,
        .in_gpu = sim->config.engine == GPUNVME_SIM_ENGINE_GPU,
        .gpu = sim->config.gpu,
        .readonly = config->readonly,
        .force = sim->config.force,
        .vwc = sim->config.vwc,
        .seed = sim->config.seed + config->nsid,
        .nlanes = sim->nthreads,
    };
    struct sim_ns *ns = &sim->ns[i];
    gpunvme_err_t err = sim_store_open(&store, &ns->store);

    if (err)
        return err;
    config->nbytes = sim_store_nbytes(ns->store);
    config->is_foreign = sim_store_is_foreign(ns->store);
    config->readonly |= config->is_foreign;
    if (config->is_foreign)
        base_log(BASE_LOG_WARN,
                 "image %s holds data that gpunvme did not write: namespace %u is write protected",
                 config->image, config->nsid);
    else if (config->image[0])
        base_log(BASE_LOG_INFO, "image %s is namespace %u: %s", config->image, config->nsid,
                 sim_store_path(ns->store));
    ns->config = config;
    ns->direct = sim_store_direct(ns->store);
    ns->nsid = config->nsid;
    ns->shift = config->block_size == 4096 ? 12 : 9;
    ns->nblocks = config->nbytes >> ns->shift;
    return GPUNVME_OK;
}

static int by_nsid(const void *a_, const void *b_)
{
    const struct gpunvme_sim_ns_config *a = a_, *b = b_;

    return a->nsid < b->nsid ? -1 : a->nsid > b->nsid;
}

static gpunvme_err_t open_namespaces(struct gpunvme_sim *sim)
{
    qsort(sim->config.ns, sim->config.nnamespaces, sizeof(sim->config.ns[0]), by_nsid);
    for (uint32_t i = 0; i < sim->config.nnamespaces; i++) {
        gpunvme_err_t err = open_namespace(sim, i);

        if (err)
            return err;
        sim->nns++;
    }
    return GPUNVME_OK;
}

struct sim_ns *sim_ns_find(struct gpunvme_sim *sim, uint32_t nsid)
{
    for (uint32_t i = 0; i < sim->nns; i++)
        if (sim->ns[i].nsid == nsid)
            return &sim->ns[i];
    return NULL;
}

static gpunvme_err_t map_doorbells(struct gpunvme_sim *sim)
{
    uint64_t nbytes = (uint64_t)(sim->config.max_queues + 1) * 2 * (4ull << sim->config.dstrd);
    void *memory;

    nbytes = (nbytes + 4095) & ~4095ull;
    if (nbytes > DOORBELLS_MOST)
        return base_fail(GPUNVME_ERR_LIMIT, "%u queues with dstrd=%u need too large a BAR",
                         sim->config.max_queues, sim->config.dstrd);
    memory = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                  -1, 0);
    if (memory == MAP_FAILED)
        return base_fail(GPUNVME_ERR_NOMEM, "the doorbells");
    sim->doorbells = memory;
    sim->doorbells_nbytes = nbytes;
    return GPUNVME_OK;
}

static gpunvme_err_t allocate_tables(struct gpunvme_sim *sim)
{
    size_t nqueues = (size_t)sim->config.max_queues + 1;

    sim->sqs = calloc(nqueues, sizeof(*sim->sqs));
    sim->cqs = calloc(nqueues, sizeof(*sim->cqs));
    sim->features.vectors = calloc(nqueues, 1);
    if (!sim->sqs || !sim->cqs || !sim->features.vectors)
        return base_fail(GPUNVME_ERR_NOMEM, "tables of %zu queues", nqueues);
    return GPUNVME_OK;
}

static gpunvme_err_t create_parts(struct gpunvme_sim *sim)
{
    gpunvme_err_t err = sim_model_create(&sim->config.model, sim->config.seed, &sim->model);

    if (!err)
        err = sim_faults_create(sim->config.seed, &sim->faults);
    if (!err && sim->config.engine == GPUNVME_SIM_ENGINE_GPU)
        sim_faults_for_engine(sim->faults);
    for (uint32_t i = 0; !err && i < sim->config.nfaults; i++)
        err = sim_faults_add(sim->faults, sim->config.faults[i]);
    if (!err)
        err = open_namespaces(sim);
    if (!err)
        err = allocate_tables(sim);
    if (!err)
        err = map_doorbells(sim);
    if (!err)
        err = sim_keeper_create(sim);
    if (err)
        return err;
    sim->unlimited = sim_model_is_unlimited(sim->model);
    sim_control_power_on(sim);
    return sim_threads_create(sim);
}

gpunvme_err_t gpunvme_sim_create(const struct gpunvme_sim_config *config, struct gpunvme_sim **out)
{
    struct gpunvme_sim *sim;
    gpunvme_err_t err;

    if (!config || !out)
        return base_fail(GPUNVME_ERR_INVALID, "%s is NULL", config ? "out" : "config");
    *out = NULL;
    sim = calloc(1, sizeof(*sim));
    if (!sim)
        return base_fail(GPUNVME_ERR_NOMEM, "a controller");
    pthread_mutex_init(&sim->reg_lock, NULL);
    pthread_mutex_init(&sim->event_lock, NULL);
    pthread_mutex_init(&sim->log_lock, NULL);
    pthread_mutex_init(&sim->violation_lock, NULL);
    pthread_mutex_init(&sim->irq_lock, NULL);
    pthread_mutex_init(&sim->mover_lock, NULL);
    sim->config = *config;
    sim->created_ns = sim_now_ns();
    err = sim_config_complete(&sim->config);
    sim->nthreads = sim->config.threads;
    if (!err)
        err = create_parts(sim);
    if (err) {
        gpunvme_sim_destroy(sim);
        return err;
    }
    *out = sim;
    return GPUNVME_OK;
}

void gpunvme_sim_destroy(struct gpunvme_sim *sim)
{
    if (!sim)
        return;
    sim_threads_destroy(sim);
    sim_keeper_destroy(sim);
    for (uint32_t i = 0; i < sim->nns; i++)
        sim_store_close(sim->ns[i].store);
    sim_model_destroy(sim->model);
    sim_faults_destroy(sim->faults);
    if (sim->doorbells)
        munmap((void *)sim->doorbells, sim->doorbells_nbytes);
    free(sim->ranges);
    free(sim->sqs);
    free(sim->cqs);
    free(sim->features.vectors);
    pthread_mutex_destroy(&sim->reg_lock);
    pthread_mutex_destroy(&sim->event_lock);
    pthread_mutex_destroy(&sim->log_lock);
    pthread_mutex_destroy(&sim->violation_lock);
    pthread_mutex_destroy(&sim->irq_lock);
    sim_movers_close(sim);
    pthread_mutex_destroy(&sim->mover_lock);
    free(sim);
}

const struct gpunvme_sim_config *gpunvme_sim_config_of(const struct gpunvme_sim *sim)
{
    return &sim->config;
}

volatile uint32_t *gpunvme_sim_doorbells(struct gpunvme_sim *sim, size_t *nbytes)
{
    if (nbytes)
        *nbytes = sim->doorbells_nbytes;
    return sim->doorbells;
}

gpunvme_err_t gpunvme_sim_fault(struct gpunvme_sim *sim, const char *rule)
{
    gpunvme_err_t err = sim_faults_add(sim->faults, rule);

    if (!err)
        sim_keeper_refault(sim);
    return err;
}

void gpunvme_sim_faults_clear(struct gpunvme_sim *sim)
{
    sim_faults_clear(sim->faults);
    sim_keeper_refault(sim);
}

/* Adds to a count; `first` gets the text where it has none yet. The log gets the first of a kind.
 */
static void tell(struct gpunvme_sim *sim, uint64_t *count, char first[256], uint64_t n,
                 const char *format, va_list args)
{
    char text[256];
    bool is_new;

    vsnprintf(text, sizeof(text), format, args);
    pthread_mutex_lock(&sim->violation_lock);
    is_new = !*count;
    if (!first[0])
        memcpy(first, text, sizeof(text));
    *count += n;
    pthread_mutex_unlock(&sim->violation_lock);
    if (is_new)
        base_log(BASE_LOG_WARN, "the software controller finds fault with its driver: %s", text);
}

void sim_violate(struct gpunvme_sim *sim, enum gpunvme_sim_violation violation, const char *format,
                 ...)
{
    va_list args;

    va_start(args, format);
    tell(sim, &sim->violations[violation], sim->first_violation, 1, format, args);
    va_end(args);
}

void sim_violate_more(struct gpunvme_sim *sim, enum gpunvme_sim_violation violation, uint64_t n,
                      const char *format, ...)
{
    va_list args;

    va_start(args, format);
    tell(sim, &sim->violations[violation], sim->first_violation, n, format, args);
    va_end(args);
}

void sim_warn(struct gpunvme_sim *sim, enum gpunvme_sim_warning warning, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    tell(sim, &sim->warnings[warning], sim->first_warning, 1, format, args);
    va_end(args);
}

const char *gpunvme_sim_violation_text(enum gpunvme_sim_violation violation)
{
    switch (violation) {
#define X(name, text)                                                                              \
    case GPUNVME_SIM_VIOLATION_##name:                                                             \
        return text;
        GPUNVME_SIM_VIOLATIONS(X)
#undef X
    case GPUNVME_SIM_NVIOLATIONS:
        break;
    }
    return "unknown violation";
}

const char *gpunvme_sim_warning_text(enum gpunvme_sim_warning warning)
{
    static const char *const texts[] = {
#define X(name, text) text,
        GPUNVME_SIM_WARNINGS(X)
#undef X
    };

    return (unsigned)warning < GPUNVME_SIM_NWARNINGS ? texts[warning] : "unknown warning";
}

uint64_t sim_counter_sum(struct gpunvme_sim *sim, size_t offset)
{
    uint64_t sum = sim_keeper_sum(sim, offset);

    for (unsigned i = 0; i < sim->nthreads; i++) {
        const char *counters = (const char *)&sim->threads[i].counters;

        sum += atomic_load_explicit((const _Atomic uint64_t *)(const void *)(counters + offset),
                                    memory_order_relaxed);
    }
    return sum;
}

void gpunvme_sim_report(struct gpunvme_sim *sim, struct gpunvme_sim_report *report)
{
    sim_keeper_sync(sim);
    *report = (struct gpunvme_sim_report){
        .commands = {sim_counter_sum(sim, offsetof(struct sim_counters, admin_commands)),
                     sim_counter_sum(sim, offsetof(struct sim_counters, io_commands))},
        .bytes_read = sim_counter_sum(sim, offsetof(struct sim_counters, bytes_read)),
        .bytes_written = sim_counter_sum(sim, offsetof(struct sim_counters, bytes_written)),
        .errors = sim_counter_sum(sim, offsetof(struct sim_counters, errors)),
        .faults = sim_counter_sum(sim, offsetof(struct sim_counters, faults)),
        .doorbell_writes = sim_counter_sum(sim, offsetof(struct sim_counters, doorbell_writes)),
    };
    pthread_mutex_lock(&sim->violation_lock);
    memcpy(report->violations, sim->violations, sizeof(report->violations));
    memcpy(report->first, sim->first_violation, sizeof(report->first));
    memcpy(report->warnings, sim->warnings, sizeof(report->warnings));
    memcpy(report->first_warning, sim->first_warning, sizeof(report->first_warning));
    pthread_mutex_unlock(&sim->violation_lock);
    for (unsigned i = 0; i < GPUNVME_SIM_NVIOLATIONS; i++)
        report->nviolations += report->violations[i];
    for (unsigned i = 0; i < GPUNVME_SIM_NWARNINGS; i++)
        report->nwarnings += report->warnings[i];
}
