/* SPDX-License-Identifier: BSD-3-Clause
 *
 * RoPE by itself, every variant that this machine has, against f64.
 */
#include "rows_test.h"

static struct base_random rng;

struct request {
    int64_t rows, heads, dim;
    int first, rotated, dtype;
    bool interleaved, tables, positions, backward, in_place, aligned;
};

#define TABLE_ROWS 64

struct rope_data {
    struct mat x, y, before, cosines, sines;
    int32_t *positions;
};

static struct rope_data make(const struct request *q)
{
    int64_t cols = q->heads * q->dim;
    struct rope_data d = {.x = mat_new(q->rows, cols, q->aligned ? 8 : 3, 1, q->dtype),
                          .y = mat_new(q->rows, cols, q->aligned ? 16 : 5, 1, q->dtype),
                          .cosines = mat_new(TABLE_ROWS, q->rotated / 2, 1, 1, GPUNVME_OPS_F32),
                          .sines = mat_new(TABLE_ROWS, q->rotated / 2, 1, 1, GPUNVME_OPS_F32)};

    mat_random(&d.x, &rng);
    mat_poison(&d.y);
    mat_random(&d.cosines, &rng);
    mat_random(&d.sines, &rng);
    d.before = mat_copy(&d.x);
    d.positions = malloc((size_t)(q->rows + 1) * sizeof(*d.positions));
    assert_non_null(d.positions);
    for (int64_t i = 0; i < q->rows; i++)
        d.positions[i] = (int32_t)(q->tables ? (i * 17 + 5) % TABLE_ROWS : i * i * 1009 + 3);
    return d;
}

static void drop(struct rope_data *d)
{
    mat_free(&d->x);
    mat_free(&d->y);
    mat_free(&d->before);
    mat_free(&d->cosines);
    mat_free(&d->sines);
    free(d->positions);
}

static struct gpunvme_rotate descriptor_of(const struct request *q)
{
    return (struct gpunvme_rotate){.rows = q->rows,
                                   .heads = q->heads,
                                   .dim = q->dim,
                                   .rope = {.rows = TABLE_ROWS,
                                            .base = 500,
                                            .dim = q->rotated,
                                            .first = q->first,
                                            .interleaved = q->interleaved},
                                   .dtype = q->dtype,
                                   .backward = q->backward};
}

static void angle_of(const struct request *q, const struct rope_data *d, int64_t i, int64_t k,
                     double *cosine, double *sine)
{
    int64_t position = q->positions ? d->positions[i] : i;
    double angle = (double)position * pow(500, -2.0 * (double)k / q->rotated);

    *cosine = q->tables ? mat_get(&d->cosines, 0, position, k) : cos(angle);
    *sine = q->tables ? mat_get(&d->sines, 0, position, k) : sin(angle);
    *sine = q->backward ? -*sine : *sine;
}

/* Channel c of a head whose first one is in column j. */
static void expect_channel(const struct request *q, const struct rope_data *d, const struct mat *y,
                           int64_t i, int64_t j, int64_t c, const char *variant)
{
    int64_t e = c - q->first, half = q->rotated / 2, k = q->interleaved ? e / 2 : e % half;
    int64_t first = q->first + (q->interleaved ? 2 * k : k);
    int64_t second = first + (q->interleaved ? 1 : half);
    double cosine, sine, a = mat_get(&d->before, 0, i, j + first);
    double b = mat_get(&d->before, 0, i, j + second), wanted;

    angle_of(q, d, i, k, &cosine, &sine);
    wanted = c == first ? a * cosine - b * sine : a * sine + b * cosine;
    expect_close(mat_get(y, 0, i, j + c), wanted,
                 (fabs(a) + fabs(b)) * 0x1p-20 + rounding(q->dtype, wanted),
                 "%s: row %d, column %d, channel %d", variant, (int)i, (int)j, (int)c);
}

