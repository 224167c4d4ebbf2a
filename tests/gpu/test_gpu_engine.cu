/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The controller on the GPU with many warps, and a driver on the same GPU that looks at every byte
 * and every status: random reads of blocks of which some must fail, writes that are read back, one
 * block or eight at a time; the controller is stopped and started again meanwhile. One warp drives
 * a queue: each lane has a command in flight, and looks at one completion.
 */
#include "engine_load.cuh"
#include "gpunvme/memory.h"

#define LAPS   600u
#define ONE_IN 50u
#define LANES  32u

#define PATIENCE_NS 20000000000ull /* for hangs only */

struct outcome {
    unsigned long long done, failed; /* commands; those with a status that they had to have */
    unsigned wrong_data, wrong_status, late;
    unsigned status; /* the last wrong one */
};

struct work {
    uint8_t opc;
    uint64_t lba;
    uint64_t pattern; /* of a write, or of what was written */
};

/* Lap by lap: a random read, a write into a place of one's own, and that one read back. */
static __device__ struct work plan(uint64_t nblocks, uint32_t queue, uint32_t lap, uint32_t nlb)
{
    uint64_t half = nblocks / 2, mine = queue * LANES + threadIdx.x;
    struct work w;

    w.opc = lap % 3 == 1 ? GPUNVME_CMD_WRITE : GPUNVME_CMD_READ;
    w.pattern = lap / 3 * 1000003ull + mine;
    if (lap % 3)
        w.lba = half + mine * nlb;
    else
        w.lba = sim_engine_mix(lap * 7919ull + mine) % (half - nlb);
    return w;
}

static __device__ int must_fail(const struct work &w, uint32_t nlb)
{
    for (uint32_t i = 0; i < nlb; i++)
        if (sim_engine_lba_fails(LOAD_SEED, w.lba + i, ONE_IN))
            return 1;
    return 0;
}

static __device__ void check(const struct work &w, uint32_t lap, const uint64_t *data, uint32_t nlb,
                             int status, struct outcome *out)
{
    int fails = must_fail(w, nlb) && w.opc == GPUNVME_CMD_READ;

    atomicAdd(&out->done, 1);
    if (fails)
        atomicAdd(&out->failed, 1);
    if (status != (fails ? GPUNVME_SC_UNRECOVERED_READ : 0)) {
        atomicAdd(&out->wrong_status, 1);
        out->status = (unsigned)status;
    }
    if (status || w.opc != GPUNVME_CMD_READ)
        return;
    for (uint32_t i = 0; i < nlb * 64; i++)
        if (__ldcg(&data[i]) != (lap % 3 ? w.pattern + i : load_word(w.lba * 64 + i)))
            atomicAdd(&out->wrong_data, 1);
}

static __device__ void submit(struct gpunvme_sqe *to, const struct work &w, uint32_t cid,
                              uint64_t bus, uint32_t nlb)
{
    struct gpunvme_sqe sqe;

    memset(&sqe, 0, sizeof(sqe));
    sqe.opc = w.opc;
    sqe.cid = (uint16_t)cid;
    sqe.nsid = 1;
    sqe.prp1 = bus;
    sqe.cdw10 = (uint32_t)w.lba;
    sqe.cdw11 = (uint32_t)(w.lba >> 32);
    sqe.cdw12 = nlb - 1;
    *to = sqe;
}

static __global__ void drive(const struct load_queue *queues, uint32_t size, uint64_t nblocks,
                             uint32_t nlb, struct outcome *out)
{
    __shared__ int status[LANES];
    struct load_queue q = queues[blockIdx.x];
    uint64_t *data = (uint64_t *)(q.data + threadIdx.x * LOAD_PAGE);
    uint64_t deadline_ns = gpunvme_clock_ns() + PATIENCE_NS;
    uint32_t me = threadIdx.x, tail = 0, head = 0, phase = 1, cid;

    for (uint32_t lap = 0; lap < LAPS; lap++) {
        uint32_t place = (head + me) % size, my_phase = head + me < size ? phase : !phase;
        struct work w = plan(nblocks, blockIdx.x, lap, nlb);
        int found;

        for (uint32_t i = 0; w.opc == GPUNVME_CMD_WRITE && i < nlb * 64; i++)
            data[i] = w.pattern + i;
        submit(&q.sq[(tail + me) % size], w, lap % 100 * LANES + me, q.bus + me * LOAD_PAGE, nlb);
        __syncwarp();
        tail = (tail + LANES) % size;
        if (!me)
            gpunvme_mmio_write32(q.doorbells, tail);
        while ((found = load_look(&q.cq[place], my_phase, &cid)) < 0)
            if (gpunvme_clock_ns() > deadline_ns) {
                atomicAdd(&out->late, 1);
                return;
            }
        status[cid % LANES] = found;
        __syncwarp();
        check(w, lap, data, nlb, status[me], out);
        if (head + LANES >= size)
            phase = !phase;
        head = (head + LANES) % size;
        __syncwarp();
        if (!me)
            gpunvme_mmio_write32(q.doorbells + 32, head);
    }
}

