/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Attention backwards, every variant that this machine has, against its formulas in f64, and those
 * against differences of the forward formulas.
 */
#include "attention_test.h"

static struct base_random rng = {23};

/* Gradients of Q, K, V and the sinks by the formulas, as wide as the tensors. */
struct gradients {
    double *q, *k, *v, *sinks;
};

/* A backward problem: the forward one, the gradient of its result, and those that are made. */
struct backward {
    struct problem f;
    struct tensor grad_out, grad_q, grad_k, grad_v;
    float *grad_sinks;
    struct gradients exact, plain;
};

static struct tensor like(const struct tensor *x, int64_t pad, int dtype, enum layout layout)
{
    return tensor_new(x->batch, x->rows, x->heads, x->dim, layout, pad, dtype);
}

static int64_t packed_at(const struct tensor *x, struct place at, int64_t h)
{
    return ((at.b * x->rows + at.i) * x->heads + h) * x->dim;
}

static struct gradients gradients_new(const struct problem *p)
{
    return (struct gradients){
        doubles_new(p->q.batch * p->q.rows * p->q.heads * p->q.dim),
        doubles_new(p->k.batch * p->k.rows * p->k.heads * p->k.dim),
        doubles_new(p->v.batch * p->v.rows * p->v.heads * p->v.dim),
        doubles_new(p->r->heads),
    };
}

static void gradients_free(struct gradients *g)
{
    free(g->q);
    free(g->k);
    free(g->v);
    free(g->sinks);
}

static struct backward backward_new(const struct request *r)
{
    struct backward x = {.f = problem_new(r, &rng)};
    const struct problem *p = &x.f;

    x.grad_out = like(&p->out, pad_of(r, 4), r->out_dtype, r->layout);
    x.grad_q = like(&p->q, pad_of(r, 1), r->dtype, BHSD);
    x.grad_k = like(&p->k, pad_of(r, 2), r->dtype, BSHD);
    x.grad_v = like(&p->v, pad_of(r, 3), r->dtype, r->layout);
    for (int64_t b = 0; b < r->batch; b++)
        for (int64_t i = 0; i < q_len_of(p, b); i++)
            tensor_random_row(&x.grad_out, q_place(p, b, i).b, q_place(p, b, i).i, &rng);
    if (r->sinks) {
        x.grad_sinks = malloc((size_t)r->heads * sizeof(float));
        assert_non_null(x.grad_sinks);
        memset(x.grad_sinks, 0xff, (size_t)r->heads * sizeof(float));
    }
    x.exact = gradients_new(p);
    x.plain = gradients_new(p);
    return x;
}

static void backward_free(struct backward *x)
{
    problem_free(&x->f);
    free(x->grad_out.block);
    free(x->grad_q.block);
    free(x->grad_k.block);
    free(x->grad_v.block);
    free(x->grad_sinks);
    gradients_free(&x->exact);
    gradients_free(&x->plain);
}

/*
 * The lse that a call is given. For f32 it is that of exact scores, rounded: its error and those of
 * the scores that kernels make are not the same.
 */
static double given_lse(const struct problem *p, const struct arithmetic *a,
                        const struct keys *unrounded, int64_t b, int64_t h, int64_t i,
                        const double *scores)
{
    const struct arithmetic exact = {.exact = true, .dtype = a->dtype};
    int64_t k_len = k_len_of(p, b);
    double *again, lse;

    if (a->exact || a->dtype != GPUNVME_OPS_F32)
        return lse_of(p, a, h, scores, k_len);
    again = doubles_new(k_len);
    scores_of(p, &exact, unrounded, b, h, i, again);
    lse = in_f32(a, lse_of(p, &exact, h, again, k_len));
    free(again);
    return lse;
}

/*
 * One query of a head: its share of all gradients of rotated rows. `unrounded` are the keys of
 * exact arithmetic.
 */
