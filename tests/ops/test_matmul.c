/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Matrix multiplication, every variant that this machine has, against sums in f64. The error
 * allowed is what sums of k products in f32 may lose, relative to the sum of the products' sizes.
 */
#include "ops_test.h"

struct shape {
    int64_t m, n, k, batch;
};

struct request {
    struct shape shape;
    int ta, tb, tc;
    int dtype, out_dtype, compute;
    float alpha, beta;
    int64_t pad;
    int threads;
    int scaling, fast_sums; /* of fp8, which has scales */
    int dtype_b;            /* 0: dtype */
};

struct operands {
    struct mat a, b, c;
    struct mat scale_a, scale_b; /* of fp8: a row for each line or block of lines */
    double *rows, *columns;      /* of A and B with scales, of which the references are made */
};

#ifdef OPS_TEST_EMULATED
#define EMULATED 1 /* and slow */
#else
#define EMULATED 0
#endif

static struct base_random rng;

static bool is_fp8(int dtype)
{
    return dtype == GPUNVME_OPS_E4M3 || dtype == GPUNVME_OPS_E5M2;
}

/* Scales of either sign, sizes from 1/8 to 8, of `lines` lines of which `block` share one. */
static struct mat make_scales(const struct request *q, int64_t lines, int64_t block)
{
    bool by_block = q->scaling == GPUNVME_MATMUL_SCALE_BLOCK;
    bool one = q->scaling == GPUNVME_MATMUL_SCALE_TENSOR;
    struct mat x = mat_new(one        ? 1
                           : by_block ? (lines + block - 1) / block
                                      : lines,
                           by_block ? (q->shape.k + 127) / 128 : 1, 0, one ? 1 : q->shape.batch,
                           GPUNVME_OPS_F32);

    for (size_t i = 0; i < x.nbytes / sizeof(float); i++)
        ((float *)x.block)[i] =
            (float)(exp2(6 * base_random_real(&rng) - 3) * (base_random_real(&rng) < 0.5 ? -1 : 1));
    return x;
}

/* The scale of element `k` of a line. */
static double scale_at(const struct request *q, const struct mat *x, int64_t b, int64_t line,
                       int64_t k, int64_t block)
{
    if (!x->block)
        return 1;
    if (q->scaling == GPUNVME_MATMUL_SCALE_TENSOR)
        return mat_get(x, 0, 0, 0);
    if (q->scaling == GPUNVME_MATMUL_SCALE_ROW)
        return mat_get(x, b, line, 0);
    return mat_get(x, b, line / block, k / 128);
}

/* The lines' values, each with its scale. */
static double *scaled(const struct request *q, double *values, int64_t lines,
                      const struct mat *scales, int64_t block)
{
    const struct shape *s = &q->shape;

    for (int64_t b = 0; scales->block && b < s->batch; b++)
        for (int64_t i = 0; i < lines; i++)
            for (int64_t p = 0; p < s->k; p++)
                values[(b * lines + i) * s->k + p] *= scale_at(q, scales, b, i, p, block);
    return values;
}

static struct operands make(const struct request *q)
{
    const struct shape *s = &q->shape;
    struct operands x = {
        .a = mat_new(q->ta ? s->k : s->m, q->ta ? s->m : s->k, q->pad, s->batch, q->dtype),
        .b = mat_new(q->tb ? s->n : s->k, q->tb ? s->k : s->n, q->pad, s->batch,
                     q->dtype_b ? q->dtype_b : q->dtype),
        .c = mat_new(q->tc ? s->n : s->m, q->tc ? s->m : s->n, q->pad, s->batch, q->out_dtype),
    };

    if (is_fp8(q->dtype)) {
        x.scale_a = make_scales(q, s->m, 1);
        x.scale_b = make_scales(q, s->n, 128);
    }
    mat_random(&x.a, &rng);
    mat_random(&x.b, &rng);
    x.rows = scaled(q, mat_values(&x.a, q->ta), s->m, &x.scale_a, 1);
    x.columns = scaled(q, mat_values(&x.b, !q->tb), s->n, &x.scale_b, 128);
    /* With beta = 0, C is not read: NaNs stay NaNs if it is. */
    if (q->beta == 0)
        mat_poison(&x.c);
    else
        mat_random(&x.c, &rng);
    return x;
}

static void drop(struct operands *x)
{
    mat_free(&x->a);
    mat_free(&x->b);
    mat_free(&x->c);
    mat_free(&x->scale_a);
    mat_free(&x->scale_b);
    free(x->rows);
    free(x->columns);
}

static struct gpunvme_matmul describe(const struct request *q, const struct operands *x)
{
    return (struct gpunvme_matmul){
        .m = q->shape.m,
        .n = q->shape.n,
        .k = q->shape.k,
        .batch = q->shape.batch,
        .a = x->a.block,
        .b = x->b.block,
        .c = x->c.block,
        .lda = x->a.ld,
        .ldb = x->b.ld,
        .ldc = x->c.ld,
        .stride_a = x->a.stride,
        .stride_b = x->b.stride,
        .stride_c = x->c.stride,
        .alpha = q->alpha,
        .beta = q->beta,
        .transpose_a = q->ta,
        .transpose_b = q->tb,
        .transpose_c = q->tc,
        .dtype = q->dtype,
        .out_dtype = q->out_dtype,
        .compute = q->compute,
        .scale_a = x->scale_a.block,
        .scale_b = x->scale_b.block,
        .scaling = q->scaling,
        .fast_sums = q->fast_sums,
        .dtype_b = q->dtype_b,
    };
}

static size_t a_nbytes(const struct gpunvme_matmul *p)
{
    return extent_nbytes(p->transpose_a ? p->k : p->m, p->transpose_a ? p->m : p->k, p->lda,
                         p->batch, p->stride_a, p->dtype);
}

static size_t b_nbytes(const struct gpunvme_matmul *p)
{
    return extent_nbytes(p->transpose_b ? p->n : p->k, p->transpose_b ? p->k : p->n, p->ldb,
                         p->batch, p->stride_b, p->dtype);
}

static size_t c_nbytes(const struct gpunvme_matmul *p)
{
    return extent_nbytes(p->transpose_c ? p->n : p->m, p->transpose_c ? p->m : p->n, p->ldc,
                         p->batch, p->stride_c, p->out_dtype);
}

/* Of the scales of so many lines. */
static size_t scales_nbytes(const struct gpunvme_matmul *p, const float *scales, int64_t lines,
                            int64_t block)
{
    int64_t count = p->scaling == GPUNVME_MATMUL_SCALE_TENSOR ? 1
                    : p->scaling == GPUNVME_MATMUL_SCALE_ROW
                        ? lines * p->batch
                        : (lines + block - 1) / block * ((p->k + 127) / 128) * p->batch;

    return scales ? (size_t)count * sizeof(float) : 0;
}

static void call(const char *variant, const struct request *q, const struct gpunvme_matmul *p)
{
    struct gpunvme_ops_exec exec = {
        .device = TEST_DEVICE, .variant = variant, .threads = q->threads};
    struct gpunvme_matmul x = *p;
    struct workspace w;
    size_t nbytes = 77;

    x.a = device_in(p->a, a_nbytes(p));
    x.b = device_in(p->b, b_nbytes(p));
    x.c = device_in(p->c, c_nbytes(p));
    x.scale_a = device_in(p->scale_a, scales_nbytes(p, p->scale_a, p->m, 1));
    x.scale_b = device_in(p->scale_b, scales_nbytes(p, p->scale_b, p->n, 128));
    expect_ok(gpunvme_matmul_workspace(&x, &exec, &nbytes));
    w = workspace_new(nbytes);
    exec.workspace = w.data;
    exec.workspace_nbytes = w.nbytes;
    expect_ok(gpunvme_matmul(&x, &exec));
    device_out(p->c, x.c, c_nbytes(p));
    device_out(NULL, (void *)(uintptr_t)x.a, 0);
    device_out(NULL, (void *)(uintptr_t)x.b, 0);
    device_out(NULL, (void *)(uintptr_t)x.scale_a, 0);
    device_out(NULL, (void *)(uintptr_t)x.scale_b, 0);
    workspace_free(&w);
}

