/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Attention backwards by Hopper's own instructions, after Shah et al., "FlashAttention-3", 2024: a
 * block has 128 keys, 64 for each of two warp groups, and passes over the queries that see them. A
 * third group's warps bring tiles of queries by the copy engine, two ahead, and add what comes out
 * for grad_q to sums in global memory, by the copy engine, too. As in flash2_backward.cu scores are
 * transposed, so that P^T and dS^T are operands of wgmma in registers, and the sums of grad_k and
 * grad_v stay in registers. Scores of the next tile are made while the last products of this one
 * are.
 *
 * With 256 channels a block has 64 keys, because grad_k and grad_v of 128 would not fit the
 * registers. One group makes P and grad_v, the other one dS and grad_k. P goes from one to the
 * other, and dS to both, through shared memory.
 */
#include "ops/attention/cuda/hopper_backward.cuh"

#ifdef HAVE_HOPPER
/* A thread's sums: scores and their gradients of a tile, those of keys, and a piece of grad_q. */
template <int WIDTH> struct group_sums {
    float p[shape<WIDTH>::queries / 2], ds[shape<WIDTH>::queries / 2];
    float k[WIDTH / 2], v[WIDTH / 2];
};

/* The scores of 64 keys and the tile that the walk is at are under way; and then their gradients.
 */
template <int DTYPE, int WIDTH, int COUNT>
static __device__ __forceinline__ void begin_p(const tiles &t, const walk &w, uint32_t k,
                                               float (&p)[COUNT])
{
    int stage = w.step % STAGES;

    mbarrier_wait(t.q_full + 8 * stage, w.step / STAGES % 2);
    begin_scores<DTYPE, WIDTH>(p, k, shape<WIDTH>::keys,
                               t.q + stage * shape<WIDTH>::queries_nbytes);
}

template <int DTYPE, int WIDTH, int COUNT>
static __device__ __forceinline__ void begin_ds(const tiles &t, const walk &w, uint32_t v,
                                                float (&ds)[COUNT])
{
    const int stages = shape<WIDTH>::grad_stages;
    int stage = w.step % stages;

    mbarrier_wait(t.grad_full + 8 * stage, w.step / stages % 2);
    begin_scores<DTYPE, WIDTH>(ds, v, shape<WIDTH>::keys,
                               t.grad_out + stage * shape<WIDTH>::queries_nbytes);
}

/* Where a thread's sums of 64 keys from `key` on are. */
template <int WIDTH>
static __device__ __forceinline__ tile_place place_of(const cuda_backward &x, const walk &w,
                                                      int key)
{
    int lane = threadIdx.x % 32, query = w.tile * shape<WIDTH>::queries;

    return {key + (int)threadIdx.x % 128 / 32 * 16 + lane / 4, query + lane % 4 * 2,
            tile_masked(x, w.s, key, 64, query, shape<WIDTH>::queries)};
}

/* Of a thread's first query, in a tile's lse2 or D. */
static __device__ __forceinline__ uint32_t value_of_query(uint32_t values)
{
    return values + threadIdx.x % 4 * 8;
}

/* P and dP - D of that tile, which ends what is under way. */
template <int WIDTH, int CAP>
static __device__ __forceinline__ void end_tile(const cuda_backward &x, const tiles &t,
                                                const walk &w, int group, group_sums<WIDTH> &sums)
{
    int row = w.step % STAGES * shape<WIDTH>::row_nbytes;
    uint32_t lse2 = value_of_query(t.lse2 + row), delta = value_of_query(t.delta + row);
    tile_place place = place_of<WIDTH>(x, w, w.key + group * 64);

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
    show<size::keys>(ds, row, grads);
    fence_async_proxy();
    barrier_256(DS_SHOWN);
    begin_piece<DTYPE, size::keys>(piece, ds + (WIDTH == 64 ? group * HOPPER_WIDTH * 128 : 0),
                                   t.k + (WIDTH == 64 ? 0 : group * HOPPER_WIDTH * 128));
}

