/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What the operators of attention refuse, with a text that says why; and that they wrote nothing.
 */
#include "ops_test.h"

enum { B = 2, S = 3, H = 4, KH = 2, D = 8, N = B * S * H * D };

static float q[N], k[N], v[N], out[N], lse[B * S * H], grads[3][N], sinks[H], tables[2][64];
static float pages[2][64 * D], before[N];
static int32_t offsets[B + 1], lengths[B], table[B * 4];
static char room[1 << 16] __attribute__((aligned(GPUNVME_OPS_WORKSPACE_ALIGN)));

static const struct gpunvme_ops_exec naive = {
    .variant = "naive", .workspace = room, .workspace_nbytes = sizeof(room)};

static const struct gpunvme_attention_strides q_strides = {S * H * D, H *D, D};
static const struct gpunvme_attention_strides k_strides = {S * KH * D, KH *D, D};

static struct gpunvme_attention good(void)
{
    return (struct gpunvme_attention){.batch = B,
                                      .heads = H,
                                      .kv_heads = KH,
                                      .dim = D,
                                      .dim_v = D,
                                      .q_len = S,
                                      .k_len = S,
                                      .q = q,
                                      .k = k,
                                      .v = v,
                                      .out = out,
                                      .lse = lse,
                                      .q_strides = q_strides,
                                      .k_strides = k_strides,
                                      .v_strides = k_strides,
                                      .out_strides = q_strides,
                                      .lse_strides = {S * H, H, 1}};
}

static int setup(void **state)
{
    (void)state;
    for (int i = 0; i < N; i++)
        before[i] = out[i] = (float)i;
    for (int b = 0; b <= B; b++)
        offsets[b] = (int32_t)(b * S);
    for (int b = 0; b < B; b++)
        lengths[b] = S;
    for (int i = 0; i < B * 4; i++)
        table[i] = (int32_t)i;
    return 0;
}

#define expect_refused(change, status, text)                                                       \
    do {                                                                                           \
        struct gpunvme_attention p = good();                                                       \
        change;                                                                                    \
        expect_status(gpunvme_attention(&p, &naive), status, text);                                \
        assert_memory_equal(out, before, sizeof(out));                                             \
    } while (0)

static void sizes_are_checked(void **state)
{
    (void)state;
    expect_refused(p.batch = -1, GPUNVME_OPS_ERR_SHAPE, "batch is -1");
    expect_refused(p.q_len = -1, GPUNVME_OPS_ERR_SHAPE, "q_len is -1");
    expect_refused(p.dim = 0, GPUNVME_OPS_ERR_SHAPE, "dim is 0: it must be at least 1");
    expect_refused(p.dim_v = 0, GPUNVME_OPS_ERR_SHAPE, "dim_v is 0");
    expect_refused(p.kv_heads = 3, GPUNVME_OPS_ERR_SHAPE, "must divide heads, which is 4");
    expect_refused((p.window = 1, p.window_left = -1), GPUNVME_OPS_ERR_SHAPE, "window_left is -1");
    expect_refused((p.q_offsets = offsets, p.q_rows = -1), GPUNVME_OPS_ERR_SHAPE, "q_rows is -1");
    expect_refused(p.k_len = INT64_MAX, GPUNVME_OPS_ERR_SHAPE, "k is larger than 2^63 bytes");
}

static void strides_are_checked(void **state)
{
    (void)state;
    expect_refused(p.k_strides.head = -1, GPUNVME_OPS_ERR_SHAPE, "the head stride of k is -1");
    expect_refused(p.q_strides.row = INT64_MIN, GPUNVME_OPS_ERR_SHAPE, "the row stride of q");
    expect_refused(p.out_strides.head = D - 1, GPUNVME_OPS_ERR_ALIAS, "elements of out overlap");
    expect_refused(p.lse_strides.batch = 0, GPUNVME_OPS_ERR_ALIAS, "elements of lse overlap");
}

