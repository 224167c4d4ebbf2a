/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The rung "decode": few queries over many keys in pages, at the speed of memory. The queries and
 * heads of Q that share a head of K are the rows of one product (mma), so K and V are read once.
 *
 * A warp, or all four where there are more than 16 rows, has a ring of stages in shared memory, to
 * which it copies 16 (64) keys and values at a time, asynchronously and beyond the end of one
 * sequence into the next. Warps wait for each other only when a head ends. Then they add up what
 * they have. decode_combine.cuh does that for the parts of a head that several blocks share.
 *
 * A cache of E4M3 is multiplied as f16, which holds all its numbers: of 32 bits of a row, as
 * ldmatrix gives them to a lane, one instruction makes two. Channels have another order then, in
 * the rows of Q and in the sums: see channel_place() and column_of().
 */
#include "ops/attention/cuda/decode_combine.cuh"
#include "ops/attention/cuda/decode_plan.cuh"
#include "ops/cuda/warp.cuh"

#define WARPS   4
#define THREADS (WARPS * 32)
/* E4M3: weights are f16, and the largest of a row is 2^15. */
#define FP8_SHIFT 15.0f

/*
 * For a cache of DTYPE, heads of up to D channels and 16 * MT rows. Numbers of bytes, unless said
 * otherwise.
 */
template <int DTYPE, int D, int MT> struct shape {
    static const bool fp8 = DTYPE == GPUNVME_OPS_E4M3;
    static const int groups = WARPS / MT; /* of warps that share a ring */
    static const int rows = 16 * MT;      /* a number: of Q */
    /* A warp's keys in a stage: few conversions and products at once would wait for each other. */
    static const int copies = fp8 && MT == 1 && D <= 128 ? 32 : 16;
    static const int keys = copies * MT; /* of a group's stage */
    static const int tile = keys * groups;
    static const int size = fp8 ? 1 : 2; /* of an element of the cache */
    static const int row = size * D;
    static const int chunks = row / 16; /* of 16 bytes in a row */
    static const int chunk = 16 / size; /* channels of one */
    /* Rows are divided in shared memory: the first `width` bytes of all, then the next ones. */
    static const int width = row < 128 ? row : 128;
    static const int stage = 2 * keys * row; /* K, then V */
    static const int stages = (D == 64 ? 6 : D == 256 && MT == 4 ? 2 : 3) * 2 / size * 16 / copies;
    static const int ring = stages * stage;
    static const int q_row = 2 * D;
    static const int q = groups * ring; /* where Q begins, and what follows it */
    static const int sums = q + MT * 16 * q_row;
    static const int passed = MT == 1 ? 32 : 16; /* channels that all rows pass at once */
    static const int most = sums + WARPS * 16 * (passed + 8) * 4, total = most + WARPS * 16 * 4;
    static const int factor = total + WARPS * 16 * 4;
    static const int nbytes = factor + MT * 16 * 4;
    static const int blocks = D == 256 || MT == 4 ? 1 : 2; /* that a multiprocessor has room for */
    static_assert(blocks == 1 || nbytes <= 113 * 1024, "two blocks need too much shared memory");
};

template <int MT> static __device__ __forceinline__ void wait_for_group(void)
{
    if (MT == WARPS)
        __syncthreads();
    else if (MT > 1)
        barrier_wait(1 + (int)threadIdx.x / (MT * 32), MT * 32);
    else
        __syncwarp();
}

/* Where 16 bytes of a row are: eight rows below each other have them in different banks. */
template <int ROW> static __device__ __forceinline__ uint32_t chunk_at(int r, int chunk)
{
    return (uint32_t)(r * ROW + (chunk ^ (ROW < 128 ? r / 2 % 4 : r % 8)) * 16);
}

/* Likewise of K or V in a stage. */
template <class s> static __device__ __forceinline__ uint32_t chunk_in(int r, int chunk)
{
    const int per = s::width / 16;

    return (uint32_t)(chunk / per * s::keys * s::width) + chunk_at<s::width>(r, chunk % per);
}

/*
 * The chunk 2 * `pair` to the right of one that is among the first two, at `at`. A constant offset
 * and one of few differences: stages begin at multiples of `width`.
 */
template <class s> static __device__ __forceinline__ uint32_t pair_from(uint32_t at, int pair)
{
    const int per = s::width / 32;

    return (at ^ (uint32_t)(pair % per * 32)) + (uint32_t)(pair / per * s::keys * s::width);
}

/* Of a row of K or V, in units of 16 bytes. */
#define NOWHERE 0xffffffffu

template <int CHUNK>
static __device__ __forceinline__ uint32_t place_in(const cuda_rows &rows, int page, int row,
                                                    int head)
{
    return (uint32_t)((page * rows.batch + row * rows.row + head * rows.head) / CHUNK);
}

/* Copies 16 bytes of a row; `from` is those of the first. Zeros if nobody sees the row. */
static __device__ __forceinline__ void copy_chunk(uint32_t to, const char *from, uint32_t place,
                                                  bool valid)
{
    valid = valid && place != NOWHERE;
    cp_async16(to, from + (valid ? (uint64_t)place * 16 : 0), valid ? 16 : 0);
}

