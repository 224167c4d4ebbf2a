/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Litmus tests on the GPU: the patterns of dev_queue.h with the same instructions, as fast as they
 * go, with the other side in another block or on the CPU. For each pattern first whole, then
 * without one of the things that order it. Whole there must be no violation. A broken one that
 * shows none is told as such: hardware may be stronger than its specification.
 *
 *   test_gpu_litmus [SECONDS]   for each row (0.3)
 *
 * Memory that is meant to be far apart is: each word of a pattern on a line of its own, and a
 * pattern goes through many lines, so that stores and loads miss at different times. What a place
 * is called is docs/ORDERING.md's; each row is the code of dev_queue.h, copied by hand.
 */
#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpunvme/atomics.h"
#include "gpunvme/warp.h"

#define LINES  1024u /* entries of a ring */
#define STRIDE 64u   /* words: 256 bytes */
#define PAIRS  24u   /* that run beside each other */

enum place {
    WHOLE,
    MARK,
    LOOK,
    RING_SYNC,
    FILL_SYNC,
    LANES, /* only the leader makes the fence of a doorbell */
    DOORBELL,
    TAKE,
    WAIT,
    FREE,
    CLAIM,
    LOCK
};

static const char *const place_names[] = {"whole",     "MARK",  "LOOK",     "RING_SYNC",
                                          "FILL_SYNC", "LANES", "DOORBELL", "TAKE",
                                          "WAIT",      "FREE",  "CLAIM",    "LOCK"};

struct words {
    uint32_t *data;   /* LINES lines: entries, data, results */
    uint32_t *mark;   /* LINES words; of completions LINES entries of four */
    uint32_t *bell;   /* one word */
    uint32_t *status; /* LINES words; of slots LINES of four */
    uint32_t *turn;   /* how far the last of the chain is */
};

struct arena {
    struct words pair[PAIRS];
    const volatile uint32_t *stop; /* in host memory */
    unsigned long long *rounds, *violations;
    int place;
};

static __device__ uint32_t line_of(uint32_t i)
{
    return i % LINES * STRIDE;
}

/* Waits until *p is at least `value`; 0: the time is over. */
static __device__ int wait_for(const uint32_t *p, uint32_t value, const struct arena *a)
{
    for (uint32_t turn = 1; (int32_t)(gpunvme_load_relaxed32(p) - value) < 0; turn++) {
        if (turn % 1024 == 0 && *a->stop)
            return 0;
    }
    return 1;
}

static __device__ void release_store(uint32_t *p, uint32_t v, int broken)
{
    if (broken)
        gpunvme_store_relaxed32(p, v);
    else
        gpunvme_store_release32_gpu(p, v);
}

static __device__ void count(const struct arena *a, uint32_t rounds, uint32_t violations)
{
    atomicAdd(a->rounds, (unsigned long long)rounds);
    atomicAdd(a->violations, (unsigned long long)violations);
}

/* --- who does what ---------------------------------------------------------------------------- */

/* Lane 0 of a block: writes an entry and its mark, as far as the last of the chain allows. */
static __device__ void fill(const struct arena *a, const struct words *w)
{
    for (uint32_t i = 1;; i++) {
        if (i > LINES / 2 && !wait_for(w->turn, i - LINES / 2, a))
            return;
        ((volatile uint32_t *)w->data)[line_of(i)] = i;
        ((volatile uint32_t *)w->data)[line_of(i) + 32] = i;
        release_store(&w->mark[i % LINES], i, a->place == MARK);
        if (i % 1024 == 0 && *a->stop)
            return;
    }
}

/* All lanes have met after what `place` is the name of; then the leader rings. */
static __device__ void ring_for(const struct arena *a, const struct words *w, uint32_t pos)
{
    uint32_t lane = gpunvme_warp_lane();

    if (a->place != DOORBELL && (a->place != LANES || !lane))
        gpunvme_fence_sys();
    if (a->place != LANES)
        gpunvme_warp_sync(~0u);
    if (!lane)
        gpunvme_mmio_write32_fenced(w->bell, pos);
}

