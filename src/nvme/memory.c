/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Host memory that the controller uses: queues, lists, data of admin commands.
 */
#include "nvme/ctrl.h"

/*
 * Transports align memory by its size (transport.h): so a queue that is smaller than a page of the
 * controller gets the whole page.
 */
gpunvme_err_t nvme_alloc(struct gpunvme_ctrl *ctrl, size_t nbytes, struct gpunvme_buf *buf)
{
    struct gpunvme_transport *t = ctrl->transport;
    size_t in_page = ((size_t)1 << ctrl->page_shift) - 1;

    return t->ops->alloc(t, (nbytes + in_page) & ~in_page, GPUNVME_MEM_HOST, buf);
}

void nvme_free(struct gpunvme_ctrl *ctrl, struct gpunvme_buf *buf)
{
    if (buf->nbytes && !__atomic_load_n(&ctrl->is_unstoppable, __ATOMIC_ACQUIRE))
        ctrl->transport->ops->free(ctrl->transport, buf);
}
