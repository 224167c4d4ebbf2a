/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Human units: what is read, what is refused, what is written.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/units.h"

#define KIB 1024ULL
#define MIB (KIB * KIB)
#define GIB (KIB * MIB)

typedef gpunvme_err_t parser(const char *text, uint64_t *out);

static void expect(parser *parse, const char *text, uint64_t value)
{
    uint64_t out = 77;

    if (parse(text, &out))
        fail_msg("'%s': %s", text, gpunvme_err_detail());
    if (out != value)
        fail_msg("'%s' gave %llu", text, (unsigned long long)out);
}

/* Refused, with a detail that holds `reason`, and the result untouched. */
static void expect_refused(parser *parse, const char *text, const char *reason)
{
    uint64_t out = 77;

    if (parse(text, &out) != GPUNVME_ERR_INVALID)
        fail_msg("'%s' was taken as %llu", text, (unsigned long long)out);
    assert_int_equal(out, 77);
    if (!strstr(gpunvme_err_detail(), reason))
        fail_msg("'%s': %s", text, gpunvme_err_detail());
}

static void sizes_have_binary_units(void **state)
{
    (void)state;
    expect(base_parse_size, "0", 0);
    expect(base_parse_size, "512", 512);
    expect(base_parse_size, "512B", 512);
    expect(base_parse_size, "4K", 4096);
    expect(base_parse_size, "4k", 4096);
    expect(base_parse_size, "4Ki", 4096);
    expect(base_parse_size, "4KiB", 4096);
    expect(base_parse_size, "512M", 512 * MIB);
    expect(base_parse_size, "1GiB", GIB);
    expect(base_parse_size, "3T", 3 * KIB * GIB);
    expect(base_parse_size, "2PiB", 2 * MIB * GIB);
}

static void sizes_with_a_b_and_no_i_are_decimal(void **state)
{
    (void)state;
    expect(base_parse_size, "4kB", 4000);
    expect(base_parse_size, "4KB", 4000);
    expect(base_parse_size, "7.2GB", 7200000000);
    expect(base_parse_size, "1TB", 1000000000000);
    expect(base_parse_size, "1PB", 1000000000000000);
    expect(base_parse_size, "1MB", 1000000);
}

static void fractions_are_exact(void **state)
{
    (void)state;
    expect(base_parse_size, "1.5G", GIB + GIB / 2);
    expect(base_parse_size, "0.5K", 512);
    expect(base_parse_size, "0.0009765625K", 1);
    expect(base_parse_time, "1.5ms", 1500000);
    expect(base_parse_count, "2.5M", 2500000);
    expect_refused(base_parse_size, "0.3K", "whole number");
    expect_refused(base_parse_size, "1.5", "whole number");
    expect_refused(base_parse_time, "0.5ns", "whole number");
}

static void counts_have_decimal_units(void **state)
{
    (void)state;
    expect(base_parse_count, "128", 128);
    expect(base_parse_count, "100k", 100000);
    expect(base_parse_count, "100K", 100000);
    expect(base_parse_count, "3M", 3000000);
    expect(base_parse_count, "1G", 1000000000);
    expect(base_parse_count, "1T", 1000000000000);
    expect_refused(base_parse_count, "1KiB", "unknown unit 'KiB'");
    expect_refused(base_parse_count, "1m", "unknown unit 'm'");
}

static void times_have_a_unit(void **state)
{
    (void)state;
    expect(base_parse_time, "0", 0);
    expect_refused(base_parse_time, "200", "needs a unit: 200s, 200ms");
    expect_refused(base_parse_time, "0.5", "needs a unit");
    expect(base_parse_time, "200ns", 200);
    expect(base_parse_time, "50us", 50000);
    expect(base_parse_time, "3s", 3000000000);
    expect(base_parse_time, "2min", 120000000000);
    expect(base_parse_time, "1h", 3600000000000);
    expect(base_parse_time, "7d", 604800000000000);
    expect_refused(base_parse_time, "3S", "unknown unit 'S'");
    expect_refused(base_parse_time, "0x10", "unknown unit");
}

static void hexadecimal_numbers_are_taken(void **state)
{
    (void)state;
    expect(base_parse_count, "0x460001", 0x460001);
    expect(base_parse_size, "0XfF", 255);
    expect(base_parse_count, "0xffffffffffffffff", UINT64_MAX);
    expect_refused(base_parse_count, "0x", "digits are missing");
    expect_refused(base_parse_count, "0x1g", "'g' is not");
    expect_refused(base_parse_count, "0x10000000000000000", "64 bits");
}

static void the_largest_values_fit_and_larger_ones_are_refused(void **state)
{
    (void)state;
    expect(base_parse_size, "18446744073709551615", UINT64_MAX);
    expect(base_parse_size, "16383P", 16383 * MIB * GIB);
    expect_refused(base_parse_size, "16384P", "too large");
    expect_refused(base_parse_size, "18446744073709551616", "too many digits");
    expect_refused(base_parse_size, "0.000000000000000000001K", "too many digits");
    expect_refused(base_parse_time, "18446744074s", "too large");
}