/* A warp that has the doorbell: 32 entries at a time, and no marks. */
static __device__ void fill_and_ring(const struct arena *a, const struct words *w)
{
    uint32_t lane = gpunvme_warp_lane();

    for (uint32_t i = 32;; i += 32) {
        uint32_t mine = i - 31 + lane;

        if (gpunvme_warp_ballot(~0u, i > LINES / 2 && !wait_for(w->turn, i - LINES / 2, a)))
            return;
        ((volatile uint32_t *)w->data)[line_of(mine)] = mine;
        ((volatile uint32_t *)w->data)[line_of(mine) + 32] = mine;
        if (a->place != FILL_SYNC)
            gpunvme_warp_sync(~0u);
        ring_for(a, w, i);
        if (gpunvme_warp_ballot(~0u, i % 1024 == 0 && *a->stop))
            return;
    }
}

/* A warp: lanes find marks, the leader rings for all of them. */
static __device__ void ring(const struct arena *a, const struct words *w)
{
    uint32_t pos = 1, lane = gpunvme_warp_lane();

    for (uint32_t turn = 1;; turn++) {
        uint32_t mine = pos + lane;
        uint32_t mark = a->place == LOOK ? gpunvme_load_relaxed32(&w->mark[mine % LINES])
                                         : gpunvme_load_acquire32_gpu(&w->mark[mine % LINES]);
        uint32_t missing = gpunvme_warp_ballot(~0u, mark != mine);
        uint32_t n = missing ? gpunvme_lowest_bit(missing) : 32;

        if (gpunvme_warp_ballot(~0u, turn % 1024 == 0 && *a->stop))
            return;
        if (!n)
            continue;
        pos += n;
        if (a->place != RING_SYNC)
            gpunvme_warp_sync(~0u);
        ring_for(a, w, pos - 1);
    }
}

/* One thread: the controller, which takes entries up to the doorbell. */
static __device__ void fetch(const struct arena *a, const struct words *w)
{
    uint32_t done = 0, bad = 0;

    while (wait_for(w->bell, done + 1, a)) {
        uint32_t tail = gpunvme_load_acquire32(w->bell);

        for (; done != tail; done++) {
            const volatile uint32_t *entry = w->data + line_of(done + 1);

            bad += entry[32] != done + 1 || entry[0] != done + 1;
        }
        gpunvme_store_release32(w->turn, done);
    }
    count(a, done, bad);
}

/* The controller again: data, then the completion that tells of it, its last word last. */
static __device__ void complete(const struct arena *a, const struct words *w)
{
    for (uint32_t i = 1;; i++) {
        volatile uint32_t *data = w->data + line_of(i), *cqe = w->mark + i % LINES * 4;

        if (i > LINES / 2 && !wait_for(w->turn, i - LINES / 2, a))
            return;
        data[0] = i;
        cqe[0] = i;
        gpunvme_store_release32((uint32_t *)cqe + 3, i);
        if (i % 1024 == 0 && *a->stop)
            return;
    }
}

/* Reaps: the last dword of an entry at a time; the status goes to the slot's word. */
static __device__ void reap(const struct arena *a, const struct words *w)
{
    for (uint32_t i = 1, turn = 1;; turn++) {
        uint32_t dw3 = gpunvme_load_relaxed32(w->mark + i % LINES * 4 + 3);

        if (turn % 1024 == 0 && *a->stop)
            break;
        if (dw3 != i)
            continue;
        if (a->place != TAKE)
            gpunvme_fence_sys();
        gpunvme_store64_fenced_gpu((uint64_t *)(w->status + i % LINES * 4), i);
        i++;
    }
    count(a, 0, 0);
}

/* Waits for each status, then looks at the data by plain loads. */
static __device__ void wait(const struct arena *a, const struct words *w)
{
    uint32_t bad = 0, i;

    for (i = 1; wait_for(w->status + i % LINES * 4, i, a); i++) {
        if (a->place != WAIT)
            (void)gpunvme_load_acquire64((const uint64_t *)(w->status + i % LINES * 4));
        bad += w->data[line_of(i)] != i;
        gpunvme_store_release32(w->turn, i);
    }
    count(a, i - 1, bad);
}

