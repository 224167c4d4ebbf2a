/* SPDX-License-Identifier: BSD-3-Clause
 *
 * GPUNVME_FN begins a function that is compiled for the CPU and, by nvcc, for the GPU too.
 */
#ifndef GPUNVME_FN_H
#define GPUNVME_FN_H

#if defined(__CUDACC__)
#define GPUNVME_FN static __host__ __device__ __forceinline__
#else
#define GPUNVME_FN static inline __attribute__((unused))
#endif

#endif
