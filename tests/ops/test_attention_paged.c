/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Attention over pages of a cache, every variant that this machine has, against its formulas in
 * f64; and the cache's filling.
 */
#include "attention_test.h"

static struct base_random rng = {31};

/* The pages of a problem's K and V, in random order among pages that nobody uses: those are NaN. */
struct cache {
    struct tensor k, v; /* a page is a sequence */
    int32_t *table, *lengths;
    int64_t cols, page_size;
};

static struct cache padded_cache(const struct problem *p, int64_t page_size, enum layout layout,
                                 int64_t k_pad, int64_t v_pad)
{
    const struct request *r = p->r;
    struct cache c = {.cols = (r->k_len + page_size - 1) / page_size, .page_size = page_size};
    int64_t pages = r->batch * c.cols + 3, next = 0;
    int32_t *order = integers_new(pages + 1);

    c.k = tensor_new(pages, page_size, r->kv_heads, r->dim, layout, k_pad, kv_dtype_of(r));
    c.v = tensor_new(pages, page_size, r->kv_heads, r->dim_v, layout, v_pad, kv_dtype_of(r));
    c.table = integers_new(r->batch * c.cols + 1);
    c.lengths = integers_new(r->batch + 1);
    for (int64_t i = 0; i < pages; i++)
        order[i] = (int32_t)i;
    for (int64_t i = pages - 1; i > 0; i--) {
        int64_t other = (int64_t)(base_random_real(&rng) * (double)(i + 1));
        int32_t swap = order[i];

        order[i] = order[other];
        order[other] = swap;
    }
    for (int64_t b = 0; b < r->batch; b++) {
        c.lengths[b] = (int32_t)k_len_of(p, b);
        for (int64_t i = 0; i < c.cols; i++) /* behind the length: no page at all */
            c.table[b * c.cols + i] = i * page_size < c.lengths[b] ? order[next++] : INT32_MIN;
    }
    free(order);
    return c;
}

static struct cache cache_new(const struct problem *p, int64_t page_size, enum layout layout)
{
    return padded_cache(p, page_size, layout, 3, 1);
}

/* V is the first channels of K, in the same memory. */
static bool shared(const struct cache *c)
{
    return c->k.block && c->v.block == c->k.block;
}

static void cache_free(struct cache *c)
{
    free(c->k.block);
    if (!shared(c))
        free(c->v.block);
    free(c->table);
    free(c->lengths);
}

static struct place page_of(const struct cache *c, int64_t b, int64_t j)
{
    return (struct place){c->table[b * c->cols + j / c->page_size], j % c->page_size};
}

/* Numbers times the factors of their heads, which begin at `at`; NULL: as they are. */
static void copy_scaled_row(const struct tensor *to, struct place a, const struct tensor *from,
                            struct place b, const float *factors, int64_t at)
{
    for (int64_t h = 0; h < to->heads; h++)
        for (int64_t c = 0; c < to->dim; c++)
            cpu_store(to->block, tensor_at(to, a.b, a.i, h, c), to->dtype,
                      (float)tensor_get(from, b.b, b.i, h, c) * (factors ? factors[at + h] : 1));
}

static void copy_row(const struct tensor *to, struct place a, const struct tensor *from,
                     struct place b)
{
    copy_scaled_row(to, a, from, b, NULL, 0);
}

static void fill(const struct problem *p, const struct cache *c)
{
    for (int64_t b = 0; b < p->r->batch; b++)
        for (int64_t j = 0; j < c->lengths[b]; j++) {
            copy_row(&c->k, page_of(c, b, j), &p->k, k_place(p, b, j));
            copy_row(&c->v, page_of(c, b, j), &p->v, k_place(p, b, j));
        }
}

static struct gpunvme_attention_paged paged_of(const struct problem *p, const struct cache *c)
{
    struct gpunvme_attention_paged x = {.attention = attention_of(p),
                                        .block_table = c->table,
                                        .ld_table = c->cols,
                                        .pages = c->k.batch,
                                        .page_size = c->page_size,
                                        .cache_dtype = kv_dtype_of(p->r)};

    x.attention.k = c->k.block;
    x.attention.v = c->v.block;
    x.attention.k_strides = c->k.strides;
    x.attention.v_strides = c->v.strides;
    x.attention.k_offsets = NULL;
    x.attention.k_lengths = c->lengths;
    return x;
}

/* What the device needs of a cache. */
static void put_cache(struct on_device *d, const struct cache *c, int64_t batch, const void **k,
                      const void **v, const int32_t **table, const int32_t **lengths, bool results)
{
    *k = put(d, *k, c->k.nbytes, results);
    *v = shared(c) ? *k : put(d, *v, c->v.nbytes, results);
    *table = put(d, *table, (size_t)(batch * c->cols) * sizeof(int32_t), false);
    *lengths = put(d, *lengths, (size_t)batch * sizeof(int32_t), false);
}

/* A call, with all that it needs on the device. */
struct call {
    struct gpunvme_attention_paged x;
    struct gpunvme_ops_exec exec;
    struct on_device d;
    struct workspace w;
};

static void prepare(struct call *call, const char *variant, const struct problem *p,
                    const struct cache *c)
{
    struct gpunvme_attention_paged *x = &call->x;
    const void *k, *v;
    const int32_t *lengths;
    size_t nbytes = 77;

    *call = (struct call){.x = paged_of(p, c), .exec = {.device = TEST_DEVICE, .variant = variant}};
    k = x->attention.k;
    v = x->attention.v;
    lengths = x->attention.k_lengths;
    put_cache(&call->d, c, p->r->batch, &k, &v, &x->block_table, &lengths, false);
    x->attention.k = x->attention.v = NULL;
    x->attention.k_lengths = NULL;
    put_attention(&call->d, p, &x->attention, true);
    x->attention.k = k;
    x->attention.v = v;
    x->attention.k_lengths = lengths;
    expect_ok(gpunvme_attention_paged_workspace(x, &call->exec, &nbytes));
    call->w = workspace_new(nbytes);
    call->exec.workspace = call->w.data;
    call->exec.workspace_nbytes = call->w.nbytes;
}

static void end(struct call *call)
{
    take_back(&call->d);
    workspace_free(&call->w);
}

static void run(const char *variant, const struct problem *p, const struct cache *c)
{
    struct call call;

    prepare(&call, variant, p, c);
    expect_ok(gpunvme_attention_paged(&call.x, &call.exec));
    end(&call);
}