/*
 * What a tensor core loses of sums of fp8: it cuts them off behind 14 bits for each 32 of k, and
 * what it adds up, too. Unless sums are fast they are added in f32 after 128 of k.
 */
static double fp8_error(const char *variant, const struct request *q)
{
    if (TEST_DEVICE == GPUNVME_OPS_CPU || !strcmp(variant, "naive"))
        return 0;
    return 0x1p-13 * (q->fast_sums ? (double)q->shape.k / 32 + 4 : 8);
}

static double at(const struct mat *x, int transposed, int64_t b, int64_t i, int64_t j)
{
    return transposed ? mat_get(x, b, j, i) : mat_get(x, b, i, j);
}

/* Of the products of which an element is made, and of their sizes. */
struct sum {
    double sum, size;
};

static struct sum sum_of(const struct request *q, const struct operands *x, int64_t b, int64_t i,
                         int64_t j)
{
    int64_t k = q->shape.k;
    struct sum s = {0};

    if (q->alpha != 0)
        s.sum = sum_of_products(x->rows + (b * q->shape.m + i) * k,
                                x->columns + (b * q->shape.n + j) * k, k, &s.size);
    return s;
}

static void expect_sum(const char *variant, const struct request *q, const struct operands *x,
                       const struct mat *before, int64_t b, int64_t i, int64_t j, struct sum s)
{
    double added = 0, result, error;
    double got = at(&x->c, q->tc, b, i, j);

    if (q->beta != 0)
        added = (double)q->beta * at(before, q->tc, b, i, j);
    result = (double)q->alpha * s.sum + added;
    error = ((double)q->shape.k + 5) * F32_EPS * fabs((double)q->alpha) * s.size +
            3 * F32_EPS * fabs(added) + rounding(q->out_dtype, result);
    if (q->dtype == GPUNVME_OPS_F32 && q->compute == GPUNVME_OPS_COMPUTE_TF32)
        error += TF32_EPS * fabs((double)q->alpha) * s.size;
    if (is_fp8(q->dtype))
        error += fp8_error(variant, q) * fabs((double)q->alpha) * s.size;
    if (!(fabs(got - result) <= error))
        fail_msg("%s, %s -> %s, %lldx%lldx%lld, transposed %d%d%d, alpha %g beta %g: element %lld, "
                 "(%lld, %lld) is %.9g, not %.9g +- %g",
                 variant, gpunvme_ops_dtype_name(q->dtype), gpunvme_ops_dtype_name(q->out_dtype),
                 (long long)q->shape.m, (long long)q->shape.n, (long long)q->shape.k, q->ta, q->tb,
                 q->tc, (double)q->alpha, (double)q->beta, (long long)b, (long long)i, (long long)j,
                 got, result, error);
}

static void expect_element(const char *variant, const struct request *q, const struct operands *x,
                           const struct mat *before, int64_t b, int64_t i, int64_t j)
{
    expect_sum(variant, q, x, before, b, i, j, sum_of(q, x, b, i, j));
}

/* Is the product one of the variant's? */
static bool takes(const char *variant, const struct request *q)
{
    return variant_takes(GPUNVME_OPS_MATMUL, variant, q->dtype, q->compute) &&
           (strcmp(variant, "skinny") != 0 || q->shape.m <= 16 || q->shape.n <= 16);
}

/* A request, and what each variant is to make of it. */
struct product {
    const struct request *q;
    struct operands x;
    struct mat before; /* C as a call finds it */
    struct sum *sums;
};

static struct product product_new(const struct request *q)
{
    const struct shape *s = &q->shape;
    struct product r = {.q = q, .x = make(q)};
    struct sum *sum = malloc((size_t)(s->batch * s->m * s->n + 1) * sizeof(*sum));

    assert_non_null(sum);
    r.before = mat_copy(&r.x.c);
    r.sums = sum;
    for (int64_t b = 0; b < s->batch; b++)
        for (int64_t i = 0; i < s->m; i++)
            for (int64_t j = 0; j < s->n; j++)
                *sum++ = sum_of(q, &r.x, b, i, j);
    return r;
}

static void product_free(struct product *r)
{
    drop(&r->x);
    mat_free(&r->before);
    free(r->sums);
}

static void test_product(const char *variant, void *arg)
{
    struct product *r = arg;
    const struct request *q = r->q;
    const struct sum *sum = r->sums;
    struct gpunvme_matmul p = describe(q, &r->x);

    if (!takes(variant, q))
        return;
    if (p.c)
        memcpy(r->x.c.block, r->before.block, r->before.nbytes);
    call(variant, q, &p);
    for (int64_t b = 0; b < q->shape.batch; b++)
        for (int64_t i = 0; i < q->shape.m; i++)
            for (int64_t j = 0; j < q->shape.n; j++)
                expect_sum(variant, q, &r->x, &r->before, b, i, j, *sum++);
    mat_expect_padding(&r->x.c);
}

static void test_request(const char *variant, struct request q)
{
    struct product r = product_new(&q);

    test_product(variant, &r);
    product_free(&r);
}

static struct request plain(int64_t m, int64_t n, int64_t k)
{
    return (struct request){.shape = {m, n, k, 1}, .alpha = 1, .pad = 5};
}

static void every_variant(struct request q)
{
    struct product r = product_new(&q);

    for_each_variant(GPUNVME_OPS_MATMUL, test_product, &r);
    product_free(&r);
}

static void small_and_ragged_sizes_are_right(void **state)
{
    static const int64_t sizes[] = {1, 2, 3, 7, 13, 31, 37, 67};
    const size_t n = sizeof(sizes) / sizeof(sizes[0]);

    (void)state;
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++)
            every_variant(plain(sizes[i], sizes[j], sizes[(i + 3 * j) % n]));
}

static void sizes_around_tiles_and_blocks_are_right(void **state)
{
    static const struct shape shapes[] = {
        {12, 32, 64, 1},  {13, 33, 65, 1}, {24, 64, 384, 1}, {11, 31, 385, 1},  {481, 40, 7, 1},
        {479, 17, 33, 1}, {3, 4097, 5, 1}, {6, 16, 769, 1},  {15, 33, 1025, 1}, {64, 64, 64, 1},
        {961, 9, 11, 1},  {1, 1, 2000, 1}, {128, 1, 129, 1}, {1, 131, 127, 1},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        struct request q = plain(0, 0, 0);

        q.shape = shapes[i];
        every_variant(q);
    }
}

static void nothing_is_done_for_no_rows_or_columns(void **state)
{
    (void)state;
    every_variant(plain(0, 5, 7));
    every_variant(plain(5, 0, 7));
    every_variant(plain(0, 0, 0));
    every_variant((struct request){.shape = {3, 4, 5, 0}, .alpha = 1});
}

static void without_depth_c_is_scaled(void **state)
{
    struct request q = plain(7, 300, 0);

    (void)state;
    every_variant(q); /* beta = 0: C becomes 0, whatever it was */
    q.beta = 0.75f;
    every_variant(q);
    q.beta = 1;
    every_variant(q);
}

