/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What is asked of every operator's arguments: see check.h.
 */
#include <inttypes.h>
#include <stdbool.h>

#include "ops/core/check.h"

gpunvme_ops_status_t ops_check_enum(const char *name, int value, int count)
{
    if (value < 0 || value >= count)
        return ops_fail(GPUNVME_OPS_ERR_INVALID, "%s is %d: it must be from 0 to %d", name, value,
                        count - 1);
    return GPUNVME_OPS_OK;
}

gpunvme_ops_status_t ops_check_size(const char *name, int64_t value)
{
    if (value < 0)
        return ops_fail(GPUNVME_OPS_ERR_SHAPE, "%s is %" PRId64 ": it must not be negative", name,
                        value);
    return GPUNVME_OPS_OK;
}

gpunvme_ops_status_t ops_check_exec(const struct gpunvme_ops_exec *exec)
{
    gpunvme_ops_status_t status =
        ops_check_enum("exec->device", exec->device, GPUNVME_OPS_NDEVICES);

    if (status)
        return status;
    if (exec->threads < 0)
        return ops_fail(GPUNVME_OPS_ERR_INVALID, "exec->threads is %d: 0 is as many as there are",
                        exec->threads);
    if ((exec->flags & ~GPUNVME_OPS_DETERMINISTIC) || exec->reserved)
        return ops_fail(GPUNVME_OPS_ERR_INVALID,
                        "exec has flags %#x, reserved %#x: set what is not used to 0", exec->flags,
                        exec->reserved);
    return GPUNVME_OPS_OK;
}

/* From the first element to the end of the last, in elements. False: more than 63 bits of bytes. */
static bool extent(const struct ops_matrix *x, int64_t *nelements)
{
    int64_t batches = 0, rows = 0, nbytes;

    *nelements = 0;
    if (x->unused)
        return true;
    if (x->batch > 1 && __builtin_mul_overflow(x->batch - 1, x->stride, &batches))
        return false;
    if (x->rows > 1 && __builtin_mul_overflow(x->rows - 1, x->ld, &rows))
        return false;
    return !__builtin_add_overflow(batches, rows, nelements) &&
           !__builtin_add_overflow(*nelements, x->cols, nelements) &&
           !__builtin_mul_overflow(*nelements, (int64_t)gpunvme_ops_dtype_nbytes(x->dtype),
                                   &nbytes);
}

static uint64_t nbytes_of(const struct ops_matrix *x)
{
    int64_t n = 0;

    extent(x, &n);
    return (uint64_t)n * gpunvme_ops_dtype_nbytes(x->dtype);
}

/* The matrices of a result's batch may lie behind each other or interleaved within rows. */
static bool batch_overlaps_itself(const struct ops_matrix *x)
{
    int64_t rows = x->rows > 1 ? (x->rows - 1) * x->ld : 0;

    if (x->batch < 2 || x->stride >= rows + x->cols)
        return false;
    return !(x->stride >= x->cols && x->ld >= (x->batch - 1) * x->stride + x->cols);
}

static gpunvme_ops_status_t check_shape(const struct ops_matrix *x)
{
    int64_t n;

    if (x->unused)
        return GPUNVME_OPS_OK;
    if (x->rows > 1 && x->ld < x->cols)
        return ops_fail(GPUNVME_OPS_ERR_SHAPE,
                        "%s has rows of %" PRId64 " elements but a leading dimension of %" PRId64,
                        x->name, x->cols, x->ld);
    if (x->batch > 1 && x->stride < 0)
        return ops_fail(GPUNVME_OPS_ERR_SHAPE,
                        "the stride of %s is %" PRId64 ": it must not be negative", x->name,
                        x->stride);
    if (!extent(x, &n))
        return ops_fail(GPUNVME_OPS_ERR_SHAPE, "%s is larger than 2^63 bytes", x->name);
    if (x->result && batch_overlaps_itself(x))
        return ops_fail(GPUNVME_OPS_ERR_ALIAS,
                        "the matrices of %s overlap each other: its stride is %" PRId64
                        ", its leading dimension %" PRId64,
                        x->name, x->stride, x->ld);
    return GPUNVME_OPS_OK;
}

