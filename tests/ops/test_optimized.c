/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Operators without a descriptor compute what those with one do: to the same bits, since the same
 * variant is chosen.
 */
#include "gpunvme/optimized.h"
#include "ops_test.h"

enum { M = 70, N = 90, K = 110 };

static float a[M * K], b[K * N], w[N * K], bias[N], got[M * N], want[M * N];
static _Alignas(GPUNVME_OPS_WORKSPACE_ALIGN) char room[8 << 20];

static const struct gpunvme_ops_exec one_thread = {
    .threads = 1, .workspace = room, .workspace_nbytes = sizeof(room)};

static int setup(void **state)
{
    struct base_random rng = {7};

    (void)state;
    for (size_t i = 0; i < M * K; i++)
        a[i] = (float)base_random_real(&rng) - 0.5f;
    for (size_t i = 0; i < K * N; i++) {
        b[i] = (float)base_random_real(&rng) - 0.5f;
        w[i] = (float)base_random_real(&rng) - 0.5f;
    }
    for (size_t i = 0; i < N; i++)
        bias[i] = (float)i;
    return 0;
}

static void matmul_is_that_of_its_descriptor(void **state)
{
    const struct gpunvme_matmul p = {.m = M,
                                     .n = N,
                                     .k = K,
                                     .batch = 1,
                                     .a = a,
                                     .b = b,
                                     .c = want,
                                     .lda = K,
                                     .ldb = N,
                                     .ldc = N,
                                     .alpha = 1};
    const struct gpunvme_ops_exec alone = {.threads = 1};

    (void)state;
    expect_ok(gpunvme_matmul(&p, &one_thread));
    expect_ok(optimized_matmul(a, b, got, M, N, K, GPUNVME_OPS_F32, &alone));
    assert_memory_equal(got, want, sizeof(want));
    memset(got, 0, sizeof(got));
    expect_ok(optimized_matmul(a, b, got, M, N, K, GPUNVME_OPS_F32, &one_thread));
    assert_memory_equal(got, want, sizeof(want));
    memset(got, 0, sizeof(got));
    expect_ok(optimized_matmul(a, b, got, M, N, K, GPUNVME_OPS_F32, NULL));
    for (size_t i = 0; i < M * N; i++)
        assert_true(fabsf(got[i] - want[i]) <= 1e-4f);
}

static void linear_is_that_of_its_descriptor(void **state)
{
    const struct gpunvme_linear p = {.rows = M,
                                     .in = K,
                                     .out = N,
                                     .x = a,
                                     .weight = w,
                                     .bias = bias,
                                     .y = want,
                                     .ldx = K,
                                     .ldw = K,
                                     .ldy = N,
                                     .activation = GPUNVME_OPS_ACT_GELU};
    const struct gpunvme_ops_exec alone = {.threads = 1};

    (void)state;
    expect_ok(gpunvme_linear_forward(&p, &one_thread));
    expect_ok(
        optimized_linear(a, w, bias, got, M, K, N, GPUNVME_OPS_ACT_GELU, GPUNVME_OPS_F32, &alone));
    assert_memory_equal(got, want, sizeof(want));
}

static void attention_is_that_of_its_descriptor(void **state)
{
    enum { B = 2, S = 9, H = 4, KH = 2, D = 16 };
    const struct gpunvme_attention p = {.batch = B,
                                        .heads = H,
                                        .kv_heads = KH,
                                        .dim = D,
                                        .dim_v = D,
                                        .q_len = S,
                                        .k_len = S,
                                        .q = a,
                                        .k = b,
                                        .v = w,
                                        .out = want,
                                        .q_strides = {S * H * D, H * D, D},
                                        .k_strides = {S * KH * D, KH * D, D},
                                        .v_strides = {S * KH * D, KH * D, D},
                                        .out_strides = {S * H * D, H * D, D},
                                        .causal = 1};
    const struct gpunvme_ops_exec alone = {.threads = 1};

    (void)state;
    expect_ok(gpunvme_attention(&p, &one_thread));
    expect_ok(optimized_attention(a, b, w, got, B, S, S, H, KH, D, 1, GPUNVME_OPS_F32, &alone));
    assert_memory_equal(got, want, B * S * H * D * sizeof(float));
    expect_status(optimized_attention(a, b, w, got, B, S, S, H, 3, D, 1, GPUNVME_OPS_F32, NULL),
                  GPUNVME_OPS_ERR_SHAPE, "must divide heads");
    expect_status(
        optimized_attention(a, b, w, got, B, INT64_MAX, S, H, KH, D, 1, GPUNVME_OPS_F32, NULL),
        GPUNVME_OPS_ERR_SHAPE, "larger than 2^63");
}

