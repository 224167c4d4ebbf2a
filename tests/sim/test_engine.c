/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The engine against queues written by hand: its protocol by the bytes. On a thread; built with
 * ENGINE_ON_GPU the same tests run on the kernel, with one warp to a block and all memory pinned,
 * so that the CPU can play the driver. tests/gpu/test_gpu_engine.cu has many warps and a driver on
 * the GPU.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gpunvme/atomics.h"
#include "patience.h"
#include "sim/command.h"
#include "sim/engine/engine.h"

#ifdef ENGINE_ON_GPU
#include <cuda_runtime_api.h>

#include "gpunvme/memory.h"
#endif

#define BUS     0x4000000000ull
#define NBYTES  (1u << 20)
#define NBLOCKS 512u
#define PAGE    4096u
#define MAX_Q   4
#define LATE    0xffffu /* what take() returns when nothing came */

struct queue {
    struct gpunvme_sqe *sq;
    struct gpunvme_cqe *cq;
    uint32_t doorbells[2];
    uint32_t size, tail, head, phase;
    struct gpunvme_cqe last;
};

struct rig {
    uint8_t *memory; /* what the driver has, mapped at BUS */
    uint8_t *media, *other;
    struct sim_engine engine;
    struct sim_engine_host host;
    struct sim_engine_range range;
    struct sim_engine_queue queues[MAX_Q];
    struct sim_engine_counters counters[MAX_Q];
    struct queue q[MAX_Q];
    pthread_t threads[MAX_Q];
    unsigned nthreads;
};

static void *zeroed(size_t nbytes)
{
    void *p = NULL;

#ifdef ENGINE_ON_GPU
    assert_int_equal(cudaHostAlloc(&p, (nbytes + 4095) / 4096 * 4096, cudaHostAllocMapped), 0);
#else
    p = aligned_alloc(4096, (nbytes + 4095) / 4096 * 4096);
#endif
    assert_non_null(p);
    memset(p, 0, nbytes);
    return p;
}

static void release(void *p)
{
#ifdef ENGINE_ON_GPU
    cudaFreeHost(p);
#else
    free(p);
#endif
}

static void add_queue(struct rig *r, uint32_t size)
{
    uint32_t i = r->engine.nqueues++;
    struct sim_engine_queue *e = &r->queues[i];
    struct queue *q = &r->q[i];

    q->size = size;
    q->phase = 1;
    q->sq = zeroed(size * sizeof(*q->sq));
    q->cq = zeroed(size * sizeof(*q->cq));
    e->sq = q->sq;
    e->cq = q->cq;
    e->sq_doorbell = &q->doorbells[0];
    e->cq_doorbell = &q->doorbells[1];
    e->cids = zeroed(SIM_ENGINE_CID_WORDS * 4);
    e->pending = zeroed(SIM_ENGINE_MAX_THREADS * sizeof(*e->pending));
    e->publish = &r->counters[i];
    e->sq_size = e->cq_size = size;
    e->sqid = e->cqid = (uint16_t)(i + 1);
    e->active = 1;
}

static struct rig *rig_make(uint32_t size)
{
    struct rig *r = zeroed(sizeof(*r));

    r->memory = zeroed(NBYTES);
    r->media = zeroed(NBLOCKS * 512);
    r->other = zeroed(NBYTES);
    r->range = (struct sim_engine_range){.bus = BUS, .nbytes = NBYTES, .at = r->memory};
    r->engine.host = &r->host;
    r->engine.queues = r->queues;
    r->engine.nns = 2;
    r->engine.ns[0] =
        (struct sim_engine_ns){.bytes = r->media, .nblocks = NBLOCKS, .nsid = 1, .shift = 9};
    r->engine.ns[1] = (struct sim_engine_ns){
        .bytes = r->other, .nblocks = 256, .nsid = 3, .shift = 12, .readonly = 1};
    r->engine.ranges = &r->range;
    r->engine.nranges = 1;
    r->engine.page = PAGE;
    r->engine.max_transfer = 64 << 10;
    r->engine.sgl = r->engine.deac = 1;
    r->engine.seed = 7;
    add_queue(r, size);
    for (uint32_t i = 0; i < NBLOCKS * 512 / 4; i++)
        ((uint32_t *)(void *)r->media)[i] = i * 2654435761u;
    return r;
}

#ifdef ENGINE_ON_GPU
static cudaStream_t stream;

static void launch(struct rig *r, unsigned blocks)
{
    r->host.left = 0;
    r->nthreads = blocks;
    assert_int_equal(sim_engine_launch(&r->engine, blocks, 32, stream), 0);
}

static void join(struct rig *r)
{
    assert_int_equal(sim_engine_wait(stream, gpunvme_clock_ns() + PATIENCE_NS), 0);
    r->nthreads = 0;
}
#else
struct start {
    struct rig *r;
    unsigned block;
};

static void *run(void *arg)
{
    struct start *start = arg;

    sim_engine_run(&start->r->engine, start->block, start->r->nthreads);
    free(start);
    return NULL;
}

static void launch(struct rig *r, unsigned blocks)
{
    memset((char *)&r->engine + SIM_ENGINE_REWIND_OFFSET, 0, SIM_ENGINE_REWIND_NBYTES);
    r->host.left = 0;
    r->nthreads = blocks;
    for (unsigned i = 0; i < blocks; i++) {
        struct start *start = malloc(sizeof(*start));

        assert_non_null(start);
        *start = (struct start){r, i};
        assert_int_equal(pthread_create(&r->threads[i], NULL, run, start), 0);
    }
}

static void join(struct rig *r)
{
    for (unsigned i = 0; i < r->nthreads; i++)
        pthread_join(r->threads[i], NULL);
    r->nthreads = 0;
}

#endif

static void stop(struct rig *r)
{
    gpunvme_store_release32(&r->host.stop, 1);
    join(r);
    r->host.stop = 0;
}

static uint64_t violations(const struct rig *r, enum gpunvme_sim_violation kind)
{
    uint64_t sum = 0;

    for (unsigned i = 0; i < r->engine.nqueues; i++)
        sum += gpunvme_load_relaxed64(&r->counters[i].violations[kind]); /* it can be running */
    return sum;
}

