/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The CPU's ladders, and what this processor can do. The three operators have the same rungs: a
 * rung is an engine for products.
 */
#include <stdio.h>
#include <string.h>

#include "ops/cpu/cpu.h"

uint64_t cpu_features(void)
{
    uint64_t features = 0;

#if defined(__x86_64__)
    /* These look at what the operating system saves, too. */
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        features |= GPUNVME_OPS_CPU_AVX2;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("fma"))
        features |= GPUNVME_OPS_CPU_AVX512;
#endif
#ifdef _OPENMP
    features |= GPUNVME_OPS_CPU_OPENMP;
#endif
    return features;
}

const struct cpu_kernel *cpu_best_kernel(void)
{
#if defined(__x86_64__)
    uint64_t features = cpu_features();

    if (features & GPUNVME_OPS_CPU_AVX512)
        return &cpu_kernel_avx512;
    if (features & GPUNVME_OPS_CPU_AVX2)
        return &cpu_kernel_avx2;
#endif
    return &cpu_kernel_plain;
}

/* "model name : …" of /proc/cpuinfo; the architecture where it has none. */
static void processor_name(char *name, size_t capacity)
{
    FILE *file = fopen("/proc/cpuinfo", "re");
    char line[256];

    snprintf(name, capacity, "%s", "processor");
    while (file && fgets(line, sizeof(line), file)) {
        char *text = strchr(line, ':');

        if (strncmp(line, "model name", 10) != 0 || !text)
            continue;
        text += 1 + strspn(text + 1, " \t");
        text[strcspn(text, "\n")] = 0;
        snprintf(name, capacity, "%.*s", (int)capacity - 1, text);
        break;
    }
    if (file)
        fclose(file);
}

gpunvme_ops_status_t ops_cpu_capability(int index, struct gpunvme_ops_capability *out)
{
    if (index)
        return ops_fail(GPUNVME_OPS_ERR_DEVICE, "there is no CPU number %d: all are number 0",
                        index);
    out->cpu_features = cpu_features();
    out->units = cpu_max_threads();
    return GPUNVME_OPS_OK;
}

void ops_cpu_describe(struct gpunvme_ops_capability *out)
{
    static const struct {
        uint64_t bit;
        const char *name;
    } names[] = {{GPUNVME_OPS_CPU_AVX2, "avx2"},
                 {GPUNVME_OPS_CPU_AVX512, "avx512f"},
                 {GPUNVME_OPS_CPU_OPENMP, "openmp"}};
    size_t n = 0;

    processor_name(out->name, sizeof(out->name));
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (out->cpu_features & names[i].bit)
            n += (size_t)snprintf(out->features + n, sizeof(out->features) - n, "%s%s",
                                  n ? " " : "", names[i].name);
}

/*
 * The order of the ladder is the order of speed, but that threads are worth their start only with
 * enough to do: some 10 us.
 */
#define WORTH_THREADS 4e6

static double flops(const struct ops_problem *problem)
{
    switch (problem->op) {
    case GPUNVME_OPS_MATMUL: {
        const struct gpunvme_matmul *p = problem->u.matmul;

        return 2.0 * (double)p->m * (double)p->n * (double)p->k * (double)p->batch;
    }
    case GPUNVME_OPS_LINEAR_FORWARD: {
        const struct gpunvme_linear *p = problem->u.forward;

        return 2.0 * (double)p->rows * (double)p->in * (double)p->out;
    }
    default: {
        const struct gpunvme_linear_grad *p = problem->u.backward;

        return 4.0 * (double)p->rows * (double)p->in * (double)p->out;
    }
    }
}

int cpu_rank(const struct ops_variant *variant, const struct ops_problem *problem,
             const struct gpunvme_ops_exec *exec)
{
    const struct cpu_engine *engine = variant->data;

    if (engine->threads && (cpu_threads_for(engine, exec) == 1 || flops(problem) < WORTH_THREADS))
        return 0;
    return 1 + (int)(engine - cpu_engines);
}

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

#if defined(__x86_64__)
#define X86(feature) (feature)
#else
#define X86(feature) (UINT64_C(1) << 63) /* which no processor has */
#endif

#define VARIANT(op_, index, name_, features_, needs_, changes_, workspace_, run_, analyze_)        \
    {                                                                                              \
        .name = name_, .needs = needs_, .changes = changes_, .op = op_, .device = GPUNVME_OPS_CPU, \
        .dtypes = OPS_ALL_DTYPES, .computes = OPS_ALL_COMPUTES, .deterministic = 1,                \
        .cpu_features = features_, .rank = cpu_rank, .workspace = workspace_, .run = run_,         \
        .analyze = analyze_, .data = &cpu_engines[index]                                           \
    }

#define LADDER(op, workspace, run, analyze)                                                        \
    {                                                                                              \
        VARIANT(op, 0, "naive", 0, "nothing",                                                      \
                "three loops as the definition has them, one sum at a time", workspace, run,       \
                analyze),                                                                          \
            VARIANT(op, 1, "blocked", 0, "nothing",                                                \
                    "tiles of 64 x 64 that stay in the first cache, loops i k j along rows",       \
                    workspace, run, analyze),                                                      \
            VARIANT(op, 2, "packed", 0, "nothing",                                                 \
                    "operands packed into panels for three caches, a tile of C in registers, "     \
                    "vectors of 4",                                                                \
                    workspace, run, analyze),                                                      \
            VARIANT(op, 3, "avx2", X86(GPUNVME_OPS_CPU_AVX2), "AVX2 and FMA",                      \
                    "a tile of 6 x 16 in vectors of 8, multiplied and added at once", workspace,   \
                    run, analyze),                                                                 \
            VARIANT(op, 4, "avx512", X86(GPUNVME_OPS_CPU_AVX512), "AVX-512F",                      \
                    "a tile of 12 x 32 in vectors of 16", workspace, run, analyze),                \
            VARIANT(op, 5, "openmp", GPUNVME_OPS_CPU_OPENMP, "a build with OpenMP",                \
                    "the best of the above, split among threads", workspace, run, analyze)         \
    }

static const struct ops_variant matmul[] =
    LADDER(GPUNVME_OPS_MATMUL, cpu_matmul_workspace, cpu_matmul_run, cpu_matmul_analyze);
static const struct ops_variant forward[] =
    LADDER(GPUNVME_OPS_LINEAR_FORWARD, cpu_forward_workspace, cpu_forward_run, NULL);
static const struct ops_variant backward[] =
    LADDER(GPUNVME_OPS_LINEAR_BACKWARD, cpu_backward_workspace, cpu_backward_run, NULL);

const struct ops_ladder ops_cpu_matmul = {matmul, sizeof(matmul) / sizeof(matmul[0])};
const struct ops_ladder ops_cpu_linear_forward = {forward, sizeof(forward) / sizeof(forward[0])};
const struct ops_ladder ops_cpu_linear_backward = {backward,
                                                   sizeof(backward) / sizeof(backward[0])};
