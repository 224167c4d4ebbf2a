/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What operators refuse, with a text that says why; and that they wrote nothing then.
 */
#include "ops_test.h"

static float a[64], b[64], c[64], before[64];

static struct gpunvme_matmul good(void)
{
    return (struct gpunvme_matmul){.m = 4,
                                   .n = 5,
                                   .k = 6,
                                   .batch = 1,
                                   .a = a,
                                   .b = b,
                                   .c = c,
                                   .lda = 6,
                                   .ldb = 5,
                                   .ldc = 5,
                                   .alpha = 1};
}

static const struct gpunvme_ops_exec naive = {.variant = "naive"};

#define expect_refused(change, status, text)                                                       \
    do {                                                                                           \
        struct gpunvme_matmul p = good();                                                          \
        change;                                                                                    \
        expect_status(gpunvme_matmul(&p, &naive), status, text);                                   \
        assert_memory_equal(c, before, sizeof(c));                                                 \
    } while (0)

static int setup(void **state)
{
    (void)state;
    for (int i = 0; i < 64; i++)
        before[i] = c[i] = (float)i;
    return 0;
}

static void null_is_refused_where_elements_are_used(void **state)
{
    (void)state;
    expect_refused(p.a = NULL, GPUNVME_OPS_ERR_INVALID, "A is NULL");
    expect_refused(p.b = NULL, GPUNVME_OPS_ERR_INVALID, "B is NULL");
    expect_refused(p.c = NULL, GPUNVME_OPS_ERR_INVALID, "C is NULL");
    expect_status(gpunvme_matmul(NULL, &naive), GPUNVME_OPS_ERR_INVALID, "NULL");
}

static void sizes_and_leading_dimensions_are_checked(void **state)
{
    (void)state;
    expect_refused(p.m = -1, GPUNVME_OPS_ERR_SHAPE, "m is -1");
    expect_refused(p.n = -7, GPUNVME_OPS_ERR_SHAPE, "n is -7");
    expect_refused(p.k = INT64_MIN, GPUNVME_OPS_ERR_SHAPE, "k is");
    expect_refused(p.batch = -1, GPUNVME_OPS_ERR_SHAPE, "batch is -1");
    expect_refused(p.lda = 5, GPUNVME_OPS_ERR_SHAPE, "A has rows of 6");
    expect_refused(p.ldb = -5, GPUNVME_OPS_ERR_SHAPE, "B has rows of 5");
    expect_refused(p.ldc = 0, GPUNVME_OPS_ERR_SHAPE, "C has rows of 5");
    expect_refused((p.batch = 2, p.stride_c = 20, p.stride_a = -1), GPUNVME_OPS_ERR_SHAPE,
                   "stride of A");
    expect_refused((p.transpose_a = 1, p.lda = 3), GPUNVME_OPS_ERR_SHAPE, "A has rows of 4");
}

static void sizes_beyond_63_bits_are_refused(void **state)
{
    (void)state;
    expect_refused(p.lda = INT64_MAX, GPUNVME_OPS_ERR_SHAPE, "A is larger");
    expect_refused((p.m = INT64_MAX, p.n = INT64_MAX, p.ldb = p.ldc = INT64_MAX),
                   GPUNVME_OPS_ERR_SHAPE, "is larger");
    expect_refused((p.batch = INT64_MAX, p.stride_c = INT64_MAX / 2), GPUNVME_OPS_ERR_SHAPE,
                   "C is larger");
}

static void enumerations_are_checked(void **state)
{
    (void)state;
    expect_refused(p.dtype = 5, GPUNVME_OPS_ERR_INVALID, "dtype is 5");
    expect_refused(p.out_dtype = -1, GPUNVME_OPS_ERR_INVALID, "out_dtype is -1");
    expect_refused(p.out_dtype = GPUNVME_OPS_BF16, GPUNVME_OPS_ERR_DTYPE, "C is bf16");
    expect_refused(p.compute = 2, GPUNVME_OPS_ERR_INVALID, "compute is 2");
    expect_refused(p.transpose_b = 2, GPUNVME_OPS_ERR_INVALID, "transpose_b is 2");
}

