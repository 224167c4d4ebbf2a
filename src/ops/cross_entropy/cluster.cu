/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Cross entropy that reads a row once. A block keeps it, or the blocks of a cluster do; they stay
 * for other rows. Each thread has its words of a row in registers until the gradient is made of
 * them, and meanwhile its words of the next row are copied to shared memory. Blocks write maximum
 * and sum to each other's shared memory, where a barrier counts what has come, so that at the end
 * of a row no block waits for another one.
 */
#include "ops/cross_entropy/entropy.cuh"

#define WORDS ENTROPY_WORDS
#define RANKS ENTROPY_RANKS

/* Shared memory. All but the words is there twice, for rows in turn. */
struct memory {
    uint64_t barrier[2];    /* the blocks' parts have come */
    float4 parts[2][RANKS]; /* of each block: maximum, sum, and (of the first) the target's logit */
    float2 warps[2][32];    /* of each warp of this block: maximum and sum */
    uint4 next[];           /* of each thread WORDS of the next row, as far apart as there are
                               threads: it reads only what it has copied itself */
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
/* What of a row's words is this block's. */
struct share {
    int head, words, first, count;
};

template <int DTYPE> static __device__ __forceinline__ share share_of(const entropy_work &x, int i)
{
    row_words w = words_of<DTYPE>(x, i);
    int ranks = (int)cluster_size();
    int each = ((int)w.words + ranks - 1) >> __popc((unsigned)ranks - 1);
    share s = {(int)w.head, (int)w.words, each * (int)cluster_rank(), each};

    s.count = s.first + each < s.words ? each : s.words - s.first;
    return s;
}

/* Of a thread's first word, in bytes from the matrix. */
template <int DTYPE>
static __device__ __forceinline__ int64_t offset_of(const share &s, int i, int64_t ld)
{
    return (i * ld + s.head) * word<DTYPE>::size + (int64_t)(s.first + (int)threadIdx.x) * 16;
}

/* Enqueues the copies of a thread's words of row i, if there is one. */
template <int DTYPE, int THREADS>
static __device__ __forceinline__ void copy_row(const entropy_work &x, int i, uint32_t to)
{
    if (i < (int)x.p.rows) {
        share s = share_of<DTYPE>(x, i);
        const char *from = (const char *)x.p.logits + offset_of<DTYPE>(s, i, x.p.ld_logits);

#pragma unroll
        for (int k = 0; k < WORDS; k++)
            if ((int)threadIdx.x + k * THREADS < s.count)
                cp_async16(to + k * THREADS * 16, from + k * THREADS * 16, 16);
    }
    cp_async_commit();
}

/* -infinity as often as it fits. */
template <int DTYPE> static __device__ __forceinline__ uint32_t least(void)
{
    return DTYPE == GPUNVME_OPS_F32   ? 0xff800000u
           : DTYPE == GPUNVME_OPS_F16 ? 0xfc00fc00u
                                      : 0xff80ff80u;
}

/* The copies have come; where a thread has no word, there are no logits. */
template <int DTYPE, int THREADS>
static __device__ __forceinline__ void take_row(uint4 (&kept)[WORDS], const share &s,
                                                const uint4 *next)
{
    cp_async_wait<0>();
#pragma unroll
    for (int k = 0; k < WORDS; k++) {
        kept[k] = make_uint4(least<DTYPE>(), least<DTYPE>(), least<DTYPE>(), least<DTYPE>());
        if ((int)threadIdx.x + k * THREADS < s.count)
            kept[k] = next[k * THREADS];
    }
}

template <int DTYPE> static __device__ __forceinline__ float most_of(const uint4 (&kept)[WORDS])
{
    float most = -INFINITY, low, high;
    uint32_t pair = least<DTYPE>();

#pragma unroll
    for (int k = 0; k < WORDS; k++)
        if (DTYPE == GPUNVME_OPS_F32)
            most =
                fmaxf(most, fmaxf(fmaxf(__uint_as_float(kept[k].x), __uint_as_float(kept[k].y)),
                                  fmaxf(__uint_as_float(kept[k].z), __uint_as_float(kept[k].w))));
        else
            pair = max_pair<DTYPE>(pair, max_pair<DTYPE>(max_pair<DTYPE>(kept[k].x, kept[k].y),
                                                         max_pair<DTYPE>(kept[k].z, kept[k].w)));
    if (DTYPE == GPUNVME_OPS_F32)
        return most;
    from_pair(pair, DTYPE, low, high);
    return fmaxf(low, high);
}

/* Words from the `count`'th on are no thread's. */
template <int DTYPE, int THREADS>
static __device__ __forceinline__ float sum_words(const uint4 (&kept)[WORDS], int count, float most,
                                                  float at_edge)
{
    float least = most == -INFINITY ? 0 : most, sums[2] = {fast_exp2(at_edge * LOG2_E - least), 0};

#pragma unroll
    for (int k = 0; k < WORDS; k++)
        if (k * THREADS < count) {
            float values[word<DTYPE>::count];

            unpack_word<DTYPE>(kept[k], values);
#pragma unroll
            for (int e = 0; e < word<DTYPE>::count; e++)
                sums[e % 2] += fast_exp2(values[e] * LOG2_E - least);
        }
    return sums[0] + sums[1];
}

/* Of groups of LANES; all of a group get the same bits. */
template <int LANES> static __device__ __forceinline__ exponentials merge_lanes(exponentials x)
{
    float most = x.most;

#pragma unroll
    for (int step = LANES / 2; step; step /= 2)
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
    x.sum *= part_of(x.most, most);
#pragma unroll
    for (int step = LANES / 2; step; step /= 2)
        x.sum += __shfl_xor_sync(0xffffffffu, x.sum, step);
    x.most = most;
    return x;
}

/*
 * Of all threads of the cluster, always in the same order. Each block's first warp adds up its own
 * block, and writes that to all blocks. The first block's part brings the target's logit, which its
 * first thread has loaded: when the part is there, others may overwrite the logit. A block that is
 * alone writes as usual, for an asynchronous store is an illegal instruction there.
 */
template <int THREADS>
static __device__ __forceinline__ exponentials merge_cluster(exponentials mine, float logit,
                                                             memory *m, int turn, uint32_t phase)
{
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, ranks = cluster_size();
    uint32_t barrier = shared_address(&m->barrier[turn]);
    exponentials part = no_exponentials();

    mine = merge_lanes<32>(mine);
    if (!lane)
        m->warps[turn][warp] = make_float2(mine.most, mine.sum);
    if (!threadIdx.x && ranks > 1)
        mbarrier_arrive_expecting(barrier, ranks * sizeof(float4));
    __syncthreads();
    if (!warp) {
        if (lane < THREADS / 32)
            part = {m->warps[turn][lane].x, m->warps[turn][lane].y};
        part = merge_lanes<THREADS / 32>(part);
        logit = __uint_as_float((uint32_t)__shfl_sync(0xffffffffu, (int)__float_as_uint(logit), 0));
        if (ranks == 1) {
            if (!lane) {
                m->parts[turn][0] = make_float4(part.most, part.sum, logit, 0);
                mbarrier_arrive(barrier);
            }
        } else if (lane < ranks) {
            uint32_t to = shared_address(&m->parts[turn][cluster_rank()]);

            store_shared8_at(to, barrier, lane, part.most, part.sum);
            store_shared8_at(to + 8, barrier, lane, logit, 0);
        }
    }
    mbarrier_wait(barrier, phase);
    part = no_exponentials();
    if (lane % RANKS < ranks)
        part = {m->parts[turn][lane % RANKS].x, m->parts[turn][lane % RANKS].y};
    return merge_lanes<RANKS>(part);
}

template <int DTYPE>
static __device__ __forceinline__ uint4 grad_word(const uint4 &logits, float log2_sum, float scale)
{
    const int count = word<DTYPE>::count;
    float v[count];

    unpack_word<DTYPE>(logits, v);
#pragma unroll
    for (int e = 0; e < count; e++)
        v[e] = fast_exp2(v[e] * LOG2_E - log2_sum) * scale;
    if (DTYPE == GPUNVME_OPS_F32)
        return make_uint4(__float_as_uint(v[0]), __float_as_uint(v[1]), __float_as_uint(v[2]),
                          __float_as_uint(v[3]));
    return make_uint4(to_pair(v[0], v[1], DTYPE), to_pair(v[2], v[3], DTYPE),
                      to_pair(v[4 % count], v[5 % count], DTYPE),
                      to_pair(v[6 % count], v[7 % count], DTYPE));
}

/* The target's element is stored again, by the thread that has stored its word. */
template <int DTYPE, int THREADS>
static __device__ __forceinline__ void store_grad(const entropy_work &x, const entropy_row &row,
                                                  uint4 (&kept)[WORDS], const share &s, float logit,
                                                  float log2_sum)
{
    char *to = (char *)x.p.grad + offset_of<DTYPE>(s, (int)row.i, x.p.ld_grad);
    int at = (int)(row.target - s.head), own = at / word<DTYPE>::count - s.first;
    float scale = row.target < 0 ? 0 : row.scale, less = row.target < 0 ? INFINITY : log2_sum;

    if (row.target < 0)
#pragma unroll
        for (int k = 0; k < WORDS; k++)
            kept[k] = make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int k = 0; k < WORDS; k++)
        if ((int)threadIdx.x + k * THREADS < s.count)
            __stwb((uint4 *)(to + k * THREADS * 16), grad_word<DTYPE>(kept[k], less, scale));
    if (row.target >= s.head && own >= 0 && own < s.count && own % THREADS == (int)threadIdx.x)
        store_element(x.p.grad, row.i * x.p.ld_grad + row.target, DTYPE,
                      grad_of(row, row.target, logit, log2_sum));
}

