/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Attention backwards, flash: tensor cores multiply (Dao et al., "FlashAttention", 2022). A block
 * keeps 64 keys and passes over the queries that see them once, 64 at a time. A warp makes the
 * weights and their gradients of 16 of the keys. All warps read them from shared memory, and each
 * adds up a quarter of the channels of all three gradients: those of keys in registers, that of
 * queries in global memory. Loads and products take turns.
 */
#include "ops/attention/cuda/mma_backward.cuh"

#define THREADS 128
#define WARPS   4
#define PARTS   4 /* of 16 rows, of a tile */

/* Of all 64 keys, in a warp's channels. */
template <int WIDTH> struct block_sums {
    float k[PARTS][WIDTH / WARPS / 2], v[PARTS][WIDTH / WARPS / 2];
};

/* sums += A B, of a part's 16 rows of A: those of a tile of weights, or (TURNED) its columns. */
template <int DTYPE, bool TURNED, int COUNT>
static __device__ __forceinline__ void add_product(float (&sums)[COUNT], uint32_t weights, int part,
                                                   uint32_t y, int chunk)
{
    int lane = threadIdx.x % 32;

#pragma unroll
    for (int k = 0; k < 64 / 16; k++) {
        uint32_t a[4];

        if (TURNED)
            load_matrices_transposed(
                a, place(weights, 16 * k + lane / 16 * 8 + lane % 8, 2 * part + lane / 8 % 2));
        else
            load_matrices(a, place(weights, 16 * part + lane % 16, 2 * k + lane / 16));
        multiply_columns<DTYPE>(sums, a, y, k, chunk);
    }
}

/* P^T and dS^T of a tile of queries, for all warps. */
template <int DTYPE, int WIDTH>
static __device__ __forceinline__ void show_weights(const cuda_backward &x, const tiles &t,
                                                    const walk &w)
{
    int row = threadIdx.x / 32 * 16;
    float p[32], ds[32];
    uint32_t fragments[4][4];

    make_weights<DTYPE, WIDTH>(x, t, w, row, p, ds);
    to_fragments<DTYPE>(p, fragments);
    show(t.p, row, fragments);
#pragma unroll
    for (int e = 0; e < 32; e++)
        ds[e] *= p[e];
    to_fragments<DTYPE>(ds, fragments);
    show(t.ds, row, fragments);
}

/* A warp's channels of dS K are added to the sums of this tile of queries: see sum_place(). */
template <int DTYPE, int WIDTH>
static __device__ __forceinline__ void add_queries(const tiles &t, float *to)
{
    const int own = WIDTH / WARPS;
    int lane = threadIdx.x % 32, first = threadIdx.x / 32 * own;

#pragma unroll
    for (int part = 0; part < PARTS; part++) {
        float sums[own / 2] = {};

        add_product<DTYPE, true>(sums, t.ds, part, t.k, first / 8);
#pragma unroll
        for (int j = 0; j < own / 8; j++)
            add_four(to + first / 64 * 4096 + ((first % 64 / 8 + j) * 128 + part * 32 + lane) * 4,
                     *(float4 *)&sums[4 * j]);
    }
}

template <int DTYPE, int WIDTH>
static __device__ __forceinline__ void do_queries(const cuda_backward &x, const tiles &t,
                                                  const walk &w, block_sums<WIDTH> &sums)
{
    int chunk = threadIdx.x / 32 * (WIDTH / WARPS / 8), query = w.tile * QUERIES;
    int64_t number = (w.head * x.q_room + query_room(x, w.b) + query) / QUERIES;

    __syncthreads(); /* nobody reads the tile before any more */
    bring_queries<WIDTH, THREADS>(x, t, w);
    cp_async_wait<0>();
    __syncthreads();
    show_weights<DTYPE, WIDTH>(x, t, w);
    if (x.turns && x.sums && !threadIdx.x)
        wait_for_count(x.turns + number, turn_of_tile(x, w.s, query, w.key, KEYS));
    __syncthreads();
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
        add_product<DTYPE, false>(sums.v[part], t.p, part, t.grad_out, chunk);
        add_product<DTYPE, false>(sums.k[part], t.ds, part, t.q, chunk);
    }
    if (!x.sums)
        return;
    add_queries<DTYPE, WIDTH>(t, x.sums + number * QUERIES * WIDTH);
    if (x.turns) {
        __threadfence();
        __syncthreads();
        if (!threadIdx.x)
            count_up(x.turns + number);
    }
}

template <int DTYPE, int WIDTH>
static __global__ void __launch_bounds__(THREADS, 2) differentiate(const cuda_backward x)
{
    __shared__ unsigned number;
    int c = threadIdx.x / 32 * (WIDTH / WARPS) + threadIdx.x % 4 * 2;
    tiles t = lay_out<WIDTH, 2>();
    block_sums<WIDTH> sums = {};
    walk w;

    wait_for_kernels_before();
    if (!threadIdx.x)
        number = number_block(x);
    __syncthreads();
    w = walk_of(x, number, KEYS, QUERIES);
    if (w.steps)
        bring_keys<WIDTH, THREADS>(x, t, w);
    for (; w.step < w.steps; next(w))
        do_queries<DTYPE, WIDTH>(x, t, w, sums);
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
        int key = w.key + part * 16 + threadIdx.x % 32 / 4;

        store_keys(x, w.s, w.b, w.kv_head, key, c, x.grad_k, x.f.dim, x.f.scale, x.grad_turned,
                   sums.k[part]);
        store_keys(x, w.s, w.b, w.kv_head, key, c, x.grad_v, x.f.dim_v, 1, NULL, sums.v[part]);
    }
}

template <int DTYPE, int WIDTH>
static gpunvme_ops_status_t launch(const struct cuda_backward *x, void *stream)
{
    const int nbytes = tiles_nbytes<WIDTH, 2>();
    int64_t blocks = (int64_t)((x->f.k_len + KEYS - 1) / KEYS) * x->f.kv_heads * x->f.batch;
    gpunvme_ops_status_t status =
        cuda_allow_shared((const void *)differentiate<DTYPE, WIDTH>, nbytes);

    if (status || !blocks)
        return status;
    LAUNCH_CLUSTERS((differentiate<DTYPE, WIDTH>), (unsigned)blocks, 1, THREADS, nbytes, stream,
                    *x);
    return cuda_attention_launched();
}

template <int DTYPE>
static gpunvme_ops_status_t launch_width(const struct cuda_backward *x, void *stream)
{
    return x->width == 64 ? launch<DTYPE, 64>(x, stream) : launch<DTYPE, 128>(x, stream);
}

gpunvme_ops_status_t cuda_backward_flash(const struct cuda_backward *x, void *stream)
{
    return x->f.dtype == GPUNVME_OPS_F16 ? launch_width<GPUNVME_OPS_F16>(x, stream)
                                         : launch_width<GPUNVME_OPS_BF16>(x, stream);
}