static uint64_t all_violations(const struct rig *r)
{
    uint64_t sum = 0;

    for (unsigned kind = 0; kind < GPUNVME_SIM_NVIOLATIONS; kind++)
        sum += violations(r, (enum gpunvme_sim_violation)kind);
    return sum;
}

static void rig_free(struct rig *r)
{
    if (r->nthreads)
        stop(r);
    for (unsigned i = 0; i < r->engine.nqueues; i++) {
        release(r->q[i].sq);
        release(r->q[i].cq);
        release(r->queues[i].cids);
        release(r->queues[i].pending);
    }
    release(r->memory);
    release(r->media);
    release(r->other);
    release(r);
}

static struct gpunvme_sqe io(uint8_t opc, uint16_t cid, uint64_t slba, uint32_t nlb, uint64_t off)
{
    return (struct gpunvme_sqe){.opc = opc,
                                .cid = cid,
                                .nsid = 1,
                                .prp1 = BUS + off,
                                .cdw10 = (uint32_t)slba,
                                .cdw11 = (uint32_t)(slba >> 32),
                                .cdw12 = nlb - 1};
}

static void put(struct queue *q, struct gpunvme_sqe sqe)
{
    q->sq[q->tail] = sqe;
    q->tail = (q->tail + 1) % q->size;
}

static void ring(struct queue *q)
{
    gpunvme_store_release32(&q->doorbells[0], q->tail);
}

/* The next completion's status; LATE when none comes in `patience_ns`. */
static uint16_t take_for(struct queue *q, uint64_t patience_ns)
{
    uint64_t deadline = gpunvme_clock_ns() + patience_ns;
    const uint32_t *word = (const uint32_t *)&q->cq[q->head];

    while ((gpunvme_load_acquire32(word + 3) >> 16 & 1) != q->phase) {
        if (gpunvme_clock_ns() >= deadline)
            return LATE;
        sched_yield();
    }
    q->last = q->cq[q->head];
    if (++q->head == q->size) {
        q->head = 0;
        q->phase = !q->phase;
    }
    gpunvme_store_release32(&q->doorbells[1], q->head);
    return q->last.status >> 1;
}

static uint16_t take(struct queue *q)
{
    return take_for(q, PATIENCE_NS);
}

static uint16_t command(struct rig *r, struct gpunvme_sqe sqe)
{
    uint16_t status;

    put(&r->q[0], sqe);
    ring(&r->q[0]);
    status = take(&r->q[0]);
    if (status != LATE) {
        assert_int_equal(r->q[0].last.cid, sqe.cid);
        assert_int_equal(r->q[0].last.sqhd, r->q[0].tail);
        assert_int_equal(r->q[0].last.sqid, 1);
    }
    return status;
}

static void read_brings_the_blocks(void **state)
{
    struct rig *r = rig_make(8);

    (void)state;
    launch(r, 1);
    assert_int_equal(command(r, io(GPUNVME_CMD_READ, 5, 17, 3, 1024)), 0);
    assert_memory_equal(r->memory + 1024, r->media + 17 * 512, 3 * 512);
    stop(r);
    assert_int_equal(r->counters[0].commands, 1);
    assert_int_equal(r->counters[0].host_reads, 1);
    assert_int_equal(r->counters[0].bytes_read, 3 * 512);
    assert_int_equal(r->host.left, SIM_ENGINE_LEFT_STOPPED);
    assert_int_equal(all_violations(r), 0);
    rig_free(r);
}

static void write_compare_verify_zero_and_flush_work(void **state)
{
    struct rig *r = rig_make(8);
    struct gpunvme_sqe flush = {.opc = GPUNVME_CMD_FLUSH, .cid = 9, .nsid = GPUNVME_NSID_ALL};
    struct gpunvme_sqe plain = io(GPUNVME_CMD_WRITE_ZEROES, 4, 3, 1, 0);

    (void)state;
    launch(r, 1);
    memset(r->memory, 0x5a, 1024);
    assert_int_equal(command(r, io(GPUNVME_CMD_WRITE, 1, 3, 2, 0)), 0);
    assert_memory_equal(r->media + 3 * 512, r->memory, 1024);
    assert_int_equal(command(r, io(GPUNVME_CMD_COMPARE, 2, 3, 2, 0)), 0);
    assert_int_equal(command(r, io(GPUNVME_CMD_COMPARE, 3, 4, 2, 0)), GPUNVME_SC_COMPARE_FAILURE);
    plain.prp1 = 0;
    assert_int_equal(command(r, plain), 0);
    for (unsigned i = 0; i < 512; i++)
        assert_int_equal(r->media[3 * 512 + i], 0);
    assert_int_equal(r->media[4 * 512], 0x5a);
    plain.opc = GPUNVME_CMD_VERIFY;
    assert_int_equal(command(r, plain), 0);
    assert_int_equal(command(r, flush), 0);
    flush.nsid = 1;
    assert_int_equal(command(r, flush), 0);
    stop(r);
    assert_int_equal(all_violations(r), 0);
    rig_free(r);
}

