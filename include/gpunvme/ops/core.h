/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What all operators share: status, types, where a call runs, and the list of variants.
 *
 * Rules for all functions:
 *
 *  - The library allocates nothing. What a variant needs beyond its operands is the workspace: ask
 *    gpunvme_*_workspace() for the size, with the same descriptor and exec as the call itself.
 *  - Matrices are row-major: element (i, j) is at p[i * ld + j]. A transposed operand is stored as
 *    its transpose. A column-major matrix is the transpose of a row-major one: set its transpose
 *    flag. Leading dimensions and strides count elements, not bytes.
 *  - Operands are aligned to their element. A variant that needs more returns GPUNVME_OPS_ERR_ALIGN
 *    or is not chosen by "auto". Padding (columns from the width to ld) is never read or written.
 *  - A result may not overlap an operand or another result: GPUNVME_OPS_ERR_ALIAS. An operator's
 *    header says which operands a result may replace. Operands may overlap each other. Disjoint
 *    column ranges of one wide matrix (with the same ld) do not overlap.
 *  - A pointer may be NULL if no element of it is read or written.
 *  - Arguments are checked before anything is computed: a call that fails for its arguments writes
 *    nothing. On the CPU a call returns when the result is complete. With CUDA it is enqueued to
 *    the stream, and errors of execution are reported as for any kernel.
 *  - Thread safe: any function may be called by several threads at once, if no result or workspace
 *    is shared between them.
 *  - Arithmetic: elements of 16 and 8 bits are multiplied and summed in f32 and rounded once, to
 *    nearest even, when the result is stored. NaN and infinity propagate as in IEEE 754. (Headers
 *    tell what else is rounded, and where tensor cores keep fewer bits of sums.)
 *
 * Descriptors are plain structures: set them to 0, then fill in what is wanted. 0 is the default of
 * every field that has one.
 */
#ifndef GPUNVME_OPS_CORE_H
#define GPUNVME_OPS_CORE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * The library's binary interface: increased when an operator's structure changes its layout, or a
 * function its arguments. New ones leave it as it is. The function returns the number that the
 * library was built with, for programs that load it at run time.
 */
#define GPUNVME_OPS_ABI 2
unsigned gpunvme_ops_abi(void);

/* 0 is success, negative numbers are failures. */
typedef int gpunvme_ops_status_t;

/* X(name, value, text): the text says what happened and what to do about it. */
#define GPUNVME_OPS_STATUSES(X)                                                                    \
    X(INVALID, -1, "invalid argument: see the detail for which one")                               \
    X(SHAPE, -2, "a size, leading dimension or stride makes no sense: see the detail")             \
    X(DTYPE, -3, "no variant takes these types together: see the detail")                          \
    X(ALIGN, -4, "misaligned pointer or stride: align it as the detail says")                      \
    X(ALIAS, -5, "a result overlaps an operand or itself: give it memory of its own")              \
    X(VARIANT, -6, "no such variant: gpunvme_ops_variant() lists them")                            \
    X(UNSUPPORTED, -7, "this variant cannot do this: see the detail, or use variant \"auto\"")     \
    X(DEVICE, -8, "this machine, GPU or build lacks what the variant needs: see the detail")       \
    X(WORKSPACE, -9, "the workspace is too small: ask the function that tells its size")           \
    X(CUDA, -10, "CUDA reported an error: see the detail")

enum gpunvme_ops_status {
    GPUNVME_OPS_OK = 0,
#define X(name, value, text) GPUNVME_OPS_ERR_##name = value,
    GPUNVME_OPS_STATUSES(X)
#undef X
};

/* "GPUNVME_OPS_ERR_SHAPE"; static, never NULL. */
const char *gpunvme_ops_status_name(gpunvme_ops_status_t status);

/* What happened and what to do; static, never NULL. */
const char *gpunvme_ops_status_text(gpunvme_ops_status_t status);

/* Details of this thread's last failing call; valid until its next one. */
const char *gpunvme_ops_detail(void);

enum gpunvme_ops_op {
    GPUNVME_OPS_MATMUL = 0,
    GPUNVME_OPS_LINEAR_FORWARD = 1,
    GPUNVME_OPS_LINEAR_BACKWARD = 2,
    GPUNVME_OPS_ATTENTION = 3,
    GPUNVME_OPS_ATTENTION_BACKWARD = 4,
    GPUNVME_OPS_ATTENTION_PAGED = 5,
    GPUNVME_OPS_KV_APPEND = 6,
    GPUNVME_OPS_NORM_FORWARD = 7,
    GPUNVME_OPS_NORM_BACKWARD = 8,
    GPUNVME_OPS_CROSS_ENTROPY = 9,
    GPUNVME_OPS_ADAMW = 10,
    GPUNVME_OPS_GRAD_NORM = 11,
    GPUNVME_OPS_EMBEDDING_FORWARD = 12,
    GPUNVME_OPS_EMBEDDING_BACKWARD = 13,
    GPUNVME_OPS_SWIGLU_FORWARD = 14,
    GPUNVME_OPS_SWIGLU_BACKWARD = 15,
    GPUNVME_OPS_ROPE = 16,
    GPUNVME_OPS_MOE_FORWARD = 17,
    GPUNVME_OPS_MOE_BACKWARD = 18,
    GPUNVME_OPS_NOPS /* their number */
};

