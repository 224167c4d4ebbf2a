/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How fast one submitting thread and one controller thread are: 512-byte random reads from
 * memory, batches of 32, 128 in flight. Beside it, in the same run and turn about, a bare loop in
 * which the same two threads pass the same batches by one shared cache line each way and copy the
 * same number of bytes: what the two processors can do when there is no protocol at all.
 *
 * Prints JSON. Usage: sim_rate [runs [seconds of each]]
 */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "bench.h"
#include "gpunvme/io.h"
#include "gpunvme/prp.h"
#include "gpunvme/sim.h"

#define DEPTH   128u
#define BATCH   32u
#define BATCHES (DEPTH / BATCH)
#define BLOCK   512u
#define NBLOCKS (UINT64_C(64) << 20 >> 9) /* 64 MiB of namespace */

/* --- the bare loop -----------------------------------------------------------------------------
 */

struct line {
    _Alignas(64) uint64_t n;
};

struct bare {
    struct line to, from; /* batches asked for, batches answered */
    uint8_t *media, *data;
    int stop;
};

static void *bare_controller(void *arg)
{
    struct bare *b = arg;
    uint64_t done = 0, seed = 1;

    while (!__atomic_load_n(&b->stop, __ATOMIC_RELAXED)) {
        if (__atomic_load_n(&b->to.n, __ATOMIC_ACQUIRE) == done)
            continue;
        for (unsigned i = 0; i < BATCH; i++)
            memcpy(b->data + ((done % BATCHES) * BATCH + i) * BLOCK,
                   b->media + bench_random(&seed) % NBLOCKS * BLOCK, BLOCK);
        __atomic_store_n(&b->from.n, ++done, __ATOMIC_RELEASE);
    }
    return NULL;
}

/* Reads a second, of `ns` nanoseconds. */
static double run_bare(struct bare *b, uint64_t ns)
{
    uint64_t start, end, asked = 0;
    pthread_t thread;

    b->to.n = b->from.n = 0;
    b->stop = 0;
    pthread_create(&thread, NULL, bare_controller, b);
    start = gpunvme_clock_ns();
    do {
        for (unsigned i = 0; i < 1000; i++) {
            while (asked - __atomic_load_n(&b->from.n, __ATOMIC_ACQUIRE) >= BATCHES)
                ;
            __atomic_store_n(&b->to.n, ++asked, __ATOMIC_RELEASE);
        }
        end = gpunvme_clock_ns();
    } while (end - start < ns);
    __atomic_store_n(&b->stop, 1, __ATOMIC_RELAXED);
    pthread_join(thread, NULL);
    return (double)asked * BATCH * 1e9 / (double)(end - start);
}

/* --- the same through queues -------------------------------------------------------------------
 */

struct ours {
    struct gpunvme_ctrl *ctrl;
    struct gpunvme_ioq *ioq;
    const struct gpunvme_ns *ns;
    struct gpunvme_buf data;
    uint64_t tickets[DEPTH];
    uint64_t seed;
    uint64_t errors;
};

static void submit(struct ours *o, unsigned batch)
{
    struct gpunvme_qpair *q = gpunvme_ioq_qpair(o->ioq);
    struct gpunvme_sqe cmds[BATCH];

    for (unsigned i = 0; i < BATCH; i++) {
        uint64_t lba = bench_random(&o->seed) % NBLOCKS;

        cmds[i] = (struct gpunvme_sqe){
            .opc = GPUNVME_CMD_READ, .nsid = o->ns->nsid, .cdw10 = (uint32_t)lba};
        gpunvme_prp_build(&cmds[i], &o->data, (batch * BATCH + i) * BLOCK, BLOCK, 12, NULL);
    }
    if (gpunvme_qpair_submit(q, cmds, BATCH, &o->tickets[batch * BATCH]) != (int)BATCH)
        o->errors++;
}

static void finish(struct ours *o, unsigned batch)
{
    struct gpunvme_qpair *q = gpunvme_ioq_qpair(o->ioq);
    uint64_t deadline = gpunvme_clock_ns() + UINT64_C(10000000000);
    struct gpunvme_completion c;

    for (unsigned i = 0; i < BATCH; i++) {
        if (gpunvme_qpair_wait(q, o->tickets[batch * BATCH + i], deadline, &c) || c.status)
            o->errors++;
    }
}