/* A variant need not take all sizes, nor rows that are not aligned. */
static bool refused(const char *variant, const struct problem *p, const struct cache *c)
{
    struct gpunvme_ops_exec exec = {.device = TEST_DEVICE, .variant = variant};
    struct gpunvme_attention_paged x = paged_of(p, c);
    const char *name;
    gpunvme_ops_status_t status = gpunvme_attention_paged_choose(&x, &exec, &name);

    return status == GPUNVME_OPS_ERR_ALIGN || status == GPUNVME_OPS_ERR_UNSUPPORTED;
}

struct paged {
    struct problem *p;
    struct cache *c;
};

static void test_variant(const char *variant, void *arg)
{
    struct paged *x = arg;

    if (!variant_takes(GPUNVME_OPS_ATTENTION_PAGED, variant, x->p->r->dtype, 0) ||
        (strcmp(variant, "auto") != 0 && refused(variant, x->p, x->c)))
        return;
    tensor_poison(&x->p->out);
    tensor_poison(&x->p->lse);
    run(variant, x->p, x->c);
    compare_out(variant, x->p);
    expect_padding(x->p, &x->p->out, true);
    expect_padding(x->p, &x->p->lse, true);
}

static void in_cache(struct problem *p, struct cache c)
{
    make_references(p);
    fill(p, &c);
    for_each_variant(GPUNVME_OPS_ATTENTION_PAGED, test_variant, &(struct paged){p, &c});
    cache_free(&c);
    problem_free(p);
}

static void paged(struct request r, int64_t page_size, enum layout layout)
{
    struct problem p;

    r = with_defaults(r);
    p = problem_new(&r, &rng);
    in_cache(&p, cache_new(&p, page_size, layout));
}

/* Rows of the cache are at multiples of 16 bytes, as kernels want them that copy so many at once.
 */
static void aligned(struct request r, int64_t page_size, enum layout layout)
{
    struct problem p;
    struct cache c;

    r = with_defaults(r);
    for (int i = 0; i < 4; i++) {
        r.dtype = r.out_dtype = i % 2 ? GPUNVME_OPS_BF16 : GPUNVME_OPS_F16;
        r.fp8_cache = i / 2;
        p = problem_new(&r, &rng);
        c = padded_cache(&p, page_size, layout, ALIGNED, ALIGNED);
        if (TEST_DEVICE == GPUNVME_OPS_CUDA && r.dim <= 256 &&
            !(r.fp8_cache && (r.dim % 16 || r.dim_v % 16)))
            assert_false(refused("decode", &p, &c));
        in_cache(&p, c);
    }
}

/* Lengths of keys alone, as latent_cache() says. */
static void give_lengths(struct problem *p, bool ragged)
{
    const struct request *r = p->r;

    p->k_lengths = integers_new(r->batch);
    for (int64_t b = 0; b < r->batch; b++)
        p->k_lengths[b] = (int32_t)(ragged ? length_of(r->k_len, b, r->batch) : r->k_len);
}

/*
 * A cache of latent vectors (MLA): V is the first dim_v channels of K. All sequences have k_len
 * keys, or if they are ragged the last one, and the first of several is empty.
 */
static struct cache latent_cache(struct problem *p, bool ragged, int64_t page_size, int64_t pad)
{
    const struct request *r = p->r;
    struct cache c;

    give_lengths(p, ragged);
    for (int64_t b = 0; b < r->batch; b++)
        for (int64_t j = 0; j < r->k_len; j++)
            copy_row(&p->v, (struct place){b, j}, &p->k, (struct place){b, j});
    c = padded_cache(p, page_size, BSHD, pad, pad);
    free(c.v.block);
    c.v = c.k;
    c.v.dim = r->dim_v;
    return c;
}

static void latent(struct request r, int64_t page_size, int64_t pad)
{
    struct problem p;
    struct cache c;

    r.kv_heads = r.kv_heads ? r.kv_heads : 1;
    r = with_defaults(r);
    p = problem_new(&r, &rng);
    c = latent_cache(&p, true, page_size, pad);
    if (r.aligned && page_size % 16 == 0 &&
        variant_takes(GPUNVME_OPS_ATTENTION_PAGED, "mla", r.dtype, 0))
        assert_false(refused("mla", &p, &c));
    in_cache(&p, c);
}

static void pages_may_have_any_size_and_layout(void **state)
{
    static const int64_t sizes[] = {1, 3, 16, 64, 256};

    (void)state;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        for (int layout = BSHD; layout <= BHSD; layout++)
            paged((struct request){.batch = 3,
                                   .heads = 6,
                                   .kv_heads = 2,
                                   .q_len = 5,
                                   .k_len = 301,
                                   .lengths = true,
                                   .causal = true},
                  sizes[i], (enum layout)layout);
}

static void one_query_decodes_with_every_type(void **state)
{
    (void)state;
    for (int dtype = 0; dtype < GPUNVME_OPS_NDTYPES; dtype++)
        for (int64_t group = 1; group <= 8; group *= 8)
            paged((struct request){.batch = 4,
                                   .heads = group,
                                   .kv_heads = 1,
                                   .dim = 64,
                                   .q_len = 1,
                                   .k_len = 257,
                                   .ragged = true,
                                   .dtype = dtype,
                                   .out_dtype = dtype},
                  16, BHSD);
}

static void features_are_those_of_attention(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i++)
        paged((struct request){.batch = 3,
                               .dim = 24,
                               .q_len = 41,
                               .k_len = 67,
                               .ragged = i & 1,
                               .sinks = i & 2,
                               .softcap = i & 2 ? 2 : 0,
                               .window = i & 4,
                               .left = 11,
                               .right = 4,
                               .rope = i & 1 ? 24 : 0,
                               .queries_only = i & 2,
                               .causal = true},
              i & 1 ? 7 : 32, i & 4 ? BSHD : BHSD);
}

static void a_cache_of_e4m3_has_factors_by_sequence_and_head(void **state)
{
    (void)state;
    for (int dtype = 0; dtype < GPUNVME_OPS_NDTYPES; dtype++)
        for (int factors = 0; factors < 3; factors++)
            paged((struct request){.batch = 3,
                                   .heads = 6,
                                   .kv_heads = 2,
                                   .dim = 40,
                                   .q_len = 3,
                                   .k_len = 101,
                                   .lengths = true,
                                   .causal = true,
                                   .dtype = dtype,
                                   .out_dtype = factors ? dtype : GPUNVME_OPS_F32,
                                   .fp8_cache = true,
                                   .shared_descales = factors == 1,
                                   .no_descales = factors == 2},
                  factors ? 16 : 3, factors == 1 ? BHSD : BSHD);
}

