/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What operators are compared with: OpenBLAS, loaded at run time so that nothing needs it, and the
 * multiply-adds that a core can do when all it touches is registers.
 */
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ops.h"

/* Of CBLAS. */
enum { ROW_MAJOR = 101, NO_TRANS = 111, TRANS = 112 };

bool ops_blas_open(struct ops_blas *blas)
{
    char *(*config)(void), *(*core)(void);
    size_t words;

    memset(blas, 0, sizeof(*blas));
    blas->handle = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    if (!blas->handle)
        return false;
    *(void **)&blas->sgemm = dlsym(blas->handle, "cblas_sgemm");
    *(void **)&blas->set_num_threads = dlsym(blas->handle, "openblas_set_num_threads");
    *(void **)&config = dlsym(blas->handle, "openblas_get_config");
    *(void **)&core = dlsym(blas->handle, "openblas_get_corename");
    if (!blas->sgemm || !blas->set_num_threads || !config || !core)
        return false;
    /* "OpenBLAS 0.3.21 NO_LAPACKE …": two words of it. */
    words = strcspn(config(), " ");
    words += config()[words] ? 1 + strcspn(config() + words + 1, " ") : 0;
    snprintf(blas->config, sizeof(blas->config), "%.*s, its code for %s%s", (int)words, config(),
             core(), getenv("OPENBLAS_CORETYPE") ? ", which OPENBLAS_CORETYPE asked for" : "");
    return true;
}

void ops_blas_run(const struct ops_blas *blas, const struct ops_case *c, int threads)
{
    int m = (int)c->shape.m, n = (int)c->shape.n, k = (int)c->shape.k;

    blas->set_num_threads(threads);
    if (c->op == GPUNVME_OPS_MATMUL) {
        blas->sgemm(ROW_MAJOR, NO_TRANS, NO_TRANS, m, n, k, 1, c->host[OPS_A], k, c->host[OPS_B], n,
                    0, c->host[OPS_C], n);
    } else if (c->op == GPUNVME_OPS_LINEAR_FORWARD) {
        blas->sgemm(ROW_MAJOR, NO_TRANS, TRANS, m, n, k, 1, c->host[OPS_A], k, c->host[OPS_B], k, 0,
                    c->host[OPS_C], n);
    } else {
        blas->sgemm(ROW_MAJOR, NO_TRANS, NO_TRANS, m, k, n, 1, c->host[OPS_GRAD_Y], n,
                    c->host[OPS_B], k, 0, c->host[OPS_C], k);
        blas->sgemm(ROW_MAJOR, TRANS, NO_TRANS, n, k, m, 1, c->host[OPS_GRAD_Y], n, c->host[OPS_A],
                    k, 0, c->host[OPS_GRAD_WEIGHT], k);
    }
}

/*
 * Twelve sums that do not wait for each other: two units with a latency of four or five keep ten
 * in flight. The factor is 1, in memory that the compiler knows nothing of.
 */
#define STEPS      200000
#define EACH(X)    X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)
#define DECLARE(i) vec x##i = {(float)(i)};
#define STEP(i)    x##i = x##i * factor + addend;
#define ADD(i)     +x##i

#define PEAK(name, lanes, attribute)                                                               \
    attribute static float name(const volatile float *one)                                         \
    {                                                                                              \
        typedef float vec __attribute__((vector_size(lanes * 4)));                                 \
        vec factor = (vec){0} + one[0], addend = (vec){0} + one[1], sum;                           \
        EACH(DECLARE)                                                                              \
                                                                                                   \
        for (int i = 0; i < STEPS; i++) {                                                          \
            EACH(STEP)                                                                             \
        }                                                                                          \
        sum = EACH(ADD);                                                                           \
        return sum[0];                                                                             \
    }

PEAK(peak_4, 4, )
#if defined(__x86_64__)
PEAK(peak_8, 8, __attribute__((target("avx2,fma"))))
PEAK(peak_16, 16, __attribute__((target("avx512f,fma"))))
#endif

double ops_peak(void)
{
    static const volatile float one[2] = {1, 0x1p-20f};
    float (*run)(const volatile float *) = peak_4;
    int lanes = 4;
    double start, seconds;

#if defined(__x86_64__)
    struct gpunvme_ops_capability cpu;

    gpunvme_ops_capability(GPUNVME_OPS_CPU, 0, &cpu);
    if (cpu.cpu_features & GPUNVME_OPS_CPU_AVX512)
        run = peak_16, lanes = 16;
    else if (cpu.cpu_features & GPUNVME_OPS_CPU_AVX2)
        run = peak_8, lanes = 8;
#endif
    start = ops_cpu_now();
    /* The result is looked at, or the compiler would not compute it. */
    if (isnan(run(one)))
        return 0;
    seconds = ops_cpu_now() - start;
    return 2.0 * 12 * lanes * STEPS / seconds * 1e-9;
}
