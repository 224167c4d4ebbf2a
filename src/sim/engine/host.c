/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The engine's keeper: stops and starts the engine, and its life. See host.h.
 */
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "gpunvme/memory.h"
#include "memory/cuda.h"
#include "sim/engine/keeper.h"

#define MAX_QUEUES     256u
#define IDLE_NS        5000000u /* the kernel leaves after so long, so that others get the GPU */
#define POLL_NS        100000u  /* between looks at whether it has */
#define THREAD_IDLE_NS 200000u  /* the same where it is a thread, which shares its core: */
#define THREAD_REST_NS 1000000u /* and between two of its runs, if there was nothing to do */

gpunvme_err_t keeper_put(const struct sim_keeper *k, size_t offset, const void *from, size_t nbytes)
{
    return gpunvme_mem_copy(keeper_at(k, offset), GPUNVME_MEM_GPU, from, GPUNVME_MEM_HOST, nbytes);
}

gpunvme_err_t keeper_get(const struct sim_keeper *k, size_t offset, void *to, size_t nbytes)
{
    return gpunvme_mem_copy(to, GPUNVME_MEM_HOST, keeper_at(k, offset), GPUNVME_MEM_GPU, nbytes);
}

/* The engine can't go on: the driver learns it by CSTS.CFS. */
void keeper_give_up(struct sim_keeper *k)
{
    k->broken = true;
    sim_fail(k->sim);
}

/* The engine has ended: what it left, and why. */
static void collect(struct sim_keeper *k)
{
    uint32_t left;

    if (keeper_get(k, 0, &k->mirror, sizeof(k->mirror)) ||
        (k->nslots && keeper_get(k, k->at.queues, k->queues, k->nslots * sizeof(*k->queues)))) {
        keeper_give_up(k);
        return;
    }
    left = k->mirror.leave;
    sim_faults_absorb(k->sim->faults, k->mirror.rules, k->mirror.nrules);
    for (unsigned i = 0; i < k->nslots; i++)
        if (k->slots[i].sq)
            keeper_absorb(k, &k->slots[i], &k->queues[i]);
    keeper_find_strays(k);
    k->idle = left == SIM_ENGINE_LEFT_IDLE;
    if (left == SIM_ENGINE_LEFT_FATAL)
        sim_fail(k->sim);
    else if (left == SIM_ENGINE_LEFT_REMOVED)
        sim_control_request(k->sim, SIM_HALT_REMOVED, SIM_REQUEST_REMOVE);
}

void sim_keeper_signal(struct gpunvme_sim *sim)
{
    if (sim->keeper && sim->keeper->host)
        __atomic_store_n(&sim->keeper->host->stop, 1, __ATOMIC_SEQ_CST);
}

/* false: it does not end, and what it uses may not be touched any more. */
bool keeper_stop(struct sim_keeper *k)
{
    if (k->running) {
        __atomic_store_n(&k->host->stop, 1, __ATOMIC_SEQ_CST);
        if (k->launcher->wait(k->launcher, sim_now_ns() + SIM_FUSE_NS)) {
            keeper_give_up(k);
            return false;
        }
        k->running = false;
        collect(k);
    }
    return !k->broken;
}

static gpunvme_err_t write_engine(struct sim_keeper *k)
{
    k->mirror.page = k->sim->page;
    k->mirror.nqueues = k->nslots;
    k->mirror.nrules = sim_faults_export(k->sim->faults, k->mirror.rules);
    return keeper_put(k, 0, &k->mirror, sizeof(k->mirror));
}

/* Starts the engine if it has anything to do. Whoever sets halt after that signals it. */
void keeper_start(struct sim_keeper *k)
{
    gpunvme_err_t err = GPUNVME_OK;

    if (k->running || k->broken || k->stop || !k->nactive || atomic_load(&k->sim->halt))
        return;
    err = write_engine(k);
    __atomic_store_n(&k->host->left, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&k->host->stop, 0, __ATOMIC_SEQ_CST);
    if (atomic_load(&k->sim->halt))
        return;
    if (!err)
        err = k->launcher->start(k->launcher, (struct sim_engine *)k->memory.gpu, k->nactive);
    if (err) {
        keeper_give_up(k);
        return;
    }
    k->running = true;
    pthread_cond_signal(&k->wake);
}

bool sim_keeper_quiesce(struct gpunvme_sim *sim)
{
    struct sim_keeper *k = sim->keeper;
    bool ended;

    if (!k)
        return true;
    pthread_mutex_lock(&k->lock);
    keeper_stop(k);
    ended = !k->running;
    pthread_mutex_unlock(&k->lock);
    return ended;
}

