/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The linear layer backward on the GPU: two products and a pass over dZ, or none where the first
 * product makes it. What they need in between lies in the workspace.
 */
#include <cuda_runtime_api.h>

#include "ops/cuda/sums.h"
#include "ops/linear/cuda.h"
#include "ops/linear/dz_product.h"

/* How the bias's gradient comes about. */
enum sums { SUMS_ATOMIC, SUMS_BY_COLUMN, SUMS_BY_WARPS, SUMS_WITH_DZ };

struct rung {
    enum products products;
    enum sums sums;
};

static const struct rung rungs[4] = {
    {PRODUCTS_NAIVE, SUMS_ATOMIC},
    {PRODUCTS_TILED, SUMS_BY_COLUMN},
    {PRODUCTS_BEST, SUMS_BY_WARPS},
    {PRODUCTS_BEST_OF_ALL, SUMS_WITH_DZ},
};

/* Where things are that backward needs in between. */
struct backward {
    const struct gpunvme_linear_grad *p;
    const struct rung *rung;
    const void *dz; /* grad_y itself without an activation */
    int64_t ld_dz;
    char *dz_memory; /* NULL then */
    float *sums;
    int64_t parts;  /* of sums for each column */
    int in_product; /* dZ is made by the kernel that makes grad_x of it */
    void *counters; /* for that */
    char *rest;
    size_t dz_nbytes, sums_nbytes, needs; /* the last: all before the rest */
};

/* grad_x = dZ W */
static struct cuda_product grad_x_product(const struct backward *x)
{
    const struct gpunvme_linear_grad *p = x->p;
    struct cuda_product product = {
        .m = p->rows,
        .n = p->in,
        .k = p->out,
        .batch = 1,
        .a = plain(x->dz, x->ld_dz),
        .b = plain(p->weight, ld_of(p->out, p->in, p->ldw)),
        .c = p->grad_x,
        .ldc = ld_of(p->rows, p->in, p->ld_grad_x),
        .alpha = 1,
        .dtype = p->dtype,
        .compute = p->compute,
        .out_dtype = p->dtype,
    };

    cuda_set_vectors(&product);
    return product;
}

/* grad_weight = dZ^T X, or added to */
static struct cuda_product grad_weight_product(const struct backward *x)
{
    const struct gpunvme_linear_grad *p = x->p;
    struct cuda_product product = {
        .m = p->out,
        .n = p->in,
        .k = p->rows,
        .batch = 1,
        .a = transposed(x->dz, x->ld_dz),
        .b = plain(p->x, ld_of(p->rows, p->in, p->ldx)),
        .c = p->grad_weight,
        .ldc = ld_of(p->out, p->in, p->ld_grad_weight),
        .alpha = 1,
        .beta = p->accumulate ? 1 : 0,
        .dtype = p->dtype,
        .compute = p->compute,
        .out_dtype = p->grad_dtype,
    };

    cuda_set_vectors(&product);
    return product;
}

static int aligned(const void *data, int64_t ld, int64_t nbytes)
{
    return (uintptr_t)data % (uintptr_t)nbytes == 0 && ld % 4 == 0;
}

static struct linear_dz dz_of(const struct backward *x)
{
    const struct gpunvme_linear_grad *p = x->p;
    int64_t four = 4 * (int64_t)gpunvme_ops_dtype_nbytes(p->dtype);
    struct linear_dz dz = {
        .rows = p->rows,
        .out = p->out,
        .grad_y = p->grad_y,
        .preact = p->preact,
        .ld_grad_y = ld_of(p->rows, p->out, p->ld_grad_y),
        .ld_preact = ld_of(p->rows, p->out, p->ld_preact),
        .activation = p->activation,
        .dtype = p->dtype,
        .dz = x->dz_memory,
        .ld_dz = x->ld_dz,
    };

    dz.vectors = aligned(dz.grad_y, dz.ld_grad_y, four) &&
                 (!dz.dz || aligned(dz.preact, dz.ld_preact, four));
    return dz;
}

/*
 * Could the kernel of the product grad_x make dZ, too, pointers aside? Hopper's must be the
 * product's rung, and it must read both operands as they lie in memory.
 */
