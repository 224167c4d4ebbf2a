/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Products of up to 64 rows of 16-bit types on sm_90a, both operands contiguous along k: weights
 * are read once, at the speed of memory.
 *
 *  - wgmma multiplies at least 64 rows, but any multiple of 8 columns. So the rows are its first
 *    operand, and the large matrix, w, is the second: each multiprocessor has as many lines of it.
 *    What is behind the rows in shared memory is multiplied, too; no result is of that.
 *  - A product of few columns takes as long as its latency, and four follow each other. So sums are
 *    made in several parts that do not wait for each other, and are added in the end.
 *  - A block keeps up to 100 KiB in flight. It has half of a multiprocessor's shared memory, so
 * that the next kernel's block waits beside it. Each multiprocessor has one block, or two: were
 * there fewer blocks, the next kernel's would be put where there is room for two.
 *  - A step takes 250 ns however few lines it has. If each multiprocessor had one tile at most, the
 *    two blocks of a cluster share k, of tiles twice as wide, or two blocks a multiprocessor. Then
 *    each block adds and finishes half of the tile.
 *  - Otherwise more than 16 rows are read by the two blocks, half by each for both (multicast).
 */
#include "ops/hopper/wgmma_narrow.cuh"

#include "ops/hopper/multiply.cuh"
#include "ops/matmul/few.h"
#include "ops/matmul/finish_cluster.cuh"

enum {
    LOADING = 4, /* warps that multiply; the warp that loads is behind them */
    THREADS = (LOADING + 1) * 32
};

/* Parts of the sums: as many as leave registers for two blocks. */
#define PARTS(lines) ((lines) <= 48 ? 4 : (lines) <= 80 ? 2 : 1)

#ifdef HAVE_HOPPER
/* Addresses in shared memory, and what the block makes. */
struct part {
    uint32_t stages, full, empty, stage_nbytes;
    int batch, line;
    int first, steps; /* 0 steps: it has no tile, and only takes its place */
};

/* Blocks that share rows. */
static __device__ __forceinline__ uint32_t sharing(const few_work &work)
{
    return work.pieces > 1 ? 1 : cluster_size();
}

/* A ring's next stage. */
static __device__ __forceinline__ void go_on(turn &t, int stages)
{
    if (++t.stage == stages) {
        t.stage = 0;
        t.parity ^= 1;
    }
}

static __device__ __forceinline__ void load_all(const few_work &work, const part &x)
{
    uint32_t size = sharing(work), rank = size > 1 ? cluster_rank() : 0;
    uint32_t share = (uint32_t)work.rows / size;
    int zx = x.batch * work.operands.a_batch, zw = x.batch * work.operands.b_batch;
    turn t = {0, 0};

#pragma unroll 1
    for (int i = 0; i < x.steps; i++) {
        uint32_t full = x.full + t.stage * 8, to = x.stages + t.stage * x.stage_nbytes;
        int k = (x.first + i) * (HOPPER_WIDTH / 2);

        mbarrier_wait(x.empty + t.stage * 8, t.parity ^ 1);
        mbarrier_arrive_expecting(full, x.stage_nbytes);
        tensor_load(to + work.rows * HOPPER_WIDTH, &work.operands.b, k, x.line, zw, full);
        if (size > 1)
            tensor_load_multicast(to + rank * share * HOPPER_WIDTH, &work.operands.a, k,
                                  (int)(rank * share), zx, full, (uint16_t)((1 << size) - 1));
        else
            tensor_load(to, &work.operands.a, k, 0, zx, full);
        go_on(t, work.stages);
    }
}

template <int DTYPE, int COUNT>
static __device__ __forceinline__ void multiply_k16(float (&sums)[COUNT], uint64_t a, uint64_t b,
                                                    int accumulate)
{
    if (DTYPE == GPUNVME_OPS_F16)
        wgmma_f16<0, 0>(sums, a, b, accumulate);
    else
        wgmma_bf16<0, 0>(sums, a, b, accumulate);
}