/*
 * Copies a warp's keys of tiles to its group's ring. Lane l has looked up where key l % copies of
 * the next tile is.
 */
template <int DTYPE, int D, int MT> struct loader {
    typedef shape<DTYPE, D, MT> s;
    cursor at;
    int64_t left; /* tiles, if it is more than 0 */
    int stage;
    int page, row; /* page -1: nobody sees the key */
    bool one_page; /* all keys are seen, and each 16 are in one */

    __device__ __forceinline__ void look_up(const cuda_attention &x)
    {
        int j = (at.e.tile + at.tile) * s::tile + threadIdx.x / 32 * s::copies,
            lane = threadIdx.x % s::copies;
        unsigned size = (unsigned)x.page_size, key = (unsigned)(j + lane), number;

        number = size & (size - 1) ? key / size : key >> __popc(size - 1);
        page = -1;
        row = (int)(key - number * size);
        if (left > 0 && sees(at.e.keys, (int)key))
            page = at.e.s.pages[number];
        one_page = size % 16 == 0 && j >= at.e.keys.first && j + s::copies <= at.e.keys.end;
    }

    /* 16 rows below each other, from the page's row `top` on; `first` is theirs in the stage. */
    __device__ __forceinline__ void copy_16_rows(const cuda_attention &x, uint32_t to, int number,
                                                 int top, int first)
    {
        const int per = 32 / s::chunks; /* rows at a time */
        int lane = threadIdx.x % 32, chunk = lane % s::chunks, r = top + lane / s::chunks;
        const char *k = (const char *)x.k.data + chunk * 16;
        const char *v = (const char *)x.v.data + chunk * 16;
        uint32_t valid_k = chunk * s::chunk < x.dim ? 16 : 0;
        uint32_t valid_v = chunk * s::chunk < x.dim_v ? 16 : 0;

        k += valid_k ? (uint64_t)place_in<s::chunk>(x.k, number, r, at.head) * 16 : 0;
        v += valid_v ? (uint64_t)place_in<s::chunk>(x.v, number, r, at.head) * 16 : 0;
#pragma unroll
        for (int i = 0; i < 16; i += per) {
            uint32_t to_row = to + chunk_in<s>(first + i + lane / s::chunks, chunk);

            cp_async16(to_row, k, valid_k);
            cp_async16(to_row + s::stage / 2, v, valid_v);
            k += valid_k ? x.k.row * per * s::size : 0;
            v += valid_v ? x.v.row * per * s::size : 0;
        }
    }

    __device__ __forceinline__ void copy_pages(const cuda_attention &x, uint32_t to)
    {
        int first = threadIdx.x / 32 % MT * s::copies;

        if constexpr (s::copies == 16) {
            copy_16_rows(x, to, page, row - (int)threadIdx.x % 16, first);
        } else {
#pragma unroll
            for (int i = 0; i < s::copies; i += 16)
                copy_16_rows(x, to, __shfl_sync(ALL_LANES, page, i), __shfl_sync(ALL_LANES, row, i),
                             first + i);
        }
    }

    __device__ __forceinline__ void copy_rows(const cuda_attention &x, uint32_t to)
    {
        const int per = 32 / s::chunks; /* rows at a time */
        int lane = threadIdx.x % 32, first = threadIdx.x / 32 % MT * s::copies;
        int chunk = lane % s::chunks;
        uint32_t my_k = page < 0 ? NOWHERE : place_in<s::chunk>(x.k, page, row, at.head);
        uint32_t my_v = page < 0 ? NOWHERE : place_in<s::chunk>(x.v, page, row, at.head);
        const char *k = (const char *)x.k.data + chunk * 16;
        const char *v = (const char *)x.v.data + chunk * 16;
        bool in_k = chunk * s::chunk < x.dim, in_v = chunk * s::chunk < x.dim_v;

#pragma unroll
        for (int i = 0; i < s::copies; i += per) {
            int r = i + lane / s::chunks;
            uint32_t at_k = (uint32_t)__shfl_sync(ALL_LANES, (int)my_k, r);
            uint32_t at_v = (uint32_t)__shfl_sync(ALL_LANES, (int)my_v, r);
            uint32_t to_row = to + chunk_in<s>(first + r, chunk);

            copy_chunk(to_row, k, at_k, in_k);
            copy_chunk(to_row + s::stage / 2, v, at_v, in_v);
        }
    }

    /* The next tile, if there is one; the group counts as a copy of its own in any case. */
    __device__ __forceinline__ void next(const cuda_attention &x, uint32_t ring)
    {
        if (left > 0) {
            uint32_t to = ring + (uint32_t)(stage * s::stage);

            if (one_page)
                copy_pages(x, to);
            else
                copy_rows(x, to);
            left -= at.tile + 1 < at.e.tiles ? 1 : 1 + HEAD_END;
            advance<s::tile>(x, at, 1);
            look_up(x);
            stage = stage + 1 < s::stages ? stage + 1 : 0;
        }
        cp_async_commit();
    }
};