static __device__ uint64_t claim(uint64_t *word, int broken)
{
    uint64_t old;

    if (!broken)
        return gpunvme_fetch_or64_acquire_gpu(word, 1);
    asm volatile("atom.relaxed.gpu.or.b64 %0, [%1], 1;" : "=l"(old) : "l"(word) : "memory");
    return old;
}

/*
 * Owners of one slot, which is claimed by a bit beside its generation. Each finds what the last one
 * left in it, and what it reads last the next one has not changed yet.
 */
static __device__ void own(const struct arena *a, const struct words *w)
{
    volatile uint32_t *memory = w->data, *last = w->data + 4 * STRIDE;
    uint64_t *word = (uint64_t *)w->status;
    uint32_t bad = 0, rounds = 0;

    for (uint32_t turn = 1; turn % 1024 || !*a->stop; turn++) {
        uint64_t old = claim(word, a->place == CLAIM);
        uint32_t generation = (uint32_t)(old >> 1), z;

        if (old & 1)
            continue;
        *last = generation;
        bad += memory[0] != generation || memory[32] != generation;
        memory[0] = memory[32] = generation + 1;
        z = *last;
        if (a->place == FREE)
            gpunvme_store64_relaxed_gpu(word, old + 2);
        else
            gpunvme_store_release64_gpu(word, old + 2);
        bad += z != generation;
        rounds++;
    }
    count(a, rounds, bad);
}

/*
 * The try-lock: each of two threads marks, then tries. Nobody may find both that it did not get the
 * lock and that the holder did not see its mark: whoever lets go without the other's mark, though
 * the other has given up, has lost a doorbell. Rounds are kept in step through `turn` and `bell`.
 */
static __device__ void try_lock(const struct arena *a, const struct words *w, uint32_t me)
{
    uint32_t *mine = me ? w->bell : w->turn, *others = me ? w->turn : w->bell;
    uint32_t bad = 0, i;

    for (i = 1;; i++) {
        uint32_t *lock = &w->status[i % LINES * 32], *marks = w->data + line_of(i);
        uint32_t *lost = marks + 48, rung = 0, taken;

        release_store(&marks[32 * me], i, 0);
        taken = a->place == LOCK ? gpunvme_fetch_or32_relaxed_gpu(lock, 1)
                                 : gpunvme_fetch_or32_gpu(lock, 1);
        if (!taken) {
            rung = gpunvme_load_relaxed32(&marks[32 * !me]) == i;
            if (a->place == LOCK)
                gpunvme_exchange32_relaxed_gpu(lock, 0);
            else
                gpunvme_exchange32_gpu(lock, 0);
            rung |= gpunvme_load_acquire32_gpu(&marks[32 * !me]) == i;
        }
        /* 1: gave up; 2: has rung for itself alone. */
        gpunvme_store_relaxed32(&lost[me], i << 2 | (taken ? 1u : rung ? 0u : 2u));
        gpunvme_store_release32(mine, i);
        if (!wait_for(others, i, a))
            break;
        (void)gpunvme_load_acquire32(others);
        if (taken)
            bad += gpunvme_load_relaxed32(&lost[!me]) == (i << 2 | 2u);
        if (i % 1024 == 0 && *a->stop)
            break;
    }
    count(a, i - 1, bad);
}

/* --- patterns: which threads -------------------------------------------------------------------
 */

enum pattern { SUBMIT, LONE, COMPLETE, OWN, TRY_LOCK, SUBMIT_CPU, LONE_CPU, COMPLETE_CPU };

#define ROLES 3u

static __global__ void litmus(struct arena a, int pattern)
{
    const struct words *w = &a.pair[blockIdx.x % PAIRS];
    uint32_t role = blockIdx.x / PAIRS;

    int is_submit = pattern == SUBMIT || pattern == SUBMIT_CPU;
    int is_lone = pattern == LONE || pattern == LONE_CPU;

    if (role == 1 && is_submit)
        ring(&a, w);
    if (role == 0 && is_lone)
        fill_and_ring(&a, w);
    if (threadIdx.x)
        return;
    if (role == 0 && is_submit)
        fill(&a, w);
    else if (role == 2 && (pattern == SUBMIT || pattern == LONE))
        fetch(&a, w);
    else if (pattern == COMPLETE || pattern == COMPLETE_CPU)
        role == 2             ? wait(&a, w)
        : role == 1           ? reap(&a, w)
        : pattern == COMPLETE ? complete(&a, w)
                              : (void)0;
    else if (pattern == OWN)
        own(&a, w);
    else if (pattern == TRY_LOCK && role < 2)
        try_lock(&a, w, role);
}

