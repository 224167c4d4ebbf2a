/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The spdk backend: a namespace that SPDK drives. Each thread of the crew has a queue pair and as
 * many pieces in flight as it has slots. Memory that SPDK reaches is read and written where it is;
 * all else, and pieces that are not whole blocks, go through the slot's bounce buffer.
 *
 * A write of part of a block reads the block first. Meanwhile nobody else may write to it, so every
 * write holds the lock of its stretch of the store, of one piece's size: whole blocks shared, parts
 * of blocks alone. Who can't have it tries again later; nobody waits for it.
 */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fail.h"
#include "gpunvme/memory.h"
#include "storage/crew.h"
#include "storage/futex.h"
#include "storage/spdk/env.h"

#define DEFAULT_DEPTH   64u
#define DEFAULT_CHUNK   (256u << 10)
#define DEFAULT_THREADS 4u
#define WAIT_NS         1000000000u /* of a worker without work, before it looks around */
#define TAKE            16u         /* pieces at once */
#define IDLE_POLLS      4096u       /* without an end, before others may have the core */
#define PROBE_NBYTES    (2u << 20)

#define NLOCKS 1024u
#define ALONE  0x80000000u /* a write of parts of blocks has it */
#define WANTED 0x40000000u /* one wants it: no more writes of whole blocks until it was there */

struct spdk {
    struct gspdk_ctrlr *ctrlr;
    struct gspdk_ns ns;
    uint64_t nbytes;
    size_t chunk;
    unsigned depth;
    uint64_t timeout_ns;            /* of a command */
    char why_not[200];              /* why GPU memory is not reached; "" */
    _Atomic uint32_t locks[NLOCKS]; /* writes of whole blocks, or ALONE; and WANTED */
};

/* What a piece needs next. */
enum step { LOCK, HEAD, TAIL, FILL, FILLING, MOVE, DRAIN, DRAINING };

struct slot {
    struct gspdk_cmd cmd; /* first: a command is its slot */
    struct slot *next;    /* among the free, or those that are tried again */
    struct crew_piece piece;
    enum step step;
    void *direct;    /* SPDK's address of the piece's memory; NULL: by the bounce buffer */
    uint8_t *bounce; /* whole blocks from `lba` on */
    uint64_t lba;    /* first block that the piece touches */
    uint32_t nlb;    /* */
    uint32_t skip;   /* bytes of the first block in front of the piece */
    size_t nbytes;   /* of the piece that the store has */
    uint32_t holds;  /* of the lock: 0, 1 or ALONE */
    enum gpunvme_route route;
    struct gpunvme_mem_stream *stream; /* for GPU memory; NULL: there is no GPU, or no room there */
};

struct worker {
    struct gspdk_queue *queue;
    struct slot *slots, *free, *again;
    unsigned nfree;
    uint8_t *bounce;
    struct gpunvme_buf pinned; /* the bounce buffers, as CUDA knows them */
    uint64_t deadline_ns;      /* of commands that begin in this turn */
};

/* ---- locks of stretches ---- */

static _Atomic uint32_t *lock_of(struct spdk *spdk, const struct slot *slot)
{
    return &spdk->locks[slot->piece.offset / spdk->chunk % NLOCKS];
}

static bool lock_shared(_Atomic uint32_t *lock)
{
    uint32_t value = atomic_load(lock);

    while (!(value & (ALONE | WANTED)))
        if (atomic_compare_exchange_weak(lock, &value, value + 1))
            return true;
    return false;
}

static bool lock_alone(_Atomic uint32_t *lock)
{
    uint32_t value = atomic_load(lock);

    while (!(value & ~WANTED))
        if (atomic_compare_exchange_weak(lock, &value, ALONE))
            return true;
    atomic_fetch_or(lock, WANTED);
    return false;
}

static bool is_partial(const struct spdk *spdk, const struct slot *slot)
{
    return slot->skip || slot->nbytes % spdk->ns.block_size;
}