static double run_ours(struct ours *o, uint64_t ns)
{
    uint64_t start = gpunvme_clock_ns(), end, batches = 0;

    for (unsigned i = 0; i < BATCHES; i++)
        submit(o, i);
    do {
        for (unsigned i = 0; i < 1000; i++, batches++) {
            finish(o, (unsigned)(batches % BATCHES));
            submit(o, (unsigned)(batches % BATCHES));
        }
        end = gpunvme_clock_ns();
    } while (end - start < ns && !o->errors);
    for (unsigned i = 0; i < BATCHES; i++)
        finish(o, (unsigned)((batches + i) % BATCHES));
    return (double)batches * BATCH * 1e9 / (double)(end - start);
}

static gpunvme_err_t open_ours(struct ours *o, const void *media)
{
    gpunvme_err_t err = gpunvme_ctrl_open_uri("sim:size=64M,spin=1,shadow=0", NULL, &o->ctrl);

    if (!err)
        err = gpunvme_ctrl_ns(o->ctrl, 1, &o->ns);
    if (!err)
        err = gpunvme_ioq_create(o->ctrl, 256, &o->ioq);
    if (!err)
        err = gpunvme_ctrl_alloc(o->ctrl, NBLOCKS * BLOCK, GPUNVME_MEM_HOST, &o->data);
    if (!err)
        memcpy(o->data.cpu, media, o->data.nbytes);
    if (!err)
        err = gpunvme_write(o->ioq, o->ns, 0, o->data.nbytes, &o->data, 0, 0);
    return err;
}

/* The software controller must have had nothing to complain of. */
static gpunvme_err_t close_ours(struct ours *o)
{
    struct gpunvme_sim_report report;

    gpunvme_sim_report(gpunvme_transport_sim(gpunvme_ctrl_transport(o->ctrl)), &report);
    o->errors += report.nviolations;
    gpunvme_ctrl_free(o->ctrl, &o->data);
    return gpunvme_ctrl_close(o->ctrl);
}

int main(int argc, char **argv)
{
    unsigned runs = argc > 1 ? (unsigned)atoi(argv[1]) : 7;
    uint64_t ns = (uint64_t)((argc > 2 ? atof(argv[2]) : 1.0) * 1e9);
    struct bare b = {.media = malloc(NBLOCKS * BLOCK), .data = aligned_alloc(4096, DEPTH * BLOCK)};
    struct ours o = {.seed = 1};
    double bare[64], ours[64];
    struct bench_stat sb, so;
    gpunvme_err_t err = GPUNVME_OK;

    if (!b.media || !b.data || !runs || runs > 64) {
        fprintf(stderr, "usage: sim_rate [runs (1 to 64) [seconds of each]]\n");
        return 2;
    }
    for (uint64_t i = 0; i < NBLOCKS * BLOCK / 8; i++)
        ((uint64_t *)b.media)[i] = bench_random(&o.seed);
    for (unsigned i = 0; i < runs && !err; i++) {
        bare[i] = run_bare(&b, ns);
        /* Opened for each run: a controller thread that spins would disturb the bare loop. */
        err = open_ours(&o, b.media);
        if (!err) {
            ours[i] = run_ours(&o, ns);
            err = close_ours(&o);
        }
    }
    if (err) {
        fprintf(stderr, "sim_rate: %s: %s\n", gpunvme_err_detail(), gpunvme_err_text(err));
        return 1;
    }
    sb = bench_stat(bare, runs);
    so = bench_stat(ours, runs);
    printf("{\"benchmark\": \"sim_rate\", \"runs\": %u, \"errors\": %llu,\n", runs,
           (unsigned long long)o.errors);
    printf(" \"bare_reads_per_s\": {\"median\": %.0f, \"min\": %.0f, \"max\": %.0f},\n", sb.median,
           sb.min, sb.max);
    printf(" \"reads_per_s\": {\"median\": %.0f, \"min\": %.0f, \"max\": %.0f},\n", so.median,
           so.min, so.max);
    printf(" \"ratio\": %.3f}\n", so.median / sb.median);
    free(b.media);
    free(b.data);
    return o.errors != 0;
}
