/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A GPU that is later than all that a build has code for runs PTX of sm_80, which has no clusters
 * and no launches that overlap. The emulated build has code of sm_90a alone.
 */
#include "../ops_test.h"

extern int emulated_sm;

/* Calls `each` with all variants on GPUs; returns how many need sm_90 or later. */
static unsigned each_variant(void (*each)(const struct gpunvme_ops_variant *v, bool needs_sm90))
{
    struct gpunvme_ops_variant v;
    unsigned count = 0;

    for (int op = 0; op < GPUNVME_OPS_NOPS; op++)
        for (unsigned i = 0; !gpunvme_ops_variant(op, GPUNVME_OPS_CUDA, i, &v); i++) {
            bool needs_sm90 = strstr(v.needs, "sm_90") != NULL;

            count += needs_sm90;
            each(&v, needs_sm90);
        }
    return count;
}

static void is_there(const struct gpunvme_ops_variant *v, bool needs_sm90)
{
    (void)needs_sm90;
    assert_true(v->available);
}

static void is_there_without_clusters(const struct gpunvme_ops_variant *v, bool needs_sm90)
{
    assert_int_equal(v->available, !needs_sm90);
}

static void variants_with_clusters_are_there_if_there_is_code_for_the_gpu(void **state)
{
    static const int others[] = {80, 89, 100, 103, 120};

    (void)state;
    emulated_sm = 90;
    assert_true(each_variant(is_there) > 0);
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        emulated_sm = others[i];
        each_variant(is_there_without_clusters);
    }
}

static void a_later_gpu_takes_products_of_sm_80(void **state)
{
    static float a[64], b[64 * 64], c[64];
    const struct gpunvme_ops_exec gpu = {.device = GPUNVME_OPS_CUDA};
    const struct gpunvme_matmul p = {.batch = 1,
                                     .m = 1,
                                     .n = 64,
                                     .k = 64,
                                     .a = a,
                                     .b = b,
                                     .c = c,
                                     .lda = 64,
                                     .ldb = 64,
                                     .ldc = 64,
                                     .alpha = 1};
    const char *name;

    (void)state;
    emulated_sm = 90;
    expect_ok(gpunvme_matmul_choose(&p, &gpu, &name));
    assert_string_equal(name, "skinny");
    emulated_sm = 120;
    expect_ok(gpunvme_matmul_choose(&p, &gpu, &name));
    assert_string_not_equal(name, "skinny");
    assert_string_not_equal(name, "shaped");
    expect_status(
        gpunvme_matmul_choose(
            &p, &(struct gpunvme_ops_exec){.device = GPUNVME_OPS_CUDA, .variant = "skinny"}, &name),
        GPUNVME_OPS_ERR_DEVICE, "a build for it");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(variants_with_clusters_are_there_if_there_is_code_for_the_gpu),
        cmocka_unit_test(a_later_gpu_takes_products_of_sm_80),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