static void moe_is_that_of_its_descriptor(void **state)
{
    enum { T = 9, E = 4, TOP = 2, D = 16, F = 24 };
    const struct gpunvme_moe p = {.tokens = T,
                                  .experts = E,
                                  .top_k = TOP,
                                  .dim = D,
                                  .hidden = F,
                                  .x = a,
                                  .logits = b,
                                  .w_gate = w,
                                  .w_up = w + E * F * D,
                                  .w_down = w + 2 * E * F * D,
                                  .y = want,
                                  .ldx = D,
                                  .ld_logits = E,
                                  .ldy = D,
                                  .ld_w_gate = D,
                                  .ld_w_up = D,
                                  .ld_w_down = F,
                                  .stride_w_gate = F * D,
                                  .stride_w_up = F * D,
                                  .stride_w_down = F * D};
    const struct gpunvme_ops_exec alone = {.threads = 1};

    (void)state;
    expect_ok(gpunvme_moe_forward(&p, &one_thread));
    expect_ok(optimized_moe(a, b, p.w_gate, p.w_up, p.w_down, got, T, E, TOP, D, F, GPUNVME_OPS_F32,
                            &alone));
    assert_memory_equal(got, want, T * D * sizeof(float));
    expect_status(optimized_moe(a, b, w, w, w, got, T, E, E + 1, D, F, GPUNVME_OPS_F32, NULL),
                  GPUNVME_OPS_ERR_SHAPE, "top_k");
    expect_status(optimized_moe(a, b, w, w, w, got, T, E, TOP, INT64_MAX, F, GPUNVME_OPS_F32, NULL),
                  GPUNVME_OPS_ERR_SHAPE, "larger than 2^63");
}

static void each_variant_can_be_named(void **state)
{
    struct gpunvme_ops_variant variant;

    (void)state;
    for (unsigned i = 0; !gpunvme_ops_variant(GPUNVME_OPS_MATMUL, GPUNVME_OPS_CPU, i, &variant);
         i++) {
        const struct gpunvme_ops_exec exec = {.variant = variant.name};

        if (variant.available)
            expect_ok(optimized_matmul(a, b, got, M, N, K, GPUNVME_OPS_F32, &exec));
    }
}

static void bad_arguments_are_refused(void **state)
{
    const struct gpunvme_ops_exec none = {.variant = "none"};

    (void)state;
    expect_status(optimized_matmul(NULL, b, got, M, N, K, GPUNVME_OPS_F32, NULL),
                  GPUNVME_OPS_ERR_INVALID, "A is NULL");
    expect_status(optimized_matmul(a, b, got, M, N, -1, GPUNVME_OPS_F32, NULL),
                  GPUNVME_OPS_ERR_SHAPE, "k is -1");
    expect_status(optimized_matmul(a, b, got, M, N, K, 77, NULL), GPUNVME_OPS_ERR_INVALID, "dtype");
    expect_status(optimized_matmul(a, b, got, M, N, K, GPUNVME_OPS_F32, &none),
                  GPUNVME_OPS_ERR_VARIANT, "none");
    expect_status(
        optimized_linear(a, w, bias, NULL, M, K, N, GPUNVME_OPS_ACT_NONE, GPUNVME_OPS_F32, NULL),
        GPUNVME_OPS_ERR_INVALID, "y is NULL");
    expect_status(optimized_linear(a, w, bias, got, M, K, N, 99, GPUNVME_OPS_F32, NULL),
                  GPUNVME_OPS_ERR_INVALID, "activation");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matmul_is_that_of_its_descriptor),
        cmocka_unit_test(linear_is_that_of_its_descriptor),
        cmocka_unit_test(attention_is_that_of_its_descriptor),
        cmocka_unit_test(moe_is_that_of_its_descriptor),
        cmocka_unit_test(each_variant_can_be_named),
        cmocka_unit_test(bad_arguments_are_refused),
    };

    return cmocka_run_group_tests(tests, setup, NULL);
}
