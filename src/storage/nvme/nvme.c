/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The nvme backend: namespaces that this library drives itself. Each worker of the crew has a queue
 * pair and keeps up to `depth` commands in flight there. A thread that waits for one short transfer
 * of its own does it by itself, on a worker's queue.
 */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fail.h"
#include "base/relax.h"
#include "gpunvme/memory.h"
#include "gpunvme/sim.h"
#include "memory/cuda.h"
#include "memory/ordering.h"
#include "storage/futex.h"
#include "storage/nvme/store.h"
#include "transport/common.h"

#define DEFAULT_CHUNK  (128u << 10)
#define DEFAULT_DEPTH  32u
#define MIN_ENTRIES    256u
#define BOUNCE_NBYTES  (8u << 20) /* of a worker, about */
#define CALLER_DEPTH   1u
#define WORK_WAIT_NS   1000000000u /* of a worker without work, before it looks around */
#define SPIN_TURNS     32u
#define SPIN_NS        50000u /* of commands that are in flight, before it sleeps */
#define SLEEP_NS       20000u
#define MAX_SLEEP_NS   100000u
#define LOOK_NS        5000000u   /* without a completion, before it looks after the controller */
#define BUSY_LOOK_NS   100000000u /* between looks where there are completions all the time */
#define MIN_TIMEOUT_NS 20000000u  /* of a command, by a clock that may be 10 ms late */
#define PROBE_NBYTES   (64u << 10)

struct nvme_worker {
    struct gpunvme_ioq *ioq;
    struct nvme_bounces bounces;
    struct nvme_slot *slots; /* depth of them */
    struct nvme_slot **busy; /* the first nbusy; then those that are free */
    unsigned nbusy;
    uint64_t looked_ns; /* by nvme_rough_now() */
};

/* For a thread that does its own transfer. */
struct nvme_caller {
    _Atomic bool taken;
    struct nvme_bounces bounces;
    struct nvme_slot slot;
};

/* How long whoever has commands in flight has seen nothing happen. */
struct lull {
    unsigned turns;
    uint64_t since, looked, seen;
};

/*
 * For the deadlines of commands, some milliseconds wrong: an exact clock would be a good part of
 * what a command costs.
 */
uint64_t nvme_rough_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/*
 * Nothing has happened: spins at first, then sleeps, longer and longer, and now and then looks
 * whether the controller is still there. What it finds, the commands are told.
 */
static void wait_a_little(struct nvme_store *s, struct gpunvme_ioq *ioq, struct lull *lull)
{
    uint64_t now, waited;

    if (++lull->turns % SPIN_TURNS) {
        base_relax();
        return;
    }
    now = futex_now();
    if (lull->turns == SPIN_TURNS)
        lull->since = lull->looked = now;
    waited = now - lull->since;
    if (now - lull->looked >= LOOK_NS) {
        gpunvme_ctrl_check(s->ctrl);
        lull->looked = now;
    }
    if (waited < SPIN_NS) {
        sched_yield(); /* to whoever is to complete it, where he is a thread without a core */
    } else {
        uint64_t ns = waited / 8;

        lull->turns -= 1; /* from now on each turn is a sleep */
        gpunvme_ioq_sleep(ioq, &lull->seen,
                          ns < SLEEP_NS       ? SLEEP_NS
                          : ns > MAX_SLEEP_NS ? MAX_SLEEP_NS
                                              : ns);
    }
}

/* ---- Workers ----------------------------------------------------------------------------------
 */

static unsigned take(struct crew_worker *worker, struct nvme_worker *w, uint32_t depth, bool *stop)
{
    struct crew_piece pieces[64];
    unsigned room = depth - w->nbusy, n;

    if (room > 64)
        room = 64;
    if (!room)
        return 0;
    n = (unsigned)crew_take(worker, pieces, room, w->nbusy ? 0 : WORK_WAIT_NS, stop);
    for (unsigned i = 0; i < n; i++)
        nvme_slot_begin(w->busy[w->nbusy++], &pieces[i]);
    return n;
}

