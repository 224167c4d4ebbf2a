/* SPDX-License-Identifier: BSD-3-Clause
 *
 * One call of attention as the GPU's kernels see it. problem.cuh has what they do with it.
 */
#ifndef OPS_ATTENTION_CUDA_PROBLEM_H
#define OPS_ATTENTION_CUDA_PROBLEM_H

#include <stdbool.h>

#include "gpunvme/ops/attention.h"
#include "ops/core/operator.h"
#include "ops/cuda/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Lengths, heads, channels and the batch are at most this, and so is a window: sums and differences
 * of two positions, in tiles that reach beyond the last, fit 32 bits. What has no limit has this
 * one.
 */
#define CUDA_ATTENTION_MOST ((1 << 30) - 1024)

/*
 * Rows of channels: channel c of head h in row i of sequence (or page) b is element
 * b * batch + i * row + h * head + c. A stride is 0 where there is one element.
 */
struct cuda_rows {
    void *data; /* only results are written */
    int64_t batch, row, head;
    int vectors; /* `data`, and each row from it, begins at a multiple of 16 bytes */
};

struct cuda_rope {
    const float *cos, *sin; /* NULL: by `rate` */
    int64_t ld;
    double rate; /* pair p turns by 2^(rate * p) a position */
    int dim;     /* 0: there is no rotation */
    int first, interleaved, queries_only;
};

/* Kernels get it by value. */
struct cuda_attention {
    int batch, heads, kv_heads, group; /* group: heads of Q for each of K */
    int dim, dim_v;
    int q_len, k_len;       /* at most */
    int64_t q_rows, k_rows; /* of each sequence; with offsets, of all together */
    struct cuda_rows q, k, v, out;
    struct cuda_rows lse; /* of f32, one channel; data NULL: not wanted */
    const int32_t *q_offsets, *k_offsets, *q_lengths, *k_lengths;
    const float *sinks;
    int left, right; /* keys seen to either side of t, where CUDA_ATTENTION_MOST is all */
    struct cuda_rope rope;
    float scale, softcap;
    int dtype, out_dtype;
    const float *q_descale, *k_descale, *v_descale; /* of E4M3; NULL: 1 */
    int64_t descale_stride;

    /* K and V in pages (batch strides go from page to page); page_size 0: they are not. */
    const int32_t *table;
    int64_t ld_table, pages;
    int page_size;

    int kv_dtype; /* of K and V: E4M3 where a cache has that, else dtype */
};

/* ERR_UNSUPPORTED if a size is beyond CUDA_ATTENTION_MOST. */
gpunvme_ops_status_t cuda_attention_check(const struct ops_variant *variant,
                                          const struct gpunvme_attention *p);

/* The problem of a descriptor for which that is OK. K and V are not in pages. */
struct cuda_attention cuda_attention_of(const struct gpunvme_attention *p);

/* A tensor of `batch` x `rows` x `heads`; those of gradients are made by it, too. */
struct cuda_rows cuda_rows_of(const void *data, const struct gpunvme_attention_strides *strides,
                              int64_t batch, int64_t rows, int64_t heads, int dtype);

/*
 * RoPE's angles by tables in the workspace, where the caller gave none: computing them for each row
 * that is loaded would take longer than the rest. cuda_attention_turns() enqueues that, and changes
 * the problem. Bytes are 0 if there is nothing to do; they grow with the positions that there are.
 */
size_t cuda_attention_turns_nbytes(const struct cuda_attention *x);
gpunvme_ops_status_t cuda_attention_turns(struct cuda_attention *x, void *workspace, void *stream);

/*
 * Likewise K itself, turned, for kernels that copy rows as they are. Bytes are 0 if K is not
 * turned. It leaves only Q to be turned.
 */
size_t cuda_attention_turned_keys_nbytes(const struct cuda_attention *x);
gpunvme_ops_status_t cuda_attention_turn_keys(struct cuda_attention *x, void *workspace,
                                              void *stream);

/* Likewise Q, when K has been turned, or in the cache: nothing is left to be turned. */
size_t cuda_attention_turned_queries_nbytes(const struct cuda_attention *x);
gpunvme_ops_status_t cuda_attention_turn_queries(struct cuda_attention *x, void *workspace,
                                                 void *stream);

/* Blocks for so many threads' work, at most what a grid may have: kernels go on by themselves. */
unsigned cuda_attention_blocks(int64_t items, int each);

/* After a launch by LAUNCH(). */
gpunvme_ops_status_t cuda_attention_launched(void);

/* Channels of the tiles that Q, K and V are padded to, for tensor cores: 64, 128 or 256. */
int cuda_attention_width(const struct cuda_attention *x);

/* The forward rungs: memory, and what enqueues them. */
typedef size_t cuda_attention_workspace(const struct cuda_attention *x);
typedef gpunvme_ops_status_t cuda_attention_run(const struct cuda_attention *x, void *workspace,
                                                void *stream);

cuda_attention_workspace cuda_attention_naive_nbytes, cuda_attention_flash2_nbytes,
    cuda_attention_hopper_nbytes;
/* Bytes of shared memory. */
cuda_attention_workspace cuda_attention_flash_shared, cuda_attention_flash2_shared;
cuda_attention_run cuda_attention_naive, cuda_attention_tiled, cuda_attention_flash,
    cuda_attention_flash2, cuda_attention_hopper;

/* What the rung "hopper" takes. */
gpunvme_ops_status_t cuda_attention_hopper_suits(const struct ops_variant *variant,
                                                 const struct cuda_attention *x, bool any_pointers);

#ifdef __cplusplus
}
#endif
#endif
