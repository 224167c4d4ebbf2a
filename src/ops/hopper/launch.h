/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The host's part of the main loop: tensor maps, and the launch of clusters.
 */
#ifndef OPS_HOPPER_LAUNCH_H
#define OPS_HOPPER_LAUNCH_H

#include <cuda.h>

#include "ops/core/fail.h"
#include "ops/hopper/schedule.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Two matrices as the copy engine reads them. */
struct hopper_operands {
    CUtensorMap a, b;
    int a_batch, b_batch; /* 1 or, if one matrix serves the whole batch, 0 */
};

gpunvme_ops_status_t hopper_encode(CUtensorMap *map, const void *data, CUtensorMapDataType type,
                                   const struct hopper_tensor *x);
gpunvme_ops_status_t hopper_encode4(CUtensorMap *map, const void *data, CUtensorMapDataType type,
                                    const struct hopper_tensor4 *x);

/* How many clusters a launch has: one for each pair of tiles, but at most as many as fit at once.
 */
gpunvme_ops_status_t hopper_clusters(const void *kernel, const struct hopper_grid *grid,
                                     uint32_t *clusters);

/* kernel(work), by so many clusters of so many blocks. */
gpunvme_ops_status_t hopper_launch(const void *kernel, int blocks, uint32_t clusters, void *work,
                                   void *stream);

/* kernel(work), by single blocks with so much shared memory. */
gpunvme_ops_status_t hopper_launch_blocks(const void *kernel, unsigned blocks, unsigned threads,
                                          size_t nbytes, void *work, void *stream);

#ifdef __cplusplus
}
#endif
#endif
