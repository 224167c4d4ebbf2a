/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Rung 4, coarsened: a thread makes a tile of TM x 8 elements of C in registers, so a value that
 * comes from shared memory serves 8 or TM multiplications. Both operands lie in shared memory with
 * a row for each k, whichever way they lie in memory: cp.async puts 4 bytes wherever they belong,
 * or 16 where they are contiguous already. Three stages of k are in shared memory at once, so that
 * copies of one run while another is multiplied.
 *
 * f32 by CUDA cores: every instruction that is no FFMA takes an FFMA's place. For each k a warp
 * does TM * 8 of them for (TM + 8) / 4 loads. Tiles that are all there have a loop with hardly
 * anything else in it; the last steps of a tile, and the edges of C, have another one.
 */
#include "ops/cuda/ptx.cuh"
#include "ops/matmul/finish.cuh"

#define TILE_N   128
#define TILE_K   16
#define STAGES   3
#define PAD      4 /* floats: rows of neighbouring k begin in other banks, and stay aligned */
#define TOGETHER 2 /* pieces of a stage whose copies are enqueued at once */

/* Which direction of an operand is contiguous in memory: that of m or n, called x, or k. */
enum { ALONG_X, ALONG_K };

/* An operand's tile, for all k. Strides are bytes. */
struct source {
    const char *data; /* (0, 0) */
    int64_t stride_x, stride_k;
    int64_t left; /* in direction x: may be more than the tile has */
};

static __device__ __forceinline__ source source_of(const cuda_operand &operand, int64_t stride_x,
                                                   int64_t stride_k, const cuda_piece &piece,
                                                   int64_t first, int64_t size)
{
    source s;

    s.data = (const char *)((const float *)operand.data + piece.batch * operand.stride +
                            first * stride_x + piece.first * stride_k);
    s.stride_x = stride_x * 4;
    s.stride_k = stride_k * 4;
    s.left = size - first;
    return s;
}

/* A kernel's tiles: THREADS threads make TM x 8 elements each, so there are ROWS rows. A thread has
 * groups of four rows, APART rows apart. */
template <int TM_, int THREADS_, int WAY_A_, int WAY_B_> struct kind {
    static const int TM = TM_, THREADS = THREADS_, WAY_A = WAY_A_, WAY_B = WAY_B_;
    static const int APART = THREADS / 4, ROWS = TM / 4 * APART;
};

/*
 * How a thread copies its share of whole stages: COUNT pieces, each 16 bytes along x, or one
 * element in eight along k. A warp reads 8 values of k of 4 rows then: its stores have a bank each.
 */
template <int THREADS, int WIDTH, int WAY> struct share {
    static const int COUNT = WIDTH * TILE_K / THREADS / (WAY == ALONG_X ? 4 : TILE_K / 8);
    static const int ACROSS = WAY == ALONG_X ? WIDTH / 4 : 8, LD = WIDTH + PAD;

    const char *from;
    int64_t step, back; /* to the next piece; from the last one to the next stage's first */
    uint32_t to;        /* from the stage's beginning */
    int valid;          /* along x: bytes of a piece that there are; along k: pieces */
    bool vectors;       /* along x: 16 bytes may be read at once */
};

template <int THREADS, int WIDTH, int WAY>
static __device__ __forceinline__ share<THREADS, WIDTH, WAY> share_of(const source &s, bool vectors)
{
    typedef share<THREADS, WIDTH, WAY> mine;
    const int down_step = THREADS / mine::ACROSS;
    int along = threadIdx.x % mine::ACROSS, down = threadIdx.x / mine::ACROSS;
    int k = WAY == ALONG_X ? down : along, x = WAY == ALONG_X ? along * 4 : down;
    mine m;

    m.from = s.data + k * s.stride_k + x * s.stride_x;
    m.step = down_step * (WAY == ALONG_X ? s.stride_k : s.stride_x);
    m.back = TILE_K * s.stride_k - (mine::COUNT - 1) * m.step;
    m.to = (uint32_t)(k * mine::LD + x) * 4;
    m.valid = s.left > WIDTH ? WIDTH : (int)s.left;
    m.valid = WAY == ALONG_X ? (m.valid - x) * 4 : (m.valid - x + down_step - 1) / down_step;
    m.valid = m.valid < 0 ? 0 : m.valid > 16 ? 16 : m.valid;
    m.vectors = vectors;
    return m;
}

