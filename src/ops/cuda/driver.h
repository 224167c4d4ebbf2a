/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What is asked of the driver and the current device, for the host's halves of operators.
 */
#ifndef OPS_CUDA_DRIVER_H
#define OPS_CUDA_DRIVER_H

#include "ops/core/fail.h"

/*
 * A function of the driver, asked for by its name: the library is not linked with the driver, so
 * that programs start without one. NULL: it has none, or is older than CUDA 12.0.
 */
void *cuda_driver_function(const char *name);

/*
 * Within a call of an operator: the current device's sm, such as 90, and number; 0 and -1 if it
 * cannot tell.
 */
int cuda_sm(void);
int cuda_device(void);

/*
 * Like cuda_allow_shared(), which is in launch.h: the kernel's multiprocessors have as much shared
 * memory as there is, though it may need none. One that shall have more or less must be empty
 * first, and kernels before and after it have much.
 */
gpunvme_ops_status_t cuda_prefer_shared(const void *kernel);

#endif