static void a_cache_of_e4m3_has_the_features_of_attention(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i++)
        paged((struct request){.batch = 3,
                               .dim = 24,
                               .q_len = 21,
                               .k_len = 67,
                               .ragged = i & 1,
                               .sinks = i & 2,
                               .softcap = i & 2 ? 2 : 0,
                               .window = i & 4,
                               .left = 11,
                               .right = 4,
                               .rope = i & 1 ? 24 : 0,
                               .queries_only = i & 2,
                               .causal = true,
                               .fp8_cache = true},
              i & 1 ? 7 : 32, i & 4 ? BSHD : BHSD);
}

static void sequences_without_keys_have_no_page(void **state)
{
    (void)state;
    paged((struct request){.batch = 2, .q_len = 3, .k_len = 0}, 16, BSHD);
}

static void few_queries_decode_with_every_head_size(void **state)
{
    static const int64_t dims[][2] = {{64, 64}, {128, 128}, {256, 256}, {40, 24}, {96, 144}};

    (void)state;
    for (size_t i = 0; i < sizeof(dims) / sizeof(dims[0]); i++)
        for (int64_t q_len = 1; q_len <= 9; q_len += 4) /* 4, 20 and 36 rows of a head of K */
            aligned((struct request){.batch = 3,
                                     .heads = 8,
                                     .kv_heads = 2,
                                     .dim = dims[i][0],
                                     .dim_v = dims[i][1],
                                     .q_len = q_len,
                                     .k_len = 211,
                                     .causal = true,
                                     .lengths = q_len > 1},
                    16, i % 2 ? BSHD : BHSD);
}

static void decoding_pages_may_have_any_size(void **state)
{
    static const int64_t sizes[] = {1, 3, 16, 100, 256};

    (void)state;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        aligned((struct request){.batch = 2,
                                 .heads = 3,
                                 .kv_heads = 1,
                                 .dim = 64,
                                 .q_len = 1,
                                 .k_len = 523,
                                 .causal = true},
                sizes[i], i % 2 ? BSHD : BHSD);
}

/* One key, none, and more sequences than a warp has lanes: some of them have no query. */
static void lengths_may_differ_in_a_batch(void **state)
{
    static const int64_t lengths[] = {0, 1, 13, 64, 65};

    (void)state;
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++)
        aligned((struct request){.q_len = 1, .dim = 64, .k_len = lengths[i], .sinks = i % 2}, 16,
                BSHD);
    aligned((struct request){.batch = 37,
                             .heads = 4,
                             .kv_heads = 1,
                             .dim = 64,
                             .q_len = 3,
                             .k_len = 331,
                             .ragged = true,
                             .causal = true},
            16, BSHD);
}

/* As few as one lane of a warp holds, some, and more than all do. */
static void keys_alone_may_have_lengths(void **state)
{
    static const int64_t batches[] = {2, 37, 131};

    (void)state;
    for (size_t i = 0; i < sizeof(batches) / sizeof(batches[0]); i++)
        for (int fp8 = 0; fp8 < 2; fp8++) {
            struct request r = with_defaults((struct request){.batch = batches[i],
                                                              .heads = 4,
                                                              .kv_heads = 2,
                                                              .dim = 64,
                                                              .q_len = 1,
                                                              .k_len = i < 2 ? 707 : 70,
                                                              .dtype = GPUNVME_OPS_BF16,
                                                              .out_dtype = GPUNVME_OPS_BF16,
                                                              .fp8_cache = fp8});
            struct problem p = problem_new(&r, &rng);

            give_lengths(&p, true);
            in_cache(&p, padded_cache(&p, 16, BSHD, ALIGNED, ALIGNED));
        }
}

#ifndef OPS_TEST_EMULATED
static void lengths_from_128_to_32k_share_a_batch(void **state)
{
    (void)state;
    for (int fp8 = 0; fp8 < 2; fp8++) {
        struct request r = with_defaults((struct request){.batch = 5,
                                                          .heads = 4,
                                                          .kv_heads = 1,
                                                          .dim = 64,
                                                          .q_len = 1,
                                                          .k_len = 32768,
                                                          .dtype = GPUNVME_OPS_BF16,
                                                          .out_dtype = GPUNVME_OPS_BF16,
                                                          .fp8_cache = fp8});
        struct problem p = problem_new(&r, &rng);

        p.k_lengths = integers_new(r.batch);
        for (int b = 0; b < 5; b++)
            p.k_lengths[b] = 128 << 2 * b;
        in_cache(&p, padded_cache(&p, 16, BSHD, ALIGNED, ALIGNED));
    }
}
#endif

static void values_may_be_the_first_channels_of_keys(void **state)
{
    (void)state;
    for (int dtype = 0; dtype < GPUNVME_OPS_NDTYPES; dtype++)
        for (int64_t page_size = 3; page_size <= 16; page_size += 13)
            latent((struct request){.batch = 2,
                                    .heads = 6,
                                    .dim = 36,
                                    .dim_v = 32,
                                    .q_len = 3,
                                    .k_len = 75,
                                    .causal = true,
                                    .dtype = dtype,
                                    .out_dtype = dtype,
                                    .fp8_cache = page_size == 3},
                   page_size, 5);
}

/* 512 latent channels, and 64 with the position. */
static struct request mla(struct request r)
{
    r.dim = 576;
    r.dim_v = 512;
    r.aligned = true;
    return r;
}

static void latent_vectors_decode_with_every_type(void **state)
{
    (void)state;
    for (int dtype = 0; dtype < GPUNVME_OPS_NDTYPES; dtype++)
        latent(mla((struct request){.batch = 3,
                                    .heads = 16,
                                    .q_len = 1,
                                    .k_len = 131,
                                    .dtype = dtype,
                                    .out_dtype = dtype}),
               64, 0);
}

/* One block's rows and less, those of two blocks, and more: in several products, or too many. */
static void latent_vectors_decode_with_any_number_of_heads(void **state)
{
    static const int64_t heads[] = {1, 64, 72, 128, 192, 131};

    (void)state;
    for (size_t i = 0; i < (FEWER_CASES ? 3 : sizeof(heads) / sizeof(heads[0])); i++)
        latent(mla((struct request){.batch = 2,
                                    .heads = heads[i],
                                    .q_len = 1,
                                    .k_len = 70,
                                    .dtype = GPUNVME_OPS_BF16,
                                    .out_dtype = i % 2 ? GPUNVME_OPS_F32 : GPUNVME_OPS_BF16}),
               16, 8);
}

