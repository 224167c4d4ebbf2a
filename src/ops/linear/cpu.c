/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The linear layer on the CPU, with any engine: products with an epilogue forwards, two products
 * and a sum over rows backwards.
 */
#include "ops/cpu/dtype.h"
#include "ops/cpu/product.h"
#include "ops/linear/linear.h"

#define SUM_COLS 64 /* sums of grad_bias that are kept on the stack at once */

static struct cpu_product forward_product(const struct gpunvme_linear *p,
                                          struct cpu_epilogue *epilogue)
{
    *epilogue = (struct cpu_epilogue){p->bias, p->preact, p->ld_preact, p->activation, p->dtype};
    return (struct cpu_product){
        .m = p->rows,
        .n = p->out,
        .k = p->in,
        .a = {p->x, p->ldx, 1, p->dtype},
        .b = {p->weight, 1, p->ldw, p->dtype},
        .c = p->y,
        .ldc = p->ldy,
        .dtype = p->dtype,
        .alpha = 1,
        .epilogue = epilogue,
    };
}

static size_t forward_workspace(const struct ops_variant *variant, const struct ops_call *call)
{
    struct cpu_epilogue epilogue;
    struct cpu_product x = forward_product(call->descriptor, &epilogue);

    return cpu_product_workspace(variant->data, &x, cpu_threads_for(variant->data, call->exec));
}

static gpunvme_ops_status_t forward_run(const struct ops_variant *variant,
                                        const struct ops_call *call)
{
    struct cpu_epilogue epilogue;
    struct cpu_product x = forward_product(call->descriptor, &epilogue);

    cpu_run_product(variant->data, &x, cpu_threads_for(variant->data, call->exec),
                    call->exec->workspace);
    return GPUNVME_OPS_OK;
}

/* dZ: grad_y itself without an activation, else in f32 at the front of the workspace. */
struct backward {
    const struct gpunvme_linear_grad *p;
    float *product; /* what grad_y is multiplied out to; NULL without an activation */
    struct cpu_operand dz;
};

static size_t dz_nbytes(const struct gpunvme_linear_grad *p)
{
    return p->activation == GPUNVME_OPS_ACT_NONE
               ? 0
               : ops_workspace_part(1, p->rows, p->out, sizeof(float));
}

static struct backward backward_of(const struct gpunvme_linear_grad *p, void *workspace)
{
    struct backward x = {p, NULL, {p->grad_y, p->ld_grad_y, 1, p->dtype}};

    if (p->activation != GPUNVME_OPS_ACT_NONE) {
        x.product = workspace;
        x.dz = (struct cpu_operand){workspace, p->out, 1, GPUNVME_OPS_F32};
    }
    return x;
}

/* grad_x = dZ W */
static struct cpu_product grad_x_product(const struct backward *x)
{
    const struct gpunvme_linear_grad *p = x->p;

    return (struct cpu_product){
        .m = p->rows,
        .n = p->in,
        .k = p->out,
        .a = x->dz,
        .b = {p->weight, p->ldw, 1, p->dtype},
        .c = p->grad_x,
        .ldc = p->ld_grad_x,
        .dtype = p->dtype,
        .alpha = 1,
    };
}

/* grad_weight = dZ^T X, or added to */
static struct cpu_product grad_weight_product(const struct backward *x)
{
    const struct gpunvme_linear_grad *p = x->p;

    return (struct cpu_product){
        .m = p->out,
        .n = p->in,
        .k = p->rows,
        .a = {x->dz.data, x->dz.cs, x->dz.rs, x->dz.dtype},
        .b = {p->x, p->ldx, 1, p->dtype},
        .c = p->grad_weight,
        .ldc = p->ld_grad_weight,
        .dtype = p->grad_dtype,
        .alpha = 1,
        .beta = p->accumulate ? 1 : 0,
    };
}

