/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Starts the kernel of issue=gpu in a stream of its own, and asks whether it has ended.
 */
#include <cuda_runtime_api.h>
#include <stdlib.h>

#include "base/fail.h"
#include "memory/cuda.h"
#include "storage/nvme_gpu_kernel.h"

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
    if (!mem_cuda_enter(k->gpu)) { /* else CUDA makes a context on the thread's own device */
        mem_cuda_kernels_destroy(k->stream);
        mem_cuda_leave();
    }
    free(k);
}

gpunvme_err_t nvme_kernels_start(struct nvme_kernels *k, const struct gpunvme_dev_ns *ns,
                                 struct nvme_job *jobs, unsigned n)
{
    gpunvme_err_t err = mem_cuda_enter(k->gpu);
    cudaError_t launched;

    if (err)
        return err;
    launched = (cudaError_t)nvme_kernels_launch(ns, jobs, n, k->stream);
    if (launched != cudaSuccess)
        err = cuda_fail(launched, "launching the I/O kernel");
    mem_cuda_leave();
    return err;
}

gpunvme_err_t nvme_kernels_query(struct nvme_kernels *k, bool *done)
{
    gpunvme_err_t err = mem_cuda_enter(k->gpu);
    cudaError_t answer;

    *done = false;
    if (err)
        return err;
    answer = cudaStreamQuery((cudaStream_t)k->stream);
    *done = answer == cudaSuccess;
    if (answer == cudaErrorNotReady)
        (void)cudaGetLastError(); /* an answer, not an error */
    else if (answer != cudaSuccess)
        err = cuda_fail(answer, "a kernel that does I/O");
    mem_cuda_leave();
    return err;
}