static void test_rotation(const char *variant, void *arg)
{
    const struct request *q = arg;
    struct device_set set = {0};
    struct rope_data d = make(q);
    struct mat *y = q->in_place ? &d.x : &d.y;
    struct gpunvme_rotate p = descriptor_of(q);

    p.x = set_in_mat(&set, &d.x, q->in_place);
    p.y = set_in_mat(&set, y, true);
    p.ldx = d.x.ld;
    p.ldy = y->ld;
    if (q->positions)
        p.positions = set_in(&set, d.positions, (size_t)q->rows * sizeof(*d.positions), false);
    if (q->tables) {
        p.rope.cos = set_in_mat(&set, &d.cosines, false);
        p.rope.sin = set_in_mat(&set, &d.sines, false);
        p.rope.ld = d.cosines.ld;
    }
    if (takes_call(gpunvme_rotate, &p, variant)) {
        call_op(gpunvme_rotate, &p, variant, 2);
        set_out(&set);
        for (int64_t i = 0; i < q->rows; i++)
            for (int64_t j = 0; j < q->heads * q->dim; j += q->dim)
                for (int64_t c = 0; c < q->dim; c++)
                    if (c < q->first || c >= q->first + q->rotated)
                        assert_true(mat_get(y, 0, i, j + c) == mat_get(&d.before, 0, i, j + c));
                    else
                        expect_channel(q, &d, y, i, j, c, variant);
        mat_expect_padding(y);
    }
    set_out(&set);
    drop(&d);
}

/* rows, heads, channels, the first that is rotated, and how many */
static const int shapes[][5] = {{1, 1, 2, 0, 2},       {3, 2, 64, 0, 64}, {5, 9, 128, 0, 128},
                                {4, 3, 96, 32, 32},    {2, 3, 40, 8, 16}, {3, 1, 15, 3, 10},
                                {2, 2, 1032, 0, 1032}, {3, 2, 24, 0, 0},  {70, 17, 32, 16, 16},
                                {0, 2, 8, 0, 8}};

static void for_all(struct request q)
{
    for (q.dtype = 0; q.dtype < GPUNVME_OPS_NDTYPES; q.dtype++)
        for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
            for (int interleaved = 0; interleaved < 2; interleaved++) {
                q.rows = shapes[i][0];
                q.heads = shapes[i][1];
                q.dim = shapes[i][2];
                q.first = shapes[i][3];
                q.rotated = shapes[i][4];
                q.interleaved = interleaved;
                q.aligned = q.dim % 8 == 0;
                for_each_variant(GPUNVME_OPS_ROPE, test_rotation, &q);
            }
}

static void rows_are_at_their_numbers_without_positions(void **state)
{
    (void)state;
    for_all((struct request){.positions = false});
}

static void positions_may_be_any(void **state)
{
    (void)state;
    for_all((struct request){.positions = true});
}

static void tables_take_the_place_of_a_base(void **state)
{
    (void)state;
    for_all((struct request){.positions = true, .tables = true});
}

static void backward_rotates_by_the_negative_angle(void **state)
{
    (void)state;
    for_all((struct request){.positions = true, .backward = true});
    for_all((struct request){.positions = true, .backward = true, .tables = true});
}

static void the_result_may_replace_the_operand(void **state)
{
    (void)state;
    for_all((struct request){.positions = true, .in_place = true});
}

/* Also with another number of threads. */
static void test_same_bits(const char *variant, void *arg)
{
    const struct request *q = arg;
    struct rope_data d = make(q);
    struct mat again = mat_copy(&d.y);

    for (int run = 0; run < 2; run++) {
        struct mat *y = run ? &again : &d.y;
        struct device_set set = {0};
        struct gpunvme_rotate p = descriptor_of(q);

        p.x = set_in_mat(&set, &d.x, false);
        p.y = set_in_mat(&set, y, true);
        p.ldx = d.x.ld;
        p.ldy = y->ld;
        p.positions = set_in(&set, d.positions, (size_t)q->rows * sizeof(*d.positions), false);
        call_op(gpunvme_rotate, &p, variant, run ? 3 : 1);
        set_out(&set);
    }
    assert_memory_equal(d.y.block, again.block, again.nbytes);
    mat_free(&again);
    drop(&d);
}

static void results_have_the_same_bits_in_every_run(void **state)
{
    struct request q = {.rows = 90, .heads = 5, .dim = 64, .rotated = 64, .aligned = true};

    (void)state;
    for (q.dtype = 0; q.dtype < GPUNVME_OPS_NDTYPES; q.dtype++)
        for_each_variant(GPUNVME_OPS_ROPE, test_same_bits, &q);
}

