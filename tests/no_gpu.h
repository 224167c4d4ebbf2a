/* SPDX-License-Identifier: BSD-3-Clause
 *
 * For tests in which threads of the CPU stand in for a kernel's: they can't use a GPU's memory, so
 * this program finds no GPU, even where there is one.
 */
#ifndef TESTS_NO_GPU_H
#define TESTS_NO_GPU_H

#include <stdlib.h>

/* Before main(), and so before CUDA looks. */
static void __attribute__((constructor)) hide_gpu(void)
{
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
}

#endif
