/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What is asked of every operator's arguments: sizes, leading dimensions, pointers, and that
 * results overlap nothing.
 */
#ifndef OPS_CORE_CHECK_H
#define OPS_CORE_CHECK_H

#include "ops/core/fail.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * A matrix, or `batch` of them, as it lies in memory. A tensor has a fourth dimension, between the
 * rows and the columns: `depth` of it, `pitch` elements apart. Its strides may be in any order.
 */
struct ops_matrix {
    const char *name; /* for messages: "A" */
    const void *data;
    int64_t rows, cols, ld;
    int64_t batch, stride;
    int dtype;
    int result;           /* it is written */
    int unused;           /* no element of it is read or written: anything goes */
    int64_t depth, pitch; /* depth 0: a matrix */
    int integers;         /* the elements are int32_t, and not of `dtype` */
};

/* All matrices of a call. */
struct ops_spans {
    struct ops_matrix matrix[20];
    unsigned count;
};

/* Adds a matrix of `dtype`; one without elements may be NULL. */
void ops_add_matrix(struct ops_spans *spans, const char *name, const void *data, int64_t rows,
                    int64_t cols, int64_t ld, int dtype, int result);

/* Adds an array of int32_t that is read. */
void ops_add_integers(struct ops_spans *spans, const char *name, const int32_t *data,
                      int64_t count);

/* Leading dimensions, strides and that sizes in bytes fit 63 bits; pointers are not looked at. */
gpunvme_ops_status_t ops_check_shapes(const struct ops_spans *spans);

/* Pointers: not NULL, aligned, and no result overlaps another matrix or itself. */
gpunvme_ops_status_t ops_check_memory(const struct ops_spans *spans);

/* Does [data, data + nbytes) overlap a matrix? Its name, or NULL. */
const char *ops_overlapped(const struct ops_spans *spans, const void *data, size_t nbytes);

/* An enumeration's value, 0 … count - 1. */
gpunvme_ops_status_t ops_check_enum(const char *name, int value, int count);

/* A size: not negative. */
gpunvme_ops_status_t ops_check_size(const char *name, int64_t value);

/*
 * Bytes of a workspace's part that has so many matrices of elements of `size` bytes, so that the
 * next part is aligned. SIZE_MAX / 4, which nobody has, if it is more than that.
 */
size_t ops_workspace_part(int64_t matrices, int64_t rows, int64_t cols, size_t size);

gpunvme_ops_status_t ops_check_exec(const struct gpunvme_ops_exec *exec);

#ifdef __cplusplus
}
#endif
#endif
