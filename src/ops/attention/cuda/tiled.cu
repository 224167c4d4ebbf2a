/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Rung 2, tiled: a block makes 64 queries of a head. 64 keys at a time come into shared memory,
 * where their scores stay, too: nothing grows with the square of the length. Sums are kept as if
 * the largest score so far were the largest of all, and scaled down when a larger one comes
 * (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018). All arithmetic is
 * f32's, a thread has 4 x 4 of the scores and 4 x 8 of the result.
 */
#include "ops/attention/cuda/problem.cuh"
#include "ops/cuda/warp.cuh"

#define THREADS 256
#define TILE    64  /* queries; keys; channels of Q and K at a time */
#define LD      68  /* of a row of TILE: 16 bytes at a time of 8 rows are in different banks */
#define WIDTH   128 /* channels of V: for more, scores are made again */
#define LANES   16  /* threads that share rows */
#define PART    4   /* of the rows of a tile, and of its columns, that a thread has */

struct memory {
    float q[TILE * LD], k[TILE * LD], weights[TILE * LD], v[TILE * WIDTH];
};

/* What a block makes. */
struct work {
    cuda_sequence s;
    int head, first; /* of the queries */
    int col;         /* of the channels of V */
};

struct sums {
    float out[PART][8]; /* columns lane * 4 … + 3, and those 64 to the right */
    float most[PART], weight[PART];
};

static __host__ __device__ __forceinline__ int64_t tiles_of(const cuda_attention &x)
{
    return ((int64_t)x.q_len + TILE - 1) / TILE;
}

static __host__ __device__ __forceinline__ int64_t parts_of(const cuda_attention &x)
{
    return ((int64_t)x.dim_v + WIDTH - 1) / WIDTH;
}

static __device__ __forceinline__ work work_of(const cuda_attention &x, int64_t item)
{
    int64_t tiles = tiles_of(x), parts = parts_of(x), head = item / parts / tiles;
    work w = {sequence_of(x, (int)(head / x.heads)), (int)(head % x.heads),
              (int)(item / parts % tiles) * TILE, (int)(item % parts) * WIDTH};

    return w;
}

/* Channels from `col` on of the tile's queries and of keys from j on: zeros where there is none. */
static __device__ __forceinline__ void bring_rows(memory &m, const cuda_attention &x, const work &w,
                                                  int j, int col)
{
    for (int e = threadIdx.x; e < TILE * TILE; e += THREADS) {
        int row = e / TILE, c = col + e % TILE, i = w.first + row;
        float q = 0, k = 0;

        if (c < x.dim && i < w.s.q_len)
            q = load_q(x, w.s, i, query_at(x.q, w.s, i, w.head), c);
        if (c < x.dim && j + row < w.s.k_len)
            k = load_k(x, j + row, key_at(x, x.k, w.s, j + row, w.head / x.group), c);
        m.q[row * LD + e % TILE] = q;
        m.k[row * LD + e % TILE] = k;
    }
}

static __device__ __forceinline__ void bring_v(memory &m, const cuda_attention &x, const work &w,
                                               int j)
{
    for (int e = threadIdx.x; e < TILE * WIDTH; e += THREADS) {
        int row = e / WIDTH, c = w.col + e % WIDTH;
        float v = 0;

        if (c < x.dim_v && j + row < w.s.k_len)
            v = load_element(x.v.data, key_at(x, x.v, w.s, j + row, w.head / x.group) + c, x.dtype);
        m.v[e] = v;
    }
}

static __device__ __forceinline__ float4 four(const float *from)
{
    return *(const float4 *)from;
}

static __device__ __forceinline__ float dot(float4 a, float4 b, float sum)
{
    return a.w * b.w + (a.z * b.z + (a.y * b.y + (a.x * b.x + sum)));
}

/* Rows row … + 3, keys lane, lane + 16, …: the shares of the channels that are there. */
static __device__ __forceinline__ void add_products(const memory &m, float (&s)[PART][PART],
                                                    int row, int lane)
{
#pragma unroll 4
    for (int c = 0; c < TILE; c += 4) {
        float4 q[PART], k[PART];

#pragma unroll
        for (int n = 0; n < PART; n++) {
            q[n] = four(&m.q[(row + n) * LD + c]);
            k[n] = four(&m.k[(lane + n * LANES) * LD + c]);
        }
#pragma unroll
        for (int a = 0; a < PART; a++)
#pragma unroll
            for (int b = 0; b < PART; b++)
                s[a][b] = dot(q[a], k[b], s[a][b]);
    }
}

static __device__ __forceinline__ void make_scores(memory &m, const cuda_attention &x,
                                                   const work &w, int j, float (&s)[PART][PART])
{
    int row = threadIdx.x / LANES * PART, lane = threadIdx.x % LANES;

    for (int col = 0; col < x.dim; col += TILE) {
        __syncthreads(); /* nobody reads what was there before */
        if (!col)
            bring_v(m, x, w, j);
        bring_rows(m, x, w, j, col);
        __syncthreads();
        add_products(m, s, row, lane);
    }
#pragma unroll
    for (int a = 0; a < PART; a++) {
        cuda_range keys = keys_of(x, w.s, w.first + row + a);

#pragma unroll
        for (int b = 0; b < PART; b++)
            s[a][b] = sees(keys, j + lane + b * LANES) ? score_of(x, s[a][b]) : -INFINITY;
    }
}