/* The tile before the walk's has been read, and this group's piece of it goes to who adds it. */
template <int WIDTH>
static __device__ __forceinline__ void end_gradients(const cuda_backward &x, const tiles &t,
                                                     const walk &w, int group,
                                                     const float (&piece)[32])
{
    int stage = (w.step - 1) % STAGES;

    release_by_group(t.q_empty + 8 * stage);
    release_by_group(t.grad_empty + 8 * stage);
    hand_over<WIDTH>(x, t, group, w.step - 1, piece);
}

/* What a group has for 64 keys from `key` on: 16 bytes at a time, if they are stored as they are.
 */
template <int DTYPE, int COUNT>
static __device__ __forceinline__ void store_group(const cuda_backward &x, const walk &w, int key,
                                                   const cuda_rows &rows, int dim, float scale,
                                                   float *turned, float (&sums)[COUNT])
{
    int lane = threadIdx.x % 32;

    key += (int)threadIdx.x % 128 / 32 * 16 + lane / 4;
    if (turned || !rows.vectors || dim % 8 || !rows.data) {
        store_keys(x, w.s, w.b, w.kv_head, key, lane % 4 * 2, rows, dim, scale, turned, sums);
        return;
    }
    scale_rows(sums, {scale, scale});
#pragma unroll
    for (int h = 0; h < 2; h++)
        write_vectors<DTYPE>((uint16_t *)rows.data + key_at(x.f, rows, w.s, key + 8 * h, w.kv_head),
                             sums, h, dim, key + 8 * h < w.s.k_len);
}

template <int DTYPE, int WIDTH, int CAP>
static __device__ __forceinline__ void consume(const cuda_backward &x, const tiles &t, walk w,
                                               int group)
{
    uint32_t k = t.k + group * HOPPER_BLOCK, v = t.v + group * HOPPER_BLOCK;
    group_sums<WIDTH> sums;
    float piece[32];

#pragma unroll
    for (int i = 0; i < WIDTH / 2; i++)
        sums.k[i] = sums.v[i] = 0;
    if (w.steps) {
        mbarrier_wait(t.keys_full, 0);
        begin_p<DTYPE, WIDTH>(t, w, k, sums.p);
        begin_ds<DTYPE, WIDTH>(t, w, v, sums.ds);
        for (;;) {
            end_tile<WIDTH, CAP>(x, t, w, group, sums);
            begin_gradients<DTYPE, WIDTH>(t, w, group, sums, piece);
            next(w);
            if (w.step == w.steps)
                break;
            wgmma_wait<2>(); /* the registers of P^T are free */
            begin_p<DTYPE, WIDTH>(t, w, k, sums.p);
            wgmma_wait_leaving<1>(piece);
            end_gradients<WIDTH>(x, t, w, group, piece);
            begin_ds<DTYPE, WIDTH>(t, w, v, sums.ds);
        }
        wgmma_wait_for(piece);
        wgmma_wait_for(sums.k);
        wgmma_wait_for(sums.v);
        end_gradients<WIDTH>(x, t, w, group, piece);
    }
    w = walk_of_block<WIDTH>(x, t); /* it took registers meanwhile */
    store_group<DTYPE>(x, w, w.key + group * 64, x.grad_k, x.f.dim, x.f.scale, x.grad_turned,
                       sums.k);
    store_group<DTYPE>(x, w, w.key + group * 64, x.grad_v, x.f.dim_v, 1, NULL, sums.v);
}

/* With divided rows: begins piece i, of this group's two, of dS K of a step's tile. */
template <int DTYPE, int WIDTH>
static __device__ __forceinline__ void begin_own_piece(const tiles &t, int step, int group, int i,
                                                       float (&piece)[32])
{
    typedef shape<WIDTH> size;
    uint32_t column = group * size::pieces + i;

    begin_piece<DTYPE, size::keys>(piece, t.ds + step % 2 * size::ds_nbytes,
                                   t.k + column * size::keys * HOPPER_WIDTH);
}