static void numbers_are_checked(void **state)
{
    (void)state;
    expect_refused(p.scale = NAN, GPUNVME_OPS_ERR_INVALID, "scale is nan");
    expect_refused(p.softcap = -1, GPUNVME_OPS_ERR_INVALID, "softcap is -1");
    expect_refused(p.causal = 2, GPUNVME_OPS_ERR_INVALID, "causal is 2: it must be 0 or 1");
    expect_refused(p.reserved = 1, GPUNVME_OPS_ERR_INVALID, "reserved is 1: set it to 0");
    expect_refused(p.dtype = 5, GPUNVME_OPS_ERR_INVALID, "dtype is 5");
    expect_refused(p.out_dtype = GPUNVME_OPS_BF16, GPUNVME_OPS_ERR_DTYPE, "out is bf16");
}

static void fp8_is_checked(void **state)
{
    (void)state;
    expect_refused(p.q_descale = sinks, GPUNVME_OPS_ERR_INVALID, "for operands of e4m3");
    expect_refused(p.descale_stride = 2, GPUNVME_OPS_ERR_INVALID, "these are f32");
    expect_refused(p.dtype = GPUNVME_OPS_E5M2, GPUNVME_OPS_ERR_DTYPE, "does not take e5m2");
    expect_refused((p.dtype = GPUNVME_OPS_E4M3, p.out_dtype = GPUNVME_OPS_E4M3),
                   GPUNVME_OPS_ERR_INVALID, "out_dtype is 3");
    expect_refused((p.dtype = GPUNVME_OPS_E4M3, p.k_descale = sinks, p.descale_stride = 1),
                   GPUNVME_OPS_ERR_SHAPE, "k_descale has rows of 2");
    expect_refused((p.dtype = GPUNVME_OPS_E4M3, p.v_descale = out), GPUNVME_OPS_ERR_ALIAS,
                   "out and v_descale");
}

static void rope_is_checked(void **state)
{
    (void)state;
    expect_refused(p.rope.dim = 3, GPUNVME_OPS_ERR_SHAPE, "rope rotates 3 channels from 0 on");
    expect_refused((p.rope.dim = 4, p.rope.first = 5), GPUNVME_OPS_ERR_SHAPE, "among the 8");
    expect_refused((p.rope.dim = 4, p.rope.interleaved = 2), GPUNVME_OPS_ERR_INVALID,
                   "rope.interleaved is 2");
    expect_refused((p.rope.dim = 4, p.rope.base = -1), GPUNVME_OPS_ERR_INVALID, "rope.base is -1");
    expect_refused((p.rope.dim = 4, p.rope.cos = tables[0]), GPUNVME_OPS_ERR_INVALID, "both");
    expect_refused((p.rope.dim = 4, p.rope.cos = tables[0], p.rope.sin = tables[1], p.rope.rows = 2,
                    p.rope.ld = 2),
                   GPUNVME_OPS_ERR_SHAPE, "have 2 rows: there are 3 positions");
    expect_refused((p.rope.dim = 4, p.rope.cos = tables[0], p.rope.sin = tables[1], p.rope.rows = 3,
                    p.rope.ld = 1),
                   GPUNVME_OPS_ERR_SHAPE, "rope.cos has rows of 2");
}

static void pointers_are_checked(void **state)
{
    (void)state;
    expect_refused(p.q = NULL, GPUNVME_OPS_ERR_INVALID, "q is NULL");
    expect_refused(p.v = NULL, GPUNVME_OPS_ERR_INVALID, "v is NULL");
    expect_refused(p.k = (const char *)k + 2, GPUNVME_OPS_ERR_ALIGN, "k is at");
    expect_refused(p.q_offsets = (const int32_t *)(const void *)((const char *)offsets + 1),
                   GPUNVME_OPS_ERR_ALIGN, "int32 needs a multiple of 4");
    expect_refused(p.out = q, GPUNVME_OPS_ERR_ALIAS, "out and q");
    expect_refused(p.out = k + KH * D, GPUNVME_OPS_ERR_ALIAS, "out and ");
    expect_refused(p.lse = out + 1, GPUNVME_OPS_ERR_ALIAS, "lse and out");
}

