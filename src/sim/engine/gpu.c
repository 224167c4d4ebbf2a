/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The engine as a kernel: its device, its stream, and how many blocks it gets. In a build without
 * CUDA there is nothing here to be called.
 */
#include <stdlib.h>

#include "base/fail.h"
#include "memory/cuda.h"
#include "sim/engine/launch.h"

#if defined(GPUNVME_HAVE_CUDA)

#define THREADS 256u /* of a block */

struct kernel {
    struct sim_launcher base;
    unsigned device;
    unsigned most_blocks;
    void *stream;
};

static struct kernel *of(struct sim_launcher *launcher)
{
    return (struct kernel *)(void *)launcher;
}

static gpunvme_err_t kernel_start(struct sim_launcher *launcher, struct sim_engine *engine,
                                  unsigned nqueues)
{
    struct kernel *kernel = of(launcher);
    unsigned blocks = nqueues < kernel->most_blocks ? nqueues : kernel->most_blocks;
    gpunvme_err_t err = mem_cuda_enter(kernel->device);

    if (err)
        return err;
    err = sim_engine_launch(engine, blocks, THREADS, kernel->stream);
    mem_cuda_leave();
    return err;
}

static gpunvme_err_t kernel_poll(struct sim_launcher *launcher, bool *running)
{
    struct kernel *kernel = of(launcher);
    gpunvme_err_t err = mem_cuda_enter(kernel->device);
    int runs = 0;

    if (err)
        return err;
    err = sim_engine_query(kernel->stream, &runs);
    mem_cuda_leave();
    *running = runs != 0;
    return err;
}

static gpunvme_err_t kernel_wait(struct sim_launcher *launcher, uint64_t deadline_ns)
{
    struct kernel *kernel = of(launcher);
    gpunvme_err_t err = mem_cuda_enter(kernel->device);

    if (err)
        return err;
    err = sim_engine_wait(kernel->stream, deadline_ns);
    mem_cuda_leave();
    return err;
}

static void kernel_close(struct sim_launcher *launcher)
{
    struct kernel *kernel = of(launcher);

    if (kernel->stream && !mem_cuda_enter(kernel->device)) {
        mem_cuda_kernels_destroy(kernel->stream);
        mem_cuda_leave();
    }
    free(kernel);
}

/* On the kernel's device. Half of the GPU at most is the engine's: the rest is its user's. */
static gpunvme_err_t prepare(struct kernel *kernel)
{
    unsigned most = 0;
    gpunvme_err_t err = sim_engine_preload();

    if (!err)
        err = sim_engine_max_blocks(THREADS, &most);
    if (!err)
        err = mem_cuda_kernels_create(&kernel->stream);
    kernel->most_blocks = most > 1 ? most / 2 : 1;
    return err;
}

gpunvme_err_t sim_launcher_gpu(unsigned device, struct sim_launcher **out)
{
    struct kernel *kernel = calloc(1, sizeof(*kernel));
    gpunvme_err_t err;

    if (!kernel)
        return base_fail(GPUNVME_ERR_NOMEM, "the engine");
    kernel->base = (struct sim_launcher){
        .close = kernel_close, .start = kernel_start, .poll = kernel_poll, .wait = kernel_wait};
    kernel->device = device;
    err = mem_cuda_enter(device);
    if (!err) {
        err = prepare(kernel);
        mem_cuda_leave();
    }
    if (err) {
        kernel_close(&kernel->base);
        return err;
    }
    *out = &kernel->base;
    return GPUNVME_OK;
}

#else

gpunvme_err_t sim_launcher_gpu(unsigned device, struct sim_launcher **out)
{
    (void)device;
    (void)out;
    return base_fail(GPUNVME_ERR_NO_GPU, "%s", mem_cuda_why_not());
}

#endif
