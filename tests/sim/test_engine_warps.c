/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Several warps of a block on one queue, as on the GPU: threads that share a block, each a warp of
 * one lane. Completions come in any order; none may be lost, doubled or told too early.
 */
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "patience.h"
#include "sim/engine/run.h"

#define BUS       0x4000000000ull
#define WARPS     4u
#define COMMANDS  20000u
#define NBLOCKS   256u
#define MAX_DEPTH 64u

struct rig {
    struct sim_engine engine;
    struct sim_engine_host host;
    struct sim_engine_range range;
    struct sim_engine_queue queue;
    struct sim_engine_counters counters;
    struct sim_engine_block block;
    struct gpunvme_sqe sq[MAX_DEPTH];
    struct gpunvme_cqe cq[MAX_DEPTH];
    uint32_t cids[SIM_ENGINE_CID_WORDS];
    struct sim_engine_pending pending[WARPS * SIM_ENGINE_MAX_THREADS];
    uint32_t doorbells[2];
    uint64_t media[NBLOCKS * 64], data[MAX_DEPTH * 64];
};

struct warp {
    struct rig *r;
    uint32_t index;
    pthread_t thread;
};

static void *run(void *arg)
{
    struct warp *w = arg;

    sim_engine_warp(&w->r->engine, &w->r->block, w->r->queue.pending, w->index);
    return NULL;
}

static struct rig *make(uint32_t sq_size, uint32_t cq_size)
{
    struct rig *r = aligned_alloc(64, (sizeof(*r) + 63) / 64 * 64);

    assert_non_null(r);
    memset(r, 0, sizeof(*r));
    for (uint32_t i = 0; i < NBLOCKS * 64; i++)
        r->media[i] = sim_engine_mix(i);
    r->range = (struct sim_engine_range){BUS, sizeof(r->data), (uint8_t *)r->data};
    r->engine.host = &r->host;
    r->engine.queues = &r->queue;
    r->engine.nqueues = r->engine.nns = r->engine.nranges = 1;
    r->engine.ns[0] = (struct sim_engine_ns){
        .bytes = (uint8_t *)r->media, .nblocks = NBLOCKS, .nsid = 1, .shift = 9};
    r->engine.ranges = &r->range;
    r->engine.page = 65536;
    r->queue = (struct sim_engine_queue){.sq = r->sq,
                                         .cq = r->cq,
                                         .sq_doorbell = &r->doorbells[0],
                                         .cq_doorbell = &r->doorbells[1],
                                         .cids = r->cids,
                                         .pending = r->pending,
                                         .publish = &r->counters,
                                         .sq_size = sq_size,
                                         .cq_size = cq_size,
                                         .sqid = 1,
                                         .cqid = 1,
                                         .active = 1};
    return r;
}

/*
 * Keeps as many commands in flight as there are entries. The entries that the head gives back are
 * overwritten at once, so that one told too early shows.
 */
static void drive(struct rig *r)
{
    uint32_t size = r->queue.sq_size, cq_size = r->queue.cq_size;
    uint32_t sent = 0, done = 0, tail = 0, head = 0, told = 0, phase = 1;
    uint64_t busy = 0, deadline = gpunvme_clock_ns() + PATIENCE_NS;
    uint32_t lba[MAX_DEPTH];

    while (done < COMMANDS) {
        const uint32_t *word = (const uint32_t *)&r->cq[head];
        uint32_t found, cid;

        while (sent < COMMANDS && (tail + 1) % size != told && ~busy) {
            uint32_t slot = (uint32_t)__builtin_ctzll(~busy);

            busy |= 1ull << slot;
            lba[slot] = (uint32_t)(sim_engine_mix(sent) % NBLOCKS);
            r->sq[tail] = (struct gpunvme_sqe){.opc = GPUNVME_CMD_READ,
                                               .cid = (uint16_t)slot,
                                               .nsid = 1,
                                               .prp1 = BUS + slot * 512,
                                               .cdw10 = lba[slot]};
            tail = (tail + 1) % size;
            sent++;
        }
        gpunvme_store_release32(&r->doorbells[0], tail);
        while (((found = gpunvme_load_acquire32(word + 3)) >> 16 & 1) != phase) {
            assert_true(gpunvme_clock_ns() < deadline);
            sched_yield();
        }
        cid = found & 0xffff;
        assert_int_equal(found >> 17, 0);
        assert_true(cid < MAX_DEPTH && busy >> cid & 1);
        assert_memory_equal(&r->data[cid * 64], &r->media[lba[cid] * 64], 512);
        busy &= ~(1ull << cid);
        told = r->cq[head].sqhd; /* never back: the engine would call it an overrun */
        done++;
        if (++head == cq_size) {
            head = 0;
            phase = !phase;
        }
        gpunvme_store_release32(&r->doorbells[1], head);
    }
}

static void share(uint32_t sq_size, uint32_t cq_size)
{
    struct rig *r = make(sq_size, cq_size);
    struct warp warps[WARPS];

    sim_engine_prepare(&r->engine, &r->block, 0, 1, WARPS);
    sim_engine_begin(&r->block, &r->queue, 0);
    for (uint32_t i = 0; i < WARPS; i++) {
        warps[i] = (struct warp){.r = r, .index = i};
        assert_int_equal(pthread_create(&warps[i].thread, NULL, run, &warps[i]), 0);
    }
    drive(r);
    gpunvme_store_release32(&r->host.stop, 1);
    for (uint32_t i = 0; i < WARPS; i++)
        pthread_join(warps[i].thread, NULL);
    sim_engine_end(&r->block, &r->queue);
    assert_int_equal(r->counters.commands, COMMANDS);
    assert_int_equal(r->counters.bytes_read, COMMANDS * 512);
    for (unsigned kind = 0; kind < GPUNVME_SIM_NVIOLATIONS; kind++)
        assert_int_equal(r->counters.violations[kind], 0);
    free(r);
}

static void warps_share_a_queue(void **state)
{
    (void)state;
    share(64, 64);
}

static void warps_share_a_queue_whose_completion_queue_is_short(void **state)
{
    (void)state;
    share(64, 5);
}

static void warps_share_a_queue_of_few_entries(void **state)
{
    (void)state;
    share(3, 64);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(warps_share_a_queue),
        cmocka_unit_test(warps_share_a_queue_whose_completion_queue_is_short),
        cmocka_unit_test(warps_share_a_queue_of_few_entries),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
