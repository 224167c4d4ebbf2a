/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How kernels are launched, and what the CUDA runtime says of them.
 */
#include <cuda_runtime_api.h>
#include <stdatomic.h>
#include <stdio.h>

#include "ops/core/operator.h"
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

/* The current device. Each call asks several times, so a thread remembers the last one. */
static gpunvme_ops_status_t current_device(const struct gpunvme_ops_capability **device)
{
    static _Thread_local struct gpunvme_ops_capability last; /* units 0: there is none yet */
    int index, error = cudaGetDevice(&index);

    *device = &last;
    if (error)
        return cuda_status(error, "asking for the current GPU");
    if (last.units && last.index == index)
        return GPUNVME_OPS_OK;
    last.units = 0;
    return ask_device(index, &last);
}

int cuda_units(void)
{
    const struct gpunvme_ops_capability *device;

    return current_device(&device) ? 1 : device->units;
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
    const struct gpunvme_ops_capability *device;

    return !current_device(&device) && ops_cuda_has_clusters(device->sm);
}

gpunvme_ops_status_t cuda_allow_shared(const void *kernel, size_t nbytes)
{
    if (nbytes <= 48 * 1024)
        return GPUNVME_OPS_OK;
    return cuda_status(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)nbytes),
        "asking for shared memory");
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