/* Columns before the first whole word and behind the last one are the first block's, a thread each;
 * -1: none. */
static __device__ __forceinline__ int edge_of(const entropy_work &x, const share &s, int count)
{
    int edge = threadIdx.x;

    edge = edge < s.head ? edge : s.words * count + edge;
    return cluster_rank() || edge >= (int)x.p.vocab ? -1 : edge;
}
#endif

template <int DTYPE, int THREADS>
static __global__ void __launch_bounds__(THREADS, 1024 / THREADS)
    rows_of_clusters(const entropy_work x)
{
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    memory *m = (memory *)dynamic_shared();
    const uint4 *next = m->next + threadIdx.x;
    uint32_t ranks = cluster_size();
    int step = (int)(gridDim.x / ranks), i = (int)(blockIdx.x / ranks), turn = 0, following = 0;
    bool first = !cluster_rank() && !threadIdx.x, waits = x.scale;
    uint32_t phase = 0;
    float scale = 1;

    let_next_kernel_start();
    if (!threadIdx.x) {
        mbarrier_init(shared_address(&m->barrier[0]), 1);
        mbarrier_init(shared_address(&m->barrier[1]), 1);
        mbarrier_init_fence();
    }
    cluster_sync();
    /* The kernel before may be the one that counts rows, which all before have ended for. */
    if (!waits)
        wait_for_kernels_before();
    copy_row<DTYPE, THREADS>(x, i, shared_address(next));
    if (i < (int)x.p.rows)
        following = x.p.targets[i];
    for (; i < (int)x.p.rows; i += step) {
        share s = share_of<DTYPE>(x, i);
        int target = following, edge = edge_of(x, s, word<DTYPE>::count);
        bool ignored = x.p.ignore && target == x.p.ignore_index;
        bool wrong = !ignored && (target < 0 || target >= (int)x.p.vocab);
        float at_edge = -INFINITY, logit = 0;
        uint4 kept[WORDS];
        exponentials all;
        entropy_row row;

        if (edge >= 0)
            at_edge = load_element(x.p.logits, (int64_t)i * x.p.ld_logits + edge, DTYPE);
        if (first && !ignored)
            logit =
                load_element(x.p.logits, (int64_t)i * x.p.ld_logits + (wrong ? 0 : target), DTYPE);
        take_row<DTYPE, THREADS>(kept, s, next);
        all.most = fmaxf(most_of<DTYPE>(kept), at_edge) * LOG2_E;
        copy_row<DTYPE, THREADS>(x, i + step, shared_address(next));
        if (i + step < (int)x.p.rows)
            following = x.p.targets[i + step];
        all.sum = sum_words<DTYPE, THREADS>(kept, s.count, all.most, at_edge);
        all = merge_cluster<THREADS>(all, logit, m, turn, phase);
        if (waits) {
            wait_for_kernels_before();
            waits = false;
        }
        if (x.scale)
            scale = *x.scale;
        row.i = i;
        row.target = ignored ? -1 : wrong ? 0 : target;
        row.scale = wrong ? NAN : scale;
        if (x.p.grad_loss)
            row.scale *= x.p.grad_loss[x.p.reduction == GPUNVME_REDUCTION_NONE ? i : 0];
        if (first) {
            float lse = lse_of(all);

            if (x.losses)
                x.losses[i] = wrong ? NAN : ignored ? 0 : lse - logit;
            if (x.p.lse)
                x.p.lse[i] = lse;
        }
        if (x.p.grad) {
            float log2_sum = log2_of(all);

            store_grad<DTYPE, THREADS>(x, row, kept, s, m->parts[turn][0].z, log2_sum);
            if (edge >= 0)
                store_element(x.p.grad, (int64_t)i * x.p.ld_grad + edge, DTYPE,
                              grad_of(row, edge, at_edge, log2_sum));
        }
        phase ^= (uint32_t)turn;
        turn ^= 1;
    }
    if (waits)
        wait_for_kernels_before();
#endif
}

