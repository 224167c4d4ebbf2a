/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What the tests of operators share: matrices with padding that must not be touched, random and
 * poisoned contents, references in f64 and the error that f32 may make.
 *
 * The same tests run on the CPU and, with OPS_TEST_CUDA, on the GPU: there a call's matrices are
 * copied to the GPU's memory, each into an allocation that ends with it, and results back.
 */
#ifndef TESTS_OPS_TEST_H
#define TESTS_OPS_TEST_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/random.h"
#include "gpunvme/ops.h"
#include "ops/cpu/dtype.h"

#ifdef OPS_TEST_CUDA
#include <cuda_runtime_api.h>

#define TEST_DEVICE GPUNVME_OPS_CUDA
#else
#define TEST_DEVICE GPUNVME_OPS_CPU
#endif

/* Where each access to memory is checked a reference takes long: fewer cases then. */
#ifdef __SANITIZE_ADDRESS__
#define FEWER_CASES 1
#else
#define FEWER_CASES 0
#endif

#define F32_EPS  0x1p-24 /* half an ulp of 1 */
#define TF32_EPS 0x1p-10 /* two factors, each of which the GPU rounds to the nearest tf32 */

/* Skips all of a program's tests without a GPU: returns 77 then, else 0. */
static inline int no_gpu(void)
{
#ifdef OPS_TEST_CUDA
    struct gpunvme_ops_capability x;

    if (gpunvme_ops_capability(GPUNVME_OPS_CUDA, 0, &x)) {
        printf("SKIP: %s\n", gpunvme_ops_detail());
        return 77;
    }
    printf("on %s (%s)\n", x.name, x.features);
#endif
    return 0;
}

/* Where the device under test sees `nbytes` of host memory; NULL stays NULL. */
static inline void *device_in(const void *host, size_t nbytes)
{
#ifdef OPS_TEST_CUDA
    void *device = NULL;
    size_t room = nbytes ? nbytes : 1;

    if (!host)
        return NULL;
    /* memcheck takes a cp.async of 16 bytes that reads fewer for one that reads all. */
    if (getenv("GPUNVME_TEST_SANITIZER"))
        room = (room + 15) / 16 * 16;
    assert_int_equal(cudaMalloc(&device, room), 0);
    assert_int_equal(cudaMemcpy(device, host, nbytes, cudaMemcpyHostToDevice), 0);
    return device;
#else
    (void)nbytes;
    return (void *)(uintptr_t)host;
#endif
}

/* Fetches it back, unless `host` is NULL or not wanted, and ends its life on the device. */
static inline void device_out(void *host, void *device, size_t nbytes)
{
#ifdef OPS_TEST_CUDA
    if (host && device)
        assert_int_equal(cudaMemcpy(host, device, nbytes, cudaMemcpyDeviceToHost), 0);
    assert_int_equal(cudaFree(device), 0);
#else
    (void)host;
    (void)device;
    (void)nbytes;
#endif
}

/* From the first to the last element of a matrix, or a batch of them, in bytes. */
static inline size_t extent_nbytes(int64_t rows, int64_t cols, int64_t ld, int64_t batch,
                                   int64_t stride, int dtype)
{
    int64_t n = 0;

    if (rows && cols && batch)
        n = (batch - 1) * stride + (rows > 1 ? (rows - 1) * ld : 0) + cols;
    return (size_t)n * gpunvme_ops_dtype_nbytes(dtype);
}

/* Matrices of a batch, `before` elements into a block of `nelements`. */
struct mat {
    int64_t rows, cols, ld, batch, stride;
    int dtype;
    size_t nbytes;
    void *block; /* all of it, exactly as large as it must be */
};

static inline struct mat mat_new(int64_t rows, int64_t cols, int64_t pad, int64_t batch, int dtype)
{
    struct mat x = {rows, cols, cols + pad, batch, 0, dtype, 0, NULL};
    int64_t last;

    x.stride = rows * x.ld + 3 * pad;
    last = rows && cols && batch ? (batch - 1) * x.stride + (rows - 1) * x.ld + cols : 0;
    x.nbytes = (size_t)last * gpunvme_ops_dtype_nbytes(dtype);
    /* A sanitizer sees a step beyond the last element; nothing at all may be NULL. */
    x.block = x.nbytes ? malloc(x.nbytes) : NULL;
    return x;
}

static inline void mat_free(struct mat *x)
{
    free(x->block);
}

static inline int64_t mat_index(const struct mat *x, int64_t b, int64_t i, int64_t j)
{
    return b * x->stride + i * x->ld + j;
}

static inline double mat_get(const struct mat *x, int64_t b, int64_t i, int64_t j)
{
    return (double)cpu_load(x->block, mat_index(x, b, i, j), x->dtype);
}

/* All elements in f64, without padding: batch x rows x cols, or turned, batch x cols x rows. */
static inline double *mat_values(const struct mat *x, bool turned)
{
    int64_t n = x->rows * x->cols;
    double *values = malloc((size_t)(x->batch * n + 1) * sizeof(*values));

    assert_non_null(values);
    for (int64_t b = 0; b < x->batch; b++)
        for (int64_t i = 0; i < x->rows; i++)
            for (int64_t j = 0; j < x->cols; j++)
                values[b * n + (turned ? j * x->rows + i : i * x->cols + j)] = mat_get(x, b, i, j);
    return values;
}

/* The inner loops of references, in which tests spend their time: no access is checked. */
#define UNCHECKED __attribute__((no_sanitize("address")))

