/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Streams a namespace through a kernel: each warp takes a chunk after the other, and while it works
 * on one, the next is on its way into its other half of the buffer.
 *
 *   gpu_stream [URI]       default sim:size=64M
 *
 * Prints the rate, and a checksum that is compared with one taken by the CPU. What a real program
 * does with a chunk stands where the checksum is taken.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <gpunvme/device.cuh>
#include <gpunvme/io.h>
#include <gpunvme/memory.h>

#define MAX_WARPS 256
#define CHUNK     8192 /* bytes of one lane's command: two pages take no list */

struct result {
    unsigned long long sum;
    int err;
};

/* Where a lane's part of round `round` is: chunks go around the lanes of all warps. */
static __device__ uint64_t chunk_of(uint64_t round)
{
    return round * gridDim.x * 32 + blockIdx.x * 32 + threadIdx.x;
}

static __device__ int begin(const struct gpunvme_dev_ns *ns, const struct gpunvme_dev_buf *buf,
                            uint64_t round, struct gpunvme_dev_token *token, uint32_t *nlb)
{
    uint64_t chunk = chunk_of(round), slba = chunk * (CHUNK >> ns->block_shift);
    uint64_t half = (round & 1) * gridDim.x * 32, left;

    *nlb = 0;
    if (slba >= ns->nblocks)
        return GPUNVME_OK;
    left = ns->nblocks - slba;
    *nlb = left < CHUNK >> ns->block_shift ? (uint32_t)left : CHUNK >> ns->block_shift;
    return gpunvme_dev_submit_read(ns, slba, *nlb, buf, (half + chunk_of(0)) * CHUNK, token);
}

static __device__ unsigned long long work_on(const struct gpunvme_dev_buf *buf, uint64_t round,
                                             uint64_t nbytes)
{
    uint64_t half = (round & 1) * gridDim.x * 32;
    const uint64_t *words = (const uint64_t *)(buf->data + (half + chunk_of(0)) * CHUNK);
    unsigned long long sum = 0;

    for (uint64_t i = 0; i < nbytes / 8; i++)
        sum += words[i];
    return sum;
}

static __global__ void stream(struct gpunvme_dev_ns ns, struct gpunvme_dev_buf buf,
                              struct result *result)
{
    struct gpunvme_dev_token token, next_token;
    uint32_t nlb, next_nlb = 0;
    unsigned long long sum = 0;
    int err = begin(&ns, &buf, 0, &token, &nlb), next_err = GPUNVME_OK;

    for (uint64_t round = 0; nlb && !err; round++) {
        next_err = begin(&ns, &buf, round + 1, &next_token, &next_nlb);
        err = gpunvme_dev_wait(&ns, &token, 0);
        if (!err)
            sum += work_on(&buf, round, (uint64_t)nlb << ns.block_shift);
        else if (next_nlb && !next_err) /* no token is left behind */
            gpunvme_dev_wait(&ns, &next_token, 0);
        token = next_token;
        nlb = next_nlb;
        err = err ? err : next_err;
    }
    atomicAdd(&result->sum, sum);
    if (err)
        result->err = err;
}

static void check(gpunvme_err_t err)
{
    if (err == GPUNVME_OK)
        return;
    fprintf(stderr, "gpu_stream: %s: %s (%s)\n", gpunvme_err_detail(), gpunvme_err_text(err),
            gpunvme_err_name(err));
    exit(1);
}

/* The same sum by the CPU; the simulator's namespace is filled before. */
static unsigned long long expected(struct gpunvme_ctrl *ctrl, const struct gpunvme_ns *ns, int fill)
{
    const size_t part = (size_t)1 << 20;
    unsigned long long sum = 0;
    struct gpunvme_ioq *ioq;
    struct gpunvme_buf buf;

    check(gpunvme_ioq_create(ctrl, 64, &ioq));
    check(gpunvme_ctrl_alloc(ctrl, part, GPUNVME_MEM_HOST, &buf));
    for (uint64_t at = 0; at < ns->nbytes; at += part) {
        size_t n = ns->nbytes - at < part ? (size_t)(ns->nbytes - at) : part;
        uint64_t *words = (uint64_t *)buf.cpu;

        for (size_t i = 0; fill && i < n / 8; i++)
            words[i] = (at / 8 + i) * UINT64_C(0x9e3779b97f4a7c15);
        check(fill ? gpunvme_write(ioq, ns, at, n, &buf, 0, 0)
                   : gpunvme_read(ioq, ns, at, n, &buf, 0));
        for (size_t i = 0; i < n / 8; i++)
            sum += words[i];
    }
    gpunvme_ctrl_free(ctrl, &buf);
    check(gpunvme_ioq_delete(ioq));
    return sum;
}

int main(int argc, char **argv)
{
    const char *uri = argc > 1 ? argv[1] : "sim:size=64M";
    struct gpunvme_device_opts opts;
    struct gpunvme_device_info info;
    uint32_t warps;
    struct gpunvme_device *dev;
    struct gpunvme_ctrl *ctrl;
    struct gpunvme_dev_buf view;
    struct gpunvme_dev_ns ns;
    struct gpunvme_buf buf, there;
    struct result result;
    unsigned long long sum;
    uint64_t start, ns_taken;

    if (gpunvme_mem_gpu_is_host()) {
        printf("SKIP: no GPU\n");
        return 77;
    }
    check(gpunvme_mem_alloc(sizeof(result), GPUNVME_MEM_GPU, &there));
    check(gpunvme_ctrl_open_uri(uri, NULL, &ctrl));
    sum = expected(ctrl, gpunvme_ctrl_ns_at(ctrl, 0), !strncmp(uri, "sim:", 4));
    gpunvme_device_opts_init(&opts);
    opts.entries = 2048;
    check(gpunvme_device_open(ctrl, &opts, &dev));
    gpunvme_device_get_info(dev, &info);
    /* Room for two commands of each lane, even where warps are not quite equal among queues. */
    warps = info.queues * info.entries / (4 * 32);
    warps = !warps ? 1 : warps < MAX_WARPS ? warps : MAX_WARPS;
    check(gpunvme_device_ns(dev, gpunvme_ctrl_ns_at(ctrl, 0), &ns));
    check(gpunvme_device_alloc(dev, (size_t)2 * warps * 32 * CHUNK, &buf));
    check(gpunvme_device_buf(dev, &buf, &view));

    start = gpunvme_clock_ns();
    stream<<<warps, 32>>>(ns, view, (struct result *)there.gpu);
    if (cudaDeviceSynchronize())
        return 1;
    ns_taken = gpunvme_clock_ns() - start;
    check(gpunvme_mem_copy(&result, GPUNVME_MEM_HOST, there.gpu, GPUNVME_MEM_GPU, sizeof(result)));
    check(result.err);
    if (result.sum != sum)
        check(GPUNVME_ERR_VERIFY);
    printf("%llu bytes, %.2f GB/s, checksum %016llx as the CPU has it\n",
           (unsigned long long)ns.nblocks << ns.block_shift,
           (double)(ns.nblocks << ns.block_shift) / (double)ns_taken, sum);

    gpunvme_device_free(dev, &buf);
    check(gpunvme_device_close(dev));
    check(gpunvme_ctrl_close(ctrl));
    return gpunvme_mem_free(&there) != GPUNVME_OK;
}
