/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The kernel of the rung "hopper" (after Shah et al., "FlashAttention-3", 2024): what sm_90a has
 * for attention.
 *
 *  - The copy engine brings tiles of Q, K and V, several ahead, and zeros for what is not there.
 *  - Both products are wgmma's. P goes from registers, where S was, into the second one.
 *  - Roles: a warp group that only loads gives its registers to the two or three that multiply.
 *  - These take turns to start products, so that tensor cores have one group's while another is at
 *    its softmax. And within a group the softmax of a tile goes on beside P V of the one before.
 *  - O is scaled anew only when a row's maximum grows by more than 2^8: sums of f32 have room.
 *  - Blocks stay: while one tile's results go out, the next one's operands come in.
 *
 * With E4M3 V was transposed before (hopper.h), and a tile of it is one copy. P is E4M3, too. A
 * row's `most` may lag behind its largest exponent by less, and P is multiplied by a power of two:
 * what is 2^-12 of the largest weight is still a normal number.
 */
#ifndef OPS_ATTENTION_CUDA_HOPPER_CUH
#define OPS_ATTENTION_CUDA_HOPPER_CUH

#include "ops/attention/cuda/hopper.h"
#include "ops/attention/cuda/hopper_rows.cuh"
#include "ops/hopper/wgmma.cuh"

#define FP8_GROWTH 2.0f
#define FP8_OFFSET 6.0f /* P is at most 2^8 */
#define FP8_UNIT   0x1p-6f

#ifdef HAVE_HOPPER
/* Addresses in shared memory, as hopper_attention_nbytes() counts them. */
struct attention_memory {
    uint32_t q, slots, full, empty, q_full, q_empty, last_full, item_full, item_empty, items;
};

template <int DTYPE, int CHANNELS, int KEYS, int GROUPS> struct attention_block {
    enum {
        FP8 = DTYPE == GPUNVME_OPS_E4M3,
        SIZE = FP8 ? 1 : 2,
        BOXES = CHANNELS * SIZE / HOPPER_WIDTH,
        Q_NBYTES = HOPPER_ROWS * CHANNELS * SIZE, /* of a warp group */
        TOKENS = 2
    };

    static __device__ __forceinline__ constexpr hopper_shape shape()
    {
        return {CHANNELS, KEYS, GROUPS, SIZE};
    }
    static __device__ __forceinline__ attention_memory lay_out(const void *dynamic)
    {
        attention_memory x;

        x.q = (shared_address(dynamic) + HOPPER_ALIGN - 1) & ~(uint32_t)(HOPPER_ALIGN - 1);
        x.slots = x.q + hopper_q_nbytes(shape());
        x.full = x.slots + hopper_slots(shape()) * hopper_slot_nbytes(shape());
        x.empty = x.full + HOPPER_MOST_SLOTS * 8;
        x.q_full = x.empty + HOPPER_MOST_SLOTS * 8;
        x.q_empty = x.q_full + GROUPS * 8;
        x.last_full = x.q_empty + GROUPS * 8;
        x.item_full = x.last_full + 8;
        x.item_empty = x.item_full + 2 * 8;
        x.items = (x.item_empty + 2 * 8 + 15) & ~15u;
        return x;
    }
    /* What is loaded as number n goes to this slot; and how often it was used, as barriers count.
     */
    static __device__ __forceinline__ uint32_t slot_of(unsigned n)
    {
        return n % hopper_slots(shape());
    }
    static __device__ __forceinline__ uint32_t parity_of(unsigned n)
    {
        return n / hopper_slots(shape()) & 1;
    }
    static __device__ __forceinline__ uint32_t tile_at(const attention_memory &mem, unsigned n)
    {
        return mem.slots + slot_of(n) * hopper_slot_nbytes(shape());
    }
    static __device__ __forceinline__ void wait_full(const attention_memory &mem, unsigned n)
    {
        mbarrier_wait(mem.full + slot_of(n) * 8, parity_of(n));
    }
    static __device__ __forceinline__ void wait_empty(const attention_memory &mem, unsigned n)
    {
        mbarrier_wait(mem.empty + slot_of(n) * 8, parity_of(n) ^ 1);
    }
    /* `loading`: warps that load pieces of pages, and hear of items, too. */
    static __device__ __forceinline__ void make_barriers(const attention_memory &mem, int loading)
    {
        for (int i = 0; i < hopper_slots(shape()); i++) {
            mbarrier_init(mem.full + i * 8, 1);
            mbarrier_init(mem.empty + i * 8, 4 * GROUPS); /* warps */
        }
        for (int i = 0; i < GROUPS; i++) {
            mbarrier_init(mem.q_full + i * 8, 1);
            mbarrier_init(mem.q_empty + i * 8, 4);
        }
        for (int i = 0; i < 2; i++) {
            mbarrier_init(mem.item_full + i * 8, 1);
            mbarrier_init(mem.item_empty + i * 8, 4 * GROUPS + loading);
        }
        mbarrier_init(mem.last_full, 1);
        mbarrier_init_fence();
    }
};

