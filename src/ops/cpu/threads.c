/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Threads, by OpenMP where the build has it, and how a product is split among them: into a grid of
 * pieces of C. Each thread packs for itself, so they wait for nobody; and since pieces begin where
 * the kernel's tiles do, every element of C comes from the same operations for any number of
 * threads.
 */
#ifdef _OPENMP
#include <omp.h>
#endif

#include "ops/cpu/dtype.h"
#include "ops/cpu/product.h"

#define MAX_THREADS 1024

/*
 * ThreadSanitizer knows nothing of OpenMP's runtime, which was not compiled with it: it is told
 * that a region's start comes after what was before it, and its end after all threads' work.
 */
#if defined(__SANITIZE_THREAD__) && defined(_OPENMP)
void __tsan_acquire(void *address);
void __tsan_release(void *address);
#define ACQUIRE(address) __tsan_acquire(address)
#define RELEASE(address) __tsan_release(address)
#define UNSEEN           __attribute__((no_sanitize("thread")))
#else
#define ACQUIRE(address) ((void)(address))
#define RELEASE(address) ((void)(address))
#define UNSEEN
#endif

int cpu_max_threads(void)
{
#ifdef _OPENMP
    int n = omp_get_max_threads();

    return n < MAX_THREADS ? n : MAX_THREADS;
#else
    return 1;
#endif
}

int cpu_threads_for(const struct cpu_engine *engine, const struct gpunvme_ops_exec *exec)
{
    if (!engine->threads)
        return 1;
    if (!exec->threads)
        return cpu_max_threads();
    return exec->threads < MAX_THREADS ? exec->threads : MAX_THREADS;
}

struct region {
    int count;
    void (*work)(void *arg, int index, int count);
    void *arg;
};

static void share(struct region *region, int index, int nthreads)
{
    ACQUIRE(region);
    for (; index < region->count; index += nthreads)
        region->work(region->arg, index, region->count);
    RELEASE(region);
}

UNSEEN void cpu_parallel(int count, void (*work)(void *arg, int index, int count), void *arg)
{
    struct region region = {count, work, arg};

    if (count == 1) {
        work(arg, 0, 1);
        return;
    }
    RELEASE(&region);
#ifdef _OPENMP
#pragma omp parallel num_threads(count)
    share(&region, omp_get_thread_num(), omp_get_num_threads());
#else
    share(&region, 0, 1);
#endif
    ACQUIRE(&region);
}

struct grid {
    int rows, cols;        /* of pieces */
    int64_t height, width; /* of a piece, but for the last ones */
};

static int64_t piece(int64_t n, int count, int tile)
{
    int64_t tiles = (n + tile - 1) / tile;

    return (tiles + count - 1) / count * tile;
}

/* The grid of `threads` pieces whose largest one packs least: the least half of its outline. */
static struct grid grid_of(const struct cpu_kernel *kernel, const struct cpu_product *p,
                           int threads)
{
    struct grid best = {0};

    for (int rows = 1; rows <= threads; rows++) {
        struct grid g = {rows, threads / rows, 0, 0};

        if (g.rows * g.cols != threads)
            continue;
        g.height = piece(p->m, g.rows, kernel->mr);
        g.width = piece(p->n, g.cols, kernel->nr);
        if (!best.rows || g.height * g.width < best.height * best.width ||
            (g.height * g.width == best.height * best.width &&
             g.height + g.width < best.height + best.width))
            best = g;
    }
    return best;
}

struct split {
    const struct cpu_engine *engine;
    const struct cpu_product *product;
    struct grid grid;
    char *workspace;
    size_t nbytes; /* of one thread's */
};

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static size_t aligned(size_t nbytes)
{
    return (nbytes + GPUNVME_OPS_WORKSPACE_ALIGN - 1) & ~(size_t)(GPUNVME_OPS_WORKSPACE_ALIGN - 1);
}

/* The part of the product that makes rows i … and columns j … of C. False: there are none. */
static bool part(const struct cpu_product *whole, int64_t i, int64_t j, int64_t height,
                 int64_t width, struct cpu_product *p, struct cpu_epilogue *epilogue)
{
    *p = *whole;
    if (i >= p->m || j >= p->n)
        return false;
    p->m = least(height, p->m - i);
    p->n = least(width, p->n - j);
    if (p->k) {
        p->a.data = cpu_at(p->a.data, i * p->a.rs, p->a.dtype);
        p->b.data = cpu_at(p->b.data, j * p->b.cs, p->b.dtype);
        p->scale_a.first += i;
        p->scale_b.first += j;
    }
    p->c = (void *)cpu_at(p->c, i * p->ldc + j, p->dtype);
    if (p->epilogue) {
        *epilogue = *p->epilogue;
        p->epilogue = epilogue;
        if (epilogue->bias)
            epilogue->bias = cpu_at(epilogue->bias, j, epilogue->dtype);
        if (epilogue->preact)
            epilogue->preact =
                (void *)cpu_at(epilogue->preact, i * epilogue->ld_preact + j, epilogue->dtype);
    }
    return true;
}

static void run_part(void *arg, int index, int count)
{
    const struct split *s = arg;
    struct cpu_epilogue epilogue;
    struct cpu_product p;

    (void)count;
    if (part(s->product, index / s->grid.cols * s->grid.height,
             index % s->grid.cols * s->grid.width, s->grid.height, s->grid.width, &p, &epilogue))
        s->engine->multiply(s->engine, &p, s->workspace + s->nbytes * (size_t)index);
}

/* What the threads run: the packed engine with this processor's best kernel. */
static struct cpu_engine best_engine(void)
{
    return (struct cpu_engine){.multiply = cpu_multiply_packed,
                               .workspace = cpu_workspace_packed,
                               .kernel = cpu_best_kernel()};
}

static size_t part_workspace(const struct cpu_engine *engine, const struct cpu_product *product,
                             const struct grid *grid)
{
    struct cpu_epilogue epilogue;
    struct cpu_product p;

    part(product, 0, 0, grid->height, grid->width, &p, &epilogue);
    return aligned(engine->workspace(engine, &p));
}

size_t cpu_product_workspace(const struct cpu_engine *engine, const struct cpu_product *product,
                             int threads)
{
    struct cpu_engine best;
    struct grid grid;

    if (!engine->threads)
        return engine->workspace ? aligned(engine->workspace(engine, product)) : 0;
    best = best_engine();
    grid = grid_of(best.kernel, product, threads);
    return part_workspace(&best, product, &grid) * (size_t)threads;
}

void cpu_run_product(const struct cpu_engine *engine, const struct cpu_product *product,
                     int threads, void *workspace)
{
    struct cpu_engine best;
    struct split split = {.engine = &best, .product = product, .workspace = workspace};

    if (!engine->threads) {
        engine->multiply(engine, product, workspace);
        return;
    }
    best = best_engine();
    split.grid = grid_of(best.kernel, product, threads);
    split.nbytes = part_workspace(&best, product, &split.grid);
    cpu_parallel(threads, run_part, &split);
}
