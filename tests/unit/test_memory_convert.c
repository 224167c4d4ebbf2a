/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Conversion of numbers on the CPU: what each becomes, and where rows go.
 */
#include "convert_util.h"
#include "memory/convert.c"

/* What the `i`th of made numbers is. */
static float number(unsigned from, const void *numbers, size_t i)
{
    uint32_t bits = ((const uint32_t *)numbers)[from == MEM_F32 ? i : 0];

    return from == MEM_F32 ? mem_f32_of(bits) : float_of(from, ((const uint16_t *)numbers)[i]);
}

static uint32_t code(unsigned to, const void *codes, size_t i)
{
    return to == MEM_F8_E4M3 ? ((const uint8_t *)codes)[i]
           : to == MEM_F32   ? ((const uint32_t *)codes)[i]
                             : ((const uint16_t *)codes)[i];
}

static void check_all(unsigned from, unsigned to, float scale)
{
    size_t n;
    void *numbers = make_numbers(from, &n), *codes = malloc(n * 4);
    struct mem_convert c = {.src = (uintptr_t)numbers,
                            .dst = (uintptr_t)codes,
                            .row = n,
                            .nrows = 1,
                            .scale = scale,
                            .from = (uint8_t)from,
                            .to = (uint8_t)to};

    assert_non_null(codes);
    mem_convert_host(&c);
    for (size_t i = 0; i < n; i++) {
        float x = number(from, numbers, i);
        uint32_t expected = expected_code(to, to == MEM_F8_E4M3 ? x / scale : x);

        if (code(to, codes, i) != expected)
            fail_msg("%u to %u, number %zu, %a: 0x%x instead of 0x%x", from, to, i, (double)x,
                     code(to, codes, i), expected);
    }
    free(numbers);
    free(codes);
}

static void numbers_are_rounded_to_the_nearest_ties_to_even(void **state)
{
    (void)state;
    check_all(MEM_F32, MEM_BF16, 0);
    check_all(MEM_F32, MEM_F16, 0);
    check_all(MEM_BF16, MEM_F16, 0);
    check_all(MEM_F16, MEM_BF16, 0);
}

static void numbers_of_eight_bits_are_scaled_and_saturate(void **state)
{
    (void)state;
    check_all(MEM_F32, MEM_F8_E4M3, 1.0f);
    check_all(MEM_F16, MEM_F8_E4M3, 0.037f);
    check_all(MEM_BF16, MEM_F8_E4M3, 3e20f);
    check_all(MEM_F32, MEM_F8_E4M3, 1e-30f);
}

static void wider_numbers_are_exact_and_a_nan_keeps_its_bits(void **state)
{
    (void)state;
    for (unsigned from = MEM_F16; from <= MEM_BF16; from++) {
        size_t n;
        uint16_t *codes = make_numbers(from, &n);
        uint32_t *numbers = malloc(4 * n);
        struct mem_convert c = {.src = (uintptr_t)codes,
                                .dst = (uintptr_t)numbers,
                                .row = n,
                                .nrows = 1,
                                .from = (uint8_t)from,
                                .to = MEM_F32};

        assert_non_null(numbers);
        mem_convert_host(&c);
        for (size_t i = 0; i < n; i++) {
            float expected = float_of(from, codes[i]);
            uint32_t payload = (uint32_t)(codes[i] & (from == MEM_F16 ? 0x3ff : 0x7f))
                               << (from == MEM_F16 ? 13 : 16);

            if (isnan(expected))
                assert_int_equal(numbers[i], (codes[i] & 0x8000u) << 16 | MEM_F32_INF | payload);
            else
                assert_int_equal(numbers[i], mem_f32_bits(expected));
        }
        free(codes);
        free(numbers);
    }
}

