/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The rung "mla": decoding by latent vectors (DeepSeek-AI, "DeepSeek-V2", 2024) on sm_90a. A key
 * has 576 channels, and the first 512 of them are its value. So a tile of 64 keys is in shared
 * memory once and is read twice, along its channels by Q K^T and along its keys by P V.
 *
 * Sums of 64 rows and 512 channels are half of all registers. They decide the roles of the warp
 * groups, of which each has the registers that it needs:
 *
 *  - One warp loads, two to three tiles ahead. Two blocks whose rows see the same keys are a
 *    cluster: each loads half of a tile for both.
 *  - One group makes scores. It has more than half of Q in registers: so the product reads less
 *    from shared memory, and there is room for more tiles. P goes to where the tile's last channels
 *    were, which nobody needs any more.
 *  - Two groups add up 256 channels each. The second one begins with a tile when the scores of the
 *    next are done, so that the tensor cores have work while those become P. A tile's halves have
 *    rings of their own: the first has two slots, the second, which is needed longer, three.
 *
 * Tiles are shared among clusters as in decode.cuh, and mla_combine.cuh combines parts.
 */
#include "ops/attention/cuda/hopper_rows.cuh"
#include "ops/attention/cuda/mla.cuh"
#include "ops/hopper/wgmma.cuh"

#ifdef HAVE_HOPPER
/* The row of its head that a thread's row h is. */
static __device__ __forceinline__ int row_of(const mla_work &work, int h)
{
    int thread = threadIdx.x % 128;

    return (int)(blockIdx.x % work.size) * MLA_ROWS + thread / 32 * 16 + thread % 32 / 4 + 8 * h;
}

/* Where a row of Q begins; NULL: there is none. */
static __device__ __forceinline__ const uint16_t *q_row(const cuda_attention &x, const extent &e,
                                                        int head, int r)
{
    if (r >= e.rows)
        return NULL;
    return (const uint16_t *)x.q.data + query_at(x.q, e.s, query_of(x, r), head_of(x, head, r));
}

static __device__ __forceinline__ uint4 load_vector(const uint16_t *from, int channel)
{
    return from ? *(const uint4 *)(from + channel) : make_uint4(0, 0, 0, 0);
}

/* Q of a head: asks for its second half and what is left, and copies the first to shared memory. */
static __device__ __forceinline__ void begin_q(const mla_work &work, int b, int head, uint32_t base,
                                               uint4 (&v)[2][CHANNELS / 32])
{
    const cuda_attention &x = work.decode.x;
    int thread = threadIdx.x % 128, row = thread / 2;
    extent e = extent_of(x, b);
    const uint16_t *from = q_row(x, e, head, (int)(blockIdx.x % work.size) * MLA_ROWS + row);

#pragma unroll 4
    for (int i = 0; i < LEFT * 64 / 2 / 8; i++) {
        int c = thread % 2 * 32 + i / 4 * 64 + i % 4 * 8;

        cp_async16(base + Q_AT + (uint32_t)(c / 64 * HOPPER_BLOCK) +
                       hopper_swizzle((uint32_t)row, (uint32_t)(c % 64 * 2)),
                   from ? from + c : x.q.data, from ? 16 : 0);
    }
    cp_async_commit();
#pragma unroll
    for (int h = 0; h < 2; h++) {
        from = q_row(x, e, head, row_of(work, h));
#pragma unroll
        for (int i = 0; i < CHANNELS / 32; i++)
            v[h][i] = load_vector(from, LEFT * 64 + i * 32 + thread % 4 * 8);
    }
}

/* It is there: the second half in registers, as products take it. */
static __device__ __forceinline__ void end_q(const uint4 (&v)[2][CHANNELS / 32],
                                             uint32_t (&q)[CHANNELS / 4])
{
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
        for (int i = 0; i < CHANNELS / 32; i++) {
            uint32_t y[4] = {v[h][i].x, v[h][i].y, v[h][i].z, v[h][i].w};

            gather_vectors(y); /* now four words in a row are of four vectors in a row */
            q[8 * i + h] = y[0];
            q[8 * i + 2 + h] = y[1];
            q[8 * i + 4 + h] = y[2];
            q[8 * i + 6 + h] = y[3];
        }
    cp_async_wait<0>();
    fence_async_proxy();
    barrier_128(1);
}

/* One number for the warp, so that the compiler has descriptors in uniform registers. */
static __device__ __forceinline__ uint32_t uniform(uint32_t x)
{
    return (uint32_t)__shfl_sync(ALL_LANES, (int)x, 0);
}

