/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Rung 3, flash: tensor cores multiply (Dao et al., "FlashAttention", 2022). A block makes 64
 * queries of a head and passes over the keys once, 64 of them at a time. Its four warps split a
 * tile's work: each has the scores of 16 of the keys, and then a quarter of the result's channels,
 * so the largest scores and the weights go from warp to warp through shared memory. Rows of Q and K
 * are turned as they come.
 */
#include "ops/attention/cuda/mma.cuh"

#define THREADS 128
#define WARPS   4
#define ROWS    64
#define PARTS   (ROWS / 16)
#define COLS    (MMA_KEYS / WARPS) /* keys of a warp */

/* Shared memory: Q; K, then V; weights; each warp's largest score, later its weights' sum, of rows.
 */
template <int D> struct memory {
    static const uint32_t q = 0, kv = ROWS * D * 2, weights = kv + MMA_KEYS * D * 2;
    static const uint32_t tops = weights + ROWS * MMA_KEYS * 2;
    static const uint32_t nbytes = tops + WARPS * ROWS * 4;
};

struct work {
    cuda_sequence s;
    int head, kv_head, first; /* of the queries */
};

/* What a warp has: the result's channels from D / 4 * warp on, and sums of its keys' weights. */
template <int D> struct sums {
    float out[PARTS][D / 32][4];
    float most[PARTS][2], weight[PARTS][2];
};

typedef float score_cols[PARTS][COLS / 8][4];

static __host__ __device__ __forceinline__ int64_t tiles_of(const cuda_attention &x)
{
    return ((int64_t)x.q_len + ROWS - 1) / ROWS;
}

static __device__ __forceinline__ work work_of(const cuda_attention &x, int64_t item)
{
    int64_t head = item / tiles_of(x);
    work w = {sequence_of(x, (int)(head / x.heads)), (int)(head % x.heads), 0,
              (int)(item % tiles_of(x)) * ROWS};

    w.kv_head = w.head / x.group;
    return w;
}

static __device__ __forceinline__ int warp_of_thread(void)
{
    return threadIdx.x / 32;
}

/* The row of a tile that element 2 * h of a fragment's part m is in. */
static __device__ __forceinline__ int row_of(int m, int h)
{
    return m * 16 + h * 8 + threadIdx.x % 32 / 4;
}

template <int D>
static __device__ __forceinline__ void bring_keys(uint32_t tile, const cuda_attention &x,
                                                  const work &w, int j)
{
    tile_rows rows = keys_from(x, x.k, x.dim, w.s, j, w.kv_head);

    if (x.rope.dim && !x.rope.queries_only)
        bring_turned<D, MMA_KEYS, THREADS>(tile, rows, x.rope, x.dtype, j);
    else
        bring_tile<D, MMA_KEYS, THREADS>(tile, rows);
}

/* What was begun to be copied is there, for all threads. */
static __device__ __forceinline__ void wait_for_tile(void)
{
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
}

template <int D, int DTYPE>
static __device__ __forceinline__ void multiply_keys(score_cols &s, uint32_t q, uint32_t tile)
{
#pragma unroll 4
    for (int c = 0; c < D / 8; c += 2) {
        uint32_t b[4];

        take_keys<D>(b, tile, warp_of_thread() * COLS, c);
#pragma unroll
        for (int m = 0; m < PARTS; m++) {
            uint32_t a[4];

            take_rows<D>(a, q, m * 16, c);
            mma16<DTYPE>(s[m][0], a, b[0], b[1]);
            mma16<DTYPE>(s[m][1], a, b[2], b[3]);
        }
    }
}

/* Scores in units of log 2, -infinity where a query does not see a key. */
static __device__ __forceinline__ void finish_scores(score_cols &s, const cuda_attention &x,
                                                     const work &w, int j)
{
    float unit = unit_of(x);

    j += warp_of_thread() * COLS + threadIdx.x % 4 * 2;
#pragma unroll
    for (int m = 0; m < PARTS; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            cuda_range keys = keys_of(x, w.s, w.first + row_of(m, h));

#pragma unroll
            for (int n = 0; n < COLS / 8; n++) {
                float *z = &s[m][n][2 * h];

                z[0] = needs_preparing(x) ? prepared(x, z[0]) : z[0] * unit;
                z[1] = needs_preparing(x) ? prepared(x, z[1]) : z[1] * unit;
                mask_row(z[0], z[1], keys, j + n * 8);
            }
        }
}