/* Of n products, and of their sizes. In eight parts, so that no addition waits for another. */
UNCHECKED static inline double sum_of_products(const double *x, const double *y, int64_t n,
                                               double *sizes)
{
    double sums[8] = {0}, parts[8] = {0}, sum = 0;

    for (int64_t i = 0; i < n; i += 8)
        for (int64_t c = 0; c < 8 && i + c < n; c++) {
            double product = x[i + c] * y[i + c];

            sums[c] += product;
            parts[c] += fabs(product);
        }
    *sizes = 0;
    for (int c = 0; c < 8; c++) {
        sum += sums[c];
        *sizes += parts[c];
    }
    return sum;
}

/* Every byte, padding too, is NaN in each type. */
static inline void mat_poison(struct mat *x)
{
    if (x->block)
        memset(x->block, 0xff, x->nbytes);
}

/* Random elements in [-1, 1) among poisoned padding. */
static inline void mat_random(struct mat *x, struct base_random *r)
{
    mat_poison(x);
    if (!x->block)
        return;
    for (int64_t b = 0; b < x->batch; b++)
        for (int64_t i = 0; i < x->rows; i++)
            for (int64_t j = 0; j < x->cols; j++)
                cpu_store(x->block, mat_index(x, b, i, j), x->dtype,
                          (float)(2 * base_random_real(r) - 1));
}

static inline struct mat mat_copy(const struct mat *x)
{
    struct mat y = *x;

    y.block = x->nbytes ? malloc(x->nbytes) : NULL;
    if (y.block)
        memcpy(y.block, x->block, x->nbytes);
    return y;
}

/* All that lies between the elements is as it was poisoned. */
static inline void mat_expect_padding(const struct mat *x)
{
    size_t size = gpunvme_ops_dtype_nbytes(x->dtype);
    unsigned char *seen = x->nbytes ? malloc(x->nbytes) : NULL;

    if (!seen)
        return;
    memcpy(seen, x->block, x->nbytes);
    for (int64_t b = 0; b < x->batch; b++)
        for (int64_t i = 0; i < x->rows; i++)
            memset(seen + (size_t)mat_index(x, b, i, 0) * size, 0xff, (size_t)x->cols * size);
    for (size_t i = 0; i < x->nbytes; i++)
        if (seen[i] != 0xff)
            fail_msg("padding was written at byte %zu", i);
    free(seen);
}

/* What rounding a result to its type may cost. */
static inline double rounding(int dtype, double value)
{
    switch (dtype) {
    case GPUNVME_OPS_F16:
        return fabs(value) * 0x1p-11 + 0x1p-25;
    case GPUNVME_OPS_BF16:
        return fabs(value) * 0x1p-8;
    default:
        return fabs(value) * F32_EPS;
    }
}

/* The workspace that a call asks for, to the byte, or NULL. */
struct workspace {
    void *data;
    size_t nbytes;
};

static inline struct workspace workspace_new(size_t nbytes)
{
    struct workspace w = {NULL, nbytes};

    if (!nbytes)
        return w;
#ifdef OPS_TEST_CUDA
    assert_int_equal(cudaMalloc(&w.data, nbytes), 0);
    assert_int_equal(cudaMemset(w.data, 0xff, nbytes), 0); /* NaNs */
#else
    w.data = aligned_alloc(GPUNVME_OPS_WORKSPACE_ALIGN, (nbytes + 255) & ~(size_t)255);
    assert_non_null(w.data);
    memset(w.data, 0xff, (nbytes + 255) & ~(size_t)255);
#endif
    return w;
}

static inline void workspace_free(struct workspace *w)
{
#ifdef OPS_TEST_CUDA
    assert_int_equal(cudaFree(w->data), 0);
#else
    free(w->data);
#endif
}

#define expect_ok(call)                                                                            \
    do {                                                                                           \
        gpunvme_ops_status_t status_ = (call);                                                     \
        if (status_)                                                                               \
            fail_msg("%s: %s: %s", #call, gpunvme_ops_status_name(status_), gpunvme_ops_detail()); \
    } while (0)

/* The status, with a detail that holds `text`. */
#define expect_status(call, expected, text)                                                        \
    do {                                                                                           \
        gpunvme_ops_status_t status_ = (call);                                                     \
        if (status_ != (expected) || !strstr(gpunvme_ops_detail(), text))                          \
            fail_msg("%s: %s: %s", #call, gpunvme_ops_status_name(status_), gpunvme_ops_detail()); \
    } while (0)

/* Calls test(name) for "auto" and each variant of the device that this machine has. */
static inline void for_each_variant(int op, void (*test)(const char *variant, void *arg), void *arg)
{
    struct gpunvme_ops_variant v;

    test("auto", arg);
    for (unsigned i = 0; !gpunvme_ops_variant(op, TEST_DEVICE, i, &v); i++) {
        if (v.available)
            test(v.name, arg);
        else
            printf("SKIP: variant %s needs %s\n", v.name, v.needs);
    }
}

/* Are these types the variant's? Where they are not, naming it is refused. */
static inline bool variant_takes(int op, const char *name, int dtype, int compute)
{
    struct gpunvme_ops_variant v;

    for (unsigned i = 0; !gpunvme_ops_variant(op, TEST_DEVICE, i, &v); i++)
        if (!strcmp(v.name, name))
            return (v.dtypes & 1u << dtype) &&
                   (dtype != GPUNVME_OPS_F32 || v.computes & 1u << compute);
    return true; /* auto */
}

/* What the ladder says of a variant. */
static inline bool variant_find(int op, const char *name, struct gpunvme_ops_variant *v)
{
    for (unsigned i = 0; !gpunvme_ops_variant(op, TEST_DEVICE, i, v); i++)
        if (!strcmp(v->name, name))
            return true;
    return false;
}

#endif
