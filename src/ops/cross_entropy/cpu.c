/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Softmax cross entropy on the CPU.
 */
#include <inttypes.h>

#include "ops/cpu/rows.h"
#include "ops/cross_entropy/cross_entropy.h"

struct work {
    const struct gpunvme_cross_entropy *p;
    double scale;  /* of gradients, without grad_loss */
    float *losses; /* of the rows; NULL: not wanted */
    float *rows;   /* of vocab floats, one for each thread; NULL: naive */
};

static int ignored(const struct gpunvme_cross_entropy *p, int64_t i)
{
    return p->ignore && p->targets[i] == p->ignore_index;
}

static gpunvme_ops_status_t check_targets(const struct gpunvme_cross_entropy *p)
{
    for (int64_t i = 0; i < p->rows; i++)
        if (!ignored(p, i) && (p->targets[i] < 0 || p->targets[i] >= p->vocab))
            return ops_fail(GPUNVME_OPS_ERR_INVALID,
                            "targets[%" PRId64 "] is %d: it must be less than vocab, %" PRId64
                            ", or be ignored",
                            i, (int)p->targets[i], p->vocab);
    return GPUNVME_OPS_OK;
}

static double counted(const struct gpunvme_cross_entropy *p)
{
    int64_t count = 0;

    for (int64_t i = 0; i < p->rows; i++)
        count += !ignored(p, i);
    return (double)count;
}

static double grad_loss_of(const struct gpunvme_cross_entropy *p, int64_t i)
{
    if (!p->grad_loss)
        return 1;
    return (double)p->grad_loss[p->reduction == GPUNVME_REDUCTION_NONE ? i : 0];
}

static double logit(const struct gpunvme_cross_entropy *p, int64_t i, int64_t j)
{
    return (double)cpu_load(p->logits, i * p->ld_logits + j, p->dtype);
}

static double lse_naive(const struct gpunvme_cross_entropy *p, int64_t i)
{
    double most = -INFINITY, sum = 0;

    for (int64_t j = 0; j < p->vocab; j++)
        most = fmax(most, logit(p, i, j));
    for (int64_t j = 0; j < p->vocab; j++)
        sum += exp(logit(p, i, j) - most);
    return most + log(sum);
}

static void grad_naive(const struct work *x, int64_t i, double lse)
{
    const struct gpunvme_cross_entropy *p = x->p;
    double scale = x->scale * grad_loss_of(p, i);

    for (int64_t j = 0; j < p->vocab; j++) {
        double g = ignored(p, i) ? 0 : (exp(logit(p, i, j) - lse) - (j == p->targets[i])) * scale;

        cpu_store(p->grad, i * p->ld_grad + j, p->dtype, (float)g);
    }
}

/* Once through the row for its maximum, once for the exponentials, which are kept. */
static double lse_row(const struct gpunvme_cross_entropy *p, int64_t i, float *row)
{
    float most = -INFINITY;

    cpu_load_row(p->logits, i * p->ld_logits, p->dtype, p->vocab, row);
    for (int64_t j = 0; j < p->vocab; j++)
        most = row[j] > most ? row[j] : most;
    for (int64_t j = 0; j < p->vocab; j++)
        row[j] = expf(row[j] - most);
    return (double)most + log((double)cpu_sum_row(row, NULL, p->vocab));
}

static void grad_row(const struct work *x, int64_t i, float *row)
{
    const struct gpunvme_cross_entropy *p = x->p;
    float scale = (float)(x->scale * grad_loss_of(p, i));
    float share = scale / cpu_sum_row(row, NULL, p->vocab);

    if (ignored(p, i))
        memset(row, 0, (size_t)p->vocab * sizeof(*row));
    else
        for (int64_t j = 0; j < p->vocab; j++)
            row[j] *= share;
    if (!ignored(p, i))
        row[p->targets[i]] -= scale;
    cpu_store_row(p->grad, i * p->ld_grad, p->dtype, p->vocab, row);
}

static void rows(void *arg, int index, int count)
{
    const struct work *x = arg;
    const struct gpunvme_cross_entropy *p = x->p;
    float *row = x->rows ? x->rows + index * p->vocab : NULL;

    for (int64_t i = index; i < p->rows; i += count) {
        double lse = row ? lse_row(p, i, row) : lse_naive(p, i);

        if (x->losses)
            x->losses[i] = ignored(p, i) ? 0 : (float)(lse - logit(p, i, p->targets[i]));
        if (p->lse)
            p->lse[i] = (float)lse;
        if (p->grad && row)
            grad_row(x, i, row);
        else if (p->grad)
            grad_naive(x, i, lse);
    }
}

static size_t losses_nbytes(const struct gpunvme_cross_entropy *p)
{
    return cross_entropy_wants_total(p) ? ops_workspace_part(1, 1, p->rows, sizeof(float)) : 0;
}

static size_t workspace(const struct ops_variant *variant, const struct ops_call *call)
{
    const struct gpunvme_cross_entropy *p = call->descriptor;
    size_t nbytes = losses_nbytes(p);

    if (!cpu_rows_naive(variant))
        nbytes += ops_workspace_part(1, cpu_rows_threads(variant, call), p->vocab, sizeof(float));
    return nbytes;
}

static gpunvme_ops_status_t run(const struct ops_variant *variant, const struct ops_call *call)
{
    const struct gpunvme_cross_entropy *p = call->descriptor;
    char *at = call->exec->workspace;
    bool mean = p->reduction == GPUNVME_REDUCTION_MEAN;
    struct work x = {.p = p, .scale = mean ? 1 / counted(p) : 1, .losses = p->loss};
    gpunvme_ops_status_t status = check_targets(p);
    double total = 0;

    if (status)
        return status;
    if (cross_entropy_wants_total(p))
        x.losses = (float *)(void *)at;
    if (!cpu_rows_naive(variant))
        x.rows = (float *)(void *)(at + losses_nbytes(p));
    cpu_parallel(cpu_rows_threads(variant, call), rows, &x);
    if (!cross_entropy_wants_total(p))
        return GPUNVME_OPS_OK;
    for (int64_t i = 0; i < p->rows; i++)
        total += (double)x.losses[i];
    p->loss[0] = (float)(mean ? total / counted(p) : total);
    return GPUNVME_OPS_OK;
}

static const struct ops_variant ladder[] = CPU_ROWS_LADDER(
    workspace, run, "maximum, sum and gradient by the definition, in f64, from the logits each",
    "a row is converted to f32 once, and its exponentials are kept for the gradient");

const struct ops_ladder cross_entropy_cpu = OPS_LADDER(ladder);