/* S = Q K^T: of the second half, and then of the first. */
template <int DTYPE>
static __device__ __forceinline__ void multiply_right(float (&s)[MLA_KEYS / 2],
                                                      const uint32_t (&q)[CHANNELS / 4], uint32_t k)
{
    uint64_t first = hopper_descriptor(uniform(k), 16, 1024);

#pragma unroll
    for (int i = 0; i < CHANNELS / 16; i++) {
        uint64_t y = first + i / 4 * (HOPPER_BLOCK >> 4) + i % 4 * 2;

        if (DTYPE == GPUNVME_OPS_F16)
            wgmma_f16_by_registers<0>(s, &q[4 * i], y, i > 0);
        else
            wgmma_bf16_by_registers<0>(s, &q[4 * i], y, i > 0);
    }
}

template <int DTYPE>
static __device__ __forceinline__ void multiply_left(float (&s)[MLA_KEYS / 2], uint32_t q,
                                                     uint32_t k)
{
    uint64_t first_x = hopper_descriptor(q, 16, 1024);
    uint64_t first_y = hopper_descriptor(uniform(k), 16, 1024);

#pragma unroll
    for (int i = 0; i < LEFT * 64 / 16; i++) {
        int step = i / 4 * (HOPPER_BLOCK >> 4) + i % 4 * 2;
        uint64_t x = first_x + step, y = first_y + step;

        if (DTYPE == GPUNVME_OPS_F16)
            wgmma_f16<0, 0>(s, x, y, 1);
        else
            wgmma_bf16<0, 0>(s, x, y, 1);
    }
}

/* By a warp group: values of rows from `first` on become zeros. */
static __device__ __forceinline__ void clear_values(uint32_t left, uint32_t right, int first)
{
    const uint32_t zeros[4] = {0, 0, 0, 0};
    int words = (MLA_KEYS - first) * 8; /* of 16 bytes, in each box */

#pragma unroll 1
    for (int i = (int)threadIdx.x % 128; i < 2 * LEFT * words; i += 128) {
        int box = i / words;
        uint32_t at = (uint32_t)(first * HOPPER_WIDTH + i % words * 16);

        store_shared16(
            (box < LEFT ? left + box * HOPPER_BLOCK : right + (box - LEFT) * HOPPER_BLOCK) + at,
            zeros);
    }
}

/* The softcap: its tanh, with the cap in `rate`. */
static __device__ __forceinline__ void cap(float (&s)[MLA_KEYS / 2], float rate)
{
#pragma unroll
    for (int i = 0; i < MLA_KEYS / 2; i++)
        s[i] = 1 - 2 * fast_reciprocal(1 + fast_exp2(s[i] * rate));
}

/*
 * Keys that not all queries see. What is behind the last one may be anything: 0 of P would not hide
 * a NaN there, so those values are cleared.
 */
static __device__ __forceinline__ void mask(float (&s)[MLA_KEYS / 2], const mla_work &work,
                                            const mla_tile &tile, uint32_t left, uint32_t right)
{
    const cuda_attention &x = work.decode.x;
    extent e = extent_of(x, tile.b);

#pragma unroll
    for (int h = 0; h < 2; h++) {
        int r = row_of(work, h);
        cuda_range keys = r < e.rows ? keys_of(x, e.s, query_of(x, r)) : e.keys;
        int first = keys.first - tile.key - (int)threadIdx.x % 4 * 2;
        unsigned count = keys.end > keys.first ? keys.end - keys.first : 0;

#pragma unroll
        for (int j = 0; j < MLA_KEYS / 8; j++)
#pragma unroll
            for (int i = 0; i < 2; i++)
                if ((unsigned)(j * 8 + i - first) >= count)
                    s[4 * j + 2 * h + i] = -INFINITY;
    }
    if (e.keys.end < tile.key + MLA_KEYS)
        clear_values(left, right, e.keys.end > tile.key ? e.keys.end - tile.key : 0);
}

/* P to shared memory, as the first operand of products with V. */
template <int DTYPE>
static __device__ __forceinline__ void store_p(uint32_t to, const float (&s)[MLA_KEYS / 2])
{
    uint32_t p[MLA_KEYS / 4], lane = threadIdx.x % 32;
    uint32_t row = threadIdx.x % 128 / 32 * 16 + lane / 8 % 2 * 8 + lane % 8;

    pack<DTYPE>(p, s);
#pragma unroll
    for (int i = 0; i < MLA_KEYS / 16; i++) {
        const uint32_t x[4] = {p[4 * i], p[4 * i + 1], p[4 * i + 2], p[4 * i + 3]};

        store_matrices(to + hopper_swizzle(row, (i * 2 + lane / 16) * 16), x);
    }
}

