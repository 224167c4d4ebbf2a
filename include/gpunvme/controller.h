/* SPDX-License-Identifier: BSD-3-Clause
 *
 * An NVMe controller, brought up over a transport: identify data, namespaces, I/O queues, admin
 * commands, asynchronous events, reset and recovery.
 *
 * Threads: a controller may be used by several threads at once, except during open and close; a
 * queue, except during its creation and deletion. Every wait has a deadline. When a controller
 * fails or disappears, every command in flight ends.
 *
 * Source: NVM Express Base 1.4, chapters 3, 5 and 7; Base 2.0c, sections 3.1, 3.5, 3.6.
 */
#ifndef GPUNVME_CONTROLLER_H
#define GPUNVME_CONTROLLER_H

#include "gpunvme/error.h"
#include "gpunvme/nvme.h"
#include "gpunvme/queue.h"
#include "gpunvme/transport.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How data is described to the controller. */
enum gpunvme_data_format {
    GPUNVME_DATA_AUTO = 0, /* PRPs; an SGL where it saves a PRP list and the controller has SGLs */
    GPUNVME_DATA_PRP = 1,
    GPUNVME_DATA_SGL = 2, /* GPUNVME_ERR_UNSUPPORTED where the controller has no SGLs */
};

struct gpunvme_ctrl_opts {
    uint32_t admin_entries;    /* entries of the admin queues, a power of two; default 64 */
    uint32_t io_queues;        /* I/O queue pairs to ask for; default 16 */
    uint32_t admin_timeout_ms; /* deadline of an admin command; default 10,000 */
    uint32_t io_timeout_ms;    /* deadline of an I/O command, then Abort, then reset; 30,000 */
    uint32_t ready_timeout_ms; /* deadline of CSTS.RDY and SHST; 0: from CAP.TO or CRTO */
    enum gpunvme_data_format data_format;
    bool no_shadow_doorbells; /* don't use Doorbell Buffer Config where the controller has it */
    bool interrupts;          /* waits sleep until an interrupt; the transport must have them */
    bool cmb;                 /* I/O submission queues in the controller memory buffer, or fail */
    bool no_recovery;         /* don't reset after a timeout or CFS: fail everything instead */
};

/* Fills in the defaults. */
void gpunvme_ctrl_opts_init(struct gpunvme_ctrl_opts *opts);

struct gpunvme_ctrl;

/*
 * Brings up the controller behind `transport`, whatever its state: enabled by firmware, failed, in
 * the middle of a reset. On success the controller owns the transport. On failure the caller keeps
 * it, and the controller is disabled if it still responds. `opts` may be NULL.
 *
 * Errors: GPUNVME_ERR_REMOVED, _TIMEOUT and _FATAL (the detail names the step), _UNSUPPORTED (no
 * NVM command set, page size), _PROTOCOL, and the transport's errors.
 */
gpunvme_err_t gpunvme_ctrl_open(struct gpunvme_transport *transport,
                                const struct gpunvme_ctrl_opts *opts, struct gpunvme_ctrl **out);

/* gpunvme_transport_open() and gpunvme_ctrl_open() in one. */
gpunvme_err_t gpunvme_ctrl_open_uri(const char *uri, const struct gpunvme_ctrl_opts *opts,
                                    struct gpunvme_ctrl **out);

/*
 * Deletes the I/O queues, shuts the controller down (CC.SHN normal, or abrupt), and frees it and
 * its transport. Tokens in flight become invalid. An error is that of the shutdown; everything is
 * freed in any case. NULL is allowed.
 */
gpunvme_err_t gpunvme_ctrl_close(struct gpunvme_ctrl *ctrl);
gpunvme_err_t gpunvme_ctrl_close_abrupt(struct gpunvme_ctrl *ctrl);

/* Valid while the controller is open. */
struct gpunvme_transport *gpunvme_ctrl_transport(struct gpunvme_ctrl *ctrl);
const struct gpunvme_id_ctrl *gpunvme_ctrl_id(const struct gpunvme_ctrl *ctrl);

