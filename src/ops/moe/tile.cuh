/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which tile of all experts' products a block makes, and how sums become elements of C.
 */
#ifndef OPS_MOE_TILE_CUH
#define OPS_MOE_TILE_CUH

#include "ops/cuda/element.cuh"
#include "ops/moe/kernels.h"

/* Where tile number `index` lies; false: there are fewer. */
struct moe_tile {
    int64_t expert, row, col;
    int64_t first, slots; /* of the expert, in the list */
};

static __device__ __forceinline__ bool moe_find_tile(const moe_slots &x, int64_t index, int height,
                                                     int width, int64_t across, moe_tile &t)
{
    for (t.expert = 0; t.expert < x.experts; t.expert++) {
        int64_t down;

        t.first = x.starts[t.expert];
        t.slots = x.starts[t.expert + 1] - t.first;
        down = (t.slots + height - 1) / height;
        if (index < down * across) {
            /* An expert's matrix is larger than its rows: those below each other share columns. */
            t.col = index / down * width;
            t.row = index % down * height;
            return true;
        }
        index -= down * across;
    }
    return false;
}

/* Four elements of C, or as many as there are; `vectors` if they are aligned. */
static __device__ __forceinline__ void store_sums(void *c, int64_t at, int dtype, int accumulate,
                                                  bool vectors, int count, const float *sums)
{
    if (vectors && count >= 4) {
        float z[4] = {0, 0, 0, 0};

        if (accumulate)
            load4(c, at, dtype, z);
#pragma unroll
        for (int x = 0; x < 4; x++)
            z[x] += sums[x];
        store4(c, at, dtype, z);
        return;
    }
#pragma unroll 1
    for (int x = 0; x < 4 && x < count; x++)
        store_element(c, at + x, dtype,
                      accumulate ? load_element(c, at + x, dtype) + sums[x] : sums[x]);
}

#endif
