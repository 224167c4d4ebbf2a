/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Lists of parameters: see params.h. Knows only text, numbers and tables.
 */
#include <stdio.h>
#include <string.h>

#include "base/fail.h"
#include "base/params.h"
#include "base/units.h"

void base_params_init(struct base_params *params, const char *text, char separator)
{
    *params = (struct base_params){.next = text, .separator = separator};
}

static int hex_value(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

bool base_params_decode(const char *text, size_t length, char *out, size_t capacity)
{
    size_t used = 0;

    for (size_t i = 0; i < length; i++) {
        char c = text[i];

        if (c == '%' && length - i >= 3 && hex_value(text[i + 1]) >= 0 &&
            hex_value(text[i + 2]) >= 0) {
            c = (char)(hex_value(text[i + 1]) << 4 | hex_value(text[i + 2]));
            i += 2;
        }
        if (!c || used + 1 >= capacity)
            return false;
        out[used++] = c;
    }
    out[used] = 0;
    return true;
}

static gpunvme_err_t take(struct base_param *item, const char *text, size_t length)
{
    const char *equals = memchr(text, '=', length);
    size_t nkey = equals ? (size_t)(equals - text) : length;
    int shown = length > 60 ? 60 : (int)length;

    if (!nkey)
        return base_fail(GPUNVME_ERR_URI, "a parameter without a name: '%.*s'", shown, text);
    if (nkey >= sizeof(item->key))
        return base_fail(GPUNVME_ERR_URI_PARAM, "no parameter has a name as long as '%.*s'", shown,
                         text);
    memcpy(item->key, text, nkey);
    item->key[nkey] = 0;
    item->value[0] = 0;
    item->has_value = equals;
    if (equals &&
        !base_params_decode(equals + 1, length - nkey - 1, item->value, sizeof(item->value)))
        return base_fail(GPUNVME_ERR_URI, "%s: the value is longer than %zu bytes or has a %%00",
                         item->key, sizeof(item->value) - 1);
    return GPUNVME_OK;
}

bool base_params_next(struct base_params *params, struct base_param *item)
{
    const char *text = params->next, *end;

    if (params->err || !text || !*text)
        return false;
    end = strchrnul(text, params->separator);
    params->err = take(item, text, (size_t)(end - text));
    if (!params->err && *end && !end[1])
        params->err = base_fail(GPUNVME_ERR_URI, "a '%c' with nothing behind it", *end);
    params->next = *end ? end + 1 : end;
    return !params->err;
}

static char lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

/* The number of letters to add, drop or change that make one word of the other. */
static unsigned edit_distance(const char *a, const char *b)
{
    unsigned row[64];
    size_t nb = strlen(b);

    if (nb >= 64)
        return 64;
    for (size_t j = 0; j <= nb; j++)
        row[j] = (unsigned)j;
    for (size_t i = 0; a[i]; i++) {
        unsigned diagonal = row[0];

        row[0] = (unsigned)i + 1;
        for (size_t j = 0; j < nb; j++) {
            unsigned change = diagonal + (lower(a[i]) != lower(b[j]));
            unsigned drop = row[j] < row[j + 1] ? row[j] + 1 : row[j + 1] + 1;

            diagonal = row[j + 1];
            row[j + 1] = change < drop ? change : drop;
        }
    }
    return row[nb];
}

const char *base_nearest(const char *word, const void *words, size_t stride, size_t count)
{
    unsigned limit = (unsigned)strlen(word) / 2 + 1; /* beyond that nothing is alike */
    const char *nearest = NULL;

    for (size_t i = 0; i < count; i++) {
        const char *candidate = *(const char *const *)((const char *)words + i * stride);
        unsigned distance = edit_distance(word, candidate);

        if (distance < limit) {
            limit = distance;
            nearest = candidate;
        }
    }
    return nearest;
}

gpunvme_err_t base_param_find(const struct base_param_spec *table, const struct base_param *item,
                              const struct base_param_spec **out)
{
    const char *nearest;
    size_t count = 0;

    for (; table[count].name; count++)
        if (!strcmp(table[count].name, item->key)) {
            *out = &table[count];
            return GPUNVME_OK;
        }
    nearest = base_nearest(item->key, table, sizeof(*table), count);
    if (nearest)
        return base_fail(GPUNVME_ERR_URI_PARAM, "unknown parameter '%s': did you mean '%s'?",
                         item->key, nearest);
    return base_fail(GPUNVME_ERR_URI_PARAM, "unknown parameter '%s', and none is like it",
                     item->key);
}

static gpunvme_err_t set_bool(const struct base_param *item, bool *out)
{
    static const char *const yes[] = {"1", "on", "yes", "true"};
    static const char *const no[] = {"0", "off", "no", "false"};

    if (!item->has_value) {
        *out = true;
        return GPUNVME_OK;
    }
    for (unsigned i = 0; i < 4; i++)
        if (!strcmp(item->value, yes[i]) || !strcmp(item->value, no[i])) {
            *out = !strcmp(item->value, yes[i]);
            return GPUNVME_OK;
        }
    return base_fail(GPUNVME_ERR_URI, "%s=%.64s: write on or off", item->key, item->value);
}

static gpunvme_err_t set_text(const struct base_param_spec *spec, const struct base_param *item,
                              char *out)
{
    if (strlen(item->value) >= spec->max)
        return base_fail(GPUNVME_ERR_URI, "%s=%.64s…: longer than %llu bytes", item->key,
                         item->value, (unsigned long long)spec->max - 1);
    strcpy(out, item->value);
    return GPUNVME_OK;
}

/* The largest value of an integer type. */
static uint64_t type_max(enum base_param_type type)
{
    switch (type) {
    case BASE_PARAM_U8:
        return UINT8_MAX;
    case BASE_PARAM_U16:
    case BASE_PARAM_SIZE16:
        return UINT16_MAX;
    case BASE_PARAM_U32:
    case BASE_PARAM_SIZE32:
        return UINT32_MAX;
    default:
        return UINT64_MAX;
    }
}

static gpunvme_err_t parse_integer(enum base_param_type type, const char *value, uint64_t *out)
{
    switch (type) {
    case BASE_PARAM_SIZE:
    case BASE_PARAM_SIZE16:
    case BASE_PARAM_SIZE32:
        return base_parse_size(value, out);
    case BASE_PARAM_TIME:
        return base_parse_time(value, out);
    default:
        return base_parse_count(value, out);
    }
}

static void store_integer(enum base_param_type type, uint64_t value, void *out)
{
    switch (type_max(type)) {
    case UINT8_MAX:
        *(uint8_t *)out = (uint8_t)value;
        break;
    case UINT16_MAX:
        *(uint16_t *)out = (uint16_t)value;
        break;
    case UINT32_MAX:
        *(uint32_t *)out = (uint32_t)value;
        break;
    default:
        *(uint64_t *)out = value;
    }
}

static gpunvme_err_t set_integer(const struct base_param_spec *spec, const struct base_param *item,
                                 void *out)
{
    uint64_t max = spec->max ? spec->max : type_max(spec->type), value;
    gpunvme_err_t err = parse_integer(spec->type, item->value, &value);

    if (err)
        return base_fail(GPUNVME_ERR_URI, "%s: %s", item->key, gpunvme_err_detail());
    if (value < spec->min || value > max)
        return base_fail(GPUNVME_ERR_URI, "%s=%.64s: must be from %llu to %llu", item->key,
                         item->value, (unsigned long long)spec->min, (unsigned long long)max);
    store_integer(spec->type, value, out);
    return GPUNVME_OK;
}

gpunvme_err_t base_param_set(const struct base_param_spec *spec, void *target,
                             const struct base_param *item)
{
    void *field = (char *)target + spec->offset;
    gpunvme_err_t err;

    if (spec->type == BASE_PARAM_CALL)
        return spec->set(target, item);
    if (spec->type == BASE_PARAM_BOOL)
        return set_bool(item, field);
    if (!item->has_value)
        return base_fail(GPUNVME_ERR_URI, "%s needs a value: %s=…", item->key, item->key);
    if (spec->type == BASE_PARAM_TEXT)
        return set_text(spec, item, field);
    if (spec->type != BASE_PARAM_REAL && spec->type != BASE_PARAM_PROBABILITY)
        return set_integer(spec, item, field);
    err = spec->type == BASE_PARAM_REAL ? base_parse_real(item->value, field)
                                        : base_parse_probability(item->value, field);
    return err ? base_fail(GPUNVME_ERR_URI, "%s: %s", item->key, gpunvme_err_detail()) : err;
}

gpunvme_err_t base_params_set(const struct base_param_spec *table, void *target, const char *text,
                              char separator, uint64_t *rows)
{
    struct base_params list;
    struct base_param item;
    uint64_t seen = 0;

    base_params_init(&list, text, separator);
    while (base_params_next(&list, &item)) {
        const struct base_param_spec *spec;
        gpunvme_err_t err = base_param_find(table, &item, &spec);

        if (!err && seen >> (spec - table) & 1)
            err = base_fail(GPUNVME_ERR_URI, "%s is there twice", item.key);
        if (!err)
            err = base_param_set(spec, target, &item);
        if (err)
            return err;
        seen |= UINT64_C(1) << (spec - table);
    }
    if (rows)
        *rows = seen;
    return list.err;
}