static void add_query(const struct backward *x, const struct arithmetic *a, const struct keys *keys,
                      const struct keys *unrounded, int64_t b, int64_t h, int64_t i,
                      struct gradients *g)
{
    const struct problem *p = &x->f;
    const struct request *r = p->r;
    int64_t q_len = q_len_of(p, b), k_len = k_len_of(p, b), kh = h / (r->heads / r->kv_heads);
    double *scores = doubles_new(k_len), *grads = doubles_new(k_len), *q = doubles_new(r->dim);
    double *grad_out = doubles_new(r->dim_v), lse, delta = 0, scale = scale_of(r),
           cap = (double)r->softcap;
    struct place at = q_place(p, b, i);

    scores_of(p, a, keys, b, h, i, scores);
    lse = given_lse(p, a, unrounded, b, h, i, scores);
    rotated(p, a, &p->q, at, h, i + k_len - q_len, r->rope, q);
    rotated(p, a, &x->grad_out, at, h, 0, false, grad_out);
    for (int64_t j = 0; j < k_len; j++) {
        double weight = stored(a, a->dtype, exp(in_f32(a, scores[j] - lse)));

        if (scores[j] == -INFINITY)
            continue;
        grads[j] = stored(a, a->dtype, dot(a, grad_out, keys->v + j * r->dim_v, r->dim_v));
        delta = in_f32(a, delta + in_f32(a, weight * grads[j]));
        add_row(a, g->v + packed_at(&p->v, k_place(p, b, j), kh), weight, grad_out, r->dim_v);
    }
    for (int64_t j = 0; j < k_len; j++) {
        double slope = cap > 0 ? 1 - scores[j] / cap * (scores[j] / cap) : 1, grad, weight;

        if (scores[j] == -INFINITY)
            continue;
        weight = in_f32(a, exp(in_f32(a, scores[j] - lse)));
        grad = stored(a, a->dtype, in_f32(a, weight * in_f32(a, grads[j] - delta)) * slope);
        grad = in_f32(a, scale * grad);
        add_row(a, g->q + packed_at(&p->q, at, h), grad, keys->k + j * r->dim, r->dim);
        add_row(a, g->k + packed_at(&p->k, k_place(p, b, j), kh), grad, q, r->dim);
    }
    if (p->sinks)
        g->sinks[h] -= exp((double)p->sinks[h] - lse) * delta;
    free(scores);
    free(grads);
    free(q);
    free(grad_out);
}

/* A row's gradient from that of the rotated row. */
static void turn_back(const struct problem *p, const struct arithmetic *a, int64_t position,
                      bool rotate, double *row)
{
    const struct request *r = p->r;

    for (int64_t c = 0; rotate && c < r->rope / 2; c++) {
        int64_t one = r->rope_first + (r->interleaved ? 2 * c : c);
        int64_t two = one + (r->interleaved ? 1 : r->rope / 2);
        double angle = angle_of(r, (double)position, c), u = row[one], v = row[two];

        row[one] = in_f32(a, u * cos(angle) + v * sin(angle));
        row[two] = in_f32(a, v * cos(angle) - u * sin(angle));
    }
}

static void make_gradients(const struct backward *x, const struct arithmetic *a,
                           struct gradients *g)
{
    const struct arithmetic exact = {.exact = true, .dtype = a->dtype};
    const struct problem *p = &x->f;
    const struct request *r = p->r;
    int64_t group = r->heads / r->kv_heads;

    for (int64_t b = 0; b < r->batch; b++)
        for (int64_t kh = 0; kh < r->kv_heads; kh++) {
            struct keys keys = keys_new(p, a, b, kh), unrounded = keys_new(p, &exact, b, kh);
            int64_t q_len = q_len_of(p, b), k_len = k_len_of(p, b);

            for (int64_t i = 0; i < q_len; i++)
                for (int64_t h = kh * group; h < (kh + 1) * group; h++) {
                    add_query(x, a, &keys, &unrounded, b, h, i, g);
                    turn_back(p, a, i + k_len - q_len, r->rope,
                              g->q + packed_at(&p->q, q_place(p, b, i), h));
                }
            for (int64_t j = 0; j < k_len; j++)
                turn_back(p, a, j, r->rope && !r->queries_only,
                          g->k + packed_at(&p->k, k_place(p, b, j), kh));
            keys_free(&keys);
            keys_free(&unrounded);
        }
}

