/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which rung a product takes, and the rung "shaped": narrower tiles and k in pieces.
 *
 * The model counts clocks of a multiprocessor, of which all do the same at once. A way to make the
 * product takes
 *
 *     START + waves * (steps * step + TILE)                       its tiles, a wave one for each
 *   + (pieces > 1) * (ADD + 2 * pieces * results / ADD_RATE)      the sums of pieces, out and in
 *   + SHARE                                                       or where a cluster shares k
 *   + copies / COPY_RATE                                          what Hopper's rung must repack
 *
 * and no less than its operands take from memory. `step` is for so many k the larger of what the
 * multiplications take and what a multiprocessor takes to load both tiles from the L2. The numbers
 * are an H200's; only their ratios matter.
 */
#include <limits.h>
#include <math.h>
#include <string.h>

#include "ops/cuda/driver.h"
#include "ops/hopper/tile.h"
#include "ops/matmul/few.h"
#include "ops/matmul/product.h"

#define START       4000.0
#define TILE        2500.0
#define ADD         5000.0
#define ADD_RATE    (1700.0) /* bytes in a clock, of the whole GPU */
#define COPY_RATE   (700.0)  /* read once and written once */
#define READ_RATE   (2400.0) /* memory's */
#define LOAD_RATE   36.0     /* the L2's, of one multiprocessor */
#define TENSORCORE  26.0     /* likewise, two blocks together, each half of that */
#define UNALIGNED   2.5      /* times that, if elements are gathered one by one */
#define FP8         4.4 /* a step of a column, where other types have 4: sums are added in f32 */
#define MOST        48  /* pieces */
#define MOST_OF_192 2   /* of tiles that are 192 wide: with more these lost to others */
#define MOST_OF_F32 132
#define SHARE       6000.0
#define SHARE_RATE  48.0 /* LOAD_RATE there, of tiles of 64 to 160 columns */

/*
 * Of coarsened, for one of k: tiles of so many rows and 128 columns. Several tiles of 64 rows run
 * on a multiprocessor together: one alone takes longer, and of the empty part of a last wave a
 * share is saved.
 */
static const struct {
    int rows;
    double clocks, alone, saved;
} coarsened[] = {{64, 78, 1.15, 0.3}, {128, 150, 1, 0}, {256, 315, 1, 0}};

enum cuda_level cuda_level(void)
{
    int sm = cuda_sm();

#ifdef OPS_HAVE_SM90A
    if (sm == 90)
        return CUDA_ANY_HOPPER;
#endif
    return ops_cuda_has_clusters(sm) ? CUDA_ANY : CUDA_PLAIN;
}

static double above(double x, double y)
{
    return x > y ? x : y;
}

static int64_t up(int64_t x, int64_t to)
{
    return (x + to - 1) / to * to;
}

/* A rung with tiles of m x n, of which `room` fit at once. */
struct way {
    const struct cuda_engine *engine;
    int64_t tile_m, tile_n, depth; /* k of a step */
    double step;                   /* clocks */
    double before;                 /* clocks of copies */
    int64_t room;
    int width;
    int most, waves;     /* pieces that are tried: so many, and so many waves of them */
    double alone, saved; /* of coarsened, see there; 0 as 1 and 0 */
};

/* (Sizes may be such that 64 bits do not hold their product.) */
static double tiles_of(const struct way *way, const struct cuda_product *p)
{
    return (double)((p->m + way->tile_m - 1) / way->tile_m) *
           (double)((p->n + way->tile_n - 1) / way->tile_n) * (double)p->batch;
}

/* The clocks of a way with k in pieces of `chunk`. */
static double clocks_of(const struct way *way, const struct cuda_product *p, int64_t chunk,
                        int64_t pieces)
{
    double full = tiles_of(way, p) * (double)pieces / (double)way->room;
    double waves = above(ceil(full) - way->saved * (ceil(full) - full), way->alone);
    double steps = (double)((chunk + way->depth - 1) / way->depth);
    double results = (double)p->m * (double)up(p->n, 4) * (double)p->batch * sizeof(float);
    double size = (double)gpunvme_ops_dtype_nbytes(p->dtype);
    double read =
        size * (double)p->k * ((double)p->m + (double)p->n) * (double)p->batch / READ_RATE;
    double sums = pieces > 1 ? ADD + 2 * (double)pieces * results / ADD_RATE : 0;

    return START + above(waves * (steps * way->step + TILE), read) + sums + way->before;
}

