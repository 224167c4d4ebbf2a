/* SPDX-License-Identifier: BSD-3-Clause
 *
 * AdamW and the norm of gradients on the CPU.
 */
#include <inttypes.h>

#include "ops/core/philox.h"
#include "ops/cpu/rows.h"
#include "ops/optimizer/optimizer.h"

/* Elements that are converted and updated at once; a multiple of eight. */
#define PIECE 1024

struct update {
    const struct gpunvme_adamw *p;
    struct adamw_step step;
    float grad_scale;
};

static void store_weight(const struct gpunvme_adamw *p, int64_t k, int64_t i, int64_t n,
                         const float *w)
{
    void *weight = p->tensors[k].weight;
    struct philox random = {{0}};

    if (!p->stochastic) {
        cpu_store_row(weight, i, p->dtype, n, w);
        return;
    }
    for (int64_t e = 0; e < n; e++) {
        if (e % 8 == 0)
            random =
                philox_of((uint64_t)(i + e) / 8, (uint64_t)p->step << 32 | (uint32_t)k, p->seed);
        ((uint16_t *)weight)[i + e] = philox_round_bf16(w[e], philox_half(&random, (int)(e % 8)));
    }
}

/* Elements i … i + n - 1 of tensor k, n <= PIECE; i is a multiple of eight. */
static void update_piece(const struct update *x, int64_t k, int64_t i, int64_t n)
{
    const struct gpunvme_adamw_tensor *t = &x->p->tensors[k];
    const struct adamw_step *s = &x->step;
    float g[PIECE], w[PIECE], *m = t->m + i, *v = t->v + i;

    cpu_load_row(t->grad, i, x->p->grad_dtype, n, g);
    if (t->master)
        memcpy(w, t->master + i, (size_t)n * sizeof(*w));
    else
        cpu_load_row(t->weight, i, x->p->dtype, n, w);
    for (int64_t e = 0; e < n; e++) {
        float grad = g[e] * x->grad_scale;

        m[e] = s->beta1 * m[e] + (1 - s->beta1) * grad;
        v[e] = s->beta2 * v[e] + (1 - s->beta2) * grad * grad;
        w[e] = w[e] * s->keep - s->lr * (m[e] * s->to_m) / (sqrtf(v[e] * s->to_v) + s->eps);
    }
    if (t->master)
        memcpy(t->master + i, w, (size_t)n * sizeof(*w));
    if (t->weight)
        store_weight(x->p, k, i, n, w);
}

static void update_naive(const struct update *x, int64_t k, int64_t i)
{
    const struct gpunvme_adamw *p = x->p;
    const struct gpunvme_adamw_tensor *t = &p->tensors[k];
    double grad = (double)cpu_load(t->grad, i, p->grad_dtype) * (double)x->grad_scale;
    double w = t->master ? (double)t->master[i] : (double)cpu_load(t->weight, i, p->dtype);
    double beta1 = (double)p->beta1, beta2 = (double)p->beta2, m, v;
    struct philox random;

    m = beta1 * (double)t->m[i] + (1 - beta1) * grad;
    v = beta2 * (double)t->v[i] + (1 - beta2) * grad * grad;
    t->m[i] = (float)m;
    t->v[i] = (float)v;
    m /= 1 - pow(beta1, (double)p->step);
    v /= 1 - pow(beta2, (double)p->step);
    w -= (double)p->lr * (double)p->weight_decay * w;
    w -= (double)p->lr * m / (sqrt(v) + (double)p->eps);
    if (t->master)
        t->master[i] = (float)w;
    if (!t->weight)
        return;
    random = philox_of((uint64_t)i / 8, (uint64_t)p->step << 32 | (uint32_t)k, p->seed);
    if (p->stochastic)
        ((uint16_t *)t->weight)[i] =
            philox_round_bf16((float)w, philox_half(&random, (int)(i % 8)));
    else
        cpu_store(t->weight, i, p->dtype, (float)w);
}

/* Each thread has every so many'th piece of all tensors. */
static void update_pieces(void *arg, int index, int count)
{
    const struct update *x = arg;
    int64_t turn = 0;

    for (int64_t k = 0; k < x->p->ntensors; k++) {
        int64_t n = x->p->tensors[k].count;

        for (int64_t i = 0; i < n; i += PIECE)
            if (turn++ % count == index)
                update_piece(x, k, i, n - i < PIECE ? n - i : PIECE);
    }
}

