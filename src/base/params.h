/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Lists of parameters, "key=value,key=value": an iterator over them and a table-driven setter.
 * Knows nothing of what the parameters mean.
 *
 * A key without '=' has no value ("readonly"). In a value %XX, two hexadecimal digits, stands for
 * a character: %2C is a comma, which could not be written otherwise. A '%' that no such digits
 * follow stands for itself ("50%"). Empty items, as a trailing comma leaves, are malformed.
 */
#ifndef BASE_PARAMS_H
#define BASE_PARAMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpunvme/error.h"

struct base_param {
    char key[32];
    char value[512]; /* decoded; "" when there is none */
    bool has_value;
};

struct base_params {
    const char *next; /* private: what is left */
    char separator;   /* private */
    gpunvme_err_t err;
};

/* Starts on `text`, which must stay; the items are separated by `separator`. */
void base_params_init(struct base_params *params, const char *text, char separator);

/*
 * Takes the next item. False at the end, or at a malformed item: then params->err is
 * GPUNVME_ERR_URI, with a detail.
 */
bool base_params_next(struct base_params *params, struct base_param *item);

/*
 * Decodes the %XX of `length` characters into `out`, with a 0 behind; `out` may be `text`. False
 * for a %00, or when they are too many.
 */
bool base_params_decode(const char *text, size_t length, char *out, size_t capacity);

enum base_param_type {
    BASE_PARAM_BOOL, /* bool: no value, 1, 0, on, off, yes, no, true, false */
    BASE_PARAM_U8,   /* uint8_t …: a count with units, checked against min and max */
    BASE_PARAM_U16,
    BASE_PARAM_U32,
    BASE_PARAM_U64,
    BASE_PARAM_SIZE,        /* uint64_t bytes */
    BASE_PARAM_SIZE16,      /* uint16_t bytes */
    BASE_PARAM_SIZE32,      /* uint32_t bytes */
    BASE_PARAM_TIME,        /* uint64_t nanoseconds */
    BASE_PARAM_PROBABILITY, /* double, 0 to 1 */
    BASE_PARAM_REAL,        /* double */
    BASE_PARAM_TEXT,        /* char[max]; longer values are refused */
    BASE_PARAM_CALL,        /* whatever `set` does with it */
};

struct base_param_spec {
    const char *name;
    enum base_param_type type;
    size_t offset;     /* of the field in the target */
    uint64_t min, max; /* numbers: limits, both 0 for the type's own; TEXT: max is the capacity */
    gpunvme_err_t (*set)(void *target, const struct base_param *item); /* CALL */
    unsigned group; /* the caller's own: which target the field is in */
};

/*
 * The row for `item` of a table that ends with a NULL name. An unknown key is
 * GPUNVME_ERR_URI_PARAM with the nearest known one as the detail.
 */
gpunvme_err_t base_param_find(const struct base_param_spec *table, const struct base_param *item,
                              const struct base_param_spec **out);

/* Sets one field; a value that does not fit is GPUNVME_ERR_URI with a detail naming the key. */
gpunvme_err_t base_param_set(const struct base_param_spec *spec, void *target,
                             const struct base_param *item);

/*
 * Sets what a list says, by a table of at most 64 rows. One that is there twice is GPUNVME_ERR_URI
 * with its name in the detail. *rows gets a bit for each row that was set; NULL: nothing.
 */
gpunvme_err_t base_params_set(const struct base_param_spec *table, void *target, const char *text,
                              char separator, uint64_t *rows);

/*
 * The word of a list nearest to `word` by edit distance, NULL when none is near enough to be a
 * slip of the pen; case does not count. The list is an array of `count` elements of `stride` bytes,
 * each of which begins with the pointer to its word.
 */
const char *base_nearest(const char *word, const void *words, size_t stride, size_t count);

#endif