/* One number for each row of this warp, of `all` warps' WARPS x ROWS. */
static __device__ __forceinline__ void show(float *all, int m, int h, float z)
{
    if (threadIdx.x % 4 == 0)
        all[warp_of_thread() * ROWS + row_of(m, h)] = z;
}

static __device__ __forceinline__ void show_tops(float *tops, const score_cols &s)
{
#pragma unroll
    for (int m = 0; m < PARTS; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float top = -INFINITY;

#pragma unroll
            for (int n = 0; n < COLS / 8; n++)
                top = fmaxf(top, fmaxf(s[m][n][2 * h], s[m][n][2 * h + 1]));
            show(tops, m, h, warp_max<4>(top));
        }
}

/* Sums are scaled to the largest score that all warps have, and scores become weights. */
template <int D>
static __device__ __forceinline__ void weigh(sums<D> &t, score_cols &s, const float *tops)
{
#pragma unroll
    for (int m = 0; m < PARTS; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float most = t.most[m][h], scale;

#pragma unroll
            for (int warp = 0; warp < WARPS; warp++)
                most = fmaxf(most, tops[warp * ROWS + row_of(m, h)]);
            scale = fast_exp2(t.most[m][h] - shift_of(most));
            t.most[m][h] = most;
            t.weight[m][h] *= scale;
#pragma unroll
            for (int c = 0; c < D / 32; c++) {
                t.out[m][c][2 * h] *= scale;
                t.out[m][c][2 * h + 1] *= scale;
            }
#pragma unroll
            for (int n = 0; n < COLS / 8; n++)
#pragma unroll
                for (int e = 2 * h; e < 2 * h + 2; e++) {
                    s[m][n][e] = fast_exp2(s[m][n][e] - shift_of(most));
                    t.weight[m][h] += s[m][n][e];
                }
        }
}

template <int DTYPE>
static __device__ __forceinline__ void store_weights(unsigned char *tile, const score_cols &s)
{
#pragma unroll
    for (int m = 0; m < PARTS; m++)
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int n = 0; n < COLS / 8; n++)
                *(uint32_t *)(tile + tile_place<MMA_KEYS>(row_of(m, h), warp_of_thread() * 2 + n) +
                              threadIdx.x % 4 * 4) =
                    to_pair(s[m][n][2 * h], s[m][n][2 * h + 1], DTYPE);
}

template <int D, int DTYPE>
static __device__ __forceinline__ void multiply_values(sums<D> &t, uint32_t weights, uint32_t tile)
{
#pragma unroll
    for (int k = 0; k < MMA_KEYS / 8; k += 2) {
        uint32_t a[PARTS][4];

#pragma unroll
        for (int m = 0; m < PARTS; m++)
            take_rows<MMA_KEYS>(a[m], weights, m * 16, k);
#pragma unroll
        for (int c = 0; c < D / 32; c += 2) {
            uint32_t b[4];

            take_values<D>(b, tile, k * 8, warp_of_thread() * (D / 32) + c);
#pragma unroll
            for (int m = 0; m < PARTS; m++) {
                mma16<DTYPE>(t.out[m][c], a[m], b[0], b[1]);
                mma16<DTYPE>(t.out[m][c + 1], a[m], b[2], b[3]);
            }
        }
    }
}

template <int D, int DTYPE>
static __device__ __forceinline__ void add_tile(const cuda_attention &x, const work &w,
                                                unsigned char *all, int j, sums<D> &t)
{
    typedef memory<D> in;
    uint32_t base = shared_address(all);
    float *tops = (float *)(all + in::tops);
    score_cols s = {};

    __syncthreads(); /* nobody reads the tile before any more */
    bring_keys<D>(base + in::kv, x, w, j);
    wait_for_tile();
    multiply_keys<D, DTYPE>(s, base + in::q, base + in::kv);
    finish_scores(s, x, w, j);
    show_tops(tops, s);
    __syncthreads();
    bring_tile<D, MMA_KEYS, THREADS>(base + in::kv, keys_from(x, x.v, x.dim_v, w.s, j, w.kv_head));
    weigh<D>(t, s, tops);
    store_weights<DTYPE>(all + in::weights, s);
    wait_for_tile();
    multiply_values<D, DTYPE>(t, base + in::weights, base + in::kv);
}

