/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Human units, both ways. See units.h for the rules; knows only text and numbers.
 */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/fail.h"
#include "base/units.h"

struct unit {
    const char *name;
    uint64_t factor;
};

#define K10 1000ULL
#define K2  1024ULL

static const struct unit size_units[] = {
    {"", 1},
    {"B", 1},
    {"K", K2},
    {"Ki", K2},
    {"KiB", K2},
    {"KB", K10},
    {"M", K2 *K2},
    {"Mi", K2 *K2},
    {"MiB", K2 *K2},
    {"MB", K10 *K10},
    {"G", K2 *K2 *K2},
    {"Gi", K2 *K2 *K2},
    {"GiB", K2 *K2 *K2},
    {"GB", K10 *K10 *K10},
    {"T", K2 *K2 *K2 *K2},
    {"Ti", K2 *K2 *K2 *K2},
    {"TiB", K2 *K2 *K2 *K2},
    {"TB", K10 *K10 *K10 *K10},
    {"P", K2 *K2 *K2 *K2 *K2},
    {"Pi", K2 *K2 *K2 *K2 *K2},
    {"PiB", K2 *K2 *K2 *K2 *K2},
    {"PB", K10 *K10 *K10 *K10 *K10},
    {NULL, 0},
};

static const struct unit count_units[] = {
    {"", 1},         {"k", K10},           {"K", K10},
    {"M", K10 *K10}, {"G", K10 *K10 *K10}, {"T", K10 *K10 *K10 *K10},
    {NULL, 0},
};

static const struct unit time_units[] = {
    {"ns", 1},
    {"us", K10},
    {"ms", K10 *K10},
    {"s", K10 *K10 *K10},
    {"min", 60 * K10 *K10 *K10},
    {"h", 3600 * K10 *K10 *K10},
    {"d", 86400 * K10 *K10 *K10},
    {NULL, 0},
};

/* A decimal number as written: digits / 10^ndecimals. */
struct decimal {
    uint64_t digits;
    uint64_t scale; /* 10^ndecimals */
};

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Adds a digit behind the others; false when it does not fit. */
static bool push_digit(uint64_t *digits, unsigned base, unsigned digit)
{
    return !__builtin_mul_overflow(*digits, (uint64_t)base, digits) &&
           !__builtin_add_overflow(*digits, (uint64_t)digit, digits);
}

/* Reads a decimal number at `text`; returns what follows it, NULL when there is none or it is too
 * long. */
static const char *read_decimal(const char *text, struct decimal *out)
{
    struct decimal n = {0, 1};

    if (!is_digit(*text))
        return NULL;
    for (; is_digit(*text); text++)
        if (!push_digit(&n.digits, 10, (unsigned)(*text - '0')))
            return NULL;
    if (*text == '.') {
        if (!is_digit(*++text))
            return NULL;
        for (; is_digit(*text); text++)
            if (!push_digit(&n.digits, 10, (unsigned)(*text - '0')) ||
                __builtin_mul_overflow(n.scale, 10ULL, &n.scale))
                return NULL;
    }
    *out = n;
    return text;
}