static void offsets_and_lengths_are_checked_on_the_cpu(void **state)
{
    int32_t bad[] = {0, 3, 2}, far[] = {0, 3, 7}, long_one[] = {0, 1, 6}, many[] = {3, 4};

    (void)state;
    expect_refused((p.q_offsets = bad, p.q_rows = 6), GPUNVME_OPS_ERR_INVALID, "q_offsets[2] is 2");
    expect_refused((p.q_offsets = far, p.q_rows = 6), GPUNVME_OPS_ERR_INVALID, "the 6 rows");
    expect_refused((p.k_offsets = long_one, p.k_rows = 6), GPUNVME_OPS_ERR_INVALID,
                   "sequence 1 has 5 rows of k: k_len is 3");
    expect_refused(p.k_lengths = many, GPUNVME_OPS_ERR_INVALID, "k_lengths[1] is 4");
    many[0] = -1;
    expect_refused(p.q_lengths = many, GPUNVME_OPS_ERR_INVALID, "q_lengths[0] is -1");
}

static void operands_without_elements_may_be_null(void **state)
{
    struct gpunvme_attention p = good();

    (void)state;
    p.k_len = 0;
    p.k = p.v = NULL;
    expect_ok(gpunvme_attention(&p, &naive));
    p = good();
    p.q_len = 0;
    p.q = p.k = p.v = p.out = NULL;
    p.lse = NULL;
    expect_ok(gpunvme_attention(&p, &naive));
    setup(NULL);
}

static struct gpunvme_attention_grad good_backward(void)
{
    return (struct gpunvme_attention_grad){.forward = good(),
                                           .grad_out = before,
                                           .grad_q = grads[0],
                                           .grad_k = grads[1],
                                           .grad_v = grads[2],
                                           .grad_out_strides = q_strides,
                                           .grad_q_strides = q_strides,
                                           .grad_k_strides = k_strides,
                                           .grad_v_strides = k_strides};
}

#define expect_backward_refused(change, status, text)                                              \
    do {                                                                                           \
        struct gpunvme_attention_grad p = good_backward();                                         \
        change;                                                                                    \
        expect_status(gpunvme_attention_backward(&p, &naive), status, text);                       \
    } while (0)

static void backward_needs_what_forward_gave(void **state)
{
    (void)state;
    expect_backward_refused(p.forward.out = NULL, GPUNVME_OPS_ERR_INVALID, "out is NULL");
    expect_backward_refused(p.forward.lse = NULL, GPUNVME_OPS_ERR_INVALID, "lse is NULL");
    expect_backward_refused(p.grad_out = NULL, GPUNVME_OPS_ERR_INVALID, "grad_out is NULL");
    expect_backward_refused(p.grad_sinks = sinks, GPUNVME_OPS_ERR_INVALID, "sinks is NULL");
    expect_backward_refused(p.grad_k = grads[0], GPUNVME_OPS_ERR_ALIAS, "grad_k and grad_q");
    expect_backward_refused(p.grad_q = q, GPUNVME_OPS_ERR_ALIAS, "grad_q and q");
    expect_backward_refused(p.grad_v_strides.head = 0, GPUNVME_OPS_ERR_ALIAS, "grad_v overlap");
    expect_backward_refused(p.reserved[1] = 1, GPUNVME_OPS_ERR_INVALID, "reserved is 1");
    expect_backward_refused(p.forward.dim = 0, GPUNVME_OPS_ERR_SHAPE, "dim is 0");
    expect_backward_refused(p.forward.dtype = GPUNVME_OPS_E4M3, GPUNVME_OPS_ERR_DTYPE,
                            "does not take e4m3");
}

static struct gpunvme_attention_paged good_paged(void)
{
    struct gpunvme_attention_paged p = {
        .attention = good(), .block_table = table, .ld_table = 4, .pages = 8, .page_size = 2};

    p.attention.k = pages[0];
    p.attention.v = pages[1];
    p.attention.k_strides.batch = p.attention.v_strides.batch = 2 * KH * D;
    p.attention.k_lengths = lengths;
    return p;
}

#define expect_paged_refused(change, status, text)                                                 \
    do {                                                                                           \
        struct gpunvme_attention_paged p = good_paged();                                           \
        change;                                                                                    \
        expect_status(gpunvme_attention_paged(&p, &naive), status, text);                          \
        assert_memory_equal(out, before, sizeof(out));                                             \
    } while (0)

