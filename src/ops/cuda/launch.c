/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How kernels are launched, and what the CUDA runtime says of them.
 */
#include <cuda_runtime_api.h>
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

int cuda_units(void)
{
    int device, units;

    if (cudaGetDevice(&device) ||
        cudaDeviceGetAttribute(&units, cudaDevAttrMultiProcessorCount, device))
        return 1;
    return units;
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
    int device, major, minor;

    return !cudaGetDevice(&device) &&
           !cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) &&
           !cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) &&
           ops_cuda_has_clusters(10 * major + minor);
}

gpunvme_ops_status_t cuda_allow_shared(const void *kernel, size_t nbytes)
{
    if (nbytes <= 48 * 1024)
        return GPUNVME_OPS_OK;
    return cuda_status(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)nbytes),
        "asking for shared memory");
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

gpunvme_ops_status_t ops_cuda_capability(int index, struct gpunvme_ops_capability *out)
{
    struct cudaDeviceProp properties;
    int count = 0, major = 0, minor = 0, units = 0, shared = 0, cache = 0;
    int error = cudaGetDeviceCount(&count);

    if (error || !count)
        return ops_fail(GPUNVME_OPS_ERR_DEVICE, "there is no GPU that CUDA can use: %s",
                        error ? cudaGetErrorString((cudaError_t)error) : "none was found");
    if (index >= count)
        return ops_fail(GPUNVME_OPS_ERR_DEVICE, "there is no GPU number %d: there are %d", index,
                        count);
    if (index != OPS_CURRENT_DEVICE) {
        error = cudaGetDeviceProperties(&properties, index);
        if (error)
            return cuda_status(error, "asking for a GPU's properties");
        snprintf(out->name, sizeof(out->name), "%.95s", properties.name);
    } else {
        error = cudaGetDevice(&index);
    }
    if (!error)
        error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index);
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
    out->index = index;
    out->sm = 10 * major + minor;
    out->units = units;
    out->shared_nbytes = shared;
    out->cache_nbytes = cache;
    snprintf(out->features, sizeof(out->features), "sm_%d%s", out->sm, out->sm == 90 ? "a" : "");
    return GPUNVME_OPS_OK;
}
