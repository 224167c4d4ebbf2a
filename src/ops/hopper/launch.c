/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Tensor maps, and the launch of clusters.
 */
#include "ops/hopper/launch.h"

#include <cuda_runtime_api.h>

#include "ops/cuda/driver.h"
#include "ops/cuda/launch.h"

typedef CUresult (*encode_fn)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                              const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                              const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                              CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

static encode_fn find_encode(void)
{
    static _Atomic(encode_fn) known;
    encode_fn found = known;

    if (!found) {
        *(void **)&found = cuda_driver_function("cuTensorMapEncodeTiled");
        known = found;
    }
    return found;
}

/* `rank` dimensions, the contiguous one first; strides in bytes, from the second on. */
static gpunvme_ops_status_t encode(CUtensorMap *map, const void *data, CUtensorMapDataType type,
                                   unsigned rank, const uint64_t *size, const uint64_t *stride,
                                   const uint32_t *box)
{
    const cuuint32_t steps[4] = {1, 1, 1, 1};
    cuuint64_t sizes[4], strides[3];
    encode_fn function = find_encode();
    CUresult result;

    if (!function)
        return ops_fail(GPUNVME_OPS_ERR_CUDA, "the driver has no cuTensorMapEncodeTiled: it must "
                                              "be one for CUDA 12.0 or later");
    for (unsigned i = 0; i < rank; i++) {
        sizes[i] = size[i];
        strides[i ? i - 1 : 0] = stride[i ? i - 1 : 0];
    }
    result = function(map, type, rank, (void *)(uintptr_t)data, sizes, strides, box, steps,
                      CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result)
        return ops_fail(GPUNVME_OPS_ERR_CUDA,
                        "cuTensorMapEncodeTiled failed (%d) for %llu x %llu elements, %llu bytes "
                        "from row to row",
                        (int)result, (unsigned long long)size[1], (unsigned long long)size[0],
                        (unsigned long long)stride[0]);
    return GPUNVME_OPS_OK;
}

gpunvme_ops_status_t hopper_encode(CUtensorMap *map, const void *data, CUtensorMapDataType type,
                                   const struct hopper_tensor *x)
{
    return encode(map, data, type, 3, x->size, x->stride, x->box);
}

gpunvme_ops_status_t hopper_encode4(CUtensorMap *map, const void *data, CUtensorMapDataType type,
                                    const struct hopper_tensor4 *x)
{
    return encode(map, data, type, 4, x->size, x->stride, x->box);
}

/* `attributes` has room for what the configuration says. */
static cudaLaunchConfig_t config_of(int blocks, uint32_t clusters, void *stream,
                                    cudaLaunchAttribute attributes[2])
{
    attributes[0] = (cudaLaunchAttribute){.id = cudaLaunchAttributeClusterDimension,
                                          .val.clusterDim = {(unsigned)blocks, 1, 1}};
    attributes[1] = (cudaLaunchAttribute){.id = cudaLaunchAttributeProgrammaticStreamSerialization,
                                          .val.programmaticStreamSerializationAllowed = 1};
    return (cudaLaunchConfig_t){.gridDim = {clusters * (unsigned)blocks, 1, 1},
                                .blockDim = {HOPPER_THREADS, 1, 1},
                                .dynamicSmemBytes = HOPPER_SHARED_NBYTES,
                                .stream = stream,
                                .attrs = attributes,
                                .numAttrs = 2};
}

enum { DEVICES = 128 }; /* of which it is remembered */

/* (What the device has room for is asked for once.) */
gpunvme_ops_status_t hopper_clusters(const void *kernel, const struct hopper_grid *grid,
                                     uint32_t *clusters)
{
    static _Atomic int known[DEVICES][2];
    cudaLaunchAttribute attributes[2];
    cudaLaunchConfig_t config = config_of((int)grid->rows, 1, NULL, attributes);
    uint32_t pairs = hopper_grid_size(grid);
    gpunvme_ops_status_t status = cuda_allow_shared(kernel, HOPPER_SHARED_NBYTES);
    int device = cuda_device(), is_known = device >= 0 && device < DEVICES;
    int room = is_known ? known[device][grid->rows - 1] : 0, error = cudaSuccess;

    if (status)
        return status;
    if (!room)
        error = cudaOccupancyMaxActiveClusters(&room, kernel, &config);
    if (error)
        return cuda_status(error, "asking how many clusters there can be");
    if (room < 1)
        return ops_fail(GPUNVME_OPS_ERR_DEVICE, "this GPU has no room for clusters of %d blocks",
                        (int)grid->rows);
    if (is_known)
        known[device][grid->rows - 1] = room;
    *clusters = pairs < (uint32_t)room ? pairs : (uint32_t)room;
    return GPUNVME_OPS_OK;
}

gpunvme_ops_status_t hopper_launch(const void *kernel, int blocks, uint32_t clusters, void *work,
                                   void *stream)
{
    cudaLaunchAttribute attributes[2];
    cudaLaunchConfig_t config = config_of(blocks, clusters, stream, attributes);
    void *args[] = {work};

    return cuda_status(cudaLaunchKernelExC(&config, kernel, args), "launching clusters");
}

gpunvme_ops_status_t hopper_launch_blocks(const void *kernel, unsigned blocks, unsigned threads,
                                          size_t nbytes, void *work, void *stream)
{
    cudaLaunchAttribute early = {.id = cudaLaunchAttributeProgrammaticStreamSerialization,
                                 .val.programmaticStreamSerializationAllowed = 1};
    cudaLaunchConfig_t config = {.gridDim = {blocks, 1, 1},
                                 .blockDim = {threads, 1, 1},
                                 .dynamicSmemBytes = nbytes,
                                 .stream = stream,
                                 .attrs = &early,
                                 .numAttrs = 1};
    void *args[] = {work};
    gpunvme_ops_status_t status = cuda_allow_shared(kernel, nbytes);

    if (status)
        return status;
    return cuda_status(cudaLaunchKernelExC(&config, kernel, args), "launching a kernel");
}
