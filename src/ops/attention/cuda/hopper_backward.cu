/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Attention backwards by Hopper's own instructions, after Shah et al., "FlashAttention-3", 2024: a
 * block has 128 keys, 64 for each of two warp groups, and passes over the queries that see them. A
 * third group's warps bring tiles of queries by the copy engine, two ahead, and add what comes out
 * for grad_q to sums in global memory, by the copy engine, too. As in flash2_backward.cu scores are
 * transposed, so that P^T and dS^T are operands of wgmma in registers, and the sums of grad_k and
 * grad_v stay in registers. Scores of the next tile are made while the last products of this one
 * are.
 */
#include "ops/attention/cuda/backward.cuh"
#include "ops/hopper/launch.h"
#include "ops/hopper/ring.cuh"
#include "ops/hopper/wgmma.cuh"

#define KEYS    128
#define THREADS (3 * 128)
#define STAGES  2

/* Where a sequence's rows are in a tensor map: y is the row, and z = b * batch + head * heads. */
struct map_place {
    int batch, head;
};

struct hopper_backward {
    CUtensorMap maps[BACKWARD_OPERANDS];
    map_place places[BACKWARD_OPERANDS];
    cuda_backward x;
};

/* Tiles of queries are 128 x 64 or 64 x 128: two pieces of sums of grad_q, one for each group. */
template <int WIDTH> struct shape {
    static const int queries = WIDTH == 64 ? 128 : 64;
    static const int keys_nbytes = KEYS * WIDTH * 2;
    static const int queries_nbytes = queries * WIDTH * 2;
    static const int ds_nbytes = KEYS * queries * 2;
    static const int piece_nbytes = CUDA_BACKWARD_PIECE * CUDA_BACKWARD_PIECE * 4;
    static const int row_nbytes = 128 * 4; /* lse2 or D of a tile's queries */
    static const int barriers = 1 + 4 * STAGES + 4;
    static const int shared_nbytes = HOPPER_ALIGN + 2 * keys_nbytes + 2 * STAGES * queries_nbytes +
                                     2 * ds_nbytes + 2 * piece_nbytes + 2 * STAGES * row_nbytes +
                                     8 * barriers;
};

#ifdef HAVE_HOPPER
/* Addresses in shared memory. Q comes with lse2, and grad_out with D. */
struct tiles {
    uint32_t k, v, q, grad_out, ds, sums, lse2, delta;
    uint32_t keys_full, q_full, q_empty, grad_full, grad_empty, sums_full, sums_empty;
};

template <int WIDTH> static __device__ __forceinline__ tiles lay_out(void)
{
    typedef shape<WIDTH> size;
    tiles t;

    t.k = (shared_address(dynamic_shared()) + HOPPER_ALIGN - 1) & ~(uint32_t)(HOPPER_ALIGN - 1);
    t.v = t.k + size::keys_nbytes;
    t.q = t.v + size::keys_nbytes;
    t.grad_out = t.q + STAGES * size::queries_nbytes;
    t.ds = t.grad_out + STAGES * size::queries_nbytes;
    t.sums = t.ds + 2 * size::ds_nbytes;
    t.lse2 = t.sums + 2 * size::piece_nbytes;
    t.delta = t.lse2 + STAGES * size::row_nbytes;
    t.keys_full = t.delta + STAGES * size::row_nbytes;
    t.q_full = t.keys_full + 8;
    t.q_empty = t.q_full + 8 * STAGES;
    t.grad_full = t.q_empty + 8 * STAGES;
    t.grad_empty = t.grad_full + 8 * STAGES;
    t.sums_full = t.grad_empty + 8 * STAGES;
    t.sums_empty = t.sums_full + 8 * 2;
    return t;
}

