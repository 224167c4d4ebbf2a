/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Embedding on the CPU. Backwards the rows are sorted by id, by counting, so that each row of the
 * gradient has one thread that adds up its rows in their order.
 */
#include <inttypes.h>

#include "ops/cpu/rows.h"
#include "ops/embedding/embedding.h"

static gpunvme_ops_status_t check_ids(const int32_t *ids, int64_t rows, int64_t vocab)
{
    for (int64_t i = 0; i < rows; i++)
        if (ids[i] < 0 || ids[i] >= vocab)
            return ops_fail(GPUNVME_OPS_ERR_INVALID,
                            "ids[%" PRId64 "] is %d: it must be less than vocab, %" PRId64, i,
                            (int)ids[i], vocab);
    return GPUNVME_OPS_OK;
}

static void copy_rows(void *arg, int index, int count)
{
    const struct gpunvme_embedding *p = arg;
    int64_t size = (int64_t)gpunvme_ops_dtype_nbytes(p->dtype);

    for (int64_t i = index; i < p->rows; i += count)
        memcpy((char *)p->y + i * p->ldy * size,
               (const char *)p->weight + p->ids[i] * p->ld_weight * size, (size_t)(p->dim * size));
}

static void copy_elements(const struct gpunvme_embedding *p)
{
    for (int64_t i = 0; i < p->rows; i++)
        for (int64_t j = 0; j < p->dim; j++)
            cpu_store(p->y, i * p->ldy + j, p->dtype,
                      cpu_load(p->weight, p->ids[i] * p->ld_weight + j, p->dtype));
}

static gpunvme_ops_status_t forward_run(const struct ops_variant *variant,
                                        const struct ops_call *call)
{
    struct gpunvme_embedding p = *(const struct gpunvme_embedding *)call->descriptor;
    gpunvme_ops_status_t status = check_ids(p.ids, p.rows, p.vocab);

    if (status)
        return status;
    if (cpu_rows_naive(variant))
        copy_elements(&p);
    else
        cpu_parallel(cpu_rows_threads(variant, call), copy_rows, &p);
    return GPUNVME_OPS_OK;
}

static const struct ops_variant forward[] =
    CPU_ROWS_LADDER(NULL, forward_run, "one element at a time", "a row is copied at once");

const struct ops_ladder embedding_forward_cpu = OPS_LADDER(forward);

struct backward {
    const struct gpunvme_embedding_grad *p;
    int32_t *starts; /* vocab + 1: rows of id v are order[starts[v]] … */
    int32_t *order;
    float *rows; /* two for each thread */
};

static size_t starts_nbytes(const struct gpunvme_embedding_grad *p)
{
    return ops_workspace_part(1, 1, p->vocab + 2, sizeof(int32_t));
}

static size_t order_nbytes(const struct gpunvme_embedding_grad *p)
{
    return ops_workspace_part(1, 1, p->rows, sizeof(int32_t));
}

static void sort_rows(const struct backward *x)
{
    const struct gpunvme_embedding_grad *p = x->p;

    /* A place further on: where rows have been put, the starts have moved to theirs. */
    memset(x->starts, 0, (size_t)(p->vocab + 2) * sizeof(*x->starts));
    for (int64_t i = 0; i < p->rows; i++)
        x->starts[p->ids[i] + 2]++;
    for (int64_t v = 2; v < p->vocab + 2; v++)
        x->starts[v] += x->starts[v - 1];
    for (int64_t i = 0; i < p->rows; i++)
        x->order[x->starts[p->ids[i] + 1]++] = (int32_t)i;
}

static void sum_ids(void *arg, int index, int count)
{
    const struct backward *x = arg;
    const struct gpunvme_embedding_grad *p = x->p;
    float *sum = x->rows + 2 * index * p->dim, *row = sum + p->dim;

    for (int64_t v = index; v < p->vocab; v += count) {
        if (p->accumulate && x->starts[v] == x->starts[v + 1])
            continue;
        memset(sum, 0, (size_t)p->dim * sizeof(*sum));
        if (p->accumulate)
            cpu_load_row(p->grad_weight, v * p->ld_grad_weight, p->grad_dtype, p->dim, sum);
        for (int64_t k = x->starts[v]; k < x->starts[v + 1]; k++) {
            cpu_load_row(p->grad_y, x->order[k] * p->ld_grad_y, p->dtype, p->dim, row);
            for (int64_t j = 0; j < p->dim; j++)
                sum[j] += row[j];
        }
        cpu_store_row(p->grad_weight, v * p->ld_grad_weight, p->grad_dtype, p->dim, sum);
    }
}

/* Each element of the gradient looks at all ids. */
static void backward_naive(const struct gpunvme_embedding_grad *p)
{
    for (int64_t v = 0; v < p->vocab; v++)
        for (int64_t j = 0; j < p->dim; j++) {
            int64_t at = v * p->ld_grad_weight + j;
            double sum = p->accumulate ? (double)cpu_load(p->grad_weight, at, p->grad_dtype) : 0;

            for (int64_t i = 0; i < p->rows; i++)
                if (p->ids[i] == v)
                    sum += (double)cpu_load(p->grad_y, i * p->ld_grad_y + j, p->dtype);
            cpu_store(p->grad_weight, at, p->grad_dtype, (float)sum);
        }
}

static size_t backward_workspace(const struct ops_variant *variant, const struct ops_call *call)
{
    const struct gpunvme_embedding_grad *p = call->descriptor;

    if (cpu_rows_naive(variant))
        return 0;
    return starts_nbytes(p) + order_nbytes(p) +
           ops_workspace_part(2, cpu_rows_threads(variant, call), p->dim, sizeof(float));
}

static gpunvme_ops_status_t backward_run(const struct ops_variant *variant,
                                         const struct ops_call *call)
{
    const struct gpunvme_embedding_grad *p = call->descriptor;
    gpunvme_ops_status_t status = check_ids(p->ids, p->rows, p->vocab);
    char *at = call->exec->workspace;
    struct backward x = {.p = p};

    if (status)
        return status;
    if (cpu_rows_naive(variant)) {
        backward_naive(p);
        return GPUNVME_OPS_OK;
    }
    x.starts = (int32_t *)(void *)at;
    x.order = (int32_t *)(void *)(at + starts_nbytes(p));
    x.rows = (float *)(void *)(at + starts_nbytes(p) + order_nbytes(p));
    sort_rows(&x);
    cpu_parallel(cpu_rows_threads(variant, call), sum_ids, &x);
    return GPUNVME_OPS_OK;
}

static const struct ops_variant backward[] = CPU_ROWS_LADDER(
    backward_workspace, backward_run, "each element of the gradient looks at all ids; sums in f64",
    "rows are sorted by id, by counting, and added up as vectors");

const struct ops_ladder embedding_backward_cpu = OPS_LADDER(backward);
