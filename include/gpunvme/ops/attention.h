/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Attention: forward, backward, and over a cache of keys and values in pages; and appending to such
 * a cache. The rules of ops/core.h apply. Rows behind a sequence's length are padding: they are
 * neither read nor written.
 *
 * Arrays of int32_t (offsets, lengths, block tables) are where the operands are; with CUDA that is
 * the memory of the GPU, so a captured graph can be replayed with other lengths. On the CPU their
 * values are checked (ERR_INVALID). With CUDA they are not: values out of range make the behaviour
 * undefined.
 */
#ifndef GPUNVME_OPS_ATTENTION_H
#define GPUNVME_OPS_ATTENTION_H

#include "gpunvme/ops/core.h"
#include "gpunvme/ops/rope.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * The layout of a tensor: channel c of head h in row i of sequence b is at
 * p[b * batch + i * row + h * head + c]. Channels are contiguous. Strides count elements, may be in
 * any order, and are not negative; that of a dimension with one element is ignored. For s rows, h
 * heads and d channels:
 *
 *   BSHD                      {s * h * d, h * d, d}
 *   BHSD                      {h * s * d, d, s * d}
 *   packed QKV, BS3HD         {s * 3 * h * d, 3 * h * d, d}, K begins h * d elements behind Q
 *
 * Strides of operands may be 0, to share K among sequences for example. Elements of a result may
 * not share memory, but results may interleave with each other and with operands.
 */
struct gpunvme_attention_strides {
    int64_t batch, row, head;
};

/*
 * Attention (Vaswani et al., 2017). For each sequence and head, with row i of Q and key j:
 *
 *   S = scale Q K^T                  with softcap: S = softcap tanh(scale Q K^T / softcap)
 *   lse_i = log(sum of exp(S_ij) over the keys that i sees, + exp(sink) of the head, if given)
 *   P_ij = exp(S_ij - lse_i), 0 where i does not see j
 *   out = P V
 *
 * Let t = i + k_len - q_len, with the lengths of the sequence: the last query is aligned to the
 * last key. Query i sees key j if j <= t (`causal`) and t - window_left <= j <= t + window_right
 * (`window`). A query that sees no key has out = 0 and lse = sink, or -infinity without sinks.
 * NaN and infinity in rows of K and V that a query does not see may still reach its result; those
 * of padding do not.
 *
 *   q      batch x q_len x heads x dim
 *   k      batch x k_len x kv_heads x dim
 *   v      batch x k_len x kv_heads x dim_v; may be k (MLA: the first dim_v channels of K)
 *   out    batch x q_len x heads x dim_v
 *   lse    batch x q_len x heads, f32, the natural logarithm; NULL if not wanted
 *   sinks  heads, f32: a logit that takes its share of the softmax and has no value; NULL for none
 *
 * Head h reads K and V of head h / (heads / kv_heads): multi-query and grouped-query attention.
 *
 * Sequences of different lengths lie behind each other (offsets) or in batches with padding
 * (lengths), Q and K independently. With q_offsets, batch + 1 numbers that do not decrease, the
 * rows of sequence b are q_offsets[b] … q_offsets[b + 1] - 1 of the q_rows rows there are, and
 * batch strides of Q, out and lse are ignored. With q_lengths, batch numbers, only the first
 * q_lengths[b] rows of each sequence are used. No sequence may be longer than q_len. The same for
 * K and V with k_offsets, k_lengths, k_rows and k_len.
 *
 * Any length may be 0; dim, dim_v and heads are at least 1. Q, K and V have the type `dtype`; out
 * has `out_dtype`, which is dtype or F32. Tensor cores of a GPU multiply P as dtype, too.
 *
 * Q, K and V may be E4M3, forward and without pages; out is then F32, F16 or BF16. (In pages K and
 * V alone may be.) An element is its number times a factor, which the sequence and the head of K
 * have, for Q, K and V each:
 *
 *   q_descale, k_descale, v_descale  batch x kv_heads, f32, positive, where the operands are; NULL
 *                                    is 1
 *   descale_stride                   from a sequence's factors to the next one's; 0: all share
 *                                    kv_heads factors
 *
 * All heads of Q that read one of K share a factor. Variant "hopper" rounds weights to E4M3, too: a
 * row's largest becomes 2^6 to 2^8. Its sums have some 14 bits, as matmul's with fast_sums.
 */
