/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A driver for tests of the software controller: as small as can be, its queues set up by hand,
 * every byte under the test's control. It shares nothing with the real driver but nvme.h, so that
 * the two can't be wrong in the same way.
 */
#ifndef TESTS_SIM_RAW_H
#define TESTS_SIM_RAW_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "gpunvme/nvme.h"
#include "gpunvme/sim.h"
#include "patience.h"

#define RAW_BUS    0x4000000000ull /* bus address of the arena */
#define RAW_NBYTES (16u << 20)
#define RAW_PAGE   4096u
#define RAW_QUEUES 9
#define RAW_LATE   0xffffu /* what raw_wait() returns when nothing came */

#define assert_ok(err)                                                                             \
    do {                                                                                           \
        gpunvme_err_t err_ = (err);                                                                \
        if (err_) {                                                                                \
            print_error("%s (%s)\n", gpunvme_err_name(err_), gpunvme_err_detail());                \
            _fail(__FILE__, __LINE__);                                                             \
        }                                                                                          \
    } while (0)

struct raw_queue {
    struct gpunvme_sqe *sq;
    struct gpunvme_cqe *cq;
    uint32_t size;
    uint32_t tail, head;
    uint16_t qid, phase;
    uint16_t cid;            /* of the next command */
    struct gpunvme_cqe last; /* the completion taken last */
};

struct raw {
    struct gpunvme_sim *sim;
    uint8_t *memory; /* the arena, all of it mapped at RAW_BUS */
    size_t used;
    volatile uint32_t *doorbells;
    uint32_t stride; /* in dwords */
    uint32_t page;   /* CC.MPS as bytes */
    struct raw_queue queue[RAW_QUEUES];
};

static inline bool raw_expired(time_t *end)
{
    struct timespec now, pause = {.tv_nsec = 20000};

    clock_gettime(CLOCK_MONOTONIC, &now);
    if (!*end)
        *end = now.tv_sec + PATIENCE_S;
    nanosleep(&pause, NULL);
    return now.tv_sec > *end;
}

/* Zeroed memory that begins on a page. */
static inline void *raw_alloc(struct raw *r, size_t nbytes)
{
    void *memory = r->memory + r->used;

    r->used += (nbytes + r->page - 1) & ~((size_t)r->page - 1);
    assert_true(r->used <= RAW_NBYTES);
    memset(memory, 0, nbytes);
    return memory;
}

static inline uint64_t raw_bus(const struct raw *r, const void *memory)
{
    return RAW_BUS + (uint64_t)((const uint8_t *)memory - r->memory);
}

static inline uint32_t raw_read(struct raw *r, uint32_t offset)
{
    return (uint32_t)gpunvme_sim_reg_read(r->sim, offset, 4);
}

static inline uint64_t raw_read64(struct raw *r, uint32_t offset)
{
    return gpunvme_sim_reg_read(r->sim, offset, 8);
}

static inline void raw_write(struct raw *r, uint32_t offset, uint32_t value)
{
    gpunvme_sim_reg_write(r->sim, offset, 4, value);
}

static inline void raw_write64(struct raw *r, uint32_t offset, uint64_t value)
{
    gpunvme_sim_reg_write(r->sim, offset, 8, value);
}

/* Waits until CSTS has the value under the mask; false when it takes too long. */
static inline bool raw_wait_csts(struct raw *r, uint32_t mask, uint32_t value)
{
    time_t end = 0;

    while ((raw_read(r, GPUNVME_REG_CSTS) & mask) != value)
        if (raw_expired(&end))
            return false;
    return true;
}

#define RAW_RDY       ((uint32_t)GPUNVME_SET(1, CSTS_RDY))
#define RAW_CFS       ((uint32_t)GPUNVME_SET(1, CSTS_CFS))
#define RAW_SHST      ((uint32_t)GPUNVME_SET(GPUNVME_CSTS_SHST_MASK, CSTS_SHST))
#define RAW_SHST_DONE ((uint32_t)GPUNVME_SET(GPUNVME_CSTS_SHST_COMPLETE, CSTS_SHST))
#define RAW_CC                                                                                     \
    ((uint32_t)(GPUNVME_SET(1, CC_EN) | GPUNVME_SET(GPUNVME_SQE_SHIFT, CC_IOSQES) |                \
                GPUNVME_SET(GPUNVME_CQE_SHIFT, CC_IOCQES)))

/* Powers a controller on: nothing else. */
static inline void raw_create_config(struct raw *r, const struct gpunvme_sim_config *config)
{
    struct gpunvme_buf buf = {.nbytes = RAW_NBYTES, .mem = GPUNVME_MEM_HOST};

    memset(r, 0, sizeof(*r));
    r->page = RAW_PAGE;
    assert_ok(gpunvme_sim_create(config, &r->sim));
    r->memory = aligned_alloc(65536, RAW_NBYTES);
    assert_non_null(r->memory);
    buf.cpu = r->memory;
    assert_ok(gpunvme_sim_dma_map(r->sim, RAW_BUS, RAW_NBYTES, &buf));
    r->doorbells = gpunvme_sim_doorbells(r->sim, NULL);
    r->stride = 1u << gpunvme_sim_config_of(r->sim)->dstrd;
}

