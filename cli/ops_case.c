/* SPDX-License-Identifier: BSD-3-Clause
 *
 * One operator on random data: memory, and a run by any variant.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "ops.h"
#include "ops/cpu/dtype.h"
#include "ops_gpu.h"

static double seconds_of(clockid_t clock)
{
    struct timespec t;

    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

double ops_now(void)
{
    return seconds_of(CLOCK_MONOTONIC);
}

double ops_cpu_now(void)
{
    return seconds_of(CLOCK_PROCESS_CPUTIME_ID);
}

static struct ops_part part_of(const struct ops_case *c, int matrix)
{
    struct ops_part parts[OPS_NMATRICES] = {0};

    ops_memory_op(c->op)->parts(c, parts);
    return parts[matrix];
}

static bool is_updated(const struct ops_case *c, int matrix)
{
    return ops_memory_op(c->op) && part_of(c, matrix).updated;
}

static bool is_result(const struct ops_case *c, int matrix)
{
    if (ops_memory_op(c->op))
        return part_of(c, matrix).result;
    return matrix == OPS_C || matrix == OPS_GRAD_WEIGHT || matrix == OPS_GRAD_BIAS ||
           (matrix == OPS_PREACT && c->op == GPUNVME_OPS_LINEAR_FORWARD) ||
           ops_attention_is_result(c, matrix);
}

/* Integers have the size of f32. */
static int dtype_of(const struct ops_case *c, int matrix)
{
    bool four_bytes = matrix == OPS_LSE || matrix == OPS_TABLE || matrix == OPS_LENGTHS ||
                      matrix == OPS_SCALE_A || matrix == OPS_SCALE_B || matrix == OPS_SCALE_V;

    if (ops_memory_op(c->op))
        return part_of(c, matrix).dtype;
    return four_bytes                ? GPUNVME_OPS_F32
           : matrix == OPS_C         ? ops_case_out_dtype(c)
           : ops_is_attention(c->op) ? ops_attention_kv_dtype(c, matrix)
           : matrix == OPS_B         ? ops_case_dtype_b(c)
                                     : c->dtype;
}

int ops_case_out_dtype(const struct ops_case *c)
{
    return ops_is_fp8(c->dtype) ? GPUNVME_OPS_BF16 : c->dtype;
}

int ops_case_dtype_b(const struct ops_case *c)
{
    if (!ops_is_fp8(c->dtype) || c->compute != OPS_FP8_MIXED)
        return c->dtype;
    return c->dtype == GPUNVME_OPS_E4M3 ? GPUNVME_OPS_E5M2 : GPUNVME_OPS_E4M3;
}

static size_t pages_of(size_t nbytes)
{
    return nbytes ? (nbytes + 4095) & ~(size_t)4095 : 4096;
}

/* Copies the first set to all others, twice as much each time. */
static bool fill_sets(const struct ops_case *c, int matrix)
{
    size_t pitch = c->pitch[matrix];
    char *at = c->gpu[matrix];
    bool ok = true;

    for (size_t have = 1, more; have < c->nsets && ok; have += more) {
        more = c->nsets - have < have ? c->nsets - have : have;
        ok = ops_gpu_copy(at + have * pitch, at, more * pitch);
    }
    return ok;
}

static bool make_on_gpu(struct ops_case *c, int matrix)
{
    c->gpu[matrix] = ops_gpu_new(c->pitch[matrix] * c->nsets);
    return c->gpu[matrix] && ops_gpu_put(c->gpu[matrix], c->host[matrix], c->nbytes[matrix]) &&
           fill_sets(c, matrix);
}

static bool fill(const struct ops_case *c, int matrix, void *data, struct base_random *r)
{
    const struct ops_memory_op *op = ops_memory_op(c->op);

    return op ? op->fill && op->fill(c, matrix, data, r) : ops_attention_fill(c, matrix, data, r);
}

