/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The kernel of issue=gpu: a thread for each job.
 */
#include <cuda_runtime_api.h>

#include "storage/nvme_gpu_kernel.h"

/* A warp a block, so that few jobs are on many processors: they need not share one's registers. */
#define THREADS 32

namespace
{
__global__ void __launch_bounds__(THREADS, 1)
    do_jobs(struct gpunvme_dev_ns ns, struct nvme_job *jobs, unsigned n)
{
    unsigned i = blockIdx.x * THREADS + threadIdx.x;

    if (i < n) {
        struct nvme_job job = jobs[i];

        nvme_job_do(&ns, &job);
        jobs[i].err = job.err;
    }
}
} // namespace

extern "C" int nvme_kernels_launch(const struct gpunvme_dev_ns *ns, struct nvme_job *jobs,
                                   unsigned n, void *stream)
{
    do_jobs<<<(n + THREADS - 1) / THREADS, THREADS, 0, (cudaStream_t)stream>>>(*ns, jobs, n);
    return cudaGetLastError();
}

extern "C" int nvme_kernels_preload(void)
{
    struct cudaFuncAttributes attributes;

    return cudaFuncGetAttributes(&attributes, do_jobs);
}
