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

static struct cache cache_new(const struct problem *p, int64_t page_size, enum layout layout)
{
    const struct request *r = p->r;
    struct cache c = {.cols = (r->k_len + page_size - 1) / page_size, .page_size = page_size};
    int64_t pages = r->batch * c.cols + 3, next = 0;
    int32_t *order = integers_new(pages + 1);

    c.k = tensor_new(pages, page_size, r->kv_heads, r->dim, layout, 3, r->dtype);
    c.v = tensor_new(pages, page_size, r->kv_heads, r->dim_v, layout, 1, r->dtype);
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

static void cache_free(struct cache *c)
{
    free(c->k.block);
    free(c->v.block);
    free(c->table);
    free(c->lengths);
}

static struct place page_of(const struct cache *c, int64_t b, int64_t j)
{
    return (struct place){c->table[b * c->cols + j / c->page_size], j % c->page_size};
}

static void copy_row(const struct tensor *to, struct place a, const struct tensor *from,
                     struct place b)
{
    for (int64_t h = 0; h < to->heads; h++)
        for (int64_t c = 0; c < to->dim; c++)
            cpu_store(to->block, tensor_at(to, a.b, a.i, h, c), to->dtype,
                      (float)tensor_get(from, b.b, b.i, h, c));
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
                                        .cache_dtype = p->r->dtype};

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
    *v = put(d, *v, c->v.nbytes, results);
    *table = put(d, *table, (size_t)(batch * c->cols) * sizeof(int32_t), false);
    *lengths = put(d, *lengths, (size_t)batch * sizeof(int32_t), false);
}

static void run(const char *variant, const struct problem *p, const struct cache *c)
{
    struct gpunvme_ops_exec exec = {.device = TEST_DEVICE, .variant = variant};
    struct gpunvme_attention_paged x = paged_of(p, c);
    struct on_device d = {.count = 0};
    const void *k = x.attention.k, *v = x.attention.v;
    const int32_t *lengths = x.attention.k_lengths;
    struct workspace w;
    size_t nbytes = 77;

    put_cache(&d, c, p->r->batch, &k, &v, &x.block_table, &lengths, false);
    x.attention.k = x.attention.v = NULL;
    x.attention.k_lengths = NULL;
    put_attention(&d, p, &x.attention, true);
    x.attention.k = k;
    x.attention.v = v;
    x.attention.k_lengths = lengths;
    expect_ok(gpunvme_attention_paged_workspace(&x, &exec, &nbytes));
    w = workspace_new(nbytes);
    exec.workspace = w.data;
    exec.workspace_nbytes = w.nbytes;
    expect_ok(gpunvme_attention_paged(&x, &exec));
    take_back(&d);
    workspace_free(&w);
}

struct paged {
    struct problem *p;
    struct cache *c;
};

static void test_variant(const char *variant, void *arg)
{
    struct paged *x = arg;

    if (!variant_takes(GPUNVME_OPS_ATTENTION_PAGED, variant, x->p->r->dtype, 0))
        return;
    tensor_poison(&x->p->out);
    tensor_poison(&x->p->lse);
    run(variant, x->p, x->c);
    compare_out(variant, x->p);
    expect_padding(x->p, &x->p->out, true);
    expect_padding(x->p, &x->p->lse, true);
}

