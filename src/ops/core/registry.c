/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The table of operators, what their variants need, and how one of them is chosen.
 */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "ops/core/operator.h"

/* One line an operator. */
#define OPERATORS(X)                                                                               \
    X(GPUNVME_OPS_MATMUL, ops_matmul)                                                              \
    X(GPUNVME_OPS_LINEAR_FORWARD, ops_linear_forward)                                              \
    X(GPUNVME_OPS_LINEAR_BACKWARD, ops_linear_backward)                                            \
    X(GPUNVME_OPS_ATTENTION, ops_attention)                                                        \
    X(GPUNVME_OPS_ATTENTION_BACKWARD, ops_attention_backward)                                      \
    X(GPUNVME_OPS_ATTENTION_PAGED, ops_attention_paged)                                            \
    X(GPUNVME_OPS_KV_APPEND, ops_kv_append)                                                        \
    X(GPUNVME_OPS_NORM_FORWARD, ops_norm_forward)                                                  \
    X(GPUNVME_OPS_NORM_BACKWARD, ops_norm_backward)                                                \
    X(GPUNVME_OPS_CROSS_ENTROPY, ops_cross_entropy)                                                \
    X(GPUNVME_OPS_ADAMW, ops_adamw)                                                                \
    X(GPUNVME_OPS_GRAD_NORM, ops_grad_norm)                                                        \
    X(GPUNVME_OPS_EMBEDDING_FORWARD, ops_embedding_forward)                                        \
    X(GPUNVME_OPS_EMBEDDING_BACKWARD, ops_embedding_backward)                                      \
    X(GPUNVME_OPS_SWIGLU_FORWARD, ops_swiglu_forward)                                              \
    X(GPUNVME_OPS_SWIGLU_BACKWARD, ops_swiglu_backward)                                            \
    X(GPUNVME_OPS_ROPE, ops_rope)                                                                  \
    X(GPUNVME_OPS_MOE_FORWARD, ops_moe_forward)                                                    \
    X(GPUNVME_OPS_MOE_BACKWARD, ops_moe_backward)

#define X(number, op) extern const struct ops_operator op;
OPERATORS(X)
#undef X

static const struct ops_operator *const operators[GPUNVME_OPS_NOPS] = {
#define X(number, op) [number] = &(op),
    OPERATORS(X)
#undef X
};

/* Whoever changes one of these, or an operator's descriptor, increases GPUNVME_OPS_ABI. */
OPS_ABI_SIZE(gpunvme_ops_exec, 48);
OPS_ABI_SIZE(gpunvme_ops_capability, 232);
OPS_ABI_SIZE(gpunvme_ops_variant, 48);

unsigned gpunvme_ops_abi(void)
{
    return GPUNVME_OPS_ABI;
}

const char *gpunvme_ops_op_name(int op)
{
    return op >= 0 && op < GPUNVME_OPS_NOPS ? operators[op]->name : "?";
}

static const struct ops_ladder *ladder_of(const struct ops_operator *op, int device)
{
    static const struct ops_ladder none;

    return op->ladders[device] ? op->ladders[device] : &none;
}

#ifndef OPS_HAVE_CUDA
gpunvme_ops_status_t ops_cuda_capability(int index, struct gpunvme_ops_capability *capability)
{
    (void)index;
    (void)capability;
    return ops_fail(GPUNVME_OPS_ERR_DEVICE, "this build has no GPU operators");
}

int ops_cuda_has_clusters(int sm)
{
    (void)sm;
    return 0;
}
#endif

static gpunvme_ops_status_t capability_of(int device, int index,
                                          struct gpunvme_ops_capability *capability)
{
    memset(capability, 0, sizeof(*capability));
    capability->device = device;
    return device == GPUNVME_OPS_CPU ? ops_cpu_capability(index, capability)
                                     : ops_cuda_capability(index, capability);
}

gpunvme_ops_status_t gpunvme_ops_capability(int device, int index,
                                            struct gpunvme_ops_capability *capability)
{
    gpunvme_ops_status_t status = ops_check_enum("device", device, GPUNVME_OPS_NDEVICES);

    if (status)
        return status;
    if (!capability || index < 0)
        return ops_fail(GPUNVME_OPS_ERR_INVALID, "%s",
                        capability ? "index is negative" : "capability is NULL");
    status = capability_of(device, index, capability);
    if (!status && device == GPUNVME_OPS_CPU)
        ops_cpu_describe(capability);
    return status;
}

/* Has the device what the variant needs? */
static gpunvme_ops_status_t available(const struct ops_variant *variant,
                                      const struct gpunvme_ops_capability *capability)
{
    if ((variant->cpu_features & capability->cpu_features) != variant->cpu_features)
        return ops_fail(GPUNVME_OPS_ERR_DEVICE, "variant '%s' needs %s, which %s lacks",
                        variant->name, variant->needs,
                        variant->cpu_features & GPUNVME_OPS_CPU_OPENMP ? "this build"
                                                                       : "this processor");
    if (capability->sm < variant->min_sm || (variant->max_sm && capability->sm > variant->max_sm) ||
        (variant->min_sm >= 90 && !ops_cuda_has_clusters(capability->sm)))
        return ops_fail(GPUNVME_OPS_ERR_DEVICE, "variant '%s' needs %s, and this GPU is sm_%d",
                        variant->name, variant->needs, capability->sm);
    return GPUNVME_OPS_OK;
}

