/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What io.c (one command) gives to transfer.c (many).
 */
#ifndef NVME_IO_INTERNAL_H
#define NVME_IO_INTERNAL_H

#include "gpunvme/io.h"
#include "nvme/ctrl.h"

/* Submits a finished command; `item` (may be NULL) is its list, and the token's on success. */
gpunvme_err_t nvme_submit(struct gpunvme_ioq *ioq, const struct gpunvme_sqe *sqe,
                          struct nvme_pool_item *item, struct gpunvme_token *token);

/* Whether the buffer is there, is mapped, and has `nbytes` at `off`. */
gpunvme_err_t nvme_check_buffer(const struct gpunvme_buf *buf, size_t off, size_t nbytes);

/*
 * After GPUNVME_ERR_AGAIN with nothing of one's own in flight: lets other threads' commands end.
 * Begin with *deadline_ns = 0; GPUNVME_ERR_TIMEOUT when the I/O timeout has passed since then.
 */
gpunvme_err_t nvme_wait_for_room(struct gpunvme_ioq *ioq, uint64_t *deadline_ns);

/* A command with data in `buf` for blocks slba … ; checks all that can be checked. */
gpunvme_err_t nvme_submit_rw(struct gpunvme_ioq *ioq, const struct gpunvme_ns *ns, uint8_t opcode,
                             uint64_t slba, uint32_t nlb, const struct gpunvme_buf *buf,
                             size_t buf_off, uint32_t cdw12, struct gpunvme_token *token);

#endif
