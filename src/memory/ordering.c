/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Whether drives may write to a GPU's memory: decided here for all who let them.
 */
#include "memory/ordering.h"

#include <stddef.h>

#include "gpunvme/memory.h"
#include "memory/cuda.h"

#define ORDERED_FOR_OWNER 100 /* cudaGPUDirectRDMAWritesOrderingOwner; more is better */

const char *mem_gpu_writes_lack(unsigned gpu)
{
    int writes;

    if (gpunvme_mem_gpu_is_host())
        return NULL;
    writes = mem_cuda_ordering(gpu).writes;
    if (writes >= ORDERED_FOR_OWNER)
        return NULL;
    return writes < 0 ? "CUDA does not say how this GPU orders what other devices write to it"
                      : "this GPU does not order what other devices write to it";
}

unsigned mem_gpu_of(const struct gpunvme_buf *buf)
{
    enum gpunvme_mem mem;
    int gpu;

    return gpunvme_mem_kind_of(buf->gpu, &mem, &gpu) || gpu < 0 ? 0 : (unsigned)gpu;
}
