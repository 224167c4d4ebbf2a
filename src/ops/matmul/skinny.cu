/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The rung "skinny": at most 16 rows or 16 columns, as in decoding. Such a product reads a large
 * matrix once and does little with it, so memory is the limit: each byte of the large operand is
 * loaded once, 16 bytes a lane, straight to registers, 4 KiB a warp at a time. Two blocks of eight
 * warps a multiprocessor have 64 KiB in flight, where 4.8 TB/s with a latency of a microsecond need
 * 36 KiB.
 *
 *  - 16-bit types are multiplied by mma, whose first operand (two times 16 lines, so that not much
 *    of the small one is read from the L2) is the large matrix and whose second (8 columns) the
 *    small one. A sum over k does not depend on the order of k, so a lane's 16 contiguous bytes
 *    serve as whatever k its fragments stand for, if both operands agree. Where lines, not k, are
 *    contiguous, two rows of k are merged into pairs by one instruction a register; which lines a
 *    fragment stands for is free as well.
 *  - fp8 becomes f16, which holds it all, on its way to mma: sums are in f32. Scales by block are
 *    applied to those of 128 of k.
 *  - f32 is multiplied in f32 by FFMA. Where lines are contiguous, a lane has four of them, and x
 *    goes to all lanes by way of shared memory. Of few tiles up to four groups of lanes have rows
 *    of k in turn, which makes more of them.
 *
 * The warps of a block and up to eight blocks of a cluster share the k of the same lines. Their
 * sums are added through shared memory, always in the same order.
 */
#include "ops/matmul/skinny.cuh"

#define WARPS   8
#define THREADS (WARPS * 32)

/*
 * f32 with lines contiguous: a lane has four of them. Groups of 32 / GROUPS lanes have rows of k in
 * turn, so that there are more tiles of fewer lines.
 */
template <int COLS, int GROUPS> struct rows_of_k {
    static const int rows = COLS > 8 ? 4 : 8, depth = rows * GROUPS;

    static_assert(COLS * depth / 4 <= 32, "a lane has four k of one column");
    uint4 w[rows], x;
};

/*
 * What a block makes: LINES x COLS sums. A warp takes every so many'th DEPTH of k, and leaves its
 * sums at out[col * LINES + line].
 */
