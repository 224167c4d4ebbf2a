/* SPDX-License-Identifier: BSD-3-Clause
 *
 * One operator on random data: memory, a run by any variant, and the references in f64.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/random.h"
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

static bool is_result(const struct ops_case *c, int matrix)
{
    return matrix == OPS_C || matrix == OPS_GRAD_WEIGHT || matrix == OPS_GRAD_BIAS ||
           (matrix == OPS_PREACT && c->op == GPUNVME_OPS_LINEAR_FORWARD);
}

/* `n` elements: random in [-1, 1), results poisoned. */
static bool make_matrix(struct ops_case *c, int matrix, int64_t n, struct base_random *r)
{
    size_t nbytes = (size_t)n * gpunvme_ops_dtype_nbytes(c->dtype);
    size_t pages = (nbytes + 4095) & ~(size_t)4095;
    void *data = aligned_alloc(4096, pages ? pages : 4096);

    c->host[matrix] = data;
    c->nbytes[matrix] = nbytes;
    if (!data)
        return false;
    if (is_result(c, matrix))
        memset(data, 0xff, nbytes);
    else
        for (int64_t i = 0; i < n; i++)
            cpu_store(data, i, c->dtype, (float)(2 * base_random_real(r) - 1));
    if (c->device == GPUNVME_OPS_CPU)
        return true;
    c->gpu[matrix] = ops_gpu_new(nbytes);
    return c->gpu[matrix] && ops_gpu_put(c->gpu[matrix], data, nbytes);
}

void *ops_case_at(const struct ops_case *c, int matrix)
{
    return c->device == GPUNVME_OPS_CPU ? c->host[matrix] : c->gpu[matrix];
}

/* Memory is handed out before it is there: what would not fit is refused, not found out. */
static bool fits(const struct ops_case *c, int64_t elements)
{
    double bytes = (double)elements * (double)gpunvme_ops_dtype_nbytes(c->dtype);

    return bytes < (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE) * 0.8;
}

bool ops_case_make(struct ops_case *c)
{
    int64_t mk = c->shape.m * c->shape.k, kn = c->shape.k * c->shape.n;
    int64_t mn = c->shape.m * c->shape.n, n = c->shape.n;
    bool linear = c->op != GPUNVME_OPS_MATMUL, backward = c->op == GPUNVME_OPS_LINEAR_BACKWARD;
    int64_t counts[OPS_NMATRICES] = {mk, kn, backward ? mk : mn, n, mn, mn, kn, n};
    int nmatrices = backward ? OPS_NMATRICES : linear ? OPS_GRAD_Y : OPS_BIAS;
    struct base_random r = {.state = c->seed};
    bool ok = fits(c, 2 * (mk + kn + mn));

    for (int i = 0; i < nmatrices && ok; i++)
        ok = make_matrix(c, i, counts[i], &r);
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
}

void ops_case_drop(struct ops_case *c)
{
    for (int i = 0; i < OPS_NMATRICES; i++) {
        free(c->host[i]);
        ops_gpu_drop(c->gpu[i]);
        c->host[i] = c->gpu[i] = NULL;
    }
    drop_workspace(c);
}

bool ops_case_poison(struct ops_case *c)
{
    bool ok = true;

    for (int i = 0; i < OPS_NMATRICES; i++)
        if (c->host[i] && is_result(c, i)) {
            memset(c->host[i], 0xff, c->nbytes[i]);
            if (c->device != GPUNVME_OPS_CPU)
                ok = ok && ops_gpu_put(c->gpu[i], c->host[i], c->nbytes[i]);
        }
    return ok;
}

bool ops_case_fetch(struct ops_case *c)
{
    bool ok = true;

    for (int i = 0; i < OPS_NMATRICES && c->device != GPUNVME_OPS_CPU; i++)
        if (c->host[i] && is_result(c, i))
            ok = ok && ops_gpu_get(c->host[i], c->gpu[i], c->nbytes[i]);
    return ok;
}

double ops_case_flops(const struct ops_case *c)
{
    return (c->op == GPUNVME_OPS_LINEAR_BACKWARD ? 4.0 : 2.0) * (double)c->shape.m *
           (double)c->shape.n * (double)c->shape.k;
}

