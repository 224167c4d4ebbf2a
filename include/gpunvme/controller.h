/* SPDX-License-Identifier: BSD-3-Clause
 *
 * An NVMe controller, brought up over a transport: identify data, namespaces, I/O queues, admin
 * commands, asynchronous events, reset and recovery.
 *
 * Threads: a controller may be used by several threads at once; open, close and the creation and
 * deletion of one queue exclude other calls on the same object. Nothing waits for ever: every
 * wait has a deadline, and a controller that fails or disappears ends every command in flight.
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
    uint32_t ready_timeout_ms; /* deadline of CSTS.RDY and SHST; 0: CAP.TO (or CRTO) says it */
    enum gpunvme_data_format data_format;
    bool no_shadow_doorbells; /* don't use Doorbell Buffer Config where the controller has it */
    bool interrupts;          /* waits sleep until the controller interrupts; the transport must */
    bool cmb;                 /* I/O submission queues in the controller memory buffer, or fail */
    bool no_recovery;         /* don't reset after a timeout or CFS: fail everything instead */
};

/* Fills in the defaults. */
void gpunvme_ctrl_opts_init(struct gpunvme_ctrl_opts *opts);

struct gpunvme_ctrl;

/*
 * Brings the controller behind `transport` up, in whatever state it is found: enabled by firmware,
 * failed, in the middle of a reset. On success the controller owns the transport; on failure the
 * caller keeps it, with the controller disabled as far as it would. `opts` may be NULL.
 *
 * Errors: GPUNVME_ERR_REMOVED, _TIMEOUT and _FATAL (the detail names the step), _UNSUPPORTED (no
 * NVM command set, page size), _PROTOCOL, and what the transport gives.
 */
gpunvme_err_t gpunvme_ctrl_open(struct gpunvme_transport *transport,
                                const struct gpunvme_ctrl_opts *opts, struct gpunvme_ctrl **out);

/* gpunvme_transport_open() and gpunvme_ctrl_open() in one. */
gpunvme_err_t gpunvme_ctrl_open_uri(const char *uri, const struct gpunvme_ctrl_opts *opts,
                                    struct gpunvme_ctrl **out);

/*
 * Deletes the I/O queues, shuts the controller down (CC.SHN normal, or abrupt), and frees it and
 * its transport. Tokens in flight end unheard. The error is of the shutdown; everything is freed
 * all the same. NULL is allowed.
 */
gpunvme_err_t gpunvme_ctrl_close(struct gpunvme_ctrl *ctrl);
gpunvme_err_t gpunvme_ctrl_close_abrupt(struct gpunvme_ctrl *ctrl);

/* Facts, valid while the controller is open. */
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
    uint64_t cmb_nbytes;       /* size of the controller memory buffer; 0: none of version 1.4 */
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
    uint8_t csi;              /* GPUNVME_CSI_…: there is I/O for NVM alone, and `id` is of NVM */
    struct gpunvme_id_ns id;  /* Identify Namespace as read */
};

/* The active namespaces by index (0 …), NULL behind the last, in increasing NSID. */
const struct gpunvme_ns *gpunvme_ctrl_ns_at(struct gpunvme_ctrl *ctrl, uint32_t index);

/*
 * The namespace `nsid`. GPUNVME_ERR_NO_NAMESPACE: not active; GPUNVME_ERR_FORMAT: its format has
 * metadata or a block size that is not supported (ns_at shows it all the same, and I/O commands
 * for it give the same error).
 */
gpunvme_err_t gpunvme_ctrl_ns(struct gpunvme_ctrl *ctrl, uint32_t nsid,
                              const struct gpunvme_ns **out);

/*
 * Memory for transfers. alloc gives memory that this controller can reach, mapped: the simplest
 * way, and with some transports the only one (transport.h). free takes back what alloc gave, and
 * leaves any other buffer as it is. map gives a bus address to memory that was allocated or
 * registered by memory.h. Both give GPUNVME_ERR_UNSUPPORTED for memory that is out of reach.
 */
gpunvme_err_t gpunvme_ctrl_map(struct gpunvme_ctrl *ctrl, struct gpunvme_buf *buf);
void gpunvme_ctrl_unmap(struct gpunvme_ctrl *ctrl, struct gpunvme_buf *buf);
gpunvme_err_t gpunvme_ctrl_alloc(struct gpunvme_ctrl *ctrl, size_t nbytes, enum gpunvme_mem mem,
                                 struct gpunvme_buf *buf);
void gpunvme_ctrl_free(struct gpunvme_ctrl *ctrl, struct gpunvme_buf *buf);

/* An I/O queue pair of a controller. */
struct gpunvme_ioq;

/*
 * Creates an I/O queue pair of `entries` (a power of two from 2, at most max_entries; 0: 256).
 * A failure that is not a status of the controller's may have cost it a reset: it must not keep
 * memory that is freed here. delete ends the commands in flight and frees the queue, with which
 * their tokens are void: neither this nor another thread may use them any more.
 */
gpunvme_err_t gpunvme_ioq_create(struct gpunvme_ctrl *ctrl, uint32_t entries,
                                 struct gpunvme_ioq **out);
gpunvme_err_t gpunvme_ioq_delete(struct gpunvme_ioq *ioq);

/*
 * For loops that test many tokens: sleeps until the queue's vector has interrupted since *seen (0
 * at the start, and brought up to date), or for timeout_ns, or without any reason; where waits
 * poll, for timeout_ns. Test the tokens after it, then call it again.
 */
void gpunvme_ioq_sleep(struct gpunvme_ioq *ioq, uint64_t *seen, uint64_t timeout_ns);

/* The raw queue pair, for code that builds its own commands (queue.h). */
struct gpunvme_qpair *gpunvme_ioq_qpair(struct gpunvme_ioq *ioq);

/*
 * One admin command: *sqe without cid; `data` (may be NULL) is described by PRP1/PRP2 and is
 * copied to or from the caller's memory, at most one MDTS. *result gets DW0; may be NULL.
 * Returns GPUNVME_ERR_NVME(status) where the status is not success.
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
 * The next asynchronous event, GPUNVME_ERR_AGAIN when there is none, GPUNVME_ERR_REMOVED or _CLOSED
 * when there can be none. Its log page has been read
 * (which clears the event) and a new request is with the controller. After a change of namespaces
 * the controller must be reopened to see it: a struct gpunvme_ns is constant.
 */
gpunvme_err_t gpunvme_ctrl_next_event(struct gpunvme_ctrl *ctrl, struct gpunvme_event *event);

/*
 * Looks after the controller: reads CSTS. GPUNVME_ERR_REMOVED ends everything in flight; a fatal
 * status is recovered from by a reset unless the options forbid it. Waits do this by themselves, at
 * least each 100 ms of a busy queue. Who only tests tokens, or has nothing in flight for long,
 * calls it now and then: another driver that wants the function waits until it has been closed
 * here.
 */
gpunvme_err_t gpunvme_ctrl_check(struct gpunvme_ctrl *ctrl);

/*
 * Resets the controller and re-creates its I/O queues, which keep their handles. Every token in
 * flight ends with GPUNVME_ERR_ABORTED. Submissions meanwhile give GPUNVME_ERR_CLOSED. A thread
 * that does not leave a call on a queue within 2 s (in a debugger, say) delays the end of the
 * reset: GPUNVME_ERR_TIMEOUT. All else has ended then, and the next submission, check or reset that
 * finds the thread gone on ends the reset as well.
 */
gpunvme_err_t gpunvme_ctrl_reset(struct gpunvme_ctrl *ctrl);

#ifdef __cplusplus
}
#endif
#endif