static bool try_lock(struct spdk *spdk, struct slot *slot)
{
    bool alone = is_partial(spdk, slot);
    _Atomic uint32_t *lock = lock_of(spdk, slot);

    if (slot->piece.op != GPUNVME_OP_WRITE)
        return true;
    if (!(alone ? lock_alone(lock) : lock_shared(lock)))
        return false;
    slot->holds = alone ? ALONE : 1;
    return true;
}

/* ---- slots ---- */

static void finish(struct crew_worker *crew_worker, struct slot *slot, gpunvme_err_t err)
{
    struct worker *w = crew_worker->state;
    struct gpunvme_io *io = slot->piece.io;
    struct crew_piece piece = slot->piece;
    size_t done = err ? 0 : slot->nbytes;

    if (slot->holds)
        atomic_fetch_sub(lock_of(crew_worker->store->priv, slot), slot->holds);
    if (io->op != GPUNVME_OP_FLUSH)
        store_moved(crew_worker->store, io->op, slot->route, done);
    slot->next = w->free;
    w->free = slot;
    w->nfree++;
    crew_end(&piece, err, done);
}

static void try_again(struct worker *w, struct slot *slot)
{
    slot->next = w->again;
    w->again = slot;
}

/* Starts the command for a step, `next` being the step after it. */
static void start(struct crew_worker *crew_worker, struct slot *slot, enum gspdk_op op,
                  uint64_t lba, uint32_t nlb, void *addr, enum step next)
{
    struct worker *w = crew_worker->state;
    struct spdk *spdk = crew_worker->store->priv;
    enum step now = slot->step;
    gpunvme_err_t err;

    slot->cmd.op = op;
    slot->cmd.lba = lba;
    slot->cmd.nlb = nlb;
    slot->cmd.addr = addr;
    slot->cmd.deadline_ns = w->deadline_ns;
    slot->step = next;
    err = gspdk_submit(w->queue, &spdk->ns, &slot->cmd);
    if (err == GPUNVME_ERR_AGAIN) {
        slot->step = now;
        try_again(w, slot);
    } else if (err) {
        finish(crew_worker, slot, err);
    }
}

/* Copies between the piece's memory and the bounce buffer, in the background for a GPU's. */
static gpunvme_err_t copy(struct worker *w, struct slot *slot)
{
    uint8_t *bounce = slot->bounce + slot->skip;
    const struct gpunvme_buf near = {.gpu = slot->piece.ptr, .mem = GPUNVME_MEM_GPU};
    enum gpunvme_mem mem = w->pinned.cpu ? GPUNVME_MEM_PINNED : GPUNVME_MEM_HOST;
    bool out = slot->piece.op == GPUNVME_OP_READ;
    gpunvme_err_t err = GPUNVME_OK;

    if (slot->piece.mem != GPUNVME_MEM_GPU || gpunvme_mem_gpu_is_host()) {
        memcpy(out ? slot->piece.ptr : bounce, out ? bounce : slot->piece.ptr, slot->nbytes);
        return GPUNVME_OK;
    }
    if (!slot->stream)
        err = gpunvme_mem_stream_create(&near, &slot->stream);
    if (err)
        return err;
    return out ? gpunvme_mem_copy_async(slot->piece.ptr, GPUNVME_MEM_GPU, bounce, mem, slot->nbytes,
                                        slot->stream)
               : gpunvme_mem_copy_async(bounce, mem, slot->piece.ptr, GPUNVME_MEM_GPU, slot->nbytes,
                                        slot->stream);
}

static gpunvme_err_t copied(struct slot *slot, bool *done)
{
    *done = true;
    return slot->piece.mem == GPUNVME_MEM_GPU && slot->stream
               ? gpunvme_mem_stream_query(slot->stream, done)
               : GPUNVME_OK;
}

/*
 * One step of a piece. False when it has to wait, for its command, in the list of those that are
 * tried again, or not any more since it has ended; else it can go on.
 */
