/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A machine whose driver, libcuda.so.1, is missing or too old: `test_memory_driver TEXT` expects
 * TEXT in the reason, and host memory in the place of the GPU's. LD_LIBRARY_PATH says which driver
 * there is (fake_libcuda.c).
 */
#include <stdio.h>
#include <string.h>

#include "gpunvme/memory.h"

static int failed(const char *what)
{
    fprintf(stderr, "%s: \"%s\" (%s)\n", what, gpunvme_mem_gpu_why_not(), gpunvme_err_detail());
    return 1;
}

int main(int argc, char **argv)
{
    static const char data[] = "bytes";
    char back[sizeof(data)] = "";
    struct gpunvme_gpu_info info;
    struct gpunvme_buf buf;

    if (!strstr(gpunvme_mem_gpu_why_not(), argc > 1 ? argv[1] : "?"))
        return failed("the reason is another");
    if (!gpunvme_mem_gpu_is_host() || gpunvme_mem_gpu_count())
        return failed("a GPU is claimed");
    if (gpunvme_mem_gpu_info(0, &info) != GPUNVME_ERR_NO_GPU)
        return failed("a GPU is described");
    if (gpunvme_mem_alloc_on(1, 4096, GPUNVME_MEM_GPU, &buf) != GPUNVME_ERR_INVALID)
        return failed("a second GPU has memory");
    if (gpunvme_mem_alloc_on(0, 4096, GPUNVME_MEM_GPU, &buf) ||
        gpunvme_mem_copy(buf.gpu, GPUNVME_MEM_GPU, data, GPUNVME_MEM_HOST, sizeof(data)) ||
        gpunvme_mem_copy(back, GPUNVME_MEM_HOST, buf.gpu, GPUNVME_MEM_GPU, sizeof(data)) ||
        memcmp(back, data, sizeof(data)) || gpunvme_mem_free(&buf))
        return failed("the host does not stand in");
    return 0;
}
