/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The PTX instructions that kernels use, one function each, in the order of the PTX ISA manual
 * (sections are those of version 8.8).
 */
#ifndef OPS_CUDA_PTX_CUH
#define OPS_CUDA_PTX_CUH

#include <stdint.h>

/* A pointer to shared memory as instructions take it. */
static __device__ __forceinline__ uint32_t shared_address(const void *pointer)
{
    return (uint32_t)__cvta_generic_to_shared(pointer);
}

/*
 * cp.async (9.7.9.25.3.1): copies `valid` bytes to shared memory without a register in between,
 * and zeros up to 4 or 16. Addresses are aligned to that size; `from` is not read if valid is 0.
 */
static __device__ __forceinline__ void cp_async4(uint32_t to, const void *from, uint32_t valid)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(valid)
                 : "memory");
}

static __device__ __forceinline__ void cp_async16(uint32_t to, const void *from, uint32_t valid)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid)
                 : "memory");
}

static __device__ __forceinline__ void cp_async_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Until at most PENDING of this thread's groups are under way. */
template <int PENDING> static __device__ __forceinline__ void cp_async_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

#endif