static bool one_step(struct crew_worker *crew_worker, struct slot *slot)
{
    struct spdk *spdk = crew_worker->store->priv;
    uint32_t block = spdk->ns.block_size;
    bool fills = slot->piece.op == GPUNVME_OP_WRITE && !slot->direct;
    bool drains = slot->piece.op == GPUNVME_OP_READ && !slot->direct;
    bool tail = (slot->skip + slot->nbytes) % block;
    gpunvme_err_t err = GPUNVME_OK;
    bool done = true;

    switch (slot->step) {
    case LOCK:
        done = try_lock(spdk, slot);
        slot->step = done ? HEAD : LOCK;
        break;
    case HEAD:
        slot->step = TAIL;
        if (!fills || !slot->skip)
            break;
        slot->step = HEAD;
        start(crew_worker, slot, GSPDK_READ, slot->lba, 1, slot->bounce, TAIL);
        return false;
    case TAIL:
        slot->step = FILL;
        if (!fills || !tail || (slot->skip && slot->nlb == 1))
            break;
        slot->step = TAIL;
        start(crew_worker, slot, GSPDK_READ, slot->lba + slot->nlb - 1, 1,
              slot->bounce + (size_t)(slot->nlb - 1) * block, FILL);
        return false;
    case FILL:
        slot->step = FILLING;
        if (fills)
            err = copy(crew_worker->state, slot);
        break;
    case FILLING:
        if (fills)
            err = copied(slot, &done);
        slot->step = done ? MOVE : FILLING;
        break;
    case MOVE:
        start(crew_worker, slot, slot->piece.op == GPUNVME_OP_WRITE ? GSPDK_WRITE : GSPDK_READ,
              slot->lba, slot->nlb, slot->direct ? slot->direct : slot->bounce, DRAIN);
        return false;
    case DRAIN:
        slot->step = DRAINING;
        if (drains)
            err = copy(crew_worker->state, slot);
        break;
    case DRAINING:
        if (drains)
            err = copied(slot, &done);
        if (!err && done) {
            finish(crew_worker, slot, GPUNVME_OK);
            return false;
        }
        break;
    }
    if (err)
        finish(crew_worker, slot, err);
    else if (!done)
        try_again(crew_worker->state, slot);
    return !err && done;
}

static void proceed(struct crew_worker *crew_worker, struct slot *slot)
{
    while (one_step(crew_worker, slot))
        ;
}

/* ---- pieces ---- */

static void flush(struct crew_worker *crew_worker, struct slot *slot)
{
    struct spdk *spdk = crew_worker->store->priv;

    slot->nbytes = 0;
    if (spdk->ns.has_flush)
        start(crew_worker, slot, GSPDK_FLUSH, 0, 0, NULL, DRAINING);
    else
        finish(crew_worker, slot, GPUNVME_OK); /* no cache: what was written is on the medium */
}

/* Where its blocks are, and which way its bytes go. */
static void lay_out(struct spdk *spdk, struct slot *slot)
{
    const struct crew_piece *piece = &slot->piece;
    struct gspdk_region *reached = store_region_map(piece->store, piece->region);
    uint32_t block = spdk->ns.block_size;
    uint64_t left = piece->offset < spdk->nbytes ? spdk->nbytes - piece->offset : 0;

    slot->nbytes = piece->nbytes < left ? piece->nbytes : (size_t)left;
    slot->lba = piece->offset / block;
    slot->skip = (uint32_t)(piece->offset % block);
    slot->nlb = (uint32_t)((slot->skip + slot->nbytes + block - 1) / block);
    slot->direct =
        reached && !is_partial(spdk, slot) ? gspdk_reach(reached, piece->ptr, slot->nbytes) : NULL;
    if ((uintptr_t)slot->direct % 4)
        slot->direct = NULL;
    slot->route = piece->mem != GPUNVME_MEM_GPU ? GPUNVME_ROUTE_HOST
                  : slot->direct                ? GPUNVME_ROUTE_P2P
                                                : GPUNVME_ROUTE_BOUNCE;
}

