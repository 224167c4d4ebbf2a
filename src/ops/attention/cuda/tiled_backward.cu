/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Attention backwards, tiled: a block makes the gradients of 64 rows, of keys or of queries, and
 * passes over the rows of the other side, 64 at a time. Operands come into shared memory, where a
 * tile's weights P and their gradients dS stay, too: each is made once for 128 channels, and read
 * by 64 rows. All arithmetic is f32's; no gradient needs another block's sums.
 */
#include "ops/attention/cuda/backward.cuh"

#define THREADS 256
#define TILE    64  /* queries; keys; channels that are in shared memory at a time */
#define LD      68  /* of a row of TILE: 16 bytes at a time of 8 rows are in different banks */
#define WIDTH   128 /* channels of a gradient that a block makes */
#define LANES   16  /* threads that share rows */
#define PART    4   /* of the rows of a tile, and of its columns, that a thread has */
#define CHUNKS  (WIDTH / TILE)

/* `p` and `ds` have a row for each row of the other side, and a column for each that is made. */
struct memory {
    float a[TILE * LD], b[TILE * LD], p[TILE * LD], ds[TILE * LD];
};

/* Rows of a tile's two sides, of a head. */
struct work {
    cuda_sequence s;
    int b, head, kv_head;
    int query, key;
    int col; /* of the channels that are made */
};

/* Columns lane * 4 … + 3 of each chunk. `turned`: those that RoPE pairs them with. */
struct sums {
    float own[CHUNKS][PART][PART], turned[CHUNKS][PART][PART], v[CHUNKS][PART][PART];
};

/*
 * TILE channels from `col` on of an operand's 64 rows, or those that RoPE pairs them with; zeros
 * where there is nothing.
 */
static __device__ __forceinline__ void bring(float *to, const cuda_backward &x, const work &w,
                                             int which, int col, bool partners = false)
{
    bool keys = which == BACKWARD_K || which == BACKWARD_V;
    int dim = which == BACKWARD_Q || which == BACKWARD_K ? x.f.dim : x.f.dim_v;

    for (int e = threadIdx.x; e < TILE * TILE; e += THREADS) {
        int i = (keys ? w.key : w.query) + e / TILE, c = col + e % TILE;

        if (partners)
            c = pair_of(x.f.rope, c).partner;
        to[e / TILE * LD + e % TILE] =
            i < (keys ? w.s.k_len : w.s.q_len) && c < dim
                ? operand_at(x, which, w.s, i, keys ? w.kv_head : w.head, c)
                : 0;
    }
}

static __device__ __forceinline__ float4 four(const float *from)
{
    return *(const float4 *)from;
}

/* Products of rows row … + 3 of one operand and rows lane, lane + 16, … of another. */
static __device__ __forceinline__ void multiply_rows(memory &m, const cuda_backward &x,
                                                     const work &w, int one, int two, int dim,
                                                     float (&s)[PART][PART])
{
    int row = threadIdx.x / LANES * PART, lane = threadIdx.x % LANES;

    for (int col = 0; col < dim; col += TILE) {
        __syncthreads(); /* nobody reads what was there before */
        bring(m.a, x, w, one, col);
        bring(m.b, x, w, two, col);
        __syncthreads();
#pragma unroll 4
        for (int c = 0; c < TILE; c += 4)
#pragma unroll
            for (int i = 0; i < PART; i++) {
                float4 y = four(&m.a[(row + i) * LD + c]);

#pragma unroll
                for (int j = 0; j < PART; j++) {
                    float4 z = four(&m.b[(lane + j * LANES) * LD + c]);

                    s[i][j] += y.x * z.x + y.y * z.y + y.z * z.z + y.w * z.w;
                }
            }
    }
}