static struct gpunvme_attention_grad descriptor_of(const struct backward *x)
{
    return (struct gpunvme_attention_grad){.forward = attention_of(&x->f),
                                           .grad_out = x->grad_out.block,
                                           .grad_q = x->grad_q.block,
                                           .grad_k = x->grad_k.block,
                                           .grad_v = x->grad_v.block,
                                           .grad_sinks = x->grad_sinks,
                                           .grad_out_strides = x->grad_out.strides,
                                           .grad_q_strides = x->grad_q.strides,
                                           .grad_k_strides = x->grad_k.strides,
                                           .grad_v_strides = x->grad_v.strides};
}

/* The forward call, on the CPU: what it gives is an operand of what is tested here. */
static void run_forward(const struct backward *x)
{
    struct gpunvme_attention f = attention_of(&x->f);
    struct gpunvme_ops_exec exec = {.variant = "naive"};
    void *room;

    expect_ok(gpunvme_attention_workspace(&f, &exec, &exec.workspace_nbytes));
    room = aligned_alloc(GPUNVME_OPS_WORKSPACE_ALIGN, exec.workspace_nbytes + 256);
    assert_non_null(room);
    exec.workspace = room;
    expect_ok(gpunvme_attention(&f, &exec));
    free(room);
}

static void run(const char *variant, const struct backward *x, struct gpunvme_attention_grad p)
{
    struct gpunvme_ops_exec exec = {.device = TEST_DEVICE,
                                    .variant = variant,
                                    .threads = x->f.r->threads,
                                    .flags = x->f.r->same_bits ? GPUNVME_OPS_DETERMINISTIC : 0};
    size_t sinks = (size_t)x->f.r->heads * sizeof(float), nbytes = 77;
    struct on_device d = {.count = 0};
    struct workspace w;

    put_attention(&d, &x->f, &p.forward, false);
    p.grad_out = put(&d, p.grad_out, x->grad_out.nbytes, false);
    p.grad_q = put(&d, p.grad_q, x->grad_q.nbytes, true);
    p.grad_k = put(&d, p.grad_k, x->grad_k.nbytes, true);
    p.grad_v = put(&d, p.grad_v, x->grad_v.nbytes, true);
    p.grad_sinks = put(&d, p.grad_sinks, sinks, true);
    expect_ok(gpunvme_attention_backward_workspace(&p, &exec, &nbytes));
    w = workspace_new(nbytes);
    exec.workspace = w.data;
    exec.workspace_nbytes = w.nbytes;
    expect_ok(gpunvme_attention_backward(&p, &exec));
    take_back(&d);
    workspace_free(&w);
}

/* A gradient of Q (`queries`) or of K or V. */
static void compare(const char *variant, const char *what, const struct problem *p,
                    const struct tensor *x, bool queries, const double *exact, const double *plain)
{
    const struct arithmetic a = {.dtype = x->dtype};
    struct errors e = {0};

    for (int64_t b = 0; b < p->r->batch; b++)
        for (int64_t i = 0; i < (queries ? q_len_of(p, b) : k_len_of(p, b)); i++)
            for (int64_t h = 0; h < x->heads; h++) {
                struct place at = queries ? q_place(p, b, i) : k_place(p, b, i);
                int64_t n = packed_at(x, at, h);

                for (int64_t c = 0; c < x->dim; c++)
                    errors_add(&e, tensor_get(x, at.b, at.i, h, c),
                               stored(&a, x->dtype, plain[n + c]), exact[n + c]);
            }
    if (!(e.got <= allowed(&e, x->dtype)))
        fail_msg("%s, %s: %s is off by %g, and may be by %g", variant, told(p->r), what, e.got,
                 allowed(&e, x->dtype));
}