/* Enqueues the copy of piece i, after that of piece i - 1. Rows that are not there along k are not
 * written: nobody stores what is made of them. */
template <int EDGE, int THREADS, int WIDTH, int WAY>
static __device__ __forceinline__ void copy_piece(uint32_t stage, share<THREADS, WIDTH, WAY> &m,
                                                  int i)
{
    const int down = THREADS / m.ACROSS;

    if (WAY == ALONG_X && (!EDGE || m.vectors)) {
        cp_async16(stage + m.to + i * (down * m.LD * 4), m.from, EDGE ? m.valid : 16);
    } else if (WAY == ALONG_X) {
#pragma unroll
        for (int x = 0; x < 16; x += 4)
            cp_async4(stage + m.to + i * (down * m.LD * 4) + x, m.from + (x < m.valid ? x : 0),
                      x < m.valid ? 4 : 0);
    } else if (!EDGE || i < m.valid) {
#pragma unroll
        for (int k = 0; k < TILE_K; k += m.ACROSS)
            cp_async4(stage + m.to + (k * m.LD + i * down) * 4, m.from + k * 4, 4);
    }
    m.from += i == m.COUNT - 1 ? m.back : m.step;
}

template <int EDGE, int THREADS, int WIDTH, int WAY>
static __device__ __forceinline__ void copy_whole(uint32_t stage, share<THREADS, WIDTH, WAY> &m)
{
#pragma unroll
    for (int i = 0; i < m.COUNT; i++)
        copy_piece<EDGE>(stage, m, i);
}

/*
 * The same for a stage that is not all there, or not aligned. What lies outside becomes 0; its
 * address is not used.
 */
template <int THREADS, int WIDTH, int WAY>
static __device__ __forceinline__ void copy_edge(uint32_t stage, const source &s, int64_t k_first,
                                                 int64_t k_all)
{
    const int across = WAY == ALONG_X ? WIDTH : TILE_K;

#pragma unroll 2
    for (int i = 0; i < WIDTH * TILE_K / THREADS; i++) {
        int along = threadIdx.x % across, down = threadIdx.x / across;
        int k = WAY == ALONG_X ? down + i * (THREADS / across) : along;
        int x = WAY == ALONG_X ? along : down + i * (THREADS / across);
        bool inside = k_first + k < k_all && x < s.left;
        int64_t from = (k_first + k) * s.stride_k + x * s.stride_x;

        cp_async4(stage + (uint32_t)(k * (WIDTH + PAD) + x) * 4, s.data + (inside ? from : 0),
                  inside ? 4 : 0);
    }
}

/* `COUNT` floats of a row, in groups of four that are APART floats apart. */
template <int APART, int COUNT>
static __device__ __forceinline__ void take(float (&values)[COUNT], const float *row)
{
#pragma unroll
    for (int i = 0; i < COUNT / 4; i++) {
        float4 x = *(const float4 *)(row + i * APART);

        values[4 * i] = x.x;
        values[4 * i + 1] = x.y;
        values[4 * i + 2] = x.z;
        values[4 * i + 3] = x.w;
    }
}

/*
 * TM x 8 products. An FFMA has three operands, but the two banks of registers (even and odd
 * numbers) give one each in a cycle: one must be kept from the FFMA before. So one walks to and
 * fro: along a row it is x[i], and from row to row y[j].
 */
template <int TM>
static __device__ __forceinline__ void multiply_add(float (&sums)[TM][8], const float (&x)[TM],
                                                    const float (&y)[8])
{
#pragma unroll
    for (int i = 0; i < TM; i++)
#pragma unroll
        for (int step = 0; step < 8; step++) {
            int j = i % 2 ? 7 - step : step;

            sums[i][j] += x[i] * y[j];
        }
}

template <int ROWS> struct stage {
    float a[TILE_K][ROWS + PAD], b[TILE_K][TILE_N + PAD];
};