static void latent_vectors_have_pages_of_any_size(void **state)
{
    static const int64_t sizes[] = {3, 16, 48, 64, 256};

    (void)state;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        for (int64_t heads = 2; heads <= (FEWER_CASES ? 2 : 66); heads += 64)
            latent(mla((struct request){.batch = 5,
                                        .heads = heads,
                                        .q_len = 1,
                                        .k_len = 397,
                                        .dtype = GPUNVME_OPS_BF16,
                                        .out_dtype = GPUNVME_OPS_BF16}),
                   sizes[i], 0);
}

static void decoding_latent_vectors_has_the_features_of_attention(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i++)
        latent(mla((struct request){.batch = 2,
                                    .heads = i & 1 ? (FEWER_CASES ? 6 : 36) : 4,
                                    .kv_heads = i & 2 ? 2 : 1,
                                    .q_len = 3,
                                    .k_len = 391,
                                    .sinks = i & 1,
                                    .softcap = i & 2 ? 2 : 0,
                                    .window = i & 4,
                                    .left = 201,
                                    .right = 1,
                                    .causal = !(i & 4),
                                    .dtype = GPUNVME_OPS_F16,
                                    .out_dtype = GPUNVME_OPS_F16}),
               32, 0);
}

/* Keys of each head are shared by several blocks: their parts are put together. */
static void decoding_has_the_features_of_attention(void **state)
{
    (void)state;
    for (int i = 0; i < 16; i++)
        aligned((struct request){.batch = 1 + i % 3,
                                 .heads = i & 1 ? 10 : 4,
                                 .kv_heads = 2,
                                 .dim = 64,
                                 .q_len = i & 8 ? 7 : 2,
                                 .k_len = FEWER_CASES ? 411 : 811,
                                 .sinks = i & 1,
                                 .softcap = i & 2 ? 2 : 0,
                                 .window = i & 4,
                                 .left = 301,
                                 .right = 4,
                                 .rope = i & 2 ? 48 : 0,
                                 .rope_first = 8,
                                 .tables = i & 4,
                                 .interleaved = i & 1,
                                 .queries_only = true,
                                 .causal = !(i & 4)},
                i & 1 ? 7 : 32, i & 4 ? BSHD : BHSD);
}

/* More queries than `decode` takes, of one 16-bit type: the rungs with tiles of queries. */
static void prefill(struct request r, int64_t page_size, enum layout layout)
{
    struct problem p;
    struct cache c;

    r = with_defaults(r);
    r.aligned = true;
    p = problem_new(&r, &rng);
    c = padded_cache(&p, page_size, layout, ALIGNED, ALIGNED);
    if (variant_takes(GPUNVME_OPS_ATTENTION_PAGED, "flash2", r.dtype, 0))
        assert_false(refused("flash2", &p, &c));
    if (page_size % 8 == 0 && variant_takes(GPUNVME_OPS_ATTENTION_PAGED, "hopper", r.dtype, 0))
        assert_false(refused("hopper", &p, &c));
    in_cache(&p, c);
}

/* Tiles of 80, 128 and 176 keys, of which a page has a part, or which have several pages. */
static void prefilling_pages_may_have_any_size(void **state)
{
    static const int64_t sizes[] = {1, 8, 16, 24, 64, 100, 256};

    (void)state;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        int dtype = i % 2 ? GPUNVME_OPS_BF16 : GPUNVME_OPS_F16;

        prefill((struct request){.batch = 2,
                                 .heads = 2,
                                 .kv_heads = 1,
                                 .dim = i % 3 == 0   ? 128
                                        : i % 3 == 1 ? 64
                                                     : 200,
                                 .q_len = 67,
                                 .k_len = 421,
                                 .dtype = dtype,
                                 .out_dtype = dtype,
                                 .causal = true},
                sizes[i], i % 2 ? BSHD : BHSD);
    }
}

static void prefilling_has_the_features_of_attention(void **state)
{
    (void)state;
    for (int i = 0; i < 16; i++) {
        int dtype = i & 1 ? GPUNVME_OPS_BF16 : GPUNVME_OPS_F16;

        prefill((struct request){.batch = 3,
                                 .heads = i & 1 ? 6 : 2,
                                 .kv_heads = 2,
                                 .dim = i & 2 ? 72 : 64,
                                 .dim_v = i & 2 ? 128 : 40,
                                 .q_len = 131,
                                 .k_len = 399,
                                 .ragged = i & 1,
                                 .lengths = i & 2,
                                 .sinks = i & 1,
                                 .softcap = i & 2 ? 2 : 0,
                                 .window = i & 4,
                                 .left = 201,
                                 .right = 4,
                                 .rope = i & 8 ? 32 : 0,
                                 .rope_first = i & 2 ? 8 : 0,
                                 .tables = i & 4,
                                 .interleaved = i & 1,
                                 .queries_only = true,
                                 .dtype = dtype,
                                 .out_dtype = i & 8 ? GPUNVME_OPS_F32 : dtype,
                                 .causal = !(i & 4)},
                i & 1 ? 16 : 40, i & 4 ? BSHD : BHSD);
    }
}

/* Of bf16, far beyond what f16 holds, beside keys of E4M3; the first row's are 0. */
static void queries_of_any_size_decode_over_e4m3(void **state)
{
    (void)state;
    for (int small = 0; small < 2; small++) {
        struct request r = with_defaults((struct request){.heads = 4,
                                                          .kv_heads = 2,
                                                          .dim = 64,
                                                          .q_len = 3,
                                                          .k_len = 130,
                                                          .scale = small ? 1e30f : 1e-30f,
                                                          .dtype = GPUNVME_OPS_BF16,
                                                          .out_dtype = GPUNVME_OPS_BF16,
                                                          .fp8_cache = true});
        struct problem p = problem_new(&r, &rng);

        for (int64_t i = 0; i < r.q_len; i++)
            for (int64_t h = 0; h < r.heads; h++)
                for (int64_t c = 0; c < r.dim; c++)
                    cpu_store(p.q.block, tensor_at(&p.q, 0, i, h, c), r.dtype,
                              (float)tensor_get(&p.q, 0, i, h, c) * (float)i *
                                  (small ? 1e-30f : 1e30f));
        in_cache(&p, padded_cache(&p, 16, BSHD, ALIGNED, ALIGNED));
    }
}