static void compare_sinks(const char *variant, const struct backward *x)
{
    /* A sum of as many products as there are rows, of which each may be off as the result is. */
    for (int64_t h = 0; x->grad_sinks && h < x->f.r->heads; h++) {
        double error = fabs((double)x->grad_sinks[h] - x->exact.sinks[h]);
        double share = x->f.r->dtype == GPUNVME_OPS_F32 ? 0x1p-18 : rounding(x->f.r->dtype, 2);
        double rows = (double)(x->f.r->q_len * x->f.r->batch);

        if (!(error <= share * (fabs(x->exact.sinks[h]) + sqrt(rows))))
            fail_msg("%s, %s: grad_sinks[%lld] is %g, not %g", variant, told(x->f.r), (long long)h,
                     (double)x->grad_sinks[h], x->exact.sinks[h]);
    }
}

/* A rung may refuse a call; where this says that it takes it, a refusal fails the test. */
static bool takes(const char *variant, const struct request *r)
{
    if (TEST_DEVICE == GPUNVME_OPS_CUDA && !strcmp(variant, "flash") &&
        (r->dim > 128 || r->dim_v > 128))
        return false;
    return variant_takes(GPUNVME_OPS_ATTENTION_BACKWARD, variant, r->dtype, 0);
}

static void test_variant(const char *variant, void *arg)
{
    struct backward *x = arg;

    if (!takes(variant, x->f.r))
        return;
    tensor_poison(&x->grad_q);
    tensor_poison(&x->grad_k);
    tensor_poison(&x->grad_v);
    run(variant, x, descriptor_of(x));
    compare(variant, "grad_q", &x->f, &x->grad_q, true, x->exact.q, x->plain.q);
    compare(variant, "grad_k", &x->f, &x->grad_k, false, x->exact.k, x->plain.k);
    compare(variant, "grad_v", &x->f, &x->grad_v, false, x->exact.v, x->plain.v);
    compare_sinks(variant, x);
    expect_padding(&x->f, &x->grad_q, true);
    expect_padding(&x->f, &x->grad_k, false);
    expect_padding(&x->f, &x->grad_v, false);
}

static void backward_in_type(struct request r)
{
    const struct arithmetic exact = {.exact = true, .dtype = r.dtype}, plain = {.dtype = r.dtype};
    struct backward x;

    r = with_defaults(r);
    x = backward_new(&r);
    make_gradients(&x, &exact, &x.exact);
    make_gradients(&x, &plain, &x.plain);
    run_forward(&x);
    for_each_variant(GPUNVME_OPS_ATTENTION_BACKWARD, test_variant, &x);
    backward_free(&x);
}

/* Kernels for 16-bit types are others than those for f32. */
static void backward(struct request r)
{
    int last = TEST_DEVICE == GPUNVME_OPS_CPU ? GPUNVME_OPS_F32 : GPUNVME_OPS_BF16;

    for (; r.dtype <= last; r.dtype++) {
        r.out_dtype = r.dtype == GPUNVME_OPS_BF16 ? GPUNVME_OPS_BF16 : GPUNVME_OPS_F32;
        r.same_bits = r.dtype == GPUNVME_OPS_F16;
        r.aligned = r.dtype == GPUNVME_OPS_BF16;
        backward_in_type(r);
    }
}

static const int64_t lengths[][2] = {{1, 1}, {1, 7}, {7, 1}, {13, 13}, {31, 211}, {131, 47}};
#define NLENGTHS (sizeof(lengths) / sizeof(lengths[0]))

