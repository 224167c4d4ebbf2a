/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A device that a subcommand works on: opened by URI, and closed so that nothing is left behind
 * and the software controller's verdict on the driver is heard to the end of the shutdown.
 */
#ifndef CLI_DEVICE_H
#define CLI_DEVICE_H

#include "gpunvme/io.h"
#include "gpunvme/sim.h"
#include "gpunvme/storage.h"

/*
 * A controller that the command drives itself, or a store that the storage API drives: a file, a
 * block device, a stripe set, a namespace with options of a store.
 */
struct cli_device {
    const char *uri;
    struct gpunvme_ctrl *ctrl;   /* NULL for a store */
    struct gpunvme_store *store; /* NULL for a controller */
    struct gpunvme_ns bytes;     /* a store, as the namespace that subcommands see; its nsid is 0 */
    char what[96];               /* for messages: "namespace 1", or the store's URI */
    struct gpunvme_transport *transport;
    struct gpunvme_sim *sim;          /* while it is open, if it is a software controller */
    bool is_sim;                      /* still told afterwards */
    struct gpunvme_sim_report report; /* after cli_device_close(), of the software controller */

    /* private */
    struct gpunvme_transport_ops ops;
    const struct gpunvme_transport_ops *inner;
    bool opening, disabled;
};

/* Opens the transport alone, which leaves the controller as it is found. */
gpunvme_err_t cli_device_attach(struct cli_device *device, const char *uri);

/*
 * Opens the transport and brings the controller up with `opts` (may be NULL). `force`: image files
 * are written to even if they hold data of others. A signal ends a bring-up that takes long:
 * GPUNVME_ERR_INTERRUPTED. On failure nothing is left open.
 */
gpunvme_err_t cli_device_open(struct cli_device *device, const char *uri, bool force,
                              const struct gpunvme_ctrl_opts *opts);

/* Whether a URI names a store, and no controller (docs/STORAGE.md has both). */
bool cli_is_store(const char *uri);

/*
 * Opens a store, with GPUNVME_OPEN_* flags; with WRITE, a file that does not exist is made. It is
 * seen as a namespace of blocks of 1 << block_shift bytes.
 */
gpunvme_err_t cli_device_open_store(struct cli_device *device, const char *uri, unsigned flags,
                                    unsigned block_shift);

/* Memory for transfers, of either kind of device; freed before the device is closed. */
gpunvme_err_t cli_device_alloc(struct cli_device *device, size_t nbytes, enum gpunvme_mem mem,
                               struct gpunvme_buf *buf);
void cli_device_free(struct cli_device *device, struct gpunvme_buf *buf);

/* What was written is on the medium when it returns; `ioq` is NULL for a store. */
gpunvme_err_t cli_device_flush(struct cli_device *device, struct gpunvme_ioq *ioq,
                               const struct gpunvme_ns *ns);

/* Namespace `nsid`; 0 is the first one. Its format must be one that can be used. */
gpunvme_err_t cli_device_ns(struct cli_device *device, uint32_t nsid,
                            const struct gpunvme_ns **out);

/* Shuts the controller down; a device that is not open is fine. */
gpunvme_err_t cli_device_close(struct cli_device *device);

/*
 * cli_fail() if `err` is an error, with a hint where the device is known to have more to say;
 * returns the exit code. Call it before anything else can fail, as details are of the last failure.
 */
int cli_device_tell(const struct cli_device *device, gpunvme_err_t err);

/*
 * The end of a subcommand: closes the device, and says what went wrong in that (if `code` tells
 * that nothing went wrong before) and what the driver did against the specification. Returns the
 * exit code for it all.
 */
int cli_device_finish(struct cli_device *device, int code);

/* Says on stderr what the software controller found: CLI_VERIFY, or CLI_OK if that is nothing. */
int cli_report_violations(const struct gpunvme_sim_report *report);

/* A queue of at least `depth` commands in flight. */
gpunvme_err_t cli_queue_create(struct cli_device *device, uint32_t depth, struct gpunvme_ioq **out);

/* "#1234" of an Identify string: ASCII without the padding, what is not printable as '?'. */
char *cli_id_string(const char *field, size_t nbytes, char *text);

#endif
