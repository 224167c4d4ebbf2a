/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Attention on the CPU by tiles: what forward and backward share.
 */
#include "ops/attention/cpu/tiles.h"

int64_t tiles_mask(const struct gpunvme_attention *p, float *s, const struct attention_range *seen,
                   int64_t keys)
{
    int64_t width = (keys + ATTENTION_LANES - 1) / ATTENTION_LANES * ATTENTION_LANES;

    for (int64_t j = seen->first; p->softcap > 0 && j < seen->end; j++)
        s[j] = p->softcap * tanhf(s[j] / p->softcap);
    for (int64_t j = 0; j < seen->first; j++)
        s[j] = -INFINITY;
    for (int64_t j = seen->end; j < width; j++)
        s[j] = -INFINITY;
    return width;
}

const struct cpu_engine *tiles_engine(const struct cpu_engine *engine)
{
    const struct cpu_kernel *best = cpu_best_kernel();

    if (!engine->threads)
        return engine;
    for (engine = cpu_engines; engine->kernel != best;)
        engine++;
    return engine;
}

size_t tiles_lay_out(char *workspace, const int64_t *counts, float **const *parts, size_t n)
{
    size_t at = 0;

    for (size_t i = 0; i < n; i++) {
        *parts[i] = workspace ? (float *)(void *)(workspace + at) : NULL;
        at += ops_workspace_part(1, 1, counts[i], sizeof(float));
    }
    return at;
}