/* P and dS of a query and a key, of their product and that of grad_out and V. */
static __device__ __forceinline__ void weigh(const cuda_backward &x, const work &w, int i, int j,
                                             float product, float grad, float &p, float &ds)
{
    float score = score_of(x.f, product);

    p = ds = 0;
    if (i >= w.s.q_len || !sees(keys_of(x.f, w.s, i), j))
        return;
    p = expf(score - ((const float *)x.f.lse.data)[query_at(x.f.lse, w.s, i, w.head)]);
    ds = p * (grad - x.delta[w.head * x.q_room + query_room(x, w.b) + i]);
    if (x.f.softcap > 0)
        ds *= 1 - score / x.f.softcap * (score / x.f.softcap);
}

/* Those of a tile. KEYS: the rows that are made are keys. */
template <bool KEYS>
static __device__ __forceinline__ void make_weights(memory &m, const cuda_backward &x,
                                                    const work &w)
{
    int row = threadIdx.x / LANES * PART, lane = threadIdx.x % LANES;
    float s[PART][PART] = {}, grads[PART][PART] = {};

    multiply_rows(m, x, w, KEYS ? BACKWARD_Q : BACKWARD_K, KEYS ? BACKWARD_K : BACKWARD_Q, x.f.dim,
                  s);
    multiply_rows(m, x, w, KEYS ? BACKWARD_GRAD_OUT : BACKWARD_V,
                  KEYS ? BACKWARD_V : BACKWARD_GRAD_OUT, x.f.dim_v, grads);
#pragma unroll
    for (int a = 0; a < PART; a++)
#pragma unroll
        for (int b = 0; b < PART; b++) {
            int other = row + a, own = lane + b * LANES;

            weigh(x, w, w.query + (KEYS ? other : own), w.key + (KEYS ? own : other), s[a][b],
                  grads[a][b], m.p[other * LD + own], m.ds[other * LD + own]);
        }
}

/* sums of rows row … + 3 += their weights by the rows of the other side. */
static __device__ __forceinline__ void add_products(const float *weights, const float *rows,
                                                    float (&t)[PART][PART])
{
    int row = threadIdx.x / LANES * PART, lane = threadIdx.x % LANES;

#pragma unroll 4
    for (int k = 0; k < TILE; k++) {
        float4 p = four(&weights[k * LD + row]), y = four(&rows[k * LD + lane * 4]);
        const float ps[] = {p.x, p.y, p.z, p.w}, ys[] = {y.x, y.y, y.z, y.w};

#pragma unroll
        for (int a = 0; a < PART; a++)
#pragma unroll
            for (int c = 0; c < PART; c++)
                t[a][c] += ps[a] * ys[c];
    }
}

template <bool KEYS>
static __device__ __forceinline__ void add_tile(memory &m, const cuda_backward &x, const work &w,
                                                bool turned, sums &t)
{
    const int which = KEYS ? BACKWARD_Q : BACKWARD_K;

    make_weights<KEYS>(m, x, w);
#pragma unroll
    for (int n = 0; n < CHUNKS; n++) {
        int col = w.col + n * TILE;

        __syncthreads();
        bring(m.a, x, w, which, col);
        if (KEYS)
            bring(m.b, x, w, BACKWARD_GRAD_OUT, col);
        __syncthreads();
        add_products(m.ds, m.a, t.own[n]);
        if (KEYS)
            add_products(m.p, m.b, t.v[n]);
        if (!turned)
            continue;
        __syncthreads();
        bring(m.a, x, w, which, col, true);
        __syncthreads();
        add_products(m.ds, m.a, t.turned[n]);
    }
}

/* What a thread has of the gradients' rows. */
template <bool KEYS>
static __device__ __forceinline__ void store(const cuda_backward &x, const work &w, bool turned,
                                             const sums &t)
{
    int row = threadIdx.x / LANES * PART, lane = threadIdx.x % LANES;
    const cuda_rows &rows = KEYS ? x.grad_k : x.grad_q;

    for (int a = 0; a < PART; a++) {
        int i = (KEYS ? w.key : w.query) + row + a;

        if (i >= (KEYS ? w.s.k_len : w.s.q_len))
            return;
#pragma unroll
        for (int e = 0; e < CHUNKS * PART; e++) {
            int n = e / PART, c = w.col + n * TILE + lane * 4 + e % PART;
            cuda_pair pair = pair_if(x.f.rope, turned, c);

            if (rows.data && c < x.f.dim)
                store_element(
                    rows.data,
                    (KEYS ? key_at(x.f, rows, w.s, i, w.kv_head) : query_at(rows, w.s, i, w.head)) +
                        c,
                    x.f.dtype,
                    x.f.scale * turned_back(x.f.rope, pair, KEYS ? i : turned_position(w.s, i),
                                            t.own[n][a][e % PART], t.turned[n][a][e % PART]));
            if (KEYS && x.grad_v.data && c < x.f.dim_v)
                store_element(x.grad_v.data, key_at(x.f, x.grad_v, w.s, i, w.kv_head) + c,
                              x.f.dtype, t.v[n][a][e % PART]);
        }
    }
}

