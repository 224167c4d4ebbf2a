/* SPDX-License-Identifier: BSD-3-Clause
 *
 * In every test program: without a GPU host memory stands in for one, so that the routes to GPU
 * memory are tested everywhere. Weak, for programs that have no stores.
 */
#include <stdbool.h>

extern bool store_gpu_stand_in __attribute__((weak));

static void __attribute__((constructor)) stand_in(void)
{
    if (&store_gpu_stand_in)
        store_gpu_stand_in = true;
}