static inline void raw_create(struct raw *r, const char *uri)
{
    struct gpunvme_sim_config config;

    assert_ok(gpunvme_sim_config_parse(uri, &config));
    raw_create_config(r, &config);
}

static inline struct raw_queue *raw_queue_init(struct raw *r, uint16_t qid, uint32_t size)
{
    struct raw_queue *q = &r->queue[qid];

    memset(q, 0, sizeof(*q));
    q->sq = raw_alloc(r, size * sizeof(*q->sq));
    q->cq = raw_alloc(r, size * sizeof(*q->cq));
    q->size = size;
    q->qid = qid;
    q->phase = 1;
    return q;
}

/* Enables the controller with admin queues of 32 entries. */
static inline void raw_enable(struct raw *r, uint32_t cc)
{
    struct raw_queue *q;

    r->page = 4096u << GPUNVME_GET(cc, CC_MPS);
    r->used = (r->used + r->page - 1) & ~((size_t)r->page - 1);
    q = raw_queue_init(r, 0, 32);
    raw_write(r, GPUNVME_REG_AQA, 31u | 31u << 16);
    raw_write64(r, GPUNVME_REG_ASQ, raw_bus(r, q->sq));
    raw_write64(r, GPUNVME_REG_ACQ, raw_bus(r, q->cq));
    raw_write(r, GPUNVME_REG_CC, cc);
    assert_true(raw_wait_csts(r, RAW_RDY | RAW_CFS, RAW_RDY));
}

static inline void raw_disable(struct raw *r)
{
    raw_write(r, GPUNVME_REG_CC, raw_read(r, GPUNVME_REG_CC) & ~1u);
    assert_true(raw_wait_csts(r, RAW_RDY, 0));
}

static inline volatile uint32_t *raw_sq_doorbell(struct raw *r, uint16_t qid)
{
    return &r->doorbells[2u * qid * r->stride];
}

static inline volatile uint32_t *raw_cq_doorbell(struct raw *r, uint16_t qid)
{
    return &r->doorbells[(2u * qid + 1) * r->stride];
}

static inline void raw_ring(volatile uint32_t *doorbell, uint32_t value)
{
    __atomic_store_n(doorbell, value, __ATOMIC_RELEASE);
}

/* Puts a command into the queue, its cid chosen here, and does not ring. */
static inline uint16_t raw_put(struct raw_queue *q, struct gpunvme_sqe sqe)
{
    sqe.cid = q->cid++;
    q->sq[q->tail] = sqe;
    q->tail = (q->tail + 1) % q->size;
    return sqe.cid;
}

static inline uint16_t raw_submit(struct raw *r, struct raw_queue *q, struct gpunvme_sqe sqe)
{
    uint16_t cid = raw_put(q, sqe);

    raw_ring(raw_sq_doorbell(r, q->qid), q->tail);
    return cid;
}

/* The phase tag of an entry of the completion queue. */
static inline uint16_t raw_phase(const struct raw_queue *q, uint32_t at)
{
    const uint32_t *entry = (const uint32_t *)(const void *)&q->cq[at];

    return __atomic_load_n(&entry[3], __ATOMIC_ACQUIRE) >> 16 & 1;
}

/* Waits until the entry has that phase tag. */
static inline void raw_wait_phase(const struct raw_queue *q, uint32_t at, uint16_t phase)
{
    time_t end = 0;

    while (raw_phase(q, at) != phase)
        assert_false(raw_expired(&end));
}

/* Is there a completion? Then it is in q->last and the doorbell is rung. */
static inline bool raw_poll(struct raw *r, struct raw_queue *q)
{
    uint32_t *entry = (uint32_t *)(void *)&q->cq[q->head], word[4];

    if (raw_phase(q, q->head) != q->phase)
        return false;
    memcpy(word, entry, 12);
    word[3] = __atomic_load_n(&entry[3], __ATOMIC_RELAXED);
    memcpy(&q->last, word, sizeof(q->last));
    if (++q->head == q->size) {
        q->head = 0;
        q->phase ^= 1;
    }
    raw_ring(raw_cq_doorbell(r, q->qid), q->head);
    return true;
}

/* The status of the next completion, or RAW_LATE. */
static inline uint16_t raw_wait(struct raw *r, struct raw_queue *q)
{
    time_t end = 0;

    for (unsigned spins = 0; !raw_poll(r, q); spins++)
        if (spins > 10000 && raw_expired(&end))
            return RAW_LATE;
    return q->last.status >> 1;
}

/* One command from begin to end; its completion is q->last. */
static inline uint16_t raw_do(struct raw *r, struct raw_queue *q, struct gpunvme_sqe sqe)
{
    uint16_t cid = raw_submit(r, q, sqe), status = raw_wait(r, q);

    if (status != RAW_LATE) {
        assert_int_equal(q->last.cid, cid);
        assert_int_equal(q->last.sqid, q->qid);
    }
    return status;
}

