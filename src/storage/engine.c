/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Engines: the process's own and those that callers make. See gpunvme/engine.h.
 */
#include "storage/engine.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "gpunvme/memory.h"
#include "memory/cuda.h"
#include "storage/pool.h"
#include "storage/posix/engine.h"
#include "storage/worker.h"

/* Of an engine. 10 read and copy to a GPU 5 % slower; 16 need a sixth more of the processors for
 * the same, and hinder each other with small reads and new files. */
#define DEFAULT_THREADS 12u
#define MIN_THREADS     2u

static const struct gpunvme_engine_config defaults = {.gpu = GPUNVME_ANY_GPU};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct gpunvme_engine *of_process; /* NULL: nothing needed it yet */
static struct gpunvme_engine *inherited;  /* the parent's: there are no threads for it here */
static unsigned nforks; /* that lie between this process and the first that used engines */

/* ---- fork(2) --------------------------------------------------------------------------------- */

/* In the order in which they may be taken. */
static pthread_mutex_t *const held[] = {&nvme_share_lock, &lock, &store_order_lock,
                                        &store_stop_lock, &store_details_lock};
#define NHELD (sizeof(held) / sizeof(held[0]))

static void before_fork(void)
{
    for (size_t i = 0; i < NHELD; i++)
        pthread_mutex_lock(held[i]);
}

static void in_parent(void)
{
    for (size_t i = NHELD; i-- > 0;)
        pthread_mutex_unlock(held[i]);
}

static void in_child(void)
{
    if (of_process)
        inherited = of_process;
    of_process = NULL;
    nforks++;
    in_parent();
}

static void watch_forks(void)
{
    pthread_atfork(before_fork, in_parent, in_child);
}

unsigned store_nforks(void)
{
    pthread_once(&once, watch_forks);
    return __atomic_load_n(&nforks, __ATOMIC_RELAXED);
}

/* ---- Making one ------------------------------------------------------------------------------ */

static gpunvme_err_t make(const struct gpunvme_engine_config *config, struct gpunvme_engine **out)
{
    struct gpunvme_engine *engine = calloc(1, sizeof(*engine));

    if (!engine)
        return base_fail(GPUNVME_ERR_NOMEM, "an engine");
    engine->config = *config;
    engine->config.cpus = NULL; /* the caller's: engine->place has what it says */
    engine->nforks = store_nforks();
    engine->place.gpu = config->gpu;
    engine->place.has_cpus = config->cpus && !place_parse(config->cpus, &engine->place.cpus);
    pthread_mutex_init(&engine->place.lock, NULL);
    pthread_mutex_init(&engine->lock, NULL);
    pthread_mutex_init(&engine->nvme_lock, NULL);
    store_regions_init(&engine->regions);
    *out = engine;
    return GPUNVME_OK;
}

static gpunvme_err_t check_cpus(const char *list)
{
    cpu_set_t cpus, ours;
    gpunvme_err_t err = place_parse(list, &cpus);

    if (err || sched_getaffinity(0, sizeof(ours), &ours))
        return err;
    CPU_AND(&cpus, &cpus, &ours);
    return CPU_COUNT(&cpus) ? GPUNVME_OK
                            : base_fail(GPUNVME_ERR_INVALID,
                                        "this process may use none of the CPUs \"%.100s\"", list);
}

static gpunvme_err_t check_config(const struct gpunvme_engine_config *config)
{
    unsigned ngpus = gpunvme_mem_gpu_count();

    /* Without a GPU the host stands in for the first. */
    if (config->gpu != GPUNVME_ANY_GPU &&
        (config->gpu < 0 || (unsigned)config->gpu >= (ngpus ? ngpus : 1)))
        return base_fail(GPUNVME_ERR_INVALID, "GPU %d: there are %u%s%s", config->gpu, ngpus,
                         ngpus ? "" : ", ", ngpus ? "" : gpunvme_mem_gpu_why_not());
    if (config->threads > ENGINE_MAX_THREADS)
        return base_fail(GPUNVME_ERR_LIMIT, "%u threads; at most %u", config->threads,
                         ENGINE_MAX_THREADS);
    return config->cpus ? check_cpus(config->cpus) : GPUNVME_OK;
}

gpunvme_err_t gpunvme_engine_create(const struct gpunvme_engine_config *config,
                                    struct gpunvme_engine **out)
{
    gpunvme_err_t err;

    if (!out)
        return base_fail(GPUNVME_ERR_INVALID, "out is NULL");
    *out = NULL;
    if (!config)
        config = &defaults;
    err = check_config(config);
    return err ? err : make(config, out);
}

/* An engine for a call: NULL is the process's. */
static gpunvme_err_t find(struct gpunvme_engine *engine, struct gpunvme_engine **out)
{
    gpunvme_err_t err = GPUNVME_OK;

    *out = engine;
    if (engine && engine->nforks != store_nforks())
        return base_fail(GPUNVME_ERR_UNSUPPORTED, "the engine was made before fork(2), and its "
                                                  "threads are in the parent: make one here");
    if (engine)
        return GPUNVME_OK;
    store_nforks();
    pthread_mutex_lock(&lock);
    if (!of_process) {
        err = make(&defaults, &of_process);
        if (!err)
            of_process->is_process = true;
    }
    *out = of_process;
    pthread_mutex_unlock(&lock);
    return err;
}

