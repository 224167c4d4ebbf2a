/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What the files of this room share: the controller object, and the steps that it is made of.
 */
#ifndef NVME_CTRL_H
#define NVME_CTRL_H

#include <pthread.h>

#include "gpunvme/controller.h"
#include "gpunvme/prp.h"
#include "nvme/foreign.h"
#include "nvme/pool.h"

#define NVME_MAX_AERS      4
#define NVME_MAX_LOST      4 /* between two resets: each is followed by one */
#define NVME_BOUNCE_NBYTES ((size_t)128 << 10)

/* The most that one command moves here, where the controller has no limit of its own. */
#define NVME_MAX_TRANSFER_SHIFT 25
#define NVME_MAX_TRANSFER       (UINT64_C(1) << NVME_MAX_TRANSFER_SHIFT)

enum ctrl_state {
    CTRL_LIVE,
    CTRL_RESETTING, /* by a thread that holds `lifecycle`, or by whoever looks next */
    CTRL_FAILED,    /* given up: disabled as far as it would, everything ended */
    CTRL_REMOVED,   /* registers read as ones */
};

struct gpunvme_ioq {
    struct gpunvme_qpair qpair; /* of a foreign one: qid and mask alone */
    struct gpunvme_ctrl *ctrl;
    const struct nvme_foreign_ops *foreign; /* foreign.h; NULL: the words are qpair's */
    void *foreign_arg;
    struct gpunvme_buf sq_mem, cq_mem;
    size_t host_nbytes;
    bool sq_is_in_cmb;
    bool frozen;
    bool is_left_out;   /* foreign: could not be frozen, so it is not created on the controller */
    uint64_t looked_ns; /* atomic: when a wait last looked after the controller */
};

/* The memory of one admin command. */
struct nvme_admin_data {
    struct gpunvme_buf buf;      /* nbytes 0: none */
    struct nvme_pool_item *list; /* NULL: none */
};

/* An admin command that nobody waits for any more, though the controller may still have it. */
struct nvme_lost {
    uint64_t ticket;
    struct nvme_admin_data data;
};

struct gpunvme_ctrl {
    struct gpunvme_transport *transport;
    struct gpunvme_ctrl_opts opts;
    uint64_t cap;
    uint32_t vs;
    unsigned page_shift;
    uint64_t ready_timeout_ns;

    struct gpunvme_id_ctrl id;
    uint64_t max_transfer;
    uint32_t max_entries;
    uint32_t max_io_queues;
    uint32_t vectors;                /* of interrupts: 0 where waits poll */
    uint64_t cmb_nbytes, cmb_offset; /* controller memory buffer: in BAR cmb_bir; 0 bytes: none */
    unsigned cmb_bir;
    bool cmb_takes_sqs;
    struct gpunvme_buf cmb; /* mapped, where the options ask for it */
    struct gpunvme_ns *ns;
    uint32_t nns;
    bool identified; /* the facts above are known, and constant from then on */

    /* Guards what follows, and is held for the whole of a reset. */
    pthread_mutex_t lifecycle;
    struct gpunvme_ioq *admin;
    struct gpunvme_ioq **ioqs; /* by queue id - 1, max_io_queues of them; NULL: free */
    uint64_t resets;
    unsigned nlost;
    struct nvme_lost lost[NVME_MAX_LOST];
    int state;           /* enum ctrl_state; written under `lifecycle`, read atomically anywhere */
    bool is_cut_off;     /* it was given up, and has no access to memory until it is enabled */
    bool is_unstoppable; /* atomic: it was given up, and may still use memory of ours */

    struct gpunvme_buf shadow, event_index; /* Doorbell Buffer Config; nbytes 0: not in use */

    pthread_mutex_t aer_lock;
    unsigned naers;
    uint64_t aers[NVME_MAX_AERS];

    struct nvme_pool lists;   /* PRP lists and SGL segments */
    struct nvme_pool bounces; /* unaligned ends */
    pthread_mutex_t rmw_lock; /* writes that read first exclude each other */
};

/* bringup.c: registers. Errors name the step in their detail. */
gpunvme_err_t nvme_bringup_probe(struct gpunvme_ctrl *ctrl);
gpunvme_err_t nvme_bringup_disable(struct gpunvme_ctrl *ctrl);
gpunvme_err_t
nvme_bringup_cut_off(struct gpunvme_ctrl *ctrl); /* from memory, until it is enabled */
gpunvme_err_t nvme_bringup_enable(struct gpunvme_ctrl *ctrl);
gpunvme_err_t nvme_bringup_shutdown(struct gpunvme_ctrl *ctrl, uint32_t shn);
gpunvme_err_t nvme_read_csts(struct gpunvme_ctrl *ctrl, uint32_t *csts);

