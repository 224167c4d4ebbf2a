/* SPDX-License-Identifier: BSD-3-Clause
 *
 * See cpu_drive.h.
 */
#include "cpu_drive.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "gpunvme/io.h"
#include "gpunvme/prp.h"

#define DEPTH   128u
#define BATCH   32u
#define BATCHES (DEPTH / BATCH)

struct driver {
    struct gpunvme_ctrl *ctrl;
    struct gpunvme_ioq *ioq;
    const struct gpunvme_ns *ns;
    struct gpunvme_buf data;
    uint64_t tickets[DEPTH];
    uint64_t seed, run_ns, errors;
    double rate;
    uint32_t nbytes;
    uint8_t opcode;
    pthread_t thread;
};

struct cpu_drive {
    unsigned nthreads;
    struct driver drivers[64];
};

static void submit(struct driver *d, unsigned batch)
{
    struct gpunvme_qpair *q = gpunvme_ioq_qpair(d->ioq);
    uint32_t nlb = d->nbytes >> d->ns->block_shift;
    struct gpunvme_sqe cmds[BATCH];

    for (unsigned i = 0; i < BATCH; i++) {
        uint64_t lba = bench_random(&d->seed) % (d->ns->nblocks / nlb) * nlb;

        cmds[i] = (struct gpunvme_sqe){.opc = d->opcode,
                                       .nsid = d->ns->nsid,
                                       .cdw10 = (uint32_t)lba,
                                       .cdw11 = (uint32_t)(lba >> 32),
                                       .cdw12 = nlb - 1};
        gpunvme_prp_build(&cmds[i], &d->data, (size_t)(batch * BATCH + i) * d->nbytes, d->nbytes,
                          12, NULL);
    }
    if (gpunvme_qpair_submit(q, cmds, BATCH, &d->tickets[batch * BATCH]) != (int)BATCH)
        d->errors++;
}

static void finish(struct driver *d, unsigned batch)
{
    struct gpunvme_qpair *q = gpunvme_ioq_qpair(d->ioq);
    uint64_t deadline = gpunvme_clock_ns() + UINT64_C(10000000000);
    struct gpunvme_completion c;

    for (unsigned i = 0; i < BATCH; i++) {
        if (gpunvme_qpair_wait(q, d->tickets[batch * BATCH + i], deadline, &c) || c.status)
            d->errors++;
    }
}

static void *run(void *arg)
{
    struct driver *d = arg;
    uint64_t start, end, batches = 0;

    for (unsigned i = 0; i < BATCHES; i++)
        submit(d, i);
    start = gpunvme_clock_ns();
    do {
        for (unsigned i = 0; i < 64; i++, batches++) {
            finish(d, (unsigned)(batches % BATCHES));
            submit(d, (unsigned)(batches % BATCHES));
        }
        end = gpunvme_clock_ns();
    } while (end - start < d->run_ns && !d->errors);
    for (unsigned i = 0; i < BATCHES; i++)
        finish(d, (unsigned)((batches + i) % BATCHES));
    d->rate = (double)batches * BATCH * 1e9 / (double)(end - start);
    return NULL;
}

double cpu_drive_run(struct cpu_drive *drive, uint64_t ns, uint64_t *errors)
{
    double sum = 0;

    for (unsigned i = 0; i < drive->nthreads; i++) {
        drive->drivers[i].run_ns = ns;
        if (pthread_create(&drive->drivers[i].thread, NULL, run, &drive->drivers[i]))
            rig_fail("pthread_create failed");
    }
    for (unsigned i = 0; i < drive->nthreads; i++) {
        pthread_join(drive->drivers[i].thread, NULL);
        sum += drive->drivers[i].rate;
        *errors += drive->drivers[i].errors;
    }
    return sum;
}

static gpunvme_err_t driver_open(struct driver *d, struct rig_drive *drive)
{
    gpunvme_err_t err;

    d->ctrl = drive->ctrl;
    d->ns = drive->ns;
    /* Without a list, a command has two pages. */
    if (d->nbytes > 8192 || d->nbytes % d->ns->block_size)
        rig_fail("CPU threads here issue commands of at most 8192 bytes, not %u", d->nbytes);
    err = gpunvme_ioq_create(d->ctrl, 2 * DEPTH, &d->ioq);
    return err ? err
               : gpunvme_ctrl_alloc(d->ctrl, (size_t)DEPTH * d->nbytes, GPUNVME_MEM_HOST, &d->data);
}

gpunvme_err_t cpu_drive_open(struct rig *rig, unsigned nthreads, uint32_t nbytes, bool write,
                             struct cpu_drive **out)
{
    struct cpu_drive *drive = calloc(1, sizeof(*drive));
    gpunvme_err_t err = drive ? GPUNVME_OK : GPUNVME_ERR_NOMEM;

    for (unsigned i = 0; i < nthreads && i < 64 && !err; i++) {
        struct driver *d = &drive->drivers[i];

        d->seed = i + 1;
        d->nbytes = nbytes;
        d->opcode = write ? GPUNVME_CMD_WRITE : GPUNVME_CMD_READ;
        drive->nthreads = i + 1;
        err = driver_open(d, &rig->drives[i % rig->nused]);
    }
    *out = drive;
    if (err && drive) {
        cpu_drive_close(drive);
        *out = NULL;
    }
    return err;
}

void cpu_drive_close(struct cpu_drive *drive)
{
    for (unsigned i = 0; drive && i < drive->nthreads; i++) {
        struct driver *d = &drive->drivers[i];

        if (d->ioq)
            rig_check(gpunvme_ioq_delete(d->ioq), "deleting a CPU's queue");
        if (d->data.nbytes)
            gpunvme_ctrl_free(d->ctrl, &d->data);
    }
    free(drive);
}
