/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The wall of cuda.h in a build with CUDA: host calls of the CUDA runtime. The runtime is linked
 * statically and finds the driver, libcuda.so.1, at run time or not at all.
 *
 * The runtime makes a context on a thread's current device at the slightest touch, and on device
 * 0 for threads that never chose: half a gigabyte lost on a GPU that belongs to another rank. So
 * what works on given memory asks the driver where that memory is (which makes no context), and
 * enters the context of that device for as long as it takes.
 *
 * While a program captures a graph in the mode "global", the default, what any of its threads asks
 * of CUDA that could touch the legacy default stream (to pin memory, to ask an event) is refused
 * and spoils the capture. None of ours does: so it is said of the thread that it knows what it
 * does.
 *
 * Copies and kernels run on streams that do not wait for the legacy default stream: neither for
 * what the caller computes there, nor for kernels that in turn wait for these copies.
 */
#include <ctype.h>
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/descriptors.h"
#include "base/fail.h"
#include "base/relax.h"
#include "memory/checksum.h"
#include "memory/checksum_cuda.h"
#include "memory/convert_cuda.h"
#include "memory/cuda.h"
#include "memory/cuda_private.h"
#include "memory/mmio_cuda.h"

#define MAX_DEVICES 64

/* Synchronous work may take this long: 10 s, and a second more for each 64 MB. */
#define WORK_TIMEOUT_NS(nbytes) (10000000000u + (uint64_t)(nbytes)*16)

/* What the kernels for checksums are given, and what they store. */
struct checksums {
    uint64_t partial[MEM_CHECKSUM_MAX_BLOCKS];
    struct mem_checksum_piece pieces[MEM_CHECKSUM_MAX_BLOCKS];
};

/* What a thread needs for one synchronous operation. Idle ones are kept for the next. */
struct worker {
    struct worker *next;
    int device;
    cudaStream_t stream;
    struct mem_cuda_word *word; /* of marks behind kernels, made when needed */
    struct checksums *sums_cpu; /* in pinned memory, made when needed */
    struct checksums *sums_gpu; /* the same for the GPU */
};

/* X(member, function of cuda.h, its symbol in libcuda.so.1) */
#define DRIVER_CALLS(X)                                                                            \
    X(pointer_get_attributes, cuPointerGetAttributes, "cuPointerGetAttributes")                    \
    X(address_range, cuMemGetAddressRange, "cuMemGetAddressRange_v2")                              \
    X(device_get, cuDeviceGet, "cuDeviceGet")                                                      \
    X(ctx_retain, cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain")                            \
    X(ctx_push, cuCtxPushCurrent, "cuCtxPushCurrent_v2")                                           \
    X(ctx_pop, cuCtxPopCurrent, "cuCtxPopCurrent_v2")                                              \
    X(capture_mode, cuThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode")        \
    X(error_string, cuGetErrorString, "cuGetErrorString")

static struct {
#define X(member, function, symbol) __typeof__(function) *member;
    DRIVER_CALLS(X)
#undef X
} driver;

/* Set once, by probe(). */
static void *driver_library;
static pthread_once_t probed = PTHREAD_ONCE_INIT;
static char why_not[160];
static unsigned ndevices;
static int driver_version, runtime_version;

/* Under `lock`. Contexts are kept for the life of the process. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static CUcontext contexts[MAX_DEVICES];
static struct worker *idle[MAX_DEVICES];

static bool load_driver(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

    driver_library = library;
    if (!library) {
        snprintf(why_not, sizeof(why_not), "no driver: libcuda.so.1 not found");
        return false;
    }
#define X(member, function, symbol)                                                                \
    driver.member = (__typeof__(driver.member))dlsym(library, symbol);                             \
    if (!driver.member)                                                                            \
        snprintf(why_not, sizeof(why_not), "driver too old: libcuda.so.1 has no %s", symbol);
    DRIVER_CALLS(X)
#undef X
    return why_not[0] == '\0';
}

static void say_no_device(void)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");

    if (visible)
        snprintf(why_not, sizeof(why_not),
                 "no device: the driver shows none to this process "
                 "(CUDA_VISIBLE_DEVICES is '%.60s')",
                 visible);
    else
        snprintf(why_not, sizeof(why_not), "no device: the driver finds no GPU");
}

static void probe(void)
{
    int count = 0;
    cudaError_t err;

    if (cudaRuntimeGetVersion(&runtime_version) != cudaSuccess)
        runtime_version = CUDART_VERSION;
    if (!load_driver())
        return;
    base_lengthen_descriptors_meanwhile(); /* files may be opened as soon as CUDA has started */
    if (cudaDriverGetVersion(&driver_version) != cudaSuccess)
        driver_version = 0;
    err = cudaGetDeviceCount(&count);
    if (err == cudaErrorInsufficientDriver)
        snprintf(why_not, sizeof(why_not),
                 "driver too old: it has CUDA %d.%d, this build is for %d.%d",
                 driver_version / 1000, driver_version % 1000 / 10, runtime_version / 1000,
                 runtime_version % 1000 / 10);
    else if (err == cudaErrorNoDevice || (err == cudaSuccess && count < 1))
        say_no_device();
    else if (err != cudaSuccess)
        snprintf(why_not, sizeof(why_not), "the driver does not start: %s (%s)",
                 cudaGetErrorString(err), cudaGetErrorName(err));
    else
        ndevices = count < MAX_DEVICES ? (unsigned)count : MAX_DEVICES;
    if (err != cudaSuccess)
        (void)cudaGetLastError(); /* told above; nobody else shall find it */
}

