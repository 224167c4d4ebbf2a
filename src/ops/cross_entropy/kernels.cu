/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Cross entropy by a thread for each row, by a block for each row, and by a block that reads 16
 * bytes at a time; and what comes before and after rows. (cluster.cu reads a row only once.)
 */
#include "ops/cross_entropy/entropy.cuh"

#define THREADS 512

static __global__ void __launch_bounds__(1024) count_rows(const entropy_work x)
{
    __shared__ __align__(16) float shared[32];
    int count = 0;
    float sum[1];

    let_next_kernel_start(); /* which waits for this one before it reads *scale */
    for (int64_t i = threadIdx.x; i < x.p.rows; i += 1024)
        count += !x.p.ignore || x.p.targets[i] != x.p.ignore_index;
    sum[0] = (float)count; /* sums of integers below 2^24 are exact in any order */
    sum_over_row(sum, 1024, shared);
    if (!threadIdx.x)
        *x.scale = 1 / sum[0];
}

static __global__ void __launch_bounds__(1024) total(const entropy_work x)
{
    __shared__ __align__(16) float shared[32];
    float sum[1] = {0};

    wait_for_kernels_before();
    for (int64_t i = threadIdx.x; i < x.p.rows; i += 1024)
        sum[0] += x.losses[i];
    sum_over_row(sum, 1024, shared);
    /* Of no rows that count 0 * infinity, a NaN. */
    if (!threadIdx.x)
        x.p.loss[0] = x.scale ? sum[0] * *x.scale : sum[0];
}

static __global__ void __launch_bounds__(ROWS_THREADS) naive(const entropy_work x)
{
    const struct gpunvme_cross_entropy &p = x.p;
    int64_t step = (int64_t)gridDim.x * ROWS_THREADS;

    for (int64_t i = (int64_t)blockIdx.x * ROWS_THREADS + threadIdx.x; i < p.rows; i += step) {
        entropy_row row = row_of(x, i);
        exponentials all = no_exponentials();

        for (int64_t j = 0; j < p.vocab; j++) {
            float value = load_element(p.logits, i * p.ld_logits + j, p.dtype);

            add_exponentials<1>(all, &value);
        }
        finish_row(x, row, lse_of(all), target_logit(x, row));
        for (int64_t j = 0; j < p.vocab && p.grad; j++)
            store_element(p.grad, i * p.ld_grad + j, p.dtype,
                          grad_of(row, j, load_element(p.logits, i * p.ld_logits + j, p.dtype),
                                  log2_of(all)));
    }
}

static __global__ void __launch_bounds__(THREADS) block(const entropy_work x)
{
    __shared__ float shared[2][64];
    const struct gpunvme_cross_entropy &p = x.p;
    int turn = 0;

    for (int64_t i = blockIdx.x; i < p.rows; i += gridDim.x, turn ^= 1) {
        entropy_row row = row_of(x, i);
        float logit = target_logit(x, row), log2_sum;
        exponentials all = no_exponentials();

        for (int64_t j = threadIdx.x; j < p.vocab; j += THREADS) {
            float value = load_element(p.logits, i * p.ld_logits + j, p.dtype);

            add_exponentials<1>(all, &value);
        }
        all = merge_block(all, THREADS, shared[turn]);
        if (!threadIdx.x)
            finish_row(x, row, lse_of(all), logit);
        log2_sum = log2_of(all);
        if (p.grad)
            for (int64_t j = threadIdx.x; j < p.vocab; j += THREADS)
                store_element(p.grad, i * p.ld_grad + j, p.dtype,
                              grad_of(row, j, load_element(p.logits, i * p.ld_logits + j, p.dtype),
                                      log2_sum));
    }
}

/* The elements of a row before its first whole word and behind its last, a thread each. */
template <int DTYPE>
static __device__ __forceinline__ int64_t edge_of(const entropy_work &x, const row_words &w)
{
    int64_t tail = w.head + w.words * word<DTYPE>::count, j = threadIdx.x;

    j = j < w.head ? j : tail + j - w.head;
    return j < x.p.vocab ? j : -1;
}

