/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The engine and the controller's threads are one controller: whatever command comes, well formed
 * or not, both end it with the same status, leave the same bytes and count the same violations.
 */
#include <pthread.h>
#include <sched.h>

#include "raw.h"

#include "gpunvme/atomics.h"
#include "sim/engine/engine.h"

#define NCOMMANDS 6000u
#define DATA      (1u << 20) /* where data lies in the arena, and where lists do */
#define DATA_SIZE (256u << 10)
#define LISTS     (2u << 20)
#define LIST_SIZE (16u << 10)
#define ENTRIES   16u
#define MEDIA     (256u << 10)

struct both {
    struct raw raw; /* the controller's threads */

    uint8_t *memory, *media[2];
    struct sim_engine engine;
    struct sim_engine_host host;
    struct sim_engine_range range;
    struct sim_engine_queue queue;
    struct sim_engine_counters counters;
    struct gpunvme_sqe sq[ENTRIES];
    struct gpunvme_cqe cq[ENTRIES];
    uint32_t cids[SIM_ENGINE_CID_WORDS];
    struct sim_engine_pending pending[SIM_ENGINE_MAX_THREADS];
    uint32_t doorbells[2], tail, phase;
    pthread_t thread;
    uint64_t random;
};

static uint64_t draw(struct both *b, uint64_t n)
{
    b->random = sim_engine_mix(b->random);
    return b->random % n;
}

static void *run(void *arg)
{
    sim_engine_run(arg, 0, 1);
    return NULL;
}

static void open_both(struct both *b)
{
    struct gpunvme_sim_config config;
    struct sim_engine *e = &b->engine;

    gpunvme_sim_config_init(&config);
    config.nnamespaces = 2;
    config.ns[0] = (struct gpunvme_sim_ns_config){.nsid = 1, .nbytes = MEDIA, .block_size = 512};
    config.ns[1] = (struct gpunvme_sim_ns_config){.nsid = 3, .nbytes = MEDIA, .block_size = 4096};
    config.mdts = 4;
    raw_create_config(&b->raw, &config);
    raw_enable(&b->raw, RAW_CC);
    raw_io_queue(&b->raw, 1, ENTRIES);

    b->memory = calloc(1, RAW_NBYTES);
    memset(b->raw.memory + DATA, 0, RAW_NBYTES - DATA);
    b->range = (struct sim_engine_range){.bus = RAW_BUS, .nbytes = RAW_NBYTES, .at = b->memory};
    for (unsigned i = 0; i < 2; i++) {
        b->media[i] = calloc(1, MEDIA);
        e->ns[i] = (struct sim_engine_ns){.bytes = b->media[i],
                                          .nblocks = MEDIA >> (i ? 12 : 9),
                                          .nsid = i ? 3 : 1,
                                          .shift = i ? 12 : 9};
    }
    b->queue = (struct sim_engine_queue){.sq = b->sq,
                                         .cq = b->cq,
                                         .sq_doorbell = &b->doorbells[0],
                                         .cq_doorbell = &b->doorbells[1],
                                         .cids = b->cids,
                                         .pending = b->pending,
                                         .publish = &b->counters,
                                         .sq_size = ENTRIES,
                                         .cq_size = ENTRIES,
                                         .sqid = 1,
                                         .cqid = 1,
                                         .active = 1};
    e->host = &b->host;
    e->queues = &b->queue;
    e->nqueues = 1;
    e->nns = 2;
    e->ranges = &b->range;
    e->nranges = 1;
    e->page = 4096;
    e->max_transfer = 4096 << config.mdts;
    e->sgl = e->deac = 1;
    b->phase = 1;
    assert_int_equal(pthread_create(&b->thread, NULL, run, e), 0);
}

static void stop(struct both *b)
{
    gpunvme_store_release32(&b->host.stop, 1);
    pthread_join(b->thread, NULL);
}

