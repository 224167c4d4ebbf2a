/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Appending K and V of new tokens to a cache in pages. "naive" has a thread for each element. In
 * "vectorized" a block takes a token, and a thread twice 16 bytes of it at a time; where RoPE turns
 * those, it also loads the 16 bytes of their partners, and computes one power for all pairs.
 */
#include "ops/attention/cuda/append.h"
#include "ops/attention/cuda/problem.cuh"

#define THREADS 128

/*
 * The same bits as cpu_to_e4m3(), on every GPU: to nearest even, and what is larger becomes 448.
 * Below 2^-6 the addition rounds to multiples of 2^-9.
 */
static __device__ __forceinline__ uint8_t to_e4m3(float value)
{
    uint32_t bits = __float_as_uint(value), sign = bits >> 24 & 0x80, size = bits & 0x7fffffff;
    uint32_t rounded = (size - (120u << 23) + 0x7ffff + (size >> 20 & 1)) >> 20;

    if (size > 0x7f800000)
        return (uint8_t)(sign | 0x7f);
    if (__uint_as_float(size) < 0x1p-6f)
        rounded = __float_as_uint(__uint_as_float(size) + 0x1p14f) - __float_as_uint(0x1p14f);
    return (uint8_t)(sign | (rounded < 0x7e ? rounded : 0x7e));
}

/* An element to the cache, whose numbers of E4M3 have that factor. */
static __device__ __forceinline__ void store_cached(void *data, int64_t i, int dtype, float value,
                                                    float factor)
{
    if (dtype == GPUNVME_OPS_E4M3)
        ((uint8_t *)data)[i] = to_e4m3(value / factor);
    else
        store_element(data, i, dtype, value);
}

static __global__ void __launch_bounds__(THREADS) append_elements(const cuda_append p)
{
    const cuda_attention &x = p.x;
    int width = x.dim + x.dim_v;
    int64_t count = (int64_t)x.batch * x.q_len * x.heads * width;

    let_next_kernel_start();
    wait_for_kernels_before();
    for (int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x; at < count;
         at += (int64_t)gridDim.x * THREADS) {
        int64_t row = at / width, token = row / x.heads;
        int c = (int)(at % width), head = (int)(row % x.heads), i = (int)(token % x.q_len);
        int b = (int)(token / x.q_len);
        cuda_sequence s = sequence_of(x, b);
        int j = position_of(s, i);

        if (i >= s.q_len)
            continue;
        if (c < x.dim)
            store_cached(x.k.data, key_at(x, x.k, s, j, head) + c, x.kv_dtype,
                         load_q(x, s, i, query_at(x.q, s, i, head), c),
                         descale_of(x, x.k_descale, b, head));
        else
            store_cached(x.v.data, key_at(x, x.v, s, j, head) + c - x.dim, x.kv_dtype,
                         load_element(p.v.data, query_at(p.v, s, i, head) + c - x.dim, x.dtype),
                         descale_of(x, x.v_descale, b, head));
    }
}

/* As many elements as 16 bytes have. */
template <int COUNT> struct vector {
    float z[COUNT];
};

template <int COUNT>
static __device__ __forceinline__ vector<COUNT> load_vector(const void *data, int64_t at, int dtype)
{
    vector<COUNT> v;

#pragma unroll
    for (int i = 0; i < COUNT; i += 4)
        load4(data, at + i, dtype, v.z + i);
    return v;
}

/* 2 pi, and 1 / 2 pi */
#define TURN     6.283185307179586477
#define PER_TURN 0.159154943091895336

/* As turn_of(), where pair p turns by `frequency`: of the angle less whole turns, in f32. */
static __device__ __forceinline__ cuda_turn turn_by(const cuda_rope &rope, int position, int p,
                                                    double frequency)
{
    double angle = position * frequency;
    float rest = (float)(angle - rint(angle * PER_TURN) * TURN);

    if (rope.cos)
        return turn_of(rope, position, p);
    return {cosf(rest), sinf(rest)};
}

