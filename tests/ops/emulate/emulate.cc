/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Kernels on the CPU: fibers for threads, and the instructions of emulate.h.
 */
#include "emulate.h"

#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>

#include <vector>

#include "emulate_map.h"

#define SHARED_NBYTES (232 * 1024) /* what a block can have, and a little */
#define SHARED_BASE   512          /* addresses do not begin at a multiple of 1024 */
#define STACK_NBYTES  (96 * 1024)
#define MAX_FIBERS    8192
#define MAX_CLUSTER   8

emulated_thread emulated;

void emulate_fail(const char *what)
{
    fprintf(stderr, "emulation: %s (block %u, thread %u)\n", what, blockIdx.x, threadIdx.x);
    abort();
}

struct copy {
    uint32_t to, nbytes, valid;
    const void *from;
    long group;
};

struct mbarrier {
    long cluster; /* in which it was used last: another finds it as zeros */
    int arrivals, pending;
    long bytes;
    long phase;
};

struct rendezvous {
    unsigned arrived;
    long turn;
};

struct warp {
    unsigned char shown[2][32][64];
    rendezvous meeting;
    long exchanges[32];
};

/* Matrix B of a wgmma: columns c, c + 1, c + 8, c + 9, … of lanes that have c = 2 * (lane % 4). */
struct warpgroup {
    rendezvous meeting;
    float columns[4][32][64];
};

struct block {
    unsigned char *shared;
    mbarrier mbarriers[SHARED_NBYTES / 8];
    rendezvous barriers[16];
    warp warps[MAX_FIBERS / 32];
    warpgroup groups[MAX_FIBERS / 128];
};

struct fiber {
    bool started, done;
    const long *awaited; /* changes from `was` before it goes on, unless NULL */
    long was;
    void
        *place[5]; /* __builtin_setjmp()'s, which makes no system calls and keeps fewer registers */
    unsigned char *stack;
    emulated_thread self;
    block *of;
    std::vector<copy> copies;
    long group;
    bool waited; /* for kernels before */
};

static void *scheduler[5];
static fiber *fibers, *current;
static block *blocks[MAX_CLUSTER];
static unsigned nfibers, threads_of_block, blocks_of_cluster;
static long cluster; /* counts those that run */
static rendezvous cluster_barrier;
static const std::function<void()> *running;
static bool running_early;
/* By their bits: conversions are slow on a CPU. */
static float halves[1 << 16], e4m3[1 << 8];

static void enter(void);

/* Others run in between, which the compiler must not look through: it would keep values in
 * registers. */
#define SWITCHES __attribute__((noinline, noipa))

[[noreturn]] SWITCHES static void jump(void **place)
{
    __builtin_longjmp(place, 1);
}

SWITCHES static void yield(void)
{
    if (!__builtin_setjmp(current->place))
        jump(scheduler);
}

static void wait_for_change(const long &of, long was)
{
    current->awaited = &of;
    current->was = was;
    yield();
    current->awaited = NULL;
}

SWITCHES static void go_on(fiber *f)
{
    static ucontext_t start;

    current = f;
    emulated = f->self;
    if (__builtin_setjmp(scheduler))
        return;
    if (f->started)
        jump(f->place);
    f->started = true;
    getcontext(&start);
    start.uc_stack.ss_sp = f->stack;
    start.uc_stack.ss_size = STACK_NBYTES;
    start.uc_link = NULL;
    makecontext(&start, enter, 0);
    setcontext(&start);
}

/* Whoever comes last lets all go on. */
static void meet(rendezvous &r, unsigned count)
{
    long turn = r.turn;

    if (++r.arrived == count) {
        r.arrived = 0;
        r.turn++;
        return;
    }
    wait_for_change(r.turn, turn);
}

void emulate_wait_block(int id, unsigned count)
{
    meet(current->of->barriers[id], count ? count : threads_of_block);
}

void emulate_arrive_block(int id, unsigned count)
{
    rendezvous &r = current->of->barriers[id];

    if (++r.arrived == count) {
        r.arrived = 0;
        r.turn++;
    }
}

void emulate_wait_cluster(void)
{
    meet(cluster_barrier, nfibers);
}

