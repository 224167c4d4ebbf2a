/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Attention of E4M3 with factors by sequence and head, every variant that this machine has, against
 * its formulas in f64.
 */
#include "attention_test.h"

/* From case to case: 0, 3 and 6 set and clear each of three bits. */
enum { STEP = FEWER_CASES ? 3 : 1 };

static struct base_random rng = {23};

static void forward(struct request r)
{
    r.dtype = GPUNVME_OPS_E4M3;
    test_request(r, &rng);
}

/* What the rung for sm_90a takes; where it is there, it is not refused. */
static void aligned(struct request r)
{
    r.aligned = true;
    r.dim = r.dim ? r.dim : 128;
    forward(r);
}

static void factors_are_those_of_the_sequence_and_head(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i += STEP) {
        struct request r = {.batch = 3,
                            .heads = 4,
                            .kv_heads = i & 1 ? 2 : 4,
                            .q_len = 21,
                            .k_len = 50,
                            .ragged = i & 2,
                            .lengths = i & 4,
                            .layout = i & 1 ? BHSD : BSHD};

        forward(r);
        aligned(r);
    }
}

static void sequences_may_share_factors(void **state)
{
    (void)state;
    aligned((struct request){
        .batch = 2, .heads = 4, .kv_heads = 2, .q_len = 9, .k_len = 40, .shared_descales = true});
}

static void without_factors_elements_are_their_numbers(void **state)
{
    (void)state;
    aligned((struct request){.q_len = 33, .k_len = 40, .no_descales = true});
    forward((struct request){.q_len = 13, .k_len = 40, .no_descales = true, .dim = 300});
}

static void results_have_any_wider_type(void **state)
{
    static const int64_t dims[][2] = {{128, 128}, {64, 64}, {48, 37}, {1, 1}, {256, 24}};

    (void)state;
    for (int out = 0; out < GPUNVME_OPS_NDTYPES; out++)
        for (size_t i = (size_t)out % STEP; i < sizeof(dims) / sizeof(dims[0]); i += STEP)
            aligned((struct request){.dim = dims[i][0],
                                     .dim_v = dims[i][1],
                                     .q_len = 37,
                                     .k_len = 111,
                                     .out_dtype = out});
}

/* Tiles have 192 queries and 96 keys: within one, at its edges, and several for a block. */
static void lengths_may_be_anything(void **state)
{
    static const int64_t lengths[][2] = {{1, 1}, {1, 97}, {7, 1}, {64, 96}, {193, 401}, {401, 131}};

    (void)state;
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++)
        for (int causal = FEWER_CASES ? i % 2 : 0; causal < 2; causal += 1 + FEWER_CASES)
            aligned((struct request){.heads = i == 4 && !FEWER_CASES ? 4 : 2,
                                     .kv_heads = i == 4 && !FEWER_CASES ? 2 : 1,
                                     .q_len = lengths[i][0],
                                     .k_len = lengths[i][1],
                                     .out_dtype = GPUNVME_OPS_BF16,
                                     .causal = causal});
}

static void queries_that_see_no_key_have_0(void **state)
{
    (void)state;
    aligned((struct request){.q_len = 5, .k_len = 0});
    aligned((struct request){.q_len = 5, .k_len = 0, .sinks = true});
    aligned((struct request){.q_len = 0, .k_len = 5});
    aligned((struct request){.q_len = 250, .k_len = 3, .causal = true});
}

static void masks_softcap_and_sinks_are_applied(void **state)
{
    (void)state;
    aligned((struct request){
        .heads = 1, .q_len = 200, .k_len = 300, .window = true, .left = 90, .right = 20});
    for (int i = 0; i < 8; i += STEP)
        aligned((struct request){.q_len = 29,
                                 .k_len = 147,
                                 .scale = i & 1 ? 0.5f : 0,
                                 .softcap = i & 2 ? 2.5f : 0,
                                 .sinks = i & 4,
                                 .causal = true});
}

/* NaN are behind each sequence's rows, and between them. */
static void tiles_end_where_sequences_do(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i += STEP)
        aligned((struct request){.batch = 4,
                                 .q_len = 70,
                                 .k_len = 290,
                                 .ragged = i & 1,
                                 .lengths = !(i & 1) || i & 2,
                                 .sinks = true,
                                 .out_dtype = GPUNVME_OPS_F16,
                                 .causal = i & 2});
}