static void lengths_may_be_anything(void **state)
{
    (void)state;
    for (size_t i = 0; i < NLENGTHS; i++)
        for (int causal = 0; causal < 2; causal++)
            backward(
                (struct request){.q_len = lengths[i][0], .k_len = lengths[i][1], .causal = causal});
}

static void without_queries_or_keys_gradients_are_0(void **state)
{
    (void)state;
    backward((struct request){.q_len = 5, .k_len = 0, .sinks = true});
    backward((struct request){.q_len = 0, .k_len = 5, .sinks = true});
}

static void every_type_and_head_size_is_right(void **state)
{
    static const int64_t dims[][2] = {{1, 1},   {64, 64},   {128, 128},
                                      {72, 40}, {256, 256}, {136, 200}};

    (void)state;
    for (int dtype = 0; dtype < GPUNVME_OPS_NDTYPES; dtype++)
        for (size_t i = 0; i < sizeof(dims) / sizeof(dims[0]); i++)
            for (int f32 = 0; f32 < 2; f32++)
                backward_in_type((struct request){.heads = 1,
                                                  .dim = dims[i][0],
                                                  .dim_v = dims[i][1],
                                                  .q_len = 37,
                                                  .k_len = 67,
                                                  .dtype = dtype,
                                                  .out_dtype = f32 ? GPUNVME_OPS_F32 : dtype});
}

static void heads_share_keys_and_values(void **state)
{
    static const int64_t heads[][2] = {{1, 1}, {6, 2}, {6, 1}};

    (void)state;
    for (size_t i = 0; i < sizeof(heads) / sizeof(heads[0]); i++)
        for (int layout = BSHD; layout <= BHSD; layout++)
            backward((struct request){.batch = 2,
                                      .heads = heads[i][0],
                                      .kv_heads = heads[i][1],
                                      .q_len = 43,
                                      .k_len = 59,
                                      .layout = (enum layout)layout,
                                      .causal = true});
}

static void every_feature_has_its_slope(void **state)
{
    (void)state;
    for (int i = 0; i < 16; i++)
        backward((struct request){.dim = 24,
                                  .dim_v = 16,
                                  .q_len = 61,
                                  .k_len = 47,
                                  .scale = i & 1 ? 2.5f : 0,
                                  .softcap = i & 2 ? 1.5f : 0,
                                  .sinks = i & 4,
                                  .window = i & 8,
                                  .left = 9,
                                  .right = i & 1 ? 3 : INT64_MAX,
                                  .causal = i & 2,
                                  .rope = i & 4 ? 12 : 0,
                                  .rope_first = 3,
                                  .interleaved = i & 8,
                                  .tables = i & 4 && i & 2,
                                  .queries_only = i & 1});
}

/* Tiles of 256 channels are smaller than others, and divided in another way. Here are several. */
static void every_feature_takes_wide_heads(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i++) {
        int dtype = (i + i / 2) % 2 ? GPUNVME_OPS_F16 : GPUNVME_OPS_BF16;

        /* 1, 2, 4 and 7 have every feature and type between them. */
        if (FEWER_CASES && __builtin_parity((unsigned)i) == 0)
            continue;
        backward_in_type((struct request){.batch = 2,
                                          .heads = 2,
                                          .kv_heads = i & 1 ? 1 : 2,
                                          .dim = 256,
                                          .dim_v = i & 2 ? 256 : 192,
                                          .q_len = i & 4 ? 70 : 130,
                                          .k_len = i & 2 ? 140 : 100,
                                          .dtype = dtype,
                                          .out_dtype = dtype,
                                          .softcap = i & 1 ? 1.5f : 0,
                                          .sinks = i & 2,
                                          .window = i & 4,
                                          .left = 50,
                                          .right = 9,
                                          .causal = i & 1,
                                          .ragged = (i & 6) == 2,
                                          .lengths = (i & 6) == 6,
                                          .rope = (i & 3) == 3 ? 64 : 0,
                                          .aligned = !(i & 2),
                                          .same_bits = i & 4});
    }
}

