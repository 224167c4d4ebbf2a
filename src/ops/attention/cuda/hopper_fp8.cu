/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The rung "hopper" for E4M3: its kernel, and the one before that transposes V. wgmma takes
 * elements of 8 bits only if they are contiguous along k, and of P V that is the keys.
 */
#include "ops/attention/cuda/hopper.cuh"

#define WARPS 6

/* Four channels of V of a key, zeros for those that there are not. */
static __device__ __forceinline__ uint32_t load_channels(const uint8_t *row, int c, int channels)
{
    uint32_t x = 0;

    if (c + 4 <= channels)
        return *(const uint32_t *)(row + c);
    for (int i = 0; c + i < channels; i++)
        x |= (uint32_t)row[c + i] << 8 * i;
    return x;
}

/* Four words of four bytes: word i becomes byte i of each. */
static __device__ __forceinline__ void transpose_bytes(const uint32_t (&x)[4], uint32_t (&y)[4])
{
    uint32_t low = __byte_perm(x[0], x[1], 0x5140), high = __byte_perm(x[0], x[1], 0x7362);
    uint32_t other_low = __byte_perm(x[2], x[3], 0x5140);
    uint32_t other_high = __byte_perm(x[2], x[3], 0x7362);

    y[0] = __byte_perm(low, other_low, 0x5410);
    y[1] = __byte_perm(low, other_low, 0x7632);
    y[2] = __byte_perm(high, other_high, 0x5410);
    y[3] = __byte_perm(high, other_high, 0x7632);
}

/* By a warp: 16 keys from `key` on, four channels a lane. The tile is laid out by hopper.h. */
static __device__ __forceinline__ void transpose_group(uint8_t *to, const hopper_attention &work,
                                                       const cuda_sequence &s, int kv_head, int key)
{
    const cuda_attention &p = work.problem;
    int c = (int)threadIdx.x % 32 * 4;
    uint32_t rows[HOPPER_VALUES], channels[4][4];

#pragma unroll
    for (int k = 0; k < HOPPER_VALUES; k++)
        rows[k] =
            key + k < s.k_len
                ? load_channels((const uint8_t *)p.v.data + key_at(p, p.v, s, key + k, kv_head), c,
                                p.dim_v)
                : 0;
#pragma unroll
    for (int l = 0; l < 4; l++) {
        const uint32_t four[4] = {rows[2 * l], rows[2 * l + 1], rows[2 * l + 8], rows[2 * l + 9]};
        uint32_t bytes[4];

        transpose_bytes(four, bytes);
#pragma unroll
        for (int i = 0; i < 4; i++)
            channels[i][l] = bytes[i];
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        *(uint4 *)(to + (c + i) * HOPPER_VALUES) =
            make_uint4(channels[i][0], channels[i][1], channels[i][2], channels[i][3]);
}

/* A tile of keys of a head by a block, in turn. */
static __global__ void __launch_bounds__(32 * WARPS)
    transpose(const __grid_constant__ hopper_attention work, int64_t count)
{
    const cuda_attention &p = work.problem;
    const int nbytes = HOPPER_FP8_CHANNELS * HOPPER_FP8_KEYS;

    static_assert(HOPPER_FP8_CHANNELS == 32 * 4, "a lane has four channels");
    for (int64_t item = blockIdx.x; item < count; item += gridDim.x) {
        int kv_head = (int)(item % p.kv_heads), j = (int)(item / p.kv_heads % work.tiles);
        int b = (int)(item / p.kv_heads / work.tiles), key = j * HOPPER_FP8_KEYS;
        cuda_sequence s = sequence_of(p, b);
        int64_t tile =
            hopper_first_values(p.k_offsets, b, s.k_row, work.tiles, HOPPER_FP8_KEYS) + j;
        uint8_t *to = work.values + (tile * p.kv_heads + kv_head) * nbytes;

        for (int k = (int)threadIdx.x / 32 * HOPPER_VALUES; k < HOPPER_FP8_KEYS && key < s.k_len;
             k += WARPS * HOPPER_VALUES)
            transpose_group(to + k * HOPPER_FP8_CHANNELS, work, s, kv_head, key + k);
    }
}

gpunvme_ops_status_t hopper_transpose_values(const struct hopper_attention *work, void *stream)
{
    int64_t count = (int64_t)work->tiles * work->problem.batch * work->problem.kv_heads;

    LAUNCH(transpose, cuda_attention_blocks(count, 1), 32 * WARPS, stream, *work, count);
    return cuda_attention_launched();
}

const void *hopper_attention_fp8_kernel(void)
{
    return (const void *)
        attend<GPUNVME_OPS_E4M3, HOPPER_FP8_CHANNELS, HOPPER_FP8_KEYS, HOPPER_FP8_GROUPS, false>;
}
