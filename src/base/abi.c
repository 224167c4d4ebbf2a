/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The number of the library's binary interface.
 */
#include "gpunvme/controller.h"
#include "gpunvme/engine.h"
#include "gpunvme/memory.h"
#include "gpunvme/request.h"
#include "gpunvme/sim.h"
#include "gpunvme/storage.h"
#include "gpunvme/transfer.h"
#include "gpunvme/version.h"
#include "gpunvme/weights.h"

/* Whoever changes one of these increases GPUNVME_ABI, and changes its size here. */
#define HAS(name, nbytes)                                                                          \
    _Static_assert(sizeof(struct name) == (nbytes), #name " has changed: increase GPUNVME_ABI")

HAS(gpunvme_buf, 72);
HAS(gpunvme_gpu_info, 320);
HAS(gpunvme_engine_config, 24);
HAS(gpunvme_engine_info, 40);
HAS(gpunvme_store_info, 40);
HAS(gpunvme_path, 848);
HAS(gpunvme_backend_info, 280);
HAS(gpunvme_vec, 24);
HAS(gpunvme_io, 200);
HAS(gpunvme_order, 32);
HAS(gpunvme_kind, 32);
HAS(gpunvme_kind_io, 96);
HAS(gpunvme_ns, 4152);
HAS(gpunvme_ctrl_info, 80);
HAS(gpunvme_ctrl_opts, 28);
HAS(gpunvme_event, 3);
HAS(gpunvme_sim_report, 720);
HAS(gpunvme_weights_part, 56);

unsigned gpunvme_abi(void)
{
    return GPUNVME_ABI;
}
