/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Starts the kernel of issue=gpu in a stream of its own, and waits for it.
 */
#include <cuda_runtime_api.h>
#include <sched.h>
#include <stdlib.h>
#include <time.h>

#include "base/fail.h"
#include "memory/cuda.h"
#include "storage/futex.h"
#include "storage/nvme_gpu_kernel.h"

#define SPIN_NS  200000u /* of a kernel that runs, before the thread sleeps between looks */
#define SLEEP_NS 20000

struct nvme_kernels {
    unsigned gpu;
    void *stream;
};

static gpunvme_err_t cuda_fail(cudaError_t err, const char *what)
{
    (void)cudaGetLastError();
    return base_fail(GPUNVME_ERR_GPU, "%s: %s (%s)", what, cudaGetErrorString(err),
                     cudaGetErrorName(err));
}

gpunvme_err_t nvme_kernels_open(int gpu, struct nvme_kernels **out)
{
    struct nvme_kernels *k = calloc(1, sizeof(*k));
    gpunvme_err_t err;

    if (!k)
        return base_fail(GPUNVME_ERR_NOMEM, "a stream");
    k->gpu = (unsigned)gpu;
    err = mem_cuda_enter(k->gpu);
    if (!err) {
        cudaError_t loaded = (cudaError_t)nvme_kernels_preload();

        err = loaded == cudaSuccess ? mem_cuda_kernels_create(&k->stream)
                                    : cuda_fail(loaded, "the kernel of issue=gpu");
        mem_cuda_leave();
    }
    if (err) {
        free(k);
        return err;
    }
    *out = k;
    return GPUNVME_OK;
}

void nvme_kernels_close(struct nvme_kernels *k)
{
    if (!k)
        return;
    mem_cuda_kernels_destroy(k->stream);
    free(k);
}

/*
 * The kernel ends by itself, by the deadlines of its commands. It may have to wait for room on a
 * GPU that others fill: its jobs' memory is in use for as long.
 */
static gpunvme_err_t wait(struct nvme_kernels *k)
{
    const struct timespec pause = {.tv_nsec = SLEEP_NS};
    uint64_t start = futex_now();
    cudaError_t err;

    while ((err = cudaStreamQuery((cudaStream_t)k->stream)) == cudaErrorNotReady) {
        if (futex_now() - start < SPIN_NS)
            sched_yield();
        else
            nanosleep(&pause, NULL);
    }
    return err == cudaSuccess ? GPUNVME_OK : cuda_fail(err, "a kernel that does I/O");
}

gpunvme_err_t nvme_kernels_run(struct nvme_kernels *k, const struct gpunvme_dev_ns *ns,
                               struct nvme_job *jobs, unsigned n)
{
    gpunvme_err_t err = mem_cuda_enter(k->gpu);
    cudaError_t launched;

    if (err)
        return err;
    launched = (cudaError_t)nvme_kernels_launch(ns, jobs, n, k->stream);
    err = launched == cudaSuccess ? wait(k) : cuda_fail(launched, "launching the I/O kernel");
    mem_cuda_leave();
    return err;
}
