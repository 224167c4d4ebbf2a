/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Streams of the caller's, behind the wall of cuda.h: what lets I/O by the CPU take its place in
 * the order of such a stream.
 *
 * Work on a stream is put there with the stream's own context as the current one, which need not be
 * the primary context of a device. The functions of the driver are looked up when first needed.
 */
#include <cuda.h>
#include <pthread.h>
#include <string.h>

#include "base/fail.h"
#include "memory/cuda_private.h"
#include "memory/samples_cuda.h"

/* X(member, function of cuda.h, its symbol in libcuda.so.1) */
#define DRIVER_CALLS(X)                                                                            \
    X(stream_get_ctx, cuStreamGetCtx, "cuStreamGetCtx")                                            \
    X(ctx_get_current, cuCtxGetCurrent, "cuCtxGetCurrent")                                         \
    X(ctx_get_device, cuCtxGetDevice, "cuCtxGetDevice")                                            \
    X(ctx_push, cuCtxPushCurrent, "cuCtxPushCurrent_v2")                                           \
    X(ctx_pop, cuCtxPopCurrent, "cuCtxPopCurrent_v2")                                              \
    X(error_string, cuGetErrorString, "cuGetErrorString")

/* wait_value came with CUDA 11.7 in this form, which needs no setting of the kernel module. */
static struct {
#define X(member, function, symbol) __typeof__(function) *member;
    DRIVER_CALLS(X)
#undef X
    __typeof__(cuStreamWaitValue32) *wait_value;
} driver;

static pthread_once_t looked_up = PTHREAD_ONCE_INIT;
static const char *missing; /* a function that the driver lacks */

static void look_up(void)
{
    void *found;

#define X(member, function, symbol)                                                                \
    found = mem_cuda_driver_symbol(symbol);                                                        \
    if (!found)                                                                                    \
        missing = symbol;                                                                          \
    memcpy(&driver.member, &found, sizeof(found));
    DRIVER_CALLS(X)
#undef X
    found = mem_cuda_driver_symbol("cuStreamWaitValue32_v2");
    memcpy(&driver.wait_value, &found, sizeof(found));
}

static gpunvme_err_t driver_fail(CUresult result, const char *what)
{
    const char *text = NULL;

    driver.error_string(result, &text);
    return base_fail(GPUNVME_ERR_GPU, "%s: %s (CUDA driver error %d)", what,
                     text ? text : "unknown error", (int)result);
}

static gpunvme_err_t need_gpu(void)
{
    if (!mem_cuda_present())
        return base_fail(GPUNVME_ERR_NO_GPU, "%s", mem_cuda_why_not());
    pthread_once(&looked_up, look_up);
    if (missing)
        return base_fail(GPUNVME_ERR_UNSUPPORTED, "driver too old: libcuda.so.1 has no %s",
                         missing);
    return GPUNVME_OK;
}

/* The streams that have no context of their own: they are the current one's. */
static bool is_default(cudaStream_t stream)
{
    return !stream || stream == cudaStreamLegacy || stream == cudaStreamPerThread;
}

/* The current context, made current by the runtime if the thread has none. */
static gpunvme_err_t enter_current(void)
{
    CUcontext context = NULL;
    CUresult result = driver.ctx_get_current(&context);
    unsigned device;
    gpunvme_err_t err;

    if (result == CUDA_SUCCESS && !context) {
        err = mem_cuda_current(&device);
        if (!err)
            err = mem_cuda_enter(device);
        if (err)
            return err;
        result = driver.ctx_get_current(&context); /* it lives as long as the process */
        mem_cuda_leave();
    }
    if (result == CUDA_SUCCESS)
        result = driver.ctx_push(context);
    return result == CUDA_SUCCESS ? GPUNVME_OK : driver_fail(result, "the current context");
}

/* Makes the context of the stream the calling thread's current one, until leave(). */
static gpunvme_err_t enter(void *stream)
{
    CUcontext context = NULL;
    CUresult result;
    gpunvme_err_t err = need_gpu();

    if (err)
        return err;
    if (is_default(stream))
        return enter_current();
    result = driver.stream_get_ctx(stream, &context);
    if (result == CUDA_SUCCESS)
        result = driver.ctx_push(context);
    return result == CUDA_SUCCESS ? GPUNVME_OK : driver_fail(result, "the stream's context");
}

static void leave(void)
{
    CUcontext context;

    driver.ctx_pop(&context); /* fails only if the context is not there: left already */
}

gpunvme_err_t mem_cuda_user_stream_device(void *stream, unsigned *device)
{
    CUdevice handle = 0;
    CUresult result;
    gpunvme_err_t err;

    *device = 0;
    err = enter(stream);
    if (err)
        return err;
    result = driver.ctx_get_device(&handle);
    leave();
    if (result != CUDA_SUCCESS)
        return driver_fail(result, "the stream's GPU");
    *device = (unsigned)handle;
    return GPUNVME_OK;
}