/* Two places in turn: nobody writes to one before everybody has read it. */
const unsigned char *emulate_exchange(const void *mine, size_t nbytes)
{
    warp &w = current->of->warps[threadIdx.x / 32];
    unsigned lane = threadIdx.x % 32, lanes = threads_of_block - threadIdx.x / 32 * 32;
    int place = (int)(w.exchanges[lane]++ & 1);
    unsigned char *all = &w.shown[place][0][0];

    memcpy(all + lane * nbytes, mine, nbytes);
    meet(w.meeting, lanes < 32 ? lanes : 32);
    return all;
}

extern "C" void (*emulate_kernels_before)(void);
void (*emulate_kernels_before)(void);

void wait_for_kernels_before(void)
{
    void (*end)(void) = emulate_kernels_before;

    emulate_kernels_before = NULL;
    if (end)
        end();
    current->waited = true;
}

void emulate_check_waited(void)
{
    if (running_early && !current->waited)
        emulate_fail("a kernel launched early has not waited for the one before");
}

/* A fiber lives on, and begins again when it is started for another thread. */
static void enter(void)
{
    for (;;) {
        (*running)();
        emulate_check_waited();
        current->done = true;
        yield();
    }
}

static float e4m3_to_float(unsigned char bits)
{
    int exponent = bits >> 3 & 15, mantissa = bits & 7;
    float size =
        exponent ? ldexpf((float)(8 + mantissa), exponent - 10) : ldexpf((float)mantissa, -9);

    size = (bits & 0x7f) == 0x7f ? NAN : size;
    return bits & 0x80 ? -size : size;
}

static void prepare(void)
{
    if (fibers)
        return;
    for (uint32_t bits = 0; bits < 1 << 16; bits++)
        halves[bits] = __half2float(__ushort_as_half((uint16_t)bits));
    for (uint32_t bits = 0; bits < 1 << 8; bits++)
        e4m3[bits] = e4m3_to_float((unsigned char)bits);
    fibers = new fiber[MAX_FIBERS]();
    for (int i = 0; i < MAX_FIBERS; i++)
        fibers[i].stack = (unsigned char *)malloc(STACK_NBYTES);
    for (int i = 0; i < MAX_CLUSTER; i++) {
        blocks[i] = (block *)calloc(1, sizeof(block));
        blocks[i]->shared = (unsigned char *)aligned_alloc(4096, SHARED_NBYTES + 4096);
    }
}

static void start_fiber(unsigned i, unsigned first, unsigned grid)
{
    fiber &f = fibers[i];

    f.of = blocks[i / threads_of_block];
    f.done = false;
    f.awaited = NULL;
    f.copies.clear();
    f.group = 0;
    f.waited = false;
    f.self.thread = {i % threads_of_block, 0, 0};
    f.self.block = {first + i / threads_of_block, 0, 0};
    f.self.grid = dim3(grid, 1, 1);
}

/* Until all are done; rounds in which nobody gets on are counted, for that is a deadlock. */
static void run_cluster(unsigned first, unsigned grid)
{
    unsigned left = nfibers;
    long rounds = 0;

    cluster++;
    cluster_barrier = {0, 0};
    for (unsigned b = 0; b < blocks_of_cluster; b++) {
        block &x = *blocks[b];

        memset(x.shared, 0xff, SHARED_NBYTES + 4096); /* NaNs */
        memset(x.barriers, 0, sizeof(x.barriers));
        for (unsigned i = 0; i < threads_of_block; i += 32) {
            x.warps[i / 32].meeting = {0, 0};
            memset(x.warps[i / 32].exchanges, 0, sizeof(x.warps[i / 32].exchanges));
            x.groups[i / 128].meeting = {0, 0};
        }
    }
    for (unsigned i = 0; i < nfibers; i++)
        start_fiber(i, first, grid);
    while (left) {
        if (++rounds > 200000)
            emulate_fail("threads wait for each other forever");
        for (unsigned i = 0; i < nfibers; i++) {
            fiber &f = fibers[i];

            if (f.done || (f.awaited && *f.awaited == f.was))
                continue;
            go_on(&f);
            left -= f.done;
        }
    }
}

void emulate_launch(unsigned grid, unsigned cluster, unsigned threads,
                    const std::function<void()> &kernel, bool early)
{
    prepare();
    running = &kernel;
    running_early = early;
    threads_of_block = threads;
    blocks_of_cluster = cluster;
    nfibers = threads * cluster;
    if (nfibers > MAX_FIBERS || cluster > MAX_CLUSTER || grid % cluster || !grid)
        emulate_fail("a launch of nonsense");
    for (unsigned i = 0; i < grid; i += cluster)
        run_cluster(i, grid);
}