static __device__ __forceinline__ void make_barriers(const tiles &t)
{
    mbarrier_init(t.keys_full, 1);
    for (int i = 0; i < STAGES; i++) {
        mbarrier_init(t.q_full + 8 * i, 1);
        mbarrier_init(t.grad_full + 8 * i, 1);
        mbarrier_init(t.q_empty + 8 * i, 2); /* warp groups */
        mbarrier_init(t.grad_empty + 8 * i, 2);
    }
    for (int i = 0; i < 2; i++) {
        mbarrier_init(t.sums_full + 8 * i, 128);
        mbarrier_init(t.sums_empty + 8 * i, 1);
    }
    mbarrier_init_fence();
}

/* A tile of an operand's rows from `row` on, in columns of 64 channels. */
template <int WIDTH>
static __device__ __forceinline__ void bring(const hopper_backward &work, int which, const walk &w,
                                             int head, int row, int rows, uint32_t to,
                                             uint32_t barrier)
{
    const map_place &place = work.places[which];
    bool keys = which == BACKWARD_K || which == BACKWARD_V;
    int z = w.b * place.batch + head * place.head;

    if (work.x.operands[which].copied)
        row += (int)(keys ? key_room(work.x, w.b) : query_room(work.x, w.b));
    for (int c = 0; c < WIDTH / 64; c++)
        tensor_load(to + c * rows * HOPPER_WIDTH, &work.maps[which], c * 64, row, z, barrier);
}

/* One thread brings all tiles. */
template <int WIDTH>
static __device__ __forceinline__ void bring_all(const hopper_backward &work, const tiles &t,
                                                 walk w)
{
    typedef shape<WIDTH> size;
    const uint32_t row_nbytes = size::queries * 4;

    mbarrier_arrive_expecting(t.keys_full, 2 * size::keys_nbytes);
    bring<WIDTH>(work, BACKWARD_K, w, w.kv_head, w.key, KEYS, t.k, t.keys_full);
    bring<WIDTH>(work, BACKWARD_V, w, w.kv_head, w.key, KEYS, t.v, t.keys_full);
    for (; w.step < w.steps; next(w)) {
        int stage = w.step % STAGES, query = w.tile * size::queries;
        uint32_t parity = w.step / STAGES % 2 ^ 1;
        int64_t row = w.head * work.x.q_room + query_room(work.x, w.b) + query;

        mbarrier_wait(t.q_empty + 8 * stage, parity);
        mbarrier_arrive_expecting(t.q_full + 8 * stage, size::queries_nbytes + row_nbytes);
        bring<WIDTH>(work, BACKWARD_Q, w, w.head, query, size::queries,
                     t.q + stage * size::queries_nbytes, t.q_full + 8 * stage);
        bulk_load(t.lse2 + stage * size::row_nbytes, work.x.lse2 + row, row_nbytes,
                  t.q_full + 8 * stage);
        mbarrier_wait(t.grad_empty + 8 * stage, parity);
        mbarrier_arrive_expecting(t.grad_full + 8 * stage, size::queries_nbytes + row_nbytes);
        bring<WIDTH>(work, BACKWARD_GRAD_OUT, w, w.head, query, size::queries,
                     t.grad_out + stage * size::queries_nbytes, t.grad_full + 8 * stage);
        bulk_load(t.delta + stage * size::row_nbytes, work.x.delta + row, row_nbytes,
                  t.grad_full + 8 * stage);
    }
}

/* One thread for each group adds its pieces to the sums, if asked for in the blocks' order. */
template <int WIDTH>
static __device__ __forceinline__ void add_all(const cuda_backward &x, const tiles &t, walk w,
                                               int group)
{
    typedef shape<WIDTH> size;

    for (; w.step < w.steps; next(w)) {
        int query = w.tile * size::queries;
        int64_t row = w.head * x.q_room + query_room(x, w.b) + query;
        int64_t piece = row / CUDA_BACKWARD_PIECE * (WIDTH / CUDA_BACKWARD_PIECE) + group;

        mbarrier_wait(t.sums_full + 8 * group, w.step % 2);
        if (x.turns) {
            wait_for_count(x.turns + piece, turn_of_tile(x, w.s, query, w.key, KEYS));
            fence_async_proxy_global();
        }
        bulk_add(x.sums + piece * (size::piece_nbytes / 4), t.sums + group * size::piece_nbytes,
                 size::piece_nbytes);
        tensor_store_commit();
        tensor_store_wait_read<0>();
        mbarrier_arrive(t.sums_empty + 8 * group);
        if (x.turns) {
            tensor_store_wait<0>();
            fence_async_proxy_global();
            count_up(x.turns + piece);
        }
    }
}

