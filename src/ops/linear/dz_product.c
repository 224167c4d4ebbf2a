/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The host's half of the product that makes dZ.
 */
#include "ops/linear/dz_product.h"

#include <cuda_runtime_api.h>

#include "ops/cuda/driver.h"

/*
 * The panels of the tiles that all clusters make first, for those are needed at once. Tiles are
 * made in groups of fewer below each other than elsewhere, so that these are not many: some columns
 * of B more are read for it, from the cache.
 */
static struct dz_order order_of(const struct hopper_grid *grid, const struct linear_dz *dz,
                                uint32_t clusters)
{
    uint32_t panels = (uint32_t)dz_panels(dz->rows), pairs = hopper_grid_size(grid), first = 0;

    for (uint32_t i = 0; i < clusters && i < pairs; i++) {
        struct hopper_place x = hopper_place_of(grid, i);
        uint32_t end = (uint32_t)(x.row / HOPPER_TILE_M) + grid->rows;

        first = end > first ? end : first;
    }
    return (struct dz_order){panels, (uint32_t)dz_chunks(dz->out), first < panels ? first : panels,
                             grid->group * grid->rows};
}

_Static_assert((int)DZ_PANEL == (int)HOPPER_TILE_M && DZ_CHUNK * 2 % (int)HOPPER_WIDTH == 0,
               "a tile's stages are each of one panel and chunk");

/*
 * Makes counters 0 before the next kernel counts, and after the kernel before has ended. It uses no
 * shared memory.
 */
static gpunvme_ops_status_t clear(void *counters, size_t nbytes, void *stream)
{
    const void *kernel = dz_clear_kernel();
    uint32_t count = (uint32_t)(nbytes / sizeof(uint32_t));
    uint32_t blocks = (count + DZ_CLEAR_WORDS - 1) / DZ_CLEAR_WORDS;
    cudaLaunchAttribute early = {.id = cudaLaunchAttributeProgrammaticStreamSerialization,
                                 .val.programmaticStreamSerializationAllowed = 1};
    cudaLaunchConfig_t config = {
        .gridDim = {blocks < DZ_CLEAR_BLOCKS ? blocks : DZ_CLEAR_BLOCKS, 1, 1},
        .blockDim = {DZ_CLEAR_THREADS, 1, 1},
        .stream = stream,
        .attrs = &early,
        .numAttrs = 1};
    void *args[] = {&counters, &count};
    gpunvme_ops_status_t status = cuda_prefer_shared(kernel);

    return status ? status
                  : cuda_status(cudaLaunchKernelExC(&config, kernel, args), "clearing counters");
}

gpunvme_ops_status_t dz_multiply(const struct cuda_product *p, const struct linear_dz *dz,
                                 const struct dz_bias *bias, void *counters, void *stream)
{
    const void *kernel = dz_product_kernel(p->dtype);
    struct dz_work work = {.dz = {.dz = *dz, .bias = *bias, .counters = counters}};
    struct hopper_grid *grid = &work.product.schedule.grid;
    gpunvme_ops_status_t status = hopper_prepare(&work.product, p);
    uint32_t clusters;

    grid->group = HOPPER_GROUP / 2;
    if (!status)
        status = hopper_clusters(kernel, grid, &clusters);
    if (!status)
        status = clear(counters, dz_counters_nbytes(dz->rows, dz->out), stream);
    if (status)
        return status;
    work.dz.order = order_of(grid, dz, clusters);
    return hopper_launch(kernel, (int)grid->rows, clusters, &work, stream);
}