static void impossible_commands_end_with_their_status(void **state)
{
    struct rig *r = rig_make(8);
    struct gpunvme_sqe s;

    (void)state;
    launch(r, 1);
    assert_int_equal(command(r, io(GPUNVME_CMD_READ, 1, NBLOCKS, 1, 0)), GPUNVME_SC_LBA_RANGE);
    assert_int_equal(command(r, io(GPUNVME_CMD_READ, 1, NBLOCKS - 1, 2, 0)), GPUNVME_SC_LBA_RANGE);
    assert_int_equal(command(r, io(GPUNVME_CMD_READ, 1, 1ull << 40, 1, 0)), GPUNVME_SC_LBA_RANGE);
    assert_int_equal(command(r, io(GPUNVME_CMD_READ, 1, 0, 129, 0)), GPUNVME_SC_INVALID_FIELD);
    s = io(GPUNVME_CMD_READ, 1, 0, 1, 0);
    s.nsid = 2;
    assert_int_equal(command(r, s), GPUNVME_SC_INVALID_FIELD);
    s.nsid = 4;
    assert_int_equal(command(r, s), GPUNVME_SC_INVALID_NS);
    s = io(GPUNVME_CMD_WRITE, 1, 0, 1, 0);
    s.nsid = 3;
    assert_int_equal(command(r, s), GPUNVME_SC_NS_WRITE_PROTECTED);
    s = io(GPUNVME_CMD_DSM, 1, 0, 1, 0);
    assert_int_equal(command(r, s), GPUNVME_SC_INVALID_OPCODE);
    s = io(0x7f, 1, 0, 1, 0);
    assert_int_equal(command(r, s), GPUNVME_SC_INVALID_OPCODE);
    s = io(GPUNVME_CMD_READ, 1, 0, 1, 0);
    s.flags = GPUNVME_FUSE_FIRST;
    assert_int_equal(command(r, s), GPUNVME_SC_INVALID_FIELD);
    stop(r);
    assert_int_equal(all_violations(r), 0);
    assert_int_equal(r->counters[0].errors, 10);
    rig_free(r);
}

static void reserved_bits_are_counted_and_the_first_told(void **state)
{
    struct rig *r = rig_make(8);
    struct gpunvme_sqe s = io(GPUNVME_CMD_READ, 77, 0, 1, 0);

    (void)state;
    launch(r, 1);
    s.cdw13 = 0x100;
    s.cdw2 = 3;
    assert_int_equal(command(r, s), 0);
    s = io(GPUNVME_CMD_READ, 78, 0, 1, 0);
    s.prp2 = BUS + PAGE;
    assert_int_equal(command(r, s), 0);
    stop(r);
    assert_int_equal(violations(r, GPUNVME_SIM_VIOLATION_RESERVED_BITS), 3);
    assert_int_equal(all_violations(r), 3);
    assert_int_equal(r->host.first.there, 1);
    assert_int_equal(r->host.first.kind, GPUNVME_SIM_VIOLATION_RESERVED_BITS);
    assert_int_equal(r->host.first.what, SIM_WHAT_CDW2);
    assert_int_equal(r->host.first.cid, 77);
    assert_int_equal(r->host.first.qid, 1);
    assert_int_equal(r->host.first.value, 3);
    rig_free(r);
}

static void prp_lists_are_walked_from_page_to_page(void **state)
{
    struct rig *r = rig_make(8);
    uint64_t *list = (uint64_t *)(void *)(r->memory + 128 * 1024 + PAGE - 16);
    uint64_t *more = (uint64_t *)(void *)(r->memory + 256 * 1024);
    struct gpunvme_sqe s = io(GPUNVME_CMD_READ, 1, 5, 64, 512);

    (void)state;
    /* 32 KiB from the middle of a page: nine pages, backwards, by two lists. */
    list[0] = BUS + 14 * PAGE;
    list[1] = BUS + 256 * 1024;
    for (unsigned i = 0; i < 7; i++)
        more[i] = BUS + (13 - i) * PAGE;
    s.prp2 = BUS + 128 * 1024 + PAGE - 16;
    launch(r, 1);
    assert_int_equal(command(r, s), 0);
    assert_memory_equal(r->memory + 512, r->media + 5 * 512, PAGE - 512);
    assert_memory_equal(r->memory + 14 * PAGE, r->media + 5 * 512 + PAGE - 512, PAGE);
    for (unsigned i = 0; i < 6; i++)
        assert_memory_equal(r->memory + (13 - i) * PAGE, r->media + 5 * 512 + (i + 2) * PAGE - 512,
                            PAGE);
    assert_memory_equal(r->memory + 7 * PAGE, r->media + 5 * 512 + 8 * PAGE - 512, 512);
    /* two pages, without a list */
    s = io(GPUNVME_CMD_WRITE, 2, 100, 8, 1024);
    s.prp2 = BUS + 20 * PAGE;
    memset(r->memory, 0x11, PAGE);
    memset(r->memory + 20 * PAGE, 0x22, PAGE);
    assert_int_equal(command(r, s), 0);
    assert_int_equal(r->media[100 * 512 + PAGE - 1025], 0x11);
    assert_int_equal(r->media[100 * 512 + PAGE - 1024], 0x22);
    assert_int_equal(r->media[108 * 512 - 1], 0x22);
    stop(r);
    assert_int_equal(all_violations(r), 0);
    rig_free(r);
}

static void two_pages_side_by_side_need_no_list(void **state)
{
    struct rig *r = rig_make(8);
    struct gpunvme_sqe s = io(GPUNVME_CMD_READ, 1, 30, 8, PAGE - 512);

    (void)state;
    launch(r, 1);
    s.prp2 = BUS + PAGE;
    assert_int_equal(command(r, s), 0);
    assert_memory_equal(r->memory + PAGE - 512, r->media + 30 * 512, 4096);
    s = io(GPUNVME_CMD_WRITE, 2, 200, 2 * PAGE / 512, 8 * PAGE); /* both of them whole */
    s.prp2 = BUS + 9 * PAGE;
    for (unsigned i = 0; i < 2 * PAGE; i++)
        r->memory[8 * PAGE + i] = (uint8_t)(i * 7 + i / PAGE);
    assert_int_equal(command(r, s), 0);
    assert_memory_equal(r->media + 200 * 512, r->memory + 8 * PAGE, 2 * PAGE);
    s = io(GPUNVME_CMD_READ, 3, 30, 1, 0); /* one page, and a second that it does not need */
    s.prp2 = BUS + PAGE;
    assert_int_equal(command(r, s), 0);
    stop(r);
    assert_int_equal(violations(r, GPUNVME_SIM_VIOLATION_RESERVED_BITS), 1);
    assert_int_equal(all_violations(r), 1);
    rig_free(r);
}

