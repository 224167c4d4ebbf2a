/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Products of all experts in one launch, on tensor cores by mma: the tiles of matmul's rung
 * "tensorcore". A block finds its expert by the numbers of slots, which only the device knows:
 * there are as many blocks as any choice could need, and those left over end at once. Rows are read
 * where they lie, by the list of slots, and written there.
 */
#include "ops/matmul/tensorcore.cuh"
#include "ops/moe/tile.cuh"

#define TILE    TENSORCORE_TILE
#define STAGES  TENSORCORE_STAGES
#define THREADS TENSORCORE_THREADS
#define OUT_LD  TENSORCORE_OUT_LD

/* One thread's share of an operand's tile. */
template <int DTYPE, int MN> struct share {
    const unsigned char *from[COPIES]; /* k contiguous: lines, at this thread's part; else row 0 */
    int valid[COPIES];                 /* elements of a vector that there are, k aside */
    int64_t ld;                        /* else: bytes from row to row */
    const int32_t *order;              /* else: slots whose rows they are, or NULL: rows of k */
    uint32_t per_token;
    int64_t k; /* how much of it there is */
    int at;    /* of a stage's k: where this thread begins */
    uint32_t to;
    bool vectors;
};

/* What a share is of: rows of slots, or of an expert's matrix. */
struct source {
    const unsigned char *data;
    int64_t ld; /* in elements */
    const int32_t *order;
    uint32_t per_token;
    bool vectors;
};

static __device__ __forceinline__ int64_t row_of(const source &x, int64_t i)
{
    return x.order ? (uint32_t)x.order[i] / x.per_token : i;
}

/* Lines `first` and on, of which there are `lines`; each of `k` elements. */
template <int DTYPE>
static __device__ __forceinline__ share<DTYPE, 0> share_of_lines(const source &x, int64_t first,
                                                                 int64_t lines, int64_t k)
{
    typedef traits<DTYPE> t;
    const int rows = rows_of_copy<DTYPE, 0>();
    int row = threadIdx.x / (THREADS / rows), chunk = threadIdx.x % (THREADS / rows);
    share<DTYPE, 0> s;

    s.k = k;
    s.at = chunk * t::chunk;
    s.to = place<DTYPE, 0>(row, chunk);
    s.vectors = x.vectors;
#pragma unroll
    for (int i = 0; i < COPIES; i++) {
        int64_t line = first + row + i * rows;
        bool there = line < lines;

        s.valid[i] = there ? t::chunk : 0;
        s.from[i] = x.data + ((there ? row_of(x, line) : 0) * x.ld + (there ? s.at : 0)) * t::size;
    }
    return s;
}

/* Rows of `lines` elements, `k` of them, of which elements `first` and on are the tile's. */
template <int DTYPE>
static __device__ __forceinline__ share<DTYPE, 1> share_of_rows(const source &x, int64_t first,
                                                                int64_t lines, int64_t k)
{
    typedef traits<DTYPE> t;
    const int rows = rows_of_copy<DTYPE, 1>();
    int row = threadIdx.x / (THREADS / rows), chunk = threadIdx.x % (THREADS / rows);
    int64_t line = first + chunk * t::chunk, left = lines - line;
    share<DTYPE, 1> s;

    s.k = k;
    s.at = row;
    s.to = place<DTYPE, 1>(row, chunk);
    s.vectors = x.vectors;
    s.ld = x.ld * t::size;
    s.order = x.order;
    s.per_token = x.per_token;
    s.valid[0] = left <= 0 ? 0 : left < t::chunk ? (int)left : t::chunk;
    s.from[0] = x.data + (left > 0 ? line : 0) * t::size;
    return s;
}

template <int DTYPE>
static __device__ __forceinline__ void copy_vector(uint32_t to, const unsigned char *from,
                                                   int valid, bool vectors)
{
    if (vectors)
        cp_async16(to, from, valid * traits<DTYPE>::size);
    else if (traits<DTYPE>::f32)
        gather32(to, from, valid);
    else
        gather16(to, from, valid);
}