/* What an update in place starts from is kept, so that its result can be looked at. */
static bool keep(struct ops_case *c, int matrix)
{
    if (!is_updated(c, matrix))
        return true;
    c->before[matrix] = malloc(c->nbytes[matrix]);
    if (c->before[matrix])
        memcpy(c->before[matrix], c->host[matrix], c->nbytes[matrix]);
    return c->before[matrix] != NULL;
}

/* `n` elements: random in [-1, 1), results poisoned. */
static bool make_matrix(struct ops_case *c, int matrix, int64_t n, struct base_random *r)
{
    size_t nbytes = (size_t)n * gpunvme_ops_dtype_nbytes(dtype_of(c, matrix));
    void *data = aligned_alloc(4096, pages_of(nbytes));

    c->host[matrix] = data;
    c->nbytes[matrix] = nbytes;
    c->pitch[matrix] = pages_of(nbytes);
    if (!data)
        return false;
    if (is_result(c, matrix) && !is_updated(c, matrix))
        memset(data, 0xff, nbytes);
    else if (!fill(c, matrix, data, r))
        for (int64_t i = 0; i < n; i++)
            cpu_store(data, i, dtype_of(c, matrix), (float)(2 * base_random_real(r) - 1));
    return keep(c, matrix) && (c->device == GPUNVME_OPS_CPU || make_on_gpu(c, matrix));
}

void *ops_case_at(const struct ops_case *c, int matrix)
{
    if (c->device == GPUNVME_OPS_CPU || !c->gpu[matrix])
        return c->device == GPUNVME_OPS_CPU ? c->host[matrix] : NULL;
    return (char *)c->gpu[matrix] + c->set * c->pitch[matrix];
}

/* Memory is handed out before it is there: what would not fit is refused, not found out. */
static bool fits(double nbytes)
{
    return nbytes < (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE) * 0.8;
}

static void count_products(const struct ops_case *c, int64_t counts[OPS_NMATRICES])
{
    int64_t mk = c->shape.m * c->shape.k, kn = c->shape.k * c->shape.n;
    int64_t mn = c->shape.m * c->shape.n, n = c->shape.n;
    bool linear = c->op != GPUNVME_OPS_MATMUL, backward = c->op == GPUNVME_OPS_LINEAR_BACKWARD;
    int64_t all[] = {mk, kn, backward ? mk : mn, n, mn, mn, kn, n};
    int nmatrices = backward ? OPS_GRAD_BIAS + 1 : linear ? OPS_GRAD_Y : OPS_BIAS;

    if (ops_is_fp8(c->dtype)) {
        int64_t blocks = (c->shape.k + 127) / 128;

        counts[OPS_SCALE_A] = c->compute == OPS_FP8_ROW     ? c->shape.m
                              : c->compute == OPS_FP8_BLOCK ? c->shape.m * blocks
                                                            : 1;
        counts[OPS_SCALE_B] = c->compute == OPS_FP8_ROW     ? n
                              : c->compute == OPS_FP8_BLOCK ? (n + 127) / 128 * blocks
                                                            : 1;
    }
    for (int i = 0; i < nmatrices; i++)
        if (!(i == OPS_PREACT && !backward && c->no_preact) && !(i == OPS_BIAS && backward))
            counts[i] = all[i];
}

static void count_parts(const struct ops_case *c, int64_t counts[OPS_NMATRICES])
{
    struct ops_part parts[OPS_NMATRICES] = {0};

    ops_memory_op(c->op)->parts(c, parts);
    for (int i = 0; i < OPS_NMATRICES; i++)
        if (parts[i].count)
            counts[i] = parts[i].count;
}

/* How many elements each matrix has that the operator knows, else -1; returns the bytes of all. */
static double count(const struct ops_case *c, int64_t counts[OPS_NMATRICES])
{
    double nbytes = 0;

    for (int i = 0; i < OPS_NMATRICES; i++)
        counts[i] = -1;
    if (ops_memory_op(c->op))
        count_parts(c, counts);
    else if (ops_is_attention(c->op))
        ops_attention_count(c, counts);
    else
        count_products(c, counts);
    for (int i = 0; i < OPS_NMATRICES; i++)
        if (counts[i] > 0)
            nbytes += (double)counts[i] * (double)gpunvme_ops_dtype_nbytes(dtype_of(c, i));
    return nbytes;
}