/* --- rows ------------------------------------------------------------------------------------- */

static const struct row {
    const char *what;
    enum pattern pattern;
    enum place places[6]; /* ends with WHOLE */
    int in_host;          /* entries, data, marks of completions and doorbells */
} rows[] = {
    {"entry, mark, doorbell, fetch; GPU memory",
     SUBMIT,
     {MARK, LOOK, RING_SYNC, LANES, DOORBELL},
     0},
    {"the same, entries and doorbell in host memory",
     SUBMIT,
     {MARK, LOOK, RING_SYNC, LANES, DOORBELL},
     1},
    {"the same, the controller on the CPU",
     SUBMIT_CPU,
     {MARK, LOOK, RING_SYNC, LANES, DOORBELL},
     1},
    {"entries of a warp, doorbell; GPU memory", LONE, {FILL_SYNC, LANES, DOORBELL}, 0},
    {"the same, in host memory", LONE, {FILL_SYNC, LANES, DOORBELL}, 1},
    {"the same, the controller on the CPU", LONE_CPU, {FILL_SYNC, LANES, DOORBELL}, 1},
    {"data, completion, slot, data; GPU memory", COMPLETE, {TAKE, WAIT}, 0},
    {"the same, data and completions in host memory", COMPLETE, {TAKE, WAIT}, 1},
    {"the same, the controller on the CPU", COMPLETE_CPU, {TAKE, WAIT}, 1},
    {"a slot's next owner", OWN, {FREE, CLAIM}, 0},
    {"the try-lock of the doorbell", TRY_LOCK, {LOCK}, 0},
};

static int cuda_ok(cudaError_t e, const char *what)
{
    if (e != cudaSuccess)
        fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(e));
    return e == cudaSuccess;
}

#define PAIR_WORDS (3u * LINES * STRIDE)

/* The controller on the CPU: all pairs by turns, until the time is over. */
static void fetch_on_cpu(const struct arena *a, double seconds, unsigned long long *rounds,
                         unsigned long long *violations)
{
    uint64_t end = gpunvme_clock_ns() + (uint64_t)(seconds * 1e9);
    static uint32_t done[PAIRS];

    memset(done, 0, sizeof(done));
    while (gpunvme_clock_ns() < end) {
        for (unsigned p = 0; p < PAIRS; p++) {
            const struct words *w = &a->pair[p];
            uint32_t tail = gpunvme_load_acquire32(w->bell);

            for (; done[p] != tail; done[p]++, ++*rounds) {
                const volatile uint32_t *entry = w->data + (done[p] + 1) % LINES * STRIDE;

                *violations += entry[32] != done[p] + 1 || entry[0] != done[p] + 1;
            }
            gpunvme_store_release32(w->turn, done[p]);
        }
    }
}

/* Likewise: completes, as far as the waiters allow. */
static void complete_on_cpu(const struct arena *a, double seconds)
{
    uint64_t end = gpunvme_clock_ns() + (uint64_t)(seconds * 1e9);
    static uint32_t done[PAIRS];

    memset(done, 0, sizeof(done));
    while (gpunvme_clock_ns() < end) {
        for (unsigned p = 0; p < PAIRS; p++) {
            const struct words *w = &a->pair[p];
            uint32_t i = done[p] + 1;
            volatile uint32_t *cqe = w->mark + i % LINES * 4;

            if ((int32_t)(i - LINES / 2 - gpunvme_load_acquire32(w->turn)) > 0)
                continue;
            ((volatile uint32_t *)w->data)[i % LINES * STRIDE] = i;
            cqe[0] = i;
            gpunvme_store_release32((uint32_t *)cqe + 3, i);
            done[p] = i;
        }
    }
}