template <int DTYPE, int MN_A, int MN_B, int COUNT>
static __device__ __forceinline__ void multiply(float (&sums)[COUNT], uint64_t a, uint64_t b,
                                                int accumulate)
{
    if (DTYPE == GPUNVME_OPS_F16 && !accumulate)
        wgmma_f16_new<MN_A, MN_B>(sums, a, b);
    else if (DTYPE == GPUNVME_OPS_F16)
        wgmma_f16<MN_A, MN_B>(sums, a, b, 1);
    else if (!accumulate)
        wgmma_bf16_new<MN_A, MN_B>(sums, a, b);
    else
        wgmma_bf16<MN_A, MN_B>(sums, a, b, 1);
}

/* sums = X Y^T: 64 rows from address x on, in columns `x_rows` long, by all rows of Y. */
template <int DTYPE, int WIDTH, int COUNT>
static __device__ __forceinline__ void begin_scores(float (&sums)[COUNT], uint32_t x, int x_rows,
                                                    uint32_t y)
{
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < WIDTH / 16; k++)
        multiply<DTYPE, 0, 0>(
            sums, hopper_tile_descriptor(x + k / 4 * x_rows * HOPPER_WIDTH + k % 4 * 32, 0),
            hopper_tile_descriptor(y + k / 4 * (2 * COUNT) * HOPPER_WIDTH + k % 4 * 32, 0), k > 0);
    wgmma_commit();
}

/* sums += A Y: A in fragments, Y a tile of queries. */
template <int DTYPE, int COUNT, int FRAGMENTS>
static __device__ __forceinline__ void begin_sums(float (&sums)[COUNT],
                                                  const uint32_t (&a)[FRAGMENTS][4], uint32_t y)
{
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < FRAGMENTS; i++) {
        uint64_t b = hopper_descriptor(y + i * 16 * HOPPER_WIDTH, FRAGMENTS * 16 * HOPPER_WIDTH,
                                       8 * HOPPER_WIDTH);

        if (DTYPE == GPUNVME_OPS_F16)
            wgmma_f16_by_registers<1>(sums, a[i], b, 1);
        else
            wgmma_bf16_by_registers<1>(sums, a[i], b, 1);
    }
    wgmma_commit();
}

/* A group's piece of dS K: 64 queries (columns of dS^T) by 64 channels. */
template <int DTYPE>
static __device__ __forceinline__ void begin_piece(float (&sums)[32], uint32_t ds, uint32_t k)
{
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < KEYS / 16; i++)
        multiply<DTYPE, 1, 1>(sums, hopper_tile_descriptor(ds + i * 16 * HOPPER_WIDTH, 1),
                              hopper_tile_descriptor(k + i * 16 * HOPPER_WIDTH, 1), i > 0);
    wgmma_commit();
}

/* dS^T of a warp's 16 keys, for both groups. */
template <int FRAGMENTS>
static __device__ __forceinline__ void show(uint32_t ds, int key,
                                            const uint32_t (&fragments)[FRAGMENTS][4])
{
    int lane = threadIdx.x % 32;

#pragma unroll
    for (int i = 0; i < FRAGMENTS; i++)
        store_matrices(ds + i / 4 * KEYS * HOPPER_WIDTH +
                           hopper_swizzle(key + lane % 16, (2 * i % 8 + lane / 16) * 16),
                       fragments[i]);
}