/* A tile of queries, and the tiles of keys that they see: `end` - 1 … first. */
struct attention_tile {
    int b, head, kv_head, row;
    int first, end;
    cuda_sequence s;
};

/* Queries from `row` on; false: there are none. */
template <int KEYS>
static __device__ __forceinline__ bool tile_of(attention_tile &t, const hopper_attention &work,
                                               unsigned i, int rows)
{
    const cuda_attention &p = work.problem;
    hopper_item item = hopper_item_of(&work.queue, i);
    int last;

    t.b = (int)(item.head / (unsigned)p.heads);
    t.row = (int)item.tile * rows;
    t.s = sequence_of(p, t.b);
    if (t.row >= t.s.q_len)
        return false;
    t.head = (int)(item.head - (unsigned)t.b * (unsigned)p.heads);
    t.kv_head = t.head / p.group;
    last = t.row + rows - 1 < t.s.q_len ? t.row + rows - 1 : t.s.q_len - 1;
    t.first = keys_of(p, t.s, t.row).first / KEYS;
    t.end = (keys_of(p, t.s, last).end + KEYS - 1) / KEYS;
    if (t.end < t.first)
        t.end = t.first;
    return true;
}

/* By the warp that loads: the other groups learn number n of the block's items. */
static __device__ __forceinline__ void tell_item(const attention_memory &mem, unsigned n,
                                                 unsigned i)
{
    const uint32_t words[4] = {i, 0, 0, 0};

    mbarrier_wait(mem.item_empty + n % 2 * 8, n / 2 % 2 ^ 1);
    if (threadIdx.x == 0) {
        store_shared16(mem.items + n % 2 * 16, words);
        mbarrier_arrive_at(mem.item_full + n % 2 * 8, 0);
    }
}

/* By that warp: the item after i. */
static __device__ __forceinline__ unsigned next_item(const hopper_attention &work, unsigned i)
{
    unsigned next = i;

    if (!work.taken)
        return i + gridDim.x;
    if (threadIdx.x == 0)
        next = gridDim.x + atomicAdd(work.taken, 1u);
    return (unsigned)__shfl_sync(0xffffffff, (int)next, 0);
}

/* Only the lane that arrives has read the item, as racecheck wants it. */
static __device__ __forceinline__ unsigned hear_item(const attention_memory &mem, unsigned n)
{
    unsigned i = 0;

    mbarrier_wait(mem.item_full + n % 2 * 8, n / 2 % 2);
    if (threadIdx.x % 32 == 0)
        i = load_shared4(mem.items + n % 2 * 16);
    release(mem.item_empty + n % 2 * 8);
    return (unsigned)__shfl_sync(0xffffffff, (int)i, 0);
}

/*
 * What a sequence and head have: factors of S (see soften() and limit()), and of the result. Only
 * those of E4M3 differ from call's.
 */
