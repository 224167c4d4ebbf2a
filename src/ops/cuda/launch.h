/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How operators launch kernels, and what the CUDA runtime says of them.
 */
#ifndef OPS_CUDA_LAUNCH_H
#define OPS_CUDA_LAUNCH_H

#include <limits.h>
#include <stdint.h>

#include "ops/core/fail.h"

#ifdef __cplusplus
extern "C" {
#endif

/* For the tables of variants: what one needs, and the sm that must be there. */
#define CUDA_SM80  "a GPU of sm_80 or later"
#define CUDA_SM90  "a GPU of sm_90 or later, and a build for it"
#define CUDA_SM90A "a GPU of sm_90a, and a build for it"
#ifdef OPS_HAVE_SM90A
#define CUDA_ONLY_90A 90
#else
#define CUDA_ONLY_90A INT_MAX /* which no GPU is */
#endif

/* A cudaError_t as a status, with what was being done. */
gpunvme_ops_status_t cuda_status(int error, const char *doing);

/* A kernel's tiles. A block makes tile_m x tile_n elements of C. */
struct cuda_tiling {
    int tile_m, tile_n;
    int part_m, part_n; /* that are made of what is read from shared memory at once; 0: of none */
    int threads;
    size_t shared_nbytes; /* that the launch asks for */
    int pair_m, pair_n;   /* blocks of a cluster below and beside each other; 0 is 1 */
};

/* How a rung would run a product, for the metrics. */
struct cuda_launch {
    struct cuda_tiling tiling;
    int registers;
    int64_t blocks, shared_nbytes;
    double occupancy;
};

/* What the device makes of a kernel. */
gpunvme_ops_status_t cuda_describe(const void *kernel, const struct cuda_tiling *tiling,
                                   int64_t blocks, struct cuda_launch *launch);

/* Shared memory beyond 48 KiB must be asked for before a launch. */
gpunvme_ops_status_t cuda_allow_shared(const void *kernel, size_t nbytes);

/* Clusters of so many blocks of a kernel that the current device has room for at once, at least 1.
 */
int cuda_resident_clusters(const void *kernel, int threads, int cluster, size_t nbytes);

/* Another number in each call of this process, which memory has only by chance. */
uint64_t cuda_call_tag(void);

/* Multiprocessors of the current device; 1 if it cannot tell. */
int cuda_units(void);

/* ops_cuda_has_clusters() of the current device. */
int cuda_has_clusters(void);

#ifdef __cplusplus
}
#endif
#endif
