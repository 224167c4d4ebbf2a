/* SPDX-License-Identifier: BSD-3-Clause
 *
 * An operator as the core sees it: a table of functions, with a ladder of variants for each device.
 * The core checks what all operators share (exec, shapes, pointers, aliasing, workspace) and
 * chooses the variant. registry.c lists the operators.
 */
#ifndef OPS_CORE_OPERATOR_H
#define OPS_CORE_OPERATOR_H

#include "ops/core/check.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * One call of an operator. A variant sees it after all checks, and only if at least one element of
 * the result is wanted. Sizes of sums may be 0. Only run() may read what operands point to.
 */
struct ops_call {
    const struct ops_operator *op;
    const void *descriptor;              /* the caller's: struct gpunvme_matmul, … */
    const struct gpunvme_ops_exec *exec; /* never NULL */
    int any_pointers; /* the workspace is asked for: it may not depend on pointers' alignment */

    /* The rest is filled in by the operator's check(). */
    struct ops_spans spans;
    int dtype, compute; /* of the operands */
    int empty;          /* the result has no elements */
    double flops;

    /* Checks pointers that are not among the spans, as those of a list. NULL: there are none. */
    gpunvme_ops_status_t (*check_memory)(const struct ops_call *call);
};

#define OPS_ALL_DTYPES   (1u << GPUNVME_OPS_F32 | 1u << GPUNVME_OPS_F16 | 1u << GPUNVME_OPS_BF16)
#define OPS_FP8          (1u << GPUNVME_OPS_E4M3 | 1u << GPUNVME_OPS_E5M2)
#define OPS_ALL_COMPUTES (1u << GPUNVME_OPS_COMPUTE_F32 | 1u << GPUNVME_OPS_COMPUTE_TF32)

struct ops_variant {
    const char *name, *needs, *changes; /* as in struct gpunvme_ops_variant */
    uint32_t dtypes, computes;
    int deterministic;

    /* What the device must have: bits of cpu_features, and sm from min_sm to max_sm (0: any); from
     * sm_90 on also ops_cuda_has_clusters(). */
    uint64_t cpu_features;
    int min_sm, max_sm;

    /*
     * Can it do this problem? NULL: any. Otherwise ops_fail() with UNSUPPORTED, or with ALIGN
     * unless `any_pointers`, and a detail that says what it would take. A variant that is refused
     * for its alignment may not need less workspace than the one that "auto" then takes.
     */
    gpunvme_ops_status_t (*suits)(const struct ops_variant *variant, const struct ops_call *call);

    /* For "auto": the highest of those that suit is taken. 0: only by name. */
    int (*rank)(const struct ops_variant *variant, const struct ops_call *call);

    /* Bytes of workspace; NULL: none. */
    size_t (*workspace)(const struct ops_variant *variant, const struct ops_call *call);

    gpunvme_ops_status_t (*run)(const struct ops_variant *variant, const struct ops_call *call);

    /* Fills in the operator's metrics, which are all 0; NULL: it has none. */
    void (*analyze)(const struct ops_variant *variant, const struct ops_call *call, void *metrics);

    const void *data; /* the variant's own */
};

/* The variants of one operator on one device, the plainest first. */
struct ops_ladder {
    const struct ops_variant *variants;
    unsigned count;
};

#define OPS_LADDER(variants)                                                                       \
    {                                                                                              \
        variants, sizeof(variants) / sizeof((variants)[0])                                         \
    }

struct ops_operator {
    const char *name;

    /* Checks the descriptor's own rules and fills in the call. Pointers are not looked at. */
    gpunvme_ops_status_t (*check)(struct ops_call *call);

    const struct ops_ladder *ladders[GPUNVME_OPS_NDEVICES]; /* NULL: none */
};

/* A ladder for GPUs, in a build that has them. */
#ifdef OPS_HAVE_CUDA
#define OPS_CUDA(ladder) (ladder)
#else
#define OPS_CUDA(ladder) NULL
#endif

/* What an operator's public functions do. */
gpunvme_ops_status_t ops_run(const struct ops_operator *op, const void *descriptor,
                             const struct gpunvme_ops_exec *exec);
gpunvme_ops_status_t ops_workspace(const struct ops_operator *op, const void *descriptor,
                                   const struct gpunvme_ops_exec *exec, size_t *nbytes);
gpunvme_ops_status_t ops_choose(const struct ops_operator *op, const void *descriptor,
                                const struct gpunvme_ops_exec *exec, const char **name);
gpunvme_ops_status_t ops_analyze(const struct ops_operator *op, const void *descriptor,
                                 const struct gpunvme_ops_exec *exec, void *metrics);

/*
 * Defines an operator's three public functions: OPS_FUNCTIONS(ops_matmul, gpunvme_matmul, struct
 * gpunvme_matmul) makes gpunvme_matmul(), gpunvme_matmul_workspace() and gpunvme_matmul_choose().
 */
#define OPS_FUNCTIONS(op, function, type)                                                          \
    gpunvme_ops_status_t function(const type *x, const struct gpunvme_ops_exec *exec)              \
    {                                                                                              \
        return ops_run(&(op), x, exec);                                                            \
    }                                                                                              \
    gpunvme_ops_status_t function##_workspace(const type *x, const struct gpunvme_ops_exec *exec,  \
                                              size_t *nbytes)                                      \
    {                                                                                              \
        return ops_workspace(&(op), x, exec, nbytes);                                              \
    }                                                                                              \
    gpunvme_ops_status_t function##_choose(const type *x, const struct gpunvme_ops_exec *exec,     \
                                           const char **name)                                      \
    {                                                                                              \
        return ops_choose(&(op), x, exec, name);                                                   \
    }

/* Fails to compile if a public structure has changed. */
#define OPS_ABI_SIZE(name, nbytes)                                                                 \
    _Static_assert(sizeof(struct name) == (nbytes), #name " has changed: increase "                \
                                                          "GPUNVME_OPS_ABI")

/* The variant for a checked call, by exec's name or by rank. */
gpunvme_ops_status_t ops_variant_for(const struct ops_call *call,
                                     const struct ops_variant **variant);

/*
 * The two devices' halves of gpunvme_ops_capability(). Every call asks them, so they must be quick;
 * ops_cpu_describe() adds the texts.
 */
gpunvme_ops_status_t ops_cpu_capability(int index, struct gpunvme_ops_capability *capability);
void ops_cpu_describe(struct gpunvme_ops_capability *capability);
gpunvme_ops_status_t ops_cuda_capability(int index, struct gpunvme_ops_capability *capability);

/*
 * Whether this build's code for a GPU of that sm is code of sm_90 or later, which has clusters and
 * launches that overlap. A GPU later than all that a build is for may run PTX of sm_80.
 */
int ops_cuda_has_clusters(int sm);

/* The number that stands for "the current device" in ops_cuda_capability(). */
#define OPS_CURRENT_DEVICE (-1)

#ifdef __cplusplus
}
#endif
#endif