/* Reads and writes on all queues; the engine is stopped `stops` times meanwhile. */
static int run(unsigned nqueues, unsigned blocks, unsigned threads, uint32_t nlb, unsigned stops,
               const struct sim_engine_model *model)
{
    struct outcome *out, got;
    struct cudaFuncAttributes attributes;
    struct load l;
    uint64_t commands = 0, violations;

    memset(&l, 0, sizeof(l));
    l.nqueues = nqueues;
    l.threads = threads;
    l.size = 72; /* no multiple of 32: batches go over the end */
    l.nbytes = 64 << 20;
    l.data_nbytes = LANES * LOAD_PAGE;
    load_make(&l);
    l.blocks = blocks;
    l.config.nrules = 1;
    l.config.rules[0].kind = SIM_ENGINE_FAULT_STATUS;
    l.config.rules[0].status = GPUNVME_SC_UNRECOVERED_READ;
    l.config.rules[0].lba_one_in = ONE_IN;
    l.config.rules[0].p_of_2_to64 = UINT64_MAX;
    l.config.rules[0].opcodes[0] = 1u << GPUNVME_CMD_READ;
    if (model)
        l.config.model = *model;
    out = (struct outcome *)load_alloc(sizeof(*out));
    LOAD_CUDA(cudaFuncGetAttributes(&attributes, drive));
    load_start(&l);
    drive<<<nqueues, LANES, 0, l.driver>>>(l.queues, l.size, l.nbytes >> 9, nlb, out);
    LOAD_CUDA(cudaGetLastError());
    for (unsigned i = 0; i < stops; i++) {
        load_stop(&l);
        load_launch(&l);
    }
    LOAD_OK(sim_engine_wait(l.driver, gpunvme_clock_ns() + 60000000000ull));
    load_stop(&l);
    LOAD_CUDA(cudaMemcpy(&got, out, sizeof(got), cudaMemcpyDeviceToHost));
    for (unsigned i = 0; i < nqueues; i++)
        commands += l.counters[i].commands;
    violations = load_violations(&l);
    load_free(&l);
    LOAD_CUDA(cudaFree(out));
    printf("%3u queues, %3u blocks of %3u, %u blocks a command, %u stops: %llu commands, "
           "%llu had to fail; wrong: %u words, %u statuses (last %xh), %u late; %llu violations\n",
           nqueues, blocks, threads, nlb, stops, got.done, got.failed, got.wrong_data,
           got.wrong_status, got.status, got.late, (unsigned long long)violations);
    return got.wrong_data || got.wrong_status || got.late || violations || !got.failed ||
           got.done != (uint64_t)nqueues * LANES * LAPS || commands != got.done;
}

int main(void)
{
    struct sim_engine_model model;
    int failed = 0;

    if (gpunvme_mem_gpu_is_host()) {
        printf("SKIP: no GPU: %s\n", gpunvme_mem_gpu_why_not());
        return 77;
    }
    memset(&model, 0, sizeof(model));
    model.enabled = 1;
    model.latency_ns[0] = model.latency_ns[1] = 10000;
    model.command_cost[0] = 500 * 4096; /* 2 M reads a second */
    failed |= run(1, 1, 32, 1, 0, NULL);
    failed |= run(1, 1, 256, 1, 0, NULL);
    failed |= run(16, 16, 256, 1, 20, NULL);
    failed |= run(16, 16, 256, 8, 0, NULL);
    failed |= run(16, 3, 128, 1, 5, NULL);
    failed |= run(4, 4, 256, 1, 10, &model);
    return failed;
}
