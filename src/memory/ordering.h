/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Whether what other PCIe devices write to a GPU's memory is there for its kernels once the write
 * that tells of it is (docs/ORDERING.md, Placement). Knows no transport: whether the writer is such
 * a device is the caller's to know.
 */
#ifndef MEMORY_ORDERING_H
#define MEMORY_ORDERING_H

#include "gpunvme/buf.h"

/* What CUDA says of a GPU; -1: unknown, or no GPU. */
struct mem_ordering {
    int writes;        /* cudaGPUDirectRDMAWritesOrdering */
    int flush_options; /* cudaFlushGPUDirectRDMAWritesOptions */
};

/*
 * Why other devices must not write to the memory of GPU number `gpu`; NULL: they may. Where GPU
 * memory is host memory they may.
 */
const char *mem_gpu_writes_lack(unsigned gpu);

/* The number of the GPU that holds a buffer of GPU memory; 0 where GPU memory is host memory. */
unsigned mem_gpu_of(const struct gpunvme_buf *buf);

#endif