/* Plain ones, of several lengths, beside some that are not plain: one ring of the doorbell. */
static void a_mixed_batch_is_done_as_each_command_alone(void **state)
{
    struct rig *r = rig_make(16);
    uint16_t status[8];
    struct gpunvme_sqe s;

    (void)state;
    memset(r->memory + 6 * PAGE, 0x5a, PAGE);
    memset(r->media + 300 * 512, 0xff, 512);
    put(&r->q[0], io(GPUNVME_CMD_READ, 0, 10, 1, 0));
    s = io(GPUNVME_CMD_READ, 1, 11, 12, PAGE); /* two pages apart */
    s.prp2 = BUS + 4 * PAGE;
    put(&r->q[0], s);
    put(&r->q[0], io(GPUNVME_CMD_READ, 2, 40, 8, 5 * PAGE));
    put(&r->q[0], io(GPUNVME_CMD_WRITE, 3, 150, 3, 6 * PAGE));
    put(&r->q[0], io(GPUNVME_CMD_WRITE_ZEROES, 4, 300, 1, 0));
    r->q[0].sq[4].prp1 = 0;
    put(&r->q[0], io(GPUNVME_CMD_READ, 5, NBLOCKS, 1, 0));
    put(&r->q[0], io(GPUNVME_CMD_READ, 6, 10, 1, 7 * PAGE));
    s = io(GPUNVME_CMD_READ, 7, 60, 2, 0);
    s.flags = GPUNVME_PSDT_SGL_MPTR_CONTIG;
    s.sgl1 = (struct gpunvme_sgl_desc){.addr = BUS + 10 * PAGE + 4, .length = 1024};
    put(&r->q[0], s);
    launch(r, 1);
    ring(&r->q[0]);
    for (unsigned i = 0; i < 8; i++) {
        uint16_t got = take(&r->q[0]);

        assert_in_range(r->q[0].last.cid, 0, 7);
        status[r->q[0].last.cid] = got;
    }
    stop(r);
    for (unsigned i = 0; i < 8; i++)
        assert_int_equal(status[i], i == 5 ? GPUNVME_SC_LBA_RANGE : GPUNVME_SC_SUCCESS);
    assert_memory_equal(r->memory, r->media + 10 * 512, 512);
    assert_memory_equal(r->memory + PAGE, r->media + 11 * 512, PAGE);
    assert_memory_equal(r->memory + 4 * PAGE, r->media + 11 * 512 + PAGE, 12 * 512 - PAGE);
    assert_memory_equal(r->memory + 5 * PAGE, r->media + 40 * 512, 4096);
    assert_memory_equal(r->memory + 6 * PAGE, r->media + 150 * 512, 3 * 512);
    assert_memory_equal(r->memory + 7 * PAGE, r->media + 10 * 512, 512);
    assert_memory_equal(r->memory + 10 * PAGE + 4, r->media + 60 * 512, 1024);
    assert_int_equal(r->media[300 * 512], 0);
    assert_int_equal(r->counters[0].commands, 8);
    assert_int_equal(r->counters[0].host_reads, 5);
    assert_int_equal(r->counters[0].host_writes, 1);
    assert_int_equal(r->counters[0].bytes_read, (1 + 12 + 8 + 1 + 2) * 512);
    assert_int_equal(r->counters[0].bytes_written, 3 * 512);
    assert_int_equal(r->counters[0].errors, 1);
    assert_int_equal(all_violations(r), 0);
    rig_free(r);
}

static void bad_prps_are_refused_and_counted(void **state)
{
    struct rig *r = rig_make(8);
    struct gpunvme_sqe s;

    (void)state;
    launch(r, 1);
    assert_int_equal(command(r, io(GPUNVME_CMD_READ, 1, 0, 1, 2)), GPUNVME_SC_PRP_OFFSET_INVALID);
    s = io(GPUNVME_CMD_READ, 1, 0, 16, 0);
    s.prp2 = BUS + PAGE + 8;
    assert_int_equal(command(r, s), GPUNVME_SC_PRP_OFFSET_INVALID);
    s = io(GPUNVME_CMD_READ, 1, 0, 32, 0);
    s.prp2 = BUS + PAGE + 4;
    assert_int_equal(command(r, s), GPUNVME_SC_PRP_OFFSET_INVALID);
    s = io(GPUNVME_CMD_READ, 1, 0, 1, NBYTES);
    assert_int_equal(command(r, s), GPUNVME_SC_DATA_TRANSFER_ERROR);
    s = io(GPUNVME_CMD_READ, 1, 0, 32, 0);
    s.prp2 = 0x1000;
    assert_int_equal(command(r, s), GPUNVME_SC_DATA_TRANSFER_ERROR);
    stop(r);
    assert_int_equal(violations(r, GPUNVME_SIM_VIOLATION_PRP_OFFSET), 3);
    assert_int_equal(violations(r, GPUNVME_SIM_VIOLATION_DMA_UNMAPPED), 2);
    rig_free(r);
}

static void sgls_are_followed_and_checked(void **state)
{
    struct rig *r = rig_make(8);
    struct gpunvme_sgl_desc *segment = (void *)(r->memory + 64 * 1024);
    struct gpunvme_sqe s = io(GPUNVME_CMD_READ, 1, 40, 2, 0);

    (void)state;
    launch(r, 1);
    s.flags = GPUNVME_PSDT_SGL_MPTR_CONTIG;
    s.sgl1 = (struct gpunvme_sgl_desc){.addr = BUS + 4099, .length = 1024};
    assert_int_equal(command(r, s), 0); /* at an odd address */
    assert_memory_equal(r->memory + 4099, r->media + 40 * 512, 1024);
    segment[0] = (struct gpunvme_sgl_desc){.addr = BUS + 10, .length = 100};
    segment[1] =
        (struct gpunvme_sgl_desc){.length = 24, .id = GPUNVME_SGL_ID(GPUNVME_SGL_BIT_BUCKET, 0)};
    segment[2] = (struct gpunvme_sgl_desc){.addr = BUS + 8192, .length = 900};
    s.sgl1 = (struct gpunvme_sgl_desc){.addr = BUS + 64 * 1024,
                                       .length = 3 * sizeof(*segment),
                                       .id = GPUNVME_SGL_ID(GPUNVME_SGL_LAST_SEGMENT, 0)};
    assert_int_equal(command(r, s), 0);
    assert_memory_equal(r->memory + 10, r->media + 40 * 512, 100);
    assert_memory_equal(r->memory + 8192, r->media + 40 * 512 + 124, 900);
    assert_int_equal(all_violations(r), 0);
    s.sgl1 = (struct gpunvme_sgl_desc){.addr = BUS, .length = 1000};
    assert_int_equal(command(r, s), GPUNVME_SC_SGL_INVALID_DATA_LENGTH);
    s.sgl1.length = 2000;
    assert_int_equal(command(r, s), GPUNVME_SC_SGL_INVALID_DATA_LENGTH);
    s.sgl1.id = 0x70;
    assert_int_equal(command(r, s), GPUNVME_SC_SGL_INVALID_TYPE);
    stop(r);
    assert_int_equal(violations(r, GPUNVME_SIM_VIOLATION_SGL_INVALID), 3);
    rig_free(r);
}