static int hex_digit(char c)
{
    if (is_digit(c))
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

static gpunvme_err_t parse_hex(const char *text, uint64_t *out)
{
    const char *c = text + 2;
    uint64_t value = 0;

    if (!*c)
        return base_fail(GPUNVME_ERR_INVALID, "'%s': digits are missing behind 0x", text);
    for (; *c; c++)
        if (hex_digit(*c) < 0)
            return base_fail(GPUNVME_ERR_INVALID, "'%s': '%c' is not a hexadecimal digit", text,
                             *c);
        else if (!push_digit(&value, 16, (unsigned)hex_digit(*c)))
            return base_fail(GPUNVME_ERR_INVALID, "'%s': more than 64 bits", text);
    *out = value;
    return GPUNVME_OK;
}

static const struct unit *find_unit(const struct unit *units, const char *name,
                                    int (*compare)(const char *, const char *))
{
    for (; units->name; units++)
        if (!compare(units->name, name))
            return units;
    return NULL;
}

/* digits / scale * factor, when that is a whole number of 64 bits. */
static gpunvme_err_t scale_up(const char *text, struct decimal n, uint64_t factor, uint64_t *out)
{
    unsigned __int128 value = (unsigned __int128)n.digits * factor;

    if (value % n.scale)
        return base_fail(GPUNVME_ERR_INVALID, "'%s': not a whole number of the smallest unit",
                         text);
    value /= n.scale;
    if (value > UINT64_MAX)
        return base_fail(GPUNVME_ERR_INVALID, "'%s': too large", text);
    *out = (uint64_t)value;
    return GPUNVME_OK;
}

static gpunvme_err_t parse(const char *text, const struct unit *units,
                           int (*compare)(const char *, const char *), const char *examples,
                           uint64_t *out)
{
    const struct unit *unit;
    struct decimal n;
    const char *rest = read_decimal(text, &n);

    if (!rest)
        return base_fail(GPUNVME_ERR_INVALID, "'%s' is not a number, or has too many digits: %s",
                         text, examples);
    unit = find_unit(units, rest, compare);
    if (!unit)
        return base_fail(GPUNVME_ERR_INVALID, "'%s': unknown unit '%s': %s", text, rest, examples);
    return scale_up(text, n, unit->factor, out);
}

static bool is_hex(const char *text)
{
    return text[0] == '0' && (text[1] == 'x' || text[1] == 'X');
}

gpunvme_err_t base_parse_size(const char *text, uint64_t *nbytes)
{
    if (is_hex(text))
        return parse_hex(text, nbytes);
    return parse(text, size_units, strcasecmp, "write sizes like 4096, 4K, 1GiB or 1.5MB", nbytes);
}

gpunvme_err_t base_parse_count(const char *text, uint64_t *count)
{
    if (is_hex(text))
        return parse_hex(text, count);
    return parse(text, count_units, strcmp, "write counts like 128, 100k, 1.5M or 0x80", count);
}

gpunvme_err_t base_parse_time(const char *text, uint64_t *ns)
{
    struct decimal n;
    const char *rest = read_decimal(text, &n);

    /* "2" would be seconds to one reader, milliseconds to another. Nothing is nothing in any unit.
     */
    if (rest && !*rest && n.digits)
        return base_fail(GPUNVME_ERR_INVALID, "'%s': a time needs a unit: %ss, %sms, %sus or %sns",
                         text, text, text, text, text);
    if (rest && !*rest) {
        *ns = 0;
        return GPUNVME_OK;
    }
    return parse(text, time_units, strcmp, "write times like 200ns, 50us, 1.5ms or 3s", ns);
}

gpunvme_err_t base_parse_real(const char *text, double *value)
{
    struct decimal n;
    const char *rest = read_decimal(text, &n);

    if (!rest || *rest)
        return base_fail(GPUNVME_ERR_INVALID, "'%s' is not a number like 0.25", text);
    *value = (double)n.digits / (double)n.scale;
    return GPUNVME_OK;
}

gpunvme_err_t base_parse_probability(const char *text, double *p)
{
    struct decimal n;
    const char *rest = read_decimal(text, &n);
    double value;

    if (!rest || (*rest && strcmp(rest, "%") != 0))
        return base_fail(GPUNVME_ERR_INVALID, "'%s' is not a probability like 0.01 or 1%%", text);
    value = (double)n.digits / (double)n.scale / (*rest ? 100 : 1);
    if (value > 1)
        return base_fail(GPUNVME_ERR_INVALID, "'%s': a probability is at most 1, or 100%%", text);
    *p = value;
    return GPUNVME_OK;
}

/* Three significant digits of value / factor, without trailing zeroes of a fraction. */
static char *format(uint64_t value, uint64_t factor, const char *unit, char *text, size_t capacity)
{
    uint64_t whole = value / factor;
    unsigned decimals = factor == 1 || whole >= 100 ? 0 : whole >= 10 ? 1 : 2;
    unsigned scale = decimals == 2 ? 100 : decimals == 1 ? 10 : 1;
    uint64_t scaled = (uint64_t)(((unsigned __int128)value * scale + factor / 2) / factor);

    while (decimals && scaled % 10 == 0) {
        scaled /= 10;
        scale /= 10;
        decimals--;
    }
    if (decimals)
        snprintf(text, capacity, "%llu.%0*llu%s%s", (unsigned long long)(scaled / scale),
                 (int)decimals, (unsigned long long)(scaled % scale), *unit ? " " : "", unit);
    else
        snprintf(text, capacity, "%llu%s%s", (unsigned long long)scaled, *unit ? " " : "", unit);
    return text;
}

/* Formats in the largest unit that is not larger than the value, once rounded. */
static char *format_in(uint64_t value, const struct unit *units, char *text, size_t capacity)
{
    const struct unit *unit = units;

    for (; units->name; units++)
        if (value >= units->factor - units->factor / 2000)
            unit = units;
    return format(value, unit->factor, unit->name, text, capacity);
}

char *base_format_size(uint64_t nbytes, char *text, size_t capacity)
{
    static const struct unit units[] = {
        {"B", 1},
        {"KiB", K2},
        {"MiB", K2 * K2},
        {"GiB", K2 * K2 * K2},
        {"TiB", K2 * K2 * K2 * K2},
        {"PiB", K2 * K2 * K2 * K2 * K2},
        {NULL, 0},
    };
    return format_in(nbytes, units, text, capacity);
}

char *base_format_bytes(uint64_t nbytes, char *text, size_t capacity)
{
    static const struct unit units[] = {
        {"B", 1},
        {"kB", K10},
        {"MB", K10 * K10},
        {"GB", K10 * K10 * K10},
        {"TB", K10 * K10 * K10 * K10},
        {"PB", K10 * K10 * K10 * K10 * K10},
        {NULL, 0},
    };
    return format_in(nbytes, units, text, capacity);
}

char *base_format_count(uint64_t count, char *text, size_t capacity)
{
    static const struct unit units[] = {
        {"", 1},
        {"k", K10},
        {"M", K10 * K10},
        {"G", K10 * K10 * K10},
        {"T", K10 * K10 * K10 * K10},
        {NULL, 0},
    };
    return format_in(count, units, text, capacity);
}

char *base_format_time(uint64_t nanoseconds, char *text, size_t capacity)
{
    static const struct unit units[] = {
        {"ns", 1}, {"us", K10}, {"ms", K10 * K10}, {"s", K10 * K10 * K10}, {NULL, 0},
    };
    return format_in(nanoseconds, units, text, capacity);
}