gpunvme_err_t mem_cuda_fail(cudaError_t err, const char *format, ...)
{
    char text[128];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    (void)cudaGetLastError(); /* told here: the caller's own checks shall not find it again */
    return base_fail(GPUNVME_ERR_GPU, "%s: %s (%s)", text, cudaGetErrorString(err),
                     cudaGetErrorName(err));
}

static gpunvme_err_t driver_fail(CUresult result, const char *what, int device)
{
    const char *text = NULL;

    driver.error_string(result, &text);
    return base_fail(GPUNVME_ERR_GPU, "%s of GPU %d: %s (CUDA driver error %d)", what, device,
                     text ? text : "unknown error", (int)result);
}

void *mem_cuda_driver_symbol(const char *symbol)
{
    pthread_once(&probed, probe);
    return driver_library ? dlsym(driver_library, symbol) : NULL;
}

bool mem_cuda_present(void)
{
    pthread_once(&probed, probe);
    return ndevices > 0;
}

const char *mem_cuda_why_not(void)
{
    pthread_once(&probed, probe);
    return why_not;
}

unsigned mem_cuda_count(void)
{
    pthread_once(&probed, probe);
    return ndevices;
}

gpunvme_err_t mem_cuda_info(unsigned index, struct gpunvme_gpu_info *info)
{
    struct cudaDeviceProp prop;
    cudaError_t err;

    memset(info, 0, sizeof(*info));
    pthread_once(&probed, probe);
    info->driver_version = (unsigned)driver_version;
    info->runtime_version = (unsigned)runtime_version;
    if (ndevices == 0)
        return base_fail(GPUNVME_ERR_NO_GPU, "%s", why_not);
    if (index >= ndevices)
        return base_fail(GPUNVME_ERR_INVALID, "GPU %u: there are %u, from 0 on", index, ndevices);
    err = cudaGetDeviceProperties(&prop, (int)index);
    if (err == cudaSuccess)
        err = cudaDeviceGetPCIBusId(info->pci_address, sizeof(info->pci_address), (int)index);
    if (err != cudaSuccess)
        return mem_cuda_fail(err, "properties of GPU %u", index);
    snprintf(info->name, sizeof(info->name), "%s", prop.name);
    info->cc_major = (unsigned)prop.major;
    info->cc_minor = (unsigned)prop.minor;
    info->nprocessors = (unsigned)prop.multiProcessorCount;
    info->memory_nbytes = prop.totalGlobalMem;
    for (char *c = info->pci_address; *c; c++)
        *c = (char)tolower((unsigned char)*c);
    return GPUNVME_OK;
}

static int attribute(unsigned index, enum cudaDeviceAttr which)
{
    int value;

    if (cudaDeviceGetAttribute(&value, which, (int)index) == cudaSuccess)
        return value;
    (void)cudaGetLastError();
    return -1;
}

struct mem_ordering mem_cuda_ordering(unsigned index)
{
    struct mem_ordering none = {-1, -1};

    pthread_once(&probed, probe);
    if (index >= ndevices)
        return none;
    return (struct mem_ordering){
        .writes = attribute(index, cudaDevAttrGPUDirectRDMAWritesOrdering),
        .flush_options = attribute(index, cudaDevAttrGPUDirectRDMAFlushWritesOptions),
    };
}

static gpunvme_err_t current_device(int *device)
{
    cudaError_t err = cudaGetDevice(device);

    return err == cudaSuccess ? GPUNVME_OK : mem_cuda_fail(err, "cudaGetDevice");
}

gpunvme_err_t mem_cuda_current(unsigned *index)
{
    int device = 0;
    gpunvme_err_t err = current_device(&device);

    *index = (unsigned)device;
    return err;
}

enum mem_cuda_kind mem_cuda_kind(const void *ptr, int *device)
{
    CUpointer_attribute names[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                   CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                   CU_POINTER_ATTRIBUTE_IS_MANAGED};
    CUmemorytype type = (CUmemorytype)0;
    int ordinal = -1;
    unsigned managed = 0; /* the driver stores one byte or four of it */
    void *values[] = {&type, &ordinal, &managed};