static void begin(struct crew_worker *crew_worker, const struct crew_piece *piece)
{
    struct worker *w = crew_worker->state;
    struct spdk *spdk = crew_worker->store->priv;
    struct slot *slot = w->free;
    gpunvme_err_t err;

    w->free = slot->next;
    w->nfree--;
    slot->piece = *piece;
    slot->holds = 0;
    slot->direct = NULL;
    slot->step = LOCK;
    if (piece->op == GPUNVME_OP_FLUSH) {
        flush(crew_worker, slot);
        return;
    }
    lay_out(spdk, slot);
    err = store_allows(crew_worker->store, piece->mem, slot->route);
    if (err || !slot->nbytes)
        finish(crew_worker, slot, err); /* behind the end: nothing was moved */
    else
        proceed(crew_worker, slot);
}

static void tell(const struct slot *slot, gpunvme_err_t err)
{
    static const char *const names[] = {"Read", "Write", "Flush"};

    base_fail(err, "%s of %u blocks at LBA %llu: %s", names[slot->cmd.op], slot->cmd.nlb,
              (unsigned long long)slot->cmd.lba, gpunvme_err_name(err));
}

static unsigned reap(struct crew_worker *crew_worker)
{
    struct worker *w = crew_worker->state;
    struct gspdk_cmd *cmd;
    unsigned n = 0;

    while ((cmd = gspdk_poll(w->queue))) {
        struct slot *slot = (struct slot *)cmd;

        n++;
        if (cmd->err) {
            tell(slot, cmd->err);
            finish(crew_worker, slot, cmd->err);
        } else {
            proceed(crew_worker, slot);
        }
    }
    return n;
}

static void retry(struct crew_worker *crew_worker)
{
    struct worker *w = crew_worker->state;
    struct slot *slot = w->again;

    w->again = NULL;
    while (slot) {
        struct slot *next = slot->next;

        if (slot->piece.op == GPUNVME_OP_FLUSH)
            flush(crew_worker, slot);
        else
            proceed(crew_worker, slot);
        slot = next;
    }
}

static void work(struct crew_worker *crew_worker)
{
    struct worker *w = crew_worker->state;
    struct spdk *spdk = crew_worker->store->priv;
    struct crew_piece pieces[TAKE];
    unsigned nidle = 0;
    bool stop = false;

    while (!stop) {
        bool busy = w->nfree < spdk->depth;
        size_t room = w->nfree < TAKE ? w->nfree : TAKE, n = 0;

        if (room)
            n = crew_take(crew_worker, pieces, room, busy ? 0 : WAIT_NS, &stop);
        w->deadline_ns = futex_now() + spdk->timeout_ns;
        for (size_t i = 0; i < n; i++)
            begin(crew_worker, &pieces[i]);
        if (w->again)
            retry(crew_worker);
        if (reap(crew_worker) || n)
            nidle = 0;
        else if (++nidle % IDLE_POLLS == 0)
            sched_yield();
    }
}

/* ---- workers ---- */

static void release(struct crew_worker *crew_worker)
{
    struct worker *w = crew_worker->state;
    struct spdk *spdk = crew_worker->store->priv;

    gspdk_queue_destroy(w->queue);
    for (unsigned i = 0; w->slots && i < spdk->depth; i++)
        gpunvme_mem_stream_destroy(w->slots[i].stream);
    gpunvme_mem_unregister(&w->pinned);
    gspdk_free(w->bounce);
    free(w->slots);
    free(w);
}

