/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The micro-kernel for AVX-512: 12 x 32, in 24 of 32 registers. 14 x 32 fills them all, but lost
 * (docs/OPERATORS.md).
 */
#include "ops/cpu/product.h"

#if defined(__x86_64__)
#define KERNEL_TARGET __attribute__((target("avx512f,fma")))
#define KERNEL_LANES  16
#define KERNEL_ROWS   ROWS_12
#include "ops/cpu/kernel.h"

const struct cpu_kernel cpu_kernel_avx512 = {MR, NR, 512, 240, 4096, 27, kernel};
#endif