static size_t backward_workspace(const struct ops_variant *variant, const struct ops_call *call)
{
    const struct gpunvme_linear_grad *p = call->descriptor;
    struct backward x = backward_of(p, NULL);
    int threads = cpu_threads_for(variant->data, call->exec);
    size_t most = 0;

    if (linear_wants_x(p)) {
        struct cpu_product product = grad_x_product(&x);

        most = cpu_product_workspace(variant->data, &product, threads);
    }
    if (linear_wants_weight(p)) {
        struct cpu_product product = grad_weight_product(&x);
        size_t nbytes = cpu_product_workspace(variant->data, &product, threads);

        most = nbytes > most ? nbytes : most;
    }
    return dz_nbytes(p) + most;
}

static int64_t begin(int64_t n, int index, int count)
{
    return n / count * index + (index < n % count ? index : n % count);
}

/* A share of dZ's rows. */
static void multiply_out(void *arg, int index, int count)
{
    const struct backward *x = arg;
    const struct gpunvme_linear_grad *p = x->p;
    int64_t last = begin(p->rows, index + 1, count);

    for (int64_t i = begin(p->rows, index, count); i < last; i++)
        for (int64_t j = 0; j < p->out; j++)
            x->product[i * p->out + j] =
                cpu_load(p->grad_y, i * p->ld_grad_y + j, p->dtype) *
                cpu_activate_grad(p->activation,
                                  cpu_load(p->preact, i * p->ld_preact + j, p->dtype));
}

/* Sums over rows, in f64, of columns j … j + cols. */
static void sum_columns(const struct backward *x, int64_t j, int64_t cols)
{
    const struct gpunvme_linear_grad *p = x->p;
    double sums[SUM_COLS] = {0};

    for (int64_t i = 0; i < p->rows; i++)
        for (int64_t c = 0; c < cols; c++)
            sums[c] += (double)cpu_load(x->dz.data, i * x->dz.rs + j + c, x->dz.dtype);
    for (int64_t c = 0; c < cols; c++) {
        if (p->accumulate)
            sums[c] += (double)cpu_load(p->grad_bias, j + c, p->grad_dtype);
        cpu_store(p->grad_bias, j + c, p->grad_dtype, (float)sums[c]);
    }
}

static void sum_share(void *arg, int index, int count)
{
    const struct backward *x = arg;
    int64_t pieces = (x->p->out + SUM_COLS - 1) / SUM_COLS;
    int64_t last = begin(pieces, index + 1, count);

    for (int64_t i = begin(pieces, index, count); i < last; i++) {
        int64_t left = x->p->out - i * SUM_COLS;

        sum_columns(x, i * SUM_COLS, left < SUM_COLS ? left : SUM_COLS);
    }
}

static gpunvme_ops_status_t backward_run(const struct ops_variant *variant,
                                         const struct ops_call *call)
{
    const struct gpunvme_linear_grad *p = call->descriptor;
    struct backward x = backward_of(p, call->exec->workspace);
    void *rest = call->exec->workspace ? (char *)call->exec->workspace + dz_nbytes(p) : NULL;
    int threads = cpu_threads_for(variant->data, call->exec);

    if (x.product)
        cpu_parallel(threads, multiply_out, &x);
    if (linear_wants_x(p)) {
        struct cpu_product product = grad_x_product(&x);

        cpu_run_product(variant->data, &product, threads, rest);
    }
    if (linear_wants_weight(p)) {
        struct cpu_product product = grad_weight_product(&x);

        cpu_run_product(variant->data, &product, threads, rest);
    }
    if (p->grad_bias && p->out)
        cpu_parallel(threads, sum_share, &x);
    return GPUNVME_OPS_OK;
}

static const struct ops_variant forward[] = CPU_LADDER(forward_workspace, forward_run, NULL);
static const struct ops_variant backward[] = CPU_LADDER(backward_workspace, backward_run, NULL);

const struct ops_ladder linear_forward_cpu = OPS_LADDER(forward);
const struct ops_ladder linear_backward_cpu = OPS_LADDER(backward);