/* Whatever there is to do: for threads that do their own transfers, and because the kernel may ask
 * for a function that works. */
static void look_after(struct nvme_store *s, struct nvme_worker *w)
{
    uint64_t now = nvme_rough_now();

    if (now - w->looked_ns < BUSY_LOOK_NS)
        return;
    gpunvme_ctrl_check(s->ctrl); /* what it finds, the commands are told */
    w->looked_ns = now;
}

/* Whether anything happened. */
static bool turn_all(struct nvme_worker *w)
{
    uint64_t now = nvme_rough_now();
    bool moved = false;

    for (unsigned i = 0; i < w->nbusy;) {
        struct nvme_slot *slot = w->busy[i];

        moved |= nvme_slot_turn(slot, &now);
        if (slot->state != SLOT_ENDED) {
            i++;
            continue;
        }
        w->busy[i] = w->busy[--w->nbusy];
        w->busy[w->nbusy] = slot;
        crew_end(&slot->piece, slot->err, slot->done);
    }
    return moved;
}

static void work(struct crew_worker *worker)
{
    struct nvme_store *s = worker->store->priv;
    struct nvme_worker *w = worker->state;
    struct lull lull = {0};
    bool stop = false;

    while (!stop) {
        bool moved = take(worker, w, s->depth, &stop);

        look_after(s, w);
        moved |= turn_all(w);
        if (moved || !w->nbusy)
            lull.turns = 0;
        else
            wait_a_little(s, w->ioq, &lull);
    }
}

static gpunvme_err_t make_bounces(struct nvme_store *s, struct nvme_bounces *bounces, unsigned n)
{
    gpunvme_err_t err =
        gpunvme_ctrl_alloc(s->ctrl, n * s->chunk, GPUNVME_MEM_PINNED, &bounces->buf);

    return err ? err : nvme_bounces_init(bounces, n, s->chunk);
}

static void free_bounces(struct nvme_store *s, struct nvme_bounces *bounces)
{
    if (!nvme_bounces_end(bounces, s->is_left ? 0 : s->copy_timeout_ns))
        s->is_left = true;
    else if (bounces->buf.nbytes)
        gpunvme_ctrl_free(s->ctrl, &bounces->buf);
}

static void free_worker(struct nvme_store *s, struct nvme_worker *w)
{
    if (!w)
        return;
    free_bounces(s, &w->bounces);
    if (w->ioq)
        gpunvme_ioq_delete(w->ioq);
    free(w->slots);
    free(w->busy);
    free(w);
}

static void init_slot(struct gpunvme_store *store, struct nvme_slot *slot, struct gpunvme_ioq *ioq,
                      struct nvme_bounces *bounces, size_t claim)
{
    memset(slot, 0, sizeof(*slot));
    slot->store = store;
    slot->s = store->priv;
    slot->ioq = ioq;
    slot->bounces = bounces;
    slot->claim = claim;
    slot->bounce = -1;
}

static gpunvme_err_t make_worker(struct gpunvme_store *store, unsigned index, struct nvme_worker *w)
{
    struct nvme_store *s = store->priv;
    unsigned nbounces = (unsigned)(BOUNCE_NBYTES / s->chunk);
    gpunvme_err_t err = gpunvme_ioq_create(s->ctrl, s->entries, &w->ioq);

    if (err)
        return err;
    w->slots = calloc(s->depth, sizeof(w->slots[0]));
    w->busy = calloc(s->depth, sizeof(struct nvme_slot *));
    if (!w->slots || !w->busy)
        return base_fail(GPUNVME_ERR_NOMEM, "%u slots", s->depth);
    if (nbounces < 4)
        nbounces = 4;
    if (nbounces > s->depth)
        nbounces = s->depth;
    err = make_bounces(s, &w->bounces, nbounces);
    for (unsigned i = 0; i < s->depth && !err; i++) {
        init_slot(store, &w->slots[i], w->ioq, &w->bounces, (size_t)index * s->depth + i);
        w->busy[i] = &w->slots[i];
    }
    return err;
}

