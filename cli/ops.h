/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gpunvme ops: what its verbs share. A case is one operator on random data of one shape, which any
 * variant can run; a BLAS and the processor's peak are what it is compared with.
 */
#ifndef CLI_OPS_H
#define CLI_OPS_H

#include <stdbool.h>
#include <stdint.h>

#include "gpunvme/ops.h"

int cli_ops_bench(int argc, char **argv);
int cli_ops_check(int argc, char **argv);

/* Says what failed; returns the exit code. */
int cli_ops_fail(gpunvme_ops_status_t status);

/* An operator by its name: "matmul", "linear-forward", "linear-backward". -1 if there is none. */
int cli_ops_by_name(const char *name);
const char *cli_ops_name(int op);

int cli_ops_dtype_by_name(const char *name);      /* -1 if there is none */
int cli_ops_activation_by_name(const char *name); /* likewise */

/* For matmul m, n, k; for linear layers rows, out, in, which are the same three of its product. */
struct ops_shape {
    int64_t m, n, k;
};

/* "4096x4096x4096", or "512" for all three. */
bool cli_ops_parse_shape(const char *text, struct ops_shape *shape);

struct ops_case {
    int op, dtype, activation;
    struct ops_shape shape;
    int threads; /* of variants that have threads; 0: all */
    uint64_t seed;

    /* Matrices without padding: m x k, k x n (a weight is n x k), m x n, and gradients likewise. */
    void *a, *b, *c;
    void *bias, *preact;           /* linear layers: n, m x n */
    void *grad_y;                  /* backward: m x n; c is grad_x, m x k */
    void *grad_weight, *grad_bias; /* backward: n x k, n */
    void *workspace;
    size_t workspace_nbytes;
};

/* Takes op, dtype, activation, shape, threads and seed. False: out of memory. */
bool ops_case_make(struct ops_case *c);
void ops_case_drop(struct ops_case *c);

/* Runs it, with a workspace that grows as needed: time a second run. */
gpunvme_ops_status_t ops_case_run(struct ops_case *c, const char *variant);

/* Poisons the results, so that what is not written is seen. */
void ops_case_poison(struct ops_case *c);

double ops_case_flops(const struct ops_case *c);

/*
 * The worst error of the last run, as a share of what sums in f32 may lose: more than 1, or NaN, is
 * wrong. Against sums in f64, so slow.
 */
double ops_case_error(const struct ops_case *c);

/* A BLAS, if one can be loaded. */
struct ops_blas {
    void *handle;
    void (*sgemm)(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha,
                  const float *a, int lda, const float *b, int ldb, float beta, float *c, int ldc);
    void (*set_num_threads)(int);
    char config[160]; /* version and the processor that its code is for */
};

/* False: there is none. OPENBLAS_CORETYPE says which code it takes. */
bool ops_blas_open(struct ops_blas *blas);

/* The products of a case in f32, with `threads`. */
void ops_blas_run(const struct ops_blas *blas, const struct ops_case *c, int threads);

/* GFLOP/s of multiply-adds in registers by one thread: what no code on one core can exceed. */
double ops_peak(void);

/* Seconds: by the clock, and of all processors that this process had. */
double ops_now(void);
double ops_cpu_now(void);

#endif
