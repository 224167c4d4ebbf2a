/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gpunvme ops: what its verbs share. A case is one operator on random data of one shape, which any
 * variant can run; a BLAS and the machine's peaks are what it is compared with.
 */
#ifndef CLI_OPS_H
#define CLI_OPS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/random.h"
#include "gpunvme/ops.h"

int cli_ops_bench(int argc, char **argv);
int cli_ops_check(int argc, char **argv);

/* Says what failed; returns the exit code. */
int cli_ops_fail(gpunvme_ops_status_t status);

/* An operator by its name: "matmul", "linear-forward", "attention". -1 if there is none. */
int cli_ops_by_name(const char *name);
const char *cli_ops_name(int op);

/* Adds an operator that the command line names, "linear" being both directions; or ends. */
struct argp_state;
void cli_ops_add(struct argp_state *state, const char *name, bool ops[GPUNVME_OPS_NOPS]);

/*
 * How matmul multiplies fp8, a case's `compute`: by the scales of tensors, rows or blocks, or of
 * tensors with sums that stay in tensor cores, or where B is of the other type of fp8. Weights lie
 * n x k, results are bf16. Attention has scales by sequence and head; its `compute` is
 * OPS_FP8_TENSOR.
 */
enum ops_fp8 {
    OPS_FP8_TENSOR,
    OPS_FP8_ROW,
    OPS_FP8_BLOCK,
    OPS_FP8_FAST,
    OPS_FP8_MIXED,
    OPS_FP8_WAYS
};

static inline bool ops_is_fp8(int dtype)
{
    return dtype == GPUNVME_OPS_E4M3 || dtype == GPUNVME_OPS_E5M2;
}

/*
 * "tf32" is f32 that is multiplied as tf32, "e4m3-row" one of enum ops_fp8: the type, and
 * `compute`. -1 if there is none.
 */
int cli_ops_dtype_by_name(const char *name, int *compute);
const char *cli_ops_dtype_name(int dtype, int compute);

int cli_ops_device_by_name(const char *name); /* "cpu" or "cuda"; -1 if there is none */
const char *cli_ops_device_name(int device);
int cli_ops_activation_by_name(const char *name); /* likewise */

/*
 * For matmul m, n, k; for linear layers rows, out, in, which are the same three of its product; for
 * attention queries, keys and channels of a head.
 */
struct ops_shape {
    int64_t m, n, k;
};

/* "4096x4096x4096", or "512" for all three. */
bool cli_ops_parse_shape(const char *text, struct ops_shape *shape);

/* Matrices without padding: m x k, k x n (a weight is n x k), m x n, and gradients likewise. */
enum ops_matrix_name {
    OPS_A,
    OPS_B,
    OPS_C,
    OPS_BIAS, /* linear layers: n, m x n */
    OPS_PREACT,
    OPS_GRAD_Y, /* backward: m x n; C is grad_x, m x k */
    OPS_GRAD_WEIGHT,
    OPS_GRAD_BIAS, /* n x k, n */
    OPS_V,         /* attention: A is Q, B is K, C is out, all with heads: see ops_attention.c */
    OPS_LSE,       /* f32 */
    OPS_OUT,       /* backwards: grad_out is GRAD_Y, C is grad_q */
    OPS_GRAD_K,
    OPS_GRAD_V,
    OPS_PAGES_K, /* what is appended to; attention's own K and V in pages are B and V */
    OPS_PAGES_V,
    OPS_TABLE, /* int32_t */
    OPS_LENGTHS,
    OPS_SCALE_A, /* matmul and attention of fp8: f32 */
    OPS_SCALE_B,
    OPS_SCALE_V,
    OPS_NMATRICES
};

/* What attention has beside its shape. */
struct ops_heads {
    int64_t batch, heads, kv_heads;
    int64_t page; /* rows of a page */
    bool causal;
    int64_t values; /* channels of a value over a cache, the first ones of its key (MLA); 0: own */
    bool window;    /* a query sees `left` keys before its own position, and `right` after it */
    int64_t left, right;
    double softcap;   /* 0: none */
    int64_t shortest; /* over a cache: lengths from this one to all keys, geometrically; 0: all */
    bool fp8_cache;   /* pages have E4M3, with factors by sequence and head */
};

