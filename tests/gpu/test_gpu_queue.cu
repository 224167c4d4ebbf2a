/* SPDX-License-Identifier: BSD-3-Clause
 *
 * queue.h as compiled for the GPU: threads of a kernel submit reads, ring the doorbell, reap and
 * wait, all on one queue pair, and the software controller serves them: in this process, or behind
 * the URI of the first argument. Rings, doorbells and data are in pinned host memory; what only the
 * GPU's threads share (the queue pair's own words, slots, marks) is in GPU memory, because atomics
 * on host memory are not atomic across PCIe. It shows that the code is one; how fast it is, is
 * another matter.
 */
#include <cuda_runtime.h>
#include <stdio.h>
#include <string.h>

#include "gpu/gpu_test.h"
#include "gpunvme/prp.h"

#define ENTRIES 64u
#define BLOCKS  2u
#define THREADS 64u
#define READS   50u
#define QID     2u

struct outcome {
    unsigned wrong, errors, last_error;
};

/* Each thread reads blocks of its own choice into its own place, and looks at every word. */
static __global__ void read_blocks(struct gpunvme_qpair *q, struct gpunvme_buf data,
                                   uint64_t nblocks, struct outcome *outcome)
{
    unsigned thread = blockIdx.x * blockDim.x + threadIdx.x;
    const volatile uint64_t *words = (const volatile uint64_t *)data.gpu + thread * 64;
    uint64_t lba = thread * 7919 % nblocks;

    for (unsigned i = 0; i < READS; i++, lba = (lba * 31 + 17) % nblocks) {
        uint64_t deadline = gpunvme_clock_ns() + 10000000000ull, ticket;
        struct gpunvme_sqe sqe = {};
        struct gpunvme_completion c = {};
        int err = 0, taken = 0;

        sqe.opc = GPUNVME_CMD_READ;
        sqe.nsid = 1;
        sqe.cdw10 = (uint32_t)lba;
        sqe.cdw11 = (uint32_t)(lba >> 32);
        gpunvme_prp_build(&sqe, &data, thread * 512, 512, 12, NULL);
        while (!(taken = gpunvme_qpair_submit(q, &sqe, 1, &ticket)) &&
               gpunvme_clock_ns() < deadline)
            gpunvme_qpair_reap(q);
        err = taken == 1 ? gpunvme_qpair_wait(q, ticket, deadline, &c) : GPUNVME_ERR_TIMEOUT;
        if (err || c.status) {
            atomicAdd(&outcome->errors, 1);
            outcome->last_error = err ? (unsigned)err : c.status;
            return;
        }
        for (unsigned word = 0; word < 64; word++) {
            if (words[word] != lba)
                atomicAdd(&outcome->wrong, 1);
        }
    }
}

/* What the test needs of a queue pair that the library did not make. */
struct queue {
    struct gpunvme_buf pair, sq, cq, slots, ready, doorbells;
};

static gpunvme_err_t make_queue(struct gpunvme_ctrl *ctrl, struct queue *q)
{
    struct gpunvme_transport *t = gpunvme_ctrl_transport(ctrl);
    gpunvme_err_t err =
        gpunvme_ctrl_alloc(ctrl, GPUNVME_QPAIR_SQ_NBYTES(ENTRIES), GPUNVME_MEM_PINNED, &q->sq);

    if (!err && !t->doorbells)
        return GPUNVME_ERR_UNSUPPORTED;
    if (!err)
        err =
            gpunvme_ctrl_alloc(ctrl, GPUNVME_QPAIR_CQ_NBYTES(ENTRIES), GPUNVME_MEM_PINNED, &q->cq);
    if (!err)
        err = gpunvme_mem_alloc(sizeof(struct gpunvme_qpair), GPUNVME_MEM_GPU, &q->pair);
    if (!err)
        err = gpunvme_mem_alloc(GPUNVME_QPAIR_SLOTS_NBYTES(ENTRIES), GPUNVME_MEM_GPU, &q->slots);
    if (!err)
        err = gpunvme_mem_alloc(GPUNVME_QPAIR_READY_NBYTES(ENTRIES), GPUNVME_MEM_GPU, &q->ready);
    if (!err)
        err = gpunvme_mem_register((void *)t->doorbells, t->doorbells_nbytes, GPUNVME_MEM_PINNED,
                                   &q->doorbells);
    return err;
}