/* Pages only say where rows are: the bits are those of the same variant without them. */
static void pages_change_no_bit(void **state)
{
    struct request r = with_defaults((struct request){.batch = 2,
                                                      .heads = 4,
                                                      .kv_heads = 2,
                                                      .dim = 40,
                                                      .q_len = 33,
                                                      .k_len = 290,
                                                      .lengths = true});
    struct problem p = problem_new(&r, &rng);
    struct cache c = cache_new(&p, 16, BHSD);
    struct gpunvme_ops_variant v;
    void *whole = malloc(p.out.nbytes);

    (void)state;
    assert_non_null(whole);
    fill(&p, &c);
    for (unsigned i = 0; TEST_DEVICE == GPUNVME_OPS_CPU &&
                         !gpunvme_ops_variant(GPUNVME_OPS_ATTENTION, TEST_DEVICE, i, &v);
         i++) {
        if (!v.available)
            continue;
        run_attention(v.name, &p);
        memcpy(whole, p.out.block, p.out.nbytes);
        tensor_poison(&p.out);
        run(v.name, &p, &c);
        assert_memory_equal(p.out.block, whole, p.out.nbytes);
    }
    free(whole);
    cache_free(&c);
    problem_free(&p);
}

static size_t workspace_for(const struct gpunvme_attention_paged *x)
{
    /* (More threads, which more work may get, have more.) */
    struct gpunvme_ops_exec exec = {.device = TEST_DEVICE, .threads = 1};
    size_t nbytes = 0;

    expect_ok(gpunvme_attention_paged_workspace(x, &exec, &nbytes));
    return nbytes;
}

/* Of calls that differ in the longest that a sequence may become, by the variant that "auto" is. */
static void workspace_does_not_grow_with_lengths(void **state)
{
    struct request r = with_defaults((struct request){
        .batch = 2, .heads = 4, .kv_heads = 2, .dim = 64, .q_len = 1, .k_len = 4096});
    struct problem p;
    struct cache c;

    (void)state;
    for (int dtype = 0; dtype < GPUNVME_OPS_NDTYPES; dtype++) {
        struct gpunvme_attention_paged x;
        size_t nbytes;

        r.dtype = r.out_dtype = dtype;
        p = problem_new(&r, &rng);
        c = padded_cache(&p, 16, BSHD, 0, 0);
        x = paged_of(&p, &c);
        nbytes = workspace_for(&x);
        x.attention.k_len = 512;
        assert_int_equal(workspace_for(&x), nbytes);
        cache_free(&c);
        problem_free(&p);
    }
}

/* Where the new tokens of each sequence begin, and how many they are; returns the most. */
static int64_t count_tokens(const struct request *r, const int32_t *before, const int32_t *after,
                            int32_t *offsets, int32_t *counts)
{
    int64_t most = 0;

    offsets[0] = 0;
    for (int64_t b = 0; b < r->batch; b++) {
        counts[b] = after[b] - before[b];
        offsets[b + 1] = offsets[b] + counts[b];
        most = counts[b] > most ? counts[b] : most;
    }
    return most;
}

/* By which variant tokens are appended, and the elements behind each of their rows. */
struct how {
    const char *variant;
    int64_t pad;
};

/* Appends the tokens that make sequences `after` long, of which there were `before`. */
static void append(struct how how, const struct problem *p, const struct cache *c,
                   const int32_t *before, const int32_t *after, bool rope)
{
    const struct request *r = p->r;
    int32_t *offsets = integers_new(r->batch + 1), *counts = integers_new(r->batch + 1);
    int64_t new_len = count_tokens(r, before, after, offsets, counts), rows = offsets[r->batch];
    struct tensor k = tensor_new(1, rows, r->kv_heads, r->dim, r->layout, how.pad, r->dtype);
    struct tensor v = tensor_new(1, rows, r->kv_heads, r->dim_v, r->layout, how.pad, r->dtype);
    const void *k_pages = c->k.block, *v_pages = c->v.block;
    const int32_t *table = c->table, *lengths = after;
    size_t numbers = (size_t)r->batch * sizeof(int32_t);
    size_t table_nbytes = (size_t)(r->k_len * r->rope / 2) * sizeof(float);
    size_t factors = (size_t)((r->batch - 1) * p->descale_stride + r->kv_heads) * sizeof(float);
    struct gpunvme_ops_exec exec = {.device = TEST_DEVICE, .variant = how.variant};
    struct on_device d = {.count = 0};
    struct gpunvme_kv_append x;
    struct workspace w;

    for (int64_t b = 0; b < r->batch; b++)
        for (int64_t i = 0; i < counts[b]; i++) {
            struct place to = {0, offsets[b] + i}, from = k_place(p, b, before[b] + i);

            copy_scaled_row(&k, to, &p->k, from, p->descales[1], b * p->descale_stride);
            copy_scaled_row(&v, to, &p->v, from, p->descales[2], b * p->descale_stride);
        }
    put_cache(&d, c, r->batch, &k_pages, &v_pages, &table, &lengths, true);
    x = (struct gpunvme_kv_append){
        .batch = r->batch,
        .kv_heads = r->kv_heads,
        .dim = r->dim,
        .dim_v = r->dim_v,
        .new_len = new_len,
        .new_rows = rows,
        .k_len = r->k_len,
        .k = put(&d, k.block, k.nbytes, false),
        .v = put(&d, v.block, v.nbytes, false),
        .k_pages = (void *)(uintptr_t)k_pages,
        .v_pages = (void *)(uintptr_t)v_pages,
        .k_strides = k.strides,
        .v_strides = v.strides,
        .k_pages_strides = c->k.strides,
        .v_pages_strides = c->v.strides,
        .new_offsets = put(&d, offsets, numbers + sizeof(int32_t), false),
        .new_lengths = put(&d, counts, numbers, false),
        .k_lengths = lengths,
        .block_table = table,
        .ld_table = c->cols,
        .pages = c->k.batch,
        .page_size = c->page_size,
        .rope = {.dim = rope ? r->rope : 0,
                 .first = r->rope_first,
                 .base = r->base,
                 .interleaved = r->interleaved,
                 .cos = rope ? put(&d, p->cos, table_nbytes, false) : NULL,
                 .sin = rope ? put(&d, p->sin, table_nbytes, false) : NULL,
                 .rows = r->k_len,
                 .ld = r->rope / 2},
        .dtype = r->dtype,
        .cache_dtype = kv_dtype_of(r),
        .k_descale = put(&d, p->descales[1], factors, false),
        .v_descale = put(&d, p->descales[2], factors, false),
        .descale_stride = p->descale_stride,
    };
    expect_ok(gpunvme_kv_append_workspace(&x, &exec, &exec.workspace_nbytes));
    w = workspace_new(exec.workspace_nbytes);
    exec.workspace = w.data;
    expect_ok(gpunvme_kv_append(&x, &exec));
    take_back(&d);
    workspace_free(&w);
    free(k.block);
    free(v.block);
    free(offsets);
    free(counts);
}