struct gpunvme_ctrl_info {
    uint64_t cap;              /* CAP as read */
    uint32_t vs;               /* VS as read */
    uint32_t page_size;        /* memory page size in use (CC.MPS), bytes */
    uint32_t max_entries;      /* largest queue: a power of two, at most CAP.MQES + 1 */
    uint32_t max_io_queues;    /* queue pairs granted */
    uint64_t max_transfer;     /* bytes of one command (MDTS); UINT64_MAX: no limit */
    bool sgl;                  /* SGLs are supported */
    bool shadow_doorbells;     /* in use */
    uint64_t cmb_nbytes;       /* size of the controller memory buffer; 0: none, or before 1.4 */
    bool cmb_in_use;           /* I/O submission queues are in it */
    uint32_t vectors;          /* interrupt vectors in use; 0: waits poll */
    bool volatile_write_cache; /* Identify VWC */
    uint64_t resets;           /* resets since open */
    uint64_t host_nbytes;      /* host memory in use for queues, slots and lists */
};
void gpunvme_ctrl_get_info(struct gpunvme_ctrl *ctrl, struct gpunvme_ctrl_info *info);

/* A namespace; owned by the controller, constant while it is open. */
struct gpunvme_ns {
    struct gpunvme_ctrl *ctrl;
    uint32_t nsid;
    uint32_t block_size;      /* bytes; 0: a format that is not available */
    unsigned block_shift;     /* log2 of it */
    uint64_t nblocks;         /* NSZE */
    uint64_t nbytes;          /* nblocks × block_size */
    uint32_t max_blocks;      /* of one command: MDTS, and NLB's 65,536; 0: no I/O in this format */
    uint32_t boundary_blocks; /* transfers do not cross multiples of it (NOIOB); 0: none */
    bool readonly;            /* write protected (NSATTR bit 0) */
    uint8_t csi;              /* GPUNVME_CSI_…; I/O and `id` are for NVM only */
    struct gpunvme_id_ns id;  /* Identify Namespace as read */
};

/* The active namespace number `index`, from 0, in increasing NSID; NULL after the last. */
const struct gpunvme_ns *gpunvme_ctrl_ns_at(struct gpunvme_ctrl *ctrl, uint32_t index);

/*
 * The namespace `nsid`. GPUNVME_ERR_NO_NAMESPACE: not active; GPUNVME_ERR_FORMAT: its metadata or
 * block size is not supported (gpunvme_ctrl_ns_at() still returns it; I/O commands for it return
 * the same error).
 */
gpunvme_err_t gpunvme_ctrl_ns(struct gpunvme_ctrl *ctrl, uint32_t nsid,
                              const struct gpunvme_ns **out);

/*
 * Memory for transfers. alloc returns mapped memory that this controller can reach; with some
 * transports this is the only way (transport.h). free frees it, and ignores any other buffer. map
 * gives a bus address to memory that memory.h allocated or registered. alloc and map return
 * GPUNVME_ERR_UNSUPPORTED for memory that the controller cannot reach.
 */
gpunvme_err_t gpunvme_ctrl_map(struct gpunvme_ctrl *ctrl, struct gpunvme_buf *buf);
void gpunvme_ctrl_unmap(struct gpunvme_ctrl *ctrl, struct gpunvme_buf *buf);
gpunvme_err_t gpunvme_ctrl_alloc(struct gpunvme_ctrl *ctrl, size_t nbytes, enum gpunvme_mem mem,
                                 struct gpunvme_buf *buf);
void gpunvme_ctrl_free(struct gpunvme_ctrl *ctrl, struct gpunvme_buf *buf);

/* An I/O queue pair of a controller. */
struct gpunvme_ioq;

/*
 * Creates an I/O queue pair of `entries` (a power of two from 2, at most max_entries; 0: 256). If
 * creation fails by anything but an NVMe status, the controller may have been reset, so that it
 * cannot use memory that is freed here. delete ends the commands in flight and frees the queue; no
 * thread may use their tokens afterwards.
 */
