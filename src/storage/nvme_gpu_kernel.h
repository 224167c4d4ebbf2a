/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The kernel of issue=gpu, seen by the host: nvme_gpu.cu has it, nvme_gpu_cuda.c starts it and
 * asks after it; nvme_gpu_none.c is for builds without CUDA.
 */
#ifndef STORAGE_NVME_GPU_KERNEL_H
#define STORAGE_NVME_GPU_KERNEL_H

#include <stdbool.h>

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
 * Starts a kernel for `n` jobs at `jobs`, a GPU address of pinned memory; one at a time. GPU: it
 * could not be started.
 */
gpunvme_err_t nvme_kernels_start(struct nvme_kernels *kernels, const struct gpunvme_dev_ns *ns,
                                 struct nvme_job *jobs, unsigned n);

/* Whether it has ended; GPU: it has, and failed. */
gpunvme_err_t nvme_kernels_query(struct nvme_kernels *kernels, bool *done);

/* nvme_gpu.cu: cudaError_t as an int, a cudaStream_t as a pointer. */
int nvme_kernels_launch(const struct gpunvme_dev_ns *ns, struct nvme_job *jobs, unsigned n,
                        void *stream);
int nvme_kernels_preload(void);

#ifdef __cplusplus
}
#endif
#endif