static void only_fp8_has_two_types_of_operands(void **state)
{
    (void)state;
    expect_refused((p.dtype = GPUNVME_OPS_E4M3, p.dtype_b = GPUNVME_OPS_F16), GPUNVME_OPS_ERR_DTYPE,
                   "A is e4m3 and B f16");
    expect_refused((p.dtype = GPUNVME_OPS_F16, p.dtype_b = GPUNVME_OPS_E5M2), GPUNVME_OPS_ERR_DTYPE,
                   "A is f16 and B e5m2");
    expect_refused(p.dtype_b = 5, GPUNVME_OPS_ERR_INVALID, "dtype_b is 5");
    expect_refused(p.reserved = 1, GPUNVME_OPS_ERR_INVALID, "reserved is 1");
}

static void scales_are_checked(void **state)
{
    (void)state;
    expect_refused(p.scale_a = a, GPUNVME_OPS_ERR_INVALID, "for e4m3 and e5m2, not f32");
    expect_refused(p.fast_sums = 1, GPUNVME_OPS_ERR_INVALID, "for e4m3 and e5m2, not f32");
    expect_refused((p.dtype = GPUNVME_OPS_E4M3, p.scaling = 3), GPUNVME_OPS_ERR_INVALID,
                   "scaling is 3");
    expect_refused((p.dtype = GPUNVME_OPS_E4M3, p.out_dtype = GPUNVME_OPS_E4M3),
                   GPUNVME_OPS_ERR_INVALID, "out_dtype is 3");
    expect_refused((p.dtype = GPUNVME_OPS_E4M3, p.scaling = GPUNVME_MATMUL_SCALE_BLOCK,
                    p.transpose_c = 1, p.ldc = 8),
                   GPUNVME_OPS_ERR_UNSUPPORTED, "transpose_c");
    expect_refused(
        (p.dtype = GPUNVME_OPS_E5M2, p.scaling = GPUNVME_MATMUL_SCALE_BLOCK, p.fast_sums = 1),
        GPUNVME_OPS_ERR_UNSUPPORTED, "fast_sums");
    expect_refused((p.dtype = GPUNVME_OPS_E5M2, p.scale_b = (const float *)((const char *)b + 2)),
                   GPUNVME_OPS_ERR_ALIGN, "the scales of B");
    expect_refused(
        (p.dtype = GPUNVME_OPS_E4M3, p.scaling = GPUNVME_MATMUL_SCALE_ROW, p.scale_a = c + 18),
        GPUNVME_OPS_ERR_ALIAS, "C and the scales of A");
    expect_refused((p.dtype = GPUNVME_OPS_E4M3, p.scaling = GPUNVME_MATMUL_SCALE_BLOCK,
                    p.m = p.k = INT64_MAX, p.lda = INT64_MAX, p.scale_a = a),
                   GPUNVME_OPS_ERR_SHAPE, "is larger");
}

static void misaligned_pointers_are_refused(void **state)
{
    (void)state;
    expect_refused(p.a = (const char *)a + 2, GPUNVME_OPS_ERR_ALIGN, "A is at");
    expect_refused(p.c = (char *)c + 1, GPUNVME_OPS_ERR_ALIGN, "C is at");
}

static void results_over_operands_are_refused(void **state)
{
    (void)state;
    expect_refused(p.a = c, GPUNVME_OPS_ERR_ALIAS, "C and A");
    expect_refused(p.b = c + 19, GPUNVME_OPS_ERR_ALIAS, "C and B");
    expect_refused((p.a = c, p.lda = 8, p.ldc = 8, p.b = b, p.c = c + 5), GPUNVME_OPS_ERR_ALIAS,
                   "C and A");
    expect_refused((p.batch = 2, p.stride_c = 19), GPUNVME_OPS_ERR_ALIAS, "overlap each other");
    expect_refused((p.batch = 2, p.stride_c = 0), GPUNVME_OPS_ERR_ALIAS, "overlap each other");
}

