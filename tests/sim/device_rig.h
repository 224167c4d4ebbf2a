/* SPDX-License-Identifier: BSD-3-Clause
 *
 * For tests of the host's side of I/O issued by a GPU (device.h): a controller with a device, and
 * threads of the CPU that stand in for a kernel's and use the queues by dev_queue.h alone.
 */
#ifndef TESTS_SIM_DEVICE_RIG_H
#define TESTS_SIM_DEVICE_RIG_H

#include "device/internal.h"
#include "driver.h"
#include "no_gpu.h"
#include "patience.h"

#define SECOND   UINT64_C(1000000000)
#define ROUNDS   200u
#define NPLAYERS 4u
/* Enough to go round queues of 16 entries several times. */
#define WORKS_ROUNDS 40u

/* A controller and a device on it. Blocks of 512 bytes hold their number in each word. */
struct rig {
    struct gpunvme_ctrl *ctrl;
    struct gpunvme_sim *sim;
    const struct gpunvme_ns *ns;
    struct gpunvme_device *dev;
    struct gpunvme_dev_ns handle;
    struct gpunvme_buf buf;
    struct gpunvme_dev_buf view;
};

#define BUF_NBYTES ((size_t)1 << 20)

static inline void number_blocks(struct rig *r)
{
    struct gpunvme_ioq *ioq;
    struct gpunvme_buf buf;

    assert_ok(gpunvme_ioq_create(r->ctrl, 64, &ioq));
    assert_ok(gpunvme_ctrl_alloc(r->ctrl, (size_t)r->ns->nbytes, GPUNVME_MEM_HOST, &buf));
    for (uint64_t word = 0; word < r->ns->nbytes / 8; word++)
        ((uint64_t *)buf.cpu)[word] = word / 64;
    assert_ok(gpunvme_write(ioq, r->ns, 0, (size_t)r->ns->nbytes, &buf, 0, 0));
    gpunvme_ctrl_free(r->ctrl, &buf);
    assert_ok(gpunvme_ioq_delete(ioq));
}

static inline void rig_open_ctrl_with(struct rig *r, const char *uri,
                                      const struct gpunvme_ctrl_opts *opts)
{
    memset(r, 0, sizeof(*r));
    assert_ok(gpunvme_ctrl_open_uri(uri, opts, &r->ctrl));
    r->sim = gpunvme_transport_sim(gpunvme_ctrl_transport(r->ctrl));
    r->ns = gpunvme_ctrl_ns_at(r->ctrl, 0);
    number_blocks(r);
}

static inline void rig_open_ctrl(struct rig *r, const char *uri)
{
    rig_open_ctrl_with(r, uri, NULL);
}

static inline void rig_open_device(struct rig *r, const struct gpunvme_device_opts *opts)
{
    assert_ok(gpunvme_device_open(r->ctrl, opts, &r->dev));
    assert_ok(gpunvme_device_ns(r->dev, r->ns, &r->handle));
    assert_ok(gpunvme_device_alloc(r->dev, BUF_NBYTES, &r->buf));
    assert_ok(gpunvme_device_buf(r->dev, &r->buf, &r->view));
}

static inline void rig_open(struct rig *r, const char *uri, const struct gpunvme_device_opts *opts)
{
    rig_open_ctrl(r, uri);
    rig_open_device(r, opts);
}

static inline void assert_no_violation(struct rig *r)
{
    struct gpunvme_sim_report report;

    gpunvme_sim_report(r->sim, &report);
    if (report.nviolations)
        print_error("violation: %s\n", report.first);
    assert_int_equal(report.nviolations, 0);
}

static inline void rig_close_unchecked(struct rig *r)
{
    gpunvme_device_free(r->dev, &r->buf);
    (void)gpunvme_device_close(r->dev);
    (void)gpunvme_ctrl_close(r->ctrl);
}

static inline void rig_close(struct rig *r)
{
    gpunvme_device_free(r->dev, &r->buf);
    (void)gpunvme_device_close(r->dev);
    assert_no_violation(r);
    (void)gpunvme_ctrl_close(r->ctrl);
}

/* --- a kernel, played by threads -------------------------------------------------------------- */

struct player {
    struct rig *rig;
    unsigned number;
    uint64_t timeout_ns;
    unsigned rounds;
    uint32_t was_aborted; /* atomic */
    /* what came of it */
    unsigned good, wrong, aborted, closed, late, failed;
    int last; /* of those that failed */
    pthread_t thread;
};