/*
 * Makes P of the walk's tile from its scores, and shows the other group what dP - D is multiplied
 * by: P, or with softcap P times the cap's slope. The place is free, since the other group has
 * shown dS of the tile before.
 */
template <int WIDTH, int CAP>
static __device__ __forceinline__ void end_weights(const cuda_backward &x, const tiles &t,
                                                   const walk &w, float (&p)[32])
{
    uint32_t lse2 = value_of_query(t.lse2 + w.step % STAGES * shape<WIDTH>::row_nbytes);
    tile_place place = place_of<WIDTH>(x, w, w.key);

    if (CAP) {
        float slopes[32];

#pragma unroll
        for (int e = 0; e < 32; e++)
            slopes[e] = 1;
        cap(x, p, slopes);
        weigh(x, w.s, p, place, lse2);
#pragma unroll
        for (int e = 0; e < 32; e++)
            slopes[e] *= p[e];
        store_fours(t.weights, slopes);
    } else {
        weigh(x, w.s, p, place, lse2);
        store_fours(t.weights, p);
    }
    barrier_arrive(WEIGHTS_SHOWN, 256);
}

/* Makes dS of the walk's tile from its dP. */
template <int WIDTH>
static __device__ __forceinline__ void end_grads(const tiles &t, const walk &w, float (&ds)[32])
{
    typedef shape<WIDTH> size;
    const float4 *weights = fours_of(t.weights);

    subtract_deltas(ds, value_of_query(t.delta + w.step % size::grad_stages * size::row_nbytes));
    barrier_wait(WEIGHTS_SHOWN, 256);
#pragma unroll
    for (int j = 0; j < 8; j++) {
        float4 four = weights[j * 128];

        ds[4 * j] *= four.x;
        ds[4 * j + 1] *= four.y;
        ds[4 * j + 2] *= four.z;
        ds[4 * j + 3] *= four.w;
    }
}

/* The compiler cannot keep what it computes from the result across turns of a loop. */
static __device__ __forceinline__ uint32_t afresh(uint32_t x)
{
    asm volatile("" : "+r"(x));
    return x;
}

/*
 * The group of P and grad_v. The next scores are under way while the other group makes dS, and the
 * last piece of grad_q while P is made.
 */
template <int DTYPE, int WIDTH, int CAP>
static __device__ __forceinline__ void consume_weights(const cuda_backward &x, const tiles &t)
{
    typedef shape<WIDTH> size;
    const int grads = size::grad_stages;
    walk w = walk_of_block<WIDTH>(x, t);
    float p[32], piece[32], v[WIDTH / 2];
    uint32_t fragments[4][4];

#pragma unroll
    for (int i = 0; i < WIDTH / 2; i++)
        v[i] = 0;
    if (w.steps) {
        mbarrier_wait(t.keys_full, 0);
        begin_p<DTYPE, WIDTH>(t, w, t.k, p);
        wgmma_wait_for(p);
        end_weights<WIDTH, CAP>(x, t, w, p);
        for (;;) {
            int step = w.step, grad = step % grads;

            to_fragments<DTYPE>(p, fragments);
            mbarrier_wait(t.grad_full + 8 * grad, step / grads % 2);
            begin_sums<DTYPE>(v, fragments, t.grad_out + grad * size::queries_nbytes);
            barrier_wait(DS_SHOWN, 256);
            release_by_group(t.q_empty + 8 * (step % STAGES));
            begin_own_piece<DTYPE, WIDTH>(t, step, 0, 0, piece);
            next(w);
            if (w.step == w.steps)
                break;
            begin_p<DTYPE, WIDTH>(t, w, afresh(t.k), p);
            wgmma_wait<2>();
            release_by_group(t.grad_empty + 8 * grad);
            wgmma_wait_leaving<1>(piece);
            hand_over<WIDTH>(x, t, 0, 2 * step, piece);
            begin_own_piece<DTYPE, WIDTH>(t, step, 0, 1, piece);
            wgmma_wait_leaving<1>(p);
            end_weights<WIDTH, CAP>(x, t, w, p);
            wgmma_wait_for(piece);
            hand_over<WIDTH>(x, t, 0, 2 * step + 1, piece);
        }
        wgmma_wait_for(piece);
        wgmma_wait_for(v);
        hand_over<WIDTH>(x, t, 0, 2 * w.step - 2, piece);
        begin_own_piece<DTYPE, WIDTH>(t, w.step - 1, 0, 1, piece);
        wgmma_wait_for(piece);
        hand_over<WIDTH>(x, t, 0, 2 * w.step - 1, piece);
    }
    w = walk_of_block<WIDTH>(x, t); /* it took registers meanwhile */
    store_group<DTYPE>(x, w, w.key, x.grad_v, x.f.dim_v, 1, NULL, v);
}