static void doorbells_that_cannot_be_are_refused(void **state)
{
    struct rig *r = rig_make(8);

    (void)state;
    launch(r, 1);
    assert_int_equal(command(r, io(GPUNVME_CMD_READ, 1, 0, 1, 0)), 0);
    gpunvme_store_release32(&r->q[0].doorbells[0], 8);
    while (gpunvme_load_relaxed64(
               &r->counters[0].violations[GPUNVME_SIM_VIOLATION_DOORBELL_VALUE]) == 0)
        sched_yield();
    /* a tail that goes back would overrun the queue once entries wait */
    put(&r->q[0], io(GPUNVME_CMD_READ, 2, 1, 1, 0));
    ring(&r->q[0]);
    assert_int_equal(take(&r->q[0]), 0);
    gpunvme_store_release32(&r->q[0].doorbells[1], 7);
    stop(r);
    assert_int_equal(violations(r, GPUNVME_SIM_VIOLATION_DOORBELL_VALUE), 1);
    rig_free(r);
}

static void a_tail_that_passes_the_told_head_is_an_overrun(void **state)
{
    struct rig *r = rig_make(4);

    (void)state;
    r->queues[0].cq_size = 2; /* one completion at a time, and nobody takes it */
    launch(r, 1);
    put(&r->q[0], io(GPUNVME_CMD_READ, 1, 0, 1, 0));
    put(&r->q[0], io(GPUNVME_CMD_READ, 2, 0, 1, 0));
    put(&r->q[0], io(GPUNVME_CMD_READ, 3, 0, 1, 0));
    ring(&r->q[0]);
    while ((gpunvme_load_acquire32((uint32_t *)&r->q[0].cq[0] + 3) >> 16 & 1) != 1)
        sched_yield();
    gpunvme_store_release32(&r->q[0].doorbells[0], 2); /* head told: 1, tail: 3 */
    while (gpunvme_load_relaxed64(&r->counters[0].violations[GPUNVME_SIM_VIOLATION_SQ_OVERFLOW]) ==
           0)
        sched_yield();
    stop(r);
    assert_int_equal(r->counters[0].commands, 1); /* the completion queue was not overrun */
    assert_int_equal(r->host.first.kind, GPUNVME_SIM_VIOLATION_SQ_OVERFLOW);
    assert_int_equal(r->host.first.value, 2);
    assert_int_equal(r->host.first.other, 1);
    rig_free(r);
}

static void a_completion_head_beyond_the_tail_is_refused(void **state)
{
    struct rig *r = rig_make(4);

    (void)state;
    launch(r, 1);
    /* two of three places are used: then the engine looks at the head */
    for (uint16_t i = 0; i < 2; i++)
        put(&r->q[0], io(GPUNVME_CMD_READ, i, 0, 1, 0));
    ring(&r->q[0]);
    while ((gpunvme_load_acquire32((uint32_t *)&r->q[0].cq[1] + 3) >> 16 & 1) != 1)
        sched_yield();
    gpunvme_store_release32(&r->q[0].doorbells[1], 3);
    while (gpunvme_load_relaxed64(&r->counters[0].violations[GPUNVME_SIM_VIOLATION_CQ_OVERRUN]) ==
           0)
        sched_yield();
    gpunvme_store_release32(&r->q[0].doorbells[1], 2);
    r->q[0].head = 2;
    for (uint16_t i = 0; i < 3; i++) {
        put(&r->q[0], io(GPUNVME_CMD_READ, i, 0, 1, 0));
        ring(&r->q[0]);
        assert_int_equal(take(&r->q[0]), 0);
    }
    stop(r);
    assert_int_equal(all_violations(r), 1);
    rig_free(r);
}

static void phases_turn_and_data_is_right_over_many_laps(void **state)
{
    struct rig *r = rig_make(5);
    uint32_t sent = 0, done = 0, total = 2000;

    (void)state;
    launch(r, 1);
    while (done < total) {
        while (sent < total && sent - done < 4) {
            uint32_t slot = sent % 4;

            put(&r->q[0], io(GPUNVME_CMD_READ, (uint16_t)sent, sent * 7 % NBLOCKS, 1, slot * 512));
            sent++;
        }
        ring(&r->q[0]);
        assert_int_equal(take(&r->q[0]), 0);
        assert_int_equal(r->q[0].last.cid, (uint16_t)done);
        assert_memory_equal(r->memory + done % 4 * 512, r->media + done * 7 % NBLOCKS * 512, 512);
        done++;
    }
    stop(r);
    assert_int_equal(r->counters[0].commands, total);
    assert_int_equal(r->counters[0].bytes_read, total * 512);
    assert_int_equal(all_violations(r), 0);
    rig_free(r);
}

static struct sim_engine_rule any(uint32_t kind)
{
    struct sim_engine_rule rule = {.kind = kind, .p_of_2_to64 = UINT64_MAX};

    memset(rule.opcodes, 0xff, sizeof(rule.opcodes));
    return rule;
}