static gpunvme_err_t make_slots(struct spdk *spdk, struct worker *w)
{
    size_t nbytes = spdk->depth * spdk->chunk;

    w->slots = calloc(spdk->depth, sizeof(*w->slots));
    w->bounce = gspdk_alloc(nbytes);
    if (!w->slots || !w->bounce)
        return base_fail(GPUNVME_ERR_NOMEM,
                         "%zu MiB of SPDK's memory for bounce buffers: ask for fewer (depth=, "
                         "threads=) or smaller ones (chunk=)",
                         nbytes >> 20);
    if (!gpunvme_mem_gpu_is_host())
        gpunvme_mem_register(w->bounce, nbytes, GPUNVME_MEM_PINNED, &w->pinned); /* else slower */
    for (unsigned i = 0; i < spdk->depth; i++) {
        struct slot *slot = &w->slots[i];

        slot->bounce = w->bounce + i * spdk->chunk;
        if (!gpunvme_mem_gpu_is_host())
            (void)gpunvme_mem_stream_create(NULL, &slot->stream);
        slot->next = w->free;
        w->free = slot;
    }
    w->nfree = spdk->depth;
    return GPUNVME_OK;
}

static gpunvme_err_t prepare(struct crew_worker *crew_worker)
{
    struct spdk *spdk = crew_worker->store->priv;
    struct worker *w = calloc(1, sizeof(*w));
    struct base_failure failure;
    gpunvme_err_t err;

    if (!w)
        return base_fail(GPUNVME_ERR_NOMEM, "a thread's state");
    crew_worker->state = w;
    err = make_slots(spdk, w);
    if (!err)
        err = gspdk_queue_create(spdk->ctrlr, spdk->depth, &w->queue);
    if (!err)
        return GPUNVME_OK;
    base_keep(&failure, err);
    release(crew_worker);
    return base_restore(&failure);
}

static const struct crew_ops crew_ops = {.prepare = prepare, .release = release, .work = work};

/* ---- the backend ---- */

static gpunvme_err_t spdk_close(struct gpunvme_store *store)
{
    struct spdk *spdk = store->priv;

    store_domain_leave(store);
    crew_stop(store->crew);
    gspdk_detach(spdk->ctrlr);
    free(spdk);
    return GPUNVME_OK;
}

static gpunvme_err_t spdk_size(struct gpunvme_store *store, uint64_t *nbytes)
{
    const struct spdk *spdk = store->priv;

    *nbytes = spdk->nbytes;
    return GPUNVME_OK;
}

static gpunvme_err_t map_memory(void *ctrlr, const struct gpunvme_buf *buf, void **out)
{
    struct gspdk_region *reached = calloc(1, sizeof(*reached));
    gpunvme_err_t err = GPUNVME_OK;

    if (!reached)
        return base_fail(GPUNVME_ERR_NOMEM, "a registration");
    gspdk_register(ctrlr, buf, reached);
    if (!reached->from)
        err = base_fail(GPUNVME_ERR_UNSUPPORTED, "%s", reached->why_not);
    if (err)
        free(reached);
    else
        *out = reached;
    return err;
}

static void unmap_memory(void *ctrlr, void *reached)
{
    (void)ctrlr;
    gspdk_unregister(reached);
    free(reached);
}

static const struct store_domain_ops domain_ops = {.map = map_memory, .unmap = unmap_memory};

/* Is GPU memory reached? A little of it tells. */
static void probe_gpu(struct gpunvme_store *store)
{
    struct spdk *spdk = store->priv;
    struct gspdk_region reached = {0};
    struct gpunvme_buf buf;

    store->gpu_route = GPUNVME_ROUTE_BOUNCE;
    if (gpunvme_mem_alloc(PROBE_NBYTES, GPUNVME_MEM_GPU, &buf)) {
        snprintf(spdk->why_not, sizeof(spdk->why_not), "%.150s", gpunvme_err_detail());
        return;
    }
    gspdk_register(spdk->ctrlr, &buf, &reached);
    if (reached.from)
        store->gpu_route = GPUNVME_ROUTE_P2P;
    else
        snprintf(spdk->why_not, sizeof(spdk->why_not), "%s", reached.why_not);
    gspdk_unregister(&reached);
    gpunvme_mem_free(&buf);
}

