/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Queue pairs whose words are not the CPU's: a GPU's threads use them by themselves. The memory is
 * the caller's; the controller object creates and deletes them, takes them through resets as all
 * others, and reaches their words through the functions given here.
 */
#ifndef NVME_FOREIGN_H
#define NVME_FOREIGN_H

#include "gpunvme/controller.h"

/* How the doorbells of a queue are rung by the CPU; without shadows, see nvme_shadow_stop(). */
struct nvme_foreign_bells {
    struct gpunvme_doorbell sq, cq;
    void (*ring)(void *arg, uint32_t offset, uint32_t value);
    void *ring_arg;
};

/*
 * Called with the controller's `lifecycle` held: they must not call the controller. freeze,
 * fail_and_rewind and thaw do what queue.h says of gpunvme_qpair_*; each may be called again where
 * it has been done, or may have been. A queue that can't be frozen is left out of the reset: its
 * commands end by their deadlines, the controller no longer has it, and nvme_ioq_readmit() makes it
 * good when its threads are gone; likewise one that can't be thawed, which stays closed.
 */
struct nvme_foreign_ops {
    gpunvme_err_t (*init)(void *arg, uint32_t qid, const struct nvme_foreign_bells *bells);
    gpunvme_err_t (*freeze)(void *arg, uint64_t deadline_ns);
    gpunvme_err_t (*fail_and_rewind)(void *arg, uint16_t status);
    gpunvme_err_t (*thaw)(void *arg);
};

struct nvme_foreign_config {
    uint32_t entries; /* a power of two */
    uint64_t sq_bus, cq_bus;
    const struct nvme_foreign_ops *ops;
    void *arg;
};

/* As gpunvme_ioq_create(); gpunvme_ioq_delete() deletes it. It never interrupts. */
gpunvme_err_t nvme_ioq_create_foreign(struct gpunvme_ctrl *ctrl,
                                      const struct nvme_foreign_config *config,
                                      struct gpunvme_ioq **out);

/* Whether a reset had to leave it out. */
bool nvme_ioq_is_left_out(struct gpunvme_ioq *ioq);

/*
 * No thread uses the queue: makes it good again where a reset had to leave it out, or could not
 * open it. It may take another reset.
 */
gpunvme_err_t nvme_ioq_readmit(struct gpunvme_ioq *ioq);

/*
 * Asks the controller to abort a command. *is_aborted: it says that it has, and the completion
 * comes, or has come; so also where the controller has none of the queue's commands, as a reset has
 * ended them. After an error nvme_recover() must follow.
 */
gpunvme_err_t nvme_ioq_abort(struct gpunvme_ioq *ioq, uint16_t cid, bool *is_aborted);

/*
 * The controller can't be left as it is, since a command does not end: a reset, or the end where
 * the controller's options forbid that.
 */
gpunvme_err_t nvme_recover(struct gpunvme_ctrl *ctrl);

/*
 * Does without Doorbell Buffer Config from now on, for queues that can't have shadow doorbells. It
 * takes a reset to tell the controller. GPUNVME_ERR_UNSUPPORTED where I/O queues rely on it.
 */
gpunvme_err_t nvme_shadow_stop(struct gpunvme_ctrl *ctrl);

/*
 * What is wrong with the configuration of a queue pair, the CPU's or another, but for its shadow
 * doorbells.
 */
gpunvme_err_t nvme_qpair_check(const struct gpunvme_qpair_config *config);

#endif