static void alpha_zero_reads_neither_a_nor_b(void **state)
{
    struct request q = plain(7, 9, 11);

    (void)state;
    q.alpha = 0;
    q.beta = 2;
    for (int i = 0; i < 2; i++) {
        struct operands x = make(&q);
        struct mat before = mat_copy(&x.c);
        struct gpunvme_matmul p = describe(&q, &x);

        p.a = p.b = NULL;
        call(i ? "naive" : "auto", &q, &p);
        for (int64_t r = 0; r < 7; r++)
            for (int64_t c = 0; c < 9; c++)
                assert_true(mat_get(&x.c, 0, r, c) == 2 * mat_get(&before, 0, r, c));
        mat_free(&before);
        drop(&x);
    }
}

static void all_transpositions_are_right(void **state)
{
    (void)state;
    for (int t = 0; t < 8; t++)
        for (int dtype = 0; dtype < GPUNVME_OPS_NDTYPES; dtype++) {
            struct request q = plain(29, 43, 53);

            q.ta = t & 1;
            q.tb = t >> 1 & 1;
            q.tc = t >> 2 & 1;
            q.dtype = q.out_dtype = dtype;
            every_variant(q);
        }
}

static void alpha_and_beta_scale(void **state)
{
    static const float values[] = {0, 1, -1, 0.3f, 2.5f};

    (void)state;
    for (int i = 0; i < 5; i++)
        for (int j = 0; j < 5; j++)
            for (int dtype = 0; dtype < GPUNVME_OPS_NDTYPES; dtype++) {
                struct request q = plain(14, 35, 23);

                q.alpha = values[i];
                q.beta = values[j];
                q.dtype = q.out_dtype = dtype;
                every_variant(q);
            }
}