/* A position that tables do not have. */
static void test_bad_position(const char *variant, void *arg)
{
    struct request q = {.rows = 3, .heads = 2, .dim = 16, .rotated = 16, .aligned = true};
    struct gpunvme_ops_exec exec = {.device = TEST_DEVICE, .variant = variant};
    struct device_set set = {0};
    struct rope_data d = make(&q);
    struct gpunvme_rotate p = descriptor_of(&q);

    d.positions[0] = d.positions[2] = 1;
    d.positions[1] = *(const int32_t *)arg;
    p.x = set_in_mat(&set, &d.x, false);
    p.y = set_in_mat(&set, &d.y, true);
    p.ldx = d.x.ld;
    p.ldy = d.y.ld;
    p.positions = set_in(&set, d.positions, 3 * sizeof(*d.positions), false);
    p.rope.cos = set_in_mat(&set, &d.cosines, false);
    p.rope.sin = set_in_mat(&set, &d.sines, false);
    p.rope.ld = d.cosines.ld;
    if (TEST_DEVICE == GPUNVME_OPS_CPU) {
        expect_status(gpunvme_rotate(&p, &exec), GPUNVME_OPS_ERR_INVALID, "positions[1]");
    } else {
        call_op(gpunvme_rotate, &p, variant, 1);
        set_out(&set);
        for (int64_t j = 0; j < 32; j++) {
            assert_true(isnan(mat_get(&d.y, 0, 1, j)));
            assert_false(isnan(mat_get(&d.y, 0, 0, j)) || isnan(mat_get(&d.y, 0, 2, j)));
        }
    }
    set_out(&set);
    drop(&d);
}

static void a_position_out_of_range_is_refused_or_nan(void **state)
{
    int32_t behind = TABLE_ROWS, negative = -1;

    (void)state;
    for_each_variant(GPUNVME_OPS_ROPE, test_bad_position, &behind);
    for_each_variant(GPUNVME_OPS_ROPE, test_bad_position, &negative);
}

static void bad_arguments_are_refused(void **state)
{
    static float memory[512];
    struct gpunvme_ops_exec exec = {.device = TEST_DEVICE};
    struct gpunvme_rotate p = {.rows = 4,
                               .heads = 2,
                               .dim = 8,
                               .x = memory,
                               .y = memory + 8,
                               .ldx = 16,
                               .ldy = 16,
                               .rope = {.dim = 8}};

    (void)state;
    expect_status(gpunvme_rotate(&p, &exec), GPUNVME_OPS_ERR_ALIAS, "y and x");
    p.y = memory + 128, p.rope.queries_only = 1;
    expect_status(gpunvme_rotate(&p, &exec), GPUNVME_OPS_ERR_INVALID, "queries_only");
    p.rope.queries_only = 0, p.rope.dim = 10;
    expect_status(gpunvme_rotate(&p, &exec), GPUNVME_OPS_ERR_SHAPE, "rotates 10");
    p.rope.dim = 8, p.rope.cos = p.rope.sin = memory + 256, p.rope.ld = 4, p.rope.rows = 3;
    expect_status(gpunvme_rotate(&p, &exec), GPUNVME_OPS_ERR_SHAPE, "tables have 3 rows");
    p.rope.rows = 4, p.ldx = 15;
    expect_status(gpunvme_rotate(&p, &exec), GPUNVME_OPS_ERR_SHAPE, "x");
    p.ldx = 16, p.backward = 2;
    expect_status(gpunvme_rotate(&p, &exec), GPUNVME_OPS_ERR_INVALID, "backward");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_at_their_numbers_without_positions),
        cmocka_unit_test(positions_may_be_any),
        cmocka_unit_test(tables_take_the_place_of_a_base),
        cmocka_unit_test(backward_rotates_by_the_negative_angle),
        cmocka_unit_test(the_result_may_replace_the_operand),
        cmocka_unit_test(results_have_the_same_bits_in_every_run),
        cmocka_unit_test(a_position_out_of_range_is_refused_or_nan),
        cmocka_unit_test(bad_arguments_are_refused),
    };

    if (no_gpu())
        return 77;
    rng.state = 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