/* While one stage is multiplied, the next is waited for. */
template <int DTYPE, int LINES>
static __device__ __forceinline__ void multiply_all(float (&sums)[PARTS(LINES)][LINES / 2],
                                                    const few_work &work, const part &x)
{
    uint32_t size = sharing(work);
    const ring mem = {x.stages, 0, x.full, x.empty, size > 1 ? 0 : cluster_rank()};
    int before = 0;
    turn t = {0, 0};

#pragma unroll 1
    for (int i = 0; i < x.steps; i++) {
        uint32_t at = x.stages + t.stage * x.stage_nbytes;
        uint64_t a = hopper_tile_descriptor(at, 0);
        uint64_t b = hopper_tile_descriptor(at + work.rows * HOPPER_WIDTH, 0);

        mbarrier_wait(x.full + t.stage * 8, t.parity);
        wgmma_fence();
#pragma unroll
        for (int j = 0; j < 4; j++)
            multiply_k16<DTYPE>(sums[j % PARTS(LINES)], a + j * hopper_descriptor_step(0),
                                b + j * hopper_descriptor_step(0), i > 0 || j >= PARTS(LINES));
        wgmma_commit();
        if (i) {
            wgmma_wait<1>();
            release(mem, before, size);
        }
        before = t.stage;
        go_on(t, work.stages);
    }
#pragma unroll
    for (int j = 0; j < PARTS(LINES); j++)
        wgmma_wait_for(sums[j]);
    if (x.steps)
        release(mem, before, size);
}

/* The tile of C lies in shared memory as finish_tile() wants it. */
template <int LINES>
static __device__ __forceinline__ void
keep(float *out, const float (&sums)[PARTS(LINES)][LINES / 2], const few_work &work)
{
    int first = (int)threadIdx.x / 32 * 16 + (int)threadIdx.x % 32 / 4;

#pragma unroll
    for (int j = 0; j < LINES / 2; j++) {
        int row = first + j / 2 % 2 * 8, line = j / 4 * 8 + (int)threadIdx.x % 4 * 2 + j % 2;
        float sum = sums[0][j];

#pragma unroll
        for (int p = 1; p < PARTS(LINES); p++)
            sum += sums[p][j];
        if (row < work.count)
            out[work.w_is_b ? row * (LINES + 4) + line : line * (FEW_ROWS + 4) + row] = sum;
    }
}

/* The bias is read at the very end: it comes to the L2 cache meanwhile. */
static __device__ __forceinline__ void prefetch_bias(const few_work &work, const part &x)
{
    const cuda_product &p = work.product;
    int64_t at = (work.w_is_b ? x.line : 0) + (int64_t)threadIdx.x * 64;

    if (p.bias && threadIdx.x < 2 && at < p.n)
        prefetch_line((const uint16_t *)p.bias + at);
}

/* Both blocks' sums lie so. */
template <int LINES>
static __device__ __forceinline__ void finish_pieces(const few_work &work, const part &x,
                                                     uint32_t from)
{
    int64_t left = work.product.m - x.line;

    __syncwarp();
    cluster_sync();
    if (work.w_is_b)
        finish_share<LINES, THREADS>(
            work.product, (int)threadIdx.x, work.count, x.batch, 0, x.line,
            [from](int i, int j) { return from + 4 * (uint32_t)(i * (LINES + 4) + j); });
    else
        finish_share<FEW_ROWS, THREADS>(
            work.product, (int)threadIdx.x, (int)(left < LINES ? left : LINES), x.batch, x.line, 0,
            [from](int i, int j) { return from + 4 * (uint32_t)(i * (FEW_ROWS + 4) + j); });
    __syncwarp();
    cluster_leave();
}

/* All threads of the cluster's blocks. */
static __device__ __forceinline__ void meet(void)
{
    if (cluster_size() > 1)
        cluster_sync();
    else
        __syncthreads();
}
#endif

