/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Attention, every variant that this machine has, against its formulas in f64.
 */
#include "attention_test.h"

static struct base_random rng = {11};

static void forward_in_type(struct request r)
{
    test_request(r, &rng);
}

/* Kernels for 16-bit types are others than those for f32. */
static void forward(struct request r)
{
    int last = TEST_DEVICE == GPUNVME_OPS_CPU ? GPUNVME_OPS_F32 : GPUNVME_OPS_BF16;

    for (; r.dtype <= last; r.dtype++) {
        r.out_dtype = r.dtype == GPUNVME_OPS_BF16 ? GPUNVME_OPS_BF16 : GPUNVME_OPS_F32;
        forward_in_type(r);
    }
}

static const int64_t lengths[][2] = {{1, 1},   {1, 7},     {7, 1},    {13, 13},
                                     {31, 97}, {131, 401}, {401, 131}};
#define NLENGTHS (sizeof(lengths) / sizeof(lengths[0]))

static void lengths_may_be_anything(void **state)
{
    (void)state;
    for (size_t i = 0; i < NLENGTHS; i++)
        for (int causal = 0; causal < 2; causal++)
            forward(
                (struct request){.q_len = lengths[i][0], .k_len = lengths[i][1], .causal = causal});
}

static void without_keys_the_result_is_0(void **state)
{
    (void)state;
    forward((struct request){.q_len = 5, .k_len = 0});
    forward((struct request){.q_len = 5, .k_len = 0, .sinks = true});
    forward((struct request){.q_len = 0, .k_len = 5});
    forward((struct request){.q_len = 5, .k_len = 3, .causal = true, .sinks = true});
}

/* Every query but the last ones is masked: none of them may be NaN. */
static void expect_masked(const char *variant, void *arg)
{
    const struct problem *p = arg;

    if (!forward_takes(variant, p->r))
        return;
    run_attention(variant, p);
    for (int64_t q = 0; q < 7; q++) {
        assert_true(tensor_get(&p->lse, 0, q, 0, 0) == -INFINITY);
        for (int64_t c = 0; c < p->r->dim_v; c++)
            assert_true(tensor_get(&p->out, 0, q, 1, c) == 0);
    }
    assert_true(isfinite(tensor_get(&p->lse, 0, 7, 0, 0)));
}

static void queries_that_see_no_key_are_0_and_minus_infinity(void **state)
{
    (void)state;
    for (int dtype = 0; dtype < GPUNVME_OPS_NDTYPES; dtype++) {
        struct request r =
            with_defaults((struct request){.q_len = 9, .k_len = 2, .causal = true, .dtype = dtype});
        struct problem p = problem_new(&r, &rng);

        for_each_variant(GPUNVME_OPS_ATTENTION, expect_masked, &p);
        problem_free(&p);
    }
}

static void every_type_and_head_size_is_right(void **state)
{
    static const int64_t dims[][2] = {{1, 1},     {64, 64}, {128, 128},
                                      {256, 256}, {72, 40}, {192, 128}};

    (void)state;
    for (int dtype = 0; dtype < GPUNVME_OPS_NDTYPES; dtype++)
        for (size_t i = 0; i < sizeof(dims) / sizeof(dims[0]); i++)
            for (int f32 = 0; f32 < 2; f32++)
                forward_in_type((struct request){.dim = dims[i][0],
                                                 .dim_v = dims[i][1],
                                                 .q_len = 37,
                                                 .k_len = 211,
                                                 .dtype = dtype,
                                                 .out_dtype = f32 ? GPUNVME_OPS_F32 : dtype});
}

static void heads_share_keys_and_values(void **state)
{
    static const int64_t heads[][2] = {{1, 1}, {6, 6}, {6, 2}, {6, 1}, {8, 2}};

    (void)state;
    for (size_t i = 0; i < sizeof(heads) / sizeof(heads[0]); i++)
        for (int layout = BSHD; layout <= BHSD; layout++)
            forward((struct request){.batch = 2,
                                     .heads = heads[i][0],
                                     .kv_heads = heads[i][1],
                                     .q_len = 43,
                                     .k_len = 59,
                                     .layout = (enum layout)layout,
                                     .causal = true});
}

static void a_window_is_what_it_says(void **state)
{
    static const int64_t windows[][2] = {
        {0, 0}, {1, 0}, {5, 3}, {0, INT64_MAX}, {INT64_MAX, 2}, {INT64_MAX, INT64_MAX}, {63, 64}};

    (void)state;
    for (size_t i = 0; i < sizeof(windows) / sizeof(windows[0]); i++)
        for (size_t n = 3; n < NLENGTHS; n++)
            for (int causal = 0; causal < 2; causal++)
                forward((struct request){.heads = 1,
                                         .q_len = lengths[n][0],
                                         .k_len = lengths[n][1],
                                         .window = true,
                                         .left = windows[i][0],
                                         .right = windows[i][1],
                                         .causal = causal});
}

