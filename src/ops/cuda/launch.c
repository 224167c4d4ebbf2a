/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How kernels are launched, and what the CUDA runtime says of them.
 */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#include "ops/core/operator.h"
#include "ops/cuda/driver.h"
#include "ops/cuda/launch.h"

/* What this build has code of sm_90 and later for: these GPUs, and (PTX) all from one on. */
#ifndef OPS_CLUSTERS_OF
#define OPS_CLUSTERS_OF   90
#define OPS_CLUSTERS_FROM INT_MAX
#endif

gpunvme_ops_status_t cuda_status(int error, const char *doing)
{
    if (error == cudaSuccess)
        return GPUNVME_OPS_OK;
    return ops_fail(GPUNVME_OPS_ERR_CUDA, "%s: %s (%s)", doing,
                    cudaGetErrorString((cudaError_t)error), cudaGetErrorName((cudaError_t)error));
}

/* All but a device's name. */
static gpunvme_ops_status_t ask_device(int index, struct gpunvme_ops_capability *known)
{
    int major = 0, minor = 0, units = 0, shared = 0, cache = 0;
    int error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index);

    if (!error)
        error = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index);
    if (!error)
        error = cudaDeviceGetAttribute(&units, cudaDevAttrMultiProcessorCount, index);
    if (!error)
        error = cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, index);
    if (!error)
        error = cudaDeviceGetAttribute(&cache, cudaDevAttrL2CacheSize, index);
    if (error)
        return cuda_status(error, "asking for a GPU's attributes");
    known->index = index;
    known->sm = 10 * major + minor;
    known->units = units;
    known->shared_nbytes = shared;
    known->cache_nbytes = cache;
    snprintf(known->features, sizeof(known->features), "sm_%d%s", known->sm,
             known->sm == 90 ? "a" : "");
    return GPUNVME_OPS_OK;
}

static _Thread_local struct gpunvme_ops_capability last; /* units 0: there is none yet */

/* The current device, which a thread remembers. */
static gpunvme_ops_status_t current_device(const struct gpunvme_ops_capability **device)
{
    int index, error = cudaGetDevice(&index);

    *device = &last;
    if (error)
        return cuda_status(error, "asking for the current GPU");
    if (last.units && last.index == index)
        return GPUNVME_OPS_OK;
    last.units = 0;
    return ask_device(index, &last);
}

/* Each call of an operator begins with current_device(): what follows need not ask again. */
static const struct gpunvme_ops_capability *known_device(void)
{
    const struct gpunvme_ops_capability *device = &last;

    return last.units || !current_device(&device) ? device : NULL;
}

int cuda_units(void)
{
    const struct gpunvme_ops_capability *device = known_device();

    return device ? device->units : 1;
}

int cuda_sm(void)
{
    const struct gpunvme_ops_capability *device = known_device();

    return device ? device->sm : 0;
}

int cuda_device(void)
{
    const struct gpunvme_ops_capability *device = known_device();

    return device ? device->index : -1;
}

int ops_cuda_has_clusters(int sm)
{
    static const int of[] = {OPS_CLUSTERS_OF};

    for (size_t i = 0; i < sizeof(of) / sizeof(of[0]); i++)
        if (of[i] == sm)
            return 1;
    return sm >= OPS_CLUSTERS_FROM;
}

int cuda_has_clusters(void)
{
    return ops_cuda_has_clusters(cuda_sm());
}

void *cuda_driver_function(const char *name)
{
    enum cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
    void *address = NULL;
    int error;

#if CUDART_VERSION >= 12050
    error = cudaGetDriverEntryPointByVersion(name, &address, 12000, cudaEnableDefault, &result);
#else
    error = cudaGetDriverEntryPoint(name, &address, cudaEnableDefault, &result);
#endif
    return !error && result == cudaDriverEntryPointSuccess ? address : NULL;
}

/*
 * The number of the current context, which no later one of this process has, even if the device was
 * reset. 0: there is none yet, or the driver cannot tell.
 */
static uint64_t context_number(void)
{
    typedef CUresult (*get_id_fn)(CUcontext, unsigned long long *);
    static _Atomic(get_id_fn) known;
    get_id_fn get_id = known;
    unsigned long long number = 0;

    if (!get_id) {
        *(void **)&get_id = cuda_driver_function("cuCtxGetId");
        known = get_id;
    }
    return get_id && !get_id(NULL, &number) ? number : 0;
}

/* Attributes of kernels that were set, of which one that is taken stays so. */
static struct set {
    uint64_t context;
    const void *kernel;
    int attribute, value;
} sets[512];
static pthread_mutex_t sets_lock = PTHREAD_MUTEX_INITIALIZER;

/* Where it is, or may be: then its value is 0. NULL: there is no place left. The lock is held. */
static struct set *find_set(uint64_t context, const void *kernel, int attribute)
{
    const size_t count = sizeof(sets) / sizeof(sets[0]);
    size_t first = (size_t)(((uintptr_t)kernel / 16 + context * 64 + (unsigned)attribute) % count);

