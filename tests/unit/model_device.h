/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The device's side of one queue pair, as a model: it fetches entries when doorbells tell it to,
 * checks everything that it can see of the driver, and completes commands late, out of order and
 * in bursts. What a command looks like and how it ends follow from its serial number alone, so
 * that both sides know them. Shares no code with the driver but the structures.
 *
 * One thread at a time; the doorbells may be written beside it.
 */
#ifndef TESTS_MODEL_DEVICE_H
#define TESTS_MODEL_DEVICE_H

#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

#include "queue_memory.h"
#include "rng.h"

#define MODEL_MAX_SUBMITTERS 16
#define MODEL_FAILED         0x5a5au /* the status of commands that a reset ends */

enum model_doorbells {
    MODEL_DB_POINTER,
    MODEL_DB_FUNCTION,
    MODEL_DB_SHADOW, /* with a function for the register */
};

struct model_doorbell {
    uint32_t value; /* the register */
    uint64_t rings; /* how often the function was called */
    uint32_t shadow, event_index;
    /* the device's own */
    uint32_t seen;
    uint64_t rings_seen;
    bool awake; /* it looks at the shadow; asleep it waits for a ring */
};

struct model_device {
    const char *name; /* of the run, for messages */
    uint64_t seed;
    struct queue_memory m;
    uint32_t entries;
    enum model_doorbells doorbells;
    struct model_doorbell sq, cq;
    struct base_random random;
    bool resets; /* commands may be lost in a reset before they are fetched */

    uint32_t sq_head;
    uint64_t cq_tail; /* completions written since the queue was created */
    struct model_held {
        uint64_t serial;
        uint16_t cid;
    } * held; /* fetched and not completed */
    uint32_t nheld;
    uint8_t *in_flight; /* by command id: fetched and not completed */
    uint64_t *posted;   /* serials of the completions in the queue, by position */
    uint64_t fetched;   /* in all */
    uint64_t completed; /* in all */
    uint64_t last_serial[MODEL_MAX_SUBMITTERS];
    void (*show)(void *arg); /* shows the driver's side when something is wrong */
    void *show_arg;
};

/* --- what is wrong ---------------------------------------------------------------------------- */

static inline void model_show(const struct model_device *d)
{
    fprintf(stderr,
            "  device: entries %u, SQ head %u, SQ tail %u, CQ tail %llu, CQ head %u, held %u, "
            "fetched %llu, completed %llu\n",
            d->entries, d->sq_head, d->sq.seen, (unsigned long long)d->cq_tail, d->cq.seen,
            d->nheld, (unsigned long long)d->fetched, (unsigned long long)d->completed);
    fprintf(stderr,
            "  registers: SQ %u (%llu rings, shadow %u, event index %u), CQ %u (%llu rings, "
            "shadow %u, event index %u)\n",
            d->sq.value, (unsigned long long)d->sq.rings, d->sq.shadow, d->sq.event_index,
            d->cq.value, (unsigned long long)d->cq.rings, d->cq.shadow, d->cq.event_index);
    if (d->show)
        d->show(d->show_arg);
}

/* Ends the program: threads can't fail a cmocka test from where they are. */
static inline void model_die(const struct model_device *d, const char *what)
{
    fprintf(stderr, "%s: %s (GPUNVME_MODEL_SEED=%llu)\n", d->name, what,
            (unsigned long long)d->seed);
    model_show(d);
    _exit(1);
}