/* The same with words; the second time the row comes from the cache. */
#define AT_ONCE 4

template <int DTYPE> static __global__ void __launch_bounds__(THREADS) online(const entropy_work x)
{
    __shared__ float shared[2][64];
    const struct gpunvme_cross_entropy &p = x.p;
    int turn = 0;

    for (int64_t i = blockIdx.x; i < p.rows; i += gridDim.x, turn ^= 1) {
        row_words w = words_of<DTYPE>(x, i);
        const uint4 *from = (const uint4 *)((const char *)p.logits +
                                            (i * p.ld_logits + w.head) * word<DTYPE>::size);
        int64_t edge = edge_of<DTYPE>(x, w);
        entropy_row row = row_of(x, i);
        float logit = target_logit(x, row), at_edge = -INFINITY, log2_sum;
        exponentials all = no_exponentials();

        if (edge >= 0) {
            at_edge = load_element(p.logits, i * p.ld_logits + edge, DTYPE);
            add_exponentials<1>(all, &at_edge);
        }
        for (int64_t first = threadIdx.x; first < w.words; first += AT_ONCE * THREADS) {
            uint4 words[AT_ONCE];

#pragma unroll
            for (int a = 0; a < AT_ONCE; a++)
                if (first + a * THREADS < w.words)
                    words[a] = from[first + a * THREADS];
#pragma unroll
            for (int a = 0; a < AT_ONCE; a++)
                if (first + a * THREADS < w.words) {
                    float values[word<DTYPE>::count];

                    unpack_word<DTYPE>(words[a], values);
                    add_exponentials<word<DTYPE>::count>(all, values);
                }
        }
        all = merge_block(all, THREADS, shared[turn]);
        if (!threadIdx.x)
            finish_row(x, row, lse_of(all), logit);
        log2_sum = log2_of(all);
        if (!p.grad)
            continue;
        if (edge >= 0)
            store_element(p.grad, i * p.ld_grad + edge, DTYPE,
                          grad_of(row, edge, at_edge, log2_sum));
#pragma unroll 4
        for (int64_t at = threadIdx.x; at < w.words; at += THREADS)
            store_grad_word<DTYPE>(x, row, w.head + at * word<DTYPE>::count, from[at], log2_sum);
    }
}

gpunvme_ops_status_t entropy_count(const struct entropy_work *x, void *stream)
{
    LAUNCH(count_rows, 1, 1024, stream, *x);
    return cuda_status(cudaGetLastError(), "launching a count of rows");
}

gpunvme_ops_status_t entropy_total(const struct entropy_work *x, void *stream)
{
    LAUNCH_CLUSTERS(total, 1u, 1u, 1024u, 0, stream, *x);
    return cuda_status(cudaGetLastError(), "launching a sum of losses");
}

gpunvme_ops_status_t entropy_naive(const struct entropy_work *x, void *stream)
{
    LAUNCH(naive, rows_blocks((x->p.rows + ROWS_THREADS - 1) / ROWS_THREADS), ROWS_THREADS, stream,
           *x);
    return cuda_status(cudaGetLastError(), "launching cross entropy");
}

gpunvme_ops_status_t entropy_block(const struct entropy_work *x, void *stream)
{
    LAUNCH(block, rows_blocks(x->p.rows), THREADS, stream, *x);
    return cuda_status(cudaGetLastError(), "launching cross entropy");
}

gpunvme_ops_status_t entropy_online(const struct entropy_work *x, void *stream)
{
    unsigned blocks = rows_blocks(x->p.rows);

    if (x->p.dtype == GPUNVME_OPS_F32)
        LAUNCH((online<GPUNVME_OPS_F32>), blocks, THREADS, stream, *x);
    else if (x->p.dtype == GPUNVME_OPS_F16)
        LAUNCH((online<GPUNVME_OPS_F16>), blocks, THREADS, stream, *x);
    else
        LAUNCH((online<GPUNVME_OPS_BF16>), blocks, THREADS, stream, *x);
    return cuda_status(cudaGetLastError(), "launching cross entropy");
}
