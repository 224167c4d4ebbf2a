/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The software controller under a driver gone mad: commands, doorbells, registers, lists in
 * memory, mappings, resets and faults as the input has them. It may refuse everything, but must
 * neither touch memory that is not mapped nor hang.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "gpunvme/nvme.h"
#include "gpunvme/sim.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define BUS    0x100000u
#define NBYTES (256u << 10)
#define OPS    48

/*
 * What this driver does to memory is a data race by intent: the thread sanitizer does not look at
 * it. Nor may it look at two controller threads that such commands set on the same bytes.
 */
#define UNCHECKED __attribute__((no_sanitize("thread")))
#ifdef __SANITIZE_THREAD__
#define THREADS 1u
#else
#define THREADS 2u
#endif

struct input {
    const uint8_t *data;
    size_t size;
};

static uint64_t take(struct input *in, unsigned nbytes)
{
    uint64_t value = 0;

    for (unsigned i = 0; i < nbytes && in->size; i++, in->size--)
        value |= (uint64_t)*in->data++ << 8 * i;
    return value;
}

struct mad {
    struct gpunvme_sim *sim;
    uint8_t *memory;
    volatile uint32_t *doorbells;
    uint32_t tail[2]; /* of the admin queue, of I/O queue 1 */
    uint32_t ndoorbells;
};

#define ENTRIES 16u
#define SQ(qid) ((qid)*8192u) /* where the queues are in memory */
#define CQ(qid) ((qid)*8192u + 4096u)
#define DATA    16384u

UNCHECKED static void poke(struct mad *m, uint32_t at, const void *bytes_, uint32_t n)
{
    const volatile uint8_t *bytes = bytes_;

    for (uint32_t i = 0; i < n; i++)
        ((volatile uint8_t *)m->memory)[(at + i) % NBYTES] = bytes[i];
}

static void pause_ns(long ns)
{
    struct timespec pause = {.tv_nsec = ns};

    nanosleep(&pause, NULL);
}

static void ring(struct mad *m, uint32_t at, uint32_t value)
{
    __atomic_store_n(&m->doorbells[at % m->ndoorbells], value, __ATOMIC_RELEASE);
}

static void submit(struct mad *m, unsigned qid, const struct gpunvme_sqe *sqe)
{
    poke(m, SQ(qid) + m->tail[qid] * 64, sqe, sizeof(*sqe));
    m->tail[qid] = (m->tail[qid] + 1) % ENTRIES;
    ring(m, 2 * qid, m->tail[qid]);
}

static void map(struct mad *m, uint32_t at, uint32_t nbytes)
{
    struct gpunvme_buf buf = {.cpu = m->memory + at % NBYTES, .nbytes = NBYTES - at % NBYTES};

    gpunvme_sim_dma_map(m->sim, BUS + at % NBYTES, nbytes, &buf);
}

/* An address: mostly one that is mapped, of any alignment. */
static uint64_t address(struct input *in)
{
    uint64_t kind = take(in, 1);

    if (kind < 16)
        return take(in, 8);
    return BUS + (kind < 128 ? DATA + take(in, 1) * 1024 : take(in, 3) % NBYTES);
}

static void bring_up(struct mad *m, uint32_t cc)
{
    struct gpunvme_sqe sqe = {.opc = GPUNVME_ADMIN_CREATE_CQ,
                              .cid = 0xfff0,
                              .prp1 = BUS + CQ(1),
                              .cdw10 = 1 | (ENTRIES - 1) << 16,
                              .cdw11 = GPUNVME_QUEUE_PC};

    gpunvme_sim_reg_write(m->sim, GPUNVME_REG_AQA, 4, (ENTRIES - 1) | (ENTRIES - 1) << 16);
    gpunvme_sim_reg_write(m->sim, GPUNVME_REG_ASQ, 8, BUS + SQ(0));
    gpunvme_sim_reg_write(m->sim, GPUNVME_REG_ACQ, 8, BUS + CQ(0));
    gpunvme_sim_reg_write(m->sim, GPUNVME_REG_CC, 4, cc);
    for (unsigned i = 0; i < 100 && !(gpunvme_sim_reg_read(m->sim, GPUNVME_REG_CSTS, 4) & 3); i++)
        pause_ns(20000);
    submit(m, 0, &sqe);
    sqe.opc = GPUNVME_ADMIN_CREATE_SQ;
    sqe.cid++;
    sqe.prp1 = BUS + SQ(1);
    sqe.cdw11 |= 1 << 16;
    submit(m, 0, &sqe);
    for (unsigned i = 0; i < 100; i++) {
        struct gpunvme_sim_report report;

        gpunvme_sim_report(m->sim, &report);
        if (report.commands[0] >= 2)
            break;
        pause_ns(20000);
    }
}

