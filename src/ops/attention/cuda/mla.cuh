/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The rung "mla": how shared memory is laid out, which tiles a cluster has, and how they are
 * loaded. mla.cu has the rest.
 */
#ifndef OPS_ATTENTION_CUDA_MLA_CUH
#define OPS_ATTENTION_CUDA_MLA_CUH

#include "ops/attention/cuda/hopper.h"
#include "ops/attention/cuda/mla_combine.cuh"
#include "ops/hopper/ring.cuh"

static_assert((int)MLA_KEYS == (int)DECODE_TILE, "tiles have one size");

enum {
    LEFT = MLA_DIM_V / 2 / 64,   /* boxes of 64 keys by 64 channels: of the first half, */
    RIGHT = MLA_DIM / 64 - LEFT, /* and of the second with what is no value, where P goes */
    LEFT_SLOTS = 2,
    RIGHT_SLOTS = 3,
    CHANNELS = MLA_DIM - LEFT * 64, /* of Q in registers: those of the second half */
    THREADS = 4 * 128,

    /* Where things are in shared memory, from a multiple of HOPPER_ALIGN on. */
    Q_AT = 0,
    LEFT_AT = Q_AT + LEFT * HOPPER_BLOCK,
    RIGHT_AT = LEFT_AT + LEFT_SLOTS * LEFT * HOPPER_BLOCK,
    LEFT_FULL = RIGHT_AT + RIGHT_SLOTS * RIGHT * HOPPER_BLOCK, /* barriers of each slot: loaded, */
    LEFT_EMPTY = LEFT_FULL + LEFT_SLOTS * 8,                   /* and added up */
    RIGHT_FULL = LEFT_EMPTY + LEFT_SLOTS * 8,
    RIGHT_EMPTY = RIGHT_FULL + RIGHT_SLOTS * 8,
    SCORED = RIGHT_EMPTY + RIGHT_SLOTS * 8, /* likewise: scores are done, */
    READY = SCORED + RIGHT_SLOTS * 8,       /* P is there */
    PLANNED = READY + RIGHT_SLOTS * 8,      /* of runs, in turn */
    ENDS_EMPTY = PLANNED + 2 * 8,
    SHARED_HEADS_FULL = ENDS_EMPTY + 8,
    BARRIERS_END = SHARED_HEADS_FULL + 8,
    TILES_AT = (BARRIERS_END + 15) / 16 * 16,
    RUNS_AT = TILES_AT + RIGHT_SLOTS * 16,
    NEXT_AT = RUNS_AT + 2 * 32,
    SHARES_AT = NEXT_AT + 16,
    SHARED_HEADS_AT = SHARES_AT + 16,
    FACTORS_AT = SHARED_HEADS_AT + 48, /* by which sums before a tile are multiplied */
    ENDS_AT = FACTORS_AT + RIGHT_SLOTS * MLA_ROWS * 4, /* by which all are in the end */
    COMBINE_AT = LEFT_AT,                              /* when all tiles have been added up */
    SHARED_NBYTES = ENDS_AT + MLA_ROWS * 4 + HOPPER_ALIGN,
};

static_assert((int)SHARED_NBYTES <= (int)HOPPER_SHARED, "shared memory is too small");
static_assert(2 * sizeof(shared_head) <= 48, "shared heads need more room");
static_assert(sizeof(combine_memory) <= LEFT_SLOTS * LEFT * HOPPER_BLOCK, "it needs more room");

#define MEETINGS_BARRIER 3 /* meetings are open */
#define MEETINGS_THREADS (32 + COMBINE_THREADS)

/* What a tile is to its cluster's run of tiles of a head. */
enum { FIRST = 1, LAST = 2, WHOLE = 4, BEGINS = 8, EDGE = 16, STOP = 32 };

struct mla_work {
    CUtensorMap k;
    decode_work decode;   /* of heads as mla_group() divides them; its blocks are clusters */
    meeting *meetings;    /* of the head that each cluster began, for each rank */
    uint64_t tag;         /* of the call; its last MEETING_BITS are 0 */
    int size;             /* blocks of a cluster */
    int piece;            /* keys that are loaded at once */
    int share;            /* so many heads in a row share one of K */
    int k_head, k_page;   /* what coordinates are multiplied by: 0 where there is only one */
    float rate, cap_rate; /* as those of struct hopper_attention */
    int vectors;
};