struct attention_factors {
    float rate, cap_rate, value;
};

template <int DTYPE>
static __device__ __forceinline__ attention_factors factors_of(const hopper_attention &work,
                                                               const attention_tile &t)
{
    const cuda_attention &p = work.problem;
    float score;

    if (DTYPE != GPUNVME_OPS_E4M3)
        return {work.rate, work.cap_rate, 1};
    score = descale_of(p, p.q_descale, t.b, t.kv_head) * descale_of(p, p.k_descale, t.b, t.kv_head);
    return {work.cap_rate != 0 ? work.rate : work.rate * score, work.cap_rate * score,
            FP8_UNIT * descale_of(p, p.v_descale, t.b, t.kv_head)};
}

/* By one thread: `rows` rows from `row` on. The barrier hears of all bytes, zeros too. */
template <int BOXES, int SIZE>
static __device__ __forceinline__ void load_rows(uint32_t to, const CUtensorMap &map, int rows,
                                                 int64_t row, int head, int batch, uint32_t barrier)
{
    mbarrier_arrive_expecting(barrier, rows * BOXES * HOPPER_WIDTH);
    for (int box = 0; box < BOXES; box++)
        tensor_load4(to + box * rows * HOPPER_WIDTH, &map,
                     {box * (HOPPER_WIDTH / SIZE), (int)row, head, batch}, barrier);
}

/* By the warp that loads: tile j of K or V. Of pages others load the pieces: see load_pages(). */
template <int BOXES, int SIZE, int KEYS, bool PAGED>
static __device__ __forceinline__ void load_keys(uint32_t to, const hopper_attention &work,
                                                 const CUtensorMap &map, const attention_tile &t,
                                                 int j, int head, int batch, uint32_t barrier)
{
    int left = t.s.k_len - j * KEYS, rows = left < KEYS ? left : KEYS;

    if (threadIdx.x)
        return;
    if (PAGED)
        mbarrier_arrive_expecting(barrier, (rows + work.piece - 1) / work.piece * work.piece *
                                               BOXES * HOPPER_WIDTH);
    else
        load_rows<BOXES, SIZE>(to, map, KEYS, t.s.k_row + j * KEYS, t.kv_head * head,
                               t.s.k_batch * batch, barrier);
}

/* By one thread: tile j of V, transposed before. */
static __device__ __forceinline__ void load_values(uint32_t to, const hopper_attention &work,
                                                   const attention_tile &t, int j, int keys,
                                                   uint32_t nbytes, uint32_t barrier)
{
    const cuda_attention &p = work.problem;
    int64_t tile = hopper_first_values(p.k_offsets, t.b, t.s.k_row, work.tiles, keys) + j;

    mbarrier_arrive_expecting(barrier, nbytes);
    bulk_load(to, work.values + (tile * p.kv_heads + t.kv_head) * nbytes, nbytes, barrier);
}

/*
 * One warp: all loads but pieces of pages. The last rows of V in a tile may be those of another
 * sequence, or padding: 0 of P would not hide a NaN there, so they are cleared. (What is beyond the
 * tensor is zeros, and of K nothing but masked scores depends on such rows.)
 */