static void pages_are_checked(void **state)
{
    (void)state;
    expect_paged_refused(p.page_size = 0, GPUNVME_OPS_ERR_SHAPE, "page_size is 0");
    expect_paged_refused(p.page_size = 257, GPUNVME_OPS_ERR_SHAPE, "from 1 to 256");
    expect_paged_refused(p.pages = -1, GPUNVME_OPS_ERR_SHAPE, "pages is -1");
    expect_paged_refused(p.ld_table = 1, GPUNVME_OPS_ERR_SHAPE, "block_table has rows of 2");
    expect_paged_refused(p.block_table = NULL, GPUNVME_OPS_ERR_INVALID, "block_table is NULL");
    expect_paged_refused(p.attention.k_lengths = NULL, GPUNVME_OPS_ERR_INVALID,
                         "k_lengths is NULL");
    expect_paged_refused(p.attention.k_offsets = offsets, GPUNVME_OPS_ERR_INVALID,
                         "k_offsets is given");
    expect_paged_refused(p.cache_dtype = GPUNVME_OPS_F16, GPUNVME_OPS_ERR_DTYPE,
                         "the cache is f16");
    expect_paged_refused(p.cache_dtype = GPUNVME_OPS_E5M2, GPUNVME_OPS_ERR_DTYPE,
                         "the cache is e5m2");
    expect_paged_refused(p.attention.dtype = GPUNVME_OPS_E4M3, GPUNVME_OPS_ERR_DTYPE,
                         "the cache is f32, and the operands are e4m3");
    expect_paged_refused(p.attention.dtype = p.cache_dtype = GPUNVME_OPS_E4M3,
                         GPUNVME_OPS_ERR_DTYPE, "the cache is e4m3, and the operands are e4m3");
    expect_paged_refused(p.attention.k_descale = sinks, GPUNVME_OPS_ERR_INVALID,
                         "for keys and values of e4m3: these are f32");
    expect_paged_refused((p.cache_dtype = GPUNVME_OPS_E4M3, p.attention.q_descale = sinks),
                         GPUNVME_OPS_ERR_INVALID, "q_descale is for operands of e4m3");
    expect_paged_refused((p.cache_dtype = GPUNVME_OPS_E4M3, p.attention.k_descale = sinks,
                          p.attention.descale_stride = 1),
                         GPUNVME_OPS_ERR_SHAPE, "k_descale has rows of 2");
    expect_paged_refused(p.pages = 2, GPUNVME_OPS_ERR_INVALID, "page 0 of sequence 1 is number 4");
    expect_paged_refused(p.reserved = 1, GPUNVME_OPS_ERR_INVALID, "reserved is 1");
}

static struct gpunvme_kv_append good_append(void)
{
    const struct gpunvme_attention_strides strides = {2 * KH * D, KH * D, D};

    return (struct gpunvme_kv_append){.batch = B,
                                      .kv_heads = KH,
                                      .dim = D,
                                      .dim_v = D,
                                      .new_len = 1,
                                      .k_len = 8,
                                      .k = k,
                                      .v = v,
                                      .k_pages = pages[0],
                                      .v_pages = pages[1],
                                      .k_strides = k_strides,
                                      .v_strides = k_strides,
                                      .k_pages_strides = strides,
                                      .v_pages_strides = strides,
                                      .k_lengths = lengths,
                                      .block_table = table,
                                      .ld_table = 4,
                                      .pages = 8,
                                      .page_size = 2};
}

#define expect_append_refused(change, status, text)                                                \
    do {                                                                                           \
        struct gpunvme_kv_append p = good_append();                                                \
        float zeros[64 * D] = {0};                                                                 \
        change;                                                                                    \
        expect_status(gpunvme_kv_append(&p, &naive), status, text);                                \
        assert_memory_equal(pages[0], zeros, sizeof(zeros));                                       \
    } while (0)

