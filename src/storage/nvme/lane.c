/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The lanes of a controller. See lane.h.
 */
#include "storage/nvme/lane.h"

#include <sched.h>
#include <stddef.h>
#include <stdlib.h>
#include <time.h>

#include "base/relax.h"
#include "storage/engine.h"
#include "storage/worker.h"

#define BOUNCE_NBYTES (8u << 20) /* of a lane, about */
#define MIN_BOUNCES   4u
#define SPIN_TURNS    32u
#define SPIN_NS       50000u /* of commands that are in flight, before it sleeps */
#define SLEEP_NS      20000u
#define MAX_SLEEP_NS  100000u
#define LOOK_NS       5000000u   /* without a completion, before it looks after the controller */
#define BUSY_LOOK_NS  100000000u /* between looks where there are completions all the time */

struct nvme_lane {
    struct lane lane;
    struct nvme_lanes *all;
    struct gpunvme_ioq *ioq;
    void *queue; /* the driver's, if it is not ours: then there is no ioq */
    struct nvme_bounces bounces;
    struct nvme_slot *slots; /* depth of them */
    struct nvme_slot **busy; /* the first nbusy; then those that are free */
    unsigned nbusy;
    struct pool *pool;
    struct pool_box box;   /* of slots, and of `check`, that a thread of the pool had */
    struct pool_job check; /* looks after the controller */
    bool is_checking;      /* a thread has it */
    uint64_t looked_ns;    /* by nvme_rough_now() */
    struct nvme_lull lull;
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

/* Spins at first, then sleeps, longer and longer. */
bool nvme_wait_a_little(struct gpunvme_ioq *ioq, struct nvme_lull *lull, uint64_t ns)
{
    uint64_t now, waited;

    if (++lull->turns % SPIN_TURNS) {
        base_relax();
        return false;
    }
    now = futex_now();
    if (lull->turns == SPIN_TURNS)
        lull->since = lull->looked = now;
    waited = now - lull->since;
    if (waited < SPIN_NS) {
        sched_yield(); /* to whoever is to complete it, where he is a thread without a core */
    } else {
        if (ns > MAX_SLEEP_NS)
            ns = MAX_SLEEP_NS;
        if (ns > waited / 8)
            ns = waited / 8;
        if (ns < SLEEP_NS)
            ns = SLEEP_NS;
        lull->turns -= 1; /* from now on each turn is a sleep */
        if (ioq)
            gpunvme_ioq_sleep(ioq, &lull->seen, ns);
        else
            nanosleep(&(struct timespec){.tv_nsec = (long)ns}, NULL);
    }
    if (now - lull->looked < LOOK_NS)
        return false;
    lull->looked = now;
    return true;
}

/* ---- The lane's functions -------------------------------------------------------------------- */

static struct nvme_lane *of(struct lane *lane)
{
    return (struct nvme_lane *)lane;
}

static void begin(struct lane *lane, const struct crew_piece *piece)
{
    struct nvme_lane *l = of(lane);

    nvme_slot_begin(l->busy[l->nbusy++], piece);
}

/* ---- What may block is done by threads of the pool ------------------------------------------- */

static void block(struct pool_job *job)
{
    nvme_slot_block((struct nvme_slot *)job);
}

static void check(struct pool_job *job)
{
    struct nvme_lane *l = (struct nvme_lane *)((char *)job - offsetof(struct nvme_lane, check));

    gpunvme_ctrl_check(l->all->share->ctrl); /* what it finds, the commands are told */
}

static void submit(struct nvme_lane *l, struct pool_job *job, void (*run)(struct pool_job *))
{
    job->run = run;
    job->dev = (dev_t)(uintptr_t)l->all;
    job->box = &l->box;
    pool_submit(l->pool, job);
}

static void look_now(struct nvme_lane *l)
{
    l->looked_ns = nvme_rough_now();
    if (l->is_checking || l->queue)
        return;
    l->is_checking = true;
    submit(l, &l->check, check);
}

static bool take_back(struct nvme_lane *l)
{
    struct pool_job *next, *job = pool_box_take(&l->box);
    bool any = job;

    for (; job; job = next) {
        next = job->next;
        if (job == &l->check)
            l->is_checking = false;
        else
            ((struct nvme_slot *)job)->is_out = false;
    }
    return any;
}

/* Whatever there is to do: for threads that do their own transfers, and because the kernel may ask
 * for a function that works. */
static void look(struct lane *lane)
{
    struct nvme_lane *l = of(lane);

    take_back(l);
    if (nvme_rough_now() - l->looked_ns >= BUSY_LOOK_NS)
        look_now(l);
}

static bool turn_slot(struct nvme_lane *l, struct nvme_slot *slot, uint64_t *now)
{
    bool moved;

    if (slot->is_out)
        return false;
    moved = nvme_slot_turn(slot, now);
    if (nvme_slot_must_block(slot)) {
        slot->is_out = true;
        submit(l, &slot->job, block);
    }
    return moved;
}

static bool turn(struct lane *lane)
{
    struct nvme_lane *l = of(lane);
    uint64_t now = nvme_rough_now();
    bool moved = take_back(l);

    if (l->queue)
        l->all->share->driver->poll(l->queue);
    if (now - l->looked_ns >= BUSY_LOOK_NS)
        look_now(l);
    for (unsigned i = 0; i < l->nbusy;) {
        struct nvme_slot *slot = l->busy[i];

        moved |= turn_slot(l, slot, &now);
        if (slot->is_out || slot->state != SLOT_ENDED) {
            i++;
            continue;
        }
        l->busy[i] = l->busy[--l->nbusy];
        l->busy[l->nbusy] = slot;
        crew_end(&slot->piece, slot->err, slot->done);
    }
    if (moved)
        l->lull.turns = 0;
    return moved;
}

static bool wait(struct lane *lane, uint64_t ns)
{
    struct nvme_lane *l = of(lane);

    if (nvme_wait_a_little(l->ioq, &l->lull, ns))
        look_now(l);
    return true;
}

/* ---- Making one ------------------------------------------------------------------------------ */

gpunvme_err_t nvme_make_bounces(const struct nvme_share *share, struct nvme_bounces *bounces,
                                unsigned n, size_t chunk)
{
    gpunvme_err_t err = share->driver ? share->driver->alloc(n * chunk, &bounces->buf)
                                      : gpunvme_ctrl_alloc(share->ctrl, n * chunk,
                                                           GPUNVME_MEM_PINNED, &bounces->buf);

    return err ? err : nvme_bounces_init(bounces, n, chunk);
}

bool nvme_free_bounces(const struct nvme_share *share, struct nvme_bounces *bounces,
                       uint64_t timeout_ns)
{
    if (!nvme_bounces_end(bounces, timeout_ns))
        return false;
    if (share->driver)
        share->driver->free(&bounces->buf);
    else if (bounces->buf.nbytes)
        gpunvme_ctrl_free(share->ctrl, &bounces->buf);
    return true;
}

static void close_lane(struct lane *lane)
{
    const struct timespec nap = {.tv_nsec = SLEEP_NS};
    struct nvme_lane *l = of(lane);
    const struct nvme_share *share = l->all->share;

    while (l->is_checking && !take_back(l))
        nanosleep(&nap, NULL);
    if (share->driver)
        share->driver->close(l->queue);
    if (!nvme_free_bounces(share, &l->bounces, l->all->is_left ? 0 : l->all->copy_timeout_ns))
        l->all->is_left = true;
    if (l->ioq)
        gpunvme_ioq_delete(l->ioq);
    free(l->lane.hands);
    free(l->slots);
    free(l->busy);
    free(l);
}

static const struct lane_ops lane_ops = {
    .begin = begin, .turn = turn, .wait = wait, .look = look, .close = close_lane};

static gpunvme_err_t fill_in(struct nvme_lane *l)
{
    struct nvme_lanes *all = l->all;
    const struct nvme_share *share = all->share;
    unsigned nbounces = (unsigned)(BOUNCE_NBYTES / all->chunk);
    gpunvme_err_t err = GPUNVME_OK;

    if (!share->driver)
        err = gpunvme_ioq_create(share->ctrl, all->entries, &l->ioq);
    if (err)
        return err;
    l->slots = calloc(all->depth, sizeof(l->slots[0]));
    l->busy = calloc(all->depth, sizeof(struct nvme_slot *));
    if (!l->slots || !l->busy)
        return base_fail(GPUNVME_ERR_NOMEM, "%u slots", all->depth);
    if (nbounces < MIN_BOUNCES)
        nbounces = MIN_BOUNCES;
    if (nbounces > all->depth)
        nbounces = all->depth;
    for (unsigned i = 0; i < all->depth; i++) {
        nvme_slot_init(&l->slots[i], l->ioq, &l->bounces);
        l->busy[i] = &l->slots[i];
    }
    if (share->driver)
        err = share->driver->open(share->other, l->slots, all->depth, &l->queue);
    return err ? err : nvme_make_bounces(share, &l->bounces, nbounces, all->chunk);
}

static gpunvme_err_t add_lane(struct gpunvme_engine *engine, struct nvme_lanes *all)
{
    struct nvme_lane *l = calloc(1, sizeof(*l));
    struct base_failure failure;
    gpunvme_err_t err;

    if (!l)
        return base_fail(GPUNVME_ERR_NOMEM, "a lane");
    l->all = all;
    l->pool = engine->pool;
    l->box.worker = workers_at(engine->workers, all->first + all->n);
    err = lane_make_room(&l->lane, all->depth);
    if (!err)
        err = fill_in(l);
    if (err) {
        base_keep(&failure, err);
        close_lane(&l->lane);
        return base_restore(&failure);
    }
    all->ioqs[all->n] = l->ioq;
    crew_add(all->crew, &lane_ops, all->first + all->n++, &l->lane);
    return GPUNVME_OK;
}

/* ---- The lanes of a controller --------------------------------------------------------------- */

/* False: the GPU may reach for memory of them for ever. */
static bool destroy(struct gpunvme_engine *engine, struct nvme_lanes *lanes)
{
    struct nvme_lanes **link = &engine->nvme;
    bool is_left;

    while (*link != lanes)
        link = &(*link)->next;
    *link = lanes->next;
    crew_destroy(lanes->crew);
    is_left = lanes->is_left;
    free(lanes);
    return !is_left;
}

/* Under the lock. */
static gpunvme_err_t make(struct gpunvme_engine *engine, const struct nvme_store *s,
                          struct nvme_lanes **out)
{
    unsigned nworkers = workers_count(engine->workers);
    struct nvme_lanes *lanes = calloc(1, sizeof(*lanes));
    gpunvme_err_t err;