static void scale_softcap_and_sinks_are_applied(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i++)
        forward((struct request){.q_len = 29,
                                 .k_len = 47,
                                 .scale = i & 1 ? 3.5f : 0,
                                 .softcap = i & 2 ? 2.5f : 0,
                                 .sinks = i & 4,
                                 .causal = true});
    forward((struct request){.q_len = 29, .k_len = 47, .scale = -2, .no_lse = true});
}

/* Kernels copy rows that begin at multiples of 16 bytes in another way; tiles have edges. */
static void aligned_rows_are_read_as_any(void **state)
{
    static const int64_t dims[][2] = {{64, 64}, {40, 61}, {128, 128}, {192, 128}, {256, 256}};

    (void)state;
    for (int dtype = GPUNVME_OPS_F16; dtype < GPUNVME_OPS_NDTYPES; dtype++)
        for (size_t i = 0; i < sizeof(dims) / sizeof(dims[0]); i++)
            forward_in_type((struct request){.batch = 2,
                                             .heads = 2,
                                             .kv_heads = 1,
                                             .dim = dims[i][0],
                                             .dim_v = dims[i][1],
                                             .q_len = FEWER_CASES ? 70 : 150,
                                             .k_len = 211,
                                             .aligned = true,
                                             .ragged = dtype == GPUNVME_OPS_BF16,
                                             .lengths = i & 1,
                                             .causal = i != 3,
                                             .rope = i & 2 ? 32 : 0,
                                             .dtype = dtype,
                                             .out_dtype = dtype});
}

/* Sums are scaled again and again, those of some rows; the last keys have all the weight there. */
static void scores_may_grow_with_the_keys(void **state)
{
    (void)state;
    for (int dtype = 0; dtype < GPUNVME_OPS_NDTYPES; dtype++) {
        struct request r = with_defaults((struct request){
            .dim = 64, .q_len = 33, .k_len = 700, .scale = 3, .aligned = true, .dtype = dtype});
        struct problem p = problem_new(&r, &rng);

        for (int64_t j = 0; j < r.k_len; j++)
            for (int64_t h = 0; h < r.kv_heads; h++)
                cpu_store(p.k.block, tensor_at(&p.k, 0, j, h, 0), dtype, (float)j * 0.03f);
        make_references(&p);
        for_each_variant(GPUNVME_OPS_ATTENTION, test_forward, &p);
        problem_free(&p);
    }
}

#ifndef OPS_TEST_EMULATED
static void queries_may_see_32k_keys(void **state)
{
    (void)state;
    for (int dtype = 0; dtype < GPUNVME_OPS_NDTYPES; dtype++)
        forward_in_type((struct request){.heads = 1,
                                         .dim = 64,
                                         .q_len = 17,
                                         .k_len = 32768,
                                         .causal = true,
                                         .aligned = true,
                                         .dtype = dtype,
                                         .out_dtype = dtype});
}
#endif

/* Scores of some thousands: exponentials must be taken of differences. */
static void large_scores_do_not_overflow(void **state)
{
    (void)state;
    for (int dtype = 0; dtype < GPUNVME_OPS_NDTYPES; dtype++)
        forward_in_type((struct request){.dim = 64,
                                         .q_len = 20,
                                         .k_len = 300,
                                         .scale = 1000,
                                         .dtype = dtype,
                                         .out_dtype = dtype});
}

static void sequences_may_lie_behind_each_other(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i++)
        forward((struct request){.batch = 4,
                                 .heads = 4,
                                 .kv_heads = i & 1 ? 2 : 4,
                                 .q_len = 61,
                                 .k_len = 89,
                                 .ragged = true,
                                 .lengths = i & 2,
                                 .layout = i & 1 ? BHSD : BSHD,
                                 .causal = i & 4});
}

static void sequences_may_be_shorter_than_their_room(void **state)
{
    (void)state;
    for (int causal = 0; causal < 2; causal++)
        forward((struct request){.batch = 3,
                                 .q_len = 131,
                                 .k_len = 203,
                                 .lengths = true,
                                 .sinks = true,
                                 .causal = causal});
}

