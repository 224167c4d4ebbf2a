/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Rung 6, hopper, for fp8. wgmma takes elements of 8 bits that lie along k only; a stage is 128 of
 * k. Its sums keep some 14 bits, so that they are added in f32 after each stage unless `fast_sums`
 * leaves them in the tensor core. Scales by block are applied there, those of tensors and rows at
 * the end. All else is as in hopper.cu.
 */
#include "ops/matmul/hopper_epilogue.cuh"

#ifdef HAVE_HOPPER
/* The scale of a line that may be beyond the last. */
static __device__ __forceinline__ float line_scale(const ops_scales &scales, int64_t batch,
                                                   int64_t line, int64_t lines)
{
    int64_t at = line < lines ? line : lines - 1;

    return scales.data ? scales.data[batch * scales.stride + at * scales.step_line] : 1;
}

/* The scales by block of a tile's first step, for a thread's two rows and each 128 columns. */
template <int TILE_N> struct block_scales {
    const float *row[2], *col[TILE_N / 128];
};

template <int TILE_N, int BY_BLOCK> struct fp8_epilogue {
    enum { BEGINS = 0 };
    const hopper_work &work;
    uint32_t out;
    float *floats;
    int group;
    block_scales<TILE_N> blocks;

    __device__ __forceinline__ fp8_epilogue(const hopper_work &x, const ring &mem,
                                            unsigned char *dynamic, int of_group)
        : work(x), out(mem.out + of_group * HOPPER_OUT_NBYTES),
          floats((float *)(dynamic + (out - shared_address(dynamic)))), group(of_group)
    {
    }
    /* A thread's first row; the second is 8 further. */
    static __device__ __forceinline__ int64_t line_of(int64_t row)
    {
        return row + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
    }
    __device__ __forceinline__ void expect(const hopper_place &at)
    {
        if constexpr (BY_BLOCK)
            find_scales(at);
    }
    __device__ __forceinline__ void find_scales(const hopper_place &at)
    {
        const cuda_product &p = work.product;
        int64_t line = line_of(at.row + cluster_rank() * HOPPER_TILE_M + group * 64);
        int64_t batch = at.batch, first = hopper_span_of(&work.schedule, &batch).first;

        for (int i = 0; i < 2; i++) {
            int64_t row = line + 8 * i < p.m ? line + 8 * i : p.m - 1;

            blocks.row[i] =
                p.scale_a.data + batch * p.scale_a.stride + row * p.scale_a.step_line + first;
        }
        for (int i = 0; i < TILE_N / 128; i++) {
            int64_t col = at.col + i * 128 < p.n ? at.col + i * 128 : at.col;

            blocks.col[i] = p.scale_b.data + batch * p.scale_b.stride +
                            col / OPS_SCALE_K * p.scale_b.step_line + first;
        }
    }
    __device__ __forceinline__ void begin(float (&)[TILE_N / 2])
    {
    }
    __device__ __forceinline__ hopper_scales<TILE_N> scales(int step) const
    {
        hopper_scales<TILE_N> x;

        for (int i = 0; i < 2; i++)
            x.row[i] = BY_BLOCK && work.product.scale_a.data ? blocks.row[i][step] : 1;
        for (int j = 0; j < TILE_N / 128; j++)
            x.col[j] = BY_BLOCK && work.product.scale_b.data ? blocks.col[j][step] : 1;
        return x;
    }
    /* Scales of tensors and rows. (Of a tensor, all lines have the first one's.) */
    __device__ __forceinline__ void scale(float (&sums)[TILE_N / 2], const hopper_place &at,
                                          int64_t row) const
    {
        const cuda_product &p = work.product;
        const ops_scales &b = p.scale_b;
        int64_t batch = cuda_piece_of(&p, at.batch).batch;
        float first = b.data && !b.step_line ? b.data[0] : 1;
        float rows[2] = {first * line_scale(p.scale_a, batch, line_of(row), p.m),
                         first * line_scale(p.scale_a, batch, line_of(row) + 8, p.m)};

#pragma unroll
        for (int i = 0; i < TILE_N / 2; i++)
            sums[i] *= rows[i / 2 % 2];
        if (b.data && b.step_line) {
            int64_t col = at.col + threadIdx.x % 4 * 2;

            scale_columns(sums, b.data + batch * b.stride + col, (int)(p.n - col));
        }
    }
    /* What is beyond the last column is not stored: any scale will do. */
    __device__ __forceinline__ void scale_columns(float (&sums)[TILE_N / 2], const float *scales,
                                                  int left) const
    {
#pragma unroll
        for (int i = 0; i < TILE_N / 2; i += 4)
#pragma unroll
            for (int j = 0; j < 2; j++) {
                float x = i * 2 + j < left ? scales[i * 2 + j] : 1;

                sums[i + j] *= x;
                sums[i + 2 + j] *= x;
            }
    }
    __device__ __forceinline__ void end(float (&sums)[TILE_N / 2], const hopper_place &at,
                                        int64_t row)
    {
        if (!BY_BLOCK)
            scale(sums, at, row);
        if (!work.copies_out)
            write_out(work, floats, sums, at.batch, row, at.col, group);
        else if (work.product.out_dtype == GPUNVME_OPS_F16)
            copy_out<GPUNVME_OPS_F16, GPUNVME_OPS_ACT_NONE>(work, out, sums, at.batch, (int)row,
                                                            (int)at.col, group);
        else
            copy_out<GPUNVME_OPS_BF16, GPUNVME_OPS_ACT_NONE>(work, out, sums, at.batch, (int)row,
                                                             (int)at.col, group);
    }
    __device__ __forceinline__ void finish()
    {
        if (work.copies_out && threadIdx.x % 128 == 0)
            tensor_store_wait_read<0>();
    }
};
#endif

