/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Attention on the CPU by tiles: a tile of queries passes over the keys, tile by tile, and of the
 * scores only one tile is ever in memory (Dao et al., "FlashAttention", 2022). The heads that share
 * K and V have their queries in the same tiles. Products are those of the engine.
 */
#include <math.h>
#include <string.h>

#include "ops/attention/cpu/tiles.h"

/* A thread's memory, all in f32. */
struct tile {
    float *q, *k, *v;   /* rows of queries x dim, keys x dim, keys x dim_v */
    float *scores;      /* rows x ATTENTION_KEYS: S, and then P */
    float *sums;        /* rows x dim_v */
    float *most, *sum;  /* of each row */
    void *product_room; /* the engine's */
};

struct work {
    const struct attention_cpu *x;
    const struct cpu_engine *engine;
    const struct attention_rows *rows;
    int64_t blocks, total; /* tiles of the longest sequence and head; of all */
    int64_t next;          /* the first that no thread has */
    char *workspace;
    size_t nbytes; /* of a thread's */
};

static struct cpu_product scores_product(const struct attention_cpu *x, const struct tile *t,
                                         int64_t rows, int64_t keys)
{
    return (struct cpu_product){
        .m = rows,
        .n = keys,
        .k = x->p->dim,
        .a = {t->q, x->p->dim, 1, GPUNVME_OPS_F32},
        .b = {t->k, 1, x->p->dim, GPUNVME_OPS_F32},
        .c = t->scores,
        .ldc = ATTENTION_KEYS,
        .dtype = GPUNVME_OPS_F32,
        .alpha = x->scale,
    };
}

static struct cpu_product sums_product(const struct attention_cpu *x, const struct tile *t,
                                       int64_t rows, int64_t keys)
{
    return (struct cpu_product){
        .m = rows,
        .n = x->p->dim_v,
        .k = keys,
        .a = {t->scores, ATTENTION_KEYS, 1, GPUNVME_OPS_F32},
        .b = {t->v, x->p->dim_v, 1, GPUNVME_OPS_F32},
        .c = t->sums,
        .ldc = x->p->dim_v,
        .dtype = GPUNVME_OPS_F32,
        .alpha = 1,
        .beta = 1,
    };
}

/* The parts of a thread's workspace; returns its size. */
static size_t lay_out(const struct attention_cpu *x, const struct cpu_engine *engine,
                      char *workspace, struct tile *t)
{
    const int64_t dim = x->p->dim, dim_v = x->p->dim_v;
    const int64_t counts[] = {ATTENTION_ROWS * dim,   ATTENTION_KEYS * dim,
                              ATTENTION_KEYS * dim_v, ATTENTION_ROWS * ATTENTION_KEYS,
                              ATTENTION_ROWS * dim_v, ATTENTION_ROWS,
                              ATTENTION_ROWS};
    float **const parts[] = {&t->q, &t->k, &t->v, &t->scores, &t->sums, &t->most, &t->sum};
    size_t at = tiles_lay_out(workspace, counts, parts, sizeof(parts) / sizeof(parts[0]));
    struct cpu_product scores = scores_product(x, t, ATTENTION_ROWS, ATTENTION_KEYS);
    struct cpu_product sums = sums_product(x, t, ATTENTION_ROWS, ATTENTION_KEYS);
    size_t room = cpu_product_workspace(engine, &scores, 1);
    size_t most = cpu_product_workspace(engine, &sums, 1);

    t->product_room = workspace ? workspace + at : NULL;
    return at + (room > most ? room : most);
}

static void begin(const struct attention_cpu *x, const struct tiles_queries *q,
                  const struct tile *t)
{
    for (int64_t r = 0; r < q->rows; r++) {
        int64_t head = tiles_head(x, q, r);

        attention_load_q(x, q->s, tiles_query(x, q, r), head, t->q + r * x->p->dim);
        t->most[r] = attention_sink(x->p, head);
        t->sum[r] = t->most[r] == -INFINITY ? 0 : 1;
    }
    memset(t->sums, 0, (size_t)(q->rows * x->p->dim_v) * sizeof(float));
}

/* The row's scores of a tile of keys become weights, and what the sums had before is scaled. */
static void weigh_row(const struct work *w, const struct tile *t, int64_t r,
                      const struct attention_range *seen, int64_t keys)
{
    float *s = t->scores + r * ATTENTION_KEYS, most, scale;
    int64_t width = tiles_mask(w->x->p, s, seen, keys);

    most = w->rows->largest(s, width, t->most[r]);
    scale = expf(t->most[r] - tiles_shift(most));
    t->most[r] = most;
    t->sum[r] = t->sum[r] * scale + w->rows->weigh(s, width, tiles_shift(most), s);
    if (scale != 1)
        for (int64_t c = 0; c < w->x->p->dim_v; c++)
            t->sums[r * w->x->p->dim_v + c] *= scale;
}

