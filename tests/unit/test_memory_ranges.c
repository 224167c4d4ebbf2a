/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What is known of addresses of GPU memory, with a driver of this test's own.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "memory/ranges.h"

#define MIB (UINT64_C(1) << 20)

/* The GPU's memory: one MiB each; 3 and 4 lie side by side on different GPUs. */
static const uintptr_t begins[] = {1 * MIB, 3 * MIB, 5 * MIB, 7 * MIB, 8 * MIB};
static unsigned nasked;

static bool answer(const void *ptr, struct mem_range *range)
{
    nasked++;
    for (unsigned i = 0; i < sizeof(begins) / sizeof(begins[0]); i++)
        if ((uintptr_t)ptr - begins[i] < MIB) {
            *range = (struct mem_range){.begin = begins[i], .nbytes = MIB, .gpu = i == 4};
            return true;
        }
    return false;
}

/* Memory without end, in pages. */
static bool answer_pages(const void *ptr, struct mem_range *range)
{
    nasked++;
    *range = (struct mem_range){.begin = (uintptr_t)ptr & ~(uintptr_t)4095, .nbytes = 4096};
    return true;
}

static struct mem_ranges ranges_of(mem_range_query *query)
{
    nasked = 0;
    return (struct mem_ranges){.query = query};
}

static gpunvme_err_t check(struct mem_ranges *ranges, uintptr_t at, size_t nbytes)
{
    int gpu;

    return mem_ranges_check(ranges, (const void *)at, nbytes, &gpu);
}

static void each_allocation_is_asked_about_once(void **state)
{
    struct mem_ranges ranges = ranges_of(answer);

    (void)state;
    for (unsigned i = 0; i < 1000; i++)
        assert_int_equal(check(&ranges, begins[i % 3] + i * 512, 512), GPUNVME_OK);
    assert_int_equal(nasked, 3);
}

static void what_was_forgotten_is_asked_again(void **state)
{
    struct mem_ranges ranges = ranges_of(answer);

    (void)state;
    assert_int_equal(check(&ranges, MIB, 1), GPUNVME_OK);
    mem_ranges_forget(&ranges);
    assert_int_equal(check(&ranges, MIB, 1), GPUNVME_OK);
    assert_int_equal(nasked, 2);
}

static void an_address_that_no_gpu_has_is_refused(void **state)
{
    struct mem_ranges ranges = ranges_of(answer);

    (void)state;
    assert_int_equal(check(&ranges, 2 * MIB, 1), GPUNVME_ERR_INVALID);
    assert_non_null(strstr(gpunvme_err_detail(), "0x200000 is no address of a GPU"));
    assert_int_equal(check(&ranges, MIB - 1, 1), GPUNVME_ERR_INVALID);
    assert_int_equal(check(&ranges, UINTPTR_MAX, 1), GPUNVME_ERR_INVALID);
    assert_int_equal(check(&ranges, 2 * MIB, 0), GPUNVME_OK);
}

static void memory_that_ends_too_early_is_refused(void **state)
{
    struct mem_ranges ranges = ranges_of(answer);

    (void)state;
    assert_int_equal(check(&ranges, 2 * MIB - 100, 100), GPUNVME_OK);
    assert_int_equal(check(&ranges, 2 * MIB - 100, 101), GPUNVME_ERR_INVALID);
    assert_non_null(strstr(gpunvme_err_detail(), "ends after 100 bytes, before 101"));
    assert_int_equal(check(&ranges, MIB, SIZE_MAX), GPUNVME_ERR_INVALID);
}

static void memory_may_be_several_pieces_side_by_side(void **state)
{
    struct mem_ranges ranges = ranges_of(answer);
    int gpu = -1;

    (void)state;
    assert_int_equal(mem_ranges_check(&ranges, (void *)(8 * MIB), 1, &gpu), GPUNVME_OK);
    assert_int_equal(gpu, 1);
    assert_int_equal(mem_ranges_check(&ranges, (void *)(7 * MIB), 2 * MIB, &gpu), GPUNVME_OK);
    assert_int_equal(gpu, 0);
    assert_int_equal(check(&ranges, 7 * MIB, 2 * MIB + 1), GPUNVME_ERR_INVALID);
}

static void neighbours_are_not_one_allocation(void **state)
{
    struct mem_ranges ranges = ranges_of(answer);

    (void)state;
    assert_true(mem_ranges_is_one(&ranges, (void *)(7 * MIB + 5), MIB - 5));
    assert_false(mem_ranges_is_one(&ranges, (void *)(7 * MIB + 5), MIB - 4));
    assert_false(mem_ranges_is_one(&ranges, (void *)(2 * MIB), 1));
    ranges = ranges_of(NULL);
    assert_true(mem_ranges_is_one(&ranges, (void *)(2 * MIB), 9 * MIB));
}

static void more_ranges_than_are_remembered_are_fine(void **state)
{
    struct mem_ranges ranges = ranges_of(answer_pages);

    (void)state;
    assert_int_equal(check(&ranges, 4095, 100 * 4096), GPUNVME_OK);
    assert_int_equal(nasked, 101);
    for (unsigned i = 0; i < 1000; i++)
        assert_int_equal(check(&ranges, i * 3000, 4096), GPUNVME_OK);
}

static void without_a_gpu_nothing_is_asked(void **state)
{
    struct mem_ranges ranges = ranges_of(NULL);

    (void)state;
    assert_int_equal(check(&ranges, 2 * MIB, 1), GPUNVME_OK);
}

static void the_bad_piece_of_a_batch_is_named(void **state)
{
    struct mem_ranges ranges = ranges_of(answer);
    struct gpunvme_mem_piece pieces[3];

    (void)state;
    for (unsigned i = 0; i < 3; i++)
        pieces[i] = (struct gpunvme_mem_piece){(void *)MIB, (void *)(3 * MIB), 512};
    assert_int_equal(mem_ranges_check_pieces(&ranges, pieces, 3), GPUNVME_OK);
    pieces[1].src = (void *)(2 * MIB);
    assert_int_equal(mem_ranges_check_pieces(&ranges, pieces, 3), GPUNVME_ERR_INVALID);
    assert_non_null(strstr(gpunvme_err_detail(), "piece 1: 0x200000"));
    pieces[1] = pieces[0];
    pieces[2].dst = (void *)(2 * MIB);
    assert_int_equal(mem_ranges_check_pieces(&ranges, pieces, 3), GPUNVME_ERR_INVALID);
    assert_non_null(strstr(gpunvme_err_detail(), "piece 2: 0x200000"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_allocation_is_asked_about_once),
        cmocka_unit_test(what_was_forgotten_is_asked_again),
        cmocka_unit_test(an_address_that_no_gpu_has_is_refused),
        cmocka_unit_test(memory_that_ends_too_early_is_refused),
        cmocka_unit_test(memory_may_be_several_pieces_side_by_side),
        cmocka_unit_test(neighbours_are_not_one_allocation),
        cmocka_unit_test(more_ranges_than_are_remembered_are_fine),
        cmocka_unit_test(without_a_gpu_nothing_is_asked),
        cmocka_unit_test(the_bad_piece_of_a_batch_is_named),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
