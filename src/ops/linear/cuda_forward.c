/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The linear layer forward on the GPU: a product with an epilogue, or a pass after it.
 */
#include <limits.h>
#include <string.h>

#include "ops/linear/cuda.h"

struct rung {
    enum products products;
    int fused; /* bias and activation in the product's kernel */
    int needs_hopper;
    int shaped; /* only for shapes that want one of the last two rungs */
};

static const struct rung rungs[5] = {
    {PRODUCTS_NAIVE, 1, 0, 0},       {PRODUCTS_BEST_OF_ALL, 0, 0, 0}, {PRODUCTS_BEST, 1, 0, 0},
    {PRODUCTS_BEST_OF_ALL, 1, 1, 0}, {PRODUCTS_BEST_OF_ALL, 1, 0, 1},
};

static struct cuda_product make_product(const struct gpunvme_linear *p)
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

/* A call asks for its product several times, from the choice of the variant to its run. */
static struct cuda_product forward_product(const struct gpunvme_linear *p)
{
    static _Thread_local struct {
        struct gpunvme_linear descriptor;
        struct cuda_product product;
    } last; /* of nothing at first, which no call has */

    if (memcmp(&last.descriptor, p, sizeof(*p)) != 0) {
        last.product = make_product(p);
        memcpy(&last.descriptor, p, sizeof(*p));
    }
    return last.product;
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
    return ops_workspace_part(1, p->m, (p->n + 3) / 4 * 4, sizeof(float));
}

/* The rung that is Hopper's by name is so for any shape. */
static const struct cuda_engine *forward_engine(const struct rung *rung,
                                                const struct cuda_product *p)
{
    return rung->needs_hopper ? &cuda_engines[CUDA_HOPPER] : engine_of(rung->products, p);
}

static size_t workspace(const struct ops_variant *variant, const struct ops_call *call)
{
    const struct rung *rung = variant->data;
    struct cuda_product p = forward_product(call->descriptor);
    size_t nbytes = cuda_product_workspace(forward_engine(rung, &p), &p);

    return rung->fused ? nbytes : nbytes + sums_nbytes(&p);
}

static gpunvme_ops_status_t run(const struct ops_variant *variant, const struct ops_call *call)
{
    const struct rung *rung = variant->data;
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

static int rank(const struct ops_variant *variant, const struct ops_call *call)
{
    struct cuda_product product = forward_product(call->descriptor);
    const struct rung *rung = variant->data;
    int best = (int)(cuda_best_engine(&product, cuda_level()) - cuda_engines);

    if (!product.k && rung->products == PRODUCTS_NAIVE)
        return INT_MAX;
    if (rung->needs_hopper || rung->shaped)
        return (rung->shaped ? best > CUDA_HOPPER : best == CUDA_HOPPER) ? INT_MAX : 0;
    return 1 + (int)(rung - rungs);
}

static gpunvme_ops_status_t suits(const struct ops_variant *variant, const struct ops_call *call)
{
    struct cuda_product product = forward_product(call->descriptor);
    const struct rung *rung = variant->data;

    if (rung->needs_hopper && !cuda_suits_hopper(&product))
        return ops_fail(GPUNVME_OPS_ERR_UNSUPPORTED,
                        "variant '%s' takes sizes up to 2^30 and less than 2^31 tiles of C",
                        variant->name);
    if (call->any_pointers || !(rung->needs_hopper || rung->shaped))
        return GPUNVME_OPS_OK;
    return cuda_check_aligned(variant->name, forward_engine(rung, &product), &product);
}

#define VARIANT(index, name_, needs_, sm_, max_sm_, computes_, changes_)                           \
    {                                                                                              \
        .name = name_, .needs = needs_, .changes = changes_, .dtypes = OPS_ALL_DTYPES,             \
        .computes = computes_, .deterministic = 1, .min_sm = sm_, .max_sm = max_sm_,               \
        .suits = suits, .rank = rank, .workspace = workspace, .run = run, .data = &rungs[index]    \
    }

static const struct ops_variant variants[] = {
    VARIANT(0, "naive", CUDA_SM80, 80, 0, OPS_ALL_COMPUTES,
            "the naive product, whose threads add the bias and apply the activation"),
    VARIANT(1, "unfused", CUDA_SM80, 80, 0, OPS_ALL_COMPUTES,
            "the best product into f32, then a pass for bias and activation"),
    VARIANT(2, "fused", CUDA_SM80, 80, 0, OPS_ALL_COMPUTES,
            "bias and activation before sums leave the coarsened or tensor cores' product"),
    VARIANT(3, "persistent", CUDA_SM90A, CUDA_ONLY_90A, CUDA_ONLY_90A,
            1u << GPUNVME_OPS_COMPUTE_TF32,
            "the same in Hopper's product: blocks stay, and results of a tile leave while the next "
            "one's operands come"),
    VARIANT(4, "shaped", CUDA_SM90, 90, 0, OPS_ALL_COMPUTES,
            "the product that the shape wants: few rows at the speed of memory, narrower tiles, k "
            "in pieces"),
};

const struct ops_ladder linear_forward_cuda = OPS_LADDER(variants);
