/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What hopper_backward.cu is made of: how shared memory is laid out, what brings tiles and adds to
 * the sums of grad_q, and the products of a tile. None of it knows of masks, P or dS.
 */
#ifndef OPS_ATTENTION_CUDA_HOPPER_BACKWARD_CUH
#define OPS_ATTENTION_CUDA_HOPPER_BACKWARD_CUH

#include "ops/attention/cuda/backward.cuh"
#include "ops/attention/cuda/hopper_rows.cuh"
#include "ops/hopper/launch.h"
#include "ops/hopper/ring.cuh"
#include "ops/hopper/wgmma.cuh"

#define THREADS (3 * 128)
#define STAGES  2
#define SHARED  (227 * 1024) /* what a block can have, in bytes */

/* Named barriers. */
enum { DS_SHOWN = 1, WEIGHTS_SHOWN, GROUP };

/* Where a sequence's rows are in a tensor map: y is the row, and z = b * batch + head * heads. */
struct map_place {
    int batch, head;
};

struct hopper_backward {
    CUtensorMap maps[BACKWARD_OPERANDS];
    map_place places[BACKWARD_OPERANDS];
    cuda_backward x;
};

/*
 * Tiles of queries are 128 x 64, 64 x 128 or 64 x 256: two pieces of sums of grad_q, one for each
 * group, or four. A block has so many keys.
 */
template <int WIDTH> struct shape {
    static const bool divided = WIDTH == 256; /* a group has grad_k, the other one grad_v */
    static const int keys = divided ? 64 : 128;
    static const int queries = WIDTH == 64 ? 128 : 64;
    static const int pieces = divided ? 2 : 1; /* of each group */
    static const int grad_stages = divided ? 1 : STAGES;
    static const int keys_nbytes = keys * WIDTH * 2;
    static const int queries_nbytes = queries * WIDTH * 2;
    static const int ds_nbytes = keys * queries * 2;
    static const int weights_nbytes = divided ? keys * queries * 4 : 0;
    static const int piece_nbytes = CUDA_BACKWARD_PIECE * CUDA_BACKWARD_PIECE * 4;
    static const int row_nbytes = queries * 4; /* lse2 or D of a tile's queries */
    static const int barriers = 1 + 4 * STAGES + 4;
    static const int shared_nbytes =
        HOPPER_ALIGN + 2 * keys_nbytes + (STAGES + grad_stages) * (queries_nbytes + row_nbytes) +
        2 * ds_nbytes + weights_nbytes + 2 * piece_nbytes + 8 * barriers + 8;

    static_assert(shared_nbytes <= SHARED, "a block's");
};

#ifdef HAVE_HOPPER
/* Addresses in shared memory. Q comes with lse2, and grad_out with D. */
struct tiles {
    uint32_t k, v, q, grad_out, ds, weights, sums, lse2, delta, number;
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
    t.ds = t.grad_out + size::grad_stages * size::queries_nbytes;
    t.weights = t.ds + 2 * size::ds_nbytes;
    t.sums = t.weights + size::weights_nbytes;
    t.lse2 = t.sums + 2 * size::piece_nbytes;
    t.delta = t.lse2 + STAGES * size::row_nbytes;
    t.keys_full = t.delta + size::grad_stages * size::row_nbytes;
    t.q_full = t.keys_full + 8;
    t.q_empty = t.q_full + 8 * STAGES;
    t.grad_full = t.q_empty + 8 * STAGES;
    t.grad_empty = t.grad_full + 8 * STAGES;
    t.sums_full = t.grad_empty + 8 * STAGES;
    t.sums_empty = t.sums_full + 8 * 2;
    t.number = t.sums_empty + 8 * 2;
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

template <int WIDTH>
static __device__ __forceinline__ walk walk_of_block(const cuda_backward &x, const tiles &t)
{
    return walk_of(x, load_shared4(t.number), shape<WIDTH>::keys, shape<WIDTH>::queries);
}

/* Loads a tile of an operand's rows from `row` on, in columns of 64 channels. */
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
    const int grads = size::grad_stages;
    const uint32_t nbytes = size::queries_nbytes + size::row_nbytes;

