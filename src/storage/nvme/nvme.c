/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The nvme backend: namespaces that this library drives itself. A controller has lanes (lane.h),
 * each a queue pair in a worker of the engine. A thread that waits for one short transfer of its
 * own does it by itself, on a lane's queue.
 */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fail.h"
#include "base/relax.h"
#include "gpunvme/memory.h"
#include "memory/ordering.h"
#include "storage/futex.h"
#include "storage/nvme/lane.h"
#include "transport/common.h"

#define DEFAULT_DEPTH  32u
#define MIN_ENTRIES    256u
#define CALLER_DEPTH   1u
#define CALLER_WAIT_NS 100000u
#define MIN_TIMEOUT_NS 20000000u /* of a command, by a clock that may be 10 ms late */
#define PROBE_NBYTES   (64u << 10)

/* For a thread that does its own transfer. */
struct nvme_caller {
    _Atomic bool taken;
    struct nvme_bounces bounces;
    struct nvme_slot slot;
};

/* ---- Threads that do their own transfer ------------------------------------------------------ */

static gpunvme_err_t make_callers(struct gpunvme_store *store)
{
    struct nvme_store *s = store->priv;

    s->callers = calloc(NVME_CALLERS, sizeof(s->callers[0]));
    if (!s->callers)
        return base_fail(GPUNVME_ERR_NOMEM, "slots of callers");
    for (unsigned i = 0; i < NVME_CALLERS; i++) {
        struct nvme_caller *c = &s->callers[i];
        gpunvme_err_t err = nvme_make_bounces(s->share, &c->bounces, CALLER_DEPTH, s->chunk);

        if (err)
            return err;
        nvme_slot_init(&c->slot, s->lanes->ioqs[i % store->threads], &c->bounces);
    }
    return GPUNVME_OK;
}