unsigned char *dynamic_shared(void)
{
    return current->of->shared + SHARED_BASE;
}

uint32_t shared_address(const void *pointer)
{
    return (uint32_t)((const unsigned char *)pointer - current->of->shared);
}

unsigned char *emulate_shared(uint32_t address, uint32_t rank)
{
    if (address >= SHARED_NBYTES)
        emulate_fail("an address is beyond shared memory");
    return (rank == 0xffffffff ? current->of : blocks[rank])->shared + address;
}

static void check_aligned(uint64_t address, unsigned to)
{
    if (address % to)
        emulate_fail("an address is not aligned");
}

static void enqueue(uint32_t to, const void *from, uint32_t valid, uint32_t nbytes)
{
    check_aligned(to, nbytes);
    check_aligned((uintptr_t)from, nbytes);
    if (valid > nbytes)
        emulate_fail("cp.async of more than there is");
    current->copies.push_back({to, nbytes, valid, from, current->group});
}

void cp_async4(uint32_t to, const void *from, uint32_t valid)
{
    enqueue(to, from, valid, 4);
}

void cp_async16(uint32_t to, const void *from, uint32_t valid)
{
    enqueue(to, from, valid, 16);
}

void cp_async_commit(void)
{
    current->group++;
}

void emulate_cp_async_wait(int pending)
{
    std::vector<copy> &copies = current->copies;
    size_t n = 0;

    while (n < copies.size() && copies[n].group < current->group - pending) {
        unsigned char *to = emulate_shared(copies[n].to);

        memcpy(to, copies[n].from, copies[n].valid);
        memset(to + copies[n].valid, 0, copies[n].nbytes - copies[n].valid);
        n++;
    }
    copies.erase(copies.begin(), copies.begin() + (long)n);
}

static void exchange_rows(uint32_t mine, uint32_t (&rows)[32])
{
    check_aligned(mine, 16);
    memcpy(rows, emulate_exchange(&mine, sizeof(mine)), sizeof(rows));
}

static uint16_t shared16(uint32_t address)
{
    uint16_t x;

    memcpy(&x, emulate_shared(address), sizeof(x));
    return x;
}

void load_matrices(uint32_t (&x)[4], uint32_t from)
{
    uint32_t rows[32], lane = threadIdx.x % 32;

    exchange_rows(from, rows);
    for (uint32_t i = 0; i < 4; i++)
        memcpy(&x[i], emulate_shared(rows[i * 8 + lane / 4] + lane % 4 * 4), 4);
}

void load_matrices_transposed(uint32_t (&x)[4], uint32_t from)
{
    uint32_t rows[32], lane = threadIdx.x % 32;

    exchange_rows(from, rows);
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t low = rows[i * 8 + lane % 4 * 2], high = rows[i * 8 + lane % 4 * 2 + 1];

        x[i] = shared16(low + lane / 4 * 2) | (uint32_t)shared16(high + lane / 4 * 2) << 16;
    }
}

void store_matrices(uint32_t to, const uint32_t (&x)[4])
{
    uint32_t rows[32], lane = threadIdx.x % 32;

    exchange_rows(to, rows);
    for (uint32_t i = 0; i < 4; i++)
        memcpy(emulate_shared(rows[i * 8 + lane / 4] + lane % 4 * 4), &x[i], 4);
}

void store_shared16(uint32_t to, const uint32_t (&x)[4])
{
    check_aligned(to, 16);
    memcpy(emulate_shared(to), x, 16);
}

uint4 load_shared16(uint32_t from)
{
    uint4 x;

    check_aligned(from, 16);
    memcpy(&x, emulate_shared(from), sizeof(x));
    return x;
}

void store_shared4(uint32_t to, uint32_t x)
{
    check_aligned(to, 4);
    memcpy(emulate_shared(to), &x, 4);
}

uint32_t load_shared4(uint32_t from)
{
    uint32_t x;

    check_aligned(from, 4);
    memcpy(&x, emulate_shared(from), 4);
    return x;
}

void load_shared8(uint32_t &x, uint32_t &y, uint32_t from)
{
    check_aligned(from, 8);
    memcpy(&x, emulate_shared(from), 4);
    memcpy(&y, emulate_shared(from + 4), 4);
}

