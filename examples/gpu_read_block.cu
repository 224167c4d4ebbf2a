/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The shortest kernel that reads a block from a drive by itself, and looks at it.
 *
 *   gpu_read_block [URI]       default sim:size=1M; block 7 is written first, whatever it holds
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <gpunvme/device.cuh>
#include <gpunvme/io.h>
#include <gpunvme/memory.h>

#define BLOCK 7

static __global__ void read_block(struct gpunvme_dev_ns ns, struct gpunvme_dev_buf buf, int *err)
{
    *err = gpunvme_dev_read(&ns, BLOCK, 1, &buf, 0, 0);
    for (uint32_t i = 0; !*err && i < ns.block_size; i++) {
        if (buf.data[i] != 0x5a)
            *err = GPUNVME_ERR_VERIFY;
    }
}

static void check(gpunvme_err_t err)
{
    if (err == GPUNVME_OK)
        return;
    fprintf(stderr, "gpu_read_block: %s: %s (%s)\n", gpunvme_err_detail(), gpunvme_err_text(err),
            gpunvme_err_name(err));
    exit(1);
}

/* From the CPU, so that there is something to read. */
static void write_block(struct gpunvme_ctrl *ctrl, const struct gpunvme_ns *ns)
{
    struct gpunvme_ioq *ioq;
    struct gpunvme_buf buf;

    check(gpunvme_ioq_create(ctrl, 16, &ioq));
    check(gpunvme_ctrl_alloc(ctrl, ns->block_size, GPUNVME_MEM_HOST, &buf));
    memset(buf.cpu, 0x5a, ns->block_size);
    check(gpunvme_write(ioq, ns, (uint64_t)BLOCK * ns->block_size, ns->block_size, &buf, 0, 0));
    gpunvme_ctrl_free(ctrl, &buf);
    check(gpunvme_ioq_delete(ioq));
}

int main(int argc, char **argv)
{
    struct gpunvme_ctrl *ctrl;
    struct gpunvme_device *dev;
    struct gpunvme_dev_ns ns;
    struct gpunvme_dev_buf view;
    struct gpunvme_buf buf, result;

    if (gpunvme_mem_gpu_is_host()) {
        printf("SKIP: no GPU\n");
        return 77;
    }
    check(gpunvme_mem_alloc(sizeof(int), GPUNVME_MEM_PINNED, &result));
    check(gpunvme_ctrl_open_uri(argc > 1 ? argv[1] : "sim:size=1M", NULL, &ctrl));
    write_block(ctrl, gpunvme_ctrl_ns_at(ctrl, 0));
    check(gpunvme_device_open(ctrl, NULL, &dev));
    check(gpunvme_device_ns(dev, gpunvme_ctrl_ns_at(ctrl, 0), &ns));
    check(gpunvme_device_alloc(dev, ns.block_size, &buf));
    check(gpunvme_device_buf(dev, &buf, &view));

    read_block<<<1, 1>>>(ns, view, (int *)result.gpu);
    if (cudaDeviceSynchronize())
        return 1;
    check(*(int *)result.cpu);
    printf("a kernel has read block %d: all of it is right\n", BLOCK);

    gpunvme_device_free(dev, &buf);
    check(gpunvme_device_close(dev));
    check(gpunvme_ctrl_close(ctrl));
    return gpunvme_mem_free(&result) != GPUNVME_OK;
}