template <int DTYPE>
static __device__ __forceinline__ void mma(float (&sums)[4], const uint32_t (&a)[4], uint32_t b0,
                                           uint32_t b1)
{
    if (DTYPE != GPUNVME_OPS_BF16)
        mma_f16(sums, a, b0, b1);
    else
        mma_bf16(sums, a, b0, b1);
}

/* Four numbers of E4M3 as f16. */
static __device__ __forceinline__ void unpack(uint32_t four, uint32_t &low, uint32_t &high)
{
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890
    unpack_four_e4m3(four, low, high);
#else
    low = pack_f16(from_fp8((uint8_t)four, GPUNVME_OPS_E4M3),
                   from_fp8((uint8_t)(four >> 8), GPUNVME_OPS_E4M3));
    high = pack_f16(from_fp8((uint8_t)(four >> 16), GPUNVME_OPS_E4M3),
                    from_fp8((uint8_t)(four >> 24), GPUNVME_OPS_E4M3));
#endif
}

/* The product with eight columns, of which b has four numbers each. */
static __device__ __forceinline__ void mma_e4m3(float (&sums)[4], const uint32_t (&a)[4],
                                                uint32_t b)
{
    uint32_t low, high;

    unpack(b, low, high);
    mma_f16(sums, a, low, high);
}

/* Rows and channels of Q that no sequence has are 0. */
template <int D, int MT> static __device__ __forceinline__ void clear_rows(uint32_t to)
{
    const uint32_t zeros[4] = {0, 0, 0, 0};

    for (int at = threadIdx.x; at < MT * 16 * D / 8; at += THREADS)
        store_shared16(to + (uint32_t)at * 16, zeros);
    __syncwarp(); /* which has vectors of the same rows: see store_vectors() */
}

/* Where element `at` of Q's rows is in shared memory. */
template <int D> static __device__ __forceinline__ uint16_t *element_of(unsigned char *rows, int at)
{
    return (uint16_t *)(rows + chunk_at<2 * D>(at / D, at % D / 8) + at % 8 * 2);
}

/*
 * E4M3: ldmatrix gives a lane channels 4 l to 4 l + 3 of 16, where mma wants 2 l, 2 l + 1, 2 l + 8
 * and 2 l + 9. So channel c of Q is where the product takes it for that one.
 */
static __device__ __forceinline__ int channel_place(int c)
{
    return (c & ~15) + (c % 16 / 4 * 2) + c % 2 + c / 2 % 2 * 8;
}

/*
 * E4M3: a row of Q is multiplied by a power of 2, so that its largest element is near 2^12: no
 * element of bf16 is too large for f16, and those that become 0 are less than 2^-36 of the largest.
 * `back` is what the row's products are multiplied by in return, with K's factor and, without
 * softcap, the scale.
 */
struct row_scale {
    float by, back;
};

static __device__ __forceinline__ row_scale scale_of(const decode_work &w, const cursor &c,
                                                     float most)
{
    float all = descale_of(w.x, w.x.k_descale, c.b, c.head) * (w.x.softcap > 0 ? 1 : w.scale2);
    uint32_t exponent = __float_as_uint(most) >> 23;

    exponent = exponent > 13 ? 266 - exponent : 253;
    return {__uint_as_float(exponent << 23), all * __uint_as_float((254 - exponent) << 23)};
}

/* E4M3: Q of a sequence and head, turned, as f16. */
template <int D>
static __device__ __forceinline__ void load_scaled_rows(const decode_work &w, const cursor &c,
                                                        unsigned char *to, float *back)
{
    const cuda_attention &x = w.x;
    int lane = threadIdx.x % 32;

#pragma unroll 1
    for (int r = threadIdx.x / 32; r < c.e.rows; r += WARPS) {
        int i = query_of(x, r);
        int64_t at = query_at(x.q, c.e.s, i, head_of(x, c.head, r));
        float most = 0;
        row_scale scale;

#pragma unroll 4
        for (int e = lane; e < x.dim; e += 32)
            most = fmaxf(most, fabsf(load_element(x.q.data, at + e, x.dtype)));
        scale = scale_of(w, c, warp_max(most));
#pragma unroll 1
        for (int e = lane; e < x.dim; e += 32)
            *element_of<D>(to, r * D + channel_place(e)) =
                to_bits(load_q(x, c.e.s, i, at, e) * scale.by, GPUNVME_OPS_F16);
        if (!lane)
            back[r] = scale.back;
    }
}

/* Q of a sequence and head, turned. */
template <int DTYPE, int D>
static __device__ __forceinline__ void load_turned_rows(const cuda_attention &x, const cursor &c,
                                                        unsigned char *to)
{
    int count = c.e.rows * D;

#pragma unroll 1
    for (int at = threadIdx.x; at < count; at += THREADS) {
        int r = at / D, i = query_of(x, r), head = head_of(x, c.head, r);

        if (at % D < x.dim)
            *element_of<D>(to, at) =
                to_bits(load_q(x, c.e.s, i, query_at(x.q, c.e.s, i, head), at % D), DTYPE);
    }
}

/* Q's rows as they are, 16 bytes of two places a thread, on their way to shared memory. */
struct vectors_of_q {
    uint4 v[2];
};

static __device__ __forceinline__ bool q_has_vectors(const cuda_attention &x)
{
    return x.q.vectors && !x.rope.dim;
}

