/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Who carries out an order of orders.h: the GPU, or where there is none the caller.
 */
#include <pthread.h>
#include <stdlib.h>

#include "base/fail.h"
#include "device/orders/orders.h"
#include "device/orders/steps.h"

struct orders {
    struct orders_gpu *gpu; /* NULL: no GPU */
    pthread_mutex_t lock;   /* one order at a time */
};

gpunvme_err_t orders_open(bool has_gpu, unsigned gpu, struct orders **out)
{
    struct orders *orders = calloc(1, sizeof(*orders));
    gpunvme_err_t err = GPUNVME_OK;

    if (!orders)
        return base_fail(GPUNVME_ERR_NOMEM, "what looks after queues");
    if (has_gpu)
        err = orders_gpu_open(gpu, &orders->gpu);
    if (err) {
        free(orders);
        return err;
    }
    pthread_mutex_init(&orders->lock, NULL);
    *out = orders;
    return GPUNVME_OK;
}

gpunvme_err_t orders_close(struct orders *orders)
{
    gpunvme_err_t err;

    if (!orders)
        return GPUNVME_OK;
    err = orders->gpu ? orders_gpu_close(orders->gpu) : GPUNVME_OK;
    pthread_mutex_destroy(&orders->lock);
    free(orders);
    return err;
}

static void run_here(const struct queue_order *order, struct order_result *result)
{
    struct order_shared shared = {0};

    order_begin(order, &shared);
    order_middle(order, &shared, 0, 1);
    order_end(&shared, result);
}

gpunvme_err_t orders_run(struct orders *orders, const struct queue_order *order,
                         struct order_result *result)
{
    struct order_result ignored;
    gpunvme_err_t err = GPUNVME_OK;

    if (!result)
        result = &ignored;
    *result = (struct order_result){0};
    pthread_mutex_lock(&orders->lock);
    if (orders->gpu)
        err = orders_gpu_run(orders->gpu, order, result);
    else
        run_here(order, result);
    pthread_mutex_unlock(&orders->lock);
    if (!err && result->stuck)
        err = base_fail(GPUNVME_ERR_TIMEOUT, "a thread did not leave %s",
                        result->stuck == QUEUE_STUCK_SUBMIT ? "submit" : "reap");
    return err;
}