    if (driver.pointer_get_attributes(3, names, values, (CUdeviceptr)(uintptr_t)ptr) !=
            CUDA_SUCCESS ||
        ordinal < 0 || ordinal >= MAX_DEVICES)
        return MEM_CUDA_UNKNOWN;
    *device = ordinal;
    if (managed)
        return MEM_CUDA_MANAGED;
    if (type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_UNIFIED)
        return MEM_CUDA_DEVICE;
    return type == CU_MEMORYTYPE_HOST ? MEM_CUDA_PINNED : MEM_CUDA_UNKNOWN;
}

/* The device of memory that the caller says a GPU can reach. */
static gpunvme_err_t device_of(const void *gpu, int *device)
{
    if (mem_cuda_kind(gpu, device) == MEM_CUDA_UNKNOWN)
        return base_fail(GPUNVME_ERR_INVALID, "%p is not a GPU address", gpu);
    return GPUNVME_OK;
}

static gpunvme_err_t context_of(int device, CUcontext *context)
{
    CUdevice handle;
    CUresult result = CUDA_SUCCESS;

    pthread_mutex_lock(&lock);
    if (!contexts[device]) {
        result = driver.device_get(&handle, device);
        if (result == CUDA_SUCCESS)
            result = driver.ctx_retain(&contexts[device], handle);
    }
    *context = contexts[device];
    pthread_mutex_unlock(&lock);
    return result == CUDA_SUCCESS ? GPUNVME_OK : driver_fail(result, "the context", device);
}

/* How often the thread has entered, and what it was allowed to do while a graph is captured. */
static _Thread_local unsigned nrelaxed;
static _Thread_local CUstreamCaptureMode mode_before;

/* Until tense(): captures by the program do not keep this thread from anything. Nests. */
static void relax(void)
{
    if (nrelaxed++)
        return;
    mode_before = CU_STREAM_CAPTURE_MODE_RELAXED;
    driver.capture_mode(&mode_before);
}

static void tense(void)
{
    if (nrelaxed && !--nrelaxed)
        driver.capture_mode(&mode_before);
}

/* Makes `device` the thread's current one until leave(). */
static gpunvme_err_t enter(int device)
{
    CUcontext context;
    gpunvme_err_t err = context_of(device, &context);
    CUresult result;

    if (err)
        return err;
    result = driver.ctx_push(context);
    if (result != CUDA_SUCCESS)
        return driver_fail(result, "entering the context", device);
    relax();
    return GPUNVME_OK;
}

static void leave(void)
{
    CUcontext context;

    tense();
    driver.ctx_pop(&context); /* fails only if the context is not there: left already */
}

bool mem_cuda_range(const void *ptr, struct mem_range *range)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    CUdeviceptr begin = 0;
    size_t nbytes = 0;
    int device;

    if (mem_cuda_kind(ptr, &device) == MEM_CUDA_UNKNOWN || enter(device))
        return false;
    if (driver.address_range(&begin, &nbytes, (CUdeviceptr)(uintptr_t)ptr) != CUDA_SUCCESS ||
        (uintptr_t)ptr - (uintptr_t)begin >= nbytes) { /* host memory that was pinned, perhaps */
        begin = (CUdeviceptr)((uintptr_t)ptr & ~(page - 1));
        nbytes = page;
    }
    leave();
    *range = (struct mem_range){.begin = (uintptr_t)begin, .nbytes = nbytes, .gpu = device};
    return true;
}

gpunvme_err_t mem_cuda_enter(unsigned device)
{
    if (device >= ndevices)
        return base_fail(GPUNVME_ERR_INVALID, "GPU %u: there are %u, from 0 on", device, ndevices);
    return enter((int)device);
}

void mem_cuda_leave(void)
{
    leave();
}

/* Lets the current device `from` reach the memory of `to`. */
static gpunvme_err_t enable_peer(int from, int to)
{
    cudaError_t err = cudaDeviceEnablePeerAccess(to, 0);

    if (err == cudaErrorPeerAccessAlreadyEnabled) {
        (void)cudaGetLastError();
        return GPUNVME_OK;
    }
    return err == cudaSuccess
               ? GPUNVME_OK
               : mem_cuda_fail(err, "access of GPU %d to memory of GPU %d", from, to);
}

static gpunvme_err_t let_reach(int from, int to)
{
    int can = 0;
    cudaError_t cuda_err = cudaDeviceCanAccessPeer(&can, from, to);
    gpunvme_err_t err;

    if (cuda_err != cudaSuccess)
        return mem_cuda_fail(cuda_err, "whether GPU %d reaches GPU %d", from, to);
    if (!can)
        return base_fail(GPUNVME_ERR_UNSUPPORTED,
                         "GPU %d can't reach memory of GPU %d: no peer access between them", from,
                         to);
    err = enter(from);
    if (err)
        return err;
    err = enable_peer(from, to);
    leave();
    return err;
}

gpunvme_err_t mem_cuda_peers(unsigned a, unsigned b)
{
    gpunvme_err_t err;

    if (a == b)
        return GPUNVME_OK;
    err = let_reach((int)a, (int)b);
    return err ? err : let_reach((int)b, (int)a);
}

uint64_t mem_cuda_now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