/*
 * 64 rows at a time (by half as many threads 32) go through shared memory, which turns columns of
 * threads into rows of C. Neighbours are exchanged there, so that sums that are stored together, in
 * registers one after the other, have even numbers where the y that they are made of have odd ones.
 */
template <typename KIND>
static __device__ __forceinline__ void
finish_sums(const cuda_product &p, float *memory, const tile_place &at,
            const float (&sums)[KIND::TM][8], int row, int col)
{
    const int ld = TILE_N + PAD, apart = KIND::APART;

    static_assert(apart * ld * sizeof(float) <= STAGES * sizeof(stage<KIND::ROWS>),
                  "rows do not fit");
#pragma unroll
    for (int part = 0; part < KIND::TM / 4; part++) {
        __syncthreads(); /* what was there has been read */
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 8; j += 4) {
                const float *x = &sums[part * 4 + i][j];

                *(float4 *)(memory + (row + i) * ld + col + j / 4 * 64) =
                    make_float4(x[1], x[0], x[3], x[2]);
            }
        __syncthreads();
        finish_tile<apart, TILE_N, ld, KIND::THREADS, 1>(p, memory, at.batch, at.row + part * apart,
                                                         at.col);
    }
}

/* A product's tile, and how far it has come. */
template <typename KIND> struct work {
    source from_a, from_b;
    share<KIND::THREADS, KIND::ROWS, KIND::WAY_A> a;
    share<KIND::THREADS, TILE_N, KIND::WAY_B> b;
    int64_t k;
    uint32_t steps, whole; /* of k, TILE_K each; those that are copied whole */
    uint32_t base, fill;   /* of the stages; which is filled next, in bytes from there */
    uint32_t use;          /* likewise: which is used */
};

static __device__ __forceinline__ uint32_t after(uint32_t at, uint32_t size)
{
    return at + size == STAGES * size ? 0 : at + size;
}

template <int EDGE, typename KIND>
static __device__ __forceinline__ void start(work<KIND> &w, const cuda_product &p,
                                             const stage<KIND::ROWS> *stages, const tile_place &at)
{
    const int a = KIND::WAY_A, b = KIND::WAY_B, threads = KIND::THREADS, rows = KIND::ROWS;
    cuda_piece piece = cuda_piece_of(&p, at.batch);

    w.k = piece.k;
    w.from_a = source_of(p.a, p.a.rs, p.a.cs, piece, at.row, p.m);
    w.from_b = source_of(p.b, p.b.cs, p.b.rs, piece, at.col, p.n);
    w.a = share_of<threads, rows, a>(w.from_a, a == ALONG_K || p.a.vectors);
    w.b = share_of<threads, TILE_N, b>(w.from_b, b == ALONG_K || p.b.vectors);
    w.steps = (uint32_t)((w.k + TILE_K - 1) / TILE_K); /* 2^32 of them fit in no memory */
    w.whole =
        EDGE || (w.from_a.left >= rows && w.from_b.left >= TILE_N && w.a.vectors && w.b.vectors)
            ? (uint32_t)(w.k / TILE_K)
            : 0;
    w.base = shared_address(stages);
    w.fill = w.use = 0;
}

/* Enqueues the copies of step `next`, if there is one. */
template <int EDGE, typename KIND>
static __device__ __forceinline__ void bring(work<KIND> &w, uint32_t next)
{
    uint32_t a = w.base + w.fill, b = a + TILE_K * w.a.LD * 4;
    int64_t k = (int64_t)next * TILE_K;

    if (next < w.whole) {
        copy_whole<EDGE>(a, w.a);
        copy_whole<EDGE>(b, w.b);
    } else if (next < w.steps) {
        copy_edge<KIND::THREADS, KIND::ROWS, KIND::WAY_A>(a, w.from_a, k, w.k);
        copy_edge<KIND::THREADS, TILE_N, KIND::WAY_B>(b, w.from_b, k, w.k);
    }
    cp_async_commit();
    w.fill = after(w.fill, sizeof(stage<KIND::ROWS>));
}