static void lay_out(struct arena *a, const struct row *row, uint32_t *gpu, uint32_t *host)
{
    for (unsigned p = 0; p < PAIRS; p++) {
        /* In host memory: what the controller reads and writes. */
        uint32_t *far = (row->in_host ? host : gpu) + p * PAIR_WORDS;
        uint32_t *near = gpu + p * PAIR_WORDS;

        a->pair[p].data = far;
        a->pair[p].mark = (row->pattern == COMPLETE || row->pattern == COMPLETE_CPU ? far : near) +
                          LINES * STRIDE;
        a->pair[p].status = near + 2 * LINES * STRIDE;
        a->pair[p].bell = far + LINES * STRIDE + 8 * LINES;
        a->pair[p].turn = far + LINES * STRIDE + 16 * LINES;
    }
}

/* One line of the table. Returns whether it is as it must be. */
static int run_row(const struct row *row, enum place place, double seconds, uint32_t *gpu,
                   uint32_t *host)
{
    unsigned long long on_gpu[2] = {0, 0}, rounds = 0, violations = 0;
    volatile uint32_t *stop = host + PAIRS * PAIR_WORDS;
    struct arena a;

    memset(&a, 0, sizeof(a));
    memset(host, 0, PAIRS * PAIR_WORDS * 4 + 256);
    if (!cuda_ok(cudaMemset(gpu, 0, PAIRS * PAIR_WORDS * 4 + 256), "cudaMemset"))
        return 0;
    lay_out(&a, row, gpu, host);
    a.stop = stop;
    a.rounds = (unsigned long long *)(gpu + PAIRS * PAIR_WORDS);
    a.violations = a.rounds + 1;
    a.place = place;
    litmus<<<ROLES * PAIRS, 32>>>(a, row->pattern);
    if (!cuda_ok(cudaGetLastError(), "launch"))
        return 0;
    if (row->pattern == COMPLETE_CPU)
        complete_on_cpu(&a, seconds);
    else if (row->pattern == SUBMIT_CPU || row->pattern == LONE_CPU)
        fetch_on_cpu(&a, seconds, &rounds, &violations);
    else
        usleep((useconds_t)(seconds * 1e6));
    *stop = 1;
    if (!cuda_ok(cudaDeviceSynchronize(), "kernel") ||
        !cuda_ok(cudaMemcpy(on_gpu, a.rounds, sizeof(on_gpu), cudaMemcpyDeviceToHost), "counters"))
        return 0;
    rounds += on_gpu[0];
    violations += on_gpu[1];
    printf("%-48s %-10s %13llu %11llu%s\n", row->what, place ? place_names[place] : "-", rounds,
           violations,
           !rounds                ? "  DID NOT RUN"
           : place && !violations ? "  none on this hardware"
           : !place && violations ? "  WRONG"
                                  : "");
    fflush(stdout);
    return rounds && (place || !violations);
}

int main(int argc, char **argv)
{
    double seconds = argc > 1 ? strtod(argv[1], NULL) : 0.3;
    uint32_t *gpu, *host;
    int devices = 0, good = 1;

    if (cudaGetDeviceCount(&devices) != cudaSuccess || !devices) {
        printf("SKIP: no GPU\n");
        return 77;
    }
    if (!cuda_ok(cudaMalloc(&gpu, PAIRS * PAIR_WORDS * 4 + 256), "GPU memory") ||
        !cuda_ok(cudaHostAlloc(&host, PAIRS * PAIR_WORDS * 4 + 256, cudaHostAllocMapped),
                 "host memory"))
        return 1;
    printf("%-48s %-10s %13s %11s\n", "pattern", "without", "rounds", "violations");
    for (unsigned r = 0; r < sizeof(rows) / sizeof(rows[0]); r++) {
        good &= run_row(&rows[r], WHOLE, seconds, gpu, host);
        for (const enum place *p = rows[r].places; *p != WHOLE; p++)
            good &= run_row(&rows[r], *p, seconds, gpu, host);
    }
    cudaFreeHost(host);
    cudaFree(gpu);
    return !good;
}