/* Keeps the better one. Pieces that leave the last wave as empty as fewer would are not tried. */
static void consider(struct cuda_plan *best, const struct way *way, const struct cuda_product *p)
{
    int64_t unit = way->depth > 64 ? way->depth : 64, units_of_k = up(p->k, unit) / unit;
    double tiles = tiles_of(way, p);

    for (int64_t pieces = 1; pieces <= way->most && pieces <= units_of_k / 2 + 1; pieces++) {
        int64_t chunk = up((units_of_k + pieces - 1) / pieces * unit, unit);
        int64_t made = (p->k + chunk - 1) / chunk;
        double clocks;

        if (pieces > 1 &&
            (tiles * (double)pieces > way->waves * (double)way->room || made != pieces))
            continue;
        clocks = clocks_of(way, p, chunk, pieces);
        if (!best->engine || clocks < best->clocks)
            *best = (struct cuda_plan){.engine = way->engine,
                                       .width = way->width,
                                       .pieces = (int)pieces,
                                       .chunk = chunk,
                                       .clocks = clocks};
    }
}

/* Hopper's tiles are `width` columns wide; a pair of blocks shares columns where it can. */
static void consider_hopper(struct cuda_plan *best, const struct cuda_product *p, int width,
                            int units)
{
    double copied = (double)cuda_workspace_hopper(p);
    int64_t depth = HOPPER_WIDTH / (int64_t)gpunvme_ops_dtype_nbytes(p->dtype);
    double clocks = cuda_is_fp8(p->dtype) ? FP8 : 4;
    struct cuda_product x = *p;
    int64_t down = (p->m + 127) / 128;
    double shared = width > 64 && (down % 2 == 0 || down > 15) ? 2 : 1;
    double rows = p->m < 128 ? (double)p->m / 128 : 1;
    double loads = (128 * 128 * rows + 128.0 * width / shared) / LOAD_RATE;
    struct way way = {&cuda_engines[CUDA_HOPPER],
                      128,
                      width,
                      depth,
                      above(clocks * width, loads),
                      copied / COPY_RATE,
                      units,
                      width,
                      width == 192 ? MOST_OF_192 : MOST,
                      4,
                      1,
                      0};

    x.width = width;
    if (cuda_suits_hopper(&x))
        consider(best, &way, p);
}

static const struct cuda_engine few = {.multiply = cuda_multiply_few,
                                       .misaligned = cuda_misaligned_hopper};
static const struct cuda_engine split = {.multiply = cuda_multiply_split,
                                         .misaligned = cuda_misaligned_hopper};

/* Are sums of pieces made in the workspace? */
static int adds_pieces(const struct cuda_plan *plan)
{
    return plan->pieces > 1 && plan->engine != &few && plan->engine != &split;
}

/*
 * One row of tiles, whose k two blocks share, if there are so few that all are made at once.
 * (Clusters of more blocks leave multiprocessors empty: an H200 has room for 30 of four.)
 */
static void consider_split(struct cuda_plan *best, const struct cuda_product *p, int units)
{
    int64_t steps = (p->k + 127) / 128;
    double rows = (double)p->m / HOPPER_TILE_M;

    for (int width = 64; width <= SPLIT_WIDTH; width += 32) {
        struct way way = {.tile_m = HOPPER_TILE_M, .tile_n = width, .depth = 64, .room = units / 2};

        way.step = above(4.0 * width, (128 * 128 * rows + 128.0 * width) / SHARE_RATE);
        way.before = SHARE;
        if (tiles_of(&way, p) <= (double)way.room) {
            double clocks = clocks_of(&way, p, steps * 64, 1);

            if (clocks < best->clocks)
                *best = (struct cuda_plan){.engine = &split,
                                           .width = width,
                                           .pieces = 2,
                                           .chunk = steps * 64,
                                           .clocks = clocks};
        }
    }
}