static void an_id_that_a_waiting_command_has_is_refused(void **state)
{
    struct rig *r = rig_make(8);

    (void)state;
    r->engine.rules[0] = any(SIM_ENGINE_FAULT_LOSE);
    r->engine.rules[0].nth = 1;
    r->engine.nrules = 1;
    launch(r, 1);
    put(&r->q[0], io(GPUNVME_CMD_READ, 6, 0, 1, 0)); /* lost: it never ends */
    assert_int_equal(command(r, io(GPUNVME_CMD_READ, 6, 0, 1, 0)), GPUNVME_SC_CID_CONFLICT);
    assert_int_equal(command(r, io(GPUNVME_CMD_READ, 7, 0, 1, 0)), 0);
    assert_int_equal(command(r, io(GPUNVME_CMD_READ, 7, 0, 1, 0)), 0);
    stop(r);
    assert_int_equal(violations(r, GPUNVME_SIM_VIOLATION_CID_IN_USE), 1);
    assert_int_equal(r->counters[0].faults, 1);
    assert_int_equal(r->queues[0].npending, 0);
    rig_free(r);
}

static void rules_hit_what_they_name(void **state)
{
    struct rig *r = rig_make(8);
    struct sim_engine_rule *rules = r->engine.rules;

    (void)state;
    rules[0] = any(SIM_ENGINE_FAULT_STATUS);
    rules[0].status = GPUNVME_SC_UNRECOVERED_READ;
    rules[0].has_lba = 1;
    rules[0].first_lba = 100;
    rules[0].last_lba = 107;
    memset(rules[0].opcodes, 0, sizeof(rules[0].opcodes));
    rules[0].opcodes[0] = 1u << GPUNVME_CMD_READ;
    rules[1] = any(SIM_ENGINE_FAULT_STATUS);
    rules[1].status = GPUNVME_SC_WRITE_FAULT;
    rules[1].every = 2;
    memset(rules[1].opcodes, 0, sizeof(rules[1].opcodes));
    rules[1].opcodes[0] = 1u << GPUNVME_CMD_WRITE;
    rules[2] = any(SIM_ENGINE_FAULT_STATUS);
    rules[2].status = GPUNVME_SC_INTERNAL;
    rules[2].once = 1;
    rules[2].has_nsid = 1;
    rules[2].nsid = 3;
    r->engine.nrules = 3;
    launch(r, 1);
    assert_int_equal(command(r, io(GPUNVME_CMD_READ, 1, 99, 1, 0)), 0);
    assert_int_equal(command(r, io(GPUNVME_CMD_READ, 1, 99, 2, 0)), GPUNVME_SC_UNRECOVERED_READ);
    assert_int_equal(command(r, io(GPUNVME_CMD_READ, 1, 107, 1, 0)), GPUNVME_SC_UNRECOVERED_READ);
    assert_int_equal(command(r, io(GPUNVME_CMD_READ, 1, 108, 1, 0)), 0);
    assert_int_equal(command(r, io(GPUNVME_CMD_WRITE, 1, 100, 1, 0)), 0);
    assert_int_equal(command(r, io(GPUNVME_CMD_WRITE, 1, 100, 1, 0)), GPUNVME_SC_WRITE_FAULT);
    assert_int_equal(command(r, io(GPUNVME_CMD_WRITE, 1, 100, 1, 0)), 0);
    for (int i = 0; i < 2; i++) {
        struct gpunvme_sqe s = io(GPUNVME_CMD_READ, 1, 0, 1, 0);

        s.nsid = 3;
        assert_int_equal(command(r, s), i ? 0 : GPUNVME_SC_INTERNAL);
    }
    stop(r);
    assert_int_equal(r->counters[0].faults, 4);
    assert_int_equal(r->counters[0].media_errors, 3);
    assert_int_equal(all_violations(r), 0);
    rig_free(r);
}

static void the_blocks_that_must_fail_are_known_beforehand(void **state)
{
    struct rig *r = rig_make(8);
    unsigned failed = 0;

    (void)state;
    r->engine.rules[0] = any(SIM_ENGINE_FAULT_STATUS);
    r->engine.rules[0].status = GPUNVME_SC_UNRECOVERED_READ;
    r->engine.rules[0].lba_one_in = 10;
    r->engine.nrules = 1;
    launch(r, 1);
    for (uint64_t lba = 0; lba < NBLOCKS; lba++) {
        int fails = sim_engine_lba_fails(7, lba, 10);

        failed += (unsigned)fails;
        assert_int_equal(command(r, io(GPUNVME_CMD_READ, 1, lba, 1, 0)),
                         fails ? GPUNVME_SC_UNRECOVERED_READ : 0);
    }
    assert_in_range(failed, NBLOCKS / 20, NBLOCKS / 5);
    rig_free(r);
}

static void a_fatal_fault_ends_everything(void **state)
{
    struct rig *r = rig_make(8);

    (void)state;
    r->engine.rules[0] = any(SIM_ENGINE_FAULT_CFS);
    r->engine.rules[0].nth = 2;
    r->engine.nrules = 1;
    launch(r, 1);
    assert_int_equal(command(r, io(GPUNVME_CMD_READ, 1, 0, 1, 0)), 0);
    put(&r->q[0], io(GPUNVME_CMD_READ, 2, 0, 1, 0));
    put(&r->q[0], io(GPUNVME_CMD_READ, 3, 0, 1, 0));
    ring(&r->q[0]);
    join(r);
    assert_int_equal(r->host.left, SIM_ENGINE_LEFT_FATAL);
    assert_int_equal(r->counters[0].commands, 1);
    rig_free(r);
}

static void a_delayed_command_is_overtaken(void **state)
{
    struct rig *r = rig_make(8);

    (void)state;
    r->engine.rules[0] = any(SIM_ENGINE_FAULT_DELAY);
    r->engine.rules[0].delay_ns = 300000000;
    r->engine.rules[0].nth = 1;
    r->engine.nrules = 1;
    launch(r, 1);
    put(&r->q[0], io(GPUNVME_CMD_READ, 1, 0, 1, 0));
    put(&r->q[0], io(GPUNVME_CMD_READ, 2, 0, 1, 0));
    ring(&r->q[0]);
    assert_int_equal(take(&r->q[0]), 0);
    assert_int_equal(r->q[0].last.cid, 2);
    assert_int_equal(r->q[0].last.sqhd, 2);
    assert_int_equal(take(&r->q[0]), 0);
    assert_int_equal(r->q[0].last.cid, 1);
    rig_free(r);
}