/* To where the groups that add up look: a number for each of a thread's rows. */
static __device__ __forceinline__ void tell_rows(uint32_t to, const float (&x)[2])
{
    int thread = threadIdx.x % 128;

#pragma unroll
    for (int h = 0; h < 2; h++)
        if (thread % 4 == 0)
            store_shared4(to + (uint32_t)(thread / 32 * 16 + thread % 32 / 4 + 8 * h) * 4,
                          __float_as_uint(x[h]));
}

static __device__ __forceinline__ void hear_rows(uint32_t from, float (&x)[2])
{
    int thread = threadIdx.x % 128;

#pragma unroll
    for (int h = 0; h < 2; h++)
        x[h] = __uint_as_float(
            load_shared4(from + (uint32_t)(thread / 32 * 16 + thread % 32 / 4 + 8 * h) * 4));
}

/* A run ends: rows' lse and the factors of their sums; or what a part has beside its sums. */
static __device__ __forceinline__ void end_rows(const mla_work &work, const mla_tile &tile,
                                                uint32_t base, const attention_rows &rows)
{
    const decode_work &w = work.decode;
    extent e = extent_of(w.x, tile.b);
    float factor[2] = {1, 1};

#pragma unroll
    for (int h = 0; h < 2; h++) {
        float most = rows.most[h] * work.rate, total = quad_sum(rows.sum[h]);
        int r = row_of(work, h);
        bool mine = r < e.rows && threadIdx.x % 4 == 0;

        if (tile.flags & WHOLE) {
            row_end end = end_row(w.x, head_of(w.x, tile.head, r < e.rows ? r : 0), most, total);

            factor[h] = end.factor;
            if (mine)
                store_lse(w.x, e.s, tile.head, r, end.lse);
        } else if (mine) {
            part p = part_of(w, (int)(blockIdx.x / work.size), tile.flags & BEGINS);

            p.most[r] = most;
            p.total[r] = total;
        }
    }
    tell_rows(base + ENDS_AT, factor);
}

/* This warp has done its share of what a barrier waits for. */
static __device__ __forceinline__ void tell(uint32_t barrier)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        mbarrier_arrive(barrier);
}

/* One warp group: P of all tiles. */
template <int DTYPE>
static __device__ __forceinline__ void make_scores(const mla_work &work, uint32_t base)
{
    const bool plans = threadIdx.x % 128 < 32;
    uint32_t q[CHANNELS / 4];
    uint4 vectors[2][CHANNELS / 32];
    attention_rows rows = {{-INFINITY, -INFINITY}, {0, 0}};
    float s[MLA_KEYS / 2], factor[2];
    left_turn l = {0, 0};
    right_turn r = {0, 0};
    int runs = 0;

    if (plans) {
        begin_plan(work, base);
        plan_run(work, base, 0);
    }
#pragma unroll 1
    for (bool first = true;; l.advance(), r.advance()) {
        uint32_t run = base + RUNS_AT + runs % 2 * 32;
        mla_tile tile;

        if (first) {
            mbarrier_wait(base + PLANNED + runs % 2 * 8, runs / 2 % 2);
            if (!load_shared4(run + 4))
                break;
            begin_q(work, (int)load_shared4(run + 16), (int)load_shared4(run + 20), base, vectors);
            runs++;
            if (plans)
                plan_run(work, base, runs);
            end_q(vectors, q);
            rows = {{-INFINITY, -INFINITY}, {0, 0}};
        }
        mbarrier_wait(base + RIGHT_FULL + r.slot * 8, r.parity);
        tile = hear_tile(base, r);
        first = tile.flags & LAST;
        wgmma_fence();
        multiply_right<DTYPE>(s, q, right_at(base, r));
        mbarrier_wait(base + LEFT_FULL + l.slot * 8, l.parity);
        wgmma_fence();
        multiply_left<DTYPE>(s, base + Q_AT, left_at(base, l));
        wgmma_commit();
        wgmma_wait_for(s);
        tell(base + SCORED + r.slot * 8);
        if (work.cap_rate != 0)
            cap(s, work.cap_rate);
        if (tile.flags & EDGE)
            mask(s, work, tile, left_at(base, l), right_at(base, r));
        soften(s, rows, factor, work.rate);
        tell_rows(base + FACTORS_AT + r.slot * MLA_ROWS * 4, factor);
        barrier_128(1); /* all warps have read the channels where P goes */
        store_p<DTYPE>(p_at(base, r), s);
        if (tile.flags & LAST) {
            mbarrier_wait(base + ENDS_EMPTY, runs & 1);
            end_rows(work, tile, base, rows);
        }
        fence_async_proxy();
        tell(base + READY + r.slot * 8);
    }
    mbarrier_wait(base + RIGHT_FULL + r.slot * 8, r.parity);
    tell(base + SCORED + r.slot * 8);
    tell(base + READY + r.slot * 8);
}