/* Those from number `first` on. */
template <int D>
static __device__ __forceinline__ void load_vectors(const cuda_attention &x, const cursor &c,
                                                    int first, vectors_of_q &q)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int at = first + (int)threadIdx.x + h * THREADS, r = at / (D / 8),
            channel = at % (D / 8) * 8;

        q.v[h] = make_uint4(0, 0, 0, 0);
        if (r < c.e.rows && channel < x.dim)
            q.v[h] = *(const uint4 *)((const uint16_t *)x.q.data +
                                      query_at(x.q, c.e.s, query_of(x, r), head_of(x, c.head, r)) +
                                      channel);
    }
}

template <int DTYPE, int D>
static __device__ __forceinline__ void store_vectors(const decode_work &w, const cursor &c,
                                                     int first, const vectors_of_q &q,
                                                     unsigned char *to, float *back)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int at = first + (int)threadIdx.x + h * THREADS, r = at / (D / 8), chunk = at % (D / 8);
        uint32_t pairs[4] = {q.v[h].x, q.v[h].y, q.v[h].z, q.v[h].w};

        if constexpr (DTYPE == GPUNVME_OPS_E4M3) {
            float z[8], most = 0;
            row_scale scale;

#pragma unroll
            for (int i = 0; i < 8; i += 2) {
                from_pair(pairs[i / 2], w.x.dtype, z[i], z[i + 1]);
                most = fmaxf(most, fmaxf(fabsf(z[i]), fabsf(z[i + 1])));
            }
            scale = scale_of(w, c, warp_max<D / 8>(most));
            if (r >= c.e.rows)
                continue;
#pragma unroll
            for (int i = 0; i < 8; i += 2)
                *(uint32_t *)element_of<D>(to, r * D + channel_place(chunk * 8 + i)) =
                    pack_f16(z[i] * scale.by, z[i + 1] * scale.by);
            if (!chunk)
                back[r] = scale.back;
        } else {
            if (r < c.e.rows)
                store_shared16(shared_address(to) + chunk_at<2 * D>(r, chunk), pairs);
        }
    }
}

/* Q of a sequence and head; its first vectors have been loaded. */
template <int DTYPE, int D>
static __device__ __forceinline__ void bring_rows(const decode_work &w, const cursor &c,
                                                  vectors_of_q &q, unsigned char *to, float *back)
{
    if (!q_has_vectors(w.x)) {
        __syncthreads(); /* other warps have cleared these rows */
        if constexpr (DTYPE == GPUNVME_OPS_E4M3)
            load_scaled_rows<D>(w, c, to, back);
        else
            load_turned_rows<DTYPE, D>(w.x, c, to);
        return;
    }
#pragma unroll 1
    for (int first = 0;;) {
        store_vectors<DTYPE, D>(w, c, first, q, to, back);
        first += 2 * THREADS;
        if (first >= c.e.rows * (D / 8))
            break;
        load_vectors<D>(w.x, c, first, q);
    }
}