gpunvme_ops_status_t gpunvme_ops_variant(int op, int device, unsigned index,
                                         struct gpunvme_ops_variant *out)
{
    struct gpunvme_ops_capability capability;
    const struct ops_ladder *ladder;
    const struct ops_variant *v;
    gpunvme_ops_status_t status = ops_check_enum("op", op, GPUNVME_OPS_NOPS);

    if (!status)
        status = ops_check_enum("device", device, GPUNVME_OPS_NDEVICES);
    if (status)
        return status;
    if (!out)
        return ops_fail(GPUNVME_OPS_ERR_INVALID, "variant is NULL");
    ladder = ladder_of(operators[op], device);
    if (index >= ladder->count)
        return ops_fail(GPUNVME_OPS_ERR_VARIANT, "the ladder has %u rungs", ladder->count);
    v = &ladder->variants[index];
    memset(out, 0, sizeof(*out));
    out->name = v->name;
    out->needs = v->needs;
    out->changes = v->changes;
    out->op = op;
    out->device = device;
    out->dtypes = v->dtypes;
    out->computes = v->computes;
    out->deterministic = v->deterministic;
    out->available =
        !capability_of(device, device == GPUNVME_OPS_CPU ? 0 : OPS_CURRENT_DEVICE, &capability) &&
        !available(v, &capability);
    return GPUNVME_OPS_OK;
}

/* Can the variant do this call on this device? */
static gpunvme_ops_status_t suits(const struct ops_variant *variant, const struct ops_call *call,
                                  const struct gpunvme_ops_capability *capability)
{
    gpunvme_ops_status_t status = available(variant, capability);

    if (status)
        return status;
    if (!(variant->dtypes & 1u << call->dtype))
        return ops_fail(GPUNVME_OPS_ERR_DTYPE, "variant '%s' does not take %s", variant->name,
                        gpunvme_ops_dtype_name(call->dtype));
    if (call->dtype == GPUNVME_OPS_F32 && !(variant->computes & 1u << call->compute))
        return ops_fail(GPUNVME_OPS_ERR_DTYPE, "variant '%s' does not compute in %s", variant->name,
                        call->compute == GPUNVME_OPS_COMPUTE_TF32 ? "tf32" : "f32");
    if ((call->exec->flags & GPUNVME_OPS_DETERMINISTIC) && !variant->deterministic)
        return ops_fail(GPUNVME_OPS_ERR_UNSUPPORTED,
                        "variant '%s' does not give the same bits in every run", variant->name);
    return variant->suits ? variant->suits(variant, call) : GPUNVME_OPS_OK;
}

/* "naive, blocked, …" for a message. */
static gpunvme_ops_status_t unknown_variant(const struct ops_ladder *ladder, const char *name)
{
    char list[200] = "";
    size_t n = 0;

    for (unsigned i = 0; i < ladder->count && n < sizeof(list); i++)
        n += (size_t)snprintf(list + n, sizeof(list) - n, ", %s", ladder->variants[i].name);
    return ops_fail(GPUNVME_OPS_ERR_VARIANT, "there is no variant '%.40s': auto%s", name, list);
}

static gpunvme_ops_status_t by_name(const struct ops_ladder *ladder, const char *name,
                                    const struct ops_variant **variant)
{
    for (unsigned i = 0; i < ladder->count; i++)
        if (!strcmp(ladder->variants[i].name, name)) {
            *variant = &ladder->variants[i];
            return GPUNVME_OPS_OK;
        }
    return unknown_variant(ladder, name);
}

gpunvme_ops_status_t ops_variant_for(const struct ops_call *call,
                                     const struct ops_variant **variant)
{
    const struct gpunvme_ops_exec *exec = call->exec;
    const struct ops_ladder *ladder = ladder_of(call->op, exec->device);
    struct gpunvme_ops_capability capability;
    gpunvme_ops_status_t status;
    int best = 0;

    *variant = NULL;
    if (ladder->count && exec->variant && strcmp(exec->variant, "auto") != 0) {
        status = by_name(ladder, exec->variant, variant);
        if (status)
            return status;
    }
    status = capability_of(exec->device, exec->device == GPUNVME_OPS_CPU ? 0 : OPS_CURRENT_DEVICE,
                           &capability);
    if (status)
        return status;
    if (!ladder->count)
        return ops_fail(GPUNVME_OPS_ERR_UNSUPPORTED, "%s has no variant for GPUs", call->op->name);
    if (*variant)
        return suits(*variant, call, &capability);
    /* To rank takes time: the best is most often among the last, and none is above INT_MAX. */
    for (unsigned i = ladder->count; i-- && best < INT_MAX;) {
        const struct ops_variant *v = &ladder->variants[i];
        int rank = v->rank(v, call);

        if (rank && rank >= best && !suits(v, call, &capability)) {
            *variant = v;
            best = rank;
        }
    }
    if (!*variant)
        return ops_fail(GPUNVME_OPS_ERR_DTYPE, "no variant of %s takes %s on this device",
                        call->op->name, gpunvme_ops_dtype_name(call->dtype));
    return GPUNVME_OPS_OK;
}