static void operands_may_overlap_each_other(void **state)
{
    struct gpunvme_matmul p = good();

    (void)state;
    p.b = a;
    expect_ok(gpunvme_matmul(&p, &naive));
}

static void columns_of_one_wide_matrix_do_not_overlap(void **state)
{
    float wide[4 * 16] = {0};
    struct gpunvme_matmul p = good();

    (void)state;
    p.a = wide;
    p.c = wide + 6;
    p.lda = p.ldc = 16;
    expect_ok(gpunvme_matmul(&p, &naive));
    p.a = wide + 11 - 6 + 1;
    p.c = wide;
    expect_ok(gpunvme_matmul(&p, &naive));
    p.a = wide + 16 + 4; /* begins a row later, but in C's last column */
    p.m = 3;
    expect_status(gpunvme_matmul(&p, &naive), GPUNVME_OPS_ERR_ALIAS, "C and A");
    p.a = wide + 12; /* ends in the next row of C */
    expect_status(gpunvme_matmul(&p, &naive), GPUNVME_OPS_ERR_ALIAS, "C and A");
}

static void leading_dimension_of_one_row_is_not_looked_at(void **state)
{
    struct gpunvme_matmul p = good();

    (void)state;
    p.m = 1;
    p.lda = p.ldc = -3;
    expect_ok(gpunvme_matmul(&p, &naive));
}

static void exec_is_checked(void **state)
{
    struct gpunvme_matmul p = good();
    struct gpunvme_ops_exec e = {.variant = "bloked"};

    (void)state;
    expect_status(gpunvme_matmul(&p, &e), GPUNVME_OPS_ERR_VARIANT, "auto, naive, blocked");
    e = (struct gpunvme_ops_exec){.device = 9};
    expect_status(gpunvme_matmul(&p, &e), GPUNVME_OPS_ERR_INVALID, "exec->device is 9");
    e = (struct gpunvme_ops_exec){.threads = -1};
    expect_status(gpunvme_matmul(&p, &e), GPUNVME_OPS_ERR_INVALID, "threads");
    e = (struct gpunvme_ops_exec){.flags = 0x80};
    expect_status(gpunvme_matmul(&p, &e), GPUNVME_OPS_ERR_INVALID, "flags 0x80");
}

static void nonsense_is_refused_even_where_nothing_is_to_do(void **state)
{
    struct gpunvme_matmul p = good();
    struct gpunvme_ops_exec e = {.variant = "none"};

    (void)state;
    p.m = 0;
    expect_status(gpunvme_matmul(&p, &e), GPUNVME_OPS_ERR_VARIANT, "'none'");
}

static void a_workspace_too_small_is_told_with_its_size(void **state)
{
    static char memory[4096] __attribute__((aligned(256)));
    struct gpunvme_matmul p = good();
    struct gpunvme_ops_exec e = {.variant = "packed"};
    char text[32];
    size_t nbytes = 0;

    (void)state;
    expect_ok(gpunvme_matmul_workspace(&p, &e, &nbytes));
    assert_in_range(nbytes, 1, sizeof(memory) - 256);
    snprintf(text, sizeof(text), "needs %zu bytes", nbytes);
    expect_status(gpunvme_matmul(&p, &e), GPUNVME_OPS_ERR_WORKSPACE, text);
    e.workspace = memory;
    e.workspace_nbytes = nbytes - 1;
    expect_status(gpunvme_matmul(&p, &e), GPUNVME_OPS_ERR_WORKSPACE, text);
    e.workspace = memory + 64;
    e.workspace_nbytes = nbytes;
    expect_status(gpunvme_matmul(&p, &e), GPUNVME_OPS_ERR_ALIGN, "workspace");
    e.workspace = memory;
    p.c = memory + 128;
    expect_status(gpunvme_matmul(&p, &e), GPUNVME_OPS_ERR_ALIAS, "the workspace and C");
    p.c = c;
    expect_ok(gpunvme_matmul(&p, &e));
}