/* This group's piece, for the thread that adds it. */
static __device__ __forceinline__ void hand_over(uint32_t to, const float (&sums)[32])
{
    float4 *at = (float4 *)(dynamic_shared() + (to - shared_address(dynamic_shared())));

#pragma unroll
    for (int j = 0; j < 8; j++)
        at[j * 128 + threadIdx.x % 128] =
            make_float4(sums[4 * j], sums[4 * j + 1], sums[4 * j + 2], sums[4 * j + 3]);
    fence_async_proxy();
}

/* A thread's sums: scores and their gradients of a tile, those of keys, and a piece of grad_q. */
template <int WIDTH> struct group_sums {
    float p[shape<WIDTH>::queries / 2], ds[shape<WIDTH>::queries / 2];
    float k[WIDTH / 2], v[WIDTH / 2];
};

/* The scores of the tile that the walk is at are under way; and then their gradients. */
template <int DTYPE, int WIDTH>
static __device__ __forceinline__ void begin_p(const tiles &t, const walk &w, int group,
                                               group_sums<WIDTH> &sums)
{
    int stage = w.step % STAGES;

    mbarrier_wait(t.q_full + 8 * stage, w.step / STAGES % 2);
    begin_scores<DTYPE, WIDTH>(sums.p, t.k + group * HOPPER_BLOCK, KEYS,
                               t.q + stage * shape<WIDTH>::queries_nbytes);
}

template <int DTYPE, int WIDTH>
static __device__ __forceinline__ void begin_ds(const tiles &t, const walk &w, int group,
                                                group_sums<WIDTH> &sums)
{
    int stage = w.step % STAGES;

    mbarrier_wait(t.grad_full + 8 * stage, w.step / STAGES % 2);
    begin_scores<DTYPE, WIDTH>(sums.ds, t.v + group * HOPPER_BLOCK, KEYS,
                               t.grad_out + stage * shape<WIDTH>::queries_nbytes);
}

/* P and dP - D of that tile, which ends what is under way. */
template <int WIDTH, int CAP>
static __device__ __forceinline__ void end_tile(const cuda_backward &x, const tiles &t,
                                                const walk &w, int group, group_sums<WIDTH> &sums)
{
    typedef shape<WIDTH> size;
    int lane = threadIdx.x % 32, stage = w.step % STAGES, query = w.tile * size::queries;
    int key = w.key + group * 64;
    uint32_t lse2 = t.lse2 + stage * size::row_nbytes + lane % 4 * 8;
    uint32_t delta = t.delta + stage * size::row_nbytes + lane % 4 * 8;
    tile_place place = {key + (int)threadIdx.x % 128 / 32 * 16 + lane / 4, query + lane % 4 * 2,
                        tile_masked(x, w.s, key, 64, query, size::queries)};

    if (CAP) {
        wgmma_wait_for(sums.p);
        wgmma_wait_for(sums.ds);
        subtract_deltas(sums.ds, delta);
        cap(x, sums.p, sums.ds);
        weigh(x, w.s, sums.p, place, lse2);
    } else {
        wgmma_wait_leaving<1>(sums.p);
        weigh(x, w.s, sums.p, place, lse2);
        wgmma_wait_for(sums.ds);
        subtract_deltas(sums.ds, delta);
    }
}

/* The other three products of that tile are under way. */
template <int DTYPE, int WIDTH>
static __device__ __forceinline__ void begin_gradients(const tiles &t, const walk &w, int group,
                                                       group_sums<WIDTH> &sums, float (&piece)[32])
{
    typedef shape<WIDTH> size;
    int stage = w.step % STAGES, row = group * 64 + threadIdx.x % 128 / 32 * 16;
    uint32_t ds = t.ds + stage * size::ds_nbytes;
    uint32_t weights[size::queries / 16][4], grads[size::queries / 16][4];

    to_fragments<DTYPE>(sums.p, weights);
    begin_sums<DTYPE>(sums.v, weights, t.grad_out + stage * size::queries_nbytes);
#pragma unroll
    for (int e = 0; e < size::queries / 2; e++)
        sums.ds[e] *= sums.p[e];
    to_fragments<DTYPE>(sums.ds, grads);
    begin_sums<DTYPE>(sums.k, grads, t.q + stage * size::queries_nbytes);
    show(ds, row, grads);
    fence_async_proxy();
    barrier_256(1);
    begin_piece<DTYPE>(piece, ds + (WIDTH == 64 ? group * KEYS * HOPPER_WIDTH : 0),
                       t.k + (WIDTH == 64 ? 0 : group * KEYS * HOPPER_WIDTH));
}

