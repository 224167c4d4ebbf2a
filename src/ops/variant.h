/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How a variant of an operator enters the table: a `struct ops_variant` in an array, and the array
 * in the list of registry.c. Everything else (arguments checked, aliasing, workspace, choice) is
 * done before a variant is called, for all of them alike: see call.h.
 */
#ifndef OPS_VARIANT_H
#define OPS_VARIANT_H

#include "ops/fail.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * What is to be computed. When a variant sees it, it has been checked, at least one element of the
 * result is wanted, and in a matmul transpose_c is 0 (A and B were swapped for it). k or `in` may
 * be 0, alpha may be 0, and grads may be NULL. Pointers are only to be used by run().
 */
struct ops_problem {
    int op;
    union {
        const struct gpunvme_matmul *matmul;
        const struct gpunvme_linear *forward;
        const struct gpunvme_linear_grad *backward;
    } u;
};

#define OPS_ALL_DTYPES   (1u << GPUNVME_OPS_F32 | 1u << GPUNVME_OPS_F16 | 1u << GPUNVME_OPS_BF16)
#define OPS_ALL_COMPUTES (1u << GPUNVME_OPS_COMPUTE_F32 | 1u << GPUNVME_OPS_COMPUTE_TF32)

struct ops_variant {
    const char *name, *needs, *changes; /* as in struct gpunvme_ops_variant */
    int op, device;
    uint32_t dtypes, computes;
    int deterministic;

    /* What the device must have: bits of cpu_features, and sm from min_sm to max_sm (0: any). */
    uint64_t cpu_features;
    int min_sm, max_sm;

    /*
     * Can it do this problem? NULL: any. Otherwise ops_fail() with UNSUPPORTED or ALIGN and a
     * detail that says what it would take.
     */
    gpunvme_ops_status_t (*suits)(const struct ops_variant *variant,
                                  const struct ops_problem *problem);

    /* For "auto": the highest of those that suit is taken. 0: only by name. */
    int (*rank)(const struct ops_variant *variant, const struct ops_problem *problem,
                const struct gpunvme_ops_exec *exec);

    /* Bytes of workspace; NULL: none. */
    size_t (*workspace)(const struct ops_variant *variant, const struct ops_problem *problem,
                        const struct gpunvme_ops_exec *exec);

    gpunvme_ops_status_t (*run)(const struct ops_variant *variant,
                                const struct ops_problem *problem,
                                const struct gpunvme_ops_exec *exec);

    /* Of a matmul; NULL: not computed. */
    void (*analyze)(const struct ops_variant *variant, const struct ops_problem *problem,
                    const struct gpunvme_ops_exec *exec, struct gpunvme_matmul_metrics *metrics);

    const void *data; /* the variant's own */
};

/* The rungs of one operator on one device, the plainest first. */
struct ops_ladder {
    const struct ops_variant *variants;
    unsigned count;
};

extern const struct ops_ladder ops_cpu_matmul, ops_cpu_linear_forward, ops_cpu_linear_backward;
extern const struct ops_ladder ops_cuda_matmul, ops_cuda_linear_forward, ops_cuda_linear_backward;

/*
 * The two devices' halves of gpunvme_ops_capability(). They are asked in every call and so must be
 * quick; ops_cpu_describe() adds the texts for those who want them.
 */
gpunvme_ops_status_t ops_cpu_capability(int index, struct gpunvme_ops_capability *capability);
void ops_cpu_describe(struct gpunvme_ops_capability *capability);
gpunvme_ops_status_t ops_cuda_capability(int index, struct gpunvme_ops_capability *capability);

/* The number that stands for "the current device" in ops_cuda_capability(). */
#define OPS_CURRENT_DEVICE (-1)

/* The variant to run for a checked problem, by exec's name or by rank. */
gpunvme_ops_status_t ops_choose(const struct ops_problem *problem,
                                const struct gpunvme_ops_exec *exec,
                                const struct ops_variant **variant);

/* What the variant computes with: its operands' dtype and compute type. */
int ops_problem_dtype(const struct ops_problem *problem);
int ops_problem_compute(const struct ops_problem *problem);

#ifdef __cplusplus
}
#endif
#endif