/*
 * The steps whose copies are whole ones, until these have been enqueued; returns the first step
 * that is left. Registers are loaded for the next k while this one's are multiplied, from the next
 * stage too. Copies are spread, for a load waits for the copies before it.
 */
template <int EDGE, typename KIND>
static __device__ __forceinline__ uint32_t multiply_whole(work<KIND> &w, float (&sums)[KIND::TM][8],
                                                          const stage<KIND::ROWS> *stages, int row,
                                                          int col)
{
    const uint32_t size = sizeof(stage<KIND::ROWS>);
    const int apart = KIND::APART;
    float x[2][KIND::TM], y[2][8];
    uint32_t step = 0;

    static_assert(w.a.COUNT + w.b.COUNT <= TOGETHER * (TILE_K - 1), "copies come too late");
    if (STAGES - 1 >= w.whole)
        return 0;
    cp_async_wait<STAGES - 2>();
    __syncthreads();
    take<apart>(x[0], &stages->a[0][row]);
    take<64>(y[0], &stages->b[0][col]);
#pragma unroll 1
    for (; step + STAGES - 1 < w.whole; step++) {
        uint32_t to_a = w.base + w.fill, to_b = to_a + TILE_K * w.a.LD * 4;

#pragma unroll
        for (int k = 0; k < TILE_K; k++) {
            const stage<KIND::ROWS> *from;

            if (k == TILE_K - 1) {
                cp_async_commit();
                w.fill = after(w.fill, size);
                /* This thread's copies of the next stage have come; after the barrier everybody's
                 * have, and nobody reads this one any more. */
                cp_async_wait<STAGES - 2>();
                __syncthreads();
                w.use = after(w.use, size);
            }
            from = (const stage<KIND::ROWS> *)((const char *)stages + w.use);
            take<apart>(x[(k + 1) % 2], &from->a[(k + 1) % TILE_K][row]);
            take<64>(y[(k + 1) % 2], &from->b[(k + 1) % TILE_K][col]);
#pragma unroll
            for (int i = k * TOGETHER; i < (k + 1) * TOGETHER; i++)
                if (i < w.a.COUNT)
                    copy_piece<EDGE>(to_a, w.a, i);
                else if (i < w.a.COUNT + w.b.COUNT)
                    copy_piece<EDGE>(to_b, w.b, i - w.a.COUNT);
            multiply_add<KIND::TM>(sums, x[k % 2], y[k % 2]);
        }
    }
    return step;
}

template <typename KIND, int EDGE>
static __device__ __forceinline__ void multiply_tile(const cuda_product &p,
                                                     stage<KIND::ROWS> *stages,
                                                     const tile_place &at, int row, int col)
{
    const int apart = KIND::APART;
    work<KIND> w;
    float sums[KIND::TM][8] = {};
    uint32_t step;

    start<EDGE>(w, p, stages, at);
    for (uint32_t next = 0; next < STAGES - 1; next++)
        bring<EDGE>(w, next);
    step = multiply_whole<EDGE>(w, sums, stages, row, col);
    for (; step < w.steps; step++) {
        const stage<KIND::ROWS> *from = (const stage<KIND::ROWS> *)((const char *)stages + w.use);

        cp_async_wait<STAGES - 2>();
        __syncthreads();
        bring<EDGE>(w, step + STAGES - 1);
#pragma unroll 4
        for (int k = 0; k < TILE_K; k++) {
            float x[KIND::TM], y[8];

            take<apart>(x, &from->a[k][row]);
            take<64>(y, &from->b[k][col]);
            multiply_add<KIND::TM>(sums, x, y);
        }
        w.use = after(w.use, sizeof(stage<KIND::ROWS>));
    }
    finish_sums<KIND>(p, (float *)stages, at, sums, row, col);
}

/* As many as fit with the registers that their threads need. */
template <int TM, int THREADS> static constexpr int blocks_of_unit(void)
{
    return (TM == 4 ? 768 : TM == 8 ? 512 : 256) / THREADS;
}