static void out_parameters_must_be_given(void **state)
{
    struct gpunvme_matmul p = good();

    (void)state;
    expect_status(gpunvme_matmul_workspace(&p, NULL, NULL), GPUNVME_OPS_ERR_INVALID, "nbytes");
    expect_status(gpunvme_matmul_choose(&p, NULL, NULL), GPUNVME_OPS_ERR_INVALID, "name");
    expect_status(gpunvme_matmul_analyze(&p, NULL, NULL), GPUNVME_OPS_ERR_INVALID, "metrics");
    expect_status(gpunvme_ops_variant(0, 0, 0, NULL), GPUNVME_OPS_ERR_INVALID, "NULL");
    expect_status(gpunvme_ops_capability(0, 0, NULL), GPUNVME_OPS_ERR_INVALID, "NULL");
}

static void ladders_are_listed_with_texts(void **state)
{
    (void)state;
    for (int op = 0; op < GPUNVME_OPS_NOPS; op++) {
        struct gpunvme_ops_variant v;
        unsigned n = 0;

        while (!gpunvme_ops_variant(op, GPUNVME_OPS_CPU, n, &v)) {
            assert_true(strlen(v.name) && strlen(v.needs) && strlen(v.changes));
            assert_int_equal(v.op, op);
            n++;
        }
        assert_true(n >= 1);
        expect_status(gpunvme_ops_variant(op, 0, n, &v), GPUNVME_OPS_ERR_VARIANT, "rungs");
    }
    expect_status(gpunvme_ops_variant(GPUNVME_OPS_NOPS, 0, 0, &(struct gpunvme_ops_variant){0}),
                  GPUNVME_OPS_ERR_INVALID, "op is");
}

static void the_cpu_tells_what_it_can_do(void **state)
{
    struct gpunvme_ops_capability x;

    (void)state;
    expect_ok(gpunvme_ops_capability(GPUNVME_OPS_CPU, 0, &x));
    assert_true(x.units >= 1 && x.name[0]);
    expect_status(gpunvme_ops_capability(GPUNVME_OPS_CPU, 1, &x), GPUNVME_OPS_ERR_DEVICE, "");
    expect_status(gpunvme_ops_capability(GPUNVME_OPS_CPU, -1, &x), GPUNVME_OPS_ERR_INVALID, "");
}

static void statuses_have_names_and_texts(void **state)
{
    (void)state;
#define X(name, value, text)                                                                       \
    assert_string_equal(gpunvme_ops_status_name(value), "GPUNVME_OPS_ERR_" #name);                 \
    assert_string_equal(gpunvme_ops_status_text(value), text);
    GPUNVME_OPS_STATUSES(X)
#undef X
    assert_string_equal(gpunvme_ops_status_name(0), "GPUNVME_OPS_OK");
    assert_string_equal(gpunvme_ops_status_name(-99), "unknown status");
    assert_string_equal(gpunvme_ops_dtype_name(7), "?");
    assert_int_equal(gpunvme_ops_dtype_nbytes(7), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(null_is_refused_where_elements_are_used),
        cmocka_unit_test(sizes_and_leading_dimensions_are_checked),
        cmocka_unit_test(sizes_beyond_63_bits_are_refused),
        cmocka_unit_test(enumerations_are_checked),
        cmocka_unit_test(only_fp8_has_two_types_of_operands),
        cmocka_unit_test(scales_are_checked),
        cmocka_unit_test(misaligned_pointers_are_refused),
        cmocka_unit_test(results_over_operands_are_refused),
        cmocka_unit_test(operands_may_overlap_each_other),
        cmocka_unit_test(columns_of_one_wide_matrix_do_not_overlap),
        cmocka_unit_test(leading_dimension_of_one_row_is_not_looked_at),
        cmocka_unit_test(exec_is_checked),
        cmocka_unit_test(nonsense_is_refused_even_where_nothing_is_to_do),
        cmocka_unit_test(a_workspace_too_small_is_told_with_its_size),
        cmocka_unit_test(out_parameters_must_be_given),
        cmocka_unit_test(ladders_are_listed_with_texts),
        cmocka_unit_test(the_cpu_tells_what_it_can_do),
        cmocka_unit_test(statuses_have_names_and_texts),
    };

    return cmocka_run_group_tests(tests, setup, NULL);
}