/* Elements `k` of it and on to a stage, zeros where there are none. */
template <int DTYPE>
static __device__ __forceinline__ void bring(uint32_t stage, const share<DTYPE, 0> &s, int64_t k)
{
    const uint32_t next = place<DTYPE, 0>(rows_of_copy<DTYPE, 0>(), 0) - place<DTYPE, 0>(0, 0);
    int64_t left = s.k - k - s.at;

#pragma unroll
    for (int i = 0; i < COPIES; i++) {
        int valid = left <= 0 ? 0 : left < s.valid[i] ? (int)left : s.valid[i];

        copy_vector<DTYPE>(stage + s.to + i * next,
                           s.from[i] + (valid ? k * traits<DTYPE>::size : 0), valid, s.vectors);
    }
}

template <int DTYPE>
static __device__ __forceinline__ void bring(uint32_t stage, const share<DTYPE, 1> &s, int64_t k)
{
    const int rows = rows_of_copy<DTYPE, 1>();
    const uint32_t next = place<DTYPE, 1>(rows, 0) - place<DTYPE, 1>(0, 0);

#pragma unroll
    for (int i = 0; i < COPIES; i++) {
        int64_t at = k + s.at + i * rows, row = at < s.k ? at : 0;
        int valid = at < s.k ? s.valid[0] : 0;

        if (s.order && valid)
            row = (uint32_t)s.order[row] / s.per_token;
        copy_vector<DTYPE>(stage + s.to + i * next, s.from[0] + (valid ? row * s.ld : 0), valid,
                           s.vectors);
    }
}

/* The sums of a tile: of this warp 64 rows from `row` on, and 32 columns from `col` on. */
template <int DTYPE, int MN_A, int MN_B>
static __device__ __forceinline__ void sum_tile(float (&sums)[4][4][4], unsigned char *memory,
                                                const share<DTYPE, MN_A> &a,
                                                const share<DTYPE, MN_B> &b, int row, int col)
{
    const int depth = traits<DTYPE>::depth;
    const uint32_t a_nbytes = tensorcore_nbytes(DTYPE == GPUNVME_OPS_F32, MN_A);
    const uint32_t nbytes = a_nbytes + tensorcore_nbytes(DTYPE == GPUNVME_OPS_F32, MN_B);
    uint32_t base = shared_address(memory);
    int64_t steps = (a.k + depth - 1) / depth;

    for (int64_t step = 1 - STAGES; step < steps; step++) {
        int64_t next = step + STAGES - 1;

        if (step >= 0) {
            cp_async_wait<STAGES - 2>();
            __syncthreads();
        }
        if (next < steps) {
            uint32_t to = base + (uint32_t)(next % STAGES) * nbytes;

            bring(to, a, next * depth);
            bring(to + a_nbytes, b, next * depth);
        }
        cp_async_commit();
        if (step >= 0) {
            unsigned char *from = memory + (uint32_t)(step % STAGES) * nbytes;

            multiply_stage<DTYPE, MN_A, MN_B>(sums, from, from + a_nbytes, row, col);
        }
    }
}

/*
 * A tile of `rows` x `cols` sums goes through shared memory, 64 rows at a time. begin(i) is where
 * row i of C begins.
 */
template <typename BEGIN>
static __device__ __forceinline__ void
store_tile(float *out, const float (&sums)[4][4][4], int row, int col, int64_t rows, int64_t cols,
           void *c, int dtype, int accumulate, bool vectors, BEGIN begin)
{
#pragma unroll 1
    for (int part = 0; part < TILE; part += 64) {
        share_sums(out, sums, part, row, col);
#pragma unroll 1
        for (int v = threadIdx.x; v < 64 * TILE / 4; v += THREADS) {
            int i = v / (TILE / 4), j = v % (TILE / 4) * 4;

            if (part + i < rows && j < cols)
                store_sums(c, begin(part + i) + j, dtype, accumulate, vectors,
                           cols - j < 4 ? (int)(cols - j) : 4, out + i * OUT_LD + j);
        }
    }
    __syncthreads(); /* nobody reads this tile's memory any more */
}