#ifdef HAVE_HOPPER
/* A slot of a ring in turn, and how often all have been used, as barriers count it. */
template <uint32_t SLOTS> struct mla_turn {
    uint32_t slot, parity;

    __device__ __forceinline__ void advance(void)
    {
        if (++slot == SLOTS) {
            slot = 0;
            parity ^= 1;
        }
    }
};

typedef mla_turn<LEFT_SLOTS> left_turn;
typedef mla_turn<RIGHT_SLOTS> right_turn;

static __device__ __forceinline__ uint32_t left_at(uint32_t base, const left_turn &t)
{
    return base + LEFT_AT + t.slot * LEFT * HOPPER_BLOCK;
}

static __device__ __forceinline__ uint32_t right_at(uint32_t base, const right_turn &t)
{
    return base + RIGHT_AT + t.slot * RIGHT * HOPPER_BLOCK;
}

/* Where P of a tile is. */
static __device__ __forceinline__ uint32_t p_at(uint32_t base, const right_turn &t)
{
    return right_at(base, t) + (RIGHT - 1) * HOPPER_BLOCK;
}

/* What the groups know of a tile. */
struct mla_tile {
    int key, flags, b, head;
};

static __device__ __forceinline__ mla_tile hear_tile(uint32_t base, const right_turn &t)
{
    uint4 x = load_shared16(base + TILES_AT + t.slot * 16);

    return {(int)x.x, (int)x.y, (int)x.z, (int)x.w};
}

static __device__ __forceinline__ void tell_four(uint32_t to, int x, int y, int z, int w)
{
    const uint32_t words[4] = {(uint32_t)x, (uint32_t)y, (uint32_t)z, (uint32_t)w};

    store_shared16(to, words);
}

static __device__ __forceinline__ void make_barriers(uint32_t base, int size)
{
    for (int i = 0; i < LEFT_SLOTS; i++) {
        mbarrier_init(base + LEFT_FULL + i * 8, 1);
        mbarrier_init(base + LEFT_EMPTY + i * 8, 4 * size); /* warps */
    }
    for (int i = 0; i < RIGHT_SLOTS; i++) {
        mbarrier_init(base + RIGHT_FULL + i * 8, 1);
        mbarrier_init(base + RIGHT_EMPTY + i * 8, 4 * size);
        mbarrier_init(base + SCORED + i * 8, 4);
        mbarrier_init(base + READY + i * 8, 4);
    }
    mbarrier_init(base + PLANNED, 1);
    mbarrier_init(base + PLANNED + 8, 1);
    mbarrier_init(base + ENDS_EMPTY, 8);
    mbarrier_init(base + SHARED_HEADS_FULL, 1);
    mbarrier_init_fence();
}

/* A pointer to what is in shared memory. */
static __device__ __forceinline__ void *shared_pointer(uint32_t address)
{
    return dynamic_shared() + (address - shared_address(dynamic_shared()));
}

/* By a warp: the tiles of its cluster, of which plan_run() takes the first ones. */
static __device__ __forceinline__ void begin_plan(const mla_work &work, uint32_t base)
{
    const decode_work &w = work.decode;
    int cluster = (int)(blockIdx.x / work.size);
    shares all = shares_of(w);
    shared_head *heads = (shared_head *)shared_pointer(base + SHARED_HEADS_AT);
    cursor c = {};
    int begin = 0, end = 0;

    if (cluster < all.blocks) {
        begin = (int)share_begin(all, cluster);
        end = (int)share_begin(all, cluster + 1);
        c = cursor_at(w.x, begin);
    }
    if (threadIdx.x % 32 == 0) {
        tell_four(base + NEXT_AT, c.b, c.head, c.tile, end - begin);
        tell_four(base + SHARES_AT, (int)all.tiles, (int)all.blocks, end, 0);
        heads[0].b = heads[1].b = -1;
    }
    __syncwarp();
}

