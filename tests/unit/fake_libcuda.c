/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A driver, libcuda.so.1, that is too old for this build: it has the functions that gpunvme looks
 * for, and says that it is of CUDA 8; with FAKE_PARTIAL it has one of them alone.
 */
int cuPointerGetAttributes(void);
int cuPointerGetAttributes(void)
{
    return 100; /* CUDA_ERROR_NO_DEVICE */
}

#ifndef FAKE_PARTIAL
int cuDriverGetVersion(int *version);
int cuDriverGetVersion(int *version)
{
    *version = 8000;
    return 0;
}
#define FAKE(name)                                                                                 \
    int name(void);                                                                                \
    int name(void)                                                                                 \
    {                                                                                              \
        return 100;                                                                                \
    }
FAKE(cuInit)
FAKE(cuMemGetAddressRange_v2)
FAKE(cuDeviceGet)
FAKE(cuDevicePrimaryCtxRetain)
FAKE(cuCtxPushCurrent_v2)
FAKE(cuCtxPopCurrent_v2)
FAKE(cuThreadExchangeStreamCaptureMode)
FAKE(cuGetErrorString)
#endif