/* A cache that has been filled otherwise, and the same one by two appends. */
static void append_twice(struct how how, struct request r)
{
    struct problem p = problem_new(&r, &rng);
    struct cache appended = padded_cache(&p, 16, r.layout, how.pad, how.pad), filled = appended;
    int32_t middle[3], none[3] = {0, 0, 0};

    filled.k.block = malloc(filled.k.nbytes);
    filled.v.block = malloc(filled.v.nbytes);
    assert_true(filled.k.block && filled.v.block);
    memset(filled.k.block, 0xff, filled.k.nbytes);
    memset(filled.v.block, 0xff, filled.v.nbytes);
    fill(&p, &filled);
    for (int64_t b = 0; b < 3; b++)
        middle[b] = appended.lengths[b] / (int32_t)(b + 1);
    append(how, &p, &appended, none, middle, false);
    append(how, &p, &appended, middle, appended.lengths, false);
    assert_memory_equal(appended.k.block, filled.k.block, filled.k.nbytes);
    assert_memory_equal(appended.v.block, filled.v.block, filled.v.nbytes);
    free(filled.k.block);
    free(filled.v.block);
    cache_free(&appended);
    problem_free(&p);
}

static void append_by_variant(const char *variant, void *arg)
{
    (void)arg;
    for (int dtype = 0; dtype < GPUNVME_OPS_NDTYPES; dtype++)
        for (int layout = BSHD; layout <= BHSD; layout++)
            for (int whole = !strcmp(variant, "vectorized"); whole < 2; whole++)
                for (int fp8 = 0; fp8 < 2; fp8++)
                    append_twice((struct how){variant, whole ? 16 : 3},
                                 with_defaults((struct request){.batch = 3,
                                                                .k_len = 70,
                                                                .dim = whole ? 32 : 17,
                                                                .dim_v = whole ? 16 : 9,
                                                                .lengths = true,
                                                                .dtype = dtype,
                                                                .fp8_cache = fp8,
                                                                .layout = (enum layout)layout}));
}

static void new_tokens_get_their_rows_and_nothing_else_is_written(void **state)
{
    (void)state;
    for_each_variant(GPUNVME_OPS_KV_APPEND, append_by_variant, NULL);
}

/* Token after token: each query sees what the same row of the whole call sees. */
static void append_and_decode(struct how how, struct request r)
{
    struct request one = r;
    struct problem p = problem_new(&r, &rng);
    struct cache c = cache_new(&p, 5, BSHD);
    int32_t none = 0, last = 0;

    if (how.pad % 8 == 0) {
        cache_free(&c);
        c = padded_cache(&p, 5, BSHD, how.pad, how.pad);
    }
    one.q_len = 1;
    one.queries_only = true;
    make_references(&p);
    for (int32_t t = 1; t <= r.k_len; t++) {
        struct problem step = p;

        c.lengths[0] = t;
        append(how, &p, &c, t > 1 ? &last : &none, c.lengths, r.rope);
        last = t;
        step.r = &one;
        step.q = tensor_row(&p.q, t - 1);
        step.out = tensor_row(&p.out, t - 1);
        step.lse = tensor_row(&p.lse, t - 1);
        run("auto", &step, &c);
    }
    compare_out("append and decode", &p);
    cache_free(&c);
    problem_free(&p);
}

static void rotate_by_variant(const char *variant, void *arg)
{
    (void)arg;
    for (int i = 0; i < 5; i++)
        append_and_decode((struct how){variant, strcmp(variant, "vectorized") != 0 ? 3 : 8},
                          with_defaults((struct request){.heads = 4,
                                                         .kv_heads = 2,
                                                         .dim = 32,
                                                         .q_len = 23,
                                                         .k_len = 23,
                                                         .rope = i ? 16 : 0,
                                                         .rope_first = i & 1 ? 8 : 0,
                                                         .tables = i & 1,
                                                         .interleaved = i & 2,
                                                         .causal = true}));
}

static void appending_and_decoding_is_attention_of_the_whole(void **state)
{
    (void)state;
    for_each_variant(GPUNVME_OPS_KV_APPEND, rotate_by_variant, NULL);
}

/* Of rounding to E4M3: each number, halves between two, what is next to them, and what is larger.
 */
static float hard_to_round(int64_t i)
{
    static const float beyond[] = {448, 463, 464, 465, 1e30f, INFINITY, NAN, 0};
    float low = cpu_from_e4m3((uint8_t)(i / 8 % 126)),
          high = cpu_from_e4m3((uint8_t)(i / 8 % 126 + 1));
    float half = (low + high) / 2, sign = i % 2 ? -1.0f : 1.0f;

    if (i >= 126 * 8)
        return sign * beyond[i / 2 % 8];
    return sign * (i / 2 % 4 == 0   ? low
                   : i / 2 % 4 == 1 ? half
                   : i / 2 % 4 == 2 ? nextafterf(half, low)
                                    : nextafterf(half, high));
}

#define HARD (126 * 8 + 16)

/* All of them as one key and value, and how they are stored by that factor. */
static void round_by_variant(const char *variant, void *arg)
{
    static const float factors[] = {1, 0.5f, 3.7f};
    const struct gpunvme_attention_strides strides = {HARD, HARD, HARD};
    float element[HARD];
    uint8_t number[HARD];

    (void)arg;
    for (size_t f = 0; f < sizeof(factors) / sizeof(factors[0]); f++) {
        struct gpunvme_ops_exec exec = {.device = TEST_DEVICE, .variant = variant};
        struct on_device d = {.count = 0};
        const int32_t length = 1, page = 0;
        struct gpunvme_kv_append x = {.batch = 1,
                                      .kv_heads = 1,
                                      .dim = HARD,
                                      .new_len = 1,
                                      .k_len = 1,
                                      .k_strides = strides,
                                      .k_pages_strides = strides,
                                      .ld_table = 1,
                                      .pages = 1,
                                      .page_size = 1,
                                      .dtype = GPUNVME_OPS_F32,
                                      .cache_dtype = GPUNVME_OPS_E4M3};
        struct workspace w;

        for (int64_t i = 0; i < HARD; i++)
            element[i] = hard_to_round(i) * factors[f];
        x.k = put(&d, element, sizeof(element), false);
        x.k_pages = put(&d, number, sizeof(number), true);
        x.k_lengths = put(&d, &length, sizeof(length), false);
        x.block_table = put(&d, &page, sizeof(page), false);
        x.k_descale = put(&d, &factors[f], sizeof(float), false);
        expect_ok(gpunvme_kv_append_workspace(&x, &exec, &exec.workspace_nbytes));
        w = workspace_new(exec.workspace_nbytes);
        exec.workspace = w.data;
        expect_ok(gpunvme_kv_append(&x, &exec));
        take_back(&d);
        workspace_free(&w);
        for (int64_t i = 0; i < HARD; i++) {
            int sign = isnan(element[i]) ? 0x80 : 0; /* a NaN may have either */

            if ((number[i] | sign) != (cpu_to_e4m3(element[i] / factors[f]) | sign))
                fail_msg("%s: %.9g by %g is stored as %02x", variant, (double)element[i],
                         (double)factors[f], number[i]);
        }
    }
}

