/* SPDX-License-Identifier: BSD-3-Clause
 *
 * orders.h on a GPU: a stream of its own for small kernels, of the highest priority, that waits for
 * no other stream. It never waits for the device as a whole: a kernel that runs for ever, like a
 * software controller, may be there.
 *
 * A kernel of a user's that fills the GPU leaves no room for ours. Then an order is cancelled, and
 * no further one is given until the stream is empty.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/fail.h"
#include "device/orders/launch.h"
#include "gpunvme/memory.h"
#include "memory/cuda.h"

#define START_NS UINT64_C(1000000000) /* for a kernel to find room, and to be done with */

struct orders_gpu {
    unsigned gpu;
    cudaStream_t stream;
    struct gpunvme_buf mailbox;
    uint64_t number; /* of the last order */
    bool in_doubt;   /* it was cancelled, and its kernel is not known to have ended */
    struct queue_order last;
};

static gpunvme_err_t cuda_fail(cudaError_t err, const char *what)
{
    (void)cudaGetLastError();
    return base_fail(GPUNVME_ERR_GPU, "%s: %s (%s)", what, cudaGetErrorString(err),
                     cudaGetErrorName(err));
}

static struct order_mailbox *mailbox(const struct orders_gpu *orders)
{
    return orders->mailbox.cpu;
}

static gpunvme_err_t make_stream(struct orders_gpu *orders)
{
    int least, greatest;
    cudaError_t err = orders_preload();

    if (err == cudaSuccess)
        err = cudaDeviceGetStreamPriorityRange(&least, &greatest);
    if (err == cudaSuccess)
        err = cudaStreamCreateWithPriority(&orders->stream, cudaStreamNonBlocking, greatest);
    return err == cudaSuccess ? GPUNVME_OK : cuda_fail(err, "a stream for orders to queues");
}

gpunvme_err_t orders_gpu_open(unsigned gpu, struct orders_gpu **out)
{
    struct orders_gpu *orders = calloc(1, sizeof(*orders));
    gpunvme_err_t err;

    if (!orders)
        return base_fail(GPUNVME_ERR_NOMEM, "what looks after queues");
    orders->gpu = gpu;
    err = mem_cuda_enter(gpu);
    if (err) {
        free(orders);
        return err;
    }
    err = gpunvme_mem_alloc(sizeof(struct order_mailbox), GPUNVME_MEM_PINNED, &orders->mailbox);
    if (!err)
        err = make_stream(orders);
    mem_cuda_leave();
    if (err) {
        gpunvme_mem_free(&orders->mailbox);
        free(orders);
        return err;
    }
    *out = orders;
    return GPUNVME_OK;
}

/* Until the stream is empty or the time is up. */
static gpunvme_err_t wait_for(struct orders_gpu *orders, uint64_t timeout_ns)
{
    const struct timespec nap = {.tv_nsec = 20000};
    uint64_t until = gpunvme_clock_ns() + timeout_ns;

    for (unsigned turn = 0;; turn++) {
        cudaError_t err = cudaStreamQuery(orders->stream);

        if (err == cudaSuccess)
            return GPUNVME_OK;
        if (err != cudaErrorNotReady)
            return cuda_fail(err, "work on the GPU failed");
        (void)cudaGetLastError();
        if (gpunvme_clock_ns() >= until)
            return base_fail(GPUNVME_ERR_TIMEOUT,
                             "GPU %u has no room for a small kernel: those that run fill it, and "
                             "queues can be reset only when they end",
                             orders->gpu);
        if (turn > 100)
            nanosleep(&nap, NULL);
    }
}

static gpunvme_err_t start(struct orders_gpu *orders, const struct queue_order *order)
{
    cudaError_t err;

    orders->last = *order;
    orders->number++;
    memset(&mailbox(orders)->result, 0, sizeof(struct order_result));
    err = orders_launch(order, orders->number, orders->mailbox.gpu, orders->stream);
    return err == cudaSuccess ? GPUNVME_OK : cuda_fail(err, "the kernel for orders to queues");
}

/*
 * An order may be given up after it has begun. If it froze a queue after all, this cancels the
 * freeze, because the caller was told that the queue is not frozen. That order is never given up:
 * it is carried out as soon as there is room, before any other. The others may be carried out
 * twice.
 */
static gpunvme_err_t clear_doubt(struct orders_gpu *orders)
{
    struct queue_order cancel = {.queue = orders->last.queue, .op = ORDER_CANCEL_FREEZE};
    gpunvme_err_t err;

    if (!orders->in_doubt)
        return GPUNVME_OK;
    err = wait_for(orders, 0);
    if (!err && orders->last.op == ORDER_FREEZE && mailbox(orders)->result.is_done &&
        !mailbox(orders)->result.stuck) {
        err = start(orders, &cancel);
        if (!err)
            err = wait_for(orders, START_NS);
    }
    orders->in_doubt = err != GPUNVME_OK;
    return err;
}

static gpunvme_err_t run(struct orders_gpu *orders, const struct queue_order *order,
                         struct order_result *result)
{
    gpunvme_err_t err = clear_doubt(orders);

    if (!err)
        err = start(orders, order);
    if (err)
        return err;
    err = wait_for(orders, order->budget_ns + START_NS);
    if (err == GPUNVME_ERR_TIMEOUT) {
        if (order->op != ORDER_CANCEL_FREEZE)
            gpunvme_store_release64(&mailbox(orders)->cancelled, orders->number);
        orders->in_doubt = true;
    }
    *result = mailbox(orders)->result;
    return err;
}

gpunvme_err_t orders_gpu_run(struct orders_gpu *orders, const struct queue_order *order,
                             struct order_result *result)
{
    gpunvme_err_t err = mem_cuda_enter(orders->gpu);

    if (err)
        return err;
    err = run(orders, order, result);
    mem_cuda_leave();
    return err;
}

/* A kernel of ours that does not end is left to what it uses. */
gpunvme_err_t orders_gpu_close(struct orders_gpu *orders)
{
    gpunvme_err_t err = mem_cuda_enter(orders->gpu);

    if (err)
        return err;
    err = wait_for(orders, START_NS);
    if (!err) {
        cudaStreamDestroy(orders->stream);
        err = gpunvme_mem_free(&orders->mailbox);
        free(orders);
    }
    mem_cuda_leave();
    return err;
}