template <int DTYPE, int CHANNELS, int KEYS, int GROUPS, bool PAGED>
static __device__ __forceinline__ void produce(const hopper_attention &work,
                                               const attention_memory &mem)
{
    typedef attention_block<DTYPE, CHANNELS, KEYS, GROUPS> block;
    const bool one = threadIdx.x == 0;
    unsigned n = 0, count = 0;
    uint32_t q_parity = 0, last_parity = 0;
    attention_tile t;

    for (unsigned i = blockIdx.x; i < work.queue.items; i = next_item(work, i)) {
        tell_item(mem, count++, i);
        if (!tile_of<KEYS>(t, work, i, GROUPS * HOPPER_ROWS) || t.end == t.first)
            continue;
        for (int g = 0; g < GROUPS; g++) {
            mbarrier_wait(mem.q_empty + g * 8, q_parity ^ 1);
            if (one)
                load_rows<block::BOXES, block::SIZE>(
                    mem.q + g * block::Q_NBYTES, work.q, HOPPER_ROWS,
                    t.s.q_row + t.row + g * HOPPER_ROWS, t.head * work.q_head,
                    t.s.q_batch * work.q_batch, mem.q_full + g * 8);
        }
        q_parity ^= 1;
        /* K of a tile, then V of the one before it. */
        for (int j = t.end; j >= t.first; j--) {
            if (j > t.first) {
                block::wait_empty(mem, n);
                load_keys<block::BOXES, block::SIZE, KEYS, PAGED>(
                    block::tile_at(mem, n), work, work.k, t, j - 1, work.k_head, work.k_batch,
                    mem.full + block::slot_of(n) * 8);
                n++;
            }
            if (j < t.end) {
                uint32_t full = mem.full + block::slot_of(n) * 8;
                bool last = !block::FP8 && work.padded && (j + 1) * KEYS > t.s.k_len;

                block::wait_empty(mem, n);
                if (!block::FP8)
                    load_keys<block::BOXES, block::SIZE, KEYS, PAGED>(
                        block::tile_at(mem, n), work, work.v, t, j, work.v_head, work.v_batch,
                        last ? mem.last_full : full);
                else if (one)
                    load_values(block::tile_at(mem, n), work, t, j, KEYS,
                                hopper_slot_nbytes(block::shape()), full);
                if (last) {
                    mbarrier_wait(mem.last_full, last_parity);
                    last_parity ^= 1;
                    clear_rows<block::BOXES>(block::tile_at(mem, n), KEYS, t.s.k_len - j * KEYS);
                    if (one)
                        mbarrier_arrive_at(full, 0);
                }
                n++;
            }
            __syncwarp();
        }
    }
    tell_item(mem, count, work.queue.items);
}

/* Where a lane's piece of a tile is; page -1: there is none. */
struct attention_place {
    int page, row;
};

/* The number in a tile of the first row that the lane loads, of the warps behind the first one. */
static __device__ __forceinline__ int piece_at(const hopper_attention &work)
{
    return (int)(threadIdx.x % 32 * HOPPER_LOADING + threadIdx.x / 32 - 1) * work.piece;
}

/* Of tile j. The table may have anything for pages behind the sequence's end. */
template <int KEYS>
static __device__ __forceinline__ attention_place look_up(const hopper_attention &work,
                                                          const attention_tile &t, int j)
{
    unsigned row = (unsigned)(j * KEYS + piece_at(work)), size = (unsigned)work.problem.page_size;

    if (j < t.first || piece_at(work) >= KEYS || (int)row >= t.s.k_len)
        return {-1, 0};
    return {t.s.pages[row / size], (int)(row % size)};
}

template <int BOXES, int SIZE, int KEYS>
static __device__ __forceinline__ void
load_piece(uint32_t to, const hopper_attention &work, const CUtensorMap &map,
           const attention_place &from, int head, int pages, uint32_t barrier)
{
    if (from.page < 0)
        return;
#pragma unroll 1
    for (int box = 0; box < BOXES; box++)
        tensor_load4(to + (box * KEYS + piece_at(work)) * HOPPER_WIDTH, &map,
                     {box * (HOPPER_WIDTH / SIZE), from.row, head, from.page * pages}, barrier);
}

/*
 * HOPPER_LOADING warps: the pieces of K and V, which may come before the first warp has told a
 * barrier of their bytes. Pages are looked up before a slot is free.
 */