static void elements_are_divided_by_their_factor_and_rounded_to_even(void **state)
{
    (void)state;
    for_each_variant(GPUNVME_OPS_KV_APPEND, round_by_variant, NULL);
}

static void pages_that_are_not_there_are_refused(void **state)
{
    struct request r = with_defaults((struct request){.q_len = 1, .k_len = 40});
    struct problem p = problem_new(&r, &rng);
    struct cache c = cache_new(&p, 16, BSHD);
    char room[8192] __attribute__((aligned(256)));
    const struct gpunvme_ops_exec exec = {
        .variant = "online", .workspace = room, .workspace_nbytes = sizeof(room)};
    struct gpunvme_attention_paged x;

    (void)state;
    fill(&p, &c);
    x = paged_of(&p, &c);
    expect_ok(gpunvme_attention_paged(&x, &exec));
    c.table[2] = (int32_t)c.k.batch;
    expect_status(gpunvme_attention_paged(&x, &exec), GPUNVME_OPS_ERR_INVALID, "page 2");
    c.table[2] = -1;
    expect_status(gpunvme_attention_paged(&x, &exec), GPUNVME_OPS_ERR_INVALID, "page 2");
    c.lengths[0] = 32;
    expect_ok(gpunvme_attention_paged(&x, &exec));
    c.lengths[0] = 41;
    expect_status(gpunvme_attention_paged(&x, &exec), GPUNVME_OPS_ERR_INVALID, "k_lengths[0]");
    cache_free(&c);
    problem_free(&p);
}

#ifdef OPS_TEST_CUDA
/* One query of each of five sequences that have up to k_len keys. */
static struct request decoding(int64_t k_len, int64_t heads, int64_t kv_heads, int64_t dim,
                               int64_t dim_v)
{
    return with_defaults((struct request){.batch = 5,
                                          .heads = heads,
                                          .kv_heads = kv_heads,
                                          .dim = dim,
                                          .dim_v = dim_v,
                                          .q_len = 1,
                                          .k_len = k_len,
                                          .dtype = GPUNVME_OPS_BF16,
                                          .out_dtype = GPUNVME_OPS_BF16,
                                          .causal = true,
                                          .aligned = true});
}

static void read_results(const struct call *call, struct problem *p)
{
    assert_int_equal(
        cudaMemcpy(p->out.block, call->x.attention.out, p->out.nbytes, cudaMemcpyDeviceToHost), 0);
    assert_int_equal(
        cudaMemcpy(p->lse.block, call->x.attention.lse, p->lse.nbytes, cudaMemcpyDeviceToHost), 0);
}

/* Also what the call before left there. */
static void call_with_any_workspace(const char *variant, struct problem *p, const struct cache *c)
{
    static const int bytes[] = {0xff, -1, 0, -1, -1, 0x3f};
    struct call call;

    if (!variant_takes(GPUNVME_OPS_ATTENTION_PAGED, variant, p->r->dtype, 0))
        return;
    make_references(p);
    fill(p, c);
    prepare(&call, variant, p, c);
    for (size_t i = 0; i < sizeof(bytes) / sizeof(bytes[0]); i++) {
        if (bytes[i] >= 0)
            assert_int_equal(cudaMemset(call.w.data, bytes[i], call.w.nbytes), 0);
        assert_int_equal(cudaMemset(call.x.attention.out, 0xff, p->out.nbytes), 0);
        expect_ok(gpunvme_attention_paged(&call.x, &call.exec));
        read_results(&call, p);
        compare_out(variant, p);
    }
    end(&call);
}

static void a_workspace_may_hold_anything(void **state)
{
    struct request r = decoding(700, 8, 2, 64, 64), of_latent = decoding(400, 128, 1, 576, 512);
    struct request of_many_heads = decoding(200, 128, 4, 64, 64);
    struct problem p = problem_new(&r, &rng);
    struct cache c = padded_cache(&p, 16, BSHD, 0, 0);

    (void)state;
    call_with_any_workspace("decode", &p, &c);
    cache_free(&c);
    problem_free(&p);
    p = problem_new(&of_many_heads, &rng);
    c = padded_cache(&p, 16, BSHD, 0, 0);
    call_with_any_workspace("hopper", &p, &c);
    cache_free(&c);
    problem_free(&p);
    p = problem_new(&of_latent, &rng);
    c = latent_cache(&p, true, 16, 0);
    call_with_any_workspace("mla", &p, &c);
    cache_free(&c);
    problem_free(&p);
}
#endif

#ifdef OPS_TEST_EMULATED
extern void (*emulate_kernels_before)(void);

/* What the kernels before write at last. */
static struct {
    struct call *call;
    const struct cache *c;
    int64_t batch;
} late;

static void write_lengths_and_table(void)
{
    size_t nbytes = (size_t)late.batch * sizeof(int32_t);

    memcpy((void *)(uintptr_t)late.call->x.attention.k_lengths, late.c->lengths, nbytes);
    memcpy((void *)(uintptr_t)late.call->x.block_table, late.c->table,
           nbytes * (size_t)late.c->cols);
}

static void lengths_and_the_table_may_be_anything_until_kernels_before_end(void **state)
{
    static const int bytes[] = {0xff, 0x7f, 0};
    struct request r = decoding(700, 8, 2, 64, 64);
    struct problem p = problem_new(&r, &rng);
    struct cache c;
    struct call call;

    (void)state;
    give_lengths(&p, true);
    c = padded_cache(&p, 16, BSHD, 0, 0);
    make_references(&p);
    fill(&p, &c);
    prepare(&call, "decode", &p, &c);
    late.call = &call;
    late.c = &c;
    late.batch = r.batch;
    for (size_t i = 0; i < sizeof(bytes) / sizeof(bytes[0]); i++) {
        size_t nbytes = (size_t)r.batch * sizeof(int32_t);

        memset((void *)(uintptr_t)call.x.attention.k_lengths, bytes[i], nbytes);
        memset((void *)(uintptr_t)call.x.block_table, bytes[i], nbytes * (size_t)c.cols);
        memset(call.x.attention.out, 0xff, p.out.nbytes);
        emulate_kernels_before = write_lengths_and_table;
        expect_ok(gpunvme_attention_paged(&call.x, &call.exec));
        read_results(&call, &p);
        compare_out("decode", &p);
    }
    end(&call);
    cache_free(&c);
    problem_free(&p);
}
#endif