static int may_be_in_product(const struct backward *x)
{
    const struct gpunvme_linear_grad *p = x->p;
    struct cuda_product product = grad_x_product(x);
    struct linear_dz dz = dz_of(x);

    dz.grad_y = dz.preact = dz.dz = NULL;
    return x->rung->sums == SUMS_WITH_DZ && x->dz_nbytes && linear_wants_x(p) && dz_suits(&dz) &&
           dz_fits(p->rows, p->out) &&
           engine_of(x->rung->products, &product) == &cuda_engines[CUDA_HOPPER] &&
           !cuda_workspace_hopper(&product);
}

static int is_aligned_for_it(const struct backward *x)
{
    struct cuda_product product = grad_x_product(x);
    struct linear_dz dz = dz_of(x);

    return !cuda_misaligned_hopper(&product) && dz_suits(&dz);
}

static struct backward backward_of(const struct ops_variant *variant,
                                   const struct gpunvme_linear_grad *p, void *workspace)
{
    struct backward x = {.p = p, .rung = variant->data, .dz = p->grad_y};
    size_t counters_nbytes = 0;
    char *at = workspace;
    int64_t parts;
    int may_be;

    x.ld_dz = ld_of(p->rows, p->out, p->ld_grad_y);
    if (p->activation != GPUNVME_OPS_ACT_NONE) {
        x.ld_dz = (p->out + 15) / 16 * 16;
        x.dz_nbytes = ops_workspace_part(1, p->rows, x.ld_dz, gpunvme_ops_dtype_nbytes(p->dtype));
        x.dz = x.dz_memory = at;
    }
    may_be = may_be_in_product(&x);
    x.in_product = may_be && is_aligned_for_it(&x);
    if (x.in_product)
        x.parts = dz_parts(p->rows);
    else if (x.rung->sums == SUMS_BY_WARPS || x.rung->sums == SUMS_WITH_DZ)
        x.parts = linear_parts(p->rows);
    else
        x.parts = 1;
    /* How much is needed shall not depend on where things are. */
    parts = may_be ? dz_parts(p->rows) : x.parts;
    if (p->grad_bias)
        x.sums_nbytes = ops_workspace_part(1, parts, p->out, sizeof(float));
    if (may_be)
        counters_nbytes = ops_workspace_part(1, 1, 1, dz_counters_nbytes(p->rows, p->out));
    x.needs = x.dz_nbytes + x.sums_nbytes + counters_nbytes;
    if (!at)
        return x;
    x.sums = p->grad_bias ? (float *)(void *)(at + x.dz_nbytes) : NULL;
    x.counters = at + x.dz_nbytes + x.sums_nbytes;
    x.rest = at + x.needs;
    return x;
}

static size_t workspace(const struct ops_variant *variant, const struct ops_call *call)
{
    const struct gpunvme_linear_grad *p = call->descriptor;
    struct backward x = backward_of(variant, p, NULL);
    size_t most = 0, nbytes;

    if (linear_wants_x(p)) {
        struct cuda_product product = grad_x_product(&x);

        most = cuda_product_workspace(engine_of(x.rung->products, &product), &product);
    }
    if (linear_wants_weight(p)) {
        struct cuda_product product = grad_weight_product(&x);

        nbytes = cuda_product_workspace(engine_of(x.rung->products, &product), &product);
        most = nbytes > most ? nbytes : most;
    }
    return x.needs + most;
}

/* dZ as grad_y of a layer without activation: only sums are wanted of it. */
static struct linear_dz sums_of_dz(const struct backward *x)
{
    int64_t four = 4 * (int64_t)gpunvme_ops_dtype_nbytes(x->p->dtype);

    return (struct linear_dz){
        .rows = x->p->rows,
        .out = x->p->out,
        .grad_y = x->dz,
        .ld_grad_y = x->ld_dz,
        .dtype = x->p->dtype,
        .sums = x->sums,
        .vectors = aligned(x->dz, x->ld_dz, four),
    };
}