/* A warp's threads are 4 x 8: it reads 16 neighbouring values of A, and 32 of B. */
template <int TM, int THREADS, int WAY_A, int WAY_B, int EDGE>
static __global__ void __launch_bounds__(THREADS, blocks_of_unit<TM, THREADS>())
    multiply(const cuda_product p)
{
    typedef kind<TM, THREADS, WAY_A, WAY_B> mine;
    const int rows = mine::ROWS;
    stage<rows> *stages = (stage<rows> *)dynamic_shared();
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int row = (warp / 2 * 4 + lane / 8) * 4, col = (warp % 2 * 8 + lane % 8) * 4;
    int64_t tiles = (p.n + TILE_N - 1) / TILE_N * ((p.m + rows - 1) / rows) * p.batch;

    for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        tile_place at = place_of(p, tile, rows, TILE_N);

        multiply_tile<mine, EDGE>(p, stages, at, row, col);
        __syncthreads(); /* nobody reads the stages of this tile any more */
    }
}

/* Have all tiles all their rows and columns, and are 16 bytes along x aligned? */
static bool is_even(const cuda_product &p, int height)
{
    return p.m % height == 0 && p.n % TILE_N == 0 && (p.a.rs != 1 || p.a.vectors) &&
           (p.b.cs != 1 || p.b.vectors);
}

/*
 * Of 64 rows, 128 threads make 8 x 8 elements each. But eight warps have less to wait for where a
 * multiprocessor has one tile, and that is short, or copied in small pieces.
 */
static bool wants_more_warps(const cuda_product &p, bool even)
{
    int64_t tiles = (p.n + TILE_N - 1) / TILE_N * ((p.m + 63) / 64) * p.batch;

    return tiles <= cuda_units() && (!even || (p.pieces > 1 ? p.chunk : p.k) <= 256);
}

/*
 * The larger a tile, the fewer loads it needs for each FFMA, but there must be one for each SM.
 * Where tiles have edges, other kernels copy only what there is; a tile of 256 rows with an edge is
 * one of so many others that it may be slow.
 */
gpunvme_ops_status_t cuda_multiply_coarsened(const struct cuda_product *p, void *workspace,
                                             void *stream, struct cuda_launch *launch)
{
    enum { MORE_WARPS, OF_64, OF_128, OF_256 };
    static const cuda_tiling tilings[] = {
        [MORE_WARPS] = {64, TILE_N, 4, 8, 256, STAGES * sizeof(stage<64>)},
        [OF_64] = {64, TILE_N, 8, 8, 128, STAGES * sizeof(stage<64>)},
        [OF_128] = {128, TILE_N, 8, 8, 256, STAGES * sizeof(stage<128>)},
        [OF_256] = {256, TILE_N, 16, 8, 256, STAGES * sizeof(stage<256>)},
    };
    typedef void (*kernel)(const cuda_product);
#define WAYS(tm, threads, edge)                                                                    \
    {                                                                                              \
        {multiply<tm, threads, ALONG_X, ALONG_X, edge>,                                            \
         multiply<tm, threads, ALONG_X, ALONG_K, edge>},                                           \
        {                                                                                          \
            multiply<tm, threads, ALONG_K, ALONG_X, edge>,                                         \
                multiply<tm, threads, ALONG_K, ALONG_K, edge>                                      \
        }                                                                                          \
    }
    static const kernel kernels[][2][2] = {WAYS(4, 256, 1), WAYS(8, 128, 1), WAYS(8, 256, 1),
                                           WAYS(16, 256, 0)};
    static const kernel evens[][2][2] = {WAYS(4, 256, 1), WAYS(8, 128, 0), WAYS(8, 256, 0),
                                         WAYS(16, 256, 0)};
    int height = p->height ? p->height : cuda_coarsened_height(p);
    bool even = is_even(*p, height);
    int way = height == 256                ? OF_256
              : height == 128              ? OF_128
              : wants_more_warps(*p, even) ? MORE_WARPS
                                           : OF_64;
    const kernel(*chosen)[2] = even ? evens[way] : kernels[way];

    (void)workspace;
    return cuda_launch_tiles((const void *)chosen[p->a.rs != 1][p->b.cs != 1], p, &tilings[way],
                             stream, launch);
}
