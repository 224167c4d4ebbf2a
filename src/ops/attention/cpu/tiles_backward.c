/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Attention backwards on the CPU by tiles: a tile of keys passes over the queries, and scores and
 * weights are made again of lse (Dao et al., "FlashAttention", 2022). A thread takes all of one
 * head of K, so that every sum has one order.
 */
#include <string.h>

#include "ops/attention/cpu/tiles.h"

/* A thread's memory, all in f32. */
struct tile {
    float *q, *grad_out;             /* rows of queries x dim, x dim_v */
    float *k, *v, *grad_k, *grad_v;  /* keys x dim and x dim_v */
    float *scores, *weights, *grads; /* rows x ATTENTION_KEYS: S, P, dP and then dS */
    float *grad_q, *delta, *lse;     /* of all rows of the group: x dim, D, lse */
    void *product_room;              /* the engine's */
};

struct work {
    const struct gpunvme_attention_grad *p;
    const struct attention_cpu *x;
    const struct cpu_engine *engine;
    const struct attention_rows *rows;
    int64_t total, next; /* heads of K of all sequences; the first that no thread has */
    char *workspace;
    size_t nbytes; /* of a thread's */
};

/* C = alpha A B + C for packed C; element (i, j) of A is at a[i * rs + j * cs]. */
static struct cpu_product product(int64_t m, int64_t n, int64_t k, struct cpu_operand a,
                                  struct cpu_operand b, float *c, float alpha)
{
    return (struct cpu_product){.m = m,
                                .n = n,
                                .k = k,
                                .a = a,
                                .b = b,
                                .c = c,
                                .ldc = n,
                                .dtype = GPUNVME_OPS_F32,
                                .alpha = alpha,
                                .beta = 1};
}

static struct cpu_operand rows_of(const float *data, int64_t ld)
{
    return (struct cpu_operand){data, ld, 1, GPUNVME_OPS_F32};
}

static struct cpu_operand columns_of(const float *data, int64_t ld)
{
    return (struct cpu_operand){data, 1, ld, GPUNVME_OPS_F32};
}

enum { SCORES, GRADS, GRAD_V, GRAD_K, GRAD_Q, NPRODUCTS };

/* The five products of a tile of queries, whose grad_q is given, with a tile of keys. */
static void products_of(const struct attention_cpu *x, const struct tile *t, float *grad_q,
                        int64_t rows, int64_t keys, struct cpu_product products[NPRODUCTS])
{
    const int64_t dim = x->p->dim, dim_v = x->p->dim_v, ld = ATTENTION_KEYS;

    products[SCORES] =
        product(rows, keys, dim, rows_of(t->q, dim), columns_of(t->k, dim), t->scores, x->scale);
    products[GRADS] = product(rows, keys, dim_v, rows_of(t->grad_out, dim_v),
                              columns_of(t->v, dim_v), t->grads, 1);
    for (int i = SCORES; i <= GRADS; i++) {
        products[i].ldc = ld;
        products[i].beta = 0;
    }
    products[GRAD_V] = product(keys, dim_v, rows, columns_of(t->weights, ld),
                               rows_of(t->grad_out, dim_v), t->grad_v, 1);
    products[GRAD_K] =
        product(keys, dim, rows, columns_of(t->grads, ld), rows_of(t->q, dim), t->grad_k, x->scale);
    products[GRAD_Q] =
        product(rows, dim, keys, rows_of(t->grads, ld), rows_of(t->k, dim), grad_q, x->scale);
}

