/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Parts of tensors as runs of bytes, and their places in an arena. Moves nothing.
 */
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "data/weights/internal.h"
#include "memory/convert.h"

const char *gpunvme_dtype_name(enum gpunvme_dtype dtype)
{
    static const char *const names[] = {"unknown",
#define X(name, bits) #name,
                                        GPUNVME_DTYPES(X)
#undef X
    };

    return (unsigned)dtype < GPUNVME_NDTYPES ? names[dtype] : names[0];
}

unsigned gpunvme_dtype_bits(enum gpunvme_dtype dtype)
{
    static const uint8_t sizes[] = {0,
#define X(name, bits) bits,
                                    GPUNVME_DTYPES(X)
#undef X
    };

    return (unsigned)dtype < GPUNVME_NDTYPES ? sizes[dtype] : 0;
}

unsigned weights_number(enum gpunvme_dtype dtype)
{
    switch (dtype) {
    case GPUNVME_DTYPE_F32:
        return MEM_F32;
    case GPUNVME_DTYPE_F16:
        return MEM_F16;
    case GPUNVME_DTYPE_BF16:
        return MEM_BF16;
    case GPUNVME_DTYPE_F8_E4M3:
        return MEM_F8_E4M3;
    default:
        return MEM_BYTES;
    }
}

bool weights_part_converts(const struct gpunvme_weights_part *part)
{
    return part->dtype && part->dtype != part->tensor->dtype;
}

static gpunvme_err_t check_dtype(const struct gpunvme_weights_part *part)
{
    unsigned from = weights_number(part->tensor->dtype), to = weights_number(part->dtype);

    if (!weights_part_converts(part))
        return GPUNVME_OK;
    if (from == MEM_BYTES || from == MEM_F8_E4M3 || to == MEM_BYTES)
        return base_fail(GPUNVME_ERR_UNSUPPORTED,
                         "tensor \"%s\": it is %s and can't be converted to %s while it is loaded",
                         SHOW(part->tensor->name), SHOW(part->tensor->dtype_name),
                         gpunvme_dtype_name(part->dtype));
    return GPUNVME_OK;
}

/* ---- Runs --------------------------------------------------------------------------------------
 */

static gpunvme_err_t check_ranges(const struct gpunvme_weights_part *part)
{
    const struct gpunvme_tensor *t = part->tensor;

    for (size_t d = 0; d < t->rank; d++)
        if (part->ranges[d].begin > part->ranges[d].end || part->ranges[d].end > t->shape[d])
            return base_fail(GPUNVME_ERR_INVALID,
                             "tensor \"%s\": elements %llu to %llu of dimension %zu, which has "
                             "%llu",
                             SHOW(t->name), (unsigned long long)part->ranges[d].begin,
                             (unsigned long long)part->ranges[d].end, d,
                             (unsigned long long)t->shape[d]);
    return GPUNVME_OK;
}

/* A part without elements, or a tensor without. */
static bool is_empty(const struct gpunvme_weights_part *part)
{
    for (size_t d = 0; d < part->tensor->rank; d++)
        if (part->ranges[d].begin == part->ranges[d].end)
            return true;
    return false;
}

/*
 * Bits of one step in the dimension before `rank`, given those of the dimension behind. All
 * products divide the tensor's own bits, which are known to fit.
 */
static bool whole_bytes(uint64_t nbits)
{
    return nbits % 8 == 0;
}

gpunvme_err_t weights_part_runs(const struct gpunvme_weights_part *part, struct weights_runs *runs)
{
    const struct gpunvme_tensor *t = part->tensor;
    const struct gpunvme_range *r = part->ranges;
    uint64_t row, nbits, offset = 0; /* of one element of dimension d - 1, and of a run */
    size_t d;
    gpunvme_err_t err;

    err = check_dtype(part);
    if (err)
        return err;
    *runs = (struct weights_runs){.first = t->offset, .nbytes = t->nbytes, .span = t->nbytes};
    runs->count = t->nbytes != 0;
    if (!r || !t->rank)
        return GPUNVME_OK;
    if (!t->dtype)
        return base_fail(GPUNVME_ERR_INVALID,
                         "tensor \"%s\": dtype \"%s\" is not known, so it "
                         "can't be sliced",
                         SHOW(t->name), SHOW(t->dtype_name));
    err = check_ranges(part);
    if (err || !runs->count)
        return err;
    runs->count = !is_empty(part);
    if (!runs->count)
        return GPUNVME_OK;
    /* Dimensions that are whole, from the last one on, are contiguous; so is the next one's slice.
     */
    row = gpunvme_dtype_bits(t->dtype);
    for (d = t->rank; d && r[d - 1].end - r[d - 1].begin == t->shape[d - 1]; d--)
        row *= t->shape[d - 1];
    nbits = row;
    if (d) {
        nbits = row * (r[d - 1].end - r[d - 1].begin);
        offset = row * r[d - 1].begin;
        if (!whole_bytes(nbits) || !whole_bytes(offset) || !whole_bytes(row * t->shape[d - 1]))
            return base_fail(GPUNVME_ERR_INVALID,
                             "tensor \"%s\": the slice's rows do not begin "
                             "and end at whole bytes",
                             SHOW(t->name));
        row *= t->shape[--d];
    }
    runs->nbytes = runs->span = nbits / 8;
    runs->first += offset / 8;
    runs->rank = d;
    row /= 8;
    for (; d; d--) {
        uint64_t n = r[d - 1].end - r[d - 1].begin;

        runs->count *= n;
        runs->first += row * r[d - 1].begin;
        runs->span += row * (n - 1);
        row *= t->shape[d - 1];
    }
    return GPUNVME_OK;
}