    for (size_t i = 0; i < count && context; i++) {
        struct set *x = &sets[(first + i) % count];

        if (!x->kernel)
            *x = (struct set){context, kernel, attribute, 0};
        if (x->kernel == kernel && x->context == context && x->attribute == attribute)
            return x;
    }
    return NULL;
}

/* It is never lowered, for another thread may be about to launch. Without a place for it it is set
 * in each call. */
static gpunvme_ops_status_t raise_to(const void *kernel, enum cudaFuncAttribute attribute,
                                     int value)
{
    int error = cudaSuccess;
    struct set *known;

    pthread_mutex_lock(&sets_lock);
    known = find_set(context_number(), kernel, (int)attribute);
    if (!known || known->value < value) {
        error = cudaFuncSetAttribute(kernel, attribute, value);
        if (known && !error)
            known->value = value;
    }
    pthread_mutex_unlock(&sets_lock);
    return cuda_status(error, "asking for shared memory");
}

gpunvme_ops_status_t cuda_allow_shared(const void *kernel, size_t nbytes)
{
    return nbytes <= 48 * 1024
               ? GPUNVME_OPS_OK
               : raise_to(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)nbytes);
}

gpunvme_ops_status_t cuda_prefer_shared(const void *kernel)
{
    return raise_to(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                    cudaSharedmemCarveoutMaxShared);
}

int cuda_resident_clusters(const void *kernel, int threads, int cluster, size_t nbytes)
{
    static _Thread_local struct answer {
        const void *kernel;
        int device, cluster, count;
    } all[32];
    struct answer *known = &all[((uintptr_t)kernel / 16 + (uintptr_t)cluster) % 32];
    cudaLaunchAttribute attribute = {.id = cudaLaunchAttributeClusterDimension};
    cudaLaunchConfig_t config = {.dynamicSmemBytes = nbytes, .attrs = &attribute, .numAttrs = 1};
    int device, count = 0;

    if (cudaGetDevice(&device))
        return 1;
    if (known->kernel == kernel && known->device == device && known->cluster == cluster)
        return known->count;
    attribute.val.clusterDim.x = (unsigned)cluster;
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    config.gridDim = (struct dim3){(unsigned)cluster, 1, 1};
    config.blockDim = (struct dim3){(unsigned)threads, 1, 1};
    if (cudaOccupancyMaxActiveClusters(&count, kernel, &config)) {
        cudaGetLastError(); /* which is not the launch's */
        return 1;
    }
    if (count < 1)
        return 1;
    *known = (struct answer){kernel, device, cluster, count};
    return count;
}

/* Its steps can be undone, so different numbers stay different (Stafford's mixer). */
uint64_t cuda_call_tag(void)
{
    static _Atomic uint64_t calls;
    uint64_t x = atomic_fetch_add_explicit(&calls, 1, memory_order_relaxed) + 0x6a09e667f3bcc909;

    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}

gpunvme_ops_status_t cuda_describe(const void *kernel, const struct cuda_tiling *tiling,
                                   int64_t blocks, struct cuda_launch *launch)
{
    struct cudaFuncAttributes attributes;
    int device, resident = 0, most = 1;
    int error = cudaFuncGetAttributes(&attributes, kernel);

    if (!error)
        error = cudaGetDevice(&device);
    if (!error)
        error = cudaDeviceGetAttribute(&most, cudaDevAttrMaxThreadsPerMultiProcessor, device);
    if (!error)
        error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, tiling->threads,
                                                              tiling->shared_nbytes);
    if (error)
        return cuda_status(error, "asking about a kernel");
    launch->tiling = *tiling;
    launch->registers = attributes.numRegs;
    launch->blocks = blocks;
    launch->shared_nbytes = (int64_t)(attributes.sharedSizeBytes + tiling->shared_nbytes);
    launch->occupancy = (double)resident * tiling->threads / most;
    return GPUNVME_OPS_OK;
}

static gpunvme_ops_status_t check_count(int index)
{
    int count = 0, error = cudaGetDeviceCount(&count);

    if (error || !count)
        return ops_fail(GPUNVME_OPS_ERR_DEVICE, "there is no GPU that CUDA can use: %s",
                        error ? cudaGetErrorString((cudaError_t)error) : "none was found");
    if (index >= count)
        return ops_fail(GPUNVME_OPS_ERR_DEVICE, "there is no GPU number %d: there are %d", index,
                        count);
    return GPUNVME_OPS_OK;
}

gpunvme_ops_status_t ops_cuda_capability(int index, struct gpunvme_ops_capability *out)
{
    const struct gpunvme_ops_capability *device;
    struct cudaDeviceProp properties;
    gpunvme_ops_status_t status;

    if (index == OPS_CURRENT_DEVICE) {
        gpunvme_ops_status_t absent;

        status = current_device(&device);
        if (!status) {
            *out = *device;
            out->device = GPUNVME_OPS_CUDA;
            return GPUNVME_OPS_OK;
        }
        absent = check_count(index);
        return absent ? absent : status;
    }
    status = check_count(index);
    if (status)
        return status;
    status =
        cuda_status(cudaGetDeviceProperties(&properties, index), "asking for a GPU's properties");
    if (status)
        return status;
    snprintf(out->name, sizeof(out->name), "%.95s", properties.name);
    return ask_device(index, out);
}