void store_shared8(uint32_t to, float x, float y)
{
    check_aligned(to, 8);
    memcpy(emulate_shared(to), &x, 4);
    memcpy(emulate_shared(to + 4), &y, 4);
}

static float real32(uint32_t bits)
{
    float x;

    memcpy(&x, &bits, sizeof(x));
    return x;
}

static inline float real16(int type, uint16_t bits)
{
    return type == EMULATE_BF16 ? real32((uint32_t)bits << 16) : halves[bits];
}

static inline float real8(int type, unsigned char bits)
{
    return type == EMULATE_E5M2 ? halves[bits << 8] : e4m3[bits];
}

uint32_t unpack_e4m3(uint16_t pair)
{
    uint32_t low = __half_as_ushort(__float2half_rn(real8(EMULATE_E4M3, pair & 0xff)));

    return low | (uint32_t)__half_as_ushort(__float2half_rn(real8(EMULATE_E4M3, pair >> 8))) << 16;
}

/* What a lane has of A and B: registers, and the elements in each: one of tf32, two of 16 bits. */
struct operands {
    float a[4][2], b[2][2];
};

static void take_apart(int type, uint32_t bits, float (&x)[2])
{
    if (type == EMULATE_TF32) {
        x[0] = real32(bits);
        return;
    }
    x[0] = real16(type, (uint16_t)bits);
    x[1] = real16(type, (uint16_t)(bits >> 16));
}

/* Element (i, k) of A, and (k, j) of B, from where lanes have them. */
static float mma_a(bool wide, const operands *all, int i, int k)
{
    return wide ? all[i % 8 * 4 + k % 4].a[i / 8 + k / 4 * 2][0]
                : all[i % 8 * 4 + k % 8 / 2].a[i / 8 + k / 8 * 2][k % 2];
}

static float mma_b(bool wide, const operands *all, int k, int j)
{
    return wide ? all[j * 4 + k % 4].b[k / 4][0] : all[j * 4 + k % 8 / 2].b[k / 8][k % 2];
}

void emulate_mma(int type, float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    operands mine;

    for (int i = 0; i < 4; i++)
        take_apart(type, a[i], mine.a[i]);
    take_apart(type, b0, mine.b[0]);
    take_apart(type, b1, mine.b[1]);

    const operands *all = (const operands *)emulate_exchange(&mine, sizeof(mine));
    bool wide = type == EMULATE_TF32;
    int lane = threadIdx.x % 32, depth = wide ? 8 : 16;

    for (int k = 0; k < depth; k++) {
        float above = mma_a(wide, all, lane / 4, k), below = mma_a(wide, all, lane / 4 + 8, k);
        float left = mma_b(wide, all, k, lane % 4 * 2),
              right = mma_b(wide, all, k, lane % 4 * 2 + 1);

        d[0] += above * left;
        d[1] += above * right;
        d[2] += below * left;
        d[3] += below * right;
    }
}

static mbarrier &barrier_at(uint32_t address, block *of)
{
    mbarrier &b = of->mbarriers[address / 8];

    check_aligned(address, 8);
    if (b.cluster != cluster)
        b = {cluster, 0, 0, 0, 0};
    return b;
}

static void end_phase(mbarrier &b)
{
    if (b.pending || b.bytes)
        return;
    b.phase ^= 1;
    b.pending = b.arrivals;
}

void mbarrier_init(uint32_t barrier, int arrivals)
{
    barrier_at(barrier, current->of) = {cluster, arrivals, arrivals, 0, 0};
}

static void arrive(mbarrier &b)
{
    if (--b.pending < 0)
        emulate_fail("more arrive at a barrier than it expects");
    end_phase(b);
}

void mbarrier_arrive_expecting(uint32_t barrier, uint32_t nbytes)
{
    mbarrier &b = barrier_at(barrier, current->of);

    b.bytes += nbytes;
    arrive(b);
}

void mbarrier_arrive_at(uint32_t barrier, uint32_t rank)
{
    arrive(barrier_at(barrier, blocks[rank]));
}

void store_shared8_at(uint32_t to, uint32_t barrier, uint32_t rank, float x, float y)
{
    mbarrier &b = barrier_at(barrier, blocks[rank]);
    const float both[] = {x, y};

    if (cluster_size() < 2)
        emulate_fail("an asynchronous store without a cluster");
    check_aligned(to, sizeof(both));
    memcpy(emulate_shared(to, rank), both, sizeof(both));
    b.bytes -= sizeof(both);
    end_phase(b);
}