static unsigned threads_of(const struct gpunvme_engine *engine)
{
    unsigned n = MIN_THREADS;
    cpu_set_t cpus;

    if (engine->config.threads)
        return engine->config.threads;
    if (engine->place.has_cpus)
        n = (unsigned)CPU_COUNT(&engine->place.cpus);
    else if (!sched_getaffinity(0, sizeof(cpus), &cpus))
        n = (unsigned)CPU_COUNT(&cpus);
    return n < MIN_THREADS ? MIN_THREADS : n > DEFAULT_THREADS ? DEFAULT_THREADS : n;
}

/* Its threads are started when the first store is opened. */
static gpunvme_err_t start(struct gpunvme_engine *engine)
{
    gpunvme_err_t err = GPUNVME_OK;

    pthread_mutex_lock(&engine->lock);
    if (!engine->pool)
        err = pool_create(&engine->pool);
    if (!err && !engine->workers)
        err = workers_start(threads_of(engine), &engine->workers);
    if (!err && engine->place.has_cpus && !engine->place.workers)
        workers_move(engine->workers, &engine->place.cpus);
    engine->place.workers = engine->workers;
    pthread_mutex_unlock(&engine->lock);
    return err;
}

gpunvme_err_t store_engine_enter(struct gpunvme_engine *engine, struct gpunvme_engine **out)
{
    gpunvme_err_t err = find(engine, out);

    if (!err)
        err = start(*out);
    if (!err)
        atomic_fetch_add(&(*out)->nstores, 1);
    return err;
}

void store_engine_leave(struct gpunvme_engine *engine)
{
    atomic_fetch_sub(&engine->nstores, 1);
}

struct store_regions *store_engine_regions(struct gpunvme_engine *engine)
{
    return &engine->regions;
}

gpunvme_err_t store_engine_prepare(struct gpunvme_engine *engine, unsigned gpu)
{
    gpunvme_err_t err = GPUNVME_OK;

    if (gpu >= 64 || atomic_load(&engine->ready_gpus) >> gpu & 1)
        return GPUNVME_OK;
    pthread_mutex_lock(&engine->lock);
    if (mem_cuda_present())
        (void)mem_cuda_keep_ready(gpu); /* for the threads of simulated controllers, if it can be */
    if (engine->posix)
        err = posix_ring_prepare(&engine->posix->ring, gpu);
    if (!err)
        atomic_fetch_or(&engine->ready_gpus, UINT64_C(1) << gpu);
    pthread_mutex_unlock(&engine->lock);
    return err;
}

gpunvme_err_t gpunvme_engine_destroy(struct gpunvme_engine *engine)
{
    struct gpunvme_engine *found;
    gpunvme_err_t err;
    size_t n;

    if (!engine)
        return GPUNVME_OK;
    err = find(engine, &found);
    if (err)
        return err;
    if (engine->is_process)
        return base_fail(GPUNVME_ERR_INVALID, "the process's own engine can't be destroyed");
    n = atomic_load(&engine->nstores);
    if (n)
        return base_fail(GPUNVME_ERR_BUSY, "%zu stores are open on the engine", n);
    posix_engine_destroy(engine->posix);
    pool_destroy(engine->pool); /* its threads wake workers */
    workers_stop(engine->workers);
    store_regions_free(&engine->regions);
    pthread_mutex_destroy(&engine->lock);
    pthread_mutex_destroy(&engine->nvme_lock);
    pthread_mutex_destroy(&engine->place.lock);
    free(engine);
    return GPUNVME_OK;
}

void gpunvme_engine_get_info(struct gpunvme_engine *engine, struct gpunvme_engine_info *info)
{
    if (!info)
        return;
    memset(info, 0, sizeof(*info));
    if (!engine) {
        pthread_mutex_lock(&lock);
        engine = of_process;
        pthread_mutex_unlock(&lock);
    }
    if (!engine)
        return;
    info->gpu = engine->config.gpu;
    info->stores = atomic_load(&engine->nstores);
    pthread_rwlock_rdlock(&engine->regions.lock);
    info->registered = engine->regions.n;
    pthread_rwlock_unlock(&engine->regions.lock);
    pthread_mutex_lock(&engine->lock);
    if (engine->workers) {
        info->threads = workers_count(engine->workers);
        info->blocked = pool_busy(engine->pool);
    }
    if (engine->posix)
        info->pinned_nbytes = posix_engine_pinned(engine->posix);
    pthread_mutex_unlock(&engine->lock);
}

/* ---- Registered memory ----------------------------------------------------------------------- */

gpunvme_err_t gpunvme_register(struct gpunvme_engine *engine, void *ptr, size_t nbytes,
                               enum gpunvme_mem mem)
{
    gpunvme_err_t err = find(engine, &engine);

    return err ? err : store_regions_add(&engine->regions, ptr, nbytes, mem);
}

gpunvme_err_t gpunvme_unregister(struct gpunvme_engine *engine, void *ptr)
{
    gpunvme_err_t err = find(engine, &engine);

    return err ? err : store_regions_remove(&engine->regions, ptr);
}
