/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The CUDA runtime of the emulation, as far as the operators and their tests use it: a device of
 * sm_90 with three multiprocessors, so that blocks have several tiles even of small matrices. Its
 * memory ends at a page that nobody may touch.
 */
#include "emulate.h"

#include <map>
#include <mutex>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "emulate_map.h"
#include "ops/attention/cuda/hopper.h"
#include "ops/linear/dz_product.h"

#undef gridDim /* which is a member here */

#define UNITS 3

enum { SHARED_NBYTES = 227 * 1024, SHARED_AT_FIRST = 48 * 1024 };

extern "C" {
int emulated_sm = 90;          /* what the device says that it is */
uint64_t emulated_context = 1; /* its number */
unsigned emulated_questions;   /* asked of the runtime; not which device is current */
unsigned emulated_maps;        /* that were encoded */
}

static_assert(sizeof(emulated_map) <= sizeof(CUtensorMap), "maps are too small");

static size_t pages(size_t nbytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);

    return (nbytes + page - 1) / page * page;
}

/* Sizes of allocations, by number: few live at once. */
static struct {
    unsigned char *data, *pages;
    size_t nbytes;
} allocations[64];

/* What kernels may have, by context. */
static std::mutex allowed_lock;
static std::map<std::pair<uint64_t, const void *>, size_t> allowed;

static void check_shared(const void *kernel, size_t nbytes)
{
    std::lock_guard<std::mutex> guard(allowed_lock);
    auto at = allowed.find({emulated_context, kernel});

    if (nbytes > (at == allowed.end() ? (size_t)SHARED_AT_FIRST : at->second))
        emulate_fail("a launch with more shared memory than was asked for");
}

template <typename WORK>
static void launch(const cudaLaunchConfig_t *config, const void *kernel, void **args,
                   unsigned cluster, bool early)
{
    const WORK *work = (const WORK *)args[0];

    emulate_launch(
        config->gridDim.x, cluster, config->blockDim.x, [=] { ((void (*)(WORK))kernel)(*work); },
        early);
}

extern "C" {

cudaError_t cudaMalloc(void **memory, size_t nbytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), rounded = (nbytes + 15) / 16 * 16;
    unsigned char *all = (unsigned char *)mmap(NULL, pages(rounded) + page, PROT_READ | PROT_WRITE,
                                               MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (all == MAP_FAILED)
        return cudaErrorMemoryAllocation;
    mprotect(all + pages(rounded), page, PROT_NONE);
    for (auto &x : allocations)
        if (!x.pages) {
            x.pages = all;
            x.nbytes = pages(rounded) + page;
            x.data = all + pages(rounded) - rounded;
            *memory = x.data;
            return cudaSuccess;
        }
    return cudaErrorMemoryAllocation;
}

cudaError_t cudaFree(void *memory)
{
    for (auto &x : allocations)
        if (memory && x.data == memory) {
            munmap(x.pages, x.nbytes);
            x.data = x.pages = NULL;
            return cudaSuccess;
        }
    return memory ? cudaErrorInvalidValue : cudaSuccess;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t nbytes, enum cudaMemcpyKind)
{
    memcpy(to, from, nbytes);
    return cudaSuccess;
}

cudaError_t cudaMemset(void *memory, int value, size_t nbytes)
{
    memset(memory, value, nbytes);
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *memory, int value, size_t nbytes, cudaStream_t)
{
    return cudaMemset(memory, value, nbytes);
}

/* Work is done when it is enqueued, so a stream is no more than a name. */
cudaError_t cudaStreamCreate(cudaStream_t *stream)
{
    static char names;

    *stream = (cudaStream_t)&names;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t)
{
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t)
{
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void)
{
    return cudaSuccess;
}

const char *cudaGetErrorString(cudaError_t)
{
    return "an error of the emulation";
}

const char *cudaGetErrorName(cudaError_t)
{
    return "cudaErrorUnknown";
}

/* Another sm is another device: what one is may be remembered. */
cudaError_t cudaGetDevice(int *device)
{
    *device = emulated_sm;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = 1;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int)
{
    memset(properties, 0, sizeof(*properties));
    snprintf(properties->name, sizeof(properties->name), "emulation");
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int)
{
    emulated_questions++;
    switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor:
        *value = emulated_sm / 10;
        break;
    case cudaDevAttrComputeCapabilityMinor:
        *value = emulated_sm % 10;
        break;
    case cudaDevAttrMultiProcessorCount:
        *value = UNITS;
        break;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
        *value = 2048;
        break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value = SHARED_NBYTES;
        break;
    default:
        *value = 0;
    }
    return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *)
{
    emulated_questions++;
    memset(attributes, 0, sizeof(*attributes));
    attributes->numRegs = 1;
    return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute attribute, int value)
{
    std::lock_guard<std::mutex> guard(allowed_lock);

    emulated_questions++;
    if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize && value <= SHARED_NBYTES)
        allowed[{emulated_context, kernel}] = (size_t)value;
    return value <= SHARED_NBYTES ? cudaSuccess : cudaErrorInvalidValue;
}

