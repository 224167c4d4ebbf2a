/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The linear layer on the GPU: a product with an epilogue forwards, two products and a pass over
 * dZ backwards, or none where the first product makes it. What they need in between lies in the
 * workspace.
 */
#include <cuda_runtime_api.h>
#include <limits.h>

#include "ops/linear/dz_product.h"
#include "ops/linear/linear.h"
#include "ops/linear/passes.h"
#include "ops/matmul/product.h"

enum products {
    PRODUCTS_NAIVE,
    PRODUCTS_TILED,
    PRODUCTS_BEST,       /* without Hopper's own instructions */
    PRODUCTS_BEST_OF_ALL /* with them, where the device has them */
};

struct forward_rung {
    enum products products;
    int fused; /* bias and activation in the product's kernel */
    int needs_hopper;
    int shaped; /* only for shapes that want one of the last two rungs */
};

/* How the bias's gradient comes about. */
enum sums { SUMS_ATOMIC, SUMS_BY_COLUMN, SUMS_BY_WARPS, SUMS_WITH_DZ };

struct backward_rung {
    enum products products;
    enum sums sums;
};

static const struct forward_rung forward_rungs[5] = {
    {PRODUCTS_NAIVE, 1, 0, 0},       {PRODUCTS_BEST_OF_ALL, 0, 0, 0}, {PRODUCTS_BEST, 1, 0, 0},
    {PRODUCTS_BEST_OF_ALL, 1, 1, 0}, {PRODUCTS_BEST_OF_ALL, 1, 0, 1},
};

static const struct backward_rung backward_rungs[4] = {
    {PRODUCTS_NAIVE, SUMS_ATOMIC},
    {PRODUCTS_TILED, SUMS_BY_COLUMN},
    {PRODUCTS_BEST, SUMS_BY_WARPS},
    {PRODUCTS_BEST_OF_ALL, SUMS_WITH_DZ},
};

static const struct cuda_engine *engine_of(enum products products, const struct cuda_product *p)
{
    switch (products) {
    case PRODUCTS_NAIVE:
        return &cuda_engines[CUDA_NAIVE];
    case PRODUCTS_TILED:
        return &cuda_engines[CUDA_TILED];
    default:
        return cuda_best_engine(p, products == PRODUCTS_BEST_OF_ALL ? cuda_level() : CUDA_PLAIN);
    }
}

/* The leading dimension of a single row may be anything. */
static int64_t ld_of(int64_t rows, int64_t cols, int64_t ld)
{
    return rows > 1 ? ld : (cols + 15) / 16 * 16;
}

/* A row-major matrix as it is, or its transpose. */
static struct cuda_operand plain(const void *data, int64_t ld)
{
    return (struct cuda_operand){.data = data, .rs = ld, .cs = 1};
}

static struct cuda_operand transposed(const void *data, int64_t ld)
{
    return (struct cuda_operand){.data = data, .rs = 1, .cs = ld};
}

static struct cuda_product forward_product(const struct gpunvme_linear *p)
{
    struct cuda_product x = {
        .m = p->rows,
        .n = p->out,
        .k = p->in,
        .batch = 1,
        .a = plain(p->x, ld_of(p->rows, p->in, p->ldx)),
        .b = transposed(p->weight, ld_of(p->out, p->in, p->ldw)),
        .c = p->y,
        .ldc = ld_of(p->rows, p->out, p->ldy),
        .bias = p->bias,
        .preact = p->preact,
        .ld_preact = ld_of(p->rows, p->out, p->ld_preact),
        .alpha = 1,
        .dtype = p->dtype,
        .compute = p->compute,
        .out_dtype = p->dtype,
        .activation = p->activation,
    };

    cuda_set_vectors(&x);
    return x;
}

/* The product alone, to f32 in the workspace, where it is not fused. */
static struct cuda_product product_alone(const struct cuda_product *fused, float *sums)
{
    struct cuda_product x = *fused;

    x.c = sums;
    x.ldc = (fused->n + 3) / 4 * 4;
    x.out_dtype = GPUNVME_OPS_F32;
    x.bias = NULL;
    x.preact = NULL;
    x.activation = GPUNVME_OPS_ACT_NONE;
    cuda_set_vectors(&x);
    return x;
}

static size_t sums_nbytes(const struct cuda_product *p)
{
    return cuda_workspace_part(p->m, (p->n + 3) / 4 * 4 * (int64_t)sizeof(float));
}