struct ops_case {
    int op, device, dtype, compute, activation;
    struct ops_shape shape;
    struct ops_heads heads;
    int threads; /* of variants that have threads; 0: all */
    uint64_t seed;
    int kind;            /* of a normalization: enum gpunvme_norm_kind */
    bool no_preact;      /* a linear layer forward does not keep the pre-activation */
    size_t cache_nbytes; /* GPU: as many sets of the matrices as fill the cache some times over */

    void *host[OPS_NMATRICES];
    void *before[OPS_NMATRICES]; /* of what is updated in place: what it was */
    void *gpu[OPS_NMATRICES];    /* of a case on the GPU: of all sets, `pitch` bytes apart */
    size_t nbytes[OPS_NMATRICES], pitch[OPS_NMATRICES];
    unsigned nsets, set; /* all have the same data; `set` is the one that is used */
    void *workspace;
    size_t workspace_nbytes;
    const char *fits; /* the variant that was last asked how much it needs */
};

int ops_case_out_dtype(const struct ops_case *c); /* of a product's result */
int ops_case_dtype_b(const struct ops_case *c);   /* of a product's second operand */

/* Where the operator sees a matrix. */
void *ops_case_at(const struct ops_case *c, int matrix);

/* Takes all up to cache_nbytes. False: out of memory. */
bool ops_case_make(struct ops_case *c);
void ops_case_drop(struct ops_case *c);

/*
 * Runs it, with a workspace that grows as needed: time a second run. On the GPU it is only enqueued
 * (ops_gpu_wait() waits), and results are fetched by ops_case_fetch().
 */
gpunvme_ops_status_t ops_case_run(struct ops_case *c, const char *variant);

bool ops_case_fetch(struct ops_case *c);

/* Poisons the results, so that what is not written is seen. */
bool ops_case_poison(struct ops_case *c);

/* What a matmul's variant does to memory. False: it does not compute that, or is no matmul. */
bool ops_case_analyze(const struct ops_case *c, const char *variant,
                      struct gpunvme_matmul_metrics *metrics);

/* Which variant "auto" is for this case; "?" if none can. */
const char *ops_case_choice(const struct ops_case *c);

double ops_case_flops(const struct ops_case *c);

/* Bytes that must be moved: each matrix once. */
double ops_case_traffic(const struct ops_case *c);

/* What of a linear layer was computed: variants do all of it, a BLAS the product and what it can.
 */
struct ops_done {
    int activation;
    bool bias, preact; /* backward: `bias` is its gradient */
    double slack;      /* what the activation may be off, as a share of its argument */
};

struct ops_done ops_case_does(const struct ops_case *c);

/*
 * The worst error of the last run, as a share of what sums in f32 may lose: more than 1, or NaN, is
 * wrong. Against sums in f64, so slow: of each result at most `lines` rows and columns, from the
 * first to the last, are looked at; 0 is all.
 */
double ops_case_error(const struct ops_case *c, const struct ops_done *done, int64_t lines);

/* Attention's share of a case. How many elements each matrix has, -1 for none: */
static inline bool ops_is_attention(int op)
{
    return op >= GPUNVME_OPS_ATTENTION && op <= GPUNVME_OPS_KV_APPEND;
}

/* Is it made of products, as a BLAS has them? */
static inline bool ops_is_product(int op)
{
    return op < GPUNVME_OPS_ATTENTION;
}

/*
 * Operators that pass over memory: a table of functions each, in a file of its own. A part is a
 * matrix of the case by that operator's own meaning of the numbers.
 */
struct ops_part {
    int64_t count; /* of elements; 0: there is no such matrix */
    int dtype;
    bool result, updated; /* written; read as well */
    bool integers;
};

struct ops_memory_op {
    struct ops_shape shape; /* that bench takes by itself */
    void (*parts)(const struct ops_case *c, struct ops_part parts[OPS_NMATRICES]);

    /* Contents that are not random in [-1, 1). NULL, or false: those. */
    bool (*fill)(const struct ops_case *c, int matrix, void *data, struct base_random *r);

    /* Runs it, or with `nbytes` or `name` asks for the workspace or the variant. */
    gpunvme_ops_status_t (*call)(const struct ops_case *c, const struct gpunvme_ops_exec *exec,
                                 size_t *nbytes, const char **name);
    double (*error)(const struct ops_case *c, int64_t lines);

    /* Floating-point operations of one that arithmetic limits; NULL: memory limits it. */
    double (*flops)(const struct ops_case *c);

