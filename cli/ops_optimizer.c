/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gpunvme ops: cases of AdamW and of the norm of gradients: m tensors of n * k elements.
 */
#include <math.h>

#include "ops_memory.h"

/* What the matrices are: each has all tensors, one behind the other. */
enum {
    GRAD = OPS_A,
    MASTER = OPS_B,
    WEIGHT = OPS_C, /* of 16 bits; or the norm */
    SCALE = OPS_BIAS,
    M = OPS_V,
    V = OPS_OUT,
};

#define MAX_TENSORS 1024
#define MAX_NORM    0.5f

static int64_t tensors_of(const struct ops_case *c)
{
    return c->shape.m < MAX_TENSORS ? c->shape.m : MAX_TENSORS;
}

static int64_t count_of(const struct ops_case *c)
{
    return c->shape.n * c->shape.k;
}

/* A tensor's place in a matrix; NULL: there is no such matrix. */
static void *at(const struct ops_case *c, int matrix, int64_t tensor, int dtype)
{
    char *all = ops_case_at(c, matrix);

    return all ? all + tensor * count_of(c) * (int64_t)gpunvme_ops_dtype_nbytes(dtype) : NULL;
}

static void adamw_parts(const struct ops_case *c, struct ops_part parts[OPS_NMATRICES])
{
    int64_t all = tensors_of(c) * count_of(c);

    parts[GRAD] = (struct ops_part){.count = all, .dtype = c->dtype};
    parts[MASTER] = (struct ops_part){.count = all, .result = true, .updated = true};
    parts[M] = parts[V] = parts[MASTER];
    if (c->dtype != GPUNVME_OPS_F32)
        parts[WEIGHT] = (struct ops_part){.count = all, .dtype = c->dtype, .result = true};
}

static bool adamw_fill(const struct ops_case *c, int matrix, void *data, struct base_random *r)
{
    int64_t all = tensors_of(c) * count_of(c);

    for (int64_t i = 0; matrix == V && i < all; i++)
        ((float *)data)[i] = (float)base_random_real(r);
    return matrix == V;
}

static struct gpunvme_adamw adamw_of(const struct ops_case *c)
{
    return (struct gpunvme_adamw){.ntensors = tensors_of(c),
                                  .step = 10,
                                  .seed = 1,
                                  .lr = 0.01f,
                                  .beta1 = 0.9f,
                                  .beta2 = 0.95f,
                                  .eps = 1e-8f,
                                  .weight_decay = 0.1f,
                                  .dtype = c->dtype,
                                  .grad_dtype = c->dtype,
                                  .stochastic = c->dtype == GPUNVME_OPS_BF16};
}

static gpunvme_ops_status_t adamw(const struct ops_case *c, const struct gpunvme_ops_exec *exec,
                                  size_t *nbytes, const char **name)
{
    struct gpunvme_adamw_tensor tensors[MAX_TENSORS];
    struct gpunvme_adamw p = adamw_of(c);

    p.tensors = tensors;
    for (int64_t k = 0; k < p.ntensors; k++)
        tensors[k] = (struct gpunvme_adamw_tensor){.count = count_of(c),
                                                   .grad = at(c, GRAD, k, c->dtype),
                                                   .master = at(c, MASTER, k, GPUNVME_OPS_F32),
                                                   .weight = at(c, WEIGHT, k, c->dtype),
                                                   .m = at(c, M, k, GPUNVME_OPS_F32),
                                                   .v = at(c, V, k, GPUNVME_OPS_F32)};
    return OPS_CALL(gpunvme_adamw, p);
}

static double before(const struct ops_case *c, int matrix, int64_t i)
{
    return (double)((const float *)c->before[matrix])[i];
}