static void the_model_delays_reads_and_limits_their_rate(void **state)
{
    struct rig *r = rig_make(64);
    uint64_t start;

    (void)state;
    r->engine.model.enabled = 1;
    r->engine.model.latency_ns[0] = 200000000;
    r->engine.model.latency_ns[1] = 100000;
    r->engine.model.command_cost[0] = 1000000ull * 4096; /* 1000 a second */
    launch(r, 1);
    start = gpunvme_clock_ns();
    for (uint16_t i = 0; i < 10; i++)
        put(&r->q[0], io(GPUNVME_CMD_READ, i, i, 1, i * 512u));
    put(&r->q[0], io(GPUNVME_CMD_WRITE, 100, 200, 1, 32 * 512));
    ring(&r->q[0]);
    for (unsigned i = 0; i < 11; i++) {
        assert_int_equal(take(&r->q[0]), 0);
        /* the write is not held up by the reads' meter; the reads come in order */
        assert_int_equal(r->q[0].last.cid, i ? i - 1 : 100);
    }
    assert_true(gpunvme_clock_ns() - start >= 9 * 1000000 + 200000000);
    rig_free(r);
}

static void a_single_channel_does_one_command_after_the_other(void **state)
{
    struct rig *r = rig_make(16);
    uint64_t *channel = zeroed(sizeof(*channel));
    float *spread = zeroed(SIM_ENGINE_SPREAD * sizeof(*spread));
    uint64_t start;

    (void)state;
    for (unsigned i = 0; i < SIM_ENGINE_SPREAD; i++)
        spread[i] = 2;
    r->engine.model.enabled = 1;
    r->engine.model.latency_ns[0] = 5000000;
    r->engine.model.nchannels = 1;
    r->engine.model.channels = channel;
    r->engine.model.spread = spread;
    launch(r, 1);
    start = gpunvme_clock_ns();
    for (uint16_t i = 0; i < 5; i++)
        put(&r->q[0], io(GPUNVME_CMD_READ, i, i, 1, i * 512u));
    ring(&r->q[0]);
    for (unsigned i = 0; i < 5; i++)
        assert_int_equal(take(&r->q[0]), 0);
    assert_true(gpunvme_clock_ns() - start >= 5 * 2 * 5000000);
    rig_free(r);
    release(channel);
    release(spread);
}

static void bytes_take_their_time(void **state)
{
    struct rig *r = rig_make(16);
    uint64_t start;

    (void)state;
    r->engine.model.enabled = 1;
    r->engine.model.byte_cost[1] = 10000ull << 24; /* 100 KB a second */
    launch(r, 1);
    start = gpunvme_clock_ns();
    put(&r->q[0], io(GPUNVME_CMD_WRITE, 1, 0, 4, 0));
    put(&r->q[0], io(GPUNVME_CMD_WRITE, 2, 8, 4, 0));
    ring(&r->q[0]);
    assert_int_equal(take(&r->q[0]), 0);
    assert_int_equal(take(&r->q[0]), 0);
    assert_true(gpunvme_clock_ns() - start >= 2 * 4 * 512 * 10000);
    rig_free(r);
}

static void chance_is_the_same_for_the_same_seed(void **state)
{
    uint8_t seen[2][200];

    (void)state;
    for (unsigned lap = 0; lap < 2; lap++) {
        struct rig *r = rig_make(8);
        unsigned failed = 0;

        r->engine.rules[0] = any(SIM_ENGINE_FAULT_STATUS);
        r->engine.rules[0].status = GPUNVME_SC_INTERNAL;
        r->engine.rules[0].p_of_2_to64 = UINT64_MAX / 4;
        r->engine.nrules = 1;
        launch(r, 1);
        for (uint16_t i = 0; i < 200; i++) {
            seen[lap][i] = command(r, io(GPUNVME_CMD_READ, i, i, 1, 0)) != 0;
            failed += seen[lap][i];
        }
        assert_in_range(failed, 20, 90);
        rig_free(r);
    }
    assert_memory_equal(seen[0], seen[1], sizeof(seen[0]));
}

static void a_rule_for_a_queue_leaves_the_others_alone_and_can_remove_the_drive(void **state)
{
    struct rig *r = rig_make(8);

    (void)state;
    add_queue(r, 8);
    r->engine.rules[0] = any(SIM_ENGINE_FAULT_REMOVE);
    r->engine.rules[0].has_sq = 1;
    r->engine.rules[0].sq = 2;
    r->engine.nrules = 1;
    launch(r, 2);
    assert_int_equal(command(r, io(GPUNVME_CMD_READ, 1, 0, 1, 0)), 0);
    put(&r->q[1], io(GPUNVME_CMD_READ, 1, 0, 1, 0));
    ring(&r->q[1]);
    join(r);
    assert_int_equal(r->host.left, SIM_ENGINE_LEFT_REMOVED);
    assert_int_equal(r->counters[1].commands, 0);
    rig_free(r);
}

static void the_engine_goes_on_where_it_was_stopped(void **state)
{
    struct rig *r = rig_make(16);

    (void)state;
    r->engine.rules[0] = any(SIM_ENGINE_FAULT_DELAY);
    r->engine.rules[0].delay_ns = 400000000;
    r->engine.rules[0].every = 3;
    r->engine.nrules = 1;
    for (unsigned lap = 0; lap < 3; lap++) {
        unsigned seen = 0;

        launch(r, 1);
        for (uint16_t i = 0; i < 9; i++)
            put(&r->q[0], io(GPUNVME_CMD_READ, i, i, 1, i * 512u));
        ring(&r->q[0]);
        for (unsigned i = 0; i < 6; i++) {
            assert_int_equal(take(&r->q[0]), 0);
            seen |= 1u << r->q[0].last.cid;
        }
        stop(r);
        assert_int_equal(r->queues[0].npending, 3);
        launch(r, 1);
        for (unsigned i = 0; i < 3; i++) {
            assert_int_equal(take(&r->q[0]), 0);
            seen |= 1u << r->q[0].last.cid;
        }
        assert_int_equal(seen, 0x1ff);
        stop(r);
        assert_int_equal(r->queues[0].npending, 0);
    }
    assert_int_equal(r->counters[0].commands, 27);
    assert_int_equal(all_violations(r), 0);
    rig_free(r);
}