/* The vectors of a kernel's operands and results, which the host has looked at. */
struct aligned {
    bool a, b, c;
};

template <int DTYPE, int MN_B>
static __global__ void __launch_bounds__(THREADS, 2)
    multiply_experts(const moe_product x, const aligned vectors)
{
    unsigned char *memory = dynamic_shared();
    int warp = threadIdx.x / 32, row = warp / 4 * 64, col = warp % 4 * 32;
    int64_t across = (x.n + TILE - 1) / TILE;
    moe_tile at;

    for (int64_t i = blockIdx.x; moe_find_tile(x.slots, i, TILE, TILE, across, at);
         i += gridDim.x) {
        const int32_t *order = x.slots.order + at.first;
        const source a = {(const unsigned char *)x.a.data, x.a.ld, order, (uint32_t)x.a.per_token,
                          vectors.a};
        const source b = {(const unsigned char *)x.b + at.expert * x.stride_b * traits<DTYPE>::size,
                          x.ld_b, NULL, 1, vectors.b};
        share<DTYPE, 0> lines = share_of_lines<DTYPE>(a, at.row, at.slots, x.k);
        float sums[4][4][4] = {};

        if constexpr (MN_B)
            sum_tile<DTYPE, 0, 1>(sums, memory, lines, share_of_rows<DTYPE>(b, at.col, x.n, x.k),
                                  row, col);
        else
            sum_tile<DTYPE, 0, 0>(sums, memory, lines, share_of_lines<DTYPE>(b, at.col, x.n, x.k),
                                  row, col);
        store_tile((float *)memory, sums, row, col, at.slots - at.row, x.n - at.col, x.c, x.c_dtype,
                   x.accumulate, vectors.c,
                   [&](int line) { return order[at.row + line] * x.n + at.col; });
    }
}

template <int DTYPE>
static __global__ void __launch_bounds__(THREADS, 2)
    differentiate_experts(const moe_gradient x, const aligned vectors)
{
    unsigned char *memory = dynamic_shared();
    int warp = threadIdx.x / 32, row = warp / 4 * 64, col = warp % 4 * 32;
    int64_t across = (x.n + TILE - 1) / TILE, down = (x.m + TILE - 1) / TILE;

    for (int64_t i = blockIdx.x; i < across * down * x.slots.experts; i += gridDim.x) {
        int64_t expert = i / (across * down), first = x.slots.starts[expert];
        int64_t slots = x.slots.starts[expert + 1] - first;
        int64_t at_row = i / across % down * TILE, at_col = i % across * TILE;
        const int32_t *order = x.slots.order + first;
        const source a = {(const unsigned char *)x.a.data, x.a.ld, order, (uint32_t)x.a.per_token,
                          vectors.a};
        const source b = {(const unsigned char *)x.b.data, x.b.ld, order, (uint32_t)x.b.per_token,
                          vectors.b};
        float sums[4][4][4] = {};

        if (!slots && x.accumulate)
            continue;
        sum_tile<DTYPE, 1, 1>(sums, memory, share_of_rows<DTYPE>(a, at_row, x.m, slots),
                              share_of_rows<DTYPE>(b, at_col, x.n, slots), row, col);
        store_tile((float *)memory, sums, row, col, x.m - at_row, x.n - at_col, x.c, x.c_dtype,
                   x.accumulate, vectors.c, [&](int line) {
                       return expert * x.stride_c + (at_row + line) * x.ldc + at_col;
                   });
    }
}

static bool by_vectors(const void *data, int64_t ld, int64_t stride, int dtype, int nbytes)
{
    int64_t n = nbytes / (int64_t)gpunvme_ops_dtype_nbytes(dtype);

    return (uintptr_t)data % (unsigned)nbytes == 0 && ld % n == 0 && stride % n == 0;
}