    /* Bytes that must be moved, if that is not each part once, and twice what is updated. */
    double (*traffic)(const struct ops_case *c);
};

/* NULL: it is another operator. */
const struct ops_memory_op *ops_memory_op(int op);

/* A call of an operator's three functions, for struct ops_memory_op's call(). */
#define OPS_CALL(function, p)                                                                      \
    (name     ? function##_choose(&(p), exec, name)                                                \
     : nbytes ? function##_workspace(&(p), exec, nbytes)                                           \
              : function(&(p), exec))

/* Lines of a result that are looked at: all, or `count` from the first to the last of `n`. */
struct ops_lines {
    int64_t n, count;
};

static inline struct ops_lines ops_lines_of(int64_t n, int64_t most)
{
    return (struct ops_lines){n, most && most < n ? most : n};
}

static inline int64_t ops_line(const struct ops_lines *x, int64_t i)
{
    return x->count < 2 || x->count == x->n
               ? i
               : (int64_t)((double)i * (double)(x->n - 1) / (double)(x->count - 1));
}

void ops_attention_count(const struct ops_case *c, int64_t counts[OPS_NMATRICES]);
double ops_attention_flops(const struct ops_case *c);
struct gpunvme_attention ops_attention_of(const struct ops_case *c);
struct gpunvme_attention_grad ops_attention_backward_of(const struct ops_case *c);
struct gpunvme_attention_paged ops_attention_paged_of(const struct ops_case *c);
struct gpunvme_kv_append ops_kv_append_of(const struct ops_case *c);

/* The type of K, V or what is appended to. */
int ops_attention_kv_dtype(const struct ops_case *c, int matrix);

/* Is a value the first channels of its key? And how many channels it has. */
bool ops_attention_is_latent(const struct ops_case *c);
int64_t ops_attention_values(const struct ops_case *c);

/* Keys that there is room for in each sequence; and those that sequence b has. */
int64_t ops_attention_keys(const struct ops_case *c);
int64_t ops_attention_length(const struct ops_case *c, int64_t b);

/* The keys of sequence b that query i sees: from `first` to before `end`, which is not less. */
struct ops_seen {
    int64_t first, end;
};
struct ops_seen ops_attention_seen(const struct ops_case *c, int64_t b, int64_t i);

/* Elements of the cache that no query sees, beyond a sequence's end or outside its window. */
double ops_attention_unread(const struct ops_case *c);

/* Whether a result; and whether the matrix has contents of its own, which are written then. */
bool ops_attention_is_result(const struct ops_case *c, int matrix);
bool ops_attention_fill(const struct ops_case *c, int matrix, void *data, struct base_random *r);

/* Where a row of K or V is, in a sequence and head: in pages or not. */
int64_t ops_attention_key_at(const struct ops_case *c, int64_t b, int64_t j, int64_t kv_head);

/* As ops_case_error(), in at most `lines` queries of some heads. */
double ops_attention_error(const struct ops_case *c, int64_t lines);

/* What rounding a value to a type may lose. */
double ops_rounding(int dtype, double value);

/* The error, as a share of what is allowed, if it is worse than the worst so far. */
double ops_worst(double so_far, double got, double expected, double allowed);

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

/*
 * What `threads` cores can do at most, measured (ops_peak.c): multiply-adds in registers, and
 * copies of memory that no cache holds.
 */
struct ops_peak_memory {
    char *from, *to;
    size_t nbytes; /* of each; 0: none */
};

struct ops_peak {
    char by[64]; /* what is done */
    double work; /* floating-point operations, or bytes read and written, of a run */
    int threads;
    struct ops_peak_memory memory; /* that is copied, not its own; none: multiply-adds */
};

bool ops_peak_memory_new(struct ops_peak_memory *memory); /* False: out of memory */
void ops_peak_memory_drop(struct ops_peak_memory *memory);

/* False: not with so many threads. */
bool ops_peak_arithmetic(struct ops_peak *peak, int threads);
bool ops_peak_copy(struct ops_peak *peak, const struct ops_peak_memory *memory, int threads);

/*
 * Seconds of a run; negative: threads could not be started. Multiply-adds count the processors'
 * time, for neighbours take nothing from a core; copies the clock's, or with `cpu_time` likewise.
 */
double ops_peak_run(const struct ops_peak *peak, bool cpu_time);

/* Seconds: by the clock, and of all processors that this process had. */
double ops_now(void);
double ops_cpu_now(void);

#endif
