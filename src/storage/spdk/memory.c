/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Memory that SPDK's controllers reach. See spdk.h.
 *
 * SPDK's vfio-user client gives the server the files of DPDK's own heap and nothing else, so the
 * memory of callers is never reached there. On the PCI bus SPDK has a table of addresses, which
 * spdk_mem_register() adds to.
 */
#include "storage/spdk/spdk.h"

#include <errno.h>
#include <linux/vfio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "memory/ordering.h"

#define PAGE_4K (1ul << 12)
#define PAGE_2M (1ul << 21)

/*
 * Has the IOMMU a mapping of the page at `iova`? To map it once more fails then, with EEXIST. The
 * container is DPDK's, whose function this is; its headers are not always installed.
 */
int rte_vfio_get_container_fd(void);

static bool is_mapped(const void *page, uint64_t iova)
{
    struct vfio_iommu_type1_dma_map map = {
        .argsz = sizeof(map),
        .flags = VFIO_DMA_MAP_FLAG_READ | VFIO_DMA_MAP_FLAG_WRITE,
        .vaddr = (uintptr_t)page,
        .iova = iova,
        .size = PAGE_4K,
    };
    struct vfio_iommu_type1_dma_unmap unmap = {
        .argsz = sizeof(unmap), .iova = iova, .size = PAGE_4K};
    int fd = rte_vfio_get_container_fd();

    if (!ioctl(fd, VFIO_IOMMU_MAP_DMA, &map)) {
        ioctl(fd, VFIO_IOMMU_UNMAP_DMA, &unmap);
        return false;
    }
    return errno == EEXIST;
}

/*
 * SPDK goes on when the IOMMU refuses to map memory, as addresses that are too wide, and the
 * drive's reads then go nowhere. So each run of addresses in SPDK's table, of which SPDK maps all
 * or nothing, is looked up at the IOMMU.
 */
static bool reached(uint8_t *from, size_t nbytes)
{
    uint64_t run;

    for (size_t at = 0; at < nbytes; at += run) {
        uint64_t iova;

        run = nbytes - at;
        iova = spdk_vtophys(from + at, &run);
        run = run < PAGE_4K ? PAGE_4K : run & ~(PAGE_4K - 1);
        if (iova == SPDK_VTOPHYS_ERROR || !is_mapped(from + at, iova) ||
            !is_mapped(from + at + run - PAGE_4K, iova + run - PAGE_4K))
            return false;
    }
    return true;
}

/* Registers the whole pages of `page` bytes in [from, from + nbytes). */
static bool try_pages(uint8_t *from, size_t nbytes, size_t page, struct gspdk_region *out)
{
    uintptr_t first = ((uintptr_t)from + page - 1) & ~(page - 1);
    uintptr_t end = ((uintptr_t)from + nbytes) & ~(page - 1);

    if (first >= end || spdk_mem_register((void *)first, end - first))
        return false;
    if (!reached((uint8_t *)first, end - first)) {
        spdk_mem_unregister((void *)first, end - first);
        return false;
    }
    out->buf.cpu = (void *)first;
    out->buf.nbytes = end - first;
    return true;
}

/* `user` is the caller's address of what SPDK is to know as `from`. */
static gpunvme_err_t register_pages(uint8_t *user, uint8_t *from, size_t nbytes,
                                    struct gspdk_region *out)
{
    gspdk_hush();
    if (!try_pages(from, nbytes, PAGE_4K, out) && !try_pages(from, nbytes, PAGE_2M, out))
        return base_fail(GPUNVME_ERR_UNSUPPORTED,
                         "SPDK can't map it for the drive%.60s; IOMMUs of few bits refuse high "
                         "addresses",
                         gspdk_said());
    out->from = user + ((uint8_t *)out->buf.cpu - from);
    return GPUNVME_OK;
}

/*
 * GPU memory by a mapping of its dma-buf: BAR memory of the GPU under an address of the CPU, which
 * is what SPDK and vfio take. Not every driver maps dma-bufs.
 */
static gpunvme_err_t register_gpu(const struct gpunvme_buf *buf, struct gspdk_region *out)
{
    const char *lacks = mem_gpu_writes_lack(mem_gpu_of(buf));
    uint64_t offset = 0;
    gpunvme_err_t err;
    int fd = -1;

    if (lacks)
        return base_fail(GPUNVME_ERR_UNSUPPORTED, "%s", lacks);
    if (gpunvme_mem_export(buf, &fd, &offset))
        return GPUNVME_ERR_UNSUPPORTED; /* its detail says why */
    out->mapping_nbytes = (size_t)((offset + buf->nbytes + PAGE_4K - 1) & ~(PAGE_4K - 1));
    out->mapping = mmap(NULL, out->mapping_nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (out->mapping == MAP_FAILED)
        return base_fail(GPUNVME_ERR_UNSUPPORTED,
                         "GPU memory: the driver does not map its dma-bufs into programs");
    err = register_pages(buf->gpu, (uint8_t *)out->mapping + offset, buf->nbytes, out);
    if (err)
        munmap(out->mapping, out->mapping_nbytes);
    return err;
}

static gpunvme_err_t map(void *ctrlr, const struct gpunvme_buf *buf, void **out)
{
    struct gspdk_region *region;
    gpunvme_err_t err;

    if (((struct gspdk_ctrlr *)ctrlr)->address.vfio_user)
        return base_fail(GPUNVME_ERR_UNSUPPORTED,
                         "SPDK shares only memory of its own with a vfio-user server");
    if (!spdk_iommu_is_enabled())
        return base_fail(GPUNVME_ERR_UNSUPPORTED, "without an IOMMU nothing keeps memory other "
                                                  "than SPDK's in its place");
    region = calloc(1, sizeof(*region));
    if (!region)
        return base_fail(GPUNVME_ERR_NOMEM, "a registration");
    if (buf->mem == GPUNVME_MEM_GPU && !gpunvme_mem_gpu_is_host())
        err = register_gpu(buf, region);
    else
        err = register_pages(buf->cpu, buf->cpu, buf->nbytes, region);
    if (err)
        free(region);
    else
        *out = region;
    return err;
}

static void unmap(void *ctrlr, void *region_)
{
    struct gspdk_region *region = region_;

    (void)ctrlr;
    spdk_mem_unregister(region->buf.cpu, region->buf.nbytes);
    if (region->mapping)
        munmap(region->mapping, region->mapping_nbytes);
    free(region);
}

const struct store_domain_ops gspdk_domain_ops = {.map = map, .unmap = unmap};

/* ---- Bounce buffers -------------------------------------------------------------------------- */

gpunvme_err_t gspdk_alloc(size_t nbytes, struct gpunvme_buf *out)
{
    void *ptr = spdk_malloc(nbytes, PAGE_4K, NULL, SPDK_ENV_NUMA_ID_ANY, SPDK_MALLOC_DMA);

    if (!ptr)
        return base_fail(GPUNVME_ERR_NOMEM,
                         "%zu MiB of SPDK's memory for bounce buffers: ask for fewer (threads=) or "
                         "smaller ones (chunk=)",
                         nbytes >> 20);
    if (gpunvme_mem_gpu_is_host() || gpunvme_mem_register(ptr, nbytes, GPUNVME_MEM_PINNED, out))
        *out = (struct gpunvme_buf){.cpu = ptr, .nbytes = nbytes}; /* slower */
    return GPUNVME_OK;
}

void gspdk_free(struct gpunvme_buf *buf)
{
    void *ptr = buf->cpu;

    if (buf->mem == GPUNVME_MEM_PINNED)
        gpunvme_mem_unregister(buf);
    spdk_free(ptr);
}
