/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The engine as a persistent kernel: one block serves one queue pair. What it does is run.h;
 * here it is started, asked for and waited for.
 */
#include <cuda_runtime.h>
#include <time.h>

extern "C" {
#include "base/fail.h"
}
#include "sim/engine/engine.h"
#include "sim/engine/run.h"

static gpunvme_err_t fail(cudaError_t err, const char *what)
{
    (void)cudaGetLastError(); /* told here: the caller's own checks shall not find it again */
    return base_fail(GPUNVME_ERR_GPU, "the controller on the GPU: %s: %s (%s)", what,
                     cudaGetErrorString(err), cudaGetErrorName(err));
}

static __global__ void __launch_bounds__(SIM_ENGINE_MAX_THREADS, 1) engine(struct sim_engine *e)
{
    __shared__ struct sim_engine_block b;

    sim_engine_body(e, &b, blockIdx.x, gridDim.x, threadIdx.x, blockDim.x);
}

extern "C" gpunvme_err_t sim_engine_preload(void)
{
    struct cudaFuncAttributes attributes;
    cudaError_t err = cudaFuncGetAttributes(&attributes, engine);

    return err == cudaSuccess ? GPUNVME_OK : fail(err, "loading its kernel");
}

extern "C" gpunvme_err_t sim_engine_max_blocks(unsigned threads, unsigned *blocks)
{
    int device, sms, by_sm;
    cudaError_t err = cudaGetDevice(&device);

    if (err == cudaSuccess)
        err = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
    if (err == cudaSuccess)
        err = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&by_sm, engine, (int)threads, 0);
    if (err != cudaSuccess)
        return fail(err, "how many blocks fit");
    *blocks = (unsigned)(sms * by_sm);
    return GPUNVME_OK;
}

extern "C" gpunvme_err_t sim_engine_launch(struct sim_engine *e, unsigned blocks, unsigned threads,
                                           void *stream)
{
    cudaStream_t on = (cudaStream_t)stream;
    cudaError_t err;

    if (!blocks || !threads || threads % 32 || threads > SIM_ENGINE_MAX_THREADS)
        return base_fail(GPUNVME_ERR_INVALID,
                         "the controller on the GPU: %u blocks of %u threads: needs at least one "
                         "block, and a multiple of 32 threads up to %u",
                         blocks, threads, SIM_ENGINE_MAX_THREADS);
    err = cudaMemsetAsync((char *)e + SIM_ENGINE_REWIND_OFFSET, 0, SIM_ENGINE_REWIND_NBYTES, on);
    if (err == cudaSuccess) {
        engine<<<blocks, threads, 0, on>>>(e);
        err = cudaGetLastError();
    }
    return err == cudaSuccess ? GPUNVME_OK : fail(err, "starting its kernel");
}

extern "C" gpunvme_err_t sim_engine_query(void *stream, int *running)
{
    cudaError_t err = cudaStreamQuery((cudaStream_t)stream);

    *running = err == cudaErrorNotReady;
    if (err == cudaErrorNotReady)
        (void)cudaGetLastError(); /* an answer, not an error */
    else if (err != cudaSuccess)
        return fail(err, "its kernel failed");
    return GPUNVME_OK;
}

extern "C" gpunvme_err_t sim_engine_wait(void *stream, uint64_t deadline_ns)
{
    const struct timespec pause = {0, 20000};

    for (;;) {
        int running;
        gpunvme_err_t err = sim_engine_query(stream, &running);

        if (err || !running)
            return err;
        if (gpunvme_clock_ns() >= deadline_ns)
            return base_fail(GPUNVME_ERR_TIMEOUT, "the controller on the GPU did not stop");
        nanosleep(&pause, NULL);
    }
}