void sim_keeper_sync(struct gpunvme_sim *sim)
{
    struct sim_keeper *k = sim->keeper;

    if (!k)
        return;
    pthread_mutex_lock(&k->lock);
    if (!k->running && !k->broken)
        keeper_find_strays(k); /* an engine at rest has not looked since it ended */
    if (keeper_stop(k))
        keeper_start(k);
    pthread_mutex_unlock(&k->lock);
}

void sim_keeper_refault(struct gpunvme_sim *sim)
{
    sim_keeper_sync(sim); /* rules are written at each start */
}

uint64_t sim_keeper_sum(struct gpunvme_sim *sim, size_t offset)
{
    const char *totals;

    if (!sim->keeper)
        return 0;
    totals = (const char *)&sim->keeper->totals;
    return atomic_load_explicit((const _Atomic uint64_t *)(const void *)(totals + offset),
                                memory_order_relaxed);
}

/*
 * ---- Life -------------------------------------------------------------------------------------
 */

/* Looks whether the engine has ended by itself; true when it did. Under the lock. */
static bool has_ended(struct sim_keeper *k)
{
    bool running = true;

    if (!k->running)
        return false;
    if (k->launcher->poll(k->launcher, &running)) {
        k->running = false;
        keeper_give_up(k);
        return false;
    }
    if (running)
        return false;
    k->running = false;
    collect(k);
    return true;
}

static void *keeper_main(void *k_)
{
    struct sim_keeper *k = k_;

    pthread_mutex_lock(&k->lock);
    while (!k->stop) {
        bool rests = has_ended(k) && k->on_thread && k->idle;

        if (!rests)
            keeper_start(k);
        if (!k->running && !rests) {
            pthread_cond_wait(&k->wake, &k->lock);
            continue;
        }
        pthread_mutex_unlock(&k->lock);
        sim_pause_ns(rests ? THREAD_REST_NS : POLL_NS);
        pthread_mutex_lock(&k->lock);
    }
    pthread_mutex_unlock(&k->lock);
    return NULL;
}

static size_t align(size_t n)
{
    return (n + 255) & ~(size_t)255;
}

static struct keeper_layout lay_out(unsigned room, uint32_t nchannels)
{
    struct keeper_layout at;

    at.queues = align(sizeof(struct sim_engine));
    at.cids = align(at.queues + room * sizeof(struct sim_engine_queue));
    at.pending = align(at.cids + room * (SIM_ENGINE_CID_WORDS * sizeof(uint32_t)));
    at.ranges =
        align(at.pending + room * (SIM_ENGINE_MAX_THREADS * sizeof(struct sim_engine_pending)));
    at.spread = align(at.ranges + SIM_ENGINE_MAX_RANGES * sizeof(struct sim_engine_range));
    at.channels = align(at.spread + SIM_ENGINE_SPREAD * sizeof(float));
    at.nbytes = align(at.channels + nchannels * sizeof(uint64_t));
    return at;
}

static gpunvme_err_t fill_model(struct sim_keeper *k)
{
    struct sim_engine_model *model = &k->mirror.model;
    const float *spread = sim_model_export(k->sim->model, model);

    if (model->nchannels)
        model->channels = (uint64_t *)(void *)keeper_at(k, k->at.channels);
    if (!spread)
        return GPUNVME_OK;
    model->spread = (const float *)(const void *)keeper_at(k, k->at.spread);
    return keeper_put(k, k->at.spread, spread, SIM_ENGINE_SPREAD * sizeof(*spread));
}

static void fill_namespaces(struct sim_keeper *k)
{
    struct gpunvme_sim *sim = k->sim;

    k->mirror.nns = sim->nns;
    for (uint32_t i = 0; i < sim->nns; i++)
        k->mirror.ns[i] = (struct sim_engine_ns){
            .bytes = sim_store_gpu(sim->ns[i].store),
            .nblocks = sim->ns[i].nblocks,
            .nsid = sim->ns[i].nsid,
            .shift = sim->ns[i].shift,
            .readonly = sim->ns[i].config->readonly,
            .metadata = sim->ns[i].config->metadata_size,
        };
}

static void fill_engine(struct sim_keeper *k)
{
    const struct gpunvme_sim_config *config = &k->sim->config;

    k->host = k->pinned.cpu;
    k->mirror = (struct sim_engine){
        .host = k->pinned.gpu,
        .queues = (struct sim_engine_queue *)(void *)keeper_at(k, k->at.queues),
        .ranges = (const struct sim_engine_range *)(const void *)keeper_at(k, k->at.ranges),
        .max_transfer = config->mdts ? 4096ull << config->mdts : 0,
        .sgl = config->sgl,
        .deac = config->deac,
        .seed = config->seed,
        .idle_ns = k->on_thread ? THREAD_IDLE_NS : IDLE_NS,
    };
    fill_namespaces(k);
}