/*
 * The group of dS and grad_k. There are two buffers of dS: when P of a tile has come, the other
 * group has ended its products with dS of the tile before the last.
 */
template <int DTYPE, int WIDTH>
static __device__ __forceinline__ void consume_grads(const cuda_backward &x, const tiles &t)
{
    typedef shape<WIDTH> size;
    const int grads = size::grad_stages;
    walk w = walk_of_block<WIDTH>(x, t);
    float ds[32], piece[32], k[WIDTH / 2];
    uint32_t fragments[4][4];

#pragma unroll
    for (int i = 0; i < WIDTH / 2; i++)
        k[i] = 0;
    if (w.steps) {
        mbarrier_wait(t.keys_full, 0);
        begin_ds<DTYPE, WIDTH>(t, w, t.v, ds);
        wgmma_wait_for(ds);
        end_grads<WIDTH>(t, w, ds);
        for (;;) {
            int step = w.step, stage = step % STAGES;

            to_fragments<DTYPE>(ds, fragments);
            show<size::keys>(t.ds + step % 2 * size::ds_nbytes, threadIdx.x % 128 / 32 * 16,
                             fragments);
            fence_async_proxy();
            barrier_arrive(DS_SHOWN, 256);
            barrier_128(GROUP);
            release_by_group(t.grad_empty + 8 * (step % grads));
            mbarrier_wait(t.q_full + 8 * stage, step / STAGES % 2);
            begin_sums<DTYPE>(k, fragments, t.q + stage * size::queries_nbytes);
            begin_own_piece<DTYPE, WIDTH>(t, step, 1, 0, piece);
            wgmma_wait_for(piece);
            release_by_group(t.q_empty + 8 * stage);
            hand_over<WIDTH>(x, t, 1, 2 * step, piece);
            begin_own_piece<DTYPE, WIDTH>(t, step, 1, 1, piece);
            next(w);
            if (w.step == w.steps)
                break;
            begin_ds<DTYPE, WIDTH>(t, w, afresh(t.v), ds);
            wgmma_wait_leaving<1>(piece);
            hand_over<WIDTH>(x, t, 1, 2 * step + 1, piece);
            wgmma_wait_for(ds);
            end_grads<WIDTH>(t, w, ds);
        }
        wgmma_wait_for(piece);
        wgmma_wait_for(k);
        hand_over<WIDTH>(x, t, 1, 2 * w.step - 1, piece);
    }
    w = walk_of_block<WIDTH>(x, t);
    store_group<DTYPE>(x, w, w.key, x.grad_k, x.f.dim, x.f.scale, x.grad_turned, k);
}