/* O += P V, or the first: O = P V; of 128 channels. */
template <int DTYPE>
static __device__ __forceinline__ void multiply_v(float (&o)[64], uint32_t p, uint32_t v, bool more)
{
    uint64_t x = hopper_descriptor(p, 16, 1024), y = hopper_descriptor(v, HOPPER_BLOCK, 1024);

#pragma unroll
    for (int i = 0; i < MLA_KEYS / 16; i++) {
        uint64_t yi = y + i * (16 * HOPPER_WIDTH >> 4);

        if (DTYPE == GPUNVME_OPS_F16)
            wgmma_f16<0, 1>(o, x + i * 2, yi, more || i > 0);
        else
            wgmma_bf16<0, 1>(o, x + i * 2, yi, more || i > 0);
    }
}

/* Sums of 128 channels from `first` on, of a run, become results or a part. */
template <int DTYPE>
static __device__ __forceinline__ void write_sums(const mla_work &work, const mla_tile &tile,
                                                  int first, float (&o)[64],
                                                  const float (&factor)[2])
{
    const decode_work &w = work.decode;
    extent e = extent_of(w.x, tile.b);

    if (tile.flags & WHOLE)
        scale_rows(o, factor);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int r = row_of(work, h);
        bool wanted = r < e.rows;
        int64_t at = wanted ? out_at(w.x, e.s, tile.head, r) + first : 0;

        if (!(tile.flags & WHOLE)) {
            float *to = part_of(w, (int)(blockIdx.x / work.size), tile.flags & BEGINS).sums +
                        r * MLA_DIM_V + first + threadIdx.x % 4 * 2;

#pragma unroll
            for (int j = 0; j < 16; j++)
                if (wanted)
                    *(float2 *)(to + 8 * j) = make_float2(o[4 * j + 2 * h], o[4 * j + 2 * h + 1]);
        } else if (work.vectors) {
            write_vectors<DTYPE>((uint16_t *)w.x.out.data + at, o, h, 128, wanted);
        } else if (wanted && w.x.out_dtype == GPUNVME_OPS_F32) {
            write_elements<GPUNVME_OPS_F32>(w.x.out.data, at, 128, o, h);
        } else if (wanted) {
            write_elements<DTYPE>(w.x.out.data, at, 128, o, h);
        }
    }
}

/*
 * Two warp groups: half of the channels each, in two products, for ptxas wants more registers for
 * one of 256 columns than so many threads have when they begin.
 */
template <int DTYPE>
static __device__ __forceinline__ void add_up(const mla_work &work, uint32_t base, int half)
{
    float left[64], right[64], factor[2];
    left_turn l = {0, 0};
    right_turn r = {0, 0};

#pragma unroll 1
    for (;; l.advance()) {
        uint32_t v = half ? right_at(base, r) : left_at(base, l), p = p_at(base, r), empty;
        uint32_t ready = base + READY + r.slot * 8, factors = base + FACTORS_AT + r.slot * 256;
        mla_tile tile;

        empty = half ? base + RIGHT_EMPTY + r.slot * 8 : base + LEFT_EMPTY + l.slot * 8;
        mbarrier_wait(ready, r.parity);
        tile = hear_tile(base, r);
        if (tile.flags & STOP)
            break;
        r.advance();
        if (half && !(tile.flags & LAST))
            mbarrier_wait(base + SCORED + r.slot * 8, r.parity);
        hear_rows(factors, factor);
        if (!(tile.flags & FIRST) && __any_sync(ALL_LANES, factor[0] != 1 || factor[1] != 1)) {
            scale_rows(left, factor);
            scale_rows(right, factor);
        }
        wgmma_fence();
        multiply_v<DTYPE>(left, p, v, !(tile.flags & FIRST));
        multiply_v<DTYPE>(right, p, v + 2 * HOPPER_BLOCK, !(tile.flags & FIRST));
        wgmma_commit();
        wgmma_wait_for(left);
        wgmma_wait_for(right);
        if (threadIdx.x % 32 < work.size)
            mbarrier_arrive_at(empty, threadIdx.x % 32);
        if (tile.flags & LAST) {
            int first = half * MLA_DIM_V / 2;

            hear_rows(base + ENDS_AT, factor);
            tell(base + ENDS_EMPTY);
            write_sums<DTYPE>(work, tile, first, left, factor);
            write_sums<DTYPE>(work, tile, first + 128, right, factor);
        }
    }
}
#endif

