/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The micro-kernel with vectors of four, which every 64-bit processor has: SSE2, NEON. A compiler
 * makes do without them, too.
 */
#include "ops/cpu/product.h"

#define KERNEL_TARGET
#define KERNEL_LANES 4
#if defined(__aarch64__) /* 32 registers */
#define KERNEL_ROWS ROWS_12
#else
#define KERNEL_ROWS ROWS_6
#endif
#include "ops/cpu/kernel.h"

const struct cpu_kernel cpu_kernel_plain = {MR, NR, 384, 240, 4096, 2 * MR + 3, kernel};