/*
 * By a thread: `left` tiles before the end of its cluster's tiles begin those of a head from where
 * the cursor is on. If other clusters have tiles of it, too, its block meets theirs. There are at
 * most two such heads: the one that a cluster before began, and the one that is left to the next.
 */
static __device__ __forceinline__ void note_shared_head(const mla_work &work, uint32_t base,
                                                        const cursor &c, int left)
{
    uint4 x = load_shared16(base + SHARES_AT);
    shares all = {(int)x.x, (int)x.y};
    int64_t begin = (int)x.z - left - c.tile;
    int first = share_of(all, begin), last = share_of(all, begin + c.e.tiles - 1);
    shared_head *heads = (shared_head *)shared_pointer(base + SHARED_HEADS_AT);

    if (first != last)
        heads[first == (int)(blockIdx.x / work.size)] = {c.b, c.head, first, last, 0};
}

/* Where this block meets others: see combine(). */
static __device__ __forceinline__ meeting *meetings_of(const mla_work &work)
{
    return work.meetings + blockIdx.x % work.size;
}

/* By a warp that has nothing else to do, for it takes two trips to memory. */
static __device__ __forceinline__ void open_meetings(const mla_work &work, uint32_t base)
{
    shared_head *heads = (shared_head *)shared_pointer(base + SHARED_HEADS_AT);

    mbarrier_wait(base + SHARED_HEADS_FULL, 0);
    if (threadIdx.x % 32 == 0)
        for (int i = 0; i < 2; i++)
            if (heads[i].b >= 0)
                open_meeting(meetings_of(work) + heads[i].first * work.size, work.tag, heads[i]);
    __syncwarp();
    barrier_arrive(MEETINGS_BARRIER, MEETINGS_THREADS);
}

/* By the groups that have added up, when they have. */
static __device__ __forceinline__ void combine_parts(const mla_work &work, uint32_t base)
{
    const shared_head *heads = (const shared_head *)shared_pointer(base + SHARED_HEADS_AT);
    int row = (int)(blockIdx.x % work.size) * MLA_ROWS;

    barrier_wait(MEETINGS_BARRIER, MEETINGS_THREADS);
    combine(work.decode, meetings_of(work), work.size, heads, row,
            *(combine_memory *)shared_pointer(base + COMBINE_AT));
}

/*
 * By that warp, which does it for the one that loads: that has few registers, while this one has no
 * Q between runs. A run is the tiles of one head, or there are none.
 */
static __device__ __forceinline__ void plan_run(const mla_work &work, uint32_t base, int number)
{
    const cuda_attention &x = work.decode.x;
    uint4 next = load_shared16(base + NEXT_AT);
    uint32_t to = base + RUNS_AT + number % 2 * 32;
    int left = (int)next.w, run = 0;
    cursor c = {};

    __syncwarp();
    if (left) {
        c = {extent_of(x, (int)next.x), (int)next.x, (int)next.y, (int)next.z};
        run = c.e.tiles - c.tile < left ? c.e.tiles - c.tile : left;
    }
    if (threadIdx.x % 32 == 0) {
        int part = c.tile ? 0 : run < c.e.tiles ? BEGINS : BEGINS | WHOLE;

        if (left) {
            tell_four(to, (c.e.tile + c.tile) * MLA_KEYS, run, c.e.keys.end, part);
            tell_four(to + 16, c.b, c.head, keys_of(x, c.e.s, c.e.s.q_len - 1).first,
                      keys_of(x, c.e.s, 0).end);
        } else {
            tell_four(to, 0, 0, 0, 0);
        }
        mbarrier_arrive(base + PLANNED + number % 2 * 8);
        if (left && !(part & WHOLE))
            note_shared_head(work, base, c, left);
        if (number ? left && run == left : run == left)
            mbarrier_arrive(base + SHARED_HEADS_FULL); /* the last run, or there is none */
    }
    __syncwarp();
    if (left)
        advance(x, c, run);
    if (threadIdx.x % 32 == 0)
        tell_four(base + NEXT_AT, c.b, c.head, c.tile, left - run);
    __syncwarp();
}