gpunvme_err_t mem_cuda_answer(cudaError_t err, bool *done)
{
    *done = err == cudaSuccess;
    if (err == cudaErrorNotReady)
        (void)cudaGetLastError(); /* an answer, not an error */
    else if (err != cudaSuccess)
        return mem_cuda_fail(err, "work on the GPU failed");
    return GPUNVME_OK;
}

static gpunvme_err_t query(cudaStream_t stream, bool *done)
{
    return mem_cuda_answer(cudaStreamQuery(stream), done);
}

/* Small copies take microseconds and are waited for by asking; longer ones let others work. */
static gpunvme_err_t wait_for(cudaStream_t stream, uint64_t timeout_ns)
{
    const struct timespec nap = {.tv_nsec = 20000};
    uint64_t start = mem_cuda_now_ns(), waited;
    gpunvme_err_t err;
    bool done;

    for (;;) {
        err = query(stream, &done);
        if (err || done)
            return err;
        waited = mem_cuda_now_ns() - start;
        if (waited >= timeout_ns)
            return base_fail(GPUNVME_ERR_TIMEOUT, "work on the GPU is not done after %llu ms",
                             (unsigned long long)(waited / 1000000));
        if (waited > 50000)
            nanosleep(&nap, NULL);
    }
}

#define MARKED_NS 1000000u /* then the driver is asked, also for errors */

/* The same for kernels beside copies: to ask the driver would take a lock that copies need. */
static gpunvme_err_t wait_for_kernel(struct worker *worker, uint64_t timeout_ns)
{
    const struct timespec nap = {.tv_nsec = 20000};
    uint64_t start = mem_cuda_now_ns(), waited = 0;
    uint32_t mark = 0;
    gpunvme_err_t err = worker->word ? GPUNVME_OK : mem_cuda_word_take(&worker->word);

    if (!err)
        err = mem_cuda_word_mark(worker->word, worker->stream, &mark);
    while (!err && waited < MARKED_NS) {
        if (mem_cuda_word_passed(worker->word, mark))
            return GPUNVME_OK;
        waited = mem_cuda_now_ns() - start;
        if (waited > 50000)
            nanosleep(&nap, NULL);
        else
            base_relax();
    }
    return wait_for(worker->stream, timeout_ns);
}

/*
 * All streams here have the highest priority: of kernels that wait for room, the GPU takes those
 * first. What they do is short, and it is what others compute with next.
 */
static gpunvme_err_t new_stream(cudaStream_t *stream)
{
    int least = 0, greatest = 0;
    cudaError_t err = cudaDeviceGetStreamPriorityRange(&least, &greatest);

    if (err == cudaSuccess)
        err = cudaStreamCreateWithPriority(stream, cudaStreamNonBlocking, greatest);
    return err == cudaSuccess ? GPUNVME_OK : mem_cuda_fail(err, "cudaStreamCreateWithPriority");
}

static gpunvme_err_t new_worker(int device, struct worker **out)
{
    struct worker *worker = calloc(1, sizeof(*worker));
    gpunvme_err_t err;

    if (!worker)
        return base_fail(GPUNVME_ERR_NOMEM, "a stream");
    worker->device = device;
    err = new_stream(&worker->stream);
    if (err) {
        free(worker);
        return err;
    }
    *out = worker;
    return GPUNVME_OK;
}

/* Enters the device and takes a worker there, until stop(). */
static gpunvme_err_t start(int device, struct worker **out)
{
    gpunvme_err_t err = enter(device);

    if (err)
        return err;
    pthread_mutex_lock(&lock);
    *out = idle[device];
    if (*out)
        idle[device] = (*out)->next;
    pthread_mutex_unlock(&lock);
    if (!*out)
        err = new_worker(device, out);
    if (err)
        leave();
    return err;
}

/* Waits for an operation, if it could be started. */
static gpunvme_err_t finish(const struct worker *worker, gpunvme_err_t started, size_t nbytes)
{
    return started ? started : wait_for(worker->stream, WORK_TIMEOUT_NS(nbytes));
}

/*
 * Gives back what start() took, after an operation that ended with `err`. A worker whose work
 * does not end is left to it, since its stream and its memory are still in use.
 */
static void stop(struct worker *worker, gpunvme_err_t err)
{
    if (err != GPUNVME_ERR_TIMEOUT) {
        pthread_mutex_lock(&lock);
        worker->next = idle[worker->device];
        idle[worker->device] = worker;
        pthread_mutex_unlock(&lock);
    }
    leave();
}

gpunvme_err_t mem_cuda_keep_ready(unsigned device)
{
    struct worker *workers[MEM_CUDA_READY];
    unsigned n = 0;
    gpunvme_err_t err = GPUNVME_OK;

    while (!err && n < MEM_CUDA_READY) {
        err = start((int)device, &workers[n]);
        n += !err;
    }
    while (n)
        stop(workers[--n], GPUNVME_OK);
    return err;
}

