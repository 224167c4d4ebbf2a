/* SPDX-License-Identifier: BSD-3-Clause
 *
 * life.h on a GPU: a stream of its own for small kernels, of the highest priority, that waits for
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
#include "device/life_launch.h"
#include "gpunvme/memory.h"
#include "memory/cuda.h"

#define START_NS UINT64_C(1000000000) /* for a kernel to find room, and to be done with */

struct life_gpu {
    unsigned gpu;
    cudaStream_t stream;
    struct gpunvme_buf mailbox;
    uint64_t number; /* of the last order */
    bool in_doubt;   /* it was cancelled, and its kernel is not known to have ended */
    struct life_order last;
};

static gpunvme_err_t cuda_fail(cudaError_t err, const char *what)
{
    (void)cudaGetLastError();
    return base_fail(GPUNVME_ERR_GPU, "%s: %s (%s)", what, cudaGetErrorString(err),
                     cudaGetErrorName(err));
}

static struct life_mailbox *mailbox(const struct life_gpu *life)
{
    return life->mailbox.cpu;
}

static gpunvme_err_t make_stream(struct life_gpu *life)
{
    int least, greatest;
    cudaError_t err = life_preload();

    if (err == cudaSuccess)
        err = cudaDeviceGetStreamPriorityRange(&least, &greatest);
    if (err == cudaSuccess)
        err = cudaStreamCreateWithPriority(&life->stream, cudaStreamNonBlocking, greatest);
    return err == cudaSuccess ? GPUNVME_OK : cuda_fail(err, "a stream for the life of queues");
}

gpunvme_err_t life_gpu_open(unsigned gpu, struct life_gpu **out)
{
    struct life_gpu *life = calloc(1, sizeof(*life));
    gpunvme_err_t err;

    if (!life)
        return base_fail(GPUNVME_ERR_NOMEM, "what looks after queues");
    life->gpu = gpu;
    err = mem_cuda_enter(gpu);
    if (err) {
        free(life);
        return err;
    }
    err = gpunvme_mem_alloc(sizeof(struct life_mailbox), GPUNVME_MEM_PINNED, &life->mailbox);
    if (!err)
        err = make_stream(life);
    mem_cuda_leave();
    if (err) {
        gpunvme_mem_free(&life->mailbox);
        free(life);
        return err;
    }
    *out = life;
    return GPUNVME_OK;
}

/* Until the stream is empty or the time is up. */
static gpunvme_err_t wait_for(struct life_gpu *life, uint64_t timeout_ns)
{
    const struct timespec nap = {.tv_nsec = 20000};
    uint64_t until = gpunvme_clock_ns() + timeout_ns;

    for (unsigned turn = 0;; turn++) {
        cudaError_t err = cudaStreamQuery(life->stream);

        if (err == cudaSuccess)
            return GPUNVME_OK;
        if (err != cudaErrorNotReady)
            return cuda_fail(err, "work on the GPU failed");
        (void)cudaGetLastError();
        if (gpunvme_clock_ns() >= until)
            return base_fail(GPUNVME_ERR_TIMEOUT,
                             "GPU %u has no room for a small kernel: those that run fill it, and "
                             "queues can be reset only when they end",
                             life->gpu);
        if (turn > 100)
            nanosleep(&nap, NULL);
    }
}

static gpunvme_err_t start(struct life_gpu *life, const struct life_order *order)
{
    cudaError_t err;

    life->last = *order;
    life->number++;
    memset(&mailbox(life)->result, 0, sizeof(struct life_result));
    err = life_launch(order, life->number, life->mailbox.gpu, life->stream);
    return err == cudaSuccess ? GPUNVME_OK : cuda_fail(err, "the kernel for the life of queues");
}

/*
 * An order that was given up, but had begun: a queue that it froze after all is let go again, since
 * whoever gave the order believes that it is not frozen. To let go is never given up: it is carried
 * out as soon as there is room, and before any other order. The others may be carried out twice.
 */
static gpunvme_err_t clear_doubt(struct life_gpu *life)
{
    struct life_order let_go = {.queue = life->last.queue, .op = LIFE_LET_GO};
    gpunvme_err_t err;

    if (!life->in_doubt)
        return GPUNVME_OK;
    err = wait_for(life, 0);
    if (!err && life->last.op == LIFE_FREEZE && mailbox(life)->result.is_done &&
        !mailbox(life)->result.stuck) {
        err = start(life, &let_go);
        if (!err)
            err = wait_for(life, START_NS);
    }
    life->in_doubt = err != GPUNVME_OK;
    return err;
}

static gpunvme_err_t run(struct life_gpu *life, const struct life_order *order,
                         struct life_result *result)
{
    gpunvme_err_t err = clear_doubt(life);

    if (!err)
        err = start(life, order);
    if (err)
        return err;
    err = wait_for(life, order->budget_ns + START_NS);
    if (err == GPUNVME_ERR_TIMEOUT) {
        if (order->op != LIFE_LET_GO)
            gpunvme_store_release64(&mailbox(life)->cancelled, life->number);
        life->in_doubt = true;
    }
    *result = mailbox(life)->result;
    return err;
}

gpunvme_err_t life_gpu_run(struct life_gpu *life, const struct life_order *order,
                           struct life_result *result)
{
    gpunvme_err_t err = mem_cuda_enter(life->gpu);

    if (err)
        return err;
    err = run(life, order, result);
    mem_cuda_leave();
    return err;
}

/* A kernel of ours that does not end is left to what it uses. */
gpunvme_err_t life_gpu_close(struct life_gpu *life)
{
    gpunvme_err_t err = mem_cuda_enter(life->gpu);

    if (err)
        return err;
    err = wait_for(life, START_NS);
    if (!err) {
        cudaStreamDestroy(life->stream);
        err = gpunvme_mem_free(&life->mailbox);
        free(life);
    }
    mem_cuda_leave();
    return err;
}