    mbarrier_arrive_expecting(t.keys_full, 2 * size::keys_nbytes);
    bring<WIDTH>(work, BACKWARD_K, w, w.kv_head, w.key, size::keys, t.k, t.keys_full);
    bring<WIDTH>(work, BACKWARD_V, w, w.kv_head, w.key, size::keys, t.v, t.keys_full);
    for (; w.step < w.steps; next(w)) {
        int stage = w.step % STAGES, grad = w.step % grads, query = w.tile * size::queries;
        int64_t row = w.head * work.x.q_room + query_room(work.x, w.b) + query;

        mbarrier_wait(t.q_empty + 8 * stage, w.step / STAGES % 2 ^ 1);
        mbarrier_arrive_expecting(t.q_full + 8 * stage, nbytes);
        bring<WIDTH>(work, BACKWARD_Q, w, w.head, query, size::queries,
                     t.q + stage * size::queries_nbytes, t.q_full + 8 * stage);
        bulk_load(t.lse2 + stage * size::row_nbytes, work.x.lse2 + row, size::row_nbytes,
                  t.q_full + 8 * stage);
        mbarrier_wait(t.grad_empty + 8 * grad, w.step / grads % 2 ^ 1);
        mbarrier_arrive_expecting(t.grad_full + 8 * grad, nbytes);
        bring<WIDTH>(work, BACKWARD_GRAD_OUT, w, w.head, query, size::queries,
                     t.grad_out + grad * size::queries_nbytes, t.grad_full + 8 * grad);
        bulk_load(t.delta + grad * size::row_nbytes, work.x.delta + row, size::row_nbytes,
                  t.grad_full + 8 * grad);
    }
}

/* This group has read a stage. */
static __device__ __forceinline__ void release_by_group(uint32_t empty)
{
    if (threadIdx.x % 128 == 0)
        mbarrier_arrive(empty);
}

/* Adds one of a group's pieces to the sums. */
template <int WIDTH>
static __device__ __forceinline__ void add_piece(const cuda_backward &x, const tiles &t, int group,
                                                 int64_t piece, uint32_t parity, uint32_t turn)
{
    const int nbytes = shape<WIDTH>::piece_nbytes;

    mbarrier_wait(t.sums_full + 8 * group, parity);
    if (x.turns) {
        wait_for_count(x.turns + piece, turn);
        fence_async_proxy_global();
    }
    bulk_add(x.sums + piece * (nbytes / 4), t.sums + group * nbytes, nbytes);
    tensor_store_commit();
    tensor_store_wait_read<0>();
    mbarrier_arrive(t.sums_empty + 8 * group);
}

/* Lets the next block add to a piece. */
static __device__ __forceinline__ void pass_turn(const cuda_backward &x, int64_t piece)
{
    tensor_store_wait<0>();
    fence_async_proxy_global();
    count_up(x.turns + piece);
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
        int64_t piece =
            row / CUDA_BACKWARD_PIECE * (WIDTH / CUDA_BACKWARD_PIECE) + group * size::pieces;
        uint32_t turn = x.turns ? turn_of_tile(x, w.s, query, w.key, size::keys) : 0;

        for (int i = 0; i < size::pieces; i++) {
            add_piece<WIDTH>(x, t, group, piece + i, (w.step * size::pieces + i) % 2, turn);
            if (x.turns)
                pass_turn(x, piece + i);
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

/* A piece of dS K for so many keys: 64 queries (columns of dS^T) by 64 channels. */
template <int DTYPE, int KEYS>
static __device__ __forceinline__ void begin_piece(float (&sums)[32], uint32_t ds, uint32_t k)
{
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < KEYS / 16; i++)
        multiply<DTYPE, 1, 1>(sums, hopper_tile_descriptor(ds + i * 16 * HOPPER_WIDTH, 1),
                              hopper_tile_descriptor(k + i * 16 * HOPPER_WIDTH, 1), i > 0);
    wgmma_commit();
}

/* dS^T of a warp's 16 of so many keys, for both groups. */
template <int KEYS, int FRAGMENTS>
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

/* A thread's place among those of a group, of four floats each, in shared memory. */
static __device__ __forceinline__ float4 *fours_of(uint32_t at)
{
    return (float4 *)(dynamic_shared() + (at - shared_address(dynamic_shared()))) +
           threadIdx.x % 128;
}

static __device__ __forceinline__ void store_fours(uint32_t to, const float (&sums)[32])
{
    float4 *at = fours_of(to);

#pragma unroll
    for (int j = 0; j < 8; j++)
        at[j * 128] = make_float4(sums[4 * j], sums[4 * j + 1], sums[4 * j + 2], sums[4 * j + 3]);
}

/* A group's piece number n, for the thread that adds it. */
template <int WIDTH>
static __device__ __forceinline__ void hand_over(const cuda_backward &x, const tiles &t, int group,
                                                 int n, const float (&piece)[32])
{
    if (!x.sums)
        return;
    mbarrier_wait(t.sums_empty + 8 * group, n % 2 ^ 1);
    store_fours(t.sums + group * shape<WIDTH>::piece_nbytes, piece);
    fence_async_proxy();
    mbarrier_arrive(t.sums_full + 8 * group);
}
#endif

#endif
