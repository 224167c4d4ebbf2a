/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The code of docs/GPU.md as kernels.
 */
#include "test_gpu_page.c"