/* Initialised on the CPU with memory of its own, then moved with the GPU's addresses. */
static gpunvme_err_t init_queue(struct queue *q)
{
    static struct gpunvme_slot slots[GPUNVME_QPAIR_SLOTS(ENTRIES)];
    static uint32_t ready[ENTRIES];
    volatile uint32_t *doorbells = (volatile uint32_t *)q->doorbells.gpu;
    struct gpunvme_qpair_config config;
    struct gpunvme_qpair pair;
    gpunvme_err_t err;

    memset(&config, 0, sizeof(config));
    config.qid = QID;
    config.entries = ENTRIES;
    config.sq = q->sq.gpu;
    config.cq = q->cq.gpu;
    config.slots = slots;
    config.ready = ready;
    config.sq_doorbell.mmio = doorbells + 2 * QID;
    config.cq_doorbell.mmio = doorbells + 2 * QID + 1;
    err = gpunvme_qpair_init(&pair, &config);
    if (err)
        return err;
    pair.slots = (struct gpunvme_slot *)q->slots.gpu;
    pair.ready = (uint32_t *)q->ready.gpu;
    err = send(&q->slots, slots);
    if (!err)
        err = send(&q->ready, ready);
    return err ? err : send(&q->pair, &pair);
}

static gpunvme_err_t create(struct gpunvme_ctrl *ctrl, uint8_t opcode, uint64_t prp1,
                            uint32_t cdw11)
{
    return queue_admin(ctrl, opcode, QID, ENTRIES, prp1, cdw11);
}

static int run(struct gpunvme_ctrl *ctrl, const struct gpunvme_ns *ns, struct queue *q)
{
    struct gpunvme_buf data, out;
    struct outcome *outcome;
    int failed;

    if (check(gpunvme_ctrl_alloc(ctrl, BLOCKS * THREADS * 512, GPUNVME_MEM_PINNED, &data),
              "data") ||
        check(gpunvme_mem_alloc(sizeof(*outcome), GPUNVME_MEM_PINNED, &out), "outcome"))
        return 1;
    outcome = (struct outcome *)out.cpu;
    read_blocks<<<BLOCKS, THREADS>>>((struct gpunvme_qpair *)q->pair.gpu, data, ns->nblocks,
                                     (struct outcome *)out.gpu);
    if (cudaDeviceSynchronize() != cudaSuccess) {
        fprintf(stderr, "kernel: %s\n", cudaGetErrorString(cudaGetLastError()));
        return 1;
    }
    failed = outcome->wrong || outcome->errors;
    printf("%u reads by %u threads: %u errors (last %d), %u wrong words\n",
           BLOCKS * THREADS * READS, BLOCKS * THREADS, outcome->errors, (int)outcome->last_error,
           outcome->wrong);
    gpunvme_ctrl_free(ctrl, &data);
    gpunvme_mem_free(&out);
    return failed;
}

int main(int argc, char **argv)
{
    struct gpunvme_ctrl_opts opts;
    struct gpunvme_ctrl *ctrl;
    const struct gpunvme_ns *ns;
    struct queue q;
    int failed;

    if (gpunvme_mem_gpu_is_host()) {
        printf("SKIP: no GPU: %s\n", gpunvme_mem_gpu_why_not());
        return 77;
    }
    memset(&q, 0, sizeof(q));
    gpunvme_ctrl_opts_init(&opts);
    opts.no_shadow_doorbells = true;
    if (check(gpunvme_ctrl_open_uri(argc > 1 ? argv[1] : "sim:size=1M", &opts, &ctrl), "open") ||
        check(gpunvme_ctrl_ns(ctrl, 1, &ns), "namespace") ||
        check(number_blocks(ctrl, ns), "number_blocks") || check(make_queue(ctrl, &q), "memory") ||
        check(init_queue(&q), "init") ||
        check(create(ctrl, GPUNVME_ADMIN_CREATE_CQ, q.cq.bus, GPUNVME_QUEUE_PC), "create CQ") ||
        check(create(ctrl, GPUNVME_ADMIN_CREATE_SQ, q.sq.bus, QID << 16 | GPUNVME_QUEUE_PC),
              "create SQ"))
        return 1;
    failed = run(ctrl, ns, &q);
    check(create(ctrl, GPUNVME_ADMIN_DELETE_SQ, 0, 0), "delete SQ");
    check(create(ctrl, GPUNVME_ADMIN_DELETE_CQ, 0, 0), "delete CQ");
    check_violations(ctrl);
    gpunvme_mem_unregister(&q.doorbells);
    gpunvme_mem_free(&q.pair);
    gpunvme_mem_free(&q.slots);
    gpunvme_mem_free(&q.ready);
    gpunvme_ctrl_free(ctrl, &q.sq);
    gpunvme_ctrl_free(ctrl, &q.cq);
    check(gpunvme_ctrl_close(ctrl), "close");
    return failed || failures;
}
