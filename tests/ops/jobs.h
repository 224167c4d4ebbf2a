/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Calls of operators, each with shapes and operands of its own, for the tests of several threads
 * and streams. Operands are where the device sees them.
 */
#ifndef TESTS_OPS_JOBS_H
#define TESTS_OPS_JOBS_H

#include "ops_test.h"

struct job;

struct work {
    gpunvme_ops_status_t (*call)(const struct job *job, const struct gpunvme_ops_exec *exec,
                                 size_t *nbytes);
    int64_t m, n, k;
    const char *variant;
    int threads, dtype;
    int64_t ids; /* the third operand has int32 numbers below this, if it is not 0 */
};

enum { JOB_OPERANDS = 3 };

struct job {
    struct work w;
    void *in[JOB_OPERANDS]; /* elements of the work's type, random in [-1, 1) */
    float *out;             /* of optimizers what is updated */
};

/* Asks for the workspace, or runs it. */
#define DO(function, p) (nbytes ? function##_workspace(p, exec, nbytes) : function(p, exec))

/* Of fp8 B lies n x k, as weights do, and C is bf16. */
static inline gpunvme_ops_status_t multiply(const struct job *j,
                                            const struct gpunvme_ops_exec *exec, size_t *nbytes)
{
    bool fp8 = gpunvme_ops_dtype_nbytes(j->w.dtype) == 1;
    struct gpunvme_matmul p = {.m = j->w.m,
                               .n = j->w.n,
                               .k = j->w.k,
                               .batch = 1,
                               .a = j->in[0],
                               .b = j->in[1],
                               .c = j->out,
                               .lda = j->w.k,
                               .ldb = fp8 ? j->w.k : j->w.n,
                               .ldc = j->w.n,
                               .alpha = 1,
                               .transpose_b = fp8,
                               .dtype = j->w.dtype,
                               .out_dtype = fp8 ? GPUNVME_OPS_BF16 : j->w.dtype};

    return DO(gpunvme_matmul, &p);
}

static inline gpunvme_ops_status_t layer(const struct job *j, const struct gpunvme_ops_exec *exec,
                                         size_t *nbytes)
{
    struct gpunvme_linear p = {.rows = j->w.m,
                               .in = j->w.k,
                               .out = j->w.n,
                               .x = j->in[0],
                               .weight = j->in[1],
                               .bias = j->in[2],
                               .y = j->out,
                               .ldx = j->w.k,
                               .ldw = j->w.k,
                               .ldy = j->w.n,
                               .activation = GPUNVME_OPS_ACT_GELU,
                               .dtype = j->w.dtype};

    return DO(gpunvme_linear_forward, &p);
}

/* m queries of n keys, two heads of k channels. */
static inline gpunvme_ops_status_t attend(const struct job *j, const struct gpunvme_ops_exec *exec,
                                          size_t *nbytes)
{
    struct gpunvme_attention_strides q = {2 * j->w.m * j->w.k, 2 * j->w.k, j->w.k};
    struct gpunvme_attention_strides k = {2 * j->w.n * j->w.k, 2 * j->w.k, j->w.k};
    struct gpunvme_attention p = {.batch = 1,
                                  .heads = 2,
                                  .kv_heads = 2,
                                  .dim = j->w.k,
                                  .dim_v = j->w.k,
                                  .q_len = j->w.m,
                                  .k_len = j->w.n,
                                  .q = j->in[0],
                                  .k = j->in[1],
                                  .v = j->in[2],
                                  .out = j->out,
                                  .q_strides = q,
                                  .k_strides = k,
                                  .v_strides = k,
                                  .out_strides = q,
                                  .causal = 1,
                                  .dtype = j->w.dtype,
                                  .out_dtype = j->w.dtype};

    return DO(gpunvme_attention, &p);
}

static inline gpunvme_ops_status_t normalize(const struct job *j,
                                             const struct gpunvme_ops_exec *exec, size_t *nbytes)
{
    struct gpunvme_norm p = {.rows = j->w.m,
                             .cols = j->w.n,
                             .x = j->in[0],
                             .weight = j->in[1],
                             .y = j->out,
                             .ldx = j->w.n,
                             .ldy = j->w.n,
                             .eps = 1e-5f,
                             .dtype = j->w.dtype,
                             .weight_dtype = j->w.dtype};

    return DO(gpunvme_norm_forward, &p);
}

static inline gpunvme_ops_status_t rotate(const struct job *j, const struct gpunvme_ops_exec *exec,
                                          size_t *nbytes)
{
    struct gpunvme_rotate p = {.rows = j->w.m,
                               .heads = j->w.n,
                               .dim = j->w.k,
                               .x = j->in[0],
                               .y = j->out,
                               .ldx = j->w.n * j->w.k,
                               .ldy = j->w.n * j->w.k,
                               .rope = {.dim = (int32_t)j->w.k},
                               .dtype = j->w.dtype};

    return DO(gpunvme_rotate, &p);
}