static gpunvme_err_t prepare(struct crew_worker *worker)
{
    struct nvme_store *s = worker->store->priv;
    struct nvme_worker *w = calloc(1, sizeof(*w));
    struct base_failure failure;
    gpunvme_err_t err;

    if (!w)
        return base_fail(GPUNVME_ERR_NOMEM, "a worker");
    err = make_worker(worker->store, worker->index, w);
    if (err) {
        base_keep(&failure, err);
        free_worker(s, w);
        return base_restore(&failure);
    }
    worker->state = w;
    s->workers[worker->index] = w;
    return GPUNVME_OK;
}

static void release(struct crew_worker *worker)
{
    free_worker(worker->store->priv, worker->state);
}

static const struct crew_ops crew_ops = {.prepare = prepare, .release = release, .work = work};

/* ---- Threads that do their own transfer --------------------------------------------------------
 */

static gpunvme_err_t make_callers(struct gpunvme_store *store)
{
    struct nvme_store *s = store->priv;

    s->callers = calloc(NVME_CALLERS, sizeof(s->callers[0]));
    if (!s->callers)
        return base_fail(GPUNVME_ERR_NOMEM, "slots of callers");
    for (unsigned i = 0; i < NVME_CALLERS; i++) {
        struct nvme_caller *c = &s->callers[i];
        gpunvme_err_t err = make_bounces(s, &c->bounces, CALLER_DEPTH);

        if (err)
            return err;
        init_slot(store, &c->slot, s->workers[i % store->threads]->ioq, &c->bounces,
                  (size_t)store->threads * s->depth + i);
    }
    return GPUNVME_OK;
}

static void free_callers(struct nvme_store *s)
{
    for (unsigned i = 0; s->callers && i < NVME_CALLERS; i++) {
        free_bounces(s, &s->callers[i].bounces);
    }
    free(s->callers);
}

static struct nvme_caller *take_caller(struct nvme_store *s)
{
    for (unsigned i = 0; i < NVME_CALLERS; i++) {
        struct nvme_caller *c = &s->callers[i];

        if (atomic_exchange_explicit(&c->taken, true, memory_order_acquire))
            continue;
        if (!nvme_bounces_all_lost(&c->bounces))
            return c;
        atomic_store_explicit(&c->taken, false, memory_order_release);
    }
    return NULL;
}

static void run_to_end(struct nvme_store *s, struct nvme_slot *slot)
{
    struct lull lull = {0};

    while (slot->state != SLOT_ENDED) {
        uint64_t now = nvme_rough_now();

        if (nvme_slot_turn(slot, &now))
            lull.turns = 0;
        else
            wait_a_little(s, slot->ioq, &lull);
    }
}

static bool nvme_direct(struct gpunvme_store *store, struct gpunvme_io *io)
{
    struct nvme_store *s = store->priv;
    struct crew_piece piece = {.io = io,
                               .store = store,
                               .op = io->op,
                               .mem = io->mem,
                               .offset = io->offset,
                               .ptr = io->ptr,
                               .nbytes = io->nbytes};
    struct nvme_caller *caller;

    if (io->nbytes > s->chunk)
        return false;
    caller = take_caller(s);
    if (!caller)
        return false;
    if (io->op != GPUNVME_OP_FLUSH)
        piece.region =
            store_regions_hold(store_engine_regions(store->engine), io->ptr, io->nbytes, io->mem);
    nvme_slot_begin(&caller->slot, &piece);
    run_to_end(s, &caller->slot);
    io->err = caller->slot.err;
    io->done = caller->slot.done;
    atomic_store_explicit(&caller->taken, false, memory_order_release);
    store_region_release(piece.region);
    return true;
}