template <int DTYPE, int CHANNELS, int KEYS, int GROUPS>
static __device__ __forceinline__ void load_pages(const hopper_attention &work,
                                                  const attention_memory &mem)
{
    typedef attention_block<DTYPE, CHANNELS, KEYS, GROUPS> block;
    unsigned n = 0;
    attention_tile t;

    for (unsigned count = 0;; count++) {
        unsigned i = hear_item(mem, count);
        attention_place place;

        if (i >= work.queue.items)
            break;
        if (!tile_of<KEYS>(t, work, i, GROUPS * HOPPER_ROWS) || t.end == t.first)
            continue;
        place = look_up<KEYS>(work, t, t.end - 1);
        for (int j = t.end; j >= t.first; j--) {
            if (j > t.first) {
                block::wait_empty(mem, n);
                load_piece<block::BOXES, block::SIZE, KEYS>(
                    block::tile_at(mem, n), work, work.k, place, t.kv_head * work.k_head,
                    work.k_batch, mem.full + block::slot_of(n) * 8);
                n++;
            }
            if (j < t.end) {
                place = look_up<KEYS>(work, t, j);
                block::wait_empty(mem, n);
                load_piece<block::BOXES, block::SIZE, KEYS>(
                    block::tile_at(mem, n), work, work.v, place, t.kv_head * work.v_head,
                    work.v_batch,
                    (j + 1) * KEYS > t.s.k_len ? mem.last_full : mem.full + block::slot_of(n) * 8);
                n++;
            }
            place = look_up<KEYS>(work, t, j - 2);
            __syncwarp();
        }
    }
}

/* S = Q K^T, of 64 rows and KEYS columns. */
template <int DTYPE, int CHANNELS, int KEYS>
static __device__ __forceinline__ void multiply_qk(float (&s)[KEYS / 2], uint32_t q, uint32_t k)
{
    const int steps = CHANNELS * (DTYPE == GPUNVME_OPS_E4M3 ? 1 : 2) / 32; /* of 32 bytes */

#pragma unroll
    for (int i = 0; i < steps; i++) {
        uint64_t x = hopper_descriptor(q + i / 4 * HOPPER_BLOCK, 16, 1024) + i % 4 * 2;
        uint64_t y = hopper_descriptor(k + i / 4 * KEYS * HOPPER_WIDTH, 16, 1024) + i % 4 * 2;

        if constexpr (DTYPE == GPUNVME_OPS_E4M3)
            wgmma_e4m3(s, x, y, i > 0);
        else if (DTYPE == GPUNVME_OPS_F16)
            wgmma_f16<0, 0>(s, x, y, i > 0);
        else
            wgmma_bf16<0, 0>(s, x, y, i > 0);
    }
    wgmma_commit();
}

/* O += P V, or the first: O = P V. */
template <int DTYPE, int CHANNELS, int KEYS>
static __device__ __forceinline__ void
multiply_pv(float (&o)[CHANNELS / 2], const uint32_t (&p)[KEYS / 4], uint32_t v, bool more)
{
#pragma unroll
    for (int i = 0; i < KEYS / 16; i++) {
        uint64_t y = hopper_descriptor(v, KEYS * HOPPER_WIDTH, 1024) + i * (16 * HOPPER_WIDTH >> 4);

        if (DTYPE == GPUNVME_OPS_F16)
            wgmma_f16_by_registers<1>(o, &p[4 * i], y, more || i > 0);
        else
            wgmma_bf16_by_registers<1>(o, &p[4 * i], y, more || i > 0);
    }
    wgmma_commit();
}

/* O += P V, or the first: O = P V, of E4M3. */
template <int CHANNELS, int KEYS>
static __device__ __forceinline__ void
multiply_values(float (&o)[CHANNELS / 2], const uint32_t (&p)[KEYS / 8], uint32_t v, bool more)
{
    const int group = CHANNELS * HOPPER_VALUES; /* bytes */

#pragma unroll
    for (int i = 0; i < KEYS / 32; i++)
        wgmma_e4m3_by_registers(
            o, &p[4 * i], hopper_plain_descriptor(v + i * 2 * group, group, 8 * HOPPER_VALUES),
            more || i > 0);
    wgmma_commit();
}