static uint16_t engine_do(struct both *b, struct gpunvme_sqe sqe)
{
    uint32_t at = b->tail;
    const uint32_t *word = (const uint32_t *)&b->cq[at];
    time_t end = 0;

    b->sq[at] = sqe;
    b->tail = (at + 1) % ENTRIES;
    gpunvme_store_release32(&b->doorbells[0], b->tail);
    for (unsigned spins = 0; (gpunvme_load_acquire32(word + 3) >> 16 & 1) != b->phase; spins++)
        if (spins > 100000 && raw_expired(&end))
            return RAW_LATE;
    if (!b->tail)
        b->phase = !b->phase;
    gpunvme_store_release32(&b->doorbells[1], b->tail);
    assert_int_equal(b->cq[at].cid, sqe.cid);
    return b->cq[at].status >> 1;
}

/* A bus address: mostly a page of the data, else with an offset, or nowhere. */
static uint64_t address(struct both *b)
{
    uint64_t page = RAW_BUS + DATA + draw(b, DATA_SIZE / 4096) * 4096;

    switch (draw(b, 40)) {
    case 0:
        return page + draw(b, 1024) * 4;
    case 1:
        return page + draw(b, 4096);
    case 2:
        return RAW_BUS + RAW_NBYTES + draw(b, 1 << 20) * 4096;
    case 3:
        return draw(b, 1 << 20) * 4096;
    default:
        return page;
    }
}

static uint64_t list_address(struct both *b)
{
    uint64_t align = draw(b, 20) ? 16 : 4;

    return draw(b, 30) ? RAW_BUS + LISTS + draw(b, LIST_SIZE / align) * align : address(b);
}

/* Lists of both kinds, the same for both. */
static void fill_lists(struct both *b, bool sgl)
{
    for (uint32_t at = 0; at < LIST_SIZE; at += 16) {
        uint64_t pair[2] = {address(b), address(b)};

        if (at % 4096 == 4080 && draw(b, 4))
            pair[1] = RAW_BUS + LISTS + draw(b, LIST_SIZE / 4096) * 4096;
        if (sgl) {
            static const uint8_t ids[] = {0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
                                          0x10, 0x20, 0x30, 0x40, 0x01};

            pair[1] = draw(b, 3) ? draw(b, 9) * 512 : draw(b, 9) * 16;
            pair[1] |= (uint64_t)ids[draw(b, sizeof(ids))] << 56;
            if (pair[1] >> 60 & 2)
                pair[0] = list_address(b);
            if (!draw(b, 50))
                pair[1] |= 1ull << 40;
        }
        memcpy(b->memory + LISTS + at, pair, 16);
    }
    memcpy(b->raw.memory + LISTS, b->memory + LISTS, LIST_SIZE);
}

static struct gpunvme_sqe random_command(struct both *b, bool sgl)
{
    static const uint8_t opcodes[] = {
        GPUNVME_CMD_READ,    GPUNVME_CMD_READ,         GPUNVME_CMD_WRITE,  GPUNVME_CMD_WRITE,
        GPUNVME_CMD_COMPARE, GPUNVME_CMD_WRITE_ZEROES, GPUNVME_CMD_VERIFY, GPUNVME_CMD_FLUSH};
    uint32_t nlb = (uint32_t)(draw(b, 3) ? draw(b, 16) : draw(b, 140));
    struct gpunvme_sqe sqe = {.opc = opcodes[draw(b, sizeof(opcodes))],
                              .nsid = draw(b, 4) ? 1 : (uint32_t)draw(b, 5),
                              .cdw10 = (uint32_t)draw(b, draw(b, 10) ? 380 : 600),
                              .cdw12 = nlb};