static void the_scale_takes_the_greatest_number_to_448(void **state)
{
    const float numbers[] = {1.0f, -896.0f, NAN, INFINITY, 3.0f, -INFINITY};
    struct mem_convert c = {
        .src = (uintptr_t)numbers, .row = 6, .nrows = 1, .from = MEM_F32, .to = MEM_MAX};

    (void)state;
    mem_convert_host(&c);
    assert_int_equal(c.max, mem_f32_bits(896.0f));
    assert_true(mem_convert_scale(c.max) == 2.0f);
    assert_true(mem_convert_scale(0) == 1.0f);
    assert_true(mem_convert_scale(1) > 0.0f);
    assert_true(isfinite(mem_f32_of(1) / mem_convert_scale(1)));
}

static void each_instruction_set_gives_the_same(void **state)
{
    const struct rows *best = best_rows();

    (void)state;
    for (unsigned from = MEM_F32; from <= MEM_BF16; from++) {
        size_t n;
        void *numbers = make_numbers(from, &n);
        uint8_t *a = malloc(n * 4), *b = malloc(n * 4);

        assert_true(a && b);
        for (unsigned to = MEM_F32; to <= MEM_F8_E4M3; to++) {
            best->to[from][to](numbers, a, n, 0.3f);
            plain_rows.to[from][to](numbers, b, n, 0.3f);
            assert_memory_equal(a, b, n * mem_number_nbytes(to));
        }
        assert_int_equal(best->max[from](numbers, n), plain_rows.max[from](numbers, n));
        free(numbers);
        free(a);
        free(b);
    }
}

/* Cut or whole, rows that lie apart become the same. */
static void check_rows(unsigned from, unsigned to, uint64_t nrows, uint64_t row, uint64_t gap)
{
    const uint32_t in = mem_number_nbytes(from), out = mem_number_nbytes(to);
    uint64_t stride = (row + gap) * in, done = 0;
    uint8_t *src = malloc(nrows * stride), *whole = malloc(nrows * row * out),
            *cut = malloc(nrows * row * out);
    struct mem_convert c = {.src = (uintptr_t)src,
                            .dst = (uintptr_t)whole,
                            .stride = stride,
                            .row = row,
                            .nrows = nrows,
                            .scale = 0.5f,
                            .from = (uint8_t)from,
                            .to = (uint8_t)to},
                       pieces[3];
    size_t n;

    assert_true(src && whole && cut);
    random_bytes(src, nrows * stride, row);
    mem_convert_host(&c);
    c.dst = (uintptr_t)cut;
    while ((n = mem_convert_cut(&c, &done, pieces, 3)) > 0)
        for (size_t i = 0; i < n; i++) {
            assert_true(pieces[i].row * pieces[i].nrows * in <= MEM_CONVERT_UNIT);
            mem_convert_host(&pieces[i]);
        }
    assert_memory_equal(whole, cut, nrows * row * out);
    if (from == MEM_BYTES)
        for (uint64_t r = 0; r < nrows; r++)
            assert_memory_equal(cut + r * row, src + r * stride, row);
    free(src);
    free(whole);
    free(cut);
}

static void rows_that_lie_apart_are_taken_out_whole_or_in_pieces(void **state)
{
    (void)state;
    check_rows(MEM_BYTES, MEM_BYTES, 1000, 7, 9);
    check_rows(MEM_BYTES, MEM_BYTES, 3, 50001, 100);
    check_rows(MEM_F32, MEM_BF16, 3, 10001, 1);
    check_rows(MEM_F32, MEM_F8_E4M3, 5000, 3, 2);
    check_rows(MEM_F16, MEM_F32, 17, 1000, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_are_rounded_to_the_nearest_ties_to_even),
        cmocka_unit_test(numbers_of_eight_bits_are_scaled_and_saturate),
        cmocka_unit_test(wider_numbers_are_exact_and_a_nan_keeps_its_bits),
        cmocka_unit_test(the_scale_takes_the_greatest_number_to_448),
        cmocka_unit_test(each_instruction_set_gives_the_same),
        cmocka_unit_test(rows_that_lie_apart_are_taken_out_whole_or_in_pieces),
    };

    return cmocka_run_group_tests_name("memory convert", tests, NULL, NULL);
}