/* Sums are scaled again and again; the last keys, or the first, have all the weight. */
static void scores_may_grow_or_fall_with_the_keys(void **state)
{
    (void)state;
    for (int falls = 0; falls < 2; falls++) {
        struct request r = with_defaults((struct request){.dim = 64,
                                                          .q_len = 33,
                                                          .k_len = 700,
                                                          .scale = 0.1f,
                                                          .aligned = true,
                                                          .dtype = GPUNVME_OPS_E4M3});
        struct problem p = problem_new(&r, &rng);

        for (int64_t j = 0; j < r.k_len; j++)
            for (int64_t h = 0; h < r.kv_heads; h++)
                cpu_store(p.k.block, tensor_at(&p.k, 0, j, h, 0), r.dtype,
                          (float)(falls ? r.k_len - j : j) * 0.3f);
        make_references(&p);
        for_each_variant(GPUNVME_OPS_ATTENTION, test_forward, &p);
        problem_free(&p);
    }
}

static void rope_rotates_numbers_before_their_factor(void **state)
{
    (void)state;
    forward((struct request){
        .batch = 2, .dim = 48, .q_len = 21, .k_len = 33, .rope = 32, .causal = true});
}

/* Keys of one weight, values that are all alike: nothing of V may be lost or taken twice. */
static void equal_values_are_the_result(void **state)
{
    struct request r = with_defaults((struct request){.dim = 128,
                                                      .q_len = 5,
                                                      .k_len = 333,
                                                      .aligned = true,
                                                      .no_descales = true,
                                                      .dtype = GPUNVME_OPS_E4M3});
    struct problem p = problem_new(&r, &rng);

    (void)state;
    for (int64_t j = 0; j < r.k_len; j++)
        for (int64_t h = 0; h < r.kv_heads; h++)
            for (int64_t c = 0; c < r.dim; c++) {
                cpu_store(p.k.block, tensor_at(&p.k, 0, j, h, c), r.dtype, 0.5f);
                cpu_store(p.v.block, tensor_at(&p.v, 0, j, h, c), r.dtype, (float)(c % 8 + 1));
            }
    make_references(&p);
    for_each_variant(GPUNVME_OPS_ATTENTION, test_forward, &p);
    problem_free(&p);
}

/* "auto" is the rung for sm_90a where that is there and takes the call. */
static void what_the_fastest_rung_takes_is_its(void **state)
{
    struct gpunvme_ops_exec exec = {.device = TEST_DEVICE};
    struct request r = with_defaults((struct request){
        .dim = 128, .q_len = 5, .k_len = 33, .aligned = true, .dtype = GPUNVME_OPS_E4M3});
    struct problem p = problem_new(&r, &rng);
    struct gpunvme_attention x = attention_of(&p);
    struct gpunvme_ops_variant v;
    const char *name = NULL;

    (void)state;
    if (variant_find(GPUNVME_OPS_ATTENTION, "hopper", &v)) {
        expect_ok(gpunvme_attention_choose(&x, &exec, &name));
        assert_string_equal(name, v.available ? "hopper" : "naive");
        x.dim = 129;
        exec.variant = "hopper";
        if (v.available)
            expect_status(gpunvme_attention_choose(&x, &exec, &name), GPUNVME_OPS_ERR_UNSUPPORTED,
                          "up to 128 channels of e4m3");
        exec.variant = "flash2";
        expect_status(gpunvme_attention_choose(&x, &exec, &name), GPUNVME_OPS_ERR_DTYPE,
                      "does not take e4m3");
    }
    problem_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(factors_are_those_of_the_sequence_and_head),
        cmocka_unit_test(sequences_may_share_factors),
        cmocka_unit_test(without_factors_elements_are_their_numbers),
        cmocka_unit_test(results_have_any_wider_type),
        cmocka_unit_test(lengths_may_be_anything),
        cmocka_unit_test(queries_that_see_no_key_have_0),
        cmocka_unit_test(masks_softcap_and_sinks_are_applied),
        cmocka_unit_test(tiles_end_where_sequences_do),
        cmocka_unit_test(scores_may_grow_or_fall_with_the_keys),
        cmocka_unit_test(rope_rotates_numbers_before_their_factor),
        cmocka_unit_test(equal_values_are_the_result),
        cmocka_unit_test(what_the_fastest_rung_takes_is_its),
    };

    return no_gpu() ? 77 : cmocka_run_group_tests(tests, NULL, NULL);
}