static void command(struct mad *m, struct input *in, unsigned qid)
{
    static const uint8_t admin[] = {0, 1, 2, 4, 5, 6, 8, 9, 0xa, 0xc, 0x18, 0x7c, 0x80};
    static const uint8_t io[] = {0, 1, 2, 5, 8, 9, 0xc, 4};
    struct gpunvme_sqe sqe = {0};
    uint8_t opc = (uint8_t)take(in, 1), fields = (uint8_t)take(in, 1);

    sqe.opc = opc >= 0xf0 ? opc : qid ? io[opc % sizeof(io)] : admin[opc % sizeof(admin)];
    sqe.cid = (uint16_t)take(in, 1);
    sqe.nsid = fields & 1 ? (uint32_t)take(in, 4) : 1;
    if (fields & 2)
        sqe.flags = (uint8_t)take(in, 1);
    sqe.prp1 = address(in);
    sqe.prp2 = fields & 4 ? address(in) : 0;
    if (sqe.flags & GPUNVME_PSDT_MASK) {
        sqe.sgl1.length = (uint32_t)take(in, 2);
        sqe.sgl1.id = (uint8_t)take(in, 1);
    }
    sqe.cdw10 = (uint32_t)take(in, fields & 8 ? 4 : 1);
    sqe.cdw11 = fields & 16 ? (uint32_t)take(in, 4) : (uint32_t)(qid ? 0 : take(in, 1));
    sqe.cdw12 = (uint32_t)take(in, fields & 32 ? 4 : 1);
    if (fields & 64)
        sqe.cdw13 = (uint32_t)take(in, 4);
    submit(m, qid, &sqe);
    if (fields & 128) /* the completions so far are taken */
        ring(m, 2 * qid + 1, (uint32_t)take(in, 1) % ENTRIES);
}

static void disturb(struct mad *m, struct input *in)
{
    static const char *const rules[] = {"delay=50us",
                                        "lose:p=0.3",
                                        "shuffle=3",
                                        "status=2/81",
                                        "delay=1h:p=0.5",
                                        "cfs:nth=2",
                                        "powerloss:nth=2:write",
                                        "remove:nth=9"};
    uint64_t what = take(in, 1);

    switch (what % 8) {
    case 0:
        gpunvme_sim_function_reset(m->sim);
        break;
    case 1:
        gpunvme_sim_power_cycle(m->sim);
        break;
    case 2:
        gpunvme_sim_fatal(m->sim);
        break;
    case 3:
        gpunvme_sim_event(m->sim, (uint8_t)take(in, 1), (uint8_t)take(in, 1), (uint8_t)take(in, 1));
        break;
    case 4:
        gpunvme_sim_fault(m->sim, rules[take(in, 1) % 8]);
        break;
    case 5:
        gpunvme_sim_faults_clear(m->sim);
        break;
    case 6:
        gpunvme_sim_dma_unmap(m->sim, BUS, NBYTES);
        map(m, (uint32_t)take(in, 3), (uint32_t)take(in, 3));
        break;
    default:
        gpunvme_sim_dma_unmap(m->sim, BUS + 65536, NBYTES - 65536);
        map(m, 65536, NBYTES - 65536);
    }
}

static void one_op(struct mad *m, struct input *in)
{
    uint64_t op = take(in, 1);
    uint8_t bytes[32];

    switch (op % 8) {
    case 0:
    case 1:
        command(m, in, 0);
        break;
    case 2:
    case 3:
    case 4:
        command(m, in, 1);
        break;
    case 5:
        for (unsigned i = 0; i < sizeof(bytes); i++)
            bytes[i] = (uint8_t)take(in, 1);
        if (op & 8) /* a list entry rather than noise */
            memcpy(bytes, &(uint64_t){address(in)}, 8);
        poke(m, (uint32_t)take(in, 3), bytes, sizeof(bytes));
        break;
    case 6:
        if (op & 8)
            ring(m, (uint32_t)take(in, 1), (uint32_t)take(in, 2));
        else if (op & 16)
            gpunvme_sim_reg_write(m->sim, (uint32_t)take(in, 2), op & 32 ? 8 : 4, take(in, 8));
        else
            gpunvme_sim_reg_write(m->sim, (uint32_t)take(in, 1) % 0x60 & ~3u, 4, take(in, 4));
        break;
    default:
        if (op & 8)
            disturb(m, in);
        else
            gpunvme_sim_reg_read(m->sim, (uint32_t)take(in, 2), 4);
    }
    if (op & 128)
        pause_ns(30000);
}

static void configure(struct gpunvme_sim_config *config, uint64_t bits)
{
    gpunvme_sim_config_init(config);
    config->ns[0].nbytes = 1 << 20;
    config->nnamespaces = 2;
    config->ns[1].nsid = 3;
    config->ns[1].nbytes = 1 << 16;
    config->ns[1].block_size = 4096;
    config->vwc = bits & 1;
    config->sgl = bits & 2;
    config->shadow = bits & 4;
    config->threads = bits & 8 ? THREADS : 1;
    config->max_queues = 6;
    config->mqes = 255;
    config->mdts = bits & 16 ? 0 : 4;
    if (bits & 32)
        config->model.read_latency_ns = 20000;
    config->dstrd = bits & 64 ? 1 : 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = {data, size};
    struct gpunvme_sim_config config;
    struct mad m = {0};
    uint64_t bits = take(&in, 2);
    size_t nbytes;

    configure(&config, bits);
    if (gpunvme_sim_create(&config, &m.sim))
        abort();
    m.memory = aligned_alloc(4096, NBYTES);
    memset(m.memory, 0, NBYTES);
    m.doorbells = gpunvme_sim_doorbells(m.sim, &nbytes);
    m.ndoorbells = (uint32_t)(nbytes / 4);
    map(&m, 0, 65536);
    map(&m, 65536, NBYTES - 65536);
    if (bits & 256)
        bring_up(&m, (uint32_t)take(&in, 4));
    else
        bring_up(&m, 0x00460001);
    for (unsigned i = 0; i < OPS && in.size; i++)
        one_op(&m, &in);
    pause_ns(50000);
    gpunvme_sim_destroy(m.sim);
    free(m.memory);
    return 0;
}