/* The tile before the walk's has been read, and this group's piece of it goes to who adds it. */
template <int WIDTH>
static __device__ __forceinline__ void end_gradients(const cuda_backward &x, const tiles &t,
                                                     const walk &w, int group,
                                                     const float (&piece)[32])
{
    int stage = (w.step - 1) % STAGES;

    if (threadIdx.x % 128 == 0) {
        mbarrier_arrive(t.q_empty + 8 * stage);
        mbarrier_arrive(t.grad_empty + 8 * stage);
    }
    if (!x.sums)
        return;
    mbarrier_wait(t.sums_empty + 8 * group, w.step % 2);
    hand_over(t.sums + group * shape<WIDTH>::piece_nbytes, piece);
    mbarrier_arrive(t.sums_full + 8 * group);
}

template <int DTYPE, int WIDTH, int CAP>
static __device__ __forceinline__ void consume(const cuda_backward &x, const tiles &t, walk w,
                                               int group, const unsigned &number)
{
    int lane = threadIdx.x % 32, key;
    group_sums<WIDTH> sums;
    float piece[32];

#pragma unroll
    for (int i = 0; i < WIDTH / 2; i++)
        sums.k[i] = sums.v[i] = 0;
    if (w.steps) {
        mbarrier_wait(t.keys_full, 0);
        begin_p<DTYPE, WIDTH>(t, w, group, sums);
        begin_ds<DTYPE, WIDTH>(t, w, group, sums);
        for (;;) {
            end_tile<WIDTH, CAP>(x, t, w, group, sums);
            begin_gradients<DTYPE, WIDTH>(t, w, group, sums, piece);
            next(w);
            if (w.step == w.steps)
                break;
            wgmma_wait<2>(); /* the registers of P^T are free */
            begin_p<DTYPE, WIDTH>(t, w, group, sums);
            wgmma_wait_leaving<1>(piece);
            end_gradients<WIDTH>(x, t, w, group, piece);
            begin_ds<DTYPE, WIDTH>(t, w, group, sums);
        }
        wgmma_wait_for(piece);
        wgmma_wait_for(sums.k);
        wgmma_wait_for(sums.v);
        end_gradients<WIDTH>(x, t, w, group, piece);
    }
    w = walk_of(x, number, KEYS, shape<WIDTH>::queries); /* it took registers meanwhile */
    key = w.key + group * 64 + (int)threadIdx.x % 128 / 32 * 16 + lane / 4;
    store_keys(x, w.s, w.b, w.kv_head, key, lane % 4 * 2, x.grad_k, x.f.dim, x.f.scale,
               x.grad_turned, sums.k);
    store_keys(x, w.s, w.b, w.kv_head, key, lane % 4 * 2, x.grad_v, x.f.dim_v, 1, NULL, sums.v);
}
#endif

template <int DTYPE, int WIDTH, int CAP>
static __global__ void __launch_bounds__(THREADS, 1)
    differentiate(const __grid_constant__ hopper_backward work)
{
#ifdef HAVE_HOPPER
    __shared__ unsigned number;
    tiles t = lay_out<WIDTH>();
    walk w;

    if (!threadIdx.x)
        make_barriers(t);
    wait_for_kernels_before();
    if (!threadIdx.x)
        number = number_block(work.x);
    __syncthreads();
    w = walk_of(work.x, number, KEYS, shape<WIDTH>::queries);
    if (threadIdx.x < 128) {
        registers_give_back<24>();
        if (threadIdx.x == 0 && w.steps)
            bring_all<WIDTH>(work, t, w);
        if (threadIdx.x % 32 == 0 && (threadIdx.x / 32 == 1 || threadIdx.x / 32 == 2) &&
            work.x.sums)
            add_all<WIDTH>(work.x, t, w, threadIdx.x / 32 - 1);
    } else {
        registers_take<240>();
        consume<DTYPE, WIDTH, CAP>(work.x, t, w, threadIdx.x / 128 - 1, number);
    }
#endif
}

