/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The kernel of issue=gpu, seen by the host: nvme_gpu.cu has it, nvme_gpu_cuda.c starts it and
 * waits for it; nvme_gpu_none.c is for builds without CUDA.
 */
#ifndef STORAGE_NVME_GPU_KERNEL_H
#define STORAGE_NVME_GPU_KERNEL_H

#include "storage/nvme_gpu_job.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A stream for the kernels of one thread. */
struct nvme_kernels;

/* On this GPU. UNSUPPORTED in a build without CUDA. */
gpunvme_err_t nvme_kernels_open(int gpu, struct nvme_kernels **out);
void nvme_kernels_close(struct nvme_kernels *kernels);

/*
 * Runs `n` jobs at `jobs`, a GPU address of pinned memory, and returns when the kernel has ended:
 * each of its waits has a deadline. GPU: it could not be started, or failed.
 */
gpunvme_err_t nvme_kernels_run(struct nvme_kernels *kernels, const struct gpunvme_dev_ns *ns,
                               struct nvme_job *jobs, unsigned n);

/* nvme_gpu.cu: cudaError_t as an int, a cudaStream_t as a pointer. */
int nvme_kernels_launch(const struct gpunvme_dev_ns *ns, struct nvme_job *jobs, unsigned n,
                        void *stream);
int nvme_kernels_preload(void);

#ifdef __cplusplus
}
#endif
#endif