/* By the type: P V of a tile, and S becoming P. */
template <int DTYPE, int CHANNELS, int KEYS, int COUNT>
static __device__ __forceinline__ void multiply_p(float (&o)[CHANNELS / 2],
                                                  const uint32_t (&p)[COUNT], uint32_t v, bool more)
{
    if constexpr (DTYPE == GPUNVME_OPS_E4M3)
        multiply_values<CHANNELS, KEYS>(o, p, v, more);
    else
        multiply_pv<DTYPE, CHANNELS, KEYS>(o, p, v, more);
}

template <int DTYPE, int COUNT>
static __device__ __forceinline__ bool soften_scores(float (&s)[COUNT], attention_rows &rows,
                                                     float (&factor)[2], float rate)
{
    if (DTYPE == GPUNVME_OPS_E4M3)
        return soften(s, rows, factor, rate, FP8_GROWTH, FP8_OFFSET);
    return soften(s, rows, factor, rate);
}

template <int DTYPE, int PAIRS, int COUNT>
static __device__ __forceinline__ void pack_scores(uint32_t (&p)[PAIRS], const float (&s)[COUNT])
{
    if constexpr (DTYPE == GPUNVME_OPS_E4M3)
        pack_fp8(p, s);
    else
        pack<DTYPE>(p, s);
}

/* What is not in every tile: the softcap (its tanh, with the cap in `rate`), and keys not seen. */
template <int COUNT>
static __device__ __forceinline__ void limit(float (&s)[COUNT], const hopper_attention &work,
                                             const attention_tile &t, float cap_rate, int row,
                                             int key)
{
    int lane = threadIdx.x % 32, first[2];
    unsigned count[2];

    if (cap_rate != 0) {
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            s[i] = 1 - 2 * fast_reciprocal(1 + fast_exp2(s[i] * cap_rate));
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        cuda_range keys = keys_of(work.problem, t.s, row + lane / 4 + 8 * h);

        first[h] = keys.first - key - lane % 4 * 2;
        count[h] = keys.end > keys.first ? keys.end - keys.first : 0;
    }
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        int h = i / 2 % 2;

        if ((unsigned)(i / 4 * 8 + i % 2 - first[h]) >= count[h])
            s[i] = -INFINITY;
    }
}

/* Tiles of keys that a warp group sees all of: they do not need limit(). `row`: its first one. */
template <int KEYS>
static __device__ __forceinline__ cuda_range plain_tiles(const hopper_attention &work,
                                                         const attention_tile &t, int row)
{
    const cuda_attention &p = work.problem;

    if (work.cap_rate != 0)
        return {0, 0};
    return {(keys_of(p, t.s, row + HOPPER_ROWS - 1).first + KEYS - 1) / KEYS,
            keys_of(p, t.s, row).end / KEYS};
}

/*
 * The factor that makes a row's sums results, and its lse, by base 2 both: of the exponents'
 * largest and the sum of all lanes.
 */
static __device__ __forceinline__ float finish_row(float most, float sum, float sink, float &lse)
{
    float top = fmaxf(most, sink), factor = fast_exp2(most - top);

    lse = sink;
    if (sum == 0) /* no key was seen */
        return 0;
    sum = sum * factor + fast_exp2(sink - top);
    lse = top + log2f(sum);
    return factor / sum;
}

/* Half of a warp's rows, of a type of 16 bits. */
template <int DTYPE, int COUNT>
static __device__ __forceinline__ void write_half(const hopper_attention &work, int64_t at,
                                                  const float (&o)[COUNT], int h, bool wanted)
{
    const cuda_attention &p = work.problem;

    if (work.vectors)
        write_vectors<DTYPE>((uint16_t *)p.out.data + at, o, h, p.dim_v, wanted);
    else if (wanted)
        write_elements<DTYPE>(p.out.data, at, p.dim_v, o, h);
}

