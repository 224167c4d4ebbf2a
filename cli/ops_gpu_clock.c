/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gpunvme ops: the clock of the GPU's multiprocessors, by NVML if the driver's library of that name
 * can be loaded. https://docs.nvidia.com/deploy/nvml-api/ has the functions; a header is not
 * needed for four of them.
 */
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include "ops_gpu.h"

#define NVML_CLOCK_SM 1

static struct {
    bool tried;
    void *device; /* NULL: there is no NVML, or it does not know this GPU */
    int (*clock_info)(void *device, int type, unsigned *mhz);
} nvml;

static void *find_device(void *library)
{
    int (*init)(void) = (int (*)(void))dlsym(library, "nvmlInit_v2");
    int (*by_bus)(const char *, void **) =
        (int (*)(const char *, void **))dlsym(library, "nvmlDeviceGetHandleByPciBusId_v2");
    void *device = NULL;
    char bus[32];
    int current;

    nvml.clock_info = (int (*)(void *, int, unsigned *))dlsym(library, "nvmlDeviceGetClockInfo");
    if (!init || !by_bus || !nvml.clock_info || init() || cudaGetDevice(&current) ||
        cudaDeviceGetPCIBusId(bus, sizeof(bus), current) || by_bus(bus, &device))
        return NULL;
    return device;
}

static void open_nvml(void)
{
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);

    nvml.tried = true;
    if (!library)
        return;
    nvml.device = find_device(library); /* NVML stays for as long as the process */
    if (!nvml.device)
        dlclose(library);
}

double ops_gpu_clock_now(void)
{
    unsigned mhz;

    if (!nvml.tried)
        open_nvml();
    return nvml.device && !nvml.clock_info(nvml.device, NVML_CLOCK_SM, &mhz) ? mhz : 0;
}

double ops_gpu_clock_most(void)
{
    int current, khz;

    return !cudaGetDevice(&current) && !cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, current)
               ? khz * 1e-3
               : 0;
}