template <bool KEYS>
static __device__ __forceinline__ void make(memory &m, const cuda_backward &x, work &w)
{
    bool turned = x.f.rope.dim && !(KEYS && x.f.rope.queries_only);
    int last = (KEYS ? w.key : w.query) + TILE - 1;
    int first = KEYS ? queries_of(x.f, w.s, w.key).first : keys_of(x.f, w.s, w.query).first;
    int end = KEYS ? queries_of(x.f, w.s, last).end : keys_of(x.f, w.s, last).end;
    int heads = KEYS ? x.f.group : 1;
    sums t = {};

    for (int n = 0; n < heads; n++, w.head++)
        for (int i = first; i < end; i += TILE) {
            (KEYS ? w.query : w.key) = i;
            add_tile<KEYS>(m, x, w, turned, t);
        }
    w.head--;
    store<KEYS>(x, w, turned, t);
}

static __host__ __device__ __forceinline__ int64_t parts_of(const cuda_backward &x)
{
    int most = x.f.dim > x.f.dim_v ? x.f.dim : x.f.dim_v;

    return (most + WIDTH - 1) / WIDTH;
}

static __host__ __device__ __forceinline__ int64_t tiles_of(int rows)
{
    return ((int64_t)rows + TILE - 1) / TILE;
}

template <bool KEYS>
static __global__ void __launch_bounds__(THREADS) differentiate(const cuda_backward x)
{
    memory &m = *(memory *)dynamic_shared();
    int heads = KEYS ? x.f.kv_heads : x.f.heads;
    int64_t tiles = tiles_of(KEYS ? x.f.k_len : x.f.q_len), parts = parts_of(x);

    for (int64_t item = blockIdx.x; item < x.f.batch * heads * tiles * parts; item += gridDim.x) {
        int64_t head = item / parts / tiles;
        work w = {};

        w.b = (int)(head / heads);
        w.s = sequence_of(x.f, w.b);
        w.col = (int)(item % parts) * WIDTH;
        w.head = (int)(head % heads) * (KEYS ? x.f.group : 1);
        w.kv_head = w.head / x.f.group;
        w.query = w.key = (int)(item / parts % tiles) * TILE;
        if (w.query < (KEYS ? w.s.k_len : w.s.q_len))
            make<KEYS>(m, x, w);
    }
}

template <bool KEYS> static gpunvme_ops_status_t launch(const struct cuda_backward *x, void *stream)
{
    int64_t heads = x->f.batch * (KEYS ? x->f.kv_heads : x->f.heads);
    int64_t items = heads * tiles_of(KEYS ? x->f.k_len : x->f.q_len) * parts_of(*x);
    gpunvme_ops_status_t status =
        cuda_allow_shared((const void *)differentiate<KEYS>, sizeof(memory));

    if (!status && items)
        LAUNCH_SHARED(differentiate<KEYS>, cuda_attention_blocks(items, 1), THREADS, sizeof(memory),
                      stream, *x);
    return status ? status : cuda_attention_launched();
}

gpunvme_ops_status_t cuda_backward_tiled(const struct cuda_backward *x, void *stream)
{
    gpunvme_ops_status_t status = GPUNVME_OPS_OK;

    if (x->grad_q.data)
        status = launch<false>(x, stream);
    if (!status && (x->grad_k.data || x->grad_v.data))
        status = launch<true>(x, stream);
    return status;
}