static size_t shared_nbytes(int dtype, int mn_a, int mn_b)
{
    int f32 = dtype == GPUNVME_OPS_F32;

    return STAGES * (tensorcore_nbytes(f32, mn_a) + tensorcore_nbytes(f32, mn_b));
}

#define LAUNCH_ALLOWED(kernel, blocks, nbytes, stream, ...)                                        \
    do {                                                                                           \
        gpunvme_ops_status_t status_ = cuda_allow_shared((const void *)kernel, nbytes);            \
                                                                                                   \
        if (status_)                                                                               \
            return status_;                                                                        \
        LAUNCH_SHARED(kernel, blocks, THREADS, nbytes, stream, __VA_ARGS__);                       \
    } while (0)

/* A choice fills so many tiles at most: each expert that is chosen may have one that is not full.
 */
gpunvme_ops_status_t moe_multiply_grouped(const struct moe_product *x, void *copies, void *stream)
{
    int64_t slots = x->slots.slots, experts = x->slots.experts;
    int64_t down = slots / TILE + (experts < slots ? experts : slots);
    unsigned blocks = rows_blocks(down * ((x->n + TILE - 1) / TILE));
    size_t nbytes = shared_nbytes(x->dtype, 0, !x->transposed);
    const aligned vectors = {
        by_vectors(x->a.data, x->a.ld, 0, x->dtype, 16),
        by_vectors(x->b, x->ld_b, x->stride_b, x->dtype, 16),
        by_vectors(x->c, x->n, 0, x->c_dtype, 4 * (int)gpunvme_ops_dtype_nbytes(x->c_dtype))};

#define MULTIPLY(dtype)                                                                            \
    do {                                                                                           \
        if (x->transposed)                                                                         \
            LAUNCH_ALLOWED((multiply_experts<dtype, 0>), blocks, nbytes, stream, *x, vectors);     \
        else                                                                                       \
            LAUNCH_ALLOWED((multiply_experts<dtype, 1>), blocks, nbytes, stream, *x, vectors);     \
    } while (0)

    if (x->dtype == GPUNVME_OPS_F32)
        MULTIPLY(GPUNVME_OPS_F32);
    else if (x->dtype == GPUNVME_OPS_F16)
        MULTIPLY(GPUNVME_OPS_F16);
    else
        MULTIPLY(GPUNVME_OPS_BF16);
    return cuda_status(cudaGetLastError(), "launching experts' products");
}

gpunvme_ops_status_t moe_differentiate_grouped(const struct moe_gradient *x, void *copies,
                                               void *stream)
{
    int64_t tiles = ((x->n + TILE - 1) / TILE) * ((x->m + TILE - 1) / TILE) * x->slots.experts;
    unsigned blocks = rows_blocks(tiles);
    size_t nbytes = shared_nbytes(x->dtype, 1, 1);
    const aligned vectors = {by_vectors(x->a.data, x->a.ld, 0, x->dtype, 16),
                             by_vectors(x->b.data, x->b.ld, 0, x->dtype, 16),
                             by_vectors(x->c, x->ldc, x->stride_c, x->c_dtype,
                                        4 * (int)gpunvme_ops_dtype_nbytes(x->c_dtype))};

    (void)copies;
    if (x->dtype == GPUNVME_OPS_F32)
        LAUNCH_ALLOWED((differentiate_experts<GPUNVME_OPS_F32>), blocks, nbytes, stream, *x,
                       vectors);
    else if (x->dtype == GPUNVME_OPS_F16)
        LAUNCH_ALLOWED((differentiate_experts<GPUNVME_OPS_F16>), blocks, nbytes, stream, *x,
                       vectors);
    else
        LAUNCH_ALLOWED((differentiate_experts<GPUNVME_OPS_BF16>), blocks, nbytes, stream, *x,
                       vectors);
    return cuda_status(cudaGetLastError(), "launching experts' gradients");
}