/*
 * memory.c: host memory of whole pages of the controller, beginning at one. What a controller that
 * could not be stopped may still use is not freed, but left to the transport: when it is closed it
 * stops the controller first, and then frees all.
 */
gpunvme_err_t nvme_alloc(struct gpunvme_ctrl *ctrl, size_t nbytes, struct gpunvme_buf *buf);
void nvme_free(struct gpunvme_ctrl *ctrl, struct gpunvme_buf *buf);

/* cmb.c: alloc gives what no queue in ctrl->ioqs has; the caller holds ctrl->lifecycle. */
gpunvme_err_t nvme_cmb_start(struct gpunvme_ctrl *ctrl);
gpunvme_err_t nvme_cmb_alloc(struct gpunvme_ctrl *ctrl, size_t nbytes, struct gpunvme_buf *buf);
void nvme_cmb_free(struct gpunvme_ctrl *ctrl);

/* wait.c: waiting for one ticket, and what happens when that fails. */
gpunvme_err_t nvme_wait(struct gpunvme_ioq *ioq, uint64_t ticket, uint64_t timeout_ns,
                        struct gpunvme_completion *c);
gpunvme_err_t nvme_wait_plain(struct gpunvme_ioq *ioq, uint64_t ticket, uint64_t timeout_ns,
                              struct gpunvme_completion *c);
gpunvme_err_t nvme_completion_err(struct gpunvme_ctrl *ctrl, const struct gpunvme_completion *c);
gpunvme_err_t nvme_closed_err(struct gpunvme_ctrl *ctrl);

/* admin.c. _locked: inside bring-up and reset, where a failure must not start another reset. */
gpunvme_err_t nvme_admin_locked(struct gpunvme_ctrl *ctrl, struct gpunvme_sqe *sqe, void *data,
                                size_t nbytes, bool to_controller, uint32_t *result);
void nvme_admin_drop(struct gpunvme_ctrl *ctrl);
gpunvme_err_t nvme_identify_ctrl(struct gpunvme_ctrl *ctrl);
gpunvme_err_t nvme_set_num_queues(struct gpunvme_ctrl *ctrl);

/* ns.c */
gpunvme_err_t nvme_ns_scan(struct gpunvme_ctrl *ctrl);
gpunvme_err_t nvme_ns_check(const struct gpunvme_ns *ns); /* its error: max_blocks is 0 */

/* event.c */
gpunvme_err_t nvme_aer_start(struct gpunvme_ctrl *ctrl);
void nvme_aer_drop(struct gpunvme_ctrl *ctrl);

/* qpair.c: ends what is in flight in a queue that can't be frozen; false: nor can that be done. */
bool nvme_qpair_end(struct gpunvme_qpair *q, uint16_t status);

/* ioq.c */
gpunvme_err_t nvme_ioq_alloc(struct gpunvme_ctrl *ctrl, uint32_t qid, uint32_t entries,
                             struct gpunvme_ioq **out);
void nvme_ioq_free(struct gpunvme_ioq *ioq);
gpunvme_err_t nvme_ioq_create_on_device(struct gpunvme_ioq *ioq);
uint32_t nvme_ioq_vector(const struct gpunvme_ioq *ioq); /* of its interrupts */
gpunvme_err_t nvme_shadow_start(struct gpunvme_ctrl *ctrl);
void nvme_shadow_free(struct gpunvme_ctrl *ctrl);

/*
 * recover.c: the caller holds ctrl->lifecycle. But not for nvme_look_after, which is
 * gpunvme_ctrl_check for waits: it leaves the controller to a thread that is at it already, and is
 * no error while a reset can't go on. Nor for nvme_is_open_again.
 */
gpunvme_err_t nvme_look_after(struct gpunvme_ctrl *ctrl);
bool nvme_is_open_again(struct gpunvme_ctrl *ctrl); /* to be asked when its queues were closed */
gpunvme_err_t nvme_start(struct gpunvme_ctrl *ctrl);
gpunvme_err_t nvme_reset_locked(struct gpunvme_ctrl *ctrl);
gpunvme_err_t nvme_recover_locked(struct gpunvme_ctrl *ctrl);
void nvme_give_up_locked(struct gpunvme_ctrl *ctrl, enum ctrl_state state);

static inline enum ctrl_state nvme_state(struct gpunvme_ctrl *ctrl)
{
    return (enum ctrl_state)__atomic_load_n(&ctrl->state, __ATOMIC_ACQUIRE);
}

static inline void nvme_set_state(struct gpunvme_ctrl *ctrl, enum ctrl_state state)
{
    __atomic_store_n(&ctrl->state, (int)state, __ATOMIC_RELEASE);
}

#endif