static void an_idle_engine_leaves_by_itself(void **state)
{
    struct rig *r = rig_make(8);

    (void)state;
    add_queue(r, 8);
    r->engine.idle_ns = 2000000;
    for (unsigned lap = 0; lap < 3; lap++) {
        launch(r, 2);
        join(r);
        assert_int_equal(r->host.left, SIM_ENGINE_LEFT_IDLE);
    }
    put(&r->q[1], io(GPUNVME_CMD_READ, 1, 0, 1, 0)); /* rung while nobody was there */
    ring(&r->q[1]);
    launch(r, 2);
    assert_int_equal(take(&r->q[1]), 0);
    join(r);
    assert_int_equal(r->host.left, SIM_ENGINE_LEFT_IDLE);
    rig_free(r);
}

/* One driver thread for each queue. */
struct drive {
    struct rig *r;
    struct queue *q;
    unsigned index, wrong;
};

static void *drive(void *arg)
{
    struct drive *d = arg;
    uint8_t *memory = d->r->memory + d->index * 64 * 1024;
    uint32_t sent = 0, done = 0, total = 600;

    while (done < total) {
        for (; sent < total && sent - done < 7; sent++)
            put(d->q, io(GPUNVME_CMD_READ, (uint16_t)sent, sent * 31 % NBLOCKS, 1,
                         d->index * 64u * 1024 + sent % 8 * 512));
        ring(d->q);
        if (take(d->q)) {
            d->wrong++;
            break;
        }
        done++;
        d->wrong += memcmp(memory + d->q->last.cid % 8 * 512,
                           d->r->media + d->q->last.cid * 31u % NBLOCKS * 512, 512) != 0;
    }
    return NULL;
}

static void serve_four(unsigned blocks)
{
    struct rig *r = rig_make(8);
    struct drive d[MAX_Q];
    pthread_t threads[MAX_Q];

    for (unsigned i = 1; i < MAX_Q; i++)
        add_queue(r, 8);
    launch(r, blocks);
    for (unsigned i = 0; i < MAX_Q; i++) {
        d[i] = (struct drive){.r = r, .q = &r->q[i], .index = i};
        assert_int_equal(pthread_create(&threads[i], NULL, drive, &d[i]), 0);
    }
    for (unsigned i = 0; i < MAX_Q; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(d[i].wrong, 0);
    }
    stop(r);
    for (unsigned i = 0; i < MAX_Q; i++)
        assert_int_equal(r->counters[i].commands, 600);
    assert_int_equal(all_violations(r), 0);
    rig_free(r);
}

static void each_block_serves_its_queue(void **state)
{
    (void)state;
    serve_four(4);
}

static void one_block_serves_several_queues_in_turn(void **state)
{
    (void)state;
    serve_four(1);
}

static void inactive_queues_are_passed_over(void **state)
{
    struct rig *r = rig_make(8);

    (void)state;
    add_queue(r, 8);
    r->queues[0].active = 0;
    put(&r->q[0], io(GPUNVME_CMD_READ, 1, 0, 1, 0));
    ring(&r->q[0]);
    put(&r->q[1], io(GPUNVME_CMD_READ, 1, 0, 1, 0));
    ring(&r->q[1]);
    launch(r, 1);
    assert_int_equal(take(&r->q[1]), 0);
    assert_int_equal(take_for(&r->q[0], 1000000), LATE);
    rig_free(r);
}

/* On the GPU: 77 where there is none. */
static int prepare(void)
{
#ifdef ENGINE_ON_GPU
    if (gpunvme_mem_gpu_is_host()) {
        printf("SKIP: no GPU: %s\n", gpunvme_mem_gpu_why_not());
        return 77;
    }
    if (sim_engine_preload() || cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking))
        return 1;
#endif
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(read_brings_the_blocks),
        cmocka_unit_test(write_compare_verify_zero_and_flush_work),
        cmocka_unit_test(impossible_commands_end_with_their_status),
        cmocka_unit_test(reserved_bits_are_counted_and_the_first_told),
        cmocka_unit_test(prp_lists_are_walked_from_page_to_page),
        cmocka_unit_test(two_pages_side_by_side_need_no_list),
        cmocka_unit_test(a_mixed_batch_is_done_as_each_command_alone),
        cmocka_unit_test(bad_prps_are_refused_and_counted),
        cmocka_unit_test(sgls_are_followed_and_checked),
        cmocka_unit_test(doorbells_that_cannot_be_are_refused),
        cmocka_unit_test(a_tail_that_passes_the_told_head_is_an_overrun),
        cmocka_unit_test(a_completion_head_beyond_the_tail_is_refused),
        cmocka_unit_test(phases_turn_and_data_is_right_over_many_laps),
        cmocka_unit_test(an_id_that_a_waiting_command_has_is_refused),
        cmocka_unit_test(rules_hit_what_they_name),
        cmocka_unit_test(the_blocks_that_must_fail_are_known_beforehand),
        cmocka_unit_test(a_fatal_fault_ends_everything),
        cmocka_unit_test(a_delayed_command_is_overtaken),
        cmocka_unit_test(the_model_delays_reads_and_limits_their_rate),
        cmocka_unit_test(a_single_channel_does_one_command_after_the_other),
        cmocka_unit_test(bytes_take_their_time),
        cmocka_unit_test(chance_is_the_same_for_the_same_seed),
        cmocka_unit_test(a_rule_for_a_queue_leaves_the_others_alone_and_can_remove_the_drive),
        cmocka_unit_test(the_engine_goes_on_where_it_was_stopped),
        cmocka_unit_test(an_idle_engine_leaves_by_itself),
        cmocka_unit_test(each_block_serves_its_queue),
        cmocka_unit_test(one_block_serves_several_queues_in_turn),
        cmocka_unit_test(inactive_queues_are_passed_over),
    };

    int why_not = prepare();

    return why_not ? why_not : cmocka_run_group_tests(tests, NULL, NULL);
}
