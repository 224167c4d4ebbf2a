/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The controller on the GPU with queues in GPU memory, for a driver that is a kernel of its own:
 * what test_gpu_engine.cu and bench/gpu_engine_ceiling.cu have in common. One namespace, whose
 * 8-byte words hold load_word() of their number.
 */
#ifndef TESTS_GPU_ENGINE_LOAD_CUH
#define TESTS_GPU_ENGINE_LOAD_CUH

#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpunvme/atomics.h"
#include "gpunvme/nvme.h"
#include "sim/command.h"
#include "sim/engine/engine.h"

#define LOAD_BUS  0x4000000000ull
#define LOAD_PAGE 4096u
#define LOAD_SEED 42u

#define LOAD_CUDA(call)                                                                            \
    do {                                                                                           \
        cudaError_t err_ = (call);                                                                 \
        if (err_ != cudaSuccess) {                                                                 \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call,                          \
                    cudaGetErrorString(err_));                                                     \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

#define LOAD_OK(call)                                                                              \
    do {                                                                                           \
        gpunvme_err_t err_ = (call);                                                               \
        if (err_) {                                                                                \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, gpunvme_err_detail());   \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

/* What a driver needs of a queue pair; all in GPU memory. */
struct load_queue {
    struct gpunvme_sqe *sq;
    struct gpunvme_cqe *cq;
    uint32_t *doorbells; /* SQ tail, CQ head; 128 bytes apart */
    uint8_t *data;       /* of this queue, data_nbytes of it */
    uint64_t bus;        /* its bus address */
};

struct load {
    unsigned nqueues, threads, blocks;
    uint32_t size; /* entries of each queue */
    uint64_t nbytes, data_nbytes;
    uint8_t *media, *data;
    struct load_queue *queues; /* GPU memory */
    struct sim_engine config, *engine;
    struct sim_engine_queue *engine_queues;
    struct sim_engine_host *host;
    struct sim_engine_counters *counters;
    cudaStream_t stream, driver;
    void *owned[16];
    unsigned nowned;
};

static inline __host__ __device__ uint64_t load_word(uint64_t number)
{
    return sim_engine_mix(number);
}

static __global__ void load_fill(uint64_t *words, uint64_t n)
{
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < n;
         i += (uint64_t)gridDim.x * blockDim.x)
        words[i] = load_word(i);
}

static void *load_alloc(size_t nbytes)
{
    void *p;

    LOAD_CUDA(cudaMalloc(&p, nbytes));
    LOAD_CUDA(cudaMemset(p, 0, nbytes));
    return p;
}

/* The same, until load_free(). */
static void *load_own(struct load *l, size_t nbytes)
{
    return l->owned[l->nowned++] = load_alloc(nbytes);
}

static void load_make_queues(struct load *l)
{
    struct load_queue *mine = (struct load_queue *)calloc(l->nqueues, sizeof(*mine));
    struct sim_engine_queue *theirs =
        (struct sim_engine_queue *)calloc(l->nqueues, sizeof(*theirs));
    uint8_t *sqs = (uint8_t *)load_own(l, (size_t)l->nqueues * l->size * 64);
    uint8_t *cqs = (uint8_t *)load_own(l, (size_t)l->nqueues * l->size * 16);
    uint8_t *doorbells = (uint8_t *)load_own(l, (size_t)l->nqueues * 256);
    uint32_t *cids = (uint32_t *)load_own(l, (size_t)l->nqueues * SIM_ENGINE_CID_WORDS * 4);
    struct sim_engine_pending *pending = (struct sim_engine_pending *)load_own(
        l, (size_t)l->nqueues * SIM_ENGINE_MAX_THREADS * sizeof(*pending));

    for (unsigned i = 0; i < l->nqueues; i++) {
        struct load_queue *q = &mine[i];
        struct sim_engine_queue *e = &theirs[i];

        q->sq = (struct gpunvme_sqe *)(sqs + (size_t)i * l->size * 64);
        q->cq = (struct gpunvme_cqe *)(cqs + (size_t)i * l->size * 16);
        q->doorbells = (uint32_t *)(doorbells + i * 256);
        q->data = l->data + i * l->data_nbytes;
        q->bus = LOAD_BUS + i * l->data_nbytes;
        e->sq = q->sq;
        e->cq = q->cq;
        e->sq_doorbell = q->doorbells;
        e->cq_doorbell = q->doorbells + 32;
        e->cids = cids + (size_t)i * SIM_ENGINE_CID_WORDS;
        e->pending = pending + (size_t)i * SIM_ENGINE_MAX_THREADS;
        e->publish = &l->counters[i];
        e->sq_size = e->cq_size = l->size;
        e->sqid = e->cqid = (uint16_t)(i + 1);
        e->active = 1;
    }
    l->queues = (struct load_queue *)load_own(l, l->nqueues * sizeof(*mine));
    l->engine_queues = (struct sim_engine_queue *)load_own(l, l->nqueues * sizeof(*theirs));
    LOAD_CUDA(cudaMemcpy(l->queues, mine, l->nqueues * sizeof(*mine), cudaMemcpyHostToDevice));
    LOAD_CUDA(
        cudaMemcpy(l->engine_queues, theirs, l->nqueues * sizeof(*theirs), cudaMemcpyHostToDevice));
    free(mine);
    free(theirs);
}

/*
 * Makes it all but launches nothing; then l->config may be changed. l's nqueues, threads, size,
 * nbytes and data_nbytes (of each queue) are the caller's.
 */
static void load_make(struct load *l)
{
    struct sim_engine_range range = {LOAD_BUS, 0, NULL};
    void *at;

    l->blocks = l->nqueues;
    LOAD_CUDA(cudaHostAlloc(&at, sizeof(*l->host), cudaHostAllocMapped));
    l->host = (struct sim_engine_host *)memset(at, 0, sizeof(*l->host));
    LOAD_CUDA(cudaHostAlloc(&at, l->nqueues * sizeof(*l->counters), cudaHostAllocMapped));
    l->counters = (struct sim_engine_counters *)memset(at, 0, l->nqueues * sizeof(*l->counters));
    l->media = (uint8_t *)load_own(l, l->nbytes);
    l->data = (uint8_t *)load_own(l, l->nqueues * l->data_nbytes);
    load_fill<<<1024, 256>>>((uint64_t *)l->media, l->nbytes / 8);
    load_make_queues(l);
    range.nbytes = l->nqueues * l->data_nbytes;
    range.at = l->data;
    at = load_own(l, sizeof(range));
    LOAD_CUDA(cudaMemcpy(at, &range, sizeof(range), cudaMemcpyHostToDevice));
    memset(&l->config, 0, sizeof(l->config));
    l->config.host = l->host;
    l->config.queues = l->engine_queues;
    l->config.nqueues = l->nqueues;
    l->config.nns = 1;
    l->config.ns[0].bytes = l->media;
    l->config.ns[0].nblocks = l->nbytes >> 9;
    l->config.ns[0].nsid = 1;
    l->config.ns[0].shift = 9;
    l->config.ranges = (const struct sim_engine_range *)at;
    l->config.nranges = 1;
    l->config.page = LOAD_PAGE;
    l->config.max_transfer = 1 << 20;
    l->config.sgl = 1;
    l->config.seed = LOAD_SEED;
    l->engine = (struct sim_engine *)load_own(l, sizeof(l->config));
    LOAD_CUDA(cudaStreamCreateWithFlags(&l->stream, cudaStreamNonBlocking));
    LOAD_CUDA(cudaStreamCreateWithFlags(&l->driver, cudaStreamNonBlocking));
    LOAD_OK(sim_engine_preload());
}

static void load_launch(struct load *l)
{
    l->host->left = 0;
    LOAD_OK(sim_engine_launch(l->engine, l->blocks, l->threads, l->stream));
}

/* With l->config: sends it and starts the engine. */
static void load_start(struct load *l)
{
    LOAD_CUDA(cudaMemcpy(l->engine, &l->config, sizeof(l->config), cudaMemcpyHostToDevice));
    LOAD_CUDA(cudaDeviceSynchronize());
    load_launch(l);
}

static void load_stop(struct load *l)
{
    gpunvme_store_release32(&l->host->stop, 1);
    LOAD_OK(sim_engine_wait(l->stream, gpunvme_clock_ns() + 20000000000ull));
    l->host->stop = 0;
}

/* When the engine does not run. */
static void load_free(struct load *l)
{
    for (unsigned i = 0; i < l->nowned; i++)
        LOAD_CUDA(cudaFree(l->owned[i]));
    LOAD_CUDA(cudaFreeHost(l->host));
    LOAD_CUDA(cudaFreeHost(l->counters));
    LOAD_CUDA(cudaStreamDestroy(l->stream));
    LOAD_CUDA(cudaStreamDestroy(l->driver));
}

/* Violations of all queues, the first one told. */
static uint64_t load_violations(const struct load *l)
{
    uint64_t sum = 0;

    for (unsigned i = 0; i < l->nqueues; i++)
        for (unsigned kind = 0; kind < GPUNVME_SIM_NVIOLATIONS; kind++)
            sum += l->counters[i].violations[kind];
    if (l->host->first.there)
        fprintf(stderr, "violation: %s, %s: queue %u, command id %u, value %llxh (%llxh)\n",
                gpunvme_sim_violation_text((enum gpunvme_sim_violation)l->host->first.kind),
                sim_what_text((enum sim_what)l->host->first.what), l->host->first.qid,
                l->host->first.cid, (unsigned long long)l->host->first.value,
                (unsigned long long)l->host->first.other);
    return sum;
}

/* The status of the completion at `at` once its phase tag is `phase`, and its id; -1: not yet. */
static __device__ int load_look(const struct gpunvme_cqe *at, uint32_t phase, uint32_t *cid)
{
    uint32_t word = gpunvme_load_acquire32((const uint32_t *)at + 3);

    *cid = word & 0xffff;
    return (word >> 16 & 1) == phase ? (int)(word >> 17) : -1;
}

#endif