static void rope_rotates_as_the_tables_or_the_base_say(void **state)
{
    (void)state;
    for (int i = 0; i < 16; i++)
        forward((struct request){.batch = 2,
                                 .dim = 48,
                                 .dim_v = 32,
                                 .q_len = i & 8 ? 67 : 41, /* more queries than keys: t < 0 */
                                 .k_len = 53,
                                 .rope = i & 1 ? 48 : 16,
                                 .rope_first = i & 1 ? 0 : 20,
                                 .interleaved = i & 2,
                                 .tables = i & 4,
                                 .queries_only = (i & 5) == 5,
                                 .base = i & 1 ? 500 : 0,
                                 .causal = !(i & 8)});
}

static void v_may_be_the_first_channels_of_k(void **state)
{
    struct request r = with_defaults((struct request){
        .heads = 8, .kv_heads = 1, .dim = 72, .dim_v = 64, .q_len = 3, .k_len = 150});
    struct problem p = problem_new(&r, &rng);

    (void)state;
    free(p.v.block);
    p.v = p.k;
    p.v.dim = r.dim_v;
    make_references(&p);
    for_each_variant(GPUNVME_OPS_ATTENTION, test_forward, &p);
    p.v.block = NULL;
    problem_free(&p);
}

/* Q, K, V and out in one tensor: sequence, row, {q, k, v, out}, head, channel. */
static void operands_and_result_may_be_packed(void **state)
{
    enum { S = 19, H = 2, D = 24, ROW = 4 * H * D };
    struct request r =
        with_defaults((struct request){.batch = 2, .heads = H, .dim = D, .q_len = S, .k_len = S});
    struct problem p = problem_new(&r, &rng);
    struct tensor *parts[] = {&p.q, &p.k, &p.v, &p.out};
    float *packed = malloc(2 * S * ROW * sizeof(float));
    struct gpunvme_attention x;

    (void)state;
    assert_non_null(packed);
    for (int part = 0; part < 4; part++) {
        struct gpunvme_attention_strides strides = {S * ROW, ROW, D};

        for (int64_t b = 0; b < 2; b++)
            for (int64_t i = 0; i < S; i++)
                for (int64_t h = 0; h < H; h++)
                    for (int64_t c = 0; c < D; c++)
                        packed[b * S * ROW + i * ROW + part * H * D + h * D + c] =
                            (float)tensor_get(parts[part], b, i, h, c);
        free(parts[part]->block);
        parts[part]->strides = strides;
        parts[part]->block = packed + part * H * D;
    }
    make_references(&p);
    x = attention_of(&p);
    x.lse = NULL;
    if (TEST_DEVICE == GPUNVME_OPS_CPU) {
        struct gpunvme_ops_exec exec = {.variant = "online"};
        struct workspace w;

        expect_ok(gpunvme_attention_workspace(&x, &exec, &exec.workspace_nbytes));
        w = workspace_new(exec.workspace_nbytes);
        exec.workspace = w.data;
        expect_ok(gpunvme_attention(&x, &exec));
        workspace_free(&w);
        r.no_lse = true;
        compare_out("online", &p);
        x.out = packed + D; /* Q's second head */
        expect_status(gpunvme_attention(&x, &exec), GPUNVME_OPS_ERR_ALIAS, "out and q");
    }
    for (int part = 0; part < 4; part++)
        parts[part]->block = NULL;
    free(packed);
    problem_free(&p);
}

/* What the rung for sm_90a takes; where it is there, it is not refused. */
static void aligned(struct request r)
{
    r.aligned = true;
    for (int dtype = GPUNVME_OPS_F16; dtype <= GPUNVME_OPS_BF16; dtype++) {
        r.dtype = dtype;
        r.out_dtype = dtype == GPUNVME_OPS_F16 ? GPUNVME_OPS_F32 : dtype;
        r.out_dtype = r.sinks ? dtype : r.out_dtype;
        forward_in_type(r);
    }
}

/* Tiles of each width; masked at both ends, and not at all; several for a block of a small GPU. */
static void rows_at_multiples_of_16_bytes_may_be_copied_by_tiles(void **state)
{
    static const int64_t dims[] = {64, 128, 256};

    (void)state;
    for (size_t i = 0; i < sizeof(dims) / sizeof(dims[0]); i++) {
        aligned((struct request){.dim = dims[i], .q_len = 5, .k_len = 400});
        if (FEWER_CASES && i)
            continue;
        aligned((struct request){.heads = 4,
                                 .kv_heads = 2,
                                 .dim = dims[i],
                                 .q_len = 200,
                                 .k_len = 290,
                                 .causal = true,
                                 .sinks = i == 0});
    }
    aligned((struct request){.dim = 64, .q_len = 20, .k_len = 300, .scale = 1000});
    aligned((struct request){.dim = 72, .dim_v = 37, .q_len = 33, .k_len = 50, .softcap = 2});
    aligned((struct request){.heads = 1,
                             .dim = 64,
                             .q_len = 300,
                             .k_len = 500,
                             .window = true,
                             .left = 90,
                             .right = 20,
                             .layout = BHSD});
}