/* One read of one block; the error of the queue, or of the command. */
static inline int play_read(struct player *p, uint64_t lba)
{
    const struct gpunvme_dev_ns *ns = &p->rig->handle;
    struct gpunvme_dev_queue *q = &ns->queues[p->number % ns->nqueues];
    uint64_t deadline = gpunvme_clock_ns() + p->timeout_ns;
    struct gpunvme_sqe sqe = {.opc = GPUNVME_CMD_READ, .nsid = ns->nsid};
    struct gpunvme_dev_place place = {0};
    uint16_t status;
    int err;

    sqe.prp1 = p->rig->view.bus + p->number * 4096;
    sqe.cdw10 = (uint32_t)lba;
    while (!gpunvme_dev_queue_reserve(q, 1, p->number, gpunvme_dev_want_any(), &place, &err)) {
        if (err != GPUNVME_ERR_AGAIN)
            return err;
        if (gpunvme_clock_ns() > deadline)
            return GPUNVME_ERR_TIMEOUT;
        if (q->reaper == GPUNVME_REAPER_WAITERS)
            gpunvme_dev_queue_reap(q, 1, 1);
    }
    gpunvme_dev_queue_submit(q, 1, &place, &sqe);
    err = gpunvme_dev_queue_wait(q, 1, place.ticket, deadline, &status);
    if (err == GPUNVME_ERR_TIMEOUT) {
        err = gpunvme_dev_queue_abandon(q, place.ticket);
        if (err == GPUNVME_ERR_STALE) /* at the last moment */
            err = gpunvme_dev_queue_wait(q, 1, place.ticket, deadline + SECOND, &status);
        else
            err = GPUNVME_ERR_TIMEOUT;
        if (err)
            gpunvme_store_release32(ns->alarm, 1);
    }
    return err ? err : status ? GPUNVME_ERR_NVME(status) : GPUNVME_OK;
}

static inline void *play(void *p_)
{
    struct player *p = p_;
    const uint64_t *words = (const uint64_t *)(p->rig->view.data + p->number * 4096);

    for (unsigned i = 0; i < p->rounds; i++) {
        uint64_t lba = (p->number * 7919 + i * 31) % p->rig->handle.nblocks;
        int err = play_read(p, lba);

        if (!err && words[0] == lba && words[63] == lba)
            p->good++;
        else if (!err)
            p->wrong++;
        else if (err == GPUNVME_ERR_NVME(GPUNVME_SC_HOST_ABORTED)) {
            p->aborted++;
            gpunvme_store_release32(&p->was_aborted, 1);
        } else if (err == GPUNVME_ERR_CLOSED) {
            p->closed++;
            usleep(5000); /* a reset takes its time */
        } else if (err == GPUNVME_ERR_TIMEOUT)
            p->late++;
        else
            p->failed++, p->last = err;
    }
    return NULL;
}

/* A kernel of NPLAYERS threads; started and awaited. */
struct kernel {
    struct player players[NPLAYERS];
};

static inline void kernel_start(struct kernel *k, struct rig *r, unsigned rounds,
                                uint64_t timeout_ns)
{
    memset(k, 0, sizeof(*k));
    for (unsigned i = 0; i < NPLAYERS; i++) {
        k->players[i] =
            (struct player){.rig = r, .number = i, .rounds = rounds, .timeout_ns = timeout_ns};
        assert_int_equal(pthread_create(&k->players[i].thread, NULL, play, &k->players[i]), 0);
    }
}

/* The sum of what came of it. */
static inline struct player kernel_end(struct kernel *k)
{
    struct player sum = {0};

    for (unsigned i = 0; i < NPLAYERS; i++) {
        struct player *p = &k->players[i];

        pthread_join(p->thread, NULL);
        sum.good += p->good;
        sum.wrong += p->wrong;
        sum.aborted += p->aborted;
        sum.closed += p->closed;
        sum.late += p->late;
        sum.failed += p->failed;
        if (p->failed)
            print_error("player %u: error %s\n", i, gpunvme_err_name(p->last));
    }
    assert_int_equal(sum.wrong, 0);
    return sum;
}

static inline void assert_kernel_works(struct rig *r)
{
    struct kernel k;
    struct player sum;

    kernel_start(&k, r, WORKS_ROUNDS, PATIENCE_NS);
    sum = kernel_end(&k);
    assert_int_equal(sum.good, NPLAYERS * WORKS_ROUNDS);
}

#endif
