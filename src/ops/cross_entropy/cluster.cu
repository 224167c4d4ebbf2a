/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Cross entropy that reads a row once: up to eight blocks of a cluster share it, so that several
 * rows fit the shared memory of a multiprocessor and are in different phases. A block copies its
 * share to shared memory without passing registers, the cluster's maxima and sums are merged by
 * way of distributed shared memory, and the gradient is made of what was kept.
 */
#include "ops/cross_entropy/entropy.cuh"

#define THREADS 256

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
/* What of a row's words is this block's. Each thread reads only what it has copied itself. */
struct share {
    int64_t first, count;
};

template <int DTYPE>
static __device__ __forceinline__ void copy_share(const entropy_work &x, int64_t i,
                                                  const row_words &w, const share &s, uint32_t to)
{
    const char *from = (const char *)x.p.logits + (i * x.p.ld_logits + w.head) * word<DTYPE>::size;

    for (int64_t at = threadIdx.x; at < s.count; at += THREADS)
        cp_async16(to + (uint32_t)at * 16, from + (s.first + at) * 16, 16);
    cp_async_commit();
    cp_async_wait<0>();
}

template <int DTYPE>
static __device__ __forceinline__ exponentials sum_share(const share &s, const uint4 *kept,
                                                         float at_edge)
{
    exponentials all = {at_edge, 0};
    float values[word<DTYPE>::count];

    for (int64_t at = threadIdx.x; at < s.count; at += THREADS) {
        unpack_word<DTYPE>(kept[at], values);
#pragma unroll
        for (int e = 0; e < word<DTYPE>::count; e++)
            all.most = fmaxf(all.most, values[e]);
    }
    all.most *= LOG2_E;
    all.sum = part_of(at_edge * LOG2_E, all.most);
    for (int64_t at = threadIdx.x; at < s.count; at += THREADS) {
        unpack_word<DTYPE>(kept[at], values);
#pragma unroll
        for (int e = 0; e < word<DTYPE>::count; e++)
            all.sum += part_of(values[e] * LOG2_E, all.most);
    }
    return all;
}

/* Of all blocks, by rank; shared memory begins with each one's. */
static __device__ __forceinline__ exponentials merge_cluster(exponentials mine, float *shared)
{
    exponentials all = no_exponentials();

    if (!threadIdx.x) {
        shared[0] = mine.most;
        shared[1] = mine.sum;
    }
    cluster_sync();
    for (uint32_t rank = 0; rank < cluster_size(); rank++) {
        exponentials its = {load_shared_at(shared_address(shared), rank),
                            load_shared_at(shared_address(shared) + 4, rank)};

        all = merged(all, its);
    }
    return all;
}

template <int DTYPE> static __device__ __forceinline__ void do_row(const entropy_work &x, int64_t i)
{
    float *shared = (float *)dynamic_shared();
    const uint4 *kept = (const uint4 *)(dynamic_shared() + ENTROPY_HEAD_NBYTES);
    row_words w = words_of<DTYPE>(x, i);
    int64_t each = (w.words + cluster_size() - 1) / cluster_size(), edge = threadIdx.x;
    share s = {each * cluster_rank(), each};
    entropy_row row = row_of(x, i);
    float logit = target_logit(x, row), at_edge = -INFINITY, log2_sum;
    exponentials all;

    s.count = s.first + each < w.words ? each : w.words - s.first;
    copy_share<DTYPE>(x, i, w, s, shared_address(kept));
    /* The elements before the first whole word and behind the last are the first block's. */
    edge = edge < w.head ? edge : w.words * word<DTYPE>::count + edge;
    edge = cluster_rank() || edge >= x.p.vocab ? -1 : edge;
    if (edge >= 0)
        at_edge = load_element(x.p.logits, i * x.p.ld_logits + edge, DTYPE);
    all = merge_block(sum_share<DTYPE>(s, kept, at_edge), THREADS, shared + 4);
    all = merge_cluster(all, shared);
    if (!cluster_rank() && !threadIdx.x)
        finish_row(x, row, lse_of(all), logit);
    log2_sum = log2_of(all);
    if (x.p.grad) {
        if (edge >= 0)
            store_element(x.p.grad, i * x.p.ld_grad + edge, DTYPE,
                          grad_of(row, edge, at_edge, log2_sum));
        for (int64_t at = threadIdx.x; at < s.count; at += THREADS)
            store_grad_word<DTYPE>(x, row, w.head + (s.first + at) * word<DTYPE>::count, kept[at],
                                   log2_sum);
    }
    /* No block ends, or takes another row, while others read its shared memory. */
    cluster_sync();
}
#endif

template <int DTYPE>
static __global__ void __launch_bounds__(THREADS, 8) rows_of_clusters(const entropy_work x)
{
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    wait_for_kernels_before();
    for (int64_t i = blockIdx.x / cluster_size(); i < x.p.rows; i += gridDim.x / cluster_size())
        do_row<DTYPE>(x, i);
#endif
}

template <int DTYPE> static gpunvme_ops_status_t launch(const struct entropy_work *x, void *stream)
{
    int64_t row = entropy_row_nbytes(&x->p);
    int cluster = entropy_cluster_size(row);
    size_t nbytes = (size_t)entropy_share_nbytes(row, cluster) + ENTROPY_HEAD_NBYTES;
    int64_t rows = x->p.rows < 1 << 26 ? x->p.rows : 1 << 26;
    gpunvme_ops_status_t status = cuda_allow_shared((const void *)rows_of_clusters<DTYPE>, nbytes);

    if (status)
        return status;
    LAUNCH_CLUSTERS((rows_of_clusters<DTYPE>), (unsigned)(rows * cluster), (unsigned)cluster,
                    THREADS, nbytes, stream, *x);
    return cuda_status(cudaGetLastError(), "launching cross entropy");
}

gpunvme_ops_status_t entropy_cluster(const struct entropy_work *x, void *stream)
{
    if (x->p.dtype == GPUNVME_OPS_F32)
        return launch<GPUNVME_OPS_F32>(x, stream);
    return x->p.dtype == GPUNVME_OPS_F16 ? launch<GPUNVME_OPS_F16>(x, stream)
                                         : launch<GPUNVME_OPS_BF16>(x, stream);
}