#if defined(OPS_TEST_CUDA) && !defined(OPS_TEST_EMULATED)
/* A step that was captured is replayed with each of these lengths, of five sequences. */
static void replay(const char *variant, struct problem *p, const struct cache *c,
                   int32_t (*lengths)[5], int count)
{
    int32_t *own = p->k_lengths;
    struct call call;
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t step;

    fill(p, c);
    prepare(&call, variant, p, c);
    assert_int_equal(cudaStreamCreate(&stream), 0);
    call.exec.stream = stream;
    assert_int_equal(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), 0);
    expect_ok(gpunvme_attention_paged(&call.x, &call.exec));
    assert_int_equal(cudaStreamEndCapture(stream, &graph), 0);
    assert_int_equal(cudaGraphInstantiate(&step, graph, 0), 0);
    for (int i = 0; i < count; i++) {
        p->k_lengths = lengths[i];
        make_references(p);
        assert_int_equal(cudaMemcpy((void *)(uintptr_t)call.x.attention.k_lengths, lengths[i],
                                    sizeof(lengths[i]), cudaMemcpyHostToDevice),
                         0);
        assert_int_equal(cudaMemset(call.x.attention.out, 0xff, p->out.nbytes), 0);
        assert_int_equal(cudaGraphLaunch(step, stream), 0);
        assert_int_equal(cudaGraphLaunch(step, stream), 0);
        assert_int_equal(cudaStreamSynchronize(stream), 0);
        read_results(&call, p);
        compare_out(variant, p);
    }
    p->k_lengths = own;
    assert_int_equal(cudaGraphExecDestroy(step), 0);
    assert_int_equal(cudaGraphDestroy(graph), 0);
    assert_int_equal(cudaStreamDestroy(stream), 0);
    end(&call);
}

static void a_captured_step_follows_the_lengths(void **state)
{
    int32_t lengths[3][5] = {{3001, 0, 1, 64, 2000}, {1, 1, 1, 1, 1}, {7, 3001, 3001, 65, 127}};
    struct request r = decoding(3001, 8, 2, 64, 64);
    struct problem p = problem_new(&r, &rng);
    struct cache c = padded_cache(&p, 16, BSHD, 0, 0);

    (void)state;
    replay("decode", &p, &c, lengths, 3);
    replay("online", &p, &c, lengths, 3);
    replay("flash2", &p, &c, lengths, 3);
    if (variant_takes(GPUNVME_OPS_ATTENTION_PAGED, "hopper", r.dtype, 0))
        replay("hopper", &p, &c, lengths, 3);
    cache_free(&c);
    problem_free(&p);
}

static void a_captured_step_of_latent_vectors_follows_the_lengths(void **state)
{
    int32_t lengths[3][5] = {{1500, 0, 1, 64, 700}, {1, 1, 1, 1, 1}, {7, 1500, 1499, 65, 127}};
    struct request r = decoding(1500, 128, 1, 576, 512);
    struct problem p;
    struct cache c;

    (void)state;
    if (!variant_takes(GPUNVME_OPS_ATTENTION_PAGED, "mla", r.dtype, 0))
        skip();
    p = problem_new(&r, &rng);
    c = latent_cache(&p, false, 16, 0); /* any of them may get longer */
    replay("mla", &p, &c, lengths, 3);
    cache_free(&c);
    problem_free(&p);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_may_have_any_size_and_layout),
        cmocka_unit_test(one_query_decodes_with_every_type),
        cmocka_unit_test(features_are_those_of_attention),
        cmocka_unit_test(few_queries_decode_with_every_head_size),
        cmocka_unit_test(decoding_pages_may_have_any_size),
        cmocka_unit_test(lengths_may_differ_in_a_batch),
        cmocka_unit_test(keys_alone_may_have_lengths),
#ifndef OPS_TEST_EMULATED
        cmocka_unit_test(lengths_from_128_to_32k_share_a_batch),
#endif
        cmocka_unit_test(values_may_be_the_first_channels_of_keys),
        cmocka_unit_test(latent_vectors_decode_with_every_type),
        cmocka_unit_test(latent_vectors_decode_with_any_number_of_heads),
        cmocka_unit_test(latent_vectors_have_pages_of_any_size),
        cmocka_unit_test(decoding_latent_vectors_has_the_features_of_attention),
        cmocka_unit_test(decoding_has_the_features_of_attention),
        cmocka_unit_test(prefilling_pages_may_have_any_size),
        cmocka_unit_test(prefilling_has_the_features_of_attention),
        cmocka_unit_test(a_cache_of_e4m3_has_factors_by_sequence_and_head),
        cmocka_unit_test(a_cache_of_e4m3_has_the_features_of_attention),
        cmocka_unit_test(queries_of_any_size_decode_over_e4m3),
        cmocka_unit_test(sequences_without_keys_have_no_page),
        cmocka_unit_test(pages_change_no_bit),
        cmocka_unit_test(workspace_does_not_grow_with_lengths),
        cmocka_unit_test(new_tokens_get_their_rows_and_nothing_else_is_written),
        cmocka_unit_test(elements_are_divided_by_their_factor_and_rounded_to_even),
        cmocka_unit_test(appending_and_decoding_is_attention_of_the_whole),
        cmocka_unit_test(pages_that_are_not_there_are_refused),
#ifdef OPS_TEST_CUDA
        cmocka_unit_test(a_workspace_may_hold_anything),
#endif
#ifdef OPS_TEST_EMULATED
        cmocka_unit_test(lengths_and_the_table_may_be_anything_until_kernels_before_end),
#endif
#if defined(OPS_TEST_CUDA) && !defined(OPS_TEST_EMULATED)
        cmocka_unit_test(a_captured_step_follows_the_lengths),
        cmocka_unit_test(a_captured_step_of_latent_vectors_follows_the_lengths),
#endif
    };

    return no_gpu() ? 77 : cmocka_run_group_tests(tests, NULL, NULL);
}
