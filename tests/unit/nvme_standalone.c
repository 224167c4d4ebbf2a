/* SPDX-License-Identifier: BSD-3-Clause
 *
 * nvme.h and nothing else: compiled, not run, as C11 and as C++17.
 */
#include "gpunvme/nvme.h"

uint64_t use(struct gpunvme_sqe *sqe, const struct gpunvme_id_ns *ns);

uint64_t use(struct gpunvme_sqe *sqe, const struct gpunvme_id_ns *ns)
{
    sqe->prp1 = gpunvme_sq_doorbell(1, 0) + gpunvme_cq_doorbell(1, 0);
    sqe->sgl1.id = GPUNVME_SGL_ID(GPUNVME_SGL_DATA_BLOCK, GPUNVME_SGL_SUBTYPE_ADDRESS);
    return GPUNVME_SET(gpunvme_id_ns_format(ns), CC_MPS) | GPUNVME_GET(sqe->prp2, CAP_MQES);
}
