/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Attention backwards by tensor cores (mma of 16-bit types), after Dao, "FlashAttention-2", 2023: a
 * block keeps 64 keys and values in shared memory and passes over the queries that see them, 64 at
 * a time. Each warp has 16 keys: it makes their scores again, transposed, so that P^T and dS^T are
 * in the registers that the products for grad_v and grad_k take, whose sums stay in registers. All
 * warps' dS go through shared memory to the product for grad_q, which is added to sums in global
 * memory. Rows of 256 channels are divided among two groups of warps, which both make the scores.
 *
 * Tiles are columns of 64 channels, rows of 128 bytes, swizzled as ops/hopper/tile.h has it.
 */
#include "ops/attention/cuda/backward.cuh"
#include "ops/hopper/tile.h"

#define KEYS    64
#define QUERIES 64

template <int WIDTH> struct shape {
    static const int groups = WIDTH == 256 ? 2 : 1; /* of four warps */
    static const int threads = groups * 128;
    static const int own = WIDTH / groups; /* channels of a group */
    static const int tile_nbytes = 64 * WIDTH * 2;
    static const int shared_nbytes = 4 * tile_nbytes + KEYS * QUERIES * 2 + 2 * QUERIES * 4 + 128;
};

/* Addresses in shared memory. */
struct tiles {
    uint32_t k, v, q, grad_out, ds, lse2, delta;
};

template <int WIDTH> static __device__ __forceinline__ tiles lay_out(void)
{
    const int nbytes = shape<WIDTH>::tile_nbytes;
    tiles t;

    t.k = (shared_address(dynamic_shared()) + 127) & ~127u;
    t.v = t.k + nbytes;
    t.q = t.v + nbytes;
    t.grad_out = t.q + nbytes;
    t.ds = t.grad_out + nbytes;
    t.lse2 = t.ds + KEYS * QUERIES * 2;
    t.delta = t.lse2 + QUERIES * 4;
    return t;
}

/* Where 16 bytes number `chunk` of a row of 64 are. */
static __device__ __forceinline__ uint32_t place(uint32_t tile, int row, int chunk)
{
    return tile + chunk / 8 * HOPPER_BLOCK + hopper_swizzle(row, chunk % 8 * 16);
}

/* 64 rows from row `first` on; zeros for rows and channels that are not there. */
template <int WIDTH>
static __device__ __forceinline__ void bring(uint32_t to, const uint16_t *rows, int64_t ld,
                                             int first, int len, int channels)
{
    const int chunks = WIDTH / 8, at_once = shape<WIDTH>::threads / chunks;
    int chunk = threadIdx.x % chunks, valid = (channels - chunk * 8) * 2;

    valid = valid < 0 ? 0 : valid < 16 ? valid : 16;
#pragma unroll
    for (int row = 0; row < 64; row += at_once) {
        int i = first + row + (int)threadIdx.x / chunks;
        bool there = i < len && valid;

        cp_async16(place(to, row + threadIdx.x / chunks, chunk),
                   there ? rows + i * ld + chunk * 8 : rows, there ? valid : 0);
    }
}

template <int DTYPE>
static __device__ __forceinline__ void mma(float *sums, const uint32_t (&a)[4], uint32_t b0,
                                           uint32_t b1)
{
    float(&d)[4] = *(float(*)[4])sums;

    if (DTYPE == GPUNVME_OPS_F16)
        mma_f16(d, a, b0, b1);
    else
        mma_bf16(d, a, b0, b1);
}