static void what_is_no_number_is_refused(void **state)
{
    static const char *const texts[] = {"", "K", "-1", "+1", " 1", ".5", "1.", "1.K", "x"};

    (void)state;
    for (unsigned i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        expect_refused(base_parse_size, texts[i], "not a number");
    expect_refused(base_parse_size, "1 K", "unknown unit ' K'");
    expect_refused(base_parse_size, "1Q", "unknown unit 'Q'");
    expect_refused(base_parse_size, "1.2.3", "unknown unit '.3'");
}

static void probabilities_are_from_0_to_1(void **state)
{
    double p = 7;

    (void)state;
    assert_int_equal(base_parse_probability("0.25", &p), GPUNVME_OK);
    assert_true(p == 0.25);
    assert_int_equal(base_parse_probability("25%", &p), GPUNVME_OK);
    assert_true(p == 0.25);
    assert_int_equal(base_parse_probability("0.1%", &p), GPUNVME_OK);
    assert_true(p > 0.000999 && p < 0.001001);
    assert_int_equal(base_parse_probability("100%", &p), GPUNVME_OK);
    assert_true(p == 1);
    assert_int_equal(base_parse_probability("1.01", &p), GPUNVME_ERR_INVALID);
    assert_int_equal(base_parse_probability("101%", &p), GPUNVME_ERR_INVALID);
    assert_int_equal(base_parse_probability("0.5x", &p), GPUNVME_ERR_INVALID);
    assert_int_equal(base_parse_probability("nan", &p), GPUNVME_ERR_INVALID);
    assert_true(p == 1);
}

static void reals_have_no_unit(void **state)
{
    double value = 7;

    (void)state;
    assert_int_equal(base_parse_real("12.5", &value), GPUNVME_OK);
    assert_true(value == 12.5);
    assert_int_equal(base_parse_real("12.5%", &value), GPUNVME_ERR_INVALID);
    assert_int_equal(base_parse_real("", &value), GPUNVME_ERR_INVALID);
    assert_true(value == 12.5);
}

typedef char *formatter(uint64_t value, char *text, size_t capacity);

static void expect_text(formatter *format, uint64_t value, const char *expected)
{
    char text[BASE_UNITS_TEXT];

    assert_string_equal(format(value, text, sizeof(text)), expected);
}

static void sizes_are_written_in_binary_units(void **state)
{
    (void)state;
    expect_text(base_format_size, 0, "0 B");
    expect_text(base_format_size, 1023, "1023 B");
    expect_text(base_format_size, 1024, "1 KiB");
    expect_text(base_format_size, 1536, "1.5 KiB");
    expect_text(base_format_size, 4096, "4 KiB");
    expect_text(base_format_size, 1536 * MIB, "1.5 GiB");
    expect_text(base_format_size, 1495 * MIB, "1.46 GiB");
    expect_text(base_format_size, UINT64_MAX, "16384 PiB");
}

static void rates_of_bytes_are_written_in_decimal_units(void **state)
{
    (void)state;
    expect_text(base_format_bytes, 999, "999 B");
    expect_text(base_format_bytes, 7200000000, "7.2 GB");
    expect_text(base_format_bytes, 12345, "12.3 kB");
    expect_text(base_format_bytes, 123456, "123 kB");
}

static void counts_are_written_in_decimal_units(void **state)
{
    (void)state;
    expect_text(base_format_count, 0, "0");
    expect_text(base_format_count, 999, "999");
    expect_text(base_format_count, 1500000, "1.5 M");
    expect_text(base_format_count, 100000, "100 k");
}

static void times_are_written_in_the_unit_that_suits(void **state)
{
    (void)state;
    expect_text(base_format_time, 999, "999 ns");
    expect_text(base_format_time, 12500, "12.5 us");
    expect_text(base_format_time, 3000000000, "3 s");
    expect_text(base_format_time, 90000000000, "90 s");
}

static void rounding_up_goes_to_the_next_unit(void **state)
{
    (void)state;
    expect_text(base_format_time, 999600, "1 ms");
    expect_text(base_format_time, 999400, "999 us");
    expect_text(base_format_time, 9999, "10 us");
    expect_text(base_format_time, 99990, "100 us");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_have_binary_units),
        cmocka_unit_test(sizes_with_a_b_and_no_i_are_decimal),
        cmocka_unit_test(fractions_are_exact),
        cmocka_unit_test(counts_have_decimal_units),
        cmocka_unit_test(times_have_a_unit),
        cmocka_unit_test(hexadecimal_numbers_are_taken),
        cmocka_unit_test(the_largest_values_fit_and_larger_ones_are_refused),
        cmocka_unit_test(what_is_no_number_is_refused),
        cmocka_unit_test(probabilities_are_from_0_to_1),
        cmocka_unit_test(reals_have_no_unit),
        cmocka_unit_test(sizes_are_written_in_binary_units),
        cmocka_unit_test(rates_of_bytes_are_written_in_decimal_units),
        cmocka_unit_test(counts_are_written_in_decimal_units),
        cmocka_unit_test(times_are_written_in_the_unit_that_suits),
        cmocka_unit_test(rounding_up_goes_to_the_next_unit),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