/* Sums of a warp's 16 rows from `row` on become results. */
template <int DTYPE, int COUNT>
static __device__ __forceinline__ void
write_rows(const hopper_attention &work, const attention_tile &t, int row, float (&o)[COUNT],
           const attention_rows &rows, const attention_factors &x)
{
    const bool fp8 = DTYPE == GPUNVME_OPS_E4M3;
    const cuda_attention &p = work.problem;
    int lane = threadIdx.x % 32;
    float sink = sink_of(p, t.head) * LOG2_E, factor[2], lse[2];

#pragma unroll
    for (int h = 0; h < 2; h++) {
        float sum = quad_sum(rows.sum[h]) * (fp8 ? FP8_UNIT : 1);

        factor[h] = finish_row(rows.most[h] * x.rate, sum, sink, lse[h]) * (fp8 ? x.value : 1);
    }
    scale_rows(o, factor);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int i = row + lane / 4 + 8 * h;
        bool wanted = i < t.s.q_len;
        int64_t at = query_at(p.out, t.s, i, t.head);

        if (wanted && p.lse.data && lane % 4 == 0)
            ((float *)p.lse.data)[query_at(p.lse, t.s, i, t.head)] = lse[h] * (1 / LOG2_E);
        if (!work.vectors && p.out_dtype == GPUNVME_OPS_F32) {
            if (wanted)
                write_elements<GPUNVME_OPS_F32>(p.out.data, at, p.dim_v, o, h);
        } else if (!fp8) {
            write_half<DTYPE>(work, at, o, h, wanted);
        } else if (p.out_dtype == GPUNVME_OPS_F16) {
            write_half<GPUNVME_OPS_F16>(work, at, o, h, wanted);
        } else {
            write_half<GPUNVME_OPS_BF16>(work, at, o, h, wanted);
        }
    }
}

/* Rows of a warp's 16 from `row` on that see no key. */
static __device__ __forceinline__ void write_nothing(const hopper_attention &work,
                                                     const attention_tile &t, int row)
{
    const cuda_attention &p = work.problem;
    int lane = threadIdx.x % 32;

#pragma unroll 1
    for (int i = row; i < row + 16 && i < t.s.q_len; i++) {
        if (p.lse.data && lane == 0)
            ((float *)p.lse.data)[query_at(p.lse, t.s, i, t.head)] = sink_of(p, t.head);
#pragma unroll 1
        for (int c = lane; c < p.dim_v; c += 32)
            store_element(p.out.data, query_at(p.out, t.s, i, t.head) + c, p.out_dtype, 0);
    }
}