/* COUNT channels of the row at `at` from c on, all of which are turned. */
template <int COUNT>
static __device__ __forceinline__ vector<COUNT> load_turned_vector(const cuda_attention &x,
                                                                   int64_t at, int c, int position)
{
    const cuda_rope &rope = x.rope;
    cuda_pair pair = pair_of(rope, c);
    vector<COUNT> v = load_vector<COUNT>(x.q.data, at + c, x.dtype), w = v;
    double frequency = rope.cos ? 0 : exp2(rope.rate * pair.pair);
    double ratio = rope.cos ? 0 : exp2(rope.rate);

    if (!rope.interleaved)
        w = load_vector<COUNT>(x.q.data, at + pair.partner, x.dtype);
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        bool first = rope.interleaved ? i % 2 == 0 : !pair.second;
        int p = pair.pair + (rope.interleaved ? i / 2 : i);
        cuda_turn turn = turn_by(rope, position, p, frequency);

        if (rope.interleaved) {
            if (first)
                turn_pair(turn, v.z[i], v.z[i + 1]);
        } else if (first) {
            turn_pair(turn, v.z[i], w.z[i]);
        } else {
            turn_pair(turn, w.z[i], v.z[i]);
        }
        if (!rope.interleaved || !first)
            frequency *= ratio;
    }
    return v;
}

static __device__ __forceinline__ uint32_t four_to_e4m3(const float *z)
{
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890
    return pack_e4m3(z[0], z[1], z[2], z[3]);
#else
    return to_e4m3(z[0]) | (uint32_t)to_e4m3(z[1]) << 8 | (uint32_t)to_e4m3(z[2]) << 16 |
           (uint32_t)to_e4m3(z[3]) << 24;
#endif
}

/*
 * Quotients of which e4m3 gets the right bits, in three instructions: the product with the inverse
 * errs by an ulp, and adding the rest times the inverse rounds as a division would (Markstein,
 * "Computation of elementary functions on the IBM RISC System/6000 processor", 1990) unless the
 * factor's mantissa is all ones. Quotients that become 0 or 448, or are NaN, need no more than the
 * product.
 */
template <int COUNT> static __device__ __forceinline__ void divide(vector<COUNT> &v, float factor)
{
    uint32_t bits = __float_as_uint(factor), exponent = bits >> 23 & 0xff;
    bool plain = exponent > 67 && exponent < 187 && (bits & 0x7fffff) != 0x7fffff;
    float inverse = 1 / factor;

#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        float q = v.z[i] * inverse, rest = fmaf(-q, factor, v.z[i]);

        if (!plain)
            q = v.z[i] / factor;
        else if (fabsf(q) > 0x1p-11f && fabsf(q) < 1024)
            q = fmaf(rest, inverse, q);
        v.z[i] = q;
    }
}

template <int COUNT>
static __device__ __forceinline__ void store_e4m3(void *to, int64_t at, vector<COUNT> v,
                                                  float factor)
{
    uint32_t words[2] = {0, 0};

    divide(v, factor);
#pragma unroll
    for (int i = 0; i < COUNT; i += 4)
        words[i / 4] = four_to_e4m3(v.z + i);
    if (COUNT == 4)
        *(uint32_t *)((char *)to + at) = words[0];
    else
        *(uint2 *)((char *)to + at) = make_uint2(words[0], words[1]);
}

/* Elements of a new row on their way to the cache, as many as 16 bytes have. */
template <int COUNT> struct carried {
    vector<COUNT> numbers; /* for E4M3, or turned */
    uint4 bytes;           /* else: as they are */
    int64_t to;
    float factor;
    bool key, is_numbers;
};

