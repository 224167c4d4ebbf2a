/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gpunvme ops: cases of SwiGLU: m rows of n columns.
 */
#include <math.h>

#include "ops_memory.h"

/* What the matrices are. */
enum {
    GATE = OPS_A,
    UP = OPS_B,
    Y = OPS_C, /* backwards grad_gate */
    GRAD_Y = OPS_GRAD_Y,
    GRAD_UP = OPS_GRAD_K,
};

static void parts(const struct ops_case *c, struct ops_part parts[OPS_NMATRICES])
{
    parts[GATE] = (struct ops_part){.count = c->shape.m * c->shape.n, .dtype = c->dtype};
    parts[UP] = parts[Y] = parts[GATE];
    parts[Y].result = true;
    if (c->op != GPUNVME_OPS_SWIGLU_BACKWARD)
        return;
    parts[GRAD_Y] = parts[GATE];
    parts[GRAD_UP] = parts[Y];
}

static gpunvme_ops_status_t forward(const struct ops_case *c, const struct gpunvme_ops_exec *exec,
                                    size_t *nbytes, const char **name)
{
    int64_t n = c->shape.n;
    struct gpunvme_swiglu p = {
        c->shape.m, n, ops_case_at(c, GATE), ops_case_at(c, UP), ops_case_at(c, Y), n, n, n,
        c->dtype,   0};

    return OPS_CALL(gpunvme_swiglu_forward, p);
}

static gpunvme_ops_status_t backward(const struct ops_case *c, const struct gpunvme_ops_exec *exec,
                                     size_t *nbytes, const char **name)
{
    int64_t n = c->shape.n;
    struct gpunvme_swiglu_grad p = {.rows = c->shape.m,
                                    .cols = n,
                                    .grad_y = ops_case_at(c, GRAD_Y),
                                    .gate = ops_case_at(c, GATE),
                                    .up = ops_case_at(c, UP),
                                    .grad_gate = ops_case_at(c, Y),
                                    .grad_up = ops_case_at(c, GRAD_UP),
                                    .ld_grad_y = n,
                                    .ld_gate = n,
                                    .ld_up = n,
                                    .ld_grad_gate = n,
                                    .ld_grad_up = n,
                                    .dtype = c->dtype};

    return OPS_CALL(gpunvme_swiglu_backward, p);
}

/* What f32 may lose, and a GPU that takes fewer instructions for 16 bits. */
static double share(const struct ops_case *c)
{
    return c->device == GPUNVME_OPS_CUDA && c->dtype != GPUNVME_OPS_F32 ? 0x1p-17 : 0x1p-20;
}

static double error_of_element(const struct ops_case *c, double most, int64_t i)
{
    double z = ops_at(c, GATE, c->dtype, i), up = ops_at(c, UP, c->dtype, i);
    double s = 1 / (1 + exp(-z)), y = z * s * up, g, of_up;

    if (c->op == GPUNVME_OPS_SWIGLU_FORWARD)
        return ops_worst(most, ops_at(c, Y, c->dtype, i), y,
                         share(c) * fabs(z * up) + ops_rounding(c->dtype, y));
    g = ops_at(c, GRAD_Y, c->dtype, i);
    of_up = g * z * s;
    y = g * up * (s + z * s * (1 - s));
    most = ops_worst(most, ops_at(c, Y, c->dtype, i), y,
                     share(c) * fabs(g * up) + ops_rounding(c->dtype, y));
    return ops_worst(most, ops_at(c, GRAD_UP, c->dtype, i), of_up,
                     share(c) * fabs(g * z) + ops_rounding(c->dtype, of_up));
}

static double error(const struct ops_case *c, int64_t lines)
{
    struct ops_lines all = ops_lines_of(c->shape.m * c->shape.n, lines * lines * 16);
    double most = 0;

    for (int64_t i = 0; i < all.count && most <= 1; i++)
        most = error_of_element(c, most, ops_line(&all, i));
    return most;
}

const struct ops_memory_op ops_swiglu_forward_case = {
    .shape = {8192, 14336, 1}, .parts = parts, .call = forward, .error = error};
const struct ops_memory_op ops_swiglu_backward_case = {
    .shape = {8192, 14336, 1}, .parts = parts, .call = backward, .error = error};
