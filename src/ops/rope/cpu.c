/* SPDX-License-Identifier: BSD-3-Clause
 *
 * RoPE on the CPU. A row's cosines and sines are computed once for all its heads, some pairs at a
 * time, which are on the stack.
 */
#include <inttypes.h>

#include "ops/cpu/rows.h"
#include "ops/rope/rope.h"

#define PIECE 256

struct work {
    const struct gpunvme_rotate *p;
    int naive;
};

static int64_t position_of(const struct gpunvme_rotate *p, int64_t i)
{
    return p->positions ? p->positions[i] : i;
}

static gpunvme_ops_status_t check_positions(const struct gpunvme_rotate *p)
{
    bool tables = p->rope.dim && p->rope.cos;

    for (int64_t i = 0; i < p->rows && p->rope.dim && p->positions; i++)
        if (p->positions[i] < 0 || (tables && p->positions[i] >= p->rope.rows))
            return ops_fail(GPUNVME_OPS_ERR_INVALID,
                            "positions[%" PRId64 "] is %d: it must not be negative, and less than "
                            "the tables' rows",
                            i, (int)p->positions[i]);
    return GPUNVME_OPS_OK;
}

/* `frequency` is that of pair k. */
static void turn_of(const struct gpunvme_rotate *p, int64_t position, int64_t k, double frequency,
                    double *cosine, double *sine)
{
    const struct gpunvme_rope *rope = &p->rope;

    if (rope->cos) {
        *cosine = (double)rope->cos[position * rope->ld + k];
        *sine = (double)rope->sin[position * rope->ld + k];
    } else {
        *cosine = cos((double)position * frequency);
        *sine = sin((double)position * frequency);
    }
    *sine = p->backward ? -*sine : *sine;
}

static double frequency_of(const struct gpunvme_rope *rope, int64_t k)
{
    return rope->cos ? 0 : pow(rope_base(rope), -2.0 * (double)k / rope->dim);
}

static void rotate_naive(const struct gpunvme_rotate *p, int64_t i, int64_t h)
{
    int64_t from = i * p->ldx + h * p->dim, to = i * p->ldy + h * p->dim;
    int64_t step = rope_step(&p->rope), partner = rope_partner(&p->rope);

    for (int64_t k = 0, c = p->rope.first; k < p->rope.dim / 2; k++, c += step) {
        double x = (double)cpu_load(p->x, from + c, p->dtype), cosine, sine;
        double y = (double)cpu_load(p->x, from + c + partner, p->dtype);

        turn_of(p, position_of(p, i), k, frequency_of(&p->rope, k), &cosine, &sine);
        cpu_store(p->y, to + c, p->dtype, (float)(x * cosine - y * sine));
        cpu_store(p->y, to + c + partner, p->dtype, (float)(x * sine + y * cosine));
    }
}

/* Pairs of a head, n of them, whose first channel is at `from` and will be at `to`. */
static void rotate_halves(const struct gpunvme_rotate *p, int64_t from, int64_t to, int64_t n,
                          const float *cosines, const float *sines)
{
    int64_t partner = p->rope.dim / 2;
    float x[PIECE], y[PIECE], u[PIECE], v[PIECE];

    cpu_load_row(p->x, from, p->dtype, n, x);
    cpu_load_row(p->x, from + partner, p->dtype, n, y);
    for (int64_t k = 0; k < n; k++) {
        u[k] = x[k] * cosines[k] - y[k] * sines[k];
        v[k] = x[k] * sines[k] + y[k] * cosines[k];
    }
    cpu_store_row(p->y, to, p->dtype, n, u);
    cpu_store_row(p->y, to + partner, p->dtype, n, v);
}

static void rotate_neighbours(const struct gpunvme_rotate *p, int64_t from, int64_t to, int64_t n,
                              const float *cosines, const float *sines)
{
    float x[2 * PIECE], u[2 * PIECE];

    cpu_load_row(p->x, from, p->dtype, 2 * n, x);
    for (int64_t k = 0; k < n; k++) {
        u[2 * k] = x[2 * k] * cosines[k] - x[2 * k + 1] * sines[k];
        u[2 * k + 1] = x[2 * k] * sines[k] + x[2 * k + 1] * cosines[k];
    }
    cpu_store_row(p->y, to, p->dtype, 2 * n, u);
}

/* The heads of a row. */
static void rotate_row(const struct gpunvme_rotate *p, int64_t i)
{
    int64_t pairs = p->rope.dim / 2, step = rope_step(&p->rope);
    float cosines[PIECE], sines[PIECE];

    for (int64_t k = 0; k < pairs; k += PIECE) {
        int64_t n = pairs - k < PIECE ? pairs - k : PIECE, c = p->rope.first + k * step;
        double frequency = frequency_of(&p->rope, k), ratio = frequency_of(&p->rope, 1);

        for (int64_t e = 0; e < n; e++, frequency *= ratio) {
            double cosine, sine;

            turn_of(p, position_of(p, i), k + e, frequency, &cosine, &sine);
            cosines[e] = (float)cosine;
            sines[e] = (float)sine;
        }
        for (int64_t h = 0; h < p->heads; h++)
            (p->rope.interleaved ? rotate_neighbours : rotate_halves)(
                p, i * p->ldx + h * p->dim + c, i * p->ldy + h * p->dim + c, n, cosines, sines);
    }
}

static void copy_others(const struct gpunvme_rotate *p, int64_t i)
{
    int64_t size = (int64_t)gpunvme_ops_dtype_nbytes(p->dtype);
    int64_t first = p->rope.dim ? p->rope.first : p->dim, last = first + p->rope.dim;

    for (int64_t h = 0; h < p->heads; h++) {
        const char *from = (const char *)p->x + (i * p->ldx + h * p->dim) * size;
        char *to = (char *)p->y + (i * p->ldy + h * p->dim) * size;

        memcpy(to, from, (size_t)(first * size));
        memcpy(to + last * size, from + last * size, (size_t)((p->dim - last) * size));
    }
}

static void rotate_rows(void *arg, int index, int count)
{
    const struct work *x = arg;
    const struct gpunvme_rotate *p = x->p;

    for (int64_t i = index; i < p->rows; i += count) {
        if (p->y != p->x)
            copy_others(p, i);
        for (int64_t h = 0; h < p->heads && x->naive; h++)
            rotate_naive(p, i, h);
        if (!x->naive)
            rotate_row(p, i);
    }
}

static gpunvme_ops_status_t run(const struct ops_variant *variant, const struct ops_call *call)
{
    struct work x = {call->descriptor, cpu_rows_naive(variant)};
    gpunvme_ops_status_t status = check_positions(x.p);

    if (!status)
        cpu_parallel(cpu_rows_threads(variant, call), rotate_rows, &x);
    return status;
}

static const struct ops_variant variants[] =
    CPU_ROWS_LADDER(NULL, run, "each pair's cosine and sine by themselves, in f64",
                    "a row's cosines and sines once for all its heads, pairs as vectors");

const struct ops_ladder rope_cpu = OPS_LADDER(variants);
