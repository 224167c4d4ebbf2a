/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The rows of softmax.h in vectors of 4, 8 and 16.
 */
#include "ops/attention/cpu/cpu.h"

#define ROWS_TARGET
#define ROWS_LANES 4
#define ROWS(name) attention_plain_##name
#include "ops/attention/cpu/softmax.h"

#if defined(__x86_64__)
#undef ROWS_TARGET
#undef ROWS_LANES
#undef ROWS
#define ROWS_TARGET __attribute__((target("avx2,fma")))
#define ROWS_LANES  8
#define ROWS(name)  attention_avx2_##name
#include "ops/attention/cpu/softmax.h"

#undef ROWS_TARGET
#undef ROWS_LANES
#undef ROWS
#define ROWS_TARGET __attribute__((target("avx512f,fma")))
#define ROWS_LANES  16
#define ROWS(name)  attention_avx512_##name
#include "ops/attention/cpu/softmax.h"
#endif

const struct attention_rows *attention_rows_of(const struct cpu_kernel *kernel)
{
#if defined(__x86_64__)
    if (kernel == &cpu_kernel_avx512)
        return &attention_avx512_rows;
    if (kernel == &cpu_kernel_avx2)
        return &attention_avx2_rows;
#endif
    (void)kernel;
    return &attention_plain_rows;
}