static size_t lay_out(const struct attention_cpu *x, const struct cpu_engine *engine,
                      char *workspace, struct tile *t)
{
    const int64_t dim = x->p->dim, dim_v = x->p->dim_v, all = x->group * x->p->q_len;
    const int64_t tile = ATTENTION_ROWS * ATTENTION_KEYS;
    float **const parts[] = {&t->q,      &t->grad_out, &t->k,     &t->v,     &t->grad_k, &t->grad_v,
                             &t->scores, &t->weights,  &t->grads, &t->delta, &t->lse};
    const int64_t counts[] = {ATTENTION_ROWS * dim,
                              ATTENTION_ROWS * dim_v,
                              ATTENTION_KEYS * dim,
                              ATTENTION_KEYS * dim_v,
                              ATTENTION_KEYS * dim,
                              ATTENTION_KEYS * dim_v,
                              tile,
                              tile,
                              tile,
                              all,
                              all};
    size_t at = tiles_lay_out(workspace, counts, parts, sizeof(parts) / sizeof(parts[0]));
    struct cpu_product products[NPRODUCTS];
    size_t most = 0;

    t->grad_q = workspace ? (float *)(void *)(workspace + at) : NULL;
    at += ops_workspace_part(1, all, dim, sizeof(float));
    t->product_room = workspace ? workspace + at : NULL;
    products_of(x, t, t->grad_q, ATTENTION_ROWS, ATTENTION_KEYS, products);
    for (int i = 0; i < NPRODUCTS; i++) {
        size_t nbytes = cpu_product_workspace(engine, &products[i], 1);

        most = nbytes > most ? nbytes : most;
    }
    return at + most;
}

/* P and dS of a row and a tile of keys; where a key is not seen both are 0. */
static void differentiate_row(const struct work *w, const struct tile *t, int64_t r, float lse,
                              float delta, const struct attention_range *seen, int64_t keys)
{
    float *s = t->scores + r * ATTENTION_KEYS, *p = t->weights + r * ATTENTION_KEYS;
    float *ds = t->grads + r * ATTENTION_KEYS, cap = w->x->p->softcap;
    int64_t width = tiles_mask(w->x->p, s, seen, keys);

    w->rows->weigh(s, width, tiles_shift(lse), p);
    for (int64_t j = 0; j < seen->first; j++)
        ds[j] = 0;
    for (int64_t j = seen->first; j < seen->end; j++)
        ds[j] = p[j] * (ds[j] - delta);
    for (int64_t j = seen->first; cap > 0 && j < seen->end; j++)
        ds[j] *= 1 - s[j] / cap * (s[j] / cap);
    for (int64_t j = seen->end; j < keys; j++)
        ds[j] = 0;
}

static void load_queries(const struct work *w, const struct tiles_queries *q, const struct tile *t)
{
    const struct attention_cpu *x = w->x;

    for (int64_t r = 0; r < q->rows; r++) {
        int64_t i = tiles_query(x, q, r), head = tiles_head(x, q, r);

        attention_load_q(x, q->s, i, head, t->q + r * x->p->dim);
        attention_load_grad_out(w->p, q->s, i, head, t->grad_out + r * x->p->dim_v);
    }
}

/* Keys first … first + keys - 1, which are loaded, with a tile of queries. */
static void add_queries(const struct work *w, const struct tiles_queries *q, const struct tile *t,
                        int64_t first, int64_t keys)
{
    struct attention_range range = tiles_range(w->x, q);
    struct cpu_product products[NPRODUCTS];

    if (range.first >= first + keys || range.end <= first)
        return;
    load_queries(w, q, t);
    products_of(w->x, t, t->grad_q + q->first * w->x->p->dim, q->rows, keys, products);
    cpu_run_product(w->engine, &products[SCORES], 1, t->product_room);
    cpu_run_product(w->engine, &products[GRADS], 1, t->product_room);
    for (int64_t r = 0; r < q->rows; r++) {
        struct attention_range seen = tiles_seen(w->x, q, r, first, keys);

        differentiate_row(w, t, r, t->lse[q->first + r], t->delta[q->first + r], &seen, keys);
    }
    for (int i = GRAD_V; i < NPRODUCTS; i++)
        cpu_run_product(w->engine, &products[i], 1, t->product_room);
}