template <int DTYPE, int TILE_N, int SUMS>
static __global__ void __launch_bounds__(HOPPER_THREADS, 1)
    multiply_fp8(const __grid_constant__ hopper_work work)
{
#ifdef HAVE_HOPPER
    typedef tensor_source<1, 0, 0, TILE_N> source;
    typedef fp8_epilogue<TILE_N, SUMS == HOPPER_SUMS_BY_BLOCK> epilogue;

    if constexpr (SUMS == HOPPER_SUMS_FAST)
        hopper_block<hopper_raster, source, multiply_from_shared<DTYPE, 0, 0, TILE_N>, epilogue>(
            work.schedule, work.operands, 0, work);
    else if constexpr (TILE_N == 128)
        hopper_block<hopper_raster, source,
                     multiply_in_two_parts<DTYPE, SUMS == HOPPER_SUMS_BY_BLOCK>, epilogue>(
            work.schedule, work.operands, 0, work);
    else
        hopper_block<hopper_raster, source,
                     multiply_in_parts<DTYPE, TILE_N, SUMS == HOPPER_SUMS_BY_BLOCK>, epilogue>(
            work.schedule, work.operands, 0, work);
#endif
}

const void *hopper_fp8_kernel(int dtype_a, int dtype_b, enum hopper_sums sums, int width)
{
#define WIDTHS(dtype, sums)                                                                        \
    {                                                                                              \
        (const void *)multiply_fp8<dtype, 128, sums>, (const void *)multiply_fp8<dtype, 256, sums> \
    }
#define SUMS(dtype)                                                                                \
    {                                                                                              \
        WIDTHS(dtype, HOPPER_SUMS_F32), WIDTHS(dtype, HOPPER_SUMS_BY_BLOCK),                       \
            WIDTHS(dtype, HOPPER_SUMS_FAST)                                                        \
    }
    static const void *const kernels[2][2][3][2] = {
        {SUMS(GPUNVME_OPS_E4M3), SUMS(HOPPER_E4M3_E5M2)},
        {SUMS(HOPPER_E5M2_E4M3), SUMS(GPUNVME_OPS_E5M2)}};

    return kernels[dtype_a == GPUNVME_OPS_E5M2][dtype_b == GPUNVME_OPS_E5M2][sums]
                  [width == HOPPER_TILE_N];
}
