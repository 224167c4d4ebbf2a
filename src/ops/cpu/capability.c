/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What this processor can do.
 */
#include <stdio.h>
#include <string.h>

#include "ops/cpu/product.h"

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