/* Q and K are turned before; V is copied as it is. */
static void rows_that_are_turned_may_be_copied_by_tiles(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i++)
        aligned((struct request){.batch = 2,
                                 .heads = 4,
                                 .kv_heads = i & 1 ? 2 : 4,
                                 .dim = 64,
                                 .dim_v = i & 4 ? 128 : 64,
                                 .q_len = i & 2 ? 150 : 70,
                                 .k_len = 101,
                                 .rope = i & 1 ? 64 : 32,
                                 .rope_first = i & 1 ? 0 : 20,
                                 .interleaved = i & 2,
                                 .tables = i & 4,
                                 .queries_only = i == 5,
                                 .ragged = i & 2,
                                 .lengths = i & 1,
                                 .causal = !(i & 4)});
}

static void tiles_end_where_sequences_do(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++)
        aligned((struct request){.batch = 3,
                                 .dim = 64,
                                 .q_len = 70,
                                 .k_len = 190,
                                 .ragged = i & 1,
                                 .lengths = !(i & 1) || i & 2,
                                 .sinks = true,
                                 .causal = i & 2});
    aligned((struct request){.dim = 64, .q_len = 5, .k_len = 0, .sinks = true});
    aligned((struct request){.dim = 64, .q_len = 250, .k_len = 3, .causal = true});
}

/* Any number of threads, and any run: the same bits. */
static void expect_same_bits(const char *variant, void *arg)
{
    struct problem *p = arg;
    const struct request *const given = p->r;
    struct request r = *given;
    void *first = malloc(p->out.nbytes);
    struct gpunvme_ops_variant v;

    assert_non_null(first);
    p->r = &r;
    if (forward_takes(variant, &r) &&
        (!variant_find(GPUNVME_OPS_ATTENTION, variant, &v) || v.deterministic))
        for (r.threads = 0; r.threads < (FEWER_CASES ? 2 : 4); r.threads++) {
            run_attention(variant, p);
            if (r.threads)
                assert_memory_equal(p->out.block, first, p->out.nbytes);
            else
                memcpy(first, p->out.block, p->out.nbytes);
        }
    p->r = given;
    free(first);
}

static void results_are_the_same_bits_in_every_run(void **state)
{
    (void)state;
    for (int dtype = 0; dtype < GPUNVME_OPS_NDTYPES; dtype++) {
        struct request r = with_defaults((struct request){.batch = FEWER_CASES ? 1 : 2,
                                                          .heads = FEWER_CASES ? 4 : 6,
                                                          .kv_heads = 2,
                                                          .dim = 40,
                                                          .q_len = 150,
                                                          .k_len = 333,
                                                          .causal = true,
                                                          .dtype = dtype});
        struct problem p = problem_new(&r, &rng);

        for_each_variant(GPUNVME_OPS_ATTENTION, expect_same_bits, &p);
        problem_free(&p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lengths_may_be_anything),
        cmocka_unit_test(without_keys_the_result_is_0),
        cmocka_unit_test(queries_that_see_no_key_are_0_and_minus_infinity),
        cmocka_unit_test(every_type_and_head_size_is_right),
        cmocka_unit_test(heads_share_keys_and_values),
        cmocka_unit_test(a_window_is_what_it_says),
        cmocka_unit_test(scale_softcap_and_sinks_are_applied),
        cmocka_unit_test(aligned_rows_are_read_as_any),
        cmocka_unit_test(scores_may_grow_with_the_keys),
#ifndef OPS_TEST_EMULATED
        cmocka_unit_test(queries_may_see_32k_keys),
#endif
        cmocka_unit_test(large_scores_do_not_overflow),
        cmocka_unit_test(sequences_may_lie_behind_each_other),
        cmocka_unit_test(sequences_may_be_shorter_than_their_room),
        cmocka_unit_test(rope_rotates_as_the_tables_or_the_base_say),
        cmocka_unit_test(v_may_be_the_first_channels_of_k),
        cmocka_unit_test(operands_and_result_may_be_packed),
        cmocka_unit_test(rows_at_multiples_of_16_bytes_may_be_copied_by_tiles),
        cmocka_unit_test(rows_that_are_turned_may_be_copied_by_tiles),
        cmocka_unit_test(tiles_end_where_sequences_do),
        cmocka_unit_test(results_are_the_same_bits_in_every_run),
    };

    return no_gpu() ? 77 : cmocka_run_group_tests(tests, NULL, NULL);
}
