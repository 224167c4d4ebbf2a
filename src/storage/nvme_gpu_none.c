/* SPDX-License-Identifier: BSD-3-Clause
 *
 * issue=gpu in a build without CUDA: there is no kernel, and nobody asks for it, since there is no
 * GPU either.
 */
#include "base/fail.h"
#include "storage/nvme_gpu_kernel.h"

gpunvme_err_t nvme_kernels_open(int gpu, struct nvme_kernels **out)
{
    *out = NULL;
    return base_fail(GPUNVME_ERR_UNSUPPORTED, "GPU %d: this build has no CUDA", gpu);
}

void nvme_kernels_close(struct nvme_kernels *kernels)
{
    (void)kernels;
}

gpunvme_err_t nvme_kernels_start(struct nvme_kernels *kernels, const struct gpunvme_dev_ns *ns,
                                 struct nvme_job *jobs, unsigned n)
{
    (void)kernels;
    (void)ns;
    (void)jobs;
    return base_fail(GPUNVME_ERR_UNSUPPORTED, "%u jobs: this build has no CUDA", n);
}

gpunvme_err_t nvme_kernels_query(struct nvme_kernels *kernels, bool *done)
{
    (void)kernels;
    *done = true;
    return GPUNVME_OK;
}