static struct gpunvme_matmul matmul_of(const struct ops_case *c)
{
    return (struct gpunvme_matmul){.m = c->shape.m,
                                   .n = c->shape.n,
                                   .k = c->shape.k,
                                   .batch = 1,
                                   .a = ops_case_at(c, OPS_A),
                                   .b = ops_case_at(c, OPS_B),
                                   .c = ops_case_at(c, OPS_C),
                                   .lda = c->shape.k,
                                   .ldb = c->shape.n,
                                   .ldc = c->shape.n,
                                   .alpha = 1,
                                   .dtype = c->dtype,
                                   .compute = c->compute,
                                   .out_dtype = c->dtype};
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

/* Runs the case, or with `nbytes` only asks for its workspace. */
static gpunvme_ops_status_t call(struct ops_case *c, const struct gpunvme_ops_exec *exec,
                                 size_t *nbytes)
{
    switch (c->op) {
    case GPUNVME_OPS_MATMUL: {
        struct gpunvme_matmul p = matmul_of(c);

        return nbytes ? gpunvme_matmul_workspace(&p, exec, nbytes) : gpunvme_matmul(&p, exec);
    }
    case GPUNVME_OPS_LINEAR_FORWARD: {
        struct gpunvme_linear p = forward_of(c);

        return nbytes ? gpunvme_linear_forward_workspace(&p, exec, nbytes)
                      : gpunvme_linear_forward(&p, exec);
    }
    default: {
        struct gpunvme_linear_grad p = backward_of(c);

        return nbytes ? gpunvme_linear_backward_workspace(&p, exec, nbytes)
                      : gpunvme_linear_backward(&p, exec);
    }
    }
}

gpunvme_ops_status_t ops_case_run(struct ops_case *c, const char *variant)
{
    struct gpunvme_ops_exec exec = {.device = c->device, .variant = variant, .threads = c->threads};
    size_t nbytes = 0;
    gpunvme_ops_status_t status = call(c, &exec, &nbytes);

    if (status)
        return status;
    if (nbytes > c->workspace_nbytes) {
        nbytes = (nbytes + 4095) & ~(size_t)4095;
        drop_workspace(c);
        c->workspace =
            c->device == GPUNVME_OPS_CPU ? aligned_alloc(4096, nbytes) : ops_gpu_new(nbytes);
        c->workspace_nbytes = c->workspace ? nbytes : 0;
    }
    exec.workspace = c->workspace;
    exec.workspace_nbytes = c->workspace_nbytes;
    return call(c, &exec, NULL);
}

bool ops_case_analyze(const struct ops_case *c, const char *variant,
                      struct gpunvme_matmul_metrics *metrics)
{
    struct gpunvme_ops_exec exec = {.device = c->device, .variant = variant, .threads = c->threads};
    struct gpunvme_matmul p = matmul_of(c);