gpunvme_err_t gpunvme_ioq_create(struct gpunvme_ctrl *ctrl, uint32_t entries,
                                 struct gpunvme_ioq **out);
gpunvme_err_t gpunvme_ioq_delete(struct gpunvme_ioq *ioq);

/*
 * For loops that test many tokens. Sleeps until the queue's vector has fired since *seen, at most
 * timeout_ns; may return early. *seen begins at 0 and is updated. Without interrupts it sleeps for
 * timeout_ns. Test the tokens after each call.
 */
void gpunvme_ioq_sleep(struct gpunvme_ioq *ioq, uint64_t *seen, uint64_t timeout_ns);

/* The raw queue pair, for code that builds its own commands (queue.h). */
struct gpunvme_qpair *gpunvme_ioq_qpair(struct gpunvme_ioq *ioq);

/*
 * Runs one admin command. The cid and data pointer of *sqe are filled in here. `data` is ordinary
 * memory, at most MDTS, or NULL; it is copied. *result receives DW0; `result` may be NULL. Returns
 * GPUNVME_ERR_NVME(status) if the status is not success.
 */
gpunvme_err_t gpunvme_ctrl_admin(struct gpunvme_ctrl *ctrl, struct gpunvme_sqe *sqe, void *data,
                                 size_t nbytes, bool to_controller, uint32_t *result);

gpunvme_err_t gpunvme_ctrl_get_log(struct gpunvme_ctrl *ctrl, uint8_t log_page, uint32_t nsid,
                                   uint64_t offset, void *data, size_t nbytes);
gpunvme_err_t gpunvme_ctrl_get_feature(struct gpunvme_ctrl *ctrl, uint8_t feature, uint32_t nsid,
                                       uint32_t *value);
gpunvme_err_t gpunvme_ctrl_set_feature(struct gpunvme_ctrl *ctrl, uint8_t feature, uint32_t nsid,
                                       uint32_t value);
gpunvme_err_t gpunvme_ctrl_keep_alive(struct gpunvme_ctrl *ctrl);

/* An asynchronous event: Base 1.4 section 5.2, completion DW0 taken apart. */
struct gpunvme_event {
    uint8_t type; /* GPUNVME_AER_TYPE_… */
    uint8_t info;
    uint8_t log_page;
};

/*
 * Returns the next asynchronous event. Its log page has been read, which clears the event, and a
 * new request submitted. GPUNVME_ERR_AGAIN: no event now; GPUNVME_ERR_REMOVED or _CLOSED: there
 * will be none. A change of namespaces takes effect when the controller is reopened: a struct
 * gpunvme_ns is constant.
 */
gpunvme_err_t gpunvme_ctrl_next_event(struct gpunvme_ctrl *ctrl, struct gpunvme_event *event);

/*
 * Checks CSTS. If the controller was removed, everything in flight ends and this returns
 * GPUNVME_ERR_REMOVED. A fatal status leads to a reset unless the options forbid it. Waits do this
 * themselves, at least every 100 ms of a busy queue. A program that only tests tokens, or is idle
 * for long, must call it now and then: another driver that asks for the function waits until this
 * program sees REMOVED and closes the controller.
 */
gpunvme_err_t gpunvme_ctrl_check(struct gpunvme_ctrl *ctrl);

/*
 * Resets the controller and re-creates its I/O queues, whose handles stay valid. Every token in
 * flight ends with GPUNVME_ERR_ABORTED. Submissions during the reset return GPUNVME_ERR_CLOSED. If
 * a thread stays inside a call on a queue for 2 s (in a debugger, say), this returns
 * GPUNVME_ERR_TIMEOUT with the reset incomplete; all other commands have ended. The first
 * submission, check or reset after the thread has left completes the reset.
 */
gpunvme_err_t gpunvme_ctrl_reset(struct gpunvme_ctrl *ctrl);

#ifdef __cplusplus
}
#endif
#endif