static void free_callers(struct nvme_store *s)
{
    for (unsigned i = 0; s->callers && i < NVME_CALLERS; i++)
        if (!nvme_free_bounces(s->share, &s->callers[i].bounces,
                               s->is_left ? 0 : s->copy_timeout_ns))
            s->is_left = true;
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
    struct nvme_lull lull = {0};

    while (slot->state != SLOT_ENDED) {
        uint64_t now = nvme_rough_now();

        if (nvme_slot_turn(slot, &now))
            lull.turns = 0;
        else if (nvme_slot_must_block(slot))
            nvme_slot_block(slot);
        else if (nvme_wait_a_little(slot->ioq, &lull, CALLER_WAIT_NS))
            gpunvme_ctrl_check(s->share->ctrl); /* what it finds, the commands are told */
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

/* ---- Opening --------------------------------------------------------------------------------- */

static gpunvme_err_t find_ns(struct gpunvme_store *store, struct nvme_store *s)
{
    uint32_t nsid = store->uri.options.nsid;
    const struct gpunvme_ns *first = gpunvme_ctrl_ns_at(s->share->ctrl, 0);
    gpunvme_err_t err;

    if (!nsid && !first)
        return base_fail(GPUNVME_ERR_NO_NAMESPACE, "%s has no namespace", store->uri.target);
    err = gpunvme_ctrl_ns(s->share->ctrl, nsid ? nsid : first->nsid, &s->ns);
    if (!err && s->ns->readonly && store->flags & GPUNVME_OPEN_WRITE)
        return base_fail(GPUNVME_ERR_READONLY, "namespace %u of %s is write protected%s",
                         s->ns->nsid, store->uri.target,
                         strcmp(store->uri.scheme, "sim")
                             ? ""
                             : ": if the image holds data that gpunvme did not write, --force "
                               "(GPUNVME_OPEN_FORCE, sim:…,force) overwrites it");
    return err;
}

/* The largest piece that is one command. */
static size_t choose_chunk(uint64_t wanted, const struct gpunvme_ns *ns)
{
    uint64_t chunk = wanted ? wanted : NVME_CHUNK;
    uint64_t most = (UINT64_C(1) << 31 >> __builtin_clz(ns->max_blocks | 1)) << ns->block_shift;
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

/* Memory that the controller reaches slower than by a bounce buffer is of no use to a store. */
static gpunvme_err_t check_worth(const struct gpunvme_transport *t, const struct gpunvme_buf *buf)
{
    struct base_failure why;
    uint64_t offset;
    int fd;

    if (!t->prefers_export)
        return GPUNVME_OK;
    if (gpunvme_mem_export(buf, &fd, &offset) == GPUNVME_OK) {
        close(fd);
        return GPUNVME_OK;
    }
    base_keep(&why, GPUNVME_ERR_UNSUPPORTED);
    return base_fail(GPUNVME_ERR_UNSUPPORTED,
                     "by %s, memory without a descriptor is slower than a bounce buffer: %.150s",
                     t->ops->name, why.detail);
}

/*
 * Maps memory for the controller, unless it is a GPU's whose kernels might see less of it than has
 * arrived when a transfer has ended. *out: a copy of `buf` with the bus address.
 */
static gpunvme_err_t map_memory(void *ctrl, const struct gpunvme_buf *buf, void **out)
{
    struct gpunvme_transport *tr = gpunvme_ctrl_transport(ctrl);
    const char *lacks =
        buf->mem == GPUNVME_MEM_GPU ? transport_writes_lack(tr, mem_gpu_of(buf)) : NULL;
    gpunvme_err_t err = lacks ? base_fail(GPUNVME_ERR_UNSUPPORTED, "%s", lacks) : GPUNVME_OK;
    struct gpunvme_buf *mapped;

    if (!err)
        err = check_worth(tr, buf);
    if (err)
        return err;
    mapped = malloc(sizeof(*mapped));
    if (!mapped)
        return base_fail(GPUNVME_ERR_NOMEM, "a mapping");
    *mapped = *buf;
    err = gpunvme_ctrl_map(ctrl, mapped);
    if (err)
        free(mapped);
    else
        *out = mapped;
    return err;
}

static void unmap_memory(void *ctrl, void *mapped)
{
    gpunvme_ctrl_unmap(ctrl, mapped);
    free(mapped);
}

static const struct store_domain_ops domain_ops = {.map = map_memory, .unmap = unmap_memory};

/* Whether GPU memory can be mapped for the controller is found out by some. */
static void probe(struct gpunvme_store *store, struct nvme_store *s)
{
    struct gpunvme_buf buf = {0};
    void *mapped = NULL;
    gpunvme_err_t err = gpunvme_mem_alloc(PROBE_NBYTES, GPUNVME_MEM_GPU, &buf);

    if (!err)
        err = map_memory(s->share->ctrl, &buf, &mapped);
    if (err)
        snprintf(s->why_no_p2p, sizeof(s->why_no_p2p), "%s", gpunvme_err_detail());
    else
        unmap_memory(s->share->ctrl, mapped);
    store->gpu_route = err ? GPUNVME_ROUTE_BOUNCE : GPUNVME_ROUTE_P2P;
    gpunvme_mem_free(&buf);
}

void nvme_store_choose(struct gpunvme_store *store, struct nvme_store *s, uint32_t depth)
{
    const struct store_options *o = &store->uri.options;

    s->chunk = choose_chunk(o->chunk_nbytes, s->ns);
    s->depth = o->depth > depth ? o->depth : depth;
    /* A late command ends, by Abort or a reset, before the calls that wait for it give up. */
    s->command_timeout_ns = o->timeout_ns / 3 > MIN_TIMEOUT_NS ? o->timeout_ns / 3 : MIN_TIMEOUT_NS;
    /* So does a late copy, even one behind a late command. */
    s->copy_timeout_ns = o->timeout_ns / 2 > MIN_TIMEOUT_NS ? o->timeout_ns / 2 : MIN_TIMEOUT_NS;
    store->block_size = s->ns->block_size;
    store->resizable = false;
}

static void choose(struct gpunvme_store *store, struct nvme_store *s)
{
    struct gpunvme_ctrl_info info;

    gpunvme_ctrl_get_info(s->share->ctrl, &info);
    nvme_store_choose(store, s, DEFAULT_DEPTH);
    s->page_shift = (unsigned)__builtin_ctzll(info.page_size);
    s->entries = choose_entries(s->depth, info.max_entries);
    store->threads = choose_threads(&store->uri.options, info.max_io_queues);
}

gpunvme_err_t nvme_store_close(struct gpunvme_store *store)
{
    struct nvme_store *s = store->priv;

    store_domain_leave(store);
    free_callers(s);
    if (!nvme_lanes_leave(store->engine, s->lanes))
        s->is_left = true;
    if (s->is_left)
        return base_fail(GPUNVME_ERR_IO,
                         "%.100s: work on the GPU does not end: what it may reach for, the "
                         "controller with it, is left to it until the process ends",
                         store->uri.target);
    return nvme_share_close(s->share);
}

/* `threads=`, `depth=` and `chunk=` within what the controller's lanes have. */
static void set_limits(struct gpunvme_store *store, struct nvme_store *s)
{
    const struct store_options *o = &store->uri.options;

    if (store->threads > s->lanes->n)
        store->threads = s->lanes->n;
    store->queue.nlanes = store->threads;
    if (o->depth && o->depth < s->lanes->depth)
        store->queue.max_in_hand = (size_t)o->depth * store->threads;
    s->depth = o->depth && o->depth < s->lanes->depth ? o->depth : s->lanes->depth;
    if (s->chunk > s->lanes->chunk)
        s->chunk = s->lanes->chunk;
    store->queue.piece_nbytes = s->chunk;
}

gpunvme_err_t nvme_store_serve(struct gpunvme_store *store, struct nvme_store *s)
{
    gpunvme_err_t err = nvme_lanes_take(store->engine, s, store->threads);

    if (err)
        return err;
    set_limits(store, s);
    store->crew = s->lanes->crew;
    return GPUNVME_OK;
}

static gpunvme_err_t nvme_open(struct gpunvme_store *store)
{
    struct nvme_store *s = store->priv;
    gpunvme_err_t err = nvme_share_open(NULL, store->uri.target, 0, &s->share);

    if (err)
        return err;
    err = find_ns(store, s);
    if (err)
        return err;
    choose(store, s);
    probe(store, s);
    err = nvme_store_serve(store, s);
    if (err)
        return err;
    store_domain_join(store, &domain_ops, s->share->ctrl);
    return make_callers(store);
}

/* ---- The rest -------------------------------------------------------------------------------- */

gpunvme_err_t nvme_store_size(struct gpunvme_store *store, uint64_t *nbytes)
{
    const struct nvme_store *s = store->priv;

    *nbytes = s->ns->nbytes;
    return GPUNVME_OK;
}

static void nvme_describe(struct gpunvme_store *store, struct gpunvme_path *path)
{
    struct nvme_store *s = store->priv;
    bool bounced =
        path->bytes_read[GPUNVME_ROUTE_BOUNCE] || path->bytes_written[GPUNVME_ROUTE_BOUNCE];

    STORE_SAY(path->how,
              "own driver over %s, namespace %u, %u queue%s of %u entries, %u commands each, "
              "pieces of %zu KiB",
              gpunvme_ctrl_transport(s->share->ctrl)->ops->name, s->ns->nsid, store->threads,
              store->threads == 1 ? "" : "s", s->entries, s->depth, s->chunk >> 10);
    if (store->gpu_route != GPUNVME_ROUTE_P2P)
        STORE_SAY(path->why_not, "p2p: %s", s->why_no_p2p);
    else if (gpunvme_mem_gpu_is_host())
        STORE_SAY(path->why_not, "GPU memory is host memory here: %s", gpunvme_mem_gpu_why_not());
    if (bounced && store->gpu_route == GPUNVME_ROUTE_P2P)
        STORE_SAY(path->why_not,
                  "%sp2p for all bytes: memory that is not registered, or not at a multiple of 4 "
                  "bytes, and parts of blocks go by a bounce buffer",
                  path->why_not[0] ? "; " : "");
}

const struct store_backend store_nvme = {
    .name = "nvme",
    .option_bit = STORE_NVME,
    .open = nvme_open,
    .priv_nbytes = sizeof(struct nvme_store),
    .close = nvme_store_close,
    .size = nvme_store_size,
    .direct = nvme_direct,
    /* Which drives this machine has is told with the transports, by gpunvme info. */
    .works_with = "this library's own driver, wherever a controller can be reached",
    .describe = nvme_describe,
};
