/* SPDX-License-Identifier: BSD-3-Clause
 *
 * orders.h in a build without CUDA: there is no GPU, so none of these is called.
 */
#include "base/fail.h"
#include "device/orders/orders.h"

static gpunvme_err_t no_cuda(void)
{
    return base_fail(GPUNVME_ERR_NO_GPU, "this build has no CUDA");
}

gpunvme_err_t orders_gpu_open(unsigned gpu, struct orders_gpu **out)
{
    (void)gpu, (void)out;
    return no_cuda();
}

gpunvme_err_t orders_gpu_close(struct orders_gpu *orders)
{
    (void)orders;
    return no_cuda();
}

gpunvme_err_t orders_gpu_run(struct orders_gpu *orders, const struct queue_order *order,
                             struct order_result *result)
{
    (void)orders, (void)order, (void)result;
    return no_cuda();
}