/* ---- Opening ----------------------------------------------------------------------------------
 */

static bool is_foreign(const struct nvme_store *s)
{
    const struct gpunvme_sim *sim = gpunvme_transport_sim(gpunvme_ctrl_transport(s->ctrl));
    const struct gpunvme_sim_config *config = sim ? gpunvme_sim_config_of(sim) : NULL;

    for (uint32_t i = 0; config && i < config->nnamespaces; i++)
        if (config->ns[i].nsid == s->ns->nsid)
            return config->ns[i].is_foreign;
    return false;
}

static gpunvme_err_t find_ns(struct gpunvme_store *store, struct nvme_store *s)
{
    uint32_t nsid = store->uri.options.nsid;
    const struct gpunvme_ns *first = gpunvme_ctrl_ns_at(s->ctrl, 0);
    gpunvme_err_t err;

    if (!nsid && !first)
        return base_fail(GPUNVME_ERR_NO_NAMESPACE, "%s has no namespace", store->uri.target);
    err = gpunvme_ctrl_ns(s->ctrl, nsid ? nsid : first->nsid, &s->ns);
    if (!err && s->ns->readonly && store->flags & GPUNVME_OPEN_WRITE)
        return base_fail(GPUNVME_ERR_READONLY, "namespace %u of %s is write protected%s",
                         s->ns->nsid, store->uri.target,
                         is_foreign(s) ? ": the image holds data that gpunvme did not write; "
                                         "--force (GPUNVME_OPEN_FORCE, sim:…,force) overwrites it"
                                       : "");
    return err;
}

static uint64_t floor_power(uint64_t x)
{
    while (x & (x - 1))
        x &= x - 1;
    return x;
}

static unsigned log2_of(uint64_t x)
{
    unsigned n = 0;

    while (x >>= 1)
        n++;
    return n;
}

/* The largest piece that is one command. */
static size_t choose_chunk(const struct store_options *o, const struct gpunvme_ns *ns)
{
    uint64_t chunk = o->chunk_nbytes ? o->chunk_nbytes : DEFAULT_CHUNK;
    uint64_t most = floor_power((uint64_t)ns->max_blocks << ns->block_shift);
    uint64_t boundary = (uint64_t)ns->boundary_blocks << ns->block_shift;

    if (chunk > most)
        chunk = most;
    if (boundary && !(boundary & (boundary - 1)) && chunk > boundary)
        chunk = boundary;
    return (size_t)(chunk < ns->block_size ? ns->block_size : chunk);
}

static uint32_t choose_entries(uint32_t depth, uint32_t most)
{
    uint32_t entries = MIN_ENTRIES;

    while (entries < 2 * (depth + NVME_CALLERS) && entries < most)
        entries *= 2;
    return entries < most ? entries : most;
}

static uint32_t choose_threads(const struct store_options *o, uint32_t most)
{
    long ncpus = sysconf(_SC_NPROCESSORS_ONLN);
    uint32_t n = o->threads ? o->threads : ncpus >= 16 ? 4u : ncpus >= 8 ? 2u : 1u;

    return n < most ? n : most;
}

/*
 * Maps memory for the controller, unless it is a GPU's whose kernels might see less of it than has
 * arrived when a transfer has ended.
 */
static gpunvme_err_t map_memory(void *share, const struct gpunvme_buf *buf, void **out)
{
    struct gpunvme_transport *tr = gpunvme_ctrl_transport(nvme_share_ctrl(share));
    const char *lacks =
        buf->mem == GPUNVME_MEM_GPU ? transport_writes_lack(tr, mem_gpu_of(buf)) : NULL;
    struct nvme_mapping *mapping;
    gpunvme_err_t err;

    if (lacks)
        return base_fail(GPUNVME_ERR_UNSUPPORTED, "%s", lacks);
    err = nvme_share_map(share, buf, &mapping);
    if (!err)
        *out = mapping;
    return err;
}

