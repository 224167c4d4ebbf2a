/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The code of docs/GPU.md, which gpu_page.h is made of, does what the page says. As C it runs on
 * the CPU, a kernel's threads one after the other; test_gpu_page.cu runs the same as kernels.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpunvme/device.cuh"
#include "gpunvme/io.h"
#include "gpunvme/memory.h"

#define BLOCKS  4u
#define THREADS 64u /* of a block, as many as the page has */
#define ALL     (BLOCKS * THREADS)
#define NBLOCKS (4 * ALL) /* of the namespace that are looked at */

static void check(gpunvme_err_t err)
{
    if (err == GPUNVME_OK)
        return;
    fprintf(stderr, "%s: %s\n", gpunvme_err_text(err), gpunvme_err_detail());
    exit(1);
}

static void check_cuda(int err)
{
    if (!err)
        return;
    fprintf(stderr, "CUDA's error %d\n", err);
    exit(1);
}

#if defined(__CUDACC__)
#define LAUNCH(kernel, blocks, threads, ...) kernel<<<(blocks), (threads)>>>(__VA_ARGS__)
#else
#include "no_gpu.h"

#define __global__
static struct {
    unsigned x;
} blockIdx, blockDim, threadIdx;

#define LAUNCH(kernel, blocks, threads, ...)                                                       \
    do {                                                                                           \
        blockDim.x = (threads);                                                                    \
        for (blockIdx.x = 0; blockIdx.x < (blocks); blockIdx.x++)                                  \
            for (threadIdx.x = 0; threadIdx.x < (threads); threadIdx.x++)                          \
                kernel(__VA_ARGS__);                                                               \
    } while (0)

static int cudaDeviceSynchronize(void)
{
    return 0;
}
#endif

#include "gpu_page.h"

struct rig {
    struct gpunvme_ctrl *ctrl;
    struct gpunvme_device *dev;
    struct gpunvme_dev_ns ns;
    struct gpunvme_buf data, results;
    struct gpunvme_dev_buf view;
};

static uint8_t byte_of(uint64_t block)
{
    return (uint8_t)(block * 7 + block / 256 + 1);
}

/* Each block is full of a byte of its own. */
static void fill(struct gpunvme_ctrl *ctrl, const struct gpunvme_ns *ns)
{
    struct gpunvme_ioq *ioq;
    struct gpunvme_buf buf;

    check(gpunvme_ioq_create(ctrl, 16, &ioq));
    check(gpunvme_ctrl_alloc(ctrl, (size_t)NBLOCKS * ns->block_size, GPUNVME_MEM_HOST, &buf));
    for (uint64_t i = 0; i < NBLOCKS; i++)
        memset((uint8_t *)buf.cpu + i * ns->block_size, byte_of(i), ns->block_size);
    check(gpunvme_write(ioq, ns, 0, buf.nbytes, &buf, 0, 0));
    gpunvme_ctrl_free(ctrl, &buf);
    check(gpunvme_ioq_delete(ioq));
}

static void open_rig(struct rig *r, const char *uri, uint32_t entries)
{
    struct gpunvme_device_opts opts;

    check(gpunvme_ctrl_open_uri(uri, NULL, &r->ctrl));
    fill(r->ctrl, gpunvme_ctrl_ns_at(r->ctrl, 0));
    gpunvme_device_opts_init(&opts);
    opts.queues = 2;
    opts.entries = entries;
    check(gpunvme_device_open(r->ctrl, &opts, &r->dev));
    check(gpunvme_device_ns(r->dev, gpunvme_ctrl_ns_at(r->ctrl, 0), &r->ns));
    check(gpunvme_device_alloc(r->dev, (size_t)NBLOCKS * r->ns.block_size, &r->data));
    check(gpunvme_device_buf(r->dev, &r->data, &r->view));
    check(gpunvme_mem_alloc(ALL * sizeof(int), GPUNVME_MEM_PINNED, &r->results));
}

static void close_rig(struct rig *r)
{
    check(gpunvme_mem_free(&r->results));
    gpunvme_device_free(r->dev, &r->data);
    check(gpunvme_device_close(r->dev));
    check(gpunvme_ctrl_close(r->ctrl));
}

/* A kernel has ended: its results are all good, and so many blocks are there. Returns failures. */
static int look(struct rig *r, const char *what, unsigned nresults, unsigned nblocks)
{
    size_t nbytes = (size_t)nblocks * r->ns.block_size;
    uint8_t *bytes = (uint8_t *)malloc(nbytes);
    int failed = 0;

    check_cuda((int)cudaDeviceSynchronize());
    for (unsigned i = 0; i < nresults; i++)
        failed += ((int *)r->results.cpu)[i] != GPUNVME_OK;
    check(gpunvme_mem_copy(bytes, GPUNVME_MEM_HOST, r->view.data, r->data.mem, nbytes));
    for (size_t i = 0; i < nbytes; i++)
        failed += bytes[i] != byte_of(i / r->ns.block_size);
    free(bytes);
    memset(r->results.cpu, 0xff, ALL * sizeof(int));
    check(gpunvme_mem_fill(r->view.data, r->data.mem, 0, nbytes));
    printf("%s: %d failures\n", what, failed);
    return failed;
}

/* With room for all threads' commands, or for few. */
static int run_kernels(const char *uri, uint32_t entries)
{
    struct rig r;
    int *err, failed = 0;

    open_rig(&r, uri, entries);
    err = (int *)r.results.gpu;
    memset(r.results.cpu, 0xff, ALL * sizeof(int));
    LAUNCH(each_reads, BLOCKS, THREADS, r.ns, r.view, err);
    failed += look(&r, "each_reads", ALL, ALL);
#if defined(__CUDACC__)
    LAUNCH(block_reads, 1, THREADS, r.ns, r.view, err);
#else
    LAUNCH(block_reads, 1, 1, r.ns, r.view, err);
#endif
    failed += look(&r, "block_reads", 1, NBLOCKS);
    LAUNCH(four_at_once, BLOCKS, THREADS, r.ns, r.view, err);
    failed += look(&r, "four_at_once", ALL, NBLOCKS);
    close_rig(&r);
    return failed;
}

static int run_host(const char *uri, int expected)
{
    struct gpunvme_ctrl *ctrl;
    int failed;

    check(gpunvme_ctrl_open_uri(uri, NULL, &ctrl));
    failed = read_by_kernel(ctrl);
    printf("read_by_kernel on %s: %d failed\n", uri, failed);
    check(gpunvme_ctrl_close(ctrl));
    return failed != expected;
}

int main(void)
{
    int failed = 0;

#if defined(__CUDACC__)
    if (gpunvme_mem_gpu_is_host()) {
        printf("SKIP: no GPU: %s\n", gpunvme_mem_gpu_why_not());
        return 77;
    }
#endif
    failed += run_kernels("sim:size=1M", 1024);
    failed += run_kernels("sim:size=1M", 4);
    failed += run_host("sim:size=1M", 0);
    failed += run_host("sim:size=1M,fault=status=2/81:read:lba=5-9", 5);
    return failed != 0;
}