struct gpunvme_attention {
    int64_t batch; /* sequences */
    int64_t heads, kv_heads;
    int64_t dim, dim_v;
    int64_t q_len, k_len;   /* of each sequence, at most */
    int64_t q_rows, k_rows; /* with offsets: of all sequences; else ignored */
    const void *q, *k, *v;
    void *out;
    float *lse;
    struct gpunvme_attention_strides q_strides, k_strides, v_strides, out_strides, lse_strides;
    const int32_t *q_offsets, *k_offsets, *q_lengths, *k_lengths; /* NULL: not used */
    const float *sinks;
    int64_t window_left, window_right; /* >= 0; INT64_MAX: no limit to that side */
    struct gpunvme_rope rope;
    float scale;            /* 0: 1 / sqrt(dim) */
    float softcap;          /* 0: none */
    int32_t causal, window; /* 0 or 1 */
    int32_t dtype, out_dtype, compute;
    int32_t reserved; /* 0 */

    /* Of operands of E4M3; of other types all are 0. */
    const float *q_descale, *k_descale, *v_descale;
    int64_t descale_stride;
};

/*
 * ERR_SHAPE: a size, stride or length makes no sense. ERR_INVALID: a pointer is missing, a number
 * is out of its range, or (CPU) an offset or length is. Threads, aliasing and all else as in
 * ops/core.h.
 */
gpunvme_ops_status_t gpunvme_attention(const struct gpunvme_attention *attention,
                                       const struct gpunvme_ops_exec *exec);

/*
 * Bytes of workspace that gpunvme_attention() needs. It depends on sizes and types, and not on
 * what pointers are or point to, except whether an optional one is NULL.
 */
gpunvme_ops_status_t gpunvme_attention_workspace(const struct gpunvme_attention *attention,
                                                 const struct gpunvme_ops_exec *exec,
                                                 size_t *nbytes);

/* The name of the variant that gpunvme_attention() runs; as gpunvme_matmul_choose(). */
gpunvme_ops_status_t gpunvme_attention_choose(const struct gpunvme_attention *attention,
                                              const struct gpunvme_ops_exec *exec,
                                              const char **name);

/*
 * Attention backwards: of a forward call and the gradient of its result. With S, P and the keys
 * that are seen as above, P made of the lse that is given, and D_i the sum of grad_out * out in row
 * i:
 *
 *   dS = P (grad_out V^T - D)      with softcap: times 1 - (S / softcap)^2
 *   grad_q = scale dS K            grad_k = scale dS^T Q, summed over the heads that share it
 *   grad_v = P^T grad_out, summed likewise
 *   grad_sinks = - the sum of exp(sink - lse_i) D_i over the rows of a head
 *
 * `forward` is the call's descriptor, with out and lse as operands: both must be given. They may be
 * those of a softmax over more keys than K has, whose other parts are elsewhere. grad_out is laid
 * out like out and has its type; each gradient has the type and the sizes of what it is of, and
 * strides of its own. Each of the four may be NULL, and is then not computed. Gradients of queries
 * that see no key, and of keys that no query sees, are 0. With GPUNVME_OPS_DETERMINISTIC they are
 * the same bits in every run.
 */
struct gpunvme_attention_grad {
    struct gpunvme_attention forward;
    const void *grad_out;
    void *grad_q, *grad_k, *grad_v;
    float *grad_sinks;
    struct gpunvme_attention_strides grad_out_strides, grad_q_strides, grad_k_strides,
        grad_v_strides;
    int64_t reserved[4]; /* 0 */
};

/* As the functions of gpunvme_attention(). */
gpunvme_ops_status_t gpunvme_attention_backward(const struct gpunvme_attention_grad *grad,
                                                const struct gpunvme_ops_exec *exec);
gpunvme_ops_status_t gpunvme_attention_backward_workspace(const struct gpunvme_attention_grad *grad,
                                                          const struct gpunvme_ops_exec *exec,
                                                          size_t *nbytes);
gpunvme_ops_status_t gpunvme_attention_backward_choose(const struct gpunvme_attention_grad *grad,
                                                       const struct gpunvme_ops_exec *exec,
                                                       const char **name);

