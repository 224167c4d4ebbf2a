/* SPDX-License-Identifier: BSD-3-Clause
 *
 * f16, bf16 and fp8: every value, and rounding between neighbours, against arithmetic in f64.
 */
#include "memory/convert.h"
#include "ops_test.h"

/* What the bits mean, by IEEE 754-2019, 3.4; bf16 has 8 bits of exponent, 7 of mantissa. */
static double meaning(uint16_t h, int exponent_bits)
{
    int mantissa_bits = 15 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
    int exponent = h >> mantissa_bits & ((1 << exponent_bits) - 1);
    int mantissa = h & ((1 << mantissa_bits) - 1);
    double value;

    if (exponent == (1 << exponent_bits) - 1)
        value = mantissa ? NAN : INFINITY;
    else if (!exponent)
        value = ldexp(mantissa, 1 - bias - mantissa_bits);
    else
        value = ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
    return h & 0x8000 ? -value : value;
}

static void every_value_is_read_and_written_back(int exponent_bits, float (*from)(uint16_t),
                                                 uint16_t (*to)(float))
{
    for (unsigned h = 0; h < 0x10000; h++) {
        double value = meaning((uint16_t)h, exponent_bits);
        float got = from((uint16_t)h);

        if (isnan(value)) {
            assert_true(isnan(got) && isnan(meaning(to(got), exponent_bits)));
            continue;
        }
        assert_true((double)got == value && !signbit(got) == !signbit(value));
        assert_int_equal(to(got), h);
    }
}

static void every_f16_is_read_and_written_back(void **state)
{
    (void)state;
    every_value_is_read_and_written_back(5, cpu_from_f16, cpu_to_f16);
}

static void every_bf16_is_read_and_written_back(void **state)
{
    (void)state;
    every_value_is_read_and_written_back(8, cpu_from_bf16, cpu_to_bf16);
}

/* Below, at and above the middle of each pair of neighbours; the infinite one at 2^16 or 2^128. */
static void middles_go_to_the_even_neighbour(int exponent_bits, uint16_t (*to)(float))
{
    unsigned infinity = exponent_bits == 5 ? 0x7c00 : 0x7f80;

    for (unsigned h = 0; h < infinity; h++) {
        double low = meaning((uint16_t)h, exponent_bits);
        double high = h + 1 < infinity ? meaning((uint16_t)(h + 1), exponent_bits)
                                       : ldexp(1, exponent_bits == 5 ? 16 : 128);
        float middle = (float)((low + high) / 2);

        assert_int_equal(to(middle), h & 1 ? h + 1 : h);
        assert_int_equal(to(nextafterf(middle, 0)), h);
        assert_int_equal(to(nextafterf(middle, INFINITY)), h + 1);
        assert_int_equal(to(-middle), 0x8000 | (h & 1 ? h + 1 : h));
    }
}

static void f16_rounds_to_nearest_even(void **state)
{
    (void)state;
    middles_go_to_the_even_neighbour(5, cpu_to_f16);
    assert_int_equal(cpu_to_f16(1e30f), 0x7c00);
    assert_int_equal(cpu_to_f16(-INFINITY), 0xfc00);
}

static void bf16_rounds_to_nearest_even(void **state)
{
    (void)state;
    middles_go_to_the_even_neighbour(8, cpu_to_bf16);
    assert_int_equal(cpu_to_bf16(INFINITY), 0x7f80);
}

/* By the definition of E4M3 and E5M2 in the OCP specification. */
static double meaning_of_fp8(unsigned h, int exponent_bits)
{
    int mantissa_bits = 7 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
    int exponent = (int)(h >> mantissa_bits & ((1u << exponent_bits) - 1));
    unsigned mantissa = h & ((1u << mantissa_bits) - 1);
    double size = exponent ? ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits)
                           : ldexp(mantissa, 1 - bias - mantissa_bits);

    return h & 0x80 ? -size : size;
}

static void every_fp8_is_read_and_written_back(void **state)
{
    (void)state;
    for (unsigned h = 0; h < 256; h++) {
        float x = cpu_from_e4m3((uint8_t)h), y = cpu_from_e5m2((uint8_t)h);

        assert_true((h & 0x7f) == 0x7f ? isnan(x) : (double)x == meaning_of_fp8(h, 4));
        assert_int_equal(cpu_to_e4m3(x), h);
        if ((h & 0x7f) < 0x7c) {
            assert_true((double)y == meaning_of_fp8(h, 5));
            assert_int_equal(cpu_to_e5m2(y), h);
        } else {
            assert_true((h & 0x7f) == 0x7c ? isinf(y) : isnan(y));
        }
    }
}

/* And what is above the largest number becomes that. */
static void fp8_rounds_to_nearest_even(void **state)
{
    (void)state;
    for (int bits = 4; bits < 6; bits++) {
        uint8_t (*to)(float) = bits == 4 ? cpu_to_e4m3 : cpu_to_e5m2;
        unsigned largest = bits == 4 ? 0x7e : 0x7b;

        for (unsigned h = 0; h < largest; h++) {
            float middle = (float)((meaning_of_fp8(h, bits) + meaning_of_fp8(h + 1, bits)) / 2);

            assert_int_equal(to(middle), h & 1 ? h + 1 : h);
            assert_int_equal(to(nextafterf(middle, 0)), h);
            assert_int_equal(to(nextafterf(middle, INFINITY)), h + 1);
            assert_int_equal(to(-middle), 0x80 | (h & 1 ? h + 1 : h));
        }
        assert_int_equal(to(1e9f), largest);
        assert_int_equal(to(-INFINITY), 0x80 | largest);
        assert_int_equal(to(-NAN) & 0x7f, 0x7f);
    }
}

static void e4m3_is_what_loads_convert_to(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 0xfff00000; bits += 0x2f0d)
        assert_int_equal(cpu_to_e4m3(cpu_float_of_bits(bits)), mem_narrow_f8_e4m3(bits));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_f16_is_read_and_written_back),
        cmocka_unit_test(every_bf16_is_read_and_written_back),
        cmocka_unit_test(f16_rounds_to_nearest_even),
        cmocka_unit_test(bf16_rounds_to_nearest_even),
        cmocka_unit_test(every_fp8_is_read_and_written_back),
        cmocka_unit_test(fp8_rounds_to_nearest_even),
        cmocka_unit_test(e4m3_is_what_loads_convert_to),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