double ops_case_traffic(const struct ops_case *c)
{
    int64_t counts[OPS_NMATRICES];
    double nbytes = count(c, counts);

    if (ops_memory_op(c->op) && ops_memory_op(c->op)->traffic)
        return ops_memory_op(c->op)->traffic(c);
    for (int i = 0; i < OPS_NMATRICES; i++)
        if (counts[i] > 0 && is_updated(c, i))
            nbytes += (double)counts[i] * (double)gpunvme_ops_dtype_nbytes(dtype_of(c, i));
    /* Of a cache only what is appended is moved. */
    if (c->op == GPUNVME_OPS_KV_APPEND)
        nbytes = (double)(counts[OPS_B] + counts[OPS_V]) *
                 (double)(gpunvme_ops_dtype_nbytes(dtype_of(c, OPS_B)) +
                          gpunvme_ops_dtype_nbytes(dtype_of(c, OPS_PAGES_K)));
    return nbytes - ops_attention_unread(c) *
                        (double)gpunvme_ops_dtype_nbytes(ops_attention_kv_dtype(c, OPS_B));
}

/*
 * Runs that follow each other use another set each, so that none finds its operands in the GPU's
 * cache: together they are some times as large.
 */
static unsigned sets_of(const struct ops_case *c, double nbytes)
{
    double sets = 1 + 4 * (double)c->cache_nbytes / (nbytes + 1);

    return c->device == GPUNVME_OPS_CPU ? 1 : sets < 4096 ? (unsigned)sets : 4096;
}

bool ops_case_make(struct ops_case *c)
{
    struct base_random r = {.state = c->seed};
    int64_t counts[OPS_NMATRICES];
    double nbytes = count(c, counts);
    bool ok = fits(nbytes);

    c->nsets = sets_of(c, nbytes);
    for (int i = 0; i < OPS_NMATRICES && ok; i++)
        ok = counts[i] < 0 || make_matrix(c, i, counts[i], &r);
    if (!ok)
        ops_case_drop(c);
    return ok;
}

static void drop_workspace(struct ops_case *c)
{
    if (c->device == GPUNVME_OPS_CPU)
        free(c->workspace);
    else
        ops_gpu_drop(c->workspace);
    c->workspace = NULL;
    c->workspace_nbytes = 0;
    c->fits = NULL;
}

void ops_case_drop(struct ops_case *c)
{
    for (int i = 0; i < OPS_NMATRICES; i++) {
        free(c->host[i]);
        free(c->before[i]);
        ops_gpu_drop(c->gpu[i]);
        c->host[i] = c->before[i] = c->gpu[i] = NULL;
    }
    drop_workspace(c);
}

bool ops_case_poison(struct ops_case *c)
{
    bool ok = true;

    for (int i = 0; i < OPS_NMATRICES; i++)
        if (c->host[i] && is_result(c, i)) {
            if (c->before[i])
                memcpy(c->host[i], c->before[i], c->nbytes[i]);
            else
                memset(c->host[i], 0xff, c->nbytes[i]);
            if (c->device != GPUNVME_OPS_CPU)
                ok = ok && ops_gpu_put(ops_case_at(c, i), c->host[i], c->nbytes[i]);
        }
    return ok;
}

bool ops_case_fetch(struct ops_case *c)
{
    bool ok = true;

    for (int i = 0; i < OPS_NMATRICES && c->device != GPUNVME_OPS_CPU; i++)
        if (c->host[i] && is_result(c, i))
            ok = ok && ops_gpu_get(c->host[i], ops_case_at(c, i), c->nbytes[i]);
    return ok;
}