/*
 * Types of elements. bf16 is the upper half of an f32. The two of 8 bits (OCP 8-bit Floating Point
 * Specification) are operands of gpunvme_matmul(). gpunvme_attention() takes E4M3, too, and a cache
 * of keys and values may have it.
 */
enum gpunvme_ops_dtype {
    GPUNVME_OPS_F32 = 0,
    GPUNVME_OPS_F16 = 1,
    GPUNVME_OPS_BF16 = 2,
    GPUNVME_OPS_NDTYPES, /* of those that every operator takes */

    GPUNVME_OPS_E4M3 = 3, /* 4 bits of exponent, 3 of mantissa: up to 448, no infinity */
    GPUNVME_OPS_E5M2 = 4, /* the upper half of an f16: up to 57344, and infinity */
    GPUNVME_OPS_NALLDTYPES
};

/* How f32 operands are multiplied. It is ignored for other types, whose products are exact. */
enum gpunvme_ops_compute {
    GPUNVME_OPS_COMPUTE_F32 = 0,
    GPUNVME_OPS_COMPUTE_TF32 = 1, /* 10 bits of mantissa, for tensor cores; the CPU uses f32 */
    GPUNVME_OPS_NCOMPUTES
};

enum gpunvme_ops_device {
    GPUNVME_OPS_CPU = 0,
    GPUNVME_OPS_CUDA = 1, /* pointers and workspace are on the current device; see `stream` */
    GPUNVME_OPS_NDEVICES
};

enum gpunvme_ops_activation {
    GPUNVME_OPS_ACT_NONE = 0,
    GPUNVME_OPS_ACT_RELU = 1,
    GPUNVME_OPS_ACT_GELU = 2,      /* x Phi(x), by erf */
    GPUNVME_OPS_ACT_GELU_TANH = 3, /* its approximation by tanh */
    GPUNVME_OPS_ACT_SILU = 4,      /* x / (1 + exp(-x)) */
    GPUNVME_OPS_NACTS
};

/* "f32", "gelu"; "?" for an invalid number. */
const char *gpunvme_ops_op_name(int op);
const char *gpunvme_ops_dtype_name(int dtype);
const char *gpunvme_ops_activation_name(int activation);
size_t gpunvme_ops_dtype_nbytes(int dtype); /* 0 for an invalid number */

/* What a workspace must be aligned to, in bytes. */
#define GPUNVME_OPS_WORKSPACE_ALIGN 256

/* The same bits in every run on the same device; naming a variant that cannot do that fails. */
#define GPUNVME_OPS_DETERMINISTIC 1u

/* Where and how a call runs. NULL stands for one of zeros: the CPU, "auto", no workspace. */
struct gpunvme_ops_exec {
    int32_t device;          /* enum gpunvme_ops_device */
    int32_t threads;         /* CPU: at most so many; 0: as many as OpenMP would take */
    void *stream;            /* CUDA: a cudaStream_t, NULL is the default stream */
    const char *variant;     /* NULL is "auto" */
    void *workspace;         /* aligned to GPUNVME_OPS_WORKSPACE_ALIGN; NULL if none is needed */
    size_t workspace_nbytes; /* its size */
    uint32_t flags;          /* GPUNVME_OPS_DETERMINISTIC */
    uint32_t reserved;       /* 0 */
};

/* A device's capabilities. */
struct gpunvme_ops_capability {
    int32_t device;
    int32_t index;         /* CUDA: the device's number */
    char name[96];         /* of the processor or GPU */
    char features[96];     /* CPU: "avx2 avx512f openmp"; CUDA: "sm_90a" */
    int32_t sm;            /* CUDA: 10 * major + minor; 0 for the CPU */
    int32_t units;         /* processors that this process may use; multiprocessors of a GPU */
    int64_t shared_nbytes; /* CUDA: shared memory that a block can have */
    int64_t cache_nbytes;  /* CUDA: L2 */
    uint64_t cpu_features; /* CPU: GPUNVME_OPS_CPU_* */
};

#define GPUNVME_OPS_CPU_AVX2   (UINT64_C(1) << 0) /* AVX2 and FMA */
#define GPUNVME_OPS_CPU_AVX512 (UINT64_C(1) << 1) /* AVX-512F */
#define GPUNVME_OPS_CPU_OPENMP (UINT64_C(1) << 2) /* this build has OpenMP */

/* ERR_DEVICE: no such device; ERR_INVALID: no such kind of device. */
gpunvme_ops_status_t gpunvme_ops_capability(int device, int index,
                                            struct gpunvme_ops_capability *capability);

/* One rung of a ladder. */
struct gpunvme_ops_variant {
    const char *name;    /* for gpunvme_ops_exec.variant */
    const char *needs;   /* what the machine must have: "AVX-512F"; "nothing" */
    const char *changes; /* against the rung before it */
    int32_t op, device;
    uint32_t dtypes;       /* bit 1 << dtype for each type of operand */
    uint32_t computes;     /* bit 1 << compute, for f32 operands */
    int32_t deterministic; /* with GPUNVME_OPS_DETERMINISTIC: the same bits in every run */
    int32_t available;     /* on this machine, in this build */
};

/*
 * The variant number `index` of an operator's ladder on a device, from the plainest to the
 * fastest. ERR_VARIANT at the end of the ladder.
 */
gpunvme_ops_status_t gpunvme_ops_variant(int op, int device, unsigned index,
                                         struct gpunvme_ops_variant *variant);

#ifdef __cplusplus
}
#endif
#endif