    *out = NULL;
    if (!lanes)
        return base_fail(GPUNVME_ERR_NOMEM, "the lanes of a controller");
    err = crew_create(engine, &lanes->crew);
    if (err) {
        free(lanes);
        return err;
    }
    lanes->share = s->share;
    lanes->depth = s->depth;
    lanes->entries = s->entries;
    lanes->chunk = s->chunk > NVME_CHUNK ? s->chunk : NVME_CHUNK;
    /* Files' first workers have their hands full first: from the last one on. */
    lanes->first = nworkers - 1 - engine->ncontrollers++ % nworkers;
    lanes->next = engine->nvme;
    engine->nvme = lanes;
    *out = lanes;
    return GPUNVME_OK;
}

/* Under the lock. */
static gpunvme_err_t take(struct gpunvme_engine *engine, struct nvme_store *s, unsigned n)
{
    struct nvme_lanes *lanes = engine->nvme;
    gpunvme_err_t err = GPUNVME_OK;

    while (lanes && lanes->share != s->share)
        lanes = lanes->next;
    if (!lanes)
        err = make(engine, s, &lanes);
    if (err)
        return err;
    while (!err && lanes->n < n)
        err = add_lane(engine, lanes);
    if (err && !lanes->users && (err != GPUNVME_ERR_LIMIT || !lanes->n)) {
        struct base_failure failure;

        base_keep(&failure, err);
        destroy(engine, lanes);
        return base_restore(&failure);
    }
    lanes->users++;
    if (lanes->copy_timeout_ns < s->copy_timeout_ns)
        lanes->copy_timeout_ns = s->copy_timeout_ns;
    s->lanes = lanes;
    return GPUNVME_OK;
}

gpunvme_err_t nvme_lanes_take(struct gpunvme_engine *engine, struct nvme_store *s, unsigned n)
{
    gpunvme_err_t err;

    if (n > workers_count(engine->workers))
        n = workers_count(engine->workers);
    pthread_mutex_lock(&engine->nvme_lock);
    err = take(engine, s, n);
    pthread_mutex_unlock(&engine->nvme_lock);
    return err;
}

bool nvme_lanes_leave(struct gpunvme_engine *engine, struct nvme_lanes *lanes)
{
    bool all_ended = true;

    if (!lanes)
        return true;
    pthread_mutex_lock(&engine->nvme_lock);
    if (!--lanes->users)
        all_ended = destroy(engine, lanes);
    pthread_mutex_unlock(&engine->nvme_lock);
    return all_ended;
}
