/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Rotary position embedding (Su et al., "RoFormer", 2021): its parameters, which attention takes as
 * well, and the rotation by itself. The rules of ops/core.h apply.
 */
#ifndef GPUNVME_OPS_ROPE_H
#define GPUNVME_OPS_ROPE_H

#include "gpunvme/ops/core.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Channels first … first + dim - 1 of each head are rotated in pairs (x, y): pair p at position t
 * becomes
 *
 *   (x cos - y sin, x sin + y cos)   by the angle t * base^(-2 p / dim), or by cos[t][p], sin[t][p]
 *
 * Attention rotates Q and K as they are loaded: key j of a sequence is at position j, query i at
 * position i + k_len - q_len. At a negative position -t the tables' row t is used, with its sines
 * negated. Q and K in memory stay as they are, and the gradients are those of Q and K before the
 * rotation.
 */
struct gpunvme_rope {
    const float *cos, *sin; /* rows x dim / 2, a row is `ld` elements long; both NULL: by `base` */
    int64_t rows, ld;       /* rows: more than any position (attention: at least q_len and k_len) */
    float base;             /* 0: 10000 */
    int32_t dim;            /* even; 0: there is no rotation, and the other fields are ignored */
    int32_t first;
    int32_t interleaved; /* 0: x is channel first + p, y is dim / 2 behind it; 1: 2 p and 2 p + 1 */
    int32_t queries_only; /* attention: K is rotated already, as by gpunvme_kv_append() */
    int32_t reserved;     /* 0 */
};

/*
 * y = x rotated. A row is a token: `heads` heads of `dim` channels behind each other, and `ldx` or
 * `ldy` elements (at least heads * dim) from a row to the next. Channels that are not rotated are
 * copied. y may be x itself, with the same leading dimension. Q and K side by side in one matrix
 * are one call's heads.
 *
 *   positions   rows int32_t, where x is; NULL: row i is at position i. They are not negative, and
 *               less than rope.rows if there are tables. The CPU refuses others; on a GPU rotated
 *               channels of such a row are NaN
 *   backward    1: by the negative angle. With the gradient of y as x, y is the gradient of x
 *
 * Angles are computed in f64, the rotation in f32.
 */
struct gpunvme_rotate {
    int64_t rows, heads, dim;
    const void *x;
    void *y;
    int64_t ldx, ldy;
    const int32_t *positions;
    struct gpunvme_rope rope; /* queries_only: 0 */
    int32_t dtype;
    int32_t backward;    /* 0 or 1 */
    int64_t reserved[2]; /* 0 */
};

/*
 * ERR_SHAPE: a size or leading dimension makes no sense, or tables have too few rows. ERR_INVALID:
 * a pointer is missing, or (CPU) a position is out of its range. Otherwise the functions are
 * matmul's: see gpunvme_matmul(), …_workspace() and …_choose().
 */
gpunvme_ops_status_t gpunvme_rotate(const struct gpunvme_rotate *rotate,
                                    const struct gpunvme_ops_exec *exec);
gpunvme_ops_status_t gpunvme_rotate_workspace(const struct gpunvme_rotate *rotate,
                                              const struct gpunvme_ops_exec *exec, size_t *nbytes);
gpunvme_ops_status_t gpunvme_rotate_choose(const struct gpunvme_rotate *rotate,
                                           const struct gpunvme_ops_exec *exec, const char **name);

#ifdef __cplusplus
}
#endif
#endif