#define MODEL_CHECK(device, condition)                                                             \
    do {                                                                                           \
        if (!(condition))                                                                          \
            model_die(device, "not so: " #condition);                                              \
    } while (0)

/* --- commands --------------------------------------------------------------------------------- */

/* A serial number: the submitter, and its how manyth command this is (from 1). */
static inline uint64_t model_serial(unsigned submitter, uint64_t count)
{
    return (uint64_t)submitter << 48 | count;
}

/* Every dword but the command id depends on the serial number: a mixed entry is found out. */
static inline void model_command(struct gpunvme_sqe *sqe, uint64_t serial)
{
    uint32_t dw[16];

    for (unsigned i = 0; i < 16; i++)
        dw[i] = (uint32_t)rng_hash(serial * 16 + i);
    dw[2] = (uint32_t)serial;
    dw[3] = (uint32_t)(serial >> 32);
    memcpy(sqe, dw, sizeof(*sqe));
    sqe->cid = 0;
}

static inline uint16_t model_status(uint64_t serial)
{
    uint16_t status = rng_hash(serial) % 4 ? 0 : (uint16_t)(rng_hash(serial) >> 8 & 0x7fff);

    return status == MODEL_FAILED ? 1 : status;
}

static inline uint64_t model_result(uint64_t serial)
{
    return rng_hash(~serial);
}

/* --- doorbells -------------------------------------------------------------------------------- */

/* For gpunvme_qpair_config.ring: offset 0 is the SQ's, 4 the CQ's. */
static inline void model_ring(void *arg, uint32_t offset, uint32_t value)
{
    struct model_device *d = arg;
    struct model_doorbell *db = offset ? &d->cq : &d->sq;

    MODEL_CHECK(d, value < d->entries);
    __atomic_store_n(&db->value, value, __ATOMIC_RELEASE);
    __atomic_fetch_add(&db->rings, 1, __ATOMIC_RELEASE);
}

/*
 * A device with shadow doorbells that has seen all there is says from where on it wants to be
 * told, looks once more, and sleeps until the register is written.
 */
static inline uint32_t model_shadow_value(struct model_doorbell *db)
{
    uint32_t value;

    if (!db->awake) {
        uint64_t rings = __atomic_load_n(&db->rings, __ATOMIC_ACQUIRE);

        if (rings == db->rings_seen)
            return db->seen;
        db->rings_seen = rings;
        db->awake = true;
    }
    value = __atomic_load_n(&db->shadow, __ATOMIC_SEQ_CST);
    if (value != db->seen)
        return value;
    __atomic_store_n(&db->event_index, value, __ATOMIC_SEQ_CST);
    value = __atomic_load_n(&db->shadow, __ATOMIC_SEQ_CST);
    db->awake = value != db->seen;
    return value;
}

static inline uint32_t model_doorbell_value(const struct model_device *d, struct model_doorbell *db)
{
    if (d->doorbells == MODEL_DB_SHADOW)
        return model_shadow_value(db);
    return __atomic_load_n(&db->value, __ATOMIC_ACQUIRE);
}

static inline void model_look_at_doorbells(struct model_device *d)
{
    uint32_t mask = d->entries - 1;
    uint32_t tail = model_doorbell_value(d, &d->sq);
    uint32_t head, unfetched, unread;

    MODEL_CHECK(d, tail < d->entries);
    /* The tail may move as far as the queue is free, and tickets that have not ended are fewer
     * than entries. */
    unfetched = (d->sq.seen - d->sq_head) & mask;
    unfetched += (tail - d->sq.seen) & mask;
    MODEL_CHECK(d, unfetched <= mask);
    MODEL_CHECK(d, unfetched + d->nheld <= mask);
    d->sq.seen = tail;

    head = model_doorbell_value(d, &d->cq);
    MODEL_CHECK(d, head < d->entries);
    unread = ((uint32_t)d->cq_tail - d->cq.seen) & mask;
    MODEL_CHECK(d, ((head - d->cq.seen) & mask) <= unread);
    d->cq.seen = head;
}

/* --- fetching and completing ------------------------------------------------------------------ */

static inline void model_check_order(struct model_device *d, uint64_t serial)
{
    uint64_t submitter = serial >> 48;

    MODEL_CHECK(d, submitter < MODEL_MAX_SUBMITTERS);
    /* Each once, and a submitter's in its order. */
    if (d->resets)
        MODEL_CHECK(d, serial > d->last_serial[submitter]);
    else
        MODEL_CHECK(d,
                    (serial & 0xffffffffffff) == (d->last_serial[submitter] & 0xffffffffffff) + 1);
    d->last_serial[submitter] = serial;
}

static inline bool model_fetch(struct model_device *d)
{
    struct gpunvme_sqe sqe, want;
    uint64_t serial;
    uint16_t cid;

    if (d->sq_head == d->sq.seen)
        return false;
    sqe = d->m.sq[d->sq_head];
    cid = sqe.cid;
    serial = (uint64_t)sqe.cdw3 << 32 | sqe.cdw2;
    sqe.cid = 0;
    model_command(&want, serial);
    MODEL_CHECK(d, memcmp(&sqe, &want, sizeof(want)) == 0);
    model_check_order(d, serial);
    MODEL_CHECK(d, cid < GPUNVME_QPAIR_SLOTS(d->entries));
    MODEL_CHECK(d, !d->in_flight[cid]);
    MODEL_CHECK(d, d->nheld < d->entries - 1);
    d->in_flight[cid] = 1;
    d->held[d->nheld].serial = serial;
    d->held[d->nheld++].cid = cid;
    d->sq_head = (d->sq_head + 1) % d->entries;
    d->fetched++;
    return true;
}

static inline bool model_cq_is_full(const struct model_device *d)
{
    return (d->cq_tail + 1) % d->entries == d->cq.seen;
}

/* Completes any one of the commands that it holds. */
static inline bool model_complete(struct model_device *d)
{
    struct model_held held;
    uint32_t i;

    if (!d->nheld || model_cq_is_full(d))
        return false;
    i = (uint32_t)base_random_below(&d->random, d->nheld);
    held = d->held[i];
    d->held[i] = d->held[--d->nheld];
    d->in_flight[held.cid] = 0;
    d->posted[d->cq_tail % d->entries] = held.serial;
    queue_memory_complete(d->m.cq, d->entries, d->cq_tail++, held.cid, model_status(held.serial),
                          model_result(held.serial), (uint16_t)d->sq_head);
    d->completed++;
    return true;
}

/* Some fetching, some completing; true if anything was done. Nothing is kept back for ever. */
static inline bool model_step(struct model_device *d)
{
    uint64_t fetch = base_random_below(&d->random, d->entries + 1);
    uint64_t complete = rng_one_in(&d->random, 3) ? 0 : base_random_below(&d->random, d->entries);
    bool busy = false;

    model_look_at_doorbells(d);
    while (fetch-- && model_fetch(d))
        busy = true;
    if (!busy && !complete)
        complete = 1;
    while (complete-- && model_complete(d))
        busy = true;
    return busy;
}

/* --- resets --------------------------------------------------------------------------------- */

/* Forgets everything, as a controller reset does; the driver must be frozen. */
static inline void model_reset(struct model_device *d)
{
    d->sq_head = 0;
    d->cq_tail = 0;
    d->nheld = 0;
    memset(d->in_flight, 0, GPUNVME_QPAIR_SLOTS(d->entries));
    d->sq = (struct model_doorbell){.rings = d->sq.rings, .rings_seen = d->sq.rings};
    d->cq = (struct model_doorbell){.rings = d->cq.rings, .rings_seen = d->cq.rings};
}

static inline void model_open(struct model_device *d, const char *name, uint64_t seed,
                              uint32_t entries, enum model_doorbells doorbells)
{
    memset(d, 0, sizeof(*d));
    d->name = name;
    d->seed = seed;
    d->random.state = seed;
    d->entries = entries;
    d->doorbells = doorbells;
    queue_memory_alloc(&d->m, entries);
    d->held = queue_memory_zeroed(entries * sizeof(d->held[0]));
    d->posted = queue_memory_zeroed(entries * sizeof(d->posted[0]));
    d->in_flight = queue_memory_zeroed(GPUNVME_QPAIR_SLOTS(entries));
}

static inline void model_close(struct model_device *d)
{
    queue_memory_free(&d->m);
    free(d->held);
    free(d->posted);
    free(d->in_flight);
}

static inline struct gpunvme_qpair_config model_config(struct model_device *d)
{
    struct gpunvme_qpair_config config = queue_memory_config(&d->m, d->entries);

    if (d->doorbells == MODEL_DB_POINTER) {
        config.sq_doorbell.mmio = &d->sq.value;
        config.cq_doorbell.mmio = &d->cq.value;
        return config;
    }
    config.cq_doorbell.offset = 4;
    config.ring = model_ring;
    config.ring_arg = d;
    if (d->doorbells == MODEL_DB_SHADOW) {
        config.sq_doorbell.shadow = &d->sq.shadow;
        config.sq_doorbell.event_index = &d->sq.event_index;
        config.cq_doorbell.shadow = &d->cq.shadow;
        config.cq_doorbell.event_index = &d->cq.event_index;
    }
    return config;
}

#endif