double ops_case_flops(const struct ops_case *c)
{
    const struct ops_memory_op *op = ops_memory_op(c->op);

    if (op)
        return op->flops ? op->flops(c) : 0;
    if (ops_is_attention(c->op))
        return ops_attention_flops(c);
    return (c->op == GPUNVME_OPS_LINEAR_BACKWARD ? 4.0 : 2.0) * (double)c->shape.m *
           (double)c->shape.n * (double)c->shape.k;
}

static int scaling_of(const struct ops_case *c)
{
    return c->compute == OPS_FP8_ROW     ? GPUNVME_MATMUL_SCALE_ROW
           : c->compute == OPS_FP8_BLOCK ? GPUNVME_MATMUL_SCALE_BLOCK
                                         : GPUNVME_MATMUL_SCALE_TENSOR;
}

static struct gpunvme_matmul matmul_of(const struct ops_case *c)
{
    bool fp8 = ops_is_fp8(c->dtype);

    return (struct gpunvme_matmul){.m = c->shape.m,
                                   .n = c->shape.n,
                                   .k = c->shape.k,
                                   .batch = 1,
                                   .a = ops_case_at(c, OPS_A),
                                   .b = ops_case_at(c, OPS_B),
                                   .c = ops_case_at(c, OPS_C),
                                   .lda = c->shape.k,
                                   .ldb = fp8 ? c->shape.k : c->shape.n,
                                   .ldc = c->shape.n,
                                   .alpha = 1,
                                   .transpose_b = fp8,
                                   .dtype = c->dtype,
                                   .dtype_b = fp8 ? ops_case_dtype_b(c) : 0,
                                   .compute = fp8 ? GPUNVME_OPS_COMPUTE_F32 : c->compute,
                                   .out_dtype = ops_case_out_dtype(c),
                                   .scale_a = fp8 ? ops_case_at(c, OPS_SCALE_A) : NULL,
                                   .scale_b = fp8 ? ops_case_at(c, OPS_SCALE_B) : NULL,
                                   .scaling = fp8 ? scaling_of(c) : 0,
                                   .fast_sums = fp8 && c->compute == OPS_FP8_FAST};
}

static struct gpunvme_linear forward_of(const struct ops_case *c)
{
    return (struct gpunvme_linear){.rows = c->shape.m,
                                   .in = c->shape.k,
                                   .out = c->shape.n,
                                   .x = ops_case_at(c, OPS_A),
                                   .weight = ops_case_at(c, OPS_B),
                                   .bias = ops_case_at(c, OPS_BIAS),
                                   .y = ops_case_at(c, OPS_C),
                                   .preact = ops_case_at(c, OPS_PREACT),
                                   .ldx = c->shape.k,
                                   .ldw = c->shape.k,
                                   .ldy = c->shape.n,
                                   .ld_preact = c->shape.n,
                                   .activation = c->activation,
                                   .compute = c->compute,
                                   .dtype = c->dtype};
}

static struct gpunvme_linear_grad backward_of(const struct ops_case *c)
{
    return (struct gpunvme_linear_grad){.rows = c->shape.m,
                                        .in = c->shape.k,
                                        .out = c->shape.n,
                                        .x = ops_case_at(c, OPS_A),
                                        .weight = ops_case_at(c, OPS_B),
                                        .grad_y = ops_case_at(c, OPS_GRAD_Y),
                                        .preact = ops_case_at(c, OPS_PREACT),
                                        .grad_x = ops_case_at(c, OPS_C),
                                        .grad_weight = ops_case_at(c, OPS_GRAD_WEIGHT),
                                        .grad_bias = ops_case_at(c, OPS_GRAD_BIAS),
                                        .ldx = c->shape.k,
                                        .ldw = c->shape.k,
                                        .ld_grad_y = c->shape.n,
                                        .ld_preact = c->shape.n,
                                        .ld_grad_x = c->shape.k,
                                        .ld_grad_weight = c->shape.k,
                                        .activation = c->activation,
                                        .compute = c->compute,
                                        .dtype = c->dtype,
                                        .grad_dtype = c->dtype};
}