/* The rung that is Hopper's by name is so for any shape. */
static const struct cuda_engine *forward_engine(const struct forward_rung *rung,
                                                const struct cuda_product *p)
{
    return rung->needs_hopper ? &cuda_engines[CUDA_HOPPER] : engine_of(rung->products, p);
}

static size_t forward_workspace(const struct ops_variant *variant, const struct ops_call *call)
{
    const struct forward_rung *rung = variant->data;
    struct cuda_product p = forward_product(call->descriptor);
    size_t nbytes = cuda_product_workspace(forward_engine(rung, &p), &p);

    return rung->fused ? nbytes : nbytes + sums_nbytes(&p);
}

static gpunvme_ops_status_t forward_run(const struct ops_variant *variant,
                                        const struct ops_call *call)
{
    const struct forward_rung *rung = variant->data;
    struct cuda_product p = forward_product(call->descriptor), alone;
    const struct cuda_engine *engine = forward_engine(rung, &p);
    gpunvme_ops_status_t status;

    if (rung->fused)
        return cuda_run_product(engine, &p, call->exec->workspace, call->exec->stream);
    alone = product_alone(&p, call->exec->workspace);
    status = cuda_run_product(engine, &alone, (char *)call->exec->workspace + sums_nbytes(&p),
                              call->exec->stream);
    return status ? status : linear_finish(&p, alone.c, alone.ldc, call->exec->stream);
}

/* Where things are that backward needs in between. */
struct backward {
    const struct gpunvme_linear_grad *p;
    const struct backward_rung *rung;
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

static int wants_x(const struct gpunvme_linear_grad *p)
{
    return p->grad_x && p->rows && p->in;
}

static int wants_weight(const struct gpunvme_linear_grad *p)
{
    return p->grad_weight && p->out && p->in;
}

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
    return x->rung->sums == SUMS_WITH_DZ && x->dz_nbytes && wants_x(p) && dz_suits(&dz) &&
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
    int64_t size = (int64_t)gpunvme_ops_dtype_nbytes(p->dtype);
    size_t counters_nbytes = 0;
    char *at = workspace;
    int64_t parts;
    int may_be;