/* Keys first … first + keys - 1. */
static void add_keys(const struct work *w, const struct tiles_queries *q, const struct tile *t,
                     int64_t first, int64_t keys)
{
    const struct attention_cpu *x = w->x;
    struct cpu_product scores = scores_product(x, t, q->rows, keys);
    struct cpu_product sums = sums_product(x, t, q->rows, keys);

    for (int64_t j = 0; j < keys; j++) {
        attention_load_k(x, q->s, first + j, q->kv_head, t->k + j * x->p->dim);
        attention_load_v(x, q->s, first + j, q->kv_head, t->v + j * x->p->dim_v);
    }
    cpu_run_product(w->engine, &scores, 1, t->product_room);
    for (int64_t r = 0; r < q->rows; r++) {
        struct attention_range seen = tiles_seen(x, q, r, first, keys);

        weigh_row(w, t, r, &seen, keys);
    }
    cpu_run_product(w->engine, &sums, 1, t->product_room);
}

static void finish(const struct attention_cpu *x, const struct tiles_queries *q,
                   const struct tile *t)
{
    const struct gpunvme_attention *p = x->p;

    for (int64_t r = 0; r < q->rows; r++) {
        int64_t i = tiles_query(x, q, r), head = tiles_head(x, q, r);
        float *sums = t->sums + r * p->dim_v, sum = t->sum[r];

        for (int64_t c = 0; c < p->dim_v; c++)
            sums[c] = sum == 0 ? 0 : sums[c] / sum;
        attention_store(p->out, attention_at(&p->out_strides, &q->s->q, i, head), p->out_dtype,
                        p->dim_v, sums);
        if (p->lse)
            p->lse[attention_at(&p->lse_strides, &q->s->q, i, head)] =
                tiles_shift(t->most[r]) + logf(sum);
    }
}

static void run_block(const struct work *w, const struct tile *t, int64_t block)
{
    const struct attention_cpu *x = w->x;
    int64_t unit = block / w->blocks;
    struct attention_sequence s = attention_sequence_of(x, unit / x->p->kv_heads);
    struct tiles_queries q = {&s, unit % x->p->kv_heads, block % w->blocks * ATTENTION_ROWS, 0};
    struct attention_range range;

    q.rows = tiles_least(ATTENTION_ROWS, s.q_len * x->group - q.first);
    if (q.rows <= 0)
        return; /* a sequence that is shorter than the longest */
    begin(x, &q, t);
    range.first = attention_range_of(x->p, &s, tiles_query(x, &q, 0)).first;
    range.end = attention_range_of(x->p, &s, tiles_query(x, &q, q.rows - 1)).end;
    for (int64_t j = range.first; j < range.end; j += ATTENTION_KEYS)
        add_keys(w, &q, t, j, tiles_least(ATTENTION_KEYS, range.end - j));
    finish(x, &q, t);
}

/* Threads take the next block each: later queries of a causal call see more keys. */
static void run_blocks(void *arg, int index, int count)
{
    struct work *w = arg;
    struct tile t;

    (void)count;
    lay_out(w->x, w->engine, w->workspace + w->nbytes * (size_t)index, &t);
    for (;;) {
        int64_t block = __atomic_fetch_add(&w->next, 1, __ATOMIC_RELAXED);

        if (block >= w->total)
            return;
        run_block(w, &t, block);
    }
}

size_t attention_tiles_workspace(const struct attention_cpu *x, const struct cpu_engine *engine)
{
    struct tile t;

    return lay_out(x, tiles_engine(engine), NULL, &t);
}

void attention_tiles(const struct attention_cpu *x, const struct cpu_engine *engine, int threads,
                     void *workspace)
{
    struct work w = {
        .x = x,
        .engine = tiles_engine(engine),
        .blocks = (x->p->q_len * x->group + ATTENTION_ROWS - 1) / ATTENTION_ROWS,
        .workspace = workspace,
        .nbytes = attention_tiles_workspace(x, engine),
    };

    w.rows = attention_rows_of(w.engine->kernel);
    w.total = w.blocks * x->p->kv_heads * x->p->batch;
    cpu_parallel(threads, run_blocks, &w);
}