static void paged(struct request r, int64_t page_size, enum layout layout)
{
    struct problem p;
    struct cache c;

    r = with_defaults(r);
    p = problem_new(&r, &rng);
    c = cache_new(&p, page_size, layout);
    make_references(&p);
    fill(&p, &c);
    for_each_variant(GPUNVME_OPS_ATTENTION_PAGED, test_variant, &(struct paged){&p, &c});
    cache_free(&c);
    problem_free(&p);
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

static void sequences_without_keys_have_no_page(void **state)
{
    (void)state;
    paged((struct request){.batch = 2, .q_len = 3, .k_len = 0}, 16, BSHD);
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

/* Appends the tokens that make sequences `after` long, of which there were `before`. */
static void append(const struct problem *p, const struct cache *c, const int32_t *before,
                   const int32_t *after, bool rope)
{
    const struct request *r = p->r;
    int32_t *offsets = integers_new(r->batch + 1), *counts = integers_new(r->batch + 1);
    int64_t new_len = count_tokens(r, before, after, offsets, counts), rows = offsets[r->batch];
    struct tensor k = tensor_new(1, rows, r->kv_heads, r->dim, r->layout, 2, r->dtype);
    struct tensor v = tensor_new(1, rows, r->kv_heads, r->dim_v, r->layout, 3, r->dtype);
    const void *k_pages = c->k.block, *v_pages = c->v.block;
    const int32_t *table = c->table, *lengths = after;
    size_t numbers = (size_t)r->batch * sizeof(int32_t);
    struct gpunvme_ops_exec exec = {.device = TEST_DEVICE};
    struct on_device d = {.count = 0};
    struct gpunvme_kv_append x;
    struct workspace w;

    for (int64_t b = 0; b < r->batch; b++)
        for (int64_t i = 0; i < counts[b]; i++) {
            struct place to = {0, offsets[b] + i}, from = k_place(p, b, before[b] + i);

            copy_row(&k, to, &p->k, from);
            copy_row(&v, to, &p->v, from);
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
        .rope = {.dim = rope ? r->rope : 0, .base = r->base, .interleaved = r->interleaved},
        .dtype = r->dtype,
        .cache_dtype = r->dtype,
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

static void new_tokens_get_their_rows_and_nothing_else_is_written(void **state)
{
    (void)state;
    for (int dtype = 0; dtype < GPUNVME_OPS_NDTYPES; dtype++)
        for (int layout = BSHD; layout <= BHSD; layout++) {
            struct request r = with_defaults((struct request){.batch = 3,
                                                              .k_len = 70,
                                                              .dim_v = 9,
                                                              .lengths = true,
                                                              .dtype = dtype,
                                                              .layout = (enum layout)layout});
            struct problem p = problem_new(&r, &rng);
            struct cache appended = cache_new(&p, 16, (enum layout)layout), filled = appended;
            int32_t middle[3], none[3] = {0, 0, 0};

            filled.k.block = malloc(filled.k.nbytes);
            filled.v.block = malloc(filled.v.nbytes);
            assert_true(filled.k.block && filled.v.block);
            memset(filled.k.block, 0xff, filled.k.nbytes);
            memset(filled.v.block, 0xff, filled.v.nbytes);
            fill(&p, &filled);
            for (int64_t b = 0; b < 3; b++)
                middle[b] = appended.lengths[b] / (int32_t)(b + 1);
            append(&p, &appended, none, middle, false);
            append(&p, &appended, middle, appended.lengths, false);
            assert_memory_equal(appended.k.block, filled.k.block, filled.k.nbytes);
            assert_memory_equal(appended.v.block, filled.v.block, filled.v.nbytes);
            free(filled.k.block);
            free(filled.v.block);
            cache_free(&appended);
            problem_free(&p);
        }
}

/* Token after token: each query sees what the same row of the whole call sees. */
static void appending_and_decoding_is_attention_of_the_whole(void **state)
{
    (void)state;
    for (int rope = 0; rope < 2; rope++) {
        struct request r = with_defaults((struct request){.heads = 4,
                                                          .kv_heads = 2,
                                                          .dim = 32,
                                                          .q_len = 37,
                                                          .k_len = 37,
                                                          .rope = rope ? 32 : 0,
                                                          .interleaved = true,
                                                          .causal = true});
        struct request one = r;
        struct problem p = problem_new(&r, &rng);
        struct cache c = cache_new(&p, 5, BSHD);
        int32_t none = 0, last = 0;

        one.q_len = 1;
        one.queries_only = true;
        make_references(&p);
        for (int32_t t = 1; t <= 37; t++) {
            struct problem step = p;

            c.lengths[0] = t;
            append(&p, &c, t > 1 ? &last : &none, c.lengths, rope);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_may_have_any_size_and_layout),
        cmocka_unit_test(one_query_decodes_with_every_type),
        cmocka_unit_test(features_are_those_of_attention),
        cmocka_unit_test(sequences_without_keys_have_no_page),
        cmocka_unit_test(pages_change_no_bit),
        cmocka_unit_test(new_tokens_get_their_rows_and_nothing_else_is_written),
        cmocka_unit_test(appending_and_decoding_is_attention_of_the_whole),
        cmocka_unit_test(pages_that_are_not_there_are_refused),
    };

    return no_gpu() ? 77 : cmocka_run_group_tests(tests, NULL, NULL);
}
