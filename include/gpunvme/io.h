/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Reads, writes and the other I/O commands on a namespace: one command with a token, and whole
 * transfers of any length and offset.
 *
 * Threads: several threads may use one queue at once. A token belongs to the thread that waits.
 *
 * Source: NVM Command Set Specification 1.0c, chapter 3; Base 1.4, chapter 6.
 */
#ifndef GPUNVME_IO_H
#define GPUNVME_IO_H

#include "gpunvme/controller.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Flags of writes. */
#define GPUNVME_IO_FUA 0x1u /* on the medium before it completes (cdw12 FUA) */

/* One command in flight. Made by submit, ended once, by test or wait. */
struct gpunvme_token {
    struct gpunvme_ioq *ioq;
    uint64_t ticket;
    void *list; /* private: the PRP list or SGL segment that the command uses */
};

/*
 * Submits one command and returns at once. Reads and writes move `nlb` blocks (1 … ns->max_blocks,
 * not across the boundary) from block `slba` on between the namespace and `buf`, from byte
 * `buf_off` of it on, a multiple of 4. The buffer must be mapped for this controller and stay so
 * until the token has ended.
 *
 * Errors: GPUNVME_ERR_AGAIN (queue full), _RANGE, _ALIGN, _INVALID (NULL, no bus address, too many
 * blocks), _READONLY, _CLOSED (reset under way), _REMOVED, _NOMEM.
 */
gpunvme_err_t gpunvme_submit_read(struct gpunvme_ioq *ioq, const struct gpunvme_ns *ns,
                                  uint64_t slba, uint32_t nlb, const struct gpunvme_buf *buf,
                                  size_t buf_off, struct gpunvme_token *token);
gpunvme_err_t gpunvme_submit_write(struct gpunvme_ioq *ioq, const struct gpunvme_ns *ns,
                                   uint64_t slba, uint32_t nlb, const struct gpunvme_buf *buf,
                                   size_t buf_off, unsigned flags, struct gpunvme_token *token);
gpunvme_err_t gpunvme_submit_flush(struct gpunvme_ioq *ioq, const struct gpunvme_ns *ns,
                                   struct gpunvme_token *token);

/*
 * Ends a token if it is done: GPUNVME_OK, or the error that the command ended with. While it is
 * in flight: GPUNVME_ERR_AGAIN. test also looks for completions.
 */
gpunvme_err_t gpunvme_token_test(struct gpunvme_token *token);

/*
 * Waits for a token at most timeout_ns (0: the controller's I/O timeout) and ends it. When the
 * time is up the command is aborted, and if that does not help, the controller reset:
 * GPUNVME_ERR_TIMEOUT. Either way the token has ended and the buffer is the caller's again.
 */
gpunvme_err_t gpunvme_token_wait(struct gpunvme_token *token, uint64_t timeout_ns);

/*
 * Whole transfers: any byte offset and any length inside the namespace, split at the controller's
 * limits, many commands in flight. Ends that are not whole blocks go through a bounce buffer; a
 * write of them reads the block first, and such writes on one controller handle exclude each
 * other. They return when all is done; after an error the bytes of the range are undefined.
 * A length of 0 is GPUNVME_OK and touches nothing.
 */
gpunvme_err_t gpunvme_read(struct gpunvme_ioq *ioq, const struct gpunvme_ns *ns, uint64_t offset,
                           size_t nbytes, const struct gpunvme_buf *buf, size_t buf_off);
gpunvme_err_t gpunvme_write(struct gpunvme_ioq *ioq, const struct gpunvme_ns *ns, uint64_t offset,
                            size_t nbytes, const struct gpunvme_buf *buf, size_t buf_off,
                            unsigned flags);

/*
 * The others, by whole blocks, split where the controller asks for it. `deallocate` is a hint: the
 * blocks read as zeroes either way, and a namespace without the DEAC bit (DLFEAT bit 3) is not
 * given it.
 */
gpunvme_err_t gpunvme_flush(struct gpunvme_ioq *ioq, const struct gpunvme_ns *ns);
gpunvme_err_t gpunvme_write_zeroes(struct gpunvme_ioq *ioq, const struct gpunvme_ns *ns,
                                   uint64_t slba, uint64_t nlb, bool deallocate);
gpunvme_err_t gpunvme_deallocate(struct gpunvme_ioq *ioq, const struct gpunvme_ns *ns,
                                 uint64_t slba, uint64_t nlb);
gpunvme_err_t gpunvme_compare(struct gpunvme_ioq *ioq, const struct gpunvme_ns *ns, uint64_t slba,
                              uint64_t nlb, const struct gpunvme_buf *buf, size_t buf_off);
gpunvme_err_t gpunvme_verify(struct gpunvme_ioq *ioq, const struct gpunvme_ns *ns, uint64_t slba,
                             uint64_t nlb);

#ifdef __cplusplus
}
#endif
#endif