template <int DTYPE>
static __global__ void __launch_bounds__(THREADS, 1)
    decode_latent(const __grid_constant__ mla_work work)
{
#ifdef HAVE_HOPPER
    uint32_t base =
        (shared_address(dynamic_shared()) + HOPPER_ALIGN - 1) & ~(uint32_t)(HOPPER_ALIGN - 1);

    if (threadIdx.x == 0) {
        tensor_prefetch(&work.k);
        make_barriers(base, work.size);
    }
    __syncthreads();
    cluster_sync();
    let_next_kernel_start();
    wait_for_kernels_before();
    if (threadIdx.x < 128) {
        registers_give_back<32>();
        if (threadIdx.x < 32)
            produce(work, base);
        else if (threadIdx.x < 64)
            open_meetings(work, base);
    } else if (threadIdx.x < 256) {
        registers_take<160>();
        make_scores<DTYPE>(work, base);
    } else {
        registers_take<160>();
        /* One number for the warp, so that the compiler has descriptors in uniform registers. */
        add_up<DTYPE>(work, base, __shfl_sync(ALL_LANES, (int)threadIdx.x / 128 - 2, 0));
        combine_parts(work, base);
    }
    __syncwarp();   /* the barrier takes warps whose threads come together */
    cluster_sync(); /* nobody leaves while another may write to it */
#endif
}

int mla_group(const struct cuda_attention *x)
{
    int most = x->q_len ? (int)(2 * MLA_ROWS / x->q_len) : x->group;
    int group = x->group < most ? x->group : most;

    while (group && x->group % group)
        group--;
    return group;
}

/* Rows of a head, and clusters of so many blocks that the GPU holds at once. */
static int rows_of(const cuda_attention &x)
{
    return x.q_len * mla_group(&x);
}

static int size_of(const cuda_attention &x)
{
    return rows_of(x) > MLA_ROWS ? 2 : 1;
}

static int clusters_of(const cuda_attention &x)
{
    return (cuda_units() + size_of(x) - 1) / size_of(x);
}

static size_t parts_nbytes(const cuda_attention &x)
{
    return ops_workspace_part(2 * (int64_t)clusters_of(x), 1, decode_part(rows_of(x), x.dim_v),
                              sizeof(float));
}

size_t mla_nbytes(const struct cuda_attention *x)
{
    return parts_nbytes(*x) + ops_workspace_part(1, clusters_of(*x), size_of(*x), sizeof(meeting));
}

static mla_work work_of(const cuda_attention &x, void *workspace)
{
    int group = mla_group(&x);
    mla_work work = {};

    work.decode = {x,
                   (float *)workspace,
                   NULL,
                   decode_part(rows_of(x), x.dim_v),
                   clusters_of(x),
                   x.scale * LOG2_E};
    work.decode.x.group = group;
    work.decode.x.kv_heads = x.heads / group;
    work.meetings = (meeting *)((char *)workspace + parts_nbytes(x));
    work.tag = cuda_call_tag() << MEETING_BITS;
    work.size = size_of(x);
    work.piece = x.page_size % (2 * MLA_PIECE) ? MLA_PIECE : 2 * MLA_PIECE;
    work.share = x.group / group;
    work.k_head = x.k.head != 0;
    work.k_page = x.k.batch != 0;
    work.rate = (x.softcap > 0 ? x.softcap : x.scale) * LOG2_E;
    work.cap_rate = x.softcap > 0 ? 2 * LOG2_E * x.scale / x.softcap : 0;
    work.vectors = x.out.vectors && x.out_dtype == x.dtype;
    return work;
}

gpunvme_ops_status_t mla_run(const struct cuda_attention *x, int64_t pages, void *workspace,
                             void *stream)
{
    mla_work work = work_of(*x, workspace);
    void (*kernel)(mla_work) = x->dtype == GPUNVME_OPS_F16 ? decode_latent<GPUNVME_OPS_F16>
                                                           : decode_latent<GPUNVME_OPS_BF16>;
    gpunvme_ops_status_t status = cuda_allow_shared((const void *)kernel, SHARED_NBYTES);

    if (!status && x->k_len)
        status = hopper_encode_rows(&work.k, &x->k, MLA_DIM, x->page_size, x->kv_heads, pages,
                                    work.piece, x->dtype);
    if (status)
        return status;
    LAUNCH_CLUSTERS(kernel, (unsigned)(work.decode.blocks * work.size), (unsigned)work.size,
                    (unsigned)THREADS, (size_t)SHARED_NBYTES, stream, work);
    return cuda_attention_launched();
}
