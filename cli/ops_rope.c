/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gpunvme ops: cases of RoPE: m rows of n heads of k channels, of which all are rotated if their
 * number is even. Pairs are neighbours if m is odd, and the rotation is backward if n is.
 */
#include <math.h>

#include "ops_memory.h"

/* What the matrices are. */
enum {
    X = OPS_A,
    Y = OPS_C,
    POSITIONS = OPS_TABLE,
};

#define POSITIONS_COUNT 131072 /* positions are less than that */

static void parts(const struct ops_case *c, struct ops_part parts[OPS_NMATRICES])
{
    parts[X] = (struct ops_part){.count = c->shape.m * c->shape.n * c->shape.k, .dtype = c->dtype};
    parts[Y] = parts[X];
    parts[Y].result = true;
    parts[POSITIONS] = (struct ops_part){.count = c->shape.m};
}

static bool fill(const struct ops_case *c, int matrix, void *data, struct base_random *r)
{
    for (int64_t i = 0; matrix == POSITIONS && i < c->shape.m; i++)
        ((int32_t *)data)[i] = (int32_t)(base_random_real(r) * POSITIONS_COUNT);
    return matrix == POSITIONS;
}

static int32_t rotated(const struct ops_case *c)
{
    return (int32_t)(c->shape.k & ~(int64_t)1);
}

static gpunvme_ops_status_t call(const struct ops_case *c, const struct gpunvme_ops_exec *exec,
                                 size_t *nbytes, const char **name)
{
    struct gpunvme_rotate p = {.rows = c->shape.m,
                               .heads = c->shape.n,
                               .dim = c->shape.k,
                               .x = ops_case_at(c, X),
                               .y = ops_case_at(c, Y),
                               .ldx = c->shape.n * c->shape.k,
                               .ldy = c->shape.n * c->shape.k,
                               .positions = ops_case_at(c, POSITIONS),
                               .rope = {.dim = rotated(c), .interleaved = c->shape.m % 2},
                               .dtype = c->dtype,
                               .backward = c->shape.n % 2};

    return OPS_CALL(gpunvme_rotate, p);
}

/* Of the head that begins at `at`, in row i. */
static double error_of_head(const struct ops_case *c, double most, int64_t i, int64_t at)
{
    int64_t half = rotated(c) / 2, position = ((const int32_t *)c->host[POSITIONS])[i];
    bool neighbours = c->shape.m % 2;

    if (c->shape.k % 2)
        most = ops_worst(most, ops_at(c, Y, c->dtype, at + c->shape.k - 1),
                         ops_at(c, X, c->dtype, at + c->shape.k - 1), 1e-30);
    for (int64_t k = 0; k < half; k++) {
        double angle = (double)position * pow(10000, -2.0 * (double)k / rotated(c));
        double cosine = cos(angle), sine = c->shape.n % 2 ? -sin(angle) : sin(angle);
        int64_t first = at + (neighbours ? 2 * k : k), second = first + (neighbours ? 1 : half);
        double x = ops_at(c, X, c->dtype, first), y = ops_at(c, X, c->dtype, second);
        double share = 16 * OPS_EPS * (fabs(x) + fabs(y));
        double u = x * cosine - y * sine, v = x * sine + y * cosine;

        most = ops_worst(most, ops_at(c, Y, c->dtype, first), u, share + ops_rounding(c->dtype, u));
        most =
            ops_worst(most, ops_at(c, Y, c->dtype, second), v, share + ops_rounding(c->dtype, v));
    }
    return most;
}

static double error(const struct ops_case *c, int64_t lines)
{
    struct ops_lines rows = ops_lines_of(c->shape.m, lines);
    double most = 0;

    for (int64_t r = 0; r < rows.count; r++)
        for (int64_t h = 0, i = ops_line(&rows, r); h < c->shape.n && most <= 1; h++)
            most = error_of_head(c, most, i, (i * c->shape.n + h) * c->shape.k);
    return most;
}

const struct ops_memory_op ops_rope_case = {
    .shape = {16384, 32, 128}, .parts = parts, .fill = fill, .call = call, .error = error};