static gpunvme_err_t start_copy(void *dst, const void *src, size_t nbytes, cudaStream_t stream)
{
    cudaError_t err = cudaMemcpyAsync(dst, src, nbytes, cudaMemcpyDefault, stream);

    return err == cudaSuccess ? GPUNVME_OK : mem_cuda_fail(err, "copy of %zu bytes", nbytes);
}

/* All addresses that are said to be a GPU's must be; *device is that of the first. */
static gpunvme_err_t device_of_copy(const void *dst, bool dst_gpu, const void *src, bool src_gpu,
                                    int *device)
{
    gpunvme_err_t err = src_gpu ? device_of(src, device) : GPUNVME_OK;

    return !err && dst_gpu ? device_of(dst, device) : err;
}

gpunvme_err_t mem_cuda_copy(void *dst, bool dst_gpu, const void *src, bool src_gpu, size_t nbytes)
{
    struct worker *worker;
    int device = 0;
    gpunvme_err_t err = device_of_copy(dst, dst_gpu, src, src_gpu, &device);

    if (!err)
        err = start(device, &worker);
    if (err)
        return err;
    err = finish(worker, start_copy(dst, src, nbytes, worker->stream), nbytes);
    stop(worker, err);
    return err;
}

static gpunvme_err_t start_fill(void *dst, uint8_t value, size_t nbytes, cudaStream_t stream)
{
    cudaError_t err = cudaMemsetAsync(dst, value, nbytes, stream);

    return err == cudaSuccess ? GPUNVME_OK : mem_cuda_fail(err, "fill of %zu bytes", nbytes);
}

gpunvme_err_t mem_cuda_fill(void *dst, uint8_t value, size_t nbytes)
{
    struct worker *worker;
    int device = 0;
    gpunvme_err_t err = device_of(dst, &device);

    if (!err)
        err = start(device, &worker);
    if (err)
        return err;
    err = finish(worker, start_fill(dst, value, nbytes, worker->stream), nbytes);
    stop(worker, err);
    return err;
}

gpunvme_err_t mem_cuda_alloc(size_t nbytes, void **gpu)
{
    gpunvme_err_t fill_err;
    cudaError_t err;

    relax();
    err = cudaMalloc(gpu, nbytes);
    tense();
    if (err != cudaSuccess) {
        *gpu = NULL;
        return mem_cuda_fail(err, "cudaMalloc of %zu bytes", nbytes);
    }
    fill_err = mem_cuda_fill(*gpu, 0, nbytes);
    if (fill_err) {
        cudaFree(*gpu);
        *gpu = NULL;
    }
    return fill_err;
}

gpunvme_err_t mem_cuda_free(void *gpu)
{
    int device = 0;
    gpunvme_err_t err = device_of(gpu, &device);
    cudaError_t cuda_err;

    if (!err)
        err = enter(device);
    if (err)
        return err;
    cuda_err = cudaFree(gpu);
    if (cuda_err != cudaSuccess)
        err = mem_cuda_fail(cuda_err, "cudaFree");
    leave();
    return err;
}

/*
 * The driver exports whole pages of the host. cuMemGetHandleForAddressRange() came with CUDA 11.7:
 * it is looked up here, so that older drivers do for all else.
 */
gpunvme_err_t mem_cuda_export(const void *gpu, size_t nbytes, int *fd, uint64_t *offset)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)gpu;
    uintptr_t begin = at & ~(page - 1), end = (at + nbytes + page - 1) & ~(page - 1);
    __typeof__(cuMemGetHandleForAddressRange) *get_handle;
    void *symbol = mem_cuda_driver_symbol("cuMemGetHandleForAddressRange");
    CUresult result;
    int device;
    gpunvme_err_t err;

    if (!symbol)
        return base_fail(GPUNVME_ERR_UNSUPPORTED, "the GPU's driver is too old to export memory");
    memcpy(&get_handle, &symbol, sizeof(symbol));
    if (mem_cuda_kind(gpu, &device) != MEM_CUDA_DEVICE)
        return base_fail(GPUNVME_ERR_INVALID, "%p is no GPU memory", gpu);
    err = enter(device);
    if (err)
        return err;
    result =
        get_handle(fd, (CUdeviceptr)begin, end - begin, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
    leave();
    if (result != CUDA_SUCCESS)
        return base_fail(GPUNVME_ERR_UNSUPPORTED,
                         "GPU %d exports no dma-buf of this memory (CUDA driver error %d): it "
                         "takes the open kernel modules of NVIDIA's driver and a GPU of Turing or "
                         "later",
                         device, (int)result);
    *offset = at - begin;
    return GPUNVME_OK;
}

/* The address on the current device of what was registered just now. */
static gpunvme_err_t map_pinned(void *cpu, void **gpu)
{
    cudaError_t err = cudaHostGetDevicePointer(gpu, cpu, 0);

    if (err == cudaSuccess)
        return GPUNVME_OK;
    *gpu = NULL;
    cudaHostUnregister(cpu);
    return mem_cuda_fail(err, "cudaHostGetDevicePointer");
}