template <int D>
static __device__ __forceinline__ void store(const cuda_attention &x, const work &w, float *all,
                                             sums<D> &t)
{
    __syncthreads();
#pragma unroll
    for (int m = 0; m < PARTS; m++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            show(all, m, h, warp_sum<4>(t.weight[m][h]));
    __syncthreads();
#pragma unroll
    for (int m = 0; m < PARTS; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int row = row_of(m, h), i = w.first + row;
            int64_t at = query_at(x.out, w.s, i, w.head);
            float weight = 0;
            row_result r;

            if (i >= w.s.q_len)
                continue;
            for (int warp = 0; warp < WARPS; warp++)
                weight += all[warp * ROWS + row];
            r = result_of(x, w.head, t.most[m][h], weight);
#pragma unroll
            for (int c = 0; c < D / 32; c++)
                store_two(x, at, warp_of_thread() * (D / 4) + c * 8 + threadIdx.x % 4 * 2,
                          t.out[m][c][2 * h] * r.scale, t.out[m][c][2 * h + 1] * r.scale);
            if (x.lse.data && threadIdx.x % 4 == 0 && !warp_of_thread())
                ((float *)x.lse.data)[query_at(x.lse, w.s, i, w.head)] = r.lse;
        }
}

template <int D, int DTYPE>
static __device__ __forceinline__ void make(const cuda_attention &x, const work &w,
                                            unsigned char *all)
{
    int last = w.first + ROWS < w.s.q_len ? w.first + ROWS - 1 : w.s.q_len - 1;
    int end = keys_of(x, w.s, last).end;
    sums<D> t = {};

#pragma unroll
    for (int m = 0; m < PARTS; m++)
        t.most[m][0] = t.most[m][1] = -INFINITY;
    bring_queries<D, ROWS, THREADS>(shared_address(all), x, w.s, w.first, w.head);
    for (int j = keys_of(x, w.s, w.first).first; j < end; j += MMA_KEYS)
        add_tile<D, DTYPE>(x, w, all, j, t);
    store<D>(x, w, (float *)(all + memory<D>::tops), t);
}

template <int D, int DTYPE>
static __global__ void __launch_bounds__(THREADS, D == 256 ? 1 : 2) attend(const cuda_attention x)
{
    unsigned char *all = dynamic_shared();
    int64_t items = x.batch * tiles_of(x) * x.heads;

    for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
        work w = work_of(x, item);

        if (w.first < w.s.q_len)
            make<D, DTYPE>(x, w, all);
        cp_async_wait<0>();
        __syncthreads(); /* nobody reads this item's tiles any more */
    }
}

template <int D> static gpunvme_ops_status_t launch(const struct cuda_attention *x, void *stream)
{
    void (*kernel)(const cuda_attention) =
        x->dtype == GPUNVME_OPS_F16 ? attend<D, GPUNVME_OPS_F16> : attend<D, GPUNVME_OPS_BF16>;
    int64_t items = x->batch * tiles_of(*x) * x->heads;
    gpunvme_ops_status_t status = cuda_allow_shared((const void *)kernel, memory<D>::nbytes);

    if (status)
        return status;
    LAUNCH_SHARED(kernel, cuda_attention_blocks(items, 1), THREADS, memory<D>::nbytes, stream, *x);
    return cuda_attention_launched();
}

size_t cuda_attention_flash_shared(const struct cuda_attention *x)
{
    switch (cuda_attention_width(x)) {
    case 64:
        return memory<64>::nbytes;
    case 128:
        return memory<128>::nbytes;
    default:
        return memory<256>::nbytes;
    }
}

gpunvme_ops_status_t cuda_attention_flash(const struct cuda_attention *x, void *workspace,
                                          void *stream)
{
    (void)workspace;
    switch (cuda_attention_width(x)) {
    case 64:
        return launch<64>(x, stream);
    case 128:
        return launch<128>(x, stream);
    default:
        return launch<256>(x, stream);
    }
}