/* Runs the case, or only asks for the name of its variant, or for its workspace. */
static gpunvme_ops_status_t call(const struct ops_case *c, const struct gpunvme_ops_exec *exec,
                                 size_t *nbytes, const char **name)
{
    if (ops_memory_op(c->op))
        return ops_memory_op(c->op)->call(c, exec, nbytes, name);
    switch (c->op) {
    case GPUNVME_OPS_MATMUL: {
        struct gpunvme_matmul p = matmul_of(c);

        return OPS_CALL(gpunvme_matmul, p);
    }
    case GPUNVME_OPS_LINEAR_FORWARD: {
        struct gpunvme_linear p = forward_of(c);

        return OPS_CALL(gpunvme_linear_forward, p);
    }
    case GPUNVME_OPS_LINEAR_BACKWARD: {
        struct gpunvme_linear_grad p = backward_of(c);

        return OPS_CALL(gpunvme_linear_backward, p);
    }
    case GPUNVME_OPS_ATTENTION: {
        struct gpunvme_attention p = ops_attention_of(c);

        return OPS_CALL(gpunvme_attention, p);
    }
    case GPUNVME_OPS_ATTENTION_BACKWARD: {
        struct gpunvme_attention_grad p = ops_attention_backward_of(c);

        return OPS_CALL(gpunvme_attention_backward, p);
    }
    case GPUNVME_OPS_ATTENTION_PAGED: {
        struct gpunvme_attention_paged p = ops_attention_paged_of(c);

        return OPS_CALL(gpunvme_attention_paged, p);
    }
    default: {
        struct gpunvme_kv_append p = ops_kv_append_of(c);

        return OPS_CALL(gpunvme_kv_append, p);
    }
    }
}

/* A variant that runs several times is asked once. */
static gpunvme_ops_status_t make_workspace(struct ops_case *c, const char *variant)
{
    struct gpunvme_ops_exec exec = {.device = c->device, .variant = variant, .threads = c->threads};
    size_t nbytes = 0;
    gpunvme_ops_status_t status =
        variant && c->fits == variant ? GPUNVME_OPS_OK : call(c, &exec, &nbytes, NULL);

    if (status)
        return status;
    if (nbytes > c->workspace_nbytes) {
        nbytes = (nbytes + 4095) & ~(size_t)4095;
        drop_workspace(c);
        c->workspace =
            c->device == GPUNVME_OPS_CPU ? aligned_alloc(4096, nbytes) : ops_gpu_new(nbytes);
        c->workspace_nbytes = c->workspace ? nbytes : 0;
    }
    c->fits = variant;
    return GPUNVME_OPS_OK;
}

gpunvme_ops_status_t ops_case_run(struct ops_case *c, const char *variant)
{
    struct gpunvme_ops_exec exec = {.device = c->device, .variant = variant, .threads = c->threads};
    gpunvme_ops_status_t status = make_workspace(c, variant);

    if (status)
        return status;
    exec.workspace = c->workspace;
    exec.workspace_nbytes = c->workspace_nbytes;
    return call(c, &exec, NULL, NULL);
}

const char *ops_case_choice(const struct ops_case *c)
{
    struct gpunvme_ops_exec exec = {.device = c->device, .threads = c->threads};
    const char *name = "?";

    return call(c, &exec, NULL, &name) ? "?" : name;
}

bool ops_case_analyze(const struct ops_case *c, const char *variant,
                      struct gpunvme_matmul_metrics *metrics)
{
    struct gpunvme_ops_exec exec = {.device = c->device, .variant = variant, .threads = c->threads};
    struct gpunvme_matmul p = matmul_of(c);

    return c->op == GPUNVME_OPS_MATMUL && !gpunvme_matmul_analyze(&p, &exec, metrics);
}