static size_t power_of_two_up_to(size_t nbytes)
{
    size_t power = 4096;

    while (2 * power <= nbytes)
        power *= 2;
    return power;
}

static unsigned default_threads(void)
{
    long ncores = sysconf(_SC_NPROCESSORS_ONLN) / 2; /* they poll: leave some to others */

    return ncores < 1 ? 1 : ncores > DEFAULT_THREADS ? DEFAULT_THREADS : (unsigned)ncores;
}

static gpunvme_err_t open_namespace(struct gpunvme_store *store, struct spdk *spdk)
{
    const struct store_options *o = &store->uri.options;
    struct gspdk_address address;
    gpunvme_err_t err = gspdk_address_parse(store->uri.target + strlen("spdk:"), &address);

    if (!err && address.nsid && o->nsid && address.nsid != o->nsid)
        err = base_fail(GPUNVME_ERR_URI, "%s: two namespaces", store->uri.text);
    if (!err)
        err = gspdk_attach(&address, o->timeout_ns, &spdk->ctrlr);
    if (!err)
        err = gspdk_namespace(spdk->ctrlr, address.nsid ? address.nsid : o->nsid, &spdk->ns);
    if (err)
        return err;
    spdk->nbytes = spdk->ns.nblocks * spdk->ns.block_size;
    spdk->depth = o->depth ? o->depth : DEFAULT_DEPTH;
    if (spdk->depth > spdk->ns.max_depth)
        spdk->depth = spdk->ns.max_depth;
    spdk->timeout_ns = o->timeout_ns - o->timeout_ns / 4; /* its end is known before the wait's */
    spdk->chunk = o->chunk_nbytes ? o->chunk_nbytes : DEFAULT_CHUNK;
    if (spdk->chunk > spdk->ns.max_transfer)
        spdk->chunk = power_of_two_up_to(spdk->ns.max_transfer);
    if (spdk->chunk < spdk->ns.block_size)
        spdk->chunk = spdk->ns.block_size;
    store->block_size = spdk->ns.block_size;
    store->threads = o->threads ? o->threads : default_threads();
    probe_gpu(store);
    return GPUNVME_OK;
}

static gpunvme_err_t spdk_open(struct gpunvme_store *store)
{
    struct spdk *spdk = calloc(1, sizeof(*spdk));
    struct base_failure failure;
    gpunvme_err_t err;

    if (!spdk)
        return base_fail(GPUNVME_ERR_NOMEM, "a store");
    store->priv = spdk;
    err = open_namespace(store, spdk);
    if (!err)
        store->queue.piece_nbytes = spdk->chunk;
    if (!err)
        err = crew_start(store, &crew_ops, store->threads, &store->crew);
    if (!err) {
        store_domain_join(store, &domain_ops, spdk->ctrlr);
        return GPUNVME_OK;
    }
    base_keep(&failure, err);
    spdk_close(store);
    return base_restore(&failure);
}

static void spdk_describe(struct gpunvme_store *store, struct gpunvme_path *path)
{
    const struct spdk *spdk = store->priv;

    snprintf(path->how, sizeof(path->how),
             "%s, \"%s\", %u threads with %u commands each, pieces of %zu KiB", gspdk_version(),
             spdk->ns.model, store->threads, spdk->depth, spdk->chunk >> 10);
    if (spdk->why_not[0])
        snprintf(path->why_not, sizeof(path->why_not), "p2p: %s", spdk->why_not);
}

static void spdk_about(struct gpunvme_backend_info *info)
{
    info->works = true;
    snprintf(info->why, sizeof(info->why),
             "%s: drives that vfio-pci has, and vfio-user sockets (FOLDER/cntrl)", gspdk_version());
}

const struct store_backend store_spdk = {
    .name = "spdk",
    .option_bit = STORE_SPDK,
    .open = spdk_open,
    .close = spdk_close,
    .size = spdk_size,
    .about = spdk_about,
    .describe = spdk_describe,
};