    return c->op == GPUNVME_OPS_MATMUL && !gpunvme_matmul_analyze(&p, &exec, metrics);
}

/* Half an ulp of f32, and what activations in f32 may lose: see tests/ops/test_linear.c. */
#define EPS     0x1p-24
#define ACT_EPS (16 * EPS)

static double rounding(int dtype, double value)
{
    switch (dtype) {
    case GPUNVME_OPS_F16:
        return fabs(value) * 0x1p-11 + 0x1p-25;
    case GPUNVME_OPS_BF16:
        return fabs(value) * 0x1p-8;
    default:
        return fabs(value) * EPS;
    }
}

/* What products lose beyond f32: on the GPU tf32, of which each factor may lose 2^-10. */
static double tf32_error(const struct ops_case *c)
{
    return c->device == GPUNVME_OPS_CUDA && c->dtype == GPUNVME_OPS_F32 &&
                   c->compute == GPUNVME_OPS_COMPUTE_TF32
               ? 0x1p-9
               : 0;
}

/* What dZ loses: on the GPU it is rounded to the type of the matrices. */
static double dz_error(const struct ops_case *c)
{
    bool rounded = c->device == GPUNVME_OPS_CUDA && c->dtype != GPUNVME_OPS_F32 &&
                   c->activation != GPUNVME_OPS_ACT_NONE;

    return 2 * ACT_EPS + tf32_error(c) + (rounded ? rounding(c->dtype, 1) : 0);
}

static double load(const struct ops_case *c, const void *data, int64_t i)
{
    return (double)cpu_load(data, i, c->dtype);
}

static double activate(int activation, double z)
{
    switch (activation) {
    case GPUNVME_OPS_ACT_RELU:
        return z > 0 ? z : 0;
    case GPUNVME_OPS_ACT_GELU:
        return z * 0.5 * (1 + erf(z * M_SQRT1_2));
    case GPUNVME_OPS_ACT_GELU_TANH:
        return z * 0.5 * (1 + tanh(sqrt(2 / M_PI) * (z + 0.044715 * z * z * z)));
    case GPUNVME_OPS_ACT_SILU:
        return z / (1 + exp(-z));
    default:
        return z;
    }
}

/* The derivative by a difference, off by some 1e-10. */
static double slope(int activation, double z)
{
    const double h = 1e-5;

    if (activation == GPUNVME_OPS_ACT_NONE)
        return 1;
    if (activation == GPUNVME_OPS_ACT_RELU)
        return z > 0 ? 1 : 0;
    return (activate(activation, z + h) - activate(activation, z - h)) / (2 * h);
}

/* A sum of products, and the sum of their sizes. */
struct sum {
    double value, size;
};

static double worst(double so_far, double got, double expected, double allowed)
{
    double share = fabs(got - expected) / allowed;

    if (got == expected)
        share = 0;
    return share <= so_far ? so_far : share; /* a NaN stays */
}

static double error_of_product(const struct ops_case *c)
{
    const struct ops_shape s = c->shape;
    bool linear = c->op == GPUNVME_OPS_LINEAR_FORWARD;
    double most = 0;

    for (int64_t i = 0; i < s.m && most <= 1; i++)
        for (int64_t j = 0; j < s.n; j++) {
            struct sum z = {0};
            double error, y;

            if (linear)
                z.value = load(c, c->host[OPS_BIAS], j), z.size = fabs(z.value);
            for (int64_t p = 0; p < s.k; p++) {
                double product = load(c, c->host[OPS_A], i * s.k + p) *
                                 load(c, c->host[OPS_B], linear ? j * s.k + p : p * s.n + j);

                z.value += product;
                z.size += fabs(product);
            }
            error = ((double)(s.k + 3) * EPS + tf32_error(c)) * z.size;
            y = linear ? activate(c->activation, z.value) : z.value;
            if (linear)
                most = worst(most, load(c, c->host[OPS_PREACT], i * s.n + j), z.value,
                             error + rounding(c->dtype, z.value));
            /* No activation is steeper than 1.13. */
            most = worst(most, load(c, c->host[OPS_C], i * s.n + j), y,
                         1.2 * error + ACT_EPS * fabs(z.value) + rounding(c->dtype, y));
        }
    return most;
}

/* sum over p < count of dz[first + p * step] * other[at + p * stride]; other NULL is 1. */
static struct sum sum_dz(const struct ops_case *c, const double *dz, int64_t count, int64_t first,
                         int64_t step, const void *other, int64_t at, int64_t stride)
{
    struct sum s = {0};

    for (int64_t p = 0; p < count; p++) {
        double y = other ? load(c, other, at + p * stride) : 1;

        s.value += dz[first + p * step] * y;
        s.size += fabs(1.2 * load(c, c->host[OPS_GRAD_Y], first + p * step) * y);
    }
    return s;
}

static double worst_sum(const struct ops_case *c, double so_far, double got, struct sum s,
                        int64_t count)
{
    return worst(so_far, got, s.value,
                 ((double)(count + 3) * EPS + dz_error(c)) * s.size + rounding(c->dtype, s.value));
}

static double error_of_gradients(const struct ops_case *c)
{
    const int64_t m = c->shape.m, n = c->shape.n, k = c->shape.k;
    double *dz = malloc((size_t)(m * n) * sizeof(*dz));
    double most = 0;

    if (!dz)
        return NAN;
    for (int64_t i = 0; i < m * n; i++)
        dz[i] =
            load(c, c->host[OPS_GRAD_Y], i) * slope(c->activation, load(c, c->host[OPS_PREACT], i));
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < k; j++)
            most = worst_sum(c, most, load(c, c->host[OPS_C], i * k + j),
                             sum_dz(c, dz, n, i * n, 1, c->host[OPS_B], j, k), n);
    for (int64_t i = 0; i < n; i++) {
        for (int64_t j = 0; j < k; j++)
            most = worst_sum(c, most, load(c, c->host[OPS_GRAD_WEIGHT], i * k + j),
                             sum_dz(c, dz, m, i, n, c->host[OPS_A], j, k), m);
        most = worst_sum(c, most, load(c, c->host[OPS_GRAD_BIAS], i),
                         sum_dz(c, dz, m, i, n, NULL, 0, 0), m);
    }
    free(dz);
    return most;
}

double ops_case_error(const struct ops_case *c)
{
    return c->op == GPUNVME_OPS_LINEAR_BACKWARD ? error_of_gradients(c) : error_of_product(c);
}