template <int DTYPE, int WIDTH, int CAP>
static __device__ __forceinline__ void consume_all(const cuda_backward &x, const tiles &t,
                                                   const walk &w, int group)
{
    if constexpr (!shape<WIDTH>::divided)
        consume<DTYPE, WIDTH, CAP>(x, t, w, group);
    else if (!group)
        consume_weights<DTYPE, WIDTH, CAP>(x, t);
    else
        consume_grads<DTYPE, WIDTH>(x, t);
}
#endif

template <int DTYPE, int WIDTH, int CAP>
static __global__ void __launch_bounds__(THREADS, 1)
    differentiate(const __grid_constant__ hopper_backward work)
{
#ifdef HAVE_HOPPER
    tiles t = lay_out<WIDTH>();
    walk w;

    if (!threadIdx.x)
        make_barriers(t);
    wait_for_kernels_before();
    if (!threadIdx.x)
        store_shared4(t.number, number_block(work.x));
    __syncthreads();
    w = walk_of_block<WIDTH>(work.x, t);
    if (threadIdx.x < 128) {
        registers_give_back<24>();
        if (threadIdx.x == 0 && w.steps)
            bring_all<WIDTH>(work, t, w);
        if (threadIdx.x % 32 == 0 && (threadIdx.x / 32 == 1 || threadIdx.x / 32 == 2) &&
            work.x.sums)
            add_all<WIDTH>(work.x, t, w, threadIdx.x / 32 - 1);
    } else {
        registers_take<240>();
        consume_all<DTYPE, WIDTH, CAP>(work.x, t, w, threadIdx.x / 128 - 1);
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

/*
 * An operand's map, to load so many lines: channels, rows, and heads of sequences by what divides
 * both their strides.
 */
static gpunvme_ops_status_t make_map(struct hopper_backward *work, int which, int lines)
{
    const struct cuda_backward *x = &work->x;
    const struct cuda_backward_rows *from = &x->operands[which];
    bool keys = which == BACKWARD_K || which == BACKWARD_V;
    int64_t heads = keys ? x->f.kv_heads : x->f.heads, step, sequences = x->f.batch;
    int64_t rows = keys ? x->f.k_len : x->f.q_len;
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
                              step, 2, lines);
    return hopper_encode(&work->maps[which], from->rows.data,
                         x->f.dtype == GPUNVME_OPS_F16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                                       : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                         &tensor);
}

template <int DTYPE, int WIDTH, int CAP>
static gpunvme_ops_status_t launch_one(const struct cuda_backward *x, void *stream)
{
    typedef shape<WIDTH> size;
    int64_t tiles = (x->f.k_len + size::keys - 1) / size::keys;
    int64_t blocks = tiles * x->f.kv_heads * x->f.batch;
    gpunvme_ops_status_t status =
        cuda_allow_shared((const void *)differentiate<DTYPE, WIDTH, CAP>, size::shared_nbytes);
    struct hopper_backward work;

    work.x = *x;
    for (int i = 0; i < BACKWARD_OPERANDS && !status && blocks; i++)
        if (i == BACKWARD_K || i == BACKWARD_V)
            status = make_map(&work, i, size::keys);
        else if (x->f.q_len)
            status = make_map(&work, i, size::queries);
    if (status || !blocks)
        return status;
    LAUNCH_CLUSTERS((differentiate<DTYPE, WIDTH, CAP>), (unsigned)blocks, 1, THREADS,
                    size::shared_nbytes, stream, work);
    return cuda_attention_launched();
}

template <int DTYPE, int WIDTH>
static gpunvme_ops_status_t launch(const struct cuda_backward *x, void *stream)
{
    return x->f.softcap > 0 ? launch_one<DTYPE, WIDTH, 1>(x, stream)
                            : launch_one<DTYPE, WIDTH, 0>(x, stream);
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

gpunvme_ops_status_t cuda_backward_hopper(const struct cuda_backward *x, void *stream)
{
    return x->f.dtype == GPUNVME_OPS_F16 ? launch_width<GPUNVME_OPS_F16>(x, stream)
                                         : launch_width<GPUNVME_OPS_BF16>(x, stream);
}