gpunvme_ops_status_t ops_check_shapes(const struct ops_spans *spans)
{
    for (unsigned i = 0; i < spans->count; i++) {
        gpunvme_ops_status_t status = check_shape(&spans->matrix[i]);

        if (status)
            return status;
    }
    return GPUNVME_OPS_OK;
}

/*
 * Two matrices whose rows interleave: with the same distance between rows, each keeps to its own
 * columns of one wide matrix, or does not.
 */
static bool columns_disjoint(const struct ops_matrix *x, const struct ops_matrix *y)
{
    uint64_t nx = gpunvme_ops_dtype_nbytes(x->dtype), ny = gpunvme_ops_dtype_nbytes(y->dtype);
    uint64_t pitch = (uint64_t)x->ld * nx, distance;

    if (x->rows < 2 || y->rows < 2 || pitch != (uint64_t)y->ld * ny)
        return false;
    if ((x->batch > 1 && (uint64_t)x->stride * nx % pitch) ||
        (y->batch > 1 && (uint64_t)y->stride * ny % pitch))
        return false;
    if ((uintptr_t)y->data < (uintptr_t)x->data)
        return columns_disjoint(y, x);
    distance = ((uintptr_t)y->data - (uintptr_t)x->data) % pitch;
    return distance >= (uint64_t)x->cols * nx && distance + (uint64_t)y->cols * ny <= pitch;
}

static bool overlap(const struct ops_matrix *x, const struct ops_matrix *y)
{
    uintptr_t a = (uintptr_t)x->data, b = (uintptr_t)y->data;

    if (x->unused || y->unused || a >= b + nbytes_of(y) || b >= a + nbytes_of(x))
        return false;
    return !columns_disjoint(x, y);
}

static gpunvme_ops_status_t check_pointer(const struct ops_matrix *x)
{
    size_t nbytes = gpunvme_ops_dtype_nbytes(x->dtype);

    if (x->unused)
        return GPUNVME_OPS_OK;
    if (!x->data)
        return ops_fail(GPUNVME_OPS_ERR_INVALID,
                        "%s is NULL, but has %" PRId64 " x %" PRId64 " elements", x->name, x->rows,
                        x->cols);
    if ((uintptr_t)x->data % nbytes)
        return ops_fail(GPUNVME_OPS_ERR_ALIGN, "%s is at %p: %s needs a multiple of %zu", x->name,
                        x->data, gpunvme_ops_dtype_name(x->dtype), nbytes);
    return GPUNVME_OPS_OK;
}

gpunvme_ops_status_t ops_check_memory(const struct ops_spans *spans)
{
    for (unsigned i = 0; i < spans->count; i++) {
        gpunvme_ops_status_t status = check_pointer(&spans->matrix[i]);

        if (status)
            return status;
    }
    for (unsigned i = 0; i < spans->count; i++)
        for (unsigned j = 0; j < i; j++) {
            const struct ops_matrix *x = &spans->matrix[i], *y = &spans->matrix[j];

            if ((x->result || y->result) && overlap(x, y))
                return ops_fail(GPUNVME_OPS_ERR_ALIAS, "%s and %s overlap",
                                x->result ? x->name : y->name, x->result ? y->name : x->name);
        }
    return GPUNVME_OPS_OK;
}

const char *ops_overlapped(const struct ops_spans *spans, const void *data, size_t nbytes)
{
    uintptr_t a = (uintptr_t)data;

    for (unsigned i = 0; i < spans->count; i++) {
        const struct ops_matrix *x = &spans->matrix[i];
        uintptr_t b = (uintptr_t)x->data;

        if (!x->unused && a < b + nbytes_of(x) && b < a + nbytes)
            return x->name;
    }
    return NULL;
}

size_t ops_workspace_part(int64_t matrices, int64_t rows, int64_t cols, size_t size)
{
    const size_t most = SIZE_MAX / 4, align = GPUNVME_OPS_WORKSPACE_ALIGN;
    size_t nbytes;

    if (__builtin_mul_overflow(matrices, rows, &nbytes) ||
        __builtin_mul_overflow(nbytes, cols, &nbytes) ||
        __builtin_mul_overflow(nbytes, size, &nbytes) || nbytes > most - align)
        return most;
    return (nbytes + align - 1) / align * align;
}
