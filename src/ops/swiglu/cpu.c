/* SPDX-License-Identifier: BSD-3-Clause
 *
 * SwiGLU on the CPU. A call has pieces of rows on the stack, and needs no workspace.
 */
#include "ops/cpu/rows.h"
#include "ops/swiglu/swiglu.h"

#define PIECE 512

struct work {
    const void *p; /* the descriptor */
    int naive;
};

static void forward_naive(const struct gpunvme_swiglu *p, int64_t i)
{
    for (int64_t j = 0; j < p->cols; j++) {
        double z = (double)cpu_load(p->gate, i * p->ld_gate + j, p->dtype);
        double up = (double)cpu_load(p->up, i * p->ld_up + j, p->dtype);

        cpu_store(p->y, i * p->ldy + j, p->dtype, (float)(z / (1 + exp(-z)) * up));
    }
}

static void forward_piece(const struct gpunvme_swiglu *p, int64_t i, int64_t j, int64_t n)
{
    float gate[PIECE], up[PIECE];

    cpu_load_row(p->gate, i * p->ld_gate + j, p->dtype, n, gate);
    cpu_load_row(p->up, i * p->ld_up + j, p->dtype, n, up);
    for (int64_t e = 0; e < n; e++)
        up[e] *= cpu_activate(GPUNVME_OPS_ACT_SILU, gate[e]);
    cpu_store_row(p->y, i * p->ldy + j, p->dtype, n, up);
}

static void forward_rows(void *arg, int index, int count)
{
    const struct work *x = arg;
    const struct gpunvme_swiglu *p = x->p;

    for (int64_t i = index; i < p->rows; i += count) {
        if (x->naive)
            forward_naive(p, i);
        for (int64_t j = 0; j < p->cols && !x->naive; j += PIECE)
            forward_piece(p, i, j, p->cols - j < PIECE ? p->cols - j : PIECE);
    }
}

static gpunvme_ops_status_t forward_run(const struct ops_variant *variant,
                                        const struct ops_call *call)
{
    struct work x = {call->descriptor, cpu_rows_naive(variant)};

    cpu_parallel(cpu_rows_threads(variant, call), forward_rows, &x);
    return GPUNVME_OPS_OK;
}

static const struct ops_variant forward[] =
    CPU_ROWS_LADDER(NULL, forward_run, "one element at a time, in f64",
                    "pieces of 512 elements are converted to f32 and back in vectors");

const struct ops_ladder swiglu_forward_cpu = OPS_LADDER(forward);

static void backward_naive(const struct gpunvme_swiglu_grad *p, int64_t i)
{
    for (int64_t j = 0; j < p->cols; j++) {
        double g = (double)cpu_load(p->grad_y, i * p->ld_grad_y + j, p->dtype);
        double z = (double)cpu_load(p->gate, i * p->ld_gate + j, p->dtype);
        double up = (double)cpu_load(p->up, i * p->ld_up + j, p->dtype);
        double e = exp(-fabs(z)), bump = e / ((1 + e) * (1 + e)), s = 1 / (1 + exp(-z));

        cpu_store(p->grad_gate, i * p->ld_grad_gate + j, p->dtype,
                  (float)(g * up * (s + (bump > 0 ? z * bump : 0))));
        cpu_store(p->grad_up, i * p->ld_grad_up + j, p->dtype, (float)(g * z * s));
    }
}

static void backward_piece(const struct gpunvme_swiglu_grad *p, int64_t i, int64_t j, int64_t n)
{
    float grad[PIECE], gate[PIECE], up[PIECE];

    cpu_load_row(p->grad_y, i * p->ld_grad_y + j, p->dtype, n, grad);
    cpu_load_row(p->gate, i * p->ld_gate + j, p->dtype, n, gate);
    cpu_load_row(p->up, i * p->ld_up + j, p->dtype, n, up);
    for (int64_t e = 0; e < n; e++) {
        up[e] *= grad[e] * cpu_activate_grad(GPUNVME_OPS_ACT_SILU, gate[e]);
        grad[e] *= cpu_activate(GPUNVME_OPS_ACT_SILU, gate[e]);
    }
    cpu_store_row(p->grad_gate, i * p->ld_grad_gate + j, p->dtype, n, up);
    cpu_store_row(p->grad_up, i * p->ld_grad_up + j, p->dtype, n, grad);
}

static void backward_rows(void *arg, int index, int count)
{
    const struct work *x = arg;
    const struct gpunvme_swiglu_grad *p = x->p;

    for (int64_t i = index; i < p->rows; i += count) {
        if (x->naive)
            backward_naive(p, i);
        for (int64_t j = 0; j < p->cols && !x->naive; j += PIECE)
            backward_piece(p, i, j, p->cols - j < PIECE ? p->cols - j : PIECE);
    }
}

static gpunvme_ops_status_t backward_run(const struct ops_variant *variant,
                                         const struct ops_call *call)
{
    struct work x = {call->descriptor, cpu_rows_naive(variant)};

    cpu_parallel(cpu_rows_threads(variant, call), backward_rows, &x);
    return GPUNVME_OPS_OK;
}

static const struct ops_variant backward[] =
    CPU_ROWS_LADDER(NULL, backward_run, "one element at a time, in f64",
                    "pieces of 512 elements are converted to f32 and back in vectors");

const struct ops_ladder swiglu_backward_cpu = OPS_LADDER(backward);