/* What a lane has of its warp's 16 rows: of rows l / 4 and 8 below. */
template <int DTYPE, int D, int MT> struct rows {
    typedef shape<DTYPE, D, MT> s;
    static const bool q_in_registers = D <= 128;
    cuda_range keys[2], inner; /* that each row sees, and that all do */
    uint32_t q_at;
    uint32_t q[q_in_registers ? D / 16 : 1][4];
    float sums[D / 8][4], most[2], total[2];
    float back[2];       /* E4M3: see load_scaled_rows() */
    uint32_t k_at, v_at; /* what this lane loads first of a stage's K and V */

    __device__ __forceinline__ void begin(const cuda_attention &x, const cursor &c,
                                          uint32_t q_of_block, const float *backs)
    {
        int lane = threadIdx.x % 32, first = threadIdx.x / 32 % MT * 16;

        q_at = q_of_block + (uint32_t)(first * s::q_row);
        k_at = chunk_in<s>(lane / 16 * 8 + lane % 8, lane / 8 % 2);
        v_at = s::stage / 2 + chunk_in<s>(lane % 16, lane / 16);
        inner = {keys_of(x, c.e.s, c.e.s.q_len - 1).first, keys_of(x, c.e.s, 0).end};
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int r = first + lane / 4 + h * 8;

            keys[h] = r < c.e.rows ? keys_of(x, c.e.s, query_of(x, r)) : c.e.keys;
            most[h] = -INFINITY;
            total[h] = 0;
            if (s::fp8)
                back[h] = backs[r];
        }
#pragma unroll
        for (int n = 0; n < D / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                sums[n][i] = 0;
        if (q_in_registers)
#pragma unroll
            for (int k = 0; k < D / 16; k++)
                load_q_fragment(q[q_in_registers ? k : 0], k);
    }

    __device__ __forceinline__ void load_q_fragment(uint32_t (&a)[4], int k)
    {
        int lane = threadIdx.x % 32;

        load_matrices(a, q_at + chunk_at<s::q_row>(lane % 16, k * 2 + lane / 16));
    }

    /* p += Q K^T. With 16 keys two sums of each, so that products wait less for each other. */
    __device__ __forceinline__ void multiply_16_k(float (&p)[s::keys / 8][4], uint32_t stage)
    {
        const bool two = s::keys == 16;
        float odd[s::keys / 8][4] = {};

#pragma unroll
        for (int k = 0; k < D / 16; k++) {
            uint32_t(&a)[4] = q[q_in_registers ? k : 0];

            if (!q_in_registers)
                load_q_fragment(a, k);
#pragma unroll
            for (int n = 0; n < s::keys / 16; n++) {
                uint32_t b[4];

                load_matrices(b, pair_from<s>(stage + k_at, k) + n * 16 * s::width);
                mma<DTYPE>(two && k % 2 ? odd[n * 2] : p[n * 2], a, b[0], b[1]);
                mma<DTYPE>(two && k % 2 ? odd[n * 2 + 1] : p[n * 2 + 1], a, b[2], b[3]);
            }
        }
        if (two)
#pragma unroll
            for (int n = 0; n < s::keys / 8; n++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    p[n][i] += odd[n][i];
    }

    /* p += Q K^T, times `back`: 32 channels at a time. */
    __device__ __forceinline__ void multiply_fp8_k(float (&p)[s::keys / 8][4], uint32_t stage)
    {
#pragma unroll
        for (int k = 0; k < D / 16; k += 2) {
            uint32_t a[2][4];

#pragma unroll
            for (int h = 0; h < 2; h++)
                if (q_in_registers)
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        a[h][i] = q[q_in_registers ? k + h : 0][i];
                else
                    load_q_fragment(a[h], k + h);
#pragma unroll
            for (int n = 0; n < s::keys / 16; n++) {
                uint32_t b[4];

                load_matrices(b, pair_from<s>(stage + k_at, k / 2) + n * 16 * s::width);
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    mma_e4m3(p[n * 2], a[h], b[h]);
                    mma_e4m3(p[n * 2 + 1], a[h], b[2 + h]);
                }
            }
        }
#pragma unroll
        for (int n = 0; n < s::keys / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                p[n][i] *= back[i / 2];
    }

    /* Scores of a stage's keys, in powers of 2. */
    __device__ __forceinline__ void multiply_k(const decode_work &w, float (&p)[s::keys / 8][4],
                                               uint32_t stage)
    {
#pragma unroll
        for (int n = 0; n < s::keys / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                p[n][i] = 0;
        if constexpr (s::fp8)
            multiply_fp8_k(p, stage);
        else
            multiply_16_k(p, stage);
        if (w.x.softcap > 0)
            cap(w.x, p);
        else if (!s::fp8)
#pragma unroll
            for (int n = 0; n < s::keys / 8; n++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    p[n][i] *= w.scale2;
    }

    /* tanh y is 1 - 2 / (1 + exp(2 y)): that errs by 2^-23, of which 16 bits show nothing. */
    static __device__ __forceinline__ void cap(const cuda_attention &x, float (&p)[s::keys / 8][4])
    {
        float by = 2 * LOG2_E * x.scale / x.softcap, most = x.softcap * LOG2_E;

#pragma unroll
        for (int n = 0; n < s::keys / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                p[n][i] = most - 2 * most * fast_reciprocal(1 + fast_exp2(p[n][i] * by));
    }

    /* Of keys from j on. */
    __device__ __forceinline__ void mask(float (&p)[s::keys / 8][4], int j)
    {
        int lane = threadIdx.x % 32;

#pragma unroll
        for (int n = 0; n < s::keys / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (!sees(keys[i / 2], j + n * 8 + lane % 4 * 2 + i % 2))
                    p[n][i] = -INFINITY;
    }

    /* Scores become weights; sums are scaled down where a larger score has come. */
    __device__ __forceinline__ void weigh(float (&p)[s::keys / 8][4])
    {
        float now[2] = {most[0], most[1]};

#pragma unroll
        for (int n = 0; n < s::keys / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                now[i / 2] = max_or_nan(now[i / 2], p[n][i]);
        now[0] = warp_max<4>(now[0]);
        now[1] = warp_max<4>(now[1]);
        if (now[0] != most[0] || now[1] != most[1]) {
            float scale[2];

#pragma unroll
            for (int h = 0; h < 2; h++) {
                scale[h] = fast_exp2(most[h] - shift_of(now[h]));
                total[h] *= scale[h];
                most[h] = now[h];
            }
#pragma unroll
            for (int n = 0; n < D / 8; n++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    sums[n][i] *= scale[i / 2];
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float shift = shift_of(most[h]) - (s::fp8 ? FP8_SHIFT : 0);

#pragma unroll
            for (int n = 0; n < s::keys / 8; n++)
#pragma unroll
                for (int i = 2 * h; i < 2 * h + 2; i++) {
                    p[n][i] = fast_exp2(p[n][i] - shift);
                    total[h] += p[n][i];
                }
        }
    }

    /* sums += P V, of 16 keys. */
    __device__ __forceinline__ void multiply_16_v(const uint32_t (&a)[4], uint32_t stage, int k)
    {
#pragma unroll
        for (int n = 0; n < D / 16; n++) {
            uint32_t b[4];

            load_matrices_transposed(b, pair_from<s>(stage + v_at, n) + k * 16 * s::width);
            mma<DTYPE>(sums[n * 2], a, b[0], b[1]);
            mma<DTYPE>(sums[n * 2 + 1], a, b[2], b[3]);
        }
    }

    /*
     * 16 keys and 32 channels are four registers of each lane: of keys 2 l and 2 l + 1 it has two
     * channels each. Those are put beside each other whose channel is the same, and the 16 channels
     * of a chunk become two products, of the even ones and of the odd ones.
     */
    __device__ __forceinline__ void multiply_fp8_v(const uint32_t (&a)[4], uint32_t stage, int k)
    {
#pragma unroll
        for (int n = 0; n < s::chunks; n += 2) {
            uint32_t b[4];

            load_matrices_transposed(b, pair_from<s>(stage + v_at, n / 2) + k * 16 * s::width);
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float(&even)[4] = sums[(n + h) * 2], (&odd)[4] = sums[(n + h) * 2 + 1];
                uint32_t low[2], high[2]; /* keys; of even channels, and of odd ones */

                unpack(__byte_perm(b[h * 2], 0, 0x3120), low[0], low[1]);
                unpack(__byte_perm(b[h * 2 + 1], 0, 0x3120), high[0], high[1]);
                mma_f16(even, a, low[0], high[0]);
                mma_f16(odd, a, low[1], high[1]);
            }
        }
    }

    __device__ __forceinline__ void multiply_v(const float (&p)[s::keys / 8][4], uint32_t stage)
    {
        const int type = s::fp8 ? GPUNVME_OPS_F16 : DTYPE;

#pragma unroll
        for (int k = 0; k < s::keys / 16; k++) {
            const float(&left)[4] = p[k * 2], (&right)[4] = p[k * 2 + 1];
            const uint32_t a[4] = {to_pair(left[0], left[1], type), to_pair(left[2], left[3], type),
                                   to_pair(right[0], right[1], type),
                                   to_pair(right[2], right[3], type)};

            if constexpr (s::fp8)
                multiply_fp8_v(a, stage, k);
            else
                multiply_16_v(a, stage, k);
        }
    }

    /* A stage, whose keys begin with number j. */
    __device__ __forceinline__ void add(const decode_work &w, const cursor &c, int j,
                                        uint32_t stage)
    {
        float p[s::keys / 8][4];

        if (j >= c.e.keys.end || j + s::keys <= c.e.keys.first)
            return;
        multiply_k(w, p, stage);
        if (j < inner.first || j + s::keys > inner.end)
            mask(p, j);
        weigh(p);
        multiply_v(p, stage);
    }
};

/* Softmax of row r of a block, whose keys its groups of warps share. */
template <class s>
static __device__ __forceinline__ void row_of_block(const unsigned char *shared, int r, float &most,
                                                    float &total)
{
    const float *all_most = (const float *)(shared + s::most) + r;
    const float *all_total = (const float *)(shared + s::total) + r;

    most = -INFINITY;
    total = 0;
#pragma unroll
    for (int g = 0; g < s::groups; g++)
        most = max_or_nan(most, all_most[g * s::rows]);
#pragma unroll
    for (int g = 0; g < s::groups; g++)
        total += all_total[g * s::rows] * fast_exp2(all_most[g * s::rows] - shift_of(most));
}

/* Where a head's results go: to `out` if `whole`, else to a part. */
struct target {
    bool whole;
    part to;
};

/* A row's softmax: by what its sums are to be multiplied, or what the part has beside them. */
template <class s>
static __device__ __forceinline__ void finish_softmax(const cuda_attention &x, const cursor &c,
                                                      const target &t, unsigned char *shared)
{
    int r = threadIdx.x;
    float most, total, factor = 1;

    if (r >= c.e.rows)
        return;
    row_of_block<s>(shared, r, most, total);
    if (t.whole) {
        row_end end = end_row(x, head_of(x, c.head, r), most, total);

        store_lse(x, c.e.s, c.head, r, end.lse);
        factor = end.factor;
    } else {
        t.to.most[r] = most;
        t.to.total[r] = total;
    }
    ((float *)(shared + s::factor))[r] = factor;
}

/* Sums on their way from warps to the block: 2^shift channels of so many rows of each warp. */
struct passing {
    int rows, shift, pitch; /* floats of a row: lanes write to all banks */
};

/* The fewer rows there are, the more channels they pass at once. */
template <class s, int D> static __device__ __forceinline__ passing passing_of(int rows)
{
    if (s::groups == WARPS && rows <= 4)
        return {4, D < 128 ? 6 : 7, (D < 128 ? 64 : 128) + 8};
    if (s::groups == WARPS && rows <= 8)
        return {8, 6, 64 + 8};
    return {16, s::passed == 32 ? 5 : 4, s::passed + 8};
}

/* Channels of all rows, from `first` on: the groups' sums become the block's. */
template <class s>
static __device__ __forceinline__ void finish_channels(const cuda_attention &x, const cursor &c,
                                                       const target &t, const unsigned char *shared,
                                                       const passing &p, int first)
{
    int fours = p.shift - 2;

#pragma unroll 1
    for (int i = threadIdx.x; i < c.e.rows << fours; i += THREADS) {
        int r = i >> fours, at = (i - (r << fours)) * 4, channel = first + at;
        const float *from = (const float *)(shared + s::sums) + r * p.pitch + at;
        float z[4] = {0, 0, 0, 0};

        if (channel >= x.dim_v)
            continue;
#pragma unroll
        for (int g = 0; g < s::groups; g++) {
            float4 y = *(const float4 *)(from + g * (WARPS / s::groups) * p.rows * p.pitch);

            z[0] += y.x;
            z[1] += y.y;
            z[2] += y.z;
            z[3] += y.w;
        }
        if (!t.whole) {
            *(float4 *)(t.to.sums + r * x.dim_v + channel) = make_float4(z[0], z[1], z[2], z[3]);
            continue;
        }
#pragma unroll
        for (int e = 0; e < 4; e++)
            store_element(x.out.data, out_at(x, c.e.s, c.head, r) + channel + e, x.out_dtype,
                          z[e] * ((const float *)(shared + s::factor))[r]);
    }
}

/* The channel of column c in sums[n]: of E4M3, two of these have the even and odd ones of 16. */
template <class s> static __device__ __forceinline__ int column_of(int n, int c)
{
    return s::fp8 ? n / 2 * 16 + c * 2 + n % 2 : n * 8 + c;
}

/* The warps' sums become the block's, some channels at a time. */
template <int DTYPE, int D, int MT>
static __device__ __forceinline__ void finish(const cuda_attention &x, const cursor &c,
                                              const target &t, rows<DTYPE, D, MT> &mine,
                                              unsigned char *shared)
{
    typedef shape<DTYPE, D, MT> s;
    int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
    float *all_most = (float *)(shared + s::most), *all_total = (float *)(shared + s::total);
    passing p = passing_of<s, D>(c.e.rows);
    float *sums = (float *)(shared + s::sums) +
                  ((int)threadIdx.x / 32 * p.rows + lane / 4) * p.pitch +
                  column_of<s>(0, lane % 4 * 2);
    float scale[2];

#pragma unroll
    for (int h = 0; h < 2; h++) {
        mine.total[h] = warp_sum<4>(mine.total[h]);
        if (s::fp8)
            mine.most[h] -= FP8_SHIFT;
        if (lane % 4 == 0) {
            all_most[row + h * 8] = mine.most[h];
            all_total[row + h * 8] = mine.total[h];
        }
    }
    __syncthreads();
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float most, total;

        row_of_block<s>(shared, (row + h * 8) % (MT * 16), most, total);
        scale[h] = fast_exp2(mine.most[h] - shift_of(most));
        if (s::fp8)
            scale[h] *= descale_of(x, x.v_descale, c.b, c.head);
    }
    finish_softmax<s>(x, c, t, shared);
#pragma unroll 1
    for (int first = 0; first < x.dim_v; first += 1 << p.shift) {
#pragma unroll
        for (int n = 0; n < D / 8; n += s::passed / 8) {
            int at = n * 8 - first;

            if (at < 0 || at >= 1 << p.shift)
                continue;
#pragma unroll
            for (int h = 0; h < 2; h++)
                if (lane / 4 + h * 8 < p.rows)
#pragma unroll
                    for (int i = 0; i < s::passed / 4; i++)
                        sums[h * 8 * p.pitch + at + column_of<s>(i / 2, i % 2)] =
                            mine.sums[n + i / 2][h * 2 + i % 2] * scale[h];
        }
        __syncthreads();
        finish_channels<s>(x, c, t, shared, p, first);
        __syncthreads();
    }
}

template <int DTYPE, int D, int MT>
static __global__ void __launch_bounds__(THREADS, (shape<DTYPE, D, MT>::blocks))
    decode(const __grid_constant__ decode_work w)
{
    typedef shape<DTYPE, D, MT> s;
    const cuda_attention &x = w.x;
    unsigned char *shared = dynamic_shared();
    uint32_t base = shared_address(shared);
    int group = threadIdx.x / 32 / MT, stage = 0;
    uint32_t ring = base + (uint32_t)(group * s::ring);
    loader<DTYPE, D, MT> load;
    rows<DTYPE, D, MT> mine;

    plan p = {};
    vectors_of_q q;

    let_next_kernel_start();
    clear_rows<D, MT>(base + s::q);
    plan_ahead<s::tile, s::blocks>(w, p, [&] {
        if (p.at >= p.end)
            return;
        load.at = p.c;
        load.left = p.end - p.at;
        load.stage = 0;
        load.look_up(x);
        if (q_has_vectors(x))
            load_vectors<D>(x, p.c, 0, q);
    });
    int64_t at = p.at, end = p.end;
    cursor &c = p.c;

    if (at < end)
#pragma unroll 1
        for (int i = 0; i < s::stages - 1; i++)
            load.next(x, ring);
#pragma unroll 1
    while (at < end) {
        int count = (int)(end - at < c.e.tiles - c.tile ? end - at : c.e.tiles - c.tile);
        bool begins = !c.tile;
        sharers with = {0, 0};
        target t = {begins && count == c.e.tiles, part_of(w, blockIdx.x, begins)};
        int j = (c.e.tile + c.tile) * s::tile + group * s::keys;

        if (!t.whole) {
            with = sharers_of(p.all, at - c.tile, c.e.tiles);
            if (!threadIdx.x)
                open_arrivals(w, with);
        }
        bring_rows<DTYPE, D>(w, c, q, shared + s::q, (float *)(shared + s::factor));
        __syncthreads();
        mine.begin(x, c, base + s::q, (const float *)(shared + s::factor));
#pragma unroll 1
        for (int i = 0; i < count; i++, j += s::tile) {
            cp_async_wait<s::stages - 2>();
            wait_for_group<MT>();
            load.next(x, ring);
            mine.add(w, c, j, ring + (uint32_t)(stage * s::stage));
            stage = stage + 1 < s::stages ? stage + 1 : 0;
        }
        cursor next = c;
        at += count + (c.tile + count < c.e.tiles ? 0 : HEAD_END);
        advance<s::tile>(x, next, count);
        if (at < end && q_has_vectors(x))
            load_vectors<D>(x, next, 0, q);
        finish<DTYPE, D, MT>(x, c, t, mine, shared);
        if (!t.whole && arrive(w, with, (int *)(shared + s::most)))
            combine<WARPS>(w, c, with);
        c = next;
    }
}

template <int DTYPE, int D, int MT>
static gpunvme_ops_status_t launch(const decode_work &w, void *stream)
{
    const int nbytes = shape<DTYPE, D, MT>::nbytes;
    gpunvme_ops_status_t status =
        cuda_allow_shared((const void *)decode<DTYPE, D, MT>, (size_t)nbytes);

    if (status)
        return status;
    LAUNCH_CLUSTERS((decode<DTYPE, D, MT>), (unsigned)w.blocks, 1, THREADS, nbytes, stream, w);
    return cuda_attention_launched();
}

static int dim_of(const cuda_attention &x)
{
    return x.dim > x.dim_v ? x.dim : x.dim_v;
}

template <int DTYPE, int D>
static gpunvme_ops_status_t launch_rows(const decode_work &w, void *stream)
{
    int64_t rows = decode_rows(&w.x);

    return rows <= 16   ? launch<DTYPE, D, 1>(w, stream)
           : rows <= 32 ? launch<DTYPE, D, 2>(w, stream)
                        : launch<DTYPE, D, 4>(w, stream);
}

template <int DTYPE> static gpunvme_ops_status_t launch_of(const decode_work &w, void *stream)
{
    int dim = dim_of(w.x);

    return dim <= 64    ? launch_rows<DTYPE, 64>(w, stream)
           : dim <= 128 ? launch_rows<DTYPE, 128>(w, stream)
                        : launch_rows<DTYPE, 256>(w, stream);
}

template <int DTYPE, int D> static size_t shared_nbytes_of(const cuda_attention &x)
{
    int64_t rows = decode_rows(&x);

    return rows <= 16   ? shape<DTYPE, D, 1>::nbytes
           : rows <= 32 ? shape<DTYPE, D, 2>::nbytes
                        : shape<DTYPE, D, 4>::nbytes;
}

template <int DTYPE> static size_t shared_nbytes(const cuda_attention &x)
{
    int dim = dim_of(x);

    return dim <= 64    ? shared_nbytes_of<DTYPE, 64>(x)
           : dim <= 128 ? shared_nbytes_of<DTYPE, 128>(x)
                        : shared_nbytes_of<DTYPE, 256>(x);
}

size_t decode_shared_nbytes(const struct cuda_attention *x)
{
    return x->kv_dtype == GPUNVME_OPS_E4M3 ? shared_nbytes<GPUNVME_OPS_E4M3>(*x)
                                           : shared_nbytes<GPUNVME_OPS_F16>(*x);
}

static int blocks_of(const cuda_attention &x)
{
    return cuda_units() * (dim_of(x) <= 128 && decode_rows(&x) <= 32 ? 2 : 1);
}

static size_t parts_nbytes(const cuda_attention &x)
{
    return ops_workspace_part(2 * (int64_t)blocks_of(x), 1, decode_part(decode_rows(&x), x.dim_v),
                              sizeof(float));
}

size_t decode_nbytes(const struct cuda_attention *x)
{
    return parts_nbytes(*x) + ops_workspace_part(1, 1, blocks_of(*x), sizeof(uint64_t));
}

gpunvme_ops_status_t decode_run(const struct cuda_attention *x, void *workspace, void *stream)
{
    const decode_work w = {*x,
                           (float *)workspace,
                           (uint64_t *)((char *)workspace + parts_nbytes(*x)),
                           decode_part(decode_rows(x), x->dim_v),
                           blocks_of(*x),
                           x->scale * LOG2_E,
                           cuda_call_tag() << ARRIVAL_BITS};

    return x->kv_dtype == GPUNVME_OPS_E4M3  ? launch_of<GPUNVME_OPS_E4M3>(w, stream)
           : x->kv_dtype == GPUNVME_OPS_F16 ? launch_of<GPUNVME_OPS_F16>(w, stream)
                                            : launch_of<GPUNVME_OPS_BF16>(w, stream);
}