/* k in pieces or shared by blocks, results that come of a part of a tile, rows that lie anyhow. */
static void few_results_of_a_long_sum_are_right(void **state)
{
    static const struct shape shapes[] = {
        {1, 40, 4000, 1},  {16, 70, 1300, 1},  {9, 1, 3001, 1},   {130, 5, 777, 2},
        {33, 65, 2049, 1}, {100, 140, 900, 1}, {3, 129, 650, 3},  {17, 17, 5000, 1},
        {64, 72, 1111, 2}, {200, 16, 264, 1},  {8, 256, 2048, 1}, {15, 300, 72, 1},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        for (int t = 0; t < 8; t++)
            for (int dtype = 0; dtype < GPUNVME_OPS_NDTYPES; dtype++) {
                struct request q = plain(0, 0, 0);

                if (((t >> 2 ^ t >> 1 ^ t ^ (int)i) & 1) && shapes[i].m * shapes[i].n > 2000)
                    continue;
                if ((t + (int)i + dtype) % (FEWER_CASES ? 8 : EMULATED ? 4 : 1))
                    continue;
                q.shape = shapes[i];
                q.ta = t & 1;
                q.tb = t >> 1 & 1;
                q.tc = t >> 2;
                q.dtype = dtype;
                q.out_dtype = i % 3 ? dtype : GPUNVME_OPS_F32;
                q.alpha = i % 2 ? 1 : -0.75f;
                q.beta = i % 4 ? 0 : 0.5f;
                q.pad = (int64_t)(i + (size_t)t) % 3 * 8 + (t == 5);
                q.compute = dtype || i % 2 ? 0 : GPUNVME_OPS_COMPUTE_TF32;
                every_variant(q);
            }
}

static void beta_is_applied_once_for_a_deep_product(void **state)
{
    struct request q = plain(5, 6, 1200);

    (void)state;
    q.beta = 0.5f;
    q.alpha = -0.25f;
    every_variant(q);
    q.dtype = q.out_dtype = GPUNVME_OPS_BF16;
    every_variant(q);
}

static void sixteen_bit_results_are_rounded_once(void **state)
{
    (void)state;
    for (int dtype = GPUNVME_OPS_F16; dtype < GPUNVME_OPS_NDTYPES; dtype++) {
        struct request q = plain(13, 33, 800); /* several times as deep as a block */

        q.dtype = q.out_dtype = dtype;
        every_variant(q);
        q.out_dtype = GPUNVME_OPS_F32;
        every_variant(q);
        q.shape = (struct shape){970, 5, 390, 1}; /* more rows than sums are kept of */
        q.out_dtype = dtype;
        every_variant(q);
    }
}

static void batches_are_independent_products(void **state)
{
    struct request q = plain(9, 17, 21);

    (void)state;
    for (int64_t batch = 1; batch < 6; batch += 2)
        for (int tc = 0; tc < 2; tc++) {
            q.shape.batch = batch;
            q.tc = tc;
            q.beta = 0.5f;
            every_variant(q);
        }
}

static void one_matrix_serves_the_whole_batch_with_stride_zero(void **state)
{
    struct request q = plain(5, 6, 7);
    struct operands x;
    struct gpunvme_matmul p;
    struct gpunvme_matmul one;
    float first[30];

    (void)state;
    q.shape.batch = 3;
    x = make(&q);
    p = describe(&q, &x);
    p.stride_a = p.stride_b = 0;
    call("auto", &q, &p);
    for (int64_t b = 1; b < 3; b++)
        for (int64_t i = 0; i < 30; i++)
            assert_true(mat_get(&x.c, b, i / 6, i % 6) == mat_get(&x.c, 0, i / 6, i % 6));
    one = p;
    one.batch = 1;
    one.c = first;
    one.ldc = 6;
    call("auto", &q, &one);
    for (int64_t i = 0; i < 30; i++)
        assert_true((double)first[i] == mat_get(&x.c, 0, i / 6, i % 6));
    drop(&x);
}

static void results_may_be_interleaved_like_heads(void **state)
{
    enum { SEQ = 4, HEADS = 3, DIM = 5 };
    float a[SEQ * SEQ], b[SEQ * HEADS * DIM], c[SEQ * HEADS * DIM];
    struct gpunvme_matmul p = {.m = SEQ,
                               .n = DIM,
                               .k = SEQ,
                               .batch = HEADS,
                               .a = a,
                               .b = b,
                               .c = c,
                               .lda = SEQ,
                               .ldb = HEADS * DIM,
                               .ldc = HEADS * DIM,
                               .stride_b = DIM,
                               .stride_c = DIM,
                               .alpha = 1};
    struct request q = {0};

    (void)state;
    for (int i = 0; i < SEQ * SEQ; i++)
        a[i] = (float)(i / SEQ == i % SEQ); /* the identity */
    for (int i = 0; i < SEQ * HEADS * DIM; i++)
        b[i] = (float)i;
    call("auto", &q, &p);
    assert_memory_equal(b, c, sizeof(b));
}

struct repeat {
    struct request q;
    struct operands x;
};

static void expect_same_bits(const char *variant, void *arg)
{
    struct repeat *r = arg;
    struct gpunvme_matmul p = describe(&r->q, &r->x);
    struct mat first;

    if (!takes(variant, &r->q))
        return;
    call(variant, &r->q, &p);
    first = mat_copy(&r->x.c);
    for (int i = 0; i < (EMULATED ? 1 : 3); i++) {
        mat_poison(&r->x.c);
        call(variant, &r->q, &p);
        if (memcmp(first.block, r->x.c.block, first.nbytes) != 0)
            fail_msg("%s gives other bits in another run", variant);
    }
    mat_free(&first);
}

static void results_are_the_same_bits_in_every_run(void **state)
{
    (void)state;
    for (int dtype = 0; dtype < GPUNVME_OPS_NDTYPES; dtype++) {
        struct repeat r[] = {{.q = plain(61, 83, 500)}, {.q = plain(5, 83, 9000)}};

        for (int i = 0; i < 2; i++) {
            r[i].q.dtype = r[i].q.out_dtype = dtype;
            r[i].x = make(&r[i].q);
            for_each_variant(GPUNVME_OPS_MATMUL, expect_same_bits, &r[i]);
            drop(&r[i].x);
        }
    }
}

static bool has(const char *name)
{
    struct gpunvme_ops_variant v;

    return variant_find(GPUNVME_OPS_MATMUL, name, &v) && v.available;
}

static void threads_do_not_change_the_bits(void **state)
{
    static const struct shape shapes[] = {
        {100, 300, 1030, 1}, {301, 20, 1100, 1}, {30, 40, 50, 7}, {1, 1, 9, 1}};

    (void)state;
    if (!has("openmp")) {
        printf("SKIP: built without OpenMP\n");
        skip();
    }
    for (int s = 0; s < 4; s++) {
        struct request q = {
            .shape = shapes[s], .alpha = 0.7f, .beta = 0.3f, .pad = 1, .threads = 1};
        struct operands x = make(&q);
        struct gpunvme_matmul p = describe(&q, &x);
        struct mat one, before = mat_copy(&x.c);

        call("openmp", &q, &p);
        one = mat_copy(&x.c);
        for (q.threads = 2; q.threads < 9; q.threads++) {
            memcpy(x.c.block, before.block, before.nbytes);
            call("openmp", &q, &p);
            if (memcmp(one.block, x.c.block, one.nbytes) != 0)
                fail_msg("%d threads give other bits than one", q.threads);
        }
        mat_free(&one);
        mat_free(&before);
        drop(&x);
    }
}

static void nan_and_infinity_spread(const char *variant, void *arg)
{
    float a[4] = {1, INFINITY, NAN, 1}, b[4] = {1, 2, 0, 1}, c[4];
    struct gpunvme_matmul p = {.m = 2,
                               .n = 2,
                               .k = 2,
                               .batch = 1,
                               .a = a,
                               .b = b,
                               .c = c,
                               .lda = 2,
                               .ldb = 2,
                               .ldc = 2,
                               .alpha = 1};
    struct request q = {0};

    (void)arg;
    if (!variant_takes(GPUNVME_OPS_MATMUL, variant, p.dtype, p.compute))
        return;
    call(variant, &q, &p);
    assert_true(isnan(c[0]));             /* 1 * 1 + infinity * 0 */
    assert_true(isinf(c[1]) && c[1] > 0); /* 1 * 2 + infinity * 1 */
    assert_true(isnan(c[2]) && isnan(c[3]));
}

static void nan_and_infinity_spread_as_ieee_says(void **state)
{
    (void)state;
    for_each_variant(GPUNVME_OPS_MATMUL, nan_and_infinity_spread, NULL);
}

static void auto_takes_a_variant_that_is_available(void **state)
{
    struct request q = plain(8, 8, 8);
    struct operands x = make(&q);
    struct gpunvme_matmul p = describe(&q, &x);
    struct gpunvme_ops_exec exec = {.device = TEST_DEVICE};
    const char *name = NULL;

    (void)state;
    expect_ok(gpunvme_matmul_choose(&p, &exec, &name));
    assert_true(has(name));
    drop(&x);
}

static void f32_can_be_multiplied_as_tf32(void **state)
{
    (void)state;
    for (int t = 0; t < 4; t++) {
        struct request q = plain(45, 77, 131);

        q.ta = t & 1;
        q.tb = t >> 1;
        q.compute = GPUNVME_OPS_COMPUTE_TF32;
        every_variant(q);
        q.beta = 0.5f;
        q.pad = 4; /* so that rows are aligned */
        every_variant(q);
    }
}

/* All elements are just below a number of tf32: cut off, each would lose 2^-10 of its size. */
static void test_rounding_to_tf32(const char *variant, void *arg)
{
    const struct request *q = arg;
    const float factor = 1 + 0x1p-10f * 15 / 16;
    double expected = (double)q->shape.k * factor * factor;
    struct operands x;
    struct gpunvme_matmul p;

    if (!takes(variant, q))
        return;
    x = make(q);
    for (size_t i = 0; i < x.a.nbytes / sizeof(float); i++)
        ((float *)x.a.block)[i] = factor;
    for (size_t i = 0; i < x.b.nbytes / sizeof(float); i++)
        ((float *)x.b.block)[i] = factor;
    p = describe(q, &x);
    call(variant, q, &p);
    for (int64_t i = 0; i < q->shape.m; i++)
        for (int64_t j = 0; j < q->shape.n; j++)
            if (!(fabs(at(&x.c, q->tc, 0, i, j) - expected) <= 0x1p-12 * expected))
                fail_msg("%s: element (%lld, %lld) is %.9g, not %.9g", variant, (long long)i,
                         (long long)j, at(&x.c, q->tc, 0, i, j), expected);
    drop(&x);
}

static void tf32_is_rounded_and_not_cut_off(void **state)
{
    struct request q = plain(70, 80, 40);

    (void)state;
    q.compute = GPUNVME_OPS_COMPUTE_TF32;
    for (int t = 0; t < 8; t++) {
        q.ta = t & 1;
        q.tb = t >> 1 & 1;
        q.tc = t >> 2;
        for (q.pad = 4; q.pad < 6; q.pad++) /* rows that are aligned, and not */
            for_each_variant(GPUNVME_OPS_MATMUL, test_rounding_to_tf32, &q);
    }
}

/* Every way to scale, both types. */
static void every_fp8(struct request q)
{
    for (int i = 0; i < 4; i++)
        for (int dtype = GPUNVME_OPS_E4M3; dtype < GPUNVME_OPS_NALLDTYPES; dtype++) {
            if ((q.tc && i == GPUNVME_MATMUL_SCALE_BLOCK) || (FEWER_CASES && (i + dtype) % 2))
                continue;
            q.dtype = dtype;
            q.scaling = i % 3;
            q.fast_sums = i == 3;
            every_variant(q);
        }
}

static void fp8_is_right_by_every_scaling(void **state)
{
    static const struct shape shapes[] = {
        {1, 1, 1, 1},       {13, 33, 65, 1},   {33, 131, 300, 1},
        {130, 257, 130, 1}, {67, 300, 528, 1}, {970, 5, 390, 1},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        for (int t = 0; t < 8; t++) {
            struct request q = plain(0, 0, 0);

            if (i > 2 && (EMULATED ? t != 2 : t % 3 != 2))
                continue;
            if (FEWER_CASES && (i == 4 || (i > 1 && t != 2)))
                continue;
            q.shape = shapes[i];
            q.ta = t & 1;
            q.tb = t >> 1 & 1;
            q.tc = t >> 2;
            q.pad = t == 2 ? 0 : t;
            q.alpha = t % 2 ? -0.75f : 1;
            q.beta = i % 3 ? 0 : 0.5f;
            every_fp8(q);
        }
}

static void fp8_results_have_any_wider_type(void **state)
{
    (void)state;
    for (int out = 0; out < GPUNVME_OPS_NDTYPES; out++)
        for (int64_t pad = FEWER_CASES ? 3 : 0; pad < 4; pad += 3) {
            struct request q = plain(FEWER_CASES ? 30 : 70, 136, 272);

            q.tb = 1;
            q.pad = pad;
            q.out_dtype = out;
            every_fp8(q);
        }
}

static void batches_of_fp8_have_scales_of_their_own(void **state)
{
    struct request q = plain(21, 140, 150);

    (void)state;
    q.shape.batch = 3;
    for (q.tb = 0; q.tb < 2; q.tb++)
        every_fp8(q);
}

/* Scales by block go on where a piece of k begins. */
static void long_sums_of_fp8_are_right(void **state)
{
    struct request q = plain(FEWER_CASES ? 9 : 40, 130, 2600);

    (void)state;
    q.shape.batch = 2;
    q.tb = 1;
    q.dtype = GPUNVME_OPS_E4M3;
    for (q.scaling = 0; q.scaling < GPUNVME_MATMUL_NSCALINGS; q.scaling++)
        if (EMULATED)
            test_request("shaped", q);
        else
            every_variant(q);
}

/* Of either operand, and more k than a block of "skinny" has stages for. */
static void few_lines_of_fp8_are_right(void **state)
{
    static const struct shape shapes[] = {
        {1, 70, 16, 1}, {7, 130, 1552, 1}, {16, 100, 1168, 2}, {150, 12, 1040, 1}};

    (void)state;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        for (int way = FEWER_CASES ? (int)i % 2 : 0; way < 6; way += 1 + FEWER_CASES) {
            struct request q = {.shape = shapes[i], .alpha = 1, .tb = 1, .pad = i % 2 * 16};

            q.dtype = way % 2 ? GPUNVME_OPS_E5M2 : GPUNVME_OPS_E4M3;
            q.scaling = way / 2;
            q.out_dtype = (int)i % GPUNVME_OPS_NDTYPES;
            if (EMULATED)
                test_request("skinny", q);
            else
                every_variant(q);
        }
}

/*
 * Both along k, either one the large one. Each width of tiles (here a GPU has three
 * multiprocessors), each number of blocks that share the rows, and more k than a block has stages
 * for.
 */
static void few_rows_of_16_bits_are_right(void **state)
{
    static const int64_t widths[] = {16, 24, 32, 48, 64, 80, 112, 128};
    static const int64_t rows[] = {1, 9, 16, 17, 40, 64, 65, 128};

    (void)state;
    for (int i = 0; i < 8; i++)
        for (int way = 0; way < 3; way++) {
            int64_t few = rows[(i + way * 3) % 8], many = 3 * widths[i] - (way ? 5 : 0);
            struct request q = {.shape = {few, many, 1160 - 64 * way, 1 + (way == 1)},
                                .alpha = -0.75f,
                                .pad = 8,
                                .tb = 1};

            q.dtype = GPUNVME_OPS_F16 + (i + way) % 2;
            q.out_dtype = way ? q.dtype : GPUNVME_OPS_F32;
            q.beta = way > 1 ? 0.5f : 0;
            if (way == 2) {
                q.shape.m = many;
                q.shape.n = few;
                q.tc = i % 2;
            }
            if (EMULATED)
                test_request(few > 16 ? "shaped" : "skinny", q);
            else
                every_variant(q);
        }
}

/* The large one along its lines, the small one along k. */
static void few_rows_across_lines_are_right(void **state)
{
    static const struct shape shapes[] = {
        {1, 136, 1096, 1}, {16, 200, 520, 2}, {136, 11, 648, 1}, {5, 64, 64, 1}};

    (void)state;
    for (int i = 0; i < 8; i++) {
        struct request q = {.shape = shapes[i / 2], .alpha = -0.75f, .pad = 8};

        q.dtype = GPUNVME_OPS_F16 + (i + i / 2) % 2;
        q.out_dtype = i % 2 ? q.dtype : GPUNVME_OPS_F32;
        q.ta = q.tb = q.shape.m > q.shape.n;
        q.beta = i % 2 ? 0.5f : 0;
        if (EMULATED)
            test_request("skinny", q);
        else
            every_variant(q);
    }
}

/* f32, the large one along its lines: by tiles of 128 lines and, of few columns, of fewer. */
static void few_rows_of_f32_are_right(void **state)
{
    static const struct shape shapes[] = {{1, 768, 1030, 1}, {1, 132, 520, 2}, {4, 260, 300, 1},
                                          {132, 3, 77, 1},   {9, 4100, 90, 1}, {1, 4100, 96, 1}};

    (void)state;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        struct request q = {.shape = shapes[i], .alpha = -0.75f, .pad = i % 2 * 4};

        q.dtype = q.out_dtype = GPUNVME_OPS_F32;
        q.ta = q.tb = q.shape.m > q.shape.n;
        q.beta = i % 2 ? 0.5f : 0;
        if (EMULATED)
            test_request("skinny", q);
        else
            every_variant(q);
    }
}

/* A NaN in what is read beside a product's own lines, or behind its k, is in no result. */
static void nan_of_few_rows_stays_in_its_line(void **state)
{
    static const struct shape shapes[] = {{3, 72, 200, 1}, {40, 136, 328, 1}};

    (void)state;
    for (int i = 0; i < 4; i++) {
        struct request q = {.shape = shapes[i / 2], .alpha = 1, .tb = i % 2};
        struct operands x;
        struct gpunvme_matmul p;

        q.dtype = q.out_dtype = GPUNVME_OPS_BF16;
        x = make(&q);
        p = describe(&q, &x);
        ((uint16_t *)x.b.block)[q.tb ? mat_index(&x.b, 0, 70, q.shape.k - 1)
                                     : mat_index(&x.b, 0, q.shape.k - 1, 70)] = 0x7fc0;
        call("auto", &q, &p);
        for (int64_t r = 0; r < q.shape.m; r++)
            for (int64_t c = 0; c < q.shape.n; c++)
                assert_true(isfinite(mat_get(&x.c, 0, r, c)) == (c != 70));
        drop(&x);
    }
}

/* 192 columns, along k and across it; k in many pieces. */
static void other_tiles_of_16_bits_are_right(void **state)
{
    static const struct shape shapes[] = {
        {100, 570, 200, 1}, {260, 570, 136, 1}, {40, 30, 9000, 1}};

    (void)state;
    for (int i = 0; i < 6; i++) {
        struct request q = {.shape = shapes[i / 2], .alpha = 1, .pad = 8, .tb = i % 2};

        q.dtype = q.out_dtype = GPUNVME_OPS_F16 + i / 2 % 2;
        q.ta = i == 3;
        if (EMULATED)
            test_request("shaped", q);
        else
            every_variant(q);
    }
}

/*
 * So few tiles that the blocks of a cluster share k, the last one a shorter piece: one tile of few
 * rows, pairs of tiles, rows and columns beyond the last one's edge.
 */
static void k_shared_by_the_blocks_of_a_cluster_is_right(void **state)
{
    static const struct shape shapes[] = {{3, 96, 1096, 1},   {33, 250, 840, 2},
                                          {64, 128, 4160, 1}, {128, 136, 776, 1},
                                          {200, 96, 1288, 1}, {250, 300, 904, 1}};
    const int count = TEST_DEVICE == GPUNVME_OPS_CPU ? 4 : 12; /* its variants share no k */

    (void)state;
    for (int i = 0; i < count; i++) {
        struct request q = {.shape = shapes[i / 2], .alpha = -0.75f, .pad = 8, .tb = i % 2};

        q.dtype = GPUNVME_OPS_F16 + i / 2 % 2;
        q.out_dtype = i % 3 ? q.dtype : GPUNVME_OPS_F32;
        q.beta = i % 4 == 1 ? 0.5f : 0;
        if (EMULATED)
            test_request("shaped", q);
        else
            every_variant(q);
    }
}

/* Each type as the first, in products of few and of many rows, also as the transpose. */
static void both_types_of_fp8_are_multiplied(void **state)
{
    (void)state;
    for (int i = 0; i < 12; i++) {
        struct request q = plain(i % 3 && !FEWER_CASES ? 70 : 11, 140, 400);

        q.dtype = i & 1 ? GPUNVME_OPS_E5M2 : GPUNVME_OPS_E4M3;
        q.dtype_b = i & 1 ? GPUNVME_OPS_E4M3 : GPUNVME_OPS_E5M2;
        q.tb = i != 6;
        q.tc = i == 7 || i == 9;
        q.pad = i == 3 ? 3 : 0;
        q.scaling = q.tc ? GPUNVME_MATMUL_SCALE_ROW : i % 3;
        q.fast_sums = q.scaling != GPUNVME_MATMUL_SCALE_BLOCK && i > 7;
        every_variant(q);
    }
}

static void fp8_without_scales_is_multiplied_as_it_is(void **state)
{
    struct request q = plain(9, 40, 200);

    (void)state;
    for (q.dtype = GPUNVME_OPS_E4M3; q.dtype < GPUNVME_OPS_NALLDTYPES; q.dtype++)
        for (q.scaling = 0; q.scaling < GPUNVME_MATMUL_NSCALINGS; q.scaling++) {
            struct operands x = make(&q);
            struct gpunvme_matmul p = describe(&q, &x);

            p.scale_a = p.scale_b = NULL;
            free(x.rows);
            free(x.columns);
            x.rows = mat_values(&x.a, q.ta);
            x.columns = mat_values(&x.b, !q.tb);
            call("auto", &q, &p);
            for (int64_t i = 0; i < q.shape.m; i++)
                for (int64_t j = 0; j < q.shape.n; j++)
                    expect_element("auto", &q, &x, &x.c, 0, i, j);
            drop(&x);
        }
}

static void nan_and_infinity_of_fp8_spread(void **state)
{
    (void)state;
    for (int dtype = GPUNVME_OPS_E4M3; dtype < GPUNVME_OPS_NALLDTYPES; dtype++) {
        struct request q = plain(70, 130, 200);
        struct operands x;
        struct gpunvme_matmul p;

        q.dtype = dtype;
        q.tb = 1;
        x = make(&q);
        p = describe(&q, &x);
        ((uint8_t *)x.a.block)[mat_index(&x.a, 0, 3, 5)] = dtype == GPUNVME_OPS_E4M3 ? 0x7f : 0x7c;
        call("auto", &q, &p);
        for (int64_t j = 0; j < q.shape.n; j++) {
            assert_true(!isfinite(mat_get(&x.c, 0, 3, j)));
            assert_true(isfinite(mat_get(&x.c, 0, 2, j)) && isfinite(mat_get(&x.c, 0, 4, j)));
        }
        drop(&x);
    }
}

#ifndef OPS_TEST_CUDA
static void metrics_count_what_the_definition_reads(void **state)
{
    struct gpunvme_matmul p = {.m = 100,
                               .n = 200,
                               .k = 300,
                               .batch = 2,
                               .lda = 300,
                               .ldb = 200,
                               .ldc = 200,
                               .stride_a = 30000,
                               .stride_b = 60000,
                               .stride_c = 20000,
                               .alpha = 1};
    struct gpunvme_ops_exec exec = {.variant = "naive"};
    struct gpunvme_matmul_metrics naive, packed;

    (void)state;
    expect_ok(gpunvme_matmul_analyze(&p, &exec, &naive));
    assert_true(naive.flops == 2.0 * 2 * 100 * 200 * 300);
    assert_true(naive.global_load_nbytes == 2.0 * 2 * 4 * 100 * 200 * 300);
    assert_true(naive.ideal_nbytes == 2.0 * 4 * (30000 + 60000 + 20000));
    exec.variant = "packed";
    expect_ok(gpunvme_matmul_analyze(&p, &exec, &packed));
    assert_true(packed.global_load_nbytes < naive.global_load_nbytes / 10);
    assert_true(packed.arithmetic_intensity > naive.arithmetic_intensity);
    assert_true(packed.memory_efficiency > naive.memory_efficiency &&
                packed.memory_efficiency <= 1);
}

#else
/* The emulation of tests/ops/emulate has three multiprocessors. */
#define LARGE   (EMULATED ? 416 : 3072)
#define SAMPLES (EMULATED ? 2000 : 20000)

/* Larger than the GPU's tiles, in each way that operands can lie and with rows aligned or not. */
static void several_tiles_are_right_however_operands_lie(void **state)
{
    static const struct shape shapes[] = {{130, 258, 66, 1}, {257, 300, 200, 1},
                                          {129, 513, 64, 1}, {64, 40, 328, 3},
                                          {264, 132, 72, 1}, {136, 136, 104, 1}};

    (void)state;
    for (int t = 0; t < 4; t++)
        for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
            for (int dtype = 0; dtype < GPUNVME_OPS_NDTYPES; dtype++)
                for (int64_t pad = 0; pad < 9; pad += 8) {
                    struct request q = plain(0, 0, 0);

                    if (EMULATED && (t + (int)i + dtype) % 2 != (pad > 0))
                        continue;

                    q.shape = shapes[i];
                    q.ta = t & 1;
                    q.tb = t >> 1;
                    q.dtype = q.out_dtype = dtype;
                    q.compute = dtype || i % 2 ? 0 : GPUNVME_OPS_COMPUTE_TF32;
                    q.pad = pad;
                    every_variant(q);
                }
}

/* Seventeen tiles below each other: a cluster's second block has the rows of none. */
static void the_last_block_of_a_pair_may_have_no_rows(void **state)
{
    (void)state;
    for (int t = 0; t < 2; t++) {
        struct request q = plain(16 * 128 + 9, 24, 72);

        q.dtype = q.out_dtype = GPUNVME_OPS_BF16;
        q.ta = q.tb = t;
        q.pad = 8;
        every_variant(q);
    }
}

/*
 * How 32-bit operands lie decides who reads them and which way results are turned: all ways, with
 * rows that are aligned, tiles that are and are not full, C that is and is not read.
 */
static void tf32_is_right_whichever_way_matrices_lie(void **state)
{
    static const struct request requests[] = {
        {.shape = {132, 300, 68, 1}, .pad = 4},  {.shape = {141, 265, 97, 1}, .pad = 3},
        {.shape = {264, 72, 36, 3}, .pad = 0},   {.shape = {8, 520, 164, 2}, .pad = 4},
        {.shape = {257, 129, 33, 1}, .pad = 11}, {.shape = {68, 76, 132, 3}, .pad = 5},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(requests) / sizeof(requests[0]); i++)
        for (int t = 0; t < 8; t++) {
            struct request q = requests[i];

            if (EMULATED && (t ^ t >> 1 ^ t >> 2 ^ (int)i) & 1)
                continue; /* two of the three ways decide: each pair of them comes about */
            q.compute = GPUNVME_OPS_COMPUTE_TF32;
            q.ta = t & 1;
            q.tb = t >> 1 & 1;
            q.tc = t >> 2;
            q.alpha = -0.75f;
            every_variant(q);
            q.beta = 0.5f;
            every_variant(q);
        }
}

/* tf32 with aligned rows: the smaller operand, and only where both lie along m or n. */
static void hopper_copies_only_what_it_cannot_read(void **state)
{
    (void)state;
    if (!has("hopper")) {
        printf("SKIP: no sm_90a\n");
        skip();
    }
    for (int t = 0; t < 4; t++) {
        struct request q = {.shape = {128, 96, 64, 1}, .compute = GPUNVME_OPS_COMPUTE_TF32};
        struct gpunvme_ops_exec exec = {.device = TEST_DEVICE, .variant = "hopper"};
        struct operands x;
        struct gpunvme_matmul p;
        size_t nbytes = 77;

        q.ta = t & 1;
        q.tb = t >> 1;
        q.alpha = 1;
        x = make(&q);
        p = describe(&q, &x);
        expect_ok(gpunvme_matmul_workspace(&p, &exec, &nbytes));
        assert_int_equal(nbytes, q.ta && !q.tb ? 96 * 64 * sizeof(float) : 0);
        drop(&x);
    }
}

/* Rungs are told apart by what they read. */
static void metrics_fall_from_rung_to_rung(void **state)
{
    struct gpunvme_matmul p = {.m = 1024,
                               .n = 1024,
                               .k = 1024,
                               .batch = 1,
                               .lda = 1024,
                               .ldb = 1024,
                               .ldc = 1024,
                               .alpha = 1};
    static const char *const names[] = {"naive", "tiled", "coarsened"};
    double before = INFINITY;

    (void)state;
    for (int i = 0; i < 3; i++) {
        struct gpunvme_ops_exec exec = {.device = TEST_DEVICE, .variant = names[i]};
        struct gpunvme_matmul_metrics x;

        expect_ok(gpunvme_matmul_analyze(&p, &exec, &x));
        assert_true(x.global_load_nbytes < before);
        assert_true(x.registers > 0 && x.threads_per_block > 0 && x.blocks > 0);
        assert_true(x.occupancy > 0 && x.occupancy <= 1);
        assert_true(x.memory_efficiency > 0 && x.memory_efficiency <= 1);
        before = x.global_load_nbytes;
    }
}

/* Hopper's rungs, by what they read: of tiles of 128 x 128, 128 x 256, and by pairs of those. */
static void metrics_count_what_a_cluster_shares_once(void **state)
{
    static const struct {
        const char *name;
        int rows, cols; /* that are read once for all their elements */
    } rungs[] = {{"wgmma", 128, 128},
                 {"specialized", 128, 256},
                 {"cluster", 256, 256},
                 {"hopper", 256, 256}};

    struct gpunvme_matmul p = {.m = 4096,
                               .n = 4096,
                               .k = 4096,
                               .batch = 1,
                               .lda = 4096,
                               .ldb = 4096,
                               .ldc = 4096,
                               .alpha = 1,
                               .dtype = GPUNVME_OPS_BF16,
                               .out_dtype = GPUNVME_OPS_BF16};

    (void)state;
    if (!has("hopper")) {
        printf("SKIP: no sm_90a\n");
        skip();
    }
    for (size_t i = 0; i < sizeof(rungs) / sizeof(rungs[0]); i++) {
        struct gpunvme_ops_exec exec = {.device = TEST_DEVICE, .variant = rungs[i].name};
        struct gpunvme_matmul_metrics x;

        expect_ok(gpunvme_matmul_analyze(&p, &exec, &x));
        assert_true(x.global_load_nbytes ==
                    2.0 * 4096 * 4096 * (4096.0 / rungs[i].rows + 4096.0 / rungs[i].cols));
    }
}

struct large {
    struct request q;
    struct operands x;
};

/* Thousands of elements out of millions, the last one among them. */
static void expect_samples(const char *variant, void *arg)
{
    struct large *l = arg;
    struct gpunvme_matmul p = describe(&l->q, &l->x);
    const struct shape *s = &l->q.shape;

    if (!takes(variant, &l->q))
        return;
    mat_poison(&l->x.c);
    call(variant, &l->q, &p);
    for (int64_t i = 0; i < s->m; i++)
        for (int64_t j = 0; j < s->n; j++)
            if (isnan(mat_get(&l->x.c, 0, i, j)))
                fail_msg("%s did not write (%lld, %lld)", variant, (long long)i, (long long)j);
    for (int i = 0; i < SAMPLES; i++)
        expect_element(variant, &l->q, &l->x, NULL, 0,
                       (int64_t)(base_random_real(&rng) * (double)s->m),
                       (int64_t)(base_random_real(&rng) * (double)s->n));
    expect_element(variant, &l->q, &l->x, NULL, 0, s->m - 1, s->n - 1);
}

/* More tiles than multiprocessors, so that blocks go on from tile to tile. */
static void more_tiles_than_multiprocessors_are_right(void **state)
{
    (void)state;
    for (int dtype = 0; dtype < GPUNVME_OPS_NDTYPES; dtype++)
        for (int ragged = 0; ragged < 2; ragged++)
            for (int compute = 0; compute < (dtype ? 1 : 2); compute++) {
                struct large l = {
                    .q = plain(LARGE - ragged * 73, LARGE - ragged * 69, LARGE / 10 + ragged * 26)};

                l.q.dtype = l.q.out_dtype = dtype;
                l.q.compute = compute;
                l.q.pad = ragged ? 1 : 0;
                l.x = make(&l.q);
                for_each_variant(GPUNVME_OPS_MATMUL, expect_samples, &l);
                drop(&l.x);
            }
}

/* An element beyond what cudaMalloc() returns: no vector is aligned. */
static void misaligned_operands_are_right_or_refused(const char *variant, void *arg)
{
    struct request q = plain(70, 72, 80);
    int dtype = *(int *)arg;
    size_t size = gpunvme_ops_dtype_nbytes(dtype);
    struct gpunvme_ops_exec exec = {.device = TEST_DEVICE, .variant = variant};
    struct gpunvme_matmul p, d;
    struct operands x;
    struct workspace w;
    char *memory[3];
    gpunvme_ops_status_t status;

    if (!variant_takes(GPUNVME_OPS_MATMUL, variant, dtype, 0) || !strcmp(variant, "skinny"))
        return;
    q.dtype = q.out_dtype = dtype;
    q.pad = 8;
    x = make(&q);
    p = d = describe(&q, &x);
    memory[0] = device_in(x.a.block, x.a.nbytes);
    memory[1] = device_in(x.b.block, x.b.nbytes);
    memory[2] = device_in(x.c.block, x.c.nbytes);
    for (int i = 0; i < 3; i++) {
        char *moved = NULL;
        size_t nbytes = i == 0 ? x.a.nbytes : i == 1 ? x.b.nbytes : x.c.nbytes;

        assert_int_equal(cudaMalloc((void **)&moved, nbytes + size), 0);
        assert_int_equal(cudaMemcpy(moved + size, memory[i], nbytes, cudaMemcpyDeviceToDevice), 0);
        device_out(NULL, memory[i], 0);
        memory[i] = moved;
    }
    d.a = memory[0] + size;
    d.b = memory[1] + size;
    d.c = memory[2] + size;
    expect_ok(gpunvme_matmul_workspace(&d, &exec, &exec.workspace_nbytes));
    w = workspace_new(exec.workspace_nbytes);
    exec.workspace = w.data;
    status = gpunvme_matmul(&d, &exec);
    if (status != GPUNVME_OPS_ERR_ALIGN || !strcmp(variant, "auto"))
        expect_ok(status);
    if (!status) {
        assert_int_equal(cudaMemcpy(p.c, d.c, x.c.nbytes, cudaMemcpyDeviceToHost), 0);
        for (int64_t i = 0; i < q.shape.m; i++)
            for (int64_t j = 0; j < q.shape.n; j++)
                expect_element(variant, &q, &x, NULL, 0, i, j);
    }
    for (int i = 0; i < 3; i++)
        device_out(NULL, memory[i], 0);
    workspace_free(&w);
    drop(&x);
}

/* The status of a choice for operands at `at`, and the variant's name. */
static gpunvme_ops_status_t choose_at(uintptr_t at, int64_t k, const char *variant,
                                      const char **name)
{
    const void *data = (const void *)at; /* which nobody reads */
    struct gpunvme_ops_exec exec = {.device = TEST_DEVICE, .variant = variant};
    struct gpunvme_matmul p = {.m = 512,
                               .n = 768,
                               .k = k,
                               .batch = 1,
                               .a = data,
                               .b = data,
                               .lda = 1024,
                               .ldb = 1024,
                               .ldc = 1024,
                               .alpha = 1,
                               .dtype = GPUNVME_OPS_BF16,
                               .out_dtype = GPUNVME_OPS_BF16};

    return gpunvme_matmul_choose(&p, &exec, name);
}

/* What needs aligned operands is refused by name, and "auto" names what takes them. */
static void a_choice_for_misaligned_operands_names_what_runs(void **state)
{
    const char *named, *name, *aligned;

    (void)state;
    expect_ok(choose_at(0x1000, 512, "auto", &aligned));
    expect_ok(choose_at(0x1002, 512, "auto", &name));
    expect_ok(choose_at(0x1002, 512, name, &named));
    assert_string_equal(named, name);
    if (!has("hopper"))
        return;
    assert_string_equal(name, "tensorcore");
    assert_true(!strcmp(aligned, "hopper") || !strcmp(aligned, "shaped"));
    expect_status(choose_at(0x1002, 512, aligned, &named), GPUNVME_OPS_ERR_ALIGN,
                  "multiples of 16");
    expect_status(choose_at(0x1002, 512, "hopper", &named), GPUNVME_OPS_ERR_ALIGN, "'hopper'");
    expect_status(choose_at(0x1002, 512, "wgmma", &named), GPUNVME_OPS_ERR_ALIGN, "'wgmma'");
    /* Nothing is multiplied: nothing is read. */
    expect_ok(choose_at(0x1002, 0, "hopper", &named));
}

/* From `least` to `most`, small ones as often as large ones; a multiple of 1, 8 or 64. */
static int64_t any_size(double least, double most)
{
    static const int64_t steps[] = {1, 8, 64};
    int64_t step = steps[base_random_below(&rng, 3)];
    int64_t x = (int64_t)(least * pow(most / least, base_random_real(&rng)));

    return x < step ? step : x / step * step;
}

/* Workspace and launch, too: by its name the choice is the same in all. */
static void autos_choice_for_400_shapes_names_what_runs(void **state)
{
    (void)state;
    for (int i = 0; i < 400; i++) {
        struct gpunvme_ops_exec by_auto = {.device = TEST_DEVICE}, by_name = by_auto;
        struct gpunvme_matmul_metrics launch, named_launch;
        struct gpunvme_matmul p = {.m = any_size(1, 8192),
                                   .n = any_size(16, 16384),
                                   .k = any_size(16, 16384),
                                   .batch = 1,
                                   .alpha = 1,
                                   .transpose_a = i % 2,
                                   .transpose_b = i / 2 % 2,
                                   .dtype = i / 4 % GPUNVME_OPS_NALLDTYPES};
        const char *named;
        size_t nbytes = 1, named_nbytes = 2;

        p.lda = p.transpose_a ? p.m : p.k;
        p.ldb = p.transpose_b ? p.k : p.n;
        p.ldc = p.n;
        p.out_dtype = p.dtype < GPUNVME_OPS_NDTYPES ? p.dtype : GPUNVME_OPS_BF16;
        memset(&launch, 0, sizeof(launch));
        memset(&named_launch, 0, sizeof(named_launch));
        expect_ok(gpunvme_matmul_choose(&p, &by_auto, &by_name.variant));
        expect_ok(gpunvme_matmul_choose(&p, &by_name, &named));
        assert_string_equal(named, by_name.variant);
        expect_ok(gpunvme_matmul_workspace(&p, &by_auto, &nbytes));
        expect_ok(gpunvme_matmul_workspace(&p, &by_name, &named_nbytes));
        assert_int_equal(nbytes, named_nbytes);
        assert_int_equal(gpunvme_matmul_analyze(&p, &by_auto, &launch),
                         gpunvme_matmul_analyze(&p, &by_name, &named_launch));
        assert_memory_equal(&launch, &named_launch, sizeof(launch));
    }
}

static void nothing_to_multiply_is_the_naive_variants(void **state)
{
    const char *name;

    (void)state;
    expect_ok(choose_at(0x1000, 0, "auto", &name));
    assert_string_equal(name, "naive");
}

static void misaligned_pointers_are_no_error_of_autos(void **state)
{
    (void)state;
    for (int dtype = 0; dtype < GPUNVME_OPS_NDTYPES; dtype++)
        for_each_variant(GPUNVME_OPS_MATMUL, misaligned_operands_are_right_or_refused, &dtype);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_and_ragged_sizes_are_right),
        cmocka_unit_test(sizes_around_tiles_and_blocks_are_right),
        cmocka_unit_test(nothing_is_done_for_no_rows_or_columns),
        cmocka_unit_test(without_depth_c_is_scaled),
        cmocka_unit_test(alpha_zero_reads_neither_a_nor_b),
        cmocka_unit_test(all_transpositions_are_right),
        cmocka_unit_test(alpha_and_beta_scale),
        cmocka_unit_test(few_results_of_a_long_sum_are_right),
        cmocka_unit_test(beta_is_applied_once_for_a_deep_product),
        cmocka_unit_test(sixteen_bit_results_are_rounded_once),
        cmocka_unit_test(batches_are_independent_products),
        cmocka_unit_test(one_matrix_serves_the_whole_batch_with_stride_zero),
        cmocka_unit_test(results_may_be_interleaved_like_heads),
        cmocka_unit_test(results_are_the_same_bits_in_every_run),
        cmocka_unit_test(threads_do_not_change_the_bits),
        cmocka_unit_test(nan_and_infinity_spread_as_ieee_says),
        cmocka_unit_test(auto_takes_a_variant_that_is_available),
        cmocka_unit_test(f32_can_be_multiplied_as_tf32),
        cmocka_unit_test(tf32_is_rounded_and_not_cut_off),
        cmocka_unit_test(fp8_is_right_by_every_scaling),
        cmocka_unit_test(fp8_results_have_any_wider_type),
        cmocka_unit_test(batches_of_fp8_have_scales_of_their_own),
        cmocka_unit_test(long_sums_of_fp8_are_right),
        cmocka_unit_test(few_lines_of_fp8_are_right),
        cmocka_unit_test(few_rows_of_16_bits_are_right),
        cmocka_unit_test(few_rows_across_lines_are_right),
        cmocka_unit_test(few_rows_of_f32_are_right),
        cmocka_unit_test(nan_of_few_rows_stays_in_its_line),
        cmocka_unit_test(other_tiles_of_16_bits_are_right),
        cmocka_unit_test(k_shared_by_the_blocks_of_a_cluster_is_right),
        cmocka_unit_test(both_types_of_fp8_are_multiplied),
        cmocka_unit_test(fp8_without_scales_is_multiplied_as_it_is),
        cmocka_unit_test(nan_and_infinity_of_fp8_spread),
#ifndef OPS_TEST_CUDA
        cmocka_unit_test(metrics_count_what_the_definition_reads),
#else
        cmocka_unit_test(several_tiles_are_right_however_operands_lie),
        cmocka_unit_test(the_last_block_of_a_pair_may_have_no_rows),
        cmocka_unit_test(tf32_is_right_whichever_way_matrices_lie),
        cmocka_unit_test(hopper_copies_only_what_it_cannot_read),
        cmocka_unit_test(metrics_fall_from_rung_to_rung),
        cmocka_unit_test(metrics_count_what_a_cluster_shares_once),
        cmocka_unit_test(more_tiles_than_multiprocessors_are_right),
        cmocka_unit_test(misaligned_pointers_are_no_error_of_autos),
        cmocka_unit_test(a_choice_for_misaligned_operands_names_what_runs),
        cmocka_unit_test(autos_choice_for_400_shapes_names_what_runs),
        cmocka_unit_test(nothing_to_multiply_is_the_naive_variants),
#endif
    };

    if (no_gpu())
        return 77;

    return cmocka_run_group_tests(tests, NULL, NULL);
}