/* The model, of loads from the L2, expects too little of this. */
static struct cuda_plan few_plan(const struct cuda_product *p)
{
    int pieces = few_pieces(p, cuda_units());

    return (struct cuda_plan){.engine = &few,
                              .width = few_lines(p, cuda_units()),
                              .pieces = pieces,
                              .chunk = up((p->k + pieces - 1) / pieces, 64)};
}

static void consider_coarsened(struct cuda_plan *best, const struct cuda_product *p, int units)
{
    for (size_t i = 0; i < sizeof(coarsened) / sizeof(coarsened[0]); i++) {
        struct way way = {&cuda_engines[CUDA_COARSENED],
                          coarsened[i].rows,
                          128,
                          1,
                          coarsened[i].clocks,
                          0,
                          units,
                          0,
                          MOST_OF_F32,
                          12,
                          coarsened[i].alone,
                          coarsened[i].saved};
        double before = best->clocks;

        consider(best, &way, p);
        if (best->clocks != before)
            best->height = best->pieces > 1 || coarsened[i].rows != cuda_coarsened_height(p)
                               ? coarsened[i].rows
                               : 0;
    }
}

static struct cuda_plan make_plan(const struct cuda_product *p, enum cuda_level level)
{
    int units = cuda_units();
    struct cuda_plan best = {.pieces = 1, .chunk = p->k};

    if (p->dtype == GPUNVME_OPS_F32 && p->compute == GPUNVME_OPS_COMPUTE_F32) {
        consider_coarsened(&best, p, units);
    } else if (cuda_is_fp8(p->dtype)) {
        for (int width = 256; width >= 128; width /= 2)
            consider_hopper(&best, p, width, units);
    } else {
        int tf32 = p->dtype == GPUNVME_OPS_F32, gathers = !p->a.pitched || !p->b.pitched;
        double step = TENSORCORE * (tf32 ? 2.5 : 1) * (gathers ? UNALIGNED : 1);
        struct way way = {&cuda_engines[CUDA_TENSORCORE],
                          128,
                          128,
                          1,
                          step * 1.4,
                          0,
                          2 * units,
                          0,
                          MOST,
                          4,
                          1,
                          0};

        consider(&best, &way, p);
        if (level == CUDA_ANY_HOPPER) {
            consider_hopper(&best, p, 256, units);
            for (int width = 192; width >= 64 && !tf32; width -= 64)
                consider_hopper(&best, p, width, units);
            if (cuda_suits_split(p))
                consider_split(&best, p, units);
        }
    }
    return best;
}

/* What the plan depends on, but for pointers. */
struct key {
    int64_t m, n, k, batch, stride_a, stride_b;
    int64_t rs_a, cs_a, rs_b, cs_b;
    int32_t dtype, compute, pitched_a, pitched_b, level, device;
};

/* FNV-1a, by words. */
static uint64_t hash_of(const struct key *key)
{
    uint64_t words[sizeof(*key) / sizeof(uint64_t)], hash = UINT64_C(0xcbf29ce484222325);

    memcpy(words, key, sizeof(words));
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        hash = (hash ^ words[i]) * UINT64_C(0x100000001b3);
    return hash ^ hash >> 32;
}

_Static_assert(sizeof(struct key) % sizeof(uint64_t) == 0, "a key is hashed by words");

struct cuda_plan cuda_plan_of(const struct cuda_product *p, enum cuda_level level)
{
    static _Thread_local struct {
        struct key key;
        struct cuda_plan plan;
    } all[64], *known;
    int device = cuda_device();
    struct key key;

    memset(&key, 0, sizeof(key));
    key = (struct key){p->m,         p->n,         p->k,       p->batch, p->a.stride, p->b.stride,
                       p->a.rs,      p->a.cs,      p->b.rs,    p->b.cs,  p->dtype,    p->compute,
                       p->a.pitched, p->b.pitched, (int)level, device};
    known = &all[hash_of(&key) % 64];
    if (!known->plan.engine || memcmp(&known->key, &key, sizeof(key))) {
        known->key = key;
        known->plan =
            level == CUDA_ANY_HOPPER && cuda_wants_few(p) ? few_plan(p) : make_plan(p, level);
    }
    return known->plan;
}