/* As many clusters as there is room for stay. */
template <int DTYPE, int THREADS>
static gpunvme_ops_status_t launch_threads(const struct entropy_work *x, int cluster, void *stream)
{
    const void *kernel = (const void *)rows_of_clusters<DTYPE, THREADS>;
    size_t nbytes = sizeof(memory) + (size_t)THREADS * WORDS * 16;
    gpunvme_ops_status_t status = cuda_allow_shared(kernel, nbytes);
    int64_t clusters;

    if (status)
        return status;
    clusters = cuda_resident_clusters(kernel, THREADS, cluster, nbytes);
    clusters = clusters < x->p.rows ? clusters : x->p.rows;
    LAUNCH_CLUSTERS((rows_of_clusters<DTYPE, THREADS>), (unsigned)(clusters * cluster),
                    (unsigned)cluster, THREADS, nbytes, stream, *x);
    return cuda_status(cudaGetLastError(), "launching cross entropy");
}

template <int DTYPE> static gpunvme_ops_status_t launch(const struct entropy_work *x, void *stream)
{
    int64_t row = entropy_row_nbytes(&x->p);
    int threads = entropy_threads(row), cluster = entropy_cluster_size(row, threads);

    if (threads == 256)
        return launch_threads<DTYPE, 256>(x, cluster, stream);
    return threads == 512 ? launch_threads<DTYPE, 512>(x, cluster, stream)
                          : launch_threads<DTYPE, 1024>(x, cluster, stream);
}

gpunvme_ops_status_t entropy_cluster(const struct entropy_work *x, void *stream)
{
    if (x->p.dtype == GPUNVME_OPS_F32)
        return launch<GPUNVME_OPS_F32>(x, stream);
    return x->p.dtype == GPUNVME_OPS_F16 ? launch<GPUNVME_OPS_F16>(x, stream)
                                         : launch<GPUNVME_OPS_BF16>(x, stream);
}