void mbarrier_wait(uint32_t barrier, uint32_t parity)
{
    mbarrier &b = barrier_at(barrier, current->of);

    if (b.phase == (long)parity)
        wait_for_change(b.phase, parity);
}

void wait_for_count(const uint32_t *count, uint32_t least)
{
    emulate_check_waited();
    while (*count < least)
        yield();
}

uint32_t cluster_rank(void)
{
    return blockIdx.x % blocks_of_cluster;
}

uint32_t cluster_size(void)
{
    return blocks_of_cluster;
}

/* Bits 4 to 6 of an address by bits 7 to 9. */
static uint32_t swizzled(uint32_t address)
{
    return address ^ (address >> 7 & 7) << 4;
}

/* The element of a tensor at x, y, z and w, or NULL if it is outside. */
static unsigned char *element(const emulated_map *m, int64_t x, int64_t y, int64_t z, int64_t w = 0)
{
    if (x < 0 || y < 0 || z < 0 || w < 0 || x >= (int64_t)m->size[0] || y >= (int64_t)m->size[1] ||
        z >= (int64_t)m->size[2] || w >= (int64_t)m->size[3])
        return NULL;
    return m->data + w * (int64_t)m->stride[2] + z * (int64_t)m->stride[1] +
           y * (int64_t)m->stride[0] + x * m->element;
}

/* f32 to tf32, to nearest even, as the copy engine does it. */
static void round_to_tf32(unsigned char *at)
{
    uint32_t x;

    memcpy(&x, at, sizeof(x));
    if ((x & 0x7f800000) != 0x7f800000)
        x = (x + 0xfff + (x >> 13 & 1)) & ~0x1fffu;
    memcpy(at, &x, sizeof(x));
}

static const emulated_map *map_at(const void *map, uint32_t rank)
{
    const emulated_map *m = (const emulated_map *)map;

    if (m->magic != EMULATED_MAP)
        emulate_fail("a tensor map was not encoded");
    if (m->rank != rank)
        emulate_fail("a tensor map has other dimensions than its load");
    return m;
}

/* A box of two dimensions to a block of the cluster, whose barrier hears of it. */
static void load_box(uint32_t to, const emulated_map *m, const int (&at)[4], uint32_t barrier,
                     uint32_t rank)
{
    for (uint32_t j = 0; j < m->box[1]; j++)
        for (uint32_t i = 0; i < m->box[0]; i++) {
            unsigned char *there =
                emulate_shared(swizzled(to + (j * m->box[0] + i) * m->element), rank);
            unsigned char *from = element(m, (int64_t)at[0] + i, (int64_t)at[1] + j, at[2], at[3]);

            if (from)
                memcpy(there, from, m->element);
            else
                memset(there, 0, m->element);
            if (m->rounded)
                round_to_tf32(there);
        }
    mbarrier &b = barrier_at(barrier, blocks[rank]);

    b.bytes -= (long)(m->box[0] * m->box[1] * m->element);
    end_phase(b);
}

void tensor_load_multicast(uint32_t to, const void *map, int x, int y, int z, uint32_t barrier,
                           uint16_t ranks)
{
    emulate_check_waited();
    check_aligned(to, 128);
    for (uint32_t rank = 0; rank < 16; rank++)
        if (ranks >> rank & 1)
            load_box(to, map_at(map, 3), {x, y, z, 0}, barrier, rank);
}

void tensor_load4(uint32_t to, const void *map, const int (&at)[4], uint32_t barrier)
{
    emulate_check_waited();
    check_aligned(to, 128);
    load_box(to, map_at(map, 4), at, barrier, cluster_rank());
}

void tensor_load4_multicast(uint32_t to, const void *map, const int (&at)[4], uint32_t barrier,
                            uint16_t ranks)
{
    emulate_check_waited();
    check_aligned(to, 128);
    for (uint32_t rank = 0; rank < 16; rank++)
        if (ranks >> rank & 1)
            load_box(to, map_at(map, 4), at, barrier, rank);
}

