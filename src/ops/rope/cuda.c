/* SPDX-License-Identifier: BSD-3-Clause
 *
 * RoPE on the GPU: the ladder.
 */
#include <math.h>

#include "ops/rope/kernels.h"
#include "ops/rope/rope.h"

static int by_eight(const struct ops_variant *variant)
{
    return *(const int *)variant->data;
}

static int rank(const struct ops_variant *variant, const struct ops_call *call)
{
    (void)call;
    return 1 + by_eight(variant);
}

static gpunvme_ops_status_t suits(const struct ops_variant *variant, const struct ops_call *call)
{
    const struct gpunvme_rotate *p = call->descriptor;
    int vectors = p->rope.interleaved ? 8 : 16;

    if (!by_eight(variant))
        return GPUNVME_OPS_OK;
    if (p->dim % 8 || (p->rope.dim && (p->rope.dim % vectors || p->rope.first % 8)))
        return ops_fail(GPUNVME_OPS_ERR_UNSUPPORTED,
                        "variant '%s' takes multiples of 8 channels, and of %d that are rotated",
                        variant->name, vectors);
    if (!call->any_pointers && (!rows_by_eight(p->x, rows_ld(p->rows, p->ldx), p->dtype) ||
                                !rows_by_eight(p->y, rows_ld(p->rows, p->ldy), p->dtype)))
        return ops_fail(GPUNVME_OPS_ERR_ALIGN,
                        "variant '%s' needs rows that begin at multiples of 16 bytes",
                        variant->name);
    return GPUNVME_OPS_OK;
}

static gpunvme_ops_status_t run(const struct ops_variant *variant, const struct ops_call *call)
{
    struct rope_work x = {.p = *(const struct gpunvme_rotate *)call->descriptor};

    if (x.p.rope.dim)
        x.rate = -2 * log2(rope_base(&x.p.rope)) / x.p.rope.dim;
    else
        x.p.rope.first = 0;
    return rope_rotate(&x, by_eight(variant), call->exec->stream);
}

static const int no = 0, yes = 1;

#define VARIANT(name_, data_, changes_)                                                            \
    {                                                                                              \
        .name = name_, .needs = CUDA_SM80, .changes = changes_, .dtypes = OPS_ALL_DTYPES,          \
        .computes = OPS_ALL_COMPUTES, .deterministic = 1, .min_sm = 80, .suits = suits,            \
        .rank = rank, .run = run, .data = data_                                                    \
    }

static const struct ops_variant variants[] = {
    VARIANT("naive", &no, "a thread for each channel; those of a pair's first rotate it"),
    VARIANT("vectors", &yes,
            "a thread for eight pairs of eight heads, whose angles it computes once"),
};

const struct ops_ladder rope_cuda = OPS_LADDER(variants);
