/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Human units, both ways: sizes, counts, times and probabilities. Independent of the locale, exact
 * (a value that is not a whole number of its smallest unit is refused) and checked for overflow.
 * Knows nothing of where the text comes from.
 *
 * A number is digits with an optional fraction ("1.5"); sizes and counts may also be hexadecimal
 * ("0x1000", then without a unit). Nothing may stand before or behind it, no sign, no spaces.
 *
 *   sizes          units are case-insensitive: K, Ki, KiB, M, Mi, MiB, … P are powers of 1024;
 *                  KB, MB, … PB are powers of 1000; none or B is bytes
 *   counts         k, M, G, T are powers of 1000 (k or K; the others in capitals)
 *   times          ns, us, ms, s, min, h, d; only 0 may go without
 *   probabilities  "0.25" or "25%", from 0 to 1
 *
 * The parsers return GPUNVME_ERR_INVALID, with the text and what is wrong with it as the detail,
 * and leave *out as it was.
 */
#ifndef BASE_UNITS_H
#define BASE_UNITS_H

#include <stddef.h>
#include <stdint.h>

#include "gpunvme/error.h"

gpunvme_err_t base_parse_size(const char *text, uint64_t *nbytes);
gpunvme_err_t base_parse_count(const char *text, uint64_t *count);
gpunvme_err_t base_parse_time(const char *text, uint64_t *ns);
gpunvme_err_t base_parse_probability(const char *text, double *p);

/* A number without unit that need not be whole: "0.5", up to 18 digits. */
gpunvme_err_t base_parse_real(const char *text, double *value);

/*
 * Formatters write at most `capacity` bytes with the final NUL into `text` and return it. They
 * keep three significant digits ("1.46 GiB", "12.5 us", "1.2 M") and are exact where three digits
 * can be. BASE_UNITS_TEXT is enough for any value.
 */
#define BASE_UNITS_TEXT 24
char *base_format_size(uint64_t nbytes, char *text, size_t capacity);      /* powers of 1024 */
char *base_format_bytes(uint64_t nbytes, char *text, size_t capacity);     /* powers of 1000 */
char *base_format_count(uint64_t count, char *text, size_t capacity);      /* powers of 1000 */
char *base_format_time(uint64_t nanoseconds, char *text, size_t capacity); /* ns … s */

#endif