static int64_t divisor(int64_t x, int64_t y)
{
    while (y) {
        int64_t rest = x % y;

        x = y;
        y = rest;
    }
    return x;
}

/* An operand's map: channels, rows, and heads of sequences by what divides both their strides. */
static gpunvme_ops_status_t make_map(struct hopper_backward *work, int which, int queries)
{
    const struct cuda_backward *x = &work->x;
    const struct cuda_backward_rows *from = &x->operands[which];
    bool keys = which == BACKWARD_K || which == BACKWARD_V;
    int64_t heads = keys ? x->f.kv_heads : x->f.heads, step, sequences = x->f.batch;
    int64_t rows = keys ? x->f.k_len : x->f.q_len, lines = keys ? KEYS : queries;
    int64_t width = which == BACKWARD_Q || which == BACKWARD_K ? x->f.dim : x->f.dim_v, row;
    struct hopper_tensor tensor;

    if (from->copied) {
        rows = keys ? x->k_room : x->q_room;
        width = x->width;
        sequences = 1;
    }
    step = divisor(from->rows.batch, from->rows.head);
    work->places[which].batch = step ? (int)(from->rows.batch / step) : 0;
    work->places[which].head = step ? (int)(from->rows.head / step) : 0;
    row = from->rows.row ? from->rows.row : (width + 7) / 8 * 8;
    tensor = hopper_tensor_of(rows, width, row,
                              1 + (sequences - 1) * work->places[which].batch +
                                  (heads - 1) * work->places[which].head,
                              step, 2, (int)lines);
    return hopper_encode(&work->maps[which], from->rows.data,
                         x->f.dtype == GPUNVME_OPS_F16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                                       : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                         &tensor);
}

template <int DTYPE, int WIDTH, int CAP>
static gpunvme_ops_status_t launch_one(const struct cuda_backward *x, void *stream)
{
    int64_t blocks = (int64_t)((x->f.k_len + KEYS - 1) / KEYS) * x->f.kv_heads * x->f.batch;
    gpunvme_ops_status_t status = cuda_allow_shared((const void *)differentiate<DTYPE, WIDTH, CAP>,
                                                    shape<WIDTH>::shared_nbytes);
    struct hopper_backward work;

    work.x = *x;
    for (int i = 0; i < BACKWARD_OPERANDS && !status && blocks; i++)
        if (x->f.q_len || i == BACKWARD_K || i == BACKWARD_V)
            status = make_map(&work, i, shape<WIDTH>::queries);
    if (status || !blocks)
        return status;
    LAUNCH_CLUSTERS((differentiate<DTYPE, WIDTH, CAP>), (unsigned)blocks, 1, THREADS,
                    shape<WIDTH>::shared_nbytes, stream, work);
    return cuda_attention_launched();
}

template <int DTYPE, int WIDTH>
static gpunvme_ops_status_t launch(const struct cuda_backward *x, void *stream)
{
    return x->f.softcap > 0 ? launch_one<DTYPE, WIDTH, 1>(x, stream)
                            : launch_one<DTYPE, WIDTH, 0>(x, stream);
}

gpunvme_ops_status_t cuda_backward_hopper(const struct cuda_backward *x, void *stream)
{
    if (x->f.dtype == GPUNVME_OPS_F16)
        return x->width == 64 ? launch<GPUNVME_OPS_F16, 64>(x, stream)
                              : launch<GPUNVME_OPS_F16, 128>(x, stream);
    return x->width == 64 ? launch<GPUNVME_OPS_BF16, 64>(x, stream)
                          : launch<GPUNVME_OPS_BF16, 128>(x, stream);
}