    x.ld_dz = ld_of(p->rows, p->out, p->ld_grad_y);
    if (p->activation != GPUNVME_OPS_ACT_NONE) {
        x.ld_dz = (p->out + 15) / 16 * 16;
        x.dz_nbytes = cuda_workspace_part(p->rows, x.ld_dz * size);
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
        x.sums_nbytes = cuda_workspace_part(parts, p->out * (int64_t)sizeof(float));
    if (may_be)
        counters_nbytes = cuda_workspace_part(1, (int64_t)dz_counters_nbytes(p->rows, p->out));
    x.needs = x.dz_nbytes + x.sums_nbytes + counters_nbytes;
    if (!at)
        return x;
    x.sums = p->grad_bias ? (float *)(void *)(at + x.dz_nbytes) : NULL;
    x.counters = at + x.dz_nbytes + x.sums_nbytes;
    x.rest = at + x.needs;
    return x;
}

static size_t backward_workspace(const struct ops_variant *variant, const struct ops_call *call)
{
    const struct gpunvme_linear_grad *p = call->descriptor;
    struct backward x = backward_of(variant, p, NULL);
    size_t most = 0, nbytes;

    if (wants_x(p)) {
        struct cuda_product product = grad_x_product(&x);

        most = cuda_product_workspace(engine_of(x.rung->products, &product), &product);
    }
    if (wants_weight(p)) {
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
        status = linear_finish_bias(x->sums, p->rows ? x->parts : 0, p->out, p->grad_bias,
                                    p->grad_dtype, p->accumulate, stream);
    if (!status && wants_x(p))
        status =
            cuda_run_product(engine_of(x->rung->products, &product), &product, x->rest, stream);
    return status;
}

static gpunvme_ops_status_t backward_run(const struct ops_variant *variant,
                                         const struct ops_call *call)
{
    const struct gpunvme_linear_grad *p = call->descriptor;
    struct backward x = backward_of(variant, p, call->exec->workspace);
    gpunvme_ops_status_t status = make_all_but_grad_weight(&x, call->exec->stream);

    if (!status && wants_weight(p)) {
        struct cuda_product product = grad_weight_product(&x);

        status = cuda_run_product(engine_of(x.rung->products, &product), &product, x.rest,
                                  call->exec->stream);
    }
    return status;
}

static int rank_forward(const struct ops_variant *variant, const struct ops_call *call)
{
    struct cuda_product product = forward_product(call->descriptor);
    const struct forward_rung *rung = variant->data;
    int best = (int)(cuda_best_engine(&product, cuda_level()) - cuda_engines);

    if (!product.k && rung->products == PRODUCTS_NAIVE)
        return INT_MAX;
    if ((rung->needs_hopper && best != CUDA_HOPPER) || (rung->shaped && best <= CUDA_HOPPER))
        return 0;
    return 1 + (int)(rung - forward_rungs);
}

static gpunvme_ops_status_t suits_forward(const struct ops_variant *variant,
                                          const struct ops_call *call)
{
    struct cuda_product product = forward_product(call->descriptor);
    const struct forward_rung *rung = variant->data;

    if (rung->needs_hopper && !cuda_suits_hopper(&product))
        return ops_fail(GPUNVME_OPS_ERR_UNSUPPORTED,
                        "variant '%s' takes sizes up to 2^30 and less than 2^31 tiles of C",
                        variant->name);
    if (call->any_pointers || !(rung->needs_hopper || rung->shaped))
        return GPUNVME_OPS_OK;
    return cuda_check_aligned(variant->name, forward_engine(rung, &product), &product);
}

static int rank_backward(const struct ops_variant *variant, const struct ops_call *call)
{
    (void)call;
    return 1 + (int)((const struct backward_rung *)variant->data - backward_rungs);
}

#define FORWARD(index, name_, needs_, sm_, max_sm_, computes_, changes_)                           \
    {                                                                                              \
        .name = name_, .needs = needs_, .changes = changes_, .dtypes = OPS_ALL_DTYPES,             \
        .computes = computes_, .deterministic = 1, .min_sm = sm_, .max_sm = max_sm_,               \
        .suits = suits_forward, .rank = rank_forward, .workspace = forward_workspace,              \
        .run = forward_run, .data = &forward_rungs[index]                                          \
    }

static const struct ops_variant forward[] = {
    FORWARD(0, "naive", CUDA_SM80, 80, 0, OPS_ALL_COMPUTES,
            "the naive product, whose threads add the bias and apply the activation"),
    FORWARD(1, "unfused", CUDA_SM80, 80, 0, OPS_ALL_COMPUTES,
            "the best product into f32, then a pass for bias and activation"),
    FORWARD(2, "fused", CUDA_SM80, 80, 0, OPS_ALL_COMPUTES,
            "bias and activation before sums leave the coarsened or tensor cores' product"),
    FORWARD(3, "persistent", CUDA_SM90A, CUDA_ONLY_90A, CUDA_ONLY_90A,
            1u << GPUNVME_OPS_COMPUTE_TF32,
            "the same in Hopper's product: blocks stay, and results of a tile leave while the next "
            "one's operands come"),
    FORWARD(4, "shaped", CUDA_SM90, 90, 0, OPS_ALL_COMPUTES,
            "the product that the shape wants: few rows at the speed of memory, narrower tiles, k "
            "in pieces"),
};

#define BACKWARD(index, name_, deterministic_, changes_)                                           \
    {                                                                                              \
        .name = name_, .needs = CUDA_SM80, .changes = changes_, .dtypes = OPS_ALL_DTYPES,          \
        .computes = OPS_ALL_COMPUTES, .deterministic = deterministic_, .min_sm = 80,               \
        .rank = rank_backward, .workspace = backward_workspace, .run = backward_run,               \
        .data = &backward_rungs[index]                                                             \
    }

/* dZ has the type of the matrices in all of them. */
static const struct ops_variant backward[] = {
    BACKWARD(0, "naive", 0,
             "naive products; the bias's gradient by atomic additions, in another order each run; "
             "dZ is rounded to the matrices' type"),
    BACKWARD(1, "atomic_free", 1,
             "tiled products; a thread for each column sums the bias's gradient over all rows"),
    BACKWARD(2, "warp_reduced", 1,
             "the best products but Hopper's; warps sum rows of vectors and reduce in shared "
             "memory"),
    BACKWARD(3, "fused", 1,
             "dZ and its sums in one pass over grad_y and preact, Hopper's products where they "
             "are"),
};

const struct ops_ladder linear_forward_cuda = OPS_LADDER(forward);
const struct ops_ladder linear_backward_cuda = OPS_LADDER(backward);
