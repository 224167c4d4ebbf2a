/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The GPU's memory of `gpunvme ops` where there is no GPU: the host's.
 */
#include <stdlib.h>
#include <string.h>

#include "ops_gpu.h"

void *ops_gpu_new(size_t nbytes)
{
    return aligned_alloc(4096, (nbytes + 4095) & ~(size_t)4095);
}

void ops_gpu_drop(void *memory)
{
    free(memory);
}

bool ops_gpu_put(void *gpu, const void *host, size_t nbytes)
{
    memcpy(gpu, host, nbytes);
    return true;
}

bool ops_gpu_get(void *host, const void *gpu, size_t nbytes)
{
    memcpy(host, gpu, nbytes);
    return true;
}

bool ops_gpu_copy(void *to, const void *from, size_t nbytes)
{
    memcpy(to, from, nbytes);
    return true;
}