gpunvme_err_t mem_cuda_pin(void *cpu, size_t nbytes, void **gpu)
{
    cudaError_t err;

    *gpu = NULL;
    relax();
    err = cudaHostRegister(cpu, nbytes, cudaHostRegisterPortable | cudaHostRegisterMapped);
    tense();
    if (err != cudaSuccess)
        return mem_cuda_fail(err, "cudaHostRegister of %zu bytes", nbytes);
    return map_pinned(cpu, gpu);
}

gpunvme_err_t mem_cuda_unpin(void *cpu)
{
    int device = 0;
    gpunvme_err_t err = device_of(cpu, &device);
    cudaError_t cuda_err;

    if (!err)
        err = enter(device);
    if (err)
        return err;
    cuda_err = cudaHostUnregister(cpu);
    if (cuda_err != cudaSuccess)
        err = mem_cuda_fail(cuda_err, "cudaHostUnregister");
    leave();
    return err;
}

gpunvme_err_t mem_cuda_pinned_address(void *cpu, void **gpu)
{
    int device = 0;
    gpunvme_err_t err = device_of(cpu, &device);
    cudaError_t cuda_err;

    *gpu = NULL;
    if (!err)
        err = enter(device);
    if (err)
        return err;
    cuda_err = cudaHostGetDevicePointer(gpu, cpu, 0);
    if (cuda_err != cudaSuccess)
        err = mem_cuda_fail(cuda_err, "cudaHostGetDevicePointer");
    leave();
    return err;
}

struct mem_cuda_stream {
    cudaStream_t stream;
    int device;
    struct mem_cuda_batch *batch; /* made when needed, under batch_lock */
    struct mem_cuda_word *word;   /* of marks, made when needed; NULL: none, or the driver can't */
    bool no_marks;
    unsigned looks; /* at marks that were not passed */
};

#define LOOKS_A_QUERY 256u /* for errors, of which a word does not tell */

static pthread_mutex_t batch_lock = PTHREAD_MUTEX_INITIALIZER;

gpunvme_err_t mem_cuda_stream_create(const void *near, struct mem_cuda_stream **out)
{
    struct mem_cuda_stream *stream;
    int device = 0;
    gpunvme_err_t err = near ? device_of(near, &device) : current_device(&device);

    *out = NULL;
    if (!err)
        err = enter(device);
    if (err)
        return err;
    stream = calloc(1, sizeof(*stream));
    if (!stream) {
        leave();
        return base_fail(GPUNVME_ERR_NOMEM, "a stream");
    }
    stream->device = device;
    err = new_stream(&stream->stream);
    if (err) {
        free(stream);
        stream = NULL;
    }
    leave();
    *out = stream;
    return err;
}

gpunvme_err_t mem_cuda_stream_destroy(struct mem_cuda_stream *stream)
{
    gpunvme_err_t err = enter(stream->device);
    cudaError_t cuda_err;

    if (!err) {
        if (cudaStreamQuery(stream->stream) == cudaSuccess) /* else it may still be written */
            mem_cuda_word_give(stream->word);
        mem_cuda_batch_destroy(stream->batch);
        cuda_err = cudaStreamDestroy(stream->stream);
        if (cuda_err != cudaSuccess)
            err = mem_cuda_fail(cuda_err, "cudaStreamDestroy");
        leave();
    }
    free(stream);
    return err;
}

gpunvme_err_t mem_cuda_stream_copy(struct mem_cuda_stream *stream, void *dst, bool dst_gpu,
                                   const void *src, bool src_gpu, size_t nbytes)
{
    int device; /* the copy may touch another GPU, but it runs on the stream's */
    gpunvme_err_t err = device_of_copy(dst, dst_gpu, src, src_gpu, &device);

    if (!err)
        err = enter(stream->device);
    if (err)
        return err;
    err = start_copy(dst, src, nbytes, stream->stream);
    leave();
    return err;
}