/* Scores of a row become weights, and what was added up before is scaled. */
static __device__ __forceinline__ void weigh(float (&s)[PART], float (&out)[8], float &most,
                                             float &weight)
{
    float top = warp_max<LANES>(max_or_nan(max_or_nan(s[0], s[1]), max_or_nan(s[2], s[3])));
    float shift, scale, sum = 0;

    top = max_or_nan(most, top);
    shift = top == -INFINITY ? 0 : top; /* of infinities there is no difference */
    scale = expf(most - shift);
    most = top;
#pragma unroll
    for (int b = 0; b < PART; b++) {
        s[b] = expf(s[b] - shift);
        sum += s[b];
    }
    weight = weight * scale + warp_sum<LANES>(sum);
#pragma unroll
    for (int c = 0; c < 8; c++)
        out[c] *= scale;
}

static __device__ __forceinline__ void add_key(float weight, float4 v0, float4 v1, float (&out)[8])
{
    out[0] += weight * v0.x;
    out[1] += weight * v0.y;
    out[2] += weight * v0.z;
    out[3] += weight * v0.w;
    out[4] += weight * v1.x;
    out[5] += weight * v1.y;
    out[6] += weight * v1.z;
    out[7] += weight * v1.w;
}

static __device__ __forceinline__ void add_values(const memory &m, sums &t, int row, int lane)
{
#pragma unroll 2
    for (int k = 0; k < TILE; k += 4) {
        float4 p[PART];

#pragma unroll
        for (int a = 0; a < PART; a++)
            p[a] = four(&m.weights[(row + a) * LD + k]);
#pragma unroll
        for (int n = 0; n < 4; n++) {
            float4 v0 = four(&m.v[(k + n) * WIDTH + lane * 4]);
            float4 v1 = four(&m.v[(k + n) * WIDTH + WIDTH / 2 + lane * 4]);

#pragma unroll
            for (int a = 0; a < PART; a++)
                add_key(n == 0   ? p[a].x
                        : n == 1 ? p[a].y
                        : n == 2 ? p[a].z
                                 : p[a].w,
                        v0, v1, t.out[a]);
        }
    }
}

static __device__ __forceinline__ void add_tile(memory &m, const cuda_attention &x, const work &w,
                                                int j, sums &t)
{
    int row = threadIdx.x / LANES * PART, lane = threadIdx.x % LANES;
    float s[PART][PART] = {};

    make_scores(m, x, w, j, s);
#pragma unroll
    for (int a = 0; a < PART; a++) {
        weigh(s[a], t.out[a], t.most[a], t.weight[a]);
#pragma unroll
        for (int b = 0; b < PART; b++)
            m.weights[(row + a) * LD + lane + b * LANES] = s[a][b];
    }
    __syncwarp(); /* the rows of a warp's threads are its own */
    add_values(m, t, row, lane);
}

/* A sink takes its share as a key without a value would. */
static __device__ __forceinline__ void store(const cuda_attention &x, const work &w, sums &t)
{
    int row = threadIdx.x / LANES * PART, lane = threadIdx.x % LANES;
    float sink = sink_of(x, w.head);

#pragma unroll
    for (int a = 0; a < PART; a++) {
        int i = w.first + row + a;
        float s[PART] = {sink, -INFINITY, -INFINITY, -INFINITY};
        int64_t at = query_at(x.out, w.s, i, w.head);

        if (lane)
            s[0] = -INFINITY;
        weigh(s, t.out[a], t.most[a], t.weight[a]);
        if (i >= w.s.q_len)
            continue;
#pragma unroll
        for (int c = 0; c < 8; c++) {
            int col = w.col + lane * 4 + c % 4 + c / 4 * (WIDTH / 2);

            if (col < x.dim_v)
                store_element(x.out.data, at + col, x.out_dtype,
                              t.weight[a] == 0 ? 0 : t.out[a][c] / t.weight[a]);
        }
        if (x.lse.data && !lane && !w.col)
            ((float *)x.lse.data)[query_at(x.lse, w.s, i, w.head)] =
                (t.most[a] == -INFINITY ? 0 : t.most[a]) + logf(t.weight[a]);
    }
}

static __device__ __forceinline__ void make(memory &m, const cuda_attention &x, const work &w)
{
    int last = w.first + TILE < w.s.q_len ? w.first + TILE - 1 : w.s.q_len - 1;
    int end = keys_of(x, w.s, last).end;
    sums t = {};

    for (int a = 0; a < PART; a++)
        t.most[a] = -INFINITY;
    for (int j = keys_of(x, w.s, w.first).first; j < end; j += TILE)
        add_tile(m, x, w, j, t);
    store(x, w, t);
}

static __global__ void __launch_bounds__(THREADS, 2) attend(const cuda_attention x)
{
    memory &m = *(memory *)dynamic_shared();
    int64_t items = x.batch * parts_of(x) * tiles_of(x) * x.heads;

    for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
        work w = work_of(x, item);

        if (w.first < w.s.q_len)
            make(m, x, w);
    }
}

gpunvme_ops_status_t cuda_attention_tiled(const struct cuda_attention *x, void *workspace,
                                          void *stream)
{
    int64_t items = x->batch * parts_of(*x) * tiles_of(*x) * x->heads;
    gpunvme_ops_status_t status = cuda_allow_shared((const void *)attend, sizeof(memory));

    (void)workspace;
    if (status)
        return status;
    LAUNCH_SHARED(attend, cuda_attention_blocks(items, 1), THREADS, sizeof(memory), stream, *x);
    return cuda_attention_launched();
}