/* Vector `at` of a token, of its keys' or its values'. */
template <int COUNT, bool FP8, bool ROPE>
static __device__ __forceinline__ carried<COUNT>
load_carried(const cuda_append &p, const cuda_sequence &s, int b, int i, int at)
{
    const cuda_attention &x = p.x;
    int vectors = (x.dim + x.dim_v) / COUNT, head = at / vectors, c = at % vectors * COUNT;
    int j = position_of(s, i);
    carried<COUNT> y = {};
    bool turned;

    y.key = c < x.dim;
    turned = ROPE && y.key && c >= x.rope.first && c < x.rope.first + x.rope.dim;
    c -= y.key ? 0 : x.dim;
    const cuda_rows &rows = y.key ? x.q : p.v;
    int64_t from = query_at(rows, s, i, head);
    y.is_numbers = FP8 || turned;
    if (turned)
        y.numbers = load_turned_vector<COUNT>(x, from, c, j);
    else if (FP8)
        y.numbers = load_vector<COUNT>(rows.data, from + c, x.dtype);
    else
        y.bytes = *(const uint4 *)((const char *)rows.data + (from + c) * (16 / COUNT));
    if (FP8)
        y.factor = descale_of(x, y.key ? x.k_descale : x.v_descale, b, head);
    y.to = key_at(x, y.key ? x.k : x.v, s, j, head) + c;
    return y;
}

template <int COUNT, bool FP8>
static __device__ __forceinline__ void store_carried(const cuda_attention &x,
                                                     const carried<COUNT> &y)
{
    void *to = y.key ? x.k.data : x.v.data;

    if (FP8)
        store_e4m3(to, y.to, y.numbers, y.factor);
    else if (!y.is_numbers)
        *(uint4 *)((char *)to + y.to * (16 / COUNT)) = y.bytes;
    else
#pragma unroll
        for (int e = 0; e < COUNT; e += 4)
            store4(to, y.to + e, x.dtype, y.numbers.z + e);
}

template <int COUNT, bool FP8, bool ROPE>
static __global__ void __launch_bounds__(THREADS) append_vectors(const cuda_append p)
{
    const cuda_attention &x = p.x;
    int vectors = x.heads * (x.dim + x.dim_v) / COUNT;
    int64_t tokens = (int64_t)x.batch * x.q_len;

    let_next_kernel_start();
    wait_for_kernels_before();
    for (int64_t token = blockIdx.x; token < tokens; token += gridDim.x) {
        int b = (int)(token / x.q_len), i = (int)(token % x.q_len);
        cuda_sequence s = sequence_of(x, b);

        if (i >= s.q_len)
            continue;
        for (int at = threadIdx.x; at < vectors; at += 2 * THREADS) {
            bool two = at + THREADS < vectors;
            carried<COUNT> first = load_carried<COUNT, FP8, ROPE>(p, s, b, i, at), second;

            if (two)
                second = load_carried<COUNT, FP8, ROPE>(p, s, b, i, at + THREADS);
            store_carried<COUNT, FP8>(x, first);
            if (two)
                store_carried<COUNT, FP8>(x, second);
        }
    }
}

gpunvme_ops_status_t cuda_append_naive(const struct cuda_append *p, void *stream)
{
    int64_t count =
        (int64_t)p->x.batch * p->x.q_len * p->x.heads * (p->x.dim + (int64_t)p->x.dim_v);

    LAUNCH_CLUSTERS(append_elements, cuda_attention_blocks(count, THREADS), 1, THREADS, 0, stream,
                    *p);
    return cuda_attention_launched();
}

/* (Without RoPE a thread needs fewer registers, so more of them hide each other's waiting.) */
template <int COUNT, bool FP8> static void (*vectors_kernel(bool rope))(cuda_append)
{
    return rope ? append_vectors<COUNT, FP8, true> : append_vectors<COUNT, FP8, false>;
}

gpunvme_ops_status_t cuda_append_vectorized(const struct cuda_append *p, void *stream)
{
    unsigned blocks = cuda_attention_blocks((int64_t)p->x.batch * p->x.q_len, 1);
    bool four = p->x.dtype == GPUNVME_OPS_F32, rope = p->x.rope.dim;
    void (*kernel)(cuda_append) =
        p->x.kv_dtype == GPUNVME_OPS_E4M3
            ? (four ? vectors_kernel<4, true>(rope) : vectors_kernel<8, true>(rope))
            : (four ? vectors_kernel<4, false>(rope) : vectors_kernel<8, false>(rope));

    LAUNCH_CLUSTERS(kernel, blocks, 1, THREADS, 0, stream, *p);
    return cuda_attention_launched();
}
