/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The engines for products: the rungs of every CPU ladder that is made of them.
 */
#include "ops/cpu/product.h"

const struct cpu_engine cpu_engines[6] = {
    {.multiply = cpu_multiply_naive},
    {.multiply = cpu_multiply_blocked, .tile = CPU_BLOCK},
    {cpu_multiply_packed, cpu_workspace_packed, &cpu_kernel_plain, false, 0},
#if defined(__x86_64__)
    {cpu_multiply_packed, cpu_workspace_packed, &cpu_kernel_avx2, false, 0},
    {cpu_multiply_packed, cpu_workspace_packed, &cpu_kernel_avx512, false, 0},
#else
    {cpu_multiply_packed, cpu_workspace_packed, &cpu_kernel_plain, false, 0},
    {cpu_multiply_packed, cpu_workspace_packed, &cpu_kernel_plain, false, 0},
#endif
    {.threads = true},
};

/*
 * The order of the ladder is the order of speed, except that threads are only worth their start
 * (some 10 us) with enough to do.
 */
#define WORTH_THREADS 4e6

int cpu_rank(const struct ops_variant *variant, const struct ops_call *call)
{
    const struct cpu_engine *engine = variant->data;

    if (engine->threads &&
        (cpu_threads_for(engine, call->exec) == 1 || call->flops < WORTH_THREADS))
        return 0;
    return 1 + (int)(engine - cpu_engines);
}