static void appends_are_checked(void **state)
{
    int32_t few[] = {1, 0};

    (void)state;
    expect_append_refused(p.k_lengths = few, GPUNVME_OPS_ERR_INVALID,
                          "k_lengths[1] is 0, with 1 new tokens");
    expect_append_refused(p.k_pages = k, GPUNVME_OPS_ERR_ALIAS, "k_pages and k");
    expect_append_refused(p.v_pages = pages[0] + D, GPUNVME_OPS_ERR_ALIAS, "v_pages and k_pages");
    expect_append_refused(p.new_lengths = lengths, GPUNVME_OPS_ERR_INVALID,
                          "new_lengths[0] is 3: there are 1 rows");
    expect_append_refused((p.rope.dim = 4, p.rope.queries_only = 1), GPUNVME_OPS_ERR_INVALID,
                          "rope.queries_only is 1");
    expect_append_refused(p.v = NULL, GPUNVME_OPS_ERR_INVALID, "v is NULL");
    expect_append_refused(p.v_descale = k, GPUNVME_OPS_ERR_INVALID,
                          "for keys and values of e4m3: these are f32");
    expect_append_refused((p.cache_dtype = GPUNVME_OPS_E4M3, p.v_descale = pages[0]),
                          GPUNVME_OPS_ERR_ALIAS, "k_pages and v_descale");
    expect_append_refused(p.cache_dtype = GPUNVME_OPS_BF16, GPUNVME_OPS_ERR_DTYPE,
                          "the cache is bf16");
    expect_append_refused(p.reserved = 1, GPUNVME_OPS_ERR_INVALID, "reserved is 1");
    expect_append_refused(p.dim_v = -1, GPUNVME_OPS_ERR_SHAPE, "dim_v is -1");
    expect_append_refused(p.page_size = 0, GPUNVME_OPS_ERR_SHAPE, "page_size is 0");
}

/* A latent cache has no V; and V's pages may be between K's. */
static void caches_without_v_or_with_both_in_one_tensor_are_filled(void **state)
{
    struct gpunvme_kv_append p = good_append();
    int64_t row = KH * D;

    (void)state;
    memset(k, 0x3f, sizeof(k));
    memset(v, 0x3e, sizeof(v));
    p.k_pages_strides.batch = p.v_pages_strides.batch = 4 * row;
    p.pages = 4;
    p.block_table = (const int32_t[]){0, 1, 0, 0, 2, 3, 0, 0};
    p.k_len = 3;
    p.v_pages = pages[0] + 2 * row;
    expect_ok(gpunvme_kv_append(&p, &naive));
    assert_memory_equal(pages[0] + 4 * row, k, (size_t)row * sizeof(float));
    assert_memory_equal(pages[0] + 6 * row, v, (size_t)row * sizeof(float));
    p.dim_v = 0;
    p.v = p.v_pages = NULL;
    expect_ok(gpunvme_kv_append(&p, &naive));
    memset(pages, 0, sizeof(pages));
}

/* Kernels count rows in 32 bits, also those of tiles that reach beyond the last. */
static void a_gpu_takes_sizes_to_about_2_to_30(void **state)
{
    const struct gpunvme_ops_exec gpu = {.device = GPUNVME_OPS_CUDA, .variant = "naive"};
    struct gpunvme_ops_capability capability;
    struct gpunvme_attention p = good();
    gpunvme_ops_status_t missing = gpunvme_ops_capability(GPUNVME_OPS_CUDA, 0, &capability);
    const char *name;

    (void)state;
    p.k_len = INT64_C(1) << 30;
    expect_status(gpunvme_attention_choose(&p, &gpu, &name),
                  missing ? missing : GPUNVME_OPS_ERR_UNSUPPORTED,
                  missing ? "" : "up to 1073740800");
    p.k_len -= 1024;
    if (!missing)
        expect_ok(gpunvme_attention_choose(&p, &gpu, &name));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_are_checked),
        cmocka_unit_test(strides_are_checked),
        cmocka_unit_test(numbers_are_checked),
        cmocka_unit_test(fp8_is_checked),
        cmocka_unit_test(rope_is_checked),
        cmocka_unit_test(pointers_are_checked),
        cmocka_unit_test(offsets_and_lengths_are_checked_on_the_cpu),
        cmocka_unit_test(operands_without_elements_may_be_null),
        cmocka_unit_test(backward_needs_what_forward_gave),
        cmocka_unit_test(pages_are_checked),
        cmocka_unit_test(appends_are_checked),
        cmocka_unit_test(caches_without_v_or_with_both_in_one_tensor_are_filled),
        cmocka_unit_test(a_gpu_takes_sizes_to_about_2_to_30),
    };

    return cmocka_run_group_tests(tests, setup, NULL);
}