static void sequences_may_have_lengths_of_their_own(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i++)
        backward((struct request){.batch = 4,
                                  .heads = 4,
                                  .kv_heads = i & 1 ? 2 : 4,
                                  .q_len = 41,
                                  .k_len = 53,
                                  .ragged = i & 1,
                                  .lengths = i & 2 || !(i & 1),
                                  .sinks = true,
                                  .causal = i & 4});
}

/* The sum of out * grad_out, whose gradients are those of the call. */
static double loss_of(const struct backward *x)
{
    const struct arithmetic exact = {.exact = true, .dtype = GPUNVME_OPS_F32};
    const struct request *r = x->f.r;
    double sum = 0;

    make_reference(&x->f, &exact, x->f.exact, x->f.exact_lse);
    for (int64_t i = 0; i < r->q_len; i++)
        for (int64_t h = 0; h < r->heads; h++)
            for (int64_t c = 0; c < r->dim_v; c++)
                sum += x->f.exact[exact_at(r, 0, i, h) * r->dim_v + c] *
                       tensor_get(&x->grad_out, 0, i, h, c);
    return sum;
}

/* By how much the loss changes with a number, by a central difference. */
static double slope_of(const struct backward *x, float *number)
{
    float before = *number, above = before + 0x1p-9f, below = before - 0x1p-9f;
    double more, less;

    *number = above;
    more = loss_of(x);
    *number = below;
    less = loss_of(x);
    *number = before;
    return (more - less) / ((double)above - (double)below);
}

static void expect_slopes(const struct backward *x, const struct tensor *of,
                          const struct tensor *grad)
{
    for (int64_t i = 0; i < of->rows; i++)
        for (int64_t h = 0; h < of->heads; h++)
            for (int64_t c = 0; c < of->dim; c++) {
                float *number = (float *)of->block + tensor_at(of, 0, i, h, c);

                if (!(fabs(slope_of(x, number) - tensor_get(grad, 0, i, h, c)) <= 2e-4))
                    fail_msg("%s: the slope is %g, and the gradient %g", told(x->f.r),
                             slope_of(x, number), tensor_get(grad, 0, i, h, c));
            }
}

static void gradients_are_the_slopes_of_the_result(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i++) {
        struct request r = with_defaults((struct request){.heads = 2,
                                                          .kv_heads = 1,
                                                          .dim = 4,
                                                          .dim_v = 3,
                                                          .q_len = 5,
                                                          .k_len = 6,
                                                          .scale = 1.5f,
                                                          .softcap = i & 1 ? 2 : 0,
                                                          .sinks = i & 2,
                                                          .rope = i & 4 ? 4 : 0,
                                                          .interleaved = i & 1,
                                                          .window = i & 2,
                                                          .left = 2,
                                                          .right = 1,
                                                          .causal = i & 1});
        struct backward x = backward_new(&r);

        run_forward(&x);
        run("auto", &x, descriptor_of(&x));
        expect_slopes(&x, &x.f.q, &x.grad_q);
        expect_slopes(&x, &x.f.k, &x.grad_k);
        expect_slopes(&x, &x.f.v, &x.grad_v);
        for (int64_t h = 0; x.grad_sinks && h < r.heads; h++)
            assert_true(fabs(slope_of(&x, &x.f.sinks[h]) - (double)x.grad_sinks[h]) <= 2e-4);
        backward_free(&x);
    }
}

