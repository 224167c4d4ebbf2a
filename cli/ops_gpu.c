/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gpunvme ops: memory and time of the GPU, by the CUDA runtime.
 */
#include <cuda_runtime_api.h>

#include "ops_gpu.h"

static cudaError_t last;
static double clock_of_runs; /* MHz */

static bool ok(cudaError_t error)
{
    if (error) {
        last = error;
        cudaGetLastError(); /* or who looks after a launch would find this one */
    }
    return !error;
}

bool ops_gpu_present(void)
{
    int count = 0;

    return !cudaGetDeviceCount(&count) && count > 0;
}

void *ops_gpu_new(size_t nbytes)
{
    void *memory = NULL;

    return ok(cudaMalloc(&memory, nbytes ? nbytes : 1)) ? memory : NULL;
}

void ops_gpu_drop(void *memory)
{
    if (memory)
        ok(cudaFree(memory));
}

bool ops_gpu_put(void *gpu, const void *host, size_t nbytes)
{
    return ops_gpu_wait() && ok(cudaMemcpy(gpu, host, nbytes, cudaMemcpyHostToDevice));
}

bool ops_gpu_get(void *host, const void *gpu, size_t nbytes)
{
    return ops_gpu_wait() && ok(cudaMemcpy(host, gpu, nbytes, cudaMemcpyDeviceToHost));
}

bool ops_gpu_copy(void *to, const void *from, size_t nbytes)
{
    return ops_gpu_wait() && ok(cudaMemcpy(to, from, nbytes, cudaMemcpyDeviceToDevice)) &&
           ops_gpu_wait();
}

bool ops_gpu_wait(void)
{
    return ok(cudaDeviceSynchronize());
}

bool ops_gpu_failed(void)
{
    return last != cudaSuccess;
}

const char *ops_gpu_error(void)
{
    return cudaGetErrorString(last);
}

/* What enqueues may fail by something else than CUDA: then the last error says nothing of it. */
static double time_runs(bool (*run)(void *arg), void *arg, unsigned count, cudaEvent_t begin,
                        cudaEvent_t end, double *lead)
{
    bool good = (*lead <= 0 || ops_gpu_hold(*lead)) && ok(cudaEventRecord(begin, NULL));
    double start = ops_now();
    float milliseconds = -1;

    for (unsigned i = 0; i < count && good; i++)
        good = run(arg);
    *lead = ops_now() - start;
    good = good && ok(cudaEventRecord(end, NULL));
    clock_of_runs = ops_gpu_clock_now();
    good = good && ok(cudaEventSynchronize(end)) &&
           ok(cudaEventElapsedTime(&milliseconds, begin, end));
    return good ? (double)milliseconds * 1e-3 : -1;
}

double ops_gpu_clock(void)
{
    return clock_of_runs;
}

double ops_gpu_time(bool (*run)(void *arg), void *arg, unsigned count, double *lead)
{
    cudaEvent_t begin = NULL, end = NULL;
    double seconds = -1;

    /* A launch that was refused before, by another variant, is not this one's error. */
    cudaGetLastError();
    last = cudaSuccess;
    if (ok(cudaEventCreate(&begin)) && ok(cudaEventCreate(&end)))
        seconds = time_runs(run, arg, count, begin, end, lead);
    if (begin)
        ok(cudaEventDestroy(begin));
    if (end)
        ok(cudaEventDestroy(end));
    return seconds;
}
