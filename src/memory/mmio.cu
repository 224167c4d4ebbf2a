/* SPDX-License-Identifier: BSD-3-Clause
 *
 * One load from a register of a device, by the GPU. ld.mmio is made for this: it is done exactly
 * once and never merged with another. Source: PTX ISA, "ld" (.mmio, from version 8.2 on, sm_70).
 */
#include "memory/mmio_cuda.h"

namespace
{
__global__ void load(const uint32_t *address, uint64_t *value)
{
    uint32_t v;

    asm volatile("ld.mmio.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(address) : "memory");
    *value = v;
}
} // namespace

extern "C" cudaError_t mem_mmio_launch(const void *address, uint64_t *value, cudaStream_t stream)
{
    load<<<1, 1, 0, stream>>>((const uint32_t *)address, value);
    return cudaGetLastError();
}
