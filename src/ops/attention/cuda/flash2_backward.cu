/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Attention backwards by tensor cores (mma of 16-bit types), after Dao, "FlashAttention-2", 2023: a
 * block keeps 64 keys and values in shared memory and passes over the queries that see them, 64 at
 * a time. Each warp has 16 keys: it makes their scores again, transposed, so that P^T and dS^T are
 * in the registers that the products for grad_v and grad_k take, whose sums stay in registers. All
 * warps' dS go through shared memory to the product for grad_q, which is added to sums in global
 * memory. Rows of 256 channels are divided among two groups of warps, which both make the scores.
 */
#include "ops/attention/cuda/mma_backward.cuh"

template <int WIDTH> struct shape {
    static const int groups = WIDTH == 256 ? 2 : 1; /* of four warps */
    static const int threads = groups * 128;
    static const int own = WIDTH / groups; /* channels of a group */
    static const int shared_nbytes = tiles_nbytes<WIDTH, 1>();
};

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

/* P^T and dS^T of a tile of queries, and what they add to the block's sums. */
template <int DTYPE, int WIDTH>
static __device__ __forceinline__ void do_queries(const cuda_backward &x, const tiles &t,
                                                  const walk &w, block_sums<DTYPE, WIDTH> &sums)
{
    int row = threadIdx.x / 32 % 4 * 16, group = threadIdx.x / 128;
    float p[32], ds[32];
    uint32_t fragments[4][4];

    make_weights<DTYPE, WIDTH>(x, t, w, row, p, ds);
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
    bring_keys<WIDTH, shape<WIDTH>::threads>(x, t, w);
    bring_queries<WIDTH, shape<WIDTH>::threads>(x, t, w);
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
            bring_queries<WIDTH, shape<WIDTH>::threads>(x, t, w);
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
    tiles t = lay_out<WIDTH, 1>();
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