static double error_of_element(const struct ops_case *c, double most, int64_t i)
{
    struct gpunvme_adamw p = adamw_of(c);
    double beta1 = (double)p.beta1, beta2 = (double)p.beta2, lr = (double)p.lr;
    double g = ops_at(c, GRAD, c->dtype, i), w = before(c, MASTER, i);
    double m = beta1 * before(c, M, i) + (1 - beta1) * g;
    double v = beta2 * before(c, V, i) + (1 - beta2) * g * g;
    double change = lr * m / (1 - pow(beta1, (double)p.step)) /
                    (sqrt(v / (1 - pow(beta2, (double)p.step))) + (double)p.eps);
    double error = 0x1p-22 * (fabs(w) + lr + fabs(change)) + 4e-6 * lr;

    w = w - lr * (double)p.weight_decay * w - change;
    most = ops_worst(most, ops_at(c, M, GPUNVME_OPS_F32, i), m, 0x1p-22);
    most = ops_worst(most, ops_at(c, V, GPUNVME_OPS_F32, i), v, 0x1p-22);
    most = ops_worst(most, ops_at(c, MASTER, GPUNVME_OPS_F32, i), w, error);
    /* Stochastic rounding gives one of two neighbours. */
    if (c->dtype != GPUNVME_OPS_F32)
        most = ops_worst(most, ops_at(c, WEIGHT, c->dtype, i), w,
                         error + ops_rounding(c->dtype, w) * (p.stochastic ? 2 : 1));
    return most;
}

static double adamw_error(const struct ops_case *c, int64_t lines)
{
    struct ops_lines all = ops_lines_of(tensors_of(c) * count_of(c), lines * lines);
    double most = 0;

    for (int64_t i = 0; i < all.count && most <= 1; i++)
        most = error_of_element(c, most, ops_line(&all, i));
    return most;
}

static void norm_parts(const struct ops_case *c, struct ops_part parts[OPS_NMATRICES])
{
    parts[GRAD] = (struct ops_part){.count = tensors_of(c) * count_of(c), .dtype = c->dtype};
    parts[WEIGHT] = (struct ops_part){.count = 1, .result = true};
    parts[SCALE] = parts[WEIGHT];
}

static gpunvme_ops_status_t norm(const struct ops_case *c, const struct gpunvme_ops_exec *exec,
                                 size_t *nbytes, const char **name)
{
    struct gpunvme_grad_tensor tensors[MAX_TENSORS];
    struct gpunvme_grad_norm p = {.tensors = tensors,
                                  .ntensors = tensors_of(c),
                                  .norm = ops_case_at(c, WEIGHT),
                                  .scale = ops_case_at(c, SCALE),
                                  .max_norm = MAX_NORM,
                                  .dtype = c->dtype};

    for (int64_t k = 0; k < p.ntensors; k++)
        tensors[k] = (struct gpunvme_grad_tensor){count_of(c), at(c, GRAD, k, c->dtype)};
    return OPS_CALL(gpunvme_grad_norm, p);
}

/* All of it, whatever `lines` is: there is but one number. */
static double norm_error(const struct ops_case *c, int64_t lines)
{
    int64_t all = tensors_of(c) * count_of(c);
    double sum = 0, scale, most;

    (void)lines;
    for (int64_t i = 0; i < all; i++) {
        double x = ops_at(c, GRAD, c->dtype, i);

        sum += x * x;
    }
    scale = fmin(1, (double)MAX_NORM / (sqrt(sum) + 1e-6));
    most = ops_worst(0, ops_at(c, WEIGHT, GPUNVME_OPS_F32, 0), sqrt(sum), 1e-5 * sqrt(sum));
    return ops_worst(most, ops_at(c, SCALE, GPUNVME_OPS_F32, 0), scale, 1e-5 * scale);
}

const struct ops_memory_op ops_adamw_case = {.shape = {64, 1024, 1024},
                                             .parts = adamw_parts,
                                             .fill = adamw_fill,
                                             .call = adamw,
                                             .error = adamw_error};
const struct ops_memory_op ops_grad_norm_case = {
    .shape = {64, 1024, 1024}, .parts = norm_parts, .call = norm, .error = norm_error};