/* lse and D of all rows, and zeros for their gradients. */
static void begin(const struct work *w, const struct tiles_queries *all, const struct tile *t)
{
    const struct attention_cpu *x = w->x;

    for (int64_t r = 0; r < all->rows; r++) {
        int64_t i = tiles_query(x, all, r), head = tiles_head(x, all, r);

        t->lse[r] = x->p->lse[attention_at(&x->p->lse_strides, &all->s->q, i, head)];
        t->delta[r] = (float)attention_delta(w->p, all->s, i, head, t->q, t->grad_out);
    }
    memset(t->grad_q, 0, (size_t)(all->rows * x->p->dim) * sizeof(float));
}

static void add_keys(const struct work *w, const struct tiles_queries *all, const struct tile *t,
                     int64_t first, int64_t keys)
{
    const struct attention_cpu *x = w->x;

    for (int64_t j = 0; j < keys; j++) {
        attention_load_k(x, all->s, first + j, all->kv_head, t->k + j * x->p->dim);
        attention_load_v(x, all->s, first + j, all->kv_head, t->v + j * x->p->dim_v);
    }
    memset(t->grad_k, 0, (size_t)(keys * x->p->dim) * sizeof(float));
    memset(t->grad_v, 0, (size_t)(keys * x->p->dim_v) * sizeof(float));
    for (int64_t r = 0; r < all->rows; r += ATTENTION_ROWS) {
        struct tiles_queries q = {all->s, all->kv_head, r,
                                  tiles_least(ATTENTION_ROWS, all->rows - r)};

        add_queries(w, &q, t, first, keys);
    }
    for (int64_t j = 0; j < keys; j++) {
        attention_store_grad_k(x, w->p, all->s, first + j, all->kv_head, t->grad_k + j * x->p->dim);
        attention_store_grad_v(w->p, all->s, first + j, all->kv_head, t->grad_v + j * x->p->dim_v);
    }
}

static void run_head(const struct work *w, const struct tile *t, int64_t unit)
{
    const struct attention_cpu *x = w->x;
    struct attention_sequence s = attention_sequence_of(x, unit / x->p->kv_heads);
    struct tiles_queries all = {&s, unit % x->p->kv_heads, 0, s.q_len * x->group};

    begin(w, &all, t);
    for (int64_t j = 0; j < s.k_len; j += ATTENTION_KEYS)
        add_keys(w, &all, t, j, tiles_least(ATTENTION_KEYS, s.k_len - j));
    for (int64_t r = 0; r < all.rows; r++)
        attention_store_grad_q(x, w->p, &s, tiles_query(x, &all, r), tiles_head(x, &all, r),
                               t->grad_q + r * x->p->dim);
}

static void run_heads(void *arg, int index, int count)
{
    struct work *w = arg;
    struct tile t;

    (void)count;
    lay_out(w->x, w->engine, w->workspace + w->nbytes * (size_t)index, &t);
    for (;;) {
        int64_t unit = __atomic_fetch_add(&w->next, 1, __ATOMIC_RELAXED);

        if (unit >= w->total)
            return;
        run_head(w, &t, unit);
    }
}

size_t attention_tiles_backward_workspace(const struct attention_cpu *x,
                                          const struct cpu_engine *engine)
{
    struct tile t;

    return lay_out(x, tiles_engine(engine), NULL, &t);
}

void attention_tiles_backward(const struct attention_cpu *x, const struct gpunvme_attention_grad *p,
                              const struct cpu_engine *engine, int threads, void *workspace)
{
    struct work w = {
        .p = p,
        .x = x,
        .engine = tiles_engine(engine),
        .total = x->p->kv_heads * x->p->batch,
        .workspace = workspace,
        .nbytes = attention_tiles_backward_workspace(x, engine),
    };

    w.rows = attention_rows_of(w.engine->kernel);
    cpu_parallel(threads, run_heads, &w);
}