template <int DTYPE, int LINES>
static __global__ void __launch_bounds__(THREADS, 2) multiply(const __grid_constant__ few_work work)
{
#ifdef HAVE_HOPPER
    unsigned char *dynamic = dynamic_shared();
    uint32_t before = (0u - shared_address(dynamic)) % HOPPER_ALIGN;
    float *out = (float *)(dynamic + before); /* when the last stage has been multiplied */
    float sums[PARTS(LINES)][LINES / 2];
    uint32_t tile;
    part x;

    x.stages = shared_address(out);
    x.stage_nbytes = (uint32_t)(work.rows + LINES) * HOPPER_WIDTH;
    x.full = x.stages + work.barriers;
    x.empty = x.full + FEW_STAGES * 8;
    tile = blockIdx.x / (uint32_t)work.pieces;
    x.batch = (int)(tile / work.tiles);
    x.line = (int)(tile % work.tiles) * LINES;
    x.first = (int)(blockIdx.x % (uint32_t)work.pieces) * work.steps;
    x.steps = work.all_steps - x.first < work.steps ? work.all_steps - x.first : work.steps;
    if (x.batch >= work.product.batch)
        x.steps = 0;
    if (threadIdx.x == 0) {
        tensor_prefetch(&work.operands.a);
        tensor_prefetch(&work.operands.b);
        for (int i = 0; i < work.stages; i++) {
            mbarrier_init(x.full + i * 8, 1);
            mbarrier_init(x.empty + i * 8, LOADING * (int)sharing(work));
        }
        mbarrier_init_fence();
    }
    meet(); /* nobody uses a barrier before all know of it */
    let_next_kernel_start();
    wait_for_kernels_before();
    prefetch_bias(work, x);
    if (threadIdx.x / 32 < LOADING)
        multiply_all<DTYPE, LINES>(sums, work, x);
    else if (threadIdx.x % 32 == 0)
        load_all(work, x);
    __syncwarp(); /* barriers take warps whose threads come together */
    meet();       /* all stages have been read, here and where others write to barriers */
    if (!x.steps)
        return;
    if (threadIdx.x / 32 < LOADING)
        keep<LINES>(out, sums, work);
    if (work.pieces > 1) {
        finish_pieces<LINES>(work, x, x.stages);
        return;
    }
    __syncthreads();
    if (work.w_is_b)
        finish_tile<FEW_ROWS, LINES, LINES + 4, THREADS>(work.product, out, x.batch, 0, x.line);
    else
        finish_tile<LINES, FEW_ROWS, FEW_ROWS + 4, THREADS>(work.product, out, x.batch, x.line, 0);
#endif
}

template <int LINES>
static gpunvme_ops_status_t launch(const few_work *work, int cluster, void *stream,
                                   struct cuda_launch *out)
{
    auto *kernel = work->product.dtype == GPUNVME_OPS_F16 ? multiply<GPUNVME_OPS_F16, LINES>
                                                          : multiply<GPUNVME_OPS_BF16, LINES>;
    int64_t tiles = (int64_t)work->tiles * work->product.batch * work->pieces;
    int64_t units = cuda_units();
    int64_t blocks = tiles > 2 * units ? tiles : (tiles + units - 1) / units * units;
    int rows = work->w_is_b, lines = !rows, sharing = work->pieces > 1 ? 1 : cluster;
    const cuda_tiling tiling = {rows ? FEW_ROWS : LINES,
                                rows ? LINES : FEW_ROWS,
                                rows ? 64 : LINES,
                                rows ? LINES : 64,
                                THREADS,
                                FEW_ROOM,
                                lines ? sharing : 1,
                                rows ? sharing : 1};
    gpunvme_ops_status_t status = cuda_allow_shared((const void *)kernel, FEW_ROOM);

    if (status)
        return status;
    if (out)
        return cuda_describe((const void *)kernel, &tiling, tiles, out);
    blocks -= blocks % cluster;
    LAUNCH_CLUSTERS(kernel, (unsigned)blocks, (unsigned)cluster, THREADS, FEW_ROOM, stream, *work);
    return cuda_status(cudaGetLastError(), "launching a product of few rows");
}

gpunvme_ops_status_t few_launch(const struct few_work *work, int lines, int cluster, void *stream,
                                struct cuda_launch *out)
{
#define LAUNCH_OF(number)                                                                          \
    if (lines == (number))                                                                         \
        return launch<number>(work, cluster, stream, out);
    FEW_LINES(LAUNCH_OF)
    return GPUNVME_OPS_ERR_INVALID; /* there are no others */
}