static void gradients_that_are_not_wanted_are_left_out(void **state)
{
    struct request r =
        with_defaults((struct request){.q_len = 21, .k_len = 31, .sinks = true, .causal = true});
    struct backward x = backward_new(&r);
    size_t nbytes = x.grad_q.nbytes + x.grad_k.nbytes + x.grad_v.nbytes;
    char *all = malloc(nbytes), *at;

    (void)state;
    assert_non_null(all);
    run_forward(&x);
    run("auto", &x, descriptor_of(&x));
    for (int wanted = 0; wanted < 16; wanted++) {
        struct gpunvme_attention_grad p = descriptor_of(&x);
        struct tensor *grads[] = {&x.grad_q, &x.grad_k, &x.grad_v};
        void **pointers[] = {&p.grad_q, &p.grad_k, &p.grad_v};

        at = all;
        for (int i = 0; i < 3; i++) {
            memcpy(at, grads[i]->block, grads[i]->nbytes);
            at += grads[i]->nbytes;
            if (!(wanted & 1 << i))
                *pointers[i] = NULL;
        }
        if (!(wanted & 8))
            p.grad_sinks = NULL;
        run("auto", &x, p);
        at = all;
        for (int i = 0; i < 3; i++) {
            assert_memory_equal(grads[i]->block, at, grads[i]->nbytes);
            at += grads[i]->nbytes;
        }
    }
    free(all);
    backward_free(&x);
}

/* All gradients, one behind the other. */
static void copy_gradients(const struct backward *x, char *to)
{
    const struct tensor *grads[] = {&x->grad_q, &x->grad_k, &x->grad_v};

    for (int i = 0; i < 3; i++) {
        memcpy(to, grads[i]->block, grads[i]->nbytes);
        to += grads[i]->nbytes;
    }
}

static void expect_same_bits(int dtype, int64_t dim)
{
    struct request r = with_defaults((struct request){.batch = 2,
                                                      .heads = 6,
                                                      .kv_heads = 3,
                                                      .dim = dim,
                                                      .q_len = 150,
                                                      .k_len = 233,
                                                      .dtype = dtype,
                                                      .out_dtype = dtype,
                                                      .same_bits = true,
                                                      .causal = true});
    struct backward x = backward_new(&r);
    size_t nbytes = x.grad_q.nbytes + x.grad_k.nbytes + x.grad_v.nbytes;
    char *first = malloc(nbytes), *again = malloc(nbytes);
    struct gpunvme_ops_variant v;

    assert_true(first && again);
    run_forward(&x);
    for (unsigned i = 1; !gpunvme_ops_variant(GPUNVME_OPS_ATTENTION_BACKWARD, TEST_DEVICE, i, &v);
         i++)
        for (r.threads = 0; v.available && v.deterministic && v.dtypes & 1u << dtype &&
                            takes(v.name, &r) && r.threads < (FEWER_CASES ? 2 : 4);
             r.threads++) {
            run(v.name, &x, descriptor_of(&x));
            copy_gradients(&x, r.threads ? again : first);
            if (r.threads)
                assert_memory_equal(again, first, nbytes);
        }
    free(first);
    free(again);
    backward_free(&x);
}

static void gradients_are_the_same_bits_in_every_run(void **state)
{
    (void)state;
    expect_same_bits(GPUNVME_OPS_F32, 40);
    expect_same_bits(GPUNVME_OPS_BF16, 40);
    expect_same_bits(GPUNVME_OPS_BF16, 128);
    expect_same_bits(GPUNVME_OPS_BF16, 256);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lengths_may_be_anything),
        cmocka_unit_test(without_queries_or_keys_gradients_are_0),
        cmocka_unit_test(every_type_and_head_size_is_right),
        cmocka_unit_test(heads_share_keys_and_values),
        cmocka_unit_test(every_feature_has_its_slope),
        cmocka_unit_test(every_feature_takes_wide_heads),
        cmocka_unit_test(sequences_may_have_lengths_of_their_own),
        cmocka_unit_test(gradients_are_the_slopes_of_the_result),
        cmocka_unit_test(gradients_that_are_not_wanted_are_left_out),
        cmocka_unit_test(gradients_are_the_same_bits_in_every_run),
    };

    return no_gpu() ? 77 : cmocka_run_group_tests(tests, NULL, NULL);
}