/* On the engine's device. */
static gpunvme_err_t allocate(struct sim_keeper *k)
{
    gpunvme_err_t err;

    k->at = lay_out(k->room, k->sim->config.model.channels);
    err = gpunvme_mem_alloc(k->at.nbytes, GPUNVME_MEM_GPU, &k->memory);
    if (!err)
        err = gpunvme_mem_alloc(sizeof(struct sim_engine_host) +
                                    k->room * sizeof(struct sim_engine_counters),
                                GPUNVME_MEM_PINNED, &k->pinned);
    if (!err)
        err = gpunvme_mem_alloc(k->sim->doorbells_nbytes, GPUNVME_MEM_GPU, &k->doorbells);
    if (err)
        return err;
    fill_engine(k);
    return fill_model(k);
}

/* Which GPU, and that the caller's own reaches it. */
static gpunvme_err_t choose_device(struct sim_keeper *k)
{
    unsigned current = 0;
    gpunvme_err_t err = mem_cuda_current(&current);

    if (err)
        return err;
    k->device = k->sim->config.gpu < 0 ? current : (unsigned)k->sim->config.gpu;
    if (k->device >= mem_cuda_count())
        return base_fail(GPUNVME_ERR_INVALID, "gpu=%u: there are %u, from 0 on", k->device,
                         mem_cuda_count());
    k->peers = 1ull << current | 1ull << k->device;
    return mem_cuda_peers(k->device, current);
}

static gpunvme_err_t set_up(struct sim_keeper *k)
{
    gpunvme_err_t err = GPUNVME_OK;

    k->slots = calloc(k->room, sizeof(*k->slots));
    k->queues = calloc(k->room, sizeof(*k->queues));
    k->cqs = calloc(k->sim->config.max_queues + 1u, sizeof(*k->cqs));
    if (!k->slots || !k->queues || !k->cqs)
        return base_fail(GPUNVME_ERR_NOMEM, "the engine's queues");
    if (k->on_thread) {
        err = allocate(k);
        return err ? err : sim_launcher_thread(&k->launcher);
    }
    err = choose_device(k);
    if (!err)
        err = mem_cuda_enter(k->device);
    if (err)
        return err;
    err = allocate(k);
    mem_cuda_leave();
    return err ? err : sim_launcher_gpu(k->device, &k->launcher);
}

gpunvme_err_t sim_keeper_create(struct gpunvme_sim *sim)
{
    struct sim_keeper *k;
    gpunvme_err_t err;
    int error;

    if (sim->config.engine != GPUNVME_SIM_ENGINE_GPU)
        return GPUNVME_OK;
    k = calloc(1, sizeof(*k));
    if (!k)
        return base_fail(GPUNVME_ERR_NOMEM, "the engine");
    k->sim = sim;
    k->on_thread = gpunvme_mem_gpu_is_host();
    k->room = sim->config.max_queues < MAX_QUEUES ? sim->config.max_queues : MAX_QUEUES;
    k->ranges_changed = true;
    pthread_mutex_init(&k->lock, NULL);
    pthread_cond_init(&k->wake, NULL);
    sim->keeper = k;
    err = set_up(k);
    if (err)
        return err;
    error = pthread_create(&k->pthread, NULL, keeper_main, k);
    if (error)
        return base_fail_errno(error, "the engine's keeper");
    k->started = true;
    return GPUNVME_OK;
}

/* A kernel that does not end still uses its memory: then that is left to it. */
static void release(struct sim_keeper *k)
{
    if (k->running)
        return;
    if (k->launcher)
        k->launcher->close(k->launcher);
    gpunvme_mem_free(&k->memory);
    gpunvme_mem_free(&k->pinned);
    gpunvme_mem_free(&k->doorbells);
}

void sim_keeper_destroy(struct gpunvme_sim *sim)
{
    struct sim_keeper *k = sim->keeper;

    if (!k)
        return;
    pthread_mutex_lock(&k->lock);
    k->stop = true;
    if (k->host)
        keeper_stop(k);
    pthread_cond_signal(&k->wake);
    pthread_mutex_unlock(&k->lock);
    if (k->started)
        pthread_join(k->pthread, NULL);
    release(k);
    pthread_cond_destroy(&k->wake);
    pthread_mutex_destroy(&k->lock);
    free(k->queues);
    free(k->slots);
    free(k->cqs);
    free(k);
    sim->keeper = NULL;
}

void *gpunvme_sim_gpu_doorbells(struct gpunvme_sim *sim, size_t *nbytes)
{
    if (nbytes)
        *nbytes = sim->keeper ? sim->keeper->doorbells.nbytes : 0;
    return sim->keeper ? sim->keeper->doorbells.gpu : NULL;
}