gpunvme_err_t mem_cuda_user_stream_capturing(void *stream, bool *capturing)
{
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cudaError_t cuda_err;
    gpunvme_err_t err;

    *capturing = false;
    err = enter(stream);
    if (err)
        return err;
    cuda_err = cudaStreamIsCapturing(stream, &status);
    leave();
    /* Another stream is, which what is put on the legacy stream would break. */
    *capturing = cuda_err == cudaErrorStreamCaptureImplicit ||
                 (cuda_err == cudaSuccess && status != cudaStreamCaptureStatusNone);
    if (cuda_err == cudaErrorStreamCaptureImplicit)
        (void)cudaGetLastError();
    else if (cuda_err != cudaSuccess)
        return mem_cuda_fail(cuda_err, "whether the stream is captured");
    return GPUNVME_OK;
}

gpunvme_err_t mem_cuda_user_stream_call(void *stream, void (*fn)(void *), void *arg)
{
    gpunvme_err_t err = enter(stream);
    cudaError_t cuda_err;

    if (err)
        return err;
    cuda_err = cudaLaunchHostFunc(stream, fn, arg);
    leave();
    return cuda_err == cudaSuccess ? GPUNVME_OK : mem_cuda_fail(cuda_err, "cudaLaunchHostFunc");
}

/*
 * Where the GPU may see writes of other devices late, the wait ends with a flush of them: a drive
 * may have stored into GPU memory what the word stands for.
 */
static unsigned wait_flags(void)
{
    CUdevice device = 0;
    int can_flush = 0;

    if (driver.ctx_get_device(&device) != CUDA_SUCCESS ||
        cudaDeviceGetAttribute(&can_flush, cudaDevAttrCanFlushRemoteWrites, device) != cudaSuccess)
        (void)cudaGetLastError();
    return CU_STREAM_WAIT_VALUE_GEQ | (can_flush ? CU_STREAM_WAIT_VALUE_FLUSH : 0u);
}

gpunvme_err_t mem_cuda_user_stream_wait(void *stream, const uint32_t *gpu_word, uint32_t value)
{
    gpunvme_err_t err = enter(stream);
    CUresult result = CUDA_ERROR_NOT_SUPPORTED;

    if (err)
        return err;
    if (driver.wait_value)
        result = driver.wait_value(stream, (CUdeviceptr)(uintptr_t)gpu_word, value, wait_flags());
    leave();
    if (result == CUDA_ERROR_NOT_SUPPORTED)
        return base_fail(GPUNVME_ERR_UNSUPPORTED,
                         "this driver or GPU lets no stream wait for a word in memory "
                         "(cuStreamWaitValue32, from CUDA 11.7 on)");
    return result == CUDA_SUCCESS ? GPUNVME_OK : driver_fail(result, "cuStreamWaitValue32");
}

gpunvme_err_t mem_cuda_user_stream_wait_event(void *stream, void *event)
{
    gpunvme_err_t err = enter(stream);
    cudaError_t cuda_err;

    if (err)
        return err;
    cuda_err = cudaStreamWaitEvent(stream, event, 0);
    leave();
    return cuda_err == cudaSuccess ? GPUNVME_OK : mem_cuda_fail(cuda_err, "cudaStreamWaitEvent");
}

gpunvme_err_t mem_cuda_user_stream_record(void *stream, void *event)
{
    gpunvme_err_t err = enter(stream);
    cudaError_t cuda_err;

    if (err)
        return err;
    cuda_err = cudaEventRecord(event, stream);
    leave();
    return cuda_err == cudaSuccess ? GPUNVME_OK : mem_cuda_fail(cuda_err, "cudaEventRecord");
}

gpunvme_err_t mem_cuda_user_stream_mark(void *stream, struct mem_cuda_word **word, uint32_t *mark)
{
    gpunvme_err_t err = enter(stream);

    if (err)
        return err;
    if (!*word)
        err = mem_cuda_word_take(word);
    if (!err)
        err = mem_cuda_word_mark(*word, stream, mark);
    leave();
    return err;
}

bool mem_cuda_user_stream_passed(const struct mem_cuda_word *word, uint32_t mark)
{
    return mem_cuda_word_passed(word, mark);
}

gpunvme_err_t mem_cuda_user_stream_convert(void *stream, const struct mem_samples *s)
{
    gpunvme_err_t err = enter(stream);
    cudaError_t cuda_err;

    if (err)
        return err;
    cuda_err = mem_samples_launch(s, stream);
    leave();
    return cuda_err == cudaSuccess ? GPUNVME_OK : mem_cuda_fail(cuda_err, "a conversion");
}

gpunvme_err_t mem_cuda_user_stream_create(void **stream)
{
    gpunvme_err_t err = enter(NULL);
    cudaStream_t made = NULL;
    int least = 0, greatest = 0;
    cudaError_t cuda_err;

    if (err)
        return err;
    cuda_err = cudaDeviceGetStreamPriorityRange(&least, &greatest);
    if (cuda_err == cudaSuccess)
        cuda_err = cudaStreamCreateWithPriority(&made, cudaStreamNonBlocking, least);
    leave();
    *stream = made;
    return cuda_err == cudaSuccess ? GPUNVME_OK : mem_cuda_fail(cuda_err, "a stream");
}