void bulk_load(uint32_t to, const void *from, uint32_t nbytes, uint32_t barrier)
{
    mbarrier &b = barrier_at(barrier, current->of);

    emulate_check_waited();
    check_aligned(to, 16);
    check_aligned((uintptr_t)from, 16);
    check_aligned(nbytes, 16);
    memcpy(emulate_shared(to), from, nbytes);
    b.bytes -= nbytes;
    end_phase(b);
}

void bulk_add(float *to, uint32_t from, uint32_t nbytes)
{
    emulate_check_waited();
    check_aligned(from, 16);
    check_aligned((uintptr_t)to, 16);
    check_aligned(nbytes, 16);
    for (uint32_t i = 0; i < nbytes / 4; i++)
        to[i] += load_shared_at(from + 4 * i, cluster_rank());
}

/* As an H200 was seen to do it: a row is clipped at 16 bytes, not at its last element. */
void tensor_store(const void *map, uint32_t from, int x, int y, int z)
{
    const emulated_map *m = map_at(map, 3);
    emulated_map written = *m;

    emulate_check_waited();
    written.size[0] = (m->size[0] * m->element + 15) / 16 * 16 / m->element;
    check_aligned(from, 128);
    for (uint32_t j = 0; j < m->box[1]; j++)
        for (uint32_t i = 0; i < m->box[0]; i++) {
            uint32_t at = from + j * m->box[0] * m->element + i * m->element;
            unsigned char *to = element(&written, (int64_t)x + i, (int64_t)y + j, z);

            if (to)
                memcpy(to, emulate_shared(swizzled(at)), m->element);
        }
}

/* 16 bytes of k of a line of a matrix that is contiguous along k. */
static const unsigned char *described_bytes(uint64_t descriptor, uint32_t line, uint32_t byte)
{
    uint32_t start = (uint32_t)(descriptor & 0x3fff) << 4;
    uint32_t leading = (uint32_t)(descriptor >> 16 & 0x3fff) << 4;
    uint32_t stride = (uint32_t)(descriptor >> 32 & 0x3fff) << 4;

    if (descriptor >> 62)
        return emulate_shared(swizzled(start + line % 8 * 128 + line / 8 * stride + byte));
    return emulate_shared(start + line % 8 * 16 + line / 8 * stride + byte / 16 * leading);
}

/* The `depth` elements of a line of the matrix that a descriptor names: 16 bytes lie together. */
static void described(int type, int mn, uint64_t descriptor, uint32_t line, uint32_t depth,
                      float (&x)[32])
{
    uint32_t start = (uint32_t)(descriptor & 0x3fff) << 4;
    uint32_t leading = (uint32_t)(descriptor >> 16 & 0x3fff) << 4;
    uint32_t stride = (uint32_t)(descriptor >> 32 & 0x3fff) << 4;

    if (descriptor >> 62 > 1 || (mn && !(descriptor >> 62)))
        emulate_fail("a descriptor has neither the swizzle of 128 bytes nor none");
    if (mn) {
        uint32_t at = start + line % 64 * 2 + line / 64 * leading;

        for (uint32_t k = 0; k < depth; k++)
            x[k] = real16(type, shared16(swizzled(at + k % 8 * 128 + k / 8 * stride)));
        return;
    }
    for (uint32_t byte = 0; byte < 32; byte += 16) {
        const unsigned char *from = described_bytes(descriptor, line, byte);
        uint16_t narrow[8];
        uint32_t wide[4];

        memcpy(narrow, from, 16);
        memcpy(wide, from, 16);
        if (type >= EMULATE_E4M3)
            for (uint32_t k = 0; k < 16; k++)
                x[byte + k] = real8(type, from[k]);
        else if (type)
            for (uint32_t k = 0; k < 8; k++)
                x[byte / 2 + k] = real16(type, narrow[k]);
        else
            for (uint32_t k = 0; k < 4; k++)
                x[byte / 4 + k] = real32(wide[k] & ~0x1fffu); /* tf32 is what is left */
    }
}

/* What a tensor core keeps of a sum of fp8: 14 bits. */
static float cut_off(float sum)
{
    uint32_t bits;

    memcpy(&bits, &sum, sizeof(bits));
    return isfinite(sum) ? real32(bits & ~0x3ffu) : sum;
}