const struct cuda_engine *cuda_best_engine(const struct cuda_product *p, enum cuda_level level)
{
    struct cuda_plan plan;

    if (cuda_is_fp8(p->dtype) && (level != CUDA_ANY_HOPPER || !cuda_suits_hopper(p)))
        return &cuda_engines[level != CUDA_PLAIN && cuda_suits_skinny(p) ? CUDA_SKINNY
                                                                         : CUDA_NAIVE];
    if (level == CUDA_PLAIN)
        return &cuda_engines[p->dtype == GPUNVME_OPS_F32 && p->compute == GPUNVME_OPS_COMPUTE_F32
                                 ? CUDA_COARSENED
                                 : CUDA_TENSORCORE];
    /* (Its f32 is not multiplied by tensor cores, and its fp8 not read fast across k.) */
    if (cuda_suits_skinny(p) && !(p->compute == GPUNVME_OPS_COMPUTE_TF32 && p->m > 8 && p->n > 8) &&
        !(cuda_is_fp8(p->dtype) && !cuda_skinny_reads_vectors(p)))
        return &cuda_engines[CUDA_SKINNY];
    plan = cuda_plan_of(p, level);
    return plan.pieces == 1 && plan.width % 256 == 0 && !plan.height ? plan.engine
                                                                     : &cuda_engines[CUDA_SHAPED];
}

/* The product of the pieces, whose sums lie below each other, and in the rung's own terms. */
static struct cuda_product planned(const struct cuda_product *p, const struct cuda_plan *plan,
                                   void *sums)
{
    struct cuda_product x = *p;

    x.width = plan->width;
    x.height = plan->height;
    if (plan->pieces < 2)
        return x;
    x.pieces = plan->pieces;
    x.chunk = plan->chunk;
    if (!adds_pieces(plan))
        return x;
    x.batch = p->batch * plan->pieces;
    x.c = sums;
    x.ldc = up(p->n, 4);
    x.stride_c = p->m * x.ldc;
    x.out_dtype = GPUNVME_OPS_F32;
    x.alpha = 1;
    x.beta = 0;
    x.bias = NULL;
    x.preact = NULL;
    x.activation = GPUNVME_OPS_ACT_NONE;
    x.vectors = 1;
    return x;
}

static size_t sums_nbytes(const struct cuda_product *p, const struct cuda_plan *plan)
{
    return adds_pieces(plan)
               ? ops_workspace_part(p->batch * plan->pieces, p->m, up(p->n, 4), sizeof(float))
               : 0;
}

size_t cuda_workspace_shaped(const struct cuda_product *p)
{
    struct cuda_plan plan = cuda_plan_of(p, cuda_level());
    struct cuda_product x = planned(p, &plan, NULL);

    return sums_nbytes(p, &plan) + (plan.engine->workspace ? plan.engine->workspace(&x) : 0);
}

int cuda_suits_shaped(const struct cuda_product *p)
{
    const struct way narrow = {.tile_m = 128, .tile_n = 64};

    if (cuda_is_fp8(p->dtype) && (cuda_level() != CUDA_ANY_HOPPER || !cuda_suits_hopper(p)))
        return 0;
    return p->m <= INT_MAX / 2 && p->n <= INT_MAX / 2 && p->batch <= INT_MAX / MOST_OF_F32 &&
           tiles_of(&narrow, p) <= INT_MAX / MOST_OF_F32;
}

int cuda_misaligned_shaped(const struct cuda_product *p)
{
    struct cuda_plan plan = cuda_plan_of(p, cuda_level());

    return plan.engine->misaligned && plan.engine->misaligned(p);
}

gpunvme_ops_status_t cuda_multiply_shaped(const struct cuda_product *p, void *workspace,
                                          void *stream, struct cuda_launch *launch)
{
    struct cuda_plan plan = cuda_plan_of(p, cuda_level());
    struct cuda_product x = planned(p, &plan, workspace);
    char *rest = workspace ? (char *)workspace + sums_nbytes(p, &plan) : NULL;
    gpunvme_ops_status_t status = plan.engine->multiply(&x, rest, stream, launch);

    if (status || launch || !adds_pieces(&plan))
        return status;
    return cuda_add_pieces(p, workspace, x.ldc, plan.pieces, stream);
}