/*
 * Attention over a cache whose K and V are in pages (Kwon et al., "PagedAttention", 2023):
 * decoding, and prefilling behind what is cached. Key j of sequence b is row j % page_size of page
 * block_table[b * ld_table + j / page_size]. All of `attention` is as above, but for this:
 *
 *   k, v       pages x page_size x kv_heads x dim, x dim_v; batch strides go from page to page;
 *              v may be k, with the same strides (MLA)
 *   k_lengths  must be given: the keys of each sequence, those of its queries among them
 *   k_len      the longest that k_lengths may become; k_offsets must be NULL, k_rows is ignored
 *   rope       with queries_only for a cache that gpunvme_kv_append() has rotated
 *   cache_dtype  of K and V: dtype, or E4M3 with k_descale, v_descale and descale_stride as above
 *
 * Q is F32, F16 or BF16. Where pages are shared among sequences, so must be their factors: give
 * kv_heads of each, with descale_stride 0.
 *
 * block_table has batch rows of at least k_len / page_size numbers, rounded up. Those of pages
 * behind a sequence's length may be anything. Pages that no sequence uses and rows behind a length
 * are not read. The workspace does not grow with k_len, except in variant "naive".
 */
struct gpunvme_attention_paged {
    struct gpunvme_attention attention;
    const int32_t *block_table;
    int64_t ld_table;
    int64_t pages;       /* that there are */
    int64_t page_size;   /* rows of a page: 1 to 256 */
    int32_t cache_dtype; /* of K and V */
    int32_t reserved;
    int64_t reserved_more[4]; /* 0, as `reserved` */
};

/* As the functions of gpunvme_attention(). ERR_INVALID (CPU): a page that is not there. */
gpunvme_ops_status_t gpunvme_attention_paged(const struct gpunvme_attention_paged *paged,
                                             const struct gpunvme_ops_exec *exec);
gpunvme_ops_status_t gpunvme_attention_paged_workspace(const struct gpunvme_attention_paged *paged,
                                                       const struct gpunvme_ops_exec *exec,
                                                       size_t *nbytes);
gpunvme_ops_status_t gpunvme_attention_paged_choose(const struct gpunvme_attention_paged *paged,
                                                    const struct gpunvme_ops_exec *exec,
                                                    const char **name);

/*
 * Appends K and V of new tokens to a cache in pages. The new tokens of a sequence are its last
 * ones: with n of them, token i becomes key k_lengths[b] - n + i. So one array of lengths serves
 * this call and the attention that follows.
 *
 *   k, v              batch x new_len x kv_heads x dim, x dim_v; dim_v 0: there is no V (MLA)
 *   k_pages, v_pages  as in struct gpunvme_attention_paged, which has block_table, too
 *   new_offsets, new_lengths  as q_offsets and q_lengths; both NULL: new_len tokens each
 *   rope              K is rotated on its way, at its key's position
 *   k_descale, v_descale, descale_stride  as in struct gpunvme_attention, for a cache of E4M3
 *
 * Elements of a cache of E4M3 are divided by their factor, in f32, and rounded to nearest even.
 * Those beyond 448 times the factor, infinities too, become that; a NaN stays one. No other row of
 * the cache is written. Two tokens may not have the same row of the same page. k_pages and v_pages
 * may interleave in one tensor.
 */
struct gpunvme_kv_append {
    int64_t batch, kv_heads, dim, dim_v;
    int64_t new_len, new_rows; /* of a sequence, at most; with offsets: of all */
    int64_t k_len;             /* the longest that k_lengths may become */
    const void *k, *v;
    void *k_pages, *v_pages;
    struct gpunvme_attention_strides k_strides, v_strides, k_pages_strides, v_pages_strides;
    const int32_t *new_offsets, *new_lengths, *k_lengths, *block_table;
    int64_t ld_table, pages, page_size;
    struct gpunvme_rope rope;   /* queries_only: 0 */
    int32_t dtype, cache_dtype; /* of K and V; of the cache: dtype, or E4M3 */

    /* Of a cache of E4M3; of other types all are 0. */
    const float *k_descale, *v_descale;
    int64_t descale_stride;
    int64_t reserved; /* 0 */
};

/* As the functions of gpunvme_attention_paged(). */
gpunvme_ops_status_t gpunvme_kv_append(const struct gpunvme_kv_append *append,
                                       const struct gpunvme_ops_exec *exec);
gpunvme_ops_status_t gpunvme_kv_append_workspace(const struct gpunvme_kv_append *append,
                                                 const struct gpunvme_ops_exec *exec,
                                                 size_t *nbytes);
gpunvme_ops_status_t gpunvme_kv_append_choose(const struct gpunvme_kv_append *append,
                                              const struct gpunvme_ops_exec *exec,
                                              const char **name);

#ifdef __cplusplus
}
#endif
#endif
