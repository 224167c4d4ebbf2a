/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Attention on the CPU by tiles: what forward and backward share. The heads that share K and V have
 * their queries in the same tiles: row r of a group is query r / group of one of its heads.
 */
#ifndef OPS_ATTENTION_CPU_TILES_H
#define OPS_ATTENTION_CPU_TILES_H

#include <math.h>

#include "ops/attention/cpu/cpu.h"

/*
 * A tile has so many rows of queries and so many keys. Its scores, K and V together fit the second
 * cache at 128 channels.
 */
enum { ATTENTION_ROWS = 120, ATTENTION_KEYS = 192 };

/* A tile of queries: rows first … first + rows - 1 of a group. */
struct tiles_queries {
    const struct attention_sequence *s;
    int64_t kv_head, first, rows;
};

static inline int64_t tiles_least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t tiles_query(const struct attention_cpu *x, const struct tiles_queries *q,
                                  int64_t r)
{
    return (q->first + r) / x->group;
}

static inline int64_t tiles_head(const struct attention_cpu *x, const struct tiles_queries *q,
                                 int64_t r)
{
    return q->kv_head * x->group + (q->first + r) % x->group;
}

/* Infinities have no difference: what has seen no key is shifted by 0. */
static inline float tiles_shift(float most)
{
    return most == -INFINITY ? 0 : most;
}

/* Which of the keys first … first + keys - 1 row r sees, counted from `first`. */
static inline struct attention_range tiles_seen(const struct attention_cpu *x,
                                                const struct tiles_queries *q, int64_t r,
                                                int64_t first, int64_t keys)
{
    struct attention_range all = attention_range_of(x->p, q->s, tiles_query(x, q, r));
    int64_t begin = all.first - first, end = all.end - first;

    return (struct attention_range){begin < 0 ? 0 : tiles_least(begin, keys),
                                    end < 0 ? 0 : tiles_least(end, keys)};
}

/* All keys that rows of a tile see: both ends grow with the query. */
static inline struct attention_range tiles_range(const struct attention_cpu *x,
                                                 const struct tiles_queries *q)
{
    return (struct attention_range){
        attention_range_of(x->p, q->s, tiles_query(x, q, 0)).first,
        attention_range_of(x->p, q->s, tiles_query(x, q, q->rows - 1)).end};
}

/* Softcap and mask of a row of scores: -infinity up to the width, a multiple of the lanes. */
int64_t tiles_mask(const struct gpunvme_attention *p, float *s, const struct attention_range *seen,
                   int64_t keys);

/* What runs in one thread: the engine itself, or that of this processor's best kernel. */
const struct cpu_engine *tiles_engine(const struct cpu_engine *engine);

/* Parts of a workspace, of so many floats each; returns their bytes. */
size_t tiles_lay_out(char *workspace, const int64_t *counts, float **const *parts, size_t n);

#endif