template <int DTYPE, int MN, int COLS, int GROUPS> struct shape {
    static const int fp8 = DTYPE == GPUNVME_OPS_E4M3 || DTYPE == GPUNVME_OPS_E5M2;
    static const int size = DTYPE == GPUNVME_OPS_F32 ? 4 : fp8 ? 1 : 2;
    static const int lines = (int)skinny_lines(MN, size) / GROUPS;
    static const int depth =
        size == 4 && MN ? rows_of_k<COLS, GROUPS>::depth : (int)skinny_depth(MN, size);
    static const int count = lines * COLS;
    /* Floats of a warp: its sums, and before them columns of x for two passes. */
    static const int floats = size == 4 && MN && 2 * depth > lines ? 2 * depth *COLS : count;
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
/* 16 bytes that will not be read again. */
static __device__ __forceinline__ uint4 load_once(const unsigned char *from)
{
    return __ldcs((const uint4 *)from);
}

/* `COUNT` elements of SIZE bytes, `step` bytes apart, of which `valid` exist; zeros for others. */
template <int SIZE, int COUNT>
static __device__ __noinline__ uint4 gather(const unsigned char *from, int64_t step, int64_t valid)
{
    uint32_t words[4] = {0, 0, 0, 0};

#pragma unroll
    for (int i = 0; i < COUNT; i++)
        if (i < valid) {
            uint32_t x = SIZE == 4   ? *(const uint32_t *)(from + i * step)
                         : SIZE == 2 ? *(const uint16_t *)(from + i * step)
                                     : from[i * step];

            words[i * SIZE / 4] |= x << i * SIZE % 4 * 8;
        }
    return make_uint4(words[0], words[1], words[2], words[3]);
}

static __device__ __forceinline__ float word_as_float(uint32_t word)
{
    return __uint_as_float(word);
}

/* One operand for one matrix of the batch, in bytes. */
struct source {
    const unsigned char *data;
    int64_t line, k;   /* steps */
    int64_t last_line; /* lines beyond it are read as this one: their sums are not used */
    bool vectors;      /* 16 bytes may be read along the contiguous direction */
};

template <int SIZE>
static __device__ __forceinline__ source source_of(const skinny_side &s, int64_t batch)
{
    return {(const unsigned char *)s.data + batch * s.stride * SIZE, s.step_line * SIZE,
            s.step_k * SIZE, s.lines - 1, s.vectors != 0};
}

/* COUNT elements along k from `k` on, of a line; the sum's k ends at `end`. */
template <int SIZE, int COUNT>
static __device__ __forceinline__ uint4 along_k(const source &s, int64_t line, int64_t k,
                                                int64_t end, bool whole)
{
    const unsigned char *from =
        s.data + (line < s.last_line ? line : s.last_line) * s.line + k * s.k;

    if (!whole)
        return gather<SIZE, COUNT>(from, s.k, end - k);
    if (SIZE * COUNT == 8) {
        uint2 x = *(const uint2 *)from;

        return make_uint4(x.x, x.y, 0, 0);
    }
    return *(const uint4 *)from;
}

/* 16 bytes of lines from `line` on, at one k. */
template <int SIZE>
static __device__ __forceinline__ uint4 along_lines(const source &s, int64_t line, int64_t k,
                                                    int64_t end)
{
    const int count = 16 / SIZE;
    const unsigned char *from = s.data + line * SIZE + k * s.k;

    if (s.vectors && k < end && line + count <= s.last_line + 1)
        return load_once(from);
    return gather<SIZE, count>(from, SIZE, k < end ? s.last_line + 1 - line : 0);
}

template <int DTYPE>
static __device__ __forceinline__ void mma(float (&sums)[4], const uint32_t (&w)[4], uint32_t x0,
                                           uint32_t x1)
{
    if (DTYPE == GPUNVME_OPS_F16)
        mma_f16(sums, w, x0, x1);
    else
        mma_bf16(sums, w, x0, x1);
}

/*
 * What a lane has loaded of the large operand for a pass of its warp. The next pass's is under way
 * while this one's is multiplied.
 */
struct loaded {
    uint4 x[8];
};

/* All passes of a warp: load(x, k) asks for what add(x, k) multiplies. */
template <typename LOAD, typename ADD>
static __device__ __forceinline__ void in_passes(int64_t k, int64_t step, int64_t end,
                                                 const LOAD &load, const ADD &add)
{
    loaded now = {}, next = {};

    if (k < end)
        load(now, k);
#pragma unroll 1
    for (; k < end; k += step) {
        if (k + step < end)
            load(next, k + step);
        add(now, k);
        now = next;
    }
}

/* The sums of 32 lines. */
template <int COLS>
static __device__ __forceinline__ void keep_sums(float *out, const float (&sums)[2][COLS / 8][4])
{
    int line = threadIdx.x % 32 / 4, col = threadIdx.x % 4 * 2;

#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
        for (int c = 0; c < COLS / 8; c++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                out[(c * 8 + col + i % 2) * 32 + h * 16 + line + i / 2 * 8] = sums[h][c][i];
}

/* k is contiguous: a quarter of 64 bytes of lines l / 4, and each eighth from there, is lane l's.
 */
static __device__ __forceinline__ void load_pairs(loaded &a, const source &w, int64_t first,
                                                  int64_t k, int64_t end)
{
    int line = threadIdx.x % 32 / 4, quarter = threadIdx.x % 4 * 8;
    bool whole = w.vectors && k + 64 <= end;

#pragma unroll
    for (int i = 0; i < 8; i++) {
        int64_t at = first + line + i % 4 * 8, from = k + i / 4 * 32 + quarter;

        if (whole)
            a.x[i] = load_once(w.data + (at < w.last_line ? at : w.last_line) * w.line + from * 2);
        else
            a.x[i] = along_k<2, 8>(w, at, from, end, false);
    }
}

template <int DTYPE, int COLS>
static __device__ __forceinline__ void add_pairs(float (&sums)[2][COLS / 8][4], const loaded &a,
                                                 const source &x, int64_t k, int64_t end)
{
    int line = threadIdx.x % 32 / 4, quarter = threadIdx.x % 4 * 8;
    bool whole = x.vectors && x.k == 2 && k + 64 <= end;
    uint4 b[2][COLS / 8];

#pragma unroll
    for (int u = 0; u < 2; u++)
#pragma unroll
        for (int c = 0; c < COLS / 8; c++)
            b[u][c] = along_k<2, 8>(x, c * 8 + line, k + u * 32 + quarter, end, whole);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint4 &upper = a.x[i * 2], &lower = a.x[i * 2 + 1];
        const uint32_t one[4] = {upper.x, lower.x, upper.y, lower.y};
        const uint32_t two[4] = {upper.z, lower.z, upper.w, lower.w};

#pragma unroll
        for (int c = 0; c < COLS / 8; c++) {
            mma<DTYPE>(sums[i % 2][c], one, b[i / 2][c].x, b[i / 2][c].y);
            mma<DTYPE>(sums[i % 2][c], two, b[i / 2][c].z, b[i / 2][c].w);
        }
    }
}

template <int DTYPE, int COLS>
static __device__ __forceinline__ void sum_pairs(float *out, const source &w, const source &x,
                                                 int64_t first, int64_t k, int64_t step,
                                                 int64_t end)
{
    float sums[2][COLS / 8][4] = {};

    in_passes(
        k, step, end, [&](loaded &a, int64_t at) { load_pairs(a, w, first, at, end); },
        [&](const loaded &a, int64_t at) { add_pairs<DTYPE, COLS>(sums, a, x, at, end); });
    keep_sums<COLS>(out, sums);
}

/* Lines are contiguous: 8 of them of four rows of k, of two times 16, are lane l's. */
template <int SIZE>
static __device__ __forceinline__ void load_rows(loaded &v, const source &w, int64_t first,
                                                 int64_t k, int64_t end)
{
    int64_t line = first + threadIdx.x % 32 / 4 * (16 / SIZE);
    int quarter = threadIdx.x % 4 * 4;

#pragma unroll
    for (int i = 0; i < 8; i++)
        v.x[i] = along_lines<SIZE>(w, line, k + i / 4 * 16 + quarter + i % 4, end);
}

template <int DTYPE, int COLS>
static __device__ __forceinline__ void add_merged(float (&sums)[4][COLS / 8][4], const loaded &v,
                                                  const source &x, int64_t k, int64_t end)
{
    int group = threadIdx.x % 32 / 4, quarter = threadIdx.x % 4 * 4;
    bool whole_x = x.vectors && x.k == 2 && k + 32 <= end;
    uint4 b[2][COLS / 8];

#pragma unroll
    for (int u = 0; u < 2; u++)
#pragma unroll
        for (int c = 0; c < COLS / 8; c++)
            b[u][c] = along_k<2, 4>(x, c * 8 + group, k + u * 16 + quarter, end, whole_x);
#pragma unroll
    for (int u = 0; u < 2; u++) {
        const uint32_t rows[4][4] = {
            {v.x[u * 4 + 0].x, v.x[u * 4 + 0].y, v.x[u * 4 + 0].z, v.x[u * 4 + 0].w},
            {v.x[u * 4 + 1].x, v.x[u * 4 + 1].y, v.x[u * 4 + 1].z, v.x[u * 4 + 1].w},
            {v.x[u * 4 + 2].x, v.x[u * 4 + 2].y, v.x[u * 4 + 2].z, v.x[u * 4 + 2].w},
            {v.x[u * 4 + 3].x, v.x[u * 4 + 3].y, v.x[u * 4 + 3].z, v.x[u * 4 + 3].w}};

#pragma unroll
        for (int j = 0; j < 4; j++) {
            const uint32_t a[4] = {__byte_perm(rows[0][j], rows[1][j], 0x5410),
                                   __byte_perm(rows[0][j], rows[1][j], 0x7632),
                                   __byte_perm(rows[2][j], rows[3][j], 0x5410),
                                   __byte_perm(rows[2][j], rows[3][j], 0x7632)};

#pragma unroll
            for (int c = 0; c < COLS / 8; c++)
                mma<DTYPE>(sums[j][c], a, b[u][c].x, b[u][c].y);
        }
    }
}

template <int DTYPE, int COLS>
static __device__ __forceinline__ void sum_merged(float *out, const source &w, const source &x,
                                                  int64_t first, int64_t k, int64_t step,
                                                  int64_t end)
{
    int line = threadIdx.x % 32 / 4 * 8, col = threadIdx.x % 4 * 2;
    float sums[4][COLS / 8][4] = {};
    loaded now = {}, next = {};

    if (COLS == 8 && k < end)
        load_rows<2>(now, w, first, k, end);
#pragma unroll 1
    for (; k < end; k += step) {
        if (COLS > 8) /* there are not registers for two */
            load_rows<2>(now, w, first, k, end);
        else if (k + step < end)
            load_rows<2>(next, w, first, k + step, end);
        add_merged<DTYPE, COLS>(sums, now, x, k, end);
        if (COLS == 8)
            now = next;
    }
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
        for (int c = 0; c < COLS / 8; c++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                out[(c * 8 + col + i % 2) * 64 + line + 2 * j + i / 2] = sums[j][c][i];
}

/* 16 elements of 8 bits as f16. */
struct unpacked {
    uint32_t x[8];
};

static __device__ __forceinline__ unpacked unpack(const uint4 &bytes, int dtype)
{
    const uint32_t words[4] = {bytes.x, bytes.y, bytes.z, bytes.w};
    unpacked f16;

#pragma unroll
    for (int i = 0; i < 8; i++) {
        uint32_t pair = words[i / 2] >> i % 2 * 16;

        f16.x[i] =
            dtype == GPUNVME_OPS_E5M2 ? __byte_perm(pair, 0, 0x1404) : unpack_e4m3((uint16_t)pair);
    }
    return f16;
}

/* fp8 with k contiguous: a quarter of 64 bytes of lines l / 4, and each eighth from there. */
static __device__ __forceinline__ void load_bytes(loaded &a, const source &w, int64_t first,
                                                  int64_t k, int64_t end)
{
    int line = threadIdx.x % 32 / 4, quarter = threadIdx.x % 4 * 16;
    bool whole = w.vectors && w.k == 1 && k + OPS_SCALE_K <= end;

#pragma unroll
    for (int i = 0; i < 8; i++) {
        int64_t at = first + line + i % 4 * 8, from = k + i / 4 * 64 + quarter;

        if (whole)
            a.x[i] = load_once(w.data + (at < w.last_line ? at : w.last_line) * w.line + from);
        else
            a.x[i] = along_k<1, 16>(w, at, from, end, false);
    }
}

template <int DTYPE, int COLS>
static __device__ __forceinline__ void add_bytes(float (&sums)[2][COLS / 8][4], const loaded &a,
                                                 const source &x, int of_x, int64_t k, int64_t end)
{
    int line = threadIdx.x % 32 / 4, quarter = threadIdx.x % 4 * 16;
    bool whole = x.vectors && x.k == 1 && k + OPS_SCALE_K <= end;

#pragma unroll
    for (int i = 0; i < 4; i++) {
        unpacked upper = unpack(a.x[i * 2], DTYPE), lower = unpack(a.x[i * 2 + 1], DTYPE);

#pragma unroll
        for (int c = 0; c < COLS / 8; c++) {
            unpacked b =
                unpack(along_k<1, 16>(x, c * 8 + line, k + i / 2 * 64 + quarter, end, whole), of_x);

#pragma unroll
            for (int j = 0; j < 8; j += 2) {
                const uint32_t pairs[4] = {upper.x[j], lower.x[j], upper.x[j + 1], lower.x[j + 1]};

                mma_f16(sums[i % 2][c], pairs, b.x[j], b.x[j + 1]);
            }
        }
    }
}

template <int DTYPE, int COLS>
static __device__ __forceinline__ void
sum_bytes(float *out, const source &w, const source &x, int dtype_x, const lane_scales<4> &of_w,
          const lane_scales<COLS / 4> &of_x, int64_t first, int64_t k, int64_t step, int64_t end)
{
    float sums[2][COLS / 8][4] = {};

    in_passes(
        k, step, end, [&](loaded &a, int64_t at) { load_bytes(a, w, first, at, end); },
        [&](const loaded &a, int64_t at) {
            float part[2][COLS / 8][4] = {};

            add_bytes<DTYPE, COLS>(part, a, x, dtype_x, at, end);
#pragma unroll
            for (int h = 0; h < 2; h++)
#pragma unroll
                for (int c = 0; c < COLS / 8; c++)
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        sums[h][c][i] += scale_of(of_w, h * 2 + i / 2, at) *
                                         scale_of(of_x, c * 2 + i % 2, at) * part[h][c][i];
        });
    keep_sums<COLS>(out, sums);
}

/* Adds up what four neighbouring lanes have; the first has the sum. */
static __device__ __forceinline__ float of_quad(float x)
{
    x += __shfl_down_sync(0xffffffffu, x, 2, 4);
    x += __shfl_down_sync(0xffffffffu, x, 1, 4);
    return x;
}

/* f32 with k contiguous: lane l has four k of each 16, of two lines. */
template <int COLS>
static __device__ __forceinline__ void sum_floats(float *out, const source &w, const source &x,
                                                  int64_t first, int64_t k, int64_t step,
                                                  int64_t end)
{
    int line = threadIdx.x % 32 / 4, quarter = threadIdx.x % 4 * 4;
    float sums[2][COLS] = {};

#pragma unroll 1
    for (; k < end; k += step) {
        bool all = k + 64 <= end, whole_w = w.vectors && all;
        bool whole_x = x.vectors && x.k == 4 && all;
        uint4 a[4][2];

#pragma unroll
        for (int u = 0; u < 4; u++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                if (whole_w) {
                    int64_t at = first + line + 8 * h;

                    a[u][h] = load_once(w.data + (at < w.last_line ? at : w.last_line) * w.line +
                                        (k + u * 16 + quarter) * 4);
                } else {
                    a[u][h] =
                        along_k<4, 4>(w, first + line + 8 * h, k + u * 16 + quarter, end, false);
                }
#pragma unroll
        for (int u = 0; u < 4; u++)
#pragma unroll
            for (int c = 0; c < COLS; c++) {
                uint4 b = along_k<4, 4>(x, c, k + u * 16 + quarter, end, whole_x);

#pragma unroll
                for (int h = 0; h < 2; h++) {
                    sums[h][c] += word_as_float(a[u][h].x) * word_as_float(b.x);
                    sums[h][c] += word_as_float(a[u][h].y) * word_as_float(b.y);
                    sums[h][c] += word_as_float(a[u][h].z) * word_as_float(b.z);
                    sums[h][c] += word_as_float(a[u][h].w) * word_as_float(b.w);
                }
            }
    }
#pragma unroll
    for (int c = 0; c < COLS; c++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float sum = of_quad(sums[h][c]);

            if (!quarter)
                out[c * 16 + line + 8 * h] = sum;
        }
}

template <int COLS, int GROUPS>
static __device__ __forceinline__ void load_rows_of_k(rows_of_k<COLS, GROUPS> &v, const source &w,
                                                      const source &x, int64_t line, int64_t k,
                                                      int64_t end)
{
    const int across = v.depth / 4;
    int lane = threadIdx.x % 32, col = lane / across, quarter = lane % across * 4;

#pragma unroll
    for (int i = 0; i < v.rows; i++)
        v.w[i] = along_lines<4>(w, line, k + i * GROUPS + lane / (32 / GROUPS), end);
    if (col < COLS)
        v.x = along_k<4, 4>(x, col, k + quarter, end,
                            x.vectors && x.k == 4 && k + quarter + 4 <= end);
}

/* All columns of one k. */
template <int COLS>
static __device__ __forceinline__ void take_columns(float (&values)[COLS], const float *from)
{
    if (COLS == 1)
        values[0] = *from;
#pragma unroll
    for (int c = 0; c + 4 <= COLS; c += 4) {
        float4 x = *(const float4 *)(from + c);

        values[c] = x.x;
        values[c + 1] = x.y;
        values[c + 2] = x.z;
        values[c + 3] = x.w;
    }
}

/* x goes to all lanes by way of shared memory, where the warp's sums will be. */
template <int COLS, int GROUPS>
static __device__ __forceinline__ void sum_float_rows(float *out, const source &w, const source &x,
                                                      int64_t first, int64_t k, int64_t step,
                                                      int64_t end)
{
    const int depth = rows_of_k<COLS, GROUPS>::depth, across = depth / 4, lanes = 32 / GROUPS;
    int lane = threadIdx.x % 32, col = lane / across, quarter = lane % across * 4;
    int64_t line = first + lane % lanes * 4;
    rows_of_k<COLS, GROUPS> now = {}, next = {};
    float sums[4][COLS] = {}, *columns = out;

    if (k < end)
        load_rows_of_k(now, w, x, line, k, end);
#pragma unroll 1
    for (; k < end; k += step) {
        if (k + step < end)
            load_rows_of_k(next, w, x, line, k + step, end);
        if (col < COLS) {
            const uint32_t values[4] = {now.x.x, now.x.y, now.x.z, now.x.w};

#pragma unroll
            for (int i = 0; i < 4; i++)
                columns[(quarter + i) * COLS + col] = word_as_float(values[i]);
        }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < now.rows; i++) {
            float factors[COLS];

            take_columns(factors, columns + (i * GROUPS + lane / lanes) * COLS);
#pragma unroll
            for (int c = 0; c < COLS; c++) {
                sums[0][c] += word_as_float(now.w[i].x) * factors[c];
                sums[1][c] += word_as_float(now.w[i].y) * factors[c];
                sums[2][c] += word_as_float(now.w[i].z) * factors[c];
                sums[3][c] += word_as_float(now.w[i].w) * factors[c];
            }
        }
        /* The next pass's are elsewhere; those after them come when all have read these. */
        columns = columns == out ? out + depth * COLS : out;
        now = next;
    }
    __syncwarp();
#pragma unroll
    for (int c = 0; c < COLS; c++) {
#pragma unroll
        for (int other = 16; other >= lanes; other /= 2)
#pragma unroll
            for (int i = 0; i < 4; i++)
                sums[i][c] += __shfl_xor_sync(0xffffffffu, sums[i][c], other);
        if (lane < lanes)
            *(float4 *)(out + (c * lanes + lane) * 4) =
                make_float4(sums[0][c], sums[1][c], sums[2][c], sums[3][c]);
    }
}

template <int DTYPE, int MN, int COLS, int GROUPS>
static __device__ __forceinline__ void sum_lines(float *out, const source &w, const source &x,
                                                 int64_t first, int64_t k, int64_t step,
                                                 int64_t end)
{
    if constexpr (DTYPE == GPUNVME_OPS_F32 && MN)
        sum_float_rows<COLS, GROUPS>(out, w, x, first, k, step, end);
    else if constexpr (DTYPE == GPUNVME_OPS_F32)
        sum_floats<COLS>(out, w, x, first, k, step, end);
    else if constexpr (MN)
        sum_merged<DTYPE, COLS>(out, w, x, first, k, step, end);
    else
        sum_pairs<DTYPE, COLS>(out, w, x, first, k, step, end);
}

/* The warps' sums of `count` elements, `step` apart, become the block's, in the place of the first.
 */
static __device__ __forceinline__ void add_warps(float *sums, int count, int step)
{
    for (int i = threadIdx.x; i < count; i += THREADS) {
        float sum = sums[i];

#pragma unroll
        for (int warp = 1; warp < WARPS; warp++)
            sum += sums[warp * step + i];
        sums[i] = sum;
    }
}
#endif

template <int DTYPE, int MN, int COLS, int GROUPS>
static __global__ void __launch_bounds__(THREADS, 2) multiply(const skinny_work work)
{
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    typedef shape<DTYPE, MN, COLS, GROUPS> s;
    const cuda_product &p = work.product;
    float *sums = (float *)dynamic_shared();
    uint32_t rank = cluster_rank(), size = cluster_size();
    int64_t tile = blockIdx.x / size, across = (work.w.lines + s::lines - 1) / s::lines;
    int64_t batch = tile / across, first = tile % across * s::lines;
    int64_t warp = rank * WARPS + threadIdx.x / 32;

    source w = source_of<s::size>(work.w, batch), x = source_of<s::size>(work.x, batch);
    const ops_scales &of_w = work.w_is_b ? p.scale_b : p.scale_a;
    const ops_scales &of_x = work.w_is_b ? p.scale_a : p.scale_b;
    float *own = sums + threadIdx.x / 32 * s::floats;
    int64_t step = (int64_t)size * WARPS * s::depth;

    let_next_kernel_start();
    wait_for_kernels_before();
    if constexpr (s::fp8)
        sum_bytes<DTYPE, COLS>(
            own, w, x, work.w_is_b ? p.dtype : p.dtype_b,
            find_scales<4>(of_w, batch, first + threadIdx.x % 32 / 4, 0, w.last_line),
            find_scales<COLS / 4>(of_x, batch, threadIdx.x % 4 * 2, 1, x.last_line), first,
            warp * s::depth, step, p.k);
    else
        sum_lines<DTYPE, MN, COLS, GROUPS>(own, w, x, first, warp * s::depth, step, p.k);
    __syncthreads();
    add_warps(sums, s::count, s::floats);
    finish_lines<s::lines, COLS, s::fp8>(work, sums, batch, first, THREADS);
#endif
}

/*
 * Not all multiprocessors have a place in a cluster: two blocks of eight on each of an H200 make 30
 * clusters, not 33. A few tiles more than that would be a second wave, so clusters are smaller
 * then.
 */
static int fitting_cluster(const void *kernel, int64_t tiles, int cluster, size_t nbytes)
{
    int size = cluster;

    while (size > 1 && cuda_resident_clusters(kernel, THREADS, size, nbytes) < tiles)
        size--;
    return size > cluster / 2 ? size : cluster;
}

template <int DTYPE, int MN, int COLS, int GROUPS>
static gpunvme_ops_status_t launch(const skinny_work &work, int cluster, void *stream,
                                   struct cuda_launch *out)
{
    typedef shape<DTYPE, MN, COLS, GROUPS> s;
    const size_t nbytes = (size_t)WARPS * s::floats * sizeof(float);
    int64_t tiles = (work.w.lines + s::lines - 1) / s::lines * work.product.batch;
    const cuda_tiling tiling = {
        work.w_is_b ? COLS : s::lines, work.w_is_b ? s::lines : COLS, 0, 0, THREADS, nbytes};

    gpunvme_ops_status_t status =
        cuda_allow_shared((const void *)multiply<DTYPE, MN, COLS, GROUPS>, nbytes);

    if (status)
        return status;
    cluster =
        fitting_cluster((const void *)multiply<DTYPE, MN, COLS, GROUPS>, tiles, cluster, nbytes);
    if (out)
        return cuda_describe((const void *)multiply<DTYPE, MN, COLS, GROUPS>, &tiling,
                             tiles * cluster, out);
    LAUNCH_CLUSTERS((multiply<DTYPE, MN, COLS, GROUPS>), (unsigned)(tiles * cluster),
                    (unsigned)cluster, THREADS, nbytes, stream, work);
    return cuda_status(cudaGetLastError(), "launching a product of few rows");
}

template <int DTYPE, int MN, int COLS>
static gpunvme_ops_status_t launch_groups(const skinny_work &work, int groups, int cluster,
                                          void *stream, struct cuda_launch *out)
{
    if constexpr (DTYPE == GPUNVME_OPS_F32 && MN && COLS <= 4) {
        if (groups == 4)
            return launch<DTYPE, MN, COLS, 4>(work, cluster, stream, out);
        if (groups == 2)
            return launch<DTYPE, MN, COLS, 2>(work, cluster, stream, out);
    }
    return launch<DTYPE, MN, COLS, 1>(work, cluster, stream, out);
}

template <int DTYPE, int MN>
static gpunvme_ops_status_t launch_cols(const skinny_work &work, int groups, int cluster,
                                        void *stream, struct cuda_launch *out)
{
    const bool f32 = DTYPE == GPUNVME_OPS_F32;
    int64_t cols = work.x.lines;

    if constexpr (f32) {
        if (cols <= 1)
            return launch_groups<DTYPE, MN, 1>(work, groups, cluster, stream, out);
        if (cols <= 4)
            return launch_groups<DTYPE, MN, 4>(work, groups, cluster, stream, out);
    }
    return cols <= 8 ? launch<DTYPE, MN, 8, 1>(work, cluster, stream, out)
                     : launch<DTYPE, MN, 16, 1>(work, cluster, stream, out);
}

gpunvme_ops_status_t skinny_launch(const struct skinny_work *work, int groups, int cluster,
                                   void *stream, struct cuda_launch *out)
{
    int of_w = work->w_is_b && cuda_is_fp8(work->product.dtype) ? work->product.dtype_b
                                                                : work->product.dtype;

    if (of_w == GPUNVME_OPS_E4M3)
        return launch_cols<GPUNVME_OPS_E4M3, 0>(*work, groups, cluster, stream, out);
    if (of_w == GPUNVME_OPS_E5M2)
        return launch_cols<GPUNVME_OPS_E5M2, 0>(*work, groups, cluster, stream, out);
    switch (work->product.dtype * 2 + (work->w.step_k != 1)) {
    case GPUNVME_OPS_F32 * 2:
        return launch_cols<GPUNVME_OPS_F32, 0>(*work, groups, cluster, stream, out);
    case GPUNVME_OPS_F32 * 2 + 1:
        return launch_cols<GPUNVME_OPS_F32, 1>(*work, groups, cluster, stream, out);
    case GPUNVME_OPS_F16 * 2:
        return launch_cols<GPUNVME_OPS_F16, 0>(*work, groups, cluster, stream, out);
    case GPUNVME_OPS_F16 * 2 + 1:
        return launch_cols<GPUNVME_OPS_F16, 1>(*work, groups, cluster, stream, out);
    case GPUNVME_OPS_BF16 * 2:
        return launch_cols<GPUNVME_OPS_BF16, 0>(*work, groups, cluster, stream, out);
    default:
        return launch_cols<GPUNVME_OPS_BF16, 1>(*work, groups, cluster, stream, out);
    }
}