/* One warp group: 64 rows of each of the block's tiles. */
template <int DTYPE, int CHANNELS, int KEYS, int GROUPS>
static __device__ __forceinline__ void consume(const hopper_attention &work,
                                               const attention_memory &mem, int group)
{
    typedef attention_block<DTYPE, CHANNELS, KEYS, GROUPS> block;
    const uint32_t q = mem.q + group * block::Q_NBYTES;
    const int next = group + 1 < GROUPS ? group + 1 : 0;
    unsigned n = 0;
    uint32_t q_parity = 0;
    float s[KEYS / 2], o[CHANNELS / 2], factor[2];
    uint32_t p[KEYS * block::SIZE / 8];

    if (group == GROUPS - 1)
        barrier_arrive(block::TOKENS + next, 256);
#pragma unroll 1
    for (unsigned count = 0;; count++) {
        unsigned i = hear_item(mem, count);
        attention_rows rows = {{-INFINITY, -INFINITY}, {0, 0}};
        attention_factors x;
        attention_tile t;
        cuda_range plain;
        int row;

        if (i >= work.queue.items)
            break;
        if (!tile_of<KEYS>(t, work, i, GROUPS * HOPPER_ROWS))
            continue;
        row = t.row + group * HOPPER_ROWS + (int)threadIdx.x % 128 / 32 * 16;
        if (t.first == t.end) {
            write_nothing(work, t, row);
            continue;
        }
        x = factors_of<DTYPE>(work, t);
        plain = plain_tiles<KEYS>(work, t, t.row + group * HOPPER_ROWS);
        mbarrier_wait(mem.q_full + group * 8, q_parity);
        q_parity ^= 1;
        block::wait_full(mem, n);
        barrier_wait(block::TOKENS + group, 256);
        wgmma_fence();
        multiply_qk<DTYPE, CHANNELS, KEYS>(s, q, block::tile_at(mem, n));
        barrier_arrive(block::TOKENS + next, 256);
        wgmma_wait_for(s);
        release(mem.empty + block::slot_of(n++) * 8);
        if (!sees(plain, t.end - 1))
            limit(s, work, t, x.cap_rate, row, (t.end - 1) * KEYS);
        soften_scores<DTYPE>(s, rows, factor, x.rate);
        pack_scores<DTYPE>(p, s);
#pragma unroll 1
        for (int j = t.end - 2; j >= t.first; j--) {
            bool grew;

            block::wait_full(mem, n);
            barrier_wait(block::TOKENS + group, 256);
            wgmma_fence();
            multiply_qk<DTYPE, CHANNELS, KEYS>(s, q, block::tile_at(mem, n));
            block::wait_full(mem, n + 1);
            wgmma_fence();
            multiply_p<DTYPE, CHANNELS, KEYS>(o, p, block::tile_at(mem, n + 1), j < t.end - 2);
            barrier_arrive(block::TOKENS + next, 256);
            wgmma_wait_for_all_but_last(s);
            release(mem.empty + block::slot_of(n) * 8);
            if (!sees(plain, j))
                limit(s, work, t, x.cap_rate, row, j * KEYS);
            grew = soften_scores<DTYPE>(s, rows, factor, x.rate);
            wgmma_wait_for(o);
            wgmma_wait_for(s); /* P's registers are not written before */
            release(mem.empty + block::slot_of(n + 1) * 8);
            n += 2;
            if (__ballot_sync(0xffffffff, grew))
                scale_rows(o, factor);
            pack_scores<DTYPE>(p, s);
        }
        release(mem.q_empty + group * 8);
        block::wait_full(mem, n);
        wgmma_fence();
        multiply_p<DTYPE, CHANNELS, KEYS>(o, p, block::tile_at(mem, n), t.end - t.first > 1);
        wgmma_wait_for(o);
        release(mem.empty + block::slot_of(n++) * 8);
        write_rows<DTYPE>(work, t, row, o, rows, x);
    }
}
#endif

template <int DTYPE, int CHANNELS, int KEYS, int GROUPS, bool PAGED>
static __global__ void __launch_bounds__(128 * (GROUPS + 1), 1)
    attend(const __grid_constant__ hopper_attention work)
{
#ifdef HAVE_HOPPER
    typedef attention_block<DTYPE, CHANNELS, KEYS, GROUPS> block;
    attention_memory mem = block::lay_out(dynamic_shared());

    if (threadIdx.x == 0) {
        tensor_prefetch(&work.q);
        tensor_prefetch(&work.k);
        tensor_prefetch(&work.v);
        block::make_barriers(mem, PAGED ? HOPPER_LOADING : 0);
    }
    __syncthreads();
    let_next_kernel_start();
    wait_for_kernels_before();
    if (threadIdx.x < 128) {
        registers_give_back<GROUPS == 2 ? 40 : 32>();
        if (threadIdx.x < 32)
            produce<DTYPE, CHANNELS, KEYS, GROUPS, PAGED>(work, mem);
        else if constexpr (PAGED)
            load_pages<DTYPE, CHANNELS, KEYS, GROUPS>(work, mem);
    } else {
        registers_take<GROUPS == 2 ? 232 : 160>();
        /* One number for the warp, so that the compiler has descriptors in uniform registers. */
        consume<DTYPE, CHANNELS, KEYS, GROUPS>(
            work, mem, __shfl_sync(0xffffffff, (int)threadIdx.x / 128 - 1, 0));
    }
#endif
}

#endif