/* By a warp, whose lane l knows page and row of piece l: `count` boxes of a tile. */
static __device__ __forceinline__ void load_boxes(const mla_work &work, uint32_t to, uint32_t full,
                                                  int from, int count, int pieces, int head,
                                                  int page, int row)
{
    int box = (int)(threadIdx.x % 32) - from;

    if (threadIdx.x % 32 == 0)
        mbarrier_arrive_expecting(full, (uint32_t)(pieces * work.piece * count * HOPPER_WIDTH));
    __syncwarp();
#pragma unroll 1
    for (int i = (int)(blockIdx.x % work.size); i < pieces; i += work.size) {
        const int at[4] = {(from + box) * 64, __shfl_sync(ALL_LANES, row, i), head,
                           __shfl_sync(ALL_LANES, page, i)};
        uint32_t there = to + (uint32_t)(box * HOPPER_BLOCK + i * work.piece * HOPPER_WIDTH);

        if (box < 0 || box >= count)
            continue;
        if (work.size > 1)
            tensor_load4_multicast(there, &work.k, at, full, 3);
        else
            tensor_load4(there, &work.k, at, full);
    }
    __syncwarp();
}

/*
 * By a warp: the tile of a run that begins with a key; of what it has, the block loads every so
 * many pieces for its whole cluster.
 */
static __device__ __forceinline__ void load_tile(const mla_work &work, uint32_t base,
                                                 const left_turn &l, const right_turn &r, int key,
                                                 int flags, uint32_t run)
{
    const cuda_attention &x = work.decode.x;
    int left = (int)load_shared4(run + 8) - key, pieces, page = 0, row = 0;
    int b = (int)load_shared4(run + 16), head = (int)load_shared4(run + 20);

    left = left < 0 ? 0 : left < MLA_KEYS ? left : MLA_KEYS;
    pieces = (left + work.piece - 1) / work.piece;
    if ((int)(threadIdx.x % 32) < pieces) {
        unsigned number = (unsigned)(key + (int)(threadIdx.x % 32) * work.piece);

        page = x.table[b * x.ld_table + number / (unsigned)x.page_size] * work.k_page;
        row = (int)(number % (unsigned)x.page_size);
    }
    mbarrier_wait(base + RIGHT_EMPTY + r.slot * 8, r.parity ^ 1);
    if (threadIdx.x % 32 == 0)
        tell_four(base + TILES_AT + r.slot * 16, key, flags, b, head);
    head = head / work.share * work.k_head;
    load_boxes(work, right_at(base, r), base + RIGHT_FULL + r.slot * 8, LEFT, RIGHT, pieces, head,
               page, row);
    mbarrier_wait(base + LEFT_EMPTY + l.slot * 8, l.parity ^ 1);
    load_boxes(work, left_at(base, l), base + LEFT_FULL + l.slot * 8, 0, LEFT, pieces, head, page,
               row);
}

/* One warp: all tiles, and what they are. */
static __device__ __forceinline__ void produce(const mla_work &work, uint32_t base)
{
    left_turn l = {0, 0};
    right_turn r = {0, 0};

#pragma unroll 1
    for (int number = 0;; number++) {
        uint32_t run = base + RUNS_AT + number % 2 * 32;
        int tiles, key;

        mbarrier_wait(base + PLANNED + number % 2 * 8, number / 2 % 2);
        key = (int)load_shared4(run);
        tiles = (int)load_shared4(run + 4);
        if (!tiles)
            break;
#pragma unroll 1
        for (int flags = FIRST; tiles; key += MLA_KEYS, flags = 0) {
            flags |= (int)load_shared4(run + 12);
            if (key < (int)load_shared4(run + 24) || key + MLA_KEYS > (int)load_shared4(run + 28))
                flags |= EDGE;
            if (!--tiles)
                flags |= LAST;
            load_tile(work, base, l, r, key, flags, run);
            l.advance();
            r.advance();
        }
    }
    mbarrier_wait(base + RIGHT_EMPTY + r.slot * 8, r.parity ^ 1);
    if (threadIdx.x == 0) {
        tell_four(base + TILES_AT + r.slot * 16, 0, STOP, 0, 0);
        mbarrier_arrive(base + RIGHT_FULL + r.slot * 8);
    }
}
#endif

#endif
