/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gpunvme ops: cases of embedding: m rows, a table of n ids and k columns. A quarter of the rows
 * have one of sixteen ids, as in a text.
 */
#include <math.h>
#include <stdlib.h>

#include "ops_memory.h"

/* What the matrices are. */
enum {
    WEIGHT = OPS_B,
    Y = OPS_C,
    GRAD_Y = OPS_GRAD_Y,
    GRAD_WEIGHT = OPS_GRAD_WEIGHT,
    IDS = OPS_TABLE,
};

static void parts(const struct ops_case *c, struct ops_part parts[OPS_NMATRICES])
{
    int64_t rows = c->shape.m * c->shape.k, table = c->shape.n * c->shape.k;
    bool backward = c->op == GPUNVME_OPS_EMBEDDING_BACKWARD;

    parts[IDS] = (struct ops_part){.count = c->shape.m};
    parts[backward ? GRAD_Y : Y] =
        (struct ops_part){.count = rows, .dtype = c->dtype, .result = !backward};
    parts[backward ? GRAD_WEIGHT : WEIGHT] =
        (struct ops_part){.count = table, .dtype = c->dtype, .result = backward};
}

static bool fill(const struct ops_case *c, int matrix, void *data, struct base_random *r)
{
    for (int64_t i = 0; matrix == IDS && i < c->shape.m; i++) {
        int64_t ids = i % 4 || c->shape.n < 16 ? c->shape.n : 16;

        ((int32_t *)data)[i] = (int32_t)(base_random_real(r) * (double)ids);
    }
    return matrix == IDS;
}

static gpunvme_ops_status_t forward(const struct ops_case *c, const struct gpunvme_ops_exec *exec,
                                    size_t *nbytes, const char **name)
{
    struct gpunvme_embedding p = {.rows = c->shape.m,
                                  .vocab = c->shape.n,
                                  .dim = c->shape.k,
                                  .weight = ops_case_at(c, WEIGHT),
                                  .ids = ops_case_at(c, IDS),
                                  .y = ops_case_at(c, Y),
                                  .ld_weight = c->shape.k,
                                  .ldy = c->shape.k,
                                  .dtype = c->dtype};

    return OPS_CALL(gpunvme_embedding_forward, p);
}

static gpunvme_ops_status_t backward(const struct ops_case *c, const struct gpunvme_ops_exec *exec,
                                     size_t *nbytes, const char **name)
{
    struct gpunvme_embedding_grad p = {.rows = c->shape.m,
                                       .vocab = c->shape.n,
                                       .dim = c->shape.k,
                                       .grad_y = ops_case_at(c, GRAD_Y),
                                       .ids = ops_case_at(c, IDS),
                                       .grad_weight = ops_case_at(c, GRAD_WEIGHT),
                                       .ld_grad_y = c->shape.k,
                                       .ld_grad_weight = c->shape.k,
                                       .dtype = c->dtype,
                                       .grad_dtype = c->dtype};

    return OPS_CALL(gpunvme_embedding_backward, p);
}

static int32_t id_of(const struct ops_case *c, int64_t i)
{
    return ((const int32_t *)c->host[IDS])[i];
}

static double forward_error(const struct ops_case *c, int64_t lines)
{
    struct ops_lines rows = ops_lines_of(c->shape.m, lines);
    int64_t k = c->shape.k;
    double most = 0;

    for (int64_t r = 0; r < rows.count; r++)
        for (int64_t j = 0, i = ops_line(&rows, r); j < k; j++)
            most = ops_worst(most, ops_at(c, Y, c->dtype, i * k + j),
                             ops_at(c, WEIGHT, c->dtype, id_of(c, i) * k + j), 1e-30);
    return most;
}

static double error_of_id(const struct ops_case *c, double most, int64_t v)
{
    int64_t k = c->shape.k, count = 0;
    double *sums = calloc((size_t)(2 * k), sizeof(*sums)), *sizes = sums + k;

    if (!sums)
        return NAN;
    for (int64_t i = 0; i < c->shape.m; i++) {
        count += id_of(c, i) == v;
        for (int64_t j = 0; j < k && id_of(c, i) == v; j++) {
            double g = ops_at(c, GRAD_Y, c->dtype, i * k + j);

            sums[j] += g;
            sizes[j] += fabs(g);
        }
    }
    for (int64_t j = 0; j < k; j++)
        most = ops_worst(most, ops_at(c, GRAD_WEIGHT, c->dtype, v * k + j), sums[j],
                         (double)(count + 2) * OPS_EPS * sizes[j] +
                             ops_rounding(c->dtype, sums[j]) + 1e-30);
    free(sums);
    return most;
}

/* Of the frequent ids, too. */
static double backward_error(const struct ops_case *c, int64_t lines)
{
    struct ops_lines ids = ops_lines_of(c->shape.n, lines);
    double most = 0;

    for (int64_t s = 0; s < ids.count && most <= 1; s++)
        most = error_of_id(c, most, ops_line(&ids, s));
    for (int64_t v = 1; lines && v < c->shape.n && v < 16 && most <= 1; v++)
        most = error_of_id(c, most, v);
    return most;
}

/* Of the table only the rows that ids name are read, each at least once. */
static double forward_traffic(const struct ops_case *c)
{
    return (2 * (double)c->shape.k * (double)gpunvme_ops_dtype_nbytes(c->dtype) + 4) *
           (double)c->shape.m;
}

const struct ops_memory_op ops_embedding_forward_case = {.shape = {16384, 50304, 4096},
                                                         .parts = parts,
                                                         .fill = fill,
                                                         .call = forward,
                                                         .error = forward_error,
                                                         .traffic = forward_traffic};
const struct ops_memory_op ops_embedding_backward_case = {.shape = {16384, 50304, 4096},
                                                          .parts = parts,
                                                          .fill = fill,
                                                          .call = backward,
                                                          .error = backward_error};