/* sums = X Y^T: 16 rows of X from `row` on by 64 of Y, both WIDTH channels wide. */
template <int DTYPE, int WIDTH>
static __device__ __forceinline__ void multiply_rows(float (&sums)[32], uint32_t x, int row,
                                                     uint32_t y)
{
    int lane = threadIdx.x % 32;

#pragma unroll
    for (int i = 0; i < 32; i++)
        sums[i] = 0;
#pragma unroll 4
    for (int k = 0; k < WIDTH / 16; k++) {
        uint32_t a[4], b[4];

        load_matrices(a, place(x, row + lane % 16, 2 * k + lane / 16));
#pragma unroll
        for (int n = 0; n < 4; n++) {
            load_matrices(b, place(y, 16 * n + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
            mma<DTYPE>(sums + 8 * n, a, b[0], b[1]);
            mma<DTYPE>(sums + 8 * n + 4, a, b[2], b[3]);
        }
    }
}

/* 16 of k: sums += A B, B rows 16 k … of a tile, columns from 8 * chunk on. */
template <int DTYPE, int COUNT>
static __device__ __forceinline__ void
multiply_columns(float (&sums)[COUNT], const uint32_t (&a)[4], uint32_t y, int k, int chunk)
{
    int lane = threadIdx.x % 32;

#pragma unroll
    for (int n = 0; n < COUNT / 8; n++) {
        uint32_t b[4];

        load_matrices_transposed(b, place(y, 16 * k + lane % 16, chunk + 2 * n + lane / 16));
        mma<DTYPE>(sums + 8 * n, a, b[0], b[1]);
        mma<DTYPE>(sums + 8 * n + 4, a, b[2], b[3]);
    }
}

/* This warp's dS^T, for all. */
static __device__ __forceinline__ void show(uint32_t ds, int row, const uint32_t (&fragments)[4][4])
{
    int lane = threadIdx.x % 32;

#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int k = 0; k < 4; k++)
            store_shared4(place(ds, row + lane / 4 + k % 2 * 8, 2 * i + k / 2) + lane % 4 * 4,
                          fragments[i][k]);
}

/* A warp's 16 queries of dS K, piece by piece, are added to the sums of this tile of queries. */
template <int DTYPE, int WIDTH>
static __device__ __forceinline__ void add_queries(const tiles &t, float *to)
{
    const int pieces = shape<WIDTH>::own / 64;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, group = threadIdx.x / 128;

#pragma unroll
    for (int i = 0; i < pieces; i++) {
        int piece = group * pieces + i;
        float sums[32] = {};

#pragma unroll
        for (int k = 0; k < KEYS / 16; k++) {
            uint32_t a[4];

            load_matrices_transposed(
                a, place(t.ds, 16 * k + lane / 16 * 8 + lane % 8, 2 * warp + lane / 8 % 2));
            multiply_columns<DTYPE>(sums, a, t.k, k, piece * 8);
        }
#pragma unroll
        for (int j = 0; j < 8; j++)
            add_four(to + piece * 4096 + (j * 128 + threadIdx.x % 128) * 4,
                     *(float4 *)&sums[4 * j]);
    }
}

template <int DTYPE, int WIDTH> struct block_sums {
    float k[shape<WIDTH>::own / 2], v[shape<WIDTH>::own / 2];
};

template <int WIDTH>
static __device__ __forceinline__ void bring_queries(const cuda_backward &x, const tiles &t,
                                                     const walk &w)
{
    int query = w.tile * QUERIES;
    int64_t row = w.head * x.q_room + query_room(x, w.b) + query;

    bring<WIDTH>(t.q, tile_rows(x, BACKWARD_Q, w.s, w.b, w.head), x.operands[BACKWARD_Q].rows.row,
                 query, w.s.q_len, tile_channels(x, BACKWARD_Q));
    bring<WIDTH>(t.grad_out, tile_rows(x, BACKWARD_GRAD_OUT, w.s, w.b, w.head),
                 x.operands[BACKWARD_GRAD_OUT].rows.row, query, w.s.q_len,
                 tile_channels(x, BACKWARD_GRAD_OUT));
    if (threadIdx.x < 32) {
        int four = threadIdx.x % 16 * 4;

        cp_async16((threadIdx.x < 16 ? t.lse2 : t.delta) + four * 4,
                   (threadIdx.x < 16 ? x.lse2 : x.delta) + row + four, 16);
    }
    cp_async_commit();
}

template <int WIDTH>
static __device__ __forceinline__ void bring_keys(const cuda_backward &x, const tiles &t,
                                                  const walk &w)
{
    bring<WIDTH>(t.k, tile_rows(x, BACKWARD_K, w.s, w.b, w.kv_head),
                 x.operands[BACKWARD_K].rows.row, w.key, w.s.k_len, tile_channels(x, BACKWARD_K));
    bring<WIDTH>(t.v, tile_rows(x, BACKWARD_V, w.s, w.b, w.kv_head),
                 x.operands[BACKWARD_V].rows.row, w.key, w.s.k_len, tile_channels(x, BACKWARD_V));
}

/* P^T and dS^T of a tile of queries, and what they add to the block's sums. */
template <int DTYPE, int WIDTH>
static __device__ __forceinline__ void do_queries(const cuda_backward &x, const tiles &t,
                                                  const walk &w, block_sums<DTYPE, WIDTH> &sums)
{
    int lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16, group = threadIdx.x / 128;
    int query = w.tile * QUERIES;
    tile_place place = {w.key + row + lane / 4, query + lane % 4 * 2,
                        tile_masked(x, w.s, w.key, KEYS, query, QUERIES)};
    float p[32], ds[32];
    uint32_t fragments[4][4];

    multiply_rows<DTYPE, WIDTH>(p, t.k, row, t.q);
    multiply_rows<DTYPE, WIDTH>(ds, t.v, row, t.grad_out);
    subtract_deltas(ds, t.delta + lane % 4 * 8);
    if (x.f.softcap > 0)
        cap(x, p, ds);
    weigh(x, w.s, p, place, t.lse2 + lane % 4 * 8);
    to_fragments<DTYPE>(p, fragments);
#pragma unroll
    for (int k = 0; k < QUERIES / 16; k++)
        multiply_columns<DTYPE>(sums.v, fragments[k], t.grad_out, k, group * 16);
#pragma unroll
    for (int e = 0; e < 32; e++)
        ds[e] *= p[e];
    to_fragments<DTYPE>(ds, fragments);
    if (!group)
        show(t.ds, row, fragments);
#pragma unroll
    for (int k = 0; k < QUERIES / 16; k++)
        multiply_columns<DTYPE>(sums.k, fragments[k], t.q, k, group * 16);
}

/* All tiles of queries. */
template <int DTYPE, int WIDTH>
static __device__ __forceinline__ void do_all(const cuda_backward &x, const tiles &t, walk w,
                                              block_sums<DTYPE, WIDTH> &sums)
{
    bring_keys<WIDTH>(x, t, w);
    bring_queries<WIDTH>(x, t, w);
    while (w.step < w.steps) {
        int query = w.tile * QUERIES;
        int64_t number = (w.head * x.q_room + query_room(x, w.b) + query) / QUERIES;

        cp_async_wait<0>();
        __syncthreads();
        do_queries<DTYPE, WIDTH>(x, t, w, sums);
        if (x.turns && x.sums && !threadIdx.x)
            wait_for_count(x.turns + number, turn_of_tile(x, w.s, query, w.key, KEYS));
        __syncthreads();
        next(w);
        if (w.step < w.steps)
            bring_queries<WIDTH>(x, t, w);
        if (!x.sums)
            continue;
        add_queries<DTYPE, WIDTH>(t, x.sums + number * QUERIES * WIDTH);
        if (x.turns) {
            __threadfence();
            __syncthreads();
            if (!threadIdx.x)
                count_up(x.turns + number);
        }
    }
}

template <int DTYPE, int WIDTH>
static __global__ void __launch_bounds__(shape<WIDTH>::threads, WIDTH == 256 ? 1 : 2)
    differentiate(const cuda_backward x)
{
    __shared__ unsigned number;
    int c = threadIdx.x / 128 * shape<WIDTH>::own + threadIdx.x % 4 * 2, key;
    tiles t = lay_out<WIDTH>();
    block_sums<DTYPE, WIDTH> sums = {};
    walk w;

    wait_for_kernels_before();
    if (!threadIdx.x)
        number = number_block(x);
    __syncthreads();
    w = walk_of(x, number, KEYS, QUERIES);
    if (w.steps)
        do_all(x, t, w, sums);
    key = w.key + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
    store_keys(x, w.s, w.b, w.kv_head, key, c, x.grad_k, x.f.dim, x.f.scale, x.grad_turned, sums.k);
    store_keys(x, w.s, w.b, w.kv_head, key, c, x.grad_v, x.f.dim_v, 1, NULL, sums.v);
}

template <int DTYPE, int WIDTH>
static gpunvme_ops_status_t launch(const struct cuda_backward *x, void *stream)
{
    int64_t blocks = (int64_t)((x->f.k_len + KEYS - 1) / KEYS) * x->f.kv_heads * x->f.batch;
    gpunvme_ops_status_t status =
        cuda_allow_shared((const void *)differentiate<DTYPE, WIDTH>, shape<WIDTH>::shared_nbytes);

    if (status || !blocks)
        return status;
    LAUNCH_CLUSTERS((differentiate<DTYPE, WIDTH>), (unsigned)blocks, 1, shape<WIDTH>::threads,
                    shape<WIDTH>::shared_nbytes, stream, *x);
    return cuda_attention_launched();
}

template <int DTYPE>
static gpunvme_ops_status_t launch_width(const struct cuda_backward *x, void *stream)
{
    switch (x->width) {
    case 64:
        return launch<DTYPE, 64>(x, stream);
    case 128:
        return launch<DTYPE, 128>(x, stream);
    default:
        return launch<DTYPE, 256>(x, stream);
    }
}

gpunvme_ops_status_t cuda_backward_flash2(const struct cuda_backward *x, void *stream)
{
    return x->f.dtype == GPUNVME_OPS_F16 ? launch_width<GPUNVME_OPS_F16>(x, stream)
                                         : launch_width<GPUNVME_OPS_BF16>(x, stream);
}
