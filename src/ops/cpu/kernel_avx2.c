/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The micro-kernel for AVX2 and FMA: 6 x 16, in 12 of 16 registers; 2 hold B, 1 an element of A.
 */
#include "ops/cpu/product.h"

#if defined(__x86_64__)
#define KERNEL_TARGET __attribute__((target("avx2,fma")))
#define KERNEL_LANES  8
#define KERNEL_ROWS   ROWS_6
#include "ops/cpu/kernel.h"

const struct cpu_kernel cpu_kernel_avx2 = {MR, NR, 384, 240, 4096, 15, kernel};
#endif