/* dZ and the sums of its columns, in one pass or two, for at least one row. */
static gpunvme_ops_status_t make_dz(const struct backward *x, void *stream)
{
    struct linear_dz dz = dz_of(x), sums = sums_of_dz(x);
    gpunvme_ops_status_t status = GPUNVME_OPS_OK;

    if (x->rung->sums == SUMS_ATOMIC) {
        dz.sums = x->sums;
        if (dz.sums)
            status =
                cuda_status(cudaMemsetAsync(dz.sums, 0, x->sums_nbytes, stream), "clearing sums");
        if (!status && (dz.dz || dz.sums))
            status = linear_dz_atomic(&dz, stream);
        return status;
    }
    if (x->rung->sums == SUMS_WITH_DZ) {
        dz.sums = x->sums;
        return dz.dz || dz.sums ? linear_dz_rows(&dz, stream) : GPUNVME_OPS_OK;
    }
    if (dz.dz)
        status = linear_dz_rows(&dz, stream);
    if (status || !x->sums)
        return status;
    return x->rung->sums == SUMS_BY_COLUMN ? linear_sum_columns(&sums, stream)
                                           : linear_dz_rows(&sums, stream);
}

static gpunvme_ops_status_t finish_bias(const struct backward *x, void *stream)
{
    const struct gpunvme_linear_grad *p = x->p;
    struct cuda_sums sums = {.sums = x->sums,
                             .parts = p->rows ? x->parts : 0,
                             .out = p->out,
                             .first = p->out,
                             .total = {p->grad_bias},
                             .dtype = p->grad_dtype,
                             .accumulate = p->accumulate};

    return cuda_finish_sums(&sums, stream);
}

/* grad_x and grad_bias, and dZ before them or with them. */
static gpunvme_ops_status_t make_all_but_grad_weight(const struct backward *x, void *stream)
{
    const struct gpunvme_linear_grad *p = x->p;
    struct cuda_product product = grad_x_product(x);
    gpunvme_ops_status_t status = GPUNVME_OPS_OK;

    if (x->in_product) {
        struct linear_dz dz = dz_of(x);
        struct dz_bias bias = {p->grad_bias, p->grad_dtype, p->accumulate};

        dz.sums = x->sums;
        return dz_multiply(&product, &dz, &bias, x->counters, stream);
    }
    if (p->rows && p->out)
        status = make_dz(x, stream);
    if (!status && p->grad_bias && p->out)
        status = finish_bias(x, stream);
    if (!status && linear_wants_x(p))
        status =
            cuda_run_product(engine_of(x->rung->products, &product), &product, x->rest, stream);
    return status;
}

static gpunvme_ops_status_t run(const struct ops_variant *variant, const struct ops_call *call)
{
    const struct gpunvme_linear_grad *p = call->descriptor;
    struct backward x = backward_of(variant, p, call->exec->workspace);
    gpunvme_ops_status_t status = make_all_but_grad_weight(&x, call->exec->stream);

    if (!status && linear_wants_weight(p)) {
        struct cuda_product product = grad_weight_product(&x);

        status = cuda_run_product(engine_of(x.rung->products, &product), &product, x.rest,
                                  call->exec->stream);
    }
    return status;
}

static int rank(const struct ops_variant *variant, const struct ops_call *call)
{
    (void)call;
    return 1 + (int)((const struct rung *)variant->data - rungs);
}

#define VARIANT(index, name_, deterministic_, changes_)                                            \
    {                                                                                              \
        .name = name_, .needs = CUDA_SM80, .changes = changes_, .dtypes = OPS_ALL_DTYPES,          \
        .computes = OPS_ALL_COMPUTES, .deterministic = deterministic_, .min_sm = 80, .rank = rank, \
        .workspace = workspace, .run = run, .data = &rungs[index]                                  \
    }

/* dZ has the type of the matrices in all of them. */
static const struct ops_variant variants[] = {
    VARIANT(0, "naive", 0,
            "naive products; the bias's gradient by atomic additions, in another order each run; "
            "dZ is rounded to the matrices' type"),
    VARIANT(1, "atomic_free", 1,
            "tiled products; a thread for each column sums the bias's gradient over all rows"),
    VARIANT(2, "warp_reduced", 1,
            "the best products but Hopper's; warps sum rows of vectors and reduce in shared "
            "memory"),
    VARIANT(3, "fused", 1,
            "dZ and its sums in one pass over grad_y and preact, Hopper's products where they "
            "are"),
};

const struct ops_ladder linear_backward_cuda = OPS_LADDER(variants);