    if (sqe.opc == GPUNVME_CMD_FLUSH)
        sqe.cdw10 = sqe.cdw12 = 0;
    if (sqe.opc == GPUNVME_CMD_READ || sqe.opc == GPUNVME_CMD_WRITE ||
        sqe.opc == GPUNVME_CMD_COMPARE) {
        uint64_t nbytes = (nlb + 1ull) << (sqe.nsid == 3 ? 12 : 9);

        sqe.prp1 = address(b);
        if (sgl) {
            sqe.flags = draw(b, 2) ? 0x40 : 0x80;
            sqe.sgl1.length = (uint32_t)nbytes;
            if (draw(b, 2)) {
                sqe.sgl1.addr = list_address(b);
                sqe.sgl1.length = (uint32_t)(draw(b, 8) + 1) * 16;
                sqe.sgl1.id = draw(b, 2) ? 0x20 : 0x30;
            }
        } else if ((sqe.prp1 & 4095) + nbytes > 8192) {
            sqe.prp2 = list_address(b);
        } else if ((sqe.prp1 & 4095) + nbytes > 4096) {
            sqe.prp2 = address(b);
        }
    }
    if (!draw(b, 12)) /* some bit */
        ((uint8_t *)&sqe)[draw(b, 64)] ^= (uint8_t)(1u << draw(b, 8));
    if (sqe.opc == GPUNVME_CMD_DSM)
        sqe.opc = 0x7f;
    return sqe;
}

static void any_command_ends_alike(void **state)
{
    struct both *b = calloc(1, sizeof(*b));
    struct gpunvme_sim_report report;
    unsigned failed = 0;

    (void)state;
    b->random = 1;
    open_both(b);
    for (unsigned i = 0; i < NCOMMANDS; i++) {
        bool sgl = draw(b, 3) == 0;
        struct gpunvme_sqe sqe;
        uint16_t a, c;

        if (i % 8 == 0)
            for (unsigned page = 0; page < 4; page++) {
                uint64_t at = DATA + draw(b, DATA_SIZE / 4096) * 4096;

                memset(b->memory + at, (int)draw(b, 256), 4096);
                memcpy(b->raw.memory + at, b->memory + at, 4096);
            }
        fill_lists(b, sgl);
        sqe = random_command(b, sgl);
        a = raw_do(&b->raw, &b->raw.queue[1], sqe);
        sqe.cid = b->raw.queue[1].last.cid;
        c = engine_do(b, sqe);
        if (a != c)
            print_error("command %u: %02xh nsid %u: %04xh by threads, %04xh by the engine\n", i,
                        sqe.opc, sqe.nsid, a, c);
        assert_int_equal(a, c);
        assert_memory_equal(b->memory + DATA, b->raw.memory + DATA, DATA_SIZE);
        failed += a != 0;
    }
    stop(b);
    report = raw_report(&b->raw);
    for (unsigned kind = 0; kind < GPUNVME_SIM_NVIOLATIONS; kind++)
        assert_int_equal(report.violations[kind], b->counters.violations[kind]);
    assert_int_equal(report.commands[1], b->counters.commands);
    assert_int_equal(report.bytes_read, b->counters.bytes_read);
    assert_int_equal(report.bytes_written, b->counters.bytes_written);
    assert_int_equal(report.errors, b->counters.errors);
    assert_in_range(failed, NCOMMANDS / 20, NCOMMANDS / 2); /* it tried both */
    assert_true(b->counters.violations[GPUNVME_SIM_VIOLATION_SGL_INVALID] > 20);
    assert_true(b->counters.violations[GPUNVME_SIM_VIOLATION_PRP_OFFSET] > 20);
    assert_true(b->counters.violations[GPUNVME_SIM_VIOLATION_DMA_UNMAPPED] > 20);
    assert_true(b->counters.violations[GPUNVME_SIM_VIOLATION_RESERVED_BITS] > 20);
    gpunvme_sim_destroy(b->raw.sim);
    free(b->raw.memory);
    free(b->memory);
    free(b->media[0]);
    free(b->media[1]);
    free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(any_command_ends_alike)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