static inline uint16_t raw_admin(struct raw *r, struct gpunvme_sqe sqe)
{
    return raw_do(r, &r->queue[0], sqe);
}

static inline uint16_t raw_create_cq(struct raw *r, uint16_t qid, uint32_t size, uint64_t bus)
{
    return raw_admin(r, (struct gpunvme_sqe){.opc = GPUNVME_ADMIN_CREATE_CQ,
                                             .prp1 = bus,
                                             .cdw10 = qid | (size - 1) << 16,
                                             .cdw11 = GPUNVME_QUEUE_PC});
}

static inline uint16_t raw_create_sq(struct raw *r, uint16_t qid, uint16_t cqid, uint32_t size,
                                     uint64_t bus)
{
    return raw_admin(r, (struct gpunvme_sqe){.opc = GPUNVME_ADMIN_CREATE_SQ,
                                             .prp1 = bus,
                                             .cdw10 = qid | (size - 1) << 16,
                                             .cdw11 = GPUNVME_QUEUE_PC | (uint32_t)cqid << 16});
}

static inline uint16_t raw_delete_sq(struct raw *r, uint16_t qid)
{
    return raw_admin(r, (struct gpunvme_sqe){.opc = GPUNVME_ADMIN_DELETE_SQ, .cdw10 = qid});
}

static inline uint16_t raw_delete_cq(struct raw *r, uint16_t qid)
{
    return raw_admin(r, (struct gpunvme_sqe){.opc = GPUNVME_ADMIN_DELETE_CQ, .cdw10 = qid});
}

/* An I/O queue pair. */
static inline struct raw_queue *raw_io_queue(struct raw *r, uint16_t qid, uint32_t size)
{
    struct raw_queue *q = raw_queue_init(r, qid, size);

    assert_int_equal(raw_create_cq(r, qid, size, raw_bus(r, q->cq)), GPUNVME_SC_SUCCESS);
    assert_int_equal(raw_create_sq(r, qid, qid, size, raw_bus(r, q->sq)), GPUNVME_SC_SUCCESS);
    return q;
}

/* A controller that is up, with one I/O queue of 64 entries, r->queue[1]. */
static inline void raw_open(struct raw *r, const char *uri)
{
    raw_create(r, uri);
    raw_enable(r, RAW_CC);
    raw_io_queue(r, 1, 64);
}

static inline struct gpunvme_sim_report raw_report(struct raw *r)
{
    struct gpunvme_sim_report report;

    gpunvme_sim_report(r->sim, &report);
    return report;
}

/* Waits until the violation was counted. */
static inline void raw_expect(struct raw *r, enum gpunvme_sim_violation violation)
{
    time_t end = 0;

    while (!raw_report(r).violations[violation]) {
        if (raw_expired(&end)) {
            print_error("not counted: %s; first was: %s\n", gpunvme_sim_violation_text(violation),
                        raw_report(r).first);
            fail();
        }
    }
}

/* Frees everything, whatever was counted. */
static inline void raw_destroy(struct raw *r)
{
    gpunvme_sim_destroy(r->sim);
    free(r->memory);
}

/* The same where the test did nothing wrong. */
static inline void raw_close(struct raw *r)
{
    struct gpunvme_sim_report report = raw_report(r);

    if (report.nviolations || report.nwarnings)
        print_error("%s%s\n", report.first, report.first_warning);
    assert_int_equal(report.nviolations + report.nwarnings, 0);
    raw_destroy(r);
}

/* The same where it did one thing wrong, and that only. */
static inline void raw_close_violated(struct raw *r, enum gpunvme_sim_violation violation)
{
    struct gpunvme_sim_report report;

    raw_expect(r, violation);
    report = raw_report(r);
    if (report.nviolations != report.violations[violation])
        print_error("%s\n", report.first);
    assert_int_equal(report.nviolations, report.violations[violation]);
    assert_true(report.first[0] != 0);
    raw_destroy(r);
}

/* A read or write of nlb blocks with PRPs as given. */
static inline struct gpunvme_sqe raw_rw(uint8_t opc, uint64_t slba, uint32_t nlb, uint64_t prp1,
                                        uint64_t prp2)
{
    return (struct gpunvme_sqe){
        .opc = opc,
        .nsid = 1,
        .prp1 = prp1,
        .prp2 = prp2,
        .cdw10 = (uint32_t)slba,
        .cdw11 = (uint32_t)(slba >> 32),
        .cdw12 = nlb - 1,
    };
}

static inline void raw_fill(void *memory, size_t nbytes, uint64_t seed)
{
    uint8_t *bytes = memory;

    for (size_t i = 0; i < nbytes; i++) {
        seed = seed * 6364136223846793005ull + 1442695040888963407ull;
        bytes[i] = (uint8_t)(seed >> 56);
    }
}

#endif