size_t emulated_allowed(const void *kernel)
{
    return allowed[{emulated_context, kernel}];
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *count, const void *, int, size_t)
{
    emulated_questions++;
    *count = 1;
    return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveClusters(int *count, const void *, const cudaLaunchConfig_t *c)
{
    emulated_questions++;
    *count = UNITS / (int)c->attrs[0].val.clusterDim.x;
    return cudaSuccess;
}

/* All kernels that are launched so take a product. */
cudaError_t cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **args, size_t nbytes,
                             cudaStream_t)
{
    const cuda_product *product = (const cuda_product *)args[0];

    check_shared(kernel, nbytes);
    emulate_launch(grid.x < UNITS ? grid.x : UNITS, 1, block.x,
                   [=] { ((void (*)(cuda_product))kernel)(*product); });
    return cudaSuccess;
}

static bool is_attention(const void *kernel)
{
    static const hopper_shape shapes[] = {{64, 128, 3}, {128, 176, 2}, {256, 80, 2}};

    for (const hopper_shape &shape : shapes)
        for (int paged = 0; paged < 2; paged++)
            if (kernel == hopper_attention_kernel(GPUNVME_OPS_F16, shape, paged) ||
                kernel == hopper_attention_kernel(GPUNVME_OPS_BF16, shape, paged))
                return true;
    return kernel == hopper_attention_fp8_kernel();
}

/* And these are Hopper's, which take a reference where nvcc lets them take the parameter itself. */
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *kernel, void **args)
{
    unsigned cluster = 1;
    bool early = false;

    check_shared(kernel, config->dynamicSmemBytes);
    for (unsigned i = 0; i < config->numAttrs; i++) {
        const cudaLaunchAttribute *x = &config->attrs[i];

        if (x->id == cudaLaunchAttributeClusterDimension)
            cluster = x->val.clusterDim.x;
        if (x->id == cudaLaunchAttributeProgrammaticStreamSerialization)
            early = x->val.programmaticStreamSerializationAllowed;
    }
    if (kernel == dz_clear_kernel()) {
        uint32_t *words = *(uint32_t **)args[0], count = *(uint32_t *)args[1];

        emulate_launch(
            config->gridDim.x, cluster, config->blockDim.x,
            [=] { ((void (*)(uint32_t *, uint32_t))kernel)(words, count); }, early);
    } else if (kernel == dz_product_kernel(GPUNVME_OPS_F16) ||
               kernel == dz_product_kernel(GPUNVME_OPS_BF16)) {
        launch<dz_work>(config, kernel, args, cluster, early);
    } else if (is_attention(kernel)) {
        launch<hopper_attention>(config, kernel, args, cluster, early);
    } else {
        launch<hopper_work>(config, kernel, args, cluster, early);
    }
    return cudaSuccess;
}

/* What cuTensorMapEncodeTiled() asks for, by its documentation. */
static CUresult encode(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *data,
                       const cuuint64_t *size, const cuuint64_t *stride, const cuuint32_t *box,
                       const cuuint32_t *steps, CUtensorMapInterleave, CUtensorMapSwizzle swizzle,
                       CUtensorMapL2promotion, CUtensorMapFloatOOBfill)
{
    emulated_map *m = (emulated_map *)map;
    uint32_t rounded = type == CU_TENSOR_MAP_DATA_TYPE_TFLOAT32;
    uint32_t element = rounded || type == CU_TENSOR_MAP_DATA_TYPE_FLOAT32 ? 4
                       : type == CU_TENSOR_MAP_DATA_TYPE_UINT8            ? 1
                                                                          : 2;
    bool good = (uintptr_t)map % 64 == 0 && (rank == 3 || rank == 4) && (uintptr_t)data % 16 == 0 &&
                swizzle == CU_TENSOR_MAP_SWIZZLE_128B && box[0] * element <= 128;

    emulated_maps++;
    for (unsigned i = 0; i < rank; i++)
        good = good && size[i] > 0 && size[i] <= UINT64_C(1) << 32 && box[i] > 0 && box[i] <= 256 &&
               steps[i] == 1 && (i < 2 || box[i] == 1);
    for (unsigned i = 0; i + 1 < rank; i++)
        good = good && stride[i] % 16 == 0 && stride[i] < UINT64_C(1) << 40;
    if (!good)
        return CUDA_ERROR_INVALID_VALUE;
    *m = {EMULATED_MAP,
          rank,
          element,
          rounded,
          (unsigned char *)data,
          {size[0], size[1], size[2], rank > 3 ? size[3] : 1},
          {stride[0], stride[1], rank > 3 ? stride[2] : 0},
          {box[0], box[1]}};
    return CUDA_SUCCESS;
}

static CUresult get_context_id(CUcontext, unsigned long long *number)
{
    *number = emulated_context;
    return CUDA_SUCCESS;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **address, unsigned int,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult *result)
{
    emulated_questions++;
    *address = strcmp(name, "cuCtxGetId") ? (void *)encode : (void *)get_context_id;
    *result = cudaDriverEntryPointSuccess;
    return cudaSuccess;
}
}