/* The columns of B for lanes like this one: who comes last of the warpgroup reads them for all. */
static const float (*columns_of(int type, int mn_b, uint32_t count, uint32_t depth, uint64_t b))[64]
{
    warpgroup &g = current->of->groups[threadIdx.x / 128];

    if (g.meeting.arrived == 127)
        for (uint32_t col = 0; col < 2 * count; col++) {
            float y[32];

            described(type, mn_b, b, col, depth, y);
            for (uint32_t k = 0; k < depth; k++)
                g.columns[col % 8 / 2][k][col / 8 * 2 + col % 2] = y[k];
        }
    meet(g.meeting, 128);
    return g.columns[threadIdx.x % 4];
}

/* The sums of two rows of A, of `depth` elements of k, which this thread has. */
static void add_up(int type, int mn_b, float *sums, uint32_t count, const float (&x)[2][32],
                   uint32_t depth, uint64_t b, int accumulate)
{
    const float(*y)[64] = columns_of(type, mn_b, count, depth, b);

    for (uint32_t h = 0; h < 2; h++) {
        float row[64];

        for (uint32_t j = 0; j < count / 2; j++)
            row[j] = accumulate ? sums[j / 2 * 4 + h * 2 + j % 2] : 0;
        for (uint32_t k = 0; k < depth; k++)
            for (uint32_t j = 0; j < count / 2; j++)
                row[j] += x[h][k] * y[k][j];
        for (uint32_t j = 0; j < count / 2; j++)
            sums[j / 2 * 4 + h * 2 + j % 2] = type >= EMULATE_E4M3 ? cut_off(row[j]) : row[j];
    }
}

/* `type` is A's, `type_b` B's; both have as many bits. */
static void multiply(int type, int type_b, int mn_a, int mn_b, float *sums, uint32_t count,
                     uint64_t a, uint64_t b, int accumulate)
{
    uint32_t row = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
    uint32_t depth = type == EMULATE_TF32 ? 8 : type >= EMULATE_E4M3 ? 32 : 16;
    float x[2][32];

    for (uint32_t h = 0; h < 2; h++)
        described(type, mn_a, a, row + 8 * h, depth, x[h]);
    add_up(type_b, mn_b, sums, count, x, depth, b, accumulate);
}

void emulate_wgmma(int type, int mn_a, int mn_b, float *sums, uint32_t count, uint64_t a,
                   uint64_t b, int accumulate)
{
    multiply(type, type, mn_a, mn_b, sums, count, a, b, accumulate);
}

void emulate_wgmma8(int type_a, int type_b, float *sums, uint32_t count, uint64_t a, uint64_t b,
                    int accumulate)
{
    multiply(type_a, type_b, 0, 0, sums, count, a, b, accumulate);
}

/* Rows l / 4 + 8 h of the warp's: lane l has elements l % 4 + 4 g of them in its registers. */
void wgmma_tf32_by_registers(float (&sums)[128], const wgmma_fragments &a, int i, uint64_t b,
                             int accumulate)
{
    const uint32_t *all = (const uint32_t *)emulate_exchange(&a.x[4 * i], 16);
    float x[2][32];

    for (uint32_t k = 0; k < 8; k++)
        for (uint32_t h = 0; h < 2; h++)
            x[h][k] =
                real32(all[(threadIdx.x % 32 / 4 * 4 + k % 4) * 4 + k / 4 * 2 + h] & ~0x1fffu);
    add_up(EMULATE_TF32, 0, sums, 128, x, 8, b, accumulate);
}

/*
 * A row's elements are in four lanes, two neighbours (four of 8 bits) of the first and as many of
 * the second half.
 */
void emulate_wgmma_by_registers(int type, int mn_b, float *sums, uint32_t count, const uint32_t *a,
                                uint64_t b, int accumulate)
{
    const uint32_t *all = (const uint32_t *)emulate_exchange(a, 16);
    uint32_t width = type >= EMULATE_E4M3 ? 4 : 2;
    float x[2][32];

    for (uint32_t k = 0; k < 8 * width; k++)
        for (uint32_t h = 0; h < 2; h++) {
            uint32_t lane = threadIdx.x % 32 / 4 * 4 + k % (4 * width) / width;
            uint32_t bits = all[lane * 4 + k / (4 * width) * 2 + h] >> k % width * (32 / width);

            x[h][k] = width == 4 ? real8(type, (unsigned char)bits) : real16(type, (uint16_t)bits);
        }
    add_up(type, mn_b, sums, count, x, 8 * width, b, accumulate);
}