static inline gpunvme_ops_status_t gate(const struct job *j, const struct gpunvme_ops_exec *exec,
                                        size_t *nbytes)
{
    struct gpunvme_swiglu p = {.rows = j->w.m,
                               .cols = j->w.n,
                               .gate = j->in[0],
                               .up = j->in[1],
                               .y = j->out,
                               .ld_gate = j->w.n,
                               .ld_up = j->w.n,
                               .ldy = j->w.n,
                               .dtype = j->w.dtype};

    return DO(gpunvme_swiglu_forward, &p);
}

static inline gpunvme_ops_status_t
norm_of_gradients(const struct job *j, const struct gpunvme_ops_exec *exec, size_t *nbytes)
{
    const struct gpunvme_grad_tensor tensors[] = {{j->w.m * j->w.n, j->in[0]}, {j->w.k, j->in[1]}};
    struct gpunvme_grad_norm p = {
        .tensors = tensors, .ntensors = 2, .norm = j->out, .dtype = j->w.dtype};

    return DO(gpunvme_grad_norm, &p);
}

/* A tensor of m x n elements: master weights, both moments and weights lie in `out`. */
static inline gpunvme_ops_status_t update(const struct job *j, const struct gpunvme_ops_exec *exec,
                                          size_t *nbytes)
{
    int64_t count = j->w.m * j->w.n;
    const struct gpunvme_adamw_tensor tensor = {.count = count,
                                                .grad = j->in[0],
                                                .master = j->out,
                                                .m = j->out + count,
                                                .v = j->out + 2 * count,
                                                .weight = j->out + 3 * count};
    struct gpunvme_adamw p = {.tensors = &tensor,
                              .ntensors = 1,
                              .step = 7,
                              .seed = 5,
                              .lr = 0.01f,
                              .beta1 = 0.9f,
                              .beta2 = 0.95f,
                              .eps = 1e-8f,
                              .weight_decay = 0.1f,
                              .dtype = j->w.dtype,
                              .grad_dtype = j->w.dtype,
                              .stochastic = j->w.dtype == GPUNVME_OPS_BF16};

    return DO(gpunvme_adamw, &p);
}

/* Backwards, in f32: statistics are the third operand. */
static inline gpunvme_ops_status_t
normalize_back(const struct job *j, const struct gpunvme_ops_exec *exec, size_t *nbytes)
{
    struct gpunvme_norm_grad p = {.rows = j->w.m,
                                  .cols = j->w.n,
                                  .grad_y = j->in[0],
                                  .x = j->in[1],
                                  .rstd = j->in[2],
                                  .grad_x = j->out,
                                  .grad_weight = j->out + j->w.m * j->w.n,
                                  .ld_grad_y = j->w.n,
                                  .ldx = j->w.n,
                                  .ld_grad_x = j->w.n,
                                  .dtype = j->w.dtype,
                                  .weight_dtype = j->w.dtype,
                                  .grad_dtype = GPUNVME_OPS_F32};

    return DO(gpunvme_norm_backward, &p);
}

/* The mean loss of m rows of n logits, and the gradient behind it. */
static inline gpunvme_ops_status_t entropy(const struct job *j, const struct gpunvme_ops_exec *exec,
                                           size_t *nbytes)
{
    struct gpunvme_cross_entropy p = {.rows = j->w.m,
                                      .vocab = j->w.n,
                                      .logits = j->in[0],
                                      .targets = j->in[2],
                                      .loss = j->out,
                                      .grad = j->out + 64,
                                      .ld_logits = j->w.n,
                                      .ld_grad = j->w.n,
                                      .dtype = j->w.dtype};

    return DO(gpunvme_cross_entropy, &p);
}

/* The gradient of a table of n rows of k, from m of them. */
static inline gpunvme_ops_status_t scatter(const struct job *j, const struct gpunvme_ops_exec *exec,
                                           size_t *nbytes)
{
    struct gpunvme_embedding_grad p = {.rows = j->w.m,
                                       .vocab = j->w.n,
                                       .dim = j->w.k,
                                       .grad_y = j->in[0],
                                       .ids = j->in[2],
                                       .grad_weight = j->out,
                                       .ld_grad_y = j->w.k,
                                       .ld_grad_weight = j->w.k,
                                       .dtype = j->w.dtype,
                                       .grad_dtype = j->w.dtype};

    return DO(gpunvme_embedding_backward, &p);
}

#undef DO

/* `count` elements of operand i, random, where the host sees them. */
static inline void job_fill(const struct job *j, int i, void *to, int64_t count,
                            struct base_random *r)
{
    for (int64_t e = 0; e < count; e++)
        if (i == 2 && j->w.ids)
            ((int32_t *)to)[e] = (int32_t)base_random_below(r, (uint64_t)j->w.ids);
        else
            cpu_store(to, e, j->w.dtype, (float)(2 * base_random_real(r) - 1));
}

#endif