gpunvme_err_t gpunvme_weights_part_nbytes(const struct gpunvme_weights_part *part, uint64_t *nbytes)
{
    struct weights_runs runs;
    gpunvme_err_t err;

    if (!part || !nbytes || !part->tensor)
        return base_fail(GPUNVME_ERR_INVALID, "%s is NULL",
                         !part    ? "part"
                         : nbytes ? "tensor"
                                  : "nbytes");
    err = weights_part_runs(part, &runs);
    if (err)
        return err;
    *nbytes = runs.nbytes * runs.count;
    if (weights_part_converts(part) &&
        __builtin_mul_overflow(*nbytes / (gpunvme_dtype_bits(part->tensor->dtype) / 8),
                               gpunvme_dtype_bits(part->dtype) / 8, nbytes))
        return base_fail(GPUNVME_ERR_INVALID, "tensor \"%s\": it would have more than 2^64 bytes",
                         SHOW(part->tensor->name));
    return GPUNVME_OK;
}

gpunvme_err_t weights_walk_begin(struct weights_walk *walk, const struct gpunvme_weights_part *part)
{
    const struct gpunvme_tensor *t = part->tensor;
    uint64_t row;
    gpunvme_err_t err;

    *walk = (struct weights_walk){.part = part};
    err = weights_part_runs(part, &walk->runs);
    if (err)
        return err;
    walk->offset = walk->runs.first;
    if (!walk->runs.rank)
        return GPUNVME_OK;
    walk->at = calloc(2 * walk->runs.rank, sizeof(walk->at[0]));
    if (!walk->at)
        return base_fail(GPUNVME_ERR_NOMEM, "a slice of %zu dimensions", t->rank);
    walk->stride = walk->at + walk->runs.rank;
    row = gpunvme_dtype_bits(t->dtype);
    for (size_t d = t->rank; d > walk->runs.rank; d--)
        row *= t->shape[d - 1];
    row /= 8;
    for (size_t d = walk->runs.rank; d; d--) {
        walk->stride[d - 1] = row;
        row *= t->shape[d - 1];
    }
    return GPUNVME_OK;
}

void weights_walk_step(struct weights_walk *walk)
{
    const struct gpunvme_range *r = walk->part->ranges;

    walk->index++;
    for (size_t d = walk->runs.rank; d; d--) {
        walk->offset += walk->stride[d - 1];
        if (++walk->at[d - 1] < r[d - 1].end - r[d - 1].begin)
            return;
        walk->offset -= walk->stride[d - 1] * walk->at[d - 1];
        walk->at[d - 1] = 0;
    }
}

void weights_walk_end(struct weights_walk *walk)
{
    free(walk->at);
    walk->at = NULL;
}

/* ---- Arenas ------------------------------------------------------------------------------------
 */

static int by_place(const void *a_, const void *b_)
{
    const struct gpunvme_weights_part *x = *(struct gpunvme_weights_part *const *)a_;
    const struct gpunvme_weights_part *y = *(struct gpunvme_weights_part *const *)b_;
    const struct gpunvme_tensor *a = x->tensor, *b = y->tensor;

    if (a->file != b->file)
        return a->file < b->file ? -1 : 1;
    if (a->offset != b->offset)
        return a->offset < b->offset ? -1 : 1;
    return x < y ? -1 : x > y;
}

static gpunvme_err_t place(struct gpunvme_weights_part **order, size_t n, size_t align,
                           uint8_t *base, enum gpunvme_mem mem, size_t *used)
{
    *used = 0;
    for (size_t i = 0; i < n; i++) {
        uint64_t nbytes = 0, end;
        gpunvme_err_t err = gpunvme_weights_part_nbytes(order[i], &nbytes);

        if (err)
            return err;
        if (__builtin_add_overflow(*used, align - 1, &end))
            return base_fail(GPUNVME_ERR_INVALID, "an arena of more than 2^64 bytes");
        *used = (size_t)end & ~(align - 1);
        if (base) {
            order[i]->ptr = base + *used;
            order[i]->mem = mem;
        }
        if (__builtin_add_overflow(*used, nbytes, &end))
            return base_fail(GPUNVME_ERR_INVALID, "an arena of more than 2^64 bytes");
        *used = (size_t)end;
    }
    return GPUNVME_OK;
}

gpunvme_err_t gpunvme_weights_place(struct gpunvme_weights_part *parts, size_t n, size_t align,
                                    void *base, enum gpunvme_mem mem, size_t *nbytes)
{
    struct gpunvme_weights_part **order;
    size_t used;
    gpunvme_err_t err;

    if ((n && !parts) || !align || align & (align - 1))
        return base_fail(GPUNVME_ERR_INVALID,
                         n && !parts ? "parts is NULL" : "align is no power of two");
    for (size_t i = 0; i < n; i++)
        if (!parts[i].tensor)
            return base_fail(GPUNVME_ERR_INVALID, "part %zu: tensor is NULL", i);
    order = calloc(n + 1, sizeof(order[0]));
    if (!order)
        return base_fail(GPUNVME_ERR_NOMEM, "%zu parts", n);
    for (size_t i = 0; i < n; i++)
        order[i] = &parts[i];
    weights_sort(order, n, sizeof(order[0]), by_place);
    err = place(order, n, align, base, mem, &used);
    free(order);
    if (!err && nbytes)
        *nbytes = used;
    return err;
}
