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

void ops_add_matrix(struct ops_spans *spans, const char *name, const void *data, int64_t rows,
                    int64_t cols, int64_t ld, int dtype, int result)
{
    spans->matrix[spans->count++] = (struct ops_matrix){.name = name,
                                                        .data = data,
                                                        .rows = rows,
                                                        .cols = cols,
                                                        .ld = ld,
                                                        .batch = 1,
                                                        .dtype = dtype,
                                                        .result = result,
                                                        .unused = !rows || !cols};
}

void ops_add_integers(struct ops_spans *spans, const char *name, const int32_t *data, int64_t count)
{
    ops_add_matrix(spans, name, data, 1, count, count, GPUNVME_OPS_F32, 0);
    spans->matrix[spans->count - 1].integers = 1;
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

static size_t element_nbytes(const struct ops_matrix *x)
{
    return x->integers ? sizeof(int32_t) : gpunvme_ops_dtype_nbytes(x->dtype);
}

/* A dimension; neighbours in it are `stride` elements apart. */
struct axis {
    int64_t count, stride;
};

enum { NAXES = 4 };

static void axes_of(const struct ops_matrix *x, struct axis axes[NAXES])
{
    axes[0] = (struct axis){x->cols, 1};
    axes[1] = (struct axis){x->depth ? x->depth : 1, x->pitch};
    axes[2] = (struct axis){x->rows, x->ld};
    axes[3] = (struct axis){x->batch, x->stride};
}

/* From the first element to the end of the last, in elements. False: more than 63 bits of bytes. */
static bool extent(const struct ops_matrix *x, int64_t *nelements)
{
    struct axis axes[NAXES];
    int64_t reach, nbytes;

    *nelements = 0;
    if (x->unused)
        return true;
    axes_of(x, axes);
    *nelements = 1;
    for (int i = 0; i < NAXES; i++)
        if (axes[i].count > 1 &&
            (__builtin_mul_overflow(axes[i].count - 1, axes[i].stride, &reach) ||
             __builtin_add_overflow(*nelements, reach, nelements)))
            return false;
    return !__builtin_mul_overflow(*nelements, (int64_t)element_nbytes(x), &nbytes);
}

static uint64_t nbytes_of(const struct ops_matrix *x)
{
    int64_t n = 0;

    extent(x, &n);
    return (uint64_t)n * element_nbytes(x);
}

/*
 * Whether two elements of a result may share an address: not if each dimension, from the smallest
 * stride to the largest, steps over all that the ones before it span.
 */
static bool overlaps_itself(const struct ops_matrix *x)
{
    struct axis axes[NAXES], swap;
    int64_t spanned = 1;

    axes_of(x, axes);
    for (int i = 1; i < NAXES; i++)
        for (int j = i; j > 0 && axes[j].stride < axes[j - 1].stride; j--) {
            swap = axes[j];
            axes[j] = axes[j - 1];
            axes[j - 1] = swap;
        }
    for (int i = 0; i < NAXES; i++) {
        if (axes[i].count < 2)
            continue;
        if (axes[i].stride < spanned)
            return true;
        spanned += (axes[i].count - 1) * axes[i].stride;
    }
    return false;
}

static gpunvme_ops_status_t check_strides(const struct ops_matrix *x)
{
    const struct {
        const char *name;
        int64_t count, stride;
    } strides[] = {
        {"batch", x->batch, x->stride}, {"row", x->rows, x->ld}, {"head", x->depth, x->pitch}};

    if (!x->depth && x->batch > 1 && x->stride < 0)
        return ops_fail(GPUNVME_OPS_ERR_SHAPE,
                        "the stride of %s is %" PRId64 ": it must not be negative", x->name,
                        x->stride);
    for (size_t i = 0; x->depth && i < sizeof(strides) / sizeof(strides[0]); i++)
        if (strides[i].count > 1 && strides[i].stride < 0)
            return ops_fail(GPUNVME_OPS_ERR_SHAPE,
                            "the %s stride of %s is %" PRId64 ": it must not be negative",
                            strides[i].name, x->name, strides[i].stride);
    return GPUNVME_OPS_OK;
}

static gpunvme_ops_status_t check_shape(const struct ops_matrix *x)
{
    gpunvme_ops_status_t status;
    int64_t n;

    if (x->unused)
        return GPUNVME_OPS_OK;
    if (!x->depth && x->rows > 1 && x->ld < x->cols)
        return ops_fail(GPUNVME_OPS_ERR_SHAPE,
                        "%s has rows of %" PRId64 " elements but a leading dimension of %" PRId64,
                        x->name, x->cols, x->ld);
    status = check_strides(x);
    if (status)
        return status;
    if (!extent(x, &n))
        return ops_fail(GPUNVME_OPS_ERR_SHAPE, "%s is larger than 2^63 bytes", x->name);
    if (x->result && x->depth && overlaps_itself(x))
        return ops_fail(GPUNVME_OPS_ERR_ALIAS,
                        "elements of %s overlap: its strides are %" PRId64 " (batch), %" PRId64
                        " (row) and %" PRId64 " (head)",
                        x->name, x->stride, x->ld, x->pitch);
    if (x->result && overlaps_itself(x))
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

/* What an operand spans if steps of whole pitches are left out, in bytes. */
static uint64_t span_within(const struct ops_matrix *x, uint64_t pitch)
{
    uint64_t size = element_nbytes(x), spanned = size;
    struct axis axes[NAXES];

    axes_of(x, axes);
    for (int i = 0; i < NAXES; i++)
        if (axes[i].count > 1 && (uint64_t)axes[i].stride * size % pitch)
            spanned += (uint64_t)(axes[i].count - 1) * (uint64_t)axes[i].stride * size;
    return spanned;
}

/*
 * Two operands that interleave: cut at multiples of a pitch, each keeps to its own bytes of the
 * pieces (columns of one wide matrix, Q, K and V of one packed tensor), or does not.
 */
static bool disjoint_within(const struct ops_matrix *x, const struct ops_matrix *y, uint64_t pitch)
{
    uint64_t distance = ((uintptr_t)y->data - (uintptr_t)x->data) % pitch;

    return distance >= span_within(x, pitch) && distance + span_within(y, pitch) <= pitch;
}

/* The pitches that come into question are the strides of x. y begins at or behind x. */
static bool interleaved(const struct ops_matrix *x, const struct ops_matrix *y)
{
    struct axis axes[NAXES];

    axes_of(x, axes);
    for (int i = 0; i < NAXES; i++)
        if (axes[i].count > 1 && axes[i].stride > 1 &&
            disjoint_within(x, y, (uint64_t)axes[i].stride * element_nbytes(x)))
            return true;
    return false;
}

static bool overlap(const struct ops_matrix *x, const struct ops_matrix *y)
{
    uintptr_t a = (uintptr_t)x->data, b = (uintptr_t)y->data;

    if (x->unused || y->unused || a >= b + nbytes_of(y) || b >= a + nbytes_of(x))
        return false;
    return a <= b ? !interleaved(x, y) : !interleaved(y, x);
}

static gpunvme_ops_status_t check_pointer(const struct ops_matrix *x)
{
    size_t nbytes = element_nbytes(x);

    if (x->unused)
        return GPUNVME_OPS_OK;
    if (!x->data)
        return ops_fail(GPUNVME_OPS_ERR_INVALID,
                        "%s is NULL, but has %" PRId64 " x %" PRId64 " elements", x->name, x->rows,
                        x->cols);
    if ((uintptr_t)x->data % nbytes)
        return ops_fail(GPUNVME_OPS_ERR_ALIGN, "%s is at %p: %s needs a multiple of %zu", x->name,
                        x->data, x->integers ? "int32" : gpunvme_ops_dtype_name(x->dtype), nbytes);
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