static void unmap_memory(void *share, void *mapping)
{
    nvme_share_unmap(share, mapping);
}

static const struct store_domain_ops domain_ops = {.map = map_memory, .unmap = unmap_memory};

/* Whether the controller reaches memory of the GPU, found out by a small piece of it. */
static void probe_p2p(struct gpunvme_store *store, struct nvme_store *s)
{
    struct gpunvme_buf buf = {0};
    void *mapping = NULL;
    gpunvme_err_t err = gpunvme_mem_alloc(PROBE_NBYTES, GPUNVME_MEM_GPU, &buf);

    if (!err)
        err = map_memory(s->share, &buf, &mapping);
    if (err)
        snprintf(s->why_no_p2p, sizeof(s->why_no_p2p), "%s", gpunvme_err_detail());
    else
        nvme_share_unmap(s->share, mapping);
    store->gpu_route = err ? GPUNVME_ROUTE_BOUNCE : GPUNVME_ROUTE_P2P;
    gpunvme_mem_free(&buf);
}

static void choose(struct gpunvme_store *store, struct nvme_store *s)
{
    const struct store_options *o = &store->uri.options;
    struct gpunvme_ctrl_info info;

    gpunvme_ctrl_get_info(s->ctrl, &info);
    s->page_shift = log2_of(info.page_size);
    store->queue.piece_nbytes = s->chunk = choose_chunk(o, s->ns);
    s->depth = o->depth ? o->depth : DEFAULT_DEPTH;
    s->entries = choose_entries(s->depth, info.max_entries);
    /* A late command ends, by Abort or a reset, before the calls that wait for it give up. */
    s->command_timeout_ns = o->timeout_ns / 3 > MIN_TIMEOUT_NS ? o->timeout_ns / 3 : MIN_TIMEOUT_NS;
    /* So does a late copy, even one behind a late command. */
    s->copy_timeout_ns = o->timeout_ns / 2 > MIN_TIMEOUT_NS ? o->timeout_ns / 2 : MIN_TIMEOUT_NS;
    store->block_size = s->ns->block_size;
    store->resizable = false;
    store->threads = choose_threads(o, info.max_io_queues);
}

static gpunvme_err_t nvme_close(struct gpunvme_store *store)
{
    struct nvme_store *s = store->priv;
    gpunvme_err_t err;

    store_domain_leave(store);
    if (s->callers)
        free_callers(s);
    crew_stop(s->crew);
    nvme_claims_free(&s->claims);
    err = s->is_left ? base_fail(GPUNVME_ERR_IO,
                                 "%.100s: work on the GPU does not end: what it may reach for, the "
                                 "controller with it, is left to it until the process ends",
                                 store->uri.target)
                     : nvme_share_close(s->share);
    free(s->workers);
    free(s);
    return err;
}

/*
 * A worker for each queue that there is: other stores may have taken some. One that was asked for
 * in so many words is missed all the same.
 */
static gpunvme_err_t start_workers(struct gpunvme_store *store)
{
    struct nvme_store *s = store->priv;
    gpunvme_err_t err;

    do {
        err = crew_start(store, &crew_ops, store->threads, &s->crew);
    } while (err == GPUNVME_ERR_LIMIT && (store->threads /= 2));
    return err;
}

static gpunvme_err_t start(struct gpunvme_store *store)
{
    struct nvme_store *s = store->priv;
    struct nvme_claimed *claimed = nvme_share_claimed(s->share, s->ns->nsid);
    gpunvme_err_t err;

    s->workers = calloc(store->threads, sizeof(struct nvme_worker *));
    if (!s->workers || !claimed ||
        !nvme_claims_init(&s->claims, claimed, (size_t)store->threads * s->depth + NVME_CALLERS))
        return base_fail(GPUNVME_ERR_NOMEM, "%u workers", store->threads);
    err = start_workers(store);
    if (err)
        return err;
    store->crew = s->crew;
    store_domain_join(store, &domain_ops, s->share);
    return make_callers(store);
}