static gpunvme_ops_status_t adamw_run(const struct ops_variant *variant,
                                      const struct ops_call *call)
{
    struct gpunvme_adamw own = *(const struct gpunvme_adamw *)call->descriptor, *p = &own;
    struct update x = {.p = p, .grad_scale = p->grad_scale ? *p->grad_scale : 1};

    if (p->now) {
        own.step = p->now->step;
        own.lr = p->now->lr;
    }
    if (own.step < 1 || !(own.lr >= 0 && isfinite(own.lr)))
        return ops_fail(GPUNVME_OPS_ERR_INVALID,
                        "now has step %" PRId64
                        " and lr %g: steps begin at 1, and lr is finite and "
                        "not negative",
                        own.step, (double)own.lr);
    x.step = adamw_step_of(p);
    if (!cpu_rows_naive(variant)) {
        cpu_parallel(cpu_rows_threads(variant, call), update_pieces, &x);
        return GPUNVME_OPS_OK;
    }
    for (int64_t k = 0; k < p->ntensors; k++)
        for (int64_t i = 0; i < p->tensors[k].count; i++)
            update_naive(&x, k, i);
    return GPUNVME_OPS_OK;
}

static const struct ops_variant adamw[] =
    CPU_ROWS_LADDER(NULL, adamw_run, "one element at a time, in f64",
                    "pieces of 1024 elements are converted and updated in vectors");

const struct ops_ladder adamw_cpu = OPS_LADDER(adamw);

struct norm {
    const struct gpunvme_grad_norm *p;
    float *sums; /* of each chunk of all tensors */
};

static float sum_of_chunk(const struct gpunvme_grad_norm *p, int64_t k, int64_t first)
{
    int64_t end = first + GRAD_NORM_CHUNK, n;
    float x[PIECE];
    double sum = 0;

    if (end > p->tensors[k].count)
        end = p->tensors[k].count;
    for (int64_t i = first; i < end; i += n) {
        n = end - i < PIECE ? end - i : PIECE;
        cpu_load_row(p->tensors[k].grad, i, p->dtype, n, x);
        sum += (double)cpu_sum_row(x, x, n);
    }
    return (float)sum;
}

static void sum_chunks(void *arg, int index, int count)
{
    const struct norm *x = arg;
    int64_t chunk = 0;

    for (int64_t k = 0; k < x->p->ntensors; k++)
        for (int64_t i = 0; i < x->p->tensors[k].count; i += GRAD_NORM_CHUNK, chunk++)
            if (chunk % count == index)
                x->sums[chunk] = sum_of_chunk(x->p, k, i);
}

static size_t norm_workspace(const struct ops_variant *variant, const struct ops_call *call)
{
    int64_t chunks = grad_norm_all_chunks(call->descriptor);

    return cpu_rows_naive(variant) ? 0 : ops_workspace_part(1, 1, chunks, sizeof(float));
}

static double naive_squares(const struct gpunvme_grad_norm *p)
{
    double sum = 0;

    for (int64_t k = 0; k < p->ntensors; k++)
        for (int64_t i = 0; i < p->tensors[k].count; i++) {
            double x = (double)cpu_load(p->tensors[k].grad, i, p->dtype);

            sum += x * x;
        }
    return sum;
}

static gpunvme_ops_status_t norm_run(const struct ops_variant *variant, const struct ops_call *call)
{
    const struct gpunvme_grad_norm *p = call->descriptor;
    struct norm x = {p, call->exec->workspace};
    double sum = 0, scale;

    if (cpu_rows_naive(variant)) {
        sum = naive_squares(p);
    } else {
        cpu_parallel(cpu_rows_threads(variant, call), sum_chunks, &x);
        for (int64_t chunk = 0; chunk < grad_norm_all_chunks(p); chunk++)
            sum += (double)x.sums[chunk];
    }
    scale = (double)p->max_norm / (sqrt(sum) + 1e-6);
    if (p->norm)
        *p->norm = (float)sqrt(sum);
    if (p->scale)
        *p->scale = scale > 1 ? 1 : (float)scale;
    return GPUNVME_OPS_OK;
}

static const struct ops_variant norm[] =
    CPU_ROWS_LADDER(norm_workspace, norm_run, "one sum of all squares, in f64",
                    "sums of 16384 elements in vectors, then the sum of these");

const struct ops_ladder grad_norm_cpu = OPS_LADDER(norm);