/* With its device the current one. */
static gpunvme_err_t need_batch(struct mem_cuda_stream *stream)
{
    gpunvme_err_t err = GPUNVME_OK;
    struct mem_cuda_batch *batch;

    if (__atomic_load_n(&stream->batch, __ATOMIC_ACQUIRE))
        return GPUNVME_OK;
    pthread_mutex_lock(&batch_lock);
    if (!stream->batch) {
        err = mem_cuda_batch_create(&batch);
        __atomic_store_n(&stream->batch, batch, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&batch_lock);
    return err;
}

gpunvme_err_t mem_cuda_stream_prepare_batches(struct mem_cuda_stream *stream)
{
    gpunvme_err_t err = enter(stream->device);

    if (err)
        return err;
    err = need_batch(stream);
    leave();
    return err;
}

gpunvme_err_t mem_cuda_stream_copy_batch(struct mem_cuda_stream *stream,
                                         const struct gpunvme_mem_piece *pieces, size_t n,
                                         enum mem_batch_way way, unsigned max_blocks)
{
    gpunvme_err_t err = enter(stream->device);

    if (err)
        return err;
    err = need_batch(stream);
    if (!err)
        err = mem_cuda_batch_copy(stream->batch, pieces, n, way, max_blocks, stream->stream);
    leave();
    return err;
}

gpunvme_err_t mem_cuda_stream_query(struct mem_cuda_stream *stream, bool *done)
{
    gpunvme_err_t err = enter(stream->device);

    *done = false;
    if (err)
        return err;
    err = query(stream->stream, done);
    leave();
    return err;
}

gpunvme_err_t mem_cuda_stream_mark(struct mem_cuda_stream *stream, uint32_t *mark)
{
    gpunvme_err_t err;

    *mark = 0;
    if (stream->no_marks)
        return GPUNVME_OK;
    err = enter(stream->device);
    if (err)
        return err;
    if (!stream->word)
        err = mem_cuda_word_take(&stream->word);
    if (!err)
        err = mem_cuda_word_mark(stream->word, stream->stream, mark);
    leave();
    stream->no_marks = err == GPUNVME_ERR_UNSUPPORTED;
    return stream->no_marks ? GPUNVME_OK : err;
}

gpunvme_err_t mem_cuda_stream_passed(struct mem_cuda_stream *stream, uint32_t mark, bool *passed)
{
    *passed = !stream->no_marks && mem_cuda_word_passed(stream->word, mark);
    if (*passed || (!stream->no_marks && ++stream->looks % LOOKS_A_QUERY))
        return GPUNVME_OK;
    return mem_cuda_stream_query(stream, passed);
}

gpunvme_err_t mem_cuda_stream_sync(struct mem_cuda_stream *stream, uint64_t timeout_ns)
{
    gpunvme_err_t err = enter(stream->device);

    if (err)
        return err;
    err = wait_for(stream->stream, timeout_ns);
    leave();
    return err;
}

gpunvme_err_t mem_cuda_kernels_create(void **stream)
{
    cudaStream_t created = NULL;
    gpunvme_err_t err = new_stream(&created);

    *stream = created;
    return err;
}

void mem_cuda_kernels_destroy(void *stream)
{
    cudaStreamDestroy(stream);
}

static gpunvme_err_t need_sums(struct worker *worker)
{
    void *cpu, *gpu;
    cudaError_t err;

    if (worker->sums_cpu)
        return GPUNVME_OK;
    err = cudaHostAlloc(&cpu, sizeof(struct checksums), cudaHostAllocMapped);
    if (err != cudaSuccess)
        return mem_cuda_fail(err, "cudaHostAlloc");
    err = cudaHostGetDevicePointer(&gpu, cpu, 0);
    if (err != cudaSuccess) {
        cudaFreeHost(cpu);
        return mem_cuda_fail(err, "cudaHostGetDevicePointer");
    }
    worker->sums_cpu = cpu;
    worker->sums_gpu = gpu;
    return GPUNVME_OK;
}

static gpunvme_err_t start_checksum(struct worker *worker, const void *gpu, size_t nbytes,
                                    unsigned *nblocks)
{
    gpunvme_err_t err = need_sums(worker);
    cudaError_t cuda_err;

    if (err)
        return err;
    cuda_err = mem_checksum_launch(gpu, nbytes, worker->device, worker->sums_gpu->partial, nblocks,
                                   worker->stream);
    return cuda_err == cudaSuccess ? GPUNVME_OK : mem_cuda_fail(cuda_err, "the checksum kernel");
}

gpunvme_err_t mem_cuda_checksum(const void *gpu, size_t nbytes, uint64_t *sum)
{
    struct worker *worker;
    unsigned nblocks;
    int device = 0;
    gpunvme_err_t err = device_of(gpu, &device);

    if (!err)
        err = start(device, &worker);
    if (err)
        return err;
    err = finish(worker, start_checksum(worker, gpu, nbytes, &nblocks), nbytes);
    *sum = 0;
    for (unsigned i = 0; !err && i < nblocks; i++)
        *sum += worker->sums_cpu->partial[i];
    *sum = mem_checksum_end(*sum, nbytes);
    stop(worker, err);
    return err;
}

/* Where a walk through ranges stands. */
struct checksum_cursor {
    const struct mem_checksum_range *ranges;
    size_t n, range, off;
};

/* The pieces of ranges from the cursor on that are on this GPU, as many as the table holds. */
static gpunvme_err_t cut_ranges(struct checksum_cursor *at, int device,
                                struct mem_checksum_piece *pieces, size_t *npieces)
{
    *npieces = 0;
    for (; at->range < at->n; at->range++, at->off = 0) {
        const struct mem_checksum_range *r = &at->ranges[at->range];
        int there = device;
        gpunvme_err_t err = r->nbytes && !at->off ? device_of(r->gpu, &there) : GPUNVME_OK;

        if (err || there != device)
            return err;
        for (size_t nbytes; at->off < r->nbytes; at->off += nbytes) {
            if (*npieces == MEM_CHECKSUM_MAX_BLOCKS)
                return GPUNVME_OK;
            nbytes = r->nbytes - at->off;
            if (nbytes > MEM_CHECKSUM_PIECE)
                nbytes = MEM_CHECKSUM_PIECE;
            pieces[(*npieces)++] =
                (struct mem_checksum_piece){.gpu = (const uint8_t *)r->gpu + at->off,
                                            .nbytes = nbytes,
                                            .first = at->off / 8,
                                            .range = at->range};
        }
    }
    return GPUNVME_OK;
}

static gpunvme_err_t sum_pieces(struct worker *worker, struct checksum_cursor *at, uint64_t *sums)
{
    gpunvme_err_t err = need_sums(worker);
    cudaError_t cuda_err;
    size_t npieces;

    if (!err)
        err = cut_ranges(at, worker->device, worker->sums_cpu->pieces, &npieces);
    if (err || !npieces)
        return err;
    cuda_err = mem_checksum_launch_pieces(worker->sums_gpu->pieces, (unsigned)npieces,
                                          worker->sums_gpu->partial, worker->stream);
    if (cuda_err != cudaSuccess)
        return mem_cuda_fail(cuda_err, "the checksum kernel");
    err = wait_for_kernel(worker, WORK_TIMEOUT_NS(npieces * MEM_CHECKSUM_PIECE));
    for (size_t i = 0; !err && i < npieces; i++)
        sums[worker->sums_cpu->pieces[i].range] += worker->sums_cpu->partial[i];
    return err;
}

gpunvme_err_t mem_cuda_checksums(const struct mem_checksum_range *ranges, size_t n, uint64_t *sums)
{
    struct checksum_cursor at = {.ranges = ranges, .n = n};
    gpunvme_err_t err = GPUNVME_OK;

    for (size_t i = 0; i < n; i++)
        sums[i] = mem_checksum_end(0, ranges[i].nbytes);
    while (!err && at.range < n) {
        struct worker *worker;
        int device = 0;

        if (!ranges[at.range].nbytes) {
            at.range++;
            continue;
        }
        err = device_of(ranges[at.range].gpu, &device);
        if (!err)
            err = start(device, &worker);
        if (err)
            return err;
        err = sum_pieces(worker, &at, sums);
        stop(worker, err);
    }
    return err;
}

gpunvme_err_t mem_cuda_convert(struct mem_convert *pieces, size_t n, size_t nbytes,
                               const void *near)
{
    struct worker *worker;
    int device = 0;
    cudaError_t cuda_err;
    gpunvme_err_t err = device_of(near, &device);

    if (!err)
        err = start(device, &worker);
    if (err)
        return err;
    cuda_err = mem_convert_launch(pieces, n, worker->stream);
    if (cuda_err != cudaSuccess)
        err = mem_cuda_fail(cuda_err, "the kernel that converts");
    else
        err = wait_for_kernel(worker, WORK_TIMEOUT_NS(nbytes));
    stop(worker, err);
    return err;
}

gpunvme_err_t mem_cuda_map_io(void *cpu, size_t nbytes, void **gpu)
{
    cudaError_t err = cudaHostRegister(
        cpu, nbytes, cudaHostRegisterPortable | cudaHostRegisterMapped | cudaHostRegisterIoMemory);

    *gpu = NULL;
    if (err != cudaSuccess)
        return mem_cuda_fail(err, "cudaHostRegister of %zu bytes of registers (IoMemory)", nbytes);
    err = cudaHostGetDevicePointer(gpu, cpu, 0);
    if (err != cudaSuccess) {
        cudaHostUnregister(cpu);
        return mem_cuda_fail(err, "cudaHostGetDevicePointer of registers");
    }
    return GPUNVME_OK;
}

gpunvme_err_t mem_cuda_unmap_io(void *cpu)
{
    cudaError_t err = cudaHostUnregister(cpu);

    return err == cudaSuccess ? GPUNVME_OK : mem_cuda_fail(err, "cudaHostUnregister of registers");
}

static gpunvme_err_t start_load(struct worker *worker, const void *gpu)
{
    gpunvme_err_t err = need_sums(worker);
    cudaError_t cuda_err;

    if (err)
        return err;
    cuda_err = mem_mmio_launch(gpu, worker->sums_gpu->partial, worker->stream);
    return cuda_err == cudaSuccess ? GPUNVME_OK : mem_cuda_fail(cuda_err, "the kernel that loads");
}

gpunvme_err_t mem_cuda_load32(const void *gpu, uint32_t *value)
{
    struct worker *worker;
    int device = 0;
    gpunvme_err_t err = current_device(&device);

    if (!err)
        err = start(device, &worker);
    if (err)
        return err;
    err = finish(worker, start_load(worker, gpu), sizeof(*value));
    *value = err ? 0 : (uint32_t)worker->sums_cpu->partial[0];
    stop(worker, err);
    return err;
}