static gpunvme_err_t nvme_open(struct gpunvme_store *store)
{
    struct nvme_store *s = calloc(1, sizeof(*s));
    struct base_failure failure;
    gpunvme_err_t err;

    if (!s)
        return base_fail(GPUNVME_ERR_NOMEM, "a store");
    store->priv = s;
    err = nvme_share_open(store->uri.target, &s->share);
    if (err) {
        free(s);
        return err;
    }
    s->ctrl = nvme_share_ctrl(s->share);
    err = find_ns(store, s);
    if (!err) {
        choose(store, s);
        probe_p2p(store, s);
        err = start(store);
    }
    if (err) {
        base_keep(&failure, err);
        nvme_close(store);
        return base_restore(&failure);
    }
    return GPUNVME_OK;
}

/* ---- The rest ---------------------------------------------------------------------------------
 */

static gpunvme_err_t nvme_size(struct gpunvme_store *store, uint64_t *nbytes)
{
    const struct nvme_store *s = store->priv;

    *nbytes = s->ns->nbytes;
    return GPUNVME_OK;
}

/* The threads of a simulated controller copy as well. */
static gpunvme_err_t nvme_prepare(struct gpunvme_store *store, unsigned gpu)
{
    if (strcmp(store->uri.scheme, "sim") || gpunvme_mem_gpu_is_host())
        return GPUNVME_OK;
    return mem_cuda_keep_ready(gpu);
}

static void say_how(const struct gpunvme_store *store, const struct nvme_store *s, char *text,
                    size_t room)
{
    snprintf(text, room,
             "own driver over %s, namespace %u, %u queue%s of %u entries, %u commands each, pieces "
             "of %zu KiB",
             gpunvme_ctrl_transport(s->ctrl)->ops->name, s->ns->nsid, store->threads,
             store->threads == 1 ? "" : "s", s->entries, s->depth, s->chunk >> 10);
}

static void nvme_describe(struct gpunvme_store *store, struct gpunvme_path *path)
{
    struct nvme_store *s = store->priv;
    bool bounced =
        path->bytes_read[GPUNVME_ROUTE_BOUNCE] || path->bytes_written[GPUNVME_ROUTE_BOUNCE];

    say_how(store, s, path->how, sizeof(path->how));
    if (store->gpu_route != GPUNVME_ROUTE_P2P)
        snprintf(path->why_not, sizeof(path->why_not), "p2p: %s", s->why_no_p2p);
    else if (gpunvme_mem_gpu_is_host())
        snprintf(path->why_not, sizeof(path->why_not), "GPU memory is host memory here: %s",
                 gpunvme_mem_gpu_why_not());
    if (bounced && store->gpu_route == GPUNVME_ROUTE_P2P) {
        size_t n = strlen(path->why_not);

        snprintf(path->why_not + n, sizeof(path->why_not) - n,
                 "%sp2p for all bytes: memory that is not registered, or not at a multiple of 4 "
                 "bytes, and parts of blocks go by a bounce buffer",
                 n ? "; " : "");
    }
}

/* Which drives this machine has is told with the transports, by gpunvme info. */
static void nvme_about(struct gpunvme_backend_info *info)
{
    info->works = true;
    snprintf(info->why, sizeof(info->why),
             "this library's own driver, wherever a controller can be reached");
}

const struct store_backend store_nvme = {
    .name = "nvme",
    .option_bit = STORE_NVME,
    .open = nvme_open,
    .close = nvme_close,
    .size = nvme_size,
    .direct = nvme_direct,
    .prepare = nvme_prepare,
    .about = nvme_about,
    .describe = nvme_describe,
};
